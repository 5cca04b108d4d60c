"""Collect: one value per cell, for every shard and window, whatever the order and however often readings come.

Keyed by shard in Beam windows. The accumulator holds the cells of each step of the window; adding and merging take
maxima (see :mod:`.cells`), so lifting, retries and reordering cannot change the outcome. Beside them it holds which
parts of the source declared the window complete (see :mod:`.marks`); a set, so that too is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import apache_beam as beam

from .cells import Cells
from .encode import CellBlock, Closing


@dataclass(slots=True)
class Collected:
    """What came of one shard in one window.

    Attributes:
        steps: the cells of each step that had readings.
        closed: first slot of a window -> bits of the parts that declared it complete.
        parts: how many parts there are.
        replayed: first slots of windows that some part read again from its start.
    """

    steps: dict[int, Cells] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    parts: int = 1
    replayed: set[int] = field(default_factory=set)

    def close(self, start: int, parts_bits: int) -> None:
        """Note that parts declared the window that starts at a slot complete."""
        self.closed[start] = self.closed.get(start, 0) | parts_bits

    def complete(self, start: int) -> bool:
        """Whether every part declared the window that starts at a slot complete."""
        return self.closed.get(start, 0) == (1 << self.parts) - 1


class CollectCells(beam.CombineFn):
    """``CellBlock`` and ``Closing`` elements to one :class:`Collected`."""

    def create_accumulator(self) -> Collected:
        """Nothing yet."""
        return Collected()

    def add_input(self, mutable_accumulator: Collected, element: CellBlock | Closing) -> Collected:
        """Put a block's readings into the cells of its step, or note a declaration."""
        if isinstance(element, Closing):
            mutable_accumulator.parts = element.parts
            mutable_accumulator.close(element.start, 1 << element.part)
            if element.replayed:
                mutable_accumulator.replayed.add(element.start)
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
            cells = steps[element.step] = _taller(cells, element.rows)
        cells.put(element.index, element.packed)
        cells.readings += element.readings - len(element.packed)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Collected]) -> Collected:
        """Take maxima step by step, and unite the declarations."""
        merged = Collected()
        for one in accumulators:
            merged.parts = max(merged.parts, one.parts)
            merged.replayed |= one.replayed
            for start, bits in one.closed.items():
                merged.close(start, bits)
            for step, cells in one.steps.items():
                merged.steps[step] = _merged(merged.steps[step], cells) if step in merged.steps else cells.shared()
        return merged

    def extract_output(self, accumulator: Collected) -> Collected:
        """What was collected."""
        return accumulator


def _merged(cells: Cells, other: Cells) -> Cells:
    """Both in one, the first of which may be changed; one that knows fewer series lacks the last rows."""
    rows = max(len(cells.packed), len(other.packed))
    cells = _taller(cells, rows)
    cells.merge(_taller(other, rows))
    return cells


def _taller(cells: Cells, rows: int) -> Cells:
    """The same cells with rows for the series that joined."""
    missing = rows - len(cells.packed)
    if missing <= 0:
        return cells
    taller = Cells.empty(rows, cells.packed.shape[1])
    taller.packed[: len(cells.packed)] = cells.packed
    taller.readings = cells.readings
    return taller
