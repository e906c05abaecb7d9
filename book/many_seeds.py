# %% [markdown]
# # Many seeds: what is law, and what is luck
#
# The paper looks into one trained model, shows the accuracies of a second one (its Figure 10), and expects other random
# starts to behave alike. Here the same settings are trained from seed 0 on, one run a seed, and every run counts: those
# that jump early, those that jump late, and those that never do. So each statement of the book can be asked again, not
# of a model but of the way such models come about: *on how many seeds?*

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import pandas as pd
from IPython.display import HTML, display

from mc_lib import claims, explorer, figures, many, phases, verdicts
from mc_lib import figures_seeds as drawn
from mc_lib.claim import NotHere
from mc_lib.evaluation import NINE
from mc_lib.intervals import exact
from mc_lib.runs import open_run

# %%
run = open_run(RUN)
folder = many.find(run, many.SEEDS)
seeds = many.read(folder)
cfg, last = seeds[0].run.config, seeds[0].marks.last
print(f"{folder.name}: {len(seeds)} seeds, {seeds[0].number} to {seeds[-1].number}, {last:,} steps each")
if many.settings(cfg) != many.settings(run.config):
    print(f"(trained with other settings than {run.name}: this page is about them, not about it)")

# %% [markdown]
# ## When it happens
#
# Three events are waited for. **Jump 1** and **jump 2** are those of the chapter on generalization: the first
# evaluation at which the trained 1-variable sequences are 90% right, and the one at which those with a variable in a
# place never trained are. A seed is **solved** at its first evaluation with all nine accuracies at 98%; one that is
# solved by its last step *generalises*. It need not stay there: accuracies go up and down by some hundredths, and nine
# of them have to be high at once. What has not come by the last step comes later or never, and the run cannot tell
# which. In the language of survival analysis it is censored, and stays in the count of those who wait.

# %%
tables = {event: many.waiting(seeds, event) for event in many.EVENTS}

# %% tags=["hide-input"]
figures.show(
    drawn.survival(tables),
    f"Share of {len(seeds)} seeds that still wait, by step, with exact 95% intervals, point by point, as bands. A "
    "curve that does not come down to 0 ends at the seeds for which the event has not happened.",
    "Three falling step curves: seeds that wait for the first jump, for the second jump, and to be solved.",
)

# %%
for event, table in tables.items():
    middle = many.middle_step(seeds, event)
    print(f"{event}: median step {'beyond the end' if middle is None else f'{middle:,}'}")
    for step in sorted({min(20_000, last), last}):
        done = len(seeds) - int(table.left.loc[:step].iloc[-1])
        low, high = exact(done, len(seeds))
        print(f"  by step {step:,}: {done} of {len(seeds)} seeds, {done / len(seeds):.2f} [{low:.2f}, {high:.2f}]")

# %% [markdown]
# All seeds, none left out. *Kept* is the share of evaluations, from the one that solved a seed on, in which all nine
# accuracies are at 98% again; then comes the lowest of the nine at the last step. The last column names the cell (a
# variable on a side) that reaches 90% after all others that training never shows; where some never do, those.

# %%
stories = many.stories(seeds)
print(stories.astype(object).fillna({"kept": "-"}).fillna("never").to_string())
at_end = sum(seed.lowest >= many.SOLVED for seed in seeds)
print(f"\nall nine at {many.SOLVED:.0%} at the last step: {at_end} of {len(seeds)} seeds")
print(", ".join(f"{fate}: {(stories.fate == fate).sum()}" for fate in many.FATES))

# %% [markdown]
# ## The paper's pair, among all pairs
#
# The paper's Figures 2 and 10 are two runs, whose curves jump at different times. Any two of these are such a pair.

# %% tags=["hide-input"]
figures.show(
    drawn.jumps(seeds),
    "Each seed's two jumps, and those of the authors' released run. Open points at the edges: not yet, or never. The "
    "farther above the dotted line, the longer the time between the jumps.",
    "A point a seed: the step of the first jump across, that of the second upward, both on logarithmic axes.",
)

