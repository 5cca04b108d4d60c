"""The watchdog: says within a minute when a live job has stopped producing, with the likely cause.

A streaming job that lost its workers, whose source went away or whose watermark stands still does not fail; it just
says RUNNING. The watchdog looks at signs of life: the readers' pulse in this process, or the runner's counters where
the readers are elsewhere, and which window is missing on record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..schemas.slots import format_instant
from ..transforms.live import Pace
from ..transforms.pulse import Pulse
from .console import plural

#: Seconds without a sign of life before it is said.
PATIENCE_S = 30.0

#: Sources that a message names at most.
_SHOWN = 3

_DAY_US = 86_400_000_000

#: Seconds before the same thing is said again.
_REPEAT_S = 300.0


@dataclass
class Watchdog:
    """Remembers what it saw, and what it said when.

    Attributes:
        pace: when windows close.
        heard: monotonic seconds when the job was started.
        due_us: end of the window that starts at a slot.
        clock: monotonic seconds; the tests' own.
        wall_us: wall clock in microseconds; the tests' own.
        here: whether the readers are in this process, so that their pulse is missed when there is none.
    """

    pace: Pace
    heard: float
    due_us: Callable[[int], int]
    clock: Callable[[], float] = time.monotonic
    wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    here: bool = True
    _polls: int = 0
    _polled: float | None = None
    _record: tuple[int | None, float] | None = None
    _stood: tuple[int, float] | None = None
    _awaited: tuple[list[str], float] = field(default_factory=lambda: (list[str](), 0.0))
    _said: dict[str, float] = field(default_factory=dict)

    def look(
        self, first_missing: int | None, pulses: Mapping[int, Pulse], tallies: Mapping[str, int] | None
    ) -> list[str]:
        """What is wrong now and was not said lately.

        Args:
            first_missing: slot of the first window that is not on record; it moves when windows are published.
            pulses: of the readers in this process.
            tallies: the runner's counters; ``None`` where it reports none.
        """
        now = self.clock()
        if self._record is None or self._record[0] != first_missing:
            self._record = (first_missing, now)
        return [text for kind, text in self._found(now, pulses, tallies or {}) if self._is_new(kind, now)]

    def away(self, text: str) -> list[str]:
        """What to say of a ledger that cannot be looked at now, if it was not said lately.

        Args:
            text: the store's own words.
        """
        said = f"the ledger of record cannot be looked at, and the job waits for it: {text}"
        return [said] if self._is_new("ledger", self.clock()) else []

    def waits(self, complaints: Mapping[str, str]) -> list[str]:
        """What to say of sinks that wait, if it was not said lately.

        Args:
            complaints: which, and their own words.
        """
        now = self.clock()
        return [text for who, text in complaints.items() if self._is_new(f"waits {who}", now)]

    def _is_new(self, kind: str, now: float) -> bool:
        new = now - self._said.get(kind, float("-inf")) >= _REPEAT_S
        if new:
            self._said[kind] = now
        return new

    def _found(self, now: float, pulses: Mapping[int, Pulse], tallies: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        if tallies.get("polls", 0) > self._polls:
            self._polls, self._polled = tallies["polls"], now
        if not self.here and not pulses and self._polled is None:
            yield from self._overdue(now)
            return
        last = max([pulse.beaten for pulse in pulses.values()] + [self._polled or 0.0, self.heard])
        if now - last > max(PATIENCE_S, 3 * self.pace.poll_s):
            yield (
                "reader",
                f"no worker has looked at the source for {now - last:.0f} s: the worker pool may be gone, or every "
                "worker waits for the ledger of record; look at the runner's workers, then restart the job",
            )
            return
        troubles = sorted({pulse.trouble for pulse in pulses.values() if pulse.trouble is not None})
        if troubles:
            yield "trouble", f"the source cannot be read: {'; '.join(troubles)}. Its windows wait; it is tried again"
        silent = [
            part
            for part, pulse in pulses.items()
            if pulse.trouble is None and now - max(pulse.heard, self.heard) > PATIENCE_S
        ]
        if silent:
            yield (
                "silent",
                f"the source has had nothing new for over {PATIENCE_S:.0f} s{_parts(silent, len(pulses))}: is what "
                "feeds it away? Its windows wait"
                + ("" if self.pace.idle_us is None else " until live.idle has passed"),
            )
        yield from self._unheard(now, sorted({name for pulse in pulses.values() for name in pulse.waited_for}))
        clocks = [pulse.clock_us for pulse in pulses.values() if pulse.clock_us is not None]
        ahead = [
            pulse.latest_us
            for pulse in pulses.values()
            if pulse.latest_us is not None and pulse.latest_us > self.wall_us() + _DAY_US
        ]
        if ahead:
            yield (
                "ahead",
                f"a reading is stamped {format_instant(max(ahead))}, over a day ahead of this machine's clock: a "
                "meter's clock may have jumped. Windows close by this machine's clock",
            )
        heard = max((pulse.heard for pulse in pulses.values()), default=0.0)
        if clocks and now - heard <= PATIENCE_S and not self._awaited[0]:
            yield from self._stalled(now, min(clocks))
        record = self._record
        if record is not None and record[0] is not None and clocks and now - record[1] > PATIENCE_S:
            behind = tallies.get("blocks-incomplete", 0)
            if min(clocks) >= self.due_us(record[0]):
                yield (
                    "release",
                    "the source has come past a window that is not on record: the runner holds it back or lost a part "
                    f"of it ({behind} incomplete blocks were dropped). If it stays so, restart the job: it reads the "
                    "source again and publishes what is missing",
                )

    def _stalled(self, now: float, clock_us: int) -> Iterator[tuple[str, str]]:
        """Readings arrive, and none of them moves the clock past a window that is due by the clock on the wall."""
        if self._stood is None or self._stood[0] != clock_us:
            self._stood = (clock_us, now)
        missing = None if self._record is None else self._record[0]
        if missing is None or now - self._stood[1] <= PATIENCE_S:
            return
        due = self.due_us(missing)
        if clock_us < due and due + self.pace.lateness_us + int(PATIENCE_S * 1e6) < self.wall_us():
            yield (
                "stalled",
                f"readings arrive, and the source's clock has stood at {format_instant(clock_us)} for "
                f"{now - self._stood[1]:.0f} s, so the window that ends at {format_instant(due)} waits: what was there "
                "at the start may still be being read, or what arrives is older than that, or stamped over a day ahead",
            )

    def _unheard(self, now: float, names: list[str]) -> Iterator[tuple[str, str]]:
        """Sources of which no reading came yet hold the windows of all the others."""
        if names != self._awaited[0]:
            self._awaited = (names, now)
        if not names or now - self._awaited[1] <= PATIENCE_S:
            return
        shown = ", ".join(names[:_SHOWN]) + (" and others" if len(names) > _SHOWN else "")
        until = "they have one" if self.pace.idle_us is None else "live.idle has passed"
        yield (
            "unheard",
            f"no reading has come yet of {plural(len(names), 'source')} ({shown}): the windows wait until {until}",
        )

    def _overdue(self, now: float) -> Iterator[tuple[str, str]]:
        """Where neither pulse nor counters can be seen, only what is late on record tells."""
        if self._record is None or self._record[0] is None or now - self._record[1] <= PATIENCE_S:
            return
        due = self.due_us(self._record[0])
        waits = self.pace.lateness_us + (self.pace.idle_us or 0) + int(PATIENCE_S * 1e6)
        if due + waits < self.wall_us():
            yield (
                "overdue",
                f"nothing was put on record for {now - self._record[1]:.0f} s, and the window that ends at "
                f"{format_instant(due)} is missing: its source may be silent, the workers gone, or the runner may have "
                "lost its source. This runner tells no counters here: look at its own pages; if nothing moves, stop "
                "the job and begin it anew",
            )


def _parts(silent: list[int], parts: int) -> str:
    return "" if parts <= 1 else f" in {len(silent)} of its {parts} parts"


__all__ = ["PATIENCE_S", "Watchdog"]
