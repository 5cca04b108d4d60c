"""Load profiles out of ``quiltstream run``: the shipped London data, every format, live, and the dry run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines import data
from quiltstream.schemas.releases import Release, releases_from_batch, tidy
from quiltstream.transforms.sinks import read_release_rows

from ...present import present
from ..jobs import HOMES, call, job
from ..live_jobs import made, run

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
EDGES = np.array([250, 500, 1000, 2000])
WEEKS = 52


def true_profile() -> npt.NDArray[np.int64]:
    """Half-hours of the feeder's 30 homes by week, hour and band, from the file alone, shape (52, 24, 5)."""
    roster = pa_csv.read_csv(EXAMPLES / "london-roster.csv")
    table = pq.read_table(data.path("lcl2013_halfhourly_60hh.parquet"))
    members = set(roster.column("household").to_pylist())
    table = table.filter(pa.array([name in members for name in table.column("household").to_pylist()]))
    minutes = table.column("ts").to_numpy().astype("datetime64[m]")
    since = (minutes - np.datetime64("2013-01-01T00:00")).astype(np.int64)
    week, hour = since // (7 * 24 * 60), since // 60 % 24
    band = np.searchsorted(EDGES, table.column("kwh").to_numpy().astype(np.float64) * 2000, side="right")
    counts = np.zeros((WEEKS, 24, 5), dtype=np.int64)
    held = (week >= 0) & (week < WEEKS)
    np.add.at(counts, (week[held], hour[held], band[held]), 1)
    return counts


def most_uncovered(cells: int, blocks: int, block: int, level: float, chance: float) -> float:
    """What a number of uncovered cells exceeds with at most a chance, by Bernstein's inequality.

    Blocks of cells are independent of each other, and a block's number lies in 0..block with mean at most
    (1 - level) * block, so its variance is at most block times that mean.
    """
    mean = (1 - level) * cells
    variance, log = blocks * block * (1 - level) * block, math.log(1 / chance)
    return mean + block * log / 3 + math.sqrt((block * log / 3) ** 2 + 2 * variance * log)


