"""Checks of a query that need no data: its runner, its schedule, its belief and its noise, before anything runs.

A job over data that end publishes every window of its schedule, also those without readings, and puts the ends on
record for ever. So a schedule of too many windows is refused before it is registered.

The noise is compared with the counts that it hides. The number of cells of a histogram is public: the slots of a window
times the series that the roster has in the group; without a roster a histogram is of one series. No data are read, so
whether a job stops says nothing about them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..privacy.models.markov_chain import ChainError
from ..schemas.calendars import UNITS, Calendar
from ..schemas.model_file import Model
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.settings.model import fitting, init_with, shipped_text, weakness
from ..schemas.slots import DAY_US, Schedule, format_duration, format_instant, smallest_classes
from ..store.address import StoreAddress
from ..store.specs import Registration
from .calibrating import choose
from .plan import Plan, ledger_at

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


#: How often a longer window is tried, where the noise of a window depends on its length.
_TRIES = 6

#: Windows are not stretched beyond so many slots for an offer.
_LONGEST = 10_000_000


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would leave less noise beside the counts."""

    text: str
    share: float


def fewest_slots(plan: Plan) -> int:
    """Slots of the smallest class that a window has; of the window, where there are no classes.

    It is that of a year of the schedule's windows that has the largest error for its size, see
    :func:`~..schemas.slots.smallest_classes`.
    """
    return _hardest(plan)[1]


def _hardest(plan: Plan) -> tuple[int, int]:
    """Slots of the window, and of its class, that have the largest error for their size."""
    found = smallest_classes(plan.classes, plan.grid, plan.schedule)
    return max(found, key=lambda one: plan.of_length(one[0]).noisy.mean_abs / one[1])


def class_share(plan: Plan) -> float:
    """Share of a window's slots that the smallest class has; 1 where there are no classes."""
    slots, fewest = _hardest(plan)
    return fewest / slots


def error_shares(plan: Plan, roster: Roster | None = None) -> npt.NDArray[np.float64]:
    """Expected absolute error of a count, divided by the cells of an evenly filled bin, of each histogram.

    Returns:
        Shape (n,) for n series or groups, in the order of the roster's keys; shape (1,) where no roster is known.
    """
    roster = plan.roster if roster is None else roster
    members = np.ones(1, np.int64) if roster is None or not roster.entries else roster.members
    return count_error(plan) * plan.histogram.size / (fewest_slots(plan) * members.astype(np.float64))


def count_error(plan: Plan) -> float:
    """Expected error of a count of the window with the smallest class, in cells."""
    return plan.of_length(_hardest(plan)[0]).noisy.mean_abs


def noise_problem(plan: Plan) -> tuple[str, ...]:
    """How much the noise is, and what would help; nothing where the expected error is within ``most_error``."""
    shares = error_shares(plan)
    worst, limit = float(shares.max()), plan.most_error
    if worst <= limit:
        return ()
    cells = count_error(plan) / worst
    number = "" if len(shares) == 1 else f" in the smallest, {int((shares > limit).sum())} of {len(shares)} are above"
    unknown = plan.roster is None
    series = " of a single series, as no roster says how many there are" if unknown and plan.group_column else ""
    head = (
        f"most_error is {limit:g}: the expected error of a count is {count_error(plan):,.4g} cells, "
        f"{_percent(worst)} of an evenly filled bin of {cells:,.4g} cells{series}{number}. The noise drowns the "
        "counts, and the budget would be spent on it. What would help, and the error that each leaves:"
    )
    offers = remedies(plan)
    enough = [one for one in offers if one.share <= limit]
    found = [f"- {one.text}: {_percent(one.share)}" for one in enough or offers]
    if not enough:
        found.append(
            "- none of these is enough: publish a group of series, or fit a belief on a history of other series"
        )
    last = "- or publish it all the same: run --accept-noise, or PrivateHistograms(..., accept_noise=True)"
    return head, *found, last


def remedies(plan: Plan) -> tuple[Remedy, ...]:
    """Changes of the settings that leave less noise beside the counts, each with the error of its own plan."""
    before = float(error_shares(plan).max())
    found: list[Remedy] = []
    for offer in (_grouped, _longer, _fewer_bins, _without_classes, _forward_backward, _shipped):
        with suppress(ChainError, SettingsError, ValueError):  # an offer that cannot be made is none
            found += [one for one in offer(plan) if one.share < before]
    return tuple(found)


