"""What follows from released counts: its bands against draws of the noise itself, and against numbers by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from quiltstream.privacy.estimation.released_histograms import Bounds, HistogramNoise, ReleasedHistogram, change, united
from quiltstream.privacy.mechanisms.discrete_laplace import ZeroSumLaplace
from quiltstream.schemas.noise_laws import NO_NOISE, ZERO_SUM

FALSE_ALARM = 1e-9  # of each statistical test here; the noise is the system's entropy, so there is no seed
SCALE = Fraction(30)
TRUE = np.array([480, 300, 150, 60, 10])
DRAWS = 1_000


def drawn(true: np.ndarray = TRUE, missing: bool = False) -> list[ReleasedHistogram]:
    noise = HistogramNoise(ZERO_SUM, len(true), SCALE)
    return [
        ReleasedHistogram(true + one, (noise,), int(true.sum()), missing)
        for one in ZeroSumLaplace(SCALE, len(true)).draw(DRAWS)
    ]


def exact(*counts: int, missing: bool = False) -> ReleasedHistogram:
    noise = HistogramNoise(NO_NOISE, len(counts), Fraction(0))
    return ReleasedHistogram(np.array(counts), (noise,), sum(counts), missing)


def at_least_as_often(inside: int, level: float) -> bool:
    """Not refuted at FALSE_ALARM that a band holds the truth with at least this probability."""
    return float(stats.binom.cdf(inside, DRAWS, level)) > FALSE_ALARM


@pytest.mark.night
@pytest.mark.parametrize(("share", "missing"), [(0.1, False), (0.48, False), (0.48, True), (0.94, True)])
def test_a_quantile_band_has_its_stated_coverage(share: float, missing: bool) -> None:
    """0.48 is where exactly so many cells lie below an edge: the hardest place."""
    bins = TRUE[: len(TRUE) - missing]
    place = int(np.searchsorted(np.cumsum(bins), share * bins.sum()))
    inside = 0
    for one in drawn(missing=missing):
        low, high = one.quantile(share, 0.8)
        inside += (low is None or low < place) and (high is None or place <= high)
    assert at_least_as_often(inside, 0.8)


def test_the_duration_curve_counts_from_each_edge_and_leaves_missing_cells_out() -> None:
    found = exact(480, 300, 150, 60, 10).tails()
    assert found.counts.tolist() == [520, 220, 70, 10]
    assert found.half_widths.tolist() == [0.0] * 4
    assert exact(480, 300, 150, 70, missing=True).tails().counts.tolist() == [450, 150]
    noisy = drawn()[0].tails(0.95).half_widths
    assert noisy.tolist() == noisy[::-1].tolist()  # as many bins are left out as are counted, from either end
    assert noisy[1] > noisy[0] == ZeroSumLaplace(SCALE, 5).half_width(0.95)


LOWS, HIGHS = (0.0, 250.0, 500.0, 1000.0, 2000.0), (250.0, 500.0, 1000.0, 2000.0, 8000.0)


@pytest.mark.night
def test_bounds_on_mean_and_total_hold_for_values_at_the_ends_of_bins() -> None:
    """With every value at its bin's lower end the total is the sum of the lower ends: the bound's hardest case."""
    for ends in (LOWS, HIGHS):
        total = float(TRUE @ np.array(ends))
        found = [one.moments(LOWS, HIGHS, 0.8) for one in drawn()]
        assert at_least_as_often(sum(one.total.low <= total <= one.total.high for one in found), 0.8)
        assert at_least_as_often(sum(one.mean.low <= total / 1000 <= one.mean.high for one in found), 0.8)


def test_bounds_on_a_mean_hold_where_cells_are_missing() -> None:
    counts = np.array([480, 300, 150, 70])
    total, cells = float(counts[:3] @ np.array(LOWS[:3])), 930
    found = [one.moments(LOWS[:3], (250.0, 500.0, 8000.0), 0.8) for one in drawn(counts, missing=True)]
    assert at_least_as_often(sum(one.total.low <= total <= one.total.high for one in found), 0.8)
    assert at_least_as_often(sum(one.mean.low <= total / cells <= one.mean.high for one in found), 0.8)


def test_without_noise_the_bounds_are_those_of_the_bins() -> None:
    found = exact(480, 300, 150, 60, 10).moments(LOWS, HIGHS)
    assert found.total == Bounds(230_000.0, 620_000.0)
    assert found.mean == Bounds(230.0, 620.0)
    open_ = exact(480, 300, 150, 60, 10).moments((-math.inf, *LOWS[1:]), (*HIGHS[:-1], math.inf))
    assert open_.mean == Bounds(-math.inf, math.inf)
    half = exact(480, 300, 150, 60, 10).moments(LOWS, (*HIGHS[:-1], math.inf))
    assert half.mean == Bounds(230.0, math.inf)
    with pytest.raises(ValueError, match="not public here"):
        ReleasedHistogram(np.array([1, 2]), (), None).moments((0, 1), (1, 2))
    with pytest.raises(ValueError, match="4 and 5 are given for 5 bins"):
        exact(480, 300, 150, 60, 10).moments(LOWS[1:], HIGHS)


@pytest.mark.parametrize("factor", [1, 3])
def test_a_band_of_a_change_of_shares_has_its_stated_coverage(factor: int) -> None:
    """Between windows of equal size, and where the later one is three of them."""
    before, after = drawn(), [united([one] * 1) for one in drawn()]
    if factor > 1:
        after = [united(three) for three in zip(drawn(), drawn(), drawn(), strict=True)]
    inside = 0
    for one, other in zip(before, after, strict=True):
        found = change(one, other, 0.8)
        inside += int(abs(found.differences[0]) <= found.half_width)
    assert at_least_as_often(inside, 0.8)
    if factor == 1:
        assert float(stats.binom.sf(inside - 1, DRAWS, 0.86)) > FALSE_ALARM  # and it is no wider than it must be
