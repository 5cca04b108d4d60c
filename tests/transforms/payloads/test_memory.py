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
from quiltstream.transforms.payloads.presets.sparkplug import Birth, Births

from ...depth import examples
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
FLOODS = pytest.mark.parametrize("names", [30_000, pytest.param(1_000_000, marks=pytest.mark.night)])


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
    registers = decoder._worker._registers
    assert registers is not None
    assert len(registers._known) == LIMIT
    assert sum(map(len, registers._known.values())) <= LIMIT + 5


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


DEVICE = "spBv1.0/plant/{}/edge1/{}"


def birth(time: int, *metrics: bytes) -> bytes:
    return payload(NOON_MS + time, metric("power", 5, kind=10, double=1.5), *metrics)


@FLOODS
def test_births_of_a_flood_of_devices_stay_within_the_memory_limit(names: int):
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
    births = decoder._worker._births
    assert births is not None
    assert len(births._known) <= LIMIT
    assert len(decoder.memory) < 100 * LIMIT


def test_a_birth_of_many_metrics_is_stored_as_ranges_of_aliases():
    births = Births("power", 1_000)
    births.learn(("g", "n"), Birth.of(5, {7: 10}, 10, [*range(100), *range(200, 100_000)]))
    found = births.before(("g", "n"), 5)
    assert found is not None
    assert found.others == ((0, 99), (200, 99_999))
    defined = [alias for alias in (0, 7, 99, 100, 199, 200, 99_999, 100_000, 2**64 - 1) if found.defines(alias)]
    assert defined == [0, 7, 99, 200, 99_999]


NODE = ("g", "n")


def crowded_out(births: Births, time: int, *, now: int | None = None) -> None:
    """Births of other nodes, for which every other is forgotten."""
    for number in range(20):
        births.learn(("g", f"x{number}"), Birth.of(time, {5: 10}, 10, []), now)


