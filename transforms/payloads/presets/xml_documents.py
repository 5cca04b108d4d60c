"""Documents of meters in XML: CIM (IEC 61968-9), and Green Button (ESPI).

CIM: a ``MeterReading``, bare or in a message of IEC 61968-100, is of one meter. It has ``Readings``, each a value with
its stamp, and ``IntervalBlocks`` of ``IntervalReadings``. What is measured says the code of a ``ReadingType``: eighteen
numbers between dots, of which the third is the length of the interval, the fourth how the value accumulates, the fifth
the direction, and the last three the power of ten, the unit and the currency. A ``ReadingType`` of the same document
may stand for a code by its id. A stamp is the end of its interval, and a reading here has the start, unless
``timePeriod`` says it. Values that their sender does not believe (a quality of category 5, reasonability, which is also
that of missing reads, or 10, questionable) are no readings. A register is read at its stamp, wherever it stands.
Elements are known by their names in whatever namespace: its year differs.

Green Button: Atom feeds of interval readings. An interval block belongs to a meter reading by its links, and that to a
reading type, which says unit, direction and power of ten; the usage point, also from the links, is the series. Which
readings are wanted follows from the unit, ``Wh`` if left out, with ``reverse`` behind it for what flows back. Registers
are none. A type that is named is taken or missing; the only one of a feed also stands where none is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....schemas.readings import LONGEST_NAME, RejectReason
from ....schemas.settings.base import SettingsError
from ..columns import RowList
from ..parsing import Parsed
from .wanted import MalformedError, Wanted

_CODE = re.compile(r"\d{1,5}(?:\.\d{1,5}){14}\.-?\d{1,2}\.\d{1,5}\.\d{1,5}")
_INTERVAL, _ACCUMULATION, _DIRECTION, _PHASES, _POWER, _UNIT = 2, 3, 4, 14, 15, 16
#: Where the tariff stands: time of use, critical peak, and tier of consumption.
_TARIFF = slice(11, 14)

#: Units by the names that settings have, and the codes that both standards have for them.
_CODES = {
    "Wh": 72,
    "W": 38,
    "VAh": 71,
    "VA": 61,
    "varh": 73,
    "var": 63,
    "V": 29,
    "A": 5,
    "m3": 42,
    "ft3": 119,
    "therm": 169,
    "J": 31,
    "gal": 128,
    "L": 134,
    "btu": 132,
}
_CIM_UNITS = ("Wh", "W", "VAh", "VA", "varh", "var", "V", "A", "m3", "ft3", "therm", "J")
_ESPI_UNITS = ("Wh", "W", "VAh", "varh", "m3", "ft3", "gal", "L", "therm", "btu")
_FORWARD, _REVERSE = frozenset({0, 1}), frozenset({19})
_REVERSE_WORD = "reverse"

#: How values accumulate: registers (bulk, cumulative, summation) and what is none (unsaid, delta, indicating,
#: instantaneous).
_REGISTERS, _OTHERS = frozenset({1, 3, 9}), frozenset({0, 4, 6, 12})
_DELTA = 4
#: Phases of a whole meter: none said, and all three.
_WHOLE = frozenset({0, 224})

#: Lengths of intervals in seconds by their codes.
_SECONDS = {1: 600, 2: 900, 3: 60, 4: 86_400, 5: 1_800, 6: 300, 7: 3_600, 10: 120, 14: 180, 31: 1_200, 50: 3_600}
_HIGHEST_POWER = 24
_US = 1_000_000

#: Categories of qualities whose values are not believed by who sends them.
_DISBELIEVED = frozenset({"5", "10"})

_Code = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document."""

    meter: str | None
    code: _Code
    time: str | None  # its stamp, or the start of its interval
    late_us: int | None  # how much later than its start the stamp is, in microseconds; ``None`` if it is unknown
    digits: str | None


def check_code(name: str) -> None:
    """Check the name of the value under the preset ``cim``: a unit, or the code of a reading type."""
    if _CODE.fullmatch(name) is None:
        code = ", or the code of a reading type: eighteen numbers with dots between"
        _check_unit(name, "cim", _CIM_UNITS, code)


