"""Exact integer noise: the discrete Laplace law, its scale as a fraction, and its sampler.

Floating-point Laplace noise gives the data away in its low bits (Mironov, "On significance of the least significant
bits for differential privacy", 2012). Here the scale is a rational number, the noise is an integer, and no float takes
part in a draw; floats only describe the law (its standard deviation, its half-width).

>>> scale = rational_scale(31.7098, sensitivity=2)
>>> noise = DiscreteLaplace(scale)
>>> noise.draw((3, 5)).shape
(3, 5)
>>> noise.half_width(0.95)
190
>>> epsilon_dp_of(scale, 2) < 1 / 31.7098
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..validation import float_above, positive, whole
from .sampling import (
    LARGEST_DENOMINATOR,
    Entropy,
    SystemEntropy,
    bernoulli_exp,
    candidates,
    draw_bits,
    geometric,
    uniform_below,
)

LARGEST_SCALE = LARGEST_DENOMINATOR
"""The largest scale, and the largest numerator of one, for int64: |noise| stays below 2^62 (see `DiscreteLaplace`)."""

LARGEST_SCALE_DENOMINATOR = 2**62
"""The largest denominator of a scale; together with the numerator's 36 bits it allows scales down to 2^-26."""

_NUMERATOR_BITS = 36
_SENSITIVITY = "a histogram has 2, a count of one state has 1"
_DIGITS = Context(prec=60)  # for the logarithms of half-widths and quantiles
_ACCEPTED = 1 - math.exp(-1)  # of the candidates, where the scale is not small: those of minus zero are few then
_LANES = 2**16  # candidates at once: enough to spread the cost of a numpy call, few enough for the caches


def rational_scale(sigma: float, sensitivity: int) -> Fraction:
    """Round the scale `sensitivity * sigma` up to a fraction n / 2^j whose numerator has about 36 bits.

    The product is formed exactly from the float's own value. The result is strictly larger, by a relative 2^-36 to
    2^-34 (1.4e-11 to 5.9e-11): small enough to cost nothing, and larger than the errors of float arithmetic in a
    ledger, so that windows calibrated for epsilon are charged a little less than epsilon and never more.

    Args:
        sigma: noise multiplier of a calibration (1 / eps_dp), positive.
        sensitivity: L1 sensitivity of the query, an integer of at least 1.

    Returns:
        The scale of `DiscreteLaplace`, n / 2^j in lowest terms.

    Raises:
        TypeError: a value of the wrong type.
        ValueError: a value out of range, or a scale beyond the limits of `DiscreteLaplace`.
    """
    multiplier = positive("sigma", sigma, "pass the sigma of a calibration")
    exact = Fraction(multiplier) * whole("sensitivity", sensitivity, _SENSITIVITY, least=1)
    # 2^35 <= exact * 2^shift < 2^36, by integer arithmetic only
    shift = _NUMERATOR_BITS - (exact.numerator.bit_length() - exact.denominator.bit_length())
    while exact * Fraction(2) ** shift >= 2**_NUMERATOR_BITS:
        shift -= 1
    unit = Fraction(2) ** -shift
    # floor + 2 moves up by more than one unit and by at most two: by 2^-36 to 2 * 2^-35 of the value
    scale = (math.floor(exact / unit) + 2) * unit
    _check_scale(scale)
    return scale


