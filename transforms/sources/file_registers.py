"""Counters in files: from the readings of counters that stand in many files, in any order, to their rise in each slot.

Files are read side by side, so no worker sees the readings of a series one after another. Each batch is cut down to the
last reading of every series and slot, the batches of the same series are brought together, and the last readings are
compared. Of a slot there is one value, the one that a live job ends with.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.settings.mappings import Readings
from ...schemas.settings.places import Place, Register, RegisterValue
from ...schemas.slots import SlotGrid
from ..common import batches as coders
from ..common.batches import pc
from ..formats.rows import earliest_of
from ..payloads.meter_registers import Ends, last_of_slots, risen, slots_of

#: Parts into which the series are cut; one worker holds the last readings of a part at a time.
_PARTS = 256

_SHARE = typehints.Tuple[int, Any]


def counters_of(readings: Readings) -> Readings:
    """How the counters themselves are read, as plain values; the same readings where there are none."""
    if not isinstance(readings.value, RegisterValue):
        return readings
    return readings.model_copy(update={"value": _place_of(readings.value.register_), "scale": 1.0})


def _place_of(register: Register) -> str | Place:
    if register.path is not None:
        return Place(path=register.path)
    return str(register.column or register.name)


class RiseOfCounters(beam.PTransform[Any, Any]):
    """Batches of readings of counters to batches of their rises.

    Args:
        register: the counter.
        scale: factor to the unit of the states' edges.
        grid: the slots.
    """

    def __init__(self, register: Register, scale: float, grid: SlotGrid) -> None:
        super().__init__()
        self._compare = CompareCounters(grid, scale, register.rollover)
        self._grid = grid

    def of(self, readings: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rises of all readings of some counters, without Beam."""
        given = list(readings)
        return [one.value for one in self._compare.process((0, given))] if given else []

    def expand(self, input_or_inputs: Any) -> Any:
        """Bring the last readings of each series together and compare them."""
        return (
            input_or_inputs
            | "Last of slots" >> beam.ParDo(LastOfSlots(self._grid)).with_output_types(_SHARE)
            | "Series together" >> beam.GroupByKey()
            | "Compare" >> beam.ParDo(self._compare).with_output_types(pa.RecordBatch)
        )


class LastOfSlots(beam.DoFn):
    """A batch to the last readings of its series in each slot, by part; two where two have the same stamp."""

    def __init__(self, grid: SlotGrid) -> None:
        self._grid = grid

    def process(self, readings: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Cut a batch down, and into parts."""
        names = readings.column("series").dictionary.to_pylist()
        part_of = np.array([zlib.crc32(name.encode()) % _PARTS for name in names], dtype=np.int64)
        rows, low, codes = _lasts(readings, self._grid)[:3]
        rows = np.unique(np.concatenate([rows, low]))
        parts = part_of[codes[rows]]
        for part in np.unique(parts).tolist():
            yield part, _compact(pc.take(readings, pa.array(rows[parts == part])))


class CompareCounters(beam.DoFn):
    """The last readings of some series to their rises."""

    def __init__(self, grid: SlotGrid, scale: float, rollover: float | None) -> None:
        self._grid = grid
        self._scale = scale
        self._rollover = rollover

    def process(self, share: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[Any]:
        """Compare the readings of each slot with those of the slot before."""
        _, batches = share
        readings = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
        rows, low, codes, slots, offsets = _lasts(readings, self._grid)
        values = readings.column("value").to_numpy(zero_copy_only=False)
        follows = (codes[rows][1:] == codes[rows][:-1]) & (slots[rows][1:] == slots[rows][:-1] + 1)
        before = np.flatnonzero(follows)
        if not len(before):
            return
        at = rows[before + 1]
        ends = Ends(offsets[at], values[at], offsets[rows[before]], values[low[before]])
        found = risen(readings, at, slots[at], ends, self._grid, self._scale, self._rollover)
        yield TimestampedValue(found, Timestamp(micros=earliest_of(found)))


def _lasts(readings: pa.RecordBatch, grid: SlotGrid) -> tuple[Any, Any, Any, Any, Any]:
    """The rows of the last readings of each series and slot, in the order of both, and what they were found by.

    Returns:
        The row of the highest reading with the latest stamp, and of the lowest; then of each row of the batch its
        series, slot and offset.
    """
    codes = readings.column("series").indices.to_numpy(zero_copy_only=False).astype(np.int64)
    values = readings.column("value").to_numpy(zero_copy_only=False)
    times = readings.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    slots, offsets = slots_of(times, grid)
    order = np.lexsort((values, offsets, slots, codes))
    last, first = last_of_slots(codes[order], slots[order], offsets[order])
    return order[last], order[first], codes, slots, offsets


def _compact(readings: pa.RecordBatch) -> pa.RecordBatch:
    """The same readings with only the names that they have."""
    columns = [
        column.cast(pa.utf8()).dictionary_encode() if pa.types.is_dictionary(column.type) else column
        for column in readings.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=readings.schema)


__all__ = ["CompareCounters", "LastOfSlots", "RiseOfCounters", "coders", "counters_of"]
