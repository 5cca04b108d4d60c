"""Google Cloud Pub/Sub, for live jobs: subscriptions as sources, topics as sinks, and clients with their errors.

google-cloud-pubsub is an extra. Credentials are the machine's own (Google calls them application default credentials):
the settings hold none. What an error says is our own text by the error's name: the service's may quote anything.

*Source.* Beam's own transform is not used, because a window is published only if its source *declared* it complete (see
:mod:`.completeness`), and behind that transform only the runner's watermark could: a watermark at infinity
is what a drained job, a cancelled source and a complete window all look like. So this reads the subscription itself
through :class:`.sources.reader.ReadPart`, and behaves the same on Prism, Flink and Dataflow. What that costs:

- Pub/Sub has no offsets. A runner that goes back to an earlier bundle gets what was not acknowledged, and messages are
  acknowledged only when the runner has kept the bundle (its finalizer). What was acknowledged and then lost with a
  runner's state comes back only by a seek (``reread``); without one a new run declares no window that began before it.
- Pub/Sub keeps no order. The watermark is the latest reading less the allowed lateness; but it stands still while
  messages may come that were waiting: for ``settle`` after the start, after a silence of that length, and after each
  message that was older than that when it came.
- There is one partition, because a message that one reader lost comes to any other, whose watermark may be past it.
- Messages that come twice within ten minutes are passed on once, by their id; readings that do change nothing.

A message without a body is no reading. Its time moves the watermark like one, so a message every minute by a scheduler
keeps windows closing when no meter speaks. Silence alone never closes one: a broken connection looks the same.

*Sink.* A topic keeps no rows and drops no doubles, so a reader keeps the first row of each ``release_id``; a row of
record never changes, so all of them are the same. A bundle ends when the service has what was sent (see
:mod:`.sinks`).
"""

from __future__ import annotations

import importlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator

from ..schemas.slots import parse_instant
from .payloads.messages import MessageDecoder, Messages
from .sinks import Message, MessageFormat, MessageSender, MessageTopic
from .sources.contract import (
    Attempts,
    BrokerUnavailableError,
    PartitionedSource,
    Reader,
    SourceBatch,
    WaitingDecoder,
)
from .sources.progress import Heartbeat
from .sources.reader import ReadLive, ReadPart

#: Logs trouble with the service.
LOG = logging.getLogger("quiltstream.pubsub")

#: What a worker held that is gone comes to another one after so many seconds.
LEASE_S = 30

#: The client keeps a message from others for so long at most while the runner does not keep it; then it comes again.
HELD_S = 24 * 3_600

#: Bytes of messages that the client lets wait to be acknowledged; from there on Pub/Sub holds others back.
MOST_BYTES = 512 << 20

_EXTRA = "Pub/Sub needs the package google-cloud-pubsub, which is not installed here; pip install 'quiltstream[gcp]'"

#: Errors by their class in google.api_core.exceptions or google.auth.exceptions: the operator must mend them.
_WRONG = {
    "NotFound": "it is not there; make it, or check its name",
    "PermissionDenied": "the account may not use it; give it roles/pubsub.subscriber, publisher or viewer",
    "Forbidden": "the account may not use it; give it roles/pubsub.subscriber, publisher or viewer",
    "Unauthenticated": "the credentials are not accepted",
    "Unauthorized": "the credentials are not accepted",
    "InvalidArgument": "the service refuses the request; a topic that has a schema takes only messages of it",
    "DefaultCredentialsError": "there are no credentials here; set GOOGLE_APPLICATION_CREDENTIALS, or use an account "
    "of the machine",
    "FailedPrecondition": "it is not in a state for that; a push subscription cannot be read",
    "MessageTooLargeError": "a message is larger than Pub/Sub takes",
}


class PubSubUnavailableError(BrokerUnavailableError):
    """A subscription or topic of Pub/Sub cannot be used."""


