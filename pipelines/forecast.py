"""What ``run`` will do and what it did, each as one table: of its lines JSON has the values and text the words.

Both say the same of a plan: which windows, how much noise, what it costs and what that rests on. Everything follows
from the settings, the model, the roster and the ledger, and no reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ..privacy.accounting.habits import HABITS, PROMISE
from ..privacy.accounting.ledger import Ledger
from ..privacy.accounting.quilt_account import loss_by_quilts
from ..privacy.accounting.schedules import Schedule
from ..privacy.analysis.methods import METHODS, by_quilts
from ..privacy.mechanisms.histogram import FixedTotalHistogram
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.model_file import Provenance
from ..schemas.roster import Roster
from ..schemas.settings.job import Settings
from ..schemas.slots import DAY_US, format_duration, format_instant, parse_duration, said_duration
from ..transforms.checks import count_error, error_shares, fewest_slots
from ..transforms.plan import Plan, constant_roster
from .console import facts, finite, heading, notes, number, odds, percent, plural
from .errors import ExitCode
from .released_series import day_of, named

#: Heading of exact statistics.
OPERATOR = "For the operator only, not to be published"

#: Losses for which the length of an event is printed.
_WITHIN = (1.0, 2.0, 4.0)

#: Two losses that differ by less are printed as one.
_SAME = 1e-3


class Line(NamedTuple):
    """One thing that is said."""

    name: str = ""  # of its value in JSON; empty where only text has it
    value: Any = None
    label: str = ""  # in the text, beside ``text``
    text: str | None = None  # None where only JSON has it
    every: bool = False  # whether the text has it with --all alone


class Block(NamedTuple):
    """Sentences under a heading, which JSON has as a list."""

    name: str
    title: str
    items: tuple[str, ...]
    shown: tuple[str, ...]  # those that the text has without --all
    print: Callable[[Console, Iterable[str]], None] = notes


@dataclass(frozen=True)
class Table:
    """What a command says, as JSON and as text."""

    title: str
    lines: tuple[Line, ...]
    blocks: tuple[Block, ...]
    code: ExitCode  # what the command ends with
    most: int  # lines of the text without --all

    def __getitem__(self, name: str) -> Any:
        """A value by its name in JSON."""
        return self.to_dict()[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form; a number without a bound is null."""
        found = {one.name: one.value for one in self.lines if one.name}
        return finite(found | {one.name: list(one.items) for one in self.blocks if one.name})

    def show(self, console: Console, *, every: bool = False) -> None:
        """Print the text, or all of it: of blocks that have no room the number of sentences is said."""
        used, left = 0, 0

        def put(draw: Callable[[], object], *, always: bool = False) -> None:
            nonlocal used, left
            with console.capture() as made:
                draw()
            if not (always or every) and used + made.get().count("\n") >= self.most:
                left += 1
                return
            console.file.write(made.get())
            used += made.get().count("\n")

        said = [(one.label, one.text) for one in self.lines if one.text is not None and (every or not one.every)]
        put(lambda: (heading(console, self.title), facts(console, said)), always=True)
        for block in self.blocks:
            for at, item in enumerate(block.items if every else block.shown):
                put(partial(_print, console, block, item, first=not at))
        if left:
            console.print(f"  {plural(left, 'more sentence')}: --all", style="dim")


