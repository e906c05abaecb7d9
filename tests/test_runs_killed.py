"""Killed, interrupted or out of space at any moment, a run is readable and ends the same."""

import contextlib
import errno
import io
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_runs import CFG, refused, row_of, saved, state_of, train, tree, weights_of, work

from mc_lib import storage
from mc_lib.config import Refusal
from mc_lib.runs import RunWriter, open_run


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return saved(tmp_path / "half", 6, finish=False)


# --- killed, interrupted, out of space -----------------------------------------------------------------
class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it but the code under test, which must not need to."""


OPERATIONS = ((os, "fsync"), (os, "replace"), (os, "open"), (Path, "unlink"), (Path, "mkdir"))


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Let the n-th file operation from now fail, before or after it took hold."""
    left = {"n": -1, "error": Exception(), "after": False}

    os_open = os.open

    def guard(real: Callable) -> Callable:
        def operation(*args: object, **kwargs: object) -> object:
            left["n"] -= 1
            if left["n"] == 0 and not left["after"]:
                raise left["error"]
            result = real(*args, **kwargs)
            if left["n"] == 0:
                if real is os_open:
                    os.close(result)  # an opened folder, which a killed process would not keep
                raise left["error"]
            return result

        return operation

    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and of no matter to what a process sees

    class TornFile(io.FileIO):
        """Written in two halves, between which it may fail."""

        def write(self, data: bytes) -> int:
            half = len(data) // 2
            return super().write(data[:half]) + guard(super().write)(data[half:])

    monkeypatch.setattr(storage, "open", TornFile, raising=False)
    for owner, name in OPERATIONS:
        monkeypatch.setattr(owner, name, guard(getattr(owner, name)))

    def arm(n: int, error: BaseException, after: bool = False) -> None:
        left.update(n=n, error=error, after=after)

    arm.reached = lambda: left["n"] <= 0  # type: ignore[attr-defined]
    yield arm
    arm(-1, Exception())


def test_killed_anywhere_it_ends_the_same(tmp_path: Path, fail_at: Callable) -> None:
    """Killed at each file operation in turn, and resumed: the same bytes in every file as never killed."""
    train(tmp_path / "whole", 3)
    expected, path = tree(tmp_path / "whole"), tmp_path / "run"
    for n in range(1, 1000):
        fail_at(n, Killed())
        with contextlib.suppress(Killed):
            train(path, 3)
        reached = fail_at.reached()
        fail_at(-1, Exception())
        if (path / "manifest.json").exists():
            open_run(path).verify()
        train(path, 3)
        assert tree(path) == expected, n
        shutil.rmtree(path)
        if not reached:
            break
    assert n > 40


def test_everything_is_flushed_before_it_is_renamed_and_the_manifest_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against loss of power, which cannot be tried here: the order of operations in a commit."""
    log: list[str] = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (log.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (log.append(f"{a} -> {b}"), rename(a, b)))
    with RunWriter.create(tmp_path / "run", CFG) as writer:
        log.clear()
        writer.commit(1, row_of(1), weights_of(1), state_of(1))
    run = str(tmp_path / "run")
    for name in ("checkpoints/step_000001.safetensors", "state_000001.safetensors", "manifest.json"):
        at = log.index(f"{run}/{name}.tmp -> {run}/{name}")
        assert log[at - 1] == f"{run}/{name}.tmp"
        assert log[at + 1] == str(Path(run, name).parent)
    assert f"{run}/metrics.csv" in log[: at - 1], "the rows are flushed before the manifest counts them"
    assert at == len(log) - 2


KILLED_FOR_REAL = """
import os, random, signal, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:4]
import torch
torch.set_num_threads(1)
os.fsync = lambda _: None
import small_runs
from mc_lib.runs import Refusal, RunWriter, open_run
path, rng, kills = Path(sys.argv[1]), random.Random(1), 0
for attempt in range(1000):
    child = os.fork()
    if not child:
        small_runs.train(path, 100)
        os._exit(0)
    time.sleep(rng.uniform(0, 0.05 + 0.005 * attempt))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    if (path / "manifest.json").exists() and open_run(path).verify().finished:
        break
try:
    RunWriter.resume(path)
except Refusal:
    print(kills)
"""


def test_sigkill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", KILLED_FOR_REAL, str(tmp_path / "killed"), str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
    monkeypatch.setattr(os, "fsync", lambda _: None)
    train(tmp_path / "whole", 100)
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
@pytest.mark.parametrize("after", [False, True])
def test_a_writer_goes_on_after_a_failed_commit(
    tmp_path: Path, fail_at: Callable, error: BaseException, after: bool
) -> None:
    """Whatever fails in a commit: one line, the run as it was or one step on, and the writer can try again."""
    expected = tree(saved(tmp_path / "whole", 8, finish=True))
    for n in range(1, 30):
        path = tmp_path / str(n)
        with RunWriter.create(path, CFG) as writer:
            work(writer, 0, 5)
            fail_at(n, error, after)
            line = ""
            try:
                work(writer, 6, 6)
            except (Refusal, KeyboardInterrupt) as failure:
                line = str(failure)
            reached = fail_at.reached()
            fail_at(-1, Exception())
            remedy = "free some space" if getattr(error, "errno", 0) == errno.ENOSPC else "choose a folder"
            assert not line or (str(path) in line and remedy in line and "\n" not in line)
            at = open_run(path).verify().step
            assert at in (5, 6)
            work(writer, at + 1)
            writer.finish()
        assert tree(path) == expected, n
        if not reached:
            break
    assert n > 10


def test_a_full_disk_keeps_the_last_commit(half: Path) -> None:
    """A limit on the size of files, set by the system, fails writes as a full disk does: half-way."""
    before = open_run(half)
    with RunWriter.resume(half)[0] as writer:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            refused(lambda: writer.commit(7, row_of(7), weights_of(7)), "step_000007", "too large", "free some space")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(half.rglob("*.tmp")), "what was begun is cleared: space is short"
        assert open_run(half).verify().manifest == before.manifest
        writer.commit(7, row_of(7), weights_of(7))
    assert open_run(half).verify().steps == [0, 2, 4, 6, 7]


def test_unwritable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    refused(lambda: RunWriter.create(tmp_path / "file", CFG), "file", "cannot be written")
    refused(lambda: RunWriter.create(tmp_path / "file" / "run", CFG), "run", "not a directory")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "replace", denied)
    refused(lambda: RunWriter.create(tmp_path / "run", CFG), "config.json", "permission denied", "choose a folder")
    monkeypatch.undo()
    train(tmp_path / "run")  # what the failure left is no obstacle
