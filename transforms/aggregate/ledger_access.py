"""How workers use the ledger of record: they wait while it is away, and remember it before their rows leave.

A call of the store that fails changes nothing, or what it changed is on record and is found there by the next call. So
a worker of a live job repeats it until the ledger answers. Beyond :data:`WAIT_S` the bundle fails, because a runner
that keeps checkpoints cannot write one meanwhile; the command restarts the job once the ledger answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...schemas.backoff import Backoff
from ...schemas.slots import Window
from ...store.errors import StoreAway
from ...store.specs import BlockToPublish, Record, Registration
from .memory import Memory, newest_of

if TYPE_CHECKING:
    from ...store.store import Store

#: Seconds that a call waits for the ledger.
WAIT_S = 120.0

_BACKOFF = Backoff(0.25, 15.0)

_Answer = TypeVar("_Answer")


class _Job:
    """The job of this process: whether its workers wait without an end, and what is set when it is over."""

    endless = False
    over = threading.Event()


def wait_without_end() -> None:
    """Let the workers in this process wait for the ledger until their job ends: its source cannot be read again."""
    _Job.endless = True


def give_up() -> None:
    """End all waiting in this process: the job is over."""
    _Job.over.set()
    _Job.endless, _Job.over = False, threading.Event()


@dataclass(frozen=True)
class Patience:
    """How a call is made again while the ledger is away."""

    seconds: float  # for how long; 0 for not at all
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    # waits for the end of a job, for some seconds at most, and says whether it is over; the tests' own
    pause: Callable[[threading.Event, float], bool] = threading.Event.wait

    def call(self, ask: Callable[[], _Answer], over: threading.Event) -> _Answer:
        """What a call gives; while it waits, the watchdog is told for what."""
        from ..sources.progress import LEDGER, Heartbeat, at_work  # noqa: PLC0415 - with Beam, which a dry run does not import

        begun, pauses, who = self.clock(), _BACKOFF.pauses(), f"{LEDGER}{threading.get_ident()}"
        try:
            while True:
                try:
                    with at_work(f"{LEDGER}of record"):
                        return ask()
                except StoreAway as error:
                    if not self.seconds:
                        raise
                    wait_s = next(pauses)
                    if not _Job.endless and self.clock() - begun + wait_s > self.seconds:
                        raise
                    Heartbeat.complain(who, str(error))
                    if self.pause(over, wait_s):
                        raise
        finally:
            Heartbeat.complain(who, None)


class PatientStore:
    """The calls of a store that workers make, each with patience."""

    def __init__(
        self, store: Store, *, live: bool, memory: Memory | None = None, patience: Patience | None = None
    ) -> None:
        self._store = store
        self._memory = memory
        self._patience = patience or Patience(WAIT_S if live else 0.0)
        self._over = _Job.over

    def current(self, registration: Registration) -> Registration:
        """:meth:`.Store.current`."""
        return self._patience.call(lambda: self._store.current(registration), self._over)

    def join(
        self, registration: Registration, entries: Sequence[tuple[str, str | None]], most: int | None = None
    ) -> Registration:
        """:meth:`.Store.join`."""
        return self._patience.call(lambda: self._store.join(registration, entries, most), self._over)

    def charge_windows(
        self, registration: Registration, windows: Iterable[Window], begun: Registration | None = None
    ) -> Registration:
        """:meth:`.Store.charge_windows`."""
        charged = list(windows)
        return self._patience.call(lambda: self._store.charge_windows(registration, charged, begun), self._over)

    def publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        """:meth:`.Store.publish`; what it returns is remembered before it leaves."""
        return self._patience.call(lambda: self._publish(registration, drafts), self._over)

    def _publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        records = self._store.publish(registration, drafts)
        if self._memory is not None and any(record.block is not None for record in records):
            self._memory.note(self._store, registration.domain.name, newest_of(registration, records))
        return records

    def close(self) -> None:
        """:meth:`.Store.close`."""
        self._store.close()
