from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.avro import AvroParser, schema_fingerprint
from quiltstream.transforms.payloads.messages import SourceAwayError
from quiltstream.transforms.payloads.parsing import Parsed

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
OTHER = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "kwh", "type": "int"}, {"name": "at", "type": "long"}, {"name": "meter", "type": "long"}],
}
REGISTRY = {7: SCHEMA, 300: OTHER}

READINGS = Readings(series="meter", time="at", time_unit="ms", value="kwh", payload="avro")
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
def test_a_number_that_no_registry_has_is_never_asked_for(number: int):
    """To a negative number a registry answers as a server that is none, for which messages would wait for ever."""
    asked: list[int] = []
    parsed = AvroParser(asked.append)([b"\0" + struct.pack(">I", number) + b"xx"], [4])
    assert [one.bad for one in parsed if isinstance(one, Parsed)] == [{4: RejectReason.MALFORMED_ROW}]
    assert len(parsed) == 1
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


STAMPS = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}


@pytest.mark.parametrize("logical", STAMPS)
@pytest.mark.parametrize("count", [1, 9])
def test_stamps_are_of_the_unit_that_the_schema_says_wherever_they_are(logical: str, count: int):
    """In a union, in a named type, in an array, for every reading of it: whatever ``time_unit`` says."""
    stamp = {
        "type": "record",
        "name": "Stamp",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": logical}}],
    }
    other = {
        "type": "record",
        "name": "Other",
        "fields": [{"name": "first", "type": stamp}, {"name": "x", "type": ["null", "Stamp"]}],
    }
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "stamp", "type": ["null", "Stamp"]}, {"name": "v", "type": "int"}],
    }
    schema = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "other", "type": other},
            {"name": "id", "type": "string"},
            {"name": "rows", "type": {"type": "array", "items": row}},
        ],
    }
    instant = NOON_US // STAMPS[logical]
    record = {
        "other": {"first": {"at": instant}, "x": None},
        "id": "m1",
        "rows": [{"stamp": {"at": instant + 5}, "v": 1}, {"stamp": None, "v": 2}],
    }
    bodies = [b"\0\0\0\0\1" + body(schema, **record)] * count
    hour = 3_600_000_000 if logical.startswith("local") else 0
    for path, rows in (
        ("rows[*].stamp.at", [("m1", NOON_US - hour + 5 * STAMPS[logical], 1.0)]),
        ("other.first.at", [("m1", NOON_US - hour, 1.0), ("m1", NOON_US - hour, 2.0)]),
    ):
        readings = Readings(series="id", time=path, time_unit="ns", value="rows[*].v", payload="avro")
        found, rejects = decode(readings, messages(*bodies), schemas=lambda _: schema, timezone="Europe/Paris")
        assert found == sorted(rows * count)
        assert rejects == ([(at, "unparsable-time") for at in range(count)] if len(rows) == 1 else [])


def test_decimals_are_numbers():
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
    schema = SCHEMA | {"fields": [*SCHEMA["fields"][:2], {"name": "kwh", "type": decimal}]}
    given = b"\0\0\0\0\1" + body(schema, **(reading() | {"kwh": Decimal("-12.345")}))
    assert decode(READINGS, messages(given), schemas=lambda _: schema) == ([("m0", NOON_US, -12.345)], [])


def damaged(number: int) -> bytes:
    whole = wire(number)
    return [whole[:-1], whole + b"\0", whole[:4], b"", b"\1" + whole[1:], b"\0\0\0\0\7"][number % 6]


def test_a_damaged_message_is_one_reject_and_harms_no_other():
    given = messages(*[damaged(i) if i % 10 == 3 else wire(i) for i in range(60)])
    rows, rejects = decode(READINGS, given, schemas=lookup)
    assert rows == sorted(row(i) for i in range(60) if i % 10 != 3)
    assert rejects == [(i, "malformed-row") for i in range(60) if i % 10 == 3]


@pytest.mark.assures("payloads", "Bytes that one Avro body lacks are not taken from the next")
def test_bytes_that_one_message_lacks_are_not_taken_from_the_next():
    """Read as one stream, a body cut short and one with more behind it may still make two whole records."""
    first, second = body(SCHEMA, **reading(1)), body(SCHEMA, **reading(2))
    both = first + second
    head = b"\0" + struct.pack(">I", 7)
    given = messages(*[wire(i) for i in range(10, 20)], head + both[:-3], head + both[-3:])
    rows, rejects = decode(READINGS, given, schemas=lookup)
    assert rows == sorted(row(i) for i in range(10, 20))
    assert rejects == [(10, "malformed-row"), (11, "malformed-row")]


def test_a_schema_that_the_registry_does_not_have_is_a_reject_until_it_has_it():
    known: dict[int, Any] = {}
    decoder = PayloadDecoder(READINGS, schemas=known.__getitem__)
    given = messages(*[wire(i) for i in range(9)])
    assert outcome(decoder, given) == ([], [(i, "unknown-schema") for i in range(9)])
    known[7] = SCHEMA
    assert outcome(decoder, given) == (sorted(row(i) for i in range(9)), [])


def test_a_registry_that_is_away_rejects_nothing():
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
def test_a_schema_whose_bodies_could_keep_a_reader_busy_for_ever_is_not_read(schema: Any):
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


def test_one_flipped_bit_of_the_fingerprint_is_noticed():
    good = single(3)
    for bit in range(64):
        flipped = bytearray(good)
        flipped[2 + bit // 8] ^= 1 << bit % 8
        assert decode(SINGLE, messages(bytes(flipped))) == ([], [(0, "unknown-schema")])


def test_schemas_of_the_settings_must_be_schemas():
    bad = json.loads('[{"type": "nothing"}]')
    with pytest.raises(SettingsError, match=r"avro_schemas\.0 is no Avro schema"):
        PayloadDecoder(SINGLE.model_copy(update={"avro_schemas": bad})).check()
