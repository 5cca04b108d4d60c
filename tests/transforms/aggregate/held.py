"""What collected state holds."""

from __future__ import annotations

from quiltstream.transforms.aggregate.cells import Cells
from quiltstream.transforms.aggregate.collect import Collected


def cells_of(collected: Collected, step: int) -> Cells:
    """The cells of a step, where no word is about several rows."""
    cells = collected.steps[step]
    assert isinstance(cells, Cells)
    return cells
