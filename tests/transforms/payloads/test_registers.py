from __future__ import annotations

import itertools
import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiltstream.schemas.settings.job import Settings, load_settings
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder

from .payloads import NOON_S, messages, outcome

SLOT_S = 900
SLOT_US = SLOT_S * 1_000_000
GRID = SlotGrid(SLOT_US, 0)
#: The slot that begins at noon.
FIRST_SLOT = NOON_S // SLOT_S

Cells = dict[tuple[str, int], float]


def readings(**register: Any) -> Readings:
    return Readings.model_validate(
        {"series": "id", "time": "r[*].t", "value": {"register": {"path": "r[*].v"} | register}}
    )


def decoder(late_slots: int = 0, scale: float = 1.0, **register: Any) -> PayloadDecoder:
    mapping = readings(**register).model_copy(update={"scale": scale})
    return PayloadDecoder(mapping, grid=GRID, lateness_us=late_slots * SLOT_US)


def message(*pairs: tuple[float, float], name: str = "m1") -> bytes:
    return json.dumps({"id": name, "r": [{"t": NOON_S + at * SLOT_S, "v": value} for at, value in pairs]}).encode()


def cells(decoding: PayloadDecoder, batches: list[list[bytes]]) -> Cells:
    """What the cells keep: the value with the latest time in each slot, the larger of two."""
    kept: dict[tuple[str, int], tuple[int, float]] = {}
    for batch in batches:
        rows, rejects = outcome(decoding, messages(*batch))
        assert rejects == []
        for name, time, value in rows:
            slot, offset = divmod(time, SLOT_US)
            cell = (name, slot - FIRST_SLOT)
            kept[cell] = max(kept.get(cell, (-1, 0.0)), (offset, value))
    return {cell: value for cell, (_, value) in kept.items()}


def test_the_value_of_a_slot_is_the_increment_of_the_register():
    """A reading on a boundary is the last of the slot that ends there."""
    pairs = [(0, 100.0), (1, 100.5), (2, 101.5), (3, 101.5)]
    expected = {("m1", 0): 0.5, ("m1", 1): 1.0, ("m1", 2): 0.0}
    assert cells(decoder(), [[message(*pairs)]]) == expected
    assert cells(decoder(), [[message(pair) for pair in pairs]]) == expected
    assert cells(decoder(), [[message(pair)] for pair in pairs]) == expected


def test_the_scale_is_applied_to_the_increment():
    assert cells(decoder(scale=1_000), [[message((0, 1.5), (1, 2.0))]]) == {("m1", 0): 500.0}


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 4))
@example(523_377, 20, 3)
@example(2 * 10**15, 3, 0)
def test_an_increment_of_decimals_is_a_decimal(before: int, rise: int, places: int):
    first, second = (float(Decimal(one) / 10**places) for one in (before, before + rise))
    assert cells(decoder(), [[message((0, first), (1, second))]]) == {("m1", 0): float(Decimal(rise) / 10**places)}


def test_a_slot_without_an_earlier_reading_has_no_value():
    assert cells(decoder(), [[message((0, 1.0), (2, 3.0), (3, 4.0))]]) == {("m1", 2): 1.0}


@pytest.mark.parametrize(
    ("rollover", "before", "after", "expected"),
    [
        (100_000, 99_999.0, 2.0, 3.0),
        (100_000, 60_000.0, 2.0, 40_002.0),
        (100_000, 40_000.0, 2.0, 2.0),
        (None, 99_999.0, 2.0, 2.0),
        (1_000, 99_999.0, 2.0, 2.0),
    ],
    ids=["over its end", "half way", "cleared", "no end", "beyond its end"],
)
def test_a_decreasing_register_is_a_rollover_or_a_reset(
    rollover: float | None, before: float, after: float, expected: float
):
    register: dict[str, Any] = {} if rollover is None else {"rollover": rollover}
    assert cells(decoder(**register), [[message((0, before), (1, after))]]) == {("m1", 0): expected}


