"""How fast the whole way is: Parquet to released rows, beside polars' group_by with de-duplication in the same run.

Run as ``python benchmarks/pipeline.py``. It makes 10 million readings of 1,000 series (10,000 slots each, 50 states),
runs the job in a fresh process from its command line to the last released row, and prints one table. Ratios carry over
to other machines, seconds do not.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SERIES, SLOTS, STATES, WINDOW = 1000, 10_000, 50, 1000
READINGS = SERIES * SLOTS

SETTINGS = """\
source:   {{parquet: readings.parquet}}
readings: {{series: meter, time: ts, value: watt}}
slots:    {{interval: 30min, origin: 2020-01-01}}
states:   {{edges: [{edges}], unit: W}}
model:    {{pi_min: 0.001, gap: 0.3}}
windows:  {{size: {window}min, start: 2020-01-01, stop: 2020-07-27T08:00}}
privacy:  {{epsilon: 1.0}}
sink:     {{parquet: releases.parquet}}
query:    load
domain:   bench
most_error: 1.0e+6
roster:   roster.csv
ledger:   sqlite:///ledger.db
"""

POLARS = """
import sys, polars as pl
edges = [200.0 * i for i in range(1, {states})]
(
    pl.scan_parquet(sys.argv[1])
    .with_columns(slot=(pl.col("ts").cast(pl.Int64) - 1577836800000000) // 1800000000,
                  state=pl.col("watt").cut(edges, left_closed=True).to_physical())
    .unique(["meter", "slot"], keep="any")
    .group_by(["meter", pl.col("slot") // {window}, "state"]).len()
    .collect()
    .write_parquet(sys.argv[2])
)
"""

#: The same job, with a clock around everything that the store does, noise included: it is drawn inside a transaction.
CLOCKED = """
import atexit, sys, time
begin, spent = time.perf_counter(), [0.0]
from quiltstream.store.store import Store
def clocked(name):
    plain = getattr(Store, name)
    def call(*given, **named):
        at = time.perf_counter()
        try:
            return plain(*given, **named)
        finally:
            spent[0] += time.perf_counter() - at
    setattr(Store, name, call)
for name in ("register", "publish", "freeze", "summary", "check_writable"):
    clocked(name)
atexit.register(lambda: print("SHARE", spent[0] / (time.perf_counter() - begin), file=sys.stderr))
from quiltstream.pipelines.cli import main
main(["run", sys.argv[1]])
"""


def share_of(settings: Path) -> float:
    """Share of a run's time that noise and ledger take."""
    command = [sys.executable, "-c", CLOCKED, str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    found = [line for line in done.stderr.splitlines() if line.startswith("SHARE")]
    if not found:
        sys.exit(f"the clocked run failed with status {done.returncode}")
    return float(found[0].split()[1])


def make(folder: Path) -> None:
    """Write the readings, the roster and the settings."""
    random = np.random.default_rng(1)
    start = 1_577_836_800_000_000
    names = pa.array([f"meter-{i:04d}" for i in range(SERIES)])
    schema = pa.schema([("meter", pa.utf8()), ("ts", pa.timestamp("us")), ("watt", pa.float64())])
    with pq.ParquetWriter(folder / "readings.parquet", schema, compression="zstd") as writer:
        rows = 65_536
        for first in range(0, READINGS, rows):
            index = np.arange(first, min(first + rows, READINGS))
            columns = [
                names.take(pa.array(index % SERIES)),
                pa.array(start + index // SERIES * 1_800_000_000, pa.timestamp("us")),
                pa.array(random.gamma(2.0, 1500.0, len(index)).round()),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=rows)
    (folder / "roster.csv").write_text("series\n" + "\n".join(names.to_pylist()) + "\n", encoding="utf-8")
    edges = ", ".join(str(200 * i) for i in range(1, STATES))
    text = SETTINGS.format(edges=edges, window=WINDOW * 30)
    (folder / "settings.yaml").write_text(text, encoding="utf-8")


def timed(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak memory (MB) of one process, from its start to its end."""
    begin = time.perf_counter()
    # as pip installs it: compiled ahead, not anew in every process
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)  # noqa: S603 - our own command
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[:3]} failed with status {status}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def forget(folder: Path) -> None:
    """Take what the last run left away."""
    for pattern in ("ledger.db*", "releases.parquet", ".*.quiltstream.*"):
        for file in folder.glob(pattern):
            file.unlink()


def main() -> None:
    """Run both and print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        rows: dict[str, list[tuple[float, float]]] = {"quiltstream run": [], "polars group_by + unique": []}
        for _ in range(runs):
            forget(folder)
            ours = [sys.executable, "-m", "quiltstream.pipelines.cli", "run", str(folder / "settings.yaml")]
            rows["quiltstream run"].append(timed(ours))
            peer = [sys.executable, "-c", POLARS.format(states=STATES, window=WINDOW)]
            files = [str(folder / "readings.parquet"), str(folder / "peer.parquet")]
            rows["polars group_by + unique"].append(timed(peer + files))
        forget(folder)
        share = share_of(folder / "settings.yaml")
        print(
            f"{READINGS / 1e6:.0f} M readings, {SERIES} series, {SLOTS // WINDOW} windows, {STATES} states; {runs} runs"
        )
        print(f"{'':28}{'median s':>10}{'M/s':>8}{'peak MB':>10}")
        for label, found in rows.items():
            seconds = float(np.median([s for s, _ in found]))
            memory = max(m for _, m in found)
            print(f"{label:28}{seconds:10.2f}{READINGS / seconds / 1e6:8.2f}{memory:10.0f}")
        print(f"noise and ledger take {100 * share:.1f} % of a run")
        print(f"self: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB to make the input")


if __name__ == "__main__":
    main()
