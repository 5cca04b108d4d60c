"""Feeds: sources that never end, as the live reader sees them.

A feed has parts, each with a position of its own. A reader of a part gives pieces: batches of readings, and the
position behind them, which is all that a runner keeps; a reader made at that position goes on there. Reading a piece
twice is harmless, because cells take maxima; leaving one out is not.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..schemas.readings import RejectReason
from ..schemas.settings import SettingsError
from .decode import FileDecoder
from .decode_rows import Decoded
from .decode_text import LONGEST_LINE
from .files import SourceFileError, present
from .rejects import Rejects, reject_batch

#: Where a part begins.
BEGIN = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a reader read at once.

    Attributes:
        position: where to go on.
        settled: whether nothing more was waiting behind it, so that the part's clock may move.
        batches: readings.
        rejects: batches of ``REJECT_SCHEMA``.
        rejected: how many rows were rejected, by reason.
        rows: readings in the batches.
        latest_us: instant of the latest reading, or ``None`` without any.
    """

    position: str
    settled: bool
    batches: tuple[pa.RecordBatch, ...] = ()
    rejects: tuple[pa.RecordBatch, ...] = ()
    rejected: dict[RejectReason, int] = field(default_factory=dict)
    rows: int = 0
    latest_us: int | None = None


class Reader(ABC):
    """Reads one part from a position on; it belongs to one worker."""

    @abstractmethod
    def read(self) -> Piece | None:
        """The next piece; ``None`` if nothing is there now."""

    @property
    def ended(self) -> bool:
        """Whether nothing will ever come again."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class Feed(ABC):
    """A source that never ends; a plain value that travels to any worker."""

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return 1

    @abstractmethod
    def reader(self, part: int, position: str) -> Reader:
        """A reader of a part from a position on."""


def piece_of(source: str, decoded: list[Decoded], position: str, *, settled: bool) -> Piece:
    """Decoded rows as a piece.

    Args:
        source: name of the source in rejects.
        decoded: the rows.
        position: where to go on.
        settled: whether nothing more was waiting.
    """
    batches = tuple(one.readings for one in decoded if one.readings is not None)
    rejected: dict[RejectReason, int] = {}
    for one in decoded:
        for reject in one.rejects:
            rejected[reject.reason] = rejected.get(reject.reason, 0) + len(reject.positions)
    return Piece(
        position=position,
        settled=settled,
        batches=batches,
        rejects=tuple(reject_batch(source, one.rejects) for one in decoded if one.rejects),
        rejected=rejected,
        rows=sum(one.num_rows for one in batches),
        latest_us=max((_latest(one) for one in batches), default=None),
    )


def _latest(batch: pa.RecordBatch) -> int:
    return int(batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False).max())


@dataclass(frozen=True)
class ArrivingFiles(Feed):
    """Files that appear under some patterns.

    A file must be whole when it appears under its name: write it elsewhere, or under a name that no pattern matches,
    and rename it. Files that are there at the start are all read before any window closes. A file that changes after it
    was read is not read again. A damaged file is passed over, counted and rejected; the others go on.

    Attributes:
        decoder: how a file is read.
        patterns: absolute paths or patterns.
    """

    decoder: FileDecoder
    patterns: tuple[str, ...]

    def reader(self, part: int, position: str) -> Reader:
        """A reader that knows which files were read."""
        return _FileReader(self, position)


class _FileReader(Reader):
    def __init__(self, feed: ArrivingFiles, position: str) -> None:
        self._feed = feed
        self._done = _Names(json.loads(position) if position else ())
        self._waiting: list[str] = []
        self._rows = feed.decoder.rows()

    def read(self) -> Piece | None:
        if not self._waiting:
            there = present(self._feed.patterns)
            self._waiting = [path for path in there if path not in self._done][::-1]
            # a file that is gone cannot come twice: what is kept does not grow with time
            self._done.keep(there)
        if not self._waiting:
            return None
        path = self._waiting.pop()
        decoded = self._decode(path)
        self._done.add(path)
        return piece_of(path, decoded, self._done.text, settled=not self._waiting)

    def _decode(self, path: str) -> list[Decoded]:
        decoder, decoded = self._feed.decoder, list[Decoded]()
        try:
            for task in decoder.tasks(path):
                decoded += [self._rows.decode(raw) for raw in decoder.raw_rows(task)]
        except (SettingsError, SourceFileError):
            damaged = Rejects(RejectReason.DAMAGED_SOURCE, np.array([-1], dtype=np.int64))
            decoded.append(Decoded(None, 0, (damaged,)))
        return decoded

    def close(self) -> None:
        self._waiting = []


class _Names:
    """The files that were read, in their order, and as JSON that is added to: a folder may hold very many."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, None] = {}
        self._text = "["
        for name in names:
            self.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        self._text += ("," if self._names else "") + json.dumps(name)
        self._names[name] = None

    def keep(self, names: Iterable[str]) -> None:
        """Forget all others."""
        kept = set(names)
        if not kept.issuperset(self._names):
            before, self._names, self._text = self._names, {}, "["
            for name in before:
                if name in kept:
                    self.add(name)

    @property
    def text(self) -> str:
        """The names as JSON."""
        return self._text + "]"


