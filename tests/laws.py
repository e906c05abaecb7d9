"""Exact laws: chi-square against them, and sequences taken apart by their tokens alone.

A law is a dict from a cell, the tuple of one sequence's values, to its probability. Draws are deterministic, so a test
that passes always passes; a p-value below 1e-6, or one too good to be chance, means that the law is another.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np
from scipy import stats

NONE = -1


def cells(*columns):
    """How often each tuple of values occurs in integer columns of one length."""
    low = [int(column.min()) for column in columns]
    spans = [int(column.max()) - start + 1 for column, start in zip(columns, low, strict=True)]
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column, start, span in zip(columns, low, spans, strict=True):
        code = code * span + (column.astype(np.int64) - start)
    counts = np.bincount(code)
    at = counts.nonzero()[0]
    values = [part + start for part, start in zip(np.unravel_index(at, spans), low, strict=True)]
    return dict(zip(zip(*(v.tolist() for v in values), strict=True), counts[at].tolist(), strict=True))


def check(observed, expected):
    """Observed cells {cell: n} against an exact law {cell: probability}: chi-square, and every cell by itself.

    Chi-square alone would miss one cell of thousands that is never drawn.
    """
    unlawful = set(observed) - set(expected)
    assert not unlawful, sorted(unlawful)[:5]
    assert math.isclose(sum(expected.values()), 1, abs_tol=1e-9)
    total = sum(observed.values())
    assert total >= 2000, f"{total} are too few to tell"
    ordered = sorted(expected, key=expected.get)
    share = np.array([expected[cell] for cell in ordered]) * total
    seen = np.array([observed.get(cell, 0) for cell in ordered], dtype=float)
    tails = np.minimum(stats.binom.cdf(seen, total, share / total), stats.binom.sf(seen - 1, total, share / total))
    assert tails.min() * len(tails) > 1e-7, ordered[int(tails.argmin())]
    rare = max(int((share < 5).sum()), 1)  # cells too rare for chi-square are counted as one
    share = np.concatenate([[share[:rare].sum()], share[rare:]])
    seen = np.concatenate([[seen[:rare].sum()], seen[rare:]])
    assert len(share) > 1
    p_value = stats.chi2.sf(((seen - share) ** 2 / share).sum(), len(share) - 1)
    assert 1e-6 < p_value < 1 - 1e-6, p_value


def uniform(values):
    """The uniform law on values or tuples of them."""
    values = [value if isinstance(value, tuple) else (value,) for value in values]
    return dict.fromkeys(values, 1 / len(values))


def product(*laws):
    """The law of independent columns."""
    return {
        tuple(itertools.chain(*cell)): math.prod(law[part] for law, part in zip(laws, cell, strict=True))
        for cell in itertools.product(*laws)
    }


def assignments(kind):
    """The paper's number of assignments in training: uniform on 1 .. 6; with two variables a drawn 1 becomes 2."""
    return {(n,): 1 / 6 for n in range(1, 7)} if kind < 3 else {(n,): (1 + (n == 2)) / 6 for n in range(2, 7)}


def multinomial(draws, boxes):
    """The law of how many of `draws` fall into each of `boxes` boxes, uniformly and independently."""
    cells = [cell for cell in itertools.product(range(draws + 1), repeat=boxes) if sum(cell) == draws]
    pmf = stats.multinomial.pmf(np.array(cells), draws, np.full(boxes, 1 / boxes))
    return dict(zip(cells, pmf.tolist(), strict=True))


def take_apart(tokens):
    """What sequences of the paper's setting [n 16] consist of: kind, operands, their numbers, the assignments.

    `variables` and `values` [n 6] are in the order in which they stand, `slot` [n 2] says where among them an operand's
    assignment is; NONE fills what is not there. `matches` [n 2 6] marks every assignment of an operand.
    """
    tokens = tokens.astype(np.int8)
    context, shown = tokens[:, :12], tokens[:, 13:15]
    is_variable = context >= 62
    count = is_variable.sum(1, dtype=np.int8)
    used = np.arange(6) < count[:, None]
    variables, values = np.full_like(tokens[:, :6], NONE), np.full_like(tokens[:, :6], NONE)
    variables[used] = context[is_variable] - 62
    follows = np.concatenate([np.zeros_like(is_variable[:, :1]), is_variable[:, :-1]], 1)
    values[used] = context[follows]
    operand = np.where(shown >= 62, shown - 62, np.int8(NONE))
    matches = (variables[:, None] == operand[:, :, None]) & used[:, None]
    slot = np.where(operand >= 0, matches.argmax(2), NONE)
    numbers = np.where(operand >= 0, np.take_along_axis(values, np.maximum(slot, 0), 1), shown)
    kind = (operand[:, 0] >= 0) + 2 * (operand[:, 1] >= 0)
    return SimpleNamespace(**locals())


def assert_well_formed(parts):
    """The layout of every sequence: assignments and PADs, `+`, operands that are assigned, `=`."""
    tokens, context, is_variable = parts.tokens, parts.context, parts.is_variable
    assert tokens.shape[1] == 16
    assert ((tokens >= 0) & (tokens < 74)).all()
    assert (tokens[:, [12, 15]] == [59, 60]).all()
    assert not is_variable[:, 11].any()
    assert ((context < 59) == parts.follows).all(), "numbers stand after variables, and only there"
    assert (context[~is_variable & ~parts.follows] == 61).all()
    assert ((parts.count >= 1) & (parts.count <= 6)).all()
    ordered = np.sort(parts.variables, 1)
    assert not ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(), "a variable is assigned twice"
    assert ((tokens[:, 13:15] < 59) | (parts.operand >= 0)).all()
    assert (parts.matches.sum(2)[parts.operand >= 0] == 1).all(), "a variable is used but not assigned"
