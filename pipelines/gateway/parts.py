"""From the settings to the parts of a gateway; every mistake that can be seen without a connection is found here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...schemas.gateway import Forward, GatewaySettings, KafkaReleases, KafkaTarget, Level, seconds
from ...schemas.sealing import check_sealing
from ...schemas.secrets import FromEnvironment, FromFile
from ..failures import CommandError
from .connection import Session
from .credentials import options_of, secret_of, tls_context
from .folder_hop import FolderHop
from .hops import Hop
from .kafka_hop import KafkaHop
from .libraries import kafka, paho
from .pseudonyms import TopicNames
from .rejects import RejectFile
from .released import FolderSource, KafkaSource, ReleaseSource
from .sent import Sent

S = TypeVar("S")

#: The longest session of MQTT 5: as long as the broker keeps anything.
_FOR_EVER = 0xFFFFFFFF


@dataclass(frozen=True)
class Parts:
    """What a gateway is made of.

    Attributes:
        settings: where it comes from.
        forward: the session that messages are received in, if they are.
        back: the session that releases are published in, if they are.
        options: librdkafka's options with their secrets, by ``forward`` and ``back``.
        names: what of a topic goes on under a pseudonym, with the key; ``None``: nothing.
    """

    settings: GatewaySettings
    forward: Session | None
    back: Session | None
    options: dict[str, dict[str, Any]] = field(repr=False)
    names: TopicNames | None = None

    def hop(self) -> Hop:
        """The next hop.

        Raises:
            HopError: it cannot be used.
        """
        to = _there("forward", self.settings.forward).to.chosen
        if isinstance(to, KafkaTarget):
            return KafkaHop(to.servers, to.topic, to.key, self.options["forward"])
        return FolderHop(self.settings.path(to.path), size=to.size, age=seconds(to.age))

    def source(self, sent: Sent) -> ReleaseSource:
        """Where releases come from.

        Raises:
            HopError: it cannot be used.
        """
        given = _there("back", self.settings.back).from_.chosen
        if isinstance(given, KafkaReleases):
            member = self.settings.back_client_id
            return KafkaSource(given.servers, given.topic, given.group or member, member, self.options["back"])
        return FolderSource(self.settings.path(given.path), seconds(given.poll), sent)

    def rejects(self) -> RejectFile:
        """Where dropped messages are told of.

        Raises:
            CommandError: the file cannot be written.
        """
        forward = self.settings.forward
        given = None if forward is None else forward.rejects_file
        return RejectFile(None) if given is None else RejectFile(self.settings.path(given.file), given.encrypted)


def parts_of(settings: GatewaySettings) -> Parts:
    """Fill in secrets, read certificates, and find the libraries.

    Raises:
        CommandError: something is missing or cannot be read.
        SettingsError: the key of the pseudonyms is, or what encrypts rejects.
    """
    paho()
    broker, options = settings.mqtt, dict[str, dict[str, Any]]()
    targets = {
        "forward.to.kafka.options": None if settings.forward is None else settings.forward.to.kafka,
        "back.from.kafka.options": None if settings.back is None else settings.back.from_.kafka,
    }
    for name, target in targets.items():
        if target is not None:
            kafka()
            options[name.partition(".")[0]] = options_of(name, target.options, settings.path)
    common: dict[str, Any] = {
        "host": broker.host,
        "port": broker.port_in_use,
        "keepalive": int(seconds(broker.keepalive)),
        "user": secret_of("mqtt.user", broker.user, settings.path)
        if isinstance(broker.user, (FromEnvironment, FromFile))
        else broker.user,
        "password": None if broker.password is None else secret_of("mqtt.password", broker.password, settings.path),
        "tls": None if broker.tls is None else tls_context(broker.tls, settings.path),
    }
    forward = back = names = None
    if settings.forward is not None:
        given = settings.forward
        forward = Session(
            **common,
            client_id=broker.client_id,
            expiry=min(int(seconds(broker.session)), _FOR_EVER),
            filters=tuple(given.topics),
            unsubscribe=tuple(given.unsubscribe),
            send_retained=given.retained == "forward",
            receive_maximum=receive_maximum(given.limits.messages),
            packet=given.limits.packet,
        )
        names = None if given.pseudonyms is None else TopicNames.read(given.pseudonyms)
        told = given.rejects_file
        if told is not None:
            _writable("forward.rejects", settings, told.file)
            if told.encrypted is not None:
                check_sealing(told.encrypted, "forward.rejects.encrypted", "where the gateway runs")
        _writable("forward.to.folder", settings, None if given.to.folder is None else f"{given.to.folder.path}/x")
    if settings.back is not None:
        back = Session(**common, client_id=settings.back_client_id)
        _writable("back.state", settings, settings.back.state)
    return Parts(settings, forward, back, options, names)


def gateway_schema() -> dict[str, Any]:
    """The JSON Schema of the settings, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **GatewaySettings.model_json_schema(by_alias=True)}


