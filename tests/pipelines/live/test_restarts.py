"""A live job that its runner failed is begun again by itself, as often as the settings allow."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.connectors.job_io import Output
from quiltstream.pipelines.errors import AwayError, CommandError, ExitCode
from quiltstream.pipelines.live import command, monitor, restarts
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.monitor import LiveJob
from quiltstream.pipelines.live.restarts import (
    RunnerError,
    Waits,
    failure_of,
)
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store
from quiltstream.store.errors import (
    BudgetRefused,
    StoreAway,
    StoreDamaged,
    StoreError,
    StoreReplaced,
)
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import register

from ..jobs import Done, Job, readings
from ..live_jobs import WINDOWS, Pipeline, Result, TrueHistograms, files, made, published, run, true_counts

# What a failure means


@pytest.mark.parametrize(
    ("text", "symptom"),
    [
        ("panic in stage.Execute bundle processing goroutine: secret", "Prism's panic in stage.Execute"),
        (
            "panic in ElementManager.Bundles watermark evaluation goroutine: assignment to entry in nil map secret",
            "Prism's panic in ElementManager.Bundles",
        ),
        ("java.lang.OutOfMemoryError: secret", "the runner ran out of memory"),
        ("Heartbeat of TaskManager with id secret timed out.", "a TaskManager was lost"),
        ("io.grpc.StatusRuntimeException: UNAVAILABLE: io exception secret", "a connection of the runner was cut"),
        ("NoResourceAvailableException: secret", "no slot was free for the job"),
        ("KeyError: 'secret' [while running 'Read/Follow-ptransform-3']", "KeyError in the step 'Read/Follow'"),
        ("secret", "RuntimeError (the runner's own text may quote data and is not shown"),
    ],
)
def test_a_runners_failure_is_named_and_its_text_is_not_shown(text: str, symptom: str) -> None:
    failure = failure_of(RuntimeError(text))
    assert isinstance(failure, RunnerError)
    assert failure.symptom.startswith(symptom)
    assert "secret" not in str(failure)
    assert "what is on record stays: run it again to go on" in str(failure)


@pytest.mark.parametrize("error", [StoreAway("the server is away")])
@pytest.mark.parametrize("through", ["", "Error from worker: Traceback\n{}: {}\n\nTraceback"])
def test_an_unavailable_ledger_is_waited_for_and_not_a_job_failure(error: StoreError, through: str) -> None:
    kind = type(error)
    said = through.format(f"{kind.__module__}.{kind.__name__}", error)
    failure = failure_of(RuntimeError(said) if through else error)
    assert isinstance(failure, AwayError)
    assert (failure.code, str(failure), failure.part) == (ExitCode.AWAY, str(error), "ledger")


def test_an_unavailable_sink_broker_is_waited_for_and_a_refusal_is_a_failure() -> None:
    topic = Output("sink", "topic rows at broker:9092", files=False)
    step = " [while running 'Sink/Send-ptransform-7']"
    kinds = [
        ("quiltstream.transforms.kafka.client.KafkaAwayError", AwayError),
        ("quiltstream.transforms.kafka.client.KafkaUnavailableError", RunnerError),
        ("ValueError", RunnerError),
    ]
    for name, kind in kinds:
        failure = failure_of(RuntimeError(f"Traceback\n{name}: secret{step}"), (topic,))
        assert type(failure) is kind, name
        assert failure.code == ExitCode.SINK
        assert "secret" not in str(failure)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError(["x"]), ExitCode.SETTINGS),
        (StoreDamaged("x"), ExitCode.STORE),
        (StoreReplaced("x"), ExitCode.STORE),
        (BudgetRefused.of("q", 0.5, 0.75, 1.0), ExitCode.REFUSED),
        (ImportError("x"), ExitCode.FAILURE),
        (CommandError("x", ExitCode.SOURCE), ExitCode.SOURCE),
        (
            RuntimeError("Traceback\nquiltstream.store.errors.StoreDamaged: x\n\nTraceback\nKeyError: secret"),
            ExitCode.STORE,
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_permanent_failure_is_not_retried(error: Exception, code: ExitCode) -> None:
    failure = failure_of(error)
    assert not isinstance(failure, RunnerError)
    assert failure.code == code
    assert "secret" not in str(failure)


# A whole job


class Failing(Result):
    """A job whose runner says what it failed of."""

    def __init__(self, text: str, before: Callable[[], None] = lambda: None) -> None:
        super().__init__("FAILED", "FAILED")
        self.text = text
        self.before = before

    def wait_until_finish(self) -> None:
        self.before()
        raise RuntimeError(self.text)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """Runners that take the job's first attempts; the next one is a runner that ends when its schedule does."""
    given: list[Pipeline] = []
    built = build.live_job

    def pipeline(options: PipelineOptions) -> beam.Pipeline:
        return beam.Pipeline(runner=FnApiRunner(), options=options)

    def job_of(*words: Any, **named: Any) -> LiveJob:
        job = built(*words, **named)
        return replace(job, pipeline=given.pop(0)) if given else job

    monkeypatch.setattr(build, "live_pipeline", pipeline)
    monkeypatch.setattr(command, "live_job", job_of)
    monkeypatch.setattr(monitor, "_END_S", 0.1)
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(restarts, "_FIRST_WAIT_S", 0.001)
    return given


