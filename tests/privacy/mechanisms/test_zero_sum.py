"""Noise of sum zero: its law and its moments written out."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quiltstream.privacy.mechanisms.discrete_laplace import DiscreteLaplace, ZeroSumLaplace

SEED = 20130101
SCALES = [Fraction(1), Fraction(7, 2), Fraction(2, 3), Fraction(12)]


def one_entry(scale: Fraction, bins: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Values and probabilities of one entry, by convolution of the independent law; rest below 1e-15."""
    reach = int(45 * scale) + 2
    values = np.arange(-reach, reach + 1)
    single = np.exp(-np.abs(values) / float(scale))
    others = np.ones(1)
    for _ in range(bins - 1):
        others = np.convolve(others, single)
    middle = others.size // 2
    law = single * others[middle - reach : middle + reach + 1]  # the others sum to minus this entry
    return values, law / law.sum()


@pytest.mark.parametrize("bins", [2, 3, 5, 12])
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_probabilities_moments_and_bands_are_those_of_the_convolution(scale: Fraction, bins: int) -> None:
    law = ZeroSumLaplace(scale, bins)
    values, expected = one_entry(scale, bins)
    near = np.abs(values) <= 8 * scale
    assert [law.pmf(value) for value in values[near].tolist()] == pytest.approx(expected[near], rel=1e-9)
    assert law.mean_abs == pytest.approx(float((np.abs(values) * expected).sum()), rel=1e-9)
    assert law.std == pytest.approx(math.sqrt(float((values**2 * expected).sum())), rel=1e-9)
    for level in (0.5, 0.95, 0.999):
        band = law.half_width(level)
        inside = [float(expected[np.abs(values) <= width].sum()) for width in (band - 1, band)]
        assert inside[0] < level <= inside[1]


@pytest.mark.parametrize(
    ("bins", "variance", "over_projected", "band"),
    [
        (2, 0.250, 0.500, 0.500),
        (3, 0.417, 0.625, 0.637),
        (5, 0.600, 0.750, 0.766),
        (10, 0.777, 0.864, 0.878),
        (51, 0.952, 0.971, 0.976),
    ],
)
def test_wide_zero_sum_noise_has_the_stated_ratio_to_independent_noise(
    bins: int, variance: float, over_projected: float, band: float
) -> None:
    law, plain = ZeroSumLaplace(Fraction(10**6), bins), DiscreteLaplace(Fraction(10**6))
    ratio = (law.std / plain.std) ** 2
    # the projection takes the mean off, and leaves 1 - 1/k of the variance
    assert (round(ratio, 3), round(ratio / (1 - 1 / bins), 3)) == (variance, over_projected)
    assert round(law.half_width() / plain.half_width(), 3) == band


@pytest.mark.parametrize("bins", [2, 3, 5, 51])
def test_an_entry_is_stochastically_smaller_than_independent_noise(bins: int) -> None:
    law, plain = ZeroSumLaplace(Fraction(9, 2), bins), DiscreteLaplace(Fraction(9, 2))
    outside, others = 1.0 - law.pmf(0), 1.0 - plain.pmf(0)
    for value in range(1, 60):
        assert outside <= others * (1 + 1e-12)
        outside, others = outside - 2 * law.pmf(value), others - 2 * plain.pmf(value)


@pytest.mark.parametrize("scale", [Fraction(7, 5), Fraction(5, 2), Fraction(40)], ids=str)
def test_vectors_are_drawn_with_the_probabilities_of_all_that_there_are(scale: Fraction) -> None:
    """Chi-square against every vector of three bins, written out; false alarm below 1e-9, and the bits are seeded."""
    rows, reach = 100_000, int(30 * scale)
    first, second = np.meshgrid(np.arange(-reach, reach + 1), np.arange(-reach, reach + 1))
    weights = np.exp(-(np.abs(first) + np.abs(second) + np.abs(first + second)) / float(scale))
    drawn = ZeroSumLaplace(scale, 3).draw(rows, Random(SEED).randbytes)
    assert np.abs(drawn).max() <= reach
    seen = np.zeros_like(weights)
    np.add.at(seen, (drawn[:, 1] + reach, drawn[:, 0] + reach), 1)
    wanted = rows * weights / weights.sum()
    often = wanted >= 10
    observed, expected = (np.append(one[often], one[~often].sum()) for one in (seen, wanted))
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert float(stats.chi2.sf(statistic, observed.size - 1)) > 1e-9, f"seed {SEED}"


@pytest.mark.parametrize("bins", [2, 3, 7, 51, 200])
@pytest.mark.parametrize("scale", [Fraction(1, 2**62), Fraction(1, 3), Fraction(4), Fraction(84), Fraction(2**46)])
def test_rows_of_any_scale_sum_to_zero(bins: int, scale: Fraction) -> None:
    noise = ZeroSumLaplace(scale, bins).draw(5)
    assert (noise.shape, noise.dtype) == ((5, bins), np.int64)
    assert noise.sum(axis=1).tolist() == [0] * 5
    assert noise.any() == (scale > 1) or scale == Fraction(1, 3)
    assert ZeroSumLaplace(scale, bins).draw(0).shape == (0, bins)


@pytest.mark.parametrize("bins", [1, 0, -2])
def test_a_single_entry_has_no_noise_and_is_refused(bins: int) -> None:
    with pytest.raises(ValueError, match=f"bins is {bins}"):
        ZeroSumLaplace(Fraction(3), bins)
