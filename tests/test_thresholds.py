"""Thresholds on points made by hand, and what the tables of both sweeps must hold."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bernoulli
from small_runs import refused, saved

from mc_lib import claims_generalization, evaluation, sweep, task, thresholds
from mc_lib.claim import NotHere, Study
from mc_lib.config import Config
from mc_lib.intervals import wilson
from mc_lib.runs import open_run
from mc_lib.sampler import Sampler
from mc_lib.thresholds import threshold

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = ROOT / "runs" / "sweeps"
OVER = ("fig3a", "fig3b")


def runs(*outcomes: tuple[float, bool]) -> pd.DataFrame:
    """Points of runs that solve their test, or surely do not."""
    rows = [(value, 1.0, 0.98, 1.0) if solved else (value, 0.5, 0.4, 0.6) for value, solved in outcomes]
    return pd.DataFrame(rows, columns=["value", "share", "low", "high"]).set_index("value")


def stairs(text: str) -> pd.DataFrame:
    """Runs at 0, 1, 2, ...; x solves its test."""
    return runs(*((float(place), letter == "x") for place, letter in enumerate(text)))


@pytest.mark.parametrize(
    ("text", "below", "at", "low", "high"),
    [
        ("....xxxxxxxx", 3, 4, 3, 4),
        (".....x.xxxxxxx", 6, 7, 4, 8),
        (".xxxxxxxxxxx", 0, 1, 0, 3),
        ("...........x", 10, 11, 8, 11),
    ],
)
def test_thresholds_by_hand(text, below, at, low, high):
    found = threshold(stairs(text), 0.97)
    assert (found.below, found.at, found.low, found.high) == (below, at, low, high)


outcomes = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=3, max_size=25)


@given(outcomes)
@settings(max_examples=40, deadline=None)
def test_the_likeliest_split_by_brute_force(drawn):
    """Every split tried, with likelihoods from scipy."""
    found = runs(*sorted((float(value), solved) for value, solved in drawn))
    values, solved = found.index.to_numpy(), (found["high"] >= 0.97).to_numpy()

    def likelihood(part) -> float:
        return bernoulli.logpmf(part, part.mean()).sum()

    gains = {}
    for split in sorted(set(values))[:-1]:
        low, high = solved[values <= split], solved[values > split]
        rises = high.mean() > low.mean()
        gains[split] = likelihood(low) + likelihood(high) - likelihood(solved) if rises else 0.0
    if solved.all() or not solved.any():
        with pytest.raises(NotHere, match="no threshold on its grid"):
            threshold(found, 0.97)
    elif gains:
        at = threshold(found, 0.97)
        assert gains[at.below] == pytest.approx(max(gains.values()), abs=1e-9)
        near = [split for split, gain in gains.items() if gain >= max(gains.values()) - thresholds.DROP - 1e-9]
        assert (at.low, at.high) == (min(near), min(value for value in values if value > max(near)))
        assert at.low <= at.below < at.at <= at.high


def test_chance_is_small_for_a_step_and_fair_for_luck():
    assert threshold(stairs(".......xxxxxxxxxxxxx"), 0.97).chance < 0.001
    random = np.random.default_rng(0)
    lucky = ["".join(random.choice(["x", "."], 20, p=[0.75, 0.25])) for _ in range(40)]
    chances = [threshold(stairs(text), 0.97).chance for text in lucky if len(set(text)) > 1]
    assert np.mean(np.array(chances) < 0.05) < 0.15
    assert np.mean(chances) > 0.3
    assert threshold(stairs("xxxx.xxxx.xxxxxx.xxx"), 0.97).chance > 0.3


@pytest.mark.parametrize("text", ["xxxx", "...."])
def test_runs_that_all_end_alike_show_no_threshold(text):
    with pytest.raises(NotHere, match="no threshold on its grid"):
        threshold(stairs(text), 0.97)
    assert "no threshold on its grid" in thresholds.spell(stairs(text), 0.97)


def test_a_run_solves_its_test_unless_it_is_surely_below():
    """33 of 35 might be 97%, 970 of 1000 is, 900 of 1000 is not."""
    rows = {
        "two_var": [0.3, 0.5, 0.2], "2-var union: right": [33, 970, 900], "2-var union: n": [35, 1000, 1000],
    }  # fmt: skip
    found = thresholds.points(pd.DataFrame(rows), "fig3b", "2-var union")
    assert found.index.tolist() == [0.2, 0.3, 0.5]
    assert [tuple(pair) for pair in found[["low", "high"]].to_numpy()] == [
        wilson(900, 1000), wilson(33, 35), wilson(970, 1000)
    ]  # fmt: skip
    at = threshold(found, 0.97)
    assert (at.below, at.at) == (0.2, 0.3)


def test_runs_with_one_value_are_never_split():
    found = runs((0.1, False), (0.1, True), (0.2, True), (0.2, True), (0.2, True))
    assert (threshold(found, 0.97).below, threshold(found, 0.97).at) == (0.1, 0.2)
    together = thresholds.by_value(found.assign(right=[1, 2, 3, 4, 5], n=10))
    assert together["runs"].tolist() == [2, 3]
    assert together["right"].tolist() == [3, 12]
    assert together["share"].tolist() == [0.75, 1.0]


def test_a_point_without_items_is_left_out():
    rows = {"held_out": [0.9, 0.1], "0-var diagonal out: right": [3, 0], "0-var diagonal out: n": [5, 0]}
    found = thresholds.points(pd.DataFrame(rows), "fig3a", "0-var diagonal out")
    assert found.index.tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("factor", [0.01, 0.5, 0.99])
def test_the_share_of_two_variables_is_that_of_the_batches(factor):
    cfg = Config(two_var=factor, batch=4000)
    tokens = Sampler(cfg).batch(torch.tensor([0]), torch.tensor([1]))[0, 0]
    two = (task.operands(tokens, cfg).kind == 3).float().mean()
    assert two.item() == pytest.approx(thresholds.two_var_share(Config(), factor), abs=0.03)


# --- the claims on sweeps ------------------------------------------------------------------------------


CLAIMS = {claim.id: claim for claim in claims_generalization.CLAIMS if claim.many}


@pytest.mark.parametrize(("name", "holds"), [("fig3.pairs", True), ("fig3.priming", None)])
def test_on_the_saved_sweeps(main_study, name, holds):
    """With one run a value, luck hides whether a share of two-variable sequences is needed for the whole union."""
    finding = CLAIMS[name].on(main_study)
    assert finding.holds is holds, finding
    assert holds or "differ too much" in finding.note


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_a_run_without_sweeps_beside_it_says_so(tmp_path, name):
    finding = CLAIMS[name].on(Study(open_run(saved(tmp_path / "runs" / "main", 2, True))))
    assert finding.holds is None
    assert "sweeps/fig3" in finding.note


def test_sweeps_of_other_settings_tell_nothing(main_study, tmp_path):
    table = thresholds.read(SWEEPS / "fig3a", "fig3a")
    assert thresholds.differences(table, main_study.config, "fig3a") == []
    assert thresholds.differences(table, main_study.config, "fig3b") == ["held_out"]
    assert thresholds.differences(table, main_study.config.replace(not_first="k"), "fig3a") == ["not_first"]
    assert thresholds.differences(table, main_study.config.replace(lr=0.01, held_out=0.5), "fig3a") == ["lr"]
    other = open_run(saved(tmp_path / "runs" / "main", 2, True))
    (tmp_path / "runs" / "sweeps").symlink_to(SWEEPS)
    with pytest.raises(NotHere, match="other settings"):
        thresholds.folder_for(other, "fig3a")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "run,seed\n0,1\n",
        lambda text: text.replace("held_out", "kept_out"),
        lambda text: text.replace("lr,", "rl,"),
        lambda text: "\n".join(text.splitlines()[:1]),
        lambda text: "\n".join(text.splitlines()[:2]),
        lambda text: text.replace("20000", "30000", 1),
        lambda text: text.replace("3267.0", "many"),
        lambda text: text.replace("3267.0", ""),
        lambda text: text.replace("3267.0", "1.0"),
        lambda text: text + '"',
    ],
    ids=["empty", "another", "no values", "no setting", "no rows", "one row", "lengths", "words", "gap", "too many",
         "cut"],
)  # fmt: skip
def test_a_damaged_table_is_refused(tmp_path, damage):
    refused(lambda: thresholds.read(tmp_path, "fig3a"), "fig3a", "sweep")
    (tmp_path / "table.csv").write_text(damage((SWEEPS / "fig3a" / "table.csv").read_text()))
    refused(lambda: thresholds.read(tmp_path, "fig3a"), "--over fig3a", "sweep")


# --- the saved sweeps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVER)
def test_the_saved_sweep_is_on_the_papers_grid(over):
    table = thresholds.read(SWEEPS / over, over)
    base = Config(**{name: table[name].iloc[0].item() for name in ("steps", "eval_every", "seed")})
    jobs = getattr(sweep, over)(base)
    assert base.steps >= 20_000
    assert table["run"].tolist() == list(jobs)
    for row, cfg in zip(table.to_dict("records"), jobs.values(), strict=True):
        assert {name: row[name] for name in cfg.to_dict()} == cfg.to_dict()


@pytest.mark.parametrize("over", OVER)
def test_the_saved_sweep_has_the_test_sets_sizes(over):
    """As many items as the settings leave, and the parts add up to the whole."""
    for row in thresholds.read(SWEEPS / over, over).to_dict("records"):
        cfg = Config(**{name: row[name] for name in Config().to_dict()})
        assert row["0-var held out: n"] == len(task.held_out_pairs(cfg))
        sets = evaluation.further_sets(cfg)
        for part in thresholds.PARTS["fig3a"][1:]:
            assert (row[f"{part}: n"] > 0) == (len(sets[part]) > 0)
        pairs = (len(task.held_out_pairs(cfg)), len(task.training_pairs(cfg)))
        sizes = (pairs[0] * 92, pairs[1] * 36, pairs[1] * 4)
        for part, size in zip(thresholds.PARTS["fig3b"][1:], sizes, strict=True):
            assert row[f"{part}: n"] == size
        for what in ("right", "n"):
            assert (
                sum(row[f"{part}: {what}"] for part in thresholds.PARTS["fig3a"][1:]) == row[f"0-var held out: {what}"]
            )
