"""Topics of Kafka as sinks: released rows, each under its release id, and rejects.

A row's key is its release id, and a row of record never changes, so a row that is sent again is the same message: a
compacted topic keeps one of each. A bundle ends when the brokers have what it sent; what they refuse fails the bundle,
the runner runs it again, and the rows come from the ledger of record once more.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import apache_beam as beam
import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ..schemas.releases import RELEASE_VERSION
from . import coders
from .formats import REJECTS, RELEASES, RowForm, write_stream
from .kafka_client import LOG, Cluster, KafkaUnavailableError, meaning_of, unavailable
from .pulse import Pulse

MessageFormat = Literal["json", "avro-single-object"]

#: Headers of every message.
SCHEMA, VERSION, DOMAIN, QUERY = "quiltstream.schema", "quiltstream.version", "quiltstream.domain", "quiltstream.query"

_CONTENT = {"json": "application/json", "avro-single-object": "avro/binary"}

_PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,
    "delivery.timeout.ms": 120_000,
    "reconnect.backoff.max.ms": 2_000,
    "socket.keepalive.enable": True,
}

#: Seconds between two lines about brokers that do not take what was sent.
_TELL_S = 10.0

Message = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
"""Key, value and headers."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that rows are sent to; a plain value that travels to any worker.

    Attributes:
        cluster: where the brokers are.
        name: of the topic.
        format: of the values.
    """

    cluster: Cluster
    name: str
    format: MessageFormat = "json"

    @property
    def text(self) -> str:
        """It in words."""
        return f"topic {self.name} at {self.cluster.servers}"


def release_messages(batch: pa.RecordBatch, format_: MessageFormat) -> Iterator[Message]:
    """A block of releases as messages, keyed by release id."""
    table = RELEASES.sorted(RELEASES.table([batch]))
    columns = (table.column(name).to_pylist() for name in ("release_id", "domain", "query"))
    for value, key, domain, query in zip(_values(table, RELEASES, format_), *columns, strict=True):
        names = [(DOMAIN, str(domain).encode()), (QUERY, str(query).encode())]
        yield str(key).encode(), value, [*_headers("release", format_), *names]


def reject_messages(batch: pa.RecordBatch, format_: MessageFormat) -> Iterator[Message]:
    """Rejects as messages without keys: reason, source and position, and the size where it is known; no content."""
    form = REJECTS
    if "size" in batch.schema.names:
        size = pa.field("size", pa.int64(), nullable=False)
        fields = [*REJECTS.avro["fields"], {"name": "size", "type": "long"}]
        form = RowForm(REJECTS.schema.append(size), {**REJECTS.avro, "fields": fields}, REJECTS.order)
    for value in _values(form.sorted(form.table([batch])), form, format_):
        yield None, value, _headers("reject", format_)


def _headers(schema: str, format_: MessageFormat) -> list[tuple[str, bytes]]:
    return [
        ("content-type", _CONTENT[format_].encode()),
        (SCHEMA, schema.encode()),
        (VERSION, RELEASE_VERSION.encode()),
    ]


def _values(table: pa.Table, form: RowForm, format_: MessageFormat) -> list[bytes]:
    if format_ == "json":
        stream = io.BytesIO()
        write_stream(stream, "jsonl", table, form)
        return stream.getvalue().split(b"\n")[:-1]
    head = single_object_head(form.avro)
    schema = fastavro.parse_schema(form.avro)
    return [head + _avro(schema, row) for row in table.to_pylist()]


def _avro(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def single_object_head(schema: Any) -> bytes:
    """What stands before a single object of Avro: a mark, and the fingerprint of its schema."""
    return b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


class Sender:
    """Sends messages to a topic; it belongs to one worker.

    Args:
        topic: where to.
        field: the setting, for messages.
    """

    def __init__(self, topic: Topic, field: str) -> None:
        self._topic = topic
        self._field = field
        self._producer: Any = None
        self._failed: str | None = None
        self._cause: str | None = None

    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to the client; it sends them in the background.

        Raises:
            KafkaUnavailableError: the client cannot be made, or refuses a message.
        """
        if self._producer is None:
            self._failed = self._cause = None
            self._producer = self._topic.cluster.produce(_PRODUCER, self._said)
        for key, value, headers in messages:
            self._hand_over(key, value, headers)

    def _hand_over(self, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic.name, value=value, key=key, headers=headers, on_delivery=self._delivered
                )
            except BufferError:  # noqa: PERF203 - the client is full: wait until it has sent some
                self._producer.poll(0.5)
            except Exception as error:
                if not type(error).__module__.startswith(("cimpl", "confluent_kafka")):
                    raise
                raise self._lost(unavailable(self._where, error)) from None
            else:
                return

    def finish(self) -> None:
        """Wait until the brokers have everything; say so while they do not.

        Raises:
            KafkaUnavailableError: they refused something, or did not take it in time.
        """
        if self._producer is None:
            return
        tell_at = time.monotonic() + _TELL_S
        while left := self._producer.flush(0.5):
            if time.monotonic() >= tell_at:
                tell_at += _TELL_S
                cause = self._cause or "no broker took them yet"
                text = f"{self._where}: {left} messages wait to be sent: {cause}"
                LOG.warning("%s", text)
                Pulse.complain(self._field, text)
        Pulse.complain(self._field, None)
        if self._failed is not None:
            raise self._lost(KafkaUnavailableError(f"{self._where}: {self._failed}", passing=True))

    def close(self) -> None:
        """Let go of the brokers; what was not sent is sent again by another bundle."""
        self._producer = None

    @property
    def _where(self) -> str:
        return f"{self._field}: {self._topic.text}"

    def _lost(self, error: KafkaUnavailableError) -> KafkaUnavailableError:
        # an idempotent producer that failed once may be of no use any more
        self._producer = None
        return error

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed = meaning_of(error)

    def _said(self, error: Any) -> None:
        self._cause = meaning_of(error)
        LOG.warning("%s: %s", self._where, self._cause)


