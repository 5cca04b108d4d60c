"""Columns of event times to instants: whatever a file calls a time becomes microseconds since the epoch, UTC.

Timestamps, dates, numbers since 1970 and text are read column by column. Stamps without an offset are on the clock of
the settings' time zone (see :mod:`.local_time`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.slots import parse_instant
from ..arrow_tools import pc, truths
from ..rejects import Problem
from .local_time import LocalClock
from .time_patterns import Stamps, TimePattern

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Instants outside are typing errors; inside, no arithmetic on microseconds overflows.
LOWEST_US = parse_instant("1900-01-01")
HIGHEST_US = parse_instant("2201-01-01") - 1

#: Units per second.
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_US = 1_000_000

#: Characters of a part of a time.
_LONGEST = 200

_INTEGER = r"^\s*[+-]?\d{1,18}\s*$"
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


@dataclass(frozen=True)
class TimeReader:
    """Reads the columns of the event time.

    Attributes:
        timezone: zone of stamps without an offset.
        ambiguous: which instant a doubled local time means.
        time_format: strptime format of text; ``None`` for ISO 8601.
        time_unit: unit of numbers since 1970.
    """

    timezone: str = "UTC"
    ambiguous: Literal["earliest", "latest"] = "earliest"
    time_format: str | None = None
    time_unit: str = "s"
    _clock: LocalClock = field(init=False, repr=False)
    _pattern: TimePattern = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pattern = TimePattern.iso() if self.time_format is None else TimePattern.compile(self.time_format)
        object.__setattr__(self, "_clock", LocalClock(self.timezone, self.ambiguous))
        object.__setattr__(self, "_pattern", pattern)

    def read(self, columns: Sequence[pa.Array]) -> tuple[Ints, list[Problem]]:
        """Read one or more columns, which are joined with a blank.

        Args:
            columns: arrays of n rows each.

        Returns:
            Microseconds since the epoch, shape (n,), and the rows without a time; their instants mean nothing.
        """
        column = columns[0] if len(columns) == 1 else _joined(columns)
        stamps = self._read_any(column)
        good = stamps.good
        if column.null_count:
            good = good & truths(pc.is_valid(column))
        utc = stamps.stamp_us
        inside = (utc >= LOWEST_US) & (utc <= HIGHEST_US)
        good = good & inside
        problems: list[Problem] = []
        if not good.all():
            problems.append(Problem(~good, RejectReason.UNPARSABLE_TIME))
            utc = np.where(good, utc, 0)
        naive = ~stamps.zoned
        if self.timezone != "UTC" and naive.any():
            local, skipped = self._clock.to_utc(utc)
            utc = np.where(naive, local, utc)
            skipped &= naive
            if skipped.any():
                problems.append(Problem(skipped, RejectReason.NONEXISTENT_LOCAL_TIME))
        return utc, problems

    def _read_any(self, column: pa.Array) -> Stamps:
        kind = column.type
        if pa.types.is_dictionary(kind):
            return _taken(self._read_any(column.dictionary), column.indices)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._read_text(column.cast(pa.utf8()))
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return self._read_floats(_floats(column))
        if pa.types.is_date(kind):
            column = column.cast(pa.timestamp("ms"))
        if pa.types.is_timestamp(column.type):
            return _stamps(column.view(pa.int64()), column.type.unit, zoned=column.type.tz is not None)
        if pa.types.is_uint64(kind):  # what does not fit is far outside anyway
            column = pc.min_element_wise(column, pa.scalar(np.iinfo(np.int64).max, pa.uint64()), skip_nulls=False)
        if pa.types.is_integer(kind):
            return _stamps(column.cast(pa.int64()), self.time_unit, zoned=True)
        nothing = np.zeros(len(column), dtype=np.bool_)
        return Stamps(np.zeros(len(column), dtype=np.int64), nothing, nothing)

    def _read_floats(self, seconds: npt.NDArray[np.float64]) -> Stamps:
        with np.errstate(over="ignore", invalid="ignore"):
            micros = np.rint(seconds * (_US / _PER_SECOND[self.time_unit]))
            inside = (micros >= LOWEST_US) & (micros <= HIGHEST_US)
        return Stamps(np.where(inside, micros, 0).astype(np.int64), np.ones(len(micros), dtype=np.bool_), inside)

    def _read_text(self, text: pa.Array) -> Stamps:
        if self.time_format is not None:
            # stamps repeat from series to series: the pattern runs once for each
            distinct = text.dictionary_encode()
            return _taken(self._pattern.read(distinct.dictionary), distinct.indices)
        quick = _quick_iso(text)
        if quick is not None:
            return quick
        stamps = self._pattern.read(text)
        integer = _matches(text, _INTEGER)
        number = _matches(text, _NUMBER) & ~integer
        if integer.any():
            # pyarrow reads no plus sign in front of an integer
            digits = pc.utf8_ltrim(pc.utf8_trim_whitespace(_only(text, integer)), "+")
            stamps = _merged(stamps, _stamps(pc.cast(digits, pa.int64()), self.time_unit, zoned=True), integer)
        if number.any():
            floats = _floats(pc.cast(pc.utf8_trim_whitespace(_only(text, number)), pa.float64()))
            stamps = _merged(stamps, self._read_floats(floats), number)
        return stamps


def _quick_iso(text: pa.Array) -> Stamps | None:
    """Arrow's own ISO 8601 parser, where it reads every row; it gives up at the first row it does not know."""
    if text.null_count or not len(text):
        return None
    first = text[0].as_py()
    zoned = first.endswith("Z") or "+" in first or first.count("-") > 2  # noqa: PLR2004 - hyphens of a date
    try:
        stamps = text.cast(pa.timestamp("us", tz="UTC" if zoned else None))
    except pa.ArrowInvalid:
        return None
    return _stamps(stamps.view(pa.int64()), "us", zoned=zoned)


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Columns as one text; a null in any of them makes a null."""
    return pc.binary_join_element_wise(*(_as_text(column) for column in columns), " ", null_handling="emit_null")


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        # a long text is no part of a time, and is not repeated
        each = column.dictionary.cast(pa.utf8())
        short = pc.if_else(pc.less_equal(pc.utf8_length(each), _LONGEST), each, pa.scalar("", pa.utf8()))
        column = short.take(column.indices)
    try:
        return column.cast(pa.utf8())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(column), pa.utf8())


def _stamps(integers: pa.Array, unit: str, *, zoned: bool) -> Stamps:
    """Integers of a unit as stamps."""
    values = (integers.fill_null(0) if integers.null_count else integers).to_numpy(zero_copy_only=False)
    per_second = _PER_SECOND[unit]
    low, high = LOWEST_US * per_second // _US, HIGHEST_US * per_second // _US
    good = (values >= low) & (values <= high)
    if per_second > _US:
        values = values // (per_second // _US)
    elif per_second < _US:
        values = (values if good.all() else np.where(good, values, 0)) * (_US // per_second)
    return Stamps(values, np.full(len(values), zoned, dtype=np.bool_), good)


def _taken(stamps: Stamps, indices: pa.Array) -> Stamps:
    at = (indices.fill_null(0) if indices.null_count else indices).to_numpy(zero_copy_only=False)
    if not len(stamps.good):
        nothing = np.zeros(len(at), dtype=np.bool_)
        return Stamps(np.zeros(len(at), dtype=np.int64), nothing, nothing)
    return Stamps(stamps.stamp_us[at], stamps.zoned[at], stamps.good[at])


def _merged(stamps: Stamps, others: Stamps, rows: Bools) -> Stamps:
    return Stamps(
        np.where(rows, others.stamp_us, stamps.stamp_us),
        np.where(rows, others.zoned, stamps.zoned),
        np.where(rows, others.good, stamps.good),
    )


def _matches(text: pa.Array, expression: str) -> Bools:
    found = pc.match_substring_regex(text, expression)
    return truths(found)


def _only(text: pa.Array, rows: Bools) -> pa.Array:
    return pc.if_else(pa.array(rows), text, pa.scalar(None, pa.utf8()))


def _floats(column: pa.Array) -> npt.NDArray[np.float64]:
    return (
        column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        if pa.types.is_float16(column.type)
        else column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    )
