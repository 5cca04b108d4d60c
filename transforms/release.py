"""Release: finished histograms to rows of record.

The noise is drawn inside the transaction that charges the window and only when no block is on record yet; what goes
out is always what the store holds (first write wins, theory section 7, items 2 and 3). A runner may therefore run any
of this any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import IntervalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.ledger import LEDGER_SCHEMA
from ..schemas.roster import Roster
from ..schemas.slots import Schedule, Window
from ..store.records import Store
from ..store.rows import rows_of
from ..store.specs import Block, Draft, QuerySpec, Registration
from .cells import Ints, state_bits
from .collect import Steps
from .encode import Members
from .plan import Plan
from .rejects import METRICS

REFUSED = "refused"

#: Blocks published in one transaction at most; more would keep other writers of the domain waiting.
_BATCH = 64


def window_of(plan: Plan, window: IntervalWindow) -> Window:
    """The slots of a Beam window."""
    start = plan.grid.slots_of(int(window.start.micros))
    return Window(start, start + (int(window.end.micros) - int(window.start.micros)) // plan.grid.interval_us)


class CountCells(beam.DoFn):
    """``(shard, cells)`` of a window to ``(shard, histograms)``, summed per group where the query has groups.

    Histograms are int64 of shape (keys of the shard, bins), in the order of ``Roster.shard_keys``.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bits = state_bits(plan.space.size)
        self._sums: tuple[str, dict[int, list[tuple[int, int, Ints, Ints]]]] | None = None

    def setup(self) -> None:
        """Make the counter; it belongs to the worker."""
        self._duplicates = Metrics.counter(METRICS, "duplicates")

    def process(
        self, element: tuple[int, Steps], registration: Registration, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[int, Ints]]:
        """Count the cells of one shard in one window."""
        shard, steps = element
        place = window_of(self._plan, window)
        if registration.query.schedule.contains(place):
            counts = self._count(place, steps, registration.query.schedule)
            if registration.query.roster.kind == "series":
                yield shard, counts
            else:
                for target, keys, rows, places in self._group_rows(registration)[shard]:
                    sums = np.zeros((keys, counts.shape[1]), dtype=np.int64)
                    np.add.at(sums, places, counts[rows])
                    yield target, sums

    def _count(self, place: Window, steps: Steps, schedule: Schedule) -> Ints:
        space, first = self._plan.space, (place.start - schedule.anchor) // schedule.every
        if first in steps:
            # every step is the first one of exactly one window, so each duplicate is tallied once
            self._duplicates.inc(steps[first].readings - int(np.count_nonzero(steps[first].present)))
        return np.add.reduce([cells.histograms(space.bins, self._bits) for cells in steps.values()])

    def _group_rows(self, registration: Registration) -> dict[int, list[tuple[int, int, Ints, Ints]]]:
        if self._sums is None or self._sums[0] != registration.digest:
            query = registration.query
            self._sums = (registration.digest, _group_rows(query.roster, query.shards))
        return self._sums[1]


def _group_rows(roster: Roster, shards: int) -> dict[int, list[tuple[int, int, Ints, Ints]]]:
    """Shard of series -> (shard of groups, groups in it, rows of the series, places of their groups)."""
    members = Members.of(roster, shards)
    targets = [roster.shard_keys(target, shards) for target in range(shards)]
    home = {key: (target, place) for target, keys in enumerate(targets) for place, key in enumerate(keys)}
    plan: dict[int, list[tuple[int, int, Ints, Ints]]] = {}
    for shard in range(shards):
        numbers = members.shard_rows(shard)
        found: dict[int, list[tuple[int, int]]] = {}
        for row, number in enumerate(numbers):
            for group in roster.groups_of[members.names[number].as_py()]:
                target, place = home[group]
                found.setdefault(target, []).append((row, place))
        plan[shard] = [(target, len(targets[target]), *np.array(pairs).T) for target, pairs in sorted(found.items())]
    return plan


