"""Ten million readings: the histograms are right and the memory stays bounded."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

MEMORY_MB = 1500

JOB = """
import sys
from pathlib import Path
from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms import PrivateHistograms

settings = read_settings(Path(sys.argv[1]))
publish(settings, PrivateHistograms(settings, noise="none"))
# of this program alone: what getrusage tells begins with the peak of the process that started it
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.night
def test_ten_million_readings_are_counted_right_within_the_memory(repository, tmp_path):
    made = runpy.run_path(str(repository / "benchmarks" / "pipeline.py"))
    case = made["Case"](readings=10_000_000, series=1000)
    made["make"](tmp_path, case)
    job = [sys.executable, "-c", JOB, str(tmp_path / "settings.yaml")]
    done = subprocess.run(job, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) < MEMORY_MB

    truth = counted(tmp_path / "readings.parquet", made["STATES"], case.window)
    rows = pl.read_parquet(tmp_path / "releases.parquet", columns=["key", "window_start", "counts", "total"])
    assert len(rows) == case.series * made["WINDOWS"]
    found = {
        (key, int(start.timestamp()) * 1_000_000): counts
        for key, start, counts, total in rows.iter_rows()
        if sum(counts) == total == case.window
    }
    assert found == truth


def counted(path: Path, states: int, window: int) -> dict[tuple[str, int], list[int]]:
    """Counts of each meter and window by polars: every bin is 200 W wide and the last one open."""
    width = window * 1_800_000_000
    frame = (
        pl.scan_parquet(path)
        .with_columns(
            time=pl.col("ts").cast(pl.Int64), state=(pl.col("watt") // 200.0).clip(0, states - 1).cast(pl.Int64)
        )
        .with_columns(start=(pl.col("time") - 1_577_836_800_000_000) // width * width + 1_577_836_800_000_000)
        .group_by("meter", "start", "state")
        .len()
        .collect()
    )
    truth: dict[tuple[str, int], list[int]] = {}
    for meter, start, state, count in frame.rows():
        truth.setdefault((meter, start), [0] * states)[state] = count
    return truth
