"""How much training data it takes: the two sweeps of the paper's Figure 3, and the thresholds read off them.

A point is one value of what is swept, with how many of its test items are answered right. Its interval is Wilson's; of
several seeds it is the span of theirs. The threshold at a level is the first value whose share is at the level and from
which on no point is surely below it, which is to say: has its whole interval below. Its interval reaches from the last
point before it that is surely below (exclusive) to the first one from the threshold on that is surely not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from mc_lib import many
from mc_lib.claim import NotHere
from mc_lib.config import Config, Refusal
from mc_lib.intervals import wilson
from mc_lib.runs import Run
from mc_lib.sampler import DRAW_BITS, training_mixture
from mc_lib.sweep import TABLE

Over = Literal["fig3a", "fig3b"]
SWEPT = {"fig3a": "held_out", "fig3b": "two_var"}
PARTS = {
    "fig3a": ("0-var held out", "0-var mirror in training", "0-var both orders out", "0-var diagonal out"),
    "fig3b": ("2-var union", "2-var add-restricted", "2-var var-restricted (1)", "2-var var-restricted (2)"),
}
LEVEL = {"fig3a": 0.97, "fig3b": 0.95}  # those of the claims gen.pairs and gen.positions


@dataclass(frozen=True)
class Threshold:
    """Where a level is reached for good: above `low`, at `at`, and at `high` beyond doubt; None is off the grid."""

    low: float | None
    at: float | None
    high: float | None

    def __str__(self) -> str:
        if self.at is None:
            return "never reached"
        low = "below the grid" if self.low is None else f"{self.low:.3f}"
        high = "open" if self.high is None else f"{self.high:.3f}"
        return f"{self.at:.3f} ({low}, {high}]"


def read(folder: Path) -> pd.DataFrame:
    """The table of a sweep, with the union of the 2-variable sets added."""
    try:
        letters = dict.fromkeys(("not_first", "not_second"), str)
        table = pd.read_csv(folder / TABLE, converters=letters)
        for what in ("right", "n"):
            table[f"2-var union: {what}"] = sum(table[f"{part}: {what}"] for part in PARTS["fig3b"][1:])
    except (OSError, ValueError, KeyError) as error:
        raise Refusal(f"{folder / TABLE} cannot be read: make it with python -m mc_lib sweep {folder}") from error
    return table


def points(table: pd.DataFrame, over: Over, part: str) -> pd.DataFrame:
    """A row a value: hits and items of all its seeds, the share, its interval, and how many seeds there are."""
    rows = []
    for value, runs in table.groupby(SWEPT[over]):
        right, n = runs[f"{part}: right"].astype(int), runs[f"{part}: n"].astype(int)
        if n.min():
            each = [wilson(*pair) for pair in zip(right, n, strict=True)]
            low, high = min(pair[0] for pair in each), max(pair[1] for pair in each)
            x = 1 - float(str(value)) if over == "fig3a" else float(str(value))
            rows.append((x, right.sum(), n.sum(), right.sum() / n.sum(), low, high, len(runs)))
    columns = ["value", "right", "n", "share", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).sort_values("value").set_index("value")


def threshold(found: pd.DataFrame, level: float) -> Threshold:
    """The threshold of these points, by the rule above."""
    below = found.index[found["high"] < level]
    rest = found.loc[below[-1] :].iloc[1:] if len(below) else found
    reached = rest.index[rest["share"] >= level]
    if not len(reached):
        return Threshold(float(below[-1]) if len(below) else None, None, None)
    beyond = rest.loc[reached[0] :]
    sure = beyond.index[beyond["low"] >= level]
    return Threshold(float(below[-1]) if len(below) else None, float(reached[0]), float(sure[0]) if len(sure) else None)


def folder_for(run: Run, over: Over) -> Path:
    """The sweep beside a run, if it is one of the run's own settings."""
    folder = many.beside(run, f"{many.SWEEPS}/{over}")
    if folder is None:
        raise NotHere(f"needs {many.SWEEPS}/{over} beside the run: one run cannot tell how much training data it takes")
    if differ := differences(read(folder), run.config, over):
        raise NotHere(f"{many.SWEEPS}/{over} was trained with other settings than this run: {', '.join(differ)}")
    return folder


def differences(table: pd.DataFrame, cfg: Config, over: Over) -> list[str]:
    """The settings, other than the one swept, in which a sweep's table and a run differ."""
    shared = many.settings(cfg, (SWEPT[over],))
    return [name for name, value in shared.items() if not (table[name] == value).all()]


def two_var_share(cfg: Config, factor: float) -> float:
    """The share of training sequences that have two variables, for a factor f on their weight."""
    return 1 - int(training_mixture(cfg.replace(two_var=factor)).thresholds[-1]) / 2**DRAW_BITS
