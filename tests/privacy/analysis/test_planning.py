"""Plans against the law of the noise and drawn releases, losses against the definition, odds against Bayes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import FiniteClass, MarkovChain, MixingBounds, exact_loss
from quiltstream.privacy.accounting.lower_bounds import least_loss, lower_bound
from quiltstream.privacy.analysis import Purpose, analyse_utility, plan_release, smallest_epsilon, smallest_window
from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.analysis.planning import LARGEST_EPSILON, error_tables, per_window
from quiltstream.privacy.mechanisms.discrete_laplace import ZeroSumLaplace
from quiltstream.privacy.models import AnyInitial, BinaryInterval, ChainError, DobrushinBounds
from quiltstream.privacy.papers.audit import AuditRelease

from ...depth import examples

LONDON = MixingBounds(pi_min=0.0305228, gap=0.39007, kind="multiplicative")
QUICK = MixingBounds(pi_min=0.4, gap=0.9)
CHAIN = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
THREE = MarkovChain([[0.8, 0.15, 0.05], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])
CLASS = DobrushinBounds(forward={1: 0.8, 4: 0.35, 16: 0.02}, backward={1: 0.85, 4: 0.4, 16: 0.03})


def plain(window: int = 336, **changes: Any) -> Purpose:
    fields: dict[str, Any] = {"mechanism": "mqm-approx", **changes}
    return Purpose(window, total_is_public=False, **fields)


def mean_and_moment(scale, power):
    values = np.arange(1, int(60 * scale) + 60)
    rate = 1 / scale
    chance = 2 * math.tanh(rate / 2) * np.exp(-values * rate)
    return float((values**power * chance).sum())


@settings(max_examples=examples(60), deadline=None)
@given(
    sigma=st.floats(0.05, 300),
    window=st.integers(1, 1000),
    group=st.integers(1, 100),
    bins=st.integers(1, 60),
    overlap=st.integers(1, 4),
)
def test_the_errors_are_moments_of_the_discrete_law(sigma, window, group, bins, overlap):
    purpose = plain(window, group=group, bins=bins, overlap=overlap, mechanism="entry-dp", epsilon=1 / sigma)
    found = plan_release(LONDON, purpose)
    scale = float(found.mechanism.scale)
    assert scale == pytest.approx(2 * sigma * overlap, rel=1e-9)
    error = mean_and_moment(scale, 1)
    assert found.bin_error == pytest.approx(error, rel=1e-8)
    assert found.l1_error == pytest.approx(bins * error, rel=1e-8)
    assert found.relative_error == pytest.approx(bins * error / (window * group), rel=1e-8)
    inside = found.half_width(0.9)
    share = math.tanh(0.5 / scale)
    held = share * (1 + 2 * sum(math.exp(-z / scale) for z in range(1, inside + 1)))
    assert held >= 0.9 * (1 - 1e-8)


class TestSmallest:
    @settings(max_examples=examples(60), deadline=None)
    @given(
        error=st.floats(0.01, 3), window=st.integers(1, 500), bins=st.integers(2, 20), guarantee=st.sampled_from("sw")
    )
    def test_group_is_the_least_that_reaches_the_error(self, error, window, bins, guarantee):
        purpose = plain(window, bins=bins, error=error, guarantee="stream" if guarantee == "s" else "window")
        least = plan_release(QUICK, purpose).smallest_group
        assert plan_release(QUICK, replace(purpose, group=least)).relative_error <= error * (1 + 1e-12)
        if least > 1:
            assert plan_release(QUICK, replace(purpose, group=least - 1)).relative_error > error * (1 - 1e-12)

    @settings(max_examples=examples(60), deadline=None)
    @given(error=st.floats(0.05, 3), group=st.integers(1, 40), bins=st.integers(2, 20), overlap=st.integers(1, 3))
    def test_window_of_a_stream_is_the_least_that_reaches_the_error(self, error, group, bins, overlap):
        purpose = plain(group=group, bins=bins, overlap=overlap, error=error)
        least = smallest_window(QUICK, purpose)
        assert least is not None
        assert plan_release(QUICK, replace(purpose, window=least)).relative_error <= error * (1 + 1e-12)
        if least > 1:
            assert plan_release(QUICK, replace(purpose, window=least - 1)).relative_error > error * (1 - 1e-12)


def test_a_class_without_quilts_is_planned_by_the_methods_that_read_it():
    found = analyse_utility(CLASS, Purpose(336, bins=3))
    assert [one.name for one in found.mechanisms] == ["entry-dp", "forward-backward"]
    reasons = {one.method: one.reason for one in found.others}
    assert "DobrushinBounds names none" in reasons["mqm-exact"]
    assert found.chosen.sigma == plan_release(CLASS, Purpose(336, bins=3)).sigma


def test_a_plan_with_a_public_total_uses_the_noise_law_of_sum_zero():
    """Bands and errors of the conditioned law, and not of the plain one: half for two bins, 0.77 for five."""
    for bins, share in ((2, 0.5), (5, 0.767), (51, 0.973)):
        open_, kept = (plan_release(LONDON, replace(plain(bins=bins), total_is_public=one)) for one in (False, True))
        law = ZeroSumLaplace(open_.mechanism.scale, bins)
        assert (kept.bin_error, kept.half_width(0.95)) == (law.mean_abs, law.half_width(0.95))
        assert kept.half_width() == pytest.approx(share * open_.half_width(), rel=0.01)
        assert kept.sigma == open_.sigma
        assert kept.mechanism.epsilon_dp == open_.mechanism.epsilon_dp
        if bins == 2:
            assert open_.smallest_group / 2 <= kept.smallest_group <= open_.smallest_group / 2 + 1
    with pytest.raises(ValueError, match="bins is 1"):
        plan_release(LONDON, replace(plain(bins=1), total_is_public=True))


@pytest.mark.night
@pytest.mark.parametrize("total_is_public", [False, True])
def test_1000_drawn_releases_have_the_planned_error_within_3_per_cent(total_is_public):
    """1,000 weeks by the hour of the week. Rows of 3 counts are independent, the counts of a row need not be.

    The error of a row is at most that of 168,000 independent draws of a law whose deviation is at most its mean. By
    Chernoff's bound for an exponential law the false-alarm rate is below 2 exp(-168,000 (0.03 - log 1.03)), 1e-31.
    """
    classes, slots = 168, 336
    found = plan_release(THREE, Purpose(slots, 100, total_is_public=total_is_public, class_share=1 / classes))
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
        made = replace(purpose, mechanism=one.name)

        def reached(made: Purpose = made, **changes: int) -> float:
            return plan_release(CHAIN, replace(made, **changes)).relative_error

        assert one.error == reached()
        assert reached(group=one.smallest_group) <= 0.3
        if one.smallest_group > 1:
            assert reached(group=one.smallest_group - 1) > 0.3
        if one.smallest_window is not None:
            assert reached(window=one.smallest_window) <= 0.3
            assert one.smallest_window == 1 or reached(window=one.smallest_window - 1) > 0.3
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
                alone = plan_release(CLASS, Purpose(window, group, bins=3, epsilon=epsilon)).relative_error
                assert share == pytest.approx(alone, rel=1e-12)
    text = error_tables(table)
    assert len(text) == 3
    assert text[0].splitlines()[0].split() == ["epsilon", "0.25,", "series", "1", "5", "7"]


@pytest.mark.parametrize("method", ["forward-backward", "mqm-exact", "mqm-approx", "entry-dp", "group-dp"])
@pytest.mark.parametrize("error", [0.002, 0.05, 1.5])
def test_the_epsilon_for_an_error_is_the_least_up_to_1_per_cent(method, error):
    bounds = MixingBounds(0.2, 0.5) if method != "mqm-exact" else CHAIN
    guarantee = "window" if method == "group-dp" else "stream"
    purpose = Purpose(300, 10, 3, error=error, mechanism=method, guarantee=guarantee)

    def reached(epsilon: float) -> float:
        return plan_release(bounds, replace(purpose, epsilon=epsilon)).relative_error

    found = smallest_epsilon(bounds, purpose)
    if found is None:
        assert reached(LARGEST_EPSILON) > error
        return
    assert reached(found) <= error
    assert reached(found * 0.98) > error
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


def test_a_belief_for_which_nothing_has_noise_is_refused_with_the_reasons():
    with pytest.raises(ChainError, match=r"no mechanism .* mqm-exact: "):
        analyse_utility(CLASS, Purpose(100, bins=3, mechanism="mqm-exact"))
