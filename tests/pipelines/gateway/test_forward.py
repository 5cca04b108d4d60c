"""From the broker to the delivery target: what is acknowledged when, and how much is held."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.pipelines.gateway import DeliveryError, DeliveryTarget, Message
from quiltstream.pipelines.gateway.connection import Arrived, Connection
from quiltstream.pipelines.gateway.forward import Forward
from quiltstream.pipelines.gateway.metrics import Dropped, RejectFile, Tally


def incoming(packet: int, payload: bytes = b"1", topic: str = "meters/m1", **more: Any) -> Arrived:
    about: dict[str, Any] = {"dup": False, "retain": False, "qos": 1} | more
    return Arrived(topic, payload, packet, **about)


class FakeLine(Connection):
    """A connection that the test moves."""

    def __init__(self) -> None:  # makes no client
        self.connected, self.epoch, self.reconnects, self.fresh, self.refused = True, 1, 0, 0, False
        self.waiting: deque[Any] = deque()
        self.acked: list[tuple[int, int]] = []
        self.closed = False
        self.take: Callable[[Any], None] = lambda _: None
        self.error: Exception | None = None

    def turn(self, seconds: float, *, room: Callable[[], bool] | None = None) -> None:  # noqa: ARG002 - the signature is a connection's
        if self.error is not None:
            raise self.error
        while self.waiting and (room is None or room()):
            self.take(self.waiting.popleft())

    def ack(self, packet: int, qos: int) -> None:
        assert self.connected, "acknowledged without a connection"
        assert qos
        self.acked.append((self.epoch, packet))

    def close(self, seconds: float = 2.0) -> None:  # noqa: ARG002 - as above
        self.closed = True

    def break_(self) -> None:
        self.connected = False

    def mend(self) -> None:
        self.connected = True
        self.epoch += 1
        self.reconnects += 1


class FakeTarget(DeliveryTarget):
    """A delivery target that has what the test says."""

    def __init__(self, room: int = 10**9) -> None:
        self.room, self.offered, self.news, self.bad = room, dict[int, Message](), list[int](), list[int]()
        self.closed = False
        self.error: Exception | None = None

    def offer(self, number: int, message: Message) -> bool:
        if len(self.offered) >= self.room:
            return False
        assert number not in self.offered
        self.offered[number] = message
        return True

    def had(self) -> list[int]:
        if self.error is not None:
            raise self.error
        news, self.news = self.news, []
        return news

    def refused(self) -> list[int]:
        bad, self.bad = self.bad, []
        return bad

    def take_all(self) -> None:
        self.news += self.offered
        self.offered.clear()

    def close(self, seconds: float) -> None:  # noqa: ARG002 - the signature is a target's
        self.closed = True


class Setting:
    """A line, a target and what is between them."""

    def __init__(self, rejects: Path | None = None, room: int = 10**9, **limits: Any) -> None:
        self.tally, self.line, self.target = Tally(), FakeLine(), FakeTarget(room)
        self.rejects = RejectFile(rejects)
        given_: dict[str, Any] = {"messages": 100, "bytes_": 10**9, "largest": 1_000, "retained": False} | limits
        self.forward = Forward(self.target, **given_, tally=self.tally, rejects=self.rejects)
        self.line.take = self.forward.take

    def turns(self, count: int = 1) -> None:
        """So many turns, and none of the ending's."""
        for _ in range(count):
            self.forward.turn(self.line)


def test_a_message_is_acknowledged_only_after_the_target_confirmed_it() -> None:
    one = Setting()
    one.line.waiting.extend([incoming(1), incoming(2)])
    one.turns(3)
    assert one.line.acked == []
    assert (one.tally.received, one.tally.in_flight, one.tally.acknowledged) == (2, 2, 0)
    one.target.take_all()
    one.turns()
    assert one.line.acked == [(1, 1), (1, 2)]
    assert (one.tally.in_flight, one.tally.bytes_in_flight, one.tally.acknowledged) == (0, 0, 2)


def test_a_message_is_forwarded_with_all_its_properties() -> None:
    one = Setting(retained=True)
    one.line.waiting.append(incoming(1, b"{}", dup=True, retain=True, content_type="application/json"))
    one.turns()
    (passed,) = one.target.offered.values()
    assert passed[:2] + passed[3:] == ("meters/m1", b"{}", True, True, "application/json")
    assert abs(passed.received_us / 1e6 - time.time()) < 60
    assert one.tally.duplicates == 1


def test_a_message_confirmed_after_a_lost_connection_is_not_acknowledged() -> None:
    one = Setting()
    one.line.waiting.extend([incoming(1), incoming(2)])
    one.turns()
    one.line.break_()
    one.target.take_all()
    one.turns()
    assert (one.line.acked, one.tally.stale) == ([], 2)
    # the same packet id names another message now, of this connection and then of an earlier one
    one.line.mend()
    one.line.waiting.append(incoming(1, b"another", dup=True))
    one.turns()
    assert one.line.acked == []
    one.target.take_all()
    one.turns()
    assert one.line.acked == [(2, 1)]
    one.line.waiting.append(incoming(2))
    one.turns()
    one.line.break_()
    one.line.mend()
    one.target.take_all()
    one.turns()
    assert (one.line.acked, one.tally.stale) == ([(2, 1)], 3)


