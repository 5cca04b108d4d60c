"""Topics of Pub/Sub as sinks: released rows, each with its release id as an attribute, and rejects.

A topic keeps no rows and drops no doubles, so whoever reads it keeps the first row of each ``release_id``; a row of
record never changes, so all of them are the same. A bundle ends when the service has what was sent; what it refuses
fails the bundle, the runner runs it again, and the rows come from the ledger of record once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import pyarrow as pa

from . import coders
from .kafka_sink import Message, MessageFormat, reject_messages, release_messages
from .pubsub_client import LOG, PubSubUnavailableError, is_clients, new_publisher, unavailable
from .pulse import Pulse

#: Attribute with the name of a row.
RELEASE_ID = "release_id"

#: Seconds that the service has for a bundle's messages; the client tries again within them.
_PATIENCE_S = 120.0

#: Messages that are handed to the client before it is waited for.
_HANDED = 10_000


@dataclass(frozen=True)
class PubSubTopic:
    """A topic that rows are sent to; a plain value that travels to any worker.

    Attributes:
        name: its whole name.
        format: of the messages.
        publisher: makes a client; the tests' own.
    """

    name: str
    format: MessageFormat = "json"
    publisher: Callable[[], Any] = field(default=new_publisher, repr=False)


class PubSubSender:
    """Sends messages to a topic; it belongs to one worker.

    Args:
        topic: where to.
        setting: name of the setting, for messages.
        patience_s: how long the service may take.
    """

    def __init__(self, topic: PubSubTopic, setting: str, *, patience_s: float = _PATIENCE_S) -> None:
        self._topic = topic
        self._setting = setting
        self._patience_s = patience_s
        self._client: Any = None
        self._sent: list[Any] = []

    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to the client, which sends them in the background.

        Raises:
            PubSubUnavailableError: the client cannot be made, or something was refused.
        """
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
        """Wait until the service has everything.

        Raises:
            PubSubUnavailableError: it refused something, or did not take it in time.
        """
        sent, self._sent = self._sent, []
        try:
            for one in sent:
                one.result(timeout=self._patience_s)
        except Exception as error:
            if not is_clients(error):
                raise
            raise self._lost(error) from None
        Pulse.complain(self._setting, None)

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
        Pulse.complain(self._setting, str(found))
        return found


class _Publish(beam.DoFn):
    """Sends batches and ends each bundle when the service has them."""

    def __init__(self, topic: PubSubTopic, setting: str, messages: Callable[..., Iterator[Message]]) -> None:
        self._topic = topic
        self._setting = setting
        self._messages = messages

    def setup(self) -> None:
        self._sender = PubSubSender(self._topic, self._setting)

    def process(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._sender.send(self._messages(batch, self._topic.format))

    def finish_bundle(self) -> None:
        self._sender.finish()

    def teardown(self) -> None:
        self._sender.close()


class PublishReleases(beam.PTransform[Any, Any]):
    """Send record batches of releases to a topic.

    Args:
        topic: where to.
    """

    def __init__(self, topic: PubSubTopic) -> None:
        super().__init__()
        self._topic = topic

    def expand(self, input_or_inputs: Any) -> Any:
        """Send them from where they are."""
        send = _Publish(self._topic, "sink.pubsub", release_messages)
        return input_or_inputs | "Send" >> beam.ParDo(send).with_output_types(str)


class PublishRejects(beam.PTransform[Any, Any]):
    """Send rejects to a topic, at least once.

    Args:
        topic: where to.
    """

    def __init__(self, topic: PubSubTopic) -> None:
        super().__init__()
        self._topic = topic

    def expand(self, input_or_inputs: Any) -> Any:
        """Send them from where they are."""
        send = _Publish(self._topic, "rejects.pubsub", reject_messages)
        return input_or_inputs | "Send" >> beam.ParDo(send).with_output_types(str)


__all__ = [
    "RELEASE_ID",
    "PubSubSender",
    "PubSubTopic",
    "PubSubUnavailableError",
    "PublishRejects",
    "PublishReleases",
    "coders",
]
