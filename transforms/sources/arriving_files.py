"""Live sources of lines and files: files that appear in a folder, and standard input.

Files are given in batches so that none has to fit into memory. The offset says which files were read, and of the one
that is being read how far. It stays small: of a file that was read twelve characters are kept, for as long as it lies
there. Standard input can be read once, by the process that has it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ..formats.columns import RawRows
from ..formats.lines import LONGEST_LINE
from ..formats.paths import (
    NoRightsError,
    SourceFileError,
    fixed_folder,
    is_local,
    present,
    stamp_of,
    unlisted,
)
from ..formats.rows import Decoded
from .contract import PartitionedSource, Reader, SourceBatch, damaged, source_batch_of
from .files import FileDecoder
from .progress import at_work

#: Logs the files that are passed over, by their names: what they hold stands in no log.
LOG = logging.getLogger("quiltstream.files")

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

    A file that this user may not open is tried again with every look, and the windows wait for it as they do for a
    folder that cannot be listed; the others are read meanwhile.
    """

    decoder: FileDecoder  # how a file is read; ``batch_rows`` is also how much of it a batch holds, about
    patterns: tuple[str, ...]  # absolute paths or patterns

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - the signature is every source's
        """A reader behind the files that were read, and behind what was read of the last one."""
        return _FileReader(self, position)


@dataclass(frozen=True, slots=True)
class _Half:
    """Where a reader stopped in a file."""

    path: str
    stamp: str  # what it was like then
    tasks: int = 0  # how many of its parts were given whole
    batches: int = 0  # how many batches of the next part were given
    again: bool = False  # whether it had changed once already


