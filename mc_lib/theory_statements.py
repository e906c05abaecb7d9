"""Every statement of the paper's Appendix C as data: the sentence in our words, its measurement, its verdict.

A *statement* carries a measurement (a function that returns named numbers) and a rule that turns the numbers
into one of three verdicts: holds, holds when (a condition is met, named beside it), does not hold. Statements
marked (ours) are asked by the text without being said in it. Measurements are deterministic; all together take
seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mc_lib import theory_measured as measured
from mc_lib.theory_measured import Numbers

HOLDS, WHEN, FAILS = "holds", "holds when", "does not hold"


@dataclass(frozen=True)
class Statement:
    """One sentence of the appendix, made decidable."""

    id: str
    where: str
    sentence: str
    how: str
    rule: str
    measure: Callable[[], Numbers]
    verdict: Callable[[Numbers], str]
    when: str = ""
    """The condition, for the verdict `holds when`."""


class Row(NamedTuple):
    """A statement's verdict with its numbers."""

    id: str
    where: str
    sentence: str
    how: str
    rule: str
    verdict: str
    numbers: Numbers


def evaluate(statement: Statement) -> Row:
    """Measure a statement and judge it."""
    numbers = statement.measure()
    verdict = statement.verdict(numbers)
    if verdict == WHEN:
        verdict = f"{WHEN} {statement.when}"
    return Row(statement.id, statement.where, statement.sentence, statement.how, statement.rule, verdict, numbers)


def number_text(numbers: Numbers) -> str:
    """The numbers of a row, rounded so that another CPU prints the same."""

    def short(x: float | int) -> str:
        if abs(x) < 1e-10:
            return "0"
        return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.2e}" if abs(x) < 1e-3 else f"{float(f'{x:.3g}'):g}"

    return "; ".join(f"{name}: {short(value)}" for name, value in numbers.items())


def _all(rule: Callable[[Numbers], bool], otherwise: str = FAILS) -> Callable[[Numbers], str]:
    return lambda numbers: HOLDS if rule(numbers) else otherwise


def _some(rule: Callable[[Numbers], bool]) -> Callable[[Numbers], str]:
    """For statements that stand under a condition."""
    return lambda numbers: WHEN if rule(numbers) else FAILS


