"""What a purpose comes to: errors against drawn releases, losses against the definition, odds against Bayes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quiltstream.privacy import FiniteClass, MarkovChain, MixingBounds, exact_loss
from quiltstream.privacy.accounting.lower_bounds import least_loss, lower_bound
from quiltstream.privacy.analysis import Odds, Purpose, analyse_utility
from quiltstream.privacy.analysis.audit import AuditRelease
from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.analysis.planning import LARGEST_EPSILON, Planner
from quiltstream.privacy.analysis.utility import error_tables, per_window
from quiltstream.privacy.models import AnyInitial, BinaryInterval, ChainError, DobrushinBounds
from quiltstream.privacy.models.belief import Belief

CHAIN = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
THREE = MarkovChain([[0.8, 0.15, 0.05], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])
CLASS = DobrushinBounds(forward={1: 0.8, 4: 0.35, 16: 0.02}, backward={1: 0.85, 4: 0.4, 16: 0.03})


def planner(belief: Belief = THREE, method: str = "forward-backward", **changes: Any) -> Planner:
    found = Planner(belief, 1.0, method=method, total_is_public=True, methods={method: METHODS[method].anywhere})
    return replace(found, **changes)


@pytest.mark.night
@pytest.mark.parametrize("total_is_public", [False, True])
def test_1000_drawn_releases_have_the_planned_error_within_3_per_cent(total_is_public):
    """1,000 weeks by the hour of the week. Rows of 3 counts are independent, the counts of a row need not be.

    The error of a row is at most that of 168,000 independent draws of a law whose deviation is at most its mean. By
    Chernoff's bound for an exponential law the false-alarm rate is below 2 exp(-168,000 (0.03 - log 1.03)), 1e-31.
    """
    classes, slots = 168, 336
    found = planner(total_is_public=total_is_public, class_share=1 / classes, group=100).at(slots)
    counts = np.full((1000 * classes, 3), found.cells // classes // 3, dtype=np.int64)
    errors = np.abs(found.mechanism.randomise(counts) - counts)
    assert errors.mean() == pytest.approx(found.bin_error, rel=0.03)
    even = found.cells / classes / 3
    assert errors.mean() / even == pytest.approx(found.relative_error, rel=0.03)
    # a share of 504,000 counts, in rows of 3: Hoeffding's bound for 168,000 rows leaves 1 % out with 1e-14
    assert (errors <= found.half_width()).mean() > 0.94


@pytest.mark.night
@pytest.mark.parametrize("guarantee", ["stream", "window"])
def test_each_mechanism_has_the_smallest_window_and_group_for_the_error(guarantee):
    purpose = Purpose(window=200, group=20, error=0.3, guarantee=guarantee)
    found = analyse_utility(CHAIN, purpose)
    assert {one.name for one in found.mechanisms} | {one.method for one in found.others} == set(METHODS)
    assert [one.sigma for one in found.mechanisms] == sorted(one.sigma for one in found.mechanisms)
    for one in found.mechanisms:
        made = planner(CHAIN, one.name, group=20, guarantee=guarantee)
        assert one.error == made.at(200).relative_error
        assert replace(made, group=one.smallest_group).at(200).relative_error <= 0.3
        if one.smallest_group > 1:
            assert replace(made, group=one.smallest_group - 1).at(200).relative_error > 0.3
        if one.smallest_window is not None:
            assert made.at(one.smallest_window).relative_error <= 0.3
            assert one.smallest_window == 1 or made.at(one.smallest_window - 1).relative_error > 0.3
    assert found.chosen.name == "forward-backward"
    assert found.loss <= 1.0


def test_the_table_has_the_error_of_every_window_group_and_epsilon():
    found = analyse_utility(
        CLASS, Purpose(100, group=5, bins=3, windows=(50, 400), groups=(1, 7), epsilons=(2.0, 0.25))
    )
    table = found.table
    assert (table.epsilons, table.windows, table.groups) == ((0.25, 1.0, 2.0), (50, 100, 400), (1, 5, 7))
    for epsilon, rows in zip(table.epsilons, table.errors, strict=True):
        for window, shares in zip(table.windows, rows, strict=True):
            for group, share in zip(table.groups, shares, strict=True):
                alone = planner(CLASS, bins=3, epsilon=epsilon, group=group).at(window).relative_error
                assert share == pytest.approx(alone, rel=1e-12)
    text = error_tables(table)
    assert len(text) == 3
    assert text[0].splitlines()[0].split() == ["epsilon", "0.25,", "series", "1", "5", "7"]


@pytest.mark.parametrize("method", ["forward-backward", "mqm-exact", "mqm-approx", "entry-dp", "group-dp"])
@pytest.mark.parametrize("error", [0.002, 0.05, 1.5])
def test_the_epsilon_for_an_error_is_the_least_up_to_1_per_cent(method, error):
    bounds = MixingBounds(0.2, 0.5) if method != "mqm-exact" else CHAIN
    made = planner(bounds, method=method, bins=3, group=10, guarantee="window" if method == "group-dp" else "stream")
    found = made.smallest_epsilon(error, 300)
    if found is None:
        assert replace(made, epsilon=LARGEST_EPSILON).at(300).relative_error > error
        return
    assert replace(made, epsilon=found).at(300).relative_error <= error
    assert replace(made, epsilon=found * 0.98).at(300).relative_error > error
    assert f"{found:.3g}" == f"{found:.12g}"


class TestPerWindow:
    """Noise for single readings: what it claims, and what it tells."""

    @pytest.mark.parametrize("chain", [CHAIN, THREE], ids=["two states", "three states"])
    @pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
    def test_the_loss_per_window_bounds_the_loss_by_enumeration(self, chain, epsilon):
        length = 8 if chain.states == 2 else 6
        found = per_window(chain, Purpose(length, epsilon=epsilon))
        exact = exact_loss(chain, length, [AuditRelease(0, length, scale=2 / epsilon)]).loss
        assert epsilon < exact <= found.window <= found.at_most
        assert found.at_least is not None
        assert found.at_least <= found.at_most

    @pytest.mark.parametrize("chain", [CHAIN, THREE], ids=["two states", "three states"])
    def test_the_least_loss_is_that_of_the_worst_output_by_its_definition(self, chain):
        """E[e^(d sum of v) | X_t = x] at the middle slot of a long stretch, by a plain product of matrices."""
        density, best = 0.7, 0.0
        for number in range(1, 2**chain.states - 1):
            v = np.array([number >> state & 1 for state in range(chain.states)], dtype=float)
            weights = np.exp(density * v)
            ahead, back = np.ones(chain.states), np.ones(chain.states)
            for _ in range(300):
                ahead, back = chain.transition @ (weights * ahead), chain.reversal @ (weights * back)
                ahead, back = ahead / ahead.sum(), back / back.sum()
            logs = np.log(weights) + np.log(ahead) + np.log(back)
            best = max(best, float(logs.max() - logs.min()))
        assert least_loss(chain, density) == pytest.approx(best, rel=1e-9)
        assert least_loss(chain, 1 / lower_bound(chain, 1.0)) == pytest.approx(1.0, rel=1e-6)

    def test_a_class_loses_at_least_what_its_witnesses_lose(self):
        bounds = [
            MixingBounds(0.2, 0.75),
            MixingBounds(0.1, 0.3, kind="multiplicative"),
            MixingBounds(0.3, 1.1, kind="reversible"),
        ]
        for belief in (CLASS, *bounds):
            assert belief.witnesses
            assert all(belief.covers(chain) for chain in belief.witnesses)
        assert FiniteClass([CHAIN, CHAIN]).witnesses == (CHAIN, CHAIN)
        assert MarkovChain(CHAIN.transition, initial=[1, 0]).witnesses == (CHAIN,)
        assert AnyInitial([CHAIN.transition]).witnesses == (CHAIN,)
        assert len(BinaryInterval((0.8, 0.9), (0.5, 0.6)).witnesses) == 1
        assert MarkovChain([[1.0, 0.0], [0.0, 1.0]]).witnesses == ()
        found = per_window(CLASS, Purpose(100, epsilon=0.05))
        assert found.at_least is not None
        assert 0.05 < found.at_least <= found.at_most


def test_odds_are_those_of_bayes():
    for epsilon in (0.1, 1.0, 4.0, 50.0, 700.0):
        for prior, posterior in Odds.at(epsilon, (0.01, 0.5, 0.9)).guesses:
            even = prior * math.exp(epsilon)
            assert posterior == pytest.approx(even / (1 - prior + even), rel=1e-12)
    assert Odds.at(1.0).guesses[0][1] == pytest.approx(math.e / (1 + math.e))
    assert str(Odds.at(1.0)) == "a guess of 50% becomes at most 73.2%"


def test_a_belief_for_which_nothing_has_noise_is_refused_with_the_reasons():
    with pytest.raises(ChainError, match=r"no mechanism .* mqm-exact: "):
        analyse_utility(CLASS, Purpose(100, bins=3, mechanism="mqm-exact"))
