"""The way back: released rows are published at the broker, each at least once and never with other values."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...schemas.sealing import Content
from .libraries import properties
from .lines import Outlet
from .rejects import RejectFile
from .released import ReleaseSource, row_of
from .sent import Known, ReleasedRow, Sent
from .stall import Stall
from .tally import Dropped, Tally

_LOG = logging.getLogger("quiltstream.gateway")

_WAIT_S = 0.2
_BUSY_S = 0.05


class Back:
    """Publishes rows of a source, some at a time: the next ones when the broker has these.

    Args:
        source: where rows come from.
        sent: what was sent before.
        prefix: what topics begin with.
        retain: whether the broker is to keep the newest row of each topic.
        window: messages that may be unconfirmed.
        tally: where to count.
        rejects: where rows that are none are told of.
    """

    def __init__(
        self,
        source: ReleaseSource,
        sent: Sent,
        *,
        prefix: str,
        retain: bool,
        tally: Tally,
        rejects: RejectFile,
        window: int = 20,
    ) -> None:
        self._source = source
        self._sent = sent
        self._prefix = prefix
        self._retain = retain
        self._tally = tally
        self._rejects = rejects
        self._window = window
        self._under_way: dict[int, tuple[ReleasedRow, bool]] = {}
        self._stall = Stall()

    def run(self, outlet: Outlet, stop: Callable[[], bool], patience: float) -> None:
        """Publish until told to stop.

        Args:
            outlet: the connection; what it confirms comes to :meth:`confirmed`.
            stop: whether to stop.
            patience: seconds that what is under way may take then.

        Raises:
            BrokerError: the broker refuses for good.
            HopError: the source does.
        """
        try:
            while not stop():
                outlet.turn(0)
                rows = self._new(self._source.take(_WAIT_S))
                if self._published(outlet, rows, _until(stop, patience)):
                    self._sent.add(row for row, _ in rows)
                    self._tally.sent += len(rows)
                    self._source.done()
        finally:
            outlet.close()
            self._source.close()

    def confirmed(self, packet: int) -> None:
        """The broker has a message, by its packet id."""
        self._under_way.pop(packet, None)
        self._stall.moved()

    def _new(self, taken: list[bytes]) -> list[tuple[ReleasedRow, bool]]:
        """The rows that are to be sent, each with whether it is the newest of its topic."""
        rows: list[ReleasedRow] = []
        for payload in taken:
            row = row_of(payload)
            if row is None:
                self._drop(Dropped.NO_RELEASE, payload)
            else:
                rows.append(row)
        new: list[ReleasedRow] = []
        for row, known in zip(rows, self._sent.known(rows), strict=True):
            if known is Known.NEW:
                new.append(row)
            elif known is Known.SENT:
                self._tally.known += 1
            else:
                self._drop(Dropped.CHANGED, row.payload)
        return list(zip(new, self._sent.newest(new), strict=True))

    def _drop(self, reason: Dropped, payload: bytes) -> None:
        self._tally.dropped[reason] += 1
        content = Content(payload, "", -1) if self._rejects.wants_content else None
        self._rejects.add(reason, b"", len(payload), content)

    def _published(self, outlet: Outlet, rows: list[tuple[ReleasedRow, bool]], over: Callable[[], bool]) -> bool:
        """Whether the broker has all rows; if not, there was no time left."""
        waiting = rows[::-1]
        generation = outlet.generation
        self._stall.moved()
        while waiting or self._under_way:
            if over():
                return False
            if outlet.generation != generation:
                # packet ids of the old connection mean nothing now: what it did not confirm is published again
                waiting += list(self._under_way.values())[::-1]
                self._under_way.clear()
                generation = outlet.generation
            while outlet.connected and waiting and len(self._under_way) < self._window:
                row, newest = waiting.pop()
                packet = outlet.publish(
                    f"{self._prefix}/{row.topic}",
                    row.payload,
                    retain=self._retain and newest,
                    properties=properties(row.release_id),
                )
                self._under_way[packet] = (row, newest)
            outlet.turn(_BUSY_S)
            if not outlet.connected:
                self._stall.moved()  # the connection says itself what it waits for
            elif (seconds := self._stall.to_tell()) is not None:
                _LOG.warning(
                    "the broker has confirmed no release for %.0f s; %d are under way, and no further ones are sent",
                    seconds,
                    len(self._under_way),
                )
        return True


def _until(stop: Callable[[], bool], patience: float) -> Callable[[], bool]:
    """Whether the patience is over that begins when one is told to stop."""
    told: list[float] = []

    def over() -> bool:
        if not stop():
            return False
        if not told:
            told.append(time.monotonic())
        return time.monotonic() - told[0] > patience

    return over


__all__ = ["Back"]
