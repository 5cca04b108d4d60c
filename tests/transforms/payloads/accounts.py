"""What a plain look at a message says of how many readings it holds; nothing of the decoders is in it.

A message is read whole, or is one reject, or is a reject some of whose readings are read all the same. So whoever knows
how many readings a message holds knows from what was read whether it must be among the rejects.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import cbor2
import fastavro

#: A message beside its payload: topic, key and headers.
Beside = tuple[str, bytes | None, list[tuple[str, bytes | None]]]


class Held(NamedTuple):
    least: int  # so many are given if it is no reject
    most: int  # no more are given
    sure: bool = True  # whether it can be read at all, so that it is no reject if all of them are given

    def fits(self, rows: int, *, rejected: bool) -> bool:
        """Whether it may have given so many readings, and been rejected or not."""
        if rejected:
            return rows < self.most or (rows == self.most and not self.sure)
        return self.least <= rows <= self.most


#: Nobody can read it.
NONE = Held(1, 0, sure=False)
#: Nothing is known of it.
ANY = Held(0, 1_000_000, sure=False)

Account = Callable[[bytes, Beside], Held]


class BrokenError(ValueError):
    """A message cannot be read."""


class UnsureError(Exception):
    """Who knows what others make of it."""


def needs(*, true: bool) -> None:
    if not true:
        raise BrokenError


def counted(count: Callable[[Any], int], read: Callable[[bytes], tuple[Any, bool]]) -> Account:
    """The account of documents.

    Args:
        count: the readings of what a payload holds; raises for a shape that is none.
        read: what a payload holds, and whether all parsers agree on it.
    """

    def account(payload: bytes, _: Beside) -> Held:
        try:
            value, sure = read(payload)
            number = count(value)
        except UnsureError:
            return ANY
        except Exception:  # noqa: BLE001 - whatever a parser raises, nobody can read it
            return NONE
        return Held(number, number, sure)

    return account


def refuse(*_: Any) -> Any:
    raise BrokenError


def json_of(payload: bytes) -> tuple[Any, bool]:
    value = json.loads(payload.decode("utf-8"), parse_constant=refuse)
    if b"\\u" not in payload:
        return value, True
    # half of a pair of surrogates has no form in UTF-8; one that a later field of its name hides is not seen here
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value, False


#: First bytes of CBOR's tags, but for that of decimal fractions: they are refused, and some take a parser for ever.
_TAGS = bytes(one for one in range(0xC0, 0xDC) if one != 0xC4)


def cbor_of(payload: bytes) -> tuple[Any, bool]:
    if payload.translate(None, _TAGS) != payload:
        raise UnsureError
    stream = io.BytesIO(payload)
    value = cbor2.load(stream)
    needs(true=stream.tell() == len(payload))
    return value, False


def avro_of(head: bytes, schema: Any) -> Callable[[bytes], tuple[Any, bool]]:
    """Reads Avro behind a head; stamps are read as plain numbers, so that no calendar has a part in it."""
    plain = fastavro.parse_schema(schema)

    def read(payload: bytes) -> tuple[Any, bool]:
        needs(true=payload.startswith(head))
        stream = io.BytesIO(payload[len(head) :])
        value = fastavro.schemaless_reader(stream, plain, None)
        needs(true=stream.tell() == len(payload) - len(head))
        return value, False

    return read


def one(_: Any) -> int:
    return 1


def elements(value: Any) -> int:
    needs(true=isinstance(value["r"], list))
    return len(value["r"])


def an_object(value: Any) -> dict[Any, Any]:
    needs(true=type(value) is dict)
    return value


def objects(value: Any) -> list[dict[Any, Any]]:
    needs(true=type(value) is list)
    return [an_object(each) for each in value]


def thingsboard(value: Any) -> int:
    def item(each: dict[str, Any]) -> int:
        return "power" in (an_object(each["values"]) if "ts" in each and "values" in each else each)

    if type(value) is list:
        return sum(map(item, objects(value)))
    try:
        devices = [objects(each) for each in an_object(value).values()]
    except BrokenError:
        devices = []
    return sum(item(each) for device in devices for each in device) if devices else int(item(an_object(value)))


def edgex(value: Any) -> int:
    payload = an_object(value).get("payload")
    if payload is not None and "readings" not in value:
        packed = type(payload) is str
        value = an_object(json_of(base64.b64decode(payload, validate=True))[0] if packed else payload)
    if value.get("event") is not None:
        value = an_object(value["event"])
    found = [each for each in objects(value.get("readings")) if each.get("resourceName") == "power"]
    needs(true=len({json.dumps(each.get("units"), sort_keys=True) for each in found}) < 2)
    return len(found)


def ngsi(value: Any) -> int:
    value = an_object(an_object(value).get("body", value))
    found = [each["power"] for each in objects(value.get("data")) if "power" in each]
    return sum(len(each) if type(each) is list else 1 for each in found)


_SENML = {-1: "bver", -2: "bn", -3: "bt", -4: "bu", -5: "bv", 0: "n", 1: "u", 2: "v", 3: "vs", 4: "vb", 6: "t", 8: "vd"}


def senml(value: Any) -> int:
    """Of a pack, as RFC 8428 has it: base fields hold from their record on, the name is of base name and own name."""
    base, count, base_unit, units = "", 0, None, set[str]()
    for given in objects(value):
        record = {(_SENML.get(key) if type(key) is int else key): each for key, each in given.items()}
        needs(true=not any(type(key) is str and key.endswith("_") for key in record))
        version = record.get("bver", 10)
        needs(true=version == 10 or (type(version) is int and version < 10))
        base, own = record.get("bn", base), record.get("n", "")
        base_unit = record.get("bu", base_unit)
        needs(true=all(type(each) is str and len(each) <= 1_000 for each in (base, own)))
        needs(true=all(type(record.get(field, 0)) in {int, float} for field in ("bt", "bv")))
        if record.keys() & {"v", "vs", "vb", "vd"} and _is_power(base + own, own):
            needs(true=all(type(record.get(field, 0)) in {int, float} for field in ("t", "v")))
            units.add(repr(record.get("u", base_unit)))
            count += 1
    needs(true=len(units) < 2)
    return count


def _is_power(name: str, own: str) -> bool:
    return name.endswith("power") and (name == "power" or own == "power" or name[-6] in ":/._-")


def senml_of(payload: bytes) -> tuple[Any, bool]:
    return cbor_of(payload) if payload[:1] and 0x80 <= payload[0] < 0xA0 else json_of(payload)


def register(value: Any) -> int:
    """Readings of counters give no row each: only what is sure to be none is told here."""
    needs(true=isinstance(value["r"], list))
    for each in value["r"]:
        needs(true=all(type(each[name]) in {int, float, str} for name in ("t", "v")))
    needs(true=not value["r"] or type(value["id"]) in {int, str})
    return 0


def counters(payload: bytes, beside: Beside) -> Held:
    return NONE if counted(register, json_of)(payload, beside) == NONE else ANY


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        needs(true=at < len(data))
        found |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return found, at
        if shift > 56:
            raise UnsureError


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message of protobuf that have a length, in its wire format."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number or number >> 29 or kind in {3, 4, 6, 7}:
            raise UnsureError
        if kind == 0:
            at = _varint(data, at)[1]
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        needs(true=at + size <= len(data))
        if kind == 2:
            yield number, data[at : at + size]
        at += size


def sparkplug(payload: bytes, beside: Beside) -> Held:
    try:
        topic = _sparkplug_topic(beside)
        needs(true=topic.startswith("spBv1.0/g/"))
        metrics = [dict(fields(data)) for number, data in fields(payload) if number == 2]
        names = [metric.get(1, b"").decode("utf-8") for metric in metrics]
    except UnsureError:
        return ANY
    except ValueError:
        return NONE
    aliases = names.count("")
    return Held(names.count("power"), names.count("power") + aliases, sure=not aliases)


def _sparkplug_topic(beside: Beside) -> str:
    topic, key, headers = beside
    noted = [value for name, value in headers if name == "mqtt-topic"][-1:]
    topic = topic if not noted or noted[0] is None else noted[0].decode("utf-8", "replace")
    return topic if topic.startswith("spBv1.0") or not key else key.decode("utf-8", "replace")


def checksums(crc: Callable[[bytes], int]) -> Callable[[bytes], bytes]:
    """The checksum of a telegram in its digits, quicker than bit by bit."""
    table = [crc(bytes([byte])) for byte in range(256)]

    def checksum(data: bytes) -> bytes:
        found = 0
        for byte in data:
            found = found >> 8 ^ table[(found ^ byte) & 0xFF]
        return b"%04X" % found

    return checksum


def dsmr(crc: Callable[[bytes], int], *codes: bytes) -> Account:
    """The account of telegrams.

    Args:
        crc: of some bytes.
        codes: the wanted ones.
    """
    checksum = checksums(crc)

    def account(payload: bytes, _: Beside) -> Held:
        start, end = payload.find(b"/"), payload.rfind(b"!")
        if start < 0 or end < start:
            return NONE
        given, lines = payload[end + 1 :].strip(), payload[start:end].split(b"\n")[1:]
        found = {line.partition(b"(")[0]: line.removesuffix(b"\r") for line in lines if _is_line(line)}
        if given.upper() != checksum(payload[start : end + 1]) and (
            given or found.keys() & {b"1-3:0.2.8", b"0-0:96.1.4"}
        ):
            return NONE
        values = [found[code].rpartition(b"(")[2].removesuffix(b")") for code in codes if code in found]
        # the codes here are powers
        if any(value.partition(b"*")[2].strip() not in {b"W", b"kW", b"MW", b"GW"} for value in values):
            return NONE
        number = int(bool(values))
        return Held(number, number)

    return account


def _is_line(line: bytes) -> bool:
    """Whether it is a code, and one group or more in brackets."""
    code, bracket, rest = line.removesuffix(b"\r").partition(b"(")
    medium, colon, number = code.partition(b":")
    parts = [*medium.split(b"-"), *number.split(b".")]
    groups = rest.removesuffix(b")").split(b")(")
    return (
        bool(bracket and colon)
        and (medium.count(b"-"), number.count(b"."), len(parts)) == (1, 2, 5)
        and all(part.isdigit() for part in parts)
        and rest.endswith(b")")
        and not any(set(group) & set(b"()\r") for group in groups)
    )


def documents(whole: bytes, readings: int, *tags_of_readings: str) -> Account:
    """The account of documents of XML, exact for those that differ from a whole one in texts of readings only."""

    own = list(ET.fromstring(whole).iter())  # noqa: S314 - of the test itself
    tags = [each.tag for each in own]
    rest = [_rest(each) for each in own]

    def account(payload: bytes, _: Beside) -> Held:
        try:
            root = ET.fromstring(payload)  # noqa: S314 - Expat stops what would grow without end
        except (ET.ParseError, ValueError, LookupError):
            return NONE
        found = list(root.iter())
        kinds = [each.tag for each in found]
        if kinds == tags and [_rest(each) for each in found] == rest:
            return Held(readings, readings)
        return Held(0, sum(each.rpartition("}")[2] in tags_of_readings for each in kinds), sure=False)

    return account


def _rest(element: Any) -> tuple[Any, Any]:
    """What of an element says which readings there are."""
    return element.attrib, None if element.tag.endswith(("}start", "}value", "}title", "}timeStamp")) else element.text


def accounts(
    schema: Any, single: int, crc: Callable[[bytes], int], whole: bytes, cim: bytes, codes: tuple[bytes, ...]
) -> Any:
    """Of each decoder the account of its messages.

    Args:
        schema: of the Avro messages, number 7 of their registry.
        single: its fingerprint.
        crc: that of DSMR.
        whole: a feed of Green Button with two readings that are wanted.
        cim: a document of meter readings with two that are wanted.
        codes: of DSMR, those that are wanted.
    """
    plain = json.loads(json.dumps(schema).replace('"timestamp-millis"', '"none"'))
    return {
        "json": counted(elements, json_of),
        "cbor": counted(elements, cbor_of),
        "avro": counted(elements, avro_of(b"\0\0\0\0\7", plain)),
        "avro-single": counted(elements, avro_of(b"\xc3\x01" + struct.pack("<Q", single), plain)),
        "register": counters,
        "thingsboard": counted(thingsboard, json_of),
        "edgex": counted(edgex, json_of),
        "hono": counted(one, json_of),
        "azure-iot": counted(one, json_of),
        "aws-iot": counted(one, json_of),
        "senml": counted(senml, senml_of),
        "sparkplug": sparkplug,
        "ngsi-ld": counted(ngsi, json_of),
        "green-button": documents(whole, 2, "IntervalReading"),
        "cim": documents(cim, 2, "IntervalReadings", "Readings"),
        "dsmr": dsmr(crc, *codes),
    }
