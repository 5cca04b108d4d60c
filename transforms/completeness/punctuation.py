"""Punctuation: a live source's statements about which windows it has read completely (Tucker et al. 2003).

A runner's watermark says when a window may fire, not whether the source was read up to its end: runners fire early when
a job is drained, when a source ends, or when they lose a part of one. So each partition of a live source declares every
window that it has read completely, and a window is published only with the declarations of all partitions and with the
batches that they sent (see :mod:`.sequence_numbers`). A window that fires without them is dropped and stays missing.

A punctuation is an empty record batch with the declaration in its schema's metadata, so that it passes wherever
readings do. A batch of readings carries in the same way the partition's watermark before it: readings of windows that
the partition has declared complete are late, on every runner alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ...schemas.slots import Schedule, SlotGrid
from ..aggregate.rosters import Members
from .sequence_numbers import BatchNumbers

_MARK = b"quiltstream.mark"
_HORIZON = b"quiltstream.horizon_us"
_NUMBERS = b"quiltstream.tickets"


@dataclass(frozen=True, slots=True)
class Punctuation:
    """A partition of a source has read everything up to an instant.

    Attributes:
        after_us: the instant of the partition's last punctuation; windows that end by then were declared before.
        until_us: windows that end by this instant are complete.
        replayed: whether the readings were read again from the start of the source, not as they arrived.
        lost_us: windows that start before this instant may lack readings that the source has lost; ``None``: none.
        silent_us: windows that end after this instant closed without a silent source; ``None``: none.
        sent: (step, its last sequence number), of every step of the windows that are complete by this punctuation with
            any; ``None`` where batches have no sequence numbers.
    """

    part: int
    parts: int
    after_us: int
    until_us: int
    replayed: bool = False
    lost_us: int | None = None
    silent_us: int | None = None
    run: int = 0
    sent: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise ValueError(f"part {self.part} is not one of the {self.parts} parts of the source")
        if self.until_us < self.after_us:
            raise ValueError(f"a punctuation cannot go back from {self.after_us} to {self.until_us}")


_FIELDS = tuple(field.name for field in fields(Punctuation))


def punctuation_batch(punctuation: Punctuation, schema: pa.Schema) -> pa.RecordBatch:
    """A punctuation as an empty batch of a schema of readings."""
    plain = {name: getattr(punctuation, name) for name in _FIELDS}
    return _empty(schema).replace_schema_metadata({_MARK: json.dumps(plain).encode()})


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
    """A batch with the instant up to which its partition had declared windows complete before it.

    Args:
        batch: readings.
        horizon_us: the instant.
        on_record_us: for readings that were there when the job started, the instant up to which windows were on record
            then: readings of these are read again, and only those of later windows are late.
        numbers: the batch's sequence numbers, if it has any.
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
    horizon, plus, settled = (batch.schema.metadata or {}).get(_HORIZON, b"").partition(b"+")
    # an older version wrote only that the readings were there at the start
    return int(settled or horizon) if plus else None


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
    """A partition of the source declares a window complete, for one shard.

    Attributes:
        replayed: whether the partition read the window again from its start.
        lost: whether the source may have lost readings of the window before the partition read them.
        silent: whether the window closed without a silent source.
        sent: (step, its last sequence number), of the steps of the window with any; ``None`` where batches have no
            sequence numbers.
    """

    start: int
    part: int = 0
    parts: int = 1
    replayed: bool = False
    lost: bool = False
    silent: bool = False
    run: int = 0
    sent: tuple[tuple[int, int], ...] | None = None


def window_ends_by(punctuation: Punctuation, schedule: Schedule, grid: SlotGrid) -> Iterator[WindowEnd]:
    """The windows that a punctuation declares: those that end after the last one and by this one."""
    counts = None if punctuation.sent is None else dict(punctuation.sent)
    for start in closed_starts(schedule, grid, punctuation.after_us, punctuation.until_us):
        lost = punctuation.lost_us is not None and grid.time_of(start) < punctuation.lost_us
        end_us = grid.time_of(schedule.window_at(start).stop)
        silent = punctuation.silent_us is not None and end_us > punctuation.silent_us
        sent = None
        if counts is not None:
            sent = tuple((step, counts[step]) for step in schedule.steps_of(start) if step in counts)
        yield WindowEnd(
            start, punctuation.part, punctuation.parts, punctuation.replayed, lost, silent, punctuation.run, sent
        )


def closed_starts(schedule: Schedule, grid: SlotGrid, after_us: int, until_us: int) -> Sequence[int]:
    """First slots of the schedule's windows that end after one instant and not after another."""

    def ended(instant: int) -> int:
        return schedule.ended_by((instant - grid.origin_us) // grid.interval_us)  # whole slots that are over

    begin, end = ended(after_us), ended(until_us)
    if schedule.stop is not None:
        begin, end = min(begin, len(schedule)), min(end, len(schedule))
    return schedule.starts_ended(begin, end)


def window_ends_of(grid: SlotGrid, schedule: Schedule, members: Members, end: WindowEnd) -> Iterator[WindowedValue]:
    """A declaration for every shard with series."""
    for shard in members.occupied:
        yield window_end_of(grid, schedule, shard, end)


def window_end_of(grid: SlotGrid, schedule: Schedule, shard: int, end: WindowEnd) -> WindowedValue:
    """A declaration for a shard, just before the end of its window's first step."""
    instant = grid.time_of(schedule.start_after(end.start)) - MILLISECOND_US
    return WindowedValue((shard, end), Timestamp(micros=instant), (GlobalWindow(),))
