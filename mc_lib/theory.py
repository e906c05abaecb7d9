"""The paper's theorem on one gradient step (its Appendix C), as code that runs. Float64 throughout.

A *setup* fixes the sizes (p numbers, V variables, T positions), the strength lambda of the starting matrix,
the scale beta of the logits, and the readings that the text leaves open. Vectors are written in the *basis*:
one coordinate for each token, each position and each *remapped* number and variable (`tilde`, what layer 1
copies). Under orthonormal embeddings the basis is the space itself; under any others only its Gram matrix
matters. A key-query matrix has keys as rows and the query as columns, so score_t = x_t' W x_T. A *pull* is
what one position adds to the update: its attention times how much more of its number the loss asks for.
`gamma` measures the step: at gamma = 1 the theorem's memory term has entries 1.

Positions count from 0 here: `+`, the two operands and `=` stand at T-4, T-3, T-2 and T-1 (in the paper T-3 .. T).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from mc_lib.config import Refusal

F64 = torch.float64
SIZES = {"p": (2, 1000), "variables": (1, 100), "length": (6, 1024)}
REALS = {"lam": (0.0, 30.0), "beta": (1e-12, 1e3), "carried": (0.0, 1.0)}


@dataclass(frozen=True)
class Setup:
    """One instance of the theorem: sizes, start, and how its input is read."""

    p: int = 31
    """Numbers."""
    variables: int = 4
    """V of the paper."""
    length: int = 64
    """T of the paper."""
    lam: float | int = 10.0
    """Strength of the starting attention to the operands."""
    beta: float | int = 1e-6
    """Scale of the logits."""
    order: str = "fixed"
    """fixed: number first, variable second, as in the paper's example; random: either way round."""
    carried: float | int = 1.0
    """Weight with which `=` carries each remapped operand."""
    attends_self: bool = True
    """Whether `=` is among its own keys."""

    def __post_init__(self) -> None:
        for name, (low, high) in {**SIZES, **REALS}.items():
            value = getattr(self, name)
            whole = name in SIZES
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise Refusal(f"{name} must be a {'whole ' if whole else ''}number from {low} to {high}, not {value!r}")
            if not low <= value <= high:
                why = ": `+`, two operands, `=` and one assignment need 6 positions" if name == "length" else ""
                raise Refusal(f"{name} = {value} is out of range{why}: choose {low} to {high}")
        if self.order not in ("fixed", "random"):
            raise Refusal(f"order {self.order!r} is unknown: choose fixed or random")

    def replace(self, **changes: Any) -> "Setup":
        return replace(self, **changes)

    # Basis: numbers, `+`, `=`, PAD, variables (as token ids), positions, remapped numbers, remapped variables.
    @property
    def PLUS(self) -> int:
        return self.p

    @property
    def EQUALS(self) -> int:
        return self.p + 1

    @property
    def PAD(self) -> int:
        return self.p + 2

    @property
    def tokens(self) -> int:
        return self.p + 3 + self.variables

    @property
    def size(self) -> int:
        return self.tokens + self.length + self.p + self.variables

    def position(self, index: int) -> int:
        """Basis index of a position; -1 is `=`, -2 and -3 the operands."""
        return self.tokens + index % self.length

    @property
    def blocks(self) -> dict[str, slice]:
        """The parts of the basis."""
        starts = {
            "number": 0,
            "variable": self.p + 3,
            "position": self.tokens,
            "tilde_number": self.tokens + self.length,
            "tilde_variable": self.tokens + self.length + self.p,
        }
        sizes = (self.p, self.variables, self.length, self.p, self.variables)
        return {name: slice(at, at + size) for (name, at), size in zip(starts.items(), sizes, strict=True)}

    @property
    def slots(self) -> int:
        """Places where the one assignment's number can stand."""
        return self.length - 5

    @property
    def eps(self) -> float:
        """Attention at the start to a position that is no operand."""
        return 1 / (2 * math.exp(self.lam) + self.length - 2 - (not self.attends_self))

    @property
    def A(self) -> float:
        """Attention at the start to each operand."""
        return math.exp(self.lam) * self.eps


