"""The settings file of a look: plain columns or a SELECT, and what is open as ``???`` with its answers."""

from __future__ import annotations

import datetime as dt
import glob
import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...schemas.model_file import Model
from ...schemas.settings.base import OPEN
from ...schemas.settings.job import load_settings
from ...schemas.settings.model import fitting, shipped, weakness
from ...schemas.slots import DAY_US, HOUR_US, format_duration, format_instant, time_zone
from ...transforms.checks import LEAST_ODDS
from ..commands.fit import usual_cover
from ..commands.schema import SCHEMA_FILE
from ..console import plural
from ..errors import CommandError
from .files import without_packing
from .look import Look, Question
from .words import ENERGY, WATTS, flow, quoted

#: The file of the settings, where no other is named.
SETTINGS_FILE = "settings.yaml"

POWER_EDGES = (250.0, 500.0, 1000.0, 2000.0)
USUAL_BINS = "bins everyone would choose"
NO_UNIT = "of no known unit"
READ_AS_COUNTER = "the values rise and hardly fall: read as a meter's counter, whose rise in a slot is the value"
_ZONE = ": a name such as Europe/London, see --timezone"
_OPEN_EDGES = "which bins? Round numbers chosen without the data, which are public with this file"
#: Settings, of a look at files and of one at messages.
SETTINGS = """\
# yaml-language-server: $schema={schema}
# Written by `quiltstream init` from a look at {look}:
{commands}
# Everything in this file is public. docs/settings.md explains every setting.

{source}
readings:
{readings}
slots:  # at most one reading counts per series and slot, the latest
{slots}  # timezone: {zone_note}

{states}
# What is believed about missing cells: public (which are missing says nothing of the values),
# state (missing is a state of its own) or {{break: 2h}} (independent after a longer gap).
{missing}
# What is believed about the data: the promise holds for series that are as the belief says, and for no others.
{model}
# Which windows are published, for every series, also where there are no readings.
{windows}
{groups}
privacy:
  epsilon: 1.0  # what all windows of this query together may tell about one slot of one series
  mechanism: forward-backward  # left out: mqm-approx, for the same promise with several times more noise
  guarantee: stream  # or window: every window calibrated alone
  budget: 1.0  # of the domain: all queries over it together

query: {query}
domain: {domain}
sink: {{{sink}: {output}}}
ledger: sqlite:///{ledger}  # or postgresql+psycopg://...; keep it: without it the budget is lost
"""
_COMMANDS = """\
#   quiltstream check {this}             says what is in the data, for your eyes only
{belief}#   quiltstream run --dry-run {this}     says what it will publish and cost, before any data is read
#   quiltstream run {this}"""
_STAND_IN = """\
# {how}
# Or give bounds that you can defend by hand, model: {{pi_min: 0.02, gap: 0.3}}: see docs/model.md.
# Until then it is a STAND-IN made of the interval alone, which `run` refuses without --accept-stand-in.
model: stand-in
"""
_OWN = "fit one on a history of other series, and write `model: model.json`."
_ANEW = "{why} This writes the file anew, and asks again what was answered:\n#   {command}\n# Or " + _OWN
_SHIPPED = """\
# It comes with the package, fitted on {source}, and
# holds for a series that forgets as fast as {rank} of these {series} do; nothing says that yours does. Its states and
# slots are those above.{weak}
model: {name}
"""
_FITTED = """\
# It is fitted on the series that are not published, and holds for a share of such series, which --cover says:
#   {following}
model: model.json
"""
_WINDOWS = """\
windows:
  size: {size}
  # every: 1d  # a divisor of size makes them slide; size may be day, week or month of the calendar in slots.timezone
  start: {start}
  {stop}

# Of this query alone, at no further cost:
# by: hour  # a histogram for each hour of the day; or weekday, weekend, month, or several: [weekend, hour]
{bins}"""
NO_ROSTER = """\
# One histogram per series drowns in noise unless windows are long. A roster with the groups gives useful numbers:
# roster: roster.csv  # columns: series, group
# group_by: group
"""
_ROSTER = """\
# The series that are published, in one group. Without these two settings each series has a histogram.
roster: {roster}
group_by: group
"""


@dataclass(frozen=True, slots=True)
class Guess:
    """A settings file and what it assumes."""

    text: str
    said: tuple[tuple[str, str], ...]  # what was guessed, for people
    # the same where so many series are held out as the history of the model; ``None`` for one series, without a roster
    with_history: Callable[[int], str] | None = None
    answered: str = ""  # the text where each question has its first answer
    questions: tuple[str, ...] = ()  # the keys that are open
    way: tuple[str, ...] = ()  # the options of ``init`` with which a model is had; empty where it has none to name


