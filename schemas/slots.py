"""Public time: slots, windows, schedules, time zones and classes of slots. No reading takes part in any of it.

A slot is ``floor((t - origin) / interval)``, so the slot of a reading and the number of slots of a window depend on
nothing secret. All instants are microseconds since 1970-01-01 UTC.

>>> grid = SlotGrid(parse_duration("30min"), parse_instant("2013-01-01"))
>>> grid.slots_of(parse_instant("2013-01-01T01:15Z"))
2
>>> [str(w) for w in Schedule(size=48, every=48, start=0, stop=100).windows()]
['[0, 48)', '[48, 96)']

Classes of slots by the public clock: hour of the day, day of the week, working day or weekend, month. Which slots of a
window are in a class, and how many, is a function of settings alone, and so public.

>>> week = Window(0, 7 * 24)
>>> hours = SlotClasses(("weekend", "hour"), "UTC")
>>> grid = SlotGrid(3_600_000_000, parse_instant("2013-01-07"))
>>> len(hours), hours.labels[:2], hours.labels[-1]
(48, ('workday 00:00', 'workday 01:00'), 'weekend 23:00')
>>> hours.slots_of(grid, week)[[0, 47]].tolist()
[5, 2]

Local days have 23 or 25 hours where the clock changes: a doubled hour is in its class twice, and a skipped one in none.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, pairwise
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from .calendars import Calendar
from .clock import FIRST_YEAR, LAST_YEAR, Ints, local_of, offsets_between, time_zone
from .errors import ArgumentError

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
MINUTE_US, HOUR_US, DAY_US = _UNITS_US["min"], _UNITS_US["h"], _UNITS_US["d"]

#: An earlier instant since 1970 is of a clock that was never set, or of a time in another unit.
YEAR_1971_US = 365 * DAY_US
_DURATION = re.compile(r"\s*(\d{1,20})\s*(us|ms|s|min|h|d|w)\s*")
_LONGEST_US = 3_652_059 * _UNITS_US["d"]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_US, _LAST_US = (
    (end - _EPOCH) // dt.timedelta(microseconds=1)
    for end in (
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    )
)

#: The windows that begin within so long are looked at, of very short or very long ones only as many as have so many
#: hours together.
_YEAR_US, _MOST_HOURS = 366 * DAY_US, 1 << 17

SlotsT = TypeVar("SlotsT", int, npt.NDArray[np.int64])


def parse_duration(text: str) -> int:
    """Read a positive duration such as ``30min``, ``7d`` or ``500ms``, in microseconds.

    Raises:
        ValueError: the text is not a whole number with a unit, or the duration is zero or longer than the calendar.
    """
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ArgumentError(
            f"duration {text!r} is not a positive whole number with a unit; write one of {', '.join(_UNITS_US)}, "
            f"for example 30min or 7d"
        )
    duration = int(match[1]) * _UNITS_US[match[2]]
    if duration > _LONGEST_US:
        raise ArgumentError(
            f"duration {text!r} is longer than the calendar, {format_duration(_LONGEST_US)}; write less"
        )
    return duration


def format_duration(duration_us: int) -> str:
    """Write a duration with the largest unit that divides it: the inverse of :func:`parse_duration`."""
    unit = next(u for u in reversed(_UNITS_US) if duration_us % _UNITS_US[u] == 0)
    return f"{duration_us // _UNITS_US[unit]}{unit}"


def said_duration(duration_us: int) -> str:
    """Write a duration for people: ``17 h``, ``1 h 59 min``; below an hour as :func:`format_duration` does."""
    hours, rest = divmod(duration_us, HOUR_US)
    if not hours:
        return format_duration(duration_us)
    minutes, below = divmod(rest, _UNITS_US["min"])
    if below:
        return f"{duration_us / HOUR_US:,.6g} h"
    return f"{hours:,} h" + (f" {minutes} min" if minutes else "")


def parse_instant(text: str | dt.date | dt.datetime, timezone: str = "UTC") -> int:
    """Read an ISO 8601 date or date-time as microseconds since the epoch; ``timezone`` reads naive stamps.

    Raises:
        ValueError: the text is not ISO 8601, or the naive stamp does not exist or exists twice in the zone, or the
            instant is outside of the years 1 to 9999 in UTC.
    """
    if isinstance(text, str):
        try:
            stamp = dt.datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise ArgumentError(
                f"instant {text!r} is not an ISO 8601 date or date-time; write 2013-01-01 or 2013-01-01T00:30Z, "
                "with a year from 0001 to 9999"
            ) from error
    elif isinstance(text, dt.datetime):
        stamp = text
    else:
        stamp = dt.datetime.combine(text, dt.time())
    if stamp.tzinfo is None:
        zone = time_zone(timezone)
        first, second = stamp.replace(tzinfo=zone, fold=0), stamp.replace(tzinfo=zone, fold=1)
        if first.utcoffset() != second.utcoffset():
            raise ArgumentError(
                f"instant {stamp.isoformat()} is ambiguous or does not exist in {timezone} (a clock change); "
                f"write it with its offset, for example {stamp.isoformat()}+00:00"
            )
        stamp = first
    found = (stamp - _EPOCH) // dt.timedelta(microseconds=1)
    if not _FIRST_US <= found <= _LAST_US:
        raise ArgumentError(
            f"instant {stamp.isoformat()} is in UTC outside of the years 0001 to 9999; write one within"
        )
    return found


def format_instant(time_us: int) -> str:
    """Write an instant as ISO 8601 in UTC; one that no calendar has, by its number."""
    if not _FIRST_US <= time_us <= _LAST_US:
        return f"{time_us} us since 1970"
    stamp = _EPOCH + dt.timedelta(microseconds=time_us)
    return stamp.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """The public grid of sampling intervals.

    Attributes:
        interval_us: length of a slot in microseconds, at least 1.
        origin_us: start of slot 0, microseconds since the epoch, UTC.
    """

    interval_us: int
    origin_us: int = 0

    def __post_init__(self) -> None:
        if self.interval_us < 1:
            raise ArgumentError(
                f"interval_us {self.interval_us} must be at least 1 microsecond; give the sampling interval"
            )

    def slots_of(self, time_us: SlotsT) -> SlotsT:
        """The slot of each instant, ``floor((t - origin) / interval)``, also before the origin."""
        return (time_us - self.origin_us) // self.interval_us  # pyright: ignore[reportReturnType] - numpy's stubs

    def time_of(self, slot: SlotsT) -> SlotsT:
        """The start of each slot in microseconds since the epoch."""
        return slot * self.interval_us + self.origin_us  # pyright: ignore[reportReturnType] - numpy's stubs

    def slots_in(self, duration_us: int, name: str) -> int:
        """How many whole slots a duration has.

        Raises:
            ValueError: the duration is not a whole, positive number of slots.
        """
        slots, rest = divmod(duration_us, self.interval_us)
        if rest or slots < 1:
            raise ArgumentError(
                f"{name} {format_duration(duration_us)} is not a whole number of slots of "
                f"{format_duration(self.interval_us)}; use a multiple of the interval"
            )
        return slots

    def slot_at(self, time_us: int, name: str) -> int:
        """The slot that begins exactly at an instant.

        Raises:
            ValueError: no slot begins there.
        """
        slot, rest = divmod(time_us - self.origin_us, self.interval_us)
        if rest:
            raise ArgumentError(
                f"{name} {format_instant(time_us)} is not the start of a slot; slots of "
                f"{format_duration(self.interval_us)} begin at {format_instant(self.origin_us)}: "
                f"use {format_instant(self.time_of(slot))} or move slots.origin"
            )
        return slot

    def to_dict(self) -> dict[str, int]:
        """Plain form for digests and the store."""
        return {"interval_us": self.interval_us, "origin_us": self.origin_us}


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The slots ``start <= slot < stop``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


class NoWholeWindowError(ArgumentError):
    """No whole window lies between the ends of a schedule."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one length, numbered as those of a calendar are."""

    anchor: int  # where number 0 begins
    every: int  # slots in each

    def number_of(self, slots: SlotsT) -> SlotsT:
        """The number of the step that holds each slot."""
        return (slots - self.anchor) // self.every  # pyright: ignore[reportReturnType] - numpy's stubs

    def start_of(self, number: SlotsT) -> SlotsT:
        """The first slot of each step."""
        return self.anchor + number * self.every  # pyright: ignore[reportReturnType] - numpy's stubs


