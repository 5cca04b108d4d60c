"""The pulse of the live readers in this process, for whoever watches them.

A job that stops producing does not fail: its runner says RUNNING for ever. Readers beat here on every look at their
source; the watchdog of ``quiltstream run --live`` reads it. Readers on other machines beat there, where nobody looks;
for those the runner's own counters are watched.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

_pulses: dict[int, Pulse] = {}
_complaints: dict[str, str] = {}
_lock = threading.Lock()


@dataclass(slots=True)
class Pulse:
    """The last signs of life of one part.

    What a look found stays until the next look: whoever reads it must not take it for what is now.

    Attributes:
        beaten: monotonic seconds of the last sign of life, 0 before the first: a look at the source, or a call between
            two looks that are far apart.
        heard: monotonic seconds of the last reading.
        latest_us: latest reading.
        clock_us: windows that end by this instant were declared complete.
        rows: readings so far.
        trouble: why nothing can be read now, as the reader says.
        waited_for: sources that had no reading yet, and hold windows back.
        left_out: sources that had readings and are silent, so that windows are closed without waiting for them.
        kept_us: the clock that the runner keeps: what was declared up to it is in the runner's hands.
        looked: monotonic seconds of the last look at the source, 0 before the first.
        behind: whether more was waiting to be read after the last look, so that the clock could not move yet.
    """

    beaten: float = 0.0
    heard: float = 0.0
    latest_us: int | None = None
    clock_us: int | None = None
    rows: int = 0
    trouble: str | None = None
    waited_for: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    kept_us: int | None = None
    looked: float = 0.0
    behind: bool = False

    @staticmethod
    def of(part: int) -> Pulse:
        """The pulse of a part in this process."""
        with _lock:
            return _pulses.setdefault(part, Pulse())

    @staticmethod
    def all() -> dict[int, Pulse]:
        """Every pulse in this process."""
        with _lock:
            return dict(_pulses)

    @staticmethod
    def reset() -> None:
        """Forget them: another job begins."""
        with _lock:
            _pulses.clear()
            _complaints.clear()

    @staticmethod
    def complain(who: str, text: str | None) -> None:
        """Say what a sink of this process waits for; ``None`` when it waits no longer."""
        with _lock:
            if text is None:
                _complaints.pop(who, None)
            else:
                _complaints[who] = text

    @staticmethod
    def complaints() -> dict[str, str]:
        """What the sinks of this process wait for."""
        with _lock:
            return dict(_complaints)

    def live(self, kept_us: int) -> None:
        """Note that a worker was here, though it is not time to look."""
        self.beaten, self.kept_us = time.monotonic(), kept_us

    def beat(
        self,
        latest_us: int | None,
        clock_us: int,
        *,
        rows: int,
        trouble: str | None = None,
        waited_for: tuple[str, ...] = (),
        left_out: tuple[str, ...] = (),
        behind: bool = False,
    ) -> None:
        """Note a look at the source."""
        self.looked = self.beaten = time.monotonic()
        if rows:
            self.heard = self.beaten
        if latest_us is not None:
            self.latest_us = latest_us if self.latest_us is None else max(self.latest_us, latest_us)
        self.clock_us = clock_us
        self.rows += rows
        self.trouble = trouble
        self.waited_for = waited_for
        self.left_out = left_out
        self.behind = behind
