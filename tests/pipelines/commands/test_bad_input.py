"""Bad input at the command line: what each mistake ends with, and that no message shows data."""

from __future__ import annotations

import csv
import datetime as dt
import errno
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

from ..jobs import HOMES, call, job, readings, write_as, write_csv

HALF_HOUR_US = 1_800_000_000


def rejects(folder: Path) -> list[dict[str, str]]:
    with (folder / "rejects.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


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
    [
        "alice,2024-03-01T00:00Z,0.05",
        "alice,1 Mar 2024,x",
        "alice,March 1,x",
        "alice,01/03/2024,",
        "alice,x,-.5",
        "b,c,NaN",
    ],
)
def test_the_first_line_of_a_file_without_a_header_is_not_shown(tmp_path: Path, line: str) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").write_text(f"{line}\n{line}\n", encoding="utf-8")
    done = call("run", made.settings).ended(
        2,
        "readings.value names the column 'kwh'",
        "it has 3 columns, not shown because some look like values: check that its first line is a header, or",
    )
    assert not any(f"'{field}'" in done.err for field in line.split(","))


@pytest.mark.parametrize("content", ["", "meter,ts,kwh\n"], ids=["no byte", "a header only"])
def test_an_empty_file_publishes_the_schedule_only_with_the_flag(tmp_path: Path, content: str) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").write_text(content, encoding="utf-8")
    assert call("run", made.settings).code == 5
    call("run", made.settings, "--even-if-empty").ended(0)
    rows = made.rows()
    assert len(rows) == 14
    assert {row.total for row in rows} == {0}


def test_an_empty_file_with_incomplete_settings_is_refused(tmp_path: Path) -> None:
    done = call("run", job(tmp_path, [], roster=None, group_by=None, windows={"size": "1d"}).settings).ended(5)
    assert done.err.startswith("Error: source: there is no reading to take roster, windows.start and windows.stop from")
    assert done.said("source.csv: readings.csv has no rows")
    assert "while running" not in done.err


def test_a_source_of_only_rejects_is_reported_with_its_file_and_reasons(tmp_path: Path) -> None:
    rows = [(home, "secret", 0.5) for home in HOMES] + [("m1", "2024-03-01T00:00Z", "secret")]
    made = job(tmp_path, rows, windows={"size": "1d", "start": "2024-03-01"})
    call("run", made.settings).ended(
        5,
        "there is no reading to take windows.stop from",
        "source.csv: readings.csv was read, and every row rejected: ",
        "6 rows: the time is empty, not a time",
        "1 row: the value is not a number",
    ).hid("roster", "windows.start", "secret")
    assert not made.sink.exists()


def test_ends_of_the_data_without_a_window_are_instants_with_the_rejects(tmp_path: Path) -> None:
    rows = [(home, stamp, "1'000.0" if at % 48 > 9 else value) for at, (home, stamp, value) in enumerate(readings(1))]
    made = job(tmp_path, rows, windows={"size": "1d"})
    call("run", made.settings).ended(
        2,
        "windows: no whole window of 1d lies between the slot of the first reading, 2024-03-01T00:00:00Z, and the slot "
        "of the last reading, 2024-03-01T04:30:00Z; use a smaller windows.size, or set windows.start and windows.stop "
        "further apart",
        "readings.csv was read: 60 readings, and rows rejected: 228 rows: the value is not a number",
    ).hid("slots", "1970")
    assert not made.sink.exists()


@pytest.mark.parametrize("windows", [{"size": "1d"}, {"size": "1d", "start": "2024-03-01"}], ids=["no end", "a start"])
def test_day_numbers_of_a_spreadsheet_are_called_times_in_1970(tmp_path: Path, windows: dict[str, str]) -> None:
    rows = [(home, str(45_352 + at / 48), 0.5) for home in HOMES for at in range(96)]
    made = job(
        tmp_path, rows, windows=windows, readings={"series": "meter", "time": "ts", "time_unit": "s", "value": "kwh"}
    )
    call("run", made.settings).ended(
        2,
        "and the slot of the last reading, 1970-01-01T12:30:00Z",
        "times in 1970: another unit, or day numbers of a spreadsheet?",
    )


def test_a_truncated_parquet_file_ends_with_exit_code_5_before_anything_is_on_record(tmp_path: Path) -> None:
    made = job(tmp_path, source={"parquet": "readings.parquet"})
    path = write_as("parquet", tmp_path / "readings.parquet", readings())
    path.write_bytes(path.read_bytes()[:-100])
    call("run", made.settings).ended(5, "is not a whole Parquet file")
    assert not made.ledger.exists()


def test_a_file_that_changes_while_it_is_read_ends_with_exit_code_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(tmp_path)
    rows, path, read = FileDecoder.raw_rows, tmp_path / "readings.csv", list[str]()

    def raw_rows(decoder: FileDecoder, task: FileTask, parquet: Any = None) -> Iterator[Any]:
        yield from rows(decoder, task, parquet)
        read.append(task.path)
        os.truncate(path, path.stat().st_size - 3)

    with monkeypatch.context() as patch:
        patch.setattr(FileDecoder, "raw_rows", raw_rows)
        done = call("run", made.settings)
    assert read
    assert (done.code, done.said("readings.csv changed while it was read")) == (5, True), done.err
    assert not made.sink.exists()
    with closing(sqlite3.connect(made.ledger)) as ledger:
        assert ledger.execute("SELECT COUNT(*) FROM quiltstream_charges").fetchone() == (0,)


