"""The measures against slow direct loops, and on weights built by hand of which every answer is known."""

import itertools
import math
import time

import pytest
import torch
from built_by_hand import built
from hypothesis import given, settings
from hypothesis import strategies as st

from mc_lib import evaluation, measures, model, task
from mc_lib.config import Config, Refusal
from mc_lib.measures import METRICS, NINE, SEVEN, measure

SMALL = Config(p=5, variables=5, length=10, d_model=38, d_mlp=15, heads=1, not_second="a", not_first="e", eval_size=20)
CASES = {
    "one head": SMALL.replace(d_model=16),
    "four heads": SMALL.replace(d_model=16, heads=4),
    "nothing held out": SMALL.replace(d_model=16, p=7, heads=2, held_out=0.0, not_second="", not_first=""),
    "an odd length": SMALL.replace(d_model=12, length=13, variables=4, d_mlp=3, not_first="d"),
}
FINE = settings(max_examples=10, deadline=None, derandomize=True)


def random_weights(cfg, seed=0, scale=3.0):
    """Weights large enough for attention to choose."""
    drawn = model.init(cfg.replace(seed=seed, init_scale=scale))
    return {name: tensor.double() for name, tensor in drawn.items()}


# --- the same by slow loops ----------------------------------------------------------------------------


def plain(w, tokens, cfg):
    """The transformer as it is usually written, for one sequence."""
    x = w["embed.W_E"][tokens] + w["pos_embed.W_pos"]
    after = x.clone()
    first, second = [], []
    for layer, patterns in ((0, first), (1, second)):
        source = after.clone() if layer else x
        for h in range(cfg.heads):
            q, k, v, o = (w[f"blocks.{layer}.attn.W_{n}"][h] for n in "QKVO")
            score = (source @ q) @ (source @ k).T / math.sqrt(cfg.d_head)
            score = score.masked_fill(torch.ones_like(score).triu(1).bool(), -math.inf)
            patterns.append(score.softmax(-1))
            after = after + patterns[-1] @ source @ v @ o
        if not layer:
            middle = after.clone()
    hidden = torch.relu(after[-1] @ w["blocks.1.mlp.W_in"])
    logits = (after[-1] + hidden @ w["blocks.1.mlp.W_out"]) @ w["unembed.W_U"]
    return first, [pattern[-1] for pattern in second], middle, logits


def wins(values, right):
    """Whether the entries of `right` are the largest ones, with a gap to the next."""
    order = sorted(range(len(values)), key=lambda i: -values[i])
    n = len(right)
    return set(order[:n]) == set(right) and values[order[n - 1]] > values[order[n]]


