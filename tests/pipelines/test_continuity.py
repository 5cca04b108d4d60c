"""A ledger that is lost between two runs, or under one: nothing is drawn a second time without the operator's word."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.errors import explain
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store, StoreAddress
from quiltstream.store.address import forget
from quiltstream.store.errors import StoreReplaced
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.plan import open_ledger

from ..transforms.stubborn import StubbornFileSystem
from .jobs import Job, call, change, job, readings


def lose(made: Job) -> None:
    """Take the ledger away with everything beside it."""
    for path in made.folder.glob("ledger.db*"):
        path.unlink()


def with_older_copy(folder: Path, **changes: Any) -> Job:
    """A job that published three days, had its ledger copied to older.db, and published four days more."""
    made = job(folder, **changes)
    for stop in ("2024-03-04", "2024-03-08"):
        change(made, windows={"size": "1d", "start": "2024-03-01", "stop": stop})
        call("run", made.settings).ended(0)
        if stop == "2024-03-04":
            call("ledger", "backup", made.ledger, "-o", folder / "older.db").ended(0)
    return made


def put_older_copy_back(made: Job) -> None:
    lose(made)
    shutil.copy(made.folder / "older.db", made.ledger)
    forget(StoreAddress(f"sqlite:///{made.ledger}"))  # this process stands for two


def test_a_restored_backup_stops_the_run_until_its_history_is_said_to_be_lost(tmp_path: Path) -> None:
    """What docs/ledger.md says of restoring."""
    made = with_older_copy(tmp_path)
    put_older_copy_back(made)
    call("run", made.settings).ended(4, "The newest release that is remembered", "2024-03-08", "--history-lost")
    call("run", made.settings, "--history-lost").ended(0)
    (account,) = json.loads(call("ledger", "show", made.ledger, "--json").out)
    assert (account["history_lost"], account["charged"]) == (True, 7)


def remembered(made: Job) -> list[Path]:
    return sorted(made.folder.glob(".*.quiltstream.json"))


def empty(made: Job) -> None:
    lose(made)
    made.ledger.touch()


def tableless(made: Job) -> None:
    lose(made)
    connection = sqlite3.connect(made.ledger)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def another(made: Job) -> None:
    lose(made)
    with Store(f"sqlite:///{made.ledger}", create=True) as store:
        assert store.domains() == ()


LOSSES: dict[str, tuple[Callable[[Job], None], str]] = {
    "vanished": (lose, "the ledger is missing: put "),
    "emptied": (empty, "its file is empty, and a ledger never is"),
    "without tables": (tableless, "its file holds no tables"),
    "another one": (another, "the ledger is another one: put "),
}


@pytest.mark.night
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_ledger_is_not_recreated_if_the_sink_was_moved(tmp_path: Path, loss: str) -> None:
    """A supervisor begins the command again and again; then the operator says that the history is lost."""
    made = job(tmp_path)
    assert call("run", made.settings).code == 0
    first = made.sink.read_bytes()
    made.sink.rename(tmp_path / "collected.parquet")
    happen, text = LOSSES[loss]
    happen(made)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("ledger.db*")}
    for _ in range(3):
        done = call("run", made.settings).ended(4, text, "--history-lost")
        assert not made.sink.exists()
        assert {path.name: path.read_bytes() for path in tmp_path.glob("ledger.db*")} == before
    done = call("run", made.settings, "--history-lost", "--json").ended(0)
    assert json.loads(done.out)["history_lost"] is True
    assert made.sink.read_bytes() != first
    assert json.loads(call("run", made.settings, "--json").out)["windows_published"] == 0


@pytest.mark.night
@pytest.mark.parametrize("memory", [None, "elsewhere/memory.json"])
def test_an_older_copy_of_the_ledger_is_detected_without_reading_the_sink(tmp_path: Path, memory: str | None) -> None:
    made = with_older_copy(tmp_path, memory=memory)
    made.sink.unlink()
    put_older_copy_back(made)
    assert len(remembered(made)) == (memory is None)
    call("run", made.settings).ended(4, "the ledger is an older copy or a restored backup: put ")
    assert not made.sink.exists()


def test_a_remote_sink_needs_a_memory(tmp_path: Path) -> None:
    made = job(tmp_path, sink={"parquet": "stubborn://out/releases.parquet"})
    for words in ((), ("--dry-run",)):
        call("run", made.settings, *words).ended(2, "memory is missing")
    assert not made.ledger.exists()


@pytest.mark.night
def test_a_copy_with_redrawn_published_blocks_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has every charge and every block of the log, by name: only the draws are others."""
    made = job(tmp_path)
    copy, publish = tmp_path / "older.db", Store.publish

    def copy_and_publish(store: Store, *given: Any) -> Any:
        if not copy.exists():
            call("ledger", "backup", made.ledger, "-o", copy)
        return publish(store, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "publish", copy_and_publish)
        assert call("run", made.settings).code == 0
    made.sink.unlink()
    kept = {path: path.read_bytes() for path in tmp_path.glob(".*.quiltstream.*")}
    for path in kept:
        path.unlink()
    lose(made)
    shutil.copy(copy, made.ledger)
    forget(StoreAddress(f"sqlite:///{made.ledger}"))  # by this process, which stands for two
    assert call("run", made.settings).code == 0  # as a job on another machine, with a sink of its own
    made.sink.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
    call("run", made.settings).ended(4, "it lacks rows that left the job")
    assert not made.sink.exists()


