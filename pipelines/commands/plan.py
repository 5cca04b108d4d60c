"""``quiltstream plan``: what a purpose comes to under a model, from settings or a model file alone.

No data are read, no ledger is opened, and nothing is charged. The numbers are those of
:mod:`quiltstream.privacy.analysis.planning`; here are its input and its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...privacy.accounting.habits import lifetime_sigma
from ...privacy.analysis.methods import METHODS
from ...privacy.analysis.planning import (
    Purpose,
    Utility,
    analyse_utility,
    error_tables,
    mechanism_table,
    percent,
)
from ...privacy.models.belief import Belief
from ...privacy.models.markov_chain import MarkovChain
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.validation import rounded_up
from ...schemas.files import whole_file
from ...schemas.model_file import Model
from ...schemas.settings.job import Accepted, read_settings
from ...schemas.slots import DAY_US, format_duration, parse_duration, said_duration
from ...schemas.states import StateSpace
from ...transforms.checks import class_share, stand_in_text
from ...transforms.plan import make_plan
from ..connectors.job_io import JobPath, check_output, job_paths
from ..console import facts, heading, lines, notes, odds, plural, print_json, results, working
from ..errors import CommandError, writing

#: How a picture begins.
_PICTURE = b"<svg "


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line gives; ``None`` and empty for what the settings, or the defaults, say."""

    window: str | None = None
    group: int | None = None  # series in the smallest group
    epsilon: float | None = None
    error: str = "5%"  # wanted error, in per cent or as a share
    mechanism: str | None = None
    windows: str | None = None  # lengths of the table, with commas
    groups: str | None = None  # group sizes of the table, with commas
    epsilons: str | None = None  # of the table, with commas
    lifetime: str | None = None  # how long anything is released about a series


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned: a belief, its slots and states, and what the settings say of the purpose."""

    name: str  # for the heading
    belief: Belief  # what is believed about every series
    bounds: Belief | None  # bounds beside it, for the mechanisms that read such
    interval_us: int  # length of a slot in microseconds
    space: StateSpace
    purpose: Purpose  # the purpose of the settings, or of the defaults
    stand_in: tuple[str, ...]  # what is to be done about a belief that is a stand-in; empty where it is none
    mechanism: str | None  # the mechanism that the settings name; None where there are none
    notes: tuple[str, ...]  # what was assumed of the purpose
    chains: tuple[MarkovChain, ...]  # of the series of the history, as far as the model keeps them


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
            "someone who "
            "knows the history's chains, not which of them a series follows; below sigma "
            f"{self.least:.4g} counts of every slot would lose more. It grows with the time; with more series in a "
            "group the counts grow and sigma does not"
        )


def plan(
    settings: Path | None,
    model: Path | None,
    options: Options,
    *,
    picture: Path | None,
    as_json: bool,
    every: bool = False,
) -> None:
    """Plan, print, and draw the picture that is named."""
    if (settings is None) == (model is None):
        raise CommandError("plan takes either a settings file or --model FILE: give one of them")
    _check_written(settings, model, picture)
    subject = of_settings(settings, options) if settings is not None else of_model(model or Path(), options)
    with working("calibrating"):
        found = analyse_utility(subject.belief, subject.purpose, subject.bounds)
    life = None if options.lifetime is None else lifetime(subject, options.lifetime, found.purpose)
    if picture is not None:
        _draw(picture, subject, found)
    if as_json:
        said = {
            "subject": subject.name,
            "slot_seconds": subject.interval_us / 1e6,
            "labels": list(subject.space.labels),
            "stand_in": subject.stand_in,
            "notes": list(subject.notes),
            **({} if life is None else {"lifetime": asdict(life)}),
        }
        print_json({**found.to_dict(), **said})
        return
    console = results()
    show(console, subject, found, life, every=every)
    if picture is not None:
        console.print(f"\n{picture}: written", soft_wrap=True)


def of_settings(path: Path, options: Options) -> Subject:
    """What a settings file plans, with what the command line changes."""
    settings = read_settings(path).accepting(
        Accepted(noise=True, stand_in=True, cover=True)
    )  # it says what a run would
    made = make_plan(settings)
    roster, schedule, interval = made.roster, made.schedule, made.grid.interval_us
    window = schedule.size if options.window is None else _slots("--window", options.window, interval)
    if window % schedule.overlap:
        raise CommandError(
            f"--window is {options.window}, but {schedule.overlap} windows of the settings share a slot: give a "
            f"multiple of {format_duration(schedule.overlap * interval)}, or change windows.every"
        )
    budget = settings.privacy.budget
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
        mechanism=None,
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
        longest = format_duration(window * interval)
        sigmas = {made.of_length(slots).calibration.sigma for slots in schedule.own_lengths}
        own = f"; by length sigma is {min(sigmas):.4g} to {max(sigmas):.4g}" if len(sigmas) > 1 else ""
        said.append(f"a {schedule.calendar.unit} has no one length: planned for the longest, {longest}{own}")
    return Subject(
        name=f"{made.query_name} over {made.domain.name}",
        belief=belief_from_dict(made.model.belief),
        bounds=_bounds(made.model),
        interval_us=interval,
        space=made.space,
        purpose=purpose,
        stand_in=stand_in_text(made) if made.stand_in else (),
        mechanism=made.mechanism,
        notes=tuple(said),
        chains=_chains(made.model),
    )


def of_model(path: Path, options: Options) -> Subject:
    """What a model file plans, with the purpose of the command line."""
    model = Model.load(path)
    if model.states is None or model.interval_us is None:
        raise CommandError(f"{path}: the model has no states or no interval: plan a settings file that names it")
    interval = model.interval_us
    given = options.window or format_duration(max(1, 7 * DAY_US // interval) * interval)
    purpose = _purpose(
        options,
        interval,
        window=_slots("--window", given, interval),
        group=1,
        bins=model.states.size,
        epsilon=1.0,
        mechanism=None,
    )
    origin = [] if options.window else ["windows of a week"]
    origin += [] if options.group else ["histograms of a single series"]
    return Subject(
        name=path.name,
        belief=belief_from_dict(model.belief),
        bounds=_bounds(model),
        interval_us=interval,
        space=model.states,
        purpose=purpose,
        stand_in=(),
        mechanism=None,
        notes=(f"not said, so planned for {' and '.join(origin)}: see --window, --group",) if origin else (),
        chains=_chains(model),
    )


def _bounds(model: Model) -> Belief | None:
    return None if model.bounds is None else belief_from_dict(model.bounds)


def _chains(model: Model) -> tuple[MarkovChain, ...]:
    """The chains of the covered series of a history that a fit keeps in its diagnostics."""
    return tuple(MarkovChain(one) for one in model.diagnostics.get("cover", {}).get("chains", ()))


def lifetime(subject: Subject, text: str, purpose: Purpose) -> Lifetime:
    """What a finite life takes.

    Raises:
        CommandError: It is shorter than a window, or the model keeps no chains.
    """
    slots = _slots("--lifetime", text, subject.interval_us)
    if slots < purpose.window:
        window = format_duration(purpose.window * subject.interval_us)
        raise CommandError(f"--lifetime is {text}, shorter than a window of {window}: give a longer one, or --window")
    if not subject.chains:
        raise CommandError(
            "--lifetime needs the chains of the history's series, and this model keeps none: fit one of at most 200 "
            "series and 12 states with --belief level or series, without --regimes"
        )
    with working("following a mixture of the history's chains"):
        proved, least = lifetime_sigma(subject.chains, slots, purpose.epsilon)
    return Lifetime(text, slots, purpose.epsilon, proved, least)


def show(
    console: Console, subject: Subject, found: Utility, life: Lifetime | None = None, *, every: bool = False
) -> None:
    """Print a plan, or with every epsilon and what each mechanism assumes."""
    purpose, chosen = found.purpose, found.chosen
    heading(console, f"{subject.name}: nothing was read, nothing is charged")
    facts(console, [*_asked_for(subject, found), *(("", one) for one in subject.notes)])
    if subject.stand_in:
        lines(console, subject.stand_in[: None if every else 1])
    heading(console, f"Mechanisms; window, in slots, and group: the smallest for {_wanted(purpose)}")
    _print(console, mechanism_table(found))
    if any(not one.hides_neighbours for one in found.mechanisms):
        notes(console, ["* hides a slot alone, and what its neighbours show of it stays"])
    if subject.mechanism not in (None, chosen.name):
        notes(console, [f"the settings name {subject.mechanism}; below is {chosen.name}, or give --mechanism"])
    if every:
        heading(console, "What each assumes and does not protect")
        notes(
            console,
            [
                *(f"{one.name}: {'; '.join(one.assumes)}; not protected: {one.leaves}" for one in found.mechanisms),
                *(f"{one.method}: does not apply: {_as_settings_name(one.reason)}" for one in found.others),
            ],
        )
    heading(console, f"Error of a count by {chosen.name}, of an evenly filled bin")
    tables = error_tables(found.table, _windows(subject, found))
    own = [text for text, epsilon in zip(tables, found.table.epsilons, strict=True) if epsilon == purpose.epsilon]
    _print(console, "\n\n".join(tables if every or not own else own))
    heading(console, "What it means")
    means = _meaning(subject, found)
    means = means if every else [one for one in means if one[0] not in ("", "per window")]
    facts(console, [*means, *([] if life is None else [("lifetime", life.text)])])


def _asked_for(subject: Subject, found: Utility) -> list[tuple[str, str]]:
    purpose = found.purpose
    shared, classes = purpose.shared, f"the smallest class of slots has {percent(purpose.class_share)} of a window"
    text = (
        f"windows of {plural(purpose.window, 'slot')} ({format_duration(purpose.window * subject.interval_us)}), "
        f"{purpose.group:,} series in the smallest group, "
        f"{plural(found.bins, 'bin')}, epsilon {purpose.epsilon:g} for "
        f"{'everything' if purpose.guarantee == 'stream' else 'each window'}"
    )
    return [
        ("belief", subject.belief.words),
        ("purpose", text),
        *([("", f"{shared} histograms share every slot, so sigma counts {shared} times")] if shared > 1 else []),
        *([("", classes)] if purpose.class_share < 1 else []),
    ]


def _meaning(subject: Subject, found: Utility) -> list[tuple[str, str]]:
    purpose = found.purpose
    epsilon = (
        f"{_wanted(purpose)} takes epsilon {found.epsilon_for_error:g}"
        if found.epsilon_for_error is not None
        else f"no epsilon is known to give {_wanted(purpose)}"
    )
    lengths = [f"{_event(slots, subject)} within {within:g}" for within, slots in found.events if slots != 0]
    loss = (
        f"everything published tells someone who knows a series' habits at most {rounded_up(found.loss, 4)} about one "
        "slot, for ever; habits are not hidden (--lifetime says what hides them for a time)"
    )
    if math.isinf(found.loss):
        loss = "nothing bounds what all windows of an endless schedule tell together: each is calibrated alone"
    return [
        ("for the error", epsilon),
        ("loss", loss),
        ("event", f"events {', '.join(lengths)}" if lengths else "no event stays within 4"),
        ("odds", odds(found.loss)),
        ("", f"this loss: {found.odds[0]}"),
        *(
            ("", f"loss {one.epsilon:g}: a guess of 50% becomes at most {percent(dict(one.guesses)[0.5], up=True)}")
            for one in found.odds[1:]
        ),
        ("per window", f"noise for single readings, differential privacy of each window: {found.per_window}"),
    ]


def _print(console: Console, text: str) -> None:
    for line in text.splitlines():
        console.print(f"  {line}".rstrip(), soft_wrap=True)


def _wanted(purpose: Purpose) -> str:
    return f"an error of {percent(purpose.error)}"


def _as_settings_name(text: str) -> str:
    """A text with the mechanisms as settings name them; the library's functions have underscores instead."""
    for name in METHODS:
        text = text.replace(name.replace("-", "_"), name)
    return text


