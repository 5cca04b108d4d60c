"""Settings from a look at messages of a broker: the last of a Kafka topic, or what comes from MQTT meanwhile.

Of a topic nothing is committed, and an MQTT broker keeps no session. What is written of messages holds no value of one:
the edges of unknown units are placeholders, and series are not listed.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from ...schemas.settings.base import OPEN, SettingsError
from ...schemas.settings.connectors import KafkaSource
from ...schemas.settings.job import load_settings
from ...schemas.settings.readings import Constant, Readings
from ...schemas.slots import DAY_US, HOUR_US, MINUTE_US, format_duration, said_duration
from ...transforms.payloads.messages import SourceAwayError
from ..console import percent, plural
from ..errors import CommandError, ExitCode
from .look import Question
from .messages import MessageLook, look_at_messages
from .write import (
    BELIEF_TEXT,
    ENERGY,
    NO_UNIT,
    POWER_EDGES,
    PROMISE_TEXT,
    USUAL_BINS,
    Guess,
    edges_text,
    measure_text,
    name_of,
    shared,
    watts_of,
    zone_of,
)

if TYPE_CHECKING:
    from ..commands.init import Options

_OTHER_KINDS = "most are of another kind; other devices have a look by their topics, and a job, of their own"
_AT_ONCE = (
    "are at a time at which their series has another one, and one in a slot counts: where they are of several kinds or "
    "meters, choose by readings.where, or name the series by what tells them apart"
)
_MESSAGE_COUNTER = "it rises and hardly falls in the look: read as a meter's counter, whose rise in a slot is the value"

#: Share of the readings at a time that their series has already from which it is said.
_MANY_AGAIN = 0.1

#: Slots where no series had two readings in the look, and edges that say nothing of the values.
_UNSEEN_INTERVAL_US = 15 * MINUTE_US
#: How long windows may wait for late readings.
_LATENESS_US = (15 * MINUTE_US, HOUR_US, 3 * HOUR_US, 6 * HOUR_US, 12 * HOUR_US, DAY_US)
_PLACEHOLDER_EDGES = (1.0, 10.0, 100.0, 1000.0)
_PLACEHOLDERS = "PLACEHOLDERS, made without a look at the values: write round numbers that fit what is measured"


#: Settings for messages.
_MESSAGE_SOURCE_TEXT = """\
# yaml-language-server: $schema={schema}
# Written by `quiltstream init` from a look at {count} of {where}.
# Of the messages it has names of fields, headers and levels of topics alone; no value of them.
#   {trying}
#                                           says what the settings make of messages, for your eyes only
#   quiltstream run --dry-run THIS-FILE     says what it will publish and cost, before any data is read
#   quiltstream run --live THIS-FILE
# Everything in this file is public. docs/settings.md and docs/messages.md explain every setting.

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
# What silence does: a source that sends nothing for an hour no longer holds its windows back, and their rows say
# `silent`. Longer than the meters are ever away together; left out, silence waits for ever.
live: {{idle: 1h}}
# One histogram per series drowns in noise unless windows are long. A roster with the groups gives useful numbers:
# roster: roster.csv  # columns: series, group
# group_by: group

