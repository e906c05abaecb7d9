"""Drawing sequences: every one is a function of (config, seed, step, place in the batch).

A draw is one number from a counter-based integer hash, so the same step gives the same bits on CPU and CUDA,
alone or stacked, straight through or resumed, and there is no generator to save. A mixture says what is drawn
(kinds, number pairs, variables); `build` turns the drawn choices into tokens. Training and evaluation share both.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mc_lib import task
from mc_lib.config import Config

TRAINING_STREAM = 0
KIND_WEIGHTS = (12, 10, 10, 10)
DRAW_BITS = 31
_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed 64-bit number


class Mixture(NamedTuple):
    """What may be drawn. A kind's variables are rows start .. start + counts of `variables`; -1 is no variable."""

    thresholds: Int[Tensor, " kind-1"]
    pairs: Int[Tensor, "pairs 2"]
    variables: Int[Tensor, "rows 2"]
    start: Int[Tensor, " kind"]
    counts: Int[Tensor, " kind"]
    fewest: Int[Tensor, " kind"]

    def to(self, device: torch.device | str) -> "Mixture":
        return Mixture(*(field.to(device) for field in self))


def mixture(
    weights: tuple[float, float, float, float],
    pairs: Int[Tensor, "pairs 2"],
    first: Int[Tensor, " first"],
    second: Int[Tensor, " second"],
    both: Int[Tensor, "both 2"],
    two_from_two: bool = True,
) -> Mixture:
    """A mixture of kinds. With two_from_two a 2-variable sequence has 2 .. 6 assignments, all equally likely;
    without, a drawn 1 becomes 2, as training does."""
    none = torch.full((1, 2), -1)
    rows = [
        none,
        torch.stack([first, -torch.ones_like(first)], 1),
        torch.stack([-torch.ones_like(second), second], 1),
        both,
    ]
    counts = [len(r) for r in rows]
    share = [w if n else 0.0 for w, n in zip(weights, counts, strict=True)]
    total = sum(share) or 1.0  # with nothing to draw the mixture is empty, and says so by its counts
    edges = [round(2**DRAW_BITS * sum(share[: k + 1]) / total) for k in range(3)]
    fewest = [1, 1, 1, 2 if two_from_two else 1]
    starts = [sum(counts[:k]) for k in range(4)]
    return Mixture(torch.tensor(edges), pairs, torch.cat(rows), *map(torch.tensor, (starts, counts, fewest)))


def training_mixture(cfg: Config) -> Mixture:
    one, two, three, four = KIND_WEIGHTS
    weights = (float(one), float(two), float(three), four * cfg.two_var)
    first, second = task.variables_for(cfg, 0, True), task.variables_for(cfg, 1, True)
    both = task.variable_pairs(cfg, 0)
    return mixture(weights, task.training_pairs(cfg), first, second, both, two_from_two=False)


# --- the hash ------------------------------------------------------------------------------------------


