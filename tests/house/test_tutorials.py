"""The tutorials run as they stand, and what they publish is near the truth."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines import data
from quiltstream.privacy.estimation.belief_checks import Path as SeriesPath
from quiltstream.privacy.estimation.belief_checks import memory, rhythm, stretches

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


# The noise is drawn afresh, so this may fail by chance. That half of the 65 counts of London are 5 % off has a
# probability of at most 2e-10: Chernoff's bound over the 13 weeks, where the moment generating function of how many
# counts of a week are off is the mean over 20,000 draws at scale 66.9. Half of the 14 counts of activity: below 1e-13,
# since at scale 62.6 the seven smaller ones must be off, with probabilities from 0.002 to 0.05.
@pytest.mark.parametrize(
    ("page", "name", "series", "cell_of", "shape"),
    [
        ("london-feeder", "homes", "household", london_cell, (13, 5)),
        ("activity", "wearers", "person", activity_cell, (7, 2)),
    ],
)
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
    assert "<img src=" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_wearers_who_are_known_better_lose_what_the_activity_tutorial_says() -> None:
    study = pq.read_table(data.path("activity_1min_25persons.parquet")).to_pydict()
    names = sorted(set(study["id"]))
    held_out = {name for at, name in enumerate(names) if (at + 1) * 2 // 5 > at * 2 // 5}  # --hold-out 0.4
    states = {name: np.full(7 * 1440, -1, np.int8) for name in held_out}
    for name, day, minute, count in zip(study["id"], study["day"], study["minute"], study["count"], strict=True):
        if name in held_out:
            states[name][(day - 1) * 1440 + minute] = count >= 100
    paths = [SeriesPath(0, path) for path in states.values()]
    assert len(paths) == 10
    sigma = 31.2896  # of the dry run
    known = np.maximum(rhythm(paths, 2, 1440, 1 / sigma), memory(paths, 2, 1 / sigma))
    *others, most = sorted(stretches(paths, 2, 1 / sigma, 25 * 60 // 2))
    assert 0.45 < max(known) <= 0.46
    assert 0.99 < most < 1
    assert max(others) <= 0.34
