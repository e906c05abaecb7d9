"""The measurements behind the theorem's statements: each returns named numbers, and always the same ones.

Nouns as in `theory` and `theory_sweeps`. FIXED and RANDOM are the middle-sized setup with operands in fixed
and in random order; LARGE has every size far above V; PAPER_SIZE is the paper's model's.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from mc_lib.theory import (
    F64,
    Setup,
    bound,
    closed_form,
    mlp,
    mlp_complex,
    mlp_convolution,
    mlp_pullback,
    remainder,
    start,
    update,
)
from mc_lib.theory_batch import augment, sample, scores
from mc_lib.theory_more import RandomEmbedding, SampleError, Step, further_steps, random_embedding, sample_error
from mc_lib.theory_sweeps import (
    KINDS,
    Scan,
    Window,
    fitted_slope,
    mean_of,
    memory,
    predicted_window,
    remainder_sweep,
    window,
)

Numbers = dict[str, float | int]
FIXED, RANDOM = Setup(), Setup(order="random")
LARGE = Setup(p=257, length=512, lam=14.0, beta=1e-9)
PAPER_SIZE = Setup(p=59, variables=12, length=16)
SMALL, DRAWS = Setup(p=13, length=32, order="random"), 3
"""Where random embeddings are drawn: small enough for large dimensions."""


@lru_cache(maxsize=8)
def scan_of(s: Setup, count: int = 600, assignments: tuple[int, ...] = (3, 4)) -> Scan:
    return Scan(s, update(s), count, assignments)


@lru_cache(maxsize=8)
def window_of(s: Setup, kinds: Sequence[int] = KINDS) -> Window:
    return window(scan_of(s), kinds, most=1.5 * predicted_window(s)[1], points=33)


@lru_cache(maxsize=2)
def steps_of(s: Setup) -> list[Step]:
    return further_steps(s, steps=75, count=60)


@lru_cache
def embeddings_of(d: int) -> list[RandomEmbedding]:
    """DRAWS random embeddings in d dimensions."""
    return [random_embedding(SMALL, d, seed) for seed in range(DRAWS)]


@lru_cache
def samples_of(n: int, draws: int) -> list[SampleError]:
    """Errors of the step from n sampled sequences."""
    return [sample_error(FIXED, n, seed) for seed in range(draws)]


# Measurements, in the order of the text.
def mlp_ways() -> Numbers:
    """Largest difference of the MLP's three forms and of its derivative, over odd and even p."""
    apart = slope = 0.0
    for p in (2, 7, 12, 31):
        rng = torch.Generator().manual_seed(p)
        vectors = torch.linalg.qr(torch.randn(2 * p, p, generator=rng, dtype=F64)).Q.T
        u = torch.rand(5, p, generator=rng, dtype=F64)
        direct = mlp_convolution(u)
        apart = max(
            apart,
            *((direct - other).abs().max().item() for other in (mlp_complex(vectors, u @ vectors), mlp(u))),
        )
        n, c = torch.meshgrid(torch.arange(p), torch.arange(p), indexing="ij")
        by_hand = 2 * u[:, (c - n).remainder(p)]  # derivative of logit c towards number n
        r = torch.rand(5, p, generator=rng, dtype=F64)
        slope = max(slope, (mlp_pullback(u, r) - (by_hand * r[:, None]).sum(2)).abs().max().item())
    return {"values differ by": apart, "derivatives by": slope}


def start_attention() -> Numbers:
    weights = []
    for kind in KINDS:
        x = augment(FIXED, sample(FIXED, kind, 200))
        weights.append(torch.softmax(scores(FIXED, start(FIXED), x), 1))
    rows = torch.cat(weights)
    return {
        "mass at lambda 10": 2 * FIXED.A,
        "at lambda 0": 2 * FIXED.replace(lam=0.0).A,
        "spread over inputs": (rows - rows[0]).abs().max().item(),
    }


def logit_bounds() -> Numbers:
    """All cases of the population at once, up to shifts: u = A e_0 + eps e_d."""
    s = FIXED.replace(beta=1e-2)
    d = torch.arange(s.p)
    u = torch.zeros(s.p, s.p, dtype=F64)
    u[:, 0] += s.A
    u[d, d] += s.eps
    off = (torch.softmax(s.beta * mlp(u), 1) * s.p - 1).abs().max().item()
    return {"largest logit over beta": mlp(u).max().item(), "p |prediction - 1/p| / beta": off / s.beta}


