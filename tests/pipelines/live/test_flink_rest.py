"""A live job's own job in a Flink cluster: found, cancelled and waited for, and nobody else's touched."""

from __future__ import annotations

import time

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from quiltstream.pipelines.live import flink as flink_rest
from quiltstream.pipelines.live.flink import FlinkJob, RestError, flink_job, flink_place
from quiltstream.pipelines.runners import options_of

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


def test_every_submission_has_a_name_of_its_own_which_beam_hands_on() -> None:
    words = [FLINK, "--flink_master=cluster:8081"]
    names: list[str] = []
    for given, begin in ((words, "quiltstream-"), ([*words, "--job_name=load"], "load-")) * 2:
        options = options_of(given)
        job = flink_job(options)
        assert job is not None
        assert options.get_all_options()["job_name"] == job.name
        assert job.name.startswith(begin)
        names.append(job.name)
    assert len(set(names)) == len(names)


# One job is ended


@pytest.mark.assures(
    "runners",
    "On Flink with its REST address: a command leaves nothing in the cluster and touches no job of others; where "
    "that cannot be, it says so, keeps its exit code and does not wait for ever",
)
def test_the_job_is_cancelled_and_waited_for_and_no_other_one_is_touched(api: FlinkApi) -> None:
    others = {api.add(name): "RUNNING" for name in ("load", "load-1-again", "Load-1", "")}
    job = api.add("load-1")
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.cancelled) == ("over", True)
    assert ended.text == f"its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    assert api.cancelled == [job]
    assert {other: api.jobs[other][1] for other in others} == others


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_a_job_that_is_over_is_left_alone(api: FlinkApi, state: str) -> None:
    api.add("load-1", state)
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.cancelled, api.cancelled) == ("over", False, [])


def test_a_job_that_turns_up_after_a_while_is_cancelled_yet(api: FlinkApi, monkeypatch: pytest.MonkeyPatch) -> None:
    flink = FlinkJob(api.place, "load-1")
    ended = flink.end()
    assert (ended.end, ended.cancelled) == ("absent", False)
    assert "has no job 'load-1'" in ended.text
    assert api.listed == 1
    overview = api.overview

    def later() -> bytes:
        if api.listed == 5:
            api.add("load-1")
        return overview()

    monkeypatch.setattr(api, "overview", later)
    ended = flink.end(appear_s=30.0)
    assert (ended.end, ended.cancelled) == ("over", True)
    assert flink.ended == ended


def test_a_job_that_the_cluster_has_forgotten_after_it_was_cancelled_is_over(
    api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add("load-1")
    overview = api.overview

    def forgets() -> bytes:
        if api.cancelled:
            api.jobs.clear()
            api.looks = None
        return overview()

    monkeypatch.setattr(api, "overview", forgets)
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.cancelled) == ("over", True)


def test_several_jobs_of_one_name_are_not_touched(api: FlinkApi) -> None:
    for _ in range(2):
        api.add("load-1")
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, api.cancelled) == ("unknown", [])
    assert "several jobs of this name, and none of them was touched" in ended.text


# What may go wrong


def test_a_cluster_that_does_not_answer_is_told_with_what_to_do(api: FlinkApi) -> None:
    del api
    place = nowhere()
    ended = FlinkJob(place, "load-1").end()
    assert ended.end == "unknown"
    assert f"its job 'load-1' may run on in the Flink cluster at {place}: " in ended.text
    assert "it could not be reached (ConnectionRefusedError); look there and cancel it" in ended.text


def test_a_refusal_is_tried_again_and_told_by_its_status_alone(api: FlinkApi) -> None:
    api.add("load-1")
    api.refusals = [503, 409]
    assert FlinkJob(api.place, "load-1").end().end == "over"
    api.add("load-2")
    api.refusals = [500] * 10_000
    ended = FlinkJob(api.place, "load-2").end()
    assert ended.end == "unknown"
    assert "it answered PATCH with HTTP status 500" in ended.text
    assert "secret" not in ended.text


@pytest.mark.assures(
    "runners",
    "On Flink with its REST address: a command leaves nothing in the cluster and touches no job of others; where "
    "that cannot be, it says so, keeps its exit code and does not wait for ever",
)
def test_a_job_that_does_not_end_is_not_waited_for_for_ever(api: FlinkApi) -> None:
    api.add("load-1")
    api.looks = None
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.cancelled) == ("unknown", True)
    assert "it was still CANCELLING; look there and cancel it" in ended.text
    assert len(api.cancelled) == 1


@pytest.mark.assures(
    "runners",
    "On Flink with its REST address: a command leaves nothing in the cluster and touches no job of others; where "
    "that cannot be, it says so, keeps its exit code and does not wait for ever",
)
def test_a_cluster_that_never_answers_is_not_waited_for_for_ever(
    api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flink_rest, "_ANSWER_S", 0.2)
    api.silent_s = 3.0
    begun = time.monotonic()
    ended = FlinkJob(api.place, "load-1").end()
    assert time.monotonic() - begun < api.silent_s
    assert ended.end == "unknown"
    assert "it did not answer within 0.2 s" in ended.text


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (200, b"secret", "something else than JSON"),
        (200, b"[1]", "something else than a list of jobs"),
        (200, b'{"jobs": [{"jid": "../x", "state": "RUNNING", "name": "load-1"}]}', "something else than a job's id"),
        (404, b"", "HTTP status 404"),
    ],
)
def test_what_is_not_flink_is_told_without_what_it_said(api: FlinkApi, status: int, body: bytes, text: str) -> None:
    api.status, api.body = status, body
    with pytest.raises(RestError, match=text) as caught:
        FlinkJob(api.place, "load-1").check()
    assert "secret" not in str(caught.value)
    assert FlinkJob(api.place, "load-1").end().end == "unknown"
    assert api.cancelled == []
