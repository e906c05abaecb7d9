# %% [markdown]
# # Looking a variable up: the induction head
#
# Asked for *b + 9* after *b = 7*, the model has to find out what *b* stands for. It does so in two steps that mesh. The
# first layer carries names about: to every assigned number the name of the variable before it, and to `=` the names of
# the variables that are asked for. In the second layer `=` then looks for numbers that carry the same name, and finds
# 7. Such a pair of steps, one head that looks at the place before and a later one that looks for a match, is known as
# an **induction head** {cite}`elhage2021,olsson2022`. This page follows the paper's section 5.2 (its Figures 4, 6 and
# 7) and then adds what the paper leaves out: all sequences instead of one, how much of the attention the winners really
# get, and experiments that cut or mislead the mechanism to see whether the model depends on it.

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import pandas as pd
import torch
from IPython.display import HTML, display

from mc_lib import claims, explorer, figures, induction, induction_patching, induction_writes, task
from mc_lib import figures_induction as draw
from mc_lib.claim import NotHere, Study
from mc_lib.hooked import hooked
from mc_lib.induction import OPERANDS, PREVIOUS
from mc_lib.runs import open_run

study = Study(open_run(RUN))
cfg, weights = study.config, study.weights
habits = study.shared(induction.habits_seen)
print(f"weights after {study.run.steps[-1]} steps; {cfg.heads} attention head{'s' * (cfg.heads > 1)} a layer")

# %% [markdown]
# ## One sequence
#
# An attention head gives each place (the **query**) a share of attention for every place before it and for itself (the
# **keys**); the shares of a query add up to 1. We begin with the paper's example. Its text shows one sequence and the
# released script computes its Figure 4 for another, `7 + 23` behind the same assignments; the menu has both, and two
# more.
#
# Three rows matter. In layer 1, look at `=`, in the last row, and at the numbers that stand behind a variable. In layer
# 2, only the last row counts: nothing but `=` is read after it.

# %%
net = hooked(weights)
asked = [("b", 9), (7, 23), (9, "b"), ("b", "e")]
heads = range(1) if cfg.heads == 1 else range(min(cfg.heads, 8))
views = {}
for lhs, rhs in asked if cfg.heads == 1 else asked[:1]:
    tokens = induction.example(cfg, lhs, rhs)
    _, cache = net.run_with_cache(tokens[None])
    names = net.to_str_tokens(tokens)
    for head in heads:
        patterns = [cache[f"blocks.{layer}.attn.hook_pattern"][0, head] for layer in (0, 1)]
        label = f"{names[-3]} + {names[-2]} =" + f"  (head {head})" * (cfg.heads > 1)
        views[label] = (names, *patterns)

# %% tags=["hide-input"]
figures.show(
    draw.attention(views),
    "Attention of both layers on one sequence; a row is a query, a column a key, and “;” is a PAD. The menu changes "
    "the sequence" + " or the head" * (cfg.heads > 1) + ". Compare the paper's Figure 4.",
    "Two triangular heat maps with the sequence's tokens on both axes. The rows of the equals sign and of the "
    "assigned numbers are the ones to look at.",
)

# %%
print("attention of =  | layer 1: to the two operands | layer 2: to the two right numbers")
for label, (names, first, second) in views.items():
    tokens = torch.tensor([task.token_names(cfg).index(name) for name in names])
    where = task.operands(tokens[None], cfg).positions[0]
    print(f"{label:14}  | {first[-1, -3]:.2f} {first[-1, -2]:.2f} | ", end="")
    print(" ".join(f"{second[-1, place]:.2f} (on {names[place]})" for place in where.tolist()))

# %% [markdown]
# Any sequence, at any saved step of training:

# %% tags=["hide-input", "nbval-ignore-output"]
explorer.sequence(RUN)

# %% tags=["hide-input"]
figures.show(
    explorer.sequence_figure(study.run, explorer.example(cfg)),
    "One sequence over training: attention of both layers, the likeliest answers, and how much each part of the model "
    "lifts the right answer over the mean of all. " + explorer.HOW,
    "Four panels with a slider of steps: two attention maps, bars of answer probabilities, bars of contributions.",
)

# %%
print(explorer.sequence_table(study.run, explorer.example(cfg), frames=5).round(1).to_string())

