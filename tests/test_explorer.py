"""The explorers without a browser: set a control, look at the figure's data and at the lines under the controls."""

import shutil
import statistics
import time

import numpy as np
import pytest
import torch
from explored import LENGTH, STEPS, N, array, config, save, shown
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import unflushed

from mc_lib import explorer, explorer_parts, explorer_views, figures, model, task
from mc_lib.config import KINDS, Config
from mc_lib.explorer_views import MEAN, PARTS
from mc_lib.runs import RunWriter, open_run
from mc_lib.sampler import Sampler


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One head; at the last step the model built by hand."""
    return save(tmp_path_factory.mktemp("one") / "run", config(), by_hand=True)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four heads, another p, another number of steps."""
    return save(tmp_path_factory.mktemp("four") / "run", config(heads=4, p=7), steps=(0, 5))


# --- one sequence --------------------------------------------------------------------------------------

seeds = st.integers(0, 10_000)


@given(seed=seeds, heads=st.sampled_from([1, 4]))
@settings(max_examples=25, deadline=None)
def test_lifts_add_up_to_the_right_logit_above_the_mean(seed, heads):
    cfg = config(heads).replace(seed=seed)
    weights = {name: w.double() for name, w in model.init(cfg).items()}
    tokens = Sampler(cfg.replace(batch=1)).batch(torch.tensor([seed]), torch.tensor([0]))[0, 0, 0]
    seen = explorer_views.look(weights, tokens, cfg)
    logits = model.logits(weights, tokens[None])[0]
    assert seen.right == task.answers(tokens[None], cfg).item()
    assert seen.lifts.sum().item() == pytest.approx((logits[seen.right] - logits.mean()).item())
    assert seen.said == logits.argmax()
    best = explorer_views.top_answers(seen)
    assert seen.right in best
    assert len(set(best)) == len(best) == min(6, cfg.p)


def test_each_part_lifts_by_itself(run):
    """Without W_out the MLP lifts nothing; without layer 2's values its attention does not; and so on."""
    cfg, tokens = open_run(run).config, task.parse("b=3, b+4=?", open_run(run).config)
    for part, name in zip(PARTS[1:], ["blocks.0.attn.W_O", "blocks.1.attn.W_O", "blocks.1.mlp.W_out"], strict=True):
        weights = model.init(cfg)
        before = explorer_views.look(weights, tokens, cfg).lifts
        after = explorer_views.look({**weights, name: torch.zeros_like(weights[name])}, tokens, cfg).lifts
        assert before[PARTS.index(part)] != 0
        assert after[PARTS.index(part)].abs() < 1e-5


def test_typed_sequence_reaches_every_panel(run):
    at = explorer.SequenceExplorer(run)
    at.text.value = "c=1, b=3, a=5, b+4=?"
    assert at.text_message.text == ""
    panels, cfg = shown(at), at.cfg
    seen = model.trace(at.saved.at(7), task.parse(at.text.value, cfg)[None])
    map1 = array(panels["layer 1"]["z"])
    rows = np.tril_indices(LENGTH)
    assert np.isnan(map1[np.triu_indices(LENGTH, 1)]).all()
    assert map1[rows] == pytest.approx(seen.pattern1[0, 0].numpy()[rows], abs=6e-4)
    assert array(panels["layer 2"]["y"]) == pytest.approx(seen.pattern2[0, 0].numpy(), abs=6e-4)
    names = ["c", "1", "b", "3", "a", "5", "+", "b", "4", "="]
    assert panels["layer 2"]["text"] == [";"] * (LENGTH - len(names)) + names
    orange = [place for place, colour in enumerate(panels["layer 2"]["marker"]["color"]) if colour == figures.ORANGE]
    assert orange == [LENGTH - 7, LENGTH - 2]
    assert panels["answers"]["text"][0] == "7"
    assert panels["answers"]["marker"]["color"].index(figures.ORANGE) == 0
    assert panels["answers"]["y"] == pytest.approx(seen.logits[0].softmax(0).sort(descending=True)[0][:6], abs=1e-4)
    layout = at.picture.figure.layout
    assert (
        [*layout.xaxis.ticktext] == [*layout.yaxis.ticktext] == [*layout.xaxis2.ticktext] == panels["layer 2"]["text"]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b=3, b+", "nothing stands after '+'"),
        ("b=3, b+99=?", "out of range: the numbers are 0..10"),
        ("b=3, c+4=?", "variable c is used but not assigned"),
        ("", "the sequence is empty"),
        ("<b>", "no '+'"),
    ],
)
def test_bad_text_is_answered_under_it_and_the_figure_stays(run, text, said):
    at = explorer.SequenceExplorer(run)
    before = at.picture.widget.outputs
    at.text.value = text
    assert said in at.text_message.text
    assert "<b>" not in at.text_message.widget.value
    assert said.split("'")[0] in at.text_message.widget.value
    at.step.value = 3
    assert at.picture.widget.outputs == before
    at.text.value = "b=3, b+4=?"
    assert at.text_message.widget.value == ""
    assert at.picture.widget.outputs != before


