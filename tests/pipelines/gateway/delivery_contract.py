"""What every delivery target does; its test class is given a target of its kind and ways to disturb it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import pytest

from quiltstream.pipelines.gateway import DeliveryTarget, Message


def message(number: int, size: int = 50) -> Message:
    """A message that says which one it is."""
    return Message(f"meters/m{number % 7}", (b"%d|" % number).ljust(size, b"x"), 1_700_000_000_000_000 + number)


def number_of(payload: bytes) -> int:
    """Which message a body is of."""
    return int(payload.partition(b"|")[0])


class Place(ABC):
    """A delivery target's other side, as a test sees it."""

    @abstractmethod
    def target(self) -> DeliveryTarget:
        """A delivery target to it."""

    @abstractmethod
    def kept(self) -> list[Message]:
        """The messages that no crash can take away any more, in their order."""

    @abstractmethod
    def fail(self) -> None:
        """Take nothing for now."""

    @abstractmethod
    def mend(self) -> None:
        """Take messages again."""


def had_by(target: DeliveryTarget, count: int, seconds: float = 20) -> list[int]:
    """What a target has, when it has so much."""
    found: list[int] = []
    until = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, f"the target has {len(found)} of {count} messages"
        found += target.had()
        time.sleep(0.005)
    return found


class DeliveryContract:
    """Derived from with a fixture ``place``."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    def test_accepted_messages_are_stored_unchanged_and_reported_delivered_once(self, place: Place) -> None:
        target = place.target()
        sent = [message(number)._replace(dup=number % 2 == 0, retain=number % 3 == 0) for number in range(200)]
        for number, one in enumerate(sent):
            assert target.offer(number, one)
        found = had_by(target, 200)
        assert sorted(found) == list(range(200))
        assert sorted(place.kept(), key=lambda one: one.received_us) == sent
        assert target.had() == target.refused() == []
        target.close(5)

    def test_a_target_that_fails_temporarily_receives_all_messages(self, place: Place) -> None:
        target = place.target()
        assert target.offer(0, message(0))
        assert had_by(target, 1) == [0]
        place.fail()
        began = time.monotonic()
        taken = [number for number in range(1, 50) if target.offer(number, message(number))]
        assert time.monotonic() - began < 2, "an offer waits for nothing"
        time.sleep(0.3)
        early = target.had()
        assert len(early) < 49
        place.mend()
        assert sorted(early + had_by(target, len(taken) - len(early))) == taken
        assert {number_of(one.payload) for one in place.kept()} == {0, *taken}
        target.close(5)

    def test_closing_completes_messages_in_flight(self, place: Place) -> None:
        target = place.target()
        for number in range(100):
            assert target.offer(number, message(number))
        target.close(10)
        assert sorted(target.had()) == list(range(100))
        assert {number_of(one.payload) for one in place.kept()} == set(range(100))

    def test_closing_gives_up_at_its_timeout_and_reports_nothing_delivered(self, place: Place) -> None:
        target = place.target()
        place.fail()
        taken = [number for number in range(20) if target.offer(number, message(number))]
        began = time.monotonic()
        target.close(0.5)
        assert time.monotonic() - began < 5
        kept = {number_of(one.payload) for one in place.kept()}
        assert set(target.had()) <= kept
        assert kept <= set(taken)
        place.mend()
