"""The order of an SQLite ledger's writers: first come, first served.

SQLite's lock goes to the process that asks at the right moment: a waiting process sleeps up to 0.1 s between two
tries, and one that writes again at once overtakes it. Of 24 processes one waited for seconds, the median milliseconds.
So a writer takes a number first, from a small file beside the ledger, and waits until no smaller number is held. A
number is held by a lock on one byte of that file, which the kernel releases when the process ends, however it ends.

The queue orders writers and protects nothing: SQLite's own lock does. Where the file cannot be used, there is no queue.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

#: What the file's name ends with, behind the ledger's.
SUFFIX = "-queue"

# Locks of an open file and not of a process: neither a thread nor a second connection releases another one's. Where the
# system does not have them, there is no queue.
_SET: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_GET: int | None = getattr(fcntl, "F_OFD_GETLK", None)

_FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, process

#: What the file holds: the last number taken, and the last one whose turn it was.
_NUMBERS = struct.Struct("qq")

# Bytes that are locked, none of which is ever written: one by whoever takes a number, and one for each number.
_TAKING = 100
_FIRST = 1_000
_MOST = 2**62

#: Seconds between two looks of the next in the queue; who comes later looks less often.
_PAUSE_S = 0.000_7
_LONGEST_PAUSE_S = 0.05

#: If nobody's turn has come for so many seconds, SQLite's own lock decides who writes.
_STOPPED_S = 5.0


class WriterQueue:
    """The queue of one ledger's writers, as one connection sees it; used by one thread at a time.

    Args:
        ledger: the ledger's file.
        wait: seconds to wait for a turn.
    """

    def __init__(self, ledger: Path, wait: float) -> None:
        self._path = ledger.with_name(f"{ledger.name}{SUFFIX}")
        self._wait = wait
        self._file: int | None = None

    @contextmanager
    def turn(self) -> Generator[None]:
        """Wait for a turn, and keep it for the block.

        Raises:
            sqlite3.OperationalError: the turn did not come in time; worded as SQLite words it.
        """
        deadline = time.monotonic() + self._wait
        with ExitStack() as stack:
            with suppress(OSError):
                file = self._opened()
                number = _take(file, deadline)
                stack.callback(_give_up, file, number)
                _await(file, number, deadline)
            yield

    def close(self) -> None:
        """Close the file, and remove it if nobody has a number; whoever needs it makes it again."""
        file, self._file = self._file, None
        if file is None:
            return
        with suppress(OSError):
            if not _is_held(file, 0, 0) and _is_at(file, self._path):
                self._path.unlink()
        os.close(file)

    def _opened(self) -> int:
        if self._file is None or not _is_at(self._file, self._path):
            self.close()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return self._file


def _take(file: int, deadline: float) -> int:
    """Take the next number."""
    while not _lock(file, fcntl.F_WRLCK, _TAKING):
        _pause(_PAUSE_S, deadline)
    try:
        number = _numbers(file)[0] % _MOST + 1
        if not _lock(file, fcntl.F_WRLCK, _FIRST + number):
            raise BlockingIOError
        os.pwrite(file, _NUMBERS.pack(number, 0)[:8], 0)
    finally:
        _lock(file, fcntl.F_UNLCK, _TAKING)
    return number


def _await(file: int, number: int, deadline: float) -> None:
    """Wait until no smaller number is held, or those who hold one do nothing: a process may have been stopped."""
    served, since = -1, time.monotonic()
    while _is_held(file, _FIRST, number):
        now = _numbers(file)[1]
        if now != served:
            served, since = now, time.monotonic()
        elif time.monotonic() - since > _STOPPED_S:
            return
        _pause(min(_PAUSE_S * max(1, number - max(0, now)), _LONGEST_PAUSE_S), deadline)
    os.pwrite(file, _NUMBERS.pack(0, number)[8:], 8)


def _give_up(file: int, number: int) -> None:
    """Let the next one come."""
    with suppress(OSError):  # what was done in its turn is done
        _lock(file, fcntl.F_UNLCK, _FIRST + number)


def _numbers(file: int) -> tuple[int, int]:
    held = os.pread(file, _NUMBERS.size, 0)
    return _NUMBERS.unpack(held.ljust(_NUMBERS.size, b"\0"))


def _pause(seconds: float, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise sqlite3.OperationalError("database is locked")
    time.sleep(min(seconds, left))


def _lock(file: int, kind: int, start: int) -> bool:
    """Lock or unlock a byte; whether that was possible at once."""
    try:
        fcntl.fcntl(file, _supported(_SET), struct.pack(_FLOCK, kind, os.SEEK_SET, start, 1, 0))
    except BlockingIOError:
        return False
    return True


def _is_held(file: int, start: int, length: int) -> bool:
    """Whether another open file holds a lock on some bytes; 0 bytes are all from the first on."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    found = fcntl.fcntl(file, _supported(_GET), asked)
    return struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK


def _supported(command: int | None) -> int:
    if command is None:
        raise OSError
    return command


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
