"""How fast a live job is on Prism: readings to released rows.

Run as ``python benchmarks/live.py``. Every line is a job in a process of its own. The source makes fresh record batches
of 8,192 readings, and declares windows complete as every live source does. Rates are from the first reading to the
last row on record; the delay of a window is from the source's clock passing its end to its rows being on record.
``tests/e2e/test_live_memory.py`` asks what such a job takes of memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from quiltstream.pipelines.live.runner import live_pipeline
from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.settings.job import Settings
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Steps
from quiltstream.transforms.sinks import WriteBlocks
from quiltstream.transforms.sources.contract import PartitionedSource, Reader, SourceBatch
from quiltstream.transforms.sources.reader import PollingPolicy, ReadLive

SERIES, GROUPS, SHARDS, STATES = 1000, 10, 2, 50
INTERVAL_US = 1_800_000_000
ORIGIN_US = 1_577_836_800_000_000  # 2020-01-01T00:00Z
ROWS = 8_192


@dataclass(frozen=True)
class Load:
    """What a job gets.

    Attributes:
        name: in the table.
        readings: how many.
        width: slots of a window.
        pause_s: seconds the source waits after each batch that ends a window.
        rows: readings in a batch.
        parts: parts of the source, each with as many series as the others.
    """

    name: str
    readings: int
    width: int
    pause_s: float = 0.0
    rows: int = ROWS
    parts: int = 1

    @property
    def windows(self) -> int:
        """How many windows the readings fill."""
        return self.readings // (SERIES * self.width)


LOADS = (
    Load("20 windows", 10_000_000, 500),
    Load("1,000 windows", 10_000_000, 10),
    Load("a window a second", 300_000, 10, pause_s=1.0),
)


#: Prism 2.77 asks a step that it does itself for its progress, and falls over, when that takes long: a busy machine.
_PANIC = "panic in stage.Execute"
_ATTEMPTS = 3


@dataclass(frozen=True)
class Fresh(PartitionedSource):
    """Readings made when they are asked for: every series in every slot, slot by slot."""

    load: Load

    @property
    def parts(self) -> int:
        """Those of the load."""
        return self.load.parts

    def reader(self, part: int, position: str) -> Reader:
        """A reader that goes on at a number of readings of its part."""
        return FreshReader(self.load, part, int(position or 0))


class Clocks:
    """When readings were made and rows were put on record, in this process."""

    begun: float = 0.0
    passed: dict[int, float] = {}  # noqa: RUF012 - the process's own
    released: dict[int, float] = {}  # noqa: RUF012


class FreshReader(Reader):
    """Makes a batch at a time, as fast as it is asked, or a window at a time."""

    def __init__(self, load: Load, part: int, at: int) -> None:
        self._load = load
        self._at, self._end = at, load.readings // load.parts
        self._series = SERIES // load.parts
        self._first = self._series * part
        self._random = np.random.default_rng((part, at))
        self._names = pa.array([f"meter-{i:04d}" for i in range(SERIES)])
        self._wait = 0.0

    def read(self) -> SourceBatch | None:
        """The next batch."""
        if self._wait:
            time.sleep(self._wait)
            self._wait = 0.0
        load = self._load
        if self.ended:
            return None
        Clocks.begun = Clocks.begun or time.monotonic()
        index = np.arange(self._at, min(self._at + load.rows, self._end))
        slots = index // self._series
        times = ORIGIN_US + slots * INTERVAL_US + self._random.integers(INTERVAL_US, size=len(index))
        series = pa.DictionaryArray.from_arrays(
            pa.array((self._first + index % self._series).astype(np.int32)), self._names
        )
        columns = [
            series,
            pa.array(times, pa.timestamp("us", tz="UTC")),
            pa.array(self._random.random(len(index)) * 10_000),
        ]
        first = self._at // (self._series * load.width)
        self._at = int(index[-1]) + 1
        last = self._at // (self._series * load.width)
        # readings of a slot come in any order: the clock is sure of the slots before
        latest = ORIGIN_US + self._at // self._series * INTERVAL_US
        now = time.monotonic()
        Clocks.passed.update((window * load.width, now) for window in range(first, last))
        self._wait = load.pause_s if last > first else 0.0
        batch = pa.RecordBatch.from_arrays(columns, schema=READING_SCHEMA)
        return SourceBatch(str(self._at), settled=True, batches=(batch,), rows=len(index), latest_us=latest)

    @property
    def ended(self) -> bool:
        """Whether all were made."""
        return self._at >= self._end

    def close(self) -> None:
        """Nothing is open."""


def settings_of(load: Load, folder: Path, ledger: str | None = None) -> Settings:
    """The job's settings; its roster is written, and its ledger beside it unless another one is given."""
    rows = "".join(f"meter-{i:04d},g{i % GROUPS}\n" for i in range(SERIES))
    (folder / "roster.csv").write_text("series,group\n" + rows, encoding="utf-8")
    stop = ORIGIN_US + load.windows * load.width * INTERVAL_US
    return Settings.parse(
        {
            "slots": {"interval": "30min", "origin": "2020-01-01"},
            "states": {"edges": [200.0 * i for i in range(1, STATES)], "unit": "W"},
            "model": {"pi_min": 0.001, "gap": 0.3},
            "windows": {
                "size": f"{load.width * 30}min",
                "start": "2020-01-01",
                "stop": str(np.datetime64(stop, "us").astype("datetime64[s]")),
            },
            "privacy": {"epsilon": 1.0},
            "group_by": "group",
            "shards": SHARDS,
            "query": "load",
            "most_error": 1e6,  # what is timed here is not how useful the rows are
            "domain": "bench",
            "roster": str(folder / "roster.csv"),
            "ledger": ledger or f"sqlite:///{folder / 'ledger.db'}",
        }
    )


