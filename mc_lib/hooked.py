"""The same weights as a TransformerLens module: every activation at every position, to be read or edited.

A hook point is a named place in the forward pass (`blocks.0.attn.hook_pattern`, `blocks.1.hook_resid_mid`, ...);
a hook is a function that sees the activation there and may return another one in its place; a cache holds what
was seen at all of them. `model.py` computes the same function faster, but only at `=` and with nothing to hook:
a test holds the two together, logits and gradients. Hook names count layers from 0.

The module holds the dict's own tensors, as buffers: what trains the dict shows here, and gradients reach the dict.
The first layer has no MLP. Its `hook_mlp_out` is there all the same, as zeros that a hook may replace, so that
ActivationCache's decompositions of the residual work.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from mc_lib import model, task
from mc_lib.config import Config, Refusal
from mc_lib.model import Weights


def hooked(weights: Weights, seed: int | None = None) -> "HookedModel":
    """The weights of one model, or of one seed of stacked weights, as a module with hooks."""
    names = model.shapes(Config())
    for name in sorted(names.keys() ^ weights.keys()):
        fault = "are missing" if name in names else "have no place in this model"
        raise Refusal(f"weights {name!r} {fault}: give those that mc_lib.model.shapes lists")
    stacked = weights["embed.W_E"].dim() == 3
    if stacked and seed is None:
        raise Refusal("the weights are stacked: name one of the seeds, as in hooked(weights, seed=0)")
    if seed is not None:
        count = len(weights["embed.W_E"]) if stacked else 0
        if not 0 <= seed < count:
            remedy = f"choose 0..{count - 1}" if stacked else "leave seed out, the weights are of one model"
            raise Refusal(f"there is no seed number {seed} in the weights: {remedy}")
        weights = model.unstack(weights)[seed]
    return HookedModel(weights)


def _config(weights: Weights) -> Config:
    """The task and the widths that the weights' shapes tell; raises Refusal where they do not fit together."""
    vocabulary, d_model = weights["embed.W_E"].shape
    p = weights["unembed.W_U"].shape[-1]
    cfg = Config(
        p=p,
        variables=vocabulary - p - 3,
        length=len(weights["pos_embed.W_pos"]),
        not_first="",
        not_second="",
        d_model=d_model,
        heads=len(weights["blocks.0.attn.W_Q"]),
        d_mlp=weights["blocks.1.mlp.W_in"].shape[-1],
    )
    for name, shape in model.shapes(cfg).items():
        if weights[name].shape != shape:
            found = tuple(weights[name].shape)
            raise Refusal(f"weights {name!r} have shape {found}, but beside the others {shape} is needed")
    return cfg