# %%
both = stories[stories.fate == many.FATES[0]]
steps = both[["jump 1", "jump 2"]].astype(float)
print(f"{len(both)} seeds with both jumps")
if len(both) > 2:
    print((steps.describe().loc[["min", "25%", "50%", "75%", "max"]]).astype(int).to_string())
    later = [steps["jump 2"].iloc[[i, j]] for i in range(len(both)) for j in range(i)]
    apart = sum(pair.max() >= 2 * pair.min() for pair in later)
    print(f"second jumps a factor of 2 or more apart: {apart} of {len(later)} pairs of seeds")

# %% [markdown]
# ## The nine accuracies
#
# Thin lines are seeds, coloured by what becomes of them; the thick one is the median of all, and the band holds the
# middle half. The menu picks the set. A median is a poor summary of a jump: where single seeds leap, it climbs. Drawn
# are some of the evaluations, fewer for a step the later they come: late leaps look a little slower than they are.

# %% tags=["hide-input"]
figures.show(
    drawn.spaghetti(seeds),
    f"Accuracy of {len(seeds)} seeds over training, one set at a time.",
    "Thin lines that leap at different steps, and a thick median line with a band of quartiles.",
)

# %%
spreads = {name: many.spread(seeds, name) for name in NINE}
for step in sorted({min(at, last) for at in (1_000, 5_000, 10_000, 20_000, 30_000)}):
    rows = {name: table.loc[:step].iloc[-1] for name, table in spreads.items() if len(table)}
    print(f"step {step:,}: quartiles and median\n" + pd.DataFrame(rows).T.round(3).to_string() + "\n")

# %% [markdown]
# ## Does the order ever break?
#
# Addition, then binding, then the places never trained: in this order the paper's run learns. A seed breaks it if a
# later part comes before an earlier one, in the same evaluation, or without it.

# %%
verdict = {seed.number: many.in_order(seed) for seed in seeds}
for answer, text in ((True, "in this order"), (False, "out of order"), (None, "in this order so far, not all of it")):
    found = [number for number, value in verdict.items() if value is answer]
    low, high = exact(len(found), len(seeds))
    print(
        f"{text}: {len(found)} of {len(seeds)} [{low:.2f}, {high:.2f}]"
        + (f" (seeds {', '.join(map(str, found))})" if found else "")
    )
for seed in seeds:
    if verdict[seed.number] is False:
        print(f"  seed {seed.number}: {many.order_of(seed)}")

# %% [markdown]
# ## Who comes last
#
# The paper's second jump is one cell, `b second`. Which of the cells that training never shows is the last one to be
# solved, on each seed that has bound variables at all? If one were always the hardest, it would be last again and
# again; if they are alike, each is last about equally often.

# %%
bound = [seed for seed in seeds if seed.marks.first]
lasts = {seed.number: many.last_cells(seed) for seed in bound}
print(f"last alone, of {len(bound)} seeds with a first jump:")
for cell in phases.restricted_cells(cfg) if bound else []:
    count = sum(cells == [cell] for cells in lasts.values())
    low, high = exact(count, len(bound))
    print(f"  {cell:10} {count:2}  {count / len(bound):.2f} [{low:.2f}, {high:.2f}]")
shared = {number: cells for number, cells in lasts.items() if len(cells) > 1}
print("last together: " + ("; ".join(f"seed {n}: {', '.join(cells)}" for n, cells in shared.items()) or "none"))

# %% [markdown]
# ## Can it be told early?
#
# Does anything that is logged at step 1,000 go with what becomes of a seed? For each outcome we rank-correlate every
# logged measure with it. Among so many measures some will correlate by chance, so what counts is how often the
# *strongest* correlation would be as strong if outcomes were dealt to the seeds at random: the number called chance.
# (Its smallest possible value is one in the number of draws, some thousands.)

