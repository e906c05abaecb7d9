"""The claims on generalization on the saved main run, and the maps of errors on a model whose errors are known."""

from pathlib import Path

import pytest
import small_runs
import torch

from mc_lib import claims, claims_generalization, errors, model, routing, task
from mc_lib.claim import Study
from mc_lib.config import Config
from mc_lib.runs import open_run

MAIN = Path(__file__).resolve().parent.parent / "runs" / "main"
CLAIMS = {claim.id: claim for claim in claims_generalization.CLAIMS}
ON_MAIN = {
    "gen.train": True,
    "gen.pairs": True,
    "gen.positions": True,
    "gen.strict": True,
    "gen.diagonal": False,
    "gen.both": True,
    "gen.same": False,
}
CFG = Config(p=7, variables=5, length=10, not_second="a", not_first="e", eval_size=60)


@pytest.mark.parametrize("name", sorted(ON_MAIN))
def test_on_the_main_run(main_study, name):
    finding = CLAIMS[name].on(main_study)
    assert finding.holds is ON_MAIN[name], finding
    assert "n = 2000" in finding.value


def test_every_claim_of_the_chapter_is_listed_once_and_tested():
    listed = [claim.id for claim in claims.of_chapter("generalization")]
    assert len(listed) == len(set(listed))
    assert {name for name in listed if name.startswith("gen.")} == set(ON_MAIN)


def test_the_diagonal_is_what_fails_on_the_main_run(main_study):
    """The finding that the page tells of: without variables all wrong answers are on held-out pairs (n, n)."""
    accuracy = errors.pair_accuracy(main_study.weights, main_study.config, 0)
    counted = errors.by_class(accuracy, main_study.config)
    assert {name for name, (right, n) in counted.items() if right < n} == {errors.CLASSES[3]}
    trained = (~task.held_out_mask(main_study.config)).diagonal()
    parts = [tuple(mask.nonzero().flatten().tolist()) for mask in (trained, ~trained)]
    counts = [main_study.shared(claims_generalization.same_variable_hits, part) for part in parts]
    shares = [right / n for right, n in counts]
    assert shares[0] > 0.97
    assert shares[1] < 0.7


def test_shares_agree_with_the_logged_ones(main_study):
    for name in ("0-var train", "1-var var-restricted", "2-var add-restricted"):
        right, n = main_study.shared(claims_generalization.hits, name)
        assert right / n == pytest.approx(main_study.metrics[name].iloc[-1], abs=0.003)


# --- a model that answers everything right but what it is told to miss ---------------------------------


@pytest.fixture
def oracle(monkeypatch):
    """Sets what the model gets wrong: a function of tokens that is true where it errs."""

    def errs(wrong):
        def logits(weights, tokens):
            said = (task.answers(tokens, CFG) + wrong(tokens).long()) % CFG.p
            return torch.nn.functional.one_hot(said, CFG.p).float()

        monkeypatch.setattr(model, "logits", logits)
        return {}

    return errs


def held_out(tokens):
    return task.held_out_mask(CFG)[tuple(task.operands(tokens, CFG).numbers.T)]


def numbers_are(first: int, second: int):
    return lambda tokens: (task.operands(tokens, CFG).numbers == torch.tensor([first, second])).all(1)


@pytest.mark.parametrize("kind", range(4))
def test_a_wrong_pair_is_marked_where_it_is(oracle, kind):
    accuracy = errors.pair_accuracy(oracle(numbers_are(2, 5)), CFG, kind)
    expected = torch.ones(CFG.p, CFG.p)
    expected[2, 5] = 0
    assert torch.equal(accuracy, expected)


@pytest.mark.parametrize("kind", range(4))
def test_maps_ask_what_training_shows_of_variables(oracle, kind):
    """A model that errs on every other kind and on every illegal variable has no error on the map of a kind."""

    def wrong(tokens):
        lhs, rhs = tokens[:, -3], tokens[:, -2]
        illegal = (lhs == CFG.FIRST_VARIABLE + 4) | (rhs == CFG.FIRST_VARIABLE)
        return (task.operands(tokens, CFG).kind != kind) | illegal

    assert (errors.pair_accuracy(oracle(wrong), CFG, kind) == 1).all()


