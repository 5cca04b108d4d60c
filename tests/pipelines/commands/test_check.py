"""``quiltstream check``: what it finds in data, and that it charges, publishes and opens nothing."""

from __future__ import annotations

import datetime as dt
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.pipelines.commands.data_preview import clock_changes

from ..jobs import HOMES, START, Job, Row, call, job, readings

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
    assert said["remarks"] == ["12.5% of the readings are before the first window or after the last"]
    shown = call("check", made.settings)
    assert shown.said("For the operator only, not to be published")
    assert shown.said("Nothing was charged or published, and no ledger was opened.")
    assert {path.name for path in tmp_path.iterdir()} == before


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
    mapping = {"series": "meter", "time": "ts", "value": {"register": {"column": "kwh"}}, "unit": "kWh", "scale": 2000}
    said = found(job(tmp_path, rows, readings=mapping))
    assert said["fell"] == {}
    rows = [
        (m, t, v - 40 * ((m == "m2" and at % 96 > 9) + (m == "m4" and at % 96 in (20, 50))))
        for at, (m, t, v) in enumerate(rows)
    ]
    said = found(job(tmp_path, rows, readings=mapping))
    assert said["fell"] == {"m2": 1, "m4": 2}
    (remark,) = [one for one in said["remarks"] if "fell" in one]
    assert remark.startswith(
        "the counters of 2 series (m2, m4) fell, 3 times in all: a fall is taken for a counter that"
    )


def test_values_a_thousand_times_too_small_for_the_edges_are_reported(tmp_path: Path) -> None:
    rows: list[Row] = [(home, stamp, value / 1000) for home, stamp, value in readings(days=2)]
    (remark,) = [one for one in found(job(tmp_path, rows))["remarks"] if "readings.scale" in one]
    assert "times 1000 they would spread over the bins" in remark


@pytest.mark.parametrize(
    ("given", "count", "step", "is_said"),
    [(-999, 5, 0.1, True), (-1, 5, 0.1, True), (9999, 5, 1, True), (-999, 2, 0.1, False), (-1, 5, 1, False)],
)
def test_a_value_that_stands_for_a_missing_one_is_reported(
    tmp_path: Path, given: int, count: int, step: float, is_said: bool
) -> None:
    rows: list[Row] = [
        (home, stamp, given if at % 20 == 0 and at < 20 * count else at % 9 * step)
        for at, (home, stamp, _) in enumerate(readings(days=2))
    ]
    remarks = [one for one in found(job(tmp_path, rows))["remarks"] if "far from all others" in one]
    said = f"{count} readings have the value {given}, far from all others: where it stands for a missing value, "
    assert remarks == ([f"{said}leave them out of the data"] if is_said else [])


@pytest.mark.parametrize(("every", "share"), [(10, "10.1%"), (200, None)])
def test_many_values_that_are_no_number_are_reported(tmp_path: Path, every: int, share: str | None) -> None:
    rows: list[Row] = [(m, t, '"1,503"' if at % every == 0 else v) for at, (m, t, v) in enumerate(readings(days=2))]
    remarks = [one for one in found(job(tmp_path, rows))["remarks"] if "no number" in one]
    assert [one.split(",")[0] for one in remarks] == ([f"{share} of the values are no number"] if share else [])
    assert all("where it stands before decimals, set readings.decimal" in one for one in remarks)


def test_a_counter_is_not_said_to_be_in_another_unit(tmp_path: Path) -> None:
    rows: list[Row] = [(home, stamp, 100.0 + at % 96) for at, (home, stamp, _) in enumerate(readings(days=2))]
    remarks = found(job(tmp_path, rows))["remarks"]
    assert any("never fall" in one for one in remarks)
    assert any("100.0% of the values are in the bin" in one for one in remarks)
    assert not any("readings.scale" in one for one in remarks)


