"""Time zones, and their wall clocks at whole arrays of instants: clock changes are looked up once per zone and year.

>>> day = np.array(["2013-03-31T00:30", "2013-03-31T01:30"], "datetime64[us]").astype(np.int64)
>>> [str(one) for one in local_of("Europe/London", day).astype("datetime64[us]").astype("datetime64[m]")]
['2013-03-31T00:30', '2013-03-31T02:30']
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError

Ints = npt.NDArray[np.int64]

#: Years in which every instant of a zone and the days around it are ones of the calendar.
FIRST_YEAR, LAST_YEAR = 3, 9997
_DAY_S = 86_400
_US = 1_000_000

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def time_zone(name: str) -> ZoneInfo:
    """Look a time zone up by its IANA name.

    Raises:
        ValueError: there is no zone of that name, or the name stands for another zone on each machine.
    """
    if name in {"localtime", "posixrules", "Factory"}:
        raise ArgumentError(
            f"timezone {name!r} is whatever a machine is set to; use an IANA name such as Europe/London"
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ArgumentError(f"timezone {name!r} is unknown; use an IANA name such as UTC or Europe/London") from error


def year_start_s(year: int) -> int:
    """When a year begins in UTC, seconds since 1970."""
    return round((dt.datetime(year, 1, 1, tzinfo=dt.UTC) - _EPOCH).total_seconds())


def offset_s(zone: ZoneInfo, utc_s: int) -> int:
    """Local time minus UTC at an instant, seconds."""
    offset = (_EPOCH + dt.timedelta(seconds=utc_s)).astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


@lru_cache(maxsize=4096)
def clock_changes(name: str, year: int) -> tuple[tuple[int, int], ...]:
    """The clock changes of a UTC year: (instant, offset from then on), seconds.

    No zone has changed its clock and changed it back within a day, so a look per day finds every change.
    """
    zone = time_zone(name)
    start, stop = year_start_s(year), year_start_s(year + 1)
    found: list[tuple[int, int]] = []
    before = offset_s(zone, start)
    for day in range(start, stop, _DAY_S):
        after = offset_s(zone, day + _DAY_S)
        if after != before:
            low, high = day, day + _DAY_S
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_s(zone, middle) == before else (low, middle)
            found.append((high, after))
            before = after
    return tuple(found)


@lru_cache(maxsize=256)
def offsets_between(name: str, first_year: int, last_year: int) -> tuple[Ints, Ints]:
    """The clock changes of some years: their instants, shape (n,), and the offsets before, between and after them.

    Returns:
        Microseconds since the epoch, UTC; and local time minus UTC, microseconds, shape (n + 1,).
    """
    offsets = [offset_s(time_zone(name), year_start_s(first_year))]
    instants: list[int] = []
    for year in range(first_year, last_year + 1):
        for instant, offset in clock_changes(name, year):
            instants.append(instant)
            offsets.append(offset)
    return np.array(instants, dtype=np.int64) * _US, np.array(offsets, dtype=np.int64) * _US


def local_of(name: str, utc_us: Ints) -> Ints:
    """The wall clock of a zone at instants.

    Args:
        name: IANA name of the zone.
        utc_us: microseconds since the epoch, UTC, shape (n,). Instants outside of the calendar have the offsets of its
            first or last years.

    Returns:
        Local microseconds since 1970, shape (n,).
    """
    if name == "UTC" or not len(utc_us):
        return utc_us
    years = utc_us[[int(utc_us.argmin()), int(utc_us.argmax())]].astype("datetime64[us]").astype("datetime64[Y]")
    first, last = (min(max(int(year) + 1970, FIRST_YEAR), LAST_YEAR) for year in years.astype(np.int64))
    instants, offsets = offsets_between(name, first - 1, last + 1)
    return utc_us + offsets[np.searchsorted(instants, utc_us, side="right")]
