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

``Crossing`` holds these tables for two lists of chains. Where there are no matrices (bounds), or the tables would be
too large, ``tolls`` bounds them by tables that are there already:

    F_K[x, x'] <= max over z, z' of F2_n[z, z'], the rows of K being mixtures of the rows of P2^n;
    M_K[x', x] + M_K[x, x'] <= 2 max over z, z' of F1_n[z, z'], because K(y, x) / K(y', x) is a ratio of mixtures of
    P1^n(y, z) and P1^n(y', z) with the same weights, whatever y, y' and x.

Both hold for any number of changes in between: the last factor counts for the first, the earliest for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .chains import FloatArray, MarkovChain, frozen
from .classes import AnyInitial, Belief, FiniteClass
from .influence import PairLabel, SidedInfluence

_MAX_WORK = 2**24
_TINY = 1e-290
_ULP = 2.0**-52


def matrices_of(belief: Belief) -> tuple[FloatArray, ...] | None:
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
    def between(cls, old: tuple[Belief, SidedInfluence], new: tuple[Belief, SidedInfluence]) -> Crossing | None:
        """The tables between two beliefs; None where one of them has no matrices or they would be too large."""
        before, after = matrices_of(old[0]), matrices_of(new[0])
        if before is None or after is None or not old[1].pairs or not new[1].pairs:
            return None
        states, lags = len(before[0]), (old[1].reach, new[1].reach)
        if len(after[0]) != states or len(before) * len(after) * lags[0] * lags[1] * states**3 > _MAX_WORK:
            return None
        return cls(
            right=_tables(old[1].pairs, before, after, lags, backward=False),
            left=_tables(new[1].pairs, before, after, lags, backward=True),
        )


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
