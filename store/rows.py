"""From the record to released rows: the same rows whenever and wherever they are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..privacy.mechanisms import ExactHistogram, FixedTotalHistogram
from ..privacy.projection import project_to_total
from ..schemas.releases import release_batch
from ..schemas.slots import SlotGrid
from .errors import DraftError
from .layout import classes_of, layout_of, total_is_public
from .specs import Block, Record, Registration


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
        non-negative counts with that total (theory, architecture section 3, item 9), class of slots by class of slots.

    Raises:
        DraftError: the window was refused, so it has no rows.
    """
    block = record.block
    if block is None:
        raise DraftError(f"query {registration.query.name!r}: window {record.window} was refused and has no rows")
    public = total_is_public(registration)
    return release_batch(
        header_of(registration, record) | _classes(registration, record) | {"completeness": block.completeness},
        block.keys,
        members=layout_of(registration, record.window).members(record.shard),
        counts=block.counts,
        total=block.totals if public else None,
        estimate=_estimate(registration, block) if public else None,
    )


def _classes(registration: Registration, record: Record) -> dict[str, Any]:
    """The columns of a query by classes of slots: from the public clock alone."""
    classes = classes_of(registration)
    if not classes.by:
        return {"by": None, "classes": None, "class_slots": None}
    slots = classes.slots_of(SlotGrid(**registration.domain.grid), record.window)
    return {"by": list(classes.by), "classes": list(classes.labels), "class_slots": slots.tolist()}


def _estimate(registration: Registration, block: Block) -> npt.NDArray[np.float64] | None:
    """The histograms projected onto their totals, each class of slots onto its own.

    Noise that keeps the total of each class leaves it in the published counts; other noise hides it.
    """
    number = len(classes_of(registration))
    if number == 1:
        return project_to_total(block.counts, block.totals)
    if registration.query.noise_law not in (FixedTotalHistogram.name, ExactHistogram.name):
        return None
    rows, columns = block.counts.shape
    each = block.counts.reshape(rows * number, columns // number)
    return project_to_total(each, each.sum(axis=1)).reshape(block.counts.shape)
