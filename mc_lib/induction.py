"""The induction head: how the weights and the attention look a variable's number up.

Layer 1 has two *habits*: `=` looks at the two operands, and every *assigned number* looks at the place before it,
where its variable stands. Layer 2 has one: `=` looks at the two right *values*, the places of the numbers to add. A hit
is an item on which a habit's right places get more attention than any other; the mass is how much they get together. A
variable's *remapped embedding* is E_v OV1, what layer 1 moves of it; layer 2 *matches* the one at `=` with the one at a
number.

Everything is of one head: that whose habit is strongest, as in `measures`.
"""

import math
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mc_lib import measures, model
from mc_lib.config import KINDS, Config
from mc_lib.evaluation import NINE, evaluation_sets, task_only
from mc_lib.intervals import wilson
from mc_lib.measures import Sequences
from mc_lib.model import Weights

OPERANDS, PREVIOUS, VALUES = HABITS = ("= to operands", "number to previous", "= to values")
TRAINED = tuple(name for name in NINE if name.endswith(" train"))
RESTRICTED = tuple(name for name in NINE if "var-restricted" in name)
SOME = 500
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def example(cfg: Config, lhs: int | str = "b", rhs: int | str = 9) -> Int[Tensor, " pos"]:
    """The paper's example `; ; ; b 7 ; e 5 ; d 2 ; + b 9 =`, cropped or padded to the config's task."""

    def token(word: int | str) -> int:
        return word % cfg.p if isinstance(word, int) else cfg.FIRST_VARIABLE + "abcde".index(word) % cfg.variables

    said = (("b", 7), ("e", 5), ("d", 2))[: cfg.max_assignments]
    gap = [cfg.PAD] * (cfg.room >= 3 * len(said))
    context = [part for variable, value in said for part in (token(variable), token(value), *gap)]
    pads = [cfg.PAD] * (cfg.room - len(context))
    return torch.tensor([*pads, *context, cfg.PLUS, token(lhs), token(rhs), cfg.EQUALS])


# --- attention, item by item ---------------------------------------------------------------------------


class Seen(NamedTuple):
    """The paper's nine sets one after the other: their names, and which of them each sequence is from."""

    names: list[str]
    set: Int[Tensor, " n"]
    sequences: Sequences


@lru_cache(maxsize=2)
def _seen(cfg: Config) -> Seen:
    sets = {name: members for name, members in evaluation_sets(cfg).items() if len(members)}
    sizes = torch.tensor([len(members) for members in sets.values()])
    which = torch.arange(len(sets)).repeat_interleave(sizes)
    return Seen(list(sets), which, measures.describe(torch.cat(list(sets.values())), cfg))


def seen(cfg: Config) -> Seen:
    return _seen(task_only(cfg))


class Habit(NamedTuple):
    """One habit on many items (a sequence, or a number in it): hits, and the attention on the right places."""

    head: int
    hit: Bool[Tensor, " item"]
    mass: Float[Tensor, " item"]
    sequence: Int[Tensor, " item"]
    place: Int[Tensor, " item"]


@torch.no_grad()
def habits(weights: Weights, cfg: Config, sequences: Sequences) -> dict[str, Habit]:
    """The three habits on these sequences, each of its best head; a tie is no hit."""
    place = torch.arange(cfg.length)
    operands = (place >= cfg.length - 3) & (place < cfg.length - 1)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in HABITS}
    for some in torch.arange(len(sequences.tokens)).split(measures.chunk(cfg)):
        trace = model.trace(weights, sequences.tokens[some])
        here = (sequences.sequence >= some[0]) & (sequences.sequence <= some[-1])
        row, at = sequences.sequence[here] - some[0], sequences.place[here]
        before = place == at[:, None] - 1
        found[OPERANDS].append(measures.hit_and_mass(trace.pattern1[:, :, -1], operands.expand(len(some), -1)))
        found[PREVIOUS].append(measures.hit_and_mass(trace.pattern1[row, :, at], before))
        found[VALUES].append(measures.hit_and_mass(trace.pattern2, sequences.values[some]))
    whole = torch.arange(len(sequences.tokens))
    end = torch.full_like(whole, cfg.length - 1)
    items = {OPERANDS: (whole, end), PREVIOUS: (sequences.sequence, sequences.place), VALUES: (whole, end)}
    best = {}
    for name, parts in found.items():
        hit, mass = (torch.cat(part) for part in zip(*parts, strict=True))
        best[name] = _best(hit, mass, *items[name])
    return best