def test_step_slider_holds_the_saved_steps_and_moves_the_figure(run):
    at = explorer.SequenceExplorer(run, "b=3, b+4=?")
    assert [value for _, value in at.step.options] == list(STEPS)
    assert at.step.value == 7
    for step in STEPS:
        at.step.value = step
        seen = model.trace(open_run(run).weights(step), task.parse("b=3, b+4=?", at.cfg)[None])
        assert array(shown(at)["layer 2"]["y"]) == pytest.approx(seen.pattern2[0, 0].numpy(), abs=6e-4)


def test_layer_menu_chooses_panels(run):
    at = explorer.SequenceExplorer(run)
    for layer, panels in ((1, ["layer 1"]), (2, ["layer 2"]), (None, ["layer 1", "layer 2"])):
        at.layer.value = layer
        assert [*shown(at)] == [*panels, "answers", "lifts"]
        assert len(at.picture.figure.layout.annotations) == len(panels) + 2


def test_head_menus_follow_the_config(run, four):
    assert [value for _, value in explorer.SequenceExplorer(run).head1.options] == [0]
    at = explorer.SequenceExplorer(four, "b=3, b+4=?")
    assert [value for _, value in at.head2.options] == [0, 1, 2, 3, MEAN]
    seen = model.trace(at.saved.at(5), task.parse("b=3, b+4=?", at.cfg)[None])
    rows = np.tril_indices(LENGTH)
    for head in range(4):
        at.head1.value, at.head2.value = head, 3 - head
        assert array(shown(at)["layer 1"]["z"])[rows] == pytest.approx(seen.pattern1[0, head].numpy()[rows], abs=6e-4)
        assert array(shown(at)["layer 2"]["y"]) == pytest.approx(seen.pattern2[0, 3 - head].numpy(), abs=6e-4)
        assert f"head {head + 1}" in at.picture.figure.layout.annotations[0].text
    at.head2.value = MEAN
    assert array(shown(at)["layer 2"]["y"]) == pytest.approx(seen.pattern2[0].mean(0).numpy(), abs=6e-4)


def test_buttons_draw_what_they_say(run):
    at = explorer.SequenceExplorer(run)
    restricted = [task.illegal_count(at.cfg, v, v) for v in range(N)]
    assert any(restricted)
    for kind, button in enumerate(at.kinds):
        assert button.description == KINDS[kind]
        texts = set()
        for _ in range(8):
            button.click()
            tokens = task.parse(at.text.value, at.cfg)
            found = task.operands(tokens[None], at.cfg)
            assert found.kind.item() == kind
            assert not task.held_out_mask(at.cfg)[tuple(found.numbers[0].tolist())]
            assert tokens[-3] != at.cfg.FIRST_VARIABLE + at.cfg.letters.index("f")
            assert tokens[-2] != at.cfg.FIRST_VARIABLE + at.cfg.letters.index("a")
            texts.add(at.text.value)
        assert len(texts) > 4
    drawn = set()
    for _ in range(30):
        at.random.click()
        drawn.add(task.operands(task.parse(at.text.value, at.cfg)[None], at.cfg).kind.item())
    assert drawn == {0, 1, 2, 3}
    at.example.click()
    assert at.text.value == "c=1, b=6, a=9, b+8=?"


@pytest.mark.parametrize("changes", [{}, {"p": 2}, {"length": 8}, {"variables": 4, "not_first": "d"}, {"p": 1000}])
def test_example_can_be_read_in_every_config(changes):
    cfg = config().replace(**changes)
    assert task.operands(task.parse(explorer.example(cfg), cfg)[None], cfg).kind.item() == 1


