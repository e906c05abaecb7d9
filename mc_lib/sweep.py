"""Many runs: a list of configs becomes a folder of runs and a table with a row for each.

A sweep is a dict from a run's name to its config. Its runs are independent, so they go to any
concurrent.futures.Executor: one process a core here, a Dask cluster elsewhere. Nothing but files passes between
runs, and each run is a function of its config: a sweep that is killed, or loses a worker, goes on where its runs
stopped and ends with the same table, whoever computed which run. Finished runs are never repeated.
"""

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch
from tqdm.auto import tqdm

from mc_lib import evaluation, model, task
from mc_lib.config import Config, Refusal
from mc_lib.runs import Run, RunWriter, open_run
from mc_lib.storage import AnyPath, Stored, put
from mc_lib.train import metrics_row, resume_many, train_many

TABLE = "table.csv"
POLL = 2.0
Sweep = dict[str, Config]


def seeds(base: Config, count: int) -> Sweep:
    """The same settings with `count` seeds, from the base's seed on."""
    return {f"{seed:03d}": base.replace(seed=seed) for seed in range(base.seed, base.seed + count)}


def grid(base: Config, name: str, values: Iterable[float], count: int = 1) -> Sweep:
    """One setting over several values, each with `count` seeds."""
    jobs = {}
    for index, value in enumerate(values):
        for seed in range(base.seed, base.seed + count):
            jobs[f"{name}-{index:02d}-seed-{seed:03d}"] = base.replace(**{name: value}, seed=seed)
    return jobs


def fig3a(base: Config, count: int = 1) -> Sweep:
    """The paper's 20 shares of the number pairs in training."""
    shares = torch.linspace(0.0616, 0.99, 20, dtype=torch.float64)
    return grid(base, "held_out", (1 - shares).tolist(), count)


def fig3b(base: Config, count: int = 1) -> Sweep:
    """The paper's 20 factors on the share of 2-variable sequences."""
    return grid(base, "two_var", torch.linspace(0.01, 0.99, 20, dtype=torch.float64).tolist(), count)


# --- one run -------------------------------------------------------------------------------------------


def run_one(cfg: Config, path: str, final_only: bool = True, dtype: Stored = "float16") -> str:
    """Trains, or goes on with, one run of a sweep; a finished one is left as it is."""
    place = Path(path)
    if not (place / "manifest.json").exists():
        train_many([(cfg, place)], "cpu", final_only, dtype)
        return path
    run = _checked(place, cfg)
    if not run.finished:
        resume_many([place], "cpu", final_only)
    return path


def _checked(place: Path, cfg: Config) -> Run:
    run = open_run(place)
    if run.config != cfg:
        raise Refusal(f"{place} holds a run with another config: choose a new folder for this sweep")
    return run


def result(run: Run) -> dict[str, int | float | str]:
    """A finished run's row: its settings, all metrics at the end, and the exact sets by part with their sizes."""
    cfg, weights = run.config, run.weights()
    row: dict[str, int | float | str] = {**cfg.to_dict(), **metrics_row(weights, cfg)}
    zero = evaluation.exact_zero_var(cfg)
    numbers = task.operands(zero, cfg).numbers
    classes = task.pair_classes(cfg)[numbers[:, 0], numbers[:, 1]]
    right = _right(weights, zero, cfg)
    names = {1: "mirror in training", 2: "both orders out", 3: "diagonal out"}
    row |= _share("0-var held out", right)
    for index, name in names.items():
        row |= _share(f"0-var {name}", right[classes == index])
    for name, tokens in evaluation.exact_two_var(cfg).items():
        row |= _share(f"2-var {name}", _right(weights, tokens, cfg))
    return row


def _right(weights: model.Weights, tokens: torch.Tensor, cfg: Config) -> torch.Tensor:
    parts = [
        model.logits(weights, part).argmax(-1) == task.answers(part, cfg) for part in tokens.split(2048) if len(part)
    ]
    return torch.cat([torch.empty(0, dtype=torch.bool), *parts])


def _share(name: str, right: torch.Tensor) -> dict[str, float]:
    return {f"{name}: right": float(right.sum()), f"{name}: n": float(len(right))}