# The MLP, three ways: by its complex weights, as a convolution, and fast.
def fourier_weights(vectors: Float[Tensor, "p d"]) -> Complex[Tensor, "p d"]:
    """w_k = sum_n omega^(kn) vectors_n, Gromov's construction over the images of the numbers."""
    p = len(vectors)
    angle = torch.outer(torch.arange(p), torch.arange(p)).remainder(p).to(F64) * (2 * math.pi / p)
    return torch.polar(torch.ones_like(angle), angle) @ vectors.to(torch.complex128)


def mlp_complex(vectors: Float[Tensor, "p d"], h: Float[Tensor, "seq d"]) -> Float[Tensor, "seq p"]:
    """F_c(h) = (1/p) sum_k omega^(-kc) (w_k' h)^2."""
    p = len(vectors)
    squares = (h.to(torch.complex128) @ fourier_weights(vectors).T) ** 2
    return (squares @ fourier_weights(torch.eye(p, dtype=F64)).conj() / p).real


def mlp_convolution(u: Float[Tensor, "seq p"]) -> Float[Tensor, "seq p"]:
    """F_c as the circular self-convolution of the weights u on the numbers: sum_n u_n u_(c-n)."""
    p = u.shape[1]
    shifted = u[:, (torch.arange(p)[:, None] - torch.arange(p)).remainder(p)]
    return (shifted * u[:, None]).sum(2)


def mlp(u: Float[Tensor, "seq p"]) -> Float[Tensor, "seq p"]:
    """The same by fast Fourier transform."""
    return torch.fft.irfft(torch.fft.rfft(u) ** 2, n=u.shape[1])


def mlp_pullback(u: Float[Tensor, "seq p"], r: Float[Tensor, "seq p"]) -> Float[Tensor, "seq p"]:
    """Gradient of sum_c r_c F_c with respect to u: component n is 2 sum_c r_c u_(c-n)."""
    return 2 * torch.fft.irfft(torch.fft.rfft(r) * torch.fft.rfft(u).conj(), n=u.shape[1])


# The theorem.
def start(s: Setup) -> Float[Tensor, "basis basis"]:
    """W_0 = lambda (p_lhs + p_rhs) p_='."""
    W = torch.zeros(s.size, s.size, dtype=F64)
    W[[s.position(-3), s.position(-2)], s.position(-1)] = s.lam
    return W


class Pulls(NamedTuple):
    """Pull at the start of each sort of position, by (assigned number - operand number) mod p."""

    value: Float[Tensor, " p"]
    number: Float[Tensor, " p"]
    variable: Float[Tensor, " p"]
    other: Float[Tensor, " p"]


def pulls(s: Setup) -> Pulls:
    """The start attends alike on every input, and shifting both numbers shifts the logits: p cases are all."""
    d = torch.arange(s.p)
    u = torch.zeros(s.p, s.p, dtype=F64)
    u[:, 0] += s.A
    u[d, d] += s.eps
    residual = torch.eye(s.p, dtype=F64) - torch.softmax(s.beta * mlp(u), 1)
    wanted_value = 2 * (s.A * residual[d, d] + s.eps * residual[d, 2 * d % s.p])
    wanted_number = 2 * (s.A * residual[:, 0] + s.eps * residual[d, d])
    mean = s.eps * wanted_value + s.A * wanted_number
    return Pulls(s.eps * (wanted_value - mean), s.A * (wanted_number - mean), -s.A * mean, -s.eps * mean)


