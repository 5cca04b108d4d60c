"""Delivery to a Kafka topic: a message counts as delivered when all in-sync replicas acknowledged it (acks=all)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ...schemas.ports import wrong_port
from ...schemas.settings.gateway import Level
from .contracts import DeliveryError, DeliveryTarget, Message, refused_options
from .credentials import kafka, kafka_log

_LOG = logging.getLogger("quiltstream.gateway")

#: Seconds to the next try with a message that the broker did not take for now.
_RETRY_S = 1.0

#: Seconds that a topic may be missing after the broker answered: a broker that makes topics by itself needs some.
_MISSING_S = 10.0

#: Seconds after which a broker that is still away is told of again.
_REPEAT_S = 60.0


class KafkaDelivery(DeliveryTarget):
    """Hands messages to an idempotent producer.

    Args:
        servers: the brokers.
        topic: where to.
        key: what partitions are chosen by: the MQTT topic, or one level of it.
        options: librdkafka's own, secrets filled in.
        library: what makes producers; the tests' own.
    """

    def __init__(
        self, servers: str, topic: str, key: str | Level, options: dict[str, Any], *, library: Any = None
    ) -> None:
        self._library = kafka() if library is None else library
        self._topic = topic
        self._servers = servers
        self._level = key.level if isinstance(key, Level) else None
        self._options = {
            "linger.ms": 5,
            "compression.type": "lz4",
            # limits.message and the broker judge how large a message may be; librdkafka's own limit is below both
            "message.max.bytes": 1_000_000_000,
            **options,
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            # a message never times out: it waits here, and the broker of the meters behind it
            "message.timeout.ms": 0,
            "error_cb": self._on_error,
            "logger": kafka_log(),
        }
        self._pending: dict[int, Message] = {}
        # messages that Kafka has not taken for something in their batch, milliseconds for those of which it was the
        # time stamp, and the one that is sent alone to find out
        self._doubtful: set[int] = set()
        self._stamps: dict[int, int] = {}
        self._alone: int | None = None
        self._clock_told = float("-inf")
        self._again: deque[int] = deque()
        self._again_at = 0.0
        self._had: list[int] = []
        self._refused: list[int] = []
        self._wrong: str | None = None
        self._broken = False
        self._delivered = False
        self._away: float | None = None
        self._closed = threading.Event()
        self._producer = self._made()
        threading.Thread(target=self._look, args=(self._producer,), name="quiltstream-kafka", daemon=True).start()

    def offer(self, number: int, message: Message) -> bool:
        """Give a message to the producer, if there is room in its queue."""
        if self._again or self._alone is not None:
            return False
        # before it is given away: what is refused at once is reported at once
        self._pending[number] = message
        if not self._produce(number, message):
            del self._pending[number]
            return False
        return True

    def had(self) -> list[int]:
        """The messages that were reported as delivered since the last call."""
        self._served(self._producer.poll, 0)
        if self._wrong is not None:
            raise DeliveryError(self._wrong)
        if self._broken:
            # whatever it gave up for may still be so
            if time.monotonic() >= self._again_at:
                self._renew()
        elif self._again and time.monotonic() >= self._again_at:
            self._send_again()
        had, self._had = self._had, []
        return had

    def refused(self) -> list[int]:
        """The messages that Kafka does not take at all."""
        refused, self._refused = self._refused, []
        return refused

    def close(self, seconds: float) -> None:
        """Wait for the reports of what is under way."""
        self._closed.set()
        self._served(self._producer.flush, seconds)

    def _send_again(self) -> None:
        """Send what was not taken, in the order in which it came."""
        self._again = deque(sorted(self._again))
        count = len(self._again)
        if self._doubtful:
            # alone means that nothing else is under way
            count = self._alone is None and count == len(self._pending)
        # one that fails at once stands at the end again
        for _ in range(count):
            number = self._again.popleft()
            self._alone = number if self._doubtful else None
            if not self._produce(number, self._pending[number]):
                self._again.appendleft(number)
                self._alone = None
                break

    def _served(self, call: Callable[[float], Any], seconds: float) -> None:
        """Let the producer report; it raises what has made it give up."""
        try:
            call(seconds)
        except self._library.KafkaException as error:
            self._on_error(error.args[0])

    def _made(self) -> Any:
        try:
            return self._library.Producer(self._options)
        except (self._library.KafkaException, ValueError, TypeError) as error:
            raise refused_options("forward.to.kafka.options", error) from None

    def _produce(self, number: int, message: Message) -> bool:
        headers = [
            ("mqtt-topic", message.topic.encode()),
            ("mqtt-received-us", b"%d" % message.received_us),
            ("mqtt-dup", b"1" if message.dup else b"0"),
            ("mqtt-retain", b"1" if message.retain else b"0"),
        ]
        if message.content_type:
            headers.append(("content-type", message.content_type.encode()))

        producer = self._producer

        def reported(error: Any, _: Any) -> None:
            # one that was given up may still report, of messages that are under way again
            if producer is self._producer:
                self._reported(number, error)

        try:
            producer.produce(
                self._topic,
                value=message.payload,
                key=self._key(message.topic),
                headers=headers,
                # sent again it keeps its stamp, which may be all that says when its reading was taken
                timestamp=self._stamps.get(number, message.received_us // 1_000),
                on_delivery=reported,
            )
        except BufferError:
            return False
        except self._library.KafkaException as error:
            # it is in no batch
            self._reported(number, error.args[0], alone=True)
        return True

    def _key(self, topic: str) -> bytes:
        if self._level is None:
            return topic.encode()
        levels = topic.split("/")
        return levels[self._level - 1].encode() if self._level <= len(levels) else b""

    def _reported(self, number: int, error: Any, *, alone: bool = False) -> None:
        if number == self._alone:
            self._alone, alone = None, True
        if error is None:
            if self._pending.pop(number, None) is not None:
                self._settled(number)
                self._had.append(number)
            self._delivered = True
            if self._away is not None:
                self._away = None
                _LOG.info("Kafka: messages are taken again")
            return
        if number not in self._pending:
            return
        names = self._library.KafkaError
        code = error.code()
        own = code in {names.MSG_SIZE_TOO_LARGE, names.INVALID_MSG, names.INVALID_MSG_SIZE, names.INVALID_RECORD}
        if own and alone:
            del self._pending[number]
            self._settled(number)
            self._refused.append(number)
            return
        of_batch = own or code in {names.INVALID_TIMESTAMP, names._INVALID_DIFFERENT_RECORD}  # noqa: SLF001 - its public name
        if of_batch:
            self._doubt(number, stamp=alone and code == names.INVALID_TIMESTAMP)
        self._judge(error)
        self._broken = self._broken or error.fatal() or code == names._FATAL  # noqa: SLF001 - its public name
        self._again.append(number)
        self._again_at = time.monotonic() + (0.0 if of_batch and not alone else _RETRY_S)

    def _settled(self, number: int) -> None:
        self._doubtful.discard(number)
        self._stamps.pop(number, None)

    def _doubt(self, number: int, *, stamp: bool) -> None:
        """Kafka has not taken a message for what it is, or for what another one is that was sent with it.

        For several reasons in one batch it names none, so they are sent one by one from now on, and each is judged by
        itself. None of them is there, so none comes to be there with two stamps.

        Args:
            number: the message.
            stamp: whether it is its own time stamp that is refused; one of the future is wrong anyway.
        """
        self._doubtful.add(number)
        now = time.time_ns() // 1_000_000
        if not stamp and self._pending[number].received_us // 1_000 <= now:
            return
        self._stamps[number] = now
        if time.monotonic() - self._clock_told > _REPEAT_S:
            self._clock_told = time.monotonic()
            _LOG.warning(
                "Kafka: refuses the time stamp of a message: the clock of this machine is or was far from that of the "
                "brokers, or message.timestamp.after.max.ms or message.timestamp.before.max.ms of the topic is short; "
                "look at the clock. Messages wait for it, nothing is lost"
            )

    def _on_error(self, error: Any) -> None:
        """What concerns the producer as a whole; librdkafka itself tries again."""
        self._broken = self._broken or error.fatal()
        self._judge(error)
        if error.code() in {self._library.KafkaError._ALL_BROKERS_DOWN, self._library.KafkaError._TRANSPORT}:  # noqa: SLF001 - its public names
            now = time.monotonic()
            if self._away is None or now - self._away > _REPEAT_S:
                self._away = now
                _LOG.warning(
                    "Kafka: no broker can be reached; messages wait here and at the MQTT broker, nothing is lost; "
                    "trying again"
                )

    def _judge(self, error: Any) -> None:
        """Note what only an operator can mend."""
        names = self._library.KafkaError
        code = error.code()
        if code in {names._AUTHENTICATION, names.SASL_AUTHENTICATION_FAILED}:  # noqa: SLF001 - its public names
            self._wrong = "Kafka: the credentials are not accepted; look at forward.to.kafka.options"
        elif code in {names.TOPIC_AUTHORIZATION_FAILED, names.CLUSTER_AUTHORIZATION_FAILED}:
            self._wrong = f"Kafka: not authorised to write to the topic {self._topic!r}; give this user the right"
        elif code in {names._UNKNOWN_TOPIC, names.UNKNOWN_TOPIC_OR_PART} and not self._delivered:  # noqa: SLF001 - its public names
            self._wrong = self._missing()
        elif code == names._SSL:  # noqa: SLF001 - its public name
            refused = "the TLS connection is refused; look at the certificates in forward.to.kafka.options"
            self._wrong = f"Kafka: {self._wrong_port() or refused}"

    def _wrong_port(self) -> str | None:
        """What the brokers' port speaks where it is not what the options say."""
        found = wrong_port(self._servers, self._options)
        return None if found is None else f"{found}, in forward.to.kafka"

    def _missing(self) -> str:
        return f"Kafka: there is no topic {self._topic!r}; create it, or name another in forward.to.kafka.topic"

    def _look(self, producer: Any) -> None:
        """Ask for the topic until the broker answers, so that a missing one is known before any message is."""
        first: float | None = None
        while not self._closed.wait(0 if first is None else 0.5):
            try:
                found = producer.list_topics(self._topic, timeout=5)
            except self._library.KafkaException:
                # later it may be the brokers that are being changed, and messages wait
                if not self._delivered and (wrong := self._wrong_port()) is not None:
                    self._wrong = f"Kafka: {wrong}"
                    return
                self._closed.wait(1)
                continue
            error = found.topics[self._topic].error if self._topic in found.topics else None
            if error is None and self._topic in found.topics:
                return
            if error is not None and error.code() == self._library.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._judge(error)
                return
            first = time.monotonic() if first is None else first
            if time.monotonic() - first > _MISSING_S:
                self._wrong = self._missing()
                return

    def _renew(self) -> None:
        """A new producer instead of one that gave up, and everything under way once more."""
        _LOG.warning("Kafka: the producer gave up and is made anew; what was under way is sent again")
        old, self._broken, self._alone = self._producer, False, None
        old.purge()
        self._producer = self._made()
        self._again = deque(self._pending)
        self._again_at = time.monotonic() + _RETRY_S
        self._served(old.poll, 0)


def reason_of(error: Exception) -> str:
    """What librdkafka says, which quotes no message."""
    first: Any = error.args[0] if error.args else error
    return first.str() if hasattr(first, "str") else str(first)


__all__ = ["KafkaDelivery", "reason_of"]
