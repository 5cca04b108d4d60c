"""The watchdog of a live job, by clocks of the tests' own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from quiltstream.pipelines.live.watchdog import PATIENCE_S, Cause, PendingCall, Sight, Stuck, Watchdog, WatchLoop
from quiltstream.transforms.sources.progress import LEDGER, Heartbeat
from quiltstream.transforms.sources.reader import PollingPolicy

DAY_US = 86_400_000_000
NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00Z


@dataclass
class Post:
    """A watchdog over one job, whose time the test moves on."""

    pace: PollingPolicy = field(default_factory=lambda: PollingPolicy(begin_us=0))
    at: float = 1_000.0
    dog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.pace, self.at, lambda slot: slot * DAY_US, lambda: self.at, lambda: NOW_US)

    def after(self, seconds: float) -> float:
        self.at += seconds
        return self.at

    def look(
        self, *heartbeats: Heartbeat, missing: int | None = 1, tallies: dict[str, int] | None = None, **around: Any
    ) -> list[str]:
        return self.dog.look(Sight(missing, tallies, heartbeats=dict(enumerate(heartbeats)), **around))

    @property
    def causes(self) -> set[str]:
        """What the metric says of the last look."""
        return {cause.value for cause in self.dog.report.causes}

    def heartbeat(self, clock_us: int = 0, latest_us: int | None = None, heard: float | None = None) -> Heartbeat:
        """A reader that looked just now."""
        return Heartbeat(self.at, self.at if heard is None else heard, latest_us, clock_us, 1, looked=self.at)


def test_a_progressing_job_gives_no_warning() -> None:
    post = Post()
    for window in range(100):
        post.after(PATIENCE_S - 1)
        assert post.look(post.heartbeat(clock_us=window * DAY_US), missing=window) == []


def test_stopped_readers_are_reported_within_a_minute_and_rarely_after() -> None:
    post = Post()
    assert post.look(post.heartbeat()) == []
    still = post.heartbeat()
    post.after(PATIENCE_S)
    assert post.look(still) == []
    post.after(1)
    (text,) = post.look(still)
    assert text.startswith("no worker has looked at the source for 31 s: the worker pool may be gone")
    post.after(200)
    assert post.look(still) == []
    post.after(100)
    assert len(post.look(still)) == 1


def test_a_job_that_never_polled_its_source_is_reported() -> None:
    post = Post()
    assert post.look() == []
    post.after(PATIENCE_S + 1)
    assert "no worker has looked" in post.look()[0]


def test_remote_readers_are_monitored_by_the_counters_of_the_runner() -> None:
    post = Post()
    for polls in range(1, 10):
        post.after(PATIENCE_S - 1)
        assert post.look(tallies={"polls": polls}) == []
    post.after(PATIENCE_S + 1)
    assert "no worker has looked" in post.look(tallies={"polls": 9})[0]


@pytest.mark.parametrize("poll_s", [1.0, 60.0, 3600.0])
def test_a_slow_poll_does_not_extend_the_timeout_for_missing_workers(poll_s: float) -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s))
    still = post.heartbeat()
    post.after(PATIENCE_S)
    assert post.look(still) == []
    post.after(1)
    assert "no worker" in post.look(still)[0]
    assert post.causes == {"no-worker"}


@pytest.mark.parametrize(("poll_s", "patience_s"), [(1.0, PATIENCE_S), (60.0, 180.0)])
def test_remote_readers_that_poll_rarely_are_not_reported_missing(poll_s: float, patience_s: float) -> None:
    """They give no signs of life between two looks: a runner that keeps every call for ever is asked for few."""
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s, rest_s=1.1))
    post.dog.here = False
    for polls in range(1, 6):
        assert post.look(tallies={"polls": polls}) == []
        post.after(poll_s)
        assert post.look(tallies={"polls": polls}) == []
        assert post.causes == set()
    post.after(patience_s - poll_s)
    assert post.look(tallies={"polls": 5}) == []
    post.after(1)
    assert f"no worker has looked at the source for {patience_s + 1:.0f} s" in post.look(tallies={"polls": 5})[0]
    assert post.causes == {"no-worker"}


def test_a_rarely_polled_source_is_not_reported_silent_between_polls() -> None:
    """Readings come with each look, and between two looks nobody can hear any; the readers give signs of life."""
    post = Post(PollingPolicy(begin_us=0, poll_s=60.0))
    heard = post.at
    for minute in range(10):
        heard = looked = post.at
        for _ in range(6):
            post.after(10.0)
            heartbeat = Heartbeat(post.at, heard, None, 0, 1, looked=looked)
            assert not any("nothing new" in text or "no worker" in text for text in post.look(heartbeat)), minute
            assert "source-silent" not in post.causes
    # a look that found nothing tells it
    assert "nothing new for over 30 s" in post.look(Heartbeat(post.at, heard, None, 0, 1, looked=post.at))[0]
    assert "source-silent" in post.causes


@pytest.mark.parametrize(("idle_us", "end"), [(None, "Its windows wait"), (1, "wait until live.idle has passed")])
def test_a_silent_source_is_reported_with_the_effect_on_its_windows(idle_us: int | None, end: str) -> None:
    post = Post(PollingPolicy(begin_us=0, idle_us=idle_us))
    heard = post.at
    post.after(PATIENCE_S + 1)
    (text,) = post.look(post.heartbeat(heard=heard))
    assert text.startswith("the source has had nothing new for over 30 s: is what feeds it away?")
    assert text.endswith(end)


def test_a_silent_partition_is_reported_with_the_number_of_partitions() -> None:
    post = Post()
    heard = post.at
    post.after(PATIENCE_S + 1)
    (text,) = post.look(post.heartbeat(heard=heard), post.heartbeat(), post.heartbeat())
    assert "for over 30 s in 1 of its 3 parts" in text


def test_a_reading_in_the_future_is_reported_with_its_instant() -> None:
    post = Post()
    assert post.look(post.heartbeat(latest_us=NOW_US + DAY_US)) == []
    (text,) = post.look(post.heartbeat(latest_us=NOW_US + 3652 * DAY_US))
    assert "2036-01-01T00:00:00Z" in text
    assert "a meter's clock may have jumped" in text


def test_a_window_passed_by_its_source_and_not_recorded_is_reported() -> None:
    post = Post()
    assert post.look(post.heartbeat(clock_us=DAY_US), missing=1) == []
    post.after(PATIENCE_S + 1)
    (text,) = post.look(post.heartbeat(clock_us=DAY_US), missing=1, tallies={"blocks-incomplete": 7})
    assert "past a window that is not on record" in text
    assert "7 incomplete blocks were dropped" in text


def test_a_window_just_due_or_not_passed_by_its_source_is_not_late() -> None:
    post = Post()
    assert post.look(post.heartbeat(clock_us=DAY_US - 1), missing=1) == []
    post.after(PATIENCE_S + 1)
    assert not any("past a window" in text for text in post.look(post.heartbeat(clock_us=DAY_US - 1), missing=1))
    assert post.look(post.heartbeat(clock_us=3 * DAY_US), missing=2) == []
    post.after(PATIENCE_S + 1)
    assert post.look(post.heartbeat(clock_us=3 * DAY_US), missing=None) == []


def test_a_heartbeat_is_kept_for_its_partition_until_another_job_starts() -> None:
    Heartbeat.reset()
    Heartbeat.of(3).beat(None, 7, rows=0)
    assert Heartbeat.of(3).heard == 0
    Heartbeat.of(3).beat(9, 8, rows=2)
    Heartbeat.of(3).beat(9, 8, rows=3)
    seen = Heartbeat.all()[3]
    assert (seen.latest_us, seen.clock_us, seen.rows) == (9, 8, 5)
    assert seen.heard > 0
    Heartbeat.reset()
    assert Heartbeat.all() == {}


def test_without_heartbeat_and_counters_only_a_late_window_is_reported() -> None:
    post = Post()
    post.dog.here = False
    today = NOW_US // DAY_US
    post.look(missing=today)
    post.after(10 * PATIENCE_S)
    assert post.look(missing=today) == []  # it ends now, and may be published any second
    overdue = Post()
    overdue.dog.here = False
    overdue.look(missing=today - 1)
    overdue.after(PATIENCE_S)
    assert overdue.look(missing=today - 1) == []
    overdue.after(1)
    (text,) = overdue.look(missing=today - 1)
    assert text.startswith("nothing was put on record for 31 s, and the window that ends at 2025-12-31T00:00:00Z")
    # once the runner has told a counter, its readers are watched by it
    overdue.look(missing=today - 1, tallies={"polls": 5})
    overdue.after(PATIENCE_S + 1)
    assert "no worker has looked" in overdue.look(missing=today - 1, tallies={"polls": 5})[0]


def test_an_unreadable_source_is_reported_at_once_with_the_readers_message() -> None:
    post = Post()
    heard = post.at
    post.after(PATIENCE_S + 1)
    away = post.heartbeat(heard=heard)
    away.trouble = "the folder inbox is not there"
    assert post.look(away) == [
        "the source cannot be read: the folder inbox is not there. Its windows wait; it is tried again"
    ]
    assert post.look(away) == []
    away.trouble = None
    assert "nothing new for over" in post.look(away)[0]


@pytest.mark.parametrize(("idle_us", "until"), [(None, "they have one"), (1, "live.idle has passed")])
def test_sources_without_a_first_reading_are_reported_as_awaited(idle_us: int | None, until: str) -> None:
    post = Post(PollingPolicy(begin_us=0, idle_us=idle_us))

    def look(*names: str) -> list[str]:
        heartbeat = post.heartbeat()
        heartbeat.waited_for = names
        return post.look(heartbeat)

    assert look("topic/3", "topic/1") == []
    post.after(PATIENCE_S)
    assert look("topic/1", "topic/3") == []
    post.after(1)
    assert look("topic/1", "topic/3") == [
        f"no reading has come yet of 2 sources (topic/1, topic/3): the windows wait until {until}"
    ]
    # another set is waited for anew
    assert look("a", "b", "c", "d") == []
    post.after(300)
    assert "4 sources (a, b, c and others)" in look("a", "b", "c", "d")[0]
    assert look() == []


def test_an_unavailable_ledger_is_reported_periodically_and_on_its_return() -> None:
    post = Post()
    said = ["the ledger of record cannot be looked at, and the job waits for it: busy"]
    assert post.look(post.heartbeat(), missing=None, away="busy") == said
    assert post.causes == {"ledger-away"}
    assert post.look(post.heartbeat(), missing=None, away="busy") == []
    post.after(300)
    assert post.look(post.heartbeat(), missing=None, away="busy") == said
    assert post.dog.over() == []
    assert post.look(post.heartbeat(), missing=None) == []
    assert post.causes == set()
    assert post.dog.over() == ["the ledger of record answers again"]
    assert post.dog.over() == []


def test_workers_waiting_for_a_full_ledger_are_reported_and_no_held_window() -> None:
    post, told = Post(), list[str]()
    waits = {f"{LEDGER}1": "no room left", f"{LEDGER}2": "no room left"}
    for quiet_s in (0, 10, 20, 31, 40):
        # readers stop before the ledger is back
        told += post.look(Heartbeat(post.at - quiet_s, post.at, None, DAY_US, 1, looked=post.at - quiet_s), waits=waits)
        assert post.causes == {"ledger-away"}
        post.after(PATIENCE_S)
    assert told == ["workers wait for the ledger of record: no room left"]
    assert post.look(post.heartbeat(clock_us=DAY_US)) == []
    assert post.dog.over() == ["the ledger of record answers again"]
    post.after(PATIENCE_S + 1)
    assert "past a window that is not on record" in post.look(post.heartbeat(clock_us=DAY_US))[0]


def test_a_held_window_is_neither_repeated_nor_ended_while_the_ledger_is_away() -> None:
    post = Post()
    post.look(post.heartbeat(clock_us=DAY_US))
    post.after(PATIENCE_S + 1)
    assert "past a window" in post.look(post.heartbeat(clock_us=DAY_US))[0]
    assert len(post.look(post.heartbeat(clock_us=DAY_US), waits={f"{LEDGER}1": "busy"})) == 1
    for _ in range(20):
        post.after(PATIENCE_S)
        found = post.look(post.heartbeat(clock_us=DAY_US), waits={f"{LEDGER}1": "busy"})
        assert not any("past a window" in text for text in found)
        assert (post.causes, post.dog.over()) == ({"ledger-away", "window-held"}, [])
    post.look(post.heartbeat(clock_us=DAY_US), missing=2)
    assert post.dog.over() == ["the ledger of record answers again", "the window that was held back is on record"]


def test_each_waiting_sink_is_reported_with_its_own_message() -> None:
    post = Post()
    assert post.look(post.heartbeat(), waits={"sink.kafka": "it waits"}) == ["it waits"]
    assert post.look(post.heartbeat(), waits={"sink.kafka": "it waits", "rejects.kafka": "so does this"}) == [
        "so does this"
    ]
    assert post.causes == {"sink-away"}
    post.look(post.heartbeat())
    assert post.dog.over() == ["the sink goes on"]


@pytest.mark.parametrize(
    ("whom", "cause", "said"),
    [
        (Cause.RUNNER, "runner-away", "the runner has not answered for 29 s when it was asked how the job is"),
        (Cause.LEDGER, "ledger-away", "the ledger of record has not answered for 29 s, and the job waits for it"),
    ],
)
def test_an_unanswered_request_is_the_likely_cause_of_stalled_workers(whom: Cause, cause: str, said: str) -> None:
    post = Post()
    still = post.heartbeat()
    post.after(2)
    asked = PendingCall(whom, post.at)
    post.after(29)
    (text,) = post.look(still, pending=asked)
    assert text.startswith(said)
    assert post.causes == {cause}
    # as long as workers are heard it has more time
    other = Post()
    other.after(PATIENCE_S)
    assert other.look(other.heartbeat(), pending=PendingCall(whom, 1_000.0)) == []
    other.after(1)
    assert "has not answered for 31 s" in other.look(other.heartbeat(), pending=PendingCall(whom, 1_000.0))[0]


def test_the_end_of_a_fault_is_reported_once_and_its_return_at_once() -> None:
    post = Post()
    for _ in range(3):
        still = post.heartbeat()
        post.after(PATIENCE_S + 1)
        assert len(post.look(still)) == 1
        post.after(5)
        assert post.look(still) == []
        assert post.causes == {"no-worker"}
        assert post.look(post.heartbeat()) == []
        assert post.causes == set()
        assert post.dog.over() == ["workers look at the source again"]


def test_an_often_silent_source_is_reported_rarely_but_always_in_its_metric() -> None:
    post = Post()
    said = 0
    for _ in range(9):
        heard = post.at
        post.after(PATIENCE_S + 1)
        said += len(post.look(post.heartbeat(heard=heard)))
        assert post.causes == {"source-silent"}
        post.look(post.heartbeat())
        assert post.causes == set()
    assert said == 1
    assert post.dog.over() == ["the source has something new again"]


def test_a_worker_fault_is_not_ended_while_no_worker_reports() -> None:
    post = Post()
    away = post.heartbeat()
    away.trouble = "the folder inbox is not there"
    post.look(away)
    post.after(PATIENCE_S + 1)
    post.look(away)
    assert post.causes == {"no-worker", "source-away"}
    assert post.dog.over() == []
    post.look(post.heartbeat())
    assert post.dog.over() == ["workers look at the source again", "the source can be read again"]


def test_health_metrics_give_the_time_without_workers_and_the_slowest_partition() -> None:
    post = Post()
    post.look(post.heartbeat(clock_us=5), Heartbeat(post.at - 7, post.at - 9, None, 3, looked=post.at - 7))
    assert (post.dog.report.worker_s, post.dog.report.clock_us) == (0.0, 3)
    post.after(4)
    post.look()
    assert (post.dog.report.worker_s, post.dog.report.clock_us) == (4.0, None)
    elsewhere = Post()
    elsewhere.dog.here = False
    elsewhere.look()
    assert elsewhere.dog.report.worker_s is None


def test_readings_that_do_not_advance_the_watermark_past_a_window_are_reported() -> None:
    post = Post()
    assert post.look(post.heartbeat(clock_us=DAY_US // 2)) == []
    post.after(PATIENCE_S)
    assert post.look(post.heartbeat(clock_us=DAY_US // 2)) == []
    post.after(1)
    (text,) = post.look(post.heartbeat(clock_us=DAY_US // 2))
    assert text.startswith("readings arrive, and the source's clock has stood at 1970-01-01T12:00:00Z for 31 s, so the")
    assert "the window that ends at 1970-01-02T00:00:00Z waits" in text


def test_a_watermark_stalled_without_readings_is_given_time_after_they_resume() -> None:
    post = Post()
    for _ in range(3):
        assert post.look(post.heartbeat(clock_us=5)) == []
        post.after(PATIENCE_S)
        assert not any("has stood" in text for text in post.look(post.heartbeat(clock_us=5)))
        still = post.heartbeat(clock_us=5)
        post.after(PATIENCE_S + 1)
        assert len(post.look(still)) == 1


def quiet(post: Post, seconds: int, clock_us: int = 5) -> list[str]:
    """Polls that find nothing after a reading of now, each seen by the watchdog a bit later."""
    told, heard = list[str](), post.at
    for _ in range(0, seconds, 2):
        looked = post.after(1)
        post.after(1)
        told += post.look(Heartbeat(looked, heard, None, clock_us, 1, looked=looked))
    return told


def test_a_file_that_ends_within_a_due_window_is_no_stall_of_the_watermark() -> None:
    post = Post()
    for hour in range(5, 8):
        assert not any("has stood" in text for text in quiet(post, 3_600, clock_us=hour))
        assert post.causes == {"source-silent"}
    # nor is one that is followed by another of the same time
    quiet(post, 10)
    assert not any("has stood" in text for text in quiet(post, 60))
    assert "clock-stalled" not in post.causes


def test_a_stall_of_the_watermark_ends_where_the_source_falls_silent() -> None:
    post = Post()
    told = [text for _ in range(20) for text in quiet(post, 4)]
    assert sum("has stood" in text for text in told) == 1
    assert post.causes == {"clock-stalled"}
    quiet(post, 40)
    assert post.causes == {"source-silent"}
    assert post.dog.over() == ["the source's clock moves again, or waits for something new"]
    # and the next one is said
    told = [text for _ in range(20) for text in quiet(post, 4)]
    assert sum("has stood" in text for text in told) == 1


def test_another_reason_of_the_same_fault_is_reported_at_most_every_30_s() -> None:
    post = Post()

    def look(trouble: str) -> list[str]:
        heartbeat = post.heartbeat()
        heartbeat.trouble = trouble
        return post.look(heartbeat, missing=None)

    assert len(look("no broker answers")) == 1
    post.after(2)
    assert look("the broker does not accept user and password") == []
    post.after(28)
    (text,) = look("the broker does not accept user and password")
    assert "does not accept user and password" in text
    for seconds in range(1, 20):
        # a number is no other reason
        post.after(2)
        assert look("the broker does not accept user and password") == []
        assert look(f"the broker does not accept user and password ({seconds})") == [] or seconds == 15
    assert post.dog.over() == []


def test_spans_begin_anew_after_a_pause_of_this_process() -> None:
    post = Post()
    still = post.heartbeat()
    post.look(still)
    asked = PendingCall(Cause.LEDGER, post.at)
    stuck = Stuck(Cause.POOL, "the worker pool takes no connection", since=post.at)
    post.after(3_600)
    post.dog.begin_anew()
    assert post.look(still, pending=asked, stuck=stuck) == []
    post.after(PATIENCE_S)
    assert post.look(still, stuck=stuck) == []
    assert post.causes == set()
    post.after(1)
    assert "no worker has looked at the source for 31 s" in post.look(still)[0]


def test_a_pause_of_this_process_is_said_once_and_blames_nobody() -> None:
    Heartbeat.reset()
    at, said = [1_000.0], list[str]()
    dog = Watchdog(PollingPolicy(begin_us=0), at[0], lambda _: 0, clock=lambda: at[0])
    guard = WatchLoop(dog, lambda kind, text: said.append(f"{kind}: {text}"))
    for gap in (2.0, 12.0, 2.0, 3_600.0, 2.0, 2.0):
        at[0] += gap
        guard.look(Sight())
    assert [one.partition(":")[0] for one in said] == ["warning"]
    assert said[0].startswith("warning: this process stood still for 3598 s: it was stopped, or its machine slept")
    assert dog.report.causes == frozenset()
    at[0] += 31.0
    dog.look(Sight())
    assert dog.report.causes == {Cause.NO_WORKER}


def test_workers_that_stay_away_for_minutes_without_a_known_reason_are_given_up() -> None:
    def seconds(moving: bool = False, here: bool = True, trouble: str | None = None, **around: Any) -> float | None:
        post = Post()
        post.dog.here = here
        still = post.heartbeat()
        still.trouble = trouble
        for step in range(200):
            post.look(still, tallies={"polls": 7, "x": step if moving else 0}, **around)
            if post.dog.given_up_s is not None:
                return post.at - 1_000.0
            post.after(2)
        return None

    given_up = seconds()
    assert given_up is not None
    assert 300 < given_up < 340
    assert seconds(moving=True) is None
    assert seconds(here=False) is None
    assert seconds(trouble="the folder is not there") is None
    assert seconds(waits={f"{LEDGER}1": "busy"}) is None
    assert seconds(waits={"sink.kafka": "it waits"}) is None
    assert seconds(away="the server is away") is None
    assert seconds(lost="the server does not answer") is None
    assert seconds(pending=PendingCall(Cause.RUNNER, 1_000.0)) is None


def test_a_watermark_is_stalled_only_if_a_window_is_due_and_readings_arrive() -> None:
    moving = Post()
    for second in range(5):
        assert moving.look(moving.heartbeat(clock_us=second)) == []
        moving.after(PATIENCE_S - 1)
    early = Post()
    today = NOW_US // DAY_US
    silent = Post()
    heard = silent.at
    for _ in range(3):
        # the window ends now, by the clock on the wall
        assert early.look(early.heartbeat(clock_us=5), missing=today) == []
        early.after(PATIENCE_S + 1)
        silent.after(PATIENCE_S + 1)
        assert not any("has stood" in text for text in silent.look(silent.heartbeat(clock_us=5, heard=heard)))


def test_a_persistent_fault_of_the_cluster_is_reported() -> None:
    post = Post()
    post.dog.here = False
    since = post.at
    stuck = Stuck(Cause.NO_WORKER, "no TaskManager is left", since=since)
    assert post.look(missing=None, stuck=stuck) == []
    post.after(PATIENCE_S)
    assert post.look(missing=None, stuck=stuck) == []
    assert post.causes == set()
    post.after(1)
    assert post.look(missing=None, stuck=stuck) == ["for 31 s, no TaskManager is left"]
    assert post.look(missing=None, stuck=stuck) == []
    assert post.causes == {"no-worker"}
    assert post.look(missing=None) == []
    assert post.dog.over() == ["workers look at the source again"]
    assert post.causes == set()


def test_a_source_excluded_from_windows_is_named_until_it_sends_again() -> None:
    post = Post()

    def looked(*names: str) -> list[str]:
        heartbeat = post.heartbeat()
        heartbeat.left_out = names
        return post.look(heartbeat)

    assert looked() == []
    post.after(1)
    (text,) = looked("load/3", "load/1")
    assert text.startswith("2 sources (load/1, load/3) had readings and none for live.idle: windows are closed without")
    assert post.causes == {"source-left-out"}
    post.after(1)
    assert looked("load/1") == []
    post.after(1)
    assert looked() == []
    assert post.dog.over() == ["every source that was left out has sent again"]
    assert post.causes == set()


@pytest.mark.parametrize("cause", [Cause.POOL, Cause.FAILED])
def test_a_certain_component_failure_is_reported_at_once_as_the_cause(cause: Cause) -> None:
    post = Post()
    stuck = Stuck(cause, "the worker pool takes no connection", since=post.at, sure=True)
    still = post.heartbeat()
    assert post.look(still, stuck=stuck) == ["the worker pool takes no connection"]
    post.after(2 * PATIENCE_S)
    assert post.look(still, stuck=stuck) == []
    assert post.causes == {cause.value}


def test_workers_waiting_for_an_unavailable_ledger_are_not_reported_missing() -> None:
    post = Post()
    still = post.heartbeat()
    post.after(2 * PATIENCE_S)
    (text,) = post.look(still, away="the server is away")
    assert text.startswith("the ledger of record cannot be looked at")
    assert post.causes == {"ledger-away"}


def test_a_late_window_under_a_known_cluster_fault_is_reported_without_a_cause() -> None:
    post = Post()
    post.dog.here = False
    stuck = Stuck(Cause.TASKMANAGER, "no TaskManager is left", since=post.at, sure=True)
    assert post.look(stuck=stuck) == ["no TaskManager is left"]
    post.after(PATIENCE_S + 1)
    (text,) = post.look(stuck=stuck)
    assert text.startswith("nothing was put on record for 31 s")
    assert text.endswith("is missing")


def test_a_slowly_read_backlog_is_not_reported_as_a_stalled_watermark() -> None:
    post = Post()
    for _ in range(10):
        heartbeat = post.heartbeat(clock_us=5)
        heartbeat.behind = True
        assert post.look(heartbeat) == []
        post.after(PATIENCE_S - 1)
    assert post.causes == set()


def test_a_nearly_stalled_watermark_is_reported_once() -> None:
    post, told, over = Post(), 0, 0
    for step in range(12):
        # a slow machine: a bit further after each 50 s
        for _ in range(5):
            told += sum("has stood" in text for text in post.look(post.heartbeat(clock_us=step)))
            over += len(post.dog.over())
            post.after(10)
    assert (told, over) == (1, 0)
    for step in range(12, 30):
        assert post.look(post.heartbeat(clock_us=step)) == []
        over += len(post.dog.over())
        post.after(10)
    assert over == 1
    # and a later one is another
    for _ in range(5):
        told += sum("has stood" in text for text in post.look(post.heartbeat(clock_us=30)))
        post.after(10)
    assert told == 2
