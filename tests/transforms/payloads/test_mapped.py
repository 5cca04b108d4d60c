from __future__ import annotations

import gc
import json
import pickle
from typing import Any

import cbor2
import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.files import FileDecoder, decoder_of

from .payloads import NOON_MS, NOON_S, NOON_US, decode, messages, outcome

PLAIN = Readings.model_validate(
    {"series": {"topic": 2}, "time": {"path": "ts"}, "time_unit": "ms", "value": {"path": "values.power"}}
)
FLAT = Readings(series="id", time="ts", value="kwh")


def flat(**fields: Any) -> str:
    return json.dumps({"id": "m1", "ts": NOON_S, "kwh": 1.5} | fields)


def test_series_from_the_topic_and_value_from_a_nested_field():
    given = messages(json.dumps({"ts": NOON_MS, "values": {"power": 2.5, "phase": 3}}), topics=["site/m7/telemetry"])
    assert decode(PLAIN, given) == ([("m7", NOON_US, 2.5)], [])


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
def test_the_series_is_where_the_settings_say(place: dict[str, Any], expected: str):
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
    rows, rejects = decode(PLAIN, given)
    assert rows == [("m8", NOON_US, 2.0), ("telemetry", NOON_US, 1.0)]
    assert rejects == [(2, "missing-series")]


def test_the_time_may_be_the_brokers_stamp_whatever_the_unit_of_numbers():
    readings = Readings.model_validate(
        {"series": {"key": True}, "time": {"stamp": True}, "time_unit": "ns", "value": {"path": "v"}}
    )
    given = messages('{"v": 1}', '{"v": 2}', keys=[b"a", b"b"], stamps_us=[NOON_US + 7, -1])
    assert decode(readings, given) == ([("a", NOON_US + 7, 1.0)], [(1, "unparsable-time")])


def test_times_of_every_kind_may_stand_side_by_side():
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


def test_times_of_several_kinds_may_stand_for_many_readings_each():
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
def test_a_value_reads_the_same_alone_and_beside_others(value: str, expected: float | str):
    one = flat().replace("1.5", value)
    rows, rejects = ([("m1", NOON_US, expected)], []) if isinstance(expected, float) else ([], [(0, expected)])
    assert decode(FLAT, messages(one)) == (rows, rejects)
    among, lost = decode(FLAT, messages(one, flat(id="z"), flat(id="z", ts=NOON_S + 1, kwh="2"), flat(id="z", kwh={})))
    assert [row for row in among if row[0] != "z"] == rows
    assert [pair for pair in lost if pair[0] == 0] == rejects


@pytest.mark.parametrize("name", ["[]", "{}", "true", "1.5", '"' + "x" * 1_001 + '"'])
def test_a_name_that_is_none_makes_a_malformed_message(name: str):
    assert decode(FLAT, messages(flat().replace('"m1"', name), flat())) == (
        [("m1", NOON_US, 1.5)],
        [(0, "malformed-row")],
    )


def test_a_number_may_be_a_name_and_an_empty_one_is_none():
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
def test_what_is_no_json_is_one_reject(payload: bytes):
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


def test_a_message_over_the_limit_is_a_reject_and_the_end_of_a_key_is_nothing():
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


def test_a_group_comes_from_an_attribute_or_a_path():
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
        assert decode(readings, given, group=group) == (
            [("m1", NOON_US, 1.5, expected)],
            [(1, "malformed-row")],
        )
    assert decode(readings, given, group="absent")[1] == [(0, "group-conflict"), (1, "malformed-row")]


def test_what_is_no_group_makes_a_malformed_message():
    given = messages(flat(area=[1]), flat(area=3), flat(area=""))
    assert decode(FLAT, given, group="area") == (
        [("m1", NOON_US, 1.5, "3")],
        [(0, "malformed-row"), (2, "group-conflict")],
    )


def test_files_refuse_what_only_messages_have():
    with pytest.raises(SettingsError, match=r"readings\.series is topic level 2, and the source is files"):
        decoder_of(FileSource(jsonl="a.jsonl"), PLAIN)
    with pytest.raises(SettingsError, match=r"readings\.series is topic level 2"):
        FileDecoder("jsonl", ",", PLAIN).rows()


def test_the_collector_is_held_back_only_while_messages_are_decoded():
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


def test_tags_of_cbor_are_refused_but_decimal_fractions():
    readings = FLAT.model_copy(update={"payload": "cbor"})

    def of(value: Any) -> bytes:
        return cbor2.dumps({"id": "m1", "ts": NOON_S, "kwh": value})

    tags = [cbor2.CBORTag(tag, [1]) for tag in (5, 28, 30, 35, 256, 99_999)] + [cbor2.CBORTag(4, [10**9, 1])]
    given = messages(*map(of, tags), of(cbor2.CBORTag(4, [-2, 225])))
    assert decode(readings, given) == ([("m1", NOON_US, 2.25)], [(at, "malformed-row") for at in range(7)])


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        ({"series": "a[", "time": "t", "value": "v"}, "readings.series: 'a[' is no path at character 2"),
        ({"series": "a", "time": ["d", "t"], "value": "v"}, "only files have"),
        ({"series": "a", "time": "x[*].t", "value": "y[*].v"}, "different arrays"),
        ({"series": "a", "time": "t", "value": "v", "payload": "avro"}, "schema registry"),
        ({"series": "a", "time": "t", "value": "v", "time_format": "%Q"}, "readings.time_format"),
        ({"series": "a", "time": "t", "value": {"register": {"path": "v"}}}, "needs the slots"),
        ({"preset": "dsmr", "value": "power"}, "OBIS code"),
        ({"preset": "green-button", "value": "horsepower"}, "one of Wh"),
    ],
)
def test_a_mapping_that_messages_cannot_serve_is_refused_before_any_message(readings: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match="readings") as caught:
        PayloadDecoder(Readings.model_validate(readings)).check()
    assert message in str(caught.value)


def test_a_group_of_a_preset_must_be_an_attribute():
    decoder = PayloadDecoder(Readings(preset="edgex", value="power"), group="feeder")
    with pytest.raises(SettingsError, match=r"not among readings\.attributes"):
        decoder.check()


def test_a_decoder_travels_without_what_belongs_to_its_worker():
    decoder = PayloadDecoder(FLAT)
    expected = outcome(decoder, messages(flat()))
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy == decoder
    assert copy._worker == []
    assert outcome(copy, messages(flat())) == expected


def test_no_messages_give_nothing():
    assert PayloadDecoder(FLAT).decode(messages()) == []
