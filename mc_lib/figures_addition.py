"""The figures of the chapter on addition that are more than a few lines: ranges of samples, bars of shares, neurons."""

from collections.abc import Sequence

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from mc_lib import figures, fourier
from mc_lib.fourier import Waves
from mc_lib.intervals import wilson

MOST_CELLS = 100_000  # of all maps behind one slider, so that a page stays light


def ranges(rows: Sequence[tuple[str, Tensor, str]], title: str) -> go.Figure:
    """A row a sample (label, values, colour): its mean, where 90% of it lies (bar), and all of it (line)."""
    fig = go.Figure()
    for label, values, colour in rows:
        least, low, high, most = values.double().quantile(torch.tensor([0, 0.05, 0.95, 1]).double()).tolist()
        hover = f"{label}<br>mean {values.mean():.3f}<br>90% in {low:.3f} .. {high:.3f}"
        hover += f"<br>all in {least:.3f} .. {most:.3f}<br>n = {len(values)}<extra></extra>"
        shown = {"y": [label, label], "mode": "lines", "hoverinfo": "skip", "showlegend": False}
        fig.add_scatter(x=[least, most], line={"color": colour, "width": 1.5}, **shown)
        fig.add_scatter(x=[low, high], line={"color": colour, "width": 11}, opacity=0.45, **shown)
        mean = {"color": colour, "size": 11, "line": {"color": "white", "width": 1.5}}
        fig.add_scatter(
            x=[values.mean().item()], y=[label], mode="markers", marker=mean, hovertemplate=hover, showlegend=False
        )
    fig.update_xaxes(title_text=title, range=[-1.06, 1.06], dtick=0.5)
    fig.update_yaxes(autorange="reversed", ticks="")
    return fig.update_layout(height=90 + 38 * len(rows))


