"""How the model adds: what reaches the layer-2 MLP at `=`, what the MLP makes of it, and what happens without it.

A number's image is E_n OV2, what layer 2's heads write together when they attend to it. The sum vector of a pair is
the sum of its two images; the isolated circuit reads the answer off a sum vector through the MLP and the unembedding
alone. The three vectors at `=` are what layer-2 attention adds, and the residual stream before and after the MLP.
A partner of a pair is another pair that shares something with it (one number, the answer, nothing), for comparison.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mc_lib import model, task
from mc_lib.config import Config
from mc_lib.model import Weights
from mc_lib.sampler import build, draws, fields, keys

CONTEXTS, SWAPS = 501, 531  # streams of draws, apart from all others
CHUNK = 512


# --- the vectors at `=` --------------------------------------------------------------------------------


class Vectors(NamedTuple):
    """What layer-2 attention adds at `=`, and the residual stream there before and after the MLP."""

    attention: Float[Tensor, "n d"]
    before: Float[Tensor, "n d"]
    after: Float[Tensor, "n d"]


@torch.no_grad()
def vectors(weights: Weights, tokens: Int[Tensor, "n pos"]) -> Vectors:
    traces = [model.trace(weights, some) for some in tokens.split(CHUNK)]
    before = torch.cat([trace.resid_mid for trace in traces])
    return Vectors(torch.cat([trace.attn_out2 for trace in traces]), before, before + mlp(weights, before))


def mlp(weights: Weights, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """What the layer-2 MLP adds for the input x."""
    return (x @ weights["blocks.1.mlp.W_in"]).relu() @ weights["blocks.1.mlp.W_out"]


def images(weights: Weights, cfg: Config) -> Float[Tensor, "p d"]:
    """E_n OV2 of every number n, summed over the heads."""
    return weights["embed.W_E"][: cfg.p] @ model.OV(weights, 2).sum(0)


def number_pairs(cfg: Config) -> Int[Tensor, "pairs 2"]:
    """All ordered pairs; (n, m) is row n p + m."""
    number = torch.arange(cfg.p)
    return torch.cartesian_prod(number, number)


def sum_vectors(weights: Weights, cfg: Config) -> Float[Tensor, "pairs d"]:
    """(E_n + E_m) OV2 of every pair."""
    return images(weights, cfg)[number_pairs(cfg)].sum(1)


# --- every pair in a sequence --------------------------------------------------------------------------


def templates(cfg: Config) -> tuple[Int[Tensor, "pairs pos"], Int[Tensor, "pairs pos"]]:
    """Every pair in the released analysis's two sequences: `a 7 b 2 c 51 PAD.. + n m =`, and with b = n, `+ b m =`.

    A run with room for fewer tokens gets as many of the assignments as fit, two at least.
    """
    pairs = number_pairs(cfg)
    a, b, c = range(cfg.FIRST_VARIABLE, cfg.FIRST_VARIABLE + 3)
    assigned = [a, 7 % cfg.p, b, 2 % cfg.p, c, 51 % cfg.p][: 6 if cfg.room >= 6 else 4]
    row = assigned + [cfg.PAD] * (cfg.room - len(assigned)) + [cfg.PLUS, 0, 0, cfg.EQUALS]
    constant = torch.tensor(row).repeat(len(pairs), 1)
    constant[:, -3:-1] = pairs
    variable = constant.clone()
    variable[:, 3], variable[:, -3] = pairs[:, 0], b
    return constant, variable


def in_contexts(cfg: Config, kind: int, draw: int = 0) -> Int[Tensor, "pairs pos"]:
    """Every pair once as a sequence of this kind: variables, distractors and layout at random, as training has them."""
    pairs = number_pairs(cfg)
    key = keys(torch.tensor([draw]), torch.tensor([kind]), CONTEXTS)[0, 0]
    u = draws(key, 0, len(pairs), fields(cfg))
    none = torch.full((1, 1), -1)
    first, second = (task.variables_for(cfg, side, True)[:, None] for side in (0, 1))
    legal = [
        torch.cat([none, none], 1),
        torch.cat([first, none.expand(len(first), 1)], 1),
        torch.cat([none.expand(len(second), 1), second], 1),
        task.variable_pairs(cfg, 0),
    ][kind]
    fewest = torch.full((len(pairs),), 2 if kind == 3 else 1)
    return build(cfg, pairs, legal[(u[:, 2] * len(legal)) >> 31], u[:, 3:], fewest)


# --- cosines -------------------------------------------------------------------------------------------

SAME, MIRROR, SECOND, BOTH, ANSWER = (
    "the same pair",
    "its mirror",
    "another second number",
    "two other numbers",
    "other numbers, same answer",
)
PARTNERS = (SAME, MIRROR, SECOND, BOTH, ANSWER)


def partners(cfg: Config, how: str) -> tuple[Int[Tensor, " some"], Int[Tensor, " some"]]:
    """Rows of pairs and of their partners, one for each pair that has one; seeded where there is a choice."""
    n, m = number_pairs(cfg).T
    generator = torch.Generator().manual_seed(PARTNERS.index(how))
    s, t = torch.randint(1, cfg.p, (2, cfg.p**2), generator=generator)
    zero = torch.zeros_like(s)
    away = {SAME: (zero, zero), MIRROR: (m - n, n - m), SECOND: (zero, s), BOTH: (s, t), ANSWER: (s, -s)}[how]
    other_n, other_m = (n + away[0]) % cfg.p, (m + away[1]) % cfg.p
    is_mirror = (other_n == m) & (other_m == n)
    keep = {SAME: n == n, MIRROR: n != m}.get(how, ~is_mirror)
    return (n * cfg.p + m)[keep], (other_n * cfg.p + other_m)[keep]


def compare(
    left: Float[Tensor, "pairs d"], right: Float[Tensor, "pairs d"], cfg: Config, how: tuple[str, ...] = PARTNERS
) -> dict[str, Float[Tensor, " some"]]:
    """Cosine of each pair's left vector with the right vector of its partner, for every sort of partner."""
    left, right = (torch.nn.functional.normalize(x, dim=1) for x in (left, right))
    rows = {name: partners(cfg, name) for name in how}
    return {name: (left[pair] * right[other]).sum(1) for name, (pair, other) in rows.items()}


