"""Files read once: tables of readings, and files of messages.

What is to be read is found and checked when the transform is made: patterns, headers and schemas, before any reading.
Past this step an element is a batch, never a reading.

Files of messages: Avro segments as the gateway writes them, decoded as a broker's messages are.

A segment's record is a message: ``topic``, ``payload``, and ``received``, which stands for the broker's stamp. So a
spool folder can be followed by a live job, and read again by a batch job, with the mapping of the settings.

A column of such a file may have a type of several kinds, and then each record has its own: one whose topic or payload
is neither text nor bytes is a reject at its row, and one without a time of receipt has no stamp. A column that can hold
nothing of what it is for is a mistake of the file as a whole: it holds no messages.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.process import keep_memory_private
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import FileFormat, FileSource
from ...schemas.settings.mappings import Readings, RegisterValue, columns_problems
from ...schemas.slots import SlotGrid, time_zone
from ..common import batches
from ..common.prefetch import read_ahead
from ..common.rejects import DECODED, METRICS, Rejects, counter_name, reject_batch
from ..formats import avro
from ..formats import avro as avro_files
from ..formats import csv as csv_files
from ..formats import jsonl as jsonl_files
from ..formats import parquet as parquet_files
from ..formats.avro import Meaning
from ..formats.avro_schemas import KEPT
from ..formats.paths import SourceFileError, expand, open_bytes, open_text
from ..formats.rows import Columns, Decoded, RawRows, RowDecoder, RowReader
from ..payloads import PayloadDecoder
from ..payloads.messages import Messages
from .file_registers import RiseOfCounters, counters_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "DecodeFiles",
    "DecodedReadings",
    "FileDecoder",
    "FileTask",
    "MessageFileDecoder",
    "MessageRows",
    "ReadReadings",
    "are_messages",
    "batches",
]


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


TOPIC, PAYLOAD, RECEIVED = "topic", "payload", "received"

#: Says that a message may have come before, so that ``received`` is not when it came first. Files may lack it.
DUP = "dup"

#: Messages that are decoded at a time; a payload may be large.
_BATCH = 1_000


def are_messages(format_: str, readings: Readings) -> bool:
    """Whether a source of files holds messages: it is Avro, and the mapping names what only messages have."""
    return format_ == "avro" and bool(columns_problems(readings))


@dataclass(frozen=True)
class MessageFileDecoder(FileDecoder):
    """Decodes segments; a plain value that travels to any machine."""

    def check(self) -> None:
        """See whether files of messages can serve the mapping.

        Raises:
            SettingsError: they cannot, or a library for it is missing.
        """
        if self.readings.payload == "avro":
            raise SettingsError(
                ["readings.payload is avro, whose schemas a registry has, and files name none; use avro-single"]
            )
        self.payloads.check()

    @property
    def payloads(self) -> PayloadDecoder:
        """What takes the messages apart."""
        return PayloadDecoder(self.readings, timezone=self.timezone, group=self.group)

    def rows(self, memory: str = "") -> RowReader:
        """What turns messages into readings.

        Args:
            memory: what it remembers at the beginning: that of another one.
        """
        return MessageRows(self.payloads.fresh(memory))

    def tasks(self, path: str) -> list[FileTask]:
        """Check a file's columns; it is read as a whole.

        Raises:
            SettingsError: it lacks a column.
            SourceFileError: it cannot be read.
        """
        with open_bytes(path) as stream:
            _check_types(avro.check_columns(stream, path, _COLUMNS), path)
        return [FileTask(path)]

    def raw_rows(self, task: FileTask, parquet: Any = None) -> Iterator[RawRows]:  # noqa: ARG002 - the base's signature
        """The messages of a file.

        Raises:
            SettingsError: it holds no messages.
            SourceFileError: the file is damaged.
        """

        def columns(types: dict[str, Any]) -> Columns:
            # a file that is followed may be another than the one that was checked
            _check_types(types, task.path)
            return _WITH_DUP if DUP in types else _COLUMNS

        with open_bytes(task.path) as stream:
            yield from avro.avro_rows(stream, task.path, columns, min(self.batch_rows, _BATCH), _Held)


class _MessageColumns(Columns):
    """The columns of a segment, which no setting names."""

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(what needs it, column) of each, for messages."""
        return tuple(("source.avro, read as messages", name) for name in (TOPIC, RECEIVED, PAYLOAD))


