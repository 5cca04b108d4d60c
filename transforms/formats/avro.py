"""Avro object container files to columns, by fastavro within bounds.

The library alone can be ended by what it reads: types within types by recursion, as many values without bytes as a few
bytes say, blocks of any size, and what they unpack to. So a schema whose records have no bounded work, or more than 200
levels, is refused; blocks and what they unpack to have at most :data:`MOST_BYTES`; and a block must hold as many
records as it claims. What a record holds damages nothing: values are read without logical types, and one that means
nothing makes its own row a reject.

>>> is_bounded({"type": "record", "name": "R", "fields": [{"name": "on", "type": ["null", "R"]}]})
False
>>> type_of(["null", {"type": "int", "logicalType": "date"}])
DataType(date32[day])
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa

from ...schemas.errors import QuiltstreamError
from ..common.batches import as_floats, finite_float
from .columns import Columns, RawRows
from .jsonl import depth_of
from .paths import SourceFileError

#: Bytes of a block, as they are in the file and unpacked. Writers make blocks of 16 kB to a few MB.
MOST_BYTES = 1 << 27
#: Bytes of what is before the first block.
_HEADER_BYTES = 1 << 24
#: Bytes of the rows of a batch, unpacked.
_BATCH_BYTES = 1 << 26
#: Types inside types, each counted as often as it is met: above this no size of a record bounds the work of reading it.
_MOST_TYPES = 100_000
#: Levels of brackets in the text of a schema.
_DEEPEST = 200
#: What becomes of bytes that are no UTF-8 in a text: they are their row's matter, and no reason to stop.
_KEPT = "surrogateescape"


def _record(**fields: Any) -> Any:
    each = [{"name": name, "type": kind} for name, kind in fields.items()]
    return fastavro.parse_schema({"type": "record", "name": "quiltstream_part", "fields": each})


_SYNC = {"type": "fixed", "name": "quiltstream_sync", "size": 16}
_HEADER = _record(meta={"type": "map", "values": "bytes"}, sync=_SYNC)
_BLOCK = _record(count="long", data="bytes", sync=_SYNC)


class _RefusedError(QuiltstreamError, ValueError):
    """What a file holds is not read; the text has the next step, and nothing of the file."""


class _LargeError(QuiltstreamError, ValueError):
    """A block has, or unpacks to, more than :data:`MOST_BYTES`."""


def is_bounded(schema: Any) -> bool:
    """Whether the size of a record bounds the work of reading it."""
    try:
        return _measured(fastavro.parse_schema(bare(schema)), {})[0] <= _MOST_TYPES
    except _RefusedError:
        return False


def _measured(kind: Any, known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """How many types there are within one, and the fewest bytes of its values; ``known`` are those of named types."""
    if isinstance(kind, list):
        each = [_measured(one, known) for one in cast("list[Any]", kind)]
        return 1 + sum(types for types, _ in each), 1
    if isinstance(kind, str):
        return known.get(kind, (1, _LEAST.get(kind, 1)))
    name = kind["type"]
    if name in ("record", "error"):
        known[kind["name"]] = (_MOST_TYPES + 1, 1)  # what is met again while it is open is within itself
        each = [_measured(one["type"], known) for one in kind["fields"]]
        known[kind["name"]] = 1 + sum(types for types, _ in each), sum(least for _, least in each)
        return known[kind["name"]]
    if name in ("array", "map"):
        types, least = _measured(kind["items" if name == "array" else "values"], known)
        if name == "array" and not least:
            raise _RefusedError(_UNBOUNDED)
        return 1 + types, 1
    found = 1, max(kind["size"], 0) if name == "fixed" else _LEAST.get(name, 1) if isinstance(name, str) else 1
    if "name" in kind:
        known[kind["name"]] = found
    return found


#: The fewest bytes of values of types whose values may have none, or always have several.
_LEAST = {"null": 0, "float": 4, "double": 8}
_UNBOUNDED = (
    "has a schema that is not read: a type within itself, or an array of values without bytes; write one flat record "
    "for each reading"
)


def bare(schema: Any) -> Any:
    """A schema without logical types, and without the marks of the library: all that it says is how bytes are read."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: bare(one) for name, one in schema.items() if name != "logicalType" and not name.startswith("__")}


#: Logical types of times: the types that each may stand on, and what it is in Arrow.
_TIMES: dict[str, tuple[tuple[str, ...], pa.DataType]] = {
    "date": (("int",), pa.date32()),
    "time-millis": (("int",), pa.time32("ms")),
    "time-micros": (("long",), pa.time64("us")),
    **{
        f"{local}timestamp-{name}": (("int", "long"), pa.timestamp(unit, tz=None if local else "UTC"))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
        for local in ("", "local-")
    },
}
_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    **dict.fromkeys(("int", "long"), pa.int64()),
    **dict.fromkeys(("float", "double"), pa.float64()),
    **dict.fromkeys(("string", "enum"), pa.utf8()),
    **dict.fromkeys(("bytes", "fixed"), pa.binary()),
}
#: What is no single value.
_COMPOUND = pa.struct([])