def fit_command(settings: Path | str, roster: Path | str, held: int) -> str:
    """The command that fits the model on so many series that are held out."""
    return shlex.join(["quiltstream", "fit", str(settings), "--cover", usual_cover(held), "--exclude", str(roster)])


def roster_of(output: Path) -> Path:
    """The roster beside a settings file: named after it, so that settings of one folder have rosters of their own."""
    return output.with_name("roster.csv" if output.name == SETTINGS_FILE else f"{name_of(output.stem)}-roster.csv")


def watts_of(unit: str, interval_us: int) -> float | None:
    """The factor from a unit to watts, of energy in a slot to their average; ``None`` of another unit."""
    return WATTS[unit] / (interval_us if unit in ENERGY else 1) if unit in WATTS else None


def measure_text(unit: str, interval_us: int, watts: float | None, *, unknown: str, power: str) -> str:
    """The settings of a unit and its factor, with a note on it."""
    factor, note = f"{1.0 if watts is None else watts:.12g}", unknown if watts is None else power
    if watts is not None and unit in ENERGY:
        note = f"1 {unit} in a slot of {format_duration(interval_us)} is {factor} W on average"
    return f"  unit: {json.dumps(unit)}\n  scale: {factor}  # {note}\n"


def edges_text(note: str, edges: tuple[float, ...], unit: str) -> str:
    """The section of the states."""
    return f"states:  # {note}\n  edges: [{', '.join(f'{one:.12g}' for one in edges)}]\n  unit: {unit}\n"


def shared(name: str, zone: str, sink: str, output: str) -> dict[str, str]:
    """What every settings file says: names made of one, the zone, and where the rows go."""
    note = f"of times without an offset, in the data and in this file{_ZONE if zone == 'UTC' else ''}"
    names = {
        "query": flow(f"{name}-histogram"),
        "domain": flow(name),
        "output": flow(output),
        "ledger": f"{name}-ledger.db",
    }
    return {"schema": SCHEMA_FILE, "zone": zone, "zone_note": note, "sink": sink, **names}