def _mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """SplitMix64's finaliser; int64 wraps, and the masks make the right shifts logical."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def keys(
    seeds: Int[Tensor, " seed"], steps: Int[Tensor, " step"], stream: int = TRAINING_STREAM
) -> Int[Tensor, "seed step"]:
    """One key for each (seed, step) of a stream of draws."""
    seed_key = _mix(_mix((seeds + 1) * _GOLDEN) + stream)
    return _mix(seed_key[:, None] ^ _mix((steps[None] + 1) * _GOLDEN))


def draws(key: Int[Tensor, "*group"], first: int, count: int, fields: int) -> Int[Tensor, "*group {count} {fields}"]:
    """Uniform integers below 2^31 for `count` sequences from number `first` on, `fields` for each."""
    counter = torch.arange(first * fields, (first + count) * fields, device=key.device) * _GOLDEN
    mixed = _mix(key[..., None] + counter) >> (64 - DRAW_BITS)
    return (mixed & (2**DRAW_BITS - 1)).unflatten(-1, (count, fields))


def _below(u: Int[Tensor, "*shape"], n: Int[Tensor, "..."] | int) -> Int[Tensor, "*shape"]:
    """A 31-bit draw made uniform on 0 .. n - 1."""
    return (u * n) >> DRAW_BITS


# --- sequences -----------------------------------------------------------------------------------------


def fields(cfg: Config) -> int:
    """Draws a sequence takes: kind, pair, variables, number of assignments, two slots, then the layout."""
    return 6 + cfg.variables + cfg.max_assignments + cfg.room - 2


def tokens_from(cfg: Config, mix: Mixture, u: Int[Tensor, "batch fields"]) -> Int[Tensor, "batch {cfg.length}"]:
    """Sequences of a mixture from their draws."""
    kind = (u[:, :1] >= mix.thresholds).sum(1)
    numbers = mix.pairs[_below(u[:, 1], len(mix.pairs))]
    variables = mix.variables[mix.start[kind] + _below(u[:, 2], mix.counts[kind])]
    return build(cfg, numbers, variables, u[:, 3:], mix.fewest[kind])


def build(
    cfg: Config,
    numbers: Int[Tensor, "batch 2"],
    variables: Int[Tensor, "batch 2"],
    u: Int[Tensor, "batch fields"],
    fewest: Int[Tensor, " batch"],
) -> Int[Tensor, "batch {cfg.length}"]:
    """Tokens of sequences whose operands are chosen; `u` draws the distractors and the layout."""
    most = cfg.max_assignments
    has = variables >= 0
    twice = has[:, 1] & (variables[:, 0] == variables[:, 1])
    needed = has.sum(1) - twice.long()
    assigned = torch.maximum(fewest + _below(u[:, 0], most + 1 - fewest), needed)
    chosen, value = _assignments(cfg, numbers, variables, needed, assigned, u)
    gaps = _below(u[:, 3 + cfg.variables + most :], assigned[:, None] + 1)
    pad = torch.arange(gaps.shape[1], device=u.device)
    gaps = torch.where(pad < cfg.room - 2 * assigned[:, None], gaps, most)
    slot = torch.arange(most, device=u.device)
    start = 2 * slot + (gaps[:, :, None] <= slot).sum(1)
    # An unused slot is written to the place of `+`, which is filled in afterwards.
    start = torch.where(slot < assigned[:, None], start, cfg.room)
    tokens = torch.full((len(u), cfg.length), cfg.PAD, device=u.device)
    tokens.scatter_(1, start, chosen + cfg.FIRST_VARIABLE)
    tokens.scatter_(1, (start + 1).clamp(max=cfg.room), value)
    tokens[:, cfg.room] = cfg.PLUS
    tokens[:, cfg.room + 1 : -1] = torch.where(has, variables + cfg.FIRST_VARIABLE, numbers)
    tokens[:, -1] = cfg.EQUALS
    return tokens


def _assignments(
    cfg: Config,
    numbers: Int[Tensor, "batch 2"],
    variables: Int[Tensor, "batch 2"],
    needed: Int[Tensor, " batch"],
    assigned: Int[Tensor, " batch"],
    u: Int[Tensor, "batch fields"],
) -> tuple[Int[Tensor, "batch slot"], Int[Tensor, "batch slot"]]:
    """The variable and the number in each slot: operands in random slots, distinct distractors in the others."""
    has_first = (variables[:, :1] >= 0).long()
    order = torch.cat([1 - has_first, has_first], 1)
    operand, number = variables.gather(1, order), numbers.gather(1, order)
    slot_of = _below(u[:, 1:3], torch.stack([assigned, assigned - 1], 1))
    slot_of[:, 1] += slot_of[:, 1] >= slot_of[:, 0]
    none = torch.arange(2, device=u.device) >= needed[:, None]
    slot_of = slot_of.masked_fill(none, cfg.length)

    letter = torch.arange(cfg.variables, device=u.device)
    sort_key = u[:, 3 : 3 + cfg.variables] * 32 + letter
    is_operand = (letter == variables[:, :1]) | (letter == variables[:, 1:])
    distractors = sort_key.masked_fill(is_operand, 2**62).argsort(1)
    slot = torch.arange(cfg.max_assignments, device=u.device)
    rank = slot - (slot_of[:, :, None] < slot).sum(1)
    chosen = distractors.gather(1, rank)
    value = _below(u[:, 3 + cfg.variables : 3 + cfg.variables + cfg.max_assignments], cfg.p)
    for side in (0, 1):
        here = slot == slot_of[:, side : side + 1]
        chosen = torch.where(here, operand[:, side : side + 1], chosen)
        value = torch.where(here, number[:, side : side + 1], value)
    return chosen, value


class Sampler:
    """Training batches of one config on one device."""

    def __init__(self, cfg: Config, device: torch.device | str = "cpu"):
        self.cfg = cfg
        self.mix = training_mixture(cfg).to(device)

    def batch(
        self, seeds: Int[Tensor, " seed"], steps: Int[Tensor, " step"], first: int = 0, count: int | None = None
    ) -> Int[Tensor, "seed step batch pos"]:
        """Batches for these seeds and steps; `first` and `count` take a part of each batch."""
        count = self.cfg.batch if count is None else count
        u = draws(keys(seeds, steps), first, count, fields(self.cfg))
        tokens = tokens_from(self.cfg, self.mix, u.flatten(0, 2))
        return tokens.view(*u.shape[:3], self.cfg.length)


def sample(cfg: Config, mix: Mixture, count: int, stream: int, seed: int = 0) -> Int[Tensor, "{count} pos"]:
    """`count` seeded sequences of any mixture; streams other than TRAINING_STREAM never meet training's draws."""
    key = keys(torch.tensor([seed]), torch.tensor([0]), stream)[0, 0]
    return tokens_from(cfg, mix, draws(key, 0, count, fields(cfg)))
