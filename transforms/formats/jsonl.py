"""JSON Lines files to raw rows: blocks go to Arrow at once; a block with a bad line is cut until the line is alone.

Lines that Arrow's reader does not take are read one by one with Python's: numbers stay text until they are read as
values, so that neither size nor spelling is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

from ...schemas.settings.base import SettingsError
from .paths import LineBlock, is_text, is_utf8, text_blocks
from .rows import Columns, RawRows, missing_column

_LF, _CR, _QUOTE, _OPEN, _CLOSE, _BRACKET = 10, 13, 34, 123, 125, 91

#: Objects and arrays in one another. Arrow's reader has no limit, and Python's depends on its caller: whether a line is
#: a reading must not.
_DEEPEST = 600

#: Blocks of so few lines are read line by line.
_FEW = 64
#: Into how many parts a block with a bad line is cut.
_PARTS = 8
#: How much of a file is looked at for its columns.
_HEAD_BYTES = 1 << 18


def check_columns(stream: BinaryIO, path: str, columns: Columns) -> None:
    """See whether the objects at the start of a file have the columns."""
    block = next(iter(text_blocks(stream, path, _HEAD_BYTES)), None)
    if block is None:
        return
    keys: dict[str, None] = {}
    for line in block.data.split(b"\n"):
        found = object_of(line)
        if found is not None:
            keys.update(dict.fromkeys(found))
    if keys:
        problems = [
            missing_column(setting, one, path, list(keys)) for setting, one in columns.settings if one not in keys
        ]
        if problems:
            raise SettingsError(problems)


def jsonl_rows(stream: BinaryIO, path: str, columns: Columns, block_bytes: int) -> Iterator[RawRows]:
    """Parse a file."""
    for block in text_blocks(stream, path, block_bytes):
        if block.data:
            yield from _block_rows(block, columns)
        else:
            yield RawRows.lost(np.array([block.first_line], dtype=np.int64))


def _block_rows(block: LineBlock, columns: Columns) -> Iterator[RawRows]:
    arrays = _parse(block.data, columns)
    if arrays is not None:
        rows = len(arrays[columns.value])
        yield RawRows(arrays, np.arange(rows, dtype=np.int64) + block.first_line, np.empty(0, dtype=np.int64))
    elif block.lines <= _FEW:
        yield _line_rows(block, columns)
    else:
        few = [_line_rows(part, columns) if isinstance(part, LineBlock) else part for part in _cut(block, columns)]
        yield from _gathered(few)


def _cut(block: LineBlock, columns: Columns) -> Iterator[LineBlock | RawRows]:
    """Cut a block until its parts parse or are small: what is left for Python is near the bad lines."""
    ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == _LF) + 1
    limits = np.linspace(0, len(ends), _PARTS + 1).astype(np.int64).tolist()
    for first, last in pairwise(limits):
        part = LineBlock(block.first_line + first, block.data[0 if first == 0 else ends[first - 1] : ends[last - 1]])
        arrays = _parse(part.data, columns)
        if arrays is not None:
            numbers = np.arange(last - first, dtype=np.int64) + part.first_line
            yield RawRows(arrays, numbers, np.empty(0, dtype=np.int64))
        elif last - first <= _FEW:
            yield part
        else:
            yield from _cut(part, columns)


def _gathered(parts: list[RawRows]) -> Iterator[RawRows]:
    """Put parts whose columns have the same types together, so that few batches leave a damaged block."""
    alike: dict[tuple[Any, ...], list[RawRows]] = {}
    for part in parts:
        alike.setdefault(tuple(str(array.type) for array in part.columns.values()), []).append(part)
    for group in alike.values():
        yield RawRows(
            {name: pa.concat_arrays([part.columns[name] for part in group]) for name in group[0].columns},
            np.concatenate([part.positions for part in group]),
            np.concatenate([part.malformed for part in group]),
        )


def _parse(data: bytes, columns: Columns) -> dict[str, pa.Array] | None:
    """Parse lines that each hold one object of the same types; ``None`` if that is not so."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == _LF)
    starts = np.concatenate(([0], ends[:-1] + 1))
    last = raw[ends - 1 - ((ends - 1 > starts) & (raw[ends - 1] == _CR))]
    # between two lines stands "}\n{", which no object or array can contain: one object a line, if their number agrees
    if (
        b"\0" in data
        or not ((raw[starts] == _OPEN) & (last == _CLOSE)).all()
        or not is_utf8(data)
        or _may_be_deep(raw, starts, ends)
    ):
        return None
    schema = _schema(data[: int(ends[0])], columns)
    if schema is None:
        return None
    try:
        table = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(ends):
        return None
    arrays = {name: table.column(name).combine_chunks() for name in schema.names}
    for array in arrays.values():
        if pa.types.is_floating(array.type) and not np.isfinite(array.drop_null().to_numpy(zero_copy_only=False)).all():
            return None  # JSON has no such numbers; Python's reader says which spellings count
    return arrays


