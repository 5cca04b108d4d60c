"""The settings of sources and sinks: files, standard input, topics of Kafka, subscriptions and topics of Pub/Sub.

>>> FileSource(parquet="readings.parquet").kind, FileSink(jsonl="releases").text
('parquet', 'releases')
>>> source = KafkaSource(servers="localhost:9092", topic="meters", start="2024-03-01")
>>> source.all_topics, source.start, source.lanes
(('meters',), '2024-03-01', 1)
>>> source = PubSubSource(subscription="projects/grid-data/subscriptions/meters", reread="1d")
>>> source.subscription, source.reread
('projects/grid-data/subscriptions/meters', '1d')
"""

from __future__ import annotations

import re
import warnings
from abc import abstractmethod
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..errors import ArgumentError
from ..slots import parse_instant
from .base import Duration, Instant, Name, Section
from .secrets import Option, checked_options


class ConnectorSection(Section):
    """The settings of a source or a sink that is no files."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it reads or writes, in words, without a secret."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that tell apart what is read and written there: no sink may have a name of the source."""
        return (self.place,)


_STARTS = ("earliest", "latest", "group")

#: What a topic may be called.
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

_OWN = {
    "bootstrap.servers": "write it as servers",
    "metadata.broker.list": "write it as servers",
    "group.id": "write it as group",
    "group.instance.id": "the source joins no group",
    "enable.auto.commit": "what was read is kept by the runner",
    "enable.auto.offset.store": "what was read is kept by the runner",
    "auto.offset.reset": "write it as start",
    "enable.partition.eof": "it is always on",
    "acks": "it is always all",
    "request.required.acks": "it is always all",
    "enable.idempotence": "it is always on",
    "transactional.id": "rows are keyed by their release instead",
}

_REGISTRY_OWN = {"url": "write it as url beside the options"}


def _servers(given: Any) -> Any:
    given = ",".join(given) if isinstance(given, list) and all(isinstance(one, str) for one in given) else given
    if isinstance(given, str) and ("@" in given or ("://" in given and not re.match(r"[A-Z_]+://", given))):
        raise ArgumentError("servers are HOST:PORT, with commas between; users and passwords belong into options")
    return given


def _topic(given: Any) -> Any:
    if isinstance(given, str) and (_TOPIC.fullmatch(given) is None or given in {".", ".."}):
        raise ArgumentError(f"{given!r} is no topic; a topic has up to 249 letters, digits, dots, _ and -")
    return given


Servers = Annotated[Name, BeforeValidator(_servers), Field(description="HOST:PORT of one or more brokers")]
Topic = Annotated[str, BeforeValidator(_topic)]
Options = Annotated[dict[str, Option], BeforeValidator(partial(checked_options, own=_OWN))]


