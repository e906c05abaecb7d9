# %% [markdown]
# # The task
#
# A transformer that has read *b = 17* and is asked for *b + 19* can get the answer right in two ways. It can have met
# this very question before, or it can put together two things that it knows: what *b* stands for, and how to add. To
# tell the two apart we need a task in which we decide, case by case, what was met before. This page builds that task:
# what a sequence looks like, how training draws it, and what training never shows.

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import pandas as pd
import torch

from mc_lib import explorer, figures, sampler, task
from mc_lib.config import KINDS
from mc_lib.evaluation import evaluation_sets, further_sets
from mc_lib.intervals import wilson
from mc_lib.model import shapes
from mc_lib.runs import open_run

cfg = open_run(RUN).config

# %% [markdown]
# ## A sequence
#
# Every sequence has the same length. It begins with **assignments**, a variable and right behind it its number, with
# PADs strewn between them; then come `+`, the two **operands**, and `=`. The answer, the sum of the operands' numbers
# modulo $p$, is what the model has to say at `=`.

# %%
assigned = [f"{v}={n % cfg.p}" for v, n in (("b", 17), ("c", 1), ("a", 42))][: cfg.max_assignments]
example = task.parse(f"{', '.join(assigned)}, b+{19 % cfg.p}=?", cfg)
print("as text:   ", task.format(example, cfg))
print("as tokens: ", task.format(example, cfg, form="tokens"))
print("answer:    ", task.answers(example[None], cfg).item())
print(f"alphabet:   {cfg.p} numbers, +, =, PAD and {cfg.variables} variables: {cfg.vocabulary} tokens")

# %% [markdown]
# Each operand may be a number or a variable, which makes four **kinds**. Below is the first sequence of each kind that
# training draws. Variables that are assigned but not asked for are distractors: they make it useless to attend to any
# assignment but the right one.

# %% tags=["hide-input"]
tokens = sampler.Sampler(cfg).batch(torch.tensor([cfg.seed]), torch.tensor([0])).flatten(0, 2)
kinds = task.operands(tokens, cfg).kind
first = torch.stack([tokens[kinds == kind][0] for kind in range(4)])
labels = [name.replace("num", "n").replace("var", "v").replace("+", " + ") for name in KINDS]
figures.show(
    figures.token_strips(first, labels, cfg),
    "One training sequence of each kind: n + n, v + n, n + v, v + v. What has to be added is orange; blue variables "
    "lead to it, and “;” is a PAD. The model itself sees none of these colours.",
    "Four rows of tokens. In each, the two numbers to add are marked, and where an operand is a variable, so are the "
    "variable's two places: in its assignment and behind the plus sign.",
)

# %%
for label, row in zip(labels, first, strict=True):
    print(f"{label}:  {task.format(row, cfg)}  {task.answers(row[None], cfg).item()}")

# %% [markdown]
# Drawn again and again, of any kind or of one:

# %% tags=["hide-input", "nbval-ignore-output"]
explorer.sampler(RUN)

# %% tags=["hide-input"]
more = {label: tokens[kinds == kind][1:7] for kind, label in enumerate(labels)}
figures.show(
    figures.token_menu(more, cfg),
    "Six more training sequences of one kind; the menu chooses the kind. " + explorer.HOW,
    "Rows of tokens of the kind that the menu names, coloured as in the figure above.",
)

# %%
for kind, (label, rows) in enumerate(more.items()):
    print(f"{label}: {len(rows)} of the {(kinds == kind).sum()} that the first step draws")

# %% [markdown]
# ## How training draws
#
# Nothing is a fixed data set: every step draws its sequences anew, as a function of the seed and the step alone. The
# law is simple enough to be written down, so we can hold the sampler to it. A sequence is of kind n + n, v + n, n + v
# or v + v with weights 12 : 10 : 10 : 10, where the last is multiplied by the config's factor `two_var`. The number of
# assignments is uniform from 1 to the most that fit; where two different variables are asked for, a drawn 1 becomes 2.

# %%
weights = torch.tensor(sampler.KIND_WEIGHTS) * torch.tensor([1, 1, 1, cfg.two_var])
kind_law = (weights / weights.sum()).tolist()
counts = torch.arange(1, cfg.max_assignments + 1)
count_law = torch.full((len(counts),), 1 / len(counts))
count_law[0] -= kind_law[3] / len(counts)
count_law[1] += kind_law[3] / len(counts)

# %%
steps = torch.arange(40)
drawn = sampler.Sampler(cfg.replace(batch=500)).batch(torch.tensor([cfg.seed]), steps).flatten(0, 2)
kind = task.operands(drawn, cfg).kind
assigned = (drawn[:, : cfg.room] >= cfg.FIRST_VARIABLE).sum(1)
rows = [(f"{labels[k]}", kind_law[k], (kind == k).sum().item()) for k in range(4)]
rows += [(f"{n} ass.", count_law[n - 1].item(), (assigned == n).sum().item()) for n in counts.tolist()]
table = pd.DataFrame(rows, columns=["what", "law", "hits"])
table["drawn"] = table.hits / len(drawn)
table["low"], table["high"] = zip(*(wilson(hits, len(drawn)) for hits in table.hits), strict=True)