def _may_be_deep(raw: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]) -> bool:
    """Whether a line has so many brackets that it may be nested too deeply."""
    if (ends - starts).max() <= _DEEPEST:
        return False
    opening = (raw == _OPEN) | (raw == _BRACKET)
    return bool(np.add.reduceat(opening, starts, dtype=np.int64).max() > _DEEPEST)


def _schema(line: bytes, columns: Columns) -> pa.Schema | None:
    """The types of the columns in a line; ``None`` if Arrow should not read them."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fields: list[pa.Field] = []
    for name in columns.names:
        one = found.get(name)
        if isinstance(one, str):
            kind = pa.utf8()
        elif isinstance(one, bool):
            return None
        elif name == columns.value and not columns.labels and isinstance(one, (int, float, type(None))):
            kind = pa.float64()
        elif isinstance(one, int):
            kind = pa.int64()
        elif isinstance(one, float) and name in columns.times:
            kind = pa.float64()
        else:
            return None
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


class _Number(str):
    """The digits of a number as they stand in the file."""

    __slots__ = ()


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object of a line, its numbers as text; ``None`` if the line is not an object, or nested too deeply."""
    found = value_of(line)
    return found if isinstance(found, dict) else None


def value_of(text: bytes) -> Any:
    """What a text of JSON stands for, its numbers as text; ``None`` if it is none, or nested too deeply."""
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _depth(text) > _DEEPEST:
        return None
    try:
        return json.loads(text.decode("utf-8"), parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


def _depth(line: bytes) -> int:
    """How many objects and arrays of a line lie in one another; brackets in strings are none."""
    # pairs of backslashes first: what is left of them before a quote makes it part of the string
    raw = np.frombuffer(line.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    # one byte counts quotes well enough to tell odd from even
    outside = raw[np.cumsum(raw == _QUOTE, dtype=np.uint8) % 2 == 0]
    opened, closed = (outside == _OPEN) | (outside == _BRACKET), (outside == _CLOSE) | (outside == _BRACKET + 2)
    steps = opened[opened | closed].astype(np.int8) * 2 - 1
    return int(np.cumsum(steps).max(initial=0))


def _line_rows(block: LineBlock, columns: Columns) -> RawRows:
    names = columns.names
    rows: list[list[str | None]] = []
    numbers: list[int] = []
    malformed: list[int] = []
    for number, line in enumerate(block.data.split(b"\n")[:-1], start=block.first_line):
        if not line.strip():
            continue
        row = _row(line, columns)
        if row is None:
            malformed.append(number)
        else:
            rows.append(row)
            numbers.append(number)
    arrays = {name: pa.array([row[i] for row in rows], pa.utf8()) for i, name in enumerate(names)}
    return RawRows(arrays, _ints(numbers), _ints(malformed))


def _row(line: bytes, columns: Columns) -> list[str | None] | None:
    found = object_of(line)
    if found is None:
        return None
    row: list[str | None] = []
    for name in columns.names:
        one = found.get(name)
        if isinstance(one, str):
            if not is_text(one):
                return None
            # an integer of a column of names is 0 where a whole block is read, too
            is_zero = one == "-0" and type(one) is _Number and (columns.labels or name != columns.value)
            row.append("0" if is_zero else str(one))
        elif one is None:
            row.append(None)
        elif name in (columns.series, columns.group):
            return None
        else:
            row.append("true" if one is True else "false" if one is False else "[]")  # no value and no time either
    return row


def _ints(numbers: list[int]) -> npt.NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)
