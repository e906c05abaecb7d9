"""All number pairs, and one neuron over them, as figures: what the grid and the neuron picker show.

A grid is the accuracy over all ordered number pairs (n, m), each in sequences whose context is drawn at random. A
neuron's map is its pre-activation over the same pairs. The figures with a slider need no kernel: the rendered book
shows them.
"""

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from plotly.subplots import make_subplots
from torch import Tensor

from mc_lib import figures, fourier, model, task
from mc_lib.config import Config, Refusal
from mc_lib.explorer_views import MOST_FRAMES, add_slider, some_steps
from mc_lib.figures_addition import neuron_slider
from mc_lib.model import Weights
from mc_lib.runs import Run
from mc_lib.sampler import build, draws, fields, keys

MOST_NUMBERS = 200  # a side of a grid; a larger p is shown by every second number, every third, ...
KINDS_OF_GRID = ("0-var", "1-var", "2-var")
SIDES = ("first", "second")
ANY = "any"  # variable: each sequence draws one that training shows on that side
GRIDS = 601  # stream of draws, apart from all others
CHUNK = 512


# --- all number pairs ----------------------------------------------------------------------------------


def grid_numbers(cfg: Config) -> Int[Tensor, " number"]:
    """The numbers along a side of a grid."""
    return torch.arange(0, cfg.p, math.ceil(cfg.p / MOST_NUMBERS))


def grid_tokens(
    cfg: Config, kind: str, variable: str = ANY, side: str = "first", contexts: int = 1
) -> Int[Tensor, "n pos"]:
    """Every pair `contexts` times in sequences of this kind, with this variable on this side; contexts at random.

    The other operand of a 2-var sequence is another variable that training shows on its side.
    """
    if kind not in KINDS_OF_GRID or side not in SIDES:
        raise Refusal(f"{kind!r} on side {side!r}: choose a kind of {KINDS_OF_GRID} and a side of {SIDES}")
    if variable != ANY and (len(variable) != 1 or variable not in cfg.letters):
        raise Refusal(f"unknown variable {variable!r}: choose {ANY} or one of {cfg.letters[0]}..{cfg.letters[-1]}")
    at, number = SIDES.index(side), grid_numbers(cfg)
    pairs = torch.cartesian_prod(number, number).repeat_interleave(contexts, 0)
    chosen = task.variables_for(cfg, at, True) if variable == ANY else torch.tensor([cfg.letters.index(variable)])
    other = task.variables_for(cfg, 1 - at, True) if kind == "2-var" else torch.tensor([-1])
    both = torch.cartesian_prod(chosen, other)
    both = both[both[:, 0] != both[:, 1]]
    if kind == "0-var":
        both = torch.tensor([[-1, -1]])
    both = both if at == 0 else both.flip(1)
    key = keys(torch.tensor([0]), torch.tensor([KINDS_OF_GRID.index(kind)]), GRIDS)[0, 0]
    u = draws(key, 0, len(pairs), fields(cfg))
    fewest = torch.full((len(pairs),), 2 if kind == "2-var" else 1)
    return build(cfg, pairs, both[(u[:, 2] * len(both)) >> 31], u[:, 3:], fewest)


@torch.no_grad()
def grid(weights: Weights, tokens: Int[Tensor, "n pos"], cfg: Config) -> Float[Tensor, "first second"]:
    """Share answered right for every pair of grid_numbers."""
    right = [model.logits(weights, some).argmax(-1) == task.answers(some, cfg) for some in tokens.split(CHUNK)]
    side = len(grid_numbers(cfg))
    return torch.cat(right).float().view(side, side, -1).mean(-1)


def grid_shares(map_: Float[Tensor, "first second"], cfg: Config) -> tuple[float, float]:
    """Accuracy on training pairs and on held-out pairs; NaN where there are none."""
    number = grid_numbers(cfg)
    held_out = task.held_out_mask(cfg)[number][:, number]
    return map_[~held_out].mean().item(), map_[held_out].mean().item()


def grid_trace(map_: Float[Tensor, "first second"], cfg: Config) -> dict[str, Any]:
    """The map as whole percent, a byte a cell."""
    number = grid_numbers(cfg).tolist()
    return {"z": (100 * map_).round().to(torch.int8).numpy(), "x": number, "y": number}


