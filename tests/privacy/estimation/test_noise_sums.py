"""Sums of noise: variances and half-widths against laws written out by enumeration, and against draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quiltstream.privacy.estimation.released_histograms import (
    HistogramNoise,
    ReleasedHistogram,
    change,
    half_width,
    std,
)
from quiltstream.privacy.mechanisms.discrete_laplace import DiscreteLaplace, ZeroSumLaplace
from quiltstream.schemas.noise_laws import INDEPENDENT, NO_NOISE, ZERO_SUM

FALSE_ALARM = 1e-9  # of each statistical test here; the noise is the system's entropy, so there is no seed


def vectors(law: str, scale: Fraction, bins: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Every vector of noise up to 28 scales, and its probability, by the definition of the law."""
    reach = int(28 * scale)
    free = bins - (law == ZERO_SUM)
    grid = np.array(list(itertools.product(range(-reach, reach + 1), repeat=free)))
    if law == ZERO_SUM:
        grid = np.column_stack([grid, -grid.sum(axis=1)])
    weight = np.exp(-np.abs(grid).sum(axis=1) / float(scale))
    return grid, weight / weight.sum()


def law_of_sum(law: str, scale: Fraction, bins: int, weights: Sequence[int], copies: int) -> NDArray[np.float64]:
    """P(sum = s) for s from -n to n, by convolution of the law of one histogram."""
    grid, probability = vectors(law, scale, bins)
    values = grid @ np.array(weights)
    one = np.bincount(values - values.min(), weights=probability)
    assert values.min() == -values.max()
    found = np.ones(1)
    for _ in range(copies):
        found = np.convolve(found, one)
    return found


CASES = [
    (law, scale, bins, weights)
    for law in (INDEPENDENT, ZERO_SUM)
    for scale in (Fraction(1, 2), Fraction(5, 3))
    for bins, weights in ((2, (1, 0)), (3, (1, 0, 0)), (3, (1, 1, 0)))
    if not (law == INDEPENDENT and bins == 3 and scale > 1)
]


@pytest.mark.parametrize("copies", [1, 2, 7])
@pytest.mark.parametrize(("law", "scale", "bins", "weights"), CASES)
def test_a_half_width_is_the_smallest_by_the_convolution(
    law: str, scale: Fraction, bins: int, weights: tuple[int, ...], copies: int
) -> None:
    exact = law_of_sum(law, scale, bins, weights, copies)
    middle = exact.size // 2
    within = np.cumsum(np.concatenate([[exact[middle]], 2 * exact[middle + 1 :]]))
    noise = [HistogramNoise(law, bins, scale)] * copies
    assert std(noise, weights) ** 2 == pytest.approx(float(exact @ (np.arange(exact.size) - middle) ** 2), rel=1e-6)
    for level in (0.2, 0.5, 0.9, 0.95, 0.999):
        assert half_width(noise, weights, level) == int(np.searchsorted(within, level)), level


@pytest.mark.parametrize("law", [INDEPENDENT, ZERO_SUM])
def test_a_variance_equals_that_by_enumeration_for_any_weights(law: str) -> None:
    grid, probability = vectors(law, Fraction(3, 4), 3)
    for weights in ((1.0, 0.0, 0.0), (0.0, 250.0, 500.0), (-1.5, 2.0, 0.25), (1.0, 1.0, 1.0)):
        expected = float(probability @ (grid @ np.array(weights)) ** 2)
        found = HistogramNoise(law, 3, Fraction(3, 4)).variance(weights)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(127, 2), Fraction(100_000, 3), Fraction(2**40)])
@pytest.mark.parametrize("bins", [2, 5, 50])
def test_the_band_of_one_count_is_that_of_the_row(scale: Fraction, bins: int) -> None:
    one = [1] + [0] * (bins - 1)
    for level in (0.5, 0.95, 0.999):
        for law, exact in ((INDEPENDENT, DiscreteLaplace(scale)), (ZERO_SUM, ZeroSumLaplace(scale, bins))):
            found, least = half_width([HistogramNoise(law, bins, scale)], one, level), exact.half_width(level)
            # wider noise is on a coarser lattice, and rounded up
            assert found == least if scale <= 512 else least <= found <= 1.01 * least


