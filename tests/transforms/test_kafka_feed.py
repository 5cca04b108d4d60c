"""The Kafka source at a broker in memory: its contract, and what a real broker cannot be made to do at will."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from typing import Any

import pytest
from confluent_kafka import KafkaError

from quiltstream.schemas.secrets import FromEnvironment
from quiltstream.transforms.clocks import Reach
from quiltstream.transforms.decode_rows import Decoded
from quiltstream.transforms.feeds import BEGIN
from quiltstream.transforms.kafka_client import Cluster
from quiltstream.transforms.kafka_feed import KafkaFeed
from quiltstream.transforms.live import Pace, ReadPart
from quiltstream.transforms.marks import mark_of
from quiltstream.transforms.messages import Messages, SourceAwayError
from quiltstream.transforms.pulse import Pulse

from .kafka_contract import KafkaFeedContract, names_of, pieces_until, read, rows, settle
from .kafka_fake import FakeBroker
from .kafka_messages import ORIGIN, JsonMessages, reading
from .test_live import Estimator, Tracker, calls

HOUR = 3_600_000_000


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


class TestFake(KafkaFeedContract):
    @pytest.fixture
    def broker(self) -> FakeBroker:
        return FakeBroker()


def feed(broker: FakeBroker, topic: str, **changes: Any) -> KafkaFeed:
    given: dict[str, Any] = {"decoder": JsonMessages(), "discover_s": 0.01} | changes
    return KafkaFeed(broker.cluster, (topic,), **given)


def test_a_broker_that_is_away_is_told_asked_again_and_read_when_it_is_back(broker, caplog):
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


def test_a_topic_that_one_may_not_read_and_a_partition_without_a_leader_are_told(broker):
    topic = broker.topic(2)
    broker.refused[topic] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    reader = feed(broker, topic).reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == f"topic {topic} at fake:9092: the user may not use the topic; ask for the right to it"
    del broker.refused[topic]
    broker.leaderless = {1}
    pieces_until(reader, lambda _: reader.sources.get(f"{topic}/0") is Reach.END)
    assert reader.sources[f"{topic}/1"] is Reach.UNKNOWN


def test_a_password_that_is_wrong_is_told_and_not_only_that_nothing_answers(broker):
    topic = broker.topic(1)
    broker.away, broker.tells = True, KafkaError._AUTHENTICATION
    reader = feed(broker, topic).reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == f"topic {topic} at fake:9092: the broker does not accept user and password"


def test_messages_wait_while_what_their_decoder_needs_is_away(broker):
    class Needy(JsonMessages):
        away = True

        def decode(self, messages: Messages) -> list[Decoded]:
            if self.away:
                raise SourceAwayError("the registry does not answer")
            return super().decode(messages)

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


def test_a_decoder_with_a_memory_is_given_again_what_it_needs_and_nothing_of_it_is_passed_on_twice(broker):
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


def test_a_secret_is_nowhere_but_in_the_clients_options(monkeypatch):
    given: list[Any] = []

    def consumer(options: Any) -> Any:
        given.append(options)
        return FakeBroker().cluster.consumer(options)

    cluster = Cluster("h:1", {"sasl.password": FromEnvironment(env="QS_TEST_PASSWORD")}, consumer=consumer)
    made = KafkaFeed(cluster, ("t",), JsonMessages())
    reader = made.reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == (
        "Kafka at h:1: the environment variable QS_TEST_PASSWORD is not set here; set it for every worker"
    )
    monkeypatch.setenv("QS_TEST_PASSWORD", "hunter2")
    pieces_until(reader, lambda _: bool(given))
    assert given[0]["sasl.password"] == "hunter2"
    plain = KafkaFeed(Cluster("h:1", cluster.options), ("t",), JsonMessages())
    assert b"hunter2" not in pickle.dumps(plain)
    assert pickle.loads(pickle.dumps(plain)).cluster == plain.cluster
    assert "hunter2" not in repr(made) + repr(plain) + str(reader.trouble)


def test_an_option_that_librdkafka_does_not_know_is_told_without_its_value():
    made = KafkaFeed(Cluster("127.0.0.1:1", {"no.such.option": "hunter2"}), ("t",), JsonMessages())
    reader = made.reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == (
        "the options of Kafka are refused (_INVALID_ARG); check their names and values against librdkafka's"
    )


def test_what_is_missing_without_the_extra_is_told_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    reader = KafkaFeed(Cluster("127.0.0.1:1"), ("t",), JsonMessages()).reader(0, BEGIN)
    assert reader.read() is None
    assert reader.trouble == (
        "Kafka needs the package confluent-kafka, which is not installed here; pip install 'quiltstream[kafka]'"
    )


# The clock of a lane, with the live reader around it


def part_of(broker: FakeBroker, topic: str, wall: list[int], idle_us: int | None = None) -> ReadPart:
    pace = Pace(ORIGIN, lateness_us=HOUR, idle_us=idle_us, poll_s=0.0)
    made = ReadPart(feed(broker, topic), pace, now=lambda: wall[0])
    made.setup()
    return made


def clock_after(part: ReadPart, rest: Any, estimator: Estimator) -> tuple[int, bool, Any]:
    """How far the marks of some looks go in hours, whether they were replayed, and what is left."""
    until, replayed = -1, False
    for _ in range(4):
        made, rest = calls(part, rest, estimator)
        for mark in filter(None, map(mark_of, made)):
            until, replayed = (mark.until_us - ORIGIN) // HOUR, mark.replayed
    return until, replayed, rest


def test_a_lane_follows_its_slowest_partition_and_an_idle_one_after_a_while(broker):
    topic, wall, estimator = broker.topic(3), [ORIGIN + 100 * HOUR], Estimator()
    part = part_of(broker, topic, wall, idle_us=2 * HOUR)
    broker.send(topic, [(0, reading("a", 10 * HOUR)), (1, reading("b", 5 * HOUR))])
    until, _, rest = clock_after(part, part.initial_restriction(0), estimator)
    assert until == -1  # partition 2 has said nothing
    wall[0] += 2 * HOUR
    broker.send(topic, [(0, reading("a", 30 * HOUR)), (1, reading("b", 20 * HOUR)), (1, reading("b", 19 * HOUR))])
    until, replayed, rest = clock_after(part, rest, estimator)
    assert (until, replayed) == (19, False)
    broker.send(topic, [(2, reading("c", 25 * HOUR)), (1, reading("b", 50 * HOUR))])
    until, _, rest = clock_after(part, rest, estimator)
    assert until == 24
    # all are silent: the wall clock less idle and lateness
    wall[0] += 2 * HOUR
    until, _, rest = clock_after(part, rest, estimator)
    assert until == 104 - 3


def test_a_broker_that_is_away_lets_no_partition_become_idle(broker):
    topic, wall, estimator = broker.topic(2), [ORIGIN + 100 * HOUR], Estimator()
    part = part_of(broker, topic, wall, idle_us=2 * HOUR)
    broker.send(topic, [(0, reading("a", 10 * HOUR)), (1, reading("b", 5 * HOUR))])
    until, replayed, rest = clock_after(part, part.initial_restriction(0), estimator)
    assert (until, replayed) == (4, True)  # it was there when the job began
    broker.away = True
    for _ in range(3):
        wall[0] += 5 * HOUR
        until, _, rest = clock_after(part, rest, estimator)
        assert until == -1
    broker.away = False
    # what producers held back for the broker arrives within idle, and is not late
    broker.send(topic, [(0, reading("a", 20 * HOUR))])
    while part._readers[0][1].trouble is not None:
        until, _, rest = clock_after(part, rest, estimator)
        assert until == -1
    broker.send(topic, [(1, reading("b", 15 * HOUR))])
    until, _, rest = clock_after(part, rest, estimator)
    assert until == 14


def test_where_a_runner_closes_windows_by_any_lane_none_is_ahead_of_the_slowest(broker):
    Pulse.reset()
    topic = broker.topic(2)
    broker.send(topic, [(0, reading("a", 10 * HOUR)), (1, reading("b", 5 * HOUR))])
    pace = Pace(ORIGIN, poll_s=0.0, together=True)
    lanes, rests, estimators = [], [], [Estimator(), Estimator()]
    for lane in (0, 1):
        lanes.append(ReadPart(feed(broker, topic, lanes=2), pace, now=lambda: ORIGIN + 100 * HOUR))
        lanes[-1].setup()
        rests.append(lanes[-1].initial_restriction(lane))
    reached: list[tuple[int, int]] = []
    for lane in (0, 0, 0, 1, 1, 1, 0, 1):
        tracker = Tracker(rests[lane])
        list(lanes[lane].process(lane, tracker, estimators[lane]))
        rests[lane] = tracker.rest
        marks = [one.at.micros if one.at is not None else 0 for one in estimators]
        reached.append(tuple((mark - ORIGIN) // HOUR if mark else -1 for mark in marks))  # type: ignore[arg-type]
    # lane 0 has come to hour 10 by itself, and says so to nobody before lane 1 has come to hour 5
    assert reached[:3] == [(0, -1)] * 3
    assert reached[-1] == (5, 5)
    assert [Pulse.of(lane).clock_us for lane in (0, 1)] == [ORIGIN + 10 * HOUR, ORIGIN + 5 * HOUR]
    Pulse.reset()
