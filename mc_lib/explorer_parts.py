"""What every explorer is made of: a run that its first line picks, controls, and one figure below them.

A wrong input is answered by one line under its control, and the figure stays as it was. The figure sits in an Output
widget as plotly's JSON, which JupyterLab draws by the extension that plotly brings along.
"""

import html
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
from IPython.display import display

from mc_lib import figures
from mc_lib.config import Config, Refusal
from mc_lib.model import Weights
from mc_lib.runs import Run, list_runs, open_run

KEPT_BYTES = 2**28  # of weights, so that going back to a step costs nothing
LABEL = {"description_width": "initial"}


class Saved:
    """A run's weights by step; those used last are kept."""

    def __init__(self, run: Run):
        self.run, self._kept = run, OrderedDict[int, Weights]()

    def at(self, step: int) -> Weights:
        if step not in self._kept:
            self._kept[step] = self.run.weights(step)
            size = sum(tensor.numel() * 4 for tensor in self._kept[step].values())
            while len(self._kept) > max(1, KEPT_BYTES // size):
                self._kept.popitem(last=False)
        self._kept.move_to_end(step)
        return self._kept[step]


class Message:
    """One line under a control, or nothing."""

    def __init__(self) -> None:
        self.text = ""
        self.widget = widgets.HTML()

    def say(self, text: str, colour: str = figures.ORANGE) -> None:
        self.text = text
        line = f'<span role="status" style="color:{colour}">{html.escape(text)}</span>'
        self.widget.value = line if text else ""


class Picture:
    """A figure on the page; `draw` replaces it."""

    def __init__(self) -> None:
        self.figure = go.Figure()
        self.widget = widgets.Output()

    def draw(self, fig: go.Figure, alt: str) -> None:
        self.figure = fig.update_layout(template=figures.TEMPLATE)
        data = {figures.PLOTLY_MIME: json.loads(fig.to_json()), "text/plain": f"[figure] {alt}"}
        self.widget.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)


def known_runs() -> list[str]:
    """The runs below the nearest folder `runs`, here or in the folders above, as paths that open_run takes."""
    for place in (Path.cwd(), *Path.cwd().parents):
        if (place / "runs").is_dir():
            return [path.relative_to(place).as_posix() for path in list_runs(place / "runs")]
    return []


def opened(path: str) -> Run:
    """The run, if it can be explored."""
    if not path.strip():
        raise Refusal("no run is named: choose one of the list, or type the path of a run's folder")
    run = open_run(path.strip())
    run.weights()  # refuses a run that has none, or whose last ones are damaged
    return run


class Explorer:
    """Picks a run, holds its weights, and redraws; a subclass adds controls and says what is drawn."""

    def __init__(self, path: str):
        self.run_picker = widgets.Combobox(
            value=str(path), options=known_runs(), description="run", continuous_update=False, ensure_option=False
        )
        self.run_message, self.message, self.picture = Message(), Message(), Picture()
        self.step = widgets.SelectionSlider(options=[("", -1)], description="step", layout={"width": "420px"})
        self.saved = Saved(opened(str(path)))
        self._held = True
        self.controls = self._controls()
        self._fit()
        self._held = False
        for control in self._drivers():
            control.observe(self._changed, "value")
        self.run_picker.observe(self._picked, "value")
        self.redraw()
        above = [self.run_picker, self.run_message.widget, *self.controls]
        self.widget = widgets.VBox([*above, self.message.widget, self.picture.widget])

    @property
    def cfg(self) -> Config:
        return self.saved.run.config

    def _controls(self) -> list[widgets.Widget]:
        """The rows of controls."""
        raise NotImplementedError

    def _drivers(self) -> list[widgets.Widget]:
        """The controls whose value decides what is drawn."""
        raise NotImplementedError

    def _fit(self) -> None:
        """Offer what the run has to offer."""
        steps = self.saved.run.steps
        offer(self.step, [(f"{step:,}", step) for step in steps], steps[-1])

    def _draw(self) -> tuple[go.Figure, str]:
        """The figure for the controls as they are, and its text alternative."""
        raise NotImplementedError

    def _changed(self, change: Any) -> None:
        if not self._held:
            self.redraw()

    def _picked(self, change: Any) -> None:
        try:
            self.saved = Saved(opened(self.run_picker.value))
        except Refusal as refusal:
            self.run_message.say(f"{refusal} (still showing {self.saved.run.path})")
            return
        self.run_message.say("")
        self._held = True
        try:
            self._fit()
        finally:
            self._held = False
        self.redraw()

    def redraw(self) -> None:
        try:
            self.picture.draw(*self._draw())
        except Refusal as refusal:
            self.message.say(str(refusal))
        else:
            self.message.say("")

    def _ipython_display_(self) -> None:
        display(self.widget)


def offer(control: Any, options: list[tuple[str, Any]], default: Any) -> None:
    """New options for a menu or slider, which keeps its value if it still can."""
    values = [value for _, value in options]
    chosen = control.value if control.value in values else default
    control.options = options
    control.value = chosen
    control.disabled = len(options) < 2


def row(*children: widgets.Widget) -> widgets.Box:
    return widgets.Box(children, layout={"flex_flow": "row wrap", "align_items": "center"})


def menu(name: str, options: list[tuple[str, Any]]) -> widgets.Dropdown:
    return widgets.Dropdown(options=options, description=name, style=LABEL, layout={"width": "auto"})
