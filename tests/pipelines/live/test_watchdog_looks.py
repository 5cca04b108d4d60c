"""What the watchdog makes of looks that are far apart: a slow poll makes it slower here and there, and never wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quiltstream.pipelines.live.watchdog import PATIENCE_S, Sight
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.files import FileDecoder
from quiltstream.transforms.sources.progress import Heartbeat, Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ...present import present
from ...transforms.sources.test_live_pauses import Estimator, Runner
from .test_watchdog import DAY_US, NOW_US, Post

#: The promise.
MINUTE_S = 60.0


def seen(post: Post, ago: float, clock_us: int = 0, heard: float | None = None) -> Heartbeat:
    """A reader that looked some seconds ago and is alive."""
    looked = post.at - ago
    return Heartbeat(post.at, looked if heard is None else heard, None, clock_us, 1, looked=looked)


def test_source_clock_is_not_reported_stalled_between_polls() -> None:
    """A window becomes due between two looks: the next one closes it."""
    post = Post(PollingPolicy(begin_us=0, poll_s=300.0))
    for window in range(1, 4):
        # read to its end just now, and due long ago by the clock on the wall
        for ago in range(0, 300, 10):
            assert not any("has stood" in text for text in post.look(seen(post, ago, window * 5), missing=1)), ago
            assert "clock-stalled" not in post.causes
            post.after(10)


def test_a_watermark_unmoved_by_a_second_rare_poll_is_reported_after_it() -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=300.0))
    for ago in range(0, 300, 10):
        assert post.look(seen(post, ago, 5)) == []
        post.after(10)
    # it may be in the middle of what it reads
    assert post.look(seen(post, 0, 5)) == []
    post.after(10)
    assert post.look(seen(post, 10, 5)) == []
    post.after(2)
    (text,) = post.look(seen(post, 12, 5))
    assert text.startswith("readings arrive, and the source's clock has stood at 1970-01-01T00:00:00.000005Z for 312 s")


def test_a_rare_but_long_poll_has_the_usual_timeout() -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=300.0))
    for ago in range(0, 300, 10):
        post.look(seen(post, ago, 5))
        post.after(10)
    for _ in range(4):
        assert not any("has stood" in text for text in post.look(seen(post, 0, 5)))
        post.after(10)
    assert any("has stood" in text for text in post.look(seen(post, 0, 5)))


def test_sources_without_a_reading_are_reported_after_a_poll_only() -> None:
    post = Post(PollingPolicy(begin_us=0, poll_s=300.0))

    def look(ago: float) -> list[str]:
        heartbeat = seen(post, ago)
        heartbeat.waited_for = ("topic/1",)
        return post.look(heartbeat)

    for ago in range(0, 300, 10):
        assert look(ago) == []
        post.after(10)
    assert "no reading has come yet of 1 source (topic/1)" in look(0)[0]


def test_the_runner_has_its_full_timeout_for_a_window_after_a_long_pause() -> None:
    post = Post()
    assert post.look(post.heartbeat(clock_us=DAY_US // 2), missing=1) == []
    for _ in range(12):
        post.after(300)
        assert "window-held" not in (post.look(post.heartbeat(clock_us=DAY_US // 2), missing=1), post.causes)[1]
    # passed this moment
    assert not any("past a window" in text for text in post.look(post.heartbeat(clock_us=DAY_US), missing=1))
    post.after(PATIENCE_S)
    assert not any("past a window" in text for text in post.look(post.heartbeat(clock_us=DAY_US), missing=1))
    assert "window-held" not in post.causes
    post.after(1)
    assert any("past a window" in text for text in post.look(post.heartbeat(clock_us=DAY_US), missing=1))
    # the next one is another
    post.look(post.heartbeat(clock_us=3 * DAY_US), missing=2)
    assert "window-held" not in post.causes


def test_without_heartbeat_a_window_is_late_only_after_its_sources_poll_was_due() -> None:
    today = NOW_US // DAY_US
    # it ended 100 s ago
    for poll_s, late in ((60.0, True), (80.0, False)):
        post = Post(PollingPolicy(begin_us=0, poll_s=poll_s))
        post.dog.here = False
        post.dog.due_us = lambda slot: slot * DAY_US - 100_000_000
        post.look(missing=today)
        post.after(PATIENCE_S + 1)
        assert bool(post.look(missing=today)) is late
        assert post.causes == ({"window-overdue"} if late else set())


def test_a_silent_source_that_becomes_unreadable_is_not_reported_recovered() -> None:
    post = Post()
    heard = post.at
    post.after(PATIENCE_S + 1)
    assert "nothing new for over" in post.look(post.heartbeat(heard=heard))[0]
    away = post.heartbeat(heard=heard)
    away.trouble = "the folder inbox is not there"
    assert "the source cannot be read" in post.look(away)[0]
    assert post.causes == {"source-silent", "source-away"}
    assert post.dog.over() == []
    assert post.look(post.heartbeat(heard=heard)) == []
    assert post.dog.over() == ["the source can be read again"]
    post.look(post.heartbeat())
    assert post.dog.over() == ["the source has something new again"]
    # though another part cannot be read
    other = Post()
    heard = other.at
    other.after(PATIENCE_S + 1)
    other.look(other.heartbeat(heard=heard), other.heartbeat())
    away = other.heartbeat()
    away.trouble = "the folder inbox is not there"
    other.look(other.heartbeat(), away)
    assert other.dog.over() == ["the source has something new again"]


@pytest.mark.parametrize("poll_s", [1.0, 300.0])
def test_a_missing_folder_is_reported_within_a_minute_however_slow_its_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poll_s: float
) -> None:
    """A real reader of a real folder, called as a runner does, by a clock that moves when somebody waits."""
    post = Post(PollingPolicy(begin_us=0, poll_s=poll_s))
    monkeypatch.setattr(time, "sleep", post.after)
    monkeypatch.setattr(time, "monotonic", lambda: post.at)
    Heartbeat.reset()
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    names = Readings(series="series", time="time", value="value", time_unit="us")
    feed = ArrivingFiles(FileDecoder("jsonl", ",", names), (str(inbox / "*.jsonl"),))
    part = ReadPart(feed, PollingPolicy(0, poll_s=poll_s))
    part.setup()
    span, estimator = part.initial_restriction(0), Estimator()

    def turns(seconds: float) -> tuple[list[str], list[str]]:
        """What is told of the source, and what is said to be over."""
        nonlocal span
        begun, told, over = post.at, list[str](), list[str]()
        while post.at - begun < seconds:
            runner = Runner(span)
            assert list(part.process(0, runner, estimator)) == []
            span = Restriction(runner.current_restriction().stop)  # pyright: ignore[reportArgumentType] - what is handed back
            until = post.at + present(runner.asked)
            # the watchdog looks every two seconds
            while post.at < until:
                post.at = min(until, post.at + 2.0)
                told += post.dog.look(Sight(1, heartbeats=Heartbeat.all()))
                over += post.dog.over()
        return [one for one in told if "silent" not in one and "nothing new" not in one], over

    try:
        assert turns(90.0) == ([], [])
        inbox.rename(tmp_path / "elsewhere")
        told, over = turns(MINUTE_S)
        assert told == [
            f"the source cannot be read: the folder {inbox} is not there. Its windows wait; it is tried again"
        ]
        assert over == []
        assert "source-away" in post.causes
        (tmp_path / "elsewhere").rename(inbox)
        assert turns(MINUTE_S) == ([], ["the source can be read again"])
        assert "source-away" not in post.causes
        assert "no-worker" not in post.causes
    finally:
        part.teardown()
        Heartbeat.reset()
