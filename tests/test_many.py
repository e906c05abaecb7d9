"""What is counted over seeds, on seeds whose metrics were made by hand."""

import math
import shutil
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_runs import LAST, SETTINGS, save_folder, save_seed
from scipy.stats import spearmanr
from small_runs import refused, saved

from mc_lib import many
from mc_lib.claim import NotHere
from mc_lib.evaluation import NINE
from mc_lib.intervals import exact
from mc_lib.many import Seed
from mc_lib.phases import Jump, Phases
from mc_lib.runs import RunWriter, open_run

JUMPS = [(500, 900), (600, None), (None, None), (400, 400), (700, 1900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("many") / "seeds", JUMPS)


@pytest.fixture(scope="module")
def seeds(folder):
    return many.read(folder)


# --- where they are ------------------------------------------------------------------------------------


def test_seeds_are_read_in_their_order_with_their_marks(seeds):
    assert [seed.number for seed in seeds] == list(range(len(JUMPS)))
    assert [(seed.steps["jump 1"], seed.steps["jump 2"]) for seed in seeds] == JUMPS
    assert [many.FATES.index(seed.fate) for seed in seeds] == [0, 1, 2, 0, 0]
    assert [seed.solved for seed in seeds] == [900, None, None, 400, 1900]


def test_solved_is_all_nine_in_one_evaluation():
    table = pd.DataFrame({name: [0.99, 0.99, 0.99] for name in NINE}, index=[0, 100, 200]).rename_axis("step")
    table.loc[0, NINE[3]], table.loc[100, NINE[8]] = 0.97, 0.0
    assert many.solved_step(table.reset_index()) == 200
    assert many.solved_step(table.reset_index(), 0.999) is None
    undefined = table.assign(**{NINE[3]: math.nan, NINE[8]: math.nan})
    assert many.solved_step(undefined.reset_index()) == 0
    assert many.solved_step(pd.DataFrame({"step": []})) is None


def test_what_a_seed_keeps_is_counted_from_the_step_that_solved_it(tmp_path):
    table = pd.DataFrame(0.99, index=range(0, 1001, 100), columns=list(NINE)).rename_axis("step")
    table.loc[[0, 100, 400, 600, 1000], NINE[2]] = 0.5
    run = open_run(saved(tmp_path / "run", 2, True))
    run.metrics = table.reset_index()
    seed = many.seed_of(run)
    assert seed.solved == 200
    assert seed.kept == pytest.approx(6 / 9)
    assert seed.lowest == 0.5


def test_a_run_finds_the_seeds_beside_it_and_those_it_is_one_of(folder, tmp_path):
    main = saved(tmp_path / "runs" / "main", 2, True)
    assert many.beside(open_run(main), many.SEEDS) is None
    shutil.copytree(folder, tmp_path / "runs" / "seeds")
    assert many.beside(open_run(main), many.SEEDS) == tmp_path / "runs" / "seeds"
    one = open_run(tmp_path / "runs" / "seeds" / "002")
    assert many.beside(one, many.SEEDS) == tmp_path / "runs" / "seeds"
    assert many.beside(one, f"{many.SWEEPS}/fig3a") is None
    (tmp_path / "runs" / "sweeps" / "fig3a").mkdir(parents=True)
    (tmp_path / "runs" / "sweeps" / "fig3a" / "table.csv").write_text("run,seed\n")
    for run in (open_run(main), one):
        assert many.beside(run, f"{many.SWEEPS}/fig3a") == tmp_path / "runs" / "sweeps" / "fig3a"


def test_a_run_of_another_sweep_is_none_of_its_seeds(tmp_path):
    one = open_run(save_seed(tmp_path / "sweep", 0, 500, 900))
    for held_out, expected in ((0.2, tmp_path / "sweep"), (0.3, None)):
        rows = pd.DataFrame({"run": ["000", "001"], "seed": [0, 1], "held_out": [0.2, held_out]})
        rows.to_csv(tmp_path / "sweep" / "table.csv", index=False)
        assert many.beside(one, many.SEEDS) == expected


def test_without_seeds_beside_it_a_run_gets_the_books(tmp_path, monkeypatch):
    run = open_run(saved(tmp_path / "run", 2, True))
    assert many.find(run, many.SEEDS).parts[-2:] == ("runs", "seeds")
    monkeypatch.chdir(tmp_path)
    refused(lambda: many.find(run, many.SEEDS), "runs/seeds", "python -m mc_lib sweep")


def test_what_is_no_folder_of_seeds_is_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(lambda: many.read(tmp_path / "empty"), "holds no runs")
    shutil.copytree(folder, tmp_path / "other")
    save_seed(tmp_path / "other", 9, 500, 900, cfg=SETTINGS.replace(lr=0.5))
    refused(lambda: many.read(tmp_path / "other"), "009", "more than their seed")
    shutil.copytree(folder, tmp_path / "open")
    saved(tmp_path / "open" / "010", 2, False)
    refused(lambda: many.read(tmp_path / "open"), "not finished", "resume")
    refused(lambda: many.read(folder / "000"), "is one run")
    shutil.copytree(folder, tmp_path / "double")
    shutil.copytree(folder / "002", tmp_path / "double" / "copy")
    refused(lambda: many.read(tmp_path / "double"), "seed 2 twice")
    shutil.copytree(folder, tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone" / "003")
    refused(lambda: many.read(tmp_path / "gone"), "003", "is gone")
    (tmp_path / "gone" / "table.csv").write_bytes(b"\xff\x00")
    refused(lambda: many.read(tmp_path / "gone"), "is no table")
    refused(lambda: many.beside(open_run(tmp_path / "gone" / "000"), many.SEEDS), "is no table")
    with RunWriter.create(tmp_path / "bare" / "000", SETTINGS) as writer:
        writer.finish()
    refused(lambda: many.read(tmp_path / "bare"), "no metrics")


# --- when it happens -----------------------------------------------------------------------------------


def marked(like: Seed, addition: int | None, first: int | None, second: int | None) -> Seed:
    """A seed with these marks."""
    jumps = (None if at is None else Jump(0, at) for at in (first, second))
    return Seed(like.run, Phases(LAST, addition, *jumps), None)


some_steps = st.lists(st.none() | st.integers(1, 20).map(lambda n: 100 * n), min_size=1, max_size=20)


@given(steps=some_steps)
def test_waiting_counts_the_seeds_left(seeds, steps):
    table = many.waiting([marked(seeds[0], None, at, None) for at in steps], "jump 1")
    for step in range(0, LAST + 1, 100):
        left = sum(at is None or at > step for at in steps)
        row = table.loc[:step].iloc[-1]
        assert row.left == left
        assert row.share == left / len(steps)
        assert (row.low, row.high) == exact(left, len(steps))
    assert all(before >= after for before, after in pairwise(table.left))
    assert table.index[-1] == LAST
    assert table.index.is_unique


@given(steps=some_steps)
def test_the_median_counts_censored_seeds_as_last(seeds, steps):
    values = sorted(math.inf if at is None else at for at in steps)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    assert many.middle_step([marked(seeds[0], None, at, None) for at in steps], "jump 1") == (
        None if math.isinf(middle) else int(middle)
    )


def test_spread_is_the_quantiles_over_seeds(seeds):
    table = many.spread(seeds, "1-var train")
    for step in (0, 400, 500, 650, 700, LAST):
        if step in table.index:
            values = [float(first is not None and step >= first) for first, _ in JUMPS]
            assert table.loc[step].tolist() == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]).tolist())
    assert many.spread(seeds, "no such measure").empty


