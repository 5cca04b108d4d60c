"""Text in blocks of whole lines, and blocks to raw rows without losing a line.

A record is one line, whatever its format: so every line has a number, and one that is bad costs itself. A block whose
lines are all in order goes to Arrow at once; another one is halved, and lines are read one by one where few are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ..common.batches import Ints
from .columns import RawRows
from .paths import DAMAGE, SourceFileError

_BOM = b"\xef\xbb\xbf"

#: Lines longer than this many bytes are no readings; they are skipped without being held in memory.
LONGEST_LINE = 1 << 24

#: How much of a file is looked at for its columns.
HEAD_BYTES = 1 << 16

#: Blocks of so few lines are read line by line.
_FEW = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """How the text of files is laid out."""

    delimiter: str = ","
    encoding: str = "utf-8"
    skip: int = 0  # lines before the names of the columns
    names: tuple[str, ...] = ()  # of the columns, where the file has no line of them
    block_bytes: int = 1 << 23


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some whole lines."""

    first_line: int  # number of the first line, from 1
    data: bytes  # the lines; each ends with a line feed. Empty for one line that was too long

    @property
    def lines(self) -> int:
        """How many lines the block stands for."""
        return self.data.count(b"\n") if self.data else 1


def text_blocks(stream: BinaryIO, path: str, block_bytes: int) -> Iterator[LineBlock]:
    """Cut a stream into blocks of about a size; a byte order mark is dropped, a missing last line feed added."""
    line, skipping = 1, False
    held: list[bytes] = []
    for whole_chunk in _chunks(stream, path, block_bytes):
        chunk = whole_chunk
        if skipping:
            _, feed, chunk = chunk.partition(b"\n")
            if not feed:
                continue
            yield LineBlock(line, b"")
            line, skipping = line + 1, False
        cut = chunk.rfind(b"\n") + 1
        if cut:
            block = LineBlock(line, b"".join([*held, chunk[:cut]]))
            yield block
            line, held = line + block.lines, []
        if cut < len(chunk):
            held.append(chunk[cut:])
        if sum(map(len, held)) > LONGEST_LINE:
            held, skipping = [], True
    if skipping:
        yield LineBlock(line, b"")
    elif held:
        yield LineBlock(line, b"".join([*held, b"\n"]))


def _chunks(stream: BinaryIO, path: str, size: int) -> Iterator[bytes]:
    """The bytes of a stream without a byte order mark."""
    start = b""
    while len(start) < len(_BOM) and (more := read_text(stream, path, size)):
        start += more
    start = start.removeprefix(_BOM)
    if start:
        yield start
    while chunk := read_text(stream, path, size):
        yield chunk


def read_text(stream: BinaryIO, path: str, size: int) -> bytes:
    """So many bytes of a file.

    Raises:
        SourceFileError: it is damaged.
    """
    try:
        return stream.read(size)
    except DAMAGE as error:
        raise SourceFileError(
            f"file {path} breaks off or is damaged ({type(error).__name__}); restore it, for example by copying it "
            "again: readings behind the damage cannot be recovered, and releases without them would be final"
        ) from None


#: Columns of the lines that are rows, and the places of the other lines.
Parsed = tuple[dict[str, pa.Array], list[int]]

#: Parses lines at once; ``None`` where Arrow's reader may not see one row in each.
Parse = Callable[[bytes], Parsed | None]

#: Parses lines one by one.
Each = Callable[[list[bytes]], Parsed]


def line_rows(blocks: Iterable[LineBlock], parse: Parse, each: Each, blank: bytes = b"\r") -> Iterator[RawRows]:
    """Raw rows of blocks; lines of nothing but ``blank`` are none, and lines that cannot be parsed malformed."""
    for block in blocks:
        numbers = np.arange(block.first_line, block.first_line + block.lines, dtype=np.int64)
        if not block.data:
            yield RawRows.lost(numbers)
        elif (parsed := parse(block.data)) is not None:
            yield _rows(parsed, numbers)
        else:
            lines = block.data.split(b"\n")[:-1]
            kept = [at for at, line in enumerate(lines) if line.strip(blank)]
            data = b"".join(lines[at] + b"\n" for at in kept)
            yield from _gathered(list(_halved(data, numbers[kept], parse, each)))


def _halved(data: bytes, numbers: Ints, parse: Parse, each: Each) -> Iterator[RawRows]:
    if not len(numbers):
        return
    if (parsed := parse(data)) is not None:
        yield _rows(parsed, numbers)
    elif len(numbers) <= _FEW:
        yield _rows(each([line.removesuffix(b"\r") for line in data.split(b"\n")[:-1]]), numbers)
    else:
        middle = len(data) // 2
        cut = data.find(b"\n", middle) + 1
        cut = cut if cut < len(data) else data.rfind(b"\n", 0, middle) + 1
        lines = data.count(b"\n", 0, cut)
        yield from _halved(data[:cut], numbers[:lines], parse, each)
        yield from _halved(data[cut:], numbers[lines:], parse, each)


def _rows(parsed: Parsed, numbers: Ints) -> RawRows:
    columns, bad = parsed
    return RawRows(columns, np.delete(numbers, bad) if bad else numbers, numbers[bad])


def _gathered(parts: list[RawRows]) -> Iterator[RawRows]:
    """Put parts whose columns have the same types together, so that few batches leave a damaged block."""
    if len(parts) == 1:
        yield parts[0]
        return
    alike: dict[tuple[Any, ...], list[RawRows]] = {}
    for part in parts:
        alike.setdefault(tuple(str(array.type) for array in part.columns.values()), []).append(part)
    for group in alike.values():
        whole = {name: pa.chunked_array([part.columns[name] for part in group]) for name in group[0].columns}
        yield RawRows(
            {name: column.unify_dictionaries().combine_chunks() for name, column in whole.items()},
            np.concatenate([part.positions for part in group]),
            np.concatenate([part.malformed for part in group]),
        )
