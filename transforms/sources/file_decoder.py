"""Tables of readings in files: how a file is checked, cut into parts, and read.

Past the decoder an element is a batch, never a reading.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from ...schemas.settings.connectors import FileFormat
from ...schemas.settings.mappings import Readings
from ..formats import avro as avro_files
from ..formats import csv as csv_files
from ..formats import jsonl as jsonl_files
from ..formats import parquet as parquet_files
from ..formats.paths import open_bytes, open_text
from ..formats.rows import CellColumns, Columns, Labels, RawRows, RowDecoder, RowReader
from ..formats.wide import WideRows, wide_columns

__all__ = ["FileDecoder", "FileTask", "HowRead"]

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
        labels: what reads the values, where they are labels.
    """

    timezone: str
    group: str | None
    batch_rows: int
    encoding: str
    labels: Labels | None


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
        labels: what reads the values, where they are labels.
    """

    format: FileFormat
    delimiter: str
    readings: Readings
    timezone: str = "UTC"
    group: str | None = None
    batch_rows: int = 1 << 17
    encoding: str = "utf-8"
    labels: Labels | None = None

    def rows(self, memory: str = "") -> RowReader:  # noqa: ARG002 - of those that remember something
        """What turns raw rows into readings.

        Args:
            memory: what it remembers at the beginning: that of another one.

        Raises:
            ValueError: the time format cannot be read.
        """
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
                elif (columns := self._csv_columns(path)) is None or (
                    csv_files.read_form(stream, path, columns, self.delimiter) is None
                ):
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
        """Take whole lines of text apart, CSV with its header first.

        Args:
            data: the lines.
            name: of where they come from, for messages.

        Raises:
            SettingsError: the header lacks a column.
        """
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
        """The columns of a file, with those of values if it is a wide table."""
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
