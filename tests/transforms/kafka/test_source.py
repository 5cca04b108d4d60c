"""Kafka topics as a source: offsets, gaps, health and headers."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import struct
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.transforms.formats.rows import Decoded
from quiltstream.transforms.kafka.client import Cluster, KafkaUnavailableError
from quiltstream.transforms.kafka.partitions import KnownTopic
from quiltstream.transforms.kafka.sink import Topic, read_ids
from quiltstream.transforms.kafka.source import KafkaPartitions, VainFetches
from quiltstream.transforms.payloads.decoder import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages, SourceAwayError
from quiltstream.transforms.sinks import DOMAIN, QUERY, SCHEMA
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.progress import Reach
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


def test_a_lost_leader_or_topic_is_detected_between_two_polls(broker):
    topic = broker.topic(2)
    reader = feed(broker, topic).reader(0, BEGIN)
    # one that has never looked is to look
    assert not reader.check()
    settle(reader)
    for trouble, none in (("leaderless", set()), ("silent", False), ("refused", {})):
        setattr(broker, trouble, {"leaderless": {1}, "silent": True, "refused": {topic: 3}}[trouble])
        assert not reader.check(), trouble
        setattr(broker, trouble, none)
        assert reader.check(), trouble
    # what is known to be away is looked at as what is in trouble is, and hides nothing of the others
    broker.leaderless = {1}
    pieces_until(reader, lambda _: reader.trouble is not None)
    assert reader.check()


def feed(broker: FakeBroker, topic: str, **changes: Any) -> KafkaPartitions:
    given: dict[str, Any] = {"decoder": JsonMessages(), "discover_s": 0.01} | changes
    return KafkaPartitions(broker.cluster, (topic,), **given)


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


def test_an_unauthorized_topic_and_a_leaderless_partition_are_reported(broker):
    topic = broker.topic(2)
    broker.refused[topic] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    reader = feed(broker, topic).reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == f"topic {topic} at fake:9092: the user may not use the topic; ask for the right to it"
    del broker.refused[topic]
    broker.leaderless = {1}
    pieces_until(reader, lambda _: reader.sources.get(f"{topic}/0") is Reach.END)
    assert reader.sources[f"{topic}/1"] is Reach.UNKNOWN


def test_a_wrong_password_is_reported_instead_of_an_unavailable_broker(broker):
    topic = broker.topic(1)
    broker.away, broker.tells = True, KafkaError._AUTHENTICATION
    reader = feed(broker, topic).reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == f"topic {topic} at fake:9092: the broker does not accept user and password"


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
    assert reader._outage.attempts.failures >= 2
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


def test_a_partition_is_at_its_end_only_when_polled_with_no_messages_in_hand(broker):
    topic = broker.topic(3)
    reader = feed(broker, topic).reader(0, BEGIN)
    settle(reader)
    broker.send(topic, [(0, reading("a", 0)), (1, reading("b", 0))])
    reached: list[Reach] = []
    for rows_ in (1, 1, None):
        piece = reader.read()
        assert (None if piece is None else piece.rows) == rows_
        reached.append(reader.sources[f"{topic}/2"])
    assert reached == [Reach.END, Reach.UNSEEN, Reach.END]
    reader.close()


class Needy(JsonMessages):
    away = True

    def decode(self, messages: Messages) -> list[Decoded]:
        if self.away:
            raise SourceAwayError("the registry does not answer")
        return super().decode(messages)


def test_partitions_made_while_messages_wait_are_found_before_these_are_read(broker):
    topic, decoder = broker.topic(1), Needy()
    broker.send(topic, [(0, reading("a", 0))])
    reader = feed(broker, topic, decoder=decoder).reader(0, BEGIN)
    pieces_until(reader, lambda _: reader.trouble is not None)
    broker.grow(topic, 2)
    broker.send(topic, [(1, reading("b", 0))])
    pieces_until(reader, lambda _: f"{topic}/1" in reader.sources)
    decoder.away = False
    assert sorted(read(reader, 2)) == ["a", "b"]
    reader.close()


def test_messages_wait_while_the_registry_of_their_decoder_is_unavailable(broker):
    topic, decoder = broker.topic(1), Needy()
    broker.send(topic, [(0, reading("a", 0)), (0, reading("b", 0))])
    reader = feed(broker, topic, decoder=decoder).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda _: reader.trouble is not None)
    assert rows(pieces) == 0
    assert reader.trouble == "the registry does not answer"
    assert reader.sources == {f"{topic}/0": Reach.BEHIND}
    decoder.away = False
    assert read(reader, 2) == ["a", "b"]
    assert reader.trouble is None


def test_a_stateful_decoder_rereads_its_past_without_duplicate_readings(broker):
    class Remembering(JsonMessages):
        def __init__(self) -> None:
            self.seen: list[int] = []

        @property
        def lookback_us(self) -> int:
            return 1_000_000

        def decode(self, messages: Messages) -> list[Decoded]:
            self.seen += messages.positions.tolist()
            return super().decode(messages)

    topic, now = broker.topic(1), 1_700_000_000_000
    log = broker.topics[topic][0].messages
    log += [(reading(f"a{n}", 0), now + 250 * n) for n in range(10)]
    (begun, _) = pieces_until(feed(broker, topic, decoder=Remembering()).reader(0, BEGIN), lambda all_: len(all_) == 2)
    assert rows([begun]) == 0
    whole = pieces_until(
        feed(broker, topic, decoder=Remembering()).reader(0, begun.position), lambda all_: rows(all_) == 10
    )
    assert json.loads(whole[-1].position)["stamps"] == {topic: {"0": now + 2250}}
    log += [(reading(f"b{n}", 0), now + 2500 + 250 * n) for n in range(3)]
    decoder = Remembering()
    again = feed(broker, topic, decoder=decoder).reader(0, whole[-1].position)
    pieces = pieces_until(again, lambda all_: rows(all_) == 3)
    assert json.loads(pieces[0].position)["topics"] == {topic: {"0": 10}}
    assert [name for one in pieces for name in names_of(one)] == ["b0", "b1", "b2"]
    assert decoder.seen == list(range(5, 13))
    assert json.loads(pieces[-1].position)["topics"] == {topic: {"0": 13}}


def test_a_producer_clock_ahead_does_not_shorten_the_look_back(broker):
    class Remembering(JsonMessages):
        @property
        def lookback_us(self) -> int:
            return 1_000_000

    topic, now = broker.topic(1), time.time_ns() // 1_000_000
    broker.topics[topic][0].messages.extend([(reading("a", 0), now), (reading("b", 0), now + 36_000_000)])
    made = feed(broker, topic, decoder=Remembering())
    pieces = pieces_until(made.reader(0, BEGIN), lambda all_: rows(all_) == 2)
    stamp = json.loads(pieces[-1].position)["stamps"][topic]["0"]
    assert now <= stamp < now + 36_000_000


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


def test_a_missing_extra_is_reported_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    reader = KafkaPartitions(Cluster("127.0.0.1:1"), ("t",), JsonMessages()).reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == (
        "Kafka needs the package confluent-kafka, which is not installed here; pip install 'quiltstream[kafka]'"
    )


def test_the_end_of_a_partition_requires_a_current_answer_of_its_leader(broker, monkeypatch):
    monkeypatch.setattr("quiltstream.transforms.kafka.source._LOG_ENDS_S", 0.0)
    topic = broker.topic(2)
    broker.send(topic, [(0, reading("a", 0)), (1, reading("b", 0))])
    reader = feed(broker, topic, discover_s=1000.0).reader(0, BEGIN)
    read(reader, 2)
    settle(reader)
    # nothing is fetched any more, and the client's own mark of the end stays where it was
    broker.hanging = True
    broker.send(topic, [(1, reading("c", 0))])
    assert reader.read() is None
    assert reader.sources == {f"{topic}/0": Reach.END, f"{topic}/1": Reach.BEHIND}
    broker.silent = True
    assert reader.read() is None
    assert reader.sources == {f"{topic}/0": Reach.UNKNOWN, f"{topic}/1": Reach.UNKNOWN}
    assert reader.trouble == f"topic {topic} at fake:9092: no broker answered in time"
    broker.silent = broker.hanging = False
    assert read(reader, 1) == ["c"]


def test_denied_reads_are_reported_until_allowed_and_other_partitions_are_read(broker, caplog):
    topic = broker.topic(2)
    reader = feed(broker, topic).reader(0, BEGIN)
    settle(reader)
    broker.denied = {1}
    broker.consumers[-1].seek(TopicPartition(topic, 1, 0))
    with caplog.at_level(logging.WARNING, "quiltstream.kafka"):
        pieces_until(reader, lambda _: reader.trouble is not None)
    said = f"{topic}/1 at fake:9092: the user may not use the topic; ask for the right to it"
    assert reader.trouble == said
    assert said in caplog.text
    for name in ("a", "b", "c"):
        broker.send(topic, [(0, reading(name, 0))])
        assert read(reader, 1) == [name]
        assert reader.trouble == said
        assert reader.sources[f"{topic}/1"] is Reach.UNKNOWN
    # nothing is waiting there, and it is seen all the same
    broker.denied = set()
    pieces_until(reader, lambda _: reader.trouble is None)
    settle(reader)


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
        return part._readers[1][1].trouble is not None

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


def test_what_was_lost_with_an_older_topic_is_kept_over_failures_and_leaders(broker, monkeypatch):
    """A run without a position finds a topic anew once, and may not begin to read it at once."""
    topic = broker.topic(1)
    known = {topic: KnownTopic(str(broker.ids[topic]))}
    broker.make_anew(topic, 1)
    broker.send(topic, [(0, reading("a", 0))])
    watermarks, asked = FakeConsumer.get_watermark_offsets, list[int]()

    def first_timed_out(self: FakeConsumer, place: Any, timeout: float | None = None, *, cached: bool = False) -> Any:
        if not cached and not asked:
            asked.append(1)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return watermarks(self, place, timeout, cached=cached)

    with monkeypatch.context() as patch:
        patch.setattr(FakeConsumer, "get_watermark_offsets", first_timed_out)
        pieces = pieces_until(feed(broker, topic, known=known).reader(0, BEGIN), lambda found: rows(found) == 1)
    assert asked
    assert all(one.lost_us is not None for one in pieces)
    broker.leaderless = {0}
    reader = feed(broker, topic, known=known).reader(0, BEGIN)
    pieces_until(reader, bool)
    broker.leaderless = set()
    assert pieces_until(reader, lambda found: rows(found) == 1)[-1].lost_us is not None


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
    plain = {"series": {"path": "m"}, "value": {"path": "v"}, "time_unit": "ms"}

    def found(time: Any) -> tuple[list[float], list[Any]]:
        decoder = PayloadDecoder(Readings.model_validate(plain | {"time": time}))
        reader = feed(broker, topic, decoder=decoder).reader(0, BEGIN)
        (piece,) = (one for one in pieces_until(reader, lambda all_: rows(all_) > 0) if one.rows)
        assert piece.came_us == 1_000 * (now + 3)
        read = [value for batch in piece.batches for value in batch.column("value").to_pylist()]
        return read, [row["position"] for batch in piece.rejects for row in batch.to_pylist()]

    assert found({"path": "t"}) == ([0.0, 1.0, 2.0, 3.0], [])
    assert found({"stamp": True}) == ([0.0], [1, 2, 3])
    assert found({"header": "mqtt-received-us"}) == ([0.0], [1, 2, 3])


def test_brokers_that_return_no_messages_are_reported_and_reconnected(broker, monkeypatch, caplog):
    """As of a topic that was made anew by brokers without ids, unseen, where the leaders' epochs went back."""
    monkeypatch.setattr("quiltstream.transforms.kafka.source._STUCK_S", 0.3)
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


