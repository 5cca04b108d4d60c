"""What the files of a command tell of a slot, from many runs: the audit of the steps, with the command around them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.states import StateSpace
from quiltstream.schemas.table_files import released_rows
from quiltstream.store.store import Store

from ...forked import COMMAND
from ...transforms.aggregate.test_sampled_loss import (
    ALPHA,
    CHAIN,
    EPSILON,
    SLOT,
    at,
    gathered,
    of_slots,
    sampled_loss,
    trajectories,
)
from ..jobs import call, fork
from .test_same_job_twice import KILLED


def job(folder: Path, states: Any) -> Path:
    """A job over readings in Parquet, with more blocks than one transaction takes."""
    table = pa.Table.from_batches(of_slots(states))
    pq.write_table(table, folder / "readings.parquet")
    names = table["series"].combine_chunks().dictionary.to_pylist()
    (folder / "roster.csv").write_text("\n".join(["series", *names, ""]), encoding="utf-8")
    belief = Model(CHAIN.to_dict(), StateSpace((0.5,), "W"), SLOT, Provenance(method="given"))
    (folder / "model.json").write_text(belief.to_json(), encoding="utf-8")
    document = {
        "source": {"parquet": "readings.parquet"},
        "readings": {"series": "series", "time": "time", "value": "value", "unit": "W"},
        "slots": {"interval": "30min", "origin": "2013-01-01"},
        "states": {"edges": [0.5], "unit": "W"},
        "model": "model.json",
        "roster": "roster.csv",
        "windows": {"size": "2h", "start": "2013-01-01", "stop": "2013-01-01T04:00"},
        "privacy": {"epsilon": EPSILON, "mechanism": "forward-backward", "budget": 10 * EPSILON},
        "sink": {"parquet": "releases.parquet"},
        "rejects": {"csv": "rejects.csv"},
        "query": "load",
        "most_error": 1e6,  # what is tested here is not how useful the rows are
        "domain": "homes",
        "ledger": "sqlite:///ledger.db",
        "shards": 64,
    }
    settings = folder / "settings.yaml"
    settings.write_text(yaml.safe_dump(document), encoding="utf-8")
    return settings


@pytest.mark.night
def test_the_sampled_loss_of_a_killed_and_repeated_command_is_within_the_bound(tmp_path: Path) -> None:
    """A sampled loss above the printed one is a false alarm with a probability of at most ``ALPHA``."""
    print("seed", seed := random.randrange(2**32))  # noqa: T201 - a random test says its seed
    states = trajectories(at(10_000, 100_000), np.random.default_rng(seed))
    settings = job(tmp_path, states)
    fork("after", "1", "run", "settings.yaml", cwd=tmp_path, program=KILLED + COMMAND).ended(-9)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=False) as store:
        first = [batch for batch in store.releases("homes", "load") if batch.num_rows]
    call("run", settings).ended(0)
    left = released_rows([tmp_path / "releases.parquet"])
    # what the killed process drew is what left
    drawn = {row["release_id"]: row["counts"] for batch in first for row in batch.to_pylist()}
    published = dict(zip(left["release_id"].to_pylist(), left["counts"].to_pylist(), strict=True))
    assert drawn
    assert len(drawn) < len(published) == 2 * len(states)
    assert drawn.items() <= published.items()
    windows = [left.filter(pc.field("window_start") == begin) for begin in left["window_start"].unique()]
    rows = gathered(states, [[window.combine_chunks().to_batches()[0] for window in windows]])
    found = sampled_loss(rows.views(), ALPHA)
    print(found, "printed", rows.loss)  # noqa: T201 - a measurement
    assert found.loss <= rows.loss
