"""``quiltstream init --from-topic`` and ``--from-mqtt``: settings from a look at messages of a broker.

Of a topic nothing is committed, and an MQTT broker keeps no session. What is written holds no value of a message: the
edges of unknown units are placeholders, and series are not listed.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import KafkaSource
from ...schemas.settings.gateway import Broker, FolderTarget, GatewaySettings, KafkaTarget, Tls, topic_filter
from ...schemas.settings.mappings import Readings
from ...schemas.settings.places import Constant, RegisterValue, place_text
from ...schemas.slots import format_duration, time_zone
from ...transforms.payloads.messages import SourceAwayError
from ..console import plural
from ..errors import CommandError, ExitCode
from .init import BELIEF_TEXT, POWER_EDGES, PROMISE_TEXT, WATTS, ZONE_NOTE, Guess, check_text, name_of, number_text
from .message_preview import MessageLook, look_at_messages
from .schema import SCHEMA_FILE

__all__ = ["Wanted", "from_mqtt", "from_topic"]

#: Slots where no series had two readings in the look, and edges that say nothing of the values.
_UNSEEN_INTERVAL_US = 15 * 60 * 1_000_000
_PLACEHOLDER_EDGES = (1.0, 10.0, 100.0, 1000.0)
_LATENESS = "15min"
#: Levels before the filter of a subscription that others notice: of MQTT 5, and two of EMQX.
_NOT_ALONE = {"$share": 2, "$queue": 1, "$exclusive": 1}

_OTHER_KINDS = "most are of another kind; other devices have a look by their topics, and a job, of their own"
_MESSAGE_COUNTER = "it never falls in the look: read as a meter's counter, whose rise in a slot is the value"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks of a look at messages.

    Attributes:
        output: where the settings are to be; paths in them are relative to its folder.
        messages: how many are looked at, at most.
        value: path, or name, of the value; guessed if left out.
        timezone: of times without an offset, and of days.
    """

    output: Path
    messages: int
    value: str | None = None
    timezone: str = "UTC"


def from_topic(topic: str, servers: str | None, options: Sequence[str], registry: str | None, wanted: Wanted) -> Guess:
    """Settings from the last messages of a Kafka topic; nothing is committed, and no group is left.

    Args:
        topic: its name.
        servers: HOST:PORT of the brokers.
        options: ``NAME=VALUE`` of librdkafka, a secret by its place: ``sasl.password={env: KAFKA_PASSWORD}``.
        registry: address of a schema registry, for Avro.
        wanted: what the command line asks of the look.

    Raises:
        SettingsError: a setting of the source is none.
        CommandError: the brokers cannot be read, or nothing looks like readings.
    """
    from ...transforms.kafka.client import Cluster, KafkaUnavailableError  # noqa: PLC0415 - of an extra
    from ...transforms.kafka.topics import last_messages  # noqa: PLC0415
    from ...transforms.payloads.avro import SchemaLookup  # noqa: PLC0415

    if servers is None:
        raise CommandError("--servers HOST:PORT is missing: where the brokers of --from-topic are", ExitCode.SETTINGS)
    given: dict[str, Any] = {"servers": servers, "topic": topic}
    given |= {"options": dict(map(_option, options))} if options else {}
    given |= {} if registry is None else {"registry": {"url": registry}}
    source = _checked(given)
    schemas: SchemaLookup | None = None
    if source.registry is not None:
        from ...transforms.kafka.schema_registry import RegistrySchemas  # noqa: PLC0415 - of an extra

        schemas = RegistrySchemas(source.registry.url, {})
    try:
        messages = last_messages(Cluster(servers, source.options), (topic,), wanted.messages)
    except KafkaUnavailableError as error:
        raise CommandError(f"--from-topic {topic}: {error}", ExitCode.SOURCE) from error
    where = f"topic {topic} at {servers}"
    try:
        look = look_at_messages(
            messages, where, value=wanted.value, timezone=wanted.timezone, only=topic, schemas=schemas
        )
    except SourceAwayError as error:
        raise CommandError(f"--registry: {error}", ExitCode.SOURCE) from error
    origin = Origin(where, topic, {"kafka": given}, "quiltstream try THIS-FILE --from-topic 20")
    return guess_messages(look, origin, wanted.timezone)


