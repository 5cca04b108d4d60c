"""``quiltstream plan``: what a purpose comes to under a model, from settings or a model file alone.

No data are read, no ledger is opened, and nothing is charged. The numbers are those of
:mod:`quiltstream.privacy.analysis.planning`; here are its input and its text.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...privacy.accounting.habits import lifetime_sigma
from ...privacy.analysis.methods import METHODS
from ...privacy.analysis.planning import Purpose, Utility, analyse_utility, error_tables, mechanism_table, percent
from ...privacy.models.belief import Belief
from ...privacy.models.markov_chain import MarkovChain
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.validation import rounded_up
from ...schemas.model_file import Model
from ...schemas.settings.job import Accepted, read_settings
from ...schemas.slots import DAY_US, format_duration, said_duration
from ...schemas.states import StateSpace
from ...transforms.checks import class_share, stand_in_text
from ...transforms.plan import make_plan
from ..console import facts, finite, heading, lines, notes, odds, plural, print_json, results, working
from ..errors import CommandError


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line gives; ``None`` and empty for what the settings, or the defaults, say."""

    window: int | None = None  # microseconds
    group: int | None = None  # series in the smallest group
    epsilon: float | None = None
    error: float = 0.05  # wanted error, as a share
    mechanism: str | None = None
    windows: tuple[int, ...] = ()  # lengths of the table, microseconds
    groups: tuple[int, ...] = ()
    epsilons: tuple[float, ...] = ()
    lifetime: int | None = None  # how long anything is released about a series, microseconds


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned: a model with its slots and states, and the purpose."""

    name: str  # for the heading
    model: Model
    interval_us: int  # length of a slot in microseconds
    space: StateSpace
    purpose: Purpose
    stand_in: tuple[str, ...] = ()  # what is to be done about a belief that is a stand-in; empty where it is none
    mechanism: str | None = None  # that of the settings
    notes: tuple[str, ...] = ()  # what was assumed of the purpose

    @property
    def belief(self) -> Belief:
        """What is believed about every series."""
        return belief_from_dict(self.model.belief)

    def duration(self, slots: int) -> str:
        """So many slots, as settings say durations."""
        return format_duration(slots * self.interval_us)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The noise of a finite life, for someone who knows no more than the chains of the history."""

    length: str
    slots: int
    epsilon: float
    proved: float  # sigma at which everything released in that time loses at most epsilon
    least: float  # sigma below which counts of every slot lose more

    @property
    def text(self) -> str:
        """It in words."""
        return (
            f"for {self.length} in all and epsilon {self.epsilon:g}, sigma {self.proved:.4g} is proved against "
            "someone who knows the history's chains, not which of them a series follows; below sigma "
            f"{self.least:.4g} counts of every slot would lose more. It grows with the time; with more series in a "
            "group the counts grow and sigma does not"
        )


def plan(settings: Path | None, model: Path | None, options: Options, *, as_json: bool, every: bool) -> None:
    """Plan and print."""
    if (settings is None) == (model is None):
        raise CommandError("plan takes either a settings file or --model FILE: give one of them")
    subject = of_settings(settings, options) if settings is not None else of_model(model or Path(), options)
    bounds = subject.model.bounds
    with working("calibrating"):
        beside = None if bounds is None else belief_from_dict(bounds)
        found = analyse_utility(subject.belief, subject.purpose, beside)
    life = None if options.lifetime is None else lifetime(subject, options.lifetime)
    if as_json:
        said = {
            "subject": subject.name,
            "slot_seconds": subject.interval_us / 1e6,
            "labels": list(subject.space.labels),
            "stand_in": subject.stand_in,
            "notes": list(subject.notes),
            **({} if life is None else {"lifetime": asdict(life)}),
        }
        print_json(finite({**asdict(found), **said}))
        return
    show(results(), subject, found, life, every=every)