def _print(console: Console, block: Block, item: str, *, first: bool) -> None:
    if first and block.title:
        heading(console, block.title)
    block.print(console, [item])


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of windows of a length."""

    slots: int  # of such a window
    length: str  # of it, as settings say durations
    sigma: float  # noise scale per unit of sensitivity
    scale: float  # scale of the noise in each count
    expected_error: float  # mean absolute error of a count, in cells
    half_width_95: int  # a count is within so many cells of the true one with probability 0.95

    @property
    def text(self) -> str:
        """It in words."""
        return (
            f"{self.slots:,} slots ({self.length}): scale {self.scale:.4f}, expected error "
            f"{number(self.expected_error)} cells, 95 % within {self.half_width_95:,}"
        )


def noises(plan: Plan) -> tuple[Noise, ...]:
    """The noise of each length that the windows of a plan have, by rising length."""
    made = [(slots, plan.of_length(slots)) for slots in plan.schedule.own_lengths]
    return tuple(
        Noise(slots, format_duration(slots * plan.grid.interval_us), one.calibration.sigma, float(one.scale),
              one.noisy.mean_abs, one.noisy.half_width(0.95))
        for slots, one in made
    )  # fmt: skip


def promise_text(loss: float, budget: float | None = None) -> str:
    """A loss, or a loss of a budget, as a promise."""
    of = "" if budget is None else f" of {budget:g}"
    return f"{loss:.4g}{of}: {odds(loss)} about one slot, to someone who knows the habits"


def of_noise(plan: Plan, roster: Roster | None, charged: Schedule) -> list[Line]:
    """What is said of noise, and of what the windows that are charged cost on an empty account."""
    every = noises(plan)
    most = max(every, key=lambda one: one.scale)
    by_length = every if len({one.scale for one in every}) > 1 else ()
    noisiest = plan.of_length(most.slots)
    calibration, certified = noisiest.calibration, bool(noisiest.calibration.certificates)
    believed, classes = belief_from_dict(plan.domain.belief), len(plan.classes)
    quilts = by_quilts(believed, plan.epsilon, calibration.length) if certified else {}
    median, members = float(np.median(error_shares(plan, roster))), 1.0 if roster is None else np.median(roster.members)
    least = None if roster is None else fewest_slots(plan) * int(roster.members.min()) / plan.histogram.size
    relative = None if least is None else count_error(plan) / least
    if least is None or relative is None:
        error = f"{median:.1%} of an evenly filled bin of a single series; more series in a group, less"
    else:
        where = "bin" if classes == 1 else "bin of the smallest class"
        error = f"{relative:.1%} of an evenly filled {where} ({number(least)} cells)"
    share = percent(most.half_width_95 / (fewest_slots(plan) * float(members)))
    shared = f" ({plan.share} histograms share every slot, so sigma counts {plan.share} times)"
    kept = "; counts add up to the public total" + (" of each class" if classes > 1 else "")
    scale = (
        f"{most.scale:.4f} cells in each count{shared if plan.share > 1 else ''}"
        f"{kept if plan.noise_law == FixedTotalHistogram.name else ''}"
    )
    sigma = f"{calibration.method}, guarantee {plan.domain.guarantee}, epsilon {plan.epsilon:g}: sigma {most.sigma:.4f}"
    ledger = Ledger(believed)
    loss, alone = ledger.extended_loss([charged]), ledger.extended_loss([charged.first(1)])
    events = [(within, ledger.longest_event(within, [charged])) for within in _WITHIN]
    cost = {
        "calibrated": plan.epsilon,  # what the noise was calibrated to: the stream, or each window alone
        "guarantee": plan.domain.guarantee,
        "loss": loss,  # of all windows together, for any single slot
        "quilts": loss_by_quilts(believed, [charged]),  # the same by the quilts alone, never less
        "alone": alone,  # of the first window alone
        "events": events,  # for some losses how many slots an event may have to stay within; None for any number
        "interval_us": plan.grid.interval_us,
    }
    window = plan.domain.guarantee == "window"
    said = f"{'each window ' if window else ''}calibrated to {plan.epsilon:g}, costs {alone if window else loss:.4g}"
    cheaper = (alone if window else loss) < plan.epsilon * (1 - _SAME)
    detail = partial(Line, every=True)
    found = [
        Line("half_width_95", most.half_width_95, "noise",
             f"each count within {most.half_width_95:,} (95 %), {share} of a total"),
        detail("mechanism", calibration.method, "sigma",
               f"{sigma}; {scale}; expected error {number(most.expected_error)}"),
        *(detail("", None, "" if at else "by length", one.text) for at, one in enumerate(by_length)),
        detail("quilt", {"left": calibration.quilt.left, "right": calibration.quilt.right}, "quilt", _quilt(noisiest)),
        detail("by_quilts", quilts, "by quilts",
               f"sigma by {', '.join(f'{one} {of:.1f}' for one, of in quilts.items())}" if quilts else None),
        detail("relative_error", relative, "per bin" if classes == 1 else "per cell", error),
        detail("cost", cost, "", f"{said}{' alone' if window else ''} in this account" if cheaper else None),
        detail("", None, "event", _protection(loss, events, plan.grid.interval_us)),
    ]  # fmt: skip
    values = {
        "guarantee": plan.domain.guarantee, "epsilon": plan.epsilon, "sigma": most.sigma, "share": plan.share,
        "scale": most.scale, "noise_law": plan.noise_law, "by": plan.by, "classes": classes,
        "expected_error": most.expected_error, "by_length": [asdict(one) for one in by_length],
        "epsilon_dp": noisiest.noisy.epsilon_dp, "certified": certified, "lower_bound": calibration.lower_bound,
        "cells_per_bin": least, "median_share": median,
    }  # fmt: skip
    return [*found, *starmap(Line, values.items())]


def _quilt(plan: Plan) -> str:
    """What the noise of a plan rests on, in words."""
    found, left, right = plan.calibration, plan.calibration.quilt.left, plan.calibration.quilt.right
    if found.method == METHODS["entry-dp"].label:
        return "none: a slot is hidden from itself only, and what its neighbours tell of it is in the loss below"
    if found.certificates:
        bounds, least = "none: a certificate of the forward-backward account bounds every slot", found.lower_bound
        return bounds + ("" if least is None else f"; below sigma {least:.4f} no such noise would do for every slot")
    if left is None and right is None:
        why = "" if found.method == "group-dp" else "the window is too short for one, so "
        return f"none: {why}the noise is that of group privacy over the whole window"
    back = "the start" if left is None else f"{left} slots back"
    ahead = "the end" if right is None else f"{right} slots ahead"
    return f"from {back} to {ahead}, influence {found.influence:.4g}"


def _protection(loss: float, events: list[tuple[float, int | None]], interval_us: int) -> str:
    """How long an event is protected, in words."""
    slot = f"by this query alone any single slot ({said_duration(interval_us)}) loses at most {loss:.4g}"
    texts = [
        f"{'of any length' if most is None else f'up to {most:,} slots ({said_duration(most * interval_us)})'} within "
        f"{within:g}"
        for within, most in events
        if most is None or most > 1
    ]
    return f"{slot}; events {', '.join(texts)}" if texts else f"{slot}; no longer event stays within {_WITHIN[-1]:g}"


def of_schedule(plan: Plan, roster: Roster | None, *, endless: bool) -> list[Line]:
    """What is said of the windows of a plan, by the clock of the settings, and of the histograms in each."""
    schedule, interval, zone = plan.schedule, plan.grid.interval_us, str(plan.domain.reading["timezone"])
    size, calendar = schedule.said_length(interval), schedule.calendar
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
        span = f"{begin}, without end" if last is None and endless else f"{begin} {end}"
    bins, classes = plan.histogram.size, len(plan.classes)
    counts = f"{bins} counts each"
    if classes > 1:
        counts = f"{classes * bins:,} counts each, for {classes} classes by {' and '.join(plan.by)}"
    histograms = "every series of the data"
    if roster is not None:
        fewest, largest = int(roster.members.min()), int(roster.members.max())
        series = f"{fewest:,} series" if fewest == largest else f"{fewest:,} to {largest:,} series"
        of = f" of {series}" if roster.kind == "group" else ""
        histograms = plural(len(roster.keys), f"{roster.kind} histogram") + of
    values = {
        "first": None if first is None else format_instant(first),
        "last": None if last is None else format_instant(last),
        "endless": endless,
        "size": size,
        "every": every,
        "slots": schedule.size,
        "zone": None if calendar is None else zone,
        "key_kind": None if roster is None else roster.kind,
        "keys": None if roster is None else len(roster.keys),
    }
    return [
        Line("windows", count, "publishes", f"{text}, {span}"),
        Line("labels", plan.histogram.labels, "", f"of {histograms}, {counts}"),
        *starmap(Line, values.items()),
    ]


def belief_text(origin: Provenance) -> str:
    """What a belief is of, and how likely it covers a further series."""
    if origin.stand_in:
        return "a STAND-IN: nothing says that it holds"
    if origin.odds is None:
        return origin.text
    return f"{origin.source or 'fitted on a history'}; covers a further series with probability about {origin.odds:.2f}"


def of_units(settings: Settings) -> tuple[str, ...]:
    """Two units that differ, and nothing that turns one into the other."""
    readings, unit = settings.readings, settings.states.unit
    if readings is None or not readings.unit or not unit or readings.unit == unit or readings.scale != 1:
        return ()
    return (
        f"readings.unit is {readings.unit} and states.unit is {unit}, but readings.scale is 1: the values are counted "
        "as if they were in the unit of the edges; set readings.scale, or give both the same unit",
    )


def cautions(settings: Settings, plan: Plan, *, endless: bool) -> tuple[str, ...]:
    """What to look at before a job runs: units, an end that makes no whole window, and one that is yet to come."""
    schedule, grid, found = plan.schedule, plan.grid, [*of_units(settings)]
    if settings.same_values_as is not None:
        found.append(
            f"same_values_as: these readings are taken at your word for the values of query {settings.same_values_as}, "
            "on record: where they are other values, what both queries tell together is in no account"
        )
    if schedule.start is None or schedule.stop is None:
        return tuple(found)
    stop = grid.time_of(schedule.covered.stop)
    if schedule.stop != schedule.covered.stop:
        rest, size = grid.time_of(schedule.stop) - stop, schedule.size * grid.interval_us
        found.append(
            f"windows.stop: the last {format_duration(rest)} fill no window; the windows end at {format_instant(stop)}"
        )
        zone = settings.slots.timezone
        if zone != "UTC" and size % DAY_US == 0 and schedule.calendar is None:
            found[-1] += f"; days of {zone}, of 23 to 25 hours, are windows.size: day"
    days = (stop - time.time_ns() // 1_000) // DAY_US
    if days >= 1 and not endless:
        found.append(
            f"windows.stop lies {plural(days, 'day')} ahead: this run publishes and charges the windows until then "
            "too, which are on record for ever as they are now, most likely without readings"
        )
    return tuple(found)


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


def left_to_data(plan: Plan, settings: Settings, *, live: bool = False) -> tuple[str, ...]:
    """What the settings leave to the data, which takes it as public; a live job's schedule is never left to them."""
    left = {
        "windows.start": plan.schedule.start is None,
        "windows.stop": plan.schedule.stop is None and not live,
        "roster": plan.roster is None and constant_roster(settings) is None,
    }
    return tuple(name for name, open_ in left.items() if open_)


