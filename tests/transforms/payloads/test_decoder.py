"""What a decoder makes of messages: names, times and values, damaged payloads, limits, units."""

from __future__ import annotations

import datetime as dt
import gc
import json
import random
import sys
from typing import Any

import cbor2
import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.files import decoder_of

from .damage import Steps, counted_once, damaged
from .payloads import NOON_MS, NOON_S, NOON_US, decode, dumped, messages

FLAT = Readings(each="payload", series="id", time="ts", value="kwh")


def flat(**fields: Any) -> str:
    return json.dumps({"id": "m1", "ts": NOON_S, "kwh": 1.5} | fields)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ("topic[0]", "site"),
        ("topic[-1]", "m7"),
        ("header.device", "h7"),
        ("key", "k/7"),
        ({"constant": "only"}, "only"),
        ("id", "p7"),
        ('it."a.b"', "c7"),
        ("name([topic[0], id])", "site/p7"),
    ],
)
def test_the_series_may_stand_anywhere(series: Any, expected: str):
    readings = Readings.model_validate({"each": "payload", "series": series, "time": "ts", "value": "v"})
    given = messages(
        json.dumps({"id": "p7", "a.b": "c7", "ts": NOON_S, "v": 1}),
        topics=["site/x/m7"],
        keys=[b"k/7"],
        headers=[(("device", b"old"), ("device", b"h7"))],
    )
    assert decode(readings, given) == ([(expected, NOON_US, 1.0)], [])


def test_levels_of_a_topic_without_slashes_are_between_dots():
    plain = Readings(each="payload", series="topic[1]", time="ts", time_unit="ms", value="values.power")
    given = messages(
        json.dumps({"ts": NOON_MS, "values": {"power": 1}}),
        json.dumps({"ts": NOON_MS, "values": {"power": 2}}),
        json.dumps({"ts": NOON_MS, "values": {"power": 3}}),
        topics=["hono.telemetry", "meters", "alone"],
        headers=[(), (("mqtt-topic", b"site/m8/up"),), ()],
    )
    assert decode(plain, given) == ([("m8", NOON_US, 2.0), ("telemetry", NOON_US, 1.0)], [(2, "missing-series")])


def test_the_time_may_be_the_broker_timestamp_for_any_time_unit():
    readings = Readings(each="payload", series="key", time="stamp", time_unit="ns", value="v")
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
    readings = Readings(each="payload", of="kwh", series="each.id", time="each.ts", value="it")
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


def test_json_of_another_shape_is_one_reject_and_never_an_error():
    given = messages("1", '"text"', "null", "[]", "[[]]", "{}", "true")
    # of null and of an empty array there is nothing that is a reading
    assert decode(FLAT, given) == ([], [(at, "missing-series") for at in (0, 1, 4, 5, 6)])
    over = Readings(each="payload", of="elements(r)", series="each.id", time="t", value="v")
    assert decode(over, messages("1", '{"id": "a"}', '{"id": "a", "r": 1}', '{"id": "a", "r": [1]}'))[1] == [
        (0, "malformed-row"),
        (1, "malformed-row"),
        (2, "malformed-row"),
        (3, "unparsable-time"),
    ]


def test_a_message_with_some_bad_readings_gives_the_others_and_counts_once():
    readings = Readings(each="payload.r", series="payload.id", time="t", value="v")
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
    readings = Readings(each="payload.v", series="payload.id", time="payload.t", value="it")
    payload = json.dumps({"id": "m" * 1_000, "t": NOON_S, "v": [1] * 300_000})
    (part,) = PayloadDecoder(readings).decode(messages(payload))
    assert part.readings is not None
    assert part.readings.num_rows == 300_000
    assert len(part.readings.column("series").dictionary) == 1


def test_a_group_is_an_attribute():
    said = {"each": "payload", "series": "id", "time": "ts", "value": "kwh"}
    attributes = {"feeder": "topic[0]", "area": "where.area"}
    readings = Readings.model_validate(said | {"attributes": attributes})
    given = messages(flat(where={"area": "north"}), flat(id=[]), topics=["f1/m1", "f2/m2"])
    for group, expected in (("feeder", "f1"), ("area", "north")):
        assert decode(readings, given, group=group) == ([("m1", NOON_US, 1.5, expected)], [(1, "malformed-row")])
    given = messages(*(flat(where={"area": area}) for area in ([1], 3, "", None)))
    assert decode(readings, given, group="area") == (
        [("m1", NOON_US, 1.5, "3")],
        [(0, "malformed-row"), (2, "group-conflict"), (3, "group-conflict")],
    )


def test_expressions_are_refused_for_a_source_of_files():
    with pytest.raises(SettingsError, match=r"readings\.each is set, and only messages have it"):
        decoder_of(FileSource(jsonl="a.jsonl"), FLAT)


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
    ("more", "message"),
    [
        ({"each": None}, "readings.each is missing"),
        ({"payload": "avro"}, "schema registry"),
        ({"time_format": "%Q"}, "readings.time_format"),
        ({"ambiguous": "in-order"}, "the source has messages"),
    ],
)
def test_impossible_settings_of_messages_are_refused_before_any_message(more: dict[str, Any], message: str):
    said = {"each": "payload", "series": "a", "time": "t", "value": "v"} | more
    with pytest.raises(SettingsError, match=message):
        PayloadDecoder(Readings.model_validate(said)).check()


