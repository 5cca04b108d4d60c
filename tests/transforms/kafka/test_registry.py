"""Schemas by their numbers, from the mock of Confluent's own client; the end-to-end tests ask a real registry."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.kafka.schema_registry import RegistrySchemas
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import SourceAwayError
from quiltstream.transforms.sources.contract import BEGIN

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


class Counted:
    """A registry's client whose questions are counted, and which may be made to fail."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.asked = 0
        self.fails: Exception | None = None

    def get_schema(self, number: int) -> Any:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return self._client.get_schema(number)

    def get_version(self, subject: str, version: int) -> Any:
        return self._client.get_version(subject, version)


@pytest.fixture
def registry() -> Any:
    return SchemaRegistryClient.new_client({"url": "mock://quiltstream"})


def made(client: Any, clock: Any = lambda: 0.0) -> RegistrySchemas:
    return RegistrySchemas("mock://quiltstream", client=lambda _: client, clock=clock)


def test_a_schema_is_requested_once(registry):
    number = registry.register_schema("meters", Schema(json.dumps(READING), "AVRO"))
    client = Counted(registry)
    schemas = made(client)
    assert [schemas(number), schemas(number)] == [READING, READING]
    assert client.asked == 1


def test_types_referenced_by_a_schema_are_inlined_once(registry):
    registry.register_schema("reading", Schema(json.dumps(READING), "AVRO"))
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
    number = registry.register_schema("batch", Schema(json.dumps(outer), "AVRO", [reference]))
    found = made(registry)(number)
    assert [one["type"] for one in found["fields"]] == [
        READING,
        {"type": "array", "items": ["null", "test.Reading"]},
        {"type": "map", "values": "test.Reading"},
    ]


def test_an_unknown_schema_id_is_requested_again_after_a_delay(registry):
    now = [0.0]
    client = Counted(registry)
    schemas = made(client, lambda: now[0])
    for _ in range(3):
        with pytest.raises(LookupError):
            schemas(77)
    assert client.asked == 1
    now[0] = 61.0
    with pytest.raises(LookupError):
        schemas(77)
    assert client.asked == 2


def test_unknown_schema_ids_are_cached_in_bounded_memory():
    def unknown(_: int) -> Any:
        raise SchemaRegistryError(404, 40403, "")

    client = Counted(SimpleNamespace(get_schema=unknown))
    schemas = made(client)
    for number in (*range(10_001), 10_000, 0):
        with pytest.raises(LookupError):
            schemas(number)
    assert client.asked == 10_002, "the last is remembered; those before went when it came"


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
    client = Counted(registry)
    client.fails = error
    schemas = made(client)
    with pytest.raises(SourceAwayError, match=f"the schema registry mock://quiltstream: {said}; messages wait") as told:
        schemas(1)
    assert "secret text" not in str(told.value)
    client.fails = None
    number = registry.register_schema("meters", Schema(json.dumps(READING), "AVRO"))
    assert schemas(number) == READING


def test_messages_of_the_confluent_serializer_are_read_by_the_job_decoder(registry):
    broker = FakeBroker()
    topic = broker.topic(2)
    schema = {**READING, "fields": [*READING["fields"], {"name": "time", "type": "long"}]}
    made_by: Any = AvroSerializer  # its types say nothing of its arguments
    serialize = made_by(registry, json.dumps(schema))
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
