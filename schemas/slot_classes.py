"""Classes of slots by the public clock: hour of the day, day of the week, working day or weekend, month.

The class of a slot is a function of its number and of settings: slots and time zone. No reading takes part, so which
slots of a window are in a class, and how many, is public.

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

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from .slots import DAY_US, HOUR_US, SlotGrid, Window, format_duration, parse_instant
from .zones import FIRST_YEAR, LAST_YEAR, local_of, offsets_between

Ints = npt.NDArray[np.int64]

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
                raise ValueError(
                    f"by names {name!r}, and slots are told apart by {known} of the public clock, never by data"
                )
            if name in self.by[:i]:
                raise ValueError(f"by names {name!r} twice: name it once")
        if {"weekday", "weekend"} <= set(self.by):
            raise ValueError(
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
            raise ValueError(
                f"by {', '.join(self.by)}: {len(self)} classes of {states} states are {cells:,} cells in a histogram, "
                f"and {MOST_CELLS:,} are the most; name fewer classes, or use fewer states.edges"
            )
        offsets = self._offsets(first_us, stop_us)
        for name in self.by:
            what, unit = _WITHIN[name]
            interval = format_duration(grid.interval_us)
            if unit % grid.interval_us:
                raise ValueError(
                    f"by {name}: slots of {interval} do not divide {what}, so some would be in two classes; use a "
                    f"slots.interval that divides {what}, or leave by out"
                )
            if ((offsets + grid.origin_us) % grid.interval_us).any():
                raise ValueError(
                    f"by {name}: slots of {interval} do not fill {what} of {self.timezone} from its beginning all "
                    "through the schedule, so some would be in two classes; use a shorter slots.interval, begin "
                    f"slots.origin with {what} there, or use slots.timezone UTC"
                )

    def _offsets(self, first_us: int | None, stop_us: int | None) -> Ints:
        """Local time minus UTC, microseconds: each that is in force in a schedule, whose open end is put at 2037."""
        if self.timezone == "UTC":
            return np.zeros(1, dtype=np.int64)
        first = parse_instant(f"{_YEARS[0]}-01-01") if first_us is None else first_us
        stop = max(parse_instant(f"{_YEARS[1]}-01-01"), first + 1) if stop_us is None else stop_us
        years = np.array([first, stop]).astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
        low, high = (min(max(int(year), FIRST_YEAR), LAST_YEAR) for year in years)
        instants, offsets = offsets_between(self.timezone, low - 1, high + 1)
        begin, end = np.searchsorted(instants, [first, stop - 1], side="right").tolist()
        return offsets[begin : end + 1]


@lru_cache(maxsize=16)
def _classes(classes: SlotClasses, grid: SlotGrid, window: Window) -> npt.NDArray[np.int16]:
    """:meth:`SlotClasses.of`; all shards of a window ask for the same, and windows may have many slots."""
    slots = np.arange(window.start, window.stop, dtype=np.int64)
    found = np.zeros(len(slots), dtype=np.int64)
    if classes.by:
        local = local_of(classes.timezone, grid.time_of(slots))
        for name in classes.by:
            found = found * len(_LABELS[name]) + _CLASS_OF[name](local)
    narrow = found.astype(np.int16)  # there are fewer than 2^15 combinations
    narrow.setflags(write=False)
    return narrow
