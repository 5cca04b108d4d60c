"""The ends of a schedule that has to be gone over from one to the other, looked at before anything does so.

A job over data that end goes over every window of its schedule, also over those without readings, and puts the ends on
record for ever. A slip of a digit in a year is therefore told before it is registered, and an end that is taken back
is told before the windows up to the recorded one are gone over.
"""

from __future__ import annotations

from dataclasses import replace

from ..schemas.settings import SettingsError
from ..schemas.slots import Schedule, format_instant
from ..store.errors import QUERY_ADVICE, RegistrationConflict, StoreMissing
from ..store.records import Store
from ..store.specs import Registration
from .plan import Plan


def check_ends(plan: Plan) -> None:
    """Compare the given ends with those on record, and count the windows between them, without going over any.

    A schedule that is on record as it is given is not counted: nothing about it can be changed any more.

    Raises:
        RegistrationConflict: ``windows.stop`` is before the one on record.
        SettingsError: the schedule has more windows than ``windows.most``.
        StoreError: there is a ledger and it cannot be read.
    """
    given = plan.schedule
    if given.stop is None:
        return
    held = _held(plan)
    if held is None:
        check_number(plan, given)
        return
    recorded = held.query.schedule
    alike = (given.size, given.every) == (recorded.size, recorded.every)
    if not alike or recorded.stop is None or (given.start is not None and given.first != recorded.first):
        return  # the store names what differs
    end = recorded.covered.stop
    if given.stop < end:
        was, asked = (format_instant(plan.grid.time_of(slot)) for slot in (recorded.stop, given.stop))
        raise RegistrationConflict(f"query {plan.query_name!r}", "windows.stop", was, asked, QUERY_ADVICE)
    extended = replace(recorded, stop=given.stop)
    if extended.covered.stop > end:
        check_number(plan, extended)


def _held(plan: Plan) -> Registration | None:
    with Store(plan.address) as store:
        try:
            return store.registered(plan.domain.name, plan.query_name)
        except StoreMissing:
            return None


def check_number(plan: Plan, schedule: Schedule) -> None:
    """Refuse a schedule that nobody can have meant.

    Raises:
        SettingsError: it has too many windows.
    """
    if not schedule.bounded or len(schedule) <= plan.most_windows:
        return
    first, last = (format_instant(plan.grid.time_of(slot)) for slot in (schedule.covered.start, schedule.covered.stop))
    raise SettingsError(
        [
            f"windows: from {first} to {last} there are {len(schedule):,} windows, and a job over data that end takes "
            f"at most {plan.most_windows:,}, because it publishes each, also those without readings; check the years "
            "of windows.start and windows.stop, use a longer windows.every, or raise windows.most if so many are meant"
        ]
    )