@pytest.mark.night
@pytest.mark.parametrize("scale", [Fraction(1), Fraction(127, 2)])
def test_sums_of_drawn_noise_lie_in_their_bands_at_the_stated_level(scale: Fraction) -> None:
    """Weekly sums of days of both laws: the number within a band is binomial, two-sided at FALSE_ALARM / 4 each."""
    draws, days, bins = 10_000, 7, 5
    kept = ZeroSumLaplace(scale, bins).draw(draws * days).reshape(draws, days, bins).sum(axis=1)
    free = DiscreteLaplace(scale).draw((draws, days, bins)).sum(axis=1)
    for law, noise in ((ZERO_SUM, kept), (INDEPENDENT, free)):
        for weights in ((1, 0, 0, 0, 0), (1, 1, 1, 0, 0)):
            h = half_width([HistogramNoise(law, bins, scale)] * days, weights)
            narrower = half_width([HistogramNoise(law, bins, scale)] * days, weights, 0.5)
            sums = np.abs(noise @ np.array(weights))
            assert stats.binom.cdf(int((sums <= h).sum()), draws, 0.95) > FALSE_ALARM / 4
            assert stats.binom.cdf(int((sums <= narrower).sum()), draws, 0.5) > FALSE_ALARM / 4
            # and no smaller one would do
            assert stats.binom.sf(int((sums < narrower).sum()) - 1, draws, 0.5) > FALSE_ALARM / 4


@pytest.mark.night
@pytest.mark.parametrize("weights", [(0.0, 250.0, 500.0, 1000.0, 2000.0), (1.0, -1.0, 0.5, 0.0, 0.0)])
def test_any_weighted_sum_lies_in_its_band_at_least_at_the_stated_level(weights: tuple[float, ...]) -> None:
    for scale in (Fraction(2, 3), Fraction(30)):
        for law, noise in (
            (ZERO_SUM, ZeroSumLaplace(scale, 5).draw(20_000)),
            (INDEPENDENT, DiscreteLaplace(scale).draw((20_000, 5))),
        ):
            h = half_width([HistogramNoise(law, 5, scale)], weights)
            inside = int((np.abs(noise @ np.array(weights)) <= h).sum())
            assert stats.binom.cdf(inside, 20_000, 0.95) > FALSE_ALARM


@pytest.mark.night
@pytest.mark.parametrize("scale", [Fraction(n, 20) for n in range(2, 120)])
def test_the_band_of_narrow_noise_holds_for_any_weight(scale: Fraction) -> None:
    one, kept = HistogramNoise(INDEPENDENT, 1, scale), HistogramNoise(ZERO_SUM, 2, scale)
    laws = ((DiscreteLaplace(scale), one, [2.0], 2.0), (ZeroSumLaplace(scale, 2), kept, [0.5, 1.5], 1.0))
    for level in (0.5, 0.95, 0.99, 0.9999):
        for law, noise, weights, step in laws:
            h = half_width([noise], weights, level)
            assert math.fsum(law.pmf(z) for z in range(-400, 401) if step * abs(z) <= h * (1 + 1e-12)) >= level
    before, after = (ReleasedHistogram(np.array([50, all_ - 50]), (kept,), all_) for all_ in (100, 111))
    masses = np.array([laws[1][0].pmf(z) for z in range(-100, 101)])
    off = np.abs(np.arange(-100, 101)[:, np.newaxis] / 111 - np.arange(-100, 101) / 100)
    within = np.outer(masses, masses)[off <= change(before, after).half_width * (1 + 1e-12)].sum()
    assert within >= 0.95


