"""Encode: readings to blocks of packed cells, one block per step of the windows and shard of the series.

The cells of a bundle are gathered before they are emitted, which is the collecting step's own rule applied early: a
runner without combiner lifting then moves cells instead of readings, and one with it has little left to do.

Only the blocks become Beam elements. Sliding windows are made of steps, and a block lies in exactly one step, so Beam
can put it into every window that contains the step and no batch straddles a boundary.
"""

from __future__ import annotations

import time
from collections import Counter, deque
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

from ...schemas.readings import RejectReason
from ...store.specs import Registration
from ..common.batches import METRICS, OUTSIDE, READINGS, counter_name, decoded_reject_batch
from ..completeness import MILLISECOND_US, Arrived, FromSource, Punctuation, WindowEnd, window_end_of, window_ends_by
from ..plan import Plan
from ..readings.slots import Covering
from ..register import LedgerStep
from ..registration import Registered
from .cells import ABSENT, Cells, Ints, Narrow, narrowed
from .encoder import EncodedBatch, Encoder, Given
from .gathered import Gathered
from .rosters import Members, newest

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


@dataclass(frozen=True, slots=True)
class ReadingBlock:
    """Readings of one shard that may move slots of one step, where a word is about several rows of a series."""

    step: int
    readings: Covering  # one of each series and begin, in order; ``codes`` are rows of the shard
    count: int  # how many came that begin in the step


def declared(plan: Plan, registration: Registration, punctuation: Punctuation) -> Iterator[WindowedValue]:
    """The declarations of a punctuation: of every shard, as a series may have joined that this worker does not know."""
    schedule = registration.query.schedule
    for end in window_ends_by(punctuation, schedule, plan.grid):
        for shard in range(registration.query.shards):
            yield window_end_of(plan.grid, schedule, shard, end)


