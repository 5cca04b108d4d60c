"""How a live reader waits between two looks at a source that had nothing."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.transforms.completeness import Punctuation
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN, PartitionedSource, Reader, SourceBatch
from quiltstream.transforms.sources.progress import Activity, Heartbeat, PartitionState, PartitionTracker, Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ..reading import ORIGIN, decoder, line
from .streams import Estimator, stamped

EMPTY = pa.RecordBatch.from_arrays([pa.array([], one.type) for one in READING_SCHEMA], schema=READING_SCHEMA)


class Runner(PartitionTracker):
    """Notes the pause that it is asked for, in seconds."""

    asked: float | None = None

    def defer_remainder(self, pause: Any) -> None:
        assert self.try_split(0) is not None
        self.asked = pause.micros / 1e6


def send(path: Path) -> None:
    path.write_text(line(1), encoding="utf-8")


def followed(folder: Path, **pace: Any) -> ReadPart:
    feed = ArrivingFiles(decoder("jsonl"), (str(folder / "*.jsonl"),))
    part = ReadPart(feed, PollingPolicy(ORIGIN, **pace))
    part.setup()
    return part


class Closing(Reader):
    """A reader with one piece after the other that notes when it is let go."""

    def __init__(self) -> None:
        self.closed = 0

    def read(self) -> SourceBatch | None:
        return SourceBatch("1", settled=True, batches=(EMPTY,), rows=1, latest_us=ORIGIN + 1)

    def close(self) -> None:
        self.closed += 1


class One(PartitionedSource):
    def __init__(self, one: Closing) -> None:
        self.one = one

    def reader(self, part: int, position: str) -> Reader:
        assert (part, position) == (0, BEGIN)
        return self.one


@pytest.mark.parametrize("end", ["refused", "closed", "failed"])
def test_a_reader_without_a_further_call_is_closed(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Closing()
    part = ReadPart(One(one), PollingPolicy(ORIGIN))
    part.setup()
    span = part.initial_restriction(0)
    tracker = Runner(Restriction(span.start, span.start) if end == "refused" else span)
    if end == "failed":

        def fail(*_: Any) -> None:
            raise OSError("gone")

        monkeypatch.setattr(Closing, "read", fail)
    call: Any = part.process(0, tracker, Estimator())
    if end == "closed":
        next(call)
        assert one.closed == 0
        call.close()
    elif end == "failed":
        with pytest.raises(OSError, match="gone"):
            next(call)
    else:
        assert list(call) == []
    part.teardown()
    assert one.closed == 1


def test_a_reader_between_rare_polls_sends_heartbeats_and_does_not_poll(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called as a runner does: again after the pause that was asked for."""
    looks, beats = list[float](), list[float]()
    monkeypatch.setattr(Closing, "read", lambda _: looks.append(clock[0]))
    Heartbeat.reset()
    one = Closing()
    part = ReadPart(One(one), PollingPolicy(ORIGIN, poll_s=64.5))
    part.setup()
    span = part.initial_restriction(0)
    estimator = Estimator()
    for _ in range(30):
        runner = Runner(span)
        assert list(part.process(0, runner, estimator)) == []
        pulse = Heartbeat.of(0)
        assert pulse.beaten >= clock[0] - 1.0
        assert pulse.looked == looks[-1]
        beats.append(pulse.beaten)
        assert runner.asked is not None
        clock[0] += runner.asked
        span = Restriction(span.start)
    assert len(looks) == 5
    assert all(64.5 <= after - before < 65.5 for before, after in pairwise(looks))
    assert max(after - before for before, after in pairwise(beats)) < 11
    assert one.closed == 0
    # a worker that takes the part over looks at once
    other = ReadPart(One(one), PollingPolicy(ORIGIN, poll_s=64.5))
    other.setup()
    assert list(other.process(0, Runner(span), Estimator())) == []
    assert len(looks) == 6
    part.teardown()
    other.teardown()
    Heartbeat.reset()


@pytest.mark.parametrize("rest", [0.0, 1.1])
def test_a_partition_ends_in_a_separate_call_if_the_runner_keeps_residuals(rest: float) -> None:
    """Else the watermark of its end passes what the same call has sent (Beam's Flink runner, at a checkpoint)."""
    one = Closing()
    part = ReadPart(One(one), PollingPolicy(ORIGIN, end_us=ORIGIN + 1, rest_s=rest))
    part.setup()
    tracker, estimator = Runner(part.initial_restriction(0)), Estimator()
    # the readings, and the mark that they are all
    assert len(list(part.process(0, tracker, estimator))) == 2
    assert estimator.at == stamped(ORIGIN)
    rest_of_it: Any = tracker.current_restriction().stop
    if not rest:
        assert (rest_of_it, tracker.asked, one.closed) == (None, None, 1)
        return
    assert (tracker.asked, one.closed) == (rest, 0)
    assert (rest_of_it.clock_us, rest_of_it.over) == (ORIGIN + 1, False)
    again = Runner(Restriction(rest_of_it))
    made = list(part.process(0, again, estimator))
    assert not [one for one in made if isinstance(one.value, Punctuation)]
    assert (again.current_restriction().stop, again.asked, one.closed) == (None, None, 1)
    again.check_done()


class Asked(Closing):
    """A reader of a source that may be away, which notes when it is asked and when it is looked at."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self.clock, self.away, self.found = clock, False, False
        self.asked, self.looks = list[float](), list[float]()

    def check(self) -> bool:
        self.asked.append(self.clock[0])
        return not self.away

    def read(self) -> SourceBatch | None:
        self.looks.append(self.clock[0])
        self.found = self.away
        return None

    @property
    def trouble(self) -> str | None:
        return "it is away" if self.found else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [1000.0]

    def sleep(seconds: float) -> None:
        at[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


def turn(part: ReadPart, number: int, span: Restriction, clock: list[float]) -> Restriction:
    """A call as a runner makes it, and the pause that is asked for."""
    runner = Runner(span)
    list(part.process(number, runner, Estimator()))
    assert runner.asked is not None
    clock[0] += max(runner.asked, 0.05)
    rest = runner.current_restriction().stop
    assert rest is not None
    return Restriction(rest)


def test_a_reader_without_answers_is_not_polled_again_at_once(clock: list[float]) -> None:
    """Such a piece is not silence, and it is not something that was read either."""

    class Unsettled(Asked):
        def read(self) -> SourceBatch | None:
            super().read()
            assert len(self.looks) < 100, "nobody waits between two looks"
            clock[0] += 0.001
            return SourceBatch(BEGIN, settled=False)

    one = Unsettled(clock)
    one.away = True
    part = ReadPart(One(one), PollingPolicy(ORIGIN, poll_s=1.0))
    part.setup()
    span = Restriction(PartitionState(BEGIN, ORIGIN, sources={"": Activity(ORIGIN + 5, ORIGIN)}))
    for _ in range(10):
        span = turn(part, 0, span, clock)
    assert len(one.looks) == 10
    assert clock[0] >= 1010.0
    # what may be waiting is not declared complete by it
    assert span.start.clock_us == ORIGIN
    part.teardown()
