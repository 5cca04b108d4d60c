"""How workers use the ledger of record: they wait while it is away, and log blocks before their rows leave.

A call of the store that fails changes nothing, or what it changed is on record and is found there by the next call. So
a worker of a live job repeats it until the ledger answers. Beyond :data:`WAIT_S` the bundle fails, because a runner
that keeps checkpoints cannot write one meanwhile; the command restarts the job once the ledger answers.

An older copy of a ledger lacks what was committed last, so the newest block shows that a copy is older. A worker
appends a line to each file of the log once its transaction is committed and before it hands on a row: whatever was
published is on record in the ledger, or is missed by the next run that reads the log. Of the lines only the newest
block of each query is needed: a copy that lacks an earlier block lacks that one, too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ...schemas.files import open_private, read_regular, sync_folder, write_whole
from ...schemas.slots import SlotGrid, Window, format_instant
from ...store.address import newest_left
from ...store.errors import StoreReplaced, StoreUnavailable
from ...store.queries import BlockName, NewestBlock
from ...store.specs import BlockToPublish, Record, Registration
from ...store.store import Store

#: A file is compacted when it is longer, and a longer one than the second is not read.
_LONG_BYTES = 64 << 10
_MOST_BYTES = 64 << 20


#: What a worker on another machine may find at a path that is not of a disk which it shares with the command.
_ELSEWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS})


class BlockLogError(StoreUnavailable):
    """No file of the log can be written: the rows stay on record until one can."""

    passing = True


@dataclass(frozen=True, slots=True)
class LoggedBlock:
    """A block that left a job."""

    entry_id: str
    shard: int
    query: str
    until: str  # end of its window
    digest: str = ""  # of its draw

    @property
    def name(self) -> BlockName:
        """By what the ledger finds it."""
        return BlockName(self.entry_id, self.shard, self.digest)


@dataclass(frozen=True, slots=True)
class BlockLog:
    """The files that a job's workers append to; a plain value that travels to any worker."""

    paths: tuple[str, ...]
    here: bool = True  # whether workers are on the machine of the files; elsewhere only files that exist are written


class LogWriter:
    """A worker that appends to the log, and that has read what others did."""

    def __init__(self, log: BlockLog, store: Store) -> None:
        self._log, self._store = log, store
        self._read: dict[str, tuple[int, bytes]] = {}
        self._unchecked: dict[LoggedBlock, None] = {}

    @property
    def _newest(self) -> dict[int, tuple[int, LoggedBlock]]:
        """The newest block of each query, with its number; also of earlier writers of this process."""
        return newest_left(self._store.address)

    def append(self, registration: Registration, records: Sequence[Record]) -> None:
        """Log blocks of record whose rows are about to leave; the first file that can be written is synced.

        Raises:
            BlockLogError: files are there, and none can be written.
            StoreReplaced: the ledger lacks a block that left, or has another draw of it.
        """
        leaving = _to_log(registration, records)
        if not leaving:
            return
        lines = "".join(f"{_line(one)}\n" for one in leaving).encode()
        failed: OSError | None = None
        synced, long = False, list[Path]()
        self._unchecked |= dict.fromkeys(leaving)
        for path in map(Path, self._log.paths):
            try:
                others, size = self._append(path, lines, sync=not synced)
            except OSError as error:
                if self._log.here or error.errno not in _ELSEWHERE:
                    failed = failed or error
                continue
            synced = True
            self._unchecked |= dict.fromkeys(others)
            if size > _LONG_BYTES:
                long.append(path)
        if failed is not None and not synced:
            raise BlockLogError(
                f"ledger: what leaves the job can be written to none of {', '.join(self._log.paths)} "
                f"({os.strerror(failed.errno or 0)}), and by that the next run notices a ledger that was lost; the "
                "rows stay on record and leave when one can be written again: make room, or grant this user the right"
            )
        self._check()
        for path in long:
            with suppress(OSError):
                compact(path, self._store)

    def _append(self, path: Path, lines: bytes, *, sync: bool) -> tuple[list[LoggedBlock], int]:
        """Add lines to a file: what others wrote to it since the last time, and its size then."""
        with _locked(path, make=self._log.here) as handle:
            size = os.lseek(handle, 0, os.SEEK_END)
            begin, mine = self._read.get(str(path), (0, b""))
            if os.pread(handle, len(mine), begin - len(mine)) != mine:
                begin = 0  # another file has the name now
            text = os.pread(handle, min(size - begin, _MOST_BYTES), begin)
            end = _write(handle, lines, sync=sync)
            self._read[str(path)] = end, lines
        return _blocks_in(text)[1], end

    def _check(self) -> None:
        """Look in the ledger for the newest block of each query that was there, and for those seen since."""
        newest = self._newest
        # as a list at once: writers in other threads may add a query
        blocks = list(dict.fromkeys([*(one for _, one in list(newest.values())), *self._unchecked]))
        for one, found in zip(blocks, self._store.block_numbers([one.name for one in blocks]), strict=True):
            if found is None:
                raise StoreReplaced(
                    f"ledger {self._store.address}: an older copy or a restored backup is there: it lacks rows that "
                    f"have left the job, shard {one.shard} of the window until {one.until} of query {one.query!r}, as "
                    f"{' and '.join(self._read) or 'this worker'} remembers. The job stops for good before "
                    "anything more is published: stop all jobs that use the ledger and put it back with everything it "
                    "held; if it is lost for good, `quiltstream run --history-lost` goes on without it and marks the "
                    "account for ever"
                )
            if found.query_id not in newest or newest[found.query_id][0] <= found.number:
                newest[found.query_id] = found.number, one
        self._unchecked = {}


