"""Closings: a mark as what it says of each window, for every shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.slots import Schedule, SlotGrid
from .marks import Mark
from .rosters import Members

#: Beam's runners tell instants apart no finer.
MILLISECOND_US = 1_000


@dataclass(frozen=True, slots=True)
class Closing:
    """A part of the source declares a window complete, for one shard.

    Attributes:
        start: first slot of the window.
        part: number of the part.
        parts: how many parts there are.
        replayed: whether the part read the window again from its start.
        lost: whether the source may have lost readings of the window before the part read them.
        silent: whether the part did not wait for a source that was silent.
        run: name of the run of the part's tickets.
        sent: (step, how many tickets the part gave in it), of the steps of the window with any; ``None`` where the part
            gives no tickets.
    """

    start: int
    part: int = 0
    parts: int = 1
    replayed: bool = False
    lost: bool = False
    silent: bool = False
    run: int = 0
    sent: tuple[tuple[int, int], ...] | None = None


def closings_by(mark: Mark, schedule: Schedule, grid: SlotGrid) -> Iterator[Closing]:
    """What a mark declares: each window that ends after the last mark and by this one."""
    counts = None if mark.sent is None else dict(mark.sent)
    for start in closed_starts(schedule, grid, mark.after_us, mark.until_us):
        lost = mark.lost_us is not None and grid.time_of(start) < mark.lost_us
        end_us = grid.time_of(start + schedule.size)
        silent = mark.silent_us is not None and end_us > mark.silent_us
        sent = None
        if counts is not None:
            first = (start - schedule.anchor) // schedule.every
            sent = tuple((step, counts[step]) for step in range(first, first + schedule.overlap) if step in counts)
        yield Closing(start, mark.part, mark.parts, mark.replayed, lost, silent, mark.run, sent)


def closed_starts(schedule: Schedule, grid: SlotGrid, after_us: int, until_us: int) -> range:
    """First slots of the schedule's windows that end after one instant and not after another."""
    size, every, first = schedule.size, schedule.every, schedule.first

    def ended(instant: int) -> int:
        """How many windows end by an instant."""
        slots = (instant - grid.origin_us) // grid.interval_us  # whole slots that are over
        return max(0, (slots - size - first) // every + 1)

    begin, end = ended(after_us), ended(until_us)
    if schedule.stop is not None:
        begin, end = min(begin, len(schedule)), min(end, len(schedule))
    return range(first + begin * every, first + end * every, every)


def closings_of(grid: SlotGrid, schedule: Schedule, members: Members, closing: Closing) -> Iterator[WindowedValue]:
    """A declaration for every shard with series."""
    for shard in members.occupied:
        yield closing_of(grid, schedule, shard, closing)


def closing_of(grid: SlotGrid, schedule: Schedule, shard: int, closing: Closing) -> WindowedValue:
    """A declaration for a shard, just before the end of its window's first step."""
    instant = grid.time_of(closing.start + schedule.every) - MILLISECOND_US
    return WindowedValue((shard, closing), Timestamp(micros=instant), (GlobalWindow(),))


__all__ = ["MILLISECOND_US", "Closing", "closed_starts", "closing_of", "closings_by", "closings_of"]