@pytest.mark.night
def test_diverged_ledger_copies_of_two_jobs_are_detected_at_a_shared_output(tmp_path: Path) -> None:
    """Apart, each has a whole account, and nothing tells; where one meets what the other left, it stops."""
    made = job(tmp_path)
    change(made, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-04"})
    assert call("run", made.settings).code == 0
    other = tmp_path / "other"
    other.mkdir()
    call("ledger", "backup", made.ledger, "-o", other / "ledger.db")
    shutil.copytree(
        tmp_path,
        other,
        ignore=shutil.ignore_patterns("other", "*.quiltstream.*", "ledger.db*", "releases*"),
        dirs_exist_ok=True,
    )
    longer = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-08"}
    change(made, windows=longer)
    assert call("run", made.settings).code == 0
    copied = other / made.settings.name
    copied.write_text(made.settings.read_text(encoding="utf-8"), encoding="utf-8")
    assert call("run", copied).code == 0  # what no ledger can tell
    meeting = yaml.safe_load(copied.read_text(encoding="utf-8"))
    for changed in (
        {"sink": {"parquet": str(made.sink)}},  # its rows have the same names, and its memory another newest charge
        {"ledger": f"sqlite:///{made.ledger}"},
    ):
        copied.write_text(yaml.safe_dump(meeting | changed), encoding="utf-8")
        done = call("run", copied)
        assert done.code == 4, (changed, done.err)


@pytest.mark.night
@pytest.mark.parametrize("decision", [["budget", "{}", "streets", "7"], ["belief", "{}", "streets", "bounds.yaml"]])
def test_nothing_is_decided_about_an_older_copy_that_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bounds.yaml").write_text("pi_min: 0.2\ngap: 0.5\n", encoding="utf-8")
    made = with_older_copy(tmp_path)
    put_older_copy_back(made)
    before = made.ledger.read_bytes()
    call("ledger", *(word.format(made.settings) for word in decision), "--yes").ended(
        4, "is an older copy or a restored backup", "Nothing was decided"
    )
    assert call("run", made.settings).code == 4
    assert made.ledger.read_bytes() == before


@pytest.mark.night
def test_sink_releases_missing_in_an_older_copy_are_reported(tmp_path: Path) -> None:
    made = with_older_copy(tmp_path)
    put_older_copy_back(made)
    for path in remembered(made):
        path.unlink()
    call("run", made.settings).ended(
        4,
        "releases that are not on record",
        "the ledger is an older copy, a restored backup or another one",
    )


@pytest.mark.night
def test_a_remote_sink_is_searched_for_unrecorded_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubbornFileSystem, "root", str(tmp_path))
    made = job(tmp_path)
    change(made, sink={"parquet": "stubborn://out/releases.parquet"}, memory="memory.json")
    assert call("run", made.settings).code == 0
    first = (tmp_path / "out" / "releases.parquet").read_bytes()
    assert call("run", made.settings).code == 0
    assert (tmp_path / "out" / "releases.parquet").read_bytes() == first
    lose(made)
    (tmp_path / "memory.json").unlink()
    call("run", made.settings).ended(4, "releases that are not on record")
    assert not made.ledger.exists()
    assert (tmp_path / "out" / "releases.parquet").read_bytes() == first


@pytest.mark.parametrize("scheme", ["file", "nowhere"])
def test_a_sink_of_no_file_system_is_a_mistake_in_the_settings(tmp_path: Path, scheme: str) -> None:
    made = job(tmp_path)
    change(made, sink={"parquet": f"{scheme}:///out/releases.parquet"}, memory="memory.json")
    call("run", made.settings).ended(2, "sink: ", "check its scheme").hid("history-lost")
    assert not made.ledger.exists()