# %% [markdown]
# ## All sequences
#
# One example may be a lucky one. So we ask three questions of every sequence in the nine evaluation sets: in layer 1,
# does `=` look at the two operands, and does every assigned number look at the place before it; in layer 2, does `=`
# look at the two numbers that have to be added? A **hit** means that no other place gets as much attention as the right
# ones. That is a weak question, since a hit may be a narrow win; so we also measure the **mass**, the attention that
# the right places get together. Whatever is missing from 1 goes elsewhere, and is moved along with the rest.

# %%
tables = {name: induction.by_set(habit, cfg) for name, habit in habits.items()}

# %% tags=["hide-input"]
figures.show(
    draw.masses(tables),
    "The mass on the right places, for each evaluation set. A box holds the middle half of all items, with the median "
    "as a line; the whiskers reach to the 5% and 95% quantiles.",
    "For every evaluation set three horizontal boxes between 0 and 1, one for each of the three questions.",
)

# %%
for name, table in tables.items():
    print(f"{name}{f' (head {habits[name].head})' * (cfg.heads > 1)}: hits with 95% interval, mean mass ± its 95%")
    columns = ["group", "n", "hits", "low", "high", "mass", "mass ±"]
    print(table[columns].round({"low": 3, "high": 3, "mass": 2, "mass ±": 4}).to_string(index=False), "\n")

# %% [markdown]
# Hits and mass tell different stories: to win, the right places need not get nearly all of the attention, and a third
# of it may well go elsewhere. In layer 2 compare the sets by their number of variables. A number that stands among the
# operands has a place of its own to be found by, while a variable's number has to be told from all other assigned
# numbers, which get a share each. The MLP, which adds, has to put up with that. What assigned numbers look at, on the
# other hand, is decided before anything is asked and cannot depend on the question. It may depend on where they stand:

# %%
previous = habits[PREVIOUS]
every_place = [f"place {place}" for place in range(cfg.room)]
by_place = induction.by_group(previous, previous.place, every_place)
columns = ["group", "n", "hits", "mass", "q05"]
print(f"{PREVIOUS}, by the number's place (q05: 5% of the masses are lower)")
print(by_place[columns].round({"mass": 2, "q05": 2}).to_string(index=False))

# %% [markdown]
# ## Why layer 1 looks there: the scores
#
# Attention comes from scores. What stands in a place is the sum of a token's embedding, a row of $E$, and the place's
# own, a row of $P$. The score that query $x$ gives to key $y$ is $x\,\mathrm{QK}_1\,y^\top / \sqrt{d}$ with
# $\mathrm{QK}_1 = W_Q W_K^\top$ and $d$ the width of a head. As nothing stands between the embeddings and layer 1, its
# scores are sums of entries of one table, $[E; P]\,\mathrm{QK}_1\,[E; P]^\top$: every token and every place, as a query
# and as a key. This is the paper's Figure 6; the outlined blocks are those that it outlines.

# %%
score = induction.scores1(weights, habits[OPERANDS].head)

# %% tags=["hide-input"]
figures.show(
    draw.score_table(score, cfg),
    f"[E; P] QK1 [E; P]ᵀ / √{cfg.d_head}, {len(score)} by {len(score)}: first the numbers, then “+”, “=” and PAD, "
    "the variables, and the places. Colours end at the 99.5% quantile.",
    "A square heat map of scores between all tokens and places, with four outlined blocks: numbers to variables, "
    "places of assignments to variables, places to places, and the equals sign to the places of the operands.",
)

# %%
rows = ["numbers", "=", induction.assigned(cfg)]
table = induction.group_scores(weights, habits[OPERANDS].head, cfg)
print("mean score, query in the row, key in the column")
print(table.loc[rows].T.round(2).to_string())

# %% [markdown]
# **`=` and the operands' places** (black). In the table this is a tiny block of two cells, so here is its whole row:
# what the token `=` gives to each place.

# %% tags=["hide-input"]
figures.show(
    draw.place_bars(score[cfg.EQUALS, cfg.vocabulary :]),
    "Scores of the token = for every place as key; orange: the places of the operands.",
    f"A bar for each of the {cfg.length} places; the two places of the operands are orange.",
)

