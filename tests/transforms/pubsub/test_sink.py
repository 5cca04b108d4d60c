"""Topics of Pub/Sub as sinks, and what errors of the client mean."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.readings import REJECT_SCHEMA
from quiltstream.transforms.pubsub import (
    RELEASE_ID,
    PubSubSender,
    PubSubTopic,
    PubSubUnavailableError,
)
from quiltstream.transforms.sinks import QUERY, SendRejects, SendReleases
from quiltstream.transforms.sources.progress import Heartbeat

from ..kafka.test_sink import BATCH
from .fake import clients_error

TOPIC = "projects/grid/topics/releases"


class FakePublisher:
    """A publisher in memory; the futures of what it is given have the result that is set."""

    sent: list[tuple[str, bytes, dict[str, str]]]

    def __init__(self) -> None:
        self.sent = []
        self.error: Exception | None = None
        self.stopped = False

    def publish(self, topic: str, data: bytes, **attributes: str) -> Future[str]:
        self.sent.append((topic, data, attributes))
        future: Future[str] = Future()
        if self.error is None:
            future.set_result(str(len(self.sent)))
        else:
            future.set_exception(self.error)
        return future

    def stop(self) -> None:
        self.stopped = True


SHARED = FakePublisher()


def shared() -> FakePublisher:
    return SHARED


def test_rows_are_sent_with_their_release_id_and_the_same_way_every_time() -> None:
    SHARED.sent = []
    batch = BATCH
    for _ in range(2):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            made = pipeline | beam.Create([batch])
            _ = made | SendReleases(PubSubTopic(TOPIC, publisher=shared))
    assert len(SHARED.sent) == 2 * batch.num_rows
    assert SHARED.sent[: batch.num_rows] == SHARED.sent[batch.num_rows :]
    ids = [attributes[RELEASE_ID] for _, _, attributes in SHARED.sent[: batch.num_rows]]
    assert sorted(ids) == sorted(batch.column("release_id").to_pylist())
    for topic, data, attributes in SHARED.sent:
        assert topic == TOPIC
        assert json.loads(data)["release_id"] == attributes[RELEASE_ID]
        assert attributes["content-type"] == "application/json"
        assert attributes[QUERY] == json.loads(data)["query"]


def test_rejects_are_sent_without_a_name() -> None:
    SHARED.sent = []
    columns = [["not-a-number"], ["projects/grid/subscriptions/meters"], [7], [12]]
    batch = pa.RecordBatch.from_arrays([pa.array(one) for one in columns], schema=REJECT_SCHEMA)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([batch]) | SendRejects(PubSubTopic(TOPIC, publisher=shared))
    ((_, data, attributes),) = SHARED.sent
    assert (json.loads(data)["position"], json.loads(data)["size"]) == (7, 12)
    assert RELEASE_ID not in attributes


@pytest.mark.parametrize(
    ("name", "passing", "told"),
    [("ServiceUnavailable", True, "Pub/Sub says ServiceUnavailable"), ("NotFound", False, "it is not there")],
)
def test_a_refused_message_fails_the_bundle_without_the_text_of_the_service(
    name: str, *, passing: bool, told: str
) -> None:
    publisher = FakePublisher()
    sender = PubSubSender(PubSubTopic(TOPIC, publisher=lambda: publisher), "sink.pubsub")
    publisher.error = clients_error(name)
    sender.send([(b"k", b"v", [])])
    with pytest.raises(PubSubUnavailableError, match=told) as raised:
        sender.finish()
    assert raised.value.passing == passing
    assert "quote" not in str(raised.value)
    assert told in Heartbeat.complaints()["sink.pubsub"]
    publisher.error = None
    sender.send([(b"k", b"v", [])])
    sender.finish()
    assert Heartbeat.complaints() == {}
    sender.close()
    assert publisher.stopped


def made_of(**given: Any) -> PubSubTopic:
    return PubSubTopic(TOPIC, **given)


@pytest.mark.night
def test_messages_are_flushed_in_bounded_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    publisher = FakePublisher()
    sender = PubSubSender(made_of(publisher=lambda: publisher), "sink.pubsub")
    finish = sender.finish
    monkeypatch.setattr(sender, "finish", lambda: (waited.append(len(publisher.sent)), finish())[1])
    sender.send([(None, b"v", [])] * 25_000)
    assert waited == [10_000, 20_000]
