"""Noise for weakly correlated slots, by an influence matrix ([GK16]): a method to compare the quilts with.

>>> round(gk16(MarkovChain([[0.6, 0.4], [0.4, 0.6]]), epsilon=1.0, length=100).sigma, 4)
1.6992
"""

from __future__ import annotations

import math

import numpy as np

from ..models.classes import FiniteClass, stated_chains
from ..models.markov_chain import FloatArray, MarkovChain, check_chain
from ..quilts.calibration import Calibration
from ..quilts.influence import Quilt
from ..validation import PrivacyError, accepted_loss, whole


class OutsideDomain(PrivacyError):  # noqa: N818 - the name says what is wrong
    """A belief to which a theorem does not apply."""


def gk16(belief: MarkovChain | FiniteClass, epsilon: float, length: int) -> Calibration:
    """Noise for weakly correlated slots, by an influence matrix ([GK16]).

    [GK16] is Ghosh and Kleinberg, "Inferential Privacy Guarantees for Differentially Private Mechanisms" (2016).
    The influence matrix Gamma has the entries gamma_ij = 1/2 max log P(X_i = s | x) / P(X_i = s | y) over states s and
    sequences x, y of positive probability that differ in slot j only (conditions on all slots but i), and a zero
    diagonal. As in [GK16] the method applies only where the spectral norm of Gamma is below 1. The bound on the loss
    is not quoted from there but derived here from the same matrix:

        loss of slot i <= sum_k v_k eps_dp(k),   v_i = 1,   v_k = sum_j gamma_kj v_j for every k != i,

    that is v_k = Phi_ki / Phi_ii for Phi = (I - Gamma)^-1. With the same eps_dp in every slot,
    sigma = max_i (sum_k v_k) / epsilon.

    Proof. Let f(x) > 0 be the density of the published value given the sequence x, and D_j the largest change of log f
    when slot j alone changes: D_j <= eps_dp(j). Average f over slot k != i by its law given all other slots: the
    result no longer depends on slot k, and its conditional expectation given X_i is that of f. For sequences that
    differ in slot j the two averages differ, in logarithm, by at most D_j plus the logarithm of the ratio of the means
    of one function, with values in [m, m e^{D_k}], under two laws whose densities have a ratio between e^{-2 gamma}
    and e^{2 gamma}, gamma = gamma_kj. That ratio is largest for a function of two values and laws of two atoms, where
    it is (1 + r e^D) / (r + e^D) with r = e^{2 gamma}, whose logarithm is at most D tanh(gamma) <= gamma D. So the
    step sets D_k to 0 and raises D_j by at most gamma_kj D_k. By the choice of v the sum of v_j D_j does not rise.
    Going round all slots but i again and again, D_j -> 0 for j != i, because the part of Gamma without slot i has
    spectral radius below 1; what is left is E[f | X_i], whose logarithm changes by at most the limit of D_i, and that
    is at most sum_j v_j eps_dp(j). Single changes connect all sequences of positive probability, because transitions
    are positive (see below).

    For a chain only neighbours have influence, v falls off from i on both sides by continued fractions, and the whole
    takes time linear in the window. A transition of probability 0 makes an influence infinite: outside the domain. A
    fixed start may leave states out; then the first slot ranges over the others.

    Args:
        belief: A chain with a fixed or stationary start, or a finite class of them (the worst member decides).
        epsilon: Target, finite and at least 2^-46.
        length: Slots of the window, at most 20,000.

    Raises:
        ChainError: If a chain is meant to be stationary and is reducible.
        OutsideDomain: If the spectral norm of a member's influence matrix is not below 1.
        TypeError: If the belief is no chain or class of chains.
        ValueError: The window is too long.
    """
    chains = stated_chains(belief, "an influence matrix")
    target, slots = accepted_loss(epsilon), _window(length)
    worst, norm = 0.0, 0.0
    for member, chain in enumerate(chains):
        before, after = _neighbours(chain, slots)
        size = _spectral_norm(before, after)
        if not size < 1:
            which = f"of member {member} " if len(chains) > 1 else ""
            raise OutsideDomain(
                f"the influence matrix {which}over {slots} slots has the spectral norm {size:.6g}, but the bound needs "
                "one below 1: neighbouring slots are too strongly correlated for this method, use a quilt mechanism"
            )
        norm = max(norm, size)
        worst = max(worst, _largest_sum(before, after))
    stated = "the chain is as stated (every influence is taken from it)"
    below = f"the spectral norm of the influence matrix is {norm:.6g}, below 1"
    return Calibration(target, worst / target, Quilt(None, None), None, 0.0, slots, "gk16", None, (stated, below))


