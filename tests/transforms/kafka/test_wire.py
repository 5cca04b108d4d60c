"""Rows in the wire format of Confluent's, with the mock of their client; the end-to-end tests ask a real registry."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from quiltstream.schemas.settings.secrets import FromEnvironment
from quiltstream.schemas.table_files import RELEASES
from quiltstream.transforms.kafka.client import Cluster, KafkaUnavailableError
from quiltstream.transforms.kafka.schema_registry import RegistryNumbers, text_of
from quiltstream.transforms.kafka.sink import Sender, Topic
from quiltstream.transforms.sinks import REJECTS, SendReleases, release_messages
from quiltstream.transforms.sources.progress import Heartbeat

from ...released import batch_from_releases
from ..test_sinks import ROWS
from .fake import FakeBroker

BATCH = batch_from_releases(ROWS)
URL = "mock://quiltstream"


class Counted:
    """A registry's client whose questions are counted, and which may be made to fail."""

    def __init__(self) -> None:
        self.inner: Any = SchemaRegistryClient.new_client({"url": URL})
        self.asked: list[str] = []
        self.fails: list[Exception] = []

    def lookup_schema(self, subject: str, schema: Schema) -> Any:
        return self._answer("lookup", lambda: self.inner.lookup_schema(subject, schema))

    def register_schema(self, subject: str, schema: Schema) -> int:
        return self._answer("register", lambda: self.inner.register_schema(subject, schema))

    def _answer(self, question: str, inner: Callable[[], Any]) -> Any:
        self.asked.append(question)
        if self.fails:
            raise self.fails.pop(0)
        return inner()


@pytest.fixture
def registry() -> Counted:
    return Counted()


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