C = "C, input and model"
STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "start.operands",
        "C, (3)",
        "At a large lambda the start attends to the two operands alike, whatever the input.",
        "softmax of the start's scores on 600 sequences",
        "mass 2A >= .99 at lambda 10, spread <= 1e-12",
        measured.start_attention,
        _some(lambda r: r["mass at lambda 10"] >= 0.99 and r["spread over inputs"] <= 1e-12),
        "lambda is well above log T",
    ),
    Statement(
        "mlp.construction",
        C,
        "Gromov's complex weights make the MLP add: a^2 at 2n, 2ab at n+m, b^2 at 2m, and its "
        "derivative is twice a shifted input.",
        "complex formula, convolution and fast transform, four p",
        "all equal to 1e-12",
        measured.mlp_ways,
        _all(lambda r: max(r.values()) <= 1e-12),
    ),
    Statement(
        "logits.bounded",
        "C, proof",
        "Unscaled logits are at most 1, so small beta leaves predictions near uniform.",
        "all p cases of the population",
        "logit <= 1; p |prediction - 1/p| <= 2 beta",
        measured.logit_bounds,
        _all(lambda r: r["largest logit over beta"] <= 1 and r["p |prediction - 1/p| / beta"] <= 2),
    ),
    Statement(
        "logits.vanish",
        "C, proof",
        "The gradient's part from non-uniform predictions vanishes as beta does.",
        "its largest entry for five beta, power law",
        "slope within .02 of 1",
        measured.logit_slope,
        _all(lambda r: abs(r["slope"] - 1) <= 0.02),
    ),
    Statement(
        "logits.negligible",
        "C, theorem",
        "At a small final scale that part is negligible in the update.",
        "|R| at beta = 16 p eps / V and a hundredth of it",
        "below .25 at the hundredth",
        measured.logit_scale,
        _some(lambda r: r["at a hundredth"] < 0.25),
        "beta is far below 16 p eps / V",
    ),
    Statement(
        "theorem.remainder",
        "C, theorem",
        "After one step W_1 is the closed form, up to the stated order in the largest entry.",
        "exact gradient less closed form, over the bound, on a grid",
        "at most 3 times the bound everywhere",
        measured.remainder_bound,
        _all(lambda r: r["largest |R| over bound"] <= 3),
    ),
    Statement(
        "proof.parts",
        "C, proof",
        "Each part of R has the order named for it: numbers V/p, positions V/(T-5), PAD 2 eps V (T-6), "
        "predictions beta A^3 (1-A) V / (p eps).",
        "largest entries of the rows concerned over each term, four setups",
        "at most 3 times each",
        measured.remainder_parts,
        _all(lambda r: max(r.values()) <= 3),
    ),
    Statement(
        "theorem.norm",
        "C, theorem",
        "The same in matrix infinity norm (largest row sum).",
        "row sums of R at (257, 4, 512), lambda 14",
        "row sum falls below 1",
        measured.row_sums,
        _all(lambda r: r["largest row sum"] < 1),
    ),
    Statement(
        "theorem.memory",
        "C, theorem",
        "The update holds the associative memory: 1 where variables match, 0 elsewhere.",
        "block of the exact update, large setup, a grid of small ones, the paper's size",
        "within .02 at (257, 4, 512)",
        measured.memory_block,
        _some(lambda r: abs(r["match"] - 1) <= 0.02 and abs(r["other"]) <= 0.02),
        "p is large: at small beta the 1 is (1 - 1/p)(1 - 4 eps), the 0 exact",
    ),
    Statement(
        "theorem.dominant",
        "7.1 and C",
        "The memory term dominates the update.",
        "largest entries and squared norms of term and update",
        "largest entry is in the memory, or over half of the norm is",
        measured.dominance,
        _all(
            lambda r: (
                r["largest entry of memory"] >= r["of the step"] - 0.01 or r["memory's share of the squared norm"] > 0.5
            )
        ),
    ),
    Statement(
        "theorem.attenuates",
        "C, theorem",
        "The start's pull towards the second operand's position is attenuated.",
        "entry (p_T-1, p_T) of the update",
        "about -2 A V",
        measured.operand_terms,
        _all(lambda r: abs(r["change at T-1 per gamma"] + 4) < 0.3),
    ),
    Statement(
        "theorem.lhs",
        "C, theorem",
        "The term at the first operand's position is negligible for a large lambda.",
        "(1 - 2A) V",
        "below .05 at lambda 10",
        measured.operand_terms,
        _some(lambda r: r["(1-2A) V at T-2"] < 0.05),
        "lambda is well above log T",
    ),
    Statement(
        "theorem.paper_size",
        "(ours)",
        "The theorem describes the paper's own size (59 numbers, 12 variables, 16 positions).",
        "|R| there, and the best accuracy over gamma",
        "|R| below half of the memory's entries",
        measured.paper_size,
        _all(lambda r: r["|R|"] < r["memory's entries"] / 2),
    ),
    Statement(
        "binding.attention",
        "C, after the theorem",
        "The memory suffices for attention to the right variables, several included.",
        "three and four assignments, middle of the window",
        "top-2 >= .98 among keys other than `=`",
        measured.binding,
        _some(lambda r: min(r["top-2 at 1-var"], r["at 2-var"]) >= 0.98),
        "the step is in its window and the mass that `=` puts on itself is left out",
    ),
    Statement(
        "binding.shared",
        "C, after the theorem",
        "Every assignment gains some attention, with a lower score than the right one.",
        "mean score gained per gamma",
        "right 3, wrong 2, to .1",
        measured.gains,
        _all(lambda r: abs(r["right"] - 3) < 0.1 and abs(r["wrong"] - 2) < 0.1),
    ),
    Statement(
        "composition.step",
        "C, title of the theorem",
        "One step on one-variable data leads to composition.",
        "accuracy on 0, 1 and 2 variables over gamma, n each",
        "a window of gamma keeps all at .99",
        measured.composition,
        _some(lambda r: r["to"] > r["window from"]),
        "gamma lies in a narrow window and operands come in random order",
    ),
    Statement(
        "composition.zero",
        "(ours)",
        "Addition without variables survives the step.",
        "0-variable accuracy",
        ">= .99",
        measured.zero_variable,
        _some(lambda r: r["random order in its window"] >= 0.99),
        "operands come in random order",
    ),
    Statement(
        "composition.weight",
        "(ours)",
        "It does not matter with which weight `=` carries its operands.",
        "best worst accuracy over gamma",
        ">= .99 at both weights",
        measured.half_weight,
        _all(lambda r: min(r["best worst accuracy at weight 1"], r["at weight 1/2"]) >= 0.99),
    ),
    Statement(
        "composition.self",
        "(ours)",
        "It does not matter whether `=` attends to itself.",
        "windows with and without",
        "edges within .02",
        measured.self_attention,
        _all(lambda r: abs(r["window from"] - r["without itself from"]) + abs(r["to"] - r["until"]) < 0.04),
    ),
    Statement(
        "scale.later",
        "C, model",
        "Beta can be raised afterwards: the direction analysed is the small-beta one.",
        "cosine of updates at different beta",
        "above .99 at 1e-5",
        measured.later_scale,
        _some(lambda r: r["cosine with beta 1e-9: at 1e-5"] > 0.99),
        "the step itself is taken at a beta far below 16 p eps / V",
    ),
    Statement(
        "later.shared",
        "C, after the theorem",
        "Later steps on more variables attenuate what all assignments share.",
        "75 further steps on all kinds from gamma = 1",
        "lower at the end than before, and so is the mass on wrong values",
        measured.spurious,
        _some(
            lambda r: r["after 75 steps"] < r["shared before"] and r["after"] < r["mass on wrong values, 2-var, before"]
        ),
        "the steps are many: it grows at first",
    ),
    Statement(
        "later.accuracy",
        "(ours)",
        "Further steps remove the need for a finely set step size.",
        "accuracy along them",
        "all kinds at .99 and still there after 75",
        measured.more_steps,
        _all(lambda r: r["worst at the end"] >= 0.99),
    ),
    Statement(
        "embeddings.random",
        C,
        "Random high-dimensional remaps act like orthogonal ones.",
        "worst accuracy at the best gamma, (13, 4, 32), mean of draws",
        "within .1 of orthonormal at some d measured",
        measured.random_directions,
        _some(lambda r: r["orthonormal"] - r["worst accuracy at d 262,144"] < 0.1),
        "d is in the hundreds of thousands",
    ),
    Statement(
        "sample.size",
        "(ours)",
        "A sample of practical size gives the population's step.",
        "largest entry of the difference over gamma, mean of draws",
        "below 1 at n = 4,000",
        measured.sampled,
        _all(lambda r: r["error at n 4,000"] < 1),
    ),
)
