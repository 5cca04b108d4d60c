"""How fast a live job is on a real Flink cluster: from the first block of readings to the last row that left.

Run as ``python benchmarks/live_flink.py``, with the Python that has the cluster's Beam named as the end-to-end tests
have it (``QUILTSTREAM_FLINK_PYTHON``). One JobManager, two TaskManagers of one slot, a checkpoint every two seconds to
files, bundles of one element, the ledger in PostgreSQL, and the source of ``live.py``. A source in two parts runs on
both TaskManagers, with a worker each; any other on one. After a job that is not measured, because a new cluster first
has to compile itself, every line is a job of its own. "Last row" is when the last file of the sink was written. A job
that lost its source (Beam 2.62 does so now and then, the more the larger bundles are) is run once more, and told.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# by its name, so that Beam's workers find what is defined there
import live
from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions
from live import INTERVAL_US, ORIGIN_US, SERIES, SHARDS, Fresh, Load
from sample_ledger import servers

from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Steps
from quiltstream.transforms.sinks import WriteBlocks
from quiltstream.transforms.sources.contract import Reader
from quiltstream.transforms.sources.reader import PollingPolicy, ReadLive

ROOT = Path(__file__).absolute().parent.parent

LOADS = (
    Load("not measured", 2_000_000, 500),
    Load("blocks of 8k", 40_000_000, 500),
    Load("blocks of 64k", 40_000_000, 500, rows=65_536),
    Load("800 windows", 40_000_000, 50),
    Load("8k, 2 parts", 40_000_000, 500, parts=2),
    Load("64k, 2 parts", 40_000_000, 500, rows=65_536, parts=2),
)

#: Without a new row for so long a job has lost its source.
_QUIET_S = 60.0
_ATTEMPTS = 3


@dataclass(frozen=True)
class Noted(Fresh):
    """Notes in a file when the first reader was made."""

    folder: str

    def reader(self, part: int, position: str) -> Reader:
        """A reader that goes on at a number of readings of its part."""
        begun = Path(self.folder) / "begun"
        if not position and not begun.exists():
            begun.write_text(str(time.time()), encoding="ascii")
        return super().reader(part, position)


def hand_over(load: Load, folder: Path, ledger: str, options: list[str]) -> None:
    """Build a job and hand it to the cluster; in a process with the cluster's Beam."""
    end = ORIGIN_US + load.windows * load.width * INTERVAL_US
    pipeline = Pipeline(options=PipelineOptions([*options, f"--parallelism={load.parts}"]))
    histograms = PrivateHistograms(live.settings_of(load, folder, ledger)).register()
    steps = Steps.of(histograms.plan.grid, histograms.plan.schedule)
    pace = PollingPolicy(ORIGIN_US, poll_s=1.0, end_us=end, steps=steps, stay_s=10.0, rest_s=1.1)
    decoded = pipeline | "Read" >> ReadLive(Noted(load, str(folder)), pace)
    published = decoded.readings | "Publish" >> histograms
    _ = published.releases | "Sink" >> WriteBlocks(str(folder / "releases"), "parquet")
    pipeline.run()


def wait(load: Load, folder: Path, ledger: str) -> float | None:
    """When the last row left; ``None`` if nothing comes any more."""
    found, since = -1, time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        time.sleep(0.5)
        files = list((folder / "releases").glob("*.parquet")) if (folder / "releases").exists() else []
        if len(files) != found:
            found, since = len(files), time.monotonic()
        if found < load.windows * SHARDS:
            continue
        with Store(ledger) as store:
            if store.summary("bench").charged == load.windows:
                return max(path.stat().st_mtime for path in files)
    return None


def measured(cluster: Any, server: Any, number: int) -> tuple[float, int]:
    """Run a job; its seconds, and how many checkpoints were completed."""
    load = LOADS[number]
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as name, servers("postgres_schemas").new_schema(server.url) as ledger:
            folder = Path(name)
            job = cluster.submit(str(Path(__file__).absolute()), str(number), name, ledger)
            last = wait(load, folder, ledger)
            checkpoints = cluster.checkpoints(job)["counts"]["completed"]
            cluster.cancel(job)
            if last is not None:
                return last - float((folder / "begun").read_text(encoding="ascii")), checkpoints
        print(f"{load.name}: nothing came for {_QUIET_S:.0f} s, what a source handed back was lost: once more")
    return sys.exit(f"{load.name}: nothing comes")


def main() -> None:
    """Start the servers, run every load, print the table."""
    flink, postgres = servers("flink"), servers("postgres")
    server = postgres.PostgresServer(postgres.find_binaries())
    cluster = flink.FlinkCluster(flink.find_flink(), [ROOT / "benchmarks"], slots=1, others=1)
    try:
        print(
            f"{SERIES:,} series, {SHARDS} shards, a slot a part, checkpoints every 2 s to files, ledger in PostgreSQL"
        )
        print(f"{'':18}{'readings':>12}{'windows':>9}{'a block':>9}{'seconds':>9}{'M/s':>8}{'checkpoints':>13}")
        for number, load in enumerate(LOADS):
            seconds, checkpoints = measured(cluster, server, number)
            if number:
                print(
                    f"{load.name:18}{load.readings:12,}{load.windows:9,}{load.rows:9,}{seconds:9.1f}"
                    f"{load.readings / seconds / 1e6:8.2f}{checkpoints:13,}",
                    flush=True,
                )
    finally:
        cluster.close()
        server.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # by its name, so that Beam's workers find what is defined here
        import live_flink

        given = [sys.argv[1], *sys.argv[2:4]]
        live_flink.hand_over(LOADS[int(given[0])], Path(given[1]), given[2], sys.argv[4:])
    else:
        main()
