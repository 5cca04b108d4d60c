"""Drift of released histograms: whether they contradict the belief in force.

>>> import numpy as np
>>> belief = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> rows = np.array([[8050, 2031], [7990, 2071]])  # two feeders of 30 homes, a week of half-hours each
>>> week = {"totals": np.array([10080, 10080]), "members": np.array([30, 30]), "slots": 336, "alpha": 1e-3}
>>> drift_test(belief, rows, Fraction(87), **week).drifted
False
>>> found = drift_test(belief, rows - [[900, -900]], Fraction(87), **week)
>>> found.drifted, found.state, found.expected
(True, 0, 0.8)

*What it can find.* A histogram shows how much time is spent in each state, so what can be seen is a share that no chain
of the belief explains. It does not show transitions: a chain that mixes more slowly and spends its time as before is
not found, and that is the drift that costs most.

*The hypothesis.* Every series follows some chain of the belief, not necessarily the same one, and series are
independent of each other; which cells are missing does not depend on the states. So a class has drifted only if no
mixture of its members gives such counts.

*False alarms.* For every state and side, Chernoff's bound on what was counted, with the exponential moments of the
noise and of the worst chains of the belief (below): no normal approximation, so an alarm has probability at most
``alpha`` whatever the number of rows and slots, each of the 2 k tests having its part of it. The truth is somewhat
below. Who looks again and again gives look number j the share 1 / (j (j + 1)) of an alpha: all looks for ever have that
alpha together (the union bound needs no independence).

*How far a count of cells strays from its mean.* A released count of state y is the number of cells in y plus integer
noise. Both are handled by exponential moments, which multiply where things are independent, and Chernoff's bound
P(C >= c) <= E exp(t C) / exp(t c) for any t > 0 (t < 0 for the other side): every bound holds for every length.

*Noise.* Of one noise term Z the tail itself is known, and that is better than its moment, which grows beyond all bounds
as t nears 1 / scale. Let c(t) be the largest value of P(Z >= m) exp(t m). Given all the rest X, P(X + Z >= d) is at
most c(t) exp(t (X - d)), so P(X + Z_1 + ... + Z_n >= d) <= c(t) E exp(t Z)^(n - 1) E exp(t (X - d)), for n = 1 up to
t = 1 / scale. Totals are public, and so the noise may be conditioned on sum zero; c(t) = 1 holds for either law:
`noise_log_tails`.

*One chain, every slot counted.* Write f for the indicator of y and E for the diagonal matrix exp(t f). Then
E_q exp(t N) = q (E P)^(L - 1) E 1 for the number N of the first L slots in y, exactly: `chain_log_moments`.

*Any chain that contracts, any slots.* Let P contract mean-zero functions by rho in L2(pi), ||P h|| <= rho ||h||, and
let p = pi(y). Any fixed set of n slots, with or without gaps, has

    E_pi exp(t N) <= g^n,   g the larger root of  x^2 - x (e^t a + b) + e^t rho = 0,
                            a = rho + (1 - rho) p,  b = rho + (1 - rho)(1 - p).

Proof. Let B = rho I + (1 - rho) 1 pi, self-adjoint and non-negative in L2(pi). For functions u, v with means m, m' and
mean-zero parts of norms s, s' and any j >= 1, |<u, P^j v>| <= |m m'| + rho^j s s' <= (m^2 + rho s^2)^(1/2)
(m'^2 + rho s'^2)^(1/2) = <u, B u>^(1/2) <v, B v>^(1/2). With D = exp(t f / 2) this says
||D P^j D|| <= ||D B D||. The moment is <D 1, (D P^j1 D)(D P^j2 D) ... D 1> with j1, j2, ... the distances between the
slots, so at most ||D 1||^2 ||D B D||^(n - 1). As B >= 1 pi, ||D B D|| >= ||D 1||^2, which leaves ||D B D||^n. D B D
maps the functions of f to themselves, with trace e^t a + b and determinant e^t rho; on their complement, where h is 0
in y and has the mean 0, it is rho, and b >= rho is a Rayleigh quotient on the functions of f. So the norm is g. (The
comparison with B is Leon and Perron's, *Optimal Hoeffding bounds for discrete reversible Markov chains*, 2004; it needs
no reversibility.)

g rises with rho, because B does, and with p where t > 0, because the trace does; where t < 0 it falls with p. So a
bound of the gap and one of p are enough: `log_growth`.

*Any start.* Let the chain have run for s slots from any state. Its density w to pi has ||w - 1|| <= U with
U = rho^s (1 / pi_min - 1)^(1/2), and in place of the first ||D 1|| <= g^(1/2) there is
||D w|| <= g^(1/2) + max(1, e^(t/2)) U. That is a further factor of 1 + max(1, e^(t/2)) U / g^(1/2) a series:
`log_start`.

>>> two = MarkovChain([[0.9, 0.1], [0.1, 0.9]])
>>> exact = chain_log_moments(two, 0, np.array([0.1]), slots=48)
>>> bool(exact[0] <= 48 * log_growth(0.5, two.rho, np.array([0.1]))[0])
True
>>> count_variance(two, 48).round(1).tolist()
[98.0, 98.0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..mechanisms.discrete_laplace import DiscreteLaplace
from ..models.belief import Belief
from ..models.classes import mixing_bounds, starts_stationary
from ..models.markov_chain import ChainError, FloatArray, MarkovChain
from ..models.serialisation import check_belief
from ..validation import a_slot, as_array, number, whole

Ints = NDArray[np.int64]


def noise_log_moments(scale: Fraction, t: FloatArray) -> FloatArray:
    """Logarithm of E exp(t Z) for discrete Laplace noise Z; infinite from |t| = 1 / scale on.

    With r = exp(-1 / scale) it is 2 log(1 - r) - log(1 - r e^t) - log(1 - r e^-t).
    """
    rate = 1 / float(scale)
    size = np.abs(t)
    inside = np.where(size < rate, size, 0.0)
    found = 2 * np.log(-np.expm1(-rate)) - np.log(-np.expm1(inside - rate)) - np.log(-np.expm1(-inside - rate))
    return np.where(size < rate, found, np.inf)


def noise_log_tails(scale: Fraction, t: FloatArray, draws: int) -> FloatArray:
    """Logarithm of A with P(X + Z_1 + ... + Z_draws >= d) <= A E exp(t (X - d)) for independent X, or mirrored.

    Of one bin of histograms whose total is public. One of the terms has A = 1 under either law of noise: e^(tu)
    P(Z >= u) is at most 1 for u <= 0, and for u > 0 because P(Z >= u) <= e^(-u / scale), also of noise conditioned on
    sum zero, which is stochastically smaller in size (`ZeroSumLaplace`). The moments of the others are at most those of
    independent noise, for the same reason.

    Args:
        scale: Of each term.
        t: Exponents, above 0, or below 0 for P(... <= d). Beyond 1 / scale, and there for several draws, A is infinite.
        draws: Number of terms, at least 1.
    """
    found = (draws - 1) * noise_log_moments(scale, t) if draws > 1 else np.zeros(np.shape(t))
    return np.where(np.abs(t) <= 1 / float(scale), found, np.inf)


def log_growth(share: float | FloatArray, rho: float, t: FloatArray) -> FloatArray:
    """Logarithm of g: what one more counted cell adds at most to log E exp(t N).

    Args:
        share: p, the stationary probability of the state: an upper bound of it where t > 0, a lower one where t < 0.
        rho: The contraction of the chain per slot, or an upper bound of it, from 0 to 1.
        t: Exponents.
    """
    tilt = np.exp(t)
    entered, left = tilt * (rho + (1 - rho) * share), rho + (1 - rho) * (1 - share)
    # the discriminant without a difference of squares
    root = np.sqrt((entered - left) ** 2 + 4 * tilt * (1 - rho) ** 2 * share * (1 - share))
    return np.log((entered + left + root) / 2)


def log_start(growth: FloatArray, excess: float, t: FloatArray) -> FloatArray:
    """What a series adds to log E exp(t N) because it did not start in its stationary distribution.

    ``growth`` is `log_growth` at the same exponents, ``excess`` is U of the module, 0 for a stationary start.
    """
    return np.log1p(excess * np.exp(np.maximum(t, 0) / 2 - growth / 2))


def chain_log_moments(
    chain: MarkovChain, state: int, t: FloatArray, *, slots: int, before: int | None = None
) -> FloatArray:
    """Logarithm of E exp(t N), N the number of ``slots`` adjacent slots in a state; exact up to rounding.

    Args:
        chain: P; its initial distribution is not used.
        state: y.
        t: Exponents, shape (m,).
        slots: L, at least 1.
        before: None for the stationary start; else the worst start, this many slots before the first that counts.

    Returns:
        Shape (m,).

    Raises:
        ChainError: A stationary start is asked for and the chain is reducible.
    """
    k = chain.states
    tilt = np.ones((len(t), k))
    tilt[:, state] = np.exp(t)
    found, logs = _applied(tilt[:, :, np.newaxis] * chain.transition, slots - 1, tilt)
    if before is None:
        return np.log(found @ chain.stationary) + logs
    # nothing is tilted before the first slot, so the power is stochastic
    return np.log((found @ np.linalg.matrix_power(chain.transition, before).T).max(axis=1)) + logs


def count_variance(chain: MarkovChain, slots: int) -> FloatArray:
    """Variance of the number of ``slots`` adjacent slots in each state, from a stationary start; shape (k,).

    With Q = P - 1 pi it is pi(y) (2 T(y, y) - L (1 + pi(y))), T = sum of (L - j) Q^j over j < L. Divided by L it tends
    to pi(y) (2 Z(y, y) - 1 - pi(y)), where Z = (I - Q)^-1 is the fundamental matrix (Kemeny and Snell 1960). T is
    summed by doubling, which asks for no inverse and no long history.
    """
    weights, k = chain.stationary, chain.states
    step, one = chain.transition - weights, np.eye(k)
    # of the first a powers: their sum S, the sum T of the sums, and the power a itself
    length, sums, twice, power = 0, np.zeros((k, k)), np.zeros((k, k)), one
    for bit in f"{slots:b}":
        twice = twice + length * sums + power @ twice
        sums = sums + power @ sums
        power = power @ power
        length *= 2
        if bit == "1":
            sums = sums + power
            twice = twice + sums
            power = power @ step
            length += 1
    return np.maximum(0.0, weights * (2 * np.diag(twice) - slots * (1 + weights)))


def _applied(step: FloatArray, times: int, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Non-negative matrices, shape (m, k, k), applied to vectors (m, k) again and again: values and logs of scales."""
    found, logs, power, scale = start, np.zeros(len(start)), step, np.zeros(len(start))
    while times:
        if times & 1:
            found = np.einsum("mij,mj->mi", power, found)
            logs = logs + scale
            largest = found.max(axis=1)
            found, logs = found / largest[:, np.newaxis], logs + np.log(largest)
        times >>= 1
        if times:
            power, scale = power @ power, 2 * scale
            largest = power.max(axis=(1, 2))
            power, scale = power / largest[:, np.newaxis, np.newaxis], scale + np.log(largest)
    return found, logs