@pytest.mark.parametrize("births", [1, 4])
def test_births_of_one_heavy_node_take_no_other_nodes_memory(births: int):
    """Three births of 838 kB, whose node never sent data, made fifty homes unknown that had sent theirs."""
    decoder = PayloadDecoder(Readings(preset="sparkplug", value="power", remember=LIMIT))
    homes = [DEVICE.format("D{}", f"home{number}") for number in range(50)]
    spoken = payload(NOON_MS + 1, metric(alias=5, double=2.0))
    for one, kind in ((birth(0), "BIRTH"), (spoken, "DATA")):
        rows, rejects = outcome(decoder, messages(*[one] * 50, topics=[home.format(kind) for home in homes]))
        assert (len(rows), rejects) == (50, [])
    for number in range(births):
        heavy = birth(2 + number, *(metric("power", alias, double=1.0) for alias in range(6, 6 + 2 * LIMIT // births)))
        for kind, one in (("BIRTH", heavy), ("DATA", payload(NOON_MS + 9, metric("power", double=1.0)))):
            decoder.decode(messages(one, topics=[DEVICE.format("D" + kind, "heavy")]))
    rows, rejects = outcome(decoder, messages(*[spoken] * 50, topics=[home.format("DATA") for home in homes]))
    assert (len(rows), rejects) == (50, [])


def test_the_earlier_births_of_a_heavy_node_are_forgotten_and_never_guessed():
    births = Births("power", 400)
    light, lost, later = (Birth.of(at, dict.fromkeys(range(at), 10), 10, []) for at in (5, 90, 91))
    for one in (light, lost, later, light, lost):
        births.learn(NODE, one)
    again = Births("power", 400, births.text)
    for one in (births, again):
        # the first would fit again, but is not what held when the second one came
        assert [one.before(NODE, at) for at in (7, 90, 91, 100)] == [None, None, later, later]
    births.learn(NODE, Birth.of(100, dict.fromkeys(range(100), 10), 10, []))
    assert births.before(NODE, 101) is None
    births.learn(NODE, Birth.of(102, {5: 10}, 10, []))
    assert births.before(NODE, 103) == Birth.of(102, {5: 10}, 10, [])


def test_a_repeated_birth_older_than_an_evicted_one_is_ignored():
    """By alias 5 the message would be read by what the first birth said, though the second one gave it alias 6."""
    births = Births("power", 32)
    first, second = Birth.of(100, {5: 10}, 10, [6]), Birth.of(200, {6: 10}, 10, [5])
    births.learn(NODE, first)
    births.learn(NODE, second)
    crowded_out(births, 50)
    for _ in range(2):
        births.learn(NODE, first)
        assert births.before(NODE, 300) is None
        assert births.before(NODE, 150) is None
        # what was forgotten is known to whoever goes on as well
        births = Births("power", 32, births.text)
    births.learn(NODE, second)
    births.learn(NODE, first)
    assert births.before(NODE, 300) == second
    assert births.before(NODE, 199) is None
    assert Births("power", 32, births.text).before(NODE, 199) is None


def test_a_retained_node_is_unaffected_by_evictions():
    births = Births("power", 32)
    first = Birth.of(100, {5: 10}, 10, [])
    births.learn(NODE, first)
    assert births.before(NODE, 101, spoken=True) == first
    crowded_out(births, 1_000)
    crowded_out(births, 2_000)
    assert births.before(NODE, 3_000) == first
    # one that comes late is taken in, as nothing of this node was forgotten
    earlier = Birth.of(50, {7: 10}, 10, [])
    births.learn(NODE, earlier)
    assert births.before(NODE, 60) == earlier


def test_births_ahead_of_the_broker_clock_do_not_block_later_nodes():
    births = Births("power", 32)
    crowded_out(births, 1 << 62, now=1_000)
    again = Births("power", 32, births.text)
    for one in (births, again):
        one.learn(NODE, Birth.of(1_001, {5: 10}, 10, []), 1_001)
        found = one.before(NODE, 1_002)
        assert found is not None
        assert found.defines(5)


def test_births_of_a_clock_that_was_ahead_do_not_keep_right_ones_out():
    births, day = Births("power", 1_000), 24 * 3_600_000
    births.learn(NODE, Birth.of(0, {4: 10}, 10, []), 0)
    year = [Birth.of(365 * day + number, {9: 10}, 10, []) for number in range(8)]
    for one in year:
        births.learn(NODE, one, 1_000)
    assert births.before(NODE, 366 * day) == year[-1]
    for number in range(10):
        right = Birth.of(2_000 + number * day, {number: 10}, 10, [])
        births.learn(NODE, right, 2_000 + number * day)
        assert births.before(NODE, right.time + 1) == right
        births = Births("power", 1_000, births.text)
    # what was forgotten is never guessed: not by an earlier birth either
    assert births.before(NODE, 366 * day) is None
    later = Birth.of(367 * day, {7: 10}, 10, [])
    births.learn(NODE, later, 367 * day)
    assert births.before(NODE, 368 * day) == later


def test_late_births_do_not_displace_later_ones_of_a_right_clock():
    births = Births("power", 1_000)
    for number in range(1, 9):
        births.learn(NODE, Birth.of(1_000 * number, {number: 10}, 10, []), 10_000)
    births.learn(NODE, Birth.of(500, {20: 10}, 10, []), 10_000)
    assert births.before(NODE, 600) is None
    found = births.before(NODE, 8_500)
    assert found is not None
    assert found.defines(8)


def test_a_message_is_rejected_instead_of_read_by_an_outdated_birth():
    decoder = PayloadDecoder(Readings(preset="sparkplug", value="power", remember=100))
    born = [
        payload(NOON_MS + 100, metric("power", 5, double=1.5)),
        payload(NOON_MS + 200, metric("power", 6, double=1)),
    ]
    spoken = payload(NOON_MS + 300, metric(alias=5, double=2.0))
    stamps = [NOON_MS * 1_000 + at for at in (100_000, 200_000)]
    decoder.decode(messages(*born, topics=[DEVICE.format("DBIRTH", "d")] * 2, stamps_us=stamps))
    others = [DEVICE.format("DBIRTH", f"x{number}") for number in range(200)]
    decoder.decode(messages(*[birth(250)] * 200, topics=others, stamps_us=[NOON_MS * 1_000 + 250_000] * 200))
    topics = [DEVICE.format(kind, "d") for kind in ("DBIRTH", "DDATA")]
    _, rejects = outcome(decoder, messages(born[0], spoken, topics=topics))
    assert rejects == [(1, "unknown-alias")]


def test_the_state_of_births_is_serialised_as_text():
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


def test_births_with_long_meter_names_are_serialised_within_the_limit():
    births, source = Births("+/Power", 40_000), random.Random(5)  # noqa: S311 - test data
    for node in range(40):
        names = {at: f"{source.randbytes(450).hex()}/Power" for at in range(50)}
        births.learn(("g", f"n{node}"), Birth.of(1, {}, 0, [], names, dict.fromkeys(names.values(), 10)))
    assert len(births.text) < 20 * 40_000
    assert births.before(("g", "n39"), 2) is not None


def test_births_of_another_version_or_metric_are_ignored():
    for text in ("", "births-9:xyz", "anything"):
        assert Births("power", 1_000, text).text == ""
    births = Births("power", 1_000)
    births.learn(("g", "n"), Birth.of(0, {5: 10}, 10, []))
    assert Births("voltage", 1_000, births.text).before(("g", "n"), 0) is None


def test_a_fresh_decoder_has_exactly_the_given_memory():
    decoder = PayloadDecoder(Readings(preset="sparkplug", value="power"))
    born = messages(birth(0), topics=[DEVICE.format("DBIRTH", "d")])
    spoken = messages(payload(NOON_MS + 1, metric(alias=5, double=2.0)), topics=[DEVICE.format("DDATA", "d")])
    decoder.decode(born)
    kept = decoder.memory
    assert outcome(decoder.fresh(), spoken) == ([], [(0, "unknown-alias")])
    assert len(outcome(decoder.fresh(kept), spoken)[0]) == 1
    assert decoder.fresh(kept).memory == kept
    assert PayloadDecoder(Readings(series="a", time="t", value="v")).memory == ""
