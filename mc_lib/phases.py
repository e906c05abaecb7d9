"""When a run learns what, read from its metrics by stated rules.

A jump is the rise of one accuracy: it ends at the first logged step at or above HIGH, and it begins at the last logged
step before that which is still below LOW. The first jump is that of "1-var train", the second that of "1-var
var-restricted". A jump that does not happen by the last logged step is None: the run is censored there, which says
that the jump comes later or never. Three phases follow: addition until the first jump begins, binding until the second
begins, refinement from then on. A cell is a variable on a side, as in `routing`.

Everything here needs metrics alone, so that it can be asked of many runs whose checkpoints were not kept.
"""

from dataclasses import dataclass

import pandas as pd

from mc_lib.claim import first_step
from mc_lib.config import Config
from mc_lib.routing import cell_names

LOW, HIGH = 0.8, 0.9
ADDITION, FIRST, SECOND = "0-var train", "1-var train", "1-var var-restricted"
NAMES = ("addition", "binding", "refinement")


@dataclass(frozen=True)
class Jump:
    """The rise of an accuracy, in steps."""

    begins: int
    ends: int

    @property
    def width(self) -> int:
        return self.ends - self.begins

    def __str__(self) -> str:
        return f"{self.begins} to {self.ends}"


@dataclass(frozen=True)
class Span:
    """A phase, in steps; `complete` unless the run ends before the phase does."""

    name: str
    start: int
    end: int
    complete: bool


@dataclass(frozen=True)
class Phases:
    """The marks of one run: the step of addition, the two jumps, and the last logged step; None is censored."""

    last: int
    addition: int | None
    first: Jump | None
    second: Jump | None

    @property
    def spans(self) -> list[Span]:
        """The phases that begin, one after the other; what happens at once leaves no phase between."""
        ends = [jump.begins if jump else None for jump in (self.first, self.second)]
        spans, start = [], 0
        for name, end in zip(NAMES, (*ends, None), strict=True):
            stop = self.last if end is None else max(start, end)
            if stop > start:
                spans.append(Span(name, start, stop, end is not None or name == NAMES[-1]))
            if end is None:
                break
            start = stop
        return spans


def curve(metrics: pd.DataFrame, name: str) -> pd.Series:
    """A logged measure by step, in the order of steps, without gaps; empty where it was not logged."""
    if name not in metrics or "step" not in metrics:
        return pd.Series(dtype=float)
    return metrics.set_index("step")[name].dropna().sort_index()


def jump(series: pd.Series, low: float = LOW, high: float = HIGH) -> Jump | None:
    """The rise of a measure from below `low` to `high`; None if it never reaches `high`."""
    ends = first_step(series, high)
    if ends is None:
        return None
    below = series.index[(series < low) & (series.index < ends)]
    return Jump(int(below[-1] if len(below) else series.index[0]), ends)


def phases(metrics: pd.DataFrame) -> Phases:
    """The marks of a run with these metrics; without metrics nothing happened."""
    last = int(metrics["step"].max()) if "step" in metrics and len(metrics) else 0
    addition = first_step(curve(metrics, ADDITION), HIGH)
    return Phases(last, addition, jump(curve(metrics, FIRST)), jump(curve(metrics, SECOND)))


def cell_steps(metrics: pd.DataFrame, cfg: Config, level: float = HIGH) -> pd.Series:
    """The first logged step at which each cell reaches `level`; <NA> where it never does."""
    steps = {cell: first_step(curve(metrics, cell), level) for cell in cell_names(cfg)}
    return pd.Series(steps, dtype="Int64")


def restricted_cells(cfg: Config) -> list[str]:
    """The cells that training never shows."""
    return [f"{v} first" for v in cfg.not_first] + [f"{v} second" for v in cfg.not_second]


def late_cells(metrics: pd.DataFrame, cfg: Config, marks: Phases) -> list[str]:
    """The cells still unsolved in the second half of the time between the jumps: median accuracy below HIGH.

    Without a second jump that time lasts to the run's end. None are named without a first jump.
    """
    if marks.first is None:
        return []
    end = marks.second.ends - 1 if marks.second else marks.last
    start = (marks.first.ends + end) / 2
    between = {cell: curve(metrics, cell).loc[start:end] for cell in cell_names(cfg)}
    return [cell for cell, seen in between.items() if len(seen) and seen.median() < HIGH]


def held_step(series: pd.Series, level: float = HIGH, rows: int = 5) -> int | None:
    """The first logged step at which a measure reaches `level` and is there in the next rows - 1 rows too.

    Some measures pass a level by chance in the first steps, while nothing is learned yet; this passes them over.
    """
    reached = series >= level
    kept = reached.iloc[::-1].rolling(rows, min_periods=1).min().iloc[::-1].astype(bool)
    return first_step(kept.astype(float), 1.0)


def whole_rise(series: pd.Series, rise: Jump) -> float:
    """What share of a measure's whole rise, from its first to its last logged value, falls within a jump."""
    whole = series.iloc[-1] - series.iloc[0]
    return float((series.loc[rise.ends] - series.loc[rise.begins]) / whole) if whole else 0.0


def rank_correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's: how far two measures rise and fall together, 1 for always; NaN where one of them is constant."""
    ranks = pd.concat([one, other], axis=1).dropna().rank()
    if len(ranks) < 3 or (ranks.nunique() < 2).any():
        return float("nan")
    return float(ranks.iloc[:, 0].corr(ranks.iloc[:, 1]))


def order(metrics: pd.DataFrame, names: tuple[str, ...], level: float = HIGH) -> list[tuple[str, int | None]]:
    """The measures with the step from which each is held at `level`, earliest first, those that never are last."""
    found = [(name, held_step(curve(metrics, name), level)) for name in names]
    return sorted(found, key=lambda item: (item[1] is None, item[1] or 0))


def chosen_steps(saved: list[int], marks: Phases, most: int = 25) -> list[int]:
    """At most `most` of the saved steps: the first, those of the story and around the jumps, others evenly spaced."""
    if len(saved) <= most:
        return list(saved)
    must = {saved[0], *story_steps(saved, marks).values()}
    for rise in (marks.first, marks.second):
        for wanted in (rise.begins, rise.ends) if rise else ():
            must.add(_nearest(saved, wanted))
    others = [step for step in saved if step not in must]
    room = most - len(must)
    return sorted(must | {others[(2 * i + 1) * len(others) // (2 * room)] for i in range(room)})


def story_steps(saved: list[int], marks: Phases) -> dict[str, int]:
    """Saved steps that tell the story: one in the middle of addition, one between the jumps, the last."""
    found: dict[str, int] = {}
    before = [step for step in saved if marks.first and 0 < step <= marks.first.begins]
    if marks.first and before:
        found["during addition"] = _nearest(before, marks.first.begins / 2)
    if marks.first and marks.second:
        between = [step for step in saved if marks.first.ends <= step <= marks.second.begins]
        if between:
            found["between the jumps"] = _nearest(between, (marks.first.ends + marks.second.begins) / 2)
    return found | {"at the end": saved[-1]}


def _nearest(steps: list[int], wanted: float | int) -> int:
    return min(steps, key=lambda step: abs(step - wanted))