def test_classes_count_every_pair_once(oracle):
    accuracy = errors.pair_accuracy(oracle(held_out), CFG, 0)
    counted = errors.by_class(accuracy, CFG)
    assert sum(n for _, n in counted.values()) == errors.CONTEXTS * CFG.p**2
    assert counted["training"] == (errors.CONTEXTS * CFG.kept_pairs,) * 2
    assert all(right == 0 for name, (right, _) in counted.items() if name != "training")


def test_the_operand_map_names_the_cell_that_fails(oracle):
    def wrong(tokens):
        return (tokens[:, -3] == CFG.FIRST_VARIABLE + 1) & (tokens[:, -2] < CFG.p)

    grid = errors.operand_accuracy(oracle(wrong), CFG)
    assert grid[2, 0] == 0
    assert grid.sum() == grid.numel() - 1
    assert errors.worst(grid, ["n", *CFG.letters]) == ["b + n: 0.00"]


def test_a_variable_asked_for_twice_fails_on_the_diagonal(oracle):
    grid = errors.variable_accuracy(oracle(lambda tokens: tokens[:, -3] == tokens[:, -2]), CFG)
    assert torch.equal(grid, 1 - torch.eye(CFG.variables))


def test_the_variable_map_asks_trained_pairs_only(oracle):
    grid = errors.variable_accuracy(oracle(held_out), CFG)
    assert (grid == 1).all()


def test_right_answers_are_counted_by_assignments(oracle):
    weights = oracle(lambda tokens: (tokens[:, : CFG.room] >= CFG.FIRST_VARIABLE).sum(1) > 1)
    found = errors.by_assignments(weights, CFG)
    assert found[1][0] == found[1][1] > 0
    assert all(right == 0 for count, (right, _) in found.items() if count > 1)
    assert sum(n for _, n in found.values()) == CFG.eval_size


def test_value_attention_is_what_the_trace_says_of_each_cell():
    weights, tokens = model.init(CFG), errors._cell_sequences(errors.task_only(CFG))
    pattern = model.trace(weights, tokens).pattern2[:, 0]
    found = errors.value_attention(weights, CFG)
    assert found.shape == (2, CFG.variables)
    for side in (0, 1):
        for v in range(CFG.variables):
            letter = CFG.FIRST_VARIABLE + v
            mine = (tokens[:, side - 3] == letter) & (tokens[:, -2 - side] < CFG.p)
            assert mine.sum() == errors.PER_PAIR
            place = (tokens[mine, : CFG.room] == letter).int().argmax(1) + 1
            assert found[side, v] == pytest.approx(pattern[mine, place].mean().item(), rel=1e-5)


def test_the_best_match_has_rows_without_a_mean():
    match = errors.best_match(model.init(CFG.replace(heads=2)), CFG.replace(heads=2))
    assert match.shape == (CFG.variables, CFG.variables)
    assert torch.allclose(match.mean(1), torch.zeros(CFG.variables), atol=1e-5)


def test_a_bound_decides_on_every_set(oracle, tmp_path):
    study = Study(open_run(small_runs.saved(tmp_path / "run", 2, True)))
    study.config = CFG
    study.weights = oracle(numbers_are(9, 9))
    assert [CLAIMS[name].on(study).holds for name in ON_MAIN] == [True] * len(ON_MAIN)
    second = Study(study.run)
    second.config = CFG
    second.weights = oracle(lambda tokens: (task.operands(tokens, CFG).kind == 3) & (tokens[:, -3] == tokens[:, -2]))
    failing = [name for name in ON_MAIN if not CLAIMS[name].on(second).holds]
    assert failing == ["gen.same"]


def test_what_cannot_be_drawn_is_said_not_failed(tmp_path):
    bare = CFG.replace(held_out=0.0, not_second="", not_first="")
    study = Study(open_run(small_runs.saved(tmp_path / "run", 2, True)))
    study.config, study.weights = bare, model.init(bare)
    for name in ("gen.pairs", "gen.positions", "gen.strict", "gen.diagonal", "gen.both"):
        finding = CLAIMS[name].on(study)
        assert finding.holds is None
        assert "no such sequence" in finding.note
    assert routing.cell_accuracy(study.weights, bare).shape == (2, bare.variables)
