"""The settings file of a look: plain columns or a SELECT, and what is open as ``???`` with its answers."""

from __future__ import annotations

import datetime as dt
import glob
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...privacy.estimation.per_series import largest_cover
from ...schemas.settings.base import OPEN
from ...schemas.settings.job import load_settings
from ...schemas.slots import DAY_US, HOUR_US, format_duration, format_instant, time_zone
from ..commands.fit import USUAL
from ..commands.schema import SCHEMA_FILE
from ..console import plural
from ..errors import CommandError
from .parts import Look, Question, flow, quoted
from .rhythm import local_times
from .words import is_other_clock, without_packing

#: The file of the settings, where no other is named.
SETTINGS_FILE = "settings.yaml"

#: Watts in a unit of power; of one of energy, those of it in a slot of a microsecond.
WATTS = {"MWh": 3_600 * 10**12, "kWh": 3_600 * 10**9, "Wh": 3_600 * 10**6, "MW": 10**6, "kW": 10**3, "W": 1}
ENERGY = ("MWh", "kWh", "Wh")
POWER_EDGES = (250.0, 500.0, 1000.0, 2000.0)
#: The first Monday, in days since 1970-01-01; and digits of a number in the settings.
_MONDAY, _DIGITS = 4, 12
#: Characters at most of the name of the data, of which longer names are made.
_LONGEST_NAME = 150
USUAL_BINS = "bins everyone would choose"
NO_UNIT = "of no known unit"
_OTHER_CLOCK = (
    "by its name it is local: set --timezone to its zone, such as Europe/Berlin",
    "by its name it is of UTC: leave --timezone out, or write a Z behind the times in the data",
)
_AS_MANY = "as many as the data fill"
_TWO_HOURS = "an hour that a clock set back doubles is told apart by the order of rows, readings.ambiguous: in-order"
#: Settings for a file: what stands where, as a whole at the end.
_SOURCE_TEXT = """\
# yaml-language-server: $schema={schema}
# Written by `quiltstream init` from a look at {file}:
#   quiltstream check {this}             says what is in the data, for your eyes only
{belief}#   quiltstream run --dry-run {this}     says what it will publish and cost, before any data is read
#   quiltstream run {this}
# Everything in this file is public. docs/settings.md explains every setting.

{source}
readings:
{readings}
slots:  # at most one reading counts per series and slot, the latest
{slots}{zoned}  # timezone: {zone_note}

"""
_RISES = "  # it rises and hardly falls; add most: for the largest rise that is one"
_AMBIGUOUS_HOUR = """\
  ambiguous: in-order  # a clock set back doubles an hour of the data: the rows, which are in order, tell the two apart
"""
_ZONE = ": a name such as Europe/London, see --timezone"
#: Of every settings file: what is believed and promised; the states; and the model, fitted yet or not.
BELIEF_TEXT = """\
{states}
# What is believed about missing cells: public (which are missing says nothing of the values),
# state (missing is a state of its own) or {{break: 2h}} (independent after a longer gap).
{missing}
# What is believed about the data: the promise holds for series that are as the belief says, and for no others.
{model}
"""
PROMISE_TEXT = """\
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
_BELIEF_LINE = "#   {}, see model below\n"
_BINS = """\
# bins: [{}]  # coarser bins: edges that are among those of the states
"""
_STAND_IN = """\
# {fitting}
# Or give bounds that you can defend by hand, model: {{pi_min: 0.02, gap: 0.3}}: see docs/model.md.
# Until then it is a STAND-IN made of the interval alone, which `run` refuses without --accept-stand-in.
model: stand-in
"""
_HOLD_OUT = """\
A model is fitted on series that are not published, and the roster has every series of the file. Hold some out:
#   {command}
# or fit one on a history of other series, and write `model: model.json`."""
_ONE_SERIES = """\
The file is one series, so none of it can be held out: fit a model on a history of other series, with
# `quiltstream fit`, and write `model: model.json`; where that is of one series, too, with --belief pooled."""
_OPEN_SERIES = """\
A model is fitted on series that are not published. Which series there are is open: answer the questions above first."""
_FITTED = """\
# It is fitted on the series that are not published, and holds for a share of such series, which --cover says:
#   {following}
model: model.json
"""
#: The windows, and who is published.
_WINDOWS_TEXT = """\
# Which windows are published, for every series, also where there are no readings.
windows:
  size: {size}
{sizes}  start: {start}
  {stop}

# Of this query alone, at no further cost:
# by: hour  # a histogram for each hour of the day; or weekday, weekend, month, or several: [weekend, hour]
{bins}
{groups}
"""
_NO_STOP = "# stop:  the file is longer than the look: left out, it ends with the data"
_SIZES = """\
  # every: 1d  # a divisor of size makes them slide
  # size: day  # or week, month: of the calendar in slots.timezone, of 23 or 25 hours where its clock changes
"""
_OF_CALENDAR = """\
  # or day, week, month: of the calendar in slots.timezone, of 23 or 25 hours where its clock changes; 1d is 24 hours
"""
_ROSTER = """\
# Every series of the file, in one group: a histogram of all, with the noise of a single series. Take out the lines of
# series that are not published: a model is fitted on them. Without these two settings each series has a histogram.
roster: {roster}
group_by: group
"""
_PUBLISHED = """\
# The series that are published, in one group: a histogram of all, with the noise of a single series. The others of the
# file are the history that the model is fitted on. Without these two settings each series has a histogram.
roster: {roster}
group_by: group
"""
_NO_ROSTER = """\
# One histogram per series drowns in noise unless windows are long. A roster with the groups gives useful numbers:
# roster: roster.csv  # columns: series, group
# group_by: group
"""
_TEMPLATE = _SOURCE_TEXT + BELIEF_TEXT + _WINDOWS_TEXT + PROMISE_TEXT


