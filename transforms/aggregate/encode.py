"""Encode: readings to blocks of packed cells, one block per step of the windows and shard of the series.

The cells of a bundle are gathered before they are emitted, which is the collecting step's own rule applied early: a
runner without combiner lifting then moves cells instead of readings, and one with it has little left to do.

Everything here is numpy over whole batches; only the blocks become Beam elements. Sliding windows are made of steps,
and a block lies in exactly one step, so Beam can put it into every window that contains the step and no batch
straddles a boundary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ...schemas.readings import LENGTH, LONGEST_US, RANK, RejectReason
from ...schemas.slots import Schedule
from ...store.specs import Registration
from ..common.batches import (
    METRICS,
    OUTSIDE,
    READINGS,
    Bools,
    ReadingColumns,
    ReadingsError,
    counter_name,
    decoded_reject_batch,
    reading_columns,
)
from ..completeness import (
    MILLISECOND_US,
    BatchNumbers,
    Range,
    batch_numbers_of,
    horizon_of,
    on_record_of,
    punctuation_of,
    ranges,
    window_end_of,
    window_ends_by,
)
from ..plan import Plan
from ..readings.slots import Covering, Words, expanded
from ..register import LedgerStep
from ..registration import Registered
from .cells import ABSENT, Cells, Ints, Narrow, narrowed, pack, state_bits
from .gathered import Gathered
from .rosters import Members, Presence, first_sight, newest

#: glibc's limit for its own threshold, less what the block's header takes.
_LARGEST_KEPT = (32 << 20) - (64 << 10)


_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


#: Batches that may wait for the thread or lie finished, so that memory stays bounded.
_WAITING = 3


class Ahead(Generic[_Given, _Made]):
    """Applies a function to batches in a thread, and gives the results back in the order of the batches."""

    def __init__(self, function: Callable[[_Given], _Made]) -> None:
        self._function = function
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="quiltstream-ahead")
        self._batches: deque[Future[_Made]] = deque()

    def give(self, batch: _Given) -> Iterator[_Made]:
        """Hand a batch over; yields results only where too many batches wait."""
        self._batches.append(self._pool.submit(self._function, batch))
        while len(self._batches) > _WAITING:
            yield self._batches.popleft().result()

    def rest(self) -> Iterator[_Made]:
        """The results of all that was handed over."""
        while self._batches:
            yield self._batches.popleft().result()

    def forget(self) -> None:
        """Drop what was handed over: its bundle failed."""
        for batch in self._batches:
            batch.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the thread."""
        self.forget()
        self._pool.shutdown(wait=True)


REJECTED = "rejected"

#: Where the tally of each bundle's readings goes.
TALLIES = "tallies"

#: Cells held before a bundle ends: at most 128 MiB, and 16 where readings lie on the slots' starts.
_HELD_CELLS = 1 << 24

#: Cells that a reading takes the room of, which waits for its slots.
_READING_CELLS = 5

#: Readings, once for each step that they reach, that are encoded at once; each takes some hundred bytes meanwhile.
_REACHING = 1 << 20

#: A step of which a larger part has readings is passed on whole, without the numbers of its cells.
_DENSE = 0.5

