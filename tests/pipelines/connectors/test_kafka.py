"""A topic as a sink: what of the record it lacks, and what it holds that is not on record."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation  # pyright: ignore[reportPrivateImportUsage] - its documented place
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from quiltstream.pipelines.connectors import kafka
from quiltstream.pipelines.connectors.kafka import SinkTopic
from quiltstream.pipelines.connectors.live import live_sinks
from quiltstream.pipelines.errors import ExitCode
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.store import Store
from quiltstream.store.exports import rows_of
from quiltstream.store.specs import Registration
from quiltstream.transforms.kafka.schema_registry import RegistryNumbers
from quiltstream.transforms.kafka.sink import Topic

from ...present import present
from ...transforms.kafka.fake import FakeBroker
from ..jobs import Job, call, job


@dataclass
class Bench:
    """A record of some windows, and a topic."""

    settings: Settings  # of the job
    broker: FakeBroker  # in memory
    topic: Topic  # the sink

    @property
    def messages(self) -> list[tuple[Any, ...]]:
        return self.broker.topics[self.topic.name][0].messages

    @property
    def keys(self) -> list[str]:
        return [key.decode() for _, _, key, _ in self.messages]

    @contextmanager
    def record(self) -> Generator[tuple[Store, Registration]]:
        with Store(self.settings.ledger_url, create=False) as store:
            yield store, present(store.registered(self.settings.domain, self.settings.query))

    def sink(self) -> SinkTopic:
        return SinkTopic(self.settings, self.topic)

    def complete(self) -> int:
        with self.record() as (store, registration):
            return self.sink().complete(store, registration)

    def unknown(self) -> list[str]:
        with Store(self.settings.ledger_url, create=False) as store:
            return self.sink().unknown_ids(store)

    def blocks(self) -> list[list[Release]]:
        with self.record() as (store, registration):
            names = (registration.domain.name, registration.query.name)
            return [
                releases_from_batch(rows_of(registration, one))
                for one in store.records(*names)
                if one.block is not None
            ]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    one = job(tmp_path, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-06"})
    assert call("run", one.settings).code == 0
    broker = FakeBroker()
    return Bench(read_settings(one.settings), broker, Topic(broker.cluster, broker.topic(1)))


@pytest.mark.night
def test_recorded_rows_missing_in_the_topic_are_sent_block_by_block(bench: Bench) -> None:
    blocks = bench.blocks()
    assert len(blocks) >= 5
    assert bench.complete() == len(blocks)
    assert sorted(bench.keys) == sorted(row.release_id for block in blocks for row in block)
    assert bench.complete() == 0
    whole = list(bench.messages)
    del bench.messages[1]
    assert bench.complete() == 1
    assert {one[2:3] + one[:1] for one in bench.messages} == {one[2:3] + one[:1] for one in whole}


@pytest.mark.night
def test_rows_removed_by_retention_are_not_resent_and_a_later_gap_is(bench: Bench) -> None:
    blocks = bench.blocks()
    bench.complete()
    gone, gap = len(blocks[0]) + len(blocks[1]), {row.release_id for row in blocks[-1]}
    bench.broker.forget(bench.topic.name, 0, gone)
    bench.messages[:] = [one for one in bench.messages if one[2].decode() not in gap]
    assert bench.complete() == 1
    assert gap < set(bench.keys)
    assert not {row.release_id for row in blocks[0]} & set(bench.keys)


def test_rows_unknown_to_the_ledger_are_named_and_other_queries_are_ignored(bench: Bench) -> None:
    bench.complete()
    assert bench.unknown() == []
    other = bench.messages[0]
    headers = [(name, b"other" if name == "quiltstream.query" else value) for name, value in other[3]]
    bench.messages.append((other[0], other[1], b"f" * 32, headers))
    assert bench.unknown() == []
    bench.messages.append((other[0], other[1], b"e" * 32, other[3]))
    assert bench.unknown() == ["e" * 32]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """A broker in memory that the settings' topics are at."""
    made = FakeBroker()
    monkeypatch.setattr(kafka, "_cluster_of", lambda *_: made.cluster)
    monkeypatch.setenv("QUILTSTREAM_PRISM", "/bin/true")
    return made


