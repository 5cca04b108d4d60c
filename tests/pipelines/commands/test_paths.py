"""Paths that are no files: every command refuses them before work starts, and what is there stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

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
    call("run", made.settings).ended(2, f"{field}: {there} cannot be written")
    assert not made.ledger.exists()
    assert os.path.samestat(there.lstat(), before)
    victim = tmp_path / "victim"
    assert not victim.exists() or victim.read_bytes() == b"victim"


@MAKERS
@pytest.mark.parametrize("kind", READ)
def test_an_input_that_is_not_a_regular_file_is_refused(
    tmp_path: Path, kind: str, make: Callable[[Path], None]
) -> None:
    name = {"source": "readings.csv", "roster": "roster.csv", "model": "model.json", "settings": "settings.yaml"}[kind]
    made = job(tmp_path, model="model.json") if kind == "model" else job(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    call("run", made.settings).ended(2)
    assert not made.ledger.exists()


@pytest.mark.night
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


@pytest.mark.night
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


@pytest.mark.night
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


@pytest.mark.night
@pytest.mark.parametrize("data", ["roster.csv", "settings.csv"])
def test_init_does_not_write_over_its_data_with_force_either(tmp_path: Path, data: str) -> None:
    job(tmp_path)
    (tmp_path / "readings.csv").rename(tmp_path / data)
    before = (tmp_path / data).read_bytes()
    output = tmp_path / ("settings.yaml" if data == "roster.csv" else data)
    call("init", tmp_path / data, "-o", output, "--force").ended(2, "name the same file")
    assert (tmp_path / data).read_bytes() == before


@pytest.mark.night
def test_no_output_replaces_what_a_command_reads_or_what_cannot_be_made_again(tmp_path: Path) -> None:
    made = fitted(tmp_path / "job")
    assert call("run", made.settings).code == 0
    model, rows, data = made.folder / "model.json", tmp_path / "rows.parquet", tmp_path / "readings.csv"
    rows.write_bytes(made.sink.read_bytes())
    data.write_bytes((made.folder / "readings.csv").read_bytes())
    kept = {path: path.read_bytes() for path in (*tmp_path.rglob("*"),) if path.is_file()}
    for *words, output in (
        ("show", made.sink, "--tidy", "-o", made.folder / "../job/releases.parquet"),
        ("report", made.settings, "-o", made.ledger),
        ("report", made.settings, "-o", made.folder / "readings.csv"),
        ("show", rows, "-o", made.ledger),
        ("show", rows, "-o", made.sink),
        ("show", rows, "--format", "json", "-o", model),
        ("show", rows, "--format", "parquet", "-o", data),
        ("fit", made.settings, "--belief", "pooled", "-o", made.ledger),
        ("report", made.ledger, "-o", data),
    ):
        done = call(*words, output)
        assert done.code == 2, (words, output, done.out, done.err)
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.night
def test_an_output_of_the_same_kind_is_replaced(tmp_path: Path) -> None:
    made = fitted(tmp_path)
    assert call("run", made.settings).code == 0
    for words in (
        ("fit", made.settings, "--belief", "pooled", "-o", tmp_path / "other.json"),
        ("show", made.sink, "--format", "parquet", "-o", tmp_path / "x.parquet"),
        ("show", made.sink, "--sum", "all", "-o", tmp_path / "x.csv"),
        ("report", made.ledger, "-o", tmp_path / "report.html"),
    ):
        for _ in range(2):
            done = call(*words)
            assert done.code == 0, (words, done.err)


def test_an_input_above_its_limit_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path)
    with made.settings.open("wb") as file:
        file.truncate((1 << 20) + 1)
    call("run", made.settings).ended(2, "1,048,576 are the limit")


@pytest.mark.night
def test_an_output_that_cannot_be_written_ends_every_command_with_code_2(tmp_path: Path) -> None:
    made = fitted(tmp_path)
    assert call("run", made.settings).code == 0
    taken = tmp_path / "readings.csv" / "out"
    for words in (
        ("show", made.sink, "-o"),
        ("report", made.ledger, "-o"),
        ("fit", made.settings, "--belief", "pooled", "-o"),
        ("ledger", "export", made.ledger, "-o"),
        ("ledger", "backup", made.ledger, "-o"),
    ):
        done = call(*words, taken)
        assert (done.code, done.said("cannot be written")) == (2, True), (words, done.err)
