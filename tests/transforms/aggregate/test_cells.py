from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.transforms.aggregate import cells as module
from quiltstream.transforms.aggregate.cells import Cells, pack, state_bits
from quiltstream.transforms.aggregate.collect import CollectCells, both
from quiltstream.transforms.aggregate.encode import CellBlock

from .held import cells_of

#: Microseconds into the slot: none, a few, and some that need each wider type.
OFFSETS = st.integers(0, 99) | st.sampled_from([0, 20_000, 10_000_000, 1_700_000_000])
READINGS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), OFFSETS, st.integers(0, 4)), max_size=60)


def fill(readings) -> Cells:
    cells = Cells.empty(rows=3, width=4)
    if readings:
        rows, columns, offsets, states = np.array(readings, dtype=np.int64).T
        cells.put(rows * 4 + columns, pack(offsets, states, state_bits(5)))
    return cells


def put_all(cells: Cells, more: Cells) -> None:
    place = np.flatnonzero(more.present)
    cells.put(place, more.packed.reshape(-1)[place])


@given(READINGS)
def test_a_cell_keeps_its_latest_reading_and_the_higher_state_on_ties(readings):
    truth = {}
    for row, column, offset, state in readings:
        truth[row, column] = max(truth.get((row, column), (-1, -1)), (offset, state))
    cells = fill(readings)
    counts = np.zeros((3, 5), dtype=int)
    for (row, _), (_, state) in truth.items():
        counts[row, state] += 1
    assert cells.histograms(5, state_bits(5)).tolist() == counts.tolist()
    with mock.patch.object(module, "_AT_ONCE", 8):  # two rows, then one
        assert cells.histograms(5, state_bits(5)).tolist() == counts.tolist()
    assert int(cells.present.sum()) == len(truth)
    assert cells.readings == len(readings)


@given(READINGS, st.integers(0, 60), st.randoms())
def test_order_splitting_and_doubling_change_nothing(readings, cut, random):
    whole = fill(readings)
    mixed = readings + readings[: cut // 2]
    random.shuffle(mixed)
    parts = fill(mixed[:cut])
    parts.merge(fill(mixed[cut:]))
    parts.merge(fill(mixed[cut:]))
    assert np.array_equal(parts.packed, whole.packed)


@pytest.mark.parametrize("change", [lambda cells, more: cells.merge(more), put_all], ids=["merge", "put"])
def test_shared_cells_are_copied_before_they_change_and_leave_the_others_alone(change):
    """A runner keeps what it gave out: it gives it again when a bundle is tried again."""
    cells, more = fill([(0, 0, 0, 1), (1, 1, 5, 2)]), fill([(0, 0, 1, 0), (2, 2, 5, 4)])
    before, other = cells.packed.tolist(), more.packed.tolist()
    one, two = cells.shared(), cells.shared()
    change(one, more)
    assert one.packed.tolist() == np.maximum(before, other).tolist() != before
    assert (cells.packed.tolist(), two.packed.tolist(), more.packed.tolist()) == (before, before, other)
    change(two, fill([]))
    change(two, more)
    assert two.packed.tolist() == one.packed.tolist()
    assert (cells.packed.tolist(), more.packed.tolist()) == (before, other)


def test_what_a_runner_gives_to_collect_is_as_it_was_afterwards():
    """Blocks, accumulators and panes are the runner's: it may give each of them again, or to another worker."""
    higher = np.arange(12, dtype=np.int8)
    given = [CellBlock(0, 3, 4, None, packed, 12) for packed in (higher[::-1].copy(), higher.copy())]
    collect = CollectCells()
    one = collect.create_accumulator()
    for block in given:
        one = collect.add_input(one, block)
    parts = [collect.add_input(collect.create_accumulator(), block) for block in given]
    found = [one, collect.merge_accumulators(parts), both(*parts)]
    for collected in found:
        assert cells_of(collected, 0).packed.reshape(-1).tolist() == np.maximum(higher, higher[::-1]).tolist()
    for values, block, part in zip((higher[::-1], higher), given, parts, strict=True):
        assert block.packed.tolist() == cells_of(part, 0).packed.reshape(-1).tolist() == values.tolist()


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (99, 2), (10_000_000, 4), (1_700_000_000, 8)])
def test_a_cell_is_as_wide_as_the_readings_so_far_need(offset, size):
    cells = fill([(0, 0, 0, 4), (1, 1, 0, 3)])
    assert cells.packed.itemsize == 1
    cells.merge(fill([(2, 2, offset, 1)]))
    assert cells.packed.itemsize == size
    cells.put(np.array([3]), pack(np.array([offset]), np.array([2]), state_bits(5)))
    assert (cells.packed.itemsize, cells.packed[0, 3] & 7, cells.packed[0, 0]) == (size, 2, 4)
