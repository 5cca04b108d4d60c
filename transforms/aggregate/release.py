"""Charge and release: finished histograms to rows of record.

:class:`ChargeAndCount` charges the windows of a bundle, in one transaction, and cuts their histograms by the rosters
that are fixed by that; :class:`ReleaseHistograms` publishes the blocks, in another. In a process that does both, a
block visits the ledger these two times.

The noise is drawn inside the transaction that charges the window and only when no block is on record yet; what goes
out is always what the store holds (first write wins, theory section 7, items 2 and 3). A runner may therefore run any
of this any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.windowed_value import WindowedValue

from ...schemas.ledger import LEDGER_SCHEMA
from ...schemas.releases import LIVE, least_complete
from ...schemas.slots import Window
from ...store.codec import NoisyBlock
from ...store.specs import BlockToPublish, Layout, Registration, bins_of, classes_of, layout_of
from ..common.batches import DUPLICATES, METRICS, ReadingsError
from ..plan import Plan
from ..register import LedgerStep
from ..registration import Registered
from .cells import Cells, Ints, state_bits
from .coders import PartCoder
from .collect import Collected, Gather, is_whole, slots_of
from .gathered import Gathered
from .rosters import RosterRowsCache, newest

REFUSED = "refused"

#: Blocks published in one transaction at most; more would keep other writers of the domain waiting.
_BATCH = 64

#: Histograms that wait for their rosters at most: so many of a shard in a window, and so many numbers, 32 MiB.
_HELD = 4096
_HELD_COUNTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Tally:
    """Histograms of one shard in one window, and whether they are all of it."""

    # bit of each shard of series that is complete -> what it counts here: int64, shape (keys of the shard, classes of
    # slots * bins), in the order of ``Roster.shard_keys``. A shard that comes again counts once
    parts: dict[int, Ints]
    needed: int  # bits of the shards that count here
    completeness: str = LIVE

    @property
    def whole(self) -> bool:
        """Whether the window may be published."""
        return bool(self.needed) and sum(self.parts) & self.needed == self.needed

    @property
    def counts(self) -> Ints:
        """The histograms, of the same shape; only where there is a part."""
        return reduce(np.add, self.parts.values())


@dataclass(frozen=True, slots=True)
class Counted:
    """The histograms of all series of one shard in one window, before they are cut by its roster."""

    shard: int
    window: Window
    # int64, shape (rows of the shard, classes of slots * bins); rows without a reading at the end may be left out
    counts: Ints
    complete: bool
    completeness: str
    place: WindowedValue


class ChargeAndCount(LedgerStep):
    """``(shard, Collected)`` of a window to ``(shard, Tally)``, summed per group where the query has groups.

    A window that was declared complete is charged here, before it is cut by its roster: a charge fixes the roster, so
    all workers cut the window by the same one, whichever each had read. One transaction charges a bundle's windows.

    A job whose roster is given rejects the readings of other series, so a roster that is put on record while it runs
    holds for windows that begin later (:meth:`.Registration.as_begun`). A window that another job has charged with a
    series that this one did not count there is not complete here.

    Args:
        plan: what is published.
        live: whether the job has patience with its ledger.
        sight: whether series join when they are first seen, before their readings are encoded.
    """

    def __init__(self, plan: Plan, *, live: bool = False, sight: bool = False) -> None:
        super().__init__(plan, live=live)
        self._sight = sight
        self._bits = state_bits(plan.space.size)
        self._places = RosterRowsCache()
        self._counted: list[Counted] = []
        self._numbers = 0
        self._registration: Registration | None = None

    def setup(self) -> None:
        """Make the counter; it belongs to the worker."""
        super().setup()
        self._duplicates = Metrics.counter(METRICS, DUPLICATES)

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._counted, self._numbers = [], 0

    def process(
        self,
        element: tuple[int, Collected],
        record: Registered,
        window: Any = beam.DoFn.WindowParam,
        timestamp: Any = beam.DoFn.TimestampParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[WindowedValue]:
        """Count the cells of one shard in one window, once the query is on record."""
        shard, collected = element
        self._record, self._registration = record, newest(self._registration, record.now)
        schedule = record.now.query.schedule
        slots = slots_of(self._plan.grid, window)
        # at the ends of a sliding schedule only whole windows are published
        if not schedule.contains(slots):
            return
        self._counted.append(
            Counted(
                shard,
                slots,
                self._count(slots, collected, self._registration),
                is_whole(collected, slots.start, pane),
                collected.completeness(slots.start),
                WindowedValue(None, timestamp, (window,), pane),
            )
        )
        self._numbers += self._counted[-1].counts.size
        if self._numbers > _HELD_COUNTS or len(self._counted) >= _HELD:
            yield from self._flush()

    def finish_bundle(self) -> Any:
        """Cut what is left."""
        yield from self._flush()

    def _flush(self) -> Iterator[WindowedValue]:
        counted, self._counted, self._numbers = self._counted, [], 0
        if not counted or self._registration is None:
            return
        begun = None if self._sight else self._known().begun
        complete = {one.window for one in counted if one.complete}
        registration = self._registration = self._ledger().charge_windows(self._registration, complete, begun)
        complete = {window for window in complete if self._has_counted(registration, window, begun)}
        for one in counted:
            for tally in self._tallies(registration, replace(one, complete=one.complete and one.window in complete)):
                yield one.place.with_value(tally)

    def _has_counted(self, registration: Registration, window: Window, begun: Registration | None) -> bool:
        """Whether readings of every series that a window was charged with were taken."""
        if begun is None:
            return True
        # a job over readings that end looks for no other roster
        seen = registration.as_begun(begun) if self._live else begun
        known, charged = seen.roster_of(window), registration.roster_of(window)
        return known == charged or known.groups_of.keys() >= charged.groups_of.keys()

    def _tallies(self, registration: Registration, one: Counted) -> Iterator[tuple[int, Tally]]:
        """The histograms of a window by its roster; without counts where the window is not complete."""
        roster = registration.roster_of(one.window)
        places = self._places.of(registration, roster)
        bit = 1 << one.shard
        if roster.kind == "series":
            rows = places.rows[one.shard]
            if len(rows):
                parts = {bit: _rows(one.counts, rows)} if one.complete else {}
                yield one.shard, Tally(parts, bit, one.completeness)
            return
        for part in places.groups[one.shard]:
            sums = np.zeros((part.keys, one.counts.shape[1]), dtype=np.int64)
            np.add.at(sums, part.places, _rows(one.counts, part.rows))
            yield part.target, Tally({bit: sums} if one.complete else {}, part.needed, one.completeness)

    def _count(self, window: Window, collected: Collected, registration: Registration) -> Ints:
        schedule, classes, bins = registration.query.schedule, classes_of(registration), bins_of(registration)
        space, first = self._plan.space, schedule.number_of(window.start)
        number = len(classes)
        if first in collected.steps:
            # every step is the first one of exactly one window, so each duplicate is tallied once
            self._duplicates.inc(self._repeated(collected.steps[first], schedule.step(first)))
        steps = {step: self._reduced(held, schedule.step(step)) for step, held in collected.steps.items()}
        rows = max((len(cells.packed) for cells in steps.values()), default=0)
        counts = np.zeros((rows, number * space.bins), dtype=np.int64)
        for step, cells in steps.items():
            of_slots = classes.of(self._plan.grid, schedule.step(step)) if number > 1 else None
            counts[: len(cells.packed)] += cells.histograms(space.bins, self._bits, of_slots, number)
        if bins == space:
            return counts
        each = counts.reshape(rows, number, space.bins)
        return np.add.reduceat(each, bins.firsts_in(space), axis=2).reshape(rows, number * bins.bins)

    def _reduced(self, held: Cells | Gathered, step: Window) -> Cells:
        """The cells of a step; readings that wait for a word about several of them are reduced now."""
        if isinstance(held, Cells):
            return held
        if self._plan.words is None:
            raise ReadingsError(
                "the state of this job holds readings, and its settings have no word about several rows"
            )
        return held.cells(step, self._plan.grid, self._plan.words, self._plan.space)

    def _repeated(self, held: Cells | Gathered, step: Window) -> int:
        if isinstance(held, Cells):
            return held.readings - int(np.count_nonzero(held.present))
        return held.repeated(step, self._plan.grid)


def _rows(counts: Ints, rows: Ints) -> Ints:
    """Rows of a matrix, zeros where it ends before them."""
    if len(rows) and int(rows.max()) >= len(counts):
        counts = np.concatenate([counts, np.zeros((int(rows.max()) + 1 - len(counts), counts.shape[1]), np.int64)])
    return counts[rows]


class SumTallies(beam.CombineFn):
    """Puts the histograms of a group's series in different shards together; one that comes again changes nothing."""

    def get_accumulator_coder(self) -> PartCoder:
        """No pickle."""
        return PartCoder()

    def create_accumulator(self) -> Tally:
        """Nothing."""
        return Tally({}, 0)

    def add_input(self, mutable_accumulator: Tally, element: Tally) -> Tally:
        """Take one tally in."""
        return together(mutable_accumulator, element)

    def merge_accumulators(self, accumulators: Iterable[Tally]) -> Tally:
        """All in one."""
        return reduce(together, accumulators, Tally({}, 0))

    def extract_output(self, accumulator: Tally) -> Tally:
        """All of them."""
        return accumulator


