"""The Kafka sink at a real broker that is killed, and the script that makes its topics."""

from __future__ import annotations

import threading
from collections import Counter

from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.sink import Sender, Topic, read_ids
from quiltstream.transforms.sinks import release_messages

from ..deploy.flink_files import FLINK, run
from ..released import batch_from_releases
from ..transforms.test_sinks import release
from .conftest import missing
from .installed import installed


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
    found: list[str] = []
    read_ids(topic, rows[0].domain, rows[0].query, found.append)
    assert Counter(found) == {row.release_id: 1 for row in rows}


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
