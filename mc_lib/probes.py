"""Linear probes at `=`: what a linear map can read there, before and after the layer-2 MLP.

A probe is trained on some sequences and tested on others. With shared pairs, a test sequence may ask for a number pair
that was in the probe's training; with disjoint pairs it never does, so that a probe cannot pass by remembering pairs.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mc_lib import addition, task
from mc_lib.config import Config
from mc_lib.model import Weights
from mc_lib.sampler import sample, training_mixture

STREAM = 521
SHARED, DISJOINT = "pairs shared", "pairs disjoint"
BEFORE, AFTER = "before the MLP", "after the MLP"
ANSWER, NUMBERS = "the answer", "the two numbers"
Split = tuple[Int[Tensor, " train"], Int[Tensor, " test"]]


class Probe(NamedTuple):
    """A probe's test: where it reads, what it predicts, how training and test were split, and how often it is right."""

    place: str
    target: str
    split: str
    hits: int
    n: int

    @property
    def accuracy(self) -> float:
        return self.hits / self.n


def splits(cfg: Config, tokens: Int[Tensor, "n pos"]) -> dict[str, Split]:
    """(training rows, test rows) of the two ways, about 7 to 3; a way that would leave either empty is left out.

    A pair and its mirror count as one, since their sum vectors are the same.
    """
    numbers = task.operands(tokens, cfg).numbers.sort(1).values
    order = torch.randperm(cfg.p**2, generator=torch.Generator().manual_seed(STREAM))
    pair_out = order[numbers[:, 0] * cfg.p + numbers[:, 1]] < 0.3 * cfg.p**2
    any_out = torch.arange(len(tokens)) % 10 < 3
    ways = {SHARED: any_out, DISJOINT: pair_out}
    return {
        name: ((~out).nonzero()[:, 0], out.nonzero()[:, 0]) for name, out in ways.items() if 0 < out.sum() < len(out)
    }


def probes(weights: Weights, cfg: Config, count: int = 6000) -> list[Probe]:
    """Probes for the answer, before and after the MLP, and for the two numbers before it; on all kinds of sequences."""
    tokens = sample(cfg, training_mixture(cfg.replace(held_out=0.0, two_var=1.0)), count, STREAM)
    seen, answer = addition.vectors(weights, tokens), task.answers(tokens, cfg)
    numbers = task.operands(tokens, cfg).numbers
    found = []
    for split, (train, test) in splits(cfg, tokens).items():
        for place, x in ((BEFORE, seen.before), (AFTER, seen.after)):
            said = softmax_probe(x[train], answer[train], x[test], cfg.p)
            found.append(Probe(place, ANSWER, split, int((said == answer[test]).sum()), len(test)))
        hits = int(read_numbers(seen.before, numbers, train, test, cfg.p).sum())
        found.append(Probe(BEFORE, NUMBERS, split, hits, len(test)))
    return found


def softmax_probe(
    train: Float[Tensor, "train d"],
    train_class: Int[Tensor, " train"],
    test: Float[Tensor, "test d"],
    classes: int,
    l2: float = 1e-3,
) -> Int[Tensor, " test"]:
    """Classes that softmax regression gives to the test rows.

    The penalty makes the optimum unique; L-BFGS goes on until the gradient is below 1e-5, so nothing hangs on a seed,
    a learning rate or a number of steps.
    """
    mean = train.mean(0)
    scale = (train - mean).square().mean().sqrt().clamp(min=1e-30)
    x = (train - mean) / scale
    weight = x.new_zeros(x.shape[1] + 1, classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight], max_iter=400, tolerance_grad=1e-5, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        scores = x @ weight[:-1] + weight[-1]
        value = torch.nn.functional.cross_entropy(scores, train_class) + l2 / 2 * weight[:-1].square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    weight = weight.detach()
    return ((test - mean) / scale @ weight[:-1] + weight[-1]).argmax(1)


def read_numbers(
    x: Float[Tensor, "n d"],
    numbers: Int[Tensor, "n 2"],
    train: Int[Tensor, " train"],
    test: Int[Tensor, " test"],
    p: int,
) -> Tensor:
    """Whether the largest outputs of a linear map (least squares on counts of numbers) are the two numbers, by row."""
    count = torch.nn.functional.one_hot(numbers, p).sum(1).double()
    z = (x - x[train].mean(0)).double()
    share = count[train].mean(0)
    gram = z[train].T @ z[train]
    gram.diagonal().add_(1e-6 * gram.diagonal().mean() + 1e-30)
    score = z[test] @ torch.linalg.solve(gram, z[train].T @ (count[train] - share)) + share
    right = count[test] > 0
    return score.masked_fill(~right, torch.inf).amin(1) > score.masked_fill(right, -torch.inf).amax(1)
