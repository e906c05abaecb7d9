"""The evaluation sets: their sizes, what each name promises, their laws, and every case of an exact set once."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import assert_well_formed, assignments, cells, check, product, take_apart, uniform

from mc_lib import evaluation, sampler, task
from mc_lib.config import Config

PAPER = Config()
LARGE = PAPER.replace(eval_size=60_000)
FROM_TWO = uniform(range(2, 7))
LEGAL = ([(v,) for v in range(10)], [(v,) for v in range(2, 12)])
ILLEGAL = ([(10,), (11,)], [(0,), (1,)])


def variable_pairs(illegal):
    """Ordered pairs of different variables with so many of them where training never shows them."""
    pairs = [(v, w) for v in range(12) for w in range(12) if v != w]
    return [(v, w) for v, w in pairs if (v in (10, 11)) + (w in (0, 1)) == illegal]


# For each set: kinds, the class of the number pairs, the variables (by side, or as pairs).
TRAINING, HELD_OUT = (0,), (1, 2, 3)
PROMISES = {
    "0-var train": ((0,), TRAINING, None),
    "0-var add-restricted": ((0,), HELD_OUT, None),
    "1-var train": ((1, 2), TRAINING, LEGAL),
    "1-var add-restricted": ((1, 2), HELD_OUT, LEGAL),
    "1-var var-restricted": ((1, 2), TRAINING, ILLEGAL),
    "2-var train": ((3,), TRAINING, variable_pairs(0)),
    "2-var add-restricted": ((3,), HELD_OUT, variable_pairs(0)),
    "2-var var-restricted (1)": ((3,), TRAINING, variable_pairs(1)),
    "2-var var-restricted (2)": ((3,), TRAINING, variable_pairs(2)),
    "0-var mirror in training": ((0,), (1,), None),
    "0-var both orders out": ((0,), (2,), None),
    "0-var diagonal out": ((0,), (3,), None),
    "1-var both restricted": ((1, 2), HELD_OUT, ILLEGAL),
    "2-var both restricted": ((3,), HELD_OUT, variable_pairs(1) + variable_pairs(2)),
    "v + v": ((3,), None, [(v, v) for v in range(12)]),
}


@cache
def classes():
    """Class of every number pair, from the held-out pairs alone."""
    held_out = set(map(tuple, task.held_out_pairs(PAPER).tolist()))
    table = np.zeros((59, 59), dtype=int)
    for a, b in held_out:
        table[a, b] = 3 if a == b else 2 if (b, a) in held_out else 1
    return table


def number_pairs(wanted):
    if wanted is None:
        return [(n, n) for n in range(59)]
    return [(a, b) for a in range(59) for b in range(59) if classes()[a, b] in wanted]


@cache
def taken_apart(name):
    sets = evaluation.evaluation_sets(LARGE) | evaluation.further_sets(LARGE)
    return take_apart(sets[name].numpy())


# --- the sampled sets ----------------------------------------------------------------------------------


def test_names_and_sizes():
    nine, further = evaluation.evaluation_sets(PAPER), evaluation.further_sets(PAPER)
    assert tuple(nine) == evaluation.NINE
    assert tuple(further) == evaluation.FURTHER
    assert list(nine | further) == list(PROMISES)
    for tokens in (nine | further).values():
        assert tokens.shape == (2000, 16)
        assert tokens.dtype == torch.long


def test_number_of_cases_behind_each_set():
    sizes = [len(number_pairs(wanted)) for wanted in (TRAINING, HELD_OUT, (1,), (2,), (3,))]
    assert sizes == [2436, 1045, 723, 302, 20]
    assert [len(variable_pairs(illegal)) for illegal in (0, 1, 2)] == [92, 36, 4]


@pytest.mark.parametrize("name", PROMISES)
def test_every_sequence_is_what_the_name_promises(name):
    d = taken_apart(name)
    kinds, wanted, variables = PROMISES[name]
    assert_well_formed(d)
    assert set(d.kind.tolist()) == set(kinds)
    assert set(map(tuple, d.numbers.tolist())) <= set(number_pairs(wanted))
    for kind in kinds:
        operand = d.operand[d.kind == kind]
        if kind in (1, 2):
            assert {(v,) for v in operand[:, kind - 1].tolist()} == set(variables[kind - 1])
        if kind == 3:
            assert set(map(tuple, operand.tolist())) == set(variables)


@pytest.mark.parametrize("name", PROMISES)
def test_laws_of_the_sampled_sets(name):
    d = taken_apart(name)
    kinds, wanted, variables = PROMISES[name]
    check(cells(*d.numbers.T), uniform(number_pairs(wanted)))
    if len(kinds) == 2:
        check(cells(d.kind), uniform(kinds))
    for kind in kinds:
        rows = d.kind == kind
        count = FROM_TWO if kind == 3 else assignments(kind)
        check(cells(d.count[rows]), count)
        if kind in (1, 2):
            check(cells(d.operand[rows, kind - 1], d.count[rows]), product(uniform(variables[kind - 1]), count))
        if kind == 3:
            check(cells(*d.operand[rows].T, d.count[rows]), product(uniform(variables), count))


@pytest.mark.parametrize("name", PROMISES)
def test_contexts_of_the_sampled_sets(name):
    """With two or more assignments: distractors' values, and where the operands stand."""
    d = taken_apart(name)
    is_distractor = (d.variables >= 0) & ~d.matches.any(1)
    check(cells(d.values[is_distractor]), uniform(range(59)))
    for side in (0, 1):
        rows = (d.operand[:, side] >= 0) & (d.count == 4)
        if rows.any():
            check(cells(d.slot[rows, side]), uniform(range(4)))


