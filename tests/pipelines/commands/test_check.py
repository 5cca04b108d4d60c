"""``quiltstream check``: what it finds in data, and that it charges, publishes and opens nothing."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from ..jobs import Job, Row, call, job, readings

#: Half-hours of a night of which the hour from 2 is there twice.
TWICE = [(hour, half) for hour in (1, 2, 2, 3) for half in ("00", "30")]


def found(made: Job, code: int = 0) -> dict[str, Any]:
    done = call("check", "--json", made.settings).ended(code)
    return json.loads(done.out)


def test_valid_data_are_counted_and_no_file_is_written(tmp_path: Path) -> None:
    made = job(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    said = found(made)
    assert (said["readings"], said["series"], said["files"]) == (6 * 8 * 48, 6, 1)
    assert (said["first"], said["last"]) == ("2024-03-01T00:00:00Z", "2024-03-08T23:30:00Z")
    assert (said["before"], said["after"], said["counts"]) == (0, 6 * 48, 6 * 7 * 48)
    assert (said["filled"], said["step"], said["rejected"]) == (1.0, 1_800_000_000, [])
    (remark,) = said["remarks"]
    assert remark.endswith("before the first window or after the last; "
                           "windows.stop: 2024-03-09T00:00:00Z takes all whole windows, 1 more")  # fmt: skip
    shown = call("check", made.settings)
    assert shown.said("For the operator only, not to be published")
    assert shown.said("Nothing was charged or published, and no ledger was opened.")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_readings_after_the_last_whole_window_are_no_reason_to_move_its_end(tmp_path: Path) -> None:
    cut = job(tmp_path, windows={"size": "3d", "start": "2024-03-01", "stop": "2024-03-07"})
    assert "windows.stop" not in found(cut)["remarks"][0]


def test_rejects_are_reported_with_file_and_line(tmp_path: Path) -> None:
    rows: list[Row] = readings(days=2)
    rows[4:4] = [("m1", "2024-03-01T01:30Z", "broken"), ("", "2024-03-01T01:30Z", 1.0), ("m1", "soon", 1.0)]
    said = found(job(tmp_path, rows))
    path = tmp_path / "readings.csv"
    assert {one["reason"]: (one["rows"], one["places"]) for one in said["rejected"]} == {
        "not-a-number": (1, [f"{path}:6"]),
        "missing-series": (1, [f"{path}:7"]),
        "unparsable-time": (1, [f"{path}:8"]),
    }


def test_doubled_cells_and_contradictions_are_counted(tmp_path: Path) -> None:
    rows = readings(days=2)
    again = [rows[0], (rows[1][0], rows[1][1], 9.0)]
    said = found(job(tmp_path, [*rows, *again]))
    assert (said["doubled"], said["contradicting"]) == (2, 1)


def test_a_counter_and_a_series_in_another_unit_are_reported(tmp_path: Path) -> None:
    rows: list[Row] = [row for row in readings(days=2) if row[0] not in ("m2", "m5")]
    rows += [("m2", stamp, 1e5 + at if at < 50 else at) for at, (_, stamp, _) in enumerate(rows[:96])]
    rows += [("m5", stamp, value * 1000) for _, stamp, value in rows[:96]]
    said = found(job(tmp_path, rows))
    assert said["never_fall"] == ["m2"]
    assert said["apart"] == ["m5"]
    assert any("register" in one for one in said["remarks"])


def test_falls_of_registers_are_counted_by_series(tmp_path: Path) -> None:
    rows: list[Row] = [(home, stamp, 50.0 + at % 96) for at, (home, stamp, _) in enumerate(readings(days=2))]
    mapping = {"series": "meter", "time": "ts", "value": "kwh", "register": {}, "unit": "kWh", "scale": 2000}
    said = found(job(tmp_path, rows, readings=mapping, missing="state"))
    assert said["fell"] == {}
    rows = [
        (m, t, v - 40 * ((m == "m2" and at % 96 > 9) + (m == "m4" and at % 96 in (20, 50))))
        for at, (m, t, v) in enumerate(rows)
    ]
    said = found(job(tmp_path, rows, readings=mapping, missing="state"))
    assert said["fell"] == {"m2": 1, "m4": 2}


@pytest.mark.night
@pytest.mark.parametrize(
    ("changes", "empty", "step"),
    [
        (
            {"states": {"edges": [250, 500, 1000, 2000, 9000], "unit": "W"}},
            "'9000 W and above'",
            "take edges out of states.edges",
        ),
        (
            {"states": {"categories": ["sit", "walk", "swim"]}},
            "'swim'",
            "put such labels under another one, as 'other'",
        ),
    ],
)
def test_a_state_without_readings_is_reported_because_fit_refuses_it(
    tmp_path: Path, changes: dict[str, Any], empty: str, step: str
) -> None:
    rows: list[Row] = readings(days=7)
    if "categories" in changes["states"]:
        changes = changes | {"readings": {"series": "meter", "time": "ts", "value": "kwh"}}
        rows = [(home, stamp, "sit" if value < 0.3 else "walk") for home, stamp, value in rows]
    made = job(tmp_path, rows, **changes)
    (remark,) = found(made)["remarks"]
    assert remark.startswith(f"no reading is in {empty}: fit refuses a state that no history visits; fit with --belief")
    assert remark.endswith(f"a choice that looked at the data and tells about the data, {step}")
    fit = "fit", made.settings, "-o", tmp_path / "model.json"
    assert call(*fit, "--belief", "pooled").code == 2
    assert call(*fit, "--belief", "pooled", "--smoothing", "1").code == 0


def test_series_outside_the_roster_and_silent_series_are_reported(tmp_path: Path) -> None:
    rows: list[Row] = [("x9" if home == "m3" else home, stamp, value) for home, stamp, value in readings(days=2)]
    said = found(job(tmp_path, rows))
    assert (said["not_in_roster"], said["silent"]) == (96, ["m3"])


@pytest.mark.parametrize(("zone", "is_doubled"), [("Europe/Berlin", True), ("UTC", False)])
def test_an_hour_that_a_clock_set_back_doubles_is_noticed(tmp_path: Path, zone: str, is_doubled: bool) -> None:
    rows = [("m1", f"2024-10-27 0{hour}:{half}", 0.1 * at) for at, (hour, half) in enumerate(TWICE)]
    slots = {"interval": "30min", "origin": "2024-10-27", "timezone": zone}
    mapping = {"series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}
    windows = {"size": "2h", "start": "2024-10-27"}
    made = job(tmp_path, rows, slots=slots, windows=windows, readings=mapping)
    (remark,) = [one for one in found(made)["remarks"] if "had another value" in one]
    assert ("some are of an hour that a clock set back doubles" in remark) == is_doubled
    made = job(tmp_path, rows, slots=slots, windows=windows, readings=mapping | {"ambiguous": "in-order"})
    assert is_doubled == (found(made)["contradicting"] == 0)


def test_data_without_a_counted_reading_exit_with_the_code_of_a_run(tmp_path: Path) -> None:
    rows: list[Row] = [(home, stamp.replace("2024", "2034"), value) for home, stamp, value in readings(days=2)]
    made = job(tmp_path, rows)
    assert found(made, code=5)["counts"] == 0
    assert call("run", made.settings).code == 5
    assert not made.sink.exists()


@pytest.mark.parametrize("command", ["check", "fit"])
def test_a_source_that_never_ends_is_refused_with_what_looks_at_it(tmp_path: Path, command: str) -> None:
    made = job(tmp_path, source={"stdin": "csv"}, model="model.json").settings
    call(command, made).ended(2, "source.stdin is read as it comes")
    broker = {"pubsub": {"subscription": "projects/my-grid/subscriptions/meters"}}
    if command == "fit":
        broker = {"kafka": {"servers": "h:1", "topic": "t"}}
    made = job(tmp_path, source=broker, sink={"jsonl": "out"}, model="model.json").settings
    call(command, made).ended(2, "is read as it comes", "check looks at its messages", "fit is files")


@pytest.mark.parametrize(
    ("size", "stop", "later"),
    [
        ("1d", "2024-03-11", "2 windows of 10 later"),
        ("week", "2024-03-11", "1 window of 1 later"),
        ("1d", "2024-03-09", None),
        ("1d", None, None),
    ],
)
def test_windows_that_end_after_the_last_reading_are_told(
    tmp_path: Path, size: str, stop: str | None, later: str | None
) -> None:
    windows = {"size": size, "start": "2024-03-01"} | ({} if stop is None else {"stop": stop})
    slots = {"interval": "30min", "origin": "2024-03-01", "timezone": "UTC"}
    made = job(tmp_path, windows=windows, slots=slots)
    done = call("check", made.settings).ended(0)
    found = json.loads(call("check", "--json", made.settings).out)
    assert (found["unended"] > 0) == (later is not None) == done.said("later: quiltstream run would publish")
    assert later is None or done.said(later)


def remarks(made: Job) -> list[str]:
    return found(made)["remarks"]


@pytest.mark.night
def test_steps_are_compared_by_series(tmp_path: Path) -> None:
    rows: list[Row] = [row for at, row in enumerate(readings(days=2)) if row[0] != "m2" or at % 4 == 0]
    (remark,) = [one for one in remarks(job(tmp_path, rows)) if "apart" in one]
    assert remark.startswith("the readings of 1 series (m2) are 2h apart, and most others 30min")


@pytest.mark.night
def test_units_are_compared_by_file(tmp_path: Path) -> None:
    made = job(tmp_path, readings(days=2), source={"csv": "[lr]*s.csv"})
    text = (tmp_path / "readings.csv").read_text(encoding="utf-8").splitlines()
    rows = [row.replace("2024-03", "2024-04").rsplit(",", 1) for row in text[1:]]
    text = [text[0], *(f"{row},{float(value) * 1000}" for row, value in rows)]
    (tmp_path / "laters.csv").write_text("\n".join(text), encoding="utf-8")
    assert any("laters.csv" in one or "readings.csv" in one for one in remarks(made) if "of other files" in one)


@pytest.mark.night
@pytest.mark.parametrize(("shift", "said"), [(30, True), (0, False)])
def test_stamps_that_are_ends_by_their_days_are_told(tmp_path: Path, shift: int, said: bool) -> None:
    late = dt.timedelta(minutes=shift)
    rows: list[Row] = [(m, (dt.datetime.fromisoformat(t) + late).isoformat(), v) for m, t, v in readings(days=2)]
    assert any("readings.stamps: end" in one for one in remarks(job(tmp_path, rows))) == said


def test_the_commonest_rejects_are_shown_first(tmp_path: Path) -> None:
    rows: list[Row] = [*readings(days=2), *[("m1", "soon", 1.0)] * 3, ("", "2024-03-01T01:30Z", 1.0)]
    assert [one["rows"] for one in found(job(tmp_path, rows))["rejected"]] == [3, 1]
