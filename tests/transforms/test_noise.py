"""Which noise a query has: one that keeps the total where that is public, and nowhere else; of which length."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram, LaplaceHistogram
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.privacy.quilts.calibration import mqm_approx
from quiltstream.schemas.calendars import local_calendar
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.roster import Roster
from quiltstream.store import QuerySpec, Registration, Store, StoreError
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import TRANSITIONS, total_is_public
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.encode import EncodeCells
from quiltstream.transforms.aggregate.release import NoisyBlocks, ReleaseHistograms, Tally, Waiting
from quiltstream.transforms.plan import Plan, make_plan
from quiltstream.transforms.registration import Registered, registered

from .test_histograms import HALF, ORIGIN, batches, job, settings

ZERO_SUM, INDEPENDENT = FixedTotalHistogram.name, LaplaceHistogram.name
WEEK = {"size": "7d", "start": "2013-01-01", "stop": "2013-01-15"}


def planned(folder: Path, **changes: Any) -> tuple[Plan, QuerySpec]:
    plan = make_plan(settings(folder, windows=WEEK, **changes))
    return plan, plan.query(plan.schedule, Roster.of(["a", "b"]), schedule_given=True, roster_given=True)


def held(plan: Plan, query: QuerySpec) -> Registration:
    return Registration(plan.domain, query, query.digest(plan.domain), None, 1.0, fresh=True)


@pytest.mark.parametrize("missing", ["public", "state", {"break": "2h"}])
def test_every_rule_whose_totals_are_public_has_noise_that_keeps_them(tmp_path: Path, missing: Any) -> None:
    plan, query = planned(tmp_path, missing=missing)
    assert total_is_public(held(plan, query))
    mechanism = plan.histogram_of(held(plan, query), plan.schedule.size)
    assert mechanism == FixedTotalHistogram(plan.space.size, plan.scale)
    assert (query.noise_law, query.header["noise_law"]) == (ZERO_SUM, ZERO_SUM)
    assert query.header["half_width_95"] == mechanism.half_width(0.95)
    assert query.header["half_width_95"] < LaplaceHistogram(plan.space.size, plan.scale).half_width(0.95)
    assert query.release_epsilon_dp == LaplaceHistogram(plan.space.size, plan.scale).epsilon_dp


@pytest.mark.parametrize("rule", ["secret", "publicly", "break", ""])
def test_without_a_public_total_the_noise_of_each_count_is_independent(tmp_path: Path, rule: str) -> None:
    plan, _ = planned(tmp_path)
    plan = replace(plan, domain=replace(plan.domain, missing=rule))
    query = plan.query(plan.schedule, Roster.of(["a", "b"]), schedule_given=True, roster_given=True)
    assert not total_is_public(held(plan, query))
    assert query.noise_law == INDEPENDENT
    mechanism = plan.histogram_of(held(plan, query), plan.schedule.size)
    assert mechanism == LaplaceHistogram(plan.space.size, plan.scale)
    assert query.header["half_width_95"] == mechanism.half_width(0.95)


def test_a_record_that_would_publish_totals_that_are_not_public_draws_nothing(tmp_path: Path) -> None:
    plan, query = planned(tmp_path)
    for domain, spec in (
        (replace(plan.domain, missing="secret"), query),
        (plan.domain, replace(query, mechanism=TRANSITIONS)),
    ):
        with pytest.raises(StoreError, match="noise_law is discrete-laplace-zero-sum"):
            plan.histogram_of(replace(held(plan, query), domain=domain, query=spec), plan.schedule.size)
    unheard = replace(query, header={**query.header, "noise_law": "another"})
    with pytest.raises(StoreError, match="noise_law is 'another'"):
        plan.histogram_of(held(plan, unheard), plan.schedule.size)


def test_the_noise_law_follows_the_record_and_is_part_of_the_query_digest(tmp_path: Path) -> None:
    plan, query = planned(tmp_path)
    header = {name: value for name, value in query.header.items() if name != "noise_law"}
    earlier = replace(query, header=header)
    assert earlier.noise_law == INDEPENDENT
    assert earlier.digest(plan.domain) != query.digest(plan.domain)
    drawn = plan.histogram_of(held(plan, replace(earlier, scale=Fraction(7, 2))), plan.schedule.size)
    assert drawn == LaplaceHistogram(plan.space.size, Fraction(7, 2))
    with Store(plan.address, create=True) as store:
        assert store.register(plan.domain, earlier).query.noise_law == INDEPENDENT
        with pytest.raises(StoreConflict, match=r"noise_law is 'discrete-laplace-zero-sum', but on record"):
            store.register(plan.domain, query)
        assert store.register(plan.domain, earlier).query.noise_law == INDEPENDENT


HOUR = {"size": "1h", "start": "2013-01-01", "stop": "2013-01-01T01:00"}
ONE = Roster.of(["a"])

Cells = tuple[int | None, ...]
"""The state of each cell of a window of one series; ``None`` where its value was rejected."""


def row_of(folder: Path, missing: Any, cells: Cells) -> Release:
    """The row of a window before noise, through the ledger."""
    folder.mkdir()
    job = settings(folder, windows=HOUR, missing=missing, states={"edges": [500.0], "unit": "W"})
    plan = make_plan(job, noise="none")
    with Store(plan.address, create=True) as store:
        given = plan.query(plan.schedule, ONE, schedule_given=True, roster_given=True)
        registration = store.register(plan.domain, given)
        publishing = ReleaseHistograms(plan)
        publishing.setup()
        publishing.start_bundle()
        counts = np.array([[cells.count(0), cells.count(1)]])
        window = IntervalWindow(ORIGIN // 1_000_000, ORIGIN // 1_000_000 + 3_600)
        assert not list(
            publishing.process((0, Tally({1: counts}, 1)), Registered(store.store_id, registration), window, window.end)
        )
        (batch,) = [one.value for one in publishing.finish_bundle()]
        publishing.teardown()
    (row,) = releases_from_batch(batch)
    return row


@pytest.mark.night
@pytest.mark.parametrize("missing", ["public", "state", {"break": "2h"}], ids=str)
def test_a_row_reveals_the_number_of_rejected_values_only_if_it_is_public(tmp_path: Path, missing: Any) -> None:
    """From the definition: every window of two cells, each in one of two states or rejected, against every other one.

    Under ``state`` two windows that differ in one cell have rows that differ in noisy counts alone, and the noise of
    scale b makes each row at most exp(2 / b) times as probable for one as for the other, also where the cell of one
    was rejected. Under the other rules the total is the number of cells whose value was not rejected, which `run`
    says and the guarantee takes as public.
    """
    windows = list(itertools.product((0, 1, None), repeat=2))
    rows = {cells: row_of(tmp_path / str(number), missing, cells) for number, cells in enumerate(windows)}
    if missing != "state":
        assert all(row.total == 2 - cells.count(None) for cells, row in rows.items())
        return
    told = [replace(row, counts=(), estimate=None) for row in rows.values()]
    assert all(one == told[0] for one in told)
    assert told[0].total == 2
    scale = 3.0
    outputs = [(x, y, 2 - x - y) for x in range(-6, 9) for y in range(-6, 9)]
    likely = {
        cells: [-sum(abs(x - count) for x, count in zip(out, row.counts, strict=True)) / scale for out in outputs]
        for cells, row in rows.items()
    }
    for one, other in itertools.product(windows, repeat=2):
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1:
            # logarithms; the laws have one normaliser, since the noise sums to zero wherever it is added
            assert all(p <= q + 2 / scale + 1e-12 for p, q in zip(likely[one], likely[other], strict=True))


# Windows of the calendar


DAYS = {"size": "day", "start": "2013-10-20", "stop": "2013-10-31"}
WINDOW = {"epsilon": 2.0, "guarantee": "window", "mechanism": "group-dp", "budget": 1000.0}


def test_the_noise_of_a_month_calibrated_alone_depends_on_its_length(tmp_path: Path) -> None:
    windows = {"size": "month", "start": "2013-01-01", "stop": "2014-01-01"}
    lengths = local_calendar("month", "Europe/London", HALF).lengths
    assert {28 * 48, 31 * 48 - 2, 31 * 48, 30 * 48, 29 * 48} <= set(lengths)
    # a chain that forgets slowly, so that the noise of a window depends on its slots
    bounds = {"pi_min": 0.01, "gap": 0.004}
    for mechanism in ("mqm-approx", "group-dp"):
        privacy = {"epsilon": 1.0, "guarantee": "window", "mechanism": mechanism}
        plan = make_plan(job(tmp_path, windows, privacy=privacy, model=bounds))
        for slots in lengths:
            alone = slots if mechanism == "group-dp" else mqm_approx(MixingBounds(0.01, 0.004), 1.0, slots).sigma
            own = plan.of_length(slots)
            assert own.calibration.sigma == alone
            assert own.scale == LaplaceHistogram.from_sigma(5, alone).scale
        assert len({plan.of_length(slots).scale for slots in lengths}) > 4
        assert plan.scale == max(plan.of_length(slots).scale for slots in lengths)
    # one noise for ever has no length, nor have windows far longer than a chain remembers
    stream = make_plan(job(tmp_path, windows))
    assert stream.scale == make_plan(job(tmp_path, windows | {"size": "day"})).scale
    quick = make_plan(job(tmp_path, windows, privacy={"epsilon": 1.0, "guarantee": "window"}))
    assert (stream.lengths, quick.lengths) == ((), ())


def test_noise_is_drawn_by_the_length_of_each_window_also_in_one_bundle(tmp_path: Path) -> None:
    seed = 20131027
    print(f"seed {seed}")  # noqa: T201 - a failure shows it
    asked = job(tmp_path, DAYS | {"start": "2013-01-01"}, privacy=WINDOW, most_error=1e9)
    plan = make_plan(asked)
    roster = Roster.of([f"home {number}" for number in range(10_000)])
    record = held(plan, plan.query(plan.schedule, roster, schedule_given=True, roster_given=True))
    windows = [window for window in plan.schedule.windows() if len(window) != 48]
    assert [len(window) for window in windows] == [46, 50]
    true = np.full((10_000, 5), 7)
    blocks = NoisyBlocks(
        plan, record, [Waiting(one, 0, true, "replayed", WindowedValue(None, 0, ())) for one in windows]
    )
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
        plan = make_plan(job(tmp_path, DAYS | {"size": size, "start": "2013-01-01"}, **extra))
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
    asked = job(tmp_path, {"size": size, "start": "2013-10-14"}, roster=str(roster))
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
