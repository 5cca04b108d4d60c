"""Avro object container files to columns, block by block, within a bounded memory; and which schemas are safe to read.

No library reads Avro into Arrow columns, so this is the one format whose rows pass through Python objects, inside the
decoder only; Parquet holds the same readings and is read many times faster.

*Schemas.* The library reads what is inside a record by recursion. A type inside itself, some thousand levels deep, ends
the process, and an array of many things without bytes fills its memory: a few bytes do. So a schema that allows either,
or has more than 200 levels, is refused. Of an array that is not needed a byte can still stand for an object of some
hundred: such fields are passed over.

*Damage.* A file is damaged where its bytes are no records; what a record holds damages nothing: values are read without
logical types, and a value that means nothing makes its own row a reject.

*Blocks.* A few bytes of any codec can stand for gigabytes, and a number of records for more than any memory holds. So
no block is unpacked to more than :data:`MOST_BYTES`, and none may claim more records than its bytes can hold; one that
claims fewer, or a negative number, would lose readings in silence, and damages its file.

>>> import io
>>> list(record_blocks(io.BytesIO(bytes([2, 4]) + b"ab" + bytes(16)), codec="null", sync=bytes(16), fewest=1))
[(1, b'ab')]
>>> fields = [{"name": "v", "type": "int"}, {"name": "on", "type": ["null", "R"]}]
>>> shapes = Shapes(fastavro.parse_schema({"type": "record", "name": "R", "fields": fields}))
>>> shapes.is_plain
False
>>> dates = Meaning.of(["null", {"type": "int", "logicalType": "date"}])
>>> array, bad = dates.column([15706, None, 2**31 - 1])
>>> array.type, bad
(DataType(date32[day]), [])
"""

from __future__ import annotations

import bz2
import io
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import MAX_PREC, Context
from typing import Any, BinaryIO, NamedTuple, Protocol, cast, overload

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from ...schemas.errors import QuiltstreamError
from ...schemas.settings.base import SettingsError
from ..common.batches import pc, shortest
from .paths import SourceFileError, is_text
from .rows import Columns, RawRows

RECORDS, NAMED = frozenset({"record", "error"}), frozenset({"record", "error", "enum", "fixed"})

#: Bytes of what has always so many; those of the others are found in the record.
BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}

#: Types inside types, each counted as often as it is met: above this no size of a record bounds the work of reading it.
_MOST_TYPES = 100_000

#: Levels of brackets in the text of a schema; the library parses it by calling itself.
_DEEPEST_SCHEMA = 200

_LONGEST_LONG = 10
_SYNC_BYTES = 16
_PART = 1 << 20

#: Bytes of what a header holds.
_LARGEST_HEADER = 1 << 24

#: What becomes of bytes that are no UTF-8 in a text: they are its row's matter, and no reason to stop.
KEPT = "surrogateescape"

ReadRecord = Callable[[BinaryIO], dict[str, Any]]


