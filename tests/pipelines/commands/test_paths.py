"""Paths that are no files: every command refuses them before work starts, and what is there stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from ..jobs import Done, Job, call, job

READ = ("source", "roster", "model", "settings")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def elsewhere(path: Path) -> None:
    """A link to what is in use elsewhere."""
    path.with_name("victim").write_bytes(b"victim")
    path.symlink_to(path.with_name("victim"))


#: What is there, as messages say it.
WHAT: dict[Callable[[Path], None], str] = {pipe: "a pipe", endless: "a device"}

MAKERS = pytest.mark.parametrize("make", [pipe, endless], ids=lambda make: make.__name__)
MAKERS_OF_TARGETS = pytest.mark.parametrize("make", [pipe, endless, elsewhere], ids=lambda make: make.__name__)


def fitted(folder: Path) -> Job:
    made = job(folder)
    assert call("fit", made.settings, "--belief", "pooled", "-o", folder / "model.json").code == 0
    return made


@MAKERS_OF_TARGETS
@pytest.mark.parametrize("field", ["sink", "rejects"])
def test_a_sink_that_is_not_a_regular_file_is_refused_before_any_charge(
    tmp_path: Path, field: str, make: Callable[[Path], None]
) -> None:
    place = {"parquet": "out.parquet"}
    made = job(tmp_path, sink=place) if field == "sink" else job(tmp_path, rejects=place)
    there = tmp_path / "out.parquet"
    make(there)
    before = there.lstat()
    call("run", made.settings).ended(
        2, f"{field}: {there} cannot be written", "only a regular file is replaced; name another file"
    )
    assert not made.ledger.exists()
    assert os.path.samestat(there.lstat(), before)
    victim = tmp_path / "victim"
    assert not victim.exists() or victim.read_bytes() == b"victim"


def test_a_sink_that_is_a_device_is_refused(tmp_path: Path) -> None:
    """The dry run looks, too; it alone is asked, for the sake of the machine on which this fails."""
    made = job(tmp_path, sink={"parquet": "/dev/full"})
    call("run", "--dry-run", made.settings).ended(2, "sink: /dev/full cannot be written (a device is there")


def test_a_ledger_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path)
    pipe(made.ledger)
    call("run", made.settings).ended(2, f"ledger: {made.ledger} cannot be written (a pipe is there")


@MAKERS
@pytest.mark.parametrize("kind", READ)
def test_an_input_that_is_not_a_regular_file_is_refused(
    tmp_path: Path, kind: str, make: Callable[[Path], None]
) -> None:
    name = {"source": "readings.csv", "roster": "roster.csv", "model": "model.json", "settings": "settings.yaml"}[kind]
    made = job(tmp_path, model="model.json") if kind == "model" else job(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    done = call("run", made.settings).ended(2)
    if kind == "source":
        what = WHAT[make]
        assert done.said(f"is no file that ends, but {what}; copy what it gives into a file")
    else:
        assert done.said("give a regular file")
    assert not made.ledger.exists()


@MAKERS
def test_a_source_pattern_matching_a_non_file_is_refused_with_its_path(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """It was left out before, and the run told nothing of readings that were meant to be in it."""
    made = job(tmp_path, source={"csv": "read*.csv"})
    make(tmp_path / "reads.csv")
    done = call("run", made.settings).ended(5)
    assert done.said(f"file {tmp_path / 'reads.csv'} cannot be opened")
    assert not made.ledger.exists()
    (tmp_path / "reads.csv").unlink()
    assert call("run", made.settings).code == 0


@MAKERS_OF_TARGETS
def test_every_command_refuses_an_output_that_is_not_a_regular_file(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    made = job(tmp_path)
    assert call("run", made.settings).code == 0
    out = tmp_path / "out"
    make(out)
    before = out.lstat()
    done: dict[str, Done] = {
        "fit": call("fit", made.settings, "--belief", "pooled", "-o", out),
        "init": call("init", tmp_path / "readings.csv", "-o", out, "--force"),
        "backup": call("ledger", "backup", made.ledger, "-o", out),
    }
    assert {name: one.code for name, one in done.items()} == {"fit": 2, "init": 2, "backup": 2}
    assert os.path.samestat(out.lstat(), before)


def test_a_fit_checks_its_output_before_it_reads_a_history(tmp_path: Path) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").unlink()
    pipe(tmp_path / "out")
    call("fit", made.settings, "--belief", "pooled", "-o", tmp_path / "out").ended(
        2, "a pipe is there, and only a regular file is replaced"
    )


def test_a_sink_behind_a_link_to_a_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert call("run", job(tmp_path, sink={"parquet": "link/out.parquet"}).settings).code == 0
    assert (tmp_path / "real" / "out.parquet").is_file()


def test_model_and_rejects_have_mode_600_and_releases_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        made = fitted(tmp_path)
        (tmp_path / "model.json").chmod(0o644)
        assert call("fit", made.settings, "--belief", "pooled", "-o", tmp_path / "model.json").code == 0
        assert call("run", made.settings).code == 0
    finally:
        os.umask(before)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("model.json", "rejects.csv", made.sink.name)}
    assert modes == {"model.json": 0o600, "rejects.csv": 0o600, made.sink.name: 0o644}


def test_files_above_their_limit_are_refused_with_the_limit(tmp_path: Path) -> None:
    made = job(tmp_path, model="model.json")
    for name, limit in (("settings.yaml", 1 << 20), ("model.json", 32 << 20), ("roster.csv", 128 << 20)):
        before = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None
        with (tmp_path / name).open("wb") as file:
            file.truncate(limit + 1)
        done = call("run", made.settings)
        assert done.code == 2, (name, done.err)
        assert done.said(f"it has at least {limit + 1:,} bytes, and {limit:,} are the limit"), done.err
        if before is not None:
            (tmp_path / name).write_bytes(before)
        elif name == "model.json":
            assert call("fit", made.settings, "--belief", "pooled", "-o", tmp_path / "other.json").code == 0
            (tmp_path / "other.json").rename(tmp_path / name)


def test_neither_a_model_nor_a_row_has_the_name_of_the_historys_file(tmp_path: Path) -> None:
    """A file that is one household's is often called as it is."""
    made = job(tmp_path, source={"csv": "jane-doe.csv"}, model="model.json")
    (tmp_path / "readings.csv").rename(tmp_path / "jane-doe.csv")
    renamed = tmp_path / "jane-doe.yaml"
    made.settings.rename(renamed)
    assert call("fit", renamed, "--belief", "pooled").code == 0
    assert call("run", renamed).code == 0
    assert "jane" not in (tmp_path / "model.json").read_text(encoding="utf-8")
    rows = made.rows()
    assert {row.model_provenance for row in rows} == {"pooled transition counts of 6 series; a history in csv"}


