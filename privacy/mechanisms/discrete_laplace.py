"""Exact integer noise: the discrete Laplace law, plain or conditioned on sum zero, its scale as a fraction, its draws.

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

Where the total of a histogram is public, noise that changes the total says nothing and costs accuracy. `ZeroSumLaplace`
keeps it. Its density depends on the noise through the norm |z|_1 / 2 alone, whose unit ball is the convex hull of the
moves e_i - e_j that one cell can make: it is the K-norm mechanism of that hull (Hardt and Talwar, "On the geometry of
differential privacy", 2010), on the integers.

>>> keeping = ZeroSumLaplace(scale, bins=5)
>>> keeping.draw(3).sum(axis=1).tolist(), keeping.half_width(0.95)
([0, 0, 0], 146)

Notation: r = exp(-1/scale), q = r^2, w = q/(1 - q), m = bins - 1. A sum of m independent discrete Laplace variables has

    P(sum = n) = (1-r)^{2m} (1-q)^{-m} r^{|n|} S_m(|n|),   S_m(n) = sum_i C(m-1+i, i) C(n+m-1, m-1-i) w^i,

which is the coefficient of x^n in (1-r)^{2m} (1-rx)^{-m} (1-r/x)^{-m}, by Pfaff's transformation of the hypergeometric
series. All terms are positive. With the other bins summing to -z, one bin therefore has

    P(Z = z) = q^{|z|} S_m(|z|) / N,   N = S_{m+1}(0) = sum_i C(m+i, i) C(m, i) w^i,

and by Vandermonde's identity P(|Z| >= s) = 2 q^s (1+w) / N sum_i C(m+i, i) C(s+m-1, m-1-i) w^i for s >= 1. The factor
r^n S_m(n) falls with n, because sums of log-concave symmetric variables are log-concave: the plain law is multiplied by
what falls with |z|. So |Z| is stochastically smaller than plain noise of the same scale, and every bound of
P(|Z| >= s) or E exp(tZ) for that holds here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ArgumentError
from ..validation import float_above, instance, number, positive, whole
from .sampling import BLOCK, Entropy, EntropyError, Integers, laplace_tables

LARGEST_SCALE = 2**46
"""The largest scale, and the largest numerator of one, for int64: |noise| stays below 2^57 (see `DiscreteLaplace`)."""

_DIGITS = Context(prec=60, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""exp(-1 / scale) of a tiny scale is far below any float."""


def rational_scale(sigma: float, sensitivity: int) -> Fraction:
    """Round the scale `sensitivity * sigma` up to a fraction n / 2^j whose numerator has about 36 bits.

    The product is formed exactly from the float's own value. The result is strictly larger, by a relative 2^-36 to
    2^-34 (1.4e-11 to 5.9e-11): small enough to cost nothing, and larger than the errors of float arithmetic in a
    ledger, so that windows calibrated for epsilon are charged a little less than epsilon and never more.

    Raises:
        ValueError: a value out of range, or a scale beyond the limits of `DiscreteLaplace`.
    """
    multiplier = positive("sigma", sigma, "pass the sigma of a calibration")
    exact = Fraction(multiplier) * whole("sensitivity", sensitivity, "a histogram has 2", least=1)
    # 2^35 <= exact * 2^shift < 2^36, by integer arithmetic only
    shift = 36 - (exact.numerator.bit_length() - exact.denominator.bit_length())
    while exact * Fraction(2) ** shift >= 2**36:
        shift -= 1
    unit = Fraction(2) ** -shift
    # floor + 2 moves up by more than one unit and by at most two: by 2^-36 to 2 * 2^-35 of the value
    scale = (math.floor(exact / unit) + 2) * unit
    _check_scale(scale)
    return scale