# %%
row = score[cfg.EQUALS, cfg.vocabulary :]
others = row[[*range(cfg.length - 3), cfg.length - 1]]
print(f"places of the operands {row[-3]:.2f} and {row[-2]:.2f}; others {others.min():.2f} to {others.max():.2f}")

# %% [markdown]
# **Numbers, and the places of assignments, for variables** (purple and orange). What such a query can see is numbers,
# PADs and variables, so its scores for `+` and `=` never come to bear, and training leaves them free: they may be as
# large as they like.
#
# **Places for places** (red). The paper observes that these scores *generally increase towards the right*. Combined
# with the causal mask, which hides everything to the right of the query, and with the preference for variables, this
# already singles out the nearest variable to the left. The next section looks closer.
#
# Which of these blocks does the work? A score of a query and a key is a sum of four **terms**, token or place for token
# or place. A term's **lift** is its mean on the right keys less its mean on all other keys that the query sees. The
# lifts of the four terms add up to what singles out the right keys.

# %%
lifts = study.shared(induction_writes.lifts)
layer1 = {name: lifts[name] for name in (OPERANDS, PREVIOUS)}

# %% tags=["hide-input"]
figures.show(
    draw.lifts(layer1, induction_writes.TERMS1),
    "What each term of layer 1's scores does to single out the right keys: the operands for =, and the place before "
    "for assigned numbers. Means over the 0, 1 and 2-var training sets, with 95% intervals.",
    "Pairs of horizontal bars for the four terms.",
)

# %%
columns = {f"{name} (n = {len(lift)})": lift.mean(0) for name, lift in layer1.items()}
print(pd.DataFrame(columns, index=induction_writes.TERMS1).round(2).to_string())

# %% [markdown]
# ## The place before
#
# A variable's number stands directly behind it. From the query's place alone, where can that variable be? Not at the
# query itself and not to its right. Nor two places to its left, the paper argues: what stands there belongs to another
# assignment, and a variable there would have its own number in between. With these left out, the maximum of every row
# of $P\,\mathrm{QK}_1\,P^\top$ should be at the place before (Figure 7a).
#
# The first query has no key left and the next two have a single one, so they prove nothing; we count the rows in which
# there is a choice.

# %%
found = induction.previous_hits(weights, cfg)
before = induction.previous_scores(weights, found.head, cfg)

# %% tags=["hide-input"]
figures.show(
    draw.previous(before),
    "P QK1 Pᵀ / √d over the places of assignments; what is left out is blank. Compare the paper's Figure 7a.",
    "A triangular heat map with a blank diagonal and a blank second subdiagonal; a dot marks each row's maximum.",
)

# %%
hits, choice = int((found.hit & found.choice).sum()), int(found.choice.sum())
print(f"row maximum at the place before: {hits} of {choice} where there is a choice")
print(f"                                 {int(found.hit.sum())} of {len(found.hit)} with the automatic ones")
back, ranks = induction.peaks(weights, found.head, cfg), induction.rightward(weights, found.head, cfg)
print(f"with nothing left out but the future, of {len(back)} row maxima")
print(f"   {int((back == 1).sum())} are at the place before, {int((back == 0).sum())} at the query itself")
print(f"rank correlation of score and key's place: mean {ranks.mean():.2f} over {len(ranks)} queries")

# %% [markdown]
# The count with nothing left out matters for what to call this. A row that has its maximum at the place before even
# then is that of a true previous-place head. A row with its maximum at the query itself is not: there the places'
# scores only rise to the right, and it needs the tokens' share, in which a number does not care for numbers, to take
# the query itself out of the race. The paper's counting, which leaves the query out, does not tell the two apart.

# %% [markdown]
# ## What layer 1 moves
#
# Attention says where a head looks; what it brings from there is decided by $\mathrm{OV}_1 = W_V W_O$. A place that
# attends to variable $v$ has $E_v\,\mathrm{OV}_1$ added to it, times the attention: the paper calls it $v$'s **remapped
# embedding**. If it is right, then the sum of all that layer 1 writes on a number should point to the remapped
# embedding of its own variable, and what it writes on `=` to those of the operands. The cosine tells how well two
# vectors agree in direction.

