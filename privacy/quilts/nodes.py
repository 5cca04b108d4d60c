"""The slots of a window for a search of quilts: what each of their quilts tells about each secret pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..models.couplings import UNIT, FloatArray
from ..models.markov_chain import MarkovChain
from ..models.periodic import BoolArray, reachable
from .influence import any_start, has_stalled, longest, stationary_left, stationary_odds
from .powers import TINY, IntArray, PowerTables

#: Stands for an infinite influence: large enough for every target, small enough to add and to multiply.
WALL = 1e150


@dataclass(frozen=True, eq=False, slots=True)
class Nodes:
    """Slots of a window, and what each of their quilts tells about each secret pair."""

    right: FloatArray  # influence on the slot b later, shape (lags, pairs)
    # left tables, shape (lags, pairs) each, by the set of states that the earlier slot may be in; the first is for all
    # states
    lefts: tuple[FloatArray, ...]
    starts: FloatArray  # term of the slot, shape (nodes, pairs); -infinite where the pair is no secret pair
    # slots of the window before each node, shape (nodes,); infinite where there is no end within reach
    before: FloatArray
    after: FloatArray  # the same behind it
    trivial: float  # slots inside the empty quilt at most; infinite for a stream
    supports: IntArray  # which left table is for the j-th slot, from 0; empty where it is the first for all

    @property
    def lags(self) -> int:
        """Number of lags of the tables."""
        return len(self.right)

    def left_of(self, node: int) -> FloatArray:
        """Left influence of one node for each lag it has, shape (lags, pairs)."""
        reach = int(min(self.before[node], self.lags))
        table = self.lefts[0][:reach]
        if len(self.supports) and np.isfinite(self.before[node]):
            seen = self.supports[node - 1 :: -1][:reach] if node else self.supports[:0]
            for which in set(seen.tolist()) - {0}:
                table = np.where((seen == which)[:, np.newaxis], self.lefts[which][:reach], table)
        return table + self.starts[node]

    def right_of(self, node: int) -> FloatArray:
        """Right influence of one node for each lag it has, shape (lags, pairs)."""
        return self.right[: int(min(self.after[node], self.lags))]

    def left_at(self, nodes: IntArray, lag: int, pairs: IntArray | None = None) -> FloatArray:
        """Left influence at one lag: of some nodes, shape (nodes, pairs), or of as many nodes as pairs, shape (nodes,).

        Nodes without a slot that far before them get what must not be used.
        """
        terms = self.starts[nodes] if pairs is None else self.starts[nodes, pairs]
        everywhere = self.lefts[0][lag - 1] if pairs is None else self.lefts[0][lag - 1, pairs]
        if not len(self.supports):
            return everywhere + terms
        ends = nodes - lag
        inside = (ends >= 0) & np.isfinite(self.before[nodes])
        which = np.where(inside, self.supports[np.clip(ends, 0, len(self.supports) - 1)], 0)
        stacked = np.stack([table[lag - 1] for table in self.lefts])
        return (stacked[which] if pairs is None else stacked[which, pairs]) + terms


class ChainNodes:
    """Makes the nodes of one chain, as far as a search asks for them.

    Attributes:
        tables: The ratios of the powers of its matrix.
        is_settled: Whether the tables ended because no influence will fall any more.
    """

    def __init__(self, chain: MarkovChain, length: int | None, *, any_initial: bool, literal: bool) -> None:
        """Take a chain and the slots of a window, None for a stream without end.

        Literally, the influence of an earlier slot counts states that are impossible there, as printed in [SWC17].
        """
        self.tables = PowerTables(chain.transition)
        self._chain, self._length, self._literal = chain, length, literal
        self._kind: Literal["stationary", "every-slot", "any", "fixed"]
        if any_initial or chain.initial is not None:
            self._kind = "every-slot" if length is None else "any" if any_initial else "fixed"
        else:
            self._kind = "stationary"
        self._odds = stationary_odds(chain, self.tables) if self._kind == "stationary" else None
        self._most = longest(chain.states)
        self._reach = self._most
        self._earlier = np.inf
        self.is_settled = False
        self._supported: dict[bytes, PowerTables] = {}
        self._made: tuple[tuple[int, int], tuple[FloatArray, FloatArray, FloatArray]] | None = None

    @property
    def states(self) -> int:
        """Number of states k of the chain."""
        return self._chain.states

    @property
    def is_homogeneous(self) -> bool:
        """Whether all slots far from the ends are alike, and none near an end is worse."""
        return self._kind in {"stationary", "every-slot"}

    def extend(self, lags: int) -> bool:
        """Go on to a number of lags; False if there will be no more of use."""
        while self.tables.lags < min(lags, self._most):
            # look back at equal distances only
            following = (self.tables.lags // 1024 + 1) * 1024
            self.tables.extend(min(lags, self._most, following))
            if self.tables.lags == following:
                self._look_back()
        return self.tables.lags < self._most

    def _look_back(self) -> None:
        """End the tables where they have stopped to fall."""
        lags = self.tables.lags
        last = np.concatenate([self.tables.right[-1], any_start(self.tables, lags - 1)[0]])
        finite = np.isfinite(last)
        largest = float(last.max(initial=0.0, where=finite))
        # a zero that is still there after k^2 steps stays
        self.is_settled = largest <= self.tables.margins[-1] * 8 and (
            bool(finite.all()) or lags >= self._chain.states**2
        )
        if self.is_settled or has_stalled(largest, self._earlier):
            self._most = lags
        self._earlier = largest

    @property
    def spread(self) -> float:
        """How far the start terms of the slots behind the lags can be from each other, over all starts."""
        if not self.tables.lags:
            return np.inf
        return float(any_start(self.tables, self.tables.lags - 1).max(initial=0.0))

    def narrow(self, reach: int) -> None:
        """From now on make nodes with at most so many lags, whatever there are: wider quilts are known to be worse."""
        self._reach = reach

    def between(self, before: float = np.inf, after: float = np.inf, first: int = 0) -> Nodes:
        """One slot that needs at least the noise of every slot with at most so many slots before and behind it.

        A slot nearer to an end may leave the end of a quilt away where there is no slot for it: fewer slots inside and
        no more influence. For a chain that is not stationary this holds for the slots behind the lags only, of which
        ``first`` is the index of the first.
        """
        right, left, start = self._everywhere
        if first:
            together = self._possible_from(first)[1][self.tables.rows, self.tables.columns]
            start = np.where(together, start, -np.inf)
            # the states that the first end of a quilt, or any slot behind it, may be in
            possible, _ = self._possible_from(max(0, first - len(right)))
            if not (self._literal or possible.all()):
                left = self._confined(possible, len(left))
        return Nodes(
            right=right,
            lefts=(left,),
            starts=start[np.newaxis],
            before=np.array([float(before)]),
            after=np.array([float(after)]),
            trivial=np.inf if self._length is None else float(self._length),
            supports=np.zeros(0, dtype=np.intp),
        )

    def window(self, length: int, count: int) -> Nodes:
        """The first so many slots of a window of a chain with a fixed or any start; it takes as many lags, less one."""
        right, left, _ = self._everywhere
        starts, reached = self._terms(count)
        lefts, supports = ((left,), np.zeros(0, np.intp)) if self._literal else self._by_support(left, reached)
        before = np.arange(count, dtype=np.float64)
        return Nodes(right, lefts, starts, before, length - 1 - before, float(length), supports)

    @property
    def _everywhere(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Right and left tables and start term that bound every slot, or every slot behind the lags."""
        tables, made_of = self.tables, (self.tables.lags, self._reach)
        if self._made is None or self._made[0] != made_of:
            start = np.zeros(len(tables.rows))
            if self._kind == "every-slot":
                left = any_start(tables)
            elif self._odds is not None:
                left = stationary_left(tables, self._odds)
            else:
                left, start = tables.left, self._latest()
            self._made = made_of, (_walled(tables.right[: self._reach]), _walled(left[: self._reach]), start)
        return self._made[1]

    def _latest(self) -> FloatArray:
        """M_n[x, x'] at the last lag n: the start term of every slot behind slot n at most."""
        if not self.tables.lags:
            return np.zeros(len(self.tables.rows))
        last = self.tables.left[-1]
        mirrored = last[self.tables.opposite]
        return np.where(np.isneginf(last) | np.isneginf(mirrored), -np.inf, _walled(mirrored))

    def _terms(self, count: int) -> tuple[FloatArray, BoolArray]:
        """Start terms of the first slots, and which states are possible there, shapes (count, pairs), (count, k)."""
        tables, reached, initial = self.tables, self._reached(count), self._chain.initial
        if self._kind == "any" or initial is None:
            # M_{i-1}[x, x'] = left[i - 1][x', x]; the first slot has no slot before it
            terms = np.zeros((count, len(tables.rows)))
            np.minimum(tables.left[: count - 1, tables.opposite], WALL, out=terms[1:])
        else:
            terms = self._odds_of(initial, count, reached)
        terms[~(reached[:, tables.rows] & reached[:, tables.columns])] = -np.inf
        return terms, reached

    def _reached(self, count: int) -> BoolArray:
        """Which states are possible at each of the first slots, shape (count, k)."""
        initial = self._chain.initial
        everything = np.ones(self._chain.states, dtype=np.bool_)
        start = everything if self._kind == "any" or initial is None else initial > 0
        return reachable(start, self._chain.transition > 0, count)

    def _odds_of(self, initial: FloatArray, count: int, reached: BoolArray) -> FloatArray:
        """log(m_i(x') / m_i(x)), rounded up; a probability that underflows is tiny above and zero below."""
        marginals = np.empty((count, len(initial)))
        marginals[0] = initial
        for slot in range(1, count):
            marginals[slot] = marginals[slot - 1] @ self._chain.transition
        above = np.where(reached, np.maximum(marginals, TINY), 1.0)
        below = np.where(reached, np.where(marginals >= TINY, marginals, 0.0), 1.0)
        with np.errstate(divide="ignore"):
            odds = np.log(above)[:, self.tables.columns]
            odds -= np.log(below)[:, self.tables.rows]
        np.minimum(odds, WALL, out=odds)
        largest = max(float(odds.max(initial=0.0, where=odds < WALL)), -float(odds.min()))
        margins = UNIT * ((np.arange(count) + 8) * (len(initial) + 4) + 8 * largest)
        odds += margins[:, np.newaxis]
        return odds

    def _possible_from(self, slot: int) -> tuple[BoolArray, BoolArray]:
        """What is possible at some slot from this index on: states, shape (k,), and pairs at once, shape (k, k)."""
        edges = self._chain.transition > 0
        now = self._reached(slot + 1)[-1]
        states, together, seen = now.copy(), np.logical_and.outer(now, now), set[bytes]()
        # the sets of possible states come back sooner or later
        while now.tobytes() not in seen:
            if len(seen) > 4096:
                return np.ones_like(states), np.ones_like(together)
            seen.add(now.tobytes())
            now = edges[now].any(axis=0)
            states |= now
            together |= np.logical_and.outer(now, now)
        return states, together

    def _confined(self, states: BoolArray, lags: int) -> FloatArray:
        """The left table where the slot before can be in some of the states only."""
        tables = self._supported.setdefault(states.tobytes(), PowerTables(self._chain.transition, states))
        tables.extend(lags)
        return _walled(tables.left[:lags])

    def _by_support(self, left: FloatArray, reached: BoolArray) -> tuple[tuple[FloatArray, ...], IntArray]:
        """Left tables for the sets of states that some slot is confined to, and which slot has which.

        Past the room there is, a slot keeps the table for all states, which is larger.
        """
        room = min(16, 2**25 // max(1, left.size) - 2)
        lefts, known = [left], dict[bytes, int]()
        supports = np.zeros(len(reached), dtype=np.intp)
        for slot in np.flatnonzero(~reached.all(axis=1)):
            key = reached[slot].tobytes()
            if key not in known and len(known) < room:
                known[key] = len(lefts)
                lefts.append(self._confined(reached[slot], len(left)))
            supports[slot] = known.get(key, 0)
        return tuple(lefts), supports if len(lefts) > 1 else supports[:0]


def _walled(table: FloatArray) -> FloatArray:
    walled = np.minimum(table, WALL)
    # a state that is never entered: no pair with it is looked at, so the safe side is taken
    walled[np.isneginf(table)] = WALL
    return walled