def shares(rows: Sequence[tuple[str, int, int, str]], title: str) -> go.Figure:
    """A bar a row (label, hits, n, colour) with the 95% interval of its share."""
    fig = go.Figure()
    for label, hits, n, colour in rows:
        low, high = wilson(hits, n)
        error = {"array": [high - hits / n], "arrayminus": [hits / n - low], "symmetric": False}
        error |= {"thickness": 1.5, "color": figures.GREY}
        fig.add_bar(
            x=[hits / n], y=[label], orientation="h", marker_color=colour, error_x=error, width=0.62,
            showlegend=False, hovertemplate=f"{label}<br>{hits} of {n}<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(title_text=title, range=[0, 1.02])
    fig.update_yaxes(autorange="reversed", ticks="")
    return fig.update_layout(height=90 + 38 * len(rows))


def spectra(share: dict[str, Float[Tensor, " frequency"]]) -> go.Figure:
    """A panel a station: share of power at each frequency; the fewest that carry .9 are filled."""
    titles = [f"<b>{name}</b>: {len(fourier.carriers(x))} carry .9" for name, x in share.items()]
    fig = make_subplots(len(share), 1, shared_xaxes=True, vertical_spacing=0.075, subplot_titles=titles)
    for row, x in enumerate(share.values(), start=1):
        carried = fourier.carriers(x)
        colours = [figures.BLUE if k in carried else "#b9bfc8" for k in range(1, len(x) + 1)]
        hover = "frequency %{x}<br>share %{y:.3f}<extra></extra>"
        look = {"marker_color": colours, "hovertemplate": hover, "showlegend": False}
        fig.add_bar(x=list(range(1, len(x) + 1)), y=x.tolist(), row=row, col=1, **look)
    fig.update_annotations(font_size=12, x=0, xanchor="left")
    fig.update_xaxes(title_text="frequency k", row=len(share), col=1)
    fig.update_yaxes(nticks=3, rangemode="tozero")
    return fig.update_layout(height=110 * len(share) + 60, bargap=0.15)


def _percent(map_: Float[Tensor, "p p"], unit: float) -> Tensor:
    return (100 * map_ / unit).round().to(torch.int8)


def neuron_slider(maps: Float[Tensor, "p p neuron"], found: Waves, count: int = 11) -> go.Figure:
    """Neurons from the worst fit to the best: the map as measured, and the best wave of one frequency beside it."""
    count = max(2, min(count, MOST_CELLS // maps[..., 0].numel()))
    fig = make_subplots(1, 2, subplot_titles=["measured", "one frequency"], horizontal_spacing=0.04)
    labels = []
    for place, neuron in enumerate(neurons := fourier.quantile_neurons(found, count)):
        map_, k = maps[..., neuron], int(found.frequency[neuron])
        fit = fourier.fitted(map_, k)
        unit = max(map_.abs().max().item(), fit.abs().max().item(), 1e-30)
        labels.append(f"neuron {neuron}: k = {k}, R² = {found.best[neuron]:.2f}")
        for column, values in ((1, map_), (2, fit)):
            fig.add_heatmap(
                z=_percent(values, unit).numpy(), coloraxis="coloraxis", visible=place == len(neurons) - 1,
                hovertemplate="n = %{y}, m = %{x}<br>%{z}% of its largest<extra></extra>", row=1, col=column,
            )  # fmt: skip
    steps = [
        {"label": label, "method": "restyle", "args": ["visible", [i // 2 == place for i in range(2 * len(labels))]]}
        for place, label in enumerate(labels)
    ]
    now = {"xanchor": "left", "prefix": "", "font": {"size": 14, "color": figures.GREY}}
    slider = {"steps": steps, "active": len(steps) - 1, "currentvalue": now, "font": {"color": "rgba(0,0,0,0)"}}
    slider |= {"ticklen": 4, "pad": {"t": 46, "b": 0}, "x": 0, "len": 1}
    bar = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.13, "yanchor": "bottom", "len": 0.7}
    bar |= {"thickness": 10, "outlinewidth": 0, "ticksuffix": "%"}
    colour = {"colorscale": figures.DIVERGING, "cmin": -100, "cmax": 100, "colorbar": bar}
    fig.update_layout(sliders=[slider], coloraxis=colour, height=480)
    fig.update_xaxes(showgrid=False, constrain="domain")
    fig.update_yaxes(autorange="reversed", showgrid=False, constrain="domain")
    for axis, anchor in (("yaxis", "x"), ("yaxis2", "x2")):
        fig.update_layout({axis: {"scaleanchor": anchor}})
    return fig.update_yaxes(showticklabels=False, row=1, col=2)


def weight_rows(weight: Float[Tensor, "row pos"], rows: Sequence[str], names: Sequence[str]) -> go.Figure:
    """Attention weights of one query: a row a head, a column a position, labelled by its token."""
    hover = "%{y}: weight %{z:.2f} on position %{x}<extra></extra>"
    look = {"colorscale": figures.SEQUENTIAL, "zmin": 0, "xgap": 2, "ygap": 2, "hovertemplate": hover}
    fig = go.Figure(go.Heatmap(z=weight.numpy(), y=rows, **look))
    fig.update_xaxes(tickvals=list(range(len(names))), ticktext=names, ticks="", tickangle=0, showgrid=False)
    fig.update_yaxes(autorange="reversed", ticks="", showgrid=False)
    return fig.update_layout(height=130 + 40 * len(rows))


def margin_map(margin: Float[Tensor, "p p"], wrong: Sequence[tuple[int, int, int]]) -> go.Figure:
    """The isolated circuit's margin over all pairs, its errors marked."""
    bound, p = margin.abs().max().item(), len(margin)
    look = {"colorscale": figures.DIVERGING, "zmin": -bound, "zmax": bound, "colorbar_title": "margin"}
    hover = "%{y} + %{x}: margin %{z:.1f}<extra></extra>"
    fig = go.Figure(go.Heatmap(z=margin.float().numpy(), hovertemplate=hover, **look))
    cross = {"symbol": "x-open", "color": "#111111", "size": 9, "line": {"width": 2}}
    places = {"x": [m for _, m, _ in wrong], "y": [n for n, _, _ in wrong]}
    fig.add_scatter(mode="markers", marker=cross, hovertemplate="%{y} + %{x}: wrong<extra></extra>", **places)
    fig.update_xaxes(title_text="m", range=[-0.5, p - 0.5], showgrid=False)
    fig.update_yaxes(title_text="n", range=[p - 0.5, -0.5], showgrid=False)
    return figures.square(fig).update_layout(height=540)


def fits(best: Float[Tensor, " live"], additive: Float[Tensor, " live"]) -> go.Figure:
    """How many neurons are explained how well, by one frequency and by any sum of two functions."""
    fig = go.Figure()
    bins = {"start": 0, "end": 1.0001, "size": 0.05}
    for values, name, colour in (
        (best, "one frequency", figures.BLUE),
        (additive, "any f(n) + g(m)", figures.YELLOW),
    ):
        fig.add_histogram(x=values.float().numpy(), xbins=bins, name=name, marker_color=colour, opacity=0.75)
    fig.update_xaxes(title_text="R² of the best fit", range=[0, 1.01]).update_yaxes(title_text="live neurons")
    return fig.update_layout(barmode="overlay", height=360, bargap=0.03)


def phase_scatter(phases: fourier.Phases, found: Waves) -> go.Figure:
    """Each live neuron's phase as read and as written, in turns; the colour is how well it is one wave."""
    read, written = ((x / (2 * torch.pi)).float().numpy() for x in phases)
    bar = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "thickness": 10, "len": 0.6, "outlinewidth": 0}
    bar |= {"title": {"text": "R² of the fit", "side": "top"}}
    fit = {"color": found.best[found.live].float().numpy(), "cmin": 0, "cmax": 1, "size": 6, "colorbar": bar}
    fig = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": figures.GREY, "width": 1}))
    fig.add_scatter(
        x=read,
        y=written,
        mode="markers",
        text=[f"neuron {i}" for i in found.live.tolist()],
        marker=fit | {"colorscale": figures.SEQUENTIAL},
        hovertemplate="%{text}: reads %{x:.2f}, writes %{y:.2f}<extra></extra>",
    )
    fig.update_xaxes(title_text="2φ as read, in turns", range=[-0.02, 1.02])
    fig.update_yaxes(title_text="phase as written, in turns", range=[-0.02, 1.02])
    return figures.square(fig).update_layout(height=480, showlegend=False)
