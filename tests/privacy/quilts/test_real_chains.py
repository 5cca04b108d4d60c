"""The methods on chains fitted to real meters and wearables: the noise they need, and its order."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import polars as pl
import pytest

from quiltstream.privacy import MarkovChain, mqm_approx
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.models.classes import AnyInitial
from quiltstream.privacy.quilts.calibration import mqm_exact, pairwise

HOUSE = "uci_power/uci_power_1min_20061216_20091231.parquet"
HOMES = "lcl2013/lcl2013_halfhourly_60hh.parquet"
ABSENT = -1


def fitted(states, adjacent):
    """The chain of the transitions between adjacent readings, on the states visited."""
    pairs = np.stack([states[:-1][adjacent], states[1:][adjacent]])
    visited, codes = np.unique(pairs, return_inverse=True)
    codes = codes.reshape(pairs.shape)
    counts = np.zeros((len(visited), len(visited)))
    np.add.at(counts, (codes[0], codes[1]), 1)
    left = counts.sum(axis=1) > 0
    return MarkovChain(counts[left][:, left] / counts[left][:, left].sum(axis=1, keepdims=True))


def binned(watts, width, bins):
    """Bins of equal width, the last one open; absent readings apart."""
    present = np.isfinite(watts)
    return np.where(present, np.minimum(np.nan_to_num(watts) // width, bins - 1), ABSENT).astype(int)


def needed(shared_data, name):
    file = shared_data / name
    if not file.is_file():
        pytest.skip(f"needs {file.name}, which is absent")
    return file


@pytest.fixture(scope="module")
def house(shared_data):
    """One house by the minute in whole watts, and where two readings adjoin."""
    frame = pl.read_parquet(needed(shared_data, HOUSE), columns=["Global_active_power"])
    watts = np.round(frame["Global_active_power"].to_numpy().astype(np.float64) * 1000)
    present = np.isfinite(watts)
    return watts, present[:-1] & present[1:]


@pytest.fixture(scope="module")
def homes(shared_data):
    """Sixty homes by the half hour: watts, where two readings of one home adjoin, and the home."""
    frame = pl.read_parquet(needed(shared_data, HOMES)).sort("household", "ts")
    home, stamp = frame["household"].to_numpy(), frame["ts"].dt.epoch("s").to_numpy()
    watts = frame["kwh"].cast(pl.Float64).to_numpy() * 2000
    return watts, (home[1:] == home[:-1]) & (np.diff(stamp) == 1800), home


def check_order(chain, epsilon=1.0):
    """The methods in the order of their noise; how many of the four have an answer for an endless stream."""

    def noise(method):
        try:
            return method(chain, epsilon).sigma
        except ChainError:
            # a chain that does not mix, by this method's measure: the coarser ones have no answer either
            return np.inf

    found = [noise(method) for method in (pairwise, mqm_exact, partial(mqm_approx, bound="spectral"), mqm_approx)]
    assert all(less <= more * (1 + 1e-10) for less, more in itertools.pairwise(found))
    return int(np.isfinite(found).sum())


@pytest.mark.night
@pytest.mark.parametrize(
    ("width", "bins", "lemma", "exact"), [(200, 51, 2033.7827, 537.7865), (2000, 4, 264.4163, 149.7381)]
)
def test_one_house_by_the_minute_needs_the_noise_of_the_theory(house, width, bins, lemma, exact):
    watts, adjacent = house
    chain = fitted(binned(watts, width, bins), adjacent)
    assert mqm_approx(chain, 1.0).sigma == pytest.approx(lemma, abs=5e-5)
    found = mqm_exact(chain, 1.0)
    assert found.sigma == pytest.approx(exact, abs=5e-5)
    assert pairwise(chain, 1.0).sigma == pytest.approx(found.sigma, rel=1e-14)
    assert (found.node, found.length) == (None, None)
    for method in (mqm_exact, pairwise):
        window = method(chain, 1.0, 1_000_000)
        assert (window.sigma, window.node) == (pytest.approx(found.sigma, rel=1e-14), 500_000)
    assert check_order(chain) == 4


@pytest.mark.night
def test_a_house_by_the_minute_needs_more_noise_with_an_atypical_first_minute(house):
    watts, adjacent = house
    chain = fitted(binned(watts, 200, 51), adjacent)
    found = mqm_exact(AnyInitial([chain.transition]), 1.0, 1_000_000)
    assert 537.7865 < found.sigma < 560
    assert found.node is not None
    assert found.node < 1000


@pytest.mark.night
def test_sixty_pooled_homes_need_the_noise_of_the_theory(homes):
    watts, adjacent, _ = homes
    chain = fitted(np.searchsorted([250, 500, 1000, 2000], watts, side="right"), adjacent)
    assert mqm_approx(chain, 1.0).sigma == pytest.approx(84.4445, abs=5e-5)
    assert mqm_exact(chain, 1.0).sigma == pytest.approx(43.4090, abs=5e-5)
    two = fitted(np.searchsorted([500], watts, side="right"), adjacent)
    assert mqm_approx(two, 1.0).sigma == pytest.approx(43.4, abs=0.05)
    assert mqm_exact(two, 1.0).sigma == pytest.approx(23.1, abs=0.05)
