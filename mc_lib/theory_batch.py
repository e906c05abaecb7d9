"""The theorem's model on sequences: inputs, attention and gradient at any matrix, samples, symmetries.

Nouns as in `theory`. A sequence has the task's token layout: assignments and PADs, then `+`, two operands
and `=`. A *kind* is the number of operands that are variables: 0, 1 or 2. `read` and `spread` are each other's
transpose; with them, no vector of any position is ever written out.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib.config import Refusal
from mc_lib.theory import F64, Setup, mlp, mlp_pullback


class Inputs(NamedTuple):
    """A batch of augmented sequences: tokens, remapped variable of each position, remapped operands of `=`."""

    tokens: Int[Tensor, "seq pos"]
    remapped: Int[Tensor, "seq pos"]
    carried: Int[Tensor, "seq 2"]
    values: Int[Tensor, "seq 2"]
    """Where the two numbers to be added stand."""

    @property
    def answers_of(self) -> Int[Tensor, "seq 2"]:
        return self.tokens.gather(1, self.values)


def augment(s: Setup, tokens: Int[Tensor, "seq pos"]) -> Inputs:
    """Input (1) for every sequence: assigned numbers get their variable, `=` gets its operands."""
    room = s.length - 4
    to_tilde = s.blocks["tilde_variable"].start - (s.p + 3)
    remapped = torch.full_like(tokens, s.size)
    named = (tokens[:, 1:room] < s.p) & (tokens[:, : room - 1] >= s.p + 3)
    remapped[:, 1:room] = torch.where(named, tokens[:, : room - 1] + to_tilde, s.size)
    operands = tokens[:, -3:-1]
    is_number = operands < s.p
    carried = operands + torch.where(is_number, s.blocks["tilde_number"].start, to_tilde)
    found = (tokens[:, None, :room] == operands[:, :, None]).int().argmax(2) + 1
    return Inputs(tokens, remapped, carried, torch.where(is_number, torch.tensor([room + 1, room + 2]), found))


def read(s: Setup, rows: Float[Tensor, "seq basis"], x: Inputs) -> Float[Tensor, "seq pos"]:
    """x_t' row for every position: what each position sees of a vector in the basis."""
    padded = torch.nn.functional.pad(rows, (0, 1))
    seen = rows.gather(1, x.tokens) + rows[:, s.blocks["position"]] + padded.gather(1, x.remapped)
    seen[:, -1] += s.carried * rows.gather(1, x.carried).sum(1)
    return seen


def spread(s: Setup, weights: Float[Tensor, "seq pos"], x: Inputs) -> Float[Tensor, "seq basis"]:
    """sum_t weight_t x_t, the transpose of `read`."""
    total = torch.zeros(len(weights), s.size + 1, dtype=F64)
    total.scatter_add_(1, x.tokens, weights).scatter_add_(1, x.remapped, weights)
    total[:, s.blocks["position"]] += weights
    total.scatter_add_(1, x.carried, s.carried * weights[:, -1:].expand(-1, 2))
    return total[:, : s.size]


def query(s: Setup, x: Inputs) -> Float[Tensor, "seq basis"]:
    """x_T of every sequence."""
    last = torch.zeros(x.tokens.shape, dtype=F64)
    last[:, -1] = 1.0
    return spread(s, last, x)


def scores(s: Setup, W: Float[Tensor, "basis basis"], x: Inputs) -> Float[Tensor, "seq pos"]:
    """x_t' W x_T for every position; minus infinity at `=` where it does not attend to itself."""
    result = read(s, query(s, x) @ W.T, x)
    if not s.attends_self:
        result[:, -1] = -math.inf
    return result


def number_weights(
    s: Setup, attention: Float[Tensor, "seq pos"], x: Inputs, gram: Float[Tensor, "basis basis"] | None = None
) -> Float[Tensor, "seq p"]:
    """The weight u that the mixed vector puts on each number."""
    mixed = spread(s, attention, x)
    return mixed[:, : s.p] if gram is None else mixed @ gram[:, : s.p]


def batch_gradient(
    s: Setup, W: Float[Tensor, "basis basis"], x: Inputs, gram: Float[Tensor, "basis basis"] | None = None
) -> Float[Tensor, "basis basis"]:
    """Gradient of the mean loss over a batch with respect to the matrix of scores, by hand and exact."""
    attention = torch.softmax(scores(s, W, x), 1)
    u = number_weights(s, attention, x, gram)
    residual = -torch.softmax(s.beta * mlp(u), 1)
    residual[torch.arange(len(u)), x.answers_of.sum(1) % s.p] += 1
    wanted = mlp_pullback(u, residual)
    wanted = torch.nn.functional.pad(wanted, (0, s.size - s.p)) if gram is None else wanted @ gram[: s.p]
    seen = read(s, wanted, x)
    pull = attention * (seen - (attention * seen).sum(1, keepdim=True))
    return -s.beta / len(u) * spread(s, pull, x).T @ query(s, x)