def begin(path: Path) -> bool:
    """Make a file of the log where there is none; whether it can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path, make=True):
            return True
    except OSError:
        return False


def read(path: Path) -> list[LoggedBlock]:
    """The blocks that a file of the log has; none if it is not there.

    A line that a machine lost while it was written is left out: its rows had not left.
    """
    try:
        text = read_regular(path, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = _blocks_in(text)[1]
    # a line that was cut off stands behind a line end of its own
    before, end, last = text.rpartition(b"\n")
    if not found and _blocks_in(before if end else last)[0]:
        raise ValueError("it holds no block")
    return found


def _blocks_in(text: bytes) -> tuple[int, list[LoggedBlock]]:
    """How many lines there are, and the blocks of those that are whole."""
    lines = [one for one in text.decode(errors="replace").split("\n") if one.strip("\0")]
    found: list[LoggedBlock] = []
    for line in lines:
        with suppress(ValueError, TypeError):
            found.append(LoggedBlock(**json.loads(line)))
    return len(lines), found


def compact(path: Path, store: Store, *, also: Iterable[LoggedBlock] = (), forget: bool = False) -> None:
    """Keep the newest block of each query, and those that are not on record."""
    with _locked(path, make=True):
        there = read(path)
        held = list(dict.fromkeys([*there, *also]))
        numbers = store.block_numbers([one.name for one in held])
        newest: dict[int, tuple[int, LoggedBlock]] = {}
        kept: list[LoggedBlock] = []
        for one, found in zip(held, numbers, strict=True):
            if found is None:
                kept += [] if forget else [one]
            elif found.query_id not in newest or newest[found.query_id][0] < found.number:
                newest[found.query_id] = found.number, one
        kept += [one for _, one in newest.values()]
        if kept != there:
            write_whole(path, "".join(f"{_line(one)}\n" for one in kept), private=True)


def logged(registration: Registration, block: NewestBlock) -> LoggedBlock:
    """A block of a query as the log has it."""
    until = format_instant(SlotGrid(**registration.domain.grid).time_of(block.stop))
    return LoggedBlock(block.entry_id, block.shard, registration.query.name, until, block.digest)


def _to_log(registration: Registration, records: Sequence[Record]) -> list[LoggedBlock]:
    """One of the blocks that a transaction put on record; where it put none, each that an earlier one did."""
    blocks = [one for one in records if one.block is not None]
    fresh = [one for one in blocks if one.fresh][:1]
    chosen = fresh or [one for one in blocks if not one.fresh]
    named = (NewestBlock(one.entry.entry_id, one.shard, one.window.stop, one.digest) for one in chosen)
    return [logged(registration, one) for one in named]


def _line(block: LoggedBlock) -> str:
    return json.dumps(asdict(block), separators=(",", ":"))


def _write(handle: int, lines: bytes, *, sync: bool) -> int:
    """Add lines at the end of an open file, behind a line end of their own; its size then."""
    # what is in front may be a line that was cut off
    whole = memoryview(b"\n" + lines)
    while whole:
        whole = whole[os.write(handle, whole) :]
    if sync:
        os.fdatasync(handle)
    return os.lseek(handle, 0, os.SEEK_CUR)


@contextmanager
def _locked(path: Path, *, make: bool) -> Generator[int]:
    """The file of a name, locked; compaction gives the name to another file."""
    while True:
        new = make and not path.exists()
        handle = open_private(path, os.O_RDWR) if make else os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_named(path, handle):
                if new:
                    sync_folder(path.parent)
                yield handle
                return
        finally:
            os.close(handle)


def _is_named(path: Path, handle: int) -> bool:
    held = os.fstat(handle)
    try:
        named = path.lstat()
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


#: Seconds that a call waits for the ledger.
WAIT_S = 120.0

#: Seconds before the first further try; each pause is twice as long, up to the last.
_FIRST_S = 0.25
_LONGEST_S = 15.0

_Answer = TypeVar("_Answer")


class _Job:
    def __init__(self) -> None:
        self.number = 0
        self.endless = False
        self._over = threading.Condition()

    def end(self) -> None:
        with self._over:
            self.number += 1
            self.endless = False
            self._over.notify_all()

    def pause(self, seconds: float, number: int) -> bool:
        """Wait for a while; whether the job of that number still runs then."""
        with self._over:
            return not self._over.wait_for(lambda: self.number != number, seconds)


_JOB = _Job()


def wait_without_end() -> None:
    """Let the workers in this process wait for the ledger until their job ends: its source cannot be read again."""
    _JOB.endless = True


def give_up() -> None:
    """End all waiting in this process: the job is over."""
    _JOB.end()


@dataclass(frozen=True)
class Patience:
    """How a call is made again while the ledger is away."""

    seconds: float  # for how long; 0 for not at all
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    # waits for some seconds, and says whether the job of a number still runs; the tests' own
    pause: Callable[[float, int], bool] = _JOB.pause

    def call(self, ask: Callable[[], _Answer], job: int) -> _Answer:
        """What a call gives; while it waits, the watchdog is told for what."""
        from ..sources.progress import LEDGER, Heartbeat  # noqa: PLC0415 - with Beam, which a dry run does not import

        begun, wait_s, who = self.clock(), _FIRST_S, f"{LEDGER}{threading.get_ident()}"
        try:
            while True:
                try:
                    return ask()
                except StoreUnavailable as error:
                    if not error.passing or not self.seconds:
                        raise
                    if not _JOB.endless and self.clock() - begun + wait_s > self.seconds:
                        raise
                    Heartbeat.complain(who, str(error))
                    if not self.pause(wait_s, job):
                        raise
                wait_s = min(2 * wait_s, _LONGEST_S)
        finally:
            Heartbeat.complain(who, None)


class PatientStore:
    """The calls of a store that workers make, each with patience."""

    def __init__(
        self, store: Store, *, live: bool, log: BlockLog | None = None, patience: Patience | None = None
    ) -> None:
        self._store = store
        self._log = LogWriter(log or BlockLog(()), store)
        self._patience = patience or Patience(WAIT_S if live else 0.0)
        self._job = _JOB.number

    def current(self, registration: Registration) -> Registration:
        """:meth:`.Store.current`."""
        return self._patience.call(lambda: self._store.current(registration), self._job)

    def join(
        self, registration: Registration, entries: Sequence[tuple[str, str | None]], most: int | None = None
    ) -> Registration:
        """:meth:`.Store.join`."""
        return self._patience.call(lambda: self._store.join(registration, entries, most), self._job)

    def charge_windows(
        self, registration: Registration, windows: Iterable[Window], begun: Registration | None = None
    ) -> Registration:
        """:meth:`.Store.charge_windows`."""
        charged = list(windows)
        return self._patience.call(lambda: self._store.charge_windows(registration, charged, begun), self._job)

    def publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        """:meth:`.Store.publish`; what it returns is logged, too."""
        return self._patience.call(lambda: self._publish(registration, drafts), self._job)

    def _publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        records = self._store.publish(registration, drafts)
        self._log.append(registration, records)
        return records

    def close(self) -> None:
        """:meth:`.Store.close`."""
        self._store.close()