def shrink(run: Run, destination: AnyPath) -> Run:
    """A copy of a finished run as a sweep keeps it: its metrics, and its last weights in half precision."""
    with RunWriter.create(destination, run.config, "float16") as writer:
        for row in run.metrics.to_dict("records"):
            step = int(row.pop("step"))
            last = step == run.step
            writer.commit(step, row, run.weights() if last else None)
        return writer.finish()


# --- all of them ---------------------------------------------------------------------------------------


def sweep(
    jobs: Sweep,
    out: AnyPath,
    executor: Executor | None = None,
    final_only: bool = True,
    dtype: Stored = "float16",
    progress: Callable[[str], None] = tqdm.write,
) -> Path:
    """Runs whatever of the jobs is not finished and writes the table; returns its path."""
    out = Path(out)
    for name, cfg in jobs.items():
        if (out / name / "manifest.json").exists():
            _checked(out / name, cfg)
    left = {name: cfg for name, cfg in jobs.items() if not _finished(out / name)}
    with _pool(executor, len(left)) as pool:
        futures = {pool.submit(run_one, cfg, str(out / n), final_only, dtype): n for n, cfg in left.items()}
        _watch(futures, jobs, out, progress)
    return write_table(jobs, out)


def stacked(jobs: Sweep, out: AnyPath, device: str, final_only: bool = True, dtype: Stored = "float16") -> Path:
    """The same on one accelerator: jobs that differ in the seed alone train stacked, group after group."""
    out = Path(out)
    for _, group in itertools.groupby(jobs.items(), key=lambda job: job[1].replace(seed=0)):
        members = [(cfg, out / name) for name, cfg in group if not _finished(out / name)]
        begun = [(cfg, path) for cfg, path in members if (path / "manifest.json").exists()]
        for cfg, path in begun:
            _checked(path, cfg)
        if begun:
            resume_many([path for _, path in begun], device, final_only)
        if fresh := [job for job in members if job not in begun]:
            train_many(fresh, device, final_only, dtype)
    return write_table(jobs, out)


def _finished(path: Path) -> bool:
    return (path / "manifest.json").exists() and open_run(path).finished


@contextmanager
def _pool(executor: Executor | None, count: int) -> Iterator[Executor]:
    """The given executor, which stays open, or one process a core."""
    if executor:
        yield executor
        return
    workers = max(1, min(count, os.cpu_count() or 1))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _quiet() -> None:
    """Workers draw no progress bars: the sweep's own table shows them all."""
    os.environ["TQDM_DISABLE"] = "1"


def _watch(futures: dict[Future, str], jobs: Sweep, out: Path, progress: Callable[[str], None]) -> None:
    """Shows how far all runs are until they are done; the first failure is raised once the others are done."""
    pending, total = set(futures), sum(cfg.steps for cfg in jobs.values())
    with tqdm(total=total, unit="step", smoothing=0.02) as bar:
        while True:
            done, pending = wait(pending, timeout=POLL, return_when="FIRST_COMPLETED")
            states = {name: _state(out / name) for name in jobs}
            bar.n = sum(step for step, _ in states.values())
            bar.refresh()
            for future in done:
                name = futures[future]
                progress(f"{name}: {'failed' if future.exception() else 'finished'}, {states[name][1]}")
            if not pending:
                break
    for future, name in futures.items():
        if error := future.exception():
            raise error if isinstance(error, Refusal) else RuntimeError(f"{name} failed: {error}") from error


def _state(path: Path) -> tuple[int, str]:
    """A run's step, and in words its step and accuracies."""
    if not (path / "manifest.json").exists():
        return 0, "not begun"
    run = open_run(path)
    if not len(run.metrics):
        return run.step, f"step {run.step}"
    last = run.metrics.iloc[-1]
    shown = " ".join("-" if last[n] != last[n] else f"{100 * last[n]:.0f}" for n in evaluation.NINE)
    return run.step, f"step {run.step}, accuracies {shown}"


def write_table(jobs: Sweep, out: AnyPath) -> Path:
    """One row a run, in the order of the jobs, computed from the saved weights alone."""
    out = Path(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [{"run": name, **result(open_run(out / name))} for name in tqdm(jobs, desc="measuring", unit="run")]
    finally:
        torch.set_num_threads(threads)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    put(out / TABLE, text.getvalue().encode())
    return out / TABLE
