"""The claims about the induction head: its attention, the score matrices behind it, what it moves and what it causes.

Each measure takes a Study and gives a Finding. Attention is measured on the paper's nine evaluation sets; the scores
are read from the weights; what the head moves and causes is measured on sequences with variables.
"""

from mc_lib import induction, induction_writes
from mc_lib.claim import Claim, Finding, NotHere, Study
from mc_lib.induction import OPERANDS, PREVIOUS, RESTRICTED, TRAINED, VALUES
from mc_lib.intervals import wilson

CHAPTER = "induction_head"


def _share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{hits / n:.3f} [{low:.3f}, {high:.3f}], n = {n:,}"


def attention(study: Study, name: str, sets: tuple[str, ...], bound: float) -> Finding:
    """Hits of a habit on some of the nine sets, with the mean mass in each of them."""
    habit = induction.within(study.shared(induction.habits_seen)[name], study.config, sets)
    if not len(habit.hit):
        raise NotHere("this run's settings leave no sequence to measure it on")
    hits, n = int(habit.hit.sum()), len(habit.hit)
    mass = induction.by_set(habit, study.config)["mass"]
    return Finding(f"{_share(hits, n)}; mass {' / '.join(f'{m:.2f}' for m in mass)}", hits / n >= bound)


def equal_prefers(study: Study) -> Finding:
    """Layer-1 scores of the token `=` for all positions as keys."""
    cfg, head = study.config, study.shared(induction.habits_seen)[OPERANDS].head
    score = induction.scores1(study.weights, head)[cfg.EQUALS, cfg.vocabulary :]
    operands, other = score[-3:-1], score[list(range(cfg.length - 3)) + [cfg.length - 1]].max()
    value = f"{operands[0]:.2f} and {operands[1]:.2f}, others at most {other:.2f} (scaled)"
    return Finding(value, bool(operands.min() > other))


def variables_preferred(study: Study) -> Finding:
    """Mean layer-1 scores, by what stands as key, among the tokens that can stand before a number."""
    cfg, head = study.config, study.shared(induction.habits_seen)[PREVIOUS].head
    table = induction.group_scores(study.weights, head, cfg).loc[["numbers", induction.assigned(cfg)]]
    other = table[["numbers", "PAD"]].max(axis=1)
    value = " / ".join(f"{score:.2f}" for score in table["variables"])
    value += f", numbers and PAD at most {' / '.join(f'{score:.2f}' for score in other)} (scaled)"
    return Finding(value, bool((table["variables"] > other).all()))


def previous_preferred(study: Study) -> Finding:
    found = induction.previous_hits(study.weights, study.config)
    hits, n = int((found.hit & found.choice).sum()), int(found.choice.sum())
    if not n:
        raise NotHere("with so few places no query has a choice")
    return Finding(f"{hits} of {n} ({int(found.hit.sum())} of {len(found.hit)} with the automatic ones)", hits == n)


def matches(study: Study) -> Finding:
    margin = study.shared(induction.match).margin
    hits, n = int((margin > 0).sum()), len(margin)
    value = f"{hits} of {n}, margin {margin.mean():.0f} mean, {margin.min():.0f} least (unscaled)"
    return Finding(value, hits == n)


def rightward(study: Study) -> Finding:
    head = study.shared(induction.habits_seen)[PREVIOUS].head
    found = induction.rightward(study.weights, head, study.config)
    value = f"rank correlation {found.mean():.2f} mean, {found.min():.2f} least of {len(found)} queries"
    return Finding(value, found.mean().item() >= 0.5)


def moved(study: Study) -> Finding:
    """Whether the writes of layer 1 are nearest to the remapped embeddings that they ought to hold."""
    writes = {"numbers": study.shared(induction_writes.moved_to_numbers)}
    writes |= {f"=, {name}": found for name, found in study.shared(induction_writes.moved_to_equal).items()}
    pieces, holds = [], True
    for name, found in writes.items():
        hits, n = int(found.hit.sum()), len(found.hit)
        pieces.append(f"{name} {_share(hits, n)}, {found.explained.mean():.2f} of the write")
        holds = holds and hits / n >= 0.98
    return Finding("; ".join(pieces), holds)


def cut(study: Study) -> Finding:
    """Right answers with variables when one half of the head is cut, and when all of layer 1 but it is."""
    from mc_lib import induction_patching  # TransformerLens takes seconds to import

    table = study.shared(induction_patching.cuts)
    table = table[table["kind"] != "0-var"].set_index(["cut", "kind"])["share"].unstack()
    halves, rest = table.loc[["= to operands", "numbers to variables"]], table.loc["all but these three"]
    said = " / ".join(f"{share:.2f}" for share in halves.to_numpy().flatten())
    n = induction_patching.PER_SET
    value = f"{said} with a half cut, {rest.min():.3f} at least with all else cut (1-var and 2-var, n = {n} each)"
    return Finding(value, bool((halves <= 0.5).all(axis=None) and (rest >= 0.95).all()))


