"""Live jobs that outlive their command in a Flink cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import command, flink, monitor, restarts
from quiltstream.pipelines.live.flink import flink_job
from quiltstream.pipelines.live.monitor import Follower, LiveProgress
from quiltstream.pipelines.live.restarts import Restarts, RunnerError
from quiltstream.pipelines.runners import options_of
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import StoreDamaged
from quiltstream.transforms import PrivateHistograms

from ...present import present
from ..jobs import Job
from ..live_jobs import Interrupted, Pipeline, Result, made
from .flink_api import FlinkApi
from .flink_jobs import AT_ONCE, FLINK, begun_jobs, followed, in_flink, nowhere


def left_at(api: FlinkApi) -> str:
    """What is said of it."""
    return (
        f"stop: its job 'load-1' is left in the Flink cluster at {api.place} (RUNNING), where nobody watches it any "
        "more; cancel it there before another one is begun"
    )


@pytest.mark.parametrize("words", [[FLINK], ["--runner=PrismRunner", "--flink_master=cluster:8081"], []])
def test_only_a_job_with_a_known_cluster_address_may_be_left_running(words: list[str]) -> None:
    options = options_of([*words, "--flink_leave", "--job_name=load"])
    with pytest.raises(CommandError, match="--flink_leave leaves the job in a Flink cluster and watches it there: add"):
        flink_job(options)
    assert options.view_as(GoogleCloudOptions).job_name == "load"


def test_a_job_with_workers_in_its_command_is_not_left_running() -> None:
    words = [FLINK, "--flink_master=cluster:8081", "--flink_leave", "--job_name=load"]
    options = options_of([*words, "--environment_type=LOOPBACK"])
    with pytest.raises(CommandError, match="workers would end with the command; take --environment_type=EXTERNAL"):
        flink_job(options)
    assert options.view_as(GoogleCloudOptions).job_name == "load"


def test_the_option_to_leave_a_job_is_parsed_with_the_beam_options() -> None:
    words = [FLINK, "--flink_master=cluster:8081"]
    for given, leave in ((words, False), ([*words, "--flink_leave"], True)):
        assert present(flink_job(options_of(given))).leave is leave


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_detached_job_running_and_prints_its_address(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(Interrupted, "number", number)
    job, result = api.add("load-1"), Interrupted("RUNNING")
    state, said = followed(in_flink(one, Pipeline(result), api.place, leave=True))
    assert state == "CANCELLED"
    # neither its job server nor its cluster is asked to end it
    assert (api.cancelled, result.cancelled, api.jobs[job][1]) == ([], False, "RUNNING")
    assert said[-2:] == ["stop: stopped; what is on record stays", left_at(api)]


class Handing:
    """A job server that does not answer while a job is handed to it; somebody stops the command."""

    runner = None

    def run(self) -> Result:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
        raise AssertionError


def test_a_signal_during_submission_leaves_only_a_job_that_appears(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "APPEAR_S", 0.2)
    api.add("load")
    _, said = followed(in_flink(one, Handing(), api.place, leave=True))  # type: ignore[arg-type]
    assert said[-1] == "stop: stopped; what is on record stays"
    assert api.listed > 2
    overview = api.overview

    def later() -> bytes:
        if api.listed == 3:
            api.add("load-1")
        return overview()

    monkeypatch.setattr(monitor, "APPEAR_S", 30.0)
    monkeypatch.setattr(api, "overview", later)
    api.listed = 0
    _, said = followed(in_flink(one, Handing(), api.place, leave=True))  # type: ignore[arg-type]
    assert said[-1] == left_at(api)
    assert api.cancelled == []


def test_a_job_left_at_an_unanswering_cluster_is_reported_as_maybe_running(one: Job) -> None:
    place = nowhere()
    _, said = followed(in_flink(one, Pipeline(Interrupted("RUNNING")), place, leave=True))
    assert said[-1] == (
        f"stop: its job 'load-1' may be left in the Flink cluster at {place}: it could not be reached "
        "(ConnectionRefusedError); look there"
    )


class Server(Result):
    """A job server that cannot be asked any more."""

    @property
    def state(self) -> str:
        raise ConnectionError


@pytest.mark.parametrize("leave", [False, True])
def test_a_detached_job_is_left_running_when_its_command_fails(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    def damaged(_self: Follower, _state: str) -> LiveProgress:
        raise StoreDamaged("it is damaged")

    job = api.add("load-1")
    graph = in_flink(one, Pipeline(Result("RUNNING")), api.place, leave=leave)
    monkeypatch.setattr(Follower, "look", damaged)
    with pytest.raises(StoreDamaged):
        followed(graph)
    graph.follower.close()
    assert api.cancelled == ([] if leave else [job])


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_a_job_is_followed_in_its_cluster_after_its_job_server_ended(one: Job, api: FlinkApi, state: str) -> None:
    job = api.add("load-1")
    looks = api.overview

    def overview() -> bytes:
        if api.listed > 3:
            api.jobs[job] = ("load-1", state)
        return looks()

    api.overview = overview  # type: ignore[method-assign]
    graph = in_flink(one, Pipeline(Server()), api.place)
    if state == "FINISHED":
        assert followed(graph)[0] == "DONE"
    else:
        with pytest.raises(CommandError):
            followed(graph)
    graph.follower.close()
    assert api.listed > 3
    assert api.cancelled == []


def test_a_cluster_unavailable_with_its_job_server_is_reported_once_and_polled(one: Job, api: FlinkApi) -> None:
    job = api.add("load-1")
    looks = api.overview

    def overview() -> bytes:
        api.status = 503 if api.listed < 20 else 200
        api.jobs[job] = ("load-1", "RUNNING" if api.listed < 25 else "FINISHED")
        return looks()

    api.overview = overview  # type: ignore[method-assign]
    graph = in_flink(one, Pipeline(Server()), api.place)
    state, said = followed(graph)
    assert state == "DONE"
    assert sum("does not answer" in line for line in said) == 1
    assert "resumed: the runner answers again" in said


def test_a_job_lost_with_cluster_and_job_server_is_reported_as_lost(one: Job, api: FlinkApi) -> None:
    graph = in_flink(one, Pipeline(Server()), api.place)
    with pytest.raises(CommandError, match="has gone away"):
        followed(graph)
    graph.follower.close()


class Gone(Result):
    """A job that its runner fails; in its cluster it is in a state then, and soon in another."""

    def __init__(self, api: FlinkApi, then: str, soon: str | None = None) -> None:
        super().__init__("RUNNING", RuntimeError("gone"))
        self._api, self._then, self._soon = api, then, soon

    @property
    def state(self) -> str:
        if len(self.states) == 1:
            self._become(self._then)
            if self._soon is not None:
                threading.Timer(0.1, self._become, [self._soon]).start()
        return super().state

    def _become(self, state: str) -> None:
        self._api.jobs = {job: (name, state) for job, (name, _) in self._api.jobs.items()}


@pytest.mark.parametrize("states", [("FAILED",), ("FAILING", "FAILED"), ("CANCELLING", "CANCELED")])
def test_a_detached_job_is_restarted_after_it_ended(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...]
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.0)
    settings = read_settings(one.settings)
    api.add("load-1")
    begun = begun_jobs(monkeypatch, api, Gone(api, *states), Interrupted("RUNNING"), leave=True)
    monkeypatch.setattr(flink, "_CANCEL_S", 30.0)
    monkeypatch.setattr(command, "APPEAR_S", 0.0)
    monkeypatch.setattr(monitor, "APPEAR_S", 0.0)
    assert command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE) == 0
    assert (len(begun), api.cancelled) == (2, [])


def test_a_detached_running_job_is_neither_cancelled_nor_resubmitted(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.0)
    settings = read_settings(one.settings)
    job = api.add("load-1")
    begun = begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")), leave=True)
    with pytest.raises(CommandError, match="It is not begun again by itself: its job 'load-1' is left in") as caught:
        command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE)
    assert not isinstance(caught.value, RunnerError)
    assert (len(begun), api.cancelled, api.jobs[job][1]) == (1, [], "RUNNING")


@pytest.mark.usefixtures("ending")
def test_a_detached_job_without_restarts_is_left_and_its_address_printed(
    tmp_path: Path, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_settings(made(tmp_path, live={"poll": "10ms", "restarts": 0}).settings)
    api.add("load-1")
    begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")), leave=True)
    with pytest.raises(CommandError, match=r"live\.restarts is 0"):
        command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE)
    assert api.cancelled == []
    assert "is left in the Flink cluster" in " ".join(capsys.readouterr().out.split())


def test_a_stop_between_two_jobs_reports_the_job_left_running(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_settings(one.settings)
    api.add("load-1")
    begun = begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")), leave=True)

    def stopped(_restarts: Restarts, _failed: RunnerError) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(Restarts, "pause", stopped)
    assert command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE) == 0
    assert (len(begun), api.cancelled) == (1, [])
    assert "is left in the Flink cluster" in " ".join(capsys.readouterr().out.split())
