"""A saved run comes back bit for bit, and a writer never overwrites one nor saves what could not be read."""

import math
import re
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_runs import CFG, refused, row_of, saved, state_of, tree, unflushed, weights_of, work

from mc_lib import model, runs
from mc_lib.runs import RunWriter, list_runs, open_run
from mc_lib.storage import spell


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return saved(tmp_path / "finished", 8, finish=True)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return saved(tmp_path / "half", 6, finish=False)


# --- what is saved comes back --------------------------------------------------------------------------
def test_round_trip(finished: Path) -> None:
    run = open_run(finished)
    assert run.config == CFG
    assert (run.name, run.step, run.finished, run.steps) == ("finished", 8, True, [0, 2, 4, 6, 8])
    for step in run.steps:
        stored = run.weights(step)
        assert list(stored) == list(model.shapes(CFG))
        assert all(torch.equal(stored[name], w) for name, w in weights_of(step).items())
    assert torch.equal(run.weights()["embed.W_E"], weights_of(8)["embed.W_E"])
    assert run.metrics.to_dict("list") == {
        "step": list(range(9)),
        **{name: [row_of(step)[name] for step in range(9)] for name in row_of(0)},
    }
    assert not list(finished.glob("state_*")), "a finished run needs no state"


def test_float16_checkpoints_are_half_the_size_and_come_back_float32(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", CFG, dtype="float16") as writer:
        writer.commit(1, weights=weights_of(1), state=state_of(1))
    run = open_run(tmp_path / "run")
    for name, w in run.weights().items():
        assert w.dtype == torch.float32
        assert torch.equal(w, weights_of(1)[name].half().float())
    assert all(torch.equal(w, state_of(1)[name]) for name, w in run.state().items()), "the state stays exact"
    huge = {name: w + 1e6 for name, w in weights_of(2).items()}
    with RunWriter.resume(tmp_path / "run")[0] as writer:
        refused(lambda: writer.commit(2, weights=huge), "weights of step 2", "infinite")


numbers = st.floats(allow_infinity=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4))
def test_metrics_keep_every_bit(tmp_path: Path, rows: list[tuple[float, float]]) -> None:
    path = tmp_path / "run"
    shutil.rmtree(path, ignore_errors=True)
    with unflushed(), RunWriter.create(path, CFG) as writer:
        for step, (a, b) in enumerate(rows):
            writer.commit(step, {"a": a, 'b, "quoted"': b} if step % 2 else {'b, "quoted"': b, "a": a})
    table = open_run(path).metrics
    for step, pair in enumerate(rows):
        for name, value in zip(("a", 'b, "quoted"'), pair, strict=True):
            read = float(table[name][step])
            same = math.isnan(read) if math.isnan(value) else struct.pack("d", read) == struct.pack("d", value)
            assert same, (value, read)


def test_views_of_one_buffer_can_be_saved(tmp_path: Path) -> None:
    """As a flat optimiser or stacked seeds have them, transposed and requiring gradients too."""
    flat = torch.cat([w.mT.flatten() for w in weights_of(1).values()]).requires_grad_()
    sizes = [w.numel() for w in weights_of(1).values()]
    views = {
        name: part.view(w.mT.shape).mT for (name, w), part in zip(weights_of(1).items(), flat.split(sizes), strict=True)
    }
    with RunWriter.create(tmp_path / "run", CFG) as writer:
        writer.commit(1, weights=views, state={f"{part}/{k}": w for part in "ab" for k, w in views.items()})
        writer.commit(2, weights=model.unstack(model.stack([weights_of(1), weights_of(2)]))[1])
    for step in (1, 2):
        stored = open_run(tmp_path / "run").weights(step)
        assert all(torch.equal(stored[name], w) for name, w in weights_of(step).items())


def test_steps_that_are_not_there(finished: Path) -> None:
    run = open_run(finished)
    refused(lambda: run.weights(3), finished, "step 3", "0 to 8 by 2")
    for asked, given_ in ((3, 2), (-5, 0), (100, 8), (7, 6), (4, 4)):
        assert torch.equal(run.weights(asked, nearest=True)["embed.W_E"], weights_of(given_)["embed.W_E"])


