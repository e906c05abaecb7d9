"""The figures of the chapter on the induction head: each takes what `induction` and its neighbours measured."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from mc_lib import figures, task
from mc_lib.config import Config
from mc_lib.figures import BLUE, DIVERGING, GREEN, GREY, ORANGE, SEQUENTIAL
from mc_lib.induction import Match, assigned, groups

SHORT = 20  # places of a sequence that has room for every label
BARS = {"0-var": BLUE, "1-var": ORANGE, "2-var": GREEN}


def _plain(values: Tensor) -> np.ndarray:
    """Float32 with three decimals: what is drawn, and no more."""
    return np.round(values.double().numpy(), 3).astype(np.float32)


def _menu(labels: Sequence[str], arguments: Sequence[list]) -> dict:
    """A menu above the figure; each entry updates traces and layout."""
    buttons = [
        {"label": label, "method": "update", "args": args} for label, args in zip(labels, arguments, strict=True)
    ]
    return {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": True}


def _rows(fig: go.Figure) -> go.Figure:
    """Named rows from the top down, the names a little away from their bars."""
    return fig.update_yaxes(autorange="reversed", ticks="", ticksuffix="  ")


# --- attention -----------------------------------------------------------------------------------------


def attention(
    views: Mapping[str, tuple[list[str], Float[Tensor, "query key"], Float[Tensor, "query key"]]],
) -> go.Figure:
    """Both layers' attention on one sequence at a time, layer 1 on top; a menu chooses among the views.

    A view is its tokens' names and the two patterns."""
    fig = make_subplots(2, 1, subplot_titles=("layer 1", "layer 2"), vertical_spacing=0.11)
    arguments = []
    for index, (names, *patterns) in enumerate(views.values()):
        for row, pattern in enumerate(patterns, start=1):
            future = np.triu(np.ones(pattern.shape, dtype=bool), 1)
            hover = [[f"{q} (place {i}) → {k} (place {j})" for j, k in enumerate(names)] for i, q in enumerate(names)]
            short = len(names) <= SHORT  # else the page would be heavy
            fig.add_heatmap(
                z=np.where(future, np.nan, _plain(pattern)),
                text=hover if short else None,
                hovertemplate=("%{text}" if short else "place %{y} → place %{x}")
                + "<br>attention %{z:.2f}<extra></extra>",
                hoverongaps=False,
                coloraxis="coloraxis",
                xgap=1,
                ygap=1,
                visible=index == 0,
                row=row,
                col=1,
            )
        visible = [other == index for other in range(len(views)) for _ in range(2)]
        ticks = {f"{axis}.ticktext": names for axis in ("xaxis", "yaxis", "xaxis2", "yaxis2")}
        arguments.append([{"visible": visible}, ticks])
    names = next(iter(views.values()))[0]
    axis = {"tickvals": list(range(len(names))), "ticktext": names, "ticks": "", "showgrid": False, "tickangle": 0}
    axis |= {"tickfont": {"size": 8}} if len(names) > 2 * SHORT else {}
    fig.update_xaxes(**axis, title_text="key").update_yaxes(**axis, autorange="reversed", title_text="query")
    menu = _menu(list(views), arguments) | {"y": 1.06}
    fig.update_layout(height=820, margin={"t": 90}, updatemenus=[menu] if len(views) > 1 else [])
    return fig.update_layout(coloraxis={"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 1, "colorbar": {"thickness": 12}})


def masses(tables: Mapping[str, pd.DataFrame]) -> go.Figure:
    """The spread of the mass for each habit (colour) and set: median, middle half, and the middle 90%."""
    fig = go.Figure()
    for (name, table), colour in zip(tables.items(), (BLUE, GREEN, ORANGE), strict=True):
        fig.add_box(
            y=table["group"],
            q1=table["q25"],
            median=table["q50"],
            q3=table["q75"],
            lowerfence=table["q05"],
            upperfence=table["q95"],
            name=name,
            marker_color=colour,
            orientation="h",
            hoverinfo="x",
        )
    _rows(fig).update_xaxes(range=[0, 1], title_text="attention on the right places")
    return fig.update_layout(boxmode="group", height=120 + 52 * len(next(iter(tables.values()))))


# --- layer 1's scores ----------------------------------------------------------------------------------


def row_names(cfg: Config) -> list[str]:
    """A label for every row of [E; P]."""
    return task.token_names(cfg) + [f"P{i}" for i in range(cfg.length)]


def _outline(fig: go.Figure, name: str, rows: Tensor, columns: Tensor, colour: str) -> None:
    """An outline around a block of a heatmap with one cell a unit."""
    fig.add_shape(
        type="rect",
        x0=int(columns.min()) - 0.5,
        x1=int(columns.max()) + 0.5,
        y0=int(rows.min()) - 0.5,
        y1=int(rows.max()) + 0.5,
        line={"color": colour, "width": 3},
        name=name,
        showlegend=True,
    )


def score_table(score: Float[Tensor, "row row"], cfg: Config) -> go.Figure:
    """[E; P] QK1 [E; P]' with the blocks that the paper outlines."""
    names, blocks = row_names(cfg), groups(cfg)
    reach = float(score.abs().quantile(0.995))
    fig = go.Figure()
    fig.add_heatmap(
        z=_plain(score),
        x=names,
        y=names,
        zmid=0,
        zmin=-reach,
        zmax=reach,
        colorscale=DIVERGING,
        hovertemplate="query %{y}, key %{x}<br>score %{z:.2f}<extra></extra>",
    )
    every = blocks["numbers"].new_tensor(range(cfg.vocabulary, cfg.vocabulary + cfg.length))
    places, operands = blocks[assigned(cfg)], every[-3:-1]
    _outline(fig, "numbers → variables", blocks["numbers"], blocks["variables"], "#7B2D8B")
    _outline(fig, "places of assignments → variables", places, blocks["variables"], ORANGE)
    _outline(fig, "places → places", every, every, "#C1121F")
    _outline(fig, "= → places of the operands", blocks["="], operands, "#000000")
    parts = {"numbers": blocks["numbers"], "variables": blocks["variables"], "places": every}
    middle = {name: int(part.double().mean()) for name, part in parts.items()}
    ticks = {"type": "category", "tickvals": list(middle.values()), "showgrid": False}
    fig.update_xaxes(**ticks, ticktext=["numbers", "var.", "places"], title_text="key", tickangle=0)
    fig.update_yaxes(**ticks, ticktext=list(middle), title_text="query", autorange="reversed")
    return figures.square(fig).update_layout(height=680, margin={"t": 70})


def place_bars(score: Float[Tensor, " pos"]) -> go.Figure:
    """What the token `=` gives to each place as key; the operands' places stand out."""
    colours = [ORANGE if i in (len(score) - 3, len(score) - 2) else GREY for i in range(len(score))]
    fig = go.Figure(go.Bar(x=list(range(len(score))), y=_plain(score), marker_color=colours))
    fig.update_traces(hovertemplate="place %{x}: %{y:.2f}<extra></extra>")
    fig.update_xaxes(title_text="place (key)", dtick=1 if len(score) <= 16 else 5, ticks="")
    return fig.update_yaxes(title_text="score of =").update_layout(height=280)


def previous(score: Float[Tensor, "query key"]) -> go.Figure:
    """P QK1 P' among the places of assignments; left out is blank, and a dot marks each row's maximum."""
    z = _plain(score)
    fig = go.Figure()
    fig.add_heatmap(
        z=z,
        zmid=0,
        colorscale=DIVERGING,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertemplate="query place %{y}, key place %{x}<br>%{z:.2f}<extra></extra>",
    )
    rows = [i for i in range(len(z)) if not np.isnan(z[i]).all()]
    best = [int(np.nanargmax(z[i])) for i in rows]
    dot = {"symbol": "circle", "size": 9, "color": "#ffffff", "line": {"width": 2, "color": "#111111"}}
    fig.add_scatter(x=best, y=rows, mode="markers", marker=dot, name="row maximum", hoverinfo="skip", showlegend=True)
    axis = {"ticks": "", "showgrid": False, "dtick": 1 if len(z) <= 16 else 5}
    fig.update_xaxes(**axis, title_text="place of the key", range=[-0.5, len(z) - 0.5])
    fig.update_yaxes(**axis, title_text="place of the query", range=[len(z) - 0.5, -0.5])
    return figures.square(fig).update_layout(height=480)


# --- what scores are made of, and what is moved --------------------------------------------------------


def lifts(found: Mapping[str, Float[Tensor, "item term"]], terms: Sequence[str]) -> go.Figure:
    """Bars: what each term does, on average, to single the right keys out; lines are 95% intervals."""
    fig = go.Figure()
    for (name, lift), colour in zip(found.items(), (BLUE, ORANGE), strict=False):
        error = 1.96 * lift.std(0, correction=0) / len(lift) ** 0.5
        fig.add_bar(
            y=list(terms), x=_plain(lift.mean(0)), name=name, orientation="h", marker_color=colour,
            error_x={"array": _plain(error), "thickness": 1.5},
            hovertemplate="%{y}: %{x:.2f}<extra></extra>",
        )  # fmt: skip
    _rows(fig).update_xaxes(title_text="lift of the right keys (scaled score)")
    return fig.update_layout(barmode="group", height=120 + 46 * len(terms))


def cosines(found: Mapping[str, tuple[Tensor, Tensor]]) -> go.Figure:
    """The spread of a write's cosine with the remapped embeddings it ought to hold, and with all the others."""
    fig = go.Figure()
    for index, (name, colour) in enumerate((("asked for", ORANGE), ("all others", GREY))):
        values = [pair[index].double() for pair in found.values()]
        quantiles = np.array([[value.quantile(q).item() for q in (0.05, 0.25, 0.5, 0.75, 0.95)] for value in values])
        low, q1, median, q3, high = np.round(quantiles.T, 3)
        fig.add_box(
            y=list(found), q1=q1, median=median, q3=q3, lowerfence=low, upperfence=high,
            name=name, marker_color=colour, orientation="h", hoverinfo="x",
        )  # fmt: skip
    _rows(fig).update_xaxes(range=[-1, 1], title_text="cosine")
    return fig.update_layout(boxmode="group", height=320)


def match(found: Match, cfg: Config) -> go.Figure:
    """The match matrix, and beside each row its margin: the diagonal over the best other entry."""
    letters = list(cfg.letters)
    fig = make_subplots(1, 2, column_widths=[0.74, 0.26], shared_yaxes=True, horizontal_spacing=0.03)
    fig.add_heatmap(
        z=_plain(found.score),
        x=letters,
        y=letters,
        zmid=0,
        colorscale=DIVERGING,
        colorbar={"orientation": "h", "y": -0.14, "yanchor": "top", "len": 0.72, "x": 0, "xanchor": "left"},
        hovertemplate="asked %{y}, assigned %{x}<br>%{z:.0f}<extra></extra>",
        row=1,
        col=1,
    )
    colours = [BLUE if margin > 0 else ORANGE for margin in found.margin.tolist()]
    bars = {"marker_color": colours, "orientation": "h", "hovertemplate": "%{y}: margin %{x:.0f}<extra></extra>"}
    fig.add_bar(x=_plain(found.margin), y=letters, **bars, showlegend=False, row=1, col=2)
    fig.update_xaxes(showgrid=False, ticks="", row=1, col=1, title_text="variable before the number")
    fig.update_xaxes(title_text="margin", row=1, col=2, rangemode="tozero")
    fig.update_yaxes(autorange="reversed", ticks="", showgrid=False)
    return fig.update_yaxes(title_text="variable that = has got", row=1, col=1).update_layout(height=480)


# --- causes --------------------------------------------------------------------------------------------


def cuts(table: pd.DataFrame) -> go.Figure:
    """Right answers under every cut, by number of variables, with 95% intervals."""
    fig = go.Figure()
    for kind, part in table.groupby("kind", sort=False):
        error = {"array": part["high"] - part["share"], "arrayminus": part["share"] - part["low"], "symmetric": False}
        fig.add_bar(
            y=part["cut"], x=part["share"].round(4), name=kind, marker_color=BARS[str(kind)], orientation="h",
            error_x=error | {"thickness": 1.5}, hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        )  # fmt: skip
    _rows(fig).update_xaxes(range=[0, 1.02], title_text="answers right")
    return fig.update_layout(barmode="group", height=80 + 56 * table["cut"].nunique())


def swaps(table: pd.DataFrame) -> go.Figure:
    """What becomes of the answers under every swap: they stay, they follow the other variable, or neither."""
    fig = go.Figure()
    label = table["swap"] + " (" + table["kind"] + ")"
    shares = {"stays": table["stay"], "follows the other variable": table["follow"]}
    shares["neither"] = table["n"] - table["stay"] - table["follow"]
    for (name, hits), colour in zip(shares.items(), (BLUE, ORANGE, "#c3c9d1"), strict=True):
        bars = {"orientation": "h", "hovertemplate": "%{y}: %{x:.3f}<extra>" + name + "</extra>"}
        fig.add_bar(y=label, x=(hits / table["n"]).round(4), name=name, marker_color=colour, **bars)
    _rows(fig).update_xaxes(range=[0, 1], title_text="share of answers")
    return fig.update_layout(barmode="stack", height=110 + 26 * len(table), legend={"traceorder": "normal"})


def doses(table: pd.DataFrame) -> go.Figure:
    fig = go.Figure()
    for column, name, colour in (("stay", "stays", BLUE), ("follow", "follows the other variable", ORANGE)):
        fig.add_scatter(
            x=table["strength"], y=table[column].round(4), name=name, line_color=colour, mode="lines+markers"
        )
    fig.update_xaxes(title_text="strength of the swap")
    return fig.update_yaxes(title_text="share of answers", range=[-0.02, 1.02]).update_layout(height=340)
