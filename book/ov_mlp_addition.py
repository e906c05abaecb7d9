# %% [markdown]
# # Addition: one circuit behind attention
#
# Once attention has found the two numbers, adding them is the work of two matrices and one layer of neurons, and the
# same work whether a number stood in the sum or was looked up. Layer 2's attention carries an **image** of each number
# to `=`; the images simply add up there; and the MLP turns the sum of images into the sum of the numbers modulo $p$.
# This page checks each half of that sentence, first by looking (as Section 5.1 of the paper does), then by cutting.

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import pandas as pd
import torch
from IPython.display import HTML, display

from mc_lib import addition, claims, evaluation, explorer, figures, figures_addition, fourier, model, probes, task
from mc_lib.config import KINDS, Refusal
from mc_lib.intervals import wilson
from mc_lib.runs import open_run

study = claims.Study(open_run(RUN))
weights, cfg = study.weights, study.config
print(f"modulus {cfg.p}, {cfg.heads} head(s) a layer, weights after {study.run.steps[-1]} steps")

# %% [markdown]
# ## Where the numbers come from
#
# The answer is read at `=`, so what matters is what `=` attends to. Take the sequence of the paper's Figure 4. In layer
# 1, `=` looks at the two operands; in layer 2, at the two *numbers*: the one that stands there, and the one that was
# assigned to the variable. How it finds them is the subject of the chapter on the induction head. Here we only need
# that it does.

# %%
try:
    example = task.parse("; ; ; b 7 ; e 5 ; d 2 ; + b 9 =", cfg)
except Refusal:  # another alphabet or length: the first sequence with one variable
    example = evaluation.evaluation_sets(cfg)["1-var train"][0]
traced = model.trace(weights, example[None])
rows = [f"layer {layer}, head {head + 1}" for layer in (1, 2) for head in range(cfg.heads)]
weight = torch.cat([traced.pattern1[0, :, -1], traced.pattern2[0]])
names = [task.token_names(cfg)[token] for token in example.tolist()]

# %% tags=["hide-input"]
figures.show(
    figures_addition.weight_rows(weight, rows, names),
    f"What “=” attends to in {task.format(example, cfg)} “;” is a PAD.",
    "A row a layer and head, a column a token. Layer 1's weight lies on the operands, layer 2's on the two numbers.",
)

# %%
for row, values in zip(rows, weight, strict=True):
    first = values.topk(2).indices.sort().values.tolist()
    print(f"{row}: most weight on {' and '.join(f'{names[i]} (position {i})' for i in first)}")

# %% [markdown]
# ## What reaches the MLP is a sum
#
# Attention is linear in what it carries. If layer 2 attends to a number $n$ with weight $w$, it adds $w\,E_n\,OV^2$ to
# the vector at `=`, where $E_n$ is the number's embedding and $OV^2 = W_V W_O$ (summed over heads if there are several)
# is what the layer does to all that it carries. So we call $E_n\,OV^2$ the **image** of $n$. The claim is that, for
# any pair, the vector at `=` points along $(E_n + E_m)\,OV^2$, the sum of the two images. How long it is does not
# matter to a layer of ReLU neurons without biases: twice the input, twice the output, the same answer.
#
# The paper's Figure 5b shows the cosine between the two, against a control with shuffled operands. A control is worth
# what it keeps and what it changes. The released analysis shuffles the second operand only, so its control still shares
# half of the sum; we show this one beside others. **Two other numbers** shares nothing. **Same answer** takes two other
# numbers that add up to the same thing: would attention already carry the *answer*, this one would score high.
# **Mirror** is $(m, n)$, whose sum of images is the same vector.

# %%
sums = study.shared(addition.sum_cosines)
cosines = sums["attention's output"]
table = pd.DataFrame({name: addition.spread(values)._asdict() for name, values in cosines.items()}).T

# %% tags=["hide-input"]
colours = (figures.BLUE, figures.SKY, figures.YELLOW, figures.ORANGE, figures.PINK)
entries = [(name, values, colour) for (name, values), colour in zip(cosines.items(), colours, strict=True)]
figures.show(
    figures_addition.ranges(entries, "cosine"),
    f"What layer 2's attention adds at “=” in number + number sequences with random contexts, one for each of the "
    f"{cfg.p**2} ordered pairs, against sums of images of its own pair and of others. Points are means, bars hold 90% "
    "of the pairs, lines all of them.",
    "Five rows. The pair itself and its mirror lie near 1, pairs sharing one number about half way, others about 0.",
)

