"""Kafka by TLS, both sides with certificates: the source's and the sink's own clients at a real broker."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.failures import CommandError
from quiltstream.pipelines.places.kafka import patiently
from quiltstream.schemas.releases import batch_from_releases
from quiltstream.schemas.secrets import FromEnvironment
from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.feed import KafkaFeed
from quiltstream.transforms.kafka.look import look_to_write
from quiltstream.transforms.kafka.sink import Topic
from quiltstream.transforms.kafka.topic import read_ids
from quiltstream.transforms.live.feeds import BEGIN
from quiltstream.transforms.message_sink import release_messages

from ..transforms.kafka.contract import pieces_until, read
from ..transforms.kafka.messages import JsonMessages, reading
from ..transforms.test_sinks import ROWS
from .kafka import PASSWORD, KafkaBroker

VARIABLE = "QS_TEST_KAFKA_KEY"


@pytest.fixture(scope="module")
def broker(kafka_jars: Path) -> Iterator[KafkaBroker]:
    """A broker that listens by TLS as well."""
    made = KafkaBroker(kafka_jars, tls=True)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """It by TLS; the library is told to say all it can of connections."""
    monkeypatch.setenv(VARIABLE, PASSWORD)
    return Cluster(broker.tls_servers, options(broker))


def options(broker: KafkaBroker, authority: str = "ca.pem") -> dict[str, Any]:
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(broker.folder / authority),
        "ssl.certificate.location": str(broker.folder / "client.pem"),
        "ssl.key.location": str(broker.folder / "client.key"),
        "ssl.key.password": FromEnvironment(env=VARIABLE),
        "debug": "security,conf",
    }


def feed(cluster: Cluster, topic: str) -> KafkaFeed:
    return KafkaFeed(cluster, (topic,), JsonMessages(), discover_s=0.2)


def test_readings_come_and_rows_go_by_tls_and_the_keys_password_is_nowhere_else(
    broker: KafkaBroker, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source, sink = feed(cluster, broker.topic(1)), Topic(cluster, broker.topic(1))
    broker.send(source.topics[0], [(0, reading("a", 0))])
    reader = pickle.loads(pickle.dumps(source)).reader(0, BEGIN)
    assert read(reader, 1) == ["a"]
    reader.close()
    look_to_write(sink)
    sender = pickle.loads(pickle.dumps(sink)).sender("sink.kafka")
    sender.send(release_messages(batch_from_releases(ROWS), "json"))
    sender.finish()
    sender.close()
    found: list[str] = []
    read_ids(sink, ROWS[0].domain, ROWS[0].query, found.append)
    assert sorted(found) == sorted(one.release_id for one in ROWS)
    assert "ssl" in caplog.text.lower(), "the library said something of the connections"
    shown = caplog.text + repr(source) + repr(sink) + str(pickle.dumps([source, sink]))
    assert PASSWORD not in shown


def test_a_broker_whose_authority_is_a_stranger_is_told(broker: KafkaBroker, cluster: Cluster) -> None:
    strange = Cluster(cluster.servers, options(broker, "other.pem"))
    said = "the encrypted connection cannot be made; check certificates and security.protocol"
    topic = broker.topic(1)
    broker.send(topic, [(0, reading("a", 0))])
    reader = feed(strange, topic).reader(0, BEGIN)
    assert not [one for one in pieces_until(reader, lambda _: said in (reader.trouble or "")) if one.batches]
    reader.close()
    with pytest.raises(CommandError, match=said):
        patiently("sink.kafka", lambda: look_to_write(Topic(strange, topic)))


def test_a_key_whose_password_is_another_is_told_without_either(
    broker: KafkaBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(VARIABLE, "hunter2")
    reader = feed(cluster, broker.topic(1)).reader(0, BEGIN)
    pieces_until(reader, lambda _: "the options of Kafka are refused" in (reader.trouble or ""))
    assert "hunter2" not in str(reader.trouble) + caplog.text
    reader.close()
