"""Columns of measured values to float64 in the unit of the states' edges.

A finite value is never rejected for its size: what would overflow is clamped to the largest float, which lies in the
same end bin. Only what is no number at all is a reject, and then by its kind.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import RejectReason
from ..arrow_tools import pc, truths
from ..rejects import Problem

Floats = npt.NDArray[np.float64]

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
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values, others = _from_text(column)
        problems += others
    elif pa.types.is_null(kind):
        values = np.zeros(len(column))
    elif pa.types.is_float16(kind):
        values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
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
    text = pc.utf8_trim_whitespace(text.cast(pa.utf8()))
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
