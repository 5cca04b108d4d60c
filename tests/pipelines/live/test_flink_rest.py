"""A live job's own job in a Flink cluster: found, cancelled and waited for, and nobody else's touched."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from quiltstream.pipelines.live.flink import FlinkJob, flink_job, flink_place
from quiltstream.pipelines.runners import options_of

from ...present import present
from .flink_api import FlinkApi
from .flink_jobs import FLINK, nowhere

# Which cluster, and which job


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([FLINK, "--flink_master=cluster.example:8081"], "cluster.example:8081"),
        ([FLINK, "--flink_master=http://10.0.0.7:8081/"], "10.0.0.7:8081"),
        (["--runner=PortableRunner", "--flink_master=[::1]:8081"], "[::1]:8081"),
        ([FLINK], None),
        ([FLINK, "--flink_master=[local]"], None),
        ([FLINK, "--flink_master=[auto]"], None),
        ([FLINK, "--flink_master=cluster"], None),
        ([FLINK, "--flink_master=cluster:70000"], None),
        ([FLINK, "--flink_master=https://cluster:8081"], None),
        ([FLINK, "--flink_master=http://user:word@cluster:8081"], None),
        (["--runner=DataflowRunner", "--flink_master=cluster:8081"], None),
        (["--flink_master=cluster:8081"], None),
    ],
    ids=lambda one: one[-1] if isinstance(one, list) else "",
)
def test_only_a_plain_address_of_a_flink_cluster_is_used(words: list[str], place: str | None) -> None:
    options = options_of([*words, "--job_name=load"])
    assert flink_place(options) == place
    job = flink_job(options)
    assert (None if job is None else job.place) == place
    assert (options.view_as(GoogleCloudOptions).job_name == "load") == (place is None)


def test_every_submission_has_a_unique_job_name_passed_to_beam() -> None:
    words = [FLINK, "--flink_master=cluster:8081"]
    names: list[str] = []
    for given, begin in ((words, "quiltstream-"), ([*words, "--job_name=load"], "load-")) * 2:
        options = options_of(given)
        job = present(flink_job(options))
        assert options.get_all_options()["job_name"] == job.name
        assert job.name.startswith(begin)
        names.append(job.name)
    assert len(set(names)) == len(names)


# One job is ended


def test_the_job_is_cancelled_and_waited_for_and_no_other_one_is_touched(api: FlinkApi) -> None:
    others = {api.add(name): "RUNNING" for name in ("load", "load-1-again", "Load-1", "")}
    job = api.add("load-1")
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.over, ended.cancelled) == (True, True)
    assert ended.text == f"its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    assert api.cancelled == [job]
    assert {other: api.jobs[other][1] for other in others} == others


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_a_finished_job_is_not_cancelled(api: FlinkApi, state: str) -> None:
    api.add("load-1", state)
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.over, ended.cancelled, api.cancelled) == (True, False, [])


# What may go wrong


def test_an_unreachable_cluster_is_reported_with_advice(api: FlinkApi) -> None:
    del api
    place = nowhere()
    ended = FlinkJob(place, "load-1").end()
    assert not ended.over
    assert f"its job 'load-1' may run on in the Flink cluster at {place}: " in ended.text
    assert "it could not be reached (ConnectionRefusedError); look there and cancel it" in ended.text


@pytest.mark.night
def test_a_refused_cancellation_is_retried_and_reported_by_its_status(api: FlinkApi) -> None:
    api.add("load-1")
    api.refusals = [503, 409]
    assert FlinkJob(api.place, "load-1").end().over
    api.add("load-2")
    api.refusals = [500] * 10_000
    ended = FlinkJob(api.place, "load-2").end()
    assert not ended.over
    assert "it answered PATCH with HTTP status 500" in ended.text
    assert "secret" not in ended.text


@pytest.mark.night
def test_waiting_for_a_cancelled_job_has_a_timeout(api: FlinkApi) -> None:
    api.add("load-1")
    api.looks = None
    ended = FlinkJob(api.place, "load-1").end()
    assert not ended.over
    assert "it was still CANCELLING; look there and cancel it" in ended.text
    assert len(api.cancelled) == 1
