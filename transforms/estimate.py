"""Estimate: transition counts of every series, from batches of readings.

A transition is counted between the states of two adjacent slots of one series; a gap cuts the chain. With the missing
state the slots without a reading, between a series' first and last one, are in that state. Cells are filled by the
same rule as for releases (see :mod:`.cells`), so shuffled or doubled input gives the same counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..privacy.estimation import TransitionCounts
from ..schemas.digests import stable_hash
from ..schemas.slots import SlotGrid
from ..schemas.states import StateSpace
from .batches import reading_columns
from .cells import pack, state_bits

Ints = npt.NDArray[np.int64]

#: A series' pieces are put together when this many have gathered, so that duplicates do not pile up.
_PIECES = 64


@dataclass(frozen=True, slots=True)
class Trace:
    """Packed readings of one series: slots strictly increasing, one packed reading each, both of shape (n,)."""

    slots: Ints
    packed: Ints

    @classmethod
    def of(cls, slots: Ints, packed: Ints) -> Trace:
        """Sort readings and keep the largest of every slot."""
        order = np.lexsort((packed, slots))
        slots, packed = slots[order], packed[order]
        last = np.append(slots[1:] != slots[:-1], True) if len(slots) else np.empty(0, dtype=bool)
        return cls(slots[last], packed[last])

    @classmethod
    def join(cls, pieces: Iterable[Trace]) -> Trace:
        """Put pieces of one series together."""
        gathered = list(pieces)
        return cls.of(np.concatenate([p.slots for p in gathered]), np.concatenate([p.packed for p in gathered]))


@dataclass(slots=True)
class Traces:
    """The pieces of every series so far; it belongs to one worker and is changed in place."""

    pieces: dict[str, list[Trace]] = field(default_factory=dict)

    def add(self, series: str, piece: Trace) -> None:
        """Take one piece in."""
        held = self.pieces.setdefault(series, [])
        held.append(piece)
        if len(held) >= _PIECES:
            self.pieces[series] = [Trace.join(held)]


class SplitSeries(beam.DoFn):
    """Record batches of readings to ``(shard, {series: Trace})``, in numpy."""

    def __init__(self, grid: SlotGrid, space: StateSpace, shards: int, slots: tuple[int | None, int | None]) -> None:
        self._grid = grid
        self._space = space
        self._shards = shards
        self._slots = slots

    def process(self, batch: pa.RecordBatch) -> Iterator[tuple[int, dict[str, Trace]]]:
        """Split one batch by series."""
        columns = reading_columns(batch)
        names, codes, times, values = columns.names.to_pylist(), columns.series, columns.times, columns.values
        slots = self._grid.slots_of(times)
        keep = columns.good
        first, stop = self._slots
        if first is not None:
            keep &= slots >= first
        if stop is not None:
            keep &= slots < stop
        codes, values, times, slots = codes[keep], values[keep], times[keep], slots[keep]
        packed = pack(times - self._grid.time_of(slots), self._space.encode(values), state_bits(self._space.size))
        order = np.argsort(codes, kind="stable")
        slots, packed = slots[order], packed[order]
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        shards: dict[int, dict[str, Trace]] = {}
        begin = 0
        for name, end in zip(names, ends.tolist(), strict=True):
            if end > begin:
                piece = Trace.of(slots[begin:end], packed[begin:end])
                shards.setdefault(stable_hash(name) % self._shards, {})[name] = piece
            begin = end
        yield from shards.items()


class CountTransitions(beam.CombineFn):
    """``{series: Trace}`` elements to :class:`TransitionCounts`."""

    def __init__(self, space: StateSpace) -> None:
        super().__init__()
        self._space = space

    def create_accumulator(self) -> Traces:
        """No reading yet."""
        return Traces()

    def add_input(self, mutable_accumulator: Traces, element: dict[str, Trace]) -> Traces:
        """Take the pieces of a batch in."""
        for series, piece in element.items():
            mutable_accumulator.add(series, piece)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Traces]) -> Traces:
        """Unite the pieces of several workers."""
        merged = Traces()
        for one in accumulators:
            for series, pieces in one.pieces.items():
                for piece in pieces:
                    merged.add(series, piece)
        return merged

    def compact(self, accumulator: Traces) -> Traces:
        """Join the pieces before they travel."""
        return Traces({series: [Trace.join(pieces)] for series, pieces in accumulator.pieces.items()})

    def extract_output(self, accumulator: Traces) -> TransitionCounts:
        """Count between adjacent slots."""
        states, bits = self._space.size, state_bits(self._space.size)
        names = tuple(sorted(accumulator.pieces))
        counts = np.zeros((len(names), states, states), dtype=np.int64)
        visits = np.zeros((len(names), states), dtype=np.int64)
        for i, name in enumerate(names):
            trace = Trace.join(accumulator.pieces[name])
            slots, path = trace.slots, trace.packed & ((1 << bits) - 1)
            if self._space.missing_state and len(slots):
                dense = np.full(int(slots[-1] - slots[0]) + 1, states - 1, dtype=np.int64)
                dense[slots - slots[0]] = path
                slots, path = np.arange(len(dense), dtype=np.int64), dense
            visits[i] = np.bincount(path, minlength=states)
            adjacent = np.flatnonzero(np.diff(slots) == 1)
            pairs = path[adjacent] * states + path[adjacent + 1]
            counts[i] = np.bincount(pairs, minlength=states * states).reshape(states, states)
        return TransitionCounts(series=names, counts=counts, visits=visits)


class EstimateTransitions(beam.PTransform[Any, Any]):
    """Readings to one :class:`TransitionCounts` with the counts of every series.

    The counts are exact and secret. A model made of them protects only series that were not among them (theory section
    7, item 5).

    Args:
        grid: the slots.
        space: the states.
        start: first slot to use; all if left out.
        stop: first slot not to use.
        shards: parallel parts.
    """

    def __init__(
        self,
        grid: SlotGrid,
        space: StateSpace,
        *,
        start: int | None = None,
        stop: int | None = None,
        shards: int = 8,
    ) -> None:
        super().__init__()
        self._grid = grid
        self._space = space
        self._slots = (start, stop)
        self._shards = shards

    def expand(self, input_or_inputs: Any) -> Any:
        """A ``PCollection`` of one element."""
        space = self._space
        return (
            input_or_inputs
            | "Split" >> beam.ParDo(SplitSeries(self._grid, space, self._shards, self._slots))
            | "Count" >> beam.CombinePerKey(CountTransitions(space))
            | "Values" >> beam.Values()
            | "Unite" >> beam.CombineGlobally(_Unite(TransitionCounts.empty(space.size)))
        )


class _Unite(beam.CombineFn):
    """The counts of all shards in one value."""

    def __init__(self, nothing: TransitionCounts) -> None:
        super().__init__()
        self._nothing = nothing

    def create_accumulator(self) -> TransitionCounts:
        return self._nothing

    def add_input(self, mutable_accumulator: TransitionCounts, element: TransitionCounts) -> TransitionCounts:
        return mutable_accumulator.merge(element)

    def merge_accumulators(self, accumulators: Iterable[TransitionCounts]) -> TransitionCounts:
        return TransitionCounts.merged([self._nothing, *accumulators])

    def extract_output(self, accumulator: TransitionCounts) -> TransitionCounts:
        return accumulator
