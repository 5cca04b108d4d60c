"""Mappings: paths, operators, conditions and units."""

from __future__ import annotations

import base64
import datetime as dt
import gc
import io
import json
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import cbor2
import fastavro
import pyarrow as pa
import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import SettingsError, problems_of
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.files import FileDecoder, decoder_of

from ..formats.decoding import avro_record
from .damage import Steps, counted_once, damaged
from .payloads import NOON_MS, NOON_S, NOON_US, decode, dumped, messages, preset

PLAIN = Readings.model_validate(
    {"series": {"topic": 2}, "time": {"path": "ts"}, "time_unit": "ms", "value": {"path": "values.power"}}
)
FLAT = Readings(series="id", time="ts", value="kwh")


def flat(**fields: Any) -> str:
    return json.dumps({"id": "m1", "ts": NOON_S, "kwh": 1.5} | fields)


def test_a_plain_string_is_a_path_in_a_message():
    assert decode(FLAT, messages(flat())) == ([("m1", NOON_US, 1.5)], [])
    nested = Readings(series="meter.id", time="ts", value='kwh["in.total"]')
    given = messages(json.dumps({"meter": {"id": "a"}, "ts": NOON_S, "kwh": {"in.total": 3}}))
    assert decode(nested, given) == ([("a", NOON_US, 3.0)], [])


def test_every_element_of_an_array_is_a_reading():
    readings = Readings(series="id", time="readings[*].ts", value="readings[*].value")
    given = messages(
        json.dumps({"id": "a", "readings": [{"ts": NOON_S + i, "value": i} for i in range(3)]}),
        json.dumps({"id": "b", "readings": []}),
        json.dumps({"id": "c", "readings": [{"ts": NOON_S, "value": 9}]}),
    )
    expected = [("a", NOON_US + i * 1_000_000, float(i)) for i in range(3)] + [("c", NOON_US, 9.0)]
    assert decode(readings, given) == (expected, [])


def test_arrays_may_lie_in_arrays_and_be_the_whole_payload():
    readings = Readings(series="[*].id", time="[*].at[*].ts", value="[*].at[*].v", time_unit="s")
    given = messages(
        json.dumps([{"id": name, "at": [{"ts": NOON_S + i, "v": i} for i in range(2)]} for name in ("a", "b")])
    )
    expected = [(name, NOON_US + i * 1_000_000, float(i)) for name in ("a", "b") for i in range(2)]
    assert decode(readings, given) == (expected, [])


def test_one_element_of_an_array_can_be_named():
    readings = Readings(series="id", time="t[0]", value="t[1]")
    given = messages(json.dumps({"id": "a", "t": [NOON_S, 4]}), json.dumps({"id": "a", "t": [NOON_S]}))
    assert decode(readings, given) == ([("a", NOON_US, 4.0)], [(1, "missing-value")])


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"topic": 1}, "site"),
        ({"topic": -1}, "m7"),
        ({"header": "device"}, "h7"),
        ({"key": True}, "k/7"),
        ({"key": True, "level": 2}, "7"),
        ({"constant": "only"}, "only"),
        ({"path": "id"}, "p7"),
        ({"column": "a.b"}, "c7"),
    ],
)
def test_the_series_is_read_from_the_place_in_the_settings(place: dict[str, Any], expected: str):
    readings = Readings.model_validate({"series": place, "time": {"path": "ts"}, "value": {"path": "v"}})
    given = messages(
        json.dumps({"id": "p7", "a.b": "c7", "ts": NOON_S, "v": 1}),
        topics=["site/x/m7"],
        keys=[b"k/7"],
        headers=[(("device", b"old"), ("device", b"h7"))],
    )
    assert decode(readings, given) == ([(expected, NOON_US, 1.0)], [])


def test_levels_of_a_topic_without_slashes_are_between_dots():
    given = messages(
        json.dumps({"ts": NOON_MS, "values": {"power": 1}}),
        json.dumps({"ts": NOON_MS, "values": {"power": 2}}),
        json.dumps({"ts": NOON_MS, "values": {"power": 3}}),
        topics=["hono.telemetry", "meters", "alone"],
        headers=[(), (("mqtt-topic", b"site/m8/up"),), ()],
    )
    assert decode(PLAIN, given) == ([("m8", NOON_US, 2.0), ("telemetry", NOON_US, 1.0)], [(2, "missing-series")])


