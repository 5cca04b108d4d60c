"""The clock of a lane, with the live reader around it, and what it says of windows that may lack readings."""

from __future__ import annotations

import time
from copy import copy
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE

from quiltstream.transforms.completeness import Punctuation
from quiltstream.transforms.kafka.partitions import Start
from quiltstream.transforms.sources.progress import Heartbeat
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ..sources.streams import Estimator, Tracker, calls
from .fake import FakeBroker
from .messages import ORIGIN, reading
from .test_source import HOUR, feed


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def part_of(broker: FakeBroker, topic: str, wall: list[int], idle_us: int | None = None) -> ReadPart:
    pace = PollingPolicy(ORIGIN, lateness_us=HOUR, idle_us=idle_us, poll_s=0.0)
    made = ReadPart(feed(broker, topic), pace, now=lambda: wall[0])
    made.setup()
    return made


def clock_after(part: ReadPart, rest: Any, estimator: Estimator) -> tuple[int, bool, Any]:
    """How far the marks of some looks go in hours, whether they were replayed, and what is left."""
    until, replayed = -1, False
    for _ in range(4):
        made, rest = calls(part, rest, estimator)
        for mark in (one for one in made if isinstance(one, Punctuation)):
            until, replayed = (mark.until_us - ORIGIN) // HOUR, mark.replayed
    return until, replayed, rest


@pytest.mark.night
def test_no_partition_becomes_idle_while_the_broker_is_unavailable(broker):
    topic, wall, estimator = broker.topic(2), [ORIGIN + 100 * HOUR], Estimator()
    part = part_of(broker, topic, wall, idle_us=2 * HOUR)
    broker.send(topic, [(0, reading("a", 10 * HOUR)), (1, reading("b", 5 * HOUR))])
    until, replayed, rest = clock_after(part, part.initial_restriction(0), estimator)
    assert (until, replayed) == (4, True)  # it was there when the job began
    Heartbeat.reset()
    broker.away = True
    for _ in range(3):
        wall[0] += 5 * HOUR
        until, _, rest = clock_after(part, rest, estimator)
        assert until == -1
    broker.away = False
    # what producers held back for the broker arrives within idle, and is not late
    broker.send(topic, [(0, reading("a", 20 * HOUR))])
    while Heartbeat.of(0).trouble is not None:
        until, _, rest = clock_after(part, rest, estimator)
        assert until == -1
    broker.send(topic, [(1, reading("b", 15 * HOUR))])
    until, _, rest = clock_after(part, rest, estimator)
    assert until == 14


def test_jointly_watermarked_partition_groups_follow_the_slowest(broker):
    Heartbeat.reset()
    topic = broker.topic(2)
    broker.send(topic, [(0, reading("a", 10 * HOUR)), (1, reading("b", 5 * HOUR))])
    pace = PollingPolicy(ORIGIN, poll_s=0.0, together=True)
    rests, estimators = [], [Estimator(), Estimator()]
    graph = ReadPart(feed(broker, topic, lanes=2), pace, now=lambda: ORIGIN + 100 * HOUR)
    lanes = [copy(graph), copy(graph)]  # as a process has the step of a graph
    for lane in (0, 1):
        lanes[lane].setup()
        rests.append(lanes[lane].initial_restriction(lane))
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
    assert [Heartbeat.of(lane).clock_us for lane in (0, 1)] == [ORIGIN + 10 * HOUR, ORIGIN + 5 * HOUR]
    Heartbeat.reset()


def stamped(series: str, hour: int, at_hour: float) -> tuple[bytes, int]:
    """A reading of an hour, in a message that the broker stamped at another."""
    return reading(series, hour * HOUR), (ORIGIN + int(at_hour * HOUR)) // 1_000


def test_a_meter_whose_clock_is_hours_ahead_closes_no_window_of_a_backlog(broker):
    topic, wall, estimator = broker.topic(1), [ORIGIN + 100 * HOUR], Estimator()
    log = broker.topics[topic][0].messages
    part = part_of(broker, topic, wall)
    log += [stamped("a", hour, hour + 0.5) for hour in range(4)]
    log.append(stamped("fast", 9, 3.5))
    until, _, rest = clock_after(part, part.initial_restriction(0), estimator)
    assert until == 2  # half past three less an hour, whatever the fast one says
    # what the broker took later is not late by it, and a clock that has jumped counts for nothing
    log += [stamped("a", 4, 5.0), stamped("jumped", 80, 5.0)]
    until, _, rest = clock_after(part, rest, estimator)
    assert until == 3
    log.append(stamped("jumped", 80, 60.0))
    until, _, _ = clock_after(part, rest, estimator)
    assert until == 59