class Spread(NamedTuple):
    """A sample's mean with its 95% interval, its extremes, and its size."""

    mean: float
    low: float
    high: float
    least: float
    most: float
    n: int


def spread(values: Float[Tensor, " n"]) -> Spread:
    mean, n = values.double().mean().item(), len(values)
    half = 1.96 * values.double().std().item() / math.sqrt(n) if n > 1 else math.nan
    return Spread(mean, mean - half, mean + half, values.min().item(), values.max().item(), n)


def sum_cosines(weights: Weights, cfg: Config) -> dict[str, dict[str, Float[Tensor, " some"]]]:
    """Fig 5b on number + number: attention's output, and the whole residual before the MLP, with the sum vectors."""
    seen, expected = vectors(weights, in_contexts(cfg, 0)), sum_vectors(weights, cfg)
    return {
        "attention's output": compare(seen.attention, expected, cfg),
        "whole residual": compare(seen.before, expected, cfg),
    }


def template_cosines(weights: Weights, cfg: Config) -> dict[str, Float[Tensor, " some"]]:
    """Fig 5a in the released templates: the residual before the MLP with the same where n comes from a variable."""
    constant, variable = (vectors(weights, tokens).before for tokens in templates(cfg))
    return compare(constant, variable, cfg)


def context_cosines(weights: Weights, cfg: Config, kind: int) -> dict[str, Float[Tensor, " some"]]:
    """Fig 5a in random contexts: a number + number sequence against another sequence of the given kind."""
    plain, other = in_contexts(cfg, 0), in_contexts(cfg, kind, draw=1)
    return compare(vectors(weights, plain).before, vectors(weights, other).before, cfg)


# --- the isolated circuit ------------------------------------------------------------------------------


def isolated_logits(weights: Weights, cfg: Config) -> Float[Tensor, "pairs p"]:
    """ReLU((E_n + E_m) OV2 W_in) W_out W_U of every pair: no attention, no context, no other path."""
    neurons = images(weights, cfg) @ weights["blocks.1.mlp.W_in"]
    out = weights["blocks.1.mlp.W_out"] @ weights["unembed.W_U"]
    pairs = number_pairs(cfg).split(8 * CHUNK)
    return torch.cat([(neurons[n] + neurons[m]).relu() @ out for n, m in (some.T for some in pairs)])


