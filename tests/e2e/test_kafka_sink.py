"""The Kafka sink at a real broker: what a topic holds after retries, kills and compaction."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.sink import Sender, Topic, read_ids
from quiltstream.transforms.sinks import release_messages

from ..deploy.flink_files import FLINK, run
from ..released import batch_from_releases
from ..transforms.test_sinks import ROWS, release
from .conftest import missing
from .installed import installed

BATCH = batch_from_releases(ROWS)


def ids_in(topic: Topic, domain: str = "d", query: str = 'q,"1"') -> list[str]:
    found: list[str] = []
    read_ids(topic, domain, query, found.append)
    return found


def send(topic: Topic, batch=BATCH) -> None:
    sender = Sender(topic, "sink.kafka")
    sender.send(release_messages(batch, topic.format))
    sender.finish()
    sender.close()


@pytest.mark.parametrize("form", ["json", "avro-single-object"])
def test_rows_sent_again_are_the_same_messages_and_compaction_keeps_one_each(kafka, form):
    # what is in the only segment of a partition is not compacted yet
    settings = {"cleanup_policy": "compact", "segment_ms": "600000", "min_cleanable_dirty_ratio": "0.01"}
    topic = Topic(Cluster(kafka.servers), kafka.topic(2, **settings, segment_bytes="1048576"), form)
    for _ in range(3):
        send(topic)
    assert Counter(ids_in(topic)) == {row.release_id: 3 for row in ROWS}
    values = {(one.key(), one.value(), tuple(one.headers())) for one in kafka.read(topic.name)}
    assert len(values) == len(ROWS)
    # a segment is compacted once another one has begun; a row of another query begins it
    kafka.set(topic.name, "segment.ms", "100")
    deadline = time.monotonic() + 60
    number = 100
    while len(ids_in(topic)) > len(ROWS):
        assert time.monotonic() < deadline, Counter(ids_in(topic))
        time.sleep(0.5)
        send(topic, batch_from_releases([release(number + n, query="other") for n in range(8)]))
        number += 8
    assert Counter(ids_in(topic)) == {row.release_id: 1 for row in ROWS}
    assert len(ids_in(topic, query="other")) == number - 100


def test_rows_sent_to_a_killed_broker_are_all_delivered_once(kafka):
    topic = Topic(Cluster(kafka.servers), kafka.topic(2))
    sender = Sender(topic, "sink.kafka")
    rows = [release(number) for number in range(5000)]
    sender.send(release_messages(batch_from_releases(rows[:2500]), "json"))
    kafka.kill()
    again = threading.Timer(1.0, kafka.start)
    again.start()
    sender.send(release_messages(batch_from_releases(rows[2500:]), "json"))
    sender.finish()
    again.join()
    assert Counter(ids_in(topic)) == {row.release_id: 1 for row in rows}


def test_the_shipped_script_makes_topics_and_leaves_existing_ones_alone(kafka, kafka_jars, tmp_path):
    tools = installed("kafka-tools")
    if not tools.folder.is_dir():
        missing("Kafka's tools are not there (run `.ci/servers.sh kafka`)")
    jars = f"{kafka_jars}/*:{tools.file('*.jar')}"
    java = f'exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "{jars}" org.apache.kafka.tools.TopicCommand'
    tool = tmp_path / "kafka-topics.sh"
    tool.write_text(f'#!/bin/sh\n{java} "$@"\n', encoding="utf-8")
    tool.chmod(0o755)

    def made() -> dict[str, tuple[int, str, str]]:
        """Of each topic the partitions, what happens to old messages, and when."""
        run(["bash", str(FLINK / "kafka" / "topics.sh"), kafka.servers], env={"KAFKA_BIN": str(tmp_path)})
        topics = kafka.admin().list_topics(timeout=20).topics
        found = {name: kafka.settings(name) for name in ("readings", "releases", "rejects")}
        return {
            name: (len(topics[name].partitions), told["cleanup.policy"], told["retention.ms"])
            for name, told in found.items()
        }

    first = made()
    assert first["readings"] == (6, "delete", str(21 * 86_400_000))
    assert first["releases"][:2] == (1, "compact")
    assert first["rejects"] == (1, "delete", str(7 * 86_400_000))
    kafka.set("readings", "retention.ms", "86400000")
    assert made() == first | {"readings": (6, "delete", "86400000")}
