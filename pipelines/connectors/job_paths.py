"""Paths that a job or another command reads or writes, and which of them must not be the same.

Nothing here reads or writes, and Beam is not imported: a dry run checks the paths of a job, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

from ...schemas.files import FileError, check_replaceable, is_folder
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings
from ...store.address import StoreAddress
from ...transforms.formats.paths import expand, is_local

__all__ = ["JobPath", "check_apart", "check_output", "check_paths", "job_paths"]

#: Files that SQLite and the queue of its writers keep beside a database.
_BESIDE = ("-wal", "-shm", "-journal", "-queue")


@dataclass(frozen=True, slots=True)
class JobPath:
    """A file that a setting names.

    Attributes:
        field: the setting.
        path: the file, or a pattern of files.
        written: whether something is written there.
    """

    field: str
    path: str
    written: bool = False


def job_paths(settings: Settings) -> list[JobPath]:
    """Every file that the settings name, as far as it can be known without reading one.

    Raises:
        AddressError: the ledger's URL cannot be filled in here.
    """
    found: list[JobPath] = []
    source = settings.source
    if source is not None:
        field = source.setting
        for pattern in source.patterns:
            where = settings.path(pattern)
            found.append(JobPath(field, where))
            if is_local(where):
                with suppress(SettingsError):  # what is not there is said where it is read
                    found += [JobPath(field, path) for path in expand([pattern], settings.path, field)]
    if settings.model_file is not None:
        found.append(JobPath("model", settings.model_file))
    if settings.roster_file is not None:
        field = "roster" if settings.roster is not None else "group_by"
        found.append(JobPath(field, settings.path(settings.roster_file.file)))
    address = StoreAddress(settings.ledger_url)
    if address.is_sqlite:
        path = str(address.resolve().database)
        found += [JobPath("ledger", path + end, written=True) for end in ("", *_BESIDE)]
    for field, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        if sink is not None and sink.is_files:
            found.append(JobPath(field, settings.path(sink.path), written=True))
    return found


def check_apart(settings: Settings) -> None:
    """Refuse settings under which a job would write over a file that it reads, or that holds something else of it.

    Raises:
        SettingsError: two settings name the same file, and one of them is written; links and ``..`` are followed. Or
            something that is no file and no folder is where one is to be written.
    """
    paths = job_paths(settings)
    check_paths(paths)
    problems = [
        f"{one.field}: {one.path} cannot be written ({why})"
        for one in paths
        if one.written and is_local(one.path) and (why := _not_writable(one)) is not None
    ]
    if problems:
        raise SettingsError(problems)


def _not_writable(one: JobPath) -> str | None:
    """Why what is at a path can be neither a file nor a folder that is written; a ledger may be behind a link."""
    path = os.path.realpath(one.path) if one.field == "ledger" or is_folder(one.path) else one.path
    if is_folder(path):
        return None  # of a live job; what is not live says what it needs where it looks at the file
    try:
        check_replaceable(Path(path))
    except FileError as error:
        return str(error)
    except OSError:
        return None  # said where it is written
    return None


def check_paths(paths: list[JobPath]) -> None:
    """Refuse paths of which two settings name the same one, and one of them writes there.

    Raises:
        SettingsError: there are such settings; links and ``..`` are followed.
    """
    problems: dict[str, None] = {}
    for one, other in combinations(paths, 2):
        if (one.written or other.written) and one.field != other.field and _same(one, other):
            written = other if other.written else one
            problems[
                f"{one.field} and {other.field} name the same file, {written.path}: writing the one would destroy the "
                f"other; give {written.field} a file of its own"
            ] = None
    if problems:
        raise SettingsError(problems)


def check_output(output: Path, read: Iterable[JobPath | Path], what: str = "the output (-o)") -> None:
    """Refuse to write what a command makes over a file that it reads, or that its settings name.

    Args:
        output: the file to be written.
        read: the other files.
        what: the file that is written, for messages.

    Raises:
        SettingsError: it is one of them.
    """
    written = JobPath(what, str(output), written=True)
    for one in read:
        check_paths([one if isinstance(one, JobPath) else JobPath("the command", str(one)), written])


def _same(one: JobPath, other: JobPath) -> bool:
    first, second = one.path.removeprefix("file://"), other.path.removeprefix("file://")
    if is_local(first) != is_local(second):
        return False
    if not is_local(first):
        return _matches(first, second) or _matches(second, first)
    with suppress(OSError):  # one of them is not there yet
        return Path(first).samefile(second)
    first, second = os.path.realpath(first), os.path.realpath(second)
    return _matches(first, second) or _matches(second, first)


def _matches(path: str, pattern: str) -> bool:
    """Whether a path is a pattern's, part by part: a sink that the source's pattern finds is read by the next run."""
    if path == pattern:
        return True
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
