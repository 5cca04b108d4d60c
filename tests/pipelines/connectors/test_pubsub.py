"""Pub/Sub in the settings: what is refused, where a run begins, what a topic gets again, and a whole job."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import apache_beam as beam
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import TimestampedValue

from quiltstream.pipelines.connectors.pubsub import SinkTopic, Subscription
from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.job import pace_of
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import PubSubSink
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.pubsub import ReadSubscription
from quiltstream.transforms.sources.reader import PollingPolicy

from ...present import present
from ..jobs import call, job, readings

DAY_US = 86_400_000_000
MARCH_US = 1_709_251_200_000_000  # 2024-03-01T00:00Z
SUBSCRIPTION = "projects/my-grid/subscriptions/meters"
READINGS = {"each": "payload", "series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}
TOPIC = "projects/my-grid/topics/out"


def made(folder: Path, pubsub: dict[str, Any] | None = None, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "source": {"pubsub": {"subscription": SUBSCRIPTION} | (pubsub or {})},
        "readings": READINGS,
        "windows": {"size": "1d", "start": "2024-03-01"},
        "sink": {"parquet": "releases"},
        "rejects": {"csv": "rejects"},
    }
    return read_settings(job(folder, [], **(given | changes)).settings)


def subscription(settings: Settings) -> Subscription:
    return Subscription(settings, present(present(settings.source).pubsub))


def first_pace(settings: Settings, windows: int = 0) -> PollingPolicy:
    """The pace of a run with so many windows on record."""
    schedule = settings.schedule
    slot = list(islice(schedule.windows(), windows + 1))[-1].stop - 1
    return pace_of(settings, settings.grid, schedule, settings.grid.time_of(slot))


@pytest.mark.parametrize(
    ("pubsub", "said"),
    [
        ({"subscription": "meters"}, "'meters' is not written as projects/PROJECT/subscriptions/NAME"),
        ({"settle": "1min"}, "source.pubsub.settle is gone"),
    ],
)
def test_a_mistake_in_the_section_is_named(tmp_path: Path, pubsub: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        made(tmp_path, pubsub)
    assert said in str(raised.value)


def test_silence_that_would_close_windows_of_pub_sub_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"live\.idle is of sources whose windows end by what they declare"):
        subscription(made(tmp_path, live={"idle": "15min"}))


def test_one_topic_for_rows_and_rejects_and_a_runner_without_pub_sub_are_refused(tmp_path: Path) -> None:
    made(tmp_path)
    call("run", "--live", tmp_path / "settings.yaml").ended(2, "Beam reads Pub/Sub on Dataflow, and the runner is")
    made(tmp_path, sink={"pubsub": {"topic": TOPIC}}, rejects={"pubsub": {"topic": TOPIC}})
    call("run", "--live", tmp_path / "settings.yaml").ended(2, "sink.pubsub and rejects.pubsub name the same topic")
    assert not (tmp_path / "ledger.db").exists()


# Where a run begins


class Admin:
    """The service as far as a run asks it at its beginning."""

    def __init__(self, days: float = 0.0, topic_days: float = 0.0, error: str = "") -> None:
        self.days, self.topic_days, self.error = days, topic_days, error
        self.sought: list[datetime] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clients are let go of."""

    def get_subscription(self, request: dict[str, Any], timeout: float) -> Any:
        assert request == {"subscription": SUBSCRIPTION}
        assert timeout > 0
        if self.error:
            raise type(self.error, (Exception,), {"__module__": "google.api_core.exceptions"})("a quote of data")
        return SimpleNamespace(
            retain_acked_messages=bool(self.days),
            message_retention_duration=timedelta(days=self.days or 7),
            topic_message_retention_duration=timedelta(days=self.topic_days),
        )

    def seek(self, request: dict[str, Any], timeout: float) -> None:
        assert request["subscription"] == SUBSCRIPTION
        assert timeout > 0
        self.sought.append(request["time"])


NOTHING = PipelineOptions([])


def test_without_rereading_windows_that_start_before_the_beginning_may_lack_readings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, settings = subscription(made(tmp_path)), made(tmp_path)
    now = MARCH_US + 10 * DAY_US + 1
    assert source.begin(first_pace(settings), NOTHING, now_us=now) == now
    assert "windows that start before 2024-03-11T00:00:00" in capsys.readouterr().err
    assert source.begin(first_pace(settings), NOTHING, now_us=MARCH_US) is None