def unavailable(what: str, error: BaseException) -> PubSubUnavailableError:
    """An error as one that can be shown."""
    if isinstance(error, PubSubUnavailableError):
        return error
    name = type(error).__name__
    return PubSubUnavailableError(f"{what}: {_WRONG.get(name) or f'Pub/Sub says {name}'}", passing=name not in _WRONG)


def is_clients(error: BaseException) -> bool:
    """Whether an error is of the client, its transport or its credentials, and not a mistake of this program."""
    module = type(error).__module__
    return isinstance(error, (PubSubUnavailableError, TimeoutError)) or module.startswith(
        ("google.", "grpc", "concurrent.futures")
    )


def _library() -> Any:
    try:
        return importlib.import_module("google.cloud.pubsub_v1")
    except ImportError:
        raise PubSubUnavailableError(_EXTRA) from None


def new_subscriber() -> Any:
    """A subscriber of google-cloud-pubsub."""
    return _library().SubscriberClient()


def new_publisher() -> Any:
    """A publisher of google-cloud-pubsub, which retries by itself."""
    return _library().PublisherClient()


def stream_of(client: Any, subscription: str, callback: Callable[[Any], None], messages: int) -> Any:
    """Have the messages of a subscription streamed; the client keeps those that are not acknowledged from others."""
    limits = _library().types.FlowControl(
        max_messages=messages,
        max_bytes=MOST_BYTES,
        max_lease_duration=HELD_S,
        max_duration_per_lease_extension=LEASE_S,
    )
    return client.subscribe(subscription, callback=callback, flow_control=limits, await_callbacks_on_shutdown=True)


#: Messages that are decoded at once, and how long a look waits for the first.
_MESSAGES = 10_000
_WAIT_S = 0.1

#: How long the ids of messages are remembered, and how many.
_REMEMBER_S = 600.0
_REMEMBER = 1_000_000

#: Seconds that a stream may take to end.
_END_S = 10.0

#: Of the messages that may wait for the runner; from there on Pub/Sub may be holding some back.
_FULL = 0.9


@dataclass(frozen=True)
class PubSubSubscription(PartitionedSource):
    """Messages of a subscription that has no other reader."""

    subscription: str
    decoder: MessageDecoder
    timestamp_attribute: str | None = None  # attribute with a message's time; ``None``: when Pub/Sub took it
    id_attribute: str | None = None  # attribute that names a message; ``None``: Pub/Sub's own id
    settle_s: float = 60.0  # how long the clock waits for what may be waiting
    outstanding: int = 100_000  # messages that may wait to be acknowledged
    most_bytes: int = MOST_BYTES  # bytes of them that may; the client's own limit
    subscriber: Callable[[], Any] = field(default=new_subscriber, repr=False)
    stream: Callable[[Any, str, Callable[[Any], None], int], Any] = field(default=stream_of, repr=False)
    now: Callable[[], float] = field(default=time.time, repr=False)

    def reader(self, part: int, position: str) -> PubSubReader:  # noqa: ARG002 - the signature is every source's
        """A reader. Pub/Sub has no positions: what was not acknowledged comes again."""
        return PubSubReader(self)


class _Held:
    __slots__ = ("messages", "since_s", "size")

    def __init__(self, messages: list[Any], since_s: float) -> None:
        self.messages = messages
        self.since_s = since_s
        self.size = sum(one.size for one in messages)


