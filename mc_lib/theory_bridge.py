"""From the theorem to a trained model: the same quantities read off a run's checkpoints, and held against it.

The *bridge* reads what the theorem speaks of off trained weights, an *operand attention* the starting point off an
attention pattern. A *snapshot* is both at one checkpoint, with what else the comparison needs. *Before* is the last
snapshot that adds but does not bind: 0-variable accuracy at or above ADDS, 1-variable accuracy at or below UNBOUND.
A *comparison* is one sentence of the theorem about such a model, with the rule that decides whether it fits.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib import model, task
from mc_lib.claim import NotHere
from mc_lib.config import Config, Refusal
from mc_lib.model import Weights
from mc_lib.runs import Run
from mc_lib.sampler import mixture, sample
from mc_lib.theory import F64

PER_KIND, STREAM = 200, 801
ADDS, UNBOUND, BINDS = 0.9, 0.5, 0.9
FITS, MISFITS, UNTOLD = "fits", "does not fit", "cannot be told here"


class Bridge(NamedTuple):
    """The theorem's quantities in trained weights, as scores over sqrt(d_head); keys are rows, queries columns."""

    block: Float[Tensor, "head V V"]
    """Remapped variable of a key against remapped variable of the query."""
    match: float
    other: float
    identity: float
    """Share of variables whose own key scores highest (mean over heads)."""
    shared: float
    """Remapped variable of a key against the query's own e_= + p_=: what every assigned number gains."""
    operands: Float[Tensor, "head 2"]
    """The two operand positions against e_= + p_=, less the mean over the positions of assignments."""
    raw: float
    """Variable at an operand position (not remapped) against its own remapped query, less against others'."""


def bridge(weights: dict[str, Tensor]) -> Bridge:
    """Read the bridge off a dict of weights under TransformerLens names."""
    w = {name: tensor.to(F64) for name, tensor in weights.items()}
    missing = {"embed.W_E", "pos_embed.W_pos", "unembed.W_U", "blocks.1.attn.W_Q"} - set(w)
    if missing or w["embed.W_E"].dim() != 2:
        raise Refusal(
            f"the bridge needs one run's weights under their usual names; missing or stacked: {sorted(missing)}"
        )
    E, P, p = w["embed.W_E"], w["pos_embed.W_pos"], w["unembed.W_U"].shape[1]
    Q, K = w["blocks.1.attn.W_Q"], w["blocks.1.attn.W_K"]
    seen = (Q @ K.transpose(1, 2)).transpose(1, 2) / math.sqrt(Q.shape[2])  # head, key, query
    copied = E[p + 3 :] @ (w["blocks.0.attn.W_V"] @ w["blocks.0.attn.W_O"]).sum(0)
    equals = E[p + 1] + P[-1]
    block = copied @ seen @ copied.T
    raw = E[p + 3 :] @ seen @ copied.T
    operands = P @ seen @ equals
    shared = (copied @ seen @ equals).mean(1)
    own = torch.arange(block.shape[1])
    identity = (block.argmax(1) == own).to(F64).mean()
    (match, other), (own_raw, other_raw) = _on_and_off(block), _on_and_off(raw)
    return Bridge(
        block,
        match,
        other,
        identity.item(),
        shared.mean().item(),
        operands[:, -3:-1] - operands[:, :-4].mean(1, keepdim=True),
        own_raw - other_raw,
    )


def _on_and_off(block: Float[Tensor, "head V V"]) -> tuple[float, float]:
    """Mean on the diagonal and mean off it."""
    V = block.shape[1]
    on = block.diagonal(dim1=1, dim2=2)
    return on.mean().item(), ((block.sum((1, 2)) - on.sum(1)) / max(V * (V - 1), 1)).mean().item()


class OperandAttention(NamedTuple):
    """Layer 2's attention from `=` to the two operand positions, and the start that the theorem would need for it."""

    mass: float
    low: float
    high: float
    """Mean over n sequences (and all heads) with its 95% interval."""
    lam: float
    """lambda: log of an operand's mean weight over any other key's."""
    n: int


def operand_attention(pattern: Float[Tensor, "batch head key"]) -> OperandAttention:
    """Read the theorem's starting point off an attention pattern of `=` in layer 2."""
    rows = pattern.to(F64).mean(1)
    n, keys = rows.shape
    if n < 2 or keys < 6:
        raise Refusal(
            f"a pattern of {n} rows and {keys} keys says too little: pass two rows or more of six keys or more"
        )
    mass = rows[:, -3:-1].sum(1)
    half = 1.959964 * mass.std().item() / math.sqrt(n)
    mean = mass.mean().item()
    rest = max((1 - mean) / (keys - 2), 1e-300)
    return OperandAttention(mean, mean - half, mean + half, math.log(max(mean / 2, 1e-300) / rest), n)


