"""Per-window sequence numbers: a window is complete when it holds 1..n of each partition.

A punctuation says that a partition was read to the end of a window, not that its batches have arrived. So the batches
of a partition are numbered, in each step of the windows by itself: a batch carries its number in every step that it has
readings of, and the punctuation carries the last number. A window holds everything when all numbers arrived with its
cells, whatever a runner fired, repeated, reordered or lost.

Numbers belong to an epoch (``run``), drawn at random when reading a partition starts: a partition that is read again
may cut its batches in other places, and their numbers are others than the first ones. A call that a runner repeats from
a checkpoint continues the epoch: every runner here discards what the first try sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.calendars import Calendar
from ...schemas.slots import Schedule, SlotGrid, SlotsT

#: First and last of consecutive sequence numbers.
Range = tuple[int, int]

_RUNS = 1 << 31

#: No number for a step that begins more than a day ahead: wrong stamps must not fill the memory.
_AHEAD_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the steps of the windows lie in time.

    Attributes:
        anchor_us: start of step 0; with a calendar, of slot 0.
        every_us: length of a step; with a calendar, of a slot.
        overlap: steps of a window, and windows over a step.
        calendar: the days, weeks or months that are the steps; ``None`` for steps of one length.
    """

    anchor_us: int
    every_us: int
    overlap: int = 1
    calendar: Calendar | None = None

    @classmethod
    def of(cls, grid: SlotGrid, schedule: Schedule) -> Steps:
        """Of a schedule."""
        if schedule.calendar is not None:
            return cls(grid.origin_us, grid.interval_us, 1, schedule.calendar)
        return cls(grid.time_of(schedule.anchor), schedule.every * grid.interval_us, schedule.overlap)

    def number_of(self, times_us: SlotsT) -> SlotsT:
        """The number of the step that each instant is in."""
        found: SlotsT = (times_us - self.anchor_us) // self.every_us  # pyright: ignore[reportAssignmentType] - numpy's stubs
        return found if self.calendar is None else self.calendar.number_of(found)

    def open_in(self, batch: pa.RecordBatch, horizon_us: int, now_us: int) -> list[int]:
        """The steps that a batch has readings of, in a window that ends after an instant, and not far ahead."""
        times = batch.column("time").drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
        if not len(times):
            return []
        lowest, highest = (self.number_of(int(one)) for one in (times.min(), times.max()))
        found = [lowest] if lowest == highest else np.unique(self.number_of(times)).tolist()
        last = now_us + _AHEAD_US
        return [step for step in found if self.over_us(step) > horizon_us and self.end_us(step - 1) <= last]

    def end_us(self, step: int) -> int:
        """When a step ends."""
        until = step + 1 if self.calendar is None else self.calendar.stop_of(step)
        return self.anchor_us + until * self.every_us

    def over_us(self, step: int) -> int:
        """When the last window over a step ends."""
        return self.end_us(step + self.overlap - 1)


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """The sequence numbers of a batch."""

    part: int
    run: int
    numbers: tuple[tuple[int, int], ...]

    def by_step(self) -> dict[int, list[tuple[int, int, int]]]:
        """Step -> the only (part, run, number) of the batch in it."""
        return {step: [(self.part, self.run, number)] for step, number in self.numbers}


@dataclass(frozen=True, slots=True)
class SequenceNumbers:
    """The last sequence numbers of a partition.

    Attributes:
        sent: step -> how many batches with readings of it were sent, while a window over it is open.
    """

    run: int = field(default_factory=lambda: 1 + secrets.randbelow(_RUNS))
    sent: Mapping[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SequenceNumbers:
        """From the JSON of a savepoint, where steps are texts."""
        return cls(plain["run"], {int(step): count for step, count in plain["sent"].items()})

    def issue(self, part: int, batches: Iterable[pa.RecordBatch], steps: Steps, horizon_us: int, now_us: int) -> Given:
        """Number the next batches of a partition.

        Args:
            part: its number.
            batches: in the order in which they are sent.
            steps: of the windows.
            horizon_us: windows that end by this instant were declared complete; readings of these alone are late.
            now_us: the wall clock. Readings more than a day ahead get no number: a window does not wait for them.
        """
        sent = dict(self.sent)
        numbered: list[BatchNumbers] = []
        for batch in batches:
            touched = steps.open_in(batch, horizon_us, now_us)
            for step in touched:
                sent[step] = sent.get(step, 0) + 1
            numbered.append(BatchNumbers(part, self.run, tuple((step, sent[step]) for step in touched)))
        return numbered, replace(self, sent=sent)

    def declare(self, steps: Steps, until_us: int) -> tuple[tuple[tuple[int, int], ...], SequenceNumbers]:
        """What a punctuation says of the windows that end by its instant, and the numbers after it."""
        due = tuple(sorted((step, count) for step, count in self.sent.items() if steps.end_us(step) <= until_us))
        kept = {step: count for step, count in self.sent.items() if steps.over_us(step) > until_us}
        return due, replace(self, sent=kept)


Given = tuple[list[BatchNumbers], SequenceNumbers]
"""The sequence numbers of some batches, and those of the partition after them."""


def ranges(numbers: Iterable[int]) -> tuple[Range, ...]:
    """Numbers, each once, as few ranges."""
    return united((one, one) for one in numbers)


def united(found: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges that may meet or overlap, as few and in order.

    >>> united([(4, 6), (1, 2), (3, 3), (9, 9), (5, 7)])
    ((1, 7), (9, 9))
    """
    return tuple(_united(sorted(found)))


def _united(found: list[Range]) -> Iterator[Range]:
    if not found:
        return
    first, last = found[0]
    for begin, end in found[1:]:
        if begin > last + 1:
            yield first, last
            first, last = begin, end
        else:
            last = max(last, end)
    yield first, last


def covers(found: tuple[Range, ...], count: int) -> bool:
    """Whether every number from 1 to a count is in united ranges."""
    return any(first <= 1 and count <= last for first, last in found)
