"""The command line: every command on a small run, and one line for each kind of bad input."""

import json
import re
import subprocess
import sys

import pytest
import torch

from mc_lib import model, task
from mc_lib.__main__ import main
from mc_lib.config import Config
from mc_lib.runs import open_run

SMALL = ["--p=7", "--variables=4", "--not-first=d", "--not-second=a", "--length=12", "--d-model=16", "--d-mlp=24"]
SMALL += ["--batch=32", "--steps=10", "--eval-every=5", "--eval-size=20", "--device=cpu"]
COMMANDS = ("train", "resume", "measure", "predict", "import", "bench")


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", str(path), *SMALL]) == 0
    return path


def refused(capsys, *arguments: str) -> str:
    """The one line that a refused command prints."""
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_train_makes_the_run_that_the_flags_describe(run_path):
    run = open_run(run_path)
    assert run.finished
    assert run.config.p == 7
    assert run.config.not_first == "d"
    assert run.metrics["step"].tolist() == [0, 5, 10]


def test_stacked_seeds_get_a_folder_each(tmp_path, capsys):
    assert main(["train", str(tmp_path), *SMALL, "--seed=4", "--seeds=2"]) == 0
    assert [open_run(tmp_path / name).config.seed for name in ("04", "05")] == [4, 5]


def test_measure_prints_what_training_logged(run_path, capsys):
    assert main(["measure", str(run_path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    logged = open_run(run_path).metrics.iloc[-1]
    assert row.pop("step") == 10
    for name, value in row.items():
        assert value == pytest.approx(logged[name], abs=0.003, nan_ok=True), name
    assert main(["measure", str(run_path), "--step", "0"]) == 0
    assert re.search(r"0-var train +\d\.\d{4}", capsys.readouterr().out)


def test_predict_prints_the_models_answer_and_what_it_attends_to(run_path, capsys):
    assert main(["predict", "c=1,b=5,b+4", "--run", str(run_path)]) == 0
    said = capsys.readouterr().out
    run = open_run(run_path)
    tokens = task.parse("c=1,b=5,b+4", run.config)
    probability = model.logits(run.weights(), tokens[None])[0].softmax(-1)
    assert f"answer      {probability.argmax()}  (probability {probability.max():.4f}; right is 2)" in said
    shown = re.search("runners-up  (.*)", said)[1]
    assert [int(n) for n in re.findall(r"(\d+) \(", shown)] == probability.argsort(descending=True)[1:4].tolist()
    for layer in ("layer 1", "layer 2"):
        line = next(line for line in said.splitlines() if layer in line)
        total = sum(float(share) for share in re.findall(r":(\d\.\d\d)", line))
        assert total == pytest.approx(1, abs=0.1)


def test_import_brings_in_a_state_dict_and_measures_it(tmp_path, run_path, capsys):
    weights = open_run(run_path).weights()
    torch.save(weights, tmp_path / "checkpoint_step_9.pth")
    told = ["--not-first=d", "--not-second=a"]
    assert main(["import", str(tmp_path / "checkpoint_step_9.pth"), str(tmp_path / "there"), *told]) == 0
    run = open_run(tmp_path / "there")
    assert run.steps == [10]
    assert all(torch.equal(run.weights()[name], tensor) for name, tensor in weights.items())
    assert len(run.metrics) == 1


def test_resume_of_a_finished_run_says_so(run_path, capsys):
    assert "finished" in refused(capsys, "resume", str(run_path), "--device=cpu")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "{run}", *SMALL, "--lr=0.1"], "lr"),
        (["train", "{new}", *SMALL, "--heads=3"], "heads = 3"),
        (["train", "{new}", "--p=1"], "p = 1"),
        (["train", "{new}", "--held-out=1.5"], "held_out"),
        (["train", "{new}", "--not-first=z"], "'z'"),
        (["train", "{new}", *SMALL, "--seeds=0"], "seeds"),
        (["train", "{file}/run", *SMALL], "file"),
        (["train", "{new}", *SMALL[:-1], "--device=cuda"], "cuda"),
        (["resume"], "resume FOLDER"),
        (["resume", "{new}"], "is not a run"),
        (["measure", "{run}", "--step=7"], "step 7"),
        (["measure", "{new}"], "is not a run"),
        (["predict", "z=1,z+1", "--run={run}"], "'z'"),
        (["predict", "", "--run={run}"], "empty"),
        (["predict", "a=1,a+7", "--run={run}"], "7"),
        (["import", "{new}", "{new}2"], "new"),
        (["import", "{file}", "{new}"], "file"),
    ],
)
def test_bad_input_gets_one_line_that_names_it(arguments, named, tmp_path, run_path, capsys):
    if "--device=cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has CUDA: nothing is refused")
    (tmp_path / "file").write_text("no run")
    places = {"run": run_path, "new": tmp_path / "new", "file": tmp_path / "file"}
    line = refused(capsys, *(argument.format(**places) for argument in arguments))
    assert named in line
    assert not (tmp_path / "new").exists()


def test_help_reads_well():
    said = subprocess.run([sys.executable, "-m", "mc_lib", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(command in said for command in COMMANDS)
    said = subprocess.run(
        [sys.executable, "-m", "mc_lib", "train", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for name in Config().to_dict():
        assert f"--{name.replace('_', '-')}" in said, name
    assert "Traceback" not in said


def test_a_flag_that_is_not_a_number_is_refused_without_a_traceback():
    done = subprocess.run([sys.executable, "-m", "mc_lib", "train", "x", "--p", "many"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
