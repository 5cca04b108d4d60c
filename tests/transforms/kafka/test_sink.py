"""Rows as messages, and what becomes of a bundle when the brokers do not take them."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace
from typing import Any

import fastavro
import numpy as np
import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.releases import RELEASE_AVRO
from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.schemas.table_files import RELEASES, in_one, write_stream
from quiltstream.transforms.common.batches import Rejects, reject_batch
from quiltstream.transforms.kafka.client import Cluster, KafkaUnavailableError
from quiltstream.transforms.kafka.sink import Sender, SendReleases, Topic
from quiltstream.transforms.payloads.avro import schema_fingerprint
from quiltstream.transforms.payloads.messages import Messages, rejects_of
from quiltstream.transforms.sinks import reject_messages, release_messages, single_object_head

from ...released import batch_from_releases
from ..test_sinks import ROWS
from .fake import FakeBroker

BATCH = batch_from_releases(ROWS)


def test_a_release_is_a_message_under_its_id_with_the_same_json_as_in_a_file():
    stream = io.BytesIO()
    write_stream(stream, "jsonl", in_one(RELEASES.sorted(RELEASES.table([BATCH]))), RELEASES)
    lines = stream.getvalue().splitlines()
    messages = list(release_messages(BATCH, "json"))
    assert [value for _, value, _ in messages] == lines
    assert [key for key, _, _ in messages] == [json.loads(line)["release_id"].encode() for line in lines]
    assert dict(messages[0][2]) == {
        "content-type": b"application/json",
        "quiltstream.schema": b"release",
        "quiltstream.version": b"1",
        "quiltstream.domain": b"d",
        "quiltstream.query": b'q,"1"',
    }
    assert list(release_messages(BATCH, "json")) == messages


def test_a_release_in_avro_is_a_single_object_with_the_fingerprint_of_its_schema():
    messages = list(release_messages(BATCH, "avro-single-object"))
    head = single_object_head(RELEASE_AVRO)
    assert int.from_bytes(head[2:], "little") == schema_fingerprint(RELEASE_AVRO)
    schema = fastavro.parse_schema(RELEASE_AVRO)
    found: list[Any] = []
    for _, value, headers in messages:
        assert value.startswith(head)
        assert dict(headers)["content-type"] == b"avro/binary"
        found.append(fastavro.schemaless_reader(io.BytesIO(value[len(head) :]), schema, None))
    expected = RELEASES.sorted(RELEASES.table([BATCH])).to_pylist()
    assert found == expected


def test_a_reject_contains_only_the_position_and_size_of_its_message():
    payloads = [b"12345", None, b"1"]
    empty = [()] * 3
    numbers = np.arange(7, 10, dtype=np.int64)
    messages = Messages(payloads, ["t"] * 3, [None] * 3, empty, numbers, numbers)
    rejects = reject_batch("t/0", [rejects_of(RejectReason.MALFORMED_ROW, messages, np.array([0, 2]))])
    sent = list(reject_messages(rejects, "json"))
    assert [(key, json.loads(value)) for key, value, _ in sent] == [
        (None, {"reason": "malformed-row", "source": "t/0", "position": 7, "size": 5}),
        (None, {"reason": "malformed-row", "source": "t/0", "position": 9, "size": 1}),
    ]
    assert dict(sent[0][2])["quiltstream.schema"] == b"reject"
    row = reject_batch("a.csv", [Rejects(RejectReason.MALFORMED_ROW, np.array([7], dtype=np.int64))])
    plain = list(reject_messages(row, "json"))
    assert json.loads(plain[0][1]) == {"reason": "malformed-row", "source": "a.csv", "position": 7, "size": None}
    assert len(list(reject_messages(rejects, "avro-single-object"))) == 2


def test_a_bundle_ends_when_everything_was_taken_and_waits_while_the_client_is_full():
    broker = FakeBroker()
    sender = Sender(Topic(broker.cluster, broker.topic(1, "out")), "sink.kafka")
    sender.finish()  # nothing was sent: nobody is asked
    assert broker.producers == []
    sender.send(list(release_messages(BATCH, "json"))[:1])
    broker.full = 3
    sender.send(list(release_messages(BATCH, "json"))[1:])
    assert broker.topics["out"][0].messages == []
    sender.finish()
    assert len(broker.topics["out"][0].messages) == len(ROWS)


def test_a_refused_row_fails_the_bundle_and_is_sent_again_with_the_same_key():
    broker = FakeBroker()
    sender = Sender(Topic(broker.cluster, broker.topic(1, "out")), "sink.kafka")
    sender.send(release_messages(BATCH, "json"))
    broker.refuses = {1}
    with pytest.raises(KafkaUnavailableError, match=r"sink\.kafka: topic out at fake:9092: no broker took a message"):
        sender.finish()
    broker.refuses = set()
    sender.send(release_messages(BATCH, "json"))
    sender.finish()
    assert len(broker.producers) == 2
    sent = [(key, value) for value, _, key, _ in broker.topics["out"][0].messages]
    every = [(key, value) for key, value, _ in release_messages(BATCH, "json")]
    assert sent == [*every[:1], *every[2:], *every]


def test_a_sink_is_pickled_without_its_secrets(monkeypatch):
    monkeypatch.setenv("QS_TEST_SINK", "hunter2")
    topic = Topic(Cluster("h:1", {"sasl.password": FromEnvironment(env="QS_TEST_SINK")}), "out")
    given: list[Any] = []
    replace(topic.cluster, producer=given.append).produce({})
    assert given[0]["sasl.password"] == "hunter2"
    assert b"hunter2" not in pickle.dumps(SendReleases(topic))
    assert "hunter2" not in repr(topic)
