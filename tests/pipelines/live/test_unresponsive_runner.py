"""A runner or a ledger that does not answer at all is reported meanwhile, and a job on such a runner can be stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from quiltstream.pipelines.errors import OutputError
from quiltstream.pipelines.live import monitor, watchdog
from quiltstream.pipelines.live.flink import FlinkHealth, FlinkJob
from quiltstream.pipelines.live.monitor import Follower, LiveProgress
from quiltstream.pipelines.live.restarts import RunnerError
from quiltstream.pipelines.live.watchdog import HEALTH_METRICS, Cause, Trouble, Watchdog, WatchLoop
from quiltstream.transforms.sources.progress import Heartbeat
from quiltstream.transforms.sources.reader import PollingPolicy

from ..jobs import Job
from ..live_jobs import Pipeline, Result, follow
from .test_health_metric import causes, samples

#: A thread that is waited for ends long before.
LONG = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A watchdog that is quick to say so."""
    monkeypatch.setattr(watchdog, "PATIENCE_S", 0.2)
    monkeypatch.setattr(watchdog, "_ANSWER_S", 0.05)
    monkeypatch.setattr(watchdog, "BEAT_S", 0.02)
    HEALTH_METRICS.reset()
    yield
    HEALTH_METRICS.reset()


def noticed(cause: Cause) -> threading.Event:
    """An event that happens when the metric tells of a cause."""
    seen, note = threading.Event(), HEALTH_METRICS.note

    def noted(report: Any, *rest: Any) -> None:
        note(report, *rest)
        if cause.value in causes(HEALTH_METRICS.text()):
            seen.set()

    HEALTH_METRICS.note = noted  # type: ignore[method-assign]
    return seen


class Standing(Result):
    """A handle that answers a second time when the cause is noticed, by the watchdog's own thread alone."""

    def __init__(self, seen: threading.Event, *states: str) -> None:
        super().__init__(*states)
        self.seen, self.asked = seen, 0

    @property
    def state(self) -> str:
        self.asked += 1
        assert self.asked != 2 or self.seen.wait(LONG)
        return super().state


@pytest.fixture(autouse=True)
def whole_board() -> Iterator[None]:
    Heartbeat.reset()  # readers of other tests in this process have left theirs
    yield
    vars(HEALTH_METRICS).pop("note", None)


def test_an_unanswering_runner_is_reported_while_the_job_waits_and_on_its_return(one: Job) -> None:
    seen = noticed(Cause.RUNNER)

    _, said = follow(one, Pipeline(Standing(seen, "RUNNING", "RUNNING", "RUNNING", "DONE")))
    assert "warning: the runner has not answered for 0 s when it was asked how the job is" in said
    assert "resumed: the runner answers again" in said
    assert said.index("warning: the runner") < said.index("resumed: the runner")
    assert causes(HEALTH_METRICS.text()) == set()
    assert samples(HEALTH_METRICS.text())["running"] == 0


