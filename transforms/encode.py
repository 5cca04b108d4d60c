"""Encode: readings to blocks of packed cells, one block per step of the windows and shard of the series.

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
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ..schemas.digests import stable_hash
from ..schemas.readings import REJECT_SCHEMA, RejectReason
from ..schemas.roster import Roster
from ..schemas.slots import Schedule
from ..store.specs import Registration
from .cells import pack, state_bits
from .plan import Plan

METRICS = "quiltstream"
REJECTED = "rejected"

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
        index: row * width + column of each reading's cell, int32, shape (n,).
        packed: the packed readings, int64, shape (n,).
    """

    step: int
    rows: int
    width: int
    index: npt.NDArray[np.int32]
    packed: Ints


@dataclass(frozen=True)
class Members:
    """Where each series of a roster lives: its shard and its row in the shard's cells.

    Attributes:
        place: series -> number of the series.
        shard: shard of each number, shape (n,).
        row: row in its shard of each number, shape (n,).
        sizes: series in each shard, shape (shards,).
        group: number of the only group of each series, or -1, shape (n,).
        groups: numbers of the groups by name.
    """

    place: dict[str, int]
    shard: Ints
    row: Ints
    sizes: Ints
    group: Ints
    groups: dict[str, int]

    @classmethod
    def of(cls, roster: Roster, shards: int) -> Members:
        """Place every series by its stable hash."""
        shard = np.array([stable_hash(name) % shards for name in roster.series], dtype=np.int64)
        sizes = np.bincount(shard, minlength=shards)
        row = np.empty(len(shard), dtype=np.int64)
        for one in range(shards):
            row[shard == one] = np.arange(sizes[one])
        groups = {name: i for i, name in enumerate(roster.keys)} if roster.kind == "group" else {}
        only = [roster.groups_of[name] for name in roster.series]
        group = np.array([groups.get(names[0], -1) if len(names) == 1 else -1 for names in only], dtype=np.int64)
        return cls({name: i for i, name in enumerate(roster.series)}, shard, row, sizes, group, groups)


