"""Many seeds: what runs that differ in their seed alone have in common, and where they part.

A seed is such a run with its marks: the two jumps (as in `phases`), and the step at which it is solved, the first
evaluation with all nine accuracies at SOLVED. A seed that is solved by its last step generalises; it need not stay
there (`kept` and `lowest` tell). What has not happened by a run's last step is censored there: it comes later or never.
All runs of a folder are equally long, so every share "not by step t" is a plain count, and its interval is the exact
one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from mc_lib import fourier, phases
from mc_lib.claim import NotHere, first_step
from mc_lib.config import Config, Refusal
from mc_lib.evaluation import NINE
from mc_lib.intervals import exact
from mc_lib.phases import Phases
from mc_lib.runs import Run, list_runs, open_run
from mc_lib.storage import AnyPath
from mc_lib.sweep import TABLE

SOLVED = 0.98
SEEDS, SWEEPS = "seeds", "sweeps"
EVENTS = ("jump 1", "jump 2", "solved")
FATES = ("both jumps", "first jump only", "no jump")
OWN = ("seed", "steps", "eval_every")  # settings in which runs may differ and still be runs of the same thing
DRAWS = 4000


@dataclass(frozen=True)
class Seed:
    """A run and its marks; None is censored."""

    run: Run
    marks: Phases
    solved: int | None

    @property
    def number(self) -> int:
        return self.run.config.seed

    @property
    def fate(self) -> str:
        return FATES[2 - sum(rise is not None for rise in (self.marks.first, self.marks.second))]

    @property
    def steps(self) -> dict[str, int | None]:
        """When what happened."""
        first, second = (rise.ends if rise else None for rise in (self.marks.first, self.marks.second))
        return dict(zip(EVENTS, (first, second, self.solved), strict=True))

    @property
    def lowest(self) -> float:
        """The lowest of the nine accuracies at the last evaluation."""
        return float(lowest_accuracy(self.run.metrics).iloc[-1])

    @property
    def kept(self) -> float:
        """Of the evaluations from the one on that solved it, the share in which all nine are at SOLVED again."""
        later = lowest_accuracy(self.run.metrics).loc[self.solved if self.solved is not None else self.marks.last + 1 :]
        return float((later >= SOLVED).mean())


def lowest_accuracy(metrics: pd.DataFrame) -> pd.Series:
    """The lowest of the nine accuracies (of those that the config defines), by step."""
    logged = [name for name in NINE if len(phases.curve(metrics, name))]
    return metrics.set_index("step")[logged].min(axis=1) if logged else pd.Series(dtype=float)


def solved_step(metrics: pd.DataFrame, level: float = SOLVED) -> int | None:
    """The first step at which all nine accuracies are at `level`."""
    return first_step(lowest_accuracy(metrics), level)


def seed_of(run: Run) -> Seed:
    return Seed(run, phases.phases(run.metrics), solved_step(run.metrics))


# --- where they are ------------------------------------------------------------------------------------


def settings(cfg: Config, but: Sequence[str] = ()) -> dict[str, object]:
    """The settings that runs of the same thing share."""
    return {name: value for name, value in cfg.to_dict().items() if name not in (*OWN, *but)}


def beside(run: Run, name: str) -> Path | None:
    """The sweep `name` that was saved beside a run; of seeds also the one that the run is itself a part of."""
    above = run.path.resolve().parents[:2]
    if name == SEEDS and (above[0] / TABLE).is_file() and _over_seeds_alone(above[0]):
        return above[0]
    return next((place / name for place in above if (place / name / TABLE).is_file()), None)


def _over_seeds_alone(folder: Path) -> bool:
    """Whether the runs of a sweep's table share all settings that make them runs of the same thing."""
    rows = _listed(folder)
    shared = [name for name in settings(Config()) if name in rows]
    return "seed" in rows and bool((rows[shared].nunique(dropna=False) <= 1).all())