def test_the_time_may_be_the_broker_timestamp_for_any_time_unit():
    readings = Readings.model_validate(
        {"series": {"key": True}, "time": {"stamp": True}, "time_unit": "ns", "value": {"path": "v"}}
    )
    given = messages('{"v": 1}', '{"v": 2}', keys=[b"a", b"b"], stamps_us=[NOON_US + 7, -1])
    assert decode(readings, given) == ([("a", NOON_US + 7, 1.0)], [(1, "unparsable-time")])


def test_times_of_several_formats_may_be_mixed():
    given = messages(
        flat(),
        flat(ts=NOON_S + 0.25),
        flat(ts="2026-01-05T12:00:01Z"),
        flat(ts="2026-01-05T13:00:02+01:00"),
        flat(ts="2026-01-05T13:00:03"),
        flat(ts=None),
        flat(ts=True),
        flat(ts=[1]),
        flat(ts="soon"),
    )
    rows, rejects = decode(FLAT, given, timezone="Europe/Paris")
    assert [row[1] - NOON_US for row in rows] == [0, 250_000, 1_000_000, 2_000_000, 3_000_000]
    assert rejects == [(at, "unparsable-time") for at in (5, 6, 7, 8)]


def test_times_of_several_formats_may_apply_to_many_readings_each():
    readings = Readings(series="id", time="ts", value="kwh[*]")
    stamps = (NOON_S, "2026-01-05T12:00:01Z", NOON_S + 2.0, None)
    rows, rejects = decode(readings, messages(*[flat(ts=stamp, kwh=[1, "x", 2]) for stamp in stamps]))
    assert [(row[1] - NOON_US, row[2]) for row in rows] == [(1_000_000 * at, v) for at in range(3) for v in (1.0, 2.0)]
    assert rejects == [(0, "not-a-number"), (1, "not-a-number"), (2, "not-a-number"), (3, "unparsable-time")]


def test_times_of_another_unit_are_rejects():
    """Seconds taken for milliseconds fall into January 1970, the other way round into the year 58,000."""
    seconds, milliseconds = messages(flat(), flat(ts="1970-01-02T00:00Z")), messages(flat(ts=NOON_MS))
    assert decode(FLAT.model_copy(update={"time_unit": "ms"}), seconds)[1] == [
        (0, "implausible-time"),
        (1, "implausible-time"),
    ]
    assert decode(FLAT, milliseconds)[1] == [(0, "unparsable-time")]
    assert decode(FLAT, messages(flat(ts=2**63), flat(ts=-(2**70)), flat(ts=1e300)))[1] == [
        (0, "unparsable-time"),
        (1, "unparsable-time"),
        (2, "unparsable-time"),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", 3.0),
        ('"3.25"', 3.25),
        ('" 4 "', 4.0),
        ("18446744073709551615", 18446744073709551615.0),
        ("1e999", 1.7976931348623157e308),
        ("-1e999", -1.7976931348623157e308),
        ("9" * 400, 1.7976931348623157e308),
        ("null", "missing-value"),
        ('""', "missing-value"),
        ("true", "not-a-number"),
        ("[1]", "not-a-number"),
        ('{"a": 1}', "not-a-number"),
        ('"much"', "not-a-number"),
        ('"1e400"', 1.7976931348623157e308),
        ('"nan"', "not-finite"),
        ("NaN", "malformed-row"),
        ('"' + "9" * 101 + '"', "not-a-number"),
    ],
)
def test_a_value_is_read_equally_alone_and_in_a_batch(value: str, expected: float | str):
    one = flat().replace("1.5", value)
    rows, rejects = ([("m1", NOON_US, expected)], []) if isinstance(expected, float) else ([], [(0, expected)])
    assert decode(FLAT, messages(one)) == (rows, rejects)
    among, lost = decode(FLAT, messages(one, flat(id="z"), flat(id="z", ts=NOON_S + 1, kwh="2"), flat(id="z", kwh={})))
    assert [row for row in among if row[0] != "z"] == rows
    assert [pair for pair in lost if pair[0] == 0] == rejects


