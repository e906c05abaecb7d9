# %% [markdown]
# # Generalization: what was never shown
#
# A model that has been trained on some combinations of variables, places and numbers answers most others as well. This
# page follows one run from its first step to its last, asks it everything that training withheld, and is stricter than
# the paper's Section 4 in two ways. It takes the held-out number pairs apart, because most of them could be answered
# by swapping the two numbers of a trained pair. And it combines what the paper withholds one at a time.

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import pandas as pd
from IPython.display import HTML, display

from mc_lib import claims, errors, explorer, figures, figures_seeds, many, phases, routing, thresholds
from mc_lib import claims_generalization as measured
from mc_lib import figures_learning as drawn
from mc_lib.config import KINDS
from mc_lib.evaluation import FURTHER, NINE
from mc_lib.intervals import wilson
from mc_lib.runs import open_run

study = claims.Study(open_run(RUN))
run, weights, cfg = study.run, study.weights, study.config
marks = phases.phases(run.metrics)
print(f"modulus {cfg.p}, {cfg.variables} variables, {cfg.heads} head(s), weights after {run.steps[-1]} steps")

# %% [markdown]
# ## Three phases
#
# Nine fixed sets of sequences follow the run (the page on the task shows one sequence of each). Their names tell how
# many variables are asked for, and what in them training never showed: nothing (*train*), the number pair
# (*add-restricted*), or the place of a variable (*var-restricted*; of two variables, one or both). This is the paper's
# Figure 2, to the end of the run.
#
# The paper speaks of three phases, parted by two sudden rises. We mark them by rule, not by hand. The **first jump** is
# the rise of *1-var train*, the **second jump** that of *1-var var-restricted*. A jump ends at the first evaluation at
# or above .9, and it begins at the last one before that which is still below .8. **Addition** is the time before the
# first jump, **binding** the time between the jumps, **refinement** the time from the second jump on.

# %% tags=["hide-input"]
lines = {name: (phases.curve(run.metrics, name), figures.set_style(name)) for name in NINE}
lines = {name: line for name, line in lines.items() if len(line[0])}
if lines:
    figures.show(
        drawn.over_steps(lines, marks, "share right"),
        f"The nine accuracies to step {marks.last:,}; shaded, the {len(marks.spans)} phases of this run. Solid: as in "
        "training; dashed: held-out pairs; dotted: variables in places never trained.",
        "Nine curves over the steps of training. Sequences without variables are solved first; the others rise later.",
    )
else:
    print("this run has no metrics over training: only its saved weights can be asked")

# %%
for span in marks.spans:
    print(f"{span.name:11} steps {span.start} to {span.end}{'' if span.complete else ' (the run ends before it does)'}")
for name, rise in (("first", marks.first), ("second", marks.second)) if lines else ():
    print(f"{name} jump: " + (f"{rise}" if rise else f"none in {marks.last} steps"))

# %% [markdown]
# The order in which the sets are solved can be read off by thresholds. A set that is past a threshold once need not
# stay there: the last column counts later evaluations that fell below .9 again.

# %%
table = pd.DataFrame(index=pd.Index(list(lines), name="first step at or above"))
for level in (0.5, 0.9, 0.99):
    table[f"{level}"] = [phases.first_step(line, level) for line, _ in lines.values()]
table["fell back"] = [
    int((line.loc[at:] < 0.9).sum()) if at == at else None
    for (line, _), at in zip(lines.values(), table["0.9"].astype(float), strict=True)
]
print(table.astype("Int64").to_string(na_rep="never") if len(table) else "no metrics: nothing to read off")

# %% [markdown]
# ## At the end
#
# The curated sets, and under them the stricter ones: held-out pairs whose mirror was trained on, pairs held out in
# both orders, and pairs $(n, n)$, which are their own mirror; a held-out pair together with a variable in a place never
# trained; and the same variable twice, $v + v$. A model that has merely noticed that $n + m = m + n$ can pass the
# first of these, and only the first.

# %%
rows = []
for name in (*NINE, *FURTHER):
    hits, n = study.shared(measured.hits, name)
    if n:
        rows.append((name, hits / n, *wilson(hits, n), hits, n))
