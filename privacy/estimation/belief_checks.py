"""What the series of a history lose at a density under richer beliefs than the one that was fitted on them.

Each check takes the states of every series, slot by slot, and asks for the loss of an endless stream of any releases of
some density by what that series did itself:

*rhythm*
    its own chain with a kernel for every slot of the day (:class:`..models.periodic.PeriodicChain`), to whose rows some
    visits of the pooled row of that slot are added;
*memory*
    its own chain with a memory of two slots, which is a chain over pairs of states: a secret is about the second one;
*stretches*
    no chain. The adversary knows how often each stretch of slots around a slot occurred in the series, and the kind of
    each day.

The first two are bounds from above, each proven by a certificate (:mod:`..models.certificates`): of the rhythm within a
few per cent of the least, of the memory within two densities more, as pairs that differ in their first state alone are
charged a slot on each side. The third is a bound from below: raw counts in every slot may come out so that
they favour the states of a set v by e^d each, and then X_t = x is told from X_t = x' by the ratio of the means of e^(d
n_v) over the stretches with x and with x' in their middle, n_v the number of their slots in v. The means are taken
among stretches alike in the kind of the day in the middle and in how many of the days about it are of each kind, and
weighted alike for x and x': the ratio of two such sums is at most the largest ratio among stretches that are alike. The
third says who loses more, and for a series that it leaves below epsilon it proves nothing.

Everything here is an exact statistic of the history. ``states`` is the number of states k, ``density`` the loss per
slot, above 0, and a bound that is not above ``enough`` is not made sharper. Losses are in epsilon, shape (series,);
those of rhythm and memory are rounded up, and infinite where none is proven.

>>> path = np.tile(np.array([0, 0, 1, 1], dtype=np.int8), 50)
>>> history = [Path(0, path)]
>>> float(stretches(history, 2, 0.1, 1, [np.zeros(200, dtype=np.int8)], day=50)[0].round(4))
0.1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.certificates import proven
from ..models.couplings import Couplings, couple, load_bound
from ..models.directions import NotContracting
from ..models.markov_chain import ChainError, FloatArray, MarkovChain
from ..models.periodic import PeriodicChain
from .per_series import Path, own_rows, pooled_rows, transitions_by

LEAST_STRETCHES = 10
"""Stretches that a series must have with a state in their middle, for the state to be compared with others."""


def rhythm(paths: Sequence[Path], states: int, period: int, density: float, enough: float = 0.0) -> FloatArray:
    """Loss of each series by its own chain with a kernel for every slot of a period, from slot 0 of the clock on."""
    rows = own_rows(_by_slot(paths, states, period))
    return np.array([_loss(PeriodicChain(list(own)), density, enough) for own in rows])


def pooled_rhythm(paths: Sequence[Path], states: int, period: int) -> FloatArray:
    """Rows of all series together for every slot of a period, with visits of the pooled row, shape (n, k, k)."""
    return pooled_rows(_by_slot(paths, states, period))


def _by_slot(paths: Sequence[Path], states: int, period: int) -> FloatArray:
    slots = [(path.first + np.arange(len(path.states))) % period for path in paths]
    return transitions_by(paths, slots, period, states)


def memory(paths: Sequence[Path], states: int, density: float, enough: float = 0.0) -> FloatArray:
    """Loss of each series by its own chain with a memory of two slots."""
    tables = np.zeros((len(paths), states, states, states))
    for table, path in zip(tables, paths, strict=True):
        triple = path.states[:-2], path.states[1:-1], path.states[2:]
        seen = np.logical_and.reduce([one >= 0 for one in triple])
        np.add.at(table, tuple(one[seen] for one in triple), 1)
    found: list[float] = []
    for own in own_rows(tables):
        pairs = np.zeros((states, states, states, states))
        for last in range(states):
            pairs[:, last, last] = own[:, last]
        found.append(_loss(MarkovChain(pairs.reshape(states**2, states**2)), density, enough, _of_second))
    return np.array(found)


def stretches(
    paths: Sequence[Path], states: int, density: float, half: int, kinds: Sequence[NDArray[np.int8]], day: int
) -> FloatArray:
    """What each series loses at least by the stretches of 2 half + 1 slots that it had, given the kind of each day.

    0 where fewer than two states have at least 10 complete stretches of one kind.

    Args:
        paths: The states of every series.
        states: How many states there are.
        density: Loss per slot.
        half: Slots on each side.
        kinds: The kind of each slot's day, -1 for none, of every series.
        day: Slots of a day.
    """
    sets = np.array([one for one in itertools.product((0.0, 1.0), repeat=states) if 0 < sum(one) < states]).T
    found: list[float] = []
    for path, own in zip(paths, kinds, strict=True):
        here = path.states[half : len(path.states) - half]
        visits = np.stack([_sums(path.states == state, half) for state in range(states)], axis=1)
        whole = visits.sum(axis=1) == 2 * half + 1 if len(here) else np.zeros(0, dtype=bool)
        groups = _alike(own, half, day)
        found.append(_worst(visits[whole], here[whole], groups[whole], density * sets, states))
    return np.array(found)


def _worst(
    visits: NDArray[np.int64], here: NDArray[np.int8], groups: NDArray[np.int64], gains: FloatArray, states: int
) -> float:
    """The largest logarithm of a ratio of weighted means, over pairs of states and over outputs."""
    means = np.full((states, int(groups.max(initial=0)) + 1, gains.shape[1]), np.nan)
    for state in range(states):
        for group in np.unique(groups[here == state]):
            chosen = (here == state) & (groups == group)
            if chosen.sum() >= LEAST_STRETCHES:
                means[state, group] = _log_mean(visits[chosen], gains)
    weights = np.log(np.maximum(np.bincount(groups, minlength=means.shape[1]), 1))[:, np.newaxis]
    worst = 0.0
    for first, second in itertools.combinations(range(states), 2):
        both = ~np.isnan(means[first, :, 0]) & ~np.isnan(means[second, :, 0])
        if both.any():
            sums = (np.logaddexp.reduce((means[state] + weights)[both], axis=0) for state in (first, second))
            worst = max(worst, float(np.abs(np.subtract(*sums)).max()))
    return worst


def _alike(kinds: NDArray[np.int8], half: int, day: int) -> NDArray[np.int64]:
    """A number of the kinds of the days about each slot that has ``half`` slots on both sides, from 0 up.

    Alike are slots whose own day has the same kind and which have as many days of each kind about it.
    """
    middle = np.arange(half, len(kinds) - half)
    if not len(middle):
        return np.zeros(0, dtype=np.int64)
    number = int(kinds.max(initial=0)) + 1
    counts = np.zeros((len(middle), number + 2), dtype=np.int64)  # by kind, of no kind, and the kind of the own day
    counts[:, -1] = kinds[middle]
    for apart in range(1, max(1, half // day) + 1):
        for at in (middle - apart * day, middle + apart * day):
            inside = (at >= 0) & (at < len(kinds))
            kind = np.where(inside, kinds[np.where(inside, at, 0)], -1)
            np.add.at(counts, (np.arange(len(middle)), np.where(kind < 0, number, kind)), 1)
    return np.unique(counts, axis=0, return_inverse=True)[1].reshape(-1)


def _log_mean(visits: NDArray[np.int64], gains: FloatArray) -> FloatArray:
    """Logarithm of the mean of e^(density n_v) over stretches for every set v, some stretches at a time."""
    total = np.full(gains.shape[1], -np.inf)
    for at in range(0, len(visits), 50_000):
        values = visits[at : at + 50_000] @ gains
        most = values.max(axis=0)
        total = np.logaddexp(total, most + np.log(np.exp(values - most).sum(axis=0)))
    return total - np.log(len(visits))


def _sums(there: NDArray[np.bool_], half: int) -> NDArray[np.int64]:
    """How many of the slots of each whole stretch are."""
    width = 2 * half + 1
    if len(there) < width:
        return np.zeros(0, dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(there)])
    return total[width:] - total[:-width]


def _loss(
    belief: PeriodicChain,
    density: float,
    enough: float,
    secret: Callable[[PeriodicChain, FloatArray], FloatArray] | None = None,
) -> float:
    """The largest loss between two states, proven: by total variation where that is enough, else by couplings."""
    try:
        (pair,) = belief.pairs
        found = _less_own(sum(side.closed.value(density) for side in pair), density)
        if found > enough:
            total = np.add(*(proven(side, density)[0] for side in pair))
            found = min(found, _less_own(total if secret is None else secret(belief, total), density))
    except (ChainError, NotContracting):
        return math.inf
    return found


def _less_own(total: FloatArray | float, density: float) -> float:
    """The largest of both directions, in which the own slot counts twice."""
    return math.nextafter(float(np.max(total)), math.inf) - math.nextafter(density, 0.0)


def _of_second(belief: PeriodicChain, total: FloatArray) -> FloatArray:
    """From the matrix between pairs of states (a, x) to that between the second ones, up to rounding.

    Given X_t = x the pair is (a, x) with the weight w_x(a). For every coupling gamma of w_x and w_x' the ratio of the
    mixtures is at most the largest over a' of the sum over a of e^T[(a,x),(a',x')] gamma(a, a') / w_x'(a').
    """
    (chain,) = belief.members
    states = math.isqrt(chain.states)
    weights = chain.stationary.reshape(states, states)
    weights = (weights / weights.sum(axis=0)).T
    first, second = np.nonzero(~np.eye(states, dtype=bool))
    ratios = np.exp(total.reshape((states,) * 4)[:, first, :, second])
    # as states of their own: a state is not coupled with itself for nothing here
    nothing = np.zeros((len(first), states))
    p, q = np.hstack([weights[first], nothing]), np.hstack([nothing, weights[second]])
    apart = np.ones((len(first), 2 * states, 2 * states))
    apart[:, :states, states:] = ratios
    theta = load_bound(p, q, apart, Couplings.of(couple(p, q, apart, 1e-4).mass))
    return np.log(theta) + 1e-9  # what the weights may be off by
