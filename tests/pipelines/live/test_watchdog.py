"""The watchdog of a live job: which causes it names, and when, by a clock of the tests' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from quiltstream.pipelines.live.watchdog import PATIENCE_S, Cause, PendingCall, Sight, Stuck, Watchdog
from quiltstream.transforms.sources.progress import LEDGER, Heartbeat
from quiltstream.transforms.sources.reader import PollingPolicy

DAY_US = 86_400_000_000
NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00Z
TODAY = NOW_US // DAY_US


@dataclass
class Post:
    """A watchdog over one job, whose time the test moves on; slots are days."""

    pace: PollingPolicy = field(default_factory=lambda: PollingPolicy(begin_us=0))
    here: bool = True
    at: float = 1_000.0
    dog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.pace, self.at, lambda slot: slot * DAY_US, lambda: self.at, lambda: NOW_US)
        self.dog.here = self.here

    def after(self, seconds: float = PATIENCE_S + 1) -> float:
        self.at += seconds
        return self.at

    def look(self, *heartbeats: Heartbeat, missing: int | None = 1, **around: Any) -> set[str]:
        """The causes that hold."""
        self.dog.look(Sight(missing, around.pop("tallies", None), heartbeats=dict(enumerate(heartbeats)), **around))
        return {cause.value for cause in self.dog.report.causes}

    def heartbeat(self, clock_us: int = 0, heard: float | None = None, **told: Any) -> Heartbeat:
        """A reader that looked just now."""
        made = Heartbeat(self.at, self.at if heard is None else heard, None, clock_us, 1, looked=self.at)
        for name, value in told.items():
            setattr(made, name, value)
        return made


def test_a_progressing_job_has_no_cause() -> None:
    post = Post()
    for window in range(100):
        post.after(PATIENCE_S - 1)
        assert post.look(post.heartbeat(window * DAY_US), missing=window) == set()


@pytest.mark.parametrize("poll_s", [1.0, 60.0, 3600.0])
def test_stopped_readers_are_named_within_a_minute_and_until_they_look_again(poll_s: float) -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s))
    still = post.heartbeat()
    assert post.look(still) == set()
    post.after(PATIENCE_S)
    assert post.look(still) == set()
    post.after(1)
    assert post.look(still) == {"no-worker"}
    assert post.look(post.heartbeat()) == set()
    assert post.dog.over() == [Cause.NO_WORKER.well]


@pytest.mark.parametrize(("poll_s", "patience_s"), [(1.0, PATIENCE_S), (60.0, 180.0)])
def test_remote_readers_are_watched_by_the_counters_of_the_runner(poll_s: float, patience_s: float) -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s, rest_s=1.1), here=False)
    for polls in range(1, 6):
        assert post.look(tallies={"polls": polls}) == set()
        post.after(poll_s)
    post.after(patience_s - poll_s)
    assert post.look(tallies={"polls": 5}) == set()
    post.after(1)
    assert post.look(tallies={"polls": 5}) == {"no-worker"}


def test_a_source_is_silent_by_its_looks_and_not_between_them() -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=60.0))
    heard = post.at
    for _ in range(10):
        heard = looked = post.at
        for _ in range(6):
            post.after(10)
            assert "source-silent" not in post.look(Heartbeat(post.at, heard, None, DAY_US, 1, looked=looked))
    assert "source-silent" in post.look(Heartbeat(post.at, heard, None, DAY_US, 1, looked=post.at))


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ({"trouble": "the folder inbox is not there"}, "source-away"),
        ({"left_out": ("load/1",)}, "source-left-out"),
        ({"latest_us": NOW_US + 3652 * DAY_US}, "clock-ahead"),
    ],
)
def test_what_a_reader_tells_is_named_at_once_and_until_it_is_over(told: dict[str, Any], cause: str) -> None:
    post = Post()
    assert post.look(post.heartbeat()) == set()
    assert post.look(post.heartbeat(**told)) == {cause}
    assert post.look(post.heartbeat()) == set()


def test_a_window_is_held_if_its_source_has_passed_it() -> None:
    post = Post()
    for clock_us, held in ((DAY_US - 1, False), (DAY_US, True)):
        post.look(post.heartbeat(clock_us))
        post.after()
        assert ("window-held" in post.look(post.heartbeat(clock_us))) is held
    assert "window-held" not in post.look(post.heartbeat(3 * DAY_US), missing=3)


@pytest.mark.parametrize(("missing", "overdue"), [(TODAY, False), (TODAY - 1, True), (None, False)])
def test_where_nothing_is_told_a_window_is_overdue_by_the_clock_on_the_wall(missing: int | None, overdue: bool) -> None:
    post = Post(here=False)
    post.look(missing=missing)
    post.after()
    assert post.look(missing=missing) == ({"window-overdue"} if overdue else set())


def test_a_clock_that_stands_while_readings_arrive_is_named() -> None:
    post = Post()
    for seconds in (PATIENCE_S, 1):
        assert post.look(post.heartbeat(5)) == set()
        post.after(seconds)
    assert post.look(post.heartbeat(5)) == {"clock-stalled"}
    assert post.look(post.heartbeat(DAY_US)) == set()


@pytest.mark.parametrize(
    "around",
    [
        lambda _: {"waits": {f"{LEDGER}1": "no room left"}},
        lambda _: {"away": "the server is away"},
        lambda post: {"pending": PendingCall(Cause.LEDGER, post.at - PATIENCE_S)},
    ],
    ids=["workers wait", "cannot be looked at", "does not answer"],
)
def test_a_ledger_that_is_away_is_the_cause_of_workers_that_stand(around: Callable[[Post], dict[str, Any]]) -> None:
    post = Post()
    still = post.heartbeat()
    post.look(still)
    post.after()
    assert post.look(still, **around(post)) == {"ledger-away"}


def test_a_sink_that_is_waited_for_is_named() -> None:
    post = Post()
    assert post.look(post.heartbeat(), waits={"sink.kafka": "it waits"}) == {"sink-away"}
    assert post.look(post.heartbeat()) == set()


@pytest.mark.parametrize("cause", [Cause.POOL, Cause.FAILED, Cause.TASKMANAGER])
def test_a_fault_of_the_cluster_is_named_at_once_if_it_is_sure(cause: Cause) -> None:
    post = Post(here=False)
    unsure, sure = (Stuck(cause, "x", since=post.at, sure=one) for one in (False, True))
    assert post.look(missing=None, stuck=unsure) == set()
    assert post.look(missing=None, stuck=sure) == {cause.value}
    post.after()
    assert post.look(missing=None, stuck=unsure) == {cause.value}
    assert post.look(missing=None) == set()


@pytest.mark.parametrize(
    ("around", "told"),
    [({}, None), ({"waits": {"sink.kafka": "it waits"}}, None), ({"away": "x"}, None), ({}, "the folder is away")],
)
def test_only_workers_that_stay_away_for_no_known_reason_are_given_up(around: dict[str, Any], told: str | None) -> None:
    post = Post()
    still = post.heartbeat(trouble=told)
    for _ in range(200):
        post.look(still, **around)
        post.after(2)
    assert (post.dog.given_up_s is not None) is (not around and told is None)
