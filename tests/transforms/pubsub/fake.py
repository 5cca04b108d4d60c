"""A subscription and a topic of Pub/Sub in memory, as far as the source and the sink use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from quiltstream.transforms.payloads.messages import MessageDecoder
from quiltstream.transforms.pubsub import PubSubSubscription

SUBSCRIPTION = "projects/grid/subscriptions/meters"


@dataclass
class Message:
    data: bytes
    message_id: str
    publish_time: datetime
    attributes: dict[str, str]
    ordering_key: str
    service: FakeService = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    def ack(self) -> None:
        self.service.acked.append(self.message_id)
        self.service.leased.pop(self.message_id, None)

    def nack(self) -> None:
        if self.service.leased.pop(self.message_id, None) is not None:
            self.service.waiting.append(self)


class Stream:
    def __init__(self, service: FakeService, callback: Callable[[Any], None]) -> None:
        self.service = service
        self.callback = callback
        self.error: Exception | None = None
        self.over = False

    def done(self) -> bool:
        return self.over

    def exception(self) -> Exception | None:
        return self.error

    def cancel(self) -> None:
        self.over = True
        if self.service.stream is self:
            self.service.stream = None

    def result(self, timeout: float | None = None) -> None:
        assert self.over
        assert timeout is not None

    def fail(self, error: Exception) -> None:
        self.error = error
        self.cancel()


class FakeService:
    """A subscription: what waits, what is leased, what was acknowledged; and a clock."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self.clock = now
        self.waiting: list[Message] = []
        self.leased: dict[str, Message] = {}
        self.acked: list[str] = []
        self.stream: Stream | None = None
        self.streams = 0
        self.refuses: Exception | None = None
        self.sought: list[datetime] = []
        self.number = 0

    def now(self) -> float:
        return self.clock

    def feed(self, decoder: MessageDecoder, **changes: Any) -> PubSubSubscription:
        return PubSubSubscription(
            SUBSCRIPTION, decoder, subscriber=lambda: self, stream=self.begin, now=self.now, **changes
        )

    def publish(self, data: bytes, age: float = 0.0, name: str | None = None, **attributes: str) -> str:
        self.number += 1
        published = datetime.fromtimestamp(self.clock - age, UTC)
        message = Message(data, name or str(self.number), published, attributes, "", self)
        self.deliver(message)
        return message.message_id

    def deliver(self, message: Message) -> None:
        if self.stream is None:
            self.waiting.append(message)
        else:
            self.leased[message.message_id] = message
            self.stream.callback(message)

    def begin(self, client: Any, subscription: str, callback: Callable[[Any], None], messages: int) -> Stream:
        assert client is self
        assert subscription == SUBSCRIPTION
        assert messages > 0
        if self.refuses is not None:
            raise self.refuses
        self.streams += 1
        self.stream = stream = Stream(self, callback)
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self.deliver(message)
        return stream

    def close(self) -> None:
        """Clients are let go of."""


class Refused(Exception):  # noqa: N818 - named by the client's own
    """An error as the client's: told by the name of its class."""


def clients_error(name: str) -> Exception:
    return type(name, (Refused,), {"__module__": "google.api_core.exceptions"})("a quote of data")