# Snapshots.
class Snapshot(NamedTuple):
    """One checkpoint. Dictionaries go by kind (0 num+num, 1 var+num, 2 num+var, 3 var+var), as far as it exists."""

    step: int
    bridge: Bridge
    accuracy: dict[int, float]
    operands: dict[int, OperandAttention]
    itself: dict[int, float]
    """Layer-2 attention of `=` to itself."""
    copy: float
    """Layer-1 attention of the numbers asked for to the variable before them (largest of the heads, mean)."""
    fetch: float
    """Layer-1 attention of `=` to the operands that are variables, in 1-variable sequences."""

    @property
    def one(self) -> float:
        """Accuracy on 1-variable sequences, both sides alike."""
        sides = [self.accuracy[kind] for kind in (1, 2) if kind in self.accuracy]
        return sum(sides) / len(sides) if sides else math.nan

    @property
    def stands_out(self) -> float:
        return self.bridge.match - self.bridge.other


def sequences(cfg: Config) -> dict[int, Int[Tensor, "n pos"]]:
    """PER_KIND training sequences of each kind that training shows."""
    first, second = (task.variables_for(cfg, side, True) for side in (0, 1))
    found, pairs = {}, task.training_pairs(cfg)
    for kind in range(4):
        share = [float(kind == k) for k in range(4)]
        mix = mixture((share[0], share[1], share[2], share[3]), pairs, first, second, task.variable_pairs(cfg, 0))
        if len(pairs) and mix.counts[kind]:
            found[kind] = sample(cfg, mix, PER_KIND, STREAM + kind)
    return found


@torch.no_grad()
def snapshot(weights: Weights, cfg: Config, step: int, drawn: dict[int, Int[Tensor, "n pos"]]) -> Snapshot:
    accuracy: dict[int, float] = {}
    operands: dict[int, OperandAttention] = {}
    itself: dict[int, float] = {}
    copy: list[Tensor] = []
    fetch: list[Tensor] = []
    for kind, tokens in drawn.items():
        traced = model.trace(weights, tokens)
        accuracy[kind] = (traced.logits.argmax(1) == task.answers(tokens, cfg)).to(F64).mean().item()
        operands[kind] = operand_attention(traced.pattern2)
        itself[kind] = traced.pattern2[:, :, -1].mean().item()
        if kind in (1, 2):
            side = kind - 1
            value, n = task.operands(tokens, cfg).positions[:, side], torch.arange(len(tokens))
            copy.append(traced.pattern1[n, :, value, value - 1].amax(1))
            fetch.append(traced.pattern1[:, :, -1, side - 3].amax(1))
    means = [torch.cat(found).mean().item() if found else math.nan for found in (copy, fetch)]
    return Snapshot(step, bridge(weights), accuracy, operands, itself, means[0], means[1])


def follow(run: Run, most: int = 60) -> list[Snapshot]:
    """Snapshots along a run, at `most` of its checkpoints, spread evenly over their list."""
    steps, drawn = run.steps, sequences(run.config)
    if not steps:
        raise NotHere("the run has no saved weights yet")
    if len(steps) > most:
        steps = [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]
    return [snapshot(run.weights(step), run.config, step, drawn) for step in steps]


