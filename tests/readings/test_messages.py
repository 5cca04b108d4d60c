"""Readings of messages by JMESPath: what expressions mean, what is refused, what a message costs, what is frozen."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pytest
import yaml

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.recipes import RECIPES
from quiltstream.transforms.payloads import PayloadDecoder, expressions

from ..pipelines.jobs import HOMES, call, job, readings
from ..transforms.formats.decoding import avro_record
from ..transforms.payloads.payloads import NOON_MS, NOON_S, NOON_US, decode, dumped, messages

FLAT = {"each": "payload", "series": "topic[1]", "time": "ts", "value": "power"}
TOPIC = ["site/m1/up"]


def by(**more: Any) -> Readings:
    return Readings.model_validate({"each": "payload.r", "series": "payload.id", "time": "ts", "value": "v"} | more)


@pytest.mark.parametrize("case", expressions.cases(), ids=lambda case: f"{case['expression']} of {case['given']}")
def test_the_language_is_that_of_its_cases(case: dict[str, Any]) -> None:
    found = expressions.outcome_of(case["expression"], case["given"])
    assert (found, type(found)) == (case["made"], type(case["made"]))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"each": "payload.["}, r"readings\.each is no JMESPath at character 10, at its end"),
        ({"value": "a..b"}, r"readings\.value is no JMESPath at character 3"),
        ({"value": "a b"}, r"readings\.value is no JMESPath at character 3, near 'b'"),
        ({"where": "a == 'x"}, r"readings\.where is no JMESPath at character 6"),
        ({"of": "("}, r"readings\.of is no JMESPath at character 2, at its end"),
        ({"series": "nam([a])"}, r"readings\.series: nam\(\) is no function; there are abs, .*name"),
        ({"series": "name(a, b)"}, r"readings\.series: name\(\) takes 1 arguments, and 2 are given"),
        ({"each": "readings"}, r"readings\.each begins at 'readings'.* write for example payload\.readings"),
        ({"where": "!payload.a"}, r"write !\(\.\.\.\) around what it is to deny"),
        ({"value": "[" * 900 + "a" + "]" * 900}, "nested too deeply"),
        ({"value": "[" * 50 + "a" + "]" * 50}, "more than 40 expressions inside one another"),
        ({"units": "u[", "unit": "W"}, r"readings\.units is no JMESPath"),
    ],
)
def test_an_expression_that_cannot_be_used_is_named_with_its_place(said: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        PayloadDecoder(Readings.model_validate(FLAT | said)).check()


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"where": "power > `5`"}, "where"),
        ({"where": "ts && !(payload.power <= `5`)"}, "where"),
        ({"where": "power == other"}, "where"),
        ({"where": "starts_with(to_string(power), '1')"}, "where"),
        ({"each": "payload.r[?power > `5`]"}, "each"),
        ({"each": "payload", "of": "r[?@ > `5`]", "value": "it"}, "of"),
        ({"value": "power > `5` && power || false"}, "value"),
        ({"each": "max_by(payload.r, &power)"}, "each"),
        ({"value": "text", "where": "to_number(text) > `1`"}, "where"),
        ({"where": "power"}, None),
        ({"where": "power != null && power != '-9999' && ts > `0`"}, None),
        ({"where": "!contains(['unknown', 'off'], power)"}, None),
        ({"each": "payload.r[?quality == 'GOOD' && type(power) == 'number']"}, None),
        ({"value": "type(power) == 'object' && power.v || power || false"}, None),
        ({"value": "sum([to_number(power), to_number(other)])"}, None),
    ],
)
def test_which_readings_there_are_depends_on_no_more_of_a_value_than_marks(
    said: dict[str, str], refused: str | None
) -> None:
    decoder = PayloadDecoder(Readings.model_validate(FLAT | said))
    if refused is None:
        decoder.check()
        return
    with pytest.raises(SettingsError, match=rf"readings\.{refused} asks how large a value is"):
        decoder.check()


def test_each_may_be_one_object_an_array_or_nothing() -> None:
    given = dumped({"ts": NOON_S, "power": 1}, [{"ts": NOON_S, "power": 2}, {"power": 3}], None, topics=TOPIC * 3)
    rows = [("m1", NOON_US, 1.0), ("m1", NOON_US, 2.0)]
    assert decode(Readings.model_validate(FLAT), given) == (rows, [(1, "unparsable-time")])


def test_what_is_inside_each_inherits_its_fields() -> None:
    body = {"id": "m1", "r": [{"ts": NOON_S, "s": [{"v": 1}, {"v": 2, "ts": NOON_S + 1}]}, {"ts": NOON_S}]}
    assert decode(by(of="s"), dumped(body)) == ([("m1", NOON_US, 1.0), ("m1", NOON_US + 1_000_000, 2.0)], [])
    outer = decode(by(of="s", time="each.ts"), dumped(body))[0]
    assert [row[1] for row in outer] == [NOON_US, NOON_US]


def test_no_field_of_a_message_hides_what_stands_beside_it() -> None:
    """A device that writes the name of another into its message stays itself."""
    body = {"ts": NOON_S, "power": 1, "topic": ["site", "victim"], "each": {"topic": ["", "victim"]}, "key": "victim"}
    assert decode(Readings.model_validate(FLAT), dumped(body, topics=TOPIC))[0][0][0] == "m1"
    keyed = Readings.model_validate(FLAT | {"series": "key"})
    assert decode(keyed, dumped(body, topics=TOPIC, keys=[b"m2"]))[0][0][0] == "m2"
    assert decode(keyed, dumped(body, topics=TOPIC)) == ([], [(0, "missing-series")])
    inner = {"id": "m1", "r": [{"name": "m3", "s": [{"ts": NOON_S, "v": 1, "name": "victim", "each": {"name": "v"}}]}]}
    assert decode(by(of="s", series="each.name"), dumped(inner))[0][0][0] == "m3"


def test_a_message_of_another_topic_is_passed_over_before_it_is_parsed() -> None:
    settings = Readings.model_validate(FLAT | {"where": "topic[0] == 'site' && ts != null && payload.power != null"})
    bodies = ["{", json.dumps({"ts": NOON_S, "power": 1}), json.dumps({"ts": NOON_S}), json.dumps({"power": 1}), "{"]
    given = messages(*bodies, topics=["other/m", *TOPIC * 4])
    assert decode(settings, given) == ([("m1", NOON_US, 1.0)], [(4, "malformed-row")])


@pytest.mark.parametrize("value", ["power || false", "other || power || `false`"])
def test_a_value_that_ends_in_false_passes_over_what_has_none(value: str) -> None:
    given = dumped({"ts": NOON_S}, {"ts": NOON_S, "power": 0}, {"ts": NOON_S, "power": False}, topics=TOPIC * 3)
    rows = [("m1", NOON_US, 0.0)]
    assert decode(Readings.model_validate(FLAT | {"value": value}), given) == (rows, [])
    rejects = [(0, "missing-value"), (2, "not-a-number")]
    assert decode(Readings.model_validate(FLAT), given) == (rows, rejects)


def test_an_error_costs_its_message_alone() -> None:
    settings = by(each="elements(payload.r)", series="name([payload.id, n])")
    whole = {"id": "m1", "r": [{"n": 1, "ts": NOON_S, "v": 1}]}
    given = dumped(whole, {"id": "m1", "r": {}}, {"id": "m1"}, whole | {"id": "m2"})
    rows = [("m1/1", NOON_US, 1.0), ("m2/1", NOON_US, 1.0)]
    assert decode(settings, given) == (rows, [(1, "malformed-row"), (2, "malformed-row")])


def test_of_several_documents_one_with_an_error_costs_itself() -> None:
    settings = Readings.model_validate(
        FLAT | {"payload": "ndjson", "each": "elements(payload)", "value": "v", "time": "ts"}
    )
    lines = "\n".join(
        json.dumps(one) for one in ([{"ts": NOON_S, "v": "1.5"}], {"ts": NOON_S}, [{"ts": NOON_S, "v": 2}])
    )
    found = decode(settings, messages(lines, topics=TOPIC))
    assert found == ([("m1", NOON_US, 1.5), ("m1", NOON_US, 2.0)], [(0, "malformed-row")])


MIXED = ([], [(0, "mixed-units")])


def test_units_are_converted_or_compared() -> None:
    def body(*units: str | None) -> Any:
        said = [{"ts": NOON_S + at, "v": 1, "unit": unit} for at, unit in enumerate(units)]
        return dumped({"id": "m1", "r": [{name: one for name, one in row.items() if one} for row in said]})

    def values(settings: Readings, *units: str | None) -> list[float]:
        return [row[2] for row in decode(settings, body(*units))[0]]

    told = by(units="unit || 'Wh'", unit="kWh")
    assert values(told, "kWh", "Wh", None) == [1.0, 0.001, 0.001]
    assert decode(told, body("V")) == MIXED
    assert decode(told, body("kWh", "V"))[1] == [(0, "mixed-units")]
    assert decode(by(units="unit", unit="kWh"), body(None)) == MIXED
    assert decode(by(), body("W", "kW")) == MIXED
    assert decode(by(), body("W", None)) == MIXED
    assert values(by(), "W", "W") == values(by(), None, None) == [1.0, 1.0]
    chosen = by(each="payload.r[?unit == null || unit == 'W']")
    assert values(chosen, "W", None, "V") == [1.0, 1.0]
    assert decode(by(each="payload.r[?unit != 'V']"), body("W", "kW", "V")) == MIXED
    assert values(by(series="name([payload.id, unit])"), "W", "V") == [1.0, 1.0]
    nested = {"id": "m1", "r": [{"ts": NOON_S, "p": {"v": 1, "unit": unit}} for unit in ("W", "kW")]}
    assert decode(by(value="p.v"), dumped(nested)) == MIXED


@pytest.mark.parametrize(
    ("payload", "body", "more"),
    [
        ("csv", f"ts,power\n{NOON_S},1.5\n".encode(), {}),
        ("msgpack", msgpack.packb({"ts": NOON_S, "power": 1.5}), {}),
        ("json", b"1.5", {"each": "@", "time": "stamp", "value": "text"}),
        ("json", b'"eyJ2IjogMS41fQ=="', {"each": "json(base64(payload))", "time": "stamp", "value": "v"}),
        ("json", b'{"t": [%d], "v": [1.5]}' % NOON_S, {"each": "zip({ts: payload.t, power: payload.v})"}),
        ("json", b'{"%d": 1.5}' % NOON_S, {"each": "fields(payload)", "time": "to_number(name)", "value": "value"}),
    ],
)
def test_expressions_mean_the_same_in_every_payload(payload: str, body: bytes, more: dict[str, str]) -> None:
    settings = Readings.model_validate(FLAT | {"payload": payload} | more)
    assert decode(settings, messages(body, topics=TOPIC, stamps_us=[NOON_US])) == ([("m1", NOON_US, 1.5)], [])


def test_a_time_stamp_of_avro_is_an_instant() -> None:
    schema = avro_record("R", ts={"type": "long", "logicalType": "timestamp-millis"}, power="double")
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"ts": NOON_MS, "power": 1.5})
    given = messages(b"\0" + struct.pack(">I", 7) + stream.getvalue(), topics=TOPIC)
    settings = Readings.model_validate(FLAT | {"payload": "avro"})
    assert decode(settings, given, schemas=lambda _: schema) == ([("m1", NOON_US, 1.5)], [])


def test_a_group_is_an_attribute() -> None:
    settings = Readings.model_validate(FLAT | {"attributes": {"site": "topic[0]"}})
    given = dumped({"ts": NOON_S, "power": 1}, topics=TOPIC)
    assert decode(settings, given, group="site") == ([("m1", NOON_US, 1.0, "site")], [])
    with pytest.raises(SettingsError, match=r"not among readings\.attributes"):
        PayloadDecoder(settings, group="topic[0]").check()


def test_a_text_that_is_no_name_is_not_kept() -> None:
    settings = by(series="to_string(payload)")
    given = dumped({"id": "m1", "r": [{"ts": NOON_S, "v": 1}], "more": "x" * 5_000})
    assert decode(settings, given) == ([], [(0, "malformed-row")])


@pytest.mark.parametrize(
    "said",
    [
        {"value": "length(payload.r[?ts == 'x'])"},
        {"series": "to_string(payload.r)"},
        {"where": "contains(payload.r, it)"},
        {"each": "payload.r" + " | [@, @][]" * 15},
        {"each": "payload.r", "of": "payload.r"},
    ],
)
def test_an_expression_that_would_take_more_than_in_proportion_is_a_reject(said: dict[str, str]) -> None:
    """Every reading looks at all of its message, or an array doubles itself."""
    body = {"id": "m1", "r": [{"ts": NOON_S, "v": 1}] * 1_500}
    rows, rejects = decode(by(**said), dumped(body))
    assert (rows, rejects) == ([], [(0, "malformed-row")])
    small = {"id": "m1", "r": [{"ts": NOON_S, "v": 1}]}
    if "payload.r |" not in str(said):
        assert decode(by(**said), dumped(small))[1] in ([], [(0, "malformed-row")])


def body_of(time: Any = NOON_S, value: Any = 1, **more: Any) -> bytes:
    return json.dumps({"id": "m1", "r": [{"ts": time, "v": value}]} | more).encode()


WHOLE = body_of()
#: Messages that are damaged, of another form, or made to cost much: each is between two good ones.
POISON: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"  \n",
    "a zero byte": b"\0",
    "no text": b"\xff\xfe",
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "Latin 1": body_of().replace(b'"m1"', b'"m\xe9"'),
    "an overlong character": WHOLE.replace(b'"m1"', b'"\xc0\xaf"'),
    "half a character": WHOLE.replace(b'"m1"', b'"\xc3\x28"'),
    "half a pair": WHOLE.replace(b'"m1"', b'"\\ud800"'),
    "a control character": WHOLE.replace(b'"m1"', b'"m\x01"'),
    "a bad escape": WHOLE.replace(b'"m1"', b'"\\x41"'),
    "an open text": WHOLE.replace(b'"m1"', b'"m1'),
    "an open object": WHOLE[:-1],
    "an open array": WHOLE[:-2],
    "half": WHOLE[: len(WHOLE) // 2],
    "more after it": WHOLE + b"x",
    "two": WHOLE + WHOLE,
    "two in lines": WHOLE + b"\n" + WHOLE,
    "a comma too many": WHOLE[:-1] + b",}",
    "single quotes": WHOLE.replace(b'"', b"'"),
    "names without quotes": WHOLE.replace(b'"id"', b"id"),
    "a comment": b"/* */" + WHOLE,
    "a bare word": b"nul",
    "a word of Python": WHOLE.replace(b'"m1"', b"None"),
    "a number that is none": WHOLE.replace(b'"v": 1', b'"v": 01'),
    "hexadecimal": WHOLE.replace(b'"v": 1', b'"v": 0x1'),
    "a point alone": WHOLE.replace(b'"v": 1', b'"v": 1.'),
    "XML": b"<r><v>1</v></r>",
    "a line of CSV": b"m1,1,2",
    "gzip": gzip.compress(WHOLE),
    "MessagePack": bytes.fromhex("81a26964a26d31"),
    "random bytes": bytes(range(255, 0, -1)),
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "deep and closed": b"[" * 50_000 + b"]" * 50_000,
    "deep where it is read": WHOLE.replace(b'"v": 1', b'"v": ' + b"[" * 2_000 + b"]" * 2_000),
    "an object for the array": body_of(r={}),
    "a text for the array": body_of(r="x"),
    "no array": body_of(r=None),
    "an array for the name": body_of(id=["m1"]),
    "an object for the name": body_of(id={"m1": 1}),
}


@pytest.mark.parametrize("kind", POISON)
def test_poison_of_any_kind_costs_itself_alone(kind: str) -> None:
    settings = by(each="elements(payload.r)")
    whole = body_of(id="m2")
    assert decode(settings, messages(WHOLE, POISON[kind], whole)) == (
        [("m1", NOON_US, 1.0), ("m2", NOON_US, 1.0)],
        [(1, "malformed-row")],
    )


def test_all_kinds_of_poison_cost_themselves_alone_together() -> None:
    settings = by(each="elements(payload.r)")
    given = [one for poison in POISON.values() for one in (poison, WHOLE)]
    rows, rejects = decode(settings, messages(*given))
    assert rows == [("m1", NOON_US, 1.0)] * len(POISON)
    assert rejects == [(at, "malformed-row") for at in range(0, len(given), 2)]


def test_deep_documents_cost_themselves() -> None:
    deep = "[" * 900 + "]" * 900
    bodies = [f'{{"ts": {NOON_S}, "power": {one}}}' for one in (deep, "1", "[" * 100_000)]
    settings = Readings.model_validate(FLAT | {"value": "power == `[]` || power"})
    rows, rejects = decode(settings, messages(*bodies, topics=TOPIC * 3))
    assert (rows, [number for number, _ in rejects]) == ([("m1", NOON_US, 1.0)], [0, 2])


def test_a_ledger_refuses_a_text_that_reads_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = avro_record("M", topic="string", payload="bytes", received="long")
    stands = Counter[str]()
    records = list[dict[str, Any]]()
    for one, stamp, value in readings():
        stands[one] += round(100 * value)
        body = {"id": one, "ts": stamp, "v": stands[one] / 100}
        records.append({"topic": "t", "payload": json.dumps(body).encode(), "received": 0})
    with (tmp_path / "m.avro").open("wb") as stream:
        fastavro.writer(stream, schema, records)
    mapping = {"each": "payload", "series": "id", "time": "ts", "value": "v", "unit": "kWh", "scale": 2000}
    made = job(tmp_path, [], source={"avro": "m.avro"}, readings=mapping | {"register": {}}, missing="state")
    call("run", made.settings).ended(0)
    assert {row.members for row in made.rows()} == {len(HOMES) // 2}
    other = tmp_path / "cases.yaml"
    other.write_text(yaml.safe_dump([*expressions.cases(), {"expression": "a", "given": {}}]), encoding="utf-8")
    call("run", made.settings).ended(0)
    monkeypatch.setattr(expressions, "CASES", other)
    call("run", made.settings).ended(4, "domain 'streets'")


@pytest.mark.parametrize("name", RECIPES)
def test_another_outcome_of_a_recipes_samples_has_another_digest(name: str) -> None:
    said = yaml.safe_load((Path(__file__).parent / "messages" / f"{name}.yaml").read_text(encoding="utf-8"))
    one = Readings.model_validate({"recipe": name, **said.get("settings", {})})
    other = one.model_copy(update={"series": "'other'"})
    assert expressions.digest(one) == expressions.digest(one.model_copy()) != expressions.digest(other)