@pytest.mark.night
def test_the_weekly_profile_of_30_london_homes_lies_within_its_error_bands(tmp_path: Path) -> None:
    """False alarm of the covering: at most 1e-9. The totals of hours are exact."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("out", "__pycache__"))
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "data").symlink_to(Path(data.__file__).parent)
    call("run", tmp_path / "examples" / "london-profile.yaml").ended(0)
    released = read_release_rows(tmp_path / "examples" / "out" / "london-profile.parquet")
    rows = releases_from_batch(released)
    assert [len(row.counts) for row in rows] == [120] * WEEKS
    assert rows[0].classes == tuple(f"{hour:02}:00" for hour in range(24))
    assert set(rows[0].class_slots or ()) == {14}
    truth = true_profile()
    noisy = np.array([row.counts for row in rows]).reshape(truth.shape)
    estimate = np.array([row.estimate for row in rows]).reshape(truth.shape)
    assert np.array_equal(noisy.sum(axis=2), truth.sum(axis=2))
    assert np.allclose(estimate.sum(axis=2), truth.sum(axis=2))
    assert estimate.min() >= 0
    uncovered = int((np.abs(noisy - truth) > rows[0].half_width_95).sum())
    allowed = most_uncovered(truth.size, WEEKS * 24, 5, 0.95, 1e-9)
    print(f"{uncovered} of {truth.size} cells outside their band of {rows[0].half_width_95}; {allowed:.0f} allowed")  # noqa: T201
    assert uncovered <= allowed < 0.1 * truth.size
    # the least that a projection promises: it is never farther from the truth than the noise
    assert np.linalg.norm(estimate - truth) <= np.linalg.norm(noisy - truth)
    assert rows[-1].loss_after <= 1
    # and a reader gets it as a table
    cells = tidy(released)
    assert cells.num_rows == truth.size
    at = [row["count"] for row in cells.to_pylist() if (row["class"], row["bin"]) == ("18:00", "2000 W and above")]
    assert at == noisy[:, 18, 4].tolist()


@pytest.mark.night
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl", "avro"])
def test_every_format_has_the_classes(tmp_path: Path, form: str) -> None:
    one = job(tmp_path, by=["weekend", "hour"], sink={form: f"releases.{form}"})
    call("run", one.settings).ended(0)
    rows = releases_from_batch(read_release_rows(tmp_path / f"releases.{form}"))
    assert len(rows) == 14
    check_profile(rows, ("weekend", "hour"))
    assert call("ledger", "verify", one.settings).code == 0
    call("run", one.settings).ended(0)
    assert releases_from_batch(read_release_rows(tmp_path / f"releases.{form}")) == rows


def check_profile(rows: list[Release], by: tuple[str, ...]) -> None:
    """Readings are complete, so each class has its slots times members."""
    for row in rows:
        assert row.by == by
        assert row.class_slots is not None
        totals = np.array(row.counts).reshape(len(present(row.classes)), 5).sum(axis=1)
        assert totals.tolist() == [slots * row.members for slots in row.class_slots]
        assert sum(row.class_slots) == row.slots == 48
        assert (row.total, row.members) == (48 * 3, len(HOMES) // 2)


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_a_live_job_publishes_by_class(tmp_path: Path) -> None:
    run(made(tmp_path, by="hour")).ended(0)
    parts = sorted((tmp_path / "releases").iterdir())
    rows = [row for part in parts for row in releases_from_batch(pq.read_table(part))]
    assert len(rows) == 10
    check_profile(rows, ("hour",))


def test_a_dry_run_prints_the_classes_and_the_error_in_the_smallest_class(tmp_path: Path) -> None:
    plain = json.loads(call("run", "--dry-run", "--json", job(tmp_path).settings).out)
    one = job(tmp_path, by="hour")
    said = json.loads(call("run", "--dry-run", "--json", one.settings).out)
    assert (said["by"], said["classes"], plain["classes"]) == (["hour"], 24, 1)
    same = ("scale", "half_width_95", "expected_error", "schedule_loss", "epsilon_dp")
    assert [said[name] for name in same] == [plain[name] for name in same]
    assert said["cells_per_bin"] == plain["cells_per_bin"] / 24
    assert said["relative_error"] == pytest.approx(24 * plain["relative_error"])


@pytest.mark.night
def test_a_run_publishes_coarser_bins_of_the_domain_by_hour(tmp_path: Path) -> None:
    one = job(tmp_path, by="hour", bins=[500], privacy={"epsilon": 1.0, "budget": 2.0})
    call("run", one.settings).ended(0)
    rows = one.rows()
    assert {(row.edges, len(row.counts), row.half_width_95) for row in rows} == {((500.0,), 48, rows[0].half_width_95)}
    assert call("ledger", "verify", one.settings).code == 0
    # the states of the domain are in another query, whose two bins more have more noise
    fine = job(tmp_path, query="fine", privacy={"epsilon": 1.0, "budget": 2.0}, sink={"parquet": "fine.parquet"})
    assert call("run", fine.settings).code == 0
    (width,) = {row.half_width_95 for row in releases_from_batch(read_release_rows(tmp_path / "fine.parquet"))}
    assert rows[0].half_width_95 < width


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bins": [300]}, "bins[0] is 300, and the bins of a query are unions of its domain's states"),
        ({"by": "hour", "slots": {"interval": "2h"}}, "slots of 2h do not divide an hour"),
    ],
)
def test_invalid_classes_are_refused_before_any_file_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    one = job(tmp_path, **changes)
    for words in (("--dry-run",), ()):
        call("run", *words, one.settings).ended(2, said)
    assert not one.ledger.exists()
    assert not one.sink.exists()
