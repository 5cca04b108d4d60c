"""Places for live jobs whose ledger is in PostgreSQL, on any runner and on a Flink cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from .flink import HERE, FlinkCluster
from .live_bench import DAY, SERIES, Bench, RunnerLostError, Running
from .postgres_schemas import new_schema
from .processes import alive
from .stamped import last_calls

#: Without a new row for so long, what is missing will not come by itself: Flink takes a job up again in seconds.
QUIET = 75.0

#: Seconds from one look for such a row to the next: each opens every ledger.
LOOK = 2.0

#: The lock that keeps a transaction of a job from going on.
LOCK = 7_021_977

#: States that a job of the cluster never leaves.
ENDED = frozenset({"CANCELED", "FAILED", "FINISHED"})

SYMPTOM = "Flink with Beam 2.62: what a source handed back was lost, and nothing reads it any more"


class PostgresBench(Bench):
    """A bench whose ledger is a schema of a server, new each time that it is renewed.

    Args:
        folder: where everything else is.
        options: Beam's options.
        environment: variables of the jobs.
        server: the address of the server's database.
        keys: keys of every window, and their series.
    """

    def __init__(
        self,
        folder: Path,
        options: list[str],
        environment: dict[str, str],
        server: str,
        keys: dict[str, list[str]] = SERIES,
    ) -> None:
        super().__init__(folder, options, environment, keys)
        self.server = server
        self._open()

    def _open(self) -> None:
        self._stack = ExitStack()
        self.url = self._stack.enter_context(new_schema(self.server))

    @property
    def ledger(self) -> str:
        return self.url

    def renew(self) -> None:
        super().renew()
        self._open()

    def close(self) -> None:
        super().close()
        self._stack.close()


class FlinkRunning(Running):
    """A job, or several one after the other, that a process submitted, each under a name that begins with its own."""

    def __init__(self, running: Running, cluster: FlinkCluster, name: str) -> None:
        super().__init__(running.process, running.out, running.err, running.watch)
        self._cluster = cluster
        self.name = name

    @property
    def submitted(self) -> list[dict[str, Any]]:
        """What the cluster tells of its jobs, in the order in which they began."""
        return self._cluster.jobs_named(self.name)

    def state_of(self, job: str) -> str:
        """The state of one of them now: the cluster's page of a single job may be some seconds old."""
        (found,) = [one["state"] for one in self.submitted if one["jid"] == job]
        return found

    def kill(self) -> None:
        """End the process, which the cluster does not notice, and then its jobs on the cluster."""
        super().kill()
        for job in self.submitted:
            if job["state"] not in ENDED:
                self._cluster.cancel(job["jid"])


