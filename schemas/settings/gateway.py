"""The settings of the gateway: which broker, which topics, and where messages go.

They are a document of their own and no section of a job's settings. The gateway runs beside the broker, for as long as
there are meters, and knows nothing of slots, models or budgets; a job's settings are frozen in the ledger and shown
with it, and have no place for a broker's credentials.

>>> settings = GatewaySettings.load(EXAMPLE)
>>> settings.mqtt.port_in_use, settings.forward.limits.bytes
(8883, 67108864)
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ..slots import parse_duration
from .base import Document, Duration, Explained, Name, Section
from .connectors import Servers, Topic
from .secrets import FromEnvironment, FromFile, Option, Pseudonyms, Secret, checked_options, secret

EXAMPLE = """\
mqtt:
  host: broker.example
  client_id: gateway-1
  tls: {ca: broker-ca.pem}
  user: gateway
  password: {env: MQTT_PASSWORD}
forward:
  topics: [meters/+/readings]
  to: {folder: {path: spool}}
"""

_UNITS = {"B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*(B|kB|MB|GB|KiB|MiB|GiB)")

#: What MQTT allows for a name or filter of topics, in bytes.
LONGEST_TOPIC = 65_535

#: Bytes of the largest packet of MQTT whose size can be agreed on.
_LARGEST_PACKET = 268_435_455

_SHARE_PARTS = 3


def _size(given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    match = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{given!r} is no size; write a whole number with one of {', '.join(_UNITS)}, e.g. 64MiB")
    return int(match[1]) * _UNITS[match[2]]


def topic_filter(text: str) -> str:
    """Check a filter of topics, shared ones too.

    Raises:
        ValueError: MQTT does not allow it.
    """
    if not text or "\0" in text or len(text.encode()) > LONGEST_TOPIC:
        raise ValueError(f"{text!r} is no topic filter; it has 1 to {LONGEST_TOPIC:,} bytes without NUL")
    levels = text.split("/")
    if levels[0] == "$share":
        if len(levels) < _SHARE_PARTS or not levels[1] or set("+#") & set(levels[1]):
            raise ValueError(f"{text!r} is no shared subscription; write $share/NAME/FILTER")
        levels = levels[2:]
    for place, level in enumerate(levels):
        last = place == len(levels) - 1
        if ("+" in level and level != "+") or ("#" in level and (level != "#" or not last)):
            raise ValueError(
                f"{text!r} is no topic filter; + stands for a whole level, # for all that follow at the end"
            )
    return text


def _user(given: Any) -> Any:
    return given if given is None or (isinstance(given, str) and given) else secret(given)


User = Annotated[str | FromEnvironment | FromFile | None, BeforeValidator(_user)]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0, examples=["64MiB"])]
Filter = Annotated[str, AfterValidator(topic_filter)]


class Tls(Section):
    """How the connection is encrypted and who the broker and the gateway are."""

    ca: str | None = Field(default=None, description="file of the authorities to trust; left out: the system's")
    cert: str | None = Field(default=None, description="file of the gateway's own certificate")
    key: str | None = Field(default=None, description="file of its key; left out: in the same file")

    @model_validator(mode="after")
    def _pair(self) -> Tls:
        if self.key is not None and self.cert is None:
            raise ValueError("mqtt.tls.key is given without mqtt.tls.cert; name the certificate that it belongs to")
        return self


class Broker(Section):
    """The MQTT broker, and who the gateway is to it."""

    host: Name
    port: int | None = Field(default=None, ge=1, le=65535, description="left out: 8883 with TLS, 1883 without")
    client_id: Name = Field(description="the gateway's name at the broker; each gateway has its own, for ever")
    keepalive: Duration = Field(default="30s", description="how long silence may last before the connection is dead")
    session: Duration = Field(
        default="7d", description="how long the broker keeps messages for a gateway that is away: more than any outage"
    )
    tls: Tls | None = Field(default=None, description="{} is TLS with the system's authorities; left out: no TLS")
    user: User = Field(default=None, description="in the open, or as the password")
    password: Secret | None = None

    @field_validator("host", mode="before")
    @classmethod
    def _host(cls, text: Any) -> Any:
        if isinstance(text, str) and set("/@") & set(text):
            raise ValueError(
                "mqtt.host is an address; write the name alone, and port, tls, user and password beside it"
            )
        try:
            _ = text.encode("idna") if isinstance(text, str) else None
        except UnicodeError:
            raise ValueError(
                f"mqtt.host is {text!r}, which is no host's name: each part between dots has 1 to 63 characters; "
                "correct it"
            ) from None
        return text

    @model_validator(mode="after")
    def _whole(self) -> Broker:
        if self.password is not None and self.user is None:
            raise ValueError("mqtt.password is given without mqtt.user; name the user")
        if not 1 <= seconds(self.keepalive) <= LONGEST_TOPIC:
            raise ValueError(f"mqtt.keepalive is {self.keepalive}; it is 1s to 18h")
        return self

    @property
    def port_in_use(self) -> int:
        """The port, as written or by the protocol's own rule."""
        if self.port is not None:
            return self.port
        return 1883 if self.tls is None else 8883


