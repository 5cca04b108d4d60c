"""A topic as a sink: what of the record it lacks, and what it holds that is not on record."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation  # pyright: ignore[reportPrivateImportUsage] - its documented place

from quiltstream.pipelines.exits import ExitCode
from quiltstream.pipelines.failures import CommandError
from quiltstream.pipelines.places import kafka
from quiltstream.pipelines.places.kafka import SinkTopic, check_written
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings import Settings, read_settings
from quiltstream.store import Store
from quiltstream.store.rows import rows_of
from quiltstream.store.specs import Registration
from quiltstream.transforms.kafka.sink import Topic

from ...transforms.kafka.fake import FakeBroker
from ..jobs import Job, call, job


@dataclass
class Bench:
    """A record of some windows, and a topic.

    Attributes:
        settings: of the job.
        broker: in memory.
        topic: the sink.
    """

    settings: Settings
    broker: FakeBroker
    topic: Topic

    @property
    def messages(self) -> list[tuple[Any, ...]]:
        return self.broker.topics[self.topic.name][0].messages

    @property
    def keys(self) -> list[str]:
        return [key.decode() for _, _, key, _ in self.messages]

    @contextmanager
    def record(self) -> Generator[tuple[Store, Registration]]:
        with Store(self.settings.ledger_url, create=False) as store:
            registration = store.registered(self.settings.domain, self.settings.query)
            assert registration is not None
            yield store, registration

    def sink(self) -> SinkTopic:
        return SinkTopic(self.settings, self.topic, patience_s=0.1)

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


def test_what_is_on_record_and_not_in_the_topic_is_sent_block_by_block(bench: Bench) -> None:
    blocks = bench.blocks()
    assert len(blocks) >= 5
    assert bench.complete() == len(blocks)
    assert sorted(bench.keys) == sorted(row.release_id for block in blocks for row in block)
    assert bench.complete() == 0
    whole = list(bench.messages)
    del bench.messages[1]
    assert bench.complete() == 1
    assert {one[2:3] + one[:1] for one in bench.messages} == {one[2:3] + one[:1] for one in whole}


def test_what_retention_took_is_not_sent_again_and_a_gap_behind_it_is(bench: Bench) -> None:
    blocks = bench.blocks()
    bench.complete()
    gone, gap = len(blocks[0]) + len(blocks[1]), {row.release_id for row in blocks[-1]}
    bench.broker.forget(bench.topic.name, 0, gone)
    bench.messages[:] = [one for one in bench.messages if one[2].decode() not in gap]
    assert bench.complete() == 1
    assert gap < set(bench.keys)
    assert not {row.release_id for row in blocks[0]} & set(bench.keys)


def test_rows_that_no_ledger_knows_are_named_and_those_of_other_queries_are_not_looked_at(bench: Bench) -> None:
    bench.complete()
    assert bench.unknown() == []
    other = bench.messages[0]
    headers = [(name, b"other" if name == "quiltstream.query" else value) for name, value in other[3]]
    bench.messages.append((other[0], other[1], b"f" * 32, headers))
    assert bench.unknown() == []
    bench.messages.append((other[0], other[1], b"e" * 32, other[3]))
    assert bench.unknown() == ["e" * 32]


def test_a_topic_of_something_else_or_out_of_reach_ends_the_job(bench: Bench) -> None:
    bench.messages.append((b"a reading", 0, None, None))
    with pytest.raises(CommandError, match="holds messages that are no releases of quiltstream"):
        bench.complete()
    bench.messages.clear()
    bench.broker.away = True
    with pytest.raises(CommandError, match=r"sink\.kafka: topic .* no broker answers\. Nothing was charged"):
        bench.complete()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """A broker in memory that the settings' topics are at."""
    made = FakeBroker()
    monkeypatch.setattr(kafka, "cluster_of", lambda *_: made.cluster)
    monkeypatch.setenv("QUILTSTREAM_PRISM", "/bin/true")
    return made


def written(folder: Path, options: dict[str, Any] | None = None) -> Job:
    """A live job over files that writes two topics."""
    servers: dict[str, Any] = {"servers": FakeBroker.servers, "options": options or {}}
    return job(
        folder,
        sink={"kafka": servers | {"topic": "out"}},
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
    done = call("run", "--live", one.settings)
    assert done.code == ExitCode.FAILURE, done.err
    assert done.said(f"{place}.kafka: topic {name} at fake:9092: {said}. Nothing was charged: mend it"), done.err
    assert not one.ledger.exists()


@pytest.mark.parametrize(
    "rights",
    [[AclOperation.WRITE, AclOperation.DESCRIBE], [], None, KafkaError(KafkaError._UNSUPPORTED_FEATURE)],
)
def test_a_topic_that_may_be_written_or_whose_broker_is_too_old_to_say_is_taken(
    tmp_path: Path, broker: FakeBroker, rights: Any
) -> None:
    broker.rights = {broker.topic(1, name): rights for name in ("out", "bad")}
    check_written(read_settings(written(tmp_path).settings))
    assert [len(one[0].messages) for one in broker.topics.values()] == [0, 0]
    assert all(one.closed for one in broker.consumers)


def test_topics_to_be_written_whose_brokers_are_away_are_waited_for(tmp_path: Path, broker: FakeBroker) -> None:
    settings = read_settings(written(tmp_path).settings)
    broker.away = True
    with pytest.raises(CommandError, match=r"sink\.kafka: brokers fake:9092: no broker answers\. Nothing was charged"):
        check_written(settings, patience_s=0.1)
    broker.away = False
    broker.rights = {broker.topic(1, name): KafkaError(KafkaError._TIMED_OUT) for name in ("out", "bad")}
    with pytest.raises(CommandError, match="topic out at fake:9092: no broker answered in time"):
        check_written(settings, patience_s=0.1)


def test_a_secret_that_only_workers_have_leaves_the_topics_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QS_TEST_ELSEWHERE", raising=False)
    check_written(read_settings(written(tmp_path, {"sasl.password": {"env": "QS_TEST_ELSEWHERE"}}).settings))
    told = capsys.readouterr().err
    for field in ("sink.kafka", "rejects.kafka"):
        assert f"{field}: the environment variable QS_TEST_ELSEWHERE is not set here" in told
