"""Rows of any file format to readings: names, values, and the positions of malformed rows.

A finite value is never rejected for its size: what would overflow is clamped to the largest float, which lies in the
same end bin. Only what is no number at all is a reject, and then by its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ...schemas.readings import (
    GROUPED_READING_SCHEMA,
    LENGTH,
    LONGEST_US,
    OF_VALUES,
    RANK,
    READING_SCHEMA,
    RejectReason,
)
from ...schemas.settings.readings import Constant, Readings
from ...schemas.settings.secrets import PseudonymKey, Pseudonyms
from ...schemas.slots import DAY_US, YEAR_1971_US
from ...schemas.states import StateSpace
from ..common.batches import (
    Bools,
    Floats,
    Ints,
    Problem,
    Rejects,
    are_absent,
    are_long,
    as_floats,
    as_utf8,
    is_text_type,
    pc,
    truths,
)
from ..readings.slots import Words
from .columns import Columns, RawRows
from .paths import is_utf8
from .times import Order, TimeReader

#: Names whose pseudonyms are remembered, and the characters of these names; with more they are made again.
_REMEMBERED, _CHARACTERS = 1 << 18, 1 << 24


class PseudonymsOf:
    """Replaces names by pseudonyms, each distinct name once; it belongs to one worker."""

    def __init__(self, place: Pseudonyms) -> None:
        self._place = place
        self._key: PseudonymKey | None = None
        self._known: dict[str, str] = {"": ""}  # an empty name is a reject, and stays one
        self._characters = 0

    def of(self, names: pa.DictionaryArray) -> pa.DictionaryArray:
        """The same rows under pseudonyms."""
        if self._key is None:
            self._key = self._place.key()
        if len(self._known) > _REMEMBERED or self._characters > _CHARACTERS:
            self._known, self._characters = {"": ""}, 0
        known, made = self._known, list[str]()
        for name in names.dictionary.to_pylist():
            if name not in known:
                known[name] = self._key.name(name)
                self._characters += len(name)
            made.append(known[name])
        return pa.DictionaryArray.from_arrays(names.indices, pa.array(made, pa.utf8()))


def read_names(column: pa.Array, empty: RejectReason) -> tuple[pa.DictionaryArray, list[Problem]]:
    """Read a column of names: the names, shape (n,), and the rows without one, whose reason is ``empty``."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names, broken = _as_text(encoded.dictionary)
    if (long := are_long(names)).any():
        # the dictionary goes with the rows that are kept
        names, broken = pc.if_else(pa.array(long), "", names), broken | long
    # the numbers of names that cannot be one; the dictionary is small next to the rows
    absent = are_absent(names)
    indices = encoded.indices
    numbers = (indices.fill_null(0) if indices.null_count else indices).to_numpy(zero_copy_only=False)
    problems: list[Problem] = []
    if broken.any():
        problems.append(Problem(broken[numbers], RejectReason.MALFORMED_ROW))
    if len(names) == 0:
        names, numbers, absent = pa.array([""], pa.utf8()), np.zeros(len(column), dtype=np.int32), np.ones(1, np.bool_)
    if indices.null_count or absent.any():
        rows = absent[numbers]
        if indices.null_count:
            rows = rows | pc.is_null(indices).to_numpy(zero_copy_only=False)
        problems.append(Problem(rows, empty))
        names = names.fill_null("")
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32, copy=False)), names), problems


def _as_text(dictionary: pa.Array) -> tuple[pa.Array, Bools]:
    try:
        names = as_utf8(dictionary)
        names.validate(full=True)
    except pa.ArrowInvalid:
        given = dictionary.cast(pa.binary()).to_pylist()
        whole = [one is None or is_utf8(one) for one in given]
        kept = pa.array([one if good else b"" for one, good in zip(given, whole, strict=True)], pa.binary())
        return kept.cast(pa.utf8()), ~np.array(whole, dtype=np.bool_)
    return names, np.zeros(len(names), dtype=np.bool_)


#: Spellings of a missing value in text files.
MISSING = ("", "NA", "N/A", "#N/A", "na", "n/a", "NULL", "Null", "null", "None")

_LARGEST = np.finfo(np.float64).max
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_NOT_FINITE = r"(?i)^[+-]?(inf|infinity|nan)$"


