"""Columns of Avro files: what the values of records mean, apart from how records are read.

Records are read by a schema without logical types, so only bytes that are no records stop the reading of a file. What
the values mean is said by the column's logical types, column by column; a value that means nothing makes its own row a
reject, and nothing that a record holds becomes a statement about the file.

>>> dates = Meaning.of(["null", {"type": "int", "logicalType": "date"}])
>>> array, bad = dates.column([15706, None, 2**31 - 1])
>>> array.type, bad
(DataType(date32[day]), [])
>>> Meaning.of({"type": "string", "logicalType": "uuid"}).column(["x"])[1]
[0]
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from decimal import MAX_PREC, Context
from typing import Any

import pyarrow as pa

from ..arrow_tools import pc
from .avro_times import TIMES

#: Further logical types of times: the type that each stands on, and what it is in Arrow.
_OTHER_TIMES: dict[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "time-millis": ("int", pa.time32("ms")),
    "time-micros": ("long", pa.time64("us")),
}

_INT32 = 2**31 - 1

#: Decimals of more digits than their precision are rounded, as long as they have no more than this.
_DIGITS = 4_096
_BITS_PER_DIGIT = 4


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the logical types of a column say.

    Attributes:
        time: Arrow type of its integers; ``None`` if they are no times.
        decimal: precision and scale of its bytes; ``None`` if they are no decimals.
        uuid: whether its text is UUIDs.
    """

    time: pa.DataType | None = None
    decimal: tuple[int, int] | None = None
    uuid: bool = False

    @classmethod
    def of(cls, kind: Any) -> Meaning:
        """The meaning of a field's type; a logical type that does not fit the type below it means nothing."""
        time, decimal, is_uuid = None, None, False
        for one in kind if isinstance(kind, list) else [kind]:
            if isinstance(one, dict) and "logicalType" in one:
                time = time or _time_of(one)
                decimal = decimal or _decimal_of(one)
                is_uuid |= (one["type"], one["logicalType"]) == ("string", "uuid")
        return cls(time, decimal, is_uuid)

    def column(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array; those of a union of text and numbers become text.

        Returns:
            The array, shape (n,), and the places of values that mean nothing, where it holds nulls.
        """
        values, bad = self._read(values)
        try:
            return self._array(values), bad
        except UnicodeEncodeError:
            broken = [place for place, one in enumerate(values) if isinstance(one, str) and not _is_text(one)]
            values = list(values)
            for place in broken:
                values[place] = None
            return self._array(values), sorted({*bad, *broken})

    def _read(self, values: list[Any]) -> tuple[list[Any], list[int]]:
        """Decimals and UUIDs as Python's."""
        if self.decimal is None and not self.uuid:
            return values, []
        context = None if self.decimal is None else Context(prec=self.decimal[0])
        found: list[Any] = []
        bad: list[int] = []
        for place, one in enumerate(values):
            value = one
            try:
                if context is not None and isinstance(one, bytes):
                    value = self._decimal(one, context)
                elif self.uuid and isinstance(one, str):
                    value = str(uuid.UUID(one))
            except (ValueError, ArithmeticError):
                value = None
                bad.append(place)
            found.append(value)
        return found, bad

    def _decimal(self, raw: bytes, context: Context) -> Any:
        precision, scale = self.decimal or (0, 0)
        unscaled = int.from_bytes(raw, "big", signed=True)
        if unscaled.bit_length() > _BITS_PER_DIGIT * max(precision, _DIGITS):
            raise ValueError("a number of so many digits takes too long to read")
        return context.create_decimal(unscaled).scaleb(-scale, context)

    def _array(self, values: list[Any]) -> pa.Array:
        try:
            array = pa.array(values)
        except (pa.ArrowException, TypeError, OverflowError):
            array = None
        if self.time is None:
            return array if array is not None else pa.array([_text(one) for one in values], pa.utf8())
        if array is not None and (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
            return _times(array, self.time)
        numbers = pa.array([one if type(one) is int else None for one in values], pa.int64())
        times = _times(numbers, self.time).cast(pa.utf8()).to_pylist()
        texts = [time if time is not None else _text(one) for time, one in zip(times, values, strict=True)]
        return pa.array(texts, pa.utf8())


def _time_of(one: dict[str, Any]) -> pa.DataType | None:
    kind = one["logicalType"]
    if kind in _OTHER_TIMES:
        below, time = _OTHER_TIMES[kind]
        return time if one["type"] == below else None
    return TIMES.get(kind) if one["type"] in {"int", "long"} else None


def _decimal_of(one: dict[str, Any]) -> tuple[int, int] | None:
    precision, scale = one.get("precision"), one.get("scale", 0)
    if one["logicalType"] != "decimal" or one["type"] not in {"bytes", "fixed"}:
        return None
    if not (isinstance(precision, int) and isinstance(scale, int)):
        return None
    return (precision, scale) if 0 < precision <= MAX_PREC and scale >= 0 else None


def _times(numbers: pa.Array, time: pa.DataType) -> pa.Array:
    """Integers as times; none of them is out of the range that Arrow's integers have."""
    if time.bit_width == 64:  # noqa: PLR2004 - bits
        return numbers.cast(pa.int64()).view(time)
    # an int of Avro that is none is no time either
    low, high = pa.scalar(-_INT32 - 1, pa.int64()), pa.scalar(_INT32, pa.int64())
    inside = pc.max_element_wise(numbers.cast(pa.int64()), low, skip_nulls=False)
    return pc.min_element_wise(inside, high, skip_nulls=False).cast(pa.int32()).view(time)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_text(value: str) -> bool:
    """Whether it was UTF-8; bytes that were not stand in it as surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


__all__ = ["Meaning"]
