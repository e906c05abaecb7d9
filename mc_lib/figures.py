"""How every figure looks, and how it gets onto the page.

A figure is a plotly figure in the one template, shown with a caption (what is seen and what follows) and a text
alternative (what a reader who does not see it would be told). `show` emits two outputs: the figure, as plotly's JSON
beside a box without script whose id derives from the content, and the caption. JupyterLab draws the JSON by itself;
the rendered book puts it into the box with the scripts of `book/assets`.

The same colour always means the same thing: a number of variables has a colour, a set of sequences a dash.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from IPython.display import display
from jaxtyping import Int
from torch import Tensor

from mc_lib import task
from mc_lib.config import Config

PLOTLY_MIME = "application/vnd.plotly.v1+json"

# Okabe and Ito's palette: told apart by colour-blind readers, on white and on black.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SKY, YELLOW, PINK, GREY = "#56B4E9", "#E69F00", "#CC79A7", "#8A8F98"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, GREY)
VAR_COLOURS = {"0-var": BLUE, "1-var": ORANGE, "2-var": GREEN}
KIND_COLOURS = (BLUE, ORANGE, YELLOW, GREEN)  # by kind: num+num, var+num, num+var, var+var
DASHES = {"train": "solid", "add-restricted": "dash", "var-restricted": "dot"}
SEQUENTIAL, DIVERGING = "Cividis", "RdBu_r"


def set_style(name: str) -> dict[str, str]:
    """Line of an evaluation set, from its name: colour by number of variables, dash by what is restricted."""
    colour = next(colour for start, colour in VAR_COLOURS.items() if name.startswith(start))
    dash = next(dash for part, dash in DASHES.items() if part in name)
    return {"color": colour, "dash": "dashdot" if name.endswith("(2)") else dash}


def _template() -> go.layout.Template:
    axis = {"gridcolor": "#e3e6ea", "linecolor": "#9aa2ad", "zeroline": False, "automargin": True}
    axis |= {"ticks": "outside", "tickcolor": "#9aa2ad", "title": {"standoff": 8}}
    layout = {
        "font": {"family": "system-ui, 'DejaVu Sans', sans-serif", "size": 13, "color": "#20262e"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": PALETTE,
        "xaxis": axis,
        "yaxis": axis,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 16, "r": 16, "t": 28, "b": 16},
        "height": 420,
        "hoverlabel": {"align": "left"},
    }
    heatmap = [{"colorbar": {"thickness": 12, "outlinewidth": 0}, "colorscale": SEQUENTIAL}]
    return go.layout.Template(layout=layout, data={"heatmap": heatmap})


TEMPLATE = _template()


def _slim(node: Any) -> Any:
    """The same JSON with its packed float64 arrays as float32: no eye sees the difference, and pages halve."""
    if isinstance(node, list):
        return [_slim(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("dtype") == "f8" and "bdata" in node:
        values = np.frombuffer(base64.b64decode(node["bdata"]), dtype="<f8").astype("<f4")
        return node | {"dtype": "f4", "bdata": base64.b64encode(values.tobytes()).decode()}
    return {key: _slim(value) for key, value in node.items()}


def bundle(fig: go.Figure, alt: str) -> dict[str, Any]:
    """The figure in three forms: plotly's JSON, a box without script that carries its id and `alt`, and text."""
    fig = go.Figure(fig).update_layout(template=TEMPLATE)
    fig.layout.height = fig.layout.height or TEMPLATE.layout.height  # a page gives a figure no height of its own
    spec = _slim(json.loads(fig.to_json()))
    name = hashlib.sha256(json.dumps([spec, alt], sort_keys=True).encode()).hexdigest()[:12]
    text = html.escape(alt)
    box = f'<div class="mc-figure" id="figure-{name}" role="img" aria-label="{text}">{text}</div>'
    return {PLOTLY_MIME: spec, "text/html": box, "text/plain": f"[figure] {alt}"}


def show(fig: go.Figure, caption: str, alt: str) -> None:
    """Displays `fig`; `caption` (may hold HTML) stands under it, `alt` in its place for who cannot see it."""
    if not caption.strip() or not alt.strip():
        raise ValueError("a figure needs a caption and a text alternative")
    display(bundle(fig, alt), raw=True)
    display({"text/html": f'<p class="mc-caption">{caption}</p>', "text/plain": caption}, raw=True)


