"""Released rows as series of windows: whose they are, which of them add up to a day, week, month or year.

Reads published rows only; what is made of them costs no privacy.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from ..privacy.estimation.released_histograms import HistogramNoise, ReleasedHistogram, united
from ..schemas.noise_laws import INDEPENDENT
from ..schemas.releases import Release, releases_from_batch
from ..schemas.slots import format_instant, time_zone
from ..schemas.states import StateSpace
from .errors import CommandError

Period = Literal["day", "week", "month", "year", "all"]


@dataclass(frozen=True, slots=True)
class Span:
    """Released windows of one series or group that are looked at together: one, or several that do not overlap."""

    rows: tuple[Release, ...]  # the released rows, by window start

    @property
    def start(self) -> int:
        """Start of the first window, microseconds since the epoch, UTC."""
        return self.rows[0].window_start

    @property
    def stop(self) -> int:
        """End of the last window."""
        return self.rows[-1].window_stop

    @property
    def slots(self) -> int:
        """Slots of all windows."""
        return sum(row.slots for row in self.rows)

    @property
    def slot_hours(self) -> float:
        """Length of a slot in hours."""
        return sum(row.window_stop - row.window_start for row in self.rows) / 3.6e9 / self.slots

    @property
    def gaps(self) -> bool:
        """Whether there is time between the windows that none of them has."""
        return any(one.window_stop < other.window_start for one, other in pairwise(self.rows))

    @property
    def space(self) -> StateSpace:
        """The bins."""
        return self.rows[0].space

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels of the classes of slots; none for histograms of all slots."""
        return self.rows[0].classes or ()

    def histogram(self, of_class: str | None = None) -> ReleasedHistogram:
        """The counts of all windows added up, of one class of slots or of all.

        Raises:
            CommandError: there is no such class.
        """
        if of_class is not None and of_class not in self.classes:
            known = ", ".join(self.classes) or "none: the rows are of all slots"
            raise CommandError(f"--class {of_class!r}: there is no such class of slots; there are {known}")
        parts = [part for row in self.rows for part in _histograms(row, of_class)]
        return united(parts)


@dataclass(frozen=True, slots=True)
class ReleasedSeries:
    """The released windows of one query of one series or group."""

    domain: str  # the series that one budget protects
    query: str  # the named statistic
    key_kind: str  # ``series`` or ``group``
    key: str
    rows: tuple[Release, ...]  # by window start

    @property
    def overlap(self) -> bool:
        """Whether windows overlap, as sliding ones do: their counts are of the same cells and do not add up."""
        return any(other.window_start < one.window_stop for one, other in pairwise(self.rows))

    @property
    def zone(self) -> str:
        """The zone whose clock and calendar name the windows."""
        return self.rows[-1].timezone

    @property
    def forms(self) -> int:
        """How many different sets of bins and classes of slots the rows have: those of one set alone add up."""
        return len({(row.edges, row.labels, row.unit, row.missing, row.classes) for row in self.rows})

    def spans(self, period: Period | None = None) -> list[Span]:
        """The windows, each alone or added up by the period of their calendar in which they begin.

        Raises:
            CommandError: windows overlap, or their bins or classes are not the same.
        """
        if period is None:
            return [Span((row,)) for row in self.rows]
        if self.overlap:
            raise CommandError(
                f"--sum {period}: the windows of query {self.query!r} overlap, so a sum would count cells twice; "
                "publish windows without `every`, or look at single ones"
            )
        if self.forms > 1:
            raise CommandError(f"--sum {period}: the rows have {self.forms} different sets of bins or classes of slots")
        where = time_zone(self.zone)
        groups: dict[tuple[int, ...], list[Release]] = {}
        for row in self.rows:
            begin = dt.datetime.fromtimestamp(row.window_start // 1_000_000, dt.UTC).astimezone(where)
            groups.setdefault(_period_of(begin.date(), period), []).append(row)
        return [Span(tuple(rows)) for rows in groups.values()]


def series_in(table: pa.Table) -> list[ReleasedSeries]:
    """Rows of ``RELEASE_SCHEMA`` by domain, query and key, in the order of their names."""
    found: dict[tuple[str, str, str, str], list[Release]] = {}
    for row in releases_from_batch(table):
        found.setdefault((row.domain, row.query, row.key_kind, row.key), []).append(row)
    return [ReleasedSeries(*names, _by_window(rows)) for names, rows in sorted(found.items())]


def _by_window(rows: Iterable[Release]) -> tuple[Release, ...]:
    return tuple(sorted(rows, key=lambda row: (row.window_start, row.window_stop)))


def _period_of(day: dt.date, period: Period) -> tuple[int, ...]:
    if period == "all":
        return ()
    if period == "week":
        return tuple(day.isocalendar()[:2])
    return {"day": (day.year, day.month, day.day), "month": (day.year, day.month), "year": (day.year,)}[period]


def _histograms(row: Release, of_class: str | None) -> list[ReleasedHistogram]:
    """The histograms of a row: one for each class of slots, as its noise is drawn."""
    missing, scale = row.missing == "state", Fraction(row.scale_exact)
    k = row.space.size
    counts = np.array(row.counts, dtype=np.int64).reshape(-1, k)
    noise = HistogramNoise(row.noise_law, k, scale)
    if row.classes is None:
        return [ReleasedHistogram(counts[0], (noise,), row.total, missing)]
    kept = row.total is not None and row.noise_law != INDEPENDENT
    slots: Sequence[int] = row.class_slots or ()
    return [
        # a class without slots counts nothing, and has no noise
        ReleasedHistogram(one, (noise,) if n else (), int(one.sum()) if kept else None, missing)
        for label, one, n in zip(row.classes, counts, slots, strict=True)
        if of_class in {None, label}
    ]


def day_of(time_us: int, zone: str) -> str:
    """An instant for people: the date by a zone's clock, and the time where that is not midnight, with its offset.

    Raises:
        ValueError: there is no such zone.
    """
    text = format_instant(time_us).removesuffix("Z")
    offset = ""
    if zone != "UTC":
        where = time_zone(zone)
        with suppress(ValueError, OverflowError):  # an instant that no calendar has is a number
            local = dt.datetime.fromisoformat(f"{text}+00:00").astimezone(where)
            text, offset = local.replace(tzinfo=None).isoformat(), f"{local:%z}"
    return text.removesuffix("T00:00:00") if text.endswith("T00:00:00") else text[:16].replace("T", " ") + offset


def named(start_us: int, stop_us: int, zone: str) -> str:
    """The time between two instants for people, by a zone's clock: a day, week, month or year by its name.

    >>> named(1_357_516_800_000_000, 1_358_121_600_000_000, "UTC"), named(0, 2_678_400_000_000, "UTC")
    ('week of 2013-01-07', 'January 1970')
    """
    first, last = day_of(start_us, zone), day_of(stop_us, zone)
    if len(first) == len(last) == len("2013-01-07"):
        begin, end = map(dt.date.fromisoformat, (first, last))
        if end - begin == dt.timedelta(1):
            return first
        if end - begin == dt.timedelta(7) and not begin.weekday():
            return f"week of {first}"
        if begin.day == end.day == 1 and end == (begin.replace(day=28) + dt.timedelta(4)).replace(day=1):
            return f"{begin:%B %Y}"
        if (begin.month, begin.day) == (1, 1) and end == begin.replace(year=begin.year + 1):
            return f"{begin.year}"
    text = f"{first} to {last}"
    return f"{text} UTC" if zone == "UTC" and ":" in text else text
