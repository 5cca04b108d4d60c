"""Topics of Pub/Sub as sinks.

A topic keeps no rows and drops no doubles, so a reader keeps the first row of each ``release_id``; a row of
record never changes, so all of them are the same. A bundle ends when the service has what was sent (see
:mod:`..sinks.messages`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..sinks.messages import Message, MessageFormat, MessageSender, MessageTopic
from ..sources.progress import Heartbeat
from .client import LOG, PubSubUnavailableError, is_clients, new_publisher, unavailable

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
