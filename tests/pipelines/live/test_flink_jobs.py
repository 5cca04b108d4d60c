"""Live jobs on a Flink cluster whose address is known: stopped and begun again with what runs there over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import command, monitor, restarts
from quiltstream.pipelines.live.flink import FlinkJob
from quiltstream.pipelines.live.restarts import RunnerError
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms import PrivateHistograms

from ..jobs import Job
from ..live_jobs import Interrupted, Pipeline, Result, made, publish_all
from .flink_api import FlinkApi
from .flink_jobs import AT_ONCE, begun_jobs, followed, in_flink


def test_a_signal_cancels_the_job_in_its_cluster_too(one: Job, api: FlinkApi) -> None:
    job = api.add("load-1")
    state, said = followed(in_flink(one, Pipeline(Interrupted("RUNNING")), api.place))
    assert state == "CANCELLED"
    assert api.cancelled == [job]
    assert said[-1] == f"stop: its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    assert not any("may run on" in line for line in said)


@pytest.mark.night
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


@pytest.mark.night
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
