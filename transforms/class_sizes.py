"""Slots of the smallest class over the windows of a schedule: settings alone, no reading takes part.

Windows of one schedule have classes of other sizes: three days may hold a whole weekend or one day of it, and a window
across the end of a month holds a part of each. Which sizes there are repeats with the week and the year, so the windows
that begin in one year are looked at.

A class is the same from one of its borders to the next, and borders are full hours of the local clock. So a window
between two borders has one class, of all its slots, and only the windows across a border are looked at one by one.

>>> weekends = SlotClasses(("weekend",))
>>> three_days = Schedule(size=72, every=72, start=0)
>>> smallest_classes(weekends, SlotGrid(HOUR_US), three_days)
((72, 24),)
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..schemas.slots import DAY_US, HOUR_US, Schedule, SlotClasses, SlotGrid, local_of

Ints = npt.NDArray[np.int64]

#: The windows that begin within so long are looked at.
_YEAR_US = 366 * DAY_US

#: Parts of windows that are looked at, at most about as many; sliding windows that overlap more often are looked at for
#: less than a year.
_MOST_PARTS = 1 << 17


@lru_cache(maxsize=256)
def smallest_classes(classes: SlotClasses, grid: SlotGrid, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Slots of a window, and of the smallest class that one of so many slots has; each length of a window once.

    A class that is small only because the clock changes is no reason to stop a job for all its windows: no setting
    makes it larger. So windows of one length are looked at by a clock that stays as it is when the first one begins; of
    a calendar, whose windows follow the clock, those are left out within which it changes, where there are others. A
    class without a slot in a window has no histogram there, and is none of its classes.

    Args:
        classes: the classes; where there is one, it has all slots.
        grid: the slots.
        schedule: the windows; where the start is to come from the data, ones like them.
    """
    if not classes.by and schedule.calendar is None:
        return ((schedule.size, schedule.size),)
    first, stop = _year(grid, schedule)
    if schedule.calendar is None:
        at_us = np.array([grid.time_of(first)], dtype=np.int64)
        shift = int((local_of(classes.timezone, at_us) - at_us)[0])
        classes, grid = SlotClasses(classes.by), SlotGrid(grid.interval_us, grid.origin_us + shift)
    bounds = classes.borders(grid, first, stop + schedule.size)
    starts = _starts(schedule, first, stop, bounds)
    stops = schedule.over_at(schedule.number_of(starts))
    changed = _holds(starts, stops, classes.changes(grid, first, stop + schedule.size))
    if not changed.all():
        starts, stops = starts[~changed], stops[~changed]
    fewest = _fewest(classes, grid, starts, stops, bounds)
    lengths = stops - starts
    return tuple((length, int(fewest[lengths == length].min())) for length in np.unique(lengths).tolist())


def _year(grid: SlotGrid, schedule: Schedule) -> tuple[int, int]:
    """The first slot of the first window that is looked at, and the slot by which the last one begins."""
    calendar = schedule.calendar
    if schedule.start is not None:
        first = schedule.first
    elif calendar is None:
        first = schedule.anchor
    else:
        first = calendar.start_of(calendar.number_of(calendar.end - _YEAR_US // grid.interval_us))
    within_us = min(_YEAR_US, max(_MOST_PARTS // schedule.overlap * HOUR_US, schedule.every * grid.interval_us))
    last = first + within_us // grid.interval_us
    if schedule.bounded:
        last = min(last, schedule.start_before(schedule.covered.stop))
    return first, max(first, last)


def _starts(schedule: Schedule, first: int, last: int, bounds: Ints) -> Ints:
    """Where windows begin: all, or, of very many, the first one and those across a border."""
    calendar = schedule.calendar
    if calendar is not None:
        numbers = np.arange(calendar.number_of(first), calendar.number_of(last) + 1, dtype=np.int64)
        found = calendar.start_of(numbers)
        return found[(found < calendar.end) & (calendar.start_of(numbers + 1) > found)]
    windows = (last - first) // schedule.every + 1
    if windows <= len(bounds) * schedule.overlap:
        return first + np.arange(windows, dtype=np.int64) * schedule.every
    before = (bounds - 1 - first) // schedule.every
    numbers = np.sort((before[:, None] - np.arange(schedule.overlap)).ravel())
    numbers = np.append(0, numbers[numbers > 0])
    # each once; numpy's own way is slower by far
    starts = first + numbers[np.diff(numbers, prepend=-1) > 0] * schedule.every
    return starts[starts <= last]


def _holds(starts: Ints, stops: Ints, slots: Ints) -> npt.NDArray[np.bool_]:
    """Which windows have one of some slots behind their first one, shape (n,)."""
    return np.searchsorted(slots, starts, side="right") < np.searchsorted(slots, stops, side="left")


def _fewest(classes: SlotClasses, grid: SlotGrid, starts: Ints, stops: Ints, bounds: Ints) -> Ints:
    """Slots of the smallest class that each window has, shape (n,)."""
    if not len(bounds):
        return stops - starts
    low = np.searchsorted(bounds, starts, side="right")
    parts = np.searchsorted(bounds, stops, side="left") - low + 1
    window = np.repeat(np.arange(len(starts)), parts)
    number = np.arange(len(window)) - np.repeat(np.cumsum(parts) - parts, parts)
    begins = np.where(number == 0, starts[window], bounds[np.minimum(low[window] + number - 1, len(bounds) - 1)])
    ends = np.where(number == parts[window] - 1, stops[window], np.append(begins[1:], stops[-1]))
    each = classes.at(grid.time_of(np.append(starts[0], bounds)))
    keys = window * len(classes) + each[low[window] + number]
    order = np.argsort(keys, kind="stable")
    keys, held = keys[order], (ends - begins)[order]
    at = np.flatnonzero(np.diff(keys, prepend=-1))
    slots = np.add.reduceat(held, at)
    found = np.full(len(starts), np.iinfo(np.int64).max)
    np.minimum.at(found, keys[at] // len(classes), slots)
    return found
