"""Progress of a live source's partitions: restrictions, watermarks and heartbeats.

It is written as JSON: plain, deterministic, and readable in a savepoint of any version.

The clock of a part that mixes several sources, such as the partitions of a topic.

Each source has a clock of its own: its latest reading. The part has come as far as the slowest of them, because the
readings of one source may be hours ahead of another's. A source that has nothing more to read, and has had none for
longer than ``idle``, does not count. Silence only counts where it is known: while a source cannot be reached, or has
not been looked at since the reader began, whatever feeds it may be waiting with what belongs to open windows. And it
counts over the time in which somebody looked: when a runner has not called for hours, because its sink is away or the
machine slept, whatever feeds the source may have slept as well (see :func:`silent_since`).

>>> heard = {"load/0": Heard(7_000_000, 0), "load/1": Heard(None, 0)}
>>> clock_of(heard, {"load/0": Reach.BEHIND, "load/1": Reach.END}, now_us=9_000_000, lateness_us=0, idle_us=None)
>>> clock_of(heard, {"load/0": Reach.BEHIND, "load/1": Reach.END}, now_us=9_000_000, lateness_us=0, idle_us=8_000_000)
7000000

The pulse of the live readers in this process, for whoever watches them.

A job that stops producing does not fail: its runner says RUNNING for ever. Readers beat here on every look at their
source; the watchdog of ``quiltstream run --live`` reads it. Readers on other machines beat there, where nobody looks;
for those the runner's own counters are watched.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker

from ..completeness.sequence_numbers import SequenceNumbers

__all__ = [
    "Heard",
    "Progress",
    "Reach",
    "Span",
    "SpanCoder",
    "SpanTracker",
    "clock_of",
    "heard_of",
    "is_idle",
    "left_out",
    "silent_since",
    "waited_for",
]


class Reach(Enum):
    """How far a reader has come in one source."""

    UNKNOWN = "unknown"
    """It cannot be reached, or was not looked at yet."""
    BEHIND = "behind"
    """More is waiting there."""
    END = "end"
    """Nothing more is there now."""
    UNSEEN = "unseen"
    """Nothing more was there at the last look, which was before this one: it says nothing of now."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What was heard of one source.

    Attributes:
        latest_us: latest reading, or ``None`` before the first.
        heard_us: wall clock from which on its silence counts: that of its last reading, or of the moment when it was
            found, or could be reached again, and later by what passed while nobody looked.
        seen_us: wall clock of the last look that found nothing more there; ``None`` before the first, and where silence
            does not count.
    """

    latest_us: int | None
    heard_us: int
    seen_us: int | None = None


def heard_of(
    before: Mapping[str, Heard],
    sources: Mapping[str, Reach],
    now_us: int,
    said: tuple[str, int | None] | None = None,
    *,
    idle_us: int | None = None,
    look_us: int = 0,
) -> dict[str, Heard]:
    """What was heard of each source after a look; sources that are gone are forgotten.

    Args:
        before: what was heard before the look.
        sources: the sources that there are.
        now_us: the wall clock.
        said: the source that had readings, and the latest of them; ``None`` where that is not known.
        idle_us: how long a silent source counts; ``None``: for ever, so that nothing is noted of silence.
        look_us: what counts of the time between two looks at most.
    """
    after: dict[str, Heard] = {}
    for name, reach in sources.items():
        known = before.get(name) or Heard(None, now_us)
        if reach is Reach.UNKNOWN:
            known = Heard(known.latest_us, now_us)
        if said is not None and said[0] == name:
            latest = [one for one in (known.latest_us, said[1]) if one is not None]
            known = Heard(max(latest, default=None), now_us)
        elif reach is Reach.END and idle_us is not None:
            seen_us = known.heard_us if known.seen_us is None else known.seen_us
            since_us = silent_since(known.heard_us, seen_us, now_us=now_us, look_us=look_us, idle_us=idle_us)
            known = Heard(known.latest_us, since_us, now_us)
        after[name] = known
    return after


def silent_since(heard_us: int, seen_us: int, *, now_us: int, look_us: int, idle_us: int) -> int:
    """From when on the silence of a source counts that has nothing more now.

    Between two looks that are far apart nobody knows what held its readings back, so only a part of that time counts;
    where they are as far apart as ``idle``, the silence begins anew.

    Args:
        heard_us: from when on it counted at the last look.
        seen_us: the wall clock at the last look.
        now_us: the wall clock.
        look_us: what counts of the time between two looks at most.
        idle_us: how long a silent source counts.
    """
    gap_us = now_us - max(heard_us, seen_us)
    if gap_us <= look_us:
        return heard_us
    return now_us if gap_us >= idle_us else heard_us + gap_us - look_us


def clock_of(
    heard: Mapping[str, Heard],
    sources: Mapping[str, Reach],
    *,
    now_us: int,
    lateness_us: int,
    idle_us: int | None,
) -> int | None:
    """How far the part has come; ``None`` while a source that counts has had no reading.

    Args:
        heard: what was heard of each source.
        sources: the same sources; none at all is a part that has nothing to read, and follows the wall clock.
        now_us: the wall clock; no reading puts a clock ahead of it.
        lateness_us: how far the clock stays behind.
        idle_us: how long a silent source counts; ``None``: for ever.
    """
    if not sources:
        return now_us - lateness_us
    counting = [one for name, one in heard.items() if not is_idle(one, sources[name], now_us=now_us, idle_us=idle_us)]
    if not counting:
        return now_us - (idle_us or 0) - lateness_us
    latest = [one.latest_us for one in counting if one.latest_us is not None]
    return min(*latest, now_us) - lateness_us if len(latest) == len(counting) else None


def left_out(
    heard: Mapping[str, Heard], sources: Mapping[str, Reach], *, now_us: int, idle_us: int | None
) -> dict[str, int | None]:
    """The sources that do not count because they are silent, and their latest readings; ``None`` without any.

    >>> heard = {"load/0": Heard(7_000_000, 8_000_000), "load/1": Heard(3_000_000, 0)}
    >>> left_out(heard, dict.fromkeys(heard, Reach.END), now_us=9_000_000, idle_us=5_000_000)
    {'load/1': 3000000}
    """
    idle = (name for name, one in heard.items() if is_idle(one, sources[name], now_us=now_us, idle_us=idle_us))
    return {name: heard[name].latest_us for name in idle}


def is_idle(one: Heard, reach: Reach, *, now_us: int, idle_us: int | None) -> bool:
    """Whether a source has been silent for so long that it does not count."""
    return idle_us is not None and reach is Reach.END and now_us - one.heard_us >= idle_us


def waited_for(
    heard: Mapping[str, Heard], sources: Mapping[str, Reach], *, now_us: int, idle_us: int | None
) -> tuple[str, ...]:
    """The sources without a reading that hold the part's clock."""
    return tuple(
        name
        for name, one in heard.items()
        if one.latest_us is None and not is_idle(one, sources[name], now_us=now_us, idle_us=idle_us)
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a part has come: all that a runner keeps of it.

    Attributes:
        position: where the feed goes on.
        clock_us: windows that end by this instant were declared complete.
        latest_us: how far the readings say that the source has come (:meth:`.contract.Piece.vote`), or ``None``.
        heard_us: wall clock of the last reading, or of the start, and later by what passed while nobody looked.
        looked_us: wall clock of the last look that found nothing, where silence counts; 0 before the first.
        followed: whether everything that was there at the start has been read.
        over: whether the part will never be read again.
        sources: what was heard of each source that the part mixes; empty where it is one source.
        lost_us: windows that start before it may lack readings that the source had and has no longer; ``None``: none.
        issued: the sequence numbers so far; ``None`` where batches get none.
    """

    position: str
    clock_us: int
    latest_us: int | None = None
    heard_us: int = 0
    followed: bool = False
    over: bool = False
    sources: dict[str, Heard] = field(default_factory=dict[str, Heard])
    lost_us: int | None = None
    issued: SequenceNumbers | None = None
    looked_us: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """The restriction: from one progress to another, or without end."""

    start: Progress
    stop: Progress | None = None


class SpanCoder(Coder):
    """Spans as JSON: plain, deterministic, and readable in a savepoint of any version."""

    def encode(self, value: Span) -> bytes:
        """Write a span."""
        return json.dumps(asdict(value)).encode()

    def decode(self, encoded: bytes) -> Span:
        """Read a span."""
        plain = json.loads(encoded)
        return Span(_progress(plain["start"]), None if plain["stop"] is None else _progress(plain["stop"]))

    def is_deterministic(self) -> bool:
        """It is."""
        return True

    def to_type_hint(self) -> Any:
        """The type of the values."""
        return Span


def _progress(plain: dict[str, Any]) -> Progress:
    # those of older savepoints have no sources and no sequence numbers
    sources = {name: Heard(**one) for name, one in plain.pop("sources", {}).items()}
    issued = plain.pop("issued", None)
    return Progress(**plain, sources=sources, issued=None if issued is None else SequenceNumbers.from_plain(issued))


class SpanTracker(RestrictionTracker):
    """Claims progress, one after another; splitting means stopping after the last claim."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._claimed: Progress | None = None

    def current_restriction(self) -> Span:
        """The span."""
        return self._span

    def try_claim(self, position: Progress) -> bool:
        """Claim everything up to a progress; refused once the span has an end."""
        if self._span.stop is not None:
            return False
        self._claimed = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Span, Span] | None:
        """End the span after the last claim; the rest is another one's. It has no middle."""
        if self._span.stop is not None or fraction_of_remainder != 0:
            return None
        at = self._span.start if self._claimed is None else self._claimed
        if at.over:
            return None
        self._span = replace(self._span, stop=at)
        return self._span, Span(at)

    def check_done(self) -> None:
        """See that nothing of the span is left.

        Raises:
            ValueError: the reader returned in the middle.
        """
        if self._span.stop is None and (self._claimed is None or not self._claimed.over):
            raise ValueError("the live reader returned without handing the rest of its part back")

    def current_progress(self) -> RestrictionProgress:
        """Nobody knows how much will come.

        The fraction is given because Beam else divides by the bytes of the output so far, of which it has no estimate
        before the first: a split that Prism asks for then fails, and the job with it.
        """
        return RestrictionProgress(fraction=0.0, completed=0, remaining=1)

    def is_bounded(self) -> bool:
        """A live source ends never, or when nobody knows."""
        return self._span.stop is not None or (self._claimed is not None and self._claimed.over)


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
