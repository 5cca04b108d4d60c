"""Schedule discovery: what the settings left to the data, namely the ends of the schedule, the series and their groups.

Taking these from the data means taking them as public: that a series exists, when its data begin and end, and which
group its earliest reading names. They are put on record with the query, so a rerun over other data keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
import pyarrow as pa

from ...schemas.errors import QuiltstreamError
from ...schemas.readings import RejectReason
from ...schemas.roster import MOST_SERIES
from ...schemas.roster import check_number as check_series
from ...store.errors import StoreError
from ...store.specs import Registration
from ...store.store import Store
from ..common.batches import OUTSIDE, READINGS, counter_name, reading_columns
from ..plan import Plan
from ..registration import Discovered, register


class NothingCountsError(QuiltstreamError):
    """No reading of the source counts in any window, and nothing is charged for nothing."""


class DiscoverSchedule(beam.CombineFn):
    """Record batches of readings to one :class:`Discovered`."""

    def __init__(self, most: int | None = MOST_SERIES, *, grouped: bool = False) -> None:
        super().__init__()
        self._most = most
        self._grouped = grouped

    def _check(self, seen: Discovered) -> Discovered:
        if self._most is not None:
            check_series(len(seen.groups), self._most, "source, whose series are the roster")
        return seen

    def create_accumulator(self) -> Discovered:
        """Nothing seen."""
        return Discovered()

    def add_input(self, mutable_accumulator: Discovered, element: pa.RecordBatch) -> Discovered:
        """Look at a batch."""
        seen = mutable_accumulator
        columns = reading_columns(element, grouped=self._grouped)
        good = columns.good
        if not good.any():
            return seen
        times, series = columns.times[good], columns.series[good]
        seen.extend(int(times.min()), int(times.max()))
        if self._most is None:
            return seen
        names = columns.names.to_pylist()
        if columns.groups is None or columns.group is None:
            for code in np.flatnonzero(np.bincount(series, minlength=len(names))).tolist():
                seen.groups.setdefault(names[code], (0, ""))
            return self._check(seen)
        groups = columns.groups.to_pylist()
        pairs = series * len(groups) + columns.group[good]
        # one row per (series, group) pair: the first one when sorted by time
        order = np.lexsort((times, pairs))
        first = order[np.flatnonzero(np.diff(pairs[order], prepend=-1))]
        for pair, instant in zip(pairs[first].tolist(), times[first].tolist(), strict=True):
            seen.sight(names[pair // len(groups)], instant, groups[pair % len(groups)])
        return self._check(seen)

    def merge_accumulators(self, accumulators: Iterable[Discovered]) -> Discovered:
        """Unite what several workers saw."""
        merged = Discovered()
        for one in accumulators:
            if one.first_us is not None and one.last_us is not None:
                merged.extend(one.first_us, one.last_us)
            for series, (instant, group) in one.groups.items():
                merged.sight(series, instant, group)
            self._check(merged)
        return merged

    def extract_output(self, accumulator: Discovered) -> Discovered:
        """What was seen."""
        return accumulator


Tally = dict[str, int]
"""How many readings count, by the name of the operator's counter, and how many do not."""


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """The sum of some tallies."""
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return dict(total)


class RegisterQuery(beam.DoFn):
    """The tally of all readings to a sign that the query is on record, for which the step that charges waits.

    Where no reading counts nothing is put on record: a wrong delimiter, unit of time or roster would be charged the
    whole budget for rows of noise, and its settings could not be corrected any more. What is on record already comes
    out as it is.
    """

    def __init__(self, plan: Plan, *, even_if_empty: bool) -> None:
        self._plan = plan
        self._even_if_empty = even_if_empty

    def process(self, tally: Tally, planned: Registration, seen: Discovered | None = None) -> Iterator[bool]:
        """Register the query.

        Raises:
            NothingCountsError: no reading counts, and something is not published yet.
            StoreError: the store cannot be used, or another job was first with another content.
        """
        if not tally.get(READINGS) and not self._even_if_empty:
            with Store(self._plan.address) as store:
                held = store.registered(self._plan.domain.name, self._plan.query_name)
                whole = held is not None and _alike(held, planned) and next(store.missing(held), None) is None
            if not whole:
                raise NothingCountsError(_nothing_counts(tally))
        made = register(self._plan, seen)
        if not _alike(made, planned):
            raise StoreError(
                f"query {self._plan.query_name!r}: another job put it on record meanwhile, with other series, windows "
                "or shards than this one counted by; nothing was charged by this job: run it again"
            )
        yield True


def _alike(one: Registration, other: Registration) -> bool:
    """Whether cells that were encoded with one registration are those of another."""
    return _counted_by(one) == _counted_by(other)


def _counted_by(held: Registration) -> tuple[object, ...]:
    query = held.query
    return held.digest, query.schedule, query.shards, query.roster, held.versions, held.series


def _nothing_counts(tally: Tally) -> str:
    """What became of the readings, for the operator."""
    found = [f"{tally[OUTSIDE]:,} before or after the windows"] if tally.get(OUTSIDE) else []
    rejected = ((reason, tally.get(counter_name(reason))) for reason in RejectReason)
    found += [f"{count:,} rejected: {reason.text}" for reason, count in rejected if count]
    read = sum(tally.values())
    said = f"of {read:,} that were read: {'; '.join(found)}" if read else "no row is a reading"
    return (
        f"source: no reading counts in any window of any series ({said}), so nothing was charged or published; check "
        "how readings tells to read the source, windows.start, windows.stop and roster, or run with --even-if-empty to "
        "publish windows without readings"
    )