def check_unit(name: str) -> None:
    """Check the name of the value under the preset ``green-button``: a unit."""
    _check_unit(name, "green-button", _ESPI_UNITS)


def _check_unit(name: str, preset: str, units: Sequence[str], more: str = "") -> None:
    unit, _, direction = name.partition(" ")
    if unit not in units or direction not in {"", _REVERSE_WORD}:
        raise SettingsError(
            f"readings.value is {name!r}; under preset {preset} it is one of {', '.join(units)}, with "
            f"{_REVERSE_WORD!r} behind it for what flows back{more}"
        )


def _unit_and_directions(name: str) -> tuple[str, frozenset[int]]:
    unit, _, direction = name.partition(" ")
    return unit, _REVERSE if direction else _FORWARD


def cim_rows(parsed: Parsed, wanted: Wanted, *, registers: bool) -> RowList:
    """The readings of documents; times are texts of ISO 8601."""
    is_wanted, by_unit = _chosen(wanted.name, registers=registers), _CODE.fullmatch(wanted.name) is None
    rows = RowList(bad=dict(parsed.bad))
    for message, values in zip(parsed.message, parsed.values, strict=True):
        found = [one for one in values if is_wanted(one.code)]
        # values of several kinds in one unit, such as phases and their sum, are no series of readings; a part of what
        # the meter measures is none either, since the next message may have another part
        kinds = {one.code[:_POWER] + one.code[_UNIT:] for one in found}
        if len(kinds) > 1 or (by_unit and any(map(_is_part, kinds))):
            rows.bad[message] = RejectReason.MIXED_UNITS
            continue
        if any(one.late_us is None for one in found):
            rows.bad[message] = RejectReason.MALFORMED_ROW
            continue
        for one in found:
            value = None if one.digits is None else f"{one.digits}e{one.code[_POWER]}"
            rows.add(message, wanted.series_of(message, one.meter), one.time, value)
            rows.shifts.append(-(one.late_us or 0))
    return rows


def _chosen(name: str, *, registers: bool) -> Any:
    """A function that says whether a reading type is the wanted one."""
    if _CODE.fullmatch(name) is not None:
        code = _numbers(name)
        return lambda one: one == code
    unit, directions = _unit_and_directions(name)
    kinds = _REGISTERS if registers else _OTHERS

    def is_wanted(code: _Code) -> bool:
        return code[_UNIT] == _CODES[unit] and code[_DIRECTION] in directions and code[_ACCUMULATION] in kinds

    return is_wanted


def _is_part(code: _Code) -> bool:
    return code[_PHASES] not in _WHOLE or any(code[_TARIFF])


def _numbers(code: str) -> _Code:
    return tuple(int(one) for one in code.split("."))


def values_of(root: Any) -> list[Value]:
    """The values of a document that their sender believes."""
    named = _types(root)
    found: list[Value] = []
    for reading in root.iter():
        # its own values: those of one within it would be taken once for each level
        if _local(reading) == "MeterReading":
            found += _values(reading, named)
    return found


def _types(root: Any) -> dict[str, _Code]:
    found: dict[str, _Code] = {}
    for one in root.iter():
        if _local(one) != "ReadingType" or one.get("ref") is not None:
            continue
        said = [each for each in (_text(one, "mRID"), *(_text(name, "name") for name in _all(one, "Names"))) if each]
        code = next((each for each in said if _CODE.fullmatch(each)), None)
        if code is not None:
            found |= dict.fromkeys(said, _numbers(code))
    return found


def _values(reading: Any, named: dict[str, _Code]) -> Iterator[Value]:
    meter = _meter(reading)
    for one in _all(reading, "Readings"):
        yield from _value(one, meter, _code(one, named), is_interval=False)
    for block in _all(reading, "IntervalBlocks"):
        code = _code(block, named)
        for one in _all(block, "IntervalReadings"):
            yield from _value(one, meter, _code(one, named) or code, is_interval=True)