def _windows(subject: Subject, found: Utility) -> list[str]:
    """The windows of the table, as settings have them."""
    return [format_duration(slots * subject.interval_us) for slots in found.table.windows]


def _event(slots: int | None, subject: Subject) -> str:
    if slots is None:
        return "of any length"
    return f"up to {plural(slots, 'slot')} ({said_duration(slots * subject.interval_us)})"


def _purpose(options: Options, interval_us: int, **known: Any) -> Purpose:
    """The purpose of the settings with what the command line changes."""
    if options.mechanism is not None and options.mechanism not in METHODS:
        raise CommandError(f"--mechanism is {options.mechanism!r:.40}, but must be one of {', '.join(METHODS)}")
    if options.mechanism is not None and known.get("guarantee") != "window" and not METHODS[options.mechanism].endless:
        raise CommandError(
            f"--mechanism is {options.mechanism}, which has no bound for an endless stream: plan another one, or "
            "settings that say privacy.guarantee: window"
        )
    known |= {
        name: value
        for name, value in (("group", options.group), ("epsilon", options.epsilon), ("mechanism", options.mechanism))
        if value is not None
    }
    try:
        return Purpose(
            **known,
            error=_share("--error", options.error),
            windows=tuple(_slots("--windows", one, interval_us) for one in _listed(options.windows)),
            groups=tuple(_whole("--groups", one) for one in _listed(options.groups)),
            epsilons=tuple(_number("--epsilons", one) for one in _listed(options.epsilons)),
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _listed(text: str | None) -> Sequence[str]:
    return () if text is None else [one.strip() for one in text.split(",")]


def _slots(option: str, text: str, interval_us: int) -> int:
    try:
        length = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None
    if length % interval_us:
        raise CommandError(
            f"{option} is {text}, which is no whole number of slots of {format_duration(interval_us)}: give a multiple"
        )
    return length // interval_us


def _share(option: str, text: str) -> float:
    """``5%``, ``5 %`` or ``0.05``."""
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,9})?|\.\d{1,9})\s*(%?)\s*", text)
    share = 0.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not share > 0:
        raise CommandError(f"{option} is {text!r:.40}, but must be a share above 0: write for example 5% or 0.05")
    if match is not None and not match[2] and share > 1:
        said = match[1]
        raise CommandError(f"{option} is {said}, which would be {100 * share:g}%: write {said}%, or {100 * share:g}%")
    return share


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        raise CommandError(f"{option} has {text!r:.40}, but must be whole numbers with commas, for example 1,30,100")
    return int(text)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError(
            f"{option} has {text!r:.40}, but must be numbers with commas between them, for example 0.5,1,2"
        ) from None


def _check_written(settings: Path | None, model: Path | None, picture: Path | None) -> None:
    """Check that a picture can be made, and that nothing is written over what is read."""
    if picture is None:
        return
    if picture.suffix.lower() != ".svg":
        raise CommandError(f"--picture is {picture}, but must end with .svg: name such a file")
    read: list[JobPath | Path] = [] if model is None else [model]
    if settings is not None and model is None:
        read = [settings, *job_paths(read_settings(settings))]
    check_output(picture, read, "the picture (--picture)", _PICTURE)


def _draw(path: Path, subject: Subject, found: Utility) -> None:
    from ..report.figures import errors  # noqa: PLC0415 - figures take the ledger, which a plan is without

    made = errors(found.table, lambda slots: format_duration(slots * subject.interval_us), found.purpose.error)
    with writing(path), whole_file(path) as part:
        part.write_text(made.file(), encoding="utf-8")
