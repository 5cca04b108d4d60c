"""Live sources of lines and files: files that appear in a folder, and standard input.

Files are given in batches so that none has to fit into memory. The offset says which files were read, and of the one
that is being read how far. It stays small: of a file that was read twelve characters are kept, for as long as it lies
there. Standard input can be read once, by the process that has it.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ..common.batches import Rejects
from ..formats.paths import LONGEST_LINE, SourceFileError, is_local, present
from ..formats.rows import Decoded, RawRows
from .contract import PartitionedSource, Reader, SourceBatch, source_batch_of
from .files import FileDecoder

#: How files are cut into batches; another number makes half read files begin again.
_CUT = 2

#: Bytes and characters of a file's key.
_KEY_BYTES = 9
_KEY_LENGTH = 12


@dataclass(frozen=True)
class ArrivingFiles(PartitionedSource):
    """Files that appear under some patterns.

    A file must be whole when it appears under its name: write it elsewhere, or under a name that no pattern matches,
    and rename it. Files that are there at the start are all read before any window closes. A file that changes after it
    was read is not read again. A damaged file is passed over, counted and rejected; the others go on. So is the rest of
    one that vanishes while it is being read. One that changes meanwhile is counted as damaged too and read from its
    beginning, once; after that it is read on, and each change is counted. Rows of windows that start before such a file
    came say that they may lack readings.

    Attributes:
        decoder: how a file is read; ``batch_rows`` is also how much of it a batch holds, about.
        patterns: absolute paths or patterns.
    """

    decoder: FileDecoder
    patterns: tuple[str, ...]

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - the signature is every source's
        """A reader behind the files that were read, and behind what was read of the last one."""
        return _FileReader(self, position)


@dataclass(frozen=True, slots=True)
class _Half:
    """Where a reader stopped in a file.

    Attributes:
        stamp: what it was like then.
        tasks: how many of its parts were given whole.
        batches: how many batches of the next part were given.
        again: whether it had changed once already.
    """

    path: str
    stamp: str
    tasks: int = 0
    batches: int = 0
    again: bool = False


class _FileReader(Reader):
    def __init__(self, source: ArrivingFiles, position: str) -> None:
        at: dict[str, Any] = json.loads(position) if position else {"done": "", "half": None}
        self._source = source
        self._done = _Done(at["done"])
        self._half = None if at["half"] is None else _Half(**at["half"])
        self._batches: Iterator[tuple[int, int, RawRows]] | None = None
        self._waiting: list[str] = []
        self._trouble: str | None = None
        self._came_us: int | None = None
        self._lost_us: int | None = at.get("lost")
        self._rows = source.decoder.rows(at.get("memory", ""))

    def read(self) -> SourceBatch | None:
        if self._batches is not None and self._half is not None:
            return self._next(self._half, self._batches, [])
        if self._half is not None:
            return self._resume(self._half)
        if not self._waiting:
            self._look()
        return self._begin(self._waiting.pop()) if self._waiting else None

    @property
    def trouble(self) -> str | None:
        return self._trouble

    def _look(self) -> None:
        self._trouble = self._away()
        try:
            there = present(self._source.patterns)
        except OSError as error:
            self._trouble = f"the place of its files cannot be looked up ({type(error).__name__})"
            return
        half = None if self._half is None else self._half.path
        self._waiting = [path for path in there if path not in self._done and path != half][::-1]
        # a file that is gone cannot come twice: what is kept does not grow with time
        if self._trouble is None:
            self._done.keep(there)

    def check(self) -> bool:
        """Whether the folders of this machine can be listed; of others only the next look sees it."""
        return self._away() is None

    def _away(self) -> str | None:
        """What is wrong with the folders; what was read there is not forgotten while one is away."""
        for pattern in self._source.patterns:
            if not is_local(pattern):
                continue
            folder = Path(pattern).parent
            while glob.has_magic(str(folder)):
                folder = folder.parent
            try:
                os.scandir(folder).close()
            except (FileNotFoundError, NotADirectoryError):
                return f"the folder {folder} is not there"
            except OSError as error:
                return f"the folder {folder} cannot be listed ({type(error).__name__})"
        return None

    def _begin(self, path: str) -> SourceBatch:
        stamp, self._came_us = self._stamp(path)
        if stamp is None:
            return self._finish(path, [_damaged()])
        half = _Half(path, stamp)
        return self._next(half, self._raw(half), [])

    def _resume(self, half: _Half) -> SourceBatch:
        self._look()
        stamp, came_us = self._stamp(half.path)
        if stamp != half.stamp:
            return self._changed(half, stamp, came_us)
        self._came_us = came_us
        return self._next(half, self._raw(half), [])

    def _changed(self, half: _Half, stamp: str | None, came_us: int | None) -> SourceBatch:
        """Read a file from its beginning, once, that is no longer what it was."""
        self._came_us = came_us
        if stamp is None or half.again:
            return self._finish(half.path, [_damaged()])
        half = _Half(half.path, stamp, again=True)
        return self._next(half, self._raw(half), [_damaged()])

    def _next(self, half: _Half, batches: Iterator[tuple[int, int, RawRows]], decoded: list[Decoded]) -> SourceBatch:
        rows, ended = 0, False
        try:
            while rows < self._source.decoder.batch_rows:
                tasks, number, raw = next(batches, (-1, 0, None))
                if raw is None:
                    ended = True
                    break
                decoded.append(self._rows.decode(raw))
                rows += len(raw.positions) + len(raw.malformed)
                half = replace(half, tasks=tasks, batches=number)
        except (SettingsError, SourceFileError):
            ended = True
            decoded.append(_damaged())
        # of two files under one name no part may be taken for the whole of one; one that is gone can be read to its end
        stamp, came_us = self._stamp(half.path)
        if stamp is not None and stamp != half.stamp:
            if not half.again:
                return self._changed(half, stamp, came_us)
            # windows do not wait for a file that does not rest, and what was read of it is not lost
            half, self._came_us = replace(half, stamp=stamp), came_us
            decoded.append(_damaged())
        if ended:
            return self._finish(half.path, decoded)
        self._half, self._batches = half, batches
        return self._source_batch(half.path, decoded, settled=False)

    def _finish(self, path: str, decoded: list[Decoded]) -> SourceBatch:
        self._half, self._batches = None, None
        self._done.add(path)
        return self._source_batch(path, decoded, settled=not self._waiting)

    def _source_batch(self, path: str, decoded: list[Decoded], *, settled: bool) -> SourceBatch:
        if any(one.reason is RejectReason.DAMAGED_SOURCE for part in decoded for one in part.rejects):
            # what it held was taken before it came
            came_us = time.time_ns() // 1_000 if self._came_us is None else self._came_us
            self._lost_us = max(came_us, self._lost_us or 0)
        made = source_batch_of(path, decoded, self._position, settled=settled)
        return replace(made, came_us=self._came_us, lost_us=self._lost_us)

    @property
    def _position(self) -> str:
        half = None if self._half is None else asdict(self._half)
        at: dict[str, Any] = {"done": self._done.text, "half": half}
        if self._lost_us is not None:
            at["lost"] = self._lost_us
        if self._rows.memory:
            at["memory"] = self._rows.memory
        return json.dumps(at, separators=(",", ":"))

    def _raw(self, half: _Half) -> Iterator[tuple[int, int, RawRows]]:
        """The batches of a file from a place on, each with the place behind it."""
        decoder, given = self._source.decoder, half.batches
        for number, task in islice(enumerate(decoder.tasks(half.path)), half.tasks, None):
            for count, raw in islice(enumerate(decoder.raw_rows(task), 1), given, None):
                yield number, count, raw
            given = 0

    def _stamp(self, path: str) -> tuple[str | None, int | None]:
        """What a file is like and when it came; ``None`` if it is not there, or does not tell."""
        cut = f"{_CUT}-{self._source.decoder.batch_rows}"
        if is_local(path):
            with suppress(OSError):
                found = Path(path).stat()
                # the time of a change of name or content, which cannot be set, and copying does not keep
                return f"{cut}-{found.st_size}-{found.st_mtime_ns}", found.st_ctime_ns // 1_000
            return None, None
        with suppress(BeamIOError, OSError):
            (match,) = FileSystems.match([path])
            for one in match.metadata_list:
                changed = one.last_updated_in_seconds
                return f"{cut}-{one.size_in_bytes}-{changed}", round(changed * 1e6) or None
        return None, None

    def close(self) -> None:
        self._waiting, self._half, self._batches = [], None, None


def _damaged() -> Decoded:
    """A file that could not be read to its end."""
    return Decoded(None, 0, (Rejects(RejectReason.DAMAGED_SOURCE, np.array([-1], dtype=np.int64)),))


class _Done:
    """The files that were read, in their order, by keys of their names; as text that is added to."""

    def __init__(self, text: str) -> None:
        self._keys = {text[i : i + _KEY_LENGTH]: None for i in range(0, len(text), _KEY_LENGTH)}
        self.text = text

    def __contains__(self, path: str) -> bool:
        return _key(path) in self._keys

    def add(self, path: str) -> None:
        key = _key(path)
        if key not in self._keys:
            self._keys[key] = None
            self.text += key

    def keep(self, paths: Iterable[str]) -> None:
        kept = {_key(path) for path in paths}
        if not kept.issuperset(self._keys):
            self._keys = {key: None for key in self._keys if key in kept}
            self.text = "".join(self._keys)


def _key(path: str) -> str:
    """A name in 72 bits: that two of a million files have the same happens once in ten thousand million folders."""
    return base64.urlsafe_b64encode(hashlib.blake2b(os.fsencode(path), digest_size=_KEY_BYTES).digest()).decode("ascii")


@dataclass(frozen=True)
class StandardInput(PartitionedSource):
    """Lines of standard input, as they come; they can be read once, in the process that has it."""

    decoder: FileDecoder

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - the signature is every source's
        """The process's only reader of its standard input."""
        return _LineReader(self, _lines_of(sys.stdin.buffer), position)


