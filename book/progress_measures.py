# %% [markdown]
# # Progress measures: how it comes about
#
# Accuracy tells that a model has learned something, not what. A **progress measure** {cite}`nanda2023` watches one part
# of the mechanism: is it in place yet? This page follows seven of them through the run, as Section 6 and Appendix B of
# the paper do, and then looks closely at the two moments at which accuracy jumps. What is new in the model at each of
# them, for which variable, and on which side of the plus sign?

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import pandas as pd
from IPython.display import HTML, display

from mc_lib import claims, errors, figures, phases, routing, task
from mc_lib import claims_dynamics as measured
from mc_lib import figures_learning as drawn
from mc_lib import figures_slider as slides
from mc_lib.claim import NotHere
from mc_lib.measures import ATTENTION, BY_SIDE, MASS_BY_KIND, SEVEN
from mc_lib.runs import open_run

study = claims.Study(open_run(RUN))
run, cfg, metrics = study.run, study.config, study.run.metrics
marks = phases.phases(metrics)
print(f"modulus {cfg.p}, {cfg.heads} head(s), {len(metrics)} evaluations, {len(run.steps)} saved checkpoints")

# %% [markdown]
# ## The seven measures
#
# Each is a share between 0 and 1. Their names say where they look: `ov2`, `qk1` and `qk2` at weights, `attn` at
# attention on sequences, `probe` at the residual stream; `l1` and `l2` are the layers.
#
# - `ov2_mlp2_accuracy`: how many of all number pairs the last part alone adds right, when it is given both numbers;
# - `qk1_num_to_prev_var`: at how many positions layer 1 prefers the one before;
# - `attn_l1_num_to_prev`: how many assigned numbers attend most to their variable in layer 1;
# - `probe_l1_var_from_num`: how often a linear probe can tell, at a number, which variable was assigned to it;
# - `attn_l1_equal_to_operands`: how often `=` attends most to the two operands in layer 1;
# - `qk2_ov1_var_identity`: for how many variables layer 2 matches the variable that `=` has fetched with itself;
# - `attn_l2_equal_to_values`: how often `=` attends most to the two right numbers in layer 2.
#
# The phases are those of the chapter on generalization: the first jump is the rise of the trained 1-variable sequences,
# the second that of variables in places never trained. This is the paper's Figure 12, to the end of the run.

# %% tags=["hide-input"]
colours = dict(zip(SEVEN, figures.PALETTE, strict=True))
lines = {name: (phases.curve(metrics, name), {"color": colours[name]}) for name in SEVEN}
lines = {name: line for name, line in lines.items() if len(line[0])}
if lines:
    figures.show(
        drawn.over_steps(lines, marks, "share in place"),
        f"The seven progress measures to step {marks.last:,}, with this run's phases shaded.",
        "Seven curves over the steps of training. The measure of addition is among the first to be complete.",
    )
else:
    print("this run has no metrics over training: only its saved checkpoints can be looked at")

# %%
table = pd.DataFrame({f"held at {level}": dict(phases.order(metrics, SEVEN, level)) for level in (0.5, 0.9, 0.99)})
print(table.loc[[name for name, _ in phases.order(metrics, SEVEN)]].astype("Int64").to_string(na_rep="never"))
print(f"\nfirst jump: {marks.first or 'none'}\nsecond jump: {marks.second or 'none'}")

# %% [markdown]
# "Held" means: at five evaluations in a row. That is needed because attention passes such marks by chance in the first
# hundred steps, when it is still spread evenly and nothing has been learned.
#
# The paper's account of the order is: first the part that adds; toward the end of the first phase the probe; in the
# second phase the match of variables and the two measures of `=`'s attention come to between 80 and 99%, and only in
# the last phase to all. Whether this run agrees is a claim in the table below.

