"""Random actions against a live job, on Prism and in a Flink cluster: what comes of them equals plain counting.

Readings, settings and actions follow from one seed, which the test prints: ``QUILTSTREAM_SEED`` plays it again. At
which moment of the job an action falls is the machine's, so a failure may need several replays.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from quiltstream.store.errors import StoreConflict

from ..examined import Tally, every
from .flink import FlinkCluster
from .flink_bench import FlinkBench, FlinkRunning, PostgresBench
from .kafka_topics import as_it_comes
from .live_bench import DAY, DAY_US, GROUPS, HOUR, NAMES, ORIGIN, SERIES, SLOT, Bench, Running, lines, readings, truth
from .live_contract import begun_again
from .postgres import PostgresServer
from .prism import prism_arguments
from .test_live_restart import prisms_of
from .test_orphans import MARK, kill_alone, left_of

#: Days of the schedule, a window each.
DAYS = 8

#: Actions of a play, and how likely each is; those that take long are done so often at most.
STEPS = 10
WEIGHTS = {"send": 8, "twice": 3, "late": 4, "rows": 5, "kill": 4, "stop": 2, "kill runner": 3, "kill database": 2}
MOST = {"kill": 2, "stop": 1, "kill runner": 2, "kill database": 2}

#: A reading that would count if it were taken: in the highest bin, at the end of its slot.
LOUD = 9999.0

#: What a command says whose job Flink has lost a part of.
LOST = "its runner lost a part of it"


class Play:
    """A job to which things are done, and what must come of them.

    Args:
        bench: an empty place for it.
        server: has its ledger.
        seed: of everything.
    """

    def __init__(self, bench: Bench, server: PostgresServer, seed: int) -> None:
        self.bench, self.server, self.draw = bench, server, random.Random(seed)
        bench.keys = self.draw.choice([SERIES, GROUPS])
        self.lateness_h = self.draw.choice([0, 6])
        windows = {"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}"}
        bench.settings(
            windows=windows | ({"lateness": f"{self.lateness_h}h"} if self.lateness_h else {}),
            group_by="group" if bench.keys is GROUPS else None,
            live={"poll": "100ms"},
            shards=self.draw.randint(1, 5),
        )
        frame = readings(DAYS + 0.5, seed)
        bench.expected = truth(frame, range(DAYS), bench.keys)
        self.coming = as_it_comes(frame, max(1, self.lateness_h * HOUR), seed)
        self.sent: list[pl.DataFrame] = []
        self.files = 0
        self.published: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """Start a job, whose processes are known by a mark."""
        self.mark = self.bench.environment[MARK] = f"{self.bench.folder}-{len(self.bench.started)}-"
        self.job = self.bench.start(supervised=True)

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Wait until something is true of a job that runs."""

        def there() -> Any:
            assert self.job.process.poll() is None, f"before {what}: {self.complained(self.job)}"
            return true()

        self.bench.until(there, what)

    def complained(self, job: Running) -> str:
        """What a job that ended complained of; where Flink has lost a part of it, the test may begin once more."""
        said = job.err.read_text(encoding="utf-8")
        if LOST in said and isinstance(self.bench, FlinkBench):
            self.bench.lost(said)
        return said

    def put(self, frame: pl.DataFrame) -> None:
        """Send readings, in a file."""
        self.bench.put(f"{self.files:04}.jsonl", lines(frame))
        self.files += 1

    def whole(self) -> set[int]:
        """The days whose windows are on record with all keys."""
        found = Counter(start // DAY for start, _ in self.bench.counts())
        return {day for day, rows in found.items() if rows == len(self.bench.keys)}

    def running(self) -> None:
        """Wait until the job has begun, and remember what is on record."""
        self.until(lambda: "start" in {one["kind"] for one in self.job.said}, "the job has begun")
        if isinstance(bench := self.bench, FlinkBench):
            self.until(lambda: self.submitted() and bench.set_up(), "its steps run")
        self.remember()

    def remember(self) -> None:
        """What is on record must stay there."""
        with suppress(StoreConflict):  # a job that has not begun yet makes it
            self.published |= self.bench.on_record()

    def submitted(self) -> set[str]:
        """The ids of the command's jobs in the cluster."""
        assert isinstance(self.job, FlinkRunning)
        return {one["jid"] for one in self.job.submitted}

    # What is done

    def send(self) -> None:
        """Send the readings of the next day or so; the last window stays open until the end."""
        many = min(round(len(self.coming) * self.draw.uniform(0.05, 0.2)), len(self.coming) // 2)
        self.sent.append(self.coming[:many])
        self.coming = self.coming[many:]
        self.put(self.sent[-1])

    def twice(self) -> None:
        """Send once more a part of what was sent, in another order."""
        if self.sent:
            chunk = self.draw.choice(self.sent)
            self.put(chunk.sample(fraction=0.5, shuffle=True, seed=self.draw.randrange(1 << 30)))

    def late(self) -> None:
        """Send readings of a window that is on record."""
        if days := sorted(self.whole()):
            first = self.draw.choice(days) * DAY
            cells = [(self.draw.choice(NAMES), first + self.draw.randrange(DAY)) for _ in range(20)]
            rows = [(name, ORIGIN + (slot + 1) * SLOT - 1, LOUD) for name, slot in cells]
            self.put(pl.DataFrame(rows, schema=self.coming.schema, orient="row"))

    def rows(self) -> None:
        """Wait for the rows of every window that the readings have closed."""
        if self.sent:
            clock = max(int(str(one["time"].max())) for one in self.sent) - self.lateness_h * HOUR
            due = set(range(min(DAYS, (clock - ORIGIN) // DAY_US)))
            self.until(lambda: due <= self.whole(), f"windows {due} on record")

    def kill(self) -> None:
        """Kill a job with all that it started, or the command alone; a consumer may have taken what is in the sink."""
        self.remember()
        if self.draw.random() < 0.5:
            kill_alone(self.job)
            assert not left_of(self.mark)
        self.job.kill()
        if self.draw.random() < 0.5:
            for path in self.bench.sunk():
                path.unlink()
        self.begin()

    def stop(self) -> None:
        """Interrupt the command."""
        self.running()
        os.killpg(self.job.process.pid, signal.SIGINT)
        assert self.job.wait() == 130, self.complained(self.job)
        assert not left_of(self.mark)
        self.begin()

    def kill_runner(self) -> None:
        """Kill Prism; or Flink's JobManager, which forgets its jobs, or its TaskManager."""
        self.running()
        if not isinstance(self.bench, FlinkBench):
            before = prisms_of(self.job)
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            self.until(lambda: set(prisms_of(self.job)) - set(before), "another Prism runs")
            return
        cluster, jobs = self.bench.cluster, self.submitted()
        if self.draw.random() < 0.5:
            cluster.kill_taskmanager()
            cluster.start_taskmanager()
        else:
            cluster.kill_jobmanager()
            cluster.start_jobmanager()
            self.until(lambda: self.submitted() - jobs, "the job is in the cluster again")

    def kill_database(self) -> None:
        """Kill the ledger's server, for a while."""
        self.running()
        self.server.kill()
        time.sleep(self.draw.uniform(0.0, 2.0))
        self.server.start()

    def all(self, tally: Tally) -> None:
        """Do everything, and see what has come of it."""
        names, done = [*WEIGHTS], Counter[str]()
        for _ in range(STEPS):
            can = [name for name in names if done[name] < MOST.get(name, STEPS)]
            (name,) = self.draw.choices(can, [WEIGHTS[one] for one in can])
            sys.stdout.write(f"{name}\n")
            done[name] += 1
            time.sleep(self.draw.choice([0.0, 0.3, 1.0]))
            getattr(self, name.replace(" ", "_"))()
        self.put(self.coming)
        assert self.job.wait() == 0, self.complained(self.job)
        assert not left_of(self.mark)
        assert self.bench.counts() == self.bench.expected
        tally.take(self.bench.check(every(DAY, DAY, DAYS * DAY), earlier=self.published))


def played(bench: Bench, server: PostgresServer, tally: Tally) -> None:
    seed = int(os.environ.get("QUILTSTREAM_SEED") or random.randrange(10**9))
    sys.stdout.write(f"QUILTSTREAM_SEED={seed}\n")
    Play(bench, server, seed).all(tally)


@pytest.fixture
def bench(tmp_path: Path, prism: Path, postgres_url: str) -> Iterator[PostgresBench]:
    (tmp_path / "temporary").mkdir()
    environment = {"TMPDIR": str(tmp_path / "temporary")}
    made = PostgresBench(tmp_path / "job", prism_arguments(prism), environment, postgres_url)
    yield made
    made.close()


@pytest.mark.parametrize("night", range(4))
@begun_again
def test_rows_after_random_actions_on_prism_equal_plain_counting(
    bench: PostgresBench, postgres_server: PostgresServer, tally: Tally, night: int
) -> None:
    del night
    played(bench, postgres_server, tally)


class TestFlink:
    @pytest.fixture
    def bench(self, flink_cluster: FlinkCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
        made = FlinkBench(tmp_path / "job", flink_cluster, postgres_url)
        yield made
        made.close()

    @pytest.mark.parametrize("night", range(2))
    @begun_again
    def test_rows_after_random_actions_on_flink_equal_plain_counting(
        self, bench: FlinkBench, postgres_server: PostgresServer, tally: Tally, night: int
    ) -> None:
        del night
        played(bench, postgres_server, tally)
