"""Figures of the one-step theorem: scores by role, matrices, remainders, step sizes, and the two explorers' panels."""

import html
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from mc_lib import figures
from mc_lib.theory_bridge import Snapshot
from mc_lib.theory_more import SampleError, Step
from mc_lib.theory_sweeps import KINDS, Mean, SweepPoint
from mc_lib.theory_views import MASSES, ROLES, Example, Profile

KIND_NAMES = ("0-var", "1-var", "2-var")
TERM_COLOURS = (figures.GREEN, figures.SKY, figures.YELLOW, figures.PINK, figures.GREY)
MASS_COLOURS = dict(zip(MASSES, (figures.PINK, figures.YELLOW, figures.SKY, figures.GREY), strict=True))
BOUND = {"numbers": "V / p", "slots": "V / (T-5)", "pads": "2 eps V (T-6)", "logits": "from beta"}
BOUND_COLOURS = dict(zip(BOUND, (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK), strict=True))
AXES = {"p": "p", "length": "T", "variables": "V", "lam": "lambda", "beta": "beta"}
PLAIN = {"showscale": False, "xgap": 1, "ygap": 1}
SLIDER = {"font": {"size": 9}, "ticklen": 0, "pad": {"t": 50}}


def examples(found: Sequence[tuple[str, Example]]) -> go.Figure:
    """Attention of `=` in some sequences, before and after the step."""
    fig = make_subplots(rows=len(found), cols=1, subplot_titles=[name for name, _ in found], vertical_spacing=0.4)
    for row, (_, seen) in enumerate(found, start=1):
        fig.add_heatmap(
            z=np.round([seen.before, seen.after], 3), x=seen.labels, y=["before", "after"], zmin=0, zmax=1,
            texttemplate="%{z:.2f}", textfont={"size": 10}, hovertemplate="%{y}, %{x}: %{z}<extra></extra>",
            colorscale=figures.SEQUENTIAL, row=row, col=1, **PLAIN,
        )  # fmt: skip
    fig.update_yaxes(autorange="reversed", ticks="", showgrid=False).update_xaxes(ticks="", showgrid=False)
    return fig.update_xaxes(tickangle=-60).update_layout(height=90 + 170 * len(found), margin={"t": 40})


def terms(gains: Mapping[str, Float[Tensor, " role"]]) -> go.Figure:
    """What each term adds to the score of each role; the point is all of them, which is the exact update."""
    fig = go.Figure()
    for (name, found), colour in zip(gains.items(), TERM_COLOURS, strict=True):
        fig.add_bar(
            y=ROLES, x=found.tolist(), name=name, orientation="h", marker_color=colour,
            hovertemplate=f"{name}, %{{y}}: %{{x:.2f}}<extra></extra>",
        )  # fmt: skip
    total = sum(found.numpy() for found in gains.values())
    fig.add_scatter(
        y=ROLES, x=total, mode="markers", name="the exact update", marker={"color": "#20262e", "size": 10},
        hovertemplate="in all, %{y}: %{x:.2f}<extra></extra>",
    )  # fmt: skip
    fig.update_xaxes(title_text="score gained per gamma", zeroline=True, zerolinecolor="#9aa2ad")
    fig.update_yaxes(autorange="reversed", ticks="")
    return fig.update_layout(barmode="relative", height=430, legend={"font": {"size": 11}})


def matrices(
    found: Mapping[str, Float[Tensor, "row column"]], rows: Sequence[str], columns: Sequence[str], text: bool = True
) -> go.Figure:
    """Parts of key-query matrices side by side, on one scale."""
    fig = make_subplots(rows=1, cols=len(found), subplot_titles=list(found), shared_yaxes=True)
    most = max(part.abs().max().item() for part in found.values()) or 1.0
    for column, part in enumerate(found.values(), start=1):
        fig.add_heatmap(
            z=part.numpy().round(3), x=columns, y=rows, zmin=-most, zmax=most, colorscale=figures.DIVERGING,
            texttemplate="%{z:.1f}" if text else None, textfont={"size": 9}, row=1, col=column, **PLAIN,
            hovertemplate="key %{y}, query %{x}: %{z}<extra></extra>",
        )  # fmt: skip
    fig.update_yaxes(autorange="reversed", ticks="", showgrid=False, type="category")
    return fig.update_xaxes(ticks="", showgrid=False, tickangle=-60, type="category").update_layout(height=440)


