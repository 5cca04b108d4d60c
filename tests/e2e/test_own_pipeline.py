"""A streaming pipeline of the user's own: rows of another library's source are published as windows close."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from .flink import FlinkCluster
from .postgres_schemas import new_schema
from .prism import prism_arguments

#: Rows every second for half a minute, two seconds a window: what a user would write, in a process of its own.
PIPELINE = """
import sys, time
from pathlib import Path
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.utils.timestamp import Timestamp
from quiltstream.schemas import Settings
from quiltstream.transforms import PrivateHistograms

folder, DELAY, LEDGER = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
begin = int(time.time()) // 4 * 4 + DELAY
(folder / "roster.csv").write_text("series\\na\\nb\\n")
settings = Settings.parse({
    "slots": {"interval": "1s"}, "states": {"edges": [1.0]}, "model": {"pi_min": 0.2, "gap": 0.5},
    "windows": {"size": "4s", "start": Timestamp(begin).to_rfc3339(), "stop": Timestamp(begin + 16).to_rfc3339()},
    "privacy": {"epsilon": 1.0}, "query": "seconds", "domain": "ours", "roster": str(folder / "roster.csv"),
    "ledger": LEDGER or f"sqlite:///{folder / 'ledger.db'}",
})

def rows(instant):
    from apache_beam.utils.timestamp import Timestamp
    for name, value in (("a", 0.5), ("b", 1.5)):
        yield {"series": name, "time": Timestamp(instant), "value": value}

def note(batch, folder=folder, begin=begin):
    with open(folder / "rows", "a", encoding="utf-8") as file:
        for row in batch.to_pylist():
            print(int(row["window_start"].timestamp()) - begin, row["key"], *row["counts"], file=file)

histograms = PrivateHistograms(settings, noise="none", accept_noise=True)
histograms = histograms.register() if LEDGER else histograms
with beam.Pipeline(options=PipelineOptions(sys.argv[4:])) as pipeline:
    ticks = pipeline | PeriodicImpulse(Timestamp(begin), Timestamp(begin + 24), 1.0)
    published = ticks | beam.FlatMap(rows) | histograms
    _ = published.releases | beam.Map(note)
"""


EXPECTED = sorted(f"{start} {counts}" for start in (0, 4, 8, 12) for counts in ("a 4 0", "b 0 4"))


def test_rows_of_another_source_are_published_as_their_windows_close(tmp_path: Path, prism: Path) -> None:
    words = [sys.executable, "-c", PIPELINE, str(tmp_path), "4", "", *prism_arguments(prism)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted((tmp_path / "rows").read_text(encoding="utf-8").splitlines()) == EXPECTED


def test_the_same_pipeline_runs_on_flink_with_its_query_on_record_before(
    tmp_path: Path, flink_cluster: FlinkCluster, postgres_url: str
) -> None:
    script, found = tmp_path / "own.py", tmp_path / "rows"
    script.write_text(PIPELINE, encoding="utf-8")
    with new_schema(postgres_url) as ledger:
        # submitting takes a while, and the rows are to come afterwards
        job = flink_cluster.submit(str(script), str(tmp_path), "24", ledger)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if found.exists() and len(found.read_text(encoding="utf-8").splitlines()) >= len(EXPECTED):
                break
            time.sleep(0.5)
        assert sorted(found.read_text(encoding="utf-8").splitlines()) == EXPECTED
        assert flink_cluster.checkpoints(job)["counts"]["completed"]
        flink_cluster.cancel(job)
