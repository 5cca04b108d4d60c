"""Drift: whether released rows contradict the belief in force. It reads what was published and costs nothing.

>>> import numpy as np
>>> belief = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> rows = np.array([[8050, 2031], [7990, 2071]])  # two feeders of 30 homes, a week of half-hours each
>>> week = {"members": np.array([30, 30]), "slots": 336}
>>> judge_drift(belief, rows, Fraction(87), np.array([10080, 10080]), **week).drifted
False
>>> found = judge_drift(belief, rows - [[900, -900]], Fraction(87), np.array([10080, 10080]), **week)
>>> found.drifted, found.state, found.expected
(True, 0, 0.8)

*What it can find.* A histogram shows how much time is spent in each state, so what can be seen is a share that no chain
of the belief explains. It does not show transitions: a chain that mixes more slowly and spends its time as before is
not found here, and that is the drift that costs most. `transition_drift.judge_transitions` looks at a released table of
transitions, which does show it; such a table is a release of its own, and charged.

*False alarms.* For every state and side, Chernoff's bound on what was counted, with the exponential moments of the
noise and of the worst chains of the belief (`tails`): no normal approximation, so an alarm has probability at most
``alpha`` whatever the number of rows and slots, each of the 2 k tests having its part of it. The truth is somewhat
below. If one looks again and again, each look has its alpha, and looks are not independent: give ``look``, and look
number j spends alpha / (j (j + 1)) of it, so that all looks for ever have alpha together (the union bound needs no
independence). Without it, alpha is that of one look.

*The hypothesis.* Every series follows some chain of the belief, not necessarily the same one, and series are
independent of each other; which cells are missing does not depend on the states. So a class has drifted only if no
mixture of its members gives such counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .chains import ChainError, FloatArray, MarkovChain
from .checks import whole
from .classes import Belief, BinaryInterval, MixingBounds, check_belief, starts_stationary
from .confidence import ConfidenceClass
from .estimation import EstimationError
from .noise import DiscreteLaplace
from .tails import (
    MOST_TILT,
    chain_log_moments,
    count_variance,
    log_growth,
    log_start,
    noise_log_moments,
    noise_log_tails,
    public_noise_log_tails,
)

Ints = NDArray[np.int64]

_NEAR = 2.0
"""Counts nearer to what is expected than this many standard deviations are not tried: they decide nothing."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The outcome of one look.

    Attributes:
        judged: Whether the belief could be judged at all.
        drifted: Whether the released numbers contradict it.
        state: The state that says so most clearly, or, without drift, the one that is furthest off; of a table of
            transitions the state that is left. None where nothing was judged.
        share: Its share of the cells as released, noise included; of a table, the share of the transition that is
            furthest off. NaN where nothing was judged, as for the next two.
        expected: The nearest share that the belief allows.
        z: Distance of the two in standard deviations of noise and sampling together, for the reader; it decides
            nothing.
        alpha: Probability of a false alarm that this look spent, at most.
        reason: One sentence for the record.
    """

    judged: bool
    drifted: bool
    state: int | None
    share: float
    expected: float
    z: float
    alpha: float
    reason: str


def spent_alpha(alpha: float, look: int | None) -> float:
    """What a look may spend: alpha / (j (j + 1)) at look j, which sums to alpha over all looks; alpha for None.

    Raises:
        ValueError: If alpha is not strictly between 0 and 1, or look below 1.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: {alpha} is not strictly between 0 and 1: 0.001 is the usual one")
    if look is None:
        return float(alpha)
    number = whole("look", look, "number the looks from 1", least=1)
    return alpha / (number * (number + 1))


