"""Ctrl-C and SIGTERM end a command with a sentence and a code of its own, wherever they come."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.commands import STOPPED, Command, dry_run, stop_signals
from quiltstream.pipelines.errors import CommandError, ExitCode
from quiltstream.pipelines.gateway import run as gateways
from quiltstream.pipelines.live import command

from ...forked import COMMAND
from ..jobs import call, fork, job, readings

#: The signal comes when a step has its first readings, and the step takes its time.
IN_A_STEP = f"""
import os, signal, sys, time
number = int(sys.argv.pop(1))
from quiltstream.transforms.aggregate.encode import EncodeCells
meant = EncodeCells.process
def process(self, *words, **named):
    os.kill(os.getpid(), number)
    for _ in range(20):
        time.sleep(0.05)
    return meant(self, *words, **named)
EncodeCells.process = process
{COMMAND}
"""


@pytest.fixture(autouse=True)
def _listening() -> Generator[None]:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    """A shell starts what runs in its background with Ctrl-C ignored, and so would be what that starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


#: The exit code of each signal.
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


@pytest.mark.night
@pytest.mark.parametrize("number", CODES)
def test_a_stopped_run_is_reported_and_the_next_run_resumes(tmp_path: Path, number: signal.Signals) -> None:
    made = job(tmp_path / "job", rows=readings(days=2))
    done = fork(f"{number:d}", "run", made.settings, cwd=tmp_path, program=IN_A_STEP)
    assert (done.code, done.out) == (CODES[number], "")
    # the program above imports Beam before the command can keep its remarks away
    assert [line for line in done.err.splitlines() if not line.startswith("WARNING:root:apitools")] == [STOPPED]
    fork("run", made.settings, cwd=tmp_path).ended(0)
    assert len(made.rows()) == 14


#: The same where steps run in workers that are processes of their own, which tell of themselves and of their begin.
IN_WORKERS = f"""
import os, signal, sys, threading, time
from pathlib import Path
folder, number = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
def begun(pid=os.getpid()):
    own = [one for path in Path("/proc", str(pid), "task").glob("*/children") for one in path.read_text().split()]
    return own + [below for one in own for below in begun(one)]
def stop():
    while len(begun()) <= 2:
        time.sleep(0.05)
    time.sleep(1)
    (folder / "begun").write_text(" ".join(begun()))
    os.kill(os.getpid(), number)
threading.Thread(target=stop, daemon=True).start()
{COMMAND}
"""


@pytest.mark.night
def test_a_stop_leaves_no_worker_that_is_a_process_of_its_own(tmp_path: Path) -> None:
    made = job(tmp_path / "job", rows=readings(days=8))
    workers = ("--", "--direct_num_workers=2", "--direct_running_mode=multi_processing")
    words = (str(tmp_path), f"{signal.SIGTERM:d}", "run", str(made.settings), *workers)
    fork(*words, cwd=tmp_path, program=IN_WORKERS).ended(CODES[signal.SIGTERM])
    begun = [int(pid) for pid in (tmp_path / "begun").read_text(encoding="ascii").split()]
    assert len(begun) > 2
    deadline = time.monotonic() + 10
    while left := [pid for pid in begun if _runs(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether a process runs. The command line of one that ended is empty until its parent takes its exit code."""
    with suppress(OSError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


def by_itself(number: int) -> None:
    signal.raise_signal(number)


def within_a_step(number: int) -> None:
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        raise RuntimeError("KeyboardInterrupt [while running 'Read/Decode']") from None


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("body", [by_itself, within_a_step])
def test_a_stop_is_distinguished_from_a_failure_that_a_runner_made_of_it(
    body: Callable[[int], None], number: signal.Signals
) -> None:
    done = CliRunner().invoke(Command("trial", callback=partial(body, number)), [])
    assert (done.exit_code, done.stdout, done.stderr) == (CODES[number], "", STOPPED + "\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", CODES)
def test_a_stopped_live_run_or_gateway_ends_with_the_code_of_its_signal_also_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(command, "read_settings", lambda _: signal.raise_signal(number))
    done = call("run", "--live", tmp_path / "settings.yaml")
    assert (done.code, done.out, done.err) == (CODES[number], "", STOPPED + "\n")
    monkeypatch.setattr(gateways, "run_gateway", lambda _: signal.raise_signal(number))
    assert call("gateway", tmp_path / "gateway.yaml").code == CODES[number]
    monkeypatch.setattr(dry_run, "read_settings", lambda _: signal.raise_signal(number))
    assert call("run", "--live", "--dry-run", tmp_path / "settings.yaml").code == CODES[number]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_remains_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        done = CliRunner().invoke(Command("trial", callback=partial(by_itself, number)), [])
        assert signal.getsignal(number) is signal.SIG_IGN
        assert (signal.SIGHUP in stop_signals()) is (number is not signal.SIGHUP)
    finally:
        signal.signal(number, before)
    assert (done.exit_code, done.stderr) == (0, "")


def test_an_error_after_ctrl_c_is_reported_with_its_exit_code() -> None:
    def body() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise CommandError("the ledger does not answer", ExitCode.STORE) from None

    done = CliRunner().invoke(Command("trial", callback=body), [])
    assert (done.exit_code, done.stdout, done.stderr) == (4, "", "Error: the ledger does not answer\n")


@pytest.mark.parametrize("place", [(Command, "make_context"), (click.Group, "parse_args")], ids=["command", "words"])
def test_ctrl_c_before_a_command_starts_has_the_same_exit_code(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    def looked_up(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*place, looked_up)
    for words in (["demo"], ["ledger", "show", "ledger.db"]):
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, done.stdout, done.stderr) == (130, "", STOPPED + "\n")


IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from quiltstream.pipelines.program import program
program()
"""


def test_ctrl_c_while_the_program_imports_ends_it_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped before it began\n")