def test_stories_tell_each_seed_s_steps(seeds):
    table = many.stories(seeds)
    assert table["jump 2"].tolist() == [900, pd.NA, pd.NA, 400, 1900]
    assert table.loc[2, "last cell"] == "-"
    assert table.loc[1, "last cell"] == "d first, a second"


def test_the_last_cell_is_the_one_that_comes_after_all_others(tmp_path):
    late = many.seed_of(open_run(save_seed(tmp_path, 1, 500, 900, {"a second": 1500})))
    assert many.last_cells(late) == ["a second"]
    never = many.seed_of(open_run(save_seed(tmp_path, 2, 500, 900, {"d first": None, "a second": 1500})))
    assert many.last_cells(never) == ["d first"]


@pytest.mark.parametrize(
    ("addition", "first", "second", "expected"),
    [
        (300, 500, 900, True),
        (300, 500, None, None),
        (300, None, None, None),
        (None, None, None, None),
        (300, 500, 500, False),
        (500, 300, 900, False),
        (300, None, 900, False),
        (None, 500, 900, False),
    ],
)
def test_order_is_broken_by_a_later_part_that_comes_no_later(seeds, addition, first, second, expected):
    seed = marked(seeds[0], addition, first, second)
    assert many.in_order(seed) is expected
    assert [step for _, step in many.order_of(seed) if step] == sorted(filter(None, (addition, first, second)))


