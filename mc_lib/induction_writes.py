"""What layer 1 writes, and which parts of the query and of the key a score comes from.

A *write* is what a layer-1 head adds to the residual stream somewhere: its attention there times the rows that it
looks at, through its OV. A variable's *remapped embedding* is E_v OV1 of that head. A write's cosine with each
remapped embedding tells which variable it speaks of; what it shares with the *asked* ones is the part of its squared
length that lies in their span.

A score is a sum of *terms*, one for each part of the query (its token, its place, what was written there) with each
part of the key. A term's *lift* is its mean on the right keys less its mean on all other keys in sight: what it does to
single the right ones out.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mc_lib import measures, model, task
from mc_lib.config import Config
from mc_lib.evaluation import evaluation_sets, task_only
from mc_lib.induction import OPERANDS, PREVIOUS, VALUES, habits_seen, scores1
from mc_lib.measures import Sequences
from mc_lib.model import Weights

PER_SET = 1000
TERMS1 = ("token → token", "token → place", "place → token", "place → place")
NUMBERS, VARIABLES = f"{VALUES}, operand a number", f"{VALUES}, operand a variable"
TERMS2 = tuple(f"{query} → {key}" for query in ("= itself", "write") for key in ("token", "place", "write"))


def some_sequences(cfg: Config, names: tuple[str, ...]) -> Sequences:
    """The first PER_SET sequences of each of these evaluation sets."""
    sets = evaluation_sets(task_only(cfg))
    return measures.describe(torch.cat([sets[name][:PER_SET] for name in names]), cfg)


# --- what is moved -------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """Writes in one place each: their cosine with every remapped embedding, which variables they ought to speak of,
    and the share of their squared length in the span of those, of as many others (the control), and of all that ought
    to be moved there: on `=`, both operands, be they variables or numbers."""

    kind: Int[Tensor, " item"]
    cosine: Float[Tensor, "item variable"]
    asked: Bool[Tensor, "item variable"]
    explained: Float[Tensor, " item"]
    control: Float[Tensor, " item"]
    whole: Float[Tensor, " item"]

    @property
    def hit(self) -> Bool[Tensor, " item"]:
        """Whether the asked variables have the largest cosines."""
        least = self.cosine.masked_fill(~self.asked, torch.inf).amin(1)
        return least > self.cosine.masked_fill(self.asked, -torch.inf).amax(1)


def remapped(weights: Weights, head: int, cfg: Config) -> Float[Tensor, "variable d"]:
    return weights["embed.W_E"][cfg.FIRST_VARIABLE :] @ model.OV(weights, 1)[head]


def writes(
    weights: Weights,
    tokens: Int[Tensor, "n pos"],
    head: int,
    sequence: Int[Tensor, " item"],
    place: Int[Tensor, " item"],
) -> Float[Tensor, "item d"]:
    """What a layer-1 head adds in these places."""
    rows = weights["embed.W_E"][tokens] + weights["pos_embed.W_pos"]
    attention = model.trace(weights, tokens).pattern1[sequence, head, place]
    return (attention[:, None] @ rows[sequence])[:, 0] @ model.OV(weights, 1)[head]


def _span_share(
    write: Float[Tensor, "item d"], variable: Float[Tensor, "variable d"], of: Int[Tensor, "item part"]
) -> Float[Tensor, " item"]:
    basis = torch.linalg.qr(variable[of].mT).Q
    return (write[:, None] @ basis).square().sum((1, 2)) / write.square().sum(1)


def _moved(
    write: Float[Tensor, "item d"],
    variable: Float[Tensor, "variable d"],
    of: Int[Tensor, "item part"],
    kind: Int[Tensor, " item"],
) -> Moved:
    cosine = torch.cosine_similarity(write[:, None], variable, dim=-1)
    asked = torch.zeros_like(cosine, dtype=torch.bool).scatter(1, of, True)
    parts = of.shape[1]
    not_asked = asked.int().argsort(dim=1, stable=True)[:, : len(variable) - parts]
    start = torch.arange(len(of)) % (len(variable) - 2 * parts + 1)
    other = not_asked.gather(1, start[:, None] + torch.arange(parts))
    explained = _span_share(write, variable, of)
    return Moved(kind, cosine, asked, explained, _span_share(write, variable, other), explained)


@torch.no_grad()
def moved_to_numbers(weights: Weights, cfg: Config) -> Moved:
    """The writes on assigned numbers; each ought to speak of the variable before it."""
    head = habits_seen(weights, cfg)[PREVIOUS].head
    seen = some_sequences(cfg, ("1-var train",))
    write = writes(weights, seen.tokens, head, seen.sequence, seen.place)
    kind = seen.kind[seen.sequence]
    return _moved(write, remapped(weights, head, cfg), seen.variable[:, None], kind)


@torch.no_grad()
def moved_to_equal(weights: Weights, cfg: Config) -> dict[str, Moved]:
    """The writes on `=`, by number of variables; each ought to speak of the variables that are operands."""
    head = habits_seen(weights, cfg)[OPERANDS].head
    found = {}
    for name, parts in (("1-var", 1), ("2-var", 2)):
        seen = some_sequences(cfg, (f"{name} train",))
        n = len(seen.tokens)
        write = writes(weights, seen.tokens, head, torch.arange(n), torch.full((n,), cfg.length - 1))
        operands = seen.tokens[:, -3:-1]
        of = operands[operands >= cfg.FIRST_VARIABLE].view(n, parts) - cfg.FIRST_VARIABLE
        moved = _moved(write, remapped(weights, head, cfg), of, seen.kind)
        images = weights["embed.W_E"] @ model.OV(weights, 1)[head]
        found[name] = moved._replace(whole=_span_share(write, images, operands))
    return found


# --- what scores are made of ---------------------------------------------------------------------------


def _lift(
    terms: Float[Tensor, "item term pos"], right: Bool[Tensor, "item pos"], sight: Bool[Tensor, "item pos"]
) -> Float[Tensor, "item term"]:
    others = (sight & ~right)[:, None].to(terms.dtype)
    chosen = right[:, None].to(terms.dtype)
    return (terms * chosen).sum(2) / chosen.sum(2) - (terms * others).sum(2) / others.sum(2)


def terms1(
    weights: Weights,
    head: int,
    tokens: Int[Tensor, "item pos"],
    place: Int[Tensor, " item"],
    cfg: Config,
) -> Float[Tensor, "item term pos"]:
    """The four terms of layer 1's scaled scores, for one query in each sequence."""
    table = scores1(weights, head)
    query_token = tokens.gather(1, place[:, None])
    query_place = cfg.vocabulary + place[:, None]
    key_place = cfg.vocabulary + torch.arange(cfg.length).expand_as(tokens)
    pairs = ((query, key) for query in (query_token, query_place) for key in (tokens, key_place))
    return torch.stack([table[query, key] for query, key in pairs], 1)


