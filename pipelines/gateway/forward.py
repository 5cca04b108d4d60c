"""From the broker to a delivery target: a message is acknowledged when it is delivered; what is held is bounded.

One thread does everything: it reads a message, hands it over, and acknowledges those that are delivered meanwhile. A
packet id belongs to one connection. What is delivered after the connection is gone is not acknowledged: the same
number may name another message by then, and the broker sends the unacknowledged ones again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from .connection import Arrived, Connection
from .delivery import DeliveryTarget, Message
from .metrics import Dropped, RejectFile, Stall, Tally
from .pseudonyms import TopicNames

_LOG = logging.getLogger("quiltstream.gateway")

#: Seconds that a turn waits with nothing to do, and with messages at the target.
_IDLE_S = 0.25
_BUSY_S = 0.002


class _Flight(NamedTuple):
    epoch: int
    packet: int
    qos: int
    size: int
    topic: str
    length: int


@dataclass(repr=False)  # a printed message would show readings
class Forward:
    """Takes messages of the broker to the delivery target."""

    target: DeliveryTarget  # where to
    _: KW_ONLY
    messages: int  # how many may be held
    bytes_: int  # how many bytes of them
    largest: int  # bytes of a message that is taken
    retained: bool  # whether messages that the broker had kept are taken
    tally: Tally  # where to count
    rejects: RejectFile  # the file of dropped messages
    names: TopicNames | None = None  # what of a topic goes on under a pseudonym; ``None``: nothing

    _line: Connection | None = None
    _flights: dict[int, _Flight] = field(default_factory=dict[int, _Flight])
    _held: int = 0
    _waiting: deque[tuple[int, Message]] = field(default_factory=deque[tuple[int, Message]])
    _number: int = 0
    _stall: Stall = field(default_factory=Stall)

    def run(self, line: Connection, stop: Callable[[], bool], patience: float) -> None:
        """Forward until a stop, then finish what is under way within so many seconds.

        Raises:
            BrokerError: the broker refuses for good.
            DeliveryError: the delivery target does.
        """
        try:
            while not stop():
                self.turn(line)
        finally:
            self._finish(line, patience)

    def turn(self, line: Connection) -> None:
        """Read what has come, hand it over, and acknowledge what is delivered."""
        self._line = line
        if not line.connected and self._flights and not self.room():
            # connected again, the broker would send once more what is held already
            time.sleep(_BUSY_S)
        else:
            line.turn(_BUSY_S if self._flights else _IDLE_S, room=self.room)
        self._settle(line)

    def take(self, message: Arrived) -> None:
        """A message of the broker, within a turn of the line."""
        tally = self.tally
        tally.received += 1
        tally.duplicates += message.dup
        tally.unconfirmed += message.qos == 0
        topic, payload = message.topic, message.payload
        if not topic:
            # the bytes of the topic may name a meter that is to have a pseudonym
            self._drop(Dropped.BAD_TOPIC, "", message)
            return
        if self.names is not None:
            topic = self.names.of(topic)
        if message.retain and not self.retained:
            self._drop(Dropped.RETAINED, topic, message)
            return
        if len(payload) > self.largest:
            self._drop(Dropped.TOO_LARGE, topic, message)
            return
        received_us = time.time_ns() // 1_000
        taken = Message(topic, payload, received_us, message.dup, message.retain, message.content_type)
        self._number += 1
        number, size = self._number, taken.size
        if not self._flights:
            self._stall.moved()
        self._flights[number] = _Flight(self._epoch, message.mid, message.qos, size, topic, len(payload))
        self._held += size
        if self._waiting or not self.target.offer(number, taken):
            self._waiting.append((number, taken))

    def room(self) -> bool:
        """Whether another message may be read.

        The broker itself sends no more than the receive maximum without an acknowledgement, which is below the limit:
        reading goes on then, for the answers to pings. Only messages of QoS 0 or of an earlier connection can come on
        top.
        """
        return not self._waiting and len(self._flights) <= self.messages and self._held <= self.bytes_

    @property
    def _epoch(self) -> int:
        return 0 if self._line is None else self._line.epoch

    def _settle(self, line: Connection) -> None:
        had, target, tally = self.target.had(), self.target, self.tally
        for number in had:
            self._answered(number, line)
        for number in target.refused():
            flight = self._flights[number]
            tally.dropped[Dropped.REFUSED] += 1
            self.rejects.add(Dropped.REFUSED, flight.topic.encode(), flight.length)
            self._answered(number, line)
            had.append(number)
        while self._waiting and target.offer(*self._waiting[0]):
            self._waiting.popleft()
        tally.in_flight, tally.bytes_in_flight = len(self._flights), self._held
        tally.reconnects, tally.sessions_lost, tally.refused = line.reconnects, line.fresh, int(line.refused)
        if had:
            self._stall.moved()
        elif self._flights and (seconds := self._stall.to_report()) is not None:
            _LOG.warning(
                "the next hop has taken nothing for %.0f s; %d messages wait here, the rest at the broker, and nothing "
                "is acknowledged",
                seconds,
                len(self._flights),
            )

    def _answered(self, number: int, line: Connection) -> None:
        flight = self._flights.pop(number)
        self._held -= flight.size
        if not flight.qos:
            return
        if flight.epoch == line.epoch and line.connected:
            line.ack(flight.packet, flight.qos)
            self.tally.acknowledged += 1
        else:
            self.tally.stale += 1

    def _drop(self, reason: Dropped, topic: str, message: Arrived) -> None:
        self.tally.dropped[reason] += 1
        self.rejects.add(reason, topic.encode(), len(message.payload))
        if message.qos and self._line is not None:
            self._line.ack(message.mid, message.qos)
            self.tally.acknowledged += 1

    def _finish(self, line: Connection, patience: float) -> None:
        """Read no more, wait for the target, acknowledge what it has, and go."""
        until = time.monotonic() + patience
        while self._flights and time.monotonic() < until and not self._broken(line):
            pass
        self.target.close(max(0.1, until - time.monotonic()))
        self._broken(line)
        line.close()
        left = len(self._flights)
        if left:
            _LOG.warning(
                "stopped with %d messages that the next hop did not confirm; the broker sends them again", left
            )

    def _broken(self, line: Connection) -> bool:
        """Settle without reading; whether that cannot go on. What is wrong was, or will be, said where it matters."""
        try:
            if line.connected:
                line.turn(_BUSY_S, room=lambda: False)
            else:
                time.sleep(_BUSY_S)
            self._settle(line)
        except Exception as error:  # noqa: BLE001 - the end is reached one way or the other, unacknowledged
            _LOG.warning("at the end: %s", type(error).__name__)
            return True
        return False
