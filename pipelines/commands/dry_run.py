"""``run --dry-run``: what a job will do and cost, and what of it is most likely not meant.

Everything follows from the settings, the model and the roster. The ledger of record is looked at, never changed.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...privacy.accounting.habits import HABITS, PROMISE
from ...privacy.accounting.ledger import Ledger
from ...privacy.accounting.quilt_account import loss_by_quilts
from ...privacy.accounting.schedules import Schedule
from ...privacy.analysis.methods import METHODS, by_quilts
from ...privacy.mechanisms.histogram import FixedTotalHistogram, HistogramMechanism
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.model_file import Provenance
from ...schemas.roster import Roster
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Accepted, Settings, read_settings
from ...schemas.slots import DAY_US, format_duration, format_instant, parse_duration, said_duration, time_zone
from ...store.accounts import priced
from ...store.errors import BudgetRefused, StoreError, enough_for
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.checks import (
    check_plan,
    count_error,
    covers_few,
    error_shares,
    fewest_slots,
    noise_problem,
    stand_in_text,
)
from ...transforms.formats.paths import is_local
from ...transforms.plan import Plan, constant_roster, make_plan
from ...transforms.registration import register
from ..connectors.job_io import check_apart, refuse_topics, sink_of
from ..console import facts, finite, heading, lines, notes, number, odds, percent, plural, print_json, results
from ..errors import CommandError, ExitCode, explain
from ..on_record import (
    OnRecord,
    ReplacedError,
    Standing,
    check_ledger,
    known_history,
    on_record,
    standing_of,
    with_newest,
)

#: Heading of exact statistics.
OPERATOR = "For the operator only, not to be published"

#: Losses for which the length of an event is printed.
_WITHIN = (1.0, 2.0, 4.0)

#: Two losses that differ by less are printed as one.
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class Cost:
    """What the windows of one query cost on an empty account."""

    calibrated: float  # epsilon that the noise was calibrated to: of the stream, or of each window alone
    guarantee: str  # ``stream`` or ``window``
    loss: float  # what all windows cost together, epsilon: the loss for any single slot
    quilts: float  # the same by the quilts alone, never less
    alone: float  # what the first window costs alone
    # for some losses how many slots an event may have to stay within; ``None`` for any number
    events: tuple[tuple[float, int | None], ...]
    interval_us: int  # length of a slot in microseconds

    @classmethod
    def of(cls, plan: Plan, charged: Schedule) -> Cost:
        """The cost of the windows that a plan charges."""
        believed = belief_from_dict(plan.domain.belief)
        ledger = Ledger(believed)
        return cls(
            plan.epsilon,
            plan.domain.guarantee,
            ledger.extended_loss([charged]),
            loss_by_quilts(believed, [charged]),
            ledger.extended_loss([charged.first(1)]),
            tuple((within, ledger.longest_event(within, [charged])) for within in _WITHIN),
            plan.grid.interval_us,
        )

    @property
    def calibration(self) -> str | None:
        """Both numbers in words; ``None`` where they are one."""
        window = self.guarantee == "window"
        cost = self.alone if window else self.loss
        if cost >= self.calibrated * (1 - _SAME):
            return None
        which, what = ("each window ", " alone") if window else ("", "")
        return f"{which}calibrated to {self.calibrated:g}, costs {cost:.4g}{what} in this account"

    @property
    def protection(self) -> str:
        """How long an event is protected, in words."""
        slot = f"by this query alone any single slot ({self._duration(1)}) loses at most {self.loss:.4g}"
        lengths = [(f"{within:g}", most) for within, most in self.events if most is None or most > 1]
        if not lengths:
            return f"{slot}; no longer event stays within {_WITHIN[-1]:g}"
        texts = [
            f"{'of any length' if most is None else f'up to {most:,} slots ({self._duration(most)})'} within {within}"
            for within, most in lengths
        ]
        return f"{slot}; events {', '.join(texts)}"

    def _duration(self, slots: int) -> str:
        return said_duration(slots * self.interval_us)


def of_units(settings: Settings) -> tuple[str, ...]:
    """Two units that differ, and nothing that turns one into the other."""
    readings, unit = settings.readings, settings.states.unit
    if readings is None or not readings.unit or not unit or readings.unit == unit or readings.scale != 1:
        return ()
    return (
        f"readings.unit is {readings.unit} and states.unit is {unit}, but readings.scale is 1: the values are counted "
        "as if they were in the unit of the edges; set readings.scale, or give both the same unit",
    )


def cautions(settings: Settings, plan: Plan, *, endless: bool, now_us: int | None = None) -> tuple[str, ...]:
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
    days = (stop - (time.time_ns() // 1_000 if now_us is None else now_us)) // DAY_US
    if days >= 1 and not endless:
        found.append(
            f"windows.stop lies {plural(days, 'day')} ahead: this run publishes and charges the windows until then "
            "too, which are on record for ever as they are now, most likely without readings"
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Course:
    """What ``run`` will do, by the settings and the ledger as they are now."""

    code: ExitCode | None  # its exit code, with which the dry run ends, too; ``None`` where that depends on data
    text: str
    more: str = ""  # what becomes of a history that was lost, or what was not looked at

    @classmethod
    def stopped(cls, by: BaseException | str) -> Course:
        """A run that stops before its first charge: by an error, or for want of words of the operator."""
        if isinstance(by, str):
            return cls(ExitCode.SETTINGS, f"{_STOPS}, unless it is run with {by}")
        failure = explain(by)
        return cls(failure.code, f"{_STOPS}: {failure.text}")

    def __str__(self) -> str:
        code = "" if self.code is None else f" (exit code {self.code.value})"
        return f"{self.text}{code}" + (f"; {self.more}" if self.more else "")


_STOPS = "it stops before anything is charged"


def course_of(
    settings: Settings,
    plan: Plan,
    roster: Roster | None,
    account: Standing,
    admitted: int | None,
    *,
    live: bool,
    hopeless: bool,
    history_lost: bool,
    accepted: Accepted,
) -> Course:
    """Find out what a run will do, by trying its registration in the ledger that is there; nothing is put on record."""
    before = on_record(plan.address, plan.domain.name, plan.query_name)
    noise = hopeless and before.registration is None and not accepted.noise
    stand_in = plan.stand_in and not accepted.stand_in
    cover = covers_few(plan) and not accepted.cover
    needed = {"--accept-noise": noise, "--accept-stand-in": stand_in, "--accept-cover": cover}
    words = [word for word, one in needed.items() if one]
    if words:
        return Course.stopped(" and ".join(words))
    try:
        sink_of(settings, live=live)
        look = _look_for_lost(settings, live=live, history_lost=history_lost)
        check_ledger(plan.address, undone=True)
    except (CommandError, SettingsError, StoreError) as error:
        return Course.stopped(error)
    try:
        found = _course(plan, roster, account, admitted, before, live=live)
    except BudgetRefused as error:
        found = Course(ExitCode.REFUSED, f"nothing is published: {error}")
    except StoreError as error:
        found = Course.stopped(error)
    return replace(found, more=look)


def _look_for_lost(settings: Settings, *, live: bool, history_lost: bool) -> str:
    """See that the ledger is the one that the job knew, as a run does, and say what was not looked at.

    Raises:
        ReplacedError: it is gone, another one, or an older copy, and not said to be lost.
        CommandError, SettingsError: the sink cannot be read, or is not one of this query.
    """
    look, ids = "", list[str]()
    try:
        with with_newest(settings):
            if settings.sink is not None and live:
                look = "the run also compares the sink with the ledger, which a dry run of a live job does not"
            elif any(_may_be_there(settings, one.path) for one in (settings.sink, settings.rejects) if one is not None):
                from ..connectors.files import check_rejects, released_ids  # noqa: PLC0415 - with Beam, see dry

                check_rejects(settings)
                ids = released_ids(settings)
            known_history(settings, ids)
    except ReplacedError:
        if not history_lost:
            raise
        look = "it goes on without the history that was lost (--history-lost), and marks the account for ever"
    return look


def _may_be_there(settings: Settings, path: str) -> bool:
    return not is_local(path := settings.path(path)) or os.path.lexists(path)


def _course(
    plan: Plan, roster: Roster | None, account: Standing, admitted: int | None, before: OnRecord, *, live: bool
) -> Course:
    """What follows from the ledger as it is; a run stops by the errors of the store."""
    left = not (live or plan.resolved or before.registration is not None)
    if not account.exists and admitted == 0:
        return _published(0, admitted)  # whatever the data say
    if left:
        if account.exists and roster is not None:
            _check_apart(plan, roster)
        return Course(None, "the schedule or the roster comes from the data: known once they are read")
    if account.exists:
        return _course_of_record(register(plan, trial=True), len(before.complete))
    if plan.schedule.stop is None and not live:
        return Course(None, "how many windows there are comes from the data: known once they are read")
    return _published(0, admitted)


def _check_apart(plan: Plan, roster: Roster) -> None:
    """Refuse series of a roster whose windows are not known yet, as a registration would."""
    with Store(plan.address) as store:
        store.check_apart(plan.domain, roster.series)


def _course_of_record(made: Registration, complete: int) -> Course:
    schedule, stop = made.query.schedule, made.admitted_stop
    if schedule.stop is None:
        return Course(None, "it publishes each window when it closes, as far as the budget allows it")
    if complete == len(schedule):
        return Course(ExitCode.OK, "nothing is charged: every window is on record, and the same rows come out")
    return _published(complete, None if stop is None else schedule.ended_by(stop))


def _published(complete: int, admitted: int | None) -> Course:
    done = f"; {plural(complete, 'window')} on record stay as they are" if complete else ""
    if admitted is None:
        return Course(ExitCode.OK, f"it publishes every window{done}")
    if not admitted:
        return Course(ExitCode.REFUSED, "nothing is published: the budget does not allow even the first window")
    text = f"it publishes the first {plural(admitted, 'window')}, and the rest is refused for ever{done}"
    return Course(ExitCode.REFUSED, text)


@dataclass(frozen=True, slots=True)
class NoiseOfLength:
    """The noise of windows of a length."""

    slots: int  # of such a window
    length: str  # of it, as settings say durations
    sigma: float  # noise scale per unit of sensitivity
    scale: float  # scale of the noise in each count
    expected_error: float  # mean absolute error of a count, in cells
    half_width_95: int  # a count is within so many cells of the true one with probability 0.95

    @classmethod
    def of(cls, slots: int, interval_us: int, noise: tuple[float, Fraction, HistogramMechanism]) -> NoiseOfLength:
        """That of windows with so many slots: sigma, exact scale and mechanism."""
        sigma, scale, noisy = noise
        length = format_duration(slots * interval_us)
        return cls(slots, length, sigma, float(scale), noisy.mean_abs, noisy.half_width(0.95))

    @classmethod
    def planned(cls, plan: Plan) -> tuple[NoiseOfLength, ...]:
        """The noise of each length that the windows of a plan have, by rising length; nothing where all are alike."""
        made = [(slots, plan.of_length(slots)) for slots in plan.schedule.own_lengths]
        if len({own.scale for _, own in made}) == 1:
            return ()
        return tuple(
            cls.of(slots, plan.grid.interval_us, (own.calibration.sigma, own.scale, own.noisy)) for slots, own in made
        )

    @classmethod
    def recorded(cls, plan: Plan, held: Registration) -> tuple[NoiseOfLength, ...]:
        """The same of a query of record."""
        if not held.query.lengths:
            return ()
        made = [(slots, held.query.of_length(slots)) for slots in held.query.schedule.own_lengths]
        return tuple(
            cls.of(slots, plan.grid.interval_us, (own.header["sigma"], own.scale, plan.histogram_of(held, slots)))
            for slots, own in made
        )

    @property
    def text(self) -> str:
        """It in words."""
        return (
            f"{self.slots:,} slots ({self.length}): scale {self.scale:.4f}, expected error "
            f"{number(self.expected_error)} cells, 95 % within {self.half_width_95:,}"
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a schedule."""

    windows: int | None  # number of windows; ``None`` where an end is not known yet
    first: str | None  # start of the first window, ISO 8601; ``None`` likewise
    last: str | None  # end of the last window
    endless: bool  # whether the source goes on, so that a schedule without a last window never ends
    size: str  # length of a window; ``day``, ``week`` or ``month`` where windows are those of the calendar
    every: str  # from one window's start to the next
    slots: int  # slots in a window; of the calendar, in the longest one
    lengths: tuple[int, int]  # fewest and most slots in the windows of the schedule
    zone: str | None  # whose calendar the windows are of; ``None`` for windows of one length

    @classmethod
    def of(cls, plan: Plan, *, endless: bool) -> Windows:
        """Those of a plan."""
        schedule, grid = plan.schedule, plan.grid
        size = schedule.said_length(grid.interval_us)
        return cls(
            windows=len(schedule) if schedule.bounded else None,
            first=None if schedule.start is None else format_instant(grid.time_of(schedule.first)),
            last=format_instant(grid.time_of(schedule.covered.stop)) if schedule.bounded else None,
            endless=endless,
            size=size,
            every=size if schedule.calendar is not None else format_duration(schedule.every * grid.interval_us),
            slots=schedule.size,
            lengths=(schedule.own_lengths[0], schedule.own_lengths[-1]),
            zone=None if schedule.calendar is None else schedule.calendar.timezone,
        )

    @property
    def text(self) -> str:
        """How many there are, and how long they are, in words."""
        least, most = self.lengths
        slots = f"{least:,} slots" if least == most else f"{least:,} to {most:,} slots"
        if self.zone is not None:
            windows = f"{self.size}s" if self.windows is None else plural(self.windows, self.size)
            return f"{windows} of {self.zone} ({slots})"
        windows = "windows" if self.windows is None else plural(self.windows, "window")
        step = "" if self.every == self.size else f", one every {self.every}"
        return f"{windows} of {self.size} ({slots}){step}"

    @property
    def span(self) -> str:
        """From when to when they go, in words."""
        first, last = (_on_clock(one, self.zone) for one in (self.first, self.last))
        if last is None and self.endless:
            return f"{first or 'from the first reading'}, without end"
        return f"{first or 'from the first reading'} to {last or 'the last reading'}"


