"""Places for live jobs on Flink, on a cluster or within each job, with their ledger in PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql

from .flink import HERE, FlinkCluster, FlinkPrograms, embedded_arguments, python_environment
from .live_bench import DAY, SERIES, Bench, RunnerLostError, Running
from .postgres import PORT
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


class FlinkRunning(Running):
    """A job that a process submitted and waits for."""

    def __init__(self, running: Running, cluster: FlinkCluster, name: str) -> None:
        super().__init__(running.process, running.out, running.err, running.watch)
        self._cluster = cluster
        self.name = name

    @property
    def state(self) -> str:
        """Its state on the cluster; empty while it has none."""
        job = self._cluster.job_named(self.name)
        return "" if job is None else self._cluster.state(job)

    def kill(self) -> None:
        """End the process, which the cluster does not notice, and then its job on the cluster."""
        super().kill()
        job = self._cluster.job_named(self.name)
        if job is not None and self._cluster.state(job) not in ENDED:
            self._cluster.cancel(job)


class FlinkPlace(Bench, ABC):
    """A settings file, an inbox and a sink in a folder, a ledger on a server, and jobs on a Flink over them.

    Args:
        folder: where everything is.
        python: the Python with the Beam of that Flink.
        environment: variables of the jobs.
        server: address of the PostgreSQL server's database; a ledger in a file is refused with Flink.
        keys: keys of every window, and their series.
    """

    #: After its last row a job is left alone for so long, because its sink may still write.
    words = ("--end", "4")

    #: Plain text: the bytes of a Parquet file depend on the version of Arrow, and the workers have another one.
    format = "jsonl"

    def __init__(
        self, folder: Path, python: Path, environment: dict[str, str], server: str, keys: dict[str, list[str]]
    ) -> None:
        super().__init__(folder, [], environment, keys)
        self.python = str(python)
        self.server = server
        self._lost = False
        self._seen, self._since = -1, time.monotonic()
        self._looked = 0.0
        self._open()

    def _open(self) -> None:
        self._stack = ExitStack()
        self.url = self._stack.enter_context(new_schema(self.server))

    @property
    def ledger(self) -> str:
        return self.url

    @abstractmethod
    def beside(self, folder: Path) -> Bench:
        """An empty bench of the same kind in another folder."""

    def another(self, name: str) -> Bench:
        self.others.append(self.beside(self.folder.with_name(name)))
        self.others[-1].live = self.live
        return self.others[-1]

    def renew(self) -> None:
        super().renew()
        self._lost = False
        self._open()

    def close(self) -> None:
        super().close()
        self._stack.close()

    def spoil_ledger(self) -> int:
        self.settings(ledger=self.url.replace(f"port={PORT}", f"port={PORT + 1}"))
        return 75

    def symptom(self) -> str | None:
        return SYMPTOM if self._lost or any(one.symptom() for one in self.others) else None

    @abstractmethod
    def set_up(self) -> bool:
        """Whether no job is being set up: taken up again, it is silent for as long as the machine takes for that."""

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
        """The runner has lost something."""
        self._lost = True
        raise RunnerLostError(f"{SYMPTOM}: {account}")


class FlinkBench(FlinkPlace):
    """Such a place, and the jobs of a cluster.

    Args:
        folder: where everything is.
        cluster: runs the jobs.
        server: address of the PostgreSQL server's database.
        keys: keys of every window, and their series.
    """

    def __init__(self, folder: Path, cluster: FlinkCluster, server: str, keys: dict[str, list[str]] = SERIES) -> None:
        super().__init__(folder, cluster.python, cluster.environment, server, keys)
        self.cluster = cluster
        self.from_ledger = False
        self.job = ""

    def beside(self, folder: Path) -> Bench:
        return FlinkBench(folder, self.cluster, self.server)

    def close(self) -> None:
        if self.job and self.cluster.state(self.job) not in ENDED:
            self.cluster.cancel(self.job)
        super().close()

    def stopped(self, job: Running) -> bool:
        """Beam's job server says that it cancels a job and lets it run on: whoever looks after the cluster ends it."""
        if not super().stopped(job):
            return False
        assert isinstance(job, FlinkRunning)
        assert job.state == "RUNNING"
        assert "job may run on in its cluster" in job.out.read_text(encoding="utf-8")
        job.kill()
        return job.state in ENDED

    def beam_options(self) -> list[str]:
        self._name = f"{self.folder.name}-{len(self.started)}-{time.time_ns()}"
        self._since = time.monotonic()
        return self.cluster.arguments(self._name)

    def made(self, process: subprocess.Popen[str], out: Path, err: Path) -> Running:
        return FlinkRunning(super().made(process, out, err), self.cluster, self._name)

    # A job that is only handed over, for the tests of faults

    def submit(self, savepoint: str | None = None) -> str:
        """Start a job on the cluster; without a savepoint it has nothing but the ledger."""
        script, settings = str(HERE / "live_job.py"), str(self.folder / "settings.yaml")
        words = ("--noise", "stamped", "--end", "600", "--")
        self.job = self.cluster.submit(script, settings, *words, savepoint=savepoint)
        # a submission has taken a minute on a loaded machine, and is no silence of the job
        self._since = time.monotonic()
        return self.job

    def account(self) -> str:
        jobs = [one for one in (self.job, *map(self._id, self.started)) if one]
        said = [
            f"{self.cluster.state(one)}, {self.cluster.checkpoints(one)['counts']}, {self.cluster.failures(one)}"
            for one in jobs
        ]
        return f"{super().account()}, jobs: {said}, calls of the reader: {last_calls(self.folder / 'calls')}"

    def _id(self, job: Running) -> str | None:
        return self.cluster.job_named(job.name) if isinstance(job, FlinkRunning) else None

    def set_up(self) -> bool:
        jobs = [one for one in (self.job, *map(self._id, self.started)) if one]
        return all(self.cluster.state(one) in ENDED or self.cluster.set_up(one) for one in jobs)

    def lost(self, account: str) -> None:
        """Once, a job that was only handed over is begun anew from the ledger."""
        if not self.from_ledger or self.retries:
            super().lost(account)
        sys.stdout.write(f"{SYMPTOM}: begun anew from the ledger; {account}\n")
        self.retries += 1
        self.cluster.cancel(self.job)
        self.submit()

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


