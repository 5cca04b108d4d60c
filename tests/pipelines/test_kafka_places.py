"""A topic as a sink: what of the record it lacks, and what it holds that is not on record."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.failures import CommandError
from quiltstream.pipelines.kafka_places import SinkTopic
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings import Settings, read_settings
from quiltstream.store import Store
from quiltstream.store.rows import rows_of
from quiltstream.store.specs import Registration
from quiltstream.transforms.kafka_sink import Topic

from ..transforms.kafka_fake import FakeBroker
from .jobs import call, job


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
