"""How fast a live job is on a real Flink cluster: from the first block of readings to the last row that left.

Run as ``python benchmarks/live_flink.py``, with the Python that has the cluster's Beam named as the end-to-end tests
have it (``QUILTSTREAM_FLINK_PYTHON``). One JobManager, two TaskManagers of one slot, a checkpoint every two seconds to
files, bundles of one element, the ledger in PostgreSQL, and the source of ``live.py``. A source in two parts runs on
both TaskManagers, with a worker each; any other on one. Where the source is pausing, it rests after each window, so
that about a million readings come in a second and not what can. After a job that is not measured, because a new cluster
first has to compile itself, every line is a job of its own. "Last row" is when the last file of the sink was written.
The last line is the pipeline of Beam's guide, an element a reading, on the same cluster, with the time at which the
last count came out; its bundles have the size that Flink gives them of itself, because with an element in each it would
be slower by far. "Ledger" is the share of a run in which some worker is in the store, the draw of the noise included,
and "noise" that of the draw alone, as a clock on the wall says it. A job that lost its source (Beam 2.62 does so now
and then, the more the larger bundles are) is run once more, and told.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import apache_beam as beam

# by its name, so that Beam's workers find what is defined there
import live
from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows
from live import INTERVAL_US, ORIGIN_US, SERIES, SHARDS, Fresh, Load, clock, one_by_one, share
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
    Load("8k, pausing", 20_000_000, 500, pause_s=0.27),
    Load("800 windows", 40_000_000, 50),
    Load("8k, 2 parts", 40_000_000, 500, parts=2),
    Load("64k, 2 parts", 40_000_000, 500, rows=65_536, parts=2),
    Load("element-wise Beam", 200_000, 10, element_wise=True),
)

#: Without a new row for so long a job has lost its source.
_QUIET_S = 60.0
_ATTEMPTS = 3

#: What is noted of the time that a worker spends.
_SPANS = ("ledger", "noise")


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


@cache
def watch(folder: str) -> None:
    """Note what noise and ledger take, in files of this worker."""

    def note(name: str, span: tuple[float, float]) -> None:
        with (Path(folder) / f"{name}-{os.getpid()}").open("a", encoding="ascii") as file:
            file.write(f"{span[0]} {span[1]}\n")

    clock(*(partial(note, name) for name in _SPANS))


class Watched(beam.DoFn):
    """Passes rows on; the worker that it is in, which is the one that publishes, notes what noise and ledger take."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def setup(self) -> None:
        """Put the clocks in place."""
        watch(self._folder)

    def process(self, element: Any) -> Any:
        """Pass it on."""
        yield element


def shares(folder: Path, seconds: float, last: float) -> dict[str, float]:
    """The share of a run that each took; the instants of files are since 1970, those of spans since the machine began.

    Raises:
        RuntimeError: nothing was noted.
    """
    end = last - (time.time() - time.monotonic())
    found: dict[str, float] = {}
    for name in _SPANS:
        texts = [path.read_text(encoding="ascii") for path in folder.glob(f"{name}-*")]
        lines = [line.split() for text in texts for line in text.splitlines()]
        if not lines:
            raise RuntimeError(f"no clock was around the {name}")
        found[name] = share([(float(began), float(ended)) for began, ended in lines], end - seconds, end)
    return found


def hand_over(load: Load, folder: Path, ledger: str, options: list[str]) -> None:
    """Build a job and hand it to the cluster; in a process with the cluster's Beam."""
    end = ORIGIN_US + load.windows * load.width * INTERVAL_US
    options = [*options, f"--parallelism={load.parts}"]
    if load.element_wise:
        options = [option for option in options if not option.startswith("--max_bundle_size=")]
    pipeline = Pipeline(options=PipelineOptions(options))
    histograms = PrivateHistograms(live.settings_of(load, folder, ledger)).register()
    steps = Steps.of(histograms.plan.grid, histograms.plan.schedule)
    pace = PollingPolicy(ORIGIN_US, poll_s=1.0, end_us=end, steps=steps, stay_s=10.0, rest_s=1.1)
    decoded = pipeline | "Read" >> ReadLive(Noted(load, str(folder)), pace)
    if load.element_wise:
        _ = (
            decoded.readings
            | beam.FlatMap(one_by_one)
            | beam.WindowInto(FixedWindows(load.width * INTERVAL_US // 1_000_000))
            | beam.CombinePerKey(sum)
            | beam.Map(note_count, str(folder / "counts"))
        )
        pipeline.run()
        return
    published = decoded.readings | "Publish" >> histograms
    _ = (
        published.releases
        | "Watch" >> beam.ParDo(Watched(str(folder)))
        | "Sink" >> WriteBlocks(str(folder / "releases"), "parquet")
    )
    pipeline.run()


def note_count(element: tuple[tuple[str, int], int], folder: str) -> None:
    """Note that a count came out, in a file of this process."""
    Path(folder).mkdir(exist_ok=True)
    with (Path(folder) / str(os.getpid())).open("a", encoding="ascii") as file:
        file.write(f"{element[1]}\n")


def wait_for_counts(load: Load, folder: Path) -> float | None:
    """When the last count came; ``None`` if nothing comes any more."""
    counted, since = -1, time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        time.sleep(0.5)
        files = list((folder / "counts").glob("*"))
        found = sum(sum(map(int, path.read_text(encoding="ascii").split("\n")[:-1])) for path in files)
        if found != counted:
            counted, since = found, time.monotonic()
        if found >= load.readings:
            return max(path.stat().st_mtime for path in files)
    return None


def wait(load: Load, folder: Path, ledger: str) -> float | None:
    """When the last row left; ``None`` if nothing comes any more."""
    if load.element_wise:
        return wait_for_counts(load, folder)
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


@dataclass(frozen=True)
class Found:
    """What was measured of a job: seconds, complete checkpoints, and the shares of noise and ledger."""

    seconds: float
    checkpoints: int
    shares: dict[str, float]


def measured(cluster: Any, server: Any, number: int) -> Found:
    """Run a job."""
    load = LOADS[number]
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as name, servers("postgres_schemas").new_schema(server.url) as ledger:
            folder = Path(name)
            job = cluster.submit(str(Path(__file__).absolute()), str(number), name, ledger)
            last = wait(load, folder, ledger)
            checkpoints = cluster.checkpoints(job)["counts"]["completed"]
            cluster.cancel(job)
            if last is not None:
                seconds = last - float((folder / "begun").read_text(encoding="ascii"))
                return Found(seconds, checkpoints, {} if load.element_wise else shares(folder, seconds, last))
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
        print(
            f"{'':18}{'readings':>12}{'windows':>9}{'a block':>9}{'seconds':>9}{'M/s':>8}{'checkpoints':>13}"
            + "".join(f"{name:>9}" for name in _SPANS)
        )
        rates: dict[str, float] = {}
        for number, load in enumerate(LOADS):
            found = measured(cluster, server, number)
            rates[load.name] = load.readings / found.seconds
            if number:
                print(
                    f"{load.name:18}{load.readings:12,}{load.windows:9,}{load.rows:9,}{found.seconds:9.1f}"
                    f"{rates[load.name] / 1e6:8.2f}{found.checkpoints:13,}"
                    + "".join(f"{one:9.1%}" for one in found.shares.values()),
                    flush=True,
                )
        slower = rates["blocks of 8k"] / rates["element-wise Beam"]
        print(f"element-wise is {slower:.0f} times slower than blocks of 8k")
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