class Shapes:
    """The types of a parsed schema."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._named: dict[str, Any] = {}
        self._sizes: dict[str, float] = {}
        self._fewest: dict[str, int] = {}
        self._find(schema)

    @property
    def is_plain(self) -> bool:
        """Whether the size of a record bounds the work of reading it: the library may."""
        return self._types(self.schema) <= _MOST_TYPES

    def check_plain(self) -> None:
        """Refuse a schema that is not plain.

        Raises:
            RefusedError: it is not.
        """
        if not self.is_plain:
            raise RefusedError(
                "has a schema that is not read: a type within itself, or an array of values without bytes; write one "
                "flat record for each reading"
            )

    def repeats(self, kind: Any) -> bool:
        """Whether an array or map is within a type; in a plain schema none is within itself."""
        if isinstance(kind, list):
            return any(map(self.repeats, cast("list[Any]", kind)))
        kind = self.whole(kind)
        name = kind["type"] if isinstance(kind, dict) else kind
        if name in RECORDS:
            return any(self.repeats(one["type"]) for one in kind["fields"])
        return name in {"array", "map"}

    def whole(self, kind: Any) -> Any:
        """A type with its name replaced by what it stands for."""
        return self._named.get(kind, kind) if isinstance(kind, str) else kind

    def _find(self, kind: Any) -> None:
        for one in kind if isinstance(kind, list) else [kind]:
            if not isinstance(one, dict):
                continue
            if one["type"] in NAMED:
                self._named[one["name"]] = one
            for inner in (*(field["type"] for field in one.get("fields", ())), one.get("items"), one.get("values")):
                self._find(inner)

    def _types(self, kind: Any) -> float:
        """How many types there are within one; infinity if it is within itself, or holds many things without bytes."""
        if isinstance(kind, list):
            return 1 + sum(map(self._types, cast("list[Any]", kind)))
        kind = self.whole(kind)
        if not isinstance(kind, dict):
            return 1
        name = kind["type"]
        if name == "array":
            return float("inf") if self._is_empty(kind["items"]) else 1 + self._types(kind["items"])
        if name == "map":
            return 1 + self._types(kind["values"])
        if name not in RECORDS:
            return 1
        if kind["name"] not in self._sizes:
            # met again while it is open, it is within itself
            self._sizes[kind["name"]] = float("inf")
            self._sizes[kind["name"]] = 1 + sum(self._types(one["type"]) for one in kind["fields"])
        return self._sizes[kind["name"]]

    def _is_empty(self, kind: Any) -> bool:
        return self.fewest(kind) == 0

    def fewest(self, kind: Any) -> int:
        """The fewest bytes that a value of a type has."""
        kind = self.whole(kind)
        name = kind["type"] if isinstance(kind, dict) else kind
        if isinstance(name, list):
            return 1 + min(map(self.fewest, cast("list[Any]", name)), default=0)
        if name == "fixed":
            # the library takes any size; below nothing none has a value
            return kind["size"] if kind["size"] >= 0 else 1
        if name not in RECORDS:
            return BYTES.get(name, 1)
        if kind["name"] not in self._fewest:
            # met again while it is open, it is within itself
            self._fewest[kind["name"]] = 1
            self._fewest[kind["name"]] = sum(self.fewest(one["type"]) for one in kind["fields"])
        return self._fewest[kind["name"]]


def record_reader(shapes: Shapes, names: Iterable[str]) -> ReadRecord:
    """A function that reads a record by the library, and passes arrays and maps over that are not wanted."""
    wanted, known, parts = frozenset(names), {}, []
    passed = itertools.groupby(
        shapes.schema["fields"], lambda one: one["name"] not in wanted and shapes.repeats(one["type"])
    )
    for number, (is_passed, fields) in enumerate(passed):
        whole = {"type": "record", "name": f"quiltstream_{number}", "fields": list(fields)}
        # in order, since a type is written out where it stands first
        parsed = fastavro.parse_schema(whole, named_schemas=known)
        parts.append((parsed, fastavro.parse_schema(whole | {"fields": []}) if is_passed else None))

    def read(stream: BinaryIO) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for schema, nothing in parts:
            part: Any = fastavro.schemaless_reader(stream, schema, nothing, handle_unicode_errors=KEPT)
            found = found | part if found else part
        return found

    return read


class Header(NamedTuple):
    """What the header of a file says of its blocks."""

    codec: str
    sync: bytes
    end: int


def check_header(stream: BinaryIO) -> Header:
    """See whether the schema of a file can be parsed; the stream stands at its start afterwards.

    Raises:
        EOFError: the stream ends before.
        ValueError: it is no Avro file, or its schema is too deep.
    """
    if stream.read(4) != b"Obj\x01":
        raise ValueError("no Avro file")
    codec, held = b"null", 0
    while count := read_long(stream):
        if count < 0:
            read_long(stream)
        for _ in range(abs(count)):
            name, value = _counted(stream), _counted(stream)
            held += len(name) + len(value)
            if held > _LARGEST_HEADER:
                raise ValueError("the header is too large")
            if name == b"avro.schema" and _is_deep(value):
                raise ValueError("the schema has too many levels")
            if name == b"avro.codec":
                codec = value
    header = Header(codec.decode("utf-8"), read_exactly(stream, _SYNC_BYTES), stream.tell())
    stream.seek(0)
    return header


def _is_deep(text: bytes) -> bool:
    """Whether a text of JSON has too many brackets within brackets; those in strings count too, and few have them."""
    depth = 0
    for one in text:
        if one in b"{[":
            depth += 1
            if depth > _DEEPEST_SCHEMA:
                return True
        elif one in b"}]":
            depth -= 1
    return False


@overload
def read_long(stream: BinaryIO) -> int: ...
@overload
def read_long(stream: BinaryIO, *, or_end: bool) -> int | None: ...
def read_long(stream: BinaryIO, *, or_end: bool = False) -> int | None:
    """A number of Avro's variable length."""
    number = 0
    for place in range(_LONGEST_LONG):
        data = stream.read(1)
        if not data:
            if or_end and not place:
                return None
            raise EOFError
        number |= (data[0] & 0x7F) << (7 * place)
        if data[0] < 0x80:  # noqa: PLR2004 - the last byte's highest bit is not set
            return (number >> 1) ^ -(number & 1)
    raise ValueError("a number is too long")


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, for which no memory is taken before they are there."""
    parts: list[bytes] = []
    missing = size
    while missing > 0:
        part = stream.read(min(missing, _PART))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _counted(stream: BinaryIO) -> bytes:
    size = read_long(stream)
    if size < 0:
        raise EOFError
    if size > _LARGEST_HEADER:
        raise ValueError("the header is too large")
    return read_exactly(stream, size)


#: Logical types of times.
TIMES: dict[str, pa.DataType] = {
    f"{local}timestamp-{name}": pa.timestamp(unit, tz=None if local else "UTC")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    for local in ("", "local-")
}


def plain_times(schema: Any) -> Any:
    """A schema whose time stamps are integers, without the marks of the library."""
    if isinstance(schema, list):
        return [plain_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") in TIMES:
        return schema["type"]
    return {name: plain_times(value) for name, value in schema.items() if not name.startswith("__")}


def bare(schema: Any) -> Any:
    """A schema without logical types, and without the marks of the library: all that it says is how bytes are read."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    left = {name: value for name, value in schema.items() if name != "logicalType" and not name.startswith("__")}
    return {name: bare(value) for name, value in left.items()}


