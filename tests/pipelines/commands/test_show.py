"""``quiltstream show``: pictures and tables of released rows, by the command over files written here. No Beam."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
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
        "slots": 48, "members": 6, "edges": [250.0, 1000.0], "unit": "W", "missing": "public",
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
    done = call("show", month).ended(0, "daily, group north: 2024-03-06 to 2024-03-07")
    half = half_width([HistogramNoise(ZERO_SUM, 3, SCALE)], [1, 0, 0])
    assert done.said(f"below 250 W 130 ± {half} 45.1% █")
    assert done.said(f"each count is within {half} of the true one with probability 95 %")
    assert done.said("2 series or groups are in the files, --key and --query choose")
    assert done.said("the domain streets has lost 0.5 with this; looking costs nothing")


def test_days_add_up_to_weeks_and_months_with_the_error_of_the_sum(month: Path) -> None:
    week = asked(month, "--sum", "week", "--window", "2024-02-07")
    assert (week["windows"], week["window_start"]) == (7, "2024-02-05T00:00:00Z")
    assert week["counts"] == [sum(COUNTS[day % 4][bin_] for day in range(4, 11)) for bin_ in range(3)]
    assert week["half_width"] == half_width([HistogramNoise(ZERO_SUM, 3, SCALE)] * 7, [1, 0, 0])
    assert (week["total"], len(week["release_ids"]), week["gaps"]) == (7 * 288, 7, False)
    february = asked(month, "--sum", "month", "--window", "2024-02-20")
    assert (february["windows"], february["window_stop"]) == (29, "2024-03-01T00:00:00Z")
    # by another calendar the first of March begins within the last day of February of UTC
    assert asked(month, "--sum", "month", "--window", "2024-03-05", "--zone", "America/New_York")["windows"] == 5
    assert asked(month, "--sum", "all")["windows"] == 35


def test_days_of_a_place_are_named_by_its_clock_and_add_up_to_its_weeks(tmp_path: Path) -> None:
    # the days of Berlin around Sunday, 2024-03-31, which has 23 hours; the windows of Mondays begin on Sundays of UTC
    first, changed = START + 57 * DAY - HOUR, START + 59 * DAY - HOUR
    bounds = [*(first + day * DAY for day in range(3)), *(changed + 23 * HOUR + day * DAY for day in range(8))]
    rows = [
        release(day, window_start=start, window_stop=stop, release_id=f"{day:032x}")
        for day, (start, stop) in enumerate(pairwise(bounds))
    ]
    path = written(tmp_path / "rows.parquet", rows)
    plain = call("show", path, "--window", "2024-03-31")
    assert plain.said("group north: 2024-03-30 23:00 to 2024-03-31 22:00 UTC")
    assert plain.said(
        "no window begins at midnight UTC: the zone of the settings (slots.timezone), for example --zone Europe/London,"
    )
    local = call("show", path, "--window", "2024-03-31", "--zone", "Europe/Berlin")
    assert local.said("group north: 2024-03-31 to 2024-04-01")
    assert not local.said("no window begins")
    week = asked(path, "--sum", "week", "--zone", "Europe/Berlin", "--window", "2024-04-03")
    assert (week["windows"], week["window_start"], week["window_stop"]) == (
        7, "2024-03-31T22:00:00Z", "2024-04-07T22:00:00Z",
    )  # fmt: skip


def test_windows_of_days_of_utc_get_no_advice_on_zones(month: Path) -> None:
    assert not call("show", month).said("--zone")


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
    shown = call("show", month, "--duration", "--quantiles", "0.5", "--mean", "0,5000", "--change")
    for text in (
        "250 W and above 158 ±",
        "median below 1000 W",
        "energy",
        "Change of shares since 2024-03-05 to 2024-03-06",
        "130",
    ):
        assert shown.said(text), text


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
        ((month, "--key", "west"), "--key 'west': no row has it; there are 'north', 'south'", 2),
        ((month, "--window", "2030-01-01"), "no released window holds it; they go from 2024-02-01 to 2024-03-07", 2),
        ((month, "--window", "soon"), "--window: instant 'soon' is not an ISO 8601 date", 2),
        ((month, "--mean", "300,900"), "--mean 300,900: all values lie between these", 2),
        ((month, "--mean", "300,"), "--mean 300,inf: all values lie between these", 2),
        ((month, "--mean", "low"), "give the least and the largest value", 2),
        ((month, "--quantiles", "2"), "--quantiles: 2.0 is not strictly between 0 and 1", 2),
        ((month, "--quantiles", "half"), "give shares with commas", 2),
        ((month, "--profile"), "the rows are of all slots; publish them by classes", 2),
        ((month, "--key", "south", "--change"), "there is no window before this one", 2),
        ((month, "--zone", "Mars"), "--zone: timezone 'Mars' is unknown; use an IANA name such as UTC", 2),
        ((month, "--zone", "", "--sum", "day"), "--zone: timezone '' is unknown", 2),
        ((month, "--zone", "Berlin", "--tidy"), "--zone: timezone 'Berlin' is unknown", 2),
        *(
            ((month, "--tidy", *words.split()), f"{words.split()[0]}: a table (--tidy, --format, -o) has all", 2)
            for words in (
                "--window nonsense",
                "--class 18:00",
                "--duration",
                "--quantiles 0.5",
                "--mean 0,",
                "--change",
                "--profile",
                "--edge 250",
                "--level 0.5",
            )
        ),
        ((month, "-o", tmp_path / "x.csv", "--duration"), "--duration: a table (--tidy, --format, -o) has all", 2),
        ((month, "--tidy", "--json"), "of a table (--tidy, --format, -o) give --format json", 2),
        ((tmp_path / "absent.parquet",), "there is no such file", 5),
    ):
        done = call("show", *words)
        assert (done.code, done.said(text), done.out) == (code, True, ""), (words, done.err)
    assert not (tmp_path / "x.csv").exists()
    assert call("show", written(tmp_path / "none.parquet", [])).said("nothing was released there")


def test_names_are_printed_as_they_are_and_never_read_as_markup(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", [release(0, key="[bold]<script>")])
    assert call("show", path).said("group [bold]<script>: 2024-02-01")


def test_showing_imports_neither_beam_nor_a_store() -> None:
    code = (
        "import sys; import quiltstream.pipelines.commands.show; "
        "print([name for name in ('apache_beam', 'sqlalchemy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_counts_below_zero_are_explained_and_rounded_shares_have_no_sign(tmp_path: Path) -> None:
    near = {"counts": [-1, 9_999, 2], "total": 10_000, "estimate": [0.0, 9_998.5, 1.5]}
    done = call("show", written(tmp_path / "rows.parquet", [release(0, **near)]))
    assert done.said("the estimate, which --tidy and --json have, is never below 0")
    assert "-0.0%" not in done.out
    free = written(
        tmp_path / "free.parquet",
        [release(0, **near, noise_law="discrete-laplace") | {"total": None, "estimate": None}],
    )
    assert call("show", free).said("a count below 0 is noise around few cells")
    assert not call("show", free).said("estimate")