@pytest.mark.parametrize(
    ("admin", "lost_us"),
    [
        (Admin(days=7), None),
        (Admin(topic_days=7), None),
        (Admin(days=1, topic_days=7), None),
        (Admin(days=5), MARCH_US + 5 * DAY_US + DAY_US // 4),
    ],
)
def test_rereading_seeks_to_before_the_first_missing_window(tmp_path: Path, admin: Admin, lost_us: int | None) -> None:
    settings = made(tmp_path, {"reread": "6h"})
    admin.sought = []
    pace, now = first_pace(settings, windows=4), MARCH_US + 10 * DAY_US
    assert subscription(settings).begin(pace, NOTHING, client=lambda: admin, now_us=now) == lost_us
    assert admin.sought == [datetime(2024, 3, 4, 18, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("", SettingsError, "keeps nothing that was acknowledged; set retain_acked_messages"),
        ("NotFound", SettingsError, "it is not there"),
        # at a restart this is waited for, as it is for the ledger
        ("ServiceUnavailable", CommandError, "Pub/Sub says ServiceUnavailable"),
    ],
)
def test_a_subscription_that_cannot_be_sought_ends_the_run(
    tmp_path: Path, error: str, kind: type[Exception], said: str
) -> None:
    settings, admin = made(tmp_path, {"reread": "6h"}), Admin(error=error)
    with pytest.raises(kind, match=said) as raised:
        subscription(settings).begin(first_pace(settings), NOTHING, client=lambda: admin)
    assert "quote" not in str(raised.value)
    assert admin.sought == []


@pytest.mark.parametrize("word", ["--update", "--create_from_snapshot=s", "--savepoint_path=file:///x"])
def test_a_job_resuming_from_runner_state_does_not_seek(tmp_path: Path, word: str) -> None:
    settings, admin = made(tmp_path, {"reread": "6h"}), Admin(days=1)
    begun = subscription(settings).begin(first_pace(settings), PipelineOptions([word]), client=lambda: admin)
    assert (begun, admin.sought) == (None, [])


# A whole job


class Publisher:
    """A topic that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def publish(self, topic: str, data: bytes, **attributes: str) -> Future[str]:
        assert (topic, bool(data)) == (TOPIC, True)
        self.sent.append(attributes["release_id"])
        future: Future[str] = Future()
        future.set_result("1")
        return future


class Messages(beam.PTransform[Any, Any]):
    """What Beam's transform gives, on a runner that has none for Pub/Sub; said never to end."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__()
        self._rows = rows

    def expand(self, input_or_inputs: Any) -> Any:
        found: Any = input_or_inputs | beam.Create([TimestampedValue(one, 0) for one in self._rows], reshuffle=False)
        found.is_bounded = False
        return found


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, list[Any]]:
    """A job over eight days of messages, seven of them in its schedule; the readings."""
    settings = made(folder, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-08"})
    rows = readings(8)
    bodies = [f'{{"meter": "{meter}", "ts": "{stamp}", "kwh": {value}}}' for meter, stamp, value in rows]
    messages = Messages([PubsubMessage(one.encode(), {}) for one in bodies])

    def read(source: Subscription, pace: PollingPolicy) -> ReadSubscription:
        return ReadSubscription(SUBSCRIPTION, source._decoder, pace.steps, messages=messages)

    monkeypatch.setattr(Subscription, "read", read)
    made_ = build.live_job(settings, PrivateHistograms(settings, noise="none"), [])
    made_.pipeline.run().wait_until_finish()
    made_.follower.close()
    return settings, rows


def test_rows_of_a_subscription_equal_plain_counting_and_say_that_readings_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """With the noise off; by a run that begins long after the windows, without reading anything again."""
    request.getfixturevalue("ending")
    monkeypatch.setattr(build, "check_runner", lambda *_: None)
    settings, rows = run(tmp_path, monkeypatch)
    expected: dict[tuple[str, str], list[int]] = {}
    for meter, stamp, value in rows:
        bin_ = sum(value * 2000 >= edge for edge in (250, 500, 1000, 2000))
        if stamp < "2024-03-08":
            expected.setdefault((stamp[:10], "north" if meter < "m4" else "south"), [0] * 5)[bin_] += 1
    with Store(settings.ledger_url, create=False) as store:
        batches = list(store.releases(settings.domain, settings.query))
        found = [one for batch in batches for one in releases_from_batch(batch)]
        registration = present(store.registered(settings.domain, settings.query))
        days = {one.release_id: datetime.fromtimestamp(one.window_start / 1e6, UTC).date().isoformat() for one in found}
        assert {(days[one.release_id], one.key): list(one.counts) for one in found} == expected
        assert {one.completeness for one in found} == {"unavailable"}
        ids = [one.release_id for one in sorted(found, key=lambda one: one.window_start)]
        for resend, count in ((0, 0), (1, 2), (3, 6), (100, len(ids))):
            topic = Publisher()
            sink = SinkTopic(PubSubSink(topic=TOPIC, resend=resend), lambda topic=topic: topic)
            assert sink.unknown_ids(store) == []
            assert bool(sink.complete(store, registration)) == bool(count)
            assert sorted(topic.sent) == sorted(ids[len(ids) - count :])
