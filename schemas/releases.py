"""Releases: the published rows, one noisy histogram of one series or group in one window.

Everything in a row is public. ``RELEASE_SCHEMA`` is the Arrow form that leaves ``PrivateHistograms`` and that the file
sinks write; its metadata name the version. A version is never changed in meaning: a new meaning is a new field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .digests import canonical_json

RELEASE_VERSION = "1"

#: What ``completeness`` says, from the best to the least: the source was read as it came; it was read again from its
#: start; the window was closed while the source, or a partition of it, was silent before the window's end, so that what
#: it sends later is late; the source may have lost readings of the window before they were read.
COMPLETENESS = LIVE, REPLAYED, SILENT, UNAVAILABLE = "live", "replayed", "silent", "unavailable"

_QUILT = pa.struct([pa.field("left", pa.int64()), pa.field("right", pa.int64())])
_STAMP = pa.timestamp("us", tz="UTC")

#: One row a release; ``docs/releases.md`` explains each column.
RELEASE_SCHEMA = pa.schema(
    [
        pa.field("release_id", pa.utf8(), nullable=False),
        pa.field("domain", pa.utf8(), nullable=False),
        pa.field("query", pa.utf8(), nullable=False),
        pa.field("query_digest", pa.utf8(), nullable=False),
        pa.field("key_kind", pa.utf8(), nullable=False),
        pa.field("key", pa.utf8(), nullable=False),
        pa.field("window_start", _STAMP, nullable=False),
        pa.field("window_stop", _STAMP, nullable=False),
        pa.field("slots", pa.int64(), nullable=False),
        pa.field("members", pa.int64(), nullable=False),
        pa.field("edges", pa.list_(pa.float64()), nullable=False),
        pa.field("unit", pa.utf8(), nullable=False),
        pa.field("missing", pa.utf8(), nullable=False),
        pa.field("counts", pa.list_(pa.int64()), nullable=False),
        pa.field("total", pa.int64()),
        pa.field("estimate", pa.list_(pa.float64())),
        pa.field("scale", pa.float64(), nullable=False),
        pa.field("scale_exact", pa.utf8(), nullable=False),
        pa.field("half_width_95", pa.int64(), nullable=False),
        pa.field("epsilon_dp", pa.float64(), nullable=False),
        pa.field("loss_before", pa.float64(), nullable=False),
        pa.field("loss_after", pa.float64(), nullable=False),
        pa.field("guarantee", pa.utf8(), nullable=False),
        pa.field("mechanism", pa.utf8(), nullable=False),
        pa.field("quilt", _QUILT, nullable=False),
        pa.field("model_id", pa.utf8(), nullable=False),
        pa.field("model_provenance", pa.utf8(), nullable=False),
        pa.field("given_model", pa.bool_(), nullable=False),
        pa.field("completeness", pa.utf8(), nullable=False),
        pa.field("noise_law", pa.utf8(), nullable=False),
    ],
    metadata={"quiltstream.schema": "release", "quiltstream.version": RELEASE_VERSION},
)


def least_complete(one: str, other: str) -> str:
    """Which of two parts of a window was read less completely.

    >>> least_complete(REPLAYED, LIVE), least_complete(REPLAYED, SILENT), least_complete(SILENT, UNAVAILABLE)
    ('replayed', 'silent', 'unavailable')
    """
    return max(one, other, key=COMPLETENESS.index)


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
        slots: slots in the window.
        members: series that the histogram sums over.
        edges: edges of the bins.
        unit: unit of the edges.
        missing: the rule for cells without a reading.
        counts: noisy number of cells per state, may be negative; the last one is the missing state where that exists.
        total: number of cells counted, where that is public.
        estimate: the noisy counts projected onto non-negative counts with that total.
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
            zero over the counts, which then add up to ``total``; ``none``. The noise of rows of before the column is
            independent.
    """

    release_id: str
    domain: str
    query: str
    query_digest: str
    key_kind: str
    key: str
    window_start: int
    window_stop: int
    slots: int
    members: int
    edges: tuple[float, ...]
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
    noise_law: str = "discrete-laplace"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form: lists for tuples, the quilt as ``{"left": a, "right": b}``."""
        row = {f.name: getattr(self, f.name) for f in fields(self)}
        row["edges"], row["counts"] = list(self.edges), list(self.counts)
        row["estimate"] = None if self.estimate is None else list(self.estimate)
        row["quilt"] = {"left": self.quilt[0], "right": self.quilt[1]}
        return row

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Release:
        """The inverse of :meth:`to_dict`; columns of later versions are ignored."""
        known = {f.name: row[f.name] for f in fields(cls) if f.default is MISSING or f.name in row}
        known["edges"], known["counts"] = tuple(known["edges"]), tuple(known["counts"])
        known["estimate"] = None if known["estimate"] is None else tuple(known["estimate"])
        known["quilt"] = (known["quilt"]["left"], known["quilt"]["right"])
        return cls(**known)


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
        header: the fields that all rows share, named as in :class:`Release`.
        keys: the n series or groups.
        members: series per key, shape (n,).
        counts: noisy counts, shape (n, k).
        total: cells counted, shape (n,), where public.
        estimate: projected counts, shape (n, k), where the total is public.

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
        "edges": _lists(np.tile(np.asarray(header["edges"], dtype=np.float64), (n, 1)), pa.float64()),
    }
    for column in RELEASE_SCHEMA:
        if column.name in columns:
            continue
        value = header[column.name]
        if column.name == "quilt":
            value = {"left": value[0], "right": value[1]}
        columns[column.name] = pa.array([value] * n, column.type)
    return pa.RecordBatch.from_arrays([columns[f.name] for f in RELEASE_SCHEMA], schema=RELEASE_SCHEMA)


def batch_from_releases(releases: Sequence[Release]) -> pa.RecordBatch:
    """Write releases as a record batch of ``RELEASE_SCHEMA``."""
    return pa.RecordBatch.from_pylist([r.to_dict() for r in releases], schema=RELEASE_SCHEMA)


def rows_from_batch(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Plain rows of a batch, with instants as integers: the form of Avro and of :meth:`Release.from_dict`."""
    for name in ("window_start", "window_stop"):
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, batch.column(at).cast(pa.int64()))
    return batch.to_pylist()


def releases_from_batch(batch: pa.RecordBatch | pa.Table) -> list[Release]:
    """The inverse of :func:`batch_from_releases`."""
    return [Release.from_dict(row) for row in rows_from_batch(batch)]