# %%
moved = {"on numbers": study.shared(induction_writes.moved_to_numbers)}
for name, writes in study.shared(induction_writes.moved_to_equal).items():
    moved[f"on =, {name}"] = writes
pairs = {name: (writes.cosine[writes.asked], writes.cosine[~writes.asked]) for name, writes in moved.items()}

# %% tags=["hide-input"]
figures.show(
    draw.cosines(pairs),
    "Cosine of what layer 1 writes with remapped embeddings: of the variables that it should hold, and of all others. "
    "Boxes as above.",
    "Three pairs of boxes on an axis from -1 to 1: cosines with the right variables, and with all others.",
)

# %%
for name, writes in moved.items():
    low, high = induction.wilson(int(writes.hit.sum()), len(writes.hit))
    print(f"{name}: the largest cosines are the right ones")
    print(f"   for {int(writes.hit.sum())} of {len(writes.hit)} (95% interval {low:.3f} to {high:.3f});")
    print(f"   share of the write in their span {writes.explained.mean():.2f}, ", end="")
    print(f"in that of as many others {writes.control.mean():.2f}")
share = ", ".join(f"{writes.whole.mean():.2f} ({name})" for name, writes in list(moved.items())[1:])
print(f"share in the span of both operands: {share}")

# %% [markdown]
# With one variable, the other operand is a number, and is moved to `=` as well. So the last line of numbers: the share
# of the write on `=` that lies in the span of both operands, whatever they are.
#
# ## The match
#
# Now `=` holds the remapped embeddings of what is asked for, and every assigned number that of its variable. Layer 2
# compares the two: $(E_v\,\mathrm{OV}_1)\,\mathrm{QK}_2\,(E_{v'}\,\mathrm{OV}_1)^\top$ is what `=`, holding $v$, gives
# to a number that holds $v'$. For a look-up, every row must have its maximum on the diagonal (Figure 7b). The
# **margin** says by how much: the diagonal less the best other entry.

# %%
match = study.shared(induction.match)

# %% tags=["hide-input"]
figures.show(
    draw.match(match, cfg),
    "The match matrix (unscaled) and each row's margin. Compare the paper's Figure 7b.",
    f"A {cfg.variables} by {cfg.variables} heat map of variables against variables, and a bar for each row's margin.",
)

# %%
print(f"largest on the diagonal: {int((match.margin > 0).sum())} of {cfg.variables} rows")
print(f"margin: mean {match.margin.mean():.0f}, least {match.margin.min():.0f} ", end="")
print(f"(row {cfg.letters[int(match.margin.argmin())]})")

# %% [markdown]
# These scores are unscaled, and attention softens them: before they count they are divided by $\sqrt{d}$ and multiplied
# by the attention with which layer 1 moved the one and the other. So let us weigh them where they act. As before, a
# score is a sum of terms: `=` itself or what was written on it, for a key's token, its place, or what was written
# there. Only the last of them, write for write, can know which variable is which. Operands that are numbers need no
# match, and the figure shows what finds these instead.

# %%
layer2 = {name.split(", ")[1]: lifts[name] for name in (induction_writes.VARIABLES, induction_writes.NUMBERS)}

# %% tags=["hide-input"]
figures.show(
    draw.lifts(layer2, induction_writes.TERMS2),
    "What each term of layer 2's scores does to single out the right number, for operands that are variables (its "
    "value among the assignments) and numbers (the operand itself). Means with 95% intervals.",
    "Pairs of horizontal bars for the six terms of layer 2's scores.",
)

# %%
columns = {f"{name} (n = {len(lift)})": lift.mean(0) for name, lift in layer2.items()}
print(pd.DataFrame(columns, index=induction_writes.TERMS2).round(2).to_string())

# %% [markdown]
# ## Is this what the model uses? Cutting
#
# All this is correlation. A mechanism that is there need not be the one that the answer depends on. So we interfere. To
# **cut** an edge is to set the attention along it to zero while the model runs, so that nothing moves there; all else
# goes on. If the two halves of the induction head are what looks variables up, then cutting either of them must ruin
# sequences with variables and leave those without as they are. And if nothing else in layer 1 is needed, everything
# else can be cut.
#
# There is a third edge of layer 1 among those that we keep, from the second operand to the first. We come to it below.

