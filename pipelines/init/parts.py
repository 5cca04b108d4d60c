"""What a look at files finds: the parts of a SELECT, times, questions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .files import Rows


@dataclass(frozen=True, slots=True)
class Question:
    """What only the author of the settings knows: a key, and what it may be."""

    key: str
    why: str
    answers: tuple[tuple[str, str], ...]  # each as the settings have it, and what it means; the first is likeliest
    unwritten: str = ""  # the likeliest answer, where it holds what no file may have


@dataclass(frozen=True, slots=True)
class Query:
    """The parts of a SELECT."""

    series: str
    time: str
    value: str
    value_name: str  # the column that the value is made of
    relation: str = "files"
    where: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # further columns

    @property
    def text(self) -> str:
        """The statement."""
        columns = [f"{self.series} as series", f"{self.time} as time", f"{self.value} as value", *self.more]
        where = f"\nwhere {' and '.join(self.where)}" if self.where else ""
        return f"select {', '.join(columns)}\nfrom {self.relation}{where}"


@dataclass(frozen=True, slots=True)
class Times:
    """The time of the rows: columns as a run reads them, or an expression."""

    columns: tuple[str, ...]
    format: str | None = None
    unit: str | None = None
    sql: str | None = None
    naive: bool = True
    # the format with day and month exchanged, where it reads the times too, and whether nothing tells which is right
    ambiguous: tuple[str, bool] | None = None
    is_day: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The readings of the first rows."""

    times_us: npt.NDArray[np.int64]  # instants, naive ones read as UTC, sorted
    interval_us: int
    values: npt.NDArray[np.float64]  # of a counter its rises
    rises: bool = False  # whether it is a meter's counter
    in_order: bool = False  # whether the order of rows tells a doubled hour apart
    local: tuple[str, ...] = ()  # what shows that times which are read as UTC are those of a clock that is set


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the first rows of files suggest."""

    rows: Rows
    times: Times
    series: str | None  # column of the series; ``None`` where there is one
    names: int
    value: str
    unit: str
    query: Query
    is_select: bool  # whether plain columns do not do
    labels: bool = False
    until: str | None = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])  # further settings of readings
    measured: Measured
    said: tuple[tuple[str, str], ...] = ()
    questions: tuple[Question, ...] = ()


def quoted(name: str) -> str:
    """A name of a column in SQL."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in _RESERVED
    return name if plain else '"' + name.replace('"', '""') + '"'


#: Words that are no names of columns without quotes.
_RESERVED = {"end", "from", "to", "group", "order", "user", "all", "in", "is", "as", "case", "when", "then", "else",
             "select", "where", "table", "column", "default", "check", "desc", "asc", "on", "or", "and", "not", "null",
             "limit", "offset", "union", "with", "using", "primary", "references", "unique", "only", "do", "any",
             "some", "both", "leading", "trailing", "analyze", "cast", "collate", "constraint", "create", "distinct",
             "except", "false", "true", "fetch", "for", "foreign", "grant", "having", "initially", "intersect",
             "into", "lateral", "placing", "qualify", "returning", "show", "summarize", "symmetric", "variadic",
             "window", "pivot", "unpivot", "describe", "array"}  # fmt: skip


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def flow(value: Any) -> str:
    """A name, or a list of names, as YAML has it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", str(value)) and str(value).lower() not in _WORDS
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
