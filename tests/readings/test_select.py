"""A SELECT of readings: what it may hold, what fails alone, what is never told, and the macros by their cases."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from quiltstream.schemas.settings.base import GONE, SettingsError
from quiltstream.transforms.readings import select
from quiltstream.transforms.readings.select import Select

from ..pipelines.jobs import call
from .test_cases import REST

BATCH = pa.record_batch(
    {
        "meter": ["a", "b", "c", "d"],
        "ts": ["2024-01-01", "2024-01-02", "soon", "2024-01-04"],
        "kwh": ["1", "x", "-9999", "4"],
        "unit": ["kWh", "kWh", "Wh", "kWh"],
    }
)
LINES = np.array([2, 3, 4, 5])
PLAIN = "select meter as series, ts as time, kwh as value from files"


def over(text: str) -> tuple[list[dict[str, Any]], list[int], list[int]]:
    table, lines, failed = Select(text).over(BATCH, LINES, "in/home_7.csv")
    return table.to_pylist(), lines.tolist(), failed.tolist()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{PLAIN} order by 1", "ORDER BY"),
        (f"{PLAIN} limit 1", "LIMIT"),
        (f"{PLAIN} using sample 10%", "SAMPLE"),
        (f"{PLAIN} union all {PLAIN}", "UNION"),
        (PLAIN.replace("select", "select distinct"), "DISTINCT"),
        (PLAIN.replace("kwh as", "row_number() over () as"), "window function"),
        (PLAIN.replace("kwh as", "(select max(kwh) from files) as"), "subquery"),
        (PLAIN.replace("ts as", "now() as"), "now"),
        (PLAIN.replace("ts as", "current_timestamp as"), "current_timestamp"),
        (PLAIN.replace("files", "other"), "'other'"),
        (PLAIN.replace("files", "'/etc/passwd'"), "passwd"),
        ("select * from read_csv('x.csv')", "reads from a function; the rows are in `files`"),
        ("select meter as series,\n  ts as time frm files", "line 2"),
        ("select meter as series, ts as time from files", "no column 'value'"),
        # which cells are missing must not depend on what was measured
        (f"{PLAIN} where kwh < '2' or meter = 'a'", "'kwh'"),
        ("with r as (select *, num(kwh) as x from files) select meter as series, ts as time, x as value from r "
         "where x > 2", "'x'"),
        (PLAIN.replace("kwh as", "case when num(kwh) > 2 then kwh end as"), "'kwh'"),
        (PLAIN.replace("kwh as", "case when num(kwh) > 2 then 1 end as"), "'kwh'"),
        (PLAIN.replace("ts as", "kwh as"), "makes time of 'kwh'"),
        (PLAIN.replace("kwh as", "kwh->>'v' as") + " where kwh like '%9%'", "'kwh'"),
        (PLAIN.replace("kwh as", "kwh->>'v' as") + " where (kwh->'v'->>'w') > '9'", "'kwh.v.w'"),
        (PLAIN.replace("kwh as", "kwh->'v'->>'w' as") + " where (kwh->>'$.v.w') > '9'", "'kwh'"),
        (PLAIN.replace("kwh as", "kwh->>'v' as").replace("ts as", "kwh->>'v' as"), "makes time of 'kwh.v'"),
    ],
)  # fmt: skip
def test_a_select_that_is_not_row_by_row_is_refused_by_name(text: str, named: str) -> None:
    """More of them are among ``cases``."""
    with pytest.raises(SettingsError, match=named):
        over(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (PLAIN, ["1", "x", "-9999", "4"]),
        (f"{PLAIN} where kwh <> '-9999'", ["1", "x", "4"]),
        (f"{PLAIN} where kwh not in ('x', '-9999') and unit = 'kWh'", ["1", "4"]),
        (f"{PLAIN} where meter > 'b'", ["-9999", "4"]),
        (PLAIN.replace("kwh as", "nullif(kwh, '-9999') as"), ["1", "x", None, "4"]),
        (PLAIN.replace("kwh as", "num(kwh) * case meter when 'a' then 2 else 1 end as"), [2.0, None, -9999.0, 4.0]),
        (PLAIN.replace("kwh as", "num(kwh) * case unit when 'kWh' then 1000 else 1 end as"), [1e3, None, -9999.0, 4e3]),
        (PLAIN.replace("kwh as", "unnest([kwh, unit]) as"), ["1", "kWh", "x", "kWh", "-9999", "Wh", "4", "kWh"]),
        (PLAIN.replace("kwh as", "unit->>'v' as") + " where kwh in ('4') and (unit->>'q') > 'b'", []),
        (PLAIN.replace("kwh as", "file_stem(filename) as"), ["home_7"] * 4),
    ],
)
def test_a_row_wise_select_makes_values_of_rows(text: str, values: list[Any]) -> None:
    assert [row["value"] for row in over(text)[0]] == values


def test_a_row_that_fails_costs_itself_and_keeps_its_line() -> None:
    rows, lines, failed = over("select meter as series, ts::timestamp as time, kwh as value from files")
    assert [row["series"] for row in rows] == ["a", "b", "d"]
    assert (lines, failed) == ([2, 3, 5], [4])


def test_the_result_is_the_same_however_rows_are_cut_into_batches() -> None:
    rng = np.random.default_rng(20241128)
    rows = 200
    batch = pa.record_batch(
        {
            "meter": rng.choice(["a", "b"], rows),
            "ts": [f"2024-10-27 {at % 24:02}:30" if at % 7 else "never" for at in range(rows)],
            "kwh": [str(one) for one in rng.integers(0, 9, rows)],
        }
    )
    text = "select meter as series, local_time(ts::timestamp, 'Europe/Paris') as time, num(kwh) as value from files"
    numbers = np.arange(rows)
    whole, lines, failed = Select(text).over(batch, numbers, "x.csv")
    cuts = [0, *sorted(rng.choice(rows, 9, replace=False).tolist()), rows]
    parts = [
        Select(text).over(batch.slice(start, stop - start), numbers[start:stop], "x.csv")
        for start, stop in pairwise(cuts)
    ]
    assert pa.concat_tables([one for one, _, _ in parts]).equals(whole)
    assert np.concatenate([one for _, one, _ in parts]).tolist() == lines.tolist()
    assert np.concatenate([one for _, _, one in parts]).tolist() == failed.tolist()
    assert len(failed) == len([at for at in range(rows) if at % 7 == 0])


def cases() -> list[dict[str, str]]:
    with select.CASES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="|"))


@pytest.mark.parametrize("case", cases(), ids=lambda one: one["expression"])
def test_a_macro_makes_of_its_case_what_the_table_says(case: dict[str, str]) -> None:
    # zones and clocks of the table were written from zoneinfo's
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    connection.execute(select.MACROS.read_text(encoding="utf-8"))
    made = connection.execute(f"select cast({case['expression']} as varchar)").fetchall()[0][0]
    assert (made or "") == case["result"]


def settings_of(folder: Path, readings: Any, **source: Any) -> Path:
    path = folder / "settings.yaml"
    rest = REST | {"windows": {"size": "1d"}, "slots": {"interval": "30min"}, "states": {"edges": [1, 2]}}
    path.write_text(yaml.safe_dump({"source": source, "readings": readings} | rest), encoding="utf-8")
    return path


#: What a job of plain columns imports, from its settings to its readings.
PLAIN_JOB = """
import sys
from pathlib import Path
from quiltstream.pipelines.runners import read_source
from quiltstream.schemas.settings.job import Settings
rows = sum(found.readings.num_rows for _, found in read_source(Settings.read(Path(sys.argv[1]))).decoded())
print(rows, "duckdb" in sys.modules)
"""


def imported(settings: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PLAIN_JOB, settings], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.night
def test_plain_columns_are_read_without_duckdb(tmp_path: Path) -> None:
    pq.write_table(pa.table({"meter": ["a"], "ts": ["2024-01-01"], "kwh": [1.5]}), tmp_path / "a.parquet")
    plain = settings_of(tmp_path, {"series": "meter", "time": "ts", "value": "kwh"}, parquet="*.parquet")
    assert imported(plain) == ["1", "False"]
    queried = settings_of(tmp_path, PLAIN, parquet="*.parquet")
    assert imported(queried) == ["1", "True"]


UNPIVOT = "select name as series, 0 as time, num(v) as value from (unpivot {0} into name name value v)"


@pytest.mark.parametrize(
    "text",
    [
        UNPIVOT.format("files on columns(* exclude (date))"),
        UNPIVOT.format("files on * exclude (date)"),
        UNPIVOT.format("(select a, b from files) on *"),
    ],
)
def test_an_unpivot_of_every_column_leaves_out_those_that_are_not_of_the_file(text: str) -> None:
    batch = pa.record_batch({"a": ["1", "2"], "b": ["3", "4"], "date": ["x", "y"]})
    table, _, _ = Select(text).over(batch, np.array([2, 3]), "x.csv")
    found = sorted((row["series"], row["value"]) for row in table.to_pylist())
    assert found == [("a", 1), ("a", 2), ("b", 3), ("b", 4)]


def test_the_select_that_stands_for_a_setting_that_went_reads_such_a_table() -> None:
    batch = pa.record_batch({"date": ["2024-01-01", "2024-01-02"], "a": ["1", "2"], "b": ["3", ""]})
    text = GONE["readings.wide"].removeprefix("a SELECT reads such a table: ").partition(";")[0]
    table, lines, failed = Select(text).over(batch, np.array([2, 3]), "x.csv")
    rows = sorted((row["series"], row["time"], row["value"]) for row in table.to_pylist() if row["value"] is not None)
    assert rows == [("a", "2024-01-01", 1.0), ("a", "2024-01-02", 2.0), ("b", "2024-01-01", 3.0)]
    assert (sorted(lines.tolist()), failed.tolist()) == ([2, 2, 3, 3], [])


def test_a_file_of_very_many_columns_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",".join(["meter,ts,kwh", *map(str, range(20_000))]) + "\n", encoding="utf-8")
    call("check", settings_of(tmp_path, PLAIN, csv="a.csv")).ended(2, "has 20,003 columns")


def test_rejects_of_a_select_are_told_by_reason_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("meter,ts,kwh\na,2024-01-01,1\na,later,1\na,2024-01-02,x\na,b\n", encoding="utf-8")
    done = call("check", settings_of(tmp_path, PLAIN, csv="a.csv"), "--json").ended(0)
    found = {
        (one["reason"], *(Path(place).name for place in one["places"])) for one in json.loads(done.out)["rejected"]
    }
    assert found == {("unparsable-time", "a.csv:3"), ("not-a-number", "a.csv:4"), ("malformed-row", "a.csv:5")}
    done.hid("later")


def test_settings_of_plain_columns_beside_a_select_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("meter,ts,kwh\na,2024-01-01,1\n", encoding="utf-8")
    readings = {"select": PLAIN, "value": "kwh"}
    call("check", settings_of(tmp_path, readings, csv="a.csv")).ended(2, "readings.value")