@dataclass(frozen=True, slots=True)
class Schedule:
    """The published windows: ``[anchor + n * every, anchor + n * every + size)``, whole ones in ``[start, stop)``.

    With a calendar they are its days, weeks or months instead, which adjoin and have no one length. All code but this
    class asks for bounds and numbers of windows; none counts with ``size`` and ``every``.

    A *step* is what lies between the starts of two windows. Each window begins with a step of its own and consists of
    ``overlap`` of them; the windows of a calendar are steps.

    Attributes:
        size: slots in a window; with a calendar, in the longest one that it has.
        every: slots from one window's start to the next one's; a divisor of ``size``, so that each slot lies in exactly
            ``size / every`` windows (theory, composition of sliding windows). Equal to ``size``: tumbling windows.
        start: first slot that a window may cover; ``None`` while it is to come from the data.
        stop: first slot that no window may cover; ``None`` for an endless stream.
        anchor: a slot at which a window starts; 0 with a calendar.
        calendar: the days, weeks or months that are the windows; ``None`` for windows of one length.
        steps: where each step begins, and which one a slot is in.
    """

    size: int
    every: int
    start: int | None = None
    stop: int | None = None
    anchor: int = 0
    calendar: Calendar | None = None
    steps: Calendar | Steps = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.calendar or Steps(self.anchor, self.every))
        if self.size < 1:
            raise ArgumentError(f"windows.size is {self.size} slots and must be at least 1")
        if self.every < 1 or self.size % self.every:
            raise ArgumentError(
                f"windows.every is {self.every} slots and must divide windows.size, {self.size} slots: every slot "
                f"then lies in the same number of windows; use for example every = size / 2"
            )
        if self.calendar is not None:
            self._check_calendar(self.calendar)
        elif self.start is not None and self.stop is not None and self.stop - self.first < self.size:
            raise NoWholeWindowError(
                f"no whole window of {self.size} slots fits between slots {self.start} and {self.stop}; "
                f"move windows.start or windows.stop apart or use a smaller windows.size"
            )

    @classmethod
    def of_calendar(cls, calendar: Calendar, start: int | None = None, stop: int | None = None) -> Schedule:
        """The days, weeks or months of a calendar, whole ones in ``[start, stop)``.

        Raises:
            ValueError: there is none, or one does not consist of whole slots.
        """
        return cls(calendar.longest, calendar.longest, start, stop, 0, calendar)

    def _check_calendar(self, calendar: Calendar) -> None:
        if (self.size, self.every, self.anchor) != (calendar.longest, calendar.longest, 0):
            raise ArgumentError(f"windows.size is {calendar.unit}, and its windows have no other length or anchor")
        if self.start is None:
            return
        calendar.check_within(self.start, self.stop)
        begin = calendar.number_of(self.first)
        end = calendar.number_of(calendar.end if self.stop is None else self.stop)
        if end <= begin:
            raise NoWholeWindowError(
                f"no whole {calendar.unit} of {calendar.timezone} lies between slots {self.start} and {self.stop}; "
                "move windows.start or windows.stop apart or use a smaller windows.size"
            )
        calendar.check_whole(begin, end - 1)

    @property
    def first(self) -> int:
        """Start of the first whole window.

        Raises:
            ValueError: the schedule has no start yet.
        """
        if self.start is None:
            raise ArgumentError("this schedule has no start yet; resolve it from the data or set windows.start")
        return self.start_of(self.number_of(self.start - 1) + 1)

    @property
    def overlap(self) -> int:
        """In how many windows each slot lies: ``size / every``."""
        return self.size // self.every

    @property
    def bounded(self) -> bool:
        """Whether both ends are known."""
        return self.start is not None and self.stop is not None

    def __len__(self) -> int:
        if self.stop is None:
            raise ArgumentError("an endless schedule has no number of windows; set windows.stop")
        return self.ended_by(self.stop)

    def ended_by(self, slot: int) -> int:
        """How many windows end by a slot, whatever the last one is."""
        return max(0, self.number_of(slot) - self.overlap + 1 - self.number_of(self.first))

    def number_of(self, slots: SlotsT) -> SlotsT:
        """The number of the step that each slot is in; the same in every schedule of these windows."""
        return self.steps.number_of(slots)

    def start_of(self, number: SlotsT) -> SlotsT:
        """The first slot of each step, and of the window that begins with it."""
        return self.steps.start_of(number)

    def over_at(self, number: SlotsT) -> SlotsT:
        """The slot at which the last window over each step ends: where the window ends that begins with it."""
        return self.start_of(number + self.overlap)  # pyright: ignore[reportReturnType] - numpy's stubs

    def step(self, number: int) -> Window:
        """The slots of a step."""
        return Window(self.start_of(number), self.start_of(number + 1))

    def window_at(self, start: int) -> Window:
        """The window that starts at a slot."""
        return Window(start, self.over_at(self.number_of(start)))

    def start_after(self, start: int) -> int:
        """Where the window behind the one starts that starts at a slot."""
        return self.start_of(self.number_of(start) + 1)

    def first_from(self, slot: int) -> int:
        """Where the first window starts that starts at a slot or later, wherever the schedule stops."""
        return max(self.first, self.start_of(self.number_of(slot - 1) + 1))

    def start_before(self, stop: int) -> int:
        """Where the window starts that ends at a slot."""
        return self.start_of(self.number_of(stop - 1) - self.overlap + 1)

    def start_behind(self, stop: int) -> int:
        """Where the window behind the one starts that ends at a slot."""
        return self.start_after(self.start_before(stop))

    def is_end(self, slot: int) -> bool:
        """Whether a window ends at a slot, wherever the schedule stops."""
        return self.ended_by(slot) > 0 and self.start_of(self.number_of(slot)) == slot

    def starts_ended(self, begin: int, end: int) -> Sequence[int]:
        """Starts of the windows from number ``begin`` up to ``end``, counted from 0 at the first one."""
        first = self.number_of(self.first)
        if self.calendar is None:
            return range(self.start_of(first + begin), self.start_of(first + end), self.every)
        return self.calendar.start_of(np.arange(first + begin, first + end, dtype=np.int64)).tolist()

    def windows(self) -> Iterator[Window]:
        """Every window in order of time; endless without a stop."""
        if self.calendar is not None:
            last = self.ended_by(self.calendar.end) if self.stop is None else len(self)
            yield from (Window(start, stop) for start, stop in pairwise(self.starts_ended(0, last + 1)))
            return
        starts = count(self.first, self.every) if self.stop is None else self.starts_ended(0, len(self))
        yield from (Window(start, start + self.size) for start in starts)

    def contains(self, window: Window) -> bool:
        """Whether a window is one of the schedule's."""
        return (
            self.start_of(self.number_of(window.start)) == window.start < window.stop
            and self.window_at(window.start) == window
            and (self.start is None or window.start >= self.start)
            and (self.stop is None or window.stop <= self.stop)
        )

    @property
    def covered(self) -> Window:
        """The slots that some window of a bounded schedule covers."""
        return Window(self.first, self.over_at(self.number_of(self.first) + len(self) - 1))

    @property
    def end(self) -> int | None:
        """Where the last whole window ends; ``None`` for an endless schedule."""
        return None if self.stop is None else self.covered.stop

    @property
    def ends(self) -> tuple[int, ...]:
        """Where the windows of a calendar end, in order; nothing where all have one length."""
        if self.calendar is None:
            return ()
        last = self.ended_by(self.calendar.end) if self.stop is None else len(self)
        return tuple(self.starts_ended(1, last + 1))

    def difference(self, other: Schedule) -> str | None:
        """The first window of this schedule that has other bounds in another calendar of the same unit and zone.

        Returns:
            The window as people write it; ``None`` where all have the same bounds, or one schedule has no calendar.
        """
        mine, theirs = self.calendar, other.calendar
        if mine is None or theirs is None:
            return None
        first = mine.number_of(self.first)
        last = mine.number_of(mine.end if self.stop is None else self.covered.stop) - 1
        return mine.first_difference(theirs, first, last)

    def same_windows(self, other: Schedule) -> bool:
        """Whether two schedules have windows of the same kind: length and distance, or unit and zone."""
        one, two = self.calendar, other.calendar
        if one is None or two is None:
            return one is two and (self.size, self.every) == (other.size, other.every)
        return (one.unit, one.timezone) == (two.unit, two.timezone)

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many slots windows have, each number once."""
        return (self.size,) if self.calendar is None else self.calendar.lengths

    @property
    def own_lengths(self) -> tuple[int, ...]:
        """:attr:`lengths` of those windows that the schedule has, rising; of one without both ends, all of them."""
        calendar = self.calendar
        if calendar is None or not self.bounded:
            return self.lengths
        first, behind = calendar.number_of(self.first), calendar.number_of(self.covered.stop)
        return tuple(np.unique(np.diff(calendar.bounds_between(first, behind - 1))).tolist())

    def said_length(self, interval_us: int) -> str:
        """The length of a window as settings say it: a duration, or the unit of the calendar."""
        return format_duration(self.size * interval_us) if self.calendar is None else self.calendar.unit

    def to_dict(self) -> dict[str, Any]:
        """Plain form for digests and the store."""
        plain = {"size": self.size, "every": self.every, "start": self.start, "stop": self.stop, "anchor": self.anchor}
        return plain if self.calendar is None else {**plain, "calendar": self.calendar.to_dict()}


SlotClass = Literal["hour", "weekday", "weekend", "month"]
"""How slots may be told apart."""

#: Most cells of a histogram by classes of slots: a row holds each, and a job holds them for every series of a shard.
MOST_CELLS = 4096

#: 1970-01-01 was a Thursday.
_THURSDAY = 3
_SATURDAY = 5

_LABELS: dict[str, tuple[str, ...]] = {
    "hour": tuple(f"{hour:02}:00" for hour in range(24)),
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "weekend": ("workday", "weekend"),
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
}

#: What a slot must lie within, so that all of it is in its class.
_WITHIN = {name: ("an hour", HOUR_US) if name == "hour" else ("a day", DAY_US) for name in _LABELS}

#: Years whose clock changes are looked at where a schedule has no end.
_YEARS = 2000, 2037


def _hour(local_us: Ints) -> Ints:
    return local_us // HOUR_US % 24


def _weekday(local_us: Ints) -> Ints:
    return (local_us // DAY_US + _THURSDAY) % 7


def _weekend(local_us: Ints) -> Ints:
    return (_weekday(local_us) >= _SATURDAY).astype(np.int64)


def _month(local_us: Ints) -> Ints:
    return local_us.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64) % 12


_CLASS_OF = {"hour": _hour, "weekday": _weekday, "weekend": _weekend, "month": _month}


@dataclass(frozen=True, slots=True)
class SlotClasses:
    """Classes of slots: each slot is in exactly one, that of its first instant on the wall clock of a time zone.

    Machines with different time zone data may put slots of a year whose clock changes were decided late into different
    classes: counts are then mixed up, and what they tell of a reading stays the same, because none takes part in it.

    Attributes:
        by: what tells slots apart; of several each combination is a class, the last one changing fastest. None makes
            one class of all slots.
        timezone: IANA name of the zone.

    Raises:
        ValueError: a name is unknown or comes twice, or days of the week stand beside weekends.
    """

    by: tuple[str, ...] = ()
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        known = ", ".join(get_args(SlotClass))
        for i, name in enumerate(self.by):
            if name not in _LABELS:
                raise ArgumentError(
                    f"by names {name!r}, and slots are told apart by {known} of the public clock, never by data"
                )
            if name in self.by[:i]:
                raise ArgumentError(f"by names {name!r} twice: name it once")
        if {"weekday", "weekend"} <= set(self.by):
            raise ArgumentError(
                "by names weekday and weekend, and the day of the week says which days are weekends: leave weekend out"
            )

    def __len__(self) -> int:
        """Number of classes."""
        return math.prod(len(_LABELS[name]) for name in self.by)

    @property
    def labels(self) -> tuple[str, ...]:
        """A label for each class, in order; one empty text where there is one class."""
        found = [""]
        for name in self.by:
            found = [f"{before} {label}".lstrip() for before in found for label in _LABELS[name]]
        return tuple(found)

    def of(self, grid: SlotGrid, window: Window) -> npt.NDArray[np.int16]:
        """The class of each slot of a window, from 0 up, shape (slots,); not to be written to."""
        return _classes(self, grid, window)

    def slots_of(self, grid: SlotGrid, window: Window) -> Ints:
        """How many slots of a window are in each class, shape (classes,)."""
        if not self.by:
            return np.array([len(window)], dtype=np.int64)
        return np.bincount(self.of(grid, window), minlength=len(self))

    def at(self, utc_us: Ints) -> Ints:
        """The class of each instant, from 0 up, shape (n,)."""
        found = np.zeros(len(utc_us), dtype=np.int64)
        if self.by:
            local = local_of(self.timezone, utc_us)
            for name in self.by:
                found = found * len(_LABELS[name]) + _CLASS_OF[name](local)
        return found

    def borders(self, grid: SlotGrid, start: int, stop: int) -> Ints:
        """The slots between two that are in another class than the one before them, rising."""
        if not self.by:
            return np.zeros(0, dtype=np.int64)
        first_us, stop_us = grid.time_of(start), grid.time_of(stop)
        # classes change at full hours of the local clock, and where the clock does
        changes, offsets = self._clock(first_us, stop_us)
        step = math.gcd(HOUR_US, *offsets.tolist())
        instants = np.union1d(np.arange(first_us // step * step, stop_us, step, dtype=np.int64), changes)
        turns = instants[np.flatnonzero(np.diff(self.at(instants))) + 1]
        found = np.unique(-(-(turns - grid.origin_us) // grid.interval_us))
        return found[(found > start) & (found < stop)]

    def changes(self, grid: SlotGrid, start: int, stop: int) -> Ints:
        """The slots between two with which the clock of the zone changes, rising."""
        if self.timezone == "UTC":
            return np.zeros(0, dtype=np.int64)
        first, last = (min(max(_year_of(grid.time_of(one)), FIRST_YEAR), LAST_YEAR) for one in (start, stop))
        instants, _ = offsets_between(self.timezone, first, last)
        found = -(-(instants - grid.origin_us) // grid.interval_us)
        return found[(found > start) & (found < stop)]

    def check_fits(self, grid: SlotGrid, states: int, first_us: int | None, stop_us: int | None) -> None:
        """See that every slot lies in its class as a whole, and that a histogram is not too long.

        Args:
            grid: the slots.
            states: number of states.
            first_us: start of the schedule, microseconds since the epoch; ``None`` where it is open.
            stop_us: its end, likewise.

        Raises:
            ValueError: slots are longer than what tells them apart, or begin at other times of it; or there are more
                than ``MOST_CELLS`` cells.
        """
        if not self.by:
            return
        cells = len(self) * states
        if cells > MOST_CELLS:
            raise ArgumentError(
                f"by {', '.join(self.by)}: {len(self)} classes of {states} states are {cells:,} cells in a histogram, "
                f"and {MOST_CELLS:,} are the most; name fewer classes, or use fewer states.edges"
            )
        _, offsets = self._clock(first_us, stop_us)
        for name in self.by:
            what, unit = _WITHIN[name]
            interval = format_duration(grid.interval_us)
            if unit % grid.interval_us:
                raise ArgumentError(
                    f"by {name}: slots of {interval} do not divide {what}, so some would be in two classes; use a "
                    f"slots.interval that divides {what}, or leave by out"
                )
            if ((offsets + grid.origin_us) % grid.interval_us).any():
                raise ArgumentError(
                    f"by {name}: slots of {interval} do not fill {what} of {self.timezone} from its beginning all "
                    "through the schedule, so some would be in two classes; use a shorter slots.interval, begin "
                    f"slots.origin with {what} there, or use slots.timezone UTC"
                )

    def _clock(self, first_us: int | None, stop_us: int | None) -> tuple[Ints, Ints]:
        """When the clock changes within a schedule, whose open end is put at 2037, and each offset that is in force.

        Both in microseconds: instants, shape (n,), and local time minus UTC, shape (n + 1,).
        """
        if self.timezone == "UTC":
            return np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        first = parse_instant(f"{_YEARS[0]}-01-01") if first_us is None else first_us
        stop = max(parse_instant(f"{_YEARS[1]}-01-01"), first + 1) if stop_us is None else stop_us
        years = np.array([first, stop]).astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
        low, high = (min(max(int(year), FIRST_YEAR), LAST_YEAR) for year in years)
        instants, offsets = offsets_between(self.timezone, low - 1, high + 1)
        begin, end = np.searchsorted(instants, [first, stop - 1], side="right").tolist()
        return instants[begin:end], offsets[begin : end + 1]


def _year_of(time_us: int) -> int:
    return int(np.datetime64(time_us, "us").astype("datetime64[Y]").astype(np.int64)) + 1970


@lru_cache(maxsize=16)
def _classes(classes: SlotClasses, grid: SlotGrid, window: Window) -> npt.NDArray[np.int16]:
    """:meth:`SlotClasses.of`; all shards of a window ask for the same, and windows may have many slots."""
    slots = np.arange(window.start, window.stop, dtype=np.int64)
    narrow = classes.at(grid.time_of(slots)).astype(np.int16)  # there are fewer than 2^15 combinations
    narrow.setflags(write=False)
    return narrow


@lru_cache(maxsize=256)
def smallest_classes(classes: SlotClasses, grid: SlotGrid, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Slots of a window, and of the smallest class that one of so many slots has; each length of a window once.

    Windows of one schedule have classes of other sizes: three days may hold a whole weekend or one day of it. Which
    sizes there are repeats with the week and the year, so the windows that begin in one year are looked at. A class is
    the same from one of its borders to the next, and borders are full hours of the local clock.

    >>> smallest_classes(SlotClasses(("weekend",)), SlotGrid(HOUR_US), Schedule(size=72, every=72, start=0))
    ((72, 24),)

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
    first, stop = _looked_at(grid, schedule)
    if schedule.calendar is None:
        at_us = np.array([grid.time_of(first)], dtype=np.int64)
        shift = int((local_of(classes.timezone, at_us) - at_us)[0])
        classes, grid = SlotClasses(classes.by), SlotGrid(grid.interval_us, grid.origin_us + shift)
    bounds = classes.borders(grid, first, stop + schedule.size)
    starts = _starts_of(schedule, first, stop)
    stops = schedule.over_at(schedule.number_of(starts))
    changed = _hold(starts, stops, classes.changes(grid, first, stop + schedule.size))
    if not changed.all():
        starts, stops = starts[~changed], stops[~changed]
    fewest = _fewest_of(classes, grid, starts, stops, bounds)
    lengths = stops - starts
    return tuple((length, int(fewest[lengths == length].min())) for length in np.unique(lengths).tolist())


def _looked_at(grid: SlotGrid, schedule: Schedule) -> tuple[int, int]:
    """The first slot of the first window that is looked at, and the slot by which the last one begins."""
    calendar = schedule.calendar
    if schedule.start is not None:
        first = schedule.first
    elif calendar is None:
        first = schedule.anchor
    else:
        first = calendar.start_of(calendar.number_of(calendar.end - _YEAR_US // grid.interval_us))
    windows = max(1, _MOST_HOURS // (1 + schedule.size * grid.interval_us // HOUR_US))
    last = first + min(_YEAR_US // grid.interval_us, windows * schedule.every)
    if schedule.bounded:
        last = min(last, schedule.start_before(schedule.covered.stop))
    return first, max(first, last)


def _starts_of(schedule: Schedule, first: int, last: int) -> Ints:
    """Where the windows begin from one slot to another."""
    calendar = schedule.calendar
    if calendar is None:
        return np.arange(first, last + 1, schedule.every, dtype=np.int64)
    numbers = np.arange(calendar.number_of(first), calendar.number_of(last) + 1, dtype=np.int64)
    found = calendar.start_of(numbers)
    return found[(found < calendar.end) & (calendar.start_of(numbers + 1) > found)]


def _hold(starts: Ints, stops: Ints, slots: Ints) -> npt.NDArray[np.bool_]:
    """Which windows have one of some slots behind their first one, shape (n,)."""
    return np.searchsorted(slots, starts, side="right") < np.searchsorted(slots, stops, side="left")


def _fewest_of(classes: SlotClasses, grid: SlotGrid, starts: Ints, stops: Ints, bounds: Ints) -> Ints:
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
