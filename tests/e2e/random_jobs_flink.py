"""Random actions against a live job in a Flink cluster, whose state outlives the processes that are killed.

The job is a command's that has the cluster's REST address, so it looks after its job: it follows it over the death of
its machines, submits it again when the JobManager has forgotten it, and ends it there. For a savepoint the cluster is
asked to stop the job with one, which ends the command, and a later command takes it up with ``--savepoint_path``.

What Flink does that Prism does not is in the bookkeeping of late readings alone. Everything else is compared as exactly
as on Prism.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .flink import FlinkCluster
from .flink_bench import ENDED, SYMPTOM
from .live_bench import Bench, RunnerLostError
from .processes import ServerError
from .random_jobs import Run, WrongError
from .random_plans import FLINK_BEAM, Configuration
from .test_flink_cancel import RestBench, RestRunning
from .test_orphans import kill_alone

#: How often a run begins a job anew whose runner shows the symptom that is known by name; it prints each.
LOST = 3

#: How often a savepoint is asked for: Flink refuses one while it restores a task.
ASKED = 3

#: What a command says whose job was stopped.
STOPPED = "the job was stopped, or its runner lost a part of it"


class FlinkJobs(RestBench):
    """Jobs of a cluster by random options.

    Args:
        folder: where everything is.
        cluster: runs the jobs.
        server: address of the PostgreSQL server's database.
        given: how the jobs are set up.

    Attributes:
        savepoint: what the next job takes up.
    """

    def __init__(self, folder: Path, cluster: FlinkCluster, server: str, given: Configuration) -> None:
        super().__init__(folder, cluster, server)
        # the cluster's own must not have the mark of a command
        self.environment = dict(cluster.environment)
        self.given = given
        self.savepoint: str | None = None

    def beam_options(self) -> list[str]:
        """The cluster's options, with those of the run in their places."""
        own = {
            "--checkpointing_interval": self.given.checkpoint_ms,
            "--max_bundle_size": self.given.bundle,
            "--max_bundle_time_mills": self.given.bundle_ms,
        }
        words = super().beam_options()
        kept = [word for word in words if word.partition("=")[0] not in own]
        assert len(kept) == len(words) - len(own)
        taken_up = [] if self.savepoint is None else [f"--savepoint_path={self.savepoint}"]
        return [*kept, *(f"{name}={value}" for name, value in own.items()), *taken_up]