def test_an_update_is_quick(tmp_path):
    """In the paper's sizes, a new text, a kept step and a step not yet read."""
    at = explorer.SequenceExplorer(save(tmp_path / "run", Config(), steps=(0, 1, 2)))
    took = []
    for number in range(12):
        start = time.perf_counter()
        if number % 2:
            at.step.value = number % 3
        else:
            at.text.value = f"c=1, b={number}, a=42, b+19=?"
        took.append(time.perf_counter() - start)
    assert statistics.median(took) < 0.15


# --- the run -------------------------------------------------------------------------------------------

ALL = [explorer.SequenceExplorer, explorer.GridExplorer, explorer.NeuronExplorer, explorer.SamplerExplorer]


@pytest.mark.parametrize("which", ALL)
def test_another_run_brings_its_own_settings(which, run, four):
    at = which(run)
    at.run_picker.value = four
    assert at.run_message.text == at.message.text == ""
    assert at.cfg == config(4, 7)
    assert [value for _, value in at.step.options] == [0, 5]
    assert at.step.value == 5
    assert at.picture.widget.outputs == which(four).picture.widget.outputs


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize("path", ["no/such/run", "", "tests", "<i>x</i>"])
def test_wrong_path_is_one_line_and_changes_nothing(which, path, run):
    at = which(run)
    before = at.picture.widget.outputs
    at.run_picker.value = path
    assert at.run_message.text.count("\n") == 0
    assert (path or "no run is named") in at.run_message.text
    assert "<i>" not in at.run_message.widget.value
    assert at.picture.widget.outputs == before
    at.step.value = at.step.options[0][1]  # goes on with the run it has, and goes on saying so
    assert at.run_message.text
    at.run_picker.value = run
    assert at.run_message.text == ""


def test_run_without_weights_or_with_damaged_ones_is_refused_in_a_line(run, tmp_path):
    with unflushed(), RunWriter.create(tmp_path / "none", config()) as writer:
        writer.commit(0, {"loss": 1.0})
    shutil.copytree(run, tmp_path / "damaged")
    for path in (tmp_path / "damaged" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    at = explorer.SequenceExplorer(run)
    for name, said in (("none", "no saved weights"), ("damaged", "step_000007")):
        at.run_picker.value = str(tmp_path / name)
        assert said in at.run_message.text
    for make in (explorer.sequence, explorer.grid, explorer.neuron, explorer.sampler):
        assert "no saved weights" in make(str(tmp_path / "none")).value


def test_overflowing_weights_are_a_line(tmp_path):
    cfg = config()
    with unflushed(), RunWriter.create(tmp_path / "run", cfg) as writer:
        writer.commit(0, {"loss": 1.0}, model.init(cfg))
        writer.commit(1, {"loss": 1.0}, {name: w * 1e20 for name, w in model.init(cfg).items()})
        writer.finish()
    at = explorer.SequenceExplorer(str(tmp_path / "run"))
    assert "choose an earlier step" in at.message.text
    at.step.value = 0
    assert at.message.text == ""
    assert shown(at)


def test_a_text_that_the_new_run_cannot_read_becomes_its_example(run, four):
    at = explorer.SequenceExplorer(run, "b=9, b+10=?")
    at.run_picker.value = four
    assert at.text.value == explorer.example(at.cfg)
    assert at.text_message.text == ""


def test_picker_offers_the_runs_folder(run, tmp_path, monkeypatch):
    for name in ("main", "seeds/01"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "book").mkdir()
    monkeypatch.chdir(tmp_path / "book")
    at = explorer.SequenceExplorer("runs/main")
    assert at.run_picker.options == ("runs/main", "runs/seeds/01")
    at.run_picker.value = "runs/seeds/01"
    assert at.run_message.text == ""


def test_weights_are_kept_within_a_bound(run, monkeypatch):
    read = []
    plain = open_run(run)
    monkeypatch.setattr(plain, "weights", lambda step, original=plain.weights: read.append(step) or original(step))
    saved = explorer_parts.Saved(plain)
    for step in (0, 3, 0, 3):
        saved.at(step)
    assert read == [0, 3]
    size = sum(tensor.numel() * 4 for tensor in saved.at(0).values())
    monkeypatch.setattr(explorer_parts, "KEPT_BYTES", 2 * size)
    for step in (0, 7, 0, 3):
        saved.at(step)
    assert read == [0, 3, 7, 3]
