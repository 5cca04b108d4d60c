"""The watchdog of a live job, by clocks of the tests' own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quiltstream.pipelines.watchdog import PATIENCE_S, Watchdog
from quiltstream.transforms.live import Pace
from quiltstream.transforms.pulse import Pulse

DAY_US = 86_400_000_000
NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00Z


@dataclass
class Post:
    """A watchdog over one job, whose time the test moves on."""

    pace: Pace = field(default_factory=lambda: Pace(begin_us=0))
    at: float = 1_000.0
    dog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.pace, self.at, lambda slot: slot * DAY_US, lambda: self.at, lambda: NOW_US)

    def after(self, seconds: float) -> float:
        self.at += seconds
        return self.at

    def look(self, *pulses: Pulse, missing: int | None = 1, tallies: dict[str, int] | None = None) -> list[str]:
        return self.dog.look(missing, dict(enumerate(pulses)), tallies)

    def pulse(self, clock_us: int = 0, latest_us: int | None = None, heard: float | None = None) -> Pulse:
        """A reader that looked just now."""
        return Pulse(self.at, self.at if heard is None else heard, latest_us, clock_us, 1)


def test_a_job_that_goes_on_gives_no_warning() -> None:
    post = Post()
    for window in range(100):
        post.after(PATIENCE_S - 1)
        assert post.look(post.pulse(clock_us=window * DAY_US), missing=window) == []


def test_readers_that_stopped_looking_are_told_within_a_minute_and_again_only_after_a_while() -> None:
    post = Post()
    assert post.look(post.pulse()) == []
    still = post.pulse()
    post.after(PATIENCE_S)
    assert post.look(still) == []
    post.after(1)
    (text,) = post.look(still)
    assert text.startswith("no worker has looked at the source for 31 s: the worker pool may be gone")
    post.after(200)
    assert post.look(still) == []
    post.after(100)
    assert len(post.look(still)) == 1


def test_a_job_that_never_looked_at_its_source_is_told_too() -> None:
    post = Post()
    assert post.look() == []
    post.after(PATIENCE_S + 1)
    assert "no worker has looked" in post.look()[0]


def test_readers_elsewhere_are_watched_by_the_runners_counters() -> None:
    post = Post()
    for polls in range(1, 10):
        post.after(PATIENCE_S - 1)
        assert post.look(tallies={"polls": polls}) == []
    post.after(PATIENCE_S + 1)
    assert "no worker has looked" in post.look(tallies={"polls": 9})[0]


def test_a_slow_poll_gives_readers_more_time() -> None:
    post = Post(Pace(begin_us=0, poll_s=60.0))
    still = post.pulse()
    post.after(179)
    assert not any("no worker" in text for text in post.look(still))
    post.after(2)
    assert "no worker" in post.look(still)[0]


@pytest.mark.parametrize(("idle_us", "end"), [(None, "Its windows wait"), (1, "wait until live.idle has passed")])
def test_a_silent_source_is_told_with_what_becomes_of_its_windows(idle_us: int | None, end: str) -> None:
    post = Post(Pace(begin_us=0, idle_us=idle_us))
    heard = post.at
    post.after(PATIENCE_S + 1)
    (text,) = post.look(post.pulse(heard=heard))
    assert text.startswith("the source has had nothing new for over 30 s: is what feeds it away?")
    assert text.endswith(end)


def test_one_silent_part_of_several_is_told_as_such() -> None:
    post = Post()
    heard = post.at
    post.after(PATIENCE_S + 1)
    (text,) = post.look(post.pulse(heard=heard), post.pulse(), post.pulse())
    assert "for over 30 s in 1 of its 3 parts" in text


def test_a_reading_of_the_future_is_told_with_its_instant() -> None:
    post = Post()
    assert post.look(post.pulse(latest_us=NOW_US + DAY_US)) == []
    (text,) = post.look(post.pulse(latest_us=NOW_US + 3652 * DAY_US))
    assert "2036-01-01T00:00:00Z" in text
    assert "a meter's clock may have jumped" in text


def test_a_window_that_its_source_has_passed_and_that_is_not_on_record_is_told() -> None:
    post = Post()
    assert post.look(post.pulse(clock_us=DAY_US), missing=1) == []
    post.after(PATIENCE_S + 1)
    (text,) = post.look(post.pulse(clock_us=DAY_US), missing=1, tallies={"blocks-incomplete": 7})
    assert "past a window that is not on record" in text
    assert "7 incomplete blocks were dropped" in text


def test_a_window_that_its_source_has_not_passed_or_that_just_became_the_first_missing_is_not() -> None:
    post = Post()
    assert post.look(post.pulse(clock_us=DAY_US - 1), missing=1) == []
    post.after(PATIENCE_S + 1)
    assert not any("past a window" in text for text in post.look(post.pulse(clock_us=DAY_US - 1), missing=1))
    assert post.look(post.pulse(clock_us=3 * DAY_US), missing=2) == []
    post.after(PATIENCE_S + 1)
    assert post.look(post.pulse(clock_us=3 * DAY_US), missing=None) == []


def test_a_pulse_belongs_to_its_part_until_another_job_begins() -> None:
    Pulse.reset()
    Pulse.of(3).beat(None, 7, rows=0)
    assert Pulse.of(3).heard == 0
    Pulse.of(3).beat(9, 8, rows=2)
    Pulse.of(3).beat(9, 8, rows=3)
    seen = Pulse.all()[3]
    assert (seen.latest_us, seen.clock_us, seen.rows) == (9, 8, 5)
    assert seen.heard > 0
    Pulse.reset()
    assert Pulse.all() == {}


def test_where_neither_pulse_nor_counters_are_seen_only_a_window_that_is_late_on_record_is_told() -> None:
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


def test_a_source_that_cannot_be_read_is_told_at_once_with_the_readers_own_words_and_not_as_silence() -> None:
    post = Post()
    heard = post.at
    post.after(PATIENCE_S + 1)
    away = post.pulse(heard=heard)
    away.trouble = "the folder inbox is not there"
    assert post.look(away) == [
        "the source cannot be read: the folder inbox is not there. Its windows wait; it is tried again"
    ]
    assert post.look(away) == []
    away.trouble = None
    assert "nothing new for over" in post.look(away)[0]


@pytest.mark.parametrize(("idle_us", "until"), [(None, "they have one"), (1, "live.idle has passed")])
def test_sources_that_never_had_a_reading_are_told_as_what_the_windows_wait_for(
    idle_us: int | None, until: str
) -> None:
    post = Post(Pace(begin_us=0, idle_us=idle_us))

    def look(*names: str) -> list[str]:
        pulse = post.pulse()
        pulse.waited_for = names
        return post.look(pulse)

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


def test_a_ledger_that_is_away_is_told_once_in_a_while() -> None:
    post = Post()
    assert post.dog.away("busy") == ["the ledger of record cannot be looked at, and the job waits for it: busy"]
    assert post.dog.away("busy") == []
    post.after(300)
    assert len(post.dog.away("busy")) == 1


def test_readings_that_move_no_clock_past_a_window_that_is_due_are_told_with_where_it_stands() -> None:
    post = Post()
    assert post.look(post.pulse(clock_us=DAY_US // 2)) == []
    post.after(PATIENCE_S)
    assert post.look(post.pulse(clock_us=DAY_US // 2)) == []
    post.after(1)
    (text,) = post.look(post.pulse(clock_us=DAY_US // 2))
    assert text.startswith("readings arrive, and the source's clock has stood at 1970-01-01T12:00:00Z for 31 s, so the")
    assert "the window that ends at 1970-01-02T00:00:00Z waits" in text


def test_a_clock_that_stands_is_not_told_where_it_moves_or_no_window_is_due_or_nothing_arrives() -> None:
    moving = Post()
    for second in range(5):
        assert moving.look(moving.pulse(clock_us=second)) == []
        moving.after(PATIENCE_S - 1)
    early = Post()
    today = NOW_US // DAY_US
    silent = Post()
    heard = silent.at
    for _ in range(3):
        # the window ends now, by the clock on the wall
        assert early.look(early.pulse(clock_us=5), missing=today) == []
        early.after(PATIENCE_S + 1)
        silent.after(PATIENCE_S + 1)
        assert not any("has stood" in text for text in silent.look(silent.pulse(clock_us=5, heard=heard)))
