"""Where a model errs: its accuracy by number pair, by class of pair and by pair of variables.

Sequences are built for every case in turn rather than drawn, each case several times with other variables, distractors
and layouts. They are fixed: a function of the config's task alone.
"""

from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mc_lib import measures, model, routing, task
from mc_lib.config import Config
from mc_lib.evaluation import evaluation_sets, task_only
from mc_lib.model import Weights
from mc_lib.sampler import build, draws, fields, keys

CHUNK = 2048
CONTEXTS = 4
PER_PAIR = 60
CLASSES = ("training", "held out, mirror in training", "held out in both orders", "held out, n = m")


def right(weights: Weights, cfg: Config, tokens: Int[Tensor, "n pos"]) -> Bool[Tensor, " n"]:
    """Which sequences are answered right."""
    with torch.no_grad():
        said = [model.logits(weights, part).argmax(-1) for part in tokens.split(CHUNK)]
    return torch.cat(said) == task.answers(tokens, cfg)


def _uniform(cfg: Config, count: int, stream: int) -> Int[Tensor, "count fields"]:
    key = keys(torch.tensor([0]), torch.tensor([0]), stream)[0, 0]
    return draws(key, 0, count, fields(cfg))


def _choices(cfg: Config, kind: int) -> Int[Tensor, "choice 2"]:
    """The variables of a kind that training shows, -1 for a number's place."""
    if kind == 0:
        return torch.full((1, 2), -1)
    if kind == 3:
        return task.variable_pairs(cfg, 0)
    legal = task.variables_for(cfg, kind - 1, True)
    none = torch.full_like(legal, -1)
    return torch.stack([legal, none] if kind == 1 else [none, legal], 1)


@lru_cache(maxsize=8)
def _pair_sequences(cfg: Config, kind: int) -> Int[Tensor, "n pos"]:
    """Every ordered number pair CONTEXTS times in sequences of one kind."""
    pairs = torch.cartesian_prod(torch.arange(cfg.p), torch.arange(cfg.p)).repeat(CONTEXTS, 1)
    choices = _choices(cfg, kind)
    u = _uniform(cfg, len(pairs), 501 + kind)
    variables = choices[_uniform(cfg, len(pairs), 511 + kind)[:, 0] % len(choices)]
    return build(cfg, pairs, variables, u[:, 3:], 1 + (variables >= 0).all(1).long())


def pair_accuracy(weights: Weights, cfg: Config, kind: int) -> Float[Tensor, "first second"]:
    """Share right for every ordered number pair, in sequences of one kind with variables as in training."""
    hit = right(weights, cfg, _pair_sequences(task_only(cfg), kind))
    return hit.view(CONTEXTS, cfg.p, cfg.p).float().mean(0)


def by_class(accuracy: Float[Tensor, "first second"], cfg: Config) -> dict[str, tuple[int, int]]:
    """Sequences answered right and asked, by class of number pair, of a map that `pair_accuracy` made."""
    classes = task.pair_classes(cfg)
    found = {name: accuracy[classes == index] * CONTEXTS for index, name in enumerate(CLASSES)}
    return {name: (round(hits.sum().item()), len(hits) * CONTEXTS) for name, hits in found.items() if len(hits)}


@lru_cache(maxsize=4)
def _variable_sequences(cfg: Config) -> Int[Tensor, "n pos"]:
    """Every ordered pair of variables PER_PAIR times, number pairs from training; a variable twice asks for (n, n)."""
    letters = torch.arange(cfg.variables)
    variables = torch.cartesian_prod(letters, letters).repeat_interleave(PER_PAIR, 0)
    same = (variables[:, 0] == variables[:, 1])[:, None]
    pairs, chosen = task.training_pairs(cfg), _uniform(cfg, len(variables), 521)[:, 0]
    trained = pairs[pairs[:, 0] == pairs[:, 1]]
    doubles = trained if len(trained) else torch.arange(cfg.p)[:, None].expand(-1, 2)
    numbers = torch.where(same, doubles[chosen % len(doubles)], pairs[chosen % len(pairs)])
    u = _uniform(cfg, len(variables), 522)
    return build(cfg, numbers, variables, u[:, 3:], 2 - same[:, 0].long())


