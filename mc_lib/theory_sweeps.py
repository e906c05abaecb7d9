"""What the theorem promises, measured: remainders over sizes, and attention and accuracy over the step size.

Nouns as in `theory`. A *sweep* changes one number of a setup. A *scan* follows gamma: scores are linear in it,
so the start's and the update's scores are taken once for every sequence. *Accuracy* gives a tie its share: a
right answer among k equal largest logits counts 1/k. The *window* is the range of gamma in which the least
accuracy of some kinds keeps a level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mc_lib.config import Refusal
from mc_lib.theory import F64, Setup, bound, mlp, remainder, start
from mc_lib.theory_batch import Inputs, augment, number_weights, sample, scores

KINDS = (0, 1, 2)
Matrix = Float[Tensor, "basis basis"]


class SweepPoint(NamedTuple):
    """The remainder at one setup: its largest entry and row sum, and the bound's four terms."""

    value: float
    largest: float
    row_sum: float
    bound: dict[str, float]


def remainder_sweep(s: Setup, name: str, values: Sequence[float | int]) -> list[SweepPoint]:
    """R / gamma as one number of the setup changes."""
    points = []
    for value in values:
        at = s.replace(**{name: value})
        R = remainder(at).abs()
        points.append(SweepPoint(float(value), R.max().item(), R.sum(1).max().item(), bound(at)))
    return points


class Slope(NamedTuple):
    """Exponent of a power law y ~ x^slope, its 95% interval over n points."""

    slope: float
    low: float
    high: float
    n: int


def fitted_slope(x: Sequence[float | int], y: Sequence[float | int]) -> Slope:
    """Least squares on the logarithms, with Student's interval."""
    n = len(x)
    if n < 3 or n != len(y) or min(*x, *y) <= 0:
        raise Refusal(
            f"a slope needs three points or more, all positive, and got {n} and {len(y)}: add values to the sweep"
        )
    lx, ly = np.log(x), np.log(y)
    lx = lx - lx.mean()
    slope = float(lx @ ly / (lx @ lx))
    left = ly - ly.mean() - slope * lx
    error = math.sqrt(left @ left / (n - 2) / (lx @ lx))
    half = student_quantile(n - 2) * error
    return Slope(slope, slope - half, slope + half, n)


@lru_cache
def student_quantile(freedom: int) -> float:
    """The 97.5% point of Student's t, by integrating its density."""
    t = np.linspace(0, 40, 200_001)
    log_c = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = np.exp(log_c - (freedom + 1) / 2 * np.log1p(t * t / freedom))
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * (t[1] - t[0]))])
    return float(t[np.searchsorted(mass, 0.475)])


class Mean(NamedTuple):
    """A mean of n draws and its 95% interval."""

    mean: float
    low: float
    high: float
    n: int


def mean_of(values: Sequence[float]) -> Mean:
    """Student's interval round the mean."""
    n = len(values)
    if n < 2:
        raise Refusal(f"an interval needs two draws or more, and got {n}: draw more")
    mean, half = (
        float(np.mean(values)),
        student_quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n),
    )
    return Mean(mean, mean - half, mean + half, n)


class Memory(NamedTuple):
    """The block of a key-query matrix from remapped variables to remapped variables, and its company."""

    block: Float[Tensor, "V V"]
    match: float
    """Mean of its diagonal: what the right variable gains over the others (together with `other`)."""
    other: float
    """Mean off the diagonal (0 for a single variable)."""
    shared: float
    """Mean entry from remapped variables to e_= and p_=, what every assignment gains."""
    operands: tuple[float, float]
    """Entries from the left and right operand position to p_=."""


def memory(s: Setup, W: Matrix) -> Memory:
    """Read off a matrix what the theorem speaks of."""
    tilde = s.blocks["tilde_variable"]
    block, last = W[tilde, tilde], s.position(-1)
    match = block.diagonal().mean()
    others = s.variables * (s.variables - 1)
    other = (block.sum() - block.trace()) / others if others else torch.zeros(())
    shared = W[tilde][:, [s.EQUALS, last]].mean()
    operands = (W[s.position(-3), last].item(), W[s.position(-2), last].item())
    return Memory(block, match.item(), other.item(), shared.item(), operands)


@dataclass(frozen=True)
class Probe:
    """Where attention goes and how often the sum is right, over n sequences."""

    accuracy: float
    right: float
    """Mean attention on the two numbers to be added."""
    itself: float
    """Mean attention of `=` on itself."""
    operands: float
    """Mean attention on the two operand positions."""
    wrong: float
    """Mean attention on the values of assignments that are not asked for."""
    top2: float
    """Share of sequences whose two most attended positions, `=` itself apart, are the right ones."""
    n: int


def share_right(logits: Float[Tensor, "seq p"], x: Inputs) -> Float[Tensor, " seq"]:
    """1 where the largest logit is the sum, 1/k where k logits tie for it, else 0."""
    largest = logits.max(1).values
    tied = logits >= (largest * (1 - 1e-9))[:, None]
    hit = tied.gather(1, x.answers_of.sum(1, keepdim=True) % logits.shape[1]).squeeze(1)
    return hit.to(F64) / tied.sum(1)