def epsilon_dp_of(scale: Fraction, sensitivity: int) -> float:
    """The loss per slot `sensitivity / scale` of a release (theory section 1), rounded up to a float."""
    _check_scale(scale)
    return float_above(whole("sensitivity", sensitivity, "a histogram has 2", least=1) / scale)


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """The law P(Z = z) = tanh(1 / (2 scale)) exp(-|z| / scale) on the integers, and exact draws from it.

    Shifting Z by d changes its probabilities by at most exp(|d| / scale), as for the continuous law, so a query of
    integers with L1 sensitivity L has eps_dp = L / scale per slot.

    No draw overflows: at the largest scale the first digit counts parts of 2^42 and stays below 2^15, so |Z| < 2^57. A
    larger one, which has probability below 2^-1024 and depends on no data, ends the draw with `EntropyError`.

    Attributes:
        scale: positive, numerator at most 2^46 (`LARGEST_SCALE`), denominator at most 2^62.
    """

    scale: Fraction

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def draw(self, shape: int | tuple[int, ...], entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Draw independent noise of the given shape, int64 below 2^57 in size, by inversion (see `sampling`).

        Args:
            shape: shape of the result.
            entropy: for tests only; the operating system's entropy where it is left out.
        """
        for size in shape if isinstance(shape, tuple) else (shape,):
            whole("shape", size, "give how many draws", least=0, most=LARGEST_SCALE)
        tables, noise = laplace_tables(self.scale), np.empty(shape, dtype=np.int64)
        flat = noise.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            tops = tables.top.draw(min(BLOCK, flat.size - start), entropy)
            np.bitwise_xor(tables.magnitudes(tops, entropy), tops >> 15, out=flat[start : start + BLOCK])
        return noise

    def pmf(self, value: int) -> float:
        """Return P(Z = value)."""
        value = whole("value", value, "draws lie between these limits", least=-(2**62), most=2**62)
        return math.tanh(0.5 / float(self.scale)) * math.exp(-abs(value) / float(self.scale))

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest integer h with P(|Z| <= h) >= level.

        The level is read as the exact value of the float, and the logarithm has 60 digits.
        """
        level = checked_level(level)
        return self.passed_by(1 - Fraction(level))

    def passed_by(self, share: Fraction) -> int:
        """Return the smallest integer h with P(|Z| > h) <= share, which lies strictly between 0 and 1."""
        instance("share", share, Fraction, advice="give for example Fraction(1, 20)")
        if not 0 < share < 1:
            raise ArgumentError(f"share is {_shown(share)}, but must be strictly between 0 and 1: give Fraction(1, 20)")
        with localcontext(_DIGITS):
            scale, most = (Decimal(one.numerator) / Decimal(one.denominator) for one in (self.scale, share))
            # P(|Z| > h) = 2 P(Z >= 0) exp(-(h + 1)/scale), P(Z >= 0) = 1 / (1 + r)
            return max(0, math.ceil(scale * (2 / (1 + (-1 / scale).exp()) / most).ln()) - 1)

    @property
    def std(self) -> float:
        """Standard deviation, sqrt(2 r) / (1 - r) with r = exp(-1 / scale)."""
        return math.sqrt(2.0) * math.exp(-0.5 / float(self.scale)) / -math.expm1(-1.0 / float(self.scale))

    @property
    def mean_abs(self) -> float:
        """Mean absolute value, 2 r / (1 - r^2) with r = exp(-1 / scale)."""
        return 2.0 * math.exp(-1.0 / float(self.scale)) / -math.expm1(-2.0 / float(self.scale))


def _check_scale(scale: Fraction) -> None:
    if not isinstance(scale, Fraction):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"scale: {scale!r} is not a Fraction: make one with rational_scale(sigma, sensitivity)")
    if scale <= 0:
        raise ArgumentError(f"scale: {scale} is not positive: noise needs a positive scale")
    if scale.numerator > LARGEST_SCALE or scale.denominator > 2**62:
        raise ArgumentError(
            f"scale: {_shown(scale)} has a numerator of {scale.numerator.bit_length()} bits and a denominator of "
            f"{scale.denominator.bit_length()}, the limits of 64-bit noise are 2^46 and 2^62: choose another epsilon "
            "or coarser states, and make the scale with rational_scale"
        )


def checked_level(level: float) -> float:
    """A probability as a float; refuse one that is not strictly between 0 and 1, or no number."""
    found = number("level", level, "0.95 is the usual one")
    if not 0 < found < 1:
        raise ArgumentError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")
    return found


def _shown(scale: Fraction) -> str:
    """A readable value; a float could overflow."""
    return f"{Decimal(scale.numerator) / Decimal(scale.denominator):.6g}"


