"""The induction head's measures: against the hooked model, by laws, and on weights built by hand."""

import itertools

import pytest
import torch
from built_by_hand import built, factored
from scipy.stats import spearmanr
from test_measures import CASES, SMALL, random_weights

from mc_lib import induction, induction_writes, measures, model, task
from mc_lib.config import Config
from mc_lib.evaluation import evaluation_sets
from mc_lib.hooked import hooked
from mc_lib.induction import HABITS, OPERANDS, PREVIOUS, RESTRICTED, TRAINED, VALUES

FAR = SMALL.replace(length=12, d_model=40, d_mlp=15)  # room for a choice of places
EVERY = [pytest.param(cfg, id=name) for name, cfg in CASES.items()]


def table_of(matrix, cfg, layer=0):
    """`built`, whose rows are one-hot, with its query-key matrix replaced: the scores are the matrix itself."""
    w = built(cfg)
    names = [f"blocks.{layer}.attn.W_{part}" for part in "QK"]
    return w | dict(zip(names, factored(matrix, cfg), strict=True))


def some(cfg, name="2-var train"):
    return evaluation_sets(cfg)[name]


# --- the example ---------------------------------------------------------------------------------------


def test_example_is_the_papers():
    cfg = Config()
    assert torch.equal(induction.example(cfg), task.parse("PAD PAD PAD b 7 PAD e 5 PAD d 2 PAD + b 9 =", cfg))
    assert torch.equal(induction.example(cfg, 7, 23), task.parse("PAD PAD PAD b 7 PAD e 5 PAD d 2 PAD + 7 23 =", cfg))


@pytest.mark.parametrize(("p", "variables", "length"), [*itertools.product((2, 11), (4, 26), (8, 9, 12, 13, 20))])
@pytest.mark.parametrize("asked", [("b", 9), (7, 23), (9, "b"), ("b", "e")])
def test_example_fits_every_task(p, variables, length, asked):
    cfg = Config(p=p, variables=variables, length=length, not_first="", not_second="")
    text = task.format(induction.example(cfg, *asked), cfg)
    assert torch.equal(
        task.answers(task.parse(text, cfg)[None], cfg), task.answers(induction.example(cfg, *asked)[None], cfg)
    )


# --- habits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", EVERY)
def test_habits_are_those_of_the_hooked_model(cfg):
    """Hits and mass, item by item, read from the hooked model's attention by loops."""
    w = random_weights(cfg)
    seen = induction.seen(cfg).sequences
    found = induction.habits(w, cfg, seen)
    _, cache = hooked(w).run_with_cache(seen.tokens)
    places = task.operands(seen.tokens, cfg).positions.tolist()
    for name, layer in zip(HABITS, (0, 0, 1), strict=True):
        habit = found[name]
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, habit.head]
        for hit, mass, n, at in zip(*(field.tolist() for field in habit[1:]), strict=True):
            right = {OPERANDS: [cfg.length - 3, cfg.length - 2], PREVIOUS: [at - 1], VALUES: places[n]}[name]
            weight = pattern[n, at].tolist()
            others = [weight[k] for k in range(cfg.length) if k not in right]
            assert hit == (min(weight[k] for k in right) > max(others))
            assert mass == pytest.approx(sum(weight[k] for k in set(right)))
    means = measures.attention(model.trace(w, seen.tokens).pattern1, model.trace(w, seen.tokens).pattern2, seen, cfg)
    for name, column in zip(HABITS, measures.ATTENTION, strict=True):
        assert found[name].hit.double().mean() == means[column]


def test_built_head_has_every_habit_and_a_broken_one_lacks_its_own():
    whole = induction.habits_seen(built(FAR), FAR)
    assert all(habit.hit.all() for habit in whole.values())
    assert all(habit.mass.min() > 0.999 for habit in whole.values())
    assert not induction.habits_seen(built(FAR, watched=(-3, -4)), FAR)[OPERANDS].hit.any()
    assert not induction.habits_seen(built(FAR, back=2), FAR)[PREVIOUS].hit.any()
    missed = induction.within(induction.habits_seen(built(FAR, shift=1), FAR)[VALUES], FAR, ("2-var train",))
    assert missed.hit.double().mean() < 0.2


