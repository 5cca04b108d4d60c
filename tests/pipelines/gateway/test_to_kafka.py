"""Kafka as a delivery target, at a broker in memory; the real one is in the end-to-end tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from quiltstream.pipelines.gateway import DeliveryError, DeliveryTarget, Message
from quiltstream.pipelines.gateway import delivery as module
from quiltstream.pipelines.gateway.delivery import KafkaDelivery
from quiltstream.schemas.settings.gateway import Level

from .delivery_contract import DeliveryContract, Place, had_by, message
from .fake_kafka import Broker, KafkaError


class Topic(Place):
    servers = "localhost:9092"

    def __init__(self) -> None:
        self.broker = Broker()
        self.targets: list[KafkaDelivery] = []
        self.options: dict[str, str] = {}

    def target(self, key: str | Level = "topic") -> DeliveryTarget:
        self.targets.append(KafkaDelivery(self.servers, "readings", key, self.options, library=self.broker.library))
        return self.targets[-1]

    def kept(self) -> list[Message]:
        return [
            Message(
                headers["mqtt-topic"].decode(),
                value,
                int(headers["mqtt-received-us"]),
                headers["mqtt-dup"] == b"1",
                headers["mqtt-retain"] == b"1",
                headers.get("content-type", b"").decode(),
            )
            for _, _, value, headers in self.broker.records
        ]

    def fail(self) -> None:
        self.broker.up = False

    def mend(self) -> None:
        self.broker.up = True


class TestKafkaHop(DeliveryContract):
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        topic = Topic()
        yield topic
        topic.mend()
        for target in topic.targets:
            target.close(1)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    monkeypatch.setattr(module, "_MISSING_S", 0.2)
    one = Topic()
    yield one
    for target in one.targets:
        target.close(1)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def refused_by(target: DeliveryTarget) -> list[int]:
    """What a target says next that it does not take at all."""
    found: list[int] = []

    def looked() -> bool:
        target.had()
        found.extend(target.refused())
        return bool(found)

    until(looked)
    return found


def test_the_producer_is_idempotent_and_no_message_times_out(topic: Topic) -> None:
    topic.target()
    settings = topic.broker.producers[0].settings
    assert settings["enable.idempotence"] is True
    # the largest that limits.packet allows is the broker's to judge
    assert settings["message.max.bytes"] > 256 << 20
    assert settings["acks"] == "all"
    assert settings["message.timeout.ms"] == 0


@pytest.mark.parametrize(
    ("key", "name", "expected"),
    [
        ("topic", "a/b", b"a/b"),
        (Level(level=1), "a/b", b"a"),
        (Level(level=2), "a/b", b"b"),
        (Level(level=3), "a/b", b""),
        (Level(level=1), "/a", b""),
    ],
)
def test_the_key_is_the_topic_or_a_level_of_it(topic: Topic, key: str | Level, name: str, expected: bytes) -> None:
    target = topic.target(key)
    target.offer(1, Message(name, b"1", 0))
    had_by(target, 1)
    assert [record[1] for record in topic.broker.records] == [expected]


def test_a_full_producer_queue_causes_back_pressure(topic: Topic) -> None:
    topic.broker.room = 5
    topic.fail()
    target = topic.target()
    assert [target.offer(number, message(number)) for number in range(7)] == [True] * 5 + [False] * 2
    topic.mend()
    assert sorted(had_by(target, 5)) == list(range(5))
    assert target.offer(5, message(5))


def test_a_refused_batch_loses_only_the_message_that_caused_it(topic: Topic) -> None:
    target = topic.target()
    topic.fail()
    topic.broker.longest_batch = 100
    for number in range(6):
        target.offer(number, message(number, size=101 if number == 3 else 50))
    topic.mend()
    assert had_by(target, 5) == [0, 1, 2, 4, 5]
    assert refused_by(target) == [3]
    assert [value[:1] for value, _ in topic.broker.taken] == [b"0", b"1", b"2", b"4", b"5"]
    # and the next ones go in batches again
    for number in range(6, 8):
        assert target.offer(number, message(number))
    assert sorted(had_by(target, 2)) == [6, 7]


def test_a_message_that_the_producer_refuses_at_once_is_refused_once_and_not_kept(topic: Topic) -> None:
    topic.broker.longest = 100
    target = topic.target()
    assert target.offer(1, message(1, size=101))
    assert target.offer(2, message(2))
    assert sorted(had_by(target, 1)) == [2]
    assert target.refused() == [1]
    assert target.had() == []
    assert target.refused() == []


def test_a_retried_message_is_eventually_delivered_with_its_stamp(topic: Topic) -> None:
    target = topic.target()
    failures = {b"2|": 3}

    def refuse(value: bytes) -> KafkaError | None:
        if failures.get(value[:2], 0):
            failures[value[:2]] -= 1
            return KafkaError(KafkaError.NOT_LEADER)
        return None

    topic.broker.refuse = refuse
    for number in range(4):
        target.offer(number, message(number))
    assert sorted(had_by(target, 4)) == [0, 1, 2, 3]
    assert failures == {b"2|": 0}
    # whenever it is sent, it says when the gateway had it
    assert topic.broker.stamps == {message(number).payload: {1_700_000_000_000} for number in range(4)}


HOUR_MS = 3_600_000


class Clocks:
    """The time of the gateway, which a test may set, and that of the brokers, which is right.

    Attributes:
        ahead: milliseconds that the gateway's is ahead.
    """

    def __init__(self, broker: Broker, before_ms: int = 10**15) -> None:
        self.ahead = 0
        broker.clock = lambda: (self.right(), before_ms, HOUR_MS)

    @staticmethod
    def right() -> int:
        return time.time_ns() // 1_000_000

    def time_ns(self) -> int:
        return (self.right() + self.ahead) * 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def message(self, number: int) -> Message:
        """A message that comes now."""
        return message(number)._replace(received_us=self.time_ns() // 1_000)


@pytest.fixture
def clocks(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks(topic.broker)
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.mark.night
@pytest.mark.parametrize("moment", [range(10, 11), range(10, 20), range(30)])
def test_a_clock_briefly_ahead_delays_and_loses_no_kafka_message(
    topic: Topic, clocks: Clocks, moment: range, caplog: pytest.LogCaptureFixture
) -> None:
    target = topic.target()
    topic.fail()
    given = list[Message]()
    for number in range(30):
        clocks.ahead = 2 * HOUR_MS if number in moment else 0
        given.append(clocks.message(number))
        assert target.offer(number, given[-1])
    topic.mend()
    clocks.ahead, before = 0, clocks.right()
    assert had_by(target, 30) == list(range(30))
    assert target.refused() == []
    # each is there once, in order, and only those with a stamp of the future have another one
    assert [value for value, _ in topic.broker.taken] == [one.payload for one in given]
    for number, (_, stamp) in enumerate(topic.broker.taken):
        if number in moment:
            assert before <= stamp <= clocks.right()
        else:
            assert stamp == given[number].received_us // 1_000
    assert caplog.text.count("the clock of this machine is or was far from that of the brokers") == 1
    assert "meters" not in caplog.text
    # and the next ones go in batches again
    for number in range(30, 40):
        assert target.offer(number, clocks.message(number))
    assert sorted(had_by(target, 10)) == list(range(30, 40))


def test_a_timestamp_too_old_for_the_topic_is_replaced_and_others_are_kept(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(topic.broker, before_ms=HOUR_MS)
    monkeypatch.setattr(module, "time", clocks)
    target = topic.target()
    topic.fail()
    clocks.ahead = -2 * HOUR_MS
    target.offer(0, clocks.message(0))
    clocks.ahead, before = 0, clocks.right()
    fresh = clocks.message(1)
    target.offer(1, fresh)
    topic.mend()
    assert had_by(target, 2) == [0, 1]
    assert before <= topic.broker.taken[0][1] <= clocks.right()
    assert topic.broker.taken[1] == (fresh.payload, fresh.received_us // 1_000)


def fatal_once(begin: bytes) -> Callable[[bytes], KafkaError | None]:
    """A broker that ends the producer at the first value that begins so."""
    left = [KafkaError(KafkaError.NOT_LEADER, fatal=True)]
    return lambda value: left.pop() if value.startswith(begin) and left else None


@pytest.mark.night
def test_a_fatal_error_during_a_single_send_recreates_the_producer(topic: Topic, clocks: Clocks) -> None:
    target = topic.target()
    clocks.ahead = 2 * HOUR_MS
    for number in range(4):
        target.offer(number, clocks.message(number))
    target.had()
    clocks.ahead = 0
    topic.broker.refuse = fatal_once(b"1|")
    assert sorted(had_by(target, 4)) == [0, 1, 2, 3]
    assert len(topic.broker.producers) == 2
    assert target.offer(4, clocks.message(4))
    assert had_by(target, 1) == [4]


def test_a_fatal_producer_error_recreates_the_producer_and_resends_all(topic: Topic) -> None:
    target = topic.target()
    topic.broker.refuse = fatal_once(b"5|")
    for number in range(20):
        assert target.offer(number, message(number))
    assert sorted(had_by(target, 20)) == list(range(20))
    assert len(topic.broker.producers) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._AUTHENTICATION, "the credentials are not accepted"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "not authorised to write to the topic 'readings'"),
        (KafkaError._UNKNOWN_TOPIC, "there is no topic 'readings'; create it"),
        (KafkaError._SSL, "the TLS connection is refused"),
    ],
)
def test_a_permanent_kafka_error_is_raised_and_nothing_reported_delivered(topic: Topic, code: int, words: str) -> None:
    target = topic.target()
    topic.broker.refuse = lambda _: KafkaError(code)
    target.offer(1, message(1))
    with pytest.raises(DeliveryError, match=words):
        until(target.had)


def test_a_topic_that_disappears_later_is_waited_for(topic: Topic) -> None:
    target = topic.target()
    target.offer(1, message(1))
    had_by(target, 1)
    topic.broker.refuse = lambda _: KafkaError(KafkaError._UNKNOWN_TOPIC)
    target.offer(2, message(2))
    for _ in range(10):
        assert target.had() == []
        time.sleep(0.01)
    topic.broker.refuse = lambda _: None
    assert had_by(target, 1) == [2]


@pytest.mark.night
def test_a_missing_topic_is_an_error_before_any_message_is_offered(topic: Topic) -> None:
    topic.broker.topics.clear()
    target = topic.target()
    with pytest.raises(DeliveryError, match="there is no topic 'readings'"):
        until(target.had)


def test_options_refused_by_the_library_are_a_settings_error() -> None:
    class Library:
        KafkaException = KafkaError
        KafkaError = KafkaError

        @staticmethod
        def Producer(given: dict[str, object]) -> None:  # noqa: N802 - the library's name
            raise ValueError(f"Unsupported SASL mechanism: {given['sasl.mechanism']}")

    with pytest.raises(DeliveryError, match=r"forward\.to\.kafka\.options: librdkafka does not take them") as refusal:
        KafkaDelivery("h:1", "t", "topic", {"sasl.mechanism": "hunter2"}, library=Library)
    assert "hunter2" not in str(refusal.value)