class ScheduledHistograms(beam.DoFn):
    """Zeros for every step of the schedule and shard with keys: every window exists, also without any reading.

    Which windows are published thus depends on the schedule and the roster alone (theory section 7, item 4).
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, _seed: object, registration: Registration) -> Iterator[Any]:
        """Emit the zeros of a bounded schedule."""
        query, grid = registration.query, self._plan.grid
        sizes = [(shard, len(query.roster.shard_keys(shard, query.shards))) for shard in range(query.shards)]
        zeros = [(shard, np.zeros((size, self._plan.space.bins), dtype=np.int64)) for shard, size in sizes if size]
        covered = query.schedule.covered
        for slot in range(covered.start, covered.stop, query.schedule.every):
            stamp = Timestamp(micros=grid.time_of(slot))
            for element in zeros:
                yield TimestampedValue(element, stamp)


class SumHistograms(beam.CombineFn):
    """Adds histograms: those of a group's series in different shards, and the zeros of the schedule."""

    def create_accumulator(self) -> Any:
        """Zero."""
        return 0

    def add_input(self, mutable_accumulator: Any, element: Ints) -> Any:
        """Add one matrix."""
        return mutable_accumulator + element

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Add sums."""
        return sum(accumulators)

    def extract_output(self, accumulator: Any) -> Any:
        """The sum."""
        return accumulator


@dataclass(frozen=True, slots=True)
class Held:
    """A block that waits for its bundle's transaction: its slots, shard and true counts, and its place in Beam."""

    window: Window
    shard: int
    counts: Ints
    place: WindowedValue


class NoisyBlocks:
    """The noisy counts of some blocks, drawn together when the store first asks for one of them.

    One draw for all is several times faster than one per block. What the store does not ask for is forgotten.
    """

    def __init__(self, plan: Plan, counts: Sequence[Ints]) -> None:
        self._plan = plan
        self._counts = counts
        self._noisy: list[Ints] | None = None

    def block(self, number: int, keys: tuple[str, ...]) -> Block:
        """One of the blocks."""
        if self._noisy is None:
            ends = np.cumsum([len(one) for one in self._counts])[:-1]
            self._noisy = np.split(self._plan.histogram.randomise(np.concatenate(self._counts)), ends)
        return Block(keys=keys, totals=self._counts[number].sum(axis=1), counts=self._noisy[number])


class ReleaseHistograms(beam.DoFn):
    """``(shard, histograms)`` of a window to the released rows of record; refusals go to the output ``refused``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._held: list[Held] = []
        self._registration: Registration | None = None

    def setup(self) -> None:
        """Open the store and make the counters; they belong to the worker."""
        self._store = Store(self._plan.address)
        self._released = Metrics.counter(METRICS, "rows-released")
        self._replayed = Metrics.counter(METRICS, "rows-already-on-record")
        self._refused = Metrics.counter(METRICS, "windows-refused")

    def teardown(self) -> None:
        """Close the store."""
        self._store.close()

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._held = []

    def process(
        self,
        element: tuple[int, Ints],
        registration: Registration,
        window: Any = beam.DoFn.WindowParam,
        timestamp: Any = beam.DoFn.TimestampParam,
    ) -> Iterator[Any]:
        """Take one block; blocks are published together when the bundle ends, or when many have gathered."""
        shard, counts = element
        self._registration = registration
        place = window_of(self._plan, window)
        # at the ends of a sliding schedule only whole windows are published
        if registration.query.schedule.contains(place):
            if self._plan.space.missing_state:
                counts = _with_missing(counts, registration.query, shard)
            self._held.append(Held(place, shard, counts, WindowedValue(None, timestamp, (window,))))
        if len(self._held) >= _BATCH:
            yield from self._flush(registration)

    def finish_bundle(self) -> Any:
        """Publish what is left."""
        if self._registration is not None:
            yield from self._flush(self._registration)

    def _flush(self, registration: Registration) -> Iterator[Any]:
        held, self._held = self._held, []
        if not held:
            return
        roster, shards = registration.query.roster, registration.query.shards
        noisy = NoisyBlocks(self._plan, [one.counts for one in held])
        drafts = [
            Draft(one.window, one.shard, partial(noisy.block, i, roster.shard_keys(one.shard, shards)))
            for i, one in enumerate(held)
        ]
        records = self._store.publish(registration, drafts)
        speaker = next(s for s in range(shards) if roster.shard_keys(s, shards))
        for record, place in zip(records, (one.place for one in held), strict=True):
            if record.block is not None:
                (self._released if record.fresh else self._replayed).inc(len(record.block.keys))
                yield place.with_value(rows_of(registration, record))
            elif record.shard == speaker:  # a refusal is the window's, not the shard's
                self._refused.inc()
                batch = pa.RecordBatch.from_pylist([record.entry.to_dict()], schema=LEDGER_SCHEMA)
                yield TaggedOutput(REFUSED, place.with_value(batch))


def _with_missing(counts: Ints, query: QuerySpec, shard: int) -> Ints:
    """The histograms with one more column: the cells of a key's members that have no reading."""
    members = dict(zip(query.roster.keys, query.roster.members.tolist(), strict=True))
    cells = [members[key] * query.schedule.size for key in query.roster.shard_keys(shard, query.shards)]
    return np.column_stack([counts, np.array(cells, dtype=np.int64) - counts.sum(axis=1)])
