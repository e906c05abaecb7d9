"""Beyond the theorem's one exact step: further steps, random embeddings, and samples.

Nouns as in `theory` and `theory_sweeps`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mc_lib.theory import F64, Setup, learning_rate, population_gradient, start, update
from mc_lib.theory_batch import (
    augment,
    batch_gradient,
    every_one_variable,
    gram_matrix,
    sample,
    scores,
    symmetrise,
)
from mc_lib.theory_sweeps import (
    KINDS,
    Matrix,
    Memory,
    Probe,
    Scan,
    Window,
    memory,
    predicted_window,
    probe,
    window,
)


class Step(NamedTuple):
    """One of several steps: the probes, and the memory read off the matrix."""

    step: int
    probes: dict[int, Probe]
    memory: Memory


def further_steps(
    s: Setup,
    gamma: float = 1.0,
    steps: int = 20,
    size: float = 0.1,
    count: int = 300,
    assignments: Sequence[int] = (3, 4),
    seed: int = 0,
    kinds: Sequence[int] = KINDS,
) -> list[Step]:
    """Go on from W_1 along the gradient on fresh samples of all kinds; each step's largest entry is `size`.

    The sampled gradient is averaged over all relabellings, as the population's is.
    """
    W = start(s) + gamma * update(s)
    history = []
    for step in range(steps + 1):
        drawn = {
            kind: augment(s, torch.cat([sample(s, kind, count, 1000 * seed + step, k) for k in assignments]))
            for kind in KINDS
        }
        history.append(Step(step, {kind: probe(s, scores(s, W, x), x) for kind, x in drawn.items()}, memory(s, W)))
        each = [batch_gradient(s, W, drawn[kind]) for kind in kinds]
        gradient = symmetrise(s, torch.stack(each).sum(0))
        W = W - size / gradient.abs().max() * gradient
    return history


def mean_gradient(
    s: Setup, W: Matrix, tokens: Int[Tensor, "seq pos"], gram: Matrix | None = None, chunk: int = 20_000
) -> Matrix:
    """`batch_gradient` over any number of sequences, a chunk at a time."""
    total = torch.zeros(s.size, s.size, dtype=F64)
    for part in tokens.split(chunk):
        total += len(part) / len(tokens) * batch_gradient(s, W, augment(s, part), gram)
    return total


class RandomEmbedding(NamedTuple):
    """One step under one random embedding, the population enumerated in full."""

    d: int
    identity: float
    """Share of variables whose own key scores highest after the step."""
    window: Window
    """Of all kinds; its `best` is the least accuracy over the kinds at the best gamma."""


def random_embedding(
    s: Setup, d: int, seed: int = 0, count: int = 300, assignments: Sequence[int] = (3,)
) -> RandomEmbedding:
    """The theorem's step with unit vectors drawn at random in d dimensions, instead of orthonormal ones."""
    gram = gram_matrix(s, d, seed)
    gradient = mean_gradient(s, gram @ start(s) @ gram, every_one_variable(s), gram)
    step = -learning_rate(s) * gradient
    tilde = s.blocks["tilde_variable"]
    seen = (gram @ step @ gram)[tilde, tilde]
    identity = (seen.argmax(0) == torch.arange(s.variables)).double().mean().item()
    scan = Scan(s, step, count, assignments, seed, gram)
    return RandomEmbedding(d, identity, window(scan, most=1.5 * predicted_window(s)[1], points=17))


class SampleError(NamedTuple):
    """The step from n sampled sequences against the population's: largest entries of their difference over gamma."""

    n: int
    error: float
    predicted: float
    """A V / (2 eps sqrt(p n))."""
    symmetrised: float
    """After averaging the sampled gradient over all relabellings."""
    balanced: float
    """After giving sequences with two equal numbers their exact share, 1 / p, as well; nan if none was drawn."""


def sample_error(s: Setup, n: int, seed: int = 0) -> SampleError:
    """How far a finite sample's step is from the exact one."""
    exact, tokens = population_gradient(s), sample(s, 1, n, seed, assignments=1)
    equal = augment(s, tokens).answers_of.diff(dim=1).squeeze(1) == 0
    parts = [mean_gradient(s, start(s), tokens[chosen]) for chosen in (equal, ~equal) if chosen.any()]
    share = equal.to(F64).mean().item()

    def step(share: float) -> Matrix:
        return parts[-1] if len(parts) == 1 else share * parts[0] + (1 - share) * parts[1]

    def error(gradient: Matrix) -> float:
        return learning_rate(s) * (gradient - exact).abs().max().item()

    return SampleError(
        n,
        error(step(share)),
        s.A * s.variables / (2 * s.eps * math.sqrt(s.p * n)),
        error(symmetrise(s, step(share))),
        error(symmetrise(s, step(1 / s.p))) if len(parts) == 2 else math.nan,
    )
