"""A query on record: what the store has of it, or what settings and readings make of it.

Settings may leave the ends of the schedule, the series and their groups to the readings. Taking these from the data
means taking them as public: that a series exists, when its data begin and end, and which group its earliest reading
names. They are put on record with the query, so a rerun over other data keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import apache_beam as beam
import numpy as np
import pyarrow as pa

from ..schemas.errors import QuiltstreamError
from ..schemas.readings import RejectReason
from ..schemas.roster import MOST_SERIES, Roster
from ..schemas.roster import check_number as check_series
from ..schemas.settings.base import SettingsError
from ..schemas.slots import format_instant
from ..store.errors import QUERY_ADVICE, RegistrationConflict, StoreError
from ..store.specs import Registration
from ..store.store import Store
from .checks import check_number
from .common.batches import OUTSIDE, READINGS, counter_name, reading_columns
from .plan import Plan


class NoReadingsError(QuiltstreamError):
    """The source has no reading, and the settings leave something to its readings."""


@dataclass(slots=True)
class Discovered:
    """What the readings say about themselves.

    Attributes:
        groups: series -> (instant, group) of its earliest reading, ties by the group's name.
    """

    first_us: int | None = None
    last_us: int | None = None
    groups: dict[str, tuple[int, str]] = field(default_factory=dict)

    def extend(self, first_us: int, last_us: int) -> None:
        """Stretch the ends."""
        self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
        self.last_us = last_us if self.last_us is None else max(self.last_us, last_us)

    def sight(self, series: str, instant: int, group: str) -> None:
        """Keep the earliest sighting of a series."""
        self.groups[series] = min(self.groups.get(series, (instant, group)), (instant, group))


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


def complete(plan: Plan, seen: Discovered) -> Plan:
    """Fill in what a plan left to the data.

    Raises:
        NoReadingsError: there are no readings.
        SettingsError: no whole window lies between the first and the last, or far too many do.
    """
    given = plan.schedule
    if seen.first_us is None or seen.last_us is None:
        open_ = {"roster": plan.roster, "windows.start": given.start, "windows.stop": given.stop}
        missing = [name for name, value in open_.items() if value is None]
        names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        raise NoReadingsError(
            f"source: there is no reading to take {names} from, which the settings leave out; check the source and "
            f"how readings tells to read it, or set {names}"
        )
    try:
        schedule = replace(
            given,
            start=plan.grid.slots_of(seen.first_us) if given.start is None else given.start,
            stop=plan.grid.slots_of(seen.last_us) + 1 if given.stop is None else given.stop,
        )
    except ValueError as error:
        raise SettingsError(f"{error}; the ends come from the first and the last reading") from error
    check_number(plan, schedule)
    roster = plan.roster
    if roster is None:
        grouped = plan.group_column is not None
        roster = Roster(tuple((name, group if grouped else None) for name, (_, group) in seen.groups.items()))
    return plan.resolve(schedule, roster)


def register(plan: Plan, seen: Discovered | None = None, *, trial: bool = False) -> Registration:
    """Put a query on record, completed by what the data say where needed, and return what is on record for it.

    With ``trial`` nothing is put on record, and the answer is what would be.

    What the settings leave out is as the first run has it, whatever this run's data would say; what they give must be
    what is on record, or is refused as any other changed setting is. Only a roster may be another one: it then holds
    from the first window on that is not charged.

    Raises:
        NoReadingsError: the plan cannot be completed, because there are no readings.
        SettingsError: the plan cannot be completed.
        StoreError: the store cannot be used, or has other content under these names.
    """
    plan = plan.opened()
    store = Store(plan.address)
    put = store.rehearse if trial else store.register
    given = plan.schedule.bounded
    held = store.registered(plan.domain.name, plan.query_name)
    if held is not None:
        plan = plan.with_multiplicity(held.query.most)
        if plan.roster is None or not given:
            return _agree(put, plan, held, live=seen is None)
    completed = plan if seen is None else complete(plan, seen)
    if completed.schedule.start is None:
        raise SettingsError("windows.start is needed before the readings are known; set it")
    # series that are left to a source that never ends join when they are first seen
    roster = completed.roster or Roster((), "group" if plan.grouped else "series")
    query = plan.query(completed.schedule, roster, schedule_given=given, roster_given=plan.roster is not None)
    made = put(plan.domain, query, plan.note, plan.also)
    # another job may have been first, with ends of its own
    return made if given or made.fresh else _agree(put, plan, made, live=seen is None)


def _agree(put: Callable[..., Registration], plan: Plan, held: Registration, *, live: bool) -> Registration:
    """Register what is on record for a query again, with everything that the settings give in its place."""
    given, recorded = plan.schedule, held.query.schedule
    conflict = partial(RegistrationConflict, f"query {plan.query_name!r}", advice=QUERY_ADVICE)
    if not live and given.stop is None and recorded.stop is None:
        raise conflict("windows.stop", None, "the end of a source")
    roster = held.query.roster if plan.roster is None else plan.roster
    kind = "group" if plan.grouped else "series"
    if roster.kind != kind:
        raise conflict("key_kind", roster.kind, kind)
    start, anchor = (recorded.start, recorded.anchor) if given.start is None else (given.start, given.anchor)
    schedule = replace(given, start=start, stop=None, anchor=anchor)
    # the end can be compared only where the windows are the same; where they are not, the store says so
    if given.same_windows(recorded) and schedule.first == recorded.first:
        stop = recorded.stop if given.stop is None else given.stop
        try:
            schedule = replace(schedule, stop=stop)
        except ValueError:
            raise conflict("windows.stop", _instant(plan, recorded.stop), _instant(plan, stop)) from None
    query = plan.query(schedule, roster, schedule_given=True, roster_given=plan.roster is not None)
    return put(plan.domain, query, plan.note, plan.also)


def _instant(plan: Plan, slot: int | None) -> str | None:
    return None if slot is None else format_instant(plan.grid.time_of(slot))


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
