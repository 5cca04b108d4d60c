"""Green Button (ESPI): Atom feeds of interval readings, with the power of ten and the unit of their reading type.

An interval block belongs to a meter reading by its links, and that to a reading type, which says unit, direction and
power of ten; the usage point, also from the links, is the series. Which readings are wanted is told by the unit,
``Wh`` if left out, with ``reverse`` behind it for what flows back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....schemas.settings.base import SettingsError
from ..columns import RowList
from ..parsing import Parsed
from .json_documents import MalformedError, Wanted

_ATOM, _ESPI = "{http://www.w3.org/2005/Atom}", "{http://naesb.org/espi}"
_READING, _TYPE, _BLOCK = "MeterReading", "ReadingType", "IntervalBlock"
#: Characters of an address. A longer one makes its message a reject: each of its entries could repeat it.
_LONGEST_ADDRESS = 2_048

DEFAULT_UNIT = "Wh"
_UNITS = {
    "Wh": 72,
    "W": 38,
    "VAh": 71,
    "varh": 73,
    "m3": 42,
    "ft3": 119,
    "gal": 128,
    "L": 134,
    "therm": 169,
    "btu": 132,
}
_FORWARD, _REVERSE = {0, 1}, 19
_REVERSE_WORD = "reverse"
_HIGHEST_POWER = 24


@dataclass(frozen=True, slots=True)
class _Kind:
    power: int
    unit: int
    direction: int


@dataclass(frozen=True, slots=True)
class Block:
    """An interval block.

    Attributes:
        point: the usage point.
        kind: of its readings.
        readings: (start in seconds, digits) of each.
    """

    point: str | None
    kind: _Kind
    readings: list[tuple[str | None, str | None]]


def check_unit(name: str) -> None:
    """Check the name of the value under this preset.

    Raises:
        SettingsError: it is no unit.
    """
    unit, _, direction = name.partition(" ")
    if unit not in _UNITS or direction not in {"", _REVERSE_WORD}:
        raise SettingsError(
            [
                f"readings.value is {name!r}; under preset green-button it is one of {', '.join(_UNITS)}, with "
                f"{_REVERSE_WORD!r} behind it for what flows back"
            ]
        )


def espi_rows(parsed: Parsed, wanted: Wanted) -> RowList:
    """The readings of feeds; times are seconds."""
    unit, _, direction = wanted.name.partition(" ")
    directions = {_REVERSE} if direction == _REVERSE_WORD else _FORWARD
    rows = RowList(bad=dict(parsed.bad))
    for message, blocks in zip(parsed.message, parsed.values, strict=True):
        for block in blocks:
            if block.kind.unit != _UNITS[unit] or block.kind.direction not in directions:
                continue
            series = wanted.series_of(message, block.point)
            for start, digits in block.readings:
                # decimal digits with the power behind them: the float next to the exact product
                value = None if digits is None else f"{digits}e{block.kind.power}"
                rows.add(message, series, start, value)
    return rows


def blocks_of(root: Any) -> list[Block]:
    """The interval blocks of a feed.

    Raises:
        ValueError: one has no reading type, or what should be a number is none.
    """
    entries = [root] if root.tag == f"{_ATOM}entry" else root.findall(f"{_ATOM}entry")
    kinds: dict[str, _Kind] = {}
    kind_of: dict[str, str] = {}
    for entry in entries:
        own, links = _links(entry)
        for found in entry.iter(f"{_ESPI}{_TYPE}"):
            kinds[_path(_TYPE, [own]) or ""] = _Kind(
                _integer(found, "powerOfTenMultiplier"), _integer(found, "uom"), _integer(found, "flowDirection")
            )
        if entry.find(f"{_ATOM}content/{_ESPI}{_READING}") is not None:
            reading, kind = _path(_READING, [own]), _path(_TYPE, links)
            if reading is not None and kind is not None:
                kind_of[reading] = kind
    blocks: list[Block] = []
    for entry in entries:
        found = list(entry.iter(f"{_ESPI}{_BLOCK}"))
        if not found:
            continue
        own, links = _links(entry)
        reading = _path(_READING, [own, *links])
        kind = kinds.get(kind_of.get(reading or "", ""))
        if kind is None and len(kinds) == 1:
            kind = next(iter(kinds.values()))
        if kind is None or abs(kind.power) > _HIGHEST_POWER:
            raise MalformedError("a block without the type of its readings")
        point = _path("UsagePoint", [own, *links])
        name = None if point is None else point.rpartition("/")[2]
        blocks += [
            # its own readings: those of a block within it would be taken once for each level
            Block(name, kind, [_reading(one) for one in block.findall(f"{_ESPI}IntervalReading")])
            for block in found
        ]
    return blocks


def _links(entry: Any) -> tuple[str, list[str]]:
    """The entry's own address, and those it is related to.

    Raises:
        MalformedError: one of them is too long.
    """
    links = [(one.get("rel", ""), one.get("href", "")) for one in entry.findall(f"{_ATOM}link")]
    if any(len(href) > _LONGEST_ADDRESS for _, href in links):
        raise MalformedError("a long address")
    own = next((href for rel, href in links if rel == "self"), "")
    return own, [href for rel, href in links if rel != "self"]


def _path(kind: str, addresses: list[str]) -> str | None:
    """The part of the first address that names a resource of a kind: up to the name behind the last such level."""
    for one in addresses:
        levels = one.split("/")
        for place in range(len(levels) - 2, 0, -1):
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
