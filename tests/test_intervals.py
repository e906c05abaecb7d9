"""Both intervals against scipy's, and what they promise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from mc_lib.intervals import at_least, exact, wilson

counts = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
def test_the_exact_interval_is_clopper_and_pearsons(count):
    found = binomtest(*count).proportion_ci(method="exact")
    assert exact(*count) == pytest.approx((found.low, found.high), abs=1e-9)


@given(counts)
def test_wilsons_interval_is_wilsons(count):
    found = binomtest(*count).proportion_ci(confidence_level=math.erf(1.96 / math.sqrt(2)), method="wilson")
    assert wilson(*count) == pytest.approx((found.low, found.high), abs=1e-9)


@given(counts, st.floats(0.01, 0.99))
def test_the_tail_is_the_binomials(count, share):
    hits, n = count
    assert at_least(hits, n, share) == pytest.approx(binom.sf(hits - 1, n, share), abs=1e-12)


@pytest.mark.parametrize("n", [5, 16, 40])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9])
def test_the_exact_interval_keeps_its_promise(n, share):
    """It holds the true share in at least 95% of samples, whatever the share."""
    caught = sum(binom.pmf(k, n, share) for k in range(n + 1) if exact(k, n)[0] <= share <= exact(k, n)[1])
    assert caught >= 0.95


@pytest.mark.parametrize("interval", [exact, wilson])
@pytest.mark.parametrize(("hits", "n"), [(-1, 4), (5, 4), (0, 0)])
def test_what_is_no_share_is_refused(interval, hits, n):
    with pytest.raises(ValueError, match="is no share"):
        interval(hits, n)
