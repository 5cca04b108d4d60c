"""Columns of messages: the parts of readings that a message holds, as a file's columns are.

Expressions only find the parts of each reading. Whether a name is a name, a time a time and a value a number is decided
here and in :mod:`..formats.rows`, for every format alike. What is decided of a reading never depends on which other
messages came with it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.readings import LONGEST_NAME, RejectReason
from ..common.batches import Bools, finite_float
from ..formats.columns import RawRows
from ..formats.paths import is_text

#: Longer texts of times and values are none.
LONGEST_TEXT = 100

#: Names of so many characters are written once each before they become a column: a message may name one for each of its
#: readings.
_MOST_CHARACTERS = 1 << 22

_INT64 = (-(1 << 63), (1 << 63) - 1)
_EXACT = 1 << 53
_NUMBERS = ({int}, {float}, {int, float}, {int, type(None)}, {float, type(None)}, {int, float, type(None)})

#: Columns of :meth:`Rows.raw`.
SERIES, TIME, VALUE, GROUP = "series", "time", "value", "group"


@dataclass(slots=True)
class Rows:
    """The readings of some messages, n of them, as they are found; it belongs to one call."""

    message: list[int] = field(default_factory=list[int])  # number of each one's message
    series: Sequence[Any] = ()
    times: Sequence[Any] = ()
    values: Sequence[Any] = ()
    groups: Sequence[Any] | None = None
    # what they cover, and the ranks of their deliveries, by the names of these columns
    more: dict[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    # messages that could not be parsed, and why
    bad: dict[int, RejectReason] = field(default_factory=dict[int, RejectReason])

    def without(self, lost: Bools) -> Rows:
        """The readings but some, shape (n,)."""
        if not lost.any():
            return self
        kept = np.flatnonzero(~lost).tolist()
        message, series, times, values = (
            [column[at] for at in kept] for column in (self.message, self.series, self.times, self.values)
        )
        groups = None if self.groups is None else [self.groups[at] for at in kept]
        more: dict[str, Sequence[Any]] = {name: [column[at] for at in kept] for name, column in self.more.items()}
        return Rows(message, series, times, values, groups, more, self.bad)

    def raw(self) -> Iterator[RawRows]:
        """The rows as columns, those whose times are of one kind together; positions are numbers of messages."""
        if not self.message:
            return
        message = np.array(self.message, dtype=np.int64)
        series, broken = names(self.series)
        columns = {SERIES: series, VALUE: numbers(self.values)}
        columns |= {name: numbers(column) for name, column in self.more.items()}
        if self.groups is not None:
            columns[GROUP], ungrouped = names(self.groups)
            broken |= ungrouped
        for chosen, own in instants(self.times):
            keep = chosen & ~broken
            lost = message[chosen & broken]
            if keep.all():
                yield RawRows(columns | {TIME: own}, message, lost)
                continue
            kept = pa.array(keep)
            some = {name: column.filter(kept) for name, column in columns.items()}
            # the times of a kind stand at their own rows only
            yield RawRows(some | {TIME: own.filter(pa.array(keep[chosen]))}, message[keep], lost)


def names(given: Sequence[Any]) -> tuple[pa.Array, Bools]:
    """A column of names as a dictionary, and the rows whose name is neither text nor a whole number."""
    bad = np.zeros(len(given), dtype=np.bool_)
    if set(map(type, given)) != {str} or max(map(len, given)) > LONGEST_NAME:
        bad = np.array([not _is_name(one) for one in given], dtype=np.bool_)
        given = [str(one) if one is not None and _is_name(one) else None for one in given]
    if len(given) * LONGEST_NAME > _MOST_CHARACTERS and sum(len(one) for one in given if one) > _MOST_CHARACTERS:
        known = {one: number for number, one in enumerate(dict.fromkeys(given))}
        at = np.fromiter(map(known.__getitem__, given), np.int64, len(given))
        return _text(list(known)).dictionary_encode().take(pa.array(at)), bad
    return _text(given).dictionary_encode(), bad


def _is_name(one: Any) -> bool:
    kind = type(one)
    return one is None or kind is int or (kind is str and len(one) <= LONGEST_NAME)


def numbers(given: Sequence[Any]) -> pa.Array:
    """A column of values, ``None`` for a missing one: floats, or texts of all where some are no numbers."""
    if set(map(type, given)) in _NUMBERS:
        return _floats(given)
    return _text([_value_text(one) for one in given])


def _floats(given: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(given, pa.float64())
    except (pa.ArrowInvalid, OverflowError):  # integers that no float holds exactly
        return pa.array([None if one is None else finite_float(one) for one in given], pa.float64())


def _value_text(one: Any) -> str | None:
    """A value as text that reads as the same value, or as none."""
    if one is None:
        return None
    kind = type(one)
    if kind is int and abs(one) > _EXACT:
        one, kind = finite_float(one), float
    if kind is int or kind is float:
        return repr(one)
    if kind is Decimal or (kind is str and len(one) <= LONGEST_TEXT):
        return str(one)
    return "[]"  # neither a number nor missing


def instants(given: Sequence[Any]) -> Iterator[tuple[Bools, pa.Array]]:
    """A column of times, those of one kind together: (which rows, shape (n,); their times)."""
    kinds = {_kind(kind) for kind in set(map(type, given))}
    if len(kinds) == 1:
        yield np.ones(len(given), dtype=np.bool_), _times(given, kinds.pop())
        return
    sort = np.array([_KINDS.index(_kind(type(one))) for one in given])
    for number in np.unique(sort).tolist():
        chosen = sort == number
        yield chosen, _times([given[place] for place in np.flatnonzero(chosen).tolist()], _KINDS[number])


_KINDS: tuple[type | None, ...] = (int, float, str, dt.datetime, None)


def _kind(kind: type) -> type | None:
    return kind if kind in _KINDS else None


def _times(given: Sequence[Any], kind: type | None) -> pa.Array:
    if kind is int:
        return _integers(given)
    if kind is float:
        return pa.array(given, pa.float64())
    if kind is str:
        return _text([one if len(one) <= LONGEST_TEXT else "" for one in given])
    if kind is None:
        return pa.nulls(len(given), pa.utf8())
    zoned = [one.tzinfo is not None for one in given]
    if any(zoned) and not all(zoned):
        return _text([one.isoformat() for one in given])
    return pa.array(given, pa.timestamp("us", tz="UTC" if zoned[0] else None))


def _integers(given: Sequence[int]) -> pa.Array:
    """Integers; those beyond 64 bits become the ends, which are no times."""
    try:
        return pa.array(given, pa.int64())
    except OverflowError:
        low, high = _INT64
        return pa.array([min(max(one, low), high) for one in given], pa.int64())


def _text(given: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(given, pa.utf8())
    except (UnicodeEncodeError, pa.ArrowException):  # half of a surrogate pair has no form in UTF-8
        return pa.array([one if one is not None and is_text(one) else None for one in given], pa.utf8())