class FlinkBench(PostgresBench):
    """Jobs of a cluster, whose commands know its REST address; a ledger in a file is refused with Flink.

    Args:
        folder: where everything is.
        cluster: runs the jobs.
        server: address of the PostgreSQL server's database.
        keys: keys of every window, and their series.
    """

    #: After its last row a job is left alone for so long, because its sink may still write.
    words = ("--end", "4")

    #: Plain text: the bytes of a Parquet file depend on the version of Arrow, and the workers have another one.
    format = "jsonl"

    #: The name that all jobs are given, if they are given the same one.
    common = ""

    def __init__(self, folder: Path, cluster: FlinkCluster, server: str, keys: dict[str, list[str]] = SERIES) -> None:
        super().__init__(folder, [], cluster.environment, server, keys)
        self.python = str(cluster.python)
        self.cluster = cluster
        self.from_ledger = False
        self.job = ""
        self._lost = False
        self._seen, self._since = -1, time.monotonic()
        self._looked = 0.0

    def another(self, name: str) -> Bench:
        self.others.append(FlinkBench(self.folder.with_name(name), self.cluster, self.server))
        self.others[-1].live = self.live
        return self.others[-1]

    def renew(self) -> None:
        super().renew()
        self._lost = False

    def close(self) -> None:
        if self.job and self.cluster.state(self.job) not in ENDED:
            self.cluster.cancel(self.job)
        super().close()

    def stopped(self, job: Running) -> bool:
        assert isinstance(job, FlinkRunning)
        return super().stopped(job) and all(one["state"] in ENDED for one in job.submitted)

    def beam_options(self) -> list[str]:
        self._name = self.common or f"{self.folder.name}-{len(self.started)}-{time.time_ns()}"
        self._since = time.monotonic()
        return self.cluster.arguments(self._name)

    def made(self, process: subprocess.Popen[str], out: Path, err: Path) -> Running:
        return FlinkRunning(super().made(process, out, err), self.cluster, self._name)

    # What the runner loses

    def symptom(self) -> str | None:
        return SYMPTOM if self._lost or any(one.symptom() for one in self.others) else None

    def jobs(self) -> list[str]:
        """The ids of the last jobs of each command, and of what was only handed over."""
        last = [one.submitted[-1:] for one in self.started if isinstance(one, FlinkRunning)]
        return [*([self.job] if self.job else []), *(one["jid"] for jobs in last for one in jobs)]

    def set_up(self) -> bool:
        """Whether no job is being set up: taken up again, it is silent for as long as the machine takes for that."""
        return all(self.cluster.state(one) in ENDED or self.cluster.set_up(one) for one in self.jobs())

    def forgotten(self) -> bool:
        """Whether the runner has not called a part of the reader for long which is neither over nor in a call."""
        last = last_calls(self.folder / "calls")
        before = time.monotonic() - QUIET
        left = [one for one in last.values() if one.word != "over" and not (one.word == "begun" and alive(one.pid))]
        return not last or any(one.at < before for one in left)

    def watch(self) -> None:
        """Without a new row for long, do something, or say that the runner has lost something.

        It has if it does not call the reader any more; a job that is called and publishes nothing stalls by itself, and
        fails the test when the patience ends.
        """
        now = time.monotonic()
        if now - max(self._since, self._looked) < LOOK:
            return
        self._looked = now
        rows = sum(len(one.rows()) for one in (self, *self.others))
        if rows != self._seen or not self.set_up():
            self._seen, self._since = rows, now
        if now - self._since <= QUIET or not self.forgotten():
            return
        account = self.account()
        if "quiltstream" in account:
            return  # a failure of our own
        self.lost(account)

    def lost(self, account: str) -> None:
        """The runner has lost something: once, a job that was only handed over is begun anew from the ledger."""
        if not self.from_ledger or self.retries:
            self._lost = True
            raise RunnerLostError(f"{SYMPTOM}: {account}")
        sys.stdout.write(f"{SYMPTOM}: begun anew from the ledger; {account}\n")
        self.retries += 1
        self.cluster.cancel(self.job)
        self.submit()

    def account(self) -> str:
        said = [
            f"{self.cluster.state(one)}, {self.cluster.checkpoints(one)['counts']}, {self.cluster.failures(one)}"
            for one in self.jobs()
        ]
        return f"{super().account()}, jobs: {said}, calls of the reader: {last_calls(self.folder / 'calls')}"

    # A job that is only handed over, for the tests of faults

    def submit(self) -> str:
        """Start a job on the cluster, which has nothing but the ledger."""
        script, settings = str(HERE / "live_job.py"), str(self.folder / "settings.yaml")
        words = ("--noise", "stamped", "--end", "600", "--")
        self.job = self.cluster.submit(script, settings, *words)
        # a submission has taken a minute on a loaded machine, and is no silence of the job
        self._since = time.monotonic()
        return self.job

    def wait_for_days(self, days: int) -> None:
        """Wait until the first days are on record."""

        def there() -> bool:
            found = [start // DAY for start, _ in self.counts()]
            return all(found.count(day) == len(self.keys) for day in range(days))

        self.until(there, f"the first {days} days on record")

    def wait_for_checkpoint(self) -> None:
        """Wait for a checkpoint that was begun after now."""

        def completed() -> int:
            return int(self.cluster.checkpoints(self.job)["counts"]["completed"])

        # one may be under way
        before = completed() + 1
        self.until(lambda: completed() > before, "a checkpoint")

    def sink_whole(self) -> bool:
        """Whether the sink has what is on record."""
        return {row["release_id"] for rows in self.sunk().values() for row in rows} == self.on_record().keys()


@contextmanager
def held_release(url: str, day: int) -> Generator[Callable[[], bool]]:
    """Hold the transaction that puts the second block of a day on record; what is given tells whether one is held."""
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "create or replace function hold() returns trigger language plpgsql as $$ begin "
                "if exists (select from quiltstream_log where domain = new.domain and key like {}) "
                "then perform pg_advisory_xact_lock_shared({}); end if; return new; end $$"
            ).format(sql.Literal(f"block/{day * DAY}/%"), sql.Literal(LOCK))
        )
        connection.execute(
            sql.SQL(
                "create or replace trigger hold before insert on quiltstream_log for each row "
                "when (new.key like {}) execute function hold()"
            ).format(sql.Literal(f"block/{day * DAY}/%"))
        )
        connection.execute("select pg_advisory_lock(%s)", (LOCK,))

        def held() -> bool:
            waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
            return connection.execute(waiting).fetchone() is not None

        yield held
        # where the server was killed meanwhile, its locks have gone with it
        with suppress(psycopg.OperationalError):
            connection.execute("select pg_advisory_unlock(%s)", (LOCK,))
