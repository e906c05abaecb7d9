"""The sampler: a batch is a function of (config, seed, step), in any chunking, legal for any config, and quick."""

import itertools
import time

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import cells, check, uniform

from mc_lib import sampler, task
from mc_lib.config import Config

PAPER = Config()


def batch(cfg, seed, step):
    return sampler.Sampler(cfg).batch(torch.tensor([seed]), torch.tensor([step]))[0, 0]


def test_the_same_step_twice_is_equal_and_others_differ():
    torch.manual_seed(0)
    once = batch(PAPER, 7, 123)
    torch.manual_seed(1)
    torch.rand(10)
    assert once.shape == (512, 16)
    assert torch.equal(once, batch(PAPER, 7, 123))
    assert torch.equal(once, batch(PAPER.replace(lr=0.1, d_model=64, seed=3), 7, 123))
    for other in (batch(PAPER, 8, 123), batch(PAPER, 7, 124), batch(PAPER, 123, 7)):
        assert (once != other).any(-1).float().mean() > 0.99


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4),
    st.lists(st.integers(0, 10**7), min_size=1, max_size=4),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
@settings(max_examples=15, deadline=None)
def test_any_chunking_is_equal(seeds, steps, sizes):
    """Seeds and steps together or one by one, a batch whole or in parts."""
    drawer = sampler.Sampler(PAPER.replace(batch=sum(sizes)))
    whole = drawer.batch(torch.tensor(seeds), torch.tensor(steps))
    assert whole.shape == (len(seeds), len(steps), sum(sizes), 16)
    for i, j in itertools.product(range(len(seeds)), range(len(steps))):
        one = (torch.tensor(seeds[i : i + 1]), torch.tensor(steps[j : j + 1]))
        parts = [drawer.batch(*one, sum(sizes[:k]), size) for k, size in enumerate(sizes)]
        assert torch.equal(torch.cat(parts, 2)[0, 0], whole[i, j])


def test_a_batch_is_the_start_of_a_larger_one():
    assert torch.equal(batch(PAPER.replace(batch=10), 1, 5), batch(PAPER.replace(batch=600), 1, 5)[:10])


def test_sample_is_seeded_and_never_meets_training():
    mix = sampler.training_mixture(PAPER)
    first = sampler.sample(PAPER, mix, 300, stream=5)
    assert torch.equal(first[:100], sampler.sample(PAPER, mix, 100, stream=5))
    others = (sampler.sample(PAPER, mix, 300, 6), sampler.sample(PAPER, mix, 300, 5, seed=1), batch(PAPER, 0, 0)[:300])
    for other in others:
        assert (first != other).any(-1).float().mean() > 0.99


# --- the hash ------------------------------------------------------------------------------------------


def test_no_two_keys_and_no_two_rows_of_draws_are_alike():
    seeds = torch.tensor([0, 1, 2, 3, 100, 2**31 - 1])
    steps = torch.tensor([0, 1, 2, 3, 99, 40_000, 10**7])
    key = torch.stack([sampler.keys(seeds, steps, stream) for stream in range(250)])
    assert len(key.unique()) == key.numel()
    u = sampler.draws(key[0], 0, 4, 28)
    assert ((u >= 0) & (u < 2**31)).all()
    again = u.unique(return_counts=True)[1] > 1
    assert again.sum() <= 3  # among 4704 draws from 2^31, 0.005 coincidences are expected


def test_the_hash_is_splitmix64():
    """Against plain Python integers: key + counter * golden through the finaliser, its upper 31 bits."""
    wide = 2**64 - 1

    def finalise(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & wide
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & wide
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    seeds, steps, stream = [0, 1, 2**31 - 1], [0, 40_000], 7
    u = sampler.draws(sampler.keys(torch.tensor(seeds), torch.tensor(steps), stream), 3, 2, 5)
    for (i, seed), (j, step) in itertools.product(enumerate(seeds), enumerate(steps)):
        of_seed = finalise(finalise((seed + 1) * golden & wide) + stream & wide)
        key = finalise(of_seed ^ finalise((step + 1) * golden & wide))
        expected = [finalise(key + counter * golden & wide) >> 33 for counter in range(15, 25)]
        assert u[i, j].flatten().tolist() == expected


def test_every_bit_of_a_draw_is_fair():
    """Each bit by itself, and against itself in the next field, sequence, step and seed."""
    u = sampler.draws(sampler.keys(torch.arange(3), torch.arange(40)), 0, 16, 28).numpy()
    for bit in range(31):
        on = ((u >> bit) & 1).astype(np.int8)
        check(cells(on.ravel()), uniform([0, 1]))
        for axis in range(4):
            pairs = np.delete(on, -1, axis), np.delete(on, 0, axis)
            check(cells(*(side.ravel() for side in pairs)), uniform(itertools.product([0, 1], repeat=2)))


@given(st.integers(0, 2**31 - 1), st.integers(1, 10**6))
@settings(deadline=None)
def test_a_draw_is_scaled_without_leaving_its_range(u, n):
    assert sampler._below(torch.tensor(u), n) == u * n // 2**31 < n


# --- any config ----------------------------------------------------------------------------------------


@st.composite
def configs(draw):
    variables = draw(st.integers(4, 26))
    letters = st.sets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"[:variables]), max_size=variables - 2)
    return Config(
        p=draw(st.integers(2, 60)),
        variables=variables,
        length=draw(st.integers(8, 60)),
        held_out=draw(st.floats(0, 0.7)),
        not_first="".join(sorted(draw(letters))),
        not_second="".join(sorted(draw(letters))),
        two_var=draw(st.sampled_from([0.0, 0.5, 1.0, 100.0])),
        batch=12,
    )


@given(configs(), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_sequences_of_any_config_are_legal(cfg, step):
    tokens = batch(cfg, 0, step)
    names = task.token_names(cfg)
    for sequence in tokens:
        assert torch.equal(task.parse(task.format(sequence, cfg, "tokens"), cfg), sequence)
        first, second = (names[token] for token in sequence[-3:-1])
        assert first not in cfg.not_first
        assert second not in cfg.not_second
        assert first != second or first.isdigit()
        assert cfg.two_var or not (first.isalpha() and second.isalpha())
    numbers = task.operands(tokens, cfg).numbers
    assert not task.held_out_mask(cfg)[numbers[:, 0], numbers[:, 1]].any()


# --- speed ---------------------------------------------------------------------------------------------


@pytest.fixture
def undisturbed():
    """One thread, and no type checks while it lasts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("undisturbed")
def test_a_batch_takes_at_most_2_ms():
    """512 sequences, one core's time: the best of many, as a busy machine slows most of them."""
    drawer, seed = sampler.Sampler(PAPER), torch.tensor([0])
    best = float("inf")
    for step in range(1000):
        start = time.process_time()
        drawer.batch(seed, torch.tensor([step]))
        best = min(best, time.process_time() - start)
        if step > 20 and best < 2e-3:
            break
    assert best < 2e-3