def _value(one: Any, meter: str | None, code: _Code | None, *, is_interval: bool) -> Iterator[Value]:
    if code is None or abs(code[_POWER]) > _HIGHEST_POWER:
        raise MalformedError("a value without the type of its reading")
    if any(_category(each) in _DISBELIEVED for each in _all(one, "ReadingQualities")):
        return
    digits, stamp = _text(one, "value"), _text(one, "timeStamp")
    if code[_ACCUMULATION] in _REGISTERS:
        # at an instant, even among intervals
        yield Value(meter, code, stamp, 0, digits)
        return
    period = next(_all(one, "timePeriod"), None)
    start = None if period is None else _text(period, "start")
    late: int | None = 0
    if start is None and (is_interval or code[_ACCUMULATION] == _DELTA):
        seconds = _SECONDS.get(code[_INTERVAL])
        late = None if seconds is None else seconds * _US
    yield Value(meter, code, start or stamp, late, digits)


def _code(element: Any, named: dict[str, _Code]) -> _Code | None:
    """The code of an element's reading type; ``None`` where it has none of its own."""
    own = next(_all(element, "ReadingType"), None)
    if own is None:
        return None
    ref = own.get("ref") or _text(own, "mRID") or ""
    code = _numbers(ref) if _CODE.fullmatch(ref) else named.get(ref)
    if code is None:
        raise MalformedError("a reading type that is not known")
    return code


def _category(quality: Any) -> str:
    """The second number of a quality's code, such as 8 (estimated) of ``3.8.0``."""
    own = next(_all(quality, "ReadingQualityType"), None)
    ref = "" if own is None else own.get("ref") or _text(own, "mRID") or ""
    return [*ref.split("."), ""][1] if len(ref) <= LONGEST_NAME else ""


def _meter(reading: Any) -> str | None:
    """The id of a reading's meter, or its first name; without a meter those of the usage point."""
    for kind in ("Meter", "UsagePoint"):
        for one in _all(reading, kind):
            name = next((_text(each, "name") for each in _all(one, "Names")), None)
            if found := _text(one, "mRID") or name:
                return found
    return None


