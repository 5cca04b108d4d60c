"""``quiltstream demo``: the numbers it shows, and that it spends once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from quiltstream.pipelines import data
from quiltstream.pipelines.commands.demo import beyond, errors_of, split_households, true_histograms
from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.sinks import read_release_rows

from ..jobs import Done, call

FILES = {"settings.yaml", "model.json", "roster.csv", "releases.parquet", "ledger.db"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def first(folder: Path) -> tuple[Done, list[Release]]:
    done = call("demo", "--out", folder)
    return done, releases_from_batch(read_release_rows(folder / "releases.parquet"))


@pytest.mark.night
def test_the_demo_shows_the_noise_that_belongs_to_its_data(first: tuple[Done, list[Release]]) -> None:
    done, rows = first
    done.ended(
        0,
        "each count within 123 (95 %)",
        "a guess of 50 % becomes at most 73.2 % about one half-hour",
    )
    assert {(row.scale, row.half_width_95, row.noise_law) for row in rows} == {
        (rows[0].scale, 123, "discrete-laplace-zero-sum")
    }
    # the endless class of total-variation bounds at epsilon 1, on the grid of densities
    assert rows[0].scale == pytest.approx(2 * 26.774, rel=1e-3)
    assert rows[0].scale <= 2 * 26.8
    assert all(sum(row.counts) == row.total for row in rows)


@pytest.mark.night
def test_the_error_of_a_week_is_a_fortieth_of_its_total(first: tuple[Done, list[Release]], folder: Path) -> None:
    plan = make_plan(read_settings(folder / "settings.yaml"))
    totals = [row.total or 0 for row in first[1]]
    expected = 5 * plan.noisy.mean_abs * sum(1 / total for total in totals) / len(totals)
    assert expected < 0.025
    truth = true_histograms(read_settings(folder / "settings.yaml"), split_households()[1])
    share = errors_of(first[1], truth).share
    # 260 counts: the standard deviation of the mean is 0.0015, so a false alarm is rarer than 1e-9
    assert share == pytest.approx(expected, abs=0.0105)
    assert first[0].said(f"is off by {share:.1%}, all bands added up")
    assert len(first[0].out.splitlines()) <= 45


def test_the_year_of_52_weeks_loses_1_where_sequential_composition_gives_52(first: tuple[Done, list[Release]]) -> None:
    done, rows = first
    assert (len(rows), {row.members for row in rows}) == (52, {30})
    # densities of the grid are within 1 in 2000 of the largest there is
    assert 1 - 1e-3 < rows[-1].loss_after <= 1
    assert done.said(f"{rows[-1].loss_after:.6f} of the budget 1, after 52 releases")
    assert done.said("naive adding says 52")
    done.ended(0, "52 windows published and charged")


@pytest.mark.usefixtures("first")
def test_the_demo_writes_exactly_the_files_it_names(folder: Path) -> None:
    seen = {path.name for path in folder.iterdir()}
    # beside the sink, and beside the settings under the ledger's address
    hidden = {name for name in seen if name.startswith(".") and ".quiltstream." in name}
    assert sorted(Path(name).suffix for name in hidden) == [".json"]
    assert seen - hidden - {"ledger.db-wal", "ledger.db-shm"} == FILES


def test_a_repeated_demo_publishes_the_same_rows_and_charges_nothing(
    first: tuple[Done, list[Release]], folder: Path
) -> None:
    call("demo", "--out", folder).ended(
        0, "nothing was charged: all 52 windows were on record, and the same rows came out"
    )
    assert releases_from_batch(read_release_rows(folder / "releases.parquet")) == first[1]


@pytest.mark.night
def test_the_demo_settings_run_without_the_demo(first: tuple[Done, list[Release]], folder: Path) -> None:
    call("run", folder / "settings.yaml").ended(0, "Nothing was charged")
    assert releases_from_batch(read_release_rows(folder / "releases.parquet")) == first[1]
    shown = call("ledger", "show", folder / "settings.yaml")
    assert shown.said(f"{first[1][-1].loss_after:.9f} after 52 windows charged; naive adding says 52")


@pytest.mark.night
def test_the_true_histogram_of_the_picture_equals_pipeline_and_plain_count(
    first: tuple[Done, list[Release]], folder: Path, tmp_path: Path
) -> None:
    assert first[0].code == 0
    for name in ("model.json", "roster.csv", "settings.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    settings = read_settings(tmp_path / "settings.yaml")
    publish(settings, PrivateHistograms(settings, noise="none"))
    found = [list(row.counts) for row in releases_from_batch(read_release_rows(tmp_path / "releases.parquet"))]
    history, feeder = split_households()
    truth = true_histograms(settings, feeder)
    assert truth.tolist() == found
    week = (pl.col("ts") >= pl.datetime(2013, 1, 29)) & (pl.col("ts") < pl.datetime(2013, 2, 5))
    frame = pl.read_parquet(data.path("lcl2013_halfhourly_60hh.parquet")).filter(week)
    counted = Counter(
        sum(float(kwh) * 2000 >= edge for edge in (250, 500, 1000, 2000))
        for home, kwh in frame.select(pl.col("household").cast(pl.Utf8), "kwh").iter_rows()
        if home in set(feeder)
    )
    assert [counted[state] for state in range(5)] == found[4]
    assert (len(history), len(feeder), set(history) & set(feeder)) == (30, 30, set())


@pytest.mark.night
def test_homes_that_lose_more_are_counted_by_their_own_chains(first: tuple[Done, list[Release]], folder: Path) -> None:
    assert first[0].code == 0
    settings = read_settings(folder / "settings.yaml")
    history, feeder = split_households()
    # the slowest home of the history needs sigma 35.7 by its own chain, the next 19.3
    assert [beyond(settings, history, sigma) for sigma in (36.0, 26.8, 19.0)] == [0, 1, 2]
    lost = beyond(settings, feeder, first[1][0].scale / 2)
    assert first[0].said(f"{lost} of the 30 homes lose more than 1 by their own chains")


def test_a_folder_that_cannot_be_written_ends_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    call("demo", "--out", tmp_path / "file").ended(2, "choose a folder with --out")


@pytest.mark.parametrize("name", ["settings.yaml", "ledger.db"])
def test_a_demo_replaces_and_uses_nothing_that_no_demo_wrote(tmp_path: Path, name: str) -> None:
    for text in ("mine", "household,feeder\nmine,north\n"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        call("demo", "--out", tmp_path).ended(2, f"--out {tmp_path}: {name} there was not written by a demo")
        assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [(name, text)]