def remainders(sweeps: Mapping[str, Sequence[SweepPoint]]) -> go.Figure:
    """Largest entry of R over gamma in each sweep, with the terms of its bound as lines."""
    rows = -(-len(sweeps) // 2)
    fig = make_subplots(rows=rows, cols=2, vertical_spacing=0.12, horizontal_spacing=0.14)
    for place, (name, points) in enumerate(sweeps.items()):
        at = {"row": place // 2 + 1, "col": place % 2 + 1}
        x = [point.value for point in points]
        for term, words in BOUND.items():
            fig.add_scatter(
                x=x, y=[point.bound[term] for point in points], mode="lines", name=words, legendgroup=term,
                showlegend=place == 0, line={"color": BOUND_COLOURS[term], "width": 1.5}, **at,
            )  # fmt: skip
        fig.add_scatter(
            x=x, y=[point.largest for point in points], mode="markers", name="R, largest entry", legendgroup="R",
            showlegend=place == 0, marker={"color": "#20262e", "size": 8}, **at,
        )  # fmt: skip
        fig.update_xaxes(
            title_text=AXES[name], type="linear" if name == "lam" else "log", dtick=4 if name == "lam" else 1, **at
        )
    fig.update_yaxes(type="log", range=[-3, 1.3], dtick=1).update_xaxes(exponentformat="e")
    return fig.update_layout(height=240 * rows + 60, legend={"font": {"size": 11}})


def _line(
    x: Sequence[float | int], y: Sequence[float], name: str, colour: str, legend: bool, dash: str = "solid"
) -> go.Scatter:
    return go.Scatter(
        x=np.array(x, dtype=np.float32).round(3), y=np.array(y, dtype=np.float32).round(3), name=name,
        legendgroup=name, showlegend=legend, mode="lines", line={"color": colour, "width": 2, "dash": dash},
        hovertemplate=f"{name}<br>gamma %{{x:.2f}}: %{{y:.3f}}<extra></extra>",
    )  # fmt: skip


def panels(found: Profile, legend: bool = True) -> list[list[go.Scatter]]:
    """The lines of three panels: accuracy by kind, then attention with one and with two variables."""
    accuracy = [
        _line(
            found.gammas,
            found.accuracy(kind),
            f"{KIND_NAMES[kind]} right",
            figures.VAR_COLOURS[KIND_NAMES[kind]],
            legend,
        )
        for kind in KINDS
    ]
    masses = [
        [_line(found.gammas, found.mass(kind, name), f"on {words}", MASS_COLOURS[name], legend and kind == 1)
         for name, words in MASSES.items()]
        for kind in (1, 2)
    ]  # fmt: skip
    return [accuracy, *masses]


PANELS = ("share right", "attention, 1 variable", "attention, 2 variables")


def over_gamma(found: Mapping[str, Profile], windows: Mapping[str, tuple[float, float]]) -> go.Figure:
    """Accuracy and attention against the step size, a column a setup; shaded where the given window is."""
    fig = make_subplots(
        rows=3, cols=len(found), column_titles=list(found), vertical_spacing=0.06, horizontal_spacing=0.08,
        shared_xaxes=True, shared_yaxes=True,
    )  # fmt: skip
    for column, (name, one) in enumerate(found.items(), start=1):
        for row, lines in enumerate(panels(one, legend=column == 1), start=1):
            for line in lines:
                fig.add_trace(line, row=row, col=column)
            low, high = windows.get(name, (np.nan, np.nan))
            if low < high:
                fig.add_vrect(x0=low, x1=high, fillcolor="rgba(0,158,115,0.18)", line_width=0, row=row, col=column)
        fig.update_xaxes(title_text="gamma", row=3, col=column)
    for row, title in enumerate(PANELS, start=1):
        fig.update_yaxes(title_text=title, row=row, col=1)
    fig.update_yaxes(range=[-0.03, 1.03], dtick=0.5)
    return fig.update_layout(height=720, legend={"y": 1.07, "font": {"size": 11}})


def window_map(found: Sequence[Profile]) -> go.Figure:
    """Least accuracy over the kinds for every lambda and step size, with the edges that theory alone gives."""
    lams = [one.setup.lam for one in found]
    fig = go.Figure()
    fig.add_heatmap(
        z=np.array([one.worst for one in found], dtype=np.float32).round(3), x=np.round(found[0].gammas, 3), y=lams,
        zmin=0, zmax=1, colorscale=figures.SEQUENTIAL, colorbar={"title": {"text": "worst"}},
        hovertemplate="lambda %{y}, gamma %{x}: %{z}<extra></extra>",
    )  # fmt: skip
    for side, dash in ((0, "solid"), (1, "dash")):
        fig.add_scatter(
            x=[one.predicted[side] for one in found], y=lams, mode="lines", showlegend=side == 0,
            name="predicted edges", line={"color": figures.ORANGE, "width": 2, "dash": dash}, hoverinfo="skip",
        )  # fmt: skip
    fig.update_xaxes(title_text="gamma", showgrid=False, range=[0, found[0].gammas[-1]])
    return fig.update_yaxes(title_text="lambda", showgrid=False).update_layout(height=400)


def lambda_slider(found: Sequence[Profile]) -> go.Figure:
    """Three panels over the step size; the slider is lambda."""
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    middle = len(found) // 2
    for row, lines in enumerate(panels(found[middle]), start=1):
        for line in lines:
            fig.add_trace(line, row=row, col=1)
        fig.update_yaxes(title_text=PANELS[row - 1], range=[-0.03, 1.03], dtick=0.5, row=row, col=1)
    stops = []
    for one in found:
        y = [line.y.tolist() for lines in panels(one) for line in lines]
        label = f"{one.setup.lam:g}"
        stops.append({"label": label, "method": "restyle", "args": [{"y": [[round(v, 3) for v in ys] for ys in y]}]})
    shown = {"prefix": "lambda ", "font": {"size": 14}, "xanchor": "left"}
    fig.update_xaxes(title_text="gamma", row=3, col=1)
    slider = SLIDER | {"active": middle, "steps": stops, "currentvalue": shown}
    return fig.update_layout(sliders=[slider], height=760, legend={"font": {"size": 11}})


def further(history: Sequence[Step]) -> go.Figure:
    """Accuracy, and what the matrix holds, along further steps."""
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    steps = [step.step for step in history]
    for kind in KINDS:
        name = KIND_NAMES[kind]
        y = [step.probes[kind].accuracy for step in history]
        fig.add_trace(_line(steps, y, f"{name} right", figures.VAR_COLOURS[name], True), row=1, col=1)
    held = {
        "match, less the rest": ([step.memory.match - step.memory.other for step in history], figures.PINK),
        "shared by all assignments": ([step.memory.shared for step in history], figures.SKY),
    }
    for name, (y, colour) in held.items():
        fig.add_trace(_line(steps, y, name, colour, True), row=2, col=1)
    fig.update_traces(hovertemplate="step %{x}: %{y:.2f}")
    fig.update_yaxes(title_text="share right", row=1, col=1).update_yaxes(title_text="entry", row=2, col=1)
    return fig.update_xaxes(title_text="further step", row=2, col=1).update_layout(height=520)


def dimensions(means: Mapping[int, Mean], ideal: float) -> go.Figure:
    """Worst accuracy at the best step under random embeddings, by their dimension, and the orthonormal limit."""
    fig = go.Figure()
    y = [mean.mean for mean in means.values()]
    fig.add_scatter(
        x=list(means), y=y, mode="markers+lines", name="random embeddings", marker={"size": 9},
        error_y={
            "array": [min(mean.high, 1) - mean.mean for mean in means.values()],
            "arrayminus": [mean.mean - max(mean.low, 0) for mean in means.values()],
            "symmetric": False, "color": figures.GREY,
        },
    )  # fmt: skip
    fig.add_hline(y=ideal, line={"color": figures.GREEN, "dash": "dash"}, annotation_text="orthonormal",
                  annotation_position="bottom left")  # fmt: skip
    fig.update_xaxes(title_text="dimension", type="log", dtick=1)
    return fig.update_yaxes(title_text="worst accuracy at the best gamma", range=[-0.05, 1.1]).update_layout(height=360)


def samples(found: Mapping[int, Sequence[SampleError]]) -> go.Figure:
    """Largest error of a sample's step against the sample's size: raw, and with what can be known put right."""
    fig = go.Figure()
    ways = (
        ("error", "as sampled", figures.ORANGE),
        ("symmetrised", "averaged over relabellings", figures.SKY),
        ("balanced", "and equal numbers in their exact share", figures.BLUE),
    )
    for field, name, colour in ways:
        flat = [(n, getattr(one, field)) for n, many in found.items() for one in many]
        x, y = zip(*flat, strict=True)
        fig.add_scatter(x=x, y=y, mode="markers", name=name, marker={"color": colour, "size": 8})
    x, y = zip(*((n, many[0].predicted) for n, many in found.items()), strict=True)
    fig.add_scatter(x=x, y=y, mode="lines", name="A V / (2 eps sqrt(p n))", line={"color": figures.GREY})
    fig.add_hline(y=1, line={"color": figures.GREEN, "dash": "dash"}, annotation_text="the memory's own entries",
                  annotation_position="bottom left")  # fmt: skip
    fig.update_xaxes(title_text="sequences in the sample", type="log", dtick=1)
    return fig.update_yaxes(title_text="largest error over gamma", type="log", dtick=1).update_layout(height=400)


KINDS4 = ("number + number", "variable + number", "number + variable", "variable + variable")
BRIDGE_COLOURS = (figures.PINK, figures.GREY, figures.SKY, figures.ORANGE, figures.BLUE, figures.YELLOW)


def _series(shots: Sequence[Snapshot], values: Sequence[float]) -> pd.Series:
    return pd.Series(values, index=[shot.step for shot in shots], dtype=float)


def bridge_lines(shots: Sequence[Snapshot]) -> dict[str, dict[str, tuple[pd.Series, dict[str, str]]]]:
    """What a run's snapshots say, as lines over its steps: the weights' scores, and attention."""
    places = [shot.bridge.operands.mean(0).tolist() for shot in shots]
    scores = {
        "own variable": [shot.bridge.match for shot in shots],
        "other variables": [shot.bridge.other for shot in shots],
        "shared": [shot.bridge.shared for shot in shots],
        "operand's own token": [shot.bridge.raw for shot in shots],
        "first place": [left for left, _ in places],
        "second place": [right for _, right in places],
    }
    weights = {
        name: (_series(shots, values), {"color": colour})
        for (name, values), colour in zip(scores.items(), BRIDGE_COLOURS, strict=True)
    }
    attention = {
        KINDS4[kind]: (
            _series(shots, [shot.operands[kind].mass for shot in shots]),
            {"color": figures.KIND_COLOURS[kind]},
        )
        for kind in shots[0].operands
    }
    if 3 in shots[0].itself:
        itself = _series(shots, [shot.itself[3] for shot in shots])
        attention["= itself, two variables"] = (itself, {"color": figures.GREY, "dash": "dot"})
    return {"weights": weights, "attention": attention}


def verdict_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A page's table whose last column is a verdict: told by its words, and by colour besides."""
    lines = []
    for row in rows:
        *cells, verdict = (cell.replace("`", "") for cell in row)
        kind = "does-not-hold" if "not" in verdict else "holds"
        kind = "cannot-be-measured-here" if verdict.startswith("cannot") else kind
        colour = "color: #9a6a00; " if verdict.startswith("holds when") else ""
        told = f'<span class="mc-verdict mc-{kind}" style="{colour}white-space: normal">{html.escape(verdict)}</span>'
        widths = [4, 11, *[6.5] * (len(cells) - 2)]  # the sentence needs most room
        plain = [
            f'<td style="min-width: {w}rem">{html.escape(cell)}</td>' for w, cell in zip(widths, cells, strict=True)
        ]
        lines.append(f"<tr>{''.join(plain)}<td>{told}</td></tr>")
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    return f'<table class="mc-claims"><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
