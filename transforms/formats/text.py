"""Text files as blocks of whole lines, each with the number of its first line."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from .paths import SourceFileError

_BOM = b"\xef\xbb\xbf"

#: Lines longer than this many bytes are no readings; they are skipped without being held in memory.
LONGEST_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines.

    Attributes:
        first_line: number of the first line, from 1.
        data: the lines; each ends with a line feed. Empty for one line that was too long.
    """

    first_line: int
    data: bytes

    @property
    def lines(self) -> int:
        """How many lines the block stands for."""
        return self.data.count(b"\n") if self.data else 1


def is_text(text: str) -> bool:
    """Whether a string has a form in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def text_blocks(stream: BinaryIO, path: str, block_bytes: int) -> Iterator[Block]:
    """Cut a stream into blocks of about a size; a byte order mark is dropped, a missing last line feed added.

    Args:
        stream: the bytes.
        path: for messages.
        block_bytes: size of a block.

    Raises:
        SourceFileError: the stream breaks off.
    """
    line, skipping = 1, False
    held: list[bytes] = []
    for whole_chunk in _chunks(stream, path, block_bytes):
        chunk = whole_chunk
        if skipping:
            _, feed, chunk = chunk.partition(b"\n")
            if not feed:
                continue
            yield Block(line, b"")
            line, skipping = line + 1, False
        cut = chunk.rfind(b"\n") + 1
        if cut:
            block = Block(line, b"".join([*held, chunk[:cut]]))
            yield block
            line, held = line + block.lines, []
        if cut < len(chunk):
            held.append(chunk[cut:])
        if sum(map(len, held)) > LONGEST_LINE:
            held, skipping = [], True
    if skipping:
        yield Block(line, b"")
    elif held:
        yield Block(line, b"".join([*held, b"\n"]))


def _chunks(stream: BinaryIO, path: str, size: int) -> Iterator[bytes]:
    """The bytes of a stream without a byte order mark."""
    start = b""
    while len(start) < len(_BOM) and (more := _read(stream, path, size)):
        start += more
    start = start.removeprefix(_BOM)
    if start:
        yield start
    while chunk := _read(stream, path, size):
        yield chunk


def _read(stream: BinaryIO, path: str, size: int) -> bytes:
    try:
        return stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceFileError(
            f"file {path} breaks off or is damaged ({type(error).__name__}); restore it, for example by copying it "
            "again: readings behind the damage cannot be recovered, and releases without them would be final"
        ) from None


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
