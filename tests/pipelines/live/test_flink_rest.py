"""A live job's own job in a Flink cluster: found, cancelled and waited for, and nobody else's touched."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from quiltstream.pipelines.engine import options_of
from quiltstream.pipelines.failures import CommandError
from quiltstream.pipelines.live import build, command, course, flink_rest, restarts
from quiltstream.pipelines.live.course import LiveJob
from quiltstream.pipelines.live.flink_rest import FlinkJob, RestError, flink_job, flink_place
from quiltstream.pipelines.live.restarts import RunnerError
from quiltstream.schemas.settings import read_settings
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms

from ..estimates import estimate_jobs
from ..jobs import Job, call
from ..live_jobs import Interrupted, Pipeline, Result, drafts, graph_of, made
from .flink_api import FlinkApi, flink_api

FLINK = "--runner=FlinkRunner"
ESTIMATE = {"from": {"csv": "others/*.csv"}, "every": "4d"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlinkApi]:
    """A cluster's REST API; nobody waits long for it."""
    monkeypatch.setattr(flink_rest, "_PAUSE_S", 0.01)
    monkeypatch.setattr(flink_rest, "_CANCEL_S", 0.5)
    monkeypatch.setattr(flink_rest, "_AWAY_S", 0.3)
    with flink_api() as found:
        yield found


def nowhere() -> str:
    """An address at which nobody listens any more."""
    with flink_api() as found:
        return found.place


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


def test_the_job_is_cancelled_and_waited_for_and_no_other_one_is_touched(api: FlinkApi) -> None:
    others = {api.add(name): "RUNNING" for name in ("load", "load-1-again", "Load-1", "")}
    job = api.add("load-1")
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.asked) == ("over", True)
    assert ended.text == f"its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    assert api.cancelled == [job]
    assert {other: api.jobs[other][1] for other in others} == others


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_a_job_that_is_over_is_left_alone(api: FlinkApi, state: str) -> None:
    api.add("load-1", state)
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.asked, api.cancelled) == ("over", False, [])


def test_a_job_that_turns_up_after_a_while_is_cancelled_yet(api: FlinkApi, monkeypatch: pytest.MonkeyPatch) -> None:
    flink = FlinkJob(api.place, "load-1")
    ended = flink.end()
    assert (ended.end, ended.asked) == ("absent", False)
    assert "has no job 'load-1'" in ended.text
    assert api.listed == 1
    overview = api.overview

    def later() -> bytes:
        if api.listed == 5:
            api.add("load-1")
        return overview()

    monkeypatch.setattr(api, "overview", later)
    ended = flink.end(appear_s=30.0)
    assert (ended.end, ended.asked) == ("over", True)
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
    assert (ended.end, ended.asked) == ("over", True)


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


def test_a_job_that_does_not_end_is_not_waited_for_for_ever(api: FlinkApi) -> None:
    api.add("load-1")
    api.looks = None
    ended = FlinkJob(api.place, "load-1").end()
    assert (ended.end, ended.asked) == ("unknown", True)
    assert "it was still CANCELLING; look there and cancel it" in ended.text
    assert len(api.cancelled) == 1


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


# A live job whose cluster is known


