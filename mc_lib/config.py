"""Every number of a run, in one frozen dataclass.

A run is its Config plus the code's version: nothing is read from a global. The defaults are the paper's
settings. Anything a user can set has a range; leaving it raises a Refusal, whose text is one line that
names the cause and the remedy and is meant to be shown as it is.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

KINDS = ("num+num", "var+num", "num+var", "var+var")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Refusal(ValueError):
    """Bad input. Its text is one line: what is wrong, and what to do about it."""


@dataclass(frozen=True)
class Config:
    """The task, the model and the training of one run."""

    p: int = 59
    """Modulus: the numbers are 0 .. p-1."""
    variables: int = 12
    """How many variables there are: a, b, c, ..."""
    length: int = 16
    """Tokens in a sequence; the last four are `+`, two operands and `=`."""
    held_out: float = 0.3
    """Share of the ordered number pairs that training never sees."""
    split_seed: int = 42
    """Seed of the split into training and held-out pairs."""
    not_second: str = "ab"
    """Variables that training never shows as the second operand."""
    not_first: str = "kl"
    """Variables that training never shows as the first operand."""
    two_var: float = 1.0
    """Factor f on the share of two-variable sequences in training."""

    d_model: int = 128
    """Width of the residual stream."""
    heads: int = 1
    """Attention heads a layer; must divide d_model."""
    d_mlp: int = 512
    """Neurons of the layer-2 MLP."""
    init_scale: float = 0.8
    """Every weight starts as N(0, init_scale / sqrt(d_model))."""

    seed: int = 0
    """Seed of the initial weights and of the batches."""
    steps: int = 40_000
    """Optimiser updates."""
    batch: int = 512
    """Sequences a step."""
    lr: float = 1e-3
    """AdamW's learning rate, constant."""
    weight_decay: float = 0.02
    """AdamW's weight decay, on every tensor."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """float32, or bfloat16 autocast."""
    eval_every: int = 100
    """Steps between two rows of the metrics."""
    eval_size: int = 2000
    """Sequences in each sampled evaluation set."""

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise Refusal(f"{name} must be a number from {low} to {high}, not {value!r}")
            if not low <= value <= high:
                raise Refusal(f"{name} = {value} is out of range: choose {low} to {high}")
            if isinstance(getattr(type(self), name), int):
                if value != int(value):
                    raise Refusal(f"{name} = {value} must be a whole number")
                object.__setattr__(self, name, int(value))
        if self.precision not in ("float32", "bfloat16"):
            raise Refusal(f"precision {self.precision!r} is unknown: choose float32 or bfloat16")
        if self.d_model % self.heads:
            raise Refusal(f"heads = {self.heads} does not divide d_model = {self.d_model}: choose a divisor")
        for name in ("not_second", "not_first"):
            self._check_restricted(name, getattr(self, name))
        if not 0 < self.kept_pairs:
            raise Refusal(f"held_out = {self.held_out} leaves no pair to train on: choose a smaller share")

    def _check_restricted(self, name: str, letters: Any) -> None:
        known = ALPHABET[: self.variables]
        if not isinstance(letters, str) or len(set(letters)) != len(letters):
            raise Refusal(f"{name} = {letters!r} must be a string of different letters, such as 'ab'")
        for letter in letters:
            if letter not in known:
                there = f"{known[0]}..{known[-1]}"
                raise Refusal(f"{name} names {letter!r}, but the variables are {there}: restrict one of these, or none")
        if self.variables - len(letters) < 2:
            raise Refusal(f"{name} = {letters!r} leaves fewer than two legal variables: restrict fewer")

    # Token ids: the numbers 0 .. p-1, then `+`, `=`, PAD, then the variables.
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
    def FIRST_VARIABLE(self) -> int:
        return self.p + 3

    @property
    def vocabulary(self) -> int:
        return self.p + 3 + self.variables

    @property
    def room(self) -> int:
        """Positions before `+`: where the assignments and the PADs stand."""
        return self.length - 4

    @property
    def max_assignments(self) -> int:
        return min(self.room // 2, self.variables)

    @property
    def kept_pairs(self) -> int:
        """Number pairs that training sees."""
        return int((1 - self.held_out) * self.p**2 + 1e-9)

    @property
    def d_head(self) -> int:
        return self.d_model // self.heads

    @property
    def letters(self) -> str:
        return ALPHABET[: self.variables]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known, key=str):
            raise Refusal(f"unknown setting {unknown[0]!r}: the settings are {', '.join(sorted(known))}")
        return cls(**values)

    def replace(self, **changes: Any) -> "Config":
        return dataclasses.replace(self, **changes)


RANGES: dict[str, tuple[float, float]] = {
    "p": (2, 1000),
    "variables": (4, 26),
    "length": (8, 128),
    "held_out": (0.0, 0.999),
    "split_seed": (0, 2**31 - 1),
    "two_var": (0.0, 100.0),
    "d_model": (4, 4096),
    "heads": (1, 64),
    "d_mlp": (1, 65536),
    "init_scale": (1e-6, 100.0),
    "seed": (0, 2**31 - 1),
    "steps": (0, 10_000_000),
    "batch": (1, 1_000_000),
    "lr": (0.0, 10.0),
    "weight_decay": (0.0, 10.0),
    "eval_every": (1, 1_000_000),
    "eval_size": (10, 100_000),
}
