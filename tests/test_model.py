"""The fast forward pass: against the definition in plain loops, and what must hold for any weights."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mc_lib import model, sampler, task
from mc_lib.config import Config

SMALL = Config(p=7, variables=5, length=10, not_first="e", not_second="a", d_model=12, heads=2, d_mlp=20)


def weights_of(cfg, scale=1.5):
    return {name: (scale * tensor).double() for name, tensor in model.init(cfg).items()}


def tokens_of(cfg, count=6, seed=0):
    return sampler.sample(cfg, sampler.training_mixture(cfg), count, stream=901, seed=seed)


# --- against the definition ----------------------------------------------------------------------------


def attend(w, layer, x):
    """One layer's attention by its definition, position by position: what it writes, and its weights."""
    out, pattern = np.zeros_like(x), []
    for head in range(len(w[f"blocks.{layer}.attn.W_Q"])):
        q, k, v, o = (w[f"blocks.{layer}.attn.W_{name}"][head] for name in "QKVO")
        rows = np.zeros((len(x), len(x)))
        for i in range(len(x)):
            scores = [(x[i] @ q) @ (x[j] @ k) / math.sqrt(q.shape[1]) for j in range(i + 1)]
            shares = np.exp(np.array(scores) - max(scores))
            shares /= shares.sum()
            rows[i, : i + 1] = shares
            out[i] += sum(share * (x[j] @ v @ o) for j, share in enumerate(shares))
        pattern.append(rows)
    return out, np.array(pattern)


def by_definition(weights, sequence):
    """Both patterns, the layer-2 output, the residual before the MLP and the logits of one sequence, at `=`."""
    w = {name: tensor.numpy() for name, tensor in weights.items()}
    x = w["embed.W_E"][sequence.numpy()] + w["pos_embed.W_pos"]
    out1, pattern1 = attend(w, 0, x)
    x = x + out1
    out2, pattern2 = attend(w, 1, x)
    middle = x[-1] + out2[-1]
    end = middle + np.maximum(middle @ w["blocks.1.mlp.W_in"], 0) @ w["blocks.1.mlp.W_out"]
    return pattern1, pattern2[:, -1], out2[-1], middle, end @ w["unembed.W_U"]


@pytest.mark.parametrize("cfg", [SMALL, SMALL.replace(heads=1), SMALL.replace(heads=4, seed=3, length=13)])
def test_every_part_of_the_trace_is_as_defined(cfg):
    weights, tokens = weights_of(cfg), tokens_of(cfg)
    trace = model.trace(weights, tokens)
    for i, sequence in enumerate(tokens):
        for ours, theirs in zip(trace, by_definition(weights, sequence), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-10, atol=1e-12)


def test_the_papers_sizes():
    assert model.shapes(Config()) == {
        "embed.W_E": (74, 128),
        "pos_embed.W_pos": (16, 128),
        **{f"blocks.{i}.attn.W_{name}": (1, 128, 128) for i in (0, 1) for name in "QKVO"},
        "blocks.1.mlp.W_in": (128, 512),
        "blocks.1.mlp.W_out": (512, 128),
        "unembed.W_U": (128, 59),
    }
    four = model.shapes(Config(heads=4))
    assert four["blocks.0.attn.W_V"] == (4, 128, 32)
    assert four["blocks.0.attn.W_O"] == (4, 32, 128)


@given(st.integers(1, 6), st.integers(1, 30), st.integers(2, 30), st.integers(4, 26))
@settings(max_examples=25, deadline=None)
def test_init_has_the_shapes_listed(heads, width, p, variables):
    cfg = Config(p=p, variables=variables, heads=heads, d_model=4 * heads * width, not_first="", not_second="")
    assert {name: tuple(tensor.shape) for name, tensor in model.init(cfg).items()} == model.shapes(cfg)


# --- initial weights -----------------------------------------------------------------------------------


def test_initial_weights_are_normal_with_the_given_scale():
    for cfg in (Config(), Config(init_scale=2.0, d_model=64, seed=5)):
        scale = cfg.init_scale / math.sqrt(cfg.d_model)
        for name, tensor in model.init(cfg).items():
            z = tensor.double().flatten() / scale
            n = len(z)
            assert abs(z.mean()) < 5 / math.sqrt(n), name
            assert abs(z.pow(2).mean() - 1) < 5 * math.sqrt(2 / n), name
            assert abs(z.pow(4).mean() - 3) < 5 * math.sqrt(96 / n), name


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = model.init(Config(seed=4))
    torch.manual_seed(2)
    assert all(torch.equal(first[name], tensor) for name, tensor in model.init(Config(seed=4, lr=0.5)).items())
    other = model.init(Config(seed=5))
    flat = [torch.cat([tensor.flatten() for tensor in weights.values()]) for weights in (first, other)]
    assert abs(torch.corrcoef(torch.stack(flat))[0, 1]) < 5 / math.sqrt(len(flat[0]))


