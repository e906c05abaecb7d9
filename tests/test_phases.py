"""Jumps, phases and cells on metrics whose answer is known."""

import random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mc_lib import phases
from mc_lib.config import Config
from mc_lib.phases import Jump, Phases

CFG = Config(variables=4, not_second="a", not_first="d")
STEPS = range(0, 10_001, 100)


def series(*corners: tuple[int, float]) -> pd.Series:
    """Constant from each corner on."""
    values = pd.Series(float("nan"), index=list(STEPS))
    for step, value in corners:
        values.loc[step] = value
    return values.ffill()


def metrics(**columns: pd.Series) -> pd.DataFrame:
    names = {"zero": "0-var train", "one": "1-var train", "restricted": "1-var var-restricted"}
    table = pd.DataFrame({names.get(name, name): column for name, column in columns.items()})
    return table.rename_axis("step").reset_index()


TWO_JUMPS = metrics(
    zero=series((0, 0.0), (400, 0.95)),
    one=series((0, 0.0), (1000, 0.6), (2000, 0.79), (2100, 0.85), (2200, 0.9), (2300, 1.0)),
    restricted=series((0, 0.0), (3000, 0.75), (7000, 0.81), (7500, 0.97)),
)


def test_jumps_are_where_they_were_put():
    found = phases.phases(TWO_JUMPS)
    assert found == Phases(10_000, 400, Jump(2000, 2200), Jump(6900, 7500))
    assert found.first
    assert found.first.width == 200
    assert str(found.first) == "2000 to 2200"


def test_the_three_phases_follow_each_other():
    spans = phases.phases(TWO_JUMPS).spans
    assert [(span.name, span.start, span.end) for span in spans] == [
        ("addition", 0, 2000),
        ("binding", 2000, 6900),
        ("refinement", 6900, 10_000),
    ]
    assert all(span.complete for span in spans)


def test_a_run_without_jumps_is_censored():
    stuck = metrics(zero=series((0, 0.0), (400, 1.0)), one=series((0, 0.6)), restricted=series((0, 0.1)))
    found = phases.phases(stuck)
    assert found == Phases(10_000, 400, None, None)
    (span,) = found.spans
    assert (span.name, span.end, span.complete) == ("addition", 10_000, False)


def test_a_run_that_does_everything_at_once_has_no_phase_between():
    rise = series((0, 0.0), (3000, 1.0))
    found = phases.phases(metrics(zero=rise, one=rise, restricted=rise))
    assert found.first == found.second == Jump(2900, 3000)
    assert [span.name for span in found.spans] == ["addition", "refinement"]


def test_a_second_jump_before_the_first_leaves_no_phase_between_either():
    spans = Phases(10_000, 400, Jump(5000, 5100), Jump(3000, 3100)).spans
    assert [(span.name, span.start, span.end) for span in spans] == [
        ("addition", 0, 5000),
        ("refinement", 5000, 10_000),
    ]


def test_what_dips_before_the_jump_moves_its_beginning():
    assert phases.jump(series((0, 0.85), (500, 0.7), (600, 0.85), (900, 0.95))) == Jump(500, 900)


def test_a_measure_that_starts_high_begins_where_it_is_first_logged():
    assert phases.jump(series((0, 0.95))) == Jump(0, 0)


def test_no_metrics_means_nothing_is_known():
    assert phases.phases(pd.DataFrame()) == Phases(0, None, None, None)
    assert phases.phases(pd.DataFrame({"step": [0, 100], "loss": [1.0, 0.5]})) == Phases(100, None, None, None)
    assert phases.cell_steps(pd.DataFrame(), CFG).isna().all()
    assert Phases(0, None, None, None).spans == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), st.integers(1, 1000), st.integers(0, 5000))
def test_stretching_and_shifting_the_steps_moves_jumps_along(values, stretch, shift):
    plain = pd.Series(values, index=range(len(values)))
    moved = pd.Series(values, index=[shift + stretch * step for step in plain.index])
    one, other = phases.jump(plain), phases.jump(moved)
    if one is None:
        assert other is None
    else:
        assert other == Jump(shift + stretch * one.begins, shift + stretch * one.ends)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_a_jump_begins_low_and_ends_high(values):
    seen = pd.Series(values, index=range(0, 100 * len(values), 100))
    rise = phases.jump(seen)
    if rise is None:
        assert (seen < phases.HIGH).all()
        return
    assert rise.begins <= rise.ends
    assert seen.loc[rise.ends] >= phases.HIGH
    assert (seen.loc[: rise.ends - 1] < phases.HIGH).all()
    assert seen.loc[rise.begins] < phases.LOW or rise.begins == 0
    assert (seen.loc[rise.begins + 1 :].loc[: rise.ends] >= phases.LOW).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.1, 0.9), st.integers(1, 6))
