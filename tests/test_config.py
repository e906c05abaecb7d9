"""Config: the paper's numbers, and a one-line refusal of anything out of range.

config.py is imported once more here, without the tests' type checks: they would meet a wrong type before Config does.
"""

import dataclasses
import importlib.util
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mc_lib.config

SPEC = importlib.util.spec_from_file_location("config_without_type_checks", mc_lib.config.__file__)
plain = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = plain
SPEC.loader.exec_module(plain)
KINDS, RANGES, Config, Refusal = plain.KINDS, plain.RANGES, plain.Config, plain.Refusal

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}
WHOLE = sorted(name for name in RANGES if isinstance(DEFAULTS[name], int))


def refusal(**changes):
    with pytest.raises(Refusal) as caught:
        Config(**changes)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def outcome(act):
    """What it gives, or the text of its refusal."""
    try:
        return act()
    except Refusal as error:
        return str(error)


def test_the_papers_setting():
    cfg = Config()
    assert (cfg.p, cfg.variables, cfg.length, cfg.letters) == (59, 12, 16, "abcdefghijkl")
    assert (cfg.PLUS, cfg.EQUALS, cfg.PAD, cfg.FIRST_VARIABLE, cfg.vocabulary) == (59, 60, 61, 62, 74)
    assert (cfg.room, cfg.max_assignments, cfg.kept_pairs, cfg.d_head) == (12, 6, 2436, 128)
    assert (cfg.d_model, cfg.heads, cfg.d_mlp, cfg.batch, cfg.steps) == (128, 1, 512, 512, 40_000)
    assert (cfg.lr, cfg.weight_decay, cfg.init_scale) == (1e-3, 0.02, 0.8)
    assert (cfg.not_second, cfg.not_first, cfg.held_out, cfg.split_seed) == ("ab", "kl", 0.3, 42)
    assert (cfg.eval_every, cfg.eval_size) == (100, 2000)
    assert len(KINDS) == 4


def test_it_is_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().p = 7
    assert hash(Config()) == hash(Config())
    assert Config(p=7) != Config()


def test_every_number_has_a_range_and_every_setting_a_docstring():
    numbers = {name for name, default in DEFAULTS.items() if isinstance(default, (int, float))}
    assert numbers == set(RANGES)
    assert all(low <= DEFAULTS[name] <= high for name, (low, high) in RANGES.items())


@pytest.mark.parametrize("name", sorted(RANGES))
def test_a_number_out_of_range_is_refused_by_name(name):
    low, high = RANGES[name]
    step = 1 if name in WHOLE else 1e-9
    for value in (low - step, high + max(step, high * 1e-9), -math.inf, math.inf, math.nan):
        text = refusal(**{name: value})
        assert text.startswith(name)
        assert str(low) in text
        assert str(high) in text


@pytest.mark.parametrize("name", sorted(RANGES))
@pytest.mark.parametrize("value", ["7", None, True, [1], 1j])
def test_what_is_no_number_is_refused_by_name(name, value):
    assert name in refusal(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_stay_whole(name):
    low, high = RANGES[name]
    assert name in refusal(**{name: low + 0.5})
    kept = outcome(lambda: getattr(Config(**{name: float(DEFAULTS[name])}), name))
    assert type(kept) is int or name in kept


@pytest.mark.parametrize("name", sorted(RANGES))
def test_the_ends_of_a_range_are_allowed(name):
    fitting = {"variables": {"not_first": "", "not_second": ""}, "heads": {"d_model": 64}, "p": {}, "held_out": {}}
    for end in RANGES[name]:
        assert getattr(Config(**{name: end}, **fitting.get(name, {})), name) == end


def test_settings_that_do_not_fit_together():
    assert "divide" in refusal(heads=3)
    assert "pair" in refusal(p=2, held_out=0.9)
    assert "float32" in refusal(precision="float16")
    assert "'k'" in refusal(variables=8)
    for name in ("not_second", "not_first"):
        assert name in refusal(**{name: "z"})
        assert name in refusal(**{name: "aa"})
        assert name in refusal(**{name: ["a"]})
        assert name in refusal(**{name: None})
        assert name in refusal(**{name: "abcdefghijk"})
        assert getattr(Config(**{name: "abcdefghij"}), name) == "abcdefghij"
        assert getattr(Config(**{name: ""}), name) == ""


@given(st.integers(2, 1000), st.integers(0, 999))
@settings(deadline=None)
def test_kept_pairs_is_the_floor_of_the_exact_product(p, thousandths):
    exact = (1000 - thousandths) * p * p // 1000
    if exact:
        assert Config(p=p, held_out=thousandths / 1000).kept_pairs == exact
    else:
        refusal(p=p, held_out=thousandths / 1000)


@given(st.integers(2, 1000), st.integers(4, 26), st.integers(8, 128), st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None)
def test_derived_numbers(p, variables, length, heads):
    cfg = Config(p=p, variables=variables, length=length, heads=heads, not_first="a", not_second="d")
    ids = [*range(p), cfg.PLUS, cfg.EQUALS, cfg.PAD, *range(cfg.FIRST_VARIABLE, cfg.vocabulary)]
    assert ids == list(range(cfg.vocabulary))
    assert len(cfg.letters) == variables == cfg.vocabulary - cfg.FIRST_VARIABLE
    assert cfg.d_head * heads == cfg.d_model
    assert 2 <= cfg.max_assignments <= variables
    assert 2 * cfg.max_assignments <= cfg.room == length - 4


def test_dict_and_back():
    cfg = Config(p=23, seed=3, not_first="c", precision="bfloat16")
    assert Config.from_dict(cfg.to_dict()) == cfg
    assert set(cfg.to_dict()) == set(DEFAULTS)
    assert cfg.replace(seed=4) == Config(p=23, seed=4, not_first="c", precision="bfloat16")
    assert Config.from_dict({}) == Config()


@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), st.integers(-5, 200) | st.floats() | st.text() | st.none()))
@settings(deadline=None)
def test_any_dict_is_a_config_or_a_refusal(values):
    result = outcome(lambda: Config.from_dict(values))
    assert isinstance(result, Config) or len(result.splitlines()) == 1


def test_an_unknown_setting_is_named_beside_the_known():
    with pytest.raises(Refusal, match="learning_rate.*weight_decay"):
        Config.from_dict({"learning_rate": 1})
    with pytest.raises(Refusal):
        Config.from_dict({1: 2, "a": 3})
    with pytest.raises(Refusal):
        Config().replace(seed=-1)
