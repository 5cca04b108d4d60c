"""What makes a window complete: punctuation (Tucker et al. 2003), and sequence numbers of a source's batches.

A runner's watermark says when a window may fire, not whether the source was read up to its end: runners fire early when
a job is drained, when a source ends, or when they lose a part of one. So each partition of a live source declares every
window that it has read completely, and a window is published only with the declarations of all partitions and with the
batches that they sent. A window that fires without them is dropped and stays missing.

A punctuation is an empty record batch with the declaration in its schema's metadata, so that it passes wherever
readings do. A batch of readings carries in the same way the partition's watermark before it: readings of windows that
the partition has declared complete are late, on every runner alike.

A punctuation does not say that the batches have arrived. So the batches of a partition are numbered, in each step of
the windows by itself: a batch carries its number in every step that it has readings of, and the punctuation carries the
last number. A window holds everything when all numbers 1..n arrived with its cells, whatever a runner fired, repeated,
reordered or lost. Numbers belong to an epoch (``run``), drawn at random when reading a partition starts: a partition
that is read again may cut its batches in other places. A call that a runner repeats from a checkpoint continues the
epoch: every runner here discards what the first try sent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.calendars import Calendar
from ..schemas.releases import LIVE, REPLAYED, SILENT, UNAVAILABLE
from ..schemas.slots import Schedule, SlotGrid, SlotsT
from .readings.slots import Words

#: First and last of consecutive sequence numbers.
Range = tuple[int, int]

_RUNS = 1 << 31

#: Readings of a step that begins more than a day after they came are rejected: wrong stamps must not fill the memory.
_AHEAD_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the steps of the windows lie in time."""

    anchor_us: int  # start of step 0; with a calendar, of slot 0
    every_us: int  # length of a step; with a calendar, of a slot
    overlap: int = 1  # steps of a window, and windows over a step
    calendar: Calendar | None = None  # the days, weeks or months that are the steps; ``None`` for steps of one length
    words: Words | None = None  # what says which steps a reading may move slots of; ``None``: that of its time

    @classmethod
    def of(cls, grid: SlotGrid, schedule: Schedule, words: Words | None = None) -> Steps:
        """Of a schedule."""
        if schedule.calendar is not None:
            return cls(grid.origin_us, grid.interval_us, 1, schedule.calendar, words)
        return cls(grid.time_of(schedule.anchor), schedule.every * grid.interval_us, schedule.overlap, words=words)

    @property
    def before_us(self) -> int:
        """How long before a step a reading may lie that moves a slot of it."""
        return 0 if self.words is None else self.words.before_us

    def number_of(self, times_us: SlotsT) -> SlotsT:
        """The number of the step that each instant is in."""
        found: SlotsT = (times_us - self.anchor_us) // self.every_us  # pyright: ignore[reportAssignmentType] - numpy's stubs
        return found if self.calendar is None else self.calendar.number_of(found)

    def open_in(self, batch: pa.RecordBatch, horizon_us: int, now_us: int) -> list[int]:
        """The steps that readings of a batch may move, in a window that ends after an instant, and not far ahead."""
        times = batch.column("time").drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
        if not len(times):
            return []
        last_us = self.last_us(now_us)
        if self.words is not None:
            length = batch.column("length") if "length" in batch.schema.names else None
            none = np.full(len(times), self.words.length_us)
            first, last = self.words.moved_by(times, none if length is None else length.cast(pa.int64()).to_numpy())
            pairs = np.unique(np.stack([self.number_of(first), self.number_of(last)]), axis=1).T.tolist()
            found = sorted({step for low, high in pairs for step in range(low, high + 1)})
            last_us = self.end_us(self.number_of(now_us + _AHEAD_US + self.before_us))
        else:
            lowest, highest = (self.number_of(int(one)) for one in (times.min(), times.max()))
            found = [lowest] if lowest == highest else np.unique(self.number_of(times)).tolist()
        return [step for step in found if self.over_us(step) > horizon_us and self.end_us(step) <= last_us]

    def last_us(self, came_us: int) -> int:
        """When the last step ends that readings may be of which came at an instant."""
        return self.end_us(self.number_of(came_us + _AHEAD_US))

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
    """The last sequence numbers of a partition."""

    run: int = field(default_factory=lambda: 1 + secrets.randbelow(_RUNS))
    # step -> how many batches with readings of it were sent, while a window over it is open
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
            now_us: the wall clock. Readings of a step that begins more than a day later get no number: a window does
                not wait for them.
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


_MARK = b"quiltstream.mark"
_HORIZON = b"quiltstream.horizon_us"
_NUMBERS = b"quiltstream.tickets"


@dataclass(frozen=True, slots=True)
class Punctuation:
    """A partition of a source has read everything up to an instant."""

    part: int
    parts: int
    after_us: int  # the instant of the partition's last punctuation; windows that end by then were declared before
    until_us: int  # windows that end by this instant are complete
    replayed: bool = False  # whether the readings were there when the job began, and are read again or late
    lost_us: int | None = None  # windows that start before may lack readings that the source has lost; ``None``: none
    silent_us: int | None = None  # windows that end after this instant closed without a silent source; ``None``: none
    run: int = 0
    # (step, its last sequence number), of every step of the windows that are complete by this punctuation with any;
    # ``None`` where batches have no sequence numbers
    sent: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise ValueError(f"part {self.part} is not one of the {self.parts} parts of the source")
        if self.until_us < self.after_us:
            raise ValueError(f"a punctuation cannot go back from {self.after_us} to {self.until_us}")