def written(folder: Path, options: dict[str, Any] | None = None) -> Job:
    """A live job over files that writes two topics."""
    servers: dict[str, Any] = {"servers": FakeBroker.servers, "options": options or {}}
    return job(
        folder,
        sink={"kafka": servers | {"topic": "out"}},
        memory="memory.json",
        rejects={"kafka": servers | {"topic": "bad"}},
        windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-06"},
    )


READS = [AclOperation.DESCRIBE, AclOperation.READ]


@pytest.mark.parametrize(("place", "name"), [("sink", "out"), ("rejects", "bad")])
@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (None, "the topic is not there; make it, or check its name"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "the user may not use the topic; ask for the right to it"),
        (READS, "the user may not write to it; ask for the right to it"),
    ],
)
def test_a_topic_that_cannot_be_written_ends_the_job_before_anything_is_charged(
    tmp_path: Path, broker: FakeBroker, place: str, name: str, rights: Any, said: str
) -> None:
    for one in {"out", "bad"} - ({name} if rights is None else set[str]()):
        broker.topic(1, one)
    if isinstance(rights, list):
        broker.rights[name] = rights
    elif rights is not None:
        broker.refused[name] = rights
    one = written(tmp_path)
    call("run", "--live", one.settings).ended(
        ExitCode.SINK, f"{place}.kafka: topic {name} at fake:9092: {said}. Nothing was charged by this run"
    )
    assert not one.ledger.exists()


def check_written(settings: Settings) -> None:
    """What a live job looks for of its sinks before it begins."""
    for sink in live_sinks(settings):
        if sink is not None:
            sink.check()


class FakeRegistry:
    """A registry's client with one answer to every question; ``answers`` are errors, or a number."""

    def __init__(self) -> None:
        self.answer: Exception | int = 7
        self.subjects: list[tuple[str, str]] = []

    def lookup_schema(self, subject: str, schema: Schema) -> Any:
        self.subjects.append((subject, json.loads(str(schema.schema_str))["name"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(schema_id=self.answer)

    register_schema = lookup_schema


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    """A registry in memory that the settings' topics ask."""
    made = FakeRegistry()
    monkeypatch.setattr(kafka, "RegistryNumbers", partial(RegistryNumbers, client=lambda _: made))
    return made


def in_avro(folder: Path, **registry: Any) -> Job:
    """The same job with rows and rejects in the wire format of schema registries."""
    one = written(folder)
    settings = yaml.safe_load(one.settings.read_text(encoding="utf-8"))
    for place in ("sink", "rejects"):
        settings[place]["kafka"] |= {"format": "avro", "registry": {"url": "https://registry:8081"} | registry}
    one.settings.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return one


def test_a_registry_has_the_schemas_of_rows_and_rejects_before_anything_is_charged(
    tmp_path: Path, broker: FakeBroker, registry: FakeRegistry
) -> None:
    for name in ("out", "bad"):
        broker.topic(1, name)
    check_written(read_settings(in_avro(tmp_path).settings))
    assert registry.subjects == [("out-value", "Release"), ("bad-value", "Reject")]


@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        (SchemaRegistryError(409, 409, "secret text"), r"it refuses the schema \(409\), which does not fit another", 6),
        (SchemaRegistryError(401, 40101, "secret text"), r"it answers with 401; check registry\.options", 1),
        (SchemaRegistryError(404, -1, "secret text"), r"it answers with 404; check registry\.url", 6),
        (OSError("secret text"), r"it does not answer \(OSError\)", 75),
    ],
)
def test_an_absent_or_refusing_registry_ends_the_job_before_anything_is_charged(
    tmp_path: Path,
    broker: FakeBroker,
    registry: FakeRegistry,
    answer: Exception,
    said: str,
    code: int,
) -> None:
    for name in ("out", "bad"):
        broker.topic(1, name)
    registry.answer = answer
    one = in_avro(tmp_path)
    done = call("run", "--live", one.settings).ended(code)
    said = rf"sink\.kafka: the schema registry https://registry:8081: {said}.*Nothing was charged by this run"
    assert re.search(said, " ".join(done.err.split())), done.err
    assert "secret text" not in done.err
    assert not one.ledger.exists()
    assert broker.topics["out"][0].messages == []
