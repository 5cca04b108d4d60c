"""Wide tables to readings: a line has a reading in each column of a series, or in each column of a time of the day.

The columns are put one below the other as Arrow arrays; no Python runs for a cell. An empty cell is how such a table
says that there is no reading, so it is no reject. What is wrong with a whole line, such as its time, is a reject of the
line; what is wrong with a cell is one of its line and column.

>>> clock_times(["0:30", "12:00", "23:30", "0:00"]) // 3_600_000_000 * 1.0
array([ 0., 12., 23., 24.])
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA, RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.mappings import Readings, Wide
from ...schemas.slots import DAY_US
from ..common.rejects import Problem, Rejects
from .csv import missing_column
from .rows import CellColumns, Columns, Decoded, Floats, Labels, RawRows, RowDecoder, first_of_each_row

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: A time of the day: 0:30, 00:30:00, 12.30 am, 0030, or the first of two, as in 00:00-00:30.
_CLOCK = re.compile(
    r"(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.]00)?(?: ?(?P<half>am|pm))?(?: ?(?:-|\u2013|to) ?\d.*)?"
    r"|(?P<hours>\d{2})(?P<minutes>\d{2})",
    re.IGNORECASE,
)
_MINUTE_US = 60_000_000


def clock_time(name: str) -> int | None:
    """Microseconds since midnight of a time of the day that a column is named by; ``None`` for other names."""
    found = _CLOCK.fullmatch(name.strip())
    if found is None:
        return None
    hour, minute = int(found["hour"] or found["hours"] or 0), int(found["minute"] or found["minutes"] or 0)
    if found["half"]:
        if not 1 <= hour <= 12:  # noqa: PLR2004 - hours of half a day
            return None
        hour = hour % 12 + 12 * (found["half"].lower() == "pm")
    of_day = (hour * 60 + minute) * _MINUTE_US
    return of_day if minute < 60 and of_day <= DAY_US else None  # noqa: PLR2004 - minutes of an hour


def clock_columns(names: Sequence[str]) -> list[int]:
    """Places of the names that are times of the day.

    Four digits may as well be a year. They are a time only where all times are written so, evenly over a whole day.
    """
    found = [at for at, name in enumerate(names) if clock_time(name) is not None]
    others = [at for at in found if not names[at].strip().isdecimal()]
    if len(others) == len(found):
        return found
    times = clock_times([names[at] for at in found])
    steps = np.diff(times)
    is_day = len(steps) > 0 and bool((steps == steps[0]).all()) and len(times) * int(steps[0]) == DAY_US
    return found if is_day and not others else others


def clock_times(names: Sequence[str]) -> Ints:
    """Microseconds since midnight of each column of times; a last midnight is that at the end of the day.

    Args:
        names: the columns in their order, all of them times.
    """
    found = np.array([clock_time(name) or 0 for name in names], dtype=np.int64)
    if len(found) > 1 and found[-1] == 0:
        found[-1] = DAY_US
    return found


def _times_problem(names: Sequence[str], numbers: Ints, header: Sequence[str], path: str) -> str | None:
    """What is wrong with columns that are to be times of the day."""
    times = clock_columns(names)
    if not times:
        return (
            f"readings.wide: {path} has no column named by a time such as 00:30 among its {len(header)}; check the "
            "header, or readings.wide"
        )
    if len(times) < len(names):
        first = min(set(range(len(names))) - set(times))
        return (
            f"readings.wide: {len(names) - len(times)} of the {len(header)} columns of {path} are no times of the day "
            f"from 00:00 to 24:00, as column {numbers[first]}; name those that are none in readings.wide.without, and "
            "write times with a colon unless all are four digits, evenly over a whole day"
        )
    falls = np.flatnonzero(np.diff(clock_times(names)) <= 0)
    if len(falls):
        return (
            f"readings.wide: column {numbers[falls[0] + 1]} of the {len(header)} of {path} is of no later time of the "
            "day than the column of a time before it; order the columns by time, each time once, with a midnight that "
            "ends the day last"
        )
    return None


def wide_columns(wide: Wide, columns: Columns, header: Sequence[str], path: str) -> CellColumns:
    """The columns of values of a table.

    A name of a column may be that of a person, so no message has one that is not in the settings.

    Args:
        wide: the settings.
        columns: the columns that are named by other settings.
        header: the names of all columns; blanks around them do not matter, and a column without a name is not read.
        path: for messages.

    Raises:
        SettingsError: a column that the settings name is missing or there twice; there are no columns of values, too
            many, or several of one name; or a column is to be a time, and is none or not later than the one before.
    """
    places = defaultdict[str, list[int]](list)
    for number, name in enumerate(header, 1):
        places[name.strip()].append(number)
    named = [*columns.settings, *(("readings.wide.without", one) for one in wide.without)]
    problems = [
        missing_column(setting, name, path, header, hidden=True)
        for setting, name in named
        if name.strip() not in places
    ]
    problems += [
        f"{setting}: {path} has {len(found)} columns {name!r}; rename all but one"
        for setting, name in columns.settings
        if len(found := places.get(name.strip(), [])) > 1
    ]
    if problems:
        raise SettingsError(problems)
    others = {name.strip() for _, name in named}
    of_series = wide.columns == "series"
    chosen = [numbers for name, numbers in places.items() if name and name not in others]
    if not chosen:
        raise SettingsError(
            [
                f"readings.wide: {path} has no column beside those that other settings name among its {len(header)}; "
                "check the header, or readings.wide"
            ]
        )
    many = sum(map(len, chosen))
    if many > wide.most_columns:
        raise SettingsError(
            [
                f"readings.wide: {path} has {many:,} columns of values, more than {wide.most_columns:,}, the limit of "
                "readings.wide.most_columns; raise it if the workers have the memory, or make a row of each reading"
            ]
        )
    twice = [numbers for numbers in chosen if len(numbers) > 1]
    if twice:
        raise SettingsError(
            [
                f"readings.wide: {sum(map(len, twice))} of the {len(header)} columns of {path} have the name of "
                f"another one, as {twice[0][0]} and {twice[0][1]}; rename them, or name them in readings.wide.without"
            ]
        )
    numbers = np.array([one for (one,) in chosen], dtype=np.int64)
    names = tuple(header[one - 1] for (one,) in chosen)
    problem = None if of_series else _times_problem(names, numbers, header, path)
    if problem is not None:
        raise SettingsError([problem])
    return CellColumns(names, numbers, clock_times(() if of_series else names))


class WideRows(RowDecoder):
    """Lines of a wide table to readings, by the settings.

    Args:
        readings: the columns and how to read them.
        timezone: zone of stamps without an offset.
        group: column with the group, in a table of times.
        labels: what reads the values, where they are labels.

    Raises:
        ValueError: the time format cannot be read.
        SettingsError: a table of series is to have a column of groups.
    """

    def __init__(
        self, readings: Readings, *, timezone: str = "UTC", group: str | None = None, labels: Labels | None = None
    ) -> None:
        self._of_series = readings.wide is None or readings.wide.columns == "series"
        if self._of_series and group is not None:
            raise SettingsError(
                [
                    f"group_by names the column {group!r}, and a line of a wide table of series is of all of them; "
                    "name the groups in a roster file"
                ]
            )
        super().__init__(readings, timezone=timezone, group=group, labels=labels)
        self._made: tuple[CellColumns, pa.DictionaryArray] | None = None

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some lines; the time this takes in Python does not depend on how many they are.

        Raises:
            SettingsError: the key of the pseudonyms is not on this machine.
        """
        rejects = [Rejects(RejectReason.MALFORMED_ROW, raw.malformed)] if len(raw.malformed) else []
        lines, cells = len(raw.positions), raw.cells
        if not lines or cells is None:
            return Decoded(None, 0, tuple(rejects))
        width = len(cells.names)
        dates = [raw.columns[one] for one in self.columns.times]
        if self._of_series:
            each = self._series_of(cells)
            series = each.take(pa.array(np.repeat(np.arange(width), lines)))
            stamps, problems = self._instants(raw, None)
            times, wrong, groups = np.tile(stamps, width), list[Problem](), list[pa.DictionaryArray]()
        else:
            each, problems = self._series(raw)
            grouped, more = self._groups(raw)
            below = pa.array(np.tile(np.arange(lines), width))
            series, groups = each.take(below), [one.take(below) for one in grouped]
            stamps, days, skipped = self._times.read_days(dates, cells.of_day_us)
            times, wrong = stamps.ravel(), [Problem(skipped.ravel(), RejectReason.NONEXISTENT_LOCAL_TIME)]
            problems = [*problems, *days, *more]
        good = np.ones(lines, dtype=np.bool_)
        for bad, reason in first_of_each_row(problems):
            rejects.append(Rejects(reason, raw.positions[bad]))
            good &= ~bad
        values, more = self._values([raw.columns[name] for name in cells.names])
        empty = np.zeros(lines * width, dtype=np.bool_)
        for bad, reason in more:
            if reason is RejectReason.MISSING_VALUE:
                empty |= bad
            else:
                wrong.append(Problem(bad, reason))
        keep = np.tile(good, width) & ~empty
        for bad, reason in first_of_each_row([Problem(one.rows & keep, one.reason) for one in wrong]):
            rejects += _of_columns(bad.reshape(width, lines), reason, raw.positions, cells)
            keep &= ~bad
        if not keep.any():
            return Decoded(None, 0, tuple(rejects))
        arrays: list[pa.Array] = [
            series, pa.array(times).view(pa.timestamp("us", tz="UTC")), pa.array(values), *groups,
        ]  # fmt: skip
        positions = np.tile(raw.positions, width)
        if not keep.all():
            kept = pa.array(keep)
            arrays = [array.filter(kept) for array in arrays]
            times, positions = times[keep], positions[keep]
        readings = pa.RecordBatch.from_arrays(arrays, schema=GROUPED_READING_SCHEMA if groups else READING_SCHEMA)
        return Decoded(readings, int(times.min()), tuple(rejects), positions)

    def _series_of(self, cells: CellColumns) -> pa.DictionaryArray:
        """The series of each column, under its pseudonym where there are pseudonyms; made once for a file."""
        if self._made is None or self._made[0] is not cells:
            numbers = pa.array(np.arange(len(cells.names), dtype=np.int32))
            each = pa.DictionaryArray.from_arrays(numbers, pa.array(cells.names, pa.utf8()))
            self._made = (cells, each if self._pseudonyms is None else self._pseudonyms.of(each))
        return self._made[1]

    def _values(self, columns: list[pa.Array]) -> tuple[Floats, list[Problem]]:
        """The values of all columns, one below the other."""
        kind = columns[0].type
        if not pa.types.is_dictionary(kind) and all(column.type == kind for column in columns):
            return self._read(pa.concat_arrays(columns))
        lines, problems = len(columns[0]), list[Problem]()
        values = np.zeros((len(columns), lines))
        for at, column in enumerate(columns):
            values[at], more = self._read(column)
            for bad, reason in more:
                rows = np.zeros((len(columns), lines), dtype=np.bool_)
                rows[at] = bad
                problems.append(Problem(rows.ravel(), reason))
        return values.ravel(), problems


def _of_columns(bad: Bools, reason: RejectReason, positions: Ints, cells: CellColumns) -> Iterator[Rejects]:
    """The rejects of each column that has one; shape (columns, lines)."""
    for at in np.flatnonzero(bad.any(axis=1)).tolist():
        yield Rejects(reason, positions[bad[at]], column=int(cells.numbers[at]))


__all__ = ["WideRows", "clock_columns", "clock_time", "clock_times", "wide_columns"]
