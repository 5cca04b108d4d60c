"""The operators of mappings: each by a message of the kind it is for, and by what it must not make of others."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import SettingsError, problems_of
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder

from .damage import Steps, counted_once, damaged
from .payloads import FIRST, NOON_S, NOON_US, decode, dumped, messages

MINUTE_US = 60_000_000
BASE = {"series": "id", "time": "ts", "value": "v"}


def mapping(**more: Any) -> Readings:
    return Readings.model_validate(BASE | more)


def values(readings: Readings, *documents: Any, **beside: Any) -> tuple[list[float], list[tuple[int, str]]]:
    rows, rejects = decode(readings, dumped(*documents, **beside))
    return [row[2] for row in rows], rejects


def passed(readings: Readings, *documents: Any, **beside: Any) -> int:
    return sum(one.passed for one in PayloadDecoder(readings).decode(dumped(*documents, **beside)))


def one(**more: Any) -> dict[str, Any]:
    return {"id": "m1", "ts": NOON_S, "v": 1} | more


def test_the_whole_payload_may_be_the_value():
    readings = Readings.model_validate({"series": {"topic": 2}, "time": {"stamp": True}, "value": {"payload": True}})
    given = messages(
        "21.5", " 7\n", "unavailable", "", b"\xff", "1" * 200, '{"a": 1}',
        topics=[f"ha/m{at}/state" for at in range(7)], stamps_us=[NOON_US] * 7,
    )  # fmt: skip
    assert decode(readings, given) == (
        [("m0", NOON_US, 21.5), ("m1", NOON_US, 7.0)],
        [(2, "not-a-number"), (3, "missing-value"), (4, "not-a-number"), (5, "not-a-number"), (6, "not-a-number")],
    )


def test_states_that_are_no_numbers_are_passed_over_where_the_settings_say_so():
    readings = Readings.model_validate(
        {
            "series": {"topic": 2},
            "time": {"stamp": True},
            "value": {"payload": True},
            "where": [{"topic": -1, "equals": "state"}, {"payload": True, "differs": ["unavailable", "unknown"]}],
        }
    )
    given = messages(
        "3", "unknown", "unavailable", "W", "x",
        topics=["ha/p/state", "ha/p/state", "ha/p/state", "ha/p/unit", "ha/p/state"], stamps_us=[NOON_US] * 5,
    )  # fmt: skip
    assert decode(readings, given) == ([("p", NOON_US, 3.0)], [(4, "not-a-number")])
    assert sum(part.passed for part in PayloadDecoder(readings).decode(given)) == 3


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ({"equals": "a"}, ["a"]),
        ({"equals": ["a", None]}, ["a", None, "absent"]),
        ({"differs": "a"}, [1, True, None, "absent", [1]]),
        ({"equals": 1}, [1]),
        ({"equals": True}, [True]),
        ({"exists": True}, ["a", 1, True, [1]]),
        ({"exists": False}, [None, "absent"]),
    ],
)
def test_a_condition_reads_messages_that_answer_it_and_passes_the_others_over(
    condition: dict[str, Any], kept: list[Any]
):
    kinds = ["a", 1, True, None, "absent", [1]]
    bodies = [one(v=at) | ({} if kind == "absent" else {"kind": kind}) for at, kind in enumerate(kinds)]
    readings = mapping(where=[{"path": "kind", **condition}])
    found = [
        float(at)
        for at, kind in enumerate(kinds)
        if any(kind is each or (kind == each and type(kind) is type(each)) for each in kept)
    ]
    assert values(readings, *bodies) == (found, [])
    assert passed(readings, *bodies) == len(kinds) - len(found)


def test_elements_of_another_kind_are_passed_over_and_their_units_with_them():
    readings = Readings.model_validate(
        {
            "series": {"topic": 1},
            "time": "values[*].at",
            "value": "values[*].sampled[*].value",
            "where": [{"path": "values[*].sampled[*].measurand", "equals": ["Energy", None]}],
        }
    )
    body = {
        "values": [
            {
                "at": NOON_S,
                "sampled": [{"value": "1", "measurand": "Energy"}, {"value": "230", "measurand": "Voltage"}],
            },
            {"at": NOON_S + 1, "sampled": [{"value": "2"}, {"value": "x", "measurand": "Current"}]},
        ]
    }
    assert values(readings, body) == ([1.0, 2.0], [])
    other = {"values": [{"at": NOON_S, "sampled": [{"value": "230", "measurand": "Voltage"}]}]}
    assert values(readings, other) == ([], [])
    assert passed(readings, body, other, {"values": []}) == 2


def test_what_is_passed_over_need_not_have_the_array():
    readings = mapping(value="r[*]", where=[{"path": "r", "exists": True}])
    assert values(readings, one(), one(r=[4]), one(r=3)) == ([4.0], [(2, "malformed-row")])
    assert values(mapping(value={"path": "r[*]", "optional": True}), one(), one(r=[4, None]), one(r=3)) == (
        [4.0],
        [(2, "malformed-row")],
    )


def test_an_optional_part_that_is_missing_passes_the_reading_over():
    assert values(mapping(value={"path": "p", "optional": True}), one(), one(p=2), one(p="x")) == (
        [2.0],
        [(2, "not-a-number")],
    )
    assert values(mapping(series={"path": "s", "optional": True}), one(), one(s="a")) == ([1.0], [])
    assert values(mapping(time={"path": "t", "optional": True}), one(), one(t=NOON_S), one(t="x")) == (
        [1.0],
        [(2, "unparsable-time")],
    )


def test_the_first_place_that_has_something_counts():
    readings = mapping(value={"first": ["a", "b.c", "v"]}, time={"first": ["at", {"stamp": True}]})
    rows, rejects = decode(
        readings, dumped(one(a=5, b={"c": 6}), one(b={"c": 6}), one(at=NOON_S + 60), stamps_us=[NOON_US] * 3)
    )
    assert [(row[1] - NOON_US, row[2]) for row in rows] == [(0, 5.0), (0, 6.0), (MINUTE_US, 1.0)]
    assert rejects == []


def test_places_are_added():
    readings = mapping(value={"sum": ["p[0]", "p[1]", "p[2]"]})
    assert values(
        readings, one(p=[0.1, 0.2, 0.3]), one(p=[1, "2", 3]), one(p=[1, 2]), one(p=[1, 2, True]), one(p=[1, 2, "x"])
    ) == (
        [0.6, 6.0],
        [(2, "missing-value"), (3, "not-a-number"), (4, "not-a-number")],
    )
    largest = sys.float_info.max
    assert values(readings, one(p=[largest, largest, 1]), one(p=[10**30, 1, 1])) == ([1e30, largest], [])


def test_levels_and_fields_are_joined_to_one_name():
    readings = mapping(series={"join": [{"topic": 1}, {"topic": -1}, "id", {"constant": "x"}]})
    rows, rejects = decode(
        readings,
        dumped(
            one(), one(id=7), one(id=None), one(id="y" * 300), topics=["site/a/m", "site/b/n", "site/c/o", "site/d/p"]
        ),
    )
    assert [row[0] for row in rows] == ["site/m/m1/x", "site/n/7/x"]
    assert rejects == [(2, "missing-series"), (3, "malformed-row")]


#: Arrow's memory, with its peak; it lives as long as what is allocated there.
COUNTED = pa.proxy_memory_pool(pa.default_memory_pool())


def test_different_parts_never_join_to_one_name():
    two, single = mapping(series={"join": ["a", "c"]}), mapping(series={"join": ["a"]})
    texts = ["x", "y", "x/y", "y/z", "z", "~", "~1", "~0", "/", "x~1y", 7, "7"]
    pairs = [(a, c) for a in texts[:-1] for c in texts[:-1]]
    rows, rejects = decode(two, dumped(*[one(a=a, c=c) for a, c in pairs]))
    assert rejects == []
    assert len({row[0] for row in rows}) == len(rows) == len(pairs)
    assert {"x~1y/z", "x/y~1z", "~01/~1"} <= {row[0] for row in rows}
    # a number and its digits are one name, as without an operator; one part alone is as it stands
    assert {row[0] for row in decode(two, dumped(one(a=7, c="x"), one(a="7", c="x")))[0]} == {"7/x"}
    assert decode(single, dumped(one(a="x/y")))[0][0][0] == "x/y"


@pytest.mark.parametrize(
    "series",
    [
        {"join": [f"p[{at}]" for at in range(8)]},
        {"join": [{"constant": "a"}, {"topic": 1}, "p[0]", "p[1]"]},
        {"join": ["p[0]", "p[1]", "p[2]", "p[3]", "r[*].k"]},
        {"first": [{"join": ["p[0]", "p[1]", "p[2]", "p[3]"]}, "r[*].k"]},
        {"first": ["r[*].none", "long"]},
    ],
)
def test_a_name_is_not_written_anew_for_each_element_of_a_message(series: dict[str, Any]):
    count = 20_000
    body = one(p=["x" * 200] * 8, long="y" * 1_000, r=[{"k": "z", "v": 1}] * count)
    decoder = PayloadDecoder(mapping(series=series, value="r[*].v", where=[{"path": "v", "equals": 1}]))
    given = dumped(body)
    decoder.decode(dumped(one(p=["x"] * 8, r=[])))
    usual = pa.default_memory_pool()
    pa.set_memory_pool(COUNTED)
    tracemalloc.start()
    try:
        parts = decoder.decode(given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    found = [part.readings.num_rows for part in parts if part.readings is not None]
    assert found == ([] if len(series.get("join", ())) == 8 else [count])
    # a name of 800 characters for each row would be 16 MB; the parsed elements take 200 bytes each
    assert peak < 500 * count
    assert 0 < (COUNTED.max_memory() or 0) < 200 * count


def test_values_of_one_start_are_an_interval_apart():
    def at(every: Any, **more: Any) -> tuple[list[int], list[tuple[int, str]]]:
        rows, rejects = decode(mapping(time={"path": "ts", "every": every}, value="r[*]", **more), dumped(body))
        return [(row[1] - NOON_US) // MINUTE_US for row in rows], rejects

    body = one(r=[1, 2, 3], s=900, iso="PT15M", short="15min", no="soon")
    assert at("15min") == ([0, 15, 30], [])
    assert at({"path": "s"}) == ([0, 15, 30], [])
    assert at({"path": "iso"}) == ([0, 15, 30], [])
    assert at({"path": "short"}) == ([0, 15, 30], [])
    assert at({"path": "no"}) == ([], [(0, "unparsable-time")])
    assert at("15min", where=[{"path": "r[*]", "differs": 2}]) == ([0, 30], [])
    body = one(r=[1, 2], s=1e14)
    assert at({"path": "s"}) == ([], [(0, "unparsable-time")])


def test_the_number_of_an_element_begins_anew_in_each_array():
    readings = mapping(time={"path": "b[*].ts", "every": "1min"}, value="b[*].r[*]")
    rows, _ = decode(readings, dumped(one(b=[{"ts": NOON_S, "r": [1, 2]}, {"ts": NOON_S + 600, "r": [3, 4]}])))
    assert [(row[1] - NOON_US) // MINUTE_US for row in rows] == [0, 1, 10, 11]


def test_arrays_side_by_side_make_one_reading_of_each_number():
    readings = mapping(time="t[n]", value="x.v[n].w")
    good = one(t=[NOON_S, NOON_S + 60], x={"v": [{"w": 1}, {"w": 2}]})
    rows, rejects = decode(readings, dumped(good, one(t=[NOON_S], x={"v": []}), one(t=[]), one(t=[], x={"v": []})))
    assert [(row[1] - NOON_US, row[2]) for row in rows] == [(0, 1.0), (MINUTE_US, 2.0)]
    assert rejects == [(1, "malformed-row"), (2, "malformed-row")]
    inside = mapping(time="b[*].t[n]", value="b[*].v[n]", where=[{"path": "b[*].v[n]", "exists": True}])
    assert values(inside, one(b=[{"t": [NOON_S, NOON_S + 1], "v": [1, None]}, {"t": [NOON_S + 2], "v": [3]}])) == (
        [1.0, 3.0],
        [],
    )


def test_fields_of_an_object_are_series_by_their_names():
    readings = mapping(series="m[fields][name]", value="m[fields].w")
    rows, rejects = decode(readings, dumped(one(m={"a": {"w": 1}, "b.c": {"w": 2}}), one(m=[1]), one(m={"d": 1})))
    assert rows == [("a", NOON_US, 1.0), ("b.c", NOON_US, 2.0)]
    assert rejects == [(1, "malformed-row"), (2, "missing-value")]
    flat = Readings.model_validate(
        {"series": "[fields][name]", "time": {"stamp": True}, "value": "[fields]",
         "where": [{"path": "[fields][name]", "differs": "id"}]}
    )  # fmt: skip
    assert decode(flat, dumped({"1": 10, "2": 20, "id": "x"}, stamps_us=[NOON_US])) == (
        [("1", NOON_US, 10.0), ("2", NOON_US, 20.0)],
        [],
    )


def test_json_and_base64_in_texts_are_unpacked_by_the_path():
    inner = json.dumps({"r": [{"w": 3}, {"w": 4}]})
    packed = base64.b64encode(inner.encode()).decode()
    assert values(
        mapping(value="body[json].r[*].w"), one(body=inner), one(body={"r": [{"w": 5}]}), one(body="{"), one()
    ) == (
        [3.0, 4.0, 5.0],
        [(2, "malformed-row"), (3, "malformed-row")],
    )
    assert values(mapping(value="body[base64][json].r[1].w"), one(body=packed), one(body="#"), one(body=3)) == (
        [4.0],
        [(1, "malformed-row"), (2, "malformed-row")],
    )


@pytest.mark.parametrize(
    "text", ["[" * 100_000 + "1e99", '{"v":' * 100_000 + "1e99", '{"v": 1, "x": ' + "[" * 100_000 + "1e99"]
)
def test_a_text_of_brackets_alone_makes_its_own_message_a_reject(text: str):
    rows, rejects = decode(mapping(value="body[json].v"), dumped(one(body=text), one(body='{"v": 1e99}')))
    assert rows == [("m1", NOON_US, 1e99)]
    assert [number for number, _ in rejects] == [0]
    assert decode(mapping(), messages(text)) == ([], [(0, "malformed-row")])


@pytest.mark.parametrize(
    "value", ["body[json].r[*].w", {"first": ["body[json].v", "v"]}, {"path": "body[json].v", "optional": True}]
)
def test_damaged_texts_inside_messages_raise_nothing_and_count_once(value: Any):
    chance = random.Random(NOON_S)  # noqa: S311 - chance of a test
    inner = json.dumps({"v": 2, "r": [{"w": 3}, {"w": 4.5e3}]}).encode()
    texts = [damaged(inner, chance).decode("latin-1") for _ in range(40)]
    texts += [text.replace("3", "[" * 2_000 + "1e99") for text in texts[:20]]
    readings = mapping(value=value)
    counted_once(lambda: PayloadDecoder(readings), dumped(*[one(body=text) for text in texts]))


DAMAGED: tuple[Any, ...] = ("{broken", 5, True)


@pytest.mark.parametrize(
    "more",
    [
        {"value": {"path": "b[json].v", "optional": True}},
        {"value": {"first": ["b[base64][json].v", "v"]}},
        {"value": {"first": ["b[json]", "v"]}, "series": {"path": "b[json].id", "optional": True}},
        {"value": {"path": "v", "unit": {"first": ["b[json].unit", {"constant": "W"}]}, "optional": True}, "unit": "W"},
        {"series": {"join": ["id", "b[json].id"]}},
        {"time": {"first": ["b[json].ts", "ts"]}},
        {"where": [{"path": "b[json].kind", "equals": "x"}]},
        {"where": [{"path": "b[json].kind", "exists": False}]},
        {"where": [{"path": "b[json].list[0].kind", "differs": "x"}, {"path": "v", "equals": 1}]},
        {"value": "b[json].r[*]", "where": [{"path": "b[json].r[*]", "exists": True}]},
    ],
)
def test_what_cannot_be_unpacked_is_a_reject_and_no_silence(more: dict[str, Any]):
    rows, rejects = decode(mapping(**more), dumped(*[one(b=text) for text in DAMAGED]))
    assert rows == []
    assert [number for number, _ in rejects] == [0, 1, 2]
    assert {reason for _, reason in rejects} <= {"malformed-row", "mixed-units"}


def test_what_is_not_there_or_is_asked_away_is_silence_still():
    optional = mapping(value={"path": "b[json].v", "optional": True})
    bodies = [one(), one(b=None), one(b=""), one(b="{}"), one(b="null"), one(b={"v": 3})]
    assert values(optional, *bodies) == ([3.0], [])
    assert values(mapping(value={"first": ["b[base64][json].v", "v"]}), one(), one(b="e30=")) == ([1.0, 1.0], [])
    asked = mapping(where=[{"path": "b[json].k", "equals": 1}, {"path": "v", "equals": 2}])
    assert values(asked, one(b="{broken"), one(b="{broken", v=2), one(b='{"k": 1}', v=2)) == (
        [2.0],
        [(1, "malformed-row")],
    )
    # other elements of the message count
    inside = mapping(value="r[*].b[json].v")
    assert values(inside, one(r=[{"b": '{"v": 1}'}, {"b": "{"}, {"b": '{"v": 2}'}])) == (
        [1.0, 2.0],
        [(0, "malformed-row")],
    )


@pytest.mark.parametrize(
    ("given", "decimal", "expected"),
    [
        ("12.3 kWh", ".", 12.3),
        ("12.3kWh", ".", 12.3),
        ("12300 Wh", ".", 12.3),
        ("0.0123 MWh", ".", 12.3),
        ("12,3 kWh", ",", 12.3),
        ("1e4 Wh", ".", 10.0),
        ("12,3 kWh", ".", "not-a-number"),
        ("1.234,5 kWh", ",", "not-a-number"),
        ("12.3 kW", ".", "mixed-units"),
        ("12.3", ".", "mixed-units"),
        ("12.3 apples", ".", "mixed-units"),
        ("kWh", ".", "not-a-number"),
        ("", ".", "missing-value"),
        (None, ".", "missing-value"),
        (12.3, ".", 12.3),
    ],
)
def test_a_number_with_its_unit_is_read_in_the_wanted_unit(given: Any, decimal: str, expected: float | str):
    readings = mapping(value={"path": "v", "unit": True}, unit="kWh", decimal=decimal)
    found = ([expected], []) if isinstance(expected, float) else ([], [(0, expected)])
    assert values(readings, one(v=given)) == found


def test_units_beside_the_values_are_converted_one_by_one():
    unit = {"first": ["r[*].unit", {"constant": "Wh"}]}
    readings = mapping(value={"path": "r[*].v", "unit": unit}, unit="kWh")
    body = one(
        r=[
            {"v": "1.1", "unit": "kWh"},
            {"v": 1100},
            {"v": 1100.0, "unit": "Wh"},
            {"v": 1, "unit": "W"},
            {"v": 1, "unit": 3},
        ]
    )
    assert values(readings, body) == ([1.1, 1.1, 1.1], [(0, "mixed-units")])


def test_several_units_stay_a_reject_under_operators_that_convert_none():
    mixed = one(r=[{"v": 1, "unit": "W"}, {"v": 2, "unit": "V"}])
    for value in ({"path": "r[*].v", "optional": True}, {"first": ["r[*].v", "r[*].w"]}, {"sum": ["r[*].v", "v"]}):
        assert values(mapping(value=value), mixed) == ([], [(0, "mixed-units")])
    assert values(mapping(value="m[fields].v"), one(m={"a": {"v": 1, "unit": "W"}, "b": {"v": 2, "unit": "V"}})) == (
        [],
        [(0, "mixed-units")],
    )


def test_decimal_commas_in_texts_are_read_where_the_settings_say_so():
    assert values(mapping(decimal=","), one(v="1,5"), one(v=2.5), one(v="1.5")) == ([1.5, 2.5], [(2, "not-a-number")])


def test_nanoseconds_are_read_as_numbers_and_as_text():
    stamp = NOON_S * 10**9 + 123_456_789
    rows, rejects = decode(
        mapping(time_unit="ns"), dumped(one(ts=stamp), one(ts=str(stamp)), one(ts="9" * 19), one(ts=f"{'1' * 18}x"))
    )
    assert [row[1] - NOON_US for row in rows] == [123_456, 123_456]
    assert rejects == [(2, "unparsable-time"), (3, "unparsable-time")]


def test_the_root_of_a_path_is_the_whole_document():
    assert values(mapping(value="$.v"), one(v=4), one(v=5, **{"$": 9})) == ([4.0, 5.0], [])
    assert values(mapping(value='["$"]'), one(**{"$": 9})) == ([9.0], [])
    whole = Readings.model_validate({"series": {"topic": 1}, "time": {"stamp": True}, "value": {"path": "$"}})
    assert decode(whole, messages("4.5", '{"$": 1}', "x", stamps_us=[NOON_US] * 3)) == (
        [("meters", NOON_US, 4.5)],
        [(1, "not-a-number"), (2, "malformed-row")],
    )


def test_a_counter_may_be_a_sum_in_a_unit_of_its_own():
    readings = mapping(value={"register": {"path": "v", "unit": True}}, unit="kWh")
    decoder = PayloadDecoder(readings, grid=SlotGrid(MINUTE_US))
    rows = decoder.decode(dumped(one(v="1 kWh"), one(ts=NOON_S + 60, v="1500 Wh")))
    assert [row for part in rows if part.readings is not None for row in part.readings.column("value").to_pylist()] == [
        0.5
    ]


def test_operators_read_avro_as_they_read_json():
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "a", "type": ["null", "double"]},
            {"name": "b", "type": "double"},
        ],
    }
    readings = Readings.model_validate(
        BASE | {"payload": "avro", "value": {"sum": ["a", "b"]}, "where": [{"path": "a", "exists": True}]}
    )
    bodies = [{"id": "m1", "ts": NOON_S * 1000, "a": at or None, "b": 1.0} for at in (0.0, 2.0)] * 20

    def wire(body: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, body)
        return b"\0" + struct.pack(">I", 7) + stream.getvalue()

    rows, rejects = decode(readings, messages(*map(wire, bodies)), schemas=lambda _: schema)
    assert rows == [("m1", NOON_US, 3.0)] * 20
    assert rejects == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"value": {"first": []}}, "value.first is"),
        ({"value": {"sum": ["a", "b["]}}, "'b[' is no path at character 2"),
        ({"value": {"sum": [{"path": "a", "optional": True}]}}, "unit, every and optional are of a whole place"),
        ({"value": {"sum": [{"stamp": True}]}}, "the broker's stamp is a time"),
        ({"value": {"first": [{"stamp": True}]}}, "the broker's stamp is a time"),
        ({"value": {"first": [{"first": [{"first": [{"first": ["a"]}]}]}]}}, "at most 3 operators"),
        ({"value": {"path": "v", "unit": True}}, "readings.unit is missing"),
        ({"value": {"path": "v", "every": "1min"}}, "value.every is of readings.time only"),
        ({"value": {"join": ["a"]}}, "value.join makes a name"),
        ({"series": {"sum": ["a"]}}, "unit and sum are of readings.value only"),
        ({"value": {"path": "a[name]"}}, "[name] stands behind [fields] only"),
        ({"value": {"path": "a[fields][name].b"}}, "nothing is inside a name"),
        ({"value": {"register": {"path": "a", "stamp": True}}}, "stamp is of no counter"),
        ({"where": [{"path": "a"}]}, "where.0: say exactly one of equals, differs and exists; 0 are given"),
        ({"where": [{"path": "a", "equals": 1, "exists": True}]}, "2 are given"),
        ({"where": [{"equals": 1}]}, "where.0: name exactly one of"),
        ({"where": [{"path": "a[", "equals": 1}]}, "'a[' is no path"),
    ],
)  # fmt: skip
def test_a_wrong_operator_is_named_with_its_field(document: dict[str, Any], message: str):
    with pytest.raises(ValidationError) as caught:
        mapping(**document)
    assert message in "\n".join(problems_of(caught.value))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"time": "t[n]", "value": "v[*]"}, "run over different arrays"),
        ({"value": "a[n].b[*]"}, "[n] is the last wildcard"),
        ({"time": "a[*].t[n]", "value": "v[n]"}, "run over different arrays"),
        ({"value": "a[*].v", "where": [{"path": "b[*].k", "equals": 1}]}, "run over different arrays"),
        ({"value": {"first": ["a[*]", "b[*]"]}}, "run over different arrays"),
    ],
)
def test_paths_over_different_arrays_are_refused_before_any_message(document: dict[str, Any], message: str):
    with pytest.raises(SettingsError) as caught:
        PayloadDecoder(mapping(**document)).check()
    assert message in str(caught.value)


@pytest.mark.parametrize("path", ["tags[*]", "r[*].tags[*]", "r[*].tags[fields].k"])
def test_a_condition_that_would_multiply_readings_is_refused_before_any_message(path: str):
    condition = [{"path": "v", "exists": True}, {"path": path, "equals": "a"}]
    with pytest.raises(SettingsError, match=r"readings\.where\.1 is path .* series, time nor value runs over"):
        PayloadDecoder(mapping(value="v" if path == "tags[*]" else "r[*].v", where=condition)).check()
    good = mapping(value="r[*].v", where=[{"path": "r[*].tags[0]", "equals": "a"}])
    assert values(good, one(r=[{"v": 1, "tags": ["a", "a"]}, {"v": 2, "tags": []}])) == ([1.0], [])


@pytest.mark.parametrize(
    "document",
    [
        {"value": {"first": ["a", {"sum": ["b", "c"]}], "optional": True}},
        {"time": {"path": "t", "every": {"path": "s"}}, "where": [{"topic": 1, "equals": ["a", None]}]},
        {"value": {"register": {"sum": ["a", "b"], "unit": True, "rollover": 10}}, "unit": "kWh"},
        {"where": [{"path": "a", "exists": False}], "series": {"join": [{"topic": 1}, {"constant": "x"}]}},
    ],
)
def test_a_mapping_with_operators_is_written_as_it_was_given(document: dict[str, Any]):
    written = mapping(**document).model_dump(mode="json", exclude_defaults=True)
    assert written == BASE | document
    assert Readings.model_validate(written) == mapping(**document)


LINEAR: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "where": (
        {"value": "r[*].v", "where": [{"path": "r[*].k", "equals": 1}, {"path": "body[json].x", "exists": True}]},
        lambda n: one(r=[{"v": 1, "k": at % 2} for at in range(n)], body=json.dumps({"x": [1] * n})),
    ),
    "a text beside an array": (
        {"time": "body[json].t", "value": {"sum": ["r[*]", "body[json].v"]}},
        lambda n: one(r=[1] * n, body=json.dumps({"t": NOON_S, "v": 1, "x": [1] * n})),
    ),
    "interval": ({"time": {"path": "ts", "every": "1s"}, "value": "r[*]"}, lambda n: one(r=[1] * n)),
    "side by side": ({"time": "t[n]", "value": "r[n]"}, lambda n: one(r=[1] * n, t=[NOON_S] * n)),
    "fields": ({"series": "m[fields][name]", "value": "m[fields]"}, lambda n: one(m={f"m{at}": 1 for at in range(n)})),
    "units": (
        {"value": {"path": "r[*]", "unit": True}, "unit": "kWh", "decimal": ","},
        lambda n: one(r=["1,5 Wh"] * n),
    ),
    "names": (
        {"series": {"join": ["id", "r[*].k"]}, "value": "r[*].v"},
        lambda n: one(id="x" * 200, r=[{"k": at, "v": 1} for at in range(n)]),
    ),
    "inside one another": (
        {"value": {"first": [{"sum": ["r[*].a", "r[*].b"]}, "r[*].v"]}},
        lambda n: one(r=[{"v": 1}] * n),
    ),
}


@pytest.mark.parametrize("case", LINEAR)
def test_no_operator_takes_more_than_linear_steps(case: str):
    document, body = LINEAR[case]
    decoder = PayloadDecoder(mapping(**document))
    small, large = dumped(body(64)), dumped(body(16 * 64))
    decoder.decode(small)
    first, second = Steps(lambda: decoder.decode(small)).count, Steps(lambda: decoder.decode(large)).count
    assert second <= 16 * first


def test_positions_of_rejects_are_those_of_the_messages():
    parts = PayloadDecoder(mapping(where=[{"path": "k", "equals": 1}])).decode(dumped(one(), one(k=1, v="x")))
    assert [part.rejects[0].positions.tolist() for part in parts] == [[FIRST + 1]]
