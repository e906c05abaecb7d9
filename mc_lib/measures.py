"""What is measured on one set of weights: the nine accuracies and the seven progress measures.

An accuracy is the share of an evaluation set answered right. A progress measure is a share too: how much of one
part of the mechanism is in place, read from the weights (ov2, qk1, qk2) or from attention and the residual
stream on sequences (attn, probe). A hit rate counts winners; its mass, named `.._mass`, is the mean attention
that really lands on the right places. A tie is never a hit: what is right must be strictly above all else.

Attention measures and probes use SEQUENCES fixed sequences drawn like training's (kinds 12 : 10 : 10 : 10, whatever
the run's own `two_var`), which training never drew; `.._kinds012` takes the share of them without 2-variable
sequences, as the released analysis does. With several heads a measure is that of its best head: the one with
the highest hit rate on all kinds, at equal rates with most mass; every column beside it is of that same head.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mc_lib import evaluation, model, task
from mc_lib.config import Config, Refusal
from mc_lib.evaluation import NINE
from mc_lib.model import Weights
from mc_lib.sampler import sample, training_mixture

SEQUENCES = 1024
STREAM = 301
BY_SIDE = ("1-var train (first)", "1-var train (second)")
ATTENTION = ("attn_l1_equal_to_operands", "attn_l1_num_to_prev", "attn_l2_equal_to_values")
MASS_BY_KIND = ("attn_l2_mass_0var", "attn_l2_mass_1var", "attn_l2_mass_2var")
SEVEN = (
    "ov2_mlp2_accuracy",
    "qk1_num_to_prev_var",
    "qk2_ov1_var_identity",
    *ATTENTION,
    "probe_l1_var_from_num",
)
METRICS = (
    *NINE,
    *SEVEN,
    *BY_SIDE,
    "qk2_margin_mean",
    "qk2_margin_min",
    *(f"{name}_mass" for name in ATTENTION),
    *(f"{name}_kinds012" for name in ATTENTION),
    *(f"{name}_kinds012_mass" for name in ATTENTION),
    *MASS_BY_KIND,
    "probe_l1_var_from_num_4steps",
)
Row = dict[str, Tensor]


def measure(weights: Weights, cfg: Config) -> dict[str, float]:
    """One row of a run's metrics, named and ordered as METRICS; NaN where the config leaves nothing to measure."""
    weights = _checked(weights, cfg)
    with torch.no_grad():
        row = {
            **accuracies(weights, cfg),
            "ov2_mlp2_accuracy": ov2_mlp2_accuracy(weights, cfg),
            "qk1_num_to_prev_var": qk1_num_to_prev_var(weights, cfg),
            **variable_match(weights, cfg),
            **on_sequences(weights, cfg),
        }
        values = torch.stack([row[name].double() for name in METRICS]).tolist()
    return dict(zip(METRICS, values, strict=True))


def _checked(weights: Weights, cfg: Config) -> Weights:
    """The weights in float32 or float64; refuses what is not one finite set of weights of this config."""
    for name, shape in model.shapes(cfg).items():
        if name not in weights:
            raise Refusal(f"the weights lack {name}: measure a complete set of weights")
        found = tuple(weights[name].shape)
        if found != shape:
            raise Refusal(f"{name} has shape {found}, but the config asks for {shape}: measure its own run")
        if not weights[name].isfinite().all():
            raise Refusal(f"{name} holds a NaN or an infinity: the run diverged; take an earlier step")
    return {name: w if w.dtype == torch.float64 else w.float() for name, w in weights.items()}


