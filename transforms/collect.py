"""Collect: one value per cell, for every shard and window, whatever the order and however often readings come.

Keyed by shard in Beam windows. The accumulator holds the cells of each step of the window; adding and merging take
maxima (see :mod:`.cells`), so lifting, retries and reordering cannot change the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable

import apache_beam as beam

from .cells import Cells
from .encode import CellBlock

Steps = dict[int, Cells]


class CollectCells(beam.CombineFn):
    """``CellBlock`` elements to the cells of each step."""

    def create_accumulator(self) -> Steps:
        """No step yet."""
        return {}

    def add_input(self, mutable_accumulator: Steps, element: CellBlock) -> Steps:
        """Put a block's readings into the cells of its step."""
        cells = mutable_accumulator.get(element.step)
        if element.index is None:
            whole = Cells(element.packed.reshape(element.rows, element.width), element.readings, owned=False)
            if cells is None:
                mutable_accumulator[element.step] = whole
            else:
                cells.merge(whole)
            return mutable_accumulator
        if cells is None:
            cells = mutable_accumulator[element.step] = Cells.empty(element.rows, element.width)
        cells.put(element.index, element.packed)
        cells.readings += element.readings - len(element.packed)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Steps]) -> Steps:
        """Take maxima step by step."""
        merged: Steps = {}
        for one in accumulators:
            for step, cells in one.items():
                if step in merged:
                    merged[step].merge(cells)
                else:
                    merged[step] = cells.shared()
        return merged

    def extract_output(self, accumulator: Steps) -> Steps:
        """The cells of each step."""
        return accumulator
