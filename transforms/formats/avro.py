"""Avro object container files to columns, block by block, within a bounded memory.

No library reads Avro into Arrow columns, so this is the one format whose rows pass through Python objects, inside the
decoder only; Parquet holds the same readings and is read many times faster. A file is damaged where its bytes are no
records; what a record holds damages nothing (see :mod:`.avro_schemas`).

Two things damage a file although its bytes are what Avro allows. A schema of more than 200 levels is not parsed:
without it no record can be found. And behind a value of more than 100,000 levels the next record is not
looked for, because memory would have to grow with the depth. In both cases there are rows that cannot be found, so to
count one reject and go on would be to lose readings in silence: "damaged" says that some are missing, and how many is
not known.

Blocks are unpacked into a bounded memory, and batches end before they are large, whatever the
blocks are.

Blocks of Avro object container files, unpacked into a bounded memory.

A block says how many records it has and how many bytes, packed by the codec of the file. A few bytes of any codec can
stand for gigabytes, and a number of records for more than any memory holds. So no block is unpacked to more than
:data:`MOST_BYTES`, and none may claim more records than its bytes can hold; one that claims fewer, or a number below
nothing, would lose readings in silence, and damages its file.

>>> import io
>>> blocks = Blocks(io.BytesIO(bytes([2, 4]) + b"ab" + bytes(16)), codec="null", sync=bytes(16), fewest=1)
>>> [(block.records, block.data) for block in blocks]
[(1, b'ab')]

Columns of Avro files: what the values of records mean, apart from how records are read.

Records are read by a schema without logical types, so only bytes that are no records stop the reading of a file. What
the values mean is said by the column's logical types, column by column; a value that means nothing makes its own row a
reject, and nothing that a record holds becomes a statement about the file.

>>> dates = Meaning.of(["null", {"type": "int", "logicalType": "date"}])
>>> array, bad = dates.column([15706, None, 2**31 - 1])
>>> array.type, bad
(DataType(date32[day]), [])
>>> Meaning.of({"type": "string", "logicalType": "uuid"}).column(["x"])[1]
[0]
"""

from __future__ import annotations

import bz2
import io
import lzma
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import MAX_PREC, Context
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import fastavro
import numpy as np
import pyarrow as pa

from ...schemas.errors import QuiltstreamError
from ...schemas.settings.base import SettingsError
from ..common.batches import pc
from .avro_schemas import TIMES, ReadRecord, Shapes, bare, check_header, read_exactly, read_long, whole_record
from .csv import missing_column
from .paths import SourceFileError
from .rows import Columns, RawRows
from .text import is_text

__all__ = ["MOST_BYTES", "Block", "Blocks", "CodecError", "LargeBlockError", "Meaning"]


#: Bytes of a block, as they are in the file and unpacked. Writers make blocks of 16 kB to a few MB.
MOST_BYTES = 1 << 27

_PART = 1 << 20
_RAW_DEFLATE = -15
#: Bytes that unpacking xz may take: the largest dictionary of its presets has a quarter.
_XZ_MEMORY = 1 << 28
_CHECK_BYTES = 4
_LONGEST_LENGTH = 5


class LargeBlockError(QuiltstreamError, ValueError):
    """A block has, or unpacks to, more than :data:`MOST_BYTES`."""


class CodecError(QuiltstreamError, ValueError):
    """The blocks are packed by a codec that is not read."""


class Block(NamedTuple):
    """A block.

    Attributes:
        records: how many it has.
        data: their bytes.
    """

    records: int
    data: bytes


class Blocks:
    """The blocks of a file, one after another; it belongs to one reading.

    Args:
        stream: the bytes behind the header.
        codec: of the file.
        sync: its mark behind each block.
        fewest: bytes that a record has at least.

    Raises:
        CodecError: the codec is none that is read.
        ValueError: a record has no bytes, and a few bytes could claim any number of them.
    """

    def __init__(self, stream: BinaryIO, codec: str, sync: bytes, fewest: int) -> None:
        if codec not in _CODECS:
            raise CodecError("another codec")
        if not fewest:
            raise ValueError("records without bytes")
        self._stream = stream
        self._unpack = _CODECS[codec]
        self._sync = sync
        self._fewest = fewest

    def __iter__(self) -> Iterator[Block]:
        """The blocks.

        Raises:
            EOFError: the file ends within one.
            ValueError: one is damaged, or too large.
        """
        while True:
            count = read_long(self._stream, or_end=True)
            if count is None:
                return
            size = read_long(self._stream)
            if count < 0 or size < 0:
                raise ValueError("a block of fewer than no records or bytes")
            if size > MOST_BYTES:
                raise LargeBlockError("a block has too many bytes")
            data = self._unpack(read_exactly(self._stream, size))
            if len(data) > MOST_BYTES:
                raise LargeBlockError("a block unpacks to too many bytes")
            if count * self._fewest > len(data):
                raise ValueError("a block claims more records than it holds")
            if read_exactly(self._stream, len(self._sync)) != self._sync:
                raise ValueError("a block does not end with the mark of its file")
            yield Block(count, data)


