"""The account by Markov quilts, a bound beside the ledger's own.

loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ].

``docs/mathematics.md`` has the proof. The theorems of the sources are special cases or weaker (:mod:`.theorems`). The
sides of a slot are apart: the end of the quilt at lag a costs the density of the a - 1 slots between, plus the
influence at lag a; no end costs all the density on this side. Slots before the first charge and behind the last lose no
more than those. In a run of equal density the slots further than the reach from both edges see either an end within the
run, the same for all, or none: the sum of both sides is concave and piecewise linear there, so it is largest at a kink.

No slot loses more than an endless stream of the largest density in sight (``ceilings``, one number per pair), so pairs
are taken by falling ceiling, and the largest influence over the pairs that are left makes one imaginary pair: only
slots where it loses more than the worst so far are priced by pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.couplings import FloatArray
from ..models.memory import remembered
from ..quilts.influence import Quilt, SidedInfluence, sided_influence
from .charges import Density, Span, outward
from .schedules import Schedule, extended

IntArray = npt.NDArray[np.intp]

Beyond: TypeAlias = tuple[tuple[tuple[int, float], ...], float]
"""Length and density of the runs in sight on one side of a run, outward, and the sum of all density there is."""


@dataclass(frozen=True, slots=True)
class WorstQuilt:
    """The slot, pair (row of the influence tables) and quilt that decide a loss; no slot where there is no loss."""

    loss: float = 0.0
    slot: int | None = None
    pair: int | None = None
    quilt: Quilt | None = None


@dataclass(frozen=True, eq=False)
class Quilts:
    """The influence tables of a belief, and the pairs of them that can decide."""

    tables: SidedInfluence
    rows: IntArray  # of the tables
    left: FloatArray  # influence of the slot at each lag, shape (pairs, lags)
    right: FloatArray

    @property
    def reach(self) -> int:
        """Lags of the tables."""
        return self.left.shape[1]

    def ceilings(self, density: float) -> FloatArray:
        """Loss of each pair in an endless stream of a density, shape (pairs,)."""
        return _stream(self.left, density) + _stream(self.right, density) + density

    def ceiling(self, density: float) -> float:
        """A bound on the loss of every slot that sees no density above this within the reach, rounded outward."""
        return outward(float(self.ceilings(density).max(initial=0.0)))


@remembered
def quilts_of(belief: Belief) -> Quilts:
    """The quilts of a belief, under mixing bounds those of Lemma 4.8, of pairs that no other one is nowhere below."""
    tables = sided_influence(belief)
    both, lags = np.concatenate([tables.left, tables.right], axis=1), tables.reach
    picked = np.unique(np.geomspace(1, max(lags, 1), min(24, lags)).astype(np.intp)) - 1
    sample = np.ascontiguousarray(both[:, np.concatenate([picked, picked + lags])])
    order, kept = np.argsort(-np.where(np.isfinite(sample), sample, 1e9).sum(axis=1), kind="stable"), list[int]()
    while len(order):
        first, order = int(order[0]), order[1:]
        kept.append(first)
        below = np.flatnonzero((sample[order] <= sample[first]).all(axis=1))
        order = np.delete(order, below[(both[order[below]] <= both[first]).all(axis=1)])
    rows = np.sort(np.array(kept, dtype=np.intp))
    return Quilts(tables, rows, tables.left[rows], tables.right[rows])


def _stream(table: FloatArray, density: float) -> FloatArray:
    """Cheapest end of a quilt within a run that is longer than the reach, shape (pairs,)."""
    return (np.arange(table.shape[1]) * density + table).min(axis=1, initial=np.inf)


def _costs(table: FloatArray, offsets: IntArray, density: float, beyond: Beyond) -> FloatArray:
    """Cost of the end at each lag for slots so far within a run, and of none last, shape (pairs, slots, lags + 1)."""
    runs, total = beyond
    lags = np.arange(table.shape[1])
    places = [0, *accumulate(length for length, _ in runs)]
    masses = [0.0, *accumulate(length * level for length, level in runs)]
    inside = np.minimum(lags, offsets[:, None])
    ends: FloatArray = inside * density + np.interp(lags, places, masses)[lags - inside] + table[:, None]
    none: FloatArray = np.empty((*ends.shape[:2], 1))
    none[:] = (total + offsets * density)[:, None]
    return np.concatenate([ends, none], axis=2)


def _cheapest(table: FloatArray, offsets: IntArray, density: float, beyond: Beyond) -> FloatArray:
    """Cost of the cheapest end, or of none, shape (pairs, slots); so many at once as stay in a processor's cache."""
    parts = np.array_split(offsets, min(len(offsets), math.ceil(table.size * len(offsets) / 2**18)))
    return np.concatenate([_costs(table, part, density, beyond).min(axis=2) for part in parts], axis=1)