def test_a_client_is_given_up_after_its_seconds_and_its_fetches_in_vain():
    vain = VainFetches(20.0)
    for now in range(6):
        vain = vain.after(float(now), waits=True)
    assert [vain.too_long(now) for now in (19.9, 20.0)] == [False, True]
    assert not VainFetches(20.0).after(0.0, waits=True).too_long(1e9)
    assert vain.after(30.0, waits=False) == VainFetches(20.0)


def test_a_transaction_open_for_30_s_is_reported_with_its_offset_until_it_ends(broker, monkeypatch):
    clock = SimpleNamespace(now=1_000.0, monotonic=lambda: clock.now, time_ns=time.time_ns)
    monkeypatch.setattr("quiltstream.transforms.kafka.source.time", clock)
    topic = broker.topic(2)
    broker.send(topic, [(0, reading("a", 0)), (1, reading("b", 0))])
    reader = feed(broker, topic, discover_s=10.0).reader(0, BEGIN)
    read(reader, 2)
    broker.transactions[topic, 0] = 1
    broker.send(topic, [(0, reading("c", 0))])

    def troubles(seconds: int) -> list[str | None]:
        told = []
        for _ in range(seconds):
            clock.now += 1
            assert reader.read() is None
            assert reader.sources[f"{topic}/0"] is Reach.BEHIND
            told.append(reader.trouble)
        return told

    assert set(troubles(30)) == {None}
    assert troubles(12)[-1] == (
        f"{topic}/0: a transaction is open since offset 1; its messages and those behind it wait for its end "
        "(kafka-transactions.sh find-hanging)"
    )
    # another one is given its time
    broker.transactions[topic, 0] = 2
    broker.send(topic, [(0, reading("d", 0))])
    assert read(reader, 1) == ["c"]
    assert set(troubles(30)) == {None}
    assert "since offset 2" in str(troubles(12)[-1])
    del broker.transactions[topic, 0]
    assert read(reader, 1) == ["d"]
    assert reader.trouble is None
    settle(reader)
    reader.close()


