"""The explorer of seeds: pick one of many runs, see its story.

Unlike the other explorers it looks at logged metrics alone, so a seed needs no checkpoints.
"""

import ipywidgets as widgets
import pandas as pd
import plotly.graph_objects as go
from IPython.display import display

from mc_lib import figures, figures_learning, many, phases, verdicts
from mc_lib.claim import VERDICTS
from mc_lib.claims import CLAIMS
from mc_lib.evaluation import NINE
from mc_lib.explorer_parts import Message, Picture, menu, row
from mc_lib.many import Seed
from mc_lib.measures import SEVEN
from mc_lib.runs import open_run
from mc_lib.storage import AnyPath

SHOWN = ("accuracies", "progress measures", "cells never trained", "layer-1 scores")


def told(seed: Seed) -> str:
    """A seed's story in a line."""
    steps = "; ".join(f"{event} {'never' if at is None else f'at {at:,}'}" for event, at in seed.steps.items())
    last = ", ".join(many.last_cells(seed))
    return f"seed {seed.number}: {seed.fate}; {steps}" + (f"; last cell: {last}" if last else "")


def lines(seed: Seed, shown: str) -> dict[str, tuple[pd.Series, dict[str, str]]]:
    """What is drawn for a choice."""
    metrics, cfg = seed.run.metrics, seed.run.config
    if shown == SHOWN[0]:
        found = {name: (phases.curve(metrics, name), figures.set_style(name)) for name in NINE}
    elif shown == SHOWN[3]:
        found = figures_learning.score_lines(metrics, cfg)
    else:
        names = SEVEN if shown == SHOWN[1] else phases.restricted_cells(cfg)
        colours = zip(names, figures.PALETTE * 4, strict=False)
        found = {name: (phases.curve(metrics, name), {"color": colour}) for name, colour in colours}
    return {name: line for name, line in found.items() if len(line[0])}


class SeedExplorer:
    """A menu of seeds, a menu of what to draw, the figure with its phases, and the claims that fail."""

    def __init__(self, path: AnyPath):
        folder = many.find(open_run(path), many.SEEDS)
        self.seeds = many.read(folder)
        saved = verdicts.read(folder)
        self.verdicts = saved if verdicts.current(saved, [seed.run for seed in self.seeds], CLAIMS) else None
        self.remedy = f"its claims are not measured: python -m mc_lib claims {folder.name} does it"
        options = [(f"{seed.number}: {seed.fate}", place) for place, seed in enumerate(self.seeds)]
        self.seed, self.shown = menu("seed", options), menu("show", [(name, name) for name in SHOWN])
        self.story, self.failing, self.picture = Message(), Message(), Picture()
        for control in (self.seed, self.shown):
            control.observe(lambda _: self.redraw(), "value")
        self.redraw()
        parts = [row(self.seed, self.shown), self.story.widget, self.failing.widget, self.picture.widget]
        self.widget = widgets.VBox(parts)

    def redraw(self) -> None:
        seed = self.seeds[self.seed.value]
        self.story.say(told(seed), "inherit")
        if self.verdicts is not None:
            mine = self.verdicts[(self.verdicts.run == seed.run.name) & (self.verdicts.verdict == VERDICTS[False])]
            self.failing.say(f"claims that do not hold: {', '.join(mine.claim) or 'none'}", "inherit")
        else:
            self.failing.say(self.remedy)
        self.picture.draw(*self.draw(seed))

    def draw(self, seed: Seed) -> tuple[go.Figure, str]:
        found = lines(seed, self.shown.value)
        fig = figures_learning.over_steps(found, seed.marks, self.shown.value) if found else go.Figure()
        return fig, f"{self.shown.value} of {told(seed)}"

    def _ipython_display_(self) -> None:
        display(self.widget)
