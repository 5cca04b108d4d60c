"""Readings in files that need all rows of a series: increments of meter registers, and slots of intervals.

Files are read side by side, so no worker sees the rows of a series one after another. They are brought together first,
by shards of the series.

*Registers.* Each batch is cut down to the last reading of every series and slot, and these are compared. Of a slot
there is one value, the one that a live job ends with.

*Intervals* are labels that hold from one instant to another. A slot has the label that covers most of it, of several
that cover it equally long the one that begins earlier in it, of these the one whose state comes first. What the
intervals leave uncovered is compared with nothing: a slot of which a label covers a second, and nothing the rest, has
that label. Intervals of one label that overlap count once, so neither the order of the rows nor a row that stands twice
changes anything. The slots of an interval depend on its ends alone, and a slot has one label at most: a reading per
cell comes out, as of any other source. An interval that fills several slots is an event of so many: the promise is
about one slot, and an event costs what the account says of its slots together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam import typehints
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.settings.mappings import Readings
from ...schemas.settings.places import Place, Register, RegisterValue
from ...schemas.slots import Schedule, SlotGrid
from ..common.batches import pc
from ..formats.rows import UNTIL, earliest_of

#: Shards into which the series are cut; one worker holds what is needed of a shard at a time.
_SHARDS = 256

_SHARE = typehints.Tuple[int, Any]


def registers_as_values(readings: Readings) -> Readings:
    """How the counters themselves are read, as plain values; the same readings where there are none."""
    if not isinstance(readings.value, RegisterValue):
        return readings
    register = readings.value.register_
    place = Place(path=register.path) if register.path is not None else str(register.column or register.name)
    return readings.model_copy(update={"value": place, "scale": 1.0})


class RegisterIncrements(beam.PTransform[Any, Any]):
    """Batches of readings of counters to batches of their rises."""

    def __init__(self, register: Register, scale: float, grid: SlotGrid) -> None:
        super().__init__()
        self._compare = CompareRegisters(grid, scale, register.rollover)
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
    """A batch to the last readings of its series in each slot, by shard; two where two have the same stamp."""

    def __init__(self, grid: SlotGrid) -> None:
        self._grid = grid

    def process(self, readings: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Cut a batch down, and into shards."""
        from ..payloads.meter_registers import LastReadings  # noqa: PLC0415 - a job without counters imports no payloads

        last = LastReadings.of(readings, self._grid)
        yield from _by_shard(readings, np.unique(np.concatenate([last.rows, last.low])))