@pytest.mark.parametrize("behind", [0.5, 48, 200_000])
def test_a_producer_whose_clock_is_behind_holds_no_window(broker, behind):
    topic, wall, estimator = broker.topic(2), [ORIGIN + 100 * HOUR], Estimator()
    broker.stamps = TIMESTAMP_CREATE_TIME
    right, wrong = (log.messages for log in broker.topics[topic])
    part = part_of(broker, topic, wall)
    rest, until = part.initial_restriction(0), -1
    for hour in range(80, 100, 5):
        right.append(stamped("a", hour, hour))
        wrong += [stamped(name, hour, hour - behind) for name in "bcd"]
        until, _, rest = clock_after(part, rest, estimator)
        assert until == hour - 1


def lost_after(part: ReadPart, rest: Any, estimator: Estimator) -> tuple[list[Any], Any]:
    """Of each mark of some looks, the hour before which windows may lack readings; and what is left."""
    found: list[Any] = []
    for _ in range(4):
        made, rest = calls(part, rest, estimator)
        lost = [one.lost_us for one in made if isinstance(one, Punctuation)]
        found += [None if one is None else (one - ORIGIN) / HOUR for one in lost]
    return found, rest


def test_only_windows_over_a_retention_gap_are_marked(broker):
    topic, wall, estimator = broker.topic(1), [ORIGIN + 100 * HOUR], Estimator()
    log = broker.topics[topic][0]
    part = part_of(broker, topic, wall)
    log.messages += [stamped("a", hour, hour + 0.5) for hour in range(10)]
    found, rest = lost_after(part, part.initial_restriction(0), estimator)
    assert set(found) == {None}
    log.messages += [stamped("a", hour, hour + 0.5) for hour in range(10, 30)]
    broker.forget(topic, 0, 20)
    found, rest = lost_after(part, rest, estimator)
    assert found[-1] == 20.5  # as the first message that is left was stamped
    # another worker takes it up, and still knows
    log.messages.append(stamped("a", 40, 40.5))
    again = part_of(broker, topic, wall)
    found, _ = lost_after(again, rest, estimator)
    assert found[-1] == 20.5


@pytest.mark.night
@pytest.mark.parametrize(
    ("kind", "stamp_ms"),
    [
        (TIMESTAMP_CREATE_TIME, ORIGIN // 1_000),
        (TIMESTAMP_CREATE_TIME, 0),
        (TIMESTAMP_LOG_APPEND_TIME, 0),
        (TIMESTAMP_NOT_AVAILABLE, -1),
    ],
)
def test_only_broker_timestamps_bound_a_retention_gap(broker, kind, stamp_ms):
    topic, wall, estimator = broker.topic(1), [ORIGIN + 100 * HOUR], Estimator()
    broker.stamps = kind
    log = broker.topics[topic][0]
    part = part_of(broker, topic, wall)
    log.messages += [stamped("a", hour, hour + 0.5) for hour in range(10)]
    _, rest = lost_after(part, part.initial_restriction(0), estimator)
    log.messages += [(reading("a", hour * HOUR), stamp_ms) for hour in range(10, 30)]
    broker.forget(topic, 0, 20)
    begun_us = time.time_ns() // 1_000
    found, rest = lost_after(part, rest, estimator)
    assert found[-1] >= (begun_us - ORIGIN) / HOUR  # where it was found
    # a later message closes nothing either
    log.messages.append(stamped("a", 40, 40.5))
    broker.stamps = TIMESTAMP_LOG_APPEND_TIME
    again, _ = lost_after(part, rest, estimator)
    assert set(again) == {found[-1]}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Start(), 4.5),
        (Start("instant", ORIGIN + 2 * HOUR), 4.5),
        (Start("instant", ORIGIN + 6 * HOUR), 6.0),  # what it leaves out came before that
        (Start("group"), 5.5),
    ],
)
def test_messages_before_the_start_of_a_run_count_as_lost(broker, start, expected):
    topic, wall, estimator = broker.topic(1), [ORIGIN + 100 * HOUR], Estimator()
    broker.topics[topic][0].messages += [stamped("a", hour, hour + 0.5) for hour in range(10)]
    broker.forget(topic, 0, 4)
    broker.commit("g", topic, {0: 5})
    part = ReadPart(feed(broker, topic, start=start, group="g"), PollingPolicy(ORIGIN, poll_s=0.0), now=lambda: wall[0])
    part.setup()
    found, _ = lost_after(part, part.initial_restriction(0), estimator)
    assert set(found) == {expected}