def _mean_key(s: Setup, value: float, number: float, variable: float, other: float) -> Float[Tensor, " basis"]:
    """Expected sum over positions of pull times x_t, as far as it does not depend on the query."""
    itself, b = s.attends_self * other, s.blocks
    key = torch.zeros(s.size, dtype=F64)
    key[b["number"]] = (value + number) / s.p
    key[[s.PLUS, s.EQUALS, s.PAD]] = torch.tensor([other, itself, (s.length - 6) * other], dtype=F64)
    key[b["variable"]] = (variable + other) / s.variables
    key[b["tilde_number"]] = s.carried * itself / s.p
    key[b["tilde_variable"]] = (value + s.carried * itself) / s.variables
    at = key[b["position"]]
    at[:] = other
    at[1:-4] = value / s.slots + (1 - 1 / s.slots) * other
    sides = (number, variable) if s.order == "fixed" else ((number + variable) / 2,) * 2
    at[-3:] = torch.tensor([*sides, itself], dtype=F64)
    return key


def population_gradient(s: Setup) -> Float[Tensor, "basis basis"]:
    """Exact gradient at W_0 of the expected loss on one-variable data: all p*p*V*slots sequences at once."""
    by_difference = pulls(s)
    value, number, variable, other = (x.mean().item() for x in by_difference)
    itself, b = s.attends_self * other, s.blocks
    key = _mean_key(s, value, number, variable, other)
    G = torch.zeros(s.size, s.size, dtype=F64)
    G[:, s.EQUALS] = G[:, s.position(-1)] = key
    # Columns that name the variable: its own rows are certain instead of one in V; likewise for the number.
    G[:, b["tilde_variable"]] = key[:, None] * s.carried / s.variables
    same = torch.eye(s.variables, dtype=F64) * s.carried / s.variables
    G[b["variable"], b["tilde_variable"]] = same * (variable + other)
    G[b["tilde_variable"], b["tilde_variable"]] = same * (value + s.carried * itself)
    G[:, b["tilde_number"]] = key[:, None] * s.carried / s.p
    n = torch.arange(s.p)
    same = torch.eye(s.p, dtype=F64) * s.carried / s.p
    shift = by_difference.value[(n[:, None] - n).remainder(s.p)]
    G[b["number"], b["tilde_number"]] = same * number + shift * s.carried / s.p**2
    G[b["tilde_number"], b["tilde_number"]] = same * s.carried * itself
    return -s.beta * G


def learning_rate(s: Setup, gamma: float = 1.0) -> float:
    """eta = gamma V / (2 beta A eps)."""
    return gamma * s.variables / (2 * s.beta * s.A * s.eps)


def update(s: Setup) -> Float[Tensor, "basis basis"]:
    """(W_1 - W_0) / gamma, exactly."""
    return -learning_rate(s) * population_gradient(s)


def closed_form(s: Setup) -> dict[str, Float[Tensor, "basis basis"]]:
    """The theorem's terms over gamma: memory, both operand positions, and the operand variables."""
    b = s.blocks
    shared = torch.zeros(s.size, dtype=F64)
    shared[[s.EQUALS, s.position(-1)]] = 1.0
    variables = shared.repeat(s.variables, 1)  # one row e_= + p_= + carried * tilde(v) for each v
    variables[:, b["tilde_variable"]] = s.carried * torch.eye(s.variables, dtype=F64)
    lhs, rhs = 1 - 2 * s.A, -2 * s.A
    if s.order == "random":
        lhs = rhs = (lhs + rhs) / 2
    terms = {name: torch.zeros(s.size, s.size, dtype=F64) for name in ("memory", "lhs", "rhs", "variables")}
    terms["memory"][b["tilde_variable"]] = variables
    terms["lhs"][s.position(-3)] = lhs * variables.sum(0)
    terms["rhs"][s.position(-2)] = rhs * variables.sum(0)
    terms["variables"][b["variable"]] = -2 * s.A * variables
    return terms


def remainder(s: Setup) -> Float[Tensor, "basis basis"]:
    """R / gamma: the exact update less the closed form."""
    return update(s) - sum(closed_form(s).values())


def bound(s: Setup) -> dict[str, float]:
    """The four terms whose largest bounds the entries of R / gamma, up to a constant."""
    V, A, eps = s.variables, s.A, s.eps
    return {
        "numbers": V / s.p,
        "slots": V / s.slots,
        "pads": 2 * eps * V * (s.length - 6),
        "logits": s.beta * A**3 * (1 - A) * V / (s.p * eps),
    }
