"""Drift of released histograms: whether they contradict the belief in force.

>>> import numpy as np
>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> belief = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> rows = np.array([[8050, 2031], [7990, 2071]])  # two feeders of 30 homes, a week of half-hours each
>>> week = {"totals": np.array([10080, 10080]), "members": np.array([30, 30]), "alpha": 1e-3}
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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ArgumentError
from ..mechanisms.discrete_laplace import DiscreteLaplace
from ..models.belief import Belief
from ..models.classes import mixing_bounds
from ..models.markov_chain import ChainError, FloatArray
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
    windows: int = 1,
    before: int = 0,
    alpha: float,
) -> Drift:
    """Judge released histograms of one period against a belief.

    A row is one series or group. Where the period has several windows, they are adjacent and do not overlap, and the
    row is the sum of its releases. No series is in two rows.

    Args:
        belief: The belief in force. It is judged by the ends of the stationary shares of its chains and by its gap;
            `MixingBounds` only by whether a state is rarer than pi_min.
        counts: Released counts, int64, shape (n, k).
        scale: Exact scale of the noise of one release.
        totals: Public number of cells that each row counts, shape (n,).
        members: Series summed in each row, shape (n,).
        windows: Releases that each row is the sum of.
        before: Slots for which every series has run before the period, at least. Only beliefs without a stationary
            start use it: with 0 the worst start must be reckoned with, and small drifts of few slots are not seen.
        alpha: Probability of a false alarm, at most.

    Raises:
        ValueError: If shapes or ranges are wrong, or the belief has another number of states.
    """
    if not 0 < number("alpha", alpha, "0.001 is the usual one") < 1:
        raise ArgumentError(f"alpha: {alpha} is not strictly between 0 and 1: 0.001 is the usual one")
    released, cells, series = as_array("counts", counts), as_array("totals", totals), as_array("members", members)
    if released.dtype != np.int64 or released.ndim != 2 or not released.shape[1]:  # noqa: PLR2004 - rows and states
        raise ArgumentError(f"counts: the shape is {released.shape}, and must be (rows, states) of int64")
    for name, values in (("totals", cells), ("members", series)):
        if values.shape != released.shape[:1] or values.dtype.kind not in "iu" or (values < 0).any():
            raise ArgumentError(f"{name}: they must be {len(released)} whole numbers, none negative: one for each row")
    draws = len(released) * a_slot("windows", windows, "give the releases that each row is the sum of", least=1)
    states, total = released.shape[1], int(cells.sum())
    try:
        low, high, rho, excess = _believed(belief, states, whole("before", before, "give the slots", least=0))
    except ChainError as error:
        return _unjudged(str(error))
    if total == 0:
        return _unjudged("no cell was counted")
    if rho >= 1:
        return _unjudged("P P* may be reducible: rho is 1, and bounds nothing")
    sums = released.sum(axis=0, dtype=np.float64)
    shares = sums / total
    expected = np.clip(shares, low, high)
    distance = sums - expected * total
    # at most, with a stationary start
    variance = total * expected * (1 - expected) * (1 + rho) / (1 - rho) + draws * DiscreteLaplace(scale).std ** 2
    z = distance / np.sqrt(variance)

    def evidence(state: int) -> float:
        """log(1 / p) of a state's own side by Chernoff's bound, the best of some exponents; each of them is valid."""
        share, rate = float(expected[state]), 1 / float(scale)
        near = abs(distance[state]) / variance[state] * np.geomspace(0.05, 3, 30)
        tilts = np.append(near, rate * (1 - np.geomspace(1e-3, 0.9, 12)))
        most = rate if draws == 1 else 0.999 * rate  # only one draw bears the end of the range
        # exponents beyond 50 decide nothing and overflow
        t = math.copysign(1, distance[state]) * np.minimum(np.append(tilts, most), min(most, 50.0))
        growth = log_growth(share, rho, t)
        # of a cell at least 0, by Jensen's inequality
        moments = total * np.maximum(growth - t * share, 0) + int(series.sum()) * log_start(growth, excess, t)
        return max(0.0, -float((moments + noise_log_tails(scale, t, draws) - t * distance[state]).min()))

    # what is nearer than two standard deviations decides nothing, and is not tried
    told = np.array([evidence(state) if abs(z[state]) >= 2 else 0.0 for state in range(states)])  # noqa: PLR2004
    state = max(range(states), key=lambda one: (told[one], abs(z[one]), -one))
    drifted = bool(told[state] >= math.log(2 * states / alpha))
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


def _believed(belief: Belief, states: int, before: int) -> tuple[FloatArray, FloatArray, float, float]:
    """Ends of the stationary shares of a belief's chains, rho, and the excess U of their start."""
    check_belief(belief)
    chains = () if belief.any_start else belief.members
    if not chains:
        found = mixing_bounds(belief)  # refuses what would divide by zero below
        if (shares := belief.stationary_range(states)) is not None:
            _same_states(len(shares[0]), states)
            return *shares, found.rho, _excess(found.pi_min, found.rho, before)
        chains = belief.members
    _same_states(chains[0].states, states)
    shares = np.array([chain.stationary for chain in chains])
    low, high, rho = shares.min(axis=0), shares.max(axis=0), max(chain.rho for chain in chains)
    return low, high, rho, 0.0 if belief.starts_stationary else _excess(float(low.min()), rho, before)


def _excess(pi_min: float, rho: float, before: int) -> float:
    return rho**before * math.sqrt(max(0.0, 1 / pi_min - 1)) if pi_min > 0 else math.inf


def _same_states(believed: int, released: int) -> None:
    """Refuse a belief over another number of states."""
    if believed != released:
        raise ArgumentError(
            f"counts: they have {released} states, and the belief has {believed}: judge rows by the belief of their "
            "own query"
        )


def _unjudged(why: str) -> Drift:
    """The outcome where nothing can be said."""
    nan = math.nan
    return Drift(judged=False, drifted=False, state=None, share=nan, expected=nan, reason=f"not judged: {why}")