def test_a_repeated_error_is_logged_once(broker, caplog):
    caplog.set_level(logging.WARNING)
    reader = feed(broker, broker.topic(1)).reader(0, BEGIN)
    settle(reader)
    broker.away = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quiltstream.transforms.sources.contract.LONGEST_PAUSE_S", 0.0)
        reader._outage.attempts.due = 0.0
        for _ in range(50):
            reader.read()
    broker.away = False
    settle(reader)
    said = [one.getMessage() for one in caplog.records]
    assert len([text for text in said if "no broker answers" in text]) == 1
    assert len([text for text in said if text.endswith("it answers again")]) == 1
    reader.close()


def test_a_recreated_topic_gets_a_new_consumer_and_a_quiet_one_does_not(broker, monkeypatch):
    monkeypatch.setattr("quiltstream.transforms.kafka.source._STUCK_S", 1e9)
    topic = broker.topic(1)
    reader = feed(broker, topic).reader(0, BEGIN)
    broker.restart()
    broker.send(topic, [(0, reading("a", 0))])
    assert read(reader, 1) == ["a"]
    settle(reader)
    broker.make_anew(topic, 1)
    broker.send(topic, [(0, reading("b", 0))])
    assert read(reader, 1) == ["b"]
    assert [one.closed for one in broker.consumers] == [True, False]
    reader.close()


