"""What ``run`` will do and what it did, each as one table: of its rows JSON has the values and text the words.

Both say the same of a plan: which windows, how much noise, what it costs and what that rests on. Everything follows
from the settings, the model, the roster and the ledger, and no reading.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ..privacy.accounting.habits import HABITS, PROMISE
from ..privacy.accounting.ledger import Ledger
from ..privacy.accounting.schedules import Schedule
from ..privacy.mechanisms.histogram import FixedTotalHistogram
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.roster import Roster
from ..schemas.settings.job import Settings
from ..schemas.slots import DAY_US, format_duration, format_instant, parse_duration, said_duration
from ..transforms.checks import count_error, error_shares, fewest_slots
from ..transforms.plan import Plan, constant_roster
from .console import facts, finite, heading, lines, notes, number, odds, percent, plural
from .errors import ExitCode
from .released_series import day_of, named

#: Heading of exact statistics.
OPERATOR = "For the operator only, not to be published"

#: Losses for which the length of an event is printed.
_WITHIN = (1.0, 2.0, 4.0)

#: Lines of a text without --all.
_SCREEN = 18

#: Two losses that differ by less are printed as one.
_SAME = 1e-3


class Row(NamedTuple):
    """A value in JSON, and its words in the text."""

    name: str = ""  # of its value in JSON; empty where only text has it
    value: Any = None
    label: str = ""  # in the text, beside ``words``
    words: str | None = None  # None where only JSON has it
    detail: bool = False  # whether the text has it with --all alone


class Block(NamedTuple):
    """Sentences under a heading, which JSON has as a list."""

    name: str
    title: str
    items: Iterable[str]
    brief: Iterable[str] | None = None  # those that the text has without --all, where these are fewer
    prose: bool = False  # paragraphs instead of a list


@dataclass(frozen=True)
class Table:
    """What a command tells, as JSON and as text."""

    title: str
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    code: ExitCode  # what the command ends with

    def __getitem__(self, name: str) -> Any:
        """A value by its name in JSON."""
        return self.to_dict()[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form; a number without a bound is null."""
        found = {one.name: one.value for one in self.rows if one.name}
        return finite(found | {one.name: list(one.items) for one in self.blocks if one.name})

    def show(self, console: Console, *, every: bool = False) -> None:
        """Print the text, or all of it: of sentences that have no room the number is told."""
        told = [(one.label, one.words) for one in self.rows if one.words is not None and (every or not one.detail)]
        used, left = len(told) + 2, 0  # lines
        heading(console, self.title)
        facts(console, told)
        for block in self.blocks:
            for at, item in enumerate(block.items if every or block.brief is None else block.brief):
                with console.capture() as made:
                    if not at and (block.title or block.prose):
                        heading(console, block.title)
                    (lines if block.prose else notes)(console, [item])
                used += made.get().count("\n")
                left += used > _SCREEN and not every
                console.file.write(made.get() if every or not left else "")
        if left:
            console.print(f"  {plural(left, 'more sentence')}: --all", style="dim")


