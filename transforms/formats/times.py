"""Event times of any spelling to microseconds since 1970, UTC.

Timestamps, dates, numbers since 1970 and text are read column by column. A format of strptime's directives becomes one
regular expression for whole Arrow columns, and the calendar is checked in numpy: nothing depends on the process's
locale, nothing raises for a row that does not match, and no Python runs per row.

Stamps without an offset are on the clock of the settings' time zone. A zone's clock changes are looked up once per zone
and year; after that a local time is placed by binary search. A clock set back doubles local times: the settings say
which instant is meant, so the answer never depends on the order of rows. A clock set forward skips local times.

>>> times = TimePattern.compile("%m/%d/%Y %H").read(pa.array(["11/4/2012 1", "2/30/2012 1"]))
>>> int(times.stamp_us[0]), times.good.tolist(), times.zoned.tolist()
(1351990800000000, [True, False], [False, False])
>>> clock = LocalClock("America/Vancouver")
>>> local = np.array(["2012-11-04T01:00", "2013-03-10T02:00"], "datetime64[us]").astype(np.int64)
>>> utc, skipped = clock.to_utc(local)
>>> np.datetime64(int(utc[0]), "us").item().isoformat(), skipped.tolist()
('2012-11-04T08:00:00', [False, True])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.slots import MINUTE_US, offsets_between
from ..common.batches import HIGHEST_US, LOWEST_US, Bools, Ints, Problem, as_utf8, is_text_type, pc, truths

_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTHS = tuple(name[:3] for name in _MONTH_NAMES)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_ZONE = r"(?P<zone>[Zz]|[+-]\d{2}(?::?\d{2})?)"
_DIRECTIVES = {
    "Y": r"(?P<year>\d{4})",
    "y": r"(?P<year2>\d{2})",
    "m": r"(?P<month>\d{1,2})",
    "b": f"(?P<month_short>{'|'.join(_MONTHS)})",
    "B": f"(?P<month_name>{'|'.join(_MONTH_NAMES)})",
    "d": r"(?P<day>[ \d]?\d)",
    "H": r"(?P<hour>\d{1,2})",
    "I": r"(?P<hour12>\d{1,2})",
    "p": r"(?P<half>am|pm)",
    "M": r"(?P<minute>\d{1,2})",
    "S": r"(?P<second>\d{1,2})",
    "f": r"(?P<fraction>\d{1,9})",
    "z": _ZONE,
    "a": f"(?:{'|'.join(day[:3] for day in _DAYS)})",
    "A": f"(?:{'|'.join(_DAYS)})",
    "%": "%",
}
_SHORT = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y"}

_ISO = (
    r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})"
    r"(?:[Tt ](?P<hour>\d{2})(?::?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    rf" ?{_ZONE}?)?"
)

#: Two-digit years from here on lie in the 20th century, as in POSIX.
_PIVOT = 69


class Stamps(NamedTuple):
    """Calendar times."""

    stamp_us: Ints  # microseconds since 1970; UTC where the time had an offset, else on the local clock, shape (n,)
    zoned: Bools  # which had an offset, shape (n,)
    good: Bools  # which are times, shape (n,); the others' stamps mean nothing

    def take(self, indices: pa.Array) -> Stamps:
        """Those of rows, by numbers that may be null."""
        at = (indices.fill_null(0) if indices.null_count else indices).to_numpy(zero_copy_only=False)
        if not len(self.good):
            nothing = np.zeros(len(at), dtype=np.bool_)
            return Stamps(nothing.astype(np.int64), nothing, nothing)
        return Stamps(self.stamp_us[at], self.zoned[at], self.good[at])


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A compiled format."""

    expression: str

    @classmethod
    def iso(cls) -> TimePattern:
        """ISO 8601 calendar dates and date-times, with or without an offset."""
        return cls(rf"^\s*{_ISO}\s*$")

    @classmethod
    def compile(cls, format_: str) -> TimePattern:
        """Read a strptime format; month and day names are English, and a blank stands for any number of them.

        Raises:
            ValueError: a directive is unknown or comes twice, or the format does not determine a date.
        """
        text = re.sub(r"%([FTRD])", lambda match: _SHORT[match[1]], format_)
        parts: list[str] = []
        for match in re.finditer(r"%(?P<directive>.?)|(?P<blank>\s+)|(?P<other>[^%\s]+)", text, re.DOTALL):
            if match["blank"] is not None:
                parts.append(r"\s+")
            elif match["other"] is not None:
                parts.append(re.escape(match["other"]))
            elif match["directive"] in _DIRECTIVES:
                parts.append(_DIRECTIVES[match["directive"]])
            else:
                known = " ".join(f"%{one}" for one in [*_DIRECTIVES, *_SHORT])
                raise ValueError(f"{format_!r} holds %{match['directive']}, which is not one of {known}")
        expression = rf"(?i)^\s*{''.join(parts)}\s*$"
        groups = re.findall(r"\(\?P<(\w+)>", expression)
        named = set(groups)
        twice = sorted({name for name in groups if groups.count(name) > 1})
        if twice:
            raise ValueError(f"{format_!r} names the {twice[0].split('_')[0]} twice; keep one")
        months, years, hours = (
            named & {"month", "month_short", "month_name"},
            named & {"year", "year2"},
            {"hour", "hour12"},
        )
        if len(years) != 1 or len(months) != 1 or "day" not in named or hours <= named:
            raise ValueError(f"{format_!r} does not say one date; use %Y with %m and %d (or %b, %B)")
        if ("hour12" in named) != ("half" in named):
            raise ValueError(f"{format_!r} needs both %I and %p, or %H")
        return cls(expression)

    def read(self, text: pa.Array) -> Stamps:
        """Read texts; nulls and texts that do not match are not good."""
        rows = len(text)
        found = pc.extract_regex(text, self.expression)
        good = truths(pc.is_valid(found))
        part = {field.name: pc.struct_field(found, [i]) for i, field in enumerate(found.type)}

        def number(name: str, default: int = 0) -> Ints:
            return _integers(part[name], default) if name in part else np.full(rows, default, dtype=np.int64)

        if "year" in part:
            year = number("year")
        else:
            short = number("year2")
            year = np.where(short < _PIVOT, 2000 + short, 1900 + short)
        days, inside = _by_month(year, _month(part, rows), number("day"))
        hour = number("hour")
        inside &= hour < 24  # noqa: PLR2004 - hours of a day
        if "hour12" in part:
            hour12 = number("hour12")
            inside &= (hour12 >= 1) & (hour12 <= 12)  # noqa: PLR2004 - hours of half a day
            hour = hour12 % 12 + 12 * truths(pc.equal(pc.utf8_lower(part["half"]), "pm"))
        minute, second = number("minute"), number("second")
        inside &= (minute < 60) & (second < 60)  # noqa: PLR2004 - minutes and seconds; leap seconds have no instant
        micros = number("fraction") if "fraction" not in part else _fraction(part["fraction"])
        stamp = ((days * 24 + hour) * 60 + minute) * MINUTE_US + second * 1_000_000 + micros
        zoned = np.zeros(rows, dtype=np.bool_)
        if "zone" in part:
            offset, zoned, legal = _offset(part["zone"])
            stamp -= offset
            inside &= legal
        return Stamps(stamp, zoned, good & inside)