def _option(given: str) -> tuple[str, Any]:
    name, mark, value = given.partition("=")
    try:
        if name and mark:
            return name, yaml.safe_load(value)
    except yaml.YAMLError:
        pass
    raise CommandError(
        f"--option {name}: write NAME=VALUE with an option of librdkafka, a secret as NAME={{env: VARIABLE}}",
        ExitCode.SETTINGS,
    )


def _checked(given: Mapping[str, Any]) -> KafkaSource:
    try:
        return KafkaSource.model_validate(given)
    except ValidationError as error:
        told = "; ".join(f"source.kafka.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise SettingsError([told]) from None


def from_mqtt(filter_: str, broker: str | None, gateway: Path | None, seconds: float, wanted: Wanted) -> Guess:
    """Settings of a job, and of a gateway unless there is one, from what an MQTT broker sends meanwhile.

    Args:
        filter_: of the topics.
        broker: ``HOST``, ``HOST:PORT``, ``mqtt://...`` or ``mqtts://...``, without a user.
        gateway: settings of a gateway, whose broker, user and certificates are used.
        seconds: how long the look lasts at most.
        wanted: what the command line asks of the look.

    Raises:
        SettingsError: the gateway's settings cannot be used.
        CommandError: the broker cannot be reached or refuses, or nothing looks like readings.
    """
    from ..gateway.connection import Session  # noqa: PLC0415 - of an extra
    from ..gateway.listening import listen  # noqa: PLC0415
    from ..gateway.run import broker_of  # noqa: PLC0415

    try:
        levels = topic_filter(filter_).split("/")
    except ValueError as error:
        raise CommandError(f"--from-mqtt: {error}", ExitCode.SETTINGS) from error
    plain = "/".join(levels[_NOT_ALONE.get(levels[0], 0) :])
    if plain != filter_:
        raise CommandError(
            f"--from-mqtt: {filter_!r} would take messages away from those that share it, or keep them out; look at "
            f"{plain!r}, and write the other into the gateway's settings",
            ExitCode.SETTINGS,
        )
    if (broker is None) == (gateway is None):
        raise CommandError(
            "give --broker HOST:PORT (mqtts://HOST:PORT with TLS), or --gateway FILE for a user, a password or "
            "certificates of your own",
            ExitCode.SETTINGS,
        )
    settings = None if gateway is None else GatewaySettings.read(gateway)
    mqtt = _broker(broker or "") if settings is None else settings.mqtt
    given = broker_of(mqtt, Path if settings is None else settings.path)
    own = f"quiltstream-init-{secrets.token_hex(4)}"
    session = Session(**given, client_id=own, filters=(filter_,), packet=1 << 20)
    try:
        messages = listen(session, wanted.messages, seconds)
    except CommandError as error:
        meant = "; in --broker mqtts:// is mqtt.tls: {}" if settings is None and "mqtt.tls" in str(error) else ""
        raise CommandError(f"{error}{meant}", ExitCode.SOURCE) from error
    where = f"{filter_} at {mqtt.host}:{mqtt.port_in_use}"
    if not len(messages):
        raise CommandError(
            f"{where}: no message came within {seconds:g} s; check the filter, let a device send, or wait longer with "
            "--seconds",
            ExitCode.SOURCE,
        )
    only = next((level for level in reversed(levels) if not set("+#$") & set(level)), "meter")
    look = look_at_messages(
        messages,
        where,
        value=wanted.value,
        timezone=wanted.timezone,
        levels=[at for at, level in enumerate(levels, 1) if level == "+"],
        only=only,
        hint="; or wait longer, with --seconds",
    )
    lines = not any(b"\n" in (one or b"") for one in messages.payloads)
    return guess_messages(look, _origin_of(filter_, only, where, mqtt, settings, lines=lines), wanted.timezone)


_ADDRESS = re.compile(
    r"(?:(?P<scheme>mqtts?)://)?(?:(?P<host>[^/@:\s\[\]]+)|\[(?P<six>[0-9a-fA-F:]+)\])(?::(?P<port>\d{1,5}))?"
)


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
        "a gateway's settings, and give --gateway FILE",
        ExitCode.SETTINGS,
    )


