"""The explorers: widgets for JupyterLab, and what stands in their place in the rendered book.

An explorer needs a kernel. Where there is none, the functions of explorer_views and explorer_grid give figures with a
slider, and HOW tells how to open the live one. Each of `sequence`, `grid`, `neuron`, `sampler` and
`seeds` is the last line of a cell. Nothing but pages imports this module.
"""

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
import torch
from jaxtyping import Int
from torch import Tensor

from mc_lib import explorer_grid, explorer_views, figures, task
from mc_lib.config import KINDS, Config, Refusal
from mc_lib.explorer_grid import ANY, KINDS_OF_GRID, SIDES, grid_figure, grid_table, neuron_figure
from mc_lib.explorer_parts import Explorer, Message, menu, offer, row
from mc_lib.explorer_seeds import SeedExplorer
from mc_lib.explorer_views import MEAN, sequence_figure, sequence_table
from mc_lib.sampler import mixture, sample

__all__ = ["HOW", "grid", "grid_figure", "grid_table", "neuron", "neuron_figure", "sampler", "sequence"]
__all__ += ["seeds", "sequence_figure", "sequence_table"]

HOW = "In JupyterLab (<code>make lab</code>) the cell above is a live widget: run all cells of this page to use it."
DRAWS = 701  # stream of draws, apart from all others


# --- one sequence --------------------------------------------------------------------------------------


def example(cfg: Config) -> str:
    """The sequence that the book opens with, or what of it the run has room for."""
    first = f"c={1 % cfg.p}, " if cfg.max_assignments > 2 else ""
    return f"{first}b={17 % cfg.p}, a={42 % cfg.p}, b+{19 % cfg.p}=?"


def draw(cfg: Config, kind: int | None, seed: int) -> Int[Tensor, " pos"]:
    """A sequence as training has them, of one kind or (None) of any."""
    first, second = (task.variables_for(cfg, side, True) for side in (0, 1))
    share = [1.0 if kind in (None, k) else 0.0 for k in range(4)]
    mix = mixture((share[0], share[1], share[2], share[3]), task.training_pairs(cfg), first, second,
                  task.variable_pairs(cfg, 0))  # fmt: skip
    if kind is not None and not mix.counts[kind]:
        raise Refusal(f"training shows no {KINDS[kind]} sequence in this run: choose another kind")
    return sample(cfg, mix, 1, DRAWS, seed)[0]


class SequenceExplorer(Explorer):
    """One sequence, typed or drawn, at any saved step: attention, answers, and what lifts the right one."""

    def __init__(self, path: str, text: str = ""):
        self._first_text, self._seed = text, 0
        self._axes: tuple[Any, ...] = ()  # the choices that the figure's panels were laid out for
        super().__init__(path)

    def _controls(self) -> list[widgets.Widget]:
        self.text = widgets.Text(description="sequence", layout={"width": "420px"}, continuous_update=True)
        self.text_message = Message()
        self.kinds = [widgets.Button(description=kind, layout={"width": "auto"}) for kind in KINDS]
        self.random = widgets.Button(description="random", layout={"width": "auto"})
        self.example = widgets.Button(description="example", layout={"width": "auto"})
        for kind, button in enumerate(self.kinds):
            button.on_click(lambda _, kind=kind: self._drawn(kind))
        self.random.on_click(lambda _: self._drawn(None))
        self.example.on_click(lambda _: setattr(self.text, "value", example(self.cfg)))
        self.layer = menu("layer", [("both", None), ("1", 1), ("2", 2)])
        self.head1, self.head2 = menu("head of layer 1", [("1", 0)]), menu("head of layer 2", [("1", 0)])
        buttons = row(*self.kinds, self.random, self.example)
        return [self.text, self.text_message.widget, buttons, row(self.step, self.layer, self.head1, self.head2)]

    def _drivers(self) -> list[widgets.Widget]:
        return [self.text, self.step, self.layer, self.head1, self.head2]

    def _fit(self) -> None:
        super()._fit()
        heads = self.cfg.heads
        options = [(str(head + 1), head) for head in range(heads)] + [("mean", MEAN)] * (heads > 1)
        for heads_menu in (self.head1, self.head2):
            offer(heads_menu, options, 0)
        wanted = self.text.value or self._first_text or example(self.cfg)
        try:
            task.parse(wanted, self.cfg)
        except Refusal:
            wanted = example(self.cfg) if self.text.value else wanted
        self.text.value, self._axes = wanted, ()

    def _drawn(self, kind: int | None) -> None:
        self._seed += 1
        try:
            self.text.value = task.format(draw(self.cfg, kind, self._seed), self.cfg)
        except Refusal as refusal:
            self.text_message.say(str(refusal))

    def redraw(self) -> None:
        try:
            self.tokens = task.parse(self.text.value, self.cfg)
        except Refusal as refusal:
            self.text_message.say(str(refusal))
            return
        self.text_message.say("")
        super().redraw()

    def _draw(self) -> tuple[go.Figure, str]:
        cfg, layer = self.cfg, self.layer.value
        self.seen = explorer_views.look(self.saved.at(self.step.value), self.tokens, cfg)
        heads = (self.head1.value, self.head2.value)
        panels = explorer_views.shown_panels(layer)
        if self._axes != (layer, heads):
            self._axes = (layer, heads)
            names = ["mean of heads" if head == MEAN else f"head {head + 1}" for head in heads]
            self._figure = explorer_views.sequence_axes(cfg, layer, (names[0], names[1]), wide=True)
            for panel, trace in zip(panels, explorer_views.blank_traces(cfg, panels), strict=True):
                x, y = explorer_views.PLACES[panel]
                self._figure.add_trace(trace.update(name=panel, xaxis=x, yaxis=y))
        values = explorer_views.sequence_traces(self.seen, cfg, *heads)
        for panel, trace in zip(panels, self._figure.data, strict=True):
            trace.update(values[panel])
        explorer_views.label_tokens(self._figure, self.tokens, cfg)
        says = f"{task.format(self.tokens, cfg)} The model says {self.seen.said}, right is {self.seen.right}."
        return self._figure, f"Attention, answers and lifts for {says}"


