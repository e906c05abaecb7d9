"""The hooked view: the same function as model.py, and TransformerLens's ways of reading and editing it."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import ActivationCache, patching

from mc_lib import model, sampler, task
from mc_lib.config import Config, Refusal
from mc_lib.hooked import hooked

SMALL = Config(p=7, variables=5, length=10, not_first="e", not_second="a", d_model=12, heads=2, d_mlp=20)
BLOCK = ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post")
ATTENTION = ("q_input", "k_input", "v_input", "q", "k", "v", "attn_scores", "pattern", "z", "result")
NAMES = [
    "hook_embed",
    "hook_pos_embed",
    *(f"blocks.{i}.{name}" for i in (0, 1) for name in BLOCK),
    *(f"blocks.{i}.attn.hook_{name}" for i in (0, 1) for name in ATTENTION),
    "blocks.1.mlp.hook_pre",
    "blocks.1.mlp.hook_post",
]


def tokens_of(cfg, count=64, seed=0):
    return sampler.sample(cfg, sampler.training_mixture(cfg), count, stream=900, seed=seed)


def weights_of(cfg, dtype=torch.float64, scale=1.5):
    """Initial weights, larger than in training, so that attention is far from uniform."""
    return {name: (scale * tensor).to(dtype).requires_grad_() for name, tensor in model.init(cfg).items()}


def stacked_of(cfg, dtype=torch.float64, seeds=3):
    many = [weights_of(cfg.replace(seed=seed), dtype) for seed in range(seeds)]
    return {name: tensor.detach().requires_grad_() for name, tensor in model.stack(many).items()}


def gradients(weights, logits):
    """Gradients of a function in which every logit counts differently."""
    coefficients = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits).sin()
    return dict(zip(weights, torch.autograd.grad((logits * coefficients).sum(), list(weights.values())), strict=True))


def both_ways(weights, tokens):
    """Logits at `=` by model.py and by the hooked view, single or stacked."""
    fast = model.logits(weights, tokens)
    if weights["embed.W_E"].dim() == 2:
        return fast, hooked(weights)(tokens)[:, -1]
    per_seed = tokens if tokens.dim() == 3 else tokens.expand(len(fast), -1, -1)
    return fast, torch.stack([hooked(weights, seed=i)(t)[:, -1] for i, t in enumerate(per_seed)])


def assert_same_function(weights, tokens):
    fast, slow = both_ways(weights, tokens)
    assert fast.shape == slow.shape
    assert (fast - slow).abs().max() <= 1e-10 * slow.abs().max().clamp(min=1)
    ours, theirs = gradients(weights, fast), gradients(weights, slow)
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).abs().max() <= 1e-10 * gradient.abs().max().clamp(min=1), name


# --- equality of the two views -------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 4])
def test_float32_logits_agree_to_1e_5(heads):
    cfg = Config(heads=heads)
    tokens = tokens_of(cfg, 32)
    for weights in (model.init(cfg), model.stack([model.init(cfg.replace(seed=seed)) for seed in (0, 1)])):
        fast, slow = both_ways(weights, tokens)
        assert (fast - slow).abs().max() <= 1e-5


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("stacked", [False, True])
def test_float64_logits_and_every_gradient_agree_to_1e_10(heads, stacked):
    cfg = Config(heads=heads)
    weights = stacked_of(cfg, seeds=2) if stacked else weights_of(cfg)
    assert_same_function(weights, tokens_of(cfg, 24))
    if stacked:
        assert_same_function(weights, torch.stack([tokens_of(cfg, 8, seed) for seed in (0, 1)]))


@st.composite
def configs(draw):
    heads = draw(st.sampled_from([1, 2, 3]))
    return Config(
        p=draw(st.integers(2, 13)),
        variables=draw(st.integers(4, 8)),
        length=draw(st.integers(8, 19)),
        not_first="a",
        not_second="b",
        heads=heads,
        d_model=heads * draw(st.integers(2, 5)) * 2,
        d_mlp=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 99)),
    )


@given(configs(), st.booleans(), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_any_config_agrees(cfg, stacked, count):
    weights = stacked_of(cfg) if stacked else weights_of(cfg)
    assert_same_function(weights, tokens_of(cfg, count))


@given(configs())
@settings(max_examples=15, deadline=None)
def test_trace_agrees_with_the_cache(cfg):
    weights, tokens = weights_of(cfg), tokens_of(cfg, 5)
    trace = model.trace(weights, tokens)
    logits, cache = hooked(weights).run_with_cache(tokens)
    expected = (
        cache["pattern", 0],
        cache["pattern", 1][:, :, -1],
        cache["attn_out", 1][:, -1],
        cache["resid_mid", 1][:, -1],
        logits[:, -1],
    )
    for name, ours, theirs in zip(trace._fields, trace, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=name)


def test_matrices_are_those_of_the_fast_model():
    weights = weights_of(SMALL)
    for layer, block in enumerate(hooked(weights).blocks, start=1):
        torch.testing.assert_close(block.attn.QK.AB, model.QK(weights, layer))
        torch.testing.assert_close(block.attn.OV.AB, model.OV(weights, layer))


# --- hooks and cache -----------------------------------------------------------------------------------


def test_the_cache_holds_every_name_and_shape():
    view, tokens = hooked(weights_of(SMALL)), tokens_of(SMALL, 3)
    logits, cache = view.run_with_cache(tokens)
    assert isinstance(cache, ActivationCache)
    assert set(view.hook_dict) == set(cache.keys()) == set(NAMES)
    assert logits.shape == (3, 10, 7)
    assert cache["q", 0].shape == (3, 10, 2, 6)
    assert cache["result", 0].shape == cache["blocks.1.attn.hook_k_input"].shape == (3, 10, 2, 12)
    assert cache["pattern", -1] is cache["blocks.1.attn.hook_pattern"]
    assert cache["blocks.1.mlp.hook_post"].shape == (3, 10, 20)
    assert (cache["attn_scores", 0].triu(1)[0, 0, 0, 1:] == -torch.inf).all()
    plain = view.run_with_cache(tokens, return_cache_object=False, names_filter="hook_embed")[1]
    assert isinstance(plain, dict)
    assert list(plain) == ["hook_embed"]
    lone = view.run_with_cache(tokens[:1], remove_batch_dim=True)[1]
    torch.testing.assert_close(lone["resid_post", 1], cache["resid_post", 1][0])


@pytest.mark.parametrize("name", NAMES)
def test_editing_any_activation_changes_the_answer(name):
    view, tokens = hooked(weights_of(SMALL)), tokens_of(SMALL, 4)
    seen = []

    def edit(activation, hook):
        seen.append(hook.name)
        ramp = torch.linspace(-1, 1, activation.numel(), dtype=activation.dtype).view_as(activation)
        return activation + ramp.sin()

    untouched = view(tokens)[:, -1]
    same = view.run_with_hooks(tokens, fwd_hooks=[(name, lambda activation, hook: activation.clone())])
    edited = view.run_with_hooks(tokens, fwd_hooks=[(name, edit)])
    assert seen == [name]
    assert torch.equal(same[:, -1], untouched)
    assert ((edited[:, -1] - untouched).abs().amax(1) > 1e-6).all()
    assert torch.equal(view(tokens)[:, -1], untouched)
    assert not view.list_hooks()


@pytest.mark.parametrize("cut", [f"blocks.{i}.hook_resid_{part}" for i in (0, 1) for part in ("pre", "mid", "post")])
def test_the_residual_stream_cuts_the_model_in_two(cut):
    view = hooked(weights_of(SMALL))
    first, second = tokens_of(SMALL, 6), tokens_of(SMALL, 6, seed=1)
    logits, cache = view.run_with_cache(first)
    patched = view.run_with_hooks(second, fwd_hooks=[(cut, lambda activation, hook: cache[hook.name])])
    assert torch.equal(patched, logits)


def test_a_head_can_be_knocked_out():
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 6)
    without = {name: tensor.detach().clone() for name, tensor in weights.items()}
    without["blocks.0.attn.W_O"][1] = 0

    def silence(z, hook, head):
        z = z.clone()
        z[:, :, head] = 0
        return z

    hook = ("blocks.0.attn.hook_z", partial(silence, head=1))
    torch.testing.assert_close(
        hooked(weights).run_with_hooks(tokens, fwd_hooks=[hook])[:, -1], model.logits(without, tokens)
    )


def test_an_edited_pattern_moves_what_is_read():
    """With all of layer 2's attention on one position, attention writes that position's row times OV."""
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 4)

    def look_at_3(pattern, hook):
        return torch.zeros_like(pattern).index_fill(3, torch.tensor([3]), 1.0)

    with (view := hooked(weights)).hooks(fwd_hooks=[("blocks.1.attn.hook_pattern", look_at_3)]):
        _, cache = view.run_with_cache(tokens)
    written = cache["resid_pre", 1][:, 3] @ model.OV(weights, 2).sum(0)
    torch.testing.assert_close(cache["attn_out", 1][:, -1], written)


def test_gradients_at_hook_points():
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 4)
    loss, cache = hooked(weights).run_with_cache(tokens, return_type="loss", incl_bwd=True)
    expected = torch.nn.functional.cross_entropy(model.logits(weights, tokens), task.answers(tokens, SMALL))
    torch.testing.assert_close(loss, expected)
    resid_gradient = cache["blocks.1.hook_resid_post_grad"]
    assert not resid_gradient[:, :-1].any()
    probabilities = model.logits(weights, tokens).softmax(-1)
    error = (probabilities - torch.nn.functional.one_hot(task.answers(tokens, SMALL), SMALL.p)) / 4
    torch.testing.assert_close(resid_gradient[:, -1], error @ weights["unembed.W_U"].T)
    torch.testing.assert_close(weights["unembed.W_U"].grad, cache["resid_post", 1][:, -1].T @ error)


# --- the tensors are shared ----------------------------------------------------------------------------


def test_the_module_holds_the_given_tensors():
    weights, tokens = weights_of(SMALL), tokens_of(SMALL, 4)
    view = hooked(weights)
    assert view.state_dict().keys() == weights.keys()
    assert all(dict(view.named_buffers())[name] is tensor for name, tensor in weights.items())
    with torch.no_grad():
        weights["unembed.W_U"].zero_()
    assert not view(tokens).any()


def test_gradients_reach_stacked_weights():
    weights = stacked_of(SMALL)
    hooked(weights, seed=1)(tokens_of(SMALL, 4), return_type="loss").backward()
    for name, tensor in weights.items():
        assert tensor.grad[1].any(), name
        assert not tensor.grad[[0, 2]].any(), name


# --- TransformerLens's own tools -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def paper():
    """A view of the paper's widths with 4 heads, a cache, and its tokens."""
    cfg = Config(heads=4)
    view, tokens = hooked(weights_of(cfg, scale=1.0)), tokens_of(cfg, 3)
    return view, tokens, view.run_with_cache(tokens)[1]