def _origin_of(
    filter_: str, name: str, where: str, mqtt: Broker, gateway: GatewaySettings | None, *, lines: bool
) -> Origin:
    """What brings the messages to the job: the gateway that there is, or one of its own.

    Args:
        filter_: of the topics.
        name: of the topic, for names in the settings.
        where: the messages are from, in words.
        mqtt: the broker.
        gateway: the gateway that there is.
        lines: whether each message is a line; one of several, as a telegram, is tried by itself.
    """
    listening = f"mosquitto_sub {_client_options(mqtt)} -t {shlex.quote(filter_)}"
    topic = "TOPIC" if set("+#") & set(filter_) else shlex.quote(filter_)
    trying = (
        f"{listening} -v -C 20 | quiltstream try THIS-FILE - --topics"
        if lines
        else f"{listening} -C 1 | quiltstream try THIS-FILE - --topic {topic}"
    )
    forward = None if gateway is None else gateway.forward
    target = None if forward is None else forward.to.chosen
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
    """Write the settings for messages that were looked at.

    Args:
        look: what was seen.
        origin: where they come from.
        zone: of times without an offset, and of the days that windows are.

    Raises:
        CommandError: there is no such zone.
    """
    interval = look.interval_us or _UNSEEN_INTERVAL_US
    per_unit = WATTS.get(look.unit)
    energy = look.unit in ("kWh", "Wh")
    # energy is a power where the value is what was used in a slot
    scale = 1.0 if per_unit is None or (energy and not look.rises) else per_unit / (interval if energy else 1)
    is_power = per_unit is not None and not (energy and not look.rises)
    edges = POWER_EDGES if is_power else _PLACEHOLDER_EDGES
    named = name_of(origin.name)
    whole = Readings.model_validate(look.readings)
    parts = {key: value for key, value in look.readings.items() if key != "unit"}
    lines = [f"  {key}: {_flow(value)}\n" for key, value in parts.items()]
    lines.append(
        f"  unit: {json.dumps(look.unit)}\n  scale: {number_text(scale)}  # {_message_scale(look, scale, interval)}\n"
    )
    first = _first_day(look, zone)
    live = origin.live and not (look.rises and not origin.rereads)
    run = "run --live" if live else "run"
    text = _MESSAGE_TEMPLATE.format(
        schema=SCHEMA_FILE,
        where=origin.text,
        count=plural(look.count, "message"),
        trying=origin.trying,
        run=run,
        source=_flow(origin.source),
        readings="".join(lines),
        rises=_MESSAGE_RISES if look.rises and "register" in look.readings else "",
        interval=format_duration(interval),
        interval_note="" if look.interval_us else "  # A GUESS: no series had two readings in the look",
        zone=zone,
        zone_note=ZONE_NOTE if zone == "UTC" else "of times without an offset, in the data and in this file",
        states=_message_states(look, edges, is_power=is_power),
        size="day" if zone != "UTC" else "1d",
        start=first,
        lateness=_LATENESS,
        live=_LIVE if live else _BATCH_OF_COUNTERS if origin.live else "",
        model=_MESSAGE_STAND_IN,
        query=f"{named}-histogram",
        domain=named,
        sink="jsonl",
        output="releases",
        ledger=f"{named}-ledger.db",
    )
    check_text(text)
    return Guess(text, _message_said(look, whole, zone), gateway=origin.gateway)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where messages come from.

    Attributes:
        text: in words.
        name: of the topic, for the names of the query and the domain.
        source: the section ``source`` of the settings.
        trying: the command that tries the mapping on more of them.
        live: whether the source is followed.
        rereads: whether it gives messages before a position again, as counters need.
        gateway: settings of a gateway that brings them; empty where there is one, or none is needed.
    """

    text: str
    name: str
    source: dict[str, Any]
    trying: str
    live: bool = True
    rereads: bool = True
    gateway: str = ""


def _flow(value: Any) -> str:
    """A setting on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
        .removesuffix("...\n")
        .strip()
    )


