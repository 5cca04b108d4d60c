"""A place for live jobs of the tests: settings, an inbox, a sink and a ledger, and an independent truth about them.

The jobs are processes of their own, in a session of their own, so that they can be killed with all they started.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from quiltstream.privacy.classes import MixingBounds
from quiltstream.privacy.ledger import Ledger
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.rowfiles import write_rows
from quiltstream.store import Store, StoreMissing, UnknownNameError

from ..transforms.truth import cells, histograms

HERE = Path(__file__).parent
ORIGIN = 1_356_998_400_000_000  # 2013-01-01T00:00Z
SLOT = 1_800_000_000
HOUR = 2 * SLOT
DAY_US = 24 * HOUR
DAY = 48
EDGES = [250.0, 500.0, 1000.0, 2000.0]
NAMES = ("a", "b", "c", "d", "e")
SERIES = {name: [name] for name in NAMES}
GROUPS = {"x": ["a", "b"], "y": ["c", "d", "e"]}
BELIEF = {"pi_min": 0.01, "gap": 0.3}

#: Seconds that anything may take on a slow machine before the test gives up; nothing is ever timed by it.
PATIENCE = 120.0


def readings(days: float, seed: int, names: Sequence[str] = NAMES, first: float = 0) -> pl.DataFrame:
    """Half-hourly readings, some cells missing and some read twice at different times, in no order."""
    source = random.Random(seed)  # noqa: S311 - test data
    rows = [
        (name, ORIGIN + slot * SLOT + source.randrange(SLOT), round(source.uniform(0, 3000), 3))
        for name in names
        for slot in range(int(first * DAY), int((first + days) * DAY))
        for _ in range(source.choice([0, 1, 1, 1, 2]))
    ]
    source.shuffle(rows)
    return pl.DataFrame(rows, schema={"series": pl.Utf8, "time": pl.Int64, "value": pl.Float64}, orient="row")


def day_of(frame: pl.DataFrame, day: int) -> pl.DataFrame:
    """The readings of one day."""
    return frame.filter((pl.col("time") - ORIGIN) // DAY_US == day)


def lines(frame: pl.DataFrame) -> str:
    """Readings as JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in frame.to_dicts())


def truth(
    frame: pl.DataFrame,
    days: range,
    keys: dict[str, list[str]] = SERIES,
    size: int = DAY,
    every: int = DAY,
) -> dict[tuple[int, str], list[int]]:
    """Counts by first slot and key, of the windows that start in some days."""
    found = cells(frame, interval_us=SLOT, origin_us=ORIGIN, edges=EDGES)
    windows = [(start, start + size) for start in range(days.start * DAY, days.stop * DAY, every)]
    return histograms(found, windows=windows, keys=keys, bins=len(EDGES) + 1)


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait until something is true; it is a failure if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.02)
    return found