def before_binding(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The last snapshot that adds but does not bind."""
    found = [shot for shot in snapshots if shot.accuracy.get(0, 0) >= ADDS and shot.one <= UNBOUND]
    if not found:
        raise NotHere("no saved checkpoint adds without binding")
    return found[-1]


# Comparisons.
class Comparison(NamedTuple):
    """One sentence of the theorem, held against a trained run."""

    id: str
    says: str
    rule: str
    here: str
    verdict: str


Judged = tuple[str, bool]


def _focus(before: Snapshot, last: Snapshot) -> Judged:
    found = before.operands[0]
    return (
        f"mass {found.mass:.2f} [{found.low:.2f}, {found.high:.2f}], n {found.n}: lambda {found.lam:.1f}",
        found.mass >= 0.9,
    )


def _blind(before: Snapshot, last: Snapshot) -> Judged:
    found = [before.operands[kind] for kind in (1, 2) if kind in before.operands]
    return " and ".join(f"{side.mass:.2f}" for side in found) + f", n {found[0].n} each", min(
        side.mass for side in found
    ) >= 0.5


def _layer1(before: Snapshot, last: Snapshot) -> Judged:
    words = f"numbers to their variable {before.copy:.2f} of {last.copy:.2f}, "
    words += f"= to operand variables {before.fetch:.2f} of {last.fetch:.2f}"
    return words, before.copy >= last.copy / 2 and before.fetch >= last.fetch / 2


def _order(before: Snapshot, last: Snapshot) -> Judged:
    return f"{before.stands_out:.1f} of {last.stands_out:.1f}", before.stands_out < last.stands_out / 2


def _memory(before: Snapshot, last: Snapshot) -> Judged:
    return f"share of variables {last.bridge.identity:.2f}", last.bridge.identity >= 0.9


def _elsewhere(before: Snapshot, last: Snapshot) -> Judged:
    b = last.bridge
    return f"diagonal {b.match:.1f}, off it {b.other:.1f}", abs(b.other) <= 0.1 * b.match


def _position(before: Snapshot, last: Snapshot) -> Judged:
    (left, right), (left_end, right_end) = (shot.bridge.operands.mean(0).tolist() for shot in (before, last))
    words = f"second {right:.1f} to {right_end:.1f}; first {left:.1f} to {left_end:.1f}"
    return words, right_end < right


def _raw(before: Snapshot, last: Snapshot) -> Judged:
    b = last.bridge
    return f"{b.raw:.1f}, against {b.match - b.other:.1f} for the memory", b.raw < 0


def _shared(before: Snapshot, last: Snapshot) -> Judged:
    return f"{last.bridge.shared:.1f}, against {last.bridge.match:.1f} for a match", last.bridge.shared > 0


def _itself(before: Snapshot, last: Snapshot) -> Judged:
    if 3 not in last.itself:
        raise NotHere("training shows no 2-variable sequences")
    return f"mass {last.itself[3]:.2f}, n {PER_KIND}", last.itself[3] > 0.5


RULES: tuple[tuple[str, str, str, Callable[[Snapshot, Snapshot], Judged]], ...] = (
    ("start.focus", "Before binding, `=` attends to the two operands of a sum of numbers.", "mass at least .9", _focus),
    ("start.blind", "It does so with variables among the operands too.", "mass at least .5 on each side", _blind),
    ("start.layer1", "Layer 1 is in place before layer 2 learns to bind.", "both half of their last value", _layer1),
    ("order", "The memory comes after addition.", "less than half of it before binding", _order),
    ("memory.match", "Then a variable that `=` carries fits itself best.", "for .9 of variables", _memory),
    ("memory.off", "Off the diagonal there is nothing.", "a tenth of the diagonal at most", _elsewhere),
    ("position", "The pull to the second operand's position is attenuated.", "it falls", _position),
    ("operand", "The variable at the operand's own place is pushed away.", "below 0", _raw),
    ("shared", "Every assigned number gains as well, whatever its variable.", "above 0", _shared),
    ("self", "With two variables `=` attends mostly to itself.", "mass above .5", _itself),
)  # fmt: skip


def compare(snapshots: Sequence[Snapshot]) -> list[Comparison]:
    """The theorem's sentences on this run: its snapshot before binding against its last one."""

    def judged(rule: Callable[[Snapshot, Snapshot], Judged]) -> tuple[str, str]:
        try:
            before, last = before_binding(snapshots), snapshots[-1]
            if not last.one >= BINDS:
                raise NotHere("the last checkpoint does not bind yet")
            here, fits = rule(before, last)
        except NotHere as reason:
            return str(reason), UNTOLD
        return here, FITS if fits else MISFITS

    return [Comparison(name, says, how, *judged(rule)) for name, says, how, rule in RULES]


def growth(snapshots: Sequence[Snapshot]) -> tuple[int, int]:
    """Steps between which the diagonal, less the rest, grows from a tenth to nine tenths of its last value."""
    if len(snapshots) < 2:
        raise NotHere("growth cannot be seen on fewer than two checkpoints")
    last = snapshots[-1].stands_out
    if last <= 0:
        raise NotHere("the diagonal does not stand out at the end")
    late = next(shot.step for shot in snapshots if shot.stands_out >= 0.9 * last)
    early = [shot.step for shot in snapshots if shot.step <= late and shot.stands_out <= 0.1 * last]
    return (early[-1] if early else snapshots[0].step), late
