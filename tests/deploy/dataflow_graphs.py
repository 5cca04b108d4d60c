"""The settings of live jobs whose graphs Dataflow gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

READINGS = {"each": "payload", "series": "meter", "time": "ts", "time_unit": "ms", "value": "kwh"}

SOURCES: dict[str, dict[str, Any]] = {
    "kafka": {"kafka": {"servers": "127.0.0.1:1", "topic": "meters"}},
    "pubsub": {"pubsub": {"subscription": "projects/my-project/subscriptions/meters"}},
}
SINKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kafka": (
        {"kafka": {"servers": "127.0.0.1:1", "topic": "released"}},
        {"kafka": {"servers": "127.0.0.1:1", "topic": "rejects"}},
    ),
    "pubsub": (
        {"pubsub": {"topic": "projects/my-project/topics/released"}},
        {"pubsub": {"topic": "projects/my-project/topics/rejects"}},
    ),
}


#: What Dataflow needs to be told; nothing of it is looked up in a dry run.
DRY = (
    "--runner=DataflowRunner",
    "--dry_run=True",
    "--no_auth",
    "--project=my-project",
    "--region=europe-west1",
    "--temp_location=gs://my-bucket/temp",
    "--staging_location=gs://my-bucket/staging",
    "--job_name=quiltstream-live",
    "--streaming",
)


def settings_file(folder: Path, kind: str, **changes: Any) -> Path:
    """The settings of a job over brokers, with its ledger in a file."""
    (folder / "roster.csv").write_text("series,feeder\nm1,north\nm2,south\n", encoding="utf-8")
    sink, rejects = SINKS[kind]
    document: dict[str, Any] = {
        "source": SOURCES[kind],
        "readings": READINGS,
        "slots": {"interval": "30min", "origin": "2026-01-01"},
        "states": {"edges": [1, 2]},
        "model": {"pi_min": 0.05, "gap": 0.3},
        "group_by": "feeder",
        "roster": "roster.csv",
        "windows": {"size": "1d", "start": "2026-01-01", "lateness": "10min"},
        "privacy": {"epsilon": 1.0},
        "sink": sink,
        "memory": "memory.json",
        "rejects": rejects,
        "query": "daily",
        "most_error": 1e6,  # what is tested here is not how useful the rows are
        "domain": "grid",
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
    }
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(document | changes), encoding="utf-8")
    return path


def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let graphs be built here that run nowhere: without brokers, and with a ledger in a file."""
    for module in ("pipelines.preflight", "transforms.private_histograms"):
        monkeypatch.setattr(f"quiltstream.{module}.check_hosts", lambda *_: None)
    for name, answer in (("Topics.check", None), ("SinkTopic.check", None), ("SinkTopic.unknown_ids", [])):
        monkeypatch.setattr(f"quiltstream.pipelines.connectors.kafka.{name}", lambda *_, said=answer: said)
    monkeypatch.setattr("quiltstream.pipelines.connectors.kafka.SinkTopic.complete", lambda *_: 0)
