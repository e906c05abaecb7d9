"""A circuit that adds as waves do, built by hand: every spectrum, phase and answer of it is known."""

import torch

from mc_lib import model
from mc_lib.config import Config

F64 = torch.float64


def wave(p, k, phase):
    return torch.cos(2 * torch.pi * k * torch.arange(p, dtype=F64) / p + phase)


def clock(p=11, frequencies=(1, 3, 4), phases=8):
    """Weights that add as waves do: neurons read cos(w n + a) and write cos(w r + 2 a)."""
    d = 2 * len(frequencies)
    cfg = Config(p=p, d_model=d, d_mlp=len(frequencies) * phases)
    weights = {name: torch.zeros(shape, dtype=F64) for name, shape in model.shapes(cfg).items()}
    weights["blocks.1.attn.W_V"][0], weights["blocks.1.attn.W_O"][0] = torch.eye(d), torch.eye(d)
    for i, k in enumerate(frequencies):
        circle = torch.stack([wave(p, k, 0), wave(p, k, -torch.pi / 2)], 1)
        weights["embed.W_E"][:p, 2 * i : 2 * i + 2] = circle
        weights["unembed.W_U"][2 * i : 2 * i + 2] = circle.T
        a = 2 * torch.pi * (torch.arange(phases) + 0.3) / phases
        here = slice(i * phases, (i + 1) * phases)
        weights["blocks.1.mlp.W_in"][2 * i : 2 * i + 2, here] = torch.stack([a.cos(), -a.sin()]).double()
        weights["blocks.1.mlp.W_out"][here, 2 * i : 2 * i + 2] = torch.stack(
            [(2 * a).cos(), -(2 * a).sin()], 1
        ).double()
    return weights, cfg
