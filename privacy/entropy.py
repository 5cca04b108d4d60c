"""Where random bits come from: the operating system, read at the moment of use.

Nothing here keeps state. A generator that lives in an object is copied by fork and by pickle, and two workers then draw
the same "independent" noise; bits that are read from the system at each call cannot be shared by accident.

>>> bool(SystemEntropy().bits(3, 4).max() < 8)
True
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

WIDEST = 64
"""The largest number of bits in one value of a bit source."""


class EntropyError(RuntimeError):
    """The bit source cannot be a fair one: it gave fewer values than it was asked for, or a run of no likely length."""


class Entropy(Protocol):
    """A source of independent uniform integers of a given number of bits.

    The library uses `SystemEntropy` wherever none is passed; another source is for tests that enumerate its bits.
    """

    def bits(self, width: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return `count` independent integers, each uniform on 0 .. 2^width - 1.

        Args:
            width: bits of each value, 1 to 64.
            count: how many values, 0 or more.

        Returns:
            An array of shape (count,) of an unsigned type that holds `width` bits.
        """
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

    Args:
        entropy: the bit source.
        width: bits of each value.
        count: how many values.

    Returns:
        Shape (count,).

    Raises:
        EntropyError: the source gave another number of values.
    """
    drawn = entropy.bits(width, count)
    if drawn.shape != (count,):
        raise EntropyError(f"the bit source gave values of shape {drawn.shape} and was asked for ({count},)")
    return drawn
