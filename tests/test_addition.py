"""What reaches the MLP and what it makes of it: cuts against hooks, probes on data whose answer is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mc_lib import addition, model, probes, task
from mc_lib.config import Config
from mc_lib.hooked import hooked
from tests.built_by_hand import built
from tests.clock import clock

F64 = torch.float64
SMALL = Config(p=7, variables=5, length=12, d_model=12, heads=2, d_mlp=9, not_second="a", not_first="e")
HAND = Config(p=5, variables=4, length=12, d_model=38, d_mlp=15, not_second="a", not_first="d", heads=2)
few = settings(max_examples=25, deadline=None)


def doubled(cfg):
    return {name: w.double() for name, w in model.init(cfg).items()}


# --- sequences and partners ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(4))
def test_every_pair_stands_once_in_random_contexts(kind):
    tokens = addition.in_contexts(SMALL, kind)
    found = task.operands(tokens, SMALL)
    assert torch.equal(found.numbers, addition.number_pairs(SMALL))
    assert (found.kind == kind).all()
    first, second = (tokens[:, at] - SMALL.FIRST_VARIABLE for at in (-3, -2))
    assert SMALL.letters.index("e") not in first
    assert SMALL.letters.index("a") not in second
    assert kind != 3 or (first != second).all()
    assert len(tokens.unique(dim=0)) == len(tokens)
    assert (addition.in_contexts(SMALL, kind, draw=1) != tokens).any(1).float().mean() > 0.9


def test_templates_are_the_releases_and_ask_for_the_same_pair():
    cfg = Config()
    constant, variable = addition.templates(cfg)
    row = 3 * cfg.p + 4
    assert task.format(constant[row], cfg, "tokens") == "a 7 b 2 c 51 PAD PAD PAD PAD PAD PAD + 3 4 ="
    assert task.format(variable[row], cfg, "tokens") == "a 7 b 3 c 51 PAD PAD PAD PAD PAD PAD + b 4 ="
    for tokens in (constant, variable):
        assert torch.equal(task.operands(tokens, cfg).numbers, addition.number_pairs(cfg))
    short = Config(p=5, length=8)
    assert task.format(addition.templates(short)[1][7], short) == "a=2, b=1, b+2=?"


@few
@given(p=st.integers(2, 12))
def test_partners_share_what_they_say(p):
    cfg = SMALL.replace(p=p)
    pairs = addition.number_pairs(cfg)
    shares = {
        addition.SAME: lambda a, b: (a == b).all(1),
        addition.MIRROR: lambda a, b: (a == b.flip(1)).all(1) & (a != b).all(1),
        addition.SECOND: lambda a, b: (a[:, 0] == b[:, 0]) & (a[:, 1] != b[:, 1]) & (a != b.flip(1)).any(1),
        addition.BOTH: lambda a, b: (a != b).all(1) & (a != b.flip(1)).any(1),
        addition.ANSWER: lambda a, b: (
            (a.sum(1) % p == b.sum(1) % p) & (a.sort(1).values != b.sort(1).values).any(1) & (a != b).all(1)
        ),
    }
    for how, rule in shares.items():
        row, other = addition.partners(cfg, how)
        assert rule(pairs[row], pairs[other]).all(), how
        assert len(row.unique()) == len(row) > 0
    assert len(addition.partners(cfg, addition.SAME)[0]) == p * p
    assert len(addition.partners(cfg, addition.MIRROR)[0]) == p * p - p


def test_cosines_are_of_partners_and_spread_is_theirs():
    x = torch.randn(49, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = 3 * x + 0.1
    found = addition.compare(x, y, SMALL)
    for how, values in found.items():
        row, other = addition.partners(SMALL, how)
        torch.testing.assert_close(values, torch.cosine_similarity(x[row], y[other]))
    got = addition.spread(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert (got.mean, got.least, got.most, got.n) == (3.0, 1.0, 6.0, 4)
    assert got.high - got.mean == pytest.approx(1.96 * np.std([1, 2, 3, 6], ddof=1) / 2)
    assert got.mean - got.low == pytest.approx(got.high - got.mean)


# --- the circuit and the cuts --------------------------------------------------------------------------


def at_equals(value):
    """A hook that puts a value at `=` only."""

    def hook(activation, hook):
        return torch.cat([activation[:, :-1], value[:, None]], 1)

    return hook


def test_vectors_are_the_hooked_models():
    weights = doubled(SMALL)
    tokens = addition.in_contexts(SMALL, 3)
    seen = addition.vectors(weights, tokens)
    _, cache = hooked(weights).run_with_cache(tokens)
    for name, value in zip(("attn_out", "resid_mid", "resid_post"), seen, strict=True):
        torch.testing.assert_close(value, cache[f"blocks.1.hook_{name}"][:, -1])


def test_cuts_equal_cuts_made_by_hooks():
    weights, tokens = doubled(SMALL), addition.in_contexts(SMALL, 1)
    net, found = hooked(weights), addition.path_logits(weights, tokens)
    _, cache = net.run_with_cache(tokens)
    attention, mlp_out = (cache[f"blocks.1.hook_{name}_out"][:, -1] for name in ("attn", "mlp"))
    before = cache["blocks.1.hook_resid_mid"][:, -1]
    kept = {}

    def keep(activation, hook):
        kept["mlp"] = activation

    def kept_only(activation, hook):
        return kept["mlp"]

    def with_stream(activation, hook):
        return kept["mlp"] + cache["blocks.1.hook_resid_mid"]

    mid, post, out = (f"blocks.1.hook_{name}" for name in ("resid_mid", "resid_post", "mlp_out"))
    cuts = {
        addition.WHOLE: [],
        addition.NO_MLP: [(out, at_equals(torch.zeros_like(mlp_out)))],
        addition.MEAN_MLP: [(out, at_equals(mlp_out.mean(0).expand_as(mlp_out)))],
        addition.BLIND_MLP: [(mid, at_equals(before - attention)), (out, keep), (post, with_stream)],
        addition.ONLY_PATH: [(mid, at_equals(attention)), (out, keep), (post, kept_only)],
    }
    assert cuts.keys() == found.keys()
    for name, hooks in cuts.items():
        torch.testing.assert_close(found[name], net.run_with_hooks(tokens, fwd_hooks=hooks)[:, -1])


def test_isolated_circuit_is_the_model_with_attention_wired_by_hand():
    """Half of every head's weight on each operand, values read from bare embeddings, no path but through the MLP."""
    weights, tokens = doubled(SMALL), addition.in_contexts(SMALL, 0)
    net, kept = hooked(weights), {}
    pattern = torch.zeros(len(tokens), SMALL.heads, SMALL.length, SMALL.length, dtype=F64)
    pattern[:, :, -1, -3:-1] = 0.5

    def keep(activation, hook):
        kept[hook.name] = activation

    hooks = [
        ("blocks.1.attn.hook_v_input", lambda x, hook: weights["embed.W_E"][tokens][:, :, None].expand_as(x)),
        ("blocks.1.attn.hook_pattern", lambda x, hook: pattern),
        ("blocks.1.hook_attn_out", keep),
        ("blocks.1.hook_resid_mid", lambda x, hook: kept["blocks.1.hook_attn_out"]),
        ("blocks.1.hook_mlp_out", keep),
        ("blocks.1.hook_resid_post", lambda x, hook: kept["blocks.1.hook_mlp_out"]),
    ]
    wired = net.run_with_hooks(tokens, fwd_hooks=hooks)[:, -1]
    torch.testing.assert_close(addition.isolated_logits(weights, SMALL), 2 * wired)