def test_sets_and_groups_count_what_they_should():
    habit = induction.habits_seen(built(FAR), FAR)[PREVIOUS]
    table = induction.by_set(habit, FAR)
    sets = evaluation_sets(FAR)
    assert list(table["group"]) == [name for name in sets if len(sets[name])]
    assert list(table["n"]) == [int((tokens[:, : FAR.room] < FAR.p).sum()) for tokens in sets.values() if len(tokens)]
    assert table["n"].sum() == len(habit.hit)
    kept = induction.within(habit, FAR, TRAINED)
    assert len(kept.hit) == table[table["group"].isin(TRAINED)]["n"].sum()
    half = habit._replace(hit=torch.arange(len(habit.hit)) % 2 == 0, mass=torch.arange(len(habit.hit)) / len(habit.hit))
    row = induction.by_group(half, torch.zeros_like(half.place), ["all", "none"])
    assert len(row) == 1
    assert row["share"][0] == pytest.approx(0.5, abs=0.01)
    assert row["low"][0] < row["share"][0] < row["high"][0]
    assert [row[q][0] for q in ("q05", "q25", "q50", "q75", "q95")] == pytest.approx(
        [0.05, 0.25, 0.5, 0.75, 0.95], abs=0.01
    )
    assert row["mass ±"][0] == pytest.approx(1.96 / 12**0.5 / len(half.hit) ** 0.5, rel=0.02)
    assert set(RESTRICTED) <= set(sets)


@pytest.mark.parametrize("cfg", EVERY)
def test_second_operand_is_read_from_its_own_row(cfg):
    w = random_weights(cfg)
    table = induction.second_operand(w, cfg)
    tokens = some(cfg, "0-var train")
    _, cache = hooked(w).run_with_cache(tokens)
    head = induction.habits_seen(w, cfg)[PREVIOUS].head
    mean = cache["blocks.0.attn.hook_pattern"][:, head, cfg.length - 2, cfg.length - 3].mean().item()
    assert table["mass"][0] == pytest.approx(mean)
    assert list(table["n"][[0, 3]]) == [len(tokens), len(some(cfg))]


# --- scores --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", EVERY)
def test_terms_add_up_to_the_models_scores(cfg):
    """Both layers: the terms' sum is what the hooked model's attention is the softmax of."""
    w, tokens = random_weights(cfg), some(cfg)
    _, cache = hooked(w).run_with_cache(tokens)
    for head in range(cfg.heads):
        place = torch.arange(len(tokens)) % cfg.length
        terms = induction_writes.terms1(w, head, tokens, place, cfg).sum(1)
        score = cache["blocks.0.attn.hook_attn_scores"][torch.arange(len(tokens)), head, place]
        seen = score > -torch.inf
        assert torch.allclose(terms[seen], score[seen])
        terms = induction_writes.terms2(w, head, tokens, cfg).sum(1)
        assert torch.allclose(terms, cache["blocks.1.attn.hook_attn_scores"][:, head, -1])


def test_scores_are_the_table_and_groups_its_means():
    table = torch.zeros(FAR.d_model, FAR.d_model, dtype=torch.float64)
    rows = FAR.vocabulary + FAR.length
    table[:rows, :rows] = torch.arange(rows * rows).view(rows, rows) % 37
    scale = FAR.d_head**0.5
    w = table_of(table, FAR)
    assert torch.allclose(induction.scores1(w, 0) * scale, table[:rows, :rows])
    found, v = induction.group_scores(w, 0, FAR) * scale, FAR.FIRST_VARIABLE
    assert found.loc["numbers", "variables"] == pytest.approx(table[: FAR.p, v : FAR.vocabulary].mean().item())
    last = FAR.vocabulary + FAR.length - 1
    assert found.loc["=", f"place {FAR.length - 1}"] == pytest.approx(table[FAR.EQUALS, last].item())
    assert found.loc[induction.assigned(FAR), "PAD"] == pytest.approx(
        table[FAR.vocabulary : FAR.vocabulary + FAR.room, FAR.PAD].mean().item()
    )