def kinds(done: Done) -> list[str]:
    return [json.loads(line)["kind"] for line in done.out.splitlines()]


PANIC = "panic in stage.Execute: secret"


@pytest.mark.night
def test_a_job_whose_runner_fails_some_times_publishes_everything_once(
    tmp_path: Path, attempts: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PrivateHistograms", TrueHistograms)
    one = made(tmp_path)
    attempts += [
        Pipeline(Failing(PANIC)),
        Pipeline(Result(OSError("secret"))),
        Pipeline(Failing("Traceback\nquiltstream.store.errors.StoreAway: the ledger is locked\n\nTraceback")),
        # its runner loses a part of it and says that all is well
        Pipeline(Result("DONE")),
    ]
    done = run(one, "--json").ended(0)
    assert done.err == ""
    said = [json.loads(line) for line in done.out.splitlines()]
    assert [line["text"].partition(";")[0] for line in said if line["kind"] == "restart"] == [
        "Prism's panic in stage.Execute",
        "the runner has gone away (OSError)",
        "the job ended as DONE, and the window that ends at 2024-03-02T00:00:00Z is not on record: its runner lost a "
        "part of it",
    ]
    assert "secret" not in done.out
    assert [one["kind"] for one in said].count("start") == 5
    waits = [line["text"] for line in said if line["kind"] == "waiting"]
    assert waits == [
        "the ledger is locked. The job waits until it is back, and is begun again then; this is no restart"
    ]
    assert said[-1]["restarts"] == 3
    assert (said[-1]["windows_published"], said[-1]["windows_on_record"]) == (5, 0)
    with Store(f"sqlite:///{one.ledger}", create=True) as store:
        assert [entry.decision for entry in store.entries("streets")] == ["charged"] * 5
    assert published(one) == true_counts(readings(6), days=5)


@pytest.mark.night
def test_a_job_that_its_runner_fails_too_often_ends_with_the_last_failure(
    tmp_path: Path, attempts: list[Pipeline]
) -> None:
    one = made(tmp_path, live={"poll": "10ms", "restarts": 2})
    attempts += [Pipeline(Failing(PANIC)) for _ in range(9)]
    done = run(one, "--json").ended(1)
    assert kinds(done).count("restart") == 2
    assert done.said("the job failed on its runner: Prism's panic in stage.Execute; what is on record stays")
    assert done.said("It was begun again 2 times within an hour, and live.restarts allows no more")
    assert len(attempts) == 6


def test_a_job_over_standard_input_is_not_restarted(tmp_path: Path, attempts: list[Pipeline]) -> None:
    attempts += [Pipeline(Failing(PANIC))]
    done = run(made(tmp_path, source={"stdin": "csv"}), "--json").ended(1)
    assert "restart" not in kinds(done)
    assert done.said("standard input cannot be read again: send what is missing, or write it to files")


@pytest.mark.night
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("Traceback\nquiltstream.store.errors.StoreDamaged: it is damaged\n\nTraceback", 4, "it is damaged"),
        ("Traceback\nquiltstream.schemas.settings.base.SettingsError: a problem\n\nTraceback", 2, "a problem"),
        ("JobCancellationException: Job was cancelled.", 1, "the job was cancelled from outside"),
    ],
)
def test_a_permanent_failure_ends_the_job_at_once(
    tmp_path: Path, attempts: list[Pipeline], text: str, code: int, said: str
) -> None:
    attempts += [Pipeline(Failing(text))]
    done = run(made(tmp_path), "--json").ended(code)
    assert "restart" not in kinds(done)
    assert done.said(said)


