"""Where a job reads and writes: each place a file of its own, and open for writing before anything is charged."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

from ...schemas.files import FileError, check_replaceable, reason
from ...schemas.settings import Settings, SettingsError
from ...store.address import StoreAddress
from ...transforms.files import expand, is_local
from ...transforms.formats import part_name
from .unwritten import is_full, not_begun, outputs_of

#: Files that SQLite and the queue of its writers keep beside a database.
_BESIDE = ("-wal", "-shm", "-journal", "-queue")


@dataclass(frozen=True, slots=True)
class Place:
    """A file that a setting names.

    Attributes:
        field: the setting.
        path: the file, or a pattern of files.
        written: whether something is written there.
    """

    field: str
    path: str
    written: bool = False


def places_of(settings: Settings) -> list[Place]:
    """Every file that the settings name, as far as it can be known without reading one.

    Raises:
        AddressError: the ledger's URL cannot be filled in here.
    """
    found: list[Place] = []
    source = settings.source
    if source is not None:
        field = source.setting
        for pattern in source.patterns:
            where = settings.path(pattern)
            found.append(Place(field, where))
            if is_local(where):
                with suppress(SettingsError):  # what is not there is said where it is read
                    found += [Place(field, path) for path in expand([pattern], settings.path, field)]
    if isinstance(settings.model, str):
        found.append(Place("model", settings.path(settings.model)))
    if settings.roster_file is not None:
        field = "roster" if settings.roster is not None else "group_by"
        found.append(Place(field, settings.path(settings.roster_file.file)))
    address = StoreAddress(settings.ledger_url)
    if address.is_sqlite:
        path = str(address.resolve().database)
        found += [Place("ledger", path + end, written=True) for end in ("", *_BESIDE)]
    for field, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        if sink is not None and sink.is_files:
            found.append(Place(field, settings.path(sink.path), written=True))
    return found


def check_apart(settings: Settings) -> None:
    """Refuse settings under which a job would write over a file that it reads, or that holds something else of it.

    Raises:
        SettingsError: two settings name the same file, and one of them is written; links and ``..`` are followed. Or
            something that is no file and no folder is where one is to be written.
    """
    places = places_of(settings)
    check_places(places)
    problems = [
        f"{place.field}: {place.path} cannot be written ({why})"
        for place in places
        if place.written and is_local(place.path) and (why := _no_place(place)) is not None
    ]
    if problems:
        raise SettingsError(problems)


def _no_place(place: Place) -> str | None:
    """Why a place that is there can be neither a file nor a folder that is written; a ledger may be behind a link."""
    path = Path(place.path)
    path = Path(os.path.realpath(path)) if place.field == "ledger" or path.is_dir() else path
    if path.is_dir():
        return None  # of a live job; what is not live says what it needs where it looks at the file
    try:
        check_replaceable(path)
    except FileError as error:
        return str(error)
    except OSError:
        return None  # said where it is written
    return None


def check_places(places: list[Place]) -> None:
    """The same for places that were collected otherwise.

    Raises:
        SettingsError: as above.
    """
    problems: dict[str, None] = {}
    for one, other in combinations(places, 2):
        if (one.written or other.written) and one.field != other.field and _same(one, other):
            written = other if other.written else one
            problems[
                f"{one.field} and {other.field} name the same file, {written.path}: writing the one would destroy the "
                f"other; give {written.field} a file of its own"
            ] = None
    if problems:
        raise SettingsError(problems)


def _same(one: Place, other: Place) -> bool:
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


def check_writable(settings: Settings) -> None:
    """Make the folders of the files of sink and rejects, and try to write there.

    Raises:
        SettingsError: a folder cannot be made, or nothing can be written in it.
        SinkError: no room is left there.
    """
    try_places(settings, lambda path: try_folder(path.parent, path.name), "mend its folder, or name another file")


def try_places(settings: Settings, attempt: Callable[[Path], None], advice: str) -> None:
    """Try to write where sink and rejects do, before anything is charged. Files of other machines are not tried.

    Args:
        settings: the job.
        attempt: raises an ``OSError`` where nothing can be written to a place.
        advice: what to do then.

    Raises:
        SettingsError: nothing can be written to some of them.
        SinkError: no room is left there.
    """
    problems: list[str] = []
    for output in outputs_of(settings):
        if not output.files or not is_local(output.place):
            continue
        try:
            attempt(Path(output.place))
        except OSError as error:
            if is_full(error):
                raise not_begun(output, error) from error
            problems.append(
                f"{output.field}: {output.place} cannot be written ({reason(error)}); nothing was charged: {advice}"
            )
    if problems:
        raise SettingsError(problems)


def try_folder(folder: Path, name: str) -> None:
    """Make a folder, and a file in it for a moment, under a name that no pattern finds.

    Raises:
        OSError: one of them cannot be made.
    """
    trial = folder / part_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    trial.touch(exist_ok=False)
    trial.unlink()
