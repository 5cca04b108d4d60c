"""Files read once: how tables of readings and files of messages are checked, cut into parts, and read.

What is to be read is found and checked when the transform is made: patterns, headers and schemas, before any reading.
Past the decoder an element is a batch, never a reading.

Files are read side by side, so no worker sees the rows of a series one after another. Where all rows of a series are
needed, as for slots of intervals, they are brought together by shards of the series.

*Intervals* are labels that hold from one instant to another. A slot has the label that covers most of it, of several
that cover it equally long the one that begins earlier in it, of these the one whose state comes first. What the
intervals leave uncovered is compared with nothing: a slot of which a label covers a second, and nothing the rest, has
that label. Intervals of one label that overlap count once, so neither the order of the rows nor a row that stands twice
changes anything. The slots of an interval depend on its ends alone, and a slot has one label at most: a reading per
cell comes out, as of any other source. An interval that fills several slots is an event of so many: the promise is
about one slot, and an event costs what the account says of its slots together.
"""

from __future__ import annotations

import io
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam import typehints
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.files import keep_memory_private
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileSource, SourceFormat
from ...schemas.settings.readings import Readings
from ...schemas.slots import Schedule, SlotGrid, time_zone
from ..common.batches import DECODED, METRICS, PASSED_OVER, Floats, Ints, counter_name, pc, reject_batch
from ..formats import parquet as parquet_files
from ..formats.columns import Columns, RawRows, check_columns, named_once
from ..formats.csv import check_delimiter
from ..formats.lines import Layout
from ..formats.paths import SourceFileError, expand, stamp_of, unchanged
from ..formats.rows import UNTIL, Labels, RowDecoder, RowReader, earliest_of
from ..readings.slots import Words, slot_readings
from ..readings.tables import columns_of, rows_in, rows_of

if TYPE_CHECKING:
    from ..formats.rows import Decoded
    from ..readings.select import Select


#: Bytes of text that are parsed at a time, for each row of a batch.
_LINE_BYTES = 64

#: Batches that one part of a Parquet file has at least: while one is encoded the next one is read.
_TASK_BATCHES = 8

#: Shards into which the series are cut; one worker holds what is needed of a shard at a time.
_SHARDS = 256

_SHARE = typehints.Tuple[int, Any]

#: Slots of intervals that a worker holds at a time, or those of one series, about 100 bytes each.
_SLOTS = 1 << 18


@dataclass(frozen=True, slots=True)
class FileTask:
    """A part of the source that is read at once."""

    path: str
    groups: tuple[int, int, int] = (
        0,
        0,
        0,
    )  # of Parquet: the first row group, the one behind the last, rows before
    stamp: str | None = None  # what the file was like when it was found; ``None`` if unknown
    size: int | None = None  # bytes of the file then


class HowRead(TypedDict, total=False):
    """How files are read, where it is not as usual."""

    timezone: str
    group: str | None
    batch_rows: int  # readings in a batch, about; for text files so many lines of usual length
    encoding: str
    labels: Labels | None
    words: Words | None


