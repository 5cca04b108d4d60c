"""Schemas by their numbers, and rows in the wire format, with the mock of Confluent's own client.

The end-to-end tests ask a real registry.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.schemas.table_files import RELEASES
from quiltstream.transforms.kafka.client import Cluster, KafkaUnavailableError
from quiltstream.transforms.kafka.schema_registry import RegistryNumbers, RegistrySchemas, text_of
from quiltstream.transforms.kafka.sink import Sender, SendReleases, Topic
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import SourceAwayError
from quiltstream.transforms.sinks import REJECTS, release_messages
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.progress import Heartbeat

from ...released import batch_from_releases
from ..test_sinks import ROWS
from .contract import pieces_until
from .contract import rows as row_count
from .fake import FakeBroker
from .messages import ORIGIN

READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "test",
    "fields": [{"name": "series", "type": "string"}, {"name": "value", "type": "double"}],
}


URL = "mock://quiltstream"
BATCH = batch_from_releases(ROWS)


class Counted:
    """A registry's client whose questions are counted, and which may be made to fail."""

    def __init__(self, inner: Any = None) -> None:
        self.inner: Any = inner or SchemaRegistryClient.new_client({"url": URL})
        self.asked: list[str] = []
        self.fails: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.asked.append(name.partition("_")[0])
            if self.fails:
                raise self.fails.pop(0)
            return getattr(self.inner, name)(*given)

        return call


@pytest.fixture
def registry() -> Counted:
    return Counted()


def made(client: Any, clock: Any = lambda: 0.0) -> RegistrySchemas:
    return RegistrySchemas(URL, client=lambda _: client, clock=clock)


def test_a_schema_is_requested_once(registry):
    number = registry.inner.register_schema("meters", Schema(json.dumps(READING), "AVRO"))
    schemas = made(registry)
    assert [schemas(number), schemas(number)] == [READING, READING]
    assert registry.asked == ["get"]


def test_types_referenced_by_a_schema_are_inlined_once(registry):
    registry.inner.register_schema("reading", Schema(json.dumps(READING), "AVRO"))
    outer = {
        "type": "record",
        "name": "Batch",
        "namespace": "test",
        "fields": [
            {"name": "first", "type": "Reading"},
            {"name": "more", "type": {"type": "array", "items": ["null", "test.Reading"]}},
            {"name": "named", "type": {"type": "map", "values": "test.Reading"}},
        ],
    }
    reference = SchemaReference("test.Reading", "reading", 1)
    number = registry.inner.register_schema("batch", Schema(json.dumps(outer), "AVRO", [reference]))
    found = made(registry)(number)
    assert [one["type"] for one in found["fields"]] == [
        READING,
        {"type": "array", "items": ["null", "test.Reading"]},
        {"type": "map", "values": "test.Reading"},
    ]


def test_an_unknown_schema_id_is_requested_again_after_a_delay(registry):
    now = [0.0]
    schemas = made(registry, lambda: now[0])
    for _ in range(3):
        with pytest.raises(LookupError):
            schemas(77)
    assert registry.asked == ["get"]
    now[0] = 61.0
    with pytest.raises(LookupError):
        schemas(77)
    assert registry.asked == ["get", "get"]


def test_unknown_schema_ids_are_cached_in_bounded_memory():
    def unknown(_: int) -> Any:
        raise SchemaRegistryError(404, 40403, "")

    client = Counted(SimpleNamespace(get_schema=unknown))
    schemas = made(client)
    for number in (*range(10_001), 10_000, 0):
        with pytest.raises(LookupError):
            schemas(number)
    assert len(client.asked) == 10_002, "the last is remembered; those before went when it came"


def _deep(levels: int) -> Any:
    found: Any = "string"
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "D", "fields": [{"name": "series", "type": _deep(700)}]},
        {"type": "record", "name": "U", "fields": [{"name": "series", "type": {"type": ["null", "string"]}}]},
        {"type": {"type": "record", "name": "T", "fields": []}},
        {"type": "record", "name": "F"},
        ["string", 7],
        7,
    ],
)
def test_an_unreadable_schema_gives_rejects_and_stops_no_partition_group(schema):
    """Whoever may register schemas may register such ones: a registry takes the first."""
    client = SimpleNamespace(
        get_schema=lambda _: SimpleNamespace(schema_type="AVRO", schema_str=json.dumps(schema), references=None)
    )
    found = made(client)
    names = (
        {"each": "payload"} | {one: one for one in ("series", "time", "value")} | {"payload": "avro", "time_unit": "us"}
    )
    broker = FakeBroker()
    topic = broker.topic(1)
    broker.send(topic, [(0, b"\0\0\0\0\x03xx")])
    reader = KafkaPartitions(
        broker.cluster, (topic,), PayloadDecoder(Readings.model_validate(names), schemas=found)
    ).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda got: any(one.rejected for one in got))
    assert [dict(one.rejected) for one in pieces if one.rejected] == [{RejectReason.UNKNOWN_SCHEMA: 1}]
    reader.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SchemaRegistryError(401, 40101, "secret text"), "it answers with 401; check registry.options"),
        (SchemaRegistryError(404, 404, "secret text"), "it answers with 404; check registry.url"),
        (OSError("secret text"), r"it does not answer \(OSError\)"),
    ],
)
def test_messages_wait_for_a_registry_that_does_not_answer(registry, error, said):
    registry.fails = [error]
    schemas = made(registry)
    with pytest.raises(SourceAwayError, match=f"the schema registry mock://quiltstream: {said}; messages wait") as told:
        schemas(1)
    assert "secret text" not in str(told.value)
    number = registry.inner.register_schema("meters", Schema(json.dumps(READING), "AVRO"))
    assert schemas(number) == READING


