"""A model built by hand that looks variables up and adds: every measure of it is known, and each part can be broken.

Its rows are one-hot: tokens, positions, then the variable that layer 1 copied, the numbers that layer 2 gathered,
and the result. Needs d_model = vocabulary + length + variables + 2 p and one neuron for each unordered number pair.
"""

import itertools

import torch


def factored(matrix, cfg):
    """[head d d_head] and [head d_head d] whose first head multiplies to the matrix; further heads are zero."""
    u, s, v = torch.linalg.svd(matrix)
    assert s[cfg.d_head :].sum() < 1e-9
    left, right = torch.zeros(2, cfg.heads, cfg.d_model, cfg.d_head, dtype=torch.float64)
    left[0], right[0] = (u * s)[:, : cfg.d_head], v.T[:, : cfg.d_head]
    return left, right


def built(cfg, back=1, watched=(-3, -2), shift=0, moved=1.0, off=0):
    """A model that looks variables up and adds, with one-hot rows; each argument breaks one part of it."""
    v, length, n, p = cfg.vocabulary, cfg.length, cfg.variables, cfg.p
    copied, number, result = v + length, v + length + n, v + length + n + p
    assert result + p == cfg.d_model
    assert cfg.d_mlp == p * (p + 1) // 2
    rows = torch.eye(cfg.d_model, dtype=torch.float64)
    qk1, ov1, qk2, ov2 = torch.zeros(4, cfg.d_model, cfg.d_model, dtype=torch.float64)
    for i in range(back, cfg.room):
        qk1[v + i, v + i - back] = 1
    for at in (cfg.room, cfg.room + 1, cfg.room + 2):  # `+` and the operands look at `+`, which tells nothing
        qk1[v + at, v + cfg.room] = 1
    for at in watched:
        qk1[v + length - 1, v + length + at] = 1
    for i in range(n):
        ov1[cfg.FIRST_VARIABLE + i, copied + i] = moved
        qk2[copied + i, copied + (i + shift) % n] = 2
        qk2[cfg.EQUALS, cfg.FIRST_VARIABLE + i] = -1
    qk2[cfg.EQUALS, [v + length - 3, v + length - 2]] = 1
    qk2[cfg.EQUALS, cfg.EQUALS] = -2  # `=` holds the copied variables too
    for i in range(p):
        ov2[i, number + i] = 1
    w = {"embed.W_E": rows[:v], "pos_embed.W_pos": rows[v : v + length], "unembed.W_U": rows[:, result:]}
    into, out = torch.zeros(2, cfg.d_mlp, cfg.d_model, dtype=torch.float64)
    for neuron, (a, b) in enumerate(itertools.combinations_with_replacement(range(p), 2)):
        into[neuron, number:result] = -1
        into[neuron, [number + a, number + b]] = 1
        out[neuron, result + (a + b + off) % p] = 10.0 if a == b else 1.0
    w |= {"blocks.1.mlp.W_in": into.T, "blocks.1.mlp.W_out": out}
    for layer, qk, ov in ((0, qk1, ov1), (1, qk2, ov2)):
        w[f"blocks.{layer}.attn.W_Q"], w[f"blocks.{layer}.attn.W_K"] = factored(200 * qk, cfg)
        w[f"blocks.{layer}.attn.W_V"], o = factored(ov, cfg)
        w[f"blocks.{layer}.attn.W_O"] = o.mT
    return w
