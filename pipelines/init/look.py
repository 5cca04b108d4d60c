"""A look at files of readings: which column is what, by names, counts and the steps of times.

The series is the smallest set of columns that makes (series, time) unique and comes again. What no evidence decides
is a question, which the settings ask by ``???``. What is seen of values goes to the terminal, not into a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.settings.base import SettingsError
from ...schemas.slots import format_duration
from ..console import listed, percent
from ..errors import CommandError, ExitCode
from . import evidence
from .files import Rows, rows_at
from .table import Table, Times
from .words import BEGIN, END, FLAG, QUALITY, SERIES, SHOWN, UPDATE, UTC, VALUE, WATTS, flow, literal, quoted, unit_of


@dataclass(frozen=True, slots=True)
class Question:
    """What only the author of the settings knows: a key, and what it may be."""

    key: str
    why: str
    answers: tuple[tuple[str, str], ...]  # each as the settings have it, and what it means; the first is likeliest
    unwritten: str = ""  # an answer that holds, and that no file may have


@dataclass(frozen=True, slots=True)
class Query:
    """The parts of a SELECT."""

    series: str
    time: str
    value: str
    column: str  # that the value is made of
    relation: str = "files"
    where: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # further columns

    @property
    def text(self) -> str:
        """The statement."""
        columns = ", ".join((f"{self.series} as series", f"{self.time} as time", f"{self.value} as value", *self.more))
        where = f"\nwhere {' and '.join(self.where)}" if self.where else ""
        return f"select {columns}\nfrom {self.relation}{where}"


@dataclass(slots=True)
class Look:
    """What the first rows suggest."""

    rows: Rows
    zone: str
    query: Query
    times: Times
    value: str
    series: str | None = None  # column of the series; ``None`` where there is one
    names: int = 1
    unit: str = ""
    wide: str = ""  # the column that names of columns were made of
    cells: str = ""  # these columns, in words
    labels: bool = False
    is_select: bool = False  # whether plain columns do not do
    more: dict[str, Any] = field(default_factory=dict[str, Any])  # further settings of readings
    interval: int = 0
    span: tuple[int, int] = (0, 0)  # the first and last instant
    rises: bool = False  # whether it is a meter's counter
    below: bool = False  # whether some values are below 0
    said: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    questions: list[Question] = field(default_factory=list[Question])

    def ask(self, key: str, why: str, *answers: tuple[str, str], unwritten: str = "") -> None:
        """Leave a key open."""
        self.questions.append(Question(key, why, answers, unwritten))

    def asks(self, *keys: str) -> bool:
        """Whether one of some keys is open."""
        return any(one.key in keys for one in self.questions)


def look_at(given: Path, value: str | None = None, zone: str = "UTC") -> Look:
    """Look at a data file, a folder or a pattern; the column of the value is guessed if left out."""
    rows = rows_at(given)
    try:
        from ...transforms.readings.select import connect  # noqa: PLC0415 - DuckDB, an extra
    except ModuleNotFoundError:
        raise SettingsError("init looks at files with DuckDB: install quiltstream[sql]") from None
    return _Looking(Table(rows, connect("2GB"), zone), value).look


class _Looking:
    """A look at a table."""

    def __init__(self, table: Table, wanted: str | None) -> None:
        self.table, self.rows, rows = table, table.rows, table.rows
        kind = {"nem12": ("unit", "kWh", "kWh"), "greenbutton": ("uom", "72", "Wh")}.get(rows.kind)
        where, lengths = self._of_unit(*kind) if kind else ((), [])
        table.profile()
        if table.nested:
            table.said.append(("nested", table.nested))
        if rows.options.get("skip"):
            table.said.append(("above", f"{rows.options['skip']} lines above the names of the columns are skipped"))
        if wanted is None:
            table.unpivot_times()
        times = table.find_time()
        if not table.wide and wanted is None:
            table.unpivot_series(times)
        instant = f"try(cast(({times.instant or times.sql}) as timestamptz)) t_"
        instants = f"(select *, {instant} from t) where year(t_) between 1970 and 2199"
        table.connection.execute(f"create table u as select * from {instants}")
        if not table.one("count(*) from u"):
            raise table.fail(
                f"no time in {' and '.join(times.columns)} is of the years 1970 to 2200; correct the times"
            )
        query = Query("", times.sql, "", "", table.relation, where)
        self.look = look = Look(rows, table.zone, query, times, "reading_", wide=table.wide, said=table.said)
        look.cells = table.cells
        look.value = "reading_" if table.wide else self.find_value(wanted)
        look.series, flags = ("series_", []) if table.wide == "series_" else self.find_series()
        (thousands, decimal), _ = table.marks[look.value]
        q, marks = quoted(look.value), f"{literal(thousands)}, {literal(decimal)}"
        made = f"num({q})" if (thousands, decimal) == ("", ".") else f"num_marks({q}, {marks})"
        who = quoted(look.series) if look.series else literal(self.name)
        who = self.of_files() if look.series == "filename" else who
        look.query = replace(look.query, series=who, value=made, column=q)
        if kind:
            look.unit = kind[2]
            said = listed([format_duration(one) for one in lengths], SHOWN)
            if len(lengths) > 1:
                look.query, look.more["length"] = replace(look.query, more=("length",)), "length"
                answers = ("sum", "energy: a reading that covers several slots is shared out"), ("mean", "power")
                look.ask("slots.of", f"readings cover {said}: what has a slot?", *answers)
        elif not look.labels:
            look.unit = unit_of(f"{look.value} {rows.path.stem}" if table.wide else look.value) or self.unit_beside()
        used = [*times.columns, *([look.series] if look.series else []), look.value]
        marked = (thousands, decimal) != ("", ".") and not look.labels
        look.is_select = (
            bool(kind or look.wide or marked) or table.relation != "files" or any(map(self.is_renamed, used))
        )
        look.is_select |= times.plain is None or look.series == "filename"
        self.without_time()
        self.measure(flags)
        self.ask(thousands, decimal)

    def _of_unit(self, column: str, which: str, unit: str) -> tuple[tuple[str, ...], list[int]]:
        """Of a format whose columns are known the rows of one unit alone; how that is said, and their lengths."""
        table, where = self.table, f"{column} = {literal(which)}"
        table.connection.execute(f"create or replace table t as select * from t where {where} and value is not null")
        table.columns = [one for one in table.columns if one not in ("length", "uom", "unit", "quality")]
        lengths = sorted(int(one[0]) for one in table.all("select distinct length from t"))
        if not lengths:
            raise table.fail(f"none of its readings is in {unit}", ExitCode.SOURCE)
        table.said.append(("format", f"{self.rows.kind}, its readings in {unit}"))
        return (where,), lengths

    def is_renamed(self, name: str) -> bool:
        """Whether a column is called otherwise in a SELECT than in the file."""
        lower, base = {one.lower() for one in self.table.columns}, re.sub(r"_\d+$", "", name).lower()
        alike = {f"{name}_1".lower(), base} & lower - {name.lower()}
        return bool(alike) or (
            "names" not in self.rows.options and re.fullmatch(r"column\d+|(filename|line)_\d+", name) is not None
        )

    # --- value and series

    def find_value(self, wanted: str | None) -> str:
        """The column of the value: the one that is asked for, the only one, or the one whose name says so."""
        table, nested = self.table, f"{self.table.nested}; " if self.table.nested else ""
        free = [name for name in table.columns if name not in self.look.times.columns and name not in table.others]
        numbers = [name for name in free if table.is_number(name)]
        if wanted is not None:
            if wanted in free and (wanted in numbers or table.marks[wanted][1] < 0.1):
                self.look.labels = wanted not in numbers
                return wanted
            there = f"the columns of numbers {listed(numbers, SHOWN)}" if numbers else "no column of numbers"
            raise CommandError(f"--value {wanted!r}: {self.rows.path} has {there}; {nested}name one, or one of labels")
        likely = [name for name in numbers if not SERIES.search(name) or unit_of(name) or table.has_fractions(name)]
        likely = [one for one in likely if VALUE.search(one) or unit_of(one) or not self.is_key(one)] or likely
        if not likely:
            labels = [name for name in free if not SERIES.search(name) and 1 < table.distinct(name) <= 40]
            hint = f"--value {labels[0]} counts the labels in {listed(labels, SHOWN)}" if labels else "convert the file"
            shown = listed([*table.columns, *self.rows.nested], SHOWN)
            raise table.fail(f"none of its columns, {shown}, holds numbers to measure; {nested}{hint}")
        pool = (
            [one for one in likely if unit_of(one) in WATTS] or [one for one in likely if VALUE.search(one)] or likely
        )
        others = [name for name in likely if name != pool[0]]
        if len(pool) > 1:
            answers = ((flow(name), f"or quiltstream init --value {name}") for name in pool[:SHOWN])
            self.look.ask("readings.value", "which column is measured?", *answers)
        elif others:
            self.look.said.append(("not used", f"also numeric: {listed(others, SHOWN)}: use --value"))
        return pool[0]

    def is_key(self, name: str) -> bool:
        """Whether whole numbers and times never come twice together, though times do: the numbers name series."""
        return not self.table.has_fractions(name) and self.unique() < 0.99 and self.unique(quoted(name)) > 0.995

    def unique(self, *names: str) -> float:
        """How much of the rows is left where each time counts once for some columns."""
        return self.table.one(f"count(distinct ({', '.join(['t_', *names])}, 0)) / count(*) from u")

    def find_series(self) -> tuple[str | None, Sequence[str]]:
        """The smallest set of columns that makes (series, time) unique: the series, and what else is in the set."""
        look, table = self.look, self.table
        used = {*look.times.columns, look.value, *table.others}
        rows = table.one("count(*) from t")
        if look.wide:  # of the rows of the file
            rows = 3 * table.distinct(*(name for name in table.columns if name not in (look.wide, "reading_")))
        likely = [
            name
            for name in table.columns
            if name not in used
            and len(table.sample[name]) > 0.95 * table.count
            and table.distinct(name) <= max(1, rows / 3)
            and (SERIES.search(name) or not (unit_of(name) or VALUE.search(name)))
            and not (table.is_number(name) and table.has_fractions(name))
        ]
        likely.sort(key=lambda one: (not SERIES.search(one), FLAG.search(one) is not None, table.is_number(one)))
        changing = [name for name in likely if table.distinct(name) > 1] + ["filename"] * (self.rows.count > 1)
        named = [name for name in likely if SERIES.search(name) and not unit_of(name)]
        text = [name for name in named if not table.is_number(name, 0.9) or look.wide]
        best = self.unique(*map(quoted, changing)) - 0.005
        if self.unique() >= best:
            is_one = self.unique() < 0.9 or text or (named and table.distinct(named[0]) == 1)
            only = next(iter(text or named), None) if is_one else None
            others = [one for one in changing if one not in ("filename", only) and not table.is_number(one)]
            others = [one for one in others if QUALITY.search(one) or not (only or FLAG.search(one))]
            ids = [one for one in table.columns if SERIES.search(one) and one not in used and not table.is_number(one)]
            others += [] if only else [one for one in ids if one not in others]
            return only, [*others, *(["filename"] if only is None and self.rows.count > 1 else [])][:1]
        sets = (one for size in (1, 2, 3) for one in combinations(changing[:12], size))
        chosen = next((one for one in sets if self.unique(*map(quoted, one)) >= best), changing[:1])
        series = next((name for name in (*chosen, *named) if SERIES.search(name)), chosen[0])
        rest = [name for name in chosen if name != series] or [name for name in changing if QUALITY.search(name)]
        return series, [name for name in rest if name != series]

    def ask_series(self, flags: Sequence[str]) -> None:
        """Ask about a column that may name series, or say which rows count."""
        look, query, name = self.look, self.look.query, self.look.series or ""
        is_known = not name or SERIES.search(name) or name in ("series_", "filename")
        flag = next(iter(flags), "" if is_known else name)
        if not flag:
            return
        q = self.table.sql(flag) if flag != "filename" else "file_stem(filename)" if name else self.of_files()
        all_ = replace(query, series=literal(self.name)) if flag == name else query
        each = replace(query, series=q if flag == name or not name else f"{query.series} || '/' || {q}")
        counts = (
            f"select {quoted(flag)} from t where {quoted(flag)} is not null group by 1 order by count(*) desc limit 7"
        )
        kinds = [str(one[0]) for one in self.table.all(counts)]
        one = [
            (replace(all_, where=(*all_.where, f"{q} = {literal(kind)}")).text, "rows of one kind") for kind in kinds
        ]
        one = [] if len(kinds) == 7 or flag == "filename" or max(map(len, kinds)) > 12 else one
        whole = (
            [] if self.unique(*([quoted(name)] if name and flag != name else [])) < 0.995 else [(all_.text, "all rows")]
        )
        answers = [*whole, (each.text, f"each {flag} is a series"), *one]
        why = f"{flag}: does it name series, or say which rows count? (of estimates the later: readings.cell: rank)"
        look.ask("readings.select", why, *(answers[::-1] if FLAG.search(flag) and not whole else answers))

    @property
    def name(self) -> str:
        """The name of the only series."""
        of = self.rows.files.parent.name if self.rows.count > 1 else self.rows.path.stem
        return re.sub(r"[^A-Za-z0-9]+", "-", of).strip("-") or "one"

    def of_files(self) -> str:
        """What of the path of a file tells the series apart."""
        names = self.table.all("select distinct filename from t")
        keys = dict.fromkeys(
            key for one in names for key in re.findall(r"([^/=]+)=[^/]*/", one[0]) if SERIES.search(key)
        )
        tried = [f"regexp_extract(filename, {literal(key + '=([^/]*)')}, 1)" for key in keys]
        for one in (*tried, "file_stem(filename)", "regexp_extract(filename, '([^/]+)/[^/]+$', 1)"):
            if self.unique(one) > 0.995:
                return one
        raise self.table.fail(
            "neither names of files nor of folders tell the series apart; write a column with their names"
        )

    def unit_beside(self) -> str:
        """The unit that a column, or a line of units, says."""
        table = self.table
        for name in table.columns:
            if re.search(r"^(unit|einheit|uom|unit[eé]|unidad)s?$", name, re.IGNORECASE) and table.distinct(name) == 1:
                return unit_of(f" {table.sample[name][0]}")
        if self.look.wide == "period_" and any(re.search(r"mp[arx]n", name, re.IGNORECASE) for name in table.columns):
            table.said.append(("unit", "kWh, as half-hourly data of MPANs are"))
            return "kWh"
        if self.look.wide != "series_":
            return ""
        texts = table.all(
            "select distinct reading_ from t where regexp_matches(reading_, '^[(\\[]?[A-Za-z]+[)\\]]?$') limit 9"
        )
        units = {unit_of(f" {one[0]}") for one in texts}
        return units.pop() if len(units) == 1 else ""

    # --- readings

    def without_time(self) -> None:
        """Say which rows have no time; few marks, such as a line of units or of totals, are left out of a SELECT."""
        table, name = self.table, self.look.times.columns[0]
        lost = table.one("1 - (select count(*) from u) / count(*) from t")
        lines = f"{quoted(name)} is not null and line not in (select line from u)"
        marks = [one[0] for one in table.all(f"select distinct {quoted(name)} from t where {lines} limit 4")]
        if lost and table.wide and len(marks) <= 3 and all(re.fullmatch(r"\D{1,20}", one) for one in marks):
            where = f"{quoted(name)} not in ({', '.join(map(literal, marks))})"
            self.look.query = replace(self.look.query, where=(*self.look.query.where, where))
            table.said.append(("no time", f"lines such as of units or totals are left out: {len(marks)}"))
        elif lost:
            table.said.append(("no time", f"{percent(lost)} of the rows, rejected: see how they are written"))

    def measure(self, flags: Sequence[str]) -> None:
        """Measure the readings."""
        look, table, times = self.look, self.table, self.look.times
        end = next((one for name, one in table.others.items() if END.search(name) and not UPDATE.search(name)), None)
        end = end if not look.wide and not times.is_day and BEGIN.search(times.columns[0]) else None
        until = None if end is None else end.instant or end.sql
        who = quoted(look.series) if look.series else "0"
        found = table.connection.sql(
            f"select dense_rank() over (order by {who}) c, dense_rank() over (order by filename) f, epoch_us(t_) t, "
            f"{look.query.value} v, coalesce(epoch_us(try(cast(({until or 'null'}) as timestamptz))), -1) e, "
            f"{quoted(look.value)} is not null there from u order by line"
        ).to_arrow_table()
        codes, files, instants, ends = (found[one].combine_chunks().to_numpy(zero_copy_only=False) for one in "cfte")
        numbers = np.asarray(found["v"].combine_chunks().cast(pa.float64()).fill_null(np.nan))
        bad = float(np.mean(~np.isfinite(numbers) & np.asarray(found["there"])))
        if bad and not look.labels:
            look.said.append(("no number", f"{percent(bad)} of it, rejected: see how they are written"))
        look.names = len(np.unique(codes))
        shown = quoted(look.value) if look.labels else look.query.value
        clock = f"strftime(t_, '%Y-%m-%d %H:%M:%S{'' if times.naive else 'Z'}')"
        some = table.all(
            f"select {look.query.series}, {clock}, {shown} from u where {shown} is not null order by line limit 1"
        )
        look.said.append(("sample", ", ".join(map(str, some[0])) if some else "none"))
        look.span = int(instants.min()), int(max(instants.max(), ends.max() - 1))
        self.ask_series(flags)
        seen = evidence.Found(codes, instants, numbers, files, None if until is None else ends)
        if times.naive and table.zone != "UTC" and not (look.labels and until):
            zone, pairs = literal(table.zone), f"lag(t_::timestamp) over (partition by {who} order by line)"
            seen.falls = table.all(
                f"select bool_and(doubled(a, {zone}) and doubled(b, {zone})), bool_or(a = b) "
                f"from (select t_::timestamp a, {pairs} b from u) where a <= b"
            )[0]
        evidence.weigh(look, seen, until or "", "" if end is None else end.columns[0])

    def ask(self, thousands: str, decimal: str) -> None:
        """Ask what the writing of values and times leaves open."""
        look, table, times = self.look, self.table, self.look.times
        name, value, texts = times.columns[0], look.value, table.sample[look.value]
        if "names" in self.rows.options:
            names = [str(one) for one in self.rows.options["names"]]
            why = "the file has no line of names: what are its columns?"
            look.ask("source.names", why, (flow(names), "names for its columns, in order"))
        marked = [one for one in texts if re.search(r"[.,]", one)]
        grouped = all(re.fullmatch(r"[-+]?[1-9]\d{0,2}[.,]\d{3}", one) for one in marked)
        is_open = not thousands and marked and grouped and len(marked) < len(texts) and table.is_text(value)
        if is_open and (decimal == "." or self.rows.options.get("delimiter") != ";"):
            other = replace(look.query, value=f"num_marks({look.query.column}, {literal(decimal)}, '')").text
            why = f"does the {decimal!r} of {value} stand before decimals, or between thousands?"
            look.ask("readings.select", why, (look.query.text, "decimals"), (other, "thousands"))
        if look.labels:
            labels = table.all(f"select distinct {quoted(value)} from t where {quoted(value)} is not null limit 100")
            seen = sorted(one[0] for one in labels)
            look.said.append(("labels", f"{len(seen)}: {listed(seen, SHOWN)}"))
            why = "which labels are states? They are public with this file, and stand in every released row"
            look.ask("states.categories", why, ("[LABEL, LABEL]", "as the terminal lists them"), unwritten=flow(seen))
        if times.other is not None:
            other, is_open = times.other
            look.said.append(("day or month", f"{other} reads the times too: see which is right"))
            swapped = replace(look.query, time=look.query.time.replace(literal(times.form), literal(other)))
            texts = (look.query.text, swapped.text) if look.is_select else (flow(times.form), flow(other))
            if is_open:
                key = "readings.select" if look.is_select else "readings.time_format"
                look.ask(key, "two formats read the times: which is the day?", (texts[0], ""), (texts[1], ""))
        is_local = table.zone == "UTC" and re.search(r"\bC?CES?T\b|\bMES?Z\b|lo[ck]al|\bBST\b", name)
        if times.naive and (is_local or (table.zone != "UTC" and UTC.search(name))):
            what = "local" if is_local else "of UTC"
            why = f"the times in {name} have no offset; by its name they are {what}: of which zone?"
            look.ask("slots.timezone", why, ("UTC", "or a name such as Europe/Berlin"))
