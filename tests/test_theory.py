"""The theorem's gradient, closed form and symmetries against autograd and against their own laws."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_by_hand import F64, autograd, close, few, many, mixed, seed, setups, values_of, written_out

from mc_lib import theory, theory_batch, theory_more, theory_sweeps
from mc_lib.theory import Setup


# The MLP.
@many
@given(st.integers(2, 40), st.integers(0, 1000))
def test_the_mlp_is_one_function_three_ways(p, n):
    u = torch.rand(3, p, dtype=F64, generator=seed(n))
    vectors = torch.linalg.qr(torch.randn(p + 5, p, dtype=F64, generator=seed(n + 1))).Q.T
    direct = theory.mlp_convolution(u)
    close(theory.mlp(u), direct)
    close(theory.mlp_complex(vectors, u @ vectors), direct)


@many
@given(st.integers(2, 30), st.data())
def test_two_numbers_give_the_closed_form(p, data):
    n, m = data.draw(st.integers(0, p - 1)), data.draw(st.integers(0, p - 1))
    a, b = data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    u, expected = torch.zeros(1, p, dtype=F64), torch.zeros(1, p, dtype=F64)
    u[0, n] += a
    u[0, m] += b
    for c, weight in ((2 * n, a * a), (n + m, 2 * a * b), (2 * m, b * b)):
        expected[0, c % p] += weight
    assert (theory.mlp_convolution(u) - expected).abs().max() <= 1e-12


@many
@given(st.integers(2, 20), st.integers(0, 1000))
def test_the_mlps_derivative(p, n):
    u = torch.rand(3, p, dtype=F64, generator=seed(n)).requires_grad_()
    r = torch.randn(3, p, dtype=F64, generator=seed(n + 1))
    (theory.mlp_convolution(u) * r).sum().backward()
    close(theory.mlp_pullback(u.detach(), r), u.grad)


# The gradient.
@few
@given(setups(most_p=5, most_length=8))
def test_population_gradient_is_autograds(s):
    E = torch.eye(s.size, dtype=F64)
    expected = autograd(s, theory.start(s), theory_batch.every_one_variable(s), E)
    close(theory.population_gradient(s), expected)


@few
@given(setups(most_p=9, most_length=12, least_variables=2, least_length=8), st.integers(0, 1000))
def test_batch_gradient_is_autograds_at_any_matrix(s, n):
    tokens = mixed(s, n=n)
    W = torch.randn(s.size, s.size, dtype=F64, generator=seed(n))
    found = theory_batch.batch_gradient(s, W, theory_batch.augment(s, tokens))
    close(found, autograd(s, W, tokens, torch.eye(s.size, dtype=F64)), 1e-11)


@few
@given(setups(most_p=4, most_length=8), st.integers(0, 1000))
def test_under_any_embedding_only_the_gram_matrix_matters(s, n):
    E = torch.randn(s.size, s.size + 3, dtype=F64, generator=seed(n)) / s.size**0.5
    C = torch.randn(s.size, s.size, dtype=F64, generator=seed(n + 1)) / s.size
    K, tokens = E @ E.T, mixed(s, n=n)
    found = theory_batch.batch_gradient(s, K @ C @ K, theory_batch.augment(s, tokens), K)
    close(E.T @ found @ E, autograd(s, E.T @ C @ E, tokens, E), 1e-11)


@few
@given(setups())
def test_population_in_chunks_is_the_population(s):
    tokens = theory_batch.every_one_variable(s)
    found = theory_more.mean_gradient(s, theory.start(s), tokens, chunk=17)
    close(found, theory.population_gradient(s))
    assert len(tokens.unique(dim=0)) == len(tokens) == s.p**2 * s.variables * s.slots * (1 + (s.order == "random"))


@few
@given(setups(), st.integers(0, 1000))
def test_read_is_the_transpose_of_spread_and_both_are_the_inputs(s, n):
    tokens = mixed(s, n=n)
    x = theory_batch.augment(s, tokens)
    dense = written_out(s, tokens, torch.eye(s.size, dtype=F64))
    rows = torch.randn(len(tokens), s.size, dtype=F64, generator=seed(n))
    close(theory_batch.read(s, rows, x), torch.einsum("bti,bi->bt", dense, rows))
    weights = torch.randn(len(tokens), s.length, dtype=F64, generator=seed(n))
    close(theory_batch.spread(s, weights, x), torch.einsum("bti,bt->bi", dense, weights))
    assert x.answers_of.tolist() == values_of(s, tokens).tolist()


# The theorem.
wide = st.builds(
    Setup,
    p=st.integers(2, 80),
    variables=st.integers(1, 12),
    length=st.integers(7, 80),
    lam=st.floats(0, 12),
    beta=st.floats(1e-9, 1e-2),
    order=st.sampled_from(["fixed", "random"]),
    carried=st.floats(0, 1),
    attends_self=st.booleans(),
)


@many
@given(wide)
def test_the_closed_form_is_within_its_bound(s):
    assert theory.remainder(s).abs().max().item() <= 3 * max(theory.bound(s).values())


@many
@given(wide)
def test_the_memory_is_exact_up_to_the_numbers_left_over(s):
    """The law that the sizes leave of the theorem's 1 and 0, at small logits."""
    s = s.replace(beta=1e-12, lam=min(s.lam, 8.0))
    memory = theory_sweeps.memory(s, theory.update(s))
    itself = s.carried * s.attends_self
    law = (1 - 1 / s.p) * (1 - 2 * s.eps * (1 + itself))
    # The measured entry is (value's part + what `=` carries of it) * carried.
    assert memory.match == pytest.approx(s.carried * law, abs=1e-7)
    assert memory.other == 0 or s.variables == 1


