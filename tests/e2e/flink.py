"""A throw-away Flink cluster for the end-to-end tests, and Beam's way to it.

One JobManager, one TaskManager, Beam's job server and the shipped pool of Python workers: separate processes on free
ports of the loopback address, with their files in one temporary folder. Beam's Java parts and the Python package are of
one version, so pipelines are submitted and run by an environment with that version, which is not the one the tests run
in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from .installed import ROOT, NotInstalledError, installed
from .processes import Processes, ServerError, accepts, alive, descendants, free_ports

HERE = Path(__file__).parent
POOL = ROOT / "deploy" / "flink" / "worker_pool.py"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
START_SECONDS = 120
SUBMIT_SECONDS = 120
CANCEL_SECONDS = 60
SLOTS = 4

# Memory is given in full: Flink's own start scripts, which work it out, are not used.
CONFIGURATION = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.bind-host: 127.0.0.1
jobmanager.rpc.port: {rpc}
blob.server.port: {blob}
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.bind-port: {rest}
rest.port: {rest}
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: {slots}
taskmanager.cpu.cores: 2
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 896m
taskmanager.memory.task.off-heap.size: 0
taskmanager.memory.network.min: 128m
taskmanager.memory.network.max: 128m
taskmanager.memory.managed.size: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 128m
taskmanager.memory.jvm-overhead.max: 128m
io.tmp.dirs: {folder}/tmp
state.checkpoints.dir: file://{folder}/checkpoints
heartbeat.interval: 1000
heartbeat.timeout: 8000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 100
restart-strategy.fixed-delay.delay: 1s
classloader.resolve-order: parent-first
"""
LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = Out
appender.out.name = Out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""
# What Flink 1.19 and Beam reach into on Java 17.
EXPORTS = ("java.base/sun.net.util", "java.rmi/sun.rmi.registry", "java.security.jgss/sun.security.krb5")
OPENS = (
    *("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util"),
    *("util.concurrent", "util.concurrent.atomic", "util.concurrent.locks"),
)
JAVA = [
    *(f"--add-exports={package}=ALL-UNNAMED" for package in EXPORTS),
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENS),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
# Else Beam has pip list all that is installed, for its workers' logs: half a second, twice for some jobs.
NO_INVENTORY = "--experiments=disable_logging_submission_environment"
# Starting takes more than what the tests' few rows would gain from better code and a collector with threads.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class FlinkPrograms:
    """What a cluster is made of."""

    jars: Path
    job_server: Path
    python: Path
    java: Path


def find_flink() -> FlinkPrograms:
    """The programs that ``.ci/servers.sh flink`` built, and a Python with the Beam that goes with them.

    The Python is the one QUILTSTREAM_FLINK_PYTHON names, or that of the environment which ``.ci/run lower`` makes.

    Raises:
        NotInstalledError: Something of it is not there, or Beam is of another version.
    """
    if (java := shutil.which("java")) is None:
        raise NotInstalledError("Flink needs Java 17, and there is no `java` on the path")
    flink, job_server = installed("flink"), installed("job-server")
    if not (flink.folder.is_dir() and job_server.folder.is_dir()):
        raise NotInstalledError("Flink is not built (run `.ci/servers.sh flink`)")
    named = os.environ.get("QUILTSTREAM_FLINK_PYTHON")
    # Not resolved: an environment's Python is a link, and is of the environment only by that name.
    python = Path(named or ROOT / ".venv-beam-2.62" / "bin" / "python").absolute()
    how = "run `.ci/run lower`, or set QUILTSTREAM_FLINK_PYTHON"
    if not os.access(python, os.X_OK):
        raise NotInstalledError(f"there is no Python with Beam {job_server.version} at {python} ({how})")
    ask = "from importlib.metadata import version; print(version('apache-beam'))"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    if answer.stdout.strip() != job_server.version:
        beam = answer.stdout.strip() or "none"
        raise NotInstalledError(f"the Beam of {python} is {beam}, the job server's is {job_server.version} ({how})")
    return FlinkPrograms(flink.folder, job_server.file("*.jar"), python, Path(java))


