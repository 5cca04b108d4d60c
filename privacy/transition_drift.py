"""Drift of transitions: whether a released table of transitions contradicts the belief in force.

>>> import numpy as np
>>> from fractions import Fraction
>>> table = np.array([[90_000, 10_000], [10_000, 40_000]])  # with noise
>>> released = NoisyCounts(table, Fraction(80), 0, 150_001)
>>> judge_transitions(MarkovChain([[0.9, 0.1], [0.2, 0.8]]), released).drifted
False
>>> slow = judge_transitions(MarkovChain([[0.8, 0.2], [0.4, 0.6]]), released)  # the same shares
>>> slow.drifted, slow.state
(True, 0)

The table has a confidence class, noise included, that misses the chain of the history with probability alpha at most
(`confidence`). The belief has drifted if none of its members can lie in there. The table must be a release of its own,
charged to the ledger; judging it costs nothing more. All series are taken to follow *one* chain, unlike in
`drift.judge_drift`.

*Bounds.* Of `MixingBounds` two consequences are judged. No state is rarer than pi_min: the class knows the largest
stationary share of each state. And no state holds on longer than the gap allows: f = 1_y - pi(y) has the
autocorrelation <f, P f> / <f, f> = 1 - (1 - P(y, y)) / (1 - pi(y)), at most rho, and that rises with P(y, y) and falls
with pi(y), so that the least of it over the class is known. A chain that mixes slowly without holding on to any state,
like a wide circle, is not found.
"""

from __future__ import annotations

import math

import numpy as np

from .chains import FloatArray, MarkovChain
from .classes import Belief, BinaryInterval, MixingBounds, check_belief
from .confidence import ConfidenceClass
from .drift import Drift, same_states, spent_alpha
from .noise import DiscreteLaplace
from .noisy_counts import NoisyCounts

_COMPATIBLE = "the released transitions do not contradict the belief"
_FLOOR = 1e-9
"""Of the point estimate, which is only shown."""


def judge_transitions(
    belief: Belief | ConfidenceClass, released: NoisyCounts, *, alpha: float = 1e-3, look: int | None = None
) -> Drift:
    """Judge a released table of transitions against a belief.

    Args:
        belief: The belief in force; see the module for `MixingBounds`.
        released: The table.
        alpha: Probability of a false alarm, at most.
        look: Number of the look, from 1, if one looks repeatedly; see `drift`.

    Returns:
        The outcome. ``state`` is left by the transition that is furthest off, whose estimated probability is ``share``;
        for `MixingBounds` it is the state that is rarest or holds on longest, ``share`` its estimated stationary share
        or autocorrelation, and ``z`` is NaN.

    Raises:
        TypeError: If the belief is none.
        ValueError: If it has another number of states, or alpha is out of range.
    """
    spent = spent_alpha(alpha, look)
    known = released.confidence_class(1 - spent)
    if isinstance(belief, MixingBounds):
        return _judge_bounds(belief, released, known, spent)
    boxes = _boxes(belief)
    same_states(len(boxes[0][0]), released.states)
    outcomes = [_against(low, high, released, known, spent) for low, high in boxes]
    return min(outcomes, key=lambda outcome: (outcome.drifted, abs(outcome.z)))


def _boxes(belief: Belief | ConfidenceClass) -> list[tuple[FloatArray, FloatArray]]:
    """Ends of the transition probabilities: of every chain, or of the class."""
    if isinstance(belief, ConfidenceClass):
        return [(belief.lower, belief.upper)]
    check_belief(belief)
    if isinstance(belief, BinaryInterval):
        stay = np.array([belief.stay_0, belief.stay_1])
        low, high = stay[:, 0], stay[:, 1]
        return [
            (
                np.array([[low[0], 1 - high[0]], [1 - high[1], low[1]]]),
                np.array([[high[0], 1 - low[0]], [1 - low[1], high[1]]]),
            )
        ]
    chains = (belief,) if isinstance(belief, MarkovChain) else () if isinstance(belief, MixingBounds) else belief.chains
    return [(chain.transition, chain.transition) for chain in chains]


def _against(low: FloatArray, high: FloatArray, released: NoisyCounts, known: ConfidenceClass, alpha: float) -> Drift:
    apart = (known.lower > high) | (known.upper < low)
    table = released.table.astype(np.float64)
    left = table.sum(axis=1, keepdims=True)
    seen = np.broadcast_to(left > 0, table.shape)
    shares = np.divide(table, left, out=(low + high) / 2, where=seen)
    nearest = np.clip(shares, low, high)
    noise = DiscreteLaplace(released.scale).std ** 2
    spread = nearest * (1 - nearest) * np.maximum(left, 0)
    spread += noise * ((1 - nearest) ** 2 + (released.states - 1) * nearest**2)
    z = np.where(seen, (shares - nearest) * left / np.sqrt(spread), 0.0)
    drifted = bool(apart.any())
    worst = int(np.argmax(np.abs(z) + np.where(apart, 1e300, 0.0)))
    state, entered = divmod(worst, released.states)
    return Drift(
        judged=True,
        drifted=drifted,
        state=state,
        share=float(shares[state, entered]),
        expected=float(nearest[state, entered]),
        z=float(z[state, entered]),
        alpha=alpha,
        reason=f"transitions from state {state} to state {entered} are not as the belief has them"
        if drifted
        else _COMPATIBLE,
    )


def _judge_bounds(belief: MixingBounds, released: NoisyCounts, known: ConfidenceClass, alpha: float) -> Drift:
    most = known.members.stationary_bounds()[1]
    estimate = released.chain(floor=min(_FLOOR, 0.5 / released.states))
    rarest = int(np.argmin(most))
    held = _held(np.diag(known.lower), most)
    slowest = int(np.argmax(held))
    rare, slow = bool(most[rarest] < belief.pi_min), bool(held[slowest] > belief.rho)
    state, limit, found, reason = (
        slowest,
        belief.rho,
        _held(np.diag(estimate.transition), estimate.stationary),
        _COMPATIBLE,
    )
    if rare:
        state, limit, found, reason = rarest, belief.pi_min, estimate.stationary, f"state {rarest} is rarer than pi_min"
    elif slow:
        reason = f"state {slowest} holds on longer than the gap allows"
    return Drift(
        judged=True,
        drifted=rare or slow,
        state=state,
        share=float(found[state]),
        expected=limit,
        z=math.nan,
        alpha=alpha,
        reason=reason,
    )


def _held(stay: FloatArray, share: FloatArray) -> FloatArray:
    """Autocorrelation of each state, or a number below it; 0 for a state that may have all the cells."""
    others = np.maximum(1 - share, 0)
    return 1 - np.divide(1 - stay, others, out=np.ones_like(others), where=others > 0)
