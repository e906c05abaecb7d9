"""What the theorem's step does to scores and attention, gathered by role: the numbers that figures draw.

Nouns as in `theory` and `theory_sweeps`. A *role* is the part that a position plays in a sequence: the value of an
assignment that is asked for, the value of another one, an operand's own place if it holds a number or a variable,
`=` itself, and all the rest (PAD, `+`, the variables in assignments). A *profile* is what a setup does over a range
of step sizes: accuracy and attention by kind.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib.theory import Setup, closed_form, remainder, start, update
from mc_lib.theory_batch import Inputs, augment, sample, scores
from mc_lib.theory_sweeps import KINDS, Matrix, Probe, Scan, predicted_window

ROLES = ("value asked for", "other values", "number operand", "variable operand", "= itself", "the rest")
TERMS = {
    "memory": "memory",
    "lhs": "first operand's place",
    "rhs": "second operand's place",
    "variables": "variables",
    "remainder": "remainder R",
}
MASSES = {
    "right": "the two numbers to add",
    "operands": "operand places",
    "wrong": "other values",
    "itself": "= itself",
}


def roles(s: Setup, x: Inputs) -> Int[Tensor, "seq pos"]:
    """The role of every position, as an index of ROLES."""
    role = torch.full_like(x.tokens, ROLES.index("the rest"))
    role[x.remapped < s.size] = ROLES.index("other values")
    asked = torch.zeros_like(role, dtype=torch.bool).scatter(1, x.values, True)
    role[asked] = ROLES.index("value asked for")
    shown = x.tokens[:, -3:-1] < s.p
    role[:, -3:-1] = torch.where(shown, ROLES.index("number operand"), ROLES.index("variable operand"))
    role[:, -1] = ROLES.index("= itself")
    return role


def by_role(found: Float[Tensor, "seq pos"], role: Int[Tensor, "seq pos"]) -> Float[Tensor, " role"]:
    """Mean over the positions of each role; nan for a role that no position plays."""
    return torch.stack([found[role == k].mean() for k in range(len(ROLES))])


def gains(s: Setup, kind: int = 1, count: int = 300) -> dict[str, Float[Tensor, " role"]]:
    """Score that each term of the theorem adds per gamma, by role, on sequences with three assignments."""
    x = augment(s, sample(s, kind, count))
    role = roles(s, x)
    terms = closed_form(s) | {"remainder": remainder(s)}
    return {words: by_role(scores(s, terms[name], x), role) for name, words in TERMS.items()}


class Example(NamedTuple):
    """One sequence's attention before and after the step, PADs taken together."""

    labels: list[str]
    before: list[float]
    after: list[float]


def example(s: Setup, kind: int, gamma: float, seed: int = 3) -> Example:
    """A sequence with three assignments; gamma is the step's size."""
    x = augment(s, sample(s, kind, 1, seed))
    tokens = x.tokens[0].tolist()
    names = {s.PLUS: "+", s.EQUALS: "="} | {s.p + 3 + v: chr(ord("a") + v) for v in range(s.variables)}
    kept = [t for t, token in enumerate(tokens) if token != s.PAD]
    labels = [f"{t}: {names.get(tokens[t], tokens[t])}" for t in kept] + ["all PAD"]
    rows = []
    for W in (start(s), start(s) + gamma * update(s)):
        attention = torch.softmax(scores(s, W, x), 1)[0]
        rows.append([*attention[kept].tolist(), 1 - attention[kept].sum().item()])
    return Example(labels, rows[0], rows[1])


def corner(s: Setup, W: Matrix) -> tuple[Float[Tensor, "row column"], list[str], list[str]]:
    """The part of a matrix that the theorem speaks of, with the names of its rows and columns."""
    letters = [chr(ord("a") + v) for v in range(s.variables)]
    tilde, variable = (list(range(b.start, b.stop)) for b in (s.blocks["tilde_variable"], s.blocks["variable"]))
    rows = [s.position(-3), s.position(-2), *variable, *tilde]
    columns = [s.EQUALS, s.position(-1), *tilde]
    copied = [f"~{letter}" for letter in letters]
    return W[rows][:, columns], ["1st place", "2nd place", *letters, *copied], ["=", "place of =", *copied]


class Profile(NamedTuple):
    """Probes of one setup over step sizes, by kind, and where theory alone puts the window."""

    setup: Setup
    gammas: list[float]
    probes: dict[int, list[Probe]]
    predicted: tuple[float, float]

    def accuracy(self, kind: int) -> list[float]:
        return [probe.accuracy for probe in self.probes[kind]]

    def mass(self, kind: int, name: str) -> list[float]:
        return [getattr(probe, name) for probe in self.probes[kind]]

    @property
    def worst(self) -> list[float]:
        """Least accuracy over the kinds."""
        return [min(column) for column in zip(*(self.accuracy(kind) for kind in KINDS), strict=True)]


def profile(
    s: Setup,
    gammas: Iterable[float | int],
    count: int = 600,
    assignments: Sequence[int] = (3, 4),
    step: Matrix | None = None,
) -> Profile:
    """Follow the size of a step, by default the exact one, over a range."""
    scan, sizes = Scan(s, update(s) if step is None else step, count, assignments), [float(g) for g in gammas]
    return Profile(s, sizes, scan.over(sizes), predicted_window(s))


def profiles(s: Setup, lams: Iterable[float | int], most: float, points: int = 61, count: int = 300) -> list[Profile]:
    """A profile for each lambda, all over the same step sizes."""
    gammas = np.linspace(0, most, points).tolist()
    return [profile(s.replace(lam=float(lam)), gammas, count) for lam in lams]