_OWN_OPTIONS = {
    "bootstrap.servers": "write it as servers",
    "enable.idempotence": "it is always on",
    "acks": "it is always all",
    "transactional.id": "the gateway has no transactions",
}


Options = Annotated[dict[str, Option], BeforeValidator(partial(checked_options, own=_OWN_OPTIONS))]


class Level(Section):
    """One level of the topic, counted from 1."""

    level: int = Field(ge=1)


class KafkaTarget(Section):
    """A Kafka topic that messages go to."""

    servers: Servers
    topic: Topic
    key: Literal["topic"] | Level = Field(default="topic", description="what partitions are chosen by")
    options: Options = Field(default_factory=dict, description="any option of librdkafka")


class FolderTarget(Section):
    """A folder that messages go to, as Avro files."""

    path: str = Field(min_length=1)
    size: Size = Field(default=64 << 20, validate_default=False, description="a file is closed when it has so much")
    age: Duration = Field(default="10s", description="or when it was begun so long ago")


class Target(Section):
    """The next hop: exactly one."""

    kafka: KafkaTarget | None = None
    folder: FolderTarget | None = None

    @property
    def chosen(self) -> KafkaTarget | FolderTarget:
        """The one that is named."""
        if (self.kafka is None) == (self.folder is None):
            raise ValueError("forward.to names exactly one of kafka, folder")
        return cast("KafkaTarget | FolderTarget", self.kafka or self.folder)

    @model_validator(mode="after")
    def _checked(self) -> Target:
        _ = self.chosen
        return self


