"""Live jobs on a Flink cluster whose address is known: stopped, ended, lost, and left there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import command, follow
from quiltstream.pipelines.live.flink import flink_job
from quiltstream.pipelines.on_record import Follower, LiveProgress
from quiltstream.pipelines.runners import options_of
from quiltstream.store.errors import StoreDamaged

from ..jobs import Job
from ..live_jobs import Interrupted, Pipeline, Result, followed, publish_all, run, told
from .flink_api import FlinkApi
from .flink_jobs import FLINK, in_flink


def left_at(api: FlinkApi) -> str:
    """What is said of a job that is left."""
    return (
        f"its job 'load-1' is left in the Flink cluster at {api.place} (RUNNING), where nobody watches it any more; "
        "cancel it there before another one is begun"
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


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_job_in_its_cluster_unless_it_is_left_there(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, number: int, *, leave: bool
) -> None:
    monkeypatch.setattr(Interrupted, "number", number)
    job, result = api.add("load-1"), Interrupted("RUNNING")
    graph = in_flink(one, Pipeline(result), api.place, leave=leave)
    monkeypatch.setattr(command, "live_job", lambda *_, **__: graph)
    over = f"its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    code = 130 if number == signal.SIGINT else 143
    run(one).ended(code, "stopped; what is on record stays", left_at(api) if leave else over)
    # neither its job server nor its cluster is asked to end what is left
    assert (api.cancelled, result.cancelled) == (([], False) if leave else ([job], True))


@pytest.mark.night
@pytest.mark.parametrize("leave", [False, True])
def test_a_job_that_outlives_its_schedule_is_cancelled_in_its_cluster(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    monkeypatch.setattr(follow, "_END_S", 0.0)
    job = api.add("load-1")
    pipeline = Pipeline(Result("RUNNING"), lambda: publish_all(one))
    # there is nothing left to do, for a job that would be left either
    progress, said = followed(in_flink(one, pipeline, api.place, leave=leave))
    assert progress.first_missing is None
    assert api.cancelled == [job]
    assert said[-1].endswith("is over (CANCELED)")


@pytest.mark.parametrize("leave", [False, True])
def test_a_job_whose_workers_would_fail_for_ever_is_cancelled_and_its_code_is_the_commands(
    one: Job, api: FlinkApi, *, leave: bool
) -> None:
    job = api.add("load-1", "RESTARTING")
    api.failure = f"Traceback\n{told(StoreDamaged('it is damaged'))}\n\tat org.apache"
    with pytest.raises(CommandError, match="it is damaged") as caught:
        followed(in_flink(one, Pipeline(Result("RUNNING")), api.place, leave=leave))
    assert (caught.value.exit_code, api.cancelled) == (4, [job])


@pytest.mark.night
@pytest.mark.parametrize("leave", [False, True])
def test_a_detached_job_is_left_running_when_its_command_fails(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    def damaged(_self: Follower) -> LiveProgress:
        raise StoreDamaged("it is damaged")

    job = api.add("load-1")
    graph = in_flink(one, Pipeline(Result("RUNNING")), api.place, leave=leave)
    monkeypatch.setattr(Follower, "look", damaged)
    with pytest.raises(StoreDamaged):
        followed(graph)
    graph.follower.close()
    assert api.cancelled == ([] if leave else [job])


class Server(Result):
    """A job server that cannot be asked any more."""

    @property
    def state(self) -> str:
        raise ConnectionError


@pytest.mark.night
@pytest.mark.parametrize(("state", "code"), [("FINISHED", 1), ("CANCELED", 1), ("FAILED", 4), (None, 75)], ids=str)
def test_a_job_is_followed_in_its_cluster_after_its_job_server_ended(
    one: Job, api: FlinkApi, tmp_path: Path, state: str | None, code: int
) -> None:
    """A JobManager that is started again knows nothing of its jobs."""
    del tmp_path
    job = api.add("load-1")
    looks = api.overview

    def overview() -> bytes:
        if api.listed > 3:
            api.jobs.pop(job, None)
            if state is not None:
                api.jobs[job] = ("load-1", state)
        return looks()

    api.overview = overview  # type: ignore[method-assign]
    graph = in_flink(one, Pipeline(Server("RUNNING")), api.place)
    with pytest.raises(CommandError) as caught:
        followed(graph)
    graph.follower.close()
    assert api.listed > 3
    assert (caught.value.exit_code, api.cancelled) == (code, [])