@pytest.mark.parametrize("cfg", EVERY)
def test_previous_counts_rows_by_loops(cfg):
    w = random_weights(cfg)
    found = induction.previous_hits(w, cfg)
    score = w["pos_embed.W_pos"] @ model.QK(w, 1)[found.head] @ w["pos_embed.W_pos"].T
    for query in range(1, cfg.room):
        keys = [key for key in range(query) if key != query - 2]
        best = max(keys, key=lambda key: score[query, key])
        assert found.hit[query - 1] == (best == query - 1)
        assert found.choice[query - 1] == (len(keys) > 1)
    assert int(found.hit.double().sum()) == pytest.approx(measures.qk1_num_to_prev_var(w, cfg).item() * (cfg.room - 1))


def test_the_papers_room_leaves_nine_choices():
    found = induction.previous_hits(model.init(Config()), Config())
    assert (int(found.choice.sum()), len(found.choice)) == (9, 11)


@pytest.mark.parametrize(("slope", "peak", "rank"), [(1.0, "query", 1.0), (-1.0, "first", -1.0)])
def test_a_ramp_peaks_at_its_end(slope, peak, rank):
    """Places whose score only rises (or falls) to the right prefer the query itself (or the first place)."""
    table = torch.zeros(FAR.d_model, FAR.d_model, dtype=torch.float64)
    places = slice(FAR.vocabulary, FAR.vocabulary + FAR.length)
    table[places, places] = slope * torch.arange(FAR.length)
    w, query = table_of(table, FAR), torch.arange(1, FAR.room)
    assert torch.equal(induction.peaks(w, 0, FAR), torch.zeros_like(query) if peak == "query" else query)
    assert torch.allclose(induction.rightward(w, 0, FAR), torch.full((FAR.room - 2,), rank).double())
    assert torch.equal(induction.peaks(built(FAR), 0, FAR), torch.ones_like(query))


def test_ranks_are_spearmans_with_ties_shared(monkeypatch):
    rows = FAR.vocabulary + FAR.length
    table = torch.randint(4, (rows, rows), generator=torch.Generator().manual_seed(0)).double()
    monkeypatch.setattr(induction, "scores1", lambda weights, head: table)
    for query, value in enumerate(induction.rightward(built(FAR), 0, FAR).tolist(), start=2):
        row = table[FAR.vocabulary + query, FAR.vocabulary :][: query + 1]
        expected = spearmanr(row, range(len(row))).statistic if len(row.unique()) > 1 else 0.0
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("cfg", EVERY)
def test_match_is_the_best_heads(cfg):
    w = random_weights(cfg)
    found, (two, to_equal, to_number) = induction.match(w, cfg), induction.match(w, cfg).heads
    moved = [induction_writes.remapped(w, head, cfg) for head in (to_equal, to_number)]
    for v, u in itertools.product(range(cfg.variables), repeat=2):
        assert found.score[v, u] == pytest.approx((moved[0][v] @ model.QK(w, 2)[two] @ moved[1][u]).item())
    for v in range(cfg.variables):
        others = [found.score[v, u].item() for u in range(cfg.variables) if u != v]
        assert found.margin[v] == pytest.approx(found.score[v, v].item() - max(others))
    row = measures.variable_match(w, cfg)
    assert (found.margin > 0).double().mean() == row["qk2_ov1_var_identity"]
    assert found.margin.mean().item() == pytest.approx(row["qk2_margin_mean"].item())


def test_match_of_built_weights():
    assert (induction.match(built(FAR), FAR).margin > 0).all()
    assert (induction.match(built(FAR, shift=1), FAR).margin < 0).all()


# --- what is moved -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", EVERY)
def test_writes_are_the_hooked_models(cfg):
    w, tokens = random_weights(cfg), some(cfg)
    _, cache = hooked(w).run_with_cache(tokens)
    sequence = torch.arange(len(tokens))
    place = sequence % cfg.length
    for head in range(cfg.heads):
        found = induction_writes.writes(w, tokens, head, sequence, place)
        assert torch.allclose(found, cache["blocks.0.attn.hook_result"][sequence, place, head])