def swap(study: Study) -> Finding:
    """Answers that follow a swap on either side, and that stay under a swap on both."""
    from mc_lib import induction_patching

    table = study.shared(induction_patching.swaps).groupby("swap")[["n", "stay", "follow"]].sum()
    parts = [(what, "follow") for what in ("question", "assignments")] + [("question and assignments", "stay")]
    counts = [(int(table.loc[what, outcome]), int(table.loc[what, "n"])) for what, outcome in parts]
    pieces = [f"{what}: {_share(*count)} {out}" for (what, out), count in zip(parts, counts, strict=True)]
    return Finding("; ".join(pieces), all(hits / n >= 0.95 for hits, n in counts))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "attn.operands", CHAPTER, "section 5, Fig 4",
        "In layer 1, = looks at the two operands.",
        "one example", "top-2 1.00, mass .65 to .70", "top-2 on 0, 1, 2-var train >= .98",
        lambda study: attention(study, OPERANDS, TRAINED, 0.98),
        "A hit says that no other place gets more attention; the mass says how much these two get.",
    ),
    Claim(
        "attn.previous", CHAPTER, "section 5, Fig 4",
        "In layer 1, every assigned number looks at the variable before it.",
        "one example", "argmax 1.00, mass .95", "argmax on 0, 1, 2-var train >= .98",
        lambda study: attention(study, PREVIOUS, TRAINED, 0.98),
        "An item is a number among the assignments; distractors count like all others.",
    ),
    Claim(
        "attn.values", CHAPTER, "section 5, Fig 4",
        "In layer 2, = looks at the two right numbers.",
        "one example", "top-2 1.00, mass .81 / .69 / .59", "top-2 on 0, 1, 2-var train >= .98",
        lambda study: attention(study, VALUES, TRAINED, 0.98),
        "The mass is given for 0, 1 and 2 variables; what it lacks goes to numbers that are not asked for.",
    ),
    Claim(
        "attn.unseen", CHAPTER, "ours",
        "In layer 2, = looks at the right numbers also where a variable stands in a place never trained.",
        "-", "-", "top-2 of layer 2 on the var-restricted sets >= .95",
        lambda study: attention(study, VALUES, RESTRICTED, 0.95),
        "The paper shows attention for one trained sequence only.",
    ),
    Claim(
        "qk1.equal", CHAPTER, "section 5.2, Fig 6",
        "The token = prefers the two operands' positions in layer 1.",
        "black inset", ".89 and .89, others <= .13 (scaled)", "both above all other positions",
        equal_prefers,
    ),
    Claim(
        "qk1.variables", CHAPTER, "section 5.2, Fig 6",
        "Numbers, and the positions of assignments, prefer variables in layer 1.",
        "purple and orange outlines", "1.35 / 2.23, others < 1 (scaled)", "means above those of numbers and PAD",
        variables_preferred,
        "Other tokens never stand before an assigned number; their scores are free, and in some runs are higher.",
    ),
    Claim(
        "qk1.previous", CHAPTER, "section 5.2, Fig 7a",
        "The positions of assignments prefer the one before them.",
        "all", "9 of 9 (11 of 11 with two automatic)", "all, where the grammar leaves a choice",
        previous_preferred,
        "The second and the third place have a single place left to look at, so they hit whatever the weights are.",
    ),
    Claim(
        "qk1.right", CHAPTER, "section 5.2, Fig 6",
        "The score of positions for positions generally increases to the right.",
        "red outline", "-", "mean rank correlation of score and key's place >= .5",
        rightward,
        "Over the places of assignments, each query with the keys that it can see.",
    ),
    Claim(
        "ov1.moved", CHAPTER, "section 5.2",
        "After layer 1, numbers hold their variable's remapped embedding, and = those of the operands.",
        "stated", "-", "asked variables have the largest cosines with the write in >= .98, each",
        moved,
        "The share of the write is the part of its squared length in the span of these remapped embeddings.",
    ),
    Claim(
        "qk2.match", CHAPTER, "section 5.2, Fig 7b",
        "Layer 2 matches a variable that = has got with the same variable at a number.",
        "strictly, all", "12 of 12, margin 74 mean, 54 least (unscaled)", "all, least margin > 0",
        matches,
    ),
    Claim(
        "cause.cut", CHAPTER, "ours",
        "Variables need both halves of the head, and nothing else of layer 1.",
        "-", "-", "<= .5 with either half cut, >= .95 with all but the head cut",
        cut,
        "With it counts the second operand's look at the first, which balances layer 2 (see the page).",
    ),
    Claim(
        "cause.swap", CHAPTER, "ours",
        "The answer follows the remapped embedding, on either side of the match.",
        "-", "-", "follows >= .95 on either side, stays >= .95 on both",
        swap,
        "Only what layer 1 moved is changed, and no token; a random change as large leaves the answer.",
    ),
)  # fmt: skip
