"""From the record to released rows: the same rows whenever and wherever they are made."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..privacy.projection import project_to_total
from ..schemas.releases import release_batch
from .errors import DraftError
from .layout import layout_of, total_is_public
from .specs import Record, Registration


def header_of(registration: Registration, record: Record) -> dict[str, Any]:
    """The columns that all rows of a record share: those of the query, and what its window was charged."""
    domain, query, entry = registration.domain, registration.query, record.entry
    return {
        # what the query's header may leave out, because it is on record anyway
        "key_kind": query.roster.kind,
        "slots": query.schedule.size,
        "edges": domain.states["edges"],
        "unit": domain.states["unit"],
        "scale": float(query.scale),
        "scale_exact": f"{query.scale.numerator}/{query.scale.denominator}",
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
        "loss_before": entry.loss_before,
        "loss_after": entry.loss_after,
    }


def rows_of(registration: Registration, record: Record) -> pa.RecordBatch:
    """The released rows of a record.

    Returns:
        One row a key, of ``RELEASE_SCHEMA``: the noisy counts, and where the total is public their projection onto
        non-negative counts with that total (theory, architecture section 3, item 9).

    Raises:
        DraftError: the window was refused, so it has no rows.
    """
    block = record.block
    if block is None:
        raise DraftError(f"query {registration.query.name!r}: window {record.window} was refused and has no rows")
    public = total_is_public(registration)
    return release_batch(
        header_of(registration, record) | {"completeness": block.completeness},
        block.keys,
        members=layout_of(registration, record.window).members(record.shard),
        counts=block.counts,
        total=block.totals if public else None,
        estimate=project_to_total(block.counts, block.totals) if public else None,
    )
