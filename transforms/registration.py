"""A query on record: what the store has of it, or what settings and readings make of it.

Settings may leave the ends of the schedule, the series and their groups to the readings. Taking these from the data
means taking them as public: that a series exists, when its data begin and end, and which group its earliest reading
names. They are put on record with the query, so a rerun over other data keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from ..schemas.errors import QuiltstreamError
from ..schemas.readings import RejectReason
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.slots import format_instant
from ..store.errors import QUERY_ADVICE, RegistrationConflict
from ..store.specs import Registration
from ..store.store import Store
from .checks import check_number
from .plan import Plan

Tally = dict[str, int]
"""How many readings count, by the name of the operator's counter, and how many do not."""


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """The sum of some tallies."""
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return dict(total)


def words_of(tally: Tally) -> str:
    """What became of the readings, for the operator."""
    from .common.batches import OUTSIDE, counter_name  # noqa: PLC0415 - with Beam, which a dry run does not import

    found = [f"{tally[OUTSIDE]:,} before or after the windows"] if tally.get(OUTSIDE) else []
    rejected = ((reason, tally.get(counter_name(reason))) for reason in RejectReason)
    found += [f"{count:,} rejected: {reason.text}" for reason, count in rejected if count]
    read = sum(tally.values())
    return f"of {read:,} that were read: {'; '.join(found)}" if read else "no row is a reading"


class NoReadingsError(QuiltstreamError):
    """The source has no reading, and the settings leave something to its readings."""


@dataclass(slots=True)
class Discovered:
    """What the readings say about themselves.

    Attributes:
        groups: series -> (instant, group) of its earliest reading, ties by the group's name.
        tally: how many rows count, and how many do not, by the name of the operator's counter.
    """

    first_us: int | None = None
    last_us: int | None = None
    groups: dict[str, tuple[int, str]] = field(default_factory=dict)
    tally: Tally = field(default_factory=dict)

    def extend(self, first_us: int, last_us: int) -> None:
        """Stretch the ends."""
        self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
        self.last_us = last_us if self.last_us is None else max(self.last_us, last_us)

    def sight(self, series: str, instant: int, group: str) -> None:
        """Keep the earliest sighting of a series."""
        self.groups[series] = min(self.groups.get(series, (instant, group)), (instant, group))


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
            f"source: there is no reading to take {names} from, which the settings leave out ({words_of(seen.tally)}); "
            f"check the source and how readings tells to read it, or set {names}"
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
