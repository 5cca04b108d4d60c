"""``quiltstream run --live``: how it ends."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from contextlib import suppress
from queue import Queue
from typing import Any

import pytest
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import sdk_worker
from apache_beam.utils import retry

from quiltstream.pipelines.commands import keep_quiet
from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import follow as following

from ..jobs import Job
from ..live_jobs import Interrupted, Pipeline, Result, follow, publish_all, run


def test_a_job_is_followed_until_its_runner_reports_its_end(one: Job) -> None:
    progress, said = follow(one, Pipeline(Result("RUNNING", *["DONE"] * 9), lambda: publish_all(one)))
    assert progress.first_missing is None
    assert [line.partition(":")[0] for line in said] == ["start", "record"]


@pytest.mark.night
def test_a_job_is_ended_when_its_schedule_is_fully_recorded(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_END_S", 0.0)
    result = Result(*["RUNNING"] * 9)
    progress, _ = follow(one, Pipeline(result, lambda: publish_all(one)))
    assert result.cancelled
    assert progress.first_missing is None


def test_the_error_of_a_failed_job_becomes_the_error_of_the_command(one: Job) -> None:
    with pytest.raises(CommandError) as caught:
        follow(one, Pipeline(Result("RUNNING", "FAILED")))
    assert (caught.value.exit_code, str(caught.value)) == (4, "it is damaged")


def test_a_lost_runner_is_reported(one: Job) -> None:
    with pytest.raises(CommandError, match=r"the runner has gone away \(OSError\); what is on record stays") as caught:
        follow(one, Pipeline(Result("RUNNING", OSError("secret"))))
    assert caught.value.exit_code == 75


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_job_even_if_its_runner_handled_the_signal(
    one: Job, attempts: list[Pipeline], number: signal.Signals
) -> None:
    result = Interrupted("RUNNING")
    result.number = number

    def ignore() -> None:
        signal.signal(number, signal.SIG_IGN)

    attempts.append(Pipeline(result, ignore))
    run(one).ended(130 if number == signal.SIGINT else 143, "stopped; what is on record stays")
    assert result.cancelled
    assert signal.getsignal(number) is (signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def test_a_job_stopped_during_its_start_ends(one: Job, attempts: list[Pipeline]) -> None:
    attempts.append(Pipeline(Result(), lambda: signal.raise_signal(signal.SIGINT)))
    run(one).ended(130, "stopped; what is on record stays")


@pytest.mark.night
def test_a_signal_that_python_dropped_within_a_callback_stops_the_job_all_the_same(
    one: Job, attempts: list[Pipeline]
) -> None:
    def into_a_callback() -> None:
        with suppress(KeyboardInterrupt):  # as Python does with one that comes into a destructor
            signal.raise_signal(signal.SIGINT)

    attempts.append(Pipeline(Result("RUNNING", "RUNNING", "DONE"), into_a_callback))
    run(one).ended(130, "stopped; what is on record stays")


@pytest.mark.parametrize("asked", [False, True])
def test_a_failing_step_is_quoted_to_its_runner_and_to_the_terminal_on_request(
    asked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beam's worker prints a failed step's traceback, with whatever text a library put into it."""
    monkeypatch.setattr(logging.getLogger("apache_beam"), "propagate", asked)
    monkeypatch.setattr(logging.getLogger("apache_beam"), "handlers", [logging.NullHandler()])

    def fail() -> Any:
        raise ValueError("a reading of meter-7")

    def answer() -> str:
        harness: Any = object.__new__(sdk_worker.SdkHarness)
        harness._responses = Queue()
        harness._execute(fail, beam_fn_api_pb2.InstructionRequest(instruction_id="one"))
        return harness._responses.get_nowait().error

    for name in ("excepthook", "unraisablehook"):
        owner = threading if name == "excepthook" else sys
        monkeypatch.setattr(owner, name, getattr(owner, name))
    keep_quiet()
    assert "meter-7" in answer()
    assert ("meter-7" in capsys.readouterr().err) == asked


@pytest.mark.parametrize("asked", [False, True])
def test_library_errors_in_threads_are_printed_only_on_request(
    asked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the job is over: the worker of a job that was stopped fails a moment later."""
    told: list[str] = []
    monkeypatch.setattr(logging.getLogger("apache_beam"), "propagate", asked)
    monkeypatch.setattr(logging.getLogger("apache_beam"), "handlers", [logging.NullHandler()])
    monkeypatch.setattr(threading, "excepthook", lambda ended: told.append(ended.exc_type.__name__))
    monkeypatch.setattr(sys, "unraisablehook", lambda ended: told.append(ended.exc_type.__name__))
    keep_quiet()

    def fail() -> Any:
        raise ValueError("a reading of meter-7")

    def within_beam() -> None:
        retry.with_exponential_backoff(num_retries=0)(fail)()

    class Collected:
        def __del__(self) -> None:
            within_beam()

    made = Collected()
    del made
    for target, name in ((within_beam, "a"), (fail, "quiltstream-mine"), (fail, "another")):
        thread = threading.Thread(target=target, name=name)
        thread.start()
        thread.join()
    said = capsys.readouterr().err
    assert told == (["ValueError"] * 4 if asked else ["ValueError"])
    assert "meter-7" not in said
    assert ("Error: ValueError in the thread quiltstream-mine; --debug shows more" in said) == (not asked)
