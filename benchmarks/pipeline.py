"""How fast the whole way is: Parquet to released rows, beside peers that count the same cells in the same call.

Run as ``python benchmarks/pipeline.py``. Each case is readings of so many series, half an hour apart, in 50 states and
windows of a tenth of the slots (``--windows 1``: one window of all). The job runs in a fresh process from its command
line to the last released row. polars and DuckDB count the cells exactly, with the same de-duplication and without
privacy; PipelineDP counts all windows at once, with noise for all readings of a meter, as wide as it then is. Ratios
carry over to other machines, seconds do not.

``--readings 1 10 100`` and ``--series`` say which cases, ``--cores 1`` binds all processes to so many cores, and
``--python`` names an interpreter that has the peers. A peer that it lacks is said to be left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STATES, WINDOWS, SLOT_US, ORIGIN_US = 50, 10, 1_800_000_000, 1_577_836_800_000_000

SETTINGS = """\
source:   {{parquet: readings.parquet}}
readings: {{series: meter, time: ts, value: watt}}
slots:    {{interval: 30min, origin: 2020-01-01}}
states:   {{edges: [{edges}], unit: W}}
model:    {{pi_min: 0.001, gap: 0.3}}
windows:  {{size: {window}min, start: 2020-01-01, stop: {stop}}}
privacy:  {{epsilon: 1.0}}
sink:     {{parquet: releases.parquet}}
query:    load
domain:   bench
most_error: 1.0e+9
roster:   roster.csv
ledger:   sqlite:///ledger.db
"""

POLARS = """
import sys, polars as pl
(
    pl.scan_parquet(sys.argv[1])
    .with_columns(slot=(pl.col("ts").cast(pl.Int64) - {origin}) // {slot},
                  state=pl.col("watt").cut([200.0 * i for i in range(1, {states})], left_closed=True).to_physical())
    .unique(["meter", "slot"], keep="any")
    .group_by(["meter", pl.col("slot") // {window}, "state"]).len()
    .collect()
    .write_parquet(sys.argv[2])
)
"""

DUCKDB = """
import sys, duckdb
duckdb.sql(f'''
    copy (
        select meter, slot // {window} as win, state, count(*) as n
        from (
            select meter, (epoch_us(ts) - {origin}) // {slot} as slot,
                   any_value(least({states} - 1, floor(watt / 200))) as state
            from '{{sys.argv[1]}}' group by meter, slot
        ) group by all
    ) to '{{sys.argv[2]}}' (format parquet)
''')
"""

PIPELINE_DP = """
import sys, apache_beam as beam, pipeline_dp, pyarrow.parquet as pq
from apache_beam.io.parquetio import ReadFromParquet
def cell(row):
    slot = (int(row["ts"].timestamp()) * 1_000_000 - {origin}) // {slot}
    return row["meter"], slot // {window} * {states} + min({states} - 1, int(row["watt"] // 200))
with beam.Pipeline() as p:
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-9)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.BeamBackend())
    params = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE, metrics=[pipeline_dp.Metrics.COUNT],
        max_partitions_contributed={windows} * {states}, max_contributions_per_partition={window})
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda one: one[0], partition_extractor=lambda one: one[1], value_extractor=lambda _: 0)
    cells = p | ReadFromParquet(sys.argv[1]) | beam.Map(cell)
    found = engine.aggregate(cells, params, extractors, list(range({windows} * {states})))
    accountant.compute_budgets()
    found | beam.Map(repr) | beam.io.WriteToText(sys.argv[2])
