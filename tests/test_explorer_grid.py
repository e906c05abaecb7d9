"""The grid, the neuron picker and the sampler, and the figures that stand in for explorers in the rendered book."""

import json
import math

import numpy as np
import pytest
import torch
from explored import STEPS, P, array, config, save, shown
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import refused

from mc_lib import explorer, explorer_grid, explorer_views, figures, model, task
from mc_lib.config import Config
from mc_lib.explorer_views import PARTS
from mc_lib.runs import open_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One head; at the last step the model built by hand."""
    return save(tmp_path_factory.mktemp("one") / "run", config(), by_hand=True)


# --- all pairs, and one neuron -------------------------------------------------------------------------

choices = st.tuples(
    st.sampled_from(explorer_grid.KINDS_OF_GRID),
    st.sampled_from(["any", *"abcdef"]),
    st.sampled_from(explorer_grid.SIDES),
)


@given(choice=choices, contexts=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_grid_sequences_are_what_was_chosen(choice, contexts):
    cfg = config()
    kind, variable, side = choice
    tokens = explorer_grid.grid_tokens(cfg, kind, variable, side, contexts)
    found = task.operands(tokens, cfg)
    pairs = torch.cartesian_prod(torch.arange(P), torch.arange(P)).repeat_interleave(contexts, 0)
    assert torch.equal(found.numbers[tokens[:, -3] != tokens[:, -2]], pairs[tokens[:, -3] != tokens[:, -2]])
    at = explorer_grid.SIDES.index(side)
    wanted = {"0-var": 0, "1-var": 1 + at, "2-var": 3}[kind]
    assert (found.kind == wanted).all()
    if kind != "0-var":
        here = {cfg.letters[i - cfg.FIRST_VARIABLE] for i in tokens[:, -3 + at].tolist()}
        legal = {cfg.letters[i] for i in task.variables_for(cfg, at, True)}
        assert here == (legal if variable == "any" else {variable})
    if kind == "2-var":
        other = {cfg.letters[i - cfg.FIRST_VARIABLE] for i in tokens[:, -2 - at].tolist()}
        assert other <= {cfg.letters[i] for i in task.variables_for(cfg, 1 - at, True)} - (
            {variable} if variable != "any" else set()
        )
        assert (tokens[:, -3] != tokens[:, -2]).all()


def test_grid_shows_who_is_right(run):
    at = explorer.GridExplorer(run)
    assert array(shown(at)[None]["z"]).tolist() == [[100] * P] * P
    assert "training 100%, held out 100%" in at.numbers.text
    at.step.value, at.contexts.value = 3, 4
    weights, tokens = at.saved.at(3), explorer_grid.grid_tokens(at.cfg, "1-var", "any", "first", 4)
    hits = model.logits(weights, tokens).argmax(-1) == task.answers(tokens, at.cfg)
    assert 0 < hits.float().mean() < 0.5
    assert array(shown(at)[None]["z"]).tolist() == (hits.view(P, P, 4).float().mean(-1) * 100).round().tolist()
    held_out = task.held_out_mask(at.cfg)[:, :, None].expand(-1, -1, 4).flatten()
    assert f"held out {hits[held_out].float().mean():.0%}" in at.numbers.text
    assert f"n = {4 * P * P} sequences" in at.numbers.text


def test_grid_controls_drive_the_grid(run):
    at = explorer.GridExplorer(run)
    at.step.value = 0
    maps = []
    for kind, variable, side in [("0-var", "any", "first"), ("1-var", "f", "first"), ("1-var", "f", "second"),
                                 ("2-var", "f", "second"), ("2-var", "b", "second")]:  # fmt: skip
        at.kind.value, at.variable.value, at.side.value = kind, variable, side
        assert at.variable.disabled == at.side.disabled == (kind == "0-var")
        expected = explorer_grid.grid(at.saved.at(0), explorer_grid.grid_tokens(at.cfg, kind, variable, side), at.cfg)
        assert torch.equal(at.map, expected)
        maps.append(at.map)
    assert not any(torch.equal(one, other) for i, one in enumerate(maps) for other in maps[:i])
    assert [value for _, value in at.variable.options] == ["any", *"abcdef"]


def test_grid_of_a_large_p_takes_every_second_number():
    cfg = config().replace(p=389)
    assert explorer_grid.grid_numbers(cfg).tolist() == [*range(0, 389, 2)]


def test_bad_grid_choices_are_refused():
    refused(lambda: explorer_grid.grid_tokens(config(), "3-var"), "3-var")
    refused(lambda: explorer_grid.grid_tokens(config(), "1-var", "z"), "'z'", "a..f")
    refused(lambda: explorer_grid.neuron_maps(model.init(config()), config().replace(p=997)), "997", "200")


def test_neuron_picker_shows_the_neuron_and_its_wave(run):
    at = explorer.NeuronExplorer(run)
    at.step.value, at.place.value = 3, 5
    maps, found = explorer_grid.neuron_maps(open_run(run).weights(3), at.cfg)
    measured, fit = (array(trace["z"]) for trace in at.picture.widget.outputs[0]["data"][figures.PLOTLY_MIME]["data"])
    assert measured == pytest.approx(maps[..., 5].numpy())
    share = 1 - ((measured - fit) ** 2).mean() / measured.var()
    assert share == pytest.approx(found.best[5].item(), abs=1e-4)
    assert f"neuron 5: frequency {found.frequency[5]}, R² = {found.best[5]:.3f}" in at.numbers.text
    at.place.value, at.order.value = 0, "best"
    assert at.neuron == found.best.argmax()
    at.order.value = "worst"
    assert at.neuron == found.best.argmin()
    assert at.place.max == at.cfg.d_mlp - 1


def test_sampler_draws_the_kind(run):
    at = explorer.SamplerExplorer(run)
    for kind in range(4):
        at.kind.value = kind
        assert (task.operands(at.tokens, at.cfg).kind == kind).all()
    before = at.tokens
    at.again.value = 2
    assert not torch.equal(at.tokens, before)


# --- the figures of the rendered book ------------------------------------------------------------------


def test_sequence_figure_holds_every_frame(run):
    text = "b=3, b+4=?"
    fig = explorer.sequence_figure(open_run(run), text)
    (slider,) = fig.layout.sliders
    assert len(fig.data) == 4 * len(STEPS) == 4 * len(slider.steps)
    at = explorer.SequenceExplorer(run, text)
    for frame, step in enumerate(STEPS):
        at.step.value = step
        visible = slider.steps[frame].args[1]
        assert [i for i, on in enumerate(visible) if on] == [*range(4 * frame, 4 * frame + 4)]
        assert slider.steps[frame].label.startswith(f"step {step}: says {at.seen.said} (")
        for one, other in zip(fig.data[4 * frame : 4 * frame + 4], at.picture.figure.data, strict=True):
            values = [trace.z if trace.type == "heatmap" else trace.y for trace in (one, other)]
            assert np.array_equal(*map(np.array, values), equal_nan=True)
    assert slider.active == len(STEPS) - 1
    assert [bool(trace.visible) for trace in fig.data] == list(slider.steps[-1].args[1])
    table = explorer.sequence_table(open_run(run), text)
    assert table.index.tolist() == list(STEPS)
    assert table.loc[7, "says"] == at.seen.right
    assert table.loc[7, [*PARTS]].tolist() == pytest.approx(at.seen.lifts.tolist(), rel=1e-3, abs=1e-3)


def test_grid_and_neuron_figures(run):
    saved = open_run(run)
    fig, table = explorer.grid_figure(saved), explorer.grid_table(saved)
    tokens = explorer_grid.grid_tokens(saved.config, "1-var")
    for trace, step in zip(fig.data, STEPS, strict=True):
        map_ = explorer_grid.grid(saved.weights(step), tokens, saved.config)
        assert np.array_equal(trace.z, (100 * map_).round())
        assert table.loc[step].tolist() == pytest.approx(explorer_grid.grid_shares(map_, saved.config))
    assert table.loc[7].tolist() == [1, 1]
    neurons = explorer.neuron_figure(saved)
    assert len(neurons.layout.sliders[0].steps) * 2 == len(neurons.data)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("p", [2, 5, 13])
def test_figures_of_any_run_are_drawn(tmp_path, heads, p):
    """Another p, more heads, one checkpoint only: nothing fails, and what is empty has no number."""
    saved = open_run(save(tmp_path / "run", config(heads, p), steps=(4,)))
    for fig in (
        explorer.sequence_figure(saved, explorer.example(saved.config)),
        explorer.grid_figure(saved, "2-var", "b", "second"),
        explorer.neuron_figure(saved),
    ):
        assert fig.data
        json.dumps(figures.bundle(fig, "alt"))
    nothing = open_run(save(tmp_path / "all", config(heads, p).replace(held_out=0.0), steps=(4,)))
    assert math.isnan(explorer.grid_table(nothing).iloc[0]["held out"])
    assert "held out" not in explorer.grid_figure(nothing).layout.sliders[0].steps[0].label


def test_figures_stay_light(tmp_path):
    """In the paper's sizes and with many checkpoints, at most 25 frames and 150 kB each."""
    saved = open_run(save(tmp_path / "run", Config(), steps=range(40)))
    for fig in (explorer.sequence_figure(saved, "b=3, b+4=?", frames=99), explorer.grid_figure(saved, frames=99)):
        assert len(fig.layout.sliders[0].steps) == 25
        assert len(json.dumps(figures.bundle(fig, "alt")[figures.PLOTLY_MIME])) < 150_000
    steps = explorer_views.some_steps(saved, 5)
    assert (len(steps), steps[0], steps[-1]) == (5, 0, 39)
