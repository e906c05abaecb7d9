"""Figures of learning: measures over the steps of a run with its phases, and maps of what is answered right."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from mc_lib import errors, figures, phases, task
from mc_lib.config import KINDS, Config
from mc_lib.phases import Phases
from mc_lib.routing import score_names

SHADES = ("rgba(128,134,142,0.16)", "rgba(86,180,233,0.16)", "rgba(0,158,115,0.14)")
BUTTON = {"bgcolor": "#e9ebee", "bordercolor": "#9aa2ad", "font": {"color": "#20262e"}, "showactive": True}
LOG_TICKS = "D2"  # at 1, 2 and 5 of every decade
Style = Mapping[str, str]


def over_steps(
    lines: Mapping[str, tuple[pd.Series, Style]], marks: Phases, title: str, dots: bool = False
) -> go.Figure:
    """Lines over steps on a logarithmic axis (a button makes it linear), the phases shaded and named behind them."""
    fig = go.Figure()
    for name, (series, style) in lines.items():
        seen = series[series.index > 0]
        fig.add_scatter(
            x=seen.index.to_numpy(dtype=np.int32),
            y=seen.to_numpy(dtype=np.float32).round(4),
            name=name,
            mode="lines+markers" if dots else "lines",
            line={"width": 1.8, **style},
            hovertemplate=f"{name}<br>step %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    fig.update_xaxes(title_text="step", type="log", dtick=LOG_TICKS)
    return shade(fig.update_yaxes(title_text=title), marks)


def shade(fig: go.Figure, marks: Phases) -> go.Figure:
    """The phases behind a figure over steps, named above it, and its two buttons."""
    least = _least(fig)
    for place, (span, colour) in enumerate(zip(marks.spans, SHADES, strict=False)):
        start = max(span.start, least)
        fig.add_vrect(x0=start, x1=max(span.end, start), fillcolor=colour, line_width=0, layer="below")
        # On a linear axis a short phase has no room for its name: every second one stands a line higher.
        name = span.name + "<br> " * (place % 2)
        at, position = (span.end, "top left") if span == marks.spans[-1] else (start, "top right")
        fig.add_scatter(
            x=[at], y=[1], yaxis="y2", mode="text", text=[name], textposition=position, cliponaxis=False,
            textfont={"size": 12, "color": figures.GREY}, hoverinfo="skip", showlegend=False,
        )  # fmt: skip
    fig.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    buttons = [
        {
            "label": kind,
            "method": "relayout",  # the spacing of ticks goes with the type: a linear axis cannot take the other's
            "args": [{"xaxis.type": kind, "xaxis.dtick": ticks, "xaxis.autorange": True}],
        }
        for kind, ticks in (("log", LOG_TICKS), ("linear", None))
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 1, "xanchor": "right", "pad": {"r": 0}}
    fig.update_layout(updatemenus=[menu | BUTTON | {"y": -0.14, "yanchor": "top"}])
    legend = {"y": 1.13, "yanchor": "bottom", "font": {"size": 11}}
    return fig.update_layout(height=480 + 8 * len(fig.data), legend=legend, margin={"t": 30, "b": 30})


def _least(fig: go.Figure) -> int:
    """The first step drawn."""
    return min((int(trace.x[0]) for trace in fig.data if trace.mode != "text" and len(trace.x)), default=1)


def shares(rows: Sequence[tuple[str, float, float, float, str]], title: str = "share right") -> go.Figure:
    """A point a row (label, share, low, high, colour) with its interval."""
    fig = go.Figure()
    labels, share, low, high, colours = zip(*rows, strict=True)
    error = {"array": np.subtract(high, share), "arrayminus": np.subtract(share, low), "symmetric": False}
    fig.add_scatter(
        x=share, y=labels, error_x=error | {"thickness": 1.5, "color": figures.GREY}, mode="markers",
        marker={"color": colours, "size": 9}, showlegend=False, hovertemplate="%{y}: %{x:.3f}<extra></extra>",
    )  # fmt: skip
    fig.update_xaxes(title_text=title).update_yaxes(autorange="reversed", ticks="")
    return fig.update_layout(height=90 + 26 * len(rows))


PAIR_COLOURS = ("#c3c9d1", "#b5d9ef")


def pair_map(maps: Mapping[int, Float[Tensor, "p p"]], cfg: Config) -> go.Figure:
    """Held-out and training pairs, and on them every pair that is not always right; a menu chooses the kind."""
    held_out = task.held_out_mask(cfg).long().numpy()
    names = ["training", "held out"]
    fig = figures.category_map(held_out, names, PAIR_COLOURS, "n = %{y}, m = %{x}")
    below = len(fig.data)
    for kind, accuracy in maps.items():
        rows, columns = (accuracy < 1).nonzero(as_tuple=True)
        colour = {"color": (1 - accuracy[rows, columns]).numpy(), "cmin": 0, "cmax": 1}
        scale = {"colorscale": [[0, "#fbe3d2"], [1, figures.ORANGE]], "colorbar": {"title": "wrong", "thickness": 12}}
        fig.add_scatter(
            x=columns.numpy().astype(np.int16), y=rows.numpy().astype(np.int16), mode="markers", showlegend=False,
            marker={"symbol": "square", "size": 7, "line": {"width": 1, "color": "#5a2a00"}} | colour | scale,
            visible=kind == next(iter(maps)), name=KINDS[kind],
            hovertemplate="n = %{y}, m = %{x}<br>%{marker.color:.0%} wrong<extra></extra>",
        )  # fmt: skip
    shown = [[True] * below + [kind == chosen for kind in maps] for chosen in maps]
    buttons = [
        {"label": KINDS[kind], "method": "restyle", "args": [{"visible": visible}]}
        for kind, visible in zip(maps, shown, strict=True)
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.09}
    fig.update_layout(updatemenus=[menu | BUTTON | {"yanchor": "bottom"}], height=640, margin={"t": 40})
    fig.update_xaxes(title_text="second number m").update_yaxes(title_text="first number n")
    return figures.square(fig)


def operand_map(grids: Mapping[str, Float[Tensor, "first second"]], cfg: Config) -> go.Figure:
    """Share right by what stands first and second; restricted places are framed, buttons choose the moment."""
    names = ["n", *cfg.letters]
    fig = go.Figure()
    for place, grid in enumerate(grids.values()):
        fig.add_heatmap(
            z=grid.numpy().round(2), x=names, y=names, zmin=0, zmax=1, visible=place == 0, xgap=1, ygap=1,
            colorbar={"title": "right"}, hovertemplate="%{y} + %{x}: %{z:.2f}<extra></extra>",
        )  # fmt: skip
    edge, size = {"line": {"color": figures.ORANGE, "width": 2}, "type": "rect"}, len(names)
    for letter in cfg.not_first:
        at = names.index(letter)
        fig.add_shape(**edge, x0=-0.5, x1=size - 0.5, y0=at - 0.5, y1=at + 0.5)
    for letter in cfg.not_second:
        at = names.index(letter)
        fig.add_shape(**edge, x0=at - 0.5, x1=at + 0.5, y0=-0.5, y1=size - 0.5)
    buttons = [
        {"label": name, "method": "restyle", "args": [{"visible": [name == other for other in grids]}]}
        for name in grids
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.04}
    fig.update_layout(updatemenus=[menu | BUTTON | {"yanchor": "bottom"}], height=520, margin={"t": 60})
    fig.update_xaxes(title_text="second operand", showgrid=False)
    return figures.square(fig.update_yaxes(title_text="first operand", autorange="reversed", showgrid=False))


def class_styles() -> dict[str, Style]:
    """Colours of the classes of number pairs, as on the page of the task."""
    colours = (figures.GREY, figures.SKY, figures.BLUE, figures.ORANGE)
    return {name: {"color": colour} for name, colour in zip(errors.CLASSES, colours, strict=True)}


def cell_history(metrics: pd.DataFrame, cells: Sequence[str], marks: Phases, columns: int = 110) -> go.Figure:
    """Accuracy of each cell over the steps, as a map; lines mark where the jumps begin."""
    table = metrics.set_index("step")[list(cells)]
    table = table.iloc[np.unique(np.linspace(0, len(table) - 1, min(columns, len(table))).round().astype(int))]
    fig = go.Figure()
    fig.add_heatmap(
        z=table.T.to_numpy().round(2).astype(np.float32), x=table.index.to_numpy(dtype=np.int32), y=list(cells),
        zmin=0, zmax=1, ygap=1, colorbar={"title": "right"}, hovertemplate="%{y}, step %{x}: %{z:.2f}<extra></extra>",
    )  # fmt: skip
    for name, rise in (("first jump", marks.first), ("second jump", marks.second)):
        if rise:
            fig.add_vline(x=rise.begins, line={"color": figures.ORANGE, "width": 2}, annotation_text=name)
    fig.update_xaxes(title_text="step", showgrid=False)
    return fig.update_yaxes(autorange="reversed", showgrid=False, dtick=1).update_layout(height=100 + 19 * len(cells))


def before_and_after(maps: Mapping[str, Float[Tensor, "row column"]], names: Sequence[str]) -> go.Figure:
    """The same map at several moments, chosen by buttons, in one diverging scale."""
    most = float(torch.cat([one.flatten() for one in maps.values()]).abs().max()) or 1.0
    fig = go.Figure()
    for place, one in enumerate(maps.values()):
        fig.add_heatmap(
            z=one.double().round(decimals=1).tolist(), x=list(names), y=list(names), zmin=-most, zmax=most, xgap=1,
            ygap=1, colorscale=figures.DIVERGING, visible=place == 0, colorbar={"title": "score"},
            hovertemplate="%{y} at =, %{x} at a number: %{z}<extra></extra>",
        )  # fmt: skip
    buttons = [
        {"label": name, "method": "restyle", "args": [{"visible": [name == other for other in maps]}]} for name in maps
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.04}
    fig.update_layout(updatemenus=[menu | BUTTON | {"yanchor": "bottom"}], height=500, margin={"t": 60})
    fig.update_xaxes(title_text="variable at a number", showgrid=False)
    return figures.square(fig.update_yaxes(title_text="variable at =", autorange="reversed", showgrid=False))


def score_lines(metrics: pd.DataFrame, cfg: Config) -> dict[str, tuple[pd.Series, dict[str, str]]]:
    """Lines for `over_steps`: every restricted variable's layer-1 score, and the range of all others'; {} without."""
    restricted = cfg.not_second + cfg.not_first
    others = [name for name in score_names(cfg) if name[-1] not in restricted and name in metrics]
    if not others:
        return {}
    by_step, grey = metrics.set_index("step")[others], {"color": figures.GREY, "dash": "dot"}
    lines = {"highest of the others": (by_step.max(axis=1), grey), "lowest of the others": (by_step.min(axis=1), grey)}
    for colour, v in zip(figures.PALETTE * 4, restricted, strict=False):
        label = f"{v} (never {'second' if v in cfg.not_second else 'first'})"
        lines[label] = (phases.curve(metrics, f"qk1_score_{v}"), {"color": colour})
    return lines
