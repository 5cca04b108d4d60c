"""The watchdog of a live job: which causes it names, and when, by a clock of the tests' own; and its page."""

from __future__ import annotations

import re
import socket
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import pytest

from quiltstream.pipelines.live.watch import PATIENCE_S, Cause, Health, News, Sight, Watchdog, health_page
from quiltstream.schemas.readings import RejectReason
from quiltstream.transforms.sources.progress import LEDGER, Heartbeat, Work
from quiltstream.transforms.sources.reader import PollingPolicy

from ..live_jobs import Said

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
    said: Said = field(default_factory=Said)

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.pace, lambda slot: slot * DAY_US, self.here, lambda: self.at, lambda: NOW_US)
        self.news = News(self.said, lambda: self.at)

    def look(self, *heartbeats: Heartbeat, missing: int | None = 1, **around: Any) -> set[str]:
        """The causes that hold."""
        given: dict[str, Any] = {"waits": {}, "work": ()} | around
        found = self.dog.look(Sight(missing, heartbeats=dict(enumerate(heartbeats)), **given))
        self.news.of(found)
        return {cause.value for cause in found}

    def for_a_while(self, *heartbeats: Heartbeat, seconds: float = PATIENCE_S + 2, **around: Any) -> set[str]:
        """The causes that hold after so many seconds of it; heartbeats at 0 are those of readers that look."""
        found: set[str] = set()
        for _ in range(int(seconds // 2) + 1):
            found = self.look(*heartbeats, **around)
            self.at += 2
        return found

    def heartbeat(self, clock_us: int = 0, heard: float | None = None, **told: Any) -> Heartbeat:
        """A reader that looked just now."""
        made = Heartbeat(self.at, self.at if heard is None else heard, None, clock_us, 1, looked=self.at)
        for name, value in told.items():
            setattr(made, name, value)
        return made

    def arriving(self, seconds: float = PATIENCE_S + 6, missing: int | None = 1, **told: Any) -> set[str]:
        """The causes that hold after so many seconds in which readings arrive."""
        found: set[str] = set()
        for _ in range(int(seconds // 2) + 1):
            found = self.look(self.heartbeat(**told), missing=missing)
            self.at += 2
        return found


def test_a_progressing_job_has_no_cause() -> None:
    post = Post()
    for window in range(200):
        assert post.look(post.heartbeat(window * DAY_US), missing=window) == set()
        post.at += 2
    assert post.said == []


@pytest.mark.parametrize("poll_s", [1.0, 60.0, 3600.0])
def test_stopped_readers_are_named_within_a_minute_and_until_they_look_again(poll_s: float) -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s))
    still = post.heartbeat()
    assert post.for_a_while(still, seconds=PATIENCE_S - 2) == set()
    assert post.for_a_while(still, seconds=4) == {"no-worker"}
    assert post.look(post.heartbeat()) == set()
    assert [line.partition(" for ")[0] for line in post.said] == [
        "warning: no-worker: no worker has looked at the source",
        "resumed: no-worker: workers look at the source again",
    ]


@pytest.mark.parametrize("what", ["file inbox/day.jsonl.gz", "sink"])
def test_what_a_worker_is_at_is_named_beside_readers_that_stand(what: str) -> None:
    post = Post()
    post.for_a_while(post.heartbeat(), work=(Work(what, post.at + 1),))
    (line,) = post.said
    assert line.endswith(f"; one has been at the {what} for 31 s")


@pytest.mark.parametrize(("poll_s", "patience_s"), [(1.0, PATIENCE_S), (60.0, 180.0)])
def test_remote_readers_are_watched_by_the_counters_of_the_runner(poll_s: float, patience_s: float) -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s, rest_s=1.1), here=False)
    for polls in range(1, 6):
        assert post.for_a_while(tallies={"polls": polls}, seconds=poll_s, missing=None) == set()
    assert post.for_a_while(tallies={"polls": 5}, seconds=patience_s - poll_s - 4, missing=None) == set()
    assert post.for_a_while(tallies={"polls": 5}, seconds=10, missing=None) == {"no-worker"}


def test_a_source_is_silent_by_its_looks_and_not_between_them() -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=60.0))
    heard = looked = post.at
    for _ in range(30):
        post.look(Heartbeat(post.at, heard, None, DAY_US, 1, looked=looked), missing=None)
        post.at += 2
        assert not post.dog.found
    assert post.look(Heartbeat(post.at, heard, None, DAY_US, 1, looked=post.at)) == {"source-silent"}


def test_a_source_that_cannot_be_read_is_named_at_once_and_until_it_is_over() -> None:
    post = Post()
    assert post.look(post.heartbeat()) == set()
    assert post.look(post.heartbeat(trouble="the folder inbox is not there")) == {"source-away"}
    assert post.look(post.heartbeat()) == set()


def test_a_window_is_overdue_if_its_source_has_passed_it() -> None:
    for clock_us, held in ((DAY_US - 1, False), (DAY_US, True)):
        post = Post()
        for _ in range(20):
            post.look(post.heartbeat(clock_us, behind=not held))
            post.at += 2
        assert post.look(post.heartbeat(clock_us, behind=not held)) == ({"window-overdue"} if held else set())
        assert post.look(post.heartbeat(3 * DAY_US), missing=3) == set()


