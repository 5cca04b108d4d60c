"""Cells: which reading counts, decided by numbers that do not depend on the order of arrival.

A cell is (series, slot). A reading is packed into one non-negative integer, its offset inside the slot above its
state, and the cell keeps the largest: the latest reading of the slot counts, ties go to the higher state, duplicates
change nothing. Maximum is commutative, associative and idempotent, so no retry, reordering or replay of a runner can
change a histogram.

>>> cells = Cells.empty(rows=1, width=2)
>>> cells.put(np.array([0, 0, 0]), pack(np.array([5, 9, 9]), np.array([3, 1, 2]), bits=2))
>>> (cells.packed & 3).tolist()
[[2, 3]]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Narrow = npt.NDArray[np.signedinteger[Any]]

_KINDS = (np.int8, np.int16, np.int32, np.int64)

#: A cell without a reading.
ABSENT = -1


def state_bits(states: int) -> int:
    """How many low bits of a packed reading hold its state."""
    return max(1, (states - 1).bit_length())


def pack(offsets: Ints, states: Ints, bits: int) -> Ints:
    """Pack offsets inside the slot (microseconds) and states into one integer each."""
    return (offsets << bits) | states


def narrowed(packed: Ints) -> Narrow:
    """The same packed readings in the narrowest signed type that holds them: what a runner moves and keeps is bytes.

    Meters that read on the slot's start have no offset, so one byte a cell is usual.
    """
    highest = int(packed.max(initial=ABSENT))
    return packed.astype(next(kind for kind in _KINDS if highest <= np.iinfo(kind).max))


@dataclass(slots=True)
class Cells:
    """The cells of some series in some adjacent slots; it belongs to one worker and is changed in place.

    Attributes:
        packed: the largest packed reading of every cell, ``ABSENT`` where there is none, shape (series, slots).
        readings: how many readings went in.
        owned: whether ``packed`` is nobody else's, and int64; if not it is copied before the first change.
    """

    packed: Narrow
    readings: int = 0
    owned: bool = True

    @classmethod
    def empty(cls, rows: int, width: int) -> Cells:
        """Cells without readings."""
        return cls(np.full((rows, width), ABSENT, dtype=np.int64))

    def put(self, index: Narrow, packed: Narrow) -> None:
        """Take readings in.

        Args:
            index: row * width + column of each reading's cell, shape (n,).
            packed: the packed readings, shape (n,).
        """
        if not self.owned:
            self.packed, self.owned = self.packed.astype(np.int64), True
        flat = self.packed.reshape(-1)
        self.readings += len(index)
        higher = packed > flat[index]
        while higher.any():
            if not higher.all():
                index, packed = index[higher], packed[higher]
            # of several readings of one cell numpy keeps any one; the others come round again if they are larger
            flat[index] = packed
            higher = packed > flat[index]

    def merge(self, other: Cells) -> None:
        """Take the readings of other cells of the same shape in."""
        if self.owned:
            np.maximum(self.packed, other.packed, out=self.packed)
        else:
            self.packed, self.owned = np.maximum(self.packed, other.packed, dtype=np.int64), True
        self.readings += other.readings

    def shared(self) -> Cells:
        """The same cells, to be copied before they are changed."""
        return Cells(self.packed, self.readings, owned=False)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which cells have a reading, shape (series, slots)."""
        return self.packed != ABSENT

    def histograms(self, bins: int, bits: int, classes: Narrow | None = None, number: int = 1) -> Ints:
        """How many cells of each series are in each bin of each class of slots.

        Args:
            bins: number of bins.
            bits: low bits of a packed reading that hold its state.
            classes: class of each slot, shape (slots,); all in the only one if left out.
            number: number of classes.

        Returns:
            Shape (series, number * bins): the bins of the first class, then those of the second one, and so on.
        """
        rows = len(self.packed)
        columns = number * bins
        # absent cells go to a column of their own, which is cut off: cheaper than selecting the present ones
        mask = min((1 << bits) - 1, np.iinfo(self.packed.dtype).max)
        states = self.packed & mask
        if classes is not None:
            states = states + classes.astype(np.int64) * bins
        place = np.where(self.packed == ABSENT, np.int64(columns), states)
        place += (np.arange(rows, dtype=np.int64) * (columns + 1))[:, np.newaxis]
        counts = np.bincount(place.reshape(-1), minlength=rows * (columns + 1))
        return counts.reshape(rows, columns + 1)[:, :columns]