@dataclass(frozen=True)
class FileDecoder:
    """Decodes the files of a source; a plain value that travels to any machine."""

    format: SourceFormat
    delimiter: str
    readings: Readings
    timezone: str = "UTC"
    group: str | None = None
    batch_rows: int = 1 << 17
    encoding: str = "utf-8"
    labels: Labels | None = None
    words: Words | None = None
    skip: int = 0
    names: tuple[str, ...] = ()

    def rows(self) -> RowReader:
        """What turns raw rows into readings."""
        return RowDecoder(self.readings, timezone=self.timezone, group=self.group, labels=self.labels, words=self.words)

    @property
    def in_order(self) -> bool:
        """Whether the rows of a file are read one after the other, and each file by a decoder of its own."""
        return self.readings.ambiguous == "in-order"

    @cached_property
    def select(self) -> Select | None:
        """The SELECT of the settings."""
        if self.readings.select is None:
            return None
        try:
            from ..readings.select import Select  # noqa: PLC0415 - DuckDB, which plain columns do without
        except ModuleNotFoundError:
            raise SettingsError("readings is a SELECT, which DuckDB evaluates: install quiltstream[sql]") from None
        return Select(self.readings.select, self._made.names)

    @cached_property
    def _made(self) -> Columns:
        """The columns of readings, in a file or as the SELECT makes them."""
        return self.rows().columns

    @property
    def _wanted(self) -> Columns | None:
        return self._made if self.readings.select is None else None

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.delimiter, self.encoding, self.skip, self.names, self.batch_rows * _LINE_BYTES)

    def tasks(self, path: str) -> list[FileTask]:
        """Check a file's columns and cut it into parts; a file without rows has none.

        Raises:
            SettingsError: it lacks a column.
            SourceFileError: it cannot be read.
        """
        if self.format == "parquet":
            with parquet_files.opened(path, self._wanted) as file:
                self._check(file.schema_arrow, path)
                rows = file.metadata.num_rows + 1 if self.in_order else _TASK_BATCHES * self.batch_rows
                return [FileTask(path, groups) for groups in parquet_files.row_groups(file, rows)]
        columns = columns_of(path, self.format, self._layout)
        if columns is None:
            return []
        self._check(columns, path)
        return [FileTask(path)]

    def _check(self, columns: pa.Schema, path: str) -> None:
        if self.select is None:
            check_columns(columns, path, self._made)
        else:
            pairs = zip(named_once(columns.names), columns.types, strict=True)
            self.select.check(pa.schema([(name, kind) for name, kind in pairs if kind != pa.struct([])]), path)

    def raw_rows(self, task: FileTask) -> Iterator[RawRows]:
        """Parse a part of the source."""
        groups = task.groups if self.format == "parquet" else None
        rows = rows_of(task.path, self.format, self._layout, self._wanted, self.batch_rows, groups)
        return self._selected(rows, task.path)

    def raw_lines(self, data: bytes, name: str) -> Iterator[RawRows]:
        """Parse whole lines of text, CSV with its header first."""
        layout = replace(self._layout, block_bytes=len(data) + 1)
        return self._selected(rows_in(io.BytesIO(data), name, self.format, layout, self._wanted), name)

    def _selected(self, rows: Iterator[RawRows], path: str) -> Iterator[RawRows]:
        select = self.select
        return rows if select is None else (select.rows(raw, path) for raw in rows)


REJECTED = "rejected"
#: Bytes of a file that a thread is not worth: starting one takes longer than the file, and a source may have 100,000.
_SMALL_BYTES = 1 << 18

#: Items that may lie ready, so that memory stays bounded.
_READY = 2
_Item = TypeVar("_Item")

#: More problems than these are not listed, nor more files of a kind that is left out.
_SHOWN_PROBLEMS = 20
_SHOWN_EMPTY = 3


def _shown_empty(paths: list[str]) -> tuple[str, ...]:
    """What to say of files of 0 bytes: a line, or none."""
    more = " and others" if len(paths) > _SHOWN_EMPTY else ""
    one = "1 empty file" if len(paths) == 1 else f"{len(paths):,} empty files"
    return (f"{one}: {', '.join(paths[:_SHOWN_EMPTY])}{more}",) if paths else ()


class DecodedReadings(NamedTuple):
    """What comes out of :class:`ReadReadings`."""

    readings: Any
    rejected: Any


