"""Files read once: how tables of readings and files of messages are checked, cut into parts, and read.

What is to be read is found and checked when the transform is made: patterns, headers and schemas, before any reading.
Past the decoder an element is a batch, never a reading.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.files import keep_memory_private
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileFormat, FileSource
from ...schemas.settings.mappings import Readings, columns_problems
from ...schemas.settings.places import RegisterValue
from ...schemas.slots import Schedule, SlotGrid, time_zone
from ..common.batches import DECODED, METRICS, PASSED_OVER, counter_name, reject_batch
from ..formats import avro as avro_files
from ..formats import csv as csv_files
from ..formats import jsonl as jsonl_files
from ..formats import parquet as parquet_files
from ..formats.paths import SourceFileError, expand, open_bytes, open_text
from ..formats.rows import CellColumns, Columns, Labels, RawRows, RowDecoder, RowReader, WideRows, wide_columns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..formats.rows import Decoded
    from .series_together import RegisterIncrements, SlotsOfIntervals


#: Bytes of text that are parsed at a time, for each row of a batch.
_LINE_BYTES = 64

#: The same of the cells of a wide table.
_CELL_BYTES = 8

#: Batches that one part of a Parquet file has at least: while one is encoded the next one is read.
_TASK_BATCHES = 8


@dataclass(frozen=True, slots=True)
class FileTask:
    """A part of the source that is read at once.

    Attributes:
        groups: for Parquet, the first row group, the one after the last, and the rows before them.
    """

    path: str
    groups: tuple[int, int, int] = (0, 0, 0)


class HowRead(TypedDict, total=False):
    """How files are read, where it is not as usual.

    Attributes:
        batch_rows: readings in a batch, about; for text files so many lines of usual length.
    """

    timezone: str
    group: str | None
    batch_rows: int
    encoding: str
    labels: Labels | None


@dataclass(frozen=True)
class FileDecoder:
    """Decodes the files of a source; a plain value that travels to any machine."""

    format: FileFormat
    delimiter: str
    readings: Readings
    timezone: str = "UTC"
    group: str | None = None
    batch_rows: int = 1 << 17
    encoding: str = "utf-8"
    labels: Labels | None = None

    def rows(self, memory: str = "") -> RowReader:  # noqa: ARG002 - of those that remember something
        """What turns raw rows into readings."""
        kind = RowDecoder if self.readings.wide is None else WideRows
        return kind(self.readings, timezone=self.timezone, group=self.group, labels=self.labels)

    @property
    def in_order(self) -> bool:
        """Whether the rows of a file are read one after the other, and each file by a decoder of its own."""
        return self.readings.ambiguous == "in-order"

    def tasks(self, path: str) -> list[FileTask]:
        """Check a file's columns and cut it into parts; a file without rows has none.

        Raises:
            SettingsError: it lacks a column.
            SourceFileError: it cannot be read.
        """
        if self.format == "parquet":
            with self._parquet(path, None) as file:
                columns = self._columns_of(file.schema_arrow.names, path)
                parquet_files.check_columns(file.schema_arrow, path, columns)
                rows = file.metadata.num_rows + 1 if self.in_order else _TASK_BATCHES * self._lines(columns.cells)
                return [FileTask(path, groups) for groups in parquet_files.row_groups(file, rows)]
        if self.format == "avro":
            with open_bytes(path) as stream:
                avro_files.check_columns(stream, path, self.rows().columns)
        else:
            with open_text(path, self.encoding) as stream:
                if self.format == "jsonl":
                    jsonl_files.check_columns(stream, path, self.rows().columns)
                elif (columns := self._csv_columns(path)) is None or not (
                    csv_files.check_columns(stream, path, columns, self.delimiter)
                ):
                    return []
        return [FileTask(path)]

    def raw_rows(self, task: FileTask, parquet: Any = None) -> Iterator[RawRows]:
        """Parse a part of the source."""
        if self.format == "parquet":
            with self._parquet(task.path, parquet) as file:
                columns = self._columns_of(file.schema_arrow.names, task.path)
                rows = self._lines(columns.cells)
                yield from _with_cells(
                    parquet_files.parquet_rows(file, task.path, columns, task.groups, rows), columns.cells
                )
            return
        block_bytes = self.batch_rows * _LINE_BYTES
        if self.format == "csv":
            yield from self._csv_rows(task.path, block_bytes)
            return
        columns = self.rows().columns
        with open_bytes(task.path) if self.format == "avro" else open_text(task.path, self.encoding) as stream:
            if self.format == "avro":
                yield from avro_files.avro_rows(stream, task.path, columns, self.batch_rows)
            else:
                yield from jsonl_files.jsonl_rows(stream, task.path, columns, block_bytes)

    def _csv_rows(self, path: str, block_bytes: int) -> Iterator[RawRows]:
        columns = self._csv_columns(path)
        if columns is None:
            return
        block_bytes = self.batch_rows * _CELL_BYTES if columns.cells else block_bytes
        with open_text(path, self.encoding) as stream:
            yield from _with_cells(
                csv_files.csv_rows(stream, path, columns, self.delimiter, block_bytes), columns.cells
            )

    def raw_lines(self, data: bytes, name: str) -> Iterator[RawRows]:
        """Parse whole lines of text, CSV with its header first."""
        stream, size = io.BytesIO(data), len(data) + 1
        if self.format != "csv":
            yield from jsonl_files.jsonl_rows(stream, name, self.rows().columns, size)
            return
        header = None if self.readings.wide is None else csv_files.header_of(io.BytesIO(data), name, self.delimiter)
        columns = self._columns_of(header or [], name)
        yield from _with_cells(csv_files.csv_rows(stream, name, columns, self.delimiter, size), columns.cells)

    def _csv_columns(self, path: str) -> Columns | None:
        """The columns of a file, whose header is read only where it says what they are; none where it has no line."""
        if self.readings.wide is None:
            return self.rows().columns
        with open_text(path, self.encoding) as stream:
            header = csv_files.header_of(stream, path, self.delimiter)
        return None if header is None else self._columns_of(header, path)

    def _columns_of(self, header: Sequence[str], path: str) -> Columns:
        columns = self.rows().columns
        if self.readings.wide is None:
            return columns
        return replace(columns, cells=wide_columns(self.readings.wide, columns, header, path))

    def _lines(self, cells: CellColumns | None) -> int:
        """Lines that hold the readings of a batch, about."""
        return max(1, self.batch_rows // (1 if cells is None else len(cells.names)))

    @contextmanager
    def _parquet(self, path: str, opened: Any) -> Generator[Any]:
        """The Parquet file that is open already, or one for this use only."""
        file = parquet_files.open_parquet(path, self.rows().columns) if opened is None else opened
        try:
            yield file
        finally:
            if opened is None:
                parquet_files.close_parquet(file)


def _with_cells(rows: Iterator[RawRows], cells: CellColumns | None) -> Iterator[RawRows]:
    return rows if cells is None else (replace(one, cells=cells) for one in rows)


REJECTED = "rejected"
#: Items that may lie ready, so that memory stays bounded.
_READY = 2
_Item = TypeVar("_Item")
_FOLLOWED = (
    "readings.value is a register, whose rise is known only where the messages of a series come one after another, and "
    "files that are followed are read as they appear: send them through Kafka, or read the files when all of them are "
    "there, with quiltstream run without --live"
)

#: More problems than these are not listed.
_SHOWN_PROBLEMS = 20


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
        grid: the slots; needed where the value is a register, or readings are intervals.
        schedule: the windows that the readings are for, as far as they are known: what intervals cover beyond them is
            left out but for their first slots.
        how: the zone, the group, and how much at a time.

    Raises:
        SettingsError: a pattern names no file, a file lacks a column or cannot be read; one line for every mistake.
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
        self._by_series: RegisterIncrements | SlotsOfIntervals | None = None
        of_registers = isinstance(readings.value, RegisterValue)
        if of_registers or readings.until is not None:
            if grid is None:
                what = "value: a register" if of_registers else "until: an interval"
                raise SettingsError(f"readings.{what} needs the slots of the settings")
            from .series_together import RegisterIncrements, SlotsOfIntervals  # noqa: PLC0415 - as in decoder_of

            if isinstance(readings.value, RegisterValue):
                self._by_series = RegisterIncrements(readings.value.register_, readings.scale, grid)
            else:
                self._by_series = SlotsOfIntervals(grid, schedule)
        self._decoder = decoder_of(source, readings, whole_series=self._by_series is not None, **how)
        self._tasks: list[FileTask] = []
        problems: list[str] = []
        for path in expand(source.patterns, resolve, source.setting):
            tasks, more = self._plan(path)
            self._tasks += tasks
            problems += more
        if len(problems) > _SHOWN_PROBLEMS:
            problems = [
                *problems[:_SHOWN_PROBLEMS],
                f"and {len(problems) - _SHOWN_PROBLEMS} more problems of this kind",
            ]
        if problems:
            raise SettingsError(problems)

    def _plan(self, path: str) -> tuple[list[FileTask], tuple[str, ...]]:
        try:
            return self._decoder.tasks(path), ()
        except SettingsError as error:
            return [], error.problems
        except SourceFileError as error:
            return [], (f"source.{self._decoder.format}: {error}",)

    @property
    def decoder(self) -> FileDecoder:
        """What decodes a part; of a register the counters as they are."""
        return self._decoder

    @property
    def by_series(self) -> RegisterIncrements | SlotsOfIntervals | None:
        """What needs all rows of a series: the increments of counters, the slots of intervals; ``None`` for others."""
        return self._by_series

    @property
    def tasks(self) -> tuple[FileTask, ...]:
        """The parts that are read, each at once."""
        return tuple(self._tasks)

    def decoded(self) -> Iterator[tuple[str, Decoded]]:
        """Decode every part here and now, without Beam, as the pipeline does; counters and intervals as they are."""
        rows = self._decoder.rows()
        for task in self._tasks:
            rows = self._decoder.rows() if self._decoder.in_order else rows
            for raw in self._decoder.raw_rows(task):
                yield task.path, rows.decode(raw)

    def expand(self, input_or_inputs: PBegin) -> DecodedReadings:
        """Read every part; the parts are spread over the workers."""
        decoded: Any = (
            input_or_inputs
            | "Files" >> beam.Create(self._tasks)
            | "Decode" >> beam.ParDo(DecodeFiles(self._decoder)).with_outputs(REJECTED, main="readings")
        )
        for output in (decoded.readings, decoded[REJECTED]):
            output.element_type = pa.RecordBatch
        readings = decoded.readings
        if self._by_series is not None:
            # a step is of a frozen name
            name = "Rise" if self._decoder.readings.until is None else "Slots"
            readings = readings | name >> self._by_series
        return DecodedReadings(readings, decoded[REJECTED])


def read_ahead(source: Iterator[_Item]) -> Iterator[_Item]:
    """The items of an iterator, of which a thread takes the next ones while the caller works on one."""
    end = object()
    pieces: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="quiltstream-read") as pool:
        try:
            while True:
                while len(pieces) <= _READY:
                    pieces.append(pool.submit(next, source, end))
                item = pieces.popleft().result()
                if item is end:
                    return
                yield item
        finally:
            for piece in pieces:
                piece.cancel()


class DecodeFiles(beam.DoFn):
    """``FileTask`` to batches of readings; batches of rejects go to the output ``rejected``."""

    def __init__(self, decoder: FileDecoder) -> None:
        self._decoder = decoder

    def setup(self) -> None:
        """Make what belongs to the worker."""
        keep_memory_private()
        self._rows = self._decoder.rows()
        self._open: tuple[str, Any] | None = None
        self._decoded = Metrics.counter(METRICS, DECODED)
        self._rejected = {reason: Metrics.counter(METRICS, counter_name(reason)) for reason in RejectReason}

    def process(self, task: FileTask) -> Iterator[Any]:
        """Decode one part.

        Raises:
            SourceFileError: the file is damaged, so that readings behind the damage are lost.
        """
        if self._decoder.in_order:
            self._rows = self._decoder.rows()
        for decoded in read_ahead(map(self._rows.decode, self._decoder.raw_rows(task, self._parquet(task.path)))):
            if decoded.rejects:
                for one in decoded.rejects:
                    self._rejected[one.reason].inc(len(one.positions))
                yield TaggedOutput(REJECTED, reject_batch(task.path, decoded.rejects))
            if decoded.passed:
                Metrics.counter(METRICS, PASSED_OVER).inc(decoded.passed)
            if decoded.readings is not None:
                self._decoded.inc(decoded.readings.num_rows)
                yield TimestampedValue(decoded.readings, Timestamp(micros=decoded.earliest_us))

    def teardown(self) -> None:
        """Close the file that is open."""
        self._close()

    def _parquet(self, path: str) -> Any:
        """The open Parquet file of a path: its footer is read once for the parts that come one after another."""
        if self._decoder.format != "parquet":
            return None
        if self._open is None or self._open[0] != path:
            self._close()
            self._open = (path, parquet_files.open_parquet(path, self._rows.columns))
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            parquet_files.close_parquet(self._open[1])
            self._open = None


def decoder_of(
    source: FileSource, readings: Readings, *, whole_series: bool = False, **how: Unpack[HowRead]
) -> FileDecoder:
    """The decoder of the files of a source."""
    csv_files.check_delimiter(source.delimiter)
    how = {"encoding": source.encoding, **how}
    of_registers, of_messages = isinstance(readings.value, RegisterValue), are_messages(source.format, readings)
    if of_registers and not whole_series:
        raise SettingsError(_FOLLOWED)
    if readings.until is not None and not whole_series:
        raise SettingsError(
            "readings.until: which label covers most of a slot is known when all of a series are there, and files "
            "that are followed are read as they appear: use quiltstream run without --live"
        )
    labels = how.get("labels")
    if readings.until is not None and labels is None:
        raise SettingsError(
            "readings.until is of intervals of labels, and the states have edges; set states.categories"
        )
    if not of_messages:
        readings.check_columns()
    if of_registers:
        from .series_together import registers_as_values  # noqa: PLC0415 - with the increments of registers, which few jobs have

        readings = registers_as_values(readings)
    if of_messages and labels is not None:
        raise SettingsError("states.categories are read from columns of files, and the source holds messages")
    if of_messages:
        # with the decoders of payloads, which a table of readings does not need
        from .message_files import MessageFileDecoder  # noqa: PLC0415

        messages = MessageFileDecoder(source.format, source.delimiter, readings, **how)
        messages.check()
        return messages
    if readings.wide is not None and source.format not in ("csv", "parquet"):
        raise SettingsError(
            f"readings.wide is of files of CSV and Parquet, not of {source.format}; write the table as one of them"
        )
    decoder = FileDecoder(source.format, source.delimiter, readings, **how)
    try:
        decoder.rows()
    except ValueError as error:
        raise SettingsError(f"readings.time_format: {error}") from None
    return decoder


def are_messages(format_: str, readings: Readings) -> bool:
    """Whether a source of files holds messages: it is Avro, and the mapping names what only messages have."""
    return format_ == "avro" and bool(columns_problems(readings))
