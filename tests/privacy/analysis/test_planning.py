"""Plans against the law of the noise, written out, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Calibration, MarkovChain, MixingBounds, Quilt, mqm_approx
from quiltstream.privacy.analysis.planning import NotApplicable, Plan, Planner
from quiltstream.privacy.mechanisms.discrete_laplace import ZeroSumLaplace
from quiltstream.privacy.models import ChainError, DobrushinBounds

from ...depth import examples

LONDON = MixingBounds(pi_min=0.0305228, gap=0.39007, kind="multiplicative")
QUICK = MixingBounds(pi_min=0.4, gap=0.9)
CHAIN = MarkovChain([[0.9, 0.1], [0.4, 0.6]])


def calibration(sigma, method="fixed"):
    return Calibration(1.0, sigma, Quilt(None, None), None, 0.0, None, method, None, ("for the test",))


def fixed(sigma):
    def calibrate(belief, epsilon, length=None):  # noqa: ARG001 - the interface of a calibration
        return calibration(sigma)

    return calibrate


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
    found = Planner(LONDON, 1.0, group=group, bins=bins, method="x", overlap=overlap, methods={"x": fixed(sigma)}).at(
        window
    )
    scale = 2 * sigma * overlap
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
        target=st.floats(0.01, 3), window=st.integers(1, 500), bins=st.integers(2, 20), guarantee=st.sampled_from("sw")
    )
    def test_group_is_the_least_that_reaches_the_target(self, target, window, bins, guarantee):
        kind = "stream" if guarantee == "s" else "window"
        found = Planner(QUICK, 1.0, bins=bins, guarantee=kind).smallest_group(target, window)
        assert found.relative_error <= target * (1 + 1e-12)
        if found.group > 1:
            less = Planner(QUICK, 1.0, group=found.group - 1, bins=bins, guarantee=kind).at(window)
            assert less.relative_error > target * (1 - 1e-12)
        assert found == Planner(QUICK, 1.0, group=found.group, bins=bins, guarantee=kind).at(window)

    @settings(max_examples=examples(60), deadline=None)
    @given(target=st.floats(0.05, 3), group=st.integers(1, 40), bins=st.integers(2, 20), overlap=st.integers(1, 3))
    def test_window_of_a_stream_is_the_least_that_reaches_the_target(self, target, group, bins, overlap):
        found = Planner(QUICK, 1.0, group=group, bins=bins, overlap=overlap).smallest_window(target)
        assert found.relative_error <= target * (1 + 1e-12)
        if found.window > 1:
            less = Planner(QUICK, 1.0, group=group, bins=bins, overlap=overlap).at(found.window - 1)
            assert less.relative_error > target * (1 - 1e-12)


def test_methods_are_set_side_by_side_the_least_noise_first():
    def none(belief, epsilon, length=None):  # noqa: ARG001 - the interface of a calibration
        raise ChainError("no quilt is usable: merge rare bins")

    methods = {"mqm-approx": mqm_approx, "loud": fixed(1000.0), "none": none, "quiet": fixed(1.0)}
    found = Planner(LONDON, 1.0, group=30, bins=5, methods=methods).compare(336)
    assert [one.method for one in found] == ["quiet", "mqm-approx", "loud", "none"]
    assert found[-1] == NotApplicable("none", "no quilt is usable: merge rare bins")
    assert found[1] == Planner(LONDON, 1.0, group=30, bins=5).at(336)
    assert isinstance(found[0], Plan)
    assert found[0].calibration.assumptions == ("for the test",)


def test_a_class_without_quilts_is_planned_by_the_methods_that_read_it():
    belief = DobrushinBounds(forward={1: 0.8, 4: 0.35, 16: 0.02}, backward={1: 0.85, 4: 0.4, 16: 0.03})
    plans = {plan.method: plan for plan in Planner(belief, 1.0, bins=5).compare(336)}
    assert [name for name, plan in plans.items() if isinstance(plan, Plan)] == ["entry-dp", "forward-backward"]
    reason = plans["mqm-exact"]
    assert isinstance(reason, NotApplicable)
    assert "DobrushinBounds names none" in reason.reason
    assert Planner(belief, 1.0, bins=5, method="forward-backward").at(336) == plans["forward-backward"]


def test_a_plan_with_a_public_total_uses_the_noise_law_of_sum_zero():
    """Bands and errors of the conditioned law, and not of the plain one: half for two bins, 0.77 for five."""
    for bins, share in ((2, 0.5), (5, 0.767), (51, 0.973)):
        plain, kept = (
            Planner(LONDON, 1.0, group=30, bins=bins, total_is_public=public).at(336) for public in (False, True)
        )
        law = ZeroSumLaplace(plain.mechanism.scale, bins)
        assert (kept.bin_error, kept.half_width(0.95)) == (law.mean_abs, law.half_width(0.95))
        assert kept.half_width() == pytest.approx(share * plain.half_width(), rel=0.01)
        assert kept.sigma == plain.sigma
        assert kept.mechanism.epsilon_dp == plain.mechanism.epsilon_dp
    few, fewer = (
        Planner(LONDON, 1.0, bins=2, total_is_public=public).smallest_group(0.05, 336).group for public in (False, True)
    )
    assert few / 2 <= fewer <= few / 2 + 1
    with pytest.raises(ValueError, match="bins is 1"):
        Planner(LONDON, 1.0, bins=1, total_is_public=True).at(336)