def _integers(text: pa.Array, default: int = 0) -> Ints:
    """Digits as integers; the default where the group took no part."""
    text = pc.utf8_trim_whitespace(pc.fill_null(text, ""))
    digits = pc.if_else(pc.equal(text, ""), str(default), text)
    return pc.cast(digits, pa.int64()).to_numpy(zero_copy_only=False).copy()


def _fraction(text: pa.Array) -> Ints:
    return _integers(pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(text, ""), 9, "0"), 0, 6))


def _month(part: dict[str, pa.Array], rows: int) -> Ints:
    if "month" in part:
        return _integers(part["month"])
    name, names = ("month_short", _MONTHS) if "month_short" in part else ("month_name", _MONTH_NAMES)
    at = pc.index_in(pc.utf8_lower(part[name]), value_set=pa.array(names))
    return pc.fill_null(at, -1).to_numpy(zero_copy_only=False).astype(np.int64).reshape(rows) + 1


def _by_month(year: Ints, month: Ints, day: Ints) -> tuple[Ints, Bools]:
    inside = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)  # noqa: PLR2004 - months of a year
    first = (np.where(inside, year, 1970) - 1970) * 12 + np.where(inside, month, 1) - 1
    start = first.astype("M8[M]").astype("M8[D]").astype(np.int64)
    length = (first + 1).astype("M8[M]").astype("M8[D]").astype(np.int64) - start
    return start + day - 1, inside & (day <= length)