def test_messages_of_the_confluent_serializer_are_read_by_the_job_decoder(registry):
    broker = FakeBroker()
    topic = broker.topic(2)
    schema = {**READING, "fields": [*READING["fields"], {"name": "time", "type": "long"}]}
    made_by: Any = AvroSerializer  # its types say nothing of its arguments
    serialize = made_by(registry.inner, json.dumps(schema))
    rows = [{"series": f"m{n}", "value": float(n), "time": ORIGIN + n} for n in range(20)]
    context = SerializationContext(topic, MessageField.VALUE)
    broker.send(topic, [(n % 2, serialize(row, context)) for n, row in enumerate(rows)])
    broker.send(topic, [(0, b"\0\0\0\x27\x0fnobody knows this schema"), (1, b"\1 no magic")])
    names = {"each": "payload"} | {one: one for one in ("series", "time", "value")}
    readings = Readings.model_validate(names | {"payload": "avro", "time_unit": "us"})
    decoder = PayloadDecoder(readings, schemas=made(registry))
    reader = KafkaPartitions(broker.cluster, (topic,), decoder).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda all_: row_count(all_) == 20 and sum(len(one.rejected) for one in all_) == 2)
    found = [row for one in pieces for batch in one.batches for row in batch.to_pylist()]
    assert sorted((one["series"], one["value"]) for one in found) == sorted((f"m{n}", float(n)) for n in range(20))
    rejected = [row for one in pieces for batch in one.rejects for row in batch.to_pylist()]
    assert sorted((one["reason"], one["source"], one["position"]) for one in rejected) == [
        (RejectReason.MALFORMED_ROW.value, f"{topic}/1", 10),
        (RejectReason.UNKNOWN_SCHEMA.value, f"{topic}/0", 10),
    ]


# Rows in the wire format


def numbers(client: Counted, *, auto_register: bool = True) -> RegistryNumbers:
    return RegistryNumbers(URL, client=lambda _: client, auto_register=auto_register)


def topic(broker: FakeBroker, client: Counted, name: str = "out") -> Topic:
    """A topic as each worker has it: a value of its own, without a cache."""
    if name not in broker.topics:
        broker.topic(1, name)
    return Topic(broker.cluster, name, "avro", numbers(client))


def send(one: Topic) -> None:
    sender = Sender(one, "sink.kafka")
    sender.send(release_messages(BATCH, one.format, sender.head))
    sender.finish()
    sender.close()


def read(client: Counted, name: str, values: list[bytes]) -> list[dict[str, Any]]:
    made_by: Any = AvroDeserializer  # its types say nothing of its arguments
    deserialize = made_by(client.inner)
    return [deserialize(one, SerializationContext(name, MessageField.VALUE)) for one in values]


def test_confluents_deserializer_reads_the_rows_by_the_schema_of_the_topics_subject(registry):
    broker = FakeBroker()
    send(topic(broker, registry))
    (log,) = broker.topics["out"]
    found = registry.inner.get_latest_version("out-value")
    assert found.schema == Schema(text_of(RELEASES.avro), "AVRO")
    assert {one[0][:5] for one in log.messages} == {b"\0" + found.schema_id.to_bytes(4, "big")}
    rows = read(registry, "out", [one[0] for one in log.messages])
    assert rows == RELEASES.sorted(RELEASES.table([BATCH])).to_pylist()
    assert [one[2].decode() for one in log.messages] == [row["release_id"] for row in rows]
    assert {dict(one[3])["content-type"] for one in log.messages} == {b"avro/binary"}
    assert {dict(one[3])["quiltstream.schema"] for one in log.messages} == {b"release"}