class PubSubReader(Reader):
    """Reads a subscription."""

    def __init__(self, source: PubSubSubscription) -> None:
        self._source = source
        self._decoding = WaitingDecoder(source.decoder)
        self._arrived: SimpleQueue[Any] = SimpleQueue()
        self._taken: list[Any] = []
        self._read: list[Any] = []
        self._unkept: dict[int, _Held] = {}
        self._recent = RecentIds()
        self._token = uuid.uuid4().hex
        self._batches = self._receipts = 0
        self._client: Any = None
        self._stream: Any = None
        self._closed = False
        self._attempts = Attempts()
        self._heard_s: float | None = None
        #: since when the clock is held, because something may be waiting
        self._held_s = float("inf")

    # The contract of a reader

    def read(self) -> SourceBatch | None:
        """The next messages as readings; a batch of nothing while more may be waiting that cannot be seen."""
        self._look()
        if not self._taken and self._stream is not None:
            self._taken = self._take()
        if self._taken:
            return self._decoded()
        return None if self._settled else SourceBatch(self._position, settled=False)

    @property
    def trouble(self) -> str | None:
        """What is in the way."""
        return self._attempts.trouble or self._decoding.waiting

    def check(self) -> bool:
        """Whether messages still stream in: a client that has given up has ended its stream."""
        return self._stream is not None and not self._stream.done()

    def receipt(self) -> Callable[[], None] | None:
        """Acknowledges what was read since the last receipt; to be called when the runner has kept it."""
        read, self._read = self._read, []
        now = self._source.now()
        # the client has given them up, and they come again: what is kept of them here would only grow
        for number in [number for number, held in list(self._unkept.items()) if now - held.since_s > HELD_S]:
            self._unkept.pop(number, None)
        if not read:
            return None
        number = self._receipts = self._receipts + 1
        self._unkept[number] = _Held(read, now)

        def acknowledge() -> None:
            # another thread's: a dictionary gives each receipt once
            held = self._unkept.pop(number, None)
            for message in () if held is None else held.messages:
                message.ack()

        return acknowledge

    def close(self) -> None:
        """Leave the subscription; what was not acknowledged is given back at once."""
        self._closed = True
        stream, self._stream = self._stream, None
        client, self._client = self._client, None
        # a receipt of another thread may take one meanwhile
        held = (self._unkept.pop(number, None) for number in list(self._unkept))
        unkept = [one for group in held if group is not None for one in group.messages]
        for message in (*self._drained(), *self._taken, *self._read, *unkept):
            message.nack()
        self._taken, self._read = [], []
        if stream is not None:
            stream.cancel()
            try:
                stream.result(timeout=_END_S)
            except Exception as error:  # noqa: BLE001 - it is over in any case
                LOG.debug("%s: the stream ended with %s", self._source.subscription, type(error).__name__)
        if client is not None:
            client.close()

    # The service

    def _look(self) -> None:
        """See that messages stream in; whatever stands in the way is said and tried again."""
        if self._stream is not None and self._stream.done():
            error = self._stream.exception()
            self._stream = None
            self._failed(error if error is not None else TimeoutError())
        if self._stream is not None or time.monotonic() < self._attempts.due:
            return
        try:
            if self._client is None:
                self._client = self._source.subscriber()
            self._stream = self._source.stream(
                self._client, self._source.subscription, self._arrives, self._source.outstanding
            )
        except Exception as error:
            if not is_clients(error):
                raise
            self._failed(error)
        else:
            if self._attempts.trouble is not None:
                LOG.warning("%s: it is asked again", self._source.subscription)
            self._attempts.trouble = None
            self._heard_s = None
            self._held_s = self._source.now()

    def _arrives(self, message: Any) -> None:
        if self._closed:
            message.nack()
        else:
            self._arrived.put(message)

    def _failed(self, error: BaseException) -> None:
        found = unavailable(self._source.subscription, error)
        LOG.warning("%s; trying again in %.3g s", found, self._attempts.failed(str(found)))

    def _take(self) -> list[Any]:
        """What has arrived, but for what came before; those are acknowledged with the rest."""
        messages = self._drained(_WAIT_S)
        if not messages:
            return []
        # a stream that is made says nothing yet of whether it lasts
        self._attempts.failures = 0
        now = self._source.now()
        if self._heard_s is None or now - self._heard_s >= self._source.settle_s:
            self._held_s = now
        self._heard_s = now
        fresh: list[Any] = []
        for message in messages:
            if self._recent.is_new(self._id_of(message), now):
                fresh.append(message)
            else:
                self._read.append(message)
        if fresh and now - min(map(_published_s, fresh)) >= self._source.settle_s:
            self._held_s = now
        return fresh

    def _drained(self, wait_s: float = 0.0) -> list[Any]:
        found: list[Any] = []
        with suppress(Empty):
            found.append(self._arrived.get(timeout=wait_s) if wait_s else self._arrived.get_nowait())
            while len(found) < _MESSAGES:
                found.append(self._arrived.get_nowait())
        return found

    def _id_of(self, message: Any) -> str:
        named = None if self._source.id_attribute is None else message.attributes.get(self._source.id_attribute)
        return f"i{message.message_id}" if named is None else f"a{named}"

    # The clock

    def _rested(self) -> bool:
        """Whether the clock was kept for long enough."""
        now = self._source.now()
        # a wall clock that was ahead and was set back must not hold windows for as long as it was ahead
        self._held_s = min(self._held_s, now)
        return now - self._held_s >= self._source.settle_s

    @property
    def _settled(self) -> bool:
        """Whether nothing more is waiting, as far as can be known."""
        waits = self._decoding.waiting is not None or not self._arrived.empty() or self._full
        return self._stream is not None and not waits and self._rested()

    @property
    def _full(self) -> bool:
        """Whether so much waits for the runner, in messages or in bytes, that Pub/Sub may be holding others back."""
        held = [_Held(self._read, 0.0), *list(self._unkept.values())]
        messages, size = sum(len(one.messages) for one in held), sum(one.size for one in held)
        return messages >= _FULL * self._source.outstanding or size >= _FULL * self._source.most_bytes

    # The messages

    def _decoded(self) -> SourceBatch:
        taken = self._taken
        messages = messages_of(taken, self._source.timestamp_attribute)
        decoded = self._decoding.decoded(lambda decoder: decoder.decode(messages))
        if decoded is None:
            return SourceBatch(self._position, settled=False)
        self._taken = []
        self._read += taken
        self._batches += 1
        came_us = round(max(map(_published_s, taken)) * 1e6)
        batch = self._decoding.batch(
            self._source.subscription, decoded, self._position, settled=self._settled, came_us=came_us
        )
        beats = [int(at) for at, body in zip(messages.stamps_us, messages.payloads, strict=True) if body is None]
        latest = [one for one in (batch.latest_us, *beats) if one is not None and one >= 0]
        return replace(batch, latest_us=max(latest, default=None))

    @property
    def _position(self) -> str:
        return f"{self._token}:{self._batches}"


