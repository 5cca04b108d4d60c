"""The times of a table: one column, a day with its clock, numbers of intervals, names of columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...transforms.common.batches import is_text_type
from ...transforms.formats.times import TimeReader
from ..console import listed, percent
from ..errors import CommandError, ExitCode
from .data import SAMPLE, Data, are_numbers, safe
from .files import Rows
from .parts import Question, Times, literal, quoted
from .times import CLOCK_FORMATS, DAY_FORMATS, EPOCHS, TIME_FORMATS, exchanged, has_offsets, text_format
from .words import BEGIN, END, HOUR, PERIOD, SERIES, STAMPS_END, TIME, UPDATE, UTC, is_other_clock

SHOWN = 10
FLAT = "objects and lists, as in {}, are not looked into: make each of their fields a column of its own"
_MIDNIGHT = re.compile(r"\d{4}-\d{2}-\d{2}([ T]00:00:00(\.0+)?(Z|[-+]\d{2}:?\d{2})?)?")
_LETTERS = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d ?[A-Z]{3,4}")
_RANGE = re.compile(r"(.*\d.*?\S) - (\S.*\d.*)")
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?")
_NUMBERED = re.compile(r"\D{0,20}\d{1,3}")
#: Intervals of a day by their number: the usual day, and those on which a clock is set.
_COUNTS = {23: 60, 24: 60, 25: 60, 46: 30, 48: 30, 50: 30, 92: 15, 96: 15, 100: 15}
_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}([.'\u2019 \u00a0\u202f]\d{3})+)(,\d+)?")


class Clock:
    """Finds the times of a table."""

    def __init__(self, rows: Rows, zone: str) -> None:
        self.data, self.rows, self.zone = Data(rows), rows, zone
        self.said = list[tuple[str, str]]()
        self.questions = list[Question]()
        self.decimals = dict[str, str]()
        self.wide = ""  # what the columns of values were named by: times, series, or nothing
        self.other_times: Sequence[Times] = ()

    def fail(self, text: str, code: ExitCode = ExitCode.SETTINGS) -> CommandError:
        """An error about the file."""
        return CommandError(f"{self.rows.path}: {text}", code)

    def _number_columns(self, least: float = 0.5) -> list[str]:
        return [
            name
            for name, texts in self.data.sample.items()
            if name in self.data.columns and are_numbers(texts, self._decimal(name), least)
        ]

    def _decimal(self, name: str) -> str:
        """The mark before decimals in a column: a comma where nothing else fits."""
        if name not in self.decimals:
            texts = [one for one in self.data.sample.get(name, []) if re.search(r"\d", one)]
            commas = [one for one in texts if "," in one]
            points = sum("." in one and "," not in one for one in texts)
            thousands = self.rows.layout.delimiter != ";" and all(
                re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+", one) for one in commas
            )
            is_comma = len(commas) > points and not thousands and all(map(_COMMA.fullmatch, texts))
            self.decimals[name] = "," if is_comma else "."
        return self.decimals[name]

    def _wide_times(self) -> Times | None:
        """A table with a column for each time of a day, or each instant; the time of its cells."""
        data = self.data
        names = list(data.columns)
        clocks = [one for one in names if re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?( ?- ?\d{1,2}:\d\d(:\d\d)?)?", one)]
        fours = [one for one in names if re.fullmatch(r"([01]\d|2[0-4])[0-5]\d", one)]
        instants = [one for one in names if re.match(r"(19|20)\d\d-\d\d-\d\d", one)]
        if len(instants) > 3 and len(instants) >= len(names) / 2:
            data.unpivot(instants, "^(19|20)[0-9][0-9]-[0-9][0-9]-[0-9][0-9]", "stamp_", "reading_")
            self.wide = "times"
            self.said.append(("wide", f"{len(instants):,} columns from {instants[0]} on are a time each"))
            return self._full_time("stamp_")
        minutes = _evenly([int(one[:2]) * 60 + int(one[2:]) for one in fours])
        if minutes and len(fours) > 3:
            clocks, pattern, clock = fours, "^[0-2][0-9][0-5][0-9]$", "clock_[:2] || ':' || clock_[3:]"
        else:
            pattern, clock = "^[0-9]{1,2}:[0-9][0-9]", "clock_"
            minutes = _evenly([int(one.split(":")[0]) * 60 + int(one.split(":")[1][:2]) for one in clocks])
            if any("-" in one for one in clocks):
                clock = "trim(split_part(clock_, '-', 1))"
        if minutes and len(clocks) > 3 and (day := self._day(set(clocks))):
            first = int(re.sub(r"\D", "", clocks[0])[:4])
            data.unpivot(clocks, pattern, "clock_", "reading_")
            self.wide = "times"
            self.said.append(("wide", f"{len(clocks):,} columns from {clocks[0]} on are a time of the day each"))
            if first and re.fullmatch(r"0?0:?00(:00)?", clocks[-1]):
                clock = f"case {clock} when {literal(clocks[-1])} then '24:00' else {clock} end"
            sql = f"day_clock({day.sql}, {clock}, {literal(self.zone)})"
            return replace(day, sql=sql, naive=False, is_day=False, columns=(*day.columns, "clock_"))
        stems = Counter(re.sub(r"\d+$", "", one) for one in names if re.fullmatch(r"[A-Za-z_ ]+\d{1,3}", one))
        stem, count = max(stems.items(), key=lambda pair: pair[1], default=("", 0))
        periods = [one for one in names if re.fullmatch(re.escape(stem) + r"\d{1,3}", one)]
        numbers = [int(one[len(stem) :]) for one in periods]
        is_run = count in _COUNTS and numbers == list(range(numbers[0], numbers[0] + count)) and numbers[0] in (0, 1)
        if is_run and (day := self._day(set(periods))):
            data.unpivot(periods, f"^{re.escape(stem)}[0-9]+$".replace("\\ ", " "), "period_", "reading_")
            self.wide = "times"
            self.said.append(("wide", f"{count} columns from {periods[0]} on are an interval of the day each"))
            number = f"period_[{len(stem) + 1}:]" + (" ::int + 1" if numbers[0] == 0 else "")
            sql = f"elapsed({day.sql}, {number}, interval {_COUNTS[count]} minutes, {literal(self.zone)})"
            return replace(day, sql=sql, naive=False, is_day=False, columns=(*day.columns, "period_"))
        return None

    def _times(self) -> Times:
        data = self.data
        found = {name: one for name in data.columns if (one := self._full_time(name)) is not None}
        names = sorted(found, key=lambda name: self._against(found[name]))
        for name in names:
            if found[name].is_day and (joined := self._with_clock(found[name])) is not None:
                found[name] = joined
        names = sorted(names, key=lambda name: self._against(found[name]))
        if not names:
            numbers = [name for name in self._number_columns() if TIME.search(name)]
            way = "convert the file"
            if numbers:
                named = listed(numbers, SHOWN)
                way = f"write the numbers in {named}, such as days of a spreadsheet, as 2024-03-01 00:15"
            nested = f"{FLAT.format(listed(self.rows.nested, SHOWN))}, or " if self.rows.nested else ""
            shown = [*data.columns, *self.rows.nested]
            raise self.fail(f"none of its columns, {listed(shown, SHOWN)}, looks like a time; {nested}{way}")
        times = found[names[0]]
        if times.is_day and (part := self._unread_clock(times)) is not None:
            raise self.fail(
                f"the column {times.columns[0]} has days, and {part} is no time of the day that can be joined with "
                "them: write whole hours, or HH:MM, or one column with day and time",
                ExitCode.SOURCE,
            )
        if times.said:
            self.said.append(("time", times.said))
        self.other_times = [found[name] for name in names[1:] if not found[name].is_day or found[name].sql]
        others = [one.columns[0] for one in self.other_times if not END.search(one.columns[0])]
        if others:
            what = "where they are those of the readings, write their column for readings.time"
            self.said.append(("other times", f"in {listed(others, SHOWN)}: {what}"))
        return times

    def _against(self, times: Times) -> tuple[bool, ...]:
        """What speaks against a column as the time, the worst first."""
        name = times.columns[0]
        is_part = times.is_day and len(times.columns) == 1 and self._is_part(times)
        is_utc = UTC.search(name) is not None
        return (
            not any(map(TIME.search, times.columns)) and not times.is_day,
            is_part,
            UPDATE.search(name) is not None,
            is_other_clock(name, self.zone),
            is_utc != (self.zone == "UTC"),
            STAMPS_END.search(name) is not None or END.search(name) is not None,
            BEGIN.search(name) is None,
        )

    def _is_part(self, times: Times) -> bool:
        """Whether series have several rows on a day, so that the day is not all of the time."""
        texts = [
            name
            for name in self.data.columns
            if name not in times.columns and not are_numbers(self.data.sample[name], self._decimal(name))
        ]
        texts = [name for name in texts if not TIME.search(name)]
        numbered = [name for name in self.data.columns if SERIES.search(name) and name not in texts]
        return self.data.distinct(times.columns[0], *texts, *numbered) < 0.9 * self.data.count

    def _full_time(self, name: str) -> Times | None:  # noqa: PLR0911 - kinds of times in their order
        """A column as a time, or a day; ``None`` if it looks like neither."""
        data, texts, q = self.data, self.data.sample.get(name, []), quoted(name)
        kind = data.types.get(name)
        if len(texts) < 0.5 * min(data.count, SAMPLE):
            return None
        if kind is not None and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            is_day = all(map(_MIDNIGHT.match, texts)) and all(one[10:19] in ("", " 00:00:00") for one in texts)
            return Times((name,), naive=getattr(kind, "tz", None) is None, is_day=is_day)
        if all(map(_LETTERS.fullmatch, texts)):
            return Times((name,), sql=f"lettered_time({q})", naive=False, said=f"{name} has letters of zones")
        ranges = [match for one in texts if (match := _RANGE.fullmatch(one))]
        if len(ranges) > 0.9 * len(texts):
            form = text_format([one[1] for one in ranges])
            if form is not None and text_format([one[2] for one in ranges], (form,)) is not None:
                part = f"split_part({q}, ' - ', 1)"
                sql = f"try_strptime({part}, {literal(form)})" if form else f"try_cast({part} as timestamp)"
                return Times((name,), sql=sql, said=f"{name} holds two times, a range: its begin is read")
        if are_numbers(texts, ".", 0.9):
            return self._count_since_1970(name, texts)
        formats = ("", *TIME_FORMATS, *DAY_FORMATS)
        form = text_format(texts, formats)
        if form is None:
            return None
        is_day = all(map(_MIDNIGHT.fullmatch, texts)) if form == "" else form in DAY_FORMATS
        other = exchanged(texts, form, (*TIME_FORMATS, *DAY_FORMATS)) if form else None
        return Times((name,), form or None, naive=not has_offsets(texts, form), is_day=is_day, ambiguous=other)

    def _count_since_1970(self, name: str, texts: Sequence[str]) -> Times | None:
        """A column of numbers that are digits of a time, or a count since 1970."""
        numbers = np.array([float(one) for one in texts if re.fullmatch(r"\d+(\.\d+)?", one)])
        if not len(numbers):
            return None
        is_named = TIME.search(name) is not None
        if is_named and (form := text_format(list(texts), ("%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%d"))) is not None:
            if self.data.is_typed(name) and form != "%Y%m%d":
                raise self.fail(
                    f"the times in {name} are digits of a date in a column of numbers, and numbers are read as counts "
                    "since 1970; convert the column to text"
                )
            return None if self.data.is_typed(name) else Times((name,), form, is_day=form == "%Y%m%d")
        if not is_named and not (self.rows.layout.names and name == self.data.columns[0]):
            return None
        units = Counter(next((unit for least, unit in EPOCHS if one >= least), None) for one in numbers.tolist())
        (unit, often), *others = units.most_common()
        if unit is None:
            return None
        if others and others[0][0] in ("s", "ms", "us") and others[0][1] > 0.02 * len(numbers):
            share = percent(1 - often / len(numbers))
            said = f"{name} counts {unit} since 1970, and in {share} of the rows {others[0][0]}"
            return Times((name,), sql=f"epoch_time({quoted(name)})", naive=False, said=said)
        return Times((name,), unit=unit, naive=False)

    def _day(self, without: set[str]) -> Times | None:
        """The column of the day of a wide table, as SQL; its time is a local midnight."""
        for name in sorted(self.data.columns, key=lambda one: not TIME.search(one)):
            if name not in without and (day := self._full_time(name)) is not None and day.sql is None and not day.unit:
                return replace(day, sql=_day_sql(day))
        return None

    def _with_clock(self, day: Times) -> Times | None:
        """A day with the column of its clock, or of the number of an interval."""
        for name in self.data.columns:
            texts = self.data.sample[name]
            if name in day.columns or not texts or not (HOUR.search(name) or PERIOD.search(name)):
                continue
            found = self._of_day_clock(day, name) or self._of_number(day, name) or self._joined(day, name)
            if found is not None:
                return replace(found, columns=(*day.columns, name), is_day=False)
        return None

    def _of_day_clock(self, day: Times, name: str) -> Times | None:
        """A day with a clock that goes to 24:00, or beyond."""
        texts = self.data.sample[name]
        if not all(map(_CLOCK.fullmatch, texts)):
            return None
        hours = self.data.one(f"select max(split_part({safe(name)}, ':', 1)::int) from t")
        if hours < 24:
            return None
        step = min(int(one.split(":")[0]) * 60 + int(one.split(":")[1]) for one in texts)
        sql = f"day_clock({_day_sql(day)}, {quoted(name)}, {literal(self.zone)})"
        if step:
            sql += f" - interval {step} minutes"
            self.said.append(("ends", f"{name} ends at 24:00 and does not begin at 00:00: the ends of intervals"))
        return replace(day, sql=sql, naive=False)

    def _of_number(self, day: Times, name: str) -> Times | None:
        """A day with the number of an interval, from 1."""
        texts = self.data.sample[name]
        if not all(map(_NUMBERED.fullmatch, texts)) or not PERIOD.search(name):
            return None
        number = quoted(name) if all(map(str.isdecimal, texts)) else f"regexp_extract({quoted(name)}, '[0-9]+$')::int"
        low, high = self.data.connection.execute(
            f"select min(x), max(x) from (select regexp_extract({safe(name)}, '[0-9]+$')::int as x from t)"
        ).fetchall()[0]
        if low != 1 or high not in (24, 25, 48, 50, 96, 100):
            return None
        sql = f"elapsed({_day_sql(day)}, {number}, interval {_COUNTS[high]} minutes, {literal(self.zone)})"
        said = f"{name} is the number of an interval of {_COUNTS[high]} minutes, from 1"
        return replace(day, sql=sql, naive=False, said=said)

    def _joined(self, day: Times, name: str) -> Times | None:
        """A day and a time of the day as one text."""
        pairs = list(zip(self._written(day.columns[0]), self._written(name), strict=True))
        joined = [" ".join(one) for one in pairs[:: max(1, len(pairs) // SAMPLE)] if all(one)]
        ends = {""} if day.format else {one[10:] for one, _ in pairs if one}
        if len(ends) > 1 or not day.naive:
            return None
        form = text_format(joined, tuple(f"{day.format or '%Y-%m-%d' + min(ends)} {clock}" for clock in CLOCK_FORMATS))
        return replace(day, format=form) if form else None

    def _written(self, name: str) -> list[str]:
        """All texts of a column as a run joins them."""
        if name in self.data.types and pa.types.is_temporal(self.data.types[name]):
            return [one or "" for one in self.rows.table[name].cast(pa.utf8()).to_pylist()]
        return self.data.texts(name)

    def _unread_clock(self, day: Times) -> str | None:
        """A column by whose name the day has a clock that is not read."""
        named = next((one for one in self.data.columns if one not in day.columns and HOUR.search(one)), None)
        return named if named is not None and self._is_part(day) else None

    def _instants(self, times: Times) -> npt.NDArray[np.int64]:
        """Microseconds since 1970 of the rows, -1 where there is none, times without an offset read as UTC."""
        data = self.data
        if times.sql is not None:
            found = data.table(
                f"select coalesce(epoch_us(try(cast({times.sql} as timestamptz))), -1) as t from t order by line"
            )
            return found["t"].combine_chunks().to_numpy(zero_copy_only=False)
        column: Any
        if not times.format and len(times.columns) == 1 and not self.wide:
            column = self.rows.table[times.columns[0]].combine_chunks()
            if times.unit and is_text_type(column.type):
                column = pa.array(
                    [
                        float(one) if "." in one else int(one) if one.isdecimal() else None
                        for one in data.texts(times.columns[0])
                    ]
                )
        else:
            column = pa.array(
                [" ".join(one) for one in zip(*map(self._written, times.columns), strict=True)], pa.utf8()
            )
        instants, problems = TimeReader(time_format=times.format, time_unit=times.unit or "s").read([column])
        for problem in problems:
            instants = np.where(problem.rows, -1, instants)
        return instants


def _day_sql(day: Times) -> str:
    q = quoted(day.columns[0])
    return f"try_strptime({q}, {literal(day.format)})" if day.format else f"try_cast({q} as date)"


def _evenly(minutes: Sequence[int]) -> bool:
    """Whether some minutes of a day are evenly apart, the last perhaps midnight."""
    steps = {(b - a) % 1440 for a, b in pairwise(minutes)}
    return len(steps) == 1 and 0 not in steps