def isolated_margins(weights: Weights, cfg: Config) -> Float[Tensor, "p p"]:
    """How far the right answer's logit is above the best other one; below 0 the circuit errs."""
    logits, right = isolated_logits(weights, cfg), number_pairs(cfg).sum(1, keepdim=True) % cfg.p
    others = logits.scatter(1, right, -torch.inf).amax(1)
    return (logits.gather(1, right)[:, 0] - others).view(cfg.p, cfg.p)


def isolated_answers(weights: Weights, cfg: Config) -> Int[Tensor, "p p"]:
    return isolated_logits(weights, cfg).argmax(1).view(cfg.p, cfg.p)


def without_neurons(weights: Weights, removed: Bool[Tensor, " neuron"]) -> Weights:
    """The same weights, but that the removed neurons write nothing."""
    return {**weights, "blocks.1.mlp.W_out": weights["blocks.1.mlp.W_out"] * ~removed[:, None]}


def isolated_errors(weights: Weights, cfg: Config) -> list[tuple[int, int, int]]:
    """(n, m, the circuit's answer) wherever it is not n + m."""
    answer = isolated_answers(weights, cfg)
    wrong = answer.flatten() != number_pairs(cfg).sum(1) % cfg.p
    rows = torch.cat([number_pairs(cfg), answer.view(-1, 1)], 1)[wrong]
    return [(n, m, said) for n, m, said in rows.tolist()]


# --- what happens without ------------------------------------------------------------------------------

WHOLE, NO_MLP, MEAN_MLP, BLIND_MLP, ONLY_PATH = (
    "the whole model",
    "MLP's output removed",
    "MLP's output replaced by its mean",
    "MLP blind to layer-2 attention",
    "only layer-2 attention → MLP → answer",
)


@torch.no_grad()
def path_logits(weights: Weights, tokens: Int[Tensor, "n pos"]) -> dict[str, Float[Tensor, "n p"]]:
    """Logits of the whole model and with paths cut at `=`."""
    seen, unembed = vectors(weights, tokens), weights["unembed.W_U"]
    added = seen.after - seen.before
    blind = mlp(weights, seen.before - seen.attention)
    return {
        WHOLE: seen.after @ unembed,
        NO_MLP: seen.before @ unembed,
        MEAN_MLP: (seen.before + added.mean(0)) @ unembed,
        BLIND_MLP: (seen.before + blind) @ unembed,
        ONLY_PATH: mlp(weights, seen.attention) @ unembed,
    }


def path_hits(weights: Weights, cfg: Config) -> dict[str, tuple[int, int]]:
    """(right answers, sequences) under each cut, on one sequence of every kind for every pair."""
    tokens = torch.cat([in_contexts(cfg, kind) for kind in range(4)])
    right = task.answers(tokens, cfg)
    return {name: (int((x.argmax(1) == right).sum()), len(x)) for name, x in path_logits(weights, tokens).items()}


class Swap(NamedTuple):
    """How often the model answers what the donor asked, and what the host asked, with the donor's attention output."""

    donor: int
    host: int
    n: int


@torch.no_grad()
def swap(weights: Weights, cfg: Config, donor_kind: int, host_kind: int) -> Swap:
    """Every pair's host sequence gets layer-2 attention's output from a donor sequence of another pair."""
    hosts, donors = in_contexts(cfg, host_kind), in_contexts(cfg, donor_kind, draw=1)
    order = torch.randperm(len(hosts), generator=torch.Generator().manual_seed(SWAPS))
    donors = donors[order]
    asked, given = task.answers(hosts, cfg), task.answers(donors, cfg)
    host, donor = vectors(weights, hosts), vectors(weights, donors)
    before = host.before - host.attention + donor.attention
    said = ((before + mlp(weights, before)) @ weights["unembed.W_U"]).argmax(1)[asked != given]
    asked, given = asked[asked != given], given[asked != given]
    return Swap(int((said == given).sum()), int((said == asked).sum()), len(said))