class RecentIds:
    """The ids of the messages of the last minutes."""

    def __init__(self, seconds: float = _REMEMBER_S, limit: int = _REMEMBER) -> None:
        self._seconds = seconds
        self._limit = limit
        self._seen: OrderedDict[str, float] = OrderedDict()

    def is_new(self, name: str, now: float) -> bool:
        """Whether an id was not seen of late; it is from now on."""
        seen = self._seen
        while seen and (len(seen) > self._limit or next(iter(seen.values())) < now - self._seconds):
            seen.popitem(last=False)
        if name in seen:
            return False
        seen[name] = now
        return True


def messages_of(group: list[Any], timestamp_attribute: str | None = None) -> Messages:
    """Messages of google-cloud-pubsub as columns; their attributes are headers.

    Args:
        group: the messages, numbered in this order.
        timestamp_attribute: attribute with a message's time; where it is missing or no time, there is none.
    """
    count = len(group)
    return Messages(
        payloads=[one.data or None for one in group],
        topics=[""] * count,
        keys=[one.ordering_key.encode() if one.ordering_key else None for one in group],
        headers=[[(name, value.encode()) for name, value in one.attributes.items()] for one in group],
        stamps_us=np.fromiter((_stamp_us(one, timestamp_attribute) for one in group), np.int64, count),
        positions=np.arange(count, dtype=np.int64),
    )