def _offset(zone: pa.Array) -> tuple[Ints, Bools, Bools]:
    """Offsets in microseconds, which texts had one, and which are offsets of a real clock."""
    text = pc.fill_null(zone, "")
    zoned = truths(pc.not_equal(text, ""))
    digits = pc.replace_substring(pc.replace_substring_regex(text, "^[Zz+-]", ""), ":", "")
    digits = pc.utf8_rpad(digits, 4, "0")
    hours = _integers(pc.utf8_slice_codeunits(digits, 0, 2))
    minutes = _integers(pc.utf8_slice_codeunits(digits, 2, 4))
    sign = np.where(truths(pc.starts_with(text, "-")), -1, 1)
    legal = (hours < 24) & (minutes < 60)  # noqa: PLR2004 - hours of a day, minutes of an hour
    return sign * (hours * 60 + minutes) * MINUTE_US, zoned, legal


@lru_cache(maxsize=256)
def _periods(name: str, first_year: int, last_year: int) -> tuple[Ints, Ints, Ints]:
    """The times without a clock change in some years: what local is more than UTC, first local time, and local end."""
    limits, offset_us = offsets_between(name, first_year - 1, last_year + 1)
    far = np.iinfo(np.int64).max
    return (
        offset_us,
        np.concatenate(([-far], limits + offset_us[1:])),
        np.concatenate((limits + offset_us[:-1], [far])),
    )


