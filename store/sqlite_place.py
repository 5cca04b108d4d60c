"""Where an SQLite ledger may be: a file with one name, in a folder that is mounted with it, on a disk of this machine.

SQLite finds the log of a file by the file's name, and the index of the log is memory that processes share. So three
places make two histories of one ledger, each without the other's charges, and without an error of SQLite: a file with
two names (hard links) has two logs; a file that is mounted by itself, as a container's volume may be, has its log in a
folder that others do not see and that ends with the container; and of two machines that mount one network file system
each has an index of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .sqlite_file import locked, log_of, temporaries

__all__ = ["misplaced", "mounts", "names_of"]

#: File systems that several machines mount, as Linux names them.
_SHARED = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("ocfs2", "gfs2", "orangefs", "pvfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"),
        *("fuse.mount-s3", "fuse.goofys", "fuse.juicefs", "fuse.beegfs", "fuse.lizardfs", "fuse.mfs", "fuse.davfs"),
    }
)

_MOUNTS = Path("/proc/self/mountinfo")

#: How the kernel writes a blank, a tab, a line end and a backslash in a path.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounts() -> str:
    """What is mounted for this process, as Linux tells it; empty on other systems."""
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def misplaced(path: Path, mounted: str) -> str | None:
    """Why a ledger cannot be kept at a path, in words; ``None`` if it can be.

    Args:
        path: of the file, without symbolic links.
        mounted: what is mounted, as :func:`mounts` says it.
    """
    kinds = dict(_kinds(mounted))  # of two mounts at one place the later one is seen
    for file, what in ((path, "its file"), (log_of(path), f"its log {path.name}-wal")):
        if str(file) in kinds:
            return (
                f"{what} is mounted by itself, and SQLite keeps file and log together by their names: what is charged "
                "here would be missing elsewhere, and lost with the container. Mount the folder and not the file"
            )
    kind = next((kinds[str(folder)] for folder in path.parents if str(folder) in kinds), "")
    if kind not in _SHARED:
        return None
    return (
        f"it is on a network file system ({kind}), where jobs on two machines do not see each other's charges; use a "
        "disk of this machine, or use PostgreSQL"
    )


def _kinds(mounted: str) -> Iterator[tuple[str, str]]:
    """The mount points with their file systems' kinds."""
    for line in mounted.splitlines():
        before, separator, after = line.partition(" - ")
        with suppress(IndexError):
            if separator:
                yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4]), after.split(" ")[0]


def names_of(path: Path) -> int:
    """How many names the file of a ledger has; what a maker left behind that was killed is removed.

    Raises:
        OSError: it cannot be looked at.
    """
    found = path.stat().st_nlink
    if found == 1:
        return found
    # a ledger that is just being made has two for a moment, under this lock
    with locked(path.parent):
        here = path.stat()
        for left in temporaries(path):
            with suppress(OSError):
                if os.path.samestat(left.lstat(), here):
                    left.unlink()
        return path.stat().st_nlink