def test_an_unanswering_ledger_is_reported_while_the_job_waits(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = noticed(Cause.LEDGER)
    look, asked = Follower.look, list[str]()

    def slow(self: Follower, state: str) -> LiveProgress:
        asked.append(state)
        if len(asked) == 2:
            assert seen.wait(LONG)
        return look(self, state)

    monkeypatch.setattr(Follower, "look", slow)
    _, said = follow(one, Pipeline(Result("RUNNING", "RUNNING", "DONE")))
    assert "warning: the ledger of record has not answered for 0 s, and the job waits for it" in said
    assert "resumed: the ledger of record answers again" in said


def test_a_job_with_an_unanswering_runner_can_be_stopped(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_END_S", 0.1)
    monkeypatch.setattr(monitor, "_LAST_S", 0.1)
    never = threading.Event()

    class Gone(Result):
        stopped = False

        @property
        def state(self) -> str:
            if not self.states and not self.stopped:
                self.stopped = True
                signal.raise_signal(signal.SIGINT)
            return super().state

        def cancel(self) -> None:
            never.wait(LONG)
            super().cancel()

        def metrics(self) -> Any:
            if self.stopped:
                never.wait(LONG)
            raise NotImplementedError

    try:
        progress, said = follow(one, Pipeline(Gone("RUNNING")))
    finally:
        never.set()
    assert progress.state == "CANCELLED"
    assert said.splitlines()[-1] == "stop: stopped; what is on record stays"


def test_a_failed_job_is_shown_by_the_metric_until_its_restart(one: Job) -> None:
    with pytest.raises(Exception, match="gone away"):
        follow(one, Pipeline(Result("RUNNING", OSError("secret"))))
    assert causes(HEALTH_METRICS.text()) == {"job-failed"}


def test_a_job_whose_workers_are_given_up_is_a_failure_of_its_runner(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchLoop, "given_up_s", property(lambda _: 312.0))
    with pytest.raises(RunnerError, match="no worker has looked at the source for 312 s, and nothing was waited for"):
        follow(one, Pipeline(Result("RUNNING", "RUNNING", "DONE")))


def test_an_output_that_is_closed_does_not_end_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = noticed(Cause.NO_WORKER)
    told: list[str] = []

    def closed(_: str, text: str) -> None:
        told.append(text)
        raise OutputError.of(BrokenPipeError())

    monkeypatch.setattr(watchdog, "_REPEAT_S", 0.0)
    dog = Watchdog(PollingPolicy(begin_us=0), 0.0, lambda _: 0)
    guard = WatchLoop(dog, closed, beat_s=0.01)
    with guard.rounds():
        assert seen.wait(LONG)
        seen.clear()
        assert seen.wait(LONG)
    assert len(told) >= 2
    # whoever follows the job hears of it
    with pytest.raises(OutputError):
        guard.say("record", "x")


def test_the_clusters_messages_are_reported_beside_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "CLUSTER_S", 0.01)
    told, slow = threading.Event(), threading.Event()
    said: list[str] = []

    def say(kind: str, text: str) -> None:
        said.append(f"{kind}: {text}")
        if "no TaskManager is left" in text:
            told.set()

    def cluster() -> Trouble | None:
        if not told.is_set():
            return Trouble(Cause.NO_WORKER, "no TaskManager is left")
        slow.set()
        return None

    dog = Watchdog(PollingPolicy(begin_us=0), 0.0, lambda _: 0, here=False)
    guard = WatchLoop(dog, say, beat_s=0.01, cluster=cluster)
    with guard.rounds():
        assert told.wait(LONG)
        assert slow.wait(LONG)
        for _ in range(1000):
            if any(one.startswith("resumed") for one in said):
                break
            threading.Event().wait(0.01)
    assert [one for one in said if one.startswith("resumed")] == ["resumed: workers look at the source again"]
    assert sum("no TaskManager is left" in one for one in said) == 1


def test_a_job_in_a_cluster_with_a_known_address_is_polled_there(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = noticed(Cause.NO_WORKER)
    asked: list[tuple[str, str]] = []

    def trouble(self: FlinkHealth) -> Trouble:
        asked.append((self.place, self.name))
        return Trouble(Cause.NO_WORKER, "no TaskManager is left")

    monkeypatch.setattr(watchdog, "CLUSTER_S", 0.01)
    monkeypatch.setattr(FlinkHealth, "trouble", trouble)
    begun = monitor._watch

    def in_cluster(result: Any, job: Any, *rest: Any) -> Any:
        return begun(result, replace(job, flink=FlinkJob("127.0.0.1:1", "mine")), *rest)

    monkeypatch.setattr(monitor, "_watch", in_cluster)
    _, said = follow(one, Pipeline(Standing(seen, "RUNNING", "RUNNING", "DONE")))
    assert "no TaskManager is left" in said
    assert set(asked) == {("127.0.0.1:1", "mine")}
