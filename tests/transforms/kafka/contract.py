"""What the Kafka source does at every broker: inherit it and give a broker."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.transforms.kafka.partitions import Start
from quiltstream.transforms.kafka.source import KafkaPartitions, KafkaReader
from quiltstream.transforms.sources.contract import BEGIN, SourceBatch
from quiltstream.transforms.sources.progress import Reach

from .messages import JsonMessages, reading

#: Seconds that a broker has to hand over what it has.
PATIENCE_S = 30.0


def names_of(piece: SourceBatch) -> list[str]:
    return [name for batch in piece.batches for name in batch.column("series").to_pylist()]


def pieces_until(reader: KafkaReader, done: Callable[[list[SourceBatch]], bool]) -> list[SourceBatch]:
    """Pieces until a condition holds of all so far; a look that finds nothing counts as well."""
    pieces: list[SourceBatch] = []
    deadline = time.monotonic() + PATIENCE_S
    while not done(pieces):
        assert time.monotonic() < deadline, (reader.trouble, pieces)
        piece = reader.read()
        if piece is not None:
            pieces.append(piece)
    return pieces


def read(reader: KafkaReader, count: int) -> list[str]:
    return [name for one in pieces_until(reader, lambda pieces: rows(pieces) >= count) for name in names_of(one)]


def rows(pieces: list[SourceBatch]) -> int:
    return sum(one.rows for one in pieces)


def settle(reader: KafkaReader) -> None:
    """Read until every partition has been read to its end."""
    pieces_until(reader, lambda _: set(reader.sources.values()) == {Reach.END})


class KafkaPartitionsContract:
    @pytest.fixture
    def readers(self) -> Any:
        made: list[KafkaReader] = []
        yield made
        for one in made:
            one.close()

    @pytest.fixture
    def follow(self, broker: Any, readers: list[KafkaReader]) -> Callable[..., KafkaReader]:

        def made(topics: str | tuple[str, ...], lane: int = 0, position: str = BEGIN, **changes: Any) -> KafkaReader:
            named = (topics,) if isinstance(topics, str) else topics
            given: dict[str, Any] = {"discover_s": 0.2} | changes
            readers.append(KafkaPartitions(broker.cluster, named, JsonMessages(), **given).reader(lane, position))
            return readers[-1]

        return made

    def test_every_message_is_read_once_from_any_position_on(self, broker, follow):
        topic, seed = broker.topic(3), 11
        source = random.Random(seed)
        sent = [(source.randrange(3), f"m{n}") for n in range(2000)]
        broker.send(topic, [(partition, reading(name, 0)) for partition, name in sent])
        pieces = pieces_until(follow(topic), lambda pieces: rows(pieces) >= len(sent))
        for partition in range(3):
            mine = [name for one in pieces if one.source == f"{topic}/{partition}" for name in names_of(one)]
            assert mine == [name for place, name in sent if place == partition]
        for at in range(len(pieces) - 1):
            before = [name for one in pieces[: at + 1] for name in names_of(one)]
            after = read(follow(topic, position=pieces[at].position), len(sent) - len(before))
            assert Counter(before + after) == Counter(name for _, name in sent)

    @pytest.mark.parametrize(("again", "restarted"), [(True, False), (False, False), (True, True)])
    def test_a_recreated_topic_grown_past_the_offset_is_read_from_its_beginning(self, broker, follow, again, restarted):
        topic = broker.topic(2)
        broker.send(topic, [(one, reading("old", 0)) for one in (0, 0, 0)])
        reader = follow(topic)
        pieces_until(reader, lambda found: rows(found) == 3)
        if restarted:
            # a client that has seen the leaders chosen once more takes those of the new topic for stale
            broker.restart()
        broker.send(topic, [(1, reading("old", 0))])
        old = pieces_until(reader, lambda found: rows(found) == 1)
        settle(reader)
        ids = json.loads(old[-1].position)["ids"]
        if not again:
            reader.close()
        broker.make_anew(topic, 1)
        broker.send(topic, [(0, reading(f"new{n}", 0)) for n in range(8)])
        begun_us = time.time_ns() // 1_000
        if not again:
            reader = follow(topic, position=old[-1].position)
        # one that is still there may have read behind the old offset before it looks
        names: set[str] = set()

        def all_read(found: list[SourceBatch]) -> bool:
            names.update(*map(names_of, found))
            return len(names) == 8 and found[-1].rows > 0

        new = pieces_until(reader, all_read)
        lost = [one for one in new if RejectReason.DAMAGED_SOURCE in one.rejected]
        assert {one.source for one in lost} == {f"{topic}/0", f"{topic}/1"}
        assert min(one.lost_us or 0 for one in lost) > begun_us - 60_000_000
        settle(reader)
        # the partition that the new one has not is waited for no longer
        assert set(reader.sources) == {f"{topic}/0"}
        plain = json.loads(new[-1].position)
        assert plain["topics"] == {topic: {"0": 8}}
        assert plain["ids"] != ids
        # from no position behind it is anything left out
        for piece in lost:
            assert len(set(read(follow(topic, position=piece.position), 8))) == 8

    def test_partition_groups_cover_the_partitions_of_all_topics(self, broker, follow):
        topics = (broker.topic(3), broker.topic(1))
        for topic in topics:
            broker.send(topic, [(one, reading(f"{topic}-{one}", 0)) for one in range(3 if topic == topics[0] else 1)])
        found = [read(follow(topics, lane, lanes=2), 2) for lane in (0, 1)]
        assert found[0] != found[1]
        assert sorted(found[0] + found[1]) == sorted([f"{topics[0]}-{n}" for n in range(3)] + [f"{topics[1]}-0"])

    def test_a_position_of_another_number_of_partition_groups_is_refused(self, broker, follow):
        topic = broker.topic(1)
        first = pieces_until(follow(topic), bool)[0]
        with pytest.raises(SettingsError, match="lanes is 2, and the runner's state was made with 1"):
            follow(topic, position=first.position, lanes=2)

    def test_the_latest_offsets_are_queried_once_and_kept(self, broker, follow):
        topic = broker.topic(2)
        broker.send(topic, [(0, reading("old", 0)), (1, reading("old", 0))])
        (piece,) = pieces_until(follow(topic, start=Start("latest")), bool)
        assert piece.rows == 0
        broker.send(topic, [(0, reading("new", 0)), (1, reading("new", 0))])
        again = follow(topic, position=piece.position, start=Start("latest"))
        assert read(again, 2) == ["new", "new"]

    def test_a_start_instant_selects_messages_by_their_broker_timestamp(self, broker, follow):
        topic = broker.topic(2)
        broker.send(topic, [(0, reading("old", 0)), (1, reading("old", 0))])
        time.sleep(0.05)
        instant = time.time_ns() // 1_000
        time.sleep(0.05)
        broker.send(topic, [(0, reading("new", 0))])
        reader = follow(topic, start=Start("instant", instant))
        assert read(reader, 1) == ["new"]
        broker.send(topic, [(1, reading("newer", 0))])
        assert read(reader, 1) == ["newer"]

    def test_a_run_starts_at_group_offsets_and_does_not_change_them(self, broker, follow):
        topic, group = broker.topic(2), f"g-{time.time_ns()}"
        broker.send(topic, [(0, reading(f"a{n}", 0)) for n in range(4)] + [(1, reading("b", 0))])
        broker.commit(group, topic, {0: 3})
        reader = follow(topic, start=Start("group"), group=group)
        assert sorted(read(reader, 2)) == ["a3", "b"]
        reader.kept()
        settle(reader)
        assert broker.committed(group, topic, 2) == [3, -1001]

    def test_offsets_kept_by_the_runner_are_committed_for_monitoring(self, broker, follow):
        topic, group = broker.topic(1), f"g-{time.time_ns()}"
        broker.send(topic, [(0, reading(f"a{n}", 0)) for n in range(4)])
        reader = follow(topic, group=group)
        read(reader, 4)
        assert broker.committed(group, topic, 1) == [-1001]
        reader.kept()
        deadline = time.monotonic() + PATIENCE_S
        while broker.committed(group, topic, 1) != [4]:
            assert time.monotonic() < deadline
            reader.read()

    def test_a_partition_that_appears_is_found_and_read_from_its_beginning(self, broker, follow):
        topic = broker.topic(1)
        reader = follow(topic, start=Start("latest"))
        settle(reader)
        broker.grow(topic, 3)
        broker.send(topic, [(2, reading("first", 0)), (1, reading("other", 0))])
        assert sorted(read(reader, 2)) == ["first", "other"]
        settle(reader)
        assert set(reader.sources) == {f"{topic}/{n}" for n in range(3)}

    def test_no_batch_is_settled_before_every_partition_was_read_to_its_end(self, broker, follow):
        topic = broker.topic(2)
        broker.send(topic, [(n % 2, reading(f"a{n}", 0)) for n in range(100)])
        pieces = pieces_until(follow(topic), lambda pieces: rows(pieces) == 100)
        assert [one.settled for one in pieces] == [False] * (len(pieces) - 1) + [True]

    def test_a_non_reading_is_rejected_with_its_size_and_a_tombstone_is_skipped(self, broker, follow):
        topic = broker.topic(1)
        broker.send(topic, [(0, reading("a", 0)), (0, None), (0, b"{half"), (0, reading("b", 0)), (0, b"\xff" * 10)])
        pieces = pieces_until(follow(topic), lambda pieces: rows(pieces) == 2)
        rejects = [row for one in pieces for batch in one.rejects for row in batch.to_pylist()]
        assert rejects == [
            {"reason": RejectReason.MALFORMED_ROW.value, "source": f"{topic}/0", "position": 2, "size": 5},
            {"reason": RejectReason.MALFORMED_ROW.value, "source": f"{topic}/0", "position": 4, "size": 10},
        ]

    def test_a_missing_topic_is_reported_and_read_after_its_creation(self, broker, follow):
        name = f"late-{time.time_ns()}"
        reader = follow(name)
        deadline = time.monotonic() + PATIENCE_S
        while reader.trouble is None:
            assert time.monotonic() < deadline
            assert reader.read() is None
        assert reader.trouble == f"topic {name} at {broker.servers}: the topic is not there; make it, or check its name"
        assert reader.sources == {name: Reach.UNKNOWN}
        broker.topic(1, name)
        broker.send(name, [(0, reading("a", 0))])
        assert read(reader, 1) == ["a"]
        assert reader.trouble is None

    def test_messages_removed_unread_by_retention_are_reported(self, broker, follow):
        topic = broker.topic(1)
        sent_us = time.time_ns() // 1_000
        broker.send(topic, [(0, reading(f"a{n}", 0)) for n in range(10)])
        gone_us = time.time_ns() // 1_000
        begun = pieces_until(follow(topic), bool)[0].position
        broker.forget(topic, 0, 6)
        pieces = pieces_until(follow(topic, position=begun), lambda pieces: rows(pieces) == 4)
        assert [name for one in pieces for name in names_of(one)] == ["a6", "a7", "a8", "a9"]
        assert [one.rejected for one in pieces if one.rejected] == [{RejectReason.DAMAGED_SOURCE: 1}]
        # what was lost came before the first message that is left, by the broker's stamps
        (lost_us,) = {one.lost_us for one in pieces if one.rows}
        assert sent_us // 1_000 <= (lost_us or 0) // 1_000 <= gone_us // 1_000
        assert {one.lost_us for one in pieces_until(follow(topic), lambda all_: rows(all_) == 4)} >= {lost_us}
        assert json.loads(pieces[-1].position)["topics"] == {topic: {"0": 10}}

    def test_a_beginning_that_is_gone_is_said_and_windows_may_lack_readings(self, broker, follow, caplog):
        topic = broker.topic(1)
        broker.send(topic, [(0, reading(f"a{n}", 0)) for n in range(10)])
        broker.forget(topic, 0, 6)
        pieces = pieces_until(follow(topic), lambda found: rows(found) == 4)
        assert pieces[-1].lost_us is not None
        said = f"{topic}/0 at {broker.servers}: its messages before offset 6 are not there any more"
        assert [one.getMessage() for one in caplog.records].count(said) == 1
