"""Cutting and misleading the induction head: what is changed, against the hooked model, and what follows."""

import pytest
import torch
from built_by_hand import built
from test_induction import FAR, some
from test_measures import CASES, random_weights

from mc_lib import induction_patching, model, task
from mc_lib.config import Config
from mc_lib.hooked import hooked
from mc_lib.induction import TRAINED
from mc_lib.induction_patching import CUTS, SWAPS, Strength


@pytest.mark.parametrize("layer", [1, 2])
def test_a_cut_of_all_is_a_head_that_moves_nothing(layer):
    cfg = CASES["four heads"]
    w, tokens = random_weights(cfg), some(cfg)
    none = torch.zeros(len(tokens), cfg.length, cfg.length, dtype=torch.bool)
    dead = w | {f"blocks.{layer - 1}.attn.W_V": torch.zeros_like(w["blocks.0.attn.W_V"])}
    said = induction_patching.answers_with(hooked(w), tokens, [induction_patching._cut(layer, none)])
    assert torch.equal(said, hooked(dead)(tokens)[:, -1].argmax(-1))
    whole = induction_patching.answers_with(hooked(w), tokens, [induction_patching._cut(layer, ~none)])
    assert torch.equal(whole, model.logits(w, tokens).argmax(-1))
    assert not torch.equal(said, whole)


def test_edges_are_where_the_sequence_says():
    cfg = Config()
    tokens = task.parse("PAD PAD PAD b 7 PAD e 5 PAD d 2 PAD + b 9 =", cfg)[None]
    found = induction_patching.edges(tokens, cfg)
    expected = ([(15, 13), (15, 14)], [(14, 13)], [(4, 3), (7, 6), (10, 9)], [(15, 4), (15, 14)])
    assert [[tuple(edge) for edge in edges[0].nonzero().tolist()] for edges in found] == [list(e) for e in expected]


def test_each_cut_keeps_what_its_name_says():
    """Each hook, applied to attention that is 1 everywhere, leaves 1 on what is kept; layer 2 matters at `=` only."""
    tokens = some(FAR)
    found = induction_patching.edges(tokens, FAR)
    layer1 = found.operands | found.second | found.previous
    kept = {
        "= to operands": ~found.operands,
        "second operand to first": ~found.second,
        "numbers to variables": ~found.previous,
        "all but these three": layer1,
        "= to values": ~found.values,
        "all but = to values": found.values,
    }
    hooks = induction_patching.cut_hooks(tokens, FAR)
    assert hooks.pop("nothing") == []
    assert set(hooks) == set(kept)
    for cut, [(name, make)] in hooks.items():
        layer, part = (2 if "values" in cut else 1), slice(3, 9)
        assert name == f"blocks.{layer - 1}.attn.hook_pattern"
        left = make(part)(torch.ones(6, 1, FAR.length, FAR.length), None)[:, 0].bool()
        rows = slice(-1, None) if layer == 2 else slice(None)
        assert torch.equal(left[:, rows], kept[cut][part][:, rows])


def test_cuts_of_built_weights():
    table = induction_patching.cuts(built(FAR), FAR).set_index(["cut", "kind"])["share"]
    for kind in ("0-var", "1-var", "2-var"):
        assert all(table[cut, kind] == 1 for cut in ("nothing", "second operand to first", "all but these three"))
        assert table["all but = to values", kind] == 1
        assert table["= to values", kind] < 0.6
    for cut in ("= to operands", "numbers to variables"):
        assert table[cut, "0-var"] == 1
        assert table[cut, "2-var"] < 0.8
    assert set(table.index.get_level_values(0)) == set(CUTS)


def test_swappable_is_what_a_reader_would_choose():
    cfg = Config()
    for name in TRAINED:
        tokens = some(cfg, name)[:300]
        found, row = induction_patching.swappable(tokens, cfg), 0
        for sequence in tokens:
            text = task.format(sequence, cfg).removesuffix("=?")
            *pieces, question = text.split(", ")
            value = {piece[0]: int(piece[2:]) for piece in pieces}
            operands = question.split("+")
            asked = next((word for word in operands if word in value), None)
            others = [v for v in value if v not in operands and asked and value[v] != value[asked]]
            if not others:
                continue
            fixed = [value.get(word, word) for word in operands]
            side = operands.index(asked)
            moved = [value[others[0]] if i == side else number for i, number in enumerate(fixed)]
            assert torch.equal(found.tokens[row], sequence)
            at = [int(found.asked[row]), int(found.other[row])]
            assert [cfg.letters[sequence[place] - cfg.FIRST_VARIABLE] for place in at] == [asked, others[0]]
            assert found.side[row] == side
            assert found.before[row] == sum(map(int, fixed)) % cfg.p
            assert found.after[row] == sum(map(int, moved)) % cfg.p
            row += 1
        assert len(found.tokens) == row


@pytest.mark.parametrize("name", ["1-var train", "2-var train"])
def test_deltas_are_what_another_token_would_have_moved(name):
    """The hooked model run with another embedding under a value: what it moves changes by the delta."""
    cfg = CASES["four heads"].replace(eval_size=60, length=14)
    w = random_weights(cfg)
    swap = induction_patching.swaps_of(cfg, name)
    found, net, n = induction_patching.deltas(w, swap, cfg), hooked(w), torch.arange(len(swap.tokens))
    _, plain = net.run_with_cache(swap.tokens)

    def change(at, token):
        def other(x, hook):
            x = x.clone()
            x[n, at] = (w["embed.W_E"][token] + w["pos_embed.W_pos"][at])[:, None]
            return x

        with net.hooks(fwd_hooks=[("blocks.0.attn.hook_v_input", other)]):
            _, cache = net.run_with_cache(swap.tokens)
        return cache["blocks.0.hook_attn_out"] - plain["blocks.0.hook_attn_out"]

    asked, other = swap.tokens[n, swap.asked], swap.tokens[n, swap.other]
    question = change(cfg.length - 3 + swap.side, other)
    assert torch.allclose(found.equal, question[:, -1])
    first = swap.side == 0
    assert torch.allclose(found.second[first], question[first, -2])
    assert not found.second[~first].any()
    assert torch.allclose(found.asked, change(swap.asked, other)[n, swap.asked + 1])
    assert torch.allclose(found.other, change(swap.other, asked)[n, swap.other + 1])
    added = induction_patching.added_by(swap, found, cfg, Strength(1, 2, 3))
    assert torch.equal(added[:, -1], found.equal)
    assert torch.equal(added[:, -2], 2 * found.second)
    assert torch.equal(added[n, swap.other + 1], 3 * found.other)
    assert (added.abs().sum(2) > 0).sum(1).max() <= 4


def test_swaps_of_built_weights():
    table = induction_patching.swaps(built(FAR), FAR)
    assert set(table["swap"]) == set(SWAPS)
    for row in table.to_dict("records"):
        assert row["n"] > 0
        if row["swap"] in ("nothing", "question and assignments"):
            assert (row["stay"], row["follow"]) == (row["n"], 0)
        elif not row["swap"].startswith("random"):
            assert (row["stay"], row["follow"]) == (0, row["n"])
    doses = induction_patching.doses(built(FAR), FAR)
    assert len(doses) == induction_patching.DOSES
    assert (doses["stay"].iloc[0], doses["follow"].iloc[0]) == (1, 0)
    assert (doses["stay"].iloc[-1], doses["follow"].iloc[-1]) == (0, 1)
    assert doses["stay"].is_monotonic_decreasing
