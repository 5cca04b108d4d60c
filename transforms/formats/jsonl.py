"""JSON Lines files, and documents of JSON, to raw rows.

Lines that Arrow's reader does not take are read one by one with Python's: numbers stay text until they are read as
values, so that neither size nor spelling is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from .columns import Columns, RawRows
from .lines import HEAD_BYTES, Layout, Parsed, line_rows, read_text, text_blocks
from .paths import SourceFileError, is_text, is_utf8

_LF, _CR, _QUOTE, _OPEN, _CLOSE, _BRACKET = 10, 13, 34, 123, 125, 91

#: Objects and arrays in one another. Arrow's reader has no limit, and Python's depends on its caller: whether a line is
#: a reading must not.
_DEEPEST = 600

#: Bytes of a document, which is held as a whole.
LARGEST_DOCUMENT = 1 << 26
_MOST_VALUES = 8_000_000

#: Objects times keys of which columns are made at once.
_MOST_CELLS = 20_000_000


def keys_of(stream: BinaryIO, path: str) -> list[str] | None:
    """The keys of the objects at the start of a file; ``None`` where there is none."""
    block = next(iter(text_blocks(stream, path, HEAD_BYTES)), None)
    found = [] if block is None else [object_of(line) for line in block.data.split(b"\n")]
    return list(dict.fromkeys(key for one in found for key in one or {})) or None


def json_line_rows(stream: BinaryIO, path: str, layout: Layout, columns: Columns | None) -> Iterator[RawRows]:
    """Parse a file: the columns that readings are made of, or all that the first block has, what is no text as JSON."""
    blocks = text_blocks(stream, path, layout.block_bytes)
    if columns is not None:
        lines = _Lines(columns)
        yield from line_rows(blocks, lines.parse, lines.each, b" \t\r")
        return
    names: list[str] = []
    for block in blocks:
        parts = block.data.split(b"\n")[:-1] if block.data else [b"!"]
        found = [(number, object_of(one)) for number, one in enumerate(parts, block.first_line) if one.strip()]
        names = names or list(dict.fromkeys(key for _, one in found for key in one or {}))
        yield rows_of_objects(found, names, path)


def document_rows(stream: BinaryIO, path: str) -> Iterator[RawRows]:
    """A document: the elements of an array, or one object."""
    data = read_text(stream, path, LARGEST_DOCUMENT + 1)
    # a few bytes of a document are an object of some hundred
    if len(data) > LARGEST_DOCUMENT or sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise SourceFileError(
            f"file {path} is a document of over {LARGEST_DOCUMENT:,} bytes or {_MOST_VALUES:,} values; write it as "
            "JSON Lines"
        )
    found = _value_of(data.removeprefix(b"\xef\xbb\xbf"))
    if found is None:
        raise SourceFileError(f"file {path} is no document of JSON; check that it is whole")
    elements = enumerate(found if isinstance(found, list) else [found], 1)
    objects = [(at, one if isinstance(one, dict) else None) for at, one in elements]
    yield rows_of_objects(objects, list(dict.fromkeys(key for _, one in objects for key in one or {})), path)


def rows_of_objects(found: list[tuple[int, dict[str, Any] | None]], names: list[str], path: str) -> RawRows:
    """Numbered objects with all their columns."""
    objects = [one for _, one in found if one is not None]
    if len(objects) * len(names) > _MOST_CELLS:
        raise SourceFileError(
            f"file {path} has {len(names):,} different keys in {len(objects):,} objects; write the keys as values"
        )
    columns = {name: pa.array([_text(one.get(name)) for one in objects], pa.utf8()) for name in names}
    good, lost = ([at for at, one in found if (one is None) is bad] for bad in (False, True))
    return RawRows(columns, np.array(good, dtype=np.int64), np.array(lost, dtype=np.int64))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(value)


@dataclass(frozen=True)
class _Lines:
    """How the lines of a file are read."""

    columns: Columns

    def parse(self, data: bytes) -> Parsed | None:
        """Lines that each hold one object of the same types."""
        raw = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(raw == _LF)
        starts = np.concatenate(([0], ends[:-1] + 1))
        last = raw[ends - 1 - ((ends - 1 > starts) & (raw[ends - 1] == _CR))]
        # between two lines stands "}\n{", which no object or array can contain: one object a line, if their number
        # agrees
        in_order = ((raw[starts] == _OPEN) & (last == _CLOSE)).all()
        if not in_order or b"\0" in data or not is_utf8(data):
            return None
        if (ends - starts).max() > _DEEPEST and depth_of(data) > _DEEPEST:
            return None
        schema = self._schema(data[: int(ends[0])])
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
        floats = [array for array in arrays.values() if pa.types.is_floating(array.type)]
        # JSON has no number that is not finite; Python's reader says which spellings count
        finite = (np.isfinite(one.drop_null().to_numpy(zero_copy_only=False)).all() for one in floats)
        return (arrays, []) if all(finite) else None

    def _schema(self, line: bytes) -> pa.Schema | None:
        """The types of the columns in a line; ``None`` if Arrow should not read them."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        fields: list[pa.Field] = []
        for name in self.columns.names:
            one = found.get(name)
            is_value = name == self.columns.value and not self.columns.labels
            if isinstance(one, str):
                kind = pa.utf8()
            elif isinstance(one, bool):
                return None
            elif is_value and isinstance(one, (int, float, type(None))):
                kind = pa.float64()
            elif isinstance(one, int):
                kind = pa.int64()
            elif isinstance(one, float) and name in self.columns.times:
                kind = pa.float64()
            else:
                return None
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    def each(self, lines: list[bytes]) -> Parsed:
        """Lines one by one."""
        found = [self._row(object_of(line)) for line in lines]
        rows = [row for row in found if row is not None]
        arrays = {name: pa.array([row[at] for row in rows], pa.utf8()) for at, name in enumerate(self.columns.names)}
        return arrays, [place for place, row in enumerate(found) if row is None]

    def _row(self, found: dict[str, Any] | None) -> list[str | None] | None:
        row: list[str | None] = []
        for name in self.columns.names:
            one = None if found is None else found.get(name)
            if found is None or (isinstance(one, str) and not is_text(one)):
                return None
            if isinstance(one, str):
                # an integer of a column of names is 0 where a whole block is read, too
                is_zero = one == "-0" and type(one) is _Number and (self.columns.labels or name != self.columns.value)
                row.append("0" if is_zero else str(one))
            elif one is None:
                row.append(None)
            elif name in (self.columns.series, self.columns.group):
                return None
            else:
                row.append("true" if one is True else "false" if one is False else "[]")  # no value and no time either
        return row


class _Number(str):
    """The digits of a number as they stand in the file."""

    __slots__ = ()


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object of a line, its numbers as text; ``None`` if the line is not an object, or nested too deeply."""
    found = _value_of(line)
    return found if isinstance(found, dict) else None


def _value_of(text: bytes) -> Any:
    """What a text of JSON stands for, its numbers as text; ``None`` if it is none, or nested too deeply."""
    if text.count(b"[") + text.count(b"{") > _DEEPEST and depth_of(text) > _DEEPEST:
        return None
    try:
        return json.loads(text.decode("utf-8"), parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


def depth_of(line: bytes) -> int:
    """How many objects and arrays of a line lie in one another; brackets in strings are none."""
    # pairs of backslashes first: what is left of them before a quote makes it part of the string
    raw = np.frombuffer(line.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    # one byte counts quotes well enough to tell odd from even
    outside = raw[np.cumsum(raw == _QUOTE, dtype=np.uint8) % 2 == 0]
    opened, closed = (outside == _OPEN) | (outside == _BRACKET), (outside == _CLOSE) | (outside == _BRACKET + 2)
    steps = opened[opened | closed].astype(np.int8) * 2 - 1
    return int(np.cumsum(steps).max(initial=0))