def _kinds_of(kind: Any) -> list[dict[str, Any]]:
    """The types that a value may have, besides null."""
    each = cast("list[Any]", kind) if isinstance(kind, list) else [kind]
    found = [cast("dict[str, Any]", one) if isinstance(one, dict) else {"type": one} for one in each]
    return [one for one in found if one["type"] != "null"]


def type_of(kind: Any) -> pa.DataType:
    """The Arrow type of a field: text where it has several, of which none has a meaning beside its bytes."""
    kinds = _kinds_of(kind)
    if len(kinds) != 1:
        mixed = any(one["type"] not in _SIMPLE or "logicalType" in one for one in kinds)
        return _COMPOUND if mixed else pa.utf8() if kinds else pa.null()
    (one,) = kinds
    below, time = _TIMES.get(one.get("logicalType", ""), ((), None))
    if time is not None and one["type"] in below:
        return time
    return pa.float64() if _is_decimal(one) else _SIMPLE.get(one["type"], _COMPOUND)


def _is_decimal(one: dict[str, Any]) -> bool:
    scale = one.get("scale", 0)
    fits = one["type"] in ("bytes", "fixed") and isinstance(scale, int) and 0 <= scale <= _DIGITS
    return one.get("logicalType") == "decimal" and fits


#: Digits of a decimal: the time of reading one grows with the square of its digits.
_DIGITS = 4_096
_EXACT = Context(prec=_DIGITS)


@dataclass(frozen=True)
class _Reads:
    """What makes a column of the values of a field."""

    to: pa.DataType
    kind: dict[str, Any]

    @classmethod
    def of(cls, kind: Any) -> _Reads:
        kinds = _kinds_of(kind)
        return cls(type_of(kind), kinds[0] if len(kinds) == 1 else {"type": "union"})

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array, shape (n,), and the places of those that mean nothing."""
        try:
            return self._array(values), []
        except (pa.ArrowException, ArithmeticError, ValueError):
            parts, bad = list[pa.Array](), list[int]()
        for place, value in enumerate(values):
            try:
                parts.append(self._array([value]))
            except (pa.ArrowException, ArithmeticError, ValueError):
                parts.append(self._array([None]))
                bad.append(place)
        return pa.concat_arrays(parts), bad

    def _array(self, values: list[Any]) -> pa.Array:
        name = self.kind["type"]
        if pa.types.is_temporal(self.to):
            return pa.array(values, pa.int32() if self.to.bit_width == 32 else pa.int64()).view(self.to)  # noqa: PLR2004 - bits
        if name == "float":
            return as_floats(pa.array(values, pa.float32()))
        if _is_decimal(self.kind):
            values = [None if one is None else _number(one, self.kind.get("scale", 0)) for one in values]
        elif name == "union":
            values = [
                one.decode("utf-8") if isinstance(one, bytes) else None if one is None else str(one) for one in values
            ]
        return pa.array(values, self.to)


def _number(value: bytes, scale: int) -> float:
    if 2 * len(value) > _DIGITS:
        raise ValueError("a number of so many digits takes too long to read")
    return finite_float(Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _EXACT))


class _Bounded:
    """A stream that hands out no more at once than a block may have, and no more in all than ``left``."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._begun = stream, b""
        self.left: float = _HEADER_BYTES

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise ValueError("the header is too large")
        if size > MOST_BYTES:
            raise _LargeError
        begun, self._begun = self._begun, b""
        return begun + self._stream.read(size - len(begun))

    def at_end(self) -> bool:
        self._begun = self._stream.read(1)
        return not self._begun


def _unpacked(codec: str, data: bytes) -> bytes:
    """The data of a block, no more than :data:`MOST_BYTES`."""
    if codec == "null":
        return data
    if codec == "deflate":
        unpacker = zlib.decompressobj(-15)
        found = unpacker.decompress(data, MOST_BYTES + 1)
        if not unpacker.eof and len(found) <= MOST_BYTES:
            raise EOFError
    elif codec == "snappy":
        # what it says it unpacks to is what memory is taken for; its checksum is behind it
        until = next((at for at, byte in enumerate(data[:5], 1) if byte < 0x80), 5)  # noqa: PLR2004 - its highest bit
        size = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(data[:until]))
        found = b"" if size > MOST_BYTES else bytes(pa.decompress(data[:-4], size, codec="snappy", asbytes=True))
        if size > MOST_BYTES or zlib.crc32(found).to_bytes(4, "big") != data[-4:]:
            raise _LargeError if size > MOST_BYTES else ValueError("a block with another checksum")
    else:
        with pa.CompressedInputStream(pa.BufferReader(data), _STREAMS[codec]) as stream:
            found = stream.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise _LargeError
    return found


_STREAMS = {"zstandard": "zstd", "bzip2": "bz2"}
_CODECS = ("null", "deflate", "snappy", *_STREAMS)


