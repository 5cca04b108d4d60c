"""A script that is forked from a process with its modules is, to those who watch it, one that was started.

And workers that Beam's pool of the tests has forked are told from what they are forked from.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from .flink import workers_of
from .processes import Processes, accepts, alive, children, descendants, free_ports
from .starting import SEEDS, Started, Starter, Turns

SCRIPT = """
import os, sys
if __name__ == "__main__":
    print(sys.argv[1:], os.getcwd(), os.environ["SAID"], os.getpid() == os.getpgrp() == os.getsid(0), flush=True)
    print(sys.stdin.read(), file=sys.stderr, flush=True)
    sys.exit(int(sys.argv[1]))
"""

#: What Python does from 3.12 on where a process that forks has threads.
THREADED = """
import os, warnings
before = os.fork
def fork():
    warnings.warn("multi-threaded, use of fork() may lead to deadlocks", DeprecationWarning, stacklevel=2)
    return before()
os.fork = fork
"""

#: Has the process that forks collect each child before it looks.
COLLECTED = """
import os
before = os.waitpid
def waitpid(pid, options):
    if pid == -1:
        before(-1, 0)
    return before(pid, options)
os.waitpid = waitpid
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    made = Starter(sys.executable, os.environ, ["fractions"])
    yield made
    made.close()


def begin(starter: Starter, folder: Path, code: int, stdin: int) -> Started:
    """The script, with files for what it says."""
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    words = [str(folder / "script.py"), str(code), "b c"]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return starter.start(words, folder, os.environ | {"SAID": "yes"}, stdin, out, err)


def test_a_started_process_has_its_arguments_folder_environment_and_session(starter: Starter, tmp_path: Path) -> None:
    for code in (0, 3):
        process = begin(starter, tmp_path, code, subprocess.PIPE)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.write("what comes in")
        process.stdin.close()
        assert process.wait() == code
        assert process.poll() == process.returncode == code
        assert (tmp_path / "out").read_text(encoding="utf-8") == f"['{code}', 'b c'] {tmp_path} yes True\n"
        assert (tmp_path / "err").read_text(encoding="utf-8") == "what comes in\n"


def test_a_killed_process_keeps_its_id_until_it_is_reaped(starter: Starter, tmp_path: Path) -> None:
    process = begin(starter, tmp_path, 0, subprocess.PIPE)
    os.killpg(process.pid, signal.SIGKILL)
    while alive(process.pid):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdin is not None
    process.stdin.close()


def test_a_process_started_without_an_input_reads_nothing(starter: Starter, tmp_path: Path) -> None:
    assert begin(starter, tmp_path, 0, subprocess.DEVNULL).wait() == 0


def test_modules_that_are_missing_or_print_on_import_are_reported(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('ready')", encoding="utf-8")
    for module, said in (("loud", "without a word: ready"), ("nowhere", "cannot be imported")):
        made = Starter(sys.executable, os.environ | {"PYTHONPATH": str(tmp_path)}, [module])
        try:
            with pytest.raises(pytest.fail.Exception, match=said):
                begin(made, tmp_path, 0, subprocess.DEVNULL)
        finally:
            made.close()


@pytest.mark.parametrize("content", [THREADED, COLLECTED], ids=["has threads", "has no child left"])
def test_a_starter_falls_back_when_the_forking_process_is_unusable(tmp_path: Path, content: str) -> None:
    (tmp_path / "peculiar.py").write_text(content, encoding="utf-8")
    made = Starter(sys.executable, os.environ | {"PYTHONPATH": str(tmp_path)}, ["peculiar"])
    try:
        for code in (0, 3, 0):
            assert begin(made, tmp_path, code, subprocess.DEVNULL).wait() == code
    finally:
        made.close()


def test_each_start_has_another_hash_seed_than_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(hash('m1'))", encoding="utf-8")
    made = Turns(sys.executable, os.environ, ["fractions"])
    hashes: list[str] = []
    try:
        for _ in range(2 * len(SEEDS)):
            with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
                words = [str(tmp_path / "script.py")]
                started = made.next().start(words, tmp_path, os.environ, subprocess.DEVNULL, out, err)
            assert started.wait() == 0
            hashes.append((tmp_path / "out").read_text(encoding="utf-8"))
    finally:
        made.close()
    assert hashes[: len(SEEDS)] == hashes[len(SEEDS) :]
    assert len(set(hashes)) == len(SEEDS) >= 2


def test_the_pool_forks_workers_of_different_hash_seeds_in_turn_and_ends_them() -> None:
    (port,) = free_ports(1)
    processes = Processes("pool")
    try:
        folders = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        command = [sys.executable, "-m", "beam_jobs", "pool", str(port)]
        processes.start("pool", command, os.environ | {"PYTHONPATH": folders})
        processes.wait_for("pool", "listening", lambda: accepts(port), 120)
        pool = processes.pid("pool")
        starters = children(pool)
        assert workers_of(pool) == []
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
            for number in range(3):
                request = beam_fn_api_pb2.StartWorkerRequest(worker_id=f"w{number}")
                request.control_endpoint.url = "127.0.0.1:9"  # where nobody is: workers wait
                ask.StartWorker(request, timeout=120)
            assert children(pool) == starters
            assert [len(descendants(one)) for one in starters] == [2, 1]
            workers = workers_of(pool)
            assert len(workers) == 3
            ask.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="w1"), timeout=120)
            assert [len(descendants(one)) for one in starters] == [2, 0]
        environments = [Path(f"/proc/{one}/environ").read_bytes().split(b"\0") for one in starters]
        seeds = [[entry for entry in one if entry.startswith(b"PYTHONHASHSEED=")] for one in environments]
        assert seeds == [[b"PYTHONHASHSEED=1"], [b"PYTHONHASHSEED=2"]]
    finally:
        processes.close()
    # the process that adopts one whose parent is gone may take a moment to notice its end
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in [*starters, *workers]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
