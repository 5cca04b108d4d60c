"""Estimate: transition counts of every series, from batches of readings.

A transition is counted between the states of two adjacent slots of one series; a gap cuts the chain. With the missing
state the slots without a reading, between a series' first and last one, are in that state. Cells are filled by the
same rule as for releases (see :mod:`.cells`), so shuffled or doubled input gives the same counts.

*Counts that are to be released with noise.* Whose counts there are, and with the missing state which slots are
counted, must then depend on nothing secret. So the series can be given, from a public roster: each of them has counts,
a silent one too, and no other. With the missing state, and with both ends of the window given as well, every series is
counted in every slot of it (``privacy.estimation.confidence`` proves why less would not do).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from ...privacy.estimation.per_series import Path
from ...privacy.estimation.transition_counts import TransitionCounts
from ...schemas.digests import stable_hash
from ...schemas.roster import check_number
from ...schemas.slots import SlotGrid
from ...schemas.states import StateSpace
from ..common.batches import Ints, reading_columns
from .cells import latest, pack, state_bits

#: Series, and slots of one, up to which their states are kept.
MOST_PATHS = 200
MOST_SLOTS = 2_000_000

#: A series' traces are put together when this many have gathered, so that duplicates do not pile up.
_PIECES = 64


@dataclass(frozen=True, slots=True)
class _Trace:
    """Packed readings of one series: slots strictly increasing, one packed reading each, both of shape (n,)."""

    slots: Ints
    packed: Ints

    @classmethod
    def join(cls, traces: Iterable[_Trace]) -> _Trace:
        gathered = list(traces)
        slots = np.concatenate([one.slots for one in gathered])
        return cls(*latest(slots, np.concatenate([one.packed for one in gathered])))


@dataclass(slots=True)
class _Traces:
    """The traces of every series so far; it belongs to one worker and is changed in place."""

    traces: dict[str, list[_Trace]] = field(default_factory=dict)

    def add(self, series: str, trace: _Trace) -> None:
        held = self.traces.setdefault(series, [])
        held.append(trace)
        if len(held) >= _PIECES:
            self.traces[series] = [_Trace.join(held)]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is counted."""

    start: int | None = None
    stop: int | None = None
    series: frozenset[str] | None = None

    @property
    def window(self) -> tuple[int, int] | None:
        """The slots in which every series is counted, where all of this is public."""
        if self.start is None or self.stop is None or self.series is None:
            return None
        return self.start, self.stop


#: Shards into which the series are cut.
_SHARDS = 8

#: Series that a shard may have beyond twice its part of them.
_SPARE = 64


class _SplitSeries(beam.DoFn):
    """Record batches of readings to ``(shard, {series: _Trace})``, in numpy."""

    def __init__(self, grid: SlotGrid, space: StateSpace, shards: int, scope: _Scope) -> None:
        self._grid = grid
        self._space = space
        self._shards = shards
        self._scope = scope

    def process(self, batch: pa.RecordBatch) -> Iterator[tuple[int, dict[str, _Trace]]]:
        columns = reading_columns(batch)
        names, codes, times, values = columns.names.to_pylist(), columns.series, columns.times, columns.values
        slots = self._grid.slots_of(times)
        keep = columns.good & self._space.are_states(columns.values)
        scope = self._scope
        if scope.start is not None:
            keep &= slots >= scope.start
        if scope.stop is not None:
            keep &= slots < scope.stop
        if scope.series is not None:
            # one more, for a batch without any name
            keep &= np.array([*(name in scope.series for name in names), False])[codes]
        codes, values, times, slots = codes[keep], values[keep], times[keep], slots[keep]
        packed = pack(times - self._grid.time_of(slots), self._space.encode(values), state_bits(self._space.size))
        order = np.argsort(codes, kind="stable")
        slots, packed = slots[order], packed[order]
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        shards: dict[int, dict[str, _Trace]] = {}
        begin = 0
        for name, end in zip(names, ends.tolist(), strict=True):
            if end > begin:
                mine = shards.setdefault(stable_hash(name) % self._shards, {})
                trace = _Trace(*latest(slots[begin:end], packed[begin:end]))
                mine[name] = _Trace.join([mine[name], trace]) if name in mine else trace
            begin = end
        yield from shards.items()


