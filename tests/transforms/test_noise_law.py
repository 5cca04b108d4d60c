"""Which noise a query has: one that keeps the total where that is public, and nowhere else."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.window import IntervalWindow

from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram, LaplaceHistogram
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.roster import Roster
from quiltstream.store import QuerySpec, Registration, Store, StoreError
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import TRANSITIONS, total_is_public
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.release import ReleaseHistograms, Tally
from quiltstream.transforms.plan import Plan, make_plan
from quiltstream.transforms.registration import Registered

from .sources.feed import feed
from .test_histograms import ORIGIN, batches, settings

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


@pytest.mark.night
@pytest.mark.parametrize("missing", ["public", "state"])
@pytest.mark.parametrize("grouped", [False, True])
def test_published_counts_add_up_to_the_total_for_series_and_groups(
    tmp_path: Path, missing: str, grouped: bool
) -> None:
    rows = published(tmp_path, missing, grouped)
    assert len(rows) == 2 * (2 if grouped else 5)
    assert {row.noise_law for row in rows} == {ZERO_SUM}
    assert all(sum(row.counts) == row.total for row in rows)
    assert all(row.estimate is not None and sum(row.estimate) == pytest.approx(row.total) for row in rows)
    # noise of scale 60 that leaves a row of five or six counts as it is has probability below 1e-6
    assert any(min(row.counts) < 0 for row in rows)
    if missing == "state":
        assert all(row.total == row.members * row.slots for row in rows)


def published(folder: Path, missing: str, grouped: bool) -> list[Release]:
    seed = 20130101
    print(f"seed {seed}")  # noqa: T201 - a failure shows it
    rng = random.Random(seed)
    series = ["a", "b", "c", "d", "e"]
    found = [
        {"series": name, "time": ORIGIN + slot * 1_800_000_000, "value": rng.uniform(0, 2500)}
        for name in series
        for slot in range(14 * 48)
        if rng.random() < 0.9
    ]
    groups = {name: "north" if name < "c" else "south" for name in series} if grouped else None
    extra: dict[str, Any] = {"group_by": "group"} if grouped else {}
    job = settings(folder, windows=WEEK, missing=missing, **extra)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | feed(folder, batches(pl.DataFrame(found), 500, groups)) | PrivateHistograms(job)
    with Store(PrivateHistograms(job).plan.address) as store:
        return [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]


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
