"""The claims of the chapter on addition: what reaches the MLP, what it makes of it, and in which form."""

from mc_lib import addition, fourier, probes
from mc_lib.addition import BOTH, NO_MLP, ONLY_PATH, SAME, SECOND
from mc_lib.claim import Claim, Finding, NotHere, Study
from mc_lib.config import KINDS
from mc_lib.intervals import wilson

CHAPTER = "ov_mlp_addition"


def _mean(values: addition.Tensor) -> str:
    found = addition.spread(values)
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{hits / n:.3f} [{low:.3f}, {high:.3f}]"


def _measure_sum(study: Study) -> Finding:
    found = study.shared(addition.sum_cosines)
    cosines, whole = found["attention's output"], found["whole residual"]
    matched, control = cosines[SAME].mean().item(), cosines[BOTH].mean().item()
    value = (
        f"{_mean(cosines[SAME])} (whole residual {whole[SAME].mean().item():.3f}); with the second number changed "
        f"{cosines[SECOND].mean().item():.3f}, with both {control:.3f}; n = {len(cosines[SAME])}"
    )
    return Finding(value, matched >= 0.9 and matched - control >= 0.5)


def _measure_same(study: Study) -> Finding:
    pieces, holds = [], True
    found = {"template": study.shared(addition.template_cosines)}
    found |= {KINDS[kind]: study.shared(addition.context_cosines, kind) for kind in (1, 2, 3)}
    for name, cosines in found.items():
        matched, control = cosines[SAME].mean().item(), cosines[BOTH].mean().item()
        holds = holds and matched >= 0.9 and matched - control >= 0.5
        pieces.append(f"{name} {matched:.3f} against {control:.3f}")
    return Finding("; ".join(pieces) + f"; n = {study.config.p**2} each", holds)


def _measure_probe(study: Study) -> Finding:
    rows = [row for row in study.shared(probes.probes) if row.target == probes.ANSWER and row.split == probes.DISJOINT]
    if not rows:
        raise NotHere("too few number pairs to keep some of them out of a probe's training")
    before, after = (next(row for row in rows if row.place == place) for place in (probes.BEFORE, probes.AFTER))
    value = f"{_share(before.hits, before.n)} before, {_share(after.hits, after.n)} after; n = {before.n}"
    return Finding(value, before.accuracy <= 0.1 and after.accuracy >= 0.95)


def _measure_circuit(study: Study) -> Finding:
    wrong, n = study.shared(addition.isolated_errors), study.config.p**2
    named = ", ".join(f"({a}, {b})" for a, b, _ in wrong[:8]) + (", ..." if len(wrong) > 8 else "")
    value = f"{n - len(wrong)} of {n} right" + (f"; wrong: {named}" if wrong else "")
    return Finding(value, 1 - len(wrong) / n >= 0.99)


def _measure_needed(study: Study) -> Finding:
    found = study.shared(addition.path_hits)
    (without, n), (only, _) = found[NO_MLP], found[ONLY_PATH]
    value = f"{_share(without, n)} without the MLP, {_share(only, n)} with only attention → MLP; n = {n}"
    return Finding(value, without / n <= 0.1 and only / n >= 0.98)


def _measure_fourier(study: Study) -> Finding:
    found = study.shared(fourier.waves)
    best = found.best[found.live]
    if not len(best):
        raise NotHere("no neuron of this run is on for some pairs and off for others")
    many = int((best > 0.9).sum())
    value = f"best {best.max():.3f}, median {best.median():.2f}; above .9: {many} of {len(best)} live neurons"
    return Finding(f"{value} {_share(many, len(best)).split(' ', 1)[1]}", best.max().item() >= 0.9)


def _measure_frequencies(study: Study) -> Finding:
    share = study.shared(fourier.spectra)["E"]
    if len(share) <= 10:
        raise NotHere(f"modulo {study.config.p} there are only {len(share)} frequencies: ten always suffice")
    ten = share.sort(descending=True).values[:10].sum().item()
    value = f"ten of {len(share)} carry {ten:.3f}; {len(fourier.carriers(share))} carry .9"
    return Finding(value, ten >= 0.9)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "ov.sum",
        CHAPTER,
        "Section 5.1, Figure 5b",
        "What reaches the MLP is the sum of the operands' images under OV2.",
        "very close to 1, much higher than shuffled",
        ".987 (whole residual .982); second operand shuffled .53, both .055",
        "mean cosine ≥ .9, and at least .5 above that with two other numbers",
        _measure_sum,
        "Number + number in random contexts, every ordered pair once. The released analysis shuffles only the second "
        "operand, so that its control still shares half of the sum.",
    ),
    Claim(
        "ov.same",
        CHAPTER,
        "Section 5.1, Figure 5a",
        "Variables and numbers give the same vector before the MLP.",
        "very close to 1, much higher than mismatched",
        ".973 against .134 in one template; .941 for two variables in random contexts",
        "mean cosine ≥ .9 and at least .5 above that with two other numbers, in the template and in random contexts",
        _measure_same,
        "The template varies nothing but the numbers; in random contexts variables, distractors and layout vary too.",
    ),
    Claim(
        "ov.probe",
        CHAPTER,
        "Section 5.1",
        "The answer is not linearly readable before the MLP, and is after it.",
        "fails before, succeeds after",
        ".056 / .999; with disjoint pairs .015 / .998",
        "with disjoint pairs ≤ .1 before and ≥ .95 after",
        _measure_probe,
        "Pairs are disjoint between the probe's training and test, and a pair counts as its mirror does; else a probe "
        "can remember pairs instead of reading the answer.",
    ),
    Claim(
        "ov.circuit",
        CHAPTER,
        "Section 5.1",
        "Images, MLP and unembedding alone add all pairs.",
        "nearly perfect",
        "3477 of 3481; wrong: (0, 0), (2, 2), (28, 28), (44, 44)",
        "≥ .99 of all ordered pairs",
        _measure_circuit,
        "No attention and no context; the scale of the input is no matter, since ReLU without biases keeps it.",
    ),
    Claim(
        "ov.needed",
        CHAPTER,
        "ours",
        "The model needs its MLP, and needs nothing else behind layer-2 attention.",
        "-",
        ".037 / 1.00",
        "≤ .1 right without the MLP's output, ≥ .98 with only attention → MLP → answer",
        _measure_needed,
        "Every ordered pair once in each of the four kinds. Cuts are made at “=” only, where the answer is read.",
    ),
    Claim(
        "ov.fourier",
        CHAPTER,
        "Section 5.1, Figure 11",
        "A neuron's pre-activation is a wave in n plus a wave in m of one frequency.",
        "near-perfect match (one neuron)",
        "best R² .97, neuron 70 .96, median .72",
        "the best live neuron has R² ≥ .9 (the share of those above .9 is reported)",
        _measure_fourier,
        "The rule is the paper's, which shows one neuron; the median tells how far it speaks for the others.",
    ),
    Claim(
        "ov.frequencies",
        CHAPTER,
        "ours",
        "Few frequencies carry the number embedding.",
        "-",
        "10 carry .97",
        "ten frequencies or fewer carry ≥ .9 of its power",
        _measure_frequencies,
        "Power without the constant part. In a random embedding, any ten of the paper's 29 frequencies carry about a "
        "third.",
    ),
)