def _on_clock(instant: str | None, zone: str | None) -> str | None:
    """An instant as the clock of a calendar shows it; its day alone where it is a midnight."""
    if instant is None:
        return None
    at = dt.datetime.fromisoformat(instant)
    at = at if zone is None else at.astimezone(time_zone(zone))
    return at.date().isoformat() if at.time() == dt.time() else at.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of the windows that need most, and the classes of slots that have a histogram each."""

    mechanism: str  # how the noise is calibrated
    guarantee: str  # ``stream`` or ``window``
    epsilon: float  # target of the query
    sigma: float  # noise scale per unit of sensitivity that the calibration gives
    share: int  # how many histograms share that density in a slot; the noise grows by this factor
    quilt: dict[str, int | None]  # the quilt that decides
    influence: float
    scale: float  # scale of the noise in each count
    noise_law: str  # the law of the noise, as the rows name it
    by: tuple[str, ...]  # what tells the classes of slots apart that have a histogram each
    classes: int  # how many classes there are; 1 where there are none
    expected_error: float  # mean absolute error of a count, in cells
    half_width_95: int  # a count is within so many cells of the true one with probability 0.95, in cells
    # the noise of each length that windows of the schedule have; empty where all have the same
    by_length: tuple[NoiseOfLength, ...]
    epsilon_dp: float  # loss per slot of one histogram
    certified: bool  # whether it rests on a certificate of the forward-backward account
    # a sigma below which raw counts of an endless stream lose more than epsilon; None if not known
    lower_bound: float | None
    # sigma that mqm-exact and mqm-approx would need for the same belief, where they have an answer and the noise is of
    # another account
    by_quilts: dict[str, float]

    @classmethod
    def of(cls, plan: Plan) -> Noise:
        """That of a plan."""
        noisiest = max((plan.of_length(slots) for slots in plan.schedule.own_lengths), key=lambda one: one.scale)
        calibration, noisy, certified = noisiest.calibration, noisiest.noisy, bool(noisiest.calibration.certificates)
        believed = belief_from_dict(plan.domain.belief)
        return cls(
            mechanism=calibration.method,
            guarantee=plan.domain.guarantee,
            epsilon=plan.epsilon,
            sigma=calibration.sigma,
            share=plan.share,
            quilt={"left": calibration.quilt.left, "right": calibration.quilt.right},
            influence=calibration.influence,
            scale=float(noisiest.scale),
            noise_law=plan.noise_law,
            by=plan.by,
            classes=len(plan.classes),
            expected_error=noisy.mean_abs,
            half_width_95=noisy.half_width(0.95),
            by_length=NoiseOfLength.planned(plan),
            epsilon_dp=noisy.epsilon_dp,
            certified=certified,
            lower_bound=calibration.lower_bound,
            by_quilts=by_quilts(believed, plan.epsilon, calibration.length) if certified else {},
        )

    @property
    def text(self) -> str:
        """It in words, but for what it rests on."""
        return f"{self.mechanism}, guarantee {self.guarantee}, epsilon {self.epsilon:g}: sigma {self.sigma:.4f}"

    @property
    def scale_text(self) -> str:
        """Its scale in words, with why it is larger than sigma says, and what its law keeps."""
        text = f"{self.scale:.4f} cells in each count"
        if self.share != 1:
            text += f" ({self.share} histograms share every slot, so sigma counts {self.share} times)"
        if self.noise_law == FixedTotalHistogram.name:
            text += "; counts add up to the public total" + ("" if self.classes == 1 else " of each class")
        return text

    @property
    def quilt_text(self) -> str:
        """What it rests on, in words."""
        left, right = self.quilt["left"], self.quilt["right"]
        if self.mechanism == METHODS["entry-dp"].label:
            return "none: a slot is hidden from itself only, and what its neighbours tell of it is in the loss below"
        if self.certified:
            least = ""
            if self.lower_bound is not None:
                least = f"; below sigma {self.lower_bound:.4f} no such noise would do for counts of every slot"
            return f"none: a certificate of the forward-backward account bounds every slot{least}"
        if left is None and right is None:
            why = "" if self.mechanism == "group-dp" else "the window is too short for one, so "
            return f"none: {why}the noise is that of group privacy over the whole window"
        back = "the start" if left is None else f"{left} slots back"
        ahead = "the end" if right is None else f"{right} slots ahead"
        return f"from {back} to {ahead}, influence {self.influence:.4g}"


@dataclass(frozen=True, slots=True)
class Histograms:
    """The histograms of each window, and how large the expected error is in them."""

    key_kind: str | None  # ``series`` or ``group``; ``None`` while the roster comes from the data
    keys: int | None  # histograms per window
    members: tuple[int, int] | None  # fewest and most series in a histogram
    # cells of the smallest histogram, of the class with the fewest slots in a window, divided by the states;
    # ``None`` without a roster
    cells_per_bin: float | None
    relative_error: float | None  # expected error over that number
    # expected error over an evenly filled bin, median of the histograms; of a single series' where no roster is known
    median_share: float

    @classmethod
    def of(cls, plan: Plan, roster: Roster | None) -> Histograms:
        """Those of a plan, for a roster if one is known."""
        share = float(np.median(error_shares(plan, roster)))
        if roster is None:
            return cls(None, None, None, None, None, share)
        least, most = int(roster.members.min()), int(roster.members.max())
        cells = fewest_slots(plan) * least / plan.histogram.size
        return cls(roster.kind, len(roster.keys), (least, most), cells, count_error(plan) / cells, share)

    @property
    def text(self) -> str:
        """How many there are, and of whom, in words."""
        if self.keys is None or self.members is None:
            return "every series of the data"
        least, most = self.members
        series = f"{least:,} series" if least == most else f"{least:,} to {most:,} series"
        return plural(self.keys, f"{self.key_kind} histogram") + (f" of {series}" if self.key_kind == "group" else "")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What ``run`` would do.

    As plain JSON, the windows, the histograms and the noise are not apart from the rest.
    """

    query: str  # the query's name
    domain: str  # the domain's name
    labels: tuple[str, ...]
    schedule: Windows
    histograms: Histograms
    noise: Noise
    cost: Cost  # what all windows cost, what the noise was calibrated to, and how long an event is protected
    # how much the noise is, and what would help, one line each; empty where the error is within ``most_error``
    hopeless: tuple[str, ...]
    # what is to be done about a belief that is a stand-in, one line each; empty where it is none
    stand_in: tuple[str, ...]
    belief: str  # where it comes from, and with what odds it covers a further series
    run: Course  # what ``run`` will do without another word, with its exit code, as far as that is known
    naive_loss: float | None  # the windows' epsilons added up, as if nothing were known about composition
    budget: float  # on record, or that of the settings where none is
    set_budget: float  # that of the settings
    account: Standing  # what is on record already
    admitted: int | None  # number of windows the budget allows on an empty account; ``None`` for all of them
    from_data: tuple[str, ...]  # what is left to the data
    assumptions: tuple[str, ...]  # what the promise rests on
    of_history: tuple[str, ...]  # what the model tells of its history, not to be published
    cautions: tuple[str, ...]  # what is allowed and most likely not meant
    silence: str | None  # what a source that sends nothing does to windows; ``None`` where all readings are there

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form; a loss without a bound is null, and what is for the operator only in ``operator_only``."""
        found: dict[str, Any] = {"schedule_loss": self.cost.loss}
        for name, value in asdict(self).items():
            found |= value if name in ("schedule", "histograms", "noise") else {name: value}
        return finite(found | {"operator_only": {"of_history": found.pop("of_history")}})


def forecast(
    settings: Settings,
    plan: Plan,
    *,
    live: bool = False,
    history_lost: bool = False,
    accepted: Accepted = Accepted(),  # noqa: B008 - a frozen value
) -> Forecast:
    """Say what a job will do, with the words of the operator."""
    endless = live or goes_on(settings)
    roster = constant_roster(settings) if plan.roster is None else plan.roster
    charged = _charged(plan, 1 if roster is None else roster.multiplicity)
    account = standing_of(plan, roster)
    budget = plan.domain.budget if account.budget is None else account.budget
    stop = Ledger(belief_from_dict(plan.domain.belief), budget).admitted_prefix(charged)
    admitted = None if stop is None else replace(charged, stop=stop).windows
    hopeless = noise_problem(plan)
    return Forecast(
        query=plan.query_name,
        domain=plan.domain.name,
        labels=plan.histogram.labels,
        schedule=Windows.of(plan, endless=endless),
        histograms=Histograms.of(plan, roster),
        noise=Noise.of(plan),
        cost=Cost.of(plan, charged),
        hopeless=hopeless,
        stand_in=stand_in_text(plan) if plan.stand_in else (),
        belief=belief_text(plan.model.provenance),
        run=course_of(
            settings,
            plan,
            roster,
            account,
            admitted,
            live=endless,
            hopeless=bool(hopeless),
            history_lost=history_lost,
            accepted=accepted,
        ),
        naive_loss=len(plan.schedule) * plan.epsilon if plan.schedule.bounded else None,
        budget=budget,
        set_budget=plan.domain.budget,
        account=account,
        admitted=admitted,
        from_data=left_to_data(plan, settings, live=endless),
        assumptions=assumptions(plan),
        of_history=of_history(plan),
        cautions=(*(one.text for one in account.shares), *cautions(settings, plan, endless=endless)),
        silence=silence_of(settings) if endless else None,
    )


def _charged(plan: Plan, most: int) -> Schedule:
    """The windows of a plan as the account prices them, where a cell counts in so many histograms of each at most."""
    schedule = plan.schedule
    if schedule.start is not None:
        return priced(schedule, plan.losses(most))
    density = max(plan.of_length(slots).noisy.epsilon_dp for slots in schedule.own_lengths) * most
    return Schedule(schedule.size, schedule.every, start=0, stop=None, epsilon_dp=density)


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


def goes_on(settings: Settings) -> bool:
    """Whether a source can only be followed, because it has no end."""
    source = settings.source
    return source is not None and (source.broker is not None or source.stdin is not None)


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
GIVEN = "hold only given the model"


def assumptions(plan: Plan) -> tuple[str, ...]:
    """What the promise of a plan rests on, one sentence each."""
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
            f"the model was estimated from {what}: noise and loss {GIVEN}, which is itself a function of their data"
        )
    return tuple(found)


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


def show(console: Console, said: Forecast, *, every: bool = False) -> None:
    """Print a forecast, or with every number of it."""
    noise, found = said.noise, said.histograms
    heading(console, f"{said.query} over {said.domain}: nothing was read, nothing is charged")
    share = percent(noise.half_width_95 * found.median_share / noise.expected_error / len(said.labels))
    loss = f"epsilon {said.cost.loss:.4g}: {odds(said.cost.loss)} about one slot, to someone who knows the habits"
    details = [
        ("sigma", f"{noise.text}; {noise.scale_text}; expected error {number(noise.expected_error)}"),
        *(("" if at else "by length", one.text) for at, one in enumerate(noise.by_length)),
        ("quilt", noise.quilt_text),
        *(
            [("by quilts", f"sigma by {', '.join(f'{one} {of:.1f}' for one, of in noise.by_quilts.items())}")]
            * bool(noise.by_quilts)
        ),
        ("per bin" if noise.classes == 1 else "per cell", _relative(said)),
        ("loss", f"{said.cost.loss:.9g} for the whole schedule; {_naive(said)}"),
        *([] if said.cost.calibration is None else [("", said.cost.calibration)]),
        ("event", said.cost.protection),
    ]
    facts(
        console,
        [
            ("publishes", f"{said.schedule.text}, {said.schedule.span}"),
            ("", f"of {found.text}, {_counts(said)}"),
            ("noise", f"each count within {noise.half_width_95:,} (95 %), {share} of a total"),
            *(details if every else []),
            ("promise", loss),
            ("belief", "a STAND-IN: nothing says that it holds" if said.stand_in else said.belief),
            ("budget", _budget(said)),
            *([("ledger", said.account.text)] if every or said.account.exists else []),
            *([] if said.silence is None else [("silence", said.silence)]),
            ("run", str(said.run)),
        ],
    )  # fmt: skip
    if said.hopeless:
        heading(console, "THE NOISE DROWNS THE COUNTS; the error of a bin that each of these leaves")
        lines(console, said.hopeless if every else said.hopeless[1:-1])
    if said.stand_in and (every or not said.hopeless):
        heading(console, "THE BELIEF IS A STAND-IN")
        lines(console, said.stand_in[0 if every else 1 :])
    if said.cautions:
        heading(console, "Look at this first")
        notes(console, said.cautions)
    rests = [one for one in said.assumptions if every or GIVEN in one]
    if rests:
        heading(console, "What this rests on")
        notes(console, rests)
    if said.from_data:
        frozen = "as public, window by window" if said.schedule.endless else "as public, and frozen by the first run"
        notes(console, [f"{', '.join(said.from_data)}: left out, so taken from the data, {frozen}"])
    if said.of_history:
        heading(console, OPERATOR)
        notes(console, said.of_history)


def belief_text(origin: Provenance) -> str:
    """What a belief is of, and how likely it covers a further series."""
    if origin.odds is None:
        return origin.text
    return f"{origin.source or 'fitted on a history'}; covers a further series with odds of about {origin.odds:.2f}"


def _counts(said: Forecast) -> str:
    classes = said.noise.classes
    if classes == 1:
        return f"{len(said.labels)} counts each"
    by = " and ".join(said.noise.by)
    return f"{classes * len(said.labels):,} counts each, for {classes} classes by {by}"


def _relative(said: Forecast) -> str:
    found = said.histograms
    if found.cells_per_bin is None or found.relative_error is None:
        return f"{found.median_share:.1%} of an evenly filled bin of a single series; more series in a group, less"
    where = "bin" if said.noise.classes == 1 else "bin of the smallest class"
    return f"{found.relative_error:.1%} of an evenly filled {where} ({number(found.cells_per_bin)} cells)"


def _naive(said: Forecast) -> str:
    return "naive adding never ends" if said.naive_loss is None else f"naive adding says {said.naive_loss:g}"


def _budget(said: Forecast) -> str:
    alone = ", on an empty account," if said.account.budget is not None else ""
    budget = f"{said.budget:g}"
    if said.budget != said.set_budget:
        budget += f" on record, {said.set_budget:g} in the settings"
    if said.admitted is None:
        return f"{budget}: it allows{alone} the whole schedule"
    if not said.admitted:
        alone, enough = said.cost.alone, ""
        if math.isfinite(alone):
            enough = f", which costs {alone:.4g}; raise privacy.budget to at least {enough_for(alone)}, or"
        return (
            f"{budget}: it does not allow even the first window{enough or ';'} lower privacy.epsilon, which "
            "adds noise: the run will be refused"
        )
    return f"{budget}: it allows{alone} the first {plural(said.admitted, 'window')} only; the rest will be refused"


def dry(
    path: Path,
    *,
    as_json: bool,
    every: bool = False,
    live: bool = False,
    history_lost: bool = False,
    accepted: Accepted = Accepted(),  # noqa: B008 - a frozen value
) -> int:
    """Say what a settings file would do, in a live run or in one that ends; return the exit code of that run.

    Where that depends on data it is 0.

    Beam is imported only where a model is estimated: it takes as long as all the rest.
    """
    settings = read_settings(path).accepting(
        Accepted(noise=True, stand_in=True, cover=True)
    )  # it says what a run would
    check_apart(settings)
    if not (live or goes_on(settings)):
        refuse_topics(settings)
    elif settings.source is not None and settings.source.broker is None and settings.readings is not None:
        settings.readings.check_followed()
    estimate = settings.estimate
    if estimate is None:
        plan = make_plan(settings)
    else:
        from ..estimation import estimated_plan  # noqa: PLC0415 - with Beam, as said above
        from ..preflight import Word  # noqa: PLC0415 - likewise

        plan = estimated_plan(settings, estimate, None, Word())
    check_plan(plan, live=live or goes_on(settings))
    said = forecast(settings, plan, live=live, history_lost=history_lost, accepted=accepted)
    if estimate is not None and plan.estimated is None:
        counting = (
            f"model.estimate: the run counts first, which costs {estimate.epsilon:g} more, and estimates its model"
        )
        still = f"{counting}; noise and loss are said here for model.estimate.start"
        said = replace(said, cautions=(*said.cautions, still))
    if as_json:
        print_json(said.to_dict())
    else:
        show(results(), said, every=every)
    return ExitCode.OK if said.run.code is None else said.run.code