def epsilon_dp_of(scale: Fraction, sensitivity: int) -> float:
    """Return the loss per slot `sensitivity / scale` of a release, rounded up to a float (theory section 1).

    Args:
        scale: scale of the noise, positive.
        sensitivity: L1 sensitivity of the query, an integer of at least 1.

    Returns:
        The smallest float that is at least `sensitivity / scale`.

    Raises:
        ValueError: a value out of range.
    """
    _check_scale(scale)
    return float_above(whole("sensitivity", sensitivity, _SENSITIVITY, least=1) / scale)


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """The law P(Z = z) = tanh(1 / (2 scale)) exp(-|z| / scale) on the integers, and exact draws from it.

    Shifting Z by d changes its probabilities by at most exp(|d| / scale), as for the continuous law, so a query of
    integers with L1 sensitivity L has eps_dp = L / scale per slot.

    No draw overflows. With scale = t / s in lowest terms, |Z| is at most (u + t v) / s with u < t and v < 2^16, so
    t <= 2^46 gives u + t v < 2^62. The geometric part v reaches 2^16 with probability exp(-65536) < 2^-94547, and then
    the draw stops with `EntropyError` instead of wrapping: this event is independent of the data.

    Attributes:
        scale: positive, numerator at most 2^46 (`LARGEST_SCALE`), denominator at most 2^62.

    Raises:
        TypeError: the scale is not a `Fraction`.
        ValueError: the scale is not positive or too large or too fine.
    """

    scale: Fraction

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def draw(self, shape: int | tuple[int, ...], entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Draw independent noise of the given shape ([CKS20] Algorithm 2).

        Args:
            shape: shape of the result.
            entropy: for tests only; the operating system's entropy where it is left out.

        Returns:
            int64 values, each of absolute value below 2^62.

        Raises:
            EntropyError: see the class.
        """
        source = SystemEntropy() if entropy is None else entropy
        noise = np.empty(shape, dtype=np.int64)
        flat = noise.reshape(-1)
        filled = 0
        while filled < flat.size:
            tried = min(_LANES, candidates(flat.size - filled, _ACCEPTED))
            accepted = _attempt(self.scale, tried, source)[: flat.size - filled]
            flat[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return noise

    def pmf(self, value: int) -> float:
        """Return P(Z = value)."""
        return math.tanh(0.5 / self._real) * math.exp(-abs(value) / self._real)

    def cdf(self, value: int) -> float:
        """Return P(Z <= value)."""
        return self._upper(-value) if value < 0 else 1.0 - self._upper(value + 1)

    def quantile(self, level: float) -> int:
        """Return the smallest integer z with P(Z <= z) >= level.

        Raises:
            ValueError: the level is not strictly between 0 and 1.
        """
        _check_level(level)
        with localcontext(_DIGITS):
            scale, share = self._decimal()
            if Decimal(level) > 1 - share:  # P(Z <= -1) = share * exp(-1/scale) < 1/2, P(Z <= 0) = 1 - that
                # P(Z > z) = share * exp(-(z + 1)/scale) <= 1 - level
                return max(0, math.ceil(scale * (share / (1 - Decimal(level))).ln()) - 1)
            # P(Z <= z) = share * exp(z/scale) >= level for z < 0
            below = math.ceil(scale * (Decimal(level) / share).ln())
            return min(below, 0)

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest integer h with P(|Z| <= h) >= level.

        The level is read as the exact value of the float, and the logarithm has 60 digits.

        Raises:
            ValueError: the level is not strictly between 0 and 1.
        """
        _check_level(level)
        with localcontext(_DIGITS):
            scale, share = self._decimal()
            # P(|Z| > h) = 2 share exp(-(h + 1)/scale) <= 1 - level
            return max(0, math.ceil(scale * (2 * share / (1 - Decimal(level))).ln()) - 1)

    @property
    def std(self) -> float:
        """Standard deviation, sqrt(2 r) / (1 - r) with r = exp(-1 / scale)."""
        return math.sqrt(2.0) * math.exp(-0.5 / self._real) / -math.expm1(-1.0 / self._real)

    @property
    def mean_abs(self) -> float:
        """Mean absolute value, 2 r / (1 - r^2) with r = exp(-1 / scale)."""
        return 2.0 * math.exp(-1.0 / self._real) / -math.expm1(-2.0 / self._real)

    @property
    def _real(self) -> float:
        return float(self.scale)

    def _upper(self, value: int) -> float:
        """P(Z >= value) for value >= 0: r^value / (1 + r)."""
        return math.exp(-value / self._real) / (1.0 + math.exp(-1.0 / self._real))

    def _decimal(self) -> tuple[Decimal, Decimal]:
        """The scale, and P(Z >= 0) = 1 / (1 + r), in the digits of the current context."""
        scale = Decimal(self.scale.numerator) / Decimal(self.scale.denominator)
        return scale, 1 / (1 + (-1 / scale).exp())


def _attempt(scale: Fraction, count: int, entropy: Entropy) -> NDArray[np.int64]:
    """Run one round of [CKS20] Algorithm 2 for `count` candidates and return those that it accepts, in order.

    Acceptance is decided for each candidate alone, so the accepted ones are independent draws from the law.
    """
    magnitude = _magnitudes(scale, count, entropy)
    negative = draw_bits(entropy, 1, magnitude.size) == 1
    # minus zero would count zero twice
    kept = (magnitude != 0) | ~negative
    return np.where(negative, -magnitude, magnitude)[kept]


def _magnitudes(scale: Fraction, count: int, entropy: Entropy) -> NDArray[np.int64]:
    """Of `count` candidates those that are accepted, in order: P(M = v) = (1 - exp(-1/scale)) exp(-v/scale), v >= 0."""
    t, s = scale.numerator, scale.denominator
    low = uniform_below(t, count, entropy)
    low = low[bernoulli_exp(low, t, entropy)]
    # below 2^46 + 2^46 (2^16 - 1) = 2^62
    return (low + t * geometric(low.size, entropy)) // s


def magnitudes(scale: Fraction, count: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw independent integers with P(M = v) = (1 - exp(-1/scale)) exp(-v/scale), v >= 0: geometric ones.

    Args:
        scale: as for `DiscreteLaplace`.
        count: how many.
        entropy: the bit source.

    Returns:
        int64, shape (count,), each below 2^62.

    Raises:
        EntropyError: as for `DiscreteLaplace`.
    """
    drawn = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        tried = min(_LANES, candidates(count - filled, _ACCEPTED))
        accepted = _magnitudes(scale, tried, entropy)[: count - filled]
        drawn[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return drawn


def _check_scale(scale: Fraction) -> None:
    if not isinstance(scale, Fraction):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"scale: {scale!r} is not a Fraction: make one with rational_scale(sigma, sensitivity)")
    if scale <= 0:
        raise ValueError(f"scale: {scale} is not positive: noise needs a positive scale")
    if scale.numerator > LARGEST_SCALE:
        raise ValueError(
            f"scale: {_shown(scale)} has a numerator of {scale.numerator.bit_length()} bits, the limit of 64-bit "
            f"noise is 2^46 = {LARGEST_SCALE}: choose a larger epsilon or coarser states, and make the scale with "
            "rational_scale"
        )
    if scale.denominator > LARGEST_SCALE_DENOMINATOR:
        raise ValueError(
            f"scale: {_shown(scale)} has a denominator of {scale.denominator.bit_length()} bits, the limit is "
            f"2^62 = {LARGEST_SCALE_DENOMINATOR}: choose a smaller epsilon, and make the scale with rational_scale"
        )


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")


def _shown(scale: Fraction) -> str:
    """A readable value; a float could overflow."""
    return f"{Decimal(scale.numerator) / Decimal(scale.denominator):.6g}"
