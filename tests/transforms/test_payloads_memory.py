"""What decoders remember is bounded, whatever names come, and what is lost by that is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.settings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.births import Birth, Births
from quiltstream.transforms.payloads.bounded import Bounded

from .payloads import NOON_MS, NOON_S, messages, outcome
from .sparkplug import metric, payload

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
FLOODS = pytest.mark.parametrize("names", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])


@FLOODS
def test_a_flood_of_names_takes_no_more_memory_than_the_limit_and_each_that_is_forgotten_is_told(names: int):
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
    registers = decoder._worker[0]._registers
    assert registers is not None
    assert len(registers._known) == LIMIT
    assert sum(map(len, registers._known.values())) <= LIMIT + 5


def test_what_is_forgotten_loses_one_difference_and_gives_the_next():
    decoder = counters(remember=100)
    sent = [*(counter(0, 1.0, f"m{n}") for n in range(150))]
    rows, rejects = outcome(decoder, messages(*sent))
    assert rows == []
    assert rejects == [(at, "too-many-series") for at in range(100, 150)]
    rows, _ = outcome(decoder, messages(counter(1, 3.0, "m0")))
    assert rows == []
    rows, _ = outcome(decoder, messages(counter(2, 7.0, "m0")))
    assert [(name, value) for name, _, value in rows] == [("m0", 4.0)]


def test_a_message_for_which_many_are_forgotten_is_one_reject_and_its_readings_count():
    decoder = counters(remember=100)
    rows, rejects = outcome(decoder, messages(counter(0, 1.0, *(f"m{n}" for n in range(500)))))
    assert (rows, rejects) == ([], [(0, "too-many-series")])
    # a message that brings both its counters gives its differences, though others of it are forgotten at once
    both = {"r": [{"id": f"n{n}", "t": NOON_S + slot * SLOT_S, "v": slot} for n in range(500) for slot in (0, 1)]}
    rows, rejects = outcome(decoder, messages(json.dumps(both)))
    assert len(rows) == 500
    assert rejects == [(0, "too-many-series")]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.booleans()), max_size=200), st.integers(1, 40))
def test_the_memory_holds_no_more_than_its_limit_and_always_the_last(given: list[tuple[int, int, bool]], limit: int):
    memory = Bounded[int, int](limit, weigh=lambda one: one)
    there: set[int] = set()
    for name, weight, proved in given:
        forgotten = memory.keep(name, weight, proved=proved)
        there.add(name)
        there -= {one for one in there if memory.get(one) is None}
        assert sum(memory.values()) <= max(limit, weight)
        assert memory.get(name) == weight
        assert len(memory) == len(there)
        assert forgotten >= 0
        assert sorted(memory.names()) == sorted(there)


def test_names_that_proved_themselves_outlive_any_flood_of_others_and_make_room_when_they_are_gone():
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


DEVICE = "spBv1.0/plant/{}/edge1/{}"


def birth(time: int, *metrics: bytes) -> bytes:
    return payload(NOON_MS + time, metric("power", 5, kind=10, double=1.5), *metrics)


@FLOODS
def test_births_of_a_flood_of_invented_devices_take_no_more_memory_than_the_limit(names: int):
    readings = Readings(preset="sparkplug", value="power", remember=LIMIT)
    decoder = PayloadDecoder(readings)
    spoken = payload(NOON_MS + 1, metric(alias=5, double=2.0))
    first = messages(birth(0), spoken, topics=[DEVICE.format(kind, "real") for kind in ("DBIRTH", "DDATA")])
    assert outcome(decoder, first)[1] == []
    invented = birth(0)
    for batch in range(names // 10_000):
        topics = [DEVICE.format("DBIRTH", f"{batch}-{n}") for n in range(10_000)]
        decoder.decode(messages(*[invented] * len(topics), topics=topics))
    rows, rejects = outcome(decoder, messages(spoken, topics=[DEVICE.format("DDATA", "real")]))
    assert (len(rows), rejects) == (1, [])
    births = decoder._worker[0]._births
    assert births is not None
    assert len(births._known) <= LIMIT
    assert len(decoder.memory) < 100 * LIMIT


def test_a_birth_of_many_metrics_is_remembered_as_runs_of_aliases():
    births = Births("power", 1_000)
    births.learn(("g", "n"), Birth.of(5, {7: 10}, 10, [*range(100), *range(200, 100_000)]))
    found = births.before(("g", "n"), 5)
    assert found is not None
    assert found.others == ((0, 99), (200, 99_999))
    told = [alias for alias in (0, 7, 99, 100, 199, 200, 99_999, 100_000, 2**64 - 1) if found.told(alias)]
    assert told == [0, 7, 99, 200, 99_999]


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_runs_of_aliases_are_the_aliases(wanted: set[int], others: set[int]):
    found = Birth.of(0, dict.fromkeys(wanted, 1), 0, others)
    assert [alias for alias in range(42) if found.told(alias)] == sorted(wanted | others)


def test_what_is_remembered_of_births_travels_as_text():
    births = Births("power", 1_000)
    for node in range(20):
        for time in range(3):
            births.learn(("g", f"n{node}"), Birth.of(time, {5 + time: 10}, 3, [1, 2, 9]))
    again = Births("power", 1_000, births.text)
    assert again.text == births.text
    for node in range(20):
        for time in range(-1, 4):
            assert again.before(("g", f"n{node}"), time) == births.before(("g", f"n{node}"), time)
    assert Births("power", 1_000).text == ""


@pytest.mark.parametrize("text", ["", "births-9:xyz", "anything"])
def test_a_memory_of_another_version_is_none(text: str):
    assert Births("power", 1_000, text).text == ""


def test_a_memory_of_another_metric_is_none():
    births = Births("power", 1_000)
    births.learn(("g", "n"), Birth.of(0, {5: 10}, 10, []))
    assert Births("voltage", 1_000, births.text).before(("g", "n"), 0) is None


def test_a_decoder_begins_with_the_memory_it_is_given_and_forgets_what_it_was_not():
    decoder = PayloadDecoder(Readings(preset="sparkplug", value="power"))
    born = messages(birth(0), topics=[DEVICE.format("DBIRTH", "d")])
    spoken = messages(payload(NOON_MS + 1, metric(alias=5, double=2.0)), topics=[DEVICE.format("DDATA", "d")])
    decoder.decode(born)
    kept = decoder.memory
    assert outcome(decoder.fresh(), spoken) == ([], [(0, "unknown-alias")])
    assert len(outcome(decoder.fresh(kept), spoken)[0]) == 1
    assert decoder.fresh(kept).memory == kept
    assert PayloadDecoder(Readings(series="a", time="t", value="v")).memory == ""
