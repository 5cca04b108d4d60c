"""A query on record: what the store has of it, or what settings and readings make of it.

Registration is the first step of a job, and no part of its graph: a graph is built without a ledger, and the query is
put on record when it runs (:mod:`.register`). A job that runs twice finds the same record. A command that knows its
ledger may register before it builds the graph, which then has the answer in it.

Settings may leave the ends of the schedule, the series and their groups to the readings. Taking these from the data
means taking them as public: that a series exists, when its data begin and end, and which group its earliest reading
names. They are put on record with the query, so a rerun over other data keeps them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ..schemas.errors import ExitCode, QuiltstreamError
from ..schemas.readings import RejectReason
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.slots import DAY_US, YEAR_1971_US, NoWholeWindowError, Schedule, format_duration, format_instant
from ..store.codec import now_us
from ..store.errors import QUERY_ADVICE, StoreConflict, Words
from ..store.specs import Registration, group_by
from .checks import check_number, check_record
from .plan import Plan, ledger_at

if TYPE_CHECKING:
    from ..store.store import Store

LOG = logging.getLogger("quiltstream.registration")

Outcomes = dict[str, int]
"""How many readings count, by the name of the operator's counter, and how many do not."""


def sum_outcomes(parts: Iterable[Outcomes]) -> Outcomes:
    """The outcomes of parts of the readings, added up by name."""
    total: Counter[str] = Counter()
    for outcomes in parts:
        total.update(outcomes)
    return dict(total)


def words_of(tally: Outcomes) -> str:
    """What became of the readings, for the operator."""
    from .common.batches import OUTSIDE, counter_name  # noqa: PLC0415 - with Beam, which a dry run does not import

    found = [f"{tally[OUTSIDE]:,} before or after the windows"] if tally.get(OUTSIDE) else []
    rejected = ((reason, tally.get(counter_name(reason))) for reason in RejectReason)
    found += [f"{count:,} rejected: {reason.text}" for reason, count in rejected if count]
    read = sum(tally.values())
    if not read:
        return "no row is a reading"
    return f"of {read:,} that were read: {'; '.join(found)}" if found else f"{read:,} were read"


class NoReadingsError(QuiltstreamError):
    """The source has no reading, and the settings leave something to its readings."""

    exit_code = ExitCode.SOURCE


class NoWindowError(SettingsError):
    """No whole window lies between the ends of a schedule, of which the readings give one or both."""


Span = tuple[int, int]
"""Instants of a first and a last reading, microseconds."""


@dataclass(slots=True)
class Discovered:
    """What the readings that may count say about themselves."""

    span: Span | None = None  # of those of the given roster; ``None`` where there are none, or no roster is given
    # (series, group) -> of its readings, where no roster is given; the group is empty where there are none
    spans: dict[tuple[str, str], Span] = field(default_factory=dict)
    tally: Outcomes = field(default_factory=dict)

    def extend(self, span: Span) -> None:
        """Stretch the ends of the readings of the given roster."""
        self.span = span if self.span is None else _stretched(self.span, span)

    def sight(self, series: str, group: str, span: Span) -> None:
        """Stretch the ends of the readings of a series that name a group."""
        known = self.spans.get((series, group))
        self.spans[series, group] = span if known is None else _stretched(known, span)

    def members(self, away: Collection[str] = ()) -> tuple[dict[str, str], Span | None]:
        """The group of each series, which is that of its earliest reading, ties by name, and the ends of what counts.

        Readings that name another group of their series do not count, nor do those of series that stay away.
        """
        found: dict[str, tuple[int, str, int]] = {}
        for (series, group), (first, last) in self.spans.items():
            if series not in away:
                one = (first, group, last)
                found[series] = min(found.get(series, one), one)
        ends = (min(one[0] for one in found.values()), max(one[2] for one in found.values())) if found else None
        return {series: group for series, (_, group, _) in found.items()}, ends


def _stretched(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])


