"""What `=` looks at and which variables are solved where: the metrics that tell the jumps apart.

A cell is one variable on one side (first or second operand) of a 1-variable sequence. The score of a variable is
what layer 1 adds to the attention of `=` when that variable is the key.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib import model, task
from mc_lib.config import KINDS, Config
from mc_lib.evaluation import task_only
from mc_lib.model import Weights
from mc_lib.sampler import mixture, sample

PER_CELL = 100
PER_KIND = 200
SIDES = ("first", "second")


def cell_names(cfg: Config) -> list[str]:
    """The 1-variable cells: "a first", "b first", ..., "l second"."""
    return [f"{letter} {side}" for side in SIDES for letter in cfg.letters]


def score_names(cfg: Config) -> list[str]:
    return [f"qk1_score_{letter}" for letter in cfg.letters]


def place_names() -> list[str]:
    return [f"attn_l1_{side}_{kind}" for side in SIDES for kind in KINDS]


@lru_cache(maxsize=4)
def _cells(cfg: Config) -> Int[Tensor, "cell n pos"]:
    """PER_CELL sequences of each cell, number pairs from training."""
    pairs, none = task.training_pairs(cfg), torch.empty(0, dtype=torch.long)
    both = torch.empty(0, 2, dtype=torch.long)
    cells: list[Tensor] = []
    for side in (0, 1):
        for v in range(cfg.variables):
            variable = torch.tensor([v])
            chosen = (variable, none) if side == 0 else (none, variable)
            mix = mixture((0.0, 1.0 - side, float(side), 0.0), pairs, *chosen, both)
            cells.append(sample(cfg, mix, PER_CELL, 401 + len(cells)))
    return torch.stack(cells)


@lru_cache(maxsize=4)
def _kinds(cfg: Config) -> Int[Tensor, "kind n pos"]:
    """PER_KIND training sequences of each kind."""
    first, second = (task.variables_for(cfg, side, True) for side in (0, 1))
    both, pairs = task.variable_pairs(cfg, 0), task.training_pairs(cfg)
    only = [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)]
    mixes = [mixture(weights, pairs, first, second, both) for weights in only]
    return torch.stack([sample(cfg, mix, PER_KIND, 451 + k) for k, mix in enumerate(mixes)])


def cell_accuracy(weights: Weights, cfg: Config) -> Float[Tensor, "side variable"]:
    """Share answered right in each 1-variable cell."""
    tokens = _cells(task_only(cfg)).flatten(0, 1)
    right = [model.logits(weights, part).argmax(-1) == task.answers(part, cfg) for part in tokens.split(PER_CELL * 8)]
    return torch.cat(right).float().view(2, cfg.variables, PER_CELL).mean(-1)


def variable_scores(weights: Weights, cfg: Config) -> Float[Tensor, "head variable"]:
    """(E_= + P_last) QK1 E_v / sqrt(d_head): how strongly each variable draws the attention of `=` in layer 1."""
    last = weights["embed.W_E"][cfg.EQUALS] + weights["pos_embed.W_pos"][-1]
    variables = weights["embed.W_E"][cfg.FIRST_VARIABLE :]
    return last @ model.QK(weights, 1) @ variables.T / math.sqrt(cfg.d_head)


def operand_attention(weights: Weights, cfg: Config) -> Float[Tensor, "side kind"]:
    """Layer-1 attention of `=` to each operand's position, a mean by kind over the heads' largest."""
    tokens = _kinds(task_only(cfg))
    pattern = model.trace(weights, tokens.flatten(0, 1)).pattern1[:, :, -1, -3:-1]
    return pattern.amax(1).view(4, PER_KIND, 2).mean(1).T


@torch.no_grad()
def routing(weights: Weights, cfg: Config) -> dict[str, float]:
    """Columns of the metrics: every cell's accuracy, every variable's score, attention to operands by kind."""
    values = {
        **dict(zip(cell_names(cfg), cell_accuracy(weights, cfg).flatten().tolist(), strict=True)),
        **dict(zip(score_names(cfg), variable_scores(weights, cfg).amax(0).tolist(), strict=True)),
        **dict(zip(place_names(), operand_attention(weights, cfg).flatten().tolist(), strict=True)),
    }
    return values
