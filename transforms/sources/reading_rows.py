"""Readings of a pipeline's own: dicts, Beam rows, named tuples and data frames, gathered into record batches.

Data frames are those that give themselves as Arrow (``__arrow_c_stream__``), as polars and pandas from 2.2 on do; those
of Beam become rows by ``to_pcollection``.

Past here everything is Arrow. A type of elements that is none of these, or lacks a field, is refused with what to map
it to where Beam knows it, when the graph is built. Later an element may be a message that anybody sent: one of another
type is a reject, and the log says once of each type what to map it to. Nothing but types and names of fields is said,
never a value.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from typing import Any, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.typehints import typehints
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ...schemas.readings import GROUPED_READING_SCHEMA, LENGTH, LONGEST_US, RANK, READING_SCHEMA, RejectReason
from ...schemas.states import StateSpace
from ..common.batches import ReadingsError, as_floats, finite_float, is_text_type, whole, with_reasons
from ..formats.paths import is_text
from ..formats.rows import Labels, read_lengths
from ..formats.times import TimeReader
from ..readings.slots import Words

LOG = logging.getLogger("quiltstream.rows")

#: Readings gathered before a bundle ends.
_ROWS = 8_192

#: Numbers from here on are no names.
_LARGEST_NAME = 10**100

#: Types of elements that have no fields.
_NO_ROWS = (str, bytes, int, float, bool)

_TAKEN = (
    "PrivateHistograms takes dicts, beam.Row, named tuples or data frames with {fields}, and Arrow record "
    "batches of schemas.READING_SCHEMA: map yours before it, for example beam.Map(lambda one: {{{example}}}); a "
    "frame is one element, as in beam.Create([frame])"
)


def batched(
    readings: Any, read: Mapping[str, Any], space: StateSpace, *, grouped: bool, words: Words | None = None
) -> Any:
    """A collection of readings of any kind that is taken as one of record batches; one of these is returned as it is.

    Raises:
        ReadingsError: its elements are of a type that is not taken, or lack a field.
    """
    kind = readings.element_type
    if kind is pa.RecordBatch:
        return readings
    schema = GROUPED_READING_SCHEMA if grouped else READING_SCHEMA
    if words is not None:
        more = [LENGTH] * (words.length_us == LONGEST_US and words.hold_us is None) + [RANK] * words.rank
        schema = pa.schema([*schema, *more])
    _check_type(kind, schema)
    ambiguous = read.get("ambiguous", "earliest")
    if ambiguous == "in-order":
        raise ReadingsError(
            "readings.ambiguous is in-order, the order of a file's rows, and the elements of a collection have none; "
            "set earliest or latest, or give the offset"
        )
    times = TimeReader(read["timezone"], ambiguous)
    return readings | "Rows" >> beam.ParDo(BatchRows(times, space, schema)).with_output_types(pa.RecordBatch)


def _check_type(kind: Any, schema: pa.Schema) -> None:
    row = RowTypeConstraint.from_user_type(kind) if isinstance(kind, type) else kind
    if isinstance(row, RowTypeConstraint):
        known = {name for name, _ in getattr(row, "_fields", ())}
        absent = [name for name in schema.names if name not in known]
        if known and absent:
            raise _refused(f"rows without the field {absent[0]}", schema)
    elif kind in _NO_ROWS or isinstance(kind, (typehints.TupleConstraint, typehints.ListConstraint)):
        raise _refused(f"of the type {getattr(kind, '__name__', kind)}", schema)


def _refused(what: str, schema: pa.Schema) -> ReadingsError:
    fields = f"{', '.join(schema.names[:-1])} and {schema.names[-1]}"
    example = ", ".join(f"'{name}': ..." for name in schema.names)
    return ReadingsError(f"readings are {what}: {_TAKEN.format(fields=f'the fields {fields}', example=example)}")


class _IrregularError(ReadingsError):
    """An element, or a column of a frame, of a type that is not taken: why it is rejected."""

    def __init__(self, message: str, reason: RejectReason) -> None:
        super().__init__(message)
        self.reason = reason


@lru_cache(maxsize=256)
def log_irregular(message: str, reason: str) -> None:
    """Log what to map a type to, once in a process: there are few types and many elements."""
    LOG.warning("%s; what is of such a type is rejected as %s", message, reason)


class BatchRows(beam.DoFn):
    """Elements to record batches of readings; record batches pass as they are.

    An element of a type that is not taken is a row with the reason why it is rejected; so are all rows of a frame with
    such a column.

    A batch has the earliest timestamp of its elements, so that the watermark does not pass any of them.
    """

    def __init__(self, times: TimeReader, space: StateSpace, schema: pa.Schema = READING_SCHEMA) -> None:
        self._times = times
        self._labels = Labels.of(space)
        self._schema = schema
        self._held: list[tuple[Any, ...]] = []
        self._reasons: list[RejectReason | None] = []
        self._earliest = MAX_TIMESTAMP

    def start_bundle(self) -> None:
        """Nothing is kept from one bundle to the next."""
        self._held, self._reasons, self._earliest = [], [], MAX_TIMESTAMP

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Take one element."""
        if isinstance(element, pa.RecordBatch):
            yield element
        elif hasattr(element, "__arrow_c_stream__") and hasattr(element, "columns"):  # a column of a frame is none
            yield self._of_frame(pa.table(element))
        else:
            row, reason = self._row(element)
            self._held.append(row)
            self._reasons.append(reason)
            self._earliest = min(self._earliest, timestamp)
            if len(self._held) >= _ROWS:
                yield TimestampedValue(*self._taken())

    def finish_bundle(self) -> Any:
        """Emit what is held."""
        if self._held:
            batch, at = self._taken()
            yield WindowedValue(batch, at, (GlobalWindow(),))

    def _taken(self) -> tuple[pa.RecordBatch, Timestamp]:
        columns = dict(zip(self._schema.names, map(list, zip(*self._held, strict=True)), strict=True))
        columns["time"] = self._times_of(pa.array(columns["time"], pa.utf8()))
        if self._labels is not None:
            columns["value"] = _states(self._labels, pa.array(columns["value"], pa.utf8()))
        batch = pa.RecordBatch.from_arrays(
            [_array(column, self._schema.field(name).type) for name, column in columns.items()], schema=self._schema
        )
        batch, at = with_reasons(batch, self._reasons), self._earliest
        self.start_bundle()
        return batch, at

    def _row(self, element: Any) -> tuple[tuple[Any, ...], RejectReason | None]:
        """The fields of a row, or none and why it is rejected."""
        try:
            return self._fields(element), None
        except _IrregularError as irregular:
            log_irregular(str(irregular), irregular.reason.value)
            return (None,) * len(self._schema.names), irregular.reason

    def _fields(self, element: Any) -> tuple[Any, ...]:
        names = self._schema.names
        if isinstance(element, Mapping):
            absent = [name for name in names if name not in element]
            found: list[Any] = [] if absent else [element[name] for name in names]
        else:
            absent = [name for name in names if not hasattr(element, name)]
            found = [] if absent else [getattr(element, name) for name in names]
        if absent:
            raise self._malformed(f"of the type {type(element).__name__} without the field {absent[0]}")
        series, time, value, *more = found
        read = _number(value) if self._labels is None else _label(value)
        return _name("series", series), _stamp(time), read, *map(_more, names[3:], more)

    def _malformed(self, what: str) -> _IrregularError:
        return _IrregularError(str(_refused(what, self._schema)), RejectReason.MALFORMED_ROW)

    def _times_of(self, column: pa.Array) -> pa.Array:
        """Instants; null for what is none, which is tallied by its reason."""
        utc, problems = self._times.read([column])
        bad = np.logical_or.reduce([np.zeros(len(column), dtype=np.bool_), *(one.rows for one in problems)])
        return pa.array(utc, pa.int64(), mask=bad).cast(pa.timestamp("us", tz="UTC"))

    def _of_frame(self, frame: pa.Table) -> pa.RecordBatch:
        try:
            return self._read_frame(frame)
        except _IrregularError as irregular:
            log_irregular(str(irregular), irregular.reason.value)
            nothing = [pa.nulls(frame.num_rows, self._schema.field(name).type) for name in self._schema.names]
            return with_reasons(
                pa.RecordBatch.from_arrays(nothing, schema=self._schema), [irregular.reason] * frame.num_rows
            )

    def _read_frame(self, frame: pa.Table) -> pa.RecordBatch:
        absent = [name for name in self._schema.names if name not in frame.column_names]
        if absent:
            raise self._malformed(f"a table without the column {absent[0]}")
        doubled = [name for name in self._schema.names if frame.column_names.count(name) > 1]
        if doubled:
            raise self._malformed(f"a table with several columns {doubled[0]}")
        columns = {name: whole(frame.column(name)) for name in self._schema.names}
        arrays = [_array(self._column(name, columns[name]), self._schema.field(name).type) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, column: pa.Array) -> Any:
        kind = column.type
        if name == "time":
            value = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_temporal(value) or is_text_type(value)) or pa.types.is_time(value):
                raise _unit_unknown(str(value))
            return self._times_of(column)
        if name == "value" and self._labels is not None:
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            known = is_text_type(plain) or any(one(plain) for one in _OF_LABELS)
            texts = column if known else pa.array([_label(one) for one in column.to_pylist()], pa.utf8())
            return _states(self._labels, texts)
        if name == "value":
            number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            return as_floats(column) if number else [_number(one) for one in column.to_pylist()]
        if name == LENGTH.name:
            return pa.array(read_lengths(column))
        return [_more(name, one) for one in column.to_pylist()]