def _share(plan: Plan) -> float:
    return float(error_shares(plan).max())


def _grouped(plan: Plan) -> Iterator[Remedy]:
    roster = plan.roster
    if roster is None or not roster.entries:
        needed = math.ceil(_share(plan) / plan.most_error)
        yield Remedy(f"a roster with {needed:,} series or more in one group", _share(plan) / needed)
        return
    if len(roster.keys) == 1:
        return
    whole = Roster(tuple((name, "all") for name in roster.series))
    grouped = replace(plan, roster=whole).with_share(plan.share // roster.multiplicity)
    yield Remedy(f"a roster with all {len(roster.series):,} series in one group", _share(grouped))


def _longer(plan: Plan) -> Iterator[Remedy]:
    if plan.schedule.calendar is not None:
        yield from _longer_units(plan, plan.schedule.calendar)
        return
    schedule, window, made = plan.schedule, plan.domain.guarantee == "window", plan
    most = _LONGEST if schedule.start is None or schedule.stop is None else schedule.stop - schedule.first
    most = min(most, _LONGEST) // schedule.size
    times = 1
    for _ in range(_TRIES if window else 1):
        times = min(most, max(times + 1, math.ceil(times * _share(made) / plan.most_error)))
        if times < 2:  # noqa: PLR2004 - no longer than they are
            return
        if schedule.bounded:  # none of its windows is left over
            times = next(one for one in range(times, most + 1) if most % one == 0)
        size = schedule.size * times
        stretched = Schedule(size=size, every=size, start=schedule.start, stop=schedule.stop, anchor=schedule.anchor)
        made = _stretched(plan, stretched)
        if _share(made) <= plan.most_error:
            break
    yield Remedy(f"windows.size: {format_duration(made.schedule.size * plan.grid.interval_us)}", _share(made))


def _longer_units(plan: Plan, calendar: Calendar) -> Iterator[Remedy]:
    """Weeks or months for days, months for weeks: the first that leaves little enough noise, or the longest."""
    found: Remedy | None = None
    for unit in UNITS[UNITS.index(calendar.unit) + 1 :]:
        with suppress(ValueError):  # there is no whole one
            given = plan.schedule
            made = _stretched(plan, Schedule.of_calendar(replace(calendar, unit=unit), given.start, given.stop))
            if given.bounded and made.schedule.covered != given.covered:
                continue
            found = Remedy(f"windows.size: {unit}", _share(made))
            if found.share <= plan.most_error:
                break
    if found is not None:
        yield found


def _stretched(plan: Plan, schedule: Schedule) -> Plan:
    given = plan.schedule
    stretched = replace(plan, schedule=schedule)
    if plan.domain.guarantee == "stream":
        return stretched.with_share(plan.share // given.overlap)
    return _by_mechanism(stretched, plan.mechanism)


def _fewer_bins(plan: Plan) -> Iterator[Remedy]:
    edges = plan.histogram.edges
    if len(edges) < 2:  # noqa: PLR2004 - two bins are the fewest, and categories are in no order
        return
    middle = edges[len(edges) // 2]
    coarse = replace(plan, histogram=plan.space.merged((middle,)))
    yield Remedy(f"bins: [{middle:g}], {coarse.histogram.size} counts instead of {plan.histogram.size}", _share(coarse))


def _without_classes(plan: Plan) -> Iterator[Remedy]:
    if len(plan.classes) > 1:
        yield Remedy("by left out, one histogram of all slots", _share(replace(plan, by=())))


def _forward_backward(plan: Plan) -> Iterator[Remedy]:
    if plan.mechanism != "forward-backward":
        yield Remedy("privacy.mechanism: forward-backward", _share(_by_mechanism(plan, "forward-backward")))


def _shipped(plan: Plan) -> Iterator[Remedy]:
    """Beliefs that come with the package and are of the unit of the states; then longer windows and fewer bins."""
    if plan.model.states is not None:
        return
    for name, model in fitting_beliefs(plan).items():
        made = _under(plan, model)
        cover, own = model.diagnostics["cover"], (made.grid, made.space) == (plan.grid, plan.space)
        take = f"model: {name}" if own else init_with(name)
        assumed = f"if the series forgets as fast as {cover['rank']} of its {cover['series']} do"
        assumed += f" ({weak})" if (weak := weakness(model)) else ""
        yield Remedy(f"{take}, {assumed}", _share(made))
        if _share(made) <= plan.most_error:
            continue
        for offer in (_longer, _fewer_bins):
            with suppress(ChainError, SettingsError, ValueError):
                yield from (Remedy(f"{take} and {one.text}", one.share) for one in offer(made))


def fitting_beliefs(plan: Plan) -> dict[str, Model]:
    """Beliefs that come with the package and may be taken for a plan: all know no missing cells."""
    return {} if plan.domain.missing == "state" else fitting(plan.space.unit, plan.grid.interval_us)


#: Days of a unit of the calendar, whatever the clock does.
_DAYS = {"day": 1, "week": 7, "month": 28}


def _under(plan: Plan, model: Model) -> Plan:
    """The plan under a fitted belief with its slots and states."""
    states, interval = model.states or plan.space, model.interval_us or plan.grid.interval_us
    times, given = interval // plan.grid.interval_us, plan.schedule
    start, stop = (None if one is None else one // times for one in (given.start, given.stop))
    usual = given.size if given.calendar is None else _DAYS[given.calendar.unit] * DAY_US // plan.grid.interval_us
    size = max(1, usual // times)
    schedule = given if times == 1 else Schedule(size=size, every=size, start=start, stop=stop, anchor=start or 0)
    histogram = plan.histogram if plan.space == states else states
    made = replace(
        plan, grid=replace(plan.grid, interval_us=interval), schedule=schedule, space=states, histogram=histogram
    )
    return _by_mechanism(replace(made, model=model), "forward-backward")


def _by_mechanism(plan: Plan, mechanism: str) -> Plan:
    found = choose(
        mechanism,
        plan.model.belief,
        states=plan.space.size,
        epsilon=plan.epsilon,
        window=plan.schedule.lengths,
        guarantee=plan.domain.guarantee,
        interval_us=plan.grid.interval_us,
    )
    return plan.calibrated(found.calibration, found.lengths)


def _percent(share: float) -> str:
    return f"{share:,.0%}" if share >= 0.1 else f"{share:.1%}"  # noqa: PLR2004 - two digits of small shares


def check_plan(plan: Plan, *, live: bool) -> None:
    """What can be wrong with a plan by itself, whatever is on record: no ledger is looked for.

    Raises:
        SettingsError: something is left to a source that never ends, the belief is a stand-in or covers few series.
    """
    if live:
        check_live(plan)
    check_belief(plan)


def check_record(plan: Plan, *, live: bool) -> None:
    """What depends on whether the query is on record: nothing about one that is can be changed any more.

    Raises:
        SettingsError: the schedule has too many windows, or the noise drowns the counts.
        StoreError: there is a ledger and it cannot be read.
    """
    if not live:
        check_ends(plan)
    check_error(plan)


class HopelessNoise(SettingsError):  # noqa: N818 - the name says what is wrong
    """The expected error of a count is more than ``most_error``, as a share of an evenly filled bin."""


def check_error(plan: Plan) -> None:
    """Stop a job whose noise drowns its counts, before anything is charged.

    A query that is on record is not stopped: its noise and its budget were put on record when it was registered.
    """
    if plan.accepted.noise or plan.noise == "none":
        return
    problem = noise_problem(plan)
    if problem and _on_record(plan) is None:
        raise HopelessNoise(problem)


def check_belief(plan: Plan) -> None:
    """Stop a job whose belief is a stand-in, or covers too few series, before anything is charged."""
    if plan.noise == "none":
        return
    if plan.stand_in and not plan.accepted.stand_in:
        raise SettingsError(stand_in_text(plan))
    if covers_few(plan) and not plan.accepted.cover:
        raise SettingsError(
            f"model: its belief covers a further series with probability about {plan.model.provenance.odds:.2f}, below "
            f"{LEAST_ODDS:g}: fit with a larger --cover, which takes more series, or publish it all the same: run "
            "--accept-cover, or PrivateHistograms(..., accept_cover=True); every row says it in model_provenance"
        )


#: Probability of covering a further series from which on a belief needs no word of the operator.
LEAST_ODDS = 0.8


def covers_few(plan: Plan) -> bool:
    """Whether the belief covers a further series with probability below 0.8."""
    odds = plan.model.provenance.odds
    return odds is not None and odds < LEAST_ODDS


def stand_in_text(plan: Plan) -> tuple[str, ...]:
    """What is to be done about a belief that is a stand-in; of one series no history can be held out."""
    single = plan.roster is not None and len(plan.roster.series) == 1
    held_out = (
        "- fit a model on series that are not published: `quiltstream init DATA --hold-out 0.5 --force` keeps every "
        "second one out of the roster, `quiltstream fit SETTINGS --exclude ROSTER` fits those that it does not name; "
        "set model: model.json",
    )
    return (
        STAND_IN_TEXT,
        *(() if single else held_out),
        f"- {shipped_text(fitting_beliefs(plan))}",
        "- give bounds that you can defend by hand, model: {pi_min: ..., gap: ...}",
        "- or publish all the same: run --accept-stand-in, or PrivateHistograms(..., accept_stand_in=True); every row "
        "says so in model_provenance",
    )


#: What is said of a belief that is a stand-in.
STAND_IN_TEXT = (
    "model is stand-in: its bounds are made of slots.interval alone, and nothing says that they hold for these series; "
    "where a series forgets more slowly, the noise is too little and the loss more than the ledger says"
)

#: Runners whose workers are processes of this machine.
_ONE_HOST = frozenset(
    {"fnapirunner", "directrunner", "switchingdirectrunner", "bundlebaseddirectrunner", "prismrunner"}
)


def check_hosts(runner: str | None, address: StoreAddress) -> None:
    """Refuse a ledger in a file for workers on several machines."""
    if runner is None or runner.rpartition(".")[2].lower() in _ONE_HOST or not address.is_sqlite:
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
    """Refuse at-least-once modes and the logging of hot keys, by whichever option they are set.

    They may stand in options of their own, among the service options, or among the experiments of any spelling.
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
    """An option as it is written on the command line; one that is switched off is none."""
    if value is None or str(value).lower() in ("false", "[]"):
        return ()
    if value is True:
        return (f"--{name}",)
    values: list[Any] = value if isinstance(value, list) else [value]
    return (f"--{name}={part}" for one in values for part in str(one).split(","))


def check_ends(plan: Plan) -> None:
    """Count the windows between the given ends, or after those on record, without a look at each.

    A schedule that is on record as it is given is not counted: nothing about it can be changed any more. What differs
    from the record is the store's to name.
    """
    given = plan.schedule
    if given.stop is None:
        return
    held = _on_record(plan)
    if held is None:
        check_number(plan, given)
        return
    recorded = held.query.schedule
    if recorded.stop is None or given.stop <= recorded.stop or not given.same_windows(recorded):
        return
    if (given.start is None or given.first == recorded.first) and recorded.difference(given) is None:
        extended = replace(recorded, stop=given.stop)
        if extended.covered.stop > recorded.covered.stop:
            check_number(plan, extended)


def _on_record(plan: Plan) -> Registration | None:
    with ledger_at(plan.address) as store:
        return store.registered(plan.domain.name, plan.query_name) if store.is_there() else None


def check_number(plan: Plan, schedule: Schedule) -> None:
    """Refuse a schedule with more windows than can be meant."""
    if not schedule.bounded or len(schedule) <= plan.most_windows:
        return
    first, last = (format_instant(plan.grid.time_of(slot)) for slot in (schedule.covered.start, schedule.covered.stop))
    raise SettingsError(
        f"windows: from {first} to {last} there are {len(schedule):,} windows, and a job over data that end takes "
        f"at most {plan.most_windows:,}, because it publishes each, also those without readings; check the years "
        "of windows.start and windows.stop, use longer windows, or raise windows.most if so many are meant"
    )


#: Runners that ignore watermarks, or stop at the first pause of a source.
NOT_LIVE = frozenset({"fnapirunner", "directrunner", "bundlebaseddirectrunner", "switchingdirectrunner"})


def check_watermarks(plan: Plan, runner: str) -> None:
    """See that a runner keeps watermarks while windows are still to come, so that they are ever published."""
    schedule = plan.schedule
    over = schedule.bounded and plan.grid.time_of(schedule.covered.stop) * 1_000 < time.time_ns()
    # of the others this one alone reads the wall clock beside a source to its end, where a schedule is over
    if runner.lower() not in NOT_LIVE or (over and runner.lower() == "fnapirunner"):
        return
    raise SettingsError(
        f"runner: {runner} ignores the watermark of a source that never ends, or stops at its first pause, so "
        "windows that are still open would never be published: use PrismRunner, FlinkRunner or DataflowRunner"
    )


def check_live(plan: Plan) -> None:
    """See that nothing is left to come from the data of a source that never ends, and when its first window starts."""
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