@dataclass(frozen=True)
class StandardInput(Feed):
    """Lines of standard input, as they come; they can be read once, in the process that has it.

    Attributes:
        decoder: how lines are read: ``jsonl``, or ``csv`` with a first line of names.
    """

    decoder: FileDecoder

    def reader(self, part: int, position: str) -> Reader:
        """The process's only reader of its standard input."""
        return _LineReader(self, _lines_of(sys.stdin.buffer), position)


#: Bytes that one piece has at most, about.
_PIECE_BYTES = 4 << 20


class _Lines:
    """Standard input, read by a thread of its own so that nobody waits for it."""

    def __init__(self, stream: Any) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(maxsize=16)
        self.over = threading.Event()
        self.header: bytes | None = None
        self.taken = 0
        threading.Thread(target=self._read, args=(stream,), name="quiltstream-stdin", daemon=True).start()

    def _read(self, stream: Any) -> None:
        begun = b""
        try:
            while chunk := stream.read1(1 << 20):
                begun += chunk
                end = begun.rfind(b"\n") + 1
                # it is cut, and what is left of it malformed
                if not end and len(begun) > LONGEST_LINE:
                    begun, end = begun + b"\n", len(begun) + 1
                if end:
                    self._chunks.put(begun[:end])
                    begun = begun[end:]
            if begun:
                self._chunks.put(begun + b"\n")
        finally:
            self.over.set()

    def take(self) -> bytes:
        """The whole lines that are there."""
        taken: list[bytes] = []
        size = 0
        while size < _PIECE_BYTES:
            try:
                taken.append(self._chunks.get_nowait())
            except queue.Empty:
                break
            size += len(taken[-1])
        whole = b"".join(taken)
        self.taken += whole.count(b"\n")
        return whole

    @property
    def ended(self) -> bool:
        """Whether all lines were taken and no more will come."""
        return self.over.is_set() and self._chunks.empty()


_standard_input: _Lines | None = None


def _lines_of(stream: Any) -> _Lines:
    global _standard_input  # noqa: PLW0603 - a process has one standard input, whatever reads it
    if _standard_input is None:
        _standard_input = _Lines(stream)
    return _standard_input


class _LineReader(Reader):
    def __init__(self, feed: StandardInput, lines: _Lines, position: str) -> None:
        self._feed = feed
        self._lines = lines
        self._count = int(position or 0)
        if self._count != lines.taken:
            raise SourceFileError(
                f"standard input was read up to line {lines.taken:,} and the runner asks for it from line "
                f"{self._count + 1:,} again, which only files can do; start the job again and send what is missing, or "
                "write the lines to files and follow these"
            )
        self._rows = feed.decoder.rows()

    def read(self) -> Piece | None:
        data = self._lines.take()
        if data and self._feed.decoder.format == "csv" and self._lines.header is None:
            end = data.index(b"\n") + 1
            self._lines.header, data = data[:end], data[end:]
            self._count += 1
            if not data:
                return Piece(str(self._count), settled=True)
        if not data:
            return None
        header = self._lines.header or b""
        before, self._count = self._count, self._count + data.count(b"\n")
        decoded = [
            _moved(self._rows.decode(raw), before - header.count(b"\n"))
            for raw in self._feed.decoder.raw_lines(header + data, "standard input")
        ]
        return piece_of("standard input", decoded, str(self._count), settled=True)

    @property
    def ended(self) -> bool:
        return self._lines.ended

    def close(self) -> None:
        """Nothing: standard input is the process's."""


def _moved(decoded: Decoded, lines: int) -> Decoded:
    """The same with positions counted from the start of the input."""
    rejects = tuple(Rejects(one.reason, one.positions + lines) for one in decoded.rejects)
    return Decoded(decoded.readings, decoded.earliest_us, rejects)


__all__ = ["BEGIN", "ArrivingFiles", "Feed", "Piece", "Reader", "StandardInput", "piece_of"]