def gk16_influence(chain: MarkovChain, length: int) -> FloatArray:
    """The influence matrix Gamma of `gk16`, shape (T, T): row i, column j is the influence of slot j on slot i.

    Raises:
        ChainError: If the chain is meant to be stationary and is reducible.
    """
    check_chain("chain", chain)
    before, after = _neighbours(chain, _window(length))
    return np.diag(before[1:], -1) + np.diag(after[:-1], 1)


def _window(length: int) -> int:
    # the spectral norm of more takes long
    return whole("length", length, "give the slots of a window", least=1, most=20_000)


def _neighbours(chain: MarkovChain, length: int) -> tuple[FloatArray, FloatArray]:
    """The influence on every slot of the slot before it and of the slot after it; 0 where there is none."""
    before, after = np.zeros(length), np.zeros(length)
    start = chain.stationary if chain.initial is None else chain.initial
    possible = start > 0
    if length == 1 or chain.states == 1:
        return before, after
    if (chain.transition == 0).any():
        before[1:], after[:-1] = math.inf, math.inf
        return before, after
    steps = np.log(chain.transition)
    # log P(X_0 = s | next = v), axes (v, s)
    first = _normal((np.log(start[possible])[:, np.newaxis] + steps[possible]).T)
    after[0] = _range(first, axis=0)
    # log P(X_i = s | previous = u, next = v), axes (u, v, s)
    middle = _normal(steps[:, np.newaxis, :] + steps.T[np.newaxis, :, :])
    before[1:-1], after[1:-1] = _range(middle, axis=0), _range(middle, axis=1)
    if length > 2:  # noqa: PLR2004 - slot 1 has a neighbour on both sides
        before[1], after[1] = _range(middle[possible], axis=0), _range(middle[possible], axis=1)
        before[-1] = _range(steps, axis=0)
    else:
        before[-1] = _range(steps[possible], axis=0)
    return before, after


def _normal(logarithms: FloatArray) -> FloatArray:
    """The same laws along the last axis, normalised."""
    top = logarithms.max(axis=-1, keepdims=True)
    return logarithms - top - np.log(np.exp(logarithms - top).sum(axis=-1, keepdims=True))


def _range(logarithms: FloatArray, axis: int) -> float:
    """Half of the largest change of a log-probability when the condition of one axis changes."""
    return float((logarithms.max(axis=axis) - logarithms.min(axis=axis)).max()) / 2


def _spectral_norm(before: FloatArray, after: FloatArray) -> float:
    """The largest singular value of Gamma, from the band matrix Gamma^T Gamma."""
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return math.inf
    size = before.size
    band = np.zeros((3, size))
    # column j of Gamma holds after[j - 1] in row j - 1 and before[j + 1] in row j + 1
    band[0, 1:] += after[:-1] ** 2
    band[0, :-1] += before[1:] ** 2
    if size > 2:  # noqa: PLR2004 - columns two apart meet in the row between them
        band[2, :-2] = before[1:-1] * after[1:-1]
    from scipy.linalg import eigvals_banded  # noqa: PLC0415 - a tenth of a second that only this one needs

    largest = eigvals_banded(band[: min(3, size)], lower=True, select="i", select_range=(size - 1, size - 1))
    return math.sqrt(max(0.0, float(largest[0])))


def _largest_sum(before: FloatArray, after: FloatArray) -> float:
    """Max over i of the sum of v: for k > i, v_k = before[k] v_{k-1} + after[k] v_{k+1}, so v_k = r_k v_{k-1}."""
    return float((1 + _tail_sums(before, after) + _tail_sums(after[::-1], before[::-1])[::-1]).max())


def _tail_sums(nearer: FloatArray, further: FloatArray) -> FloatArray:
    """For each slot the sum of v over the slots behind it, where v is 1 in the slot itself."""
    sums = np.zeros(nearer.size)
    ratio = 0.0
    for slot in range(nearer.size - 1, 0, -1):
        ratio = float(nearer[slot]) / (1 - float(further[slot]) * ratio)
        sums[slot - 1] = ratio * (1 + sums[slot])
    return sums
