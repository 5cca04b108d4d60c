"""Release: finished histograms to rows of record.

The noise is drawn inside the transaction that charges the window and only when no block is on record yet; what goes
out is always what the store holds (first write wins, theory section 7, items 2 and 3). A runner may therefore run any
of this any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.ledger import LEDGER_SCHEMA
from ..schemas.roster import Roster
from ..schemas.slots import Schedule, Window
from ..store.records import Store
from ..store.rows import rows_of
from ..store.specs import Block, Draft, Registration
from .cells import Ints, state_bits
from .collect import Steps
from .encode import METRICS, Members
from .plan import Plan

REFUSED = "refused"

#: Blocks published in one transaction at most; more would keep other writers of the domain waiting.
_BATCH = 64


def window_of(plan: Plan, window: IntervalWindow) -> Window:
    """The slots of a Beam window."""
    start = plan.grid.slots_of(int(window.start.micros))
    return Window(start, start + (int(window.end.micros) - int(window.start.micros)) // plan.grid.interval_us)


class CountCells(beam.DoFn):
    """``(shard, cells)`` of a window to ``(shard, histograms)``, summed per group where the query has groups.

    Histograms are int64 of shape (keys of the shard, states), in the order of ``Roster.shard_keys``.
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
        # at the ends of a sliding schedule only whole windows are published
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
        counts = np.add.reduce([cells.histograms(space.bins, self._bits) for cells in steps.values()])
        if space.missing_state:
            counts = np.column_stack([counts, schedule.size - counts.sum(axis=1)])
        return counts

    def _group_rows(self, registration: Registration) -> dict[int, list[tuple[int, int, Ints, Ints]]]:
        if self._sums is None or self._sums[0] != registration.digest:
            query = registration.query
            self._sums = (registration.digest, _group_rows(query.roster, query.shards))
        return self._sums[1]


def _group_rows(roster: Roster, shards: int) -> dict[int, list[tuple[int, int, Ints, Ints]]]:
    """Shard of series -> (shard of groups, groups in it, rows of the series, places of their groups)."""
    members = Members.of(roster, shards)
    plan: dict[int, list[tuple[int, int, Ints, Ints]]] = {int(s): [] for s in np.unique(members.shard)}
    for target in range(shards):
        keys = roster.shard_keys(target, shards)
        place = {key: i for i, key in enumerate(keys)}
        found: dict[int, list[tuple[int, int]]] = {}
        for series, groups in roster.groups_of.items():
            number = members.place[series]
            pairs = [(int(members.row[number]), place[group]) for group in groups if group in place]
            if pairs:
                found.setdefault(int(members.shard[number]), []).extend(pairs)
        for shard, pairs in found.items():
            rows, places = np.array(pairs, dtype=np.int64).T
            plan[shard].append((target, len(keys), rows, places))
    return plan


class SumHistograms(beam.CombineFn):
    """Adds the histograms of a group's series in different shards."""

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


class ReleaseHistograms(beam.DoFn):
    """``(shard, histograms)`` of a window to the released rows of record; refusals go to the output ``refused``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._drafts: list[tuple[Draft, WindowedValue]] = []
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
        self._drafts = []

    def process(
        self,
        element: tuple[int, Ints],
        registration: Registration,
        window: Any = beam.DoFn.WindowParam,
        timestamp: Any = beam.DoFn.TimestampParam,
    ) -> Iterator[WindowedValue]:
        """Take one block; blocks are published together when the bundle ends, or when many have gathered."""
        shard, counts = element
        self._registration = registration
        keys = registration.query.roster.shard_keys(shard, registration.query.shards)
        draw = partial(_draw, self._plan, keys, counts)
        place = WindowedValue(None, timestamp, (window,))
        self._drafts.append((Draft(window_of(self._plan, window), shard, draw), place))
        if len(self._drafts) >= _BATCH:
            yield from self._flush(registration)

    def finish_bundle(self) -> Any:
        """Publish what is left."""
        if self._registration is not None:
            yield from self._flush(self._registration)

    def _flush(self, registration: Registration) -> Iterator[WindowedValue]:
        drafts, self._drafts = self._drafts, []
        if not drafts:
            return
        records = self._store.publish(registration, [draft for draft, _ in drafts])
        roster, shards = registration.query.roster, registration.query.shards
        speaker = next(s for s in range(shards) if roster.shard_keys(s, shards))
        for record, (_, place) in zip(records, drafts, strict=True):
            if record.block is not None:
                (self._released if record.fresh else self._replayed).inc(len(record.block.keys))
                yield place.with_value(rows_of(registration, record))
            elif record.shard == speaker:  # a refusal is the window's, not the shard's
                self._refused.inc()
                batch = pa.RecordBatch.from_pylist([record.entry.to_dict()], schema=LEDGER_SCHEMA)
                yield place.with_value(TaggedOutput(REFUSED, batch))


def _draw(plan: Plan, keys: tuple[str, ...], counts: Ints) -> Block:
    return Block(keys=keys, totals=counts.sum(axis=1), counts=plan.histogram.randomise(counts))
