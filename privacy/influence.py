"""Influence tables: how much the slot a earlier, or b later, says about the state now.

One interface serves every belief and every search: ``SidedInfluence`` holds, per secret pair and per side, an upper
bound for each lag. The max-influence of the quilt {X_{i-a}, X_{i+b}} for a pair is ``left[pair, a - 1] + right[pair,
b - 1]`` ([SWC17] Eq. 5). Mixing bounds make one pair, a chain makes one per ordered pair of states, a class the union
over its members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .chains import FloatArray, MarkovChain, frozen
from .classes import Belief, FiniteClass, MixingBounds

RESOLUTION = 1e-12
"""Tables end where every influence is at most this: further quilts cannot lower a loss by more than twice as much."""

MAX_LAGS = 2**22
"""Longest closed-form table."""

_MAX_CHAIN_LAGS = 20_000
_MAX_ENTRIES = 2**24
_LOOK_BACK = 1024
_STALLED = 0.999
_TINY = 1e-290
_ULP = 2.0**-52

PairLabel: TypeAlias = tuple[int, int, int]
"""Member of the class, state x, state x'."""


@dataclass(frozen=True, eq=False, slots=True)
class SidedInfluence:
    """Influence per secret pair, side and lag.

    Attributes:
        left: Influence on the slot a earlier, shape (pairs, lags), column a - 1; non-increasing in a, infinite where
            unusable.
        right: Influence on the slot b later, same shape.
        pairs: The ordered secret pair of each row; empty for a belief that has one row for all pairs.
        basis: What the tables assume, one sentence for the record.
    """

    left: FloatArray
    right: FloatArray
    pairs: tuple[PairLabel, ...]
    basis: str

    @property
    def reach(self) -> int:
        """Number of lags in the tables; slots further away are not used as quilts."""
        return self.left.shape[1]

    def label(self, row: int) -> PairLabel | None:
        """The secret pair of a row, None where the row stands for all pairs."""
        return self.pairs[row] if self.pairs else None


def lemma_4_8(bounds: MixingBounds, lags: npt.ArrayLike) -> FloatArray:
    """Lemma 4.8 of [SWC17]: f(d) = log((pi_min + e^{-g d/2}) / (pi_min - e^{-g d/2})).

    Infinite where e^{-g d/2} >= pi_min.

    The influence on the slot d later is at most f(d), on the slot d earlier at most 2 f(d), whatever the initial
    distribution ([SWC17] App. C.4). Computed as 2 artanh(e^{-g d/2} / pi_min), which keeps small values accurate.

    Args:
        bounds: The class of chains.
        lags: Distances d in slots, any shape.
    """
    share = np.exp(-bounds.gap / 2 * np.asarray(lags, dtype=np.float64) - math.log(bounds.pi_min))
    share = np.where(share < 1, share, np.nan)
    return np.nan_to_num(2 * np.arctanh(share), nan=np.inf)


def lemma_4_8_reach(bounds: MixingBounds, resolution: float = RESOLUTION) -> int:
    """The first lag at which 2 f is at most the resolution."""
    share = math.tanh(resolution / 4)
    return math.ceil(-(math.log(share) + math.log(bounds.pi_min)) * 2 / bounds.gap)


def mixing_influence(bounds: MixingBounds, lags: int) -> SidedInfluence:
    """Lemma 4.8 for every lag up to ``lags``, as one pair with 2 f on the left and f on the right."""
    single = lemma_4_8(bounds, np.arange(1, lags + 1))[np.newaxis, :]
    return SidedInfluence(
        left=frozen(2 * single),
        right=frozen(single),
        pairs=(),
        basis=(
            f"every chain with pi_min at least {bounds.pi_min:.6g} and gap ({bounds.kind}) at least {bounds.gap:.6g}, "
            "whatever its initial distribution (Lemma 4.8)"
        ),
    )


