"""Readings that wait until their slots can be reduced: what a word about several rows collects in place of cells.

A reading is put into every step of the windows that it may move a slot of. There it stands once for each series and
begin, whichever of its copies came, in whichever order (:func:`..readings.slots.united`), so a runner may repeat,
reorder and merge as it likes. When the window fires, each step's readings become its cells, one a slot at most, and
from there on all is as with the latest reading of a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...schemas.slots import SlotGrid, Window
from ...schemas.states import StateSpace
from ..readings.slots import Covering, Words, slot_values, united
from .cells import Cells

#: Readings that wait to be united with the others at least.
_LOOSE = 1 << 12

_NO_INTS = np.zeros(0, dtype=np.int64)
NOTHING = Covering(_NO_INTS, _NO_INTS, np.zeros(0), _NO_INTS, _NO_INTS)


@dataclass(slots=True)
class Gathered:
    """The readings that may move the slots of one step; it belongs to one worker and is changed in place."""

    whole: Covering = NOTHING  # one of each series and begin, in order; ``codes`` are rows of series
    loose: list[Covering] = field(default_factory=list[Covering])
    readings: int = 0  # how many came that begin in the step

    def put(self, more: Covering, readings: int) -> None:
        """Take readings in, so many of which begin in the step."""
        self.loose.append(more)
        self.readings += readings
        if sum(len(one.codes) for one in self.loose) > max(_LOOSE, len(self.whole.codes)):
            self.united()

    def united(self) -> Covering:
        """All of them, one of each series and begin, in order."""
        if self.loose:
            self.whole, self.loose = united(Covering.joined([self.whole, *self.loose])), []
        return self.whole

    def merge(self, other: Gathered) -> None:
        """Take the readings of others in."""
        self.put(other.united(), other.readings)

    def shared(self) -> Gathered:
        """The same readings, apart from these."""
        return Gathered(self.whole, list(self.loose), self.readings)

    def cells(self, step: Window, grid: SlotGrid, words: Words, space: StateSpace) -> Cells:
        """The cells of the step; rows of series without a value may be left out at the end."""
        codes, slots, values = slot_values(self.united(), grid, words, step)
        cells = Cells.empty(int(codes.max(initial=-1)) + 1, len(step))
        cells.put(codes * len(step) + slots - step.start, space.encode(values))
        return cells

    def repeated(self, step: Window, grid: SlotGrid) -> int:
        """How many of those that begin in the step have the series and begin of another."""
        begins = grid.slots_of(self.united().begin_us)
        return self.readings - int(np.count_nonzero((begins >= step.start) & (begins < step.stop)))