@dataclass(frozen=True, slots=True)
class ZeroSumLaplace:
    """The law P(z) proportional to exp(-|z|_1 / scale) on the integer vectors of `bins` entries whose sum is zero.

    Shifting z by v, with sum(v) = 0, changes its probabilities by at most exp(|v|_1 / scale), because the support is
    shifted into itself and the normaliser depends on scale and bins alone: the loss is that of independent noise of the
    same scale.

    Attributes:
        scale: as for `DiscreteLaplace`; times the bins at most 2^54, so that sums of draws fit 64 bits.
        bins: number of entries, at least 2; the only vector of one entry is zero.
    """

    scale: Fraction
    bins: int

    def __post_init__(self) -> None:
        whole("bins", self.bins, "the count of a single bin is the total, and no noise hides a public total", least=2)
        DiscreteLaplace(self.scale)
        if self.scale * self.bins > 2**54:
            raise ArgumentError(
                f"scale: {_shown(self.scale)} times {self.bins} bins is above 2^54, the limit of 64-bit sums: choose a "
                "larger epsilon or coarser states"
            )

    def draw(self, rows: int, entropy: Entropy | None = None) -> Integers:
        """Draw independent vectors: all entries but one are independent noise, the last one takes their sum back.

        A candidate is accepted with the last entry's probability over its largest, exp(-|sum| / scale): where the
        magnitude of another draw, P(M >= n) = exp(-n / scale), is at least |sum|. About one of sqrt(pi bins) candidates
        of wide noise is accepted, more of narrow noise. The first digits alone refuse most, so only the rest are drawn
        to the end. No count takes part: the time depends on the noise and on nothing secret besides.

        Raises:
            EntropyError: a part of the noise is too large for a sum of 64 bits, which has probability below exp(-255)
                and depends on no data; nothing has been released then.
        """
        tables, noise = laplace_tables(self.scale), np.empty((rows, self.bins), dtype=np.int64)
        filled, others = 0, self.bins - 1
        while filled < rows:
            wanted = rows - filled
            # many are tried at once, because a round costs more than a candidate
            tried = min(BLOCK // self.bins + 1, 2 * wanted * (math.isqrt(self.bins) + 1))
            tops = tables.top.draw(tried * self.bins, entropy).reshape(tried, self.bins)
            # in units of a first digit the sum is at least `tops`' own and less than `others` above it
            least = tops[:, :-1].sum(axis=1, dtype=np.int64)
            last = tops[:, -1] ^ (tops[:, -1] >> 15)
            tops = tops[np.maximum(least, -(least + others)) <= last]
            parts = tables.magnitudes(tops, entropy)
            if parts.size and int(parts.max()) >= 2**62 // self.bins:
                raise EntropyError(
                    "noise: a draw is too large for a sum of 64 bits, which happens hardly ever with any data: nothing "
                    "was released, run again; if it comes back, check the system's random device or choose a smaller "
                    "scale"
                )
            found = parts ^ (tops >> 15)
            total = found[:, :-1].sum(axis=1)
            found[:, -1] = -total
            accepted = found[np.abs(total) <= parts[:, -1]][:wanted]
            noise[filled : filled + len(accepted)] = accepted
            filled += len(accepted)
        return noise

    def pmf(self, value: int) -> float:
        """Return P(Z = value) of one entry Z."""
        with localcontext(_DIGITS):
            q, w = self._ratios()
            return float(q ** abs(value) * self._polynomial(abs(value), 1, w) / self._normaliser(w))

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest integer h with P(|Z| <= h) >= level for one entry Z, by 60 digits."""
        level = checked_level(level)
        low, high = -1, DiscreteLaplace(self.scale).half_width(level)  # |Z| is stochastically smaller than there
        with localcontext(_DIGITS):
            allowed = 1 - Decimal(level)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._tail(middle + 1) <= allowed else (middle, high)
        return high

    @property
    def mean_abs(self) -> float:
        """Mean absolute value of one entry: the sum of P(|Z| >= s) over s >= 1."""
        with localcontext(_DIGITS):
            return float(self._summed(1))

    @property
    def std(self) -> float:
        """Standard deviation of one entry: E Z^2 = 2 E[|Z| (|Z| + 1) / 2] - E|Z|, the first by summing twice."""
        with localcontext(_DIGITS):
            return float((2 * self._summed(2) - self._summed(1)).sqrt())

    def _ratios(self) -> tuple[Decimal, Decimal]:
        """The ratios q and w, in the digits of the current context."""
        q = (-2 * Decimal(self.scale.denominator) / Decimal(self.scale.numerator)).exp()
        return q, q / (1 - q)

    def _normaliser(self, w: Decimal) -> Decimal:
        m = self.bins - 1
        terms = (math.comb(m + i, i) * math.comb(m, i) * power for i, power in enumerate(_powers(w, m + 1)))
        return sum(terms, Decimal(0))

    def _polynomial(self, value: int, less: int, w: Decimal) -> Decimal:
        """The sum over i < m of C(m-less+i, i) C(value+m-1, m-1-i) w^i: S_m(value) with 1, that of its tail with 0."""
        m, powers = self.bins - 1, _powers(w, self.bins - 1)
        binomial, found = Decimal(1), Decimal(0)
        for below in range(m):
            i = m - 1 - below
            found += math.comb(m - less + i, i) * binomial * powers[i]
            binomial = binomial * (value + m - 1 - below) / (below + 1)
        return found

    def _tail(self, least: int) -> Decimal:
        """P(|Z| >= least), least >= 1."""
        q, w = self._ratios()
        return 2 * q**least * (1 + w) * self._polynomial(least, 0, w) / self._normaliser(w)

    def _summed(self, times: int) -> Decimal:
        """P(|Z| >= s), summed over s >= 1 so many times: E|Z|, E[|Z| (|Z| + 1) / 2]."""
        m, (_, w) = self.bins - 1, self._ratios()
        terms = (math.comb(m, i + 1) * math.comb(m + times + i, i) * power for i, power in enumerate(_powers(w, m)))
        return 2 * w * (1 + w) ** times * sum(terms, Decimal(0)) / self._normaliser(w)


def _powers(base: Decimal, count: int) -> list[Decimal]:
    """The first powers, from the 0th on, which is 1 for 0 as well."""
    powers = [Decimal(1)]
    while len(powers) < count:
        powers.append(powers[-1] * base)
    return powers