class FlinkRun(Run):
    """One run of a plan on a Flink cluster, which is left as it was found."""

    def place(self, folder: Path) -> Bench:
        """An empty place for the jobs."""
        self._saved = ""
        self._fresh = False
        self._lives: dict[str, int] = {}
        self._rewound_at = 0
        return FlinkJobs(folder / "job", self.cluster, self.servers.postgres.url, self.plan.configuration)

    @property
    def place_of_jobs(self) -> FlinkJobs:
        """The place, as what it is."""
        assert isinstance(self.bench, FlinkJobs)
        return self.bench

    @property
    def cluster(self) -> FlinkCluster:
        """Runs the jobs."""
        assert self.servers.flink is not None
        return self.servers.flink

    @property
    def pythons(self) -> dict[str, str]:
        """A job in a cluster has the cluster's version of Beam."""
        return {FLINK_BEAM: str(self.cluster.python)}

    def close(self) -> None:
        """End what runs, also in the cluster."""
        super().close()
        for job, state in self.cluster.jobs().items():
            if state not in ENDED:
                self.cluster.cancel(job)

    # Jobs

    def begin(self) -> None:
        """Start a job that has nothing but the ledger."""
        self._fresh, self.place_of_jobs.savepoint = False, None
        super().begin()
        self._rewound_at = 0

    @property
    def submitted(self) -> list[dict[str, Any]]:
        """The jobs of the command that runs, as the cluster tells of them."""
        assert isinstance(self.job, RestRunning)
        return self.job.submitted

    def rewinds(self) -> int:
        """How often the job that runs went back to an earlier state: it failed and was restored, or begun again."""
        assert isinstance(self.job, RestRunning)
        return max(0, self._note_lives(self.job) - 1)

    def _note_lives(self, job: RestRunning) -> int:
        """Note how often the jobs of a command were set up, as the cluster tells it, which forgets them."""
        found = {one["jid"]: 1 + len(self.cluster.failures(one["jid"])) for one in job.submitted}
        self._lives |= found
        return sum(found.values())

    def rewound(self) -> None:
        """Note that the job went back, or may have.

        A restored reader has the clock of its checkpoint, which may be behind windows that are on record by now. A
        reading of such a window is in time for it: it is counted once more, in vain, and never told as late. So nothing
        is owed of readings that were late before.
        """
        self._owe_nothing()
        self._rewound_at = self.rewinds()

    def end(self, how: str) -> None:
        """End the job that runs, and see that nothing of it goes on, here or in the cluster."""
        job = self.job
        self.rewinds()
        super().end(how)
        assert isinstance(job, RestRunning)
        if how == "asked":
            self._see_no_job(job)
        else:
            job.kill()

    def _see_no_job(self, job: RestRunning) -> None:
        if left := [one["state"] for one in job.submitted if one["state"] not in ENDED]:
            job.kill()
            raise WrongError(f"jobs that a command left in the cluster: {left}")

    def ended(self, how: str) -> Exception:
        """What it means that the job ended by itself: Flink may have lost its source, which a user sees by this."""
        said = self.job.err.read_text(encoding="utf-8")
        return RunnerLostError(f"{SYMPTOM}: {said}") if STOPPED in said else super().ended(how)

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Wait until something is true, while the job runs, or another one in its place where the runner lost it."""
        while True:
            try:
                return super().until(true, what)
            except RunnerLostError as error:
                self._begin_anew(error)

    def _begin_anew(self, error: RunnerLostError) -> None:
        """Begin a job from the ledger, as a user does, because Flink has lost its source."""
        if self.bench.retries == LOST:
            raise WrongError(f"the runner lost a job {LOST + 1} times: {error}")
        sys.stdout.write(f"begun anew: {error}\n")
        self.bench.retries += 1
        self.job.kill()
        self.begin()

    def code(self) -> int:
        """The exit code of the job, when it comes to its end."""
        while True:
            try:
                if (code := self.job.wait()) != 1:
                    break
                if not isinstance(error := self.ended("the job ended"), RunnerLostError):
                    break
            except RunnerLostError as lost:
                error = lost
            self._begin_anew(error)
        assert isinstance(self.job, RestRunning)
        self.rewinds()
        self._see_no_job(self.job)
        return code

    def _await_set_up(self) -> str:
        """Wait until the job's steps run, and give its id.

        The page of a single job may be some seconds old; the list of all is of now.
        """
        self._await_start()
        found: list[str] = []

        def running() -> bool:
            found[:] = [one["jid"] for one in self.submitted if one["state"] == "RUNNING" and _all_run(one["tasks"])]
            return bool(found)

        self.until(running, "the job's steps run")
        return found[0]

    # What is done

    def _late(self, source: random.Random) -> None:
        if self.rewinds() != self._rewound_at:
            self.rewound()
        super()._late(source)

    def told_late(self, wanted: int) -> bool:
        """Whether so many late readings were told, or are not owed any more."""
        return super().told_late(wanted) or self.rewinds() != self._rewound_at

    def _kill_worker(self, source: random.Random) -> None:
        """Kill the Python processes of the job's steps."""
        del source
        self._await_set_up()
        self._remember()
        before = self.rewinds()
        self.until(self.cluster.kill_workers, "there are workers to kill")
        # Beam's runner waits for ever for a worker that is killed before it has called back: the next ones are left
        self.until(lambda: self.rewinds() != before, "Flink sees that its workers are gone")
        self.rewound()

    def _kill_taskmanager(self, source: random.Random) -> None:
        self._await_set_up()
        self._remember()
        self.cluster.kill_taskmanager()
        try:
            time.sleep(source.uniform(0.0, 2.0))
        finally:
            self.cluster.start_taskmanager()
        self.rewound()

    def _kill_jobmanager(self, source: random.Random) -> None:
        """Kill the JobManager, which forgets its jobs: the command submits the job again."""
        self._await_set_up()
        self._remember()
        before = {one["jid"] for one in self.submitted}
        self.cluster.kill_jobmanager()
        try:
            time.sleep(source.uniform(0.0, 2.0))
        finally:
            self.cluster.start_jobmanager()
        self.until(lambda: {one["jid"] for one in self.submitted} - before, "the job is in the cluster again")
        self.rewound()

    def _kill_command(self, source: random.Random) -> None:
        """Kill the command, whose job goes on, and begin another, before the job is cancelled or after it."""
        self._await_set_up()
        self._remember()
        self.rewinds()
        job, self._job = self.job, None
        assert isinstance(job, RestRunning)
        kill_alone(job)
        self._see_no_process()
        beside = source.random() < 0.5
        if not beside:
            job.kill()
        self.begin()
        if beside:
            self._await_start()
            job.kill()
            self._note_lives(job)
            # what it has put on record until now may be ahead of the new one
            self.rewound()

    def _savepoint(self, source: random.Random) -> None:
        """Stop the job with a savepoint, which ends its command."""
        del source
        for left in reversed(range(ASKED)):
            job = self._await_set_up()
            self._remember()
            self._fresh = self.rewinds() == self._rewound_at
            try:
                self._saved = self.cluster.stop_with_savepoint(job)
                break
            except ServerError:
                if not left:
                    raise
        stopped, self._job = self.job, None
        code, said = stopped.wait(), stopped.err.read_text(encoding="utf-8")
        if code != 1 or STOPPED not in said:
            raise WrongError(f"a command whose job was stopped with a savepoint ended with {code}: {said}")
        self._see_no_process()

    def _take_up(self, source: random.Random) -> None:
        del source
        # A job that goes on where the last one stopped owes what that one owed: what that one had published is late for
        # the clock that is taken along. Of several partitions not all may have been read to their end by then, and of
        # those it tells what it reads of windows on record as on record.
        goes_on = self._fresh and self.plan.configuration.source == "files"
        kept = self._known, self.sent.owed
        self.place_of_jobs.savepoint = self._saved
        Run.begin(self)
        self._fresh, self._rewound_at = False, 0
        job = self._await_set_up()
        restored = self.cluster.checkpoints(job)
        latest = restored["latest"]["restored"] or {}
        # a job that was restored once more since has a checkpoint of its own there
        if not restored["counts"]["restored"] or (latest["is_savepoint"] and latest["external_path"] != self._saved):
            raise WrongError(f"a job did not take its savepoint {self._saved} up: {latest}")
        if goes_on and not self.rewinds():
            self._known, self.sent.owed = kept

    # What must have come of it

    def complaints_of_numbers(self, told: list[tuple[str, str, int]]) -> Iterator[str]:
        """How many lines were told, and of which reasons; this runner has no counters.

        Late readings are a range. A restored job tells what it reads once more again, so each of them may be told as
        often as there was a job or a restore; and one that came before a job went back may be in time for it, so that
        only those are owed that the last state has seen. A run in which nothing was restored has the range that it has
        on Prism.
        """
        reasons = Counter(reason for reason, *_ in told)
        if reasons["not-in-roster"] < self.sent.strangers:
            yield f"{reasons['not-in-roster']} lines were told as of strangers, of at least {self.sent.strangers}"
        owed = self.sent.owed if self.rewinds() == self._rewound_at else 0
        most = sum(map(len, [*self.sent.late, *self.sent.again])) * max(1, sum(self._lives.values()))
        if not owed <= reasons["late"] <= most:
            yield f"{reasons['late']} readings were told as late, of {owed} at least and {most} at most"


def _all_run(tasks: dict[str, int]) -> bool:
    """Whether all tasks of a job run, or are done."""
    return 0 < tasks["total"] == tasks["running"] + tasks["finished"]
