"""Sweeps: complete tables, nothing repeated, and the same table whoever computes the runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch

from mc_lib import sweep
from mc_lib.__main__ import main
from mc_lib.config import Config, Refusal
from mc_lib.runs import RunWriter, open_run
from mc_lib.train import fresh_state, metrics_row, resume, train

SMALL = Config(
    p=7, variables=4, not_first="d", not_second="a", length=12, d_model=16, d_mlp=24, batch=32,
    steps=20, eval_every=10, eval_size=20,
)  # fmt: skip


def local(jobs, out: Path, **options) -> bytes:
    with ThreadPoolExecutor(1) as executor:
        return sweep.sweep(jobs, out, executor, **options).read_bytes()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Four seeds trained in one go."""
    return local(sweep.seeds(SMALL, 4), tmp_path_factory.mktemp("straight"))


def test_the_papers_grids():
    shares = [1 - cfg.held_out for cfg in sweep.fig3a(Config()).values()]
    factors = [cfg.two_var for cfg in sweep.fig3b(Config(), 3).values()]
    assert len(shares) == 20
    assert (shares[0], shares[-1]) == (pytest.approx(0.0616), pytest.approx(0.99))
    assert len(factors) == 60
    assert factors[:3] == [0.01] * 3
    assert factors[-1] == pytest.approx(0.99)
    assert Config(held_out=1 - shares[-1]).p ** 2 - Config(held_out=1 - shares[-1]).kept_pairs == 35


def test_the_table_says_how_each_run_ended(tmp_path, straight):
    (tmp_path / "table.csv").write_bytes(straight)
    table = pd.read_csv(tmp_path / "table.csv")
    assert table["seed"].tolist() == [0, 1, 2, 3]
    held_out = SMALL.p**2 - SMALL.kept_pairs
    assert (table["0-var held out: n"] == held_out).all()
    parts = ["mirror in training", "both orders out", "diagonal out"]
    for what in ("n", "right"):
        assert (
            table[[f"0-var {part}: {what}" for part in parts]].sum(axis=1) == table[f"0-var held out: {what}"]
        ).all()
    train(SMALL.replace(seed=2), tmp_path / "alone", final_only=True, dtype="float16")
    alone = open_run(tmp_path / "alone")
    for name, value in metrics_row(alone.weights(), alone.config).items():
        assert table[name][2] == pytest.approx(value, nan_ok=True), name


def test_finished_runs_are_not_repeated_and_others_go_on(tmp_path, straight, monkeypatch):
    jobs = sweep.seeds(SMALL, 4)
    train(jobs["001"], tmp_path / "001", final_only=True, dtype="float16")
    with RunWriter.create(tmp_path / "002", jobs["002"], "float16") as writer:
        cfg = jobs["002"]
        state = fresh_state(cfg)
        weights = {name.removeprefix("weights/"): t for name, t in state.items() if name.startswith("weights/")}
        writer.commit(0, {"loss": float("nan"), **metrics_row(weights, cfg)}, None, state)
    begun, resumed = [], []
    monkeypatch.setattr(sweep, "train_many", lambda runs, *rest: begun.extend(runs) or train(*runs[0], *rest))
    monkeypatch.setattr(sweep, "resume_many", lambda paths, *rest: resumed.extend(paths) or resume(paths[0], *rest))
    assert local(jobs, tmp_path) == straight
    assert [path.name for _, path in begun] == ["000", "003"]
    assert [path.name for path in resumed] == ["002"]
    assert local(jobs, tmp_path) == straight
    assert len(begun) == 2


def test_a_shrunken_run_keeps_its_history_and_its_end(tmp_path):
    full = train(SMALL, tmp_path / "full")
    small = sweep.shrink(full, tmp_path / "small")
    assert small.metrics.equals(full.metrics)
    assert (small.config, small.steps) == (full.config, [SMALL.steps])
    for name, tensor in small.weights().items():
        assert torch.equal(tensor, full.weights()[name].half().float()), name


def test_a_folder_with_another_sweep_is_refused(tmp_path, straight):
    train(SMALL.replace(lr=0.5), tmp_path / "000", final_only=True)
    with pytest.raises(Refusal, match="another config"):
        local(sweep.seeds(SMALL, 1), tmp_path)


def test_one_failed_run_is_named_after_the_others_are_done(tmp_path):
    jobs = sweep.seeds(SMALL, 2)
    (tmp_path / "000").mkdir(parents=True)
    (tmp_path / "000" / "mine.txt").write_text("keep")
    with pytest.raises(Refusal, match=r"mine\.txt"):
        local(jobs, tmp_path)
    assert open_run(tmp_path / "001").finished


def test_stacked_on_one_device_is_close_to_one_by_one(tmp_path, straight):
    (tmp_path / "alone.csv").write_bytes(straight)
    alone, together = pd.read_csv(tmp_path / "alone.csv"), sweep.stacked(sweep.seeds(SMALL, 4), tmp_path / "s", "cpu")
    scores = [f"qk1_score_{letter}" for letter in SMALL.letters]
    assert torch.allclose(
        torch.tensor(pd.read_csv(together)[scores].to_numpy()), torch.tensor(alone[scores].to_numpy()), atol=1e-3
    )


def test_the_command_line_runs_a_sweep_on_every_core(tmp_path, straight):
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.to_dict().items() if v != Config().to_dict()[k]]
    assert main(["sweep", str(tmp_path), "--count=4", "--device=cpu", *flags]) == 0
    assert (tmp_path / "table.csv").read_bytes() == straight


def test_no_scheduler_gets_one_line(tmp_path, capsys):
    assert main(["sweep", str(tmp_path), "--scheduler=tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err.strip().splitlines()[-1]


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def test_a_dask_cluster_that_loses_a_worker_ends_with_the_same_table(tmp_path):
    """A real scheduler and two real workers; one is killed as soon as it has a run half-way."""
    from distributed import Client

    jobs = sweep.seeds(SMALL.replace(steps=150), 4)
    found, out = tmp_path / "scheduler.json", tmp_path / "cluster"
    scheduler = ["distributed.cli.dask_scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard"]
    worker = ["distributed.cli.dask_worker", "--nthreads=1", "--nworkers=1", "--no-dashboard", "--no-nanny"]
    with ExitStack() as running:
        running.enter_context(process(*scheduler, "--dashboard-address=127.0.0.1:0", f"--scheduler-file={found}"))
        workers = [
            running.enter_context(process(*worker, f"--scheduler-file={found}", f"--local-directory={tmp_path}/{i}"))
            for i in range(2)
        ]
        client = running.enter_context(Client(scheduler_file=str(found), timeout="60s"))
        client.wait_for_workers(2, timeout=60)
        killed = []

        def kill_one(line: str) -> None:
            """Called for each run that ends: the others are under way by then."""
            if not killed:
                workers[0].send_signal(signal.SIGKILL)
                killed.append(line)

        table = sweep.sweep(jobs, out, client.get_executor(), progress=kill_one).read_bytes()
    assert killed
    assert table == local(jobs, tmp_path / "local")
    for name in jobs:
        assert (out / name / "metrics.csv").read_bytes() == (tmp_path / "local" / name / "metrics.csv").read_bytes()
