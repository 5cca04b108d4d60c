"""Record batches of readings and of rejects: their schemas, their columns, and their coder in Beam.

The schema of readings is checked, not cast: a time in another unit read as microseconds would put every reading outside
the schedule, and empty windows would go on record for ever. Rejects say where rows were that are not readings, and why;
never what they held. Their counts by reason go to Beam counters and to the output of rejects, nowhere else.

Importing this module registers the coder with Beam for ``pyarrow.RecordBatch``: Arrow's own stream format, decoded
without copying a column. Pickle would copy every buffer and, where a batch is a slice, encode what the slice left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry

from ...schemas.errors import QuiltstreamError
from ...schemas.readings import (
    GROUPED_READING_SCHEMA,
    LENGTH,
    LONGEST_NAME,
    LONGEST_US,
    RANK,
    READING_SCHEMA,
    REJECT_SCHEMA,
    RejectReason,
)
from ...schemas.slots import parse_instant

#: Instants outside are typing errors; inside, no arithmetic on microseconds overflows.
LOWEST_US = parse_instant("1900-01-01")
HIGHEST_US = parse_instant("2201-01-01") - 1

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class ReadingsError(QuiltstreamError, ValueError):
    """A batch that is not one of readings; it names the column, its type and what is expected, never a value."""


@dataclass(frozen=True, slots=True)
class ReadingColumns:
    """The columns of a batch of n rows."""

    names: pa.Array  # the series, Arrow text; a dictionary of another program may have one twice
    series: Ints  # position of each row's series in ``names``, shape (n,)
    times: Ints  # microseconds since the epoch, shape (n,); of every row in the years 1900 to 2200
    values: Floats  # values, shape (n,); not finite only where ``problems`` says so
    groups: pa.Array | None  # the groups, likewise, or ``None``
    group: Ints | None  # position of each row's group in ``groups``, shape (n,), or ``None``
    # rows that are no readings, each row and each reason once; the other columns hold anything there
    problems: tuple[tuple[RejectReason, Bools], ...]
    lengths: Ints | None = None  # what each reading covers in microseconds, shape (n,); ``None`` where that is not said
    ranks: Ints | None = None  # the rank of its delivery, likewise

    @property
    def good(self) -> Bools:
        """Which rows are readings, shape (n,)."""
        good = np.ones(len(self.series), dtype=np.bool_)
        for _, bad in self.problems:
            good &= ~bad
        return good


def reading_columns(batch: pa.RecordBatch, *, grouped: bool = False, marks: bool = False) -> ReadingColumns:
    """Parse a batch into its columns; with ``marks`` a reading without a number, which ends a hold, is one, of NaN."""
    columns = {name: _column(batch, name) for name in ("series", "time", "value", *(("group",) if grouped else ()))}
    columns |= {"value": pc.fill_null(columns["value"], np.nan)} if marks else {}
    taken = np.zeros(batch.num_rows, dtype=np.bool_)
    problems: dict[RejectReason, Bools] = {}

    def set_aside(bad: Bools, reason: RejectReason) -> None:
        new = bad & ~taken
        if new.any():
            # a time may be absent in one row and beyond the calendar in the next
            problems[reason] = problems[reason] | new if reason in problems else new
            np.logical_or(taken, new, out=taken)

    for reason, bad in _given_reasons(batch):
        set_aside(bad, reason)
    names, series = _names(columns["series"])
    groups, group = _names(columns["group"]) if grouped else (None, None)
    times = columns["time"].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    # of record batches nothing else has read the times
    outside = (times < LOWEST_US) | (times > HIGHEST_US)
    named = {"series": (names, series), "group": (groups, group)}
    for name, reason in _NULLS.items():
        if name in columns and columns[name].null_count:
            set_aside(columns[name].is_null().to_numpy(zero_copy_only=False), reason)
        if name == "time" and outside.any():
            set_aside(outside, reason)
            times = np.where(outside, 0, times)
        known, codes = named.get(name, (None, None))
        if known is not None and codes is not None:
            for bad, why in ((are_long(known), RejectReason.MALFORMED_ROW), (are_absent(known), reason)):
                if bad.any():
                    set_aside(bad[codes], why)
    values = columns["value"].to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    set_aside(~finite & (not marks), RejectReason.NOT_FINITE)
    values = np.where(finite, values, np.nan) if marks else values
    lengths, ranks = (_optional(batch, field) for field in (LENGTH, RANK))
    covers = np.ones(1, dtype=np.int64) if lengths is None else lengths
    set_aside(((covers <= 0) | (covers > LONGEST_US)) & ~taken, RejectReason.BAD_INTERVAL)
    return ReadingColumns(names, series, times, values, groups, group, tuple(problems.items()), lengths, ranks)


def _optional(batch: pa.RecordBatch, field: pa.Field) -> Ints | None:
    """A column that not all readings have, as whole numbers; 0 where it is null."""
    if field.name not in batch.schema.names:
        return None
    column = batch.column(field.name)
    if column.type != field.type:
        raise ReadingsError(
            f"readings.{field.name} is {column.type}, and must be {field.type}; cast the column before this transform"
        )
    return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


#: Name of the column with the reason of a row that is rejected for what none of its other columns can say.
_REASON = "quiltstream.reason"


def with_reasons(batch: pa.RecordBatch, reasons: Sequence[RejectReason | None]) -> pa.RecordBatch:
    """A batch of readings whose rows with a reason are rejects; the batch as it is where no row has one."""
    if not any(reasons):
        return batch
    column = pa.array([None if one is None else one.value for one in reasons], pa.utf8())
    schema = batch.schema.append(pa.field(_REASON, pa.utf8()))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)


def _given_reasons(batch: pa.RecordBatch) -> Iterator[tuple[RejectReason, Bools]]:
    if (at := batch.schema.get_field_index(_REASON)) >= 0:
        column = batch.column(at)
        for reason in pc.drop_null(pc.unique(column)).to_pylist():
            yield RejectReason(reason), truths(pc.equal(column, reason))


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
        schema = "schemas.READING_SCHEMA" if name in READING_SCHEMA.names else "schemas.readings.GROUPED_READING_SCHEMA"
        raise ReadingsError(f"readings: a batch has no column {name!r}; it needs {name}: {expected} ({schema})")
    kind = batch.schema.field(at).type
    text = pa.types.is_dictionary(expected) and is_text_type(kind.value_type if pa.types.is_dictionary(kind) else kind)
    if kind != expected and not text:
        then = "cast the column before this transform"
        if name == "value":  # a code that is cast would be the number of another state
            then += f"; or, where it has labels or codes of states.categories, give {_AS_TABLE}"
        raise ReadingsError(f"readings.{name} is {kind}, and must be {expected}; {then}")
    column = batch.column(at)
    if isinstance(column, pa.DictionaryArray) and column.dictionary.null_count:
        # a null of the dictionary is not counted as one of the rows
        names = as_utf8(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, names).dictionary_decode().dictionary_encode()
    return column


#: What reads labels, which record batches do not hold.
_AS_TABLE = "a table in place of the record batch: beam.Map(lambda batch: pa.Table.from_batches([batch]))"


def are_absent(names: pa.Array) -> Bools:
    """Which names are none, shape (n,): absent, empty, or blanks only."""
    return pc.fill_null(pc.equal(pc.utf8_trim_whitespace(names), ""), fill_value=True).to_numpy(zero_copy_only=False)


def are_long(names: pa.Array) -> Bools:
    """Which names are longer than a name may be, shape (n,)."""
    return truths(pc.greater(pc.utf8_length(names), LONGEST_NAME))


def finite_float(one: Any) -> float:
    """A number as a float; one that no float is large enough for is the largest."""
    try:
        return float(one)
    except OverflowError:  # a finite value is never rejected for its size
        return sys.float_info.max if one > 0 else -sys.float_info.max


def as_floats(column: pa.Array) -> pa.Array:
    """Numbers as floats of 64 bits, those of 32 bits as the shortest decimals that are rounded to them.

    0.35 is a little less as a float of 32 bits, and would count below an edge at 0.35.
    """
    if not pa.types.is_float32(column.type):
        return column.cast(pa.float64(), safe=False)
    each = column.dictionary_encode()
    return each.dictionary.cast(pa.utf8()).cast(pa.float64()).take(each.indices)


def shortest(one: float) -> float:
    """A float of 32 bits that was widened, as :func:`as_floats` has it."""
    return float(str(np.float32(one)))


def _names(column: Any) -> tuple[pa.Array, Ints]:
    encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    codes = encoded.indices.fill_null(0) if encoded.indices.null_count else encoded.indices
    return as_utf8(encoded.dictionary), codes.to_numpy(zero_copy_only=False).astype(np.int64)


#: What a stream holds besides the buffers: schema, metadata and padding.
_ENVELOPE_BYTES = 1024


class RecordBatchCoder(Coder):
    """``pyarrow.RecordBatch`` as an Arrow IPC stream of one batch, dictionaries included."""

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Write a batch; a slice is written as itself, without what it was cut from."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return sink.getvalue().to_pybytes()

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """Read a batch; its columns point into ``encoded``."""
        with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
            return reader.read_next_batch()

    def is_deterministic(self) -> bool:
        """Equal batches may differ in the order of their dictionaries, so a batch is never a key."""
        return False

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """Size for Beam's byte counters, without encoding."""
        return int(value.get_total_buffer_size()) + _ENVELOPE_BYTES

    def to_type_hint(self) -> Any:
        """The type that the coder is registered for."""
        return pa.RecordBatch


