"""``quiltstream run --live``: how it ends."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import _GeneratorContextManager, suppress
from dataclasses import replace
from queue import Queue
from types import FrameType
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import sdk_worker
from apache_beam.utils import retry

from quiltstream.pipelines.commands import keep_quiet
from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import monitor
from quiltstream.pipelines.live.monitor import Follower, LiveProgress
from quiltstream.store import connection
from quiltstream.store.errors import StoreReadOnly

from ..jobs import Job
from ..live_jobs import Interrupted, Pipeline, Result, follow, graph_of, publish_all


def test_a_job_is_followed_until_its_runner_reports_its_end(one: Job) -> None:
    progress, said = follow(one, Pipeline(Result("RUNNING", "RUNNING", "DONE")))
    assert (progress.state, progress.until) == ("DONE", None)
    assert [line.partition(":")[0] for line in said.splitlines()] == ["start", "record"]


def test_a_job_is_ended_when_its_schedule_is_fully_recorded(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_END_S", 0.0)
    result = Result(*["RUNNING"] * 9)
    progress, _ = follow(one, Pipeline(result, lambda: publish_all(one)))
    assert result.cancelled
    assert (progress.state, progress.first_missing) == ("DONE", None)


def test_the_error_of_a_failed_job_becomes_the_error_of_the_command(one: Job) -> None:
    with pytest.raises(CommandError) as caught:
        follow(one, Pipeline(Result("RUNNING", "FAILED")))
    assert (caught.value.code, str(caught.value)) == (4, "it is read-only")


def test_a_lost_runner_is_reported(one: Job) -> None:
    with pytest.raises(CommandError, match=r"the runner has gone away \(OSError\); what is on record stays") as caught:
        follow(one, Pipeline(Result("RUNNING", OSError("secret"))))
    assert caught.value.code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_job_even_if_its_runner_handled_the_signal(one: Job, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    result = Interrupted("RUNNING")
    result.number = number

    def ignore() -> None:
        signal.signal(number, signal.SIG_IGN)

    progress, said = follow(one, Pipeline(result, ignore))
    assert result.cancelled
    assert progress.state == "CANCELLED"
    assert said.splitlines()[-1].endswith("stopped; what is on record stays")
    assert signal.getsignal(number) is before


def test_a_job_stopped_during_its_start_ends(one: Job) -> None:
    progress, said = follow(one, Pipeline(Result(), lambda: signal.raise_signal(signal.SIGINT)))
    assert progress.state == "CANCELLED"
    assert "stop" in said


def test_a_signal_that_python_dropped_within_a_callback_stops_the_job_all_the_same(one: Job) -> None:
    def into_a_callback() -> None:
        with suppress(KeyboardInterrupt):  # as Python does with one that comes into a destructor
            signal.raise_signal(signal.SIGINT)

    progress, said = follow(one, Pipeline(Result("RUNNING", "RUNNING", "DONE"), into_a_callback))
    assert progress.state == "CANCELLED"
    assert said.splitlines()[-1].endswith("stopped; what is on record stays")
    # and nothing of it is left for the next one
    assert follow(one, Pipeline(Result("RUNNING", "DONE")))[0].state == "DONE"


def test_a_job_stopped_during_a_ledger_query_prints_its_progress(one: Job) -> None:
    """A stop may come when the thread holds the lock of the ledger's connection, and no statement stands between."""
    entering = _GeneratorContextManager.__enter__.__code__
    number, places = 0, 0

    def at_a_door(frame: FrameType, event: str, _value: object) -> Any:
        nonlocal places
        if frame.f_code is not entering or frame.f_locals["self"].gen.gi_code.co_filename != connection.__file__:
            return None
        if event == "return":
            places += 1
            if places == number:
                sys.settrace(before)
                raise KeyboardInterrupt
        return at_a_door

    before = sys.gettrace()
    while places >= number:
        number, places = number + 1, 0
        try:
            progress, said = follow(one, Pipeline(Result("RUNNING", "DONE"), lambda: sys.settrace(at_a_door)))
        finally:
            sys.settrace(before)
        if places >= number:
            assert progress.state == "CANCELLED", number
            assert said.splitlines()[-1].endswith("stopped; what is on record stays")
    assert number > 5


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            StoreReadOnly("its disk is read-only"),
            "stopped; what is on record stays; what that is cannot be told: its disk",
        ),
        (ValueError("of our own"), "of our own"),
    ],
)
def test_a_failed_last_ledger_query_of_a_stopped_job_is_reported(
    one: Job, wrong: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(follower: Follower, state: str) -> LiveProgress:
        if state == "CANCELLED":
            raise wrong
        return usual(follower, state)

    usual = Follower.look
    monkeypatch.setattr(Follower, "look", look)
    with pytest.raises(Exception, match=told) as caught:
        follow(one, Pipeline(Interrupted("RUNNING")))
    assert caught.value is wrong or (isinstance(caught.value, CommandError) and caught.value.code == 4)


@pytest.mark.parametrize("afterwards", [True, False], ids=["also afterwards", "only while it runs"])
def test_counters_of_a_stopped_job_are_those_of_its_end_or_the_last_known(
    one: Job, monkeypatch: pytest.MonkeyPatch, *, afterwards: bool
) -> None:
    def tell(result: Result) -> dict[str, int] | None:
        if result.cancelled:
            return {"readings": 2} if afterwards else None
        return {"readings": 1}

    monkeypatch.setattr(monitor, "counters", tell)
    graph = replace(graph_of(one), pipeline=Pipeline(Interrupted("RUNNING")))
    _, tallies = monitor.follow(graph, lambda *_: None, look_s=0.0)
    graph.follower.close()
    assert tallies == {"readings": 2 if afterwards else 1}


def test_runner_errors_in_threads_that_outlive_the_job_are_not_printed(
    one: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def end(error: Exception) -> None:
        def fail() -> None:
            raise error

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

    def hook() -> Callable[[Any], Any]:
        return threading.excepthook

    monkeypatch.setattr(threading, "excepthook", lambda ended: told.append(ended.exc_type))
    monkeypatch.setattr(logging.getLogger("apache_beam"), "propagate", False)
    hooks: list[Callable[[Any], Any]] = []
    for _ in range(2):
        follow(one, Pipeline(Result("RUNNING", "DONE")))
        hooks.append(hook())
        end(grpc.RpcError())
        end(ValueError())
    assert told == [ValueError, ValueError]
    assert hooks[0] is hooks[1], "they are not piled up"
    monkeypatch.setattr(logging.getLogger("apache_beam"), "propagate", True)
    monkeypatch.setattr(threading, "excepthook", lambda ended: told.append(ended.exc_type))
    follow(one, Pipeline(Result("RUNNING", "DONE")))
    end(grpc.RpcError())
    assert told == [ValueError, ValueError, grpc.RpcError]


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
