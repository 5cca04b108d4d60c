"""Readings and rejects at the boundary between decoding and everything after it.

A reading is (series, event time, value). Past the decoder readings travel as Arrow batches of ``READING_SCHEMA``,
with one more dictionary column ``group`` where the grouping comes from the data.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

_NAME = pa.dictionary(pa.int32(), pa.utf8())

#: One row a reading: whose, when (UTC), and the value in the unit of the state space's edges; of categories the number
#: of the state, from 0.
READING_SCHEMA = pa.schema(
    [
        pa.field("series", _NAME, nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)

#: The same with the group of each reading, for ``group_by`` a column.
GROUPED_READING_SCHEMA = READING_SCHEMA.append(pa.field("group", _NAME, nullable=False))


#: What a reading covers, from its time on, and the rank of its delivery: readings have them where the settings say so.
LENGTH = pa.field("length", pa.duration("us"), nullable=False)
RANK = pa.field("rank", pa.int64(), nullable=False)

#: What a reading covers at most, in microseconds: the longest day of any zone. A longer one is a reject.
LONGEST_US = 26 * 3_600_000_000

#: Characters of the name of a series or group. A longer one is none: a sender could repeat it for each of its readings,
#: and the ledger keeps the names of series.
LONGEST_NAME = 1_000


class RejectReason(StrEnum):
    """Why a row or message of the input is not a reading. No reason depends on the size of a finite value."""

    MALFORMED_ROW = "malformed-row"
    MISSING_SERIES = "missing-series"
    UNPARSABLE_TIME = "unparsable-time"
    NONEXISTENT_LOCAL_TIME = "nonexistent-local-time"
    MISSING_VALUE = "missing-value"
    NOT_A_NUMBER = "not-a-number"
    NOT_FINITE = "not-finite"
    UNKNOWN_LABEL = "unknown-label"
    BAD_INTERVAL = "bad-interval"
    NOT_IN_ROSTER = "not-in-roster"
    GROUP_CONFLICT = "group-conflict"
    LATE = "late"
    AHEAD = "ahead"
    DAMAGED_SOURCE = "damaged-source"
    TOO_LARGE = "too-large"
    IMPLAUSIBLE_TIME = "implausible-time"
    UNKNOWN_SCHEMA = "unknown-schema"
    MIXED_UNITS = "mixed-units"

    @property
    def text(self) -> str:
        """The reason in words, for the operator."""
        return _TEXTS[self]


#: Reasons that are about the value: the reading's cell is left without it.
OF_VALUES = frozenset(
    {RejectReason.MISSING_VALUE, RejectReason.NOT_A_NUMBER, RejectReason.NOT_FINITE, RejectReason.UNKNOWN_LABEL}
)

_TEXTS = {
    RejectReason.MALFORMED_ROW: "the row or line could not be taken apart into columns, an element lacks a field, or a "
    f"name is longer than {LONGEST_NAME:,} characters",
    RejectReason.MISSING_SERIES: "the series is empty, or no text",
    RejectReason.UNPARSABLE_TIME: "the time is empty, not a time, or outside the years 1900 to 2200",
    RejectReason.NONEXISTENT_LOCAL_TIME: "the local time was skipped by a clock change",
    RejectReason.MISSING_VALUE: "the value is empty: the cell stays without a reading",
    RejectReason.NOT_A_NUMBER: "the value is not a number: the cell stays without a reading",
    RejectReason.NOT_FINITE: "the value is NaN or infinite: the cell stays without a reading",
    RejectReason.UNKNOWN_LABEL: "the label is none of states.categories: the cell stays without a reading",
    RejectReason.BAD_INTERVAL: "what it covers is nothing, or more than 26 hours",
    RejectReason.NOT_IN_ROSTER: "the series is not in the roster",
    RejectReason.GROUP_CONFLICT: "the row names no group, or another one than the roster does",
    RejectReason.LATE: "the reading came after its windows had closed",
    RejectReason.AHEAD: "the reading came over a day before its windows, or their step, begin",
    RejectReason.DAMAGED_SOURCE: "a file of a live source could not be read to its end; what it held is lost",
    RejectReason.TOO_LARGE: "the message is larger than readings.max_bytes",
    RejectReason.IMPLAUSIBLE_TIME: "the time lies in 1970: a clock that was never set, or another unit than time_unit",
    RejectReason.UNKNOWN_SCHEMA: "the schema that the message names is not known, or is of a kind that is not read",
    RejectReason.MIXED_UNITS: "its values are of several units, or of another than the setting or standard says",
}

#: Where rejected rows were, and why; never what they held. Of messages how many bytes they have; rows of files, and
#: readings that are rejected later, have no size.
REJECT_SCHEMA = pa.schema(
    [
        pa.field("reason", pa.utf8(), nullable=False),
        pa.field("source", pa.utf8(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("size", pa.int64()),
    ]
)
