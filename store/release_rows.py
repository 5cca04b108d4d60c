"""Released rows of a recorded block, and which keys the block holds.

Which keys a shard holds: the roster of a window, cut by the frozen hash.

Hashing all names for every block would cost more than the block, so the last cuts are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..privacy.mechanisms.histogram import ExactHistogram, FixedTotalHistogram
from ..privacy.mechanisms.projection import project_to_total
from ..schemas.digests import stable_hashes
from ..schemas.releases import release_batch
from ..schemas.roster import Roster
from ..schemas.slots import SlotClasses, SlotGrid, Window
from ..schemas.states import StateSpace
from .errors import BlockError, StoreError
from .specs import TRANSITIONS, NoisyBlock, Record, Registration


@dataclass
class Layout:
    """A roster cut into shards.

    Attributes:
        roster: the series and groups.
        shards: parallel parts.
        columns: counts of a histogram: its bins, for each class of slots.
        roster_digest: digest of the roster.
    """

    roster: Roster
    shards: int
    columns: int
    roster_digest: str = field(init=False)
    _parts: list[tuple[tuple[str, ...], npt.NDArray[np.int64]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.roster_digest = self.roster.digest
        keys, members = self.roster.keys, self.roster.members
        shard = stable_hashes(keys) % np.uint64(self.shards)
        self._parts = []
        for number in range(self.shards):
            rows = np.flatnonzero(shard == number)
            self._parts.append((tuple(keys[row] for row in rows.tolist()), members[rows]))

    def keys(self, shard: int) -> tuple[str, ...]:
        """The keys of a shard, sorted: ``Roster.shard_keys``."""
        return self._parts[shard][0]

    def members(self, shard: int) -> npt.NDArray[np.int64]:
        """How many series each of them sums over."""
        return self._parts[shard][1]

    @property
    def occupied(self) -> tuple[int, ...]:
        """The shards that hold a key."""
        return tuple(number for number, (keys, _) in enumerate(self._parts) if keys)


#: One class, of queries without any.
ALL_SLOTS = SlotClasses()

#: The last cuts, newest first; threads that race make one twice, nothing else.
_remembered: tuple[Layout, ...] = ()

#: A job works on few rosters at once: that of the windows being published, and the next one.
_MOST = 4


def layout_of(registration: Registration, window: Window) -> Layout:
    """The layout of a window of a query of record."""
    global _remembered  # noqa: PLW0603 - remembered values
    roster, shards = registration.roster_of(window), registration.query.shards
    columns = bins_of(registration).size * len(classes_of(registration))
    held = _remembered
    for layout in held:
        if (layout.shards, layout.columns) == (shards, columns) and layout.roster == roster:
            return layout
    layout = Layout(roster, shards, columns)
    _remembered = (layout, *held[: _MOST - 1])
    return layout


def classes_of(registration: Registration) -> SlotClasses:
    """The classes of slots for which a query of record has histograms, by the wall clock of its domain's readings.

    Raises:
        StoreError: it names classes that are unknown here.
    """
    query = registration.query
    if not query.by:
        return ALL_SLOTS
    try:
        return SlotClasses(query.by, registration.domain.reading.get("timezone", "UTC"))
    except ValueError as error:
        raise StoreError(f"query {query.name!r}: {error}; a later version may know it") from None


def bins_of(registration: Registration) -> StateSpace:
    """The bins of a query of record: the states of its domain, or unions of them.

    Raises:
        StoreError: they are no unions of its domain's states.
    """
    query, states = registration.query, StateSpace.from_dict(registration.domain.states)
    if query.bins is None:
        return states
    try:
        return states.merged(query.bins)
    except ValueError as error:
        raise StoreError(f"query {query.name!r}: {error}; check this record with `quiltstream ledger verify`") from None


def has_keys(registration: Registration, record: Record) -> bool:
    """Whether a record's block has the keys that the registration says."""
    return record.block is None or record.block.keys == layout_of(registration, record.window).keys(record.shard)


def total_is_public(registration: Registration) -> bool:
    """Whether the totals of a query's rows are public: those of histograms where `DomainSpec.total_is_public` holds.

    How many transitions leave a state is never public.
    """
    return registration.domain.total_is_public and registration.query.mechanism != TRANSITIONS


def header_of(registration: Registration, record: Record) -> dict[str, Any]:
    """The columns that all rows of a record share: those of the query, and what its window was charged."""
    domain, query, entry = registration.domain, registration.query.of_length(len(record.window)), record.entry
    return {
        # what the query's header may leave out, because it is on record anyway
        "key_kind": query.roster.kind,
        "edges": domain.states.get("edges"),
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
        "slots": len(record.window),
        "loss_before": entry.loss_before,
        "loss_after": entry.loss_after,
    }


def rows_of(registration: Registration, record: Record) -> pa.RecordBatch:
    """The released rows of a record.

    Returns:
        One row a key, of ``RELEASE_SCHEMA``: the noisy counts, and where the total is public their projection onto
        non-negative counts with that total (theory, architecture section 3, item 9), class of slots by class of slots.

    Raises:
        BlockError: the window was refused, so it has no rows.
    """
    block = record.block
    if block is None:
        raise BlockError(f"query {registration.query.name!r}: window {record.window} was refused and has no rows")
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


def _estimate(registration: Registration, block: NoisyBlock) -> npt.NDArray[np.float64] | None:
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