class _CountTransitions(beam.CombineFn):
    """``{series: _Trace}`` elements to :class:`TransitionCounts`."""

    def __init__(self, space: StateSpace, scope: _Scope, most: int | None = None, shards: int = 1) -> None:
        super().__init__()
        self._space = space
        self._scope = scope
        self._most = most
        # a shard has its part of them by the hash of their names, give or take: twice as many are too many in all
        self._room = None if most is None else 2 * most // shards + _SPARE

    def create_accumulator(self) -> _Traces:
        return _Traces()

    def add_input(self, mutable_accumulator: _Traces, element: dict[str, _Trace]) -> _Traces:
        for series, trace in element.items():
            mutable_accumulator.add(series, trace)
        _check_number(mutable_accumulator.traces, self._room, self._most)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[_Traces]) -> _Traces:
        merged = _Traces()
        for one in accumulators:
            for series, traces in one.traces.items():
                for trace in traces:
                    merged.add(series, trace)
            _check_number(merged.traces, self._room, self._most)
        return merged

    def compact(self, accumulator: _Traces) -> _Traces:
        return _Traces({series: [_Trace.join(traces)] for series, traces in accumulator.traces.items()})

    def extract_output(self, accumulator: _Traces) -> TransitionCounts:
        states = self._space.size
        names = tuple(sorted(accumulator.traces))
        counts = np.zeros((len(names), states, states), dtype=np.int64)
        visits = np.zeros((len(names), states), dtype=np.int64)
        for i, name in enumerate(names):
            starts, lengths, path = self._runs_of(accumulator.traces[name])
            adjacent = np.flatnonzero(starts[1:] == (starts + lengths)[:-1])
            pairs = path[adjacent] * states + path[adjacent + 1]
            counts[i] = np.bincount(pairs, minlength=states * states).reshape(states, states)
            np.add.at(visits[i], path, lengths)
            np.add.at(counts[i], (path, path), lengths - 1)
        return TransitionCounts(series=names, counts=counts, visits=visits)

    def _runs_of(self, traces: list[_Trace]) -> tuple[Ints, Ints, Ints]:
        """The runs of one state of a series: their first slots, strictly increasing, their lengths and their states.

        A reading is a run of one slot, and a gap one run however long it is: a single wrong stamp may be years away.
        """
        trace, states, window = _Trace.join(traces), self._space.size, self._scope.window
        slots, path = trace.slots, trace.packed & ((1 << state_bits(states)) - 1)
        gap = self._space.gap_state
        if gap is None or not len(slots):
            return slots, np.ones_like(slots), path
        first, stop = (int(slots[0]), int(slots[-1]) + 1) if window is None else window
        # a gap before each reading, and one behind the last
        starts, lengths, found = np.empty((3, 2 * len(slots) + 1), dtype=np.int64)
        starts[0], starts[1::2], starts[2::2] = first, slots, slots + 1
        lengths[1::2], lengths[::2] = 1, np.append(slots, stop) - starts[::2]
        found[1::2], found[::2] = path, gap
        kept = lengths > 0
        return starts[kept], lengths[kept], found[kept]


class _KeepPaths(_CountTransitions):
    """``{series: _Trace}`` elements to ``{series: Path}``, or to None where that is too much to keep."""

    def add_input(self, mutable_accumulator: _Traces, element: dict[str, _Trace]) -> _Traces:
        if len(mutable_accumulator.traces) > MOST_PATHS:
            return mutable_accumulator
        return _thinned(super().add_input(mutable_accumulator, element))

    def compact(self, accumulator: _Traces) -> _Traces:
        return accumulator if len(accumulator.traces) > MOST_PATHS else super().compact(accumulator)

    def merge_accumulators(self, accumulators: Iterable[_Traces]) -> _Traces:
        merged = _Traces()
        for one in accumulators:
            for series, traces in one.traces.items():
                merged.traces.setdefault(series, []).extend(traces)
            merged = _thinned(merged)
        return merged

    def extract_output(self, accumulator: _Traces) -> dict[str, Path] | None:  # pyright: ignore[reportIncompatibleMethodOverride] - another result
        if len(accumulator.traces) > MOST_PATHS:
            return None
        found: dict[str, Path] = {}
        for name, traces in accumulator.traces.items():
            starts, lengths, states = self._runs_of(traces)
            first, stop = (int(starts[0]), int(starts[-1] + lengths[-1])) if len(starts) else (0, 0)
            if stop - first > MOST_SLOTS:
                return None
            # a run of several slots is a gap, which is a state where the missing state is one
            gap = self._space.gap_state
            path = np.full(stop - first, -1 if gap is None else gap, dtype=np.int8)
            path[starts - first] = states
            found[name] = Path(first, path)
        return found


def _thinned(held: _Traces) -> _Traces:
    """Only the names, where there are too many."""
    if len(held.traces) > MOST_PATHS:
        held.traces = {name: [] for name in held.traces}
    return held