def test_a_clock_adds_and_a_broken_one_errs_where_it_says():
    weights, cfg = clock()
    assert addition.isolated_errors(weights, cfg) == []
    assert addition.isolated_margins(weights, cfg).min() > 0
    weights["unembed.W_U"][:, 3] -= 100 * weights["unembed.W_U"][:, 3]
    errors = addition.isolated_errors(weights, cfg)
    missed = {(n, m) for n in range(11) for m in range(11) if (n + m) % 11 == 3}
    assert missed <= {(n, m) for n, m, _ in errors}
    margin = addition.isolated_margins(weights, cfg)
    assert {(n, m) for n, m, _ in errors} == {tuple(pair) for pair in (margin < 0).nonzero().tolist()}
    said = addition.isolated_answers(weights, cfg)
    assert all(said[n, m] == wrong != (n + m) % 11 for n, m, wrong in errors)


def test_removed_neurons_write_nothing():
    weights, cfg = clock()
    left = addition.without_neurons(weights, torch.arange(cfg.d_mlp) >= 16)
    two, small = clock(frequencies=(1, 3))
    torch.testing.assert_close(addition.isolated_logits(left, cfg), addition.isolated_logits(two, small))


def test_a_model_built_by_hand_needs_its_path_and_answers_for_the_donor():
    weights = built(HAND)
    hits = addition.path_hits(weights, HAND)
    assert hits[addition.WHOLE] == hits[addition.ONLY_PATH] == (100, 100)
    assert hits[addition.NO_MLP][0] <= 25  # argmax of equal logits is 0
    for donor, host in ((0, 3), (3, 0), (1, 2)):
        got = addition.swap(weights, HAND, donor, host)
        assert (got.donor, got.host) == (got.n, 0)
        assert 15 <= got.n <= 25


