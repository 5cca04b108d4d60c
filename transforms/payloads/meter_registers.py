"""Cumulative meter registers: how much a register increments in each slot.

The value of a slot is the last reading in it less the last one in the slot before; a reading on a boundary belongs to
the slot that ends there. Of two readings with the same stamp the larger increment is taken. So that the outcome does
not depend on the order in which readings come, every change of one of the two gives the slot's value anew, under a time
within the slot that rises with both stamps: the cell keeps the value of the latest two readings.

What is remembered reaches back as far as a window waits for late readings, and a reader that begins at an offset must
read so far back before it (:attr:`.messages.MessageDecoder.lookback_us`); one that does not loses the first slot of
each series. A series that is forgotten for another loses the difference of the slot in which it is heard of again, and
the message for which it was forgotten is a reject.

Of what was forgotten the stamp of the latest reading is remembered. A series that is heard of for the first time, or
again, behind that may have had later readings in its slots than those that come now: with a late one in the place of
the last of its slot, an increment would be counted twice. So a reading with a stamp before that one is compared with
nothing, unless it is as many slots behind the series' first reading as are remembered: a clock far ahead stops no
series for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...schemas.slots import SlotGrid
from ..common.batches import Floats, Ints, pc
from .messages import Bounded

_LARGEST = float(np.finfo(np.float64).max)

#: Decimal digits that every number of 64 bits holds.
_DIGITS = 15


class Ends(NamedTuple):
    """The last readings of some slots and of the slots before them, each of shape (n,)."""

    offset: Ints  # of the last reading, inside the slot
    high: Floats  # its value, the highest with that stamp
    before_offset: Ints  # of the last reading of the slot before
    before_low: Floats  # its value, the lowest with that stamp


def slots_of(times: Ints, grid: SlotGrid) -> tuple[Ints, Ints]:
    """The slots that readings of counters belong to, and their offsets inside: one on a boundary is of the earlier.

    Offsets are even, so that half the sum of two of them grows with either: stamps a microsecond apart count as one.
    """
    since = times - 1 - grid.origin_us
    slots = since // grid.interval_us
    return slots, (since - slots * grid.interval_us) // 2 * 2


class LastReadings(NamedTuple):
    """The last readings of each series and slot of a batch, and what they were found by."""

    rows: Ints  # of the highest reading with the latest stamp, in the order of series and slots
    low: Ints  # of the lowest with that stamp
    codes: Ints
    slots: Ints
    offsets: Ints
    values: Floats

    @classmethod
    def of(cls, readings: pa.RecordBatch, grid: SlotGrid) -> LastReadings:
        """Of a batch of readings of counters."""
        codes = readings.column("series").indices.to_numpy(zero_copy_only=False).astype(np.int64)
        values = readings.column("value").to_numpy(zero_copy_only=False)
        times = readings.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
        slots, offsets = slots_of(times, grid)
        order = np.lexsort((values, offsets, slots, codes))
        change = (np.diff(codes[order]) != 0) | (np.diff(slots[order]) != 0)
        last = np.append(np.flatnonzero(change), len(order) - 1)
        stamp = np.concatenate([[True], change | (np.diff(offsets[order]) != 0)])
        first = np.maximum.accumulate(np.where(stamp, np.arange(len(order)), 0))[last]
        return cls(order[last], order[first], codes, slots, offsets, values)


def increments_of(
    readings: pa.RecordBatch, rows: Ints, slots: Ints, ends: Ends, grid: SlotGrid, scale: float, rollover: float | None
) -> pa.RecordBatch:
    """The rises of some slots, as readings of the same form.

    The time of a value lies within its slot and rises with the stamps of both readings: of the values of one slot the
    cells keep the one with the latest time, which is that of the latest readings.
    """
    with np.errstate(over="ignore"):
        rise = ends.high - ends.before_low
        if (fell := rise < 0).any():
            # a counter that falls far went over its end; one that was replaced or cleared began at 0
            over = rise + (np.nan if rollover is None else rollover)
            far = (over >= 0) & (over <= (0.0 if rollover is None else rollover / 2))
            rise = np.where(fell, np.where(far, over, ends.high), rise)
        rise = _as_decimals(rise, np.maximum(np.abs(ends.high), np.abs(ends.before_low)))
        # no value is lost for its size
        values = np.clip(rise * scale, -_LARGEST, _LARGEST)
    times = grid.origin_us + slots * grid.interval_us + (ends.offset + ends.before_offset) // 2
    columns = {"time": pa.array(times).view(pa.timestamp("us", tz="UTC")), "value": pa.array(values)}
    taken = pa.array(rows)
    arrays = [columns.get(name, pc.take(readings.column(name), taken)) for name in readings.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=readings.schema)


def _as_decimals(rise: Floats, register: Floats) -> Floats:
    """Differences of decimals as decimals: 523.397 less 523.377 is a little less than 0.02, which may be an edge.

    No digit of the difference behind the last that a register holds says anything.
    """
    # what has no decimals left is whole, and as exact as the register
    shift = np.maximum(10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.maximum(register, 1.0)))), 1.0)
    return np.rint(rise * shift) / shift


#: Series whose registers are remembered, where no setting says how many.
MOST_SERIES = 200_000

#: Before every reading.
_NEVER = -(1 << 63)


@dataclass(slots=True)
class _Last:
    """The latest reading of a slot; its lowest and highest value where two have the same stamp."""

    offset: int
    low: float
    high: float

    def take(self, offset: int, low: float, high: float) -> bool:
        if offset > self.offset:
            self.offset, self.low, self.high = offset, low, high
            return True
        if offset < self.offset or (low >= self.low and high <= self.high):
            return False
        self.low, self.high = min(self.low, low), max(self.high, high)
        return True


class _Slots(dict[int, _Last]):
    """The slots of a series, in the order in which they were last heard of.

    Attributes:
        doubt: readings before it may have been forgotten, in microseconds since the first slot.
    """

    __slots__ = ("doubt",)

    def __init__(self, doubt: int) -> None:
        super().__init__()
        self.doubt = doubt


class Increments(NamedTuple):
    """What some readings of registers gave."""

    readings: pa.RecordBatch | None
    crowding: Ints  # numbers of the readings for whose series others were forgotten, shape (n,)


@dataclass
class Registers:
    """The registers of the series that one reader reads."""

    grid: SlotGrid
    scale: float = 1.0
    rollover: float | None = None  # where the counter begins at 0 again; ``None`` if a fall is always a reset
    keep: int = 4
    most: int = MOST_SERIES
    _known: Bounded[str, _Slots] = field(init=False, repr=False)
    #: Of the latest reading that was forgotten, in microseconds since the first slot.
    _forgotten: int = field(default=_NEVER, init=False, repr=False)

    def __post_init__(self) -> None:
        self._known = Bounded(self.most, forgotten=self._forget)

    def differences(self, readings: pa.RecordBatch) -> Increments:
        """The slots' values that some readings give."""
        names = readings.column("series").dictionary.to_pylist()
        rows, lows, codes, slots, offsets, values = LastReadings.of(readings, self.grid)
        touched: dict[tuple[str, int], int] = {}
        # of the series of this batch, also of one that is forgotten for another of it
        here = [names[code] for code in np.unique(codes)]
        met = {name: known for name in here if (known := self._known.get(name)) is not None}
        forgotten = self._forgotten
        crowding: list[int] = []
        for row, low in zip(rows.tolist(), lows.tolist(), strict=True):
            name, slot = names[codes[row]], int(slots[row])
            known = met.get(name)
            if known is None:
                # as far as slots are remembered: a clock far ahead must stop no series for good
                reach = self._since(slot + self.keep, int(offsets[row]))
                known = met[name] = _Slots(min(forgotten, reach))
            if _take(known, slot, int(offsets[row]), float(values[low]), float(values[row])):
                touched[name, slot] = touched[name, slot + 1] = row
            # a series with readings in two slots is no random name
            if self._known.keep(name, known, proved=len(known) > 1):
                crowding.append(row)
        found = [
            (row, slot, known[slot], known[slot - 1])
            for (name, slot), row in touched.items()
            if slot in (known := met[name])
            and slot - 1 in known
            and self._since(slot - 1, known[slot - 1].offset) >= known.doubt
        ]
        for known in met.values():
            # the slots that were not heard of for longest: one far off by a wrong clock is one
            while len(known) > self.keep:
                del known[next(iter(known))]
        given = self._given(readings, found) if found else None
        return Increments(given, np.array(crowding, dtype=np.int64))

    def _forget(self, known: _Slots) -> None:
        latest = max(self._since(slot, last.offset) for slot, last in known.items())
        self._forgotten = max(self._forgotten, latest)

    def _since(self, slot: int, offset: int) -> int:
        return slot * self.grid.interval_us + offset

    def _given(self, readings: pa.RecordBatch, found: list[tuple[int, int, _Last, _Last]]) -> pa.RecordBatch:
        whole = [(row, slot, one.offset, before.offset) for row, slot, one, before in found]
        rows, slots, offset, before_offset = np.array(whole, dtype=np.int64).T
        high, low = np.array([(one.high, before.low) for _, _, one, before in found]).T
        ends = Ends(offset, high, before_offset, low)
        return increments_of(readings, rows, slots, ends, self.grid, self.scale, self.rollover)


def _take(known: _Slots, slot: int, offset: int, low: float, high: float) -> bool:
    last = known.pop(slot, None)
    changed = last is None or last.take(offset, low, high)
    # the slots stand in the order in which they were last heard of
    known[slot] = _Last(offset, low, high) if last is None else last
    return changed