def _more(name: str, value: Any) -> Any:
    """What a reading covers, in microseconds; the rank of its delivery; or a name."""
    if name == LENGTH.name:
        if isinstance(value, dt.timedelta):
            return value // dt.timedelta(microseconds=1)
        seconds = _finite(name, value)
        return None if seconds is None else round(min(max(seconds, 0.0), LONGEST_US / 1e5) * 1e6)
    if name == RANK.name:
        rank = _finite(name, value)
        return None if rank is None else round(min(max(rank, -(2.0**62)), 2.0**62))
    return _name(name, value)


def _finite(name: str, value: Any) -> float | None:
    try:
        number = _number(value)
    except _IrregularError:
        reason = RejectReason.BAD_INTERVAL if name == LENGTH.name else RejectReason.MALFORMED_ROW
        kind = type(value).__name__
        raise _IrregularError(
            f"readings.{name} is of the type {kind}, and must be a number: map it to one", reason
        ) from None
    return number if number is not None and math.isfinite(number) else None


#: Kinds of columns besides texts that hold labels, as :class:`.rows.Labels` reads them.
_OF_LABELS = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null
)  # fmt: skip


def _states(labels: Labels, column: pa.Array) -> pa.Array:
    """The numbers of the states of labels; null for a missing one, and -1, which is rejected later, for no state's."""
    values, problems = labels.read(column)
    missing = np.zeros(len(column), dtype=np.bool_)
    for bad, reason in problems:
        if reason is RejectReason.MISSING_VALUE:
            missing |= bad
        else:
            values[bad] = -1.0
    return pa.array(values, pa.float64(), mask=missing)


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column.cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(column, pa.utf8()).dictionary_encode()
    counted = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    return pa.array(column, pa.int64()).cast(kind) if counted else pa.array(column, kind)


