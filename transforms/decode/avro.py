"""Avro object container files to raw rows.

No library reads Avro into Arrow columns, so this is the one format whose rows pass through Python objects, inside the
decoder only; Parquet holds the same readings and is read many times faster. A file is damaged where its bytes are no
records; what a record holds damages nothing (see :mod:`.avro_columns` and :mod:`.avro_shapes`).

Two things damage a file although its bytes are what Avro allows. A schema of more than 200 levels is not parsed:
without it nobody knows where a record begins. And behind a value of more than 100,000 levels the next record is not
looked for, because memory would have to grow with the depth. In both cases there are rows that cannot be found, so to
count one reject and go on would be to lose readings in silence: "damaged" says that some are missing, and how many is
not known.

Blocks are unpacked into a bounded memory (see :mod:`.avro_blocks`), and batches end before they are large, whatever the
blocks are.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

import fastavro
import numpy as np
import pyarrow as pa

from ...schemas.settings import SettingsError
from ..files import SourceFileError
from .avro_blocks import MOST_BYTES, Block, Blocks, CodecError, LargeBlockError
from .avro_columns import Meaning
from .avro_shapes import ReadRecord, Shapes, check_header, whole_record
from .avro_times import bare
from .csv import missing_column
from .rows import Columns, RawRows

#: Bytes of the rows of a batch, unpacked; the last row may have more.
_MOST_BYTES = 1 << 26

_SIMPLE = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes", "enum", "fixed"})


def check_columns(stream: BinaryIO, path: str, columns: Columns) -> dict[str, Any]:
    """See whether the file's schema has the columns.

    Returns:
        The types of the fields of its records.

    Raises:
        SettingsError: a column is missing, or is not a simple value.
        SourceFileError: it is not an Avro file.
    """
    schema = _reader(stream, path).writer_schema
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SettingsError([f"source.avro: {path} holds no records; write one record for each reading"])
    fields = {one["name"]: one["type"] for one in schema["fields"]}
    problems: list[str] = []
    for setting, name in columns.settings:
        if name not in fields:
            problems.append(missing_column(setting, name, path, list(fields)))
        elif not _is_simple(fields[name]):
            problems.append(f"{setting}: the column {name!r} of {path} is a compound; name one that is a single value")
    if problems:
        raise SettingsError(problems)
    return fields


def _is_simple(kind: Any) -> bool:
    if isinstance(kind, list):
        return all(_is_simple(one) for one in kind)
    return (kind["type"] if isinstance(kind, dict) else kind) in _SIMPLE


class Reads(Protocol):
    """What makes a column of the values of records; :class:`.avro_columns.Meaning` does."""

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array, shape (n,), and the places of those that mean nothing."""
        ...


def avro_rows(
    stream: BinaryIO,
    path: str,
    columns: Columns | Callable[[dict[str, Any]], Columns],
    batch_rows: int,
    reads: Callable[[str, Any], Reads] = lambda _, kind: Meaning.of(kind),
) -> Iterator[RawRows]:
    """Read a file.

    Args:
        stream: the bytes, from the start.
        path: for messages.
        columns: the needed columns, or what names them by the types of the fields.
        batch_rows: rows in a batch.
        reads: what reads a column, by its name and type.

    Raises:
        SourceFileError: a block is damaged.
        Exception: what ``columns`` raises.
    """
    read, meanings, blocks = _opened(stream, path, columns, reads)
    gathered = _Gathered(meanings)
    try:
        for block in blocks:
            yield from _block_rows(block, read, gathered, batch_rows)
    except LargeBlockError:
        raise SourceFileError(
            f"file {path} has a block of more than {MOST_BYTES} bytes after row {gathered.before + gathered.rows}; "
            "write it with smaller blocks, or take it out of source.avro: releases without its readings would be final"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, f"after row {gathered.before + gathered.rows}") from None
    if gathered.rows:
        yield gathered.take()


