"""Exact random events on integers, from the operating system's random bits.

Every function draws one independent event per array element (a lane) and has exactly the stated probability: integers
only, comparison and rejection instead of rounding, no remainder of a division by a bound that does not divide.
The method is that of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Algorithms 1
and 2. Two things differ from the text without changing any probability, to spend fewer bits:

* An event of probability p/q is decided by comparing a uniform number with the base-256 expansion of p/q, digit by
  digit, until a digit differs. 255 of 256 lanes need one byte.
* An event of probability p/(q k) is the conjunction of two independent events of probabilities 1/k and p/q, so no
  product of large numbers is ever formed.

The tests enumerate the bits behind each of these functions, at array size 1, and compare the exact laws.

Random bits are read from the operating system at the moment of use, and nothing here keeps state. A generator that
lives in an object is copied by fork and by pickle, and two workers then draw the same "independent" noise; bits that
are read from the system at each call cannot be shared by accident.

>>> bool(SystemEntropy().bits(3, 4).max() < 8)
True
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import QuiltstreamError

WIDEST = 64
"""The largest number of bits in one value of a bit source."""


class EntropyError(QuiltstreamError, RuntimeError):
    """The bit source cannot be a fair one: it gave fewer values than it was asked for, or a run of no likely length."""


class Entropy(Protocol):
    """A source of independent uniform integers of a given number of bits.

    The library uses `SystemEntropy` wherever none is passed; another source is for tests that enumerate its bits.
    """

    def bits(self, width: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return `count` independent integers, each uniform on 0 .. 2^width - 1, as unsigned ones; width is 1 to 64."""
        ...