def _is_absent(value: Any) -> bool:
    """Whether a value is that of a data frame's absent cell: none, not itself, or neither equal nor not."""
    if value is None:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124 - see above
    except (TypeError, ValueError, ArithmeticError):  # of several values, or of none that can be compared
        return True


def _stamp(time: Any) -> str | None:
    """A time as a text of ISO 8601, of UTC where it has an offset; ``None`` for what is no instant."""
    if isinstance(time, Timestamp):
        return f"{np.datetime64(int(time.micros), 'us')}Z"
    if isinstance(time, np.datetime64):
        return str(time.astype("datetime64[us]"))
    if _is_absent(time):
        return None
    if not isinstance(time, (str, dt.date)):
        raise _unit_unknown(type(time).__name__)
    try:
        found = dt.datetime.fromisoformat(time.strip()) if isinstance(time, str) else time
        if isinstance(found, dt.datetime) and found.tzinfo is not None:
            found = found.astimezone(dt.UTC)
        return found.isoformat()
    except (ValueError, OverflowError):  # the text may hold data; the row is tallied by its reason
        return None


def _unit_unknown(kind: str) -> _IrregularError:
    return _IrregularError(
        f"readings.time is of the type {kind}, whose unit is not known: give a datetime, an ISO 8601 text or a Beam "
        "Timestamp",
        RejectReason.UNPARSABLE_TIME,
    )


