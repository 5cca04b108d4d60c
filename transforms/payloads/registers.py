"""Registers: counters that only rise, and how much they rise in each slot.

The value of a slot is the last reading in it less the last one in the slot before; a reading on a boundary belongs to
the slot that ends there. So that the outcome does not depend on the order in which readings come, each of the two is
the latest by its stamp, and every change of one of them gives the slot's value anew, under a time within the slot that
rises with both stamps: of the values of one slot the cells keep the one with the latest time, which is the one that
knows both readings. A value that is given twice is the same value.

What is remembered reaches back as far as a window waits for late readings. A reader that begins at a position must
read so far back before it (:attr:`..messages.MessageDecoder.lookback_us`); one that does not loses the first slot of
each series, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.slots import SlotGrid
from ..arrow_tools import pc


@dataclass(slots=True)
class _Last:
    """The latest reading of a slot; its lowest and highest value where two have the same stamp."""

    offset: int
    low: float
    high: float

    def take(self, offset: int, low: float, high: float) -> bool:
        """Take a reading in; whether it changes anything."""
        if offset > self.offset:
            self.offset, self.low, self.high = offset, low, high
            return True
        if offset < self.offset or (low >= self.low and high <= self.high):
            return False
        self.low, self.high = min(self.low, low), max(self.high, high)
        return True


@dataclass
class Registers:
    """The registers of the series that one worker reads.

    Attributes:
        grid: the slots.
        scale: factor to the unit of the states' edges.
        rollover: where the counter begins at 0 again; ``None`` if a fall is always a reset.
        keep: slots of a series that are remembered.
    """

    grid: SlotGrid
    scale: float = 1.0
    rollover: float | None = None
    keep: int = 4
    _known: dict[str, dict[int, _Last]] = field(default_factory=dict[str, dict[int, _Last]], repr=False)

    def differences(self, readings: pa.RecordBatch) -> pa.RecordBatch | None:
        """The slots' values that some readings give, as readings of the same form; ``None`` if they give none."""
        names = readings.column("series").dictionary.to_pylist()
        codes = readings.column("series").indices.to_numpy(zero_copy_only=False).astype(np.int64)
        values = readings.column("value").to_numpy(zero_copy_only=False)
        times = readings.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
        # a reading on a boundary tells what the slot before it used
        since = times - 1 - self.grid.origin_us
        slots = since // self.grid.interval_us
        offsets = since - slots * self.grid.interval_us
        order = np.lexsort((values, offsets, slots, codes))
        last = _ends(codes[order], slots[order])
        # within a batch only the latest reading of a series and slot matters, with all that share its stamp
        first = _starts(codes[order], slots[order], offsets[order])[last]
        touched: dict[tuple[str, int], int] = {}
        for row, low in zip(order[last].tolist(), order[first].tolist(), strict=True):
            name, slot = names[codes[row]], int(slots[row])
            if self._take(name, slot, int(offsets[row]), float(values[low]), float(values[row])):
                touched[name, slot] = touched[name, slot + 1] = row
        found = [
            (*self._difference(name, slot), row) for (name, slot), row in touched.items() if self._both(name, slot)
        ]
        for name in {name for name, _ in touched}:
            self._forget(name)
        return _batch(readings, found) if found else None

    def _take(self, name: str, slot: int, offset: int, low: float, high: float) -> bool:
        known = self._known.setdefault(name, {})
        last = known.pop(slot, None)
        changed = last is None or last.take(offset, low, high)
        # the slots stand in the order in which they were last heard of
        known[slot] = _Last(offset, low, high) if last is None else last
        return changed

    def _forget(self, name: str) -> None:
        """Let go of the slots of a series that were not heard of for longest: one far off by a wrong clock is one."""
        known = self._known[name]
        while len(known) > self.keep:
            del known[next(iter(known))]

    def _both(self, name: str, slot: int) -> bool:
        known = self._known[name]
        return slot in known and slot - 1 in known

    def _difference(self, name: str, slot: int) -> tuple[int, float]:
        """The time and value of a slot."""
        last, before = self._known[name][slot], self._known[name][slot - 1]
        rise = last.high - before.low
        if rise < 0:
            over = None if self.rollover is None else rise + self.rollover
            # a counter that falls far went over its end; one that was replaced or cleared began at 0
            rise = over if over is not None and 0 <= over <= self.rollover / 2 else last.high  # type: ignore[operator]
        time = self.grid.origin_us + slot * self.grid.interval_us + (last.offset + before.offset) // 2
        return time, rise * self.scale


def _ends(codes: Any, slots: Any) -> Any:
    """The last place of each run of equal pairs."""
    change = (np.diff(codes) != 0) | (np.diff(slots) != 0)
    return np.append(np.flatnonzero(change), len(codes) - 1)


def _starts(codes: Any, slots: Any, offsets: Any) -> Any:
    """For each place, the first place of its run of equal triples."""
    change = np.concatenate([[True], (np.diff(codes) != 0) | (np.diff(slots) != 0) | (np.diff(offsets) != 0)])
    return np.maximum.accumulate(np.where(change, np.arange(len(codes)), 0))


def _batch(readings: pa.RecordBatch, found: list[tuple[int, float, int]]) -> pa.RecordBatch:
    rows = pa.array([row for _, _, row in found], pa.int64())
    columns = {
        "time": pa.array([time for time, _, _ in found], pa.int64()).view(pa.timestamp("us", tz="UTC")),
        "value": pa.array([value for _, value, _ in found], pa.float64()),
    }
    arrays = [columns.get(name, pc.take(readings.column(name), rows)) for name in readings.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=readings.schema)


__all__ = ["Registers"]