def _first_day(look: MessageLook, zone: str) -> str:
    """The day of the latest reading, by a clock of the zone."""
    try:
        where = time_zone(zone)
    except ValueError as error:
        raise CommandError(f"--timezone: {error}") from error
    return dt.datetime.fromtimestamp(look.latest_us / 1e6, where).date().isoformat()


def _message_scale(look: MessageLook, scale: float, interval_us: int) -> str:
    if scale == 1 and look.unit not in WATTS:
        return "factor from the unit of the values to the unit of the edges"
    if look.unit in ("kWh", "Wh") and look.rises:
        return f"1 {look.unit} in a slot of {format_duration(interval_us)} is {number_text(scale)} W on average"
    return "energy of whatever interval the device means" if look.unit in ("kWh", "Wh") else f"{look.unit} to W"


def _message_states(look: MessageLook, edges: tuple[float, ...], *, is_power: bool) -> str:
    if is_power:
        return f"states:  # bins everyone would choose\n  edges: [{', '.join(map(number_text, edges))}]\n  unit: W\n"
    return (
        "states:  # PLACEHOLDERS, made without a look at the values: write round numbers that fit what is measured\n"
        f"  edges: [{', '.join(map(number_text, edges))}]\n  unit: {json.dumps(look.unit)}\n"
    )


def _message_said(look: MessageLook, whole: Readings, zone: str) -> tuple[tuple[str, str], ...]:
    """What is said of a look at messages."""
    zoned = f"; times without an offset are read in {zone}" if look.naive else ""
    value = "" if whole.value is None else place_text(whole.value)
    if look.rises and isinstance(whole.value, RegisterValue):
        value = (
            f"{place_text(whole.value.register_) if whole.value.register_.name is None else whole.value.register_.name}"
        )
    return (
        ("recognised", look.called),
        ("payload", whole.payload_name + (f", {whole.compression}" if whole.compression else "")),
        (
            "series",
            f"{'as the preset says' if whole.series is None else _said_place(whole.series)}, {look.names:,} seen",
        ),
        ("time", f"{'as the preset says' if whole.time is None else _said_place(whole.time)}{zoned}"),
        ("value", f"{value}, {look.unit or 'of no known unit'}"),
        *([("counter", _MESSAGE_COUNTER)] if look.rises else []),
        ("interval", format_duration(look.interval_us) if look.interval_us else "not seen; 15min is a guess"),
        (
            "messages",
            f"{look.count:,}: {look.read:,} with readings, {look.passed:,} passed over, {look.rejected:,} rejected",
        ),
        *([("", _OTHER_KINDS)] if look.passed > look.read else []),
    )


def _said_place(place: object) -> str:
    return f"constant {place.constant}" if isinstance(place, Constant) else place_text(place)


_MESSAGE_RISES = """\
  # A GUESS: it did not fall in the look, so it is a meter's counter, and a slot has what it rose since the last reading
  # before it. If it is none, write the place inside register alone.
"""

_MESSAGE_STAND_IN = """\
# Fit one on a history of series that are not published (docs/model.md), then write `model: model.json`.
# Until then it is a STAND-IN made of the interval alone, which `run` refuses without --accept-stand-in.
model: stand-in
"""

_LIVE = """\
# What silence does: a source that sends nothing for an hour no longer holds its windows back, and their rows say
# `silent`. Longer than the meters are ever away together; left out, silence waits for ever.
live: {idle: 1h}
"""

_BATCH_OF_COUNTERS = """\
# Counters in a folder are read by `quiltstream run` when the files are there; a live job reads them through Kafka.
"""

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
{readings}{rises}
slots:  # at most one reading counts per series and slot, the latest
  interval: {interval}{interval_note}
  timezone: {zone}  # {zone_note}

"""
_MESSAGE_WINDOWS_TEXT = """\
# Which windows are published, for every series of the roster, also where there are no readings.
windows: {{size: {size}, start: {start}, lateness: {lateness}}}  # start: the day of the latest reading in the look
{live}
# One histogram per series drowns in noise unless windows are long. A roster with the groups gives useful numbers:
# roster: roster.csv  # columns: series, group
# group_by: group

"""
_MESSAGE_TEMPLATE = _MESSAGE_SOURCE_TEXT + BELIEF_TEXT + _MESSAGE_WINDOWS_TEXT + PROMISE_TEXT

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
