"""The parts of windows: panes, sequence numbers and shards, in whatever order and however often they come."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.aggregate.collect import CollectCells, Collected, GatherPanes, SortPanes, both
from quiltstream.transforms.aggregate.encode import CellBlock
from quiltstream.transforms.aggregate.release import SumTallies, Tally, together
from quiltstream.transforms.completeness.punctuation import (
    Punctuation,
    WindowEnd,
    batch_numbers_of,
    punctuation_batch,
    punctuation_of,
    with_horizon,
)
from quiltstream.transforms.completeness.sequence_numbers import SequenceNumbers, Steps, covers, ranges, united

from ..sources.streams import HOUR, readings
from ..test_histograms import ORIGIN, batches

NOW = ORIGIN + 1_000 * HOUR


def element(number: int, width: int = 4) -> CellBlock:
    """One batch of one series, with its ticket."""
    index, packed = np.array([number % width], dtype=np.int32), np.array([number], dtype=np.int64)
    return CellBlock(0, 1, width, index, packed, 1, ((0, 7, ranges([number])),))


@pytest.mark.assures("live", "A window is whole only with everything that was sent to it, however it is cut into panes")
@given(st.integers(1, 8), st.data())
def test_a_window_is_complete_only_with_all_its_elements_however_panes_cut_them(count, data) -> None:
    elements = [*map(element, range(1, count + 1)), WindowEnd(0, 0, 1, run=7, sent=((0, count),))]
    order = data.draw(st.permutations(range(count + 1)))
    # some come again
    order = [*order, *data.draw(st.lists(st.sampled_from(order), max_size=4))]
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(order) - 1)))), len(order)]
    collect = CollectCells()
    all_of_them = collect.create_accumulator()
    for one in elements:
        all_of_them = collect.add_input(all_of_them, one)
    held, seen = Collected(), set[int]()
    for begin, end in pairwise(cuts):
        pane = collect.create_accumulator()
        for at in order[begin:end]:
            pane = collect.add_input(pane, elements[at])
        seen |= {*order[begin:end]}
        held = both(held, pane)
        assert held.whole(0) == (len(seen) == count + 1)
    assert held.steps[0].packed.tolist() == all_of_them.steps[0].packed.tolist()


def test_tickets_of_another_run_are_not_taken_for_those_of_this_one() -> None:
    collect, one = CollectCells(), CollectCells().create_accumulator()
    for part in (element(1), element(2), WindowEnd(0, 0, 1, run=8, sent=((0, 2),))):
        one = collect.add_input(one, part)
    assert one.complete(0)
    assert not one.whole(0)
    assert collect.add_input(one, WindowEnd(0, 0, 1, run=7, sent=((0, 2),))).whole(0)


@given(st.lists(st.integers(1, 12)))
def test_ranges_are_the_numbers_that_they_were_made_of(numbers) -> None:
    found = ranges(numbers)
    assert [n for first, last in found for n in range(first, last + 1)] == sorted({*numbers})
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found))
    assert covers(found, 12) == ({*numbers} >= {*range(1, 13)})
    assert united([*found, *found]) == found


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_a_shard_counts_once_in_a_sum_however_often_it_comes(shards) -> None:
    tallies = [Tally({1 << shard: np.array([[shard, 1]])}, 0b1111) for shard in shards]
    collect = SumTallies()
    one = collect.create_accumulator()
    for tally in tallies:
        one = collect.add_input(one, tally)
    parts = [collect.add_input(collect.create_accumulator(), tally) for tally in tallies]
    for found in (one, collect.merge_accumulators(parts), together(one, one)):
        assert found.counts.tolist() == [[sum({*shards}), len({*shards})]]
        assert found.whole == ({*shards} == {0, 1, 2, 3})
    assert not collect.extract_output(collect.create_accumulator()).whole


@pytest.mark.assures("live", "A window that comes in one pane takes no state of a runner's at all")
def test_only_a_first_pane_that_is_whole_passes_by_what_waits_for_other_panes() -> None:
    window, sort = IntervalWindow(0, 4 * 1800), SortPanes(SlotGrid(1_800_000_000))
    collect, part = CollectCells(), CollectCells().create_accumulator()
    part = collect.add_input(part, element(1))
    entire = collect.add_input(collect.create_accumulator(), WindowEnd(0, run=7, sent=((0, 1),)))
    entire = collect.add_input(entire, element(1))
    for found, timing, first, passes in (
        (entire, PaneInfoTiming.ON_TIME, True, True),
        (entire, PaneInfoTiming.EARLY, True, True),  # its tickets say so, whatever the runner says
        (entire, PaneInfoTiming.ON_TIME, False, False),
        (part, PaneInfoTiming.ON_TIME, True, False),
        (Collected(), PaneInfoTiming.ON_TIME, True, False),
    ):
        pane = PaneInfo(is_first=first, is_last=False, timing=timing, index=0, nonspeculative_index=0)
        (out,) = sort.process((3, found), window, pane)
        assert (out == (3, found)) == passes
        assert isinstance(out, TaggedOutput) == (not passes)


class Held:
    """A runner's state of one key."""

    def __init__(self) -> None:
        self.value: Any = None
        self.largest = 0

    def read(self) -> Any:
        return self.value

    def write(self, value: Any) -> None:
        self.value = value
        self.largest = max(self.largest, len(pickle.dumps(value)))

    def clear(self) -> None:
        self.value = None


