"""DSMR (P1): telegrams of smart meters, lines of OBIS codes between ``/`` and ``!``, with a CRC16 behind them.

The wanted value is an OBIS code as it stands in the telegram, such as ``1-0:1.7.0``; several with ``+`` between them
are added, such as the two tariffs of a counter. A value is given in the unit of the settings, or else in that of the
standard: ``*W`` is a thousandth of ``*kW``, and a telegram with another quantity, an unknown unit or none is a reject.
Numbers of failures have no unit. The series is the equipment identifier. Stamps are local: ``S`` and ``W`` say whether
summer time held, in the zone of the settings, or that of central Europe if this is UTC.

Versions 2.2 and 3 have no stamp, and give the gas in two lines; then the time is where the settings say. Meters of
other countries write ``*255`` behind a code, which means the value of now. A message may hold several telegrams, and
may have lost the carriage returns that the checksum was made with.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from ....schemas.settings.base import SettingsError
from ..columns import UNITS, RowList, power_of_ten
from ..mapped import NONE_SUCH, added, number
from .wanted import MalformedError, MixedUnitsError, Wanted

_LINE = re.compile(rb"^(\d+-\d+:\d+\.\d+\.\d+)(?:\*255)?((?:\([^()\r\n]*\))+)\r?$", re.MULTILINE)
#: The gas of versions 2.2 and 3: stamp, the code that is meant and its unit in one line, the digits in the next.
_GAS = re.compile(
    rb"^\d+-\d+:24\.3\.0\((\d{12})\)(?:\([^()\r\n]*\)){3}\((\d+-\d+:24\.2\.\d+)\)\(([^()\r\n]*)\)\r?\n"
    rb"\(([^()\r\n]*)\)\r?$",
    re.MULTILINE,
)
_OLD_GAS = b":24.3.0("
#: Between two telegrams of a message.
_NEXT = re.compile(rb"^![0-9A-Fa-f]{0,4}[ \t]*\r?\n\s*(?=/)", re.MULTILINE)
_GROUP = re.compile(rb"\(([^()]*)\)")
_CODE = re.compile(r"\d+-\d+:\d+\.\d+\.\d+")
_STAMP = re.compile(rb"(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})([SW]?)")
_TIME = "0-0:1.0.0"
#: Numbers without a unit: of failures, sags and swells, and the tariff.
_COUNT = re.compile(r":(?:96\.\d{1,3}\.\d{1,3}|(?:32|52|72)\.(?:32|36)\.0)$")
#: The equipment identifier, and that of Luxembourg.
_OWN_IDS = ("0-0:96.1.1", "0-0:42.0.0")
#: Codes that only versions with a checksum have.
_VERSIONS = ("1-3:0.2.8", "0-0:96.1.4")
_CENTRAL_EUROPE = "Europe/Amsterdam"
_CRC_DIGITS = 4
_LONGEST_CODE = 50
_POLYNOMIAL = 0xA001


#: What electricity codes ``1-b:C.D.E`` measure by the numbers C (IEC 62056-61, 4.2), and their units by the numbers D.
_QUANTITIES = {
    **dict.fromkeys((1, 2, 21, 22, 41, 42, 61, 62), "W"),
    **dict.fromkeys((3, 4, 23, 24, 43, 44, 63, 64), "var"),
    **dict.fromkeys((9, 10, 29, 30, 49, 50, 69, 70), "VA"),
    **dict.fromkeys((11, 31, 51, 71), "A"),
    **dict.fromkeys((12, 32, 52, 72), "V"),
}
_POWERS, _ENERGIES = {4, 5, 6, 7}, {8, 9}


def standard_unit(code: str) -> str:
    """The unit of a code by the standard; empty where it says none.

    >>> standard_unit("1-0:1.7.0"), standard_unit("1-0:1.8.1"), standard_unit("1-0:32.7.0"), standard_unit("0-1:24.2.1")
    ('kW', 'kWh', 'V', '')
    """
    medium, _, value = code.partition(":")
    quantity, kind = (int(one) for one in value.split(".")[:2])
    found = _QUANTITIES.get(quantity) if medium.startswith("1-") else None
    if found is None or kind not in _POWERS | _ENERGIES:
        return ""
    if found in {"A", "V"}:
        return found if kind in _POWERS else ""
    return f"k{found}h" if kind in _ENERGIES else f"k{found}"


def check_codes(name: str, unit: str = "") -> None:
    """Check the name of the value under this preset, and its unit."""
    codes = name.split("+")
    # a code has few digits, and its numbers become integers
    if not all(len(one) <= _LONGEST_CODE and _CODE.fullmatch(one) for one in codes):
        raise SettingsError(
            f"readings.value is {name!r}; under preset dsmr it is an OBIS code such as 1-0:1.7.0, or a sum of codes"
        )
    if unit and unit not in UNITS:
        raise SettingsError(
            f"readings.unit is {unit!r}; under preset dsmr it is one of {', '.join(UNITS)}, or left out for that "
            "of the standard; the unit behind readings.scale is states.unit"
        )
    wanted = unit or next(filter(None, map(standard_unit, codes)), "")
    if not wanted and not all(map(_COUNT.search, codes)):
        raise SettingsError(
            f"readings.unit is missing: {name} measures anything by the standard, so one meter may say m3 and "
            f"another GJ; name the unit, one of {', '.join(UNITS)}"
        )
    for code in codes:
        standard = standard_unit(code)
        if standard and wanted and power_of_ten(standard, wanted) is None:
            raise SettingsError(
                f"readings.value: {code} is in {standard} by the standard, and {wanted} is another quantity; "
                "correct readings.unit, or the code"
            )


def dsmr_rows(payloads: Sequence[bytes], numbers: Sequence[int], wanted: Wanted) -> RowList:
    """The readings of telegrams; times are instants."""
    rows = RowList()
    zone = ZoneInfo(_CENTRAL_EUROPE if wanted.timezone == "UTC" else wanted.timezone)
    codes = wanted.name.split("+")
    standards = [wanted.unit or standard_unit(code) for code in codes]
    for message, payload in zip(numbers, payloads, strict=True):
        for telegram in _telegrams(payload):
            try:
                _add(rows, message, _lines(telegram), codes, standards, wanted, zone)
            except MalformedError as error:
                rows.bad[message] = error.reason
    return rows


def _telegrams(payload: bytes) -> Iterator[bytes]:
    if b"\n/" not in payload:
        yield payload
        return
    at = 0
    for end in _NEXT.finditer(payload):
        yield payload[at : end.end()]
        at = end.end()
    yield payload[at:] if at else payload


def _add(
    rows: RowList,
    message: int,
    lines: dict[str, list[bytes]],
    codes: list[str],
    standards: list[str],
    wanted: Wanted,
    zone: ZoneInfo,
) -> None:
    found = [lines[code] for code in codes if code in lines]
    if not found:
        return
    units_of = [unit for code, unit in zip(codes, standards, strict=True) if code in lines]
    counts = all(_COUNT.search(code) for code in codes)
    values = _in_one_unit([groups[-1] for groups in found], units_of, counts=counts)
    stamped = _STAMP.fullmatch(found[0][0]) is not None and len(found[0]) > 1
    stamp = found[0][0] if stamped else lines.get(_TIME, [b""])[0]
    time = _instant(stamp, zone) if stamp or wanted.times is None else wanted.times.get(message)
    value = None if len(found) < len(codes) else _sum(values)
    rows.add(message, wanted.series_of(message, _identifier(lines, codes[0])), time, value)


def _lines(telegram: bytes) -> dict[str, list[bytes]]:
    start, end = telegram.find(b"/"), telegram.rfind(b"!")
    if start < 0 or end < start:
        raise MalformedError("no telegram")
    lines = {code.decode(): _GROUP.findall(groups) for code, groups in _LINE.findall(telegram, start, end)}
    for stamp, code, unit, digits in _GAS.findall(telegram, start, end) if _OLD_GAS in telegram else ():
        lines.setdefault(code.decode(), [stamp, digits + b"*" + unit])
    given = telegram[end + 1 :].strip()
    if given:
        if len(given) != _CRC_DIGITS or given.upper() not in _checksums(telegram[start : end + 1]):
            raise MalformedError("another checksum")
    elif any(code in lines for code in _VERSIONS):
        raise MalformedError("no checksum")
    return lines


def _checksums(telegram: bytes) -> Iterator[bytes]:
    """The checksum of a telegram, and that of it with the carriage returns that it may have lost."""
    yield b"%04X" % crc16(telegram)
    if b"\r" not in telegram:
        yield b"%04X" % crc16(telegram.replace(b"\n", b"\r\n"))


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
    if not match[7]:  # of versions that do not say whether summer time held: the earlier instant
        return local.astimezone(dt.UTC)
    # by the clocks, not by dst(): Dublin's is 0 in summer and an hour less in winter
    winter = min(_offset(local.replace(month=month, day=1)) for month in (1, 7))
    for fold in (0, 1):
        folded = local.replace(fold=fold)
        if (_offset(folded) > winter) is (match[7] == b"S"):
            return folded.astimezone(dt.UTC)
    return None


def _offset(local: dt.datetime) -> dt.timedelta:
    return local.utcoffset() or dt.timedelta()


def _in_one_unit(groups: list[bytes], wanted: list[str], *, counts: bool) -> list[str]:
    """The digits of values such as ``01.193*kW``, all in the unit of the first."""
    split = [group.decode("ascii", "replace").partition("*") for group in groups]
    first = next((unit for unit in wanted if unit), None)
    if first is None and not counts:
        # whatever one telegram says, another may say the thousandfold, or another quantity
        raise MixedUnitsError("no unit that it should have")
    found: list[str] = []
    for digits, star, unit in split:
        power = power_of_ten(unit.strip(), first) if first is not None else None if star else 0
        if power is None:
            raise MixedUnitsError("another unit")
        # decimal digits with the power behind them: the float next to the exact product
        found.append(f"{digits.strip()}e{power}" if power and digits.strip() else digits.strip())
    return found


def _sum(digits: list[str]) -> Any:
    if len(digits) == 1:
        return digits[0]
    found = added([number(one, ".") for one in digits])
    return "[]" if found is NONE_SUCH else found


def _identifier(lines: dict[str, list[bytes]], code: str) -> str | None:
    channel = code.partition(":")[0]
    own = _OWN_IDS if channel.startswith("1-") or channel == "0-0" else (f"{channel}:96.1.0", f"{channel}:96.1.1")
    for name in own:
        given = lines.get(name, [b""])[-1]
        if given:
            try:
                return bytes.fromhex(given.decode("ascii")).decode("utf-8")
            except ValueError:
                return given.decode("ascii", "replace")
    return None
