"""Encoder: one batch of readings to packed cells of each step of the windows, or to the readings that may move them.

All of it is numpy over whole batches, and holds nothing that changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp

from ...schemas.readings import LENGTH, LONGEST_US, RANK, RejectReason
from ...schemas.slots import Schedule
from ...store.specs import Registration
from ..common.batches import Bools, ReadingColumns, ReadingsError, reading_columns
from ..plan import Plan
from ..readings.slots import Covering, Words, expanded
from .cells import Ints, pack, state_bits
from .rosters import Members, Presence, first_sight

#: Readings, once for each step that they reach, that are encoded at once; each takes some hundred bytes meanwhile.
_REACHING = 1 << 20


class Given(NamedTuple):
    """Readings that are to be encoded."""

    batch: pa.RecordBatch
    at: Timestamp
    horizon_us: int | None = None  # see :class:`..completeness.Arrived`; ``None`` where nothing is late
    on_record_us: int | None = None


@dataclass(slots=True)
class EncodedBatch:
    """What one batch comes to."""

    given: Given
    encoder: Encoder
    # (step, index, packed) of each step with readings; ``index`` is number * width + column
    parts: tuple[tuple[int, Ints, Ints], ...] = ()
    # (step, readings, how many of them begin in it), in place of that where a word is about several rows of a series
    reaching: tuple[tuple[int, Covering, int], ...] = ()
    readings: int = 0
    outside: int = 0
    settled: int = 0  # how many are of windows on record, and were read again because the job began anew
    rejects: dict[RejectReason, int] = field(default_factory=dict[RejectReason, int])
    # series, with their groups, that no roster has and whose readings would count
    unknown_series: tuple[tuple[str, str | None], ...] = ()


@dataclass(slots=True)
class _Sieve:
    """Which rows count so far, shape (n,), and how many do not for each reason."""

    keep: Bools
    rejects: dict[RejectReason, int]

    def drop(self, bad: Bools, reason: RejectReason) -> None:
        if count := self.take_out(bad):
            self.rejects[reason] = self.rejects.get(reason, 0) + count

    def take_out(self, bad: Bools) -> int:
        """How many of some rows were left, which are no longer."""
        if count := int(np.count_nonzero(bad & self.keep)):
            np.logical_and(self.keep, ~bad, out=self.keep)
        return count


@dataclass(frozen=True)
class Encoder:
    """Batches to cells."""

    plan: Plan
    registration: Registration
    members: Members
    presence: Presence | None  # which series are in the roster of a window; ``None`` where all are
    sight: bool

    @classmethod
    def of(cls, plan: Plan, registration: Registration, *, sight: bool = False) -> Encoder:
        """For a query of record."""
        members = Members.of(registration)
        return cls(plan, registration, members, Presence.of(registration, members), sight)

    @property
    def schedule(self) -> Schedule:
        """The windows of record."""
        return self.registration.query.schedule

    @property
    def _end(self) -> int | None:
        """The slot behind the last window, which an endless schedule has where its calendar ends; ``None``: none."""
        schedule = self.schedule
        if schedule.stop is None and schedule.calendar is not None:
            return schedule.calendar.end
        return schedule.end

    def parts(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """A batch in parts whose readings fit the memory in all steps that they reach."""
        words, schedule = self.plan.words, self.schedule
        if words is None:
            return [batch]
        step_us = len(schedule.step(schedule.number_of(schedule.first))) * self.plan.grid.interval_us
        rows = max(1, _REACHING // (2 + (words.before_us + words.after_us) // step_us))
        return [batch.slice(at, rows) for at in range(0, batch.num_rows, rows)]

    def encode(self, given: Given) -> EncodedBatch:
        """Encode one batch of readings."""
        words, grouped = self.plan.words, self.plan.group_column is not None
        columns = reading_columns(given.batch, grouped=grouped, marks=words is not None and words.hold_us is not None)
        numbers = _take(self.members.numbers(columns.names), columns.series)
        strange = columns.good & (numbers < 0) if self.sight else None
        sieve = self._checked(columns, numbers)
        made = EncodedBatch(given, self, rejects=sieve.rejects)
        if words is None:
            within = self._in_slots(made, columns, numbers, sieve)
        else:
            within = self._reaching(made, columns, numbers, sieve, words)
        made.readings = int(np.count_nonzero(sieve.keep))
        made.unknown_series = () if strange is None else first_sight(columns, strange & within)
        return made

    def _checked(self, columns: ReadingColumns, numbers: Ints) -> _Sieve:
        """The rows that are readings of a series of some roster."""
        sieve = _Sieve(columns.good, {reason: int(np.count_nonzero(bad)) for reason, bad in columns.problems})
        sieve.drop(numbers < 0, RejectReason.NOT_IN_ROSTER)
        if self.plan.space.categories:
            # of a pipeline of one's own: labels of files were compared when they were read
            no_state = ~self.plan.space.are_states(columns.values)
            # where a mark ends a hold, it is of no state
            sieve.drop(no_state & ~np.isnan(columns.values), RejectReason.UNKNOWN_LABEL)
        if columns.groups is not None and columns.group is not None:
            named = [self.members.groups.get(name, -2) for name in columns.groups.to_pylist()]
            groups = _take(np.array(named, dtype=np.int64), columns.group)
            sieve.drop(groups != _take(self.members.group, numbers), RejectReason.GROUP_CONFLICT)
        return sieve

    def _in_slots(self, made: EncodedBatch, columns: ReadingColumns, numbers: Ints, sieve: _Sieve) -> Bools:
        """The readings as cells, the latest of a slot counts; which rows are of a slot that is open, shape (n,)."""
        grid, schedule, times = self.plan.grid, self.schedule, columns.times
        slots = grid.slots_of(times)
        within = slots >= schedule.first
        if (end := self._end) is not None:
            within &= slots < end
        made.outside = sieve.take_out(~within)
        if self.presence is not None:
            sieve.drop(self.presence.absent(numbers, schedule.number_of(slots)), RejectReason.NOT_IN_ROSTER)
        if made.given.horizon_us is not None:
            # when the last window that contains each slot ends
            ends = grid.time_of(schedule.over_at(schedule.number_of(slots)))
            late = ends <= made.given.horizon_us
            within &= ~late
            if made.given.on_record_us is not None:
                made.settled = sieve.take_out(late & (ends <= made.given.on_record_us))
            sieve.drop(late, RejectReason.LATE)
        keep, values = sieve.keep, columns.values
        if not keep.all():
            numbers, values, times, slots = numbers[keep], values[keep], times[keep], slots[keep]
        packed = pack(times - grid.time_of(slots), self.plan.space.encode(values), state_bits(self.plan.space.size))
        made.parts = tuple(self._by_step(numbers, slots, packed))
        return within

    def _reaching(
        self, made: EncodedBatch, columns: ReadingColumns, numbers: Ints, sieve: _Sieve, words: Words
    ) -> Bools:
        """The readings of each step that may move its slots; which rows reach an open step, shape (n,).

        One that is late for the step that it begins in may be in time for those after it; it is late if it is so for
        all, and outside if it reaches no step of the schedule.
        """
        grid, schedule = self.plan.grid, self.schedule
        given = Covering(numbers, columns.times, columns.values, _lengths(columns, words), _ranks(columns, words))
        low, high = (grid.slots_of(one) for one in words.moved_by(given.begin_us, given.length_us))
        low = np.maximum(low, schedule.first)
        if (end := self._end) is not None:
            high = np.minimum(high, end - 1)
        rows = np.flatnonzero((low <= high) & columns.good)
        of, steps = expanded(schedule.number_of(low[rows]), schedule.number_of(high[rows]))
        of = rows[of]

        def some(pairs: Bools) -> Bools:
            return np.bincount(of[pairs], minlength=len(numbers)) > 0

        made.outside = sieve.take_out(low > high)
        open_ = np.ones(len(of), dtype=np.bool_)
        if self.presence is not None:
            open_ = (numbers[of] < 0) | ~self.presence.absent(numbers[of], steps)
            sieve.drop(~some(open_), RejectReason.NOT_IN_ROSTER)
        if made.given.horizon_us is not None:
            ends = grid.time_of(schedule.over_at(steps))
            if made.given.on_record_us is not None:
                made.settled = sieve.take_out(~some(open_ & (ends > made.given.on_record_us)))
            open_ &= ends > made.given.horizon_us
            sieve.drop(~some(open_), RejectReason.LATE)
        within = some(open_)
        open_ &= sieve.keep[of]
        of, steps = of[open_], steps[open_]
        order = np.argsort(steps, kind="stable")
        found, starts = np.unique(steps[order], return_index=True)
        slots, reaching = grid.slots_of(given.begin_us), list[tuple[int, Covering, int]]()
        for step, part in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
            window, mine = schedule.step(step), of[part]
            begins = int(np.count_nonzero((slots[mine] >= window.start) & (slots[mine] < window.stop)))
            reaching.append((step, given.take(mine), begins))
        made.reaching = tuple(reaching)
        return within

    def _by_step(self, numbers: Ints, slots: Ints, packed: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        if not len(slots):
            return
        schedule = self.schedule
        lowest = schedule.number_of(int(slots.min()))
        buckets = schedule.number_of(int(slots.max())) - lowest + 1
        if buckets == 1:
            step = schedule.step(lowest)
            yield lowest, numbers * len(step) + (slots - step.start), packed
            return
        steps = schedule.number_of(slots)
        begins = schedule.start_of(steps)
        widths = schedule.every if schedule.calendar is None else schedule.start_of(steps + 1) - begins
        index = numbers * widths + (slots - begins)
        bucket = steps - lowest
        if buckets > len(bucket):  # few readings of a wide span: nothing here may be as long as the span
            found, bucket = np.unique(bucket, return_inverse=True)
        else:
            found = np.arange(buckets)
        # a radix sort where the steps fit 16 bits: far cheaper than sorting int64
        small = bucket.astype(np.uint16) if len(found) <= np.iinfo(np.uint16).max else bucket
        order = np.argsort(small, kind="stable")
        index, packed = index[order], packed[order]
        ends = np.cumsum(np.bincount(bucket, minlength=len(found)))
        for one in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            part = slice(int(ends[one - 1]) if one else 0, int(ends[one]))
            yield lowest + int(found[one]), index[part], packed[part]


def _take(table: Ints, positions: Ints) -> Ints:
    """``table[positions]``, where an empty table means that every row has a problem anyway."""
    return table[positions] if len(table) else np.full(len(positions), -1, dtype=np.int64)


def _lengths(columns: ReadingColumns, words: Words) -> Ints:
    """What each reading covers, 0 where that is not known.

    Raises:
        ReadingsError: a word needs it, and neither the settings nor the batch have it.
    """
    if columns.lengths is not None:
        return columns.lengths
    if words.length_us == LONGEST_US and words.hold_us is None:
        raise ReadingsError(
            f"readings: a batch has no column 'length'; slots.of: {words.of} needs length: {LENGTH.type}"
        )
    return np.full(len(columns.series), 0 if words.length_us == LONGEST_US else words.length_us, dtype=np.int64)


def _ranks(columns: ReadingColumns, words: Words) -> Ints:
    """The rank of each reading's delivery; 0 where it does not matter."""
    if not words.rank:
        return np.zeros(len(columns.series), dtype=np.int64)
    if columns.ranks is None:
        raise ReadingsError(f"readings: a batch has no column 'rank'; readings.cell: rank needs rank: {RANK.type}")
    return columns.ranks