# %% [markdown]
# ## The whole model, step by step
#
# One slider for everything. **Match of variables**: how well the variable that `=` has fetched (row) fits the variable
# stored at a number (column) in layer 2; binding works where the diagonal stands out. **Right, by side**: accuracy with
# the variable first or second and a number beside it. **= to operands**: its layer-1 attention by kind of sequence
# (columns) and operand (rows). **Score**: how strongly each variable draws the attention of `=` in layer 1, blue for
# less than nothing. Last, the attention of `=` in both layers, in the paper's own example where that fits this run.

# %%
steps = phases.chosen_steps(run.steps, marks)
tokens = slides.example(cfg)
moments = slides.moments(run, steps, tokens)
print("the sequence of the last panel:", task.format(tokens, cfg))

# %% tags=["hide-input"]
figures.show(
    slides.slider(moments, tokens, cfg),
    f"Five panels at one step; the slider holds {len(steps)} of the run's {len(run.steps)} checkpoints, those around "
    "the jumps among them. The match is unscaled, less each row's mean.",
    "Five maps and a slider: the match matrix, accuracy by variable and side, layer-1 scores, layer-1 attention to the "
    "operands by kind, and the attention of the equals sign in one sequence.",
)

# %%
for name, step in phases.story_steps(steps, marks).items():
    now = moments[step]
    matched = sum(int(row.argmax()) == v for v, row in enumerate(now.match))
    solved = int((now.cells >= 0.9).sum())
    print(f"{name}, step {step}:")
    print(f"  {matched} of {cfg.variables} variables matched, {solved} of {now.cells.numel()} cells at .9")

# %% [markdown]
# ## The first jump, by side
#
# The paper's Figure 8 shows one sequence whose variable stands first, and finds that before the jump `=` attends to
# constants only. From one sequence that cannot be told apart from another rule: *attend to the second operand, whatever
# it is*. So we split by the side on which the variable stands. Solid lines: accuracy with the variable first or second.
# Dotted lines: how much layer-1 attention `=` gives to the variable in that place.

# %% tags=["hide-input"]
lines = {}
for side, name, colour in zip(routing.SIDES, BY_SIDE, (figures.ORANGE, figures.BLUE), strict=True):
    lines[f"right, variable {side}"] = (phases.curve(metrics, name), {"color": colour})
    attention = phases.curve(metrics, measured.VARIABLE[side])
    lines[f"attention, variable {side}"] = (attention, {"color": colour, "dash": "dot"})
lines = {name: line for name, line in lines.items() if len(line[0])}
if lines:
    figures.show(
        drawn.over_steps(lines, marks, "share"),
        "Trained 1-variable sequences by the side of the variable, and layer-1 attention of = to that variable.",
        "Two pairs of curves over the steps of training: accuracy and attention for variables first and second.",
    )
else:
    print("this run has no metrics over training")

# %%
for name in BY_SIDE:
    rise = phases.jump(phases.curve(metrics, name))
    print(f"{name}: " + (f"from below .8 at {rise.begins} to .9 at {rise.ends}" if rise else "no rise to .9"))

# %% [markdown]
# What did `=` attend to before? Here is its layer-1 attention to a constant and to a variable in the same place, the
# other operand being of the other sort: medians over the second half of the phase of addition. If `=` wanted constants,
# the columns would agree with each other; if it wanted a place, the rows would.

# %%
try:
    before = measured.before_first_jump(study)
    print(before.round(2).to_string())
    share = before.loc["variable"] / before.loc["constant"]
    print("\nvariable over constant:", ", ".join(f"{side} {share[side]:.2f}" for side in share.index))
except NotHere as reason:
    print(f"not here: {reason}")

# %% [markdown]
# And the match of variables in layer 2, before and after (the paper's Figure 8, right).

# %%
around = {}
for name, rise in ((1, marks.first), (2, marks.second)):
    if rise:
        early = [step for step in run.steps if step <= rise.begins]
        late = [step for step in run.steps if step >= rise.ends]
        around |= {f"before jump {name}": early[-1]} if early else {}
        around |= {f"after jump {name}": late[0]} if late else {}
