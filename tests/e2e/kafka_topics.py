"""Live jobs of the tests whose source, sink and rejects are topics."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import polars as pl

from .kafka import KafkaBroker
from .live_bench import Bench, truth

READINGS = {"each": "payload", "series": "series", "time": "time", "value": "value", "time_unit": "us"}


class TopicBench:
    """Topics of one job, and its bench.

    Args:
        broker: has the topics.
        bench: has the rest.
        partitions: of the source.
    """

    def __init__(self, broker: KafkaBroker, bench: Bench, partitions: int) -> None:
        self.broker, self.bench = broker, bench
        self.source = broker.topic(partitions)
        self.sink = broker.topic(2, cleanup_policy="compact")
        self.rejects = broker.topic(1)

    def settings(self, source: dict[str, Any] | None = None, **changes: Any) -> None:
        """Write the settings."""
        servers = {"servers": self.broker.servers}
        kafka = servers | {"topic": self.source, "discover": "500ms"} | (source or {})
        given: dict[str, Any] = {
            "source": {"kafka": kafka},
            "readings": READINGS,
            "sink": {"kafka": servers | {"topic": self.sink}},
            "memory": "memory.json",
            "rejects": {"kafka": servers | {"topic": self.rejects}},
        }
        self.bench.settings(**(given | changes))

    def send(self, frame: pl.DataFrame, partition_of: Callable[[str], int]) -> None:
        """Send readings, each to the partition of its series."""
        self.broker.send(
            self.source, [(partition_of(row["series"]), json.dumps(row).encode()) for row in frame.to_dicts()]
        )

    def check(self, frame: pl.DataFrame, windows: int, right: dict[tuple[int, str], list[int]] | None = None) -> None:
        """The record is the truth, and the topic is the record."""
        assert self.bench.counts() == (truth(frame, range(windows)) if right is None else right)
        assert self.sunk() == {row.release_id: list(row.counts) for row in self.bench.rows()}

    def sunk(self) -> dict[str, list[int]]:
        """The counts in the sink, by release id."""
        return {name: one["counts"] for name, one in self.broker.rows(self.sink).items()}


def as_it_comes(frame: pl.DataFrame, lateness: int, seed: int) -> pl.DataFrame:
    """Readings in an order that is theirs but for the lateness."""
    source = random.Random(seed)
    late = pl.Series("arrival", [source.randrange(lateness) for _ in range(len(frame))])
    return frame.with_columns(arrival=pl.col("time") + late).sort("arrival").drop("arrival")
