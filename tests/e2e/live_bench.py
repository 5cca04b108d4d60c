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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings.connectors import FileFormat
from quiltstream.store import Store
from quiltstream.store.errors import StoreConflict

from ..examined import Examined, Span, every, examine, on_record
from ..released import write_rows
from ..transforms.truth import cells, histograms
from .stamped import left, unstamped

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
READ = {"series": "series", "time": "time", "value": "value", "time_unit": "us"}
BELIEF = {"pi_min": 0.01, "gap": 0.3}

#: Failures of Prism's own, as it says them and as a job names them.
PANICS = ("panic in stage.Execute", "panic in ElementManager.Bundles")

#: Seconds that anything may take on a slow machine before the test gives up; nothing is ever timed by it.
PATIENCE = 240.0


def readings(days: float, seed: int, names: Sequence[str] = NAMES, first: float = 0) -> pl.DataFrame:
    """Half-hourly readings, some cells missing and some read twice at different times, in no order."""
    source = random.Random(seed)
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


def held(frame: pl.DataFrame, days: range, most_us: int) -> dict[tuple[int, str], list[int]]:
    """The same where a value holds until the next one of its series, at most so long; the last bin has no value."""
    found = {(day * DAY, name): [0] * (len(EDGES) + 2) for day in days for name in NAMES}
    for name in NAMES:
        rows = sorted(frame.filter(pl.col("series") == name).select("time", "value").rows())
        for slot in range(days.start * DAY, days.stop * DAY):
            begin = ORIGIN + slot * SLOT
            last = max((row for row in rows if row[0] <= begin), default=None)
            known = last is not None and begin < last[0] + most_us
            state = sum(last[1] >= edge for edge in EDGES) if last is not None and known else len(EDGES) + 1
            found[slot // DAY * DAY, name][state] += 1
    return found


class RunnerLostError(Exception):
    """The runner shows a symptom that is known and not ours: the test may begin once more."""


@dataclass
class Running:
    """A live job in a process of its own."""

    process: subprocess.Popen[str]  # its process
    out: Path  # what it prints
    err: Path  # what it complains of
    watch: Callable[[], None]  # called while it is waited for
    killed: bool = False  # whether the test ended it
    in_vain: bool = False  # whether its end was waited for and did not come

    def wait(self) -> int:
        """Its exit code, when it ends by itself."""
        deadline = time.monotonic() + PATIENCE
        while (code := self.process.poll()) is None:
            self.watch()
            if time.monotonic() > deadline:
                self.in_vain = True
                pytest.fail(f"the job did not end within {PATIENCE:.0f} s: {self.said[-3:]}")
            time.sleep(0.02)
        return code

    def kill(self) -> None:
        """End it and all it started at once."""
        if self.process.poll() is None:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):  # what was not read of it
                self.process.stdin.close()

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        return not self.killed and self.process.poll() not in {None, 0}

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

    folder: Path  # where everything is
    options: list[str]  # beam's options that name the runner
    environment: dict[str, str]  # variables of the jobs
    keys: dict[str, list[str]] = field(default_factory=lambda: SERIES)  # keys that every window has, and their series
    retries: int = 0  # how often the test began once more
    started: list[Running] = field(default_factory=list)
    others: list[Bench] = field(default_factory=list)
    # how a job runs, where a test does not say it
    live: dict[str, Any] = field(default_factory=lambda: {"poll": "100ms"})
    # the true counts of whatever may come on record, as :meth:`counts` gives them
    expected: dict[tuple[int, str], list[int]] = field(default_factory=dict[tuple[int, str], list[int]])
    budget: float = 1.0  # the domain's
    hidden: bool = False  # whether jobs had a noise that cannot be taken off
    in_vain: bool = False  # whether something was waited for and did not come

    #: The Python of the jobs, and options of theirs.
    python = sys.executable
    words: ClassVar[tuple[str, ...]] = ()

    #: How the sink's files are written.
    format: ClassVar[FileFormat] = "parquet"

    @property
    def ledger(self) -> str:
        """The ledger's address."""
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def another(self, name: str) -> Bench:
        """An empty bench beside this one, which ends with it."""
        self.others.append(Bench(self.folder.with_name(name), self.options, self.environment, live=self.live))
        return self.others[-1]

    def symptom(self) -> str | None:
        """What the runner is known for, if a job shows it: Prism panics when the machine is busy.

        Such a job fails by it, or does not bring what is waited for; whatever else is wrong is no symptom.
        """
        told = [
            job.err.read_text(encoding="utf-8")
            for one in (self, *self.others)
            for job in one.started
            if job.failed or job.in_vain or one.in_vain
        ]
        return next((f"Prism: {panic}" for panic in PANICS if any(panic in text for text in told)), None)

    def watch(self) -> None:
        """Called while a test waits; it may raise :class:`RunnerLostError`."""

    def renew(self) -> None:
        """Begin in an empty place, because the runner showed a symptom; the old one must be right as far as it goes."""
        for one in (self, *self.others):
            for job in one.started:
                job.kill()
        for one in (self, *self.others):
            one.so_far()
        self.close()
        self.folder = self.folder.with_name(f"{self.folder.name}-again")
        self.started, self.others = [], []
        self.expected, self.budget, self.hidden, self.in_vain = {}, 1.0, False, False
        self.retries += 1

    def close(self) -> None:
        """End what was started."""
        for job in self.started:
            job.kill()
        for other in self.others:
            other.close()

    def stopped(self, job: Running) -> bool:
        """Whether nothing of a job runs any more."""
        return job.process.poll() is not None

    def settings(self, **changes: Any) -> None:
        """Write the settings and the roster; ``None`` takes a setting out."""
        (self.folder / "inbox").mkdir(parents=True, exist_ok=True)
        keys = GROUPS if self.keys is SERIES else self.keys
        groups = {name: group for group, names in keys.items() for name in names}
        roster = ["series,group", *(f"{name},{groups[name]}" for name in NAMES), ""]
        (self.folder / "roster.csv").write_text("\n".join(roster), encoding="utf-8")
        document: dict[str, Any] = {
            "source": {"jsonl": "inbox/*.jsonl"},
            "readings": READ,
            "slots": {"interval": "30min", "origin": "2013-01-01"},
            "states": {"edges": EDGES, "unit": "W"},
            "model": BELIEF,
            "windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
            "live": self.live,
            "privacy": {"epsilon": 1.0},
            "sink": {self.format: "releases"},
            "query": "load",
            "most_error": 1e6,  # what is tested here is not how useful the rows are
            "domain": "homes",
            "roster": "roster.csv",
            "shards": 3,
            "ledger": self.ledger,
        } | changes
        (self.folder / "settings.yaml").write_text(
            yaml.safe_dump({k: v for k, v in document.items() if v is not None}), encoding="utf-8"
        )
        self.budget = document["privacy"].get("budget", 1.0)

    def beam_options(self) -> list[str]:
        """Beam's options of the next job."""
        return self.options

    def start(
        self,
        *words: str | Path,
        noise: str = "stamped",
        stdin: IO[str] | int | None = None,
        supervised: bool = False,
    ) -> Running:
        """Start a job; a supervisor begins it again where it is to be."""
        number = len(self.started)
        self.hidden |= noise == "private"
        out, err = self.folder / f"out-{number}.txt", self.folder / f"err-{number}.txt"
        over = [HERE / "supervisor.py", self.python] if supervised else []
        command = [*over, HERE / "live_job.py", "settings.yaml", "--noise", noise, *self.words, *words, "--"]
        with out.open("wb") as first, err.open("wb") as second:
            process = subprocess.Popen(
                [self.python, *command, *self.beam_options()],
                cwd=self.folder,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=first,
                stderr=second,
                text=True,
                start_new_session=True,
            )
        self.started.append(self.made(process, out, err))
        return self.started[-1]

    def made(self, process: subprocess.Popen[str], out: Path, err: Path) -> Running:
        """A job that was started."""
        return Running(process, out, err, self.watch)

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

    def rows(self) -> list[Release]:
        """Every released row on record."""
        with Store(self.ledger, create=False) as store:
            try:
                return [row for batch in store.releases("homes", "load") for row in releases_from_batch(batch)]
            except StoreConflict:
                return []

    def on_record(self) -> dict[str, str]:
        """Every released row by its name, to be compared later."""
        with Store(self.ledger, create=False) as store:
            return on_record(store, "homes", "load")

    def counts(self) -> dict[tuple[int, str], list[int]]:
        """The true counts of what is on record, by first slot and key: a row each."""
        rows = self.rows()
        places = Counter((row.window_start, row.key) for row in rows)
        assert set(places.values()) <= {1}, "a window was published twice"
        return {((row.window_start - ORIGIN) // SLOT, row.key): [unstamped(n) for n in row.counts] for row in rows}

    def sunk(self) -> dict[Path, list[dict[str, Any]]]:
        """The files of the sink and their rows."""
        found: dict[Path, list[dict[str, Any]]] = {}
        for path in sorted((self.folder / "releases").glob(f"*.{self.format}")):
            if self.format == "parquet":
                found[path] = pq.read_table(path).to_pylist()
            else:
                found[path] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return found

    def windows(self) -> int:
        """How many windows have a row on record."""
        return len({row.window_start for row in self.rows()})

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """Wait until something is true; it is a failure if it never is, also after a job was begun anew."""
        deadline, retries = time.monotonic() + PATIENCE, self.retries
        while not (found := true()):
            self.watch()
            if self.retries > retries:
                deadline, retries = time.monotonic() + PATIENCE, self.retries
            if time.monotonic() > deadline:
                self.in_vain = True
                pytest.fail(f"not within {PATIENCE:.0f} s: {what}; {self.account()}")
            time.sleep(0.2)
        return found

    def account(self) -> str:
        """How things are, for the message of a failure."""
        return f"on record: {sorted(self.counts())}"

    def wait_for(self, windows: int) -> None:
        """Wait until so many windows have a row on record, all their keys."""

        def there() -> bool:
            if self.started[-1].process.poll() is not None:
                pytest.fail(f"the job ended: {self.started[-1].err.read_text(encoding='utf-8')}")
            found = Counter(row.window_start for row in self.rows())
            return sum(count == len(self.keys) for count in found.values()) >= windows

        self.until(there, f"{windows} windows on record")

    def wait_for_some(self, windows: int) -> None:
        """Wait until so many windows have any row on record."""
        self.until(lambda: self.windows() >= windows, f"a row of {windows} windows on record")

    def check(
        self,
        windows: Iterable[Span] | None = None,
        *,
        earlier: dict[str, str] | None = None,
    ) -> Examined:
        """Whatever is wrong with what is on record, in the ledger and in the sink fails the test.

        Args:
            windows: of the schedule, in slots; the first four days by default.
            earlier: what was on record at some time before.
        """
        found, expected = self.examined(every(DAY, DAY, 4 * DAY) if windows is None else windows, earlier)
        assert left(self.folder / "left"), "whatever left the job did not pass the tap"
        # the sink holds what is on record, byte for byte
        files = self.sunk()
        assert {rows[0]["release_id"]: path.read_bytes() for path, rows in files.items()} == expected
        assert len(files) == len(expected)
        return found

    def so_far(self) -> None:
        """Whatever is wrong with what a test that did not come to its end has left fails it; what is missing does not.

        No place twice, the true counts, nothing in the sink that is not on record, and the account of these rows.
        """
        if not self.rows():
            return
        found = self.counts()
        assert self.expected or self.hidden, "a test says at its beginning what may come on record"
        if not self.hidden:
            assert {place: self.expected.get(place) for place in found} == found, "on record, and not the truth"
        _, expected = self.examined((), None, ended=False)
        files = {rows[0]["release_id"]: path.read_bytes() for path, rows in self.sunk().items()}
        assert {name: expected.get(name) for name in files} == files, "in the sink, and not on record"

    def examined(
        self,
        windows: Iterable[Span],
        earlier: dict[str, str] | None,
        *,
        ended: bool = True,
    ) -> tuple[Examined, dict[str, bytes]]:
        """What was found, which is sound; and the file of each row on record."""
        expected: dict[str, bytes] = {}
        trial = self.folder / f"trial.{self.format}"
        with Store(self.ledger, create=False) as store:
            for batch in store.releases("homes", "load"):
                write_rows(trial, self.format, pa.Table.from_batches([batch]))
                expected[batch.column("release_id")[0].as_py()] = trial.read_bytes()
            found = examine(
                store,
                "homes",
                "load",
                belief=MixingBounds(BELIEF["pi_min"], BELIEF["gap"]),
                budget=self.budget,
                windows=windows,
                keys=self.keys,
                left=left(self.folder / "left"),
                earlier=earlier,
                retries=self.retries,
                ended=ended,
            )
        assert found.sound, found
        return found, expected
