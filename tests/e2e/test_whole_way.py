"""The whole way with real servers: meters, MQTT, the gateway, Kafka, a job on Flink, Kafka.

Gateway, TaskManager and Kafka are killed once each, between two readings, with others under way behind it. Mosquitto is
not: it confirms from memory, and what it may lose then has a test of its own. The truth is a plain computation over the
file that the readings are from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiltstream.pipelines import data

from ..examined import Tally
from .flink import FlinkCluster
from .kafka import KafkaBroker
from .london import HOMES, WINDOWS, plain_counts
from .mosquitto import MosquittoBroker
from .whole_way import (
    Way,
    account_of,
    by_name,
    rows_of,
    shipped,
    true_counts,
)

#: What a row of the live job says otherwise than one of the batch run: the counts are stamped, it says how it was read,
#: and the digest of the query tells where in a message a reading is.
OTHERWISE = frozenset({"counts", "estimate", "completeness", "query_digest", "release_id"})


@pytest.fixture
def way(
    mosquitto: MosquittoBroker,
    kafka: KafkaBroker,
    flink_cluster: FlinkCluster,
    postgres_url: str,
    tmp_path: Path,
) -> Iterator[Way]:
    made = Way(mosquitto, kafka, flink_cluster, postgres_url, data.path("lcl2013_halfhourly_60hh.parquet"), tmp_path)
    yield made
    made.close()


def send_with_faults(way: Way) -> dict[str, str]:
    """Everything that the meters have, with each fault in its place; what was on record before the second one."""
    way.meters.send(1.5)
    way.job.submit()
    way.job.released(1)
    # the gateway, with messages that Kafka does not have
    way.meters.send(1.75)
    way.gateway.kill()
    way.meters.send(2)
    way.gateway.start()
    way.meters.repeat(HOMES[0], 1)
    # the TaskManager, with a part of what its windows get
    way.job.wait_for_checkpoint()
    earlier = way.job.on_record()
    way.meters.send(2.5)
    way.job.cluster.kill_taskmanager()
    way.meters.send(3)
    way.job.cluster.start_taskmanager()
    way.job.released(2.5)
    # Kafka's broker, with readings and rows on their way to it and from it
    way.meters.send(3.25)
    way.kafka.kill()
    way.meters.send(3.5)
    way.gateway.wait_until("held", lambda: way.gateway.metrics()["in_flight"] > 0)
    way.kafka.start()
    way.meters.finish()
    way.job.released(4)
    return earlier


def test_readings_sent_by_mqtt_become_correct_rows_despite_kills_on_the_way(way: Way, tally: Tally) -> None:
    earlier = send_with_faults(way)
    way.end()

    # what the meters sent is in the topic, and nothing else is; what came twice was too late or changed nothing
    forwarded = [(dict(one.headers())["mqtt-topic"].decode(), one.value()) for one in way.read(way.readings)]
    assert set(forwarded) == set(way.meters.sent)
    assert len(forwarded) >= way.meters.messages
    assert {one.partition() for one in way.read(way.readings)} == {0, 1}
    assert way.dropped == 0
    rejected = Counter(json.loads(one.value())["reason"] for one in way.read(way.rejects))
    assert rejected.keys() <= {"late"}

    # every window is on record once, and is what a plain computation makes of the file
    with way.job.store() as store:
        rows, account = rows_of(store), account_of(store)
    assert {place: true_counts(row) for place, row in rows.items()} == plain_counts(way.file)
    assert len(rows) == len(WINDOWS) * len(HOMES)
    tally.take(way.job.examined(earlier))

    # what left the job is the record, byte for byte
    record = way.job.lines()
    sent = [one.value() for one in way.read(way.releases)]
    assert by_name(sent) == {name: {line} for name, line in record.items()}

    # the ledger is that of a batch run
    with way.job.batch(way.file) as store:
        batch, other = rows_of(store), account_of(store)
    assert account == other
    assert batch.keys() == rows.keys()
    for place, row in rows.items():
        told = batch[place].to_dict()
        assert {name for name, value in row.to_dict().items() if value != told[name]} <= OTHERWISE
        assert true_counts(row) == list(batch[place].counts)

    # and the group of the shipped settings tells monitoring how far the job has come
    kept = way.kafka.committed(shipped("settings.yaml")["source"]["kafka"]["group"], way.readings)
    assert all(0 < offset <= end for offset, end in kept), kept

    assert way.job.retries or way.restored >= 1