def _name(field: str, value: Any) -> str | None:
    """A name; numbers are names as they are written. What is no text that can be written is absent."""
    if _is_absent(value):
        return None
    if isinstance(value, str):
        return value if is_text(value) else None
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, *_NO_NUMBERS)):
        return str(int(value)) if abs(int(value)) < _LARGEST_NAME else None
    raise _IrregularError(
        f"readings.{field} is of the type {type(value).__name__}, and must be a text: map it to one",
        RejectReason.MISSING_SERIES if field == "series" else RejectReason.GROUP_CONFLICT,
    )


#: What numpy counts among numbers, or whole ones, and no reading is.
_NO_NUMBERS = (np.complexfloating, np.timedelta64)


def _number(value: Any) -> float | None:
    """A value; ``None`` for an absent one. One that no float is large enough for is the largest."""
    if isinstance(value, Decimal) and value.is_nan():
        return math.nan
    if not isinstance(value, (bool, *_NO_NUMBERS)) and isinstance(value, (Real, Decimal, np.number)):
        return finite_float(value)
    if _is_absent(value):
        return None
    raise _no_value(value, RejectReason.NOT_A_NUMBER)


def _label(value: Any) -> str | None:
    """A label as a text; ``None`` for an absent one. A number is one by its digits, as it is in a column of a file."""
    if isinstance(value, str):
        return str(value) if is_text(value) else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if (isinstance(value, Decimal) and value.is_nan()) or _is_absent(value):
        return None
    number: Any = finite_float(value) if isinstance(value, Decimal) else value
    if isinstance(number, (float, np.floating)) and number == 0:
        number = abs(number)  # -0.0 is 0
    if not isinstance(number, _NO_NUMBERS) and isinstance(number, (Real, np.number, np.bool_)):
        return _digits(cast("Any", number))
    raise _no_value(value, RejectReason.UNKNOWN_LABEL)


@lru_cache(maxsize=4096, typed=True)
def _digits(value: Any) -> str:
    try:
        return str(pa.scalar(value).cast(pa.utf8()).as_py())
    except (pa.ArrowException, OverflowError):  # of another type than columns of files, or too large for it
        whole = isinstance(value, int) and abs(value) < _LARGEST_NAME
        return str(value) if whole else str(pa.scalar(finite_float(value)).cast(pa.utf8()).as_py())


def _no_value(value: Any, reason: RejectReason) -> _IrregularError:
    return _IrregularError(
        f"readings.value is of the type {type(value).__name__}, and must be a number in the unit of states.edges, or "
        "a label where states.categories are named: map it to one, and a value that is absent to None",
        reason,
    )