# %%
print(table.astype({"n": int})[["mean", "low", "high", "least", "n"]].round(2).to_string())
whole = addition.spread(sums["whole residual"][addition.SAME])
print(f"\nThe whole vector before the MLP, with all else that it holds: mean {whole.mean:.2f}, n = {whole.n}")

# %% [markdown]
# The last line is the stricter reading. Beside attention's output the MLP also sees the embedding of `=`, its position,
# and what layer 1 brought there. If the cosine hardly falls, those parts are small beside the sum of images.

# %% [markdown]
# ## A variable is as good as its number
#
# If a circuit adds images, it cannot tell whether a number stood in the sum or was looked up. So sequences that ask for
# the same pair should give the same vector before the MLP, whatever their kind. The paper's Figure 5a compares two
# **templates** over all pairs: `a 7 b 2 c 51 ; ; ; ; ; ; + n m =` and the same with `b n` and `+ b m =`. One variable
# in one place is a narrow test, so below it stand random contexts: both sequences have their own distractors, layout
# and variables, and the second one is of each kind in turn.

# %%
found = {"template": study.shared(addition.template_cosines)}
for kind in (1, 2, 3):
    found[KINDS[kind].replace("+", " + ")] = study.shared(addition.context_cosines, kind)

# %% tags=["hide-input"]
entries = []
for name, values in found.items():
    entries.append((f"{name}: same", values[addition.SAME], figures.BLUE))
    entries.append((f"{name}: other", values[addition.BOTH], figures.ORANGE))
figures.show(
    figures_addition.ranges(entries, "cosine"),
    f"The vector before the MLP in a number + number sequence against that in a sequence with variables, for the same "
    f"pair (blue) and for two other numbers (orange); n = {cfg.p**2} pairs in each row.",
    "Rows in twos, for the template and for three kinds in random contexts: the same pair near 1, other pairs near 0.",
)

# %%
for name, values in found.items():
    same, other = (addition.spread(values[how]) for how in (addition.SAME, addition.BOTH))
    print(f"{name:10} same {same.mean:.2f} (least {same.least:.1f}), two other numbers {other.mean:.2f}, n = {same.n}")

# %% [markdown]
# ## The answer appears in the MLP
#
# A **linear probe** is a linear map trained to read something off a vector. The paper trains probes for the answer
# before and after the MLP: the first fail, the second succeed. Two things make such a test fair. The probe must have
# converged; ours is softmax regression with a small penalty, driven to its optimum. And the pairs on which it is tested
# must not have been in its training, in either order: a probe with many dimensions to remember pairs with need not
# know how to add. The figure shows both ways of splitting.
#
# A failing probe proves little if the vector held nothing at all. So we also ask a linear map for the two *numbers*
# before the MLP. All the information is there; it is just not added up.

# %%
read = study.shared(probes.probes)
if len({row.split for row in read}) < 2:
    print("too few number pairs here to keep some of them out of the probes' training")

# %% tags=["hide-input"]
colour = {probes.SHARED: figures.SKY, probes.DISJOINT: figures.BLUE}
order = sorted(read, key=lambda row: (row.target != probes.ANSWER, row.place == probes.AFTER))
entries = [(f"{row.target} {row.place},<br>{row.split}", row.hits, row.n, colour[row.split]) for row in order]
figures.show(
    figures_addition.shares(entries, "share of test sequences read right").update_layout(height=420),
    f"Linear probes at “=”, on sequences of all kinds. Guessing the answer would be right once in {cfg.p}.",
    "Bars: the answer is hardly readable before the MLP and almost always after it; the two numbers are, before it.",
)

# %%
for row in order:
    low, high = wilson(row.hits, row.n)
    print(f"{row.target:15} {row.place:14} {row.split:14} {row.accuracy:.2f}  [{low:.2f}, {high:.2f}]  n = {row.n}")

# %% [markdown]
# With disjoint pairs, the probe before the MLP may do *worse* than guessing, and that is no accident. When $(n, m)$ is
# kept out, the probe sees $n$ with every answer but $n + m$, and $m$ likewise: both have taught it that this answer is
# not theirs.