found = pd.DataFrame(rows, columns=["set", "share", "low", "high", "right", "n"])

# %% tags=["hide-input"]
colours = [figures.VAR_COLOURS.get(name[:5], figures.VAR_COLOURS["2-var"]) for name in found["set"]]
figures.show(
    drawn.shares(list(zip(found["set"], found.share, found.low, found.high, colours, strict=True))),
    f"Share right after {run.steps[-1]:,} steps, with 95% intervals; n = {found.n.max()} sequences a set. Blue: no "
    "variable, orange: one, green: two.",
    f"A point a set. The lowest is {found['set'][found.share.idxmin()]}.",
)

# %%
print(found[["set", "share", "low", "high", "n"]].round(3).to_string(index=False))

# %% [markdown]
# ## Which numbers fail
#
# Shares hide *what* fails. So we ask every ordered number pair, each in several sequences of each kind with other
# variables, distractors and layouts, and mark all pairs that are not always answered right.

# %%
maps = {kind: errors.pair_accuracy(weights, cfg, kind) for kind in range(4)}

# %% tags=["hide-input"]
figures.show(
    drawn.pair_map(maps, cfg),
    f"All ordered number pairs, {errors.CONTEXTS} sequences a pair and kind; the buttons choose the kind. Marked: "
    "pairs with a wrong answer, darker the more of them are wrong.",
    "A square map of number pairs with marks where the model errs.",
)

# %%
counts = {KINDS[kind]: errors.by_class(accuracy, cfg) for kind, accuracy in maps.items()}
table = pd.DataFrame(counts).map(lambda pair: f"{pair[0]} of {pair[1]}")
print("sequences answered right\n" + table.to_string())

# %%
double = [n for n in range(cfg.p) if maps[0][n, n] == 0]
bad, on_diagonal = int((maps[0] < 1).sum()), int((maps[0].diagonal() < 1).sum())
print(f"without variables, {bad} pairs are not always right, {on_diagonal} of them on the diagonal")
some = ", ".join(map(str, double[:12])) + ", ..." * (len(double) > 12)
print(f"n + n never right for {len(double)} of the {cfg.p} numbers" + (f": {some}" if double else ""))

# %% [markdown]
# Off the diagonal, a held-out pair has much help: training shows both of its numbers beside many others, and the model
# adds images of numbers without regard to their order. A doubled image $(n, n)$ comes from one pair alone. If that one
# is held out, no example of this input is left. This is a reading, not a proof, but it predicts something: where a
# variable is asked for twice, $v + v$ should fail for just these numbers, although training never asked for any
# variable twice.

# %%
classes = {"trained": [], "held out": []}
for n in range(cfg.p):
    classes["held out" if measured.held_out(cfg, n, n) else "trained"].append(n)
for name, members in classes.items():
    hits, n = study.shared(measured.same_variable_hits, tuple(members))
    print(f"v + v with (n, n) {name}: {measured.spell('share right', hits, n) if n else 'no such pair'}, n = {n}")

# %% [markdown]
# Any kind of sequence, any variable, either side, any saved step:

# %% tags=["hide-input", "nbval-ignore-output"]
explorer.grid(RUN)

# %% tags=["hide-input"]
figures.show(
    explorer.grid_figure(run),
    "Sequences with one variable, standing first, over all ordered number pairs at saved steps: per cent right. "
    + explorer.HOW,
    "A square map of number pairs with a slider of steps; it fills from scattered cells to nearly all.",
)

# %%
print("one variable, first: share right, one sequence a pair")
print(explorer.grid_table(run).round(2).iloc[::3].to_string())

# %% [markdown]
# ## When they fail
#
# Were the pairs $(n, n)$ never learned, or lost? The saved checkpoints tell, with the sequences without variables taken
# apart by class of number pair.

# %%
steps = phases.chosen_steps(run.steps, marks)
over = pd.DataFrame(
    {step: errors.by_class(errors.pair_accuracy(run.weights(step), cfg, 0), cfg) for step in steps}
).T.map(lambda pair: pair[0] / pair[1])