def _best(
    hit: Bool[Tensor, "item head"],
    mass: Float[Tensor, "item head"],
    sequence: Int[Tensor, " item"],
    place: Int[Tensor, " item"],
) -> Habit:
    head = measures.best_head(hit, mass)
    return Habit(head, hit[:, head], mass[:, head], sequence, place)


def habits_seen(weights: Weights, cfg: Config) -> dict[str, Habit]:
    """The habits on the nine sets."""
    return habits(weights, cfg, seen(cfg).sequences)


def by_group(habit: Habit, group: Int[Tensor, " item"], names: list[str]) -> pd.DataFrame:
    """A row a group: n, hits, their share with its interval, the mean mass with its, and the mass's quantiles."""
    rows = []
    for index, name in enumerate(names):
        hit, mass = habit.hit[group == index], habit.mass[group == index].double()
        if not len(hit):
            continue
        low, high = wilson(int(hit.sum()), len(hit))
        spread = 1.96 * mass.std(correction=0).item() / math.sqrt(len(hit))
        quantiles = mass.quantile(torch.tensor(QUANTILES, dtype=torch.double)).tolist()
        share = hit.double().mean().item()
        rows.append((name, len(hit), int(hit.sum()), share, low, high, mass.mean().item(), spread, *quantiles))
    columns = [
        "group",
        "n",
        "hits",
        "share",
        "low",
        "high",
        "mass",
        "mass ±",
        *(f"q{100 * q:02.0f}" for q in QUANTILES),
    ]
    return pd.DataFrame(rows, columns=columns)


def by_set(habit: Habit, cfg: Config) -> pd.DataFrame:
    """`by_group` for the habits on the nine sets, a row a set."""
    return by_group(habit, seen(cfg).set[habit.sequence], seen(cfg).names)


def within(habit: Habit, cfg: Config, names: Collection[str]) -> Habit:
    """The items of some of the nine sets."""
    chosen = torch.tensor([name in names for name in seen(cfg).names])
    keep = chosen[seen(cfg).set[habit.sequence]]
    return Habit(habit.head, *(field[keep] for field in habit[1:]))


@torch.no_grad()
def second_operand(weights: Weights, cfg: Config) -> pd.DataFrame:
    """Layer-1 attention of the second operand to the first, by kind: n, mean, interval. Head: the previous place's."""
    every, head = seen(cfg), habits_seen(weights, cfg)[PREVIOUS].head
    trained = torch.tensor([name in TRAINED for name in every.names])[every.set]
    rows = []
    for kind, name in enumerate(KINDS):
        tokens = every.sequences.tokens[trained & (every.sequences.kind == kind)][:SOME]
        look = model.trace(weights, tokens).pattern1[:, head, -2, -3].double()
        rows.append((name, len(look), look.mean().item(), 1.96 * look.std(correction=0).item() / math.sqrt(len(look))))
    return pd.DataFrame(rows, columns=["kind", "n", "mass", "mass ±"])


# --- read from layer 1's weights -----------------------------------------------------------------------


def scores1(weights: Weights, head: int) -> Float[Tensor, "row row"]:
    """[E; P] QK1 [E; P]' / sqrt(d_head): what every token and position, as query, gives every one as key."""
    rows = torch.cat([weights["embed.W_E"], weights["pos_embed.W_pos"]]).double()
    query, key = (weights[f"blocks.0.attn.W_{part}"][head].double() for part in "QK")
    return (rows @ query) @ (rows @ key).T / math.sqrt(query.shape[-1])


def previous_scores(weights: Weights, head: int, cfg: Config) -> Float[Tensor, "query key"]:
    """P QK1 P' among the places of assignments; NaN where no variable of the query's number can stand or be seen."""
    first = cfg.vocabulary
    score = scores1(weights, head)[first : first + cfg.room, first : first + cfg.room]
    query = torch.arange(cfg.room)[:, None]
    return score.masked_fill((query.T >= query) | (query.T == query - 2), torch.nan)