def chunk(cfg: Config) -> int:
    """Sequences traced at once: few enough for the scores to stay in the cache."""
    return max(1, 2**19 // (cfg.heads * cfg.length**2))


def _only_highest(scores: Float[Tensor, "batch n"], right: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Whether the right entry is above every other one of its row."""
    return (scores >= scores.gather(1, right[:, None])).sum(1) == 1


# --- accuracies ----------------------------------------------------------------------------------------


class Questions(NamedTuple):
    """The nine sets, one after the other."""

    tokens: Int[Tensor, "n pos"]
    answers: Int[Tensor, " n"]
    sizes: list[int]
    kind: Int[Tensor, " one_var"]


@lru_cache(maxsize=4)
def _questions(cfg: Config) -> Questions:
    sets = evaluation.evaluation_sets(cfg)
    tokens = torch.cat([sets[name] for name in NINE])
    kind = task.operands(sets["1-var train"], cfg).kind
    return Questions(tokens, task.answers(tokens, cfg), [len(sets[name]) for name in NINE], kind)


def accuracies(weights: Weights, cfg: Config) -> Row:
    """Share of each of the nine sets answered right, and of the 1-var training set by the variable's side."""
    tokens, answers, sizes, kind = _questions(evaluation.task_only(cfg))
    device = weights["embed.W_E"].device
    right = []
    for some, answer in zip(tokens.split(chunk(cfg)), answers.split(chunk(cfg)), strict=True):
        logits = model.logits(weights, some.to(device))
        if not logits.isfinite().all():
            raise Refusal("the weights are so large that the model overflows: take an earlier step")
        right.append(_only_highest(logits, answer.to(device)))
    by_set = dict(zip(NINE, torch.cat(right).cpu().double().split(sizes), strict=True))
    row = {name: hits.mean() for name, hits in by_set.items()}
    for side, name in enumerate(BY_SIDE):
        row[name] = by_set["1-var train"][kind == 1 + side].mean()
    return row


# --- read from the weights alone -----------------------------------------------------------------------


def ov2_mlp2_accuracy(weights: Weights, cfg: Config) -> Tensor:
    """Share of all ordered number pairs that argmax ReLU((E_a + E_b) OV2 W_in) W_out W_U adds right.

    OV2 is the sum over heads: the sum that layer 2 writes when every head attends to both numbers.
    """
    numbers = weights["embed.W_E"][: cfg.p]
    neuron = numbers @ model.OV(weights, 2).sum(0) @ weights["blocks.1.mlp.W_in"]
    out = weights["blocks.1.mlp.W_out"] @ weights["unembed.W_U"]
    # The function is symmetric: a pair of different numbers stands for both of its orders.
    pairs = torch.triu_indices(cfg.p, cfg.p, device=out.device).T
    hits = torch.zeros((), dtype=torch.float64)
    for some in pairs.split(max(1, 2**20 // cfg.d_mlp)):
        scores = (neuron[some[:, 0]] + neuron[some[:, 1]]).relu() @ out
        right = _only_highest(scores, some.sum(1) % cfg.p)
        hits += (right * (1 + (some[:, 0] != some[:, 1]).long())).sum().cpu()
    return hits / cfg.p**2


def qk1_num_to_prev_var(weights: Weights, cfg: Config) -> Tensor:
    """Share of queries 1 .. room-1 whose largest entry of P QK1 P' is at the position before.

    Keys at and after the query are left out, and so is query - 2. Several heads: the best one.
    """
    places = weights["pos_embed.W_pos"][: cfg.room]
    score = (places @ weights["blocks.0.attn.W_Q"]) @ (places @ weights["blocks.0.attn.W_K"]).mT
    query = torch.arange(cfg.room, device=score.device)[:, None]
    key = query.T
    score = score.masked_fill((key >= query) | (key == query - 2), -torch.inf)[:, 1:]
    previous = score.diagonal(dim1=1, dim2=2)
    other = score.masked_fill((key == query - 1)[1:], -torch.inf).amax(-1)
    return (previous > other).double().mean(1).max().cpu()


def match_matrices(weights: Weights, cfg: Config) -> Float[Tensor, "head2 query_head key_head variable variable"]:
    """(E_v OV1) QK2 (E_v' OV1)' unscaled: how well the variable that `=` asks for meets the one before a number.

    For each layer-2 head, layer-1 head that brings the variable to `=`, and layer-1 head that brings it to the number.
    """
    variables = weights["embed.W_E"][cfg.FIRST_VARIABLE :]
    moved = (variables @ model.OV(weights, 1)).flatten(0, 1)
    score = (moved @ weights["blocks.1.attn.W_Q"]) @ (moved @ weights["blocks.1.attn.W_K"]).mT
    shape = (cfg.heads, cfg.variables)
    return score.unflatten(2, shape).unflatten(1, shape).transpose(2, 3)


def variable_match(weights: Weights, cfg: Config) -> Row:
    """Share of rows of the match matrix with their maximum on the diagonal, and its margins over the best other.

    Several heads: the best choice of the three heads, by share and then by mean margin.
    """
    score = match_matrices(weights, cfg).flatten(0, 2)
    same = torch.eye(cfg.variables, dtype=torch.bool, device=score.device)
    margin = score.diagonal(dim1=1, dim2=2) - score.masked_fill(same, -torch.inf).amax(-1)
    share, mean = (margin > 0).double().mean(1), margin.mean(1)
    best = mean.masked_fill(share < share.max(), -torch.inf).argmax()
    return {
        "qk2_ov1_var_identity": share[best].cpu(),
        "qk2_margin_mean": mean[best].cpu(),
        "qk2_margin_min": margin[best].min().cpu(),
    }


# --- attention and the probe, on sequences -------------------------------------------------------------


class Sequences(NamedTuple):
    """The fixed sequences, and of every assigned number in them: its sequence, its place, its variable."""

    tokens: Int[Tensor, "n pos"]
    values: Bool[Tensor, "n pos"]
    kind: Int[Tensor, " n"]
    sequence: Int[Tensor, " number"]
    place: Int[Tensor, " number"]
    variable: Int[Tensor, " number"]


def describe(tokens: Int[Tensor, "n pos"], cfg: Config) -> Sequences:
    """Sequences with what the measures ask about them; `values` marks where the two right numbers stand."""
    asked = task.operands(tokens, cfg)
    values = torch.zeros_like(tokens, dtype=torch.bool).scatter(1, asked.positions, True)
    sequence, place = (tokens[:, : cfg.room] < cfg.p).nonzero().unbind(1)
    variable = tokens[sequence, place - 1] - cfg.FIRST_VARIABLE
    return Sequences(tokens, values, asked.kind, sequence, place, variable)


@lru_cache(maxsize=4)
def _fixed(cfg: Config) -> Sequences:
    return describe(sample(cfg, training_mixture(cfg), SEQUENCES, STREAM), cfg)


def on_sequences(weights: Weights, cfg: Config) -> Row:
    """The measures that need sequences: attention with its mass, and the probes."""
    fixed = _fixed(evaluation.task_only(cfg))
    fixed = Sequences(*(field.to(weights["embed.W_E"].device) for field in fixed))
    parts = [model.trace(weights, some) for some in fixed.tokens.split(chunk(cfg))]
    pattern1 = torch.cat([part.pattern1 for part in parts])
    pattern2 = torch.cat([part.pattern2 for part in parts])
    features = number_residuals(weights, pattern1, fixed)
    train = fixed.sequence < SEQUENCES // 2
    half = (features[train], fixed.variable[train], features[~train], fixed.variable[~train], cfg.variables)
    row = attention(pattern1, pattern2, fixed, cfg)
    return row | {"probe_l1_var_from_num": probe(*half), "probe_l1_var_from_num_4steps": probe_4steps(*half)}


def hit_and_mass(
    weight: Float[Tensor, "n head pos"], right: Bool[Tensor, "n pos"]
) -> tuple[Bool[Tensor, "n head"], Float[Tensor, "n head"]]:
    """Whether the right places have the largest weights of all, and how much weight they have together."""
    right = right[:, None]
    least = weight.masked_fill(~right, torch.inf).amin(-1)
    other = weight.masked_fill(right, -torch.inf).amax(-1)
    return least > other, (weight * right).sum(-1)


def best_head(hit: Bool[Tensor, "n head"], mass: Float[Tensor, "n head"]) -> int:
    return int((hit.double().sum(0) + mass.double().mean(0) / 2).argmax())


def attention(
    pattern1: Float[Tensor, "n head query key"],
    pattern2: Float[Tensor, "n head key"],
    seen: Sequences,
    cfg: Config,
) -> Row:
    """The three attention measures: hits and mass, on all kinds and on kinds 0-2; layer 2's mass by kind.

    The two right places are one where both operands are the same variable: then it must be the largest.
    """
    place = torch.arange(cfg.length, device=pattern1.device)
    operands = ((place >= cfg.length - 3) & (place < cfg.length - 1)).expand_as(seen.tokens)
    before = place == seen.place[:, None] - 1
    rows = pattern1[seen.sequence, :, seen.place]
    questions = (
        (pattern1[:, :, -1], operands, seen.kind),
        (rows, before, seen.kind[seen.sequence]),
        (pattern2, seen.values, seen.kind),
    )
    row: Row = {}
    for name, (weight, right, kind) in zip(ATTENTION, questions, strict=True):
        hit, mass = hit_and_mass(weight, right)
        head = best_head(hit, mass)
        hit, mass, few = hit[:, head].double(), mass[:, head].double(), kind < 3
        row |= {name: hit.mean(), f"{name}_mass": mass.mean()}
        row |= {f"{name}_kinds012": hit[few].mean(), f"{name}_kinds012_mass": mass[few].mean()}
    # `mass` and `kind` are now layer 2's.
    for name, of in zip(MASS_BY_KIND, (kind == 0, (kind == 1) | (kind == 2), kind == 3), strict=True):
        row[name] = mass[of].mean()
    return {name: value.cpu() for name, value in row.items()}


def number_residuals(
    weights: Weights, pattern1: Float[Tensor, "n head query key"], seen: Sequences
) -> Float[Tensor, "number d"]:
    """The residual stream on the assigned numbers after layer 1: x + sum over heads of attention times x OV1."""
    x = weights["embed.W_E"][seen.tokens] + weights["pos_embed.W_pos"]
    mixed = (pattern1 @ x[:, None])[seen.sequence, :, seen.place]
    written = mixed.transpose(0, 1) @ weights["blocks.0.attn.W_V"] @ weights["blocks.0.attn.W_O"]
    return x[seen.sequence, seen.place] + written.sum(0)


def probe(
    train: Float[Tensor, "train d"],
    train_class: Int[Tensor, " train"],
    test: Float[Tensor, "test d"],
    test_class: Int[Tensor, " test"],
    classes: int,
    ridge: float = 1e-6,
) -> Tensor:
    """Test accuracy of a linear probe: least squares on the one-hot class, in closed form, so it has converged.

    Features are centred; the ridge, a share of their mean variance, only keeps the equations solvable.
    """
    mean = train.mean(0)
    x = (train - mean).double()
    target = torch.nn.functional.one_hot(train_class, classes).double()
    gram = x.T @ x
    gram.diagonal().add_(ridge * gram.diagonal().mean() + 1e-30)
    solution = torch.linalg.solve(gram, x.T @ target)
    return _only_highest((test - mean).double() @ solution + target.mean(0), test_class).double().mean().cpu()


def probe_4steps(
    train: Float[Tensor, "train d"],
    train_class: Int[Tensor, " train"],
    test: Float[Tensor, "test d"],
    test_class: Int[Tensor, " test"],
    classes: int,
    steps: int = 4,
    lr: float = 1e-3,
) -> Tensor:
    """The release's probe in kind: softmax regression stopped after 4 steps, far from converged.

    The choices here are ours: full-batch Adam (lr 1e-3, betas .9 and .999) from zero weights, so that nothing is drawn.
    """
    x = torch.cat([train, torch.ones_like(train[:, :1])], 1)
    target = torch.nn.functional.one_hot(train_class, classes).to(x.dtype)
    weight = x.new_zeros(x.shape[1], classes)
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, steps + 1):
        gradient = x.T @ ((x @ weight).softmax(-1) - target) / len(x)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        size = (second / (1 - 0.999**step)).sqrt() + 1e-8
        weight = weight - lr * first / (1 - 0.9**step) / size
    return _only_highest(test @ weight[:-1] + weight[-1], test_class).double().mean().cpu()