def name_of(text: str) -> str:
    """A text as the name of a query or a domain."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:150].strip("-") or "readings"


def zone_of(name: str) -> dt.tzinfo:
    """The zone that the command line names."""
    try:
        return time_zone(name)
    except ValueError as error:
        raise CommandError(f"--timezone: {error}") from error


def relative(path: Path, output: Path) -> str:
    """A path from the folder of the settings, by the links that it goes through, where the files may be others soon."""
    where = path.parent.resolve() / path.name if ".." in path.parts else path.absolute()
    folder = output.parent.absolute()
    return os.path.relpath(where, folder if where.is_relative_to(folder) else folder.resolve())


def guess(look: Look, output: Path, command: Callable[[Sequence[str]], str], shipped_model: str | None = None) -> Guess:
    """Write the settings for a file that was looked at.

    Args:
        look: At the file.
        output: Where they are written.
        command: ``init`` of the same data, with further options, which writes the settings anew.
        shipped_model: A belief that comes with the package, whose slots and states they then have.
    """
    given = None if shipped_model is None else Model.load(Path(shipped(shipped_model)))
    of = "" if given is None else _take_slots(look, given, f"--model {shipped_model}")
    folder = next(one for one in look.rows.files.parents if not glob.has_magic(str(one)))
    title = without_packing(look.rows.path).stem if look.rows.files == look.rows.path else folder.resolve().name
    name, roster, path = name_of(title), roster_of(output).name, relative(look.rows.files, output)
    selects = {text.split(" as series")[0] for one in look.questions for text, _ in one.answers if "\nfrom " in text}
    is_grouped = look.names > 1 and len(selects) < 2
    watts = watts_of(look.unit, look.interval)
    is_power = watts is not None or look.asks("readings.scale")
    edges, unit = (*([0.0] if look.below and not look.rises else []), *POWER_EDGES), "W"
    if given is not None and given.states is not None:
        edges, unit = given.states.edges, given.states.unit
    elif not is_power and not look.labels:
        look.ask("states.edges", _OPEN_EDGES, ("[E1, E2, E3]", "three edges make four bins"), unwritten="[1, 10, 100]")
    beliefs = _fitting(look)
    few = is_grouped and float(usual_cover(look.names // 2)) < LEAST_ODDS and bool(beliefs)
    way = ("--model", *beliefs) if few or not is_grouped else ("--hold-out", "0.5")
    windows = windows_of(look, long=is_power and given is not None and not is_grouped)
    stop = f"stop: {windows.stop}" if look.rows.complete else "# stop:  left out, it ends with the data"

    def compose(held: int, *, is_open: bool) -> str:
        asked = Asked(_questions(look), is_open=is_open)
        following = fit_command(output.name, roster, held) if held else ""
        if given is None:
            model, belief = _believed(look, beliefs, command(way), following, grouped=is_grouped, few=few)
        else:
            model, belief = _taken(given, shipped_model or ""), ""
        states = f"states:\n{asked.text('states.categories' if look.labels else 'states.edges')}"
        return SETTINGS.format(
            **shared(name, look.zone, "parquet", f"{name}-releases.parquet"),
            look=path,
            commands=_COMMANDS.format(this=shlex.quote(output.name), belief=belief),
            source=_source(look, path, asked),
            readings=_readings(look, name, watts, asked),
            slots=asked.text("slots.of", of)
            + asked.text("slots.interval", format_duration(look.interval))
            + f"  origin: {windows.origin}\n"
            + asked.text("slots.timezone", look.zone),
            states=edges_text(USUAL_BINS, edges, unit)
            if given is not None or (is_power and not look.labels)
            else states + '  unit: ""\n' * (not look.labels),
            missing=asked.text("missing", "state" if _is_counter(look) else "public", indent=""),
            model=model,
            windows=_WINDOWS.format(
                size=windows.size,
                start=windows.start,
                stop=stop,
                bins=_bins(edges, few=given is not None and not is_grouped) if is_power and len(edges) > 1 else "",
            ),
            groups=_ROSTER.format(roster=roster) if is_grouped else NO_ROSTER,
        )

    text = compose(0, is_open=False)
    load_settings(text)  # what is written must be accepted, once it is answered
    with_history = partial(compose, is_open=True) if is_grouped else None
    said = _said(look, watts, windows)
    if given is not None and weakness(given):
        said = (*said, ("belief", weakness(given)))
    keys = tuple(one.key for one in look.questions)
    return Guess(compose(0, is_open=True), said, with_history, answered=text, questions=keys, way=way)


def _taken(model: Model, name: str) -> str:
    """A belief of the package with what is said of it."""
    cover, weak = model.diagnostics["cover"], weakness(model)
    said = {"source": model.provenance.source, "rank": cover["rank"], "series": cover["series"]}
    return _SHIPPED.format(name=name, weak=f"\n# It is {weak}." if weak else "", **said)


def _believed(
    look: Look, beliefs: dict[str, Model], again: str, following: str, *, grouped: bool, few: bool
) -> tuple[str, str]:
    """The model that is fitted, or its stand-in, with what is said of it; and the line of the command for it."""
    if following:
        return _FITTED.format(following=following), f"#   {following}     the belief, see model below\n"
    weak = "".join(f"\n# It is {one}." for one in map(weakness, beliefs.values()) if one)
    if look.names > 1 and not grouped:
        how = "A model is fitted on series that are not published. Which there are is open: answer the questions."
    elif grouped and not few:
        how = _ANEW.format(why="The roster has every series of the file; hold some out.", command=again)
    elif beliefs:
        how = _ANEW.format(why="Of so few series the belief is one of others.", command=again) + weak
    else:
        how = f"None that comes with the package is of this unit and interval: {_OWN}"
    what = f"#   {again}     {'takes a belief of others' if few else 'holds a history'}\n"
    return _STAND_IN.format(how=how), what if grouped else ""


def _bins(edges: Sequence[float], *, few: bool) -> str:
    """Unions of the states: of one series two counts are useful sooner than five."""
    coarse = f"bins: [{edges[len(edges) // 2]:.12g}]"
    note = f"two counts; left out, one for each of {len(edges) + 1} states, which takes longer windows"
    return f"{coarse}  # {note}\n" if few else f"# {coarse}  # coarser bins: some of the edges of the states\n"


class Asked:
    """The questions of settings by their keys; where they are not open, each has its first answer."""

    def __init__(self, questions: Sequence[Question], *, is_open: bool) -> None:
        self.is_open, self.questions = is_open, questions

    def text(self, key: str, usual: str = "", note: str = "", indent: str = "  ") -> str:
        """The lines of a key: a question, its first answer, or what it is where nothing is asked; none of nothing."""
        name, found = key.rsplit(".", 1)[-1], [one for one in self.questions if one.key == key]
        answers = dict(answer for one in found for answer in one.answers)
        if not found or not self.is_open:
            shown = (found[0].unwritten or next(iter(answers))) if found else usual
            lines = [f"{name}: {_block(shown)}{note if not found else ''}"] if shown else []
        else:
            lines = [f"# {one.why}" for one in found] + [f"{name}: {OPEN}"]
            for answer, meaning in answers.items():
                first, *more = f"{name}: {_block(answer)}".split("\n")
                lines += [f"# {first}" + (f"  # {meaning}" if meaning else ""), *(f"# {line}" for line in more)]
        return "".join(f"{indent}{line}\n" for one in lines for line in one.split("\n"))


def _questions(look: Look) -> list[Question]:
    """What a look asks; where a SELECT stands, an open value is a question of the SELECT."""
    questions = list(look.questions)
    if look.is_select or look.asks("readings.select"):
        for at, one in enumerate(questions):
            if one.key == "readings.value":
                names = [quoted(json.loads(text) if text.startswith('"') else text) for text, _ in one.answers]
                made = [replace(look.query, value=f"num({name})", column=name).text for name in names]
                answers = tuple((text, meaning) for text, (_, meaning) in zip(made, one.answers, strict=True))
                questions[at] = replace(one, key="readings.select", answers=answers)
    return questions


def _block(text: str) -> str:
    return "|-\n  " + text.replace("\n", "\n  ") if "\n" in text else text


def _source(look: Look, path: str, asked: Asked) -> str:
    """The section of the source: on one line, where it asks nothing."""
    options = {name: json.dumps(one) if name == "delimiter" else flow(one) for name, one in look.rows.options.items()}
    given = {look.rows.kind: flow(path), **options}
    if not look.asks("source.names"):
        return f"source: {{{', '.join(f'{name}: {text}' for name, text in given.items())}}}\n"
    return (
        "source:\n"
        + "".join(f"  {name}: {text}\n" for name, text in given.items() if name != "names")
        + asked.text("source.names")
    )


def _readings(look: Look, name: str, watts: float | None, asked: Asked) -> str:
    """The section of the readings."""
    is_select = look.is_select or any(one.key == "readings.select" for one in asked.questions)
    if is_select:
        parts = asked.text("readings.select", look.query.text)
    else:
        columns, plain = look.times.columns, dict(look.times.plain or {})
        only = f"{{constant: {flow(name)}}}  # the name of the only series"
        series = only if look.series is None else f"{flow(look.series)}  # column with the name of the meter or wearer"
        parts = f"  series: {series}\n  time: {flow(columns[0] if len(columns) == 1 else columns)}\n"
        form = plain.pop("time_format", "")
        note = f"  # A GUESS: {look.times.other[0]} reads these times too" if look.times.other else ""
        parts += asked.text("readings.time_format", json.dumps(form) if form else "", note)
        parts += "".join(f"  {key}: {text}\n" for key, text in plain.items())
        parts += asked.text("readings.value", flow(look.value), "  # a label" if look.labels else "")
    gap = f"{{gap: {format_duration(max(2 * HOUR_US, 2 * look.interval))}}}" if look.rises else ""
    parts += asked.text(
        "readings.register", gap, "  # it rises and hardly falls; add most: for the largest rise that is one"
    )
    parts += asked.text("readings.hold") + asked.text("readings.stamps")
    parts += "".join(f"  {key}: {flow(text)}\n" for key, text in look.more.items())
    if look.labels:
        return parts
    unknown, power = "factor from the column's unit to that of the edges", f"1 {look.unit} is {watts or 1:.12g} W"
    measured = measure_text(look.unit, look.interval, watts, unknown=unknown, power=power)
    unit, scale = measured.splitlines(keepends=True)
    return parts + unit + (asked.text("readings.scale") or scale)


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of the settings, as these say them."""

    origin: str  # a midnight no later than the first reading
    start: str
    stop: str
    size: str
    count: int
    zoned: bool  # whether days are of the zone