"""

#: As pip installs it: compiled ahead, not anew in every process.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

#: PipelineDP takes each reading as an object: so many millions of readings take a minute.
PIPELINE_DP_READINGS = 0.5


@dataclass(frozen=True)
class Case:
    """Readings of so many series.

    Attributes:
        readings: how many.
        series: of how many series, one reading of each in every slot.
        windows: of equal length, that cover all slots.
    """

    readings: int
    series: int
    windows: int = WINDOWS

    @property
    def window(self) -> int:
        """Slots of a window."""
        return self.readings // self.series // self.windows

    def filled(self, program: str) -> str:
        """The program of a peer for this case."""
        return program.format(origin=ORIGIN_US, slot=SLOT_US, states=STATES, window=self.window, windows=self.windows)


@dataclass(frozen=True)
class Spent:
    """What a process took: wall seconds, seconds of CPU, peak memory in MB."""

    seconds: float
    cpu: float
    memory: float


def make(folder: Path, case: Case) -> None:
    """Write the readings, the roster and the settings."""
    random = np.random.default_rng(1)
    names = pa.array([f"meter-{i:06d}" for i in range(case.series)])
    schema = pa.schema([("meter", pa.utf8()), ("ts", pa.timestamp("us")), ("watt", pa.float64())])
    with pq.ParquetWriter(folder / "readings.parquet", schema, compression="zstd") as writer:
        rows = 131_072
        for first in range(0, case.readings, rows):
            index = np.arange(first, min(first + rows, case.readings))
            columns = [
                names.take(pa.array(index % case.series)),
                pa.array(ORIGIN_US + index // case.series * SLOT_US, pa.timestamp("us")),
                pa.array(random.gamma(2.0, 1500.0, len(index)).round()),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=rows)
    (folder / "roster.csv").write_text("series\n" + "\n".join(names.to_pylist()) + "\n", encoding="utf-8")
    edges = ", ".join(str(200 * i) for i in range(1, STATES))
    stop = np.datetime64(ORIGIN_US + case.window * case.windows * SLOT_US, "us").astype("datetime64[m]")
    text = SETTINGS.format(edges=edges, window=case.window * 30, stop=stop)
    (folder / "settings.yaml").write_text(text, encoding="utf-8")


def timed(command: list[str], cores: int) -> Spent | None:
    """What one process takes from its start to its end; ``None`` where it fails."""
    begin = time.perf_counter()
    os.sched_setaffinity(0, range(cores))  # a child's are those of its parent
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)  # noqa: S603 - our own command
    _, status, usage = os.wait4(process.pid, 0)
    spent = Spent(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    return None if status else spent


def forget(folder: Path) -> None:
    """Take what the last run left away."""
    for pattern in ("ledger.db*", "releases.parquet", ".*.quiltstream.*", "peer*"):
        for file in folder.glob(pattern):
            file.unlink()


def measure(case: Case, runs: int, cores: int, python: str) -> None:
    """Run a case beside its peers, and print its lines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, case)
        files = [str(folder / "readings.parquet"), str(folder / "peer.out")]
        job = [sys.executable, "-m", "quiltstream.pipelines.cli", "run", str(folder / "settings.yaml")]
        commands = {
            "quiltstream run": job,
            "polars, no privacy": [python, "-c", case.filled(POLARS), *files],
            "DuckDB, no privacy": [python, "-c", case.filled(DUCKDB), *files],
        }
        if case.readings <= PIPELINE_DP_READINGS * 1e6:
            commands["PipelineDP on local Beam"] = [python, "-c", case.filled(PIPELINE_DP), *files]
        found: dict[str, list[Spent | None]] = {label: [] for label in commands}
        for _ in range(runs):
            for label, command in commands.items():
                forget(folder)
                found[label].append(timed(command, cores))
    of = f"{case.readings / 1e6:g} M readings, {case.series:,} series, {case.windows} windows, {cores} cores"
    print(f"\n{of}; {runs} runs")
    print(f"{'':28}{'median s':>10}{'M/s':>8}{'CPU s':>8}{'peak MB':>10}{'times ours':>12}")
    first = 0.0
    for label, each in found.items():
        whole = [one for one in each if one is not None]
        if len(whole) < len(each):
            print(f"{label:28}left out: it does not run here")
            continue
        seconds = float(np.median([one.seconds for one in whole]))
        first = first or seconds
        cpu, memory = float(np.median([one.cpu for one in whole])), max(one.memory for one in whole)
        rate = case.readings / seconds / 1e6
        print(f"{label:28}{seconds:10.2f}{rate:8.3g}{cpu:8.2f}{memory:10.0f}{seconds / first:12.2f}", flush=True)


def main() -> None:
    """Measure the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readings", type=float, nargs="+", default=[10], help="millions")
    parser.add_argument("--series", type=int, nargs="+", default=[1000])
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    for readings in given.readings:
        for series in given.series:
            measure(Case(int(readings * 1e6), series, given.windows), given.runs, given.cores, given.python)


if __name__ == "__main__":
    main()