@pytest.mark.parametrize(("missing", "overdue"), [(TODAY, False), (TODAY - 1, True), (None, False)])
def test_where_nothing_is_told_a_window_is_overdue_by_the_clock_on_the_wall(missing: int | None, overdue: bool) -> None:
    assert Post(here=False).for_a_while(missing=missing) == ({"window-overdue"} if overdue else set())


def test_a_window_is_overdue_if_readings_arrive_and_the_clock_stands() -> None:
    post = Post()
    assert post.arriving(seconds=PATIENCE_S - 2, clock_us=5) == set()
    assert post.arriving(clock_us=5) == {"window-overdue"}
    assert "readings arrive, and none is later than 1970-01-01" in post.said[0]
    assert post.arriving(seconds=0, clock_us=DAY_US) == set()


@pytest.mark.parametrize(
    "around",
    [
        {"waits": {f"{LEDGER}1": "no room left"}},
        {"ledger": "the server is away"},
        {"ledger_s": PATIENCE_S},
        {"work": (Work(f"{LEDGER}of record", 0.0),)},
    ],
    ids=["workers wait", "cannot be looked at", "does not answer", "a worker's call is not answered"],
)
def test_a_ledger_that_is_away_is_the_only_cause_of_workers_that_stand(around: dict[str, Any]) -> None:
    post = Post()
    assert post.for_a_while(post.heartbeat(), **around) == {"ledger-away"}
    # also first: nothing else was said before
    assert {line.split(": ")[1] for line in post.said} == {"ledger-away"}


@pytest.mark.parametrize(
    ("around", "cause", "words"),
    [
        ({"waits": {"sink.kafka": "no broker took them"}}, "window-overdue", "windows wait for the sink: no broker"),
        ({"cluster": "3 of 5 tasks do not run"}, "no-worker", "3 of 5 tasks do not run"),
        ({"runner_s": PATIENCE_S + 1}, "no-worker", "the runner has not answered for 31 s"),
    ],
)
def test_the_part_that_does_not_answer_is_named(around: dict[str, Any], cause: str, words: str) -> None:
    post = Post()
    assert post.look(post.heartbeat(), **around) == {cause}
    assert words in post.said[0]
    assert post.look(post.heartbeat()) == set()


def test_a_process_that_stood_still_hears_anew() -> None:
    post = Post()
    post.for_a_while(post.heartbeat(), seconds=10)
    post.at += 1_000
    assert post.look(post.heartbeat(beaten=0.0, looked=0.0)) == set()


@pytest.mark.parametrize(
    "around", [{}, {"waits": {"sink.kafka": "it waits"}}, {"ledger": "x"}, {"work": (Work("sink", 0.0),)}]
)
def test_only_workers_that_stay_away_for_no_known_reason_are_given_up(around: dict[str, Any]) -> None:
    post = Post()
    post.for_a_while(post.heartbeat(), seconds=400, **around)
    assert (post.dog.given_up_s is not None) is (not around)


def test_the_same_is_said_again_after_a_while_and_another_reason_sooner() -> None:
    post = Post()
    for seconds, trouble in ((298, "a"), (2, "a"), (28, "b"), (4, "b")):
        post.arriving(seconds=seconds, missing=None, trouble=trouble)
    assert [line[-1] for line in post.said] == ["a", "a", "b"]


def samples(health: Health) -> dict[str, float]:
    """Name with labels, and value, of everything on a page."""
    return {
        one.name.removeprefix("quiltstream_live_") + "".join(f"/{label}" for label in one.labels.values()): one.value
        for family in health.collect()
        for one in family.samples
    }


def test_the_page_has_every_cause_and_the_runners_counts() -> None:
    health, post = Health(now=lambda: 100.0), Post()
    post.look(post.heartbeat(5_000_000), ledger="away")
    seen = Sight(1, {}, heartbeats={0: post.heartbeat(5_000_000)}, waits={}, work=())
    health.note(post.dog, seen)
    found = samples(health)
    assert {name for name, value in found.items() if name.startswith("trouble") and value} == {"trouble/ledger-away"}
    assert sum(name.startswith("trouble") for name in found) == len(Cause) == 5
    assert (found["looked_seconds"], found["clock_seconds"], found["worker_silent_seconds"]) == (100.0, 5.0, 0.0)
    # a runner that tells no counters is not one that has read nothing
    assert not [name for name in found if "total" in name]
    counts = {"polls": 3, "decoded-readings": 100, "rejected-late": 20, "duplicates": 4, "outside-schedule": 5}
    health.note(post.dog, Sight(1, counts, waits={}, work=()))
    found = samples(health)
    assert (found["readings_total"], found["duplicates_total"], found["outside_schedule_total"]) == (100, 4, 5)
    assert {name for name in found if name.startswith("rejected")} == {f"rejected_total/{one}" for one in RejectReason}
    assert found["rejected_total/late"] == 20


def test_the_page_is_served_on_the_loopback_address_during_the_command() -> None:
    said = Said()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with health_page(0, said):
        (port,) = re.findall(r"^metrics: what the watchdog finds is at 127\.0\.0\.1:(\d+)/metrics$", said[0])
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert 'quiltstream_live_trouble{cause="no-worker"} 0.0' in answer.read().decode()
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.2", int(port))) != 0
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", int(port))) != 0