def test_built_writes_hold_their_variables_and_nothing_else():
    found = [
        induction_writes.moved_to_numbers(built(FAR), FAR),
        *induction_writes.moved_to_equal(built(FAR), FAR).values(),
    ]
    for moved, parts in zip(found, (1, 1, 2), strict=True):
        assert moved.hit.all()
        assert (moved.asked.sum(1) == parts).all()
        assert torch.allclose(moved.explained, torch.ones_like(moved.explained))
        assert torch.allclose(moved.control, torch.zeros_like(moved.control), atol=1e-6)
        assert torch.allclose(moved.cosine[moved.asked], torch.full_like(moved.cosine[moved.asked], parts**-0.5))
    half = induction_writes.moved_to_equal(built(FAR, watched=(-3, -4)), FAR)["2-var"]
    assert torch.allclose(half.cosine.sum(1), torch.ones(len(half.hit)).double())  # the first variable alone


@pytest.mark.parametrize("cfg", EVERY)
def test_shares_are_least_squares(cfg):
    """The share of a write in a span is what a least-squares fit by its vectors leaves unexplained, less from 1."""
    w, head = random_weights(cfg), induction.habits_seen(random_weights(cfg), cfg)[OPERANDS].head
    for name, moved in induction_writes.moved_to_equal(w, cfg).items():
        tokens = some(cfg, f"{name} train")
        n = torch.arange(len(tokens))
        write = induction_writes.writes(w, tokens, head, n, torch.full_like(n, cfg.length - 1))
        images = w["embed.W_E"] @ model.OV(w, 1)[head]
        for row in range(len(tokens)):
            asked = tokens[row, -3:-1]
            variables = asked[asked >= cfg.FIRST_VARIABLE]
            for share, of in ((moved.explained[row], variables), (moved.whole[row], asked)):
                fit = torch.linalg.lstsq(images[of].T, write[row]).solution @ images[of]
                assert share == pytest.approx(
                    1 - ((write[row] - fit).square().sum() / write[row].square().sum()).item()
                )


def test_a_hit_needs_every_asked_variable_above_all_others():
    cosine = torch.tensor([[0.9, 0.2, 0.8], [0.9, 0.8, 0.2], [0.5, 0.5, 0.5]])
    asked = torch.tensor([[True, False, True], [True, False, True], [True, False, False]])
    moved = induction_writes.Moved(torch.zeros(3).long(), cosine, asked, *cosine[:1].expand(3, -1))
    assert moved.hit.tolist() == [True, False, False]


def test_lifts_name_the_terms_that_do_the_work():
    names = (OPERANDS, PREVIOUS, induction_writes.NUMBERS, induction_writes.VARIABLES)
    found = induction_writes.lifts(built(FAR), FAR)
    assert tuple(found) == names
    for name in (OPERANDS, PREVIOUS):
        assert (found[name][:, :3].abs() < 1e-9).all()
        assert (found[name][:, 3] > 1).all()
    write_to_write = found[induction_writes.VARIABLES][:, -1]
    assert (write_to_write > 1).all()
    shifted = induction_writes.lifts(built(FAR, shift=1), FAR)[induction_writes.VARIABLES][:, -1]
    assert shifted.mean() < write_to_write.mean() / 4
    place = induction_writes.TERMS2.index("= itself → place")
    assert (found[induction_writes.NUMBERS][:, place] > 1).all()
    asked = sum(int((task.operands(some(FAR, name), FAR).positions < FAR.room).sum()) for name in TRAINED)
    assert len(found[induction_writes.VARIABLES]) == asked


def test_lift_is_right_keys_less_all_others_in_sight():
    generator = torch.Generator().manual_seed(0)
    terms = torch.rand(6, 3, 7, generator=generator)
    right = torch.arange(7) == torch.arange(6)[:, None]
    right[3, 5] = True
    sight = (torch.rand(6, 7, generator=generator) < 0.6) | right
    sight[:, 6] = True
    found = induction_writes._lift(terms, right, sight)
    for i, j in itertools.product(range(6), range(3)):
        chosen = [terms[i, j, k].item() for k in range(7) if right[i, k]]
        others = [terms[i, j, k].item() for k in range(7) if sight[i, k] and not right[i, k]]
        assert found[i, j].item() == pytest.approx(sum(chosen) / len(chosen) - sum(others) / len(others), abs=1e-6)