def _local(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _all(element: Any, name: str) -> Iterator[Any]:
    return (one for one in element if _local(one) == name)


def _text(element: Any, name: str) -> str | None:
    """The text of the first element of a name inside another; ``None`` without one, or where it is blank."""
    found = next(_all(element, name), None)
    text = None if found is None or found.text is None else found.text.strip()
    return text or None


_ATOM, _ESPI = "{http://www.w3.org/2005/Atom}", "{http://naesb.org/espi}"
_READING, _TYPE, _BLOCK = "MeterReading", "ReadingType", "IntervalBlock"
#: What tells types of one unit and direction apart, besides how their values accumulate.
_DETAILS = ("intervalLength", "dataQualifier", "commodity", "kind", "phase", "tou", "cpp", "consumptionTier")
#: Characters of an address. A longer one makes its message a reject: each of its entries could repeat it.
_LONGEST_ADDRESS = 2_048

DEFAULT_UNIT = "Wh"


@dataclass(frozen=True, slots=True)
class _Kind:
    power: int
    unit: int
    direction: int
    accumulation: int
    details: tuple[str, ...]

    @classmethod
    def of(cls, found: Any) -> _Kind:
        names = ("powerOfTenMultiplier", "uom", "flowDirection", "accumulationBehaviour")
        power, unit, direction, accumulation = (_integer(found, name) for name in names)
        details = ((found.findtext(f"{_ESPI}{name}") or "").strip() or "0" for name in _DETAILS)
        return cls(power, unit, direction, accumulation, tuple(details))


@dataclass(frozen=True, slots=True)
class IntervalBlock:
    """An interval block."""

    point: str | None
    kind: _Kind
    readings: list[tuple[str | None, str | None]]  # (start in seconds, digits) of each


def espi_rows(parsed: Parsed, wanted: Wanted) -> RowList:
    """The readings of feeds; times are seconds."""
    unit, directions = _unit_and_directions(wanted.name)
    rows = RowList(bad=dict(parsed.bad))
    for message, blocks in zip(parsed.message, parsed.values, strict=True):
        found = [
            (wanted.series_of(message, block.point), block)
            for block in blocks
            if block.kind.unit == _CODES[unit]
            and block.kind.direction in directions
            and block.kind.accumulation in _OTHERS
        ]
        # hours and their days, or phases and their sum, are no series of readings
        kinds = {(series, replace(block.kind, power=0)) for series, block in found}
        if len(kinds) > len(dict(kinds)):
            rows.bad[message] = RejectReason.MIXED_UNITS
            continue
        for series, block in found:
            for start, digits in block.readings:
                # decimal digits with the power behind them: the float next to the exact product
                value = None if digits is None else f"{digits}e{block.kind.power}"
                rows.add(message, series, start, value)
    return rows


def blocks_of(root: Any) -> list[IntervalBlock]:
    """The interval blocks of a feed."""
    entries = [root] if root.tag == f"{_ATOM}entry" else root.findall(f"{_ATOM}entry")
    kinds: dict[str, _Kind] = {}
    kind_of: dict[str, str] = {}
    for entry in entries:
        own, links = _links(entry)
        for found in entry.iter(f"{_ESPI}{_TYPE}"):
            kind = _Kind.of(found)
            if kinds.setdefault(_path(_TYPE, [own]) or "", kind) != kind:
                raise MalformedError("two types of one address")
        if entry.find(f"{_ATOM}content/{_ESPI}{_READING}") is not None:
            reading, named = _path(_READING, [own]) or "", _path(_TYPE, links)
            if named is not None and kind_of.setdefault(reading, named) != named:
                raise MalformedError("one address of readings of two types")
    # the only type is that of readings that name none; where another is named, it is not known whose it is
    only = next(iter(kinds.values())) if len(kinds) == 1 and kinds.keys() >= set(kind_of.values()) else None
    blocks: list[IntervalBlock] = []
    for entry in entries:
        found = list(entry.iter(f"{_ESPI}{_BLOCK}"))
        if not found:
            continue
        own, links = _links(entry)
        reading = _path(_READING, [own, *links])
        named = None if reading is None else kind_of.get(reading)
        kind = only if named is None else kinds.get(named)
        if kind is None or abs(kind.power) > _HIGHEST_POWER:
            raise MalformedError("a block without the type of its readings")
        point = _path("UsagePoint", [own, *links])
        name = None if point is None else point.rpartition("/")[2]
        blocks += [
            # its own readings: those of a block within it would be taken once for each level
            IntervalBlock(name, kind, [_reading(one) for one in block.findall(f"{_ESPI}IntervalReading")])
            for block in found
        ]
    return blocks


def _links(entry: Any) -> tuple[str, list[str]]:
    """The entry's own address, and those it is related to."""
    links = [(one.get("rel", ""), one.get("href", "")) for one in entry.findall(f"{_ATOM}link")]
    if any(len(href) > _LONGEST_ADDRESS for _, href in links):
        raise MalformedError("a long address")
    own = next((href for rel, href in links if rel == "self"), "")
    return own, [href for rel, href in links if rel != "self"]


def _path(kind: str, addresses: list[str]) -> str | None:
    """The part of the first address that names a resource of a kind: up to the name behind the last such level."""
    for one in addresses:
        levels = one.split("/")
        for place in range(len(levels) - 2, -1, -1):
            if levels[place] == kind and levels[place + 1]:
                return "/".join(levels[: place + 2])
    return None


def _integer(element: Any, name: str) -> int:
    text = element.findtext(f"{_ESPI}{name}")
    if text is None:
        return 0
    return int(text)


def _reading(element: Any) -> tuple[str | None, str | None]:
    digits = element.findtext(f"{_ESPI}value")
    return element.findtext(f"{_ESPI}timePeriod/{_ESPI}start"), None if digits is None else digits.strip()