def _ink(colour: str) -> str:
    """Black or white, whichever is read better on this #rrggbb."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#111111" if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "#ffffff"


# --- drawings ------------------------------------------------------------------------------------------


def category_map(
    classes: Int[np.ndarray, "row column"],
    labels: Sequence[str],
    colours: Sequence[str],
    hover: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    text: Sequence[Sequence[str]] | None = None,
    gap: float | int = 0,
) -> go.Figure:
    """A map of cells that each belong to one of several classes; the legend names them, first row on top.

    `hover` is shown for a cell, with %{y} and %{x} standing for its row and column, then the class."""
    fig = go.Figure()
    for index, (label, colour) in enumerate(zip(labels, colours, strict=True)):
        fig.add_heatmap(
            z=np.where(classes == index, 1.0, np.nan).astype(np.float32),
            x=columns,
            y=rows,
            text=text,
            texttemplate="%{text}" if text is not None else None,
            textfont={"color": _ink(colour)},
            name=label,
            colorscale=[[0, colour], [1, colour]],
            showscale=False,
            showlegend=bool((classes == index).any()),
            hovertemplate=f"{hover}<br>{label}<extra></extra>",
            hoverongaps=False,
            xgap=gap,
            ygap=gap,
        )
    fig.update_yaxes(autorange="reversed", showgrid=False)
    return fig.update_xaxes(showgrid=False)


def square(fig: go.Figure) -> go.Figure:
    """Cells as wide as high, whatever the width of the page."""
    return fig.update_yaxes(scaleanchor="x", constrain="domain").update_xaxes(constrain="domain")


TOKEN_CLASSES = ("number to add", "operand variable", "distractor", "PAD", "+ and =")
TOKEN_COLOURS = (ORANGE, BLUE, "#cfe3f2", "#e9ebee", "#b9bfc8")


def token_strips(tokens: Int[Tensor, "row pos"], rows: Sequence[str], cfg: Config) -> go.Figure:
    """Sequences, one a row, their tokens coloured by the part that they play."""
    found = task.operands(tokens, cfg)
    classes = torch.full_like(tokens, TOKEN_CLASSES.index("distractor"))
    classes[tokens == cfg.PAD] = TOKEN_CLASSES.index("PAD")
    classes[(tokens == cfg.PLUS) | (tokens == cfg.EQUALS)] = TOKEN_CLASSES.index("+ and =")
    shown = tokens[:, -3:-1]
    asked = (tokens[:, :, None] == shown[:, None]).any(-1) & (tokens >= cfg.FIRST_VARIABLE)
    classes[asked] = TOKEN_CLASSES.index("operand variable")
    classes.scatter_(1, found.positions, TOKEN_CLASSES.index("number to add"))
    names = task.token_names(cfg)
    text = [[names[token] for token in row] for row in tokens.tolist()]
    hover = "position %{x}: %{text}"
    fig = category_map(classes.numpy(), TOKEN_CLASSES, TOKEN_COLOURS, hover, rows=rows, text=text, gap=2)
    fig.update_layout(height=110 + 44 * len(rows), legend={"traceorder": "normal"})
    fig.update_yaxes(ticks="", linecolor="rgba(0,0,0,0)")
    return fig.update_xaxes(title_text="position", dtick=1, ticks="")


def token_menu(rows: dict[str, Int[Tensor, "row pos"]], cfg: Config) -> go.Figure:
    """Strips of tokens with a menu: each entry shows its own sequences."""
    fig = go.Figure()
    owner: list[str] = []
    for entry, tokens in rows.items():
        strips = token_strips(tokens, [f"{n}." for n in range(1, len(tokens) + 1)], cfg)
        fig.add_traces([trace.update(visible=not fig.data or owner[0] == entry) for trace in strips.data])
        owner += [entry] * len(strips.data)
    buttons = [
        {"label": entry, "method": "restyle", "args": ["visible", [name == entry for name in owner]]} for entry in rows
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.2, "yanchor": "bottom"}
    fig.update_layout(strips.layout).update_layout(updatemenus=[menu], margin={"t": 90})
    return fig.update_yaxes(ticks="", autorange="reversed", showgrid=False)


def _draw_part(fig: go.Figure, row: int, text: str, colour: str, last: int) -> None:
    """A part of the model's diagram: its box, and its arrows from the residual stream and back to it."""
    fig.add_shape(
        type="rect",
        x0=0.2,
        x1=1,
        y0=-row - 0.36,
        y1=-row + 0.36,
        fillcolor=colour,
        opacity=0.25,
        line_width=0,
    )
    fig.add_annotation(x=0.23, y=-row, text=text, showarrow=False, xanchor="left", align="left")
    arrows = [(0.2, 0.07, -0.18)] * (row < last) + [(0.07, 0.2, 0.18)] * (row > 0)
    for tail, head, dy in arrows:
        fig.add_annotation(
            x=head, ax=tail, y=-row + dy, ay=-row + dy, axref="x", ayref="y", xref="x", yref="y",
            text="", arrowhead=2, arrowwidth=1.5, arrowcolor=GREY,
        )  # fmt: skip


def model_diagram(cfg: Config) -> go.Figure:
    """The model from top to bottom: what reads from the residual stream and adds to it, with its sizes."""
    d, h, heads = cfg.d_model, cfg.d_head, "1 head" if cfg.heads == 1 else f"{cfg.heads} heads"
    attention = f"{heads}; W<sub>Q</sub>, W<sub>K</sub>, W<sub>V</sub>: {d} × {h}<br>W<sub>O</sub>: {h} × {d}"
    parts = [
        ("embedding", f"tokens E: {cfg.vocabulary} × {d}<br>positions P: {cfg.length} × {d}", GREY),
        ("layer 1: attention", attention, BLUE),
        ("layer 2: attention", attention, BLUE),
        (
            "layer 2: MLP",
            f"W<sub>in</sub>: {d} × {cfg.d_mlp}, ReLU<br>W<sub>out</sub>: {cfg.d_mlp} × {d}",
            ORANGE,
        ),
        ("unembedding", f"W<sub>U</sub>: {d} × {cfg.p}<br>read at “=” only", GREY),
    ]
    fig = go.Figure()
    last = len(parts) - 1
    fig.add_shape(type="line", x0=0.07, x1=0.07, y0=0, y1=-last, line={"color": GREY, "width": 5})
    for row, (name, sizes, colour) in enumerate(parts):
        _draw_part(fig, row, f"<b>{name}</b><br>{sizes}", colour, last)
    fig.update_xaxes(visible=False, range=[0, 1.02], fixedrange=True)
    fig.update_yaxes(visible=False, range=[-last - 0.45, 0.45], fixedrange=True)
    return fig.update_layout(height=480, margin={"l": 4, "r": 4, "t": 4, "b": 4})