@given(st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_spelled_steps_name_exactly_the_steps(steps: list[int]) -> None:
    said = []
    for part in spell(steps).split(", ") if steps else []:
        numbers_ = [int(n) for n in re.findall(r"\d+", part)]
        said += numbers_ if len(numbers_) == 1 else range(numbers_[0], numbers_[1] + 1, numbers_[2])
    assert said == steps
    assert spell([0, 10, 20, 100, 200, 300, 400]) == "0, 10, 20, 100 to 400 by 100"


def test_runs_are_found_and_hidden_folders_passed_over(finished: Path, tmp_path: Path) -> None:
    for name in ("b/one", "a", "b/.aside"):
        shutil.copytree(finished, tmp_path / "all" / name)
    (tmp_path / "all" / "b" / "notes.txt").write_text("no run")
    assert list_runs(tmp_path / "all") == [tmp_path / "all/a", tmp_path / "all/b/one"]
    assert list_runs(finished) == [finished]
    refused(lambda: list_runs(tmp_path / "none"), "none")


# --- what a writer refuses -----------------------------------------------------------------------------
def test_existing_runs_are_never_overwritten(finished: Path, half: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    other = CFG.replace(lr=0.5, seed=9)
    for path in (finished, half):
        line = refused(lambda path=path: RunWriter.create(path, other), path, "lr = 0.001, not 0.5", "seed = 0, not 9")
        assert "heads" not in line
    refused(lambda: RunWriter.create(finished, CFG), finished, "finished at step 8")
    refused(lambda: RunWriter.create(half, CFG), half, "unfinished at step 6", "resume")
    refused(lambda: RunWriter.resume(finished), finished, "finished")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["notes.txt", "config.json", "metrics.csv", "checkpoints/mine.bin", "a.tmp"])
def test_folders_of_other_things_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    refused(lambda: RunWriter.create(tmp_path, CFG), tmp_path, Path(name).parts[0])
    assert tree(tmp_path) == {name: b"mine"}


def test_one_writer_at_a_time(half: Path) -> None:
    with RunWriter.resume(half)[0]:
        refused(lambda: RunWriter.resume(half), half, "another process")
        refused(lambda: RunWriter.create(half, CFG), half, "another process")
    RunWriter.resume(half)[0].close()
    writer = RunWriter.resume(half)[0]
    del writer  # forgotten is as good as closed
    RunWriter.resume(half)[0].close()


def test_resume_goes_back_to_the_last_state(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunWriter.create(path, CFG) as writer:
        work(writer, 0, 8)  # the last state is that of step 6
    writer, cfg, state, step = RunWriter.resume(path)
    writer.close()
    assert (cfg, step) == (CFG, 6)
    assert all(torch.equal(tensor, state_of(6)[name]) for name, tensor in state.items())
    assert set(state) == set(state_of(6))
    run = open_run(path).verify()
    assert (run.step, run.steps, list(run.metrics["step"])) == (6, [0, 2, 4, 6], list(range(7)))
    assert [p.name for p in path.glob("state_*")] == ["state_000006.safetensors"]


def test_resume_without_a_state_starts_over(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", CFG) as writer:
        writer.commit(0, row_of(0), weights_of(0))
    writer, _, state, step = RunWriter.resume(tmp_path / "run")
    with writer:
        assert (state, step, open_run(writer.path).steps) == ({}, 0, [])
        writer.commit(0, row_of(0), weights_of(0))


def test_a_kept_state_can_be_read(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", CFG) as writer:
        work(writer, 0, 6)
        run = writer.finish(keep_state=True)
    assert all(torch.equal(tensor, state_of(6)[name]) for name, tensor in run.state().items())


def test_bad_commits_change_nothing(half: Path) -> None:
    with RunWriter.resume(half)[0] as writer:
        before = tree(half)
        bad = {name: w * math.nan for name, w in weights_of(7).items()}
        refused(lambda: writer.commit(7, row_of(7), bad), "weights of step 7", "NaN")
        refused(lambda: writer.commit(7, row_of(7), weights_of(7), {"m/embed.W_E": bad["embed.W_E"]}), "state", "NaN")
        refused(lambda: writer.commit(7, {"loss": math.inf, "2-var, odd": 0.0}), "step 7", "loss", "infinite")
        refused(lambda: writer.commit(7, {"loss": 0.0}), "step 7", "columns")
        refused(lambda: writer.commit(7, {**row_of(7), "new": 0.0}), "step 7", "columns")
        refused(lambda: writer.commit(6, row_of(6)), "already has a row of step 6")
        refused(lambda: writer.commit(5, None, weights_of(5)), "step 5 comes too late")
        refused(lambda: writer.commit(6, None, weights_of(7)), "step_000006", "saved already")
        assert tree(half) == before
        writer.commit(6, None, weights_of(6), state_of(6))  # the same again is no harm
        assert tree(half) == before


def test_nothing_but_runs_are_deleted(half: Path) -> None:
    """`resume` clears files by their exact names, so a user's own stay."""
    mine = ["checkpoints/step_best.safetensors", "state_1.safetensors", "x.tmp", "checkpoints/y.tmp"]
    for name in mine:
        (half / name).write_text("mine")
    RunWriter.resume(half)[0].close()
    assert [name for name in mine if (half / name).exists()] == mine
    assert runs.Run(half).step == 6
