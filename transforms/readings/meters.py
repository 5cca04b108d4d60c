r"""What meters write themselves, as objects: DSMR telegrams and CIM meter readings.

``dsmr``
    a telegram of a Dutch, Belgian or Luxembourgish meter (P1), one object: ``meter`` and ``time``, and of each OBIS
    code ``1-0:1.7.0`` its digits, ``1-0:1.7.0 unit`` and, of other devices such as gas meters, ``0-1:24.2.1 time``
``cim``
    ``MeterReadings`` (IEC 61968-9), an object a value: ``meter code unit flow time length value quality``. ``code`` is
    the eighteen numbers of the reading type, ``time`` the begin of an interval, or the stamp of what has no length;
    the power of ten is applied

>>> found = telegram(b"/X\r\n\r\n0-0:1.0.0(260105130000W)\r\n0-0:96.1.1(4D31)\r\n1-0:1.7.0(01.193*kW)\r\n!\r\n")
>>> found["meter"], found["time"], found["1-0:1.7.0"], found["1-0:1.7.0 unit"]
('M1', '2026-01-05T12:00:00+00:00', '01.193', 'kW')
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from xml.etree.ElementTree import TreeBuilder
from zoneinfo import ZoneInfo

from ...schemas.settings.base import SettingsError

_LINE = re.compile(rb"^(\d+-\d+:\d+\.\d+\.\d+)(?:\*255)?((?:\([^()\r\n]*\))+)\r?$", re.MULTILINE)
#: The gas of versions 2.2 and 3: stamp, the code that is meant and its unit in one line, the digits in the next.
_GAS = re.compile(
    rb"^\d+-\d+:24\.3\.0\((\d{12})\)(?:\([^()\r\n]*\)){3}\((\d+-\d+:24\.2\.\d+)\)\(([^()\r\n]*)\)\r?\n"
    rb"\(([^()\r\n]*)\)\r?$",
    re.MULTILINE,
)
_GROUP = re.compile(rb"\(([^()]*)\)")
_STAMP = re.compile(r"(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})([SW]?)")
_TIME = "0-0:1.0.0"
#: The equipment identifier, and that of Luxembourg; codes that only versions with a checksum have.
_OWN_IDS, _VERSIONS = ("0-0:96.1.1", "0-0:42.0.0"), ("1-3:0.2.8", "0-0:96.1.4")
#: The zone of the stamps, which say by a letter whether summer time held.
_ZONE = ZoneInfo("Europe/Amsterdam")
_POLYNOMIAL = 0xA001


def telegrams(payload: bytes) -> Iterator[bytes]:
    """The telegrams of some bytes, each up to the line with its ``!``, and what follows the last."""
    at = 0
    for end in re.finditer(rb"^![0-9A-Fa-f]{0,4}[ \t]*\r?\n\s*(?=/)", payload, re.MULTILINE):
        yield payload[at : end.end()]
        at = end.end()
    yield payload[at:]


def telegram(given: bytes) -> dict[str, str | None]:
    """A telegram as an object.

    Raises:
        ValueError: it is none, or its checksum is another.
    """
    start, end = given.find(b"/"), given.rfind(b"!")
    if start < 0 or end < start:
        raise ValueError("no telegram")
    lines = {code.decode(): _GROUP.findall(groups) for code, groups in _LINE.findall(given, start, end)}
    for stamp, code, unit, digits in _GAS.findall(given, start, end) if b":24.3.0(" in given else ():
        lines.setdefault(code.decode(), [stamp, digits + b"*" + unit])
    checksum = given[end + 1 :].strip()
    if checksum and checksum.upper() not in _checksums(given[start : end + 1]):
        raise ValueError("another checksum")
    if not checksum and any(code in lines for code in _VERSIONS):
        raise ValueError("no checksum")
    found: dict[str, str | None] = {"meter": None, "time": _instant(_plain(lines.pop(_TIME, [b""])[0]))}
    for code, groups in lines.items():
        if code in _OWN_IDS:
            found["meter"] = found["meter"] or _identifier(groups[-1])
        elif code.endswith((":96.1.0", ":96.1.1")):
            found[code] = _identifier(groups[-1])
        else:
            digits, star, unit = _plain(groups[-1]).partition("*")
            found[code] = digits or None
            found |= {f"{code} unit": unit} if star else {}
            found |= {f"{code} time": _instant(_plain(groups[0]))} if len(groups) > 1 else {}
    return found


def _plain(group: bytes) -> str:
    return group.decode("ascii", "replace").strip()


def _checksums(given: bytes) -> Iterator[bytes]:
    """The checksum of a telegram, and that of it with the carriage returns that it may have lost."""
    yield b"%04X" % crc16(given)
    if b"\r" not in given:
        yield b"%04X" % crc16(given.replace(b"\n", b"\r\n"))


def crc16(data: bytes) -> int:
    """CRC16 with the polynomial x16 + x15 + x2 + 1, lowest bit first.

    >>> hex(crc16(b"123456789"))
    '0xbb3d'
    """
    crc = 0
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_CRC_TABLE = tuple(map(_table_entry, range(256)))


def _instant(stamp: str) -> str | None:
    """The instant of a local stamp; the earlier one of a version that does not say whether summer time held."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return None
    year, *rest = (int(one) for one in match.groups()[:6])
    try:
        local = dt.datetime(2000 + year, *rest, tzinfo=_ZONE)
    except ValueError:
        return None
    folded = (local.replace(fold=fold) for fold in (0, 1))
    held = next((one for one in folded if not match[7] or bool(one.dst()) is (match[7] == "S")), None)
    return None if held is None else held.astimezone(dt.UTC).isoformat()


