"""Rejects: where rows were that are not readings, and why; never what they held.

Counts by reason are the operator's. They go to Beam counters and to the output of rejects, nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import LETTER_SCHEMA, REJECT_SCHEMA, RejectReason

#: Namespace of the Beam counters.
METRICS = "quiltstream"
#: Counter of the rows that were decoded to readings.
DECODED = "decoded-readings"
#: Counter of the messages of another kind than the settings ask for, which are neither readings nor rejects.
PASSED_OVER = "passed-over-messages"
#: Counter of the readings that count.
READINGS = "readings"
#: Counter of those before or after all windows.
OUTSIDE = "outside-schedule"


class Problem(NamedTuple):
    """Rows that cannot be readings for one reason.

    Attributes:
        rows: the rows, bool, shape (n,).
        reason: why.
    """

    rows: npt.NDArray[np.bool_]
    reason: RejectReason


class Rejects(NamedTuple):
    """Positions of rejected rows for one reason.

    Attributes:
        reason: why.
        positions: line or row numbers from 1, or offsets, int64, shape (n,).
        sizes: bytes of the rejected messages, int64, shape (n,); ``None`` of rows, whose size is unknown.
        column: number of the column from 1, where a line of a wide table has several readings; 0 of whole lines.
    """

    reason: RejectReason
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64] | None = None
    column: int = 0


def counter_name(reason: RejectReason) -> str:
    """Name of the Beam counter of a reason."""
    return f"rejected-{reason.value}"


def reject_batch(source: str, rejects: Sequence[Rejects]) -> pa.RecordBatch:
    """Write the rejects of one source as a batch of ``REJECT_SCHEMA``, without an object per row.

    The source of a reading in a wide table is ``FILE, column N``: the number of its column, because the column's name
    may be that of a series.
    """
    # the name of a file may be any bytes, which Python keeps as half characters that no text can hold
    source = source.encode("utf-8", "backslashreplace").decode("utf-8")
    reasons = [pa.repeat(pa.scalar(one.reason.value, pa.utf8()), len(one.positions)) for one in rejects]
    positions = [one.positions for one in rejects]
    sources = [
        pa.repeat(pa.scalar(f"{source}, column {one.column}" if one.column else source, pa.utf8()), len(one.positions))
        for one in rejects
    ]
    sizes = [
        pa.nulls(len(one.positions), pa.int64()) if one.sizes is None else pa.array(one.sizes, pa.int64())
        for one in rejects
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays(reasons) if reasons else pa.array([], pa.utf8()),
            pa.concat_arrays(sources) if sources else pa.array([], pa.utf8()),
            pa.array(np.concatenate(positions) if positions else np.empty(0, dtype=np.int64), pa.int64()),
            pa.concat_arrays(sizes) if sizes else pa.array([], pa.int64()),
        ],
        schema=REJECT_SCHEMA,
    )


def all_with_letters(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of rejects in the form of ``LETTER_SCHEMA``; those of readings have neither a size nor a letter."""
    absent = {"size": pa.nulls(batch.num_rows, pa.int64()), "letter": pa.nulls(batch.num_rows, pa.utf8())}
    columns = [batch.column(name) if name in batch.schema.names else absent[name] for name in LETTER_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=LETTER_SCHEMA)