@dataclass(frozen=True)
class Forecast:
    """What a plan publishes, with how much noise, and at what cost on an empty account."""

    settings: Settings
    plan: Plan
    roster: Roster | None  # the series that are published; None where the data tell them
    charged: Schedule  # the windows as the account prices them
    live: bool = False  # whether its source goes on

    def schedule(self) -> list[Row]:
        """The windows, by the clock of the settings, and the histograms in each."""
        plan, roster, schedule, interval = self.plan, self.roster, self.plan.schedule, self.plan.grid.interval_us
        zone, calendar, size = str(plan.domain.reading["timezone"]), schedule.calendar, schedule.said_length(interval)
        every = size if calendar is not None else format_duration(schedule.every * interval)
        first = None if schedule.start is None else plan.grid.time_of(schedule.first)
        last = plan.grid.time_of(schedule.covered.stop) if schedule.bounded else None
        count = len(schedule) if schedule.bounded else None
        least, most = schedule.own_lengths[0], schedule.own_lengths[-1]
        slots = f"{least:,} slots" if least == most else f"{least:,} to {most:,} slots"
        if calendar is None:
            windows = "windows" if count is None else plural(count, "window")
            text = f"{windows} of {size} ({slots})" + ("" if every == size else f", one every {every}")
        else:
            text = f"{f'{size}s' if count is None else plural(count, size)} of {zone} ({slots})"
        if first is not None and last is not None:
            span = named(first, last, zone)
        else:
            begin = "from the first reading" if first is None else day_of(first, zone)
            end = "to the last reading" if last is None else f"to {day_of(last, zone)}"
            span = f"{begin}, without end" if last is None and self.live else f"{begin} {end}"
        bins, classes, histograms = plan.histogram.size, len(plan.classes), "every series of the data"
        counts = f"{bins} counts each"
        if classes > 1:
            counts = f"{classes * bins:,} counts each, for {classes} classes by {' and '.join(plan.by)}"
        if roster is not None:
            fewest, largest = int(roster.members.min()), int(roster.members.max())
            series = f"{fewest:,} series" if fewest == largest else f"{fewest:,} to {largest:,} series"
            of = f" of {series}" if roster.kind == "group" else ""
            histograms = plural(len(roster.keys), f"{roster.kind} histogram") + of
        values = {
            "first": None if first is None else format_instant(first),
            "last": None if last is None else format_instant(last),
            "endless": self.live,
            "size": size,
            "every": every,
            "slots": schedule.size,
            "zone": None if calendar is None else zone,
            "key_kind": None if roster is None else roster.kind,
            "keys": None if roster is None else len(roster.keys),
        }
        return [
            Row("windows", count, "publishes", f"{text}, {span}"),
            Row("labels", plan.histogram.labels, "", f"of {histograms}, {counts}"),
            *starmap(Row, values.items()),
        ]

    def noise(self) -> list[Row]:
        """Noise, by the length of windows that has the most, cost and belief."""
        plan, roster, classes = self.plan, self.roster, len(self.plan.classes)
        most = max(map(plan.of_length, plan.schedule.own_lengths), key=lambda one: one.scale)
        calibration, half, scale = most.calibration, most.noisy.half_width(0.95), float(most.scale)
        left, right = calibration.quilt.left, calibration.quilt.right
        median = float(np.median(error_shares(plan, roster)))
        members = 1.0 if roster is None else float(np.median(roster.members))
        least = None if roster is None else fewest_slots(plan) * int(roster.members.min()) / plan.histogram.size
        relative = None if least is None else count_error(plan) / least
        error = f"{median:.1%} of an evenly filled bin of a single series; more series in a group, less"
        if least is not None:
            of = " of the smallest class" if classes > 1 else ""
            error = f"{relative:.1%} of an evenly filled bin{of} ({number(least)} cells)"
        shared = f" ({plan.share} histograms share every slot, so sigma counts {plan.share} times)"
        kept = "; counts add up to the public total" + (" of each class" if classes > 1 else "")
        each = f"{scale:.4f} cells in each count{shared if plan.share > 1 else ''}"
        each += kept if plan.noise_law == FixedTotalHistogram.name else ""
        told = f"{calibration.method}, guarantee {plan.domain.guarantee}, epsilon {plan.epsilon:g}"
        quilt = f"from {'the start' if left is None else f'{left} slots back'} to " + (
            "the end" if right is None else f"{right} slots ahead"
        )
        cost = self.cost
        window = plan.domain.guarantee == "window"
        costs = cost["alone"] if window else cost["loss"]
        cheaper = f"{'each window ' if window else ''}calibrated to {plan.epsilon:g}, costs {costs:.4g}"
        cheaper += f"{' alone' if window else ''} in this account"
        origin = plan.model.provenance
        believed = "a STAND-IN: nothing says that it holds" if origin.stand_in else origin.text
        if not origin.stand_in and origin.odds is not None:
            believed = origin.source or "fitted on a history"
            believed += f"; covers a further series with probability about {origin.odds:.2f}"
        values = {
            "guarantee": plan.domain.guarantee, "epsilon": plan.epsilon, "sigma": calibration.sigma,
            "share": plan.share, "scale": scale, "noise_law": plan.noise_law, "by": plan.by, "classes": classes,
            "expected_error": most.noisy.mean_abs, "epsilon_dp": most.noisy.epsilon_dp,
            "certified": bool(calibration.certificates), "lower_bound": calibration.lower_bound,
            "cells_per_bin": least, "median_share": median,
        }  # fmt: skip
        return [
            Row("half_width_95", half, "noise",
                f"each count within {half:,} (95 %), {percent(half / (fewest_slots(plan) * members))} of a total"),
            Row("mechanism", calibration.method, "sigma", f"{told}: sigma {calibration.sigma:.4f}; scale {each}; "
                f"expected error {number(most.noisy.mean_abs)}", detail=True),
            Row("quilt", {"left": left, "right": right}, "quilt",
                None if left is right is None else f"{quilt}, influence {calibration.influence:.4g}", detail=True),
            Row("relative_error", relative, "per bin" if classes == 1 else "per cell", error, detail=True),
            Row("cost", cost, "", cheaper if costs < plan.epsilon * (1 - _SAME) else None, detail=True),
            Row("", None, "event", self._event(), detail=True),
            Row("belief", believed, "belief", believed),
            *starmap(Row, values.items()),
        ]  # fmt: skip

    @cached_property
    def cost(self) -> dict[str, Any]:
        """What the windows cost on an empty account."""
        ledger, charged = Ledger(belief_from_dict(self.plan.domain.belief)), self.charged
        return {
            "loss": ledger.extended_loss([charged]),  # of all windows together, for any single slot
            "alone": ledger.extended_loss([charged.first(1)]),  # of the first window alone
            # for some losses how many slots an event may have to stay within; None for any number
            "events": [(within, ledger.longest_event(within, [charged])) for within in _WITHIN],
        }

    def _event(self) -> str:
        """How long an event is protected, in words."""
        cost, interval = self.cost, self.plan.grid.interval_us
        slot = f"by this query alone any single slot ({said_duration(interval)}) loses at most {cost['loss']:.4g}"
        texts = [
            f"{'of any length' if most is None else f'up to {most:,} slots ({said_duration(most * interval)})'} within "
            f"{within:g}"
            for within, most in cost["events"]
            if most is None or most > 1
        ]
        return (
            f"{slot}; events {', '.join(texts)}" if texts else f"{slot}; no longer event stays within {_WITHIN[-1]:g}"
        )

    def left_to_data(self) -> tuple[str, ...]:
        """What the settings leave to the data, which takes it as public; of a live job no schedule."""
        left = {
            "windows.start": self.plan.schedule.start is None,
            "windows.stop": self.plan.schedule.stop is None and not self.live,
            "roster": self.plan.roster is None and constant_roster(self.settings) is None,
        }
        return tuple(name for name, open_ in left.items() if open_)

    def units(self) -> tuple[str, ...]:
        """Two units that differ, and nothing that turns one into the other."""
        readings, unit = self.settings.readings, self.settings.states.unit
        if readings is None or not readings.unit or not unit or readings.unit == unit or readings.scale != 1:
            return ()
        return (
            f"readings.unit is {readings.unit} and states.unit is {unit}, but readings.scale is 1: the values are "
            "counted as if they were in the unit of the edges; set readings.scale, or give both the same unit",
        )

    def cautions(self) -> tuple[str, ...]:
        """What to look at before a job runs: units, an end that makes no whole window, and one that is yet to come."""
        settings, schedule, grid, found = self.settings, self.plan.schedule, self.plan.grid, [*self.units()]
        if settings.same_values_as is not None:
            found.append(
                f"same_values_as: these readings are taken at your word for the values of query "
                f"{settings.same_values_as}, on record: where they are other values, what both queries tell together "
                "is in no account"
            )
        if schedule.start is None or schedule.stop is None:
            return tuple(found)
        stop = grid.time_of(schedule.covered.stop)
        if schedule.stop != schedule.covered.stop:
            rest, end = grid.time_of(schedule.stop) - stop, format_instant(stop)
            found.append(f"windows.stop: the last {format_duration(rest)} fill no window; the windows end at {end}")
            zone = settings.slots.timezone
            if zone != "UTC" and schedule.size * grid.interval_us % DAY_US == 0 and schedule.calendar is None:
                found[-1] += f"; days of {zone}, of 23 to 25 hours, are windows.size: day"
        days = (stop - time.time_ns() // 1_000) // DAY_US
        if days >= 1 and not self.live:
            found.append(
                f"windows.stop lies {plural(days, 'day')} ahead: this run publishes and charges the windows until then "
                "too, which are on record for ever as they are now, most likely without readings"
            )
        return tuple(found)

    def assumptions(self) -> Block:
        """What the promise rests on, one sentence each; without --all what is out of the ordinary alone."""
        plan, origin = self.plan, self.plan.model.provenance
        rule, _, gap = plan.domain.missing.partition(" ")
        found = [
            f"promise: {PROMISE}",
            HABITS,
            *(f"belief: {text}" for text in plan.calibration.assumptions),
            f"model: {origin.text}",
            _MISSING[rule].format(gap),
            "series are taken as independent of each other",
        ]
        if plan.space.categories and plan.space.other is None and rule != "state":
            found.append(
                "labels: a reading whose label is none of states.categories leaves its cell missing; which cells have "
                "such a label is taken as public too; states.other makes a state of them, and missing: state one of "
                "all missing"
            )
        given: tuple[str, ...] = ()
        if plan.roster is not None and plan.given_model(plan.roster):
            used = origin.used(plan.roster.series)
            what = "a file of this run, which may hold what it is to protect"
            what = f"{used:,} series that it is to protect" if used else what
            given = (
                f"the model was estimated from {what}: noise and loss hold only given the model, which is itself a "
                "function of their data",
            )
        return Block("assumptions", "What this rests on", (*found, *given), given)

    def of_history(self) -> tuple[str, ...]:
        """What the model tells of its history: exact statistics, for the operator alone."""
        origin = self.plan.model.provenance
        left_out = 0 if origin.odds is None else origin.series - round(origin.odds * (origin.series + 1))
        if not origin.outside or origin.outside <= left_out:  # the cover leaves so many out
            return ()
        return (
            f"{origin.outside} of the {origin.series} series the model was fitted on lie outside its belief by "
            "plug-in; the loss is not proved for such a series",
        )


_MISSING = {
    "public": "missing cells: which ones are missing is taken as public and independent of the states; a published "
    "total tells how many, those of rejected values included",
    "state": "missing cells: a missing cell is a state of its own, the last one",
    "break": "missing cells: a series is taken as independent of its past after a gap longer than {}, and which ones "
    "are missing as public; a published total tells how many, those of rejected values included",
}


def promise_text(loss: float, budget: float | None = None) -> str:
    """A loss, or a loss of a budget, as a promise."""
    of = "" if budget is None else f" of {budget:g}"
    return f"{loss:.4g}{of}: {odds(loss)} about one slot, to someone who knows the habits"


def silence_of(settings: Settings) -> str:
    """What silence of the source does to the windows of a live job, by ``live.idle``."""
    idle = settings.live.idle
    if idle is None:
        return "windows wait for a silent source, or a silent part of one, until its next reading: live.idle is not set"
    slot = format_duration(settings.grid.interval_us)
    short = f"; it is shorter than a slot of {slot}" if parse_duration(idle) < settings.grid.interval_us else ""
    return (
        f"windows wait {idle} for a silent source or part (live.idle), and come without it then: their rows say "
        f"silent, and what it sends of them later is late{short}"
    )
