"""Calendar days, weeks and months of a time zone, in slots: windows that have no one length.

The n-th day, ISO week (from Monday) or month since 1970 begins at its local midnight, or at the clock change that skips
that midnight, and ends where the next one begins. So local days have 23 or 25 hours where the clock changes. All
of it is a public function of the zone's name, the unit and the slot grid.

Zones change their rules, and machines have different editions of the zone data. So the zone data are consulted once,
by the job that makes a plan; what they say is a plain value, :attr:`Calendar.shifts`, that goes on record with the
query and travels to workers: every window's bounds follow from it.

>>> days = local_calendar("day", "Europe/London", 3_600_000_000)
>>> march_31, october_27 = (date(2013, 3, 31) - date(1970, 1, 1)).days, (date(2013, 10, 27) - date(1970, 1, 1)).days
>>> [days.stop_of(number) - days.start_of(number) for number in (march_31 - 1, march_31, october_27)]
[24, 23, 25]
>>> days.number_of(days.start_of(march_31) + 22) == march_31
True
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from .clock import Ints, offsets_between
from .errors import ArgumentError

SlotsT = TypeVar("SlotsT", int, Ints)

Unit = Literal["day", "week", "month"]

UNITS: tuple[Unit, ...] = get_args(Unit)

#: A calendar begins with the first of these years and ends with the last one.
FIRST_YEAR, LAST_YEAR = 1970, 2099

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_S = 86_400
_US = 1_000_000

#: 1970-01-01 was a Thursday.
_THURSDAY, _WEEK = 3, 7

Shifts = tuple[tuple[int, int], ...]
"""(day since 1970-01-01, seconds): from that day on, days begin so many seconds before midnight UTC."""


@dataclass(frozen=True)
class Calendar:
    """The bounds of local days, weeks or months, in slots of a grid; windows are numbered from 1970 on."""

    unit: Unit  # what a window is
    timezone: str  # name of the zone
    shifts: Shifts  # where days begin, as the zone data had it when the query was first planned
    interval_us: int  # length of a slot, microseconds
    origin_us: int = 0  # start of slot 0, microseconds since 1970, UTC

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Calendar:
        """The inverse of :meth:`to_dict`.

        Raises:
            LookupError: a field is missing.
            TypeError: a field is of another kind.
            ValueError: the unit is unknown.
        """
        if plain["unit"] not in UNITS:
            raise ArgumentError(f"unit is {plain['unit']!r}, but must be one of {', '.join(UNITS)}")
        shifts = tuple((int(day), int(shift)) for day, shift in plain["shifts"])
        if not shifts or any(one[0] >= other[0] for one, other in pairwise(shifts)):
            raise ArgumentError("shifts must name at least one day, and days in rising order")
        return cls(plain["unit"], str(plain["timezone"]), shifts, int(plain["interval_us"]), int(plain["origin_us"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain form for the record."""
        return {
            "unit": self.unit,
            "timezone": self.timezone,
            "shifts": [list(one) for one in self.shifts],
            "interval_us": self.interval_us,
            "origin_us": self.origin_us,
        }

    def __reduce__(self) -> tuple[type[Calendar], tuple[Any, ...]]:
        # without the table, which each process makes anew
        return Calendar, (self.unit, self.timezone, self.shifts, self.interval_us, self.origin_us)

    @cached_property
    def _table(self) -> _Table:
        return _table(self)

    @property
    def end(self) -> int:
        """Where the last window of the calendar ends."""
        return int(self._table.bounds[-1])

    @property
    def longest(self) -> int:
        """Slots of the longest window there is."""
        return self.lengths[-1]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many slots windows have, rising, each number once: those of a day are 23, 24 and 25 hours."""
        return self._table.lengths

    @property
    def regular(self) -> tuple[int, ...]:
        """The lengths of windows in which no clock changes, which are the same by any edition of the zone data."""
        days = {"day": (1,), "week": (_WEEK,), "month": (28, 29, 30, 31)}[self.unit]
        return tuple(number * _DAY_S * _US // self.interval_us for number in days)

    def number_of(self, slots: SlotsT) -> SlotsT:
        """The number of the window that holds each slot; before and behind the calendar, one below or above all."""
        table = self._table
        found = np.searchsorted(table.bounds, slots, side="right") - 1 + table.first
        return int(found) if isinstance(slots, int) else found  # pyright: ignore[reportReturnType] - numpy's stubs

    def start_of(self, number: SlotsT) -> SlotsT:
        """The first slot of each window; of one before or behind the calendar, that of the first one, or the end."""
        table = self._table
        found = table.bounds[np.clip(np.asarray(number) - table.first, 0, len(table.bounds) - 1)]
        return int(found) if isinstance(number, int) else found  # pyright: ignore[reportReturnType] - numpy's stubs

    def stop_of(self, number: SlotsT) -> SlotsT:
        """The slot behind the last one of each window."""
        return self.start_of(number + 1)  # pyright: ignore[reportReturnType] - numpy's stubs

    def bounds_between(self, first: int, last: int) -> Ints:
        """Starts of the windows with the numbers ``first`` to ``last``, and the end of the last one."""
        table = self._table
        return table.bounds[max(0, first - table.first) : max(0, last + 2 - table.first)]

    def check_within(self, start: int, stop: int | None) -> None:
        """See that slots are of the years of a calendar.

        Raises:
            ValueError: they begin before them, or go on behind them.
        """
        if start < self._table.bounds[0] or (stop is not None and stop > self.end):
            name = "windows.start" if start < self._table.bounds[0] else "windows.stop"
            raise ArgumentError(
                f"{name} is outside of the years {FIRST_YEAR} to {LAST_YEAR}, of which windows.size: {self.unit} has "
                "the clock changes: move it there"
            )

    def check_whole(self, first: int, last: int) -> None:
        """See that windows, from the first number to the last one, consist of whole slots, at least one.

        Raises:
            ValueError: a window does not.
        """
        table = self._table
        low, high = first - table.first, last - table.first + 1
        odd = np.flatnonzero(table.rests[low : high + 1])
        if len(odd):
            at_us = int(table.rests[low + int(odd[0])]) + int(table.bounds[low + int(odd[0])]) * self.interval_us
            at = _EPOCH + dt.timedelta(microseconds=at_us + self.origin_us)
            raise ArgumentError(
                f"windows.size is {self.unit}, and in {self.timezone} the {self.unit} that begins at "
                f"{at.isoformat().replace('+00:00', 'Z')} does not begin with a slot: use a slots.interval that "
                "divides the day and every clock change of the zone, such as 30min, and a slots.origin at a full hour"
            )
        empty = np.flatnonzero(np.diff(table.bounds[low : high + 1]) < 1)
        if len(empty):
            name = _name(self.unit, first + int(empty[0]))
            raise ArgumentError(
                f"windows.size is {self.unit}, and the {self.unit} {name} does not exist in {self.timezone}, which "
                "skipped it: move windows.start behind it, or windows.stop before it"
            )

    def first_difference(self, other: Calendar, first: int, last: int) -> str | None:
        """The first of some windows whose bounds differ in another calendar: its name; ``None`` if none does."""
        mine, theirs = self.bounds_between(first, last), other.bounds_between(first, last)
        shared = min(len(mine), len(theirs))
        differ = np.flatnonzero(mine[:shared] != theirs[:shared])
        if len(differ):
            # the bound before which it lies is the end of the window before
            return _name(self.unit, max(first, first + int(differ[0]) - 1))
        return None if len(mine) == len(theirs) else _name(self.unit, first + shared)


@dataclass(frozen=True, eq=False)
class _Table:
    """Every bound of a calendar."""

    first: int  # number of the first window
    bounds: Ints  # start of each window and the end of the last one, shape (n + 1,), never falling
    rests: Ints  # microseconds from a bound's slot to the bound; 0 where a slot begins there
    lengths: tuple[int, ...]  # slots that windows have, rising; those without any are none


@lru_cache(maxsize=32)
def _table(calendar: Calendar) -> _Table:
    days, first = _days(calendar.unit)
    shifts = np.array(calendar.shifts, dtype=np.int64).reshape(-1, 2)
    seconds = shifts[np.maximum(np.searchsorted(shifts[:, 0], days, side="right") - 1, 0), 1]
    instants = (days * _DAY_S - seconds) * _US - calendar.origin_us
    bounds = instants // calendar.interval_us
    # where the clock of a zone goes back across a midnight, its later day begins first; nothing runs backwards
    bounds = np.maximum.accumulate(bounds)
    for array in (bounds, rests := instants - bounds * calendar.interval_us):
        array.flags.writeable = False
    lengths = np.unique(np.diff(bounds))
    return _Table(first, bounds, rests, tuple(lengths[lengths > 0].tolist()))


def _days(unit: Unit) -> tuple[Ints, int]:
    """The day on which each window of a calendar begins, and the last one ends; and the first one's number."""
    begin, end = np.datetime64(f"{FIRST_YEAR}-01", "M"), np.datetime64(f"{LAST_YEAR + 1}-01", "M")
    if unit == "month":
        months = np.arange(begin, end + 1)
        return months.astype("datetime64[D]").astype(np.int64), int(months[0].astype(np.int64))
    low, high = (int(one.astype("datetime64[D]").astype(np.int64)) for one in (begin, end))
    if unit == "day":
        return np.arange(low, high + 1, dtype=np.int64), low
    first = -(-(low + _THURSDAY) // _WEEK)
    numbers = np.arange(first, (high + _THURSDAY) // _WEEK + 1, dtype=np.int64)
    return numbers * _WEEK - _THURSDAY, first


def _name(unit: Unit, number: int) -> str:
    """A window as people write it: 2013-03-31, 2013-W13 or 2013-03."""
    if unit == "month":
        return str(np.datetime64(number, "M"))
    day = date(1970, 1, 1) + dt.timedelta(days=number * _WEEK - _THURSDAY if unit == "week" else number)
    year, week, _ = day.isocalendar()
    return f"{year}-W{week:02d}" if unit == "week" else day.isoformat()


def local_calendar(unit: Unit, timezone: str, interval_us: int, origin_us: int = 0) -> Calendar:
    """The calendar of a zone, as this machine's zone data have it.

    Args:
        unit: what a window is.
        timezone: IANA name.
        interval_us: length of a slot, microseconds.
        origin_us: start of slot 0, microseconds since 1970, UTC.
    """
    return Calendar(unit, timezone, shifts_of(timezone), interval_us, origin_us)


@lru_cache(maxsize=64)
def shifts_of(timezone: str) -> Shifts:
    """Where the days of a zone begin, by this machine's zone data: each change of it, the first one in 1970.

    A day begins when the clock shows its midnight for the first time. Where the clock skips midnight, it begins at the
    change.
    """
    changes_us, offsets_us = offsets_between(timezone, FIRST_YEAR - 1, LAST_YEAR + 1)
    midnights = np.arange((date(LAST_YEAR + 1, 1, 2) - date(1970, 1, 1)).days) * (_DAY_S * _US)
    # what the clock has shown at the end of each span between two changes; the last one has none
    shown = np.maximum.accumulate(changes_us + offsets_us[:-1])
    span = np.searchsorted(shown, midnights, side="right")
    begins = np.maximum(np.append(midnights[0] - _WEEK * _DAY_S * _US, changes_us)[span], midnights - offsets_us[span])
    shifts = (midnights - begins) // _US
    days = np.flatnonzero(np.diff(shifts, prepend=shifts[0] - 1))
    return tuple(zip(days.tolist(), shifts[days].tolist(), strict=True))