def complete(plan: Plan, seen: Discovered, away: Collection[str] = ()) -> Plan:
    """Fill in what a plan left to the data.

    Args:
        plan: the plan.
        seen: what the data say.
        away: series that stay out of a roster which is taken from the data.

    Raises:
        NoReadingsError: there are no readings.
        NoWindowError: no whole window lies between the first and the last.
        SettingsError: far too many windows do, one of the two lies ahead, or those of a calendar cannot be had.
    """
    given, roster = plan.schedule, plan.roster
    groups, span = seen.members(away) if roster is None else ({}, seen.span)
    if span is None:
        open_ = {"roster": roster, "windows.start": given.start, "windows.stop": given.stop}
        missing = [name for name, value in open_.items() if value is None]
        names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        raise NoReadingsError(
            f"source: there is no reading to take {names} from, which the settings leave out ({words_of(seen.tally)}); "
            f"check the source and how readings tells to read it, or set {names}"
        )
    _check_ahead(given, *span)
    try:
        schedule = replace(
            given,
            start=plan.grid.slots_of(span[0]) if given.start is None else given.start,
            stop=plan.grid.slots_of(span[1]) + 1 if given.stop is None else given.stop,
        )
    except NoWholeWindowError as error:
        raise NoWindowError(f"{_no_window(plan, *span)} ({words_of(seen.tally)})") from error
    except ValueError as error:
        raise SettingsError(f"{error}; the ends come from the first and the last reading") from error
    check_number(plan, schedule)
    if roster is None:
        grouped = plan.group_column is not None
        roster = Roster(tuple((name, group if grouped else None) for name, group in groups.items()))
    return plan.resolve(schedule, roster)


def _check_ahead(given: Schedule, first_us: int, last_us: int) -> None:
    """Refuse an end that comes from a reading of a time to come: its windows would be on record before they are over.

    One wrong clock would fix the schedule for ever. The message has the day alone; the ends are taken as public.
    """
    ends = (("start", given.start, "first", first_us), ("stop", given.stop, "last", last_us))
    latest = now_us() + DAY_US
    problems = [
        f"windows.{end} is left out, and the {which} reading that counts is of {format_instant(instant)[:10]}, more "
        "than a day after this machine's clock: all windows up to there would go on record for ever, empty where they "
        f"are not over. Set windows.{end}; or correct the clock that stamped it, or how readings tells to read times"
        for end, slot, which, instant in ends
        if slot is None and instant > latest
    ]
    if problems:
        raise SettingsError(problems)


def _no_window(plan: Plan, first_us: int, last_us: int) -> str:
    """Between which instants no window lies, and what to do."""
    given = plan.schedule
    window = f"window of {format_duration(given.size * plan.grid.interval_us)}"
    if given.calendar is not None:
        window = f"{given.calendar.unit} of {given.calendar.timezone}"
    # the ends of the data are taken as public, by the slot and not by the second
    first, last = (_instant(plan, plan.grid.slots_of(at)) for at in (first_us, last_us))
    begin, end = f"the slot of the first reading, {first},", f"the slot of the last reading, {last}"
    if given.start is not None:
        begin = f"windows.start, {_instant(plan, given.start)},"
    if given.stop is not None:
        end = f"windows.stop, {_instant(plan, given.stop)}"
    advice = "use a smaller windows.size, or set windows.start and windows.stop further apart"
    if given.start is not None and last_us < plan.grid.time_of(given.start):
        advice = "the data end before windows.start: correct it, or wait for its data"
    text = f"windows: no whole {window} lies between {begin} and {end}; {advice}"
    of_data = [at for at, slot in ((first_us, given.start), (last_us, given.stop)) if slot is None]
    if any(0 <= at < YEAR_1971_US for at in of_data):
        text += "; times in 1970: another unit, or day numbers of a spreadsheet?"
    return text


@dataclass(frozen=True, slots=True)
class Registered:
    """A query on record, as the workers of a job are told of it."""

    store_id: str  # random name of the ledger: every worker insists on it
    now: Registration
    # what another job knew whose state this one takes up; ``None`` for a job that begins anew
    before: Registration | None = None

    @property
    def begun(self) -> Registration:
        """By which rosters the job counts: see :meth:`.Registration.as_begun`."""
        return self.now if self.before is None else self.before


