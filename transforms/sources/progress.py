"""Progress of a live source's partitions: restrictions, watermarks and heartbeats.

The watermark of a partition that mixes several sources, such as the partitions of a topic, is that of the slowest one:
the readings of one may be hours ahead of another's. A source that has nothing more to read, and has had no reading for
longer than ``idle``, does not count. Silence counts only while it is observed: not while a source cannot be reached,
and not between polls that are far apart, because a sink that is away or a sleeping machine may have held its readings
back as well (see :func:`silent_since`).

>>> heard = {"load/0": Activity(7_000_000, 0), "load/1": Activity(None, 0)}
>>> reach = {"load/0": Reach.BEHIND, "load/1": Reach.END}
>>> watermark_of(heard, reach, now_us=9_000_000, lateness_us=0, idle_us=None)
>>> watermark_of(heard, reach, now_us=9_000_000, lateness_us=0, idle_us=8_000_000)
7000000

A job that stops producing does not fail, because its runner says RUNNING for ever. The watchdog of ``quiltstream run
--live`` reads the heartbeats of this process; for readers on other machines it reads the runner's counters.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker

from ..completeness import check_version


class Reach(Enum):
    """How far a reader has come in one source."""

    UNKNOWN = "unknown"
    """It cannot be reached, or was not polled yet."""
    BEHIND = "behind"
    """More is waiting there."""
    END = "end"
    """Nothing more is there now."""
    UNSEEN = "unseen"
    """Nothing more was there at an earlier poll, which says nothing of now."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The latest reading of one source, and its silence."""

    # how far its readings say that it has come (:meth:`.contract.SourceBatch.vote`); ``None`` before the first
    latest_us: int | None
    # wall clock from which on its silence counts: of its last reading, or of the moment when it was found, or could be
    # reached again, and later by the time without polls
    heard_us: int
    # wall clock of the last poll that found nothing more; ``None`` before the first, and where silence does not count
    seen_us: int | None = None


#: What was heard of sources, and how far their reader has come, by their names.
_Heard = Mapping[str, Activity]
_Sources = Mapping[str, Reach]


def activity_of(
    before: _Heard,
    sources: _Sources,
    now_us: int,
    said: tuple[str, int | None] | None = None,
    *,
    idle_us: int | None = None,
    look_us: int = 0,
) -> dict[str, Activity]:
    """Activity of each source after a poll; sources that are gone are dropped."""
    after: dict[str, Activity] = {}
    for name, reach in sources.items():
        known = before.get(name) or Activity(None, now_us)
        if reach is Reach.UNKNOWN:
            known = Activity(known.latest_us, now_us)
        if said is not None and said[0] == name:
            latest = [one for one in (known.latest_us, said[1]) if one is not None]
            known = Activity(max(latest, default=None), now_us)
        elif reach is Reach.END and idle_us is not None:
            seen_us = known.heard_us if known.seen_us is None else known.seen_us
            since_us = silent_since(known.heard_us, seen_us, now_us=now_us, look_us=look_us, idle_us=idle_us)
            known = Activity(known.latest_us, since_us, now_us)
        after[name] = known
    return after


def silent_since(heard_us: int, seen_us: int, *, now_us: int, look_us: int, idle_us: int) -> int:
    """From when on the silence of a source counts that has nothing more now.

    Of the time between two polls only a part counts, because what held its readings back is unknown; where they are as
    far apart as ``idle``, the silence starts again. A wall clock that was ahead and was set back leaves stamps of the
    future: they count as now, so that windows do not wait for as long as it was ahead.
    """
    heard_us, seen_us = min(heard_us, now_us), min(seen_us, now_us)
    gap_us = now_us - max(heard_us, seen_us)
    if gap_us <= look_us:
        return heard_us
    return now_us if gap_us >= idle_us else heard_us + gap_us - look_us


def watermark_of(heard: _Heard, sources: _Sources, *, now_us: int, lateness_us: int, idle_us: int | None) -> int | None:
    """How far the partition has come; ``None`` while a source that counts has no reading."""
    if not sources:
        return now_us - lateness_us
    counting = [one for name, one in heard.items() if not is_idle(one, sources[name], now_us=now_us, idle_us=idle_us)]
    if not counting:
        return now_us - (idle_us or 0) - lateness_us
    latest = [one.latest_us for one in counting if one.latest_us is not None]
    return min(*latest, now_us) - lateness_us if len(latest) == len(counting) else None


def left_out(heard: _Heard, sources: _Sources, *, now_us: int, idle_us: int | None) -> dict[str, int | None]:
    """The sources that do not count because they are silent, and their latest readings; ``None`` without any.

    >>> heard = {"load/0": Activity(7_000_000, 8_000_000), "load/1": Activity(3_000_000, 0)}
    >>> left_out(heard, dict.fromkeys(heard, Reach.END), now_us=9_000_000, idle_us=5_000_000)
    {'load/1': 3000000}
    """
    idle = (name for name, one in heard.items() if is_idle(one, sources[name], now_us=now_us, idle_us=idle_us))
    return {name: heard[name].latest_us for name in idle}


def is_idle(one: Activity, reach: Reach, *, now_us: int, idle_us: int | None) -> bool:
    """Whether a source has been silent for so long that it does not count."""
    return idle_us is not None and reach is Reach.END and now_us - one.heard_us >= idle_us


