"""Live jobs that outlive their command in a Flink cluster."""

from __future__ import annotations

import signal

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import command, restarts
from quiltstream.pipelines.live.flink import flink_job
from quiltstream.pipelines.live.monitor import Follower, LiveProgress
from quiltstream.pipelines.live.restarts import RunnerError
from quiltstream.pipelines.runners import options_of
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import StoreDamaged
from quiltstream.transforms import PrivateHistograms

from ..jobs import Job
from ..live_jobs import Interrupted, Pipeline, Result
from .flink_api import FlinkApi
from .flink_jobs import AT_ONCE, FLINK, begun_jobs, followed, in_flink


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


@pytest.mark.night
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


class Server(Result):
    """A job server that cannot be asked any more."""

    @property
    def state(self) -> str:
        raise ConnectionError


@pytest.mark.night
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


@pytest.mark.night
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