def _opened(
    stream: BinaryIO,
    path: str,
    columns: Columns | Callable[[dict[str, Any]], Columns],
    reads: Callable[[str, Any], Reads],
) -> tuple[ReadRecord, dict[str, Reads], Blocks]:
    """What reads a record, what its columns mean, and the blocks, of a file whose header can be read."""
    try:
        header = check_header(stream)
        writer_schema = cast("Any", fastavro.block_reader(stream)).writer_schema
        kinds: dict[str, Any] = {one["name"]: one["type"] for one in writer_schema["fields"]}
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    needed = columns(kinds) if callable(columns) else columns
    try:
        shapes = Shapes(fastavro.parse_schema(bare(writer_schema)))
        read = _reading(shapes, needed)
        meanings = {name: reads(name, kinds[name]) for name in needed.names}
        stream.seek(header.end)
        blocks = Blocks(stream, header.codec, header.sync, shapes.fewest(shapes.schema))
    except CodecError:
        raise SourceFileError(
            f"file {path} is packed by a codec that is not read; write it with deflate, zstandard, snappy, bzip2 or xz"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    return read, meanings, blocks


def _block_rows(block: Block, read: ReadRecord, gathered: _Gathered, batch_rows: int) -> Iterator[RawRows]:
    """The batches that a block makes full.

    Raises:
        Exception: it holds other than so many records.
    """
    records = io.BytesIO(block.data)
    at = 0
    for _ in range(block.records):
        record = read(records)
        behind = records.tell()
        gathered.add(record, behind - at)
        at = behind
        if gathered.rows >= batch_rows or gathered.size >= _MOST_BYTES:
            yield gathered.take()
    if at != len(block.data):
        raise ValueError("a block holds more than its records")


def _reading(shapes: Shapes, columns: Columns) -> ReadRecord:
    """How a record is read: at once, unless what a record holds could keep the library busy for ever or end it."""
    is_whole = shapes.is_plain and shapes.is_flat(columns.names)
    return whole_record(shapes.schema) if is_whole else shapes.fields(columns.names)


class _Gathered:
    """The rows of a batch, column by column: of what a record holds besides nothing is kept.

    Attributes:
        before: rows of the batches before.
        rows: rows of this one.
        size: bytes that they have in the file, unpacked.
    """

    def __init__(self, meanings: dict[str, Reads]) -> None:
        self._meanings = meanings
        self._values: dict[str, list[Any]] = {name: [] for name in meanings}
        self._columns = [(values.append, name) for name, values in self._values.items()]
        self.before, self.rows, self.size = 0, 0, 0

    def add(self, record: dict[str, Any], size: int) -> None:
        """One more row."""
        for append, name in self._columns:
            append(record[name])
        self.rows += 1
        self.size += size

    def take(self) -> RawRows:
        """The rows so far; the next ones are another batch's. Those with a value that means nothing are malformed."""
        arrays: dict[str, pa.Array] = {}
        keep = np.ones(self.rows, dtype=np.bool_)
        for name, meaning in self._meanings.items():
            arrays[name], bad = meaning.column(self._values[name])
            keep[bad] = False
            self._values[name].clear()
        positions = np.arange(self.before + 1, self.before + self.rows + 1, dtype=np.int64)
        if not keep.all():
            kept = pa.array(keep)
            arrays = {name: array.filter(kept) for name, array in arrays.items()}
        self.before, self.rows, self.size = self.before + self.rows, 0, 0
        return RawRows(arrays, positions[keep], positions[~keep])


def whole_records(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """The records of a file with all that they hold, and with their logical types.

    Raises:
        ValueError: the file is none that can be read, or the size of a record does not bound the work of reading it.
        EOFError: it ends within a block.
    """
    header = check_header(stream)
    schema = fastavro.parse_schema(cast("Any", fastavro.block_reader(stream)).writer_schema)
    shapes = Shapes(fastavro.parse_schema(bare(schema)))
    if not shapes.is_plain:
        raise ValueError("a type within itself, or an array of things without bytes")
    stream.seek(header.end)
    for block in Blocks(stream, header.codec, header.sync, shapes.fewest(shapes.schema)):
        records = io.BytesIO(block.data)
        for _ in range(block.records):
            yield cast("dict[str, Any]", fastavro.schemaless_reader(records, schema, None))


def _reader(stream: BinaryIO, path: str) -> Any:
    try:
        check_header(stream)
        return fastavro.reader(stream)
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None


def _damaged(path: str, error: Exception, where: str) -> SourceFileError:
    return SourceFileError(
        f"file {path} is not a whole Avro file ({type(error).__name__} {where}); write it again, or take it out of "
        "source.avro: releases without its readings would be final"
    )
