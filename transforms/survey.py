"""Survey: what the settings left to the data, namely the ends of the schedule, the series and their groups.

Taking these from the data means taking them as public: that a series exists, when its data begin and end, and which
group its earliest reading names. The store freezes them with the query, so a rerun over other data keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import apache_beam as beam
import numpy as np
import pyarrow as pa

from ..schemas.roster import Roster
from ..schemas.settings import SettingsError
from ..schemas.slots import Schedule
from ..store.records import Store
from ..store.specs import Registration
from .batches import reading_columns
from .plan import Plan


@dataclass(slots=True)
class Seen:
    """What the readings say about themselves.

    Attributes:
        first_us: earliest instant, or ``None`` without readings.
        last_us: latest instant.
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


class SurveyReadings(beam.CombineFn):
    """Record batches of readings to one :class:`Seen`."""

    def create_accumulator(self) -> Seen:
        """Nothing seen."""
        return Seen()

    def add_input(self, mutable_accumulator: Seen, element: pa.RecordBatch) -> Seen:
        """Look at a batch."""
        seen = mutable_accumulator
        columns = reading_columns(element, grouped="group" in element.schema.names)
        good = columns.good
        if not good.any():
            return seen
        times, series = columns.times[good], columns.series[good]
        seen.extend(int(times.min()), int(times.max()))
        names = columns.names.to_pylist()
        if columns.groups is None or columns.group is None:
            for code in np.flatnonzero(np.bincount(series, minlength=len(names))).tolist():
                seen.groups.setdefault(names[code], (0, ""))
            return seen
        groups = columns.groups.to_pylist()
        pairs = series * len(groups) + columns.group[good]
        # one row per (series, group) pair: the first one when sorted by time
        order = np.lexsort((times, pairs))
        first = order[np.flatnonzero(np.diff(pairs[order], prepend=-1))]
        for pair, instant in zip(pairs[first].tolist(), times[first].tolist(), strict=True):
            seen.sight(names[pair // len(groups)], instant, groups[pair % len(groups)])
        return seen

    def merge_accumulators(self, accumulators: Iterable[Seen]) -> Seen:
        """Unite what several workers saw."""
        merged = Seen()
        for one in accumulators:
            if one.first_us is not None and one.last_us is not None:
                merged.extend(one.first_us, one.last_us)
            for series, (instant, group) in one.groups.items():
                merged.sight(series, instant, group)
        return merged

    def extract_output(self, accumulator: Seen) -> Seen:
        """What was seen."""
        return accumulator


def complete(plan: Plan, seen: Seen) -> Plan:
    """Fill in what a plan left to the data.

    Raises:
        SettingsError: there are no readings, or no whole window lies between the first and the last.
    """
    if seen.first_us is None or seen.last_us is None:
        raise SettingsError(
            ["source: there is no reading to take what is left out from; set roster, windows.start and windows.stop"]
        )
    given = plan.schedule
    try:
        schedule = Schedule(
            size=given.size,
            every=given.every,
            start=plan.grid.slots_of(seen.first_us) if given.start is None else given.start,
            stop=plan.grid.slots_of(seen.last_us) + 1 if given.stop is None else given.stop,
            anchor=given.anchor,
        )
    except ValueError as error:
        raise SettingsError([f"{error}; the ends come from the first and the last reading"]) from error
    roster = plan.roster
    if roster is None:
        grouped = plan.group_column is not None
        roster = Roster(tuple((name, group if grouped else None) for name, (_, group) in seen.groups.items()))
    return plan.resolve(schedule, roster)


def register(plan: Plan, seen: Seen | None = None) -> Registration:
    """Put a query on record, completed from a survey where needed, and return what is on record for it.

    Raises:
        SettingsError: the plan cannot be completed.
        StoreError: the store cannot be used, or has other content under these names.
    """
    schedule_given = plan.schedule.bounded
    roster_given = plan.roster is not None
    store = Store(plan.address)
    if seen is not None:
        frozen = store.registered(plan.domain.name, plan.query_name)
        if frozen is not None:
            # the ends and the roster of the first run hold, whatever this run's data would say
            held = frozen.query
            plan = replace(
                plan,
                schedule=plan.schedule if schedule_given else held.schedule,
                roster=plan.roster if roster_given else held.roster,
            )
        else:
            plan = complete(plan, seen)
    if plan.roster is None or not plan.schedule.bounded:
        raise SettingsError(
            ["windows.start, windows.stop and roster are needed before the readings are known; set them"]
        )
    query = plan.query(
        plan.schedule,
        plan.roster,
        schedule_given=schedule_given,
        roster_given=roster_given,
    )
    return store.register(plan.domain, query)


class RegisterQuery(beam.DoFn):
    """What was seen to the query's :class:`Registration`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, seen: Seen) -> Iterator[Registration]:
        """Register the query."""
        yield register(self._plan, seen)
