"""Training: the update is AdamW on the model's loss, a run survives being killed, and says plainly what it refuses."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mc_lib import model, task, train
from mc_lib.config import Config, Refusal
from mc_lib.evaluation import NINE
from mc_lib.runs import open_run

SMALL = Config(
    p=7, variables=4, not_first="d", not_second="a", length=12, d_model=16, d_mlp=24, batch=32,
    steps=40, eval_every=5, eval_size=20,
)  # fmt: skip


def files(path: Path) -> dict[str, bytes]:
    """What the run holds: the manifest, and each file that it names."""
    names = ["manifest.json", *json.loads((path / "manifest.json").read_text())["files"]]
    return {name: (path / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run that was never interrupted."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    train.train(SMALL, path)
    return files(path)


def in_child(action) -> int:
    """Runs `action` in a forked process; its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def start_or_resume(path: Path) -> None:
    if not (path / "manifest.json").exists():
        train.train(SMALL, path)
    elif not open_run(path).finished:
        train.resume(path)


def dying(path: Path, call: int):
    """Trains, and dies by SIGKILL at a numbered call that touches the disk: before it, or half-way through a write."""

    def action():
        count = 0

        def deadly(function, half=None):
            def wrapped(*args, **kwargs):
                nonlocal count
                count += 1
                if count == call:
                    if half:
                        half(*args, **kwargs)
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return wrapped

        for name in ("replace", "fsync", "rename", "ftruncate"):
            setattr(os, name, deadly(getattr(os, name)))
        os.write = deadly(os.write, lambda fd, data: os_write(fd, bytes(data)[: len(data) // 2]))
        start_or_resume(path)

    os_write = os.write
    return action


def test_killed_at_every_kind_of_moment_a_run_ends_with_the_same_bits(tmp_path, unbroken):
    draw = random.Random(0)
    kills = 0
    for attempt in range(3):
        path = tmp_path / str(attempt)
        for _ in range(40):
            status = in_child(dying(path, draw.randint(1, 20)))
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
        if status:
            start_or_resume(path)
        assert files(path) == unbroken
    assert kills >= 20


def test_killed_at_random_times_a_run_ends_with_the_same_bits(tmp_path, unbroken):
    draw = random.Random(1)
    path, kills = tmp_path / "run", 0
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            start_or_resume(path)
            os._exit(0)
        time.sleep(draw.uniform(0.02, 0.4))
        os.kill(pid, signal.SIGKILL)
        kills += os.waitpid(pid, 0)[1] != 0
        if (path / "manifest.json").exists() and open_run(path).finished:
            break
    if not (path / "manifest.json").exists() or not open_run(path).finished:
        start_or_resume(path)
    assert kills
    assert files(path) == unbroken


def test_ctrl_c_leaves_a_resumable_run(tmp_path, unbroken):
    path = tmp_path / "run"
    program = f"import sys; from mc_lib.__main__ import main; sys.exit(main(['train', {str(path)!r}, *sys.argv[1:]]))"
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.to_dict().items() if v != Config().to_dict()[k]]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    slow = [flag for flag in flags if "steps" not in flag] + ["--steps=100000"]
    with subprocess.Popen([sys.executable, "-c", program, *slow], stderr=subprocess.PIPE, env=env) as process:
        while not (path / "metrics.csv").exists() or (path / "metrics.csv").read_text().count("\n") < 3:
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        message = process.stderr.read().decode()
    assert process.returncode == 130
    assert "Traceback" not in message
    assert "python -m mc_lib resume" in message.splitlines()[-1]
    run = open_run(path)
    assert not run.finished
    assert set(run.state()) == set(train.fresh_state(SMALL))


def test_one_update_is_adamw_on_the_usual_models_loss():
    """Against torch's AdamW on the TransformerLens view, which computes every position."""
    hooked = pytest.importorskip("mc_lib.hooked")
    training = train.Training([SMALL])
    weights = {name: tensor.clone().requires_grad_() for name, tensor in model.init(SMALL).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=SMALL.lr, betas=(0.9, 0.999), weight_decay=0.02, eps=1e-8)
    for step in range(4):
        tokens = training.sampler.batch(torch.tensor([0]), torch.tensor([step]))[0, 0]
        scores = hooked.hooked(weights)(tokens)[:, -1]
        loss = torch.nn.functional.cross_entropy(scores, task.answers(tokens, SMALL))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert training.advance(step + 1) == [pytest.approx(loss.item(), abs=1e-5)]
    for name, tensor in training.snapshot()[0].items():
        assert torch.allclose(tensor, weights[name], atol=2e-5), name


def test_stacked_seeds_train_as_they_do_alone():
    many = train.Training([SMALL.replace(seed=s) for s in (3, 8)])
    many.advance(6)
    for seed, weights in zip((3, 8), many.snapshot(), strict=True):
        alone = train.Training([SMALL.replace(seed=seed)])
        alone.advance(6)
        for name, tensor in alone.snapshot()[0].items():
            assert torch.allclose(tensor, weights[name], atol=1e-5), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [1, 4])
def test_training_learns(precision, heads):
    training = train.Training([SMALL.replace(precision=precision, heads=heads, p=5, lr=3e-3)])
    first = training.advance(20)[0]
    assert training.advance(300)[0] < 0.9 * first


def test_a_state_read_back_goes_on_as_if_nothing_had_happened():
    straight = train.Training([SMALL])
    straight.advance(7)
    first = train.Training([SMALL])
    first.advance(3)
    second = train.Training([SMALL])
    second.load(first.state(), 3)
    second.advance(7)
    assert all(torch.equal(a, b) for a, b in zip(straight.state()[0].values(), second.state()[0].values(), strict=True))


def test_stacked_runs_that_stopped_apart_catch_up(tmp_path):
    paths = [tmp_path / "3", tmp_path / "8"]
    cfgs = [SMALL.replace(seed=3, steps=20), SMALL.replace(seed=8, steps=20)]
    for path, cfg, commits in zip(paths, cfgs, (2, 3), strict=True):
        training = train.Training([cfg])
        with train.RunWriter.create(path, cfg) as writer:
            for _ in range(commits):
                row = {"loss": 1.0, **train.metrics_row(training.snapshot()[0], cfg)}
                writer.commit(training.step, row, training.snapshot()[0], training.state()[0])
                training.advance(training.step + 5)
    runs = train.resume_many(paths)
    assert [run.step for run in runs] == [20, 20]
    assert [run.metrics["step"].tolist() for run in runs] == [[0, 5, 10, 15, 20]] * 2


def test_a_run_logs_every_evaluation_and_saves_what_moved(unbroken, tmp_path):
    path = tmp_path / "run"
    train.train(SMALL, path)
    run = open_run(path)
    assert run.metrics["step"].tolist() == list(range(0, 41, 5))
    assert run.steps[0] == 0
    assert run.steps[-1] == 40
    again = train.metrics_row(run.weights(), run.config)
    for name, value in again.items():
        assert run.metrics[name].iloc[-1] == pytest.approx(value, abs=1e-3, nan_ok=True), name


def test_checkpoints_are_due_early_regularly_and_when_an_accuracy_moves():
    flat = dict.fromkeys(NINE, 0.5)
    moved = {**flat, NINE[4]: 0.5 + 1.01 * train.MOVED}
    assert all(train.due(step, flat, flat, Config()) for step in (0, 100, 1000, 2000, 4000, 40_000))
    assert not any(train.due(step, flat, flat, Config()) for step in (600, 1900, 2100, 39_900))
    assert train.due(2100, moved, flat, Config())


def test_final_only_keeps_one_checkpoint_in_half_precision(tmp_path):
    run = train.train(SMALL.replace(steps=10), tmp_path / "run", final_only=True, dtype="float16")
    assert run.steps == [10]
    assert run.weights()["embed.W_E"].dtype == torch.float32


def test_what_differs_in_more_than_the_seed_is_not_stacked(tmp_path):
    with pytest.raises(Refusal, match="seed alone"):
        train.train_many([(SMALL, tmp_path / "a"), (SMALL.replace(lr=0.1), tmp_path / "b")])


def test_a_run_with_other_settings_is_never_overwritten(tmp_path):
    path = tmp_path / "run"
    train.train(SMALL.replace(steps=5), path)
    before = files(path)
    with pytest.raises(Refusal, match="lr"):
        train.train(SMALL.replace(steps=5, lr=0.1), path)
    assert files(path) == before


def test_without_cuda_graphs_training_falls_back_and_says_why(monkeypatch):
    training = train.Training([SMALL])
    training.advance(2)
    before = training.state()[0]
    said = []
    monkeypatch.setattr(train.tqdm, "write", said.append)

    class NoStream:
        def __init__(self):
            raise RuntimeError("no stream\nhere")

    monkeypatch.setattr(torch.cuda, "Stream", NoStream)
    assert training._captured() is None
    assert said == ["training without a captured CUDA graph, which is slower: no stream"]
    assert all(torch.equal(before[name], tensor) for name, tensor in training.state()[0].items())


def test_training_needs_neither_transformer_lens_nor_plotly():
    program = "import sys, mc_lib.train; print({'transformer_lens', 'plotly', 'IPython'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