def read_values(column: pa.Array, scale: float = 1.0) -> tuple[Floats, list[Problem]]:
    """Read a column of values.

    Args:
        column: numbers, decimals or text, shape (n,).
        scale: factor to the unit of the edges, finite and not 0.

    Returns:
        The values, shape (n,), and the rows without one; their values mean nothing.
    """
    if pa.types.is_dictionary(column.type):
        return _from_dictionary(column, scale)
    kind = column.type
    problems: list[Problem] = []
    if column.null_count:
        missing = pc.is_null(column).to_numpy(zero_copy_only=False)
        problems.append(Problem(missing, RejectReason.MISSING_VALUE))
    if is_text_type(kind):
        values, others = _from_text(column)
        problems += others
    elif pa.types.is_null(kind):
        values = np.zeros(len(column))
    elif pa.types.is_float16(kind):
        values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        values = as_floats(column).to_numpy(zero_copy_only=False)
    else:
        values = np.zeros(len(column))
        problems.append(Problem(np.ones(len(column), dtype=np.bool_), RejectReason.NOT_A_NUMBER))
    finite = np.isfinite(values)
    if not finite.all():
        problems.append(Problem(~finite, RejectReason.NOT_FINITE))
    return _scaled(values, scale), problems


def _from_dictionary(column: pa.DictionaryArray, scale: float) -> tuple[Floats, list[Problem]]:
    """The same of values that stand for several rows each: each is read once, and its text is never repeated."""
    each, problems = read_values(column.dictionary, scale)
    missing = truths(pc.is_null(column.indices))
    at = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    if not len(each):
        return np.zeros(len(column)), [Problem(missing, RejectReason.MISSING_VALUE)] if len(column) else []
    found = [Problem(rows[at] & ~missing, reason) for rows, reason in problems]
    if missing.any():
        found.insert(0, Problem(missing, RejectReason.MISSING_VALUE))
    return each[at], found


def _scaled(values: Floats, scale: float) -> Floats:
    if scale == 1:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * scale
    return np.clip(scaled, -_LARGEST, _LARGEST) if abs(scale) > 1 else scaled


def _from_text(text: pa.Array) -> tuple[Floats, list[Problem]]:
    text = pc.utf8_trim_whitespace(as_utf8(text))
    rows = len(text)
    missing = truths(pc.is_in(text, value_set=pa.array([*MISSING, None], pa.utf8())))
    number = truths(pc.match_substring_regex(text, _NUMBER))
    spelled = truths(pc.match_substring_regex(text, _NOT_FINITE))
    problems: list[Problem] = []
    if missing.any():
        problems.append(Problem(missing, RejectReason.MISSING_VALUE))
    broken = ~(missing | number | spelled)
    if broken.any():
        problems.append(Problem(broken, RejectReason.NOT_A_NUMBER))
    if spelled.any():
        problems.append(Problem(spelled, RejectReason.NOT_FINITE))
    values = pc.cast(pc.if_else(pa.array(number), text, pa.scalar("0", pa.utf8())), pa.float64())
    # a decimal number beyond the largest float is still a finite number
    return np.clip(values.to_numpy(zero_copy_only=False), -_LARGEST, _LARGEST).reshape(rows), problems


@dataclass(frozen=True, slots=True)
class Labels:
    """Reads labels as the numbers of their states.

    A label is compared with those of the settings and goes nowhere else: what is none of them is a reject without it.
    """

    space: StateSpace

    @classmethod
    def of(cls, space: StateSpace) -> Labels | None:
        """What reads the values of a job; ``None`` where they are numbers."""
        return cls(space) if space.categories else None

    def read(self, column: pa.Array) -> tuple[Floats, list[Problem]]:
        """The states of labels, shape (n,), and the rows without one; blanks around a label do not matter.

        Numbers are labels by their digits, 1.0 as 1 is; a float that is no number is a missing label.
        """
        labels, problems = read_names(_numbered(column), RejectReason.MISSING_VALUE)
        each = labels.dictionary
        trimmed = pc.utf8_trim_whitespace(each)
        states = [self.space.state_of(label) for label in trimmed.to_pylist()]
        missing = pa.array([one for one in _NO_LABEL if one not in self.space.categories])
        at = labels.indices.to_numpy(zero_copy_only=False)
        problems += [
            Problem(bad, reason)
            for reason, bad in (
                (RejectReason.MISSING_VALUE, truths(pc.is_in(trimmed, value_set=missing))[at]),
                (RejectReason.UNKNOWN_LABEL, np.array([state is None for state in states], dtype=np.bool_)[at]),
            )
            if bad.any()
        ]
        return np.array([state or 0 for state in states], dtype=np.float64)[at], problems