@pytest.mark.parametrize("name", ["[]", "{}", "true", "1.5", '"' + "x" * 1_001 + '"'])
def test_an_invalid_series_name_makes_a_malformed_message(name: str):
    assert decode(FLAT, messages(flat().replace('"m1"', name), flat())) == (
        [("m1", NOON_US, 1.5)],
        [(0, "malformed-row")],
    )


def test_a_number_is_a_valid_series_name_and_an_empty_text_is_missing():
    given = messages(flat(id=17), flat(id=""), flat(id=None), flat(id="  "))
    assert decode(FLAT, given) == ([("17", NOON_US, 1.5)], [(at, "missing-series") for at in (1, 2, 3)])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"id": "m1"',
        b"\xff\xfe",
        b'{"id": "\xc3\x28"}',
        b'{"id": "\\ud800"}',
        flat().encode() + b"x",
        b"nul",
    ],
)
def test_a_payload_that_is_not_json_is_one_reject(payload: bytes):
    assert decode(FLAT, messages(payload, flat())) == ([("m1", NOON_US, 1.5)], [(0, "malformed-row")])


def test_json_of_another_shape_is_one_reject_and_never_an_error():
    given = messages("1", '"text"', "null", "[]", "[[]]", "{}", "true")
    assert decode(FLAT, given) == ([], [(at, "missing-series") for at in range(7)])
    over = Readings(series="id", time="r[*].t", value="r[*].v")
    assert decode(over, messages("1", '{"id": "a"}', '{"id": "a", "r": 1}', '{"id": "a", "r": [1]}'))[1] == [
        (0, "malformed-row"),
        (1, "malformed-row"),
        (2, "malformed-row"),
        (3, "unparsable-time"),
    ]


def test_a_message_with_some_bad_readings_gives_the_others_and_counts_once():
    readings = Readings(series="id", time="r[*].t", value="r[*].v")
    rows = [{"t": NOON_S + i, "v": "x" if i % 2 else i} for i in range(6)] + [{"t": "never", "v": 1}]
    found, rejects = decode(readings, messages(json.dumps({"id": "a", "r": rows})))
    assert [row[2] for row in found] == [0.0, 2.0, 4.0]
    assert len(rejects) == 1


def test_a_message_above_the_limit_is_a_reject_and_a_tombstone_is_skipped():
    large = flat(text="x" * 1_000_000)
    assert decode(FLAT, messages(large, None, flat())) == ([("m1", NOON_US, 1.5)], [(0, "too-large")])
    small = FLAT.model_copy(update={"max_bytes": 10})
    assert decode(small, messages(flat(), None)) == ([], [(0, "too-large")])


def test_a_device_that_floods_one_message_is_read_without_repeating_its_name():
    readings = Readings(series="id", time="t", value="v[*]")
    payload = json.dumps({"id": "m" * 1_000, "t": NOON_S, "v": [1] * 300_000})
    (part,) = PayloadDecoder(readings).decode(messages(payload))
    assert part.readings is not None
    assert part.readings.num_rows == 300_000
    assert len(part.readings.column("series").dictionary) == 1


def test_a_group_is_read_from_an_attribute_or_a_path():
    readings = Readings.model_validate(
        {
            "series": "id",
            "time": "ts",
            "value": "kwh",
            "attributes": {"feeder": {"topic": 1}, "area": {"path": "where.area"}},
        }
    )
    given = messages(flat(where={"area": "north"}, zone="z"), flat(id=[]), topics=["f1/m1", "f2/m2"])
    for group, expected in (("feeder", "f1"), ("area", "north"), ("zone", "z")):
        assert decode(readings, given, group=group) == ([("m1", NOON_US, 1.5, expected)], [(1, "malformed-row")])
    assert decode(readings, given, group="absent")[1] == [(0, "group-conflict"), (1, "malformed-row")]


def test_an_invalid_group_makes_a_malformed_message():
    given = messages(flat(area=[1]), flat(area=3), flat(area=""))
    assert decode(FLAT, given, group="area") == (
        [("m1", NOON_US, 1.5, "3")],
        [(0, "malformed-row"), (2, "group-conflict")],
    )


def test_message_fields_are_refused_for_a_source_of_files():
    with pytest.raises(SettingsError, match=r"readings\.series is topic level 2, and the source is files"):
        decoder_of(FileSource(jsonl="a.jsonl"), PLAIN)
    with pytest.raises(SettingsError, match=r"readings\.series is topic level 2"):
        FileDecoder("jsonl", ",", PLAIN).rows()


