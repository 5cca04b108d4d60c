"""DSMR (P1): telegrams of smart meters, lines of OBIS codes between ``/`` and ``!``, with a CRC16 behind them.

The wanted value is an OBIS code as it stands in the telegram, such as ``1-0:1.7.0``; several with ``+`` between them
are added, such as the two tariffs of a counter. The series is the equipment identifier. Stamps are local: ``S`` and
``W`` say whether summer time held, in the zone of the settings, or that of central Europe if this is UTC.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from ...schemas.readings import RejectReason
from ...schemas.settings import SettingsError
from .documents import MalformedError, Wanted
from .rows import RowList

_LINE = re.compile(rb"^(\d+-\d+:\d+\.\d+\.\d+)((?:\([^()\r\n]*\))+)\r?$", re.MULTILINE)
_GROUP = re.compile(rb"\(([^()]*)\)")
_CODE = re.compile(r"\d+-\d+:\d+\.\d+\.\d+")
_STAMP = re.compile(rb"(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})([SW])")
_TIME, _OWN_ID = "0-0:1.0.0", "0-0:96.1.1"
#: Codes that only versions with a checksum have.
_VERSIONS = ("1-3:0.2.8", "0-0:96.1.4")
_CENTRAL_EUROPE = "Europe/Amsterdam"
_CRC_DIGITS = 4
_POLYNOMIAL = 0xA001


def check_codes(name: str) -> None:
    """Check the name of the value under this preset.

    Raises:
        SettingsError: it is no OBIS code.
    """
    if not all(_CODE.fullmatch(one) for one in name.split("+")):
        raise SettingsError(
            [f"readings.value is {name!r}; under preset dsmr it is an OBIS code such as 1-0:1.7.0, or a sum of codes"]
        )


def dsmr_rows(payloads: Sequence[bytes], numbers: Sequence[int], wanted: Wanted) -> RowList:
    """The readings of telegrams; times are instants."""
    rows = RowList()
    zone = ZoneInfo(_CENTRAL_EUROPE if wanted.timezone == "UTC" else wanted.timezone)
    codes = wanted.name.split("+")
    for message, payload in zip(numbers, payloads, strict=True):
        try:
            lines = _lines(payload)
        except MalformedError:
            rows.bad[message] = RejectReason.MALFORMED_ROW
            continue
        found = [lines[code] for code in codes if code in lines]
        if not found:
            continue
        stamped = _STAMP.fullmatch(found[0][0]) is not None and len(found[0]) > 1
        time = _instant(found[0][0] if stamped else lines.get(_TIME, [b""])[0], zone)
        value = None if len(found) < len(codes) else _sum([groups[-1] for groups in found])
        rows.add(message, wanted.series_of(message, _identifier(lines, codes[0])), time, value)
    return rows


def _lines(telegram: bytes) -> dict[str, list[bytes]]:
    """The groups in brackets behind each code.

    Raises:
        MalformedError: it is no whole telegram, or its checksum is another.
    """
    start, end = telegram.find(b"/"), telegram.rfind(b"!")
    if start < 0 or end < start:
        raise MalformedError("no telegram")
    lines = {code.decode(): _GROUP.findall(groups) for code, groups in _LINE.findall(telegram, start, end)}
    given = telegram[end + 1 :].strip()
    if given:
        if len(given) != _CRC_DIGITS or given.upper() != b"%04X" % crc16(telegram[start : end + 1]):
            raise MalformedError("another checksum")
    elif any(code in lines for code in _VERSIONS):
        raise MalformedError("no checksum")
    return lines


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


_CRC_TABLE = tuple(_table_entry(byte) for byte in range(256))


def _instant(stamp: bytes, zone: ZoneInfo) -> dt.datetime | None:
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(one) for one in match.groups()[:6])
    try:
        local = dt.datetime(2000 + year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        return None
    for fold in (0, 1):
        folded = local.replace(fold=fold)
        if bool(folded.dst()) is (match[7] == b"S"):
            return folded.astimezone(dt.timezone.utc)
    return None


def _sum(groups: list[bytes]) -> Any:
    digits = [group.partition(b"*")[0].decode("ascii", "replace").strip() for group in groups]
    if len(digits) == 1:
        return digits[0]
    try:
        return sum(float(one) for one in digits)
    except ValueError:
        return "[]"


def _identifier(lines: dict[str, list[bytes]], code: str) -> str | None:
    """The equipment identifier of the meter that a code belongs to, which is text in hexadecimal digits."""
    channel = code.partition(":")[0]
    own = [_OWN_ID] if channel.startswith("1-") or channel == "0-0" else [f"{channel}:96.1.0", f"{channel}:96.1.1"]
    for name in own:
        given = lines.get(name, [b""])[-1]
        if given:
            try:
                return bytes.fromhex(given.decode("ascii")).decode("utf-8")
            except ValueError:
                return given.decode("ascii", "replace")
    return None