# %%
early = many.early_measures(seeds, 1_000)
outcomes = {
    "no jump 1 to the end": pd.Series([seed.marks.first is None for seed in seeds]).to_numpy(float),
    "a late jump 1": many.ranked_steps(seeds, "jump 1"),
    "a late jump 2": many.ranked_steps(seeds, "jump 2"),
}
begun = sum(at is not None and at <= 1_000 for at in (seed.steps["jump 1"] for seed in seeds))
print(f"{len(early.columns)} measures of {len(early)} seeds, {begun} of which have made jump 1 by step 1,000")

# %%
for name, outcome in outcomes.items():
    try:
        found = many.foretold(early, outcome)
    except NotHere as reason:
        print(f"\n{name}: {reason}")
        continue
    print(f"\n{name}: strongest |rank correlation| {found.correlations.abs().iloc[0]:.2f}, chance {found.chance:.2f}")
    for measure, value in found.correlations.head(3).items():
        print(f"  {value:+.2f}  {measure}")

# %% [markdown]
# The same at other steps, strongest correlation and chance only. A small chance means that the seeds' ways have parted
# by then; it does not mean that the measure named is what parts them. And each number in the table is a try of its own:
# of a dozen, one below .08 is no surprise.

# %%
rows = {}
for step in sorted({min(at, last) for at in (100, 500, 1_000, 1_500)}):
    for name, outcome in outcomes.items():
        try:
            found = many.foretold(many.early_measures(seeds, step), outcome)
            rows[step, name] = f"{found.correlations.abs().iloc[0]:.2f} ({found.chance:.2f})"
        except NotHere:
            rows[step, name] = "-"
print(pd.Series(rows).unstack().to_string())

# %% [markdown]
# And plainly, what the seeds that never jump have at step 1,000, beside the range of all others:

# %%
stuck = [seed.number for seed in seeds if seed.marks.first is None]
if 0 < len(stuck) < len(seeds):
    rest = early.drop(index=stuck)
    outside, usual = many.outsiders(early, stuck)
    print(f"outside the others' range on every seed that never jumps: {len(outside)} of {len(early.columns)} measures")
    print(f"(any {len(stuck)} of the seeds: {usual:.1f} measures on average)")
    beside = pd.DataFrame({f"seed {n}": early.loc[n] for n in stuck} | {"least": rest.min(), "most": rest.max()})
    print(beside.loc[outside].round(3).to_string() if outside else "")
else:
    print("every seed has jumped" if not stuck else "no seed has jumped")

# %% [markdown]
# ## Which frequencies
#
# Models that add modulo $p$ tend to carry numbers on waves of a few frequencies {cite}`nanda2023`. For a prime modulus
# none is special: multiplying all numbers by a constant renames the frequencies and leaves the task as it was. Only the
# choice of the pairs held out, the same for all these seeds, could favour some. Does each seed pick its own? The last
# line says how often sets as large as these, renamed at random, are spread over the frequencies as unevenly.

# %%
shares = many.frequencies(seeds)
picks = many.carried(shares)

# %% tags=["hide-input"]
figures.show(
    drawn.frequency_map(shares),
    "Share of each frequency in the power of the number embedding at the last step.",
    "A map with a row for each seed and a column for each frequency: a few bright cells in each row.",
)

# %%
for seed in seeds:
    chosen = sorted(picks.columns[picks.loc[seed.number]])
    print(f"seed {seed.number:2}: {len(chosen):2} carry nine tenths of the power: {', '.join(map(str, chosen))}")
counts = picks.sum()
print(
    f"\na frequency is picked by {counts.min()} to {counts.max()} of {len(seeds)} seeds, {counts.mean():.1f} on average"
)
print(f"renamed at random, as unevenly as this or more: {many.favoured(picks, cfg.p):.4f} of draws")

# %% [markdown]
# If that is rare, the seeds share a preference, and the split into training and held-out pairs is all that can have
# given it to them. Whoever doubts it trains seeds with another split (`sweep ... --split-seed 7`) and looks again.

# %% [markdown]
# ## Claims by seeds
#
# Every claim of the book that a single run can decide, measured on every seed with the rule that its chapter states.
# A claim about a jump cannot be asked of a seed that has not made it. Two columns are counted: all seeds, and those
# that generalise. For the first claims the second count nearly follows from its condition; for what is said of the
# mechanism and of training it does not.