@dataclass(frozen=True)
class SystemEntropy:
    """The operating system's generator (`os.urandom`), without a buffer and without a state of its own."""

    def bits(self, width: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
        """Read whole bytes from the system and keep the top `width` bits of each value; see `Entropy.bits`."""
        if not 1 <= width <= WIDEST:
            raise ValueError(f"width: {width} is outside 1 to {WIDEST}: draw wide values in parts")
        size = next(size for size in (1, 2, 4, 8) if 8 * size >= width)
        try:
            raw = os.urandom(size * count)
        except (OSError, NotImplementedError) as error:
            raise EntropyError(
                f"the operating system gave no random bytes ({type(error).__name__}); nothing is drawn without them"
            ) from error
        if len(raw) != size * count:
            raise EntropyError(
                f"the operating system gave {len(raw)} of {size * count} random bytes; nothing is drawn of fewer"
            )
        drawn: NDArray[np.unsignedinteger[Any]] = np.frombuffer(raw, dtype=f"u{size}")
        return drawn if width == 8 * size else np.right_shift(drawn, 8 * size - width, dtype=drawn.dtype)


def draw_bits(entropy: Entropy, width: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return what a source gives, if it is as much as was asked for: one value for many lanes would be the same noise.

    Raises:
        EntropyError: the source gave another number of values.
    """
    drawn = entropy.bits(width, count)
    if drawn.shape != (count,):
        raise EntropyError(f"the bit source gave values of shape {drawn.shape} and was asked for ({count},)")
    return drawn


DIGIT = 8
"""Bits of one digit in the comparison of a uniform number with a fraction."""

LARGEST_DENOMINATOR = 2**46
"""Bound of every denominator here: a numerator shifted by a digit, or multiplied by one, stays below 2^54."""

GEOMETRIC_END = 2**16
"""`geometric` stops with an error at this value, which it reaches with probability exp(-65536) < 2^-94547."""

_FEW = 64
_KEYS = (16, 32, WIDEST)  # bits of keys; fewer than 2^(bits - 6) of them leave out a row in a hundred or less

Lanes = NDArray[np.intp]
Integers = NDArray[np.int64]
Events = NDArray[np.bool_]


def uniform_below(bound: int, count: int, entropy: Entropy) -> Integers:
    """Draw integers uniform on 0 .. bound - 1, bound up to 2^46, by rejection from the next power of two."""
    values = np.zeros(count, dtype=np.int64)
    if bound > 1:
        share = bound / (1 << (bound - 1).bit_length())
        fill(values, share, lambda tried: _accepted_below(bound, tried, entropy))
    return values


def fill(drawn: Integers, share: float, accepted_of: Callable[[int], Integers], most: float = math.inf) -> None:
    """Fill an array with candidates that are accepted; their law is the same however many are tried at once.

    Each candidate is decided by itself and the first accepted ones are taken. So many are tried that mostly enough are
    accepted, because one round is faster than many small ones; few are tried as they are.

    Args:
        drawn: filled along its first axis.
        share: of the candidates, which is accepted on average.
        accepted_of: tries so many candidates and returns the accepted ones, in order.
        most: candidates at once.
    """
    filled = 0
    while filled < len(drawn):
        wanted = len(drawn) - filled
        tried = wanted if wanted < _FEW else int(wanted / share) + 3 * math.isqrt(wanted)
        accepted = accepted_of(int(min(most, tried)))[:wanted]
        drawn[filled : filled + len(accepted)] = accepted
        filled += len(accepted)


def _accepted_below(bound: int, count: int, entropy: Entropy) -> Integers:
    """Draw `count` candidates of just enough bits and return those below the bound, in order."""
    drawn = draw_bits(entropy, (bound - 1).bit_length(), count).astype(np.int64)
    return drawn[drawn < bound]


def bernoulli(numerators: Integers, denominator: int, entropy: Entropy) -> Events:
    """Draw events of probability numerator/denominator, one per lane.

    A uniform number U in [0, 1) is compared with p/q one digit c at a time. After a digit, 256 p - c q is what is left
    of the comparison: at least q means that U is below p/q whatever follows, at most 0 that it is not, and anything
    between is the numerator that the rest of U is compared with.

    Args:
        numerators: p, shape (lanes,), each 0 <= p <= denominator.
        denominator: q, 1 to 2^46.
        entropy: the bit source.
    """
    q = np.int64(denominator)  # typed, so that the digits are never measured against a narrower type
    rest = (numerators << DIGIT) - np.multiply(draw_bits(entropy, DIGIT, numerators.size), q, dtype=np.int64)
    events = rest >= denominator
    undecided = np.flatnonzero((rest > 0) & (rest < denominator))
    rest = rest[undecided]
    while undecided.size:
        rest = (rest << DIGIT) - np.multiply(draw_bits(entropy, DIGIT, rest.size), q, dtype=np.int64)
        events[undecided] = rest >= denominator
        still = (rest > 0) & (rest < denominator)
        undecided, rest = undecided[still], rest[still]
    return events


def uniform_subset(count: int, size: int, things: int, entropy: Entropy) -> Events:
    """Choose `size` of some things, all choices equally probable: those with the smallest of independent uniform keys.

    Another assignment of the same keys to the things is as probable, makes the other choice, and is accepted by
    `smallest` as well as the first: given acceptance, all choices have the same probability, whatever the keys' width.

    Returns:
        Shape (count, things): which are chosen.
    """
    chosen = np.full((count, things), size == things)
    width = next(width for width in _KEYS if things < 1 << (width - 6))
    filled = 0 if 0 < size < things else count
    while filled < count:
        accepted = smallest(draw_bits(entropy, width, (count - filled) * things).reshape(-1, things), size)
        chosen[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return chosen


def smallest(keys: NDArray[np.unsignedinteger[Any]], size: int) -> Events:
    """Tell where the `size` smallest keys of each row are; rows in which the next one is as small are left out.

    Returns:
        Shape (rows that are accepted, things), in the order of the keys.
    """
    ends = np.partition(keys, (size - 1, size), axis=1)[:, size - 1 : size + 1]
    accepted = ends[:, 0] < ends[:, 1]
    return keys[accepted] <= ends[accepted, :1]


def bernoulli_exp(numerators: Integers, denominator: int, entropy: Entropy) -> Events:
    """Draw events of probability exp(-numerator/denominator), one per lane ([CKS20] Algorithm 1 for gamma <= 1).

    Args:
        numerators: shape (lanes,), each 0 <= numerator <= denominator.
        denominator: 1 to 2^46.
        entropy: the bit source.
    """

    def of_gamma(lanes: Lanes) -> Events:
        return bernoulli(numerators[lanes], denominator, entropy)

    first = np.flatnonzero(bernoulli(numerators, denominator, entropy))
    return _alternating_series(numerators.size, first, of_gamma, entropy)


def bernoulli_exp_minus_one(count: int, entropy: Entropy) -> Events:
    """Draw events of probability exp(-1), shape (count,): `bernoulli_exp` without the trials of probability 1."""

    def certain(lanes: Lanes) -> Events:
        return np.ones(lanes.size, dtype=np.bool_)

    return _alternating_series(count, np.arange(count), certain, entropy)


def _alternating_series(count: int, alive: Lanes, of_gamma: Callable[[Lanes], Events], entropy: Entropy) -> Events:
    """Continue [CKS20] Algorithm 1 behind its first trial.

    Trial K succeeds with probability gamma/K. The event happens where the first failure has an odd K, because
    P(first failure > K) = gamma^K / K! makes that sum the series of exp(-gamma).
    """
    events = np.ones(count, dtype=np.bool_)
    trial = 1
    while alive.size:
        trial += 1
        events[alive] = trial % 2 == 1
        alive = alive[bernoulli(np.ones(alive.size, dtype=np.int64), trial, entropy)]
        alive = alive[of_gamma(alive)]
    return events


def geometric(count: int, entropy: Entropy) -> Integers:
    """Count the events of probability exp(-1) before the first that fails: P(V = v) = exp(-v) (1 - exp(-1)).

    Raises:
        EntropyError: a lane reached `GEOMETRIC_END`, which no fair source does. Whether this is raised does not depend
            on any data, and nothing has been released when it is.
    """
    values = np.zeros(count, dtype=np.int64)
    alive = np.arange(count)
    for value in range(1, GEOMETRIC_END + 1):
        alive = alive[bernoulli_exp_minus_one(alive.size, entropy)]
        if not alive.size:
            return values
        values[alive] = value
    raise EntropyError(
        f"entropy: {GEOMETRIC_END} events of probability exp(-1) in a row, where the limit is {GEOMETRIC_END - 1}: "
        "the bit source is defective; nothing was released, check the system's random device"
    )
