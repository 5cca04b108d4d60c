"""Topics of Kafka as sinks.

A row's key is its release id, so a compacted topic keeps one of each, however often a row was sent. A bundle ends when
the brokers have what it sent (see :mod:`..sinks`).

A job that was killed may have put rows on record that it never sent. So a live job reads its sink to its end before it
begins, and sends what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam import typehints

from ..sinks import DOMAIN, QUERY, SCHEMA, Message, MessageFormat, reject_messages, release_messages, single_object_head
from ..sources.progress import Heartbeat
from .client import (
    LOG,
    LOOK_S,
    LOOKING,
    Cluster,
    KafkaAwayError,
    KafkaUnavailableError,
    as_unavailable,
    is_kafkas,
    look,
    meaning_of,
    name_of,
    topic_partition,
    unavailable,
)
from .messages import headers_of, to_the_end
from .partitions import EARLIEST, first_offsets, leaders
from .schema_registry import RegistryNumbers, subject_of, wire_head

_PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,
    "delivery.timeout.ms": 120_000,
    # the brokers judge how large a message may be
    "message.max.bytes": 1_000_000_000,
    "reconnect.backoff.max.ms": 2_000,
    "socket.keepalive.enable": True,
}

#: What the client says of a message that no broker took in time.
_TOO_LATE = "_MSG_TIMED_OUT"

#: Seconds between two lines about brokers that do not take what was sent.
_TELL_S = 10.0

#: Names of the errors of brokers that are too old to say what a user may do.
_TOO_OLD = frozenset({"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"})

#: Seconds that brokers have to describe a topic of releases, and without a message before it is given up.
_ANSWER_S = 10.0
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Topic:
    """A topic that rows are sent to."""

    cluster: Cluster
    name: str
    format: MessageFormat = "json"
    numbers: RegistryNumbers | None = None

    def __post_init__(self) -> None:
        if (self.format == "avro") != (self.numbers is not None):
            raise ValueError("a topic has a schema registry if its format is avro, and only then")

    @property
    def text(self) -> str:
        """It in words."""
        return f"topic {self.name} at {self.cluster.servers}"

    def sender(self, field: str) -> Sender:
        """A producer for it."""
        return Sender(self, field)

    def head(self, schema: Mapping[str, Any]) -> bytes:
        """What stands before an Avro body; one request to the schema registry."""
        if self.numbers is None:
            return single_object_head(schema)
        return wire_head(self.numbers.number(subject_of(self.name), schema))


class Sender:
    """Sends messages to a topic; it belongs to one worker."""

    def __init__(self, topic: Topic, field: str) -> None:
        self._topic = topic
        self._field = field
        self._producer: Any = None
        self._failed: str | None = None
        self._late = False
        self._cause: str | None = None

    def head(self, schema: Mapping[str, Any]) -> bytes:
        """What stands before an Avro body; a schema registry that is away fails the bundle, which is run again."""
        try:
            return self._topic.head(schema)
        except KafkaUnavailableError as error:
            text = f"{self._where}: {error}"
            LOG.warning("%s", text)
            Heartbeat.complain(self._field, text)
            raise (KafkaAwayError if error.passing else KafkaUnavailableError)(text, passing=error.passing) from None

    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to the client; it sends them in the background."""
        if self._producer is None:
            self._failed = self._cause = None
            self._producer = self._topic.cluster.produce(_PRODUCER, self._said)
        for key, value, headers in messages:
            self._hand_over(key, value, headers)

    def _hand_over(self, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        given = {"value": value, "key": key, "headers": headers, "on_delivery": self._delivered}
        try:
            with as_unavailable(self._where):
                while True:
                    try:
                        return self._producer.produce(self._topic.name, **given)
                    except BufferError:
                        self._producer.poll(0.5)
        except KafkaUnavailableError:
            # an idempotent producer that failed once may be of no use any more
            self._producer = None
            raise

    def finish(self) -> None:
        """Wait until the brokers have everything; say so while they do not."""
        if self._producer is None:
            return
        tell_at = time.monotonic() + _TELL_S
        while left := self._producer.flush(0.5):
            if time.monotonic() >= tell_at:
                tell_at += _TELL_S
                cause = self._cause or "no broker took them yet"
                text = f"{self._where}: {left} messages wait to be sent: {cause}"
                LOG.warning("%s", text)
                Heartbeat.complain(self._field, text)
        Heartbeat.complain(self._field, None)
        if self._failed is not None:
            self._producer = None
            kind = KafkaAwayError if self._late else KafkaUnavailableError
            raise kind(f"{self._where}: {self._failed}", passing=True)

    def close(self) -> None:
        """Let go of the brokers; what was not sent is sent again by another bundle."""
        self._producer = None

    @property
    def _where(self) -> str:
        return f"{self._field}: {self._topic.text}"

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed, self._late = meaning_of(error), name_of(error) == _TOO_LATE

    def _said(self, error: Any) -> None:
        self._cause = meaning_of(error)
        LOG.warning("%s: %s", self._where, self._cause)


@typehints.with_output_types(str)
class _Send(beam.DoFn):
    def __init__(self, topic: Topic, field: str, messages: Callable[..., Iterator[Message]]) -> None:
        self._topic = topic
        self._field = field
        self._messages = messages

    def setup(self) -> None:
        self._sender = self._topic.sender(self._field)

    def process(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._sender.send(self._messages(batch, self._topic.format, self._sender.head))

    def finish_bundle(self) -> None:
        self._sender.finish()

    def teardown(self) -> None:
        self._sender.close()


class SendReleases(beam.ParDo):
    """Send record batches of releases to a topic."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(_Send(topic, "sink.kafka", release_messages))


class SendRejects(beam.ParDo):
    """Send rejects to a topic, at least once."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(_Send(topic, "rejects.kafka", reject_messages))


def look_to_write(topic: Topic) -> None:
    """See that a topic is there and that the user may send to it; nothing is sent.

    Where brokers do not say what a user may do, the first message shows it.
    """
    look(topic.cluster, (topic.name,))
    if not _may_write(topic):
        raise KafkaUnavailableError(f"{topic.text}: the user may not write to it; ask for the right to it")


def _may_write(topic: Topic) -> bool:
    from confluent_kafka import TopicCollection  # noqa: PLC0415 - an extra
    from confluent_kafka.admin import (  # noqa: PLC0415 - an extra
        AclOperation,  # pyright: ignore[reportPrivateImportUsage] - its documented place
    )

    admin = topic.cluster.administer()
    described: Any = admin.describe_topics(
        TopicCollection([topic.name]), include_authorized_operations=True, request_timeout=LOOK_S
    )
    try:
        allowed = described[topic.name].result().authorized_operations
    except Exception as error:
        if not is_kafkas(error):
            raise
        if name_of(error) in _TOO_OLD:
            return True
        raise unavailable(topic.text, error) from None
    return not allowed or not {AclOperation.WRITE, AclOperation.ALL}.isdisjoint(allowed)


def read_ids(
    topic: Topic, domain: str, query: str, take: Callable[[str], None], *, patience_s: float = _PATIENCE_S
) -> bool:
    """Read a topic of releases to its end; rows that are there twice are given twice.

    Returns:
        Whether the topic has lost its beginning, as topics that are not compacted do.

    Raises:
        KafkaUnavailableError: the topic cannot be read, or holds messages that are no releases.
    """
    consumer = topic.cluster.consume(LOOKING)
    try:
        with as_unavailable(topic.text):
            return _read(consumer, topic, (domain.encode(), query.encode()), take, patience_s)
    finally:
        consumer.close()


def _read(
    consumer: Any, topic: Topic, names: tuple[bytes, bytes], take: Callable[[str], None], patience_s: float
) -> bool:
    places = leaders(consumer, (topic.name,), topic.cluster.servers, _ANSWER_S)
    starts = first_offsets(consumer, places, EARLIEST, _ANSWER_S)
    consumer.assign([topic_partition(*place, offset) for place, (offset, _) in starts.items()])
    for one in to_the_end(consumer, set(places), patience_s, topic.text):
        _take(one, topic, names, take)
    return any(offset for offset, _ in starts.values())


def _take(message: Any, topic: Topic, names: tuple[bytes, bytes], take: Callable[[str], None]) -> None:
    if message.value() is None:
        return
    headers = dict(headers_of(message) or ())
    if headers.get(SCHEMA) != b"release" or message.key() is None:
        raise KafkaUnavailableError(f"{topic.text} holds messages that are no releases of quiltstream: name another")
    if (headers.get(DOMAIN), headers.get(QUERY)) == names:
        take(message.key().decode())