def test_garbage_collection_is_restored_after_decoding():
    decoder = PayloadDecoder(FLAT)
    for wanted in (True, False):
        (gc.enable if wanted else gc.disable)()
        try:
            decoder.decode(messages(flat(), "{"))
            assert gc.isenabled() is wanted
        finally:
            gc.enable()


def test_cbor_is_read_as_json_is():
    readings = FLAT.model_copy(update={"payload": "cbor"})
    body = {"id": "m1", "ts": NOON_S, "kwh": 1.5}
    huge = bytes.fromhex("9b7fffffffffffffff")  # an array of 2**63 elements
    given = messages(cbor2.dumps(body), cbor2.dumps(body)[:-1], cbor2.dumps(body) + b"\0", b"", huge)
    assert decode(readings, given) == ([("m1", NOON_US, 1.5)], [(at, "malformed-row") for at in (1, 2, 3, 4)])


def test_times_of_cbor_are_read_with_their_tags_as_texts_or_seconds():
    readings = FLAT.model_copy(update={"payload": "cbor"})
    noon = dt.datetime.fromtimestamp(NOON_S, dt.UTC)
    body = {"id": "m1", "ts": noon, "kwh": 1.5}
    given = messages(
        cbor2.dumps(body), cbor2.dumps(body, datetime_as_timestamp=True), cbor2.dumps(cbor2.CBORTag(55799, body))
    )
    assert decode(readings, given) == ([("m1", NOON_US, 1.5)] * 3, [])


def test_tags_of_cbor_are_refused_but_decimal_fractions():
    readings = FLAT.model_copy(update={"payload": "cbor"})

    def of(value: Any) -> bytes:
        return cbor2.dumps({"id": "m1", "ts": NOON_S, "kwh": value})

    tags = [cbor2.CBORTag(tag, [1]) for tag in (5, 28, 30, 35, 256, 99_999)] + [
        cbor2.CBORTag(4, one) for one in ([10**9, 1], b"\x20\x0f", [1], "15")
    ]
    given = messages(*map(of, tags), of(cbor2.CBORTag(4, [-2, 225])))
    assert decode(readings, given) == ([("m1", NOON_US, 2.25)], [(at, "malformed-row") for at in range(len(tags))])
    assert decode(readings, messages(of(cbor2.CBORTag(4, [400, 1])))) == ([("m1", NOON_US, sys.float_info.max)], [])


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        ({"series": "a[", "time": "t", "value": "v"}, "readings.series: 'a[' is no path at character 2"),
        ({"series": "a", "time": ["d", "t"], "value": "v"}, "only files have"),
        ({"series": "a", "time": "x[*].t", "value": "y[*].v"}, "different arrays"),
        ({"series": "a", "time": "t", "value": "v", "payload": "avro"}, "schema registry"),
        ({"series": "a", "time": "t", "value": "v", "time_format": "%Q"}, "readings.time_format"),
        ({"preset": "dsmr", "value": "power"}, "OBIS code"),
        ({"preset": "green-button", "value": "horsepower"}, "one of Wh"),
    ],
)
def test_an_impossible_mapping_of_messages_is_refused_before_any_message(readings: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match="readings") as caught:
        PayloadDecoder(Readings.model_validate(readings)).check()
    assert message in str(caught.value)


def test_a_group_of_a_preset_must_be_an_attribute():
    decoder = PayloadDecoder(Readings(preset="dsmr", value="1-0:1.7.0"), group="feeder")
    with pytest.raises(SettingsError, match=r"not among readings\.attributes"):
        decoder.check()


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


def test_non_numeric_states_are_skipped_according_to_the_settings():
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
def test_messages_that_do_not_meet_a_condition_are_skipped(condition: dict[str, Any], kept: list[Any]):
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


def test_elements_that_do_not_meet_a_condition_are_skipped_with_their_units():
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


def test_a_skipped_message_may_lack_the_array():
    readings = mapping(value="r[*]", where=[{"path": "r", "exists": True}])
    assert values(readings, one(), one(r=[4]), one(r=3)) == ([4.0], [(2, "malformed-row")])
    assert values(mapping(value={"path": "r[*]", "optional": True}), one(), one(r=[4, None]), one(r=3)) == (
        [4.0],
        [(2, "malformed-row")],
    )