def _listed(folder: Path) -> pd.DataFrame:
    """The table of a sweep, as text; empty where there is none."""
    if not (folder / TABLE).is_file():
        return pd.DataFrame()
    try:
        return pd.read_csv(folder / TABLE, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise Refusal(f"{folder / TABLE} is no table: write it anew with python -m mc_lib sweep {folder}") from error


def find(run: Run, name: str) -> Path:
    """The sweep beside a run; where there is none, the book's own."""
    found = beside(run, name)
    for place in (Path.cwd(), *Path.cwd().parents):
        found = found or (place / "runs" / name if (place / "runs" / name / TABLE).is_file() else None)
    if found is None:
        over = name.removeprefix(f"{SWEEPS}/")
        raise Refusal(f"there is no runs/{name}: make it with python -m mc_lib sweep runs/{name} --over {over}")
    return found


def read(folder: AnyPath) -> list[Seed]:
    """The seeds saved in a folder, in their order; all that its table lists, each once."""
    folder = Path(folder)
    if (folder / "manifest.json").exists():
        raise Refusal(f"{folder} is one run: name the folder that holds it and others")
    runs = [open_run(path) for path in list_runs(folder)]
    if not runs:
        raise Refusal(f"{folder} holds no runs: make them with python -m mc_lib sweep {folder}")
    for run in runs:
        _check(run, runs[0])
    if double := [run for run, other in pairwise(sorted(runs, key=_number)) if _number(run) == _number(other)]:
        raise Refusal(f"{folder} holds seed {_number(double[0])} twice: move one of the two to another folder")
    if missing := sorted(set(_listed(folder).get("run", [])) - {run.name for run in runs}):
        raise Refusal(f"{folder / missing[0]}, listed in {TABLE}, is gone: python -m mc_lib sweep makes it again")
    return sorted(map(seed_of, runs), key=lambda seed: seed.number)


def _number(run: Run) -> int:
    return run.config.seed


def _check(run: Run, like: Run) -> None:
    """Refuses a run that cannot be counted together with another."""
    if not run.finished:
        raise Refusal(f"{run.path} is not finished: python -m mc_lib resume {run.path}")
    if not len(run.metrics):
        raise Refusal(f"{run.path} has no metrics over training: move it to another folder")
    same = settings(run.config) == settings(like.config) and list(run.metrics["step"]) == list(like.metrics["step"])
    if not same:
        raise Refusal(f"{run.path} and {like.path} differ in more than their seed: move one to another folder")


# --- when it happens -----------------------------------------------------------------------------------


def stories(seeds: Sequence[Seed]) -> pd.DataFrame:
    """A row a seed: what became of it, when, and which restricted cell came last."""
    rows = []
    for s in seeds:
        end = {"kept": round(s.kept, 2), "lowest at end": round(s.lowest, 4)}
        rows.append({"seed": s.number, "fate": s.fate, **s.steps, **end, "last cell": ", ".join(last_cells(s)) or "-"})
    table = pd.DataFrame(rows).set_index("seed")
    return table.astype(dict.fromkeys(EVENTS, "Int64"))


def waiting(seeds: Sequence[Seed], event: str) -> pd.DataFrame:
    """The share of seeds to which an event has not happened yet, by step, with its exact 95% interval."""
    steps = [seed.steps[event] for seed in seeds]
    happened = sorted(at for at in steps if at is not None)
    rows = []
    for step in dict.fromkeys((0, *happened, seeds[0].marks.last)):
        left = len(seeds) - sum(at <= step for at in happened)
        rows.append((step, left, left / len(seeds), *exact(left, len(seeds))))
    return pd.DataFrame(rows, columns=["step", "left", "share", "low", "high"]).set_index("step")


def middle_step(seeds: Sequence[Seed], event: str) -> int | None:
    """The median step of an event, censored seeds counted as later than all others; None if it is censored itself."""
    steps = sorted((seed.steps[event] is None, seed.steps[event] or 0) for seed in seeds)
    low, high = steps[(len(steps) - 1) // 2], steps[len(steps) // 2]
    return None if high[0] else (low[1] + high[1]) // 2


def spread(seeds: Sequence[Seed], name: str, shares: Sequence[float] = (0.25, 0.5, 0.75)) -> pd.DataFrame:
    """Quantiles over seeds of one logged measure, by step."""
    curves = pd.DataFrame({seed.number: phases.curve(seed.run.metrics, name) for seed in seeds})
    return curves.quantile(list(shares), axis=1).T


def last_cells(seed: Seed) -> list[str]:
    """The restricted cells that come last, those that never come before all others; [] for a seed without a jump."""
    cells = phases.restricted_cells(seed.run.config)
    steps = phases.cell_steps(seed.run.metrics, seed.run.config)[cells]
    if seed.marks.first is None or not cells:
        return []
    never = [cell for cell in cells if pd.isna(steps[cell])]
    return never or [cell for cell in cells if steps[cell] == steps.max()]


def order_of(seed: Seed) -> list[tuple[str, int | None]]:
    """Addition, binding and the places never trained, with the step at which each is at .9, the earliest first."""
    steps = {"addition": seed.marks.addition, "binding": seed.steps["jump 1"], "refinement": seed.steps["jump 2"]}
    return sorted(steps.items(), key=lambda item: (item[1] is None, item[1] or 0))


def in_order(seed: Seed) -> bool | None:
    """Whether addition, binding and refinement came one after the other; None if one of them is still to come.

    A later part that came although an earlier one did not is out of order.
    """
    steps = [seed.marks.addition, seed.steps["jump 1"], seed.steps["jump 2"]]
    known = [step for step in steps if step is not None]
    if known != sorted(set(known)) or steps[: len(known)] != known:
        return False
    return True if len(known) == len(steps) else None


# --- can it be told early ------------------------------------------------------------------------------


def early_measures(seeds: Sequence[Seed], step: int) -> pd.DataFrame:
    """Every logged measure of every seed at the last evaluation up to `step`; constant or undefined ones left out."""
    rows = {}
    for seed in seeds:
        table = seed.run.metrics.set_index("step")
        rows[seed.number] = table.loc[:step].iloc[-1]
    table = pd.DataFrame(rows).T.dropna(axis=1)
    return table.loc[:, table.nunique() > 1]


def ranked_steps(seeds: Sequence[Seed], event: str) -> Float[np.ndarray, " seed"]:
    """The step of an event for each seed; those censored share the last rank."""
    last = seeds[0].marks.last + 1
    return np.array([last if seed.steps[event] is None else seed.steps[event] for seed in seeds], dtype=float)


@dataclass(frozen=True)
class Foretold:
    """Rank correlation of each early measure with an outcome, strongest first, and what chance gives.

    `chance` is how often outcomes dealt to the seeds at random correlate with some measure as strongly as the
    strongest does here; a single measure's own significance would say nothing, since there are many.
    """

    correlations: pd.Series
    chance: float


def foretold(measures: pd.DataFrame, outcome: Float[np.ndarray, " seed"], draws: int = DRAWS) -> Foretold:
    """Which early measures go with an outcome (a step, or 1 for those that never come)."""
    if len(np.unique(outcome)) < 2 or not len(measures.columns):
        raise NotHere("all seeds share this outcome: there is nothing to tell apart")
    x, y = _standard(measures.to_numpy()), _standard(outcome[:, None])
    found = pd.Series((x.T @ y)[:, 0], measures.columns)
    found = found.reindex(found.abs().sort_values(ascending=False, kind="stable").index)
    random = np.random.default_rng(0)
    dealt = np.stack([random.permutation(y[:, 0]) for _ in range(draws)], axis=1)
    strongest = np.abs(x.T @ dealt).max(axis=0)
    chance = (1 + (strongest >= abs(found.iloc[0]) - 1e-9).sum()) / (1 + draws)
    return Foretold(found, float(chance))


def outsiders(measures: pd.DataFrame, few: Sequence[int]) -> tuple[list[str], float]:
    """The measures in which all of a few seeds lie outside the range of all others, and how many any few would have."""

    def outside(chosen: Sequence[int]) -> pd.Series:
        values, rest = measures.loc[list(chosen)], measures.drop(index=list(chosen))
        return ((values > rest.max()) | (values < rest.min())).all()

    groups = list(combinations(measures.index, len(few)))
    if len(groups) > DRAWS // 4:
        random = np.random.default_rng(0)
        groups = [groups[place] for place in random.choice(len(groups), DRAWS // 4, replace=False)]
    found = outside(few)
    return list(found.index[found]), float(np.mean([outside(group).sum() for group in groups]))


def _standard(values: Float[np.ndarray, "seed column"]) -> Float[np.ndarray, "seed column"]:
    """Ranks with mean 0 and length 1, so that a product is Spearman's correlation."""
    ranks = pd.DataFrame(values).rank().to_numpy()
    ranks = ranks - ranks.mean(axis=0)
    return ranks / np.linalg.norm(ranks, axis=0)


# --- what they compute with ----------------------------------------------------------------------------


def frequencies(seeds: Sequence[Seed]) -> pd.DataFrame:
    """Share of each frequency in the power of the number embedding at the end; a row a seed."""
    shares = {seed.number: fourier.spectra(seed.run.weights(), seed.run.config)["E"].numpy() for seed in seeds}
    return pd.DataFrame(shares, index=pd.RangeIndex(1, len(next(iter(shares.values()))) + 1, name="frequency")).T


def carried(shares: pd.DataFrame) -> pd.DataFrame:
    """Whether each frequency is among the fewest that carry nine tenths of the power; a row a seed."""
    picks = pd.DataFrame(False, index=shares.index, columns=shares.columns)
    for seed, row in shares.iterrows():
        picks.loc[seed, fourier.carriers(torch.from_numpy(row.to_numpy(copy=True)))] = True
    return picks


def favoured(picks: pd.DataFrame, p: int, draws: int = DRAWS) -> float:
    """How often frequencies are picked as unevenly as here if no seed's choice depends on which ones they are.

    Multiplying all numbers by one that has no factor in common with p renames the frequencies. So under that
    hypothesis every seed's set might as well be any of its renamings, and one is drawn for each seed.
    """
    random = np.random.default_rng(0)
    units = [unit for unit in range(1, p) if math.gcd(unit, p) == 1]
    renamed = np.array([[min(unit * k % p, -unit * k % p) for k in picks.columns] for unit in units]) - 1
    dealt = np.zeros((draws, len(picks.columns)))
    for row in picks.to_numpy():
        possible = np.zeros((len(units), len(row)))
        np.put_along_axis(possible, renamed, np.broadcast_to(row, renamed.shape), axis=1)
        dealt += possible[random.integers(len(units), size=draws)]
    return float((1 + (dealt.var(axis=1) >= picks.sum().var(ddof=0) - 1e-9).sum()) / (1 + draws))