def _numbered(column: pa.Array) -> pa.Array:
    """A column of labels whose floats are all numbers, of a type that Arrow has dictionaries of."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return column
    floats = column.cast(kind if pa.types.is_float32(kind) else pa.float64(), safe=False)
    # -0.0 is 0
    return pc.if_else(pc.is_nan(floats), pa.scalar(None, floats.type), pc.add(floats, pa.scalar(0.0, floats.type)))


#: Spellings of a missing value that are no labels; "None" may be one, and a category of any spelling is one.
_NO_LABEL = ("", "NA", "N/A", "#N/A", "na", "n/a", "NULL", "Null", "null")


def read_lengths(column: pa.Array) -> Ints:
    """What readings cover, microseconds, shape (n,): durations, or seconds; 0 for what is neither."""
    if column.type == pa.month_day_nano_interval():
        parts = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
        one = np.frombuffer(column.buffers()[1], parts)[column.offset : column.offset + len(column)]
        length = one["days"].astype(np.int64) * DAY_US + one["nanoseconds"] // 1_000
        return np.where((one["months"] == 0) & truths(pc.is_valid(column)), length, 0)
    if pa.types.is_duration(column.type):
        return column.cast(pa.duration("us")).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    seconds, problems = read_values(column)
    for one in problems:
        seconds = np.where(one.rows, 0.0, seconds)
    return np.rint(np.clip(seconds, 0, LONGEST_US / 1e5) * 1e6).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of some raw rows."""

    # rows of ``READING_SCHEMA`` or ``GROUPED_READING_SCHEMA``; ``None`` if there are none
    readings: pa.RecordBatch | None
    earliest_us: int  # the earliest reading's instant, 0 if there are none
    rejects: tuple[Rejects, ...]  # the other rows; each is in exactly one of them
    # the position of each reading's row, shape (n,); ``None`` where a reading is not of one row
    rows: Ints | None = None
    passed: int = 0  # messages that hold neither a reading nor a mistake: of another kind than the settings ask for


class FileOrder:
    """Which of two doubled hours a row is in, by the order of the rows of one file.

    The times of a series rise, so a doubled time that does not rise above the one before is in the second hour, and so
    is what follows it. Rows of a block of text that are parsed one by one, because of irregular quotes, come after the
    others of the block.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, bool]] = {}

    def second(self, names: list[str], codes: Ints, rows: Ints, stamps: Ints, changes: Ints) -> Bools:
        """Which rows are in the second hour; the few rows of the two hours are looked at one by one."""
        found: list[bool] = []
        for code, stamp, change in zip(codes[rows].tolist(), stamps.tolist(), changes.tolist(), strict=True):
            last, passed = self._seen.get((names[code], change), (stamp - 1, False))
            passed = passed or stamp <= last
            self._seen[names[code], change] = (stamp, passed)
            found.append(passed)
        return np.array(found, dtype=np.bool_)


class RowReader(Protocol):
    """Turns the raw rows of a file into readings; it belongs to one worker."""

    columns: Columns

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some rows."""
        ...


