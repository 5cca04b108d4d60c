"""Pub/Sub with Google's own client, over the wire, against a service that is made of the client's messages.

It is not the real service: what that promises (order, leases, seeks) is not tested anywhere here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from quiltstream.pipelines.connectors.pubsub import begun_in_subscription, pubsub_source
from quiltstream.pipelines.live.job import pace_of
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms.pubsub import (
    PubSubReader,
    PubSubSender,
    PubSubSubscription,
    PubSubTopic,
    PubSubUnavailableError,
)
from quiltstream.transforms.sources.contract import SourceBatch

from .dataflow_graphs import SOURCES, settings_file

TOPIC = "projects/my-project/topics/released"


@pytest.fixture
def server(module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module("google.cloud.pubsub_v1")
    from .pubsub_server import PubSubServer  # noqa: PLC0415 - needs the client

    with PubSubServer() as made:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", made.address)
        yield made


def body(number: int) -> bytes:
    return json.dumps({"meter": f"m{number}", "ts": round(time.time() * 1_000), "kwh": 1.0}).encode()


def rows(reader: PubSubReader, wanted: int) -> list[SourceBatch]:
    found: list[SourceBatch] = []
    deadline = time.monotonic() + 20
    while sum(piece.rows for piece in found) < wanted:
        assert time.monotonic() < deadline, reader.trouble
        piece = reader.read()
        if piece is not None:
            found.append(piece)
    return found


def plain(tmp_path: Path) -> PubSubSubscription:
    settings = read_settings(settings_file(tmp_path, "pubsub", group_by=None))
    return pubsub_source(settings)


def test_messages_are_read_and_acknowledged_only_by_their_receipt(server: Any, tmp_path: Path) -> None:
    reader = plain(tmp_path).reader(0, "")
    try:
        put = [server.put(body(number), source="test") for number in range(5)]
        pieces = rows(reader, 5)
        assert not any(piece.settled for piece in pieces)
        assert server.limits == [100_000]
        receipt = reader.receipt()
        assert receipt is not None
        time.sleep(0.5)
        assert server.acked == []
        receipt()
        server.wait(lambda: sorted(server.acked) == put)
    finally:
        reader.close()


def test_messages_held_by_a_closed_reader_are_delivered_to_the_next_reader(server: Any, tmp_path: Path) -> None:
    feed = plain(tmp_path)
    reader = feed.reader(0, "")
    server.put(body(1))
    rows(reader, 1)
    reader.close()
    # given back, or freed when its lease ends with the stream
    again = feed.reader(0, "")
    try:
        assert sum(piece.rows for piece in rows(again, 1)) == 1
    finally:
        again.close()


def test_a_refusal_by_the_service_is_reported_and_the_request_retried(server: Any, tmp_path: Path) -> None:
    import grpc  # noqa: PLC0415 - needs the client

    reader = plain(tmp_path).reader(0, "")
    try:
        server.put(body(1))
        rows(reader, 1)
        server.refuses = grpc.StatusCode.PERMISSION_DENIED
        server.wait(lambda: reader.read() is not None and reader.trouble is not None)
        assert reader.trouble is not None
        assert "the account may not use it" in reader.trouble
        assert "words" not in reader.trouble
        server.refuses = None
        server.put(body(2))
        rows(reader, 1)
        assert reader.trouble is None
    finally:
        reader.close()


def test_a_run_seeks_over_the_wire(server: Any, tmp_path: Path) -> None:
    source = SOURCES["pubsub"]["pubsub"] | {"reread": "1d"}
    settings = read_settings(settings_file(tmp_path, "pubsub", source={"pubsub": source}))
    start = settings.grid.time_of(settings.schedule.first)
    begin = settings.grid.time_of(settings.schedule.first + settings.schedule.size - 1)
    pace = pace_of(settings, settings.grid, settings.schedule, begin)
    now = start + 2 * 86_400_000_000
    assert begun_in_subscription(settings, pace, PipelineOptions([]), now_us=now) == pace
    assert server.sought == [datetime(2025, 12, 31)]
    wrong = SOURCES["pubsub"]["pubsub"] | {"reread": "1d", "subscription": "projects/my-project/subscriptions/other"}
    settings = read_settings(settings_file(tmp_path, "pubsub", source={"pubsub": wrong}))
    with pytest.raises(SettingsError, match="it is not there") as raised:
        begun_in_subscription(settings, pace, PipelineOptions([]), now_us=now)
    assert "words" not in str(raised.value)


def test_rows_are_published_over_the_wire_and_a_refusal_fails_the_bundle(server: Any) -> None:
    import grpc  # noqa: PLC0415 - needs the client

    sender = PubSubSender(PubSubTopic(TOPIC), "sink.pubsub")
    try:
        sender.send([(b"id-1", b"{}", [("quiltstream.query", b"daily")]), (None, b"x", [])])
        sender.finish()
        assert [one.data for one in server.published] == [b"{}", b"x"]
        assert dict(server.published[0].attributes) == {"release_id": "id-1", "quiltstream.query": "daily"}
        server.refuses = grpc.StatusCode.NOT_FOUND
        with pytest.raises(PubSubUnavailableError, match="it is not there"):  # noqa: PT012 - either may tell
            sender.send([(None, b"y", [])])
            sender.finish()
    finally:
        sender.close()
