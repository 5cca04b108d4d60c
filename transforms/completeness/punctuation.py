"""Punctuation: a live source's statements about which windows it has read completely (Tucker et al. 2003).

A runner's watermark says when a window may fire; it cannot say whether the source had really come so far. Runners fire
early when a job is drained, when a source ends, or when they lose part of one. So each part of a live source declares
every window that it has read completely, and a window is published only when all parts have, and what they sent is
there (see :mod:`.sequence_numbers`). Whatever the runner does, a window that fires without the declarations is dropped
and stays missing, instead of being on record half empty for ever.

A mark is an empty record batch with the declaration in its schema's metadata, so that it passes wherever readings do.
A batch of readings carries in the same way how far its part had come before it: readings of windows that the part has
declared complete are late, on every runner alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ...schemas.slots import Schedule, SlotGrid
from ..aggregate.rosters import Members
from .sequence_numbers import Tickets

__all__ = [
    "MILLISECOND_US",
    "Closing",
    "Mark",
    "closed_starts",
    "closing_of",
    "closings_by",
    "closings_of",
    "horizon_of",
    "mark_batch",
    "mark_of",
    "settled_of",
    "tickets_of",
    "with_horizon",
]


_MARK = b"quiltstream.mark"
_HORIZON = b"quiltstream.horizon_us"
_TICKETS = b"quiltstream.tickets"


@dataclass(frozen=True, slots=True)
class Mark:
    """One part of a source has read everything up to an instant that it waits for.

    Attributes:
        part: number of the part, from 0.
        parts: how many parts the source has.
        after_us: the instant of the part's last mark; windows that end by then were declared before.
        until_us: windows that end by this instant are complete.
        replayed: whether the readings were read again from the start of the source, not as they arrived.
        lost_us: windows that start before this instant may lack readings that the source has lost; ``None``: none.
        silent_us: windows that end after this instant were not waited for, because a source was silent; ``None``: none.
        run: name of the run of the part's tickets.
        sent: (step, how many tickets the part gave in it), of every step of the windows that are complete by this mark
            with any; ``None`` where the part gives no tickets.
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
            raise ValueError(f"a mark cannot go back from {self.after_us} to {self.until_us}")


_FIELDS = tuple(field.name for field in fields(Mark))


def mark_batch(mark: Mark, schema: pa.Schema) -> pa.RecordBatch:
    """A mark as an empty batch of a schema of readings."""
    plain = {name: getattr(mark, name) for name in _FIELDS}
    return _empty(schema).replace_schema_metadata({_MARK: json.dumps(plain).encode()})


@lru_cache(maxsize=8)
def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def mark_of(batch: pa.RecordBatch) -> Mark | None:
    """The mark that a batch is; ``None`` for readings."""
    found = (batch.schema.metadata or {}).get(_MARK)
    if found is None:
        return None
    plain = json.loads(found)
    sent = plain.pop("sent", None)
    return Mark(**plain, sent=None if sent is None else _pairs(sent))


def _pairs(plain: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((step, number) for step, number in plain)


def with_horizon(
    batch: pa.RecordBatch, horizon_us: int, *, settled_us: int | None = None, tickets: Tickets | None = None
) -> pa.RecordBatch:
    """A batch that says up to which instant its part had declared windows complete before it.

    Args:
        batch: readings.
        horizon_us: the instant.
        settled_us: where it was there when the job began, the instant up to which windows were on record then: readings
            of these are read again, and only those of later windows are late.
        tickets: the batch's, where its part gives any.
    """
    said = {_HORIZON: f"{horizon_us}{'' if settled_us is None else f'+{settled_us}'}".encode()}
    if tickets is not None:
        said[_TICKETS] = json.dumps([tickets.part, tickets.run, tickets.numbers]).encode()
    return batch.replace_schema_metadata(said)


def horizon_of(batch: pa.RecordBatch) -> int | None:
    """That instant in microseconds; ``None`` where no live source said it."""
    found = (batch.schema.metadata or {}).get(_HORIZON)
    return None if found is None else int(found.partition(b"+")[0])


def settled_of(batch: pa.RecordBatch) -> int | None:
    """The instant up to which windows were on record before readings of a backlog; ``None`` of those that just came."""
    horizon, plus, settled = (batch.schema.metadata or {}).get(_HORIZON, b"").partition(b"+")
    # an older version said only that they were there
    return int(settled or horizon) if plus else None


def tickets_of(batch: pa.RecordBatch) -> Tickets | None:
    """The tickets of a batch; ``None`` where its part gives none."""
    found = (batch.schema.metadata or {}).get(_TICKETS)
    if found is None:
        return None
    part, run, numbers = json.loads(found)
    return Tickets(part, run, _pairs(numbers))


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