def _worst_ratio(weights: FloatArray, support: npt.NDArray[np.bool_]) -> FloatArray:
    """Take max_y log(W(x, y) / W(x', y)) for all x, x', shape (k, k).

    A zero below alone makes the entry infinite; 0/0 is no constraint, and an entry without any constraint is -inf.
    ``support`` says which entries are zero in truth: one that has underflown counts as tiny above and as zero below,
    which can only raise the result.
    """
    above = np.where(support, np.maximum(weights, _TINY), 0.0)
    below = np.where(support & (weights >= _TINY), weights, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0/0 is nan, which fmax passes over
        worst = np.fmax.reduce(above[:, np.newaxis, :] / below[np.newaxis, :, :], axis=2)
        return np.log(np.nan_to_num(worst, nan=0.0, posinf=np.inf))


def _any_start(power: FloatArray, support: npt.NDArray[np.bool_]) -> FloatArray:
    """M_a[x, x'] + M_a[x', x], which bounds the influence on the slot a earlier for every start.

    A state that no state enters in a steps is impossible at every slot that has a slot a earlier: no constraint.
    """
    ratios = _worst_ratio(power.T, support.T)
    entered = support.any(axis=0)
    kept = np.where(np.logical_and.outer(entered, entered), ratios, 0.0)
    return kept + kept.T


def chain_influence(chain: MarkovChain, member: int = 0, resolution: float = RESOLUTION) -> SidedInfluence:
    """Exact tables of one chain, rounded outward.

    The right side is F_b[x, x'] = max_y log(P^b(x, y) / P^b(x', y)). The left side of a stationary chain is the same
    with the time reversal P*. With a fixed initial distribution it is M_a[x, x'] + M_a[x', x] with M_n[x, x'] = max_y
    log(P^n(y, x') / P^n(y, x)), which bounds the influence at every slot and for every initial distribution ([SWC17]
    App. C.4, and the mediant inequality M_{i-1} <= M_a for i > a).

    All are non-increasing in the lag, so each entry is the least of those up to its lag. A product of n non-negative
    matrices has a relative error of at most n k / 2 ulp per entry; that of both sides of a ratio is added before, with
    a share for the stationary distribution and the logarithm. Tables end where every finite entry is at most the
    resolution, where they have stopped to fall, or at the longest allowed: that only takes quilts away.

    Args:
        chain: Irreducible unless it has an initial distribution.
        member: Index of the chain in its class, for the labels.
        resolution: Influence that is small enough.

    Raises:
        ChainError: If the chain is to start stationary and is reducible.
    """
    states = chain.states
    rows, columns = np.nonzero(~np.eye(states, dtype=np.bool_))
    pairs = tuple((member, int(x), int(y)) for x, y in zip(rows, columns, strict=True))
    weights = chain.stationary if chain.initial is None else None
    start = "any initial distribution" if weights is None else "its stationary distribution to start from"
    basis = f"one chain of {states} states with {start}"
    if not pairs:
        return SidedInfluence(frozen(np.zeros((0, 0))), frozen(np.zeros((0, 0))), pairs, basis)
    most = min(_MAX_CHAIN_LAGS, max(1, _MAX_ENTRIES // len(pairs)))
    lefts: list[FloatArray] = []
    rights: list[FloatArray] = []
    power, support = np.eye(states), np.eye(states, dtype=np.bool_)
    edges = chain.transition > 0
    earlier = math.inf
    for lag in range(1, most + 1):
        power, support = power @ chain.transition, support @ edges
        forward = _worst_ratio(power, support)
        if weights is None:
            backward = _any_start(power, support)
        else:
            backward = _worst_ratio(power.T * weights[np.newaxis, :] / weights[:, np.newaxis], support.T)
        margin = _ULP * (lag + 8) * (states + 4)
        rights.append(_outward(forward[rows, columns], margin))
        lefts.append(_outward(backward[rows, columns], 2 * margin))
        values = np.concatenate([forward[rows, columns], backward[rows, columns]])
        finite = np.isfinite(values)
        largest = float(values.max(initial=0.0, where=finite))
        # a zero of P^n that is still there after k^2 steps stays: the chain is periodic or reducible
        if largest <= resolution and (bool(finite.all()) or lag >= states * states):
            break
        if lag % _LOOK_BACK == 0:
            if largest > earlier * _STALLED:
                break
            earlier = largest
    return SidedInfluence(_table(lefts), _table(rights), pairs, basis)


def _outward(values: FloatArray, margin: float) -> FloatArray:
    return np.maximum(values, 0.0) * (1 + 4 * _ULP) + margin


def _table(columns: list[FloatArray]) -> FloatArray:
    return frozen(np.minimum.accumulate(np.stack(columns, axis=1), axis=1))


def _union(members: Iterable[SidedInfluence], basis: str) -> SidedInfluence:
    """All pairs of all members, in tables of one length.

    A table that ends early keeps its last value, as it never rises.
    """
    tables = list(members)
    lags = max(table.reach for table in tables)

    def stacked(sides: list[FloatArray]) -> FloatArray:
        return frozen(np.concatenate([np.pad(side, ((0, 0), (0, lags - side.shape[1])), "edge") for side in sides]))

    return SidedInfluence(
        left=stacked([table.left for table in tables]),
        right=stacked([table.right for table in tables]),
        pairs=tuple(label for table in tables for label in table.pairs),
        basis=basis,
    )


@lru_cache(maxsize=8)
def sided_influence(belief: Belief) -> SidedInfluence:
    """The tables of any belief, up to where they fall below the resolution or reach the longest table allowed.

    Ending a table early only takes quilts away, so every loss computed from it stays an upper bound.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    if isinstance(belief, MixingBounds):
        return mixing_influence(belief, min(MAX_LAGS, lemma_4_8_reach(belief)))
    if isinstance(belief, FiniteClass):
        if belief.states == 1:
            return chain_influence(belief.chains[0])
        tables = (chain_influence(chain, member) for member, chain in enumerate(belief.chains))
        return _union(tables, f"a class of {len(belief.chains)} chains of {belief.states} states")
    return chain_influence(belief)
