"""One sequence inside the model, as a figure: what the sequence explorer shows.

A look is one sequence through one set of weights: both attention patterns, the answers' probabilities, and the lift
that each part of the model gives the right answer: what the part adds to its logit, less what it adds to the mean
logit (a constant on all logits changes no answer). Lifts add up to the right logit above the mean one. The figure
with a slider over saved steps needs no kernel: that is what the rendered book shows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib import figures, model, task
from mc_lib.config import Config, Refusal
from mc_lib.model import Weights
from mc_lib.runs import Run

PARTS = ("embedding", "attention 1", "attention 2", "MLP")
TOP = 6  # answers shown
MOST_FRAMES = 25
MEAN = -1  # in place of a head: the mean of all
PLAIN = "#b9bfc8"


# --- one sequence --------------------------------------------------------------------------------------


class Look(NamedTuple):
    """One sequence through one set of weights; `lifts` are those of PARTS."""

    tokens: Int[Tensor, " pos"]
    pattern1: Float[Tensor, "head query key"]
    pattern2: Float[Tensor, "head key"]
    probabilities: Float[Tensor, " p"]
    lifts: Float[Tensor, " part"]
    right: int
    wanted: list[int]

    @property
    def said(self) -> int:
        return int(self.probabilities.argmax())


@torch.no_grad()
def look(weights: Weights, tokens: Int[Tensor, " pos"], cfg: Config) -> Look:
    batch = tokens[None]
    seen = model.trace(weights, batch)
    if not seen.logits.isfinite().all():
        raise Refusal("the weights are so large that the model overflows: choose an earlier step")
    found = task.operands(batch, cfg)
    right = int(task.answers(batch, cfg))
    start = weights["embed.W_E"][cfg.EQUALS] + weights["pos_embed.W_pos"][-1]
    attn1 = seen.resid_mid[0] - seen.attn_out2[0] - start
    added = (seen.resid_mid[0] @ weights["blocks.1.mlp.W_in"]).relu() @ weights["blocks.1.mlp.W_out"]
    unembed = weights["unembed.W_U"]
    lifts = torch.stack([start, attn1, seen.attn_out2[0], added]) @ (unembed[:, right] - unembed.mean(1))
    odds = seen.logits[0].softmax(0)
    wanted = sorted(set(found.positions[0].tolist()))
    return Look(tokens, seen.pattern1[0], seen.pattern2[0], odds, lifts, right, wanted)


def _of_head(pattern: Float[Tensor, "head ..."], head: int) -> Float[Tensor, "..."]:
    return pattern.mean(0) if head == MEAN else pattern[head]


def top_answers(seen: Look) -> list[int]:
    """The likeliest answers, and the right one in the last place if it is not among them."""
    best = seen.probabilities.argsort(descending=True)[:TOP].tolist()
    return best if seen.right in best else [*best[:-1], seen.right]


def sequence_traces(seen: Look, cfg: Config, head1: int = 0, head2: int = 0) -> dict[str, dict[str, Any]]:
    """What each panel shows, as the properties of its one trace."""
    names = [task.token_names(cfg)[token] for token in seen.tokens.tolist()]
    causal = torch.ones(cfg.length, cfg.length).triu(1).bool()
    map1 = _of_head(seen.pattern1, head1).masked_fill(causal, torch.nan).numpy().round(3)
    where = [figures.ORANGE if place in seen.wanted else PLAIN for place in range(cfg.length)]
    answers = top_answers(seen)
    odds = seen.probabilities[answers].tolist()
    marks = [figures.ORANGE if answer == seen.right else PLAIN for answer in answers]
    return {
        "layer 1": {"z": map1, "text": [names] * cfg.length},
        "layer 2": {"y": _of_head(seen.pattern2, head2).numpy().round(3), "marker.color": where, "text": names},
        "answers": {"y": [round(x, 4) for x in odds], "text": [str(a) for a in answers], "marker.color": marks},
        "lifts": {"y": [round(x, 2) for x in seen.lifts.tolist()]},
    }


def blank_traces(cfg: Config, panels: Sequence[str]) -> list[Any]:
    """One trace a panel, with everything but its values."""
    places, parts = list(range(cfg.length)), len(PARTS)
    bar: dict[str, Any] = {"showlegend": False, "cliponaxis": False}
    made = {
        "layer 1": go.Heatmap(
            zmin=0, zmax=1, showscale=False, xgap=1, ygap=1, hoverongaps=False,
            hovertemplate="from position %{y} to %{x} (%{text}): %{z:.2f}<extra></extra>",
        ),
        "layer 2": go.Bar(
            x=places, textposition="none", hovertemplate="position %{x} (%{text}): %{y:.2f}<extra></extra>", **bar
        ),
        "answers": go.Bar(
            x=list(range(min(TOP, cfg.p))), textposition="outside", **bar,
            hovertemplate="answer %{text}: %{y:.1%}<extra></extra>",
        ),
        "lifts": go.Bar(
            x=list(range(parts)), marker_color=[figures.GREY, figures.SKY, figures.BLUE, figures.GREEN], **bar,
            texttemplate="%{y:.1f}", textposition="outside", customdata=PARTS,
            hovertemplate="%{customdata}: %{y:.2f}<extra></extra>",
        ),
    }  # fmt: skip
    return [made[panel] for panel in panels]


PLACES = {"layer 1": ("x", "y"), "layer 2": ("x2", "y2"), "answers": ("x3", "y3"), "lifts": ("x4", "y4")}


def shown_panels(layer: int | None) -> list[str]:
    """The panels for a choice of layer; None is both."""
    return [
        panel for panel in PLACES if layer is None or panel not in ("layer 1", "layer 2") or panel[-1] == f"{layer}"
    ]


def _boxes(cfg: Config, layer: int | None, wide: bool) -> tuple[int, dict[str, tuple[float, float, float, float]]]:
    """Height of all panels together, and each one's left, right, bottom and top as shares."""
    first = "layer 2" if layer == 2 else "layer 1"
    if wide:
        right = ["answers", "lifts"] if layer else ["layer 2", "answers", "lifts"]
        each = (1 - 0.13 * (len(right) - 1)) / len(right)
        tops = [1 - place * (each + 0.13) for place in range(len(right))]
        column = {name: (0.6, 1.0, max(top - each, 0.0), top) for name, top in zip(right, tops, strict=True)}
        return 460, {first: (0.0, 0.52, 0.0, 1.0), **column}
    gap, low = 70, 170
    rows = {"layer 1": min(26 * cfg.length, 640) * (layer != 2), "layer 2": {None: 90, 1: 0, 2: 200}[layer]}
    rows = {name: height for name, height in rows.items() if height}
    total = sum(rows.values()) + low + gap * len(rows)
    boxes, top = {}, 1.0
    for name, height in rows.items():
        boxes[name] = (0.0, 1.0, top - height / total, top)
        top -= (height + gap) / total
    return total, {**boxes, "answers": (0.0, 0.46, 0.0, low / total), "lifts": (0.56, 1.0, 0.0, low / total)}


