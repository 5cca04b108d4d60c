"""Exact draws of geometric and discrete Laplace integers, by inversion of their distribution functions.

A draw reads a uniform number U in [0, 1), bit by bit, and returns the first value x with U < P(X <= x). These
thresholds are irrational; their first bits are whole numbers, found with a bound on the error. As soon as the bits of U
differ from those of every threshold the value is decided; until then more bits are read. So the law is exact: 16 bits
decide nearly always, 64 all but a share of 2^-52, then 128, and so on.

The digits of a geometric number are independent. For P(M = m) = (1 - r) r^m and M = D + b M' with 0 <= D < b,

    P(D = d, M' = m) = (1 - r) r^(d + b m) = [r^d (1 - r) / (1 - r^b)] [(1 - r^b) (r^b)^m]:

D is a geometric number cut off at b, and M' is a geometric number of ratio r^b. The last M' has a scale below 32. Its
table decides the sign as well: Z = M with probability 1 / (1 + r) and Z = -1 - M otherwise is a discrete Laplace
number, because P(Z = -1 - m) = r P(Z = m) for every m >= 0. No table has more than 2,900 thresholds, at any scale.

Bytes are read from the operating system at the moment of use, and nothing here keeps any. A generator that lives in an
object is copied by fork and by pickle, and two workers then draw the same "independent" noise.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import QuiltstreamError

Integers = NDArray[np.int64]
Digits = NDArray[np.int16]

Entropy = Callable[[int], bytes] | None
"""Returns so many independent random bytes. None is the operating system (`os.urandom`), anything else is for tests."""

BLOCK = 2**16
"""Draws at once: enough to spread the cost of a numpy call, few enough for the caches."""

_OPEN = -(2**15)
"""In a table: the first 16 bits do not decide."""


class EntropyError(QuiltstreamError, RuntimeError):
    """The source of random bytes gave fewer than it was asked for, or such as no fair source gives."""


def words(entropy: Entropy, bits: int, count: int) -> NDArray[Any]:
    """Read unsigned integers of 16 or 64 independent random bits.

    Raises:
        EntropyError: the source has no bytes, or not as many. What is drawn of fewer would be the same noise twice.
    """
    size = bits // 8 * count
    try:
        raw = (entropy or os.urandom)(size)
    except (OSError, NotImplementedError) as error:
        raise EntropyError(
            f"the operating system gave no random bytes ({type(error).__name__}); nothing is drawn without them"
        ) from error
    if len(raw) != size:
        raise EntropyError(f"the operating system gave {len(raw)} of {size} random bytes; nothing is drawn of fewer")
    return np.frombuffer(raw, dtype=f"u{bits // 8}")


class Inversion:
    """Exact draws of an integer, given its distribution function."""

    def __init__(self, values: range, near: range, cumulative: Callable[[int, int], Decimal]) -> None:
        """Make the tables.

        Args:
            values: all values but the largest.
            near: those whose thresholds have other first 64 bits than the values outside, and one more at each end.
            cumulative: P(X <= value), for a value and the decimal digits of the current context; irrational.
        """
        self._values, self._cumulative, self._least = values, cumulative, near.start
        self._thresholds = np.array([self.threshold(value, 64) for value in near], dtype=np.uint64)
        cells = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
        below = np.searchsorted(self._thresholds, cells)
        ended = np.searchsorted(self._thresholds, cells | np.uint64(2**48 - 1), side="right")
        self._guide: Digits = np.where(below == ended, below + near.start, _OPEN).astype(np.int16)

    def draw(self, count: int, entropy: Entropy) -> Digits:
        """Draw independent values."""
        first = words(entropy, 16, count)
        drawn = self._guide[first]
        still = np.flatnonzero(drawn == _OPEN)
        if still.size:
            longer = first[still].astype(np.uint64) << np.uint64(48) | words(entropy, 64, still.size) >> np.uint64(16)
            below = np.searchsorted(self._thresholds, longer)
            drawn[still] = below + self._least
            for lane in np.flatnonzero(below != np.searchsorted(self._thresholds, longer, side="right")).tolist():
                drawn[still[lane]] = self._refined(int(longer[lane]), entropy)
        return drawn

    def _refined(self, word: int, entropy: Entropy) -> int:
        """Decide a word of 64 bits that equals the first bits of a threshold, by 64 more at a time."""
        bits = 64
        while True:
            word, bits = word << 64 | int(words(entropy, 64, 1)[0]), bits + 64
            threshold = partial(self.threshold, bits=bits)
            place = bisect_left(self._values, word, key=threshold)
            if place == bisect_right(self._values, word, key=threshold):
                return self._values.start + place
            if bits >= 1024:  # noqa: PLR2004 - so that no number is as rare as 2^-1024
                raise EntropyError(
                    f"entropy: {bits} bits are those of one number, which no fair source gives; nothing was "
                    "released: check the system's random device"
                )

    def threshold(self, value: int, bits: int) -> int:
        """The first bits of P(X <= value): the whole part of 2^bits times it.

        With d digits the distribution functions of this module are off by less than 10^(30 - d): a ratio exp(-x) is off
        by (1 + x) exp(-x) units of the last digit, its power n by n times that, n < 2^16, and 1 - r^b, by which a
        digit's sums are divided, is at least 2^-37 at the largest scale.
        """
        digits = bits // 3 + 60
        while True:
            with localcontext(_context(digits)):
                found, error = self._cumulative(value, digits), Decimal(1).scaleb(30 - digits)
                least, most = (int((found + off) * 2**bits) for off in (-error, error))
            # no distribution function here is ever 0 or 1
            least, most = max(least, 0), min(most, 2**bits - 1)
            if least == most:
                return least
            digits *= 2


@dataclass(frozen=True)
class LaplaceTables:
    """The tables of the digits of discrete Laplace numbers of one scale."""

    top: Inversion  # the first digit, or -1 minus it for a number below 0
    lower: tuple[tuple[int, Inversion], ...]  # bits of the other digits, from the second on

    def magnitudes(self, tops: Digits, entropy: Entropy) -> Integers:
        """Draw the other digits: Z for a number Z of 0 or more, -1 - Z for another; below 2^57.

        Both have the geometric law whatever the sign is.
        """
        found = (tops ^ (tops >> 15)).astype(np.int64)
        for bits, digit in self.lower:
            found <<= bits
            found += digit.draw(found.size, entropy).reshape(found.shape)
        return found


@lru_cache(maxsize=16)
def laplace_tables(scale: Fraction) -> LaplaceTables:
    """The tables of a scale, of which the first digit has a scale of 16 to 32, or a smaller one where it is alone."""
    rate, low = 1 / scale, max(0, math.floor(scale).bit_length() - 5)
    lower: list[tuple[int, Inversion]] = []
    for done in range(0, low, 10):  # 10 bits of all digits but the last
        bits = min(10, low - done)
        values = range(2**bits - 1)
        lower.append((bits, Inversion(values, values, partial(_below, rate * 2**done, 2**bits))))
    near, far = (math.ceil(scales * scale / 2**low) + 1 for scales in (45, 711))  # exp(-45) < 2^-64, exp(-711) 2^-1024
    top = Inversion(range(-far, far), range(-near, near), partial(_signed, rate, rate * 2**low))
    return LaplaceTables(top, tuple(reversed(lower)))


def _below(rate: Fraction, end: int, value: int, digits: int) -> Decimal:
    """P(D <= value) of a geometric number of ratio exp(-rate) that is below an end."""
    return (1 - _power(rate, value + 1, digits)) / (1 - _power(rate, end, digits))


def _signed(rate: Fraction, top: Fraction, value: int, digits: int) -> Decimal:
    """P(T <= value) of the first digit with the sign: of ratio exp(-top), where Z has exp(-rate)."""
    ratio = _power(rate, 1, digits)
    if value < 0:
        return ratio / (1 + ratio) * _power(top, -1 - value, digits)
    return 1 - _power(top, value + 1, digits) / (1 + ratio)


def _power(rate: Fraction, exponent: int, digits: int) -> Decimal:
    # the ratio of a tiny scale is 0 here, and 0^0 is an error
    return _ratio(rate, digits) ** exponent if exponent else Decimal(1)


@lru_cache(maxsize=64)
def _ratio(rate: Fraction, digits: int) -> Decimal:
    with localcontext(_context(digits)):
        return (-Decimal(rate.numerator) / Decimal(rate.denominator)).exp()


def _context(digits: int) -> Context:
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)
