"""Released rows of recorded blocks, and files: the log without blobs, and backups."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy.engine import Connection

from ..privacy.mechanisms.histogram import ExactHistogram, FixedTotalHistogram, project_to_total
from ..schemas import files
from ..schemas.digests import canonical_json
from ..schemas.errors import ArgumentError
from ..schemas.releases import release_batch
from ..schemas.slots import SlotGrid, format_duration
from .address import StoreAddress
from .codec import NoisyBlock, scale_text
from .errors import StoreConflict
from .files import BESIDE
from .log import Chain, pages
from .specs import Record, Registration, classes_of, layout_of, total_is_public


def rows_of(registration: Registration, record: Record) -> pa.RecordBatch:
    """The released rows of a record.

    Returns:
        One row a key, of ``RELEASE_SCHEMA``: the noisy counts, and where the total is public their projection onto
        non-negative counts with that total, class of slots by class of slots.
    """
    block, domain, query = record.block, registration.domain, registration.query.of_length(len(record.window))
    if block is None:
        raise StoreConflict(f"query {query.name!r}: window {record.window} was refused and has no rows")
    grid, calendar, entry = SlotGrid(**domain.grid), query.schedule.calendar, record.entry
    classes = classes_of(registration)
    by, labels, slots = None, None, None
    if classes.by:  # from the public clock alone
        by, labels, slots = list(classes.by), list(classes.labels), classes.slots_of(grid, record.window).tolist()
    header = {
        # what the query's header may leave out, because it is on record anyway
        "key_kind": query.roster.kind,
        "edges": domain.states.get("edges"),
        "unit": domain.states["unit"],
        "scale": float(query.scale),
        "scale_exact": scale_text(query.scale),
        **query.header,
        "domain": domain.name,
        "query": query.name,
        "query_digest": registration.digest,
        "missing": domain.missing,
        "guarantee": domain.guarantee,
        "mechanism": query.mechanism,
        "noise_law": query.noise_law,
        "model_id": domain.beliefs[registration.belief][1],
        "given_model": entry.given_model,
        "epsilon_dp": query.release_epsilon_dp,
        "window_start": entry.start_us,
        "window_stop": entry.stop_us,
        "window": calendar.unit if calendar is not None else format_duration(query.schedule.size * grid.interval_us),
        "timezone": domain.reading.get("timezone", "UTC"),
        "slots": len(record.window),
        "loss_before": entry.loss_before,
        "loss_after": entry.loss_after,
        "by": by,
        "classes": labels,
        "class_slots": slots,
        "completeness": block.completeness,
    }
    public = total_is_public(registration)
    return release_batch(
        header,
        block.keys,
        members=layout_of(registration, record.window).members(record.shard),
        counts=block.counts,
        total=block.totals if public else None,
        estimate=_estimate(query.noise_law, block, len(classes)) if public else None,
    )


def _estimate(noise_law: str, block: NoisyBlock, classes: int) -> npt.NDArray[np.float64] | None:
    """The histograms projected onto their totals, each class of slots onto its own.

    Noise that keeps the total of each class leaves it in the published counts; other noise hides it.
    """
    if classes == 1:
        return project_to_total(block.counts, block.totals)
    if noise_law not in (FixedTotalHistogram.name, ExactHistogram.name):
        return None
    rows, columns = block.counts.shape
    each = block.counts.reshape(rows * classes, columns // classes)
    return project_to_total(each, each.sum(axis=1)).reshape(block.counts.shape)


def back_up(
    target: Path, address: StoreAddress, opened: Callable[[], AbstractContextManager[Any]], check: Callable[[], None]
) -> None:
    """Copy an SQLite ledger, to which ``opened`` gives a connection, to a new file while jobs may be running."""
    if not address.is_sqlite:
        raise ArgumentError(f"ledger {address}: a server is backed up with its own tools; use pg_dump")
    for path in (f"{target}{end}" for end in ("", *BESIDE)):  # SQLite would play a log beside it into it
        if os.path.lexists(path):
            raise ArgumentError(f"{path}: it exists, and a backup never replaces a file; choose another name")
    # a copy of damage would take the place of an earlier one that is whole
    check()
    with (
        files.whole_file(target, private=True, new=True) as temporary,
        closing(sqlite3.connect(temporary)) as copy,
        opened() as source,
    ):
        try:
            source.backup(copy)
        except sqlite3.Error as error:
            raise ArgumentError(
                f"{target}: the backup was not completed ({type(error).__name__}); check the room on its disk"
            ) from None


#: The columns of an exported log.
_COLUMNS = {"domain": pa.utf8(), "seq": pa.int64(), "key": pa.utf8(), "body": pa.utf8(), "digest": pa.utf8()}


def export(path: Path, connection: Connection, chains: Iterable[Chain]) -> int:
    """Write the rows of some domains, each with the digest of all up to it, as far as it is known; how many."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise ArgumentError(f"{path}: the suffix {path.suffix!r} is no format; use .jsonl or .parquet")
    rows = [
        dict(zip(_COLUMNS, (chain.name, row.seq, row.key, row.body, chain.digest_at(row.seq).hex()), strict=True))
        for chain in chains
        for row in pages(connection, chain.name, chain.seq)
    ]
    with files.whole_file(path) as part, part.open("wb") as file:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(_COLUMNS)), file, compression="zstd")
        else:
            told = (canonical_json({**row, "body": json.loads(row["body"])}) for row in rows)
            file.writelines(f"{one}\n".encode() for one in told)
    return len(rows)