class ReadReadings(beam.PTransform[Any, Any]):
    """Read the files of a source as record batches of readings.

    Args:
        source: format and paths or patterns.
        readings: the columns and how to read them.
        resolve: makes a path of the settings absolute.
        grid: the slots; needed where readings are intervals.
        schedule: the windows that the readings are for, as far as they are known: what intervals cover beyond them is
            left out but for their first slots.
        how: the zone, the group, and how much at a time.

    Raises:
        SettingsError: a pattern names no file, a file lacks a column or cannot be read; one line for every mistake.
        SourceFileError: a folder that may hold some of the files cannot be listed.
    """

    def __init__(
        self,
        source: FileSource,
        readings: Readings,
        *,
        resolve: Callable[[str], str] = str,
        grid: SlotGrid | None = None,
        schedule: Schedule | None = None,
        **how: Unpack[HowRead],
    ) -> None:
        super().__init__()
        time_zone(how.get("timezone", "UTC"))
        if (batch_rows := how.get("batch_rows", 1)) < 1:
            raise ValueError(f"batch_rows {batch_rows} must be at least 1; leave it out for the usual size")
        #: what needs all rows of a series: the slots of intervals; ``None`` for others
        self.by_series: SlotsOfIntervals | None = None
        if readings.until is not None:
            if grid is None:
                raise SettingsError("readings.until: an interval needs the slots of the settings")
            self.by_series = SlotsOfIntervals(grid, schedule)
        #: what decodes a part
        self.decoder = decoder_of(source, readings, **how)
        #: the parts that are read, each at once
        self.tasks: list[FileTask] = []
        problems: list[str] = []
        self._empty: list[str] = []
        for path in expand(source.patterns, resolve, source.setting):
            tasks, wrong = self._plan(path)
            self.tasks += tasks
            problems += wrong
        #: what matches the patterns and holds nothing, in a line
        self.left_out: tuple[str, ...] = _shown_empty(self._empty)
        if (more := len(problems) - _SHOWN_PROBLEMS) > 0:
            problems[_SHOWN_PROBLEMS:] = [f"and {more} more problems of this kind"]
        if problems:
            raise SettingsError(problems)

    def _plan(self, path: str) -> tuple[list[FileTask], tuple[str, ...]]:
        try:
            # before anything of it is read: what changes from then on is noticed
            stamp = stamp_of(path)
            tasks = self.decoder.tasks(path)
            if stamp is None:
                return tasks, ()
            self._empty += [path] if not stamp.size else []
            return [replace(task, stamp=stamp.text, size=stamp.size) for task in tasks], ()
        except SettingsError as error:
            return [], error.problems
        except SourceFileError as error:
            return [], (f"source.{self.decoder.format}: {error}",)

    def decoded(self) -> Iterator[tuple[str, Decoded]]:
        """Decode every part here and now, without Beam, as the pipeline does; intervals as they are.

        Raises:
            SourceFileError: a file is damaged, or changed since it was found.
        """
        rows = self.decoder.rows()
        for task in self.tasks:
            rows = self.decoder.rows() if self.decoder.in_order else rows
            with unchanged(task.path, task.stamp):
                for raw in self.decoder.raw_rows(task):
                    yield task.path, rows.decode(raw)

    def expand(self, input_or_inputs: PBegin) -> DecodedReadings:
        """Read every part; the parts are spread over the workers."""
        decoded: Any = (
            input_or_inputs
            | "Files" >> beam.Create(self.tasks)
            | "Decode" >> beam.ParDo(DecodeFiles(self.decoder)).with_outputs(REJECTED, main="readings")
        )
        for output in (decoded.readings, decoded[REJECTED]):
            output.element_type = pa.RecordBatch
        readings = decoded.readings
        if self.by_series is not None:
            readings = readings | "Slots" >> self.by_series
            readings.element_type = pa.RecordBatch
        return DecodedReadings(readings, decoded[REJECTED])


def read_ahead(source: Iterator[_Item]) -> Iterator[_Item]:
    """The items of an iterator, of which a thread takes the next ones while the caller works on one."""
    end = object()
    ready: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="quiltstream-read") as pool:
        try:
            while True:
                while len(ready) <= _READY:
                    ready.append(pool.submit(next, source, end))
                item = ready.popleft().result()
                if item is end:
                    return
                yield item
        finally:
            for one in ready:
                one.cancel()


class DecodeFiles(beam.DoFn):
    """``FileTask`` to batches of readings; batches of rejects go to the output ``rejected``."""

    def __init__(self, decoder: FileDecoder) -> None:
        self._decoder = decoder

    def setup(self) -> None:
        """Make what belongs to the worker."""
        keep_memory_private()
        self._rows = self._decoder.rows()
        self._decoded = Metrics.counter(METRICS, DECODED)
        self._rejected = {reason: Metrics.counter(METRICS, counter_name(reason)) for reason in RejectReason}

    def process(self, task: FileTask) -> Iterator[Any]:
        """Decode one part.

        Raises:
            SourceFileError: the file is damaged, so that readings behind the damage are lost; or it changed since it
                was found, and what was read of it is of none of its states.
        """
        with unchanged(task.path, task.stamp):
            yield from self._decode(task)

    def _decode(self, task: FileTask) -> Iterator[Any]:
        if self._decoder.in_order:
            self._rows = self._decoder.rows()
        batches = map(self._rows.decode, self._decoder.raw_rows(task))
        is_small = task.size is not None and task.size <= _SMALL_BYTES
        for decoded in batches if is_small else read_ahead(batches):
            if decoded.rejects:
                for one in decoded.rejects:
                    self._rejected[one.reason].inc(len(one.positions))
                yield TaggedOutput(REJECTED, reject_batch(task.path, decoded.rejects))
            if decoded.passed:
                Metrics.counter(METRICS, PASSED_OVER).inc(decoded.passed)
            if decoded.readings is not None:
                self._decoded.inc(decoded.readings.num_rows)
                yield TimestampedValue(decoded.readings, Timestamp(micros=decoded.earliest_us))