def test_a_swap_is_what_a_hook_would_do():
    weights = doubled(SMALL)
    hosts, donors = addition.in_contexts(SMALL, 0), addition.in_contexts(SMALL, 3, draw=1)
    donors = donors[torch.randperm(49, generator=torch.Generator().manual_seed(addition.SWAPS))]
    given_vector = addition.vectors(weights, donors).attention
    logits = hooked(weights).run_with_hooks(hosts, fwd_hooks=[("blocks.1.hook_attn_out", at_equals(given_vector))])
    said, asked, given_ = logits[:, -1].argmax(1), task.answers(hosts, SMALL), task.answers(donors, SMALL)
    differ = asked != given_
    expected = ((said == given_)[differ].sum(), (said == asked)[differ].sum(), differ.sum())
    assert addition.swap(weights, SMALL, 3, 0) == addition.Swap(*map(int, expected))


# --- probes --------------------------------------------------------------------------------------------


def test_splits_keep_pairs_and_their_mirrors_apart():
    tokens = torch.cat([addition.in_contexts(SMALL, kind) for kind in range(4)])
    pair = [tuple(sorted(row)) for row in task.operands(tokens, SMALL).numbers.tolist()]
    found = probes.splits(SMALL, tokens)
    for train, test in found.values():
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(tokens)))
    train, test = (
        [{pair[i] for i in rows.tolist()} for rows in found[way]] for way in (probes.DISJOINT, probes.SHARED)
    )
    assert not train[0] & train[1]
    assert test[0] & test[1]


def test_probe_reads_what_is_linear_and_not_what_is_not():
    g = torch.Generator().manual_seed(1)
    numbers = torch.randint(11, (2500, 2), generator=g)
    label = torch.nn.functional.one_hot(numbers, 11).double()
    answer = numbers.sum(1) % 11
    linear = torch.nn.functional.one_hot(answer, 11).double() @ torch.randn(11, 20, generator=g, dtype=F64)
    summed = label.sum(1) @ torch.randn(11, 20, generator=g, dtype=F64)
    tokens = torch.full((2500, 16), 13)  # PADs of p = 11
    tokens[:, -3:-1] = numbers
    train, test = probes.splits(Config(p=11), tokens)[probes.DISJOINT]
    for x, low, high in ((linear, 1.0, 1.0), (summed, 0.0, 0.1)):
        said = probes.softmax_probe(x[train], answer[train], x[test], 11)
        assert low <= (said == answer[test]).double().mean() <= high
    assert probes.read_numbers(summed, numbers, train, test, 11).all()
    assert probes.read_numbers(linear, numbers, train, test, 11).double().mean() < 0.2


def test_probe_does_not_depend_on_scale_or_shift():
    g = torch.Generator().manual_seed(2)
    x, y, new = (
        torch.randn(200, 4, generator=g),
        torch.randint(3, (200,), generator=g),
        torch.randn(500, 4, generator=g),
    )
    said = probes.softmax_probe(x, y, new, 3)
    moved = probes.softmax_probe(50 * x + 7, y, 50 * new + 7, 3)
    assert (said == moved).double().mean() > 0.98
    assert len(said.unique()) == 3


def test_probes_on_a_model_built_by_hand():
    found = {(row.place, row.target, row.split): row for row in probes.probes(built(HAND), HAND, count=1500)}
    assert found[probes.AFTER, probes.ANSWER, probes.SHARED].accuracy == 1
    assert found[probes.BEFORE, probes.NUMBERS, probes.SHARED].accuracy == 1
    assert found[probes.BEFORE, probes.ANSWER, probes.SHARED].accuracy < 0.5
    assert found[probes.BEFORE, probes.ANSWER, probes.DISJOINT].accuracy < 0.1
