"""Whether a run reads again what its model was fitted on: by the content of the files, not by the names of series.

Names can differ where the data are the same: a file that is one series is called what its settings call it. So a model
remembers the files it was fitted on, and a run that reads one of them is taken to protect what the model was fitted on
unless the names show otherwise.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

from ...schemas.models import Model
from ...schemas.roster_files import read_roster
from ...schemas.settings import Settings, SettingsError
from ...transforms.files import expand, open_bytes

#: Where a model file says which column named its series.
SERIES_COLUMN = "series_column"

_CHUNK = 1 << 20


def series_column(settings: Settings) -> str | None:
    """The column with the names of the series; ``None`` for a source that is one series."""
    column = None if settings.readings is None else settings.readings.series
    return column if isinstance(column, str) else None


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