def outputs(made: Job) -> list[tuple[str, Path | str, Path]]:
    """A command, what it reads, and the option that would write over that, or over what its settings name."""
    folder, ledger = made.folder, made.ledger
    return [
        (words, read, folder / output)
        for words, read, output in (
            ("plan -o", made.settings, "settings.yaml"),
            ("plan -o", made.settings, "roster.csv"),
            ("plan -o --model", folder / "model.json", "model.json"),
            ("show --tidy -o", made.sink, "releases.parquet"),
            ("show --tidy -o", made.sink, "sub/../releases.parquet"),
            ("report -o", ledger, "ledger.db"),
            ("report -o", f"sqlite:///{ledger}", "ledger.db"),
            ("report -o", made.settings, "ledger.db"),
            ("report -o", made.settings, "readings.csv"),
            ("ledger export -o", made.settings, "."),
        )
    ]


@pytest.mark.parametrize("number", range(10))
def test_no_command_writes_over_a_file_that_it_reads_or_that_its_settings_name(tmp_path: Path, number: int) -> None:
    made = fitted(tmp_path)
    assert call("run", made.settings).code == 0
    (tmp_path / "sub").mkdir()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    words, read, output = outputs(made)[number]
    *command, option = [one for one in words.split() if one != "--model"]
    call(*command, *(["--model"] if "--model" in words else []), read, option, output).ended(2, "name the same file")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("data", ["roster.csv", "settings.csv"])
def test_init_does_not_write_over_its_data_with_force_either(tmp_path: Path, data: str) -> None:
    job(tmp_path)
    (tmp_path / "readings.csv").rename(tmp_path / data)
    before = (tmp_path / data).read_bytes()
    output = tmp_path / ("settings.yaml" if data == "roster.csv" else data)
    call("init", tmp_path / data, "-o", output, "--force").ended(2, "name the same file")
    assert (tmp_path / data).read_bytes() == before


