"""The claims on training on the saved main run, and each rule on metrics that keep it and that break it."""

import pandas as pd
import pytest
import torch
from small_runs import saved

from mc_lib import claims, claims_dynamics, figures_learning, figures_slider, phases
from mc_lib.claim import Study
from mc_lib.config import Config
from mc_lib.runs import open_run

CLAIMS = {claim.id: claim for claim in claims_dynamics.CLAIMS}
ON_MAIN = {
    "dyn.order": True,
    "dyn.add_first": True,
    "dyn.jump1": False,
    "dyn.constants": True,
    "dyn.jump2": True,
    "dyn.score": True,
    "dyn.measures": True,
}
CFG = Config(variables=4, not_second="a", not_first="d")
LAST = 10_000


@pytest.mark.parametrize("name", sorted(ON_MAIN))
def test_on_the_main_run(main_study, name):
    finding = CLAIMS[name].on(main_study)
    assert finding.holds is ON_MAIN[name], finding


def test_every_claim_of_the_chapter_is_listed_once_and_tested():
    listed = [claim.id for claim in claims.of_chapter("progress_measures")]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(ON_MAIN)


def test_what_the_page_tells_of_the_main_run(main_study):
    """Variables with the same restriction are told apart late: trained cells of them come thousands of steps later."""
    marks = phases.phases(main_study.metrics)
    assert phases.late_cells(main_study.metrics, main_study.config, marks) == ["k first"]
    solved = phases.cell_steps(main_study.metrics, main_study.config)
    restricted = phases.restricted_cells(main_study.config)
    slow = {cell for cell, step in solved.items() if step > marks.first.ends + 1000 and cell not in restricted}
    assert slow == {"k second", "l second"}


# --- metrics made by hand ------------------------------------------------------------------------------


def rising(step: int, low: float = 0.0, high: float = 1.0) -> pd.Series:
    """`low` until the step, `high` from it on."""
    index = pd.RangeIndex(0, LAST + 1, 100)
    return pd.Series([high if at >= step else low for at in index], index=index)


def story(**changes: pd.Series) -> pd.DataFrame:
    """Metrics of a run of which every claim holds; a change replaces a column (its spaces written as __)."""
    columns = {
        "0-var train": rising(400),
        "1-var train": rising(3000, 0.5),
        "1-var var-restricted": rising(7000, 0.5),
        claims_dynamics.ADDING: rising(500),
        claims_dynamics.BINDING: rising(1500),
        claims_dynamics.MATCH: rising(3000, 0.0, 50.0),
        **{name: rising(3000) for name in claims_dynamics.ROUTING},
        **{name: rising(3000, 0.8, 0.5) for name in claims_dynamics.CONSTANT.values()},
        **{name: rising(3000, 0.1, 0.5) for name in claims_dynamics.VARIABLE.values()},
        **{cell: rising(3000) for cell in phases.cell_names(CFG)},
        "a second": rising(7000),
        **{f"qk1_score_{v}": rising(3000, -2.0, -0.3) for v in CFG.letters},
        "qk1_score_a": rising(7000, -2.0, -0.3),
    }
    columns |= {name.replace("__", " "): column for name, column in changes.items()}
    return pd.DataFrame(columns).rename_axis("step").reset_index()


@pytest.fixture
def study_of(tmp_path):
    run = open_run(saved(tmp_path / "run", 2, True))

    def make(metrics: pd.DataFrame) -> Study:
        study = Study(run)
        study.config = CFG
        study.__dict__["metrics"] = metrics
        return study

    return make


def test_the_story_bears_out_every_claim(study_of):
    study = study_of(story())
    assert {name: CLAIMS[name].on(study).holds for name in ON_MAIN} == dict.fromkeys(ON_MAIN, True)


