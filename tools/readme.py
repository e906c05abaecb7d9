"""The tables of README.md, each between its two marks, printed from what was measured.

python -m tools.readme      writes them anew: the benchmark's from bench/results, the claims' from runs
"""

import json
from pathlib import Path

import pandas as pd

from mc_lib import many, verdicts
from mc_lib.claims import CLAIMS, Study
from mc_lib.phases import phases
from mc_lib.runs import Run, open_run
from mc_lib.storage import put

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MAIN_RUN = ROOT / "runs" / "main"
SEEDS = ROOT / "runs" / "seeds"
BY, APART = 20_000, 1_000  # what the main run has to do: be solved by this step, its jumps so far apart
TRIED_HEAD = "| seed | steps trained | jump 1 | jump 2 | all nine sets first at 98% | main run |\n" + "|---" * 6 + "|"
BENCH = ROOT / "bench" / "results" / "cpu.json"
VARIANTS = {
    "a": "all positions, dead layer-1 MLP (as released)",
    "a_no_dead_mlp": "all positions, no layer-1 MLP",
    "b": "`mc_lib.train`, float32",
    "b_bfloat16": "`mc_lib.train`, bfloat16 autocast",
}


def bench_table(result: dict) -> str:
    """How long a training step takes, beside the usual way and the arithmetic floor."""
    steps, base, floor = result["steps"], result["steps"]["a"]["cpu_ms"], result["floor_ms"]
    lines = ["| one training step, one thread | CPU ms | wall ms | faster than as released |", "|---|---|---|---|"]
    for name, label in VARIANTS.items():
        row = steps[name]
        lines.append(f"| {label} | {row['cpu_ms']:.1f} | {row['wall_ms']:.1f} | {base / row['cpu_ms']:.1f}x |")
    lines.append(f"| arithmetic floor of `mc_lib.train`, float32 | {floor:.1f} | | {base / floor:.1f}x |")
    text = (
        f"Measured by `make bench` on {result['machine']}: {result['operations'] / 1e6:.0f} million matrix operations "
        f"a step at {result['matrix_rate'] / 1e9:.0f} billion a second, so training in float32 takes "
        f"{steps['b']['cpu_ms'] / floor:.1f} times its floor. Drawing a batch alone takes {result['batch_ms']:.2f} ms, "
        f"an evaluation {result['evaluation_ms']:.0f} ms; peak memory is {result['peak_memory_mb']:.0f} MB."
    )
    return "\n".join([*lines, "", text])


def claims_table(study: Study) -> str:
    """Every claim, whether it holds on the main run, and on how many of the seeds that generalise."""
    seeds = many.read(SEEDS)
    solved = [seed.run.name for seed in seeds if seed.solved is not None]
    by_seed = verdicts.shares(verdicts.grid(verdicts.of_runs(SEEDS, [seed.run for seed in seeds], CLAIMS))[solved])
    lines = ["| claim | in words | on `runs/main` | seeds | 95% interval |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        row = "| | |" if claim.many or not by_seed.asked[claim.id] else _of_seeds(by_seed.loc[claim.id])
        lines.append(f"| `{claim.id}` | {claim.statement} | {claim.on(study).verdict} {row}")
    text = (
        f"Seeds: {len(solved)} of {len(seeds)} generalise, which is to say that all nine accuracies are at "
        f"{many.SOLVED:.0%} in one evaluation by step {seeds[0].run.step:,}. Counted is on how many of these the claim "
        "holds, of those that can be asked; the interval is exact. `gen.train` and the two claims after it nearly "
        "follow from having generalised. Claims without a count are about many runs."
    )
    return "\n".join([*lines, "", text])


def _of_seeds(row: pd.Series) -> str:
    return f"| {row.holds:.0f} of {row.asked:.0f} | {row.low:.2f} to {row.high:.2f} |"


def tried(run: Run) -> str:
    """How a seed fared, as a row of the table in runs/main/README.md."""
    metrics, marks = run.metrics, phases(run.metrics)
    first = many.solved_step(metrics)
    one, two = (jump.ends if jump else None for jump in (marks.first, marks.second))
    apart = two - one if one is not None and two is not None else 0
    chosen = first is not None and first <= BY and apart >= APART
    steps = ["never" if step is None else f"{step:,}" for step in (run.step, one, two, first)]
    return f"| {run.config.seed} | {' | '.join(steps)} | {'chosen' if chosen else 'no'} |"


def tried_table() -> str:
    """All seeds up to the main run's, in order."""
    main = open_run(MAIN_RUN)
    runs = [open_run(SEEDS / f"{seed:03d}") for seed in range(main.config.seed)] + [main]
    return "\n".join([TRIED_HEAD, *map(tried, runs)])


def replace(text: str, mark: str, table: str) -> str:
    """The text with what stands between the mark and its end replaced."""
    before, rest = text.split(f"<!-- {mark} -->")
    after = rest.split(f"<!-- /{mark} -->")[1]
    return f"{before}<!-- {mark} -->\n\n{table}\n\n<!-- /{mark} -->{after}"


def readme() -> str:
    """README.md as it should stand."""
    text = README.read_text()
    if BENCH.exists():
        text = replace(text, "bench", bench_table(json.loads(BENCH.read_text())))
    return replace(text, "claims", claims_table(Study(open_run(MAIN_RUN))))


def main_readme() -> str:
    """runs/main/README.md as it should stand."""
    return replace((MAIN_RUN / "README.md").read_text(), "seeds", tried_table())


if __name__ == "__main__":
    put(README, readme().encode())
    put(MAIN_RUN / "README.md", main_readme().encode())
