"""Avro object container files to raw rows.

No library reads Avro into Arrow columns, so this is the one format whose rows pass through Python objects, inside the
decoder only; Parquet holds the same readings and is read many times faster. A file is damaged where its bytes are no
records; what a record holds damages nothing (see :mod:`.avro_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa

from ...schemas.settings import SettingsError
from ..files import SourceFileError
from .avro_columns import Meaning
from .avro_times import bare
from .csv import missing_column
from .rows import Columns, RawRows

_SIMPLE = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes", "enum", "fixed"})


def check_columns(stream: BinaryIO, path: str, columns: Columns) -> None:
    """See whether the file's schema has the columns.

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


def has_column(stream: BinaryIO, path: str, name: str) -> bool:
    """Whether the records of a file have a column; the stream stands at its start afterwards.

    Raises:
        SourceFileError: it is not an Avro file.
    """
    schema: Any = _reader(stream, path).writer_schema
    stream.seek(0)
    return isinstance(schema, dict) and any(one["name"] == name for one in schema.get("fields", ()))


def _is_simple(kind: Any) -> bool:
    if isinstance(kind, list):
        return all(_is_simple(one) for one in kind)
    return (kind["type"] if isinstance(kind, dict) else kind) in _SIMPLE


def avro_rows(stream: BinaryIO, path: str, columns: Columns, batch_rows: int) -> Iterator[RawRows]:
    """Read a file.

    Args:
        stream: the bytes, from the start.
        path: for messages.
        columns: the needed columns.
        batch_rows: rows in a batch.

    Raises:
        SourceFileError: a block is damaged.
    """
    try:
        blocks = cast("Any", fastavro.block_reader(stream))
        schema = fastavro.parse_schema(bare(blocks.writer_schema))
        meanings = {one["name"]: Meaning.of(one["type"]) for one in blocks.writer_schema["fields"]}
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    records: list[dict[str, Any]] = []
    before = 0
    while True:
        try:
            block = next(blocks, None)
            if block is not None:
                records += [_record(block.bytes_, schema) for _ in range(block.num_records)]
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
            raise _damaged(path, error, f"after row {before + len(records)}") from None
        if records and (block is None or len(records) >= batch_rows):
            yield _rows(records, before, {name: meanings[name] for name in columns.names})
            before += len(records)
            records = []
        if block is None:
            return


def _record(stream: BinaryIO, schema: Any) -> dict[str, Any]:
    # text that is no UTF-8 is its row's matter, and no reason to stop
    read: Any = fastavro.schemaless_reader(stream, schema, None, handle_unicode_errors="surrogateescape")
    return cast("dict[str, Any]", read)


def _rows(records: list[dict[str, Any]], before: int, meanings: dict[str, Meaning]) -> RawRows:
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
        return fastavro.reader(stream)
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None


def _damaged(path: str, error: Exception, where: str) -> SourceFileError:
    return SourceFileError(
        f"file {path} is not a whole Avro file ({type(error).__name__} {where}); write it again, or take it out of "
        "source.avro: releases without its readings would be final"
    )
