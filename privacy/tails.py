"""How far a count of cells strays from its mean: bounds for a chain's own randomness and for the noise, not limits.

A released count of state y is the number of cells in y plus integer noise. Both are handled by exponential moments,
which multiply where things are independent, and Chernoff's bound P(C >= c) <= E exp(t C) / exp(t c) for any t > 0
(t < 0 for the other side). Nothing here is a limit theorem: every bound holds for every length.

*Noise.* Of one noise term Z the tail itself is known, and that is better than its moment, which grows beyond all bounds
as t nears 1 / scale. Let c(t) be the largest value of P(Z >= m) exp(t m). Given all the rest X, P(X + Z >= d) is at
most c(t) exp(t (X - d)), so P(X + Z_1 + ... + Z_n >= d) <= c(t) E exp(t Z)^(n - 1) E exp(t (X - d)), for n = 1 up to
t = 1 / scale. With r = exp(-1 / scale), P(Z >= m) is r^m / (1 + r) for m >= 0, where the largest value is at m = 0, and
1 - r^(1 - m) / (1 + r) below, where setting the derivative to zero gives it: `noise_log_tails`. Where totals are public
the noise may be conditioned on sum zero, and c(t) = 1 holds for either law: `public_noise_log_tails`.

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

>>> import numpy as np
>>> two = MarkovChain([[0.9, 0.1], [0.1, 0.9]])
>>> exact = chain_log_moments(two, 0, np.array([0.1]), slots=48)
>>> bool(exact[0] <= 48 * log_growth(0.5, two.rho, np.array([0.1]))[0])
True
>>> count_variance(two, 48).round(1).tolist()
[98.0, 98.0]
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .chains import FloatArray, MarkovChain

MOST_TILT = 50.0
"""Exponents beyond this decide nothing and overflow."""


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

    Args:
        scale: Of each discrete Laplace term.
        t: Exponents, above 0, or below 0 for P(... <= d). Beyond 1 / scale, and there for several draws, A is infinite.
        draws: Number of terms, at least 1.
    """
    rate = 1 / float(scale)
    size, share = np.minimum(np.abs(t), rate), 1 / (1 + np.exp(-rate))  # share of P(Z >= 0)
    # at m = -j the product is exp(-t j) (1 - (1 - share) r^j), j = 0 where the derivative vanishes for no j > 0
    back = np.maximum(0.0, -np.log(size / ((size + rate) * (1 - share))) / rate)
    found = -size * back + np.log1p(-(1 - share) * np.exp(-rate * back))
    if draws > 1:
        found = found + (draws - 1) * noise_log_moments(scale, t)
    return np.where(np.abs(t) <= rate, found, np.inf)


def public_noise_log_tails(scale: Fraction, t: FloatArray, draws: int) -> FloatArray:
    """The same as `noise_log_tails` for one bin of histograms whose total is public: their noise may keep the total.

    One of the terms has A = 1 under either law: e^(tu) P(Z >= u) is at most 1 for u <= 0, and for u > 0 because
    P(Z >= u) <= e^(-u / scale), also of noise conditioned on sum zero, which is stochastically smaller in size
    (`zero_sum`). The moments of the others are at most those of independent noise, for the same reason.
    """
    found = (draws - 1) * noise_log_moments(scale, t) if draws > 1 else np.zeros(np.shape(t))
    return np.where(np.abs(t) <= 1 / float(scale), found, np.inf)


def log_growth(share: float | FloatArray, rho: float, t: FloatArray) -> FloatArray:
    """Logarithm of g: what one more counted cell adds at most to log E exp(t N).

    Args:
        share: p, the stationary probability of the state: an upper bound of it where t > 0, a lower one where t < 0.
        rho: The contraction of the chain per slot, or an upper bound of it, from 0 to 1.
        t: Exponents, at most `MOST_TILT` in size.
    """
    tilt = np.exp(t)
    entered, left = tilt * (rho + (1 - rho) * share), rho + (1 - rho) * (1 - share)
    # the discriminant without a difference of squares
    root = np.sqrt((entered - left) ** 2 + 4 * tilt * (1 - rho) ** 2 * share * (1 - share))
    return np.log((entered + left + root) / 2)


def log_start(growth: FloatArray, excess: float, t: FloatArray) -> FloatArray:
    """What a series adds to log E exp(t N) because it did not start in its stationary distribution.

    Args:
        growth: `log_growth` at the same exponents.
        excess: U of the module; 0 for a stationary start.
        t: Exponents.
    """
    return np.log1p(excess * np.exp(np.maximum(t, 0) / 2 - growth / 2))


def chain_log_moments(
    chain: MarkovChain, state: int, t: FloatArray, *, slots: int, before: int | None = None
) -> FloatArray:
    """Logarithm of E exp(t N), N the number of ``slots`` adjacent slots in a state; exact up to rounding.

    Args:
        chain: P; its initial distribution is not used.
        state: y.
        t: Exponents, shape (m,), at most `MOST_TILT` in size.
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

    Raises:
        ChainError: The chain is reducible.
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