# %% tags=["hide-input"]
fig = figures.go.Figure()
error = {"array": table.high - table.drawn, "arrayminus": table.drawn - table.low, "symmetric": False}
fig.add_bar(x=table.what, y=table.law, name="law", marker_color=figures.GREY, opacity=0.5)
fig.add_scatter(x=table.what, y=table.drawn, error_y=error, mode="markers", name="drawn", marker_color=figures.BLUE)
fig.update_yaxes(title_text="share of sequences", rangemode="tozero").update_layout(height=360)
figures.show(
    fig,
    f"What the sampler should draw (bars) and what it drew in {len(drawn):,} sequences (points, 95% intervals).",
    "Bars for the four kinds and for each number of assignments; every point lies at the height of its bar.",
)

# %%
print(f"n = {len(drawn)}, 95% intervals")
print(table[["what", "law", "drawn", "low", "high"]].round(4).to_string(index=False))

# %% [markdown]
# ## What training withholds: number pairs
#
# Training never sees some **ordered** number pairs $(n, m)$, in no kind of sequence: not as numbers that stand there,
# nor as the numbers of variables. The order matters. Addition does not care about it, and a model that has noticed as
# much can answer $n + m$ from $m + n$. So the withheld pairs are of three sorts, and only two of them test addition
# alone: pairs whose mirror was trained on, pairs withheld in both orders, and pairs $(n, n)$, which are their own
# mirror.

# %% tags=["hide-input"]
classes = task.pair_classes(cfg)
names = ["training", "held out, mirror in training", "held out in both orders", "held out, n = m"]
colours = ["#c3c9d1", figures.SKY, figures.BLUE, figures.ORANGE]
fig = figures.category_map(classes.numpy(), names, colours, "n = %{y}, m = %{x}")
fig.update_xaxes(title_text="second number m").update_yaxes(title_text="first number n")
figures.show(
    figures.square(fig).update_layout(height=560),
    "All ordered number pairs. Grey pairs are drawn in training, all others never.",
    "A square map of number pairs, most of them training pairs, with held-out pairs scattered evenly. Off the "
    "diagonal most held-out pairs have their mirror in training.",
)

# %%
total = classes.numel()
for index, name in enumerate(names):
    count = (classes == index).sum().item()
    print(f"{name:30} {count:5} of {total}  {count / total:6.1%}")

# %% [markdown]
# ## What training withholds: places
#
# The second thing withheld is a place. Some variables never stand second in training, and some never stand first. As
# distractors they occur like all others, so the model knows them and their assignments; what it has never seen is that
# one is asked for in that place. Of two variables, none, one or both may stand where training never shows them.

# %% tags=["hide-input"]
letters = list(cfg.letters)
illegal = torch.tensor([[task.illegal_count(cfg, v, w) for w in range(len(letters))] for v in range(len(letters))])
illegal[torch.eye(len(letters), dtype=torch.bool)] = 3
names = ["in training", "one restricted", "both restricted", "same variable twice"]
colours = ["#c3c9d1", figures.YELLOW, figures.ORANGE, "#8a8f98"]
fig = figures.category_map(illegal.numpy(), names, colours, "%{y} + %{x}", letters, letters, gap=1)
fig.update_xaxes(title_text="second variable", side="bottom").update_yaxes(title_text="first variable")
figures.show(
    figures.square(fig).update_layout(height=440),
    "All ordered pairs of variables. Grey pairs are drawn in training; a variable is never paired with itself.",
    "A square map of variable pairs. Two columns and two rows are restricted, and where they cross both variables are.",
)

# %%
print(f"never second: {', '.join(cfg.not_second)};  never first: {', '.join(cfg.not_first)}")
for index, name in enumerate(names):
    print(f"{name:20} {(illegal == index).sum().item():4} of {illegal.numel()} variable pairs")

# %% [markdown]
# ## The sets on which a model is measured
#
# Nine fixed sets cover what was trained (*train*), held-out number pairs with everything else as in training
# (*add-restricted*), and trained number pairs with variables in places never trained (*var-restricted*; with two
# variables, one or both of them). These are the paper's. Below them are stricter ones that we add: the held-out pairs
# taken apart by their mirror, pair and place withheld at once, and the same variable twice.

# %%
for sets in (evaluation_sets(cfg), further_sets(cfg)):
    for name, members in sets.items():
        sample = task.format(members[0], cfg) if len(members) else "cannot be drawn from this run's settings"
        print(f"{name:25} n = {len(members)}   {sample}")

# %% [markdown]
# ## The model
#
# Two layers of attention and one MLP, and nothing else: no biases, no LayerNorm, and no MLP in the first layer. All
# that a part computes is *added* to the **residual stream**, one vector for each position, from which every later part
# reads. Only the vector at `=` is turned into an answer. Such a model is small enough that its weights can be read,
# which is what the later chapters do.

# %% tags=["hide-input"]
figures.show(
    figures.model_diagram(cfg),
    "The model from its input (top) to its answer (bottom). Arrows to the right read from the residual stream, arrows "
    "to the left add to it.",
    "A diagram of five parts along the residual stream: embedding, attention of layer 1, attention of layer 2, MLP of "
    "layer 2, unembedding, each with the sizes of its weights.",
)

# %%
sizes = pd.Series(shapes(cfg), name="shape").to_frame()
sizes["weights"] = [torch.Size(shape).numel() for shape in sizes["shape"]]
print(sizes.to_string())
print(f"\n{sizes.weights.sum():,} weights in all")
