"""Avro object container files to raw rows.

No library reads Avro into Arrow columns, so this is the one format whose rows pass through Python objects, inside the
decoder only; Parquet holds the same readings and is read many times faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa

from ..schemas.settings import SettingsError
from .avro_times import TIMES, plain_times
from .decode_csv import missing_column
from .decode_rows import Columns, RawRows
from .files import SourceFileError

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
        schema = fastavro.parse_schema(plain_times(blocks.writer_schema))
        kinds = {one["name"]: _time_of(one["type"]) for one in blocks.writer_schema["fields"]}
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
            arrays = {name: _array([record[name] for record in records], kinds[name]) for name in columns.names}
            positions = np.arange(before + 1, before + len(records) + 1, dtype=np.int64)
            yield RawRows(arrays, positions, np.empty(0, dtype=np.int64))
            before += len(records)
            records = []
        if block is None:
            return


def _record(stream: BinaryIO, schema: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", fastavro.schemaless_reader(stream, schema, None))


def _time_of(kind: Any) -> pa.DataType | None:
    """The Arrow type of a column of timestamps."""
    for one in kind if isinstance(kind, list) else [kind]:
        if isinstance(one, dict) and one.get("logicalType") in TIMES:
            return TIMES[one["logicalType"]]
    return None


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


def _array(values: list[Any], time: pa.DataType | None) -> pa.Array:
    """Values of one column; those of a union of text and numbers become text."""
    try:
        array = pa.array(values)
        return array.cast(pa.int64()).view(time) if time is not None else array
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([None if one is None else _text(one) for one in values], pa.utf8())


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