@dataclass(frozen=True, slots=True)
class Guess:
    """A settings file and what it assumes."""

    text: str
    said: tuple[tuple[str, str], ...]  # what was guessed, for people
    # the same where so many series are held out as the history of the model; ``None`` for one series, without a roster
    with_history: Callable[[int], str] | None = None
    # settings of a gateway that brings the messages, which are to be written beside them; empty for none
    gateway: str = ""
    answered: str = ""  # the text where each question has its first answer
    questions: tuple[str, ...] = ()  # the keys that are open


def fit_command(settings: Path | str, roster: Path | str, held: int) -> str:
    """The command that fits the model on so many series that are held out."""
    return shlex.join(["quiltstream", "fit", str(settings), "--cover", cover_of(held), "--exclude", str(roster)])


def cover_of(series: int) -> str:
    """The usual cover, or the largest of a history of so few series that it is less."""
    return f"{min(float(USUAL), largest_cover(series)):g}"


def roster_of(output: Path) -> Path:
    """The roster beside a settings file: named after it, so that settings of one folder have rosters of their own."""
    return output.with_name("roster.csv" if output.name == SETTINGS_FILE else f"{name_of(output.stem)}-roster.csv")


def _clock(time_us: int) -> str:
    """An instant without an offset, so that it is of the zone that the settings name, as times of the data are."""
    text = format_instant(time_us).removesuffix("Z")
    return text.removesuffix("T00:00:00")


def number_text(value: float) -> str:
    """A number as YAML reads it back."""
    return f"{value:.{_DIGITS}g}"


def watts_of(unit: str, interval_us: int) -> float | None:
    """The factor from a unit to watts, of energy in a slot to their average; ``None`` of another unit."""
    return WATTS[unit] / (interval_us if unit in ENERGY else 1) if unit in WATTS else None


def measure_text(unit: str, interval_us: int, watts: float | None, *, unknown: str, power: str) -> str:
    """The settings of a unit and its factor, with a note on it."""
    factor = number_text(1.0 if watts is None else watts)
    note = unknown if watts is None else power
    if watts is not None and unit in ENERGY:
        note = f"1 {unit} in a slot of {format_duration(interval_us)} is {factor} W on average"
    return f"  unit: {json.dumps(unit)}\n  scale: {factor}  # {note}\n"