def test_sets_are_fixed():
    """They depend on the task, not on the run; fewer sequences are the first of more."""
    sets = evaluation.evaluation_sets(PAPER) | evaluation.further_sets(PAPER)
    run = PAPER.replace(seed=9, lr=0.5, heads=4, d_model=64, steps=7, two_var=0.1, batch=3, precision="bfloat16")
    again = evaluation.evaluation_sets(run) | evaluation.further_sets(run)
    larger = evaluation.evaluation_sets(LARGE) | evaluation.further_sets(LARGE)
    for name, tokens in sets.items():
        assert torch.equal(again[name], tokens)
        assert torch.equal(larger[name][:2000], tokens)
    other = evaluation.evaluation_sets(PAPER.replace(split_seed=1))
    assert not torch.equal(other["0-var train"], sets["0-var train"])


def test_no_set_shares_its_draws_with_another_or_with_training():
    """Sets of the same law differ: contexts of one set do not come back in another."""
    sets = evaluation.evaluation_sets(PAPER) | evaluation.further_sets(PAPER)
    sets["training"] = sampler.Sampler(PAPER).batch(torch.tensor([0]), torch.arange(4)).view(-1, 16)
    contexts = {
        name: {tuple(row) for row in tokens[:, :12].tolist() if row.count(61) <= 4} for name, tokens in sets.items()
    }
    for name, rows in contexts.items():
        others = set().union(*(more for other, more in contexts.items() if other != name))
        assert len(rows & others) <= 2, name


def test_a_changed_copy_of_the_sets_changes_no_other():
    evaluation.evaluation_sets(PAPER).clear()
    assert tuple(evaluation.evaluation_sets(PAPER)) == evaluation.NINE


# --- exact sets ----------------------------------------------------------------------------------------


def test_every_held_out_pair_once():
    d = take_apart(evaluation.exact_zero_var(PAPER).numpy())
    assert_well_formed(d)
    assert (d.kind == 0).all()
    assert len(d.tokens) == 1045
    assert sorted(map(tuple, d.numbers.tolist())) == number_pairs(HELD_OUT)
    assert len(np.unique(d.count)) == 6


