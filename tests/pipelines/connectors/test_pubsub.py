"""Pub/Sub in the settings: what is refused, where a run begins, what a topic gets again, and a whole job."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.connectors import pubsub
from quiltstream.pipelines.connectors.live import ResentTopic
from quiltstream.pipelines.connectors.pubsub import begun_in_subscription, pubsub_source
from quiltstream.pipelines.errors import AwayError
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.job import pace_of
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.private_histograms import goes_on
from quiltstream.transforms.pubsub import PubSubSubscription, PubSubTopic
from quiltstream.transforms.sources.reader import PollingPolicy

from ...present import present
from ...transforms.pubsub.fake import FakeService, Stream, clients_error
from ..jobs import START, call, job, readings

DAY_US = 86_400_000_000
MARCH_US = 1_709_251_200_000_000  # 2024-03-01T00:00Z
SUBSCRIPTION = "projects/my-grid/subscriptions/meters"
READINGS = {"each": "payload", "series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}


def made(folder: Path, pubsub: dict[str, Any] | None = None, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "source": {"pubsub": {"subscription": SUBSCRIPTION} | (pubsub or {})},
        "readings": READINGS,
        "windows": {"size": "1d", "start": "2024-03-01"},
        "sink": {"parquet": "releases"},
        "rejects": {"csv": "rejects"},
    }
    return read_settings(job(folder, [], **(given | changes)).settings)


def first_pace(settings: Settings, windows: int = 0) -> PollingPolicy:
    """The pace of a run with so many windows on record."""
    schedule = settings.schedule
    slot = list(islice(schedule.windows(), windows + 1))[-1].stop - 1
    return pace_of(settings, settings.grid, schedule, settings.grid.time_of(slot))


@pytest.mark.parametrize(
    ("pubsub", "said"),
    [
        ({"subscription": "meters"}, "'meters' is not written as projects/PROJECT/subscriptions/NAME"),
        ({"subscription": "projects/my-grid/topics/meters"}, "is not written as"),
        ({"settle": "10s"}, "settle is 10s, and what a lost worker held comes again only after 30 s"),
        ({"outstanding": 1}, "outstanding"),
        ({"mode": "at-least-once"}, "mode"),
    ],
)
def test_a_mistake_in_the_section_is_named(tmp_path: Path, pubsub: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        made(tmp_path, pubsub)
    assert said in str(raised.value)


def test_silence_that_would_close_windows_of_pub_sub_is_refused(tmp_path: Path) -> None:
    settings = made(tmp_path, live={"idle": "15min"})
    with pytest.raises(SettingsError, match=r"live\.idle would close windows because nothing arrives"):
        pubsub_source(settings)


def test_one_topic_for_rows_and_rejects_is_refused(tmp_path: Path) -> None:
    topic = {"pubsub": {"topic": "projects/my-grid/topics/out"}}
    made(tmp_path, sink=topic, rejects=topic)
    call("run", "--live", tmp_path / "settings.yaml").ended(2, "sink.pubsub and rejects.pubsub name the same topic")
    assert not (tmp_path / "ledger.db").exists()


# Where a run begins


class Admin:
    """The service as far as a run asks it at its beginning."""

    def __init__(self, days: float = 0.0, topic_days: float = 0.0, error: Exception | None = None) -> None:
        self.days, self.topic_days, self.error = days, topic_days, error
        self.sought: list[datetime] = []

    def get_subscription(self, request: dict[str, Any], timeout: float) -> Any:
        assert request == {"subscription": SUBSCRIPTION}
        assert timeout > 0
        if self.error is not None:
            raise self.error
        return SimpleNamespace(
            retain_acked_messages=bool(self.days),
            message_retention_duration=timedelta(days=self.days or 7),
            topic_message_retention_duration=timedelta(days=self.topic_days),
        )

    def seek(self, request: dict[str, Any], timeout: float) -> None:
        assert request["subscription"] == SUBSCRIPTION
        assert timeout > 0
        self.sought.append(request["time"])

    def close(self) -> None:
        """Clients are let go of."""


NOTHING = PipelineOptions([])


def test_without_rereading_only_windows_that_start_after_the_beginning_are_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = made(tmp_path)
    now = MARCH_US + 10 * DAY_US + 1
    pace = begun_in_subscription(settings, first_pace(settings), NOTHING, subscriber=Admin, now_us=now)
    # the window of the day after that ends a day later
    assert now + DAY_US - 2 < pace.begin_us < MARCH_US + 12 * DAY_US
    assert "windows that start before 2024-03-11T00:00:00" in capsys.readouterr().err
    before = first_pace(settings)
    assert begun_in_subscription(settings, before, NOTHING, now_us=MARCH_US) == before


@pytest.mark.parametrize("admin", [Admin(days=7), Admin(topic_days=7), Admin(days=1, topic_days=7)])
def test_rereading_seeks_to_before_the_first_missing_window(tmp_path: Path, admin: Admin) -> None:
    settings = made(tmp_path, {"reread": "6h"})
    admin.sought = []
    pace = first_pace(settings, windows=4)
    now = MARCH_US + 10 * DAY_US
    assert begun_in_subscription(settings, pace, NOTHING, subscriber=lambda: admin, now_us=now) == pace
    assert admin.sought == [datetime(2024, 3, 4, 18, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (None, SettingsError, "keeps nothing that was acknowledged; set retain_acked_messages"),
        (clients_error("NotFound"), SettingsError, "it is not there"),
        # at a restart this is waited for, as it is for the ledger
        (clients_error("ServiceUnavailable"), AwayError, "Nothing was charged: mend it and run again"),
    ],
)
def test_a_subscription_that_cannot_be_sought_ends_the_run(
    tmp_path: Path, error: Exception | None, kind: type[Exception], said: str
) -> None:
    settings = made(tmp_path, {"reread": "6h"})
    admin = Admin(error=error)
    with pytest.raises(kind, match=said) as raised:
        begun_in_subscription(settings, first_pace(settings), NOTHING, subscriber=lambda: admin)
    assert "quote" not in str(raised.value)
    assert admin.sought == []


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ([], False),
        (["--update"], True),
        (["--create_from_snapshot=s"], True),
        (["--savepoint_path=file:///x"], True),
        (["--job_name=x"], False),
    ],
)
def test_a_job_resuming_from_runner_state_does_not_seek(tmp_path: Path, words: list[str], *, on: bool) -> None:
    options = PipelineOptions(words)
    assert goes_on(options) == on
    settings = made(tmp_path, {"reread": "6h"})
    admin, pace = Admin(days=7), first_pace(settings)
    begun_in_subscription(settings, pace, options, subscriber=lambda: admin)
    assert bool(admin.sought) != on


# A whole job

#: The service of the job that runs: workers find it here.
_SHARED = {"service": FakeService()}


def begin(client: Any, subscription: str, callback: Any, messages: int) -> Stream:
    return _SHARED["service"].begin(client, subscription, callback, messages)


def service() -> FakeService:
    return _SHARED["service"]


def clock() -> float:
    """Each look is a second later, so that the source settles."""
    _SHARED["service"].clock += 1.0
    return _SHARED["service"].clock


class Topic:
    """A topic that keeps what it is sent."""

    sent: list[dict[str, str]]

    def __init__(self) -> None:
        self.sent = []

    def publish(self, topic: str, data: bytes, **attributes: str) -> Future[str]:
        assert topic
        assert data
        self.sent.append(attributes)
        future: Future[str] = Future()
        future.set_result("1")
        return future

    def stop(self) -> None:
        """Clients are let go of."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeService]:
    """The job's subscription in memory, and a runner that ends with the schedule."""
    request.getfixturevalue("ending")
    _SHARED["service"] = FakeService(START.timestamp() + 9 * 86_400)

    def faked(settings: Settings, group: str | None = None) -> PubSubSubscription:
        feed = pubsub_source(settings, group)
        return replace(
            feed, subscription="projects/grid/subscriptions/meters", subscriber=service, stream=begin, now=clock
        )

    def begun(settings: Settings, pace: PollingPolicy, options: PipelineOptions) -> PollingPolicy:
        admin = Admin(days=30)
        return begun_in_subscription(
            settings, pace, options, subscriber=lambda: admin, now_us=round(_SHARED["service"].clock * 1e6) - 2 * DAY_US
        )

    monkeypatch.setattr("quiltstream.transforms.pubsub._WAIT_S", 0.001)
    monkeypatch.setattr(pubsub, "begun_in_subscription", begun)
    monkeypatch.setattr(pubsub, "pubsub_source", faked)
    yield _SHARED["service"]
    _SHARED["service"] = FakeService()


