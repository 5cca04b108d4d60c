"""A live job that fails ends with a code; a supervisor begins it again or does not, and nothing is lost or doubled."""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.connectors.job_io import Output
from quiltstream.pipelines.errors import CommandError, ExitCode
from quiltstream.pipelines.live import command
from quiltstream.pipelines.live.failures import failure_of
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.store import Store
from quiltstream.store.errors import BudgetRefused, StoreAway, StoreDamaged, StoreReplaced
from quiltstream.transforms.kafka.client import KafkaAwayError, KafkaUnavailableError

from ..jobs import Done, Job, readings
from ..live_jobs import WINDOWS, Pipeline, Result, TrueHistograms, files, made, published, run, told, true_counts

AGAIN = "what is on record stays: run it again to go on"


@pytest.mark.parametrize(
    ("text", "symptom", "code"),
    [
        ("panic in stage.Execute bundle processing goroutine: secret", "Prism's panic in stage.Execute", 75),
        ("panic in ElementManager.Bundles: nil map secret", "Prism's panic in ElementManager.Bundles", 75),
        ("java.lang.OutOfMemoryError: secret", "the runner ran out of memory", 75),
        ("Heartbeat of TaskManager with id secret timed out.", "a TaskManager was lost", 75),
        ("io.grpc.StatusRuntimeException: UNAVAILABLE: io exception secret", "a connection of the runner was cut", 75),
        ("NoResourceAvailableException: secret", "no slot was free for the job", 75),
        ("KeyError: 'secret' [while running 'Read/Follow-ptransform-3']", "KeyError in the step 'Read/Follow'", 1),
        ("secret", "RuntimeError (the runner's own text may quote data and is not shown", 1),
        ("JobCancellationException: Job was cancelled.", "the job was cancelled from outside, at its runner", 1),
        ("Cannot find checkpoint or savepoint file: secret", "the cluster cannot take up the state", 2),
    ],
)
def test_a_runners_failure_is_named_and_its_text_is_not_shown(text: str, symptom: str, code: int) -> None:
    failure = failure_of(RuntimeError(text))
    assert (failure.exit_code, symptom in str(failure), "secret" in str(failure)) == (code, True, False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreAway("x"), ExitCode.AWAY),
        (SettingsError(["x"]), ExitCode.SETTINGS),
        (StoreDamaged("x"), ExitCode.STORE),
        (StoreReplaced("x"), ExitCode.STORE),
        (BudgetRefused.of("q", 0.5, 0.75, 1.0), ExitCode.REFUSED),
        (CommandError("x", ExitCode.SOURCE), ExitCode.SOURCE),
        (KafkaAwayError("x"), ExitCode.AWAY),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("through", ["", "Error from worker: Traceback\n{}\nTraceback\nKeyError: secret"])
def test_an_error_of_the_package_keeps_its_code_through_a_runner(
    error: Exception, code: ExitCode, through: str
) -> None:
    failure = failure_of(RuntimeError(through.format(told(error))) if through else error)
    assert (failure.exit_code, str(failure)) == (code, str(error))


@pytest.mark.parametrize(
    ("step", "error", "code", "said"),
    [
        ("Sink", OSError(errno.ENOSPC, "secret"), 75, "because no room is left on its disk. The rows are on record"),
        ("Rejects", OSError(errno.ENOSPC, "secret"), 75, "rejects: /there/rejects could not be written, because no"),
        ("Sink", OSError(errno.EIO, "secret"), 6, "sink: /there/releases could not be written (OSError)"),
        ("Sink", KafkaUnavailableError("the topic is gone"), 6, "sink: /there/releases could not be written"),
        ("Publish", OSError(errno.ENOSPC, "secret"), 1, "OSError in the step 'Publish/Write'"),
    ],
)
def test_what_fails_in_a_step_that_writes_is_named_by_its_place(
    step: str, error: Exception, code: int, said: str
) -> None:
    outputs = Output("sink", "/there/releases", files=True), Output("rejects", "/there/rejects", files=True)
    text = told(error).rstrip("\n").replace(str(error), f"{error} [while running '{step}/Write-ptransform-7']", 1)
    failure = failure_of(RuntimeError(f"Traceback\n{text}\n"), outputs)
    assert (failure.exit_code, said in str(failure), "secret" in str(failure)) == (code, True, False)


# A whole job, and a supervisor


class Failing(Result):
    """A job whose runner says what it failed of."""

    def __init__(self, text: str, before: Callable[[], None] = lambda: None) -> None:
        super().__init__("FAILED")
        self.text = text
        self.before = before

    def wait_until_finish(self) -> None:
        self.before()
        raise RuntimeError(self.text)