def test_every_case_of_the_two_variable_union_once():
    sets = evaluation.exact_two_var(PAPER)
    assert sum(map(len, sets.values())) == 193_580
    for part, wanted, illegal in (
        ("add-restricted", HELD_OUT, 0),
        ("var-restricted (1)", TRAINING, 1),
        ("var-restricted (2)", TRAINING, 2),
    ):
        d = take_apart(sets[part].numpy())
        assert_well_formed(d)
        expected = {pair + both for pair in number_pairs(wanted) for both in variable_pairs(illegal)}
        cases = list(map(tuple, np.concatenate([d.numbers, d.operand], 1).tolist()))
        assert len(cases) == len(expected)
        assert set(cases) == expected
        check(cells(d.count), FROM_TWO)
        check(cells(d.values[(d.variables >= 0) & ~d.matches.any(1)]), uniform(range(59)))


def test_exact_sets_are_fixed():
    assert torch.equal(evaluation.exact_zero_var(PAPER), evaluation.exact_zero_var(PAPER.replace(seed=3, eval_size=10)))


# --- other configs -------------------------------------------------------------------------------------


@st.composite
def configs(draw):
    variables = draw(st.integers(4, 26))
    letters = st.sets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"[:variables]), max_size=min(variables - 2, 4))
    return Config(
        p=draw(st.integers(2, 13)),
        variables=variables,
        length=draw(st.integers(8, 30)),
        held_out=draw(st.sampled_from([0.0, 0.1, 0.3, 0.6])),
        not_first="".join(sorted(draw(letters))),
        not_second="".join(sorted(draw(letters))),
        eval_size=10,
    )


@given(configs())
@settings(max_examples=12, deadline=None)
def test_sets_of_any_config(cfg):
    """Each set is full or, where nothing can be drawn, empty; and as its name says."""
    held_out = task.held_out_mask(cfg)
    restricted = cfg.not_first or cfg.not_second
    both_illegal = any(v != w for v in cfg.not_first for w in cfg.not_second)
    sets = evaluation.evaluation_sets(cfg) | evaluation.further_sets(cfg)
    pair_class = task.pair_classes(cfg)
    for name, tokens in sets.items():
        drawable = {
            "add-restricted": held_out.any(),
            "both restricted": held_out.any() and restricted,
            "mirror in training": (pair_class == task.MIRROR_IN_TRAINING).any(),
            "both orders out": (pair_class == task.BOTH_ORDERS_OUT).any(),
            "diagonal out": (pair_class == task.DIAGONAL_OUT).any(),
            "var-restricted": restricted,
            "var-restricted (1)": restricted,
            "var-restricted (2)": both_illegal,
        }.get(name[6:], True)
        assert tokens.shape == (10 if drawable else 0, cfg.length), name
        asked = task.operands(tokens, cfg)
        for sequence, numbers, kind in zip(
            tokens[::3], asked.numbers[::3].tolist(), asked.kind[::3].tolist(), strict=True
        ):
            assert torch.equal(task.parse(task.format(sequence, cfg, "tokens"), cfg), sequence)
            assert kind in PROMISES[name][0]
            if name != "v + v":
                assert pair_class[tuple(numbers)] in PROMISES[name][1]
            first, second = (task.token_names(cfg)[token] for token in sequence[-3:-1])
            illegal = (first in cfg.not_first) + (second in cfg.not_second)
            if name == "v + v":
                assert first == second
            elif "var-restricted" in name or "both restricted" in name:
                assert illegal == {"(1)": 1, "(2)": 2}.get(name[-3:], max(illegal, 1))
            else:
                assert illegal == 0


@given(configs())
@settings(max_examples=10, deadline=None)
def test_exact_sets_of_any_config(cfg):
    held_out, kept = cfg.p**2 - cfg.kept_pairs, cfg.kept_pairs
    assert len(evaluation.exact_zero_var(cfg)) == held_out
    sizes = [len(task.variable_pairs(cfg, illegal)) for illegal in (0, 1, 2)]
    for (name, tokens), count in zip(
        evaluation.exact_two_var(cfg).items(), (held_out * sizes[0], kept * sizes[1], kept * sizes[2]), strict=True
    ):
        cases = torch.cat([task.operands(tokens, cfg).numbers, tokens[:, -3:-1]], 1)
        assert len(cases.unique(dim=0)) == len(tokens) == count, name