def grid_axes() -> go.Figure:
    fig = go.Figure().update_layout(height=560)
    fig.update_xaxes(title_text="second number m", showgrid=False)
    fig.update_yaxes(title_text="first number n", showgrid=False, autorange="reversed")
    return figures.square(fig)


def grid_heatmap() -> go.Heatmap:
    bar: dict[str, Any] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "len": 0.7}
    bar |= {"thickness": 10, "outlinewidth": 0, "ticksuffix": "%"}
    hover = "n = %{y}, m = %{x}: %{z}% right<extra></extra>"
    return go.Heatmap(zmin=0, zmax=100, colorbar=bar, hovertemplate=hover)


def grid_label(map_: Float[Tensor, "first second"], cfg: Config) -> str:
    shares = zip(("training", "held out"), grid_shares(map_, cfg), strict=True)
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if not math.isnan(share))


def grid_figure(run: Run, kind: str = "1-var", variable: str = ANY, side: str = "first", frames: int = 13) -> go.Figure:
    """Accuracy over all number pairs at several saved steps, one sequence a pair."""
    cfg, fig, labels = run.config, grid_axes(), []
    tokens = grid_tokens(cfg, kind, variable, side)
    for step in some_steps(run, frames):
        map_ = grid(run.weights(step), tokens, cfg)
        fig.add_trace(grid_heatmap().update(grid_trace(map_, cfg)))
        labels.append(f"step {step:,}: {grid_label(map_, cfg)}")
    return add_slider(fig, labels, 1)


def grid_table(
    run: Run, kind: str = "1-var", variable: str = ANY, side: str = "first", frames: int = 13
) -> pd.DataFrame:
    """The shares behind `grid_figure`: a row a step."""
    tokens, rows = grid_tokens(run.config, kind, variable, side), []
    for step in some_steps(run, frames):
        known, new = grid_shares(grid(run.weights(step), tokens, run.config), run.config)
        rows.append({"step": step, "training pairs": known, "held out": new})
    return pd.DataFrame(rows).set_index("step")


# --- one neuron ----------------------------------------------------------------------------------------


def neuron_maps(weights: Weights, cfg: Config) -> tuple[Float[Tensor, "p p neuron"], fourier.Waves]:
    if cfg.p > MOST_NUMBERS:
        raise Refusal(f"p = {cfg.p} makes neuron maps too large to show: choose a run with p up to {MOST_NUMBERS}")
    maps = fourier.neuron_maps(weights, cfg)
    return maps, fourier.waves_of(maps)


def neuron_panels(map_: Float[Tensor, "p p"], k: int) -> go.Figure:
    """A neuron's pre-activation over (n, m), beside its best fit by a wave in n plus one in m of frequency k."""
    fit = fourier.fitted(map_, k)
    most = max(map_.abs().max().item(), fit.abs().max().item(), 1e-30)
    fig = make_subplots(1, 2, subplot_titles=["measured", f"cos + cos of frequency {k}"], horizontal_spacing=0.06)
    for column, values in ((1, map_), (2, fit)):
        hover = "n = %{y}, m = %{x}: %{z:.2f}<extra></extra>"
        z = values.float().numpy()
        fig.add_heatmap(z=z, coloraxis="coloraxis", hovertemplate=hover, row=1, col=column)
    bar = {"title": {"text": "pre-activation", "side": "right"}, "thickness": 10, "outlinewidth": 0}
    colour = {"colorscale": figures.DIVERGING, "cmin": -most, "cmax": most, "colorbar": bar}
    fig.update_layout(coloraxis=colour, height=430, margin_t=54, yaxis_scaleanchor="x", yaxis2_scaleanchor="x2")
    fig.update_xaxes(title_text="m", showgrid=False, constrain="domain")
    fig.update_yaxes(autorange="reversed", showgrid=False, constrain="domain")
    return fig.update_yaxes(title_text="n", row=1, col=1)


def neuron_figure(run: Run, frames: int = 11) -> go.Figure:
    """Live neurons of the last step from the worst fit to the best, with a slider."""
    maps, found = neuron_maps(run.weights(), run.config)
    if len(found.live):
        return neuron_slider(maps, found, min(frames, MOST_FRAMES))
    return neuron_panels(maps[..., 0], int(found.frequency[0]))