def test_all_workers_send_the_same_bytes_and_the_schema_is_registered_once(registry):
    broker = FakeBroker()
    one = topic(broker, registry)
    for _ in range(2):  # a worker that goes on
        send(one)
    assert registry.asked == ["lookup", "register"]
    # what others register meanwhile is nothing to it
    registry.inner.register_schema("out-value", Schema('"string"', "AVRO"))
    send(topic(broker, registry))  # another worker, or run
    assert registry.asked == ["lookup", "register", "lookup"]
    (log,) = broker.topics["out"]
    assert len(log.messages) == 3 * len(ROWS)
    assert len({(message[2], message[0]) for message in log.messages}) == len(ROWS)


def test_the_registered_schema_text_is_stable():
    """Another text is another schema, with another number: the same rows would be other bytes.

    Whoever changes what a row has gives it another version; then these digests are others.
    """
    digests = [hashlib.sha256(text_of(form.avro).encode()).hexdigest()[:32] for form in (RELEASES, REJECTS)]
    assert digests == ["2d81db11222beeecd3b9e802f4b1c090", "456c8e8ad0422cc752da8ca69bb9fd18"]


def test_a_schema_expected_in_the_registry_is_looked_up_and_not_registered(registry):
    broker = FakeBroker()
    strict = Topic(broker.cluster, broker.topic(1, "out"), "avro", numbers(registry, auto_register=False))
    said = (
        r"sink\.kafka: topic out at fake:9092: the schema registry mock://quiltstream: it does not have the schema of "
        r"the rows under out-value, and registry\.auto_register is false"
    )
    with pytest.raises(KafkaUnavailableError, match=said) as told:
        send(strict)
    assert not told.value.passing
    number = registry.inner.register_schema("out-value", Schema(text_of(RELEASES.avro), "AVRO"))
    send(strict)
    assert registry.asked == ["lookup", "lookup"]
    (log,) = broker.topics["out"]
    assert {one[0][1:5] for one in log.messages} == {number.to_bytes(4, "big")}


@pytest.mark.parametrize(
    ("question", "error", "said", "passing"),
    [
        ("lookup", SchemaRegistryError(500, 50001, "secret text"), "it answers with 500", True),
        (
            "lookup",
            SchemaRegistryError(401, 40101, "secret text"),
            "it answers with 401; check registry.options",
            False,
        ),
        ("lookup", OSError("secret text"), r"it does not answer \(OSError\)", True),
        ("register", SchemaRegistryError(403, 40301, "secret text"), "403; check registry.options", False),
    ],
)
def test_a_registry_failure_is_reported_and_the_request_retried(registry, question, error, said, passing):
    found = numbers(registry)
    unknown = SchemaRegistryError(404, 40401, "subject not found")
    registry.fails = [error] if question == "lookup" else [unknown, error]
    with pytest.raises(KafkaUnavailableError, match=f"the schema registry mock://quiltstream: .*{said}") as told:
        found.number("out-value", RELEASES.avro)
    assert "secret text" not in str(told.value)
    assert told.value.passing is passing
    assert found.number("out-value", RELEASES.avro) == 1


@pytest.mark.parametrize("error", [OSError(), SchemaRegistryError(409, 409, "secret text")])
def test_a_bundle_fails_without_sending_a_row_if_the_registry_fails(registry, error):
    registry.fails = [error]
    broker = FakeBroker()
    one = topic(broker, registry)
    with pytest.raises(KafkaUnavailableError, match="the schema registry mock://quiltstream") as told:
        send(one)
    assert told.value.passing is isinstance(error, OSError)
    assert broker.topics["out"][0].messages == []
    assert list(Heartbeat.complaints()) == ["sink.kafka"], "the watchdog says what rows wait for until they are sent"
    send(one)
    assert Heartbeat.complaints() == {}
    assert len(broker.topics["out"][0].messages) == len(ROWS)


def test_registry_secrets_are_read_at_the_request_and_are_not_pickled(registry, monkeypatch):
    given: list[Any] = []
    options = {"basic.auth.user.info": FromEnvironment(env="QS_TEST_REGISTRY")}
    found = RegistryNumbers(URL, options, client=lambda those: (given.append(those), registry)[1])
    with pytest.raises(KafkaUnavailableError, match="QS_TEST_REGISTRY is not set here") as told:
        found.number("out-value", RELEASES.avro)
    assert not told.value.passing
    monkeypatch.setenv("QS_TEST_REGISTRY", "me:hunter2")
    number = found.number("out-value", RELEASES.avro)
    assert given[0]["basic.auth.user.info"] == "me:hunter2"
    assert given[0]["timeout"] == 5
    assert "hunter2" not in repr(found)
    assert number == 1
    one = Topic(Cluster("h:1"), "out", "avro", RegistryNumbers(URL, options))
    assert len(one.head(RELEASES.avro)) == 5, "its client is made, and has the secret"
    assert b"hunter2" not in pickle.dumps(SendReleases(one))
    assert pickle.loads(pickle.dumps(one)) == one
