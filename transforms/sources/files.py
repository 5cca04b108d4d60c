"""Files read once: how tables of readings and files of messages are checked, cut into parts, and read.

What is to be read is found and checked when the transform is made: patterns, headers and schemas, before any reading.
Past the decoder an element is a batch, never a reading.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ...schemas.files import keep_memory_private
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileSource, SourceFormat
from ...schemas.settings.readings import Readings
from ...schemas.slots import time_zone
from ..common.batches import DECODED, METRICS, PASSED_OVER, counter_name, reject_batch, typed
from ..formats import parquet as parquet_files
from ..formats.columns import Columns, RawRows, check_columns, named_once
from ..formats.csv import check_delimiter
from ..formats.lines import Layout
from ..formats.paths import SourceFileError, expand, stamp_of, unchanged
from ..formats.rows import Labels, RowDecoder, RowReader
from ..readings.slots import Words
from ..readings.tables import columns_of, rows_in, rows_of

if TYPE_CHECKING:
    from ..formats.rows import Decoded
    from ..readings.select import Select


#: Bytes of text that are parsed at a time, for each row of a batch.
_LINE_BYTES = 64

#: Columns of a file that a SELECT is over, each of which is an array of its own.
_MOST_COLUMNS = 20_000

#: Batches that one part of a Parquet file has at least: while one is encoded the next one is read.
_TASK_BATCHES = 8


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
        elif len(columns) > _MOST_COLUMNS:
            raise SettingsError(
                f"{path} has {len(columns):,} columns, and a SELECT reads {_MOST_COLUMNS:,} at most, as each takes "
                "memory of its own: cut the file, or make a row of each reading"
            )
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
        how: the zone, the group, and how much at a time.

    Raises:
        SettingsError: a pattern names no file, or a file lacks a column; one line for every mistake.
        SourceFileError: files cannot be read, or a folder that may hold some of them cannot be listed.
    """

    def __init__(
        self,
        source: FileSource,
        readings: Readings,
        *,
        resolve: Callable[[str], str] = str,
        **how: Unpack[HowRead],
    ) -> None:
        super().__init__()
        time_zone(how.get("timezone", "UTC"))
        if (batch_rows := how.get("batch_rows", 1)) < 1:
            raise ValueError(f"batch_rows {batch_rows} must be at least 1; leave it out for the usual size")
        #: what decodes a part
        self.decoder = decoder_of(source, readings, **how)
        #: the parts that are read, each at once
        self.tasks: list[FileTask] = []
        problems: list[str] = []
        self._damaged, self._empty = list[str](), list[str]()
        for path in expand(source.patterns, resolve, source.setting):
            tasks, wrong = self._plan(path)
            self.tasks += tasks
            problems += wrong
        #: what matches the patterns and holds nothing, in a line
        self.left_out: tuple[str, ...] = _shown_empty(self._empty)
        if (more := len(problems) - _SHOWN_PROBLEMS) > 0:
            problems[_SHOWN_PROBLEMS:] = [f"and {more} more problems of this kind"]
        if problems:
            # where only files are wrong, the settings are right
            only = len(problems) <= len(self._damaged)
            raise SourceFileError("\n".join(problems)) if only else SettingsError(problems)

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
            self._damaged.append(path)
            return [], (f"source.{self.decoder.format}: {error}",)

    def decoded(self) -> Iterator[tuple[str, Decoded]]:
        """Decode every part here and now, without Beam, as the pipeline does.

        Raises:
            SourceFileError: a file is damaged, or changed since it was found.
        """
        return decoded_in(self.decoder, self.tasks)

    def expand(self, input_or_inputs: PBegin) -> DecodedReadings:
        """Read every part; the parts are spread over the workers."""
        decoded: Any = (
            input_or_inputs
            | "Files" >> beam.Create(self.tasks)
            | "Decode" >> beam.ParDo(DecodeFiles(self.decoder)).with_outputs(REJECTED, main="readings")
        )
        return DecodedReadings(typed(decoded.readings, pa.RecordBatch), typed(decoded[REJECTED], pa.RecordBatch))


def decoded_in(decoder: FileDecoder, tasks: Iterable[FileTask]) -> Iterator[tuple[str, Decoded]]:
    """The rows of some parts, decoded here and now."""
    rows = decoder.rows()
    for task in tasks:
        rows = decoder.rows() if decoder.in_order else rows
        with unchanged(task.path, task.stamp):
            for raw in decoder.raw_rows(task):
                yield task.path, rows.decode(raw)


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
