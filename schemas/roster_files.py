"""The roster that settings name: read from its file, and under the pseudonyms that the readings have.

The file holds the real names, which only the machine that submits a job sees; everything after it knows pseudonyms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from .models import Model
from .roster import Roster
from .settings import Settings


def read_roster(
    settings: Settings, locate: Callable[[str], str] | None = None, *, grouped: bool = True
) -> Roster | None:
    """Read the roster's file.

    Args:
        settings: the job.
        locate: how a path of the settings is resolved; by the settings' own folder if left out.
        grouped: whether to read the groups too.

    Returns:
        The roster, or ``None`` if the settings name no file.

    Raises:
        RosterError: the file cannot be read, or lacks a column or a name.
        SettingsError: the key of the pseudonyms is not where the settings say.
    """
    roster = _as_written(settings, locate, grouped=grouped)
    if roster is None:
        return None
    names = under_pseudonyms(settings, [series for series, _ in roster.entries])
    return Roster(tuple(zip(names, (group for _, group in roster.entries), strict=True)), roster.awaits)


def _as_written(settings: Settings, locate: Callable[[str], str] | None, *, grouped: bool) -> Roster | None:
    file = settings.roster_file
    if file is None:
        return None
    path = Path((settings.path if locate is None else locate)(file.file))
    return Roster.read(path, series=file.series, group=file.group if grouped else None, most=settings.most_series)


def label_model(settings: Settings, model: Model, locate: Callable[[str], str] | None = None) -> Model:
    """The model of a job with pseudonyms, marked if it may have been estimated from the series that it protects.

    A model that was fitted before there were pseudonyms knows real names. These are compared where a roster's file has
    them; without one nobody can tell, and the model is marked.

    Raises:
        RosterError: the roster's file cannot be read.
    """
    readings, origin = settings.readings, model.provenance
    if readings is None or readings.pseudonyms is None or origin.from_protected or not origin.series_hashes:
        return model
    roster = _as_written(settings, locate, grouped=False)
    if roster is not None and origin.used(roster.series) == 0:
        return model
    return replace(model, provenance=replace(origin, from_protected=True))


def under_pseudonyms(settings: Settings, names: Iterable[str]) -> list[str]:
    """Names as the readings of a job have them.

    Raises:
        SettingsError: the key of the pseudonyms is not where the settings say.
    """
    readings = settings.readings
    if readings is None or readings.pseudonyms is None:
        return list(names)
    key = readings.pseudonyms.key()
    return [key.name(one) for one in names]


__all__ = ["label_model", "read_roster", "under_pseudonyms"]
