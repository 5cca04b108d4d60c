"""What a batch of readings must be, wherever it comes from, and its columns as numpy.

The schema is checked, not cast: a time in another unit read as microseconds would put every reading outside the
schedule, and empty windows would go on record for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.readings import GROUPED_READING_SCHEMA, RejectReason

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class ReadingsError(ValueError):
    """A batch that is not one of readings; it names the column, its type and what is expected, never a value."""


@dataclass(frozen=True, slots=True)
class ReadingColumns:
    """The columns of a batch of n rows.

    Attributes:
        names: the distinct series, Arrow text.
        series: position of each row's series in ``names``, shape (n,).
        times: microseconds since the epoch, shape (n,).
        values: values, shape (n,); not finite only where ``problems`` says so.
        groups: the distinct groups, Arrow text, or ``None``.
        group: position of each row's group in ``groups``, shape (n,), or ``None``.
        problems: rows that are no readings, each with its reason once; the other columns hold anything there.
    """

    names: pa.Array
    series: Ints
    times: Ints
    values: npt.NDArray[np.float64]
    groups: pa.Array | None
    group: Ints | None
    problems: tuple[tuple[RejectReason, Mask], ...]

    @property
    def good(self) -> Mask:
        """Which rows are readings, shape (n,)."""
        good = np.ones(len(self.series), dtype=np.bool_)
        for _, bad in self.problems:
            good &= ~bad
        return good


def reading_columns(batch: pa.RecordBatch, *, grouped: bool = False) -> ReadingColumns:
    """Take a batch apart.

    Args:
        batch: rows of ``READING_SCHEMA``; a column of names may also be plain text.
        grouped: whether it must have a column ``group``.

    Raises:
        ReadingsError: a column is absent or of another type.
    """
    columns = {name: _column(batch, name) for name in ("series", "time", "value", *(("group",) if grouped else ()))}
    taken = np.zeros(batch.num_rows, dtype=np.bool_)
    problems: list[tuple[RejectReason, Mask]] = []

    def set_aside(bad: Mask, reason: RejectReason) -> None:
        new = bad & ~taken
        if new.any():
            problems.append((reason, new))
            np.logical_or(taken, new, out=taken)

    for name, reason in _NULLS.items():
        if name in columns and columns[name].null_count:
            set_aside(columns[name].is_null().to_numpy(zero_copy_only=False), reason)
    values = columns["value"].to_numpy(zero_copy_only=False)
    set_aside(~np.isfinite(values), RejectReason.NOT_FINITE)
    names, series = _names(columns["series"])
    groups, group = _names(columns["group"]) if grouped else (None, None)
    times = columns["time"].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return ReadingColumns(names, series, times, values, groups, group, tuple(problems))


_NULLS = {
    "series": RejectReason.MISSING_SERIES,
    "time": RejectReason.UNPARSABLE_TIME,
    "value": RejectReason.MISSING_VALUE,
    "group": RejectReason.GROUP_CONFLICT,
}


def _column(batch: pa.RecordBatch, name: str) -> Any:
    at = batch.schema.get_field_index(name)
    expected = GROUPED_READING_SCHEMA.field(name).type
    if at < 0:
        raise ReadingsError(
            f"readings: a batch has no column {name!r}; it needs {name}: {expected} (schemas.READING_SCHEMA)"
        )
    kind = batch.schema.field(at).type
    text = pa.types.is_dictionary(expected) and _is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)
    if kind != expected and not text:
        raise ReadingsError(f"readings.{name} is {kind}, and must be {expected}; cast the column before this transform")
    return batch.column(at)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _names(column: Any) -> tuple[pa.Array, Ints]:
    encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    codes = encoded.indices.fill_null(0) if encoded.indices.null_count else encoded.indices
    return encoded.dictionary.cast(pa.utf8()), codes.to_numpy(zero_copy_only=False).astype(np.int64)