def terms2(weights: Weights, head: int, tokens: Int[Tensor, "n pos"], cfg: Config) -> Float[Tensor, "n term pos"]:
    """The six terms of layer 2's scaled scores at `=`; a write is that of all layer-1 heads together."""
    weights = {name: w.double() for name, w in weights.items()}
    token, place = weights["embed.W_E"][tokens], weights["pos_embed.W_pos"].expand(len(tokens), -1, -1)
    mixed = model.trace(weights, tokens).pattern1 @ (token + place)[:, None]
    written = (mixed @ model.OV(weights, 1)).sum(1)
    score = model.QK(weights, 2)[head] / math.sqrt(cfg.d_head)
    queries = (token[:, -1] + place[:, -1], written[:, -1])
    pairs = ((query, key) for query in queries for key in (token, place, written))
    return torch.stack([((query @ score)[:, None] @ key.mT)[:, 0] for query, key in pairs], 1)


@torch.no_grad()
def lifts(weights: Weights, cfg: Config) -> dict[str, Float[Tensor, "item term"]]:
    """The lift of every term, by habit; layer 2's for each kind of operand, one item an operand."""
    habits = habits_seen(weights, cfg)
    seen = some_sequences(cfg, ("0-var train", "1-var train", "2-var train"))
    place, n = torch.arange(cfg.length), len(seen.tokens)
    end = torch.full((n,), cfg.length - 1)
    operands = ((place >= cfg.length - 3) & (place < cfg.length - 1)).expand(n, -1)
    first = _lift(terms1(weights, habits[OPERANDS].head, seen.tokens, end, cfg), operands, operands | True)
    terms = terms1(weights, habits[PREVIOUS].head, seen.tokens[seen.sequence], seen.place, cfg)
    at = seen.place[:, None]
    found = {OPERANDS: first, PREVIOUS: _lift(terms, place == at - 1, place <= at)}
    terms = terms2(weights, habits[VALUES].head, seen.tokens, cfg)
    positions = task.operands(seen.tokens, cfg).positions
    by_side = [_lift(terms, place == at, ~seen.values | (place == at)) for at in positions.T[:, :, None]]
    of_variable = positions.T.flatten() < cfg.room
    both = torch.cat(by_side)
    return found | {NUMBERS: both[~of_variable], VARIABLES: both[of_variable]}
