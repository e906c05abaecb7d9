"""The explorer of the step without a browser: set a control, look at the figure's data and at the line below."""

import json

import pytest

from mc_lib import explorer_theory, figures, theory
from mc_lib.theory import Setup
from mc_lib.theory_sweeps import KINDS, Scan


def small():
    return explorer_theory.StepExplorer(p=13, length=24)


def shown(explorer):
    (output,) = explorer.picture.widget.outputs
    json.dumps(output)
    return {trace["name"]: trace for trace in output["data"][figures.PLOTLY_MIME]["data"]}


def test_what_is_shown_is_what_the_theorem_gives():
    explorer = small()
    explorer.lam.value, explorer.gamma.value = 8.0, 1.1
    s = Setup(p=13, length=24, lam=8.0, order="random")
    scan = Scan(s, theory.update(s), explorer_theory.COUNT)
    for kind in KINDS:
        assert explorer.probes[kind] == scan.at(1.1, kind)
    bars = shown(explorer)["on = itself"]
    assert bars["x"] == pytest.approx([scan.at(1.1, kind).itself for kind in KINDS], abs=1e-3)
    assert f"2-var {scan.at(1.1, 2).accuracy:.2f}" in explorer.numbers.text
    assert "gamma 1.10" in explorer.numbers.text


def test_every_control_counts():
    explorer = small()
    for control, value in (
        (explorer.lam, 6.0),
        (explorer.gamma, 0.5),
        (explorer.order, "fixed"),
        (explorer.carried, 0.5),
        (explorer.itself, False),
        (explorer.p, 11),
        (explorer.variables, 5),
        (explorer.length, 28),
    ):
        before = json.dumps(explorer.picture.widget.outputs)
        control.value = value
        assert explorer.message.text == ""
        assert json.dumps(explorer.picture.widget.outputs) != before


@pytest.mark.parametrize(
    ("control", "value", "says"),
    [
        ("p", 1, "p = 1 is out of range"),
        ("p", 500, "too slow"),
        ("variables", 2, "3 assignments do not fit"),
        ("length", 8, "too short for 3 assignments"),
    ],
)
def test_a_bad_size_is_one_line_and_the_figure_stays(control, value, says):
    explorer = small()
    before = explorer.picture.widget.outputs
    kept = getattr(explorer, control).value
    getattr(explorer, control).value = value
    assert says in explorer.message.text
    assert "\n" not in explorer.message.text
    assert explorer.picture.widget.outputs == before
    getattr(explorer, control).value = kept
    assert explorer.message.text == ""


def test_where_no_step_will_do_it_says_so():
    explorer = small()
    explorer.variables.value, explorer.carried.value = 12, 0.5
    assert "no step size keeps all kinds at .99" in explorer.numbers.text


def test_the_cells_last_line_is_a_widget():
    assert explorer_theory.step().children
