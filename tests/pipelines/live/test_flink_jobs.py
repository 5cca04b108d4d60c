"""Live jobs on a Flink cluster whose address is known: stopped, begun again and estimated with what runs there over."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import command, flink, monitor, restarts
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.flink import FlinkJob
from quiltstream.pipelines.live.monitor import LiveJob
from quiltstream.pipelines.live.restarts import RunnerError
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms

from ...present import present
from .. import estimate_jobs
from ..jobs import Job, call
from ..live_jobs import Interrupted, Pipeline, Result, graph_of, made, publish_all
from .flink_api import FlinkApi
from .flink_jobs import AT_ONCE, FLINK, begun_jobs, followed, in_flink, nowhere

ESTIMATE = {"from": {"csv": "others/*.csv"}, "every": "4d"}


def test_a_signal_cancels_the_job_in_its_cluster_too(one: Job, api: FlinkApi) -> None:
    job = api.add("load-1")
    state, said = followed(in_flink(one, Pipeline(Interrupted("RUNNING")), api.place))
    assert state == "CANCELLED"
    assert api.cancelled == [job]
    assert said[-1] == f"stop: its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    assert not any("may run on" in line for line in said)


def test_a_signal_ends_the_command_with_an_unavailable_cluster(one: Job, api: FlinkApi) -> None:
    del api
    state, said = followed(in_flink(one, Pipeline(Interrupted("RUNNING")), nowhere()))
    assert state == "CANCELLED"
    assert said[-1].startswith("warning: its job 'load-1' may run on in the Flink cluster at ")


def test_a_second_signal_does_not_wait_for_the_cluster_and_the_exit_code_stays(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flink, "_CANCEL_S", 600.0)
    settings = read_settings(one.settings)
    job = api.add("load-1")
    api.looks = None
    cancel, graph = api.cancel, build.live_job

    def again(found: str) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return cancel(found)

    def in_cluster(*given: Any, **named: Any) -> LiveJob:
        made = graph(*given, **named)
        return replace(made, pipeline=Pipeline(Interrupted("RUNNING")), here=False, flink=FlinkJob(api.place, "load-1"))

    monkeypatch.setattr(api, "cancel", again)
    monkeypatch.setattr(command, "live_job", in_cluster)
    begun = time.monotonic()
    assert command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE).code == 0
    assert time.monotonic() - begun < 300
    assert api.jobs[job][1] in ("RUNNING", "CANCELLING")


def test_without_a_cluster_address_the_option_for_it_is_reported(one: Job) -> None:
    graph = replace(graph_of(one), pipeline=Pipeline(Interrupted("RUNNING")), here=False)
    _, said = followed(graph)
    assert said[-1].startswith("warning: its runner was asked to end it, and the job may run on in its cluster")
    assert "with --flink_master=HOST:PORT, the address of the cluster's REST API (plain HTTP)," in said[-1]


@pytest.mark.parametrize("leave", [False, True])
def test_a_job_that_outlives_its_schedule_is_cancelled_in_its_cluster(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    monkeypatch.setattr(monitor, "_END_S", 0.0)
    job = api.add("load-1")
    pipeline = Pipeline(Result(*["RUNNING"] * 9), lambda: publish_all(one))
    # there is nothing left to do, for a job that would be left either
    state, said = followed(in_flink(one, pipeline, api.place, leave=leave))
    assert state == "DONE"
    assert api.cancelled == [job]
    assert said[-1].endswith("is over (CANCELED)")


def test_a_failed_job_that_may_still_run_is_not_restarted(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.0)
    settings = read_settings(one.settings)
    job = api.add("load-1")
    api.looks = None
    begun = begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")))
    with pytest.raises(CommandError, match="It is not begun again by itself: its job 'load-1' may run on") as caught:
        command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE)
    assert not isinstance(caught.value, RunnerError)
    assert caught.value.code == 1
    assert (len(begun), api.cancelled) == (1, [job])


@pytest.mark.usefixtures("ending")
def test_a_job_lost_by_its_cluster_is_resubmitted_and_not_counted_as_a_restart(
    tmp_path: Path, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A JobManager that is started again knows nothing of its jobs; a job that it never had has failed by itself."""
    monkeypatch.setattr(restarts, "_FIRST_WAIT_S", 0.0)
    settings = read_settings(made(tmp_path, live={"poll": "10ms", "restarts": 0}).settings)
    lost = FlinkJob.end

    def end(self: FlinkJob, *, appear_s: float = 0.0) -> Any:
        self.seen = len(begun) == 1
        return lost(self, appear_s=appear_s)

    monkeypatch.setattr(FlinkJob, "end", end)
    failing = (Result("RUNNING", RuntimeError("gone")), Result("RUNNING", RuntimeError("gone")))
    begun = begun_jobs(monkeypatch, api, *failing)
    with pytest.raises(CommandError, match=r"live\.restarts is 0"):
        command.run_to_end(settings, PrivateHistograms(settings), [], AT_ONCE)
    assert len(begun) == 2
    assert "was begun anew and has lost the job" in " ".join(capsys.readouterr().out.split())


