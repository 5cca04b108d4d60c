"""Avro in the wire format of Confluent's, with a real registry.

Their serializers write and the decoder of the jobs reads; the sink of the jobs writes and their deserializer reads.

The registry is Apicurio's, asked as Confluent's is. The topic is in memory: what a broker does to messages has its own
tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.table_files import RELEASES
from quiltstream.transforms.kafka.client import KafkaUnavailableError
from quiltstream.transforms.kafka.schema_registry import RegistryNumbers, RegistrySchemas, new_client
from quiltstream.transforms.kafka.sink import Topic
from quiltstream.transforms.kafka.source import KafkaPartitions, KafkaReader
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sinks import release_messages
from quiltstream.transforms.sources.contract import BEGIN, SourceBatch

from ..released import batch_from_releases
from ..transforms.kafka.contract import pieces_until, rows
from ..transforms.kafka.fake import FakeBroker
from ..transforms.kafka.messages import ORIGIN
from ..transforms.test_sinks import ROWS
from .registry import SchemaRegistry

pytest.importorskip("confluent_kafka", reason="the registry's client is an extra")

FIELDS = [{"name": "series", "type": "string"}, {"name": "time", "type": "long"}, {"name": "value", "type": "double"}]
READING: dict[str, Any] = {"type": "record", "name": "Reading", "namespace": "test", "fields": FIELDS}
WITH_UNIT = READING | {"fields": [{"name": "unit", "type": "string", "default": "kWh"}, *FIELDS]}
BATCH: dict[str, Any] = {
    "type": "record",
    "name": "Batch",
    "namespace": "test",
    "fields": [
        {"name": "first", "type": "test.Reading"},
        {"name": "readings", "type": {"type": "array", "items": "test.Reading"}},
    ],
}
DOCUMENT = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}

#: No registry of these tests has so many schemas.
NOBODYS = 9_999


Made = Callable[[Mapping[str, Any]], Any]


class Confluents:
    """What a producer has: Confluent's client of a registry, and their serializers."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def register(self, subject: str, schema: Mapping[str, Any], kind: str = "AVRO") -> int:
        """Register a schema; its number."""
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - an extra

        return self.client.register_schema(subject, Schema(json.dumps(schema), kind))

    def serializer(self, schema: Mapping[str, Any], **references: str) -> Callable[[str, Any], bytes]:
        """What writes a record of a topic; subjects by the names of the types that are defined there."""
        from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - an extra
        from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: PLC0415 - an extra
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - an extra

        named = [SchemaReference(f"test.{name}", subject, 1) for name, subject in references.items()]
        made_by: Any = AvroSerializer  # its types say nothing of its arguments
        serialize = made_by(self.client, Schema(json.dumps(schema), "AVRO", named))
        return lambda topic, record: serialize(record, SerializationContext(topic, MessageField.VALUE))

    def read(self, topic: str, values: list[bytes]) -> list[Any]:
        """What a consumer of a topic makes of its messages."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer  # noqa: PLC0415 - an extra
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - an extra

        made_by: Any = AvroDeserializer  # its types say nothing of its arguments
        deserialize = made_by(self.client)
        return [deserialize(one, SerializationContext(topic, MessageField.VALUE)) for one in values]


def record(name: str, value: float) -> dict[str, Any]:
    return {"series": name, "time": ORIGIN + int(value), "value": value}


def follow(schemas: RegistrySchemas, broker: FakeBroker, topic: str, each: str = "payload") -> KafkaReader:
    """A reader of a topic, as a job makes it."""
    names = {"each": each} | {one: one for one in ("series", "time", "value")}
    readings = Readings.model_validate(names | {"payload": "avro", "time_unit": "us"})
    decoder = PayloadDecoder(readings, schemas=schemas)
    return KafkaPartitions(broker.cluster, (topic,), decoder).reader(0, BEGIN)


def to(registry: SchemaRegistry, made: Made, broker: FakeBroker, topic: str, *, auto_register: bool = True) -> Topic:
    """A topic of rows, as a worker that has just begun has it."""
    numbers = RegistryNumbers(registry.url, client=made, auto_register=auto_register)
    return Topic(broker.cluster, topic, "avro", numbers)


def send(topic: Topic) -> None:
    """Send some rows, as a bundle does."""
    sender = topic.sender("sink.kafka")
    sender.send(release_messages(batch_from_releases(ROWS), topic.format, sender.head))
    sender.finish()
    sender.close()


def values_in(broker: FakeBroker, topic: str) -> list[bytes]:
    return [one[0] for log in broker.topics[topic] for one in log.messages]


def found(pieces: list[SourceBatch]) -> list[tuple[str, float]]:
    return sorted((one["series"], one["value"]) for piece in pieces for one in _rows(piece.batches))


def rejected(pieces: list[SourceBatch]) -> list[tuple[str, str, int, int]]:
    told = [row for piece in pieces for row in _rows(piece.rejects)]
    return sorted((one["reason"], one["source"], one["position"], one["size"]) for one in told)


def _rows(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def registry(registry_program) -> Iterator[SchemaRegistry]:
    """A registry that the tests share."""
    yield from _started(registry_program)


@pytest.fixture
def own_registry(registry_program) -> Iterator[SchemaRegistry]:
    """A registry with nothing in it, to be killed."""
    yield from _started(registry_program)


@pytest.fixture
def made() -> Iterator[Made]:
    """Makes clients of a registry, which are closed with the test."""
    clients: list[Any] = []

    def one(options: Mapping[str, Any]) -> Any:
        clients.append(new_client(options))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


def _started(program: Path) -> Iterator[SchemaRegistry]:
    server = SchemaRegistry(program)
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_confluents_messages_are_read_and_an_unknown_schema_id_is_one_reject(registry, made):
    confluents, broker = Confluents(made({"url": registry.url})), FakeBroker()
    topic = broker.topic(2)
    plain, wider = confluents.serializer(READING), confluents.serializer(WITH_UNIT)
    broker.send(topic, [(n % 2, plain(topic, record(f"m{n}", n))) for n in range(20)])
    # the writers' schemas live side by side, as after an update of the devices
    broker.send(topic, [(n % 2, wider(topic, record(f"m{n}", n) | {"unit": "kWh"})) for n in range(20, 40)])
    assert {one["id"] for one in _numbers(confluents, f"{topic}-value")} == {*_numbers_in(broker, topic)}
    other = confluents.register("documents", DOCUMENT, "JSON")
    bad = [b"\0" + NOBODYS.to_bytes(4, "big") + b"body", b"\0" + other.to_bytes(4, "big") + b"{}", b"\1 no magic"]
    broker.send(topic, [(0, one) for one in bad])

    reader = follow(RegistrySchemas(registry.url, client=made), broker, topic)
    pieces = pieces_until(reader, lambda all_: rows(all_) == 40 and len(rejected(all_)) == 3)
    assert found(pieces) == sorted((f"m{n}", float(n)) for n in range(40))
    assert rejected(pieces) == [
        (RejectReason.MALFORMED_ROW.value, f"{topic}/0", 22, len(bad[2])),
        (RejectReason.UNKNOWN_SCHEMA.value, f"{topic}/0", 20, len(bad[0])),
        (RejectReason.UNKNOWN_SCHEMA.value, f"{topic}/0", 21, len(bad[1])),
    ]
    assert reader.trouble is None
    reader.close()


def test_messages_wait_while_the_registry_is_unavailable(own_registry, made):
    registry = own_registry
    confluents, broker = Confluents(made({"url": registry.url})), FakeBroker()
    topic = broker.topic(1)
    plain, wider = confluents.serializer(READING), confluents.serializer(WITH_UNIT)
    reader = follow(RegistrySchemas(registry.url, client=made), broker, topic)
    broker.send(topic, [(0, plain(topic, record("before", 1)))])
    pieces = pieces_until(reader, lambda all_: rows(all_) == 1)
    late = [wider(topic, record(f"m{n}", n) | {"unit": "kWh"}) for n in range(10)]
    numbers = _numbers_in(broker, topic)
    registry.kill()

    # what the worker knows is read, what it must ask for waits
    broker.send(topic, [(0, plain(topic, record("known", 2)))])
    pieces += pieces_until(reader, lambda all_: rows(all_) == 1)
    broker.send(topic, [(0, one) for one in late])
    waiting = pieces_until(reader, lambda _: reader.trouble is not None)
    assert (rows(waiting), rejected(waiting)) == (0, [])
    said = rf"the schema registry {registry.url}: it does not answer \(\w+\); messages wait for it"
    assert re.fullmatch(said, reader.trouble or "")

    # a registry in memory gives the same numbers to the same schemas in the same order
    registry.start()
    again = Confluents(made({"url": registry.url}))
    assert [again.register(f"{topic}-value", one) for one in (READING, WITH_UNIT)] == [*numbers, _number(late[0])]
    pieces += waiting + pieces_until(reader, lambda all_: rows(all_) == 10)
    assert found(pieces) == sorted([("before", 1.0), ("known", 2.0), *((f"m{n}", float(n)) for n in range(10))])
    assert rejected(pieces) == []
    assert reader.trouble is None
    reader.close()


def test_confluents_deserializer_reads_the_rows_and_all_workers_send_the_same_bytes(registry, made):
    confluents, broker = Confluents(made({"url": registry.url})), FakeBroker()
    topic = broker.topic(1)
    subject = f"{topic}-value"
    send(to(registry, made, broker, topic))
    (version,) = _numbers(confluents, subject)
    first = values_in(broker, topic)
    expected = RELEASES.sorted(RELEASES.table([batch_from_releases(ROWS)])).to_pylist()
    assert confluents.read(topic, first) == expected
    # what somebody adds to the subject or to the registry changes no byte, and nothing is registered twice
    wider = {**RELEASES.avro, "fields": [*RELEASES.avro["fields"], {"name": "more", "type": "string", "default": ""}]}
    assert confluents.register(subject, wider) != version["id"]
    confluents.register(f"another-{subject}", READING)
    for auto_register in (True, False):
        send(to(registry, made, broker, topic, auto_register=auto_register))
    assert values_in(broker, topic) == first * 3
    assert _numbers_in(broker, topic) == [version["id"]]
    assert len(_numbers(confluents, subject)) == 2
    # the source of another job reads them
    names = {"each": "payload", "series": "release_id", "time": "window_start", "value": "members"}
    readings = Readings.model_validate(names | {"payload": "avro", "time_unit": "us"})
    decoder = PayloadDecoder(readings, schemas=RegistrySchemas(registry.url, client=made))
    reader = KafkaPartitions(broker.cluster, (topic,), decoder).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda all_: rows(all_) == len(first) * 3)
    assert found(pieces) == sorted((one.release_id, float(one.members)) for one in ROWS * 3)
    reader.close()


def test_a_registry_without_the_schema_stops_the_job_before_a_row_is_sent(registry, made):
    confluents, broker = Confluents(made({"url": registry.url})), FakeBroker()
    topic = broker.topic(1)
    subject = f"{topic}-value"
    said = rf"the schema registry {registry.url}: it does not have the schema of the rows under {subject}, and"
    with pytest.raises(KafkaUnavailableError, match=said) as told:
        to(registry, made, broker, topic, auto_register=False).head(RELEASES.avro)
    assert not told.value.passing
    # another schema is there, which the rows do not fit
    confluents.register(subject, RELEASES.avro | {"fields": [{"name": "key", "type": "long"}]})
    confluents.client.set_compatibility(subject, "FULL")
    said = r"it refuses the schema \(409\), which does not fit another one under the same subject"
    with pytest.raises(KafkaUnavailableError, match=said) as told:
        to(registry, made, broker, topic).head(RELEASES.avro)
    assert not told.value.passing
    elsewhere = Topic(broker.cluster, topic, "avro", RegistryNumbers(registry.host, client=made))
    with pytest.raises(KafkaUnavailableError, match=r"it answers with 404; check registry\.url") as told:
        elsewhere.head(RELEASES.avro)
    assert not told.value.passing
    assert values_in(broker, topic) == []


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[1:5], "big")


def _numbers_in(broker: FakeBroker, topic: str) -> list[int]:
    """The schemas' numbers in a topic, each once."""
    return list(dict.fromkeys(_number(one[0]) for log in broker.topics[topic] for one in log.messages))


def _numbers(confluents: Confluents, subject: str) -> list[dict[str, int]]:
    """The schemas of a subject, as the registry tells."""
    versions = confluents.client.get_versions(subject)
    return [{"id": confluents.client.get_version(subject, one).schema_id} for one in versions]
