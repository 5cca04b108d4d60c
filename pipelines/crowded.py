"""Whether several readings fall in one slot and the settings do not say what the slot then holds.

Counted by time stamps alone, so that no value moves an exit code.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Settings
from ..transforms.common.batches import Ints
from ..transforms.readings.slots import words_of
from ..transforms.sources.files import ReadReadings

#: Share of the readings above which a run does not begin.
MOST_SHARE = 0.2

#: Readings that a run looks at before it begins.
_LOOKED_AT = 1 << 18


def refuse_crowded_stamps(settings: Settings, series: Ints, times: Ints) -> None:
    """Stop where a fifth of some readings fall in a slot whose series has an earlier reading with another stamp.

    Args:
        settings: the job.
        series: the number of each reading's series, shape (n,).
        times: microseconds since the epoch, shape (n,).

    Raises:
        SettingsError: they do, and ``slots.of`` is not in the settings.
    """
    if "of" in settings.slots.model_fields_set or not len(times):
        return
    stamps = np.unique(np.stack([series, times], axis=1), axis=0)
    slots = settings.grid.slots_of(stamps[:, 1])
    several = np.count_nonzero((np.diff(stamps[:, 0]) == 0) & (np.diff(slots) == 0))
    if several > MOST_SHARE * len(stamps):
        raise SettingsError(
            f"slots.of is missing: {several / len(stamps):.0%} of the readings fall in a slot of "
            f"{settings.slots.interval} whose series has a reading before them. Say what the slot holds: last (the "
            "latest), mean (power), or sum (energy, steps; with readings.length); or set slots.interval to that of the "
            "readings"
        )


def refuse_crowded_files(settings: Settings, source: ReadReadings) -> None:
    """The same of the first readings of files, before a run begins."""
    if words_of(settings.readings, settings.slots.of) is not None or "of" in settings.slots.model_fields_set:
        return
    numbers: dict[str, int] = {}
    parts: list[tuple[Ints, Ints]] = []
    for batch in first_readings(source):
        series = batch.column("series")
        names = [numbers.setdefault(name, len(numbers)) for name in series.dictionary.to_pylist()]
        codes = np.array(names, dtype=np.int64)[series.indices.to_numpy(zero_copy_only=False)]
        parts.append((codes, batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)))
    if parts:
        series, times = (np.concatenate(part) for part in zip(*parts, strict=True))
        refuse_crowded_stamps(settings, series, times)


def first_readings(source: ReadReadings) -> Iterator[pa.RecordBatch]:
    """The readings that a run looks at before it begins, as far as the first files have any."""
    left = _LOOKED_AT
    for batch in (one.readings for _, one in source.decoded() if one.readings is not None):
        yield batch
        left -= batch.num_rows
        if left <= 0:
            return
