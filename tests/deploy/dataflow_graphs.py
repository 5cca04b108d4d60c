"""The graphs of live jobs as Dataflow gets them, and what of them must stay for a job to be updated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.coders import Coder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext

from quiltstream.pipelines.live import job as launch
from quiltstream.schemas.settings.job import read_settings

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

#: A runner for which a graph can be built without anything else.
PORTABLE = ("--runner=PortableRunner", "--job_endpoint=127.0.0.1:1", "--streaming")

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


def graph(folder: Path, kind: str, words: tuple[str, ...], **changes: Any) -> beam.Pipeline:
    """The graph of a job."""
    job = launch.graph_of(read_settings(settings_file(folder, kind, **changes)), words)
    job.follower.close()
    return job.pipeline


def shape_of(pipeline: beam.Pipeline) -> list[str]:
    """What an update must find again: steps by name, and how what they keep and exchange is written.

    A line is a step's name, what it is, the coders of what goes in and out, and of what it keeps.
    """
    proto = pipeline.to_runner_api(use_fake_coders=False)
    lines: list[str] = []
    for transform in proto.components.transforms.values():
        if transform.subtransforms or not transform.unique_name:
            continue
        parts = [transform.unique_name, transform.spec.urn]
        for mark, places in (("<", transform.inputs), (">", transform.outputs)):
            parts += [
                f"{mark} {_coder(proto.components, proto.components.pcollections[one].coder_id)}"
                for _, one in sorted(places.items())
            ]
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if payload.restriction_coder_id:
                parts.append(f"restriction {_coder(proto.components, payload.restriction_coder_id)}")
            parts += [f"state {name}" for name in sorted(payload.state_specs)]
            parts += [f"timer {name}" for name in sorted(payload.timer_family_specs)]
        lines.append(" ".join(parts))
    return sorted(lines)


def _coder(components: Any, coder_id: str) -> str:
    coder = components.coders[coder_id]
    inner = ",".join(_coder(components, one) for one in coder.component_coder_ids)
    urn = coder.spec.urn.removeprefix("beam:coder:")
    if not coder.spec.payload:
        return f"{urn}({inner})" if inner else urn
    # a coder of Python: by the class, as its pickle differs from one interpreter to the next
    made = Coder.from_runner_api(coder, PipelineContext(components))
    name = f"{type(made).__module__}.{type(made).__qualname__}"
    return f"{name}({inner})" if inner else name