@dataclass
class Running:
    """A live job in a process of its own."""

    process: subprocess.Popen[str]
    out: Path
    err: Path

    def wait(self) -> int:
        """Its exit code, when it ends by itself."""
        return self.process.wait(timeout=PATIENCE)

    def kill(self) -> None:
        """End it and all it started at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def said(self) -> list[dict[str, Any]]:
        """What it printed."""
        return [json.loads(line) for line in self.out.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    @property
    def summary(self) -> dict[str, Any]:
        """What it printed last."""
        assert self.said, self.err.read_text(encoding="utf-8")
        assert self.said[-1]["kind"] == "summary", (self.said, self.err.read_text(encoding="utf-8"))
        return self.said[-1]


@dataclass
class Bench:
    """A settings file, an inbox, a sink and a ledger in a folder, and the jobs over them."""

    folder: Path
    options: list[str]
    environment: dict[str, str]
    started: list[Running] = field(default_factory=list)

    def settings(self, **changes: Any) -> None:
        """Write the settings and the roster; ``None`` takes a setting out."""
        (self.folder / "inbox").mkdir(parents=True, exist_ok=True)
        (self.folder / "roster.csv").write_text(
            "series,group\n" + "".join(f"{n},{'x' if n < 'c' else 'y'}\n" for n in NAMES), encoding="utf-8"
        )
        document: dict[str, Any] = {
            "source": {"jsonl": "inbox/*.jsonl"},
            "readings": {"series": "series", "time": "time", "value": "value", "time_unit": "us"},
            "slots": {"interval": "30min", "origin": "2013-01-01"},
            "states": {"edges": EDGES, "unit": "W"},
            "model": BELIEF,
            "windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
            "live": {"poll": "100ms"},
            "privacy": {"epsilon": 1.0},
            "sink": {"parquet": "releases"},
            "query": "load",
            "domain": "homes",
            "roster": "roster.csv",
            "shards": 3,
            "ledger": "sqlite:///ledger.db",
        } | changes
        (self.folder / "settings.yaml").write_text(
            yaml.safe_dump({k: v for k, v in document.items() if v is not None}), encoding="utf-8"
        )

    def start(self, *words: str | Path, noise: str = "none", stdin: IO[str] | int | None = None) -> Running:
        """Start a job."""
        number = len(self.started)
        out, err = self.folder / f"out-{number}.txt", self.folder / f"err-{number}.txt"
        command = [sys.executable, HERE / "live_job.py", "settings.yaml", "--noise", noise, *words, "--"]
        with out.open("wb") as first, err.open("wb") as second:
            process = subprocess.Popen(
                [*map(str, command), *self.options],
                cwd=self.folder,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=first,
                stderr=second,
                text=True,
                start_new_session=True,
            )
        self.started.append(Running(process, out, err))
        return self.started[-1]

    def run(self, *words: str | Path, **how: Any) -> Running:
        """Run a job to its end."""
        job = self.start(*words, **how)
        job.wait()
        return job

    def put(self, name: str, frame: pl.DataFrame | str | bytes) -> None:
        """A file that appears whole."""
        content = frame if isinstance(frame, (str, bytes)) else lines(frame)
        part = self.folder / "inbox" / f".{name}.part"
        part.write_bytes(content if isinstance(content, bytes) else content.encode())
        part.rename(self.folder / "inbox" / name)

    def say_clock(self, instant_us: int) -> Path:
        """The wall clock of a job that was started with it."""
        path = self.folder / "clock"
        part = self.folder / ".clock"
        part.write_text(str(instant_us), encoding="ascii")
        part.rename(path)
        return path

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def rows(self) -> list[Release]:
        """Every released row on record."""
        with Store(self.ledger, create=False) as store:
            try:
                return [row for batch in store.releases("homes", "load") for row in releases_from_batch(batch)]
            except (StoreMissing, UnknownNameError):
                return []

    def counts(self) -> dict[tuple[int, str], list[int]]:
        """What is on record, by first slot and key: a row each."""
        rows = self.rows()
        places = Counter((row.window_start, row.key) for row in rows)
        assert set(places.values()) <= {1}, "a window was published twice"
        return {((row.window_start - ORIGIN) // SLOT, row.key): list(row.counts) for row in rows}

    def windows(self) -> int:
        """How many windows have a row on record."""
        return len({row.window_start for row in self.rows()})

    def wait_for(self, windows: int) -> None:
        """Wait until so many windows have a row on record, all their keys."""

        def there() -> bool:
            if self.started[-1].process.poll() is not None:
                pytest.fail(f"the job ended: {self.started[-1].err.read_text(encoding='utf-8')}")
            found = Counter(row.window_start for row in self.rows())
            return sum(count == max(found.values()) for count in found.values()) >= windows

        until(there, f"{windows} windows on record")

    def wait_for_some(self, windows: int) -> None:
        """Wait until so many windows have any row on record."""
        until(lambda: self.windows() >= windows, f"a row of {windows} windows on record")

    def check(self, budget: float = 1.0) -> None:
        """The sink holds what is on record, byte for byte, and the ledger is what the mathematics says of the rows."""
        expected: dict[str, bytes] = {}
        trial = self.folder / "trial.parquet"
        with Store(self.ledger, create=False) as store:
            entries = store.entries("homes")
            for batch in store.releases("homes", "load"):
                write_rows(trial, "parquet", pa.Table.from_batches([batch]))
                expected[batch.column("release_id")[0].as_py()] = trial.read_bytes()
        files = sorted((self.folder / "releases").glob("*.parquet"))
        found = {pq.read_table(path)["release_id"][0].as_py(): path.read_bytes() for path in files}
        assert len(files) == len(found) == len(expected)
        assert found == expected
        charges: dict[tuple[int, int], float] = {}
        for path in files:
            table = pq.read_table(path)
            bounds = [table[name].cast(pa.int64())[0].as_py() for name in ("window_start", "window_stop")]
            (epsilon,) = set(table["epsilon_dp"].to_pylist())
            assert charges.setdefault((bounds[0], bounds[1]), epsilon) == epsilon
        ledger = Ledger(MixingBounds(BELIEF["pi_min"], BELIEF["gap"]))
        losses = {
            start: ledger.charge((start - ORIGIN) // SLOT, (stop - ORIGIN) // SLOT, epsilon).loss_after
            for (start, stop), epsilon in sorted(charges.items())
        }
        assert ledger.loss <= budget
        charged = [entry for entry in entries if entry.decision == "charged"]
        assert {entry.start_us: entry.loss_after for entry in charged} == losses
        assert {row.window_start: row.loss_after for row in self.rows()} == losses