def watched() -> None:
    """Note when rows are put on record."""
    publish = Store.publish

    def noted(self: Store, registration: Any, drafts: Any) -> Any:
        records = publish(self, registration, drafts)
        now = time.monotonic()
        Clocks.released.update((draft.window.start, now) for draft in drafts)
        return records

    Store.publish = noted  # type: ignore[method-assign]


def job(load: Load) -> dict[str, float]:
    """Run a load: readings a second, and the median and the longest delay of a window in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        end = ORIGIN_US + load.windows * load.width * INTERVAL_US
        pipeline = live_pipeline(PipelineOptions([]))
        # as the command does: steps that wait for the ledger's answer are steps apart on Prism, .05 s each
        histograms = PrivateHistograms(settings_of(load, folder)).register()
        steps = Steps.of(histograms.plan.grid, histograms.plan.schedule)
        pace = PollingPolicy(ORIGIN_US, poll_s=0.1, end_us=end, steps=steps)
        decoded = pipeline | "Read" >> ReadLive(Fresh(load), pace)
        watched()
        published = decoded.readings | "Publish" >> histograms
        _ = published.releases | "Sink" >> WriteBlocks(str(folder / "releases"), "parquet")
        result: Any = pipeline.run()
        result.wait_until_finish()
        if len(Clocks.released) != load.windows:
            sys.exit(f"{load.name}: {len(Clocks.released)} of {load.windows} windows were released")
    delays = sorted(Clocks.released[window] - Clocks.passed[window] for window in Clocks.released)
    seconds = max(Clocks.released.values()) - Clocks.begun
    return {"rate": load.readings / seconds, "median": statistics.median(delays), "longest": delays[-1]}


def measured(number: int) -> dict[str, float]:
    """A load in a process of its own, once more where Prism fell over itself."""
    for _ in range(_ATTEMPTS):
        command = [sys.executable, __file__, str(number)]
        made = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - this program
        if not made.returncode:
            return json.loads(made.stdout.splitlines()[-1])
        if _PANIC not in made.stderr:
            sys.exit(made.stderr[-4000:])
        print(f"{LOADS[number].name}: {_PANIC}: once more")
    return sys.exit(f"{LOADS[number].name}: {_PANIC} every time")


def main() -> None:
    """Run every load in a process of its own and print the table."""
    print(f"{SERIES:,} series in {GROUPS} groups, {SHARDS} shards, {STATES} states; batches of {ROWS:,} readings")
    print(f"{'':20}{'readings':>12}{'windows':>9}{'M/s':>9}{'delay s':>9}{'longest':>9}")
    for number, load in enumerate(LOADS):
        found = measured(number)
        print(
            f"{load.name:20}{load.readings:12,}{load.windows:9,}{found['rate'] / 1e6:9.3f}{found['median']:9.2f}"
            f"{found['longest']:9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # by its name, so that Beam's workers find what is defined here
        import live

        print(json.dumps(live.job(live.Load(**asdict(LOADS[int(sys.argv[1])])))))
    else:
        main()