@pytest.mark.assures("live", "Parts of a window take no more memory than the window, and none once it has passed")
@pytest.mark.parametrize("accumulating", [False, True])
def test_waiting_panes_take_their_windows_memory_and_none_once_it_has_passed(accumulating: bool) -> None:
    width, count = 1000, 200
    gather, held, collect = GatherPanes(SlotGrid(1_800_000_000)), Held(), CollectCells()
    window = IntervalWindow(0, width * 1800)
    early = PaneInfo(is_first=False, is_last=False, timing=PaneInfoTiming.EARLY, index=1, nonspeculative_index=-1)
    pane, passed = collect.create_accumulator(), []
    all_of_them = collect.create_accumulator()
    elements = [*(element(number, width) for number in range(1, count + 1)), WindowEnd(0, run=7, sent=((0, count),))]
    for one in elements:
        pane = collect.add_input(pane if accumulating else collect.create_accumulator(), one)
        all_of_them = collect.add_input(all_of_them, one)
        passed += list(gather.process((3, pickle.loads(pickle.dumps(pane))), window, early, held))
    assert [key for key, _ in passed] == [3]
    assert passed[0][1].steps[0].packed.tolist() == all_of_them.steps[0].packed.tolist()
    assert 0 < held.largest <= len(pickle.dumps(all_of_them)) + 100
    assert held.value is None
    # a last pane of nothing, and one that is whole and comes after others, leave nothing behind
    assert not list(gather.process((3, Collected()), window, early, held))
    assert len(list(gather.process((3, all_of_them), window, early, held))) == 1
    assert held.value is None


def test_tickets_and_what_is_due_travel_with_batches_and_marks() -> None:
    (batch,) = batches(readings(1, seed=76, names=["a"]), 500)
    (given_,), issued = SequenceNumbers(run=5).issue(3, [batch], Steps(ORIGIN, 12 * HOUR), ORIGIN, NOW)
    assert batch_numbers_of(with_horizon(batch, 7, numbers=given_)) == given_
    assert given_.numbers == ((0, 1), (1, 1))
    assert batch_numbers_of(with_horizon(batch, 7)) is None
    assert SequenceNumbers.from_plain({"run": 5, "sent": {"0": 1, "1": 1}}) == issued
    mark = Punctuation(3, 4, 1, 2, run=5, sent=((0, 1), (1, 1)))
    assert punctuation_of(punctuation_batch(mark, READING_SCHEMA)) == mark
    due, rest = issued.declare(Steps(ORIGIN, 12 * HOUR), ORIGIN + 12 * HOUR)
    assert (due, rest.sent) == (((0, 1),), {1: 1})
    # what is late already gets none, and a step is remembered while a window over it is open
    (late,), _ = rest.issue(3, [batch], Steps(ORIGIN, 12 * HOUR), ORIGIN + 12 * HOUR, NOW)
    assert late.numbers == ((1, 2),)
    assert issued.declare(Steps(ORIGIN, 12 * HOUR, 2), ORIGIN + 24 * HOUR)[1].sent == {1: 1}
    # nor does what lies more than a day ahead: nobody waits for it, and it takes no memory
    (ahead,), kept = SequenceNumbers().issue(3, [batch], Steps(ORIGIN, HOUR), ORIGIN, ORIGIN - 20 * HOUR)
    assert [step for step, _ in ahead.numbers] == list(kept.sent) == [0, 1, 2, 3, 4]
    assert isinstance(batch, pa.RecordBatch)
