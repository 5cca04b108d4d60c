"""The watchdog's rounds: also while whoever follows a live job waits for a runner or a ledger that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress

from ...transforms.live.pulse import Pulse
from .flink_health import Trouble
from .verdict import BOARD, Cause
from .watchdog import Asked, Stuck, Watchdog

#: Seconds between two rounds.
BEAT_S = 2.0

#: Seconds between two questions to a cluster.
CLUSTER_S = 5.0

#: Seconds that the last round has to end.
_END_S = 5.0

Say = Callable[[str, str], None]
"""Tells a kind of news and the news."""


Cluster = Callable[[], Trouble | None]
"""Asks a cluster why the job cannot go on there; ``None`` if it can, or nobody knows."""


class Vigil:
    """Has the watchdog look every few seconds, says what it finds, and keeps the verdict for the metric.

    Args:
        dog: looks; nobody else may ask it.
        say: tells news.
        beat_s: seconds between two rounds of the thread.
        cluster: asks the cluster that runs the job, where it can be asked.
    """

    def __init__(self, dog: Watchdog, say: Say, *, beat_s: float | None = None, cluster: Cluster | None = None) -> None:
        self._dog, self._say = dog, say
        self._beat_s = BEAT_S if beat_s is None else beat_s
        self._first_missing: int | None = None
        self._tallies: Mapping[str, int] | None = None
        self._away: str | None = None
        self._lost: str | None = None
        self._asked: Asked | None = None
        self._cluster = cluster
        self._stuck: Stuck | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rounds, name="quiltstream-watchdog", daemon=True)

    @contextmanager
    def rounds(self) -> Generator[None]:
        """Look every few seconds while the block runs."""
        self._thread.start()
        if self._cluster is not None:
            # it may take long to answer, and nobody waits for it
            ask = threading.Thread(
                target=self._questions, args=(self._cluster,), name="quiltstream-cluster", daemon=True
            )
            ask.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(_END_S)

    def say(self, kind: str, text: str) -> None:
        """Tell news between those of the watchdog."""
        with self._lock:
            self._say(kind, text)

    @contextmanager
    def asking(self, whom: Cause) -> Generator[None]:
        """Ask the runner or the ledger; that it does not answer is noticed meanwhile.

        Args:
            whom: ``Cause.RUNNER`` or ``Cause.LEDGER``.
        """
        self._asked = Asked(whom, self._dog.clock())
        try:
            yield
        finally:
            self._asked = None

    def look(
        self,
        first_missing: int | None,
        tallies: Mapping[str, int] | None,
        away: str | None = None,
        lost: str | None = None,
    ) -> None:
        """Have the watchdog look now, at what is known now.

        Args:
            first_missing: slot of the first window that is not on record.
            tallies: the runner's counters; ``None`` where it reports none.
            away: why the ledger could not be looked at; ``None`` if it could.
            lost: why the runner could not be asked; ``None`` if it could.
        """
        with self._lock:
            self._first_missing, self._tallies, self._away, self._lost = first_missing, tallies, away, lost
            self._look()

    def _rounds(self) -> None:
        while not self._stop.wait(self._beat_s):
            # a closed output ends the job where it is written to next; the metric goes on until then
            with suppress(OSError, ValueError), self._lock:
                self._look()

    def _questions(self, cluster: Cluster) -> None:
        while not self._stop.wait(CLUSTER_S):
            found, before = cluster(), self._stuck
            if found is None:
                self._stuck = None
            else:
                since = self._dog.clock() if before is None or before.cause is not found.cause else before.since
                self._stuck = Stuck(found.cause, found.text, since, found.sure)

    def _look(self) -> None:
        warnings = self._dog.look(
            self._first_missing,
            Pulse.all(),
            self._tallies,
            waits=Pulse.complaints(),
            away=self._away,
            lost=self._lost,
            asked=self._asked,
            stuck=self._stuck,
        )
        BOARD.note(self._dog.verdict, self._tallies)
        for text in self._dog.over():
            self._say("resumed", text)
        for text in warnings:
            self._say("warning", text)


__all__ = ["BEAT_S", "CLUSTER_S", "Cluster", "Say", "Vigil"]
