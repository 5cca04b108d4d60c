"""Releases: the published rows, one noisy histogram of one series or group in one window.

Everything in a row is public. ``RELEASE_SCHEMA`` is the Arrow form that leaves ``PrivateHistograms`` and that the file
sinks write; its metadata name the version. A version is never changed in meaning: a new meaning is a new field.
A row that is sent again is the same bytes under the same ``release_id``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .digests import canonical_json
from .errors import ArgumentError
from .ledger import arrow_schema
from .noise_laws import INDEPENDENT, NO_NOISE, ZERO_SUM
from .slots import time_zone
from .states import StateSpace

RELEASE_VERSION = "1"

#: What ``completeness`` says, from the best to the least: the source was read as it came; it was read from what it
#: had kept when the job began, again or for the first time; the window was closed while the source, or a partition of
#: it, was silent before the window's end, so that what it sends later is late; the source may have lost readings of the
#: window before they were read.
COMPLETENESS = LIVE, REPLAYED, SILENT, UNAVAILABLE = "live", "replayed", "silent", "unavailable"


def least_complete(one: str, other: str) -> str:
    """Which of two parts of a window was read less completely.

    >>> least_complete(REPLAYED, LIVE), least_complete(REPLAYED, SILENT), least_complete(SILENT, UNAVAILABLE)
    ('replayed', 'silent', 'unavailable')
    """
    return max(one, other, key=COMPLETENESS.index)


#: Columns of rows by classes of slots, or of categories.
_OF_SOME = "by", "classes", "class_slots", "labels"

#: Columns of lists.
_LISTS = "edges", "counts", "estimate", *_OF_SOME


@dataclass(frozen=True, slots=True)
class Release:
    """One published histogram.

    Attributes:
        release_id: digest of domain, query, query digest, window and key: the name sinks are keyed by.
        domain: the series that one budget protects.
        query: the named statistic.
        query_digest: digest of everything that determines its numbers.
        key_kind: ``series`` or ``group``.
        key: name of the series or group.
        window_start: start of the window, microseconds since the epoch, UTC.
        window_stop: end of the window, microseconds since the epoch, UTC.
        window: ``day``, ``week`` or ``month`` of the calendar of ``timezone``; of windows that follow no calendar their
            length, as settings say durations.
        timezone: zone of the settings' clock: of the calendar, and of the hours of classes of slots.
        slots: slots in the window.
        members: series that the histogram sums over.
        edges: edges of the bins; ``None`` where the states are categories.
        unit: unit of the edges.
        missing: the rule for cells without a reading.
        counts: noisy number of cells per state, may be negative; the last one is the missing state where that exists.
            With classes of slots, those of the first class, then those of the second one, and so on.
        total: number of cells counted, where that is public.
        estimate: the noisy counts projected onto non-negative counts with that total; with classes of slots, those of
            each class onto the total of the class.
        scale: scale of the discrete Laplace noise in each count.
        scale_exact: the same as an exact fraction.
        half_width_95: each noisy count is within this many cells of the true count with probability at least 0.95.
        epsilon_dp: loss per slot of this release.
        loss_before: loss of the domain before this window was charged, epsilon.
        loss_after: loss of the domain after it.
        guarantee: ``stream`` or ``window``.
        mechanism: how the noise was calibrated; ``none`` for noise-free rows of tests.
        quilt: (left, right) distances of the Markov quilt that decided; ``None`` for an absent side.
        model_id: digest of the belief.
        model_provenance: where the belief comes from.
        given_model: whether the loss holds only given a model estimated from the protected series.
        completeness: ``live``, ``replayed``, ``silent`` or ``unavailable``, from source positions only.
        noise_law: ``discrete-laplace``, independent in each count; ``discrete-laplace-zero-sum``, conditioned on sum
            zero over the counts of a class of slots, which then add up to the cells counted in it, and all to
            ``total``; ``none``.
        by: what tells the classes of slots apart; ``None`` for a histogram of all slots.
        classes: labels of the classes, in the order of ``counts``; each part of a label is one of ``by``.
        class_slots: slots of the window in each class; in a class without any every count is 0.
        labels: where the states are categories, their labels in the order of ``counts``, that of the missing state
            included; ``None`` for bins. They come from the settings, never from readings.
    """

    release_id: str
    domain: str
    query: str
    query_digest: str
    key_kind: str
    key: str
    window_start: int
    window_stop: int
    window: str
    timezone: str
    slots: int
    members: int
    edges: tuple[float, ...] | None
    unit: str
    missing: str
    counts: tuple[int, ...]
    total: int | None
    estimate: tuple[float, ...] | None
    scale: float
    scale_exact: str
    half_width_95: int
    epsilon_dp: float
    loss_before: float
    loss_after: float
    guarantee: str
    mechanism: str
    quilt: tuple[int | None, int | None]
    model_id: str
    model_provenance: str
    given_model: bool
    completeness: str
    noise_law: str
    by: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    class_slots: tuple[int, ...] | None = None
    labels: tuple[str, ...] | None = None

    @property
    def space(self) -> StateSpace:
        """What the counts are of."""
        return StateSpace.of_row(self.edges, self.unit, self.missing, self.labels)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form: lists for tuples, the quilt as ``{"left": a, "right": b}``."""
        row = {f.name: getattr(self, f.name) for f in fields(self)}
        row |= {name: list(row[name]) for name in _LISTS if row[name] is not None}
        return row | {"quilt": {"left": self.quilt[0], "right": self.quilt[1]}}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Release:
        """The inverse of :meth:`to_dict`; columns of later versions are ignored."""
        known = {f.name: row[f.name] for f in fields(cls)}
        known |= {name: tuple(known[name]) for name in _LISTS if known[name] is not None}
        known["quilt"] = (known["quilt"]["left"], known["quilt"]["right"])
        return cls(**known)


