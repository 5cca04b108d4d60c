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
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..validation import float_above, instance, number, positive, whole
from .sampling import (
    LARGEST_DENOMINATOR,
    Entropy,
    EntropyError,
    Events,
    Integers,
    SystemEntropy,
    bernoulli_exp,
    draw_bits,
    fill,
    geometric,
    uniform_below,
    uniform_subset,
)

LARGEST_SCALE = LARGEST_DENOMINATOR
"""The largest scale, and the largest numerator of one, for int64: |noise| stays below 2^62 (see `DiscreteLaplace`)."""

LARGEST_SCALE_DENOMINATOR = 2**62
"""The largest denominator of a scale; together with the numerator's 36 bits it allows scales down to 2^-26."""

_NUMERATOR_BITS = 36
_SENSITIVITY = "a histogram has 2, a count of one state has 1"
_DIGITS = Context(prec=60, Emin=MIN_EMIN, Emax=MAX_EMAX)  # exp(-1 / scale) of a tiny scale is far below any float
_ACCEPTED = 1 - math.exp(-1)  # of the candidates, where the scale is not small: those of minus zero are few then
_LANES = 2**16  # candidates at once: enough to spread the cost of a numpy call, few enough for the caches
_LARGEST = 2**62  # sums of noise stay below it


def rational_scale(sigma: float, sensitivity: int) -> Fraction:
    """Round the scale `sensitivity * sigma` up to a fraction n / 2^j whose numerator has about 36 bits.

    The product is formed exactly from the float's own value. The result is strictly larger, by a relative 2^-36 to
    2^-34 (1.4e-11 to 5.9e-11): small enough to cost nothing, and larger than the errors of float arithmetic in a
    ledger, so that windows calibrated for epsilon are charged a little less than epsilon and never more.

    Raises:
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
    """The loss per slot `sensitivity / scale` of a release (theory section 1), rounded up to a float."""
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
    """

    scale: Fraction

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def draw(self, shape: int | tuple[int, ...], entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Draw independent noise of the given shape, int64 below 2^62 in size ([CKS20] Algorithm 2).

        Args:
            shape: shape of the result.
            entropy: for tests only; the operating system's entropy where it is left out.
        """
        for size in shape if isinstance(shape, tuple) else (shape,):
            whole("shape", size, "give how many draws", least=0, most=LARGEST_SCALE)
        source = SystemEntropy() if entropy is None else entropy
        noise = np.empty(shape, dtype=np.int64)
        fill(noise.reshape(-1), _ACCEPTED, lambda tried: _attempt(self.scale, tried, source), _LANES)
        return noise

    def pmf(self, value: int) -> float:
        """Return P(Z = value)."""
        value = whole("value", value, "draws lie between these limits", least=-_LARGEST, most=_LARGEST)
        return math.tanh(0.5 / self._real) * math.exp(-abs(value) / self._real)

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
            raise ValueError(f"share is {_shown(share)}, but must be strictly between 0 and 1: give Fraction(1, 20)")
        with localcontext(_DIGITS):
            scale, upper = self._decimal()
            most = Decimal(share.numerator) / Decimal(share.denominator)
            # P(|Z| > h) = 2 P(Z >= 0) exp(-(h + 1)/scale)
            return max(0, math.ceil(scale * (2 * upper / most).ln()) - 1)

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
    """Draw geometric integers below 2^62, P(M = v) = (1 - exp(-1/scale)) exp(-v/scale), v >= 0; shape (count,)."""
    drawn = np.empty(count, dtype=np.int64)
    fill(drawn, _ACCEPTED, lambda tried: _magnitudes(scale, tried, entropy), _LANES)
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


def checked_level(level: float) -> float:
    """A probability as a float; refuse one that is not strictly between 0 and 1, or no number."""
    found = number("level", level, "0.95 is the usual one")
    if not 0 < found < 1:
        raise ValueError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")
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
    """

    scale: Fraction  # as for `DiscreteLaplace`
    bins: int  # number of entries, at least 2; the only vector of one entry is zero

    def __post_init__(self) -> None:
        whole("bins", self.bins, "the count of a single bin is the total, and no noise hides a public total", least=2)
        DiscreteLaplace(self.scale)

    def draw(self, rows: int, entropy: Entropy | None = None) -> Integers:
        """Draw independent vectors.

        Candidates are drawn and accepted by themselves, and what a candidate is drawn from are scale and bins alone:
        no count takes part, so the time of a draw depends on the noise and on nothing secret besides.

        Raises:
            EntropyError: a part of the noise is too large for 64 bits, which has probability below exp(-65535 / bins)
                at the largest scale and depends on no data; nothing has been released then.
        """
        source = SystemEntropy() if entropy is None else entropy
        attempt, share = self._attempt()
        noise = np.empty((rows, self.bins), dtype=np.int64)
        most = max(1, _LANES // self.bins)
        fill(noise, share, lambda tried: attempt(self.scale, self.bins, tried, source), most)
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

    @lru_cache(maxsize=256)  # noqa: B019 - a law is a small value, and equal ones are one
    def _attempt(self) -> tuple[Callable[[Fraction, int, int, Entropy], Integers], float]:
        """How candidates are made, the way of which more are accepted, and that share; public, as the law is.

        Accepted are N ((1-r)/(1+r))^m of `_by_sum` and N (1-q)^m / C(2m, m) of `_by_cuts`.
        """
        m = self.bins - 1
        with localcontext(_DIGITS):
            q, w = self._ratios()
            ratio = (-Decimal(self.scale.denominator) / Decimal(self.scale.numerator)).exp()
            normaliser = self._normaliser(w)
            sums = normaliser * ((1 - ratio) / (1 + ratio)) ** m
            cuts = normaliser * (1 - q) ** m / math.comb(2 * m, m)
        return (_by_cuts, float(cuts)) if cuts >= sums else (_by_sum, float(sums))


def _powers(base: Decimal, count: int) -> list[Decimal]:
    """The first powers, from the 0th on, which is 1 for 0 as well."""
    powers = [Decimal(1)]
    while len(powers) < count:
        powers.append(powers[-1] * base)
    return powers


def _by_sum(scale: Fraction, bins: int, count: int, entropy: Entropy) -> Integers:
    """Candidates by the definition: all bins but one have plain noise, the last takes their sum back.

    The last bin's factor exp(-|sum| / scale) is the probability of acceptance. Of many candidates of wide noise few are
    accepted, one over sqrt(pi bins) or so.
    """
    t, s = scale.numerator, scale.denominator
    noise = DiscreteLaplace(scale).draw((count, bins - 1), entropy)
    _check_sums(np.abs(noise), (bins - 1) * s)
    total = noise.sum(axis=1)
    # exp(-|sum| s / t): as many events of probability 1/e as there are wholes, and one for the rest
    wholes, rest = np.divmod(np.abs(total) * s, t)
    kept = (geometric(count, entropy) >= wholes) & bernoulli_exp(rest, t, entropy)
    return np.column_stack([noise, -total])[kept]


def _by_cuts(scale: Fraction, bins: int, count: int, entropy: Entropy) -> Integers:
    """Candidates by what is taken from some bins and given to others: nearly all are accepted where noise is wide.

    A vector of sum zero takes a number A of cells from its negative bins and gives them to the others, and has
    probability proportional to q^A. Let bins - 1 independent gaps have P(gap = g) proportional to q^g: their sum is A,
    and the bins - 2 places between them cut 0 .. A. Some of these cuts divide A among the bins that are not negative,
    and the others divide it among the negative ones; which do, and which bins are negative, is a uniform choice of
    bins - 1 of 2 bins - 2 things: of the bins those that are not negative, of the cuts those of the negative bins.
    `divided` makes the vector, and accepts of all choices that make one vector exactly one. So every vector has
    probability q^A times the same constant.
    """
    gaps = magnitudes(scale / 2, count * (bins - 1), entropy).reshape(count, bins - 1)
    _check_sums(gaps, bins - 1)
    chosen = uniform_subset(count, bins - 1, 2 * bins - 2, entropy)
    noise, kept = divided(gaps, chosen[:, :bins], chosen[:, bins:])
    return noise[kept]


def divided(gaps: Integers, positive: Events, taking: Events) -> tuple[Integers, Events]:
    """The vector that gaps and choices make, and whether it is the one choice of all that make it.

    That one: of cuts at one place those of the bins that are not negative come first; a negative bin is below zero; and
    of zero itself only the first bin is "not negative".

    Args:
        gaps: distances from 0 to the first cut, from cut to cut and to the end, shape (n, bins - 1).
        positive: which bins are not negative, shape (n, bins).
        taking: which cuts are those of the negative bins, shape (n, bins - 2); bins - 1 are true of these and
            `positive` together.

    Returns:
        Shape (n, bins), each row of sum zero, and shape (n,).
    """
    bins = positive.shape[1]
    places = np.cumsum(gaps, axis=1)
    end, givers = places[:, -1:], positive.sum(axis=1, keepdims=True)
    # both kinds of bins have a cut at the end, so that there are as many cuts of a kind as bins
    cuts = np.concatenate([places[:, :-1], end, end], axis=1)
    negative = np.concatenate([taking, np.zeros_like(end, dtype=np.bool_), np.ones_like(end, dtype=np.bool_)], axis=1)
    sorted_cuts = np.empty_like(cuts)
    np.put_along_axis(sorted_cuts, _ranks(negative, givers), cuts, axis=1)
    parts = np.diff(sorted_cuts, axis=1, prepend=0)
    column = np.arange(bins)
    parts += np.where(column == givers, end, 0)  # the first negative bin is cut off from 0, not from the end
    taken = column >= givers
    kept = np.where(
        end[:, 0] == 0,
        positive[:, 0] & (givers[:, 0] == 1),
        ~(taken & (parts == 0)).any(axis=1) & ~(taking[:, :-1] & ~taking[:, 1:] & (gaps[:, 1:-1] == 0)).any(axis=1),
    )
    return np.take_along_axis(np.where(taken, -parts, parts), _ranks(~positive, givers), axis=1), kept


def _ranks(second: Events, first: Integers) -> Integers:
    """The place of each column when the columns of the first kind come before those of the second, both in order."""
    return np.where(second, first + np.cumsum(second, axis=1), np.cumsum(~second, axis=1)) - 1


def _check_sums(parts: Integers, terms: int) -> None:
    """Stop where a sum of so many terms, or a product, might not fit."""
    if parts.size and int(parts.max()) > _LARGEST // terms:
        raise EntropyError(
            "noise: a draw is too large for a sum of 64 bits, which happens hardly ever with any data: nothing was "
            "released, run again; if it comes back, check the system's random device or choose a smaller scale"
        )