def registered(plan: Plan, seen: Discovered | None = None, *, live: bool, goes_on: bool = False) -> Registered:
    """The first step of a job: open the ledger, or make it, and put the query on record.

    Of a job over readings that end nothing is put on record yet: one of them must count first.

    Args:
        plan: the job.
        seen: what the readings say of themselves, where the settings leave something to them.
        live: whether the readings never end.
        goes_on: whether the job takes up the state of another one.

    Raises:
        SettingsError: the plan cannot be completed, or its noise drowns the counts.
        StoreError: the ledger cannot be used, has other content under these names, or too little budget.
    """
    check_record(plan, live=live)
    plan = plan.opened()
    before = record_before(plan) if goes_on else None
    made = register(plan, seen, trial=not live)
    # the one that the graph has already
    before = None if before is not None and before.revision == made.revision else before
    return Registered(plan.address.store_id or "", made, before)


def record_before(plan: Plan) -> Registration | None:
    """What was on record before a job that goes on with the state of another; ``None`` where nothing was.

    Raises:
        SettingsError: the roster was changed, and some window that is open began before that: what the other job knew
            in it is on no record.
    """
    if plan.roster is None:
        return None
    with ledger_at(plan.address) as store:
        held = store.registered(plan.domain.name, plan.query_name)
        if held is None or not held.versions:
            return held
        changed_us = held.versions[-1].created_us
        settled = held.settled_from(changed_us)
        if store.next_start(held) >= settled:
            return held
    raise SettingsError(
        [
            f"roster: it was changed at {format_instant(changed_us)}, and the job whose state this one takes up may "
            "have rejected readings of windows that are open: go on when the windows that begin before "
            f"{format_instant(plan.grid.time_of(settled))} are on record, or begin anew without that state"
        ]
    )


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
    store = ledger_at(plan.address)
    put = partial(store.register, trial=trial)
    given = plan.schedule.bounded
    held = store.registered(plan.domain.name, plan.query_name)
    if held is not None:
        plan = plan.with_multiplicity(held.query.most)
        if plan.roster is None or not given:
            return _agree(put, plan, held, live=seen is None)
    away = set[str]() if seen is None else _away(store, plan, seen)
    completed = plan if seen is None else complete(plan, seen, away)
    if away and trial:  # a run registers the same once more, and the log has the line once
        LOG.warning(
            "query %r: %d of the series of the data are in another domain of the ledger; they stay out of the roster, "
            "and their readings are rejected as %s",
            plan.query_name,
            len(away),
            RejectReason.NOT_IN_ROSTER.value,
        )
    if completed.schedule.start is None:
        raise SettingsError("windows.start is needed before the readings are known; set it")
    # series that are left to a source that never ends join when they are first seen
    roster = completed.roster or Roster((), "group" if plan.grouped else "series")
    query = plan.query(completed.schedule, roster, schedule_given=given, roster_given=plan.roster is not None)
    made = put(plan.domain, query, plan.estimated)
    # another job may have been first, with ends of its own
    return made if given or made.fresh else _agree(put, plan, made, live=seen is None)


def _away(store: Store, plan: Plan, seen: Discovered) -> set[str]:
    """The series of the data that another domain has: a sender may name any, and none of them ends the run.

    Where all are, the domain is one under another name, and is refused as such when it is registered.
    """
    series = {name for name, _ in seen.spans} if plan.roster is None else set[str]()
    away = store.left_alone(plan.domain, series) if series else series
    return away if away != series else set()


def _agree(put: Callable[..., Registration], plan: Plan, held: Registration, *, live: bool) -> Registration:
    """Register what is on record for a query again, with everything that the settings give in its place."""
    given, recorded = plan.schedule, held.query.schedule
    conflict = partial(StoreConflict.of, f"query {plan.query_name!r}", advice=QUERY_ADVICE)
    if not live and given.stop is None and recorded.stop is None:
        raise conflict("windows.stop", Words("none, as a live run has it"), Words("the end of the source"))
    roster = held.query.roster if plan.roster is None else plan.roster
    kind = "group" if plan.grouped else "series"
    if roster.kind != kind:
        raise conflict("group_by", group_by(roster.kind), group_by(kind))
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
    return put(plan.domain, query, plan.estimated)


def _instant(plan: Plan, slot: int | None) -> str | None:
    return None if slot is None else format_instant(plan.grid.time_of(slot))
