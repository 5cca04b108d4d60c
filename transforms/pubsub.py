"""Google Cloud Pub/Sub, for live jobs: Beam's own reading and writing, and the decoding of messages between.

A subscription has no offsets and declares no window, so windows end by the runner's watermark and the wall clock
(``by_watermark`` of :class:`.PrivateHistograms`). A runner acknowledges what it has kept and gives an order to nothing;
a message that comes twice changes nothing, because cells take maxima.

A topic keeps no rows and drops no doubles: a reader keeps the first row of each ``release_id``. A row of record never
changes, so all of them are the same.

Beam's extra ``gcp`` is an extra here, too. Credentials are the machine's own: the settings hold none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.readings import RejectReason
from ..store.codec import now_us
from .common.batches import DECODED, METRICS, PASSED_OVER, counter_name, decoded_reject_batch, typed
from .completeness import Steps
from .payloads.messages import MessageDecoder, Messages
from .sinks import Message, MessageFormat, reject_messages, release_messages
from .sources.contract import not_ahead, source_batch_of
from .sources.files import DecodedReadings
from .sources.reader import REJECTED

if TYPE_CHECKING:
    from apache_beam.io.gcp.pubsub import PubsubMessage

#: Attribute with the name of a row.
RELEASE_ID = "release_id"

#: Messages of a bundle that are decoded at once, and their bytes.
_MESSAGES = 10_000
_BYTES = 64 << 20


class ReadSubscription(beam.PTransform[Any, Any]):
    """Read a subscription that has no other reader, on a runner that has Pub/Sub.

    Args:
        name: ``projects/PROJECT/subscriptions/NAME``.
        decoder: of the messages; attributes are their headers, ordering keys their keys.
        steps: of the windows: a reading of a step that begins over a day from now is rejected.
        timestamp_attribute: attribute with a message's time, which Beam reads; ``None``: when Pub/Sub took it.
        id_attribute: attribute that names a message; ``None``: Pub/Sub's own id.
        messages: what gives the messages instead of Beam's transform, in tests.
    """

    def __init__(
        self,
        name: str,
        decoder: MessageDecoder,
        steps: Steps | None,
        *,
        timestamp_attribute: str | None = None,
        id_attribute: str | None = None,
        messages: beam.PTransform[Any, Any] | None = None,
    ) -> None:
        super().__init__()
        self._name, self._decoder, self._steps = name, decoder, steps
        self._timestamp, self._id, self._messages = timestamp_attribute, id_attribute, messages

    def expand(self, input_or_inputs: PBegin) -> DecodedReadings:
        """Read, and decode what a bundle has at once."""
        from apache_beam.io.gcp.pubsub import ReadFromPubSub  # noqa: PLC0415 - slow, and of an extra

        messages = self._messages or ReadFromPubSub(
            subscription=self._name, id_label=self._id, with_attributes=True, timestamp_attribute=self._timestamp
        )
        decode = beam.ParDo(DecodeMessages(self._name, self._decoder, self._steps))
        decoded: Any = (
            input_or_inputs | "Messages" >> messages | "Decode" >> decode.with_outputs(REJECTED, main="readings")
        )
        return DecodedReadings(typed(decoded.readings, pa.RecordBatch), typed(decoded[REJECTED], pa.RecordBatch))


class DecodeMessages(beam.DoFn):
    """Messages of Pub/Sub to record batches of readings; rejects go to the output ``rejected``.

    A batch has the earliest timestamp of its messages, so that the watermark does not pass any of them.
    """

    def __init__(self, name: str, decoder: MessageDecoder, steps: Steps | None) -> None:
        self._name, self._decoder, self._steps = name, decoder, steps

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._held: list[tuple[PubsubMessage, Timestamp]] = []
        self._bytes = 0

    def process(self, message: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Take one message."""
        self._held.append((message, timestamp))
        self._bytes += len(message.data)
        if len(self._held) >= _MESSAGES or self._bytes >= _BYTES:
            yield from self._decoded()

    def finish_bundle(self) -> Any:
        """Decode what is held."""
        if self._held:
            yield from self._decoded()

    def _decoded(self) -> Iterator[Any]:
        messages, at = messages_of(self._held), min(at for _, at in self._held)
        self.start_bundle()
        came_us = max(now_us(), int(messages.stamps_us.max()))
        found = source_batch_of(self._name, self._decoder.decode(messages), "", settled=False)
        kept = [not_ahead(batch, self._steps, came_us) for batch in found.batches]
        ahead = found.rows - sum(batch.num_rows for batch in kept)
        rejected = found.rejected | ({RejectReason.AHEAD: ahead} if ahead else {})
        for name, count in {DECODED: found.rows, PASSED_OVER: found.passed}.items():
            Metrics.counter(METRICS, name).inc(count)
        for reason, count in rejected.items():
            Metrics.counter(METRICS, counter_name(reason)).inc(count)
        rejects = [*found.rejects, *([decoded_reject_batch({RejectReason.AHEAD: ahead})] if ahead else [])]
        yield from (_at(batch, at) for batch in kept)
        yield from (TaggedOutput(REJECTED, _at(batch, at)) for batch in rejects)


def _at(batch: pa.RecordBatch, at: Timestamp) -> WindowedValue:
    return WindowedValue(batch, at, (GlobalWindow(),))


def messages_of(held: list[tuple[Any, Timestamp]]) -> Messages:
    """Messages of Beam's, each with its timestamp, as columns; they are numbered in this order."""
    group = [one for one, _ in held]
    return Messages(
        payloads=[one.data or None for one in group],
        topics=[""] * len(group),
        keys=[one.ordering_key.encode() if one.ordering_key else None for one in group],
        headers=[[(name, value.encode()) for name, value in (one.attributes or {}).items()] for one in group],
        stamps_us=np.array([at.micros for _, at in held], dtype=np.int64),
        positions=np.arange(len(group), dtype=np.int64),
    )


class SendRows(beam.PTransform[Any, Any]):
    """Send record batches of releases, or of rejects, to a topic; a bundle ends when the service has what it sent."""

    def __init__(self, topic: str, format_: MessageFormat, *, rejects: bool = False) -> None:
        super().__init__()
        self._topic = topic
        self._format: MessageFormat = format_
        self._messages = reject_messages if rejects else release_messages

    def expand(self, input_or_inputs: Any) -> Any:
        """Encode the rows, and send them."""
        from apache_beam.io.gcp.pubsub import WriteToPubSub  # noqa: PLC0415 - slow, and of an extra

        encode = partial(_encoded, messages=self._messages, format_=self._format)
        return input_or_inputs | "Encode" >> beam.FlatMap(encode) | WriteToPubSub(self._topic, with_attributes=True)


def _encoded(batch: pa.RecordBatch, *, messages: Any, format_: MessageFormat) -> Iterator[PubsubMessage]:
    from apache_beam.io.gcp.pubsub import PubsubMessage  # noqa: PLC0415 - as above

    for value, attributes in with_attributes(messages(batch, format_)):
        yield PubsubMessage(value, attributes)


def with_attributes(messages: Iterable[Message]) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Bodies and attributes of messages, which have the release id as an attribute."""
    for key, value, headers in messages:
        named = {} if key is None else {RELEASE_ID: key.decode()}
        yield value, {name: text.decode() for name, text in headers} | named