@pytest.fixture
def one(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    request.getfixturevalue("ending")
    return made(tmp_path)


def in_flink(one: Job, pipeline: Pipeline, place: str, *, leave: bool = False) -> LiveJob:
    """A job of a cluster whose readers are elsewhere."""
    return replace(graph_of(one), pipeline=pipeline, here=False, flink=FlinkJob(place, "load-1", leave=leave))


def followed(graph: LiveJob) -> tuple[str, list[str]]:
    """The state at the end, and what was said."""
    said: list[str] = []
    standing, _ = course.follow(graph, lambda kind, text: said.append(f"{kind}: {text}"), look_s=0.0)
    graph.follower.close()
    return standing.state, said


def test_a_signal_cancels_the_job_in_its_cluster_too(one: Job, api: FlinkApi) -> None:
    job = api.add("load-1")
    state, said = followed(in_flink(one, Pipeline(Interrupted("RUNNING")), api.place))
    assert state == "CANCELLED"
    assert api.cancelled == [job]
    assert said[-1] == f"stop: its job {job} in the Flink cluster at {api.place} is over (CANCELED)"
    assert not any("may run on" in line for line in said)


def test_a_signal_ends_the_command_also_where_the_cluster_is_away(one: Job, api: FlinkApi) -> None:
    del api
    state, said = followed(in_flink(one, Pipeline(Interrupted("RUNNING")), nowhere()))
    assert state == "CANCELLED"
    assert said[-1].startswith("warning: its job 'load-1' may run on in the Flink cluster at ")


def test_a_second_signal_does_not_wait_for_the_cluster_and_the_exit_code_stays(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flink_rest, "_CANCEL_S", 600.0)
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
    assert command.publish_live(settings, PrivateHistograms(settings), [], look_s=0.0) == 0
    assert time.monotonic() - begun < 300
    assert api.jobs[job][1] in ("RUNNING", "CANCELLING")


def test_where_no_address_is_known_the_option_that_would_give_it_is_told(one: Job) -> None:
    graph = replace(graph_of(one), pipeline=Pipeline(Interrupted("RUNNING")), here=False)
    _, said = followed(graph)
    assert said[-1].startswith("warning: its runner was asked to end it, and the job may run on in its cluster")
    assert "with --flink_master=HOST:PORT, the address of the cluster's REST API (plain HTTP)," in said[-1]


@pytest.mark.parametrize("leave", [False, True])
def test_a_job_that_runs_on_when_its_schedule_is_on_record_is_cancelled_in_its_cluster(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    monkeypatch.setattr(course, "_END_S", 0.0)
    job = api.add("load-1")
    histograms = PrivateHistograms(read_settings(one.settings))

    def publish() -> None:
        graph = graph_of(one)
        graph.follower.store.publish(graph.follower.registration, drafts(histograms, graph.follower.registration))
        graph.follower.close()

    # there is nothing left to do, for a job that would be left either
    state, said = followed(in_flink(one, Pipeline(Result(*["RUNNING"] * 9), publish), api.place, leave=leave))
    assert state == "DONE"
    assert api.cancelled == [job]
    assert said[-1].endswith("is over (CANCELED)")


def begun_jobs(monkeypatch: pytest.MonkeyPatch, api: FlinkApi, *results: Result, leave: bool = False) -> list[LiveJob]:
    """The jobs that a command begins from now on, each with a runner of its own that does as it is told."""
    begun: list[LiveJob] = []
    live_job, left = build.live_job, list(results)

    def graph(*given: Any, **named: Any) -> LiveJob:
        flink = FlinkJob(api.place, f"load-{len(begun) + 1}", leave=leave)
        made = replace(live_job(*given, **named), pipeline=Pipeline(left.pop(0)), flink=flink)
        begun.append(made)
        return made

    monkeypatch.setattr(command, "live_job", graph)
    return begun


@pytest.mark.parametrize("leave", [False, True])
def test_a_job_that_failed_is_not_begun_again_where_it_may_run_on(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.0)
    settings = read_settings(one.settings)
    job = api.add("load-1")
    api.looks = None
    begun = begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")), leave=leave)
    with pytest.raises(CommandError, match="It is not begun again by itself: its job 'load-1' may run on") as caught:
        command.publish_live(settings, PrivateHistograms(settings), [], look_s=0.0)
    assert not isinstance(caught.value, RunnerError)
    assert caught.value.code == 1
    assert (len(begun), api.cancelled) == (1, [job])


# A job that is to be left


@pytest.mark.parametrize("words", [[FLINK], ["--runner=PrismRunner", "--flink_master=cluster:8081"], []])
def test_a_job_is_left_only_where_it_can_be_watched(words: list[str]) -> None:
    options = options_of([*words, "--flink_leave", "--job_name=load"])
    with pytest.raises(CommandError, match="--flink_leave leaves the job in a Flink cluster and watches it there: add"):
        flink_job(options)
    assert options.view_as(GoogleCloudOptions).job_name == "load"


def test_the_option_to_leave_a_job_is_read_with_beams() -> None:
    words = [FLINK, "--flink_master=cluster:8081"]
    for given, leave in ((words, False), ([*words, "--flink_leave"], True)):
        job = flink_job(options_of(given))
        assert job is not None
        assert job.leave is leave


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_job_that_is_to_be_left_and_says_where(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(Interrupted, "number", number)
    job, result = api.add("load-1"), Interrupted("RUNNING")
    state, said = followed(in_flink(one, Pipeline(result), api.place, leave=True))
    assert state == "CANCELLED"
    # neither its job server nor its cluster is asked to end it
    assert (api.cancelled, result.cancelled, api.jobs[job][1]) == ([], False, "RUNNING")
    assert said[-2:] == [
        "stop: stopped; what is on record stays",
        f"stop: its job 'load-1' is left in the Flink cluster at {api.place}, where it goes on without a watch; cancel "
        "it there before another one is begun",
    ]


class Server(Result):
    """A job server that cannot be asked any more."""

    @property
    def state(self) -> str:
        raise ConnectionError


@pytest.mark.parametrize("leave", [False, True])
def test_a_job_whose_command_fails_is_left_if_it_is_to_be_left(one: Job, api: FlinkApi, *, leave: bool) -> None:
    job, result = api.add("load-1"), Server()
    graph = in_flink(one, Pipeline(result), api.place, leave=leave)
    with pytest.raises(CommandError, match="has gone away"):
        followed(graph)
    graph.follower.close()
    assert api.cancelled == ([] if leave else [job])


def test_what_was_left_is_over_before_it_is_begun_again(
    one: Job, api: FlinkApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.0)
    settings = read_settings(one.settings)
    first = api.add("load-1")
    second = api.add("load-2")
    # the first failed by something that may go by, and runs on; the second is stopped
    begun = begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")), Interrupted("RUNNING"), leave=True)
    assert command.publish_live(settings, PrivateHistograms(settings), [], look_s=0.0) == 0
    assert (len(begun), api.cancelled) == (2, [first])
    assert api.jobs[second][1] == "RUNNING"


@pytest.mark.usefixtures("ending")
def test_what_is_not_begun_again_is_left(tmp_path: Path, api: FlinkApi, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(made(tmp_path, live={"poll": "10ms", "restarts": 0}).settings)
    api.add("load-1")
    begun_jobs(monkeypatch, api, Result("RUNNING", RuntimeError("gone")), leave=True)
    with pytest.raises(CommandError, match=r"live\.restarts is 0"):
        command.publish_live(settings, PrivateHistograms(settings), [], look_s=0.0)
    assert api.cancelled == []


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
def test_the_job_before_an_estimate_is_over_in_its_cluster_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FlinkApi
) -> None:
    one, submitted = estimating(tmp_path, monkeypatch, api)
    done = call("run", "--live", one.settings)
    assert done.code == 0, done.err
    assert submitted == ["load-0", "load-1"]
    assert api.cancelled == list(api.jobs)[:1]
    assert estimate_jobs.published(one) == [("daily", day) for day in range(8)]


@pytest.mark.usefixtures("ending")
def test_no_estimate_is_made_while_the_job_before_it_may_run_on_in_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FlinkApi
) -> None:
    one, submitted = estimating(tmp_path, monkeypatch, api)
    api.looks = None
    done = call("run", "--live", one.settings, "--json")
    assert done.code == 1
    assert done.said("the estimate that is due is not made, because the job before it has to be over first"), done.err
    assert done.said("it was still CANCELLING; look there and cancel it. Then run the command again"), done.err
    assert [json.loads(line)["kind"] for line in done.out.splitlines()][-1] == "summary"
    assert submitted == ["load-0"]
    with Store(f"sqlite:///{one.ledger}", create=False) as store:
        assert [(found.slot, found.outcome) for found in store.estimates("streets", "daily")] == [(0, "first")]
        held = store.registered("streets", "daily")
        assert held is not None
        assert held.successor is None
    assert estimate_jobs.published(one) == [("daily", day) for day in range(4)]
    # somebody has cancelled it: the estimate is made first
    api.jobs = {job: (name, "CANCELED") for job, (name, _) in api.jobs.items()}
    api.looks, api.cancelled = 0, []
    done = call("run", "--live", one.settings)
    assert done.code == 0, done.err
    assert estimate_jobs.published(one) == [("daily", day) for day in range(8)]


def test_no_job_that_makes_estimates_is_left(tmp_path: Path) -> None:
    estimate = ESTIMATE | {"start": {"pi_min": 0.05, "gap": 0.3}}
    one = estimate_jobs.made(tmp_path, estimate, ledger="postgresql://nobody@localhost:1/none")
    done = call("run", "--live", one.settings, "--", FLINK, f"--flink_master={nowhere()}", "--flink_leave")
    assert done.code == 2
    assert done.said("and --flink_leave may leave one in the cluster that nobody ends"), done.err


def test_estimates_in_a_stream_need_a_cluster_that_answers_before_anything_is_on_record(tmp_path: Path) -> None:
    estimate = ESTIMATE | {"start": {"pi_min": 0.05, "gap": 0.3}}
    one = estimate_jobs.made(tmp_path, estimate, ledger="postgresql://nobody@localhost:1/none")
    place = nowhere()
    done = call("run", "--live", one.settings, "--", FLINK, f"--flink_master={place}")
    assert done.code == 1
    assert done.said(f"model.estimate.every needs the REST API of the Flink cluster at {place}"), done.err
    assert done.said("it could not be reached (ConnectionRefusedError); nothing was charged"), done.err