# --- all pairs, and one neuron -------------------------------------------------------------------------


class GridExplorer(Explorer):
    """Accuracy over all number pairs, for a kind, a variable and the side on which it stands."""

    def _controls(self) -> list[widgets.Widget]:
        self.kind = menu("kind", [(kind, kind) for kind in KINDS_OF_GRID])
        self.kind.value = "1-var"
        self.variable, self.side = menu("variable", [(ANY, ANY)]), menu("side", [(side, side) for side in SIDES])
        self.contexts = menu("sequences a pair", [(str(count), count) for count in (1, 4, 16)])
        self.numbers = Message()
        return [row(self.kind, self.variable, self.side, self.contexts), self.step, self.numbers.widget]

    def _drivers(self) -> list[widgets.Widget]:
        return [self.kind, self.variable, self.side, self.contexts, self.step]

    def _fit(self) -> None:
        super()._fit()
        offer(self.variable, [(name, name) for name in (ANY, *self.cfg.letters)], ANY)

    def _draw(self) -> tuple[go.Figure, str]:
        cfg, none = self.cfg, self.kind.value == "0-var"
        self.variable.disabled = self.side.disabled = none
        choice = (self.kind.value, ANY if none else self.variable.value, self.side.value, self.contexts.value)
        tokens = explorer_grid.grid_tokens(cfg, *choice)
        self.map = explorer_grid.grid(self.saved.at(self.step.value), tokens, cfg)
        label = explorer_grid.grid_label(self.map, cfg)
        self.numbers.say(f"right: {label} (n = {len(tokens)} sequences)", "inherit")
        fig = explorer_grid.grid_axes()
        fig.add_trace(explorer_grid.grid_heatmap().update(explorer_grid.grid_trace(self.map, cfg)))
        return fig, f"A map of accuracy over number pairs: {label}."


class NeuronExplorer(Explorer):
    """One neuron's pre-activation over all pairs, and how much of it is one wave in n plus one in m."""

    def _controls(self) -> list[widgets.Widget]:
        self.order = menu("order", [("by number", "number"), ("best fit first", "best"), ("worst first", "worst")])
        self.place = widgets.IntSlider(0, 0, 0, description="place", layout={"width": "420px"})
        self.numbers = Message()
        return [row(self.order, self.place), self.step, self.numbers.widget]

    def _drivers(self) -> list[widgets.Widget]:
        return [self.order, self.place, self.step]

    def _fit(self) -> None:
        super()._fit()
        self.place.max, self._at = self.cfg.d_mlp - 1, None

    def _draw(self) -> tuple[go.Figure, str]:
        step = self.step.value
        if self._at != step:  # a second of work, so it is done once a step
            self.maps, self.found = explorer_grid.neuron_maps(self.saved.at(step), self.cfg)
            self._at = step
        ranked = self.found.best.argsort(descending=self.order.value == "best")
        self.neuron = self.place.value if self.order.value == "number" else int(ranked[self.place.value])
        k, fit = int(self.found.frequency[self.neuron]), self.found.best[self.neuron].item()
        active = self.found.active[self.neuron].item()
        label = f"neuron {self.neuron}: frequency {k}, R² = {fit:.3f}, active on {active:.0%} of {self.cfg.p**2} pairs"
        self.numbers.say(label, "inherit")
        return explorer_grid.neuron_panels(self.maps[..., self.neuron], k), f"Two maps of {label}."


class SamplerExplorer(Explorer):
    """Sequences as training draws them, of one kind or of any."""

    def _controls(self) -> list[widgets.Widget]:
        self.kind = menu("kind", [("any", None), *((kind, k) for k, kind in enumerate(KINDS))])
        self.again = widgets.IntSlider(1, 1, 100, description="draw")
        return [row(self.kind, self.again)]

    def _drivers(self) -> list[widgets.Widget]:
        return [self.kind, self.again]

    def _draw(self) -> tuple[go.Figure, str]:
        numbers = range(6)
        seeds = [100 * self.again.value + number for number in numbers]
        self.tokens = torch.stack([draw(self.cfg, self.kind.value, seed) for seed in seeds])
        fig = figures.token_strips(self.tokens, [f"{number + 1}." for number in numbers], self.cfg)
        return fig, "Sequences: " + "; ".join(task.format(tokens, self.cfg) for tokens in self.tokens)


def _or_line(make: Callable[[], Any]) -> Any:
    """The explorer, or the one line that says why there is none: a page about any run must go on."""
    try:
        return make()
    except Refusal as refusal:
        message = Message()
        message.say(str(refusal))
        return message.widget


def sequence(path: str, text: str = "") -> Any:
    """The sequence explorer of a run, as the last line of a cell."""
    return _or_line(lambda: SequenceExplorer(path, text))


def grid(path: str) -> Any:
    return _or_line(lambda: GridExplorer(path))


def neuron(path: str) -> Any:
    return _or_line(lambda: NeuronExplorer(path))


def sampler(path: str) -> Any:
    return _or_line(lambda: SamplerExplorer(path))


def seeds(path: str) -> Any:
    """The explorer of the seeds that were trained beside a run."""
    return _or_line(lambda: SeedExplorer(path))
