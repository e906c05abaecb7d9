"""The model: a dict of weights, and the exact function that they compute at `=`.

Two attention layers and, after the second, a ReLU MLP; no biases, no LayerNorm, no layer-1 MLP. Weights are a
dict of tensors under TransformerLens's names; stacked weights carry a leading seed dimension on every tensor.

Only what the loss sees is computed, and everything is a table lookup until the MLP. Without LayerNorm all
that layer 1 projects is linear in the rows [E; P] (tokens and positions: 90 rows in the paper's setting), so its
scores are sums of entries of [E; P] QK1 [E; P]', and what an attention head writes is a histogram of its weights
over the 90 rows, times the rows' images. A test holds this to the usual way of computing in float64.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib.config import Config

Weights = dict[str, Tensor]


class Trace(NamedTuple):
    """What the forward pass holds; stacked weights add a leading seed dimension."""

    pattern1: Float[Tensor, "*seed batch head query key"]
    pattern2: Float[Tensor, "*seed batch head key"]
    attn_out2: Float[Tensor, "*seed batch d"]
    resid_mid: Float[Tensor, "*seed batch d"]
    logits: Float[Tensor, "*seed batch p"]


def shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """The shape of every weight."""
    d, h, dh = cfg.d_model, cfg.heads, cfg.d_head
    attention = {"W_Q": (h, d, dh), "W_K": (h, d, dh), "W_V": (h, d, dh), "W_O": (h, dh, d)}
    return {
        "embed.W_E": (cfg.vocabulary, d),
        "pos_embed.W_pos": (cfg.length, d),
        **{f"blocks.{i}.attn.{name}": shape for i in (0, 1) for name, shape in attention.items()},
        "blocks.1.mlp.W_in": (d, cfg.d_mlp),
        "blocks.1.mlp.W_out": (cfg.d_mlp, d),
        "unembed.W_U": (d, cfg.p),
    }


def init(cfg: Config) -> Weights:
    """Initial weights of cfg.seed: N(0, init_scale / sqrt(d_model)) throughout."""
    generator = torch.Generator().manual_seed(cfg.seed)
    scale = cfg.init_scale / math.sqrt(cfg.d_model)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes(cfg).items()}


def stack(many: list[Weights]) -> Weights:
    return {name: torch.stack([weights[name] for weights in many]) for name in many[0]}


def unstack(weights: Weights) -> list[Weights]:
    count = len(weights["embed.W_E"])
    return [{name: tensor[i] for name, tensor in weights.items()} for i in range(count)]


def QK(weights: Weights, layer: int) -> Float[Tensor, "*seed head d d"]:
    """The layer's (1 or 2) query-key matrix W_Q W_K': the score of rows x, y is x QK y' / sqrt(d_head)."""
    name = f"blocks.{layer - 1}.attn.W_"
    return times(weights[name + "Q"], weights[name + "K"].mT)


def OV(weights: Weights, layer: int) -> Float[Tensor, "*seed head d d"]:
    """The layer's (1 or 2) output-value matrix W_V W_O: a row x that is attended to writes x OV."""
    name = f"blocks.{layer - 1}.attn.W_"
    return times(weights[name + "V"], weights[name + "O"])


def times(a: Float[Tensor, "*left i j"], b: Float[Tensor, "*right j k"]) -> Float[Tensor, "*both i k"]:
    """a @ b. A lone matrix behind leading ones goes to `mm`: `bmm`'s backward is 30 times slower for it on CPU."""
    dims = max(a.dim(), b.dim())
    if a.numel() == a.shape[-2] * a.shape[-1] and b.numel() == b.shape[-2] * b.shape[-1]:
        product = a.view(a.shape[-2:]) @ b.view(b.shape[-2:])
        return product.view(*(1,) * (dims - 2), *product.shape)
    return a @ b


def logits(weights: Weights, tokens: Int[Tensor, "... batch pos"]) -> Float[Tensor, "*seed batch p"]:
    """Logits at `=`. With stacked weights, tokens are [batch pos] for all seeds alike, or [seed batch pos]."""
    return trace(weights, tokens).logits


def trace(weights: Weights, tokens: Int[Tensor, "... batch pos"]) -> Trace:
    """The forward pass at `=`, with both attention patterns and the residual on the way."""
    if weights["embed.W_E"].dim() == 3:
        seeds = len(weights["embed.W_E"])
        return _trace(weights, tokens if tokens.dim() == 3 else tokens.expand(seeds, -1, -1))
    single = _trace({name: tensor[None] for name, tensor in weights.items()}, tokens[None])
    return Trace(*(field[0] for field in single))


# --- the pass ------------------------------------------------------------------------------------------


class Tables(NamedTuple):
    """Everything that depends on the weights alone. A row is a token or a position; s is the seed."""

    score_tokens: Float[Tensor, "s head pos_token_token"]
    score_places: Float[Tensor, "s head pos_token key"]
    moved1: Float[Tensor, "s head_row d"]
    keys2: Float[Tensor, "s head_source_row d"]
    moved2: Float[Tensor, "s head_source_row d"]
    last: Float[Tensor, "s 1 d"]


