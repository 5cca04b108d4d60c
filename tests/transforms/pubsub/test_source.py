"""A subscription of Pub/Sub as a feed: what it declares, what it never does, and what is acknowledged when."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from apache_beam.pvalue import TaggedOutput

from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.completeness import Punctuation, horizon_of, punctuation_of
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.pubsub import (
    HELD_S,
    PubSubReader,
    PubSubSubscription,
    ReadAcknowledged,
    RecentIds,
    messages_of,
)
from quiltstream.transforms.sources.contract import BEGIN, SourceBatch
from quiltstream.transforms.sources.progress import PartitionState, Restriction
from quiltstream.transforms.sources.reader import PollingPolicy

from ..sources.check_contract import CheckContract
from ..sources.test_live_pauses import Estimator, Runner
from .fake import FakeService, clients_error

NAMES = Readings.model_validate({"each": "payload", "series": "m", "time": "t", "value": "v", "time_unit": "ms"})
DECODER = PayloadDecoder(NAMES)


#: Where the clock of the fake service begins; earlier readings are implausible.
THEN = 1_000_000_000


def body(at_s: float, meter: str = "a", value: float = 1.0) -> bytes:
    at_s = at_s if at_s >= THEN else THEN + at_s
    return json.dumps({"m": meter, "t": round(at_s * 1_000), "v": value}).encode()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    monkeypatch.setattr("quiltstream.transforms.pubsub._WAIT_S", 0.002)
    return FakeService(THEN)


class Subscribed:
    """A subscription whose stream may break, and cannot be begun again for a while."""

    def __init__(self, service: FakeService) -> None:
        self.service = service

    def feed(self) -> PubSubSubscription:
        return self.service.feed(DECODER, settle_s=0.0)

    def send(self, number: int) -> None:
        self.service.publish(body(number, value=float(number)))

    def take_away(self) -> None:
        self.service.refuses = clients_error("ServiceUnavailable")
        assert self.service.stream is not None
        self.service.stream.fail(self.service.refuses)

    def bring_back(self) -> None:
        self.service.refuses = None


class TestCheck(CheckContract):
    @pytest.fixture
    def place(self, service: FakeService) -> Subscribed:
        return Subscribed(service)


def read_all(reader: PubSubReader) -> list[SourceBatch]:
    found: list[SourceBatch] = []
    while (piece := reader.read()) is not None and (piece.latest_us is not None or piece.rejected):
        found.append(piece)
    return found


def settled(reader: PubSubReader) -> bool:
    """Whether a look that finds nothing says that nothing waits."""
    return reader.read() is None


def test_messages_become_readings_and_their_rejects_carry_sizes(service: FakeService) -> None:
    reader = service.feed(DECODER).reader(0, BEGIN)
    service.publish(body(10, "a"))
    service.publish(b"{")
    service.publish(body(11, "b", 2.0))
    (piece,) = read_all(reader)
    assert piece.rows == 2
    assert piece.latest_us == (THEN + 11) * 1_000_000
    assert sum(piece.rejected.values()) == 1
    (rejects,) = piece.rejects
    assert rejects.column("size").to_pylist() == [1]
    assert rejects.column("position").to_pylist() == [1]


def test_no_batch_is_settled_for_a_time_after_the_start(service: FakeService) -> None:
    reader = service.feed(DECODER, settle_s=60.0).reader(0, BEGIN)
    assert not settled(reader)
    service.clock += 59
    service.publish(body(service.clock))
    assert [piece.settled for piece in read_all(reader)] == [False]
    # the first message ended a silence: another while
    service.clock += 59
    assert not settled(reader)
    service.clock += 1
    assert settled(reader)


def test_no_batch_is_settled_while_bundles_are_uncommitted_at_the_limit(service: FakeService) -> None:
    """At the limit of what may be outstanding the service holds messages back."""
    reader = service.feed(DECODER, settle_s=0.0, outstanding=10).reader(0, BEGIN)
    for at in range(9):
        service.publish(body(at))
    assert [piece.settled for piece in read_all(reader)] == [False]
    receipt = reader.receipt()
    assert not settled(reader)
    assert receipt is not None
    receipt()
    assert settled(reader)


def test_messages_uncommitted_for_a_day_are_dropped_and_redelivered(service: FakeService) -> None:
    """The client gives such messages up. A runner that never keeps anything must not fill the memory with them."""
    reader = service.feed(DECODER, settle_s=0.0).reader(0, BEGIN)
    receipts: list[Any] = []
    for _ in range(5):
        service.publish(body(service.clock))
        read_all(reader)
        receipts.append(reader.receipt())
        service.clock += HELD_S / 2
    for receipt in receipts:
        receipt()
    assert service.acked == ["3", "4", "5"]


def test_read_messages_are_acknowledged_only_by_their_receipt_and_once(service: FakeService) -> None:
    reader = service.feed(DECODER).reader(0, BEGIN)
    first = [service.publish(body(at)) for at in range(3)]
    read_all(reader)
    receipt = reader.receipt()
    second = service.publish(b"no message of anybody")
    read_all(reader)
    assert receipt is not None
    assert service.acked == []
    receipt()
    receipt()
    assert service.acked == first
    assert reader.receipt() is not None
    assert reader.receipt() is None
    assert second not in service.acked


def test_a_closed_reader_returns_uncommitted_messages(service: FakeService) -> None:
    reader = service.feed(DECODER).reader(0, BEGIN)
    kept = service.publish(body(1))
    read_all(reader)
    receipt = reader.receipt()
    assert receipt is not None
    receipt()
    unkept = service.publish(body(2))
    read_all(reader)
    late = reader.receipt()
    unread = service.publish(body(3))
    reader.close()
    assert {one.message_id for one in service.waiting} == {unkept, unread}
    assert service.leased == {}
    assert late is not None
    late()
    assert service.acked == [kept]
    again = service.feed(DECODER).reader(0, BEGIN)
    assert sum(piece.rows for piece in read_all(again)) == 2


def test_a_redelivered_message_is_emitted_once_and_acknowledged_twice(service: FakeService) -> None:
    reader = service.feed(DECODER).reader(0, BEGIN)
    for rows in (1, 0):
        service.publish(body(1), name="m")
        assert sum(piece.rows for piece in read_all(reader)) == rows
    receipt = reader.receipt()
    assert receipt is not None
    receipt()
    assert service.acked == ["m", "m"]


def test_messages_with_the_same_id_attribute_are_one(service: FakeService) -> None:
    reader = service.feed(DECODER, id_attribute="nonce").reader(0, BEGIN)
    for at, nonce in ((1, "x"), (1, "x"), (2, "y")):
        service.publish(body(at), nonce=nonce)
    service.publish(body(3))
    assert sum(piece.rows for piece in read_all(reader)) == 3


def test_message_ids_are_evicted_by_age_and_number() -> None:
    ids = RecentIds(seconds=10.0, limit=2)
    assert [ids.is_new(name, at) for name, at in (("a", 0), ("a", 10), ("a", 11))] == [True, False, True]
    assert [ids.is_new(name, 12) for name in ("b", "c", "d", "a")] == [True, True, True, True]


def test_a_message_has_the_time_of_its_attribute_or_of_its_publishing(service: FakeService) -> None:
    taken: list[Any] = []
    service.begin(service, "projects/grid/subscriptions/meters", taken.append, 1)
    service.publish(b"x", at="5000")
    service.publish(b"x", age=1.5)
    assert messages_of(taken, "at").stamps_us.tolist() == [5_000_000, -1]
    found = messages_of(taken)
    assert found.stamps_us.tolist() == [round(service.clock * 1e6), round((service.clock - 1.5) * 1e6)]
    assert found.headers[0] == [("at", b"5000")]
    assert found.keys == [None, None]


class Finalizer:
    """Keeps what is to be called when the runner has kept a bundle."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def register(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class Job:
    """A runner that calls the live reader and keeps its residuals."""

    def __init__(self, service: FakeService, monkeypatch: pytest.MonkeyPatch, lateness_s: float = 10.0) -> None:
        monkeypatch.setattr("quiltstream.transforms.sources.reader._CALL_S", 0.05)
        monkeypatch.setattr("quiltstream.transforms.sources.reader.time.sleep", lambda _: None)
        self.service = service
        self.begin_us = round(service.clock * 1e6)
        pace = PollingPolicy(self.begin_us, lateness_us=round(lateness_s * 1e6), poll_s=0.001)
        self.part = ReadAcknowledged(service.feed(DECODER, settle_s=60.0), pace, now=lambda: round(service.clock * 1e6))
        self.part.setup()
        self.kept = Restriction(PartitionState(BEGIN, self.begin_us, heard_us=self.begin_us))

    def bundle(self, *, kept: bool = True) -> tuple[list[pa.RecordBatch], list[Punctuation]]:
        tracker, finalizer = Runner(self.kept), Finalizer()
        made = [
            one.value
            for one in self.part.process(0, finalizer, tracker, Estimator())
            if not isinstance(one, TaggedOutput)
        ]
        if kept:
            start = tracker.current_restriction().stop
            assert start is not None
            self.kept = Restriction(start)
            for callback in finalizer.callbacks:
                callback()
        marks = [mark for one in made if (mark := punctuation_of(one)) is not None]
        return [one for one in made if punctuation_of(one) is None], marks