def logit_slope() -> Numbers:
    betas, limit = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2], FIXED.replace(beta=1e-9)
    flat = update(limit)
    apart = [(update(FIXED.replace(beta=b)) - flat).abs().max().item() for b in betas]
    fit = fitted_slope(betas, apart)
    return {"slope": fit.slope, "low": fit.low, "high": fit.high, "n": fit.n}


def logit_scale() -> Numbers:
    at = 16 * FIXED.p * FIXED.eps / FIXED.variables
    return {
        "16 p eps / V": at,
        "|R| there": remainder(FIXED.replace(beta=at)).abs().max().item(),
        "at a hundredth": remainder(FIXED.replace(beta=at / 100)).abs().max().item(),
    }


def remainder_bound() -> Numbers:
    ratios = []
    for p in (7, 31, 113):
        for T in (16, 64, 256):
            for lam in (4.0, 8.0, 12.0):
                for beta in (1e-9, 1e-4):
                    s = Setup(p=p, length=T, lam=lam, beta=beta)
                    ratios.append(remainder(s).abs().max().item() / max(bound(s).values()))
    fit_p = remainder_sweep(LARGE, "p", (7, 13, 31, 59, 113, 257))
    fit = fitted_slope([point.value for point in fit_p], [point.largest for point in fit_p])
    return {"largest |R| over bound": max(ratios), "setups": len(ratios), "slope in p": fit.slope}


def remainder_parts() -> Numbers:
    """Each part of |R| over the bound's term that answers for it, at most over four setups."""
    worst = {"numbers": 0.0, "slots": 0.0, "pads": 0.0, "logits": 0.0}
    for s in (FIXED, FIXED.replace(lam=6.0), LARGE, PAPER_SIZE):
        R, limits = remainder(s).abs(), bound(s)
        logits = (remainder(s.replace(beta=1e-4)) - remainder(s.replace(beta=1e-12))).abs().max().item()
        found = {
            "numbers": R[s.blocks["number"]].max().item(),
            "slots": R[s.position(0) : s.position(-4)].max().item(),
            "pads": R[s.PAD].max().item(),
            "logits": logits * s.beta / 1e-4,
        }
        worst = {name: max(worst[name], found[name] / limits[name]) for name in worst}
    return worst


def row_sums() -> Numbers:
    R = remainder(LARGE).abs()
    return {"largest entry": R.max().item(), "largest row sum": R.sum(1).max().item(), "V": LARGE.variables}


def memory_block() -> Numbers:
    large, paper = memory(LARGE, update(LARGE)), memory(PAPER_SIZE, update(PAPER_SIZE))
    least, law = math.inf, 0.0
    for p in (7, 31, 257):
        for lam in (0.0, 4.0, 12.0):
            s = Setup(p=p, length=16, lam=lam, beta=1e-9)
            match = memory(s, update(s)).match
            least, law = min(least, match), max(law, abs(match - (1 - 1 / p) * (1 - 4 * s.eps)))
    return {
        "least match at T = 16, p from 7, lambda from 0": least,
        "off (1 - 1/p)(1 - 4 eps) by": law,
        "match": large.match,
        "other": large.other,
        "match at (59, 12, 16)": paper.match,
        "other there": paper.other,
    }


def dominance() -> Numbers:
    step, term = update(LARGE), closed_form(LARGE)["memory"]
    return {
        "largest entry of memory": term.abs().max().item(),
        "of the step": step.abs().max().item(),
        "memory's share of the squared norm": ((term**2).sum() / (step**2).sum()).item(),
    }


def operand_terms() -> Numbers:
    last, step = FIXED.position(-1), update(FIXED)
    return {
        "change at T-1 per gamma": step[FIXED.position(-2), last].item(),
        "(1-2A) V at T-2": (1 - 2 * FIXED.A) * FIXED.variables,
        "at lambda 2": (1 - 2 * FIXED.replace(lam=2.0).A) * 4,
    }


def gains() -> Numbers:
    """Score gained per gamma by the values asked for and by the other assignments."""
    step = update(LARGE)
    x = augment(LARGE, sample(LARGE, 1, 300))
    seen = scores(LARGE, step, x)
    value = x.values.gather(1, (x.values < LARGE.length - 4).int().argmax(1, keepdim=True).long())
    right = seen.gather(1, value)
    others = (x.remapped < LARGE.size).scatter(1, value, False)
    wrong = seen[others]
    return {"right": right.mean().item(), "wrong": wrong.mean().item(), "n": len(right)}


def binding() -> Numbers:
    w = window_of(RANDOM)
    middle = (w.low + w.high) / 2
    one, two = (scan_of(RANDOM).at(middle, kind) for kind in (1, 2))
    return {
        "gamma": middle,
        "top-2 at 1-var": one.top2,
        "at 2-var": two.top2,
        "mass on the right numbers, 2-var": two.right,
        "on itself": two.itself,
        "n": one.n,
    }


