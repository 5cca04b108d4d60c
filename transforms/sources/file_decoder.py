"""Tables of readings in files: how a file is checked, cut into parts, and read.

Past the decoder an element is a batch, never a reading.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

from ...schemas.settings.connectors import FileFormat
from ...schemas.settings.mappings import Readings
from ..formats import avro as avro_files
from ..formats import csv as csv_files
from ..formats import jsonl as jsonl_files
from ..formats import parquet as parquet_files
from ..formats.paths import open_bytes, open_text
from ..formats.rows import RawRows, RowDecoder, RowReader

__all__ = ["FileDecoder", "FileTask", "HowRead"]

#: Bytes of text that are parsed at a time, for each row of a batch.
_LINE_BYTES = 64

#: Batches that one part of a Parquet file has at least: while one is encoded the next one is read.
_TASK_BATCHES = 8


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
        encoding: of text files.
    """

    timezone: str
    group: str | None
    batch_rows: int
    encoding: str


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
        encoding: of text files.
    """

    format: FileFormat
    delimiter: str
    readings: Readings
    timezone: str = "UTC"
    group: str | None = None
    batch_rows: int = 1 << 17
    encoding: str = "utf-8"

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
            with open_text(path, self.encoding) as stream:
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
        with open_bytes(task.path) if self.format == "avro" else open_text(task.path, self.encoding) as stream:
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
