"""Checks of a job against its runner and its schedule, before anything runs.

The ends of a schedule that has to be gone over from one to the other, looked at before anything does so.

A job over data that end goes over every window of its schedule, also over those without readings, and puts the ends on
record for ever. A slip of a digit in a year is therefore told before it is registered, and an end that is taken back
is told before the windows up to the recorded one are gone over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.settings.base import SettingsError
from ...schemas.slots import Schedule, format_instant
from ...store.address import StoreAddress
from ...store.errors import QUERY_ADVICE, RegistrationConflict, StoreMissing
from ...store.specs import Registration
from ...store.store import Store
from ..plan import Plan

__all__ = ["check_modes"]


#: Runners whose workers are processes of this machine.
_ONE_HOST = frozenset(
    {"fnapirunner", "directrunner", "switchingdirectrunner", "bundlebaseddirectrunner", "prismrunner"}
)


def check_hosts(runner: str | None, address: StoreAddress) -> None:
    """Refuse a ledger in a file for workers on several machines.

    Args:
        runner: name of the runner, with or without its module; ``None`` for the default, which is local.
        address: where the ledger is.

    Raises:
        SettingsError: the runner may spread over hosts and the ledger is a file.
    """
    if runner is None or runner.rpartition(".")[2].lower() in _ONE_HOST or address.multi_host_safe:
        return
    raise SettingsError(
        f"ledger: runner {runner} may spread over several machines, and the ledger {address} is a file on one of them: "
        "each would keep an account of its own; set ledger to a PostgreSQL URL, or run on this machine"
    )


#: What is looked for in the names and values of options, and why it is refused.
_REFUSED = {
    "at_least_once": (
        "an at-least-once mode may hand a sum over twice, so that a changed reading moves a histogram by more than its "
        "noise was calibrated for; leave it out: exactly-once is the default"
    ),
    "hot_key_logging": (
        "the runner would write keys into its log as they are, where more people read them than the rows are meant "
        "for; leave it out"
    ),
}


def check_modes(options: PipelineOptions) -> None:
    """Refuse at-least-once modes and the logging of hot keys, by whichever option they are asked for.

    They may stand in options of their own, among the service options, or among the experiments of any spelling.

    Args:
        options: Beam's; also those that only the runner knows.

    Raises:
        SettingsError: naming each.
    """
    given = options.get_all_options(drop_default=True, retain_unknown_options=True)
    problems: list[str] = []
    for name, value in given.items():
        for written in _written(name, value):
            plain = written.lower().replace("-", "_")
            problems += [f"{written}: {why}" for mode, why in _REFUSED.items() if mode in plain]
    if problems:
        raise SettingsError(problems)


def _written(name: str, value: Any) -> Iterable[str]:
    """An option as somebody would write it; one that is switched off is none."""
    if value is None or str(value).lower() in ("false", "[]"):
        return ()
    if value is True:
        return (f"--{name}",)
    values: list[Any] = value if isinstance(value, list) else [value]
    return (f"--{name}={part}" for one in values for part in str(one).split(","))


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