# --- stacked weights -----------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 5), st.booleans())
@settings(max_examples=15, deadline=None)
def test_stacked_weights_give_each_seeds_trace(seeds, count, own_tokens):
    many = [weights_of(SMALL.replace(seed=seed)) for seed in range(seeds)]
    stacked = model.stack(many)
    tokens = [tokens_of(SMALL, count, seed if own_tokens else 0) for seed in range(seeds)]
    together = model.trace(stacked, torch.stack(tokens) if own_tokens else tokens[0])
    for i, weights in enumerate(many):
        for ours, theirs in zip(together, model.trace(weights, tokens[i]), strict=True):
            torch.testing.assert_close(ours[i], theirs, rtol=1e-10, atol=1e-12)
    assert torch.equal(model.logits(stacked, tokens[0])[0], model.trace(stacked, tokens[0]).logits[0])


def test_unstack_undoes_stack():
    many = [model.init(SMALL.replace(seed=seed)) for seed in range(3)]
    for before, after in zip(many, model.unstack(model.stack(many)), strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


# --- matrices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [1, 2])
def test_qk_and_ov_are_products_of_the_layers_own_weights(layer):
    many = [weights_of(SMALL.replace(seed=seed)) for seed in range(2)]
    stacked = model.stack(many)
    for i, weights in enumerate(many):
        for head in range(SMALL.heads):
            q, k, v, o = (weights[f"blocks.{layer - 1}.attn.W_{name}"][head] for name in "QKVO")
            for ours, theirs in ((model.QK, q @ k.T), (model.OV, v @ o)):
                torch.testing.assert_close(ours(weights, layer)[head], theirs)
                torch.testing.assert_close(ours(stacked, layer)[i, head], theirs)


def test_layer_1_scores_are_rows_times_qk():
    """log of a pattern's ratio = difference of x_q QK x_k' / sqrt(d_head)."""
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 3)
    rows = weights["embed.W_E"][tokens] + weights["pos_embed.W_pos"]
    score = torch.einsum("bqd, hde, bke -> bhqk", rows, model.QK(weights, 1), rows) / math.sqrt(SMALL.d_head)
    log = model.trace(weights, tokens).pattern1.log()
    torch.testing.assert_close((log - log[..., :1])[..., -1, :], (score - score[..., :1])[..., -1, :])


@given(
    st.lists(st.integers(1, 3), min_size=0, max_size=2),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.sampled_from(["both", "lone left", "lone right"]),
)
@settings(deadline=None)
def test_times_is_matmul(leading, sizes, lone):
    i, j, k = sizes
    a, b = torch.randn(*leading, i, j).double(), torch.randn(*leading, j, k).double()
    a = a if lone != "lone left" else a[(0,) * len(leading)].view(*(1,) * len(leading), i, j)
    b = b if lone != "lone right" else b[(0,) * len(leading)].view(*(1,) * len(leading), j, k)
    torch.testing.assert_close(model.times(a, b), a @ b)


# --- what holds for any weights ------------------------------------------------------------------------


def test_patterns_are_causal_and_sum_to_one():
    trace = model.trace(weights_of(SMALL), tokens_of(SMALL, 20))
    assert not trace.pattern1.triu(1).any()
    for pattern in (trace.pattern1, trace.pattern2):
        assert (pattern >= 0).all()
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))


def test_sequences_of_a_batch_do_not_mix():
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 9)
    order = torch.tensor([4, 0, 8, 2])
    torch.testing.assert_close(model.logits(weights, tokens[order]), model.logits(weights, tokens)[order])


def test_a_token_that_is_absent_gets_no_gradient():
    weights = {name: tensor.requires_grad_() for name, tensor in weights_of(SMALL).items()}
    tokens = task.parse("a=1, b=2, b+3=?", SMALL)[None]
    model.logits(weights, tokens).pow(2).sum().backward()
    present = torch.zeros(SMALL.vocabulary, dtype=torch.bool)
    present[tokens] = True
    assert torch.equal(weights["embed.W_E"].grad.abs().sum(1) > 0, present)
    assert (weights["pos_embed.W_pos"].grad.abs().sum(1) > 0).all()


def test_renaming_tokens_together_with_their_rows_changes_nothing():
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 8)
    renamed = torch.arange(SMALL.vocabulary)
    renamed[SMALL.FIRST_VARIABLE :] = renamed[SMALL.FIRST_VARIABLE :].flip(0)
    moved = weights | {"embed.W_E": weights["embed.W_E"][renamed]}
    torch.testing.assert_close(model.logits(moved, renamed[tokens]), model.logits(weights, tokens))


def test_bfloat16_stays_close():
    weights, tokens = model.init(Config()), tokens_of(Config(), 64)
    exact = model.logits(weights, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.logits(weights, tokens)
    assert (rough.float() - exact).norm() / exact.norm() < 0.05