def waited_for(heard: _Heard, sources: _Sources, *, now_us: int, idle_us: int | None) -> tuple[str, ...]:
    """The sources without a reading that hold the partition's watermark."""
    return tuple(
        name
        for name, one in heard.items()
        if one.latest_us is None and not is_idle(one, sources[name], now_us=now_us, idle_us=idle_us)
    )


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition: all that a runner keeps of it."""

    position: str  # offset of the next batch
    clock_us: int  # windows that end by this instant were declared complete
    followed: bool = False  # whether everything that was there at the start has been read
    over: bool = False  # whether the part will never be read again
    # what was heard of each source that the part mixes; of the only one under an empty name
    sources: dict[str, Activity] = field(default_factory=dict[str, Activity])
    # windows that start before it may lack readings that the source had and has no longer; ``None``: none
    lost_us: int | None = None


@dataclass(frozen=True, slots=True)
class Restriction:
    """From one state of a partition to another, or without end."""

    start: PartitionState
    stop: PartitionState | None = None


#: Of the form of :class:`SpanCoder`.
VERSION = 1


class SpanCoder(Coder):
    """Restrictions as JSON: plain, deterministic, and with their version."""

    def encode(self, value: Restriction) -> bytes:
        """Write a restriction."""
        return json.dumps({"version": VERSION, **asdict(value)}).encode()

    def decode(self, encoded: bytes) -> Restriction:
        """Read a restriction.

        Raises:
            StateError: it is of another version.
        """
        plain = json.loads(encoded)
        check_version(plain.get("version", 0), VERSION)
        return Restriction(_progress(plain["start"]), None if plain["stop"] is None else _progress(plain["stop"]))

    def is_deterministic(self) -> bool:
        """It is."""
        return True

    def to_type_hint(self) -> Any:
        """The type of the values."""
        return Restriction


def _progress(plain: dict[str, Any]) -> PartitionState:
    sources = {name: Activity(**one) for name, one in plain.pop("sources").items()}
    return PartitionState(**plain, sources=sources)


class PartitionTracker(RestrictionTracker):
    """Claims states, one after another; splitting means stopping after the last claim."""

    def __init__(self, span: Restriction) -> None:
        self._span = span
        self._claimed: PartitionState | None = None

    def current_restriction(self) -> Restriction:
        """The restriction."""
        return self._span

    def try_claim(self, position: PartitionState) -> bool:
        """Claim everything up to a progress; refused once the restriction has an end."""
        if self._span.stop is not None:
            return False
        self._claimed = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Restriction, Restriction] | None:
        """End the restriction after the last claim; the rest is another one's. It has no middle."""
        if self._span.stop is not None or fraction_of_remainder != 0:
            return None
        at = self._span.start if self._claimed is None else self._claimed
        if at.over:
            return None
        self._span = replace(self._span, stop=at)
        return self._span, Restriction(at)

    def check_done(self) -> None:
        """See that nothing of the restriction is left."""
        if self._span.stop is None and (self._claimed is None or not self._claimed.over):
            raise ValueError("the live reader returned without handing the rest of its part back")

    def current_progress(self) -> RestrictionProgress:
        """Unknown: a live source has no end.

        The fraction is given because Beam else divides by the bytes of the output so far, of which it has no estimate
        before the first: a split by Prism then fails, and the job with it.
        """
        return RestrictionProgress(fraction=0.0, completed=0, remaining=1)

    def is_bounded(self) -> bool:
        """Whether it has an end; a live source has none before it is over."""
        return self._span.stop is not None or (self._claimed is not None and self._claimed.over)


#: Begins the names by which workers complain of the ledger of record, each by one of its own, and their work at it.
LEDGER = "ledger "

_pulses: dict[int, Heartbeat] = {}
_complaints: dict[str, str] = {}
_work: dict[int, Work] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Work:
    """What a thread is at that may take long."""

    what: str  # in words that follow "at the"
    since: float  # monotonic seconds when it began


@contextmanager
def at_work(what: str) -> Generator[None]:
    """Note what this thread is at: where no reader gives a sign of life, that says why."""
    thread = threading.get_ident()
    with _lock:
        before = _work.get(thread)
        _work[thread] = Work(what, time.monotonic())
    try:
        yield
    finally:
        with _lock:
            if before is None:
                del _work[thread]
            else:
                _work[thread] = before


@dataclass(slots=True)
class Heartbeat:
    """The last heartbeat of one partition. What a poll found stays until the next poll."""

    # monotonic seconds of the last sign of life, 0 before the first: a look at the source, or a call between two looks
    # that are far apart
    beaten: float = 0.0
    heard: float = 0.0  # monotonic seconds of the last reading
    latest_us: int | None = None
    clock_us: int | None = None  # windows that end by this instant were declared complete
    rows: int = 0
    trouble: str | None = None  # why nothing can be read now, as the reader says
    waited_for: tuple[str, ...] = ()  # sources that had no reading yet, and hold windows back
    # sources that had readings and are silent, so that windows are closed without waiting for them
    left_out: tuple[str, ...] = ()
    looked: float = 0.0  # monotonic seconds of the last look at the source, 0 before the first
    # whether more was waiting to be read after the last look, so that the clock could not move yet
    behind: bool = False

    @staticmethod
    def of(part: int) -> Heartbeat:
        """The heartbeat of a partition in this process."""
        with _lock:
            return _pulses.setdefault(part, Heartbeat())

    @staticmethod
    def all() -> dict[int, Heartbeat]:
        """Every heartbeat in this process."""
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
        """Say what a sink or a worker of this process waits for; ``None`` when it waits no longer."""
        with _lock:
            if text is None:
                _complaints.pop(who, None)
            else:
                _complaints[who] = text

    @staticmethod
    def complaints() -> dict[str, str]:
        """What sinks and workers of this process wait for."""
        with _lock:
            return dict(_complaints)

    @staticmethod
    def work() -> tuple[Work, ...]:
        """What threads of this process are at."""
        with _lock:
            return tuple(_work.values())

    def live(self) -> None:
        """Note that a worker was here, though it is not time to look."""
        self.beaten = time.monotonic()

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
