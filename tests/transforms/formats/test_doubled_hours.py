"""The hour that a clock change doubles: told apart by the order of a file's rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines.connectors.folders import FollowedFiles
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.job import EXAMPLE, load_settings
from quiltstream.schemas.settings.mappings import Readings, check_message
from quiltstream.transforms.sources.files import ReadReadings

ZONE = ZoneInfo("Europe/Berlin")
#: Half-hours around the end of summer time in two years: 27 October 2013 and 26 October 2014 have 02:00 to 03:00 twice.
INSTANTS = [
    dt.datetime(year, 10, day, 22, tzinfo=dt.timezone.utc) + n * dt.timedelta(minutes=30)
    for year, day in ((2013, 26), (2014, 25))
    for n in range(16)
]
LOCAL = [instant.astimezone(ZONE).strftime("%Y-%m-%d %H:%M") for instant in INSTANTS]
MICROS = [int(instant.timestamp() * 1e6) for instant in INSTANTS]
LONG: dict[str, Any] = {"series": "home", "time": "ts", "value": "kwh", "ambiguous": "in-order"}


def read(reader: ReadReadings) -> list[tuple[str, float, int]]:
    """Series, value and instant of each reading, in this order."""
    found: list[tuple[str, float, int]] = []
    for _, part in reader.decoded():
        assert part.readings is not None
        times = part.readings["time"].cast(pa.int64()).to_pylist()
        found += zip(part.readings["series"].to_pylist(), part.readings["value"].to_pylist(), times, strict=True)
    return sorted(found)


def reader(path: Path, readings: dict[str, Any], **how: Any) -> ReadReadings:
    source = FileSource.model_validate({"parquet" if path.suffix == ".parquet" else "csv": str(path)})
    return ReadReadings(source, Readings.model_validate(readings), timezone="Europe/Berlin", **how)


EXPECTED = sorted((home, float(n), micros) for home in ("a", "b") for n, micros in enumerate(MICROS))


@pytest.mark.parametrize("batch_rows", [1, 1 << 17])
@pytest.mark.parametrize("by_time", [False, True])
def test_rows_that_step_back_are_in_the_second_hour(tmp_path: Path, batch_rows: int, *, by_time: bool) -> None:
    assert LOCAL[4:8] == ["2013-10-27 02:00", "2013-10-27 02:30", "2013-10-27 02:00", "2013-10-27 02:30"]
    rows = [(n, home) for home in ("a", "b") for n in range(len(LOCAL))]
    rows = sorted(rows) if by_time else rows
    text = "\n".join(["home,ts,kwh", *(f"{home},{LOCAL[n]},{n}" for n, home in rows)])
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert read(reader(tmp_path / "x.csv", LONG, batch_rows=batch_rows)) == EXPECTED
    plain = read(reader(tmp_path / "x.csv", {**LONG, "ambiguous": "earliest"}))
    assert sum(one != other for one, other in zip(plain, EXPECTED, strict=True)) == 8


def test_row_groups_of_parquet_are_one_order(tmp_path: Path) -> None:
    columns = {"home": ["a"] * len(LOCAL), "ts": np.array(LOCAL, "datetime64[us]"), "kwh": np.arange(len(LOCAL)) * 1.0}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=5)
    made = reader(tmp_path / "x.parquet", LONG, batch_rows=3)
    assert len(made.tasks) == 1
    assert read(made) == [one for one in EXPECTED if one[0] == "a"]
    assert len(reader(tmp_path / "x.parquet", {**LONG, "ambiguous": "latest"}, batch_rows=1).tasks) > 1


def test_each_file_has_an_order_of_its_own(tmp_path: Path) -> None:
    for home in ("a", "b"):
        text = "\n".join(["home,ts,kwh", *(f"same,{local},{n}" for n, local in enumerate(LOCAL))])
        (tmp_path / f"{home}.csv").write_text(text, encoding="utf-8")
    found = read(reader(tmp_path / "*.csv", LONG))
    assert found == sorted([("same", value, micros) for _, value, micros in EXPECTED])


def test_the_lines_of_a_wide_table_are_in_order_together(tmp_path: Path) -> None:
    text = "\n".join(["ts,a,b", *(f"{local},{n},{n if n % 3 else ''}" for n, local in enumerate(LOCAL))])
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    wide = {"wide": {"columns": "series"}, "time": "ts", "ambiguous": "in-order"}
    assert read(reader(tmp_path / "x.csv", wide)) == [one for one in EXPECTED if one[0] == "a" or one[1] % 3]


def test_a_second_hour_stays_one_where_the_first_has_gaps(tmp_path: Path) -> None:
    """Of the first hour only 02:00 is there, so that 02:30 of the second one rises above all before it."""
    kept = [n for n in range(16) if n != 5]
    text = "\n".join(["home,ts,kwh", *(f"a,{LOCAL[n]},{n}" for n in kept)])
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert read(reader(tmp_path / "x.csv", LONG)) == [("a", float(n), MICROS[n]) for n in kept]


def test_an_order_is_refused_where_there_is_none(tmp_path: Path) -> None:
    for more in ({"until": "end"}, {"wide": {"columns": "times"}, "value": None}):
        with pytest.raises(ValueError, match=r"readings\.ambiguous is in-order, and neither intervals nor"):
            Readings.model_validate(LONG | more)
    with pytest.raises(ValueError, match=r"readings\.ambiguous is in-order, .* the source has messages"):
        check_message(Readings.model_validate(LONG), None)
    text = EXAMPLE.replace("scale: 2000", "scale: 2000, ambiguous: in-order").replace("parquet: data", "csv: data")
    with pytest.raises(SettingsError, match=r"in-order, and files that are followed may be read from their middle"):
        FollowedFiles(load_settings(text, folder=tmp_path), None)
