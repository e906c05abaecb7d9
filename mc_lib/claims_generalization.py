"""The claims of chapter `generalization`: what a trained model answers right that training never showed.

A share is measured on a fixed set of sequences with the last saved weights; its bounds are Wilson's 95% interval. A
claim on several sets holds if each of them passes.
"""

from collections.abc import Callable, Sequence

import torch

from mc_lib import errors, task, thresholds
from mc_lib.claim import Claim, Finding, NotHere, Study
from mc_lib.config import Config
from mc_lib.evaluation import evaluation_sets, further_sets
from mc_lib.intervals import wilson
from mc_lib.model import Weights

CHAPTER = "generalization"
PAIRS_LEVEL, PRIMING_LEVEL = thresholds.LEVEL["fig3a"], thresholds.LEVEL["fig3b"]


def hits(weights: Weights, cfg: Config, name: str) -> tuple[int, int]:
    """How many sequences of a named set are answered right, and how many there are."""
    tokens = {**evaluation_sets(cfg), **further_sets(cfg)}[name]
    return (int(errors.right(weights, cfg, tokens).sum()) if len(tokens) else 0), len(tokens)


def held_out(cfg: Config, first: int, second: int) -> bool:
    """Whether training never sees this ordered number pair."""
    return bool(task.held_out_mask(cfg)[first, second])


def same_variable_hits(weights: Weights, cfg: Config, numbers: tuple[int, ...]) -> tuple[int, int]:
    """Hits and size of the part of the set "v + v" whose variable stands for one of these numbers."""
    tokens = further_sets(cfg)["v + v"]
    chosen = torch.isin(task.operands(tokens, cfg).numbers[:, 0], torch.tensor(numbers, dtype=torch.long))
    tokens = tokens[chosen]
    return (int(errors.right(weights, cfg, tokens).sum()) if len(tokens) else 0), len(tokens)


def spell(name: str, right: int, n: int) -> str:
    """One set's share with its interval, as it stands in a table."""
    low, high = wilson(right, n)
    return f"{name}: {right / n:.3f} [{low:.3f}, {high:.3f}]"


def _at_least(bound: float, names: Sequence[str]) -> Callable[[Study], Finding]:
    """Each of these sets is answered right in a share of at least `bound`."""

    def measure(study: Study) -> Finding:
        found = {name: study.shared(hits, name) for name in names}
        empty = [f"{name}: none can be drawn" for name, (_, n) in found.items() if not n]
        found = {name: pair for name, pair in found.items() if pair[1]}
        if not found:
            raise NotHere("this run's settings leave no such sequence to draw")
        text = "; ".join([spell(name, *pair) for name, pair in found.items()] + empty)
        sizes = sorted({n for _, n in found.values()})
        holds = all(right >= bound * n for right, n in found.values())
        return Finding(f"{text} (n = {', '.join(map(str, sizes))} each)", holds)

    return measure


def _threshold(over: thresholds.Over) -> Callable[[Study], Finding]:
    """The threshold that a sweep beside the run gives; where chance gives one as easily, nothing is claimed."""

    def measure(study: Study) -> Finding:
        table = thresholds.read(thresholds.folder_for(study.run, over), over)
        found = thresholds.points(table, over, thresholds.PARTS[over][0])
        if found.empty:
            raise NotHere("the sweep's settings leave no such sequence to ask")
        at = thresholds.threshold(found, thresholds.LEVEL[over])
        told = f"{at}; {len(found)} runs at {found.index.nunique()} values, n = {found.n.min():,} to {found.n.max():,}"
        if at.chance >= thresholds.RARE:
            raise NotHere(f"the runs differ too much to tell: {told}")
        return Finding(told, True)

    return measure


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "gen.train",
        CHAPTER,
        "section 4, Fig 2",
        "The trained kinds of sequences, with none, one and two variables, are solved almost perfectly.",
        "near-perfect",
        "1.00 / 1.00 / .99",
        "each share is at least .98",
        _at_least(0.98, ("0-var train", "1-var train", "2-var train")),
        "Fresh sequences: training repeats none, so this is no test of memory, but nothing in them is held out.",
    ),
    Claim(
        "gen.pairs",
        CHAPTER,
        "section 4, Fig 2",
        "Number pairs that training never showed are added right, whatever the number of variables.",
        "solved",
        ".994 / .996 / .981",
        "each share is at least .97",
        _at_least(0.97, ("0-var add-restricted", "1-var add-restricted", "2-var add-restricted")),
        "Held-out pairs are ordered, and most have their mirror in training: see gen.strict and gen.diagonal.",
    ),
    Claim(
        "gen.positions",
        CHAPTER,
        "section 4, Fig 2",
        "Variables are used right as operands in places where training never showed them.",
        "solved",
        "1.00 / .979 / .997",
        "each share is at least .95",
        _at_least(0.95, ("1-var var-restricted", "2-var var-restricted (1)", "2-var var-restricted (2)")),
        "Shares over time go up and down by some hundredths: one final step is a draw from that.",
    ),
    Claim(
        "gen.strict",
        CHAPTER,
        "ours",
        "Pairs held out in both orders, off the diagonal, are added right as well.",
        "-",
        "1.00",
        "the share is at least .97",
        _at_least(0.97, ("0-var both orders out",)),
        "A model that knows n + m = m + n can answer the other held-out pairs from their mirror, but not these.",
    ),
    Claim(
        "gen.diagonal",
        CHAPTER,
        "ours",
        "Held-out pairs (n, n) are added right.",
        "-",
        ".65",
        "the share is at least .97",
        _at_least(0.97, ("0-var diagonal out",)),
        "In the paper's task there are only 20 such pairs; the sequences draw them in many contexts.",
    ),
    Claim(
        "gen.both",
        CHAPTER,
        "ours",
        "A held-out pair and a variable in a place never trained may come together.",
        "-",
        ".982",
        "each share is at least .95",
        _at_least(0.95, ("1-var both restricted", "2-var both restricted")),
        "None of the paper's sets asks for both at once.",
    ),
    Claim(
        "gen.same",
        CHAPTER,
        "ours",
        "The same variable may stand in both places: v + v.",
        "-",
        ".846",
        "the share is at least .95",
        _at_least(0.95, ("v + v",)),
        "Training asks for two different variables only. The set holds all sums n + n, held out or not.",
    ),
    Claim(
        "fig3.pairs",
        CHAPTER,
        "section 4, Fig 3a",
        "A minimum share of the number pairs is needed in training for all of 0-var to be solved.",
        "a threshold",
        "-",
        f"runs answer {PAIRS_LEVEL} of all held-out pairs more often above a split of the shares than below it, and "
        f"chance would give such a split in less than {thresholds.RARE} of draws",
        _threshold("fig3a"),
        "Runs are the units: what a run's luck decides is not taken for the data's doing.",
        many=True,
    ),
    Claim(
        "fig3.priming",
        CHAPTER,
        "section 4, Fig 3b",
        "A minimum share of 2-variable sequences is needed in training for all of 2-var to be solved.",
        "a threshold",
        "-",
        f"likewise, for {PRIMING_LEVEL} of the 2-variable union and the factors on 2-variable sequences",
        _threshold("fig3b"),
        "Runs are the units: what a run's luck decides is not taken for the data's doing.",
        many=True,
    ),
)
