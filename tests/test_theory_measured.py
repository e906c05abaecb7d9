"""Samples, probes, windows, the bridge, the statements' verdicts and the refusals of the theorem's code."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_by_hand import F64, KINDS, close, many, mixed, setups

from mc_lib import theory, theory_batch, theory_bridge, theory_measured, theory_more, theory_statements, theory_sweeps
from mc_lib.config import Refusal
from mc_lib.theory import Setup


# Sequences.
@many
@given(
    setups(most_length=20, least_variables=3, least_length=10),
    st.sampled_from(KINDS),
    st.integers(2, 3),
    st.integers(0, 99),
)
def test_samples_obey_the_grammar(s, kind, assignments, n):
    tokens = theory_batch.sample(s, kind, 20, n, assignments)
    assert tokens.tolist() == theory_batch.sample(s, kind, 20, n, assignments).tolist()
    for seq in tokens.tolist():
        assert (seq[-4], seq[-1]) == (s.PLUS, s.EQUALS)
        named = [t for t in range(s.length - 4) if seq[t] >= s.p + 3]
        assert len(named) == len({seq[t] for t in named}) == assignments
        assert all(seq[t + 1] < s.p and t + 1 < s.length - 4 for t in named)
        assert sum(token == s.PAD for token in seq) == s.length - 4 - 2 * assignments
        operands = [token for token in seq[-3:-1] if token >= s.p + 3]
        assert len(operands) == len(set(operands)) == kind
        assert set(operands) <= {seq[t] for t in named}
        assert kind != 1 or s.order == "random" or seq[-2] >= s.p + 3


def test_every_placing_is_as_likely():
    s = Setup(p=5, variables=4, length=11)
    tokens = theory_batch.sample(s, 0, 40_000, assignments=2)
    starts = [tuple(row) for row in (tokens >= s.p + 3).nonzero()[:, 1].view(-1, 2).tolist()]
    counts = torch.tensor([starts.count(x) for x in sorted(set(starts))], dtype=F64)
    assert len(counts) == math.comb(7 - 2, 2)
    assert ((counts - 4000).abs() < 5 * 60).all()  # 5 standard deviations


def test_random_order_turns_half():
    s = Setup(p=5, variables=4, length=11, order="random")
    turned = (theory_batch.sample(s, 1, 4000)[:, -3] >= s.p + 3).double().mean().item()
    assert abs(turned - 0.5) < 0.04


# Measurements.
def test_ties_get_their_share():
    s = Setup(p=5, variables=2, length=8)
    x = theory_batch.augment(s, torch.tensor([[8, 1, 10, 10, 5, 3, 8, 6]] * 4)[:, :8].clamp(max=9))
    logits = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 0, 0, 0, 0.9], [1, 1, 1, 1, 1]], dtype=F64)
    assert theory_sweeps.share_right(logits, x).tolist() == pytest.approx([1, 0.5, 0, 0.2])


def test_a_probe_by_hand():
    """a=6, b=1, c=4, then b + 3: attention set by hand."""
    s = Setup(p=11, variables=3, length=12)
    a, b, c, pad = 14, 15, 16, s.PAD
    x = theory_batch.augment(s, torch.tensor([[a, 6, b, 1, c, 4, pad, pad, s.PLUS, b, 3, s.EQUALS]]))
    attention = torch.tensor([[0, 0.1, 0, 0.3, 0, 0.05, 0, 0, 0, 0.05, 0.2, 0.3]], dtype=F64)
    found = theory_sweeps.probe(s, attention.clamp(min=1e-30).log(), x)
    right, wrong, operands = pytest.approx(0.5), pytest.approx(0.15), pytest.approx(0.25)
    assert (found.right, found.itself, found.wrong, found.operands) == (
        right,
        pytest.approx(0.3),
        wrong,
        operands,
    )
    assert (found.accuracy, found.top2, found.n) == (1, 1, 1)
    attention[0, 1] = 0.25  # a's value now leads the operand, and 2 * .3 * .25 at 6 + 1 beats the sum's logit
    found = theory_sweeps.probe(s, attention.clamp(min=1e-30).log(), x)
    assert (found.accuracy, found.top2) == (0, 0)


def test_a_scan_is_the_model_at_each_gamma():
    s = Setup(p=11, variables=4, length=16, lam=5.0, order="random", attends_self=False)
    scan = theory_sweeps.Scan(s, theory.update(s), 40)
    for kind in KINDS:
        x = scan.lines[kind][0]
        seen = theory_batch.scores(s, theory.start(s) + 0.9 * theory.update(s), x)
        found, expected = scan.at(0.9, kind), theory_sweeps.probe(s, seen, x)
        assert (found.accuracy, found.n) == (expected.accuracy, expected.n)
        assert found.right == pytest.approx(expected.right)


@many
@given(st.floats(0.2, 7), st.floats(0.1, 0.9))
def test_a_window_is_found(low, width):
    class Known(theory_sweeps.Scan):
        def __init__(self):
            pass

        def worst(self, gamma, kinds):
            return max(0.0, 1 - 0.02 * abs(gamma - low - width / 2) / width)  # .99 at both edges

    found = theory_sweeps.window(Known())
    assert found.low == pytest.approx(low, abs=2e-3)
    assert found.high == pytest.approx(min(low + width, 8), abs=2e-3)
    assert math.isnan(theory_sweeps.window(Known(), level=1.5).low)


def test_the_window_is_about_where_theory_puts_it():
    for s in (Setup(p=101), Setup(p=101, order="random"), Setup(p=101, carried=0.5)):
        found = theory_sweeps.window(theory_sweeps.Scan(s, theory.update(s), 200), (1,), points=33)
        low, high = theory_sweeps.predicted_window(s)
        assert abs(found.low - low) < 0.1 * low
        assert found.high < 1.1 * high


@many
@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_a_power_law_gives_its_slope(slope, scale):
    x = [1.0, 2.0, 5.0, 9.0]
    found = theory_sweeps.fitted_slope(x, [scale * v**slope for v in x])
    assert found.slope == pytest.approx(slope, abs=1e-9)
    assert found.low - 1e-9 <= slope <= found.high + 1e-9


def test_intervals_are_the_tabulated_ones():
    tabulated = {1: 12.706, 4: 2.776, 10: 2.228, 100: 1.984}
    assert {k: round(theory_sweeps.student_quantile(k), 3) for k in tabulated} == pytest.approx(tabulated, abs=0.02)
    mean = theory_sweeps.mean_of([1.0, 2.0, 6.0])
    assert (mean.mean, mean.n) == (3, 3)
    assert mean.high - mean.mean == pytest.approx(4.303 * 7**0.5 / 3**0.5, rel=1e-3)
    x, y = [1, 10, 100], [1, 12, 90]
    noisy, (fit, covariance) = theory_sweeps.fitted_slope(x, y), np.polyfit(np.log(x), np.log(y), 1, cov=True)
    assert noisy.slope == pytest.approx(fit[0])
    assert noisy.high - noisy.slope == pytest.approx(12.706 * covariance[0, 0] ** 0.5, rel=1e-3)


def test_the_remainder_falls_as_stated():
    s = theory_measured.LARGE
    over_p = theory_sweeps.remainder_sweep(s, "p", (7, 31, 113))
    assert theory_sweeps.fitted_slope([x.value for x in over_p], [x.largest for x in over_p]).slope == pytest.approx(
        -1, abs=0.01
    )
    over_T = theory_sweeps.remainder_sweep(s.replace(p=509), "length", (16, 64, 256))
    assert [x.largest for x in over_T] == pytest.approx([4 / 11, 4 / 59, 4 / 251], rel=0.01)
    over_V = theory_sweeps.remainder_sweep(s, "variables", (2, 4, 8))
    assert theory_sweeps.fitted_slope([x.value for x in over_V], [x.largest for x in over_V]).slope == pytest.approx(
        1, abs=0.02
    )


def test_further_steps_solve_all_kinds():
    steps = theory_more.further_steps(Setup(order="random"), steps=18, count=60)
    worst = [min(probe.accuracy for probe in step.probes.values()) for step in steps]
    assert worst[0] < 0.2
    assert worst[-1] > 0.97
    assert steps[-1].probes[2].itself < 0.1 < steps[0].probes[2].itself
    assert steps[-1].memory.match - steps[-1].memory.other > 1.5


# Embeddings and samples.
def test_random_embeddings_approach_orthonormal_ones():
    s = Setup(p=5, variables=3, length=10)
    far = [(theory_batch.gram_matrix(s, d, 1) - torch.eye(s.size)).abs() for d in (100, 10_000)]
    assert far[0].diagonal().max() < 1e-12
    spread = [x.sum().item() / (s.size**2 - s.size) for x in far]
    assert [x * d**0.5 for x, d in zip(spread, (100, 10_000), strict=True)] == pytest.approx([0.8] * 2, rel=0.1)


def test_a_random_embeddings_step_is_the_orthonormal_one_in_the_limit():
    s = Setup(p=7, variables=3, length=12, lam=4.0, order="random")
    found = theory_more.random_embedding(s, 2**18, count=90)
    assert found.identity == 1
    limit = theory_sweeps.window(theory_sweeps.Scan(s, theory.update(s), 90), most=4.0, points=33)
    assert abs(found.window.best - limit.best) < 0.1


def test_a_samples_error_is_as_predicted():
    s = Setup(p=11, variables=3, length=16, lam=6.0)
    found = [theory_more.sample_error(s, n, seed) for n in (500, 8000) for seed in range(8)]
    for part in (found[:8], found[8:]):
        mean = sum(x.error for x in part) / 8
        assert 0.4 < mean / part[0].predicted < 2.5
        assert all(x.symmetrised <= x.error + 1e-9 for x in part)


# The bridge.
def theory_weights(s, W):
    """The theorem's model as a trained one's weights: embeddings are the basis, layer 2 scores with W."""
    eye = torch.eye(s.size, dtype=F64)
    remap = torch.zeros(s.size, s.size, dtype=F64)
    remap[s.blocks["number"]] = eye[s.blocks["tilde_number"]]
    remap[s.blocks["variable"]] = eye[s.blocks["tilde_variable"]]
    return {
        "embed.W_E": eye[: s.tokens],
        "pos_embed.W_pos": eye[s.blocks["position"]],
        "unembed.W_U": torch.zeros(s.size, s.p, dtype=F64),
        "blocks.0.attn.W_V": remap[None],
        "blocks.0.attn.W_O": eye[None],
        "blocks.1.attn.W_Q": W.T[None] * s.size**0.5,
        "blocks.1.attn.W_K": eye[None],
    }


def test_the_bridge_reads_the_theorems_own_model():
    s = Setup(p=13, variables=4, length=12, lam=3.0)
    W = theory.start(s) + theory.update(s)
    found, expected = theory_bridge.bridge(theory_weights(s, W)), theory_sweeps.memory(s, W)
    close(found.block[0], expected.block)
    assert (found.match, found.other) == (pytest.approx(expected.match), pytest.approx(expected.other))
    assert found.identity == 1
    assert found.shared == pytest.approx(2 * expected.shared)
    both = W[s.blocks["position"]][:, [s.EQUALS, s.position(-1)]].sum(1)
    assert found.operands[0].tolist() == pytest.approx((both[-3:-1] - both[:-4].mean()).tolist())
    assert found.raw == pytest.approx(-2 * s.A * (1 - 1 / s.p), rel=0.1)


def test_the_bridge_refuses_what_is_no_run():
    weights = theory_weights(Setup(p=3, length=8), torch.zeros(29, 29, dtype=F64))
    del weights["pos_embed.W_pos"]
    with pytest.raises(Refusal, match="pos_embed.W_pos"):
        theory_bridge.bridge(weights)


@many
@given(setups(), st.floats(0, 8))
def test_the_starts_lambda_is_read_off_its_attention(s, lam):
    s = s.replace(lam=lam, attends_self=True)
    rows = torch.softmax(theory_batch.scores(s, theory.start(s), theory_batch.augment(s, mixed(s))), 1)
    found = theory_bridge.operand_attention(rows[:, None])
    assert (found.mass, found.lam) == (pytest.approx(2 * s.A), pytest.approx(lam, abs=1e-8))
    assert found.low <= found.mass <= found.high


# Statements.
VERDICTS = {
    "start.operands": "holds when",
    "mlp.construction": "holds",
    "logits.bounded": "holds",
    "logits.vanish": "holds",
    "logits.negligible": "holds when",
    "theorem.remainder": "holds",
    "proof.parts": "holds",
    "theorem.norm": "does not hold",
    "theorem.memory": "holds when",
    "theorem.dominant": "does not hold",
    "theorem.attenuates": "holds",
    "theorem.lhs": "holds when",
    "theorem.paper_size": "does not hold",
    "binding.attention": "holds when",
    "binding.shared": "holds",
    "composition.step": "holds when",
    "composition.zero": "holds when",
    "composition.weight": "does not hold",
    "composition.self": "holds",
    "scale.later": "holds when",
    "later.shared": "holds when",
    "later.accuracy": "holds",
    "embeddings.random": "holds when",
    "sample.size": "does not hold",
}


@pytest.mark.parametrize("statement", theory_statements.STATEMENTS, ids=lambda statement: statement.id)
def test_a_statements_verdict(statement):
    row = theory_statements.evaluate(statement)
    verdict = VERDICTS[statement.id]
    assert row.verdict == (f"{verdict} {statement.when}" if verdict == "holds when" else verdict)
    assert theory_statements.number_text(row.numbers).count("; ") == len(row.numbers) - 1


def test_each_statement_is_there_once():
    assert [statement.id for statement in theory_statements.STATEMENTS] == list(VERDICTS)


# Refusals.
BAD = [
    ({"p": 1}, "p = 1 is out of range: choose 2"),
    ({"variables": 0}, "variables = 0 is out of range: choose 1"),
    ({"length": 5}, "one assignment need 6 positions"),
    ({"p": True}, "p must be a whole number"),
    ({"lam": float("nan")}, "lam = nan is out of range"),
    ({"lam": True}, "lam must be a number"),
    ({"beta": 0.0}, "beta = 0.0 is out of range"),
    ({"carried": 2.0}, "carried = 2.0 is out of range"),
    ({"order": "left"}, "choose fixed or random"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[str(changes) for changes, _ in BAD])
def test_bad_sizes_are_refused(changes, says):
    with pytest.raises(Refusal, match=says) as caught:
        Setup(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory_batch.sample(Setup(), 3, 5), "kind 3 is unknown"),
        (lambda: theory_batch.sample(Setup(), 1, 0), "asks for no sequence"),
        (lambda: theory_batch.sample(Setup(variables=1), 2, 5, assignments=1), "do not fit kind 2"),
        (lambda: theory_batch.sample(Setup(variables=2), 1, 5, assignments=3), "do not fit"),
        (
            lambda: theory_batch.sample(Setup(length=8), 1, 5, assignments=3),
            "too short for 3 assignments: choose 10",
        ),
        (lambda: theory_batch.every_one_variable(Setup(p=200)), "use population_gradient or smaller sizes"),
        (lambda: theory_batch.gram_matrix(Setup(), 0), "choose 1 or more"),
        (lambda: theory_sweeps.fitted_slope([1, 2], [1, 2]), "three points or more"),
        (lambda: theory_sweeps.mean_of([1.0]), "two draws or more"),
        (lambda: theory_bridge.operand_attention(torch.ones(1, 1, 8)), "two rows or more"),
    ],
)
def test_bad_requests_are_refused(call, says):
    with pytest.raises(Refusal, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
