"""A million training sequences: none illegal, every marginal as its exact law says, neighbours independent."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from laws import assert_well_formed, assignments, cells, check, multinomial, product, take_apart, uniform

from mc_lib import sampler, task
from mc_lib.config import Config

PAPER = Config()
SEEDS, STEPS = 4, 489  # times 512: 1,001,472 sequences
KINDS = {(0,): 12 / 42, (1,): 10 / 42, (2,): 10 / 42, (3,): 10 / 42}
FIRST, SECOND = range(10), range(2, 12)
BOTH = [(v, w) for v in FIRST for w in SECOND if v != w]


@cache
def drawn():
    """Training sequences of neighbouring seeds and steps, in this order, taken apart."""
    drawer = sampler.Sampler(PAPER)
    steps = torch.arange(STEPS).split(64)
    parts = [drawer.batch(torch.arange(SEEDS), chunk).to(torch.int8) for chunk in steps]
    return take_apart(torch.cat(parts, 1).view(-1, 16).numpy())


@cache
def first_numbers():
    """The law of the first number of a training pair."""
    counts = (~task.held_out_mask(PAPER)).sum(1).tolist()
    return {(a,): n / 2436 for a, n in enumerate(counts)}


def test_no_illegal_sequence_among_a_million():
    d = drawn()
    assert len(d.tokens) >= 10**6
    assert_well_formed(d)
    assert not np.isin(d.operand[:, 0], [10, 11]).any()
    assert not np.isin(d.operand[:, 1], [0, 1]).any()
    assert not ((d.operand[:, 0] >= 0) & (d.operand[:, 0] == d.operand[:, 1])).any()
    assert not task.held_out_mask(PAPER).numpy()[d.numbers[:, 0], d.numbers[:, 1]].any()


# --- operands ------------------------------------------------------------------------------------------


def test_kinds():
    check(cells(drawn().kind), KINDS)


@pytest.mark.parametrize("kind", range(4))
def test_number_of_assignments(kind):
    check(cells(drawn().count[drawn().kind == kind]), assignments(kind))


@pytest.mark.parametrize("kind", range(4))
def test_number_pairs_are_uniform_over_training(kind):
    d = drawn()
    check(cells(*d.numbers[d.kind == kind].T), uniform(map(tuple, task.training_pairs(PAPER).tolist())))


def test_variables_of_each_side():
    d = drawn()
    check(cells(d.operand[d.kind == 1, 0]), uniform(FIRST))
    check(cells(d.operand[d.kind == 2, 1]), uniform(SECOND))
    check(cells(*d.operand[d.kind == 3].T), uniform(BOTH))


def test_operands_numbers_and_assignments_are_independent():
    d = drawn()
    one = d.kind == 1
    variable, number, count = d.operand[one, 0], d.numbers[one, 0], d.count[one]
    check(cells(variable, number), product(uniform(FIRST), first_numbers()))
    check(cells(variable, count), product(uniform(FIRST), assignments(1)))
    check(cells(number, count), product(first_numbers(), assignments(1)))
    two = d.kind == 3
    check(cells(*d.operand[two].T, d.count[two]), product(uniform(BOTH), assignments(3)))


@pytest.mark.parametrize("count", range(2, 7))
def test_slots_of_operands(count):
    d = drawn()
    for kind in (1, 2):
        rows = (d.kind == kind) & (d.count == count)
        check(cells(d.slot[rows, kind - 1]), uniform(range(count)))
    rows = (d.kind == 3) & (d.count == count)
    check(cells(*d.slot[rows].T), uniform(itertools.permutations(range(count), 2)))


# --- gaps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 6))
def test_each_pad_falls_uniformly_into_a_gap(count):
    """The joint law of how many PADs stand in each gap is multinomial."""
    d = drawn()
    rows = d.count == count
    before, is_pad = d.is_variable[rows].cumsum(1), d.context[rows] == 61
    in_gap = [((before == gap) & is_pad).sum(1) for gap in range(count + 1)]
    check(cells(*in_gap), multinomial(12 - 2 * count, count + 1))


def test_gaps_do_not_depend_on_the_kind():
    d = drawn()
    for kind in range(4):
        first_variable = d.is_variable[(d.kind == kind) & (d.count == 5)].argmax(1)
        check(cells(first_variable), {(0,): 25 / 36, (1,): 10 / 36, (2,): 1 / 36})


# --- distractors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_distractors_are_drawn_without_replacement(count):
    d = drawn()
    rows = (d.kind == 0) & (d.count == count)
    check(cells(*d.variables[rows, :count].T), uniform(itertools.permutations(range(12), count)))


def test_the_set_of_six_distractors():
    d = drawn()
    rows = (d.kind == 0) & (d.count == 6)
    members = (1 << d.variables[rows].astype(np.int64)).sum(1)
    sets = [sum(1 << v for v in chosen) for chosen in itertools.combinations(range(12), 6)]
    check(cells(members), uniform(sets))


@pytest.mark.parametrize("side", [0, 1])
def test_the_distractor_beside_one_operand(side):
    d = drawn()
    rows = (d.kind == 1 + side) & (d.count == 2)
    operand = d.operand[rows, side]
    other = d.variables[rows, :2].sum(1) - operand
    legal = (FIRST, SECOND)[side]
    check(cells(operand, other), uniform([(v, w) for v in legal for w in range(12) if v != w]))


def test_the_distractor_beside_two_operands():
    d = drawn()
    rows = (d.kind == 3) & (d.count == 3)
    first, second = d.operand[rows].T
    other = d.variables[rows, :3].sum(1) - first - second
    law = uniform([(v, w, x) for v, w in BOTH for x in range(12) if x not in (v, w)])
    check(cells(first, second, other), law)


@pytest.mark.parametrize("kind", range(4))
def test_values_of_distractors(kind):
    d = drawn()
    rows = d.kind == kind
    is_distractor = (d.variables[rows] >= 0) & ~d.matches[rows].any(1)
    for place in range(6):
        check(cells(d.values[rows, place][is_distractor[:, place]]), uniform(range(59)))


def test_values_are_independent():
    """Of each other, of the operands' numbers and of the variables they are assigned to."""
    d, numbers = drawn(), uniform(range(59))
    rows = (d.kind == 0) & (d.count >= 2)
    check(cells(*d.values[rows, :2].T), product(numbers, numbers))
    check(cells(d.numbers[rows, 0], d.values[rows, 0]), product(first_numbers(), numbers))
    check(cells(d.variables[rows, 1], d.values[rows, 1]), product(uniform(range(12)), numbers))
    rows = (d.kind == 1) & (d.count >= 2) & (d.slot[:, 0] == 0)
    check(cells(d.numbers[rows, 0], d.values[rows, 1]), product(first_numbers(), numbers))
    check(cells(d.variables[rows, 0], d.values[rows, 1]), product(uniform(FIRST), numbers))


