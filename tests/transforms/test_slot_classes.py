"""Histograms by classes of slots, through the transform: against plain Python over the raw readings."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Window
from quiltstream.store import Store, StoreError
from quiltstream.store.codec import NoisyBlock
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import BlockToPublish, classes_of, layout_of
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.plan import make_plan

from .sources.feed import feed
from .test_histograms import EDGES, batches, publish, settings

HALF = 1_800_000_000
SERIES = ["a", "b", "c", "d", "e"]
GROUPS = {name: "north" if name < "c" else "south" for name in SERIES}

#: The Sunday on which London's clock goes back is in the second window.
AUTUMN = {"size": "7d", "start": "2013-10-14T00:00Z", "stop": "2013-11-04T00:00Z"}
DAYS = {"size": "1d", "start": "2013-10-26T00:00Z", "stop": "2013-10-30T00:00Z"}
SLIDING = {"size": "2d", "every": "12h", "start": "2013-10-25T00:00Z", "stop": "2013-10-30T00:00Z"}
BY: dict[tuple[str, ...], Callable[[dt.datetime], str]] = {
    ("hour",): lambda stamp: f"{stamp.hour:02}:00",
    ("weekend", "hour"): lambda stamp: f"{'weekend' if stamp.weekday() > 4 else 'workday'} {stamp.hour:02}:00",
    ("month", "weekday"): lambda stamp: stamp.strftime("%b %a"),
}


def readings(seed: int) -> pl.DataFrame:
    """Three weeks of half-hours of five series, a tenth of them missing, some of them twice."""
    print(f"seed {seed}")  # noqa: T201 - a failure shows it
    rng = random.Random(seed)
    start = round(dt.datetime(2013, 10, 14, tzinfo=dt.UTC).timestamp()) * 1_000_000
    rows = [
        {"series": name, "time": start + slot * HALF, "value": rng.uniform(0, 2500)}
        for name in SERIES
        for slot in range(21 * 48)
        if rng.random() < 0.9
    ]
    return pl.DataFrame(rows + rows[:100]).sample(fraction=1.0, shuffle=True, seed=seed)


def job(folder: Path, by: tuple[str, ...], windows: dict[str, str], missing: str = "public", **extra: Any) -> Any:
    slots = {"interval": "30min", "origin": "2013-01-01", "timezone": "Europe/London"}
    return settings(folder, by=list(by), windows=windows, missing=missing, slots=slots, **extra)


def plainly(frame: pl.DataFrame, row: Release, by: tuple[str, ...], groups: bool) -> dict[str, list[int]]:
    """Label of each class that a row's window has -> its counts, the missing state last."""
    members = [name for name in SERIES if (GROUPS[name] if groups else name) == row.key]
    held = {(name, time): value for name, time, value in frame.rows()}
    found: dict[str, list[int]] = {}
    for time in range(row.window_start, row.window_stop, HALF):
        label = BY[by](dt.datetime.fromtimestamp(time / 1e6, ZoneInfo("Europe/London")))
        counts = found.setdefault(label, [0] * 6)
        for name in members:
            value = held.get((name, time))
            counts[5 if value is None else sum(value >= edge for edge in EDGES)] += 1
    return found


def by_label(row: Release, counts: Any) -> dict[str, list[Any]]:
    assert row.classes is not None
    width = len(counts) // len(row.classes)
    return {label: list(counts[i * width : (i + 1) * width]) for i, label in enumerate(row.classes)}


@pytest.mark.night
@pytest.mark.parametrize(
    ("by", "windows", "missing", "grouped"),
    [
        (("hour",), AUTUMN, "public", True),
        (("weekend", "hour"), SLIDING, "state", False),
        (("month", "weekday"), DAYS, "state", True),
    ],
)
def test_counts_by_class_equal_a_plain_computation(
    tmp_path: Path, by: tuple[str, ...], windows: dict[str, str], missing: str, grouped: bool
) -> None:
    frame = readings(20131014)
    extra: dict[str, Any] = {"group_by": "group"} if grouped else {}
    rows = publish(
        batches(frame, 500, GROUPS if grouped else None), job(tmp_path, by, windows, missing, **extra), tmp_path
    )
    assert {row.by for row in rows} == {by}
    states = 6 if missing == "state" else 5
    for row in rows:
        truth = plainly(frame, row, by, grouped)
        assert row.classes is not None
        assert row.class_slots is not None
        assert len(row.counts) == len(row.classes) * states
        slots = dict(zip(row.classes, row.class_slots, strict=True))
        for label, counts in by_label(row, row.counts).items():
            assert counts == truth.get(label, [0] * 6)[:states], (row.key, label)
            assert slots[label] == sum(truth.get(label, [])) // row.members
        assert row.total == sum(row.counts)
        assert row.estimate == tuple(map(float, row.counts))


