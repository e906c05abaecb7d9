"""The claims of chapter `progress_measures`: in which order a run learns, and what its two jumps consist of.

All are measured on the run's metrics alone, with the marks of `phases`; a run that has not come to what a claim is
about (no metrics, a jump that is still to come) says so instead of failing it.
"""

import pandas as pd

from mc_lib import phases
from mc_lib.claim import Claim, Finding, NotHere, Study, first_step
from mc_lib.phases import HIGH, LOW, Jump, Phases

CHAPTER = "progress_measures"
SUDDEN = 300  # steps
AROUND = 1000  # steps before and after a cell's rise in which its score is watched
MATCH, TOP2 = "qk2_margin_mean", "attn_l1_equal_to_operands"
ROUTING = ("qk2_ov1_var_identity", "attn_l1_equal_to_operands", "attn_l2_equal_to_values")
ADDING, BINDING = "ov2_mlp2_accuracy", "probe_l1_var_from_num"
CONSTANT = {"first": "attn_l1_first_num+var", "second": "attn_l1_second_var+num"}
VARIABLE = {"first": "attn_l1_first_var+num", "second": "attn_l1_second_num+var"}


def marks(study: Study) -> Phases:
    return phases.phases(study.metrics)


def _first_jump(study: Study) -> Jump:
    study.column(phases.FIRST)
    found = marks(study)
    if found.first is None:
        raise NotHere(f"no first jump: {phases.FIRST} never reaches {HIGH} in {found.last} steps")
    return found.first


def _second_jump(study: Study) -> Jump:
    study.column(phases.SECOND)
    found = marks(study)
    if found.second is None:
        raise NotHere(f"no second jump: {phases.SECOND} never reaches {HIGH} in {found.last} steps")
    return found.second


def measure_order(study: Study) -> Finding:
    names = (phases.ADDITION, phases.FIRST, phases.SECOND)
    steps = [first_step(study.column(name), HIGH) for name in names]
    value = "; ".join(f"{name}: {'never' if at is None else at}" for name, at in zip(names, steps, strict=True))
    if None in steps:
        raise NotHere(f"not all of it has happened: {value}")
    known = [at for at in steps if at is not None]
    return Finding(value, known[0] < known[1] < known[2])


def measure_add_first(study: Study) -> Finding:
    first, added = _first_jump(study), first_step(study.column(ADDING), HIGH)
    value = f"isolated circuit at {HIGH}: {'never' if added is None else added}; first jump: {first.ends}"
    return Finding(value, added is not None and added < first.ends / 2)


def measure_jump1(study: Study) -> Finding:
    series = study.column(phases.FIRST)
    rise = phases.jump(series, LOW, 0.95)
    if rise is None:
        raise NotHere(f"{phases.FIRST} never reaches 0.95 in {marks(study).last} steps")
    pieces, shares = [f"{rise.width} steps ({rise.begins} to {rise.ends})"], []
    for label, name in (("match margin", MATCH), ("attention to both operands", TOP2)):
        column = study.column(name)
        shares.append(phases.whole_rise(column, rise))
        pieces.append(f"{label} {column.loc[rise.begins]:.2f} → {column.loc[rise.ends]:.2f}")
    return Finding("; ".join(pieces), rise.width <= SUDDEN and min(shares) >= 0.1)


def before_first_jump(study: Study) -> pd.DataFrame:
    """Layer-1 attention of `=` to an operand, by place and by what stands there: medians before the first jump.

    The median is over the second half of the phase of addition; the other operand is of the other sort.
    """
    first = _first_jump(study)
    rows = {"constant": CONSTANT, "variable": VARIABLE}
    found = {
        sort: {side: study.column(name).loc[first.begins / 2 : first.begins].median() for side, name in names.items()}
        for sort, names in rows.items()
    }
    return pd.DataFrame(found).T


def measure_constants(study: Study) -> Finding:
    found = before_first_jump(study)
    pieces = [f"{sort} {side} {found.loc[sort, side]:.2f}" for sort in found.index for side in found.columns]
    return Finding("; ".join(pieces), bool((found.loc["variable"] < found.loc["constant"] / 4).all()))


def late(study: Study) -> list[str]:
    """The cells that the second jump consists of."""
    first, second = _first_jump(study), _second_jump(study)
    if not any(cell in study.metrics for cell in phases.cell_names(study.config)):
        raise NotHere("the run's metrics lack the accuracy of each variable on each side")
    if second.ends - first.ends < 2 * study.config.eval_every:
        raise NotHere(f"both jumps come at once, at {first.ends} and {second.ends}")
    return phases.late_cells(study.metrics, study.config, marks(study))


