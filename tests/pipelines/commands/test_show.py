"""``quiltstream show``: pictures and tables of released rows, by the command over files written here. No Beam."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from quiltstream.privacy.estimation.released_histograms import HistogramNoise, half_width
from quiltstream.schemas.noise_laws import ZERO_SUM
from quiltstream.schemas.releases import RELEASE_SCHEMA, tidy

from ...released import write_rows
from ..jobs import call

HOUR = 3_600_000_000
DAY = 24 * HOUR
START = 1_706_745_600_000_000  # 2024-02-01, a Thursday
SCALE = Fraction(24)
COUNTS = ((150, 90, 48), (140, 100, 48), (130, 90, 68), (160, 80, 48))


def release(day: int, **changes: Any) -> dict[str, Any]:
    """A day of six homes in two streets, half-hourly, in three bins."""
    return {
        "release_id": f"{day:032x}", "domain": "streets", "query": "daily", "query_digest": "00ff",
        "key_kind": "group", "key": "north", "window_start": START + day * DAY, "window_stop": START + (day + 1) * DAY,
        "window": "1d", "timezone": "UTC", "slots": 48, "members": 6, "edges": [250.0, 1000.0], "unit": "W",
        "missing": "public",
        "counts": list(COUNTS[day % 4]), "total": 288, "estimate": [float(one) for one in COUNTS[day % 4]],
        "scale": 24.0, "scale_exact": "24", "half_width_95": 60, "epsilon_dp": 1 / 12, "loss_before": 0.0,
        "loss_after": 0.5, "guarantee": "stream", "mechanism": "forward-backward", "quilt": {"left": 1, "right": 1},
        "model_id": "abc", "model_provenance": "by hand", "given_model": False, "completeness": "live",
        "noise_law": ZERO_SUM, "by": None, "classes": None, "class_slots": None,
    } | changes  # fmt: skip


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    write_rows(path, "parquet", pa.Table.from_pylist(rows, schema=RELEASE_SCHEMA))
    return path


@pytest.fixture
def month(tmp_path: Path) -> Path:
    south = {"key": "south", "release_id": "f" * 32}
    return written(tmp_path / "rows.parquet", [*(release(day) for day in range(35)), release(0, **south)])


def asked(path: Path, *words: str) -> dict[str, Any]:
    done = call("show", path, "--json", *words).ended(0)
    return json.loads(done.out)


def test_the_last_window_of_the_first_group_is_shown_with_its_band(month: Path) -> None:
    done = call("show", month).ended(0, "daily, group north: 2024-03-06")
    half = half_width([HistogramNoise(ZERO_SUM, 3, SCALE)], [1, 0, 0])
    assert done.said(f"below 250 W 130 ± {half} 45.1%")


def test_days_add_up_to_weeks_and_months_with_the_error_of_the_sum(month: Path) -> None:
    week = asked(month, "--sum", "week", "--window", "2024-02-07")
    assert (week["windows"], week["window_start"]) == (7, "2024-02-05T00:00:00Z")
    assert week["counts"] == [sum(COUNTS[day % 4][bin_] for day in range(4, 11)) for bin_ in range(3)]
    assert week["half_width"] == half_width([HistogramNoise(ZERO_SUM, 3, SCALE)] * 7, [1, 0, 0])
    assert (week["total"], len(week["release_ids"]), week["gaps"]) == (7 * 288, 7, False)
    february = asked(month, "--sum", "month", "--window", "2024-02-20")
    assert (february["windows"], february["window_stop"]) == (29, "2024-03-01T00:00:00Z")
    assert asked(month, "--sum", "all")["windows"] == 35


def test_windows_are_named_and_added_up_by_the_calendar_of_their_rows(tmp_path: Path) -> None:
    # from London's midnights, an hour before those of UTC from the day after the last of March on
    begins = [START + day * DAY - (HOUR if day > 59 else 0) for day in range(57, 91)]
    zone = {"window": "day", "timezone": "Europe/London"}
    rows = [release(day, window_start=one, window_stop=end, **zone) for day, (one, end) in enumerate(pairwise(begins))]
    path = written(tmp_path / "rows.parquet", rows)
    call("show", path).ended(0, "daily, group north: 2024-04-30")
    call("show", path, "--sum", "week", "--window", "2024-04-10").ended(0, "week of 2024-04-08")
    call("show", path, "--sum", "month", "--window", "2024-04-20").ended(0, "April 2024")
    april = asked(path, "--sum", "month", "--window", "2024-04-20")
    assert (april["windows"], april["window_start"]) == (30, "2024-03-31T23:00:00Z")
    assert (april["window"], april["timezone"]) == ("day", "Europe/London")
    assert asked(path, "--sum", "all")["windows"] == 33
    # the first of March in New York begins within the last day of February of UTC
    west = [release(day, timezone="America/New_York") for day in range(35)]
    assert asked(written(tmp_path / "west.parquet", west), "--sum", "month", "--window", "2024-03-05")["windows"] == 5


def test_duration_quantiles_mean_and_change_are_shown_on_request(month: Path) -> None:
    assert not {"duration", "quantiles", "moments", "change", "profile"} & set(asked(month))
    found = asked(month, "--duration", "--quantiles", "0.5,0.999", "--mean", "0,", "--change", "--level", "0.5")
    noise = [HistogramNoise(ZERO_SUM, 3, SCALE)]
    assert found["duration"] == [
        {"edge": 250.0, "count": 158, "half_width": half_width(noise, [0, 1, 1], 0.5)},
        {"edge": 1000.0, "count": 68, "half_width": half_width(noise, [0, 0, 1], 0.5)},
    ]
    assert found["quantiles"] == [
        {"share": 0.5, "low": 250.0, "high": 1000.0},
        {"share": 0.999, "low": 1000.0, "high": None},
    ]
    low, high = found["moments"]["mean"]
    assert high is None
    assert 0 < low < (90 * 250 + 68 * 1000) / 288
    assert found["moments"]["energy"][0] == pytest.approx(found["moments"]["total"][0] * 0.5 / 1000)
    assert found["change"]["since"] == "2024-03-05T00:00:00Z"
    assert found["change"]["differences"] == pytest.approx([-10 / 288, -10 / 288, 20 / 288])
    assert found["change"]["half_width"] == pytest.approx(half_width(noise * 2, [1, 0, 0], 0.5) / 288)


def test_a_profile_has_a_line_for_each_class_of_slots(tmp_path: Path) -> None:
    classes = {
        "by": ["hour"], "classes": ["00:00", "18:00", "19:00"], "class_slots": [24, 24, 0],
        "counts": [140, 4, 0, 20, 50, 74, 0, 0, 0], "estimate": None,
    }  # fmt: skip
    path = written(tmp_path / "profile.parquet", [release(0, **classes)])
    call("show", path, "--profile").ended(0, "Profile: share of cells at or above 1000 W")
    night, evening, none = asked(path, "--profile", "--edge", "250")["profile"]
    assert (night["above"], evening["above"], night["cells"]) == (4, 124, 144)
    half = half_width([HistogramNoise(ZERO_SUM, 3, SCALE)], [0, 1, 1])
    assert night["half_width"] == half
    assert evening["share_half_width"] == pytest.approx(half / 144)
    assert (none["cells"], none["half_width"], none["median"]) == (0, 0, "no slot")
    assert asked(path, "--class", "18:00")["counts"] == [20, 50, 74]
    # all classes together: each has noise of its own
    whole = asked(path)
    assert whole["counts"] == [160, 54, 74]
    assert whole["half_width"] == half_width([HistogramNoise(ZERO_SUM, 3, SCALE)] * 2, [1, 0, 0])
    assert call("show", path, "--class", "07:00").said("there is no such class of slots; there are 00:00, 18:00, 19:00")
    assert call("show", path, "--profile", "--edge", "300").said("it is none of the edges 250, 1000")


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_tidy_table_is_written_in_each_format(form: str, month: Path, tmp_path: Path) -> None:
    out = tmp_path / "cells"
    call("show", month, "--tidy", "--key", "north", "--format", form, "-o", out).ended(0, f"{out}: 105 rows")
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    else:
        found = json.loads(out.read_text(encoding="utf-8")) if form == "json" else pl.read_parquet(out).to_dicts()
    assert [int(row["count"]) for row in found] == [one for day in range(35) for one in COUNTS[day % 4]]
    assert set(found[0]) == set(tidy(pa.Table.from_pylist([release(0)], schema=RELEASE_SCHEMA)).column_names)
    if form != "parquet":
        assert found[0]["window_start"] == "2024-02-01T00:00:00Z"


def test_a_table_of_sums_lists_the_summed_releases(month: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(call("show", month, "--key", "north", "--sum", "month", "--tidy").out)))
    assert [(row["windows"], row["bin"]) for row in rows[::3]] == [("29", "below 250 W"), ("6", "below 250 W")]
    assert len(rows[0]["release_ids"].split()) == 29
    half = call("show", month, "--key", "north", "--sum", "month", "--tidy", "--level", "0.5").ended(0)
    assert {row["level"] for row in csv.DictReader(io.StringIO(half.out))} == {"0.5"}
    assert float(rows[0]["high"]) - float(rows[0]["count"]) == float(rows[0]["half_width"])


def test_windows_that_overlap_do_not_add_up(tmp_path: Path) -> None:
    sliding = [release(day, window_stop=START + (day + 7) * DAY) for day in range(5)]
    path = written(tmp_path / "rows.parquet", sliding)
    assert call("show", path).code == 0
    for words, text in (
        (("--sum", "month"), "the windows of query 'daily' overlap, so a sum would count cells twice"),
        (("--change",), "the window before overlaps this one"),
    ):
        call("show", path, *words).ended(2, text)


def test_invalid_options_of_show_are_refused_by_name(month: Path, tmp_path: Path) -> None:
    for words, text, code in (
        ((month, "--key", "west"), "--key 'west'", 2),
        ((month, "--window", "2030-01-01"), "no released window holds it", 2),
        ((month, "--mean", "300,900"), "--mean 300,900", 2),
        ((month, "--quantiles", "2"), "--quantiles: 2.0", 2),
        ((month, "--profile"), "the rows are of all slots", 2),
        ((month, "--key", "south", "--change"), "there is no window before this one", 2),
        ((month, "--tidy", "--level", "0.5"), "--level: a table", 2),
        ((month, "-o", tmp_path / "x.csv", "--duration"), "--duration: a table", 2),
        ((month, "-o", tmp_path / "x.svg"), "end the name with .csv", 2),
        ((month, "-o", tmp_path / "x.csv", "--format", "parquet"), "end the name with .parquet", 2),
        ((month, "--tidy", "--json"), "give --format json", 2),
        ((tmp_path / "absent.parquet",), "there is no such file", 5),
    ):
        done = call("show", *words)
        assert (done.code, done.said(text), done.out) == (code, True, ""), (words, done.err)
    assert not list(tmp_path.glob("x.*"))
    assert call("show", written(tmp_path / "none.parquet", [])).said("nothing was released there")
