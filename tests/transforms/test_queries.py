"""What a query on record keeps of its bins and classes of slots, and what they cost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.schemas.roster import Roster
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.slots import Window
from quiltstream.schemas.states import StateSpace
from quiltstream.store import QuerySpec, Store, StoreError
from quiltstream.store.codec import NoisyBlock
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import BlockToPublish, bins_of, classes_of, layout_of
from quiltstream.transforms.plan import Plan, make_plan

from .test_histograms import EDGES, settings

COARSE = [500.0, 2000.0]
BUDGET = {"epsilon": 1.0, "budget": 3.0}


def spec_of(folder: Path, **changes: Any) -> tuple[Plan, QuerySpec]:
    plan = make_plan(settings(folder, **{"privacy": BUDGET} | changes))
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


def test_bins_and_classes_change_neither_domain_nor_noise_and_each_query_pays(tmp_path: Path) -> None:
    fine, fine_spec = spec_of(tmp_path)
    coarse, coarse_spec = spec_of(tmp_path, bins=COARSE, query="coarse")
    classed, classed_spec = spec_of(tmp_path, by=["weekday", "hour"], query="classed")
    for plan, spec in ((coarse, coarse_spec), (classed, classed_spec)):
        assert (plan.domain, plan.scale, plan.calibration) == (fine.domain, fine.scale, fine.calibration)
        assert spec.epsilon_dp == fine_spec.epsilon_dp
    # fewer bins whose total is public have less noise at the same loss
    assert coarse_spec.header["half_width_95"] < fine_spec.header["half_width_95"]
    assert classed_spec.header["half_width_95"] == fine_spec.header["half_width_95"]
    assert "by" not in fine_spec.frozen_fields(fine.domain)  # digests of queries on record stay
    with Store(fine.address, create=True) as store:
        first, second = store.register(fine.domain, fine_spec), store.register(coarse.domain, coarse_spec)
        window = next(first.query.schedule.windows())
        assert (layout_of(first, window).columns, layout_of(second, window).columns) == (5, 3)
        assert second.reserved_loss > first.reserved_loss


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ({"bins": COARSE}, {"bins": [1000]}, r"bins is \[1000.0\], but on record it is \[500.0, 2000.0\]"),
        ({"bins": COARSE}, {}, "bins is left out, but on record"),
        ({"by": "hour"}, {"by": ["weekday"]}, "by is .* on record"),
        ({"by": ["hour"]}, {}, "by is .* on record"),
        ({}, {"by": "hour"}, "by is .* on record"),
    ],
)
def test_a_query_keeps_its_bins_and_classes(tmp_path: Path, first: Any, other: Any, said: str) -> None:
    plan, spec = spec_of(tmp_path, **first)
    with Store(plan.address, create=True) as store:
        assert store.register(plan.domain, spec).digest == store.register(plan.domain, spec).digest
        with pytest.raises(StoreConflict, match=said):
            store.register(plan.domain, spec_of(tmp_path, **other)[1])


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


def test_a_record_of_bins_or_classes_that_are_not_known_draws_nothing(tmp_path: Path) -> None:
    plan, spec = spec_of(tmp_path, bins=COARSE, by="hour")
    with Store(plan.address, create=True) as store:
        held = store.register(plan.domain, spec)
        window = next(held.query.schedule.windows())
        (shard,) = layout_of(held, window).occupied
        counts = np.zeros((1, 3), dtype=np.int64)
        block = NoisyBlock(("a",), counts.sum(axis=1), counts)
        with pytest.raises(StoreConflict, match=r"\(1, 72\)"):  # a block without the counts of every class
            store.publish(held, [BlockToPublish(window, shard, lambda: block)])
    assert (bins_of(held).edges, len(classes_of(held))) == (tuple(COARSE), 24)
    other = replace(held, query=replace(spec, header={**spec.header, "bins": [300.0]}))
    with pytest.raises(StoreError, match=r"bins\[0\] is 300"):
        plan.histogram_of(other, plan.schedule.size)
    later = replace(held, query=replace(spec, header={**spec.header, "by": ["tide"]}))
    with pytest.raises(StoreError, match=r"by names 'tide'.*a later version may know it"):
        layout_of(later, Window(0, 336))
