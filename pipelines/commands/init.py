"""``quiltstream init``: a commented settings file from a look at a data file, or at messages of a broker.

What it guesses is said, and what its author has to decide is explained beside it; its belief is a stand-in. Of a topic
nothing is committed, and an MQTT broker keeps no session. What is written of messages holds no value of one: the edges
of unknown units are placeholders, and series are not listed.
"""

from __future__ import annotations

import csv
import datetime as dt
import glob
import io
import json
import math
import os
import re
import secrets
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import ValidationError

from ...privacy.estimation.per_series import largest_cover
from ...schemas.files import check_replaceable, write_whole
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import KafkaSource
from ...schemas.settings.gateway import Broker, FolderTarget, GatewaySettings, KafkaTarget, Tls, topic_filter
from ...schemas.settings.job import Settings, load_settings
from ...schemas.settings.mappings import Readings
from ...schemas.settings.places import Constant, RegisterValue, place_text
from ...schemas.slots import DAY_US, HOUR_US, MINUTE_US, format_duration, format_instant, said_duration, time_zone
from ...transforms.payloads.messages import Messages, SourceAwayError
from ..connectors.job_io import JobPath, check_output, job_paths
from ..console import facts, heading, listed, percent, plural, results
from ..errors import CommandError, ExitCode, writing
from ..runners import read_source
from .data_preview import (
    NESTED,
    NO_NUMBER,
    STAMPS_END,
    Look,
    is_doubled,
    is_other_clock,
    local_times,
    look_at,
    without_packing,
)
from .fit import USUAL
from .message_preview import MessageLook, look_at_messages
from .schema import SCHEMA_FILE, is_schema_of_settings, schema_file

if TYPE_CHECKING:
    from ..gateway.connection import Arrived

#: Watts in a unit of power; of one of energy, those of it in a slot of a microsecond.
WATTS = {"MWh": 3_600 * 10**12, "kWh": 3_600 * 10**9, "Wh": 3_600 * 10**6, "MW": 10**6, "kW": 10**3, "W": 1}
_ENERGY = ("MWh", "kWh", "Wh")
POWER_EDGES = (250.0, 500.0, 1000.0, 2000.0)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})

#: The files of the settings, where no other is named, and of a gateway's settings.
SETTINGS_FILE, GATEWAY_FILE = "settings.yaml", "gateway.yaml"

_COUNTER = "series rise and hardly fall: read as a meter's counter, whose rise in a slot is the value"
_WIDE_COUNTER = (
    "series rise and hardly fall, and counters are not read from a wide table: make a row of each reading, with the "
    "columns series, time and value, if they are counters"
)

#: The first Monday, in days since 1970-01-01; names of columns that are shown; and digits of a number in the settings.
_MONDAY, _SHOWN, _DIGITS = 4, 10, 12

#: Share of the readings at a time that their series has already from which it is said.
_MANY_AGAIN = 0.1

#: Characters at most of the name of the data, of which longer names are made; and kinds of characters that no comment
#: of the settings can have: control characters, bytes that are not UTF-8, and line breaks.
_LONGEST_NAME, _NO_TEXT = 150, frozenset({"Cc", "Cs", "Zl", "Zp"})

_ELSEWHERE = "choose another place with -o"
_OTHER_FOLDER = "write the settings into another folder, with -o OTHERFOLDER/settings.yaml"
_USUAL_BINS = "bins everyone would choose"
_NO_UNIT = "of no known unit"
_OTHER_TIMES = "where they are those of the readings, write their column for readings.time"
_OTHER_CLOCK = (
    "by its name it is local: set --timezone to its zone, such as Europe/Berlin",
    "by its name it is of UTC: leave --timezone out, or write a Z behind the times in the data",
)
_NO_TIME = "see how they are written: 24:00 is 00:00 of the day after, and where hours go from 1 to 24, subtract one"
_STAMPS_END = (
    "by its name it has the ends of intervals, and a reading is of the slot that begins at its time; no setting moves "
    "it: where they are ends, subtract the interval from the times in the data"
)
_THOUSANDS = (
    "all values with a point have three digits after it, and the others have none and are below 1000: where the point "
    "separates thousands, write them without it"
)
_AS_MANY = "as many as the data fill"
_AMBIGUOUS = "reads the times too: see which is right, and set time_format"
_PUBLIC_LABELS = "; the settings make them public, and every released row has them"
_PUBLIC_NAMES = (
    "names of columns that are not read, {}: {}; the settings have them in readings.wide: see there what to do where "
    "one is a person"
)
_TWO_HOURS = "an hour that a clock set back doubles is told apart by the order of rows, readings.ambiguous: in-order"
_OTHER_KINDS = "most are of another kind; other devices have a look by their topics, and a job, of their own"
_AGAIN = (
    "are at a time at which their series has another one, and one in a slot counts: see whether it is the series that "
    "is meant, and whether rows stand twice"
)
_UNREAD_TIME = (
    ", which looks like the time of the reading: more messages can be read by the stamp, which is when they came. See "
    "by `quiltstream try` how its times are written, and name it if late readings are to count where they belong"
)
_AT_ONCE = (
    "are at a time at which their series has another one, and one in a slot counts: where they are of several kinds or "
    "meters, choose by readings.where, or name the series by what tells them apart"
)
_MESSAGE_COUNTER = "it rises and hardly falls in the look: read as a meter's counter, whose rise in a slot is the value"

#: Slots where no series had two readings in the look, and edges that say nothing of the values.
_UNSEEN_INTERVAL_US = 15 * MINUTE_US
#: How long windows may wait for late readings.
_LATENESS_US = (15 * MINUTE_US, HOUR_US, 3 * HOUR_US, 6 * HOUR_US, 12 * HOUR_US, DAY_US)
_PLACEHOLDER_EDGES = (1.0, 10.0, 100.0, 1000.0)
_PLACEHOLDERS = "PLACEHOLDERS, made without a look at the values: write round numbers that fit what is measured"
#: Levels before the filter of a subscription that others notice: of MQTT 5, and two of EMQX.
_NOT_ALONE = {"$share": 2, "$queue": 1, "$exclusive": 1}

