"""Small domains, queries and blocks that the tests of the store share; also loaded by ``workers.py``, by its path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quiltstream.privacy.mechanisms.histogram import LaplaceHistogram
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.privacy.quilts.calibration import mqm_approx
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, SlotGrid, Window
from quiltstream.schemas.states import StateSpace
from quiltstream.store.changes import Estimated
from quiltstream.store.codec import NoisyBlock
from quiltstream.store.specs import BeliefChange, BlockToPublish, DomainSpec, QuerySpec, Record, Registration

BELIEF = MixingBounds(pi_min=0.2, gap=0.75)
OTHER = MixingBounds(pi_min=0.15, gap=0.6)
GRID = SlotGrid(interval_us=1_800_000_000)
SPACE = StateSpace((250.0, 500.0), unit="W")
SIGMA = mqm_approx(BELIEF, epsilon=1.0).sigma
SERIES = ("m1", "m2", "m3", "m4", "m5")


def domain(name: str = "homes", *, budget: float = 1.0, **changes: Any) -> DomainSpec:
    """A domain whose endless stream loses 1 at the density of :func:`query`."""
    spec = DomainSpec(
        name=name,
        grid=GRID.to_dict(),
        states=SPACE.to_dict(),
        belief=BELIEF.to_dict(),
        model_id="model-1",
        guarantee="stream",
        budget=budget,
        missing="public",
        reading={"timezone": "UTC", "scale": 2000.0, "unit": "kWh", "ambiguous": "earliest", "value": "kwh"},
    )
    return replace(spec, **changes)


def series_of(domain: str) -> tuple[str, ...]:
    """The series of a domain: of other ones than ``homes`` other series, which no two domains share."""
    return SERIES if domain == "homes" else tuple(f"{name} of {domain}" for name in SERIES)


def query(
    name: str = "weekly",
    domain: str = "homes",
    *,
    windows: int = 6,
    size: int = 48,
    every: int | None = None,
    share: float = 1.0,
    shards: int = 2,
    **changes: Any,
) -> QuerySpec:
    """A query with so many windows; ``share`` times less noise costs so many times more."""
    every = size if every is None else every
    mechanism = LaplaceHistogram.from_sigma(SPACE.size, SIGMA / share)
    spec = QuerySpec(
        name=name,
        domain=domain,
        scale=mechanism.scale,
        release_epsilon_dp=mechanism.epsilon_dp,
        mechanism="mqm-approx",
        schedule=Schedule(size=size, every=every, start=96, stop=96 + (windows - 1) * every + size, anchor=96),
        schedule_given=True,
        roster=Roster.of(series_of(domain)),
        roster_given=True,
        shards=shards,
        header={"half_width_95": 190, "quilt": [15, 13], "model_provenance": "given by hand", "epsilon": share},
    )
    return replace(spec, **changes)


def block(
    registration: Registration, shard: int, window: Window | None = None, *, low: int = -(10**6), high: int = 10**6
) -> NoisyBlock:
    """Random counts in the shape a shard's block must have in a window, or in those with the newest roster."""
    roster = registration.query.roster if window is None else registration.roster_of(window)
    keys = roster.shard_keys(shard, registration.query.shards)
    generator = np.random.default_rng()
    states = StateSpace.from_dict(registration.domain.states).size
    return NoisyBlock(
        keys=keys,
        totals=np.full(len(keys), registration.query.schedule.size, dtype=np.int64),
        counts=generator.integers(low, high, size=(len(keys), states), dtype=np.int64, endpoint=True),
    )


def drafts(
    registration: Registration, windows: Iterable[Window] | None = None, shards: Sequence[int] | None = None
) -> list[BlockToPublish]:
    """Drafts of all shards of some windows, of all windows by default."""

    def one(window: Window, shard: int) -> BlockToPublish:
        return BlockToPublish(window, shard, lambda: block(registration, shard, window))

    chosen = list(registration.query.schedule.windows() if windows is None else windows)
    return [one(window, shard) for window in chosen for shard in shards or range(registration.query.shards)]


def seen(records: Iterable[Record]) -> dict[str, Any]:
    """What records say, as plain data that can be compared and sent."""
    return {
        f"{record.window.start}/{record.shard}": [
            record.entry.entry_id,
            record.entry.decision,
            record.entry.loss_after,
            None if record.block is None else record.block.counts.tolist(),
        ]
        for record in records
    }


__all__ = [
    "BELIEF",
    "GRID",
    "OTHER",
    "SERIES",
    "SIGMA",
    "SPACE",
    "BeliefChange",
    "Estimated",
    "Roster",
    "block",
    "domain",
    "drafts",
    "query",
    "seen",
    "series_of",
]