_MISSING = {
    "public": "missing cells: which ones are missing is taken as public and independent of the states; a published "
    "total tells how many, those of rejected values included",
    "state": "missing cells: a missing cell is a state of its own, the last one",
    "break": "missing cells: a series is taken as independent of its past after a gap longer than {}, and which ones "
    "are missing as public; a published total tells how many, those of rejected values included",
}

#: What is said of a model of protected series.
_GIVEN = "hold only given the model"


def assumptions(plan: Plan) -> Block:
    """What the promise of a plan rests on, one sentence each; without --all what is out of the ordinary alone."""
    rule, _, gap = plan.domain.missing.partition(" ")
    origin = plan.model.provenance
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
            "labels: a reading whose label is none of states.categories leaves its cell missing; which cells have such "
            "a label is taken as public too; states.other makes a state of them, and missing: state one of all missing"
        )
    if plan.roster is not None and plan.given_model(plan.roster):
        used = origin.used(plan.roster.series)
        what = "a file of this run, which may hold what it is to protect"
        if used:
            what = f"{used:,} series that it is to protect"
        found.append(
            f"the model was estimated from {what}: noise and loss {_GIVEN}, which is itself a function of their data"
        )
    return Block("assumptions", "What this rests on", tuple(found), tuple(one for one in found if _GIVEN in one))


def of_history(plan: Plan) -> tuple[str, ...]:
    """What the model tells of its history: exact statistics, for the operator alone."""
    origin = plan.model.provenance
    left_out = 0 if origin.odds is None else origin.series - round(origin.odds * (origin.series + 1))
    if not origin.outside or origin.outside <= left_out:  # the cover leaves so many out
        return ()
    return (
        f"{origin.outside} of the {origin.series} series the model was fitted on lie outside its belief by plug-in; "
        "the loss is not proved for such a series",
    )
