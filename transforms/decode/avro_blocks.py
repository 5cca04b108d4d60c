"""Blocks of Avro object container files, unpacked into a bounded memory.

A block says how many records it has and how many bytes, packed by the codec of the file. A few bytes of any codec can
stand for gigabytes, and a number of records for more than any memory holds. So no block is unpacked to more than
:data:`MOST_BYTES`, and none may claim more records than its bytes can hold; one that claims fewer, or a number below
nothing, would lose readings in silence, and damages its file.

>>> import io
>>> blocks = Blocks(io.BytesIO(bytes([2, 4]) + b"ab" + bytes(16)), codec="null", sync=bytes(16), fewest=1)
>>> [(block.records, block.data) for block in blocks]
[(1, b'ab')]
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from .avro_shapes import read_exactly, read_long

#: Bytes of a block, as they are in the file and unpacked. Writers make blocks of 16 kB to a few MB.
MOST_BYTES = 1 << 27

_PART = 1 << 20
_RAW_DEFLATE = -15
#: Bytes that unpacking xz may take: the largest dictionary of its presets has a quarter.
_XZ_MEMORY = 1 << 28
_CHECK_BYTES = 4
_LONGEST_LENGTH = 5


class LargeBlockError(ValueError):
    """A block has, or unpacks to, more than :data:`MOST_BYTES`."""


class CodecError(ValueError):
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


__all__ = ["MOST_BYTES", "Block", "Blocks", "CodecError", "LargeBlockError"]
