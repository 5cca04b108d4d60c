"""Ctrl-C ends a command with a sentence and a code of its own, wherever it comes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.commands import STOPPED, Command
from quiltstream.pipelines.errors import CommandError, ExitCode

from ...forked import COMMAND
from ..jobs import fork, job, readings

#: Ctrl-C comes when a step has its first readings, and the step takes its time.
IN_A_STEP = f"""
import os, signal, time
from quiltstream.transforms.aggregate.encode import EncodeCells
meant = EncodeCells.process
def process(self, *words, **named):
    os.kill(os.getpid(), signal.SIGINT)
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


def test_a_stopped_run_is_reported_and_the_next_run_resumes(tmp_path: Path) -> None:
    made = job(tmp_path / "job", rows=readings(days=2))
    done = fork("run", made.settings, cwd=tmp_path, program=IN_A_STEP)
    assert (done.code, done.out) == (130, "")
    # the program above imports Beam before the command can keep its remarks away
    assert [line for line in done.err.splitlines() if not line.startswith("WARNING:root:apitools")] == [STOPPED]
    again = fork("run", made.settings, cwd=tmp_path)
    assert again.code == 0, again.err
    assert len(made.rows()) == 14


def by_itself() -> None:
    signal.raise_signal(signal.SIGINT)


def within_a_step() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("KeyboardInterrupt [while running 'Read/Decode']") from None


@pytest.mark.parametrize("body", [by_itself, within_a_step])
def test_ctrl_c_is_distinguished_from_a_failure_that_a_runner_made_of_it(body: Callable[[], None]) -> None:
    done = CliRunner().invoke(Command("trial", callback=body), [])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", STOPPED + "\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failure_without_ctrl_c_is_reported_as_a_failure() -> None:
    def body() -> None:
        raise RuntimeError("KeyboardInterrupt [while running 'Read/Decode']")

    done = CliRunner().invoke(Command("trial", callback=body), [])
    assert done.exit_code == 1
    assert STOPPED not in done.stderr


def test_an_error_after_ctrl_c_is_reported_with_its_exit_code() -> None:
    def body() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise CommandError("the ledger does not answer", ExitCode.STORE) from None

    done = CliRunner().invoke(Command("trial", callback=body), [])
    assert (done.exit_code, done.stdout, done.stderr) == (4, "", "Error: the ledger does not answer\n")


def test_an_aborted_prompt_is_not_reported_as_a_stop() -> None:
    def body() -> None:
        raise click.Abort

    assert CliRunner().invoke(Command("trial", callback=body), []).exit_code == 1


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