def sequence_axes(
    cfg: Config, layer: int | None = None, heads: tuple[str, str] = ("", ""), wide: bool = False
) -> go.Figure:
    """The panels without their traces, for a `layer` or (None) both: one below the other, or `wide`, side by side."""
    where1, where2 = (f", {name}" if cfg.heads > 1 and name else "" for name in heads)
    titles = {
        "layer 1": f"layer 1{where1}: from row to column, dark 0, bright 1",
        "layer 2": f"layer 2{where2}: from “=”, numbers to add in orange",
        "answers": "likeliest answers",
        "lifts": "lift of the right answer",
    }
    total, boxes = _boxes(cfg, layer, wide)
    fig = go.Figure().update_layout(height=total + 90, bargap=0.25, margin={"t": 54 if wide else 40, "b": 44})
    for panel, box in boxes.items():
        _place(fig, panel, box[:2], box[2:], titles[panel])
    odds, short = {"range": [0, 1.18], "tickvals": [0, 0.5, 1]}, ["emb.", "attn.<br>1", "attn.<br>2", "MLP"]
    fig.update_layout(yaxis2={"range": [0, 1.02], "tickvals": [0, 0.5, 1]}, yaxis3=odds)
    fig.update_layout(xaxis3={"showticklabels": False, "ticks": ""})
    fig.update_layout(xaxis4={"tickvals": list(range(len(PARTS))), "ticktext": short, "ticks": "", "tickangle": 0})
    return fig.update_layout(yaxis4={"zeroline": True, "zerolinecolor": "#9aa2ad", "nticks": 4})


