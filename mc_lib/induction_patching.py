"""What follows if the induction head is cut or misled: evidence of causes, where attention is evidence of habits.

To *cut* an edge (a query and a key of one layer) is to set its attention to zero in every head: nothing is moved along
it and nothing else moves instead. To *swap* is to exchange, in what layer 1 moved to some places, the remapped
embedding of the variable that is asked for against that of another variable, assigned in the same sequence to another
number. Tokens, places and layer 1's attention stay as they are. If the head is what looks variables up, a swap on the
side of the *question* (`=`, and the second operand, which looks at the first) gives the answer for the other variable;
so does a swap on the side of the *assignments* (the two numbers); and both together give the old answer.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mc_lib import measures, model, task
from mc_lib.claim import NotHere
from mc_lib.config import Config
from mc_lib.evaluation import evaluation_sets, task_only
from mc_lib.hooked import HookedModel, hooked
from mc_lib.intervals import wilson
from mc_lib.model import Weights

Hook = Callable[..., Tensor]
PER_SET = 400
KINDS = ("0-var train", "1-var train", "2-var train")
CUTS = (
    "nothing",
    "= to operands",
    "second operand to first",
    "numbers to variables",
    "all but these three",
    "= to values",
    "all but = to values",
)
SWAPS = ("nothing", "at =", "question", "assignments", "question and assignments", "random, at =")
DOSES = 11


def _tokens(cfg: Config, name: str) -> Int[Tensor, "n pos"]:
    return evaluation_sets(task_only(cfg))[name]


def answers_with(
    net: HookedModel, tokens: Int[Tensor, "n pos"], hooks: list[tuple[str, Callable[[slice], Hook]]]
) -> Int[Tensor, " n"]:
    """The model's answers with hooks in place; each hook is made for the part of the sequences that is run."""
    chunk, found = 256, []
    for start in range(0, len(tokens), chunk):
        part = slice(start, start + chunk)
        here: list = [(name, make(part)) for name, make in hooks]
        found.append(net.run_with_hooks(tokens[part], fwd_hooks=here)[:, -1].argmax(-1))
    return torch.cat(found)


# --- cutting -------------------------------------------------------------------------------------------


class Edges(NamedTuple):
    """Queries and the keys that they look at; `values` is of layer 2, the others of layer 1."""

    operands: Bool[Tensor, "n query key"]
    second: Bool[Tensor, "n query key"]
    previous: Bool[Tensor, "n query key"]
    values: Bool[Tensor, "n query key"]


def edges(tokens: Int[Tensor, "n pos"], cfg: Config) -> Edges:
    """Of `=` to the operands, of the second operand to the first, of assigned numbers to the place before, of `=` to
    the right values."""
    operands, second, previous, values = torch.zeros(4, len(tokens), cfg.length, cfg.length, dtype=torch.bool)
    seen = measures.describe(tokens, cfg)
    operands[:, -1, -3:-1] = True
    second[:, -2, -3] = True
    previous[seen.sequence, seen.place, seen.place - 1] = True
    values[:, -1] = seen.values
    return Edges(operands, second, previous, values)


def _cut(layer: int, keep: Bool[Tensor, "n query key"]) -> tuple[str, Callable[[slice], Hook]]:
    """A hook that sets a layer's attention to zero wherever it is not kept."""

    def make(part: slice) -> Hook:
        return lambda pattern, hook: pattern * keep[part, None]

    return f"blocks.{layer - 1}.attn.hook_pattern", make


def cut_hooks(tokens: Int[Tensor, "n pos"], cfg: Config) -> dict[str, list[tuple[str, Callable[[slice], Hook]]]]:
    operands, second, previous, values = edges(tokens, cfg)
    elsewhere = torch.ones_like(values)
    elsewhere[:, -1] = False  # layer 2 matters at `=` only
    hooks = [
        [],
        [_cut(1, ~operands)],
        [_cut(1, ~second)],
        [_cut(1, ~previous)],
        [_cut(1, operands | second | previous)],
        [_cut(2, ~values)],
        [_cut(2, values | elsewhere)],
    ]
    return dict(zip(CUTS, hooks, strict=True))


@torch.no_grad()
def cuts(weights: Weights, cfg: Config) -> pd.DataFrame:
    """A row for every cut and set: n, how many answers are right, their share and its interval."""
    net, rows = hooked(weights), []
    for name in KINDS:
        tokens = _tokens(cfg, name)[:PER_SET]
        right = task.answers(tokens, cfg)
        for what, hooks in cut_hooks(tokens, cfg).items():
            hits = int((answers_with(net, tokens, hooks) == right).sum())
            n, kind = len(tokens), name.removesuffix(" train")
            rows.append((what, kind, n, hits, hits / n, *wilson(hits, n)))
    return pd.DataFrame(rows, columns=["cut", "kind", "n", "hits", "share", "low", "high"])


# --- swapping ------------------------------------------------------------------------------------------


class Swap(NamedTuple):
    """Sequences with an operand variable and another assigned one; where they stand, and the answer with each."""

    tokens: Int[Tensor, "n pos"]
    side: Int[Tensor, " n"]
    asked: Int[Tensor, " n"]
    other: Int[Tensor, " n"]
    before: Int[Tensor, " n"]
    after: Int[Tensor, " n"]