@pytest.mark.parametrize(("payload", "library"), [("cim", "defusedxml"), ("cbor", "cbor2")])
def test_a_library_that_is_missing_is_named_before_any_message(
    payload: Any, library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=rf"{library}; install quiltstream\[formats\]"):
        PayloadDecoder(FLAT.model_copy(update={"payload": payload})).check()


NESTED = Readings(each="json(payload.body)", series="payload.id", time="payload.ts", value="v")


@pytest.mark.parametrize(
    "text", ["[" * 100_000 + "1e99", '{"v":' * 100_000 + "1e99", '{"v": 1, "x": ' + "[" * 100_000 + "1e99"]
)
def test_a_text_of_brackets_alone_makes_its_own_message_a_reject(text: str):
    rows, rejects = decode(NESTED, messages(flat(body=text), flat(body='{"v": 1e99}')))
    assert rows == [("m1", NOON_US, 1e99)]
    assert [number for number, _ in rejects] == [0]
    assert decode(FLAT, messages(text)) == ([], [(0, "malformed-row")])


def test_damaged_texts_inside_messages_raise_nothing_and_count_once():
    chance = random.Random(NOON_S)
    inner = json.dumps({"v": 2, "r": [{"w": 3}, {"w": 4.5e3}]}).encode()
    texts = [damaged(inner, chance).decode("latin-1") for _ in range(40)]
    texts += [text.replace("3", "[" * 2_000 + "1e99") for text in texts[:20]]
    counted_once(lambda: PayloadDecoder(NESTED), messages(*[flat(body=text) for text in texts]))


LINEAR: dict[str, tuple[dict[str, Any], Any]] = {
    "where": ({"each": "payload.r", "where": "k == `1`"}, lambda n: [{"v": 1, "k": at % 2} for at in range(n)]),
    "fields": ({"each": "fields(payload.r)", "value": "value"}, lambda n: {f"m{at}": 1 for at in range(n)}),
    "units": ({"each": "payload.r", "units": "u", "unit": "kWh"}, lambda n: [{"v": "1.5", "u": "Wh"}] * n),
    "names": (
        {"each": "payload.r", "series": "name([payload.id, k])"},
        lambda n: [{"k": at, "v": 1} for at in range(n)],
    ),
    "of": ({"each": "payload.r", "of": "s"}, lambda n: [{"s": [{"v": 1}] * 16}] * (n // 16)),
}


@pytest.mark.parametrize("case", LINEAR)
def test_expressions_take_time_in_proportion(case: str):
    said, made = LINEAR[case]
    whole = {"series": "payload.id", "time": "payload.ts", "value": "v"} | said
    decoder = PayloadDecoder(Readings.model_validate(whole))
    small, large = messages(flat(r=made(64))), messages(flat(r=made(16 * 64)))
    decoder.decode(small)
    first, second = Steps(lambda: decoder.decode(small)).count, Steps(lambda: decoder.decode(large)).count
    assert second <= 16 * first


MIXED = ([], [(0, "mixed-units")])
ELEMENTS = {"each": "payload.r", "series": "payload.id", "time": "payload.ts", "time_unit": "ms", "value": "v"}


def body(*elements: Any) -> dict[str, Any]:
    return {"id": "m1", "ts": NOON_MS, "r": list(elements)}


@pytest.mark.parametrize("field", ["unit", "units", "uom", "unitCode", "unitOfMeasure", "unit_of_measurement"])
def test_every_conventional_unit_field_is_compared(field: str):
    readings = Readings.model_validate(ELEMENTS)
    assert decode(readings, dumped(body({"v": 1, field: "kW"}, {"v": 1000, field: "W"}))) == MIXED
    assert len(decode(readings, dumped(body({"v": 1, field: "kW"}, {"v": 2, field: "kW"})))[0]) == 2


def test_units_in_objects_are_compared_and_of_any_type_raise_no_error():
    readings = Readings.model_validate(ELEMENTS)
    kwh, same = {"unit": "Wh", "multiplier": 3}, {"multiplier": 3, "unit": "Wh"}
    assert len(decode(readings, dumped(body({"v": 1, "unitOfMeasure": kwh}, {"v": 2, "unitOfMeasure": same})))[0]) == 2
    assert decode(readings, dumped(body({"v": 1, "unitOfMeasure": kwh}, {"v": 2, "unitOfMeasure": {}}))) == MIXED
    assert decode(readings, dumped(body(5, {"v": 1, "unit": "W"}))) == MIXED
    deep: Any = "W"
    for _ in range(900):
        deep = [deep]
    assert decode(readings, dumped(body({"v": 1, "unit": deep}, {"v": 1, "unit": deep}))) == MIXED
    given = [{"v": 1, "unit": one} for one in (b"\x01", {1: 2}, [None], 2.5, True, float("nan"))]
    packed = Readings.model_validate(ELEMENTS | {"payload": "cbor"})
    assert decode(packed, messages(cbor2.dumps(body(*given)))) == MIXED
    for one in given[2:5]:
        assert len(decode(packed, messages(cbor2.dumps(body(one, one))))[0]) == 2
