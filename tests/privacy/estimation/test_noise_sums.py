"""Sums of noise: variances and half-widths against laws written out by enumeration, and against draws."""

from __future__ import annotations

import itertools
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
)
from quiltstream.privacy.mechanisms.discrete_laplace import DiscreteLaplace, ZeroSumLaplace
from quiltstream.schemas.noise_laws import INDEPENDENT, ZERO_SUM

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
    for level in (0.2, 0.5, 0.9, 0.95, 0.999):
        assert half_width(noise, weights, level) == int(np.searchsorted(within, level)), level


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