#: Addresses of brokers.
_ADDRESS = re.compile(
    r"(?:(?P<scheme>mqtts?)://)?(?:(?P<host>[^/@:\s\[\]]+)|\[(?P<six>[0-9a-fA-F:]+)\])(?::(?P<port>\d{1,5}))?"
)

#: Settings for a file: what stands where, as a whole at the end.
_SOURCE_TEXT = """\
# yaml-language-server: $schema={schema}
# Written by `quiltstream init` from a look at {file}:
#   quiltstream check {this}             says what is in the data, for your eyes only
{belief}#   quiltstream run --dry-run {this}     says what it will publish and cost, before any data is read
#   quiltstream run {this}
# Everything in this file is public. docs/settings.md explains every setting.

source: {{{format}: {path}{layout}}}

readings:
{parts}{decimal}{measure}
slots:  # at most one reading counts per series and slot, the latest
  interval: {interval}
  origin: {origin}
  timezone: {zone}  # {zone_note}

"""

_RISES = """
  # A GUESS: it rises and hardly falls, so it is a meter's counter, and a slot has what it rose since the last reading
  # before it; a reading on a boundary belongs to the slot that ends there. If it is none, write the column's name
  # alone."""
_AMBIGUOUS_HOUR = """\
  ambiguous: in-order  # a clock set back doubles an hour of the data: the rows, which are in order, tell the two apart
"""
_WITHOUT = """\
  # THE NAMES IN without BECOME PUBLIC WITH THIS FILE: of columns {}.
"""
_NO_SERIES = "that are taken for no series. If one is, such as a person, take it out"
_NO_TIMES = "that are no time of the day. If one is a person, rename it in the data"

_ZONE = ": a name such as Europe/London, see --timezone"

#: Of every settings file: what is believed and promised; the states; and the model, fitted yet or not.
_BELIEF_TEXT = """\
{states}
# What is believed about missing cells: public (which are missing says nothing of the values),
# state (missing is a state of its own) or {{break: 2h}} (independent after a longer gap).
missing: public

# What is believed about the data: the promise holds for series that are as the belief says, and for no others.
{model}
"""
_PROMISE_TEXT = """\
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

_CATEGORIES = """\
states:  # THE LABELS OF A LOOK AT THE DATA: they are public with this file, and stand in every released row
  categories: [{}]
  # other: other  # the state of every label that is not listed; left out: a reading with such a label is rejected
"""
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

_TEMPLATE = _SOURCE_TEXT + _BELIEF_TEXT + _WINDOWS_TEXT + _PROMISE_TEXT

#: Settings for messages, and of a gateway that brings them.
_MESSAGE_SOURCE_TEXT = """\
# yaml-language-server: $schema={schema}
# Written by `quiltstream init` from a look at {count} of {where}.
# Of the messages it has names of fields, headers and levels of topics alone; no value of them.
#   {trying}
#                                           says what the mapping makes of messages, for your eyes only
#   quiltstream run --dry-run THIS-FILE     says what it will publish and cost, before any data is read
#   quiltstream {run} THIS-FILE
# Everything in this file is public. docs/settings.md and docs/mappings.md explain every setting.

source: {source}

readings:
{readings}
slots:  # at most one reading counts per series and slot, the latest
  interval: {interval}{interval_note}
  timezone: {zone}  # {zone_note}

"""
_MESSAGE_WINDOWS_TEXT = """\
# Which windows are published, for every series of the roster, also where there are no readings.
# start: the day of the latest reading in the look. lateness: how long a window waits for readings that come after later
# ones of others; what comes later still is left out.
windows: {{size: {size}, start: {start}, lateness: {lateness}}}
{live}
# One histogram per series drowns in noise unless windows are long. A roster with the groups gives useful numbers:
# roster: roster.csv  # columns: series, group
# group_by: group

