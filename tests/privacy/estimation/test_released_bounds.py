"""Bounds of released histograms: their coverage, their ends by another way, and what they refuse."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from quiltstream.privacy import MarkovChain, MixingBounds, mqm_approx
from quiltstream.privacy.estimation import bounds_of_released
from quiltstream.privacy.mechanisms import DiscreteLaplace

from ...depth import examples
from .test_drift import FALSE_ALARM, laplace, simulate, stationary

STICKY = [[0.95, 0.05, 0], [0.05, 0.85, 0.1], [0, 0.3, 0.7]]


def log_tail(share, rho, cells, draws, scale, count):
    """The bound from its parts: eigenvalues of the tilted matrix, the law and the tails of the noise, a search."""
    reach = 40 * int(scale) + 40
    values = np.arange(-reach, reach + 1)
    law = np.array([DiscreteLaplace(scale).pmf(int(value)) for value in values])
    fresh = rho * np.eye(2) + (1 - rho) * np.array([share, 1 - share])

    def bound(t):
        top = np.linalg.eigvals(np.diag([math.exp(t), 1.0]) @ fresh).real.max()
        noise = (draws - 1) * math.log(float(law @ np.exp(t * values)))  # one term adds nothing, its law may be either
        return cells * math.log(top) + noise - t * count

    found: Any = optimize.minimize_scalar(
        bound, bounds=(0, 0.9 / float(scale)), method="bounded", options={"xatol": 1e-9}
    )
    return found.fun


@pytest.mark.parametrize("gap", [0.3, 1.0])
def test_the_end_is_where_the_bound_reaches_the_level(gap):
    counts, totals = np.array([[700, 260, 40], [650, 300, 50]]), np.array([1000, 1000])
    found = bounds_of_released(counts, Fraction(5), totals, 0.9, gap=gap, kind="multiplicative", windows=2)
    assert (found.gap, found.kind) == (gap, "multiplicative")
    assert 0 < found.pi_min < 90 / 2000
    at = log_tail(found.pi_min, math.sqrt(1 - gap), 2000, 4, Fraction(5), 90)
    assert at == pytest.approx(math.log(0.1), abs=1e-2)


def test_the_bound_covers_pi_min_and_is_not_far_below():
    """400 looks of a sticky chain with cells missing, at a level of 0.7; the seed is fixed.

    More misses than the 1e-9 quantile of a binomial law with 0.3 would refute the level; false-alarm rate 1e-9. The
    series are pooled over ten rows, which share nothing.
    """
    rng, repeats, rows, members, slots, scale = np.random.default_rng(23), 400, 10, 4, 100, Fraction(3)
    chain = MarkovChain(STICKY)
    exact = simulate(rng, STICKY, repeats * rows * members, slots)
    exact = np.array([rng.multivariate_hypergeometric(row, 90) for row in exact])
    exact = exact.reshape(repeats, rows, members, 3).sum(axis=2)
    noisy = exact + laplace(rng, scale, exact.shape)
    totals = np.full(rows, members * 90)
    ends = [bounds_of_released(one, scale, totals, 0.7, gap=chain.gap, kind="multiplicative").pi_min for one in noisy]
    truth = stationary(STICKY).min()
    assert sum(end > truth for end in ends) <= stats.binom.isf(FALSE_ALARM, repeats, 0.3)
    assert np.mean(ends) > truth / 3


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(300, 900), min_size=3, max_size=3), min_size=1, max_size=5),
    order=st.permutations(range(5)),
    names=st.permutations(range(3)),
    more=st.floats(0.01, 0.3),
)
def test_order_and_names_do_not_matter_and_a_better_gap_or_a_lower_level_helps(rows, order, names, more):
    counts = np.array(rows, dtype=np.int64)
    totals = counts.sum(axis=1)
    given: dict[str, Any] = {"gap": 0.5, "kind": "multiplicative"}
    found = bounds_of_released(counts, Fraction(6), totals, 0.9, **given)
    order = [row for row in order if row < len(rows)]
    mixed = bounds_of_released(counts[np.ix_(order, names)], Fraction(6), totals[order], 0.9, **given)
    assert mixed == found
    assert found.pi_min <= counts.sum(axis=0).min() / totals.sum()
    for better in (
        bounds_of_released(counts, Fraction(6), totals, 0.9, gap=0.5 + more, kind="multiplicative"),
        bounds_of_released(counts, Fraction(6), totals, 0.9 - more, **given),
    ):
        assert better.pi_min >= found.pi_min


def test_a_long_record_gives_bounds_that_calibrate():
    pi = stationary(STICKY)
    weeks = np.tile(np.round(10_080 * pi).astype(np.int64), (52, 1))
    found = bounds_of_released(weeks, Fraction(170), weeks.sum(axis=1), gap=0.03)
    assert 0.6 * pi.min() < found.pi_min < pi.min()
    assert found.kind == "unknown"
    assert mqm_approx(found, 1.0).sigma < 2 * mqm_approx(MixingBounds(float(pi.min()), 0.03), 1.0).sigma


def test_a_state_that_does_not_show_through_the_noise_is_named():
    with pytest.raises(ValueError, match=r"at level 0\.95 the rows do not show .*: state 2\.") as refusal:
        bounds_of_released(np.array([[900, 700, 3]]), Fraction(40), np.array([1600]), gap=0.5)
    assert "900" not in str(refusal.value)
