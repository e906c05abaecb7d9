"""Figures of many runs: when the jumps come, what the accuracies do, which claims hold, and the paper's sweeps."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mc_lib import figures, many, phases
from mc_lib.claim import VERDICTS
from mc_lib.evaluation import NINE
from mc_lib.figures_learning import BUTTON, LOG_TICKS
from mc_lib.many import EVENTS, FATES, Seed

FATE_COLOURS = dict(zip(FATES, (figures.GREEN, figures.YELLOW, figures.PINK), strict=True))
EVENT_COLOURS = dict(zip(EVENTS, (figures.ORANGE, figures.BLUE, figures.GREEN), strict=True))
VERDICT_COLOURS = dict(zip(VERDICTS.values(), (figures.BLUE, figures.ORANGE, "#dfe3e8"), strict=True))
RELEASED = (5400, 14900)  # the authors' run: the steps at which the two accuracies first pass 90%
THIN = 110  # points of a curve that is one of many


def _clear(colour: str, share: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def thinned(series: pd.Series, points: int = THIN) -> pd.Series:
    """As many of its steps as are needed to draw it on a logarithmic axis, the first and the last among them."""
    series = series[series.index > 0]
    if len(series) <= points:
        return series
    steps = series.index.to_numpy(dtype=float)
    wanted = np.geomspace(steps[0], steps[-1], points)
    return series.iloc[np.unique(np.abs(steps[None] - wanted[:, None]).argmin(axis=1))]


def _y(series: pd.Series) -> np.ndarray:
    return series.to_numpy(dtype=np.float32).round(3)


def survival(tables: Mapping[str, pd.DataFrame]) -> go.Figure:
    """The share of seeds still waiting for each event, over steps, with intervals as bands."""
    fig = go.Figure()
    least = min((int(table.index[1]) for table in tables.values() if len(table) > 2), default=100)
    for event, table in tables.items():
        table = table.rename(index={0: least // 2})
        colour, steps = EVENT_COLOURS[event], table.index.to_numpy(dtype=np.int32)
        edge = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, "legendgroup": event}
        edge |= {"line": {"shape": "hv", "width": 0}}
        fig.add_scatter(x=steps, y=_y(table.high), **edge)
        fig.add_scatter(x=steps, y=_y(table.low), fill="tonexty", fillcolor=_clear(colour, 0.13), **edge)
        fig.add_scatter(
            x=steps, y=_y(table.share), name=event, mode="lines", legendgroup=event, customdata=table.left,
            line={"shape": "hv", "color": colour, "width": 2.5},
            hovertemplate=f"{event}: after step %{{x}} %{{customdata}} seeds wait<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(title_text="step", type="log", dtick=LOG_TICKS)
    return fig.update_yaxes(title_text="share of seeds waiting", range=[-0.03, 1.03])


def spaghetti(seeds: Sequence[Seed]) -> go.Figure:
    """Each seed's accuracy as a thin line, coloured by its fate, with median and quartiles; a menu picks the set."""
    fig, owner = go.Figure(), []
    for name in NINE:
        bands = many.spread(seeds, name)
        if bands.empty:
            continue
        before = len(fig.data)
        _add_band(fig, bands)
        for seed in seeds:
            curve = thinned(phases.curve(seed.run.metrics, name))
            fig.add_scatter(
                x=curve.index.to_numpy(dtype=np.int32), y=_y(curve), mode="lines", showlegend=False,
                line={"color": FATE_COLOURS[seed.fate], "width": 1}, opacity=0.75,
                hovertemplate=f"seed {seed.number}, step %{{x}}: %{{y:.3f}}<extra></extra>",
            )  # fmt: skip
        owner += [name] * (len(fig.data) - before)
    shown = phases.SECOND if phases.SECOND in owner else owner[-1]  # settings without restricted places lack it
    for trace, name in zip(fig.data, owner, strict=True):
        trace.visible = name == shown
    for fate in dict.fromkeys(seed.fate for seed in seeds):
        fig.add_scatter(x=[None], y=[None], mode="lines", name=fate, line={"color": FATE_COLOURS[fate]})
    extra = len(fig.data) - len(owner)
    _menu(fig, {name: {"visible": [n == name for n in owner] + [True] * extra} for name in dict.fromkeys(owner)}, shown)
    fig.update_xaxes(title_text="step", type="log", dtick=LOG_TICKS)
    return fig.update_yaxes(title_text="share right", range=[-0.03, 1.03]).update_layout(height=520)