def composition() -> Numbers:
    w, fixed = window_of(RANDOM), window_of(FIXED, (1, 2))
    before = scan_of(RANDOM)
    two = scan_of(RANDOM, assignments=(2,)).at(0.0, 2)
    return {
        "2-var before, two assignments": two.accuracy,
        "window from": w.low,
        "to": w.high,
        "1-var before": before.at(0.0, 1).accuracy,
        "three or four": before.at(0.0, 2).accuracy,
        "worst of all kinds at best": w.best,
        "fixed order, 1- and 2-var: from": fixed.low,
        "until": fixed.high,
        "n": before.at(0.0, 1).n,
    }


def zero_variable() -> Numbers:
    middle = sum(window_of(RANDOM)[:2]) / 2
    return {
        "fixed order at gamma .25": scan_of(FIXED).at(0.25, 0).accuracy,
        "random order in its window": scan_of(RANDOM).at(middle, 0).accuracy,
        "n": scan_of(FIXED).at(0.0, 0).n,
    }


def half_weight() -> Numbers:
    half = RANDOM.replace(carried=0.5)
    return {
        "best worst accuracy at weight 1": window_of(RANDOM).best,
        "at weight 1/2": window_of(half).best,
        "fixed order, 1- and 2-var, at 1/2": window_of(half.replace(order="fixed"), (1, 2)).best,
    }


def self_attention() -> Numbers:
    with_, without = window_of(RANDOM), window_of(RANDOM.replace(attends_self=False))
    return {
        "window from": with_.low,
        "to": with_.high,
        "without itself from": without.low,
        "until": without.high,
        "mass on itself, 2-var, gamma 3.2": scan_of(FIXED).at(3.2, 2).itself,
    }


def later_scale() -> Numbers:
    small = update(FIXED.replace(beta=1e-9))

    def cosine(beta: float) -> float:
        step = update(FIXED.replace(beta=beta))
        return ((small * step).sum() / small.norm() / step.norm()).item()

    return {"cosine with beta 1e-9: at 1e-5": cosine(1e-5), "at 1e-3": cosine(1e-3), "at 1": cosine(1.0)}


def spurious() -> Numbers:
    steps = steps_of(RANDOM)
    share = [step.memory.shared for step in steps]
    return {
        "shared before": share[0],
        "at most": max(share),
        "after 75 steps": share[-1],
        "mass on wrong values, 2-var, before": steps[0].probes[2].wrong,
        "after": steps[-1].probes[2].wrong,
    }


def more_steps() -> Numbers:
    steps = steps_of(RANDOM)

    def worst(step: Step) -> float:
        return min(probe.accuracy for probe in step.probes.values())

    solved = next((step.step for step in steps if worst(step) >= 0.99), math.inf)
    return {
        "first step with all kinds at .99": float(solved),
        "worst before": worst(steps[0]),
        "worst at the end": worst(steps[-1]),
        "mass on itself, 2-var, before": steps[0].probes[2].itself,
        "after 15": steps[15].probes[2].itself,
    }


def random_directions() -> Numbers:
    """DRAWS draws at each dimension; the orthonormal limit beside them."""
    numbers: Numbers = {}
    for d in (256, 65_536, 262_144):
        draws = embeddings_of(d)
        found = mean_of([draw.window.best for draw in draws])
        numbers[f"worst accuracy at d {d:,}"] = found.mean
        numbers[f"+- at {d:,}"] = found.high - found.mean
        numbers[f"own variable first at {d:,}"] = sum(draw.identity for draw in draws) / DRAWS
    return numbers | {"orthonormal": window(Scan(SMALL, update(SMALL), 300)).best, "draws": DRAWS}


def paper_size() -> Numbers:
    fit = memory(PAPER_SIZE, update(PAPER_SIZE))
    return {
        "|R|": remainder(PAPER_SIZE).abs().max().item(),
        "memory's entries": fit.match,
        "worst accuracy at best": window_of(PAPER_SIZE.replace(order="random")).best,
    }


def sampled() -> Numbers:
    errors = samples_of(4000, 6)
    found = mean_of([e.error for e in errors])
    need = FIXED.A**2 * FIXED.variables**2 / (4 * FIXED.eps**2 * FIXED.p)
    return {
        "error at n 4,000": found.mean,
        "+-": found.high - found.mean,
        "A V / (2 eps sqrt(p n))": errors[0].predicted,
        "n for an error of 1": need,
        "draws": found.n,
    }
