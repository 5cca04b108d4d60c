"""Panes: no sequence of them publishes a part of a window."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import IntervalWindow, TimestampedValue
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming
from hypothesis import example, given
from hypothesis import strategies as st

from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.collect import CollectCells, Collected, Gather, GatherPanes, SortPanes, both
from quiltstream.transforms.aggregate.encode import CellBlock
from quiltstream.transforms.aggregate.release import SumTallies, Tally, together
from quiltstream.transforms.completeness import Arrived, Punctuation, WindowEnd

from ...examined import Tally as Examinations
from ..sources.feed import feed
from ..sources.streams import (
    GROUPS,
    HOUR,
    SERIES,
    OfSource,
    live_settings,
    on_record,
    readings,
    stamped,
    truth,
)
from ..sources.test_live_faults import counted, play
from ..sources.test_live_faults import whole as whole_after
from ..test_histograms import DAY, ORIGIN, batches
from .firings import EARLY, FIRINGS, LATE, firing_windows
from .held import cells_of

DAYS = 2


def fire(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(beam, "WindowInto", firing_windows(name))


class Panes:
    """Notes of the panes that were sorted and gathered, so that a test can see that its fault happened.

    Attributes:
        sorted: shard and window -> the indices of its panes.
        came: name of the step that gathers, key and window -> the indices of the panes that it was given.
        timings: what the runner said of them.
        found_held: how often a pane found that others were waiting for it, by step.
        again: how often a pane came again because its bundle had failed.
        failed: how often a step failed with a pane.
    """

    def __init__(self) -> None:
        self.sorted: dict[tuple[int, IntervalWindow], set[int]] = {}
        self.came: dict[tuple[str, int, IntervalWindow], set[int]] = {}
        self.timings = set[str]()
        self.found_held = Counter[str]()
        self.again = self.failed = 0

    @property
    def most(self) -> int:
        """The largest number of panes of a shard in a window."""
        return max(map(len, self.sorted.values()))


def watched(monkeypatch: pytest.MonkeyPatch, *, failing: bool = False) -> Panes:
    """Note the panes that come in; a failing step fails with each of them once, when it has given all that it has."""
    panes, process, sort = Panes(), Gather.process, SortPanes.process

    @wraps(sort)
    def seen(self: SortPanes, element: Any, window: Any, pane: Any) -> Iterator[Any]:
        panes.sorted.setdefault((element[0], window), set()).add(pane.index)
        panes.timings.add(PaneInfoTiming.to_string(pane.timing))
        yield from sort(self, element, window, pane)

    @wraps(process)
    def noted(self: Gather, element: Any, window: Any, pane: Any, held: Any) -> Iterator[Any]:
        step = type(self).__name__
        seen = panes.came.setdefault((step, element[0], window), set())
        first = pane.index not in seen
        seen.add(pane.index)
        panes.timings.add(PaneInfoTiming.to_string(pane.timing))
        panes.found_held[step] += held.read() is not None
        panes.again += not first
        yield from process(self, element, window, pane, held)
        if failing and first:
            panes.failed += 1
            raise OSError("what was gathered was lost")

    monkeypatch.setattr(SortPanes, "process", seen)
    monkeypatch.setattr(Gather, "process", noted)
    return panes


@pytest.fixture
def panes(monkeypatch: pytest.MonkeyPatch) -> Panes:
    return watched(monkeypatch)


def sent(frame: pl.DataFrame, *, step_us: int, parts: int = 1) -> list[list[Any]]:
    """What a source of some parts sends, in stretches of event time: the readings of each, and a mark of each part."""
    stretches: list[list[Any]] = []
    for begin in range(ORIGIN, ORIGIN + DAYS * 24 * HOUR, step_us):
        stretches.append([])
        for part in range(parts):
            mine = frame.filter(
                (pl.col("time") >= begin)
                & (pl.col("time") < begin + step_us)
                & (pl.col("series").str.to_integer(base=36) % parts == part)
            )
            stretches[-1] += [Arrived(batch, begin) for batch in (batches(mine, 64) if len(mine) else [])]
            stretches[-1].append(Punctuation(part, parts, begin, begin + step_us))
    return stretches


def streamed(stretches: list[list[Any]], *, step_us: int, seed: int, ahead_us: int = 0) -> Any:
    """A stream of them, each in any order; the clock on the wall goes on in the middle of each.

    Args:
        stretches: what comes.
        step_us: length of one.
        seed: of the order.
        ahead_us: how far the watermark is ahead of what comes.
    """
    source = random.Random(seed)
    stream = test_stream.TestStream().advance_watermark_to(stamped(ORIGIN))
    for number, stretch in enumerate(stretches):
        begin = ORIGIN + number * step_us
        order = source.sample(stretch, len(stretch))
        for half in (order[: len(order) // 2], order[len(order) // 2 :]):
            stream = stream.add_elements([TimestampedValue(one, stamped(begin)) for one in half])
            stream = stream.advance_processing_time(10)
        stream = stream.advance_watermark_to(stamped(begin + step_us + ahead_us))
    return OfSource(stream.advance_watermark_to_infinity())


def run(monkeypatch: pytest.MonkeyPatch, stream: Any, job: Settings, folder: Path) -> None:
    """A job over a stream, with the noise that tells every draw from every other."""
    monkeypatch.setattr("tests.transforms.sources.test_live_faults.streamed", lambda _: stream)
    folder.mkdir()
    play([], job, folder)


whole = partial(whole_after, days=DAYS)
WINDOWS = {"windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-03"}}
STEP = 6 * HOUR


@pytest.mark.night
@pytest.mark.parametrize("firing", FIRINGS)
def test_every_window_is_recorded_complete_and_once_for_any_panes(
    tmp_path: Path,
    tally: Examinations,
    monkeypatch: pytest.MonkeyPatch,
    panes: Panes,
    firing: str,
) -> None:
    """What fires early is united with the pane on time; what is late, or of a runner that says so of none, is not."""
    job = live_settings(tmp_path, **WINDOWS, group_by="group")
    frame = readings(DAYS, seed=60, names=["a", "c", "d"])
    # with late firings the watermark runs ahead: half of the readings and every declaration are late to the runner
    ahead = 12 * HOUR if firing in LATE else 0
    stretches = sent(frame, step_us=STEP, parts=2)
    with monkeypatch.context() as patched:
        fire(patched, firing)
        run(patched, streamed(stretches, step_us=STEP, seed=61, ahead_us=ahead), job, tmp_path / "first")
    assert panes.most > 2
    assert panes.timings >= ({"LATE"} if firing in LATE else {"EARLY"})
    if firing in EARLY:
        whole(job, [tmp_path / "first"], frame, GROUPS, tally)
        assert panes.found_held["GatherPanes"] or "accumulating" in firing
        return
    assert on_record(job) == {}
    run(monkeypatch, streamed(stretches, step_us=STEP, seed=72), job, tmp_path / "second")
    whole(job, [path.parent for path in tmp_path.glob("*/left")], frame, GROUPS, tally)


@pytest.mark.night
def test_a_failed_pane_collection_is_retried_and_changes_nothing(
    tmp_path: Path, tally: Examinations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step held and gave is lost with its bundle, at each pane; the runner runs the bundle again."""
    fire(monkeypatch, "early-discarding")
    panes = watched(monkeypatch, failing=True)
    job = live_settings(tmp_path, **WINDOWS, group_by="group", shards=2)
    frame = readings(DAYS, seed=77, names=["a", "c", "d"])
    stretches = sent(frame, step_us=2 * STEP)
    run(monkeypatch, streamed(stretches, step_us=2 * STEP, seed=78), job, tmp_path / "first")
    whole(job, [tmp_path / "first"], frame, GROUPS, tally)
    # every pane failed and came again, and some of them found what others had left
    assert panes.again >= panes.failed == sum(map(len, panes.came.values()))
    assert panes.most > 2
    assert panes.found_held["GatherPanes"]