# %% [markdown]
# ## The circuit on its own
#
# If that is all, we can throw the rest of the model away. The **isolated circuit** takes two numbers and computes
#
# $$\operatorname{ReLU}\big((E_n + E_m)\,OV^2\,W_{in}\big)\,W_{out}\,W_U,$$
#
# with no attention, no context, no positions. Below is its margin for every pair: the logit of the right answer less
# the best wrong one. Where it is negative the circuit errs.

# %%
margin = addition.isolated_margins(weights, cfg)
wrong = study.shared(addition.isolated_errors)

# %% tags=["hide-input"]
figures.show(
    figures_addition.margin_map(margin, wrong),
    f"Margin of the isolated circuit over all {cfg.p**2} ordered pairs; {len(wrong)} of them wrong (crosses).",
    "A square map of margins, positive almost everywhere, with the diagonal n = m standing out as weaker.",
)

# %%
print(f"{cfg.p**2 - len(wrong)} of {cfg.p**2} pairs right")
for n, m, said in wrong[:12]:
    out = "held out" if task.held_out_mask(cfg)[n, m] else "trained"
    print(f"  {n} + {m} = {(n + m) % cfg.p}, the circuit says {said} ({out})")
on = torch.eye(cfg.p, dtype=torch.bool)
print(f"of the wrong pairs {sum(n == m for n, m, _ in wrong)} have n = m")
print(f"median margin with n = m: {margin[on].median():.0f}, of all others: {margin[~on].median():.0f}")

# %% [markdown]
# The pairs $(n, n)$ are the hard ones, and there are two likely reasons. For $n \ne m$ the circuit is given one and the
# same vector for $(n, m)$ and $(m, n)$, so that a held-out pair is learned from its mirror; a pair $(n, n)$ has none.
# And among sums of images these are outliers: they alone are made of one image, twice.

# %% [markdown]
# ## Is this what the model uses?
#
# Everything so far is correlation: the circuit *could* do the work. To see whether it *does*, we cut. The model's
# activations can be edited while it runs: a **hook** is a function that sees one activation and may return another in
# its place. Here are two cuts. The first silences the MLP. The second leaves only one path to the answer: the MLP sees
# nothing but what layer 2's attention adds, and the answer is read from nothing but the MLP.

# %%
from mc_lib.hooked import hooked

net, seen = hooked(weights), {}


def keep(activation, hook):
    seen[hook.name] = activation


silent = [("blocks.1.hook_mlp_out", lambda x, hook: torch.zeros_like(x))]
path = [("blocks.1.hook_attn_out", keep), ("blocks.1.hook_mlp_out", keep)]
path += [("blocks.1.hook_resid_mid", lambda x, hook: seen["blocks.1.hook_attn_out"])]
path += [("blocks.1.hook_resid_post", lambda x, hook: seen["blocks.1.hook_mlp_out"])]

# %%
tokens = torch.cat([addition.in_contexts(cfg, kind) for kind in range(4)])
tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[:500]]
with torch.no_grad():
    runs = {
        "the whole model": net(tokens),
        "MLP silenced": net.run_with_hooks(tokens, fwd_hooks=silent),
        "only attention → MLP": net.run_with_hooks(tokens, fwd_hooks=path),
    }
for name, scores in runs.items():
    right = scores[:, -1].argmax(1) == task.answers(tokens, cfg)
    print(f"{name:21} {right.float().mean():.2f} right, n = {len(tokens)}")

# %% [markdown]
# The same cuts on every pair in all four kinds, computed without hooks (a test holds the two ways together), and two
# more for comparison. Replacing the MLP's output by its **mean** is a gentler way to remove it than zeros, which the
# rest of the model may never have seen. And an MLP that sees everything *but* layer 2's attention shows whether some
# other route could have told it the numbers.

# %%
cuts = study.shared(addition.path_hits)

# %% tags=["hide-input"]
ink = {addition.WHOLE: figures.GREY, addition.ONLY_PATH: figures.BLUE}
entries = [(name.replace(" by", "<br>by").replace(" to ", "<br>to ").replace("attention →", "attention<br>→"),
            hits, n, ink.get(name, figures.ORANGE)) for name, (hits, n) in cuts.items()]  # fmt: skip
