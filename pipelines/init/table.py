"""Rows of files in DuckDB: which columns are numbers, rows of their own, or times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ...transforms.common.batches import is_text_type
from ..console import listed, percent
from ..errors import CommandError, ExitCode
from .files import Rows
from .times import CLOCKS, DAYS, DIGITS, EPOCHS, FORMATS
from .words import BEGIN, CLOCK, END, LOCAL, PARTS, PERIOD, SERIES, SHOWN, TIME, UPDATE, UTC, VALUE, literal, quoted

_ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:?\d\d(:?\d\d([.,]\d+)?)?)?( ?(Z|[-+]\d\d(:?\d\d)?))?)?")
_OFFSET = re.compile(r"(Z|[-+]\d\d(:?\d\d)?)$")
_MIDNIGHT = re.compile(r"\d{4}-\d\d-\d\d([T ]00:00:00(\.0+)?Z?)?")
_LETTERS = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d ?[A-Z]{3,4}")
_HOURS = re.compile(r"\d{1,2}:\d\d(:\d\d)?")
#: Minutes of the intervals of a day by their number: the usual day, and those on which a clock is set.
_COUNTS = {23: 60, 24: 60, 25: 60, 46: 30, 48: 30, 50: 30, 92: 15, 96: 15, 100: 15}
#: Columns that are made of names of columns, of which shape, and what these are.
_NAMED = (
    ("stamp_", r"(19|20)\d\d-\d\d-\d\d.*", "a time"),
    ("clock_", r"\d{1,2}:\d\d(:\d\d)?", "a time of the day"),
    ("clock_", r"([01]\d|2[0-4])[0-5]\d", "a time of the day"),
)
#: Marks between thousands and before decimals, the usual first, and what numbers with them are.
_MARKS = (
    ("", "."),
    ("", ","),
    (".", ","),
    (",", "."),
    ("'", "."),
    ("\u2019", "."),
    (" ", ","),
    ("\xa0", ","),
    (" ", "."),
)
_PLAIN, _GROUPED = r"[-+]?(\d+({1}\d*)?|{1}\d+)([eE][-+]?\d+)?", r"[-+]?(\d+|[1-9]\d{{0,2}}({0}\d{{3}})+)({1}\d*)?"
_NUMBERS = {pair: re.compile((_GROUPED if pair[0] else _PLAIN).format(*map(re.escape, pair))) for pair in _MARKS}

#: What helps where rows have no time.
_NO_TIME = (
    "where rows follow each other at a known interval, add a column of times, the begin of the recording plus the "
    "row's number times the interval, such as 2024-03-01T00:01Z"
)


@dataclass(frozen=True, slots=True)
class Times:
    """The time of the rows: columns as a run reads them, and as SQL."""

    columns: tuple[str, ...]
    sql: str  # of the statement
    instant: str = ""  # the same as a time, of UTC where it has no offset, if the run makes it of text
    plain: dict[str, str] | None = None  # further settings of plain columns; none where they do not do
    naive: bool = True
    is_day: bool = False
    form: str = ""
    other: tuple[str, bool] | None = None  # the format with day and month exchanged, and whether nothing tells


def most(pattern: str | re.Pattern[str], texts: Sequence[str]) -> bool:
    """Whether nearly all of some texts are so; a damaged line here and there is a reject."""
    return sum(re.fullmatch(pattern, one) is not None for one in texts) > 0.9 * len(texts)


class Table:
    """The first rows of files, in the table ``t``."""

    def __init__(self, rows: Rows, connection: Any, zone: str) -> None:
        self.rows, self.connection, self.zone, self.relation = rows, connection, zone, rows.relation
        self.columns = [one for one in rows.table.column_names if one != "filename"]
        self.wide = ""  # the column that names of columns were made of
        self.cells = ""  # these columns, in words
        self.made = dict[str, str]()  # columns that the statement makes otherwise
        self.said = list[tuple[str, str]]()
        self.others = dict[str, Times]()  # further times
        self.sample = dict[str, list[str]]()
        self.marks = dict[str, tuple[tuple[str, str], float]]()  # of numbers, and which share of the texts are some
        lines = pa.array(range(rows.table.num_rows), pa.int64())
        connection.register("given", rows.table.append_column("line", lines))
        connection.execute("create table t as select * from given")

    @property
    def nested(self) -> str:
        """What to do about objects and lists; nothing where there are none."""
        shown = listed(self.rows.nested, SHOWN)
        what = f"objects and lists, as in {shown}, are not looked into: make each of their fields a column of its own"
        return what if self.rows.nested else ""

    def fail(self, text: str, code: ExitCode = ExitCode.SETTINGS) -> CommandError:
        """An error about the file."""
        return CommandError(f"{self.rows.path}: {text}", code)

    def all(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.connection.execute(text).fetchall()

    def one(self, text: str) -> Any:
        """A single value."""
        return self.all(f"select {text}")[0][0]

    def profile(self) -> None:
        """Take a sample of the rows, and see which columns are numbers."""
        step = max(1, self.one("count(*) from t") // min(2_000, max(200, 400_000 // max(1, len(self.columns)))))
        table = self.connection.sql(f"select * from t where line % {step} = 0").to_arrow_table()
        self.count = table.num_rows
        self.sample = {name: [one for one in table[name].to_pylist() if one is not None] for name in self.columns}
        for name, texts in self.sample.items():
            few = texts[:: max(1, len(texts) // 500)]
            tried = _MARKS if self.is_text(name) else _MARKS[:1]
            shares = {pair: sum(map(bool, map(_NUMBERS[pair].fullmatch, few))) / max(1, len(few)) for pair in tried}
            if self.rows.options.get("delimiter") == ";" and any("," in one for one in few):
                shares.pop(("", "."), None)
            best = max(shares, key=lambda pair: shares[pair])
            self.marks[name] = best, shares[best]

    def is_text(self, name: str) -> bool:
        """Whether a column is text in the files."""
        kind = self.rows.types.get(name, pa.utf8())
        return is_text_type(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind)

    def sql(self, name: str) -> str:
        """A column in the statement, as text."""
        return self.made.get(name, quoted(name) + ("" if self.is_text(name) else "::varchar"))

    def is_number(self, name: str, least: float = 0.6) -> bool:
        """Whether so many of the texts of a column are numbers."""
        return bool(self.sample[name]) and self.marks[name][1] >= least

    def has_fractions(self, name: str) -> bool:
        """Whether many of the numbers of a column have decimals, of names of meters but zeros."""
        texts = [one.partition(self.marks[name][0][1])[2] for one in self.sample[name]]
        texts = [one for one in texts if one and (one.strip("0") or not SERIES.search(name))]
        return len(texts) > 0.2 * len(self.sample[name])

    def distinct(self, *names: str) -> int:
        """How many different rows some columns have."""
        return self.one(f"count(*) from (select distinct {', '.join(map(quoted, names))} from t)")

    def unpivot(self, columns: Sequence[str], pattern: str, name: str, said: str) -> None:
        """Make a row of each cell of some columns."""
        cells = f"(unpivot t on {', '.join(map(quoted, columns))} into name {name} value reading_)"
        self.connection.execute(f"create table w as select * exclude line, row_number() over () as line from {cells}")
        self.connection.execute("drop table t; alter table w rename to t")
        alike = [one for one in self.columns if re.search(pattern, one)] == list(columns)
        of = f"columns({literal(pattern)})" if alike else ", ".join(map(quoted, columns))
        self.relation, self.wide = f"(unpivot {self.relation} on {of} into name {name} value reading_)", name
        self.columns = [one for one in self.columns if one not in columns] + [name, "reading_"]
        self.cells = f"{len(columns):,} columns from {columns[0]} on"
        self.said.append(("wide", f"{self.cells} are {said} each"))
        self.profile()

    def unpivot_times(self) -> None:
        """Make rows of columns whose names are times, clocks, or numbers of the intervals of a day."""
        stems = Counter(re.sub(r"\d+$", "", one) for one in self.columns if re.fullmatch(r"[A-Za-z_ ]+\d{1,3}", one))
        shapes = [
            *_NAMED,
            *(("period_", rf"{re.escape(one)}\d+", "an interval") for one in stems if stems[one] in _COUNTS),
        ]
        for name, shape, said in shapes:
            columns = [one for one in self.columns if re.fullmatch(shape, one)]
            if len(columns) < 4 or (name == "stamp_" and len(columns) < len(self.columns) / 2):
                continue
            numbers = [[int(part) for part in re.findall(r"\d\d?", one)] for one in columns]
            at = [one[0] * 60 + one[1] if name == "clock_" else one[-1] for one in numbers]
            steps = {(b - a) % 1440 for a, b in pairwise(at)}
            if name != "stamp_" and (
                len(steps) > 1 or 0 in steps or (name == "period_" and (at[0] > 1 or steps != {1}))
            ):
                continue
            self.unpivot(columns, f"^{shape}$".replace("\\ ", " "), name, said)
            if name == "clock_" and at[0] and not at[-1]:
                last = literal(columns[-1])
                self.connection.execute(f"update t set clock_ = '24:00' where clock_ = {last}")
                self.made["clock_"] = f"case clock_ when {last} then '24:00' else clock_ end"
                self.profile()
            return

    def unpivot_series(self, times: Times) -> None:
        """Make rows of columns of numbers that have one name but for its digits: a series each.

        Beside three of them, which may be phases, a value is that of one series; beside more it is a sum of them, or
        another quantity.
        """
        others = [name for name in self.columns if name not in times.columns and self.sample[name]]
        if not others or not all(map(self.is_number, others)):
            return  # of a name, most likely
        stem, count = Counter(re.sub(r"\d+", "#", name) for name in others).most_common(1)[0]
        columns = [name for name in others if re.sub(r"\d+", "#", name) == stem]
        beside, word = [name for name in others if name not in columns], re.sub(r"[\W_#]+$", "", stem)
        named = SERIES.search(word) is not None
        fewest = 2 if named and not beside else max(3, len(beside) + 1, 3 + any(map(VALUE.search, beside)))
        if "#" in stem and count >= fewest and (named or not (PARTS.search(word) or (beside and count < 6))):
            pattern = "^" + "[0-9]+".join(map(re.escape, stem.split("#"))).replace("\\ ", " ") + "$"
            self.unpivot(columns, pattern, "series_", "a series")
            if beside:
                self.said.append(("not used", f"columns of none of the series: {listed(beside, SHOWN)}"))

    def form_of(
        self, texts: Sequence[str], forms: Sequence[str] = FORMATS
    ) -> tuple[str, tuple[str, bool] | None] | None:
        """The format of some texts; and that with day and month exchanged where no text tells, and whether spans do.

        The days of two weeks, taken for months, are spread over the year: the times lie closer together where the order
        is right.
        """
        tried = ", ".join(
            f"avg(coalesce(year({one}) between 1970 and 2199, false)::int), date_diff('day', min({one}), max({one}))"
            for one in (f"try_strptime(x, {literal(form)})::timestamp" for form in forms)
        )
        few = list(texts[:: max(1, len(texts) // 300)])
        row = self.connection.execute(f"select {tried} from unnest($1) u(x)", [few]).fetchall()[0]
        fits = [(form, row[2 * at + 1]) for at, form in enumerate(forms) if (row[2 * at] or 0) > 0.95]
        if not fits:
            return None
        first, span = fits[0]
        swapped = re.sub("%[dm]", lambda part: {"%d": "%m", "%m": "%d"}[part[0]], first)
        days = dict(fits).get(swapped) if swapped != first else None
        if days is None:
            return first, None
        is_open = min(span, days) * 2 >= max(span, days)
        return (swapped, (first, is_open)) if days < span else (first, (swapped, is_open))

    def time_of(self, name: str) -> Times | None:
        """A column as a time, or a day; ``None`` if it looks like neither."""
        texts, q = self.sample[name], self.sql(name)
        if not texts or len(texts) < 0.5 * self.count:
            return None
        if most(_ISO, texts):
            naive = not any(_OFFSET.search(one[10:]) for one in texts if _ISO.fullmatch(one))
            is_day, form = most(_MIDNIGHT, texts), "%Y-%m-%d" if most(r".{10}", texts) else ""
            return Times((name,), quoted(name), f"instant({q})", {}, naive, is_day, form)
        if most(_LETTERS, texts):
            return Times((name,), f"lettered_time({q})", naive=False)
        if most(r".* - .*", texts):
            found = self.form_of([one.split(" - ")[0] for one in texts])
            return found and Times(
                (name,), f"try_strptime(split_part({q}, ' - ', 1), {literal(found[0])})", form=found[0]
            )
        if self.is_number(name, 0.9) and self.marks[name][0][0] == "" and not any(" " in one for one in texts):
            return self._of_digits(name, texts)
        found = None if self.is_number(name, 0.9) else self.form_of(texts)
        return None if found is None else self._of_form(name, *found)

    def _of_form(self, name: str, form: str, other: tuple[str, bool] | None = None) -> Times:
        plain = {"time_format": form} if self.is_text(name) else None
        sql = f"try_strptime({self.sql(name)}, {literal(form)})"
        return Times((name,), sql, "", plain, "%z" not in form, form in DAYS, form, other)

    def _of_digits(self, name: str, texts: Sequence[str]) -> Times | None:
        """A column of numbers that are digits of a time, or a count since 1970."""
        is_named = TIME.search(name) is not None or "names" in self.rows.options
        if is_named and (form := self.form_of(texts, DIGITS)) is not None:
            return self._of_form(name, form[0])
        if not is_named:
            return None
        sizes = (float(one) for one in texts if re.fullmatch(r"\d+(\.\d+)?", one))
        units = Counter(next((unit for least, unit in EPOCHS if one >= least), "") for one in sizes).most_common()
        if not units or not units[0][0]:
            return None
        q, unit = quoted(name), units[0][0]
        sql = f"make_timestamptz(try_cast({q} as bigint) // 1000)" if unit == "ns" else f"epoch_time({q})"
        if units[1:] and units[1][1] > 0.02 * len(texts):
            share = percent(1 - units[0][1] / len(texts))
            self.said.append(("time", f"{name} counts {unit} since 1970, and in {share} of the rows {units[1][0]}"))
            return Times((name,), sql, naive=False)
        return Times((name,), sql, "", {"time_unit": unit}, naive=False)

    def with_clock(self, day: Times) -> Times | None:
        """A day with the column of its clock, or of the number of an interval."""
        date = day.sql if day.plain != {} else f"try_cast({quoted(day.columns[0])} as date)"
        text, zone = self.sql(day.columns[0]) if day.form else f"{date}::varchar", literal(self.zone)
        for name in self.columns:
            texts, q = self.sample[name], self.sql(name)
            if name in day.columns or not texts or not (CLOCK.search(name) or PERIOD.search(name)):
                continue
            columns = (*day.columns, name)
            if most(_HOURS, texts):
                minutes = [
                    int(one[:-3]) * 60 + int(one[-2:])
                    for one in (text[:5].rstrip(":") for text in texts)
                    if _HOURS.fullmatch(one)
                ]
                if max(minutes) >= 1440:
                    least = f" - interval {min(minutes)} minutes" if min(minutes) else ""
                    if least:
                        self.said.append(("ends", f"{name} goes to 24:00 and not from 00:00: the ends of intervals"))
                    return Times(columns, f"day_clock({date}, {q}, {zone}){least}", naive=False)
            low = high = 0
            if most(r"\D{0,20}\d{1,3}", texts) and PERIOD.search(name):
                number = f"regexp_extract({q}, '[0-9]+$')::int"
                low, high = self.all(f"select min({number}), max({number}) from t")[0]
                if low in (0, 1) and high - low + 1 in _COUNTS and (low or high > 24):
                    number = q if all(map(str.isdecimal, texts)) and low else number + ("" if low else " + 1")
                    minutes = _COUNTS[high - low + 1]
                    self.said.append(("time", f"{name} is the number of an interval of {minutes} minutes, from {low}"))
                    return Times(columns, f"elapsed({date}, {number}, interval {minutes} minutes, {zone})", naive=False)
            joined = self.all(f"select distinct {text} || ' ' || {q} x from t where x is not null limit 2000")
            form = self.form_of([one[0] for one in joined], [f"{day.form or DAYS[-1]} {clock}" for clock in CLOCKS])
            if form is not None:
                plain = {"time_format": form[0]} if self.is_text(name) and day.form else None
                sql = f"try_strptime({text} || ' ' || {q}, {literal(form[0])})"
                return Times(columns, sql, "", plain, form=form[0], other=form[1])
        return None

    def find_time(self) -> Times:
        """The time of the rows: of several the likeliest."""
        found = {name: one for name in self.columns if (one := self.time_of(name)) is not None}
        found |= {
            name: joined for name, one in found.items() if one.is_day and (joined := self.with_clock(one)) is not None
        }
        if not found:
            numbers = [name for name in self.columns if self.is_number(name) and TIME.search(name)]
            way = f"write the numbers in {listed(numbers, SHOWN)}, such as days of a spreadsheet, as 2024-03-01 00:15"
            way = ", or ".join(filter(None, [self.nested, way if numbers else _NO_TIME]))
            shown = listed([*self.columns, *self.rows.nested], SHOWN)
            raise self.fail(
                f"none of its columns, {shown}, looks like a time, and without one a row is in no window: {way}"
            )

        def against(times: Times) -> tuple[bool, ...]:
            name = times.columns[0]
            return (
                not any(map(TIME.search, times.columns)) and not times.is_day,
                UPDATE.search(name) is not None,
                times.is_day and self._is_part(times),
                (LOCAL if self.zone == "UTC" else UTC).search(name) is not None,
                (UTC.search(name) is not None) != (self.zone == "UTC"),
                END.search(name) is not None,
                BEGIN.search(name) is None,
            )

        first, *others = sorted(found.values(), key=against)
        part = next((one for one in self.columns if one not in first.columns and CLOCK.search(one)), None)
        if first.is_day and part is not None and self._is_part(first):
            what = (
                f"the column {first.columns[0]} has days, and {part} is no time of the day that can be joined with them"
            )
            raise self.fail(f"{what}: write whole hours, or HH:MM, or one column with day and time", ExitCode.SOURCE)
        self.others = {one.columns[0]: one for one in others if one.columns[0] not in first.columns}
        if shown := [name for name in self.others if not END.search(name)]:
            what = "where they are those of the readings, write their column for readings.time"
            self.said.append(("other times", f"in {listed(shown, SHOWN)}: {what}"))
        return first

    def _is_part(self, times: Times) -> bool:
        """Whether series have several rows on a day, so that the day is not all of the time."""
        names = [name for name in self.columns if name not in times.columns and not TIME.search(name)]
        names = [name for name in names if SERIES.search(name) or not self.is_number(name)]
        return self.distinct(times.columns[0], *names) < 0.9 * self.one("count(*) from t")