def judge_drift(
    belief: Belief | ConfidenceClass,
    counts: Ints,
    scale: Fraction,
    totals: Ints | None,
    *,
    members: Ints,
    slots: int,
    windows: int = 1,
    before: int = 0,
    alpha: float = 1e-3,
    look: int | None = None,
) -> Drift:
    """Judge released histograms of one period against a belief.

    A row is one series or group. Where the period has several windows, they are adjacent and do not overlap, and the
    row is the sum of its releases. No series is in two rows.

    Args:
        belief: The belief in force. A chain and lists of chains are judged by their own autocorrelation where all slots
            of a row are counted, and by pi and rho where some are missing; `MixingBounds` only by whether a state is
            rarer than pi_min, `BinaryInterval` and `ConfidenceClass` by the ends of their stationary shares.
        counts: Released counts, int64, shape (n, k).
        scale: Exact scale of the noise of one release.
        totals: Public number of cells that each row counts, shape (n,), or None where it is not public.
        members: Series summed in each row, shape (n,).
        slots: Slots of the period.
        windows: Releases that each row is the sum of.
        before: Slots for which every series has run before the period, at least. Only beliefs without a stationary
            start use it: with 0 the worst start must be reckoned with, and small drifts of few slots are not seen.
        alpha: Probability of a false alarm, at most.
        look: Number of the look, from 1, if one looks repeatedly; see the module.

    Raises:
        TypeError: If the belief is none, or an argument is no whole number.
        ValueError: If shapes, types or ranges are wrong, or the belief has another number of states.
    """
    spent = spent_alpha(alpha, look)
    looked = _look_at(counts, scale, totals, members, slots, windows)
    try:
        null = _hypothesis(belief, looked.states, whole("before", before, "give the slots before it", least=0))
    except (ChainError, EstimationError) as error:
        return unjudged(spent, str(error))
    if looked.full + looked.partial == 0 or looked.cells <= 0:
        return unjudged(spent, "no cell was counted")
    if null.rho >= 1 and null.loose(looked)[0]:
        return unjudged(
            spent,
            "cells are missing, or their number is not public, or the belief is a class, and P P* may be reducible: "
            "rho is 1, and bounds nothing",
        )
    shares = looked.sums / looked.cells
    expected = np.clip(shares, null.low, null.high)
    distance = looked.sums - expected * looked.cells
    variance = null.variance(looked, expected)
    z = distance / np.sqrt(variance)
    # log(1 / p) of each state's own side, 0 where it was not tried
    evidence = np.zeros(looked.states)
    for state in np.flatnonzero(np.abs(z) >= _NEAR).tolist():
        evidence[state] = _evidence(null, looked, state, float(expected[state]), distance[state], variance[state])
    state = max(range(looked.states), key=lambda one: (evidence[one], abs(z[one]), -one))
    drifted = bool(evidence[state] >= math.log(2 * looked.states / spent))
    what = "is more" if z[state] > 0 else "is less"
    return Drift(
        judged=True,
        drifted=drifted,
        state=state,
        share=float(shares[state]),
        expected=float(expected[state]),
        z=float(z[state]),
        alpha=spent,
        reason=f"the share of state {state} {what} than any chain of the belief explains"
        if drifted
        else "the released shares do not contradict the belief; transitions are not seen in them",
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Look:
    """Released rows, summed: all slots of ``full`` series, and at most ``partial_cells`` cells of ``partial`` ones."""

    sums: FloatArray
    cells: float
    public: bool
    scale: Fraction
    draws: int
    slots: int
    full: int
    partial: int
    partial_cells: int

    @property
    def states(self) -> int:
        return len(self.sums)

    def noise(self, t: FloatArray, share: float) -> FloatArray:
        """Logarithm of what the noise adds, in one state's sum less ``share`` times the cells if these are noisy."""
        if self.public:
            return public_noise_log_tails(self.scale, t, self.draws)
        others = self.draws * (self.states - 1) * noise_log_moments(self.scale, share * t)
        return noise_log_tails(self.scale, (1 - share) * t, self.draws) + others


@dataclass(frozen=True, eq=False, slots=True)
class _Hypothesis:
    """What the belief says of counts: ends of the stationary shares, contraction, start, and its chains if any."""

    low: FloatArray
    high: FloatArray
    rho: float
    excess: float
    before: int | None
    chains: tuple[MarkovChain, ...] = ()

    def variance(self, looked: _Look, share: FloatArray) -> FloatArray:
        """Variance of sums less share times cells, shape (k,): an upper bound with a stationary start."""
        spread = share * (1 - share)
        slow = (1 + self.rho) / (1 - self.rho) if self.rho < 1 else math.inf
        single = looked.draws * DiscreteLaplace(looked.scale).std ** 2
        noise = single if looked.public else single * ((1 - share) ** 2 + (looked.states - 1) * share**2)
        cells, _ = self.loose(looked)
        sampled = cells * spread * slow if cells else np.zeros(looked.states)
        if self.chains and looked.full:
            each = [count_variance(chain, looked.slots) for chain in self.chains]
            sampled = sampled + looked.full * np.max(each, axis=0)
        return sampled + noise

    def log_moments(self, looked: _Look, state: int, t: FloatArray, share: float) -> FloatArray:
        """Logarithm of E exp(t (count - share cells)), at most, for the worst chains; all exponents have one sign."""
        found = np.zeros(len(t))
        if self.chains and looked.full:
            each = [chain_log_moments(chain, state, t, slots=looked.slots, before=self.before) for chain in self.chains]
            found += looked.full * (np.max(each, axis=0) - t * share * looked.slots)
        cells, series = self.loose(looked)
        if cells:
            # at least 0 by Jensen's inequality, so the most cells that there can be are the worst
            growth = log_growth(share, self.rho, t)
            found += cells * np.maximum(growth - t * share, 0) + series * log_start(growth, self.excess, t)
        return found

    def loose(self, looked: _Look) -> tuple[int, int]:
        """Cells and series that are bounded through pi and rho."""
        if self.chains:
            return looked.partial_cells, looked.partial
        return looked.partial_cells + looked.full * looked.slots, looked.partial + looked.full


def _evidence(null: _Hypothesis, looked: _Look, state: int, share: float, distance: float, variance: float) -> float:
    """log(1 / p) by Chernoff's bound, the best of some exponents; each of them is valid."""
    rate = 1 / float(looked.scale)
    near = abs(distance) / variance * np.geomspace(0.05, 3, 30)
    t = np.append(near, rate * (1 - np.geomspace(1e-3, 0.9, 12)))
    # only one draw bears the end of the range
    most = rate if looked.draws == 1 and looked.public else 0.999 * rate
    t = math.copysign(1, distance) * np.minimum(np.append(t, most), min(most, MOST_TILT))
    return max(0.0, -float((null.log_moments(looked, state, t, share) + looked.noise(t, share) - t * distance).min()))


def _hypothesis(belief: Belief | ConfidenceClass, states: int, before: int) -> _Hypothesis:
    if isinstance(belief, ConfidenceClass):
        found, ends = belief.bounds(), belief.members.stationary_bounds()
        return _any_start(ends[0], ends[1], found, before, states)
    check_belief(belief)
    if isinstance(belief, MixingBounds):
        # a state may be as frequent as it likes
        return _any_start(np.full(states, belief.pi_min), np.ones(states), belief, before, states)
    if isinstance(belief, BinaryInterval):
        found = belief.bounds  # refuses what would divide by zero here
        low, high = (_share_of_first(belief.stay_0[one], belief.stay_1[1 - one]) for one in (0, 1))
        return _any_start(np.array([low, 1 - high]), np.array([high, 1 - low]), found, before, states)
    chains = (belief,) if isinstance(belief, MarkovChain) else belief.chains
    same_states(chains[0].states, states)
    shares = np.array([chain.stationary for chain in chains])
    rho = max(chain.rho for chain in chains)
    stationary = starts_stationary(belief)
    return _Hypothesis(
        shares.min(axis=0),
        shares.max(axis=0),
        rho,
        0.0 if stationary else _excess(float(shares.min()), rho, before),
        None if stationary else before,
        chains,
    )


def _any_start(low: FloatArray, high: FloatArray, bounds: MixingBounds, before: int, states: int) -> _Hypothesis:
    same_states(len(low), states)
    return _Hypothesis(low, high, bounds.rho, _excess(bounds.pi_min, bounds.rho, before), before)


def _excess(pi_min: float, rho: float, before: int) -> float:
    return rho**before * math.sqrt(max(0.0, 1 / pi_min - 1)) if pi_min > 0 else math.inf


def _share_of_first(stay_0: float, stay_1: float) -> float:
    return (1 - stay_1) / ((1 - stay_0) + (1 - stay_1))


def same_states(believed: int, released: int) -> None:
    """Refuse a belief over another number of states.

    Raises:
        ValueError: Then.
    """
    if believed != released:
        raise ValueError(
            f"counts: they have {released} states, and the belief has {believed}: judge rows by the belief of their "
            "own query"
        )


def unjudged(alpha: float, why: str) -> Drift:
    """The outcome where nothing can be said."""
    nothing = math.nan
    return Drift(
        judged=False,
        drifted=False,
        state=None,
        share=nothing,
        expected=nothing,
        z=nothing,
        alpha=alpha,
        reason=f"not judged: {why}",
    )


def _look_at(counts: Ints, scale: Fraction, totals: Ints | None, members: Ints, slots: int, windows: int) -> _Look:
    released = check_released(counts, totals)
    DiscreteLaplace(scale)
    rows = len(released)
    length = whole("slots", slots, "give the slots of the period", least=1)
    number = whole("windows", windows, "give the releases that each row is the sum of", least=1)
    if members.shape != (rows,) or not np.issubdtype(members.dtype, np.integer) or (members < 0).any():
        raise ValueError(f"members: they must be {rows} whole numbers, none negative: one for each row of counts")
    most = members.astype(np.int64) * length
    if totals is not None and (totals > most).any():
        raise ValueError("totals: a row counts more cells than members times slots: give slots of the whole period")
    full = np.zeros(rows, dtype=np.bool_) if totals is None else totals == most
    held = most if totals is None else totals
    sums = released.sum(axis=0, dtype=np.float64)
    return _Look(
        sums=sums,
        cells=float(sums.sum() if totals is None else totals.sum()),
        public=totals is not None,
        scale=scale,
        draws=rows * number,
        slots=length,
        full=int(members[full].sum()),
        partial=int(members[~full].sum()),
        partial_cells=int(held[~full].sum()),
    )


def check_released(counts: Ints, totals: Ints | None) -> Ints:
    """Released counts of shape (n, k) and their totals of shape (n,), or an error that names no number of them.

    Raises:
        ValueError: A shape, a type or a total is wrong.
    """
    if counts.dtype != np.int64 or counts.ndim != 2 or counts.shape[1] == 0:  # noqa: PLR2004 - rows and states
        raise ValueError(
            f"counts: shape and type are {counts.shape} and {counts.dtype}, and must be (rows, states) and int64: pass "
            "released counts"
        )
    if totals is not None and (
        totals.shape != counts.shape[:1] or not np.issubdtype(totals.dtype, np.integer) or (totals < 0).any()
    ):
        raise ValueError(f"totals: they must be {len(counts)} whole numbers, none negative: one for each row of counts")
    return counts