def test_reading_stops_at_the_limits_and_resumes_below_them() -> None:
    one = Setting(messages=10)
    one.line.waiting.extend(incoming(packet) for packet in range(1, 51))
    one.turns(5)
    assert one.tally.in_flight == 11  # the one that went over the limit was read already
    one.target.take_all()
    one.turns()
    assert one.tally.received == 11
    one.turns()
    assert one.tally.received == 22


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=60), st.integers(2_000, 20_000))
def test_the_bytes_held_are_at_most_the_limit_and_one_message(sizes: list[int], limit: int) -> None:
    one = Setting(bytes_=limit)
    one.line.waiting.extend(incoming(packet, b"x" * size) for packet, size in enumerate(sizes, 1))
    while one.line.waiting or one.target.offered:
        one.turns()
        assert one.tally.bytes_in_flight <= limit + 1_000 + 600
        one.target.take_all()
    one.turns()
    assert one.tally.acknowledged == len(sizes)
    assert one.tally.bytes_in_flight == 0


def test_messages_not_accepted_by_the_target_are_offered_again_in_order() -> None:
    one = Setting(room=3)
    one.line.waiting.extend(incoming(packet, b"%d" % packet) for packet in range(1, 9))
    passed: list[bytes] = []
    for _ in range(20):
        one.turns()
        passed += [message.payload for message in one.target.offered.values()]
        one.target.take_all()
    assert passed == [b"%d" % packet for packet in range(1, 9)]
    assert [packet for _, packet in one.line.acked] == list(range(1, 9))


def test_a_message_of_qos_0_is_forwarded_counted_and_never_acknowledged() -> None:
    one = Setting()
    one.line.waiting.append(incoming(0, qos=0))
    one.turns()
    one.target.take_all()
    one.turns()
    assert one.line.acked == []
    assert (one.tally.unconfirmed, one.tally.in_flight) == (1, 0)


@pytest.mark.parametrize(
    ("message", "reason", "size"),
    [
        (incoming(7, b"x" * 1_001), Dropped.TOO_LARGE, 1_001),
        (incoming(7, b"old", retain=True), Dropped.RETAINED, 3),
        (incoming(7, b"x", ""), Dropped.BAD_TOPIC, 1),
    ],
)
def test_a_dropped_message_is_acknowledged_and_counted_without_its_content(
    tmp_path: Path, message: Any, reason: Dropped, size: int
) -> None:
    one = Setting(tmp_path / "rejects.jsonl")
    one.line.waiting.append(message)
    one.turns()
    one.rejects.close()
    assert one.target.offered == {}
    assert one.line.acked == [(1, message.mid)]
    assert one.tally.dropped == {reason: 1}
    line = json.loads((tmp_path / "rejects.jsonl").read_text(encoding="utf-8"))
    assert (line["reason"], line["bytes"], set(line)) == (reason.value, size, {"reason", "topic", "bytes", "time"})
    assert "meters" not in json.dumps(line)


def test_a_message_refused_by_the_target_is_acknowledged_and_reported(tmp_path: Path) -> None:
    one = Setting(tmp_path / "rejects.jsonl")
    one.line.waiting.append(incoming(5, b"12345"))
    one.turns()
    one.target.bad = list(one.target.offered)
    one.turns()
    one.rejects.close()
    assert one.line.acked == [(1, 5)]
    assert one.tally.dropped == {Dropped.REFUSED: 1}
    line = json.loads((tmp_path / "rejects.jsonl").read_text(encoding="utf-8"))
    assert (line["bytes"], line["topic"]) == (5, one.rejects.digest(b"meters/m1"))


def test_stopping_waits_for_the_target_and_acknowledges_without_reading_more() -> None:
    one = Setting()
    one.line.waiting.extend([incoming(1), incoming(2)])
    one.turns()
    one.line.waiting.append(incoming(3))
    threading.Timer(0.1, one.target.take_all).start()
    one.forward.run(one.line, lambda: True, 5.0)
    assert one.line.acked == [(1, 1), (1, 2)]
    assert len(one.line.waiting) == 1
    assert one.target.closed
    assert one.line.closed


def test_stopping_ends_even_if_the_target_never_confirms(caplog: pytest.LogCaptureFixture) -> None:
    one = Setting()
    one.line.waiting.append(incoming(1))
    one.turns()
    began = time.monotonic()
    one.forward.run(one.line, lambda: True, 0.2)
    assert time.monotonic() - began < 3
    assert one.line.acked == []
    assert one.line.closed
    assert "stopped with 1 messages that the next hop did not confirm; the broker sends them again" in caplog.text


def test_an_error_of_either_side_ends_forwarding_and_closes_both_sides() -> None:
    for side in ("line", "target"):
        one = Setting()
        getattr(one, side).error = DeliveryError("look at it")
        with pytest.raises(DeliveryError, match="look at it"):
            one.forward.run(one.line, lambda: False, 0.2)
        assert one.line.closed
        assert one.target.closed


def test_at_its_limit_without_a_connection_the_gateway_requests_nothing() -> None:
    one = Setting(messages=10)
    one.line.waiting.extend(incoming(packet) for packet in range(1, 12))
    one.turns()
    one.line.break_()
    turned = []
    one.line.turn = lambda *_, **__: turned.append(1)
    one.turns(3)
    assert turned == []
    one.target.take_all()
    one.turns(3)
    assert turned
