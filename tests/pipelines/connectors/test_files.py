"""No job writes over a file that it reads, that is its ledger, or that holds something else; and the sink is tried."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.table_files import write_parts
from quiltstream.transforms import sinks

from ..jobs import Job, call, change, job


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(made: Job, *words: str, told: str) -> None:
    before = contents(made.folder)
    for options in ((), ("--dry-run",)):
        done = call("run", made.settings, *options).ended(2)
        for word in words:
            assert done.said(word), (word, done.err)
        assert done.said(told)
        assert contents(made.folder) == before


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of jobs to copy: one as it is set up, one with a fitted model, one with the ledger of a run."""
    folder = tmp_path_factory.mktemp("jobs")
    fresh, fitted, ran = (job(folder / name) for name in ("fresh", "fitted", "ran"))
    change(fitted, model="model.json")
    assert call("fit", fitted.settings, "--belief", "pooled").code == 0
    change(ran, rejects=None)
    assert call("run", ran.settings).code == 0
    ran.sink.unlink()
    return {"model": fitted.folder, "ledger": ran.folder, "source.csv": fresh.folder, "roster": fresh.folder}


@pytest.mark.night
@pytest.mark.parametrize("field", ["sink", "rejects"])
@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("readings.csv", "source.csv"),
        ("roster.csv", "roster"),
        ("model.json", "model"),
        ("ledger.db", "ledger"),
        ("ledger.db-wal", "ledger"),
        ("ledger.db-shm", "ledger"),
    ],
)
@pytest.mark.parametrize("way", ["plain", "dots", "link", "hard link"])
def test_a_file_of_the_job_is_never_written_over(
    tmp_path: Path, jobs: dict[str, Path], field: str, path: str, other: str, way: str
) -> None:
    made = Job(shutil.copytree(jobs[other], tmp_path / "made"))
    (tmp_path / "made" / path).touch()
    link = tmp_path / "made" / "link"
    if way == "dots":
        (tmp_path / "made" / "sub").mkdir()
        path = f"sub/../{path}"
    elif way == "link":
        link.symlink_to(path)
        path = "link"
    elif way == "hard link":
        link.hardlink_to(tmp_path / "made" / path)
        path = "link"
    change(made, **{field: {"csv": path}})
    refused(made, f"{other} and {field} name the same file", path, told=f"give {field} a file of its own")


def test_a_new_ledger_the_sink_and_the_rejects_must_be_distinct_files(tmp_path: Path) -> None:
    made = job(tmp_path, sink={"parquet": "x/../ledger.db"})
    refused(made, "ledger and sink name the same file", told="give sink a file of its own")
    made = job(tmp_path, rejects={"csv": "./releases.parquet"})
    refused(made, "sink and rejects name the same file", told="give rejects a file of its own")


def test_the_ledger_may_not_be_the_source_or_the_roster(tmp_path: Path) -> None:
    made = job(tmp_path, ledger="sqlite:///roster.csv")
    refused(made, "roster and ledger name the same file", told="give ledger a file of its own")
    made = job(tmp_path, ledger="sqlite:///readings.csv")
    refused(made, "source.csv and ledger name the same file", told="give ledger a file of its own")


def test_a_sink_that_the_next_run_would_read_is_refused_before_the_first(tmp_path: Path) -> None:
    made = job(tmp_path, source={"csv": "*.csv"}, roster={"file": "roster.csv"}, rejects={"csv": "out/rejects.csv"})
    change(made, sink={"csv": "releases.csv"})
    refused(made, "source.csv and sink name the same file", told="give sink a file of its own")


@pytest.mark.night
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "avro"])
@pytest.mark.parametrize(
    "content", [b"a letter", b"reason,source\nx,y\n", b'{"reason": "x"}\n', b"{", b"PAR1", b"Obj\x01", b"\xff\xfe\n"]
)
def test_a_rejects_file_that_holds_something_else_is_not_replaced(tmp_path: Path, form: str, content: bytes) -> None:
    made = job(tmp_path, rejects={form: "rejects"})
    (tmp_path / "rejects").write_bytes(content)
    before = contents(tmp_path)
    done = call("run", made.settings)
    assert (done.code, contents(tmp_path)) == (2, before)
    assert done.said("rejects exists and holds no rejects")
    assert done.said("name another file, or move that one")


@pytest.mark.parametrize("field", ["sink", "rejects"])
def test_an_unwritable_path_is_reported_before_any_charge(tmp_path: Path, field: str) -> None:
    made = job(tmp_path)
    change(made, **{field: {"csv": "roster.csv/out.csv"}})
    call("run", made.settings).ended(2, f"{field}: ", "cannot be written", "nothing was charged")
    assert not made.ledger.exists()


@pytest.mark.night
def test_a_missing_sink_folder_is_created_with_only_the_files_of_the_sink(tmp_path: Path) -> None:
    assert call("run", job(tmp_path, sink={"parquet": "new/folder/out.parquet"}).settings).code == 0
    found = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert found == [".out.parquet.quiltstream.json", "out.parquet"]


@pytest.mark.night
@pytest.mark.parametrize(
    ("field", "file", "told", "promised"),
    [
        ("sink", "releases.parquet", "The rows are on record", "and nothing is charged"),
        ("rejects", "rejects.csv", "What was charged is on record", "and nothing is charged twice"),
    ],
)
def test_a_failed_final_write_reports_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, file: str, told: str, promised: str
) -> None:
    made = job(tmp_path)
    write = write_parts

    def full(path: str, *more: Any) -> None:
        if path.endswith(file):
            raise OSError(28, "No space left: secret")
        write(path, *more)

    monkeypatch.setattr(sinks, "write_parts", full)
    call("run", made.settings).ended(
        75,
        f"{field}: ",
        f"{made.folder / file} could not be written, because no room is left on its disk. {told}",
        "make room there, or name another, and run again",
        f"the same rows come out, {promised}",
    ).hid("secret")
    monkeypatch.undo()
    again = call("run", made.settings).ended(0)
    assert again.said("Nothing was charged") or field == "rejects"
    assert len(made.rows()) == 14