"""
_LIVE = """\
# What silence does: a source that sends nothing for an hour no longer holds its windows back, and their rows say
# `silent`. Longer than the meters are ever away together; left out, silence waits for ever.
live: {idle: 1h}
"""
_BATCH_OF_COUNTERS = """\
# Counters in a folder are read by `quiltstream run` when the files are there; a live job reads them through Kafka.
"""
_MESSAGE_STAND_IN = """\
# Fit one on a history of series that are not published, which is files (docs/model.md), such as a gateway writes: with
# `source: {avro: spool/*.avro}` a copy of this file reads them. Then write `model: model.json`.
# Until then it is a STAND-IN made of the interval alone, which `run` refuses without --accept-stand-in.
model: stand-in
"""
_MESSAGE_TEMPLATE = _MESSAGE_SOURCE_TEXT + _BELIEF_TEXT + _MESSAGE_WINDOWS_TEXT + _PROMISE_TEXT
_GATEWAY_TEMPLATE = """\
# Written by `quiltstream init`: brings the messages of the broker into a folder, from which the job reads them.
#   quiltstream gateway --check THIS-FILE
#   quiltstream gateway THIS-FILE
# docs/gateway.md explains every setting; with a password, user: NAME and password: {{env: MQTT_PASSWORD}}.
mqtt:
  host: {host}
  port: {port}
  client_id: quiltstream-{name}  # each gateway has its own, for ever
{tls}forward:
  topics: [{filter}]
  to: {{folder: {{path: spool}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line gives: one of ``data``, ``from_topic`` and ``from_mqtt``, and what says more of it."""

    data: Path | None  # file, folder or pattern
    output: Path  # settings file to write
    hold_out: float  # share of the series of ``data`` that are not published
    value: str | None  # column, or path, of the value; guessed if left out
    timezone: str  # of times without an offset, and of days
    from_topic: str | None  # a Kafka topic
    servers: str | None  # its brokers
    options: tuple[str, ...]  # of librdkafka: NAME=VALUE, a secret by its place as ``{env: KAFKA_PASSWORD}``
    registry: str | None  # URL of the schema registry
    from_mqtt: str | None  # filter of topics at an MQTT broker
    broker: str | None  # its address
    gateway: Path | None  # settings of a gateway that has it instead
    messages: int  # how many are looked at, at most
    seconds: float  # a look at MQTT, at most
    force: bool  # whether files that are there are replaced


@dataclass(frozen=True, slots=True)
class Guess:
    """A settings file and what it assumes."""

    text: str
    said: tuple[tuple[str, str], ...]  # what was guessed, for people
    # the same where so many series are held out as the history of the model; ``None`` for one series, without a roster
    with_history: Callable[[int], str] | None = None
    # settings of a gateway that brings the messages, which are to be written beside them; empty for none
    gateway: str = ""


def write_settings(options: Options) -> None:
    """Write a settings file, and what goes beside it, from a look; say what was guessed."""
    output, data = options.output, options.data
    if sum(one is not None for one in (data, options.from_topic, options.from_mqtt)) != 1:
        raise CommandError("give one of DATA, --from-topic TOPIC and --from-mqtt FILTER", ExitCode.SETTINGS)
    if output.is_dir():
        raise CommandError(f"-o {output}: it is a folder; name a file in it, such as {output / 'settings.yaml'}")
    if data is None:
        guessed, name = _guess_from_broker(options), options.from_topic or options.from_mqtt
        said, held = write(guessed, output, force=options.force)
    else:
        for field, text in (("DATA", _relative(data, output)), ("-o", output.name), ("--value", options.value or "")):
            if any(unicodedata.category(character) in _NO_TEXT for character in text):
                raise CommandError(
                    f"{field}: {text!r} has a line break, a control character or a byte that is not UTF-8, and the "
                    "settings can have none of these; give it another name"
                )
        look = look_at(data, options.value, options.timezone)
        hold_out = _init_command(_relative(look.files, output), output.name, options)
        guessed, name = guess(look, output, options.timezone, hold_out), data.name
        said, held = write(guessed, output, force=options.force, hold_out=options.hold_out)
    console = results()
    heading(console, f"{output}: written from a look at {name}")
    facts(console, [*guessed.said, *said])
    console.print(f"\nRead it, {_following(options, guessed, held)}", soft_wrap=True)


def _following(options: Options, guessed: Guess, held: int) -> str:
    """What to do next, with a command that works."""
    output = options.output
    if held:
        return f"then: {_fit_command(output, roster_of(output), held)}"
    if guessed.with_history is not None:
        return f"then hold a history for its model out: {_init_command(str(options.data), str(output), options)}"
    begin = "" if options.data is None else "and see its model, a stand-in, which run refuses; "
    beside = f"; {output.with_name(GATEWAY_FILE)} brings the messages" if guessed.gateway else ""
    return f"{begin}then: quiltstream run --dry-run {output}{beside}"


def _init_command(data: str, output: str, options: Options) -> str:
    """The command that holds a history out of the same data."""
    given = {
        "-o": output if output != SETTINGS_FILE else None,
        "--value": options.value,
        "--timezone": options.timezone if options.timezone != "UTC" else None,
    }
    more = [word for option, text in given.items() if text is not None for word in (option, text)]
    return shlex.join(["quiltstream", "init", data, "--hold-out", "0.5", "--force", *more])


def _fit_command(settings: Path | str, roster: Path | str, held: int) -> str:
    """The command that fits the model on so many series that are held out."""
    return shlex.join(["quiltstream", "fit", str(settings), "--cover", cover_of(held), "--exclude", str(roster)])


def cover_of(series: int) -> str:
    """The usual cover, or the largest of a history of so few series that it is less."""
    return f"{min(float(USUAL), largest_cover(series)):g}"


def _guess_from_broker(options: Options) -> Guess:
    # a look lasts, so what would stop its end stops its begin
    beside = [options.output.with_name(GATEWAY_FILE)] if options.broker is not None else []
    check_places(options.output, *beside, force=options.force)
    if options.from_topic is not None:
        return from_topic(options.from_topic, options)
    return from_mqtt(options.from_mqtt or "", options)


def roster_of(output: Path) -> Path:
    """The roster beside a settings file: named after it, so that settings of one folder have rosters of their own."""
    return output.with_name("roster.csv" if output.name == SETTINGS_FILE else f"{name_of(output.stem)}-roster.csv")


def _word(text: str) -> str:
    """A text as YAML reads it back: in quotes where it may be a day, a number or another value than a text."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


def _clock(time_us: int) -> str:
    """An instant without an offset, so that it is of the zone that the settings name, as times of the data are."""
    text = format_instant(time_us).removesuffix("Z")
    return text.removesuffix("T00:00:00")


def number_text(value: float) -> str:
    """A number as YAML reads it back."""
    return f"{value:.{_DIGITS}g}"


def _watts(unit: str, interval_us: int) -> float | None:
    """The factor from a unit to watts, of energy in a slot to their average; ``None`` of another unit."""
    return WATTS[unit] / (interval_us if unit in _ENERGY else 1) if unit in WATTS else None


def _measure(unit: str, interval_us: int, watts: float | None, *, unknown: str, power: str) -> str:
    """The settings of a unit and its factor, with a note on it."""
    factor = number_text(1.0 if watts is None else watts)
    note = unknown if watts is None else power
    if watts is not None and unit in _ENERGY:
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


def _edges_text(note: str, edges: Sequence[float], unit: str) -> str:
    return f"states:  # {note}\n  edges: [{', '.join(map(number_text, edges))}]\n  unit: {unit}\n"


def _shared(name: str, zone: str, sink: str, output: str) -> dict[str, str]:
    """What every settings file says: names made of one, the zone, and where the rows go."""
    return {
        "schema": SCHEMA_FILE,
        "zone": zone,
        "zone_note": f"of times without an offset, in the data and in this file{_ZONE if zone == 'UTC' else ''}",
        "query": _word(f"{name}-histogram"),
        "domain": _word(name),
        "sink": sink,
        "output": _word(output),
        "ledger": f"{name}-ledger.db",
    }


def name_of(text: str) -> str:
    """A text as the name of a query or a domain."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:_LONGEST_NAME].strip("-") or "readings"


def _title(look: Look) -> str:
    """What the data are called: as the file, or as the folder of several."""
    if look.files == look.path:
        return without_packing(look.path).stem
    folder = next(one for one in look.files.parents if not glob.has_magic(str(one)))
    return folder.resolve().name or without_packing(look.path).stem


def guess(look: Look, output: Path, zone: str, hold_out: str) -> Guess:
    """Write the settings for a file that was looked at; ``hold_out`` is the command that holds a history out."""
    windows = _windows(look, zone)
    watts = _watts(look.unit, look.measured.interval_us)
    edges = _edges(look.measured.values) if watts is None else POWER_EDGES
    unknown = "factor from the column's unit to the unit of the edges"
    power = f"1 {look.unit} is {number_text(watts or 1)} W"
    measure = _measure(look.unit, look.measured.interval_us, watts, unknown=unknown, power=power)
    name = name_of(_title(look))
    roster, path = roster_of(output).name, _relative(look.files, output)
    compose = partial(
        _TEMPLATE.format,
        **_shared(name, zone, "parquet", f"{name}-releases.parquet"),
        file=path,
        format=look.format,
        path=_word(path),
        layout=_layout(look),
        decimal="" if look.layout.decimal == "." or look.columns.labels else '  decimal: ","\n',
        this=shlex.quote(output.name),
        parts=_parts(look, name, zone),
        measure="" if look.columns.labels else measure,
        interval=format_duration(look.measured.interval_us),
        origin=windows.text(windows.start),
        states=_states(look, edges, is_power=watts is not None),
        bins="" if look.columns.labels else _BINS.format(number_text(edges[len(edges) // 2])),
        size=windows.size,
        sizes=_sizes(windows),
        start=windows.text(windows.first),
        stop=f"stop: {windows.text(windows.stop)}" if look.complete else _NO_STOP,
    )
    is_grouped = look.columns.names > 1
    fitting = _HOLD_OUT.format(command=hold_out) if is_grouped else _ONE_SERIES
    text = compose(
        belief=_BELIEF_LINE.format(f"{hold_out}     holds a history") if is_grouped else "",
        model=_STAND_IN.format(fitting=fitting),
        groups=_ROSTER.format(roster=roster) if is_grouped else _NO_ROSTER,
    )
    load_settings(text)  # what is written must be accepted as it is

    def with_history(held: int) -> str:
        fit = _fit_command(output.name, roster, held)
        model, groups = _FITTED.format(following=fit), _PUBLISHED.format(roster=roster)
        return compose(belief=_BELIEF_LINE.format(f"{fit}     the belief"), model=model, groups=groups)

    return Guess(text, _said(look, watts, windows, zone), with_history if is_grouped else None)


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
        if not look.complete or _is_filled(begin, start + days * DAY_US, days * DAY_US):
            return _Windows(start, start, start + days * DAY_US, days, "day")
    size = 7 * day if end - start >= 14 * day else day
    count = (end - start) // size
    if not count or (look.complete and not _is_filled(begin, start + count * size, count * size)):
        begin = begin // interval * interval
        return _Windows(start, begin, end, 1, format_duration(end - begin), zoned)
    return _Windows(start, start, start + count * size, count, format_duration(size), zoned)


def _is_filled(begin: int, stop: int, length: int) -> bool:
    """Whether data from an instant on fill half or more of windows that have a length together and end so."""
    return length <= 2 * (stop - begin)


def _zone(name: str) -> dt.tzinfo:
    try:
        return time_zone(name)
    except ValueError as error:
        raise CommandError(f"--timezone: {error}") from error


def _on_clock(time_us: int, look: Look, zone: str) -> int:
    """What a clock of the zone shows at a time of the data; times without an offset are what it shows."""
    where = _zone(zone)
    if look.naive:
        return time_us
    offset = dt.datetime.fromtimestamp(time_us // 1_000_000, where).utcoffset() or dt.timedelta()
    return time_us + offset // dt.timedelta(microseconds=1)


def _in_utc(time_us: int, look: Look, zone: str) -> int:
    """The instant of a time of the data; times without an offset are what a clock of the zone shows."""
    if not look.naive:
        return time_us
    shown = dt.datetime.fromtimestamp(time_us // 1_000_000, dt.UTC).replace(tzinfo=_zone(zone))
    return time_us - (shown.utcoffset() or dt.timedelta()) // dt.timedelta(microseconds=1)


def _is_in_order(look: Look, zone: str) -> bool:
    """Whether the times of a series fall in an hour that the zone's clock doubles, from row to row, and in no other.

    Where slots are shorter than the hour, a time that stands twice there may be one row twice.
    """
    if not look.naive or look.columns.until is not None or look.columns.wide == "times":
        return False
    where, found = _zone(zone), False
    for pair in look.measured.falls_us.T.tolist():
        shown = (dt.datetime.fromtimestamp(time // 1_000_000, dt.UTC).replace(tzinfo=where) for time in pair)
        are_doubled = all(map(is_doubled, shown))
        falls = pair[1] < pair[0] or look.measured.interval_us >= HOUR_US
        if are_doubled != falls:
            return False
        found = found or are_doubled
    return found


def _parts(look: Look, name: str, zone: str) -> str:
    """Where the parts of a reading are."""
    columns, without = look.columns, look.beside.without
    series = f"  series: {{constant: {_word(name)}}}  # the name of the only series\n"
    if columns.series is not None:
        series = f"  series: {_word(columns.series)}  # column with the name of the meter or wearer\n"
    time = _word(columns.time[0]) if len(columns.time) == 1 else f"[{', '.join(map(_word, columns.time))}]"
    parts = f"{'' if columns.wide == 'series' else series}  time: {time}{_time_more(look)}\n"
    parts += _AMBIGUOUS_HOUR if _is_in_order(look, zone) else ""
    if columns.until is not None:
        parts += f"  until: {_word(columns.until)}  # a slot has the label that covers most of it\n"
    if columns.labels:
        return f"{parts}  value: {_word(columns.value)}  # a label\n"
    if columns.wide is None:
        is_counter = look.measured.rises
        value = f"{{register: {{column: {_word(columns.value)}}}}}{_RISES}" if is_counter else _word(columns.value)
        return f"{parts}  value: {value}\n"
    if without:
        parts += _WITHOUT.format(_NO_TIMES if columns.wide == "times" else _NO_SERIES)
    others = f", without: [{', '.join(map(_word, without))}]" if without else ""
    what = "a column for each time of the day" if columns.wide == "times" else "every other column is a series"
    return f"{parts}  wide: {{columns: {columns.wide}{others}}}  # {what}\n"


def _states(look: Look, edges: tuple[float, ...], *, is_power: bool) -> str:
    """The section of the states."""
    if look.columns.labels:
        return _CATEGORIES.format(", ".join(map(_word, look.columns.labels)))
    if is_power:
        return _edges_text(_USUAL_BINS, edges, "W")
    return _edges_text("TAKEN FROM A LOOK AT THE DATA: replace by round numbers chosen without it", edges, '""')


def _layout(look: Look) -> str:
    """What else the source needs to read a CSV file."""
    layout, given = look.layout, ""
    if layout.delimiter != ",":
        given += f", delimiter: {json.dumps(layout.delimiter)}"
    return given if layout.encoding == "utf-8" else f"{given}, encoding: {layout.encoding}"


def _relative(path: Path, output: Path) -> str:
    """A path from the folder of the settings, by the links that it goes through, where the files may be others soon."""
    where = path.parent.resolve() / path.name if ".." in path.parts else path.absolute()
    folder = output.parent.absolute()
    return os.path.relpath(where, folder if where.is_relative_to(folder) else folder.resolve())


def _time_more(look: Look) -> str:
    lines = ""
    if look.columns.time_format is not None:
        lines += f"\n  time_format: {json.dumps(look.columns.time_format)}"
    if look.ambiguous is not None:
        lines += f"  # A GUESS: {look.ambiguous} reads these times too; nothing in them tells day from month"
    if look.columns.time_unit is not None:
        lines += f"\n  time_unit: {look.columns.time_unit}"
    return lines


def _said(look: Look, watts: float | None, windows: _Windows, zone: str) -> tuple[tuple[str, str], ...]:
    """What is said of a look at a file."""
    columns, beside, lost, is_long = look.columns, look.beside, look.lost, look.columns.wide is None
    numbers = listed(beside.numbers, _SHOWN)
    not_used = f"columns that are none of values: {numbers}; where one is, see readings.wide in the file, and where "
    not_used += "one alone is, use --value"
    if is_long:
        not_used = f"also numeric: {numbers}: use --value, or readings.wide if each of them is a series of its own"
    are_ends = not look.measured.rises and any(map(STAMPS_END.search, columns.time))
    is_again = look.measured.again >= _MANY_AGAIN
    rows = (
        ("series", True, _said_series(look)),
        ("at once", is_again, f"{percent(look.measured.again)} of the readings {_AGAIN}"),
        ("time", True, _said_time(look, windows, zone)),
        ("other times", beside.times, f"in {listed(beside.times, _SHOWN)}: {_OTHER_TIMES}"),
        ("no time", lost.no_time, f"{percent(lost.no_time)} of the rows, rejected: {_NO_TIME}"),
        ("ends", are_ends, _STAMPS_END),
        ("value", True, _said_value(look, watts)),
        ("no number", lost.no_number, f"{percent(lost.no_number)} of it, rejected: {NO_NUMBER}"),
        ("thousands", is_long and columns.value in look.layout.grouped, _THOUSANDS),
        ("counter", look.measured.rises, _COUNTER if is_long else _WIDE_COUNTER),
        ("not used", numbers, not_used),
        ("nested", beside.nested, f"objects and lists, as in {listed(beside.nested, _SHOWN)}, {NESTED}"),
        ("not read", beside.unread, f"numbers in {listed(beside.unread, _SHOWN)}: {NO_NUMBER}"),
        ("labels", beside.labels, f"in {', '.join(beside.labels[:_SHOWN])}: --value counts them"),
        ("made public", beside.without, _PUBLIC_NAMES.format(len(beside.without), listed(beside.without, _SHOWN))),
        ("day or month", look.ambiguous is not None, f"{look.ambiguous} {_AMBIGUOUS}"),
        ("interval", True, format_duration(look.measured.interval_us)),
        ("windows", True, windows.said(complete=look.complete)),
    )
    return tuple((name, text) for name, is_said, text in rows if is_said)


def _said_series(look: Look) -> str:
    columns = look.columns
    if columns.wide == "series":
        return f"a wide table: {len(columns.columns):,} columns from {columns.value} on are a series each"
    if columns.series is None:
        return "the whole file is one series"
    return f"column {columns.series}, {columns.names:,} seen" + ("" if look.complete else " in the first rows")


def _said_time(look: Look, windows: _Windows, zone: str) -> str:
    columns = " and ".join(name.strip() or "without a name" for name in look.columns.time)
    read_as = f", read as {look.columns.time_format}" if look.columns.time_format else ""
    of_zone = [*(["times without an offset"] if look.naive else []), *(["days"] if windows.zoned else [])]
    zoned = f"{', and '.join(of_zone)}{',' if len(of_zone) > 1 else ''} are of {zone}" if of_zone else "with offsets"
    if zone == "UTC":
        zoned = "times without an offset are read as UTC"
        local = look.measured.local if look.naive else ()
        zoned = "; ".join([zoned, *(local_times(one, "--timezone") for one in local)])
    elif _is_in_order(look, zone):
        zoned += f"; {_TWO_HOURS}"
    if look.naive and any(is_other_clock(name, zone) for name in look.columns.time):
        zoned += f"; {_OTHER_CLOCK[zone != 'UTC']}"
    return f"column {columns}{read_as}; {zoned}"


def _said_value(look: Look, watts: float | None) -> str:
    columns = look.columns
    value = f"column {columns.value}" if columns.wide is None else "in the columns of the series"
    if columns.wide == "times":
        value = f"a wide table: {len(columns.columns):,} columns from {columns.value} on are a time of the day each"
    if columns.labels:
        return f"{value}, {len(columns.labels)} labels: {listed(columns.labels, _SHOWN)}{_PUBLIC_LABELS}"
    return f"{value}, {look.unit or _NO_UNIT}" + ("" if watts is None else f", times {number_text(watts)} for W")


def check_places(output: Path, *beside: Path, force: bool) -> tuple[Path, ...]:
    """Find what is there where settings are to be written, their schema and what else goes beside them.

    Raises:
        CommandError: something is, and is not to be replaced.
    """
    schema = output.with_name(SCHEMA_FILE)
    there = [path for path in (output, schema, *beside) if os.path.lexists(path)]
    there = [path for path in there if not (path == schema and is_schema_of_settings(path))]
    if there and not force:
        names = " and ".join(map(str, there))
        are, them = ("it exists", "it") if len(there) == 1 else ("they exist", "them")
        raise CommandError(f"{names}: {are} already; give another folder with -o, or --force to replace {them}")
    for path in there:  # before the first is replaced
        with writing(path, _ELSEWHERE):
            check_replaceable(path)
    return tuple(there)


def write(guessed: Guess, output: Path, *, force: bool, hold_out: float = 0.0) -> tuple[list[tuple[str, str]], int]:
    """Write the settings file with its JSON Schema, and a roster with the published series in one group.

    A share of the series may be held out: the history that a model is fitted on, chosen by the order of names alone.

    Returns:
        What is said of what was written beside the settings, and how many series are held out.
    """
    files = {output.with_name(SCHEMA_FILE): schema_file(), output: guessed.text}
    roster, with_history = roster_of(output), guessed.with_history
    beside = [roster] if with_history is not None else [output.with_name(GATEWAY_FILE)] if guessed.gateway else []
    settings = load_settings(guessed.text, folder=output.parent)
    sources = [one for one in job_paths(settings) if one.field.startswith("source")]
    for path in (*files, *beside):
        _check_no_data(path, sources)  # first, as nothing replaces data
    there = check_places(output, *beside, force=force)
    replaced = [("replaced", ", ".join(path.name for path in there))] if there else []
    if with_history is None:
        if hold_out:
            why = (text for name, text in guessed.said if name in ("at once", "nested"))
            raise CommandError(
                "; ".join(["--hold-out: the data are one series, so none can be held out of what is published", *why])
            )
        _write(dict.fromkeys(beside, guessed.gateway) | files)
        return replaced, 0
    with writing(output, _ELSEWHERE):
        # the data are named from this folder, by a path that may lead out of it again
        output.parent.mkdir(parents=True, exist_ok=True)
    every = series_of(settings)
    names = _published(every, hold_out)
    held = len(every) - len(names)
    made = io.StringIO(newline="")
    csv.writer(made, lineterminator="\n").writerows([("series", "group"), *((name, "all") for name in names)])
    _write(files | {output: with_history(held) if held else guessed.text, roster: made.getvalue()})
    published = [(roster.name, f"{len(names):,} series, in one group")] if names else []
    return [*published, *([("held out", _said_held(held))] if held else []), *replaced], held


def _said_held(held: int) -> str:
    """What a history of so many series is, and is worth where it is short."""
    few = "" if cover_of(held) == USUAL else f"; a further series is covered with probability {held}/{held + 1} at most"
    return f"{held:,} series, the history of the model{few}"


def _published(every: Sequence[str], hold_out: float) -> list[str]:
    """The names that are published: evenly by their order, so that neighbours differ."""
    names = [one for at, one in enumerate(every) if math.floor((at + 1) * hold_out) == math.floor(at * hold_out)]
    if hold_out and (not names or len(names) == len(every)):
        raise CommandError(
            f"--hold-out {hold_out:g}: of {len(every)} series that leaves {len(every) - len(names)} for the history "
            f"and {len(names)} to publish; give a share that leaves some of both"
        )
    return names


def _check_no_data(path: Path, sources: Sequence[JobPath]) -> None:
    """Check that a file that is to be written is no data, and that no pattern would find it from then on."""
    try:
        check_output(path, sources, path.name)
    except SettingsError as error:
        if os.path.lexists(path):
            raise CommandError(f"{error}: {_OTHER_FOLDER}") from error
        raise CommandError(
            f"{sources[0].field}: {sources[0].path} would read {path.name}, too, which is written beside the settings; "
            f"{_OTHER_FOLDER}"
        ) from error


def _write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        with writing(path, _ELSEWHERE):
            write_whole(path, text)


def series_of(settings: Settings) -> list[str]:
    """The names of all series in the files of a source, sorted.

    Raises:
        CommandError: there is none, because every row is rejected.
    """
    names, lost = set[str](), Counter[RejectReason]()
    for _, decoded in read_source(settings).decoded():
        for one in decoded.rejects:
            lost[one.reason] += len(one.positions)
        if decoded.readings is not None:
            names.update(decoded.readings.column("series").unique().to_pylist())
    if not names:
        why = "; ".join(f"{rows:,} rejected: {one.text}" for one, rows in lost.items())
        raise CommandError(f"a run has no reading of the data: {why}", ExitCode.SOURCE)
    return sorted(names)


def from_topic(topic: str, options: Options) -> Guess:
    """Settings from the last messages of a Kafka topic; nothing is committed, and no group is left."""
    from ...transforms.kafka.client import Cluster, KafkaUnavailableError  # noqa: PLC0415 - of an extra
    from ...transforms.kafka.source import last_messages  # noqa: PLC0415

    if options.servers is None:
        raise CommandError("--servers HOST:PORT is missing: where the brokers of --from-topic are")
    given: dict[str, Any] = {"servers": options.servers, "topic": topic}
    given |= {"options": dict(map(_option, options.options))} if options.options else {}
    given |= {} if options.registry is None else {"registry": {"url": options.registry}}
    source = _checked(given)
    schemas = None
    if source.registry is not None:
        from ...transforms.kafka.schema_registry import RegistrySchemas  # noqa: PLC0415 - of an extra

        schemas = RegistrySchemas(source.registry.url, {})
    try:
        messages = last_messages(Cluster(options.servers, source.options), (topic,), options.messages)
    except KafkaUnavailableError as error:
        raise CommandError(f"--from-topic {topic}: {error}", ExitCode.SOURCE) from error
    where = f"topic {topic} at {options.servers}"
    try:
        look = look_at_messages(
            messages, where, value=options.value, timezone=options.timezone, only=topic, schemas=schemas
        )
    except SourceAwayError as error:
        raise CommandError(f"--registry: {error}", ExitCode.SOURCE) from error
    origin = Origin(where, topic, {"kafka": given}, "quiltstream try THIS-FILE --from-topic 20")
    return guess_messages(look, origin, options.timezone)


def _option(given: str) -> tuple[str, Any]:
    name, mark, value = given.partition("=")
    try:
        if name and mark:
            return name, yaml.safe_load(value)
    except yaml.YAMLError:
        pass
    raise CommandError(
        f"--option {name}: write NAME=VALUE with an option of librdkafka, a secret as NAME={{env: VARIABLE}}"
    )


def _checked(given: Mapping[str, Any]) -> KafkaSource:
    try:
        return KafkaSource.model_validate(given)
    except ValidationError as error:
        problems = (f"source.kafka.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise SettingsError(["; ".join(problems)]) from None


def from_mqtt(filter_: str, options: Options) -> Guess:
    """Settings of a job, and of a gateway unless there is one, from what an MQTT broker sends meanwhile."""
    from ..gateway.connection import Session, listen  # noqa: PLC0415 - of an extra
    from ..gateway.run import broker_of  # noqa: PLC0415

    levels = _levels(filter_)
    mqtt, settings = _broker_of(options)
    given = broker_of(mqtt, Path if settings is None else settings.path)
    own = f"quiltstream-init-{secrets.token_hex(4)}"
    session = Session(**given, client_id=own, filters=(filter_,), packet=1 << 20)
    try:
        messages = _messages_of(listen(session, options.messages, options.seconds))
    except CommandError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    where = f"{filter_} at {mqtt.host}:{mqtt.port_in_use}"
    if not len(messages):
        raise CommandError(
            f"{where}: no message came within {options.seconds:g} s; check the filter, let a device send, or wait "
            "longer with --seconds",
            ExitCode.SOURCE,
        )
    only = next((level for level in reversed(levels) if not set("+#$") & set(level)), "meter")
    wild = [at for at, level in enumerate(levels, 1) if level == "+"]
    hint = "; or wait longer, with --seconds"
    look = look_at_messages(
        messages, where, value=options.value, timezone=options.timezone, levels=wild, only=only, hint=hint
    )
    if settings is not None:
        look = replace(look, readings=_of_filter(look.readings, filter_, levels, settings))
    lines = not any(b"\n" in (one or b"") for one in messages.payloads)
    return guess_messages(look, _origin_of(filter_, only, where, mqtt, settings, lines=lines), options.timezone)


def _of_filter(
    readings: Mapping[str, Any], filter_: str, levels: Sequence[str], gateway: GatewaySettings
) -> dict[str, Any]:
    """A mapping that takes messages of the filter alone, where the gateway brings others to the same place."""
    forward = gateway.forward
    # a preset has conditions of its own, which others would replace
    if forward.topics == [filter_] or "preset" in readings:
        return dict(readings)
    hashed = forward.pseudonyms.level if forward.pseudonyms is not None else ()
    words = [(at, word) for at, word in enumerate(levels, 1) if word and word not in "+#" and at not in hashed]
    where = [*({"topic": at, "equals": word} for at, word in words), *readings.get("where", ())]
    return {**readings, **({"where": where} if where else {})}


def _levels(filter_: str) -> list[str]:
    """The levels of a filter of topics whose messages others do not miss for it."""
    try:
        levels = topic_filter(filter_).split("/")
    except ValueError as error:
        raise CommandError(f"--from-mqtt: {error}") from error
    plain = "/".join(levels[_NOT_ALONE.get(levels[0], 0) :])
    if plain != filter_:
        raise CommandError(
            f"--from-mqtt: {filter_!r} would take messages away from those that share it, or keep them out; look at "
            f"{plain!r}, and write the other into the gateway's settings"
        )
    return levels


def _messages_of(heard: Sequence[tuple[Arrived, int]]) -> Messages:
    """Messages of a broker as a job has them; those that the broker had kept with the header that a gateway writes."""
    return Messages(
        payloads=[one.payload for one, _ in heard],
        topics=[one.topic for one, _ in heard],
        keys=[None] * len(heard),
        headers=[(("mqtt-retain", b"1"),) if one.retain else () for one, _ in heard],
        stamps_us=np.array([stamp for _, stamp in heard], dtype=np.int64),
        positions=np.arange(len(heard), dtype=np.int64),
    )


def _broker_of(options: Options) -> tuple[Broker, GatewaySettings | None]:
    """The broker, and the settings of the gateway that names it."""
    if (options.broker is None) == (options.gateway is None):
        raise CommandError(
            "give --broker HOST:PORT (mqtts://HOST:PORT with TLS), or --gateway FILE for a user, a password or "
            "certificates of your own"
        )
    if options.gateway is None:
        return _broker(options.broker or ""), None
    settings = GatewaySettings.read(options.gateway)
    return settings.mqtt, settings


def _broker(text: str) -> Broker:
    """The broker of an address."""
    match = _ADDRESS.fullmatch(text)
    if match is not None:
        with suppress(ValidationError):
            return Broker(
                host=match["host"] or match["six"],
                port=int(match["port"]) if match["port"] else None,
                client_id="quiltstream-init",
                tls=Tls() if match["scheme"] == "mqtts" else None,
            )
    raise CommandError(
        "--broker is HOST, HOST:PORT, mqtt://HOST:PORT or mqtts://HOST:PORT; for a user and a password write them into "
        "a gateway's settings, and give --gateway FILE"
    )


def _origin_of(
    filter_: str, name: str, where: str, mqtt: Broker, gateway: GatewaySettings | None, *, lines: bool
) -> Origin:
    """What brings the messages to the job: the gateway that there is, or one of its own.

    Where messages are not ``lines``, as telegrams are not, each is tried by itself.
    """
    listening = f"mosquitto_sub {_client_options(mqtt)} -t {shlex.quote(filter_)}"
    topic = "TOPIC" if set("+#") & set(filter_) else shlex.quote(filter_)
    trying = f"{listening} -C 1 | quiltstream try THIS-FILE - --topic {topic}"
    if lines:
        trying = f"{listening} -v -C 20 | quiltstream try THIS-FILE - --topics"
    target = None if gateway is None else gateway.forward.to.chosen
    if isinstance(target, KafkaTarget) and gateway is not None:
        options = target.model_dump(mode="json")["options"]
        source: dict[str, Any] = {"servers": target.servers, "topic": target.topic}
        return Origin(where, name, {"kafka": source | ({"options": options} if options else {})}, trying)
    if isinstance(target, FolderTarget) and gateway is not None:
        return Origin(where, name, {"avro": f"{gateway.path(target.path).absolute()}/*.avro"}, trying, rereads=False)
    text = _GATEWAY_TEMPLATE.format(
        host=_flow(mqtt.host),
        port=mqtt.port_in_use,
        name=name_of(name),
        tls="" if mqtt.tls is None else "  tls: {}  # the system's authorities\n",
        filter=json.dumps(filter_),
    )
    GatewaySettings.load(text)
    return Origin(where, name, {"avro": "spool/*.avro"}, trying, rereads=False, gateway=text)


def _client_options(mqtt: Broker) -> str:
    """How Mosquitto's clients reach a broker; a password is left to who calls them."""
    said = f"-h {mqtt.host} -p {mqtt.port_in_use}"
    if mqtt.tls is not None:
        said += " --tls-use-os-certs" if mqtt.tls.ca is None else f" --cafile {shlex.quote(mqtt.tls.ca)}"
    if mqtt.user is not None:
        said += f" -u {shlex.quote(mqtt.user) if isinstance(mqtt.user, str) else 'USER'} -P PASSWORD"
    return said


def guess_messages(look: MessageLook, origin: Origin, zone: str = "UTC") -> Guess:
    """Write the settings for messages that were looked at."""
    interval = look.interval_us or _UNSEEN_INTERVAL_US
    is_device_energy = look.unit in _ENERGY and not look.rises  # a power where the value is what was used in a slot
    watts = None if is_device_energy else _watts(look.unit, interval)
    unknown = "factor from the unit of the values to the unit of the edges"
    if is_device_energy:
        unknown = "energy of whatever interval the device means"
    measure = _measure(look.unit, interval, watts, unknown=unknown, power=f"{look.unit} to W")
    states = _edges_text(_USUAL_BINS, POWER_EDGES, "W")
    if watts is None:
        states = _edges_text(_PLACEHOLDERS, _PLACEHOLDER_EDGES, json.dumps(look.unit))
    named = name_of(origin.name)
    whole = Readings.model_validate(look.readings)
    lines = [f"  {key}: {_flow(value)}\n" for key, value in look.readings.items() if key != "unit"]
    live = origin.rereads or not look.rises
    text = _MESSAGE_TEMPLATE.format(
        **_shared(named, zone, "jsonl", "releases"),
        where=origin.text,
        count=plural(look.count, "message"),
        trying=origin.trying,
        run="run --live" if live else "run",
        source=_flow(origin.source),
        readings="".join([*lines, measure]),
        interval=format_duration(interval),
        interval_note="" if look.interval_us else "  # A GUESS: no series had two readings in the look",
        states=states,
        size="day" if zone != "UTC" else "1d",
        start=dt.datetime.fromtimestamp(look.latest_us / 1e6, _zone(zone)).date().isoformat(),
        lateness=format_duration(_lateness_us(look)),
        live=_LIVE if live else _BATCH_OF_COUNTERS,
        model=_MESSAGE_STAND_IN,
    )
    load_settings(text)
    return Guess(text, _message_said(look, whole, zone), gateway=origin.gateway)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where messages come from."""

    text: str
    name: str  # of the topic, for the names of the query and the domain
    source: dict[str, Any]  # the section ``source`` of the settings
    trying: str  # the command that tries the mapping on more of them
    rereads: bool = True  # whether it gives messages before a position again, as counters need
    gateway: str = ""  # settings of a gateway that brings them; empty where there is one, or none is needed


def _flow(value: Any) -> str:
    """A setting on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def _lateness_us(look: MessageLook) -> int:
    """A round time that is longer than any reading of the look came behind later ones; a day at most."""
    return next((one for one in _LATENESS_US if one > look.late_us), _LATENESS_US[-1])


def _message_said(look: MessageLook, whole: Readings, zone: str) -> tuple[tuple[str, str], ...]:
    """What is said of a look at messages."""
    zoned = f"; times without an offset are read in {zone}" if look.naive else ""
    value = "" if whole.value is None else place_text(whole.value)
    if look.rises and isinstance(whole.value, RegisterValue):
        register = whole.value.register_
        value = place_text(register) if register.name is None else register.name
    late = f"{format_duration(_lateness_us(look))}: readings come up to {said_duration(look.late_us)} after later ones"
    late += (
        "" if look.late_us < DAY_US else ", and so late ones are left out: send readings in the order of their times"
    )
    tallies = f"{look.read:,} with readings, {look.passed:,} passed over, {look.rejected:,} rejected"
    said = (
        ("recognised", look.called),
        ("payload", whole.payload + (f", {whole.compression}" if whole.compression else "")),
        ("series", f"{_said_place(whole.series)}, {look.names:,} seen"),
        ("time", f"{_said_place(whole.time)}{zoned}"),
        ("not read", look.unread and f"path {look.unread}{_UNREAD_TIME}"),
        ("value", f"{value}, {look.unit or _NO_UNIT}"),
        ("counter", _MESSAGE_COUNTER if look.rises else ""),
        ("at once", f"{percent(look.again)} of the readings {_AT_ONCE}" if look.again > _MANY_AGAIN else ""),
        ("interval", format_duration(look.interval_us) if look.interval_us else "not seen; 15min is a guess"),
        ("lateness", late if look.late_us >= _LATENESS_US[0] else ""),
        ("messages", f"{look.count:,}: {tallies}"),
        ("", _OTHER_KINDS if look.passed + look.rejected > look.read else ""),
    )
    return tuple((name, text) for name, text in said if text)


def _said_place(place: object) -> str:
    if place is None:
        return "as the preset says"
    return f"constant {place.constant}" if isinstance(place, Constant) else place_text(place)