figures.show(
    figures_addition.shares(entries, "share answered right").update_layout(height=340),
    f"Accuracy with paths cut at “=”. Every ordered pair once in each kind, n = {4 * cfg.p**2}; guessing: 1/{cfg.p}.",
    "Five bars: the whole model and the one path from attention through the MLP near 1, all cuts of it far lower.",
)

# %%
for name, (hits, n) in cuts.items():
    low, high = wilson(hits, n)
    print(f"{name:38} {hits / n:.2f}  [{low:.2f}, {high:.2f}]  n = {n}")

# %% [markdown]
# Cutting says what is needed. **Swapping** says what it means: we give a sequence (the host) the attention output of
# another one (the donor) that asks for another pair, and leave all else in place. If this vector is what the model
# means by "the two numbers", it must now answer the donor's question, whatever kinds the two are of.

# %%
for donor, host in ((0, 1), (0, 3), (1, 0), (3, 0), (3, 2)):
    got = study.shared(addition.swap, donor, host)
    answers = f"answers the donor's question {got.donor / got.n:.2f}, its own {got.host / got.n:.2f}"
    print(f"{KINDS[donor]} into {KINDS[host]}: {answers}, n = {got.n}")

# %% [markdown]
# ## How neurons add: waves
#
# What does the MLP do with a sum of images? The paper finds what is known from models that learned nothing but modular
# addition: the numbers are laid on circles. A **wave** of frequency $k$ takes $k$ turns while $n$ runs through all
# numbers modulo $p$. A neuron that sees $\cos(wn + \phi) + \cos(wm + \phi)$, with $w = 2\pi k/p$, and cuts off what is
# below zero, produces among other things a term $\cos\!\big(w(n + m) + 2\phi\big)$: the product that hides in every
# bend. This term depends on $n + m$ alone. Many neurons with different phases $\phi$ keep it and cancel the rest.
#
# So we expect few frequencies, the same ones all along the way: in the number embedding $E$, in the images
# $E\,OV^2$, in what the neurons read, and in what they write onto the logits. We split each of these functions of a
# number into its waves and ask how its power (its variance) is shared out. The constant part is left aside.

# %%
spectra = study.shared(fourier.spectra)
untrained = fourier.carriers(fourier.spectra(model.init(cfg), cfg)["E"])

# %% tags=["hide-input"]
figures.show(
    figures_addition.spectra(spectra),
    f"Share of power at each of the {len(spectra['E'])} frequencies, from the embedding (top) to the neurons' effect "
    f"on the logits. Blue: the fewest that carry nine tenths. In an untrained embedding that takes {len(untrained)}.",
    "Four bar charts over frequencies. The same few bars stand out in all four.",
)

# %%
carried = {name: fourier.carriers(share) for name, share in spectra.items()}
for name, share in spectra.items():
    print(f"{name:11} {len(carried[name]):2} of {len(share)} frequencies carry .9 of the power")
everywhere = sorted(set.intersection(*map(set, carried.values())))
print(f"among them at every station: {', '.join(map(str, everywhere)) or 'none'}")
print(f"untrained   {len(untrained):2} of {len(spectra['E'])}")

# %% [markdown]
# ## Every neuron, not only one
#
# The paper's Figure 11 shows the pre-activations of one neuron over all pairs, next to a neuron of the construction by
# {cite:t}`gromov2023`, and the match is near-perfect. One neuron can be picked. So here is the fit of all of them: the
# share $R^2$ of the variance of a neuron's map that is explained by $A\cos(wn + \phi) + B\cos(wm + \psi)$ and a
# constant, at the best frequency. Beside it is how much *any* function of $n$ plus *any* function of $m$ would explain.
# A neuron counts as **live** if it is on for some pairs and off for others.

# %%
found = study.shared(fourier.waves)
best, additive = found.best[found.live], found.additive[found.live]

# %% tags=["hide-input"]
figures.show(
    figures_addition.fits(best, additive),
    f"How well a wave of one frequency explains the {len(best)} live neurons, and how well any sum of two functions.",
    "Two histograms of R²: sums of any two functions explain nearly all of nearly every neuron, one frequency less.",
)

# %%
if not len(best):
    print("no neuron of this run is on for some pairs and off for others: there is nothing to fit")
