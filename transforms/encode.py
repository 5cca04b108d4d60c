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
from .batches import ReadingColumns, reading_columns
from .cells import ABSENT, Cells, pack, state_bits
from .plan import Plan
from .rejects import METRICS, counter_name

REJECTED = "rejected"

#: Cells held before a bundle ends: 128 MiB.
_HELD_CELLS = 1 << 24

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
        index: row * width + column of each reading's cell, int32 where that is enough, shape (n,).
        packed: the packed readings, int64, shape (n,).
        readings: how many readings they come from.
    """

    step: int
    rows: int
    width: int
    index: npt.NDArray[np.int32] | Ints
    packed: Ints
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


class EncodeCells(beam.DoFn):
    """Record batches of readings to ``(shard, CellBlock)`` at the time of the block's step.

    Readings outside the schedule, of series outside the roster, or with a value that is no number are left out and
    tallied for the operator; those for a reason are also emitted to the output ``rejected``, without their values.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bits = state_bits(plan.space.size)
        self._members: tuple[str, Members, Schedule] | None = None
        self._steps: dict[int, Cells] = {}
        self._held = 0

    def setup(self) -> None:
        """Make the counters; they belong to the worker."""
        self._readings = Metrics.counter(METRICS, "readings")
        self._outside = Metrics.counter(METRICS, "outside-schedule")

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._steps, self._held = {}, 0

    def process(self, batch: pa.RecordBatch, registration: Registration) -> Iterator[Any]:
        """Encode one batch.

        Args:
            batch: rows of ``READING_SCHEMA``, with a ``group`` column where the plan names one.
            registration: what is on record for the query.
        """
        members, schedule = self._members_of(registration)
        grid = self._plan.grid
        columns = reading_columns(batch, grouped=self._plan.group_column is not None)
        times, values = columns.times, columns.values
        numbers = _take(members.numbers(columns.names), columns.series)
        keep, rejects = self._check(columns, members, numbers)

        slots = grid.slots_of(times)
        covered = schedule.covered
        scheduled = (slots >= covered.start) & (slots < covered.stop)
        self._outside.inc(int(np.count_nonzero(~scheduled & keep)))
        keep &= scheduled
        self._readings.inc(int(np.count_nonzero(keep)))
        if not keep.all():
            numbers, values, times, slots = numbers[keep], values[keep], times[keep], slots[keep]
        if len(numbers):
            packed = pack(times - grid.time_of(slots), self._plan.space.encode(values), self._bits)
            yield from self._gather(members, schedule, numbers, slots, packed)
        if rejects:
            yield TaggedOutput(REJECTED, _reject_batch(rejects))

    def finish_bundle(self) -> Any:
        """Emit the cells of the bundle."""
        yield from self._flush()

    def _members_of(self, registration: Registration) -> tuple[Members, Schedule]:
        if self._members is None or self._members[0] != registration.digest:
            query = registration.query
            self._members = (registration.digest, Members.of(query.roster, query.shards), query.schedule)
        return self._members[1:]

    def _check(
        self, columns: ReadingColumns, members: Members, numbers: Ints
    ) -> tuple[npt.NDArray[np.bool_], dict[RejectReason, int]]:
        """Which rows count, and how many do not for which reason."""
        keep = columns.good
        rejects = {reason: int(np.count_nonzero(bad)) for reason, bad in columns.problems}

        def drop(bad: npt.NDArray[np.bool_], reason: RejectReason) -> None:
            if count := int(np.count_nonzero(bad & keep)):
                rejects[reason] = rejects.get(reason, 0) + count
            np.logical_and(keep, ~bad, out=keep)

        drop(numbers < 0, RejectReason.NOT_IN_ROSTER)
        if columns.groups is not None and columns.group is not None:
            named = [members.groups.get(name, -2) for name in columns.groups.to_pylist()]
            drop(
                _take(np.array(named, dtype=np.int64), columns.group) != members.group[numbers],
                RejectReason.GROUP_CONFLICT,
            )
        for reason, count in rejects.items():
            Metrics.counter(METRICS, counter_name(reason)).inc(count)
        return keep, rejects

    def _gather(
        self, members: Members, schedule: Schedule, numbers: Ints, slots: Ints, packed: Ints
    ) -> Iterator[WindowedValue]:
        """Put a batch into the cells of its steps, and emit them when too many are held."""
        every, rows = schedule.every, len(members.names)
        relative = slots - schedule.anchor
        steps = relative // every
        index = numbers * every + (relative - steps * every)
        lowest = int(steps.min())
        bucket = steps - lowest
        buckets = int(bucket.max()) + 1
        if buckets > 1:
            # a radix sort where the steps fit 16 bits: far cheaper than sorting int64
            small = bucket.astype(np.uint16) if buckets <= np.iinfo(np.uint16).max else bucket
            order = np.argsort(small, kind="stable")
            index, packed = index[order], packed[order]
        ends = np.cumsum(np.bincount(bucket, minlength=buckets))
        for one in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            part = slice(int(ends[one - 1]) if one else 0, int(ends[one]))
            step = lowest + one
            if step not in self._steps:
                if self._held + rows * every > _HELD_CELLS:
                    yield from self._flush()
                if rows * every > _HELD_CELLS:  # not even one step of the whole roster can be held
                    yield from self._blocks(members, schedule, step, index[part], packed[part], part.stop - part.start)
                    continue
                self._steps[step] = Cells.empty(rows, every)
                self._held += rows * every
            self._steps[step].put(index[part], packed[part])

    def _flush(self) -> Iterator[WindowedValue]:
        """Emit what is held, one block per step and shard, and forget it."""
        held, self._steps, self._held = self._steps, {}, 0
        if self._members is None:
            return
        _, members, schedule = self._members
        for step, cells in held.items():
            flat = cells.packed.reshape(-1)
            index = np.flatnonzero(flat != ABSENT)
            yield from self._blocks(members, schedule, step, index, flat[index], cells.readings)

    def _blocks(
        self, members: Members, schedule: Schedule, step: int, index: Ints, packed: Ints, readings: int
    ) -> Iterator[WindowedValue]:
        """One block per shard of the readings of a step; ``index`` is number * width + column."""
        width = schedule.every
        start = Timestamp(micros=self._plan.grid.time_of(schedule.anchor + step * width))
        # what is beyond one reading a cell is tallied with the first shard that has any: the tally is the job's
        surplus = readings - len(index)
        edges = members.first * width
        if len(index) and np.any(index[1:] < index[:-1]):
            order = np.argsort(index, kind="stable")
            index, packed = index[order], packed[order]
        ends = np.searchsorted(index, edges)
        for shard in np.flatnonzero(np.diff(ends)).tolist():
            part = slice(int(ends[shard]), int(ends[shard + 1]))
            rows = len(members.shard_rows(shard))
            cells: npt.NDArray[Any] = index[part] - edges[shard]
            if rows * width <= np.iinfo(np.int32).max:
                cells = cells.astype(np.int32)
            block = CellBlock(step, rows, width, cells, packed[part], len(cells) + surplus)
            surplus = 0
            yield WindowedValue((shard, block), start, (GlobalWindow(),))


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
