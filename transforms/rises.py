"""Rises: how much a counter rose in a slot, and where it went over its end or began at 0 again.

The value of a slot is the last reading in it less the last one in the slot before; a reading on a boundary belongs to
the slot that ends there. Of two readings with the same stamp the larger rise is taken: the higher one of the slot, the
lower one of the slot before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.slots import SlotGrid
from .arrow_tools import pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LARGEST = float(np.finfo(np.float64).max)


class Ends(NamedTuple):
    """The last readings of some slots and of the slots before them, each of shape (n,).

    Attributes:
        offset: of the last reading, inside the slot.
        high: its value, the highest with that stamp.
        before_offset: of the last reading of the slot before.
        before_low: its value, the lowest with that stamp.
    """

    offset: Ints
    high: Floats
    before_offset: Ints
    before_low: Floats


def slots_of(times: Ints, grid: SlotGrid) -> tuple[Ints, Ints]:
    """The slots that readings of counters belong to, and their offsets inside: one on a boundary is of the earlier.

    Offsets are even, so that half the sum of two of them grows with either: stamps a microsecond apart count as one.
    """
    since = times - 1 - grid.origin_us
    slots = since // grid.interval_us
    return slots, (since - slots * grid.interval_us) // 2 * 2


def last_of_slots(codes: Ints, slots: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    """Of sorted readings, the places of the last of each series and slot, and of the first with the same stamp.

    Args:
        codes: the series of each reading, shape (n,), n > 0.
        slots: its slot.
        offsets: its offset.
    """
    change = (np.diff(codes) != 0) | (np.diff(slots) != 0)
    last = np.append(np.flatnonzero(change), len(codes) - 1)
    stamp = np.concatenate([[True], change | (np.diff(offsets) != 0)])
    return last, np.maximum.accumulate(np.where(stamp, np.arange(len(codes)), 0))[last]


def risen(
    readings: pa.RecordBatch,
    rows: Ints,
    slots: Ints,
    ends: Ends,
    grid: SlotGrid,
    scale: float,
    rollover: float | None,
) -> pa.RecordBatch:
    """The rises of some slots, as readings of the same form.

    The time of a value lies within its slot and rises with the stamps of both readings: of the values of one slot the
    cells keep the one with the latest time, which is the one that knows both of its readings.

    Args:
        readings: the counters.
        rows: the reading that tells each rise, shape (n,).
        slots: the slot of each rise.
        ends: the readings that it is made of.
        grid: the slots.
        scale: factor to the unit of the states' edges.
        rollover: where the counter begins at 0 again; ``None`` if a fall is always a reset.
    """
    with np.errstate(over="ignore"):
        rise = ends.high - ends.before_low
        if (fell := rise < 0).any():
            # a counter that falls far went over its end; one that was replaced or cleared began at 0
            over = rise + (np.nan if rollover is None else rollover)
            far = (over >= 0) & (over <= (0.0 if rollover is None else rollover / 2))
            rise = np.where(fell, np.where(far, over, ends.high), rise)
        # no value is lost for its size
        values = np.clip(rise * scale, -_LARGEST, _LARGEST)
    times = grid.origin_us + slots * grid.interval_us + (ends.offset + ends.before_offset) // 2
    columns = {"time": pa.array(times).view(pa.timestamp("us", tz="UTC")), "value": pa.array(values)}
    taken = pa.array(rows)
    arrays = [columns.get(name, pc.take(readings.column(name), taken)) for name in readings.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=readings.schema)


__all__ = ["Ends", "last_of_slots", "risen", "slots_of"]
