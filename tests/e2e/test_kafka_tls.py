"""Kafka by TLS: the clients of source and sink at a real broker, where they sign in by a certificate or a password."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.connectors.kafka import asked
from quiltstream.pipelines.errors import CommandError
from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.sink import Topic, look_to_write, read_ids
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.sinks import release_messages
from quiltstream.transforms.sources.contract import BEGIN

from ..released import batch_from_releases
from ..transforms.kafka.contract import pieces_until, read
from ..transforms.kafka.messages import JsonMessages, reading
from ..transforms.test_sinks import ROWS
from .kafka import PASSWORD, USER, KafkaBroker

VARIABLE = "QS_TEST_KAFKA_SECRET"


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


def by_password(broker: KafkaBroker, user: str = USER) -> Cluster:
    """The broker by TLS, for a user with a password: the options of the guide's example."""
    return Cluster(
        broker.scram_servers,
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": FromEnvironment(env=VARIABLE),
            "ssl.ca.location": str(broker.folder / "ca.pem"),
            "debug": "security,conf",
        },
    )


def feed(cluster: Cluster, topic: str) -> KafkaPartitions:
    return KafkaPartitions(cluster, (topic,), JsonMessages(), discover_s=0.2)


@pytest.mark.parametrize("by", ["certificate", "password"])
def test_readings_and_rows_are_transferred_by_tls_without_leaking_the_password(
    broker: KafkaBroker, cluster: Cluster, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    """The password is that of the certificate's key, or the user's."""
    caplog.set_level(logging.DEBUG)
    cluster = cluster if by == "certificate" else by_password(broker)
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


@pytest.mark.parametrize("by", ["certificate", "password"])
def test_a_refused_reader_goes_on_with_the_secret_or_certificate_of_then(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    caplog.set_level(logging.DEBUG)
    authority, topic = tmp_path / "ca.pem", broker.topic(1)
    other, right = ("other.pem", PASSWORD) if by == "certificate" else ("ca.pem", "hunter2")
    authority.write_bytes((broker.folder / other).read_bytes())
    monkeypatch.setenv(VARIABLE, right)
    made = Cluster(broker.tls_servers, options(broker)) if by == "certificate" else by_password(broker)
    cluster = replace(made, options={**made.options, "ssl.ca.location": str(authority)})
    broker.send(topic, [(0, reading("a", 0))])
    reader = feed(cluster, topic).reader(0, BEGIN)
    said = "the encrypted connection cannot be made" if by == "certificate" else "does not accept user and password"
    pieces_until(reader, lambda _: said in (reader.trouble or ""))
    with pytest.raises(CommandError, match=said) as told:
        asked("sink.kafka", lambda: look_to_write(Topic(cluster, topic)))
    assert not [one for one in (PASSWORD, "hunter2") if one in f"{reader.trouble}{told.value}{caplog.text}"]
    authority.write_bytes((broker.folder / "ca.pem").read_bytes())
    monkeypatch.setenv(VARIABLE, PASSWORD)
    assert read(reader, 1) == ["a"]
    assert reader.trouble is None
    reader.close()
