"""The tutorials run as they stand, and what they publish is near the truth."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from .pages import run_page
from .tree import ROOT

Cell = tuple[int, int]


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def london_cell(row: dict[str, str]) -> Cell:
    week = (datetime.fromisoformat(row["ts"]) - datetime(2013, 1, 1)) // timedelta(days=7)
    return week, sum(float(row["kwh"]) * 2000 >= edge for edge in (250, 500, 1000, 2000))


def activity_cell(row: dict[str, str]) -> Cell:
    day = (datetime.fromisoformat(row["time"]) - datetime(2024, 1, 1)) // timedelta(days=1)
    return day, int(row["counts"]) // 100 > 0


TUTORIALS = [
    ("london-feeder", "homes", "household", london_cell, (13, 5)),
    ("activity", "wearers", "person", activity_cell, (7, 2)),
]


def test_every_tutorial_is_followed() -> None:
    pages = {page.stem for page in (ROOT / "docs/tutorials").glob("*.md")}
    assert pages == {"one-meter", *(name for name, *_ in TUTORIALS)}


@pytest.mark.night
def test_one_meter_is_published_by_a_belief_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/tutorials/one-meter.md").read_text(encoding="utf-8")
    run_page("one-meter", page, tmp_path)
    (row,) = pq.read_table(tmp_path / "house-releases.parquet").to_pylist()
    assert (row["total"], sum(row["counts"]), row["half_width_95"]) == (549, 549, 74)
    assert f"within {row['half_width_95']}. This file has gaps: {row['total']} of them" in page
    assert "<svg " in (tmp_path / "report.html").read_text(encoding="utf-8")


# The noise is drawn afresh, so this may fail by chance. That half of the 65 counts of London are 5 % off has a
# probability of at most 2e-10: Chernoff's bound over the 13 weeks, where the moment generating function of how many
# counts of a week are off is the mean over 20,000 draws at scale 66.9. Half of the 14 counts of activity: below 1e-13,
# since at scale 62.6 the seven smaller ones must be off, with probabilities from 0.002 to 0.05.
@pytest.mark.night
@pytest.mark.parametrize(("page", "name", "series", "cell_of", "shape"), TUTORIALS)
def test_a_tutorial_ends_with_a_picture_whose_median_error_is_below_5_per_cent(
    page: str,
    name: str,
    series: str,
    cell_of: Callable[[dict[str, str]], Cell],
    shape: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, (ROOT / f"docs/tutorials/{page}.md").read_text(encoding="utf-8"), tmp_path)

    members = {row["series"] for row in rows(tmp_path / "roster.csv")}
    cells = Counter(cell_of(row) for row in rows(tmp_path / f"{name}.csv") if row[series] in members)
    true = np.array([[cells[window, bin_] for bin_ in range(shape[1])] for window in range(shape[0])])
    published = pq.read_table(tmp_path / f"{name}-releases.parquet")
    counts = np.array(published["counts"].to_pylist())
    assert counts.shape == shape
    assert published["total"].to_pylist() == true.sum(axis=1).tolist()
    assert np.median(abs(counts - true) / true) < 0.05
    assert not np.array_equal(counts, true)
    # whom the fit asks about richer beliefs is asked at the noise that is published
    asked = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))["diagnostics"]["cover"]["checked"]
    assert 1 / asked["sigma"] == pytest.approx(max(published["epsilon_dp"].to_pylist()), rel=2e-3)
    assert "<svg " in (tmp_path / "report.html").read_text(encoding="utf-8")