@pytest.mark.night
@pytest.mark.parametrize("how", ["vanished", "emptied"])
def test_a_restarted_job_without_its_ledger_stops_and_creates_none(
    tmp_path: Path, attempts: list[Pipeline], how: str
) -> None:
    """The runner fails the job, the ledger goes, and a consumer has collected the sink's files."""
    one = made(tmp_path)
    run(one).ended(0)

    def go() -> None:
        for path in [*tmp_path.glob("ledger.db*"), *(tmp_path / "releases").iterdir()]:
            path.unlink()
        if how == "emptied":
            one.ledger.touch()

    attempts += [Pipeline(Failing(PANIC, go))]
    run(one, "--json").ended(
        4, "The job stops for good before anything more is published", "The sink's newest release that is remembered: "
    )
    assert one.ledger.exists() == (how == "emptied")
    assert one.ledger.stat().st_size == 0 if how == "emptied" else True
    assert not list((tmp_path / "releases").iterdir())
    # a supervisor begins the command again
    for _ in range(2):
        assert run(one).code == 4
    assert not list((tmp_path / "releases").iterdir())
    assert run(one, "--history-lost").code == 0
    with Store(f"sqlite:///{one.ledger}") as store:
        assert store.summary("streets").history_lost


@pytest.mark.night
@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize(
    "damage",
    [
        "heads SET digest = x'00' WHERE domain != ''",
        "heads SET store_id = 'another' WHERE domain != ''",
        "log SET domain = 'another' WHERE key LIKE 'entry/%'",
    ],
)
def test_a_ledger_damaged_during_a_job_stops_it_permanently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Between two bundles another program changes a value of each row that the next one reads."""
    one, publish, before = made(tmp_path), Store.publish, dict[str, bytes]()

    def then_damage(store: Store, held: Any, drafts: Any) -> Any:
        records = publish(store, held, drafts)
        if not before:
            with closing(sqlite3.connect(one.ledger)) as connection, connection:
                before.update(kept(connection))
                connection.execute(f"UPDATE quiltstream_{damage}")
        return records

    def kept(connection: sqlite3.Connection) -> dict[str, bytes]:
        return dict(connection.execute("SELECT key, blob FROM quiltstream_log WHERE key LIKE 'block/%'"))

    monkeypatch.setattr(Store, "publish", then_damage)
    done = run(one, "--json")
    assert before
    done.ended(4)
    assert "restart" not in kinds(done)
    monkeypatch.setattr(Store, "publish", publish)
    sunk = files(one)
    assert run(one).code == 4
    assert files(one) == sunk
    with closing(sqlite3.connect(one.ledger)) as connection:
        assert kept(connection) == before


def test_a_job_cancelled_at_its_runner_exits_with_an_error(tmp_path: Path, attempts: list[Pipeline]) -> None:
    attempts += [Pipeline(Result("CANCELLED", "CANCELLED"))]
    run(made(tmp_path)).ended(1, "the job was cancelled from outside, at its runner")


def test_a_remote_job_done_without_all_windows_is_a_failure_and_not_restarted(
    tmp_path: Path, attempts: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts += [Pipeline(Result("DONE"))]
    built = vars(command)["live_job"]  # with the runners of the test
    monkeypatch.setattr(command, "live_job", lambda *given, **named: replace(built(*given, **named), here=False))
    done = run(made(tmp_path), "--json").ended(1)
    assert "restart" not in kinds(done)
    assert done.said("ended as DONE, and the window that ends at 2024-03-02T00:00:00Z is not on record: the job was")


@pytest.mark.night
@pytest.mark.parametrize("stop", [None, "2124-03-06"])
@pytest.mark.parametrize("kind", ["csv", "stdin"])
def test_only_the_end_of_a_source_excuses_a_job_that_is_done_before_its_schedule(
    tmp_path: Path, attempts: list[Pipeline], monkeypatch: pytest.MonkeyPatch, stop: str | None, kind: str
) -> None:
    """No window is due that is missing: files have no end, so only somebody or the runner has stopped the job."""
    attempts += [Pipeline(Result("DONE"))]
    built = vars(command)["live_job"]  # with the runners of the test
    monkeypatch.setattr(command, "live_job", lambda *given, **named: replace(built(*given, **named), here=False))
    windows = {k: v for k, v in (WINDOWS | {"start": "2124-03-01", "stop": stop}).items() if v is not None}
    at_the_end = kind == "stdin"
    changed: dict[str, Any] = {"windows": windows} | ({"source": {"stdin": "csv"}} if at_the_end else {})
    done = run(made(tmp_path, **changed), "--json").ended(0 if at_the_end else 1)
    assert "restart" not in kinds(done)
    missing = "ended as DONE, and the window that ends at 2124-03-02T00:00:00Z is not on record: the job was"
    assert (missing in done.err + done.out) == (not at_the_end)


def test_a_runner_that_never_accepts_the_job_is_reported_at_once(tmp_path: Path, attempts: list[Pipeline]) -> None:
    def refuse() -> None:
        raise OSError("secret")

    attempts += [Pipeline(Result(), refuse)]
    done = run(made(tmp_path), "--json").ended(1)
    assert done.out == ""
    assert done.said("OSError")
    assert "secret" not in done.err


def test_a_job_stopped_while_waiting_for_a_restart_exits_with_0(
    tmp_path: Path, attempts: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.2)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    attempts += [Pipeline(Failing(PANIC, lambda: signal.setitimer(signal.ITIMER_REAL, 0.1) and None))]
    done = run(made(tmp_path), "--json").ended(0)
    assert kinds(done)[-3:] == ["restart", "stop", "summary"]


@pytest.mark.night
def test_a_restart_reads_the_roster_again(tmp_path: Path, attempts: list[Pipeline]) -> None:
    one = made(tmp_path, group_by=None, roster={"file": "roster.csv"})

    def join(job: Job = one) -> None:
        path = job.folder / "roster.csv"
        path.write_text(path.read_text(encoding="utf-8") + "m9,north\n", encoding="utf-8")

    attempts += [Pipeline(Failing(PANIC, join))]
    done = run(one, "--json").ended(0)
    assert json.loads(done.out.splitlines()[-1])["rows"] == 5 * 7


@pytest.mark.night
def test_a_restart_takes_up_the_state_that_the_first_job_took_up(tmp_path: Path, attempts: list[Pipeline]) -> None:
    """Its first job changed the roster, and what the state before it had rejected is known from before that."""
    one = made(tmp_path, group_by=None, roster={"file": "roster.csv"})
    register(make_plan(read_settings(one.settings)))
    path = one.folder / "roster.csv"
    path.write_text(path.read_text(encoding="utf-8") + "m9,north\n", encoding="utf-8")
    attempts += [Pipeline(Failing(PANIC))]
    done = run(one, "--json", "--", "--savepoint_path=file:///x").ended(0)
    assert json.loads(done.out.splitlines()[-1])["rows"] == 5 * 6


# What is away is waited for


class Clock:
    """Seconds that pass only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.mark.night