def job_over(folder: Path) -> Settings:
    return made(
        folder,
        {"reread": "1d"},
        windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-08"},
        readings=READINGS,
        live={"poll": "10ms"},
    )


@pytest.mark.night
@pytest.mark.usefixtures("fake")
def test_rows_of_a_subscription_equal_plain_counting(tmp_path: Path, fake: FakeService) -> None:
    """With the noise off."""
    rows = readings(8)
    for number, (meter, stamp, value) in enumerate(rows):
        fake.publish(f'{{"meter": "{meter}", "ts": "{stamp}", "kwh": {value}}}'.encode(), name=f"{number}")
    settings = job_over(tmp_path)
    histograms = PrivateHistograms(settings, noise="none")
    made_ = build.live_job(settings, histograms, [])
    made_.pipeline.run().wait_until_finish()
    made_.follower.close()
    expected: dict[tuple[str, str], list[int]] = {}
    for meter, stamp, value in rows:
        watts = value * 2000
        bin_ = sum(watts >= edge for edge in (250, 500, 1000, 2000))
        if stamp < "2024-03-08":
            key = (stamp[:10], "north" if meter < "m4" else "south")
            expected.setdefault(key, [0] * 5)[bin_] += 1
    found: dict[tuple[str, str], list[int]] = {}
    with Store(settings.ledger_url, create=False) as store:
        for batch in store.releases(settings.domain, settings.query):
            for one in releases_from_batch(batch):
                day = datetime.fromtimestamp(one.window_start / 1e6, UTC).date().isoformat()
                found[day, one.key] = list(one.counts)
    assert found == expected


