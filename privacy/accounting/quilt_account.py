"""The account by Markov quilts, a bound beside the ledger's own.

loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ].

``docs/mathematics.md`` has the proof. The theorems of the sources are special cases or weaker ([SWC17] Theorem
4.4, [SC17] Theorems 3.1, 3.3, 3.6 and 3.7, [BHGKM] Theorem 6.2; see :mod:`.theorems`).

The sides of a slot are apart: the end of the quilt at lag a costs the density of the a - 1 slots between, plus the
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
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief, ChainError
from ..models.couplings import FloatArray
from ..models.memory import remembered
from ..quilts.influence import Quilt, SidedInfluence, sided_influence
from .charges import Density, Line, Span, outward
from .schedules import Schedule, extended

IntArray = npt.NDArray[np.intp]

_AT_ONCE = 2**18  # costs that are computed at once, 2 MB, which stay in the processor's cache
_SAMPLES, _GROWTH = 24, 4


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

    @property
    def is_idle(self) -> bool:
        """Whether there is no secret pair, so that nothing is lost."""
        return not self.left.size

    def within(self, lags: int) -> Quilts:
        """Those whose ends are no further than so many lags."""
        return replace(self, left=self.left[:, :lags], right=self.right[:, :lags])

    def ceilings(self, density: float) -> FloatArray:
        """Loss of each pair in an endless stream of a density, shape (pairs,)."""
        return _stream(self.left, density) + _stream(self.right, density) + density

    def ceiling(self, density: float) -> float:
        """A bound on the loss of every slot that sees no density above this within the reach, rounded outward."""
        return outward(float(self.ceilings(density).max(initial=0.0)))


@remembered
def quilts_of(belief: Belief) -> Quilts:
    """The quilts of a belief; under mixing bounds those of Lemma 4.8."""
    tables = sided_influence(belief)
    rows = _undominated(tables.left, tables.right)
    return Quilts(tables, rows, tables.left[rows], tables.right[rows])


def _stream(table: FloatArray, density: float) -> FloatArray:
    """Cheapest end of a quilt within a run that is longer than the reach, shape (pairs,)."""
    return (np.arange(table.shape[1]) * density + table).min(axis=1, initial=np.inf)


def _undominated(left: FloatArray, right: FloatArray) -> IntArray:
    """Rows that no other row is at least as large as at every lag of both sides, in order; of equal rows one.

    Dropping the others changes no loss: each cost is a minimum over ends of a mass plus the influence.
    """
    rows, lags = left.shape
    if rows <= 1:
        return np.arange(rows)
    tables = np.concatenate([left, right], axis=1)
    picked = np.unique(np.geomspace(1, lags, min(_SAMPLES, lags)).astype(np.intp)) - 1
    sample = np.ascontiguousarray(tables[:, np.concatenate([picked, picked + lags])])
    order = np.argsort(-np.where(np.isfinite(sample), sample, 1e9).sum(axis=1), kind="stable")
    kept: list[int] = []
    while len(order):
        first, order = int(order[0]), order[1:]
        kept.append(first)
        below = np.flatnonzero((sample[order] <= sample[first]).all(axis=1))
        order = np.delete(order, below[(tables[order[below]] <= tables[first]).all(axis=1)])
    return np.sort(np.array(kept, dtype=np.intp))


@dataclass(frozen=True, slots=True)
class _Edge:
    """What lies on one side of a run."""

    density: float  # of the run
    runs: tuple[tuple[int, float], ...]  # length and density of the runs in sight, outward
    total: float  # sum of the density over everything on this side; infinite where it has no end

    def costs(self, table: FloatArray, offsets: IntArray) -> FloatArray:
        """Cost of the end at each lag for slots so far within the run, shape (pairs, slots, lags)."""
        lags = np.arange(table.shape[1])
        places = [0, *accumulate(length for length, _ in self.runs)]
        masses = [0.0, *accumulate(length * density for length, density in self.runs)]
        beyond = np.interp(lags, places, masses)
        inside = np.minimum(lags, offsets[:, None])
        return inside * self.density + beyond[lags - inside] + table[:, None]

    def cheapest(self, table: FloatArray, offsets: IntArray) -> FloatArray:
        """Cost of the cheapest end, or of none, shape (pairs, slots)."""
        seen, places = np.unique(np.minimum(offsets, table.shape[1]), return_inverse=True)
        parts = np.array_split(seen, min(len(seen), math.ceil(table.size * len(seen) / _AT_ONCE)))
        ends = np.concatenate([self.costs(table, part).min(axis=2) for part in parts], axis=1)
        return np.minimum(ends[:, places], self.total + offsets * self.density)

    def end(self, row: FloatArray, offset: int) -> int | None:
        """Lag of the cheapest end for one pair; none where no end is as cheap."""
        costs = self.costs(row[None], np.array([offset]))[0, 0]
        first = int(np.argmin(costs))
        return first + 1 if costs[first] < offset * self.density + self.total else None


def _worst_of(quilts: Quilts, length: int, left: _Edge, right: _Edge) -> WorstQuilt:
    """What decides the loss of a run, its slot counted from the run's start."""
    reach, density = quilts.reach, left.density
    limits = quilts.ceilings(max([density, *(one for _, one in (*left.runs, *right.runs))]))
    offsets = np.concatenate([np.arange(min(length, reach)), np.arange(max(reach, length - reach), length)])
    if length > 2 * reach:
        # where "no end" stops being the cheaper choice, for each pair
        with np.errstate(invalid="ignore", divide="ignore"):
            kinks = (_stream(quilts.left, density) - left.total) / density if density else np.zeros(0)
            other = length - 1 - (_stream(quilts.right, density) - right.total) / density if density else np.zeros(0)
        inner = np.clip(np.nan_to_num(np.concatenate([kinks, other]), nan=reach), reach, length - 1 - reach)
        offsets = np.unique(np.concatenate([offsets, np.floor(inner), np.ceil(inner), [length // 2]]).astype(np.intp))

    def losses(behind: FloatArray, ahead: FloatArray) -> FloatArray:
        return left.cheapest(behind, offsets) + right.cheapest(ahead, length - 1 - offsets) + density

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
        done, size = done + size, _GROWTH * size
    ends = left.end(quilts.left[row], offset), right.end(quilts.right[row], length - 1 - offset)
    return WorstQuilt(best, offset, int(quilts.rows[row]), Quilt(*ends))


def _worst(quilts: Quilts, line: Line, repeats: int | None = None, stop: int | None = None) -> WorstQuilt:
    """The worst slot before a slot, the earliest among equals; a line that repeats itself from a slot on has no end."""
    if quilts.is_idle or not line.count:
        return WorstQuilt()
    slots, reach = np.array(line.slots), quilts.reach
    masses = list(
        accumulate(
            (float(level) * (b - a) for level, (a, b) in zip(line.levels, pairwise(line.slots), strict=True)),
            initial=0.0,
        )
    )
    worst, seen = WorstQuilt(), dict[object, WorstQuilt]()
    for index, density in enumerate(line.shown):
        start, end = line.slots[index : index + 2]
        if stop is not None and start >= stop:
            break
        low = max(0, int(np.searchsorted(slots, start - reach, side="right")) - 1)
        high = min(line.count, int(np.searchsorted(slots, end + reach)))
        runs = [
            (b - a, one)
            for a, b, one in zip(line.slots[low:high], line.slots[low + 1 :], line.shown[low:high], strict=False)
        ]
        here = index - low
        open_left, open_right = repeats is not None and start >= repeats, repeats is not None
        left = _Edge(density, tuple(runs[:here][::-1]), math.inf if open_left else masses[index])
        right = _Edge(density, tuple(runs[here + 1 :]), math.inf if open_right else masses[-1] - masses[index + 1])
        if quilts.ceilings(max(one for _, one in runs)).max() <= worst.loss:
            continue
        key = end - start, left, right
        if key not in seen:
            seen[key] = _worst_of(quilts, *key)
        if seen[key].loss > worst.loss:
            worst = replace(seen[key], slot=start + (seen[key].slot or 0))
    return replace(worst, loss=outward(worst.loss))


def worst_by_quilts(belief: Belief, charges: Iterable[Span]) -> WorstQuilt:
    """The slot, pair and quilt that decide what charges lose together, the loss rounded outward."""
    line = Line.of(Density().with_spans(charges))
    # an end outside of all charges is no cheaper than none
    return _worst(quilts_of(belief).within(line.slots[-1] - line.slots[0] if line.count else 1), line)


def loss_by_quilts(belief: Belief, schedules: Sequence[Schedule]) -> float:
    """What schedules, endless ones included, lose together; epsilon, rounded outward.

    An endless schedule is followed until what a slot sees repeats, and one period stands for all that come.
    """
    quilts = quilts_of(belief)
    density, begin, period = extended(Density(), schedules)
    line = Line.of(density)
    if begin is None:
        return _worst(quilts.within(line.slots[-1] - line.slots[0] if line.count else 1), line).loss
    mass = float(density.before(begin + period) - density.before(begin))
    enough = float(quilts.ceilings(max(line.shown)).max(initial=0.0))
    if math.isinf(enough):
        return math.inf
    # behind more slots an end is no cheaper than the best one of an endless stream of the largest density
    quilts = quilts.within((math.ceil(enough / mass) + 1) * period + begin - line.slots[0])
    times = quilts.reach // period + 1
    before, repeated = line.between(None, begin), line.between(begin, begin + period)
    steady = begin + times * period
    line = before.followed_by(repeated, 2 * times + 1)
    cuts = frozenset({steady, steady + period})
    return _worst(quilts, Line.of(line.density(), cuts), steady, steady + period).loss


def density_by_quilts(belief: Belief, epsilon: float) -> float:
    """The largest density whose endless stream loses at most epsilon: the pairwise calibration.

    It is the min over pairs of the max over quilts of (epsilon - influence) / card, lowered until the ceiling agrees.
    Per pair the loss is concave in the density (a minimum of lines, one per quilt), so the line of the best quilt at
    one density meets epsilon at or below the true root: Dinkelbach's iteration climbs to it from below, for all pairs
    at once.

    Returns:
        A density; infinite where there is no secret pair.

    Raises:
        ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix.
    """
    quilts = quilts_of(belief)
    if not len(quilts.left):
        return np.inf
    rows, between = np.arange(len(quilts.left)), np.arange(quilts.reach)
    least = quilts.left[:, -1] + quilts.right[:, -1]
    if float(least.max()) >= epsilon:
        raise ChainError(
            f"no quilt within {quilts.reach} slots has an influence below epsilon {epsilon!r}; "
            f"the least is {float(least.max())!r}: "
            "use a belief that mixes (irreducible, aperiodic, rare bins merged), or a larger epsilon"
        )
    density = np.zeros(len(rows))
    while True:
        slopes = np.multiply.outer(density, between)
        back, ahead = np.argmin(slopes + quilts.left, axis=1), np.argmin(slopes + quilts.right, axis=1)
        raised = (epsilon - quilts.left[rows, back] - quilts.right[rows, ahead]) / (back + ahead + 1)
        if not np.any(raised > density):
            break
        density = np.maximum(density, raised)
    found, lower = float(density.min()), 2.0**-52
    while quilts.ceiling(found) > epsilon:
        found, lower = found * (1 - lower), 2 * lower
    return found


def quilt_of_stream(belief: Belief, density: float) -> tuple[Quilt, float]:
    """The best quilt of the pair that loses most on an endless stream of a density, and its influence.

    For a belief of which ``density_by_quilts`` is finite.
    """
    quilts = quilts_of(belief)
    row, inside = int(np.argmax(quilts.ceilings(density))), density * np.arange(quilts.reach)
    left, right = quilts.left[row], quilts.right[row]
    back, ahead = int(np.argmin(inside + left)), int(np.argmin(inside + right))
    return Quilt(back + 1, ahead + 1), float(left[back] + right[ahead])
