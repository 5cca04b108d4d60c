"""Local wall-clock time to UTC, for whole arrays at once.

A zone's clock changes are looked up once per zone and year; after that a local time is placed by binary search. A clock
set back doubles local times: the settings say whether the earlier or the later instant is meant, so the answer never
depends on the order of rows. A clock set forward skips local times: no instant has them.

>>> clock = LocalClock("America/Vancouver")
>>> local = np.array(["2012-11-04T01:00", "2013-03-10T02:00"], "datetime64[us]").astype(np.int64)
>>> utc, skipped = clock.to_utc(local)
>>> np.datetime64(int(utc[0]), "us").item().isoformat(), skipped.tolist()
('2012-11-04T08:00:00', [False, True])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...schemas.zones import offsets_between

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Periods:
    """Times without a clock change, in order.

    Attributes:
        offsets: local minus UTC, microseconds, shape (n,).
        starts: first local time of each, microseconds, shape (n,).
        stops: local time at which each ends, microseconds, shape (n,).
    """

    offsets: Ints
    starts: Ints
    stops: Ints


@lru_cache(maxsize=256)
def _periods(name: str, first_year: int, last_year: int) -> _Periods:
    """The periods that cover some years, local."""
    limits, offset_us = offsets_between(name, first_year - 1, last_year + 1)
    far = np.iinfo(np.int64).max
    return _Periods(
        offset_us,
        np.concatenate(([-far], limits + offset_us[1:])),
        np.concatenate((limits + offset_us[:-1], [far])),
    )


@dataclass(frozen=True, slots=True)
class LocalClock:
    """The wall clock of a zone.

    Attributes:
        timezone: IANA name.
        ambiguous: which of two instants a doubled local time means.
    """

    timezone: str
    ambiguous: Literal["earliest", "latest"] = "earliest"

    def to_utc(self, local_us: Ints) -> tuple[Ints, Bools]:
        """Read local times.

        Args:
            local_us: microseconds since 1970 on the zone's wall clock, within the years 2 to 9998, shape (n,).

        Returns:
            Microseconds since the epoch, UTC, and which local times were skipped by a clock change (their instant
            means nothing), each of shape (n,).
        """
        if self.timezone == "UTC" or not len(local_us):
            return local_us, np.zeros(len(local_us), dtype=np.bool_)
        first, last = (int(np.datetime64(int(us), "us").astype("M8[Y]").astype(int)) + 1970 for us in _ends(local_us))
        periods = _periods(self.timezone, first, last)
        if self.ambiguous == "earliest":
            at = np.searchsorted(periods.stops, local_us, side="right")
        else:
            at = np.searchsorted(periods.starts, local_us, side="right") - 1
        skipped = (local_us < periods.starts[at]) | (local_us >= periods.stops[at])
        return local_us - periods.offsets[at], skipped


def _ends(values: Ints) -> tuple[int, int]:
    return int(values.min()), int(values.max())