# %%
cuts = study.shared(induction_patching.cuts)

# %% tags=["hide-input"]
figures.show(
    draw.cuts(cuts),
    "Answers that are right when attention is cut. The last two cuts are in layer 2, the others in layer 1. "
    f"Training sets, n = {cuts['n'].min()} each; lines are 95% intervals.",
    "For each cut three horizontal bars: the share of right answers with 0, 1 and 2 variables.",
)

# %%
table = cuts.set_index(["cut", "kind"])["hits"].unstack()[["0-var", "1-var", "2-var"]]
print(f"right answers of {cuts['n'].min()}")
print(table.loc[list(induction_patching.CUTS)].to_string())

# %% [markdown]
# ## Is this what the model uses? Misleading
#
# A cut could do harm for many reasons. A sharper test predicts a wrong answer. In a sequence such as
# *b = 7, e = 5, b + 9* we exchange, in what layer 1 has moved, the remapped embedding of *b* against that of *e*,
# another variable assigned in the same sequence. No token is changed. If it is this vector that says which variable is
# meant, we know what has to happen:
#
# - exchanged on the side of the **question** (at `=`, and at the second operand if it has looked at the variable before
#   it), the answer becomes $5 + 9$;
# - exchanged on the side of the **assignments** (the number 5 is now said to be *b*'s, and 7 *e*'s), it becomes
#   $5 + 9$ as well;
# - exchanged on **both**, the two errors cancel, and the answer is $7 + 9$ again.
#
# As a control, we add a random vector of the same length at `=`.

# %%
try:
    swaps, doses = study.shared(induction_patching.swaps), study.shared(induction_patching.doses)
except NotHere as reason:
    swaps = doses = pd.DataFrame()
    print(f"There are no swaps to be made: {reason}.")

# %% tags=["hide-input"]
if len(swaps):
    figures.show(
        draw.swaps(swaps),
        "What becomes of the answer under a swap. Training sequences in which another variable is assigned, "
        f"n = {swaps['n'].min()} or more a bar.",
        "Stacked horizontal bars for each swap: the share of answers that stay, that follow the other variable, and "
        "neither.",
    )

# %%
print("with 95% intervals                   stays                 follows")
for row in swaps.to_dict("records"):
    stays = f"{row['stay']:3} [{row['stay low']:.3f}, {row['stay high']:.3f}]"
    follows = f"{row['follow']:3} [{row['follow low']:.3f}, {row['follow high']:.3f}]"
    print(f"{row['kind']}  {row['swap']:24} of {row['n']}  {stays}  {follows}")

# %% [markdown]
# A swap can be made in part, by adding only a share of it. The answer should tip over about half-way, where `=` holds
# as much of the one variable as of the other.

# %% tags=["hide-input"]
if len(doses):
    figures.show(
        draw.doses(doses),
        f"Swaps on the side of the question in growing strength, 1-var training set, n = {doses['n'].min()}.",
        "Two curves over the strength of the swap from 0 to 1: the share of answers that stay and that follow.",
    )

# %%
if len(doses):
    print(doses[["strength", "n", "stay", "follow"]].round(2).to_string(index=False))

# %% [markdown]
# ## The second operand takes part
#
# The swap at `=` alone and the swap on the whole side of the question differ in one place: the second operand. A number
# there that stands right behind a variable does, more or less, what every number does: it looks at the place before
# it, and so it too comes to hold that variable's remapped embedding. Then `=` meets the same name twice, at the
# assigned number and at the second operand; and both have to be found, as both have to be added. The match serves both.
# If only `=` is misled, the second operand loses its match. The paper does not mention this; here is how much attention
# is involved.

# %%
looks = induction.second_operand(weights, cfg)
print("layer-1 attention of the second operand to the first, mean ± its 95%")
print(looks.round({"mass": 2, "mass ±": 3}).to_string(index=False))

# %% [markdown]
# ## The claims
#
# What the paper says about this mechanism, and what we add, measured on this run. The released run's values are from
# the one run that the authors published.

# %%
found = claims.table(claims.of_chapter("induction_head"), study)
display(HTML(claims.table_html(found)))
for row in found.itertuples():
    print(f"{row.claim}: {row.verdict}")
