"""A broker in memory and its consumer, as far as the source uses one; the same contract is held by a real one."""

from __future__ import annotations

import time
import uuid
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage] - its documented place
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
)

from quiltstream.transforms.kafka.client import Cluster

#: Stands for headers with a name that is no UTF-8.
ILLEGIBLE: list[Any] = []


class Log:
    """A partition: its first offset, and its messages: value, stamp, and key and headers if they have any."""

    def __init__(self) -> None:
        self.first = 0
        self.messages: list[tuple[Any, ...]] = []

    @property
    def end(self) -> int:
        return self.first + len(self.messages)


class FakeBroker:
    """Topics in memory; ``away`` makes it unreachable, and ``stamps`` is whose stamps its messages have."""

    servers = "fake:9092"

    def __init__(self) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.groups: dict[str, dict[tuple[str, int], int]] = {}
        self.refused: dict[str, int] = {}
        self.rights: dict[str, list[AclOperation] | KafkaError] = {}
        self.leaderless: set[int] = set()
        self.consumers: list[FakeConsumer] = []
        self.producers: list[FakeProducer] = []
        self.away = False
        #: how often a producer has no room, and which of the messages of a bundle it does not deliver
        self.full, self.refuses = 0, set[int]()
        self.tells: int | None = None
        self.stamps = TIMESTAMP_LOG_APPEND_TIME
        self.ids: dict[str, Uuid] = {}
        #: ``cleanup.policy`` where it is not ``delete``, or what the brokers say instead
        self.policies: dict[str, str | KafkaError] = {}
        #: how often the leaders of a topic were chosen, which each restart does once more
        self.epochs: dict[str, int] = {}

    @property
    def cluster(self) -> Cluster:
        return Cluster(
            self.servers,
            consumer=lambda options: FakeConsumer(self, options),
            producer=lambda options: FakeProducer(self, options),
            admin=lambda _: FakeAdmin(self),
        )

    def topic(self, partitions: int = 3, name: str | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}" if name is None else name
        self.topics[name] = [Log() for _ in range(partitions)]
        self.ids[name] = Uuid(uuid.uuid4().int >> 66, 7)
        self.epochs[name] = 0
        return name

    def restart(self) -> None:
        self.epochs = {topic: epoch + 1 for topic, epoch in self.epochs.items()}

    def make_anew(self, topic: str, partitions: int) -> None:
        del self.topics[topic]
        self.topic(partitions, topic)

    def grow(self, topic: str, partitions: int) -> None:
        self.topics[topic] += [Log() for _ in range(partitions - len(self.topics[topic]))]

    def send(self, topic: str, messages: Iterable[tuple[int, bytes | None]]) -> None:
        for partition, value in messages:
            self.topics[topic][partition].messages.append((value, time.time_ns() // 1_000_000))

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages before an offset, as retention does."""
        log = self.topics[topic][partition]
        del log.messages[: before - log.first]
        log.first = before

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.groups.setdefault(group, {}).update({(topic, one): offset for one, offset in offsets.items()})

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        return [self.groups.get(group, {}).get((topic, one), -1001) for one in range(partitions)]


class FakeMessage:
    def __init__(
        self,
        place: tuple[str, int],
        offset: int,
        value: Any,
        stamp: int,
        key: bytes | None = None,
        headers: Any = None,
        *,
        error: KafkaError | None = None,
        kind: int = TIMESTAMP_NOT_AVAILABLE,
    ) -> None:
        self._place, self._offset, self._value, self._stamp, self._error = place, offset, value, stamp, error
        self._key, self._headers, self._kind, self._asked = key, headers, kind, False

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def value(self) -> Any:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def headers(self) -> Any:
        if self._headers is ILLEGIBLE:
            # asked once more, the client gives a list that breaks whoever looks into it
            assert not self._asked
            self._asked = True
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return self._headers

    def set_headers(self, headers: Any) -> None:
        self._headers = headers

    def timestamp(self) -> tuple[int, int]:
        return (self._kind, self._stamp)

    def error(self) -> KafkaError | None:
        return self._error


class FakeConsumer:
    def __init__(self, broker: FakeBroker, options: Mapping[str, Any]) -> None:
        assert options["enable.auto.commit"] is False
        assert options["auto.offset.reset"] == "error"
        assert options["enable.partition.eof"] is True
        self._broker, self._options = broker, options
        self._at: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._epochs: dict[str, int] = {}
        self.closed = False
        broker.consumers.append(self)

    def _reach(self) -> None:
        if self._broker.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        self._reach()
        logs, code = self._broker.topics.get(topic), self._broker.refused.get(topic)
        if code is None and logs is None:
            code = KafkaError.UNKNOWN_TOPIC_OR_PART
        leaders = {one: -1 if one in self._broker.leaderless else 1 for one in range(len(logs or ()))}
        told = SimpleNamespace(
            error=None if code is None else KafkaError(code),
            partitions={one: SimpleNamespace(leader=leader) for one, leader in leaders.items()},
        )
        return SimpleNamespace(topics={topic: told})

    def get_watermark_offsets(
        self, place: TopicPartition, timeout: float | None = None, *, cached: bool = False
    ) -> tuple[int, int]:
        where = (place.topic, place.partition)
        if cached:
            return (-1001, self._known.get(where, -1001))
        assert timeout
        self._reach()
        assert place.partition not in self._broker.leaderless, "the client would wait for its leader"
        log = self._broker.topics[place.topic][place.partition]
        return (log.first, log.end)

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        self._reach()
        found: list[TopicPartition] = []
        for place in places:
            assert place.partition not in self._broker.leaderless, "the client would wait for its leader"
            log = self._broker.topics[place.topic][place.partition]
            if place.offset == OFFSET_END:
                found.append(TopicPartition(place.topic, place.partition, log.end))
                continue
            at = [log.first + n for n, one in enumerate(log.messages) if one[1] >= place.offset]
            found.append(TopicPartition(place.topic, place.partition, at[0] if at else -1))
        return found

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        self._reach()
        kept = self._broker.groups.get(self._options["group.id"], {})
        return [TopicPartition(one.topic, one.partition, kept.get((one.topic, one.partition), -1001)) for one in places]

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert asynchronous
        for one in offsets:
            self._broker.commit(self._options["group.id"], one.topic, {one.partition: one.offset})

    def seek(self, place: TopicPartition) -> None:
        where = (place.topic, place.partition)
        assert where in self._at
        self._at[where] = place.offset
        self._told.pop(where, None)

    def assign(self, places: list[TopicPartition]) -> None:
        self._at = {(one.topic, one.partition): one.offset for one in places}
        self._told, self._known = {}, {}

    def consume(self, count: int, timeout: float) -> list[Any]:
        if self._broker.away:
            time.sleep(min(timeout, 0.01))
            return []
        found: list[Any] = []
        for place, at in list(self._at.items()):
            logs = self._broker.topics.get(place[0], [])
            if place[1] >= len(logs):
                continue
            # the client takes a leader of an epoch before the last one that it saw for stale, and asks it for nothing
            epoch = self._broker.epochs[place[0]]
            if epoch < self._epochs.setdefault(place[0], epoch):
                continue
            self._epochs[place[0]] = epoch
            log = logs[place[1]]
            self._known[place] = log.end
            if not log.first <= at <= log.end:
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                found.append(FakeMessage(place, at, None, 0, error=error))
                del self._at[place]
                continue
            end, taken = log.end, log.messages[at - log.first :][: count - len(found)]
            found += [FakeMessage(place, at + n, *one, kind=self._broker.stamps) for n, one in enumerate(taken)]
            self._at[place] = at + len(taken)
            if self._at[place] == end and self._told.get(place) != end:
                self._told[place] = end
                found.append(FakeMessage(place, end, None, 0, error=KafkaError(KafkaError._PARTITION_EOF)))
        if not found:
            time.sleep(min(timeout, 0.01))
        return found

    def poll(self, timeout: float) -> None:
        assert timeout == 0
        told, self._broker.tells = self._broker.tells, None
        if told is not None:
            self._options["error_cb"](KafkaError(told))

    def close(self) -> None:
        self.closed = True


class FakeProducer:
    """Puts messages into partition 0, when it is flushed."""

    def __init__(self, broker: FakeBroker, options: Mapping[str, Any]) -> None:
        assert options["enable.idempotence"] is True
        assert options["acks"] == "all"
        self._broker = broker
        broker.producers.append(self)
        self._waiting: list[tuple[str, tuple[Any, ...], Any]] = []

    def produce(self, topic: str, *, value: bytes, key: bytes | None, headers: Any, on_delivery: Any) -> None:
        if self._broker.full:
            raise BufferError
        self._waiting.append((topic, (value, time.time_ns() // 1_000_000, key, headers), on_delivery))

    def poll(self, timeout: float) -> None:
        assert timeout > 0
        self._broker.full -= 1

    def flush(self, timeout: float) -> int:
        assert timeout > 0
        waiting, self._waiting = self._waiting, []
        for number, (topic, message, on_delivery) in enumerate(waiting):
            if self._broker.away or number in self._broker.refuses:
                on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            else:
                self._broker.topics[topic][0].messages.append(message)
                on_delivery(None, None)
        return 0


class FakeAdmin:
    """Says what the user may do; one with nothing said about may do all."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def describe_configs(self, resources: list[ConfigResource], *, request_timeout: float) -> dict[ConfigResource, Any]:
        assert request_timeout > 0
        policies, client = self._broker.policies, weakref.ref(self)

        def told(name: str, timeout: float) -> dict[str, Any]:
            assert timeout > 0
            assert client() is not None, "a client that is dropped takes its answers along"
            policy = policies.get(name, "delete")
            if isinstance(policy, KafkaError):
                raise KafkaException(policy)
            return {"cleanup.policy": SimpleNamespace(value=policy)}

        return {one: SimpleNamespace(result=partial(told, one.name)) for one in resources}

    def describe_topics(
        self, topics: TopicCollection, *, request_timeout: float, include_authorized_operations: bool = False
    ) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        found: dict[str, Future[Any]] = {}
        for topic in topics.topic_names:
            found[topic] = Future()
            rights = self._broker.rights.get(topic, list(AclOperation))
            if self._broker.away or topic not in self._broker.topics:
                found[topic].set_exception(KafkaException(KafkaError(KafkaError._TRANSPORT)))
            elif isinstance(rights, KafkaError):
                found[topic].set_exception(KafkaException(rights))
            else:
                told = rights if include_authorized_operations else None
                found[topic].set_result(
                    SimpleNamespace(authorized_operations=told, topic_id=self._broker.ids.get(topic, Uuid(0, 0)))
                )
        return found
