"""Waves against least squares and against a circuit built of waves; and the chapter's figures against their numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mc_lib import addition, figures_addition, fourier, model
from mc_lib.config import Config
from mc_lib.hooked import hooked
from tests.clock import clock, wave

F64 = torch.float64
SMALL = Config(p=7, variables=5, length=12, d_model=12, heads=2, d_mlp=9, not_second="a", not_first="e")
few = settings(max_examples=25, deadline=None)
primes_and_not = st.integers(3, 24)


def doubled(cfg):
    return {name: w.double() for name, w in model.init(cfg).items()}


# --- waves ---------------------------------------------------------------------------------------------


@few
@given(p=primes_and_not, data=st.data())
def test_a_pure_wave_has_one_frequency_and_powers_add_up_to_the_variance(p, data):
    k = data.draw(st.integers(1, p // 2))
    phase = data.draw(st.floats(0, 1))
    share = fourier.shares(wave(p, k, phase)[:, None] + 5)
    assert share.argmax() + 1 == k
    assert share.max() == pytest.approx(1)
    assert fourier.carriers(share) == [k]
    x = torch.randn(p, 3, dtype=F64, generator=torch.Generator().manual_seed(p))
    torch.testing.assert_close(fourier.power(x).sum(0), x.var(0, correction=0))


def test_carriers_are_the_fewest_and_strongest_first():
    share = torch.tensor([0.1, 0.5, 0.05, 0.35])
    assert fourier.carriers(share, 0.5) == [2]
    assert fourier.carriers(share, 0.84) == [2, 4]
    assert fourier.carriers(share, 0.9) == [2, 4, 1]


@few
@given(p=primes_and_not, data=st.data())
def test_cos_plus_cos_is_explained_fully_by_its_own_frequency(p, data):
    k = data.draw(st.integers(1, (p - 1) // 2))
    a, b, phi, psi = (data.draw(st.floats(0.1, 3)) for _ in range(4))
    map_ = a * wave(p, k, phi)[:, None] + b * wave(p, k, psi)[None] - 0.7
    product = wave(p, k, phi)[:, None] * wave(p, k, psi)[None]
    found = fourier.waves_of(torch.stack([map_, product], 2))
    assert found.frequency[0] == k
    assert found.best[0] == pytest.approx(1)
    assert found.r2[:, 0].sum() == pytest.approx(1)
    assert found.additive.tolist() == pytest.approx([1, 0], abs=1e-9)
    torch.testing.assert_close(fourier.fitted(map_, k), map_)


@pytest.mark.parametrize("p", [6, 7])
def test_r2_is_that_of_least_squares(p):
    map_ = torch.randn(p, p, dtype=F64, generator=torch.Generator().manual_seed(p))
    found, y = fourier.waves_of(map_[..., None]), map_.flatten().numpy()
    n, m = np.divmod(np.arange(p * p), p)
    for k in range(1, p // 2 + 1):
        columns = [f(2 * np.pi * k * x / p) for x in (n, m) for f in (np.cos, np.sin)] + [np.ones(p * p)]
        design = np.stack(columns, 1)
        guess = design @ np.linalg.lstsq(design, y, rcond=None)[0]
        assert found.r2[k - 1, 0].item() == pytest.approx(1 - (y - guess).var() / y.var())
        np.testing.assert_allclose(fourier.fitted(map_, k).flatten(), guess, atol=1e-9)


def test_live_neurons_are_on_for_some_pairs_and_off_for_others():
    maps = torch.stack([torch.full((4, 4), 1.0), torch.full((4, 4), -1.0), torch.eye(4) - 0.5], 2)
    found = fourier.waves_of(maps)
    assert found.live.tolist() == [2]
    assert found.active.tolist() == [1, 0, 0.25]


def test_maps_strength_and_quantiles():
    weights = doubled(SMALL)
    maps = fourier.neuron_maps(weights, SMALL)
    _, cache = hooked(weights).run_with_cache(addition.in_contexts(SMALL, 0))
    torch.testing.assert_close(maps.flatten(0, 1), cache["blocks.1.mlp.hook_pre"][:, -1])
    each = []
    for j in range(SMALL.d_mlp):
        effect = weights["blocks.1.mlp.W_out"][j] @ weights["unembed.W_U"]
        each.append((maps[..., j].relu().flatten()[:, None] * (effect - effect.mean())).var(0, correction=0).sum())
    torch.testing.assert_close(fourier.strength(weights, SMALL), torch.stack(each) / sum(each))
    found = fourier.waves(weights, SMALL)
    chosen = fourier.quantile_neurons(found, 4)
    fits = found.best[chosen].tolist()
    assert fits == sorted(fits)
    assert (fits[0], fits[-1]) == (found.best[found.live].min(), found.best[found.live].max())
    assert len(fourier.quantile_neurons(found, 99)) == len(found.live)


def test_phases_of_a_clock_agree_and_shifted_ones_do_not(monkeypatch):
    weights, cfg = clock()

    def bare(weights, cfg):
        each = addition.images(weights, cfg) @ weights["blocks.1.mlp.W_in"]
        return each[:, None] + each[None]

    monkeypatch.setattr(fourier, "neuron_maps", bare)
    assert fourier.waves(weights, cfg).best.min() > 1 - 1e-9
    found = fourier.phases(weights, cfg)
    assert found.agreement == pytest.approx(1)
    apart = (found.read - found.written + torch.pi) % (2 * torch.pi) - torch.pi
    assert apart.abs().max() < 1e-6
    weights["blocks.1.mlp.W_out"] = weights["blocks.1.mlp.W_out"].roll(1, 0)
    off = fourier.phases(weights, cfg)
    assert ((off.read - off.written + torch.pi) % (2 * torch.pi) - torch.pi).abs().median() > 1


def test_spectra_name_the_stations_and_see_a_clocks_frequencies():
    weights, cfg = clock()
    for share in fourier.spectra(weights, cfg).values():
        assert sorted(fourier.carriers(share, 0.999)) == [1, 3, 4]
        assert share.sum() == pytest.approx(1)


# --- figures -------------------------------------------------------------------------------------------


def test_slider_shows_one_neuron_at_a_time_from_worst_to_best():
    cfg = SMALL.replace(d_mlp=60)
    weights = doubled(cfg)
    maps, found = fourier.neuron_maps(weights, cfg), fourier.waves(weights, cfg)
    fig = figures_addition.neuron_slider(maps, found, 4)
    steps = fig.layout.sliders[0].steps
    assert [trace.visible for trace in fig.data] == [False] * 6 + [True] * 2
    assert all(sum(step.args[1]) == 2 for step in steps)
    last = int(fourier.quantile_neurons(found, 4)[-1])
    assert steps[-1].label.startswith(f"neuron {last}: k = {int(found.frequency[last])},")
    shown = np.asarray(fig.data[-2].z, dtype=float)
    assert np.corrcoef(shown.flatten(), maps[..., last].flatten())[0, 1] > 0.999
    assert np.abs(shown).max() <= 100


def test_bars_and_ranges_show_their_numbers():
    fig = figures_addition.shares([("one", 3, 10, "#000000"), ("two", 10, 10, "#000000")], "share")
    assert [bar.x[0] for bar in fig.data] == [0.3, 1.0]
    assert fig.data[0].error_x.arrayminus[0] == pytest.approx(0.3 - 0.1078, abs=1e-3)
    values = torch.linspace(0, 1, 101)
    line, bar, dot = figures_addition.ranges([("one", values, "#000000")], "x").data
    assert (*line.x, *bar.x, *dot.x) == pytest.approx((0, 1, 0.05, 0.95, 0.5), abs=1e-6)
    filled = figures_addition.spectra({"E": torch.tensor([0.05, 0.95])}).data[0].marker.color
    assert filled[0] != filled[1]


def test_maps_mark_errors_and_the_scatter_is_in_turns():
    weights, cfg = clock()
    margin = addition.isolated_margins(weights, cfg)
    heat, crosses = figures_addition.margin_map(margin, [(3, 4, 0)]).data
    assert (heat.zmin, heat.zmax) == (-heat.zmax, pytest.approx(margin.abs().max().item()))
    assert (crosses.y, crosses.x) == ((3,), (4,))
    found = fourier.waves(weights, cfg)
    points = figures_addition.phase_scatter(fourier.phases(weights, cfg), found).data[1]
    assert 0 <= min(points.x) <= max(points.x) <= 1
    assert len(points.x) == len(points.text) == len(found.live)
    one, other = figures_addition.fits(torch.tensor([0.25, 0.5]), torch.tensor([1.0, 0.75])).data
    assert (*one.x, *other.x) == (0.25, 0.5, 1, 0.75)
    rows = figures_addition.weight_rows(torch.eye(2), ["head 1", "head 2"], ["b", "="])
    assert (rows.data[0].y, rows.layout.xaxis.ticktext) == (("head 1", "head 2"), ("b", "="))