class Registry(Section):
    """A schema registry that speaks Confluent's interface."""

    url: Name = Field(description="up to where Confluent's paths begin")
    options: Annotated[dict[str, Option], BeforeValidator(partial(checked_options, own=_REGISTRY_OWN))] = Field(
        default_factory=dict, description="any option of Confluent's client, such as basic.auth.user.info"
    )

    @field_validator("url", mode="before")
    @classmethod
    def _url(cls, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        if not text.startswith(("http://", "https://", "mock://")):
            raise ArgumentError("registry.url begins with http:// or https://")
        if "@" in text:
            raise ArgumentError(
                "registry.url holds a user; write it as options: {basic.auth.user.info: {env: VARIABLE}}, USER:PASSWORD"
            )
        if set("?#") & set(text):
            raise ArgumentError(
                "registry.url holds a query, behind which Confluent's paths cannot stand; write a token as options: "
                "{NAME: {env: VARIABLE}}, by the name that Confluent's client has for it"
            )
        return text


class SinkRegistry(Registry):
    """A schema registry that has the schema of rows before the first one is sent."""

    auto_register: bool = Field(
        default=True,
        description="register the schema of the rows under `<topic>-value` if it is not there; false: only look it up",
    )


class KafkaSource(ConnectorSection):
    """Topics of readings; only live."""

    servers: Servers
    topic: Topic | None = Field(default=None, description="name of the topic, or topics")
    topics: list[Topic] | None = Field(default=None, min_length=1, description="several, instead of topic")
    registry: Registry | None = Field(default=None, description="where the schemas of readings.payload: avro are")
    start: Instant = Field(
        default="earliest",
        description="where a first run begins: earliest, latest, group, or an instant: at the messages that the broker "
        "stamped from then on",
        examples=["earliest", "latest", "group", "2024-03-01"],
    )
    group: Name | None = Field(
        default=None,
        description="consumer group: with start: group a first run begins at its offsets, and leaves them alone; else "
        "what was read is committed to it, for monitoring only",
    )
    reread: Duration | None = Field(
        default=None,
        description="a run without the runner's state begins so long before its first missing window, by the broker's "
        "time stamps; left out: at the start of the topic",
    )
    lanes: int = Field(default=1, ge=1, le=256, description="parallel parts; lane i of n reads partitions i, i+n, ...")
    discover: Duration = Field(default="10s", description="interval of looking for new partitions")
    options: Options = Field(default_factory=dict, description="any option of librdkafka")

    @field_validator("start")
    @classmethod
    def _start(cls, text: str) -> str:
        if text not in _STARTS:
            try:
                parse_instant(text, "UTC")
            except ValueError:
                raise ArgumentError(f"start {text!r} is not {', '.join(_STARTS)} or an instant") from None
        return text

    @model_validator(mode="after")
    def _whole(self) -> KafkaSource:
        if (self.topic is None) == (self.topics is None):
            raise ArgumentError("source.kafka: name exactly one of topic, topics")
        if len(set(self.all_topics)) != len(self.all_topics):
            raise ArgumentError("source.kafka.topics names a topic twice; name each once")
        if self.start == "group" and self.group is None:
            raise ArgumentError("source.kafka.start is group; name it as source.kafka.group")
        return self

    @property
    def all_topics(self) -> tuple[str, ...]:
        """The topics, in the order of the settings."""
        return (self.topic,) if self.topic is not None else tuple(self.topics or ())

    @property
    def place(self) -> str:
        """The topics and the brokers."""
        return f"{', '.join(self.all_topics)} at {self.servers}"

    @property
    def names(self) -> tuple[str, ...]:
        """The topics."""
        return self.all_topics


class KafkaSink(ConnectorSection):
    """A topic that rows are sent to; only live."""

    servers: Servers
    topic: Topic = Field(description="name of the topic")
    format: Literal["json", "avro", "avro-single-object"] = Field(
        default="json", description="avro is the wire format of schema registries"
    )
    registry: SinkRegistry | None = Field(default=None, description="where the schema of format: avro is")
    options: Options = Field(default_factory=dict, description="any option of librdkafka")

    @model_validator(mode="after")
    def _registered(self) -> KafkaSink:
        if self.format == "avro" and self.registry is None:
            raise ArgumentError("format: avro needs registry: {url: ...}, where the schema of the rows is")
        if self.format != "avro" and self.registry is not None:
            raise ArgumentError(f"registry is for format: avro, and format is {self.format}")
        return self

    @property
    def place(self) -> str:
        """The topic and the brokers."""
        return f"topic {self.topic} at {self.servers}"

    @property
    def names(self) -> tuple[str, ...]:
        """The topic."""
        return (self.topic,)


#: What a project, and a subscription or topic in it, may be called.
_PROJECT = r"[a-z][a-z0-9.:-]{4,98}[a-z0-9]"
_NAME = r"[A-Za-z][A-Za-z0-9._~+%-]{2,254}"


def _whole_name(kind: str, given: Any) -> Any:
    if isinstance(given, str) and re.fullmatch(rf"projects/{_PROJECT}/{kind}/{_NAME}", given) is None:
        raise ArgumentError(f"{given!r} is not written as projects/PROJECT/{kind}/NAME")
    return given


class PubSubSource(ConnectorSection):
    """A Pub/Sub subscription of readings, of this job alone; only live."""

    subscription: Annotated[str, BeforeValidator(partial(_whole_name, "subscriptions"))] = Field(
        description="the job's own", examples=["projects/my-project/subscriptions/meters"]
    )
    timestamp_attribute: Name | None = Field(
        default=None,
        description="attribute with a message's time, as milliseconds since 1970 or RFC 3339; left out: when Pub/Sub "
        "took it",
    )
    id_attribute: Name | None = Field(
        default=None,
        description="attribute that is the same when a publisher sends a message again; left out: Pub/Sub's own id",
    )
    reread: Duration | None = Field(
        default=None,
        description="a run without the runner's state seeks so long before its first missing window; left out: "
        "windows that start before it began say unavailable",
    )

    @property
    def place(self) -> str:
        """The subscription."""
        return self.subscription

    @property
    def names(self) -> tuple[str, ...]:
        """None: a subscription does not say which topic it is of."""
        return ()


class PubSubSink(ConnectorSection):
    """A Pub/Sub topic that rows are sent to; only live."""

    topic: Annotated[str, BeforeValidator(partial(_whole_name, "topics"))] = Field(
        examples=["projects/my-project/topics/releases"], description="full name of the topic"
    )
    format: Literal["json", "avro-single-object"] = Field(default="json", description="encoding of a row")
    resend: int = Field(
        default=1, ge=0, le=100_000, description="windows on record whose rows are sent again when a run begins"
    )

    @property
    def place(self) -> str:
        """The topic."""
        return f"topic {self.topic}"

    @property
    def names(self) -> tuple[str, ...]:
        """The topic."""
        return (self.topic,)


FileFormat = Literal["parquet", "csv", "jsonl", "avro"]
SourceFormat = Literal["parquet", "csv", "jsonl", "avro", "json", "nem12", "greenbutton", "cim", "dsmr"]
FILE_FORMATS: tuple[FileFormat, ...] = ("parquet", "csv", "jsonl", "avro")
SOURCE_FORMATS: tuple[SourceFormat, ...] = (*FILE_FORMATS, "json", "nem12", "greenbutton", "cim", "dsmr")

#: The connectors by their names in settings: the module with the functions ``source(settings, group)`` and
#: ``sink(settings, field, given)``, which a job imports; settings are checked without the client of a broker.
CONNECTORS: dict[str, str] = {
    **dict.fromkeys((*SOURCE_FORMATS, "stdin"), "quiltstream.pipelines.connectors.files"),
    "kafka": "quiltstream.pipelines.connectors.kafka",
    "pubsub": "quiltstream.pipelines.connectors.pubsub",
}


class OneConnector(Section):
    """A section with a setting for each connector, of which one is given."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _ = self.kind
        return self

    @property
    def kind(self) -> str:
        """Which connector is given: a format of files, ``stdin``, or a broker's name."""
        given = [name for name in self._kinds if getattr(self, name)]
        if len(given) != 1:
            raise ArgumentError(f"name exactly one of {', '.join(self._kinds)}; {len(given)} are given")
        return given[0]

    @property
    def _kinds(self) -> tuple[str, ...]:
        return tuple(name for name in CONNECTORS if name in type(self).model_fields)

    @property
    def section(self) -> ConnectorSection | None:
        """The settings of the connector; ``None`` where it is files or standard input."""
        found = getattr(self, self.kind)
        return found if isinstance(found, ConnectorSection) else None

    @property
    def named_topics(self) -> tuple[tuple[str, str], ...]:
        """What is read or written there, each after the connector's name; nothing where it is files."""
        section = self.section
        return () if section is None else tuple((self.kind, name) for name in section.names)


#: Fields of files: the encoding of text, paths of one format, and the delimiter of CSV.
Encoding = Annotated[Literal["utf-8", "utf-16", "latin-1", "windows-1252"], Field(description="of files of text")]
Paths = Annotated[str | list[str] | None, Field(description="a path, a pattern, or a list of them")]
Delimiter = Annotated[str, Field(min_length=1, max_length=1, description="between the columns of CSV")]


with warnings.catch_warnings():
    # `json` is a format of files; the method of this name that pydantic has is one of its first version
    warnings.filterwarnings("ignore", message='Field name "json"')

    class FileSource(OneConnector):
        """Where readings come from: files (a path, a pattern or a list of them), standard input, or a broker."""

        parquet: Paths = None
        csv: Paths = None
        jsonl: Paths = None
        avro: Paths = None
        json: Paths = Field(default=None, description="documents of JSON, each read as a whole")  # pyright: ignore[reportIncompatibleMethodOverride]
        nem12: Paths = Field(default=None, description="interval meter data of Australia")
        greenbutton: Paths = Field(default=None, description="Green Button feeds (ESPI)")
        cim: Paths = Field(default=None, description="MeterReadings of CIM (IEC 61968-9)")
        dsmr: Paths = Field(default=None, description="telegrams of DSMR (P1)")
        stdin: Literal["csv", "jsonl"] | None = Field(
            default=None, description="lines of standard input in this format; only live"
        )
        kafka: KafkaSource | None = Field(default=None, description="messages of Kafka topics; only live")
        pubsub: PubSubSource | None = Field(default=None, description="messages of a Pub/Sub subscription; only live")
        delimiter: Delimiter = ","
        encoding: Encoding = "utf-8"
        skip: int = Field(default=0, ge=0, le=10_000, description="lines of CSV files before the line of names")
        names: list[Name] = Field(
            default_factory=list[Name],
            max_length=10_000,
            description="names of the columns of CSV files without a line of names",
        )

        @model_validator(mode="after")
        def _of_its_kind(self) -> FileSource:
            kind = self.kind
            if self.encoding != "utf-8" and kind not in ("csv", "jsonl", "json", "nem12"):
                raise ArgumentError(f"encoding is {self.encoding}, and {kind} is no file of text; leave it out")
            if (self.skip or self.names) and kind != "csv":
                raise ArgumentError(f"skip and names are of CSV files, and the source is {kind}; leave them out")
            return self

        @property
        def format(self) -> SourceFormat:
            """The format of the files that are given.

            Raises:
                ValueError: no files are given.
            """
            if self.broker is not None:
                raise ArgumentError(f"{self.broker} names no files, and has no format of files")
            return self.stdin or next(f for f in SOURCE_FORMATS if getattr(self, f))

        @property
        def setting(self) -> str:
            """Name of the setting that is given, for messages."""
            return f"source.{self.kind}"

        @property
        def broker(self) -> str | None:
            """Name of the setting where it is a broker; ``None`` where it is files or standard input."""
            return None if self.section is None else self.setting

        @property
        def may_end(self) -> bool:
            """Whether it may come to an end by itself, as standard input does."""
            return bool(self.stdin)

        @property
        def patterns(self) -> tuple[str, ...]:
            """The paths or patterns, as written; none where the source is no files."""
            if self.stdin or self.broker is not None:
                return ()
            given = getattr(self, self.format)
            return (given,) if isinstance(given, str) else tuple(given)


class FileSink(OneConnector):
    """Where rows go: exactly one of the formats and a path, or a topic."""

    parquet: str | None = Field(default=None, description="path of the file; of the folder where the job is live")
    csv: str | None = Field(default=None, description="path of the file; of the folder where the job is live")
    jsonl: str | None = Field(default=None, description="path of the file; of the folder where the job is live")
    avro: str | None = Field(default=None, description="path of the file; of the folder where the job is live")
    kafka: KafkaSink | None = Field(default=None, description="a Kafka topic; only live")
    pubsub: PubSubSink | None = Field(default=None, description="a Pub/Sub topic; only live")

    @property
    def format(self) -> FileFormat:
        """The format of the file that is given.

        Raises:
            ValueError: no file is given.
        """
        if not self.is_files:
            raise ArgumentError("a topic is no file, and has no format of files")
        return next(f for f in FILE_FORMATS if getattr(self, f))

    @property
    def path(self) -> str:
        """The path, as written.

        Raises:
            ValueError: no file is given.
        """
        return str(getattr(self, self.format))

    @property
    def text(self) -> str:
        """The place in words, as written."""
        section = self.section
        return self.path if section is None else section.place

    @property
    def is_files(self) -> bool:
        """Whether it is a place for files."""
        return self.section is None
