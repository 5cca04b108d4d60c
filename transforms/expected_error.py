"""The noise of a plan beside the counts that it hides, and what would leave less of it.

The number of cells of a histogram is public: the slots of a window times the series that the roster has in the group;
without a roster a histogram is of one series, or of a group of which one series is known to be there. No data are read,
so whether a job stops says nothing about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..privacy.analysis.baselines import entry_dp
from ..privacy.models.markov_chain import ChainError
from ..schemas.calendars import UNITS, Calendar
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.slots import Schedule, Window, format_duration
from .plan import Plan, choose

__all__ = ["Remedy", "class_share", "error_shares", "fewest_slots", "first_error", "noise_problem", "remedies"]

#: How often a longer window is tried, where the noise of a window depends on its length.
_TRIES = 6

#: Windows are not stretched beyond so many slots for an offer.
_LONGEST = 10_000_000


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would leave less noise beside the counts.

    Attributes:
        text: the change.
        share: expected error of a count of the smallest histogram then, as a share of an evenly filled bin.
    """

    text: str
    share: float


def fewest_slots(plan: Plan) -> int:
    """Slots of the smallest class that the first window has; of the window, where there are no classes."""
    slots = plan.classes.slots_of(plan.grid, _window(plan.schedule))
    return int(slots[slots > 0].min())


def _window(schedule: Schedule) -> Window:
    """The first window; where the start is to come from the data, one like it."""
    if schedule.start is not None:
        return schedule.window_at(schedule.first)
    calendar = schedule.calendar
    return schedule.window_at(0 if calendar is None else schedule.start_before(calendar.end))


def class_share(plan: Plan) -> float:
    """Share of the first window's slots that its smallest class has; 1 where there are no classes."""
    return fewest_slots(plan) / len(_window(plan.schedule))


def error_shares(plan: Plan, roster: Roster | None = None) -> npt.NDArray[np.float64]:
    """Expected absolute error of a count, divided by the cells of an evenly filled bin, of each histogram.

    Args:
        plan: the plan.
        roster: the roster, where another one is known than the plan's.

    Returns:
        Shape (n,) for n series or groups, in the order of the roster's keys; shape (1,) where no roster is known.
    """
    roster = plan.roster if roster is None else roster
    members = np.ones(1, np.int64) if roster is None or not roster.entries else roster.members
    return first_error(plan) * plan.histogram.size / (fewest_slots(plan) * members.astype(np.float64))


def first_error(plan: Plan) -> float:
    """Expected error of a count of the first window, in cells."""
    return plan.of_length(len(_window(plan.schedule))).noisy.mean_abs


def noise_problem(plan: Plan) -> tuple[str, ...]:
    """How much the noise is, and what would help; nothing where the expected error is within ``most_error``."""
    shares = error_shares(plan)
    worst, limit = float(shares.max()), plan.most_error
    if worst <= limit:
        return ()
    cells = first_error(plan) / worst
    number = "" if len(shares) == 1 else f" in the smallest, {int((shares > limit).sum())} of {len(shares)} are above"
    unknown = plan.roster is None
    series = " of a single series, as no roster says how many there are" if unknown and plan.group_column else ""
    head = (
        f"most_error is {limit:g}: the expected error of a count is {first_error(plan):,.4g} cells, "
        f"{_percent(worst)} of an evenly filled bin of {cells:,.4g} cells{series}{number}. The noise drowns the "
        "counts, and the budget would be spent on it. What would help, each alone, and the error that it leaves:"
    )
    found = [f"- {one.text}: {_percent(one.share)}" for one in remedies(plan)]
    last = "- or publish it all the same: run --accept-noise, or PrivateHistograms(..., accept_noise=True)"
    return head, *found, last


def remedies(plan: Plan) -> tuple[Remedy, ...]:
    """Changes of the settings that leave less noise beside the counts, each with the error of its own plan."""
    before = float(error_shares(plan).max())
    found: list[Remedy] = []
    for offer in (_grouped, _longer, _fewer_bins, _without_classes, _forward_backward, _fitted):
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
        made = _with_windows(plan, schedule.size * times)
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
            found = Remedy(f"windows.size: {unit}", _share(made))
            if found.share <= plan.most_error:
                break
    if found is not None:
        yield found


def _with_windows(plan: Plan, size: int) -> Plan:
    """The plan with tumbling windows of another size."""
    given = plan.schedule
    return _stretched(plan, Schedule(size=size, every=size, start=given.start, stop=given.stop, anchor=given.anchor))


def _stretched(plan: Plan, schedule: Schedule) -> Plan:
    """The plan with other windows, which do not overlap."""
    given = plan.schedule
    stretched = replace(plan, schedule=schedule)
    if plan.domain.guarantee == "stream":
        return stretched.with_share(plan.share // given.overlap)
    return _chosen(stretched, plan.mechanism)


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
        yield Remedy("privacy.mechanism: forward-backward", _share(_chosen(plan, "forward-backward")))


def _fitted(plan: Plan) -> Iterator[Remedy]:
    """The least that any belief needs is the noise of slots that tell nothing of each other, sigma 1 / epsilon."""
    if plan.model.states is not None:
        return
    least = replace(plan.calibration, sigma=entry_dp(plan.epsilon).sigma)
    text = "a model fitted on series that are not published (`quiltstream fit SETTINGS --cover 0.9`), at best"
    yield Remedy(text, _share(plan.calibrated(least)))


def _chosen(plan: Plan, mechanism: str) -> Plan:
    """The plan with the noise of a mechanism for its model and windows."""
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
