"""Influence across a change of belief: theory of the ledger, a switch declared at a public slot.

The transitions out of slot c and all later ones follow the new belief, those before it the old one; X_c is whatever the
old chain has brought it to. A quilt of slot i that ends on the other side of c sees the product of two transition
powers.

*Right*, from i = c - m to c + n: K = P1^m P2^n and F_K[x, x'] = max_y log K(x, y) / K(x', y).
*Left*, from i = c + m back to c - n: K = P1^n P2^m, and whatever the law of X_{c-n} is,

    log P(X_{c-n} = y | X_i = x) / P(X_{c-n} = y | X_i = x')
      = log K(y, x) / K(y, x') + log P(X_i = x') / P(X_i = x)
      <= M_K[x', x] + M_K[x, x'],   M_K[x, x'] = max_y log K(y, x') / K(y, x),

because P(X_i = x') / P(X_i = x) is a ratio of two mixtures of K(y, x') and K(y, x) with the same weights. So from c on
nothing rests on a stationary law, ends on the same side of c included.

``Crossing`` holds these tables for two lists of chains. Where there are no matrices (bounds), it holds what two stages
can tell together at most [ours]: if no two rows of the first differ by more than e^a, and none of the second by more
than e^b, then no two rows of their product differ by more than e^c with

    tanh(c / 2) = tanh(a / 2) tanh(b / 2).

Proof. Let p, q be two rows of the first, and s_z the entry of row z of the second in some column, all within [s, e^b
s]. The ratio of sum p_z s_z to sum q_z s_z is linear-fractional in every s_z, so it is largest where each is s or
e^b s: at (1 + p(S)(e^b - 1)) / (1 + q(S)(e^b - 1)) for a set S. With q(S) = t, p(S) is at most e^a t and at most
1 - e^-a (1 - t); along the first the ratio rises with t, along the second it falls, and where they meet, at
t = 1 / (1 + e^a), it is (1 + e^(a + b)) / (e^a + e^b) = e^c. On the right a and b are the largest F1_m and F2_n. On the
left K(y, x) / K(y', x) is at most e^c with a = F1_n and b = F2_m, whatever y, y' and x. The sum of M_K in both
directions is the logarithm of the largest K(y, x) / K(z, x) times K(z, x') / K(y, x'), so it is at most 2 c.

``tolls`` are the same with the nearer stage left out, c <= b on the right and c <= a on the left. They hold for any
number of changes in between: the last factor counts for the first, the earliest for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .chains import FloatArray, MarkovChain, frozen
from .classes import AnyInitial, FiniteClass
from .influence import PairLabel, SidedInfluence
from .models.belief import AnyBelief

_MAX_WORK = 2**24
_MAX_ENTRIES = 2**22
_TINY = 1e-290
_ULP = 2.0**-52

#: Absolute: influence is at most some hundreds, where sums and logarithms err by less.
_MARGIN = 1e-12


def matrices_of(belief: AnyBelief) -> tuple[FloatArray, ...] | None:
    """The transition matrices of a belief that is a list of chains; None for others.

    The worst members of an interval decide within one belief; across a change they need not.
    """
    if isinstance(belief, MarkovChain):
        return (belief.transition,)
    if isinstance(belief, FiniteClass | AnyInitial):
        return tuple(chain.transition for chain in belief.chains)
    return None


@dataclass(frozen=True, eq=False, slots=True)
class Crossing:
    """Influence across one change, from the products of the two transition powers.

    Attributes:
        right: Influence on the slot c + n of a slot c - m, shape (pairs of the old belief, m, n), index [m - 1, n - 1].
        left: Influence on the slot c - n of a slot c + m, shape (pairs of the new belief, m, n), index [m, n - 1].
    """

    right: FloatArray
    left: FloatArray

    @classmethod
    def between(cls, old: tuple[AnyBelief, SidedInfluence], new: tuple[AnyBelief, SidedInfluence]) -> Crossing | None:
        """The tables between two beliefs; None where they would be too large."""
        before, after = matrices_of(old[0]), matrices_of(new[0])
        lags = old[1].reach, new[1].reach
        if before is None or after is None or not old[1].pairs or not new[1].pairs:
            return cls.bounded(old[1], new[1])
        states = len(before[0])
        if len(after[0]) != states or len(before) * len(after) * lags[0] * lags[1] * states**3 > _MAX_WORK:
            return cls.bounded(old[1], new[1])
        return cls(
            right=_tables(old[1].pairs, before, after, lags, backward=False),
            left=_tables(new[1].pairs, before, after, lags, backward=True),
        )

    @classmethod
    def bounded(cls, old: SidedInfluence, new: SidedInfluence) -> Crossing | None:
        """What two stages tell together at most, one row for all pairs; None where it would be too large."""
        if old.reach * new.reach > _MAX_ENTRIES or not len(old.right) or not len(new.right):
            return None
        # nothing is known of the slot of the change itself: its own state is certain there
        own = np.concatenate(([np.inf], new.right.max(axis=0)[:-1]))
        right = _together(old.right.max(axis=0)[:, np.newaxis], new.right.max(axis=0))
        left = 2 * _together(own[:, np.newaxis], old.right.max(axis=0))
        return cls(
            right=frozen(np.minimum.accumulate(right, axis=1)[np.newaxis]),
            left=frozen(np.minimum.accumulate(left, axis=1)[np.newaxis]),
        )


def _together(first: FloatArray, second: FloatArray) -> FloatArray:
    """The c of two stages, rounded outward: their influence is known to some units in the last place.

    Without the inverse of tanh, which has no digits left near 1: e^c = (e^b + e^-a) / (1 + e^(b - a)) with the smaller
    of the two as b, so c = b + log1p(e^-(a + b)) - log1p(e^(b - a)).
    """
    small, large = np.minimum(first, second), np.maximum(first, second)
    with np.errstate(invalid="ignore"):
        gained = np.log1p(np.exp(-(small + large))) - np.log1p(np.exp(small - large))
    found = np.where(np.isfinite(large), small + np.nan_to_num(gained), small)
    outward: FloatArray = np.asarray(np.maximum(found, 0.0) + _MARGIN, dtype=np.float64)
    return outward


def _tables(
    pairs: Sequence[PairLabel],
    before: Sequence[FloatArray],
    after: Sequence[FloatArray],
    lags: tuple[int, int],
    *,
    backward: bool,
) -> FloatArray:
    """For each pair of its own member, the worst over the members of the other belief; shape (pairs, m, n)."""
    own, other = (after, before) if backward else (before, after)
    labels = np.array(pairs)
    shape = (len(labels), lags[1], lags[0]) if backward else (len(labels), *lags)
    found = np.zeros(shape)
    for member, matrix in enumerate(own):
        rows = np.flatnonzero(labels[:, 0] == member)
        x, y = labels[rows, 1], labels[rows, 2]
        for second in other:
            first = _powers(matrix, shape[1], from_zero=backward)
            power, support = first
            for n in range(1, shape[2] + 1):
                if backward:
                    power, support = second @ power, (second > 0).astype(np.intp) @ support > 0
                else:
                    power, support = power @ second, support.astype(np.intp) @ (second > 0) > 0
                ratios = _worst_ratio(power, support, backward=backward)
                values = ratios[:, x, y].T
                if backward:
                    values = values + ratios[:, y, x].T
                margin = _ULP * (shape[1] + n + 8) * (len(matrix) + 4) * (1 + backward)
                outward = np.maximum(values, 0.0) * (1 + 4 * _ULP) + margin
                found[rows, :, n - 1] = np.maximum(found[rows, :, n - 1], outward)
    return frozen(np.minimum.accumulate(found, axis=2))


def _powers(matrix: FloatArray, count: int, *, from_zero: bool) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """The powers 1..count, or 0..count - 1, and which of their entries are not 0, each of shape (count, k, k)."""
    powers, supports = [np.eye(len(matrix))], [np.eye(len(matrix), dtype=np.bool_)]
    for _ in range(count):
        powers.append(powers[-1] @ matrix)
        supports.append(supports[-1] @ (matrix > 0))
    cut = slice(0, count) if from_zero else slice(1, count + 1)
    return np.stack(powers[cut]), np.stack(supports[cut])


def _worst_ratio(power: FloatArray, support: npt.NDArray[np.bool_], *, backward: bool) -> FloatArray:
    """F_K, shape (m, x, x'), or backward log of max_y K(y, x) / K(y, x').

    A state that is never entered constrains nothing. An entry that has underflown counts as tiny above and zero below.
    """
    if backward:
        power, support = power.transpose(0, 2, 1), support.transpose(0, 2, 1)
    above = np.where(support, np.maximum(power, _TINY), 0.0)
    below = np.where(support & (power >= _TINY), power, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.fmax.reduce(above[:, :, np.newaxis, :] / below[:, np.newaxis, :, :], axis=3)
        logs = np.log(np.nan_to_num(worst, nan=0.0, posinf=np.inf))
    if backward:
        entered = np.asarray(support.any(axis=2))
        logs = np.where(entered[:, :, np.newaxis] & entered[:, np.newaxis, :], logs, 0.0)
    return logs


def tolls(tables: SidedInfluence, *, backward: bool) -> FloatArray:
    """What an end n slots beyond a change tells at most, for all pairs, n = 1..reach: ends in ``tables``' own part."""
    if not len(tables.right):
        return np.zeros(tables.reach)
    return tables.right.max(axis=0) * (2 if backward else 1)
