"""What the chapter on the theorem draws: roles, gains, profiles, and that figures hold the numbers they are given."""

import json

import numpy as np
import pytest
import torch

from mc_lib import figures_theory, theory, theory_batch, theory_measured, theory_more, theory_sweeps, theory_views
from mc_lib.theory import Setup
from mc_lib.theory_views import ROLES

SMALL = Setup(p=11, variables=4, length=16, order="random")


def test_roles_of_one_sequence():
    """a=6, b=1, then 3 + b."""
    a, b, pad = SMALL.p + 3, SMALL.p + 4, SMALL.PAD
    tokens = torch.tensor([[a, 6, b, 1, *[pad] * 8, SMALL.PLUS, 3, b, SMALL.EQUALS]])
    found = theory_views.roles(SMALL, theory_batch.augment(SMALL, tokens))[0].tolist()
    named = [ROLES[k] for k in found]
    assert named[:4] == ["the rest", "other values", "the rest", "value asked for"]
    assert named[12:] == ["the rest", "number operand", "variable operand", "= itself"]
    assert set(named[4:12]) == {"the rest"}


def test_gains_add_up_to_the_exact_update():
    total = sum(theory_views.gains(SMALL, 1, 50).values())
    x = theory_batch.augment(SMALL, theory_batch.sample(SMALL, 1, 50))
    seen, role = theory_batch.scores(SMALL, theory.update(SMALL), x), theory_views.roles(SMALL, x)
    for k in range(len(ROLES)):
        assert total[k].item() == pytest.approx(seen[role == k].mean().item())


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_example_holds_all_attention(kind):
    found = theory_views.example(SMALL, kind, 0.9)
    assert sum(found.before) == pytest.approx(1)
    assert sum(found.after) == pytest.approx(1)
    assert len(found.labels) == len(found.before) == 6 + 4 + 1
    places = [label.split(": ")[0] for label in found.labels]
    at = [places.index(str(SMALL.length - 3)), places.index(str(SMALL.length - 2))]
    assert [found.before[k] for k in at] == pytest.approx([SMALL.A] * 2)


def test_corner_is_the_memory_of_the_matrix():
    W = theory.update(SMALL)
    part, rows, columns = theory_views.corner(SMALL, W)
    assert part.shape == (len(rows), len(columns))
    assert torch.equal(part[-4:, -4:], theory_sweeps.memory(SMALL, W).block)
    assert rows[-4:] == columns[-4:]
    assert part[0, columns.index("place of =")].item() == theory_sweeps.memory(SMALL, W).operands[0]


def test_profile_is_the_scans():
    gammas = [0.0, 0.5, 1.0]
    found = theory_views.profile(SMALL, gammas, 40, (3,))
    scan = theory_sweeps.Scan(SMALL, theory.update(SMALL), 40, (3,))
    assert found.worst == [scan.worst(gamma) for gamma in gammas]
    still = theory_views.profile(SMALL, gammas, 40, (3,), step=torch.zeros(SMALL.size, SMALL.size, dtype=torch.float64))
    assert len(set(still.accuracy(1))) == 1


def test_equal_numbers_make_the_samples_error():
    """Averaging over relabellings and giving equal numbers their share leaves a thousandth of the error."""
    found = theory_more.sample_error(Setup(p=13, length=32), 2000)
    assert found.error > 20
    assert found.balanced < 1
    assert found.balanced < found.symmetrised / 50


# Figures.
def spec(fig):
    return json.loads(fig.to_json())


def test_slider_stops_hold_the_profiles():
    found = theory_views.profiles(SMALL, (6, 8, 10), 2.0, points=5, count=20)
    fig = figures_theory.lambda_slider(found)
    stops = fig.layout.sliders[0].steps
    assert [stop.label for stop in stops] == ["6", "8", "10"]
    for stop, one in zip(stops, found, strict=True):
        (change,) = stop.args
        assert len(change["y"]) == len(fig.data) == 3 + 4 + 4
        assert change["y"][1] == pytest.approx(one.accuracy(1), abs=1e-3)
        assert change["y"][-1] == pytest.approx(one.mass(2, "itself"), abs=1e-3)
    shown = found[fig.layout.sliders[0].active]
    assert list(fig.data[0].y) == pytest.approx(shown.accuracy(0), abs=1e-3)
    heat = figures_theory.window_map(found).data[0]
    assert np.array(heat.z)[2] == pytest.approx(found[2].worst, abs=1e-3)


def test_remainders_show_points_and_bound():
    sweep = theory_sweeps.remainder_sweep(SMALL, "p", (7, 11, 13))
    fig = figures_theory.remainders({"p": sweep})
    lines = {trace.name: trace for trace in fig.data}
    assert list(lines["R, largest entry"].y) == [point.largest for point in sweep]
    assert list(lines["V / p"].y) == [point.bound["numbers"] for point in sweep]
    spec(fig)


def test_other_figures_hold_what_they_are_given():
    history = theory_more.further_steps(SMALL, steps=2, count=20, assignments=(3,))
    assert list(figures_theory.further(history).data[1].y) == pytest.approx(
        [step.probes[1].accuracy for step in history], abs=1e-3
    )
    errors = {n: theory_measured.sample_error(SMALL, n) for n in (300, 600)}
    fig = figures_theory.samples({n: [one] for n, one in errors.items()})
    assert list(fig.data[0].y) == [one.error for one in errors.values()]
    mean = theory_sweeps.Mean(0.9, 0.7, 1.1, 3)
    points = figures_theory.dimensions({100: mean}, 1.0).data[0]
    assert points.error_y.array == pytest.approx((0.1,))
    gains = theory_views.gains(SMALL, 1, 20)
    bars = figures_theory.terms(gains).data
    assert bars[-1].x == pytest.approx(sum(gains.values()).tolist())


def test_verdicts_are_told_by_words_and_class():
    rows = [("a", "1 < 2", "holds"), ("b", "`=`", "does not hold"), ("c", "-", "cannot be told here")]
    text = figures_theory.verdict_table(("id", "says", "verdict"), rows)
    assert "1 &lt; 2" in text
    assert "`" not in text
    for kind, verdict in (("holds", "holds"), ("does-not-hold", "does not hold"), ("cannot-be", "cannot be told here")):
        assert text.index(f"mc-{kind}") < text.index(f">{verdict}<")
