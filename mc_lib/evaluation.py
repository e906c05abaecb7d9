"""The sets of sequences on which a model is measured.

NINE are the paper's sets. The further sets ask what the paper does not: held-out pairs split by their mirror,
a held-out pair together with illegal variables, and the same variable twice. The exact sets hold every case once.
All are fixed: a function of the config's task, not of the run's seed.
"""

from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from mc_lib import task
from mc_lib.config import Config
from mc_lib.sampler import Mixture, build, draws, fields, keys, mixture, sample

NINE = (
    "0-var train",
    "0-var add-restricted",
    "1-var train",
    "1-var add-restricted",
    "1-var var-restricted",
    "2-var train",
    "2-var add-restricted",
    "2-var var-restricted (1)",
    "2-var var-restricted (2)",
)
FURTHER = (
    "0-var mirror in training",
    "0-var both orders out",
    "0-var diagonal out",
    "1-var both restricted",
    "2-var both restricted",
    "v + v",
)
_ONE_VAR = (0.0, 1.0, 1.0, 0.0)
_KINDS = {"0": (1.0, 0.0, 0.0, 0.0), "1": _ONE_VAR, "2": (0.0, 0.0, 0.0, 1.0)}


def _mixture_of(cfg: Config, name: str) -> Mixture:
    """The mixture behind the name of a set."""
    weights = _KINDS.get(name[0], _KINDS["2"])
    classes = task.pair_classes(cfg)
    if name in ("0-var mirror in training", "0-var both orders out", "0-var diagonal out"):
        pairs = (classes == 1 + FURTHER.index(name)).nonzero()
    elif name == "v + v":
        pairs = torch.arange(cfg.p)[:, None].expand(-1, 2)
    elif "add-restricted" in name or "both restricted" in name:
        pairs = task.held_out_pairs(cfg)
    else:
        pairs = task.training_pairs(cfg)
    legal = "var-restricted" not in name and "both restricted" not in name
    first, second = task.variables_for(cfg, 0, legal), task.variables_for(cfg, 1, legal)
    if name == "v + v":
        both = torch.arange(cfg.variables)[:, None].expand(-1, 2)
    elif name == "2-var both restricted":
        both = torch.cat([task.variable_pairs(cfg, 1), task.variable_pairs(cfg, 2)])
    else:
        both = task.variable_pairs(cfg, int(name[-2]) if name.endswith(")") else 0)
    return mixture(weights, pairs, first, second, both)


def _sampled(cfg: Config, name: str, stream: int) -> Int[Tensor, "n pos"]:
    """A sampled set; empty where the config leaves nothing to draw from (no held-out pair, say)."""
    mix = _mixture_of(cfg, name)
    drawable = any(
        weight and count for weight, count in zip(_KINDS.get(name[0], _KINDS["2"]), mix.counts.tolist(), strict=True)
    )
    if not len(mix.pairs) or not drawable:
        return torch.empty(0, cfg.length, dtype=torch.long)
    return sample(cfg, mix, cfg.eval_size, stream)


def task_only(cfg: Config) -> Config:
    """The config with everything reset that the sets do not depend on, so that runs share one copy."""
    same = ("p", "variables", "length", "held_out", "split_seed", "not_second", "not_first", "eval_size")
    return Config(**{name: getattr(cfg, name) for name in same})


@lru_cache(maxsize=8)
def _nine(cfg: Config) -> dict[str, Int[Tensor, "n pos"]]:
    return {name: _sampled(cfg, name, 1 + i) for i, name in enumerate(NINE)}


@lru_cache(maxsize=8)
def _further(cfg: Config) -> dict[str, Int[Tensor, "n pos"]]:
    return {name: _sampled(cfg, name, 101 + i) for i, name in enumerate(FURTHER)}


def evaluation_sets(cfg: Config) -> dict[str, Int[Tensor, "n pos"]]:
    """The paper's nine sets, `eval_size` sequences each."""
    return dict(_nine(task_only(cfg)))


def further_sets(cfg: Config) -> dict[str, Int[Tensor, "n pos"]]:
    """The stricter sets that the paper lacks, `eval_size` sequences each."""
    return dict(_further(task_only(cfg)))


# --- exact sets ----------------------------------------------------------------------------------------


def _built(
    cfg: Config, numbers: Int[Tensor, "n 2"], variables: Int[Tensor, "n 2"], stream: int
) -> Int[Tensor, "n pos"]:
    key = keys(torch.tensor([0]), torch.tensor([0]), stream)[0, 0]
    u = draws(key, 0, len(numbers), fields(cfg))
    fewest = 1 + (variables >= 0).all(1).long()
    return build(cfg, numbers, variables, u[:, 3:], fewest)


def _product(
    pairs: Int[Tensor, "pairs 2"], variables: Int[Tensor, "vars 2"]
) -> tuple[Int[Tensor, "n 2"], Int[Tensor, "n 2"]]:
    return pairs.repeat_interleave(len(variables), 0), variables.repeat(len(pairs), 1)


def exact_zero_var(cfg: Config) -> Int[Tensor, "n pos"]:
    """Every held-out pair once as a 0-variable sequence, in random contexts."""
    pairs = task.held_out_pairs(cfg)
    return _built(cfg, pairs, torch.full_like(pairs, -1), 201)


def exact_two_var(cfg: Config) -> dict[str, Int[Tensor, "n pos"]]:
    """Every case of the 2-variable union once, by part: what no 2-variable training sequence shows."""
    training, held_out = task.training_pairs(cfg), task.held_out_pairs(cfg)
    parts = {
        "add-restricted": (held_out, task.variable_pairs(cfg, 0)),
        "var-restricted (1)": (training, task.variable_pairs(cfg, 1)),
        "var-restricted (2)": (training, task.variable_pairs(cfg, 2)),
    }
    return {name: _built(cfg, *_product(*part), 202 + i) for i, (name, part) in enumerate(parts.items())}
