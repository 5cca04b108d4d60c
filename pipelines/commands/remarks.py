"""What to look at in the data of a job, in words: one remark for one cause."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.model_file import Model, ModelError
from ...schemas.roster import Roster
from ...schemas.settings.job import Settings
from ...schemas.settings.model import SHIPPED
from ...schemas.slots import DAY_US, format_duration, format_instant, time_zone
from ...transforms.common.batches import Floats
from ...transforms.readings.slots import words_of
from ..console import listed, percent, plural
from ..init.rhythm import clock_changes, is_doubled, marks_in, most_frequent, usual_step

if TYPE_CHECKING:
    from .check import Gathered

#: A series, or a file, whose usual value is so many times that of the others is most likely in another unit; and the
#: factor between usual units.
APART, _FILE_APART, _THOUSAND = 300.0, 50.0, 1000.0

#: Times that a series has twice that are looked at.
_TRIED = 10_000

_CLOCK_SET_BACK = (
    "; some are of an hour that a clock set back doubles: if the times have no offset and the rows are in order, "
    "readings.ambiguous: in-order tells the two hours apart"
)

#: A step of the readings that differs from the slots by less is that of a clock that goes wrong.
_NEAR = 0.01

#: How many readings, and what share of them, have a mark of a missing value where it is said.
_OFTEN, _SELDOM = 3, 0.001

#: What to do about states without a reading.
_SMOOTH = "fit with --belief pooled --smoothing 1, or, as a choice that looked at the data and tells about the data, "
_OTHER_EDGES = _SMOOTH + "take edges out of states.edges"
_OTHER_LABELS = _SMOOTH + "put such labels under another one, as 'other'"

#: Share of the readings in one bin at which the edges tell nothing of them.
_CROWDED = 0.99

#: Names and files that are shown.
_SHOWN = 3


def usual_size(values: Floats) -> float | None:
    """The usual size of values that are not 0."""
    sizes = np.abs(values)
    sizes = sizes[sizes > 0]
    return float(np.median(sizes)) if len(sizes) else None


def far(usual: Mapping[str, float], factor: float) -> tuple[str, ...]:
    """Whose usual value is a factor above or below that of the others."""
    middle = float(np.median(list(usual.values()))) if usual else 0.0
    return tuple(name for name, size in usual.items() if not middle / factor < size < middle * factor)


def of_values(found: SimpleNamespace, settings: Settings, data: Gathered) -> Iterator[str]:
    """What to look at in the values and times: counters, units, edges, steps."""
    if found.never_fall:
        yield (
            f"{_named(found.never_fall)} never fall{'s' if len(found.never_fall) == 1 else ''}, or once to less than "
            "half, as a meter's counter does: if they count, set readings.register: {gap: 2h}, so that a slot has what "
            "the counter rose in it"
        )
    if found.fell:
        yield (
            f"the {'counter' if len(found.fell) == 1 else 'counters'} of {_named(tuple(found.fell))} fell, "
            f"{plural(sum(found.fell.values()), 'time')} in all: a fall that stays is a gap, unless "
            "readings.register.over_end says where it begins at 0 again; look whether the rows of two meters share a "
            "name"
        )
    if not _doubles_an_hour(settings, data):
        for evidence in clock_changes(data.series, data.times, len(data.names)):
            zone = f"set slots.timezone to their zone, such as Europe/Berlin, not {settings.slots.timezone}"
            yield f"{evidence}: if the data have local times, {zone}"
    if not (settings.space.categories or words_of(settings.readings, settings.slots.of)):
        for mark, count in marks_in(data.values / (1.0 if settings.readings is None else settings.readings.scale)):
            if count >= _OFTEN and count > _SELDOM * len(data.values):
                yield (
                    f"{plural(count, 'reading')} have the value {mark:g}, far from all others: where it stands for a "
                    "missing value, leave them out of the data"
                )
    if found.apart:
        yield (
            f"the usual value of {_named(found.apart)} is more than {APART:g} times, or less than a {APART:g}th of, "
            "that of the others: look whether they are in another unit, such as W and kW"
        )
    if files := far(data.usual, _FILE_APART):
        yield (
            f"the usual value of {listed(files, _SHOWN)} is more than {_FILE_APART:g} times, or less than a "
            f"{_FILE_APART:g}th of, that of other files: look whether a file is in another unit, such as Wh and kWh"
        )
    yield from _of_bins(found, settings, data)
    yield from _of_steps(settings, data)


def _of_bins(found: SimpleNamespace, settings: Settings, data: Gathered) -> Iterator[str]:
    """Bins that have no reading, or nearly all, but for the values of a counter, which are beyond the edges."""
    if not found.readings or found.never_fall:
        return
    label, share = max(found.bins.items(), key=lambda pair: pair[1])
    if share >= _CROWDED and not settings.space.categories:
        text = f"{share:.1%} of the values are in the bin {label!r}"
        for factor in (_THOUSAND, 1 / _THOUSAND):
            other = np.bincount(settings.space.encode(data.values * factor), minlength=settings.space.bins)
            if other.max() < _CROWDED * found.readings:
                text += f"; times {factor:g} they would spread over the bins: look at readings.scale and the units"
                break
        yield text
    elif empty := [label for label, share in found.bins.items() if share == 0]:
        yield (
            f"no reading is in {', '.join(map(repr, empty))}: fit refuses a state that no history visits; "
            + (_OTHER_LABELS if settings.space.categories else _OTHER_EDGES)
        )


def _of_steps(settings: Settings, data: Gathered) -> Iterator[str]:
    """Steps that are not those of the slots, or not those of other series; and stamps that are ends by their days."""
    interval = settings.grid.interval_us
    step = usual_step(data.steps(), interval) or interval
    steps = {name: most_frequent(np.diff(data.times[at])) for name, at in data.runs() if at.stop - at.start > _OFTEN}
    other = tuple(name for name, one in steps.items() if one and not step / 2 < one < step * 2)
    lost = 1 - interval / max(step, interval)  # of the cells
    words = words_of(settings.readings, settings.slots.of)
    if other and words is None:
        yield (
            f"the readings of {_named(other)} are {format_duration(steps[other[0]] or 0)} apart, and most others "
            f"{format_duration(step)}: where they are energy of their interval, one factor is not right for all"
        )
    elif lost >= _NEAR:
        yield (
            f"most readings of a series are {format_duration(step)} apart, and slots.interval is "
            f"{format_duration(interval)}: about {lost:.0%} of the cells stay empty"
        )
    stamps = None if settings.readings is None else settings.readings.stamps
    if data.span is None or words is not None or stamps == "end" or step >= DAY_US:
        return
    zone = time_zone(settings.slots.timezone)
    first, last = (dt.datetime.fromtimestamp(one // 1_000_000, zone) for one in data.span)
    midnight = first.replace(hour=0, minute=0, second=0)
    is_late = (first - midnight) == dt.timedelta(microseconds=step) and f"{last:%H%M%S}" == "000000"
    if is_late and (last - first) >= dt.timedelta(hours=23):
        yield (
            f"the first of the times is {format_duration(step)} after a midnight and the last is a midnight, as of the "
            "ends of intervals: where a reading is of the time before its stamp, set readings.stamps: end"
        )


def of_counts(found: SimpleNamespace, settings: Settings, data: Gathered, roster: Roster | None) -> Iterator[str]:
    """What to look at in what counts: contradictions, and what no window, roster or group has."""
    schedule = settings.schedule
    if data.moving:
        yield (
            f"{_named(data.moving)} name{'s' if len(data.moving) == 1 else ''} more than one group: a run takes that "
            "of the earliest reading and rejects the readings of others, which are counted above; correct the column, "
            "or give a roster"
        )
    if found.contradicting:
        which = (
            "the label that is later in states.categories" if settings.space.categories else "that in the higher bin"
        )
        yield (
            f"{plural(found.contradicting, 'reading')} {'is' if found.contradicting == 1 else 'are'} in a cell that "
            f"had another value: the latest counts, of equally late ones {which}"
            + (_CLOCK_SET_BACK if _doubles_an_hour(settings, data) else "")
        )
    if found.silent:
        yield f"no reading counts of {_named(found.silent)} of the roster: a typing error, or gone?"
    if found.not_in_roster and not _is_history(settings, data, roster):
        share = percent(found.not_in_roster / found.readings)
        yield f"{share} of the readings are of series that the roster does not have"
    if outside := found.before + found.after:
        text = f"{percent(outside / found.readings)} of the readings are before the first window or after the last"
        if found.after and data.span and schedule.bounded:
            ended = schedule.ended_by(int(settings.grid.slots_of(data.span[1])) + 1)
            if (more := ended - len(schedule)) > 0:
                text += f"; windows.stop: {_stop(ended, settings)} takes all whole windows, {more:,} more"
        yield text
    if found.unended:
        ended = len(schedule) - found.unended
        yield (
            f"the last reading that counts is of {found.last_counted}, and {plural(found.unended, 'window')} of "
            f"{len(schedule):,} later: quiltstream run would publish them now, for ever; wait for more"
            + (f", or set windows.stop to {_stop(ended, settings)}: a later run may have a later one" if ended else "")
        )
    if not found.counts:
        yield "no reading counts: a run stops before anything is charged, with exit code 5"


def _is_history(settings: Settings, data: Gathered, roster: Roster | None) -> bool:
    """Whether the series outside the roster are those that the model is fitted on, or is yet to be."""
    if roster is None or settings.model_file is None or settings.model in SHIPPED:
        return False
    others = set(data.names).difference(roster.series)
    try:
        return Model.load(Path(settings.model_file)).provenance.used(others) == len(others)
    except ModelError:
        return True


def _stop(ended: int, settings: Settings) -> str:
    """The ``windows.stop`` of a schedule that ends with so many windows."""
    (start,) = settings.schedule.starts_ended(ended - 1, ended)
    return format_instant(settings.grid.time_of(settings.schedule.window_at(start).stop))


def _doubles_an_hour(settings: Settings, data: Gathered) -> bool:
    """Whether a series has a time twice that two instants may be, which the settings take for the earlier or later."""
    if settings.readings is None or settings.readings.ambiguous == "in-order":
        return False
    zone = time_zone(settings.slots.timezone)
    same = (np.diff(data.series) == 0) & (np.diff(data.times) == 0)
    for stamp in np.unique(data.times[1:][same])[:_TRIED].tolist():
        if is_doubled(dt.datetime.fromtimestamp(stamp // 1_000_000, zone)):
            return True
    return False


def _named(names: tuple[str, ...]) -> str:
    return f"{len(names):,} series ({listed(names, _SHOWN)})"