class CompareRegisters(beam.DoFn):
    """The last readings of some series to their rises."""

    def __init__(self, grid: SlotGrid, scale: float, rollover: float | None) -> None:
        self._grid = grid
        self._scale = scale
        self._rollover = rollover

    def process(self, share: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[Any]:
        """Compare the readings of each slot with those of the slot before."""
        from ..payloads.meter_registers import Ends, LastReadings, increments_of  # noqa: PLC0415 - a job without counters imports no payloads

        _, batches = share
        readings = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
        rows, low, codes, slots, offsets, values = LastReadings.of(readings, self._grid)
        follows = (codes[rows][1:] == codes[rows][:-1]) & (slots[rows][1:] == slots[rows][:-1] + 1)
        before = np.flatnonzero(follows)
        if not len(before):
            return
        at = rows[before + 1]
        ends = Ends(offsets[at], values[at], offsets[rows[before]], values[low[before]])
        found = increments_of(readings, at, slots[at], ends, self._grid, self._scale, self._rollover)
        yield TimestampedValue(found, Timestamp(micros=earliest_of(found)))


def _by_shard(readings: pa.RecordBatch, rows: Ints) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Some rows of a batch by the shard of their series, each with only the names that it has."""
    names = readings.column("series").dictionary.to_pylist()
    shard_of = np.array([zlib.crc32(name.encode()) % _SHARDS for name in names], dtype=np.int64)
    shards = shard_of[readings.column("series").indices.to_numpy(zero_copy_only=False)[rows]]
    for shard in np.unique(shards).tolist():
        chosen = pc.take(readings, pa.array(rows[shards == shard]))
        columns = [
            column.cast(pa.utf8()).dictionary_encode() if pa.types.is_dictionary(column.type) else column
            for column in chosen.columns
        ]
        yield shard, pa.RecordBatch.from_arrays(columns, schema=chosen.schema)


Ints = npt.NDArray[np.int64]

#: Slots of intervals that a worker holds at a time, about 100 bytes each: a single interval may have millions.
_SLOTS = 1 << 18


class SlotsOfIntervals(beam.PTransform[Any, Any]):
    """Batches of readings with the end of each to batches with one reading a slot."""

    def __init__(self, grid: SlotGrid, schedule: Schedule | None = None) -> None:
        super().__init__()
        self._grid, self._schedule = grid, schedule

    def of(self, readings: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The slots of all intervals of some series, without Beam."""
        given = list(readings)
        return slots_of_intervals(given, self._grid, self._schedule) if given else iter(())

    def expand(self, input_or_inputs: Any) -> Any:
        """Bring the intervals of each series together, and find the label of each slot."""
        return (
            input_or_inputs
            | "By series" >> beam.ParDo(_Split()).with_output_types(_SHARE)
            | "Series together" >> beam.GroupByKey()
            | "Slots" >> beam.ParDo(_Fill(self._grid, self._schedule)).with_output_types(pa.RecordBatch)
        )


class _Split(beam.DoFn):
    def process(self, readings: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from _by_shard(readings, np.arange(readings.num_rows))


class _Fill(beam.DoFn):
    def __init__(self, grid: SlotGrid, schedule: Schedule | None) -> None:
        self._grid, self._schedule = grid, schedule

    def process(self, share: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[Any]:
        for found in slots_of_intervals(list(share[1]), self._grid, self._schedule):
            yield TimestampedValue(found, Timestamp(micros=earliest_of(found)))


def slots_of_intervals(
    batches: list[pa.RecordBatch], grid: SlotGrid, schedule: Schedule | None = None, most: int = _SLOTS
) -> Iterator[pa.RecordBatch]:
    """The label of each slot that an interval covers.

    Outside the schedule there is only the first slot of an interval: the series is seen, and its earliest reading, by
    whose group it goes, is the same as without a schedule.

    Args:
        batches: all intervals of some series: rows of ``READING_SCHEMA`` or ``GROUPED_READING_SCHEMA`` with their ends.
        grid: the slots.
        schedule: the windows for which the slots are needed; ``None`` for all slots.
        most: slots of intervals that are held at a time, about.

    Yields:
        The same without ends: a row for each series and slot, at the beginning of the slot.
    """
    given = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
    codes = given.column("series").indices.to_numpy(zero_copy_only=False).astype(np.int64)
    states = given.column("value").to_numpy(zero_copy_only=False)
    start, until = (_micros(given.column(name)) for name in ("time", UNTIL.name))
    rows, start, until = _united(codes, states, start, until)
    codes, states = codes[rows], states[rows]
    schema = given.schema.remove(given.schema.get_field_index(UNTIL.name))
    for of, slots in _pieces(codes, *_scheduled(grid.slots_of(start), grid.slots_of(until - 1), schedule), most):
        begins = np.maximum(start[of], grid.time_of(slots))
        covers = np.minimum(until[of], grid.time_of(slots + 1)) - begins
        # united intervals of one label may leave a gap inside a slot, so its parts of a slot are added up
        order = np.lexsort((begins, states[of], slots, codes[of]))
        of, slots, begins, covers = of[order], slots[order], begins[order], covers[order]  # noqa: PLW2901 - the same rows
        heads = _heads(codes[of], slots, states[of])
        covers, of, slots, begins = np.add.reduceat(covers, heads), of[heads], slots[heads], begins[heads]  # noqa: PLW2901 - as above

        order = np.lexsort((states[of], begins, -covers, slots, codes[of]))
        of, slots = of[order], slots[order]  # noqa: PLW2901 - as above
        best = _heads(codes[of], slots)
        of, slots = of[best], slots[best]  # noqa: PLW2901 - as above
        columns = {name: pc.take(given.column(name), pa.array(rows[of])) for name in schema.names}
        columns["time"] = pa.array(grid.time_of(slots)).view(pa.timestamp("us", tz="UTC"))
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _scheduled(first: Ints, last: Ints, schedule: Schedule | None) -> tuple[Ints, Ints, Ints]:
    """Ranges of slots that are needed: the interval of each, its first slot and its last one."""
    every = np.arange(len(first))
    if schedule is None:
        return every, first, last
    low = first if schedule.start is None else np.maximum(first, schedule.first)
    high = last if schedule.stop is None else np.minimum(last, schedule.stop - 1)
    within, alone = low <= high, (low > first) | (low > high)
    return (
        np.concatenate((every[alone], every[within])),
        np.concatenate((first[alone], low[within])),
        np.concatenate((first[alone], high[within])),
    )


def _pieces(codes: Ints, of: Ints, first: Ints, last: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Ranges of slots as slots, about so many at a time: all ranges of a series that reach a slot have it at once."""
    order = np.lexsort((first, codes[of]))
    of, first, last = of[order], first[order], last[order]
    heads = _heads(codes[of])
    series = np.append(heads, len(of)).tolist()
    total = np.concatenate(([0], np.cumsum(last - first + 1)))
    at = 0
    while at < len(heads):
        # as many whole series as there is room for, or a single one in parts
        stop = max(int(np.searchsorted(total[series], total[series[at]] + most, side="right")) - 1, at + 1)
        here = slice(series[at], series[stop])
        if stop > at + 1 or total[series[stop]] - total[series[at]] <= most:
            yield _expanded(of[here], first[here], last[here])
        else:
            yield from _parts(of[here], first[here], last[here], most)
        at = stop


def _parts(of: Ints, first: Ints, last: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """The ranges of one series, sorted by their first slots, part of the time by part of the time."""
    while len(of):
        # the longest time from the first slot on in which no more slots are reached than there is room for
        begin, length = int(first[0]), most
        while length > 1 and _reached(first, last, begin + length) > most:
            length //= 2
        near = int(np.searchsorted(first, begin + length))
        yield _expanded(of[:near], first[:near], np.minimum(last[:near], begin + length - 1))
        first = np.maximum(first, begin + length)
        left = last >= first
        of, first, last = of[left], first[left], last[left]


def _reached(first: Ints, last: Ints, end: int) -> int:
    """Slots of ranges before ``end``."""
    near = int(np.searchsorted(first, end))
    return int((np.minimum(last[:near], end - 1) - first[:near] + 1).sum())


def _expanded(of: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    lengths = last - first + 1
    return np.repeat(of, lengths), np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def _micros(column: pa.Array) -> Ints:
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _heads(*keys: npt.NDArray[Any]) -> Ints:
    """Where a new combination of keys begins, in rows that are sorted by them."""
    new = np.ones(len(keys[0]), dtype=np.bool_)
    new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.flatnonzero(new)


def _united(codes: Ints, states: npt.NDArray[np.float64], start: Ints, until: Ints) -> tuple[Ints, Ints, Ints]:
    """Intervals of one label of one series that touch or overlap as one: a row of each, its beginning and its end."""
    order = np.lexsort((until, start, states, codes))
    codes, states, start, until = codes[order], states[order], start[order], until[order]
    group = np.zeros(len(order), dtype=np.int64)
    group[_heads(codes, states)] = 1
    group = np.cumsum(group)
    # the latest end so far, by its rank: behind the number of its group it fits 64 bits, and a maximum runs over all
    ends, rank = np.unique(until, return_inverse=True)
    latest = np.maximum.accumulate(group * len(ends) + rank)
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (group[1:] != group[:-1]) | (start[1:] > ends[latest[:-1] - group[:-1] * len(ends)])
    heads = np.flatnonzero(fresh)
    return order[heads], start[heads], np.maximum.reduceat(until, heads)