def supervised(one: Job) -> list[Done]:
    """What systemd and Kubernetes do: begin again what failed, but for the codes that say never."""
    runs: list[Done] = []
    while len(runs) < 9:
        runs.append(run(one, "--json"))
        if runs[-1].code == 0 or ExitCode(runs[-1].code).final:
            return runs
    raise AssertionError(runs[-1])


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
        Pipeline(Failing(f"Traceback\n{told(StoreAway('the ledger is locked'))}\nTraceback")),
        # its runner loses a part of it and says that all is well
        Pipeline(Result("DONE")),
    ]
    *failed, last = supervised(one)
    assert [done.code for done in failed] == [75] * 4
    assert [done.err.split("; ")[0].split("runner: ")[-1].strip() for done in failed] == [
        "Prism's panic in stage.Execute",
        "the runner has gone away (OSError)",
        "Error: the ledger is locked",
        "the job ended as DONE, and the window that ends at 2024-03-02T00:00:00Z is not on record: its runner lost a "
        "part of it",
    ]
    assert not any("secret" in done.out + done.err for done in (*failed, last))
    summary = json.loads(last.out.splitlines()[-1])
    assert (summary["windows_published"], summary["windows_on_record"]) == (5, 0)
    with Store(f"sqlite:///{one.ledger}", create=True) as store:
        assert [entry.decision for entry in store.entries("streets")] == ["charged"] * 5
    assert published(one) == true_counts(readings(6), days=5)


@pytest.mark.night
@pytest.mark.parametrize("how", ["vanished", "emptied"])
def test_a_job_begun_again_without_its_ledger_stops_and_creates_none(
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
    runs = supervised(one)
    assert [done.code for done in runs] == [75, 4]
    assert runs[-1].said("The newest release that is remembered: ")
    assert one.ledger.exists() == (how == "emptied")
    assert one.ledger.stat().st_size == 0 if how == "emptied" else True
    assert not list((tmp_path / "releases").iterdir())
    assert run(one, "--history-lost").code == 0
    with Store(f"sqlite:///{one.ledger}") as store:
        assert store.summary("streets").history_lost


@pytest.mark.night
@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize(
    ("damage", "at_once"),
    [
        ("heads SET digest = x'00' WHERE domain != ''", True),
        ("heads SET store_id = 'another' WHERE domain != ''", True),
        # rows behind the head that a process knows are read again by the next one
        ("log SET domain = 'another' WHERE key LIKE 'entry/%'", False),
    ],
)
def test_a_ledger_damaged_during_a_job_stops_it_permanently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, at_once: bool
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
    done.ended(4 if at_once else 0)
    monkeypatch.setattr(Store, "publish", publish)
    sunk = files(one)
    assert run(one).code == 4
    assert files(one) == sunk
    with closing(sqlite3.connect(one.ledger)) as connection:
        assert kept(connection) == before


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (Result("CANCELLED"), 1, "the job was cancelled from outside, at its runner"),
        (Failing(told(StoreDamaged("it is damaged"))), 4, "it is damaged"),
        (Failing(told(SettingsError("a problem"))), 2, "a problem"),
    ],
)
def test_what_ends_a_job_for_good_ends_the_command_with_its_code(
    tmp_path: Path, attempts: list[Pipeline], result: Result, code: int, said: str
) -> None:
    attempts += [Pipeline(result)]
    run(made(tmp_path), "--json").ended(code, said)


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
    missing = "ended as DONE, and the window that ends at 2124-03-02T00:00:00Z is not on record: somebody stopped it"
    assert (missing in done.err + done.out) == (not at_the_end)


def test_a_runner_that_never_accepts_the_job_is_reported_at_once(tmp_path: Path, attempts: list[Pipeline]) -> None:
    def refuse() -> None:
        raise OSError("secret")

    attempts += [Pipeline(Result(), refuse)]
    done = run(made(tmp_path), "--json").ended(1, "OSError")
    assert (done.out, "secret" in done.err) == ("", False)


@pytest.mark.night
def test_a_job_begun_again_reads_the_roster_again(tmp_path: Path, attempts: list[Pipeline]) -> None:
    one = made(tmp_path, group_by=None, roster={"file": "roster.csv"})

    def join(job: Job = one) -> None:
        path = job.folder / "roster.csv"
        path.write_text(path.read_text(encoding="utf-8") + "m9,north\n", encoding="utf-8")

    attempts += [Pipeline(Failing(PANIC, join))]
    assert json.loads(supervised(one)[-1].out.splitlines()[-1])["rows"] == 5 * 7


@pytest.mark.usefixtures("ending")
def test_a_source_folder_that_is_not_mounted_is_away_and_nothing_is_on_record(tmp_path: Path) -> None:
    one = made(tmp_path, source={"csv": "absent/*.csv"})
    run(one).ended(75, "source.csv: the folder", "absent is not there; mount or make it")
    assert not one.ledger.exists()
