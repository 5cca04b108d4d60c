"""Intervals of labels to the label of each slot, compared with a plain count of microseconds."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import Schedule, SlotGrid
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms.formats.rows import UNTIL, Labels
from quiltstream.transforms.sources.files import ReadReadings
from quiltstream.transforms.sources.series_together import slots_of_intervals

from ..formats.decoding import decoded_parts

GRID = SlotGrid(10, 3)
LABELS = "sleep", "sit", "walk"
Interval = tuple[str, int, int, int]


def plainly(intervals: list[Interval]) -> dict[tuple[str, int], int]:
    """The state of each slot, by looking at every microsecond."""
    held: dict[tuple[str, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for series, start, stop, state in intervals:
        for instant in range(start, stop):
            held[series, (instant - 3) // 10][state].add(instant)
    return {
        cell: min(states, key=lambda state: (-len(states[state]), min(states[state]), state))
        for cell, states in held.items()
    }


def batch(intervals: list[Interval], groups: dict[str, str] | None = None) -> pa.RecordBatch:
    schema = (READING_SCHEMA if groups is None else GROUPED_READING_SCHEMA).append(UNTIL)
    series, start, stop, state = (list(column) for column in zip(*intervals, strict=True))
    columns = {"series": series, "time": start, "value": [float(one) for one in state], "until": stop}
    if groups is not None:
        columns["group"] = [groups[one] for one in series]
    arrays = [
        pa.array(columns[field.name]).dictionary_encode()
        if pa.types.is_dictionary(field.type)
        else pa.array(columns[field.name], pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def slots(batches: list[pa.RecordBatch], *how: Any) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for one in slots_of_intervals(batches, GRID, *how):
        assert one.schema.names in ([*READING_SCHEMA.names], [*GROUPED_READING_SCHEMA.names])
        times = one["time"].cast(pa.int64()).to_pylist()
        for series, time, state in zip(one["series"].to_pylist(), times, one["value"].to_pylist(), strict=True):
            assert (time - 3) % 10 == 0
            assert (series, (time - 3) // 10) not in found
            found[series, (time - 3) // 10] = int(state)
    return found


def drawn(draw: random.Random) -> list[Interval]:
    intervals: list[Interval] = []
    for _ in range(draw.randrange(1, 12)):
        start = draw.randrange(-40, 60)
        stop = start + draw.choice([1, 2, 5, 10, 20, 33])
        intervals.append((draw.choice(["a", "b"]), start, stop, draw.randrange(3)))
    return intervals


def test_each_slot_has_the_label_that_covers_most_of_it() -> None:
    seed = 20240301
    draw = random.Random(seed)  # noqa: S311 - test data
    for _ in range(400):
        intervals = drawn(draw)
        expected = plainly(intervals)
        # neither the order of the rows, nor their batches, nor a row that stands twice matters
        mixed = draw.sample([*intervals, intervals[0]], len(intervals) + 1)
        cut = draw.randrange(1, len(mixed))
        assert slots([batch(mixed[:cut]), batch(mixed[cut:])]) == expected, (seed, intervals)


def test_the_slots_of_intervals_are_the_same_in_pieces() -> None:
    seed = 20240302
    draw = random.Random(seed)  # noqa: S311 - test data
    for _ in range(200):
        intervals = drawn(draw)
        most = draw.randrange(1, 9)
        assert slots([batch(intervals)], None, most) == plainly(intervals), (seed, intervals, most)
        # 33 us reach five slots, and of each of three states several intervals may reach a slot
        pieces = [one.num_rows for one in slots_of_intervals([batch(intervals)], GRID, None, most)]
        assert max(pieces) <= most, (seed, intervals, most)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (None, 2), (2, None)])
def test_outside_the_schedule_is_only_the_first_slot_of_an_interval(start: int | None, stop: int | None) -> None:
    seed = 20240303
    draw = random.Random(seed)  # noqa: S311 - test data
    schedule = Schedule(2, 2, start, stop, 0)
    low = -(10**6) if start is None else schedule.first
    high = 10**6 if stop is None else stop
    for _ in range(200):
        intervals = drawn(draw)
        expected, found = plainly(intervals), slots([batch(intervals)], schedule, draw.choice([2, 100]))
        within = {cell: state for cell, state in expected.items() if low <= cell[1] < high}
        firsts = {(series, (begin - 3) // 10) for series, begin, _, _ in intervals}
        assert within.items() <= found.items(), (seed, intervals)
        assert found.keys() - within.keys() <= firsts, (seed, intervals)
        for series in {one[0] for one in intervals}:  # the earliest reading, by whose group a series goes
            cell = min(cell for cell in expected if cell[0] == series)
            assert found[cell] == expected[cell], (seed, intervals)


def test_an_interval_of_a_year_takes_no_more_memory_than_a_piece() -> None:
    second, year = 1_000_000, 366 * 86_400
    grid, line = SlotGrid(second, 0), batch([("a", 0, year * second, 1)])
    tracemalloc.start()
    try:
        day = Schedule(3600, 3600, 86_400, 2 * 86_400, 0)
        assert [one.num_rows for one in slots_of_intervals([line], grid, day)] == [86_401]
        pieces = slots_of_intervals([line], grid)
        assert all(next(pieces).num_rows == 1 << 18 for _ in range(2))
        # all slots of the year would be 31.6 million, of 100 bytes each
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("intervals", "state"),
    [
        ([("a", 3, 8, 1), ("a", 8, 13, 0)], 1),  # a tie goes to the earlier
        ([("a", 8, 13, 0), ("a", 3, 8, 1)], 1),
        ([("a", 3, 6, 1), ("a", 6, 10, 0), ("a", 10, 13, 1)], 1),  # the parts of one label add up
        ([("a", 3, 7, 2), ("a", 3, 7, 1)], 1),  # at once and equally long: the first state
        ([("a", 3, 7, 2), ("a", 4, 8, 2), ("a", 8, 13, 1)], 2),  # what overlaps counts once: five and five
        ([("a", 12, 13, 2)], 2),  # the rest of the slot is nothing
    ],
)
def test_the_rule_of_a_slot(intervals: list[Interval], state: int) -> None:
    assert slots([batch(intervals)])["a", 0] == state


def test_a_group_stays_with_its_series() -> None:
    (found,) = slots_of_intervals([batch([("a", 0, 30, 1), ("b", 0, 9, 2)], {"a": "x", "b": "y"})], GRID)
    assert set(zip(found["series"].to_pylist(), found["group"].to_pylist(), strict=True)) == {("a", "x"), ("b", "y")}


#: A diary of activities, as an annotation tool writes it.
DIARY = """\
Participant;Start;End;Activity
p1;01.03.2024 00:00;01.03.2024 00:50;sleep
p1;01.03.2024 00:50;01.03.2024 01:00;sit
p2;01.03.2024 00:20;01.03.2024 00:20;walk
p2;01.03.2024 00:40;01.03.2024 00:10;walk
p2;01.03.2024 00:00;01.03.2042 00:10;walk
p2;01.03.2024 00:10;;walk
p2;01.03.2024 00:00;01.03.2024 00:20;secret swim
p2;01.03.2024 00:15;01.03.2024 00:31;walk
"""
READINGS: dict[str, Any] = {
    "series": "Participant", "time": "Start", "until": "End", "value": "Activity", "time_format": "%d.%m.%Y %H:%M",
}  # fmt: skip


def diary(tmp_path: Path) -> ReadReadings:
    (tmp_path / "diary.csv").write_text(DIARY, encoding="utf-8")
    labels = Labels(StateSpace((), categories=LABELS))
    grid = SlotGrid(1_800_000_000, 0)
    source = FileSource(csv=str(tmp_path / "diary.csv"), delimiter=";")
    return ReadReadings(source, Readings.model_validate(READINGS), grid=grid, labels=labels)


def test_intervals_that_are_none_are_rejected_by_their_line(tmp_path: Path) -> None:
    reader = diary(tmp_path)
    rejects = {(one.reason.value, at) for part in decoded_parts(reader) for one in part.rejects for at in one.positions}
    assert rejects == {
        ("bad-interval", 4),
        ("bad-interval", 5),
        ("bad-interval", 6),
        ("unparsable-time", 7),
        ("unknown-label", 8),
    }


def test_a_diary_is_read_by_beam_as_it_is_without(tmp_path: Path) -> None:
    reader = diary(tmp_path)
    assert reader.by_series is not None
    given = [part.readings for part in decoded_parts(reader) if part.readings is not None]

    def rows(batches: Iterable[pa.RecordBatch]) -> set[tuple[Any, ...]]:
        return {
            (row["series"], row["time"].strftime("%H:%M"), LABELS[int(row["value"])])
            for one in batches
            for row in one.to_pylist()
        }

    expected = {
        ("p1", "00:00", "sleep"),
        ("p1", "00:30", "sleep"),  # twenty minutes of thirty
        ("p2", "00:00", "walk"),
        ("p2", "00:30", "walk"),  # one minute, and nothing else
    }
    assert rows(reader.by_series.of(given)) == expected

    def same(batches: list[pa.RecordBatch]) -> None:
        assert rows(batches) == expected

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        found: Any = pipeline | reader
        assert_that(found.readings, same)