def test_the_terms_are_the_theorems():
    """Entry by entry as the theorem is written, for one small setup in each order."""
    for order, lhs, rhs in (
        ("fixed", lambda A: 1 - 2 * A, lambda A: -2 * A),
        ("random", *[lambda A: 0.5 - 2 * A] * 2),
    ):
        s = Setup(p=5, variables=3, length=9, lam=1.0, order=order, carried=0.5)
        terms, last, tilde = theory.closed_form(s), s.position(-1), s.blocks["tilde_variable"]
        assert terms["memory"][tilde, tilde].tolist() == (0.5 * torch.eye(3)).tolist()
        assert set(terms["memory"][tilde][:, [s.EQUALS, last]].flatten().tolist()) == {1.0}
        for name, at, weight in (("lhs", -3, lhs(s.A)), ("rhs", -2, rhs(s.A))):
            row = terms[name][s.position(at)]
            assert row[[s.EQUALS, last]].tolist() == pytest.approx([3 * weight] * 2)
            assert row[tilde].tolist() == pytest.approx([0.5 * weight] * 3)
        own = terms["variables"][s.blocks["variable"]]
        assert own[:, tilde].diagonal().tolist() == pytest.approx([-s.A] * 3)
        assert sum(term.abs().sum() for term in terms.values()) == pytest.approx(
            3 * 2.5 * (1 + abs(lhs(s.A)) + abs(rhs(s.A)) + 2 * s.A)
        )


def test_the_step_is_one_gradient_step():
    s = Setup(p=7, variables=3, length=10, lam=2.0, beta=0.1)
    step = theory.start(s) - theory.learning_rate(s, 0.7) * theory.population_gradient(s)
    close(step, theory.start(s) + 0.7 * theory.update(s))
    assert theory.learning_rate(s, 2.0) == pytest.approx(2 * 3 / (2 * 0.1 * s.A * s.eps))


@few
@given(setups(), st.integers(0, 1000))
def test_the_start_attends_alike_on_every_input(s, n):
    tokens = mixed(s, n=n)
    rows = torch.softmax(theory_batch.scores(s, theory.start(s), theory_batch.augment(s, tokens)), 1)
    expected = torch.full((s.length,), s.eps, dtype=F64)
    expected[-3:-1] = s.A
    expected[-1] *= s.attends_self
    close(rows, expected.expand_as(rows))


# Invariance.
def relabelling(s, n):
    """n -> u n + a with u a unit mod p, and a permutation of the variables: of the tokens, and of the basis."""
    g = seed(n)
    units = [u for u in range(1, s.p) if math.gcd(u, s.p) == 1]
    u, a = units[n % len(units)], int(torch.randint(s.p, (), generator=g))
    numbers = (u * torch.arange(s.p) + a) % s.p
    variables = torch.randperm(s.variables, generator=g)
    where = torch.arange(s.size)
    for name, order in (
        ("number", numbers),
        ("tilde_number", numbers),
        ("variable", variables),
        ("tilde_variable", variables),
    ):
        where[s.blocks[name]] = s.blocks[name].start + order
    return where


@few
@given(setups(most_p=9, most_length=12), st.integers(0, 1000))
def test_relabelling_numbers_and_variables_relabels_the_gradient(s, n):
    where = relabelling(s, n)
    tokens = mixed(s, n=n)
    W = torch.randn(s.size, s.size, dtype=F64, generator=seed(n))
    moved = torch.zeros_like(W)
    moved[where[:, None], where] = W
    gradient = theory_batch.batch_gradient(s, W, theory_batch.augment(s, tokens))
    after = theory_batch.batch_gradient(s, moved, theory_batch.augment(s, where[tokens]))
    close(after[where[:, None], where], gradient, 1e-11)


@few
@given(setups(), st.integers(0, 1000))
def test_the_population_gradient_does_not_move(s, n):
    G, where = theory.population_gradient(s), relabelling(s, n)
    close(G[where[:, None], where], G)
    close(theory_batch.symmetrise(s, G), G)


@few
@given(setups(most_p=4, most_length=7), st.integers(0, 1000))
def test_symmetrise_is_the_mean_over_the_group(s, n):
    """All shifts and all permutations, one by one."""
    W, total, count = torch.randn(s.size, s.size, dtype=F64, generator=seed(n)), 0, 0
    for a in range(s.p):
        for order in permutations(range(s.variables)):
            where = torch.arange(s.size)
            for name in ("number", "tilde_number"):
                where[s.blocks[name]] = s.blocks[name].start + (torch.arange(s.p) + a) % s.p
            for name in ("variable", "tilde_variable"):
                where[s.blocks[name]] = s.blocks[name].start + torch.tensor(order)
            total, count = total + W[where[:, None], where], count + 1
    close(theory_batch.symmetrise(s, W), total / count)
