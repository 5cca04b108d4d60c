"""What punctuation says of each window."""

from __future__ import annotations

from quiltstream.schemas.releases import LIVE, REPLAYED, SILENT, UNAVAILABLE
from quiltstream.schemas.slots import Schedule, SlotGrid
from quiltstream.transforms.aggregate.collect import CollectCells
from quiltstream.transforms.completeness import Punctuation, WindowEnd, window_ends_by

HOUR = 3_600_000_000
GRID = SlotGrid(HOUR)
#: Six hours, one every two: a window has three steps.
SCHEDULE = Schedule(size=6, every=2, start=0, stop=None, anchor=0)


def test_only_windows_that_end_after_a_source_became_silent_are_marked() -> None:
    found = {
        one.start: one.completeness
        for one in window_ends_by(Punctuation(0, 1, 0, 10 * HOUR, silent_us=8 * HOUR), SCHEDULE, GRID)
    }
    assert found == {0: "live", 2: "live", 4: "silent"}


def test_a_row_has_the_worst_completeness_of_any_partition() -> None:
    collect = CollectCells()
    said = [
        ([LIVE], "live"),
        ([REPLAYED], "replayed"),
        ([SILENT, REPLAYED], "silent"),
        ([SILENT, UNAVAILABLE], "unavailable"),
    ]
    for each, completeness in said:
        parts = [collect.add_input(collect.create_accumulator(), WindowEnd(0, completeness=one)) for one in each]
        assert collect.merge_accumulators(parts).completeness(0) == completeness