def of_settings(path: Path, options: Options) -> Subject:
    """What a settings file plans, with what the command line changes."""
    # it says what a run would, also where a run would stop
    settings = read_settings(path).accepting(Accepted(noise=True, stand_in=True, cover=True))
    made, budget = make_plan(settings), settings.privacy.budget
    roster, schedule, interval = made.roster, made.schedule, made.grid.interval_us
    window = schedule.size if options.window is None else _slots("--window", options.window, interval)
    if window % schedule.overlap:
        raise CommandError(
            f"--window is {format_duration(window * interval)}, but {schedule.overlap} windows of the settings share a "
            f"slot: give a multiple of {format_duration(schedule.overlap * interval)}, or change windows.every"
        )
    if options.epsilon is not None and budget is not None and options.epsilon > budget:
        raise CommandError(
            f"--epsilon is {options.epsilon:g}, above privacy.budget {budget:g} of {path}: no plan raises it; raise it "
            "there, or plan a smaller epsilon"
        )
    purpose = _purpose(
        options,
        interval,
        window=window,
        group=1 if roster is None or not roster.entries else int(roster.members.min()),
        bins=made.histogram.size,
        epsilon=made.epsilon,
        guarantee=made.domain.guarantee,
        overlap=schedule.overlap,
        multiplicity=1 if roster is None else roster.multiplicity,
        class_share=class_share(made),
        total_is_public=made.domain.total_is_public,
    )
    said: list[str] = []
    if roster is None and options.group is None:
        said.append("no roster file says how many series a group has: planned for a single one, or give --group")
    if schedule.calendar is not None and options.window is None:
        sigmas = {made.of_length(slots).calibration.sigma for slots in schedule.own_lengths}
        own = f"; by length sigma is {min(sigmas):.4g} to {max(sigmas):.4g}" if len(sigmas) > 1 else ""
        longest = format_duration(window * interval)
        said.append(f"a {schedule.calendar.unit} has no one length: planned for the longest, {longest}{own}")
    return Subject(
        f"{made.query_name} over {made.domain.name}",
        made.model,
        interval,
        made.space,
        purpose,
        stand_in_text(made) if made.stand_in else (),
        made.mechanism,
        tuple(said),
    )