class DeclareWindows(beam.DoFn):
    """Punctuations of a source without readings to ``(shard, WindowEnd)``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, punctuation: Punctuation, record: Registered) -> Iterator[Any]:
        """Emit a declaration for every window and shard."""
        return declared(self._plan, record.now, punctuation)


class EncodeCells(LedgerStep):
    """Readings to ``(shard, CellBlock)`` in the step, and punctuation to ``(shard, WindowEnd)``.

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
    """

    def __init__(self, plan: Plan, *, live: bool = False, sight: bool = False) -> None:
        super().__init__(plan, live=live)
        self._sight = sight
        self._tally = Counter[str]()
        self._unwanted = set[str]()
        self._looked: float | None = None
        self._encoder: Encoder | None = None
        self._ahead: Ahead[Given, EncodedBatch] | None = None
        self._steps: dict[int, Cells | Gathered] = {}
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
        self._steps, self._held, self._tally = {}, 0, Counter()
        if self._ahead is not None:
            self._ahead.forget()

    def process(
        self, element: pa.RecordBatch | FromSource, record: Registered, timestamp: Any = beam.DoFn.TimestampParam
    ) -> Iterator[Any]:
        """Encode one batch, or pass declarations on."""
        self._record = record
        known = None if self._encoder is None else self._encoder.registration
        used = newest(known, record.now)
        if self._encoder is None or used is not known:
            yield from self._turn_to(used)
        encoder = self._current()
        if self._ahead is None:
            self._ahead = Ahead(lambda given: self._current().encode(given))
        if isinstance(element, Punctuation):
            yield from declared(self._plan, encoder.registration, element)
            return
        late = (element.horizon_us, element.on_record_us) if isinstance(element, Arrived) else (None, None)
        batch = element.batch if isinstance(element, Arrived) else element
        for part in encoder.parts(batch):
            for encoded in self._ahead.give(Given(part, timestamp, *late)):
                yield from self._gather(encoded)

    def finish_bundle(self) -> Any:
        """Emit the cells of the bundle."""
        if self._ahead is not None:
            for encoded in self._ahead.rest():
                yield from self._gather(encoded)
        yield from self._flush()
        if not self._live:
            yield TaggedOutput(TALLIES, WindowedValue(dict(self._tally), MIN_TIMESTAMP, (GlobalWindow(),)))

    def _turn_to(self, registration: Registration) -> Iterator[Any]:
        """Emit what is held under the old numbers, and encode with those of another registration from now on."""
        if self._steps:
            yield from self._flush()
        # series that join at first sight are on record before their readings are encoded
        seen = registration if self._sight else registration.as_begun(self._known().begun)
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
            found = self._ledger().join(held, wanted, self._plan.most_series)
            if len(self._unwanted) < self._plan.most_series:
                # those of another domain stay out, and the store is not called for them again
                self._unwanted |= {name for name, _ in unknown_series if name not in found.query.roster.groups_of}
            return found
        if self._live and RejectReason.NOT_IN_ROSTER in encoded.rejects:
            now = time.monotonic()
            if self._looked is None or now - self._looked > _LOOK_S:
                self._looked = now
                return self._ledger().current(held)
        return held

    def _gather(self, encoded: EncodedBatch) -> Iterator[Any]:
        """Put a batch into the cells of its steps, and emit them when too many are held."""
        encoder = self._current()
        if encoded.encoder is not encoder:  # encoded ahead, under the old numbers
            encoded = encoder.encode(encoded.given)
        rosters = self._rosters(encoded)
        if rosters is not encoder.registration:
            yield from self._turn_to(rosters)
            encoded = self._current().encode(encoded.given)
        self._readings.inc(encoded.readings)
        self._outside.inc(encoded.outside)
        self._settled.inc(encoded.settled)
        rejects = {counter_name(reason): count for reason, count in encoded.rejects.items()}
        self._tally.update({READINGS: encoded.readings, OUTSIDE: encoded.outside, **rejects})
        yield from self._put(encoded)
        for name, count in rejects.items():
            Metrics.counter(METRICS, name).inc(count)
        if rejects:
            rejected = decoded_reject_batch(encoded.rejects)
            yield TaggedOutput(REJECTED, WindowedValue(rejected, encoded.given.at, (GlobalWindow(),)))

    def _put(self, encoded: EncodedBatch) -> Iterator[Any]:
        encoder = self._current()
        rows = len(encoder.members.names)
        for step, index, packed in encoded.parts:
            if step not in self._steps:
                width = len(encoder.schedule.step(step))
                if self._held + rows * width > _HELD_CELLS:
                    yield from self._flush()
                if rows * width > _HELD_CELLS:  # not even one step of the whole roster can be held
                    yield from self._blocks(step, index, packed, len(index))
                    continue
                self._steps[step] = Cells.empty(rows, width)
                self._held += rows * width
            cells: Any = self._steps[step]
            cells.put(index, packed)
        for step, readings, count in encoded.reaching:
            if self._held + _READING_CELLS * len(readings.codes) > _HELD_CELLS:
                yield from self._flush()
            self._held += _READING_CELLS * len(readings.codes)
            gathered: Any = self._steps.setdefault(step, Gathered())
            gathered.put(readings, count)

    # no property: Beam looks at every attribute when the graph is built
    def _current(self) -> Encoder:
        if self._encoder is None:
            raise RuntimeError("there are no cells before the first batch")
        return self._encoder

    def _flush(self) -> Iterator[WindowedValue]:
        held, self._steps, self._held = self._steps, {}, 0
        for step in list(held):
            cells = held.pop(step)  # the runner keeps what is emitted
            if isinstance(cells, Gathered):
                yield from self._reading_blocks(step, cells)
                continue
            flat = cells.packed.reshape(-1)
            present = flat != ABSENT
            count = int(np.count_nonzero(present))
            if count > _DENSE * len(flat):
                yield from self._whole_blocks(step, flat, cells.readings - count)
            else:
                index = np.flatnonzero(present)
                yield from self._blocks(step, index, flat[index], cells.readings)

    def _whole_blocks(self, step: int, flat: Narrow, surplus: int) -> Iterator[WindowedValue]:
        members, width = self._current().members, len(self._current().schedule.step(step))
        for shard in members.occupied:
            rows = members.shard_rows(shard)
            part = flat[rows.start * width : rows.stop * width]
            count = int(np.count_nonzero(part != ABSENT)) + surplus
            surplus = 0
            yield self._placed(shard, CellBlock(step, len(rows), width, None, narrowed(part), count))

    def _blocks(self, step: int, index: Ints, packed: Narrow, readings: int) -> Iterator[WindowedValue]:
        """One block per shard of the readings of a step; ``index`` is number * width + column."""
        members, width = self._current().members, len(self._current().schedule.step(step))
        # what is beyond one reading a cell is tallied with the first shard that has any: the tally is the job's
        surplus = readings - len(index)
        edges = members.first * width
        if len(index) and np.any(index[1:] < index[:-1]):
            order = np.argsort(index, kind="stable")
            index, packed = index[order], packed[order]
        for shard, part in _cut(index, edges):
            rows = len(members.shard_rows(shard))
            cells: npt.NDArray[Any] = index[part] - edges[shard]
            if rows * width <= np.iinfo(np.int32).max:
                cells = cells.astype(np.int32)
            count = len(cells) + surplus
            yield self._placed(shard, CellBlock(step, rows, width, cells, narrowed(packed[part]), count))
            surplus = 0

    def _reading_blocks(self, step: int, gathered: Gathered) -> Iterator[WindowedValue]:
        """The same of readings that may move the slots of a step."""
        encoder = self._current()
        readings, window = gathered.united(), encoder.schedule.step(step)
        surplus = gathered.repeated(window, self._plan.grid)
        slots = self._plan.grid.slots_of(readings.begin_us)
        begins = (slots >= window.start) & (slots < window.stop)
        for shard, part in _cut(readings.codes, encoder.members.first):
            mine = readings.take(np.arange(part.start, part.stop))
            mine = replace(mine, codes=mine.codes - encoder.members.first[shard])
            count, surplus = int(np.count_nonzero(begins[part])) + surplus, 0
            yield self._placed(shard, ReadingBlock(step, mine, count))

    def _placed(self, shard: int, block: CellBlock | ReadingBlock) -> WindowedValue:
        """A block with its key, just before the end of its step: no earlier than a live source's watermark can be."""
        stop = self._current().schedule.step(block.step).stop
        instant = self._plan.grid.time_of(stop) - MILLISECOND_US
        return WindowedValue((shard, block), Timestamp(micros=instant), (GlobalWindow(),))


def _cut(ordered: Ints, edges: Ints) -> Iterator[tuple[int, slice]]:
    """The shards that have any of some ordered numbers, and where theirs lie; shard n has those from edge n on."""
    ends = np.searchsorted(ordered, edges)
    for shard in np.flatnonzero(np.diff(ends)).tolist():
        yield shard, slice(int(ends[shard]), int(ends[shard + 1]))


class ScheduledWindowEnds(beam.DoFn):
    """Declares every window of a bounded schedule complete: a bounded source is read to its end.

    Which windows are published thus depends on the schedule and the roster alone (theory section 7, item 4).
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, _seed: object, record: Registered) -> Iterator[Any]:
        """Emit a declaration for every window and shard with series."""
        schedule, members = record.now.query.schedule, Members.of(record.now)
        for window in schedule.windows():
            for shard in members.occupied:
                yield window_end_of(self._plan.grid, schedule, shard, WindowEnd(window.start))
