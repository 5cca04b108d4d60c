"""Avro messages: framing, schemas, and bodies of any bytes."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.avro import schema_fingerprint
from quiltstream.transforms.payloads.messages import SourceAwayError

from ..formats.decoding import avro_record
from .payloads import NOON_MS, NOON_US, decode, messages, outcome

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "org.example",
    "fields": [
        {"name": "meter", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kwh", "type": ["null", "double"]},
        {"name": "note", "type": {"type": "array", "items": "string"}},
    ],
}
OTHER = avro_record("Reading", kwh="int", at="long", meter="long")
REGISTRY = {7: SCHEMA, 300: OTHER}

READINGS = Readings(each="payload", series="meter", time="at", time_unit="ms", value="kwh", payload="avro")
SINGLE = READINGS.model_copy(update={"payload": "avro-single", "avro_schemas": [SCHEMA, OTHER]})


def body(schema: Any, **record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


def reading(number: int = 0) -> dict[str, Any]:
    return {"meter": f"m{number}", "at": NOON_MS + number, "kwh": number / 4, "note": ["a"] * (number % 3)}


def wire(number: int = 0, *, schema: int = 7) -> bytes:
    return b"\0" + struct.pack(">I", schema) + body(SCHEMA, **reading(number))


def row(number: int) -> tuple[str, int, float]:
    return (f"m{number}", NOON_US + 1_000 * number, number / 4)


def lookup(number: int) -> Any:
    return REGISTRY[number]


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) - 1])
def test_an_invalid_schema_id_is_never_requested(number: int):
    """To a negative number a registry answers as a server that is none, for which messages would wait for ever."""
    asked: list[int] = []
    given = messages(b"\0" + struct.pack(">I", number) + b"xx")
    assert decode(READINGS, given, schemas=asked.append) == ([], [(0, "malformed-row")])
    assert asked == []


@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_the_wire_format_of_registries_is_read(count: int):
    given = messages(*[wire(i) for i in range(count)])
    assert decode(READINGS, given, schemas=lookup) == (sorted(row(i) for i in range(count)), [])


def test_messages_of_several_schemas_may_be_mixed():
    old = [b"\0" + struct.pack(">I", 300) + body(OTHER, kwh=i, at=NOON_MS + i, meter=i) for i in range(10)]
    given = messages(*[one for i in range(10) for one in (wire(i), old[i])])
    expected = sorted([row(i) for i in range(10)] + [(str(i), NOON_US + 1_000 * i, float(i)) for i in range(10)])
    assert decode(READINGS, given, schemas=lookup) == (expected, [])


@pytest.mark.parametrize("kind", ["float", {"type": "float"}, ["null", "float"], ["string", "float", "double"]])
@pytest.mark.parametrize("count", [1, 20])
def test_floats_of_32_bits_are_the_decimals_that_they_stand_for(kind: Any, count: int):
    fields = [{"name": "float", "type": "string", "default": "float"}, *SCHEMA["fields"][1:2]]
    schema = {**SCHEMA, "fields": [*fields, {"name": "kwh", "type": kind}]}
    values = [0.35, -523.397, 3.4028235e38, 1e-45, *(one / 100 for one in range(count))]
    given = [
        b"\0" + struct.pack(">I", 9) + body(schema, float="m", at=NOON_MS + i, kwh=kwh) for i, kwh in enumerate(values)
    ]
    readings = READINGS.model_copy(update={"series": "float"})
    found = decode(readings, messages(*given), schemas={9: schema}.__getitem__)
    assert found == ([("m", NOON_US + 1_000 * i, kwh) for i, kwh in enumerate(values)], [])


STAMPS = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}


@pytest.mark.parametrize("logical", STAMPS)
@pytest.mark.parametrize("count", [1, 9])
def test_timestamps_have_the_unit_of_the_schema_in_every_position(logical: str, count: int):
    """In a union, in a named type, in an array, for every reading of it: whatever ``time_unit`` says."""
    stamp = avro_record("Stamp", at={"type": "long", "logicalType": logical})
    other = avro_record("Other", first=stamp, x=["null", "Stamp"])
    row = avro_record("Row", stamp=["null", "Stamp"], v="int")
    schema = avro_record("All", other=other, id="string", rows={"type": "array", "items": row})
    instant = NOON_US // STAMPS[logical]
    record = {
        "other": {"first": {"at": instant}, "x": None},
        "id": "m1",
        "rows": [{"stamp": {"at": instant + 5}, "v": 1}, {"stamp": None, "v": 2}],
    }
    bodies = [b"\0\0\0\0\1" + body(schema, **record)] * count
    hour = 3_600_000_000 if logical.startswith("local") else 0
    for path, rows in (
        ("it.stamp.at", [("m1", NOON_US - hour + 5 * STAMPS[logical], 1.0)]),
        ("payload.other.first.at", [("m1", NOON_US - hour, 1.0), ("m1", NOON_US - hour, 2.0)]),
    ):
        said = {"each": "payload.rows", "series": "payload.id", "time": path, "value": "v", "payload": "avro"}
        readings = Readings.model_validate(said | {"time_unit": "ns"})
        found, rejects = decode(readings, messages(*bodies), schemas=lambda _: schema, timezone="Europe/Paris")
        assert found == sorted(rows * count)
        assert rejects == ([(at, "unparsable-time") for at in range(count)] if len(rows) == 1 else [])


def test_decimals_are_numbers():
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
    schema = SCHEMA | {"fields": [*SCHEMA["fields"][:2], {"name": "kwh", "type": decimal}]}
    given = b"\0\0\0\0\1" + body(schema, **(reading() | {"kwh": Decimal("-12.345")}))
    assert decode(READINGS, messages(given), schemas=lambda _: schema) == ([("m0", NOON_US, -12.345)], [])


@pytest.mark.night
@pytest.mark.parametrize("kind", ["bytes", "fixed"])
@pytest.mark.parametrize("count", [1, 3])
def test_decimals_of_very_many_digits_are_rejects_even_where_unused(kind: str, count: int):
    """The library reads one in the square of its size: a message of 990 kB stalled its worker for six minutes."""
    for size, good in ((2_048, count), (2_049, 0)):
        decimal = {"type": kind, "logicalType": "decimal", "precision": 10, "scale": 2}
        price = decimal if kind == "bytes" else decimal | {"name": "D", "size": size}
        schema = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "price", "type": price}]}
        plain = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "price", "type": price | {"logicalType": "none"}}]}
        given = [b"\0\0\0\0\1" + body(plain, **reading(), price=b"\x7f" * size)] * count
        rows, rejects = decode(READINGS, messages(*given), schemas=lambda _, one=schema: one)
        assert (len(rows), rejects) == (good, [(at, "malformed-row") for at in range(count - good)])


def damaged(number: int) -> bytes:
    whole = wire(number)
    return [whole[:-1], whole + b"\0", whole[:4], b"", b"\1" + whole[1:], b"\0\0\0\0\7"][number % 6]


def test_a_damaged_message_is_one_reject_and_affects_no_other():
    given = messages(*[damaged(i) if i % 10 == 3 else wire(i) for i in range(60)])
    rows, rejects = decode(READINGS, given, schemas=lookup)
    assert rows == sorted(row(i) for i in range(60) if i % 10 != 3)
    assert rejects == [(i, "malformed-row") for i in range(60) if i % 10 == 3]


def test_missing_bytes_of_a_message_are_not_read_from_the_next():
    """Read as one stream, a body cut short and one with more behind it may still make two whole records."""
    first, second = body(SCHEMA, **reading(1)), body(SCHEMA, **reading(2))
    both = first + second
    head = b"\0" + struct.pack(">I", 7)
    given = messages(*[wire(i) for i in range(10, 20)], head + both[:-3], head + both[-3:])
    rows, rejects = decode(READINGS, given, schemas=lookup)
    assert rows == sorted(row(i) for i in range(10, 20))
    assert rejects == [(10, "malformed-row"), (11, "malformed-row")]


def test_messages_of_an_unknown_schema_are_rejects_until_it_is_registered():
    known: dict[int, Any] = {}
    decoder = PayloadDecoder(READINGS, schemas=known.__getitem__)
    given = messages(*[wire(i) for i in range(9)])
    assert outcome(decoder, given) == ([], [(i, "unknown-schema") for i in range(9)])
    known[7] = SCHEMA
    assert outcome(decoder, given) == (sorted(row(i) for i in range(9)), [])


def test_an_unavailable_registry_causes_no_rejects():
    def away(number: int) -> Any:
        raise SourceAwayError(f"schema {number}: no answer")

    with pytest.raises(SourceAwayError):
        PayloadDecoder(READINGS, schemas=away).decode(messages(wire()))


LIST = {"type": "record", "name": "L", "namespace": "x", "fields": [{"name": "next", "type": ["null", "x.L"]}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        LIST,
        {"type": "map", "values": LIST},
        {"type": "nothing"},
        "nonsense",
        {},
        None,
    ],
)
def test_a_schema_with_unbounded_decoding_work_is_refused(schema: Any):
    given = messages(*[b"\0\0\0\0\7\xff\xff\xff\xff\x0f\0"] * 9)
    assert decode(READINGS, given, schemas=lambda _: schema) == ([], [(i, "unknown-schema") for i in range(9)])


def single(number: int, schema: Any = SCHEMA) -> bytes:
    return b"\xc3\x01" + struct.pack("<Q", schema_fingerprint(schema)) + body(SCHEMA, **reading(number))


EMPTY = 0xC15D213AA4D7A795


def rabin(text: bytes) -> int:
    """CRC-64-AVRO as the specification words it, bit by bit."""
    crc = EMPTY
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (EMPTY if crc & 1 else 0)
    return crc


def test_the_fingerprint_is_that_of_the_specification():
    assert schema_fingerprint("int") == rabin(b'"int"') == 0x7275D51A3F395C8F
    written = {
        "name": "R",
        "type": "record",
        "doc": "left out",
        "fields": [{"type": "long", "name": "a", "default": 1}],
    }
    canonical = b'{"name":"R","type":"record","fields":[{"name":"a","type":"long"}]}'
    assert schema_fingerprint(written) == rabin(canonical)


def test_single_objects_are_read_by_the_fingerprint_of_their_schema():
    given = messages(*[single(i) for i in range(9)], b"\xc3\x01" + bytes(8), b"\xc3\x02" + single(1)[2:], b"\xc3")
    assert decode(SINGLE, given) == (
        sorted(row(i) for i in range(9)),
        [(9, "unknown-schema"), (10, "malformed-row"), (11, "malformed-row")],
    )


def test_one_flipped_bit_of_the_fingerprint_is_detected():
    good = single(3)
    for bit in range(64):
        flipped = bytearray(good)
        flipped[2 + bit // 8] ^= 1 << bit % 8
        assert decode(SINGLE, messages(bytes(flipped))) == ([], [(0, "unknown-schema")])


def test_schemas_of_the_settings_must_be_schemas():
    bad = json.loads('[{"type": "nothing"}]')
    with pytest.raises(SettingsError, match=r"avro_schemas\[0\] is no Avro schema"):
        PayloadDecoder(SINGLE.model_copy(update={"avro_schemas": bad})).check()


def zigzag(number: int) -> bytes:
    """A number of Avro."""
    left, found = (number << 1) ^ (number >> 127), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


READING: dict[str, Any] = avro_record("One", t="long", v=["null", "double"])
FIELDS: list[dict[str, Any]] = [
    {"name": "note", "type": ["null", "string"]},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
    {"name": "id", "type": ["null", "string"]},
    {"name": "r", "type": ["null", {"type": "array", "items": READING}]},
]
ARRAY_SCHEMA: dict[str, Any] = {"type": "record", "name": "All", "fields": FIELDS}
MAPPING = {"each": "payload.r", "series": "payload.id", "time": "t", "time_unit": "ms", "value": "v", "payload": "avro"}
ARRAYS = Readings.model_validate(MAPPING)


NOTE, KIND, ID = zigzag(0), zigzag(1), zigzag(1) + zigzag(2) + b"m1"
ROWS = zigzag(1)
VALUE = zigzag(NOON_MS) + zigzag(1) + struct.pack("<d", 1.5)

ODD: dict[str, bytes] = {
    "cut short": NOTE + KIND + ID + ROWS + zigzag(1) + VALUE,
    "bytes behind": NOTE + KIND + ID + ROWS + zigzag(1) + VALUE + zigzag(0) + b"\0",
    "nothing": b"",
    "no such type in a union": zigzag(2) + KIND + ID + ROWS + zigzag(0),
    "a union's type before the first": zigzag(-1) + b"\2a" + KIND + ID + ROWS + zigzag(0),
    "no such symbol": NOTE + zigzag(2) + ID + ROWS + zigzag(0),
    "a symbol before the first": NOTE + zigzag(-1) + ID + ROWS + zigzag(1) + VALUE + zigzag(0),
    "a text of less than nothing": zigzag(1) + zigzag(-3) + KIND + ID + ROWS + zigzag(0),
    "a text longer than all": zigzag(1) + zigzag(1 << 40) + KIND + ID + ROWS + zigzag(0),
    "a text that ends behind the message": zigzag(1) + zigzag(60) + KIND + ID + ROWS + zigzag(0),
    "a text that is none": zigzag(1) + zigzag(2) + b"\xc3\x28" + KIND + ID + ROWS + zigzag(1) + VALUE + zigzag(0),
    "a name that is no text": NOTE + KIND + zigzag(1) + zigzag(1) + b"\xff" + ROWS + zigzag(1) + VALUE + zigzag(0),
    "half of a pair in a name": NOTE
    + KIND
    + zigzag(1)
    + zigzag(3)
    + b"\xed\xa0\x80"
    + ROWS
    + zigzag(1)
    + VALUE
    + b"\0",
    "no name": NOTE + KIND + zigzag(0) + ROWS + zigzag(1) + VALUE + zigzag(0),
    "an empty name": NOTE + KIND + zigzag(1) + zigzag(0) + ROWS + zigzag(1) + VALUE + zigzag(0),
    "a name too long": NOTE + KIND + zigzag(1) + zigzag(1001) + b"m" * 1001 + ROWS + zigzag(1) + VALUE + zigzag(0),
    "a name of long letters": NOTE + KIND + b"\2" + zigzag(1998) + b"\xc3\xa9" * 999 + ROWS + b"\2" + VALUE + b"\0",
    "no array": NOTE + KIND + ID + zigzag(0),
    "an empty array": NOTE + KIND + ID + ROWS + zigzag(0),
    "an array in blocks": NOTE + KIND + ID + ROWS + zigzag(1) + VALUE + zigzag(2) + VALUE * 2 + zigzag(0),
    "blocks with sizes": NOTE + KIND + ID + ROWS + zigzag(-2) + zigzag(2 * len(VALUE)) + VALUE * 2 + zigzag(0),
    "a block with a wrong size": NOTE + KIND + ID + ROWS + zigzag(-2) + zigzag(0) + VALUE * 2 + zigzag(0),
    "an array of millions": NOTE + KIND + ID + ROWS + zigzag(1 << 50) + VALUE,
    "a number of nine bytes": NOTE + KIND + ID + ROWS + b"\2" + zigzag(-(1 << 61)) + zigzag(0) + b"\0",
    "a number of ten bytes": NOTE + KIND + ID + ROWS + b"\2" + zigzag(-(1 << 63)) + zigzag(0) + b"\0",
    "a number of bytes too many": NOTE + KIND + ID + ROWS + b"\2" + b"\x80" * 9 + b"\x02" + zigzag(0) + b"\0",
    "a number without an end": NOTE + KIND + ID + ROWS + b"\2" + b"\x80" * 40,
    "a number longer than it need be": NOTE + KIND + ID + ROWS + b"\x82\x80\x80\x00" + VALUE + b"\0",
    "a value that is none": NOTE
    + KIND
    + ID
    + ROWS
    + b"\2"
    + zigzag(NOON_MS)
    + b"\2"
    + struct.pack("<d", float("nan"))
    + b"\0",
}


def wire_array(content: bytes) -> bytes:
    return b"\0" + struct.pack(">I", 7) + content


GOOD = wire_array(NOTE + KIND + ID + ROWS + zigzag(1) + VALUE + zigzag(0))


@pytest.mark.parametrize("name", ODD)
def test_a_body_of_any_bytes_affects_no_other(name: str):
    rows, rejects = decode(ARRAYS, messages(GOOD, wire_array(ODD[name]), GOOD), schemas=lambda _: ARRAY_SCHEMA)
    assert rows.count(("m1", NOON_US, 1.5)) >= 2
    assert {at for at, _ in rejects} <= {1}


def test_false_sizes_in_a_message_allocate_no_memory():
    """Each claims a text as long as all messages together."""
    claims = (zigzag(1) + zigzag(60_000) + bytes(200), NOTE + KIND + ID + ROWS + zigzag(1 << 50) + VALUE)
    given = messages(*[wire_array(claim) for claim in claims] * 500)
    tracemalloc.start()
    try:
        assert len(decode(ARRAYS, given, schemas=lambda _: ARRAY_SCHEMA)[1]) == 1_000
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