def punctuation_batch(punctuation: Punctuation, schema: pa.Schema) -> pa.RecordBatch:
    """A punctuation as an empty batch of a schema of readings."""
    return _empty(schema).replace_schema_metadata({_MARK: json.dumps(asdict(punctuation)).encode()})


@lru_cache(maxsize=8)
def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def punctuation_of(batch: pa.RecordBatch) -> Punctuation | None:
    """The punctuation that a batch is; ``None`` for readings."""
    found = (batch.schema.metadata or {}).get(_MARK)
    if found is None:
        return None
    plain = json.loads(found)
    sent = plain.pop("sent", None)
    return Punctuation(**plain, sent=None if sent is None else _pairs(sent))


def _pairs(plain: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((step, number) for step, number in plain)


def with_horizon(
    batch: pa.RecordBatch, horizon_us: int, *, on_record_us: int | None = None, numbers: BatchNumbers | None = None
) -> pa.RecordBatch:
    """A batch with the instant up to which its partition had declared windows complete before it, and its numbers.

    For readings that were there when the job started, ``on_record_us`` is the instant up to which windows were on
    record then: readings of these are read again, and only those of later windows are late.
    """
    said = {_HORIZON: f"{horizon_us}{'' if on_record_us is None else f'+{on_record_us}'}".encode()}
    if numbers is not None:
        said[_NUMBERS] = json.dumps([numbers.part, numbers.run, numbers.numbers]).encode()
    return batch.replace_schema_metadata(said)


def horizon_of(batch: pa.RecordBatch) -> int | None:
    """That instant in microseconds; ``None`` for a batch of no live source."""
    found = (batch.schema.metadata or {}).get(_HORIZON)
    return None if found is None else int(found.partition(b"+")[0])


def on_record_of(batch: pa.RecordBatch) -> int | None:
    """The instant up to which windows were on record before readings of a backlog; ``None`` of those that just came."""
    _, plus, settled = (batch.schema.metadata or {}).get(_HORIZON, b"").partition(b"+")
    return int(settled) if plus else None


def batch_numbers_of(batch: pa.RecordBatch) -> BatchNumbers | None:
    """The sequence numbers of a batch; ``None`` where it has none."""
    found = (batch.schema.metadata or {}).get(_NUMBERS)
    if found is None:
        return None
    part, run, numbers = json.loads(found)
    return BatchNumbers(part, run, _pairs(numbers))


#: Beam's runners tell instants apart no finer.
MILLISECOND_US = 1_000


@dataclass(frozen=True, slots=True)
class WindowEnd:
    """A partition of the source declares a window complete, for one shard."""

    start: int
    part: int = 0
    parts: int = 1
    completeness: str = LIVE  # how the partition was read for the window, as rows say it
    run: int = 0
    # (step, its last sequence number), of the steps of the window with any; ``None`` where batches have no sequence
    # numbers
    sent: tuple[tuple[int, int], ...] | None = None


def window_ends_by(punctuation: Punctuation, schedule: Schedule, grid: SlotGrid) -> Iterator[WindowEnd]:
    """The windows that a punctuation declares: those that end after the last one and by this one."""
    counts = None if punctuation.sent is None else dict(punctuation.sent)
    for start in closed_starts(schedule, grid, punctuation.after_us, punctuation.until_us):
        lost = punctuation.lost_us is not None and grid.time_of(start) < punctuation.lost_us
        end_us = grid.time_of(schedule.window_at(start).stop)
        silent = punctuation.silent_us is not None and end_us > punctuation.silent_us
        completeness = UNAVAILABLE if lost else SILENT if silent else REPLAYED if punctuation.replayed else LIVE
        sent = None
        if counts is not None:
            sent = tuple((step, counts[step]) for step in schedule.steps_of(start) if step in counts)
        yield WindowEnd(start, punctuation.part, punctuation.parts, completeness, punctuation.run, sent)


def closed_starts(schedule: Schedule, grid: SlotGrid, after_us: int, until_us: int) -> Sequence[int]:
    """First slots of the schedule's windows that end after one instant and not after another."""

    def ended(instant: int) -> int:
        return schedule.ended_by((instant - grid.origin_us) // grid.interval_us)  # whole slots that are over

    begin, end = ended(after_us), ended(until_us)
    if schedule.stop is not None:
        begin, end = min(begin, len(schedule)), min(end, len(schedule))
    return schedule.starts_ended(begin, end)


def window_end_of(grid: SlotGrid, schedule: Schedule, shard: int, end: WindowEnd) -> WindowedValue:
    """A declaration for a shard, just before the end of its window's first step."""
    instant = grid.time_of(schedule.start_after(end.start)) - MILLISECOND_US
    return WindowedValue((shard, end), Timestamp(micros=instant), (GlobalWindow(),))
