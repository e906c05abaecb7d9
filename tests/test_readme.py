"""The tables in the READMEs are those that were measured."""

import json

import pytest

from mc_lib.claims import CLAIMS
from tools import readme


def test_readme_is_as_measured():
    assert readme.README.read_text() == readme.readme(), "run `make execute`, which writes README.md anew"


def test_the_main_runs_readme_is_as_measured():
    written = (readme.MAIN_RUN / "README.md").read_text()
    assert written == readme.main_readme(), "run `make execute`, which writes runs/main/README.md anew"
    rows = [line for line in written.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert [row.split("|")[1].strip() for row in rows] == [str(seed) for seed in range(len(rows))]
    assert ["chosen" in row for row in rows] == [False] * (len(rows) - 1) + [True]


def test_every_claim_stands_in_the_readme():
    text = readme.README.read_text()
    assert not [claim.id for claim in CLAIMS if f"`{claim.id}`" not in text]


def test_the_benchmark_passes_its_floor():
    result = json.loads(readme.BENCH.read_text())
    steps = result["steps"]
    assert steps["b"]["cpu_ms"] <= steps["a"]["cpu_ms"] / 10
    assert result["floor_ms"] == pytest.approx(1e3 * result["operations"] / result["matrix_rate"])
    assert result["peak_memory_mb"] < 1500
    assert result["threads"] == 1