def measure_jump2(study: Study) -> Finding:
    cells, steps = late(study), phases.cell_steps(study.metrics, study.config)
    told = [f"{cell} ({'never' if pd.isna(steps[cell]) else f'solved at {steps[cell]}'})" for cell in cells]
    restricted = phases.restricted_cells(study.config)
    value = f"late: {', '.join(told)}" if cells else "no cell is late"
    return Finding(value, len(cells) == 1 and cells[0] in restricted)


def score_correlation(study: Study, cell: str) -> tuple[float, int]:
    """Rank correlation of a cell's accuracy with its variable's layer-1 score around the cell's rise, and n."""
    accuracy, score = study.column(cell), study.column(f"qk1_score_{cell[0]}")
    rise = phases.jump(accuracy)
    if rise is None:
        raise NotHere(f"{cell} is never solved")
    around = slice(rise.begins - AROUND, rise.ends + AROUND)
    return phases.rank_correlation(accuracy.loc[around], score.loc[around]), len(accuracy.loc[around])


def measure_score(study: Study) -> Finding:
    cells = late(study)
    if not cells:
        raise NotHere("no cell is late: there is no rise to follow")
    found = {cell: score_correlation(study, cell) for cell in cells}
    value = "; ".join(f"{cell}: {r:.2f} (n = {n} evaluations)" for cell, (r, n) in found.items())
    return Finding(value, all(r > 0.8 for r, _ in found.values()))


def measure_measures(study: Study) -> Finding:
    names = (ADDING, BINDING, *ROUTING)
    for name in names:
        study.column(name)
    found = phases.order(study.metrics, names)
    value = " < ".join(f"{name} {'never' if at is None else at}" for name, at in found)
    if any(at is None for _, at in found):
        raise NotHere(f"not all of it has happened: {value}")
    at = {name: step or 0 for name, step in found}
    return Finding(value, at[ADDING] < at[BINDING] < min(at[name] for name in ROUTING))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "dyn.order",
        CHAPTER,
        "section 6, Appendix B",
        "Addition is learned before binding, and binding before the places that training never shows.",
        "in this order",
        "400 < 5400 < 15200",
        f"order of the steps at which 0-var train, 1-var train and 1-var var-restricted reach {HIGH}",
        measure_order,
        "The released run's last figure is its step past .99; past .9 it is 14900.",
    ),
    Claim(
        "dyn.add_first",
        CHAPTER,
        "section 6, Fig 12",
        "The circuit that adds is right long before variables are.",
        "about 5000 steps before",
        ".9 at 500",
        f"the isolated circuit reaches {HIGH} before half of the first jump's step",
        measure_add_first,
    ),
    Claim(
        "dyn.jump1",
        CHAPTER,
        "section 6, Fig 8",
        "The first jump is sudden, and comes together with the match of variables and attention to both operands.",
        "5300 to 5400",
        "100 steps; margin 8.8 → 22.2; top-2 .15 → .95",
        f"1-var train rises from {LOW} to 0.95 in at most {SUDDEN} steps, and a tenth or more of the whole rise of "
        "match margin and top-2 attention falls into them",
        measure_jump1,
        "The margin is unscaled and a mean over all variables, those still unmatched included: it can be negative.",
    ),
    Claim(
        "dyn.constants",
        CHAPTER,
        "section 6, Fig 8",
        "Before the first jump, = attends only to constant operands in layer 1.",
        "only to constants",
        "no: position 14, whatever stands there",
        "in either place a variable draws less than a quarter of a constant's attention, in the second half of the "
        "phase of addition",
        measure_constants,
        "The paper shows one sequence, with its variable first: it cannot tell a constant from the second place.",
    ),
    Claim(
        "dyn.jump2",
        CHAPTER,
        "section 6, Fig 9",
        "The second jump is one variable in one place being routed.",
        "b second",
        "b second: .03 → .95",
        f"in the second half of the time between the jumps exactly one cell's median accuracy is below {HIGH}, and "
        "training never shows it",
        measure_jump2,
        "A cell is a variable on a side. Which one is last differs between runs.",
    ),
    Claim(
        "dyn.score",
        CHAPTER,
        "section 6, Fig 9",
        "That variable's layer-1 score rises together with its accuracy.",
        "both rise",
        "-1.11 → -.41",
        f"rank correlation above .8 for each late cell, from {AROUND} steps before its rise to {AROUND} after",
        measure_score,
        "Two things that rise at the same time correlate: this shows no cause.",
    ),
    Claim(
        "dyn.measures",
        CHAPTER,
        "Appendix B, Fig 12",
        "The measures rise phase by phase: first the one that adds, then the one that binds, then those that route.",
        "adds, binds, routes",
        "-",
        f"{ADDING} is held at {HIGH} before {BINDING}, and that before {', '.join(ROUTING)}",
        measure_measures,
        "Held: at five evaluations in a row, since attention passes the mark by chance in the first hundred steps.",
    ),
)
