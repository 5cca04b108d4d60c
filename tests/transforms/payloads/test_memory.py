"""What decoders remember is bounded, whatever names come, and what is lost by that is told."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Bounded
from quiltstream.transforms.payloads.meter_registers import Registers

from ...depth import examples
from .payloads import NOON_S, messages, outcome

SLOT_S = 900
GRID = SlotGrid(SLOT_S * 1_000_000, 0)
LIMIT = 1_000


def counters(**changes: Any) -> PayloadDecoder:
    readings = Readings.model_validate(
        {"series": "r[*].id", "time": "r[*].t", "value": {"register": {"path": "r[*].v"}}, "remember": LIMIT} | changes
    )
    return PayloadDecoder(readings, grid=GRID)


def counter(slot: int, value: float, *names: str) -> bytes:
    """A message with a counter of each name at the end of a slot."""
    return json.dumps({"r": [{"id": name, "t": NOON_S + slot * SLOT_S, "v": value} for name in names]}).encode()


#: How many names a flood has.
FLOODS = pytest.mark.parametrize("names", [30_000, pytest.param(1_000_000, marks=pytest.mark.night)])


@pytest.mark.night
@FLOODS
def test_a_flood_of_names_stays_within_the_memory_limit_and_is_reported(names: int):
    """One real meter speaks before and after the flood, and in the middle of it; all its differences are there."""
    decoder = counters()
    rises, crowded = 0, 0
    for slot in (0, 1):
        assert outcome(decoder, messages(counter(slot, slot, "real")))[1] == []
    for batch in range(names // 10_000):
        flood = [counter(2, 5.0, *(f"x{batch}-{one}-{n}" for n in range(100))) for one in range(100)]
        rows, rejects = outcome(decoder, messages(*flood))
        assert rows == []
        assert {reason for _, reason in rejects} <= {"too-many-series"}
        crowded += len(rejects)
        if batch in {1, names // 10_000 - 1}:
            rows, rejects = outcome(decoder, messages(counter(2 + rises, 7.0, "real")))
            assert [row[0] for row in rows] == ["real"]
            assert rejects == []
            rises += 1
    assert rises == 2
    assert crowded >= (names - LIMIT) / 100


def test_an_evicted_series_loses_one_difference_only():
    decoder = counters(remember=100)
    sent = [*(counter(0, 1.0, f"m{n}") for n in range(150))]
    rows, rejects = outcome(decoder, messages(*sent))
    assert rows == []
    assert rejects == [(at, "too-many-series") for at in range(100, 150)]
    rows, _ = outcome(decoder, messages(counter(1, 3.0, "m0")))
    assert rows == []
    rows, _ = outcome(decoder, messages(counter(2, 7.0, "m0")))
    assert [(name, value) for name, _, value in rows] == [("m0", 4.0)]


def test_a_message_that_evicts_many_series_is_one_reject_and_is_counted():
    decoder = counters(remember=100)
    rows, rejects = outcome(decoder, messages(counter(0, 1.0, *(f"m{n}" for n in range(500)))))
    assert (rows, rejects) == ([], [(0, "too-many-series")])
    # a message that brings both its counters gives its differences, though others of it are forgotten at once
    both = {"r": [{"id": f"n{n}", "t": NOON_S + slot * SLOT_S, "v": slot} for n in range(500) for slot in (0, 1)]}
    rows, rejects = outcome(decoder, messages(json.dumps(both)))
    assert len(rows) == 500
    assert rejects == [(0, "too-many-series")]


def registers(most: int, slot_s: int = SLOT_S, keep: int = 8) -> Registers:
    return Registers(SlotGrid(slot_s * 1_000_000, 0), keep=keep, most=most)


def rises(held: Registers, *sent: tuple[str, float, float]) -> list[tuple[str, int, float]]:
    """What readings (series, minute, counter) of one batch give: (series, microsecond, rise)."""
    names = pa.array([one[0] for one in sent], pa.string()).dictionary_encode()
    times = pa.array([int(one[1] * 60_000_000) for one in sent], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays(
        [names.cast(READING_SCHEMA.field("series").type), times, pa.array([one[2] for one in sent], pa.float64())],
        schema=READING_SCHEMA,
    )
    given = held.differences(batch).readings
    if given is None:
        return []
    at = given.column("time").cast(pa.int64()).to_pylist()
    return list(zip(given.column("series").to_pylist(), at, given.column("value").to_pylist(), strict=True))


def test_a_late_reading_of_an_evicted_series_counts_no_increment_twice():
    """Slot 1 has the 88 up to 200 already; 260 less the late 112 would count them in slot 2 again."""
    held = registers(2, slot_s=1_800)
    assert rises(held, ("a", 29, 112.0)) == []
    assert [rise for _, _, rise in rises(held, ("a", 55, 200.0))] == [88.0]
    for name in "bcd":
        for minute in (10, 40):
            rises(held, (name, minute, 1.0))
    assert rises(held, ("a", 36, 112.0)) == []
    assert rises(held, ("a", 85, 260.0)) == []
    assert [rise for _, _, rise in rises(held, ("a", 115, 265.0))] == [5.0]


def test_an_evicted_series_that_returns_in_one_batch_has_all_its_readings():
    """Its late reading comes together with those for which it would be forgotten."""
    held = registers(2, slot_s=1_800)
    rises(held, ("z", 29, 112.0))
    rises(held, ("z", 55, 200.0))
    flood = [(name, minute, 1.0) for name in "abc" for minute in (10, 40)]
    found = rises(held, *flood, ("z", 36, 112.0), ("z", 85, 260.0))
    assert [rise for name, _, rise in found if name == "z"] == [60.0]


@settings(deadline=None, max_examples=examples(60))
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_a_small_memory_emits_only_increments_of_a_full_memory(shuffle: random.Random, most: int):
    names = [f"m{number}" for number in range(shuffle.randrange(1, 9))]
    sent: list[tuple[str, float, float]] = []
    for name in names:
        minute, value = 0, 0.0
        for _ in range(shuffle.randrange(1, 12)):
            minute += shuffle.randrange(1, 30)
            value += shuffle.randrange(8)
            sent.append((name, minute, value))
    sent += shuffle.sample(sent, len(sent) // 2)
    shuffle.shuffle(sent)
    little, much = registers(most, keep=100), registers(1_000, keep=100)
    given: set[tuple[str, int, float]] = set()
    while sent:
        count = shuffle.randrange(1, 8)
        batch, sent = sent[:count], sent[count:]
        given |= set(rises(much, *batch))
        assert set(rises(little, *batch)) <= given


def test_a_retained_series_is_unaffected_by_evictions():
    held, alone = registers(8), registers(8)
    for slot in range(12):
        mine = ("real", 15 * slot + 5, float(slot * slot))
        assert rises(held, mine) == rises(alone, mine)
        if slot:
            # who was heard of in two slots outlives any number of names that were heard of in one
            rises(held, *((f"x{slot}-{n}", 15 * slot + 9, 1.0) for n in range(20)))


def test_a_clock_far_ahead_stops_no_series_for_good():
    """What was forgotten lies a hundred years ahead; another series is compared again when its memory is whole."""
    held = registers(2, keep=4)
    ahead = 100 * 365 * 24 * 60
    for name in "wxyz":
        rises(held, (name, ahead, 1.0))
    found = [rise for slot in range(12) for _, _, rise in rises(held, ("a", 15 * slot + 5, float(slot)))]
    assert found == [1.0] * 7


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=200), st.integers(1, 40))
def test_the_memory_holds_no_more_than_its_limit_and_always_the_last(given: list[tuple[int, bool]], limit: int):
    memory = Bounded[int, int](limit)
    there: set[int] = set()
    for number, (name, proved) in enumerate(given):
        before = len(there | {name})
        forgotten = memory.keep(name, number, proved=proved)
        there = {one for one in there | {name} if memory.get(one) is not None}
        assert memory.get(name) == number
        assert len(memory) == len(there) == before - forgotten <= limit
        assert sorted(memory.names()) == sorted(there)


def test_confirmed_names_survive_a_flood_and_are_evicted_when_unused():
    memory = Bounded[str, int](100)
    for n in range(70):
        memory.keep(f"real {n}", 0, proved=True)
    for n in range(10_000):
        memory.keep(f"invented {n}", 0)
    assert sum(name.startswith("real") for name in memory.names()) == 70
    for n in range(200):
        memory.keep(f"new {n}", 0)
        memory.keep(f"new {n}", 0, proved=True)
    assert sum(name.startswith("new") for name in memory.names()) >= 75