@pytest.mark.parametrize(
    ("changes", "empty", "step"),
    [
        ({"states": {"edges": [250, 500, 1000, 2000, 9000], "unit": "W"}}, "'9000 W and above'", "take edges out of"),
        ({"states": {"categories": ["sit", "walk", "swim"]}}, "'swim'", "take labels without readings out of"),
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
    assert remark.startswith(f"no reading is in {empty}: fit refuses a state that no history visits; {step}")
    assert remark.endswith(", or fit with --belief pooled --smoothing 1")
    fit = "fit", made.settings, "-o", tmp_path / "model.json"
    assert call(*fit, "--belief", "pooled").code == 2
    assert call(*fit, "--belief", "pooled", "--smoothing", "1").code == 0


@pytest.mark.parametrize(
    ("zone", "span"),
    [
        ("UTC", "2024-03-01T00:15:00Z to 2024-03-08T23:45:00Z"),
        ("Asia/Kolkata", "2024-03-01T00:15:00+05:30 to 2024-03-08T23:45:00+05:30"),
    ],
)
def test_the_span_of_a_counter_is_that_of_its_readings_on_the_clock_of_the_zone(
    tmp_path: Path, zone: str, span: str
) -> None:
    quarter = dt.timedelta(minutes=15)
    stamps = [dt.datetime.fromisoformat(stamp) + quarter for _, stamp, _ in readings(homes=["m1"])]
    rows: list[Row] = [("m1", f"{stamp:%Y-%m-%d %H:%M}", at) for at, stamp in enumerate(stamps)]
    mapping = {"series": "meter", "time": "ts", "value": {"register": {"column": "kwh"}}, "unit": "kWh", "scale": 2000}
    slots = {"interval": "30min", "origin": "2024-03-01", "timezone": zone}
    made = job(tmp_path, rows, readings=mapping, slots=slots)
    assert call("check", made.settings).said(f"span {span}")
    utc = [dt.datetime.fromisoformat(one).timestamp() for one in span.replace("Z", "+00:00").split(" to ")]
    said = found(made)
    assert [dt.datetime.fromisoformat(said[one]).timestamp() for one in ("first", "last")] == utc


def test_a_small_share_is_not_said_to_be_none(tmp_path: Path) -> None:
    rows = [*readings(days=7), ("m1", "2024-02-01T00:00Z", 0.1), ("x9", "2024-03-02T00:00Z", 0.1)]
    assert found(job(tmp_path, rows))["remarks"] == [
        "<0.1% of the readings are of series that the roster does not have",
        "<0.1% of the readings are before the first window or after the last",
    ]


@pytest.mark.parametrize(
    ("step", "late", "interval", "said"),
    [
        (1800, 20, "30min", None),
        (2700, 20, "45min", None),  # of no usual length
        (1801, 0, "30min", None),
        (1800, 20, "10min", "30min apart, and slots.interval is 10min: about 67% of the cells stay empty"),
    ],
)
def test_stamps_that_vary_are_compared_with_the_slots_by_their_usual_step(
    tmp_path: Path, step: int, late: int, interval: str, said: str | None
) -> None:
    draw = random.Random(3)
    stamps = [START + dt.timedelta(seconds=slot * step + draw.uniform(0, late)) for slot in range(200)]
    rows: list[Row] = [("m1", stamp.isoformat(), 0.1) for stamp in stamps]
    windows = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-03"}
    made = job(tmp_path, rows, slots={"interval": interval, "origin": "2024-03-01"}, windows=windows)
    remarks = [one for one in found(made)["remarks"] if "apart" in one]
    assert remarks == ([] if said is None else [f"most readings of a series are {said}"])


def test_series_outside_the_roster_and_silent_series_are_reported(tmp_path: Path) -> None:
    rows: list[Row] = [("x9" if home == "m3" else home, stamp, value) for home, stamp, value in readings(days=2)]
    said = found(job(tmp_path, rows))
    assert (said["not_in_roster"], said["silent"]) == (96, ["m3"])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("m1", " m1 ", "m2"), "2 names of series differ from another one by blanks around it"),
        (("Z\u00e4hler", "Za\u0308hler", "m1 ", "m2"), "4 names of series differ from another one by blanks around it"),
        (("m1", "M1", "m 1"), None),
    ],
    ids=["blanks", "letters and a roster", "others"],
)
def test_names_that_differ_by_blanks_or_the_form_of_letters_are_counted(
    tmp_path: Path, names: tuple[str, ...], said: str | None
) -> None:
    rows = [(name, stamp, value) for name in names for _, stamp, value in readings(2, ["m"])]
    made = job(tmp_path, rows)
    remarks = [one for one in found(made)["remarks"] if "names of series" in one]
    assert [one.split(",")[0] for one in remarks] == ([] if said is None else [said])


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