# %% tags=["hide-input"]
styles = drawn.class_styles()
figures.show(
    drawn.over_steps(
        {name: (over[name].astype(float), styles[name]) for name in over}, marks, "share right", dots=True
    ),
    f"Sequences without variables by class of number pair, at {len(steps)} checkpoints.",
    "A curve a class of number pair over the steps of training.",
)

# %%
print(over.loc[list(phases.story_steps(steps, marks).values())].astype(float).round(2).to_string())
if (name := errors.CLASSES[3]) in over:
    best = over[name].astype(float).idxmax()
    print(f"\npairs (n, n) held out: best {over[name][best]:.2f} at step {best}, at the end {over[name].iloc[-1]:.2f}")

# %% [markdown]
# ## Which variables fail
#
# The other half of the task is which variable stands where. One map shows all of it: what stands first by what stands
# second, a number (*n*) or a variable, number pairs from training. Orange frames hold what training never showed; the
# diagonal of variables is $v + v$, with numbers $(n, n)$ that training did show.

# %%
story = phases.story_steps(run.steps, marks)
grids = {name: errors.operand_accuracy(run.weights(step), cfg) for name, step in story.items()}

# %% tags=["hide-input"]
when = "; ".join(f"{name}: step {step:,}" for name, step in story.items())
figures.show(
    drawn.operand_map(grids, cfg),
    f"Share right by first and second operand. {when[0].upper()}{when[1:]}. Each cell with a variable holds "
    f"{errors.PER_PAIR} sequences, or {routing.PER_CELL} where the other operand is a number.",
    "A square map with a row for each first operand and a column for each second one.",
)

# %%
names = ["n", *cfg.letters]
for name, grid in grids.items():
    low = int((grid < 0.9).sum())
    print(f"{name}: {low} of {grid.numel()} cells below .9")
    print(f"  worst: {', '.join(errors.worst(grid, names)) or 'none'}")

# %% [markdown]
# Between the jumps the failures, if there are any, are rows and columns: a variable in a place where the model cannot
# use it, whatever stands beside it. Which ones, and why there, is the subject of the chapter on progress measures.
#
# Is a variable used at all before the first jump? That it is answered right at times may have to do with how little
# there is to choose from: with a single assignment, its number is the variable's. So we count by the number of
# assignments, beside what a guess among the assigned numbers would give.

# %%
table = pd.DataFrame({"guess": {n: 1 / n for n in range(1, cfg.max_assignments + 1)}})
for name, step in story.items():
    counted = errors.by_assignments(run.weights(step), cfg)
    table[name] = pd.Series({n: right / asked for n, (right, asked) in counted.items()})
table["n"] = pd.Series({n: asked for n, (_, asked) in counted.items()})
table.index.name = "assignments"
print("1-var train, share right\n" + table.round(2).to_string())

# %% [markdown]
# ## How much training data it takes
#
# One run cannot tell. So the paper trains twenty models with more and more of the number pairs (its Figure 3a), and
# twenty more with more and more sequences of two variables (Figure 3b), and reads off that each must pass some
# threshold. Here are both sweeps, on the paper's values, with what the paper leaves out: how many items each point
# rests on, and the parts of its test set.
#
# A threshold is read off by rule, with runs as its units: the interval of a point says how well that one model was
# tested, not how another one with the same data would do. A run *solves* its test at a level if its interval reaches
# the level. The threshold is the split of the values at which "one rate of success below, a higher one above" is most
# likely; its interval holds the splits that are not much less likely. *Chance* is how often outcomes dealt to the
# values at random favour some split as strongly. Where that is not rare, there is no telling. The levels are those of
# the claims on held-out pairs (3a) and on places never trained (3b). Which seed the runs have, and why, stands in
# `runs/README.md`.

# %%
sweeps = {over: thresholds.read(many.find(run, f"{many.SWEEPS}/{over}"), over) for over in thresholds.SWEPT}
for over, table in sweeps.items():
    numbers = ", ".join(map(str, sorted(table["seed"].unique())))
    print(f"{over}: {len(table)} runs of {table['steps'].max():,} steps, seed {numbers}")
    if differ := thresholds.differences(table, cfg, over):
        print(f"  (trained with other settings than {run.name}: {', '.join(differ)})")

