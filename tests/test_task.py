"""Tokens and text, what a sequence asks, and what training leaves out."""

import itertools
import random
from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mc_lib import task
from mc_lib.config import Config, Refusal

PAPER = Config()


@st.composite
def configs(draw):
    variables = draw(st.integers(4, 26))
    letters = st.sets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"[:variables]), max_size=variables - 2)
    return Config(
        p=draw(st.integers(2, 70)),
        variables=variables,
        length=draw(st.integers(8, 40)),
        held_out=draw(st.floats(0, 0.7)),
        split_seed=draw(st.integers(0, 2**31 - 1)),
        not_first="".join(sorted(draw(letters))),
        not_second="".join(sorted(draw(letters))),
    )


@st.composite
def sequences(draw, cfgs=configs()):  # noqa: B008
    """A config and a legal sequence of it, made here by hand: its words, with PADs anywhere between assignments."""
    cfg = draw(cfgs)
    letters = draw(st.lists(st.sampled_from(cfg.letters), max_size=cfg.max_assignments, unique=True))
    number = st.integers(0, cfg.p - 1).map(str)
    pieces = [[letter, draw(number)] for letter in letters]
    for _ in range(cfg.room - 2 * len(letters)):
        pieces.insert(draw(st.integers(0, len(pieces))), ["PAD"])
    operand = st.sampled_from(letters) | number if letters else number
    return cfg, [word for piece in pieces for word in piece] + ["+", draw(operand), draw(operand), "="]


def as_text(words):
    """The text form of a token form, by string work alone."""
    context = [word for word in words[:-4] if word != "PAD"]
    assignments = [f"{letter}={value}, " for letter, value in zip(context[::2], context[1::2], strict=True)]
    return "".join(assignments) + f"{words[-3]}+{words[-2]}=?"


# --- text to tokens and back ---------------------------------------------------------------------------


def test_the_papers_example():
    tokens = task.parse("c=1, b=17, a=42, b+19=?", PAPER)
    assert tokens.tolist() == [61] * 6 + [64, 1, 63, 17, 62, 42, 59, 63, 19, 60]
    assert tokens.dtype == torch.long
    assert task.format(tokens, PAPER) == "c=1, b=17, a=42, b+19=?"
    assert task.format(tokens, PAPER, "tokens") == "PAD PAD PAD PAD PAD PAD c 1 b 17 a 42 + b 19 ="
    spaced = task.parse("c 1 b 17 PAD + b 19 =", PAPER)
    assert spaced.tolist() == [61] * 7 + [64, 1, 63, 17, 61, 59, 63, 19, 60]


def test_every_token_has_a_name():
    names = task.token_names(PAPER)
    assert names == [*map(str, range(59)), "+", "=", ";", *"abcdefghijkl"]
    assert len(set(names)) == PAPER.vocabulary


@given(sequences())
@settings(max_examples=40, deadline=None)
def test_both_forms_come_back(case):
    cfg, words = case
    tokens = task.parse(" ".join(words), cfg)
    ids = {name: i for i, name in enumerate(task.token_names(cfg))} | {"PAD": cfg.PAD}
    assert tokens.tolist() == [ids[word] for word in words]
    assert task.format(tokens, cfg, "tokens") == " ".join(words)
    assert task.format(tokens, cfg) == as_text(words)
    from_text = task.parse(as_text(words), cfg)
    assert task.format(from_text, cfg) == as_text(words)
    used = [word for word in words if word != "PAD"]
    assert from_text.tolist() == [cfg.PAD] * (cfg.length - len(used)) + [ids[word] for word in used]


@pytest.mark.parametrize(
    "text",
    [
        "c=1,b=17,b+19=?",
        " c = 1 ,b= 17,  b + 19 = ? ",
        "c=1,b=17,b+19",
        "c=1,b=17,b+19=",
        "c 1 b 17 + b 19",
        "c=1,b=17,b+019=?",
    ],
)
def test_spaces_and_the_end_are_free(text):
    assert torch.equal(task.parse(text, PAPER), task.parse("c=1, b=17, b+19=?", PAPER))