# %%
table = verdicts.of_runs(folder, [seed.run for seed in seeds], claims.CLAIMS)
grid = verdicts.grid(table)
values = table.pivot(index="claim", columns="run", values="value")

# %% tags=["hide-input"]
figures.show(
    drawn.claims_map(grid, values, seeds),
    "Claims by seeds, grouped by what became of the seed: " + ", ".join(many.FATES) + ". Hover for what was measured.",
    "A map with a row for each claim and a column for each seed, coloured by verdict.",
)

# %%
solved = [seed.run.name for seed in seeds if seed.solved is not None]
every, some = verdicts.shares(grid), verdicts.shares(grid[[name for name in grid if name in solved]])
counted = pd.DataFrame(index=every.index)
for name, part in (("all seeds", every), ("that generalise", some)):
    counted[name] = [f"{row.holds} of {row.asked}" for row in part.itertuples()]
    counted[f"95% {name}"] = [f"[{row.low:.2f}, {row.high:.2f}]" if row.asked else "-" for row in part.itertuples()]
print(f"holds on how many of {len(seeds)} seeds, and of the {len(solved)} that generalise\n" + counted.to_string())

# %%
failing = some[(some.asked > 0) & (some.share < 0.9)]
print("claims that fail on more than a tenth of the seeds that generalise and can be asked (* beyond doubt):")
for row in failing.itertuples():
    sure = "*" if row.high < 0.9 else " "
    print(f"{sure} {row.Index}: holds on {row.holds} of {row.asked}, {row.share:.2f} [{row.low:.2f}, {row.high:.2f}]")
print("" if len(failing) else "  none")

# %% [markdown]
# Does any claim hold more often on the seeds that never jump than on those that do?

# %%
never = [seed.run.name for seed in seeds if seed.marks.first is None]
jumped = [seed.run.name for seed in seeds if seed.marks.first is not None]
one, other = verdicts.shares(grid[never]), verdicts.shares(grid[jumped])
for claim in one.index[(one.share > other.share).to_numpy()]:
    held, beside = one.loc[claim], other.loc[claim]
    print(
        f"{claim}: {held.holds:.0f} of {held.asked:.0f} without a jump, {beside.holds:.0f} of {beside.asked:.0f} with"
    )
print(f"({len(never)} seeds without a jump, {len(jumped)} with)")

# %% [markdown]
# ## One seed's story
#
# Any seed, with its accuracies, progress measures, the cells never trained or the layer-1 scores, and the claims that
# do not hold on it:

# %% tags=["hide-input", "nbval-ignore-output"]
explorer.seeds(RUN)

# %% tags=["hide-input"]
figures.show(
    drawn.story(seeds),
    "The nine accuracies of one seed, and its jumps; the menu picks the seed. " + explorer.HOW,
    "Nine curves of one seed over the steps of training, with a menu of seeds.",
)

# %%
for seed in seeds:
    failed = [claim for claim in grid.index if grid.loc[claim, seed.run.name] == "does not hold"]
    print(f"seed {seed.number}, {seed.fate}: {len(failed)} claims do not hold")
    print(f"   {', '.join(failed)}")

# %% [markdown]
# ## Law or luck
#
# What these seeds bear out, one and all, has a claim to be law for this task and model, as far as so few can tell. What
# some do and some do not is luck, or hangs on something that nobody has named yet.

# %%
asked = some[some.asked > 0]
for text, rows in (
    ("on every seed that generalises", asked[asked.holds == asked.asked]),
    ("on some", asked[(asked.holds > 0) & (asked.holds < asked.asked)]),
    ("on none", asked[asked.holds == 0]),
):
    print(f"holds {text}: {len(rows)} claims\n  {', '.join(rows.index)}")

# %% [markdown]
# ## The claim of this chapter

# %%
found = claims.table(claims.of_chapter("many_seeds"), claims.Study(run))
display(HTML(claims.table_html(found)))
for row in found.itertuples():
    print(f"{row.claim}: {row.verdict}")
    print(f"  {row.here}")
