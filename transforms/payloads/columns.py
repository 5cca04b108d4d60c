"""Columns of messages: what a payload format found, what stands beside the payload, and in which units.

A payload format only finds the parts of each reading. Whether a name is a name, a time a time and a value a number is
decided here and in :mod:`..formats.rows`, for every format alike. What is decided of a reading never depends on which
other messages came with it.

A value means nothing without its unit, and a mapping reads all its values in one. So a message whose elements say
several units is no series of readings: OCPP sends volts, amperes and watt-hours in one array.

>>> power_of_ten("W", "kW"), power_of_ten("GJ", "GJ"), power_of_ten("V", "kW")
(-3, 0, None)
>>> differing([{"v": 1, "unit": "W"}, {"v": 230, "unit": "V"}, {"v": 2, "unit": "W"}], np.array([0, 0, 1]))
{0}
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ...schemas.readings import LONGEST_NAME, RejectReason
from ...schemas.settings.places import Constant, Place
from ..common.batches import Bools, Ints, finite_float
from ..formats.paths import is_text
from ..formats.rows import RawRows
from .messages import Headers, Messages

#: Longer texts of times and values are none.
LONGEST_TEXT = 100

#: Names of so many characters are written once each before they become a column: a message may name one for each of its
#: readings.
_MOST_CHARACTERS = 1 << 22

#: Bytes of a payload that is a name or a number as a whole.
_LONGEST_WHOLE = 4 * LONGEST_NAME

_INT64 = (-(1 << 63), (1 << 63) - 1)
_EXACT = 1 << 53
_NUMBERS = ({int}, {float}, {int, float}, {int, type(None)}, {float, type(None)}, {int, float, type(None)})

#: Columns of :meth:`Rows.raw`.
SERIES, TIME, VALUE, GROUP = "series", "time", "value", "group"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A column whose values stand for several rows each."""

    values: list[Any]
    at: Ints


Column = Sequence[Any] | Repeated | pa.Array


@dataclass(frozen=True, slots=True)
class Rows:
    """The readings of some messages."""

    message: Ints  # number of each row's message, shape (n,)
    series: Column
    times: Column
    values: Column
    groups: Column | None = None
    # messages that could not be parsed, and why
    bad: dict[int, RejectReason] = field(default_factory=dict[int, RejectReason])
    shift: Ints | None = None  # how much later than its time each is, microseconds, shape (n,); ``None`` where none is

    def filtered(self, keep: Bools) -> Rows:
        """Some of the readings."""
        return Rows(
            message=self.message[keep],
            series=_filtered(self.series, keep),
            times=_filtered(self.times, keep),
            values=_filtered(self.values, keep),
            groups=None if self.groups is None else _filtered(self.groups, keep),
            bad=self.bad,
            shift=None if self.shift is None else self.shift[keep],
        )

    def raw(self) -> Iterator[RawRows]:
        """The rows as columns, those whose times are of one kind together; positions are numbers of messages."""
        count = len(self.message)
        if not count:
            return
        series, unnamed = names(self.series, count)
        groups, ungrouped = (None, None) if self.groups is None else names(self.groups, count)
        broken = unnamed if ungrouped is None else unnamed | ungrouped
        values = numbers(self.values)
        for chosen, own in instants(self.times, count):
            times = own
            keep = ~broken if chosen is None else chosen & ~broken
            lost = self.message[broken if chosen is None else chosen & broken]
            columns = {SERIES: series, VALUE: values} | ({} if groups is None else {GROUP: groups})
            if not keep.all():
                kept = pa.array(keep)
                columns = {name: column.filter(kept) for name, column in columns.items()}
                # the times of a kind stand at their own rows only
                times = times.filter(pa.array(keep if chosen is None else keep[chosen]))
            shift = None if self.shift is None else self.shift[keep]
            yield RawRows(columns | {TIME: times}, self.message[keep], lost, shift=shift)


def _filtered(column: Column, keep: Bools) -> Column:
    if isinstance(column, Repeated):
        return Repeated(column.values, column.at[keep])
    array: Any = column
    if isinstance(array, pa.Array):
        return array.filter(pa.array(keep))
    return [one for one, good in zip(column, keep, strict=True) if good]