def average(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def slow_accuracies(w, cfg):
    row = {}
    for name, tokens in evaluation.evaluation_sets(cfg).items():
        right = task.answers(tokens, cfg).tolist()
        hits = [wins(plain(w, t, cfg)[3].tolist(), [a]) for t, a in zip(tokens, right, strict=True)]
        row[name] = average(hits)
        if name == "1-var train":
            first = (tokens[:, -3] >= cfg.FIRST_VARIABLE).tolist()
            row[f"{name} (first)"] = average(h for h, f in zip(hits, first, strict=True) if f)
            row[f"{name} (second)"] = average(h for h, f in zip(hits, first, strict=True) if not f)
    return row


def slow_from_weights(w, cfg):
    e, pos, heads = w["embed.W_E"], w["pos_embed.W_pos"], range(cfg.heads)
    ov2 = sum(w["blocks.1.attn.W_V"][h] @ w["blocks.1.attn.W_O"][h] for h in heads)
    added = []
    for a, b in itertools.product(range(cfg.p), repeat=2):
        hidden = torch.relu((e[a] + e[b]) @ ov2 @ w["blocks.1.mlp.W_in"])
        added.append(wins((hidden @ w["blocks.1.mlp.W_out"] @ w["unembed.W_U"]).tolist(), [(a + b) % cfg.p]))
    previous = []
    for h in heads:
        score = pos @ w["blocks.0.attn.W_Q"][h] @ w["blocks.0.attn.W_K"][h].T @ pos.T
        rows = [[score[q, k] for k in range(q) if k != q - 2] for q in range(1, cfg.room)]
        previous.append(average(row.index(max(row)) == len(row) - 1 for row in rows))
    matches = []
    ov1 = [w["blocks.0.attn.W_V"][h] @ w["blocks.0.attn.W_O"][h] for h in heads]
    v = e[cfg.FIRST_VARIABLE :]
    for h2, hq, hk in itertools.product(heads, repeat=3):
        qk2 = w["blocks.1.attn.W_Q"][h2] @ w["blocks.1.attn.W_K"][h2].T
        score = ((v @ ov1[hq]) @ qk2 @ (v @ ov1[hk]).T).tolist()
        margins = [r[i] - max(r[:i] + r[i + 1 :]) for i, r in enumerate(score)]
        matches.append((average(m > 0 for m in margins), average(margins), min(margins)))
    share, mean, least = max(matches)
    return {
        "ov2_mlp2_accuracy": average(added),
        "qk1_num_to_prev_var": max(previous),
        "qk2_ov1_var_identity": share,
        "qk2_margin_mean": mean,
        "qk2_margin_min": least,
    }


def slow_attention(w, sequences, cfg):
    """Attention measures, and every assigned number's residual with its variable, by sequence."""
    seen = {name: [[] for _ in range(cfg.heads)] for name in measures.ATTENTION}
    numbers = []
    for tokens in sequences:
        first, second, middle, _ = plain(w, tokens, cfg)
        ids = tokens.tolist()
        shown = list(zip((cfg.length - 3, cfg.length - 2), ids[-3:-1], strict=True))
        values = {ids.index(t) + 1 if t >= cfg.FIRST_VARIABLE else at for at, t in shown}
        variables = sum(t >= cfg.FIRST_VARIABLE for _, t in shown)
        places = [i for i in range(1, cfg.room) if ids[i] < cfg.p]
        numbers.append([(middle[i], ids[i - 1] - cfg.FIRST_VARIABLE) for i in places])
        for h in range(cfg.heads):
            asked = [("attn_l1_equal_to_operands", first[h][-1], {cfg.length - 3, cfg.length - 2})]
            asked += [("attn_l1_num_to_prev", first[h][i], {i - 1}) for i in places]
            asked += [("attn_l2_equal_to_values", second[h], values)]
            for name, weight, right in asked:
                weight = weight.tolist()
                seen[name][h].append((variables, wins(weight, right), sum(weight[i] for i in right)))
    row = {}
    for name, by_head in seen.items():
        best = max(by_head, key=lambda s: (average(x[1] for x in s), average(x[2] for x in s)))
        row |= {name: average(x[1] for x in best), f"{name}_mass": average(x[2] for x in best)}
        row[f"{name}_kinds012"] = average(x[1] for x in best if x[0] < 2)
        row[f"{name}_kinds012_mass"] = average(x[2] for x in best if x[0] < 2)
    for count in range(3):
        row[f"attn_l2_mass_{count}var"] = average(x[2] for x in best if x[0] == count)
    return row, numbers


def slow_probe(train, test, classes):
    """Least squares on one-hot classes with an intercept, by another solver."""
    x, y = torch.stack([r for r, _ in train]), torch.tensor([c for _, c in train])
    fit = torch.linalg.lstsq(
        torch.nn.functional.pad(x, (0, 1), value=1.0), torch.eye(classes, dtype=x.dtype)[y]
    ).solution
    return average(wins((r @ fit[:-1] + fit[-1]).tolist(), [c]) for r, c in test)


def slow_probe_4steps(train, test, classes):
    """Four steps of torch's own Adam."""
    x, y = torch.stack([r for r, _ in train]), torch.tensor([c for _, c in train])
    layer = torch.nn.Linear(x.shape[1], classes, dtype=x.dtype)
    layer.load_state_dict({name: 0 * t for name, t in layer.state_dict().items()})
    adam = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(4):
        adam.zero_grad()
        torch.nn.functional.cross_entropy(layer(x), y).backward()
        adam.step()
    return average(wins(layer(r).tolist(), [c]) for r, c in test)


@pytest.mark.parametrize("cfg", CASES.values(), ids=CASES.keys())
def test_every_column_equals_slow_loops(cfg):
    w = random_weights(cfg)
    sequences = measures._fixed(evaluation.task_only(cfg)).tokens
    expected = slow_accuracies(w, cfg) | slow_from_weights(w, cfg)
    row, numbers = slow_attention(w, sequences, cfg)
    half = len(numbers) // 2
    train, test = sum(numbers[:half], []), sum(numbers[half:], [])
    expected |= row | {
        "probe_l1_var_from_num": slow_probe(train, test, cfg.variables),
        "probe_l1_var_from_num_4steps": slow_probe_4steps(train, test, cfg.variables),
    }
    found = measure(w, cfg)
    assert tuple(found) == METRICS
    assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


# --- weights built by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2])
def test_a_model_that_works_has_ones_everywhere(heads):
    cfg = SMALL.replace(heads=heads)
    row = measure(built(cfg), cfg)
    margins = row.pop("qk2_margin_mean"), row.pop("qk2_margin_min")
    assert 1.5 / cfg.variables < row.pop("probe_l1_var_from_num_4steps") < 0.9
    assert row == pytest.approx(dict.fromkeys(row, 1.0), abs=1e-6)
    assert margins == pytest.approx((400, 400))


@pytest.mark.parametrize(
    ("change", "zeros", "ones"),
    [
        ({"off": 1}, [*NINE, *measures.BY_SIDE, "ov2_mlp2_accuracy"], SEVEN[1:]),
        ({"back": 0}, ["attn_l1_num_to_prev", "attn_l2_mass_2var"], ["attn_l1_equal_to_operands"]),
        ({"watched": (-3, -4)}, ["attn_l1_equal_to_operands"], ["attn_l1_num_to_prev"]),
        ({"shift": 1}, ["qk2_ov1_var_identity"], ["attn_l1_num_to_prev", "0-var train"]),
        ({"moved": 0.0}, ["qk2_ov1_var_identity", "attn_l2_mass_2var"], ["attn_l1_equal_to_operands"]),
    ],
)
@pytest.mark.parametrize("heads", [1, 2])
def test_each_broken_part_shows_in_its_measure(change, zeros, ones, heads):
    cfg = SMALL.replace(heads=heads)
    whole, row = measure(built(cfg), cfg), measure(built(cfg, **change), cfg)
    for name in zeros:  # a second head of zeros attends evenly: where it is the best, it leaves some mass
        assert row[name] < (whole[name] - 0.5 if "mass" in name else 1e-9), name
    assert all(row[name] == whole[name] == 1 for name in ones)


def test_qk1_rows_with_a_single_choice_hit_and_ties_do_not():
    assert measure(built(SMALL, back=0), SMALL)["qk1_num_to_prev_var"] == pytest.approx(2 / (SMALL.room - 1))


def test_probe_falls_to_chance_without_the_variable():
    row = measure(built(SMALL, moved=0.0), SMALL)
    assert max(row["probe_l1_var_from_num"], row["probe_l1_var_from_num_4steps"]) < 1 / SMALL.variables + 0.06


def test_ties_are_never_hits_and_mass_of_even_attention_is_exact():
    row = measure({name: torch.zeros(shape) for name, shape in model.shapes(SMALL).items()}, SMALL)
    rates = set(NINE) | set(SEVEN[:6]) - {"qk1_num_to_prev_var"}
    assert {name: row[name] for name in rates} == dict.fromkeys(rates, 0.0)
    assert row["attn_l1_equal_to_operands_mass"] == pytest.approx(2 / SMALL.length)
    assert row["attn_l2_mass_2var"] == pytest.approx(2 / SMALL.length)


@pytest.mark.parametrize("w", [built(SMALL), random_weights(SMALL)], ids=["built", "random"])
def test_same_variable_twice_counts_its_one_value_once(w):
    tokens = evaluation.further_sets(SMALL)["v + v"]
    trace = model.trace(w, tokens)
    row = measures.attention(trace.pattern1, trace.pattern2, measures.describe(tokens, SMALL), SMALL)
    expected, _ = slow_attention(w, tokens, SMALL)
    assert {k: float(v) for k, v in row.items()} == pytest.approx(expected, abs=1e-9, nan_ok=True)
    assert row["attn_l2_mass_2var"] <= 1 + 1e-9
    assert math.isnan(row["attn_l2_equal_to_values_kinds012"])


# --- laws ----------------------------------------------------------------------------------------------


@FINE
@given(seed=st.integers(0, 99), order=st.permutations(range(4)), data=st.permutations(range(15)))
def test_nothing_depends_on_the_order_of_heads_or_neurons(seed, order, data):
    cfg = CASES["four heads"]
    w = random_weights(cfg, seed)
    other = {name: t[list(order)] if "attn" in name else t for name, t in w.items()}
    other["blocks.1.mlp.W_in"] = other["blocks.1.mlp.W_in"][:, list(data)]
    other["blocks.1.mlp.W_out"] = other["blocks.1.mlp.W_out"][list(data)]
    assert measure(other, cfg) == pytest.approx(measure(w, cfg), abs=1e-9)


def test_best_head_has_most_hits_then_most_mass():
    hit = torch.tensor([[True, False, True], [False, False, False]])
    mass = torch.tensor([[0.2, 0.9, 0.3], [0.2, 0.9, 0.3]])
    assert measures.best_head(hit, mass) == 2
    assert measures.best_head(hit & False, mass) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_best_variable_match_has_the_highest_share_then_the_widest_margin(order, monkeypatch):
    cfg = CASES["nothing held out"]
    narrow = torch.eye(cfg.variables, dtype=torch.float64)
    wide = 100 * narrow
    wide[0, 1] = 101  # one row lost
    both = torch.stack([narrow, wide])[list(order)]
    monkeypatch.setattr(measures, "match_matrices", lambda *_: both.expand(1, 1, 2, -1, -1))
    row = measures.variable_match({}, cfg)
    assert list(map(float, row.values())) == [1.0, 1.0, 1.0]
    both += 0.5 * narrow
    both[order.index(1), 0, 0] += 100
    assert float(measures.variable_match({}, cfg)["qk2_margin_mean"]) > 50


def test_metrics_are_the_same_each_time_and_for_every_run_of_one_task():
    cfg = CASES["one head"]
    w = random_weights(cfg)
    row = measure(w, cfg)
    assert row == measure(w, cfg) == measure(w, cfg.replace(seed=9, two_var=0.1, lr=0.5))
    assert METRICS[: 9 + 7] == (*NINE, *SEVEN)
    assert all(type(value) is float for value in row.values())
    measures._fixed.cache_clear()
    measures._questions.cache_clear()
    assert row == measure(w, cfg)


def test_sequences_are_training_like_and_the_probe_halves_disjoint():
    cfg = Config()
    fixed = measures._fixed(cfg)
    n = measures.SEQUENCES
    for share, weight in zip((torch.bincount(fixed.kind) / n).tolist(), (12, 10, 10, 10), strict=True):
        assert abs(share - weight / 42) < 4 * math.sqrt(0.25 * 0.75 / n)
    asked = task.operands(fixed.tokens, cfg)
    assert not task.held_out_mask(cfg)[asked.numbers[:, 0], asked.numbers[:, 1]].any()
    shown = fixed.tokens[:, -3:-1] - cfg.FIRST_VARIABLE
    assert not torch.isin(shown[:, 0], task.variables_for(cfg, 0, False)).any()
    assert not torch.isin(shown[:, 1], task.variables_for(cfg, 1, False)).any()
    assert len({tuple(row) for row in fixed.tokens.tolist()}) == n


def test_probe_finds_what_is_linear_and_nothing_in_shuffled_classes():
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(12, 32, generator=generator)
    label = torch.randint(12, (4000,), generator=generator)
    x = centre[label] + 0.1 * torch.randn(4000, 32, generator=generator)
    halves = (x[:2000], label[:2000], x[2000:], label[2000:], 12)
    assert measures.probe(*halves) == 1
    shuffled = label[torch.randperm(4000, generator=generator)]
    assert measures.probe(x[:2000], shuffled[:2000], x[2000:], shuffled[2000:], 12) < 0.13
    skewed = (label > 0).long()  # with features that tell nothing the probe names the commonest class
    assert measures.probe(0 * x[:2000], skewed[:2000], x[2000:], skewed[2000:], 2) == skewed[2000:].double().mean()
    turned = 10 * x @ torch.randn(32, 32, generator=generator)
    assert measures.probe(turned[:2000], label[:2000], turned[2000:], label[2000:], 12) == 1


# --- refusals and time ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda w: w["unembed.W_U"].__setitem__((0, 0), math.nan), "unembed.W_U holds a NaN"),
        (lambda w: w["embed.W_E"].__setitem__((0, 0), math.inf), "embed.W_E holds a NaN or an infinity"),
        (lambda w: w["embed.W_E"].mul_(1e300), "overflows"),
        (lambda w: (w["blocks.1.mlp.W_out"].mul_(1e200), w["unembed.W_U"].mul_(1e200)), "overflows"),
        (lambda w: w.pop("pos_embed.W_pos"), "lack pos_embed.W_pos"),
        (lambda w: w.update({n: t[None] for n, t in w.items()}), "shape"),
    ],
)
def test_unusable_weights_are_refused_in_one_line(spoil, words):
    w = random_weights(SMALL)
    spoil(w)
    with pytest.raises(Refusal, match=words) as caught:
        measure(w, SMALL)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_takes_little_time():
    cfg = Config()
    w = model.init(cfg)
    measure(w, cfg)
    start = time.process_time()
    measure(w, cfg)
    assert time.process_time() - start < 2