def _is_power(look: Look) -> bool:
    return look.unit in WATTS or look.asks("readings.scale")


def _is_counter(look: Look) -> bool:
    return look.rises or "hold" in look.more or look.asks("readings.register", "readings.hold")


def _fitting(look: Look) -> dict[str, Model]:
    """Beliefs that come with the package, of which :func:`_take_slots` takes the slots."""
    if look.labels or _is_counter(look):
        return {}
    return fitting("W" if _is_power(look) else look.unit or look.value, look.interval)


def _take_slots(look: Look, model: Model, option: str) -> str:
    """Give a look the slots of a model; longer ones have means of power, sums of energy and counts, as it returns.

    Raises:
        CommandError: the readings are of another unit, or further apart than its slots.
    """
    assert model.states is not None  # noqa: S101 - of every belief that is fitted
    assert model.interval_us is not None  # noqa: S101 - likewise
    unit, is_power = model.states.unit, _is_power(look)
    if look.labels or is_power != (unit == "W"):
        raise CommandError(f"{option}: its states are in {unit}, and the values are {look.unit or NO_UNIT}")
    if _is_counter(look):
        raise CommandError(f"{option}: it knows no missing cells, and a counter's rises leave some; use another")
    if model.interval_us % look.interval:
        raise CommandError(
            f"{option}: its slots are {format_duration(model.interval_us)}, and the readings are "
            f"{format_duration(look.interval)} apart: no such slots can be made of them; take finer readings, or fit a "
            "model on others' of the same interval"
        )
    if model.interval_us == look.interval:
        return ""
    look.more.setdefault("length", format_duration(look.interval))
    look.interval = model.interval_us
    return "mean" if is_power and look.unit not in ENERGY else "sum"


