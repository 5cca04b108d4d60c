"""The settings file of the documentation gives the same releases from every format, equal to a plain computation.

The noise is off, through the hook of the transform that only tests pass, and every store is fresh. What the rows
and the ledger's tables were before the code was rearranged stands in ``recorded.json``; ``QUILTSTREAM_RECORD=1`` writes
it anew where a change of them is meant.
"""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines import data
from quiltstream.pipelines.commands.run import publish
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings.job import EXAMPLE, load_settings
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.sinks import read_release_rows

from ...depth import some

HOMES = {"MAC000002": "a", "MAC000008": "a", "MAC000050": "b", "MAC000063": "b"}  # three of them stop early
FORMATS = ("csv", "jsonl", "avro")
RECORDED = Path(__file__).with_name("recorded.json")


@pytest.fixture(scope="module")
def readings() -> pl.DataFrame:
    frame = pl.read_parquet(data.path("lcl2013_halfhourly_60hh.parquet")).with_columns(
        pl.col("household").cast(pl.Utf8)
    )
    return frame.filter(pl.col("household").is_in(list(HOMES))).sample(fraction=1.0, shuffle=True, seed=1)


def write(form: str, path: Path, frame: pl.DataFrame) -> None:
    if form == "parquet":
        pq.write_table(frame.to_arrow(), path, row_group_size=10_000)
        return
    rows = [
        {"household": home, "ts": stamp.isoformat(), "kwh": float(value)}
        for home, stamp, value in frame.select("household", "ts", "kwh").iter_rows()
    ]
    if form == "avro":
        fields = [{"name": n, "type": t} for n, t in (("household", "string"), ("ts", "string"), ("kwh", "double"))]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "Reading", "fields": fields}, rows)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if form == "jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, ["household", "ts", "kwh"])
            writer.writeheader()
            writer.writerows(rows)


def released(form: str, folder: Path, frame: pl.DataFrame) -> list[Release]:
    (folder / "data").mkdir(parents=True)
    write(form, folder / "data" / f"feeder.{form}", frame)
    (folder / "roster.csv").write_text(
        "series,feeder\n" + "".join(f"{home},{feeder}\n" for home, feeder in HOMES.items()), encoding="utf-8"
    )
    text = EXAMPLE.replace("{parquet: data/feeder.parquet}", f"{{{form}: data/feeder.{form}}}")
    settings = load_settings(text, folder=folder)
    belief = MixingBounds(pi_min=0.03, gap=0.4).to_dict()
    model = Model(belief, settings.space, settings.grid.interval_us, Provenance(method="written by a test"))
    model.save(folder / "model.json")
    publish(settings, PrivateHistograms(settings, noise="none"))
    return releases_from_batch(read_release_rows(folder / "out" / "releases.parquet"))


def truth(frame: pl.DataFrame) -> dict[tuple[dt.datetime, str], list[int]]:
    """Counts by week and feeder, in plain Python: nothing is duplicated in this file."""
    start, week = dt.datetime(2013, 1, 1), dt.timedelta(days=7)
    found = {(start + n * week, feeder): [0] * 5 for n in range(52) for feeder in "ab"}
    for home, stamp, kwh in frame.select("household", "ts", "kwh").iter_rows():
        n = (stamp - start) // week
        if 0 <= n < 52:
            watt = float(kwh) * 2000
            found[start + n * week, HOMES[home]][sum(watt >= edge for edge in (250, 500, 1000, 2000))] += 1
    return found


def plain(value: Any) -> Any:
    """A value with twelve digits of each float: the last ones are those of a version of numpy."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def recorded(rows: list[Release], ledger: Path) -> dict[str, Any]:
    """What stands in ``recorded.json``: the first rows, a digest of all of them, and the statements of the tables."""
    lines = [plain(row.to_dict()) for row in rows]
    digest = hashlib.sha256("".join(json.dumps(line, sort_keys=True) for line in lines).encode())
    with closing(sqlite3.connect(ledger)) as connection:
        tables = connection.execute("select name, sql from sqlite_master where sql is not null order by name")
        return {"rows": lines[:2], "all rows": digest.hexdigest(), "tables": dict(tables.fetchall())}


@pytest.mark.night
def test_parquet_csv_json_lines_and_avro_give_identical_releases_equal_to_the_truth(
    tmp_path: Path, readings: pl.DataFrame
) -> None:
    by_format = {form: released(form, tmp_path / form, readings) for form in ("parquet", *some(FORMATS, 3))}
    first = by_format["parquet"]
    assert len(first) == 104
    assert [form for form, rows in by_format.items() if rows != first] == []
    epoch = dt.datetime(1970, 1, 1)
    counted = {(epoch + dt.timedelta(microseconds=row.window_start), row.key): list(row.counts) for row in first}
    assert counted == truth(readings)
    found = recorded(first, tmp_path / "parquet" / "out" / "ledger.db")
    if os.environ.get("QUILTSTREAM_RECORD"):
        RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(RECORDED.read_text(encoding="utf-8"))