def test_sliding_windows_are_complete_for_any_panes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, panes: Panes
) -> None:
    fire(monkeypatch, "early-discarding")
    job = live_settings(tmp_path, windows={"size": "1d", "every": "12h", "start": "2013-01-01", "stop": "2013-01-03"})
    frame = readings(DAYS, seed=62, names=["a", "d"])
    stretch: list[Any] = []
    for begin in range(ORIGIN, ORIGIN + DAYS * 24 * HOUR, 9 * HOUR):
        found = batches(frame.filter((pl.col("time") >= begin) & (pl.col("time") < begin + 9 * HOUR)), 20)
        stretch += [Arrived(one, begin) for one in found]
        stretch.append(Punctuation(0, 1, begin, begin + 9 * HOUR))
    run(monkeypatch, streamed([stretch], step_us=9 * HOUR, seed=63), job, tmp_path / "first")
    counts = counted(job)
    assert counts == truth(frame, [(h * 24, h * 24 + DAY) for h in range(3)], SERIES)
    assert panes.most > 1


@pytest.mark.night
def test_a_window_whose_declaration_a_runner_lost_is_published_by_the_next_job(
    tmp_path: Path, tally: Examinations, monkeypatch: pytest.MonkeyPatch, panes: Panes
) -> None:
    """The job's own trigger."""
    job = live_settings(tmp_path, **WINDOWS, shards=2)
    frame = readings(DAYS, seed=67, names=["a", "d", "e"])
    stretches = sent(frame, step_us=STEP)
    holed = [list(stretch) for stretch in stretches]
    holed[3] = [one for one in holed[3] if isinstance(one, Arrived)]
    run(monkeypatch, streamed(holed, step_us=STEP, seed=68), job, tmp_path / "first")
    found = counted(job)
    assert found == truth(frame, [(DAY, 2 * DAY)], SERIES)
    run(monkeypatch, streamed(stretches, step_us=STEP, seed=69), job, tmp_path / "second")
    whole(job, [tmp_path / "first", tmp_path / "second"], frame, SERIES, tally)
    assert (panes.most, panes.timings) == (1, {"ON_TIME"})