class _Send(beam.DoFn):
    """Sends batches and ends each bundle when the brokers have them."""

    def __init__(self, topic: Topic, field: str, messages: Callable[..., Iterator[Message]]) -> None:
        self._topic = topic
        self._field = field
        self._messages = messages

    def setup(self) -> None:
        self._sender = Sender(self._topic, self._field)

    def process(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._sender.send(self._messages(batch, self._topic.format))

    def finish_bundle(self) -> None:
        self._sender.finish()

    def teardown(self) -> None:
        self._sender.close()


class SendReleases(beam.PTransform[Any, Any]):
    """Send record batches of releases to a topic.

    Args:
        topic: where to.
    """

    def __init__(self, topic: Topic) -> None:
        super().__init__()
        self._topic = topic

    def expand(self, input_or_inputs: Any) -> Any:
        """Send them from where they are."""
        send = _Send(self._topic, "sink.kafka", release_messages)
        return input_or_inputs | "Send" >> beam.ParDo(send).with_output_types(str)


class SendRejects(beam.PTransform[Any, Any]):
    """Send rejects to a topic, at least once.

    Args:
        topic: where to.
    """

    def __init__(self, topic: Topic) -> None:
        super().__init__()
        self._topic = topic

    def expand(self, input_or_inputs: Any) -> Any:
        """Send them from where they are."""
        send = _Send(self._topic, "rejects.kafka", reject_messages)
        return input_or_inputs | "Send" >> beam.ParDo(send).with_output_types(str)


__all__ = [
    "DOMAIN",
    "QUERY",
    "SCHEMA",
    "VERSION",
    "SendRejects",
    "SendReleases",
    "Sender",
    "Topic",
    "coders",
    "reject_messages",
    "release_messages",
    "single_object_head",
]