def _edges(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Round numbers near the fifths of what was seen, or, of those above a lowest value that most are, of these.

    Every bin has values, unless all are equal: a bin that no history visits has no place in a chain.
    """
    if not len(values):
        return (0.0,)
    for digits in range(1, _DIGITS + 1):
        for part in (values, values[values > values.min()]):
            kept: list[float] = []
            for edge in _rounded_fifths(part, digits):
                low = kept[-1] if kept else -math.inf
                if ((values >= low) & (values < edge)).any() and (values >= edge).any():
                    kept.append(edge)
            if kept:
                return tuple(kept)
    return (_rounded_fifths(values, 1)[0],)


def _rounded_fifths(values: npt.NDArray[np.float64], digits: int) -> list[float]:
    """The distinct fifths of values, rounded to so many digits, in ascending order; none of no values."""
    fifths = np.quantile(values, [0.2, 0.4, 0.6, 0.8]).tolist() if len(values) else []
    return sorted({float(f"{value:.{digits}g}") for value in fifths})


def edges_text(note: str, edges: Sequence[float], unit: str) -> str:
    """The section of the states."""
    return f"states:  # {note}\n  edges: [{', '.join(map(number_text, edges))}]\n  unit: {unit}\n"


def shared(name: str, zone: str, sink: str, output: str) -> dict[str, str]:
    """What every settings file says: names made of one, the zone, and where the rows go."""
    return {
        "schema": SCHEMA_FILE,
        "zone": zone,
        "zone_note": f"of times without an offset, in the data and in this file{_ZONE if zone == 'UTC' else ''}",
        "query": flow(f"{name}-histogram"),
        "domain": flow(name),
        "sink": sink,
        "output": flow(output),
        "ledger": f"{name}-ledger.db",
    }


def name_of(text: str) -> str:
    """A text as the name of a query or a domain."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:_LONGEST_NAME].strip("-") or "readings"


def _title(look: Look) -> str:
    """What the data are called: as the file, or as the folder of several."""
    if look.rows.files == look.rows.path:
        return without_packing(look.rows.path).stem
    folder = next(one for one in look.rows.files.parents if not glob.has_magic(str(one)))
    return folder.resolve().name or without_packing(look.rows.path).stem


def guess(look: Look, output: Path, zone: str, hold_out: str) -> Guess:
    """Write the settings for a file that was looked at; ``hold_out`` is the command that holds a history out."""
    windows = _windows(look, zone)
    watts = watts_of(look.unit, look.measured.interval_us)
    name = name_of(_title(look))
    roster, path = roster_of(output).name, relative(look.rows.files, output)
    is_grouped = look.names > 1 and not _is_series_open(look)
    fit = partial(fit_command, output.name, roster)

    is_power = watts is not None or any(one.key == "readings.scale" for one in look.questions)

    def compose(held: int, *, is_open: bool) -> str:
        asked = Asked(look.questions, is_open=is_open)
        model, groups = _STAND_IN.format(fitting=_HOLD_OUT.format(command=hold_out)), _ROSTER.format(roster=roster)
        belief = _BELIEF_LINE.format(f"{hold_out}     holds a history")
        if held:
            belief, groups = _BELIEF_LINE.format(f"{fit(held)}     the belief"), _PUBLISHED.format(roster=roster)
            model = _FITTED.format(following=fit(held))
        elif not is_grouped:
            fitting = _OPEN_SERIES if look.names > 1 else _ONE_SERIES
            model, groups, belief = _STAND_IN.format(fitting=fitting), _NO_ROSTER, ""
        edges = POWER_EDGES if is_power else _edges(look.measured.values)
        if is_power and not look.measured.rises and (look.measured.values < 0).any():
            edges = (0.0, *POWER_EDGES)
        return _TEMPLATE.format(
            **shared(name, zone, "parquet", f"{name}-releases.parquet"),
            file=path,
            source=_source(look, path, asked),
            this=shlex.quote(output.name),
            belief=belief,
            readings=_readings(look, name, watts, asked),
            slots=_slots(look, windows, asked),
            zoned=asked.text("slots.timezone", "  ", zone),
            states=_states(look, edges, asked, is_power=is_power),
            missing=asked.text("missing", "", "state" if _needs_state(look) else "public"),
            model=model,
            groups=groups,
            bins="" if look.labels else _BINS.format(number_text(edges[len(edges) // 2])),
            size=windows.size,
            sizes=_sizes(windows),
            start=windows.text(windows.first),
            stop=f"stop: {windows.text(windows.stop)}" if look.rows.complete else _NO_STOP,
        )

    text = compose(0, is_open=False)
    load_settings(text)  # what is written must be accepted, once it is answered
    return Guess(
        compose(0, is_open=True),
        _said(look, watts, windows, zone),
        partial(compose, is_open=True) if is_grouped else None,
        answered=text,
        questions=tuple(one.key for one in look.questions),
    )


def _is_series_open(look: Look) -> bool:
    """Whether a question changes what the series are."""
    selects = [text for one in look.questions if one.key == "readings.select" for text, _ in one.answers]
    return len({text.split(" as series")[0] for text in selects}) > 1


def _needs_state(look: Look) -> bool:
    """Whether missing cells depend on values, so that a missing slot is a state."""
    return look.measured.rises or any(one.key in ("readings.register", "readings.hold") for one in look.questions)


class Asked:
    """The questions of settings by their keys; where they are not open, each has its first answer."""

    def __init__(self, questions: Sequence[Question], *, is_open: bool) -> None:
        self.is_open = is_open
        self.of: dict[str, list[Question]] = {}
        for one in questions:
            self.of.setdefault(one.key, []).append(one)

    def text(self, key: str, indent: str, usual: str = "", note: str = "") -> str:
        """The lines of a key: a question, its first answer, or what it is where nothing is asked; none of nothing."""
        name = key.rsplit(".", 1)[-1]
        if key not in self.of:
            return f"{indent}{name}: {_block(usual, indent)}{note}\n" if usual else ""
        answers = dict(answer for one in self.of[key] for answer in one.answers)
        if not self.is_open:
            first = self.of[key][0].unwritten or next(iter(answers))
            return f"{indent}{name}: {_block(first, indent)}\n"
        lines = [f"# {one.why}" for one in self.of[key]] + [f"{name}: {OPEN}"]
        for answer, meaning in answers.items():
            shown = f"{name}: {answer}"
            if "\n" in answer:
                shown = f"{name}: |-" + "".join(f"\n  {line}" for line in answer.split("\n"))
            first, *more = shown.split("\n")
            lines += [f"# {first}" + (f"  # {meaning}" if meaning else ""), *(f"# {line}" for line in more)]
        return "".join(f"{indent}{line}\n" for line in lines)


def _block(text: str, indent: str) -> str:
    if "\n" not in text:
        return text
    return "|-" + "".join(f"\n{indent}  {line}" for line in text.split("\n"))


def _sizes(windows: _Windows) -> str:
    """What else the length of a window may be; nothing where the data have no day."""
    if windows.size in ("day", "week"):
        return _OF_CALENDAR
    return _SIZES if windows.stop - windows.first >= DAY_US * windows.count else ""


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of the settings; instants are what a clock shows, as microseconds since 1970."""

    start: int  # a midnight no later than the first reading
    first: int  # start of the first window
    stop: int  # end of the last one
    count: int  # how many there are
    size: str  # length of each as the settings say it
    zoned: bool = True  # whether the clock is that of the zone, not that of UTC

    def text(self, time_us: int) -> str:
        """An instant as the settings say it: without an offset where it is of the zone that they name."""
        return _clock(time_us) if self.zoned else format_instant(time_us)

    def said(self, *, complete: bool) -> str:
        """What they are, for people; and how many, where every row was looked at."""
        if self.size in ("day", "week"):
            return plural(self.count, self.size) if complete else f"{self.size}s, {_AS_MANY}"
        return f"{self.count} of {self.size}" if complete else f"of {self.size}, {_AS_MANY}"


def _windows(look: Look, zone: str) -> _Windows:
    """Weeks where there are two of them or more, else days; of the zone's calendar where it is not UTC's.

    Slots that do not fill an hour are not where they were on the zone's clock after it changes, so they are of UTC.
    """
    interval = look.measured.interval_us
    zoned = zone == "UTC" or HOUR_US % interval == 0
    shown = _on_clock if zoned else _in_utc
    begin, last = (shown(int(time), look, zone) for time in (look.measured.times_us[0], look.measured.times_us[-1]))
    day = DAY_US if DAY_US % interval == 0 else 48 * interval
    start = begin // day * day
    end = (last // interval + 1) * interval
    if zone != "UTC" and zoned and end - start >= DAY_US:
        monday = start + (_MONDAY - start // DAY_US) % 7 * DAY_US
        weeks = max(0, end - monday) // (7 * DAY_US)
        if weeks > 1:
            return _Windows(start, monday, monday + weeks * 7 * DAY_US, weeks, "week")
        days = (end - start) // DAY_US
        if not look.rows.complete or _is_filled(begin, start + days * DAY_US, days * DAY_US):
            return _Windows(start, start, start + days * DAY_US, days, "day")
    size = 7 * day if end - start >= 14 * day else day
    count = (end - start) // size
    if not count or (look.rows.complete and not _is_filled(begin, start + count * size, count * size)):
        begin = begin // interval * interval
        return _Windows(start, begin, end, 1, format_duration(end - begin), zoned)
    return _Windows(start, start, start + count * size, count, format_duration(size), zoned)


def _is_filled(begin: int, stop: int, length: int) -> bool:
    """Whether data from an instant on fill half or more of windows that have a length together and end so."""
    return length <= 2 * (stop - begin)


def zone_of(name: str) -> dt.tzinfo:
    """The zone that the command line names."""
    try:
        return time_zone(name)
    except ValueError as error:
        raise CommandError(f"--timezone: {error}") from error


def _on_clock(time_us: int, look: Look, zone: str) -> int:
    """What a clock of the zone shows at a time of the data; times without an offset are what it shows."""
    where = zone_of(zone)
    if look.times.naive:
        return time_us
    offset = dt.datetime.fromtimestamp(time_us // 1_000_000, where).utcoffset() or dt.timedelta()
    return time_us + offset // dt.timedelta(microseconds=1)


def _in_utc(time_us: int, look: Look, zone: str) -> int:
    """The instant of a time of the data; times without an offset are what a clock of the zone shows."""
    if not look.times.naive:
        return time_us
    shown = dt.datetime.fromtimestamp(time_us // 1_000_000, dt.UTC).replace(tzinfo=zone_of(zone))
    return time_us - (shown.utcoffset() or dt.timedelta()) // dt.timedelta(microseconds=1)


def _source(look: Look, path: str, asked: Asked) -> str:
    """The section of the source: on one line, where it asks nothing."""
    options = {name: json.dumps(one) if name == "delimiter" else flow(one) for name, one in look.rows.options.items()}
    given = {look.rows.kind: flow(path), **options}
    if "source.names" not in asked.of:
        return f"source: {{{', '.join(f'{name}: {text}' for name, text in given.items())}}}\n"
    lines = "".join(f"  {name}: {text}\n" for name, text in given.items() if name != "names")
    return f"source:\n{lines}{asked.text('source.names', '  ')}"


def _slots(look: Look, windows: _Windows, asked: Asked) -> str:
    lines = asked.text("slots.of", "  ")
    lines += asked.text("slots.interval", "  ", format_duration(look.measured.interval_us))
    return f"{lines}  origin: {windows.text(windows.start)}\n"


def _readings(look: Look, name: str, watts: float | None, asked: Asked) -> str:
    """The section of the readings."""
    parts = ""
    if look.is_select:
        parts += asked.text("readings.select", "  ", _selected(look, asked))
    else:
        series = f"{{constant: {flow(name)}}}  # the name of the only series"
        if look.series is not None:
            series = f"{flow(look.series)}  # column with the name of the meter or wearer"
        columns = look.times.columns
        time = flow(columns[0]) if len(columns) == 1 else flow(list(columns))
        parts += f"  series: {series}\n  time: {time}\n"
    if look.times.format is not None and look.times.sql is None:
        note = "" if look.times.ambiguous is None else f"  # A GUESS: {look.times.ambiguous[0]} reads these times too"
        parts += asked.text("readings.time_format", "  ", json.dumps(look.times.format), note)
    if look.times.unit is not None:
        parts += f"  time_unit: {look.times.unit}\n"
    if look.measured.in_order:
        parts += _AMBIGUOUS_HOUR
    if look.until is not None:
        parts += f"  until: {flow(look.until)}  # a slot has the label that covers most of it\n"
    if not look.is_select:
        parts += asked.text("readings.value", "  ", flow(look.value), "  # a label" if look.labels else "")
    usual = (
        f"{{gap: {format_duration(max(2 * HOUR_US, 2 * look.measured.interval_us))}}}" if look.measured.rises else ""
    )
    parts += asked.text("readings.register", "  ", usual, _RISES if usual else "")
    parts += asked.text("readings.hold", "  ") + asked.text("readings.stamps", "  ")
    parts += "".join(f"  {key}: {text}\n" for key, text in look.more.items())
    if look.labels:
        return parts
    unknown = "factor from the column's unit to the unit of the edges"
    power = f"1 {look.unit} is {number_text(watts or 1)} W"
    measured = measure_text(look.unit, look.measured.interval_us, watts, unknown=unknown, power=power)
    unit, scale = measured.splitlines(keepends=True)
    return parts + unit + (asked.text("readings.scale", "  ") or scale)


def _selected(look: Look, asked: Asked) -> str:
    """The SELECT; where the column of the value is open, that question is one of the SELECT."""
    for one in asked.of.pop("readings.value", []):
        names = [json.loads(text) if text.startswith('"') else text for text, _ in one.answers]
        made = [replace(look.query, value=f"num({quoted(each)})", value_name=quoted(each)).text for each in names]
        answers = tuple((text, meaning) for text, (_, meaning) in zip(made, one.answers, strict=True))
        asked.of.setdefault("readings.select", []).append(replace(one, key="readings.select", answers=answers))
    return look.query.text


def _states(look: Look, edges: tuple[float, ...], asked: Asked, *, is_power: bool) -> str:
    """The section of the states."""
    if look.labels:
        return "states:\n" + asked.text("states.categories", "  ")
    if is_power:
        return edges_text(USUAL_BINS, edges, "W")
    return edges_text("TAKEN FROM A LOOK AT THE DATA: replace by round numbers chosen without it", edges, '""')


def relative(path: Path, output: Path) -> str:
    """A path from the folder of the settings, by the links that it goes through, where the files may be others soon."""
    where = path.parent.resolve() / path.name if ".." in path.parts else path.absolute()
    folder = output.parent.absolute()
    return os.path.relpath(where, folder if where.is_relative_to(folder) else folder.resolve())


def _said(look: Look, watts: float | None, windows: _Windows, zone: str) -> tuple[tuple[str, str], ...]:
    """What is said of a look at a file."""
    questions = [("asked", f"{one.key}: {one.why}") for one in look.questions]
    rises = "series rise and hardly fall: read as a meter's counter, whose rise in a slot is the value"
    rows = (
        ("series", _said_series(look)),
        ("time", _said_time(look, windows, zone)),
        ("value", _said_value(look, watts)),
        ("counter", rises if look.measured.rises else ""),
        *look.said,
        ("interval", format_duration(look.measured.interval_us)),
        ("windows", windows.said(complete=look.rows.complete)),
        *questions,
    )
    return tuple((name, text) for name, text in rows if text)


def _said_series(look: Look) -> str:
    if look.series is None:
        return "the whole file is one series"
    what = "each file" if look.series == "filename" else f"column {look.series}"
    return f"{what}, {look.names:,} seen" + ("" if look.rows.complete else " in the first rows")


def _said_time(look: Look, windows: _Windows, zone: str) -> str:
    columns = " and ".join(name.strip() or "without a name" for name in look.times.columns)
    read_as = f", read as {look.times.format}" if look.times.format else ""
    naive = look.times.naive
    of_zone = [*(["times without an offset"] if naive else []), *(["days"] if windows.zoned else [])]
    zoned = f"{', and '.join(of_zone)}{',' if len(of_zone) > 1 else ''} are of {zone}" if of_zone else "with offsets"
    if zone == "UTC":
        zoned = "times without an offset are read as UTC"
        local = look.measured.local if naive else ()
        zoned = "; ".join([zoned, *(local_times(one, "--timezone") for one in local)])
    elif look.measured.in_order:
        zoned += f"; {_TWO_HOURS}"
    if naive and any(is_other_clock(name, zone) for name in look.times.columns):
        zoned += f"; {_OTHER_CLOCK[zone != 'UTC']}"
    return f"column {columns}{read_as}; {zoned}"


def _said_value(look: Look, watts: float | None) -> str:
    value = f"column {look.value}" if look.value != "reading_" else "in the columns of numbers"
    if look.labels:
        return f"{value}, labels"
    return f"{value}, {look.unit or NO_UNIT}" + ("" if watts is None else f", times {number_text(watts)} for W")
