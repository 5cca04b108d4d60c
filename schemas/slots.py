"""Public time: slots, windows of whole slots, and the schedule of windows that are published.

A slot is ``floor((t - origin) / interval)``, so the slot of a reading and the number of slots of a window depend on
nothing secret. All instants are microseconds since 1970-01-01 UTC.

>>> grid = SlotGrid(parse_duration("30min"), parse_instant("2013-01-01"))
>>> grid.slots_of(parse_instant("2013-01-01T01:15Z"))
2
>>> [str(w) for w in Schedule(size=48, every=48, start=0, stop=100).windows()]
['[0, 48)', '[48, 96)']
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
HOUR_US, DAY_US = _UNITS_US["h"], _UNITS_US["d"]
_DURATION = re.compile(r"\s*(\d{1,20})\s*(us|ms|s|min|h|d|w)\s*")
_LONGEST_US = 3_652_059 * _UNITS_US["d"]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_FIRST_US, _LAST_US = (
    (end - _EPOCH) // dt.timedelta(microseconds=1)
    for end in (
        dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.timezone.utc),
    )
)

SlotsT = TypeVar("SlotsT", int, npt.NDArray[np.int64])


def parse_duration(text: str) -> int:
    """Read a positive duration such as ``30min``, ``7d`` or ``500ms``, in microseconds.

    Raises:
        ValueError: the text is not a whole number with a unit, or the duration is zero or longer than the calendar.
    """
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f"duration {text!r} is not a positive whole number with a unit; write one of {', '.join(_UNITS_US)}, "
            f"for example 30min or 7d"
        )
    duration = int(match[1]) * _UNITS_US[match[2]]
    if duration > _LONGEST_US:
        raise ValueError(f"duration {text!r} is longer than the calendar, {format_duration(_LONGEST_US)}; write less")
    return duration


def format_duration(duration_us: int) -> str:
    """Write a duration with the largest unit that divides it: the inverse of :func:`parse_duration`."""
    unit = next(u for u in reversed(_UNITS_US) if duration_us % _UNITS_US[u] == 0)
    return f"{duration_us // _UNITS_US[unit]}{unit}"


def time_zone(name: str) -> ZoneInfo:
    """Look a time zone up by its IANA name.

    Raises:
        ValueError: there is no zone of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"timezone {name!r} is unknown; use an IANA name such as UTC or Europe/London") from error


def parse_instant(text: str | dt.date | dt.datetime, timezone: str = "UTC") -> int:
    """Read an ISO 8601 date or date-time as microseconds since the epoch; ``timezone`` reads naive stamps.

    Raises:
        ValueError: the text is not ISO 8601, or the naive stamp does not exist or exists twice in the zone, or the
            instant is outside of the years 1 to 9999 in UTC.
    """
    if isinstance(text, str):
        try:
            stamp = dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        except ValueError as error:
            raise ValueError(
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
            raise ValueError(
                f"instant {stamp.isoformat()} is ambiguous or does not exist in {timezone} (a clock change); "
                f"write it with its offset, for example {stamp.isoformat()}+00:00"
            )
        stamp = first
    found = (stamp - _EPOCH) // dt.timedelta(microseconds=1)
    if not _FIRST_US <= found <= _LAST_US:
        raise ValueError(f"instant {stamp.isoformat()} is in UTC outside of the years 0001 to 9999; write one within")
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
            raise ValueError(
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
            raise ValueError(
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
            raise ValueError(
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


@dataclass(frozen=True, slots=True)
class Schedule:
    """The published windows: ``[anchor + n * every, anchor + n * every + size)``, whole ones in ``[start, stop)``.

    Attributes:
        size: slots in a window.
        every: slots from one window's start to the next one's; a divisor of ``size``, so that each slot lies in exactly
            ``size / every`` windows (theory, composition of sliding windows). Equal to ``size``: tumbling windows.
        start: first slot that a window may cover; ``None`` while it is to come from the data.
        stop: first slot that no window may cover; ``None`` for an endless stream.
        anchor: a slot at which a window starts.
    """

    size: int
    every: int
    start: int | None = None
    stop: int | None = None
    anchor: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"windows.size is {self.size} slots and must be at least 1")
        if self.every < 1 or self.size % self.every:
            raise ValueError(
                f"windows.every is {self.every} slots and must divide windows.size, {self.size} slots: every slot "
                f"then lies in the same number of windows; use for example every = size / 2"
            )
        if self.start is not None and self.stop is not None and self.stop - self.first < self.size:
            raise ValueError(
                f"no whole window of {self.size} slots fits between slots {self.start} and {self.stop}; "
                f"move windows.start or windows.stop apart or use a smaller windows.size"
            )

    @property
    def first(self) -> int:
        """Start of the first whole window.

        Raises:
            ValueError: the schedule has no start yet.
        """
        if self.start is None:
            raise ValueError("this schedule has no start yet; resolve it from the data or set windows.start")
        return self.anchor - (self.anchor - self.start) // self.every * self.every

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
            raise ValueError("an endless schedule has no number of windows; set windows.stop")
        return max(0, (self.stop - self.size - self.first) // self.every + 1)

    def windows(self) -> Iterator[Window]:
        """Every window in order of time; endless without a stop."""
        start = self.first
        while self.stop is None or start + self.size <= self.stop:
            yield Window(start, start + self.size)
            start += self.every

    def contains(self, window: Window) -> bool:
        """Whether a window is one of the schedule's."""
        return (
            len(window) == self.size
            and (window.start - self.anchor) % self.every == 0
            and (self.start is None or window.start >= self.start)
            and (self.stop is None or window.stop <= self.stop)
        )

    @property
    def covered(self) -> Window:
        """The slots that some window of a bounded schedule covers."""
        return Window(self.first, self.first + (len(self) - 1) * self.every + self.size)

    def to_dict(self) -> dict[str, int | None]:
        """Plain form for digests and the store."""
        return {"size": self.size, "every": self.every, "start": self.start, "stop": self.stop, "anchor": self.anchor}