def test_noise_that_is_narrower_than_the_lattice_of_another_counts() -> None:
    """The narrow ones together are nearly normal: the truth by an inverse transform on a lattice of their own."""
    wide, narrow, many = 1e5, 50, 50_000
    noises = [
        HistogramNoise(INDEPENDENT, 2, Fraction(wide)),
        *[HistogramNoise(INDEPENDENT, 2, Fraction(narrow))] * many,
    ]
    size, step = 2**19, wide / 4096
    angles = 2 * np.pi * np.arange(size // 2 + 1) / size
    r = math.exp(-step / wide)
    variance = many * DiscreteLaplace(Fraction(narrow)).std ** 2 / step**2
    law = np.fft.irfft((1 - r) ** 2 / (1 - 2 * r * np.cos(angles) + r * r) * np.exp(-variance * angles**2 / 2), size)
    assert law[0] + 2 * law[1 : int(half_width(noises, [1, 0]) / step) + 1].sum() >= 0.95


WEIGHTED = [
    *((ZERO_SUM, scale, (1, -1)) for scale in ("1/10", "3/10", "4/5", "73/20", "8", "39/2", "127/2")),
    *((ZERO_SUM, scale, weights) for scale in ("1/10", "2/5", "3") for weights in ((1, -1, 0), (0, 1, 3))),
    *((ZERO_SUM, scale, (0, 1, 2, 4, 8)) for scale in ("1/5", "2/5")),
    *((INDEPENDENT, scale, (-3, -3)) for scale in ("3/20", "4/5", "8")),
    *((INDEPENDENT, scale, weights) for scale in ("1/10", "5/4") for weights in ((1, 2, -2), (1, 1, 0))),
]


@pytest.mark.night
@pytest.mark.parametrize(("law", "scale", "weights"), WEIGHTED)
def test_a_weighted_band_covers_by_enumeration_and_is_little_wider_than_the_least(
    law: str, scale: str, weights: tuple[int, ...]
) -> None:
    grid, probability = vectors(law, Fraction(scale), len(weights))
    beyond = np.cumsum(np.bincount(np.abs(grid @ np.array(weights)), weights=probability)[::-1])[::-1]
    noise = [HistogramNoise(law, len(weights), Fraction(scale))]
    for level in (0.5, 0.95, 0.99, 0.999, 0.99999, 1 - 5e-10):
        h, least = half_width(noise, weights, level), int((beyond > 1 - level).sum()) - 1
        assert math.floor(h * (1 + 1e-12)) >= least, level
        # and a step of the lattice where it is coarser, which is 2 (max w - min w) at most here or a tenth of h
        coarse = 0 if law == INDEPENDENT or Fraction(scale) <= 16 else 2 * math.ceil(Fraction(scale) / 16)
        assert level < 0.95 or h <= max(0.1, 1.07 * least) + coarse, level


@pytest.mark.parametrize(("totals", "scale"), [((7, 5), Fraction(1, 4)), ((100, 111), Fraction(3))])
def test_a_band_of_a_change_between_unequal_totals_covers_by_enumeration(
    totals: tuple[int, int], scale: Fraction
) -> None:
    values = np.arange(-150, 151)
    one, two = (ReleasedHistogram(np.array([3, n - 3]), (HistogramNoise(INDEPENDENT, 2, scale),), n) for n in totals)
    masses = np.array([DiscreteLaplace(scale).pmf(int(z)) for z in values])
    off = np.abs(values[:, np.newaxis] / totals[1] - values / totals[0])
    for level in (0.95, 0.999, 0.99999):
        width = change(one, two, level).half_width
        assert np.outer(masses, masses)[off > width * (1 + 1e-12)].sum() <= 1 - level, level


def test_sums_without_noise_have_a_band_of_zero() -> None:
    kept = HistogramNoise(ZERO_SUM, 3, Fraction(50))
    assert half_width([kept] * 4, (1, 1, 1)) == 0
    assert half_width([HistogramNoise(NO_NOISE, 3, Fraction(0))], (1, 0, 0)) == 0
    assert half_width([], (1, 0, 0)) == 0


@pytest.mark.parametrize("scale", [0.25, 50, 500])
@pytest.mark.parametrize("miss", [5e-10, 1e-11, 1e-13])
def test_rare_events_are_within_the_half_width_of_a_single_count(scale: float, miss: float) -> None:
    level = 1 - miss
    exact = DiscreteLaplace(Fraction(scale)).half_width(level)
    assert (
        exact <= half_width([HistogramNoise(INDEPENDENT, 5, Fraction(scale))], [1, 0, 0, 0, 0], level) <= 1.01 * exact
    )


def test_a_year_of_hourly_sums_of_much_noise_keeps_a_level_close_to_one() -> None:
    # so many summands are nearly normal; what rounds in one of them is raised to their number
    for scale in (484, 496):
        noise = HistogramNoise(INDEPENDENT, 2, Fraction(scale))
        found = half_width([noise] * 8_760, [1, 0], 1 - 1e-7)
        assert found == pytest.approx(stats.norm.isf(0.5e-7) * std([noise] * 8_760, [1, 0]), rel=2e-3)
