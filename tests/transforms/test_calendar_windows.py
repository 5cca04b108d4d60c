"""Calendar windows through the transform: against plain Python over the raw readings, and their noise by length."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.mechanisms.histogram import LaplaceHistogram
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.privacy.models.serialisation import belief_from_dict
from quiltstream.privacy.quilts.calibration import mqm_approx
from quiltstream.schemas.calendars import local_calendar
from quiltstream.schemas.releases import Release
from quiltstream.schemas.roster import Roster
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.encode import EncodeCells
from quiltstream.transforms.aggregate.release import Held, NoisyBlocks
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import registered

from .sources.feed import feed
from .test_histograms import EDGES, batches, publish, read, write
from .test_noise_law import held as of_record
from .test_slot_classes import GROUPS, HALF, by_label, job, plainly, readings

LONDON = ZoneInfo("Europe/London")
DAYS = {"size": "day", "start": "2013-10-20", "stop": "2013-10-31"}


def counts_of(frame: pl.DataFrame, row: Release, members: list[str]) -> list[int]:
    found = [0] * 5
    for name, time, value in frame.unique(["series", "time"]).rows():
        if name in members and row.window_start <= time < row.window_stop:
            found[sum(value >= edge for edge in EDGES)] += 1
    return found


def local(instant_us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(instant_us / 1e6, LONDON).replace(tzinfo=None)


@pytest.mark.night
@pytest.mark.parametrize(("size", "numbers"), [("day", [48] * 7 + [50] + [48] * 3), ("week", [336, 338])])
def test_rows_of_days_and_weeks_count_cells_between_local_midnights(
    tmp_path: Path, size: str, numbers: list[int]
) -> None:
    frame = readings(20131020)
    windows = DAYS | {"size": size, "start": "2013-10-14" if size == "week" else "2013-10-20", "stop": "2013-10-31"}
    rows = sorted(publish(batches(frame, 400), job(tmp_path, (), windows), tmp_path), key=lambda row: row.window_start)
    of_a = [row for row in rows if row.key == "a"]
    assert [row.slots for row in of_a] == numbers
    assert {(row.window_stop - row.window_start) // HALF - row.slots for row in rows} == {0}
    days = 7 if size == "week" else 1
    for at, row in enumerate(of_a):
        first = dt.datetime.fromisoformat(windows["start"]) + dt.timedelta(days=days * at)
        assert (local(row.window_start), local(row.window_stop)) == (first, first + dt.timedelta(days=days))
    for row in rows:
        assert list(row.counts) == counts_of(frame, row, [row.key])
        assert row.total == sum(row.counts)


def test_groups_and_classes_of_slots_are_counted_in_days_of_any_length(tmp_path: Path) -> None:
    frame, by = readings(20131027), ("hour",)
    rows = publish(batches(frame, 500, GROUPS), job(tmp_path, by, DAYS, group_by="group"), tmp_path)
    assert {row.key for row in rows} == {"north", "south"}
    assert len(rows) == 2 * 11
    for row in rows:
        truth = plainly(frame, row, by, groups=True)
        assert row.classes is not None
        assert row.class_slots is not None
        assert sum(row.class_slots) == row.slots
        assert row.class_slots[1] == (4 if row.slots == 50 else 2)
        for label, counts in by_label(row, row.counts).items():
            assert counts == truth.get(label, [0] * 6)[:5]


def test_the_noise_of_a_month_calibrated_alone_depends_on_its_length(tmp_path: Path) -> None:
    windows = {"size": "month", "start": "2013-01-01", "stop": "2014-01-01"}
    lengths = local_calendar("month", "Europe/London", HALF).lengths
    assert {28 * 48, 31 * 48 - 2, 31 * 48, 30 * 48, 29 * 48} <= set(lengths)
    # a chain that forgets slowly, so that the noise of a window depends on its slots
    bounds = {"pi_min": 0.01, "gap": 0.004}
    for mechanism in ("mqm-approx", "group-dp"):
        privacy = {"epsilon": 1.0, "guarantee": "window", "mechanism": mechanism}
        plan = make_plan(job(tmp_path, (), windows, privacy=privacy, model=bounds))
        for slots in lengths:
            alone = slots if mechanism == "group-dp" else mqm_approx(MixingBounds(0.01, 0.004), 1.0, slots).sigma
            own = plan.of_length(slots)
            assert own.calibration.sigma == alone
            assert own.scale == LaplaceHistogram.from_sigma(5, alone).scale
        assert len({plan.of_length(slots).scale for slots in lengths}) > 4
        assert plan.scale == max(plan.of_length(slots).scale for slots in lengths)
    # one noise for ever has no length, nor have windows far longer than a chain remembers
    stream = make_plan(job(tmp_path, (), windows))
    assert stream.scale == make_plan(job(tmp_path, (), windows | {"size": "day"})).scale
    quick = make_plan(job(tmp_path, (), windows, privacy={"epsilon": 1.0, "guarantee": "window"}))
    assert (stream.lengths, quick.lengths) == ((), ())


WINDOW = {"epsilon": 2.0, "guarantee": "window", "mechanism": "group-dp", "budget": 1000.0}


@pytest.mark.night
@pytest.mark.parametrize(
    ("size", "stop", "lengths"), [("day", "2013-10-31", {48, 50}), ("week", "2013-11-04", {336, 338})]
)
def test_rows_and_charges_of_calendar_windows_contain_their_noise(
    tmp_path: Path, size: str, stop: str, lengths: set[int]
) -> None:
    windows = DAYS | {"size": size, "start": "2013-10-14", "stop": stop}
    asked = job(tmp_path, (), windows, privacy=WINDOW, most_error=1e9)
    out = tmp_path / "out"
    out.mkdir()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        result = pipeline | feed(tmp_path, batches(readings(20131014), 500)) | PrivateHistograms(asked)
        _ = result.releases | beam.Map(write, str(out))
    plan = make_plan(asked)
    rows = [row for path in sorted(out.iterdir()) for row in read(path)]
    assert {row.slots for row in rows} == lengths
    for row in rows:
        own = plan.of_length(row.slots)
        assert Fraction(row.scale_exact) == own.scale == LaplaceHistogram.from_sigma(5, row.slots / 2).scale
        assert (row.scale, row.epsilon_dp) == (float(own.scale), own.noisy.epsilon_dp)
        assert row.half_width_95 == own.noisy.half_width(0.95)
        assert sum(row.counts) == row.total
    with Store(PrivateHistograms(asked).plan.address) as store:
        held = store.registered(asked.domain, asked.query)
        assert held is not None
        account = Ledger(belief_from_dict(held.domain.belief))
        for entry in store.entries():
            slots = entry.window_stop - entry.window_start
            assert entry.epsilon_dp == plan.of_length(slots).noisy.epsilon_dp
            assert slots * entry.epsilon_dp == pytest.approx(2.0, rel=1e-3)
            assert account.loss_of([entry.span]) <= 2.0
            account.charge(*entry.span)
        assert account.loss == pytest.approx(held.reserved_loss)
        assert store.verify().defects == ()


def test_noise_is_drawn_by_the_length_of_each_window_also_in_one_bundle(tmp_path: Path) -> None:
    seed = 20131027
    print(f"seed {seed}")  # noqa: T201 - a failure shows it
    asked = job(tmp_path, (), DAYS | {"start": "2013-01-01"}, privacy=WINDOW, most_error=1e9)
    plan = make_plan(asked)
    roster = Roster.of([f"home {number}" for number in range(10_000)])
    held = of_record(plan, plan.query(plan.schedule, roster, schedule_given=True, roster_given=True))
    windows = [window for window in plan.schedule.windows() if len(window) != 48]
    assert [len(window) for window in windows] == [46, 50]
    true = np.full((10_000, 5), 7)
    blocks = NoisyBlocks(plan, held, [Held(one, 0, true, "replayed", WindowedValue(None, 0, ())) for one in windows])
    for number, window in enumerate(windows):
        noisy = blocks.block(number, roster.keys).counts
        expected = plan.of_length(len(window)).noisy.mean_abs
        # 50,000 draws: their mean is within 5 of its standard errors but for one run in a million
        assert np.abs(noisy - 7).mean() == pytest.approx(expected, abs=5 * 1.3 * expected / 50_000**0.5)
    apart = plan.of_length(50).noisy.mean_abs - plan.of_length(46).noisy.mean_abs
    assert apart > 0.05 * plan.of_length(46).noisy.mean_abs


def test_windows_of_equal_length_keep_the_names_of_their_rows(tmp_path: Path) -> None:
    """What names rows has one scale, unless regular lengths have several; a clock change is no part of it."""
    roster = Roster.of(["a"])

    def frozen(size: str, **extra: Any) -> dict[str, Any]:
        plan = make_plan(job(tmp_path, (), DAYS | {"size": size, "start": "2013-01-01"}, **extra))
        query = plan.query(plan.schedule, roster, schedule_given=True, roster_given=True)
        return query.frozen_fields(plan.domain)

    for size in ("day", "week", "1d"):
        assert "scales" not in frozen(size)
        assert "scales" not in frozen(size, privacy=WINDOW)
    assert frozen("day", privacy=WINDOW)["scale"] == frozen("1d", privacy=WINDOW)["scale"]
    assert list(frozen("month", privacy=WINDOW)["scales"]) == [str(days * 48) for days in (28, 29, 30, 31)]
    assert "scale" not in frozen("month", privacy=WINDOW)


@pytest.mark.parametrize("size", ["day", "week", "month"])
def test_a_reading_behind_the_last_year_of_a_calendar_is_outside(tmp_path: Path, size: str) -> None:
    """A clock that is wrong by a century stops no job: the step behind the calendar has no slots."""
    roster = tmp_path / "roster.csv"
    roster.write_text("series\na\n")
    asked = job(tmp_path, (), {"size": size, "start": "2013-10-14"}, roster=str(roster))
    plan = PrivateHistograms(asked).plan.opened()
    times = [dt.datetime(year, 12, 31, 23, 59, tzinfo=dt.UTC) for year in (2013, 2098, 2199)]
    frame = pl.DataFrame({"series": ["a"] * 3, "time": times, "value": [1.0] * 3})
    encode = EncodeCells(plan)
    encode.setup()
    encode.start_bundle()
    (batch,) = batches(frame, 3)
    found = [*encode.process(batch, registered(plan, live=False), Timestamp(0)), *encode.finish_bundle()]
    encode.teardown()
    blocks, tally = [one.value[1] for one in found[:-1]], found[-1].value.value
    assert (sum(block.readings for block in blocks), len(blocks)) == (2, 2)
    assert tally == {"readings": 2, "outside-schedule": 1}
