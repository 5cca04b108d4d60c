"""What a process reads from the disk of its machine and leaves there: regular files, bounded, whole or not at all.

What is read is a regular file, also behind symbolic links: a device or pipe may have no end, or keep its reader
waiting. What is written replaces a regular file or nothing: never a device, a pipe, a folder or a symbolic link, since
a link in a shared folder could lead the rows elsewhere. What nothing writes on purpose is not left either: a process
that holds raw readings or noise leaves no core file.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import stat
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from .errors import QuiltstreamError

#: Bytes of the largest file of each kind that is read into memory.
MOST_SETTINGS_BYTES = 1 << 20
MOST_MODEL_BYTES = 32 << 20
MOST_ROSTER_BYTES = 128 << 20
MOST_SECRET_BYTES = 64 << 10

#: Rights of files that hold readings, names or what is known of a history: for their owner.
PRIVATE = 0o600

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

#: How a SQLite database begins.
SQLITE_BEGIN = b"SQLite format 3\0"

_NUL = "its name holds a NUL character; correct it"


class FileError(QuiltstreamError, OSError):
    """A file that is not opened or replaced for what it is; the text has the limit and the next step, and no path."""


def reason(error: Exception) -> str:
    """What to say of a file that could not be used: the text of a :class:`FileError`, else the kind of the error.

    That is the system's word for its number, where it has one. Texts of other errors may hold what is in the file.
    """
    if isinstance(error, FileError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return type(error).__name__


def is_file(path: Path | str) -> bool:
    """Whether a regular file is at a path, also behind a link.

    Not where that cannot be found out, as at a name that is too long or within a folder of another user: to
    ``Path.is_file`` that is an error.
    """
    return os.path.isfile(path)  # noqa: PTH113 - as said


def is_folder(path: Path | str) -> bool:
    """Whether a folder is at a path; otherwise as :func:`is_file`."""
    return os.path.isdir(path)  # noqa: PTH112 - as said


def mend_reading(error: Exception, otherwise: str) -> str:
    """The next step after a file could not be read: its rights where these are why, else what is given."""
    return "give this user the right to read it" if isinstance(error, PermissionError) else otherwise


def endless(path: Path | str) -> str | None:
    """What is at a path, also behind a link, that is neither a regular file nor a folder; ``None`` for these and none.

    A pipe keeps its reader waiting, and a device may have no end.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - as said
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) else _kind(found)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        FileError: it is something else.
        OSError: it cannot be opened.
    """
    try:
        _check_readable(path.stat())  # opening a device may do something already
        # what is there may have been exchanged meanwhile: without O_NONBLOCK a pipe would keep its reader waiting
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError:
        raise FileError(_NUL) from None
    try:
        _check_readable(os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file that is not larger than so many bytes.

    Raises:
        FileError: it is no regular file, or larger.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        check_size(file, most)
        found = file.read(most + 1)
    if len(found) > most:  # it grew, or is one of the kernel's, which have no size
        raise _too_large(len(found), most)
    return found


def open_table(path: Path, most: int) -> TextIO:
    """Open a regular file of UTF-8 text, with line ends as they are, for a reader of CSV.

    Raises:
        FileError: it is no regular file, or larger than ``most`` bytes.
        OSError: it cannot be opened.
    """
    file = open_regular(path)
    try:
        check_size(file, most)
    except BaseException:
        file.close()
        raise
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def check_size(file: BinaryIO, most: int) -> None:
    """Refuse an open file that is larger than a limit in bytes.

    Raises:
        FileError: it is.
    """
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise _too_large(size, most)


def _too_large(size: int, most: int) -> FileError:
    return FileError(f"it has at least {size:,} bytes, and {most:,} are the limit; check that it is the right file")


def _check_readable(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"it is {_kind(found)}; give a regular file")


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")


def check_replaceable(path: Path) -> bool:
    """See that nothing but a regular file would be replaced by one of this name.

    Returns:
        Whether there is one.

    Raises:
        FileError: something else is there.
        OSError: it cannot be found out.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:
        raise FileError(_NUL) from None
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{_kind(found)} is there, and only a regular file is replaced; name another file")
    return True


def begin_of(path: Path, most: int) -> bytes:
    """The first bytes of a file, ``most`` of them; none where there is no file.

    Raises:
        FileError: something else is there.
        OSError: it cannot be read.
    """
    if not check_replaceable(path):
        return b""
    try:
        with open_regular(path) as file:
            return file.read(most)
    except FileNotFoundError:  # it was removed meanwhile
        return b""


def part_name(name: str) -> str:
    """A name for a file while it is being written; no pattern such as ``*.csv`` matches it."""
    return f".{name}.{uuid.uuid4().hex}.part"


@contextmanager
def whole_file(path: Path, *, private: bool = False, new: bool = False) -> Generator[Path]:
    """An empty file to write to, which gets its name when the block ends without an error.

    A regular file that was there is replaced, but for a SQLite database, and a missing folder made. Readers and other
    writers never see half of one.

    Args:
        path: the file.
        private: its rights are :data:`PRIVATE`, whatever the umask and the file that was there.
        new: never replace a file.

    Raises:
        FileError: something is there that is not replaced.
        OSError: the file or its folder cannot be written; a file that was there is as it was.
    """
    _check_target(path, new=new)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(part_name(path.name))
    try:
        _begin(part, private=private)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        _check_target(path, new=new)
        part.replace(path)
    finally:
        # it is gone where all went well
        with suppress(OSError):
            part.unlink()
    sync_folder(path.parent)


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Write a text as :func:`whole_file` does.

    Raises:
        FileError: something is there that is not replaced.
        OSError: it cannot be written.
    """
    with whole_file(path, private=private) as part:
        part.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_private(path: Path, flags: int) -> int:
    """Open a file, made if needed, for writing that only its owner can read, whatever the umask; a descriptor.

    Raises:
        FileError: something else than a regular file is there.
        OSError: it cannot be opened.
    """
    check_replaceable(path)
    more = os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    handle = os.open(path, flags | more, PRIVATE)
    try:
        _check_readable(os.fstat(handle))
        os.fchmod(handle, PRIVATE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _begin(part: Path, *, private: bool) -> None:
    if private:
        os.close(open_private(part, os.O_WRONLY | os.O_EXCL))
    else:
        part.touch(exist_ok=False)


def _check_target(path: Path, *, new: bool) -> None:
    if check_replaceable(path) and new:
        raise FileExistsError("it is there already")
    # it may be a ledger of record, which nothing makes again
    if begin_of(path, len(SQLITE_BEGIN)) == SQLITE_BEGIN:
        raise FileError("a SQLite database is there, which may be a ledger and is never replaced; name another file")


_PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """See that this process leaves no core file, which would hold its memory and outlive it on a disk.

    Linux writes none for a process that is not dumpable, also where the system hands cores to a program, which a limit
    of 0 bytes alone does not prevent. Another process of the same user then cannot read its memory either. What a
    system does not offer is left as it is.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
