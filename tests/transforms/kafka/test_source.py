"""Kafka topics as a source: offsets, gaps, health and headers."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from quiltstream.schemas.backoff import Backoff
from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.transforms.formats.rows import Decoded
from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.payloads.decoder import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages, SourceAwayError
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.progress import Heartbeat, Reach
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ..sources.check_contract import CheckContract
from ..sources.streams import Estimator, Tracker
from .contract import KafkaPartitionsContract, names_of, pieces_until, read, rows, settle
from .fake import ILLEGIBLE, FakeBroker, FakeConsumer
from .messages import ORIGIN, JsonMessages, reading

HOUR = 3_600_000_000


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


class TestFake(KafkaPartitionsContract):
    @pytest.fixture
    def broker(self) -> FakeBroker:
        return FakeBroker()


class Brokered:
    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.topic = self.broker.topic(1)

    def feed(self) -> KafkaPartitions:
        return feed(self.broker, self.topic)

    def send(self, number: int) -> None:
        self.broker.send(self.topic, [(0, reading("a", number, float(number)))])

    def take_away(self) -> None:
        self.broker.away = True

    def bring_back(self) -> None:
        self.broker.away = False


class TestCheck(CheckContract):
    @pytest.fixture
    def place(self) -> Brokered:
        return Brokered()


def feed(broker: FakeBroker, topic: str, **changes: Any) -> KafkaPartitions:
    given: dict[str, Any] = {"decoder": JsonMessages(), "discover_s": 0.01} | changes
    return KafkaPartitions(broker.cluster, (topic,), **given)


@pytest.mark.night
def test_an_unavailable_broker_is_reported_and_polled_until_its_return(broker, caplog):
    topic = broker.topic(2)
    broker.away = True
    reader = feed(broker, topic).reader(0, BEGIN)
    with caplog.at_level(logging.WARNING, "quiltstream.kafka"):
        assert reader.read() is None
    assert reader.trouble == f"topic {topic} at fake:9092: no broker answers"
    assert "no broker answers; trying again in 0.5 s" in caplog.text
    assert reader.sources == {topic: Reach.UNKNOWN}
    broker.away = False
    broker.send(topic, [(0, reading("a", 0))])
    assert read(reader, 1) == ["a"]
    assert reader.trouble is None
    settle(reader)
    broker.away = True
    pieces_until(reader, lambda _: reader.trouble is not None)
    assert set(reader.sources.values()) == {Reach.UNKNOWN}


@pytest.mark.night
def test_a_reader_whose_login_is_refused_reads_its_secret_again_and_goes_on(broker, monkeypatch):
    monkeypatch.setenv("QS_TEST_LOGIN", "old")
    topic = broker.topic(1)
    cluster = replace(broker.cluster, options={"sasl.password": FromEnvironment(env="QS_TEST_LOGIN")})
    reader = replace(feed(broker, topic), cluster=cluster).reader(0, BEGIN)
    broker.send(topic, [(0, reading("a", 0)), (0, reading("b", 1))])
    assert read(reader, 2) == ["a", "b"]
    settle(reader)
    (first,) = broker.consumers
    broker.away = True
    first._options["error_cb"](KafkaError(KafkaError._AUTHENTICATION))
    pieces_until(reader, lambda _: first.closed)
    assert reader.trouble == f"topic {topic} at fake:9092: the broker does not accept user and password"
    # the next one has the old secret, too; each is tried after a longer pause
    broker.tells = KafkaError._AUTHENTICATION
    pieces_until(reader, lambda _: len(broker.consumers) == 2 and broker.consumers[1].closed)
    monkeypatch.setenv("QS_TEST_LOGIN", "new")
    broker.away = False
    broker.send(topic, [(0, reading("c", 2))])
    assert read(reader, 1) == ["c"]
    assert reader.trouble is None
    assert [one._options["sasl.password"] for one in broker.consumers] == ["old", "old", "new"]


def test_a_message_with_unreadable_headers_is_one_reject_and_others_are_read(broker):
    class Slow(JsonMessages):
        tries = 2

        def decode(self, messages: Messages) -> list[Decoded]:
            self.tries -= 1
            if self.tries >= 0:
                raise SourceAwayError("the registry does not answer")
            assert all(isinstance(one, (list, tuple)) for one in messages.headers)
            return super().decode(messages)

    topic = broker.topic(1)
    log = broker.topics[topic][0].messages
    log += [
        (reading("a", 0), 5, None, [("n", b"1")]),
        (reading("b", 0), 5, None, ILLEGIBLE),
        (None, 5, None, ILLEGIBLE),
        (reading("c", 0), 5, None, None),
    ]
    reader = feed(broker, topic, decoder=Slow()).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda found: rows(found) >= 2)
    assert [name for one in pieces for name in names_of(one)] == ["a", "c"]
    assert [one.rejected for one in pieces if one.rejected] == [{RejectReason.MALFORMED_ROW: 1}]
    (rejects,) = (one for piece in pieces for one in piece.rejects)
    assert rejects.column("position").to_pylist() == [1]
    assert rejects.column("size").to_pylist() == [len(reading("b", 0))]
    # where nothing else comes it is passed over as well
    log.append((reading("d", 0), 5, None, ILLEGIBLE))
    (piece,) = pieces_until(reader, bool)
    assert (piece.rows, piece.rejected, piece.position) == (
        0,
        {RejectReason.MALFORMED_ROW: 1},
        pieces[-1].position.replace('"0":4', '"0":5'),
    )
    reader.close()


def test_no_partition_is_silent_while_messages_wait_for_their_decoder(broker):
    class Needy(JsonMessages):
        away = False

        def decode(self, messages: Messages) -> list[Decoded]:
            if self.away:
                raise SourceAwayError("the registry does not answer")
            return super().decode(messages)

    topic, decoder = broker.topic(2), Needy()
    reader = feed(broker, topic, decoder=decoder).reader(0, BEGIN)
    broker.send(topic, [(0, reading("a", 0)), (1, reading("b", 0))])
    read(reader, 2)
    settle(reader)
    decoder.away = True
    broker.send(topic, [(0, reading("a", 1))])
    pieces_until(reader, lambda _: reader.trouble == "the registry does not answer")
    # nobody looks at the other one meanwhile, which may go on speaking
    assert reader.sources == {f"{topic}/0": Reach.BEHIND, f"{topic}/1": Reach.UNKNOWN}
    decoder.away = False
    assert read(reader, 1) == ["a"]
    settle(reader)


def test_a_secret_is_contained_only_in_the_client_options(monkeypatch):
    given: list[Any] = []

    def consumer(options: Any) -> Any:
        given.append(options)
        return FakeBroker().cluster.consumer(options)

    cluster = Cluster("h:1", {"sasl.password": FromEnvironment(env="QS_TEST_PASSWORD")}, consumer=consumer)
    made = KafkaPartitions(cluster, ("t",), JsonMessages())
    reader = made.reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == (
        "Kafka at h:1: the environment variable QS_TEST_PASSWORD is not set here; set it for every process that uses "
        "these settings"
    )
    monkeypatch.setenv("QS_TEST_PASSWORD", "hunter2")
    pieces_until(reader, lambda _: bool(given))
    assert given[0]["sasl.password"] == "hunter2"
    plain = KafkaPartitions(Cluster("h:1", cluster.options), ("t",), JsonMessages())
    assert b"hunter2" not in pickle.dumps(plain)
    assert pickle.loads(pickle.dumps(plain)).cluster == plain.cluster
    assert "hunter2" not in repr(made) + repr(plain) + str(reader.trouble)


def test_a_leaderless_partition_is_reported_and_the_others_are_read(broker, caplog):
    topic = broker.topic(5)
    broker.leaderless = {1, 2, 3, 4}
    broker.send(topic, [(0, reading("a", 0)), (3, reading("b", 0))])
    reader = feed(broker, topic).reader(0, BEGIN)
    with caplog.at_level(logging.WARNING, "quiltstream.kafka"):
        assert read(reader, 1) == ["a"]
    said = (
        f"{topic}/1, {topic}/2, {topic}/3 and 1 more at fake:9092: has no leader now, or is not there any more; its "
        "brokers may be away"
    )
    assert reader.trouble == said
    assert caplog.text.count("has no leader") == 1
    assert reader.sources == {f"{topic}/{n}": Reach.UNKNOWN for n in range(1, 5)} | {f"{topic}/0": Reach.END}
    broker.leaderless = set()
    assert read(reader, 1) == ["b"]
    settle(reader)
    pieces_until(reader, lambda _: reader.trouble is None)


@pytest.mark.night
def test_an_empty_partition_group_holds_its_watermark_during_a_broker_outage(broker):
    topic, wall, estimator = broker.topic(1), [ORIGIN + 10 * HOUR], Estimator()
    part = ReadPart(feed(broker, topic, lanes=2), PollingPolicy(ORIGIN, poll_s=0.0), now=lambda: wall[0])
    part.setup()
    rest = part.initial_restriction(1)

    def clock() -> int:
        nonlocal rest
        for _ in range(4):
            tracker = Tracker(rest)
            list(part.process(1, tracker, estimator))
            assert tracker.rest is not None
            rest = tracker.rest
        assert estimator.at is not None
        return (estimator.at.micros - ORIGIN) // HOUR

    def away() -> bool:
        return Heartbeat.of(1).trouble is not None

    Heartbeat.reset()
    assert clock() == 10
    broker.away = True
    while not away():
        clock()
    wall[0] += 5 * HOUR
    assert clock() == 10
    # meanwhile a partition was made for it, and is found before the clock goes on
    broker.grow(topic, 2)
    broker.send(topic, [(1, reading("a", 12 * HOUR))])
    broker.away = False
    while away():
        assert clock() in {10, 12}
    assert clock() == 12


def test_reordered_topics_are_refused_where_partition_groups_would_change(broker):
    first, second = broker.topic(1, "first"), broker.topic(1, "second")

    def position(topics: tuple[str, ...], lanes: int) -> str:
        made = KafkaPartitions(broker.cluster, topics, JsonMessages(), lanes=lanes)
        return pieces_until(made.reader(0, BEGIN), bool)[0].position

    def taken_up(topics: tuple[str, ...], lanes: int, text: str) -> None:
        KafkaPartitions(broker.cluster, topics, JsonMessages(), lanes=lanes).reader(0, text).close()

    kept = position((first, second), 2)
    taken_up((first, second, "third"), 2, kept)
    taken_up((first,), 2, kept)
    with pytest.raises(SettingsError, match=r"topics: the runner's state was made with first at another place"):
        taken_up((second, first), 2, kept)
    taken_up((second, first), 1, position((first, second), 1))


def test_a_possibly_redelivered_or_retained_message_has_no_time_of_arrival(broker):
    topic, now = broker.topic(1), 1_700_000_000_000
    bodies = [json.dumps({"m": "a", "v": number, "t": now + number}).encode() for number in range(4)]
    again = [
        [("mqtt-dup", b"0"), ("mqtt-retain", b"0")],
        [("mqtt-dup", b"1")],
        [("mqtt-dup", b"0"), ("mqtt-retain", b"1")],
        [("x", b"1"), ("mqtt-dup", b"1")],
    ]
    log = broker.topics[topic][0].messages
    for number, (body, flags) in enumerate(zip(bodies, again, strict=True)):
        log.append((body, now + number, None, [*flags, ("mqtt-received-us", b"%d" % (now + number))]))
    plain = {"each": "payload", "series": "m", "value": "v", "time_unit": "ms"}

    def found(time: Any) -> tuple[list[float], list[Any]]:
        decoder = PayloadDecoder(Readings.model_validate(plain | {"time": time}))
        reader = feed(broker, topic, decoder=decoder).reader(0, BEGIN)
        (piece,) = (one for one in pieces_until(reader, lambda all_: rows(all_) > 0) if one.rows)
        assert piece.came_us == 1_000 * (now + 3)
        read = [value for batch in piece.batches for value in batch.column("value").to_pylist()]
        return read, [row["position"] for batch in piece.rejects for row in batch.to_pylist()]

    assert found("t") == ([0.0, 1.0, 2.0, 3.0], [])
    assert found("stamp") == ([0.0], [1, 2, 3])
    assert found("""header."mqtt-received-us" """) == ([0.0], [1, 2, 3])


def test_brokers_that_return_no_messages_are_reported_and_reconnected(broker, monkeypatch, caplog):
    """As of a topic that was made anew by brokers without ids, unseen, where the leaders' epochs went back."""
    monkeypatch.setattr("quiltstream.transforms.kafka.source._STUCK", Backoff(0.3, 5.0))
    caplog.set_level(logging.WARNING)
    topic = broker.topic(1)
    broker.ids.clear()
    reader = feed(broker, topic).reader(0, BEGIN)
    broker.send(topic, [(0, reading("a", 0))])
    broker.restart()
    assert read(reader, 1) == ["a"]
    settle(reader)
    before = broker.consumers[-1]
    broker.make_anew(topic, 1)
    broker.ids.clear()
    broker.send(topic, [(0, reading(name, 0)) for name in "xbc"])
    told: list[str] = []

    def all_read(pieces: list[Any]) -> bool:
        told.extend([reader.trouble] if reader.trouble is not None else [])
        return rows(pieces) == 2

    # without an id nobody can tell that offset 0 was another message
    pieces = pieces_until(reader, all_read)
    assert [name for one in pieces for name in names_of(one)] == ["b", "c"]
    assert before.closed
    assert any("hand none over" in text for text in told)
    assert reader.trouble is None
    assert [one.getMessage() for one in caplog.records if "answers again" in one.getMessage()] == []
    reader.close()


def test_a_gap_whose_leader_does_not_answer_at_once_is_read_from_its_end(broker, monkeypatch):
    """By the same consumer: another is made only where no messages come, and others may come for ever."""
    topic = broker.topic(2)
    broker.send(topic, [(n % 2, reading("a", n)) for n in range(4)])
    reader = feed(broker, topic).reader(0, BEGIN)
    assert len(read(reader, 4)) == 4
    broker.send(topic, [(0, reading(f"b{n}", n)) for n in range(4)])
    broker.forget(topic, 0, 4)
    asked, failed = FakeConsumer.get_watermark_offsets, []

    def fails_once(self: FakeConsumer, place: Any, timeout: Any = None, *, cached: bool = False) -> Any:
        if not cached and not failed:
            failed.append(place)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return asked(self, place, timeout, cached=cached)

    monkeypatch.setattr(FakeConsumer, "get_watermark_offsets", fails_once)
    assert read(reader, 2) == ["b2", "b3"]
    assert failed
    assert len(broker.consumers) == 1