class _ColumnsWithDup(_MessageColumns):
    """The columns of a segment that says which messages may have come before."""

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(what needs it, column) of each, for messages."""
        return (*super().settings, ("source.avro, read as messages", DUP))


_COLUMNS = _MessageColumns(TOPIC, (RECEIVED,), PAYLOAD)
_WITH_DUP = _ColumnsWithDup(TOPIC, (RECEIVED,), PAYLOAD)


class MessageRows:
    """Messages of files to readings; it belongs to one worker.

    Args:
        decoder: what takes the messages apart.
    """

    columns: Columns = _COLUMNS

    def __init__(self, decoder: PayloadDecoder) -> None:
        self._decoder = decoder

    @property
    def memory(self) -> str:
        """What a position must carry of the messages before it."""
        return self._decoder.memory

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some messages.

        Raises:
            SettingsError: a key or library is missing on this machine.
        """
        parts = self._decoder.decode(_messages(raw)) if len(raw.positions) else []
        rejects = [one for part in parts for one in part.rejects]
        if len(raw.malformed):
            rejects.append(Rejects(RejectReason.MALFORMED_ROW, raw.malformed))
        batches = [part.readings for part in parts if part.readings is not None]
        if not batches:
            return Decoded(None, 0, tuple(rejects))
        whole = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
        earliest = min(part.earliest_us for part in parts if part.readings is not None)
        return Decoded(whole, earliest, tuple(rejects))


#: What the columns are for, and the types of Avro that may hold it.
_KINDS = {
    TOPIC: frozenset({"string", "bytes", "enum", "fixed"}),
    PAYLOAD: frozenset({"bytes", "string", "enum", "fixed"}),
    RECEIVED: frozenset({"long", "int"}),
    DUP: frozenset({"boolean"}),
}

_UNITS_US = {"ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_LONG = 1 << 63


def _check_types(types: dict[str, Any], path: str) -> None:
    """See whether each column of a file can hold what it is for.

    Raises:
        SettingsError: one cannot.
    """
    for name, kinds in _KINDS.items():
        given = types.get(name, "null")
        of = {one["type"] if isinstance(one, dict) else one for one in (given if isinstance(given, list) else [given])}
        if of != {"null"} and not of & kinds:
            raise SettingsError(
                [
                    f"source.avro: {path}: a column of the messages is of another type; {PAYLOAD} is bytes, {TOPIC} "
                    f"text, {RECEIVED} a time stamp, and {DUP} a truth value"
                ]
            )


class _Held:
    """What a column of a segment holds, record by record.

    Args:
        name: of the column.
        kind: its type in the file.
    """

    def __init__(self, name: str, kind: Any) -> None:
        self._name = name
        time = Meaning.of(kind).time
        # a plain number is of microseconds, as the gateway writes it; days and times of day are no stamps
        self._stamps = time is None or pa.types.is_timestamp(time)
        self._unit = _UNITS_US.get(getattr(time, "unit", "us"), (1, 1))

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array, shape (n,), and the places of topics and payloads that are none."""
        if self._name == RECEIVED:
            return pa.array([self._stamp(one) for one in values], pa.int64()), []
        if self._name == DUP:
            # whatever else says something of it, it may have come before
            return pa.array([one is not None and one is not False for one in values], pa.bool_()), []
        if self._name == TOPIC:
            found, kind = [_topic(one) for one in values], pa.utf8()
        else:
            found, kind = [_payload(one) for one in values], pa.binary()
        bad = [place for place, one in enumerate(found) if one is _NOTHING]
        return pa.array([None if one is _NOTHING else one for one in found], kind), bad

    def _stamp(self, value: Any) -> int:
        """A stamp in microseconds; -1 for what is none."""
        if type(value) is not int or not self._stamps:
            return -1
        times, parts = self._unit
        found = value * times // parts
        return found if -_LONG <= found < _LONG else -1


#: Stands for what is no topic or payload.
_NOTHING = object()


def _topic(value: Any) -> Any:
    if value is None:
        return ""
    try:
        # bytes that were no UTF-8 stand in a text as surrogates
        return (value.encode("utf-8") if isinstance(value, str) else value).decode("utf-8")
    except (UnicodeError, AttributeError):
        return _NOTHING


def _payload(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", KEPT)
    return value if value is None or isinstance(value, bytes) else _NOTHING


def _messages(raw: RawRows) -> Messages:
    count = len(raw.positions)
    stamps = raw.columns[RECEIVED].to_numpy(zero_copy_only=False)
    if DUP in raw.columns:
        stamps = np.where(raw.columns[DUP].to_numpy(zero_copy_only=False), -1, stamps)
    return Messages(
        payloads=raw.columns[PAYLOAD].to_pylist(),
        topics=raw.columns[TOPIC].to_pylist(),
        keys=[None] * count,
        headers=[()] * count,
        stamps_us=stamps.astype(np.int64),
        positions=raw.positions,
    )
