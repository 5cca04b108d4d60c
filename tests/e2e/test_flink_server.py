"""The throw-away Flink cluster survives what tests do to it with complete results, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .flink import HERE, FlinkCluster, FlinkPrograms, embedded_arguments, find_flink, python_environment
from .installed import NotInstalledError
from .outcomes import rows, starts, truth, wait_until
from .processes import Processes, ServerError, alive

RECORDS = 1200
TURN = 20
PATIENCE = 180


def counting(out: Path, *more: str) -> list[str]:
    return ["-m", "beam_jobs", "counting", f"--out={out}", f"--records={RECORDS}", f"--at_once={TURN}", *more]


def account(cluster: FlinkCluster, job: str, out: Path) -> str:
    return (
        f"{cluster.state(job)}, {cluster.checkpoints(job)['counts']}, {len(rows(out))} rows, "
        f"read up to {max(starts(out), default=None)}, failures: {cluster.failures(job)}"
    )


def set_gate(out: Path, record: int) -> None:
    """Let the source read up to a record."""
    (out / "gate.tmp").write_text(str(record), encoding="ascii")
    (out / "gate.tmp").replace(out / "gate")


def read_on(cluster: FlinkCluster, job: str, out: Path, gate: int, beyond: int) -> None:
    """Have the source stop at the gate until a checkpoint is written, then let it go on; return while it is reading."""

    def all_at_gate() -> bool:
        return {partition for partition, start in starts(out) if start >= gate - TURN} == {0, 1}

    def completed() -> int:
        return cluster.checkpoints(job)["counts"]["completed"]

    wait_until("the source is at the gate", all_at_gate, PATIENCE, lambda: account(cluster, job, out))
    before = completed()
    wait_until("a checkpoint", lambda: completed() > before, PATIENCE, lambda: account(cluster, job, out))
    set_gate(out, beyond)
    went_on = lambda: any(start >= gate for _, start in starts(out))  # noqa: E731 - as the conditions around it
    wait_until("the source goes on", went_on, PATIENCE, lambda: account(cluster, job, out))


def complete(cluster: FlinkCluster, job: str, out: Path) -> None:
    """Wait for every row, and see that nothing but these rows is ever written."""
    expected = truth(RECORDS)
    wait_until("every row", lambda: rows(out).keys() >= expected, PATIENCE, lambda: account(cluster, job, out))
    cluster.cancel(job)
    assert rows(out).keys() == expected


def test_the_cluster_listens_on_the_loopback_address_only(flink_cluster: FlinkCluster) -> None:
    # First in this module, so before any job: while one runs, Beam's own services in the TaskManager listen on every
    # address, as some of its job server's always do. Neither has an option against it.
    heard = listeners([flink_cluster.pid(name) for name in ("jobmanager", "taskmanager", "pool")])
    assert len(heard) >= 5
    assert {address for address in heard if not loopback(address)} == set()


def test_a_killed_taskmanager_and_killed_workers_lose_no_row(flink_cluster: FlinkCluster, tmp_path: Path) -> None:
    set_gate(tmp_path, 300)
    job = flink_cluster.submit(*counting(tmp_path, "--detach"))
    read_on(flink_cluster, job, tmp_path, gate=300, beyond=600)
    flink_cluster.kill_taskmanager()
    flink_cluster.start_taskmanager()
    read_on(flink_cluster, job, tmp_path, gate=600, beyond=900)
    assert flink_cluster.kill_workers() >= 1
    read_on(flink_cluster, job, tmp_path, gate=900, beyond=RECORDS)
    complete(flink_cluster, job, tmp_path)
    assert flink_cluster.checkpoints(job)["counts"]["restored"] >= 2
    # Taken up from a checkpoint and not begun anew.
    assert sum(start == 0 for _, start in starts(tmp_path)) == 2


def test_a_stopped_job_resumes_from_its_savepoint(flink_cluster: FlinkCluster, tmp_path: Path) -> None:
    """Beam 2.62 on Flink now and then keeps the last rows of a job that goes on from a savepoint, RUNNING, for ever.

    It is the runner's own (docs/streaming.md): such a job is begun once more, from its start, and that is printed.
    """
    for attempt in ("first", "second"):
        out = tmp_path / attempt
        out.mkdir()
        set_gate(out, 300)
        first = flink_cluster.submit(*counting(out, "--detach"))
        read_on(flink_cluster, first, out, gate=300, beyond=900)
        savepoint = flink_cluster.stop_with_savepoint(first)
        wait_until("the job has stopped", lambda job=first: flink_cluster.state(job) == "FINISHED", PATIENCE)
        set_gate(out, RECORDS)
        second = flink_cluster.submit(*counting(out, "--detach"), savepoint=savepoint)
        try:
            complete(flink_cluster, second, out)
        except AssertionError as error:
            kept = flink_cluster.state(second) == "RUNNING" and not flink_cluster.failures(second)
            if attempt == "second" or not kept or not rows(out).keys() < truth(RECORDS):
                raise
            print(f"begun once more, because Flink kept rows back: {error}")  # noqa: T201 - a retry is told
            flink_cluster.cancel(second)
            continue
        assert flink_cluster.checkpoints(second)["latest"]["restored"]["is_savepoint"]
        # It was stopped between two turns of the source, and went on with the next: no record was read twice.
        turns = [(partition, start) for partition in range(2) for start in range(0, RECORDS, TURN)]
        assert sorted(starts(out)) == turns
        return


@pytest.mark.assures("runners", "An embedded Flink loses no row; a ledger in a file is refused there")
def test_an_embedded_flink_loses_no_row(flink_programs: FlinkPrograms, tmp_path: Path) -> None:
    environment = python_environment(flink_programs.python, HERE)
    with contextlib.closing(Processes("flink-embedded")) as processes:
        command = [
            *(flink_programs.python, *counting(tmp_path, "--pause=0.1"), "--shutdown_sources_after_idle_ms=15000"),
            *embedded_arguments(flink_programs, processes.folder),
        ]
        said = processes.run("job", command, environment, seconds=PATIENCE)
    assert "the job ended: DONE" in said
    assert rows(tmp_path).keys() == truth(RECORDS)


def test_a_python_with_another_beam_is_refused(
    flink_programs: FlinkPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_flink() == flink_programs
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 1.2.3\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv("QUILTSTREAM_FLINK_PYTHON", str(python))
    with pytest.raises(NotInstalledError, match=r"is 1\.2\.3, the job server's is"):
        find_flink()


def test_a_failed_submission_reports_its_error(flink_cluster: FlinkCluster) -> None:
    with pytest.raises(ServerError, match=r"No module named 'beam_jobs\.nothing'"):
        flink_cluster.submit("-m", "beam_jobs", "nothing")


def test_the_cluster_dies_with_the_tests_that_started_it(flink_programs: FlinkPrograms) -> None:
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(HERE.parent)!r})\n"
        "from e2e.flink import FlinkCluster, find_flink\n"
        "cluster = FlinkCluster(find_flink())\n"
        "print(cluster.folder, *cluster.processes(), flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"QUILTSTREAM_FLINK_PYTHON": str(flink_programs.python)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        folder, *pids = child.stdout.readline().split()
        child.send_signal(signal.SIGKILL)
    assert len(pids) >= 4
    deadline = time.monotonic() + 30
    while any(alive(int(pid)) for pid in pids) or Path(folder).exists():
        assert time.monotonic() < deadline, "a process or the folder outlived the process that started them"
        time.sleep(0.1)


def listeners(pids: list[int]) -> set[str]:
    """The addresses, in the kernel's hexadecimal writing, that processes take TCP connections on."""
    held: set[str] = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                held.add(str(descriptor.readlink()))
    listening = "0A"
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            (
                _,
                local,
                _,
                state,
                *_,
            ) = line.split()
            if state == listening and f"socket:[{line.split()[9]}]" in held:
                found.add(local)
    return found


def loopback(address: str) -> bool:
    host = address.partition(":")[0]
    return host in {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