def peaks(weights: Weights, head: int, cfg: Config) -> Int[Tensor, " query"]:
    """How far back P QK1 P' peaks from queries 1 .. room - 1 if nothing but the future is left out; 0 is the query."""
    first = cfg.vocabulary
    score = scores1(weights, head)[first : first + cfg.room, first : first + cfg.room]
    future = torch.ones_like(score, dtype=torch.bool).triu(1)
    return (torch.arange(cfg.room) - score.masked_fill(future, -torch.inf).argmax(1))[1:]


def rightward(weights: Weights, head: int, cfg: Config) -> Float[Tensor, " query"]:
    """Rank correlation of P QK1 P' with the key's place, for queries 2 .. room - 1 and the keys that they see."""
    first = cfg.vocabulary
    score = scores1(weights, head)[first : first + cfg.room, first : first + cfg.room]
    found = []
    for query in range(2, cfg.room):
        row = score[query, : query + 1]
        rank = (row[:, None] > row).sum(1) + (row[:, None] == row).sum(1) / 2
        both = torch.stack([rank.double(), torch.arange(len(row)).double()])
        found.append(torch.corrcoef(both)[0, 1].nan_to_num(0.0))  # a constant row has no direction
    return torch.stack(found)


class Previous(NamedTuple):
    """Queries 1 .. room - 1: whether the place before has the highest score, and whether there was another one."""

    head: int
    hit: Bool[Tensor, " query"]
    choice: Bool[Tensor, " query"]


def previous_hits(weights: Weights, cfg: Config) -> Previous:
    """Of the head with the most hits."""
    found = []
    for head in range(cfg.heads):
        score = previous_scores(weights, head, cfg)[1:]
        before = score.diagonal()
        others = score.clone()
        others.diagonal().fill_(torch.nan)
        choice = ~others.isnan().all(1)
        found.append(Previous(head, before > others.nan_to_num(nan=-torch.inf).amax(1), choice))
    return max(found, key=lambda previous: int(previous.hit.sum()))


def assigned(cfg: Config) -> str:
    """The name of the group of positions where assignments stand."""
    return f"places 0–{cfg.room - 1}"


def groups(cfg: Config) -> dict[str, Int[Tensor, " row"]]:
    """The rows of [E; P] by what they are."""
    v, room = cfg.vocabulary, cfg.room
    return {
        "numbers": torch.arange(cfg.p),
        "+": torch.tensor([cfg.PLUS]),
        "=": torch.tensor([cfg.EQUALS]),
        "PAD": torch.tensor([cfg.PAD]),
        "variables": torch.arange(cfg.FIRST_VARIABLE, v),
        assigned(cfg): torch.arange(v, v + room),
        **{f"place {room + i}": torch.tensor([v + room + i]) for i in range(4)},
    }


def group_scores(weights: Weights, head: int, cfg: Config) -> pd.DataFrame:
    """Mean of `scores1` by group of queries (rows) and of keys (columns)."""
    score, rows = scores1(weights, head), groups(cfg)
    table = [[score[query][:, key].mean().item() for key in rows.values()] for query in rows.values()]
    return pd.DataFrame(table, index=list(rows), columns=list(rows))


# --- the match in layer 2 ------------------------------------------------------------------------------


class Match(NamedTuple):
    """(E_v OV1) QK2 (E_v' OV1)', unscaled; rows are asked for at `=`, columns stand before a number."""

    heads: tuple[int, int, int]
    score: Float[Tensor, "asked assigned"]
    margin: Float[Tensor, " asked"]


def match(weights: Weights, cfg: Config) -> Match:
    """Of the best heads: layer 2's, layer 1's that moves variables to `=`, and layer 1's that moves them to numbers.

    A margin is the score of a variable with itself over the best with another one.
    """
    score = measures.match_matrices({name: w.double() for name, w in weights.items()}, cfg)
    same = torch.eye(cfg.variables, dtype=torch.bool)
    margin = score.diagonal(dim1=3, dim2=4) - score.masked_fill(same, -torch.inf).amax(-1)
    share, mean = (margin > 0).double().mean(-1), margin.mean(-1)
    best = int(mean.masked_fill(share < share.max(), -torch.inf).argmax())
    heads = tuple(int(i) for i in torch.unravel_index(torch.tensor(best), mean.shape))
    return Match((heads[0], heads[1], heads[2]), score[heads], margin[heads])
