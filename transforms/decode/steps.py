"""Decode: files of readings to Arrow record batches, and the rows that are none to a second output.

What is to be read is found and checked when the transform is made: patterns, headers and schemas, before any reading.
Past this step an element is a batch, never a reading.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.mappings import RegisterValue
from ...schemas.process import keep_memory_private
from ...schemas.readings import RejectReason
from ...schemas.settings import FileFormat, FileSource, Readings, SettingsError
from ...schemas.slots import SlotGrid, time_zone
from .. import coders
from ..ahead import read_ahead
from ..counters import RiseOfCounters, counters_of
from ..files import SourceFileError, expand, open_bytes, open_text
from ..rejects import DECODED, METRICS, counter_name, reject_batch
from . import avro as avro_files
from . import csv as csv_files
from . import jsonl as jsonl_files
from . import parquet as parquet_files
from .rows import RawRows, RowDecoder, RowReader

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing with Python 3.11

REJECTED = "rejected"
#: Bytes of text that are parsed at a time, for each row of a batch.
_LINE_BYTES = 64

#: Batches that one part of a Parquet file has at least: while one is encoded the next one is read.
_TASK_BATCHES = 8

_FOLLOWED = (
    "readings.value is a register, whose rise is known only where the messages of a series come one after another, and "
    "files that are followed are read as they appear: send them through Kafka, or read the files when all of them are "
    "there, with quiltstream run without --live"
)

#: More problems than these are not listed.
_SHOWN_PROBLEMS = 20


class DecodedReadings(NamedTuple):
    """What comes out of :class:`ReadReadings`.

    Attributes:
        readings: batches of ``READING_SCHEMA``, or ``GROUPED_READING_SCHEMA`` where a column names the group. The
            timestamp of a batch is its earliest reading's.
        rejected: batches of ``REJECT_SCHEMA``.
    """

    readings: Any
    rejected: Any


@dataclass(frozen=True, slots=True)
class FileTask:
    """A part of the source that is read at once.

    Attributes:
        path: the file.
        groups: for Parquet, the first row group, the one after the last, and the rows before them.
    """

    path: str
    groups: tuple[int, int, int] = (0, 0, 0)


class HowRead(TypedDict, total=False):
    """How files are read, where it is not as usual.

    Attributes:
        timezone: zone of stamps without an offset.
        group: column with the group, where the grouping comes from the data.
        batch_rows: readings in a batch, about; for text files so many lines of usual length.
    """

    timezone: str
    group: str | None
    batch_rows: int


@dataclass(frozen=True)
class FileDecoder:
    """Decodes the files of a source; a plain value that travels to any machine.

    Attributes:
        format: of the files.
        delimiter: of CSV files.
        readings: the columns and how to read them.
        timezone: zone of stamps without an offset.
        group: column with the group.
        batch_rows: readings in a batch, about.
    """

    format: FileFormat
    delimiter: str
    readings: Readings
    timezone: str = "UTC"
    group: str | None = None
    batch_rows: int = 1 << 17

    @classmethod
    def of(
        cls, source: FileSource, readings: Readings, *, counters: bool = False, **how: Unpack[HowRead]
    ) -> FileDecoder:
        """The decoder of a source.

        Args:
            source: format and paths or patterns.
            readings: the columns and how to read them.
            counters: whether counters are read as they are, because their rise is found later.
            how: the zone, the group, and how much at a time.

        Raises:
            SettingsError: the time format cannot be read, the delimiter cannot be used, or the readings are mapped in
                a way that only messages have, or only files that are all there.
        """
        csv_files.check_delimiter(source.delimiter)
        if isinstance(readings.value, RegisterValue) and not counters:
            raise SettingsError([_FOLLOWED])
        from .message_files import MessageFileDecoder, are_messages  # noqa: PLC0415 - it builds on this module

        of_messages = are_messages(source.format, readings)
        if not of_messages:
            readings.check_columns()
        readings = counters_of(readings)
        if of_messages:
            messages = MessageFileDecoder(source.format, source.delimiter, readings, **how)
            messages.check()
            return messages
        decoder = cls(source.format, source.delimiter, readings, **how)
        try:
            decoder.rows()
        except ValueError as error:
            raise SettingsError([f"readings.time_format: {error}"]) from None
        return decoder

    def rows(self, memory: str = "") -> RowReader:  # noqa: ARG002 - of those that remember something
        """What turns raw rows into readings.

        Args:
            memory: what it remembers at the beginning: that of another one.

        Raises:
            ValueError: the time format cannot be read.
        """
        return RowDecoder(self.readings, timezone=self.timezone, group=self.group)

    def tasks(self, path: str) -> list[FileTask]:
        """Check a file's columns and cut it into parts; a file without rows has none.

        Raises:
            SettingsError: it lacks a column.
            SourceFileError: it cannot be read.
        """
        columns = self.rows().columns
        if self.format == "parquet":
            with self._parquet(path, None) as file:
                parquet_files.check_columns(file.schema_arrow, path, columns)
                rows = _TASK_BATCHES * self.batch_rows
                return [FileTask(path, groups) for groups in parquet_files.row_groups(file, rows)]
        if self.format == "avro":
            with open_bytes(path) as stream:
                avro_files.check_columns(stream, path, columns)
        else:
            with open_text(path) as stream:
                if self.format == "jsonl":
                    jsonl_files.check_columns(stream, path, columns)
                elif csv_files.read_form(stream, path, columns, self.delimiter) is None:
                    return []
        return [FileTask(path)]

    def raw_rows(self, task: FileTask, parquet: Any = None) -> Iterator[RawRows]:
        """Take a part of the source apart.

        Args:
            task: the part.
            parquet: its Parquet file if that is open already.

        Raises:
            SourceFileError: the file is damaged.
        """
        columns = self.rows().columns
        if self.format == "parquet":
            with self._parquet(task.path, parquet) as file:
                yield from parquet_files.parquet_rows(file, task.path, columns, task.groups, self.batch_rows)
            return
        block_bytes = self.batch_rows * _LINE_BYTES
        with open_bytes(task.path) if self.format == "avro" else open_text(task.path) as stream:
            if self.format == "avro":
                yield from avro_files.avro_rows(stream, task.path, columns, self.batch_rows)
            elif self.format == "csv":
                yield from csv_files.csv_rows(stream, task.path, columns, self.delimiter, block_bytes)
            else:
                yield from jsonl_files.jsonl_rows(stream, task.path, columns, block_bytes)

    def raw_lines(self, data: bytes, name: str) -> Iterator[RawRows]:
        """Take whole lines of text apart, CSV with its header first.

        Args:
            data: the lines.
            name: of where they come from, for messages.

        Raises:
            SettingsError: the header lacks a column.
        """
        columns, stream, size = self.rows().columns, io.BytesIO(data), len(data) + 1
        if self.format == "csv":
            yield from csv_files.csv_rows(stream, name, columns, self.delimiter, size)
        else:
            yield from jsonl_files.jsonl_rows(stream, name, columns, size)

    @contextmanager
    def _parquet(self, path: str, opened: Any) -> Generator[Any]:
        """The Parquet file that is open already, or one for this use only."""
        file = parquet_files.open_parquet(path, self.rows().columns) if opened is None else opened
        try:
            yield file
        finally:
            if opened is None:
                parquet_files.close_parquet(file)


class ReadReadings(beam.PTransform[Any, Any]):
    """Read the files of a source as record batches of readings.

    Args:
        source: format and paths or patterns.
        readings: the columns and how to read them.
        resolve: makes a path of the settings absolute.
        grid: the slots; needed where the value is a register.
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
        **how: Unpack[HowRead],
    ) -> None:
        super().__init__()
        time_zone(how.get("timezone", "UTC"))
        if (batch_rows := how.get("batch_rows", 1)) < 1:
            raise ValueError(f"batch_rows {batch_rows} must be at least 1; leave it out for the usual size")
        self._rises: RiseOfCounters | None = None
        if isinstance(readings.value, RegisterValue):
            if grid is None:
                raise SettingsError(["readings.value: a register needs the slots of the settings"])
            self._rises = RiseOfCounters(readings.value.register_, readings.scale, grid)
        self._decoder = FileDecoder.of(source, readings, counters=self._rises is not None, **how)
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
    def tasks(self) -> tuple[FileTask, ...]:
        """The parts that are read, each at once."""
        return tuple(self._tasks)

    def expand(self, input_or_inputs: PBegin) -> DecodedReadings:
        """Read every part; the parts are spread over the workers."""
        decoded: Any = (
            input_or_inputs
            | "Files" >> beam.Create(self._tasks)
            | "Decode" >> beam.ParDo(DecodeFiles(self._decoder)).with_outputs(REJECTED, main="readings")
        )
        for output in (decoded.readings, decoded[REJECTED]):
            output.element_type = pa.RecordBatch
        readings = decoded.readings if self._rises is None else decoded.readings | "Rise" >> self._rises
        return DecodedReadings(readings, decoded[REJECTED])


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
        for decoded in read_ahead(map(self._rows.decode, self._decoder.raw_rows(task, self._parquet(task.path)))):
            if decoded.rejects:
                for one in decoded.rejects:
                    self._rejected[one.reason].inc(len(one.positions))
                yield TaggedOutput(REJECTED, reject_batch(task.path, decoded.rejects))
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


__all__ = ["DecodeFiles", "DecodedReadings", "FileDecoder", "FileTask", "ReadReadings", "coders"]
