"""One slider that moves every panel: what a run's parts do at each of some saved steps, as maps side by side.

A moment is all that the panels show of one step. The panels are maps, so that the slider only has to exchange their
values: it works in a rendered page without a kernel.
"""

from typing import NamedTuple

import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from plotly.subplots import make_subplots
from torch import Tensor

from mc_lib import errors, figures, model, routing, task
from mc_lib.config import KINDS, Config, Refusal
from mc_lib.evaluation import evaluation_sets
from mc_lib.model import Weights
from mc_lib.runs import Run

FIG_8 = "; ; a 40 ; j 18 ; ; ; k 9 + a 27 ="
TITLES = ("match of variables", "right, by side", "= to operands, layer 1", "score", "attention of = in one sequence")


class Moment(NamedTuple):
    """What the panels show of one step."""

    match: Float[Tensor, "variable variable"]
    cells: Float[Tensor, "variable side"]
    scores: Float[Tensor, "variable one"]
    operands: Float[Tensor, "kind side"]
    example: Float[Tensor, "layer pos"]


def example(cfg: Config, text: str = FIG_8) -> Int[Tensor, " pos"]:
    """The sequence of the paper's Figure 8, or, for other settings, the first one of the trained 1-variable set."""
    try:
        return task.parse(text, cfg)
    except Refusal:
        return evaluation_sets(cfg)["1-var train"][0]


def equals_attention(weights: Weights, tokens: Int[Tensor, " pos"]) -> Float[Tensor, "layer pos"]:
    """What `=` attends to in both layers; of several heads, the largest."""
    with torch.no_grad():
        traced = model.trace(weights, tokens[None])
    return torch.stack([traced.pattern1[0, :, -1].amax(0), traced.pattern2[0].amax(0)])


@torch.no_grad()
def moment(weights: Weights, cfg: Config, tokens: Int[Tensor, " pos"]) -> Moment:
    """All panels for these weights."""
    return Moment(
        errors.best_match(weights, cfg),
        routing.cell_accuracy(weights, cfg).T,
        routing.variable_scores(weights, cfg).amax(0)[:, None],
        routing.operand_attention(weights, cfg).T,
        equals_attention(weights, tokens),
    )


def moments(run: Run, steps: list[int], tokens: Int[Tensor, " pos"]) -> dict[int, Moment]:
    return {step: moment(run.weights(step), run.config, tokens) for step in steps}


def _values(found: Moment) -> list[list[list[float]]]:
    """The panels' values as a figure needs them; the match, which has no bound, to one digit."""
    digits = (0, 2, 2, 2, 2)
    return [panel.double().round(decimals=n).tolist() for panel, n in zip(found, digits, strict=True)]


def slider(found: dict[int, Moment], tokens: Int[Tensor, " pos"], cfg: Config) -> go.Figure:
    """All panels at the last of the steps, and a slider over the steps below them."""
    fig = make_subplots(
        rows=3, cols=2, row_heights=[0.56, 0.26, 0.18], column_widths=[0.62, 0.38], vertical_spacing=0.13,
        horizontal_spacing=0.14, specs=[[{}, {}], [{}, {}], [{"colspan": 2}, None]],
        subplot_titles=TITLES,
    )  # fmt: skip
    letters, last = list(cfg.letters), found[max(found)]
    every = torch.cat([panel.match.flatten() for panel in found.values()]).abs()
    most = float(every.double().quantile(0.995)) or 1.0
    low = min(float(panel.scores.min()) for panel in found.values())
    high = max(float(panel.scores.max()) for panel in found.values())
    share = {"zmin": 0, "zmax": 1, "colorscale": figures.SEQUENTIAL, "texttemplate": "%{z:.2f}"}
    both = {"zmin": -most, "zmax": most, "colorscale": figures.DIVERGING}
    reach = max(abs(low), abs(high)) or 1.0
    names = task.token_names(cfg)
    places = [f"{place}:{names[token]}" for place, token in enumerate(tokens.tolist())]
    kinds = [kind.replace("num", "n").replace("var", "v") for kind in KINDS]
    z = _values(last)
    hover = "%{y}, %{x}: %{z}<extra></extra>"
    plain = {"showscale": False, "xgap": 1, "ygap": 1, "hovertemplate": hover}
    fig.add_heatmap(z=z[0], x=letters, y=letters, **both, **plain, row=1, col=1)
    fig.add_heatmap(z=z[1], x=["first", "second"], y=letters, **share, **plain, row=1, col=2)
    scores = {"zmin": -reach, "zmax": reach, "colorscale": figures.DIVERGING}
    fig.add_heatmap(z=_turned(z[2]), x=letters, y=["="], **scores, **plain, row=2, col=2)
    fig.add_heatmap(z=_turned(z[3]), x=kinds, y=["first", "second"], **share, **plain, row=2, col=1)
    one = share | {"texttemplate": None}
    fig.add_heatmap(z=z[4], x=places, y=["layer 1", "layer 2"], **one, **plain, row=3, col=1)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="").update_xaxes(showgrid=False, ticks="")
    fig.update_xaxes(tickangle=-90, row=3, col=1)
    fig.update_xaxes(title_text="variable at a number", row=1, col=1)
    fig.update_yaxes(title_text="variable at =", row=1, col=1)
    fig.update_layout(sliders=[_steps(found)], height=860, margin={"t": 40, "b": 20}, showlegend=False)
    fig.update_annotations(font_size=12)
    return fig


def _turned(rows: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _steps(found: dict[int, Moment]) -> dict[str, object]:
    """A slider whose stops exchange the values of all maps."""
    stops = []
    for step, panel in found.items():
        z = _values(panel)
        new = [z[0], z[1], _turned(z[2]), _turned(z[3]), z[4]]
        stops.append({"label": f"{step}", "method": "restyle", "args": [{"z": new}, list(range(len(new)))]})
    shown = {"prefix": "step ", "font": {"size": 14}, "xanchor": "left"}
    return {"active": len(stops) - 1, "steps": stops, "currentvalue": shown, "pad": {"t": 70}, "ticklen": 0,
            "font": {"size": 9}}  # fmt: skip