@pytest.mark.night
def test_noise_keeps_the_total_of_each_class_and_missing_classes_are_zero(tmp_path: Path) -> None:
    """Noise of scale 60 that leaves five counts as they are has probability below 1e-6 in each of 18 classes."""
    frame = readings(20131026)
    by = ("month", "weekday")
    one = job(tmp_path, by, DAYS, group_by="group")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | feed(tmp_path, batches(frame, 500, GROUPS)) | PrivateHistograms(one)
    with Store(PrivateHistograms(one).plan.address) as store:
        rows = [row for batch in store.releases(one.domain, one.query) for row in releases_from_batch(batch)]
    assert len(rows) == 8
    noisy = 0
    for row in rows:
        truth = plainly(frame, row, by, groups=True)
        assert row.estimate is not None
        estimates = by_label(row, row.estimate)
        for label, counts in by_label(row, row.counts).items():
            if label not in truth:
                assert counts == estimates[label] == [0] * 5
                continue
            total = sum(truth[label][:5])
            assert sum(counts) == total
            assert sum(estimates[label]) == pytest.approx(total)
            assert min(estimates[label]) >= 0
            noisy += counts != truth[label][:5]
    assert noisy >= 9
    assert {row.noise_law for row in rows} == {"discrete-laplace-zero-sum"}


def test_classes_change_neither_noise_nor_loss(tmp_path: Path) -> None:
    plain, classed = (make_plan(settings(tmp_path, **extra)) for extra in ({}, {"by": ["weekday", "hour"]}))
    assert (plain.scale, plain.share, plain.calibration) == (classed.scale, classed.share, classed.calibration)
    specs = [
        one.query(one.schedule, Roster.of(["a"]), schedule_given=True, roster_given=True) for one in (plain, classed)
    ]
    assert specs[0].epsilon_dp == specs[1].epsilon_dp
    assert specs[0].header["half_width_95"] == specs[1].header["half_width_95"]
    assert specs[0].by == ()
    assert "by" not in specs[0].frozen_fields(plain.domain)  # digests of queries on record stay
    assert specs[1].by == ("weekday", "hour")


def test_a_query_keeps_its_classes_and_their_order(tmp_path: Path) -> None:
    roster = Roster.of(["a", "b"])
    plans = {
        name: make_plan(settings(tmp_path, by=by))
        for name, by in (("hour", "hour"), ("same", ["hour"]), ("day", ["weekday"]), ("none", []))
    }
    specs = {
        name: plan.query(plan.schedule, roster, schedule_given=True, roster_given=True) for name, plan in plans.items()
    }
    digests = {name: spec.digest(plans[name].domain) for name, spec in specs.items()}
    assert digests["hour"] == digests["same"]
    assert len(set(digests.values())) == 3
    with Store(plans["hour"].address, create=True) as store:
        held = store.register(plans["hour"].domain, specs["hour"])
        assert held.query.by == ("hour",)
        assert store.register(plans["same"].domain, specs["same"]).query.by == ("hour",)
        for other in ("day", "none"):
            with pytest.raises(StoreConflict, match=r"by is .* on record"):
                store.register(plans[other].domain, specs[other])


def test_a_block_without_the_counts_of_every_class_is_refused(tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path, by="hour"))
    spec = plan.query(plan.schedule, Roster.of(["a"]), schedule_given=True, roster_given=True)
    with Store(plan.address, create=True) as store:
        held = store.register(plan.domain, spec)
        window = next(held.query.schedule.windows())
        layout = layout_of(held, window)
        assert layout.columns == 24 * 5
        (shard,) = layout.occupied

        def draw() -> NoisyBlock:
            counts = np.zeros((1, 5), dtype=np.int64)
            return NoisyBlock(("a",), counts.sum(axis=1), counts)

        with pytest.raises(StoreConflict, match=r"\(1, 120\)"):
            store.publish(held, [BlockToPublish(window, shard, draw)])


def test_a_record_with_unknown_classes_is_refused(tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path, by="hour"))
    spec = plan.query(plan.schedule, Roster.of(["a"]), schedule_given=True, roster_given=True)
    with Store(plan.address, create=True) as store:
        held = store.register(plan.domain, spec)
    later = replace(held, query=replace(spec, header={**spec.header, "by": ["tide"]}))
    with pytest.raises(StoreError, match=r"by names 'tide'.*a later version may know it"):
        layout_of(later, Window(0, 336))
    assert len(classes_of(held)) == 24