def swappable(tokens: Int[Tensor, "n pos"], cfg: Config) -> Swap:
    """Those of the sequences in which a variable is asked for and another, with another number, is not.

    The operand is the first that is a variable, the other variable the leftmost that will do.
    """
    found = task.operands(tokens, cfg)
    side = (found.kind == 2).long()
    asked = found.positions.gather(1, side[:, None])[:, 0] - 1
    number = found.numbers.gather(1, side[:, None])
    context = tokens[:, : cfg.room]
    is_operand = (context[:, :, None] == tokens[:, None, -3:-1]).any(-1)
    following = tokens[:, 1 : cfg.room + 1]
    will_do = (context >= cfg.FIRST_VARIABLE) & ~is_operand & (following != number)
    keep = will_do.any(1) & (found.kind > 0)
    other = will_do.int().argmax(1)
    after = (found.numbers.sum(1) - number[:, 0] + tokens.gather(1, other[:, None] + 1)[:, 0]) % cfg.p
    fields = (tokens, side, asked, other, found.numbers.sum(1) % cfg.p, after)
    return Swap(*(field[keep] for field in fields))


class Strength(NamedTuple):
    """How much of a swap is made where; 1 is all of it."""

    equal: float = 0
    second: float = 0
    numbers: float = 0


class Deltas(NamedTuple):
    """What a swap adds to layer 1's output: at `=`, at the second operand, and at the two numbers."""

    equal: Float[Tensor, "n d"]
    second: Float[Tensor, "n d"]
    asked: Float[Tensor, "n d"]
    other: Float[Tensor, "n d"]


def deltas(weights: Weights, swap: Swap, cfg: Config) -> Deltas:
    """Each head's attention to the variable, times (other variable's embedding less the asked one's) through its OV."""
    n = torch.arange(len(swap.tokens))
    embedding = weights["embed.W_E"]
    change = embedding[swap.tokens[n, swap.other]] - embedding[swap.tokens[n, swap.asked]]
    moved = torch.einsum("nd, hde -> nhe", change, model.OV(weights, 1))
    pattern = torch.cat([model.trace(weights, some).pattern1 for some in swap.tokens.split(measures.chunk(cfg))])

    def through(query: Int[Tensor, " n"], key: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        return torch.einsum("nh, nhd -> nd", pattern[n, :, query, key], moved)

    equal = through(torch.full_like(n, cfg.length - 1), cfg.length - 3 + swap.side)
    second = through(torch.full_like(n, cfg.length - 2), torch.full_like(n, cfg.length - 3))
    second[swap.side == 1] = 0  # the first operand is not the variable
    return Deltas(equal, second, through(swap.asked + 1, swap.asked), -through(swap.other + 1, swap.other))


def _added(added: Float[Tensor, "n pos d"]) -> tuple[str, Callable[[slice], Hook]]:
    def make(part: slice) -> Hook:
        return lambda out, hook: out + added[part]

    return "blocks.0.hook_attn_out", make


def added_by(swap: Swap, change: Deltas, cfg: Config, strength: Strength) -> Float[Tensor, "n pos d"]:
    """The swap as an addition to layer 1's output."""
    n = torch.arange(len(swap.tokens))
    added = change.equal.new_zeros(len(n), cfg.length, change.equal.shape[1])
    added[:, -1] = strength.equal * change.equal
    added[:, -2] = strength.second * change.second
    added[n, swap.asked + 1] = strength.numbers * change.asked
    added[n, swap.other + 1] = strength.numbers * change.other
    return added


@lru_cache(maxsize=8)
def _swaps(cfg: Config, name: str) -> Swap:
    swap = swappable(_tokens(cfg, name), cfg)
    return Swap(*(field[:PER_SET] for field in swap))


def swaps_of(cfg: Config, name: str) -> Swap:
    """The first PER_SET sequences of an evaluation set in which a swap can be made."""
    swap = _swaps(task_only(cfg), name)
    if not len(swap.tokens):
        raise NotHere(f"no sequence of {name} assigns a variable with another number that is not asked for")
    return swap


@torch.no_grad()
def swaps(weights: Weights, cfg: Config) -> pd.DataFrame:
    """A row for every swap and set: n, answers that stay, answers that follow, with the intervals of both shares."""
    net, rows = hooked(weights), []
    can = [name for name in KINDS[1:] if len(_swaps(task_only(cfg), name).tokens)]
    for name in can or KINDS[1:2]:  # with none at all, swaps_of says so
        swap = swaps_of(cfg, name)
        change = deltas(weights, swap, cfg)
        noise = torch.randn(change.equal.shape, generator=torch.Generator().manual_seed(0)).to(change.equal)
        noise *= change.equal.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
        random = change._replace(equal=noise)
        strengths = (Strength(), Strength(1), Strength(1, 1), Strength(0, 0, 1), Strength(1, 1, 1), Strength(1))
        for what, strength in zip(SWAPS, strengths, strict=True):
            delta = random if what.startswith("random") else change
            said = answers_with(net, swap.tokens, [_added(added_by(swap, delta, cfg, strength))])
            stay, follow, n = int((said == swap.before).sum()), int((said == swap.after).sum()), len(said)
            rows.append((what, name.removesuffix(" train"), n, stay, follow, *wilson(stay, n), *wilson(follow, n)))
    columns = ["swap", "kind", "n", "stay", "follow", "stay low", "stay high", "follow low", "follow high"]
    return pd.DataFrame(rows, columns=columns)


@torch.no_grad()
def doses(weights: Weights, cfg: Config, name: str = "1-var train") -> pd.DataFrame:
    """A swap on the side of the question in growing strength: 0 leaves everything, 1 is the whole swap."""
    net, swap, rows = hooked(weights), swaps_of(cfg, name), []
    change = deltas(weights, swap, cfg)
    for strength in torch.linspace(0, 1, DOSES).tolist():
        said = answers_with(net, swap.tokens, [_added(added_by(swap, change, cfg, Strength(strength, strength)))])
        stay, follow = ((said == answer).double().mean().item() for answer in (swap.before, swap.after))
        rows.append((strength, len(said), stay, follow))
    return pd.DataFrame(rows, columns=["strength", "n", "stay", "follow"])