def decoder_of(source: FileSource, readings: Readings, **how: Unpack[HowRead]) -> FileDecoder:
    """The decoder of the files of a source."""
    check_delimiter(source.delimiter)
    how = {"encoding": source.encoding, **how}
    of_messages = are_messages(source.format, readings)
    labels = how.get("labels")
    if readings.until is not None and labels is None:
        raise SettingsError(
            "readings.until is of intervals of labels, and the states have edges; set states.categories"
        )
    if not of_messages:
        readings.check_columns()
    if of_messages:
        if labels is not None:
            raise SettingsError("states.categories are read from columns of files, and the source holds messages")
        # with the decoders of payloads, which a table of readings does not need
        from .message_files import MessageFileDecoder  # noqa: PLC0415

        messages = MessageFileDecoder(source.format, source.delimiter, readings, **how)
        messages.check()
        return messages
    decoder = FileDecoder(source.format, source.delimiter, readings, skip=source.skip, names=tuple(source.names), **how)
    _ = decoder.select
    try:
        decoder.rows()
    except ValueError as error:
        raise SettingsError(f"readings.time_format: {error}") from None
    return decoder


def are_messages(format_: str, readings: Readings) -> bool:
    """Whether a source of files holds messages: it is Avro, and the readings are JMESPath."""
    return format_ == "avro" and readings.each is not None


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


class SlotValues(beam.PTransform[Any, Any]):
    """Batches of readings to batches with one reading a slot, by the words of the settings."""

    def __init__(self, words: Words, grid: SlotGrid) -> None:
        super().__init__()
        self.words, self._grid = words, grid

    def of(self, readings: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The slots of all readings of some series, without Beam."""
        given = list(readings)
        found = slot_readings(given, self._grid, self.words) if given else None
        return [] if found is None else [found]

    def expand(self, input_or_inputs: Any) -> Any:
        """Bring the readings of each series together, and reduce each slot."""
        return (
            input_or_inputs
            | "By series" >> beam.ParDo(_Split()).with_output_types(_SHARE)
            | "Series together" >> beam.GroupByKey()
            | "Reduce" >> beam.ParDo(_Reduce(self)).with_output_types(pa.RecordBatch)
        )


class _Reduce(beam.DoFn):
    def __init__(self, values: SlotValues) -> None:
        self._values = values

    def process(self, share: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[Any]:
        for found in self._values.of(share[1]):
            yield TimestampedValue(found, Timestamp(micros=earliest_of(found)))


BySeries = SlotsOfIntervals | SlotValues
"""What needs all rows of a series."""


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
        most: slots of intervals that are held at a time, unless a single series has more.

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
    for of, slots in _slot_batches(codes, *_scheduled(grid.slots_of(start), grid.slots_of(until - 1), schedule), most):
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


def _slot_batches(codes: Ints, of: Ints, first: Ints, last: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Ranges of slots as slots: those of as many whole series at a time as there is room for, and of one at least."""
    order = np.argsort(codes[of], kind="stable")
    of, first, last = of[order], first[order], last[order]
    heads = _heads(codes[of])
    series = np.append(heads, len(of)).tolist()
    total = np.concatenate(([0], np.cumsum(last - first + 1)))
    at = 0
    while at < len(heads):
        stop = max(int(np.searchsorted(total[series], total[series[at]] + most, side="right")) - 1, at + 1)
        here = slice(series[at], series[stop])
        yield _expanded(of[here], first[here], last[here])
        at = stop


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


def _united(codes: Ints, states: Floats, start: Ints, until: Ints) -> tuple[Ints, Ints, Ints]:
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
