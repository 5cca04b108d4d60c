"""The steps of live jobs, their names and their coders stay: runners find what they keep by them.

Dataflow's ``--update`` and Flink's savepoints match steps by their names, and read what the old job left with the new
job's coders. The lines below are kept in ``shapes``, for each end of Beam's versions: Dataflow's jobs are tested with
the upper one, Flink's with the lower one.

When a test here fails, the change that made it fail ends every running job's history at its next update. So:

1. Undo it, if it was not meant: give the step its old name, add a field with a default instead of renaming one.
2. If it is meant, write the new lines (the failing test prints them), and say in CHANGELOG.md that a running job must
   be stopped and begun anew, or which ``--transform_name_mapping`` an update needs. A job begun anew publishes what is
   missing, from a source that can be read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from .dataflow_graphs import DRY, PORTABLE, SOURCES, graph, no_cluster, shape_of

SHAPES = Path(__file__).parent / "shapes"

#: Steps of Beam's own have names that differ from version to version.
OF_BEAM = SHAPES / ".".join(beam.__version__.split(".")[:2])

pytestmark = pytest.mark.skipif(not OF_BEAM.is_dir(), reason=f"no shapes are kept for Beam {beam.__version__}")

FILES = {
    "source": {"jsonl": "*.jsonl"},
    "readings": {"series": "meter", "time": "ts", "time_unit": "ms", "value": "kwh"},
    "sink": {"jsonl": "released"},
    "rejects": {"jsonl": "rejects"},
}

#: What the settings of a job over brokers have instead.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {**{kind: (kind, {}) for kind in SOURCES}, "jsonl": ("kafka", FILES)}


def lines_of(name: str) -> list[str]:
    return (OF_BEAM / f"{name}.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_steps_and_coders_are_those_that_running_jobs_have(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cluster(monkeypatch)
    # a folder is for a runner that has it, as Flink may; the graph is built by the same steps
    monkeypatch.setattr("quiltstream.pipelines.live.job.is_local", lambda _: False)
    # Dataflow alone has Pub/Sub; its own client is not needed for the steps
    monkeypatch.setattr("quiltstream.pipelines.live.job.check_runner", lambda *_: None)
    brokers, changes = KINDS[kind]
    found = shape_of(graph(tmp_path, brokers, PORTABLE, **changes))
    print("\n".join(found))  # noqa: T201 - to be copied
    assert found == lines_of(kind)


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_dataflow_gets_the_same_steps(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object
) -> None:
    assert callable(module)
    module("google.cloud.dataflow_v1beta3")
    no_cluster(monkeypatch)
    assert shape_of(graph(tmp_path, kind, DRY)) == lines_of(kind)