registry.register_coder(pa.RecordBatch, RecordBatchCoder)


def typed(collection: Any, kind: Any) -> Any:
    """A tagged output, or the values of a combination, with its type, so that it has a coder of ours.

    Beam 2.62 knows no types of these (Beam's issue 18957); a single output has ``with_output_types``.
    """
    collection.element_type = kind
    return collection


#: ``pyarrow.compute``: its functions are made at import, where no type checker sees them.
pc: Any = pyarrow.compute


def is_text_type(kind: pa.DataType) -> bool:
    """Whether a type is text, in whichever of Arrow's layouts.

    >>> [is_text_type(kind) for kind in (pa.utf8(), pa.large_utf8(), pa.string_view(), pa.binary())]
    [True, True, True, False]
    """
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def as_utf8(text: pa.Array) -> pa.Array:
    """A column of text in the layout that all functions of Arrow take."""
    try:
        return text.cast(pa.utf8())
    except pa.ArrowNotImplementedError:  # Arrow 16 casts no views
        return pa.array(text.to_pylist(), pa.utf8())


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array, its dictionaries made one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()


def truths(array: pa.Array) -> Bools:
    """A column of booleans in numpy; nulls are false."""
    filled = pc.fill_null(array, False) if array.null_count else array  # noqa: FBT003 - the fill value
    return filled.to_numpy(zero_copy_only=False)


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
#: Counter of those in a cell that had one.
DUPLICATES = "duplicates"