@pytest.mark.parametrize("text", ["3+4=?", "+ 3 4 =", "PAD + 3 4 =", "; PAD + 3 4 =", "; + 3 4"])
def test_a_sequence_without_assignments(text):
    assert task.parse(text, PAPER).tolist() == [61] * 12 + [59, 3, 4, 60]


REFUSED = {
    "": "empty",
    " \n ": "empty",
    "m=1, m+2=?": "'m'",
    "a=1, z+2=?": "'z'",
    "A=1, a+2=?": "'A'",
    "alpha=1, 1+2=?": "'alpha'",
    "a=59, a+2=?": "59",
    "a=-1, a+2=?": "-1",
    "a=1, a+60=?": "60",
    "00000000000070+1=?": "70",
    "a=1, a+99999999999999999999=?": "9999",
    "a=1.5, a+2=?": "1.5",
    "a=1, b+2=?": "b",
    "3+c=?": "c",
    "a=1, a=2, a+2=?": "a is assigned twice",
    "a=1, b=2, a=1, b+2=?": "a is assigned twice",
    "a=1, b=2, c=3, d=4, e=5, f=6, g=7, a+b=?": "7 assignments",
    "a=1, b=2": "'+'",
    "a=1": "'+'",
    "a=1, a+1+2=?": "'+'",
    "+3=?": "before '+'",
    "a=1,+3=?": "before '+'",
    "3+": "after '+'",
    "a=1, a+=?": "after '+'",
    "a=1 a+2=?": "a=1 a",
    "a=1, b, a+2=?": "'b'",
    "a=1,, a+2=?": "assignment",
    "a=1, a+2=3": "2=3",
    "a=1, a+2 4=?": "2 4",
    "a==1, a+2=?": "a==1",
    "=1, 1+2=?": "=1",
    "hello": "'+'",
    "hello + world": "'hello'",
    "a 1 b + a 2 =": "b",
    "a 1 2 + a 2 =": "'2'",
    "a 1 PAD + a =": "'a ='",
    "a 1 PAD + a 2 3 =": "'a 2 3 ='",
    "b 1 PAD + b ? 19 =": "?",
    "a 1 b 2 c 3 d 4 e 5 f 6 PAD + a 2 =": "13 tokens",
    "a PAD 1 + a 2 =": "PAD",
}


@pytest.mark.parametrize("text", REFUSED)
def test_bad_input_is_refused_with_the_piece_at_fault(text):
    with pytest.raises(Refusal) as refusal:
        task.parse(text, PAPER)
    assert REFUSED[text] in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert len(str(refusal.value)) < 160


PIECES = st.sampled_from([*"abklmz+=,?;-", " ", "PAD", "0", "17", "58", "59", "007", "=?", "a=1, ", "b 3 ", "\n", "²"])


@given(
    st.lists(PIECES, max_size=24).map("".join) | st.text(max_size=40), st.sampled_from([PAPER, Config(p=7, length=9)])
)
@example("0" * 5000 + "+1=?", PAPER)
@example("9" * 5000 + "+1=?", PAPER)
@example("+", PAPER)
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_sequence_or_a_refusal(text, cfg):
    """Nothing else is raised, and what is accepted comes back from its own token form."""
    try:
        tokens = task.parse(text, cfg)
    except Refusal as error:
        lines = str(error).splitlines()
    else:
        assert tokens.shape == (cfg.length,)
        assert torch.equal(task.parse(task.format(tokens, cfg, "tokens"), cfg), tokens)
        lines = [""]
    assert len(lines) == 1


@given(sequences(), st.data())
@settings(max_examples=40, deadline=None)
def test_a_sequence_with_one_wrong_word_is_refused_by_that_word(case, data):
    cfg, words = case
    wrong = data.draw(st.sampled_from(["?!", str(cfg.p), "-3", "Q", "ab", "1x"]))
    at = data.draw(st.sampled_from([i for i in range(cfg.length - 1) if i != cfg.room]))
    with pytest.raises(Refusal) as refusal:
        task.parse(" ".join([*words[:at], wrong, *words[at + 1 :]]), cfg)
    assert wrong.rstrip("?") in str(refusal.value)