@dataclass(frozen=True, slots=True)
class LocalClock:
    """The wall clock of a zone."""

    timezone: str
    ambiguous: Literal["earliest", "latest"] = "earliest"

    def to_utc(self, local_us: Ints) -> tuple[Ints, Bools]:
        """Read local times.

        Args:
            local_us: microseconds since 1970 on the zone's wall clock, within the years 2 to 9998, shape (n,).

        Returns:
            Microseconds since the epoch, UTC, and which local times were skipped by a clock change (their instant
            means nothing), each of shape (n,).
        """
        if self.timezone == "UTC" or not len(local_us):
            return local_us, np.zeros(len(local_us), dtype=np.bool_)
        offsets, starts, stops, early, late = self._around(local_us)
        at = early if self.ambiguous == "earliest" else late
        return local_us - offsets[at], (local_us < starts[at]) | (local_us >= stops[at])

    def doubled(self, local_us: Ints) -> tuple[Bools, Ints, Ints]:
        """Which local times have two instants, the later one of each, and the number of its clock change; all (n,)."""
        if self.timezone == "UTC" or not len(local_us):
            return np.zeros(len(local_us), dtype=np.bool_), local_us, local_us
        offsets, starts, _, early, late = self._around(local_us)
        # a period is named by its beginning, because its number depends on which years are looked up
        return late > early, local_us - offsets[late], starts[late]

    def _around(self, local_us: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The periods around some times, and the first and last one that each may be in."""
        ends = np.array([local_us.min(), local_us.max()]).astype("M8[us]").astype("M8[Y]").astype(int) + 1970
        offsets, starts, stops = _periods(self.timezone, *ends.tolist())
        early = np.searchsorted(stops, local_us, side="right")
        return offsets, starts, stops, early, np.searchsorted(starts, local_us, side="right") - 1


#: Of rows with a doubled local time which are the second of the two: by row, stamp and clock change.
Order = Callable[[Ints, Ints, Ints], Bools]

#: Units per second.
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_US = 1_000_000

#: Characters of a part of a time.
_LONGEST = 200

#: Up to 9 * 10**18, which fits 64 bits: nanoseconds have nineteen digits.
_INTEGER = r"^\s*[+-]?(\d{1,18}|[1-8]\d{18})\s*$"
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


@dataclass(frozen=True)
class TimeReader:
    """Reads the columns of the event time."""

    timezone: str = "UTC"  # zone of stamps without an offset
    # which instant a doubled local time means; where the order of rows says it, the earliest unless :meth:`read` has
    # the order
    ambiguous: Literal["earliest", "latest", "in-order"] = "earliest"
    time_format: str | None = None  # strptime format of text; ``None`` for ISO 8601
    time_unit: str = "s"
    _clock: LocalClock = field(init=False, repr=False)
    _pattern: TimePattern = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pattern = TimePattern.iso() if self.time_format is None else TimePattern.compile(self.time_format)
        object.__setattr__(
            self, "_clock", LocalClock(self.timezone, "latest" if self.ambiguous == "latest" else "earliest")
        )
        object.__setattr__(self, "_pattern", pattern)

    def read(self, columns: Sequence[pa.Array], order: Order | None = None) -> tuple[Ints, list[Problem]]:
        """Read one or more columns, which are joined with a blank.

        Args:
            columns: arrays of n rows each.
            order: says of rows with a doubled time which are the second of the two, by the order of rows.

        Returns:
            Microseconds since the epoch, shape (n,), and the rows without a time; their instants mean nothing.
        """
        stamp_us, zoned, good = self._stamps_of(columns[0] if len(columns) == 1 else _joined(columns))
        local = np.where(good, stamp_us, 0)
        utc, skipped = local, np.zeros(len(local), dtype=np.bool_)
        if self.timezone != "UTC" and not zoned.all():
            utc, skipped = self._clock.to_utc(local)
            utc, skipped = np.where(zoned, local, utc), skipped & ~zoned
        if order is not None:
            doubled, later, change = self._clock.doubled(local)
            rows = np.flatnonzero(doubled & good & ~zoned)
            if len(rows):
                second = rows[order(rows, local[rows], change[rows])]
                utc[second] = later[second]
        found = ((~good, RejectReason.UNPARSABLE_TIME), (skipped, RejectReason.NONEXISTENT_LOCAL_TIME))
        return utc, [Problem(rows, reason) for rows, reason in found if rows.any()]

    def _stamps_of(self, column: pa.Array) -> Stamps:
        stamps = self._read_any(column)
        good = stamps.good & (stamps.stamp_us >= LOWEST_US) & (stamps.stamp_us <= HIGHEST_US)
        return stamps._replace(good=good & truths(pc.is_valid(column)) if column.null_count else good)

    def _read_any(self, column: pa.Array) -> Stamps:
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self._stamps_of(column.dictionary).take(column.indices)
        if is_text_type(kind):
            return self._read_text(as_utf8(column))
        if pa.types.is_date(kind):
            column = column.cast(pa.timestamp("ms"))
        if pa.types.is_timestamp(column.type):
            return _stamps(column.view(pa.int64()), column.type.unit, zoned=column.type.tz is not None)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return self._read_numbers(column)
        nothing = np.zeros(len(column), dtype=np.bool_)
        return Stamps(nothing.astype(np.int64), nothing, nothing)

    def _read_numbers(self, column: pa.Array) -> Stamps:
        """Numbers since 1970."""
        if pa.types.is_uint64(column.type):  # what does not fit is far outside anyway
            column = pc.min_element_wise(column, pa.scalar(np.iinfo(np.int64).max, pa.uint64()), skip_nulls=False)
        if pa.types.is_integer(column.type):
            return _stamps(column.cast(pa.int64()), self.time_unit, zoned=True)
        is_half = pa.types.is_float16(column.type)
        seconds = (column if is_half else column.cast(pa.float64(), safe=False)).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore", invalid="ignore"):
            micros = np.rint(seconds.astype(np.float64) * (_US / _PER_SECOND[self.time_unit]))
            inside = (micros >= LOWEST_US) & (micros <= HIGHEST_US)
        return Stamps(np.where(inside, micros, 0).astype(np.int64), np.ones(len(micros), dtype=np.bool_), inside)

    def _read_text(self, text: pa.Array) -> Stamps:
        if self.time_format is not None:
            # stamps repeat from series to series: the pattern runs once for each
            distinct = text.dictionary_encode()
            return self._pattern.read(distinct.dictionary).take(distinct.indices)
        quick = _quick_iso(text)
        if quick is not None:
            return quick
        stamps = self._pattern.read(text)
        integer = truths(pc.match_substring_regex(text, _INTEGER))
        number = truths(pc.match_substring_regex(text, _NUMBER)) & ~integer
        for rows, kind in ((integer, pa.int64()), (number, pa.float64())):
            if rows.any():
                # pyarrow reads no plus sign in front of an integer
                digits = pc.utf8_ltrim(pc.utf8_trim_whitespace(pc.if_else(pa.array(rows), text, None)), "+")
                others = self._read_numbers(pc.cast(digits, kind))
                stamps = Stamps(*(np.where(rows, one, other) for one, other in zip(others, stamps, strict=True)))
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
    values = (integers.fill_null(0) if integers.null_count else integers).to_numpy(zero_copy_only=False)
    per_second = _PER_SECOND[unit]
    low, high = LOWEST_US * per_second // _US, HIGHEST_US * per_second // _US
    good = (values >= low) & (values <= high)
    if per_second > _US:
        values = values // (per_second // _US)
    elif per_second < _US:
        values = (values if good.all() else np.where(good, values, 0)) * (_US // per_second)
    return Stamps(values, np.full(len(values), zoned, dtype=np.bool_), good)