@pytest.mark.night
@pytest.mark.usefixtures("fake")
def test_a_drained_job_publishes_nothing_that_was_not_declared(
    tmp_path: Path, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner truncates the source and then fires every window."""

    def draining(options: PipelineOptions) -> beam.Pipeline:
        return beam.Pipeline(runner=FnApiRunner(is_drain=True), options=options)

    monkeypatch.setattr(build, "live_pipeline", draining)
    for number, (meter, stamp, value) in enumerate(readings(8)):
        fake.publish(f'{{"meter": "{meter}", "ts": "{stamp}", "kwh": {value}}}'.encode(), name=f"{number}")
    settings = job_over(tmp_path)
    made_ = build.live_job(settings, PrivateHistograms(settings, noise="none"), [])
    made_.pipeline.run().wait_until_finish()
    made_.follower.close()
    assert fake.acked == []
    with Store(settings.ledger_url, create=False) as store:
        assert list(store.releases(settings.domain, settings.query)) == []
        assert [one for one in store.entries(settings.domain) if one.decision == "charged"] == []


@pytest.mark.night
def test_the_last_windows_are_sent_again_when_a_run_begins(tmp_path: Path, fake: FakeService) -> None:
    for number, (meter, stamp, value) in enumerate(readings(8)):
        fake.publish(f'{{"meter": "{meter}", "ts": "{stamp}", "kwh": {value}}}'.encode(), name=f"{number}")
    settings = job_over(tmp_path)
    histograms = PrivateHistograms(settings, noise="none")
    one = build.live_job(settings, histograms, [])
    one.pipeline.run().wait_until_finish()
    topic = Topic()
    place = PubSubTopic("projects/my-grid/topics/out", publisher=lambda: topic)
    with Store(settings.ledger_url, create=False) as store:
        registration = present(store.registered(settings.domain, settings.query))
        ids = [
            row.release_id
            for batch in store.releases(settings.domain, settings.query)
            for row in releases_from_batch(batch)
        ]
        for resend, rows in ((0, 0), (1, 2), (3, 6), (100, len(ids))):
            topic.sent = []
            sink = ResentTopic(place, resend)
            assert sink.unknown_ids(store) == []
            sink.complete(store, registration)
            assert sorted(sent["release_id"] for sent in topic.sent) == sorted(ids[len(ids) - rows :])
    one.follower.close()
