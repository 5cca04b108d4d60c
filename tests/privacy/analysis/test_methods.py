"""The calibration table: what group privacy holds for, and that the account needs least noise."""

from __future__ import annotations

import numpy as np
import pytest

from quiltstream.privacy import MixingBounds, forward_backward, mqm_approx
from quiltstream.privacy.accounting.forward_backward import grid_density
from quiltstream.privacy.analysis.methods import METHODS, group_dp

from .. import reference


@pytest.mark.parametrize("windows", [[(0, 4, 1.0)], [(0, 3, 0.5), (1, 4, 0.5)]])
def test_group_privacy_holds_for_slots_that_are_copies_and_entry_privacy_does_not(windows):
    copies = np.eye(2)
    entry = reference.response_loss(np.array([0.5, 0.5]), copies, 4, windows)
    assert entry > 1.0
    density = group_dp(None, 1.0, 4).epsilon_dp
    grouped = [(start, stop, rate * density) for start, stop, rate in windows]
    assert reference.response_loss(np.array([0.5, 0.5]), copies, 4, grouped) <= 1 + 1e-12


@pytest.mark.parametrize(("pi_min", "gap"), [(0.3, 0.5), (0.05, 0.3), (0.2, 0.75), (0.01, 0.1)])
def test_the_forward_backward_account_needs_least_noise_at_every_epsilon(pi_min: float, gap: float) -> None:
    """As the table of methods says of an endless stream; the recursion alone needs more from some epsilon on."""
    bounds = MixingBounds(pi_min, gap)
    for epsilon in (0.1, 1.0, 3.0, 6.0, 20.0, 1e3):
        assert forward_backward(bounds, epsilon).sigma <= mqm_approx(bounds, epsilon).sigma * (1 + 1e-9)
    assert 1 / grid_density(bounds, 20.0) > mqm_approx(bounds, 20.0).sigma
    assert "for an endless stream never more than the three above" in METHODS["forward-backward"].noise