class Attention(nn.Module):
    """A layer's attention; q, k and v read each head's own copy of the residual stream, so that paths can be cut."""

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __init__(self, weights: Weights, layer: int):
        super().__init__()
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            self.register_buffer(name, weights[f"blocks.{layer}.attn.{name}"])
        self.hook_q_input, self.hook_k_input, self.hook_v_input = HookPoint(), HookPoint(), HookPoint()
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        copies = x[:, :, None].expand(-1, -1, len(self.W_Q), -1)
        project = "bphd, hde -> bphe"
        q = self.hook_q(torch.einsum(project, self.hook_q_input(copies), self.W_Q))
        k = self.hook_k(torch.einsum(project, self.hook_k_input(copies), self.W_K))
        v = self.hook_v(torch.einsum(project, self.hook_v_input(copies), self.W_V))
        scores = torch.einsum("bqhe, bkhe -> bhqk", q, k) / math.sqrt(q.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        scores = self.hook_attn_scores(scores.masked_fill(later, -torch.inf))
        pattern = self.hook_pattern(scores.softmax(-1))
        z = self.hook_z(torch.einsum("bhqk, bkhe -> bqhe", pattern, v))
        return self.hook_result(torch.einsum("bphe, hed -> bphd", z, self.W_O)).sum(2)

    @property
    def QK(self) -> FactoredMatrix:
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:
        return FactoredMatrix(self.W_V, self.W_O)


class MLP(nn.Module):
    """The second layer's neurons: ReLU, no biases."""

    W_in: Tensor
    W_out: Tensor

    def __init__(self, weights: Weights, layer: int):
        super().__init__()
        for name in ("W_in", "W_out"):
            self.register_buffer(name, weights[f"blocks.{layer}.mlp.{name}"])
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        return self.hook_post(self.hook_pre(x @ self.W_in).relu()) @ self.W_out


class Block(nn.Module):
    """A layer: attention, then the MLP where there is one, each added to the residual stream."""

    def __init__(self, weights: Weights, layer: int):
        super().__init__()
        self.attn = Attention(weights, layer)
        self.mlp = MLP(weights, layer) if f"blocks.{layer}.mlp.W_in" in weights else None
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_mid, self.hook_mlp_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        x = self.hook_resid_pre(x)
        x = self.hook_resid_mid(x + self.hook_attn_out(self.attn(x)))
        neurons = torch.zeros_like(x) if self.mlp is None else self.mlp(x)
        return self.hook_resid_post(x + self.hook_mlp_out(neurons))


class Table(nn.Module):
    """One weight matrix under TransformerLens's name: `embed.W_E`, `pos_embed.W_pos` or `unembed.W_U`."""

    def __init__(self, weights: Weights, name: str):
        super().__init__()
        self.register_buffer(name.split(".")[1], weights[name])


class HookedModel(HookedRootModule):
    """Weights with hooks. Made by `hooked`; called with tokens [batch pos] it gives logits [batch pos p]."""

    def __init__(self, weights: Weights):
        super().__init__()
        self.task = _config(weights)
        self.embed, self.pos_embed = Table(weights, "embed.W_E"), Table(weights, "pos_embed.W_pos")
        self.unembed = Table(weights, "unembed.W_U")
        self.hook_embed, self.hook_pos_embed = HookPoint(), HookPoint()
        self.blocks = nn.ModuleList(Block(weights, layer) for layer in (0, 1))
        self.cfg = self._lens_config()
        self.eval()
        self.setup()

    def _lens_config(self) -> TransformerLensConfig:
        """What TransformerLens's tools ask of a model."""
        return TransformerLensConfig(
            d_model=self.task.d_model,
            d_head=self.task.d_head,
            n_layers=2,
            n_ctx=self.task.length,
            n_heads=self.task.heads,
            d_mlp=self.task.d_mlp,
            d_vocab=self.task.vocabulary,
            device=str(self.W_E.device),
            use_attn_result=True,
            use_split_qkv_input=True,
            default_prepend_bos=False,
            normalization_type=None,
            dtype=self.W_E.dtype,
        )

    def forward(self, tokens: Int[Tensor, "batch pos"] | str | list[str], return_type: str = "logits") -> Tensor:
        """Logits at every position, [batch pos p]; or with return_type "loss" the mean cross-entropy at `=`."""
        if return_type not in ("logits", "loss"):
            raise Refusal(f"return_type {return_type!r} is unknown: choose 'logits' or 'loss'")
        tokens = self.to_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        place = self.hook_pos_embed(self.W_pos[places].expand(len(tokens), -1, -1))
        x = self.hook_embed(self.W_E[tokens]) + place
        for block in self.blocks:
            x = block(x)
        logits = x @ self.W_U
        if return_type == "logits":
            return logits
        return nn.functional.cross_entropy(logits[:, -1], task.answers(tokens, self.task))

    def run_with_cache(
        self, *model_args: Any, return_cache_object: bool = True, remove_batch_dim: bool = False, **model_kwargs: Any
    ) -> tuple[Tensor, ActivationCache | dict[str, Tensor]]:
        """The logits and every activation on the way, as an ActivationCache or, if asked for, as a plain dict."""
        out, cache = super().run_with_cache(*model_args, remove_batch_dim=remove_batch_dim, **model_kwargs)
        if return_cache_object:
            cache = ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)
        return out, cache

    # --- tokens and text -----------------------------------------------------------------------------------

    def to_tokens(self, sequences: Int[Tensor, "batch pos"] | str | list[str]) -> Int[Tensor, "batch pos"]:
        """Tokens of one text or many; tokens are checked and brought to the weights' device."""
        if isinstance(sequences, str):
            sequences = [sequences]
        if isinstance(sequences, list):
            sequences = torch.stack([task.parse(text, self.task) for text in sequences])
        length = sequences.shape[1]
        if length > self.task.length:
            raise Refusal(f"the sequences have {length} tokens, but the model has {self.task.length} positions")
        wrong = sequences[(sequences < 0) | (sequences >= self.task.vocabulary)]
        if len(wrong):
            raise Refusal(f"there is no token {wrong[0]}: the tokens are 0..{self.task.vocabulary - 1}")
        return sequences.to(self.W_E.device)

    def to_str_tokens(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        names = task.token_names(self.task)
        return [names[token] for token in tokens.tolist()]

    def tokens_to_residual_directions(self, tokens: Int[Tensor, "*shape"] | int) -> Float[Tensor, "*shape d"]:
        """The direction of the residual stream that raises each number's logit."""
        return self.W_U.T[tokens]

    # --- the names that TransformerLens's tools look for ---------------------------------------------------

    def set_use_split_qkv_input(self, on: bool) -> None:
        """Nothing to switch: every head always reads its own copy."""

    def accumulated_bias(self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True) -> Tensor:
        """Zeros [d]: the model has no biases."""
        return self.W_E.new_zeros(self.task.d_model)

    @property
    def W_E(self) -> Float[Tensor, "vocabulary d"]:
        return self.embed.get_buffer("W_E")

    @property
    def W_pos(self) -> Float[Tensor, "pos d"]:
        return self.pos_embed.get_buffer("W_pos")

    @property
    def W_U(self) -> Float[Tensor, "d p"]:
        return self.unembed.get_buffer("W_U")
