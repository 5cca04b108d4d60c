"""As much of confluent-kafka as the gateway uses, in memory; reports come at ``poll``, as there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class KafkaError(Exception):
    _ALL_BROKERS_DOWN, _TRANSPORT, _AUTHENTICATION, _SSL, _UNKNOWN_TOPIC, _PURGE = -187, -195, -169, -181, -188, -152
    _FATAL, _INVALID_DIFFERENT_RECORD = -150, -138
    MSG_SIZE_TOO_LARGE, INVALID_MSG, INVALID_MSG_SIZE, INVALID_RECORD, UNKNOWN_TOPIC_OR_PART = 10, 2, 4, 87, 3
    SASL_AUTHENTICATION_FAILED, TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 58, 29, 31
    GROUP_AUTHORIZATION_FAILED, NOT_LEADER, INVALID_TIMESTAMP = 30, 6, 32

    def __init__(self, code: int, *, fatal: bool = False) -> None:
        super().__init__(code)
        self._code, self._fatal = code, fatal

    def code(self) -> int:
        return self._code

    def fatal(self) -> bool:
        return self._fatal

    def str(self) -> str:
        return f"error {self._code}"


class KafkaException(Exception):  # noqa: N818 - the library calls it so
    pass


Record = tuple[str, bytes, bytes, dict[str, bytes]]


class Broker:
    """The other side of all producers and consumers of a test.

    Attributes:
        up: whether it answers.
        records: topic, key, value and headers of what it has.
        refuse: the error that records get, by their value, once for each time it is given.
        room: records that a producer's queue holds.
        longest: bytes of a record that a producer takes at all.
        stamps: milliseconds that each record was given, by its value.
        taken: the same of the records that it has, in their order.
        clock: its time in milliseconds, with how far before and behind it a stamp may be; a batch with another stamp is
            refused as a whole.
        longest_batch: bytes of a batch that it takes; all that a poll finds is one batch.
    """

    def __init__(self) -> None:
        self.up = True
        self.topics = {"readings"}
        self.records: list[Record] = []
        self.refuse: Callable[[bytes], KafkaError | None] = lambda _: None
        self.room = 1_000
        self.longest = 1 << 30
        self.stamps: dict[bytes, set[int]] = {}
        self.taken: list[tuple[bytes, int]] = []
        self.clock: Callable[[], tuple[int, int, int]] | None = None
        self.longest_batch = 1 << 30
        self.producers: list[Producer] = []

    @property
    def library(self) -> Any:
        def producer(settings: Mapping[str, Any]) -> Producer:
            self.producers.append(Producer(self, settings))
            return self.producers[-1]

        return SimpleNamespace(Producer=producer, KafkaError=KafkaError, KafkaException=KafkaException)


class Producer:
    def __init__(self, broker: Broker, settings: Mapping[str, Any]) -> None:
        self.broker, self.settings = broker, settings
        self.dead = False
        self._queue: deque[tuple[Record, int, Callable[[Any, Any], None]]] = deque()

    def produce(self, topic: str, *, value: bytes, key: bytes, headers: Any, timestamp: int, on_delivery: Any) -> None:
        self.broker.stamps.setdefault(value, set()).add(timestamp)
        if self.dead:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        if len(value) > self.broker.longest:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if len(self._queue) >= self.broker.room:
            raise BufferError
        self._queue.append(((topic, key, value, dict(headers)), timestamp, on_delivery))

    def poll(self, _: float) -> int:
        while self._queue and self.broker.up and not self.dead:
            batch = list(self._queue)
            self._queue.clear()
            wrong = self._wrong([(len(record[2]), stamp) for record, stamp, _ in batch])
            for at, (record, stamp, report) in enumerate(batch):
                error = wrong[at] or self.broker.refuse(record[2])
                if error is None:
                    self.broker.records.append(record)
                    self.broker.taken.append((record[2], stamp))
                report(error, None)
                if error is not None and error.fatal():
                    self.dead = True
                    self._queue.extendleft(reversed(batch[at + 1 :]))
                    raise KafkaException(error)
        return 0

    def _wrong(self, batch: list[tuple[int, int]]) -> list[KafkaError | None]:
        """What Kafka 4.1 and librdkafka 2.16 make of the sizes and stamps of a batch: one wrong stamp is named."""
        if sum(size for size, _ in batch) > self.broker.longest_batch:
            return [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)] * len(batch)
        if self.broker.clock is None:
            return [None] * len(batch)
        now, before, behind = self.broker.clock()
        within = [now - before <= stamp <= now + behind for _, stamp in batch]
        if all(within):
            return [None] * len(batch)
        if within.count(False) == 1:
            return [KafkaError(KafkaError.INVALID_TIMESTAMP)] * len(batch)
        others, these = KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_RECORD
        return [KafkaError(others if one else these) for one in within]

    def purge(self) -> None:
        purged, self._queue = list(self._queue), deque[Any]()
        for *_, report in purged:
            report(KafkaError(KafkaError._PURGE), None)

    def flush(self, _: float) -> int:
        self.poll(0)
        return len(self._queue)

    def list_topics(self, topic: str, timeout: float) -> Any:  # noqa: ARG002 - the library's signature
        if not self.broker.up:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        error = None if topic in self.broker.topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})
