"""The explorer of the theorem's step: set its size, lambda, the sizes and the readings; see accuracy and attention.

Needs a kernel, and no run. A setting that the theorem cannot have is answered by one line, and the figure stays as it
was. `step` is the last line of a cell.
"""

from typing import Any

import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mc_lib import figures, figures_theory
from mc_lib.config import Refusal
from mc_lib.explorer_parts import LABEL, Message, Picture, menu, row
from mc_lib.intervals import wilson
from mc_lib.theory import Setup, update
from mc_lib.theory_sweeps import KINDS, Probe, Scan, predicted_window, window
from mc_lib.theory_views import MASSES, Profile

MOST = {"p": 127, "variables": 12, "length": 128}  # so that an answer takes a second
COUNT, POINTS, FAR = 300, 49, 1.6


def _slider(name: str, value: float | int, most: float | int, step: float) -> widgets.FloatSlider:
    return widgets.FloatSlider(
        value, min=0, max=most, step=step, description=name, style=LABEL, continuous_update=False,
        layout={"width": "420px"},
    )  # fmt: skip


def _size(name: str, value: int) -> widgets.IntText:
    return widgets.IntText(value, description=name, style=LABEL, continuous_update=False, layout={"width": "150px"})


class StepExplorer:
    """One gradient step in any setup; all that is drawn is computed for the controls as they are."""

    def __init__(self, p: int = 31, variables: int = 4, length: int = 64) -> None:
        self.lam, self.gamma = _slider("lambda", 10, 20, 0.5), _slider("gamma", 1.3, 6, 0.02)
        self.order = menu("operands in", [("random order", "random"), ("fixed order", "fixed")])
        self.carried = menu("= carries each with weight", [("1", 1.0), ("1/2", 0.5)])
        self.itself = menu("= attends to itself", [("yes", True), ("no", False)])
        self.p, self.variables, self.length = (
            _size("numbers p", p),
            _size("variables V", variables),
            _size("positions T", length),
        )
        self.message, self.numbers, self.picture = Message(), Message(), Picture()
        self._setup: Setup | None = None
        readings, sizes = (self.order, self.carried, self.itself), (self.p, self.variables, self.length)
        for control in (self.lam, self.gamma, *readings, *sizes):
            control.observe(lambda change: self.redraw(), "value")
        self.redraw()
        rows = [self.lam, self.gamma, row(*readings), row(*sizes), self.message.widget, self.numbers.widget]
        self.widget = widgets.VBox([*rows, self.picture.widget])

    def setup(self) -> Setup:
        """The setup that the controls ask for."""
        sizes = {"p": self.p.value, "variables": self.variables.value, "length": self.length.value}
        for name, most in MOST.items():
            if sizes[name] > most:
                raise Refusal(f"{name} = {sizes[name]} is too slow to follow by hand: choose {most} at most")
        readings = {"order": self.order.value, "carried": self.carried.value, "attends_self": self.itself.value}
        return Setup(**sizes, lam=self.lam.value, **readings)

    def _follow(self, s: Setup) -> None:
        """All that does not depend on the step's size."""
        if s == self._setup:
            return
        scan = Scan(s, update(s), COUNT)
        edges = predicted_window(s)
        far = FAR * edges[1] if 0 < edges[1] < self.gamma.max else self.gamma.max
        gammas = np.linspace(0, max(far, 1.0), POINTS).tolist()
        self.profile = Profile(s, gammas, scan.over(gammas), edges)
        self.window = window(scan, most=gammas[-1], points=33)
        self.scan, self._setup = scan, s

    def redraw(self) -> None:
        try:
            self._follow(self.setup())
        except Refusal as refusal:
            self.message.say(str(refusal))
            return
        self.message.say("")
        gamma = self.gamma.value
        self.probes = {kind: self.scan.at(gamma, kind) for kind in KINDS}
        says = f"{self._right()}; {self._where()}"
        self.numbers.say(says, "inherit")
        self.picture.draw(
            self._figure(gamma), f"Accuracy and attention over the step size, at gamma {gamma:g}: {says}."
        )

    def _right(self) -> str:
        """Accuracy by kind at the chosen step size."""
        words = []
        for kind, found in self.probes.items():
            low, high = wilson(round(found.accuracy * found.n), found.n)
            words.append(f"{figures_theory.KIND_NAMES[kind]} {found.accuracy:.2f} [{low:.2f}, {high:.2f}]")
        return f"right at gamma {self.gamma.value:.2f} (n = {COUNT} each): " + ", ".join(words)

    def _where(self) -> str:
        found = self.window
        if np.isnan(found.low):
            return f"no step size keeps all kinds at .99: the best, {found.best:.2f}, is at {found.best_at:.2f}"
        return f"all kinds at .99 for gamma from {found.low:.2f} to {found.high:.2f}"

    def _figure(self, gamma: float) -> go.Figure:
        """Lines over the step size above; the chosen step's attention below."""
        lines = figures_theory.panels(self.profile)
        fig = make_subplots(rows=2, cols=1, vertical_spacing=0.2, row_heights=[0.6, 0.4])
        for line in lines[0]:
            fig.add_trace(line, row=1, col=1)
        fig.add_vline(x=gamma, line={"color": figures.GREY, "dash": "dot"}, row=1, col=1)
        for name, words in MASSES.items():
            fig.add_bar(
                x=[_mass(found, name) for found in self.probes.values()], y=list(figures_theory.KIND_NAMES),
                name=f"on {words}", orientation="h", marker_color=figures_theory.MASS_COLOURS[name], row=2, col=1,
            )  # fmt: skip
        fig.update_xaxes(title_text="gamma", row=1, col=1).update_yaxes(title_text="share right", row=1, col=1)
        fig.update_xaxes(title_text=f"attention at gamma {gamma:g}", range=[0, 1], row=2, col=1)
        return fig.update_layout(height=620, legend={"font": {"size": 11}}).update_yaxes(
            range=[-0.03, 1.03], row=1, col=1
        )


def _mass(found: Probe, name: str) -> float:
    return round(float(getattr(found, name)), 3)


def step() -> Any:
    """The explorer, as the last line of a cell."""
    return StepExplorer().widget
