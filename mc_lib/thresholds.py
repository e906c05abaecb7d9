"""How much training data it takes: the two sweeps of the paper's Figure 3, and the thresholds read off them.

A point is one run: a value of what is swept, with how many of its test items are answered right and Wilson's interval
for their share. A run *solves* its test at a level if that interval reaches the level: it is not surely below.

Intervals of single points say how well each model was tested, not how much another run with the same data would differ,
and that is more. So a threshold is estimated with runs as the units. It is the split of the values at which "runs solve
the test at one rate below and at a higher rate above" is most likely; its 95% interval holds all splits that are not
much less likely (a log-likelihood within 1.92). Chance is how often outcomes dealt to the values at random would favour
some split over no split as strongly. If that is not rare, there is no telling where a threshold lies, or whether.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

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
RARE = 0.05
DROP = 1.92  # half of the 95% point of chi-square with one degree of freedom


@dataclass(frozen=True)
class Threshold:
    """The likeliest split lies above `below` and up to `at`; its interval reaches from `low` to `high`."""

    below: float
    at: float
    low: float
    high: float
    chance: float

    def __str__(self) -> str:
        interval = f"95% interval {self.low:.3f} to {self.high:.3f}"
        return f"between {self.below:.3f} and {self.at:.3f}, {interval}, chance {self.chance:.4f}"


def read(folder: Path, over: Over) -> pd.DataFrame:
    """The table of a sweep, with the union of the 2-variable sets added."""
    path, remedy = folder / TABLE, f"make it with python -m mc_lib sweep {folder} --over {over}"
    try:
        table = pd.read_csv(path, converters=dict.fromkeys(("not_first", "not_second"), str))
        union = {
            f"2-var union: {what}": sum(table[f"{part}: {what}"] for part in PARTS["fig3b"][1:])
            for what in ("right", "n")
        }
        table = pd.concat([table, pd.DataFrame(union)], axis=1)
        for part in (*PARTS["fig3a"], *PARTS["fig3b"]):
            right, n = table[f"{part}: right"].astype(int), table[f"{part}: n"].astype(int)
            if not ((right >= 0) & (right <= n)).all():
                raise ValueError(f"more right than there are: {part}")
        if missing := [name for name in Config().to_dict() if name not in table]:
            raise ValueError(f"no column {missing[0]}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{path} is no table of a sweep: {remedy}") from error
    if table[SWEPT[over]].nunique() < 2 or table["steps"].nunique() != 1:
        raise Refusal(f"{path} is no sweep over several values of {SWEPT[over]} with runs of one length: {remedy}")
    return table


def points(table: pd.DataFrame, over: Over, part: str) -> pd.DataFrame:
    """A row a run that has such items: the value, hits and items, their share and its interval; by value."""
    rows = []
    for value, right, n in table[[SWEPT[over], f"{part}: right", f"{part}: n"]].itertuples(index=False):
        if n:
            x = 1 - value if over == "fig3a" else value
            rows.append((x, int(right), int(n), right / n, *wilson(int(right), int(n))))
    found = pd.DataFrame(rows, columns=["value", "right", "n", "share", "low", "high"])
    return found.sort_values("value", kind="stable").set_index("value")


def by_value(found: pd.DataFrame) -> pd.DataFrame:
    """The points of all runs with one value together: the mean of their shares, hits, items, and how many runs."""
    together = found.groupby(level="value")
    counts = pd.DataFrame({"share": together["share"].mean(), "right": together["right"].sum()})
    return counts.assign(n=together["n"].sum(), runs=together.size())


def spell(found: pd.DataFrame, level: float) -> str:
    """The threshold in words, or why there is none."""
    try:
        return str(threshold(found, level))
    except NotHere as reason:
        return str(reason)


def threshold(found: pd.DataFrame, level: float) -> Threshold:
    """The threshold of these points, by the rule above; NotHere where all runs end alike."""
    solved = (found["high"] >= level).to_numpy()
    if solved.all() or not solved.any():
        raise NotHere(f"{'every' if solved.all() else 'no'} run of this sweep is at {level}: no threshold on its grid")
    values = found.index.to_numpy(dtype=float)
    ends = np.flatnonzero(np.diff(values) > 0)  # a split comes after each of these runs
    gains = _gains(solved[None], ends)[0]
    best, near = int(gains.argmax()), np.flatnonzero(gains >= gains.max() - DROP)
    random = np.random.default_rng(0)
    dealt = np.stack([random.permutation(solved) for _ in range(many.DRAWS)])
    chance = (1 + int((_gains(dealt, ends).max(axis=1) >= gains.max() - 1e-9).sum())) / (1 + many.DRAWS)
    below, at = values[ends[best]], values[ends[best] + 1]
    return Threshold(below, at, values[ends[near[0]]], values[ends[near[-1]] + 1], chance)


def _gains(solved: Bool[np.ndarray, "draw run"], ends: np.ndarray) -> Float[np.ndarray, "draw split"]:
    """How much likelier (in logarithms) two rates are than one, for each split; 0 where the rate falls."""
    n, below = solved.shape[1], ends + 1.0
    low = solved.cumsum(axis=1)[:, ends].astype(float)
    high = solved.sum(axis=1, keepdims=True) - low
    gain = _likely(low, below) + _likely(high, n - below) - _likely(low + high, float(n))
    return np.where(high * below > low * (n - below), gain, 0.0)


def _likely(hits: np.ndarray, n: np.ndarray | float) -> np.ndarray:
    """Log-likelihood of so many hits of n at their own rate."""
    rate = hits / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(hits * np.log(rate)) + np.nan_to_num((n - hits) * np.log1p(-rate))


# --- which sweep is meant ------------------------------------------------------------------------------


def folder_for(run: Run, over: Over) -> Path:
    """The sweep beside a run, if it is one of the run's own settings."""
    folder = many.beside(run, f"{many.SWEEPS}/{over}")
    if folder is None:
        raise NotHere(f"needs {many.SWEEPS}/{over} beside the run: one run cannot tell how much training data it takes")
    if differ := differences(read(folder, over), run.config, over):
        raise NotHere(f"{many.SWEEPS}/{over} was trained with other settings than this run: {', '.join(differ)}")
    return folder


def differences(table: pd.DataFrame, cfg: Config, over: Over) -> list[str]:
    """The settings, other than the one swept, in which a sweep's table and a run differ."""
    shared = many.settings(cfg, (SWEPT[over],))
    return [name for name, value in shared.items() if not (table[name] == value).all()]


def two_var_share(cfg: Config, factor: float) -> float:
    """The share of training sequences that have two variables, for a factor f on their weight."""
    return 1 - int(training_mixture(cfg.replace(two_var=factor)).thresholds[-1]) / 2**DRAW_BITS
