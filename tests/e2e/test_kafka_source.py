"""The Kafka source at a real broker: its contract, and what only a real one does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.progress import Reach

from ..transforms.kafka.contract import KafkaPartitionsContract, pieces_until, read, rows, settle
from ..transforms.kafka.messages import JsonMessages, reading
from .kafka import PASSWORD, KafkaBroker


class Real:
    """A real broker as the contract wants one."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self.servers = broker.servers
        self.cluster = Cluster(broker.servers)

    def topic(self, partitions: int, name: str | None = None) -> str:
        # what is lost ends where the broker, and not a producer, says so
        return self._broker.topic(partitions, name, message_timestamp_type="LogAppendTime")

    def make_anew(self, topic: str, partitions: int) -> None:
        admin = self._broker.admin()
        admin.delete_topics([topic])[topic].result(20)
        deadline = time.monotonic() + 20
        while topic in admin.list_topics(timeout=5).topics:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        self.topic(partitions, topic)

    def restart(self) -> None:
        self._broker.kill()
        self._broker.start()

    def grow(self, topic: str, partitions: int) -> None:
        self._broker.grow(topic, partitions)

    def send(self, topic: str, messages: Iterable[tuple[int, bytes | None]]) -> None:
        self._broker.send(topic, messages)

    def forget(self, topic: str, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition  # noqa: PLC0415 - an extra

        place = TopicPartition(topic, partition, before)
        admin = self._broker.admin()
        admin.delete_records([place])[place].result(20)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - an extra

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition(topic, *one) for one in offsets.items()], asynchronous=False)
        consumer.close()

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        kept = [offset for offset, _ in self._broker.committed(group, topic)]
        assert len(kept) == partitions
        return kept


class TestBroker(KafkaPartitionsContract):
    @pytest.fixture
    def broker(self, kafka: KafkaBroker) -> Real:
        return Real(kafka)


def feed(cluster: Cluster, topic: str) -> KafkaPartitions:
    return KafkaPartitions(cluster, (topic,), JsonMessages(), discover_s=0.2)


#: A message of this size is packed into some 30 kB, which any broker takes.
BOMB = 300_000_000
SENDING = {"compression.type": "zstd", "message.max.bytes": 1_000_000_000, "queue.buffering.max.kbytes": 2_000_000}


def test_a_batch_unpacking_above_the_limit_is_reported_and_others_are_read(kafka):
    """A batch of 116 kB of zeros took 2.1 GB; now its partition waits, and goes on when its records are deleted."""
    topic, real = kafka.topic(2), Real(kafka)
    kafka.send(topic, [(0, bytes(BOMB))], **SENDING)
    kafka.send(topic, [(0, reading("behind", 0)), (1, reading("beside", 0))])
    reader = feed(Cluster(kafka.servers), topic).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda pieces: rows(pieces) == 1 and reader.trouble is not None)
    assert [one.batches[0].column("series").to_pylist() for one in pieces if one.batches] == [["beside"]]
    assert reader.trouble is not None
    assert "has more bytes than receive.message.max.bytes" in reader.trouble
    assert f"{topic}/0" in reader.trouble
    real.forget(topic, 0, 1)
    assert read(reader, 1) == ["behind"]
    reader.close()


def test_a_missing_right_to_read_a_topic_is_reported_until_it_is_granted(kafka, monkeypatch):
    topic = kafka.topic(1)
    monkeypatch.setenv("QS_TEST_KAFKA", PASSWORD)
    options: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "stranger",
        "sasl.password": FromEnvironment(env="QS_TEST_KAFKA"),
    }
    kafka.allow("stranger", topic, "DESCRIBE")
    reader = feed(Cluster(kafka.sasl_servers, options), topic).reader(0, BEGIN)
    said = f"{topic}/0 at {kafka.sasl_servers}: the user may not use the topic; ask for the right to it"
    pieces_until(reader, lambda _: reader.trouble == said)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert reader.read() is None
        assert reader.trouble == said
        assert set(reader.sources.values()) == {Reach.UNKNOWN}
    # there is nothing to read, and it is seen all the same
    kafka.allow("stranger", topic, "READ")
    pieces_until(reader, lambda _: reader.trouble is None)
    settle(reader)
    kafka.send(topic, [(0, reading("a", 0))])
    assert read(reader, 1) == ["a"]
    reader.close()


@pytest.mark.parametrize(("how", "back"), [("hang", "go_on"), ("kill", "start")])
def test_a_hanging_or_killed_broker_leaves_every_partition_in_unknown_state(kafka, how, back):
    topic = kafka.topic(2)
    kafka.send(topic, [(n % 2, reading(f"a{n}", 0)) for n in range(100)])
    reader = feed(Cluster(kafka.servers), topic).reader(0, BEGIN)
    assert len(read(reader, 100)) == 100
    settle(reader)
    getattr(kafka, how)()
    try:
        # where the connection stands the client would believe for a minute that nothing comes
        pieces_until(reader, lambda _: set(reader.sources.values()) == {Reach.UNKNOWN})
        assert reader.trouble is not None
        assert kafka.servers in reader.trouble
    finally:
        getattr(kafka, back)()
    kafka.send(topic, [(n % 2, reading(f"b{n}", 0)) for n in range(100)])
    assert sorted(read(reader, 100)) == sorted(f"b{n}" for n in range(100))
    settle(reader)
    assert reader.trouble is None
    reader.close()