@dataclass(slots=True)
class RowList:
    """Rows that are found one by one; it belongs to one call."""

    message: list[int] = field(default_factory=list[int])
    series: list[Any] = field(default_factory=list[Any])
    times: list[Any] = field(default_factory=list[Any])
    values: list[Any] = field(default_factory=list[Any])
    bad: dict[int, RejectReason] = field(default_factory=dict[int, RejectReason])
    #: how much later than its time each reading is, microseconds; empty where none is
    shifts: list[int] = field(default_factory=list[int])

    def add(self, message: int, series: Any, time: Any, value: Any) -> None:
        """Take a reading in."""
        self.message.append(message)
        self.series.append(series)
        self.times.append(time)
        self.values.append(value)

    def extend(self, other: RowList) -> None:
        """Take the readings of another list in."""
        self.message += other.message
        self.series += other.series
        self.times += other.times
        self.values += other.values
        self.shifts += other.shifts

    def rows(self, groups: Sequence[Any] | None = None) -> Rows:
        """What was found."""
        message = np.array(self.message, dtype=np.int64)
        grouped = None if groups is None else Repeated(list(groups), message)
        shift = np.array(self.shifts, dtype=np.int64) if self.shifts else None
        return Rows(message, self.series, self.times, self.values, grouped, self.bad, shift)


def names(column: Column, count: int) -> tuple[pa.Array, Bools]:
    """A column of names as a dictionary, and the rows whose name is neither text nor a whole number."""
    if isinstance(column, pa.Array):
        return column, np.zeros(count, dtype=np.bool_)
    given = column.values if isinstance(column, Repeated) else list(column)
    bad = np.zeros(len(given), dtype=np.bool_)
    if set(map(type, given)) != {str} or max(map(len, given)) > LONGEST_NAME:
        bad = np.array([not _is_name(one) for one in given], dtype=np.bool_)
        given = [str(one) if one is not None and _is_name(one) else None for one in given]
    if isinstance(column, Repeated):
        return _text(given).dictionary_encode().take(pa.array(column.at)), bad[column.at]
    if len(given) * LONGEST_NAME > _MOST_CHARACTERS and sum(len(one) for one in given if one) > _MOST_CHARACTERS:
        known = {one: number for number, one in enumerate(dict.fromkeys(given))}
        at = np.fromiter(map(known.__getitem__, given), np.int64, len(given))
        return _text(list(known)).dictionary_encode().take(pa.array(at)), bad
    return _text(given).dictionary_encode(), bad


def _is_name(one: Any) -> bool:
    kind = type(one)
    return one is None or kind is int or (kind is str and len(one) <= LONGEST_NAME)


def numbers(column: Column) -> pa.Array:
    """A column of values, ``None`` for a missing one: floats, or texts of all where some are no numbers."""
    if isinstance(column, pa.Array):
        return column
    given = column.values if isinstance(column, Repeated) else list(column)
    plain = set(map(type, given)) in _NUMBERS
    array = _floats(given) if plain else _text([_value_text(one) for one in given])
    return array.take(pa.array(column.at)) if isinstance(column, Repeated) else array


def _floats(given: list[Any]) -> pa.Array:
    try:
        return pa.array(given, pa.float64())
    except (pa.ArrowInvalid, OverflowError):  # integers that no float holds exactly
        return pa.array([None if one is None else finite_float(one) for one in given], pa.float64())


def _value_text(one: Any) -> str | None:
    """A value as text that reads as the same value, or as none."""
    if one is None:
        return None
    kind = type(one)
    if kind is int and abs(one) > _EXACT:
        one, kind = finite_float(one), float
    if kind is int or kind is float:
        return repr(one)
    if kind is Decimal or (kind is str and len(one) <= LONGEST_TEXT):
        return str(one)
    return "[]"  # neither a number nor missing


def instants(column: Column, count: int) -> Iterator[tuple[Bools | None, pa.Array]]:
    """A column of times, those of one kind together: (which rows, ``None`` for all; their times)."""
    if isinstance(column, pa.Array):
        yield None, column
        return
    given = column.values if isinstance(column, Repeated) else list(column)
    kinds = {_kind(kind) for kind in set(map(type, given))}
    if len(kinds) == 1:
        array = _times(given, kinds.pop())
        yield None, array.take(pa.array(column.at)) if isinstance(column, Repeated) else array
        return
    sort = np.array([_KINDS.index(_kind(type(one))) for one in given])
    at = column.at if isinstance(column, Repeated) else np.arange(count)
    for number in np.unique(sort[at]).tolist():
        chosen = sort[at] == number
        yield chosen, _times([given[place] for place in at[chosen].tolist()], _KINDS[number])