def python_environment(python: Path, *folders: Path) -> dict[str, str]:
    """The variables for an environment's Python: its programs come first, and the folders can be imported from."""
    kept = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    return kept | {"PATH": path, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONUNBUFFERED": "1"}


def state_arguments(folder: Path) -> list[str]:
    """Beam's options for a streaming job on Flink that does not lose anything.

    Bundles are of one element because Beam 2.62 now and then drops a source's rest with longer ones, and ends DONE.
    They are finished before a checkpoint, which else keeps what one gives out while the watermark goes on past it. The
    state goes to files because an embedded Flink keeps at most 5 MB of it in memory, and rewinds for ever beyond.
    """
    return [
        *("--streaming", "--pickle_library=cloudpickle", "--parallelism=1"),
        *("--checkpointing_interval=2000", "--finish_bundle_before_checkpointing"),
        *("--max_bundle_size=1", "--max_bundle_time_mills=100"),
        *("--state_backend=filesystem", f"--state_backend_storage_path=file://{folder}/checkpoints"),
    ]


def embedded_arguments(programs: FlinkPrograms, folder: Path) -> list[str]:
    """Beam's options that run a pipeline on a Flink within the job server, which Beam starts and ends."""
    configuration = folder / "conf"
    write_configuration(configuration, folder)
    return [
        *("--runner=FlinkRunner", "--flink_version=1.19", "--flink_master=[local]", "--environment_type=LOOPBACK"),
        *(f"--flink_job_server_jar={programs.job_server}", f"--artifacts_dir={folder}/artifacts"),
        *(f"--flink_conf_dir={configuration}", f"--job_server_java_launcher={programs.java}"),
        *(f"--job_server_jvm_properties={option}" for option in ("-Xmx1g", *QUICK, *JAVA)),
        NO_INVENTORY,
        *state_arguments(folder),
    ]


def write_configuration(
    configuration: Path, folder: Path, rpc: int = 0, blob: int = 0, rest: int = 0, slots: int = SLOTS
) -> None:
    """Write the folder that every Flink process is pointed to."""
    configuration.mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    text = CONFIGURATION.format(rpc=rpc, blob=blob, rest=rest, slots=slots, folder=folder)
    (configuration / "flink-conf.yaml").write_text(text, encoding="utf-8")
    (configuration / "log4j.properties").write_text(LOGGING, encoding="utf-8")


def unsent(job_server: Path, folder: Path) -> Path:
    """The job server's jar, in a folder, under a name that keeps the job server from sending it with every job.

    Beam sends all that the job server was started from but what Gradle started it with, and does not ask
    ``--files_to_stage``. That would be 200 MB of what the cluster has already, written and read four times over.
    """
    link = folder / "gradle" / "wrapper" / job_server.name
    link.parent.mkdir(parents=True)
    try:
        link.hardlink_to(job_server)  # Beam looks behind a symbolic one
    except OSError:  # the folder is on another file system
        shutil.copyfile(job_server, link)
    return link


def workers_of(pool: int) -> list[int]:
    """The workers that a pool has started and that run."""
    return [pid for pid in descendants(pool) if alive(pid)]


class FlinkCluster:
    """A running cluster.

    Args:
        programs: what it is made of.
        python_folders: can be imported from by what is submitted, and by the workers.
        slots: of each TaskManager.
        others: TaskManagers beside the one that can be killed and started.
    """

    #: Whether jobs bring Beam's classes with them, which else are on the cluster's own path.
    brings_beam: ClassVar[bool] = False

    def __init__(
        self, programs: FlinkPrograms, python_folders: Sequence[Path] = (), *, slots: int = SLOTS, others: int = 0
    ) -> None:
        self._programs = programs
        self._processes = Processes("flink")
        self.folder = self._processes.folder
        self.environment = python_environment(programs.python, HERE, *python_folders)
        self._configuration = self.folder / "conf"
        rpc, blob, self._rest, self._pool, self._jobs, self._artifacts, self._expansion = free_ports(7)
        write_configuration(self._configuration, self.folder, rpc, blob, self._rest, slots)
        self._submitted = self._taskmanagers = 0
        self._job_server = programs.job_server if self.brings_beam else unsent(programs.job_server, self.folder)
        try:
            self._start_jobmanager()
            for number in range(others):
                self._start_taskmanager(f"other-{number}")
            self.start_taskmanager(wait=False)
            self._start_job_server()
            self._start_pool()
            for name, port in (("jobmanager", self._rest), ("job-server", self._jobs), ("pool", self._pool)):
                self._processes.wait_for(name, "reachable", partial(accepts, port), START_SECONDS)
            self._await_taskmanager()
        except BaseException:
            self.close()
            raise

    def arguments(self, name: str) -> list[str]:
        """Beam's options that submit a pipeline to this cluster under a name."""
        return [
            *("--runner=PortableRunner", f"--job_endpoint=127.0.0.1:{self._jobs}", f"--job_name={name}"),
            f"--flink_master=127.0.0.1:{self._rest}",
            *("--environment_type=EXTERNAL", f"--environment_config=127.0.0.1:{self._pool}"),
            NO_INVENTORY,
            *state_arguments(self.folder),
        ]

    def submit(self, *command: str) -> str:
        """Run ``python *command`` with arguments() added, and wait until the cluster has the job.

        Args:
            command: Arguments of the Python with the cluster's Beam, such as ``-m``, a module, and arguments of its
                own.

        Returns:
            The job's id on the cluster. The submitting process may end or wait for the job; it is ended by close().

        Raises:
            ServerError: It failed, or no job came of it; the message has its log.
        """
        self._submitted += 1
        name = f"test-{self._submitted}-{time.time_ns()}"
        process = f"submit-{self._submitted}"
        whole = [self._programs.python, *command, *self.arguments(name)]
        self._processes.start(process, whole, self.environment)
        deadline = time.monotonic() + SUBMIT_SECONDS
        waiting = True
        while True:
            ended = waiting and not self._processes.runs(process)
            found = self.jobs_named(name)
            if found and found[0]["state"] != "INITIALIZING":
                return found[0]["jid"]
            if ended:
                # It was well, the job may be a while: a job server starts jobs after it has said yes to them.
                waiting = False
                if (code := self._processes.end(process)) != 0:
                    raise ServerError(self._processes.complaint(process, f"the submission ended with {code}"))
            if time.monotonic() > deadline:
                complaint = self._processes.complaint("job-server", f"no job within {SUBMIT_SECONDS} s")
                raise ServerError(self._processes.complaint(process, complaint))
            time.sleep(0.2)

    @property
    def python(self) -> Path:
        """The Python with the cluster's Beam."""
        return self._programs.python

    def jobs_named(self, name: str) -> list[dict[str, Any]]:
        """What the cluster tells of the jobs that were submitted under a name, in the order in which they began.

        A command that knows the cluster puts a mark at the end of the name.
        """
        mine = re.compile(rf"{re.escape(name)}(-[0-9a-f]{{16}})?")
        found = [job for job in self._get("/jobs/overview")["jobs"] if mine.fullmatch(job["name"])]
        return sorted(found, key=lambda job: job["start-time"])

    def state(self, job: str) -> str:
        """A job's state: RUNNING, RESTARTING, FINISHED, FAILED, CANCELED and more."""
        return self._get(f"/jobs/{job}")["state"]

    def set_up(self, job: str) -> bool:
        """Whether all steps of a job have been set up: deployed, with their state back, and running."""
        return all(step["status"] in {"RUNNING", "FINISHED"} for step in self._get(f"/jobs/{job}")["vertices"])

    def checkpoints(self, job: str) -> dict[str, Any]:
        """Flink's account of a job's checkpoints: ``counts`` (completed, failed, restored, ...) and the ``latest``."""
        return self._get(f"/jobs/{job}/checkpoints")

    def failures(self, job: str) -> list[str]:
        """The messages of what made a job restart, newest first."""
        entries = self._get(f"/jobs/{job}/exceptions")["exceptionHistory"]["entries"]
        return [entry["stacktrace"] for entry in entries]

    def cancel(self, job: str) -> None:
        """Cancel a job and wait until it is gone."""
        self._call("PATCH", f"/jobs/{job}?mode=cancel")
        deadline = time.monotonic() + CANCEL_SECONDS
        while self.state(job) not in {"CANCELED", "FAILED", "FINISHED"}:
            if time.monotonic() > deadline:
                raise ServerError(self._processes.complaint("jobmanager", f"job {job} is still {self.state(job)}"))
            time.sleep(0.2)

    def kill_taskmanager(self) -> None:
        """Kill the TaskManager (``kill -9``): jobs wait for another."""
        self._processes.kill("taskmanager")

    def start_taskmanager(self, *, wait: bool = True) -> None:
        """Start a TaskManager where none runs, and wait until the JobManager counts on it."""
        self._taskmanagers += 1
        self._start_taskmanager("taskmanager", f"taskmanager-{self._taskmanagers}")
        if wait:
            self._await_taskmanager()

    def kill_jobmanager(self) -> None:
        """Kill the JobManager (``kill -9``), which forgets its jobs."""
        self._processes.kill("jobmanager")

    def start_jobmanager(self) -> None:
        """Start a JobManager where none runs, and wait until the TaskManager has found it."""
        self._start_jobmanager()
        self._processes.wait_for("jobmanager", "reachable", partial(accepts, self._rest), START_SECONDS)
        self._await_taskmanager()

    def workers(self) -> list[int]:
        """The Python processes that run the pipelines' steps."""
        return workers_of(self._processes.pid("pool"))

    def kill_workers(self) -> int:
        """Kill them (``kill -9``), not their pool; how many."""
        workers = self.workers()
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        return len(workers)

    def processes(self) -> list[int]:
        """The ids of all processes of the cluster that run now, workers and submitters included."""
        return self._processes.all()

    def pid(self, name: str) -> int:
        """The id of ``jobmanager``, ``taskmanager``, ``job-server`` or ``pool``."""
        return self._processes.pid(name)

    def close(self) -> None:
        """End all processes and remove all files."""
        self._processes.close()

    def _start_jobmanager(self) -> None:
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self._start_java("jobmanager", ["-Xmx768m"], main, "--executionMode", "cluster")

    def _start_job_server(self) -> None:
        ports = {"job-port": self._jobs, "artifact-port": self._artifacts, "expansion-port": self._expansion}
        command = [
            *(self._programs.java, "-Xmx768m", *QUICK, *JAVA, "-jar", self._job_server),
            *(f"--flink-master=127.0.0.1:{self._rest}", f"--flink-conf-dir={self._configuration}"),
            *("--job-host=127.0.0.1", f"--artifacts-dir={self.folder}/artifacts"),
            *(f"--{name}={port}" for name, port in ports.items()),
        ]
        self._processes.start("job-server", command)

    def _start_pool(self) -> None:
        command = [self._programs.python, POOL, str(self._pool)]
        self._processes.start("pool", command, self.environment)

    def _start_taskmanager(self, name: str, resource: str | None = None) -> None:
        # No more heap than the configuration tells of: framework and task.
        memory = ["-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=384m"]
        own = f"-Dtaskmanager.resource-id={resource or name}"
        self._start_java(name, memory, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner", own)

    def _start_java(self, name: str, memory: Sequence[str], main: str, *arguments: str) -> None:
        command = [
            *(
                self._programs.java,
                *memory,
                *QUICK,
                *JAVA,
                f"-Dlog4j.configurationFile=file:{self._configuration}/log4j.properties",
            ),
            # with Beam's classes as well: loading them anew for each job takes longer than the tests' jobs do
            *("-cp", f"{self._programs.jars}/*:{self._programs.job_server}", main),
            *("--configDir", self._configuration, *arguments),
        ]
        self._processes.start(name, command)

    def _await_taskmanager(self) -> None:
        name = f"taskmanager-{self._taskmanagers}"

        def registered() -> bool:
            if not self._processes.runs("jobmanager"):
                raise ServerError(self._processes.complaint("jobmanager", f"jobmanager ended before {name} registered"))
            try:
                return name in [manager["id"] for manager in self._get("/taskmanagers")["taskmanagers"]]
            except ServerError:
                return False  # the JobManager takes calls a moment before it can answer them

        self._processes.wait_for("taskmanager", "registered", registered, START_SECONDS)

    def _get(self, path: str) -> Any:
        return self._call("GET", path)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self._rest}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with DIRECT.open(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise ServerError(f"{method} {path} was answered {error.code}: {said}") from None
        except OSError as error:
            raise ServerError(self._processes.complaint("jobmanager", f"{method} {path} failed: {error}")) from None
