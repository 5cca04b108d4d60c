"""Why no account has what two state processes tell together: two of them by enumeration from the definition."""

from __future__ import annotations

import numpy as np
import pytest


def loss(first: np.ndarray, second: np.ndarray, epsilon_dp: float) -> float:
    """The largest log ratio of the noisy counts of both, over every slot of the first ([SWC17] Definition 2.1).

    Every row is one equally likely course. Each count of ones has Laplace noise of scale 1 / epsilon_dp, and the ratio
    is largest where the outputs are values of the counts (docs/audit.md).
    """

    def noise(slots: int) -> np.ndarray:
        values = np.arange(slots + 1)
        return np.exp(-epsilon_dp * np.abs(values[:, None] - values))

    worst = 0.0
    counts = first.sum(axis=1), second.sum(axis=1)
    for slot in range(first.shape[1]):
        told = []
        for state in (0, 1):
            given = first[:, slot] == state
            joint = np.zeros((first.shape[1] + 1, second.shape[1] + 1))
            np.add.at(joint, (counts[0][given], counts[1][given]), 1 / given.sum())
            told.append(noise(first.shape[1]) @ joint @ noise(second.shape[1]).T)
        worst = max(worst, float(np.abs(np.log(told[0] / told[1])).max()))
    return worst


@pytest.mark.parametrize(("slots", "together"), [(3, 1.24), (8, 1.84), (14, 2.56)])
def test_two_sequences_of_fair_coins_lose_more_than_their_sum_together(slots: int, together: float) -> None:
    first = (np.arange(2**slots)[:, None] >> np.arange(slots)) & 1
    # modulo 2 with the first slot of the other: these are independent fair coins as well
    second = np.concatenate([first[:, :1], first[:, 1:] ^ first[:, :1]], axis=1)
    assert len(np.unique(second, axis=0)) == 2**slots
    nothing = np.zeros((2**slots, 0), dtype=np.int64)
    assert loss(first, nothing, 0.5) == pytest.approx(0.5)
    assert loss(second, nothing, 0.5) == pytest.approx(0.5)
    assert loss(first, second, 0.5) == pytest.approx(together, abs=0.005)
    assert loss(first, second, 0.5) > 0.5 + 0.5