else:
    low, high = wilson(many := int((best > 0.9).sum()), len(best))
    print(f"live neurons: {len(best)} of {cfg.d_mlp}")
    print(f"one frequency: R² at most {best.max():.2f}, median {best.median():.2f}")
    print(f"any f(n) + g(m): median {additive.median():.2f}")
    print(f"R² above .9: {many / len(best):.2f}  [{low:.2f}, {high:.2f}]")
    counts = pd.Series(found.frequency[found.live].tolist()).value_counts()
    print(f"frequencies best for 5 neurons or more: {', '.join(map(str, sorted(counts[counts >= 5].index)))}")

# %% [markdown]
# What separates the two histograms is further frequencies: a neuron adds two functions, each of them a wave with weaker
# waves on top. The picker below goes from the worst fit to the best. The paper's neuron resembles those near its right
# end; typical ones are in its middle.

# %% tags=["hide-input"]
if len(best):
    figures.show(
        figures_addition.neuron_slider(fourier.neuron_maps(weights, cfg), found),
        "Pre-activation of a neuron over all pairs (left; n downwards, m to the right), and its best wave of one "
        "frequency (right). The slider goes from the live neuron with the least R² to that with the most, in even "
        "steps of rank. Colours are per cent of the neuron's largest value.",
        "Two maps over pairs of numbers, side by side, both chequered with the same period, with a slider of neurons.",
    )

# %%
for neuron in fourier.quantile_neurons(found, 5):
    print(f"neuron {neuron}: k = {int(found.frequency[neuron])}, R² = {found.best[neuron]:.2f}")

# %% [markdown]
# Every neuron, at every saved step:

# %% tags=["hide-input", "nbval-ignore-output"]
explorer.neuron(RUN)

# %% tags=["hide-input"]
display(HTML(f"<p>{explorer.HOW}</p>"))

# %% [markdown]
# A median over neurons counts each as one, however little it says. Its **strength** is the variance that it writes onto
# the logits, as a share of all neurons' together. So we ask how much of the strength lies with neurons that are mostly
# one wave, and go on to remove the others from the isolated circuit.

# %%
strength = study.shared(fourier.strength)
unlike = (found.best < 0.5) & (found.active > 0)
print(f"neurons with R² below .5: {int(unlike.sum())}, with {strength[unlike].sum():.2f} of the strength")
print(f"mean R², weighted by strength: {(found.best * strength).sum():.2f}")
for name, removed in (("none", unlike & False), ("those below .5", unlike), ("those above .5", found.best >= 0.5)):
    errors = len(addition.isolated_errors(addition.without_neurons(weights, removed), cfg))
    print(f"isolated circuit, removed {name}: {cfg.p**2 - errors} of {cfg.p**2} pairs right")

# %% [markdown]
# Where errors go away with the misfits, waves alone add better than the whole circuit. The paper's picture then holds
# for what does the work, and less for the count of neurons.
#
# One more test of the mechanism, which the paper does not make. The useful term has the phase $2\phi$. So a neuron that
# reads with phase $\phi$ must *write* a wave $\cos(wr + 2\phi)$ onto the logit of each number $r$: only then does it
# vote for $r = n + m$. In the figure every live neuron should lie on the diagonal line, modulo a full turn.

# %%
phases = study.shared(fourier.phases)

# %% tags=["hide-input"]
figures.show(
    figures_addition.phase_scatter(phases, found),
    f"Twice the phase in which a live neuron reads a number, and the phase in which it writes; n = {len(best)}.",
    "A scatter of neurons along the diagonal of a square; the corners are one and the same phase.",
)

# %%
print(f"agreement of the two phases: {phases.agreement:.2f} (1: always equal, about 0: unrelated), n = {len(best)}")
clean = fourier.Phases(*(x[best >= 0.5] for x in phases))
print(f"among neurons with R² of .5 or more: {clean.agreement:.2f}, n = {len(clean.read)}")

# %% [markdown]
# ## The claims of this chapter
#
# "The paper" is what its text says, "the released run" what the authors' published weights give, measured as here
# unless said otherwise. Square brackets are 95% intervals.

# %%
found = claims.table(claims.of_chapter("ov_mlp_addition"), study)
display(HTML(claims.table_html(found)))
for row in found.itertuples():
    print(f"{row.claim}: {row.verdict}")