class _FileReader(Reader):
    def __init__(self, source: ArrivingFiles, position: str) -> None:
        at: dict[str, Any] = json.loads(position) if position else {"done": "", "half": None}
        self._source = source
        self._done = _Done(at["done"])
        self._half = None if at["half"] is None else _Half(**at["half"])
        self._batches: Iterator[tuple[int, int, RawRows]] | None = None
        self._waiting: list[str] = []
        #: when the last of the files came that the last look found, and those of them that it left
        self._seen_us, self._left = 0, set[str]()
        self._trouble: str | None = None
        self._denied: dict[str, str] = {}
        self._came_us: int | None = None
        self._lost_us: int | None = at.get("lost")
        self._rows = source.decoder.rows()

    def read(self) -> SourceBatch | None:
        if self._batches is not None and self._half is not None:
            return self._next(self._half, self._batches, [])
        if self._half is not None:
            return self._resume(self._half)
        if not self._waiting:
            self._look()
        while self._waiting:
            if (found := self._begin(self._waiting.pop())) is not None:
                return found
        return self._nothing()

    @property
    def trouble(self) -> str | None:
        denied = next(iter(self._denied.values()), None)
        more = len(self._denied) - 1
        return self._trouble or (f"{denied} (and {more:,} more files)" if denied and more > 0 else denied)

    def _nothing(self) -> SourceBatch | None:
        """A look that found nothing; while something cannot be read, it says nothing of how far the source has come."""
        if self.trouble is None:
            return None
        return SourceBatch(self._position, settled=False, lost_us=self._lost_us)

    def _look(self) -> None:
        self._trouble = self._away()
        try:
            found = present(self._source.patterns)
        except OSError as error:
            self._trouble = f"the place of its files cannot be looked up ({type(error).__name__})"
            return
        if self._trouble is None:
            self._trouble = next((unlisted(*one) for one in sorted(found.closed.items())), None)
        there, half = dict.fromkeys(found.paths), None if self._half is None else self._half.path
        fresh = [path for path in there if path not in self._done and path != half]
        if self._trouble is None:
            # one that was left and is gone is begun, so that it counts as lost
            fresh += sorted(self._left.difference(there))
        # a listing may hold a file and lack one that came before it: what came after all that the last one found is
        # left for the next one, or the watermark would pass readings that were there in time
        came = {path: _came_us(path) for path in fresh}
        self._waiting = [path for path in fresh if came[path] <= self._seen_us or path in self._left][::-1]
        self._seen_us, self._left = max(came.values(), default=0), set(fresh).difference(self._waiting)
        # a file that is gone cannot come twice: what is kept does not grow with time
        if self._trouble is None:
            self._done.keep(there)
            self._denied = {path: why for path, why in self._denied.items() if path in there}
        if self._left and not self._waiting:
            self._look()

    def check(self) -> bool:
        """Whether the folders of this machine can be listed; of others only the next look sees it."""
        return self._away() is None

    def _away(self) -> str | None:
        """What is wrong with the folders; what was read there is not forgotten while one is away."""
        for pattern in self._source.patterns:
            if not is_local(pattern):
                continue
            folder = fixed_folder(pattern)
            try:
                os.scandir(folder).close()
            except (FileNotFoundError, NotADirectoryError):
                return f"the folder {folder} is not there"
            except OSError as error:
                return unlisted(folder, error)
        return None

    def _begin(self, path: str) -> SourceBatch | None:
        """The first batch of a file; ``None`` if this user may not open it now."""
        try:
            stamp, self._came_us = self._stamp(path)
        except NoRightsError as error:
            return self._wait_for(_Half(path, ""), [], str(error))
        if stamp is None:
            return self._finish(path, [_lost(f"file {path} {_GONE}")])
        half = _Half(path, stamp)
        return self._next(half, self._raw(half), [])

    def _resume(self, half: _Half) -> SourceBatch | None:
        self._look()
        try:
            stamp, came_us = self._stamp(half.path)
        except NoRightsError as error:
            return self._wait_for(half, [], str(error))
        if stamp != half.stamp:
            return self._changed(half, stamp, came_us)
        self._came_us = came_us
        return self._next(half, self._raw(half), [])

    def _changed(self, half: _Half, stamp: str | None, came_us: int | None) -> SourceBatch | None:
        """Read a file from its beginning, once, that is no longer what it was."""
        self._came_us = came_us
        if stamp is None or half.again:
            why = _GONE if stamp is None else "has changed again"
            return self._finish(half.path, [_lost(f"file {half.path} {why}: the rest of it is not read")])
        half = _Half(half.path, stamp, again=True)
        damaged = _lost(f"file {half.path} changed while it was read, and is read from its beginning, once")
        return self._next(half, self._raw(half), [damaged])

    def _next(
        self, half: _Half, batches: Iterator[tuple[int, int, RawRows]], decoded: list[Decoded]
    ) -> SourceBatch | None:
        rows, ended = 0, False
        try:
            with at_work(f"file {half.path}"):
                while rows < self._source.decoder.batch_rows:
                    tasks, number, raw = next(batches, (-1, 0, None))
                    if raw is None:
                        ended = True
                        break
                    decoded.append(self._rows.decode(raw))
                    rows += len(raw.positions) + len(raw.malformed)
                    half = replace(half, tasks=tasks, batches=number)
        except NoRightsError as error:
            return self._wait_for(half, decoded, str(error))
        except (SettingsError, SourceFileError) as error:
            ended = True
            # what a header holds instead of columns may be readings
            unlike = f"file {half.path} has not the columns that the settings name"
            why = str(error) if isinstance(error, SourceFileError) else unlike
            decoded.append(_lost(f"{why}; it is passed over: send it again under another name"))
        self._denied.pop(half.path, None)
        # of two files under one name no part may be taken for the whole of one; one that is gone can be read to its end
        stamp, came_us = None, None
        with suppress(NoRightsError):
            stamp, came_us = self._stamp(half.path)
        if stamp is not None and stamp != half.stamp:
            if not half.again:
                return self._changed(half, stamp, came_us)
            # windows do not wait for a file that does not rest, and what was read of it is not lost
            half, self._came_us = replace(half, stamp=stamp), came_us
            decoded.append(_lost(f"file {half.path} has changed again while it was read, and is read on"))
        if ended:
            return self._finish(half.path, decoded)
        self._half, self._batches = half, batches
        return self._source_batch(half.path, decoded, settled=False)

    def _wait_for(self, half: _Half, decoded: list[Decoded], why: str) -> SourceBatch | None:
        """Leave a file for the next look that this user may not open now, or go on in it then."""
        if half.path not in self._denied:
            LOG.warning("%s; it is tried again, and windows wait for it", why)
        self._denied[half.path] = why
        # others are read meanwhile, unless it was begun
        begun = half.again or half.tasks or half.batches
        self._half, self._batches = half if begun else None, None
        if decoded:
            return self._source_batch(half.path, decoded, settled=False)
        return self._nothing() if begun else None

    def _finish(self, path: str, decoded: list[Decoded]) -> SourceBatch:
        self._half, self._batches = None, None
        self._done.add(path)
        self._denied.pop(path, None)
        return self._source_batch(path, decoded, settled=not self._waiting and self.trouble is None)

    def _source_batch(self, path: str, decoded: list[Decoded], *, settled: bool) -> SourceBatch:
        if any(one.reason is RejectReason.DAMAGED_SOURCE for part in decoded for one in part.rejects):
            # what it held was taken before it came
            came_us = time.time_ns() // 1_000 if self._came_us is None else self._came_us
            self._lost_us = max(came_us, self._lost_us or 0)
        made = source_batch_of(path, decoded, self._position, settled=settled)
        return replace(made, came_us=self._came_us, lost_us=self._lost_us)

    @property
    def _position(self) -> str:
        at: dict[str, Any] = {"half": None if self._half is None else asdict(self._half)}
        if self._lost_us is not None:
            at["lost"] = self._lost_us
        # as JSON as it is: written out with each file, a hundred thousand keys would cost more than reading the file
        return f'{{"done":"{self._done.text}",{json.dumps(at, separators=(",", ":"))[1:]}'

    def _raw(self, half: _Half) -> Iterator[tuple[int, int, RawRows]]:
        """The batches of a file from a place on, each with the place behind it."""
        decoder, given = self._source.decoder, half.batches
        for number, task in islice(enumerate(decoder.tasks(half.path)), half.tasks, None):
            for count, raw in islice(enumerate(decoder.raw_rows(task), 1), given, None):
                yield number, count, raw
            given = 0

    def _stamp(self, path: str) -> tuple[str | None, int | None]:
        """What a file is like, and how it is cut, and when it came; ``None`` if it is not there, or does not tell."""
        found = stamp_of(path)
        if found is None:
            return None, None
        return f"{_CUT}-{self._source.decoder.batch_rows}-{found.text}", found.came_us

    def close(self) -> None:
        self._waiting, self._half, self._batches = [], None, None