def _worst_of(quilts: Quilts, length: int, density: float, left: Beyond, right: Beyond) -> WorstQuilt:
    """What decides the loss of a run, its slot counted from the run's start."""
    reach = quilts.reach
    limits = quilts.ceilings(max([density, *(one for _, one in (*left[0], *right[0]))]))
    offsets = np.concatenate([np.arange(min(length, reach)), np.arange(max(reach, length - reach), length)])
    if length > 2 * reach:
        # where "no end" stops being the cheaper choice, for each pair
        with np.errstate(invalid="ignore", divide="ignore"):
            kinks = (_stream(quilts.left, density) - left[1]) / density if density else np.zeros(0)
            other = length - 1 - (_stream(quilts.right, density) - right[1]) / density if density else np.zeros(0)
        inner = np.clip(np.nan_to_num(np.concatenate([kinks, other]), nan=reach), reach, length - 1 - reach)
        offsets = np.unique(np.concatenate([offsets, np.floor(inner), np.ceil(inner), [length // 2]]).astype(np.intp))

    def losses(behind: FloatArray, ahead: FloatArray) -> FloatArray:
        both = _cheapest(behind, offsets, density, left), _cheapest(ahead, length - 1 - offsets, density, right)
        return both[0] + both[1] + density

    best, offset, row = -1.0, 0, 0
    order, size, done = np.argsort(-limits, kind="stable"), 1, 0
    while len(rest := order[done:]) and len(rest := rest[limits[rest] > best]):
        if done:
            most = losses(*(side[rest].max(axis=0, keepdims=True) for side in (quilts.left, quilts.right)))[0]
            offsets = offsets[most > best]
            if not len(offsets):
                break
        chunk = rest[:size]
        found = losses(quilts.left[chunk], quilts.right[chunk])
        at, column = divmod(int(np.argmax(found)), len(offsets))
        if found[at, column] > best:
            best, offset, row = float(found[at, column]), int(offsets[column]), int(chunk[at])
        done, size = done + size, 4 * size
    sides = (quilts.left[[row]], offset, left), (quilts.right[[row]], length - 1 - offset, right)
    ends = (int(_costs(one, np.array([at]), density, beyond)[0, 0].argmin()) for one, at, beyond in sides)
    return WorstQuilt(best, offset, int(quilts.rows[row]), Quilt(*(end + 1 if end < reach else None for end in ends)))


def _worst(quilts: Quilts, line: Density, repeats: int | None = None, stop: int | None = None) -> WorstQuilt:
    """The worst slot before a slot, the earliest among equals; a line that repeats itself from a slot on has no end."""
    if not quilts.left.size or not line.count:
        return WorstQuilt()
    # an end outside of all charges is no cheaper than none
    reach = min(quilts.reach, line.slots[-1] - line.slots[0]) if repeats is None else quilts.reach
    quilts = replace(quilts, left=quilts.left[:, :reach], right=quilts.right[:, :reach])
    slots, lengths = np.array(line.slots), np.diff(line.slots).tolist()
    masses = [0.0, *accumulate(float(level) * length for level, length in zip(line.levels, lengths, strict=True))]
    worst, seen = WorstQuilt(), dict[object, WorstQuilt]()
    runs = list(zip(lengths, line.shown, strict=True))
    for index, (start, (length, density)) in enumerate(zip(line.slots, runs, strict=False)):
        if stop is not None and start >= stop:
            break
        low = max(0, int(np.searchsorted(slots, start - reach, side="right")) - 1)
        high = min(line.count, int(np.searchsorted(slots, start + length + reach)))
        if quilts.ceilings(max(line.shown[low:high])).max() <= worst.loss:
            continue
        before = math.inf if repeats is not None and start >= repeats else masses[index]
        after = math.inf if repeats is not None else masses[-1] - masses[index + 1]
        key = length, density, (tuple(runs[low:index][::-1]), before), (tuple(runs[index + 1 : high]), after)
        if key not in seen:
            seen[key] = _worst_of(quilts, *key)
        if seen[key].loss > worst.loss:
            worst = replace(seen[key], slot=start + (seen[key].slot or 0))
    return replace(worst, loss=outward(worst.loss))


def worst_by_quilts(belief: Belief, charges: Iterable[Span]) -> WorstQuilt:
    """The slot, pair and quilt that decide what charges lose together, the loss rounded outward."""
    return _worst(quilts_of(belief), Density().with_spans(charges))


def loss_by_quilts(belief: Belief, schedules: Sequence[Schedule]) -> float:
    """What schedules lose together, rounded outward; an endless one is followed until what a slot sees repeats."""
    quilts, (line, begin, period) = quilts_of(belief), extended(Density(), schedules)
    if begin is None:
        return _worst(quilts, line).loss
    enough = float(quilts.ceilings(max(line.shown)).max(initial=0.0))
    if math.isinf(enough):
        return math.inf
    # behind more slots an end is no cheaper than the best one of an endless stream of the largest density
    repeated = line.between(begin, begin + period)
    reach = (math.ceil(enough / float(repeated.mass)) + 1) * period + begin - line.slots[0]
    quilts = replace(quilts, left=quilts.left[:, :reach], right=quilts.right[:, :reach])
    times = quilts.reach // period + 1
    steady = begin + times * period
    line = line.between(None, begin).followed_by(repeated, 2 * times + 1)
    return _worst(quilts, line.with_cuts(frozenset({steady, steady + period})), steady, steady + period).loss