_KINDS: tuple[type | None, ...] = (int, float, str, dt.datetime, None)


def _kind(kind: type) -> type | None:
    return kind if kind in _KINDS else None


def _times(given: list[Any], kind: type | None) -> pa.Array:
    if kind is int:
        return _integers(given)
    if kind is float:
        return pa.array(given, pa.float64())
    if kind is str:
        return _text([one if len(one) <= LONGEST_TEXT else "" for one in given])
    if kind is None:
        return pa.nulls(len(given), pa.utf8())
    zoned = [one.tzinfo is not None for one in given]
    if any(zoned) and not all(zoned):
        return _text([one.isoformat() for one in given])
    return pa.array(given, pa.timestamp("us", tz="UTC" if zoned[0] else None))


def _integers(given: list[int]) -> pa.Array:
    """Integers; those beyond 64 bits become the ends, which are no times."""
    try:
        return pa.array(given, pa.int64())
    except OverflowError:
        low, high = _INT64
        return pa.array([min(max(one, low), high) for one in given], pa.int64())


def _text(given: list[Any]) -> pa.Array:
    try:
        return pa.array(given, pa.utf8())
    except (UnicodeEncodeError, pa.ArrowException):  # half of a surrogate pair has no form in UTF-8
        return pa.array([one if one is not None and is_text(one) else None for one in given], pa.utf8())


#: The header in which the gateway keeps the MQTT topic.
MQTT_TOPIC = "mqtt-topic"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def field_column(place: Place | Constant, messages: Messages, chosen: Sequence[int]) -> list[Any]:
    """What a place beside the payload holds for each message that counts; ``None`` where there is nothing readable."""
    if isinstance(place, Constant):
        return [place.constant] * len(chosen)
    if place.topic is not None:
        found = topics(messages, chosen)
        known = {one: level_of(one, place.topic) for one in set(found)}
        return [known[one] for one in found]
    if place.stamp:
        return [instant_of(int(messages.stamps_us[one])) for one in chosen]
    if place.payload:
        return [whole_text(messages.payloads[one]) for one in chosen]
    raw = (
        [messages.keys[one] for one in chosen]
        if place.key
        else [last_header(messages.headers[one], str(place.header)) for one in chosen]
    )
    texts = [text_of(one) for one in raw]
    if place.level is None:
        return texts
    level = place.level
    return [None if one is None else level_of(one, level) for one in texts]


def whole_text(payload: bytes | None) -> Any:
    """A payload as text without the blanks around it; what is no text, or a long one, is no name and no number."""
    try:
        return bytes(payload or b"").decode("utf-8").strip() if len(payload or b"") <= _LONGEST_WHOLE else []
    except UnicodeDecodeError:
        return []


def topics(messages: Messages, chosen: Sequence[int]) -> list[str]:
    """The topic of each message; the MQTT one where a gateway noted it."""
    found: list[str] = []
    for one in chosen:
        given = last_header(messages.headers[one], MQTT_TOPIC) if messages.headers[one] else None
        topic = messages.topics[one]
        if given is not None:
            try:
                topic = given.decode("utf-8")
            except UnicodeDecodeError:
                topic = ""
        found.append(topic)
    return found


def level_of(text: str, level: int) -> str | None:
    """A level of a topic: between slashes, or between dots where there is no slash; ``None`` if it has not so many."""
    levels = text.split("/" if "/" in text else ".")
    try:
        return levels[level - 1 if level > 0 else level]
    except IndexError:
        return None


def last_header(given: Headers, name: str) -> bytes | None:
    """The last header of a name: who writes one anew appends it."""
    for key, value in reversed(given):
        if key == name:
            return value
    return None


def instant_of(stamp_us: int) -> dt.datetime | None:
    """The instant of a broker's stamp; ``None`` without one."""
    if stamp_us < 0:
        return None
    try:
        return _EPOCH + dt.timedelta(microseconds=stamp_us)
    except OverflowError:
        return None


def text_of(value: bytes | None) -> str | None:
    """The bytes of a header or key as text; ``None`` if they are none."""
    try:
        return value.decode("utf-8") if value else None
    except UnicodeDecodeError:
        return None


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


def differing(objects: Sequence[Any], message: Ints, named: Collection[str] = ()) -> set[int]:
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
