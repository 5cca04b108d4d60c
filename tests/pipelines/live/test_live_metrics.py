"""What an operator can watch of a live job, and that it tells of no series, value or state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.live import job as build
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.common.batches import (
    METRICS,
)

from ..jobs import HOMES, Job, readings, write_csv
from ..live_jobs import made

pytestmark = pytest.mark.usefixtures("ending")


def watched(one: Job) -> dict[str, dict[str, Any]]:
    """The metrics of the package after a job, by kind and name."""
    settings = read_settings(one.settings)
    job = build.live_job(settings, PrivateHistograms(settings), [])
    result = job.pipeline.run()
    result.wait_until_finish()
    job.follower.close()
    found: dict[str, dict[str, Any]] = {}
    for kind, metrics in result.metrics().query().items():
        ours = [each for each in metrics if each.key.metric.namespace == METRICS]
        found[kind] = {each.key.metric.name: each.committed for each in ours}
        assert all(not each.key.labels for each in ours)
    return found


@pytest.mark.night
def test_every_metric_holds_only_public_quantities(tmp_path: Path) -> None:
    one = made(tmp_path, privacy={"epsilon": 1.0, "budget": 0.5})
    rows = readings(1)
    write_csv(
        tmp_path / "inbox" / "1.csv",
        [*rows[:10], ("stranger", "2024-03-02T00:00:00+00:00", 1.0), ("m1", "never", 1.0), ("m1", rows[0][1], "nan")],
    )
    found = watched(one)
    counters = found["counters"]
    with Store(f"sqlite:///{one.ledger}", create=True) as store:
        entries = store.entries("streets")
    charged = [entry for entry in entries if entry.decision == "charged"]
    assert 0 < len(charged) < 5
    assert counters.pop("polls") > 0
    assert counters == {
        "decoded-readings": 6 * 48 * len(HOMES) + 11,
        "readings": 5 * 48 * len(HOMES) + 10,
        "readings-on-record": 0,
        "duplicates": 10,
        "outside-schedule": 48 * len(HOMES),
        "rejected-unparsable-time": 1,
        "rejected-not-finite": 1,
        "rejected-not-in-roster": 1,
        "windows-released": len(charged),
        "windows-refused": 5 - len(charged),
        "rows-released": 2 * len(charged),
    }
    losses = [round(entry.loss_after * 1e6) for entry in charged]
    loss = found["distributions"].pop("loss-micro-epsilon")
    assert (loss.min, loss.max, loss.count) == (min(losses), max(losses), 2 * len(charged))
    assert set(found["distributions"]) == {"watermark-behind-ms"}
    assert all(not metrics for kind, metrics in found.items() if kind not in ("counters", "distributions"))
