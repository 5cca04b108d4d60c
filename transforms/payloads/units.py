"""Units that messages say: values converted to that of the settings, and messages that say several.

A value means nothing without its unit, and the settings read all values in one. So a message whose elements say several
units is no series of readings: OCPP sends volts, amperes and watt-hours in one array.

>>> power_of_ten("W", "kW"), power_of_ten("GJ", "GJ"), power_of_ten("V", "kW")
(-3, 0, None)
>>> scaled("12.3", 3)
'12.3e3'
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import orjson

from ..common.batches import Bools
from .columns import LONGEST_TEXT

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?")

#: Fields in which platforms say unit or measurand: OCPP 1.6 and 2, EdgeX, NGSI-LD, Home Assistant, and plain ones.
FIELDS = frozenset({"unit", "units", "uom", "unitCode", "unitOfMeasure", "unit_of_measurement", "measurand"})

_PREFIXES = {"": 0, "k": 3, "M": 6, "G": 9}

#: The units that can be compared: each with its quantity, and the power of ten to the quantity's own unit.
UNITS: dict[str, tuple[str, int]] = {
    **{
        f"{prefix}{unit}": (unit, power)
        for unit in ("W", "Wh", "VA", "VAh", "var", "varh", "J")
        for prefix, power in _PREFIXES.items()
    },
    **{f"{prefix}{unit}": (unit, power) for unit in ("V", "A") for prefix, power in (("m", -3), ("", 0), ("k", 3))},
    "m3": ("m3", 0),
    "dm3": ("m3", -3),
    "l": ("m3", -3),
    "L": ("m3", -3),
    "Hz": ("Hz", 0),
}


def power_of_ten(given: str, wanted: str) -> int | None:
    """By which power of ten a number of a unit becomes one of another; ``None`` if they are of different quantities."""
    if given == wanted:
        return 0
    (one, power), (other, least) = UNITS.get(given, ("", 0)), UNITS.get(wanted, ("?", 0))
    return power - least if one == other else None


def plain(unit: Any) -> Any:
    """What is said of a unit as a value that can be compared."""
    if unit is None or type(unit) is str:
        return unit
    try:
        return orjson.dumps(unit, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return object()  # nothing that could be compared: it equals nothing


def scaled(one: Any, power: int) -> Any:
    """A number times a power of ten, as the decimal digits that it is written with."""
    kind = type(one)
    if not power or kind not in {int, float, str, Decimal}:
        return one
    text = (repr(one) if kind in {int, float} else str(one)).strip()
    if not _NUMBER.fullmatch(text):
        return one
    digits, _, exponent = text.lower().partition("e")
    return f"{digits}e{int(exponent or 0) + power}"


def converted(values: list[Any], units: list[Any], wanted: str) -> tuple[list[Any], Bools]:
    """Values in the wanted unit, and which are of another one."""
    powers = [
        power_of_ten(one.strip(), wanted) if type(one) is str and len(one) <= LONGEST_TEXT else None for one in units
    ]
    # a missing value, or what is no number, is a reject by its own reason
    other = [
        power is None and value is not None and type(value) is not list
        for power, value in zip(powers, values, strict=True)
    ]
    found = [scaled(value, power or 0) for value, power in zip(values, powers, strict=True)]
    return found, np.array(other, dtype=np.bool_)