class EncodeCells(beam.DoFn):
    """Record batches of readings to ``(shard, CellBlock)`` at the time of the block's step.

    Readings outside the schedule, of series outside the roster, or with a value that is no number are left out and
    tallied for the operator; those for a reason are also emitted to the output ``rejected``, without their values.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bits = state_bits(plan.space.size)
        self._members: tuple[str, Members] | None = None

    def setup(self) -> None:
        """Make the counters; they belong to the worker."""
        self._readings = Metrics.counter(METRICS, "readings")
        self._outside = Metrics.counter(METRICS, "outside-schedule")

    def process(self, batch: pa.RecordBatch, registration: Registration) -> Iterator[Any]:
        """Encode one batch.

        Args:
            batch: rows of ``READING_SCHEMA``, with a ``group`` column where the plan names one.
            registration: what is on record for the query.
        """
        members = self._members_of(registration)
        schedule, grid = registration.query.schedule, self._plan.grid
        names = _dictionary(batch.column("series"))
        numbers = np.array(
            [members.place.get(name, -1) for name in names.dictionary.to_pylist()] or [-1], dtype=np.int64
        )[_indices(names)]
        values = batch.column("value").to_numpy(zero_copy_only=False)
        times = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
        keep, rejects = self._check(batch, members, numbers, values)

        slots = grid.slots_of(times)
        covered = schedule.covered if schedule.bounded else None
        scheduled = slots >= (schedule.first if covered is None else covered.start)
        if covered is not None:
            scheduled &= slots < covered.stop
        self._outside.inc(int(np.count_nonzero(~scheduled & keep)))
        keep &= scheduled
        self._readings.inc(int(np.count_nonzero(keep)))
        if not keep.all():
            numbers, values, times, slots = numbers[keep], values[keep], times[keep], slots[keep]
        if len(numbers):
            packed = pack(times - grid.time_of(slots), self._plan.space.encode(values), self._bits)
            yield from self._blocks(members, schedule, numbers, slots, packed)
        if rejects:
            yield TaggedOutput(REJECTED, _reject_batch(rejects))

    def _members_of(self, registration: Registration) -> Members:
        if self._members is None or self._members[0] != registration.digest:
            query = registration.query
            self._members = (registration.digest, Members.of(query.roster, query.shards))
        return self._members[1]

    def _check(
        self, batch: pa.RecordBatch, members: Members, numbers: Ints, values: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.bool_], dict[RejectReason, int]]:
        keep = np.isfinite(values)
        rejects: dict[RejectReason, int] = {}

        def drop(bad: npt.NDArray[np.bool_], reason: RejectReason) -> None:
            count = int(np.count_nonzero(bad & keep))
            if count:
                rejects[reason] = count
                Metrics.counter(METRICS, f"rejected-{reason.value}").inc(count)
            np.logical_and(keep, ~bad, out=keep)

        broken = ~keep
        keep[:] = True
        drop(broken, RejectReason.NOT_FINITE)
        drop(numbers < 0, RejectReason.NOT_IN_ROSTER)
        if self._plan.group_column is not None and "group" in batch.schema.names:
            named = _dictionary(batch.column("group"))
            groups = np.array(
                [members.groups.get(name, -2) for name in named.dictionary.to_pylist()] or [-2], dtype=np.int64
            )[_indices(named)]
            drop(groups != members.group[numbers], RejectReason.GROUP_CONFLICT)
        return keep, rejects

    def _blocks(self, members: Members, schedule: Schedule, numbers: Ints, slots: Ints, packed: Ints) -> Iterator[Any]:
        every, anchor = schedule.every, schedule.anchor
        relative = slots - anchor
        steps = relative // every
        lowest = int(steps.min())
        shards = len(members.sizes)
        bucket = (steps - lowest) * shards + members.shard[numbers]
        index = members.row[numbers] * every + (relative - steps * every)
        buckets = int(bucket.max()) + 1
        if buckets > 1:
            # a radix sort where the buckets fit 16 bits: far cheaper than sorting int64
            small = bucket.astype(np.uint16) if buckets <= np.iinfo(np.uint16).max else bucket
            order = np.argsort(small, kind="stable")
            index, packed = index[order], packed[order]
        ends = np.cumsum(np.bincount(bucket, minlength=buckets))
        for one in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            begin = int(ends[one - 1]) if one else 0
            step, shard = lowest + one // shards, one % shards
            part = slice(begin, int(ends[one]))
            block = CellBlock(step, int(members.sizes[shard]), every, index[part].astype(np.int32), packed[part])
            start = self._plan.grid.time_of(anchor + step * every)
            yield TimestampedValue((shard, block), Timestamp(micros=start))


class ScheduledCells(beam.DoFn):
    """An empty block for every step of the schedule and shard with series: every window exists without readings.

    Which windows are published thus depends on the schedule and the roster alone (theory section 7, item 4).
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, _seed: object, registration: Registration) -> Iterator[Any]:
        """Emit the empty blocks of a bounded schedule."""
        schedule, query = registration.query.schedule, registration.query
        sizes = Members.of(query.roster, query.shards).sizes
        covered = schedule.covered
        none = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        for slot in range(covered.start, covered.stop, schedule.every):
            step = (slot - schedule.anchor) // schedule.every
            stamp = Timestamp(micros=self._plan.grid.time_of(slot))
            for shard in np.flatnonzero(sizes).tolist():
                yield TimestampedValue((shard, CellBlock(step, int(sizes[shard]), schedule.every, *none)), stamp)


def _dictionary(column: pa.Array) -> pa.DictionaryArray:
    return column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()


def _indices(column: pa.DictionaryArray) -> npt.NDArray[Any]:
    return column.indices.to_numpy(zero_copy_only=False)


def _reject_batch(rejects: dict[RejectReason, int]) -> pa.RecordBatch:
    reasons: Iterable[str] = [reason.value for reason, count in rejects.items() for _ in range(count)]
    rows = sum(rejects.values())
    return pa.RecordBatch.from_arrays(
        [pa.array(reasons, pa.utf8()), pa.array([_DECODED] * rows), pa.array(np.full(rows, -1, dtype=np.int64))],
        schema=REJECT_SCHEMA,
    )