# --- what a sequence asks ------------------------------------------------------------------------------


@given(sequences())
@settings(max_examples=40, deadline=None)
def test_operands_and_answers_by_looking_up_the_words(case):
    cfg, words = case
    tokens = task.parse(" ".join(words), cfg)[None]
    asked = task.operands(tokens, cfg)
    positions = [
        words.index(word) + 1 if word.isalpha() else cfg.room + 1 + side for side, word in enumerate(words[-3:-1])
    ]
    numbers = [int(words[position]) for position in positions]
    assert asked.positions.tolist() == [positions]
    assert asked.numbers.tolist() == [numbers]
    assert asked.kind.tolist() == [words[-3].isalpha() + 2 * words[-2].isalpha()]
    assert task.answers(tokens, cfg).tolist() == [sum(numbers) % cfg.p]


# --- what training leaves out --------------------------------------------------------------------------


def test_the_papers_split_is_the_releases():
    pairs = [(a, b) for a in range(59) for b in range(59)]
    kept = random.Random(42).sample(pairs, int(0.7 * 59**2))
    assert len(kept) == 2436
    assert set(map(tuple, task.training_pairs(PAPER).tolist())) == set(kept)
    assert set(map(tuple, task.held_out_pairs(PAPER).tolist())) == set(pairs) - set(kept)
    classes = Counter(task.pair_classes(PAPER).flatten().tolist())
    assert classes == {
        task.TRAINING: 2436,
        task.MIRROR_IN_TRAINING: 723,
        task.BOTH_ORDERS_OUT: 302,
        task.DIAGONAL_OUT: 20,
    }


def test_the_papers_variable_pairs():
    assert [len(task.variable_pairs(PAPER, illegal)) for illegal in (0, 1, 2)] == [92, 36, 4]
    assert sorted(map(tuple, task.variable_pairs(PAPER, 2).tolist())) == [(10, 0), (10, 1), (11, 0), (11, 1)]


@given(configs())
@settings(max_examples=20, deadline=None)
def test_the_split_of_any_config(cfg):
    out, classes = task.held_out_mask(cfg).tolist(), task.pair_classes(cfg).tolist()
    training = {tuple(pair) for pair in task.training_pairs(cfg).tolist()}
    assert len(training) == cfg.kept_pairs == int((1 - cfg.held_out) * cfg.p**2 + 1e-9)
    assert len(training) + len(task.held_out_pairs(cfg)) == cfg.p**2
    for a, b in itertools.product(range(cfg.p), repeat=2):
        if (a, b) in training:
            expected = task.TRAINING
        elif a == b:
            expected = task.DIAGONAL_OUT
        else:
            expected = task.MIRROR_IN_TRAINING if (b, a) in training else task.BOTH_ORDERS_OUT
        assert classes[a][b] == expected
        assert out[a][b] == ((a, b) not in training)


@given(configs())
@settings(max_examples=20, deadline=None)
def test_the_legal_variables_of_any_config(cfg):
    pairs = {illegal: [tuple(pair) for pair in task.variable_pairs(cfg, illegal).tolist()] for illegal in (0, 1, 2)}
    assert sorted(sum(pairs.values(), [])) == list(itertools.permutations(range(cfg.variables), 2))
    for illegal, chosen in pairs.items():
        for first, second in chosen:
            restricted = (cfg.letters[first] in cfg.not_first, cfg.letters[second] in cfg.not_second)
            assert sum(restricted) == illegal
    for side, restricted in enumerate((cfg.not_first, cfg.not_second)):
        legal, illegal = ([cfg.letters[v] for v in task.variables_for(cfg, side, which)] for which in (True, False))
        assert set(illegal) == set(restricted)
        assert sorted(legal + illegal) == list(cfg.letters)


def test_another_split_seed_is_another_split():
    assert not torch.equal(task.held_out_mask(PAPER), task.held_out_mask(PAPER.replace(split_seed=43)))
    assert torch.equal(task.held_out_mask(PAPER), task.held_out_mask(PAPER.replace(seed=1, lr=0.5)))