class SeriesPaths(beam.PTransform[Any, Any]):
    """Readings to the states of every series, slot by slot: ``{series: Path}``, exact and secret.

    None in its place where there are more than ``MOST_PATHS`` series, or one of more than ``MOST_SLOTS`` slots.
    """

    def __init__(self, grid: SlotGrid, space: StateSpace, *, start: int | None = None, stop: int | None = None) -> None:
        super().__init__()
        if space.size > np.iinfo(np.int8).max:
            raise ValueError(f"space has {space.size} states, but may have at most 127: merge bins")
        self._grid, self._space, self._scope = grid, space, _Scope(start, stop)

    def expand(self, input_or_inputs: Any) -> Any:
        """A ``PCollection`` of one element."""
        return (
            input_or_inputs
            | "Split" >> beam.ParDo(_SplitSeries(self._grid, self._space, _SHARDS, self._scope))
            | "Keep" >> beam.CombinePerKey(_KeepPaths(self._space, self._scope))
            | "Values" >> beam.Values()
            | "Unite" >> beam.CombineGlobally(_united)
        )


def _united(parts: Iterable[dict[str, Path] | None]) -> dict[str, Path] | None:
    together: dict[str, Path] = {}
    for part in parts:
        if part is None or len(together) + len(part) > MOST_PATHS:
            return None
        together.update(part)
    return together


class EstimateTransitions(beam.PTransform[Any, Any]):
    """Readings to one :class:`TransitionCounts` with the counts of every series.

    The counts are exact and secret. A model made of them protects only series that were not among them (theory section
    7, item 5), unless they are released with noise and charged first.

    Args:
        grid: the slots.
        space: the states.
        start: first slot to use; all if left out.
        stop: first slot not to use.
        series: names of the series to count; readings of others pass over. Each of them is in the result, with counts
            of 0 where it has no reading; with the missing state and both slots given, it is counted in that state in
            every slot without a reading. All series that turn up, and no others, if left out.
        shards: parallel parts.
        most: how many series there may be; any number if left out. More end the pipeline with a ``RosterError``.

    Raises:
        TypeError: ``series`` is one text.
        ValueError: the slots are no window.
    """

    def __init__(
        self,
        grid: SlotGrid,
        space: StateSpace,
        *,
        start: int | None = None,
        stop: int | None = None,
        series: Sequence[str] | None = None,
        shards: int = _SHARDS,
        most: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(series, str):
            raise TypeError("series is one text, and must be a list of names: put it in a list")
        scope = _Scope(start, stop, None if series is None else frozenset(series))
        if scope.window is not None and scope.window[0] >= scope.window[1]:
            raise ValueError(f"stop is {stop}, and must be above start, {start}: give the slot after the last")
        self._grid = grid
        self._space = space
        self._scope = scope
        self._shards = shards
        self._most = most

    def expand(self, input_or_inputs: Any) -> Any:
        """A ``PCollection`` of one element."""
        space, scope = self._space, self._scope
        return (
            input_or_inputs
            | "Split" >> beam.ParDo(_SplitSeries(self._grid, space, self._shards, scope))
            | "Count" >> beam.CombinePerKey(_CountTransitions(space, scope, self._most, self._shards))
            | "Values" >> beam.Values()
            | "Unite" >> beam.CombineGlobally(_Unite(_silent(space, scope), self._most))
        )


def _silent(space: StateSpace, scope: _Scope) -> TransitionCounts:
    """The counts if there is no reading at all."""
    names = tuple(sorted(scope.series or ()))
    counts = np.zeros((len(names), space.size, space.size), dtype=np.int64)
    visits = np.zeros((len(names), space.size), dtype=np.int64)
    if (gap := space.gap_state) is not None and scope.window is not None:
        length = scope.window[1] - scope.window[0]
        counts[:, gap, gap], visits[:, gap] = length - 1, length
    return TransitionCounts(names, counts, visits)


def _check_number(series: Collection[str], room: int | None, most: int | None) -> None:
    if room is not None and most is not None and len(series) > room:
        check_number(max(len(series), most + 1), most, "source, whose series are counted")


class _Unite(beam.CombineFn):
    """The counts of all shards in one value; series that none of them has are as in ``silent``."""

    def __init__(self, silent: TransitionCounts, most: int | None) -> None:
        super().__init__()
        self._most = most
        self._silent = silent
        self._nothing = TransitionCounts.empty(silent.states)

    def create_accumulator(self) -> TransitionCounts:
        return self._nothing

    def add_input(self, mutable_accumulator: TransitionCounts, element: TransitionCounts) -> TransitionCounts:
        _check_number(mutable_accumulator.series + element.series, self._most, self._most)
        return TransitionCounts.merged((mutable_accumulator, element))

    def merge_accumulators(self, accumulators: Iterable[TransitionCounts]) -> TransitionCounts:
        return TransitionCounts.merged([self._nothing, *accumulators])

    def extract_output(self, accumulator: TransitionCounts) -> TransitionCounts:
        unheard = set(self._silent.series).difference(accumulator.series)
        return TransitionCounts.merged((accumulator, self._silent.subset(unheard)))