#: Bytes that one batch has at most, about.
_PIECE_BYTES = 4 << 20


class _Lines:
    """Standard input, read by a thread of its own, so that no call waits for it."""

    def __init__(self, stream: Any) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(maxsize=16)
        self.over = threading.Event()
        self.error: OSError | None = None
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
        except OSError as error:
            self.error = error
        finally:
            self.over.set()

    def take(self) -> bytes:
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
        """Whether all is taken, and nothing more can come."""
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
        # looked at first: what came before an error is taken before it is raised
        broken = self._lines.ended and self._lines.error
        data = self._lines.take()
        if not data:
            if broken:
                raise SourceFileError(
                    f"standard input broke off behind line {self._count:,} ({type(broken).__name__}); start the job "
                    "again and send what is missing: releases without its readings would be final"
                )
            return None
        while data and self._source.decoder.format == "csv" and self._lines.header is None:
            end = data.index(b"\n") + 1
            line, data = data[:end], data[end:]
            self._lines.header = line if line.rstrip(b"\r\n") else None
            self._count += 1
            if not data:
                return SourceBatch(str(self._count), settled=True)
        header = self._lines.header or b""
        before, self._count = self._count, self._count + data.count(b"\n")
        shift = before - header.count(b"\n")
        decoded: list[Decoded] = []
        for raw in self._source.decoder.raw_lines(header + data, "standard input"):
            one = self._rows.decode(raw)
            rejects = tuple(reject._replace(positions=reject.positions + shift) for reject in one.rejects)
            decoded.append(Decoded(one.readings, one.earliest_us, rejects))
        return source_batch_of("standard input", decoded, str(self._count), settled=True)

    @property
    def ended(self) -> bool:
        return self._lines.ended and self._lines.error is None

    def close(self) -> None:
        """Nothing: standard input is the process's."""
