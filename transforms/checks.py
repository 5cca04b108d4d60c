"""The checks of a query that need no data: its runner, its schedule, its belief and its noise, before anything runs.

The ends of a schedule that has to be gone over from one to the other, looked at before anything does so.

A job over data that end goes over every window of its schedule, also over those without readings, and puts the ends on
record for ever. A slip of a digit in a year is therefore told before it is registered, and an end that is taken back
is told before the windows up to the recorded one are gone over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..schemas.settings.base import SettingsError
from ..schemas.slots import Schedule, format_instant
from ..store.address import StoreAddress
from ..store.errors import QUERY_ADVICE, RegistrationConflict, StoreMissing
from ..store.specs import Registration
from .expected_error import noise_problem
from .plan import Plan

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

__all__ = [
    "NOT_LIVE",
    "STAND_IN_TEXT",
    "HopelessNoise",
    "check_belief",
    "check_ends",
    "check_error",
    "check_hosts",
    "check_live",
    "check_modes",
    "check_number",
    "check_plan",
    "check_watermarks",
]


def check_plan(plan: Plan, *, live: bool) -> None:
    """Everything that can be wrong with a plan by itself, in one order, for every way in which it is run.

    Args:
        plan: the query.
        live: whether its source never ends.

    Raises:
        SettingsError: something is left to a source that never ends, the schedule has too many windows, the belief is
            a stand-in, or the noise drowns the counts.
        RegistrationConflict: ``windows.stop`` is before the one on record.
        StoreError: there is a ledger and it cannot be read.
    """
    if live:
        check_live(plan)
    else:
        check_ends(plan)
    check_belief(plan)
    check_error(plan)


class HopelessNoise(SettingsError):  # noqa: N818 - the name says what is wrong
    """The expected error of a count is more than ``most_error``, as a share of an evenly filled bin."""


def check_error(plan: Plan) -> None:
    """Stop a job whose noise drowns its counts, before anything is charged.

    A query that is on record is not stopped: its noise was frozen, and its budget reserved, when it was registered.

    Raises:
        HopelessNoise: the expected error is above ``most_error``, and the operator did not accept it.
        StoreError: there is a ledger and it cannot be read.
    """
    if plan.accepted.noise or plan.noise == "none":
        return
    problem = noise_problem(plan)
    if problem and _held(plan) is None:
        raise HopelessNoise(problem)


def check_belief(plan: Plan) -> None:
    """Stop a job whose belief is a stand-in, before anything is charged.

    Raises:
        SettingsError: it is, and the operator did not accept it.
    """
    if plan.stand_in and not plan.accepted.stand_in and plan.noise != "none":
        raise SettingsError(STAND_IN_TEXT)


#: What is said of a belief that is a stand-in.
STAND_IN_TEXT = (
    "model is stand-in: its bounds are made of slots.interval alone, and nothing says that they hold for these series; "
    "where a series forgets more slowly, the noise is too little and the loss more than the ledger says",
    "- fit a model on series that are not published: `quiltstream fit SETTINGS --cover 0.9 --exclude roster.csv`, and "
    "set model: model.json",
    "- or give bounds that you can defend by hand, model: {pi_min: ..., gap: ...}",
    "- or publish under the stand-in all the same: run --accept-stand-in, or PrivateHistograms(..., "
    "accept_stand_in=True); every row says so in model_provenance",
)

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
    alike = given.same_windows(recorded)
    if not alike or recorded.stop is None or (given.start is not None and given.first != recorded.first):
        return  # the store names what differs
    end = recorded.covered.stop
    if recorded.difference(given) is not None:
        return  # the store says which windows, and whether the schedule may end before them
    if given.stop < end:
        was, asked = (format_instant(plan.grid.time_of(slot)) for slot in (recorded.stop, given.stop))
        raise RegistrationConflict(f"query {plan.query_name!r}", "windows.stop", was, asked, QUERY_ADVICE)
    extended = replace(recorded, stop=given.stop)
    if extended.covered.stop > end:
        check_number(plan, extended)


def _held(plan: Plan) -> Registration | None:
    from ..store.store import Store  # noqa: PLC0415 - with SQLAlchemy, which a plan does not need

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
            "of windows.start and windows.stop, use longer windows, or raise windows.most if so many are meant"
        ]
    )


#: Runners that ignore watermarks, or stop at the first pause of a source.
NOT_LIVE = frozenset({"fnapirunner", "directrunner", "bundlebaseddirectrunner", "switchingdirectrunner"})


def check_watermarks(plan: Plan, runner: str) -> None:
    """See that a runner keeps watermarks while windows are still to come, so that they are ever published.

    Args:
        plan: the query.
        runner: name of the runner's class.

    Raises:
        SettingsError: it does not.
    """
    schedule = plan.schedule
    over = schedule.bounded and plan.grid.time_of(schedule.covered.stop) * 1_000 < time.time_ns()
    if runner.lower() in NOT_LIVE and not over:
        raise SettingsError(
            f"runner: {runner} ignores the watermark of a source that never ends, or stops at its first pause, so "
            "windows that are still open would never be published: use PrismRunner, FlinkRunner or DataflowRunner"
        )


def check_live(plan: Plan) -> None:
    """See that nothing is left to come from the data of a source that never ends, and when its first window starts.

    Raises:
        SettingsError: naming each setting that is missing, or a first window of another age.
    """
    problems: list[str] = []
    if plan.schedule.start is None:
        problems.append("windows.start is missing: a live source never ends, so its first window must be set")
    elif plan.grid.time_of(plan.schedule.first) < 0:
        first = format_instant(plan.grid.time_of(plan.schedule.first))
        problems.append(
            f"windows.start is {first}, and a live job publishes every window from there on, also those without "
            "readings; it starts in 1970 at the earliest: set it to where the readings begin"
        )
    if problems:
        raise SettingsError(problems)
