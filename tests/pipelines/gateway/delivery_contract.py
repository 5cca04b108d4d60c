"""What every delivery target does; its test class is given a target of its kind and ways to disturb it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest

from quiltstream.pipelines.gateway import DeliveryTarget, Message


def message(number: int, size: int = 50) -> Message:
    """A message that says which one it is."""
    return Message(f"meters/m{number % 7}", (b"%d|" % number).ljust(size, b"x"), 1_700_000_000_000_000 + number)


def number_of(payload: bytes) -> int:
    """Which message a body is of."""
    return int(payload.partition(b"|")[0])


class Place(ABC):
    """A hop's other side, as a test sees it."""

    @abstractmethod
    def hop(self) -> DeliveryTarget:
        """A hop to it."""

    @abstractmethod
    def kept(self) -> list[Message]:
        """The messages that no crash can take away any more, in their order."""

    @abstractmethod
    def fail(self) -> None:
        """Take nothing for now."""

    @abstractmethod
    def mend(self) -> None:
        """Take messages again."""


def had_by(hop: DeliveryTarget, count: int, seconds: float = 20) -> list[int]:
    """What a hop has, when it has so much."""
    found: list[int] = []
    until = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, f"the hop has {len(found)} of {count} messages"
        found += hop.had()
        time.sleep(0.005)
    return found


class DeliveryContract:
    """Derived from with a fixture ``place``."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    def test_what_it_says_it_has_is_kept_whole_and_said_once(self, place: Place) -> None:
        hop = place.hop()
        sent = [message(number)._replace(dup=number % 2 == 0, retain=number % 3 == 0) for number in range(200)]
        for number, one in enumerate(sent):
            assert hop.offer(number, one)
        found = had_by(hop, 200)
        assert sorted(found) == list(range(200))
        assert sorted(place.kept(), key=lambda one: one.received_us) == sent
        assert hop.had() == hop.refused() == []
        hop.close(5)

    def test_it_never_waits_when_it_is_offered_or_asked(self, place: Place) -> None:
        hop = place.hop()
        place.fail()
        began = time.monotonic()
        taken = [number for number in range(100) if hop.offer(number, message(number))]
        assert hop.had() == []
        assert time.monotonic() - began < 2
        place.mend()
        assert sorted(had_by(hop, len(taken))) == taken
        hop.close(5)

    def test_a_place_that_fails_for_a_while_gets_everything_in_the_end(self, place: Place) -> None:
        hop = place.hop()
        assert hop.offer(0, message(0))
        assert had_by(hop, 1) == [0]
        place.fail()
        taken = [number for number in range(1, 50) if hop.offer(number, message(number))]
        time.sleep(0.3)
        early = hop.had()
        assert len(early) < 49
        place.mend()
        assert sorted(early + had_by(hop, len(taken) - len(early))) == taken
        assert {number_of(one.payload) for one in place.kept()} == {0, *taken}
        hop.close(5)

    def test_closing_finishes_what_is_under_way(self, place: Place) -> None:
        hop = place.hop()
        for number in range(100):
            assert hop.offer(number, message(number))
        hop.close(10)
        assert sorted(hop.had()) == list(range(100))
        assert {number_of(one.payload) for one in place.kept()} == set(range(100))

    def test_closing_gives_up_when_the_time_is_over_and_claims_nothing(self, place: Place) -> None:
        hop = place.hop()
        place.fail()
        taken = [number for number in range(20) if hop.offer(number, message(number))]
        began = time.monotonic()
        hop.close(0.5)
        assert time.monotonic() - began < 5
        kept = {number_of(one.payload) for one in place.kept()}
        assert set(hop.had()) <= kept
        assert kept <= set(taken)
        place.mend()

    def test_what_can_be_read_from_tells_of_news(self, place: Place) -> None:
        hop = place.hop()
        number = hop.fileno()
        if number is None:
            pytest.skip("this hop is looked at now and then")
        wait_for_news(number, lambda: hop.offer(1, message(1)))
        assert had_by(hop, 1) == [1]
        hop.close(5)
        assert hop.fileno() is None


def wait_for_news(number: int, do: Callable[[], object]) -> None:
    import select  # noqa: PLC0415 - of this function only

    poll = select.poll()
    poll.register(number, select.POLLIN)
    assert poll.poll(0) == []
    threading.Timer(0.05, do).start()
    assert poll.poll(10_000)