def _add_band(fig: go.Figure, bands: pd.DataFrame) -> None:
    """Quartiles as a band and the median as a line."""
    low, median, high = (thinned(bands[share]) for share in sorted(bands))
    x = low.index.to_numpy(dtype=np.int32)
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    fig.add_scatter(x=x, y=_y(high), **edge)
    fig.add_scatter(x=x, y=_y(low), fill="tonexty", fillcolor=_clear(figures.GREY, 0.25), **edge)
    line = {"color": figures.GREY, "width": 3.5}
    fig.add_scatter(x=x, y=_y(median), mode="lines", line=line, name="median and quartiles",
                    hovertemplate="median, step %{x}: %{y:.3f}<extra></extra>")  # fmt: skip


def _menu(fig: go.Figure, choices: Mapping[str, Mapping[str, object]], chosen: str) -> None:
    """A dropdown above the figure; each choice restyles all traces."""
    buttons = [{"label": name, "method": "restyle", "args": [dict(values)]} for name, values in choices.items()]
    place = {"x": 0, "xanchor": "left", "y": 1.03, "yanchor": "bottom"}
    menu = {"buttons": buttons, "active": list(choices).index(chosen), **place, **BUTTON}
    fig.update_layout(updatemenus=[menu], margin={"t": 60}, legend={"y": -0.2, "yanchor": "top", "font": {"size": 11}})


def claims_map(verdicts: pd.DataFrame, values: pd.DataFrame, seeds: Sequence[Seed]) -> go.Figure:
    """Claims (rows) by seeds (columns), those with one fate side by side; hover tells what was measured."""
    ordered = sorted(seeds, key=lambda seed: (FATES.index(seed.fate), seed.number))
    runs, labels = [seed.run.name for seed in ordered], list(VERDICT_COLOURS)
    cells = verdicts[runs].map(labels.index).to_numpy()
    text = values.loc[verdicts.index, runs].map(lambda told: told if len(told) < 90 else told[:88] + "…")
    fig = figures.category_map(
        cells, labels, list(VERDICT_COLOURS.values()), "%{y}, seed %{x}", list(verdicts.index),
        [str(seed.number) for seed in ordered], gap=1,
    )  # fmt: skip
    for trace in fig.data:
        mine = cells == labels.index(trace.name)
        told = np.where(mine, text.to_numpy(), "")
        trace.update(
            customdata=told, hovertemplate=f"%{{y}}, seed %{{x}}<br>{trace.name}: %{{customdata}}<extra></extra>"
        )
    fig.update_xaxes(type="category", title_text="seed", dtick=1, tickangle=0)
    fig.update_yaxes(dtick=1, ticks="")
    counts = [sum(seed.fate == fate for seed in seeds) for fate in FATES]
    for edge in np.cumsum(counts)[:-1]:
        if 0 < edge < len(seeds):
            fig.add_vline(x=edge - 0.5, line={"color": figures.GREY, "width": 3})
    return fig.update_layout(height=120 + 19 * len(verdicts), legend={"traceorder": "normal"})


def jumps(seeds: Sequence[Seed]) -> go.Figure:
    """Each seed's two jumps as a point; open points at the edge have yet to come; the authors' run is a star."""
    fig, last = go.Figure(), max(seed.marks.last for seed in seeds)
    edge = last * 1.25
    for fate, colour in FATE_COLOURS.items():
        group = [seed for seed in seeds if seed.fate == fate]
        if not group:
            continue
        places: dict[tuple[float, float], list[str]] = {}
        for seed in group:
            places.setdefault((seed.steps["jump 1"] or edge, seed.steps["jump 2"] or edge), []).append(str(seed.number))
        x, y = zip(*places, strict=True)
        fig.add_scatter(
            x=x, y=y, mode="markers+text", name=fate, text=[", ".join(numbers) for numbers in places.values()],
            textposition="top center", textfont={"size": 10}, cliponaxis=False,
            marker={"color": colour, "size": 10, "symbol": "circle" if fate == FATES[0] else "circle-open"},
            hovertemplate="seed %{text}: jump 1 at %{x}, jump 2 at %{y}<extra></extra>",
        )  # fmt: skip
    star = {"symbol": "star", "size": 14, "color": figures.ORANGE}
    fig.add_scatter(x=RELEASED[:1], y=RELEASED[1:], mode="markers", name="the released run", marker=star,
                    hovertemplate="released run: %{x}, %{y}<extra></extra>")  # fmt: skip
    low = 0.8 * min([RELEASED[0], *(seed.steps["jump 1"] or edge for seed in seeds)])
    line = {"color": figures.GREY, "dash": "dot"}
    fig.add_scatter(x=[low, edge], y=[low, edge], mode="lines", line=line, name="both at once", hoverinfo="skip")
    span = [np.log10(low), np.log10(edge * 1.06)]
    fig.update_xaxes(title_text="step of jump 1", type="log", dtick=LOG_TICKS, range=span)
    return fig.update_yaxes(title_text="step of jump 2", type="log", dtick=LOG_TICKS, range=span)


