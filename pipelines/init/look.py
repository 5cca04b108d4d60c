"""A look at files of readings: which column is what, by names, counts and the rhythm of times.

The series is the smallest set of columns that makes (series, time) unique and comes again. What no evidence decides
is a question, which the settings ask by ``???``. What is seen of values goes to the terminal, not into a file.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.slots import format_duration
from ...transforms.common.batches import HIGHEST_US
from ..console import listed, percent
from ..errors import CommandError, ExitCode
from .clock import FLAT, Clock
from .data import SAMPLE, Data, are_numbers, safe
from .evidence import Evidence
from .files import Rows, rows_at
from .parts import Look, Measured, Query, Question, Times, flow, literal, quoted
from .rhythm import NO_NUMBER
from .times import other_order
from .words import (
    BEGIN,
    ELECTRIC,
    END,
    FLAG,
    PARTS,
    SERIES,
    UPDATE,
    VALUE,
    unit_of,
)

SHOWN = 10
#: Columns of one name but for its digits from which each is a series, though other numbers stand beside them.
_MANY_SERIES = 6
#: Columns of which sets are tried as the series, the likeliest first.
_TRIED = 12
_NO_TIME = "see how they are written"
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}([.,'\u2019 \u00a0\u202f]\d{3})+([.,]\d+)?")
#: Numbers with a mark between thousands, with another mark before decimals than the others, or with a unit behind them.
_MARKED = re.compile(
    r"[-+]?(\d{1,3}([.,'\u2019 \u00a0\u202f]\d{3})+([.,]\d+)?|\d+[.,]\d+"
    r"|\d+([.,]\d+)*\s*([kKMm]?[wW]([hH])?|m[3³]|[kKMG]?[jJ]))"
)


def look_at(given: Path, value: str | None = None, zone: str = "UTC") -> Look:
    """Look at a data file, a folder or a pattern; the column of the value is guessed if left out."""
    rows = rows_at(given)
    if rows.kind in ("nem12", "greenbutton"):
        return _known(rows)
    return _Looking(rows, value, zone).look()


def _known(rows: Rows) -> Look:
    """A format whose columns are known."""
    data, questions, where = Data(rows), list[Question](), list[str]()
    name, tells = ("nmi", "register") if rows.kind == "nem12" else ("usage_point", "flow")
    unit = "kWh"
    if rows.kind == "nem12":
        where = ["unit = 'kWh'"]
    else:
        unit = "Wh"
        kinds = {one[0] for one in data.connection.execute("select distinct uom from t").fetchall()}
        if kinds != {"72"}:
            where = ["uom = '72'"]
        if "72" not in kinds:
            raise CommandError(f"{rows.path}: none of its readings is of Wh (uom 72), and no other unit is known")
    sql = " and ".join(["value is not null", *where])
    found = data.connection.execute(
        f"select {name}, {tells}, epoch_us(time::timestamptz), epoch(length::interval), num(value) from t where {sql}"
    ).fetchall()
    if not found:
        raise CommandError(f"{rows.path}: none of its readings is in {unit}", ExitCode.SOURCE)
    kinds = sorted({str(one[1]) for one in found})
    query = Query(name, "time", "num(value)", "value", where=tuple(where))
    query = replace(query, where=(*query.where, f"{tells} = {literal(kinds[0])}"))
    if len(kinds) > 1:
        answers = [
            (replace(query, where=(*where, f"{tells} = {literal(one)}")).text, f"{tells} {one}") for one in kinds[:6]
        ]
        questions.append(
            Question("readings.select", f"which {tells} is meant: {listed(kinds, SHOWN)}?", tuple(answers))
        )
    lengths = Counter(int(one[3]) for one in found)
    interval = lengths.most_common(1)[0][0] * 1_000_000
    times = np.sort(np.array([one[2] for one in found], dtype=np.int64))
    values = np.array([one[4] for one in found], dtype=np.float64)
    more: dict[str, Any] = {}
    if len(lengths) > 1:
        query, more = replace(query, more=("length",)), {"length": "length"}
        questions = [replace(one, answers=((query.text, "all"),)) for one in questions]
        said = f"readings cover {listed([format_duration(one * 10**6) for one in sorted(lengths)], SHOWN)}: what has "
        answer = ("sum", "energy: a reading that covers several slots is shared out over them")
        questions.append(Question("slots.of", said + "a slot?", (answer, ("mean", "power"))))
    return Look(
        rows=rows,
        times=Times(("time",), sql="time", naive=False),
        series=name,
        names=len({one[0] for one in found}),
        value="value",
        unit=unit,
        query=query,
        is_select=True,
        more=more,
        measured=Measured(times, interval, values[np.isfinite(values)]),
        said=(("format", f"{rows.kind}, its readings in {unit}"),),
        questions=tuple(questions),
    )


class _Looking(Clock):
    """A look at a table whose columns have any names."""

    def __init__(self, rows: Rows, value: str | None, zone: str) -> None:
        super().__init__(rows, zone)
        self.wanted = value
        self.where = list[str]()
        if rows.kind == "json":
            self.said.append(("format", "json, an array of objects: each object is a row"))
        if rows.layout.skip:
            self.said.append(("above", f"{rows.layout.skip} lines above the names of the columns are passed over"))
        if rows.nested:
            self.said.append(("nested", FLAT.format(listed(rows.nested, SHOWN))))

    def look(self) -> Look:
        """Look."""
        data = self.data
        pair = self._wide_times() if self.wanted is None else None
        times = pair or self._times()
        if not self.wide and self.wanted is None and (columns := self._wide_series(times)):
            stem = re.sub(r"\d+", "#", columns[0])
            pattern = "^" + "[0-9]+".join(map(re.escape, stem.split("#"))).replace("\\ ", " ") + "$"
            data.unpivot(columns, pattern, "series_", "reading_")
            self.wide = "series"
            self.said.append(("wide", f"{len(columns):,} columns from {columns[0]} on are a series each"))
        if self.rows.options.get("names"):
            names = list(self.rows.options["names"])
            why = "the file has no line of names: what are its columns?"
            self.questions.append(Question("source.names", why, ((flow(names), "names for its columns, in order"),)))
        value = self._value(times)
        series = self._series(times, value)
        return self._measured(times, series, value)

    def _wide_series(self, times: Times) -> list[str]:
        """The columns of a table with a column for each series: numbers that have one name but for its digits.

        Beside three of them, which may be phases, a value is that of one series; beside more it is a sum of them, or
        another quantity.
        """
        others = [name for name in self.data.columns if name not in times.columns]
        numbers = self._number_columns()
        if any(name not in numbers and self.data.sample[name] for name in others):
            return []  # of a name, most likely
        stems = Counter(re.sub(r"\d+", "#", name) for name in others)
        stem, count = max(stems.items(), key=lambda pair: pair[1], default=("", 0))
        columns = [name for name in others if re.sub(r"\d+", "#", name) == stem]
        beside = [name for name in others if name not in columns]
        fewest = max(3, len(beside) + 1, 3 + any(map(VALUE.search, beside)))
        word = re.sub(r"[\W_#]+$", "", stem)
        if SERIES.search(word) and not beside:
            fewest = 2
        elif PARTS.search(word) or (beside and not SERIES.search(word) and count < _MANY_SERIES):
            return []
        if "#" not in stem or count < fewest:
            return []
        if beside:
            self.said.append(("not used", f"columns of none of the series: {listed(beside, SHOWN)}"))
        return columns

    def _value(self, times: Times) -> str:
        """The column of the value: the one that is asked for, the only one, or the one whose name says so."""
        if self.wide:
            return "reading_"
        data, wanted = self.data, self.wanted
        used = {*times.columns, *(name for one in self.other_times for name in one.columns)}
        numbers = [name for name in self._number_columns() if name not in used]
        nested = f"{FLAT.format(listed(self.rows.nested, SHOWN))}; " if self.rows.nested else ""
        if wanted is not None:
            marked = [name for name in data.columns if name == wanted and self._thousands(name)]
            if wanted in numbers or marked:
                return wanted
            if wanted in data.columns and wanted not in used and not data.is_typed(wanted):
                return self._readable(wanted)  # labels
            there = f"the columns of numbers {listed(numbers, SHOWN)}" if numbers else "no column of numbers"
            what = "name one, or one of labels" if numbers else "name a column of labels"
            raise CommandError(f"--value {wanted!r}: {self.rows.path} has {there}; {nested}{what}")
        series = [
            name for name in numbers if SERIES.search(name) and not unit_of(name) and not self._has_fractions(name)
        ]
        grouped = [name for name in data.columns if name not in {*numbers, *used} and self._thousands(name)]
        likely = [name for name in [*numbers, *grouped] if name not in series]
        if not likely:
            [self._readable(name) for name in data.columns if name not in used]
        likely = [
            name
            for at, name in enumerate(likely)
            if at >= 50 or VALUE.search(name) or unit_of(name) or not self._is_key(name, times)
        ] or likely
        if not likely:
            labels = [name for name in data.columns if name not in used and 2 <= data.distinct(name) <= 40]
            labels = [name for name in labels if not SERIES.search(name)]
            hint = f"--value {labels[0]} counts the labels in {listed(labels, SHOWN)}" if labels else "convert the file"
            shown = [*data.columns, *self.rows.nested]
            raise self.fail(f"none of its columns, {listed(shown, SHOWN)}, holds numbers to measure; {nested}{hint}")
        united = [name for name in likely if unit_of(name) in _WATTS]
        named = united or [name for name in likely if VALUE.search(name)]
        pool = named or likely
        others = [name for name in likely if name != pool[0]]
        if len(pool) > 1:
            answers = tuple((flow(name), f"or quiltstream init --value {name}") for name in pool[:SHOWN])
            self.questions.append(Question("readings.value", "which column is measured?", answers))
        elif others:
            self.said.append(("not used", f"also numeric: {listed(others, SHOWN)}: use --value"))
        return pool[0]

    def _readable(self, name: str) -> str:
        """A column that holds no numbers with marks or units that are not read."""
        texts = [one for one in self.data.sample[name] if not one.isdecimal()]
        if texts and sum(bool(_MARKED.fullmatch(one)) for one in texts) > 0.9 * len(texts):
            raise self.fail(
                f"numbers in {name} have several marks or units behind them, as 1.503,5 beside 1'503 or 0.5 kWh, and "
                "are not read: write them as 1503.5"
            )
        return name

    def _has_fractions(self, name: str) -> bool:
        texts = self.data.sample[name]
        return sum("." in one or "," in one for one in texts) > 0.2 * len(texts)

    def _thousands(self, name: str) -> tuple[str, str, bool] | None:  # noqa: PLR0911 - a table of cases
        """The marks between thousands and before decimals of a column that has some, and whether that is open."""
        texts = [one for one in self.data.sample.get(name, []) if re.search(r"\d", one)]
        marked = {one: re.sub(r"[\d+-]", "", one) for one in texts if _THOUSANDS.fullmatch(one)}
        plain = [one for one in texts if one not in marked]
        if not marked or self.data.is_typed(name) or not all(re.fullmatch(r"[-+]?\d+([.,]\d+)?", one) for one in plain):
            return None
        pairs = {(marks[0], marks[-1]) for marks in marked.values() if len(marks) > 1}
        singles = {marks for marks in marked.values() if len(marks) == 1}
        if len(marked) < len(texts) and not (VALUE.search(name) or name == self.wanted or pairs):
            return None
        if pairs:
            mark, decimal = max(pairs, key=lambda pair: pair[0] != pair[1])
            decimal = decimal if decimal != mark else "," if mark == "." else "."
            return (mark, decimal, False) if singles | {first for first, _ in pairs} <= {mark, decimal} else None
        mark = singles.pop()
        if singles or (mark == "," and self.rows.layout.delimiter == ";"):
            return None
        if mark not in ".,":
            return mark, "," if any("," in one for one in plain) else ".", False
        other = "," if mark == "." else "."
        if any(mark in one for one in plain) or not plain:
            return None
        return mark, other, not any(other in one for one in plain)

    def _is_key(self, name: str, times: Times) -> bool:
        """Whether whole numbers and times never come twice together, though times do: the numbers name series."""
        if self._has_fractions(name) or self.data.distinct(name) > self.data.count / 3:
            return False
        return self._unique(times) < 0.99 and self._unique(times, name) > 0.995

    def _unique(self, times: Times, *names: str) -> float:
        """How much of the rows is left where each time counts once for some columns."""
        key = ", ".join(map(safe, [*times.columns, *names]))
        return self.data.one(f"select count(distinct ({key}, 0)) / count(*) from t")

    def _series(self, times: Times, value: str) -> tuple[str, ...]:  # noqa: PLR0911 - rules in their order
        """The columns of the series: the smallest set that makes (series, time) unique and comes again."""
        data = self.data
        if self.wide == "series":
            return ("series_",)
        used = (
            {*times.columns, value, *(name for one in self.other_times for name in one.columns)}
            if not self.wide
            else {*times.columns, value}
        )
        rows = (
            data.count
            if self.wide != "times"
            else data.distinct(*times.columns[:-1], *[c for c in data.columns if c not in used]) * 3
        )
        all_numbers = set(self._number_columns())
        cand = [
            name
            for name in data.columns
            if name not in used
            and len(data.sample[name]) > 0.95 * min(SAMPLE, data.count)
            and data.distinct(name) <= max(1, rows / 3)
            and (SERIES.search(name) or not (unit_of(name) or VALUE.search(name)))
            and not (name in all_numbers and self._has_fractions(name) and not self._are_whole(name))
        ]
        many = self.rows.count > 1
        cand += ["filename"] if many else []
        best = self._unique(times, *cand) - 0.005
        numbers = set(self._number_columns(0.9))
        cand.sort(
            key=lambda name: (
                name == "filename",
                not SERIES.search(name),
                FLAG.search(name) is not None,
                name in numbers,
            )
        )
        changing = [name for name in cand if name == "filename" or data.distinct(name) > 1]
        if self._unique(times) >= best:
            again = self._unique(times) < 0.9
            named = [name for name in cand if name != "filename" and SERIES.search(name) and not unit_of(name)]
            text = [name for name in named if name not in numbers or self.wide]
            if again:
                return tuple((text or named)[:1])
            if text or (named and data.distinct(named[0]) == 1):
                return tuple((text or named)[:1])
            if many and not again:
                self.files_open = True
            return ()
        for size in (1, 2, 3):
            fits = [one for one in combinations(changing[:_TRIED], size) if self._unique(times, *one) >= best]
            if not fits:
                continue
            chosen = fits[0]
            if size == 1:
                return chosen
            named = [name for name in chosen if SERIES.search(name)]
            flags = [name for name in chosen if name not in named[:1]]
            self.apart = (named[0] if named else chosen[0], tuple(flags) if named else chosen[1:])
            return (self.apart[0],)
        named = [name for name in changing if SERIES.search(name)] or changing
        return tuple(named[:1])

    apart: tuple[str, tuple[str, ...]] | None = None  # the series, and columns that tell rows of one time apart
    files_open = False  # whether each file may be a series

    def _are_whole(self, name: str) -> bool:
        return all(re.fullmatch(r"\d+([.,]0+)?", one) for one in self.data.sample[name]) and bool(SERIES.search(name))

    def _name(self) -> str:
        return re.sub(
            r"[^A-Za-z0-9]+", "-", self.rows.files.parent.name if self.rows.count > 1 else self.rows.path.stem
        )

    def _value_sql(self, name: str) -> tuple[str, bool]:
        """A value as SQL, and whether a plain column is read alike."""
        q, marks = quoted(name), self._thousands(name) if name in self.data.sample else None
        if marks is not None and not marks[2]:
            return f"num_marks({q}, {literal(marks[0])}, {literal(marks[1])})", False
        if self._decimal(name) == ",":
            return f"num_marks({q}, '', ',')", True
        return f"num({q})", True

    def _measured(self, times: Times, series: tuple[str, ...], value: str) -> Look:
        """The look with what the readings show."""
        data, rows = self.data, self.rows
        texts = data.sample[value]
        labels = self.wanted is not None and not are_numbers(texts, self._decimal(value)) and not self._thousands(value)
        sql, is_plain = self._value_sql(value)
        instants, ends = self._instants(times), self._ends(times)
        names = f"dense_rank() over (order by {', '.join(map(safe, series))}) - 1" if series else "0"
        table = data.table(
            f"select {names} as c, dense_rank() over (order by filename) as f, {sql} as v from t order by line"
        )
        codes, files, numbers = (
            np.asarray(table[one].combine_chunks().cast(pa.float64()).fill_null(np.nan)) for one in "cfv"
        )
        known = (instants >= 0) & (instants <= HIGHEST_US)
        known &= np.isfinite(numbers) if self.wide else True
        known &= ends > instants if ends is not None and labels else True
        if not known.any():
            raise self.fail(
                f"no time in {' and '.join(times.columns)} is of the years 1970 to 2200, of which alone `init` sees "
                "the interval; correct the times, or write the settings by hand"
            )
        lost = float((instants == -1).mean())
        if lost > 0 and self.wide != "times":
            self._no_time(times, instants, lost)
        bad = float(np.mean(~np.isfinite(numbers) & np.array([one is not None for one in self._cells(value)])))
        if bad and not labels:
            self.said.append(("no number", f"{percent(bad)} of it, rejected: {NO_NUMBER}"))
        unit = "" if labels else unit_of(f"{value} {rows.path.stem}" if self.wide else value) or self._unit_beside()
        evidence = Evidence(
            times=times,
            zone=self.zone,
            value=value,
            unit=unit,
            query=self._query(times, series, value, sql),
            wide=bool(self.wide),
            codes=codes[known].astype(np.int64),
            instants=instants[known],
            numbers=numbers[known],
            ends=None if ends is None else ends[known],
            files=files[known],
            labels=labels,
            said=self.said,
            is_select=bool(self.wide)
            or not is_plain
            or times.sql is not None
            or (self._decimal(value) == "," and not labels)
            or bool(self.where)
            or "filename" in series
            or (
                not rows.options.get("skip")
                and not rows.options.get("names")
                and any(map(self._unnamed, (*times.columns, *series, value)))
            ),
        )
        evidence.times_end = self.end
        self._choices(evidence, series)
        measured = evidence.measured()
        self._ask(evidence, measured)
        first = series[0] if series else None
        return Look(
            rows=rows,
            times=times,
            series=first,
            names=len(np.unique(evidence.codes)),
            value=value,
            unit=unit,
            query=evidence.query,
            is_select=evidence.is_select or any(one.key == "readings.select" for one in evidence.questions),
            labels=labels,
            until=self.end if labels and ends is not None else None,
            more=evidence.more,
            measured=measured,
            said=tuple(self.said),
            questions=(*self.questions, *evidence.questions),
        )

    def _ask(self, evidence: Evidence, measured: Measured) -> None:
        """Say, and ask, what the values and times leave open."""
        value, times, labels, unit = evidence.value, evidence.times, evidence.labels, evidence.unit
        marks = self._thousands(value)
        if marks is not None and marks[2] and not labels:
            query = evidence.query
            grouped = replace(query, value=f"num_marks({query.value_name}, {literal(marks[0])}, {literal(marks[1])})")
            why = f"does the {marks[0]!r} of {value} stand before decimals, or between thousands?"
            answers = ((query.text, "decimals"), (grouped.text, "thousands"))
            evidence.questions.append(Question("readings.select", why, answers))
        is_power = ELECTRIC.search(value) or self.wide
        if is_power and not unit and not labels and not measured.rises:
            hours = measured.interval_us / 3.6e9
            of = format_duration(measured.interval_us)
            answers = (
                ("1000", "kW"),
                (f"{1000 / hours:.12g}", f"kWh in {of}"),
                ("1", "W, or no power"),
                (f"{1 / hours:.12g}", f"Wh in {of}"),
            )
            evidence.questions.append(
                Question("readings.scale", f"of which unit is {value}? The factor from it to W", answers)
            )
        if labels:
            found = self.data.connection.execute(f"select distinct {safe(value)} from t limit 100").fetchall()
            seen = sorted(one[0] for one in found if one[0] is not None)
            self.said.append(("labels", f"{len(seen)}: {listed(seen, SHOWN)}"))
            why = "which labels are states? They are public with this file, and stand in every released row"
            answers = (("[LABEL, LABEL]", "as the terminal lists them"),)
            evidence.questions.append(Question("states.categories", why, answers, flow(seen)))
        if not labels and not measured.rises and np.any(evidence.numbers < 0):
            share = percent(float(np.mean(evidence.numbers < 0)))
            self.said.append(("below 0", f"{share} of the values are below 0, such as export: an edge is at 0"))
        if times.ambiguous is not None:
            self._day_or_month(times, evidence)
        if (
            re.search(r"\bC?CES?T\b|\bMES?Z\b|lo[ck]al|\bBST\b", " ".join(times.columns))
            and self.zone == "UTC"
            and times.naive
        ):
            why = f"the times in {times.columns[0]} have no offset, and by its name they are local: of which zone?"
            evidence.questions.append(Question("slots.timezone", why, (("UTC", "or a name such as Europe/Berlin"),)))

    def _day_or_month(self, times: Times, evidence: Evidence) -> None:
        """Say, or ask, which is the day and which the month."""
        other, is_open = times.ambiguous or ("", False)
        self.said.append(("day or month", f"{other} reads the times too: see which is right, and set time_format"))
        if not is_open:
            return
        why = "both formats read the times: which is the day, which the month?"
        key, texts = "readings.time_format", (f'"{times.format}"', f'"{other_order(times.format or "")}"')
        if times.sql is not None:
            swapped = evidence.query.time.replace(literal(times.format or ""), literal(other))
            key, texts = "readings.select", (evidence.query.text, replace(evidence.query, time=swapped).text)
        evidence.questions.append(Question(key, why, ((texts[0], ""), (texts[1], ""))))

    end = ""

    def _unnamed(self, name: str) -> bool:
        return self.rows.kind == "csv" and re.fullmatch(r"column\d+", name) is not None

    def _cells(self, name: str) -> list[str | None]:
        return [one[0] for one in self.data.connection.execute(f"select {safe(name)} from t order by line").fetchall()]

    def _ends(self, times: Times) -> npt.NDArray[np.int64] | None:
        """The ends of intervals, where a column has them beside the begins."""
        if self.wide or times.is_day or not BEGIN.search(times.columns[0]):
            return None
        for one in self.other_times:
            if END.search(one.columns[0]) and not UPDATE.search(one.columns[0]):
                self.end = one.columns[0]
                return self._instants(one)
        return None

    def _no_time(self, times: Times, instants: npt.NDArray[np.int64], lost: float) -> None:
        """Say which rows have no time; few marks, such as a line of units or of totals, are left out of a SELECT."""
        column = times.columns[0]
        numbers = ", ".join(map(str, (np.flatnonzero(instants == -1) + 1)[:1000].tolist()))
        found = self.data.connection.execute(
            f"select distinct {safe(column)} from t where line in ({numbers}) and {safe(column)} is not null limit 4"
        ).fetchall()
        marks = [one[0] for one in found]
        if self.wide and len(marks) <= 3 and all(re.fullmatch(r"\D{1,20}", one) for one in marks):
            self.where.append(f"{quoted(column)} not in ({', '.join(map(literal, marks))})")
            self.said.append(
                ("no time", f"lines without a time, such as of units or totals, are left out: {len(marks)}")
            )
            return
        self.said.append(("no time", f"{percent(lost)} of the rows, rejected: {_NO_TIME}"))

    def _query(self, times: Times, series: tuple[str, ...], value: str, sql: str) -> Query:
        who = literal(self._name())
        if series:
            who = self._of_files(times) if series[0] == "filename" else quoted(series[0])
        when = times.sql or " || ' ' || ".join(map(quoted, times.columns))
        where = list(self.where)
        if self.wide and self.data.one(f"select count(*) from t where {safe(value)} is null"):
            where.append(f"{value} <> ''")
        return Query(who, when, sql, quoted(value), self.data.relation, tuple(where))

    def _of_files(self, times: Times) -> str:
        """What of the path of a file tells the series apart."""
        names = self.data.connection.execute("select distinct filename from t").fetchall()
        keys = dict.fromkeys(key for one in names for key in re.findall(r"([^/=]+)=[^/]*/", one[0]))
        tried = [f"regexp_extract(filename, {literal(key + '=([^/]*)')}, 1)" for key in keys if SERIES.search(key)]
        tried += ["file_stem(filename)", "regexp_extract(filename, '([^/]+)/[^/]+$', 1)"]
        key = ", ".join(map(safe, times.columns))
        for one in tried:
            if self.data.one(f"select count(distinct ({key}, {one})) / count(*) from t") > 0.995:
                return one
        raise self.fail(
            "neither names of files nor of their folders tell the series apart; write a column with their names"
        )

    def _choices(self, evidence: Evidence, series: tuple[str, ...]) -> None:
        """Ask about series that the columns leave open."""
        query = evidence.query
        if self.apart is not None:
            name, flags = self.apart
            flag = flags[0]
            q = quoted(flag)
            kinds = self.data.connection.execute(
                f"select {safe(flag)} from t where {safe(flag)} is not null group by 1 order by count(*) desc limit 7"
            ).fetchall()
            both = replace(query, series=f"{query.series} || '/' || {q}")
            answers = [(both.text, f"each {flag} of a {name} is a series")]
            if flag == "filename":
                both = replace(query, series=f"{query.series} || '/' || file_stem(filename)")
                answers = [(both.text, f"each file of a {name} is a series")]
            if len(kinds) < 7 and all(len(str(one[0])) <= 12 for one in kinds) and flag != "filename":
                chosen = [replace(query, where=(*query.where, f"{q} = {literal(str(one[0]))}")) for one in kinds]
                chosen_ = [(one.text, "one of them") for one in chosen]
                answers = [*chosen_, *answers] if FLAG.search(flag) else [*answers, *chosen_]
            why = f"{flag} tells rows of one {name} and time apart: which count? (of estimates: readings.cell: rank)"
            evidence.questions.append(Question("readings.select", why, tuple(answers)))
        elif len(series) == 1 and FLAG.search(series[0]) and not SERIES.search(series[0]):
            what = f"{series[0]} tells rows of one time apart: is it the series, or does it say which rows count?"
            one = replace(
                query, series=literal(self._name()), where=(*query.where, f"{quoted(series[0])} = 'ONE OF THEM'")
            )
            answers = ((query.text, "it is the series"), (one.text, "rows of one kind count"))
            evidence.questions.append(Question("readings.select", what, answers))
        elif self.files_open:
            each = replace(query, series=self._of_files(evidence.times))
            answers = ((query.text, "all files are of one"), (each.text, "each file is a meter"))
            evidence.questions.append(Question("readings.select", "is each file a meter?", answers))

    def _unit_beside(self) -> str:
        """The unit that a column, or a line of units, says."""
        for name in self.data.columns:
            if re.search(r"^(unit|einheit|uom|unit[eé]|unidad)s?$", name, re.IGNORECASE):
                found = self.data.connection.execute(f"select distinct {safe(name)} from t limit 2").fetchall()
                if len(found) == 1 and found[0][0]:
                    return unit_of(f" {found[0][0]}")
        if "period_" in self.data.columns and any(
            re.search(r"mp[ar]n|mpxn", name, re.IGNORECASE) for name in self.data.columns
        ):
            self.said.append(("unit", "kWh, as half-hourly data of MPANs are"))
            return "kWh"
        if self.wide != "series":
            return ""
        found = self.data.connection.execute(
            "select distinct reading_ from t where regexp_matches(reading_, '^[(\\[]?[A-Za-z]+[)\\]]?$') limit 9"
        ).fetchall()
        units = {unit_of(f" {one[0]}") for one in found}
        return units.pop() if len(units) == 1 else ""


_WATTS = ("MWh", "kWh", "Wh", "MW", "kW", "W")
