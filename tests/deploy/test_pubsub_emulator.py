"""Pub/Sub with Beam's own transforms and Google's client, against Google's emulator; a whole job needs Dataflow.

The one runner here that reads Pub/Sub is Beam's old direct runner, which has no wall clock beside a source.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.connectors.pubsub import Subscription
from quiltstream.pipelines.live.job import pace_of
from quiltstream.schemas.releases import RELEASE_SCHEMA, releases_from_batch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.transforms.pubsub import RELEASE_ID, SendRows

from ..present import present
from ..transforms.kafka.test_sink import BATCH
from .dataflow_graphs import SOURCES, settings_file

PROJECT = "projects/my-project"
METERS, RELEASED = f"{PROJECT}/topics/meters", f"{PROJECT}/topics/released"

#: What a pipeline of the old direct runner has read: it runs in this process.
FOUND: dict[str, int] = {"rows": 0, "rejects": 0}


def _jar() -> Path | None:
    """The emulator beside gcloud, as the package google-cloud-cli-pubsub-emulator has it."""
    gcloud = shutil.which("gcloud")
    if gcloud is None or shutil.which("java") is None:
        return None
    folder = Path(gcloud).resolve().parents[1] / "platform" / "pubsub-emulator" / "lib"
    return next(iter(folder.glob("cloud-pubsub-emulator-*-all.jar")), None)


@pytest.fixture(scope="module")
def client(module: Callable[[str], Any]) -> Iterator[Any]:
    """Google's client of an emulator with two topics and their subscriptions."""
    pubsub, jar = module("google.cloud.pubsub_v1"), _jar()
    if jar is None:
        pytest.skip("Google's emulator of Pub/Sub is not here: it is the package google-cloud-cli-pubsub-emulator")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    host, port = address.split(":")
    words = ["java", "-jar", str(jar), f"--host={host}", f"--port={port}"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(host, int(port)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PUBSUB_EMULATOR_HOST", address)
            publisher, subscriber = pubsub.PublisherClient(), pubsub.SubscriberClient()
            for topic in (METERS, RELEASED):
                publisher.create_topic(name=topic)
                request: dict[str, Any] = {"name": topic.replace("/topics/", "/subscriptions/"), "topic": topic}
                keeps = {
                    "retain_acked_messages": topic == METERS,
                    "message_retention_duration": {"seconds": 7 * 86_400},
                }
                subscriber.create_subscription(request=request | keeps)
            yield pubsub
    finally:
        server.kill()
        server.wait()


def until(found: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((host, port)) == 0


def job(folder: Path, **more: Any) -> Settings:
    source = {"pubsub": SOURCES["pubsub"]["pubsub"] | more}
    return read_settings(settings_file(folder, "pubsub", source=source, group_by=None))


def subscription(settings: Settings) -> Subscription:
    return Subscription(settings, present(present(settings.source).pubsub))


def count(batch: pa.RecordBatch, what: str) -> None:
    FOUND[what] += batch.num_rows


def pulled(pubsub: Any, topic: str) -> list[Any]:
    with pubsub.SubscriberClient() as subscriber:
        name = topic.replace("/topics/", "/subscriptions/")
        answer = subscriber.pull(subscription=name, max_messages=100, timeout=20.0)
        return [one.message for one in answer.received_messages]


def test_beam_reads_a_subscription_and_a_later_run_seeks_back(client: Any, tmp_path: Path) -> None:
    FOUND.update(rows=0, rejects=0)
    publisher = client.PublisherClient()
    bodies = [json.dumps({"meter": f"m{one}", "ts": 1_767_225_600_000, "kwh": 1.0}).encode() for one in range(5)]
    for body in (*bodies, b"{"):
        publisher.publish(METERS, body, device="d").result(timeout=20.0)
    settings = job(tmp_path, reread="1d")
    source, schedule = subscription(settings), settings.schedule
    pace = pace_of(settings, settings.grid, schedule, settings.grid.time_of(schedule.first + schedule.size - 1))
    pipeline: Any = beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(["--streaming"]))
    decoded = pipeline | source.read(pace)
    _ = decoded.readings | "Rows" >> beam.Map(count, "rows")
    _ = decoded.rejected | "Refused" >> beam.Map(count, "rejects")
    result = pipeline.run()
    until(lambda: FOUND == {"rows": 5, "rejects": 1})
    result.cancel()
    now = settings.grid.time_of(schedule.first) + 2 * 86_400_000_000
    assert source.begin(pace, PipelineOptions([]), now_us=now) is None
    assert len(pulled(client, METERS)) == 6


def test_rows_are_messages_with_their_release_ids(client: Any) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([BATCH]) | SendRows(RELEASED, "json")
    messages = pulled(client, RELEASED)
    sent = {one.attributes[RELEASE_ID]: json.loads(one.data) for one in messages}
    rows = releases_from_batch(pa.Table.from_batches([BATCH], schema=RELEASE_SCHEMA))
    assert {row.release_id for row in rows} == set(sent)
    assert all(one["release_id"] == name for name, one in sent.items())


def test_a_subscription_that_is_not_there_is_named(client: Any, tmp_path: Path) -> None:
    assert client
    source = subscription(job(tmp_path, reread="1d", subscription=f"{PROJECT}/subscriptions/other"))
    settings = job(tmp_path)
    pace = pace_of(settings, settings.grid, settings.schedule, settings.grid.time_of(settings.schedule.first))
    with pytest.raises(SettingsError, match="subscriptions/other: it is not there"):
        source.begin(pace, PipelineOptions([]))