def together(one: Tally, other: Tally) -> Tally:
    """Two tallies of a key in one: of a shard that both have, the histograms of the first.

    Complete ones are the same, but where windows overlap and readings are late for one of them. A choice by the counts
    would let one slot of a series decide which cells of other series count, and move a histogram by more than 2. Two
    workers may choose differently; the store keeps the first row.
    """
    parts = dict(one.parts)
    for bit, counts in other.parts.items():
        parts.setdefault(bit, counts)
    return Tally(parts, one.needed | other.needed, least_complete(one.completeness, other.completeness))


class GatherTallies(Gather):
    """``(shard, Tally)`` of each pane of a sum to the same of all of them."""

    def is_empty(self, found: Tally) -> bool:
        """Whether no shard had anything to say."""
        return not found.needed

    def is_whole(self, found: Tally, window: Any, pane: Any) -> bool:  # noqa: ARG002 - a tally has the shards that it needs
        """Whether it is the whole sum."""
        return found.whole

    def united(self, one: Tally, other: Tally) -> Tally:
        """The shards of either."""
        return together(one, other)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A block that waits for its bundle's transaction: its slots, shard and true counts, and its place in Beam."""

    window: Window
    shard: int
    counts: Ints
    completeness: str
    place: WindowedValue


class NoisyBlocks:
    """The noisy counts of some blocks, drawn together when the first of them is put on record.

    One draw for all is several times faster than one per block. What is drawn for a block that is on record already is
    dropped.

    A class of slots that a window does not have counts no cell, whatever the readings: its counts are 0, and published
    as 0.
    """

    def __init__(self, plan: Plan, registration: Registration, held: Sequence[Waiting]) -> None:
        self._plan, self._registration = plan, registration
        self._classes, self._grid = classes_of(registration), plan.grid
        self._held = held
        self._noisy: list[Ints] | None = None

    def block(self, number: int, keys: tuple[str, ...]) -> NoisyBlock:
        """One of the blocks."""
        if self._noisy is None:
            self._noisy = self._drawn()
        held, counts = self._held[number], self._noisy[number]
        absent = self._classes.slots_of(self._grid, held.window) == 0
        counts[:, np.repeat(absent, counts.shape[1] // len(absent))] = 0
        return NoisyBlock(keys=keys, totals=held.counts.sum(axis=1), counts=counts, completeness=held.completeness)

    def _drawn(self) -> list[Ints]:
        """The noisy counts of all blocks: one draw for those of each length that has noise of its own."""
        query = self._registration.query
        alike: dict[int, list[int]] = {}
        for number, one in enumerate(self._held):
            alike.setdefault(len(one.window) if query.lengths else 0, []).append(number)
        found: dict[int, Ints] = {}
        for numbers in alike.values():
            counts = [self._held[number].counts for number in numbers]
            mechanism = self._plan.histogram_of(self._registration, len(self._held[numbers[0]].window))
            drawn = mechanism.randomise(np.concatenate(counts))
            found |= zip(numbers, np.split(drawn, np.cumsum([len(one) for one in counts])[:-1]), strict=True)
        return [found[number] for number in range(len(self._held))]


class ReleaseHistograms(LedgerStep):
    """``(shard, Tally)`` of a window to the released rows of record; refusals go to the output ``refused``.

    A tally that the source did not declare complete is dropped: a runner fired the window early, or late data came
    again. The window stays missing until its source is read again.
    """

    def __init__(self, plan: Plan, *, live: bool = False) -> None:
        super().__init__(plan, live=live)
        self._held: list[Waiting] = []
        self._registration: Registration | None = None

    def setup(self) -> None:
        """Make the counters; they belong to the worker."""
        super().setup()
        self._released = Metrics.counter(METRICS, "rows-released")
        self._replayed = Metrics.counter(METRICS, "rows-already-on-record")
        self._windows = Metrics.counter(METRICS, "windows-released")
        self._refused = Metrics.counter(METRICS, "windows-refused")
        self._incomplete = Metrics.counter(METRICS, "blocks-incomplete")
        # Beam's distributions hold integers
        self._loss = Metrics.distribution(METRICS, "loss-micro-epsilon")

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._held = []

    def process(
        self,
        element: tuple[int, Tally],
        record: Registered,
        window: Any = beam.DoFn.WindowParam,
        timestamp: Any = beam.DoFn.TimestampParam,
    ) -> Iterator[Any]:
        """Take one block; blocks are published together when the bundle ends, or when many have gathered."""
        shard, tally = element
        self._record, self._registration = record, newest(self._registration, record.now)
        if not tally.whole:
            self._incomplete.inc(int(bool(tally.needed)))  # an empty pane is none
            return
        place = WindowedValue(None, timestamp, (window,))
        self._held.append(Waiting(slots_of(self._plan.grid, window), shard, tally.counts, tally.completeness, place))
        if len(self._held) >= _BATCH:
            yield from self._flush()

    def finish_bundle(self) -> Any:
        """Publish what is left."""
        yield from self._flush()

    def _flush(self) -> Iterator[Any]:
        from ...store.exports import rows_of  # noqa: PLC0415 - with SQLAlchemy, which a graph is built without

        held, self._held = self._held, []
        if not held or self._registration is None:
            return
        ledger = self._ledger()
        # another process may have charged the windows under a newer roster; in this one no query is made
        registration = self._registration = ledger.charge_windows(self._registration, {one.window for one in held})
        layouts = [layout_of(registration, one.window) for one in held]
        if self._plan.space.gap_state is not None:
            classes, state = classes_of(registration), bins_of(registration).gap_state
            of_window = [classes.slots_of(self._plan.grid, one.window) for one in held]
            held = [_with_missing(*one, state) for one in zip(held, layouts, of_window, strict=True)]
        noisy = NoisyBlocks(self._plan, registration, held)
        drafts = [
            BlockToPublish(one.window, one.shard, partial(noisy.block, i, layout.keys(one.shard)))
            for i, (one, layout) in enumerate(zip(held, layouts, strict=True))
        ]
        records = ledger.publish(registration, drafts)
        for record, place, layout in zip(records, (one.place for one in held), layouts, strict=True):
            if record.block is not None:
                (self._released if record.fresh else self._replayed).inc(len(record.block.keys))
                if record.fresh and record.shard == layout.occupied[0]:  # every window has that one
                    self._windows.inc()
                self._loss.update(round(record.entry.loss_after * 1e6))
                yield place.with_value(rows_of(registration, record))
            elif record.shard == layout.occupied[0]:  # a refusal is the window's, not the shard's
                self._refused.inc()
                batch = pa.RecordBatch.from_pylist([record.entry.to_dict()], schema=LEDGER_SCHEMA)
                yield TaggedOutput(REFUSED, place.with_value(batch))


def _with_missing(held: Waiting, layout: Layout, slots: Ints, state: int | None) -> Waiting:
    """The histograms with the cells of a key's members without a reading, in a bin of theirs or one more."""
    rows, columns = held.counts.shape
    each = held.counts.reshape(rows, len(slots), columns // len(slots))
    missing = np.outer(layout.members(held.shard), slots) - each.sum(axis=2)
    if state is not None and state < each.shape[2]:
        each = each.copy()
        each[:, :, state] += missing
        return replace(held, counts=each.reshape(rows, columns))
    whole = np.concatenate([each, missing[:, :, np.newaxis]], axis=2)
    return replace(held, counts=whole.reshape(rows, columns + len(slots)))