around = around or {"at the end": run.steps[-1]}
matches = {name: errors.best_match(run.weights(step), cfg) for name, step in around.items()}

# %% tags=["hide-input"]
figures.show(
    drawn.before_and_after(matches, list(cfg.letters)),
    "Match of variables, less each row's mean, at the saved steps around the jumps: "
    + ", ".join(f"{name}: {step:,}" for name, step in around.items())
    + ".",
    "A square map of variables at = by variables at numbers; where binding works its diagonal stands out.",
)

# %%
for name, match in matches.items():
    best = [cfg.letters[row.argmax()] for row in match]
    wrong = [f"{v} for {w}" for v, w in zip(best, cfg.letters, strict=True) if v != w]
    print(f"{name} (step {around[name]}): wrong best match: {', '.join(wrong) or 'none'}")

# %% [markdown]
# ## Every variable, on every side
#
# A **cell** is a variable on a side. Its accuracy over the run, with the cells that training never shows listed last,
# tells what each jump consists of.

# %%
restricted = phases.restricted_cells(cfg)
cells = [cell for cell in routing.cell_names(cfg) if cell not in restricted] + restricted
cells = [cell for cell in cells if len(phases.curve(metrics, cell))]

# %% tags=["hide-input"]
if cells:
    figures.show(
        drawn.cell_history(metrics, cells, marks),
        f"Share right in each cell; n = {routing.PER_CELL} sequences. The last {len(restricted)} are never trained.",
        "A map with a row for each variable on each side and a column for each step.",
    )
else:
    print("this run has no metrics by cell")

# %%
solved = phases.cell_steps(metrics, cfg)
trained = [cell for cell in solved.index if cell not in restricted]
after = [cell for cell in trained if marks.first and (pd.isna(solved[cell]) or solved[cell] > marks.first.ends + 1000)]
told = {cell: "never" if pd.isna(solved[cell]) else f"at {solved[cell]}" for cell in solved.index}
print("restricted cells first at .9:\n ", "; ".join(f"{cell} {told[cell]}" for cell in restricted))
if marks.first:
    print("trained cells more than 1000 steps after the first jump:")
    print(" ", "; ".join(f"{cell} {told[cell]}" for cell in after) or "none")
print("late, as the claims define it:", ", ".join(phases.late_cells(metrics, cfg, marks)) or "none")

# %% [markdown]
# The paper speaks of restricted cells only. Trained cells that come late are of interest because training shows them
# from the first step on, as often as their like. Where they are variables that training never shows on the *other*
# side, look at the match above: variables with the same restriction may be taken for one another, in blocks, long after
# all others are told apart. They are also asked for half as often as the rest, which alone may make them slow.

# %% [markdown]
# ## The second jump, by variable and side
#
# For the paper's run this jump is a single cell, `b second`. Its Figure 9 gives two causes: `=` attends less to that
# variable in layer 1, and then does not find its number in layer 2. Here are the restricted variables' layer-1 scores
# $(E_= + P_{last})\, QK_1\, E_v^\top$, scaled as attention is, and in grey the range of all other variables.

# %% tags=["hide-input"]
if lines := drawn.score_lines(metrics, cfg):
    figures.show(
        drawn.over_steps(lines, marks, "layer-1 score"),
        "How strongly each restricted variable draws the attention of = in layer 1.",
        "Curves over the steps of training; restricted variables are below the others at first.",
    )
else:
    print("this run has no layer-1 scores over training")

# %%
for cell in phases.late_cells(metrics, cfg, marks):
    try:
        r, n = measured.score_correlation(study, cell)
        print(f"{cell}: rank correlation of accuracy and score {r:.2f}, n = {n} evaluations")
    except NotHere as reason:
        print(f"not here: {reason}")

# %% [markdown]
# The second cause needs weights: the layer-2 attention of `=` to the value of the variable, at the saved checkpoints.