def receive_maximum(messages: int) -> int:
    """What the broker is told to send at most without an acknowledgement, of the messages that may be held.

    Somewhat fewer: Mosquitto sends some more than it is told when a session is taken up again, and at the limit itself
    nothing is read any more, no answer to a ping either.

    >>> receive_maximum(1_000), receive_maximum(10)
    (900, 8)
    """
    return messages - max(2, messages // 10)


def _there(name: str, section: S | None) -> S:
    if section is None:
        raise ValueError(f"the settings have no section {name}")
    return section


def _writable(name: str, settings: GatewaySettings, text: str | None) -> None:
    """Check that a file could be made, without making anything."""
    if text is None:
        return
    path = settings.path(text).absolute()
    place = next(parent for parent in path.parents if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK) or path.is_dir():
        raise CommandError(f"{name}: {path} cannot be written; give another place, or the rights to this one")


def facts_of(parts: Parts) -> Iterator[tuple[str, str]]:
    """What a gateway will do, for people."""
    settings, broker = parts.settings, parts.settings.mqtt
    tls = "without TLS" if broker.tls is None else "with TLS"
    user = "nobody" if broker.user is None else f"user {broker.user!r}" if isinstance(broker.user, str) else "a user"
    yield "broker", f"{broker.host}:{broker.port_in_use} {tls}, as {user}"
    if settings.forward is not None:
        given, limits = settings.forward, settings.forward.limits
        kept = f"which the broker keeps for {broker.session}"
        yield "forward", f"{', '.join(given.topics)}, in session {broker.client_id!r}, {kept}"
        to = given.to.chosen
        if isinstance(to, KafkaTarget):
            key = f"level {to.key.level} of the topic" if isinstance(to.key, Level) else "the topic"
            yield "to", f"Kafka topic {to.topic!r} at {to.servers}, keyed by {key}"
        else:
            yield "to", f"Avro files in {settings.path(to.path)}, sealed after {to.age}"
        yield (
            "holds",
            f"at most {limits.messages:,} messages and {limits.bytes:,} bytes; drops messages above {limits.message:,} "
            f"bytes, and {'forwards' if given.retained == 'forward' else 'drops'} retained ones",
        )
        yield from _names_of(given)
        if given.rejects_file is not None:
            kept = given.rejects_file.encrypted
            held = "without content" if kept is None else f"with up to {kept.most_bytes:,} bytes of each, encrypted"
            yield "rejects", f"{settings.path(given.rejects_file.file)}, {held}"
    if settings.back is not None:
        given, place = settings.back, settings.back.from_.chosen
        where = (
            f"Kafka topic {place.topic!r} at {place.servers}"
            if isinstance(place, KafkaReleases)
            else f"the files *.jsonl of {settings.path(place.path)}"
        )
        yield "back", f"{where}, to {given.prefix}/QUERY/SERIES, {'' if given.retain else 'not '}retained"
    port = settings.metrics.port
    yield "metrics", f"a line every {settings.metrics.every}" + ("" if port is None else f", 127.0.0.1:{port}/metrics")
    if broker.tls is None and broker.user is not None and broker.host not in {"localhost", "127.0.0.1", "::1"}:
        yield "mind", "the password goes over the network unencrypted; set mqtt.tls"


def _names_of(given: Forward) -> Iterator[tuple[str, str]]:
    """What of topics goes on under pseudonyms, and what does not."""
    if given.pseudonyms is None:
        yield "names", "topics go on as they are"
        return
    levels = ", ".join(map(str, given.pseudonyms.level))
    yield "names", f"level {levels} of the topic goes on as a pseudonym; payloads go on as they are"
    clear = given.pseudonyms.in_clear(given.topics)
    if clear:
        yield "mind", f"these go on as they are: {'; '.join(clear)}"


__all__ = ["Parts", "facts_of", "gateway_schema", "parts_of", "receive_maximum"]
