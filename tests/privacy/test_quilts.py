"""MQMApprox against Algorithm 4 as printed, and against published and real chains."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import ChainError, FiniteClass, MarkovChain, MixingBounds, Quilt, lemma_4_9_reach, mqm_approx

from . import reference
from .test_chains import CYCLE, THETA1, primitive_with_reducible_product
from .test_classes import THETA2

BOUNDS = MixingBounds(pi_min=0.2, gap=0.75)


def fitted(states, adjacent):
    """The chain of the transitions between adjacent readings, on the states visited."""
    pairs = np.stack([states[:-1][adjacent], states[1:][adjacent]])
    visited, codes = np.unique(pairs, return_inverse=True)
    codes = codes.reshape(pairs.shape)
    counts = np.zeros((len(visited), len(visited)))
    np.add.at(counts, (codes[0], codes[1]), 1)
    return MarkovChain(counts / counts.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("length", [1, 2, 3, 10, 50, 95, 96, 97, 300])
def test_the_search_is_algorithm_4(length):
    calibration = mqm_approx(BOUNDS, 1.0, length)
    assert calibration.sigma == pytest.approx(reference.algorithm_4(0.2, 0.75, 1.0, length), rel=1e-12)


@pytest.mark.parametrize("length", [96, 97, 300, 100_000, None])
def test_from_eight_reaches_on_the_shortcut_gives_the_same_and_says_nothing_of_short_windows(length):
    calibration = mqm_approx(BOUNDS, 1.0, length)
    assert calibration.sigma == pytest.approx(reference.algorithm_4(0.2, 0.75, 1.0, 96), rel=1e-12)
    assert not any("Algorithm 4" in note for note in calibration.assumptions)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 0.5), st.floats(0.05, 2.0), st.floats(1e-3, 20.0), st.integers(1, 40))
def test_the_search_is_algorithm_4_for_any_bounds_epsilon_and_length(pi_min, gap, epsilon, length):
    calibration = mqm_approx(MixingBounds(pi_min, gap), epsilon, length)
    assert calibration.sigma == pytest.approx(reference.algorithm_4(pi_min, gap, epsilon, length), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.5), st.floats(0.5, 2.0), st.floats(0.2, 20.0))
def test_the_shortcut_is_algorithm_4_for_any_bounds_and_epsilon(pi_min, gap, epsilon):
    bounds = MixingBounds(pi_min, gap)
    length = 8 * lemma_4_9_reach(bounds, epsilon)
    assert mqm_approx(bounds, epsilon, length).sigma == pytest.approx(
        reference.algorithm_4(pi_min, gap, epsilon, length), rel=1e-9
    )
    assert mqm_approx(bounds, epsilon, length).sigma == mqm_approx(bounds, epsilon).sigma


def test_the_class_of_the_paper_gives_the_papers_numbers():
    belief = FiniteClass([MarkovChain(THETA1, [1, 0]), MarkovChain(THETA2, [0.9, 0.1])])
    calibration = mqm_approx(belief, 1.0, length=100)
    assert lemma_4_9_reach(MixingBounds.of(belief.chains), 1.0) == 12
    assert calibration.sigma == pytest.approx(31.7098, abs=5e-5)
    assert (calibration.quilt, calibration.node, calibration.length) == (Quilt(15, 13), 50, 100)
    assert calibration.quilt.card == 27
    assert calibration.influence == pytest.approx(
        2 * reference.lemma_f(0.2, 0.75, 15) + reference.lemma_f(0.2, 0.75, 13)
    )
    assert calibration.epsilon_dp == 1 / calibration.sigma
    assert (calibration.method, calibration.pair) == ("mqm-approx", None)


def test_the_published_program_gives_the_same_numbers(shared_data):
    gold = shared_data.parent / "design" / "gold_chains.json"
    if not gold.is_file():
        pytest.skip(f"needs the numbers of the published program: {gold.name} is absent")
    for entry in json.loads(gold.read_text())["chains"]:
        chain = MarkovChain(np.array(entry["transition"]) / np.sum(entry["transition"], axis=1, keepdims=True))
        assert chain.pi_min == pytest.approx(entry["pi_min"], rel=1e-9)
        assert chain.gap == pytest.approx(entry["gap_PPstar"], rel=1e-9)
        for length in entry["lengths"]:
            assert mqm_approx(chain, entry["epsilon"], length).sigma == pytest.approx(
                entry["mqm_approx_sigma"], rel=1e-9
            )


@pytest.fixture(scope="module")
def watts(shared_data):
    """One house by the minute in whole watts; nan where there is no reading."""
    file = shared_data / "uci_power" / "uci_power_1min_20061216_20091231.parquet"
    if not file.is_file():
        pytest.skip(f"needs {file.name}, which is absent")
    kilowatts = pl.read_parquet(file, columns=["Global_active_power"])["Global_active_power"].to_numpy()
    return np.round(kilowatts.astype(np.float64) * 1000)


@pytest.mark.parametrize(("width", "bins", "sigma"), [(200, 51, 2033.7827), (2000, 4, 264.4163)])
def test_one_house_by_the_minute_needs_the_noise_the_theory_says(watts, width, bins, sigma):
    present = np.isfinite(watts)
    states = np.where(present, np.minimum(np.nan_to_num(watts) // width, bins - 1), -1).astype(int)
    calibration = mqm_approx(fitted(states, present[:-1] & present[1:]), 1.0)
    assert calibration.sigma == pytest.approx(sigma, abs=5e-5)
    assert (calibration.node, calibration.length) == (None, None)


def test_sixty_london_homes_pooled_need_the_noise_the_theory_says(shared_data):
    file = shared_data / "lcl2013" / "lcl2013_halfhourly_60hh.parquet"
    if not file.is_file():
        pytest.skip(f"needs {file.name}, which is absent")
    frame = pl.read_parquet(file).sort("household", "ts")
    power = frame["kwh"].cast(pl.Float64).to_numpy() * 2000
    states = np.searchsorted([250, 500, 1000, 2000], power, side="right")
    home, stamp = frame["household"].to_numpy(), frame["ts"].dt.epoch("s").to_numpy()
    adjacent = (home[1:] == home[:-1]) & (np.diff(stamp) == 1800)
    assert mqm_approx(fitted(states, adjacent), 1.0).sigma == pytest.approx(84.4445, abs=5e-5)


def test_a_window_too_short_for_any_quilt_falls_back_on_group_privacy_and_says_what_it_lacks():
    calibration = mqm_approx(BOUNDS, 1.0, 10)
    assert (calibration.sigma, calibration.quilt, calibration.influence) == (10.0, Quilt(None, None), 0.0)
    assert calibration.assumptions[-1].startswith(
        "epsilon 1.0 needs windows of at least 96 slots for the Lemma 4.9 shortcut; this window has 10: "
    )
    assert calibration.quilt.card is None
    assert str(calibration.quilt) == "to the start, to the end"


@pytest.mark.parametrize("length", [48, 95])
def test_a_window_just_below_eight_reaches_is_searched_in_full(length):
    assert "Algorithm 4" in mqm_approx(BOUNDS, 1.0, length).assumptions[-1]


def test_a_gap_close_to_nothing_leaves_group_privacy_for_a_window_and_a_clear_error_for_a_stream():
    crawling = MixingBounds(0.1, 1e-9)
    assert mqm_approx(crawling, 2.0, 1000).sigma == 500.0
    with pytest.raises(ChainError, match=r"gap 1e-09 .*at most 4194304 are tried: use a belief that mixes faster"):
        mqm_approx(crawling, 2.0)


@pytest.mark.parametrize("epsilon", [1e-3, 20.0, 1e3])
def test_extreme_targets_are_met(epsilon):
    calibration = mqm_approx(BOUNDS, epsilon)
    quilt = calibration.quilt
    assert calibration.influence < epsilon
    assert quilt.card / (epsilon - calibration.influence) == calibration.sigma
    assert calibration.sigma * epsilon >= 1


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(epsilon):
    for call in (mqm_approx, lemma_4_9_reach):
        with pytest.raises(ValueError, match=r"epsilon is .*finite and above 0: give the loss"):
            call(BOUNDS, epsilon)


def test_other_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="epsilon must be a number, not str"):
        mqm_approx(BOUNDS, "1")  # pyright: ignore[reportArgumentType] - the point of the test
    with pytest.raises(ValueError, match=r"length is 0.*at least 1"):
        mqm_approx(BOUNDS, 1.0, 0)
    with pytest.raises(TypeError, match="length must be a whole number, not float"):
        mqm_approx(BOUNDS, 1.0, 3.5)  # pyright: ignore[reportArgumentType] - the point of the test
    with pytest.raises(ChainError, match=r"P P\* is reducible"):
        mqm_approx(primitive_with_reducible_product(), 1.0)
    with pytest.raises(ChainError, match="periodic"):
        mqm_approx(MarkovChain(CYCLE), 1.0)
