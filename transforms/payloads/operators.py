"""The operators of mappings, over whole columns: places combined, units converted, conditions asked.

Each takes columns of n values, one of each reading, and costs a fixed number of steps for each of them: a message of
twice the size takes twice as long. What a message holds never raises; where an operator cannot say anything it gives
``None``, which is a missing part, or :data:`NONE_SUCH`, which is neither a name nor a number. A text that a path cannot
unpack is :data:`UNREADABLE`: it is there, so it is neither missing nor passed over, and its message is malformed.

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.settings.places import Condition, Constant, Do, Place, duration_of, path_steps
from ..common.batches import finite_float
from .columns import LONGEST_NAME, LONGEST_TEXT, Column, Repeated, Rows
from .parsing import parse_json_text
from .unit_names import power_of_ten

if TYPE_CHECKING:
    from .mapped import Mapping, Tables

__all__ = [
    "OPERATORS",
    "UNPACKED",
    "UNREADABLE",
    "answers",
    "combined",
    "finished",
    "quantity",
    "scaled",
    "unreadable",
]

Bools = npt.NDArray[np.bool_]


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
    return [_added([number(one, decimal) for one in each]) for each in zip(*columns, strict=True)]


def _added(numbers: list[Any]) -> Any:
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
    return [_named(each, known) for each in zip(*columns, strict=True)]


def _named(parts: tuple[Any, ...], known: dict[tuple[Any, ...], str]) -> Any:
    """The parts with ``/`` between them; different parts never make one name.

    A slash inside one of several parts is ``~1`` and a tilde ``~0``, as in JSON Pointer (RFC 6901, section 3).
    """
    if any(one is None or one == "" for one in parts):
        return None
    if not all(type(one) is int or (type(one) is str and len(one) <= LONGEST_PART) for one in parts):
        return NONE_SUCH
    name = known.get(parts)
    if name is None:
        texts = [str(one) for one in parts]
        if len(texts) > 1:
            texts = [one.replace("~", "~0").replace("/", "~1") for one in texts]
        if sum(map(len, texts)) + len(texts) - 1 > LONGEST_NAME:
            return NONE_SUCH
        name = known[parts] = "/".join(texts)
    return name


#: From columns, and the mark before decimals, to one column.
Operator = Callable[[Sequence[list[Any]], str], list[Any]]

#: What makes one column of several, by the name in the settings.
OPERATORS: dict[str, Operator] = {"first": _first, "sum": _sum, "join": _join}


def _json(text: Any) -> Any:
    if text is None or type(text) in {dict, list}:
        return text
    try:
        return parse_json_text(text) if not _is_blank(text) else None
    except (ValueError, TypeError):
        return UNREADABLE


def _base64(text: Any) -> Any:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True).decode("utf-8")
    except (ValueError, TypeError):
        return UNREADABLE


def _is_blank(text: Any) -> bool:
    return type(text) in {str, bytes} and (not text or text.isspace())


#: What a step of a path that unpacks does: nothing inside nothing, and :data:`UNREADABLE` of what it cannot unpack.
UNPACKED: dict[Do, Callable[[Any], Any]] = {Do.JSON: _json, Do.BASE64: _base64}


def unreadable(found: Sequence[Any]) -> Bools:
    """Which of n values cannot be unpacked, shape (n,)."""
    return np.fromiter((one is UNREADABLE for one in found), np.bool_, len(found))


def combined(place: Place | Constant, tables: Tables, mapping: Mapping) -> Column:
    """What a place says of each reading, before units are converted.

    Args:
        place: one beside the payload, or with operators.
        tables: the objects of the messages.
        mapping: how texts are read.
    """
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
    """Readings with what is said of whole places: values in the wanted unit, times by their number, optional parts.

    Args:
        rows: the readings as their places say them.
        tables: the objects of the messages.
        mapping: what the settings say.
    """
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
        values, other = _converted(_listed(values), units, mapping.wanted, mapping.decimal)
        other &= keep
        for message in np.unique(rows.message[other]).tolist():
            bad.setdefault(message, RejectReason.MIXED_UNITS)
        keep &= ~other
    elif mapping.decimal != ".":
        values = [_with_point(one, mapping.decimal) for one in _listed(values)]
    if isinstance(mapping.time, Place) and mapping.time.every is not None:
        times, shift = _apart(_listed(times), mapping.time.every, tables, mapping)
    whole = replace(rows, values=values, times=times, shift=shift, bad=bad)
    return whole if keep.all() else whole.filtered(keep)


def present(column: Column) -> Bools:
    """The rows that have something in a column, shape (n,)."""
    if isinstance(column, Repeated):
        each = np.fromiter((one is not None for one in column.values), np.bool_, len(column.values))
        return each[column.at]
    array: Any = column
    if isinstance(array, pa.Array):
        return array.is_valid().to_numpy(zero_copy_only=False)
    return np.fromiter((one is not None for one in column), np.bool_, len(column))


def _torn(column: Column) -> Bools:
    """The rows whose part of a column cannot be unpacked, shape (n,)."""
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
    text = _with_point(one, decimal)
    if type(text) is not str or len(text) > LONGEST_TEXT:
        return NONE_SUCH
    text = text.strip()
    if not text:
        return None
    return float(text) if _NUMBER.fullmatch(text) else NONE_SUCH


def _with_point(one: Any, decimal: str) -> Any:
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
    return _with_point(found[0], decimal), text[found.end() :].strip() or None


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


def _converted(values: list[Any], units: list[Any] | None, wanted: str, decimal: str) -> tuple[list[Any], Bools]:
    """Values in the wanted unit, and those that have none that can be converted to it."""
    if units is None:
        split = [quantity(one, decimal) if type(one) is str else (one, wanted) for one in values]
        values, units = [one for one, _ in split], [unit for _, unit in split]
    elif decimal != ".":
        values = [_with_point(one, decimal) for one in values]
    powers = [
        power_of_ten(one.strip(), wanted) if type(one) is str and len(one) <= LONGEST_TEXT else None for one in units
    ]
    # a missing value, or what is no number, is a reject by its own reason
    other = [power is None and value is not None and value is not NONE_SUCH
             for power, value in zip(powers, values, strict=True)]  # fmt: skip
    found = [scaled(value, power or 0) for value, power in zip(values, powers, strict=True)]
    return found, np.array(other, dtype=np.bool_)


def _apart(
    times: list[Any], every: object, tables: Tables, mapping: Mapping
) -> tuple[list[Any], npt.NDArray[np.int64]]:
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
    """Which values say what a condition asks, shape (n,).

    Args:
        condition: what is asked.
        found: what stands at its place, n values.
    """
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