# %%
at_value = {step: errors.value_attention(run.weights(step), cfg) for step in steps}
lines = {}
for colour, cell in zip(figures.PALETTE * 4, restricted, strict=False):
    side, v = routing.SIDES.index(cell[2:]), cfg.letters.index(cell[0])
    lines[cell] = (pd.Series({step: grid[side, v].item() for step, grid in at_value.items()}), {"color": colour})
usual = [c for c in routing.cell_names(cfg) if c not in restricted]
rest = [(routing.SIDES.index(c[2:]), cfg.letters.index(c[0])) for c in usual]
median = pd.Series({step: pd.Series([grid[at].item() for at in rest]).median() for step, grid in at_value.items()})
lines["median of trained cells"] = (median, {"color": figures.GREY, "dash": "dot"})

# %% tags=["hide-input"]
figures.show(
    drawn.over_steps(lines, marks, "attention", dots=True),
    f"Layer-2 attention of = to the value of the variable, by cell, at {len(steps)} checkpoints; a mean of "
    f"{errors.PER_PAIR} sequences.",
    "A curve a restricted cell over the steps of training, and the median of the trained cells.",
)

# %%
story = phases.story_steps(steps, marks)
print(
    pd.DataFrame({name: {cell: line[step] for cell, (line, _) in lines.items()} for name, step in story.items()})
    .round(2)
    .to_string()
)

# %% [markdown]
# ## Hits and mass
#
# The attention measures count winners: a hit is a sequence in which the right places have the two largest weights. They
# say nothing about how much attention is left for wrong places. So here is the **mass** beside them, the share of
# attention that falls on the right places.

# %% tags=["hide-input"]
lines = {}
for name in ATTENTION:
    style = {"color": colours[name]}
    lines[name] = (phases.curve(metrics, name), style)
    lines[f"{name}_mass"] = (phases.curve(metrics, f"{name}_mass"), style | {"dash": "dot"})
lines = {name: line for name, line in lines.items() if len(line[0])}
if lines:
    figures.show(
        drawn.over_steps(lines, marks, "share"),
        "Three attention measures: hits (solid) and mass (dotted), over all kinds of sequences.",
        "Three pairs of curves; the mass stays below the hits at the end.",
    )
else:
    print("this run has no metrics over training")

# %%
if lines:
    last = metrics.iloc[-1]
    columns = {"hits": "", "mass": "_mass", "hits, kinds 0-2": "_kinds012", "mass, kinds 0-2": "_kinds012_mass"}
    table = pd.DataFrame({word: [last[name + end] for name in ATTENTION] for word, end in columns.items()}, ATTENTION)
    print(table.round(2).to_string())
    by_kind = " / ".join(f"{last[name]:.2f}" for name in MASS_BY_KIND)
    print(f"layer-2 mass on the right values, 0 / 1 / 2 variables: {by_kind}")

# %% [markdown]
# Kinds 0-2 are the sequences with at most one variable, on which the authors' analysis measures attention.

# %% [markdown]
# ## Where this run departs from the paper's account
#
# Collected from the claims below: what the paper says of its run and this run does not bear out, with what it does
# instead. One run against another decides nothing about training in general: [many seeds](many_seeds.ipynb) counts.

# %%
departs = [(claim, claim.on(study)) for claim in claims.of_chapter("progress_measures")]
for claim, finding in departs:
    if finding.holds is False:
        print(f"- {claim.statement}\n  the paper: {claim.paper}; here: {finding.value}")
print(
    f"\n{sum(f.holds is True for _, f in departs)} claims hold, {sum(f.holds is False for _, f in departs)} do not, "
    f"{sum(f.holds is None for _, f in departs)} cannot be measured on one run or on this one"
)

# %% [markdown]
# ## The claims of this chapter
#
# "The paper" is what its text says, "the released run" what the authors' published weights give.

# %%
found = claims.table(claims.of_chapter("progress_measures"), study)
display(HTML(claims.table_html(found)))
for row in found.itertuples():
    print(f"{row.claim}: {row.verdict}")
