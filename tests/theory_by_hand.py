"""Small setups of the theorem in every reading, and its model written out, sharing nothing with the code it checks."""

import math

import torch
from hypothesis import settings
from hypothesis import strategies as st

from mc_lib import theory, theory_batch
from mc_lib.theory import Setup

F64 = torch.float64
KINDS = (0, 1, 2)
few = settings(max_examples=12, deadline=None)
many = settings(max_examples=40, deadline=None)


def setups(most_p=6, most_length=9, least_variables=1, least_length=6):
    """Small setups in every reading."""
    return st.builds(
        Setup,
        p=st.integers(2, most_p),
        variables=st.integers(least_variables, 4),
        length=st.integers(least_length, most_length),
        lam=st.floats(0, 5),
        beta=st.floats(1e-3, 3),
        order=st.sampled_from(["fixed", "random"]),
        carried=st.sampled_from([0.0, 0.5, 1.0]),
        attends_self=st.booleans(),
    )


def close(found, expected, tolerance=1e-12):
    scale = expected.abs().max().clamp(min=1e-300)
    assert ((found - expected).abs().max() / scale).item() <= tolerance


# The model once more, written out with vectors and sharing nothing with the code under test.
def written_out(s, tokens, E):
    """x_t for every position of every sequence, from embeddings E in the basis's order."""
    V0, P0 = s.p + 3, s.p + 3 + s.variables
    tn, tv = P0 + s.length, P0 + s.length + s.p

    def tilde(token):
        return E[tn + token] if token < s.p else E[tv + token - V0]

    rows = []
    for seq in tokens.tolist():
        xs = [E[token] + E[P0 + t] for t, token in enumerate(seq)]
        for t in range(1, s.length - 4):
            if seq[t] < s.p:
                xs[t] = xs[t] + tilde(seq[t - 1])
        xs[-1] = xs[-1] + s.carried * (tilde(seq[-3]) + tilde(seq[-2]))
        rows.append(torch.stack(xs))
    return torch.stack(rows)


def values_of(s, tokens):
    """The two numbers to be added, read by hand."""
    result = []
    for seq in tokens.tolist():
        bound = {seq[t]: seq[t + 1] for t in range(s.length - 5) if seq[t] >= s.p + 3}
        result.append([token if token < s.p else bound[token] for token in seq[-3:-1]])
    return torch.tensor(result)


def autograd(s, W, tokens, E):
    """Gradient with respect to W in the embedding space, W_OV an orthonormal remap."""
    x = written_out(s, tokens, E)
    W = W.clone().requires_grad_()
    seen = torch.einsum("bti,ij,bj->bt", x, W, x[:, -1])
    if not s.attends_self:
        seen = torch.cat([seen[:, :-1], torch.full_like(seen[:, :1], -math.inf)], 1)
    h = torch.einsum("bt,bti->bi", seen.softmax(1), x)
    remap = torch.linalg.qr(torch.randn(len(E[0]), len(E[0]), dtype=F64, generator=seed(7))).Q
    logits = s.beta * theory.mlp_complex(E[: s.p] @ remap, h @ remap)
    y = values_of(s, tokens).sum(1) % s.p
    torch.nn.functional.cross_entropy(logits, y).backward()
    return W.grad


def seed(n):
    return torch.Generator().manual_seed(n)


def mixed(s, count=6, n=0):
    kinds = KINDS if s.variables > 1 and s.length >= 8 else (0, 1)
    return torch.cat([theory_batch.sample(s, kind, count, n, max(kind, 1)) for kind in kinds])
