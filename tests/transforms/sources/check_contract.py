"""What every feed does between two looks that are far apart: inherit the contract and give a place of readings.

A reader is asked whether its source can be reached. That moves nothing, and a source that has gone away is told in the
reader's own words within seconds, however rarely it is looked at, and read on when it is back.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import pytest

from quiltstream.transforms.sources.contract import BEGIN, PartitionedSource, Reader, SourceBatch
from quiltstream.transforms.sources.progress import Heartbeat, Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from .test_live_pauses import Estimator, Runner

#: Seconds between two looks, of which a source that is away needs none.
POLL_S = 300.0

#: Seconds within which it is known, of the minute in which it is told.
SOON_S = 20.0

#: Seconds that a source has to hand over what it has.
PATIENCE_S = 30.0


class Place(Protocol):
    def feed(self) -> PartitionedSource: ...

    def send(self, number: int) -> None:
        """Add a reading of a value that has not been there."""
        ...

    def take_away(self) -> None: ...

    def bring_back(self) -> None: ...


def values(pieces: list[SourceBatch]) -> list[float]:
    return sorted(value for one in pieces for batch in one.batches for value in batch.column("value").to_pylist())


def read(reader: Reader, count: int) -> list[SourceBatch]:
    found: list[SourceBatch] = []
    deadline = time.monotonic() + PATIENCE_S
    while sum(one.rows for one in found) < count:
        assert time.monotonic() < deadline, (reader.trouble, found)
        piece = reader.read()
        found += [] if piece is None else [piece]
    return found


class CheckContract:
    def test_checking_a_source_does_not_affect_reading(self, place: Place) -> None:
        place.send(0)
        reader = place.feed().reader(0, BEGIN)
        pieces = read(reader, 1)
        found = values(pieces)
        for number in (1, 2, 3):
            place.send(number)
            before = (reader.trouble, reader.sources, reader.ended)
            assert [reader.check() for _ in range(3)] == [True] * 3
            assert (reader.trouble, reader.sources, reader.ended) == before
            pieces = read(reader, 1)
            found += values(pieces)
        assert found == [0.0, 1.0, 2.0, 3.0]
        reader.close()

    def test_a_check_detects_the_loss_and_return_of_a_source_without_reading(self, place: Place) -> None:
        place.send(0)
        reader = place.feed().reader(0, BEGIN)
        assert values(read(reader, 1)) == [0.0]
        place.take_away()
        assert not reader.check()
        assert reader.trouble is None
        place.bring_back()
        place.send(1)
        assert values(read(reader, 1)) == [1.0]
        assert reader.check()
        reader.close()

    def test_the_loss_of_a_source_between_rare_polls_is_detected_soon(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a clock of the test's own, which only moves when somebody waits; called as a runner does."""
        clock = [time.monotonic()]

        def sleep(seconds: float) -> None:
            clock[0] += seconds

        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        Heartbeat.reset()
        part = ReadPart(place.feed(), PollingPolicy(0, poll_s=POLL_S))
        part.setup()
        span, estimator, made = part.initial_restriction(0), Estimator(), list[Any]()

        def turns(seconds: float, until: Any = None) -> float:
            nonlocal span
            begun = clock[0]
            while clock[0] - begun < seconds and not (until is not None and until()):
                runner = Runner(span)
                made.extend(part.process(0, runner, estimator))
                rest: Any = runner.current_restriction().stop
                assert runner.asked is not None
                clock[0] += max(0.05, runner.asked)
                span = Restriction(rest)
            return clock[0] - begun

        pulse = Heartbeat.of(0)
        place.send(0)
        turns(SOON_S, lambda: pulse.rows == 1)
        assert pulse.rows == 1
        turns(SOON_S)
        looked = pulse.looked
        turns(POLL_S / 2)
        assert (pulse.looked, pulse.trouble) == (looked, None)
        place.take_away()
        assert turns(POLL_S, lambda: pulse.trouble is not None) <= SOON_S
        turns(2 * SOON_S)
        assert pulse.trouble is not None
        place.bring_back()
        place.send(1)
        assert turns(POLL_S, lambda: pulse.trouble is None) <= SOON_S
        turns(SOON_S, lambda: pulse.rows == 2)
        assert pulse.rows == 2
        part.teardown()
        Heartbeat.reset()
