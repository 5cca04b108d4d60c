"""The settings' sink: writing released rows and rejects, and reading back what an earlier run left there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.files import check_replaceable, open_regular, reason
from ...schemas.releases import RELEASE_SCHEMA, Release, releases_from_batch
from ...schemas.settings import Settings, SettingsError
from ...transforms.files import is_local
from ...transforms.formats import REJECTS, read_releases
from ...transforms.sinks import WriteRows
from ..failures import CommandError


def write_releases(releases: Any, settings: Settings) -> None:
    """Add the writing of released rows to a graph."""
    if settings.sink is not None:
        _ = releases | "Sink" >> WriteRows(settings.path(settings.sink.path), settings.sink.format)


def write_rejects(rejected: Any, settings: Settings) -> None:
    """Add the writing of rejects to a graph."""
    if settings.rejects is not None:
        _ = rejected | "Rejects" >> WriteRows(settings.path(settings.rejects.path), settings.rejects.format, REJECTS)


def released(settings: Settings) -> list[Release]:
    """The released rows in the sink."""
    table = _table(settings)
    return [] if table is None else releases_from_batch(table)


def released_ids(settings: Settings) -> list[str]:
    """The names of the releases in the sink; none where it is not a file of this machine.

    Raises:
        SettingsError: the rows there are another query's, which this job would replace.
        CommandError: what is there are no releases.
    """
    table = _table(settings)
    return (
        []
        if table is None
        else _ids(table, settings, "the file there holds", "which this job would replace; name another file")
    )


def ids_in(path: Path, settings: Settings) -> list[str]:
    """The names of the releases in one file of a live sink.

    Raises:
        SettingsError: the rows there are another query's.
        CommandError: what is there are no releases.
    """
    return _ids(_releases_in(path), settings, f"{path} holds", "and a folder is one query's; name another folder")


def _ids(table: pa.Table, settings: Settings, what: str, why: str) -> list[str]:
    names = set(zip(table["domain"].to_pylist(), table["query"].to_pylist(), strict=True))
    own = (settings.domain, family_of(settings.query, settings))
    others = sorted(f"{query} over {domain}" for domain, query in names if (domain, family_of(query, settings)) != own)
    if others:
        raise SettingsError([f"sink: {what} rows of {', '.join(others)}, {why}"])
    return table["release_id"].to_pylist()


def family_of(query: str, settings: Settings) -> str:
    """The settings' query that a query goes on for, if models are estimated in the stream: see ``generations``."""
    return query.split("@", 1)[0] if settings.estimate is not None else query


def check_rejects(settings: Settings) -> None:
    """Refuse to replace a file that is not of rejects.

    Raises:
        CommandError: the file is there and holds something else.
    """
    path = None if settings.rejects is None else _there(settings.path(settings.rejects.path), "rejects", "rejects")
    if path is None:
        return
    try:
        _check_form(path, REJECTS.schema.names)
    except _UNREADABLE as error:
        raise _holds_something_else("rejects", path, "rejects", error) from error


def _table(settings: Settings) -> pa.Table | None:
    path = None if settings.sink is None else _there(settings.path(settings.sink.path), "sink", "releases")
    return None if path is None else _releases_in(path)


def _releases_in(path: Path) -> pa.Table:
    try:
        _check_form(path, RELEASE_SCHEMA.names)
        return read_releases(path)
    except _UNREADABLE as error:
        raise _holds_something_else("sink", path, "releases", error) from error


def _there(path: str, field: str, what: str) -> Path | None:
    if not is_local(path):
        return None
    try:
        return Path(path) if check_replaceable(Path(path)) else None
    except OSError as error:
        raise _holds_something_else(field, Path(path), what, error) from error


#: What readers raise at the content of a file.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, StopIteration, pa.ArrowException)


def _holds_something_else(field: str, path: Path, what: str, error: Exception) -> CommandError:
    return CommandError(
        f"{field}: {path} exists and holds no {what} ({reason(error)}); name another file, or move that one"
    )


def _check_form(path: Path, names: list[str]) -> None:
    """Look at the beginning of a file: it is empty, or its columns are these."""
    with open_regular(path) as file:
        head = file.readline()
        file.seek(0)
        if head.startswith(b"PAR1"):
            found: Any = pq.read_schema(file).names
        elif head.startswith(b"Obj\x01"):
            schema: Any = fastavro.reader(file).writer_schema
            found = [field["name"] for field in schema["fields"]]
        elif head.startswith(b"{"):
            found = list(json.loads(head))
        else:
            found = head.decode().rstrip("\n").split(",") if head else names
    if found != names:
        raise ValueError("other columns")