def test_the_cache_takes_the_residual_apart(paper):
    view, tokens, cache = paper
    final = cache["resid_post", 1]
    parts, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed", "pos_embed", "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out"]
    torch.testing.assert_close(parts.sum(0), final)
    torch.testing.assert_close(cache.accumulated_resid()[-1], final)
    torch.testing.assert_close(cache.stack_head_results(incl_remainder=True).sum(0), final)
    torch.testing.assert_close(cache.get_full_resid_decomposition(expand_neurons=False).sum(0), final)
    assert cache.stack_activation("pattern").shape == (2, 3, 4, 16, 16)


def test_logit_attributions_add_up(paper):
    view, tokens, cache = paper
    answers = task.answers(tokens, view.task)
    attributed = cache.logit_attrs(cache.decompose_resid(pos_slice=-1), answers, pos_slice=-1, has_batch_dim=False)
    torch.testing.assert_close(attributed.sum(0), view(tokens)[:, -1].gather(1, answers[:, None])[:, 0])


def test_activation_patching_runs_and_is_exact_at_the_end(paper):
    view, tokens, cache = paper

    def metric(logits):
        return logits[:, -1, 0].mean().detach()

    other = tokens_of(view.task, 3, seed=1)
    patched = patching.get_act_patch_resid_pre(view, other, cache, metric)
    assert patched.shape == (2, 16)
    # Before layer 1 the row of `=` is the same in every sequence: patching it changes nothing.
    torch.testing.assert_close(patched[0, -1].double(), metric(view(other)))
    assert patching.get_act_patch_attn_head_pattern_all_pos(view, other, cache, metric).shape == (2, 4)
    _, corrupted = view.run_with_cache(other)
    direct = patching.get_act_patch_direct_path(view, other, cache, corrupted, metric, 0, 2, "k", verbose=False)
    assert (direct[1] != metric(view(other)).float()).all()