def of_model(path: Path, options: Options) -> Subject:
    """What a model file plans, with the purpose of the command line."""
    model = Model.load(path)
    if model.states is None or model.interval_us is None:
        raise CommandError(f"{path}: the model has no states or no interval: plan a settings file that names it")
    interval = model.interval_us
    window = max(1, 7 * DAY_US // interval) if options.window is None else _slots("--window", options.window, interval)
    left = {"windows of a week": options.window, "histograms of a single series": options.group}
    origin = " and ".join(text for text, given in left.items() if given is None)
    said = (f"not said, so planned for {origin}: see --window, --group",) if origin else ()
    purpose = _purpose(options, interval, window=window, group=1, bins=model.states.size, epsilon=1.0)
    return Subject(path.name, model, interval, model.states, purpose, notes=said)


def _purpose(options: Options, interval_us: int, **known: Any) -> Purpose:
    """The purpose of the settings with what the command line changes."""
    given: dict[str, Any] = {"group": options.group, "epsilon": options.epsilon}
    mechanism = options.mechanism
    if mechanism is not None and mechanism not in METHODS:
        raise CommandError(f"--mechanism is {mechanism!r:.40}, but must be one of {', '.join(METHODS)}")
    if mechanism is not None and known.get("guarantee") != "window" and not METHODS[mechanism].endless:
        raise CommandError(
            f"--mechanism is {mechanism}, which has no bound for an endless stream: plan another one, or settings that "
            "say privacy.guarantee: window"
        )
    try:
        return Purpose(
            **known | {name: value for name, value in given.items() if value is not None},
            mechanism=mechanism,
            error=options.error,
            windows=tuple(_slots("--windows", one, interval_us) for one in options.windows),
            groups=options.groups,
            epsilons=options.epsilons,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _slots(option: str, length_us: int, interval_us: int) -> int:
    if length_us % interval_us:
        raise CommandError(
            f"{option} is {format_duration(length_us)}, which is no whole number of slots of "
            f"{format_duration(interval_us)}: give a multiple"
        )
    return length_us // interval_us


def lifetime(subject: Subject, length_us: int) -> Lifetime:
    """What a finite life takes.

    Raises:
        CommandError: It is shorter than a window, or the model keeps no chains.
    """
    purpose, text = subject.purpose, format_duration(length_us)
    slots = _slots("--lifetime", length_us, subject.interval_us)
    if slots < purpose.window:
        window = subject.duration(purpose.window)
        raise CommandError(f"--lifetime is {text}, shorter than a window of {window}: give a longer one, or --window")
    chains = tuple(map(MarkovChain, subject.model.diagnostics.get("cover", {}).get("chains", ())))
    if not chains:
        raise CommandError(
            "--lifetime needs the chains of the history's series, and this model keeps none: fit one of at most 200 "
            "series and 12 states with --belief level or series, without --regimes"
        )
    with working("following a mixture of the history's chains"):
        return Lifetime(text, slots, purpose.epsilon, *lifetime_sigma(chains, slots, purpose.epsilon))


def show(console: Console, subject: Subject, found: Utility, life: Lifetime | None, *, every: bool) -> None:
    """Print a plan, or with every epsilon and what each mechanism assumes."""
    purpose, chosen, wanted = found.purpose, found.chosen, f"an error of {percent(found.purpose.error)}"
    heading(console, f"{subject.name}: nothing was read, nothing is charged")
    facts(console, [*_asked_for(subject, found), *(("", one) for one in subject.notes)])
    if subject.stand_in:
        lines(console, subject.stand_in[: None if every else 1])
    heading(console, f"Mechanisms; window, in slots, and group: the smallest for {wanted}")
    _print(console, mechanism_table(found))
    if any(not one.hides_neighbours for one in found.mechanisms):
        notes(console, ["* hides a slot alone, and what its neighbours show of it stays"])
    if subject.mechanism not in (None, chosen.name):
        notes(console, [f"the settings name {subject.mechanism}; below is {chosen.name}, or give --mechanism"])
    if every:
        heading(console, "What each assumes and does not protect")
        assumed = (f"{one.name}: {'; '.join(one.assumes)}; not protected: {one.leaves}" for one in found.mechanisms)
        others = (f"{one.method}: does not apply: {_in_settings(one.reason)}" for one in found.others)
        notes(console, [*assumed, *others])
    heading(console, f"Error of a count by {chosen.name}, of an evenly filled bin")
    tables = error_tables(found.table, [subject.duration(slots) for slots in found.table.windows])
    own = [text for text, epsilon in zip(tables, found.table.epsilons, strict=True) if epsilon == purpose.epsilon]
    _print(console, "\n\n".join(tables if every or not own else own))
    heading(console, "What it means")
    facts(console, [*_meaning(subject, found, wanted, every=every), *([("lifetime", life.text)] if life else [])])


def _print(console: Console, text: str) -> None:
    for line in text.splitlines():
        console.print(f"  {line}".rstrip(), soft_wrap=True)


def _in_settings(text: str) -> str:
    """A text with the mechanisms as settings name them; the library's functions have underscores instead."""
    for name in METHODS:
        text = text.replace(name.replace("-", "_"), name)
    return text


def _asked_for(subject: Subject, found: Utility) -> list[tuple[str, str]]:
    purpose = found.purpose
    shared, classes = purpose.shared, f"the smallest class of slots has {percent(purpose.class_share)} of a window"
    text = (
        f"windows of {plural(purpose.window, 'slot')} ({subject.duration(purpose.window)}), {purpose.group:,} series "
        f"in the smallest group, {plural(found.bins, 'bin')}, epsilon {purpose.epsilon:g} for "
        f"{'everything' if purpose.guarantee == 'stream' else 'each window'}"
    )
    return [
        ("belief", subject.belief.words),
        ("purpose", text),
        *([("", f"{shared} histograms share every slot, so sigma counts {shared} times")] if shared > 1 else []),
        *([("", classes)] if purpose.class_share < 1 else []),
    ]


def _meaning(subject: Subject, found: Utility, wanted: str, *, every: bool) -> list[tuple[str, str]]:
    epsilon = found.epsilon_for_error
    error = f"no epsilon is known to give {wanted}" if epsilon is None else f"{wanted} takes epsilon {epsilon:g}"
    single = f"noise for single readings, differential privacy of each window: {found.per_window}"
    lengths = [f"{_event(subject, slots)} within {within:g}" for within, slots in found.events if slots != 0]
    loss = (
        f"everything published tells someone who knows a series' habits at most {rounded_up(found.loss, 4)} about one "
        "slot, for ever; habits are not hidden (--lifetime says what hides them for a time)"
        if math.isfinite(found.loss)
        else "nothing bounds what all windows of an endless schedule tell together: each is calibrated alone"
    )
    return [
        ("for the error", error),
        ("loss", loss),
        ("event", f"events {', '.join(lengths)}" if lengths else "no event stays within 4"),
        ("odds", odds(found.loss)),
        *([("per window", single)] if every else []),
    ]


def _event(subject: Subject, slots: int | None) -> str:
    if slots is None:
        return "of any length"
    return f"up to {plural(slots, 'slot')} ({said_duration(slots * subject.interval_us)})"