def _published_s(message: Any) -> float:
    return float(message.publish_time.timestamp())


def _stamp_us(message: Any, attribute: str | None) -> int:
    return round(_published_s(message) * 1e6) if attribute is None else stamp_of(message.attributes.get(attribute, ""))


def stamp_of(text: str) -> int:
    """The time in an attribute, read as Beam's own transform does; -1 where there is none."""
    try:
        stamp = int(text) * 1_000 if text.isascii() and text.isdigit() else parse_instant(text, "UTC")
    except ValueError:
        return -1
    return stamp if 0 <= stamp < 1 << 62 else -1


class ReadAcknowledged(ReadPart):
    """Reads a part, and leaves the acknowledging to the runner's finalizer.

    A runner that has no finalizers never acknowledges: messages come again, and are passed on once by each reader.
    Those of the bundle with which a schedule ends are left to the next run, whose windows are all later.
    """

    @beam.DoFn.unbounded_per_element()
    def process(  # pyright: ignore[reportIncompatibleMethodOverride] - Beam calls it, by the parameters' defaults
        self,
        element: int,
        # Beam gives this one by position and the two others by name
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Read what is there of one part, then hand the rest back."""
        yield from super().process(element, tracker, estimator)
        _, reader = self._readers.get(element, (None, None))
        receipt = reader.receipt() if isinstance(reader, PubSubReader) else None
        if receipt is not None:
            finalizer.register(receipt)


class ReadSubscription(ReadLive):
    """Read a source whose messages are acknowledged."""

    reading: ClassVar[type[ReadPart]] = ReadAcknowledged


#: Attribute with the name of a row.
RELEASE_ID = "release_id"

#: Seconds that the service has for a bundle's messages; the client tries again within them.
_PATIENCE_S = 120.0

#: Messages that are handed to the client before it is waited for.
_HANDED = 10_000


@dataclass(frozen=True)
class PubSubTopic(MessageTopic):
    """A topic that rows are sent to."""

    kind: ClassVar[str] = "pubsub"

    name: str
    format: MessageFormat = "json"
    publisher: Callable[[], Any] = field(default=new_publisher, repr=False)

    def sender(self, field: str) -> PubSubSender:
        """A publisher for it."""
        return PubSubSender(self, field)


class PubSubSender(MessageSender):
    """Sends messages to a topic; it belongs to one worker."""

    def __init__(self, topic: PubSubTopic, setting: str, *, patience_s: float = _PATIENCE_S) -> None:
        self._topic = topic
        self._setting = setting
        self._patience_s = patience_s
        self._client: Any = None
        self._sent: list[Any] = []

    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to the client, which sends them in the background."""
        for key, value, headers in messages:
            attributes = {name: text.decode() for name, text in headers}
            if key is not None:
                attributes[RELEASE_ID] = key.decode()
            try:
                if self._client is None:
                    self._client = self._topic.publisher()
                self._sent.append(self._client.publish(self._topic.name, value, **attributes))
            except Exception as error:
                if not is_clients(error):
                    raise
                raise self._lost(error) from None
            if len(self._sent) >= _HANDED:
                self.finish()

    def finish(self) -> None:
        """Wait until the service has everything."""
        sent, self._sent = self._sent, []
        try:
            for one in sent:
                one.result(timeout=self._patience_s)
        except Exception as error:
            if not is_clients(error):
                raise
            raise self._lost(error) from None
        Heartbeat.complain(self._setting, None)

    def close(self) -> None:
        """Let go of the client."""
        client, self._client = self._client, None
        self._sent = []
        if client is not None:
            client.stop()

    def _lost(self, error: Exception) -> PubSubUnavailableError:
        self._client, self._sent = None, []
        found = unavailable(f"{self._setting}: {self._topic.name}", error)
        LOG.warning("%s", found)
        Heartbeat.complain(self._setting, str(found))
        return found
