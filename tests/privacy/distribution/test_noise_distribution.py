"""The sampler against its law on large scales, in bulk (false-alarm rate 1e-9 for each test; see conftest.py)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from quiltstream.privacy.mechanisms.discrete_laplace import (
    LARGEST_SCALE,
    DiscreteLaplace,
    ZeroSumLaplace,
    rational_scale,
)

SEED = 20130101  # of the choice among equal entries, not of the noise

SCALES = [
    rational_scale(31.7098, 2),
    rational_scale(2033.7827, 2),
    rational_scale(0.3, 2),
    Fraction(1, 3),
    Fraction(2**35 + 1, 2**30),  # at the edge of one digit and two
    Fraction(40_000),  # three digits
    rational_scale(2.0**44, 2),
]


class Checks(Protocol):
    samples: int
    false_alarm: float

    def chi_square(self, observed: NDArray[np.int64], expected: NDArray[np.float64]) -> None: ...
    def independence(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None: ...
    def same_law(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None: ...
    def frequency(self, events: NDArray[np.bool_], probability: float) -> None: ...
    def kolmogorov(self, drawn: NDArray[np.int64], cdf: object) -> None: ...


def laplace_cdf(scale: Fraction, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(Z <= z), summed by hand from the ratio of neighbouring probabilities."""
    real = float(scale)
    tail = np.exp(-np.where(values < 0, -values, values + 1) / real) / (1 + math.exp(-1 / real))
    return np.where(values < 0, tail, 1 - tail)


def cells(scale: Fraction, samples: int) -> NDArray[np.int64]:
    """Upper ends of about 60 cells of nearly equal probability, each expecting far more than 1000 values."""
    real = float(scale)
    shares = np.linspace(0, 1, 62)[1:-1]
    ends = np.where(shares < 0.5, real * np.log(2 * shares), -real * np.log(2 * (1 - shares)))
    found = np.unique(np.round(ends).astype(np.int64))
    masses = np.diff(np.concatenate([[0.0], laplace_cdf(scale, found), [1.0]]))
    kept = [end for end, mass in zip(found.tolist(), masses, strict=False) if mass * samples >= 1000]
    return np.array(kept)


@pytest.mark.parametrize("scale", SCALES, ids=lambda scale: f"{float(scale):.4g}")
def test_draws_in_bulk_follow_the_discrete_laplace_law(checks: Checks, scale: Fraction) -> None:
    """Chi-square over cells of equal probability, and a Kolmogorov bound over all values; false alarm 2e-9."""
    drawn = DiscreteLaplace(scale).draw(checks.samples)
    ends = cells(scale, checks.samples)
    masses = np.diff(np.concatenate([[0.0], laplace_cdf(scale, ends), [1.0]]))
    observed = np.bincount(np.searchsorted(ends, drawn, side="left"), minlength=ends.size + 1)
    checks.chi_square(observed, masses * checks.samples)
    checks.kolmogorov(drawn, lambda values: laplace_cdf(scale, values))


@pytest.mark.parametrize("scale", [Fraction(40_000), Fraction(2**33 + 1, 2**9)], ids=str)
def test_each_binary_digit_of_large_noise_has_its_probability(checks: Checks, scale: Fraction) -> None:
    """The digits of a geometric number are independent, r^(2^j) to 1; false alarm 1e-9 for each of them."""
    drawn = DiscreteLaplace(scale).draw(checks.samples)
    magnitude = drawn ^ (drawn >> 63)  # z or -1 - z
    for digit in range(scale.numerator.bit_length() - scale.denominator.bit_length() + 3):
        ratio = math.exp(-(2**digit) / float(scale))
        checks.frequency(magnitude >> digit & 1 == 1, ratio / (1 + ratio))


def test_neighbouring_draws_are_independent(checks: Checks) -> None:
    """Contingency of sign-and-size classes of neighbours, in order of drawing; false alarm 1e-9 for each distance."""
    drawn = DiscreteLaplace(rational_scale(31.7098, 2)).draw(checks.samples)
    classes = np.searchsorted([-60, -20, 0, 20, 60], drawn)
    for distance in (1, 2, 5):
        checks.independence(classes[:-distance], classes[distance:])


def test_the_sign_is_fair_and_independent_of_the_size(checks: Checks) -> None:
    """Exact binomial test of the sign among the non-zero values, and contingency with the size; false alarm 2e-9."""
    drawn = DiscreteLaplace(rational_scale(31.7098, 2)).draw(checks.samples)
    moved = drawn[drawn != 0]
    checks.frequency(moved < 0, 0.5)
    checks.independence((moved < 0).astype(np.int64), np.searchsorted([10, 30, 60, 100], np.abs(moved)))


@pytest.mark.night
def test_opendp_draws_from_the_same_law(checks: Checks) -> None:
    """Two-sample Kolmogorov bound against OpenDP's sampler, 200,000 values of theirs; false alarm 1e-9."""
    dp = pytest.importorskip("opendp.prelude", reason="OpenDP is a test dependency; install quiltstream[test]")
    dp.enable_features("contrib")
    scale = rational_scale(31.7098, 2)
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    theirs = np.array(dp.m.make_laplace(*space, float(scale))([0] * 200_000), dtype=np.int64)
    checks.same_law(DiscreteLaplace(scale).draw(checks.samples), theirs)


def test_the_largest_scale_draws_within_its_bound() -> None:
    """|Z| > 40 scale has probability below 5e-18 a draw, 5e-13 for all; beyond 2^62 none can be."""
    drawn = DiscreteLaplace(Fraction(LARGEST_SCALE)).draw(100_000)
    assert drawn.dtype == np.int64
    assert int(np.abs(drawn).max()) < 40 * LARGEST_SCALE
    assert int(np.abs(drawn).max()) > LARGEST_SCALE


WIDE = {2: 20, 5: 21, 12: 60, 51: 284}


@pytest.mark.night
@pytest.mark.parametrize(("bins", "scale"), [*WIDE.items(), (51, 3), (5, 1)])
def test_noise_of_sum_zero_in_bulk_has_the_law_of_its_entries(checks: Checks, bins: int, scale: int) -> None:
    """Kolmogorov's bound for the first and the last entry, chi-square over the rows of bins; false alarm 3e-9.

    The wide ones are drawn by cuts, the narrow ones by their sum.
    """
    law = ZeroSumLaplace(Fraction(scale) + Fraction(1, 2**20), bins)
    rows = min(200_000, checks.samples // bins) if scale > 3 else 20_000
    drawn = law.draw(rows)
    assert not drawn.sum(axis=1).any()
    reach = int(np.abs(drawn).max()) + 1
    below = np.cumsum([law.pmf(value) for value in range(-reach, reach + 1)])
    outside = (1 - below[-1]) / 2
    for entry in (0, bins - 1):
        checks.kolmogorov(drawn[:, entry], lambda values: outside + below[np.asarray(values) + reach])
    # entries are exchangeable: each is the largest of its row equally often, ties given to a random one of them
    ties = drawn == drawn.max(axis=1, keepdims=True)
    first = np.argmax(ties * np.random.default_rng(SEED).random(ties.shape), axis=1)
    if rows / bins >= 1000:
        checks.chi_square(np.bincount(first, minlength=bins), np.full(bins, rows / bins))