def truth(sent: list[tuple[str, int, float]]) -> Cells:
    """The rise of each slot, from all readings at once: (name, second since noon, register)."""
    last: dict[tuple[str, int], tuple[int, float]] = {}
    for name, second, value in sent:
        slot = -(-second // SLOT_S) - 1
        last[name, slot] = max(last.get((name, slot), (second, value)), (second, value))
    return {
        (name, slot): value - last[name, slot - 1][1]
        for (name, slot), (_, value) in last.items()
        if (name, slot - 1) in last
    }


@pytest.mark.night
@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_the_outcome_depends_neither_on_order_nor_on_batches_nor_on_repeats(shuffle: random.Random, size: int):
    registers = {"m1": 0.0, "m2": 50.0}
    sent: list[tuple[str, int, float]] = []
    for _ in range(size):
        name = shuffle.choice(["m1", "m2"])
        registers[name] += shuffle.randrange(8) / 4
        second = max([one[1] for one in sent if one[0] == name], default=0) + shuffle.randrange(1, 700)
        sent.append((name, second, registers[name]))
    arriving = sent + shuffle.sample(sent, len(sent) // 2)
    shuffle.shuffle(arriving)
    batches: list[list[bytes]] = [[] for _ in range(shuffle.randrange(1, 6))]
    for number, (name, second, value) in enumerate(arriving):
        batches[number * len(batches) // len(arriving)].append(message((second / SLOT_S, value), name=name))
    found = cells(decoder(late_slots=40), batches)
    expected = truth(sent)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected)


def test_a_timestamp_of_a_wrong_clock_affects_no_other_slot():
    pairs = [(at, float(at * at)) for at in range(30)]
    far = message((1_000_000, 5.0)), message((-100_000, 7.0))
    batches = [[message(pair)] for pair in pairs]
    found = cells(decoder(), [*batches[:9], [far[0]], *batches[9:20], [far[1]], *batches[20:]])
    assert found == cells(decoder(), batches)


def test_the_slots_that_a_series_remembers_are_bounded():
    decoding = decoder(late_slots=3)
    for at in range(200):
        decoding.decode(messages(message((at + 0.25, float(at)))))
    between = [bool(outcome(decoding, messages(message((at + 0.5, at + 0.5))))[0]) for at in (100, 180, 195)]
    assert between == [False, False, True]


@pytest.mark.night
def test_a_reader_with_sufficient_look_back_loses_nothing():
    """After a restart at any message, the cells of the first and the second life together are those of one life."""
    pairs = [(at / 2, float(at)) for at in range(24)]
    expected = cells(decoder(late_slots=1), [[message(pair)] for pair in pairs])
    back = decoder(late_slots=1).lookback_us / SLOT_US
    for cut in range(24):
        first = cells(decoder(late_slots=1), [[message(pair)] for pair in pairs[:cut]])
        again = [pair for pair in pairs if pair[0] >= pairs[cut][0] - back]
        second = cells(decoder(late_slots=1), [[message(pair)] for pair in again])
        assert {cell: max(first.get(cell, 0.0), second.get(cell, 0.0)) for cell in {**first, **second}} == expected


@pytest.mark.night
def test_a_reader_without_look_back_loses_a_slot_and_gives_no_wrong_value():
    pairs = [(at / 2, float(at * at)) for at in range(1, 24)]
    expected = cells(decoder(), [[message(pair)] for pair in pairs])
    for cut in range(1, 23):
        first = cells(decoder(), [[message(pair)] for pair in pairs[:cut]])
        second = cells(decoder(), [[message(pair)] for pair in pairs[cut:]])
        merged = {cell: max(first.get(cell, 0.0), second.get(cell, 0.0)) for cell in {**first, **second}}
        unfinished = {cell for cell in merged if merged[cell] != expected[cell]}
        # the slot that was going on when the first life ended may be short of what came behind the cut
        assert all(cell in first and cell not in second for cell in unfinished)
        assert len(expected.keys() - merged.keys()) + len(unfinished) <= 2


def test_only_registers_require_a_look_back():
    assert PayloadDecoder(Readings(series="a", time="t", value="v"), grid=GRID).lookback_us == 0
    assert decoder().lookback_us == 2 * SLOT_US
    assert PayloadDecoder(readings(), grid=GRID, lateness_us=SLOT_US + 1).lookback_us == 4 * SLOT_US


SETTINGS = """\
readings: {preset: dsmr, value: {register: {name: 1-0:1.8.1, rollover: 1000000}}, scale: 1000}
slots: {interval: 15min}
states: {edges: [250, 500], unit: Wh}
model: {pi_min: 0.1, gap: 0.5}
windows: {size: 1d, lateness: 1h}
privacy: {epsilon: 1}
query: q
domain: d
most_error: 1e6
"""


def test_a_telegrams_counter_gives_the_load_of_each_slot():
    settings: Settings = load_settings(SETTINGS)
    decoding = PayloadDecoder.of(settings)
    assert decoding.lookback_us == 6 * SLOT_US
    telegrams = [
        f"/EXA5\r\n\r\n0-0:1.0.0(2601051{hour}W)\r\n0-0:96.1.1(4D31)\r\n1-0:1.8.1({value:010.3f}*kWh)\r\n!\r\n".encode()
        for hour, value in (("30000", 999_999.75), ("31500", 0.5), ("33000", 0.75))
    ]
    assert cells(decoding, [[one] for one in telegrams]) == {("M1", 0): 750.0, ("M1", 1): 250.0}


def test_groups_stay_with_their_readings():
    mapping = readings().model_copy(update={"attributes": {}})
    decoding = PayloadDecoder(mapping, grid=GRID, group="feeder")
    body = json.loads(message((0, 1.0), (1, 3.0)))
    rows, rejects = outcome(decoding, messages(json.dumps(body | {"feeder": "f7"})))
    assert [(row[0], row[2], row[3]) for row in rows] == [("m1", 2.0, "f7")]
    assert rejects == []


def test_two_readings_with_one_stamp_are_the_same_in_either_order():
    sent = [message((0, 5.0)), message((0, 6.0)), message((1, 9.0)), message((1, 8.0))]
    outcomes = [cells(decoder(), [[one] for one in order]) for order in itertools.permutations(sent)]
    assert all(one == outcomes[0] for one in outcomes)
    assert np.isclose(outcomes[0]["m1", 0], 4.0)


@pytest.mark.parametrize("first_us", [SLOT_US - 1_000_001, SLOT_US - 1_000_000])
def test_readings_a_microsecond_apart_are_the_same_in_any_order(first_us: int):
    """The times of rises are half the sum of two offsets, which must tell every later reading from an earlier one."""
    noon = NOON_S * 1_000_000

    def sent(at_us: int, value: float) -> bytes:
        return json.dumps({"id": "m1", "r": [{"t": noon + at_us, "v": value}]}).encode()

    pairs = [sent(first_us, 10.0), sent(first_us + 1, 500.0), sent(2 * SLOT_US - 999_999, 600.0)]
    in_us = readings().model_copy(update={"time_unit": "us"})
    outcomes = [
        cells(PayloadDecoder(in_us, grid=GRID, lateness_us=0), [[one] for one in order])
        for order in itertools.permutations(pairs)
    ]
    assert outcomes[0].keys() == {("m1", 1)}
    assert all(one == outcomes[0] for one in outcomes)