_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def sized(data: bytes) -> bytes:
    """Bytes behind their number, in zigzag and seven bits each; below 8,192."""
    doubled = len(data) << 1
    return (bytes([doubled]) if doubled < 128 else bytes([doubled & 127 | 128, doubled >> 7])) + data


def produce(address: tuple[str, int], topic: str, value: bytes, header: tuple[bytes, bytes]) -> None:
    record = sized(b"\0\0\0\1" + sized(value) + b"\2" + sized(header[0]) + sized(header[1]))
    now = time.time_ns() // 1_000_000
    summed = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + record
    batch = struct.pack(">ibI", -1, 2, crc32c(summed)) + summed
    records = struct.pack(">qi", 0, len(batch)) + batch
    name = topic.encode()
    asked = struct.pack(">hhih", 0, 3, 1, -1) + struct.pack(">hhii", -1, 1, 5_000, 1)
    asked += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(asked)) + asked)
        connection.settimeout(10)
        assert connection.recv(1_000)


@pytest.fixture
def header_broker() -> Any:
    return Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "here"})


def address_of(header_broker: Producer) -> tuple[str, int]:
    (one,) = header_broker.list_topics(timeout=10).brokers.values()
    return one.host, one.port


def test_a_message_with_an_invalid_utf8_header_name_is_a_reject(header_broker):
    header_broker.produce("readings", reading("a", 0), partition=0)
    assert header_broker.flush(10) == 0
    host, port = address_of(header_broker)
    produce((host, port), "readings", reading("b", 0), (b"\xff\xfe", b"1"))
    produce((host, port), "readings", reading("c", 0), ("ü".encode(), b"1"))
    feed = KafkaPartitions(Cluster(f"{host}:{port}"), ("readings",), JsonMessages())
    reader = feed.reader(0, BEGIN)
    pieces = pieces_until(reader, lambda found: rows(found) >= 2)
    assert [name for one in pieces for name in names_of(one)] == ["a", "c"]
    assert [one.rejected for one in pieces if one.rejected] == [{RejectReason.MALFORMED_ROW: 1}]
    reader.close()


def test_a_message_with_unreadable_headers_is_not_read_as_a_release(header_broker):
    headers = [(SCHEMA, b"release"), (DOMAIN, b"another"), (QUERY, b"q")]
    header_broker.produce("rows", b"{}", key=b"1", headers=headers, partition=0)
    assert header_broker.flush(10) == 0
    host, port = address_of(header_broker)
    produce((host, port), "rows", b"{}", (b"\xff\xfe", b"1"))
    with pytest.raises(KafkaUnavailableError, match="holds messages that are no releases"):
        read_ids(Topic(Cluster(f"{host}:{port}"), "rows"), "d", "q", lambda _: None, patience_s=5)
