"""Settings from a look at the last messages of a Kafka topic, of which nothing is committed.

What is written of messages holds no value of one: the edges of unknown units are placeholders, series are not listed.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import KafkaSource
from ...schemas.settings.job import load_settings
from ...schemas.settings.readings import Constant
from ...schemas.slots import DAY_US, HOUR_US, MINUTE_US, format_duration, said_duration
from ...transforms.payloads.messages import SourceAwayError
from ..console import percent, plural
from ..errors import CommandError, ExitCode
from .messages import MessageLook, look_at_messages
from .write import (
    ENERGY,
    NO_ROSTER,
    NO_UNIT,
    POWER_EDGES,
    READ_AS_COUNTER,
    SETTINGS,
    USUAL_BINS,
    Asked,
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
_UNKNOWN = "factor from the unit of the values to the unit of the edges"
_TOO_LATE = ", and so late ones are left out: send readings in the order of their times"

#: Share of the readings at a time that their series has already from which it is said.
_MANY_AGAIN = 0.1

#: Slots where no series had two readings in the look, and edges that say nothing of the values.
_UNSEEN_INTERVAL_US = 15 * MINUTE_US
#: How long windows may wait for late readings.
_LATENESS_US = (15 * MINUTE_US, HOUR_US, 3 * HOUR_US, 6 * HOUR_US, 12 * HOUR_US, DAY_US)
_PLACEHOLDER_EDGES = (1.0, 10.0, 100.0, 1000.0)
_PLACEHOLDERS = "PLACEHOLDERS, made without a look at the values: write round numbers that fit what is measured"
_COMMANDS = """\
#   quiltstream check THIS-FILE --from-topic 20
#                                           says what the settings make of messages, for your eyes only
#   quiltstream run --dry-run THIS-FILE     says what it will publish and cost, before any data is read
#   quiltstream run --live THIS-FILE
# Of the messages it has names of fields and levels of topics alone; no value of them. See docs/messages.md, too."""
_WINDOWS = """\
# start: the day of the latest reading in the look. lateness: how long a window waits for readings that come after later
# ones of others; what comes later still is left out.
windows: {{size: {size}, start: {start}, lateness: {lateness}}}
# What silence does: a source that sends nothing for an hour no longer holds its windows back, and their rows say
# `silent`. Longer than the meters are ever away together; left out, silence waits for ever.
live: {{idle: 1h}}"""
_STAND_IN = """\
# Fit one on a history of series that are not published, which is files (docs/model.md), such as a gateway writes: with
# `source: {avro: spool/*.avro}` a copy of this file reads them. Then write `model: model.json`.
# Until then it is a STAND-IN made of the interval alone, which `run` refuses without --accept-stand-in.
model: stand-in
"""


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
    return guess_messages(look, topic, {"kafka": given}, where, options.timezone)


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


def guess_messages(look: MessageLook, topic: str, source: Mapping[str, Any], where: str, zone: str = "UTC") -> Guess:
    """Write the settings for messages that were looked at, of a topic in a section of the source."""
    whole, interval = look.whole, look.interval_us or _UNSEEN_INTERVAL_US
    unit, rises = whole.unit.strip(), whole.register_ is not None
    is_device_energy = unit in ENERGY and not rises  # a power where the value is what was used in a slot
    watts = None if is_device_energy else watts_of(unit, interval)
    unknown = "energy of whatever interval the device means" if is_device_energy else _UNKNOWN
    measured = measure_text(unit, interval, watts, unknown=unknown, power=f"{unit} to W")
    states = edges_text(USUAL_BINS, POWER_EDGES, "W")
    if watts is None:
        states = edges_text(_PLACEHOLDERS, _PLACEHOLDER_EDGES, json.dumps(unit))
    keys = dict.fromkeys((*look.readings, *(one.key.removeprefix("readings.") for one in look.questions)))
    lateness = next((one for one in _LATENESS_US if one > look.late_us), _LATENESS_US[-1])

    def compose(*, is_open: bool) -> str:
        asked = Asked(look.questions, is_open=is_open)
        lines = (asked.text(f"readings.{key}", _flow(look.readings.get(key, ""))) for key in keys if key != "unit")
        note = "" if look.interval_us else "  # A GUESS: no series had two readings in the look"
        begin = dt.datetime.fromtimestamp(int(look.instants.max()) / 1e6, zone_of(zone)).date().isoformat()
        return SETTINGS.format(
            **shared(name_of(topic), zone, "jsonl", "releases"),
            look=f"{plural(look.count, 'message')} of {where}",
            commands=_COMMANDS,
            source=f"source: {_flow(source)}\n",
            readings="".join([*lines, measured]),
            slots=f"  interval: {format_duration(interval)}{note}\n  timezone: {zone}\n",
            states=states,
            missing=f"missing: {'state' if rises else 'public'}\n",
            model=_STAND_IN,
            windows=_WINDOWS.format(
                size="day" if zone != "UTC" else "1d", start=begin, lateness=format_duration(lateness)
            ),
            groups=NO_ROSTER,
        )

    answered = compose(is_open=False)
    load_settings(answered)
    late = f"{format_duration(lateness)}: readings come up to {said_duration(look.late_us)} after later ones"
    late += _TOO_LATE if look.late_us >= DAY_US else ""
    tallies = f"{look.read:,} with readings, {look.passed:,} passed over, {look.rejected:,} rejected"
    series = f"constant {whole.series.constant}" if isinstance(whole.series, Constant) else whole.series
    said = (
        ("recognised", f"recipe {whole.recipe}" if whole.recipe else f"no recipe: {whole.each} is a reading"),
        ("payload", whole.payload + (f", {whole.compression}" if whole.compression else "")),
        ("series", f"{series}, {look.names:,} seen"),
        ("time", f"{whole.time}; times without an offset are read in {zone}"),
        ("value", f"{whole.value}, {unit or NO_UNIT}"),
        ("counter", READ_AS_COUNTER if rises else ""),
        ("at once", f"{percent(look.again)} of the readings {_AT_ONCE}" if look.again > _MANY_AGAIN else ""),
        ("interval", format_duration(look.interval_us) if look.interval_us else "not seen; 15min is a guess"),
        ("lateness", late if look.late_us >= _LATENESS_US[0] else ""),
        ("messages", f"{look.count:,}: {tallies}"),
        ("", _OTHER_KINDS if look.passed + look.rejected > look.read else ""),
    )
    questions = tuple(one.key for one in look.questions)
    return Guess(compose(is_open=True), tuple(one for one in said if one[1]), answered=answered, questions=questions)


def _flow(value: Any) -> str:
    """A setting on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()