def _tables(w: Weights) -> Tables:
    rows = torch.cat([w["embed.W_E"], w["pos_embed.W_pos"]], 1)
    seeds, length, d = w["pos_embed.W_pos"].shape
    vocabulary = w["embed.W_E"].shape[1]
    equals = w["unembed.W_U"].shape[-1] + 1

    one = rows[:, None]
    query, key = times(one, w["blocks.0.attn.W_Q"]), times(one, w["blocks.0.attn.W_K"])
    score = times(query / math.sqrt(query.shape[-1]), key.mT)
    by_token, by_place = score[:, :, :vocabulary], score[:, :, vocabulary:]
    both = by_token[:, :, None] + by_place[:, :, :, None]
    later = torch.ones(length, length, device=rows.device, dtype=torch.bool).triu(1)
    score_tokens = both[..., :vocabulary].flatten(2)
    score_places = both[..., vocabulary:].masked_fill(later[:, None], -torch.inf).flatten(2, 3)

    moved1 = times(one, OV(w, 1))
    sources = torch.cat([one, moved1], 1).flatten(1, 2)[:, None]
    query2, key2 = w["blocks.1.attn.W_Q"], w["blocks.1.attn.W_K"]
    keys2 = times(times(sources, key2), (query2 / math.sqrt(query2.shape[-1])).mT)
    moved2 = times(sources, OV(w, 2))
    last = rows[:, equals] + rows[:, -1]
    return Tables(
        score_tokens, score_places, moved1.flatten(1, 2), keys2.flatten(1, 2), moved2.flatten(1, 2), last[:, None]
    )


def _pattern1(tables: Tables, tokens: Int[Tensor, "s batch pos"]) -> Float[Tensor, "s batch head query key"]:
    """Layer-1 attention: the score of query i and key j is looked up by their tokens, and by token i and place j."""
    seeds, heads, _ = tables.score_tokens.shape
    length = tokens.shape[-1]
    vocabulary = tables.score_places.shape[2] // length
    place = torch.arange(length, device=tokens.device)
    query = place * vocabulary + tokens
    pair = (query[..., None] * vocabulary + tokens[..., None, :]).flatten(1)
    by_token = tables.score_tokens.gather(2, pair[:, None].expand(-1, heads, -1))
    row = torch.arange(seeds * heads, device=tokens.device).view(seeds, heads, 1) * (length * vocabulary)
    row = row + query.flatten(1)[:, None]
    by_place = tables.score_places.flatten(0, 2).index_select(0, row.flatten())
    score = by_token.view(seeds, heads, -1, length, length) + by_place.view(seeds, heads, -1, length, length)
    return score.softmax(-1).transpose(1, 2)


def _histogram(
    weight: Float[Tensor, "s batch part pos"], tokens: Int[Tensor, "s batch pos"], vocabulary: int
) -> Float[Tensor, "s batch part_row"]:
    """Each part's attention weights, added up by token, beside the same by place: its weights over the rows."""
    seeds, batch, parts, _ = weight.shape
    counts = weight.new_zeros(seeds, batch, parts, vocabulary)
    counts = counts.scatter_add(3, tokens[:, :, None].expand(weight.shape), weight)
    return torch.cat([counts, weight], 3).flatten(2)


def _trace(w: Weights, tokens: Int[Tensor, "s batch pos"]) -> Trace:
    vocabulary = w["embed.W_E"].shape[1]
    heads = w["blocks.0.attn.W_Q"].shape[1]
    tables = _tables(w)
    pattern1 = _pattern1(tables, tokens)
    seeds, batch, _, length, _ = pattern1.shape

    moved1 = times(_histogram(pattern1[..., -1, :], tokens, vocabulary), tables.moved1)
    query = tables.last + moved1
    # Layer-2 scores of every row, seen directly (source 0) and through each layer-1 head (sources 1 ..).
    score = times(query, tables.keys2.mT).view(seeds, batch, heads * (1 + heads), -1)
    score = score.gather(3, tokens[:, :, None].expand(*score.shape[:3], length)) + score[..., vocabulary:]
    score = score.view(seeds, batch, heads, 1 + heads, length)
    through = (pattern1[:, :, None] * score[..., 1:, None, :]).sum((3, 5))
    pattern2 = (score[..., 0, :] + through).softmax(-1)

    mixed = (pattern2[:, :, :, None, :, None] * pattern1[:, :, None]).sum(4)
    parts = torch.cat([pattern2[..., None, :], mixed], 3).flatten(2, 3)
    attn_out2 = times(_histogram(parts, tokens, vocabulary), tables.moved2)
    resid_mid = query + attn_out2
    neurons = times(resid_mid, w["blocks.1.mlp.W_in"]).relu_()
    unembed = w["unembed.W_U"]
    scores = times(neurons, times(w["blocks.1.mlp.W_out"], unembed)) + times(resid_mid, unembed)
    return Trace(pattern1, pattern2, attn_out2, resid_mid, scores)