#: Decimals of more digits than their precision are rounded, as long as they have no more than this: the time of reading
#: one grows with the square of its digits.
_DIGITS = 4_096
_BITS_PER_DIGIT = 4


def _short_decimal(value: bytes, writer: Any, reader: Any = None) -> Any:
    if 8 * len(value) > _BITS_PER_DIGIT * _DIGITS:
        raise ValueError(_TOO_LONG)
    return LOGICAL_READERS["bytes-decimal"](value, writer, reader)


_TOO_LONG = "a number of so many digits takes too long to read"
_SHORT_DECIMAL = "quiltstream-short-decimal"
LOGICAL_READERS.update({f"{kind}-{_SHORT_DECIMAL}": _short_decimal for kind in ("bytes", "fixed")})

#: A logical type of our own, by which the library makes of a float of 32 bits the decimal that it stands for.
_DECIMAL_FLOAT = {"type": "float", "logicalType": "quiltstream-decimal"}
LOGICAL_READERS["float-quiltstream-decimal"] = lambda value, _writer, _reader: shortest(value)


def decimal_floats(schema: Any) -> Any:
    """A schema by which the library reads floats of 32 bits as :func:`.batches.as_floats` does, without its marks.

    Decimals of very many digits are an error, also in fields that no mapping names.
    """
    if schema == "float":
        return _DECIMAL_FLOAT
    if isinstance(schema, list):
        return [decimal_floats(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in cast("dict[str, Any]", schema).items() if not name.startswith("__")}
    if found["type"] == "float":
        return found | _DECIMAL_FLOAT
    if found.get("logicalType") == "decimal":
        found["logicalType"] = _SHORT_DECIMAL
    within = {name: decimal_floats(found[name]) for name in ("items", "values") if name in found}
    if "fields" in found:
        within["fields"] = [one | {"type": decimal_floats(one["type"])} for one in found["fields"]]
    return found | within


#: Bytes of a block, as they are in the file and unpacked. Writers make blocks of 16 kB to a few MB.
MOST_BYTES = 1 << 27

_RAW_DEFLATE = -15
#: Bytes that unpacking xz may take: the largest dictionary of its presets has a quarter.
_XZ_MEMORY = 1 << 28
_CHECK_BYTES = 4
_LONGEST_LENGTH = 5


class LargeBlockError(QuiltstreamError, ValueError):
    """A block has, or unpacks to, more than :data:`MOST_BYTES`."""


class RefusedError(QuiltstreamError, ValueError):
    """What a file's header says of its records is not read; the text has the next step, and nothing of the file."""


def record_blocks(stream: BinaryIO, codec: str, sync: bytes, fewest: int) -> Iterator[tuple[int, bytes]]:
    """The blocks of a file: how many records each has, and its data.

    Raises:
        RefusedError: the codec is none that is read.
        ValueError: a record has no bytes, and a few bytes could claim any number of them.
    """
    if codec not in _CODECS:
        raise RefusedError(f"is packed by a codec that is not read; write it with {', '.join(list(_CODECS)[1:])}")
    if not fewest:
        raise ValueError("records without bytes")
    return _blocks(stream, _CODECS[codec], sync, fewest)


def _blocks(
    stream: BinaryIO, unpack: Callable[[bytes], bytes], sync: bytes, fewest: int
) -> Iterator[tuple[int, bytes]]:
    while (count := read_long(stream, or_end=True)) is not None:
        size = read_long(stream)
        if count < 0 or size < 0:
            raise ValueError("a block of fewer than no records or bytes")
        if size > MOST_BYTES:
            raise LargeBlockError("a block has too many bytes")
        data = unpack(read_exactly(stream, size))
        if len(data) > MOST_BYTES:
            raise LargeBlockError("a block unpacks to too many bytes")
        if count * fewest > len(data):
            raise ValueError("a block claims more records than it holds")
        if read_exactly(stream, len(sync)) != sync:
            raise ValueError("a block does not end with the mark of its file")
        yield count, data


def _decompressed(unpacker: Any, data: bytes) -> bytes:
    found = unpacker.decompress(data, MOST_BYTES + 1)
    if not unpacker.eof and len(found) <= MOST_BYTES:
        raise EOFError
    return found


def _zstandard(data: bytes) -> bytes:
    parts: list[bytes] = []
    size = 0
    with pa.input_stream(pa.BufferReader(data), compression="zstd", buffer_size=None) as stream:
        while size <= MOST_BYTES and (part := stream.read(_PART)):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def snappy_size(block: bytes) -> int:
    """How many bytes a block of snappy holds, as it says itself; the library refuses one that holds others.

    Raises:
        ValueError: it does not say.
    """
    size = 0
    for place, byte in enumerate(block[:_LONGEST_LENGTH]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - the last byte's highest bit is not set
            return size
    raise ValueError("no length")


def _snappy(data: bytes) -> bytes:
    packed, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    size = snappy_size(packed)
    # what it says it unpacks to is what memory is taken for
    if size > MOST_BYTES:
        raise LargeBlockError("a block unpacks to too many bytes")
    found = bytes(pa.decompress(packed, size, codec="snappy", asbytes=True))
    if zlib.crc32(found).to_bytes(_CHECK_BYTES, "big") != check:
        raise ValueError("a block with another checksum")
    return found


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: _decompressed(zlib.decompressobj(_RAW_DEFLATE), data),
    "bzip2": lambda data: _decompressed(bz2.BZ2Decompressor(), data),
    "xz": lambda data: _decompressed(lzma.LZMADecompressor(memlimit=_XZ_MEMORY), data),
    "zstandard": _zstandard,
    "snappy": _snappy,
}


#: Further logical types of times: the type that each stands on, and what it is in Arrow.
_OTHER_TIMES: dict[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "time-millis": ("int", pa.time32("ms")),
    "time-micros": ("long", pa.time64("us")),
}

_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the type of a column says besides how its bytes are read."""

    time: pa.DataType | None = None  # arrow type of its integers; ``None`` if they are no times
    decimal: tuple[int, int] | None = None  # precision and scale of its bytes; ``None`` if they are no decimals
    single: bool = False  # whether its numbers are floats of 32 bits

    @classmethod
    def of(cls, kind: Any) -> Meaning:
        """The meaning of a field's type; a logical type that does not fit the type below it means nothing."""
        time, decimal = None, None
        kinds = cast("list[Any]", kind) if isinstance(kind, list) else [kind]
        names = {one["type"] if isinstance(one, dict) else one for one in kinds}
        for one in kinds:
            if isinstance(one, dict) and "logicalType" in one:
                time = time or _time_of(one)
                decimal = decimal or _decimal_of(one)
        return cls(time, decimal, single=names - {"null"} == {"float"})

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array, those of text and numbers as text; and the places of values that mean nothing."""
        values, bad = self._read(values)
        try:
            return self._array(values), bad
        except UnicodeEncodeError:
            broken = [place for place, one in enumerate(values) if isinstance(one, str) and not is_text(one)]
            values = list(values)
            for place in broken:
                values[place] = None
            return self._array(values), sorted({*bad, *broken})

    def _read(self, values: list[Any]) -> tuple[list[Any], list[int]]:
        if self.decimal is None:
            return values, []
        context = Context(prec=self.decimal[0])
        found: list[Any] = []
        bad: list[int] = []
        for place, one in enumerate(values):
            value = one
            try:
                if isinstance(one, bytes):
                    value = self._decimal(one, context)
            except (ValueError, ArithmeticError):
                value = None
                bad.append(place)
            found.append(value)
        return found, bad

    def _decimal(self, raw: bytes, context: Context) -> Any:
        precision, scale = self.decimal or (0, 0)
        unscaled = int.from_bytes(raw, "big", signed=True)
        if unscaled.bit_length() > _BITS_PER_DIGIT * max(precision, _DIGITS):
            raise ValueError(_TOO_LONG)
        return context.create_decimal(unscaled).scaleb(-scale, context)

    def _array(self, values: list[Any]) -> pa.Array:
        if self.single:
            return pa.array(values, pa.float32())
        try:
            array = pa.array(values)
        except (pa.ArrowException, TypeError, OverflowError):
            array = None
        if self.time is None:
            return array if array is not None else pa.array([_text(one) for one in values], pa.utf8())
        if array is not None and (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
            return _times(array, self.time)
        numbers = pa.array([one if type(one) is int else None for one in values], pa.int64())
        times = _times(numbers, self.time).cast(pa.utf8()).to_pylist()
        texts = [time if time is not None else _text(one) for time, one in zip(times, values, strict=True)]
        return pa.array(texts, pa.utf8())


def _time_of(one: dict[str, Any]) -> pa.DataType | None:
    kind = one["logicalType"]
    if kind in _OTHER_TIMES:
        below, time = _OTHER_TIMES[kind]
        return time if one["type"] == below else None
    return TIMES.get(kind) if one["type"] in {"int", "long"} else None


def _decimal_of(one: dict[str, Any]) -> tuple[int, int] | None:
    precision, scale = one.get("precision"), one.get("scale", 0)
    if one["logicalType"] != "decimal" or one["type"] not in {"bytes", "fixed"}:
        return None
    if not (isinstance(precision, int) and isinstance(scale, int)):
        return None
    return (precision, scale) if 0 < precision <= MAX_PREC and scale >= 0 else None


def _times(numbers: pa.Array, time: pa.DataType) -> pa.Array:
    """Integers as times; none of them is out of the range that Arrow's integers have."""
    if time.bit_width == 64:  # noqa: PLR2004 - bits
        return numbers.cast(pa.int64()).view(time)
    # an int of Avro that is none is no time either
    low, high = pa.scalar(-_INT32 - 1, pa.int64()), pa.scalar(_INT32, pa.int64())
    inside = pc.max_element_wise(numbers.cast(pa.int64()), low, skip_nulls=False)
    return pc.min_element_wise(inside, high, skip_nulls=False).cast(pa.int32()).view(time)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


#: Bytes of the rows of a batch, unpacked; the last row may have more.
_MOST_BYTES = 1 << 26

_SIMPLE = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes", "enum", "fixed"})


def types_of(stream: BinaryIO, path: str) -> dict[str, Any]:
    """The fields of a file's records, and their types."""
    schema = _reader(stream, path).writer_schema
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SettingsError(f"source.avro: {path} holds no records; write one record for each reading")
    return {one["name"]: one["type"] for one in schema["fields"]}


def columns_of(stream: BinaryIO, path: str) -> pa.Schema:
    """The fields of a file's records; what single values are is known only when they are read."""
    kinds = types_of(stream, path)
    return pa.schema([(name, pa.utf8() if _is_simple(kind) else pa.struct([])) for name, kind in kinds.items()])


def _single_values(kinds: dict[str, Any]) -> list[str]:
    return [name for name, kind in kinds.items() if _is_simple(kind)]


def _is_simple(kind: Any) -> bool:
    if isinstance(kind, list):
        return all(_is_simple(one) for one in kind)
    return (kind["type"] if isinstance(kind, dict) else kind) in _SIMPLE


class Reads(Protocol):
    """What makes a column of the values of records; :class:`Meaning` does."""

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array, shape (n,), and the places of those that mean nothing."""
        ...


def avro_rows(
    stream: BinaryIO,
    path: str,
    columns: Columns | Callable[[dict[str, Any]], Columns] | None,
    batch_rows: int,
    reads: Callable[[str, Any], Reads] = lambda _, kind: Meaning.of(kind),
) -> Iterator[RawRows]:
    """Read a file."""
    read, meanings, blocks = _opened(stream, path, columns, reads)
    gathered = _Gathered(meanings)
    try:
        for count, data in blocks:
            yield from _block_rows(count, data, read, gathered, batch_rows)
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
    columns: Columns | Callable[[dict[str, Any]], Columns] | None,
    reads: Callable[[str, Any], Reads],
) -> tuple[ReadRecord, dict[str, Reads], Iterator[tuple[int, bytes]]]:
    try:
        header = check_header(stream)
        writer_schema = cast("Any", fastavro.block_reader(stream)).writer_schema
        kinds: dict[str, Any] = {one["name"]: one["type"] for one in writer_schema["fields"]}
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    needed = columns(kinds) if callable(columns) else columns
    names = _single_values(kinds) if needed is None else needed.names
    try:
        shapes = Shapes(fastavro.parse_schema(bare(writer_schema)))
        shapes.check_plain()
        read = record_reader(shapes, names)
        meanings = {name: reads(name, kinds[name]) for name in names}
        stream.seek(header.end)
        blocks = record_blocks(stream, header.codec, header.sync, shapes.fewest(shapes.schema))
    except RefusedError as error:
        raise SourceFileError(f"file {path} {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises may quote what it read
        raise _damaged(path, error, "at its header") from None
    return read, meanings, blocks


def _block_rows(count: int, data: bytes, read: ReadRecord, gathered: _Gathered, batch_rows: int) -> Iterator[RawRows]:
    records = io.BytesIO(data)
    at = 0
    for _ in range(count):
        record = read(records)
        behind = records.tell()
        gathered.add(record, behind - at)
        at = behind
        if gathered.rows >= batch_rows or gathered.size >= _MOST_BYTES:
            yield gathered.take()
    if at != len(data):
        raise ValueError("a block holds more than its records")


class _Gathered:
    """The rows of a batch, column by column: of what a record holds besides nothing is kept."""

    def __init__(self, meanings: dict[str, Reads]) -> None:
        self._meanings = meanings
        self._values: dict[str, list[Any]] = {name: [] for name in meanings}
        self._columns = [(values.append, name) for name, values in self._values.items()]
        self.before, self.rows, self.size = 0, 0, 0

    def add(self, record: dict[str, Any], size: int) -> None:
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