# --- neighbours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seeds", "steps", "places in the batch"])
def test_neighbours_are_independent(axis):
    d = drawn()
    answers = np.bincount(task.training_pairs(PAPER).sum(1).numpy() % 59, minlength=59).tolist()
    counts = {(n,): sum(p * assignments(k).get((n,), 0) for (k,), p in KINDS.items()) for n in range(1, 7)}
    columns = (
        (d.kind, KINDS),
        (d.count, counts),
        (d.numbers.sum(1) % 59, {(a,): n / 2436 for a, n in enumerate(answers)}),
    )
    for column, law in columns:
        table = np.moveaxis(column.reshape(SEEDS, STEPS, 512), axis, 0)
        check(cells(table[:-1].ravel(), table[1:].ravel()), product(law, law))


# --- another config ------------------------------------------------------------------------------------


def test_the_laws_of_another_config():
    """Few variables, room for more assignments than there are variables, and half the 2-variable weight."""
    cfg = Config(p=5, variables=4, length=15, not_first="a", not_second="", two_var=0.5)
    tokens = sampler.Sampler(cfg).batch(torch.arange(2), torch.arange(100)).view(-1, 15)
    kind = task.operands(tokens, cfg).kind.numpy()
    count = (tokens[:, :11] >= cfg.FIRST_VARIABLE).sum(1).numpy()
    check(cells(kind), {(0,): 12 / 37, (1,): 10 / 37, (2,): 10 / 37, (3,): 5 / 37})
    check(cells(count[kind < 3]), uniform(range(1, 5)))
    check(cells(count[kind == 3]), {(2,): 1 / 2, (3,): 1 / 4, (4,): 1 / 4})
    pairs = tokens.numpy()[kind == 3, -3:-1] - cfg.FIRST_VARIABLE
    check(cells(*pairs.T), uniform([(v, w) for v in (1, 2, 3) for w in range(4) if v != w]))
