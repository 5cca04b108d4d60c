"""Avro in the wire format of Confluent's, with a real registry: Apicurio's, asked as Confluent's is.

Their serializer writes and the decoder of the jobs reads; the sink of the jobs writes and their deserializer reads. The
topic is in memory. What a registry may answer is asked of Confluent's own mock (``tests/transforms/kafka``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.table_files import RELEASES
from quiltstream.transforms.kafka.schema_registry import RegistryNumbers, RegistrySchemas, new_client
from quiltstream.transforms.kafka.sink import Topic
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sinks import release_messages
from quiltstream.transforms.sources.contract import BEGIN

from ..released import batch_from_releases
from ..transforms.kafka.contract import pieces_until, rows
from ..transforms.kafka.fake import FakeBroker
from ..transforms.kafka.messages import ORIGIN
from ..transforms.test_sinks import ROWS
from .registry import SchemaRegistry

FIELDS = [{"name": "series", "type": "string"}, {"name": "time", "type": "long"}, {"name": "value", "type": "double"}]
READING: dict[str, Any] = {"type": "record", "name": "Reading", "namespace": "test", "fields": FIELDS}
#: As after an update of the devices.
WIDER = READING | {"fields": [{"name": "unit", "type": "string", "default": "kWh"}, *FIELDS]}


@pytest.fixture
def registry(registry_program: Path) -> Iterator[SchemaRegistry]:
    server = SchemaRegistry(registry_program)
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_confluents_messages_are_read_and_rows_are_read_by_their_deserializer(registry: SchemaRegistry) -> None:
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: PLC0415 - an extra
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - an extra

    client, broker = new_client({"url": registry.url}), FakeBroker()
    source, sink = broker.topic(2), broker.topic(1)
    made: dict[str, Any] = {"reads": AvroDeserializer, "writes": AvroSerializer}  # types say nothing of arguments
    context = SerializationContext(source, MessageField.VALUE)
    for schema, numbers in ((READING, range(20)), (WIDER, range(20, 40))):
        serialize = made["writes"](client, json.dumps(schema))
        readings = [{"series": f"m{n}", "time": ORIGIN + n, "value": float(n), "unit": "kWh"} for n in numbers]
        known = {one["name"] for one in schema["fields"]}
        mine = [{name: value for name, value in one.items() if name in known} for one in readings]
        broker.send(source, [(n % 2, serialize(one, context)) for n, one in enumerate(mine)])
    names = {"each": "payload"} | {one: one for one in ("series", "time", "value")}
    decoder = PayloadDecoder(
        Readings.model_validate(names | {"payload": "avro", "time_unit": "us"}),
        schemas=RegistrySchemas(registry.url, client=lambda _: client),
    )
    reader = KafkaPartitions(broker.cluster, (source,), decoder).reader(0, BEGIN)
    pieces = pieces_until(reader, lambda all_: rows(all_) == 40)
    found = [row for piece in pieces for batch in piece.batches for row in batch.to_pylist()]
    assert sorted((one["series"], one["value"]) for one in found) == sorted((f"m{n}", float(n)) for n in range(40))
    reader.close()

    # the first worker registers the schema, the other one finds it: the same bytes
    for auto_register in (True, False):
        topic = Topic(
            broker.cluster,
            sink,
            "avro",
            RegistryNumbers(registry.url, client=lambda _: client, auto_register=auto_register),
        )
        sender = topic.sender("sink.kafka")
        sender.send(release_messages(batch_from_releases(ROWS), topic.format, sender.head))
        sender.finish()
        sender.close()
    sent = [one[0] for log in broker.topics[sink] for one in log.messages]
    assert sent == sent[: len(ROWS)] * 2
    deserialize, context = made["reads"](client), SerializationContext(sink, MessageField.VALUE)
    expected = RELEASES.sorted(RELEASES.table([batch_from_releases(ROWS)])).to_pylist()
    assert [deserialize(one, context) for one in sent[: len(ROWS)]] == expected
