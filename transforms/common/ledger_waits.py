"""Workers of live jobs wait where they are for a ledger that is away.

A call of the store that fails changes nothing, or what it changed is on record and is found there by the next call. So
it is made again until the ledger answers. Beyond :data:`WAIT_S` the bundle fails, because a runner that keeps
checkpoints cannot write one meanwhile; the command restarts the job once the ledger answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...schemas.slots import Window
from ...store.errors import StoreUnavailable
from ...store.specs import BlockToPublish, Record, Registration
from ...store.store import Store
from ..aggregate.block_log import BlockLog, LogWriter

#: Seconds that a call waits for the ledger.
WAIT_S = 120.0

#: Seconds before the first further try; each pause is twice as long, up to the last.
_FIRST_S = 0.25
_LONGEST_S = 15.0

_Answer = TypeVar("_Answer")


class _Job:
    """The job whose workers are in this process, one after the other."""

    def __init__(self) -> None:
        self.number = 0
        self.endless = False
        self._over = threading.Condition()

    def end(self) -> None:
        """Let those who wait give up: their job is over."""
        with self._over:
            self.number += 1
            self.endless = False
            self._over.notify_all()

    def pause(self, seconds: float, number: int) -> bool:
        """Wait for a while; whether the job of that number still runs then."""
        with self._over:
            return not self._over.wait_for(lambda: self.number != number, seconds)


_JOB = _Job()


def wait_without_end() -> None:
    """Let the workers in this process wait for the ledger until their job ends: its source cannot be read again."""
    _JOB.endless = True


def give_up() -> None:
    """End all waiting in this process: the job is over."""
    _JOB.end()


@dataclass(frozen=True)
class Patience:
    """How a call is made again while the ledger is away.

    Attributes:
        seconds: for how long; 0 for not at all.
        clock: monotonic seconds; the tests' own.
        pause: waits for some seconds, and says whether the job of a number still runs; the tests' own.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float, int], bool] = _JOB.pause

    def call(self, ask: Callable[[], _Answer], job: int) -> _Answer:
        """What a call gives.

        Raises:
            StoreUnavailable: the ledger was away for all of the time, or the job is over.
            StoreError: anything else, at once.
        """
        begun, wait_s = self.clock(), _FIRST_S
        while True:
            try:
                return ask()
            except StoreUnavailable as error:
                if not error.passing or not self.seconds:
                    raise
                if not _JOB.endless and self.clock() - begun + wait_s > self.seconds:
                    raise
                if not self.pause(wait_s, job):
                    raise
            wait_s = min(2 * wait_s, _LONGEST_S)


class PatientStore:
    """The calls of a store that workers make, each with patience.

    Args:
        store: the ledger of record.
        live: whether the job follows a source that never ends; else nothing is waited for.
        log: where blocks are logged before their rows leave; in this process alone if left out.
        patience: how it is waited for, if not as always.
    """

    def __init__(
        self, store: Store, *, live: bool, log: BlockLog | None = None, patience: Patience | None = None
    ) -> None:
        self._store = store
        self._log = LogWriter(log or BlockLog(()), store)
        self._patience = patience or Patience(WAIT_S if live else 0.0)
        self._job = _JOB.number

    def current(self, registration: Registration) -> Registration:
        """:meth:`.Store.current`."""
        return self._patience.call(lambda: self._store.current(registration), self._job)

    def join(
        self, registration: Registration, entries: Sequence[tuple[str, str | None]], most: int | None = None
    ) -> Registration:
        """:meth:`.Store.join`."""
        return self._patience.call(lambda: self._store.join(registration, entries, most), self._job)

    def charge_windows(self, registration: Registration, windows: Iterable[Window]) -> Registration:
        """:meth:`.Store.charge_windows`."""
        asked = list(windows)
        return self._patience.call(lambda: self._store.charge_windows(registration, asked), self._job)

    def publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        """:meth:`.Store.publish`; what it returns is logged, too."""
        return self._patience.call(lambda: self._publish(registration, drafts), self._job)

    def _publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        records = self._store.publish(registration, drafts)
        self._log.append(registration, records)
        return records

    def close(self) -> None:
        """:meth:`.Store.close`."""
        self._store.close()


__all__ = ["WAIT_S", "Patience", "PatientStore", "give_up", "wait_without_end"]
