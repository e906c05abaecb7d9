"""The claim of chapter `many_seeds`: that the others hold whatever the seed.

It is about the seeds saved beside a run and their table of verdicts; `verdicts` makes that table.
"""

from mc_lib import claims_addition, claims_dynamics, claims_generalization, claims_induction, many, verdicts
from mc_lib.claim import Claim, Finding, NotHere, Study
from mc_lib.intervals import exact

CHAPTER = "many_seeds"
MOST = 0.9  # share of seeds on which the paper's claims have to hold
OTHERS = (
    *claims_generalization.CLAIMS,
    *claims_addition.CLAIMS,
    *claims_induction.CLAIMS,
    *claims_dynamics.CLAIMS,
)
PAPERS = frozenset(claim.id for claim in OTHERS if claim.where != "ours")


def measure_seeds(study: Study) -> Finding:
    """Shares over the seeds saved beside the run: of those that generalise, and of the paper's claims on these."""
    folder = many.beside(study.run, many.SEEDS)
    saved = None if folder is None else verdicts.read(folder)
    if folder is None or saved is None:
        raise NotHere("needs a folder of seeds with its claims.csv beside the run: one run cannot tell")
    seeds = many.read(folder)
    if not verdicts.current(saved, [seed.run for seed in seeds], OTHERS):
        raise NotHere(
            f"{folder.name}/claims.csv is of other runs: write it with python -m mc_lib claims on that folder"
        )
    if many.settings(seeds[0].run.config) != many.settings(study.config):
        raise NotHere(f"the seeds in {folder.name} were trained with other settings than this run")
    solved = [seed.run.name for seed in seeds if seed.solved is not None]
    if not solved:
        raise NotHere(f"none of {len(seeds)} seeds generalises in {seeds[0].run.step} steps")
    grid = verdicts.grid(saved)
    shares = verdicts.shares(grid[[name for name in grid if name in solved]])
    shares = shares[(shares.asked > 0) & shares.index.isin(PAPERS)]
    few = shares[shares.share < MOST]
    low, high = exact(len(solved), len(seeds))
    told = ", ".join(f"{row.Index} {row.holds} of {row.asked}" for row in few.itertuples())
    value = (
        f"{len(solved)} of {len(seeds)} seeds generalise [{low:.2f}, {high:.2f}]; of the paper's {len(shares)} claims "
    )
    value += f"{len(shares) - len(few)} hold on {MOST:.0%} of these or more" + (f", not: {told}" if told else "")
    return Finding(value, few.empty and len(solved) >= MOST * len(seeds))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "dyn.seeds",
        CHAPTER,
        "section 3, Fig 10",
        "The findings hold across initializations.",
        "expected",
        "untested",
        f"at least {MOST:.0%} of the seeds generalise, and each of the paper's claims holds on at least as many of "
        "those that do and can be asked",
        measure_seeds,
        "A seed generalises if all nine accuracies are at .98 in one evaluation. Claims that we add do not count. "
        "Shares are compared as they are: with few seeds, an interval that holds 90% is no proof against it.",
        many=True,
    ),
)