@pytest.mark.night
def test_a_moved_ledger_is_accepted(tmp_path: Path) -> None:
    made = job(tmp_path)
    call("run", made.settings)
    first = made.sink.read_bytes()
    made.ledger.rename(tmp_path / "moved.db")
    change(made, ledger="sqlite:///moved.db")
    call("run", made.settings).ended(0)
    assert made.sink.read_bytes() == first


def test_an_unreadable_continuity_file_is_not_treated_as_missing(tmp_path: Path) -> None:
    made = job(tmp_path)
    call("run", made.settings)
    lose(made)
    made.sink.unlink()
    for path in remembered(made):
        path.write_text("{", encoding="utf-8")
    call("run", made.settings).ended(4, "remembers which one it is, and cannot be read (JSONDecodeError)")
    assert not made.ledger.exists()
    assert call("run", made.settings, "--history-lost").said("History lost: by the operator's word")


@pytest.mark.night
def test_a_run_without_charges_permits_a_new_ledger(tmp_path: Path) -> None:
    made = job(tmp_path, rows=[("stranger", "2024-03-01T00:00Z", 0.5)])
    assert call("run", made.settings).code == 5
    assert len(remembered(made)) == 1
    lose(made)
    job(tmp_path)
    assert call("run", made.settings).code == 0


@pytest.mark.night
@pytest.mark.parametrize("remembers", [True, False], ids=["remembered", "known by its emptied file alone"])
def test_a_run_that_did_not_mark_a_lost_history_leaves_the_next_one_stopped(tmp_path: Path, remembers: bool) -> None:
    """The domain is registered when the data are read, and there are none."""
    made = job(tmp_path, readings(2, ["m1"]), roster=None, group_by=None, windows={"size": "1d", "start": "2024-03-01"})
    call("run", made.settings).ended(0)
    (lose if remembers else empty)(made)
    made.sink.unlink()
    if not remembers:
        for path in tmp_path.glob(".*.quiltstream.*"):
            path.unlink()
    source = tmp_path / "readings.csv"
    rows = source.read_text(encoding="utf-8")
    source.write_text("meter,ts,kwh\n", encoding="utf-8")
    call("run", made.settings, "--history-lost").ended(5)
    source.write_text(rows, encoding="utf-8")
    call("run", made.settings).ended(4, "--history-lost")
    assert not made.sink.exists()
    for words in (("--history-lost",), ()):
        assert json.loads(call("run", made.settings, "--json", *words).ended(0).out)["history_lost"] is True


@pytest.mark.night
def test_a_lost_history_is_marked_before_a_window_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(tmp_path, readings(2, ["m1"]), roster=None, group_by=None, windows={"size": "1d", "start": "2024-03-01"})
    call("run", made.settings).ended(0)
    lose(made)
    publish, marked = Store.publish, list[bool]()

    def noted(store: Store, *given: Any) -> Any:
        marked.append(store.summary("streets").history_lost)
        return publish(store, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "publish", noted)
        call("run", made.settings, "--history-lost").ended(0)
    assert set(marked) == {True}
    assert json.loads(call("run", made.settings, "--json").ended(0).out)["history_lost"] is True


@pytest.mark.night
def test_a_ledger_id_in_the_settings_is_required_and_no_ledger_is_created(tmp_path: Path) -> None:
    made = job(tmp_path, ledger_id="0" * 32)
    call("run", made.settings).ended(4, "there is none any more", f"The ledger of this job has the id {'0' * 32}")
    assert not made.ledger.exists()
    change(made, ledger_id=None)
    assert call("run", made.settings).code == 0
    with Store(f"sqlite:///{made.ledger}") as store:
        change(made, ledger_id=store.store_id)
    assert call("run", made.settings).code == 0


def test_a_job_refuses_another_ledger_than_that_of_its_plan(tmp_path: Path) -> None:
    """The ledger is removed when the command has opened it, and the runner begins after that."""
    import apache_beam as beam  # noqa: PLC0415
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner  # noqa: PLC0415

    from quiltstream.pipelines.runners import read_source  # noqa: PLC0415

    made = job(tmp_path)
    settings = read_settings(made.settings)
    with pytest.raises(Exception) as raised, beam.Pipeline(runner=FnApiRunner()) as pipeline:  # noqa: PT011, PT012 - looked at below
        histograms = PrivateHistograms(settings)
        histograms = histograms.in_ledger(open_ledger(histograms.plan.address))
        decoded = pipeline | "Read" >> read_source(settings, histograms.plan.group_column)
        _ = decoded.readings | histograms
        lose(made)
    failure = explain(raised.value)
    assert (failure.kind, failure.code) == (StoreReplaced.__name__, 4)
    assert not list(tmp_path.glob("*ledger.db*"))
