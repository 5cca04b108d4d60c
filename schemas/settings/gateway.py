"""The settings of the gateway: which broker, which topics, and where messages go.

They are a document of their own: a job's settings are frozen in the ledger, and have no place for a broker's login.

>>> GatewaySettings.load(EXAMPLE).mqtt.port_in_use
8883
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..errors import ArgumentError
from ..slots import parse_duration
from .base import Document, Duration, Explained, Name, Section
from .connectors import OneConnector, Options, Servers, Topic
from .secrets import Pseudonyms, Secret

EXAMPLE = """\
mqtt:
  host: broker.example
  client_id: gateway-1
  tls: {ca: broker-ca.pem}
  user: gateway
  password: {file: mqtt-password}
forward:
  topics: [meters/+/readings]
  to: {folder: {path: spool}}
"""

_FILTER = re.compile(r"(?:\$share/[^/+#\0]+/|(?!\$share/))(?:(?:\+|[^/+#\0]*)/)*(?:\+|#|[^/+#\0]*)")


def _filter(text: str) -> str:
    if not 0 < len(text.encode()) < 1 << 16 or _FILTER.fullmatch(text) is None:
        raise ArgumentError(
            f"{text!r} is no topic filter; + is a whole level, # all that follow, $share/NAME/ stands first"
        )
    return text


def levels_of(filter_: str) -> list[str]:
    """The levels of a filter's topics, without what shares it."""
    levels = filter_.split("/")
    return levels[2:] if levels[0] == "$share" else levels


class Tls(Section):
    """How the connection is encrypted, and who the broker and the gateway are."""

    ca: str | None = Field(default=None, description="file of the authorities to trust; left out: the system's")
    cert: str | None = Field(default=None, description="file of the gateway's own certificate")
    key: str | None = Field(default=None, description="file of its key; left out: in the same file")


class Broker(Section):
    """The MQTT broker, and who the gateway is to it."""

    host: Name
    port: int | None = Field(default=None, ge=1, le=65535, description="left out: 8883 with TLS, 1883 without")
    client_id: Name = Field(description="the gateway's name at the broker; each gateway has its own, for ever")
    session: Duration = Field(default="7d", description="how long the broker keeps messages: more than any outage")
    packet: int = Field(default=500_000, ge=100, le=268_435_455, description="bytes; larger messages are not taken")
    tls: Tls | None = Field(default=None, description="{} is TLS with the system's authorities; left out: no TLS")
    user: Name | None = None
    password: Secret | None = None

    @model_validator(mode="after")
    def _whole(self) -> Broker:
        if set("/@") & set(self.host):
            raise ArgumentError(
                "mqtt.host is an address; write the name alone, and port, tls, user and password beside it"
            )
        if self.password is not None and self.user is None:
            raise ArgumentError("mqtt.password is given without mqtt.user; name the user")
        return self

    @property
    def port_in_use(self) -> int:
        """The port, as written or by the protocol's own rule."""
        return self.port or (1883 if self.tls is None else 8883)


class KafkaTarget(Section):
    """A Kafka topic that messages go to."""

    servers: Servers
    topic: Topic
    options: Options = Field(default_factory=dict, description="any option of librdkafka")


class FolderTarget(Section):
    """A folder that messages go to, as Avro files."""

    path: str = Field(min_length=1)
    age: Duration = Field(default="10s", description="how long a message waits for others of its file")
    free: float = Field(default=0.05, ge=0, lt=1, description="share of the disk; with less free, messages wait")


class Target(OneConnector):
    """The next hop: exactly one."""

    kafka: KafkaTarget | None = None
    folder: FolderTarget | None = None

    @property
    def _kinds(self) -> tuple[str, ...]:
        return "kafka", "folder"

    @property
    def chosen(self) -> KafkaTarget | FolderTarget:
        """The one that is named."""
        return getattr(self, self.kind)


def _levels(given: Any) -> Any:
    return [given] if type(given) is int else given


class TopicPseudonyms(Pseudonyms):
    """Levels of the topic that go on as keyed hashes, those that a job makes by the same key."""

    level: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_levels)] = Field(
        min_length=1,
        description="level of the topic with the meter's name, counted from 1; or a list of levels",
        json_schema_extra={"type": ["integer", "array"], "minimum": 1},
    )


class Forward(Section):
    """From the broker to the next hop."""

    topics: list[Annotated[str, AfterValidator(_filter)]] = Field(min_length=1, description="filters of topics")
    to: Target
    pseudonyms: TopicPseudonyms | None = Field(default=None, description="left out: topics go on as they are")

    @model_validator(mode="after")
    def _named(self) -> Forward:
        least = 0 if self.pseudonyms is None else min(self.pseudonyms.level)
        for levels in map(levels_of, self.topics):
            if least > len(levels) and levels[-1] != "#":
                raise ArgumentError(
                    f"pseudonyms.level is {least}, and topics of {'/'.join(levels)!r} have {len(levels)}: they would "
                    "go on under their own names; name the level with the meter's name, counted from 1"
                )
        return self


class Metrics(Section):
    """What an operator sees."""

    port: int | None = Field(default=None, ge=0, le=65535, description="of the loopback address, for Prometheus")


class GatewaySettings(Document):
    """A whole gateway. See ``docs/gateway.md``."""

    explained = Explained("`quiltstream schema --gateway`", "`quiltstream schema --gateway`")

    mqtt: Broker
    forward: Forward
    metrics: Metrics = Field(default_factory=Metrics)

    def path(self, text: str) -> str:
        """A path of the settings as seen from here: relative ones start at the settings file's folder."""
        return str(self._folder / text)


def seconds(duration: str) -> float:
    """A duration of the settings in seconds."""
    return parse_duration(duration) / 1e6
