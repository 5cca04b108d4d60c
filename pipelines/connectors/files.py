"""Files as source and sink of a job that ends: tried before anything is charged, written, and read back.

Whether a run reads again what its model was fitted on: by the content of the files, not by the names of series.

Names can differ where the data are the same: a file that is one series is called what its settings call it. So a model
remembers the files it was fitted on, and a run that reads one of them is taken to protect what the model was fitted on
unless the names show otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.files import check_replaceable, open_regular, part_name, reason
from ...schemas.model_file import Model
from ...schemas.releases import RELEASE_SCHEMA, Release, releases_from_batch
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings, read_roster
from ...transforms.formats.paths import expand, is_elsewhere, is_local, open_bytes
from ...transforms.sinks.files import REJECTS, WriteRows, read_releases
from ..errors import CommandError
from .undelivered import is_full, not_begun, outputs_of


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


#: Where a model file says which column named its series.
SERIES_COLUMN = "series_column"

_CHUNK = 1 << 20


#: What stands there of a wide table of series, whose header names them.
_HEADER = "readings.wide"


def series_column(settings: Settings) -> str | None:
    """The column with the names of the series, or what stands for a header of names; ``None`` of a single series."""
    readings = settings.readings
    if readings is None:
        return None
    if readings.wide is not None and readings.wide.columns == "series":
        return _HEADER
    return readings.series if isinstance(readings.series, str) else None


def source_digests(settings: Settings) -> tuple[str, ...]:
    """BLAKE2 digests of the content of every source file, sorted, each once.

    Raises:
        SettingsError: a pattern names no file.
        SourceFileError: a file cannot be read.
    """
    source = settings.source
    if source is None:
        return ()
    files = expand(source.patterns, settings.path, source.setting)
    return tuple(sorted({_digest_of(path) for path in files}))


def _digest_of(path: str) -> str:
    found = hashlib.blake2b(digest_size=16)
    with open_bytes(path) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def labelled(settings: Settings, model: Model) -> Model:
    """The model, marked as estimated from protected series if the run reads a file that it was fitted on.

    It is not marked if fit and run take the names of the series from the same column, and no series of the roster was
    used for the fit. A history that was converted, cut or compressed anew is another file, and is not noticed.

    Raises:
        SettingsError: a pattern of the source names no file.
        RosterError: the roster cannot be read.
        SourceFileError: a source file cannot be read.
    """
    origin = model.provenance
    if origin.from_protected or not origin.source_digests or _disjoint(settings, model):
        return model
    if set(origin.source_digests).isdisjoint(source_digests(settings)):
        return model
    return replace(model, provenance=replace(origin, from_protected=True))


def labelled_so_far(settings: Settings, model: Model) -> Model:
    """As :func:`labelled`, for a live job: by the files that are there now; there may be none yet."""
    with suppress(SettingsError):
        return labelled(settings, model)
    return model


def _disjoint(settings: Settings, model: Model) -> bool:
    """Whether names show that the model was fitted on other series than the roster's."""
    roster, column = read_roster(settings, grouped=False), series_column(settings)
    if roster is None or column is None or model.diagnostics.get(SERIES_COLUMN) != column:
        return False
    return model.provenance.used(roster.series) == 0


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
    """The names of the releases in the sink.

    Raises:
        SettingsError: the rows there are another query's, which this job would replace; or its place cannot be reached.
        CommandError: what is there are no releases.
    """
    table = _table(settings)
    return (
        []
        if table is None
        else _ids(table, settings, "the file there holds", "which this job would replace; name another file")
    )


def ids_in(path: str, settings: Settings) -> list[str]:
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
    """The settings' query that a query goes on for, if models are estimated in the stream."""
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


def _releases_in(path: str) -> pa.Table:
    try:
        _check_form(path, RELEASE_SCHEMA.names)
        return read_releases(path)
    except _UNREADABLE as error:
        raise _holds_something_else("sink", path, "releases", error) from error


def _there(path: str, field: str, what: str) -> str | None:
    try:
        found = check_replaceable(Path(path)) if is_local(path) else is_elsewhere(path, field)
    except OSError as error:
        raise _holds_something_else(field, path, what, error) from error
    return path if found else None


#: What readers raise at the content of a file.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, StopIteration, pa.ArrowException)


def _holds_something_else(field: str, path: str, what: str, error: Exception) -> CommandError:
    return CommandError(
        f"{field}: {path} exists and holds no {what} ({reason(error)}); name another file, or move that one"
    )


def _check_form(path: str, names: list[str]) -> None:
    """Look at the beginning of a file: it is empty, or its columns are these."""
    with open_regular(Path(path)) if is_local(path) else open_bytes(path) as file:
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
