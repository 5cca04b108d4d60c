"""Mapped payloads: readings at the places that the settings name, by their operators, all in one unit.

The payloads of many messages are parsed column by column: what runs once for each reading is C, and Python's own loops
run only where a message lacks a field. An operator costs a fixed number of steps for each of n values: a message of
twice the size takes twice as long. What a message holds never raises. Where an operator cannot say anything it gives
``None``, which is a missing part, or :data:`NONE_SUCH`, which is neither a name nor a number. A text that a path cannot
unpack is :data:`UNREADABLE`: it is neither missing nor passed over, and its message is malformed.

>>> OPERATORS["sum"]([[1, "2"], [2.5, None]], ".")
[3.5, None]
>>> quantity("12,3 kWh", ",")
('12.3', 'kWh')
>>> scaled("12.3", 3)
'12.3e3'
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from itertools import chain, compress
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.readings import LONGEST_NAME, RejectReason
from ...schemas.settings.mappings import Readings, payload_paths
from ...schemas.settings.places import (
    Condition,
    Constant,
    Do,
    Level,
    Place,
    Step,
    Steps,
    duration_of,
    levels_of,
    parts_of,
    path_steps,
    paths_of,
    steps_of,
)
from ..common.batches import Bools, Ints, finite_float
from .columns import (
    GROUP,
    LONGEST_TEXT,
    SERIES,
    TIME,
    VALUE,
    Column,
    Repeated,
    Rows,
    differing,
    field_column,
    power_of_ten,
)
from .messages import Messages
from .parsing import Parsed, ParsedColumns, clamped, parse_json_text


class _Mark(Enum):
    NONE_SUCH = "neither a name nor a number"
    UNREADABLE = "cannot be unpacked"


#: Stands for what is there and is neither a name nor a number.
NONE_SUCH = _Mark.NONE_SUCH
#: Stands for what is there and cannot be unpacked, and for everything inside it.
UNREADABLE = _Mark.UNREADABLE

#: A longer part of a joined name is none: a message could repeat it for each of its readings.
LONGEST_PART = 200

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?")
_DIGITS = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d{1,9})?")
_ISO_DURATION = re.compile(r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9}(?:\.\d{1,6})?)S)?)?")

#: Times further apart are no readings of one message.
_LONGEST_US = 200 * 366 * 86_400_000_000


def _first(columns: Sequence[list[Any]], _decimal: str) -> list[Any]:
    found = columns[0]
    for other in columns[1:]:
        found = [mine if mine is not None else theirs for mine, theirs in zip(found, other, strict=True)]
    return found


def _sum(columns: Sequence[list[Any]], decimal: str) -> list[Any]:
    return [added([number(one, decimal) for one in each]) for each in zip(*columns, strict=True)]


def added(numbers: list[Any]) -> Any:
    """The sum of what :func:`number` gives; what one of them is missing or is none, the sum is, too."""
    if any(one is None for one in numbers):
        return None
    if any(one is NONE_SUCH for one in numbers):
        return NONE_SUCH
    floats = [finite_float(one) for one in numbers]
    try:
        return math.fsum(floats)
    except OverflowError:  # a finite value is never rejected for its size
        return math.copysign(np.finfo(np.float64).max, math.fsum(one / len(floats) for one in floats))
    except ValueError:  # infinities of both signs
        return math.nan


def _join(columns: Sequence[list[Any]], _decimal: str) -> list[Any]:
    known: dict[tuple[Any, ...], str] = {}  # rows of equal parts share one text
    return [joined(each, known) for each in zip(*columns, strict=True)]


def joined(parts: tuple[Any, ...], known: dict[tuple[Any, ...], str] | None = None) -> Any:
    """The parts with ``/`` between them; different parts never make one name.

    A slash inside one of several parts is ``~1`` and a tilde ``~0``, as in JSON Pointer (RFC 6901, section 3).
    """
    if any(one is None or one == "" for one in parts):
        return None
    if not all(type(one) is int or (type(one) is str and len(one) <= LONGEST_PART) for one in parts):
        return NONE_SUCH
    name = None if known is None else known.get(parts)
    if name is None:
        texts = [str(one) for one in parts]
        if len(texts) > 1:
            texts = [one.replace("~", "~0").replace("/", "~1") for one in texts]
        if sum(map(len, texts)) + len(texts) - 1 > LONGEST_NAME:
            return NONE_SUCH
        name = "/".join(texts)
        if known is not None:
            known[parts] = name
    return name


#: From columns, and the mark before decimals, to one column.
Operator = Callable[[Sequence[list[Any]], str], list[Any]]

#: What makes one column of several, by the name in the settings.
OPERATORS: dict[str, Operator] = {"first": _first, "sum": _sum, "join": _join}


def from_json(text: Any) -> Any:
    """What a text of JSON holds; what is no text any more stays."""
    if text is None or type(text) in {dict, list}:
        return text
    try:
        return parse_json_text(text) if not _is_blank(text) else None
    except (ValueError, TypeError):
        return UNREADABLE


def from_base64(text: Any) -> Any:
    """The text that a text of Base64 holds."""
    try:
        return None if text is None else base64.b64decode(text, validate=True).decode("utf-8")
    except (ValueError, TypeError):
        return UNREADABLE


def _is_blank(text: Any) -> bool:
    return type(text) in {str, bytes} and (not text or text.isspace())


#: What a step of a path that unpacks does: nothing inside nothing, and :data:`UNREADABLE` of what it cannot unpack.
UNPACKED: dict[Do, Callable[[Any], Any]] = {Do.JSON: from_json, Do.BASE64: from_base64}


def unreadable(found: Sequence[Any]) -> Bools:
    """Which of n values cannot be unpacked, shape (n,)."""
    return np.fromiter((one is UNREADABLE for one in found), np.bool_, len(found))


def combined(place: Place | Constant, tables: Tables, mapping: Mapping) -> Column:
    """What a place says of each reading, before units are converted."""
    if isinstance(place, Place):
        if place.steps is not None:
            return tables.column(place.steps)
        for name, operator in OPERATORS.items():
            if getattr(place, name) is not None:
                return _applied(operator, [_part(one, tables, mapping) for one in place.parts], mapping.decimal)
    return tables.beside(place)


def _applied(operator: Operator, columns: list[Column], decimal: str) -> Column:
    """What an operator makes of columns: once for each run of rows in which all of them repeat their values."""
    repeated = [one for one in columns if isinstance(one, Repeated)]
    if len(repeated) < len(columns) or not len(repeated[0].at):
        return operator([_listed(one) for one in columns], decimal)
    begins = np.ones(len(repeated[0].at), dtype=np.bool_)
    begins[1:] = np.logical_or.reduce([one.at[1:] != one.at[:-1] for one in repeated])
    runs = [Repeated(one.values, one.at[begins]) for one in repeated]
    return Repeated(operator([_listed(one) for one in runs], decimal), np.cumsum(begins) - 1)


def _part(part: str | Place | Constant, tables: Tables, mapping: Mapping) -> Column:
    return tables.column(path_steps(part)) if isinstance(part, str) else combined(part, tables, mapping)


def _listed(column: Column) -> list[Any]:
    if isinstance(column, Repeated):
        values = column.values
        return [values[at] for at in column.at.tolist()]
    array: Any = column
    return array.to_pylist() if isinstance(array, pa.Array) else list(array)


def finished(rows: Rows, tables: Tables, mapping: Mapping) -> Rows:
    """Readings with what is said of whole places: values in the wanted unit, times by their number, optional parts."""
    keep = np.ones(len(rows.message), dtype=np.bool_)
    torn = np.zeros(len(rows.message), dtype=np.bool_)
    bad = dict(rows.bad)
    for place, column in (
        (mapping.series, rows.series),
        (mapping.time, rows.times),
        (mapping.value, rows.values),
        (mapping.group, rows.groups),
    ):
        if column is not None and isinstance(place, Place) and place.optional:
            keep &= present(column)
        if column is not None and mapping.unpacks:
            torn |= _torn(column)
    for message in np.unique(rows.message[torn & keep]).tolist():
        bad.setdefault(message, RejectReason.MALFORMED_ROW)
    keep &= ~torn
    values, times, shift = rows.values, rows.times, None
    if isinstance(mapping.value, Place) and mapping.value.unit is not None:
        unit = mapping.value.unit
        units = None if unit is True else _listed(_part(unit, tables, mapping))
        values, other = converted(_listed(values), units, mapping.wanted, mapping.decimal)
        other &= keep
        for message in np.unique(rows.message[other]).tolist():
            bad.setdefault(message, RejectReason.MIXED_UNITS)
        keep &= ~other
    elif mapping.decimal != ".":
        values = [with_point(one, mapping.decimal) for one in _listed(values)]
    if isinstance(mapping.time, Place) and mapping.time.every is not None:
        times, shift = _apart(_listed(times), mapping.time.every, tables, mapping)
    whole = replace(rows, values=values, times=times, shift=shift, bad=bad)
    return whole if keep.all() else whole.filtered(keep)


def present(column: Column) -> Bools:
    """The rows that have something in a column, shape (n,)."""
    if isinstance(column, Repeated):
        return _given(column.values)[column.at]
    array: Any = column
    return array.is_valid().to_numpy(zero_copy_only=False) if isinstance(array, pa.Array) else _given(array)


def _given(values: Sequence[Any]) -> Bools:
    return np.fromiter((one is not None for one in values), np.bool_, len(values))


def _torn(column: Column) -> Bools:
    if isinstance(column, Repeated):
        return unreadable(column.values)[column.at]
    array: Any = column
    return np.zeros(len(array), dtype=np.bool_) if isinstance(array, pa.Array) else unreadable(array)


def number(one: Any, decimal: str) -> Any:
    """A number as it is or in its text; ``None`` for a missing one, :data:`NONE_SUCH` for what is none."""
    kind = type(one)
    if kind is int or kind is float or one is None:
        return one
    if kind is Decimal:
        return float(one)
    text = with_point(one, decimal)
    if type(text) is not str or len(text) > LONGEST_TEXT:
        return NONE_SUCH
    text = text.strip()
    if not text:
        return None
    return clamped(text) if _NUMBER.fullmatch(text) else NONE_SUCH


def with_point(one: Any, decimal: str) -> Any:
    """A text whose decimals stand behind a point; a point where decimals stand behind a comma makes it no number."""
    if decimal == "." or type(one) is not str:
        return one
    return NONE_SUCH if "." in one else one.replace(",", ".")


def quantity(text: str, decimal: str) -> tuple[Any, str | None]:
    """A text such as ``12.3 kWh`` as its number, decimals behind a point, and its unit; ``None`` without one."""
    if len(text) > LONGEST_TEXT:
        return NONE_SUCH, None
    text = text.strip()
    found = _DIGITS.match(text)
    if found is None:
        return (NONE_SUCH if text else None), None
    return with_point(found[0], decimal), text[found.end() :].strip() or None


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


def converted(values: list[Any], units: list[Any] | None, wanted: str, decimal: str) -> tuple[list[Any], Bools]:
    """Values in the wanted unit, and which are of another one; ``None`` for units behind the numbers."""
    if units is None:
        split = [quantity(one, decimal) if type(one) is str else (one, wanted) for one in values]
        values, units = [one for one, _ in split], [unit for _, unit in split]
    elif decimal != ".":
        values = [with_point(one, decimal) for one in values]
    powers = [
        power_of_ten(one.strip(), wanted) if type(one) is str and len(one) <= LONGEST_TEXT else None for one in units
    ]
    # a missing value, or what is no number, is a reject by its own reason
    other = [power is None and value is not None and value is not NONE_SUCH
             for power, value in zip(powers, values, strict=True)]  # fmt: skip
    found = [scaled(value, power or 0) for value, power in zip(values, powers, strict=True)]
    return found, np.array(other, dtype=np.bool_)


def _apart(times: list[Any], every: object, tables: Tables, mapping: Mapping) -> tuple[list[Any], Ints]:
    """Times of the first elements, and how much later each element is, microseconds; ``None`` where that is unknown."""
    fixed = duration_of(every)
    numbers = tables.numbers.tolist()
    if fixed is not None:
        steps: list[int | None] = [fixed] * len(numbers)
    else:
        steps = [_interval(one) for one in _listed(_part(every, tables, mapping))]  # type: ignore[arg-type] - a part
    later = [None if step is None else step * at for step, at in zip(steps, numbers, strict=True)]
    known = [one is not None and one <= _LONGEST_US for one in later]
    shift = np.array([one if good else 0 for one, good in zip(later, known, strict=True)], dtype=np.int64)
    return [time if good else None for time, good in zip(times, known, strict=True)], shift


def _interval(one: Any) -> int | None:
    """A duration in microseconds: a number of seconds, ISO 8601 such as ``PT15M``, or ``15min``."""
    if type(one) in {int, float} and 0 < one <= _LONGEST_US / 1_000_000:
        return round(one * 1_000_000)
    if type(one) is not str or len(one) > LONGEST_TEXT:
        return None
    found = _ISO_DURATION.fullmatch(one)
    if found is None:
        return duration_of(one)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    whole = round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000)
    return whole if whole > 0 else None


def answers(condition: Condition, found: Sequence[Any]) -> Bools:
    """Which values fulfil a condition, shape (n,)."""
    if condition.exists is not None:
        said = [(one is not None) is condition.exists for one in found]
        return np.array(said, dtype=np.bool_)
    wanted = condition.values
    if condition.path is None:  # text, whatever the settings call it
        wanted = tuple(one if one is None else str(one) for one in wanted)
    known = {_comparable(one) for one in wanted}
    inside = np.fromiter((_comparable(one) in known for one in found), np.bool_, len(found))
    return ~inside if condition.negated else inside


def _comparable(one: Any) -> Any:
    """A plain value that equals only the same: no truth value is a number."""
    kind = type(one)
    return (kind is bool, one) if one is None or kind in {str, int, float, bool} else NotImplemented


@dataclass(frozen=True)
class Mapping:
    """Where the parts of a reading are; made once of the settings."""

    series: Steps | Place | Constant
    time: Steps | Place | Constant
    value: Steps | Place | Constant
    group: Steps | Place | Constant | None
    levels: tuple[Level, ...]  # the wildcards of all paths
    where: tuple[tuple[Condition, ...], ...] = ((),)  # the conditions on messages and elements, by the level of each
    # what must stand beside the payload; a message that is passed over for it need not be parsed
    beside: tuple[Condition, ...] = ()
    wanted: str = ""  # unit that the messages' units are converted to
    decimal: str = "."
    unpacks: bool = False  # whether a path unpacks a text inside the payload

    @classmethod
    def of(cls, readings: Readings, group: str | None) -> Mapping:
        """The mapping of the settings."""
        places: dict[str, Any] = {name: getattr(readings, name) for name in ("series", "time", "value")}
        paths = payload_paths(readings, group)
        levels = levels_of(paths)
        where: list[list[Condition]] = [[] for _ in range(len(levels) + 1)]
        for one in readings.conditions:
            if one.place.steps is not None:
                where[_level_of(levels, one.place.steps)].append(one)
        return cls(
            series=_source(places["series"]),
            time=_source(places["time"]),
            value=_source(places["value"]),
            group=None if group is None else _source(readings.attributes.get(group, group)),
            levels=levels,
            where=tuple(map(tuple, where)),
            beside=tuple(one for one in readings.conditions if one.place.steps is None),
            wanted=readings.unit.strip(),
            unpacks=any(step in UNPACKED for steps in paths for step in steps),
        )

    @property
    def paths(self) -> dict[str, Steps]:
        """The parts of a reading that are in the payload, and where."""
        named = {SERIES: self.series, TIME: self.time, VALUE: self.value, GROUP: self.group}
        return {part: source for part, source in named.items() if isinstance(source, tuple)}

    @property
    def is_plain(self) -> bool:
        """Whether every part is one plain place: no operator, no condition, and of wildcards only ``[*]``."""
        sources = (self.series, self.time, self.value, self.group)
        return (
            self.decimal == "."
            and not any(self.where)
            and not any(level.kind is not None for level in self.levels)
            and not any(isinstance(one, Place) and not one.is_plain for one in sources)
            and not any(isinstance(step, Do) or not steps for steps in self.paths.values() for step in steps or (None,))
        )

    @property
    def needs_payload(self) -> bool:
        """Whether something inside the payload is named, so that it must be one of the format."""
        sources = (
            self.series,
            self.time,
            self.value,
            self.group,
            *(one.place for conditions in (*self.where, self.beside) for one in conditions),
        )
        inside = any(paths_of(one) if isinstance(one, Place) else isinstance(one, tuple) for one in sources)
        return inside or not any(isinstance(part, Place) and part.payload for one in sources for part in parts_of(one))


def _source(place: str | Place | Constant) -> Steps | Place | Constant:
    if isinstance(place, Constant) or (isinstance(place, Place) and not place.is_plain):
        return place
    steps = steps_of(place)
    return place if steps is None else steps  # type: ignore[return-value] - a plain text is a path


def _level_of(levels: tuple[Level, ...], steps: Steps) -> int:
    """The number of the level that a path starts from, 0 for the document."""
    found = 0
    for number, level in enumerate(levels):
        if any(steps[: len(start)] == start for start in level.starts):
            found = number + 1
    return found


def fulfilling_beside(conditions: Sequence[Condition], messages: Messages, chosen: list[int]) -> list[int]:
    """The messages that fulfil conditions on what stands beside their payloads."""
    for one in conditions:
        said = answers(one, field_column(one.place, messages, chosen))
        chosen = [number for number, good in zip(chosen, said.tolist(), strict=True) if good]
    return chosen


def _rows_of_columns(messages: Messages, apart: ParsedColumns, mapping: Mapping) -> Rows:
    """The readings of messages that are parsed already, with what stands beside their payloads."""

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


def mapped_rows(messages: Messages, parsed: Parsed | ParsedColumns, mapping: Mapping) -> Rows:
    """The readings of some parsed messages."""
    if isinstance(parsed, ParsedColumns):
        return _rows_of_columns(messages, parsed, mapping)
    tables = Tables(parsed, mapping, messages)
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
        tables = Tables(parsed, mapping, messages)
    rows = tables.rows

    def column(source: Steps | Place | Constant) -> Column:
        return tables.column(source) if isinstance(source, tuple) else combined(source, tables, mapping)

    stamps = None if isinstance(mapping.time, Place) and not mapping.time.steps else parsed.stamps
    whole = Rows(
        message=rows,
        series=column(mapping.series),
        times=_stamped(column(mapping.time), stamps),
        values=column(mapping.value),
        groups=None if mapping.group is None else column(mapping.group),
        bad=parsed.bad | tables.bad,
    )
    return whole if mapping.is_plain else finished(whole, tables, mapping)


def _stamped(times: Column, kind: pa.DataType | None) -> Column:
    if kind is None or isinstance(times, pa.Array):
        return times
    given = times.values if isinstance(times, Repeated) else times
    try:
        stamps = pa.array(given, pa.int64()).view(kind)
    except (pa.ArrowException, TypeError, OverflowError):
        return times
    return stamps.take(pa.array(times.at)) if isinstance(times, Repeated) else stamps


class Tables:
    """The objects that paths start from: the payloads, and the elements of each array inside them.

    Attributes:
        nodes: the objects of each level.
        message: number of the message of each object, by level.
        down: of each level, the number of the object that each object of the deepest level is in.
        bad: messages without an array where there should be one.
    """

    def __init__(self, parsed: Parsed, mapping: Mapping, messages: Messages) -> None:
        self.messages = messages
        self.nodes: list[list[Any]] = [parsed.values]
        self.message: list[Ints] = [np.array(parsed.message, dtype=np.int64)]
        self.bad: dict[int, RejectReason] = {}
        self._levels = mapping.levels
        self._names: list[list[str]] = [[]]
        self._spared = isinstance(mapping.value, Place) and bool(mapping.value.optional)
        #: The object that each element of the innermost arrays is in, and which of the elements are kept.
        self._innermost: tuple[Ints, Bools | None] | None = None
        ups: list[Ints] = []
        if mapping.where[0]:
            self._keep(0, self._fulfilling(mapping.where[0]))
        for number, level in enumerate(self._levels):
            found, names, up = self._elements(level)
            ups.append(up)
            self._innermost = (up, None)
            self.nodes.append(found)
            self._names.append(names)
            self.message.append(self.message[-1][up])
            if mapping.where[number + 1]:
                kept = self._fulfilling(mapping.where[number + 1])
                self._keep(number + 1, kept)
                ups[-1], self._innermost = up[kept], (up, kept)
        self.down: list[Ints] = [np.arange(len(self.nodes[-1]))]
        for up in reversed(ups):
            self.down.insert(0, up[self.down[0]])

    @property
    def rows(self) -> Ints:
        """The number of each row's message."""
        return self.message[-1]

    def column(self, steps: Steps) -> Column:
        """What a path leads to, for each row."""
        level, found = self._at(steps)
        return found if level == len(self.nodes) - 1 else Repeated(found, self.down[level])

    def beside(self, place: Place | Constant) -> Column:
        """What stands beside the payload, for each row."""
        found = field_column(place, self.messages, self.message[0].tolist())
        return found if len(self.nodes) == 1 else Repeated(found, self.down[0])

    @property
    def numbers(self) -> Ints:
        """The number of each row among the elements of its innermost array, from 0."""
        if self._innermost is None:
            return np.zeros(len(self.nodes[0]), dtype=np.int64)
        up, kept = self._innermost
        numbers = np.arange(len(up)) - np.searchsorted(up, up)
        return numbers if kept is None else numbers[kept]

    def _at(self, steps: Steps) -> tuple[int, list[Any]]:
        """The level that a path starts from, and what it leads to in each object of this level."""
        level = _level_of(self._levels, steps)
        if not level:
            return 0, follow(self.nodes[0], steps)
        kind = self._levels[level - 1]
        start = next(one for one in kind.starts if steps[: len(one)] == one)
        rest = steps[len(start) :]
        if rest == (Do.NAME,):
            return level, list(self._names[level])
        nodes = self.nodes[level]
        if kind.kind is Do.NTH:
            nodes = list(map(itemgetter(kind.starts.index(start)), nodes))
        return level, follow(nodes, rest)

    def mixed(self, mapping: Mapping) -> set[int]:
        """The messages in which the elements that hold the values say different units.

        A field may differ that names the series or the group, or that a condition holds to one value.
        """
        if not self._levels or (isinstance(mapping.value, Place) and mapping.value.unit is not None):
            return set()
        paths = [mapping.value] if isinstance(mapping.value, tuple) else paths_of(mapping.value)
        single = [one.place.steps for conditions in mapping.where for one in conditions if one.is_of_one_value]
        apart = {path for path in (mapping.series, mapping.group, *single) if isinstance(path, tuple)}
        found: set[int] = set()
        starts = [one.starts[0] for one in self._levels]
        for steps in paths:
            for level, start in enumerate(starts, 1):
                if steps[: len(start)] != start or self._levels[level - 1].kind is Do.NTH:
                    continue
                longer = starts[level] if level < len(starts) else steps
                way = (longer if steps[: len(longer)] == longer else steps)[len(start) : -1]
                objects = self.nodes[level]
                found |= differing(objects, self.message[level], _fields_at(start, apart))
                for number, step in enumerate(way, 1):
                    objects = _step(objects, step)
                    found |= differing(objects, self.message[level], _fields_at((*start, *way[:number]), apart))
        return found

    def _fulfilling(self, conditions: Sequence[Condition]) -> Bools:
        """Which objects of the deepest level so far fulfil some conditions."""
        level = len(self.nodes) - 1
        kept = np.ones(len(self.nodes[level]), dtype=np.bool_)
        torn = np.zeros(len(kept), dtype=np.bool_)
        for one in conditions:
            found = self._at(one.place.steps or ())[1]
            unknown = unreadable(found)
            kept &= answers(one, found) | unknown
            torn |= unknown
        # what no condition passes over and one cannot be applied to is damaged
        for number in self.message[level][kept & torn].tolist():
            self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
        return kept & ~torn

    def _keep(self, level: int, kept: Bools) -> None:
        self.nodes[level] = list(compress(self.nodes[level], kept))
        self.message[level] = self.message[level][kept]
        self._names[level] = list(compress(self._names[level], kept))

    def _elements(self, level: Level) -> tuple[list[Any], list[str], Ints]:
        if level.kind is Do.NTH:
            return self._side_by_side(level)
        nodes = self._at(level.starts[0][:-1])[1]
        wanted = list if level.kind is None else dict
        nodes = self._of_kind(nodes, wanted)
        up = np.repeat(np.arange(len(nodes)), np.fromiter(map(len, nodes), np.int64, len(nodes)))
        if level.kind is None:
            return list(chain.from_iterable(nodes)), [], up
        names = list(chain.from_iterable(nodes))
        return list(chain.from_iterable(one.values() for one in nodes)), names, up

    def _of_kind(self, nodes: list[Any], wanted: type) -> list[Any]:
        """Arrays or objects; a message where something else stands is bad, unless nothing does and that is allowed."""
        if not set(map(type, nodes)) - {wanted}:
            return nodes
        for number, one in zip(self.message[-1].tolist(), nodes, strict=True):
            if type(one) is not wanted and not (one is None and self._spared):
                self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
        return [one if type(one) is wanted else wanted() for one in nodes]

    def _side_by_side(self, level: Level) -> tuple[list[Any], list[str], Ints]:
        """The elements of arrays that run side by side; a message where they differ in length is bad."""
        arrays = [self._of_kind(self._at(start[:-1])[1], list) for start in level.starts]
        lengths = [np.fromiter(map(len, one), np.int64, len(one)) for one in arrays]
        same = np.logical_and.reduce([one == lengths[0] for one in lengths])
        for number in self.message[-1][~same].tolist():
            self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
        if not same.all():
            arrays = [[one if good else [] for one, good in zip(each, same, strict=True)] for each in arrays]
        up = np.repeat(np.arange(len(same)), np.where(same, lengths[0], 0))
        return list(zip(*map(chain.from_iterable, arrays), strict=True)), [], up


def _fields_at(start: Steps, paths: Collection[Steps]) -> set[str]:
    return {str(path[-1]) for path in paths if path and path[:-1] == start}


def follow(nodes: Sequence[Any], steps: Steps) -> list[Any]:
    """What a path without wildcards leads to in each of some values; ``None`` where it leads nowhere."""
    found = list(nodes)
    for step in steps:
        found = _step(found, step)
    return found


def _step(nodes: list[Any], step: Step) -> list[Any]:
    if isinstance(step, str):
        if set(map(type, nodes)) <= {dict}:
            get: Callable[[Any], Any] = itemgetter(step)
            try:
                return list(map(get, nodes))
            except KeyError:
                pass
        return [one.get(step) if type(one) is dict else _nothing_in(one) for one in nodes]
    if isinstance(step, Do):
        return list(map(UNPACKED[step], nodes))
    at = int(step or 0)
    return [one[at] if type(one) is list and at < len(one) else _nothing_in(one) for one in nodes]


def _nothing_in(one: Any) -> Any:
    """What a step finds where it leads nowhere."""
    return UNREADABLE if one is UNREADABLE else None