def probe(s: Setup, seen: Float[Tensor, "seq pos"], x: Inputs, gram: Matrix | None = None) -> Probe:
    """Attention and accuracy at given scores."""
    attention = torch.softmax(seen, 1)
    right = attention.gather(1, x.values)
    least = right.min(1).values
    above = (attention[:, :-1] > least[:, None]).sum(1)  # the larger of the two at most, if they lead
    tied = (attention[:, :-1] == least[:, None]).sum(1)
    distinct = right[:, 0] != right[:, 1]
    leads = torch.where(distinct, (above == 1) & (tied == 1), (above == 0) & (tied == 2))
    assigned = (attention * (x.remapped < s.size)).sum(1)
    wrong = assigned - (right * (x.values < s.length - 4)).sum(1)
    return Probe(
        accuracy=share_right(mlp(number_weights(s, attention, x, gram)), x).mean().item(),
        right=right.sum(1).mean().item(),
        itself=attention[:, -1].mean().item(),
        operands=attention[:, -3:-1].sum(1).mean().item(),
        wrong=wrong.mean().item(),
        top2=leads.to(F64).mean().item(),
        n=len(attention),
    )


class Scan:
    """Probes of W_0 + gamma * step at any gamma, for every kind, on the same sequences."""

    def __init__(
        self,
        s: Setup,
        step: Matrix,
        count: int = 1000,
        assignments: Sequence[int] = (3,),
        seed: int = 0,
        gram: Matrix | None = None,
        base: Matrix | None = None,
    ) -> None:
        base = start(s) if base is None else base
        if gram is not None:
            base, step = gram @ base @ gram, gram @ step @ gram
        self.s, self.gram, self.lines = s, gram, {}
        for kind in KINDS:
            each = math.ceil(count / len(assignments))
            x = augment(s, torch.cat([sample(s, kind, each, seed, k) for k in assignments]))
            self.lines[kind] = (x, scores(s, base, x), scores(s, step, x))

    def at(self, gamma: float, kind: int) -> Probe:
        x, base, slope = self.lines[kind]
        seen = base + gamma * slope if gamma else base
        return probe(self.s, seen, x, self.gram)

    def over(self, gammas: Sequence[float]) -> dict[int, list[Probe]]:
        return {kind: [self.at(gamma, kind) for gamma in gammas] for kind in KINDS}

    def worst(self, gamma: float, kinds: Sequence[int] = KINDS) -> float:
        """Least accuracy over the kinds."""
        return min(self.at(gamma, kind).accuracy for kind in kinds)


class Window(NamedTuple):
    """The longest run of step sizes that keep the level, and the best accuracy anywhere (at `best_at`)."""

    low: float
    high: float
    best: float
    best_at: float

    @property
    def width(self) -> float:
        return max(0.0, self.high - self.low)


def window(
    scan: Scan, kinds: Sequence[int] = KINDS, level: float = 0.99, most: float = 8.0, points: int = 65
) -> Window:
    """Search a grid up to `most`, refine round the best, halve towards both edges; nan if the level is never met."""
    grid = np.linspace(0, most, points)
    worst = np.array([scan.worst(g, kinds) for g in grid])
    middle = int(worst.argmax())
    fine = np.linspace(grid[max(middle - 1, 0)], grid[min(middle + 1, points - 1)], 17)
    grid = np.union1d(grid, fine)
    worst = np.array([worst[0] if g == 0 else scan.worst(g, kinds) for g in grid])
    best, best_at = float(worst.max()), float(grid[worst.argmax()])
    if best < level:
        return Window(math.nan, math.nan, best, best_at)
    low = high = int(worst.argmax())
    while low > 0 and worst[low - 1] >= level:
        low -= 1
    while high < len(grid) - 1 and worst[high + 1] >= level:
        high += 1

    def edge(inside: float, outside: float) -> float:
        for _ in range(8):
            half = (inside + outside) / 2
            inside, outside = (half, outside) if scan.worst(half, kinds) >= level else (inside, half)
        return float(inside)

    bottom = edge(grid[low], grid[low - 1]) if low else float(grid[0])
    top = edge(grid[high], grid[high + 1]) if high < len(grid) - 1 else float(grid[-1])
    return Window(bottom, top, best, best_at)


def predicted_window(s: Setup) -> tuple[float, float]:
    """Where theory alone puts the one-variable window: both numbers' scores within log 2 of each other.

    The operand's position falls or stays by the closed form, the right assignment's number gains 2 + carried^2.
    """
    change = (1 - 2 * s.A) if s.order == "fixed" else (1 - 4 * s.A) / 2
    operand = change * s.variables * (2 + s.carried**2 / s.variables)
    gap = 2 + s.carried**2 - operand
    return (s.lam - math.log(2)) / gap, (s.lam + math.log(2)) / gap
