"""Functions of numbers as sums of waves: spectra over the numbers modulo p, and how much of a neuron is one wave.

A frequency k is a whole number from 1 to p / 2; its wave takes k turns while n runs once through 0 .. p - 1. The power
of a function of n at k is the variance of its wave of that frequency, so that powers add up to the variance; the
constant part has none. A neuron's map is its pre-activation over all ordered pairs (n, m), and its R2 at k is the share
of the map's variance that the best A cos(2 pi k n / p + phi) + B cos(2 pi k m / p + psi) + C explains.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib import addition
from mc_lib.config import Config
from mc_lib.model import Weights


def power(values: Float[Tensor, "p column"]) -> Float[Tensor, "frequency column"]:
    """Power of each column, a function of n = 0 .. p - 1, at the frequencies 1 .. p / 2."""
    p = len(values)
    waves = torch.fft.rfft(values.double(), dim=0)[1:].abs().square() / p**2
    twice = torch.full((len(waves), 1), 2.0, dtype=torch.float64, device=values.device)
    if p % 2 == 0:
        twice[-1] = 1  # the wave that alternates is its own mirror image
    return waves * twice


def shares(values: Float[Tensor, "p column"]) -> Float[Tensor, " frequency"]:
    """Share of each frequency in the power of all columns together."""
    total = power(values).sum(1)
    return total / total.sum().clamp(min=1e-300)


def spectra(weights: Weights, cfg: Config) -> dict[str, Float[Tensor, " frequency"]]:
    """Shares of power at the stations that a number passes: embedding, image, neurons' inputs, neurons' effect."""
    image = addition.images(weights, cfg)
    effect = weights["blocks.1.mlp.W_out"] @ weights["unembed.W_U"]
    return {
        "E": shares(weights["embed.W_E"][: cfg.p]),
        "E OV2": shares(image),
        "E OV2 W_in": shares(image @ weights["blocks.1.mlp.W_in"]),
        "W_out W_U": shares(effect.T),
    }


def carriers(share: Float[Tensor, " frequency"], part: float = 0.9) -> list[int]:
    """The fewest frequencies that carry this part of the power, the strongest first."""
    order = share.argsort(descending=True)
    needed = int((share[order].cumsum(0) < part * share.sum()).sum()) + 1
    return [k + 1 for k in order[:needed].tolist()]


# --- neurons -------------------------------------------------------------------------------------------


def neuron_maps(weights: Weights, cfg: Config) -> Float[Tensor, "p p neuron"]:
    """Pre-activation of every neuron over all pairs (n, m), on number + number sequences in random contexts."""
    before = addition.vectors(weights, addition.in_contexts(cfg, 0)).before
    return (before @ weights["blocks.1.mlp.W_in"]).view(cfg.p, cfg.p, -1)


class Waves(NamedTuple):
    """What of each neuron's map is a wave: R2 at every frequency, of any function of n plus any of m, and its life."""

    r2: Float[Tensor, "frequency neuron"]
    additive: Float[Tensor, " neuron"]
    active: Float[Tensor, " neuron"]

    @property
    def best(self) -> Float[Tensor, " neuron"]:
        return self.r2.amax(0)

    @property
    def frequency(self) -> Int[Tensor, " neuron"]:
        return self.r2.argmax(0) + 1

    @property
    def live(self) -> Int[Tensor, " live"]:
        """Neurons that are on for some pairs and off for others: only they do more than a linear map."""
        return ((self.active > 0) & (self.active < 1)).nonzero()[:, 0]


def waves(weights: Weights, cfg: Config) -> Waves:
    """The waves in all neurons' maps. On the full grid the fit needs no solving: its parts are orthogonal."""
    return waves_of(neuron_maps(weights, cfg))


def waves_of(maps: Float[Tensor, "p p neuron"]) -> Waves:
    total = maps.double().var((0, 1), correction=0).clamp(min=1e-300)
    by_first, by_second = maps.double().mean(1), maps.double().mean(0)
    both = power(by_first) + power(by_second)
    active = (maps > 0).double().mean((0, 1))
    return Waves(both / total, both.sum(0) / total, active)


def strength(weights: Weights, cfg: Config) -> Float[Tensor, " neuron"]:
    """Each neuron's share in the variance that the neurons, one at a time, write onto the logits over all pairs."""
    active = neuron_maps(weights, cfg).relu().double().flatten(0, 1).var(0, correction=0)
    effect = weights["blocks.1.mlp.W_out"] @ weights["unembed.W_U"]
    written = active * effect.double().var(1, correction=0)
    return written / written.sum().clamp(min=1e-300)


def fitted(map_: Float[Tensor, "p p"], k: int) -> Float[Tensor, "p p"]:
    """The best A cos(2 pi k n / p + phi) + B cos(2 pi k m / p + psi) + C for one neuron's map."""

    def wave(values: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        only = torch.fft.rfft(values.double())
        only[[i for i in range(len(only)) if i != k]] = 0
        return torch.fft.irfft(only, n=len(values))

    return wave(map_.mean(1))[:, None] + wave(map_.mean(0))[None] + map_.double().mean()


def quantile_neurons(found: Waves, count: int) -> list[int]:
    """`count` live neurons from the worst fit to the best, evenly spaced by rank."""
    ranked = found.live[found.best[found.live].argsort()]
    places = torch.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().long()
    return ranked[places].tolist()


class Phases(NamedTuple):
    """Phases of live neurons at their frequencies: of the input wave in n plus that in m, and of the output wave."""

    read: Float[Tensor, " live"]
    written: Float[Tensor, " live"]

    @property
    def agreement(self) -> float:
        """Length of the mean of exp(i (written - read)): 1 if they always agree, about 0 if they are unrelated."""
        return torch.polar(torch.ones_like(self.read), self.written - self.read).mean().abs().item()


def phases(weights: Weights, cfg: Config) -> Phases:
    """For cos(w n + a) + cos(w m + a) in and cos(w r + b) out, read is 2 a and written is b, both from 0 to 2 pi."""
    found = waves(weights, cfg)
    live, k = found.live, found.frequency[found.live]
    into = addition.images(weights, cfg) @ weights["blocks.1.mlp.W_in"]
    effect = (weights["blocks.1.mlp.W_out"] @ weights["unembed.W_U"]).T
    read, written = (torch.fft.rfft(x.double(), dim=0)[k, live].angle() for x in (into, effect))
    return Phases(2 * read % (2 * torch.pi), written % (2 * torch.pi))
