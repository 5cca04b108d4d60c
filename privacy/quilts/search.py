"""The search for the slot, and with pairwise quilts the pair, that needs most noise.

*The best quilt of a slot* is found by Dinkelbach's iteration on separable sides. The score of a quilt is card /
(epsilon - influence). With influence L(a) + R(b) and card (a - 1/2) + (b - 1/2), the sign of ``card - sigma * (epsilon
- influence)`` is decided by two minimisations apart, one per side; the least sigma that some quilt reaches is the root
of their sum. Every step costs one pass over the lags, never one over all pairs of lags.

*The slot, and with pairwise quilts the pair, that needs most noise.* Set-wise ([SWC17] Algorithms 2 and 3): sigma = max
over slots of min over quilts of card / (epsilon - e), the quilt's influence e being the largest over all pairs.
Pairwise: sigma = max over slots and pairs of min over quilts, each pair with a quilt of its own. By max-min <= min-max
it is never more; the proof of the mechanism looks at one secret pair at a time, so it may choose its quilt for it.

*Lazily.* A slot (or a slot and pair) whose sigma is at most the largest so far needs no solution: one quilt that shows
it is enough. Every quilt found is tried on all that are left, and only the one that fares worst is solved next.

*Set-wise by pairs.* For any set W of pairs, min over quilts of the score with e over W alone is a bound from below, and
it needs two columns per pair, not all. The true score of the quilt that attains it is a bound from above. Where both
agree the slot is solved; else the pair that spoils the quilt joins W. In most cases the first pair decides alone: then
set-wise and pairwise noise are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..models.couplings import FloatArray
from .influence import Quilt
from .nodes import WALL, Nodes
from .powers import IntArray


@dataclass(frozen=True, slots=True)
class Found:
    """What decides: the score, the node (its index), the best quilt there, its influence and the pair that has it.

    Infinite sigma: no quilt is usable; 0: nothing is secret.
    """

    sigma: float
    node: int
    quilt: Quilt
    influence: float
    pair: int


NOTHING = Found(0.0, 0, Quilt(None, None), 0.0, -1)


class _Items(NamedTuple):
    nodes: IntArray
    pairs: IntArray | None


def worst_setwise(nodes: Nodes, epsilon: float, first: int) -> Found:
    """The node whose best quilt needs most noise; ``first`` among equals."""
    secret = np.flatnonzero((nodes.starts > -np.inf).any(axis=1))

    def solve(node: int, _: int, floor: float) -> Found:
        return _Setwise(nodes, node, epsilon).solve(floor)

    return _worst(nodes, epsilon, (_Items(part, None) for part in _parts(nodes, secret, first)), solve, first)


def worst_pairwise(nodes: Nodes, epsilon: float, first: int) -> Found:
    """The node and pair whose best quilt needs most noise; ``first`` among equal nodes."""

    def blocks() -> Iterator[_Items]:
        for part in _parts(nodes, np.arange(len(nodes.starts)), first):
            rows, pairs = np.nonzero(nodes.starts[part] > -np.inf)
            yield _Items(part[rows], pairs)

    def solve(node: int, pair: int, _: float) -> Found:
        return _pairwise(nodes, node, pair, epsilon)

    return _worst(nodes, epsilon, blocks(), solve, first)


def _parts(nodes: Nodes, chosen: IntArray, first: int) -> list[IntArray]:
    """Some nodes in blocks, that of ``first`` before the others."""
    size = max(1, 2**20 // max(1, nodes.starts.shape[1]))
    parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    return sorted(parts, key=lambda part: first not in part)


def _worst(
    nodes: Nodes,
    epsilon: float,
    blocks: Iterable[_Items],
    solve: Callable[[int, int, float], Found],
    first: int,
) -> Found:
    best = NOTHING
    tried: dict[Quilt, None] = {}
    for block in blocks:
        items = block
        known = np.full(len(items.nodes), np.inf)
        pending = list(tried)
        while True:
            for quilt in pending:
                known = np.minimum(known, _scores(nodes, items, quilt, epsilon))
                left = known > best.sigma
                items = _Items(items.nodes[left], None if items.pairs is None else items.pairs[left])
                known = known[left]
            if not len(known):
                break
            place = int(np.argmax(known if best.sigma else items.nodes == first))
            pair = -1 if items.pairs is None else int(items.pairs[place])
            found = solve(int(items.nodes[place]), pair, best.sigma)
            if found.sigma > best.sigma:
                best = found
            if not np.isfinite(best.sigma):
                return best
            known[place] = 0.0
            pending = [found.quilt]
            tried[found.quilt] = None
    return best


def _scores(nodes: Nodes, items: _Items, quilt: Quilt, epsilon: float) -> FloatArray:
    """Score of one quilt for some nodes, or nodes and pairs; an end that a node has no slot for is left away."""
    before, after = nodes.before[items.nodes], nodes.after[items.nodes]
    wide = items.pairs is None
    influence = np.zeros((len(before), nodes.starts.shape[1]) if wide else len(before))
    sided = np.zeros(len(before), dtype=np.bool_)
    back, ahead = before.copy(), after.copy()
    if quilt.left is not None:
        there = before >= quilt.left
        back[there] = quilt.left - 1
        sided |= there
        mask = there[:, np.newaxis] if wide else there
        influence += np.where(mask, nodes.left_at(items.nodes, quilt.left, items.pairs), 0.0)
    if quilt.right is not None:
        there = after >= quilt.right
        ahead[there] = quilt.right - 1
        sided |= there
        row = nodes.right[quilt.right - 1]
        mask = there[:, np.newaxis] if wide else there
        influence += np.where(mask, row if items.pairs is None else row[items.pairs], 0.0)
    if wide:
        secret = nodes.starts[items.nodes] > -np.inf
        influence = np.where(secret, influence, -np.inf).max(axis=1)
    return _score(np.where(sided, back + ahead + 1, nodes.trivial), influence, epsilon)


def _score(card: FloatArray, influence: FloatArray, epsilon: float) -> FloatArray:
    """The score card / (epsilon - influence), infinite for a quilt that is not usable."""
    usable = influence < min(epsilon, WALL / 2)
    return np.where(usable, card / np.where(usable, epsilon - influence, 1.0), np.inf)


def _options(table: FloatArray, absent: float) -> tuple[FloatArray, FloatArray]:
    """Slots inside and influence of each end of one side; the last stands for no end where that is possible."""
    slots = np.arange(len(table), dtype=np.float64)
    if np.isfinite(absent):
        slots = np.append(slots, absent)
        table = np.concatenate([table, np.zeros((1, *table.shape[1:]))])
    return slots, table


def _pairwise(nodes: Nodes, node: int, pair: int, epsilon: float) -> Found:
    """The best quilt of one pair, by Dinkelbach's iteration on the two sides apart."""
    back, left = _options(nodes.left_of(node)[:, pair], nodes.before[node])
    ahead, right = _options(nodes.right_of(node)[:, pair], nodes.after[node])
    trivial = Found(nodes.trivial / epsilon, node, Quilt(None, None), 0.0, pair)
    if not len(back) or not len(ahead):
        return trivial
    i, j = int(np.argmin(left)), int(np.argmin(right))
    best = np.inf, i, j
    while left[i] + right[j] < min(epsilon, WALL / 2):
        sigma = float((back[i] + ahead[j] + 1) / (epsilon - (left[i] + right[j])))
        if not sigma < best[0]:
            break
        best = sigma, i, j
        i, j = int(np.argmin(back + sigma * left)), int(np.argmin(ahead + sigma * right))
    sigma, i, j = best
    if trivial.sigma <= sigma:
        return trivial
    return Found(sigma, node, _quilt(nodes, node, i, j), float(left[i] + right[j]), pair)


