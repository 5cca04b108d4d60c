"""Bins that are unions of a domain's states: a coarser query of the same domain, at the price of its own noise."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.schemas.roster import Roster
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.states import StateSpace
from quiltstream.store import Store, StoreError
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import bins_of, layout_of
from quiltstream.transforms.plan import make_plan

from .test_histograms import EDGES, batches, publish, settings
from .test_slot_classes import AUTUMN, GROUPS, readings

COARSE = [500.0, 2000.0]


def spec_of(folder: Path, **changes: Any) -> Any:
    plan = make_plan(settings(folder, **changes))
    return plan, plan.query(plan.schedule, Roster.of(["a"]), schedule_given=True, roster_given=True)


@pytest.mark.parametrize("edges", [kept for n in (1, 2, 3, 4) for kept in itertools.combinations(EDGES, n)])
@pytest.mark.parametrize("missing", [False, True])
def test_a_bin_is_a_union_of_states_and_a_cell_moves_two_of_them_or_none(edges: Any, missing: bool) -> None:
    """Every pair of states of a cell: sensitivity from the definition."""
    states = StateSpace(tuple(EDGES), "W", missing)
    bins = states.merged(edges)
    firsts = bins.firsts_in(states)
    values = np.array([-1.0, 0.0, 249.0, 250.0, 499.0, 500.0, 999.0, 1000.0, 1999.0, 2000.0, 1e9])
    of_state = np.searchsorted(firsts, np.arange(states.bins), side="right") - 1
    assert of_state[states.encode(values)].tolist() == bins.encode(values).tolist()
    histograms = np.add.reduceat(np.eye(states.bins, dtype=np.int64), firsts, axis=1)
    assert histograms.shape == (states.bins, bins.bins)
    for x, y in itertools.product(range(states.bins), repeat=2):
        assert np.abs(histograms[x] - histograms[y]).sum() in (0, 2)
        assert histograms[x].sum() == 1


@pytest.mark.night
@pytest.mark.parametrize(("missing", "by"), [("public", []), ("state", "hour")])
def test_the_counts_of_a_coarser_query_are_sums_of_the_finer_counts(tmp_path: Path, missing: str, by: Any) -> None:
    frame = readings(20131014)
    rows = {}
    for name, extra in (("fine", {}), ("coarse", {"bins": COARSE})):
        folder = tmp_path / name
        folder.mkdir()
        job = settings(folder, windows=AUTUMN, missing=missing, by=by, group_by="group", **extra)
        found = publish(batches(frame, 500, GROUPS), job, folder)
        rows[name] = {(row.window_start, row.key): row for row in found}
    assert rows["fine"].keys() == rows["coarse"].keys()
    states = 6 if missing == "state" else 5
    for key, fine in rows["fine"].items():
        coarse = rows["coarse"][key]
        assert coarse.edges == tuple(COARSE)
        each = np.array(fine.counts).reshape(-1, states)
        merged = [each[:, :2].sum(axis=1), each[:, 2:4].sum(axis=1), each[:, 4], *each[:, 5:].T]
        assert list(coarse.counts) == np.stack(merged, axis=1).reshape(-1).tolist()
        assert coarse.total == fine.total


def test_queries_of_both_share_a_domain_and_pay_for_their_noise(tmp_path: Path) -> None:
    budget = {"epsilon": 1.0, "budget": 3.0}
    fine, fine_spec = spec_of(tmp_path, privacy=budget)
    coarse, coarse_spec = spec_of(tmp_path, privacy=budget, bins=COARSE, query="coarse")
    assert fine.domain == coarse.domain
    assert (fine.scale, fine_spec.epsilon_dp) == (coarse.scale, coarse_spec.epsilon_dp)
    # fewer bins whose total is public have less noise at the same loss
    assert coarse_spec.header["half_width_95"] < fine_spec.header["half_width_95"]
    with Store(fine.address, create=True) as store:
        first = store.register(fine.domain, fine_spec)
        second = store.register(coarse.domain, coarse_spec)
        window = next(first.query.schedule.windows())
        assert (layout_of(first, window).columns, layout_of(second, window).columns) == (5, 3)
        assert second.reserved_loss > first.reserved_loss
        _, another = spec_of(tmp_path, privacy=budget, bins=[1000], query="coarse")
        with pytest.raises(StoreConflict, match=r"bins is \[1000.0\], but on record it is \[500.0, 2000.0\]"):
            store.register(coarse.domain, another)
        _, full = spec_of(tmp_path, privacy=budget, query="coarse")
        with pytest.raises(StoreConflict, match=r"bins is left out, but on record"):
            store.register(coarse.domain, full)


@pytest.mark.parametrize(
    ("bins", "said"),
    [
        ([300], r"bins\[0\] is 300, and the bins of a query are unions .* some of states.edges, 250, 500, 1000, 2000"),
        ([500, 250], r"bins\[1\] is 250, not above the one before it, 500; sort them"),
        ([], "bins is empty: a single bin says nothing"),
    ],
)
def test_bins_that_are_not_unions_of_states_are_refused(tmp_path: Path, bins: list[float], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings(tmp_path, bins=bins)


def test_a_record_whose_bins_are_not_of_its_domain_draws_nothing(tmp_path: Path) -> None:
    plan, spec = spec_of(tmp_path, bins=COARSE)
    with Store(plan.address, create=True) as store:
        held = store.register(plan.domain, spec)
    other = replace(held, query=replace(spec, header={**spec.header, "bins": [300.0]}))
    with pytest.raises(StoreError, match=r"bins\[0\] is 300"):
        plan.histogram_of(other, plan.schedule.size)
    assert bins_of(held).edges == tuple(COARSE)
