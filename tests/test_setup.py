"""The set-up: what the pins, the two commands and the environment file promise."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
PINS = dict((canonicalize_name(name), version) for name, version in re.findall(r"^([\w.-]+)==(\S+)$", LOCK, flags=re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHOSEN = {
    "torch": "2.13.0",
    "transformer-lens": "4.3.0",
    "jupyter-book": "1.0.4.post1",
    "sphinx-book-theme": "1.1.4",
    "plotly": "7.1.0",
    "ipywidgets": "8.1.9",
    "papermill": "2.7.0",
    "nbval": "0.11.0",
    "jupytext": "1.19.6",
}


def test_lock_is_pins_only():
    """No build suffix such as +cpu, no index, no address, no editable: a name and a version on each line."""
    lines = [line for line in LOCK.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(PINS)
    assert not [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]


@pytest.mark.parametrize("name", CHOSEN)
def test_lock_holds_the_versions_found_to_work_together(name):
    assert PINS[name] == CHOSEN[name]


def test_lock_satisfies_every_requirement():
    """Everything that pyproject asks for is pinned within its range; `cluster` alone is left to its users."""
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["book"], *extras["test"]]:
        need = Requirement(text)
        assert need.specifier.contains(PINS[canonicalize_name(need.name)]), text


def test_environment_is_that_of_the_lock():
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    versions = {canonicalize_name(n): v.split("+")[0] for n, v in re.findall(r"^([\w.-]+)==(\S+)$", installed, re.M)}
    assert {name: versions.get(name) for name in PINS} == PINS


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_python_and_torch_ranges_are_wide(version):
    torch = next(Requirement(text) for text in PROJECT["dependencies"] if text.startswith("torch"))
    assert torch.specifier.contains("2.6.0")
    assert torch.specifier.contains(PINS["torch"])
    assert Requirement("python" + PROJECT["requires-python"]).specifier.contains(version)


def test_conda_environment_cannot_drift():
    """environment.yml repeats no version: Python's range is pyproject's, all else is the lock."""
    given = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert given == [
        "python" + PROJECT["requires-python"],
        "pip",
        {"pip": ["-r requirements.lock", "-e ."]},
    ]


def test_readme_names_the_two_commands_and_ci_calls_one():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M))
    readme = (ROOT / "README.md").read_text()
    assert {"make book", "make test"} <= set(re.findall(r"make \w+", readme))
    assert {command.split()[1] for command in re.findall(r"make \w+", readme)} <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_modules_are_read_in_one_sitting():
    modules = [path for folder in ("mc_lib", "tools", "bench") for path in (ROOT / folder).glob("*.py")]
    lengths = {path.name: len(path.read_text().splitlines()) for path in modules}
    assert not {name: count for name, count in lengths.items() if count > 350}


def test_nothing_names_a_registry():
    """The files of the set-up name no host to install from."""
    for name in ("Makefile", ".ci/run", "requirements.lock", "pyproject.toml", "environment.yml"):
        assert "://" not in (ROOT / name).read_text(), name


def test_core_needs_no_book():
    """Training starts without plotly, IPython or TransformerLens: they need not be installed on a bare machine."""
    code = "import sys, mc_lib.train\nprint({'plotly', 'IPython', 'transformer_lens'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.strip() == "set()", result.stderr


def test_the_saved_runs_stay_light():
    sizes = [path.stat().st_size for path in (ROOT / "runs").rglob("*") if path.is_file()]
    assert sum(sizes) < 80_000_000
    assert max(sizes) < 5_000_000