OTHERWISE = {
    "binding before addition": ("dyn.order", {"0-var train": rising(4000)}),
    "restricted places before binding": ("dyn.order", {"1-var var-restricted": rising(2000)}),
    "the circuit comes in the second half": ("dyn.add_first", {claims_dynamics.ADDING: rising(1600)}),
    "the circuit never comes": ("dyn.add_first", {claims_dynamics.ADDING: rising(LAST + 1)}),
    "a slow rise": ("dyn.jump1", {"1-var train": rising(3000, 0.5, 0.85).add(rising(3500, 0.0, 0.15))}),
    "the match comes later": ("dyn.jump1", {claims_dynamics.MATCH: rising(3500, 0.0, 50.0)}),
    "attention came earlier": ("dyn.jump1", {claims_dynamics.TOP2: rising(2500)}),
    "= attends to the second place": ("dyn.constants", {claims_dynamics.VARIABLE["second"]: rising(3000, 0.8, 0.5)}),
    "= attends to the first place": ("dyn.constants", {claims_dynamics.VARIABLE["first"]: rising(3000, 0.3, 0.5)}),
    "two cells are late": ("dyn.jump2", {"d first": rising(7000)}),
    "the late cell is a trained one": ("dyn.jump2", {"a second": rising(3000), "b second": rising(7000)}),
    "no cell is late": ("dyn.jump2", {"a second": rising(3000)}),
    "the score falls": ("dyn.score", {"qk1_score_a": rising(7000, -0.3, -2.0)}),
    "the score rises a thousand steps before": ("dyn.score", {"qk1_score_a": rising(6400, -2.0, -0.3)}),
    "binding before adding": ("dyn.measures", {claims_dynamics.BINDING: rising(300)}),
    "routing before binding": ("dyn.measures", {claims_dynamics.ROUTING[2]: rising(1000)}),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_breaks_a_claim(study_of, what):
    name, changes = OTHERWISE[what]
    assert CLAIMS[name].on(study_of(story(**changes))).holds is False


def test_late_cells_are_named_with_the_step_that_solves_them(study_of):
    finding = CLAIMS["dyn.jump2"].on(study_of(story(**{"d first": rising(LAST + 1)})))
    assert finding.value == "late: d first (never), a second (solved at 7000)"


def test_a_chance_hit_of_attention_does_not_count(study_of):
    early = rising(3000)
    early.loc[100] = 1.0
    assert CLAIMS["dyn.measures"].on(study_of(story(attn_l1_equal_to_operands=early))).holds is True


def test_a_stuck_run_cannot_tell(study_of):
    stuck = story(**{"1-var train": rising(0, 0.6, 0.6), "1-var var-restricted": rising(0, 0.1, 0.1)})
    study = study_of(stuck.assign(**dict.fromkeys(claims_dynamics.ROUTING, 0.3)))
    for name in ON_MAIN:
        finding = CLAIMS[name].on(study)
        assert finding.holds is None
        assert "never" in finding.note


def test_a_run_without_a_second_jump_tells_of_the_first(study_of):
    study = study_of(story(**{"1-var var-restricted": rising(0, 0.7, 0.7)}))
    found = {name: CLAIMS[name].on(study).holds for name in ON_MAIN}
    assert {name for name, holds in found.items() if holds is None} == {"dyn.order", "dyn.jump2", "dyn.score"}
    assert all(holds is not False for holds in found.values())


def test_both_jumps_at_once_leave_nothing_between(study_of):
    study = study_of(story(**{"1-var var-restricted": rising(3000, 0.5)}))
    assert "at once" in CLAIMS["dyn.jump2"].on(study).note


def test_missing_columns_are_named(study_of):
    table = story()
    for name in ("1-var train", "1-var var-restricted", claims_dynamics.MATCH, "attn_l1_first_num+var", "qk1_score_a"):
        notes = [CLAIMS[claim].on(study_of(table.drop(columns=name))).note for claim in ON_MAIN]
        assert any(f"lack {name}" in note for note in notes), name
    bare = study_of(table.drop(columns=phases.cell_names(CFG)))
    assert "each variable on each side" in CLAIMS["dyn.jump2"].on(bare).note


def test_a_run_without_metrics_says_so(tmp_path):
    study = Study(open_run(saved(tmp_path / "run", 0, True)))
    for name in ON_MAIN:
        assert CLAIMS[name].on(study).note == "the run has no metrics over training"


# --- the slider ----------------------------------------------------------------------------------------


def test_the_slider_holds_what_each_step_shows(tmp_path):
    run = open_run(saved(tmp_path / "run", 8, True))
    tokens = figures_slider.example(run.config)
    found = figures_slider.moments(run, run.steps, tokens)
    figure = figures_slider.slider(found, tokens, run.config)
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == [str(step) for step in run.steps]
    assert slider.active == len(run.steps) - 1
    shown = [
        trace.z.tolist() if hasattr(trace.z, "tolist") else [list(row) for row in trace.z] for trace in figure.data
    ]
    assert slider.steps[-1].args[0]["z"] == shown
    assert slider.steps[0].args[0]["z"] != shown
    for stop in slider.steps:
        for new, trace in zip(stop.args[0]["z"], figure.data, strict=True):
            assert torch.tensor(new).shape == (len(trace.y), len(trace.x))


def test_the_example_is_the_papers_where_it_fits():
    assert figures_slider.example(Config())[2] == Config().FIRST_VARIABLE
    other = Config(p=13, variables=4, length=10, not_first="d")
    assert len(figures_slider.example(other)) == other.length


def test_the_linear_button_takes_the_logarithmic_ticks_away():
    """On a linear axis those ticks would be counted one by one: a browser does not come back from that."""
    figure = figures_learning.over_steps({"a": (rising(400), {})}, phases.phases(story()), "share")
    for button in figure.layout.updatemenus[0].buttons:
        (change,) = button.args
        assert (change["xaxis.dtick"] is None) == (change["xaxis.type"] == "linear")
    assert figure.layout.xaxis.dtick == figures_learning.LOG_TICKS