def test_a_missing_optional_field_skips_the_reading():
    assert values(mapping(value={"path": "p", "optional": True}), one(), one(p=2), one(p="x")) == (
        [2.0],
        [(2, "not-a-number")],
    )
    assert values(mapping(series={"path": "s", "optional": True}), one(), one(s="a")) == ([1.0], [])
    assert values(mapping(time={"path": "t", "optional": True}), one(), one(t=NOON_S), one(t="x")) == (
        [1.0],
        [(2, "unparsable-time")],
    )


def test_the_first_present_path_is_used():
    readings = mapping(value={"first": ["a", "b.c", "v"]}, time={"first": ["at", {"stamp": True}]})
    rows, rejects = decode(
        readings, dumped(one(a=5, b={"c": 6}), one(b={"c": 6}), one(at=NOON_S + 60), stamps_us=[NOON_US] * 3)
    )
    assert [(row[1] - NOON_US, row[2]) for row in rows] == [(0, 5.0), (0, 6.0), (MINUTE_US, 1.0)]
    assert rejects == []


def test_values_of_several_paths_are_summed():
    readings = mapping(value={"sum": ["p[0]", "p[1]", "p[2]"]})
    assert values(
        readings, one(p=[0.1, 0.2, 0.3]), one(p=[1, "2", 3]), one(p=[1, 2]), one(p=[1, 2, True]), one(p=[1, 2, "x"])
    ) == ([0.6, 6.0], [(2, "missing-value"), (3, "not-a-number"), (4, "not-a-number")])
    largest = sys.float_info.max
    assert values(readings, one(p=[largest, largest, 1]), one(p=[10**30, 1, 1])) == ([1e30, largest], [])
    assert values(readings, one(p=["1e999", 1, 1]), one(p=[1, "-1e999", 1])) == ([-largest, largest], [])


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


@pytest.mark.night
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
def test_a_joined_name_is_not_copied_for_each_element(series: dict[str, Any]):
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


def test_values_after_one_start_time_are_spaced_by_the_interval():
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


def test_element_numbers_restart_in_each_array():
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
    ) == ([3.0, 4.0, 5.0], [(2, "malformed-row"), (3, "malformed-row")])
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
    chance = random.Random(NOON_S)
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
def test_an_undecodable_nested_text_is_a_reject_and_not_skipped(more: dict[str, Any]):
    rows, rejects = decode(mapping(**more), dumped(*[one(b=text) for text in DAMAGED]))
    assert rows == []
    assert [number for number, _ in rejects] == [0, 1, 2]
    assert {reason for _, reason in rejects} <= {"malformed-row", "mixed-units"}


def test_missing_or_optional_nested_texts_are_skipped():
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
def test_a_number_with_its_unit_is_converted_to_the_configured_unit(given: Any, decimal: str, expected: float | str):
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


def test_decimal_commas_in_texts_are_read_according_to_the_settings():
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


def test_operators_read_avro_as_they_read_json():
    schema = avro_record(
        "R", id="string", ts={"type": "long", "logicalType": "timestamp-millis"}, a=["null", "double"], b="double"
    )
    readings = Readings.model_validate(
        BASE | {"payload": "avro", "value": {"sum": ["a", "b"]}, "where": [{"path": "a", "exists": True}]}
    )
    bodies = [{"id": "m1", "ts": NOON_S * 1000, "a": at or None, "b": 1.0} for at in (0.0, 2.0)] * 20

    def wire(body: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, body)
        return b"\0" + struct.pack(">I", 7) + stream.getvalue()

    assert decode(readings, messages(*map(wire, bodies)), schemas=lambda _: schema) == ([("m1", NOON_US, 3.0)] * 20, [])


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
        ({"where": [{"path": "a"}]}, "where[0]: say exactly one of equals, differs and exists; 0 are given"),
        ({"where": [{"path": "a", "equals": 1, "exists": True}]}, "2 are given"),
        ({"where": [{"equals": 1}]}, "where[0]: name exactly one of"),
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
    with pytest.raises(SettingsError, match=r"readings\.where\[1\] is path .* series, time nor value runs over"):
        PayloadDecoder(mapping(value="v" if path == "tags[*]" else "r[*].v", where=condition)).check()
    good = mapping(value="r[*].v", where=[{"path": "r[*].tags[0]", "equals": "a"}])
    assert values(good, one(r=[{"v": 1, "tags": ["a", "a"]}, {"v": 2, "tags": []}])) == ([1.0], [])


