"""Encode: readings to blocks of packed cells, one block per step of the windows and shard of the series.

The cells of a bundle are gathered before they are emitted, which is the collecting step's own rule applied early: a
runner without combiner lifting then moves cells instead of readings, and one with it has little left to do.

Everything here is numpy over whole batches; only the blocks become Beam elements. Sliding windows are made of steps,
and a block lies in exactly one step, so Beam can put it into every window that contains the step and no batch
straddles a boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.digests import stable_hash
from ..schemas.readings import REJECT_SCHEMA, RejectReason
from ..schemas.roster import Roster
from ..schemas.slots import Schedule
from ..store.specs import Registration
from .ahead import Ahead, keep_large_blocks
from .batches import ReadingColumns, reading_columns
from .cells import ABSENT, Cells, Narrow, narrowed, pack, state_bits
from .plan import Plan
from .rejects import METRICS, counter_name

REJECTED = "rejected"

#: Cells held before a bundle ends: 128 MiB.
_HELD_CELLS = 1 << 24

#: A step of which a larger part has readings is passed on whole, without the numbers of its cells.
_DENSE = 0.5

#: A batch's names are looked up in a table of the roster made anew, unless the roster has this many times more names.
_TABLE = 16

#: What a reject of this step says about where it was: the decoder knew, and readings past it carry no position.
_DECODED = "(after decoding)"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CellBlock:
    """Packed readings of one shard in one step of the windows.

    Attributes:
        step: number of the step, ``(slot - anchor) // every``.
        rows: series in the shard.
        width: slots in the step.
        index: row * width + column of each reading's cell, int32 where that is enough, shape (n,); ``None`` where
            ``packed`` has every cell.
        packed: the packed readings, shape (n,), or (rows * width,) with ``ABSENT`` in cells without any; of the
            narrowest type that holds them.
        readings: how many readings they come from.
    """

    step: int
    rows: int
    width: int
    index: npt.NDArray[np.int32] | Ints | None
    packed: Narrow
    readings: int


@dataclass(frozen=True)
class Members:
    """Where each series of a roster lives. Series are numbered shard by shard, so a shard's cells are adjacent rows.

    Attributes:
        place: series -> its number.
        names: the series in the order of their numbers, Arrow text.
        first: number of the first series of each shard, and the number of series, shape (shards + 1,).
        group: number of the only group of each series, or -1, shape (n,).
        groups: numbers of the groups by name.
    """

    place: dict[str, int]
    names: pa.Array
    first: Ints
    group: Ints
    groups: dict[str, int]

    @classmethod
    def of(cls, roster: Roster, shards: int) -> Members:
        """Place every series by its stable hash."""
        shard = np.array([stable_hash(name) % shards for name in roster.series], dtype=np.int64)
        order = np.argsort(shard, kind="stable")
        names = [roster.series[i] for i in order.tolist()]
        groups = {name: i for i, name in enumerate(roster.keys)} if roster.kind == "group" else {}
        only = [roster.groups_of[name] for name in names]
        return cls(
            place={name: i for i, name in enumerate(names)},
            names=pa.array(names, pa.utf8()),
            first=np.concatenate([[0], np.cumsum(np.bincount(shard, minlength=shards))]),
            group=np.array([groups.get(one[0], -1) if len(one) == 1 else -1 for one in only], dtype=np.int64),
            groups=groups,
        )

    def shard_rows(self, shard: int) -> range:
        """The numbers of a shard's series."""
        return range(int(self.first[shard]), int(self.first[shard + 1]))

    def numbers(self, names: pa.Array) -> Ints:
        """The number of each name, -1 where the roster has none."""
        if len(self.names) <= _TABLE * len(names):
            found = pc.call_function("index_in", [names.cast(pa.utf8())], pc.SetLookupOptions(self.names)).fill_null(-1)
            return found.to_numpy(zero_copy_only=False).astype(np.int64)
        return np.array([self.place.get(name, -1) for name in names.to_pylist()], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """What one batch comes to.

    Attributes:
        parts: (step, index, packed) of each step with readings; ``index`` is number * width + column.
        readings: how many readings count.
        outside: how many are before or after the schedule.
        rejects: how many are no readings of the roster, by reason.
        at: the batch's instant.
    """

    parts: tuple[tuple[int, Ints, Ints], ...]
    readings: int
    outside: int
    rejects: dict[RejectReason, int]
    at: Timestamp


@dataclass(frozen=True)
class Encoder:
    """Batches to cells; it holds nothing that changes.

    Attributes:
        plan: what is published.
        members: where each series lives.
        schedule: the windows of record.
    """

    plan: Plan
    members: Members
    schedule: Schedule

    def encode(self, given: tuple[pa.RecordBatch, Timestamp]) -> EncodedBatch:
        """Encode one batch of readings."""
        batch, at = given
        grid = self.plan.grid
        columns = reading_columns(batch, grouped=self.plan.group_column is not None)
        times, values = columns.times, columns.values
        numbers = _take(self.members.numbers(columns.names), columns.series)
        keep, rejects = self._check(columns, numbers)

        slots = grid.slots_of(times)
        covered = self.schedule.covered
        scheduled = (slots >= covered.start) & (slots < covered.stop)
        outside = int(np.count_nonzero(~scheduled & keep))
        keep &= scheduled
        readings = int(np.count_nonzero(keep))
        if readings < len(keep):
            numbers, values, times, slots = numbers[keep], values[keep], times[keep], slots[keep]
        packed = pack(times - grid.time_of(slots), self.plan.space.encode(values), state_bits(self.plan.space.size))
        return EncodedBatch(tuple(self._by_step(numbers, slots, packed)), readings, outside, rejects, at)

    def _check(self, columns: ReadingColumns, numbers: Ints) -> tuple[npt.NDArray[np.bool_], dict[RejectReason, int]]:
        """Which rows count, and how many do not for which reason."""
        keep = columns.good
        rejects = {reason: int(np.count_nonzero(bad)) for reason, bad in columns.problems}

        def drop(bad: npt.NDArray[np.bool_], reason: RejectReason) -> None:
            if count := int(np.count_nonzero(bad & keep)):
                rejects[reason] = rejects.get(reason, 0) + count
                np.logical_and(keep, ~bad, out=keep)

        drop(numbers < 0, RejectReason.NOT_IN_ROSTER)
        if columns.groups is not None and columns.group is not None:
            named = [self.members.groups.get(name, -2) for name in columns.groups.to_pylist()]
            drop(
                _take(np.array(named, dtype=np.int64), columns.group) != self.members.group[numbers],
                RejectReason.GROUP_CONFLICT,
            )
        return keep, rejects

    def _by_step(self, numbers: Ints, slots: Ints, packed: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Cut readings by the step of the windows they are in."""
        if not len(slots):
            return
        every = self.schedule.every
        relative = slots - self.schedule.anchor
        lowest = int(relative.min()) // every
        buckets = int(relative.max()) // every - lowest + 1
        if buckets == 1:
            yield lowest, numbers * every + (relative - lowest * every), packed
            return
        steps = relative // every
        index = numbers * every + (relative - steps * every)
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


class EncodeCells(beam.DoFn):
    """Record batches of readings to ``(shard, CellBlock)`` at the time of the block's step.

    Readings outside the schedule, of series outside the roster, or with a value that is no number are left out and
    tallied for the operator; those for a reason are also emitted to the output ``rejected``, without their values.

    Batches are encoded in a thread while the decoder prepares the next ones; all that has effects happens in Beam's.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._encoder: tuple[str, Encoder] | None = None
        self._ahead: Ahead[tuple[pa.RecordBatch, Timestamp], EncodedBatch] | None = None
        self._steps: dict[int, Cells] = {}
        self._held = 0

    def setup(self) -> None:
        """Make the counters; they belong to the worker."""
        keep_large_blocks()
        self._readings = Metrics.counter(METRICS, "readings")
        self._outside = Metrics.counter(METRICS, "outside-schedule")

    def teardown(self) -> None:
        """End the thread."""
        if self._ahead is not None:
            self._ahead.close()

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._steps, self._held = {}, 0
        if self._ahead is not None:
            self._ahead.forget()

    def process(
        self, batch: pa.RecordBatch, registration: Registration, timestamp: Any = beam.DoFn.TimestampParam
    ) -> Iterator[Any]:
        """Encode one batch.

        Args:
            batch: rows of ``READING_SCHEMA``, with a ``group`` column where the plan names one.
            registration: what is on record for the query.
            timestamp: the batch's instant.
        """
        if self._ahead is None or self._encoder is None or self._encoder[0] != registration.digest:
            query = registration.query
            encoder = Encoder(self._plan, Members.of(query.roster, query.shards), query.schedule)
            self._encoder = (registration.digest, encoder)
            self._ahead = Ahead(encoder.encode)
        for encoded in self._ahead.give((batch, timestamp)):
            yield from self._gather(encoded)

    def finish_bundle(self) -> Any:
        """Emit the cells of the bundle."""
        if self._ahead is not None:
            for encoded in self._ahead.rest():
                yield from self._gather(encoded)
        yield from self._flush()

    def _gather(self, encoded: EncodedBatch) -> Iterator[Any]:
        """Put a batch into the cells of its steps, and emit them when too many are held."""
        self._readings.inc(encoded.readings)
        self._outside.inc(encoded.outside)
        encoder = self._current()
        every, rows = encoder.schedule.every, len(encoder.members.names)
        for step, index, packed in encoded.parts:
            if step not in self._steps:
                if self._held + rows * every > _HELD_CELLS:
                    yield from self._flush()
                if rows * every > _HELD_CELLS:  # not even one step of the whole roster can be held
                    yield from self._blocks(step, index, packed, len(index))
                    continue
                self._steps[step] = Cells.empty(rows, every)
                self._held += rows * every
            self._steps[step].put(index, packed)
        if encoded.rejects:
            for reason, count in encoded.rejects.items():
                Metrics.counter(METRICS, counter_name(reason)).inc(count)
            yield TaggedOutput(REJECTED, WindowedValue(_reject_batch(encoded.rejects), encoded.at, (GlobalWindow(),)))

    # no property: Beam looks at every attribute when the graph is built
    def _current(self) -> Encoder:
        if self._encoder is None:
            raise RuntimeError("there are no cells before the first batch")
        return self._encoder[1]

    def _flush(self) -> Iterator[WindowedValue]:
        """Emit what is held, one block per step and shard, and forget it."""
        held, self._steps, self._held = self._steps, {}, 0
        for step, cells in held.items():
            flat = cells.packed.reshape(-1)
            present = flat != ABSENT
            count = int(np.count_nonzero(present))
            if count > _DENSE * len(flat):
                yield from self._whole_blocks(step, flat, cells.readings - count)
            else:
                index = np.flatnonzero(present)
                yield from self._blocks(step, index, flat[index], cells.readings)

    def _whole_blocks(self, step: int, flat: Ints, surplus: int) -> Iterator[WindowedValue]:
        """One block per shard with all the cells of a step."""
        encoder = self._current()
        width = encoder.schedule.every
        for shard in range(len(encoder.members.first) - 1):
            rows = encoder.members.shard_rows(shard)
            if rows:
                part = flat[rows.start * width : rows.stop * width]
                count = int(np.count_nonzero(part != ABSENT)) + surplus
                surplus = 0
                yield self._placed(shard, CellBlock(step, len(rows), width, None, narrowed(part), count))

    def _blocks(self, step: int, index: Ints, packed: Ints, readings: int) -> Iterator[WindowedValue]:
        """One block per shard of the readings of a step; ``index`` is number * width + column."""
        encoder = self._current()
        width = encoder.schedule.every
        # what is beyond one reading a cell is tallied with the first shard that has any: the tally is the job's
        surplus = readings - len(index)
        edges = encoder.members.first * width
        if len(index) and np.any(index[1:] < index[:-1]):
            order = np.argsort(index, kind="stable")
            index, packed = index[order], packed[order]
        ends = np.searchsorted(index, edges)
        for shard in np.flatnonzero(np.diff(ends)).tolist():
            part = slice(int(ends[shard]), int(ends[shard + 1]))
            rows = len(encoder.members.shard_rows(shard))
            cells: npt.NDArray[Any] = index[part] - edges[shard]
            if rows * width <= np.iinfo(np.int32).max:
                cells = cells.astype(np.int32)
            yield self._placed(shard, CellBlock(step, rows, width, cells, narrowed(packed[part]), len(cells) + surplus))
            surplus = 0

    def _placed(self, shard: int, block: CellBlock) -> WindowedValue:
        """A block with its key, at the time of its step."""
        slot = self._current().schedule.anchor + block.step * block.width
        return WindowedValue((shard, block), Timestamp(micros=self._plan.grid.time_of(slot)), (GlobalWindow(),))


def _take(table: Ints, positions: Ints) -> Ints:
    """``table[positions]``, where an empty table means that every row has a problem anyway."""
    return table[positions] if len(table) else np.full(len(positions), -1, dtype=np.int64)


def _reject_batch(rejects: dict[RejectReason, int]) -> pa.RecordBatch:
    reasons: Iterable[str] = [reason.value for reason, count in rejects.items() for _ in range(count)]
    rows = sum(rejects.values())
    return pa.RecordBatch.from_arrays(
        [pa.array(reasons, pa.utf8()), pa.array([_DECODED] * rows), pa.array(np.full(rows, -1, dtype=np.int64))],
        schema=REJECT_SCHEMA,
    )
