"""A command that is killed alone, and not the group of its processes, leaves nothing of what it has started."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ..examined import Tally
from .flink import HERE, FlinkPrograms, embedded_arguments, python_environment
from .flink_bench import PostgresBench
from .live_bench import Bench, Running, day_of, readings, truth
from .processes import alive, descendants
from .test_live_restart import prisms_of

#: Variable by which a process is known that a command has started, whoever its parent is now.
MARK = "QUILTSTREAM_TEST_MARK"

#: Seconds that what was started has to end: a process that is killed ends at once, on a machine that has time for it.
END_S = 30.0


def marked(mark: str) -> dict[int, str]:
    """The processes that run with a mark in their environment, and the beginning of their command lines."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes() and alive(int(folder.name)):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return found


def left_of(mark: str) -> dict[int, str]:
    """What of the processes with a mark does not end."""
    deadline = time.monotonic() + END_S
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def kill_alone(job: Running) -> None:
    """Kill a command and its supervisor if it has one, and nothing else."""
    job.killed = True  # before: whoever begins failed jobs again looks at any time
    first = job.process.pid
    os.kill(first, signal.SIGSTOP)  # a supervisor must not begin another one
    supervised = b"supervisor.py" in Path(f"/proc/{first}/cmdline").read_bytes()
    for pid in [first, *descendants(first)[: int(supervised)]]:
        os.kill(pid, signal.SIGKILL)
    job.process.wait()


def orphans(bench: Bench, kills: int, begun: Callable[[str], Any]) -> tuple[int, int]:
    """Kill commands at random moments: how many had started something by then, and how many left something of it.

    Args:
        bench: where they run; of a job in a cluster nothing is started by the command but the job itself.
        kills: how many.
        begun: of a mark, whether the first command has begun whole; the others are killed around that time.
    """
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")
    source = random.Random(seed)
    some = left = 0
    took = 0.0
    for number in range(kills):
        since = time.monotonic()
        mark = bench.environment[MARK] = f"{number}-{seed}-"
        job = bench.start()
        if number:
            time.sleep(source.uniform(0.0, 1.5 * took))
        else:
            bench.until(lambda mark=mark: begun(mark), "the first command has begun")
            took = time.monotonic() - since
        assert job.process.poll() is None, job.err.read_text(encoding="utf-8")
        some += bool(marked(mark))
        kill_alone(job)
        found = left_of(mark)
        left += bool(found)
        for pid, line in found.items():
            sys.stdout.write(f"kill {number}: left {line}\n")
            os.kill(pid, signal.SIGKILL)
    return some, left


@pytest.mark.parametrize(("kills", "least"), [(3, 1), pytest.param(50, 11, marks=pytest.mark.night)])
def test_a_command_killed_alone_leaves_no_process_on_prism(bench: Bench, tally: Tally, kills: int, least: int) -> None:
    bench.settings()
    frame = readings(4.5, seed=51)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    begun, left = orphans(bench, kills, lambda _: bench.windows() == 2)
    assert (begun >= least, left) == (True, 0)
    # a last command, which nobody kills, publishes what is missing
    for day in (3, 4):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    last = bench.run()
    assert last.process.returncode == 0, last.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(4))
    tally.take(bench.check())


@pytest.mark.parametrize(("kills", "least"), [(1, 1), pytest.param(50, 11, marks=pytest.mark.night)])
def test_a_command_killed_alone_leaves_nothing_of_its_embedded_flink(
    tmp_path: Path,
    flink_programs: FlinkPrograms,
    postgres_url: str,
    request: pytest.FixtureRequest,
    kills: int,
    least: int,
) -> None:
    options = embedded_arguments(flink_programs, tmp_path)
    environment = python_environment(flink_programs.python, HERE)
    bench = PostgresBench(tmp_path / "job", options, environment, postgres_url)
    request.addfinalizer(bench.close)
    bench.python = str(flink_programs.python)
    bench.settings()
    bench.put("0.jsonl", readings(1.5, seed=54))
    begun, left = orphans(bench, kills, lambda mark: any("java" in line for line in marked(mark).values()))
    assert (begun >= least, left) == (True, 0)


def test_prism_ends_with_its_killed_parent_process_and_another_one_takes_the_job(bench: Bench) -> None:
    bench.settings()
    frame = readings(4.5, seed=52)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start(supervised=True)
    bench.wait_for(2)
    (prism,) = bench.until(lambda: prisms_of(job), "Prism runs")
    *_, keeper = [pid for pid in descendants(job.process.pid) if prism in descendants(pid)]
    os.kill(keeper, signal.SIGKILL)
    bench.until(lambda: not alive(prism), "Prism ends with its keeper")
    for day in (3, 4):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    bench.check()


def listeners(pids: list[int]) -> set[str]:
    """The addresses, in the kernel's hexadecimal writing, that processes take TCP connections on."""
    held: set[str] = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                held.add(str(descriptor.readlink()))
    listening = "0A"
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == listening and f"socket:[{words[9]}]" in held:
                found.add(words[1])
    return found


def loopback(address: str) -> bool:
    host = address.partition(":")[0]
    return host in {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_workers_within_the_command_are_reached_on_the_loopback_address_only(bench: Bench) -> None:
    bench.settings()
    frame = readings(2.5, seed=53)
    for day in range(2):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(1)
    heard = listeners([job.process.pid])
    assert heard
    assert {address for address in heard if not loopback(address)} == set()