_STAMP = pa.timestamp("us", tz="UTC")

#: One row a release; ``docs/releases.md`` explains each column.
RELEASE_SCHEMA = arrow_schema(
    Release,
    {
        "window_start": _STAMP,
        "window_stop": _STAMP,
        "quilt": pa.struct([pa.field("left", pa.int64()), pa.field("right", pa.int64())]),
    },
    {"quiltstream.schema": "release", "quiltstream.version": RELEASE_VERSION},
)


def _avro_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "items": _avro_type(kind.value_type)}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_struct(kind):
        return {
            "type": "record",
            "name": "Quilt",
            "fields": [{"name": f.name, "type": ["null", _avro_type(f.type)], "default": None} for f in kind],
        }
    return {pa.utf8(): "string", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "boolean"}[kind]


#: The Avro form of the same columns.
RELEASE_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Release",
    "namespace": f"quiltstream.v{RELEASE_VERSION}",
    "fields": [
        {"name": f.name, "type": ["null", _avro_type(f.type)], "default": None}
        if f.nullable
        else {"name": f.name, "type": _avro_type(f.type)}
        for f in RELEASE_SCHEMA
    ],
}


#: Columns that say whose counts these are.
_OF_KEYS = "domain", "query", "key", "window_start", "window_stop"

#: Columns that a count has from its row as they are: what it counts, the law of its noise, what it cost, and by whom.
_OF_ROWS = (
    "unit", "missing", "key_kind", "window", "timezone", "slots", "members", "noise_law", "scale", "scale_exact",
    "epsilon_dp", "loss_before", "loss_after", "guarantee", "mechanism", "model_id", "model_provenance", "given_model",
    "completeness", "query_digest", "release_id",
)  # fmt: skip

#: Columns of a row of which nothing stands in the rows of its counts.
_NOT_TIDY = "quilt", "by"