def windows_of(look: Look, *, long: bool = False) -> _Windows:
    """Weeks where there are two of them or more, else days; of the zone's calendar where it is not UTC's.

    Slots that do not fill an hour are not where they were on the zone's clock after it changes, so they are of UTC.
    """
    interval, zone = look.interval, zone_of(look.zone)
    zoned = look.zone == "UTC" or (HOUR_US % interval == 0 and look.span[1] - look.span[0] >= DAY_US)

    def shown(time_us: int) -> int:
        """A time as the clock shows it that the windows are of: of the zone, or of UTC."""
        if look.times.naive == zoned:
            return time_us
        at = dt.datetime.fromtimestamp(time_us // 1_000_000, zone if zoned else dt.UTC)
        offset = (at if zoned else at.replace(tzinfo=zone)).utcoffset() or dt.timedelta()
        return time_us + (1 if zoned else -1) * (offset // dt.timedelta(microseconds=1))

    def text(time_us: int) -> str:
        said = format_instant(time_us)
        return said.removesuffix("Z").removesuffix("T00:00:00") if zoned else said

    begin, last = map(shown, look.span)
    day = DAY_US if DAY_US % interval == 0 else 48 * interval
    origin, end = begin // day * day, (last // interval + 1) * interval
    calendar = zoned and look.zone != "UTC" and day == DAY_US
    monday = origin + (4 - origin // DAY_US) % 7 * DAY_US if calendar else origin
    start, length = (monday, 7 * day) if end - monday >= 14 * day else (origin, day)
    if long:  # of a single home, a week drowns in the noise
        start, length = origin, min(28 * day, max(1, (end - origin) // day) * day)
        calendar = False
    count = (end - start) // length
    if not count or (look.rows.complete and count * length > 2 * (start + count * length - begin)):
        begin = begin // interval * interval
        return _Windows(text(origin), text(begin), text(end), format_duration(end - begin), 1, zoned)
    size = ("week" if length > day else "day") if calendar else format_duration(length)
    return _Windows(text(origin), text(start), text(start + count * length), size, count, zoned)


def _said(look: Look, watts: float | None, windows: _Windows) -> tuple[tuple[str, str], ...]:
    """What is said of a look at a file."""
    times, zone = look.times, look.zone
    series = "the whole file is one series"
    if look.series is not None:
        what = "each file" if look.series == "filename" else f"column {look.series}"
        series = f"{what}, {look.names:,} seen" + ("" if look.rows.complete else " in the first rows")
        if look.series == "filename" and not look.rows.complete:
            series = f"each file: {plural(look.rows.count, 'file')}, {look.names:,} looked into"
    zoned = f"times without an offset are read as {zone}" if times.naive or zone == "UTC" else "with offsets"
    zoned += f"; days are of {zone}" if windows.zoned and zone != "UTC" else ""
    if look.more.get("ambiguous"):
        zoned += "; an hour that the clock doubles is told apart by the order of rows, readings.ambiguous: in-order"
    columns, read = " and ".join(times.columns), f", read as {times.form}" if times.plain and times.form else ""
    count = (
        f"{plural(windows.count, windows.size)}"
        if windows.size in ("day", "week")
        else f"{windows.count} of {windows.size}"
    )
    value = f"column {look.value}" if look.value != "reading_" else "in the columns of numbers"
    unit = "labels" if look.labels else (look.unit or NO_UNIT) + (f", times {watts:.12g} for W" if watts else "")
    rows = (
        ("series", series),
        ("time", f"column {columns}{read}; {zoned}"),
        ("value", f"{value}, {unit}"),
        *([("counter", READ_AS_COUNTER)] if look.rises else []),
        *look.said,
        ("interval", format_duration(look.interval)),
        ("windows", count if look.rows.complete else f"of {windows.size}, as many as the data fill"),
        *(("asked", f"{one.key}: {one.why}") for one in look.questions),
    )
    return tuple(rows)
