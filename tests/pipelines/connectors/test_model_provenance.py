"""A model that was fitted on a file which a run reads again is told by the file, whatever its series are called."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.live.job import graph_of
from quiltstream.schemas.settings.job import read_settings

from ..jobs import HOMES, Job, call, job, readings

ONE = {"readings": {"series": {"constant": "house"}, "time": "ts", "value": "kwh", "scale": 2000}}
NO_ROSTER: dict[str, Any] = {"roster": None, "group_by": None}


def one_house(folder: Path) -> Job:
    rows = [row for row in readings(days=20) if row[0] == "m1"]
    return job(folder, rows, model="model.json", **ONE, **NO_ROSTER)


def fit_one(made: Job, name: str) -> None:
    """Fit on the job's readings, by other settings that name the house."""
    text = made.settings.read_text(encoding="utf-8")
    other = made.folder / "fit.yaml"
    other.write_text(text.replace("constant: house", f"constant: {name}"), encoding="utf-8")
    call("fit", other, "--belief", "pooled").ended(0)


def is_given(made: Job) -> bool:
    done = call("run", made.settings, "--json").ended(0)
    said = json.loads(done.out)["given_model"]
    assert {row.given_model for row in made.rows()} == {said}
    return said


@pytest.mark.night
@pytest.mark.parametrize("name", ["house", "another name"])
def test_a_model_of_the_single_published_series_is_labelled_under_any_name(tmp_path: Path, name: str) -> None:
    made = one_house(tmp_path)
    fit_one(made, name)
    assert is_given(made)


@pytest.mark.night
def test_a_job_submitted_to_a_cluster_labels_its_model_as_a_local_job_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher sees the same files as a run that stays."""
    made = one_house(tmp_path)
    fit_one(made, "another name")
    windows = {"size": "1d", "start": "2024-03-01"}
    rows = [row for row in readings(days=20) if row[0] == "m1"]
    changes: dict[str, Any] = {"windows": windows, "sink": {"parquet": "out"}, "rejects": None}
    job(tmp_path, rows, model="model.json", **changes, **ONE, **NO_ROSTER)
    # files of a bucket, for all that the launcher knows
    monkeypatch.setattr("quiltstream.pipelines.live.job.is_local", lambda _: False)
    for change, given in (("", True), ("m1,2024-06-01T00:00Z,0.1\n", False)):
        with (tmp_path / "readings.csv").open("a", encoding="utf-8") as file:
            file.write(change)
        for path in (tmp_path / "ledger.db", *tmp_path.glob(".*.quiltstream.*")):  # and what remembers it
            path.unlink(missing_ok=True)
        graph = graph_of(read_settings(made.settings), ["--prism_location=not-started"])
        with closing(graph.follower):
            assert graph.follower.registration.query.given_model == given


@pytest.mark.night
def test_a_copy_of_the_file_elsewhere_is_the_same_history(tmp_path: Path) -> None:
    made = one_house(tmp_path)
    fit_one(made, "x")
    shutil.move(tmp_path / "readings.csv", tmp_path / "copy.csv")
    job(tmp_path, model="model.json", source={"csv": "c*.csv"}, **ONE, **NO_ROSTER)
    (tmp_path / "readings.csv").unlink()
    assert is_given(made)


@pytest.mark.night
def test_a_model_of_another_file_under_another_name_is_not_labelled(tmp_path: Path) -> None:
    made = one_house(tmp_path)
    fit_one(made, "x")
    with (tmp_path / "readings.csv").open("a", encoding="utf-8") as file:
        file.write("m1,2024-06-01T00:00Z,0.1\n")
    assert not is_given(made)


@pytest.mark.night
@pytest.mark.parametrize(
    ("excluded", "roster", "given"),
    [(HOMES[:3], HOMES[:3], False), (HOMES[:2], HOMES[:3], True), (HOMES[:3], None, True)],
    ids=["disjoint", "overlapping", "no roster that could show it"],
)
def test_series_of_one_file_are_distinguished_by_name_only_with_a_roster(
    tmp_path: Path, excluded: tuple[str, ...], roster: tuple[str, ...] | None, given: bool
) -> None:
    made = job(tmp_path, readings(days=20), model="model.json", group_by=None)
    (tmp_path / "out.csv").write_text("\n".join(["series", *excluded]), encoding="utf-8")
    assert call("fit", made.settings, "--belief", "pooled", "--exclude", tmp_path / "out.csv").code == 0
    if roster is None:
        job(tmp_path, readings(days=20), model="model.json", **NO_ROSTER)
    else:
        (tmp_path / "roster.csv").write_text("\n".join(["series", *roster]), encoding="utf-8")
    assert is_given(made) == given


@pytest.mark.night
def test_names_of_another_column_of_the_file_do_not_exclude_a_series(tmp_path: Path) -> None:
    made = job(tmp_path, readings(days=20), model="model.json", group_by=None)
    path = tmp_path / "readings.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([f"{lines[0]},alias", *(f"{line},a{line[1]}" for line in lines[1:])]), encoding="utf-8")
    held = made.settings.read_text(encoding="utf-8")
    other = tmp_path / "fit.yaml"
    other.write_text(held.replace("series: meter", "series: alias"), encoding="utf-8")
    call("fit", other, "--belief", "pooled").ended(0)
    assert is_given(made)


def test_a_dry_run_reads_no_file_to_compare(tmp_path: Path) -> None:
    made = one_house(tmp_path)
    fit_one(made, "x")
    (tmp_path / "readings.csv").unlink()
    assert call("run", "--dry-run", made.settings).code == 0
