"""The source of standard input: lines as they come, which can be read once, by the process that has it."""

from __future__ import annotations

import os
import queue
import sys
import threading
from dataclasses import dataclass
from typing import Any

from ..formats.paths import SourceFileError
from ..formats.rows import Decoded
from ..formats.text import LONGEST_LINE
from .contract import PartitionedSource, Reader, SourceBatch, source_batch_of
from .file_decoder import FileDecoder


@dataclass(frozen=True)
class StandardInput(PartitionedSource):
    """Lines of standard input, as they come; they can be read once, in the process that has it.

    Attributes:
        decoder: how lines are read: ``jsonl``, or ``csv`` with a first line of names.
    """

    decoder: FileDecoder

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - the signature is every source's
        """The process's only reader of its standard input."""
        return _LineReader(self, _lines_of(sys.stdin.buffer), position)


#: Bytes that one piece has at most, about.
_PIECE_BYTES = 4 << 20


class _Lines:
    """Standard input, read by a thread of its own, so that no call waits for it."""

    def __init__(self, stream: Any) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(maxsize=16)
        self.over = threading.Event()
        self.header: bytes | None = None
        self.taken = 0
        threading.Thread(target=self._read, args=(stream,), name="quiltstream-stdin", daemon=True).start()

    def _read(self, stream: Any) -> None:
        begun = b""
        try:
            # not by the stream: Python aborts where it ends while a thread waits inside of one
            while chunk := os.read(stream.fileno(), 1 << 20):
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
    def __init__(self, source: StandardInput, lines: _Lines, position: str) -> None:
        self._source = source
        self._lines = lines
        self._count = int(position or 0)
        if self._count != lines.taken:
            raise SourceFileError(
                f"standard input was read up to line {lines.taken:,} and the runner asks for it from line "
                f"{self._count + 1:,} again, which only files can do; start the job again and send what is missing, or "
                "write the lines to files and follow these"
            )
        self._rows = source.decoder.rows()

    def read(self) -> SourceBatch | None:
        data = self._lines.take()
        if data and self._source.decoder.format == "csv" and self._lines.header is None:
            end = data.index(b"\n") + 1
            self._lines.header, data = data[:end], data[end:]
            self._count += 1
            if not data:
                return SourceBatch(str(self._count), settled=True)
        if not data:
            return None
        header = self._lines.header or b""
        before, self._count = self._count, self._count + data.count(b"\n")
        decoded = [
            _moved(self._rows.decode(raw), before - header.count(b"\n"))
            for raw in self._source.decoder.raw_lines(header + data, "standard input")
        ]
        return source_batch_of("standard input", decoded, str(self._count), settled=True)

    @property
    def ended(self) -> bool:
        return self._lines.ended

    def close(self) -> None:
        """Nothing: standard input is the process's."""


def _moved(decoded: Decoded, lines: int) -> Decoded:
    """The same with positions counted from the start of the input."""
    rejects = tuple(one._replace(positions=one.positions + lines) for one in decoded.rejects)
    return Decoded(decoded.readings, decoded.earliest_us, rejects)


__all__ = ["StandardInput"]