class Problem(NamedTuple):
    """Rows that cannot be readings for one reason."""

    rows: Bools
    reason: RejectReason


class Rejects(NamedTuple):
    """Positions of rejected rows for one reason."""

    reason: RejectReason
    positions: Ints  # line or row numbers from 1, or offsets, int64, shape (n,)
    # bytes of the rejected messages, int64, shape (n,); ``None`` of rows, whose size is unknown
    sizes: Ints | None = None


def counter_name(reason: RejectReason) -> str:
    """Name of the Beam counter of a reason."""
    return f"rejected-{reason.value}"


def reject_batch(source: str, rejects: Sequence[Rejects]) -> pa.RecordBatch:
    """Write the rejects of one source as a batch of ``REJECT_SCHEMA``, without an object per row."""
    # the name of a file may be any bytes, which Python keeps as half characters that no text can hold
    source = source.encode("utf-8", "backslashreplace").decode("utf-8")
    parts: list[list[pa.Array]] = [[pa.array([], kind) for kind in REJECT_SCHEMA.types]]
    for one in rejects:
        count = len(one.positions)
        texts = [pa.repeat(pa.scalar(text, pa.utf8()), count) for text in (one.reason.value, source)]
        sizes = pa.nulls(count, pa.int64()) if one.sizes is None else pa.array(one.sizes, pa.int64())
        parts.append([*texts, pa.array(one.positions, pa.int64()), sizes])
    columns = [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=REJECT_SCHEMA)


#: Stands in the place of a reject of a reading: readings have no position behind the decoder.
_DECODED = "(after decoding)"


def decoded_reject_batch(rejects: Mapping[RejectReason, int]) -> pa.RecordBatch:
    """Write how many readings were rejected for each reason as a batch of ``REJECT_SCHEMA``."""
    nowhere = (Rejects(reason, np.full(count, -1, dtype=np.int64)) for reason, count in rejects.items())
    return reject_batch(_DECODED, [*nowhere])
