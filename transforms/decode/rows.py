"""Raw rows to readings: what every file format has in common once its rows are taken apart into columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.mappings import Constant, column_of
from ...schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA, RejectReason
from ...schemas.settings import Readings
from ...schemas.slots import parse_instant
from ..rejects import Problem, Rejects
from .names import PseudonymsOf, constant_names, read_names
from .times import TimeReader
from .values import read_values

Ints = npt.NDArray[np.int64]

_YEAR_1971_US = parse_instant("1971-01-01")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a reading is made of.

    Attributes:
        series: column with the series; ``None`` where all rows belong to one.
        times: columns with the event time.
        value: column with the value.
        group: column with the group, if the grouping comes from the data.
    """

    series: str | None
    times: tuple[str, ...]
    value: str
    group: str | None = None

    @classmethod
    def of(cls, readings: Readings, group: str | None = None) -> Columns:
        """The columns that the settings name.

        Raises:
            SettingsError: they name what only messages have.
        """
        readings.check_columns()
        return cls(column_of(readings.series), readings.time_columns, column_of(readings.value) or "", group)

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(setting, column) of each, for messages."""
        named = [("readings.series", self.series), *(("readings.time", one) for one in self.times)]
        named += [("readings.value", self.value), ("group_by", self.group)]
        return tuple((setting, column) for setting, column in named if column is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Each column once."""
        return tuple(dict.fromkeys(column for _, column in self.settings))


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows as a format's parser left them.

    Attributes:
        columns: arrays by name, n rows each, of any type.
        positions: line or row numbers from 1, shape (n,).
        malformed: positions of what could not be taken apart, shape (m,).
    """

    columns: dict[str, pa.Array]
    positions: Ints
    malformed: Ints

    @classmethod
    def lost(cls, malformed: Ints) -> RawRows:
        """Only malformed lines."""
        return cls({}, np.empty(0, dtype=np.int64), malformed)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of some raw rows.

    Attributes:
        readings: rows of ``READING_SCHEMA`` or ``GROUPED_READING_SCHEMA``; ``None`` if there are none.
        earliest_us: the earliest reading's instant, 0 if there are none.
        rejects: the other rows; each is in exactly one of them.
        rows: the position of each reading's row, shape (n,); ``None`` where a reading is not of one row.
    """

    readings: pa.RecordBatch | None
    earliest_us: int
    rejects: tuple[Rejects, ...]
    rows: Ints | None = None


def earliest_of(readings: pa.RecordBatch) -> int:
    """Instant of the earliest of some readings."""
    return int(readings.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False).min())


class RowReader(Protocol):
    """Turns the raw rows of a file into readings; it belongs to one worker."""

    columns: Columns

    @property
    def memory(self) -> str:
        """What a position must carry of the rows before it, as text."""
        ...

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some rows."""
        ...


class RowDecoder:
    """Raw rows to readings, by the settings.

    Args:
        readings: the columns and how to read them.
        timezone: zone of stamps without an offset.
        group: column with the group.
        live_clocks: whether the times are of devices that work now, so that one in 1970 is a mistake of a clock or a
            unit.

    Raises:
        ValueError: the time format cannot be read.
        SettingsError: the readings are mapped in a way that only messages have.
    """

    def __init__(
        self, readings: Readings, *, timezone: str = "UTC", group: str | None = None, live_clocks: bool = False
    ) -> None:
        self.columns = Columns.of(readings, group)
        self._constant = readings.series.constant if isinstance(readings.series, Constant) else ""
        self._times = TimeReader(timezone, readings.ambiguous, readings.time_format, readings.time_unit)
        self._scale = readings.scale
        self._live_clocks = live_clocks
        self._pseudonyms = None if readings.pseudonyms is None else PseudonymsOf(readings.pseudonyms)

    @property
    def memory(self) -> str:
        """Nothing: each row speaks for itself."""
        return ""

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some rows; the time this takes in Python does not depend on how many they are.

        Raises:
            SettingsError: the key of the pseudonyms is not on this machine.
        """
        rejects = [Rejects(RejectReason.MALFORMED_ROW, raw.malformed)] if len(raw.malformed) else []
        rows = len(raw.positions)
        if not rows:
            return Decoded(None, 0, tuple(rejects))
        names = self.columns
        series, problems = (
            (constant_names(self._constant, rows), [])
            if names.series is None
            else read_names(raw.columns[names.series], RejectReason.MISSING_SERIES)
        )
        if self._pseudonyms is not None:
            series = self._pseudonyms.of(series)
        times, more = self._times.read([raw.columns[one] for one in names.times])
        problems = [*problems, *more]
        if self._live_clocks:
            unset = (times >= 0) & (times < _YEAR_1971_US)
            for one in more:
                unset &= ~one.rows  # a row without a time has a meaningless one
            if unset.any():
                problems.append(Problem(unset, RejectReason.IMPLAUSIBLE_TIME))
        groups: list[pa.Array] = []
        if names.group is not None:
            group, more = read_names(raw.columns[names.group], RejectReason.GROUP_CONFLICT)
            groups = [group]
            problems += more
        values, more = read_values(raw.columns[names.value], self._scale)
        problems += more
        keep = np.ones(rows, dtype=np.bool_)
        for bad, reason in _first_of_each_row(problems):
            rejects.append(Rejects(reason, raw.positions[bad]))
            keep &= ~bad
        arrays: list[Any] = [series, pa.array(times).view(pa.timestamp("us", tz="UTC")), pa.array(values), *groups]
        positions = raw.positions
        if not keep.all():
            if not keep.any():
                return Decoded(None, 0, tuple(rejects))
            kept = pa.array(keep)
            arrays = [array.filter(kept) for array in arrays]
            times, positions = times[keep], positions[keep]
        schema = GROUPED_READING_SCHEMA if groups else READING_SCHEMA
        readings = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return Decoded(readings, int(times.min()), tuple(rejects), positions)


def _first_of_each_row(problems: list[Problem]) -> list[Problem]:
    """Each row with the first of its problems only; malformed rows first."""
    seen: npt.NDArray[np.bool_] | None = None
    firsts: list[Problem] = []
    for rows, reason in sorted(problems, key=lambda one: one.reason is not RejectReason.MALFORMED_ROW):
        fresh = rows if seen is None else rows & ~seen
        seen = rows if seen is None else seen | rows
        if fresh.any():
            firsts.append(Problem(fresh, reason))
    return firsts
