"""Avro object container files to raw rows.

No library reads Avro into Arrow columns, so this is the one format whose rows pass through Python objects, inside the
decoder only; Parquet holds the same readings and is read many times faster. A file is damaged where its bytes are no
records; what a record holds damages nothing (see :mod:`.avro_columns` and :mod:`.avro_shapes`).

Two things damage a file although its bytes are what Avro allows. A schema of more than 200 levels is not parsed:
without it nobody knows where a record begins. And behind a value of more than 100,000 levels the next record is not
looked for, because memory would have to grow with the depth. In both cases there are rows that cannot be found, so to
count one reject and go on would be to lose readings in silence: "damaged" says that some are missing, and how many is
not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

import fastavro
import numpy as np
import pyarrow as pa

from ...schemas.settings import SettingsError
from ..files import SourceFileError
from .avro_columns import Meaning
from .avro_shapes import ReadRecord, Shapes, check_header, whole_record
from .avro_times import bare
from .csv import missing_column
from .rows import Columns, RawRows

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
    try:
        check_header(stream)
        blocks = cast("Any", fastavro.block_reader(stream))
        kinds: dict[str, Any] = {one["name"]: one["type"] for one in blocks.writer_schema["fields"]}
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    needed = columns(kinds) if callable(columns) else columns
    try:
        read = _reading(fastavro.parse_schema(bare(blocks.writer_schema)), needed)
        meanings = {name: reads(name, kinds[name]) for name in needed.names}
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    records: list[dict[str, Any]] = []
    before = 0
    while True:
        try:
            block = next(blocks, None)
            if block is not None:
                records += [read(block.bytes_) for _ in range(block.num_records)]
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
            raise _damaged(path, error, f"after row {before + len(records)}") from None
        if records and (block is None or len(records) >= batch_rows):
            yield _rows(records, before, meanings)
            before += len(records)
            records = []
        if block is None:
            return


def _reading(schema: Any, columns: Columns) -> ReadRecord:
    """How a record is read: at once, unless what a record holds could keep the library busy for ever or end it."""
    shapes = Shapes(schema)
    return whole_record(schema) if shapes.is_plain else shapes.fields(columns.names)


def _rows(records: list[dict[str, Any]], before: int, meanings: dict[str, Reads]) -> RawRows:
    """Records as raw rows; those with a value that means nothing are malformed."""
    arrays: dict[str, pa.Array] = {}
    keep = np.ones(len(records), dtype=np.bool_)
    for name, meaning in meanings.items():
        arrays[name], bad = meaning.column([record[name] for record in records])
        keep[bad] = False
    positions = np.arange(before + 1, before + len(records) + 1, dtype=np.int64)
    if not keep.all():
        kept = pa.array(keep)
        arrays = {name: array.filter(kept) for name, array in arrays.items()}
    return RawRows(arrays, positions[keep], positions[~keep])


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