# --- can it be told early ------------------------------------------------------------------------------


def test_early_measures_are_those_of_the_last_evaluation_up_to_a_step(seeds):
    early = many.early_measures(seeds, 450)
    assert early.index.tolist() == [seed.number for seed in seeds]
    assert early["1-var train"].tolist() == [0, 0, 0, 1, 0]
    assert early["noise"].tolist() == [0, 2, 4, 1, 3]
    assert "0-var train" not in early, "constant by then"
    assert "loss" not in early


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_foretold_correlates_by_rank(draw):
    random = np.random.default_rng(draw)
    early = pd.DataFrame(random.normal(size=(12, 4)), columns=list("abcd")).round(1)
    outcome = random.integers(0, 4, 12).astype(float)
    if len(set(outcome)) < 2 or (early.nunique() < 2).any():
        return
    found = many.foretold(early, outcome, draws=50).correlations
    for name in early:
        assert found[name] == pytest.approx(spearmanr(early[name], outcome).statistic)
    assert found.abs().is_monotonic_decreasing


def test_chance_is_small_for_a_measure_that_tells_and_fair_for_those_that_do_not():
    random = np.random.default_rng(1)
    outcome = np.arange(16.0)
    chances = []
    for _ in range(60):
        noise = pd.DataFrame(random.normal(size=(16, 30)))
        chances.append(many.foretold(noise, outcome, draws=200).chance)
    assert 0.3 < np.mean(chances) < 0.7
    assert np.mean(np.array(chances) < 0.1) < 0.25
    telling = noise.assign(tells=-(outcome**3))
    found = many.foretold(telling, outcome)
    assert found.correlations.index[0] == "tells"
    assert found.correlations.iloc[0] == pytest.approx(-1)
    assert found.chance < 0.001


def test_outsiders_lie_beyond_all_others():
    measures = pd.DataFrame({"above": [9, 8, 1, 2, 3], "between": [1, 2, 0, 3, 4], "split": [9, 0, 1, 2, 3]})
    found, usual = many.outsiders(measures, [0, 1])
    assert found == ["above", "split"]
    by_hand = [sum(
        all(x > rest.max() or x < rest.min() for x in measures[name][list(few)])
        for name in measures for rest in [measures[name].drop(list(few))]
    ) for few in combinations(range(5), 2)]  # fmt: skip
    assert usual == pytest.approx(np.mean(by_hand))


def test_one_outcome_for_all_tells_nothing(seeds):
    with pytest.raises(NotHere, match="share this outcome"):
        many.foretold(many.early_measures(seeds, 450), np.ones(len(seeds)))


def test_ranked_steps_put_the_censored_last(seeds):
    assert many.ranked_steps(seeds, "jump 2").tolist() == [900, LAST + 1, LAST + 1, 400, 1900]


# --- what they compute with ----------------------------------------------------------------------------


def test_frequencies_share_the_power(seeds):
    shares = many.frequencies(seeds)
    assert shares.shape == (len(seeds), SETTINGS.p // 2)
    assert shares.sum(axis=1).tolist() == pytest.approx([1] * len(seeds))
    picks = many.carried(shares)
    for seed in picks.index:
        chosen = shares.loc[seed, picks.loc[seed]]
        assert chosen.sum() >= 0.9 > chosen.sum() - chosen.min()
        assert not (shares.loc[seed, ~picks.loc[seed]] > chosen.min()).any()


def picked(rows: list[list[int]], p: int) -> pd.DataFrame:
    table = pd.DataFrame(False, index=range(len(rows)), columns=range(1, p // 2 + 1))
    for seed, row in enumerate(rows):
        table.loc[seed, row] = True
    return table


def test_frequencies_are_favoured_if_all_seeds_pick_the_same():
    assert many.favoured(picked([[1, 4, 9]] * 8, 59), 59) < 0.01
    every = list(range(1, 30))
    assert many.favoured(picked([every] * 3, 59), 59) == 1


def test_seeds_that_pick_at_random_favour_none():
    random = np.random.default_rng(2)
    chances = [
        many.favoured(picked([(1 + random.permutation(29)[:9]).tolist() for _ in range(16)], 59), 59, draws=300)
        for _ in range(30)
    ]
    assert 0.3 < np.mean(chances) < 0.7
    assert np.mean(np.array(chances) < 0.05) < 0.2
