"""The file of an SQLite ledger: its identity, its creation, and where it may be.

A new ledger appears under its name with all its tables or not at all. So an empty file is never one that is being made:
it is one that was emptied, and is not taken for none.

SQLite finds the log of a file by the file's name, and the index of the log is memory that processes share. So three
places make two histories of one ledger, each without the other's charges, and without an error of SQLite: a file with
two names (hard links) has two logs; a file that is mounted by itself, as a container's volume may be, has its log in a
folder that others do not see and that ends with the container; and of two machines that mount one network file system
each has an index of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Files that SQLite keeps beside a ledger.
BESIDE = ("-wal", "-shm", "-journal")

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
    """The log of a ledger, beside the file that a link leads to: what SQLite did not yet copy into that."""
    # of a circle of links, which `Path.resolve` does not take, one of them
    return Path(f"{os.path.realpath(path)}-wal")


EMPTY = "its file is empty, and a ledger never is: it was emptied, or a file without content was put in its place"


def change(path: Path, opened: Identity) -> str | None:
    """What happened to a file since it was opened, in words; ``None`` if it can be used as it is."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "its file vanished while the job ran: it was moved or removed, or its volume is not mounted any more"
    except OSError:
        return None  # SQLite says what it is
    if not found.st_size:
        return EMPTY
    return None if (found.st_dev, found.st_ino) == opened else "its file was replaced while the job ran"


def absence(path: Path) -> tuple[bool, str | None]:
    """Whether no ledger is at a path, or the empty file of one; and signs that one was there, in words."""
    try:
        return (False, None) if path.stat().st_size else (True, EMPTY)
    except (FileNotFoundError, NotADirectoryError):
        log = log_of(path)
        if log.exists() and log.stat().st_size:
            return True, f"its file is not there, and its log {log.name} is: the file was moved or removed without it"
        return True, None


def is_whole(path: Path) -> bool:
    """Whether a ledger is all in its file, with nothing in its log."""
    log = log_of(path)
    return path.is_file() and not (log.exists() and log.stat().st_size)


def check_usable(path: Path) -> None:
    """See that a file may be read and written.

    It is not opened: to close it again would drop all locks that connections of this process hold on it, and the next
    process to close the ledger would take the log away that they still write to.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError


def make(path: Path, fill: Callable[[Path], None], *, over: Callable[[], bool] | None = None) -> None:
    """Make a ledger under another name and give it its own, which it gets with all its tables or not at all.

    Args:
        path: where the ledger is to be. If another process makes one there meanwhile, that one stays.
        fill: makes the tables in a file, with nothing left in a log, and closes it.
        over: replace what is there, with the log beside it, if this holds. No other process makes one meanwhile. A
            symbolic link stays, and what it leads to is replaced.
    """
    if over is not None:
        path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        # drawn noise is for the owner of the process until it is published: no other user may read the file
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        fill(temporary)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # until the folder is closed
            if over is None:
                if not os.path.lexists(path):
                    temporary.replace(path)
            elif over():
                for end in BESIDE:  # a log would be played into the new file
                    Path(f"{path}{end}").unlink(missing_ok=True)
                temporary.replace(path)
            os.fsync(folder)
            fcntl.flock(folder, fcntl.LOCK_UN)  # a process that was forked meanwhile has the handle, too
        finally:
            os.close(folder)
    finally:
        for end in ("", *BESIDE):
            with suppress(OSError):
                Path(f"{temporary}{end}").unlink()


#: File systems that several machines mount, as Linux names them; with ``fuse.`` before it as well.
_SHARED = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "ceph-fuse", "lustre", "gpfs", "beegfs", "glusterfs"),
    *("ocfs2", "gfs2", "orangefs", "sshfs", "s3fs", "gcsfuse", "rclone", "mount-s3", "goofys", "juicefs", "mfs"),
    "davfs",
}

#: How the kernel writes a blank, a tab, a line end and a backslash in a path.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounts() -> str:
    """What is mounted for this process, as Linux tells it; empty on other systems."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def misplaced(path: Path, mounted: str) -> str | None:
    """Why a ledger cannot be kept at a path, in words; ``None`` if it can be."""
    path, log = Path(os.path.realpath(path)), log_of(path)
    kinds: dict[str, str] = {}  # by mount point; of two mounts at one place the later one is seen
    for line in mounted.splitlines():
        before, _, after = line.partition(" - ")
        with suppress(IndexError):
            place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
            kinds[place] = after.split(" ")[0].removeprefix("fuse.")
    for file, what in ((path, "its file"), (log, f"its log {log.name}")):
        if str(file) in kinds:
            return (
                f"{what} is mounted by itself, and SQLite keeps file and log together by their names: what is charged "
                "here would be missing elsewhere, and lost with the container. Mount the folder and not the file"
            )
    kind = next((kinds[str(folder)] for folder in path.parents if str(folder) in kinds), "")
    if kind in _SHARED:
        return (
            f"it is on a network file system ({kind}), where jobs on two machines do not see each other's charges; use "
            "a disk of this machine, or use PostgreSQL"
        )
    try:
        names = path.stat().st_nlink
    except OSError:
        return None
    if names == 1:
        return None
    return (
        f"its file has {names} names (hard links), and SQLite keeps another log for each: what a job charges by one "
        "name is missing by the other, and would be drawn again. Stop all jobs that use it, remove the other name "
        f"(find -inum {path.stat().st_ino}) and keep the one whose log {log.name} is there; copies are made by "
        "quiltstream ledger backup"
    )
