"""Bad input at the command line: what each mistake ends with, and that no message shows data."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.states import StateSpace
from quiltstream.store.store import Store
from quiltstream.transforms.sources.files import FileDecoder, FileTask

from ..jobs import call, job, readings, write_as, write_csv

HALF_HOUR_US = 1_800_000_000


def rejects(folder: Path) -> list[dict[str, str]]:
    with (folder / "rejects.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.night
@pytest.mark.parametrize(("value", "reason"), [("secret5", "not-a-number"), ("", "missing-value")])
def test_a_non_numeric_value_is_rejected_and_tallied_without_being_shown(
    tmp_path: Path, value: str, reason: str
) -> None:
    rows = readings()
    rows[5] = (rows[5][0], rows[5][1], value)
    done = call("run", job(tmp_path, rows).settings, "--json").ended(0)
    assert json.loads(done.out)["operator_only"]["rejected"] == {reason: 1}
    (reject,) = rejects(tmp_path)
    assert (reject["reason"], reject["position"]) == (reason, "7")
    assert reject["source"].endswith("readings.csv")
    assert reject.keys() == {"reason", "source", "position", "size"}
    assert not reject["size"]
    assert not value or "secret" not in (tmp_path / "rejects.csv").read_text(encoding="utf-8")


def test_a_missing_column_exits_with_2_and_names_the_columns_of_the_file(tmp_path: Path) -> None:
    made = job(tmp_path)
    write_csv(tmp_path / "readings.csv", readings(days=1), header="meter,ts,kw")
    call("run", made.settings).ended(2, "readings.value names the column 'kwh'", "'meter', 'ts', 'kw'")
    assert not made.ledger.exists()


@pytest.mark.parametrize(
    "line",
    ["alice,2024-03-01T00:00Z,0.05", "b,c,NaN"],
)
def test_the_first_line_of_a_file_without_a_header_is_not_shown(tmp_path: Path, line: str) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").write_text(f"{line}\n{line}\n", encoding="utf-8")
    done = call("run", made.settings).ended(
        2,
        "readings.value names the column 'kwh'",
    )
    assert not any(f"'{field}'" in done.err for field in line.split(","))


@pytest.mark.night
@pytest.mark.parametrize("content", ["", "meter,ts,kwh\n"], ids=["no byte", "a header only"])
def test_an_empty_file_publishes_the_schedule_only_with_the_flag(tmp_path: Path, content: str) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").write_text(content, encoding="utf-8")
    assert call("run", made.settings).code == 5
    call("run", made.settings, "--even-if-empty").ended(0)
    rows = made.rows()
    assert len(rows) == 14
    assert {row.total for row in rows} == {0}


def test_a_truncated_parquet_file_ends_with_exit_code_5_before_anything_is_on_record(tmp_path: Path) -> None:
    made = job(tmp_path, source={"parquet": "readings.parquet"})
    path = write_as("parquet", tmp_path / "readings.parquet", readings())
    path.write_bytes(path.read_bytes()[:-100])
    call("run", made.settings).ended(5, "is not a whole Parquet file")
    assert not made.ledger.exists()


@pytest.mark.night
def test_a_file_that_changes_while_it_is_read_ends_with_exit_code_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(tmp_path)
    rows, path, read = FileDecoder.raw_rows, tmp_path / "readings.csv", list[str]()

    def raw_rows(decoder: FileDecoder, task: FileTask) -> Iterator[Any]:
        read.append(task.path)
        yield from rows(decoder, task)
        if len(read) > 1:  # the first is the look before the job
            os.truncate(path, path.stat().st_size - 3)

    with monkeypatch.context() as patch:
        patch.setattr(FileDecoder, "raw_rows", raw_rows)
        done = call("run", made.settings)
    assert (done.code, done.said("readings.csv changed while it was read")) == (5, True), done.err
    assert not made.sink.exists()
    with closing(sqlite3.connect(made.ledger)) as ledger:
        assert ledger.execute("SELECT COUNT(*) FROM quiltstream_log WHERE key LIKE 'entry/%'").fetchone() == (0,)


def test_a_missing_source_exits_with_code_2(tmp_path: Path) -> None:
    call("run", job(tmp_path, source={"csv": "nothing-*.csv"}).settings).ended(2, "source.csv: no file matches")


@pytest.mark.night
def test_two_readings_in_a_cell_count_once_and_are_tallied(tmp_path: Path) -> None:
    rows = readings()
    made = job(tmp_path, [*rows, *rows[:10]])
    done = call("run", made.settings, "--json").ended(0)
    assert json.loads(done.out)["operator_only"]["duplicates"] == 10
    assert {row.total for row in made.rows()} == {3 * 48}


def model_file(folder: Path, transition: list[list[float]], edges: tuple[float, ...]) -> str:
    belief = {"kind": "markov-chain", "transition": transition, "initial": None}
    space = StateSpace(edges, unit="W")
    Model(belief, space, HALF_HOUR_US, Provenance(method="written by a test")).save(folder / "model.json")
    return "model.json"


@pytest.mark.parametrize(
    ("transition", "message"), [([[0.9, 0.2], [0.4, 0.6]], "must sum to 1"), ([[1.0, 0.0], [0.4, 0.6]], "reducible")]
)
def test_an_unusable_transition_matrix_exits_with_code_2(
    tmp_path: Path, transition: list[list[float]], message: str
) -> None:
    made = job(tmp_path, states={"edges": [500], "unit": "W"}, model=model_file(tmp_path, transition, (500.0,)))
    call("run", made.settings).ended(2, message)
    assert not made.ledger.exists()


def test_a_model_of_other_states_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path, model=model_file(tmp_path, [[0.9, 0.1], [0.4, 0.6]], (500.0,)))
    call("run", made.settings).ended(2, "fit a model with the settings' edges")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": {"edges": []}}, "states.edges is empty"),
        ({"roster": "nothing.csv"}, "roster"),
        ({"sink": None}, "sink is missing"),
        ({"source": None}, "source is missing"),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_a_wrong_setting_ends_with_exit_code_2_before_any_data_is_read(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    made = job(tmp_path, **changes)
    (tmp_path / "readings.csv").unlink()
    call("run", made.settings).ended(2, message)
    assert not made.ledger.exists()
    assert not made.sink.exists()


@pytest.mark.night
def test_a_stamp_of_a_year_to_come_freezes_no_schedule(tmp_path: Path) -> None:
    ahead = f"{dt.datetime.now(dt.UTC).year + 5}-03-01T00:00Z"
    made = job(tmp_path, windows={"size": "1d", "start": "2024-03-01"})
    write_csv(tmp_path / "readings.csv", [*readings(), ("stranger", ahead, 0.5), ("m1", ahead, 0.5)])
    done = (
        call("run", made.settings)
        .ended(
            2,
            f"windows.stop is left out, and the last reading that counts is of {ahead[:10]}, more than a day",
            "Set windows.stop",
        )
        .hid("stranger", "m1")
    )
    assert not made.sink.exists()
    with Store(f"sqlite:///{made.ledger}") as store:
        assert store.queries() == []
    # of a series that is not in the roster it is one reject more
    write_csv(tmp_path / "readings.csv", [*readings(), ("stranger", ahead, 0.5)])
    done = call("run", made.settings, "--json").ended(0)
    assert json.loads(done.out)["operator_only"]["rejected"] == {"not-in-roster": 1}
    assert max(row.window_start for row in made.rows()) == 7 * 48 * HALF_HOUR_US + 1_709_251_200_000_000