@lru_cache(maxsize=8)
def _orbits(s: Setup) -> tuple[Int[Tensor, " pairs"], Float[Tensor, " orbits"]]:
    """Which entries of a matrix trade places when numbers are shifted together or variables are permuted."""
    sort, member = torch.arange(s.size), torch.zeros(s.size, dtype=torch.long)
    for name, block in s.blocks.items():
        if name != "position":
            sort[block] = block.start
            member[block] = torch.arange(block.stop - block.start)
    numeric = torch.tensor([block in ("number", "tilde_number") for block in _block_of(s)])
    variable = torch.tensor([block in ("variable", "tilde_variable") for block in _block_of(s)])
    apart = (member[:, None] - member).remainder(s.p) * (numeric[:, None] & numeric)
    apart += (member[:, None] != member) * (variable[:, None] & variable)
    label = (sort[:, None] * s.size + sort) * s.p + apart
    _, inverse, counts = torch.unique(label.flatten(), return_inverse=True, return_counts=True)
    return inverse, counts.to(F64)


def _block_of(s: Setup) -> list[str]:
    names = ["special"] * s.size
    for name, block in s.blocks.items():
        names[block] = [name] * (block.stop - block.start)
    return names


def symmetrise(s: Setup, W: Float[Tensor, "basis basis"]) -> Float[Tensor, "basis basis"]:
    """Mean over all shifts of the numbers and permutations of the variables, which leave the population as it is."""
    inverse, counts = _orbits(s)
    means = torch.zeros_like(counts).scatter_add_(0, inverse, W.flatten()) / counts
    return means[inverse].view_as(W)


def gram_matrix(s: Setup, d: int, seed: int = 0) -> Float[Tensor, "basis basis"]:
    """Inner products of random unit embeddings in d dimensions; coefficients C score as gram @ C @ gram."""
    if d < 1:
        raise Refusal(f"dimension {d} is out of range: choose 1 or more")
    rng, total = np.random.default_rng(seed), torch.zeros(s.size, s.size, dtype=F64)
    for at in range(0, d, 4096):  # a dimension of 65,536 need not be held at once
        part = torch.from_numpy(rng.standard_normal((s.size, min(4096, d - at)), dtype=np.float32)).to(F64)
        total += part @ part.T
    scale = total.diagonal().rsqrt()
    return total * scale[:, None] * scale


# Sequences.
def every_one_variable(s: Setup, most: int = 1_000_000) -> Int[Tensor, "seq pos"]:
    """Each sequence of the theorem's population once (random order: once in each order)."""
    orders = 1 + (s.order == "random")
    count = s.p**2 * s.variables * s.slots * orders
    if count > most:
        raise Refusal(
            f"the population has {count} sequences, more than {most}: use population_gradient or smaller sizes"
        )
    grid = torch.cartesian_prod(*(torch.arange(n) for n in (s.p, s.p, s.variables, s.slots, orders))).T
    value, number, variable, slot, turned = grid
    return build(s, slot[:, None], variable[:, None], value[:, None], number, variable + s.p + 3, turned)


def build(
    s: Setup,
    at: Int[Tensor, "seq k"],
    variables: Int[Tensor, "seq k"],
    values: Int[Tensor, "seq k"],
    lhs: Int[Tensor, " seq"],
    rhs: Int[Tensor, " seq"],
    turned: Int[Tensor, " seq"],
) -> Int[Tensor, "seq pos"]:
    """Tokens: variable at `at`, its value after it, operands lhs and rhs, which trade places where turned."""
    tokens = torch.full((len(at), s.length), s.PAD)
    tokens.scatter_(1, at, variables + s.p + 3).scatter_(1, at + 1, values)
    tokens[:, -4], tokens[:, -1] = s.PLUS, s.EQUALS
    tokens[:, -3] = torch.where(turned == 1, rhs, lhs)
    tokens[:, -2] = torch.where(turned == 1, lhs, rhs)
    return tokens


def sample(s: Setup, kind: int, count: int, seed: int = 0, assignments: int = 3) -> Int[Tensor, "seq pos"]:
    """Random sequences of one kind; any placing of the assignments is as likely as any other, variables differ."""
    _check_sample(s, kind, count, assignments)
    rng = np.random.default_rng([seed, kind, assignments])
    free = s.length - 4 - assignments
    at = np.argsort(rng.random((count, free)), 1)[:, :assignments]
    at = np.sort(at, 1) + np.arange(assignments)  # of all gaps between pairs, none favoured
    names = np.argsort(rng.random((count, s.variables)), 1)[:, :assignments]
    values = rng.integers(0, s.p, (count, assignments))
    numbers = rng.integers(0, s.p, (count, 2))
    asked = np.argsort(rng.random((count, assignments)), 1)[:, : max(kind, 1)]
    operands = np.take_along_axis(names, asked, 1) + s.p + 3
    lhs = operands[:, 0] if kind == 2 else numbers[:, 0]
    rhs = numbers[:, 1] if kind == 0 else operands[:, kind - 1]
    turned = rng.integers(0, 2, count) * (s.order == "random")
    return build(s, *(torch.from_numpy(np.ascontiguousarray(x)) for x in (at, names, values, lhs, rhs, turned)))


def _check_sample(s: Setup, kind: int, count: int, assignments: int) -> None:
    if kind not in (0, 1, 2):
        raise Refusal(f"kind {kind} is unknown: choose 0, 1 or 2 variables among the operands")
    if count < 1:
        raise Refusal(f"count = {count} asks for no sequence: choose 1 or more")
    if not max(kind, 1) <= assignments <= s.variables:
        raise Refusal(
            f"{assignments} assignments do not fit kind {kind} and {s.variables} variables: "
            f"choose {max(kind, 1)} to {s.variables}, or more variables"
        )
    if 2 * assignments > s.length - 4:
        raise Refusal(
            f"length = {s.length} is too short for {assignments} assignments: choose {2 * assignments + 4} or more"
        )
