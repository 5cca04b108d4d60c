"""Text to calendar times by a pattern: strptime's directives and ISO 8601, for whole Arrow columns at once.

A format becomes one regular expression whose groups are read as integers; the calendar is then checked in numpy.
Nothing depends on the process's locale, nothing raises for a row that does not match, and no Python runs per row.

>>> times = TimePattern.compile("%m/%d/%Y %H").read(pa.array(["11/4/2012 1", "2/30/2012 1"]))
>>> int(times.stamp_us[0]), times.good.tolist(), times.zoned.tolist()
(1351990800000000, [True, False], [False, False])
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrow_tools import pc, truths

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
    "j": r"(?P<day_of_year>\d{1,3})",
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
_MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Stamps:
    """Calendar times read from text.

    Attributes:
        stamp_us: microseconds since 1970; UTC where the text had an offset, else on the local clock, shape (n,).
        zoned: which texts had an offset, shape (n,).
        good: which texts are times, shape (n,); the others' stamps mean nothing.
    """

    stamp_us: Ints
    zoned: Bools
    good: Bools


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A compiled format.

    Attributes:
        expression: regular expression of a whole text, in RE2's syntax, with named groups.
    """

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
        by_month = len(months) == 1 and "day" in named
        if len(years) != 1 or by_month == ("day_of_year" in named) or len(months) > 1 or hours <= named:
            raise ValueError(f"{format_!r} does not say one date; use %Y with %m and %d (or %b, %B), or %Y with %j")
        if ("hour12" in named) != ("half" in named):
            raise ValueError(f"{format_!r} needs both %I and %p, or %H")
        return cls(expression)

    def read(self, text: pa.Array) -> Stamps:
        """Read texts; nulls and texts that do not match are not good.

        Args:
            text: strings, shape (n,).
        """
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
        if "day_of_year" in part:
            days, inside = _by_day_of_year(year, number("day_of_year"))
        else:
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
        stamp = ((days * 24 + hour) * 60 + minute) * _MINUTE_US + second * 1_000_000 + micros
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
    """Digits after the point as microseconds, cut off after the sixth."""
    return _integers(pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(text, ""), 9, "0"), 0, 6))


def _month(part: dict[str, pa.Array], rows: int) -> Ints:
    if "month" in part:
        return _integers(part["month"])
    name, names = ("month_short", _MONTHS) if "month_short" in part else ("month_name", _MONTH_NAMES)
    at = pc.index_in(pc.utf8_lower(part[name]), value_set=pa.array(names))
    return pc.fill_null(at, -1).to_numpy(zero_copy_only=False).astype(np.int64).reshape(rows) + 1


def _by_month(year: Ints, month: Ints, day: Ints) -> tuple[Ints, Bools]:
    """Days since 1970 of a date, and whether there is such a date."""
    inside = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)  # noqa: PLR2004 - months of a year
    first = (np.where(inside, year, 1970) - 1970) * 12 + np.where(inside, month, 1) - 1
    start = first.astype("M8[M]").astype("M8[D]").astype(np.int64)
    length = (first + 1).astype("M8[M]").astype("M8[D]").astype(np.int64) - start
    return start + day - 1, inside & (day <= length)


def _by_day_of_year(year: Ints, day: Ints) -> tuple[Ints, Bools]:
    """The same from the number of the day in its year."""
    inside = (year >= 1) & (day >= 1)
    first = np.where(inside, year, 1970) - 1970
    start = first.astype("M8[Y]").astype("M8[D]").astype(np.int64)
    length = (first + 1).astype("M8[Y]").astype("M8[D]").astype(np.int64) - start
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
    return sign * (hours * 60 + minutes) * _MINUTE_US, zoned, legal