@given(
    others=st.lists(st.lists(st.integers(250, 260), min_size=2, max_size=2), min_size=2, max_size=4),
    other=st.booleans(),
)
@example(others=[[255, 100], [100, 255]], other=True)
def test_no_cell_decides_which_of_two_complete_values_is_kept(others: list[list[int]], other: bool) -> None:
    """The values of a group differ in the cells of other series; one slot of a series moves the sum by 2 at most."""
    first, second = 0, int(other)
    sums: list[Any] = []
    for state in (first, second):
        tallies = [Tally({1: np.array([rest]) + np.eye(2, dtype=np.int64)[state]}, 1) for rest in others]
        collect = SumTallies()
        lifted = collect.merge_accumulators([collect.add_input(collect.create_accumulator(), one) for one in tallies])
        one_by_one = collect.create_accumulator()
        for tally in tallies:
            one_by_one = collect.add_input(one_by_one, tally)
        assert lifted.counts.tolist() == one_by_one.counts.tolist()
        sums.append(lifted.counts)
    assert np.abs(sums[0] - sums[1]).sum() == (0 if first == second else 2)


def test_windows_of_a_batch_job_are_complete_for_any_panes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fires early and on time, with everything in both panes."""
    fire(monkeypatch, "late-accumulating")
    job = live_settings(tmp_path, **WINDOWS, group_by="group")
    frame = readings(DAYS, seed=74)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | feed(tmp_path, batches(frame, 100)) | PrivateHistograms(job, noise="none")
    assert on_record(job) == truth(frame, [(0, DAY), (DAY, 2 * DAY)], GROUPS)


def test_the_windowing_of_the_transform_fires_at_the_end_of_the_window_only(tmp_path: Path) -> None:
    job = live_settings(tmp_path, **WINDOWS)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | feed(tmp_path, batches(readings(1, seed=75), 100)) | PrivateHistograms(job, noise="none")
    proto = pipeline.to_runner_api()
    (windowing,) = (one for one in proto.components.windowing_strategies.values() if "global" not in one.window_fn.urn)
    assert windowing.trigger.WhichOneof("trigger") == "after_end_of_window"
    assert not windowing.trigger.after_end_of_window.HasField("early_firings")
    assert not windowing.trigger.after_end_of_window.HasField("late_firings")
    assert windowing.accumulation_mode == 2
    assert windowing.allowed_lateness == 0


def element(number: int, width: int = 4) -> CellBlock:
    index, packed = np.array([number % width], dtype=np.int32), np.array([number], dtype=np.int64)
    return CellBlock(0, 1, width, index, packed, 1)


@given(st.integers(1, 8), st.data())
def test_panes_that_are_united_hold_what_one_pane_of_everything_does(count, data) -> None:
    elements = [*map(element, range(1, count + 1)), WindowEnd(0, 0, 2), WindowEnd(0, 1, 2)]
    order = data.draw(st.permutations(range(count + 2)))
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
        assert held.complete(0) == (seen >= {count, count + 1})
    assert cells_of(held, 0).packed.tolist() == cells_of(all_of_them, 0).packed.tolist()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_a_repeated_shard_counts_once_in_a_sum(shards) -> None:
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


class Held:
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


@pytest.mark.parametrize("accumulating", [False, True])
def test_pane_state_is_bounded_by_its_window_and_then_cleared(accumulating: bool) -> None:
    width, count = 1000, 200
    gather, held, collect = GatherPanes(SlotGrid(1_800_000_000)), Held(), CollectCells()
    window = IntervalWindow(0, width * 1800)
    early, on_time = (
        PaneInfo(is_first=False, is_last=False, timing=timing, index=1, nonspeculative_index=-1)
        for timing in (PaneInfoTiming.EARLY, PaneInfoTiming.ON_TIME)
    )
    pane, passed = collect.create_accumulator(), []
    all_of_them = collect.create_accumulator()
    elements = [*(element(number, width) for number in range(1, count + 1)), WindowEnd(0)]
    for one in elements:
        pane = collect.add_input(pane if accumulating else collect.create_accumulator(), one)
        all_of_them = collect.add_input(all_of_them, one)
        timing = on_time if one is elements[-1] else early
        passed += list(gather.process((3, pickle.loads(pickle.dumps(pane))), window, timing, held))
    assert [key for key, _ in passed] == [3]
    assert cells_of(passed[0][1], 0).packed.tolist() == cells_of(all_of_them, 0).packed.tolist()
    assert 0 < held.largest <= len(pickle.dumps(all_of_them)) + 100
    assert held.value is None
    # a last pane of nothing, and one that is whole and comes after others, leave nothing behind
    assert not list(gather.process((3, Collected()), window, early, held))
    assert held.value is None
    assert len(list(gather.process((3, all_of_them), window, on_time, held))) == 1
    assert held.value is None