#: One row a count of a release: :func:`tidy`.
TIDY_SCHEMA = pa.schema(
    [
        *map(RELEASE_SCHEMA.field, _OF_KEYS),
        pa.field("class", pa.utf8(), nullable=False),
        pa.field("class_slots", pa.int64(), nullable=False),
        pa.field("bin", pa.utf8(), nullable=False),
        pa.field("bin_low", pa.float64()),
        pa.field("bin_high", pa.float64()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("low_95", pa.int64(), nullable=False),
        pa.field("high_95", pa.int64(), nullable=False),
        RELEASE_SCHEMA.field("half_width_95"),
        pa.field("estimate", pa.float64()),
        pa.field("total", pa.int64()),
        *map(RELEASE_SCHEMA.field, _OF_ROWS),
    ],
    metadata={"quiltstream.schema": "release-counts", "quiltstream.version": RELEASE_VERSION},
)


@dataclass(frozen=True)
class _Layout:
    """What the counts of a row are, in their order."""

    space: StateSpace  # the bins
    classes: tuple[str, ...]  # labels of the classes of slots; one empty text for a histogram of all slots

    @property
    def size(self) -> int:
        return self.space.size * len(self.classes)

    @property
    def labels(self) -> list[tuple[str, str, float | None, float | None]]:
        """Class, bin and the ends of the bin, for each count."""
        bins = [(name, *ends) for name, ends in zip(self.space.labels, self.space.ends, strict=True)]
        return [(label, name, low, high) for label in self.classes for name, low, high in bins]


def tidy(released: Any) -> pa.Table:
    """Released rows with one row a count: its class of slots, its bin, the count with its band, and where it is from.

    Args:
        released: rows of ``RELEASE_SCHEMA``: a table, a record batch, several of these, or a data frame that Arrow
            reads. A table of ``TIDY_SCHEMA``, as ``read_releases`` gives it, is returned as it is.

    Returns:
        Rows of ``TIDY_SCHEMA``, in the order of the rows and of their counts. Of a histogram of all slots the class is
        an empty text, and ``class_slots`` are the slots of the window; a bin is labelled by its edges, and an open end
        is null, as both ends of a category are. ``total`` is the number of cells counted in the class, where that is
        public.

    Raises:
        TypeError: these are no rows.
        ValueError: a column is missing, or a row has another number of counts than bins and classes.
    """
    table = _as_table(released)
    if table.column_names == TIDY_SCHEMA.names:
        return table
    needed = pa.schema([field for field in RELEASE_SCHEMA if field.name not in _NOT_TIDY])
    absent = [name for name in needed.names if name not in table.column_names]
    if absent:
        raise ArgumentError(f"released has not the column {absent[0]}: give rows as PrivateHistograms releases them")
    table = _without_views(table.select(needed.names), needed).cast(needed).combine_chunks()
    layouts, of_row = _layouts(table)
    sizes = np.array([layout.size for layout in layouts], dtype=np.int64)[of_row]
    counts, parent, place = _cells(table.column("counts"), sizes)
    bins = np.array([layout.space.size for layout in layouts], dtype=np.int64)[of_row][parent]
    first = np.cumsum([0, *(layout.size for layout in layouts)])[of_row][parent]
    labels = list(zip(*(label for layout in layouts for label in layout.labels), strict=True)) or [()] * 4
    label = pa.array(first + place)
    widths = table.column("half_width_95").to_numpy()[parent]
    columns = {
        "class": pa.array(labels[0], pa.utf8()).take(label),
        "class_slots": pa.array(_class_slots(table, parent, place // np.maximum(bins, 1))),
        "bin": pa.array(labels[1], pa.utf8()).take(label),
        "bin_low": pa.array(labels[2], pa.float64()).take(label),
        "bin_high": pa.array(labels[3], pa.float64()).take(label),
        "count": pa.array(counts),
        "low_95": pa.array(counts - widths),
        "high_95": pa.array(counts + widths),
        "estimate": _estimates(table, sizes, parent),
        "total": _class_totals(table, counts, parent, place % np.maximum(bins, 1) == 0),
    }
    whole = table.select([*_OF_KEYS, "half_width_95", *_OF_ROWS]).take(pa.array(parent))
    found = [columns[name] if name in columns else whole.column(name) for name in TIDY_SCHEMA.names]
    return pa.table(found, schema=TIDY_SCHEMA)


def _without_views(table: pa.Table, needed: pa.Schema) -> pa.Table:
    """The same without views of texts, which polars gives and Arrow before 18 cannot cast."""
    for at, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if "string_view" in str(column.type):
            table = table.set_column(at, name, pa.array(column.to_pylist(), needed.field(name).type))
    return table


def _as_table(released: Any) -> pa.Table:
    """Rows of Arrow, of what Arrow reads, or of a list of these, as one table."""
    if isinstance(released, pa.Table):
        return released
    if isinstance(released, pa.RecordBatch):
        return pa.Table.from_batches([released])
    if hasattr(released, "__arrow_c_stream__"):
        return pa.table(released)
    if isinstance(released, Iterable) and not isinstance(released, (str, bytes, Mapping)):
        parts = [_as_table(part) for part in cast("Iterable[Any]", released)]
        return pa.concat_tables(parts) if parts else RELEASE_SCHEMA.empty_table()
    kind = type(released).__name__
    raise TypeError(
        f"released is of the type {kind}, and must be a table or record batches of released rows: for files use "
        "read_releases"
    )


def _layouts(table: pa.Table) -> tuple[list[_Layout], npt.NDArray[np.int64]]:
    """The layouts of rows, each once, and which of them each row has."""
    told = (table.column(name).to_pylist() for name in ("edges", "unit", "missing", "labels", "classes"))
    known: dict[tuple[Any, ...], int] = {}
    layouts: list[_Layout] = []
    of_row = np.empty(table.num_rows, dtype=np.int64)
    for row, (edges, unit, missing, labels, classes) in enumerate(zip(*told, strict=True)):
        key = (*(None if one is None else tuple(one) for one in (edges, labels, classes)), unit, missing)
        if key not in known:
            known[key] = len(layouts)
            try:
                space = StateSpace.of_row(edges, unit, missing, labels)
                layouts.append(_Layout(space, ("",) if classes is None else tuple(classes)))
            except (ValueError, TypeError) as error:
                raise ArgumentError(f"row {row + 1}: edges or labels: {error}") from None
        of_row[row] = known[key]
    return layouts, of_row


#: Columns that are no number below zero, and columns of which zero is none, either.
_NOT_NEGATIVE = "members", "half_width_95", "epsilon_dp", "loss_before", "loss_after", "total", "scale"
_POSITIVE = ("slots",)


def check_released(table: pa.Table) -> None:
    """Check that each row is one that a job may have published: what is made of rows need not look again.

    Raises:
        ValueError: a row is none. The text names the row, from 1 on, the field, its value and what it must be.
    """
    for field in RELEASE_SCHEMA:
        column = _one_chunk(table.column(field.name))
        if not field.nullable:
            _refuse(table, field.name, column.is_null(), "must be there")
        if pa.types.is_list(field.type):
            parts = column.flatten()
            is_float = pa.types.is_floating(parts.type)
            if parts.null_count or (is_float and not np.isfinite(parts.to_numpy(zero_copy_only=False)).all()):
                wrong = [
                    one is not None and any(part is None or (is_float and not np.isfinite(part)) for part in one)
                    for one in column.to_pylist()
                ]
                _refuse(table, field.name, wrong, "must hold neither null nor infinite numbers")
    for names, least in ((_NOT_NEGATIVE, 0), (_POSITIVE, 1)):
        for name in names:
            values = _numbers(table, name)
            _refuse(table, name, ~((values >= least) & np.isfinite(values)), f"must be a number of {least} or more")
    starts, stops = (table.column(name).cast(pa.int64()).to_numpy() for name in ("window_start", "window_stop"))
    _refuse(table, "window_stop", stops <= starts, "must be later than window_start")
    laws = table.column("noise_law").to_pylist()
    known = (INDEPENDENT, ZERO_SUM, NO_NOISE)
    _refuse(table, "noise_law", [law not in known for law in laws], f"must be one of {', '.join(known)}")
    zones = table.column("timezone").to_pylist()
    of_clock = {zone: _is_zone(zone) for zone in set(zones)}
    _refuse(table, "timezone", [not of_clock[zone] for zone in zones], "must be an IANA name such as Europe/London")
    exact = table.column("scale_exact").to_pylist()
    scales = {text: _is_scale(text) for text in set(exact)}
    _refuse(table, "scale_exact", [not scales[text] for text in exact], "must be a fraction of 0 or more, as 127/2 is")
    layouts, of_row = _layouts(table)
    for name, all_sizes in (
        ("counts", [layout.size for layout in layouts]),
        ("estimate", [layout.size for layout in layouts]),
        ("class_slots", [len(layout.classes) for layout in layouts]),
    ):
        sizes = np.array(all_sizes, dtype=np.int64)[of_row]
        lengths = _one_chunk(table.column(name)).value_lengths()
        there = lengths.is_valid().to_numpy(zero_copy_only=False)
        wrong = there & (lengths.fill_null(0).to_numpy(zero_copy_only=False) != sizes)
        if wrong.any():
            needed = sizes[np.flatnonzero(wrong)[0]]
            _refuse(table, name, wrong, f"must hold {needed}: one for each bin and class of slots")
    by_class = np.array([one is not None for one in table.column("classes").to_pylist()], dtype=np.bool_)
    _refuse(table, "class_slots", by_class & ~_there(table, "class_slots"), "must be there where classes is")


def _refuse(table: pa.Table, name: str, wrong: Any, limit: str) -> None:
    found = np.flatnonzero(np.asarray(wrong))
    if len(found):
        value = table.column(name)[int(found[0])].as_py()
        said = "left out" if value is None else f"{value}"
        raise ArgumentError(f"row {found[0] + 1}: {name} is {said:.60}, but {limit}")


def _is_zone(text: str) -> bool:
    try:
        return bool(time_zone(text))
    except ValueError:
        return False


def _is_scale(text: str) -> bool:
    try:
        return Fraction(text) >= 0
    except (ValueError, ZeroDivisionError):
        return False


def _there(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    return _one_chunk(table.column(name)).is_valid().to_numpy(zero_copy_only=False)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """The numbers of a column; what is left out is 0."""
    return _one_chunk(table.column(name)).cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)


def _cells(column: pa.ChunkedArray, sizes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """All numbers of a column of lists, the row of each, and its place in the list."""
    lists = _one_chunk(column)
    if not np.array_equal(lists.value_lengths().to_numpy(zero_copy_only=False), sizes):
        raise ArgumentError("counts: a row has another number of counts than bins and classes: it is no released row")
    parent = np.repeat(np.arange(len(sizes)), sizes)
    return lists.flatten().to_numpy(), parent, np.arange(len(parent)) - (np.cumsum(sizes) - sizes)[parent]


def _one_chunk(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def _class_slots(table: pa.Table, parent: npt.NDArray[np.int64], place: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The slots of each cell's class: the window's, where a row has no classes."""
    told, slots = table.column("class_slots").to_pylist(), table.column("slots").to_pylist()
    lists = [[slots[row]] if of_classes is None else of_classes for row, of_classes in enumerate(told)]
    first = np.cumsum([0, *map(len, lists)])[:-1]
    return np.array([one for of_row in lists for one in of_row], dtype=np.int64)[first[parent] + place]


def _estimates(table: pa.Table, sizes: npt.NDArray[np.int64], parent: npt.NDArray[np.int64]) -> pa.Array:
    lists = _one_chunk(table.column("estimate"))
    there = lists.is_valid().to_numpy(zero_copy_only=False)
    values = np.zeros(len(parent))
    if not np.array_equal(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.where(there, sizes, 0)):
        raise ArgumentError("estimate: a row has another number of estimates than counts: it is no released row")
    values[there[parent]] = lists.flatten().to_numpy()
    return pa.array(values, mask=~there[parent])


def _class_totals(
    table: pa.Table, counts: npt.NDArray[np.int64], parent: npt.NDArray[np.int64], begins: npt.NDArray[np.bool_]
) -> pa.Array:
    """Cells counted in each cell's class: what its counts add up to where noise keeps the total, else that of a row."""
    total = table.column("total")
    kept = np.array([law == ZERO_SUM for law in table.column("noise_law").to_pylist()], dtype=np.bool_)
    plain = np.array([one is None for one in table.column("classes").to_pylist()], dtype=np.bool_)
    there = _one_chunk(total).is_valid().to_numpy(zero_copy_only=False) & (kept | plain)
    starts = np.flatnonzero(begins)
    sums = np.add.reduceat(counts, starts) if len(starts) else counts
    of_class = np.repeat(sums, np.diff(np.append(starts, len(counts))))
    of_row = _one_chunk(total).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.where(plain[parent], of_row[parent], of_class), mask=~there[parent])


def release_ids(domain: str, query: str, query_digest: str, window: tuple[int, int], keys: Sequence[str]) -> list[str]:
    """The names of the releases of one window: 32 hexadecimal digits each, the same wherever they are made."""
    head = hashlib.blake2b(canonical_json([domain, query, query_digest, *window]).encode(), digest_size=16)
    names: list[str] = []
    for key in keys:
        one = head.copy()
        one.update(key.encode())
        names.append(one.hexdigest())
    return names


def _lists(matrix: npt.NDArray[Any], kind: pa.DataType) -> pa.ListArray:
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32) if width else np.zeros(rows + 1, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(matrix.reshape(-1), kind))


def release_batch(
    header: dict[str, Any],
    keys: Sequence[str],
    *,
    members: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    total: npt.NDArray[np.int64] | None,
    estimate: npt.NDArray[np.float64] | None,
) -> pa.RecordBatch:
    """Build the rows of one window from columns, without an object per row.

    Args:
        header: the fields that all rows share, named as in :class:`Release`; without those of classes of slots for
            histograms of all slots, and without labels for bins.
        keys: the n series or groups.
        members: series per key, shape (n,).
        counts: noisy counts, shape (n, k), or (n, classes * k).
        total: cells counted, shape (n,), where public.
        estimate: projected counts, of the same shape, where the total is public.

    Returns:
        n rows of ``RELEASE_SCHEMA``.
    """
    n = len(keys)
    window = (int(header["window_start"]), int(header["window_stop"]))
    columns: dict[str, pa.Array] = {
        "release_id": pa.array(
            release_ids(header["domain"], header["query"], header["query_digest"], window, keys), pa.utf8()
        ),
        "key": pa.array(keys, pa.utf8()),
        "members": pa.array(members, pa.int64()),
        "counts": _lists(counts, pa.int64()),
        "total": pa.nulls(n, pa.int64()) if total is None else pa.array(total, pa.int64()),
        "estimate": pa.nulls(n, pa.list_(pa.float64())) if estimate is None else _lists(estimate, pa.float64()),
    }
    for column in RELEASE_SCHEMA:
        if column.name in columns:
            continue
        value: Any = header.get(column.name) if column.name in _OF_SOME else header[column.name]
        if column.name == "quilt":
            value = {"left": value[0], "right": value[1]}
        columns[column.name] = pa.array([value], column.type).take(pa.array(np.zeros(n, dtype=np.int64)))
    return pa.RecordBatch.from_arrays([columns[f.name] for f in RELEASE_SCHEMA], schema=RELEASE_SCHEMA)


def rows_from_batch(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Plain rows of a batch, with instants as integers: the form of Avro and of :meth:`Release.from_dict`."""
    for name in ("window_start", "window_stop"):
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, batch.column(at).cast(pa.int64()))
    return batch.to_pylist()


def releases_from_batch(batch: pa.RecordBatch | pa.Table) -> list[Release]:
    """The releases of a batch of ``RELEASE_SCHEMA``."""
    return [Release.from_dict(row) for row in rows_from_batch(batch)]