def _plain(data: bytes) -> bytes:
    return data


def _deflated(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(_RAW_DEFLATE)
    return _whole(unpacker.decompress(data, MOST_BYTES + 1), unpacker.eof)


def _bzipped(data: bytes) -> bytes:
    unpacker = bz2.BZ2Decompressor()
    return _whole(unpacker.decompress(data, MOST_BYTES + 1), unpacker.eof)


def _xzipped(data: bytes) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    return _whole(unpacker.decompress(data, MOST_BYTES + 1), unpacker.eof)


def _whole(data: bytes, at_end: bool) -> bytes:
    if not at_end and len(data) <= MOST_BYTES:
        raise EOFError
    return data


def _zstandard(data: bytes) -> bytes:
    parts: list[bytes] = []
    size = 0
    with pa.input_stream(pa.BufferReader(data), compression="zstd", buffer_size=None) as stream:
        while size <= MOST_BYTES and (part := stream.read(_PART)):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def _snappy(data: bytes) -> bytes:
    packed, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    size = 0
    for place, byte in enumerate(packed[:_LONGEST_LENGTH]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - the last byte's highest bit is not set
            break
    # what it says it unpacks to is what memory is taken for
    if size > MOST_BYTES:
        raise LargeBlockError("a block unpacks to too many bytes")
    found = bytes(pa.decompress(packed, size, codec="snappy", asbytes=True))
    if zlib.crc32(found).to_bytes(_CHECK_BYTES, "big") != check:
        raise ValueError("a block with another checksum")
    return found


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": _plain,
    "deflate": _deflated,
    "bzip2": _bzipped,
    "xz": _xzipped,
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

#: Decimals of more digits than their precision are rounded, as long as they have no more than this.
_DIGITS = 4_096
_BITS_PER_DIGIT = 4


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the logical types of a column say.

    Attributes:
        time: Arrow type of its integers; ``None`` if they are no times.
        decimal: precision and scale of its bytes; ``None`` if they are no decimals.
        uuid: whether its text is UUIDs.
    """

    time: pa.DataType | None = None
    decimal: tuple[int, int] | None = None
    uuid: bool = False

    @classmethod
    def of(cls, kind: Any) -> Meaning:
        """The meaning of a field's type; a logical type that does not fit the type below it means nothing."""
        time, decimal, is_uuid = None, None, False
        for one in kind if isinstance(kind, list) else [kind]:
            if isinstance(one, dict) and "logicalType" in one:
                time = time or _time_of(one)
                decimal = decimal or _decimal_of(one)
                is_uuid |= (one["type"], one["logicalType"]) == ("string", "uuid")
        return cls(time, decimal, is_uuid)

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array; those of a union of text and numbers become text.

        Returns:
            The array, shape (n,), and the places of values that mean nothing, where it holds nulls.
        """
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
        """Decimals and UUIDs as Python's."""
        if self.decimal is None and not self.uuid:
            return values, []
        context = None if self.decimal is None else Context(prec=self.decimal[0])
        found: list[Any] = []
        bad: list[int] = []
        for place, one in enumerate(values):
            value = one
            try:
                if context is not None and isinstance(one, bytes):
                    value = self._decimal(one, context)
                elif self.uuid and isinstance(one, str):
                    value = str(uuid.UUID(one))
            except (ValueError, ArithmeticError):
                value = None
                bad.append(place)
            found.append(value)
        return found, bad

    def _decimal(self, raw: bytes, context: Context) -> Any:
        precision, scale = self.decimal or (0, 0)
        unscaled = int.from_bytes(raw, "big", signed=True)
        if unscaled.bit_length() > _BITS_PER_DIGIT * max(precision, _DIGITS):
            raise ValueError("a number of so many digits takes too long to read")
        return context.create_decimal(unscaled).scaleb(-scale, context)

    def _array(self, values: list[Any]) -> pa.Array:
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
    """What makes a column of the values of records; :class:`Meaning` does."""

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