# %% [markdown]
# First the share of ordered number pairs in training. All that is held out is asked, once each, without variables.
# When much is in training, most of what is not has its mirror $(m, n)$ there, and a model that has found out that
# $n + m = m + n$ need not add. So the pairs held out in both orders are the test of adding, and the paper's curve,
# which takes all together, mixes the two.

# %%
parts = {name: thresholds.points(sweeps["fig3a"], "fig3a", name) for name in thresholds.PARTS["fig3a"]}
level = thresholds.LEVEL["fig3a"]
at = {name: thresholds.spell(points, level) for name, points in parts.items()}

# %% tags=["hide-input"]
whole = parts[thresholds.PARTS["fig3a"][0]]
figures.show(
    figures_seeds.sweep(parts, level, "share of number pairs in training"),
    f"Held-out pairs answered right, by the share of pairs in training, with 95% intervals; from {whole.n.max():,} "
    f"items down to {whole.n.min()}. Grey: all of them; the parts dotted.",
    "Four curves over the share of pairs in training: all held-out pairs, and each class of them.",
)

# %%
table = pd.DataFrame()
for name, points in parts.items():
    rows = thresholds.by_value(points)
    shown = [f"{row.share:.3f} of {row.n}" for row in rows.itertuples()]
    table = table.join(pd.Series(shown, rows.index, name=name.removeprefix("0-var "), dtype=str), how="outer")
table.index = pd.Index([f"{share:.3f}" for share in table.index], name="in training")
print(table.fillna("-").to_string())
print(f"\nthreshold at {level}:")
for name, found in at.items():
    print(f"  {name}: {found}")

# %% [markdown]
# Then the share of sequences with two variables. The factor $f$ multiplies their weight in the mix, and $f = 1$ is the
# mix of every other run here. The test has three parts: a held-out number pair, its variables in places that training
# shows; a number pair from training, with one variable in a place never trained; the same with both there. Mind what a
# low point may mean. A run that has not made its second jump by its last step fails in the last two parts whatever $f$
# is, and with $f = 1$ there are seeds that have not by then (see [many seeds](many_seeds.ipynb)).

# %%
parts = {name: thresholds.points(sweeps["fig3b"], "fig3b", name) for name in thresholds.PARTS["fig3b"]}
level = thresholds.LEVEL["fig3b"]
at = {name: thresholds.spell(points, level) for name, points in parts.items()}
jumped = sweeps["fig3b"].set_index("two_var")[[phases.FIRST, phases.SECOND]].groupby(level=0).mean()

# %% tags=["hide-input"]
whole = parts[thresholds.PARTS["fig3b"][0]]
figures.show(
    figures_seeds.sweep(parts, level, "factor f on sequences with two variables"),
    f"Sequences with two variables that training withholds, answered right, by f; {whole.n.max():,} items a point, so "
    "their intervals are narrower than the dots. What varies from dot to dot is the run.",
    "Four curves over the factor f: all of the union and its three parts.",
)

# %%
shares = {name.removeprefix("2-var "): thresholds.by_value(points).share for name, points in parts.items()}
table = pd.DataFrame(shares).round(3)
table.insert(0, "2-var in batch", [round(thresholds.two_var_share(cfg, f), 3) for f in table.index])
table = table.join(jumped.round(3))
table.index = pd.Index([f"{f:.3f}" for f in table.index], name="f")
print(table.to_string())
print("n: " + ", ".join(f"{name.removeprefix('2-var ')} {points.n.max():,}" for name, points in parts.items()))
print(f"\nthreshold at {level}:")
for name, found in at.items():
    print(f"  {name}: {found}")

# %% [markdown]
# The last two columns are accuracies with exactly one variable. Where the last one is low, the second jump had not
# happened yet, be it for bad luck or for lack of data: one run a value cannot tell these apart. The first part,
# held-out pairs in trained places, does not wait for the second jump; there luck blurs less.

# %% [markdown]
# ## The claims of this chapter
#
# "The paper" is what its text says, "the released run" what the authors' published weights give. Square brackets are
# 95% intervals. Two claims are about the sweeps, not about the run.

# %%
found = claims.table(claims.of_chapter("generalization"), study)
display(HTML(claims.table_html(found)))
for row in found.itertuples():
    print(f"{row.claim}: {row.verdict}")