def _place(fig: go.Figure, panel: str, across: tuple[float, float], along: tuple[float, float], title: str) -> None:
    x, y = PLACES[panel]
    side = {"domain": list(along), "anchor": x, "showgrid": panel != "layer 1"}
    if panel == "layer 1":
        side |= {"autorange": "reversed"}
    number = x[1:]
    fig.update_layout(
        {f"xaxis{number}": {"domain": list(across), "anchor": y, "showgrid": False}, f"yaxis{number}": side}
    )
    fig.add_annotation(
        text=title, x=across[0], y=along[1], xref="paper", yref="paper", xanchor="left", yanchor="bottom",
        showarrow=False, font={"size": 12}, align="left",
    )  # fmt: skip


def label_tokens(fig: go.Figure, tokens: Int[Tensor, " pos"], cfg: Config) -> go.Figure:
    """Token labels on the axes of positions."""
    names = [task.token_names(cfg)[token] for token in tokens.tolist()]
    axis = {"tickvals": list(range(cfg.length)), "ticktext": names, "tickangle": 0, "ticks": ""}
    return fig.update_layout(xaxis=axis, yaxis=axis, xaxis2=axis)


# --- figures with a slider over steps ------------------------------------------------------------------


def some_steps(run: Run, count: int) -> list[int]:
    """At most `count` of the saved steps, the first and the last among them."""
    if not run.steps:
        run.weights()  # which refuses
    places = np.linspace(0, len(run.steps) - 1, max(1, min(count, len(run.steps), MOST_FRAMES)))
    return [run.steps[place] for place in places.round().astype(int)] if len(places) > 1 else [run.steps[-1]]


def add_slider(fig: go.Figure, labels: Sequence[str], per_frame: int) -> go.Figure:
    """A slider whose positions each show their `per_frame` traces; the last one is shown first."""
    frames = len(labels)
    steps = [
        {"label": label, "method": "restyle", "args": ["visible", [i // per_frame == k for i in range(len(fig.data))]]}
        for k, label in enumerate(labels)
    ]
    for i, trace in enumerate(fig.data):
        trace.visible = i // per_frame == frames - 1
    now = {"xanchor": "left", "prefix": "", "font": {"size": 14}, "offset": 12}
    slider = {"steps": steps, "active": frames - 1, "currentvalue": now, "font": {"size": 1}}
    slider |= {"ticklen": 4, "pad": {"t": 52, "b": 8}, "x": 0, "len": 1}
    height, bottom = fig.layout.height or 420, fig.layout.margin.b or 16
    return fig.update_layout(sliders=[slider], height=height + 80, margin_b=bottom)


def sequence_figure(run: Run, text: str, frames: int = 21) -> go.Figure:
    """One sequence at several saved steps: attention, answers and lifts move together. Heads are averaged."""
    cfg, panels, labels = run.config, list(PLACES), []
    tokens, lifts = task.parse(text, cfg), [0.0]
    head, name = (MEAN, f"mean of {cfg.heads} heads") if cfg.heads > 1 else (0, "")
    fig = sequence_axes(cfg, None, (name, name))
    for step in some_steps(run, frames):
        seen = look(run.weights(step), tokens, cfg)
        values = sequence_traces(seen, cfg, head, head)
        for panel, trace in zip(panels, blank_traces(cfg, panels), strict=True):
            fig.add_trace(trace.update(_nested(values[panel]), xaxis=PLACES[panel][0], yaxis=PLACES[panel][1]))
        labels.append(f"step {step:,}: says {seen.said} ({seen.probabilities[seen.said]:.0%})")
        lifts += seen.lifts.tolist()
    low, high = min(lifts), max(lifts)
    fig.update_layout(yaxis4_range=[low - 0.2 * (high - low), high + 0.2 * (high - low)] if high > low else None)
    return add_slider(label_tokens(fig, tokens, cfg), labels, len(panels))


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Properties of a trace, with `marker.color` as plotly's `update` takes it."""
    return {key.replace(".", "_"): value for key, value in values.items()}


def sequence_table(run: Run, text: str, frames: int = 21) -> pd.DataFrame:
    """The numbers behind `sequence_figure`: a row a step, shares as fractions."""
    tokens, rows = task.parse(text, run.config), []
    for step in some_steps(run, frames):
        seen = look(run.weights(step), tokens, run.config)
        to_numbers = seen.pattern2.mean(0)[seen.wanted].sum().item()
        lifts = dict(zip(PARTS, seen.lifts.tolist(), strict=True))
        odds = seen.probabilities[seen.right].item()
        rows.append({"step": step, "says": seen.said, "p(right)": odds, "attn. 2 on numbers": to_numbers} | lifts)
    return pd.DataFrame(rows).set_index("step")