def test_a_ledger_outage_ends_no_job_and_counts_as_no_restart(
    tmp_path: Path, attempts: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's workers fail of it first; each try to begin the job again does, until the ledger is back."""
    clock, tries, seconds = Clock(), list[float](), 120
    monkeypatch.setattr(command, "PrivateHistograms", TrueHistograms)
    monkeypatch.setattr(restarts, "_FIRST_WAIT_S", 1.0)
    monkeypatch.setattr(command, "Waits", lambda say: Waits(say, clock=lambda: clock.now, sleep=clock.sleep))
    built = vars(command)["live_job"]

    def job_of(*words: Any, **named: Any) -> LiveJob:
        tries.append(clock.now)
        if len(tries) > 1 and clock.now < seconds:
            raise StoreAway("the server is away")
        return built(*words, **named)

    monkeypatch.setattr(command, "live_job", job_of)
    one = made(tmp_path, live={"poll": "10ms", "restarts": 0})
    attempts += [Pipeline(Failing("Traceback\nquiltstream.store.errors.StoreAway: it is away\n\nTraceback"))]
    done = run(one, "--json").ended(0)
    said = [json.loads(line) for line in done.out.splitlines()]
    assert said[-1]["restarts"] == 0
    assert "restart" not in kinds(done)
    assert clock.now >= seconds
    assert len(tries) < 6 + seconds / 20
    assert published(one) == true_counts(readings(6), days=5)