@pytest.mark.parametrize(
    "document",
    [
        {"value": {"first": ["a", {"sum": ["b", "c"]}], "optional": True}},
        {"time": {"path": "t", "every": {"path": "s"}}, "where": [{"topic": 1, "equals": ["a", None]}]},
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
def test_every_operator_runs_in_linear_time(case: str):
    document, body = LINEAR[case]
    decoder = PayloadDecoder(mapping(**document))
    small, large = dumped(body(64)), dumped(body(16 * 64))
    decoder.decode(small)
    first, second = Steps(lambda: decoder.decode(small)).count, Steps(lambda: decoder.decode(large)).count
    assert second <= 16 * first


MIXED = ([], [(0, "mixed-units")])

#: OCPP 1.6, MeterValues.req: what a charging station sends of one instant.
SAMPLES: list[dict[str, Any]] = [
    {"value": "230.1", "measurand": "Voltage", "unit": "V"},
    {"value": "16.0", "measurand": "Current.Import", "unit": "A"},
    {"value": "3681", "measurand": "Power.Active.Import", "unit": "W"},
    {"value": "1234500", "unit": "Wh"},
]
OCPP = {"series": {"topic": -1}, "time": "meterValue[*].timestamp", "value": "meterValue[*].sampledValue[*].value"}


def ocpp(*samples: dict[str, Any]) -> dict[str, Any]:
    return {"connectorId": 1, "meterValue": [{"timestamp": "2026-01-05T12:00:00Z", "sampledValue": list(samples)}]}


def test_values_of_different_units_in_one_array_are_a_mixed_units_reject():
    readings = Readings.model_validate(OCPP)
    assert decode(readings, dumped(ocpp(*SAMPLES), topics=["cs/7"])) == MIXED
    # the units of two measurands may be equal, and a missing one is not the unit of the others
    assert decode(readings, dumped(ocpp(SAMPLES[2], SAMPLES[2] | {"measurand": "Power.Offered"}))) == MIXED
    assert decode(readings, dumped(ocpp(SAMPLES[2], {"value": "5", "measurand": "Power.Active.Import"}))) == MIXED


PLAIN_READINGS = {"series": "id", "time": "ts", "time_unit": "ms", "value": "r[*].v"}


def body(*elements: Any) -> dict[str, Any]:
    return {"id": "m1", "ts": NOON_MS, "r": list(elements)}


@pytest.mark.parametrize("field", ["unit", "units", "uom", "unitCode", "unitOfMeasure", "unit_of_measurement"])
def test_every_conventional_unit_field_is_compared(field: str):
    readings = Readings.model_validate(PLAIN_READINGS)
    assert decode(readings, dumped(body({"v": 1, field: "kW"}, {"v": 1000, field: "W"}))) == MIXED
    assert len(decode(readings, dumped(body({"v": 1, field: "kW"}, {"v": 2, field: "kW"})))[0]) == 2


def test_units_in_objects_and_along_the_value_path_are_compared():
    readings = Readings.model_validate(PLAIN_READINGS)
    kwh = {"unit": "Wh", "multiplier": 3}
    same = {"multiplier": 3, "unit": "Wh"}
    assert len(decode(readings, dumped(body({"v": 1, "unitOfMeasure": kwh}, {"v": 2, "unitOfMeasure": same})))[0]) == 2
    assert decode(readings, dumped(body({"v": 1, "unitOfMeasure": kwh}, {"v": 2, "unitOfMeasure": {}}))) == MIXED
    inner = Readings.model_validate(PLAIN_READINGS | {"value": "r[*].power.v"})
    assert decode(inner, dumped(body({"power": {"v": 1, "unit": "W"}}, {"power": {"v": 2, "unit": "kW"}}))) == MIXED
    outer = Readings.model_validate(PLAIN_READINGS | {"value": "r[*].s[*].v"})
    assert decode(outer, dumped(body({"unit": "W", "s": [{"v": 1}]}, {"unit": "V", "s": [{"v": 1}]}))) == MIXED


def test_a_field_that_names_the_series_may_differ():
    readings = Readings.model_validate(PLAIN_READINGS | {"series": "r[*].measurand"})
    rows, rejects = decode(readings, dumped(body({"v": 1, "measurand": "a"}, {"v": 2, "measurand": "b"})))
    assert ([row[0] for row in rows], rejects) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ({"path": "r[*].unit", "equals": "kW"}, 1),
        ({"path": "r[*].unit", "equals": ["kW"]}, 1),
        ({"path": "r[*].unit", "equals": ["kW", None]}, 2),
        ({"path": "r[*].unit", "equals": ["W", "kW"]}, 0),
        ({"path": "r[*].unit", "differs": "V"}, 0),
        ({"path": "r[*].unit", "exists": True}, 0),
        ({"path": "r[*].other.unit", "equals": "kW"}, 0),
        ({"path": "unit", "equals": "kW"}, 0),
    ],
)
def test_units_may_differ_only_if_a_condition_fixes_their_field(condition: dict[str, Any], rows: int):
    readings = Readings.model_validate(PLAIN_READINGS | {"where": [condition]})
    elements = [{"v": 500, "unit": "W"}, {"v": 0.5, "unit": "kW"}, {"v": 0.5}]
    given = body(*[one | {"other": {"unit": "kW"}} for one in elements]) | {"unit": "kW"}
    found, rejects = decode(readings, dumped(given))
    assert (len(found), rejects) == (rows, [] if rows else [(0, "mixed-units")])


