# %% [markdown]
# # Assign and Add
#
# Give a small transformer this line:
#
# > c = 1, b = 17, a = 42, b + 19 = ?
#
# To answer, it has to find that *b* stands for 17, pass over *a* and *c*, and add 17 and 19 modulo 59. That takes two
# skills of a very different make. Looking up *b* is a matter of attention: something must be fetched from elsewhere in
# the line. Adding modulo 59 is a matter of computation: two numbers go in, a third comes out, and nothing in the line
# tells which. The paper *Assign and Add: A Mechanistic Study of Compositional Arithmetic* {cite}`assignadd` trains a
# two-layer transformer on such lines, withholds some number pairs and some places for variables, and asks:
#
# - Does the model solve lines whose parts it knows, but whose combination it has never seen?
# - If so, is it because it holds one adding machine, used alike for numbers that stand there and for numbers that had
#   to be looked up?
# - In what order do the pieces appear during training, and what triggers each?
#
# This book repeats the study from the ground up. Every number and figure on its pages comes from the code printed above
# it, run on a saved training run; what the paper and its authors' released run give is quoted beside it, and named so.

# %% tags=["parameters"]
RUN = "runs/main"

# %% tags=["hide-input"]
from IPython.display import HTML, display

from mc_lib import claims
from mc_lib.evaluation import NINE, evaluation_sets
from mc_lib.intervals import wilson
from mc_lib.measures import accuracies
from mc_lib.runs import open_run

study = claims.Study(open_run(RUN))
cfg = study.config

# %% [markdown]
# ## The run
#
# Almost all chapters look at one run. Its share of right answers at the end, on nine sets of sequences that
# [the task](task.ipynb) explains, with the training sets first in each group:

# %% tags=["hide-input"]
heads = f"{cfg.heads} head{'s' * (cfg.heads > 1)} a layer"
print(f"{study.run.name}: modulus {cfg.p}, {cfg.variables} variables, {heads}, seed {cfg.seed}")
print(f"{study.run.step:,} steps, weights saved at {len(study.run.steps)} of them")
row, sets = accuracies(study.weights, cfg), evaluation_sets(cfg)
for name in NINE:
    if n := len(sets[name]):
        low, high = wilson(round(row[name].item() * n), n)
        print(f"{name:25} {row[name].item():.3f}  [{low:.3f}, {high:.3f}]  n = {n}")

# %% [markdown]
# ## What was found
#
# The table holds the claims of the paper, and some that we add, as this run decides them, or the many runs beside it.
# Each links to the chapter that explains it, measures it and states the rule that decides it. What does not hold is as
# much a result as what does.

# %% tags=["hide-input"]
findings = claims.table(claims.CLAIMS, study)
shown = findings[["claim", "verdict", "statement", "here"]]
display(HTML(claims.table_html(shown, claims.CHAPTERS)))

# %%
print(findings["verdict"].value_counts().to_string())
for verdict in ("does not hold", "cannot be measured here"):
    print(f"{verdict}: {', '.join(findings.claim[findings.verdict == verdict]) or 'none'}")

# %% [markdown]
# ## How to read, rerun, retrain
#
# [The task](task.ipynb) shows what the model sees, what is withheld from it, and how the model is built. Then
# [generalization](generalization.ipynb) asks what it solves, [addition](ov_mlp_addition.ipynb) and
# [the induction head](induction_head.ipynb) take its two mechanisms apart, and
# [training](progress_measures.ipynb) follows how they come about. [Many seeds](many_seeds.ipynb) asks on how many
# random starts each finding holds. [Theory](theory_check.ipynb) runs the paper's theorem as code.
#
# These pages need no network. Figures answer to the mouse: hover to read a value, drag to zoom, double-click to return.
# `make lab` opens the same chapters live in JupyterLab, where every cell can be changed and run again and where
# widgets pick sequences, heads and steps. `python -m mc_lib train runs/mine --seed 1` trains a run of your own in
# minutes, and `make book RUN=runs/mine` builds this book about it.

# %% [markdown]
# ## References
#
# ```{bibliography}
# ```