class EmbeddedBench(FlinkPlace):
    """Such a place, and jobs that are one process each, which starts a Flink and ends it.

    There is no cluster to ask: how a job does is seen by what is on record, and by the calls of its reader.

    Args:
        folder: where everything is.
        programs: what Flink is made of.
        server: address of the PostgreSQL server's database.
        keys: keys of every window, and their series.
    """

    def __init__(self, folder: Path, programs: FlinkPrograms, server: str, keys: dict[str, list[str]] = SERIES) -> None:
        super().__init__(folder, programs.python, python_environment(programs.python, HERE), server, keys)
        self._programs = programs

    def beside(self, folder: Path) -> Bench:
        return EmbeddedBench(folder, self._programs, self.server)

    def beam_options(self) -> list[str]:
        self._since = time.monotonic()
        # of its own: a job that begins anew has nothing but the ledger
        flink = self.folder / f"flink-{len(self.started)}"
        flink.mkdir()
        return embedded_arguments(self._programs, flink)

    def set_up(self) -> bool:
        # a job that has ended lost nothing: the test says of it what is wrong
        return all(job.process.poll() is None for one in (self, *self.others) for job in one.started[-1:])

    def account(self) -> str:
        said = [job.err.read_text(encoding="utf-8")[-2000:] for job in self.started]
        return f"{super().account()}, calls of the reader: {last_calls(self.folder / 'calls')}, said: {said}"


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