def test_what_cannot_be_made_again_is_never_replaced_by_an_output(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = fitted(tmp_path / "job")
    assert call("run", made.settings).code == 0
    model, rows, data = made.folder / "model.json", tmp_path / "rows.parquet", tmp_path / "readings.csv"
    rows.write_bytes(made.sink.read_bytes())
    data.write_bytes((made.folder / "readings.csv").read_bytes())
    table, damaged = tmp_path / "readings.parquet", tmp_path / "damaged.parquet"
    pq.write_table(csv.read_csv(data), table)
    damaged.write_bytes(table.read_bytes()[:-9])
    ledger = tmp_path / "last-ledger.db"
    ledger.write_bytes(made.ledger.read_bytes())
    kept = {path: path.read_bytes() for path in (ledger, made.sink, model, data, table, damaged, made.settings)}
    database, sink = "is a SQLite database, which may be a ledger", "is the sink of a job"
    other = "holds something else than what is to be written: name another file, or remove this one first"
    fit = ("fit", made.settings, "--belief", "pooled", "-o")
    for words, output, text in (
        (("show", rows, "-o"), ledger, database),
        (("show", rows, "-o"), made.sink, sink),
        (("show", rows, "-o"), model, other),
        (("show", rows, "-o"), data, other),
        (("show", rows, "--format", "json", "-o"), model, other),
        (("show", rows, "--format", "parquet", "-o"), made.sink, sink),
        *((("show", rows, "--format", "parquet", "-o"), one, other) for one in (data, table, damaged)),
        (fit, ledger, database),
        (fit, data, other),
        (("plan", "--model", model, "-o"), ledger, database),
        (("plan", "--model", model, "-o"), made.settings, other),
        (("plan", "--model", model, "--picture"), model.with_suffix(".svg"), other),
        (("report", ledger, "-o"), made.sink, sink),
        (("report", ledger, "-o"), made.ledger, database),
        (("report", ledger, "-o"), data, other),
        (("ledger", "export", ledger, "-o"), made.folder, sink),
    ):
        if output.suffix == ".svg":
            output.write_text("mine", encoding="utf-8")
        done = call(*words, output)
        assert (done.code, done.said(text)) == (2, True), (words, output, done.err)
    assert {path: path.read_bytes() for path in kept} == kept


def test_an_output_of_the_same_kind_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = fitted(tmp_path)
    assert call("run", made.settings).code == 0
    for words in (
        ("fit", made.settings, "--belief", "pooled", "-o", tmp_path / "other.json"),
        *(("show", made.sink, "--format", one, "-o", tmp_path / f"x.{one}") for one in ("csv", "json", "parquet")),
        ("show", made.sink, "--sum", "all", "-o", tmp_path / "x.csv"),
        ("report", made.ledger, "-o", tmp_path / "report.html"),
        ("plan", "--model", tmp_path / "model.json", "-o", tmp_path / "planned.yaml"),
        *(("plan", "--model", tmp_path / "model.json", "--picture", tmp_path / f"x.{one}") for one in ("svg", "png")),
    ):
        for _ in range(2):
            done = call(*words)
            assert done.code == 0, (words, done.err)
    # as other programs write the same
    model, table = tmp_path / "other.json", tmp_path / "x.csv"
    model.write_text(json.dumps(json.loads(model.read_text(encoding="utf-8"))), encoding="utf-8")
    table.write_text(table.read_text(encoding="utf-8").replace('"', ""), encoding="utf-8")
    assert call("fit", made.settings, "--belief", "pooled", "-o", model).code == 0
    assert call("show", made.sink, "-o", table).code == 0


def test_an_output_that_cannot_be_written_ends_every_command_with_code_2(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = fitted(tmp_path)
    assert call("run", made.settings).code == 0
    taken = tmp_path / "readings.csv" / "out"
    for words in (
        ("show", made.sink, "-o"),
        ("report", made.ledger, "-o"),
        ("plan", "--model", tmp_path / "model.json", "-o"),
        ("fit", made.settings, "--belief", "pooled", "-o"),
        ("ledger", "export", made.ledger, "-o"),
        ("ledger", "backup", made.ledger, "-o"),
    ):
        done = call(*words, taken)
        assert (done.code, done.said("cannot be written")) == (2, True), (words, done.err)
