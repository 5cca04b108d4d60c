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

#: Cells that are counted at once; each takes some dozen bytes meanwhile.
_AT_ONCE = 1 << 20

#: A cell without a reading.
ABSENT = -1


def state_bits(states: int) -> int:
    """How many low bits of a packed reading hold its state."""
    return max(1, (states - 1).bit_length())


def pack(offsets: Ints, states: Ints, bits: int) -> Ints:
    """Pack offsets inside the slot (microseconds) and states into one integer each."""
    return (offsets << bits) | states


def latest(places: Ints, packed: Ints) -> tuple[Ints, Ints]:
    """The largest packed reading of each place, places rising: what cells keep, of places that may lie far apart."""
    order = np.lexsort((packed, places))
    places, packed = places[order], packed[order]
    last = np.diff(places, append=places[-1:] + 1) > 0
    return places[last], packed[last]


def narrowed(packed: Narrow) -> Narrow:
    """A copy of packed readings in the narrowest signed type that holds them: what is moved and kept is bytes.

    Meters that read on the slot's start have no offset, so one byte a cell is usual.
    """
    highest = int(packed.max(initial=ABSENT))
    return packed.astype(next(kind for kind in _KINDS if highest <= np.iinfo(kind).max))


@dataclass(slots=True)
class Cells:
    """The cells of some series in some adjacent slots; it belongs to one worker and is changed in place."""

    # the largest packed reading of every cell, ``ABSENT`` where there is none, shape (series, slots); of a type as
    # narrow as the readings so far allow
    packed: Narrow
    readings: int = 0  # how many readings went in
    owned: bool = True  # whether no other cells share ``packed``; if they do it is copied before the first change

    @classmethod
    def empty(cls, rows: int, width: int) -> Cells:
        """Cells without readings."""
        return cls(np.full((rows, width), ABSENT, dtype=np.int8))

    def put(self, index: Narrow, packed: Narrow) -> None:
        """Take readings in."""
        self.readings += len(index)
        packed = narrowed(packed)
        kind = np.promote_types(self.packed.dtype, packed.dtype)
        if not self.owned or kind != self.packed.dtype:
            self.packed, self.owned = self.packed.astype(kind), True
        flat = self.packed.reshape(-1)
        higher = packed > flat[index]
        while higher.any():
            if not higher.all():
                index, packed = index[higher], packed[higher]
            # of several readings of one cell numpy keeps any one; the others come round again if they are larger
            flat[index] = packed
            higher = packed > flat[index]

    def merge(self, other: Cells) -> None:
        """Take the readings of other cells of as many slots in; the cells with fewer series lack the last rows."""
        if len(other.packed) != len(self.packed):
            grown = self.taller(len(other.packed))
            self.packed, self.owned, other = grown.packed, grown.owned, other.taller(len(grown.packed))
        if self.owned and np.promote_types(self.packed.dtype, other.packed.dtype) == self.packed.dtype:
            np.maximum(self.packed, other.packed, out=self.packed)
        else:
            self.packed, self.owned = np.maximum(self.packed, other.packed), True
        self.readings += other.readings

    def shared(self) -> Cells:
        """The same cells, to be copied before they are changed."""
        return Cells(self.packed, self.readings, owned=False)

    def taller(self, rows: int) -> Cells:
        """The same cells with rows for the series that joined, at least so many."""
        missing = rows - len(self.packed)
        if missing <= 0:
            return self
        absent = np.full((missing, self.packed.shape[1]), ABSENT, dtype=self.packed.dtype)
        return Cells(np.concatenate([self.packed, absent]), self.readings)

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
        counts = np.zeros((rows, columns), dtype=np.int64)
        some = max(1, _AT_ONCE // max(1, self.packed.shape[1]))
        for first in range(0, rows, some):
            part = self.packed[first : first + some]
            states = part & mask
            if classes is not None:
                states = states + classes.astype(np.int64) * bins
            # cast by hand: numpy 1 takes the type of narrow states for a place that they cannot hold
            place = np.where(part == ABSENT, columns, states.astype(np.int64))
            place += (np.arange(len(part), dtype=np.int64) * (columns + 1))[:, np.newaxis]
            found = np.bincount(place.reshape(-1), minlength=len(part) * (columns + 1))
            counts[first : first + some] = found.reshape(len(part), columns + 1)[:, :columns]
        return counts
