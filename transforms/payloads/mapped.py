"""Mapped payloads: readings at the places that the settings name, all in one unit.

The payloads of many messages are taken apart column by column: what runs once for each reading is C, and Python's own
loops run only where a message lacks a field.

Units that messages say beside their values: which of them are one quantity, and when several meet in one message.

A value means nothing without its unit, and a mapping reads all its values in one. So a message whose elements say
several units is no series of readings: OCPP sends volts, amperes and watt-hours in one array.

>>> power_of_ten("W", "kW"), power_of_ten("GJ", "GJ"), power_of_ten("V", "kW")
(-3, 0, None)
>>> differing([{"v": 1, "unit": "W"}, {"v": 230, "unit": "V"}, {"v": 2, "unit": "W"}], np.array([0, 0, 1]))
{0}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.settings.mappings import (
    MAPPED,
    Constant,
    Place,
    Readings,
    RegisterValue,
    Steps,
    payload_paths,
    steps_of,
    wildcards,
)
from .columns import GROUP, SERIES, TIME, VALUE, Column, Repeated, Rows, field_column
from .messages import Messages
from .parsing import Apart, Parsed

__all__ = ["FIELDS", "Mapping", "differing", "follow", "is_known", "mapped_rows", "plain", "power_of_ten", "units"]


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


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mapping:
    """Where the parts of a reading are.

    Attributes:
        series: a path, or a place beside the payload.
        time: likewise.
        value: likewise.
        group: likewise; ``None`` without groups.
        arrays: the beginning of the paths up to the last wildcard.
    """

    series: Steps | Place | Constant
    time: Steps | Place | Constant
    value: Steps | Place | Constant
    group: Steps | Place | Constant | None
    arrays: Steps

    @classmethod
    def of(cls, readings: Readings, group: str | None) -> Mapping:
        """The mapping of the settings, with what a preset adds."""
        given = {} if readings.preset is None else MAPPED[readings.preset]
        places = {name: getattr(readings, name) or Place(**given[name]) for name in ("series", "time", "value")}
        return cls(
            series=_source(places["series"]),
            time=_source(places["time"]),
            value=_source(places["value"]),
            group=None if group is None else _source(readings.attributes.get(group, group)),
            arrays=max((wildcards(steps) for steps in payload_paths(readings, group)), key=len, default=()),
        )

    @property
    def paths(self) -> dict[str, Steps]:
        """The parts of a reading that are in the payload, and where."""
        named = {SERIES: self.series, TIME: self.time, VALUE: self.value, GROUP: self.group}
        return {part: source for part, source in named.items() if isinstance(source, tuple)}


def _source(place: str | Place | Constant | RegisterValue) -> Steps | Place | Constant:
    if isinstance(place, Constant):
        return place
    if isinstance(place, RegisterValue):
        return place.register_.steps or ()
    return steps_of(place) or place  # type: ignore[return-value]


def mapped_rows(messages: Messages, parsed: Parsed | Apart, mapping: Mapping) -> Rows:
    """The readings of some parsed messages.

    Args:
        messages: the messages.
        parsed: what their payloads hold.
        mapping: where the parts of a reading are.
    """
    return _rows(messages, parsed, mapping) if isinstance(parsed, Parsed) else _rows_apart(messages, parsed, mapping)


def _rows_apart(messages: Messages, apart: Apart, mapping: Mapping) -> Rows:
    """The readings of messages that were taken apart already, with what stands beside their payloads."""

    def column(part: str, source: Steps | Place | Constant) -> Column:
        if isinstance(source, tuple):
            return apart.columns[part]
        return Repeated(field_column(source, messages, apart.message), apart.at)

    return Rows(
        message=np.array(apart.message, dtype=np.int64)[apart.at],
        series=column(SERIES, mapping.series),
        times=column(TIME, mapping.time),
        values=column(VALUE, mapping.value),
        groups=None if mapping.group is None else column(GROUP, mapping.group),
    )


def _rows(messages: Messages, parsed: Parsed, mapping: Mapping) -> Rows:
    """The readings of messages whose payloads are values."""
    tables = _Tables(parsed, mapping.arrays)
    mixed = tables.mixed(mapping)
    if mixed:
        kept = [place for place, number in enumerate(parsed.message) if number not in mixed]
        bad = {**dict.fromkeys(sorted(mixed), RejectReason.MIXED_UNITS), **tables.bad}
        parsed = replace(
            parsed,
            values=[parsed.values[place] for place in kept],
            message=[parsed.message[place] for place in kept],
            bad=parsed.bad | bad,
        )
        tables = _Tables(parsed, mapping.arrays)
    rows = tables.rows

    def column(source: Steps | Place | Constant) -> Column:
        if isinstance(source, tuple):
            return tables.column(source)
        beside = field_column(source, messages, tables.message[0].tolist())
        return beside if len(tables.nodes) == 1 else Repeated(beside, tables.down[0])

    return Rows(
        message=rows,
        series=column(mapping.series),
        times=_stamped(column(mapping.time), None if isinstance(mapping.time, Place) else parsed.stamps),
        values=column(mapping.value),
        groups=None if mapping.group is None else column(mapping.group),
        bad=parsed.bad | tables.bad,
    )


def _stamped(times: Column, kind: pa.DataType | None) -> Column:
    """A column of times whose integers are stamps of a kind."""
    if kind is None or isinstance(times, pa.Array):
        return times
    given = times.values if isinstance(times, Repeated) else times
    try:
        stamps = pa.array(given, pa.int64()).view(kind)
    except (pa.ArrowException, TypeError, OverflowError):
        return times
    return stamps.take(pa.array(times.at)) if isinstance(times, Repeated) else stamps


class _Tables:
    """The objects that paths start from: the payloads, and the elements of each array inside them.

    Attributes:
        nodes: the objects of each level.
        starts: the beginning of a path that leads to each level.
        message: number of the message of each object, by level.
        down: of each level, the number of the object that each object of the deepest level is in.
        bad: messages without an array where there should be one.
    """

    def __init__(self, parsed: Parsed, arrays: Steps) -> None:
        self.nodes: list[list[Any]] = [parsed.values]
        self.starts: list[Steps] = [()]
        self.message: list[Ints] = [np.array(parsed.message, dtype=np.int64)]
        self.bad: dict[int, RejectReason] = {}
        ups: list[Ints] = []
        at = 0
        while at < len(arrays):
            end = arrays.index(None, at)
            found, up = self._elements(arrays[at:end])
            ups.append(up)
            self.nodes.append(found)
            self.message.append(self.message[-1][up])
            at = end + 1
            self.starts.append(arrays[:at])
        self.down: list[Ints] = [np.arange(len(self.nodes[-1]))]
        for up in reversed(ups):
            self.down.insert(0, up[self.down[0]])

    @property
    def rows(self) -> Ints:
        """The number of each row's message."""
        return self.message[-1]

    def column(self, steps: Steps) -> Column:
        """What a path leads to, for each row."""
        level = max(place for place, start in enumerate(self.starts) if steps[: len(start)] == start)
        found = follow(self.nodes[level], steps[len(self.starts[level]) :])
        return found if level == len(self.nodes) - 1 else Repeated(found, self.down[level])

    def mixed(self, mapping: Mapping) -> set[int]:
        """The messages in which the elements that hold the values say different units."""
        steps = mapping.value
        if not isinstance(steps, tuple) or None not in steps:
            return set()
        named = [str(path[-1]) for path in (mapping.series, mapping.group) if isinstance(path, tuple)]
        found: set[int] = set()
        for level, start in enumerate(self.starts):
            if level and steps[: len(start)] == start:
                longer = self.starts[level + 1] if level + 1 < len(self.starts) else steps
                way = (longer if steps[: len(longer)] == longer else steps)[len(start) : -1]
                objects = self.nodes[level]
                found |= differing(objects, self.message[level], named)
                for step in way:
                    objects = _step(objects, step)
                    found |= differing(objects, self.message[level], named)
        return found

    def _elements(self, steps: Steps) -> tuple[list[Any], Ints]:
        """The elements of the arrays at the end of a path, and the object that each is in."""
        arrays = follow(self.nodes[-1], steps)
        if set(map(type, arrays)) - {list}:
            for number, one in zip(self.message[-1].tolist(), arrays, strict=True):
                if type(one) is not list:
                    self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
            arrays = [one if type(one) is list else [] for one in arrays]
        up = np.repeat(np.arange(len(arrays)), np.fromiter(map(len, arrays), np.int64, len(arrays)))
        return list(chain.from_iterable(arrays)), up


def follow(nodes: Sequence[Any], steps: Steps) -> list[Any]:
    """What a path without wildcards leads to in each of some values; ``None`` where it leads nowhere."""
    found = list(nodes)
    for step in steps:
        found = _step(found, step)
    return found


def _step(nodes: list[Any], step: str | int | None) -> list[Any]:
    if isinstance(step, str):
        if set(map(type, nodes)) <= {dict}:
            get: Callable[[Any], Any] = itemgetter(step)
            try:
                return list(map(get, nodes))
            except KeyError:
                pass
        return [one.get(step) if type(one) is dict else None for one in nodes]
    at = int(step or 0)
    return [one[at] if type(one) is list and at < len(one) else None for one in nodes]