def test_held_is_reached_and_stays(values, level, rows):
    seen = pd.Series(values, index=range(len(values)))
    at = phases.held_step(seen, level, rows)
    runs = [i for i in range(len(values)) if all(v >= level for v in values[i : i + rows])]
    assert at == (runs[0] if runs else None)


def test_a_chance_hit_is_not_held():
    seen = series((0, 1.0), (100, 0.2), (2000, 1.0))
    assert phases.first_step(seen, 0.9) == 0
    assert phases.held_step(seen, 0.9) == 2000
    table = metrics(quick=seen, slow=series((0, 0.0), (3000, 1.0)), never=series((0, 0.5)))
    assert phases.order(table, ("never", "slow", "quick")) == [("quick", 2000), ("slow", 3000), ("never", None)]


def cells(**rises: int) -> pd.DataFrame:
    """The table of two jumps with cells solved at these steps, the others from 2100 on."""
    steps = {cell: 2100 for cell in phases.cell_names(CFG)} | {k.replace("_", " "): v for k, v in rises.items()}
    extra = {cell: series((0, 0.0), (step, 1.0)) for cell, step in steps.items()}
    return TWO_JUMPS.merge(metrics(**extra), on="step")


def test_late_cells_are_those_unsolved_in_the_second_half_of_the_time_between():
    table = cells(a_second=7500, d_first=4000, b_first=6500)
    marks = phases.phases(table)
    assert phases.restricted_cells(CFG) == ["d first", "a second"]
    assert phases.late_cells(table, CFG, marks) == ["b first", "a second"]
    assert phases.cell_steps(table, CFG)["b first"] == 6500


def test_late_cells_of_a_run_that_never_jumps_again_are_those_still_unsolved():
    table = cells(a_second=20_000).assign(**{"1-var var-restricted": 0.5})
    assert phases.late_cells(table, CFG, phases.phases(table)) == ["a second"]
    stuck = table.assign(**{"1-var train": 0.5})
    assert phases.late_cells(stuck, CFG, phases.phases(stuck)) == []


def test_only_the_second_half_of_the_time_between_the_jumps_counts():
    """Unsolved for more than half of the time from 2200 to 7499, but not of its second half."""
    table = cells(b_first=5400)
    assert phases.late_cells(table, CFG, phases.phases(table)) == []


def test_a_dip_does_not_make_a_cell_late():
    table = cells()
    table.loc[table.step.between(5000, 5500), "c first"] = 0.5
    assert phases.late_cells(table, CFG, phases.phases(table)) == []


def test_whole_rise_is_the_share_within_the_jump():
    assert phases.whole_rise(series((0, 1.0), (200, 2.0), (300, 4.0), (500, 5.0)), Jump(200, 300)) == 0.5
    assert phases.whole_rise(series((0, 1.0)), Jump(200, 300)) == 0.0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=30))
def test_rank_correlation_knows_order_only(pairs):
    one, other = (pd.Series([float(pair[i]) for pair in pairs]) for i in (0, 1))
    plain = phases.rank_correlation(one, other)
    assert phases.rank_correlation(one**3 + one, other) == pytest.approx(plain, nan_ok=True)
    assert phases.rank_correlation(one, -other) == pytest.approx(-plain, nan_ok=True)
    if one.nunique() > 1:
        assert phases.rank_correlation(one, one**3) == pytest.approx(1)


@pytest.mark.parametrize("most", [8, 25])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 25, 26, 60, 99])
def test_chosen_steps_are_few_saved_and_tell_the_story(size, most):
    saved = sorted(random.Random(size).sample(range(12_001), size))
    marks = phases.phases(TWO_JUMPS)
    chosen = phases.chosen_steps(saved, marks, most)
    assert len(chosen) == min(most, len(saved))
    assert chosen == sorted(set(chosen) & set(saved))
    assert {saved[0], saved[-1], *phases.story_steps(saved, marks).values()} <= set(chosen)


def test_the_story_is_told_by_saved_steps_in_each_phase():
    saved = [0, 500, 900, 1900, 2200, 4500, 6900, 10_000]
    found = phases.story_steps(saved, phases.phases(TWO_JUMPS))
    assert found == {"during addition": 900, "between the jumps": 4500, "at the end": 10_000}
    assert phases.story_steps([7], Phases(7, None, None, None)) == {"at the end": 7}