@pytest.mark.parametrize(("zone", "is_said"), [("UTC", True), ("Europe/Berlin", False)])
@pytest.mark.parametrize(
    ("night", "hours", "said"),
    [
        ("2024-10-27", (1, 2, 2, 3), "has times twice, as where a clock is set back, in 2 of 3 series"),
        ("2024-03-31", (0, 1, 3, 4), "has no times, as where a clock is set forward, in 2 of 3 series"),
        ("2024-10-26", (1, 2, 2, 3), None),
        ("2024-03-30", (0, 1, 3, 4), None),
    ],
)
def test_local_times_that_are_read_as_utc_are_noticed_where_a_clock_is_set(
    tmp_path: Path, night: str, hours: tuple[int, ...], said: str | None, zone: str, is_said: bool
) -> None:
    rows = [(home, f"{night} 0{hour}:{half}", 0.1) for home in ("m1", "m2") for hour in hours for half in ("00", "30")]
    rows += [("m3", f"{night} 0{hour}:{half}", 0.1) for hour in range(5) for half in ("00", "30")]
    slots = {"interval": "30min", "origin": night, "timezone": zone}
    mapping = {"series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}
    made = job(tmp_path, rows, slots=slots, windows={"size": "2h", "start": night}, readings=mapping)
    remarks = [one for one in found(made)["remarks"] if "as where a clock is set" in one]
    assert len(remarks) == (is_said and said is not None)
    for remark in remarks:
        assert said is not None
        assert remark.startswith(f"the hour from {night}T02:00:00Z of a Sunday {said}: if the data have local times")


def test_a_clock_that_is_set_is_noticed_where_other_readings_are_lost_or_twice() -> None:
    hours = np.arange(np.datetime64("2024-10-20T00", "h"), np.datetime64("2024-11-03T00", "h"))
    steps, night = hours.astype("datetime64[us]").astype(np.int64), 7 * 24 + 2
    codes, instants = list[int](), list[int]()
    for home in range(6):
        lost, twice = ({20 * home + at for at in range(0, 12, 3)}, {200 + 20 * home + at for at in (1, 4)} | {night})
        times = [at for at in range(len(steps)) for _ in range(1 + (at in twice)) if at not in lost]
        codes += [home] * len(times)
        instants += steps[times].tolist()
    (said,) = clock_changes(np.array(codes), np.array(instants), 6)
    assert said.startswith("the hour from 2024-10-27T02:00:00Z of a Sunday has times twice")


def test_stamps_of_days_are_no_clock_that_is_set_back() -> None:
    days = np.repeat(np.arange(np.datetime64("2024-03-01", "D"), np.datetime64("2024-05-01", "D")), 24)
    instants = days.astype("datetime64[us]").astype(np.int64)
    assert list(clock_changes(np.zeros(len(instants), dtype=np.int64), instants, 1)) == []


def test_a_series_that_names_two_groups_is_noticed(tmp_path: Path) -> None:
    rows = readings(days=2)
    made = job(tmp_path, roster=None, group_by="street", windows={"size": "1d", "start": "2024-03-01"})
    lines = [
        f"{home},{stamp},{value},{'south' if home == 'm3' and at % 96 > 40 else 'north'}"
        for at, (home, stamp, value) in enumerate(rows)
    ]
    (tmp_path / "readings.csv").write_text("\n".join(["meter,ts,kwh,street", *lines]) + "\n", encoding="utf-8")
    (remark,) = [one for one in found(made)["remarks"] if "more than one group" in one]
    assert remark.startswith("1 series (m3) names more than one group: a run takes that of the earliest reading")


def test_intervals_are_counted_as_by_a_run(tmp_path: Path) -> None:
    mapping = {"series": "meter", "time": "ts", "value": "label", "until": "end"}
    made = job(tmp_path, readings=mapping, states={"categories": ["sit", "walk"]}, model={"pi_min": 0.05, "gap": 0.3})
    ends = [START + at * dt.timedelta(hours=5) for at in range(41)]
    spans = [f"{begin},{end},{'sit' if begin.hour < 9 else 'walk'}" for begin, end in pairwise(ends)]
    lines = [f"{home},{span}" for home in HOMES for span in spans]
    (tmp_path / "readings.csv").write_text("\n".join(["meter,ts,end,label", *lines]) + "\n", encoding="utf-8")
    said = found(made)
    ran = call("run", "--json", made.settings).ended(0)
    operator = json.loads(ran.out)["operator_only"]
    assert (said["counts"], said["after"]) == (operator["readings"], operator["outside_schedule"]) == (2016, 18)


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
    kafka = {"kafka": {"servers": "h:1", "topic": "t"}}
    made = job(tmp_path, source=kafka, sink={"jsonl": "out"}, model="model.json").settings
    call(command, made).ended(2, "source.kafka is read as it comes", "try looks at its messages", "fit is files")


@pytest.mark.parametrize(
    ("size", "stop", "later"),
    [
        (
            "1d",
            "2024-03-11",
            "2 of the 10 windows end later: quiltstream run would publish them as they are now, for ever",
        ),
        ("week", "2024-03-11", "1 of the 1 window ends later: quiltstream run would publish it as it is now, for ever"),
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
    # a stop is named only where a window is whole by then
    assert done.said("or set windows.stop to 2024-03-09T00:00:00Z: a later run may have a later one") == (
        later is not None and size == "1d"
    )
