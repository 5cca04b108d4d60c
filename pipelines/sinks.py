"""The settings' sink: writing released rows and rejects, and reading back what an earlier run left there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ..schemas.releases import RELEASE_SCHEMA, Release, releases_from_batch
from ..schemas.settings import Settings, SettingsError
from ..transforms.files import is_local
from ..transforms.formats import REJECTS, read_releases
from ..transforms.sinks import WriteRows
from .failures import CommandError


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
    if table is None:
        return []
    names = set(zip(table["domain"].to_pylist(), table["query"].to_pylist(), strict=True))
    others = sorted(f"{query} over {domain}" for domain, query in names - {(settings.domain, settings.query)})
    if others:
        raise SettingsError(
            [f"sink: the file there holds rows of {', '.join(others)}, which this job would replace; name another file"]
        )
    return table["release_id"].to_pylist()


def _table(settings: Settings) -> pa.Table | None:
    if settings.sink is None:
        return None
    path = settings.path(settings.sink.path)
    if not is_local(path) or not Path(path).exists():
        return None
    try:
        table = read_releases(path)
        if not table.num_rows:
            _check_header(Path(path).read_bytes())
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise CommandError(
            f"sink: {path} exists and holds no releases ({type(error).__name__}); name another file, or move that one"
        ) from error
    return table


def _check_header(content: bytes) -> None:
    """A file without rows that is neither Parquet nor Avro is empty, or is CSV with the header of releases."""
    head = content.split(b"\n", 1)[0].decode()
    if content and not content.startswith((b"PAR1", b"Obj\x01")) and head.split(",") != RELEASE_SCHEMA.names:
        raise ValueError("no header of releases")
