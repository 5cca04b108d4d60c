"""The class given the kind of each day, against sequences of days and against data that are simulated from labels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from quiltstream.privacy.accounting import endless
from quiltstream.privacy.estimation.per_series import Path, contractions_by_kind, every_three, thirds
from quiltstream.privacy.estimation.transition_counts import EstimationError
from quiltstream.privacy.models import PeriodicChain

DAY = 12
KERNELS = np.array(  # away, ordinary, busy
    [
        [[0.95, 0.05, 0.0], [0.6, 0.35, 0.05], [0.5, 0.4, 0.1]],
        [[0.7, 0.25, 0.05], [0.3, 0.5, 0.2], [0.1, 0.4, 0.5]],
        [[0.4, 0.4, 0.2], [0.1, 0.5, 0.4], [0.05, 0.25, 0.7]],
    ]
)


def simulated(seed: int, days: int) -> tuple[Path, np.ndarray]:
    """A series whose days follow labels that are drawn first, and the label of each slot."""
    random = np.random.default_rng(seed)
    labels = np.repeat(random.integers(3, size=days), DAY)
    states = np.zeros(days * DAY, dtype=np.int8)
    for slot in range(1, len(states)):
        states[slot] = random.choice(3, p=KERNELS[labels[slot - 1], states[slot - 1]])
    return Path(0, states), labels.astype(np.int8)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_three_kinds_follow_each_other_once(number: int) -> None:
    cycle = every_three(number)
    found = [tuple(cycle[(at + more) % len(cycle)] for more in range(3)) for at in range(len(cycle))]
    assert sorted(found) == sorted(itertools.product(range(number), repeat=3))


def test_thirds_are_by_the_share_of_the_lowest_state() -> None:
    shares = np.random.default_rng(5).permutation(9)
    states = np.concatenate([np.repeat([0, 1], [share, 9 - share]) for share in shares]).astype(np.int8)
    days = np.repeat(np.arange(100, 109), 9)
    assert thirds(Path(900, states), days).reshape(9, 9)[:, 0].tolist() == (shares // 3).tolist()
    states[days == 103] = -1
    assert (thirds(Path(900, states), days)[days == 103] == -1).all()


def test_the_class_holds_for_days_in_any_order() -> None:
    series = [simulated(seed, 200) for seed in (1, 2)]
    found = contractions_by_kind([path for path, _ in series], [kinds for _, kinds in series], 3, 3, DAY)
    assert len(found.chains) == 6
    bounds = found.envelope(2)
    random = np.random.default_rng(9)
    for at in range(2):
        kernels = np.stack([chain.transition for chain in found.chains_of(at)])
        for _ in range(5):
            days = PeriodicChain(np.repeat(kernels[random.integers(3, size=40)], DAY, axis=0))
            assert bounds.covers(days)


@pytest.mark.night
def test_thirds_estimate_the_class_of_data_that_are_simulated_from_labels() -> None:
    series = [simulated(seed, 2000) for seed in (3, 4, 5)]
    paths = [path for path, _ in series]
    estimated = [thirds(path, np.arange(len(path.states)) // DAY) for path in paths]
    truth, by_thirds = (
        1 / endless(contractions_by_kind(paths, kinds, 3, 3, DAY).envelope(3), 1.0).density
        for kinds in ([kinds for _, kinds in series], estimated)
    )
    labels = np.random.default_rng(7).integers(3, size=30)
    exact = 1 / endless(PeriodicChain(np.repeat(KERNELS[labels], DAY, axis=0)), 1.0).density
    # given the labels the class is enough for the very process; thirds are estimates of the labels, and come near
    assert exact <= truth
    assert 0.7 * truth < by_thirds < 1.5 * truth


def test_kinds_without_data_are_refused() -> None:
    path, kinds = simulated(6, 20)
    with pytest.raises(EstimationError, match="one has no transition"):
        contractions_by_kind([path], [np.zeros_like(kinds)], 2, 3, DAY)
    with pytest.raises(EstimationError, match="there are 5"):
        contractions_by_kind([path], [kinds], 5, 3, DAY)
    with pytest.raises(EstimationError, match="never left"):
        contractions_by_kind([Path(0, np.minimum(path.states, 1).astype(np.int8))], [kinds], 3, 3, DAY)
