"""How a live reader waits between two looks at a source that had nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings import Readings
from quiltstream.transforms.decode import FileDecoder
from quiltstream.transforms.feeds import BEGIN
from quiltstream.transforms.file_feed import ArrivingFiles
from quiltstream.transforms.live import Pace, Progress, ReadPart, Span, SpanTracker

ORIGIN = 1_356_998_400_000_000


class Runner(SpanTracker):
    """Notes the pause that it is asked for, in seconds."""

    asked: float | None = None

    def defer_remainder(self, pause: Any) -> None:
        assert self.try_split(0) is not None
        self.asked = pause.micros / 1e6


class Estimator:
    """A watermark."""

    at: Any = None

    def current_watermark(self) -> Any:
        return self.at

    def set_watermark(self, at: Any) -> None:
        self.at = at


@pytest.mark.parametrize(
    ("poll", "files", "waited", "least", "most"),
    [
        (0.25, 0, [0.25], 0.0, 0.0),
        # what a runner that leaves out fractions hears is a whole number of seconds, also a moment later
        (1.0, 0, [0.0], 1.01, 1.5),
        (2.5, 0, [0.5], 2.01, 2.5),
        # what was read is sent on at once
        (0.25, 1, [], 0.0, 0.0),
        (60.0, 1, [], 0.0, 0.0),
    ],
)
def test_less_than_a_second_is_waited_for_here_and_whole_seconds_by_the_runner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    poll: float,
    files: int,
    waited: list[float],
    least: float,
    most: float,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for number in range(files):
        line = f'{{"series": "a", "time": {ORIGIN + 1}, "value": 1.0}}\n'
        (tmp_path / f"{number}.jsonl").write_text(line, encoding="utf-8")
    names = Readings(series="series", time="time", value="value", time_unit="us")
    feed = ArrivingFiles(FileDecoder("jsonl", ",", names), (str(tmp_path / "*.jsonl"),))
    part = ReadPart(feed, Pace(ORIGIN, poll_s=poll))
    part.setup()
    runner = Runner(Span(Progress(BEGIN, ORIGIN)))
    made = list(part.process(0, runner, Estimator()))
    assert bool(made) == bool(files)
    assert slept == waited
    assert runner.asked is not None
    assert least <= runner.asked <= most


def test_a_call_stays_with_a_silent_source_so_long_and_ends_at_once_when_something_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a runner keeps whatever is handed back to it, fewer calls keep less."""
    clock, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds
        if len(slept) == 14:
            line = f'{{"series": "a", "time": {ORIGIN + 1}, "value": 1.0}}\n'
            (tmp_path / "0.jsonl").write_text(line, encoding="utf-8")

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    names = Readings(series="series", time="time", value="value", time_unit="us")
    feed = ArrivingFiles(FileDecoder("jsonl", ",", names), (str(tmp_path / "*.jsonl"),))
    part = ReadPart(feed, Pace(ORIGIN, poll_s=0.25, stay_s=2.5))
    part.setup()
    first = Runner(Span(Progress(BEGIN, ORIGIN)))
    assert list(part.process(0, first, Estimator())) == []
    # ten looks, and the pause that the runner would cut off
    assert slept == [0.25] * 11
    assert first.asked == 0
    second = Runner(Span(Progress(BEGIN, ORIGIN)))
    made = list(part.process(0, second, Estimator()))
    assert len(made) == 2
    assert slept == [0.25] * 14
    assert second.asked == 0


@pytest.mark.parametrize(
    ("poll", "files", "least", "most"), [(0.25, 0, 1.0, 1.5), (0.25, 1, 1.0, 1.5), (3.0, 0, 3.0, 3.5)]
)
def test_a_runner_that_is_to_rest_is_never_asked_to_call_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poll: float, files: int, least: float, most: float
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for number in range(files):
        line = f'{{"series": "a", "time": {ORIGIN + 1}, "value": 1.0}}\n'
        (tmp_path / f"{number}.jsonl").write_text(line, encoding="utf-8")
    names = Readings(series="series", time="time", value="value", time_unit="us")
    feed = ArrivingFiles(FileDecoder("jsonl", ",", names), (str(tmp_path / "*.jsonl"),))
    part = ReadPart(feed, Pace(ORIGIN, poll_s=poll, rest_s=1.1))
    part.setup()
    runner = Runner(Span(Progress(BEGIN, ORIGIN)))
    assert bool(list(part.process(0, runner, Estimator()))) == bool(files)
    assert runner.asked is not None
    assert least <= runner.asked <= most
