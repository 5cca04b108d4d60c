"""Transition matrices with zeros: the repair of [BHGKM] appendix D.2.

A zero makes the quilts that it touches unusable, and enough of them a chain that does not mix. The repair gives every
zero entry a small tau and takes it off the others of its row in proportion.

>>> fill_zeros(MarkovChain([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]), tau=0.01).transition.tolist()
[[0.495, 0.495, 0.01], [0.01, 0.495, 0.495], [0.25, 0.25, 0.5]]
"""

from __future__ import annotations

import numpy as np

from .chains import ChainError, MarkovChain
from .checks import positive

TAU = 1e-5
"""The value of [BHGKM] D.2."""


def fill_zeros(chain: MarkovChain, tau: float = TAU) -> MarkovChain:
    """The chain with tau in the place of every zero: a row with z of them has its other entries times 1 - z tau.

    The initial distribution stays. It is another belief than before, not an estimate: whether so rare transitions are
    possible is an assumption, and the noise depends on it (theory section 5).

    Args:
        chain: Any chain; one without zeros comes back equal.
        tau: Probability of each transition that had none.

    Raises:
        ChainError: If tau times the zeros of some row leaves nothing for the others.
        ValueError: If tau is not finite and above 0.
    """
    tau = positive("tau", tau, "1e-5 is the value of the paper")
    empty = chain.transition == 0
    taken = empty.sum(axis=1) * tau
    if (taken >= 1).any():
        row = int(taken.argmax())
        raise ChainError(
            f"tau is {tau:g}, and row {row} has {int(empty[row].sum())} zeros: together they must stay below 1, "
            "choose a smaller tau"
        )
    return MarkovChain(np.where(empty, tau, chain.transition * (1 - taken)[:, np.newaxis]), chain.initial)
