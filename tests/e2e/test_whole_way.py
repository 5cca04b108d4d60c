"""The whole way with real servers: meters, MQTT, the gateway, Kafka, a job on Flink, Kafka.

The settings are the shipped ones of ``deploy/flink``, with hosts, topics and windows of the test's own. Gateway,
TaskManager and Kafka are killed once each, between two readings, with others under way. Mosquitto is not: it confirms
from memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import polars as pl
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from ..deploy.flink_files import FLINK
from ..examined import Tally, every
from .flink import FlinkCluster
from .flink_bench import FlinkBench
from .gateway_job import GatewayProcess
from .kafka import KafkaBroker
from .kafka_topics import TopicBench, as_it_comes
from .live_bench import BELIEF, DAY, DAY_US, HOUR, NAMES, ORIGIN, readings, truth
from .mosquitto import MosquittoBroker

DAYS = 4

#: Places of the shipped Kafka section that are the test's own.
OWN = ("servers", "topic")


def shipped(name: str) -> dict[str, Any]:
    """A settings file of the deployment."""
    return yaml.safe_load((FLINK / "settings" / name).read_text(encoding="utf-8"))


class Meters:
    """A meter for each series, all in one client; readings come out of their order by less than three hours."""

    def __init__(self, port: int, frame: pl.DataFrame) -> None:
        arriving = as_it_comes(frame, 3 * HOUR, seed=5)
        # so many that came before the time of a reading are sent when the time has come
        due = ((pl.col("time").cum_max() - ORIGIN) / DAY_US).alias("due")
        self._rows = arriving.with_columns(due).rows()
        self.sent: list[tuple[str, bytes]] = []
        self.messages = 0
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="meters", protocol=mqtt.MQTTv5)
        self._client.connect("127.0.0.1", port, clean_start=False)
        self._client.loop_start()

    def _publish(self, messages: list[tuple[str, bytes]]) -> None:
        for one in [self._client.publish(*message, qos=1) for message in messages]:
            one.wait_for_publish(120)
            assert one.is_published(), "a message is not confirmed"
        self.messages += len(messages)

    def send(self, day: float) -> None:
        """Publish what is due until then, and wait until the broker has confirmed it."""
        new: list[tuple[str, bytes]] = []
        for name, time_us, value, due in self._rows[len(self.sent) :]:
            if due >= day:
                break
            body = json.dumps({"ts": time_us // 1_000, "kwh": value / 2_000}).encode()
            new.append((f"meters/{name}/readings", body))
        self._publish(new)
        self.sent += new

    def repeat(self, name: str) -> None:
        """One meter is not sure of what it sent, and sends it again."""
        self._publish([one for one in self.sent if one[0] == f"meters/{name}/readings"])

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def bench(flink_cluster: FlinkCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
    made = FlinkBench(tmp_path / "job", flink_cluster, postgres_url)
    made.from_ledger = True
    yield made
    made.close()


@pytest.fixture
def topics(kafka: KafkaBroker, bench: FlinkBench) -> Iterator[TopicBench]:
    """The shipped job, without groups."""
    made, document = TopicBench(kafka, bench, 2), shipped("settings.yaml")
    given = {name: value for name, value in document["source"]["kafka"].items() if name not in OWN}
    made.settings(
        given,
        readings=document["readings"],
        slots=document["slots"] | {"origin": "2013-01-01"},
        states=document["states"],
        missing=document["missing"],
        model=BELIEF,
        windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}", "lateness": "6h"},
        live=document["live"] | {"poll": "200ms"},
        privacy=document["privacy"],
    )
    yield made
    if not kafka.runs:
        kafka.start()


@pytest.fixture
def gateway(mosquitto: MosquittoBroker, kafka: KafkaBroker, topics: TopicBench) -> Iterator[GatewayProcess]:
    """The shipped gateway."""
    document = shipped("gateway.yaml")
    for name in ("tls", "user", "password"):
        del document["mqtt"][name]
    document["mqtt"] |= {"host": "127.0.0.1", "port": mosquitto.port}
    document["forward"]["to"]["kafka"] |= {"servers": kafka.servers, "topic": topics.source}
    made = GatewayProcess(document | {"metrics": {"port": 0}})
    made.start()
    yield made
    made.close()


def test_readings_sent_by_mqtt_become_correct_rows_despite_kills_on_the_way(
    mosquitto: MosquittoBroker,
    gateway: GatewayProcess,
    kafka: KafkaBroker,
    topics: TopicBench,
    bench: FlinkBench,
    tally: Tally,
    request: pytest.FixtureRequest,
) -> None:
    frame = readings(DAYS + 0.5, seed=5)
    meters = Meters(mosquitto.port, frame)
    request.addfinalizer(meters.close)
    meters.send(1.5)
    bench.submit()
    bench.wait_for_days(1)
    # the gateway, with messages that Kafka does not have
    meters.send(1.75)
    gateway.kill()
    meters.send(2)
    gateway.start()
    meters.repeat(NAMES[0])
    # the TaskManager, with a part of what its windows get
    bench.wait_for_checkpoint()
    earlier = bench.on_record()
    meters.send(2.5)
    bench.cluster.kill_taskmanager()
    meters.send(3)
    bench.cluster.start_taskmanager()
    bench.wait_for_days(2)
    # Kafka's broker, with readings and rows on their way to it and from it
    meters.send(3.25)
    kafka.kill()
    meters.send(3.5)
    gateway.wait_until("held", lambda: gateway.metrics()["in_flight"] > 0)
    kafka.start()
    meters.send(DAYS + 1)
    bench.wait_for_days(DAYS)
    bench.until(lambda: topics.sunk().keys() == bench.on_record().keys(), "what is on record is in Kafka")
    restored = bench.cluster.checkpoints(bench.job)["counts"]["restored"]
    bench.cluster.cancel(bench.job)
    assert sum(value for name, value in gateway.metrics().items() if name.startswith("dropped_total")) == 0
    assert gateway.stop() == 143

    # what the meters sent is in the topic, and nothing else is; what came twice was too late or changed nothing
    forwarded = kafka.read(topics.source)
    assert {(dict(one.headers())["mqtt-topic"].decode(), one.value()) for one in forwarded} == set(meters.sent)
    assert len(forwarded) >= meters.messages
    assert {one.partition() for one in forwarded} == {0, 1}
    rejected = Counter(json.loads(one.value())["reason"] for one in kafka.read(topics.rejects))
    assert rejected.keys() <= {"late"}

    # every window is on record once, and is the truth; what left the job is the record, byte for byte
    assert bench.counts() == truth(frame, range(DAYS))
    found, files = bench.examined(every(DAY, DAY, DAYS * DAY), earlier)
    tally.take(found)
    lines = {line for text in files.values() for line in text.splitlines()}
    assert {one.value() for one in kafka.read(topics.sink)} == lines

    # and the group of the shipped settings tells monitoring how far the job has come
    kept = kafka.committed(shipped("settings.yaml")["source"]["kafka"]["group"], topics.source)
    assert all(0 < offset <= end for offset, end in kept), kept
    assert bench.retries or restored >= 1