class Limits(Section):
    """How much the gateway holds, and what it does not take."""

    messages: int = Field(default=1_000, ge=10, le=65_535, description="messages that the next hop does not have yet")
    bytes: Size = Field(default=64 << 20, validate_default=False, description="bytes of these")
    message: Size = Field(default=1 << 20, validate_default=False, description="larger ones are dropped and counted")
    packet: Size = Field(
        default=16 << 20,
        validate_default=False,
        le=_LARGEST_PACKET,
        description="larger ones are not even sent by the broker",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Limits:
        if self.message > self.bytes or self.message > self.packet:
            raise ValueError(
                f"forward.limits.message is {self.message:,} bytes, above limits.bytes ({self.bytes:,}) or "
                f"limits.packet ({self.packet:,}); no such message could be held"
            )
        return self


def _levels(given: Any) -> Any:
    return [given] if isinstance(given, int) and not isinstance(given, bool) else given


class TopicPseudonyms(Pseudonyms):
    """Levels of the topic that go on as keyed hashes, and where the secret key of these is.

    It is the key of a job's ``readings.pseudonyms``, read in the same way: what the gateway makes of a name is what the
    job would have made of it.
    """

    level: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_levels), Field(min_length=1)] = Field(
        description="level of the topic with the meter's name, counted from 1; or a list of levels",
        json_schema_extra={"type": ["integer", "array"], "minimum": 1},
    )

    @field_validator("level")
    @classmethod
    def _once(cls, levels: list[int]) -> list[int]:
        if len(set(levels)) < len(levels):
            raise ValueError(f"level {levels} names a level twice; name each once")
        return sorted(levels)

    def check(self, filters: list[str]) -> None:
        """See that topics of every filter have a level that is named, and that every level is one of some filter.

        Raises:
            ValueError: one has not.
        """
        depths = {one: _depth(one) for one in filters}
        for one, depth in depths.items():
            if min(self.level) > depth:
                raise ValueError(
                    f"pseudonyms.level is {_listed(self.level)}, and topics of {one!r} have {depth}: they would go on "
                    "under their own names; name the level with the meter's name, counted from 1"
                )
        deepest = max(depths.values())
        if max(self.level) > deepest:
            raise ValueError(
                f"pseudonyms.level names {max(self.level)}, and no topic of forward.topics has more than {deepest} "
                "levels; leave it out"
            )

    def in_clear(self, filters: list[str]) -> list[str]:
        """What of the filters' wildcards goes on as it is, for people."""
        found: list[str] = []
        for one in filters:
            for place, level in enumerate(_levels_of(one), 1):
                if level == "#":
                    found.append(f"what # of {one!r} stands for, but level {_listed(self.level)}")
                elif level == "+" and place not in self.level:
                    found.append(f"level {place} of {one!r}")
        return found


def _levels_of(filter_: str) -> list[str]:
    """The levels of a filter's topics, without what shares it."""
    levels = filter_.split("/")
    return levels[2:] if levels[0] == "$share" else levels


def _depth(filter_: str) -> float:
    """How many levels topics of a filter have at most."""
    levels = _levels_of(filter_)
    return float("inf") if levels[-1] == "#" else len(levels)


def _listed(levels: list[int]) -> str:
    return ", ".join(map(str, levels))


class Forward(Section):
    """From the broker to the next hop."""

    topics: list[Filter] = Field(min_length=1, description="filters, also $share/NAME/FILTER")
    unsubscribe: list[Filter] = Field(
        default_factory=list, description="filters of earlier days, which the broker's session still has"
    )
    retained: Literal["ignore", "forward"] = Field(
        default="ignore", description="what a broker repeats to new subscribers is old news; forwarded it is flagged"
    )
    to: Target
    limits: Limits = Field(default_factory=Limits)
    rejects: str | None = Field(
        default=None, min_length=1, description="file of dropped messages: reason, digest of the topic and size only"
    )
    pseudonyms: TopicPseudonyms | None = Field(
        default=None, description="levels of the topic that go on as keyed hashes; left out: topics go on as they are"
    )

    @model_validator(mode="after")
    def _named(self) -> Forward:
        if self.pseudonyms is not None:
            self.pseudonyms.check(self.topics)
        return self


class Metrics(Section):
    """What an operator sees."""

    every: Duration = Field(default="30s", description="from one line of the log to the next")
    port: int | None = Field(default=None, ge=0, le=65535, description="of the loopback address, for Prometheus")


class GatewaySettings(Document):
    """A whole gateway. See ``docs/gateway.md``."""

    explained = Explained("`quiltstream schema --gateway`", "`quiltstream schema --gateway`")

    mqtt: Broker
    forward: Forward
    metrics: Metrics = Field(default_factory=Metrics)
    stop: Duration = Field(default="10s", description="how long a gateway told to stop waits for what is under way")

    @field_validator("stop")
    @classmethod
    def _stop(cls, text: str) -> str:
        if seconds(text) > 3600:  # noqa: PLR2004 - an hour
            raise ValueError(f"stop is {text}; it is at most 1h")
        return text

    def path(self, text: str) -> Path:
        """A path of the settings as seen from here: relative ones start at the settings file's folder."""
        return self._folder / text


def seconds(duration: str) -> float:
    """A duration of the settings in seconds."""
    return parse_duration(duration) / 1e6