def test_an_empty_file_is_named_for_the_operator_only(tmp_path: Path) -> None:
    made = job(tmp_path, source={"csv": "readings*.csv"})
    empty = tmp_path / "readings-empty.csv"
    empty.write_bytes(b"")
    lines = [f"1 empty file: {empty}"]
    assert json.loads(call("check", made.settings, "--json").out)["left_out"] == lines
    done = call("run", made.settings, "--json").ended(0)
    assert json.loads(done.out)["operator_only"]["left_out"] == lines
    for command in ("check", "run"):
        assert call(command, made.settings).said("1 empty file:")


def test_a_folder_that_may_not_be_listed_ends_with_exit_code_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(tmp_path, source={"csv": "sites/*/*.csv"})
    for name in ("a", "b"):
        (tmp_path / "sites" / name).mkdir(parents=True)
        write_csv(tmp_path / "sites" / name / "readings.csv", readings())
    scandir = os.scandir

    def refuse(folder: Any = ".") -> Any:
        if str(folder).endswith("sites/b"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    for command in ("check", "run"):
        call(command, made.settings).ended(5, "sites/b cannot be listed (Permission denied)")
    assert not made.ledger.exists()


def test_a_missing_source_exits_with_code_2(tmp_path: Path) -> None:
    call("run", job(tmp_path, source={"csv": "nothing-*.csv"}).settings).ended(2, "source.csv: no file matches")


def test_two_readings_in_a_cell_count_once_and_are_tallied(tmp_path: Path) -> None:
    rows = readings()
    made = job(tmp_path, [*rows, *rows[:10]])
    done = call("run", made.settings, "--json").ended(0)
    assert json.loads(done.out)["operator_only"]["duplicates"] == 10
    assert {row.total for row in made.rows()} == {3 * 48}


def test_a_series_that_stops_early_is_published_to_the_end(tmp_path: Path) -> None:
    rows = [row for row in readings() if row[0] != "m1" or row[1] < "2024-03-03"]
    made = job(tmp_path, rows, group_by=None)
    assert call("run", made.settings).code == 0
    totals = [row.total for row in made.rows() if row.key == "m1"]
    assert totals == [48, 48, 0, 0, 0, 0, 0]


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


def test_a_missing_model_exits_with_code_2_and_names_the_command_to_fit_one(tmp_path: Path) -> None:
    call("run", job(tmp_path, model="model.json").settings).ended(2, "write one with `quiltstream fit`")


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


def test_a_dry_run_without_a_sink_ends_as_the_run_does(tmp_path: Path) -> None:
    done = call("run", "--dry-run", "--json", job(tmp_path, sink=None).settings).ended(2)
    assert (
        "sink is missing: it names the file for the released rows, e.g. {parquet: releases.parquet}"
        in json.loads(done.out)["run"]["text"]
    )


def test_windows_that_begin_after_the_data_are_told_of_by_that(tmp_path: Path) -> None:
    made = job(tmp_path, windows={"size": "1d", "start": "2034-03-01"})
    call("run", made.settings).ended(2, "; the data end before windows.start: correct it").hid("further apart")


def test_a_window_too_short_for_a_quilt_gets_group_noise_and_is_reported(tmp_path: Path) -> None:
    made = job(
        tmp_path,
        model={"pi_min": 0.01, "gap": 0.01},
        windows={"size": "2h", "start": "2024-03-01", "stop": "2024-03-01T04:00Z"},
        privacy={"epsilon": 1.0, "guarantee": "window", "budget": 9.0},
    )
    said = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    assert said["quilt"] == {"left": None, "right": None}
    assert said["sigma"] == 4.0  # the slots of the window over epsilon
    assert call("run", "--dry-run", made.settings).said("the window is too short for one")
    assert call("run", made.settings).code == 0


def test_a_roster_without_the_column_is_refused_and_not_quoted(tmp_path: Path) -> None:
    made = job(tmp_path, group_by="avenue")
    call("run", made.settings).ended(2, "it has 2 columns, none of them 'avenue'").hid("street")


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


def test_series_outside_the_roster_are_rejected_and_tallied(tmp_path: Path) -> None:
    done = call("run", job(tmp_path, readings(homes=[*HOMES, "stranger"])).settings, "--json")
    assert json.loads(done.out)["operator_only"]["rejected"] == {"not-in-roster": 384}
    assert "stranger" not in (tmp_path / "rejects.csv").read_text(encoding="utf-8")
    assert "stranger" not in done.out + done.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"epsilon": 1e-300}}, "privacy.epsilon is 1e-300, but must be at least 1.42e-14"),
        (
            {"privacy": {"epsilon": 1e308, "mechanism": "forward-backward"}},
            "privacy.epsilon is 1e+308, but must be at most 1e+06, which promises nothing any more; write a smaller",
        ),
        ({"model": {"pi_min": 0.6, "gap": 0.3}}, "model.pi_min is 0.6, but must be at most 0.5"),
    ],
)
def test_a_number_out_of_range_is_reported_with_its_setting(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    call("run", "--dry-run", job(tmp_path, **changes).settings).ended(2, message).hid("rational_scale")