def _quilt(nodes: Nodes, node: int, left: int, right: int) -> Quilt:
    """The options of both sides as lags."""
    back, ahead = min(nodes.before[node], nodes.lags), min(nodes.after[node], nodes.lags)
    return Quilt(left + 1 if left < back else None, right + 1 if right < ahead else None)


class _Setwise:
    """The best quilt of one node for all pairs at once."""

    def __init__(self, nodes: Nodes, node: int, epsilon: float) -> None:
        self._nodes, self._node, self._epsilon = nodes, node, epsilon
        self._secret = np.flatnonzero(nodes.starts[node] > -np.inf)
        self._back, self._left = _options(nodes.left_of(node)[:, self._secret], nodes.before[node])
        self._ahead, self._right = _options(nodes.right_of(node)[:, self._secret], nodes.after[node])

    def solve(self, floor: float) -> Found:
        """The best quilt, or any that scores at most ``floor``."""
        if not len(self._back) or not len(self._ahead):
            return self._trivial(0)
        sigma, left, right, influence, pair = self._start()
        chosen = [pair]
        while sigma > floor:
            lower = self._least(chosen, sigma)
            if lower is None:
                break
            bound, i, j = lower
            sums = self._left[i] + self._right[j]
            spoiler = int(np.argmax(sums))
            score = float(_score(self._back[i] + self._ahead[j] + 1, sums[spoiler], self._epsilon))
            if score < sigma:
                sigma, left, right, influence, pair = score, i, j, float(sums[spoiler]), spoiler
            if score <= bound or spoiler in chosen:
                break
            chosen.append(spoiler)
        if self._nodes.trivial / self._epsilon <= sigma:
            return self._trivial(pair)
        quilt = _quilt(self._nodes, self._node, left, right)
        return Found(sigma, self._node, quilt, influence, int(self._secret[pair]))

    def _trivial(self, pair: int) -> Found:
        sigma = self._nodes.trivial / self._epsilon
        return Found(sigma, self._node, Quilt(None, None), 0.0, int(self._secret[pair]))

    def _start(self) -> tuple[float, int, int, float, int]:
        """A quilt of equal sides, or what the empty one scores: score, options, influence and worst pair."""
        shorter = min(len(self._back), len(self._ahead))
        sums = self._left[:shorter] + self._right[:shorter]
        pairs = sums.argmax(axis=1)
        influence = sums[np.arange(shorter), pairs]
        scores = _score(self._back[:shorter] + self._ahead[:shorter] + 1, influence, self._epsilon)
        best = int(np.argmin(scores))
        sigma = min(float(scores[best]), self._nodes.trivial / self._epsilon)
        return sigma, best, best, float(influence[best]), int(pairs[best])

    def _least(self, chosen: list[int], sigma: float) -> tuple[float, int, int] | None:
        """The quilt of least score with the influence over the chosen pairs alone, if it is below ``sigma``."""
        # an end that, with the best other end, is unusable or too dear for one pair is in no better quilt
        lefts, rights = self._left[:, chosen], self._right[:, chosen]
        kept = (lefts + rights.min(axis=0) < self._epsilon).all(axis=1)
        also = (rights + lefts.min(axis=0) < self._epsilon).all(axis=1)
        if np.isfinite(sigma):
            dear = self._back[:, np.newaxis] + 0.5 + sigma * lefts
            other = self._ahead[:, np.newaxis] + 0.5 + sigma * rights
            most = sigma * self._epsilon * (1 + 1e-12)
            kept &= (dear + other.min(axis=0) <= most).all(axis=1)
            also &= (other + dear.min(axis=0) <= most).all(axis=1)
        back, ahead = np.flatnonzero(kept), np.flatnonzero(also)
        best: tuple[float, int, int] | None = None
        if not len(back) or not len(ahead):
            return None
        rows = max(1, 2**20 // len(ahead))
        for start in range(0, len(back), rows):
            part = back[start : start + rows]
            influence = np.full((len(part), len(ahead)), -np.inf)
            for pair in chosen:
                np.maximum(influence, np.add.outer(self._left[part, pair], self._right[ahead, pair]), out=influence)
            scores = _score(np.add.outer(self._back[part], self._ahead[ahead]) + 1, influence, self._epsilon)
            place = int(np.argmin(scores))
            i, j = divmod(place, len(ahead))
            if scores[i, j] < (sigma if best is None else best[0]):
                best = float(scores[i, j]), int(part[i]), int(ahead[j])
        return best
