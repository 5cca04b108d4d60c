"""The columns that readings are made of, whether a file has them, and rows of them as a format's parser leaves them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from ...schemas.readings import RANK
from ...schemas.settings.base import SettingsError
from ...schemas.settings.readings import Readings
from ..common.batches import Ints, is_text_type
from ..readings.slots import Words


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a reading is made of."""

    series: str | None  # column with the series; ``None`` where all rows belong to one
    times: tuple[str, ...]
    value: str
    group: str | None = None
    length: str | None = None  # column with what a reading covers
    rank: str | None = None
    labels: bool = False  # whether the values are labels, which are text whatever they look like

    @classmethod
    def of(
        cls, readings: Readings, group: str | None = None, *, labels: bool = False, words: Words | None = None
    ) -> Columns:
        """The columns that the settings name."""
        readings.check_columns()
        length = readings.length if readings.length_us is None else None
        return cls(
            readings.series if isinstance(readings.series, str) else None,
            readings.time_columns,
            readings.value or "",
            group,
            length=length,
            rank=RANK.name if words is not None and words.rank else None,
            labels=labels,
        )

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(setting, column) of each that a setting names, for messages."""
        named = [("readings.series", self.series), *(("readings.time", one) for one in self.times)]
        named += [("readings.value", self.value), ("group_by", self.group)]
        named += [("readings.length", self.length), ("readings.cell", self.rank)]
        return tuple((setting, column) for setting, column in named if column is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Each column once."""
        return tuple(dict.fromkeys(column for _, column in self.settings))


#: A number, what stands for one, or a date or time in digits or with the name of a month.
_VALUE = re.compile(
    r"^[-+]?[.,]?\d|\d[-/.:]\d|^[-+]?(nan|inf|infinity|null|none|na|n/a|true|false)$"
    r"|\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\W+\d",
    re.IGNORECASE,
)


#: How many names of columns a message shows.
_SHOWN = 50


def missing_column(setting: str, column: str, path: str, available: Sequence[str]) -> str:
    """The message about a column that is not there.

    The first line of a file without a header is data. If anything in it looks like a value, no name is shown.
    """
    then = f"change {setting}"
    if any(_VALUE.search(name.strip()) for name in available):
        known = f"{len(available)} column{'' if len(available) == 1 else 's'}, not shown because some look like values"
        then = f"check that its first line is a header, or {then}"
    else:
        shown = available if len(available) <= _SHOWN else get_close_matches(column, available, 3) or available[:_SHOWN]
        known = ", ".join(map(repr, shown)) or "no columns"
        mark = next((one for one in ";\t|," if len(available) == 1 and one in available[0]), None)
        if mark is not None:
            then = f"set source.delimiter to {json.dumps(mark)}"
    return f"{setting} names the column {column!r}, which {path} does not have; it has {known}: {then}"


def named_once(header: Sequence[str]) -> list[str]:
    """Names that SQL tells apart, whatever their case, from each other and from ``filename`` and ``line``.

    A missing one is ``column`` and its number; the second of two ends in ``_1``.
    """
    made, taken = list[str](), {"filename", "line"}
    for at, name in enumerate(header):
        plain = one = name.strip() or f"column{at}"
        number = 0
        while one.lower() in taken:
            number += 1
            one = f"{plain}_{number}"
        taken.add(one.lower())
        made.append(one)
    return made


#: What a column is to be, by the setting that names it.
_WANTED = {"readings.series": "a name", "readings.value": "a number", "group_by": "a name"}


def check_columns(schema: pa.Schema, path: str, columns: Columns) -> None:
    """See whether the columns of a file are those of the settings, and of types that can be read.

    Raises:
        SettingsError: they are not; one line for every column.
    """
    problems: list[str] = []
    for setting, name in columns.settings:
        places = schema.get_all_field_indices(name)
        if len(places) > 1:
            problems.append(f"{setting}: {path} has {len(places)} columns {name!r}; rename all but one")
        elif not places:
            problems.append(missing_column(setting, name, path, schema.names))
        elif not _fits(schema.field(places[0]).type, setting, joined=len(columns.times) > 1):
            problems.append(
                f"{setting}: the column {name!r} of {path} is of type {schema.field(places[0]).type}, which cannot be "
                f"read as {_WANTED.get(setting, 'a time')}; name another column or convert it"
            )
    if problems:
        raise SettingsError(problems)


def _fits(kind: pa.DataType, setting: str, *, joined: bool) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text_type(kind):
        return True
    if _WANTED.get(setting) == "a name":
        return pa.types.is_integer(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if setting in ("readings.value", "readings.cell", "readings.length"):
        return number or pa.types.is_null(kind) or (setting == "readings.length" and pa.types.is_duration(kind))
    clock = pa.types.is_time(kind) and joined  # a time of the day needs its day
    return number or clock or pa.types.is_date(kind) or pa.types.is_timestamp(kind)


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows as a format's parser left them."""

    columns: dict[str, pa.Array]  # arrays by name, n rows each, of any type
    positions: Ints  # line or row numbers from 1, shape (n,)
    malformed: Ints  # positions of what could not be parsed, shape (m,)

    @classmethod
    def lost(cls, malformed: Ints) -> RawRows:
        """Only malformed lines."""
        return cls({}, np.empty(0, dtype=np.int64), malformed)
