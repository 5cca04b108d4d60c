"""The worker pool of the Flink deployment: what it starts, ends and lets nobody but its machine reach."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

from ..e2e.processes import accepts, alive, descendants, free_ports
from ..loading import load
from .flink_files import FLINK, run, text

#: 127.0.0.1 as the system writes it, alone and within an address of IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}

PROGRAM = FLINK / "worker_pool.py"


@pytest.fixture
def pool() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A running pool, and its port."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, PROGRAM, str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"workers are started at 127.0.0.1:{port}\n"
    yield process, port
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.night
def test_the_pool_starts_and_ends_workers_and_listens_on_the_loopback_address_only(
    pool: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = pool
    assert accepts(port)
    at = {address for address, found in listeners() if found == f"{port:04X}"}
    assert at
    assert at <= LOOPBACK
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        for name in ("one", "two"):
            # nobody is there to be called back: the worker waits for it
            back = endpoints_pb2.ApiServiceDescriptor(url=f"127.0.0.1:{free_ports(1)[0]}")
            stub.StartWorker(beam_fn_api_pb2.StartWorkerRequest(worker_id=name, control_endpoint=back))
        assert len(workers(process)) == 2
        stub.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="one"))
        assert len(workers(process)) == 1
        stub.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="nobody"))
    (left,) = workers(process)
    process.terminate()
    assert process.wait(30) == 0
    deadline = time.monotonic() + 10
    while alive(left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(left)


@contextmanager
def runner() -> Generator[tuple[socket.socket, str]]:
    """A place that workers call, and where it is."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        yield place, f"127.0.0.1:{place.getsockname()[1]}"


@pytest.mark.night
def test_workers_of_two_jobs_may_have_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(PROGRAM)
    monkeypatch.setattr(module, "END_S", 0.2)
    monkeypatch.setattr(module, "WORKER", "import time; time.sleep(600)")
    asked = module.Pool()

    def start(place: str) -> None:
        back = endpoints_pb2.ApiServiceDescriptor(url=place)
        asked.StartWorker(beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1", control_endpoint=back), None)

    def stop() -> None:
        asked.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1"), None)

    def running() -> list[str]:
        return sorted(place for (_, place), worker in asked._workers.items() if worker.poll() is None)

    def until(expected: list[str]) -> None:
        deadline = time.monotonic() + 30
        while running() != sorted(expected) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert running() == sorted(expected)

    try:
        with runner() as (_, first):
            with runner() as (closing, second):
                start(first)
                start(second)
                assert running() == sorted([first, second])
                # one runner asks for an end, and then it is gone: the other one's worker stays
                stop()
                closing.close()
                until([first])
            with runner() as (_, third):
                start(third)
                # this one has ended by itself, and its runner asks for its end: it is not the first one's
                asked._workers["1-1", third].kill()
                asked._workers["1-1", third].wait()
                with runner() as (_, fourth):
                    start(fourth)
                    stop()
                    time.sleep(0.5)
                    assert running() == sorted([first, fourth])
            # asked again for the same one, its runner has a new one instead of it
            before = asked._workers["1-1", first]
            start(first)
            assert before.poll() is not None
            assert asked._workers["1-1", first].poll() is None
    finally:
        asked.close()
    assert running() == []


def workers(process: subprocess.Popen[str]) -> list[int]:
    return [one for one in descendants(process.pid) if alive(one)]


def listeners() -> set[tuple[str, str]]:
    """Address and port of each listening socket, as the system writes them."""
    found: set[tuple[str, str]] = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text(Path(file)).splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, port = local.split(":")
                found.add((address, port))
    return found


@pytest.mark.night
def test_the_pool_ends_only_after_its_taskmanager_has_ended() -> None:
    watch = load(PROGRAM).watch
    with socket.create_server(("127.0.0.1", 0)) as neighbour:
        port = neighbour.getsockname()[1]
        ended = threading.Event()
        threading.Timer(0.5, ended.set).start()
        assert watch(port, ended, away_s=0.1, look_s=0.05) is False
    began = time.monotonic()
    assert watch(port, threading.Event(), away_s=0.3, look_s=0.05) is True
    assert time.monotonic() - began >= 0.3


@pytest.mark.night
@pytest.mark.parametrize("arguments", [[], ["fifty"], ["1", "two"], ["1", "2", "3"]])
def test_a_pool_without_a_port_prints_the_missing_argument(arguments: list[str]) -> None:
    assert "give the port" in run([sys.executable, str(PROGRAM), *arguments], code=2)
