"""SenML (RFC 8428) in JSON and CBOR: packs of records, whose base fields hold for the records that follow.

The name of a record is the base name and its own one behind it: ``urn:dev:ow:10e2073a01080063:`` and ``voltage``. The
wanted value is the end of that name, the series what is before it. Times below 2**28 are relative to now, which is the
broker's stamp: the same however often and late a message is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..columns import LONGEST_NAME, RowList
from ..messages import Messages
from ..parsing import Parsed, Parser, parse_json
from ..unit_names import plain
from .json_documents import MalformedError, MixedUnitsError, Wanted, an_array, an_object, walk

_US = 1_000_000

#: CBOR's labels of the fields that are read.
_LABELS: dict[int, str] = dict(
    zip(
        (-1, -2, -3, -4, -5, 0, 1, 2, 3, 4, 6, 8),
        ("bver", "bn", "bt", "bu", "bv", "n", "u", "v", "vs", "vb", "t", "vd"),
        strict=True,
    )
)
_VERSION = 10
#: Times below are relative.
_RELATIVE = 1 << 28
_SEPARATORS = ":/._-"
_VALUES = ("v", "vs", "vb", "vd")

#: The first byte of a CBOR array.
_ARRAYS = range(0x80, 0xA0)


def parse_senml(payloads: Sequence[bytes], numbers: Sequence[int], cbor: Parser) -> Parsed:
    """Parse packs of either form, by their first byte.

    Args:
        payloads: n of them.
        numbers: their numbers.
        cbor: the parser of CBOR.
    """
    binary = [place for place, payload in enumerate(payloads) if payload and payload[0] in _ARRAYS]
    if not binary:
        return parse_json(payloads, numbers)
    others = sorted(set(range(len(payloads))) - set(binary))
    first = parse_json([payloads[place] for place in others], [numbers[place] for place in others])
    second = cbor([payloads[place] for place in binary], [numbers[place] for place in binary])
    return Parsed(first.values + second.values, first.message + second.message, first.bad | second.bad)


def senml_rows(messages: Messages, parsed: Parsed, wanted: Wanted) -> RowList:
    """The readings of packs; times are seconds."""

    def visit(rows: RowList, message: int, value: Any) -> None:
        now = int(messages.stamps_us[message])
        base_name, base_time, base_value, base_unit = "", 0, 0, None
        units = set[Any]()
        for one in an_array(value):
            record = _named(an_object(one))
            if record.get("bver", _VERSION) != _VERSION and not _is_older(record["bver"]):
                raise MalformedError("a later version")
            base_name = _text(record.get("bn", base_name))
            base_time = _number(record.get("bt", base_time))
            base_value = _number(record.get("bv", base_value))
            base_unit = record.get("bu", base_unit)
            name = base_name + _text(record.get("n", ""))
            if not any(field in record for field in _VALUES) or not _ends(name, record.get("n"), wanted.name):
                continue
            time = base_time + _number(record.get("t", 0))
            if time < _RELATIVE:
                time = None if now < 0 else now / _US + time
            found = next((record[field] for field in _VALUES if field in record), None)
            if "v" in record:
                found = base_value + _number(found)
            own = name[: len(name) - len(wanted.name)].rstrip(_SEPARATORS)
            units.add(plain(record.get("u", base_unit)))
            rows.add(message, wanted.series_of(message, own or None), time, found)
        if len(units) > 1:
            raise MixedUnitsError("several units")

    return walk(parsed, visit)


def _named(record: dict[Any, Any]) -> dict[str, Any]:
    """A record with the names of JSON.

    Raises:
        MalformedError: it has a field that must be understood, and is not.
    """
    named: dict[str, Any] = {}
    for key, value in record.items():
        name = _LABELS.get(key) if type(key) is int else key
        if type(name) is str:
            if name.endswith("_"):
                raise MalformedError("a field that must be understood")
            named[name] = value
    return named


def _is_older(version: Any) -> bool:
    return type(version) is int and version < _VERSION


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > LONGEST_NAME:
        raise MalformedError("no name")
    return value


def _number(value: Any) -> float:
    if type(value) is not int and type(value) is not float:
        raise MalformedError("no number")
    return value


def _ends(name: str, own: Any, wanted: str) -> bool:
    """Whether a name is the wanted one behind the name of a series."""
    if not name.endswith(wanted):
        return False
    rest = name[: len(name) - len(wanted)]
    return not rest or rest[-1] in _SEPARATORS or own == wanted
