"""The clock of a part that mixes several sources, such as the partitions of a topic.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


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


__all__ = ["Heard", "Reach", "clock_of", "heard_of", "is_idle", "left_out", "silent_since", "waited_for"]
