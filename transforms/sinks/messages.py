"""A topic of messages as a sink: released rows, each under its release id, and rejects.

A row of record never changes, so a row that is sent again is the same message. A bundle ends when the broker has what
it sent; what it refuses fails the bundle, the runner runs it again, and the rows come from the ledger of record once
more. What is a broker's own is in its :class:`MessageTopic` and the :class:`MessageSender` that this one makes.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import apache_beam as beam
import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ...schemas.releases import RELEASE_VERSION
from ...schemas.table_files import RELEASES, RowForm, in_one, write_stream
from ..common.batches import with_dead_letter_columns
from .files import DEAD_LETTERS, REJECTS

MessageFormat = Literal["json", "avro", "avro-single-object"]
"""``avro`` is what the number of a schema in a registry stands before, ``avro-single-object`` its fingerprint."""

#: Headers, or attributes, of every message.
SCHEMA, VERSION, DOMAIN, QUERY = "quiltstream.schema", "quiltstream.version", "quiltstream.domain", "quiltstream.query"

_CONTENT = {"json": "application/json", "avro": "avro/binary", "avro-single-object": "avro/binary"}

Message = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
"""Key, value and headers."""

Head = Callable[[Mapping[str, Any]], bytes]
"""What stands before an Avro body, by its schema."""


class MessageSender(ABC):
    """Sends messages to a topic; it belongs to one worker."""

    @abstractmethod
    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to the client; it sends them in the background."""

    def head(self, schema: Mapping[str, Any]) -> bytes:
        """What stands before an Avro body."""
        return single_object_head(schema)

    @abstractmethod
    def finish(self) -> None:
        """Wait until the broker has everything."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the client; what was not sent is sent again by another bundle."""


class MessageTopic(ABC):
    """A topic that rows are sent to; a plain value that travels to any worker.

    Attributes:
        kind: what the settings call such topics.
    """

    kind: ClassVar[str]
    name: str
    format: MessageFormat

    @abstractmethod
    def sender(self, field: str) -> MessageSender:
        """What sends to it."""


def single_object_head(schema: Mapping[str, Any]) -> bytes:
    """What stands before a single object of Avro: a mark, and the fingerprint of its schema."""
    return b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(dict(schema)), "CRC-64-AVRO"))


def release_messages(
    batch: pa.RecordBatch, format_: MessageFormat, head: Head = single_object_head
) -> Iterator[Message]:
    """A block of releases as messages, keyed by release id."""
    table = RELEASES.sorted(RELEASES.table([batch]))
    columns = (table.column(name).to_pylist() for name in ("release_id", "domain", "query"))
    for value, key, domain, query in zip(_values(table, RELEASES, format_, head), *columns, strict=True):
        names = [(DOMAIN, str(domain).encode()), (QUERY, str(query).encode())]
        yield str(key).encode(), value, [*_headers("release", format_), *names]


def reject_messages(
    batch: pa.RecordBatch, format_: MessageFormat, head: Head = single_object_head
) -> Iterator[Message]:
    """Rejects as messages without keys: reason, source, position, and the size where it is known.

    Content is in them only as a letter to the operator's public key, where the settings name one.
    """
    if format_ == "avro":
        # one schema for all that a topic may have, whatever the settings say of letters later
        batch = with_dead_letter_columns(batch)
    form = DEAD_LETTERS if "letter" in batch.schema.names else REJECTS
    for value in _values(form.sorted(form.table([batch])), form, format_, head):
        yield None, value, _headers("reject", format_)


def _headers(schema: str, format_: MessageFormat) -> list[tuple[str, bytes]]:
    return [
        ("content-type", _CONTENT[format_].encode()),
        (SCHEMA, schema.encode()),
        (VERSION, RELEASE_VERSION.encode()),
    ]


def _values(table: pa.Table, form: RowForm, format_: MessageFormat, head: Head) -> list[bytes]:
    if format_ == "json":
        stream = io.BytesIO()
        write_stream(stream, "jsonl", in_one(table), form)
        return stream.getvalue().split(b"\n")[:-1]
    begin = head(form.avro)
    schema = fastavro.parse_schema(form.avro)
    return [begin + _avro(schema, row) for row in table.to_pylist()]


def _avro(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


class _Send(beam.DoFn):
    def __init__(self, topic: MessageTopic, field: str, messages: Callable[..., Iterator[Message]]) -> None:
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


class _SendRows(beam.PTransform[Any, Any]):
    #: The section of the settings that names the topic.
    section: ClassVar[str]
    messages: ClassVar[Callable[[pa.RecordBatch, MessageFormat, Head], Iterator[Message]]]

    def __init__(self, topic: MessageTopic) -> None:
        super().__init__()
        self._topic = topic

    def expand(self, input_or_inputs: Any) -> Any:
        kind = type(self)
        send = _Send(self._topic, f"{kind.section}.{self._topic.kind}", kind.messages)
        return input_or_inputs | "Send" >> beam.ParDo(send).with_output_types(str)


class SendReleases(_SendRows):
    """Send record batches of releases to a topic."""

    section = "sink"
    messages = staticmethod(release_messages)


class SendRejects(_SendRows):
    """Send rejects to a topic, at least once."""

    section = "rejects"
    messages = staticmethod(reject_messages)