@dataclass(frozen=True, slots=True)
class Drift:
    """The outcome of one look."""

    judged: bool  # whether the belief could be judged at all
    drifted: bool  # whether the released numbers contradict it
    # the state that says so most clearly, or, without drift, the one that is furthest off; None where nothing was
    # judged
    state: int | None
    share: float  # its share of the cells as released, noise included; NaN where nothing was judged, as for the next
    expected: float  # the nearest share that the belief allows
    reason: str  # one sentence for the record


def drift_test(
    belief: Belief,
    counts: Ints,
    scale: Fraction,
    totals: Ints,
    *,
    members: Ints,
    slots: int,
    windows: int = 1,
    before: int = 0,
    alpha: float,
) -> Drift:
    """Judge released histograms of one period against a belief.

    A row is one series or group. Where the period has several windows, they are adjacent and do not overlap, and the
    row is the sum of its releases. No series is in two rows.

    Args:
        belief: The belief in force. A chain and lists of chains are judged by their own autocorrelation where all slots
            of a row are counted, and by pi and rho where some are missing; `MixingBounds` only by whether a state is
            rarer than pi_min, `BinaryInterval` by the ends of its stationary shares.
        counts: Released counts, int64, shape (n, k).
        scale: Exact scale of the noise of one release.
        totals: Public number of cells that each row counts, shape (n,).
        members: Series summed in each row, shape (n,).
        slots: Slots of the period.
        windows: Releases that each row is the sum of.
        before: Slots for which every series has run before the period, at least. Only beliefs without a stationary
            start use it: with 0 the worst start must be reckoned with, and small drifts of few slots are not seen.
        alpha: Probability of a false alarm, at most.

    Raises:
        ValueError: If shapes or ranges are wrong, or the belief has another number of states.
    """
    if not 0 < number("alpha", alpha, "0.001 is the usual one") < 1:
        raise ValueError(f"alpha: {alpha} is not strictly between 0 and 1: 0.001 is the usual one")
    looked = _look_at(counts, scale, totals, members, slots, windows)
    try:
        null = _hypothesis(belief, looked.states, whole("before", before, "give the slots before it", least=0))
    except ChainError as error:
        return _unjudged(str(error))
    if looked.cells <= 0:
        return _unjudged("no cell was counted")
    if null.rho >= 1 and null.loose(looked)[0]:
        return _unjudged(
            "cells are missing, or the belief is a class, and P P* may be reducible: rho is 1, and bounds nothing"
        )
    shares = looked.sums / looked.cells
    expected = np.clip(shares, null.low, null.high)
    distance = looked.sums - expected * looked.cells
    variance = null.variance(looked, expected)
    z = distance / np.sqrt(variance)
    # log(1 / p) of each state's own side; what is nearer than two standard deviations decides nothing, and is not tried
    evidence = np.zeros(looked.states)
    for state in np.flatnonzero(np.abs(z) >= 2).tolist():  # noqa: PLR2004 - said above
        evidence[state] = _evidence(null, looked, state, *(float(one[state]) for one in (expected, distance, variance)))
    state = max(range(looked.states), key=lambda one: (evidence[one], abs(z[one]), -one))
    drifted = bool(evidence[state] >= math.log(2 * looked.states / alpha))
    what = "is more" if z[state] > 0 else "is less"
    return Drift(
        judged=True,
        drifted=drifted,
        state=state,
        share=float(shares[state]),
        expected=float(expected[state]),
        reason=f"the share of state {state} {what} than any chain of the belief explains"
        if drifted
        else "the released shares do not contradict the belief; transitions are not seen in them",
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Look:
    """Released rows, summed: all slots of ``full`` series, and ``partial_cells`` cells of ``partial`` ones."""

    sums: FloatArray
    cells: int
    scale: Fraction
    draws: int
    slots: int
    full: int
    partial: int
    partial_cells: int

    @property
    def states(self) -> int:
        return len(self.sums)


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
        slow = (1 + self.rho) / (1 - self.rho) if self.rho < 1 else math.inf
        cells, _ = self.loose(looked)
        sampled = cells * share * (1 - share) * slow if cells else np.zeros(looked.states)
        if self.chains and looked.full:
            each = [count_variance(chain, looked.slots) for chain in self.chains]
            sampled = sampled + looked.full * np.max(each, axis=0)
        return sampled + looked.draws * DiscreteLaplace(looked.scale).std ** 2

    def log_moments(self, looked: _Look, state: int, t: FloatArray, share: float) -> FloatArray:
        """Logarithm of E exp(t (count - share cells)), at most, for the worst chains; all exponents have one sign."""
        found = np.zeros(len(t))
        if self.chains and looked.full:
            each = [chain_log_moments(chain, state, t, slots=looked.slots, before=self.before) for chain in self.chains]
            found += looked.full * (np.max(each, axis=0) - t * share * looked.slots)
        cells, series = self.loose(looked)
        if cells:
            # at least 0 by Jensen's inequality
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
    most = rate if looked.draws == 1 else 0.999 * rate  # only one draw bears the end of the range
    # exponents beyond 50 decide nothing and overflow
    t = math.copysign(1, distance) * np.minimum(np.append(t, most), min(most, 50.0))
    noise = noise_log_tails(looked.scale, t, looked.draws)
    return max(0.0, -float((null.log_moments(looked, state, t, share) + noise - t * distance).min()))


def _hypothesis(belief: Belief, states: int, before: int) -> _Hypothesis:
    check_belief(belief)
    chains = () if belief.any_start else belief.members
    if not chains:
        found = mixing_bounds(belief)  # refuses what would divide by zero below
        if (shares := belief.stationary_range(states)) is not None:
            _same_states(len(shares[0]), states)
            return _Hypothesis(*shares, found.rho, _excess(found.pi_min, found.rho, before), before)
        chains = belief.members
    _same_states(chains[0].states, states)
    shares = np.array([chain.stationary for chain in chains])
    low, high, rho = shares.min(axis=0), shares.max(axis=0), max(chain.rho for chain in chains)
    if starts_stationary(belief):
        return _Hypothesis(low, high, rho, 0.0, None, chains)
    return _Hypothesis(low, high, rho, _excess(float(low.min()), rho, before), before, chains)


def _excess(pi_min: float, rho: float, before: int) -> float:
    return rho**before * math.sqrt(max(0.0, 1 / pi_min - 1)) if pi_min > 0 else math.inf


def _same_states(believed: int, released: int) -> None:
    """Refuse a belief over another number of states."""
    if believed != released:
        raise ValueError(
            f"counts: they have {released} states, and the belief has {believed}: judge rows by the belief of their "
            "own query"
        )


def _unjudged(why: str) -> Drift:
    """The outcome where nothing can be said."""
    return Drift(
        judged=False, drifted=False, state=None, share=math.nan, expected=math.nan, reason=f"not judged: {why}"
    )


def _look_at(counts: Ints, scale: Fraction, totals: Ints, members: Ints, slots: int, windows: int) -> _Look:
    """The rows, summed; or an error that names no number of them."""
    released, totals, members = as_array("counts", counts), as_array("totals", totals), as_array("members", members)
    DiscreteLaplace(scale)
    length = a_slot("slots", slots, "give the slots of the period", least=1)
    each = a_slot("windows", windows, "give the releases that each row is the sum of", least=1)
    rows = released.shape[:1]
    if released.dtype != np.int64 or released.ndim != 2 or not released.shape[1]:  # noqa: PLR2004 - rows and states
        raise ValueError(
            f"counts: the shape is {released.shape}, and must be (rows, states) of int64: pass released counts"
        )
    for name, values in (("totals", totals), ("members", members)):
        if values.shape != rows or values.dtype.kind not in "iu" or (values < 0).any():
            raise ValueError(f"{name}: they must be {len(released)} whole numbers, none negative: one for each row")
    most = members.astype(np.int64) * length
    if (totals > most).any():
        raise ValueError("totals: a row counts more cells than members times slots: give slots of the whole period")
    full = totals == most
    return _Look(
        sums=released.sum(axis=0, dtype=np.float64),
        cells=int(totals.sum()),
        scale=scale,
        draws=len(released) * each,
        slots=length,
        full=int(members[full].sum()),
        partial=int(members[~full].sum()),
        partial_cells=int(totals[~full].sum()),
    )
