"""Decoders of messages: what is refused before any message, schemas that are looked up, what is left as it was."""

from __future__ import annotations

import gc
import struct
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import SettingsError, problems_of
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.avro import schema_fingerprint
from quiltstream.transforms.payloads.messages import SourceAwayError
from quiltstream.transforms.sources.files import decoder_of

from ...readings import test_decoded as decoded
from .payloads import decode, messages, outcome

FLAT = {"each": "payload", "series": "topic[1]", "time": "ts", "value": "power"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"each": "payload.["}, r"readings\.each is no JMESPath at character 10, at its end"),
        ({"value": "a..b"}, r"readings\.value is no JMESPath at character 3"),
        ({"where": "a == 'x"}, r"readings\.where is no JMESPath at character 6"),
        ({"series": "nam([a])"}, r"readings\.series: nam\(\) is no function; there are abs, .*name"),
        ({"series": "name(a, b)"}, r"readings\.series: name\(\) takes 1 arguments, and 2 are given"),
        ({"each": "readings"}, r"readings\.each begins at 'readings'.* write for example payload\.readings"),
        ({"where": "!payload.a"}, r"write !\(\.\.\.\) around what it is to deny"),
        ({"value": "[" * 900 + "a" + "]" * 900}, "nested too deeply"),
        ({"value": "[" * 50 + "a" + "]" * 50}, "more than 40 expressions inside one another"),
        ({"units": "u[", "unit": "W"}, r"readings\.units is no JMESPath"),
        ({"each": None}, "readings.each is missing"),
        ({"payload": "avro"}, "schema registry"),
        ({"payload": "avro-single", "avro_schemas": [{"type": "nothing"}]}, r"avro_schemas\[0\] is no Avro schema"),
        ({"time_format": "%Q"}, "readings.time_format"),
        ({"ambiguous": "in-order"}, "the source has messages"),
        ({"columns": ["a"]}, "readings.columns is of payload: csv"),
        ({"payload": "ndjson", "delimiter": ";"}, "readings.delimiter is of payload: csv"),
        ({"compression": "zip"}, "compression is 'zip'"),
        ({"payload": "xml"}, "payload is 'xml': input should be 'json', 'ndjson'"),
    ],
)
def test_settings_that_cannot_be_used_are_named_before_any_message(said: dict[str, Any], message: str) -> None:
    with pytest.raises((SettingsError, ValidationError)) as caught:
        PayloadDecoder(Readings.model_validate(FLAT | said)).check()
    with pytest.raises(SettingsError, match=message):
        raise SettingsError(problems_of(caught.value)) if isinstance(caught.value, ValidationError) else caught.value


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


def test_a_group_is_an_attribute_and_expressions_are_not_of_files() -> None:
    with pytest.raises(SettingsError, match=r"not among readings\.attributes"):
        PayloadDecoder(Readings.model_validate(FLAT | {"attributes": {"site": "topic[0]"}}), group="topic[0]").check()
    with pytest.raises(SettingsError, match=r"readings\.each is set, and only messages have it"):
        decoder_of(FileSource(jsonl="a.jsonl"), Readings.model_validate(FLAT))


@pytest.mark.parametrize(("payload", "library"), [("cim", "defusedxml"), ("cbor", "cbor2")])
def test_a_library_that_is_missing_is_named_before_any_message(
    payload: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=rf"{library}; install quiltstream\[formats\]"):
        PayloadDecoder(Readings.model_validate(FLAT | {"payload": payload})).check()


def test_garbage_collection_is_restored_after_decoding() -> None:
    decoder = PayloadDecoder(Readings.model_validate(FLAT))
    for wanted in (True, False):
        (gc.enable if wanted else gc.disable)()
        try:
            decoder.decode(messages("{}", "{"))
            assert gc.isenabled() is wanted
        finally:
            gc.enable()


# Schemas of Avro

WIRE = next(one for one in decoded.CASES if one["name"] == "the wire format of registries is read")
AVRO = Readings.model_validate(WIRE["readings"])
SINGLE = next(one for one in decoded.CASES if one["name"].startswith("single objects"))


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) - 1])
def test_an_invalid_schema_id_is_never_requested(number: int) -> None:
    """To a negative number a registry answers as a server that is none, for which messages would wait for ever."""
    asked: list[int] = []
    given = messages(b"\0" + struct.pack(">I", number) + b"xx")
    assert decode(AVRO, given, schemas=asked.append) == ([], [(0, "malformed-row")])
    assert asked == []


def test_messages_of_an_unknown_schema_are_rejects_until_it_is_registered() -> None:
    known: dict[int, Any] = {}
    decoder, given = PayloadDecoder(AVRO, schemas=known.__getitem__), decoded.sent(WIRE["messages"])
    assert outcome(decoder, given) == ([], [(at, "unknown-schema") for at in range(len(given))])
    known |= WIRE["schemas"]
    assert outcome(decoder, given) == decoded.right(WIRE["messages"])[:2]


def test_an_unavailable_registry_causes_no_rejects() -> None:
    def away(number: int) -> Any:
        raise SourceAwayError(f"schema {number}: no answer")

    with pytest.raises(SourceAwayError):
        PayloadDecoder(AVRO, schemas=away).decode(decoded.sent(WIRE["messages"]))


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
def test_a_schema_with_unbounded_decoding_work_is_refused(schema: Any) -> None:
    given = messages(*[b"\0\0\0\0\7\xff\xff\xff\xff\x0f\0"] * 9)
    assert decode(AVRO, given, schemas=lambda _: schema) == ([], [(at, "unknown-schema") for at in range(9)])


EMPTY = 0xC15D213AA4D7A795


def rabin(text: bytes) -> int:
    """CRC-64-AVRO as the specification words it, bit by bit."""
    crc = EMPTY
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (EMPTY if crc & 1 else 0)
    return crc


def test_the_fingerprint_is_that_of_the_specification_and_every_bit_of_it_counts() -> None:
    assert schema_fingerprint("int") == rabin(b'"int"') == 0x7275D51A3F395C8F
    field = {"type": "long", "name": "a", "default": 1}
    written = {"name": "R", "type": "record", "doc": "left out", "fields": [field]}
    canonical = b'{"name":"R","type":"record","fields":[{"name":"a","type":"long"}]}'
    assert schema_fingerprint(written) == rabin(canonical)
    good = SINGLE["messages"][3]["bytes"].encode("latin-1")
    for bit in range(64):
        flipped = bytearray(good)
        flipped[2 + bit // 8] ^= 1 << bit % 8
        assert outcome(decoded.made(SINGLE), messages(bytes(flipped))) == ([], [(0, "unknown-schema")])