# Estimates, each of which ends the running job


def estimating(folder: Path, monkeypatch: pytest.MonkeyPatch, api: FlinkApi) -> tuple[Job, list[str]]:
    """A job whose every submission is in a cluster under a name of its own, and stays there when its runner ends."""
    one = estimate_jobs.made(folder, ESTIMATE, privacy={"epsilon": 1.0, "budget": 9.0})
    submitted: list[str] = []

    def submission(*_: object) -> FlinkJob:
        states = [state for _, state in api.jobs.values()]
        assert all(state == "CANCELED" for state in states), states
        submitted.append(f"load-{len(submitted)}")
        api.add(submitted[-1])
        return FlinkJob(api.place, submitted[-1])

    monkeypatch.setattr(build, "flink_job", submission)
    return one, submitted


@pytest.mark.usefixtures("ending")
def test_the_job_before_an_estimate_is_over_in_its_cluster_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FlinkApi
) -> None:
    one, submitted = estimating(tmp_path, monkeypatch, api)
    call("run", "--live", one.settings).ended(0)
    assert submitted == ["load-0", "load-1"]
    assert api.cancelled == list(api.jobs)[:1]
    assert estimate_jobs.published(one) == [("daily", day) for day in range(8)]


@pytest.mark.usefixtures("ending")
def test_no_estimate_is_made_while_the_earlier_job_may_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FlinkApi
) -> None:
    one, submitted = estimating(tmp_path, monkeypatch, api)
    api.looks = None
    done = call("run", "--live", one.settings, "--json").ended(
        1,
        "the estimate that is due is not made, because the job before it has to be over first",
        "it was still CANCELLING; look there and cancel it. Then run the command again",
    )
    assert [json.loads(line)["kind"] for line in done.out.splitlines()][-1] == "summary"
    assert submitted == ["load-0"]
    with Store(f"sqlite:///{one.ledger}", create=False) as store:
        assert [(found.slot, found.outcome) for found in store.estimates("streets", "daily")] == [(0, "first")]
        assert present(store.registered("streets", "daily")).successor is None
    assert estimate_jobs.published(one) == [("daily", day) for day in range(4)]
    # somebody has cancelled it: the estimate is made first
    api.jobs = {job: (name, "CANCELED") for job, (name, _) in api.jobs.items()}
    api.looks, api.cancelled = 0, []
    call("run", "--live", one.settings).ended(0)
    assert estimate_jobs.published(one) == [("daily", day) for day in range(8)]


def test_no_job_with_estimates_may_be_left_running(tmp_path: Path) -> None:
    estimate = ESTIMATE | {"start": {"pi_min": 0.05, "gap": 0.3}}
    one = estimate_jobs.made(tmp_path, estimate, ledger="postgresql://nobody@localhost:1/none")
    call("run", "--live", one.settings, "--", FLINK, f"--flink_master={nowhere()}", "--flink_leave").ended(
        2, "and --flink_leave may leave one in the cluster that nobody ends"
    )


def test_estimates_in_a_stream_need_an_answering_cluster_before_any_record(tmp_path: Path) -> None:
    estimate = ESTIMATE | {"start": {"pi_min": 0.05, "gap": 0.3}}
    one = estimate_jobs.made(tmp_path, estimate, ledger="postgresql://nobody@localhost:1/none")
    place = nowhere()
    call("run", "--live", one.settings, "--", FLINK, f"--flink_master={place}").ended(
        1,
        f"model.estimate.every needs the REST API of the Flink cluster at {place}",
        "it could not be reached (ConnectionRefusedError); nothing was charged",
    )