class RowDecoder:
    """Raw rows to readings, by the settings.

    Raises:
        ValueError: the time format cannot be read.
        SettingsError: the readings are mapped in a way that only messages have.
    """

    def __init__(
        self,
        readings: Readings,
        *,
        timezone: str = "UTC",
        group: str | None = None,
        live_clocks: bool = False,
        labels: Labels | None = None,
        words: Words | None = None,
    ) -> None:
        self.columns = Columns.of(readings, group, labels=labels is not None, words=words)
        self._words = words
        self._length_us = readings.length_us
        self._at_end = readings.stamps == "end"
        self._labels = labels
        self._constant = readings.series.constant if isinstance(readings.series, Constant) else ""
        self._times = TimeReader(timezone, readings.ambiguous, readings.time_format, readings.time_unit)
        self._order = FileOrder() if readings.ambiguous == "in-order" else None
        self._scale = readings.scale
        self._live_clocks = live_clocks
        self._pseudonyms = None if readings.pseudonyms is None else PseudonymsOf(readings.pseudonyms)

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some rows; the time this takes in Python does not depend on how many they are."""
        rejects = [Rejects(RejectReason.MALFORMED_ROW, raw.malformed)] if len(raw.malformed) else []
        rows, columns, words = len(raw.positions), self.columns, self._words
        if not rows:
            return Decoded(None, 0, tuple(rejects))
        problems: list[Problem] = []

        def good(found: tuple[Any, list[Problem]]) -> Any:
            problems.extend(found[1])
            return found[0]

        series = good(self._series(raw))
        times = good(self._instants(raw, series))
        schema, arrays = READING_SCHEMA, list[pa.Array]()
        if columns.group is not None:
            schema = GROUPED_READING_SCHEMA
            arrays.append(good(read_names(raw.columns[columns.group], RejectReason.GROUP_CONFLICT)))
        value = raw.columns[columns.value]
        values, of_values = read_values(value, self._scale) if self._labels is None else self._labels.read(value)
        problems += of_values
        if (length := self._length(raw, rows)) is not None:
            problems.append(Problem((length <= 0) | (length > LONGEST_US), RejectReason.BAD_INTERVAL))
            times = times - length if self._at_end else times
            if words is not None:
                schema = schema.append(LENGTH)
                arrays.append(pa.array(length).view(LENGTH.type))
        if columns.rank is not None:
            ranks, broken = read_values(raw.columns[columns.rank])
            problems += [Problem(one.rows, RejectReason.MALFORMED_ROW) for one in broken]
            schema = schema.append(RANK)
            arrays.append(pa.array(np.clip(np.nan_to_num(ranks), -(2.0**62), 2.0**62).astype(np.int64)))
        # what is no number ends a hold: it goes on without a value, and is a reject beside that
        marks = OF_VALUES if words is not None and words.hold_us is not None else frozenset[RejectReason]()
        keep = np.ones(rows, dtype=np.bool_)
        for bad, reason in first_of_each_row(problems):
            rejects.append(Rejects(reason, raw.positions[bad]))
            if reason in marks:
                values = np.where(bad, np.nan, values)
            else:
                keep &= ~bad
        batch = pa.RecordBatch.from_arrays([series, _utc(times), pa.array(values), *arrays], schema=schema)
        return _decoded(batch, times, raw.positions, keep, rejects)

    def _length(self, raw: RawRows, rows: int) -> Ints | None:
        """What each row covers, microseconds, where the settings say it."""
        if self._length_us is not None:
            return np.full(rows, self._length_us, dtype=np.int64)
        return None if self.columns.length is None else read_lengths(raw.columns[self.columns.length])

    def _series(self, raw: RawRows) -> tuple[pa.DictionaryArray, list[Problem]]:
        column, rows = self.columns.series, len(raw.positions)
        if column is not None:
            series, problems = read_names(raw.columns[column], RejectReason.MISSING_SERIES)
        else:
            numbers = pa.array(np.zeros(rows, dtype=np.int32))
            series = pa.DictionaryArray.from_arrays(numbers, pa.array([self._constant], pa.utf8()))
            problems = []
        return (series if self._pseudonyms is None else self._pseudonyms.of(series)), problems

    def _instants(self, raw: RawRows, series: pa.DictionaryArray) -> tuple[Ints, list[Problem]]:
        """The times of rows, and those that have none that can be."""
        order: Order | None = None
        if self._order is not None:
            names, codes = series.dictionary.to_pylist(), series.indices.to_numpy(zero_copy_only=False)
            order = partial(self._order.second, names, codes)
        times, problems = self._times.read([raw.columns[one] for one in self.columns.times], order)
        if self._live_clocks:
            unset = (times >= 0) & (times < YEAR_1971_US)
            for one in problems:
                unset &= ~one.rows  # a row without a time has a meaningless one
            problems = [*problems, Problem(unset, RejectReason.IMPLAUSIBLE_TIME)]
        return times, problems


def _decoded(batch: pa.RecordBatch, times: Ints, rows: Ints, keep: Bools, rejects: list[Rejects]) -> Decoded:
    """The rows that are readings, and the rejects."""
    if not keep.any():
        return Decoded(None, 0, tuple(rejects))
    if keep.all():
        return Decoded(batch, int(times.min()), tuple(rejects), rows)
    return Decoded(batch.filter(pa.array(keep)), int(times[keep].min()), tuple(rejects), rows[keep])


def _utc(times: Ints) -> pa.Array:
    return pa.array(times).view(pa.timestamp("us", tz="UTC"))


def first_of_each_row(problems: list[Problem]) -> list[Problem]:
    """Each row with the first of its problems only; malformed rows first."""
    seen: Bools | None = None
    firsts: list[Problem] = []
    for rows, reason in sorted(problems, key=lambda one: one.reason is not RejectReason.MALFORMED_ROW):
        fresh = rows if seen is None else rows & ~seen
        seen = rows if seen is None else seen | rows
        if fresh.any():
            firsts.append(Problem(fresh, reason))
    return firsts
