"""The file of an SQLite ledger: whether it is the one that was opened, and how a new one comes into being.

A new ledger appears under its name with all its tables or not at all. So an empty file is never one that is being made:
it is one that was emptied, and is not taken for none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from .writer_queue import SUFFIX

#: Files that are kept beside a ledger: SQLite's, and the queue of writers.
BESIDE = ("-wal", "-shm", "-journal", SUFFIX)

#: What file systems without hard links answer.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL})

Identity = tuple[int, int]
"""Device and inode."""


def identity(path: Path) -> Identity | None:
    """Which file a path leads to; ``None`` if it leads to none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def log_of(path: Path) -> Path:
    """The log of a ledger, which holds what is on record until SQLite copies it into the ledger's file.

    SQLite keeps it beside the file that a symbolic link leads to.
    """
    path = path.resolve()
    return path.with_name(f"{path.name}-wal")


def change(path: Path, opened: Identity) -> str | None:
    """What happened to a file since it was opened, in words; ``None`` if it can be used as it is."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "its file vanished while the job ran: it was moved or removed, or its volume is not mounted any more"
    except OSError:
        return None  # SQLite says what it is
    if (found.st_dev, found.st_ino) != opened:
        return "its file was replaced while the job ran" if found.st_size else _EMPTY
    return None if found.st_size else _EMPTY


_EMPTY = "its file is empty, and a ledger never is: it was emptied, or a file without content was put in its place"


def absence(path: Path) -> str | None:
    """Signs that a ledger was at a path where none is, in words; ``None`` if nothing is there at all.

    Raises:
        OSError: the path cannot be looked at.
    """
    try:
        return None if path.stat().st_size else _EMPTY
    except (FileNotFoundError, NotADirectoryError):
        log = log_of(path)
        if log.exists() and log.stat().st_size:
            return f"its file is not there, and its log {log.name} is: the file was moved or removed without it"
        return None


def is_absent(path: Path) -> bool:
    """Whether no ledger is at a path, or the empty file of one.

    Raises:
        OSError: the path cannot be looked at.
    """
    return absence(path) is not None or not path.exists()


def check_usable(path: Path) -> None:
    """See that a file may be read and written.

    It is not opened: to close it again would drop all locks that connections of this process hold on it, and the next
    process to close the ledger would take the log away that they still write to.

    Raises:
        OSError: it may not.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    usable = os.R_OK | os.W_OK
    if not os.access(path, usable, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError


def make(path: Path, fill: Callable[[Path], None], *, over: Callable[[], bool] | None = None) -> None:
    """Make a ledger under another name and give it its own, which it gets with all its tables or not at all.

    Args:
        path: where the ledger is to be. If another process makes one there meanwhile, that one stays.
        fill: makes the tables in a file, and closes it.
        over: replace what is there, with the log beside it, if this holds. No other process makes one meanwhile.

    Raises:
        OSError: it cannot be made there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        # drawn noise is for the owner of the process until it is published: nobody else may read the file
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        fill(temporary)
        with _locked(path.parent):
            if over is None:
                _link(temporary, path)
            elif over():
                _replace(temporary, path)
        _sync(path.parent)
    finally:
        for end in ("", *BESIDE):
            with suppress(OSError):
                Path(f"{temporary}{end}").unlink()


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold a folder against other processes that make a ledger in it; the lock ends with the process."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has the handle, too
    finally:
        os.close(handle)


def _replace(temporary: Path, path: Path) -> None:
    for end in BESIDE:  # a log would be played into the new file
        with suppress(FileNotFoundError):
            Path(f"{path}{end}").unlink()
    temporary.replace(path)


def _link(temporary: Path, path: Path) -> None:
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not path.exists():
            temporary.replace(path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


__all__ = ["BESIDE", "Identity", "absence", "change", "check_usable", "identity", "is_absent", "log_of", "make"]