def test_non_object_elements_and_units_of_any_type_raise_no_error():
    readings = Readings.model_validate(PLAIN_READINGS)
    assert decode(readings, dumped(body(5, {"v": 1, "unit": "W"}))) == MIXED
    deep: Any = "W"
    for _ in range(900):
        deep = [deep]
    assert decode(readings, dumped(body({"v": 1, "unit": deep}, {"v": 1, "unit": deep}))) == MIXED
    given = [{"v": 1, "unit": one} for one in (b"\x01", {1: 2}, [None], 2.5, True, float("nan"))]
    packed = Readings.model_validate(PLAIN_READINGS | {"payload": "cbor"})
    assert decode(packed, messages(cbor2.dumps(body(*given)))) == MIXED
    for one in given[2:5]:
        assert len(decode(packed, messages(cbor2.dumps(body(one, one))))[0]) == 2


def test_units_of_avro_messages_are_compared_in_any_batch():
    element = avro_record("E", v="double", unit="string")
    schema = avro_record("R", id="string", ts="long", r={"type": "array", "items": element})

    def message(*elements: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, body(*elements))
        return struct.pack(">bI", 0, 7) + stream.getvalue()

    good = message({"v": 1.0, "unit": "W"}, {"v": 2.0, "unit": "W"})
    bad = message({"v": 1.0, "unit": "W"}, {"v": 2.0, "unit": "kW"})
    readings = Readings.model_validate(PLAIN_READINGS | {"payload": "avro"})
    rows, rejects = decode(readings, messages(*[good] * 60, bad, *[good] * 60), schemas=lambda _: schema)
    assert len(rows) == 240
    assert rejects == [(60, "mixed-units")]


def test_presets_with_units_in_messages_compare_them():
    edgex, ngsi = preset("edgex", None, where="resourceName == 'power'"), preset("ngsi-ld", None, of="power")
    event = {"deviceName": "m", "origin": NOON_MS * 1_000_000}
    watts = [{"resourceName": "power", "value": "1", "units": unit} for unit in ("W", "kW")]
    assert decode(edgex, dumped(event | {"readings": watts})) == MIXED
    assert len(decode(edgex, dumped(event | {"readings": watts[:1] * 2}))[0]) == 2
    data = [
        {"id": f"m{n}", "power": {"value": 1, "unitCode": code, "observedAt": "2026-01-05T12:00:00Z"}}
        for n, code in enumerate(("KWT", "WTT"))
    ]
    assert decode(ngsi, dumped({"data": data})) == MIXED
    assert decode(ngsi, dumped({"data": data[:1]}))[1] == []