def _came_us(path: str) -> int:
    """When a file of this machine came; 0 where that is not known."""
    with suppress(OSError, ValueError):
        return os.stat(path).st_ctime_ns // 1_000 if is_local(path) else 0  # noqa: PTH116 - a name may hold NUL
    return 0


_GONE = "is gone, or does not tell its size"


def _lost(text: str) -> Decoded:
    """A file that could not be read to its end, and the line of the log that says so."""
    LOG.error("%s", text.encode("utf-8", "backslashreplace").decode())
    return damaged(-1)


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

#: Stands for a line that is too long: no text, so that it is a reject at its number.
_NO_LINE = b"\xff\n"


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
        begun, skipping = b"", False
        try:
            # not by the stream: Python aborts where it ends while a thread waits inside of one
            while chunk := os.read(stream.fileno(), 1 << 20):
                if skipping:
                    _, feed, chunk = chunk.partition(b"\n")
                    skipping = not feed
                begun += chunk
                end = begun.rfind(b"\n") + 1
                if not end and len(begun) > LONGEST_LINE:
                    # no part of it may be taken for a reading, neither its beginning nor its end
                    begun, end, skipping = _NO_LINE, len(_NO_LINE), True
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
        with suppress(queue.Empty):
            while size < _PIECE_BYTES:
                taken.append(self._chunks.get_nowait())
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
