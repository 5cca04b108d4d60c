"""Units that messages say beside their values: which of them are one quantity, and when several meet in one message.

A value means nothing without its unit, and a mapping reads all its values in one. So a message whose elements say
several units is no series of readings: OCPP sends volts, amperes and watt-hours in one array.

>>> power_of_ten("W", "kW"), power_of_ten("GJ", "GJ"), power_of_ten("V", "kW")
(-3, 0, None)
>>> differing([{"v": 1, "unit": "W"}, {"v": 230, "unit": "V"}, {"v": 2, "unit": "W"}], np.array([0, 0, 1]))
{0}
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

__all__ = ["FIELDS", "differing", "is_known", "plain", "power_of_ten", "units"]


#: Fields in which conventions say unit or measurand: OCPP 1.6 and 2, EdgeX, NGSI-LD, Home Assistant, and plain ones.
FIELDS = frozenset({"unit", "units", "uom", "unitCode", "unitOfMeasure", "unit_of_measurement", "measurand"})

_PREFIXES = {"": 0, "k": 3, "M": 6, "G": 9}

#: Unit -> (quantity, power of ten to the quantity's own unit).
_UNITS: dict[str, tuple[str, int]] = {
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


def is_known(unit: str) -> bool:
    """Whether a unit is one that can be compared with others of its quantity."""
    return unit in _UNITS


def units() -> list[str]:
    """The units that can be compared."""
    return list(_UNITS)


def power_of_ten(given: str, wanted: str) -> int | None:
    """By which power of ten a number of a unit becomes one of another; ``None`` if they are of different quantities."""
    if given == wanted:
        return 0
    (one, power), (other, least) = _UNITS.get(given, ("", 0)), _UNITS.get(wanted, ("?", 0))
    return power - least if one == other else None


def differing(objects: Sequence[Any], message: npt.NDArray[np.int64], named: Collection[str] = ()) -> set[int]:
    """The messages whose objects say different units; one that says none differs from one that does.

    Args:
        objects: elements of arrays, n of them.
        message: the number of each one's message, shape (n,).
        named: fields that the mapping reads itself, which may differ.
    """
    kept: Sequence[dict[Any, Any]] = objects
    if set(map(type, objects)) - {dict}:
        kept = [one if type(one) is dict else {} for one in objects]
    found: set[int] = set()
    for name in FIELDS.difference(named).intersection(chain.from_iterable(kept)):
        pairs = set(zip(message.tolist(), [plain(one.get(name)) for one in kept], strict=True))
        numbers, counts = np.unique([number for number, _ in pairs], return_counts=True)
        found.update(numbers[counts > 1].tolist())
    return found


def plain(unit: Any) -> Any:
    """What is said of a unit as a value that can be compared."""
    if unit is None or type(unit) is str:
        return unit
    try:
        return orjson.dumps(unit, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return object()  # nothing that could be compared: it equals nothing
