"""Collect: one value per cell, for every shard and window, whatever the order and however often readings come.

Keyed by shard in Beam windows. The accumulator holds the cells of each step of the window; adding and merging take
maxima (see :mod:`.cells`), so lifting, retries and reordering cannot change the outcome. Beside them it holds which
partitions of the source declared the window complete (see :mod:`..completeness.punctuation`), and the sequence numbers
of the batches whose cells it has (see :mod:`..completeness.sequence_numbers`); sets, so these are idempotent too.
:mod:`.panes` says what of it may be published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import apache_beam as beam

from ...schemas.releases import LIVE, REPLAYED, SILENT, UNAVAILABLE
from ..completeness.punctuation import WindowEnd
from ..completeness.sequence_numbers import Range, covers, united
from .cells import Cells
from .encode import CellBlock

#: Name of an epoch of sequence numbers, and (step, how many there are) of a window.
Due = tuple[int, tuple[tuple[int, int], ...]]


@dataclass(slots=True)
class Collected:
    """What came of one shard in one window.

    Attributes:
        steps: the cells of each step that had readings.
        closed: first slot of a window -> bits of the parts that declared it complete.
        parts: how many parts there are.
        replayed: first slots of windows that some part read again from its start.
        lost: first slots of windows of which the source may have lost readings.
        silent: first slots of windows that were closed while a source was silent.
        due: (first slot of a window, part) -> the sequence numbers that the part gave in it; of a part that was read
            again from its start there are several.
        tickets: (step, part, run) -> the sequence numbers that came with the cells of the step.
    """

    steps: dict[int, Cells] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    parts: int = 1
    replayed: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    due: dict[tuple[int, int], set[Due]] = field(default_factory=dict)
    tickets: dict[tuple[int, int, int], tuple[Range, ...]] = field(default_factory=dict)

    def close(self, start: int, parts_bits: int) -> None:
        """Note that parts declared the window that starts at a slot complete."""
        self.closed[start] = self.closed.get(start, 0) | parts_bits

    def declare(self, closing: WindowEnd) -> None:
        """Note what a part says of a window."""
        self.parts = closing.parts
        self.close(closing.start, 1 << closing.part)
        if closing.replayed:
            self.replayed.add(closing.start)
        if closing.lost:
            self.lost.add(closing.start)
        if closing.silent:
            self.silent.add(closing.start)
        if closing.sent is not None:
            self.due.setdefault((closing.start, closing.part), set()).add((closing.run, closing.sent))

    def completeness(self, start: int) -> str:
        """How the source was read for the window that starts at a slot, as rows say it."""
        if start in self.lost:
            return UNAVAILABLE
        if start in self.silent:
            return SILENT
        return REPLAYED if start in self.replayed else LIVE

    def complete(self, start: int) -> bool:
        """Whether every part declared the window that starts at a slot complete."""
        return self.closed.get(start, 0) == (1 << self.parts) - 1

    def ticketed(self, start: int) -> bool:
        """Whether every part numbered its batches for the window that starts at a slot."""
        return all((start, part) in self.due for part in range(self.parts))

    def whole(self, start: int) -> bool:
        """Whether it is complete, and everything is here that the parts with sequence numbers sent."""
        return self.complete(start) and all(
            any(self._holds(part, run, sent) for run, sent in due)
            for part in range(self.parts)
            if (due := self.due.get((start, part))) is not None
        )

    def _holds(self, part: int, run: int, sent: tuple[tuple[int, int], ...]) -> bool:
        return all(covers(self.tickets.get((step, part, run), ()), count) for step, count in sent)

    def admit(self, step: int, part: int, run: int, ranges: Iterable[Range]) -> None:
        """Note sequence numbers that came."""
        key = (step, part, run)
        self.tickets[key] = united((*self.tickets.get(key, ()), *ranges))

    def take(self, other: Collected) -> None:
        """Take everything but the cells of another one in."""
        self.parts = max(self.parts, other.parts)
        self.replayed |= other.replayed
        self.lost |= other.lost
        self.silent |= other.silent
        for start, bits in other.closed.items():
            self.close(start, bits)
        for place, due in other.due.items():
            self.due[place] = self.due.get(place, set()) | due
        for (step, part, run), ranges in other.tickets.items():
            self.admit(step, part, run, ranges)


class CollectCells(beam.CombineFn):
    """``CellBlock`` and ``WindowEnd`` elements to one :class:`Collected`."""

    def create_accumulator(self) -> Collected:
        """Nothing yet."""
        return Collected()

    def add_input(self, mutable_accumulator: Collected, element: CellBlock | WindowEnd) -> Collected:
        """Put a block's readings into the cells of its step, or note a declaration."""
        if isinstance(element, WindowEnd):
            mutable_accumulator.declare(element)
            return mutable_accumulator
        for part, run, ranges in element.tickets:
            mutable_accumulator.admit(element.step, part, run, ranges)
        if not len(element.packed):
            return mutable_accumulator
        steps = mutable_accumulator.steps
        cells = steps.get(element.step)
        if element.index is None:
            whole = Cells(element.packed.reshape(element.rows, element.width), element.readings, owned=False)
            steps[element.step] = whole if cells is None else _merged(cells, whole)
            return mutable_accumulator
        if cells is None:
            cells = steps[element.step] = Cells.empty(element.rows, element.width)
        elif len(cells.packed) < element.rows:
            cells = steps[element.step] = cells.taller(element.rows)
        cells.put(element.index, element.packed)
        cells.readings += element.readings - len(element.packed)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Collected]) -> Collected:
        """Take maxima step by step, and unite the declarations."""
        merged = Collected()
        for one in accumulators:
            merged.take(one)
            for step, cells in one.steps.items():
                merged.steps[step] = _merged(merged.steps[step], cells) if step in merged.steps else cells.shared()
        return merged

    def extract_output(self, accumulator: Collected) -> Collected:
        """What was collected."""
        return accumulator


def both(one: Collected, other: Collected) -> Collected:
    """What came of a shard in a window in two panes, of which either may repeat what the other has.

    How many readings went into a cell then nobody knows; the larger number is taken.
    """
    found = Collected()
    found.take(one)
    found.take(other)
    for step in one.steps.keys() | other.steps.keys():
        first, second = one.steps.get(step), other.steps.get(step)
        if first is None or second is None:
            found.steps[step] = (first or second or Cells.empty(0, 0)).shared()
            continue
        readings = max(first.readings, second.readings)
        found.steps[step] = _merged(first.shared(), second)
        found.steps[step].readings = readings
    return found


def _merged(cells: Cells, other: Cells) -> Cells:
    """Both in one, the first of which may be changed; one that knows fewer series lacks the last rows."""
    rows = max(len(cells.packed), len(other.packed))
    cells = cells.taller(rows)
    cells.merge(other.taller(rows))
    return cells