def frequency_map(shares: pd.DataFrame) -> go.Figure:
    """Share of the embedding's power by frequency, a row a seed."""
    fig = go.Figure()
    fig.add_heatmap(
        z=(100 * shares).to_numpy().round(1).astype(np.float32), x=list(shares.columns),
        y=[f"seed {seed}" for seed in shares.index], xgap=1, ygap=1, colorbar={"title": "%"},
        hovertemplate="%{y}, frequency %{x}: %{z:.1f}% of the power<extra></extra>",
    )  # fmt: skip
    fig.update_xaxes(title_text="frequency", showgrid=False)
    return fig.update_yaxes(autorange="reversed", showgrid=False, dtick=1).update_layout(height=120 + 19 * len(shares))


def story(seeds: Sequence[Seed]) -> go.Figure:
    """The nine accuracies of one seed with its two jumps; a menu picks the seed."""
    fig, choices, names = go.Figure(), {}, [n for n in NINE if len(phases.curve(seeds[0].run.metrics, n))]
    for seed in seeds:
        curves = [thinned(phases.curve(seed.run.metrics, name), 80) for name in names]  # lists weigh more than arrays
        x = [curve.index.to_numpy(dtype=np.int32).tolist() for curve in curves]
        y = [np.round(curve.to_numpy(dtype=float), 3).tolist() for curve in curves]
        for event in EVENTS[:2]:
            at = seed.steps[event]
            x.append([at, at] if at else [None, None])
            y.append([0, 1])
        choices[f"seed {seed.number}: {seed.fate}"] = {"x": x, "y": y}
    first = next(iter(choices))
    for name, x, y in zip(names, choices[first]["x"], choices[first]["y"], strict=False):
        fig.add_scatter(x=x, y=y, name=name, mode="lines", line={"width": 1.8, **figures.set_style(name)},
                        hovertemplate=f"{name}<br>step %{{x}}: %{{y:.3f}}<extra></extra>")  # fmt: skip
    for event, x in zip(EVENTS[:2], choices[first]["x"][len(names) :], strict=True):
        line = {"color": EVENT_COLOURS[event], "width": 1.5, "dash": "longdash"}
        fig.add_scatter(x=x, y=[0, 1], name=event, mode="lines", line=line, hoverinfo="skip")
    _menu(fig, choices, first)
    fig.update_xaxes(title_text="step", type="log", dtick=LOG_TICKS)
    fig.update_yaxes(title_text="share right", range=[-0.03, 1.03])
    return fig.update_layout(height=600)


# --- the paper's Figure 3 ------------------------------------------------------------------------------

PART_COLOURS = (figures.GREY, figures.SKY, figures.BLUE, figures.ORANGE)


def sweep(parts: Mapping[str, pd.DataFrame], level: float, title: str) -> go.Figure:
    """Share right by what is swept, each part with its intervals; a line marks the level."""
    fig = go.Figure()
    for (name, points), colour in zip(parts.items(), PART_COLOURS, strict=True):
        error = {"array": points.high - points.share, "arrayminus": points.share - points.low, "symmetric": False}
        whole = colour == PART_COLOURS[0]
        fig.add_scatter(
            x=points.index, y=_y(points.share), name=name, mode="lines+markers", customdata=points.n,
            line={"color": colour, "width": 3.5 if whole else 1.2, "dash": "solid" if whole else "dot"},
            marker={"size": 8 if whole else 5}, error_y=error | {"thickness": 1, "width": 2},
            hovertemplate=f"{name}<br>%{{x:.3f}}: %{{y:.3f}} of n = %{{customdata:,}}<extra></extra>",
        )  # fmt: skip
    fig.add_hline(y=level, line={"color": figures.GREY, "dash": "dash", "width": 1})
    fig.update_xaxes(title_text=title)
    return fig.update_yaxes(title_text="share right", range=[-0.03, 1.05]).update_layout(height=460)