def variable_accuracy(weights: Weights, cfg: Config) -> Float[Tensor, "first second"]:
    """Share right for every ordered pair of variables, number pairs from training: see `_variable_sequences`."""
    hit = right(weights, cfg, _variable_sequences(task_only(cfg)))
    return hit.view(cfg.variables, cfg.variables, PER_PAIR).float().mean(-1)


def operand_accuracy(weights: Weights, cfg: Config) -> Float[Tensor, "first second"]:
    """Share right by what stands first and second: index 0 is a number, then come the variables."""
    sums = by_class(pair_accuracy(weights, cfg, 0), cfg)[CLASSES[0]]
    grid = torch.full((1 + cfg.variables, 1 + cfg.variables), sums[0] / sums[1])
    grid[1:, 0], grid[0, 1:] = routing.cell_accuracy(weights, cfg)
    grid[1:, 1:] = variable_accuracy(weights, cfg)
    return grid


@lru_cache(maxsize=4)
def _cell_sequences(cfg: Config) -> Int[Tensor, "n pos"]:
    """Every cell PER_PAIR times: each variable first beside a number, then each second; number pairs from training."""
    none, pairs = torch.full((cfg.variables,), -1), task.training_pairs(cfg)
    letters = torch.arange(cfg.variables)
    cells = torch.cat([torch.stack([letters, none], 1), torch.stack([none, letters], 1)])
    variables = cells.repeat_interleave(PER_PAIR, 0)
    numbers = pairs[_uniform(cfg, len(variables), 531)[:, 0] % len(pairs)]
    return build(cfg, numbers, variables, _uniform(cfg, len(variables), 532)[:, 3:], torch.ones(len(variables)).long())


def value_attention(weights: Weights, cfg: Config) -> Float[Tensor, "side variable"]:
    """Mean layer-2 attention of `=` to the operand variable's value, in each cell; the largest over heads."""
    tokens = _cell_sequences(task_only(cfg))
    asked = task.operands(tokens, cfg)
    side = (asked.kind == 2).long()
    place = asked.positions.gather(1, side[:, None])
    with torch.no_grad():
        pattern = torch.cat([model.trace(weights, part).pattern2 for part in tokens.split(CHUNK)])
    at_value = pattern.gather(2, place[:, None].expand(-1, pattern.shape[1], 1))[..., 0]
    return at_value.view(2, cfg.variables, PER_PAIR, -1).mean(2).amax(-1)


def by_assignments(weights: Weights, cfg: Config, name: str = "1-var train") -> dict[int, tuple[int, int]]:
    """Sequences of a set answered right and asked, by their number of assignments."""
    tokens = evaluation_sets(cfg)[name]
    hit = right(weights, cfg, tokens)
    count = (tokens[:, : cfg.room] >= cfg.FIRST_VARIABLE).sum(1)
    found = {n: hit[count == n] for n in range(1, cfg.max_assignments + 1)}
    return {n: (int(hits.sum()), len(hits)) for n, hits in found.items() if len(hits)}


def best_match(weights: Weights, cfg: Config) -> Float[Tensor, "variable variable"]:
    """The match matrix less its rows' means, which attention does not see; several heads: the best choice of three."""
    score = measures.match_matrices(weights, cfg).flatten(0, 2)
    same = torch.eye(cfg.variables, dtype=torch.bool)
    margin = score.diagonal(dim1=1, dim2=2) - score.masked_fill(same, -torch.inf).amax(-1)
    share = (margin > 0).double().mean(1)
    best = score[margin.mean(1).masked_fill(share < share.max(), -torch.inf).argmax()]
    return best - best.mean(1, keepdim=True)


def worst(accuracy: Float[Tensor, "first second"], names: list[str], count: int = 5) -> list[str]:
    """The cells with the lowest accuracy below .9, worst first, as "first + second: share"."""
    flat = accuracy.flatten()
    lowest = flat.argsort(stable=True)[:count].tolist()
    return [f"{names[i // len(names)]} + {names[i % len(names)]}: {flat[i]:.2f}" for i in lowest if flat[i] < 0.9]