class _File:
    """A file behind its header."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = _Bounded(stream)
        if self._stream.read(4) != b"Obj\x01":
            raise ValueError("no Avro file")
        header: Any = fastavro.schemaless_reader(cast("BinaryIO", self._stream), _HEADER, None)
        self._sync, text, self._stream.left = header["sync"], header["meta"]["avro.schema"], math.inf
        if depth_of(text) > _DEEPEST:
            raise ValueError("the schema has too many levels")
        self._codec = header["meta"].get("avro.codec", b"null").decode()
        schema: Any = fastavro.parse_schema(json.loads(text))
        if not isinstance(schema, dict) or schema["type"] != "record":
            raise _RefusedError("holds no records; write one record for each reading")
        self.fields: dict[str, Any] = {one["name"]: one["type"] for one in schema["fields"]}
        self._plain: Any = fastavro.parse_schema(bare(schema))

    def records(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The single values of each record, and the bytes that it has; of arrays and maps no object is made."""
        if self._codec not in _CODECS:
            raise _RefusedError(f"is packed by a codec that is not read; write it with {', '.join(_CODECS[1:])}")
        types, fewest = _measured(self._plain, {})
        if types > _MOST_TYPES:
            raise _RefusedError(_UNBOUNDED)
        fields = self._plain["fields"]
        single = [one for one in fields if type_of(one["type"]) != _COMPOUND]
        wanted = None if len(single) == len(fields) else fastavro.parse_schema(self._plain | {"fields": single})
        while not self._stream.at_end():
            block: Any = fastavro.schemaless_reader(cast("BinaryIO", self._stream), _BLOCK, None)
            data = _unpacked(self._codec, block["data"])
            count = block["count"]
            if block["sync"] != self._sync or count < 0 or (count and not fewest):
                raise ValueError("a block that does not end with the mark of its file, or claims what it does not hold")
            if count * fewest > len(data):
                raise ValueError("a block claims more records than it holds")
            rows, at = io.BytesIO(data), 0
            for _ in range(count):
                record: Any = fastavro.schemaless_reader(rows, self._plain, wanted, handle_unicode_errors=_KEPT)
                at, before = rows.tell(), at
                yield record, at - before
            if at != len(data):
                raise ValueError("a block holds more than its records")


@contextmanager
def _whole(path: str, at: Callable[[], str]) -> Generator[None]:
    """Whatever a decoder raises may quote what it read: here it becomes an error of the file, and of a place in it."""
    try:
        yield
    except _RefusedError as error:
        raise SourceFileError(f"file {path} {error}") from None
    except _LargeError:
        raise SourceFileError(
            f"file {path} has a block of more than {MOST_BYTES} bytes {at()}; write it with smaller blocks, or take it "
            "out of source.avro: releases without its readings would be final"
        ) from None
    except Exception as error:  # noqa: BLE001 - as said
        raise SourceFileError(
            f"file {path} is not a whole Avro file ({type(error).__name__} {at()}); write it again, or take it out of "
            "source.avro: releases without its readings would be final"
        ) from None


def columns_of(stream: BinaryIO, path: str) -> pa.Schema:
    """The fields of a file's records, and their types in Arrow."""
    with _whole(path, lambda: "at its header"):
        return pa.schema([(name, type_of(kind)) for name, kind in _File(stream).fields.items()])


def avro_rows(stream: BinaryIO, path: str, columns: Columns | None, batch_rows: int) -> Iterator[RawRows]:
    """Read a file: the columns that readings are made of, or all that hold single values."""
    with _whole(path, lambda: "at its header"):
        file = _File(stream)
    every = [name for name, kind in file.fields.items() if type_of(kind) != _COMPOUND]
    reads = {name: _Reads.of(file.fields[name]) for name in (every if columns is None else columns.names)}
    values: dict[str, list[Any]] = {name: [] for name in reads}
    gathered = [(values[name].append, name) for name in reads]
    row = size = 0
    with _whole(path, lambda: f"after row {row}"):
        for record, length in file.records():
            for append, name in gathered:
                append(record[name])
            row, size = row + 1, size + length
            held = len(next(iter(values.values())))
            if held >= batch_rows or size >= _BATCH_BYTES:
                yield _rows(values, reads, row)
                size = 0
    if row and next(iter(values.values())):
        yield _rows(values, reads, row)


def _rows(values: dict[str, list[Any]], reads: dict[str, _Reads], last: int) -> RawRows:
    """The rows that were gathered up to one; those with a value that means nothing are malformed."""
    count = len(next(iter(values.values())))
    arrays, keep = dict[str, pa.Array](), np.ones(count, dtype=np.bool_)
    for name, one in reads.items():
        arrays[name], bad = one.column(values[name])
        keep[bad] = False
        values[name].clear()
    positions = np.arange(last - count + 1, last + 1, dtype=np.int64)
    kept = pa.array(keep)
    return RawRows({name: array.filter(kept) for name, array in arrays.items()}, positions[keep], positions[~keep])