def test_text_goes_in(paper):
    view, _, _ = paper
    tokens = view.to_tokens("c=1, b=17, b+19=?")
    assert torch.equal(tokens[0], task.parse("c=1, b=17, b+19=?", view.task))
    assert view.to_str_tokens(tokens[0])[-8:] == ["c", "1", "b", "17", "+", "b", "19", "="]
    assert torch.equal(view("c=1, b=17, b+19=?"), view(tokens))
    assert view.to_tokens(["1+2=?", "3+4=?"]).shape == (2, 16)


# --- refusals ------------------------------------------------------------------------------------------


def changed(**changes):
    """The small weights with tensors replaced, added, or (None) left out."""
    weights = weights_of(SMALL) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in weights.items() if tensor is not None}


REFUSED = {
    "missing": (lambda: hooked(changed(embed__W_E=None)), "embed.W_E"),
    "foreign": (lambda: hooked(changed(blocks__0__attn__b_Q=torch.zeros(2, 6))), "blocks.0.attn.b_Q"),
    "shape": (lambda: hooked(changed(blocks__1__mlp__W_out=torch.zeros(20, 13))), "(20, 13)"),
    "stacked": (lambda: hooked(stacked_of(SMALL)), "seed=0"),
    "no such seed": (lambda: hooked(stacked_of(SMALL), seed=3), "0..2"),
    "negative seed": (lambda: hooked(stacked_of(SMALL), seed=-1), "0..2"),
    "not stacked": (lambda: hooked(weights_of(SMALL), seed=0), "leave seed out"),
    "too long": (lambda: hooked(weights_of(SMALL))(torch.zeros(1, 11, dtype=torch.long)), "10 positions"),
    "no such token": (lambda: hooked(weights_of(SMALL))(torch.full((1, 10), 15)), "0..14"),
    "negative token": (lambda: hooked(weights_of(SMALL))(torch.full((1, 10), -1)), "0..14"),
    "return type": (lambda: hooked(weights_of(SMALL))("1+2=?", return_type="both"), "'both'"),
    "text": (lambda: hooked(weights_of(SMALL))("1+9=?"), "9"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line(case):
    act, names = REFUSED[case]
    with pytest.raises(Refusal) as refusal:
        act()
    assert names in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