def _identifier(given: bytes) -> str | None:
    try:
        return bytes.fromhex(given.decode("ascii")).decode("utf-8") or None
    except ValueError:
        return _plain(given) or None


#: Characters of the name of a namespace. A few bytes of an element repeat all of it.
_LONGEST_NAMESPACE = 200
#: Numbers of a code: the length of the interval, how the value accumulates, the direction, the power of ten, the unit.
_INTERVAL, _ACCUMULATION, _DIRECTION, _POWER, _UNIT = 2, 3, 4, 15, 16
_CODE = re.compile(r"\d{1,5}(?:\.\d{1,5}){14}\.-?\d{1,2}\.\d{1,5}\.\d{1,5}")
_UNITS = {72: "Wh", 38: "W", 71: "VAh", 61: "VA", 73: "varh", 63: "var", 29: "V", 5: "A", 42: "m3", 119: "ft3",
          169: "therm", 31: "J"}  # fmt: skip
#: Lengths of intervals in seconds by their codes; values that are at an instant: bulk, cumulative, summation.
_SECONDS = {1: 600, 2: 900, 3: 60, 4: 86_400, 5: 1_800, 6: 300, 7: 3_600, 10: 120, 14: 180, 31: 1_200, 50: 3_600}
_REGISTERS, _DELTA = ("1", "3", "9"), "4"


def check_xml(what: str) -> None:
    """See whether XML can be read here.

    Raises:
        SettingsError: the library is missing.
    """
    if find_spec("defusedxml") is None:
        raise SettingsError(f"{what} need defusedxml; install quiltstream[formats]")


def cim(document: bytes) -> list[dict[str, Any]]:
    """The values of a document as objects.

    Raises:
        ValueError: it is none, or a value has no type.
    """
    from defusedxml import ElementTree  # noqa: PLC0415 - of the extra

    # without definitions of its own: a few bytes of them can stand for endless work
    parser: Any = ElementTree.XMLParser(target=TreeBuilder(), forbid_dtd=True)
    parser.parser.StartNamespaceDeclHandler = _namespace
    parser.feed(document)
    root = parser.close()
    named = dict[str, str]()
    for one in (one for one in root.iter() if _tag(one) == "ReadingType" and one.get("ref") is None):
        said = [each for each in (_text(one, "mRID"), *(_text(name, "name") for name in _all(one, "Names"))) if each]
        named |= dict.fromkeys(said, next(filter(_CODE.fullmatch, said), ""))
    # its own values: those of a reading within it would be taken once for each level
    return [value for one in root.iter() if _tag(one) == "MeterReading" for value in _values(one, named)]


def _namespace(_prefix: str | None, name: str | None) -> None:
    if name is not None and len(name) > _LONGEST_NAMESPACE:
        raise ValueError("a long namespace")


def _values(reading: Any, named: dict[str, str]) -> Iterator[dict[str, Any]]:
    owner = next((one for kind in ("Meter", "UsagePoint") for one in _all(reading, kind)), None)
    names = [] if owner is None else [_text(owner, "mRID"), *(_text(one, "name") for one in _all(owner, "Names"))]
    meter = next(filter(None, names), None)
    for one in _all(reading, "Readings"):
        yield _value(one, meter, _code(one, named), is_interval=False)
    for block in _all(reading, "IntervalBlocks"):
        code = _code(block, named)
        for one in _all(block, "IntervalReadings"):
            yield _value(one, meter, _code(one, named) or code, is_interval=True)


def _value(one: Any, meter: str | None, code: str, *, is_interval: bool) -> dict[str, Any]:
    if not code:
        raise ValueError("a value without the type of its reading")
    numbers = code.split(".")
    digits, stamp = _text(one, "value"), _text(one, "timeStamp")
    kind, length = numbers[_ACCUMULATION], _SECONDS.get(int(numbers[_INTERVAL]))
    period = next(_all(one, "timePeriod"), None)
    start = None if period is None else _text(period, "start")
    if kind in _REGISTERS or not (is_interval or start or kind == _DELTA):
        length = None
    else:
        stamp = start or _begin(stamp, length)
    qualities = (next(_all(each, "ReadingQualityType"), None) for each in _all(one, "ReadingQualities"))
    unit = int(numbers[_UNIT])
    return {
        "meter": meter,
        "code": code,
        "unit": _UNITS.get(unit, str(unit)),
        "flow": numbers[_DIRECTION],
        "time": stamp,
        "length": length,
        "value": None if digits is None else f"{digits}e{numbers[_POWER]}",
        "quality": " ".join(each.get("ref") or _text(each, "mRID") or "" for each in qualities if each is not None),
    }


def _begin(stamp: str | None, length: int | None) -> str | None:
    """The begin of an interval that ends at a stamp; ``None`` where it is not known."""
    try:
        end = None if stamp is None or length is None else dt.datetime.fromisoformat(stamp)
        return None if end is None else (end - dt.timedelta(seconds=length or 0)).isoformat()
    except (ValueError, OverflowError):
        return None


def _code(element: Any, named: dict[str, str]) -> str:
    """The code of an element's reading type; empty where it has none of its own."""
    own = next(_all(element, "ReadingType"), None)
    if own is None:
        return ""
    ref = own.get("ref") or _text(own, "mRID") or ""
    code = ref if _CODE.fullmatch(ref) else named.get(ref)
    if not code:
        raise ValueError("a reading type that is not known")
    return code


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _all(element: Any, name: str) -> Iterator[Any]:
    return (one for one in element if _tag(one) == name)


def _text(element: Any, name: str) -> str | None:
    """The text of the first element of a name inside another; ``None`` without one, or where it is blank."""
    found = next(_all(element, name), None)
    text = None if found is None or found.text is None else found.text.strip()
    return text or None