def test_a_committed_bundle_is_acknowledged_and_a_dropped_one_redelivered(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(service, monkeypatch)
    first = service.publish(body(service.clock))
    batches, _ = job.bundle()
    assert sum(one.num_rows for one in batches) == 1
    assert service.acked == [first]
    second = service.publish(body(service.clock))
    batches, _ = job.bundle(kept=False)
    assert sum(one.num_rows for one in batches) == 1
    assert service.acked == [first]
    batches, _ = job.bundle()
    assert sum(one.num_rows for one in batches) == 1
    assert service.acked == [first, second]


@pytest.mark.night
def test_punctuations_are_emitted_when_settled_and_readings_carry_the_horizon(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(service, monkeypatch)
    declared: list[Punctuation] = []
    for _ in range(20):
        service.clock += 10
        service.publish(body(service.clock))
        batches, marks = job.bundle()
        declared += marks
        assert [horizon_of(one) for one in batches] == [
            job.begin_us if not declared[: -len(marks) or None] else declared[-1 - len(marks)].until_us
        ] * len(batches)
    assert declared[0].after_us == job.begin_us
    assert [one.until_us for one in declared] == sorted({one.until_us for one in declared})
    assert declared[-1].until_us == round((service.clock - 10) * 1e6)
    # nothing was declared in the first minute
    assert declared[0].until_us >= job.begin_us + 50_000_000


def test_silence_emits_no_punctuation(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(service, monkeypatch)
    service.publish(body(service.clock))
    job.bundle()
    declared: list[Punctuation] = []
    for _ in range(10):
        service.clock += 3600
        declared += job.bundle()[1]
    assert declared == []