#: Seconds from one look for a newer roster to the next.
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class CellBlock:
    """Packed readings of one shard in one step of the windows."""

    step: int  # number of the step, see :meth:`Schedule.number_of`
    rows: int  # series in the shard by the roster that encoded it; those that join later come after them
    width: int  # slots in the step
    # row * width + column of each reading's cell, shape (n,); ``None`` where ``packed`` has every cell
    index: npt.NDArray[np.int32] | Ints | None
    # the packed readings, shape (n,), or (rows * width,) with ``ABSENT`` in cells without any; of the narrowest type
    packed: Narrow
    readings: int  # how many readings they come from
    # (part, run, numbers) of the batches whose readings of this step and shard are in it, or are known to be none
    tickets: tuple[tuple[int, int, tuple[Range, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadingBlock:
    """Readings of one shard that may move slots of one step, where a word is about several rows of a series."""

    step: int
    readings: Covering  # one of each series and begin, in order; ``codes`` are rows of the shard
    count: int  # how many came that begin in the step
    tickets: tuple[tuple[int, int, tuple[Range, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """What one batch comes to."""

    # (step, index, packed) of each step with readings; ``index`` is number * width + column
    parts: tuple[tuple[int, Ints, Ints], ...]
    # (step, readings, how many of them begin in it), in place of that where a word is about several rows of a series
    reaching: tuple[tuple[int, Covering, int], ...]
    readings: int
    outside: int
    settled: int  # how many are of windows on record, and were read again because the job began anew
    rejects: dict[RejectReason, int]
    at: Timestamp
    # series, with their groups, that no roster has and whose readings would count
    unknown_series: tuple[tuple[str, str | None], ...]
    given: pa.RecordBatch
    encoder: Encoder
    tickets: BatchNumbers | None


@dataclass(frozen=True)
class Encoder:
    """Batches to cells; it holds nothing that changes."""

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
        """A batch in parts whose readings fit the memory in all steps that they reach.

        One with sequence numbers stays whole, as a number goes where all of its readings are; those of live sources are
        small.
        """
        words, schedule = self.plan.words, self.schedule
        if words is None or batch_numbers_of(batch) is not None:
            return [batch]
        step_us = len(schedule.step(schedule.number_of(schedule.first))) * self.plan.grid.interval_us
        rows = max(1, _REACHING // (2 + (words.before_us + words.after_us) // step_us))
        return [batch.slice(at, rows) for at in range(0, batch.num_rows, rows)]

    def encode(self, given: tuple[pa.RecordBatch, Timestamp]) -> EncodedBatch:
        """Encode one batch of readings."""
        batch, at = given
        grid = self.plan.grid
        words = self.plan.words
        columns = reading_columns(
            batch, grouped=self.plan.group_column is not None, marks=words is not None and words.hold_us is not None
        )
        times, values = columns.times, columns.values
        numbers = _take(self.members.numbers(columns.names), columns.series)
        strange = columns.good & (numbers < 0) if self.sight else None
        keep, rejects = self._check(columns, numbers)

        horizon, before = horizon_of(batch), on_record_of(batch)
        if words is not None:
            return self._reached(batch, at, words, columns, numbers, (keep, rejects), strange)
        slots = grid.slots_of(times)
        scheduled = slots >= self.schedule.first
        if (end := self._end) is not None:
            scheduled &= slots < end
        outside = int(np.count_nonzero(~scheduled & keep))
        keep &= scheduled
        if self.presence is not None:
            absent = self.presence.absent(numbers, self.schedule.number_of(slots))
            if count := int(np.count_nonzero(absent & keep)):
                rejects[RejectReason.NOT_IN_ROSTER] = rejects.get(RejectReason.NOT_IN_ROSTER, 0) + count
                keep &= ~absent
        settled = 0
        if horizon is not None:
            # when the last window that contains each slot ends
            ends = grid.time_of(self.schedule.over_at(self.schedule.number_of(slots)))
            late = ends <= horizon
            scheduled &= ~late
            if count := int(np.count_nonzero(late & keep)):
                settled = 0 if before is None else int(np.count_nonzero(late & keep & (ends <= before)))
                if count > settled:
                    rejects[RejectReason.LATE] = count - settled
                keep &= ~late
        unknown_series = () if strange is None else first_sight(columns, strange & scheduled)
        readings = int(np.count_nonzero(keep))
        if readings < len(keep):
            numbers, values, times, slots = numbers[keep], values[keep], times[keep], slots[keep]
        packed = pack(times - grid.time_of(slots), self.plan.space.encode(values), state_bits(self.plan.space.size))
        parts = tuple(self._by_step(numbers, slots, packed))
        tickets = batch_numbers_of(batch)
        return EncodedBatch(parts, (), readings, outside, settled, rejects, at, unknown_series, batch, self, tickets)

    def _reached(
        self,
        batch: pa.RecordBatch,
        at: Timestamp,
        words: Words,
        columns: ReadingColumns,
        numbers: Ints,
        checked: tuple[Bools, dict[RejectReason, int]],
        strange: Bools | None,
    ) -> EncodedBatch:
        """The readings of each step that may move its slots.

        One that is late for the step that it begins in may be in time for those after it; it is late if it is so for
        all, and outside if it reaches no step of the schedule.
        """
        grid, schedule, (keep, rejects) = self.plan.grid, self.schedule, checked
        given = Covering(numbers, columns.times, columns.values, _lengths(columns, words), _ranks(columns, words))
        low, high = (grid.slots_of(one) for one in words.moved_by(given.begin_us, given.length_us))
        low = np.maximum(low, schedule.first)
        if (end := self._end) is not None:
            high = np.minimum(high, end - 1)
        scheduled = low <= high
        rows = np.flatnonzero(scheduled & columns.good)
        of, steps = expanded(schedule.number_of(low[rows]), schedule.number_of(high[rows]))
        of = rows[of]

        def some(pairs: Bools) -> Bools:
            return np.bincount(of[pairs], minlength=len(numbers)) > 0

        def drop(bad: Bools, reason: RejectReason) -> None:
            if count := int(np.count_nonzero(bad & keep)):
                rejects[reason] = rejects.get(reason, 0) + count
                np.logical_and(keep, ~bad, out=keep)

        outside = int(np.count_nonzero(~scheduled & keep))
        keep &= scheduled
        open_ = np.ones(len(of), dtype=np.bool_)
        if self.presence is not None:
            open_ = (numbers[of] < 0) | ~self.presence.absent(numbers[of], steps)
            drop(~some(open_), RejectReason.NOT_IN_ROSTER)
        settled, horizon, before = 0, horizon_of(batch), on_record_of(batch)
        if horizon is not None:
            ends = grid.time_of(schedule.over_at(steps))
            if before is not None:
                known = ~some(open_ & (ends > before))
                settled = int(np.count_nonzero(known & keep))
                keep &= ~known
            open_ &= ends > horizon
            drop(~some(open_), RejectReason.LATE)
        unknown_series = () if strange is None else first_sight(columns, strange & some(open_))
        open_ &= keep[of]
        of, steps = of[open_], steps[open_]
        order = np.argsort(steps, kind="stable")
        found, starts = np.unique(steps[order], return_index=True)
        slots, reaching = grid.slots_of(given.begin_us), list[tuple[int, Covering, int]]()
        for step, part in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
            window, mine = schedule.step(step), of[part]
            begins = int(np.count_nonzero((slots[mine] >= window.start) & (slots[mine] < window.stop)))
            reaching.append((step, given.take(mine), begins))
        readings, tickets = int(np.count_nonzero(keep)), batch_numbers_of(batch)
        return EncodedBatch(
            (), tuple(reaching), readings, outside, settled, rejects, at, unknown_series, batch, self, tickets
        )

    def _check(self, columns: ReadingColumns, numbers: Ints) -> tuple[npt.NDArray[np.bool_], dict[RejectReason, int]]:
        keep = columns.good
        rejects = {reason: int(np.count_nonzero(bad)) for reason, bad in columns.problems}

        def drop(bad: npt.NDArray[np.bool_], reason: RejectReason) -> None:
            if count := int(np.count_nonzero(bad & keep)):
                rejects[reason] = rejects.get(reason, 0) + count
                np.logical_and(keep, ~bad, out=keep)

        drop(numbers < 0, RejectReason.NOT_IN_ROSTER)
        if self.plan.space.categories:
            # of a pipeline of one's own: labels of files were compared when they were read
            no_state = ~self.plan.space.are_states(columns.values)
            # where a mark ends a hold, it is of no state
            drop(no_state & ~np.isnan(columns.values), RejectReason.UNKNOWN_LABEL)
        if columns.groups is not None and columns.group is not None:
            named = [self.members.groups.get(name, -2) for name in columns.groups.to_pylist()]
            drop(
                _take(np.array(named, dtype=np.int64), columns.group) != _take(self.members.group, numbers),
                RejectReason.GROUP_CONFLICT,
            )
        return keep, rejects

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


class EncodeCells(LedgerStep):
    """Record batches of readings to ``(shard, CellBlock)`` in the step, and punctuation to ``(shard, WindowEnd)``.

    Readings outside the schedule, of series outside the roster, or with a value that is no number are left out and
    tallied for the operator; those for a reason are also emitted to the output ``rejected``, without their values.

    Batches are encoded in a thread while the decoder prepares the next ones; all that has effects happens in Beam's.

    Args:
        plan: what is published.
        live: whether the job runs on while the roster changes: where a series is in none, a newer one is read from the
            ledger every few seconds, and holds as :meth:`.Registration.as_begun` says. The others tally each bundle's
            readings into the output ``tallies``.
        sight: whether series that no roster has join it, from the next window on that is not charged. They are put on
            record before their readings are encoded, so none of those is lost.
        declared: whether the source declares its windows complete, so that a batch without the clock of its partition
            is of no such source, and would never be published.
    """

    def __init__(self, plan: Plan, *, live: bool = False, sight: bool = False, declared: bool = False) -> None:
        super().__init__(plan, live=live)
        self._declared = declared
        self._sight = sight
        self._record: Registered | None = None
        self._tally: dict[str, int] = {}
        self._unwanted: set[str] = set()
        self._looked: float | None = None
        self._encoder: Encoder | None = None
        self._ahead: Ahead[tuple[pa.RecordBatch, Timestamp], EncodedBatch] | None = None
        self._steps: dict[int, Cells | Gathered] = {}
        self._tickets: _Tickets = {}
        self._held = 0

    def setup(self) -> None:
        """Make the counters; they belong to the worker."""
        super().setup()
        # glibc returns each large block to the kernel until it has seen one freed, to whose size it raises its
        # threshold; the page faults of the next one cost as much as the work on it
        np.empty(_LARGEST_KEPT, dtype=np.uint8)
        self._readings = Metrics.counter(METRICS, READINGS)
        self._outside = Metrics.counter(METRICS, OUTSIDE)
        self._settled = Metrics.counter(METRICS, "readings-on-record")

    def teardown(self) -> None:
        """End the thread, and close the ledger."""
        super().teardown()
        if self._ahead is not None:
            self._ahead.close()

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._steps, self._tickets, self._held, self._tally = {}, {}, 0, {}
        if self._ahead is not None:
            self._ahead.forget()

    def process(
        self, batch: pa.RecordBatch, record: Registered, timestamp: Any = beam.DoFn.TimestampParam
    ) -> Iterator[Any]:
        """Encode one batch."""
        self._record = record
        known = None if self._encoder is None else self._encoder.registration
        used = newest(known, record.now)
        if self._encoder is None or used is not known:
            yield from self._turn_to(used)
        if self._ahead is None:
            self._ahead = Ahead(lambda given: self._current().encode(given))
        punctuation = punctuation_of(batch)
        if punctuation is not None:
            grid, encoder = self._plan.grid, self._current()
            for end in window_ends_by(punctuation, encoder.schedule, grid):
                # of every shard: a series may have joined that this worker does not know yet
                for shard in range(encoder.members.shards):
                    yield window_end_of(grid, encoder.schedule, shard, end)
            return
        if self._declared and horizon_of(batch) is None:
            raise ReadingsError(
                "readings are of a source that never ends and declares no window complete, so no window would ever be "
                "published: use PrivateHistograms(..., by_watermark=True), which goes by the watermark of the source"
            )
        for part in self._current().parts(batch):
            for encoded in self._ahead.give((part, timestamp)):
                yield from self._gather(encoded)

    def finish_bundle(self) -> Any:
        """Emit the cells of the bundle."""
        if self._ahead is not None:
            for encoded in self._ahead.rest():
                yield from self._gather(encoded)
        yield from self._flush()
        if not self._live:
            yield TaggedOutput(TALLIES, WindowedValue(self._tally, MIN_TIMESTAMP, (GlobalWindow(),)))

    def _turn_to(self, registration: Registration) -> Iterator[Any]:
        """Emit what is held under the old numbers, and encode with those of another registration from now on."""
        if self._steps or self._tickets:
            yield from self._flush()
        # series that join at first sight are on record before their readings are encoded
        seen = registration if self._sight or self._record is None else registration.as_begun(self._record.begun)
        self._encoder = Encoder.of(self._plan, seen, sight=self._sight)

    def _rosters(self, encoded: EncodedBatch) -> Registration:
        """The rosters to encode a batch with: newer ones where it has series that are in none."""
        held = encoded.encoder.registration
        unknown_series = [pair for pair in encoded.unknown_series if pair[0] not in self._unwanted]
        # names may be made up without an end; those that find no room stay outside, and their readings are rejects
        if unknown_series and len(held.query.roster.series) < self._plan.most_series:
            # what the model was made from is not protected by what is promised without 'given the model'
            origin = self._plan.model.provenance
            if not held.query.given_model:
                self._unwanted |= {name for name, _ in unknown_series if origin.used([name])}
            wanted = [pair for pair in unknown_series if pair[0] not in self._unwanted]
            found = self._ledger(self._known()).join(held, wanted, self._plan.most_series)
            if len(self._unwanted) < self._plan.most_series:
                # those of another domain stay out, and the store is not called for them again
                self._unwanted |= {name for name, _ in unknown_series if name not in found.query.roster.groups_of}
            return found
        if self._live and RejectReason.NOT_IN_ROSTER in encoded.rejects:
            now = time.monotonic()
            if self._looked is None or now - self._looked > _LOOK_S:
                self._looked = now
                return self._ledger(self._known()).current(held)
        return held

    def _gather(self, encoded: EncodedBatch) -> Iterator[Any]:
        """Put a batch into the cells of its steps, and emit them when too many are held."""
        encoder = self._current()
        if encoded.encoder is not encoder:  # encoded ahead, under the old numbers
            encoded = encoder.encode((encoded.given, encoded.at))
        rosters = self._rosters(encoded)
        if rosters is not encoder.registration:
            yield from self._turn_to(rosters)
            encoder = self._current()
            encoded = encoder.encode((encoded.given, encoded.at))
        self._readings.inc(encoded.readings)
        self._outside.inc(encoded.outside)
        self._count(encoded)
        self._settled.inc(encoded.settled)
        yield from self._put(encoded)
        for reason, count in encoded.rejects.items():
            Metrics.counter(METRICS, counter_name(reason)).inc(count)
        if encoded.rejects:
            yield TaggedOutput(
                REJECTED, WindowedValue(decoded_reject_batch(encoded.rejects), encoded.at, (GlobalWindow(),))
            )

    def _put(self, encoded: EncodedBatch) -> Iterator[Any]:
        encoder = self._current()
        rows = len(encoder.members.names)
        tickets = {} if encoded.tickets is None else encoded.tickets.by_step()
        for step, index, packed in encoded.parts:
            ticket = tickets.pop(step, [])
            if step not in self._steps:
                width = len(encoder.schedule.step(step))
                if self._held + rows * width > _HELD_CELLS:
                    yield from self._flush()
                if rows * width > _HELD_CELLS:  # not even one step of the whole roster can be held
                    yield from self._blocks(step, index, packed, len(index), _sequence_ranges(ticket))
                    continue
                self._steps[step] = Cells.empty(rows, width)
                self._held += rows * width
            cells: Any = self._steps[step]
            cells.put(index, packed)
            # a sequence number only ever goes where the readings are
            self._tickets.setdefault(step, []).extend(ticket)
        for step, readings, count in encoded.reaching:
            if self._held + _READING_CELLS * len(readings.codes) > _HELD_CELLS:
                yield from self._flush()
            self._held += _READING_CELLS * len(readings.codes)
            gathered: Any = self._steps.setdefault(step, Gathered())
            gathered.put(readings, count)
        for step, ticket in tickets.items():
            self._tickets.setdefault(step, []).extend(ticket)

    def _count(self, encoded: EncodedBatch) -> None:
        counts = {READINGS: encoded.readings, OUTSIDE: encoded.outside}
        counts |= {counter_name(reason): count for reason, count in encoded.rejects.items()}
        for name, count in counts.items():
            self._tally[name] = self._tally.get(name, 0) + count

    # no property: Beam looks at every attribute when the graph is built
    def _current(self) -> Encoder:
        if self._encoder is None:
            raise RuntimeError("there are no cells before the first batch")
        return self._encoder

    def _known(self) -> Registered:
        if self._record is None:
            raise RuntimeError("no ledger is known before the first batch")
        return self._record

    def _flush(self) -> Iterator[WindowedValue]:
        held, self._steps, self._held = self._steps, {}, 0
        found, self._tickets = self._tickets, {}
        nothing = np.zeros(0, dtype=np.int64)
        for step in found.keys() - held.keys():  # no reading of the batches counts there, which is to be known
            yield from self._blocks(step, nothing, nothing, 0, _sequence_ranges(found[step]))
        for step in list(held):
            cells = held.pop(step)  # the runner keeps what is emitted
            sequences = _sequence_ranges(found.get(step, []))
            if isinstance(cells, Gathered):
                yield from self._reading_blocks(step, cells, sequences)
                continue
            flat = cells.packed.reshape(-1)
            present = flat != ABSENT
            count = int(np.count_nonzero(present))
            if count > _DENSE * len(flat):
                yield from self._whole_blocks(step, flat, cells.readings - count, sequences)
            else:
                index = np.flatnonzero(present)
                yield from self._blocks(step, index, flat[index], cells.readings, sequences)

    def _whole_blocks(
        self, step: int, flat: Narrow, surplus: int, sequences: _SequenceRanges
    ) -> Iterator[WindowedValue]:
        encoder = self._current()
        width = len(encoder.schedule.step(step))
        for shard in range(encoder.members.shards):
            rows = encoder.members.shard_rows(shard)
            if rows or sequences:
                part = flat[rows.start * width : rows.stop * width]
                count = int(np.count_nonzero(part != ABSENT)) + surplus
                surplus = 0
                yield self._placed(shard, CellBlock(step, len(rows), width, None, narrowed(part), count, sequences))

    def _blocks(
        self, step: int, index: Ints, packed: Narrow, readings: int, sequences: _SequenceRanges
    ) -> Iterator[WindowedValue]:
        """One block per shard of the readings of a step; ``index`` is number * width + column.

        With sequence numbers, of every shard: a series may have joined that this worker does not know yet.
        """
        encoder = self._current()
        width = len(encoder.schedule.step(step))
        # what is beyond one reading a cell is tallied with the first shard that has any: the tally is the job's
        surplus = readings - len(index)
        edges = encoder.members.first * width
        if len(index) and np.any(index[1:] < index[:-1]):
            order = np.argsort(index, kind="stable")
            index, packed = index[order], packed[order]
        ends = np.searchsorted(index, edges)
        for shard in range(encoder.members.shards) if sequences else np.flatnonzero(np.diff(ends)).tolist():
            part = slice(int(ends[shard]), int(ends[shard + 1]))
            rows = len(encoder.members.shard_rows(shard))
            cells: npt.NDArray[Any] = index[part] - edges[shard]
            if rows * width <= np.iinfo(np.int32).max:
                cells = cells.astype(np.int32)
            count = len(cells) + surplus
            yield self._placed(shard, CellBlock(step, rows, width, cells, narrowed(packed[part]), count, sequences))
            surplus = 0

    def _reading_blocks(self, step: int, gathered: Gathered, sequences: _SequenceRanges) -> Iterator[WindowedValue]:
        """The same of readings that may move the slots of a step."""
        encoder = self._current()
        readings, window = gathered.united(), encoder.schedule.step(step)
        surplus = gathered.repeated(window, self._plan.grid)
        slots = self._plan.grid.slots_of(readings.begin_us)
        begins = (slots >= window.start) & (slots < window.stop)
        ends = np.searchsorted(readings.codes, encoder.members.first)
        for shard in range(encoder.members.shards) if sequences else np.flatnonzero(np.diff(ends)).tolist():
            part = np.arange(int(ends[shard]), int(ends[shard + 1]))
            mine = readings.take(part)
            mine = replace(mine, codes=mine.codes - encoder.members.first[shard])
            count, surplus = int(np.count_nonzero(begins[part])) + surplus, 0
            yield self._placed(shard, ReadingBlock(step, mine, count, sequences))

    def _placed(self, shard: int, block: CellBlock | ReadingBlock) -> WindowedValue:
        """A block with its key, just before the end of its step: no earlier than a live source's watermark can be."""
        stop = self._current().schedule.step(block.step).stop
        instant = self._plan.grid.time_of(stop) - MILLISECOND_US
        return WindowedValue((shard, block), Timestamp(micros=instant), (GlobalWindow(),))


_Tickets = dict[int, list[tuple[int, int, int]]]
"""Step -> (part, run, number) of the batches that are held."""

_SequenceRanges = tuple[tuple[int, int, tuple[Range, ...]], ...]


def _sequence_ranges(tickets: list[tuple[int, int, int]]) -> _SequenceRanges:
    """Sequence numbers as a block carries them."""
    runs: dict[tuple[int, int], list[int]] = {}
    for part, run, number in tickets:
        runs.setdefault((part, run), []).append(number)
    return tuple((part, run, ranges(numbers)) for (part, run), numbers in sorted(runs.items()))


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
