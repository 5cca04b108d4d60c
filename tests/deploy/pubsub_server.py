"""A Pub/Sub service on the loopback address, made of the client's own messages: what the real client is tested with.

It knows one subscription, delivers what is published, redelivers what is given back, and keeps what it was asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types  # pyright: ignore[reportMissingImports] - of an extra

SUBSCRIPTION = "projects/my-project/subscriptions/meters"


class PubSubServer:
    """The service; a context."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.given_back: list[str] = []
        self.sought: list[Any] = []
        self.published: list[Any] = []
        self.limits: list[int] = []
        self.refuses: grpc.StatusCode | None = None
        self._lock = threading.Condition()
        self._waiting: list[Any] = []
        self._leased: dict[str, Any] = {}
        self._number = 0
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16))
        made = {
            "Subscriber": {
                "StreamingPull": grpc.stream_stream_rpc_method_handler(self._stream, *_coders("StreamingPull")),
                "Acknowledge": _unary(self._acknowledge, "Acknowledge", empty_pb2.Empty),
                "ModifyAckDeadline": _unary(self._modify, "ModifyAckDeadline", empty_pb2.Empty),
                "GetSubscription": _unary(self._get, "GetSubscription", types.Subscription.pb()),
                "Seek": _unary(self._seek, "Seek", types.SeekResponse.pb()),
            },
            "Publisher": {"Publish": _unary(self._publish, "Publish", types.PublishResponse.pb())},
        }
        for name, methods in made.items():
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(f"google.pubsub.v1.{name}", methods),)
            )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self.refuses = grpc.StatusCode.UNAVAILABLE
            self._lock.notify_all()
        self._server.stop(grace=None).wait()

    def put(self, data: bytes, **attributes: str) -> str:
        """Publish a message to the subscription."""
        with self._lock:
            self._number += 1
            name, now = str(self._number), {"seconds": int(time.time())}
            message = types.PubsubMessage(data=data, attributes=attributes, message_id=name, publish_time=now)
            self._waiting.append(types.PubsubMessage.pb(message))
            self._lock.notify_all()
            return str(self._number)

    def wait(self, until: Any, seconds: float = 20.0) -> None:
        """Wait for something to become true."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)

    def _stream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        first = next(requests)
        assert first.subscription == SUBSCRIPTION
        self.limits.append(first.max_outstanding_messages)
        mine: list[str] = []
        # what a stream had is leased for a while; here it comes again when the stream is over
        context.add_callback(lambda: self._expire(mine))
        while context.is_active():
            with self._lock:
                if self.refuses is not None:
                    context.abort(self.refuses, "words of the service")
                if not self._waiting:
                    self._lock.wait(0.1)
                if not context.is_active():
                    return
                waiting, self._waiting = self._waiting, []
                received = []
                for message in waiting:
                    ack_id = f"{message.message_id}-{time.monotonic_ns()}"
                    self._leased[ack_id] = message
                    mine.append(ack_id)
                    received.append(types.ReceivedMessage.pb()(ack_id=ack_id, message=message))
            if received:
                yield types.StreamingPullResponse.pb()(received_messages=received)

    def _expire(self, ack_ids: list[str]) -> None:
        with self._lock:
            self._waiting += [self._leased.pop(one) for one in ack_ids if one in self._leased]
            self._lock.notify_all()

    def _acknowledge(self, request: Any, _: Any) -> Any:
        with self._lock:
            self.acked += [self._leased.pop(one).message_id for one in request.ack_ids if one in self._leased]
        return empty_pb2.Empty()

    def _modify(self, request: Any, _: Any) -> Any:
        with self._lock:
            for one in request.ack_ids if request.ack_deadline_seconds == 0 else ():
                message = self._leased.pop(one, None)
                if message is not None:
                    self.given_back.append(message.message_id)
                    self._waiting.append(message)
            self._lock.notify_all()
        return empty_pb2.Empty()

    def _get(self, request: Any, context: Any) -> Any:
        if request.subscription != SUBSCRIPTION:
            context.abort(grpc.StatusCode.NOT_FOUND, "words of the service")
        return types.Subscription.pb(
            types.Subscription(
                name=SUBSCRIPTION, retain_acked_messages=True, message_retention_duration={"seconds": 7 * 86_400}
            )
        )

    def _seek(self, request: Any, _: Any) -> Any:
        self.sought.append(request.time.ToDatetime())
        return types.SeekResponse.pb()()

    def _publish(self, request: Any, context: Any) -> Any:
        if self.refuses is not None:
            context.abort(self.refuses, "words of the service")
        self.published += list(request.messages)
        return types.PublishResponse.pb()(message_ids=[str(number) for number, _ in enumerate(request.messages)])


def _coders(method: str) -> tuple[Any, Any]:
    request, response = (getattr(types, f"{method}{end}").pb() for end in ("Request", "Response"))
    return request.FromString, response.SerializeToString


def _unary(handle: Any, method: str, response: Any) -> Any:
    request = getattr(types, f"{method}Request").pb()
    return grpc.unary_unary_rpc_method_handler(handle, request.FromString, response.SerializeToString)
