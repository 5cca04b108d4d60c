"""Avro schemas: which records can be read as a whole, and what their logical times are.

The library reads what stands inside a record by calling itself. A type inside itself, some thousand levels deep, ends
the process that reads it, and an array of a million million things without bytes fills its memory: a few bytes do. So
records of a schema that allows it are read field by field. The fields that are asked for are single values; what is in
the others is passed over without being kept, level by level and not call by call.

>>> import io
>>> fields = [{"name": "v", "type": "int"}, {"name": "on", "type": ["null", "R"]}]
>>> shapes = Shapes(fastavro.parse_schema({"type": "record", "name": "R", "fields": fields}))
>>> shapes.is_plain
False
>>> shapes.fields(["v"])(io.BytesIO(bytes([2]) + bytes([2, 2]) * 50_000 + bytes([0])))
{'v': 1}

Time stamps of Avro: what their logical types are in Arrow, and schemas in which they are the integers that they are.

Arrow reads the integers at once, and none of them is out of Python's range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast, overload

import fastavro
import pyarrow as pa

__all__ = [
    "BYTES",
    "KEPT",
    "NAMED",
    "RECORDS",
    "TIMES",
    "Header",
    "ReadRecord",
    "Shapes",
    "bare",
    "check_header",
    "plain_times",
    "read_exactly",
    "read_long",
    "whole_record",
]


RECORDS, NAMED = frozenset({"record", "error"}), frozenset({"record", "error", "enum", "fixed"})

#: Bytes of what has always so many; those of the others are found in the record.
BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LONGS = frozenset({"int", "long", "enum"})
_COUNTED = frozenset({"bytes", "string"})

#: Types inside types, each counted as often as it is met: above this no size of a record bounds the work of reading it.
_MOST_TYPES = 100_000

#: Levels of what is passed over. What is deeper has no end that could be found in bounded memory.
_DEEPEST = 100_000

#: Levels of brackets in the text of a schema; the library parses it by calling itself.
_DEEPEST_SCHEMA = 200

_LONGEST_LONG = 10
_SYNC_BYTES = 16
_PART = 1 << 20

#: Bytes that are passed over at once: no block has as many, and no more can be asked for.
_LONGEST = 1 << 40

#: Bytes of what a header holds.
_LARGEST_HEADER = 1 << 24

#: Types within a record that the library reads as a whole: it makes an object of each, also of those without bytes.
_FEW_TYPES = 256

#: What becomes of bytes that are no UTF-8 in a text: they are its row's matter, and no reason to stop.
KEPT = "surrogateescape"

ReadRecord = Callable[[BinaryIO], dict[str, Any]]


class Shapes:
    """The types of a schema.

    Args:
        schema: as the library has parsed it, so that every name is whole.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._sizes: dict[str, float] = {}
        self._fewest: dict[str, int] = {}
        self._find(schema)

    @property
    def schema(self) -> Any:
        """The schema."""
        return self._schema

    @property
    def is_plain(self) -> bool:
        """Whether the size of a record bounds the work of reading it: the library may."""
        return self._types(self._schema) <= _MOST_TYPES

    def is_flat(self, wanted: Iterable[str]) -> bool:
        """Whether memory for a record is bounded by the schema and the size of single values: the library may read it.

        Args:
            wanted: fields that are single values.
        """
        names = frozenset(wanted)
        others = [one["type"] for one in self._schema["fields"] if one["name"] not in names]
        return self._types(self._schema) <= _FEW_TYPES and not any(map(self._repeats, others))

    def _repeats(self, kind: Any) -> bool:
        """Whether an array or map is within a type; it is within itself nowhere."""
        if isinstance(kind, list):
            return any(map(self._repeats, cast("list[Any]", kind)))
        kind = self.whole(kind)
        name = kind["type"] if isinstance(kind, dict) else kind
        if not isinstance(name, str):
            return self._repeats(name)
        return name in {"array", "map"} or (
            name in RECORDS and any(self._repeats(one["type"]) for one in kind["fields"])
        )

    def fields(self, wanted: Iterable[str]) -> ReadRecord:
        """A function that reads the wanted fields of a record and stands behind the record then.

        Args:
            wanted: fields that are single values.
        """
        names = frozenset(wanted)
        steps: list[tuple[ReadRecord | None, Any]] = []
        for one in self._schema["fields"]:
            alone = {"type": "record", "name": "quiltstream_field", "fields": [one]}
            if one["name"] in names:
                steps.append((whole_record(fastavro.parse_schema(alone)), one["type"]))
            elif not self._is_empty(one["type"]):
                steps.append((None, one["type"]))

        def read(stream: BinaryIO) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for whole, kind in steps:
                if whole is None:
                    self.pass_over(stream, kind)
                else:
                    found |= whole(stream)
            return found

        return read

    def pass_over(self, stream: BinaryIO, kind: Any) -> None:
        """Go behind a value.

        Raises:
            EOFError: the stream ends before.
            ValueError: there is no such value, or it is too deep.
        """
        inside = [iter([kind])]
        while inside:
            one = next(inside[-1], None)
            if one is None:
                inside.pop()
            elif (within := self._within(stream, self.whole(one))) is not None:
                if len(inside) >= _DEEPEST:
                    raise ValueError("a value has too many levels")
                inside.append(within)

    def _within(self, stream: BinaryIO, kind: Any) -> Iterator[Any] | None:
        """The types of what stands within a value; ``None`` if it is a single one, which is passed over."""
        if isinstance(kind, list):
            place = read_long(stream)
            if not 0 <= place < len(cast("list[Any]", kind)):
                raise ValueError("a union has no such type")
            kind = self.whole(kind[place])
        name = kind["type"] if isinstance(kind, dict) else kind
        if name in RECORDS:
            return (one["type"] for one in kind["fields"] if not self._is_empty(one["type"]))
        if name == "array":
            return self._items(stream, (), kind["items"])
        if name == "map":
            return self._items(stream, ("string",), kind["values"])
        if name in _LONGS:
            read_long(stream)
        elif name in _COUNTED:
            _skip(stream, read_long(stream))
        else:
            _skip(stream, kind["size"] if name == "fixed" else BYTES[name])
        return None

    def _items(self, stream: BinaryIO, before: tuple[str, ...], kind: Any) -> Iterator[Any]:
        """What is in the blocks of an array or map; things without bytes need no look at each."""
        empty = not before and self._is_empty(kind)
        size = None if before else self._size(kind)
        while count := read_long(stream):
            if count < 0:
                _skip(stream, read_long(stream))
            elif size is not None:
                _skip(stream, count * size)
            elif not empty:
                for _ in range(count):
                    yield from before
                    yield kind

    def _size(self, kind: Any) -> int | None:
        """The bytes of a type that has always so many, and some; ``None`` for others."""
        kind = self.whole(kind)
        name = kind["type"] if isinstance(kind, dict) else kind
        if not isinstance(name, str):
            return None
        if name in RECORDS and self._types(kind) <= _FEW_TYPES:
            sizes = [self._size(one["type"]) for one in kind["fields"] if not self._is_empty(one["type"])]
            whole = [size for size in sizes if size is not None]
            return sum(whole) or None if len(whole) == len(sizes) else None
        size = kind["size"] if name == "fixed" else BYTES.get(name)
        return size if size is not None and size > 0 else None

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
        """Whether values of a type have no bytes."""
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


def whole_record(schema: Any) -> ReadRecord:
    """A function that reads a record by the library, with all that it holds."""

    def read(stream: BinaryIO) -> dict[str, Any]:
        found: Any = fastavro.schemaless_reader(stream, schema, None, handle_unicode_errors=KEPT)
        return cast("dict[str, Any]", found)

    return read


class Header(NamedTuple):
    """What the header of a file says of its blocks.

    Attributes:
        codec: how they are packed.
        sync: the mark behind each.
        end: where the first begins.
    """

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
    """A number of Avro's variable length.

    Args:
        stream: where it begins.
        or_end: whether the stream may end before it; it is ``None`` then.

    Raises:
        EOFError: the stream ends within it.
        ValueError: it has too many bytes.
    """
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
    """So many bytes, for which no memory is taken before they are there.

    Raises:
        EOFError: the stream ends before.
    """
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


def _skip(stream: BinaryIO, size: int) -> None:
    if not 0 <= size <= _LONGEST or len(stream.read(size)) != size:
        raise EOFError


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