"""
_MESSAGE_STAND_IN = """\
# Fit one on a history of series that are not published, which is files (docs/model.md), such as a gateway writes: with
# `source: {avro: spool/*.avro}` a copy of this file reads them. Then write `model: model.json`.
# Until then it is a STAND-IN made of the interval alone, which `run` refuses without --accept-stand-in.
model: stand-in
"""
_MESSAGE_TEMPLATE = _MESSAGE_SOURCE_TEXT + BELIEF_TEXT + _MESSAGE_WINDOWS_TEXT + PROMISE_TEXT


def from_topic(topic: str, options: Options) -> Guess:
    """Settings from the last messages of a Kafka topic; nothing is committed, and no group is left."""
    from ...transforms.kafka.client import Cluster, KafkaUnavailableError  # noqa: PLC0415 - of an extra
    from ...transforms.kafka.messages import last_messages  # noqa: PLC0415

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
    origin = Origin(where, topic, {"kafka": given}, "quiltstream check THIS-FILE --from-topic 20")
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


def guess_messages(look: MessageLook, origin: Origin, zone: str = "UTC") -> Guess:
    """Write the settings for messages that were looked at."""
    interval = look.interval_us or _UNSEEN_INTERVAL_US
    is_device_energy = look.unit in ENERGY and not look.rises  # a power where the value is what was used in a slot
    watts = None if is_device_energy else watts_of(look.unit, interval)
    unknown = "factor from the unit of the values to the unit of the edges"
    if is_device_energy:
        unknown = "energy of whatever interval the device means"
    measured = measure_text(look.unit, interval, watts, unknown=unknown, power=f"{look.unit} to W")
    states = edges_text(USUAL_BINS, POWER_EDGES, "W")
    if watts is None:
        states = edges_text(_PLACEHOLDERS, _PLACEHOLDER_EDGES, json.dumps(look.unit))
    named = name_of(origin.name)
    whole = Readings.model_validate(look.readings)
    asked = {one.key.removeprefix("readings."): one for one in look.questions}
    lines = {key: f"  {key}: {_flow(value)}\n" for key, value in look.readings.items() if key != "unit"}
    opened = lines | {key: _open(key, one) for key, one in asked.items()}
    template = _MESSAGE_TEMPLATE.replace("{readings}", "{{readings}}").format(
        **shared(named, zone, "jsonl", "releases"),
        where=origin.text,
        count=plural(look.count, "message"),
        trying=origin.trying,
        source=_flow(origin.source),
        interval=format_duration(interval),
        interval_note="" if look.interval_us else "  # A GUESS: no series had two readings in the look",
        states=states,
        missing="missing: state  # the rise of a counter decides which slots have a value\n"
        if look.rises
        else "missing: public\n",
        size="day" if zone != "UTC" else "1d",
        start=dt.datetime.fromtimestamp(look.latest_us / 1e6, zone_of(zone)).date().isoformat(),
        lateness=format_duration(_lateness_us(look)),
        model=_MESSAGE_STAND_IN,
    )
    text, answered = ("".join([*one.values(), measured]) for one in (opened, lines))
    text, answered = template.replace("{readings}", text), template.replace("{readings}", answered)
    load_settings(answered)
    said, questions = _message_said(look, whole, zone), tuple(one.key for one in look.questions)
    return Guess(text, said, answered=answered, questions=questions)


def _open(key: str, question: Question) -> str:
    """A key that is open, with its answers as comments."""
    answers = "".join(
        f"  # {key}: {_flow(answer)}{f'  # {meaning}' if meaning else ''}\n" for answer, meaning in question.answers
    )
    return f"  # {question.why}\n  {key}: {_flow(OPEN)}\n{answers}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where messages come from."""

    text: str
    name: str  # of the topic, for the names of the query and the domain
    source: dict[str, Any]  # the section ``source`` of the settings
    trying: str  # the command that tries the settings on more of them


def _flow(value: Any) -> str:
    """A setting on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def _lateness_us(look: MessageLook) -> int:
    """A round time that is longer than any reading of the look came behind later ones; a day at most."""
    return next((one for one in _LATENESS_US if one > look.late_us), _LATENESS_US[-1])


def _message_said(look: MessageLook, whole: Readings, zone: str) -> tuple[tuple[str, str], ...]:
    """What is said of a look at messages."""
    series = f"constant {whole.series.constant}" if isinstance(whole.series, Constant) else whole.series
    late = f"{format_duration(_lateness_us(look))}: readings come up to {said_duration(look.late_us)} after later ones"
    late += (
        "" if look.late_us < DAY_US else ", and so late ones are left out: send readings in the order of their times"
    )
    tallies = f"{look.read:,} with readings, {look.passed:,} passed over, {look.rejected:,} rejected"
    said = (
        ("recognised", f"recipe {whole.recipe}" if whole.recipe else f"no recipe: {whole.each} is a reading"),
        ("payload", whole.payload + (f", {whole.compression}" if whole.compression else "")),
        ("series", f"{series}, {look.names:,} seen"),
        ("time", f"{whole.time}; times without an offset are read in {zone}"),
        ("value", f"{whole.value}, {look.unit or NO_UNIT}"),
        ("counter", _MESSAGE_COUNTER if look.rises else ""),
        ("at once", f"{percent(look.again)} of the readings {_AT_ONCE}" if look.again > _MANY_AGAIN else ""),
        ("interval", format_duration(look.interval_us) if look.interval_us else "not seen; 15min is a guess"),
        ("lateness", late if look.late_us >= _LATENESS_US[0] else ""),
        ("messages", f"{look.count:,}: {tallies}"),
        ("", _OTHER_KINDS if look.passed + look.rejected > look.read else ""),
    )
    return tuple((name, text) for name, text in said if text)
