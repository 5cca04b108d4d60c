"""The forward-backward account of any schedule, finite or without an end, by sweeps over runs of equal density.

With d(t) the loss per slot and P_t the kernel out of slot t, for every two states x, x' possible at slot t

    F_t[x,x'] = d(t) + L(P_t(x,.), P_t(x',.); F_{t+1}),   0 behind the last charged slot,

B_t alike against the clock, and the loss at slot t is F_t + B_t - d(t), the largest over x, x' and all slots between
the first and the last charge, those of density 0 included (``docs/ledger-mathematics.md`` has the proof). Each F_t is
bounded from above by the least of what follows; minima of bounds are bounds, and the map is monotone.

*Couplings that are held.* Any coupling of two rows proves a bound on L for every matrix ahead. Those that are optimal
for the endless stream that loses 1 are computed once for a belief and hold for every schedule.

*Blocks.* F_t <= D(t..t+m-1) + L(P^m; F_{t+m}) for the density D of m slots together: the middle slots enter only
through the least of their values. L is at most log((1 + p e) / (1 + q e)) with e = exp(max F) - 1 for one of the
threshold sets of the two rows, of probability p and q: the corners of their hull over all pairs are all that matters.

*Influence.* A block reveals at most the influence of its lag, whatever lies ahead: L <= log max p/q [SWC17].

*Settled runs.* In a run of equal density d, a matrix V with d + L(P; V) <= V that is not below the values ahead bounds
all slots further on in the run: by induction over the slots. A proof of V by blocks of up to m slots asks that the
largest entries of the last m slots are not above that of V, and that they are no denser. So a run that settles too
slowly to be followed has a bound all the same: the V of its density where its slots come from below, and where they
fall, as behind a denser run, their own last matrix, once its proof is found.

*Schedules without an end.* From some slot on their density is periodic. Sweep one period back from nothing charged
ahead, again and again, until the state changes little, and raise it: if one more period takes the raised state to a
state that is nowhere above it, it bounds what lies ahead of every period, for every horizon, by induction. The same
against the clock bounds what lies behind a period, once what was there before lies below it. So the slots up to such a
period, and those of one period between two such states, are all slots there are.

*Events.* A secret of n slots in a row, s to t, loses at most the sum of their d, F_t - d(t) and B_s - d(s)
(:mod:`.forward_backward` has the proof, for the kernels of each slot). F - d is at most the largest of any slot, and so
is B - d, of the same member where one belief holds all along; and of all n slots in a row some have the largest sum.
Slots before the first and behind the last charge need not be looked at: B of one behind them all is at most B of the
last one charged, and so no more than what is counted for the n slots that begin there; F alike.

*Unsettled runs.* Where no V is found, F grows by no more than d a slot behind those that are followed.

Values near V are raised to it, so that what a run reveals depends on the densities alone, and does not fall when one of
them rises but by what V was raised. Every result is rounded up.

*The types*, from a belief to a loss::

    BeliefHistory     beliefs one after the other
      Member          one chain, or class of one number, of a belief
        Way           one direction of time of it: couplings held, Blocks; Leap for Blocks of total variations
        Sweeper       what runs come to along a Way
          Course      a run of one density from the State ahead of it -> Tails of its slots, State behind it
          Level       V, where a Course settles
    LossSweep         all runs of an account from both sides: Tails ahead + Tails behind + d -> Worst

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> week = Density().with_spans([(0, 48, 0.05), (24, 72, 0.05)])
>>> worst = loss_of(MarkovChain([[0.9, 0.1], [0.4, 0.6]]), week)
>>> round(worst.loss, 4), worst.slot
(0.3119, 35)
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.classes import everywhere, from_any_start
from ..models.directions import (
    STEPS,
    AnyStart,
    ByCouplings,
    Direction,
    FloatArray,
    Kernel,
    MixingCurve,
    NotContracting,
    ratios_of,
    variation,
)
from ..models.markov_chain import ChainError
from ..quilts.influence import sided_influence
from ..validation import float_above
from .charges import Density
from .forward_backward import calibrated, directions_of
from .schedules import Schedule, separated

#: Relative and absolute rounding of a few operations.
_UP = 1.0 + 2.0**-49
_ADD = 2.0**-50

#: By how much a sum that goes on over one slot is off at most, relative to all of it.
_SUM = 2.0**-52

#: States up to which couplings are held.
_COUPLED_STATES = 12

#: Entries of a matrix above which only blocks are used: their exponentials overflow.
_MOST = 500.0

#: Slots of a run that are swept at most, and of one without end whose density settles nowhere.
_LONGEST = 4096
_SHORT = 256

#: Iterations towards the level of a density at most, and of those whose changes are not taken as slow.
_MOST_TURNS = 4096
_FAST_TURNS = 256

#: As many times the longest block that a settled run needs are swept, where that is more.
_SETTLING = 4

#: A loss that no budget allows: it is not followed.
_USELESS = 450.0

#: A change from slot to slot above which a run is far from settled, relative.
_MOVING = 2.0**-8

#: By how much the matrix of a settled run is raised; the first that is proved counts.
_RAISES = (2.0**-16, 2.0**-12, 2.0**-8, 2.0**-4)
_STILL = 2.0**-22
_FLOOR = 2.0**-30

#: Numbers that a sweep remembers of runs at their beginning, some 10 MB, and lengths of each run.
_REMEMBERED = 2**20
_LENGTHS = 64

#: Total variation of a block of many states below which it counts where many slots are followed at once: blocks above
#: it would make them fewer, and lower the loss of short windows alone, by a tenth at most.
_INFORMATIVE = 0.8

#: Slots from which on it pays to follow that many at once.
_LEAST_STRIDE = 6

#: Slots of a run for which there is room at first.
_CHUNK = 64

#: Slots that stand for a run without end.
_FAR = 2**40

#: Periods that are swept at most until the state repeats.
_MOST_PERIODS = 512

#: By how much a state that a period repeats is raised; the first that is proved counts.
_STREAM_RAISES = (2.0**-17, 2.0**-12, 2.0**-8, 2.0**-4)

#: Times that a raised state is brought in line with what a period makes of it.
_MOST_TRIES = 4

#: Where runs begin, and at last where the last one ends; and their densities.
Line: TypeAlias = tuple[list[int], list[float]]


@dataclass(frozen=True, eq=False, slots=True)
class Leap:
    """Slots that are followed at once, and the blocks of each that bound anything."""

    slots: npt.NDArray[np.intp]  # 1, 2, ..., as many as the shortest block has
    ends: npt.NDArray[np.intp]  # the slot behind each block, from the first of the slots, shape (blocks, slots)
    # total variations, one number a block, shape (blocks, slots): a loop over whole rows is the faster one
    eta: FloatArray
    caps: FloatArray | None  # influence, alike; None where there is none


@dataclass(frozen=True, eq=False)
class Blocks:
    """Bounds on L over blocks of some slots, from the largest entry of the matrix ahead."""

    steps: npt.NDArray[np.intp]  # slots of each block, rising, the first is 1; shape (m,)
    above: FloatArray  # probabilities p of the corners, shape (m, corners)
    below: FloatArray  # probabilities q, alike
    odds: FloatArray  # C of an unknown start, shape (m,); infinite where there is none
    caps: FloatArray  # influence of each lag, whatever lies ahead, shape (m,); infinite where there is none

    @property
    def longest(self) -> int:
        """Slots of the longest block."""
        return int(self.steps[-1])

    def bound(self, ahead: FloatArray) -> FloatArray:
        """L of each block, rounded up; infinite where it has no bound.

        Args:
            ahead: Largest entry of the matrix behind each block, shape (m,); it may be infinite.
        """
        top = float(ahead.max())
        if top > _MOST:
            least = self._far(ahead)
        else:
            grown = np.expm1(ahead)[:, None]
            sets = np.log1p(self.above * grown)
            if self._is_signed:
                sets -= np.log1p(self.below * grown)
            least = np.minimum(np.minimum(sets.max(axis=1), ahead), self.caps)
            if self._has_odds:
                half, far = ahead / 2, np.minimum(self.odds, 1e300) / 2
                start = 2 * (np.logaddexp(0.0, half + far) - np.logaddexp(half, far))
                least = np.where(np.isinf(self.odds), least, np.minimum(least, start))
        return least * _UP + _slack(top)

    @cached_property
    def is_curve(self) -> bool:
        """Whether each block is one total variation."""
        return self.above.shape[1] == 1 and not self._is_signed and not self._has_odds

    @cached_property
    def stride(self) -> int:
        """Slots of the shortest informative block, for total variations; all but one slot if there is none."""
        return int(self.steps[self.informative].min(initial=self.longest))

    @cached_property
    def leap(self) -> Leap:
        """What is the same for every so many slots, for total variations."""
        useful, slots = self.informative, np.arange(1, self.stride + 1)
        ends = slots - 1 - self.steps[useful, None]
        eta, caps = (np.repeat(one[useful, None], len(slots), axis=1) for one in (self.above[:, 0], self.caps))
        return Leap(slots, ends, eta, caps if np.isfinite(caps).any() else None)

    @cached_property
    def informative(self) -> npt.NDArray[np.bool_]:
        """Which blocks have a bound below what lies ahead, for total variations."""
        return (self.above[:, 0] < 1) | np.isfinite(self.caps)

    @cached_property
    def _is_signed(self) -> bool:
        return bool(self.below.any())

    @cached_property
    def _has_odds(self) -> bool:
        return bool(np.isfinite(self.odds).any())

    def _far(self, ahead: FloatArray) -> FloatArray:
        """L of each block where exponentials overflow, not rounded."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            grown = np.minimum(np.expm1(ahead), 1e300)[:, None]
            corners = np.log1p(self.above * grown) - np.log1p(self.below * grown)
            unbounded = (ahead[:, None] > _MOST) & (self.above > 0)
            corners = np.where(unbounded, np.log(self.above) - np.log(self.below), corners)
            sets = corners.max(axis=1)
            half, far = ahead / 2, self.odds / 2
            start = 2 * (np.logaddexp(0.0, half + far) - np.logaddexp(half, far))
            start = np.where(np.isinf(ahead), self.odds, np.where(np.isinf(self.odds), np.inf, start))
        return np.minimum(np.minimum(np.minimum(sets, start), ahead), self.caps)


def _slack(top: float) -> float:
    """What is added to L for rounding: the logarithms that are subtracted are no larger than what lies ahead."""
    return _ADD * (1 + min(top, 1e3))


def _curve_bound(eta: FloatArray, grown: FloatArray, caps: FloatArray | None, mass: FloatArray) -> FloatArray:
    """The least over blocks of total variations of mass + L, L as `Blocks.bound` has it for one corner with q = 0.

    Without `_slack`, which is the same for all blocks. Of each block ``grown`` is exp(F) - 1 of the largest entry F
    behind it, ``mass`` the density of all but its first slot; all of shape (m, ...), the result of shape (...).
    """
    revealed = eta * grown
    np.log1p(revealed, out=revealed)
    if caps is not None:
        np.minimum(revealed, caps, out=revealed)
    revealed *= _UP
    revealed += mass
    return revealed.min(axis=0, initial=np.inf)


def _front(points: FloatArray) -> FloatArray:
    """The points with more p than any of as small a q, rising in q; points of shape (n, 2) as (q, p)."""
    ordered = points[np.lexsort((-points[:, 1], points[:, 0]))]
    highest = np.maximum.accumulate(ordered[:, 1])
    return ordered[np.concatenate([[True], ordered[1:, 1] > highest[:-1]])]


def _corners(points: FloatArray) -> FloatArray:
    """The corners of the hull towards large p and small q, rising in q; points of shape (n, 2) as (q, p)."""
    kept: list[tuple[float, float]] = []
    for q, p in _front(points):
        while len(kept) > 1 and _is_right(kept[-2], kept[-1], (q, p)):
            kept.pop()
        kept.append((float(q), float(p)))
    return np.array(kept)


def _is_right(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle point lies on or below the line of the others."""
    return (middle[0] - first[0]) * (last[1] - first[1]) >= (middle[1] - first[1]) * (last[0] - first[0])


def _thresholds(p: FloatArray, q: FloatArray, error: float) -> FloatArray:
    """(q(A), p(A)) of the sets where p/q is largest, for rows p and q of pairs, shape (pairs, k); shape (n, 2).

    Rounded outward, by the relative error of an entry.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(p > 0, p / q, -1.0)
    order = np.argsort(-ratio, axis=1, kind="stable")
    above = np.take_along_axis(p, order, axis=1).cumsum(axis=1)
    below = np.take_along_axis(q, order, axis=1).cumsum(axis=1)
    above = np.minimum(1.0, above * (1 + error))
    # nothing is reached where p is 0: those sets are never the largest
    below = np.maximum(0.0, below * (1 - error))
    return np.stack([below.ravel(), above.ravel()], axis=1)


def _error(states: int, steps: int, rounding: float) -> float:
    """Relative error of the entries of a product of kernels: sums of numbers that are not negative."""
    return steps * ((states + 2) * 2.0**-52 + rounding) + states * 2.0**-52


def blocks_of(direction: Direction) -> Blocks:
    """The blocks of one direction of time."""
    odds: Mapping[int, float] = {}
    if isinstance(direction, MixingCurve):
        # one slot ahead may be all that is known: where a belief changes
        eta = {1: 1.0, **dict(direction.eta)}
        steps, corners = list(eta), [np.array([[0.0, one]]) for one in eta.values()]
    elif isinstance(direction, AnyStart):
        odds = dict(direction.odds)
        steps = sorted({1, *odds})
        corners = [np.array([[0.0, 1.0]])] * len(steps)
    elif isinstance(direction, ByCouplings):
        corners = list[FloatArray]()
        if isinstance(direction, Kernel):
            steps = _useful(direction.transition)
            powers = (np.linalg.matrix_power(direction.kernels, m) for m in steps)
        else:
            steps, powers = [*STEPS], direction.products(STEPS)
        for m, power in zip(steps, powers, strict=True):
            error = _error(direction.shape[-1], m, direction.rounding)
            fronts = [_front(_thresholds(p, q, error)) for p, q in direction.compared(power)]
            corners.append(_corners(np.concatenate(fronts)))
    else:
        raise TypeError(f"no blocks are known of {type(direction).__name__}")
    width = max(len(one) for one in corners)
    full = np.stack([np.pad(one, ((0, width - len(one)), (0, 0)), "edge") for one in corners])
    return Blocks(
        np.array(steps, dtype=np.intp),
        full[:, :, 1],
        full[:, :, 0],
        np.array([odds.get(m, np.inf) for m in steps]),
        np.full(len(steps), np.inf),
    )


def _useful(transition: FloatArray) -> list[int]:
    """Numbers of steps up to which rows differ by more than a thousandth."""
    steps: list[int] = [*STEPS]
    while steps[-1] < _LONGEST // 4:
        power = np.linalg.matrix_power(transition, steps[-1])
        if variation(power) < 1e-3:  # noqa: PLR2004 - see above
            break
        steps.append(steps[-1] * 3 // 2)
    return steps


@dataclass(frozen=True, eq=False)
class Held:
    """Couplings of all pairs of rows of a kernel, whatever lies ahead."""

    shared: FloatArray  # what they leave in place, over q, shape (pairs, k)
    moved: FloatArray  # what they move, over q, shape (pairs, k, k)
    pairs: tuple[npt.NDArray[np.intp], ...]  # the pairs of states, as two index arrays
    factor: float  # rounding of theta, outward

    @classmethod
    def of(cls, direction: Kernel, matrix: FloatArray) -> Held:
        """Those that are optimal at a matrix."""
        rounding = (2 * len(matrix) + 24) * 2.0**-51 + 2 * direction.rounding
        return cls(*direction.shares(direction.couple(matrix)[0]), direction.pairs[1:], 1.0 + rounding)


@dataclass(frozen=True, eq=False)
class Way:
    """One direction of time of one member."""

    blocks: Blocks  # bounds over blocks
    held: Held | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its matrices: (k, k), or () for one number."""
        return () if self.held is None else self.held.moved.shape[1:]

    def beyond(self, ahead: FloatArray, over: FloatArray, mass: FloatArray) -> FloatArray:
        """A bound on what the slots ahead reveal: L of the next matrix, or the least over the blocks, rounded up.

        Args:
            ahead: The matrix of the next slot, or a number.
            over: Largest entries behind each block, shape (m,).
            mass: Density of each block but its first slot, shape (m,).
        """
        least, held = np.asarray(np.min(mass + self.blocks.bound(over))), self.held
        if held is None:
            return least
        largest = float(ahead.max())
        found = np.full(self.shape, float(least))
        if largest <= _MOST:
            full = ahead if ahead.ndim else np.full(self.shape, float(ahead))
            theta = (held.shared + np.einsum("nyz,yz->nz", held.moved, ratios_of(full))).max(axis=1) * held.factor
            found[held.pairs] = np.minimum(found[held.pairs], np.log(theta) * _UP + _ADD)
        diagonal = np.arange(len(found))
        found[diagonal, diagonal] = 0.0
        return found


@dataclass(frozen=True, eq=False)
class Member:
    """One member of a belief: its ways ahead and back in time."""

    forward: Way
    backward: Way

    @cached_property
    def sweepers(self) -> tuple[Sweeper, Sweeper]:
        """The sweep that goes back from what lies ahead, and the one that comes from behind."""
        return Sweeper(self.forward), Sweeper(self.backward)


@lru_cache(maxsize=32)
def members_of(belief: Belief) -> tuple[Member, ...]:
    """The members of a belief, with a start that is true in every slot."""
    if belief.states == 1:  # nothing is secret
        return ()
    everyone = everywhere(belief)
    tables = sided_influence(everyone)
    members = np.array([number for number, _, _ in tables.pairs], dtype=np.intp)
    found: list[Member] = []
    for number, pair in enumerate(directions_of(everyone)):
        rows = members == number if len(members) else slice(None)
        caps = (side[rows].max(axis=0, initial=0.0) for side in (tables.right, tables.left))
        ways = (_capped(way, cap) for way, cap in zip(_ways(*pair), caps, strict=True))
        found.append(Member(*ways))
    return tuple(found)


def _capped(way: Way, influence: FloatArray) -> Way:
    """The way whose blocks reveal at most the influence of their lag."""
    steps = way.blocks.steps
    if not len(influence):
        return way
    # behind the last lag the influence is no larger
    caps = influence[np.minimum(steps, len(influence)) - 1] * _UP + _ADD
    if way.blocks.is_curve:
        # blocks whose total variation is no bound are left out
        caps = np.where(way.blocks.above[:, 0] < 1, caps, np.inf)
    return replace(way, blocks=replace(way.blocks, caps=caps))


def _ways(forward: Direction, backward: Direction) -> tuple[Way, Way]:
    pair = forward, backward
    states = [len(one.transition) for one in pair if isinstance(one, Kernel)]
    if states and max(states) > _COUPLED_STATES:
        # the sets of all pairs take seconds, their total variation milliseconds
        first, second = (_curve(one) if isinstance(one, Kernel) else one for one in pair)
        return Way(blocks_of(first)), Way(blocks_of(second))
    held: list[Held | None] = [None, None]
    if states:
        with suppress(ChainError, NotContracting):
            certificate = calibrated(pair, 1.0)
            matrices = certificate.forward, certificate.backward
            held = [
                Held.of(one, matrix) if isinstance(one, Kernel) else None
                for one, matrix in zip(pair, matrices, strict=True)
            ]
    return Way(blocks_of(forward), held[0]), Way(blocks_of(backward), held[1])


def _curve(direction: Kernel) -> MixingCurve:
    """The total variation of a kernel's steps, rounded up."""
    curve: list[tuple[int, float]] = []
    for steps in _useful(direction.transition):
        error = _error(len(direction.transition), steps, direction.rounding)
        eta = variation(np.linalg.matrix_power(direction.transition, steps)) + error
        curve.append((steps, min(eta, 1.0)))
    stride = next((steps for steps, eta in curve if eta < _INFORMATIVE), 0)
    least = stride if stride >= _LEAST_STRIDE else 1
    return MixingCurve(tuple((steps, eta if steps >= least else 1.0) for steps, eta in curve))


@dataclass(frozen=True, eq=False)
class State:
    """What lies ahead of a run, seen along a way."""

    matrix: FloatArray  # F of the next slot
    largest: FloatArray  # largest entries of F of the next slots, the nearest last, shape (longest block,)
    densities: FloatArray  # their densities, alike
    known: int  # how many of the next slots are known; a block may not end behind them

    @cached_property
    def key(self) -> tuple[bytes, bytes, bytes, int]:
        """Equal for equal states."""
        return self.matrix.tobytes(), self.largest.tobytes(), self.densities.tobytes(), self.known

    @classmethod
    def empty(cls, way: Way) -> State:
        """Nothing is charged ahead."""
        zeros = np.zeros(way.blocks.longest)
        return cls(np.zeros(way.shape), zeros, zeros, way.blocks.longest)

    def at_change(self, way: Way) -> State:
        """The same for a way that begins here: only the next slot is known, by its matrix or its largest entry."""
        largest = np.zeros(way.blocks.longest)
        largest[-1] = self.largest[-1]
        matrix = self.matrix
        if matrix.shape != way.shape:
            matrix = _with_own(np.zeros(way.shape), float(self.largest[-1]))
        return State(matrix, largest, np.zeros(way.blocks.longest), 1)


@dataclass(frozen=True, eq=False)
class Tails:
    """What the slots of a run reveal beyond their own density, along a way."""

    near: FloatArray  # of the slots nearest to what lies ahead, nearest first, shape (slots, *shape)
    far: FloatArray  # of all others
    leaving: State  # the state that the next run sees

    @cached_property
    def most(self) -> float:
        """The largest of all."""
        return float(max(self.near.max(initial=0.0), self.far.max()))


class Sweeper:
    """Sweeps runs along a way, and remembers what equal runs with equal states came to."""

    def __init__(self, way: Way) -> None:
        """Take the way."""
        self.way = way
        numbers = way.blocks.longest + 2 * _CHUNK * int(np.prod(way.shape))
        self._remembered = _REMEMBERED // numbers
        # keys of states with longer blocks take longer than the sweep of a short run, and next to none is met again
        self._remembers = self._remembered >= _LENGTHS
        self._courses: dict[tuple[object, ...], Course] = {}
        self._levels: dict[float, Level | None] = {}

    def tails(self, state: State, density: float, length: int) -> Tails:
        """Tails of the slots of a run, from the one next to the state outward."""
        if not self._remembers:
            return Course(self, state, density).tails(length)
        key = (state.key, density)
        found = self._courses.get(key)
        if found is None:
            if len(self._courses) >= self._remembered:
                self._courses.clear()
            found = self._courses[key] = Course(self, state, density)
        return found.tails(length)

    def level(self, density: float) -> Level | None:
        """The bound on a slot in an endless run of a density; None where nothing is proved."""
        if density not in self._levels:
            if len(self._levels) >= self._remembered:
                self._levels.clear()
            self._levels[density] = self._level(density)
        return self._levels[density]

    def _level(self, density: float) -> Level | None:
        steps = self.way.blocks.steps
        matrix = self._still(density)
        if matrix is None:
            return None
        for excess in _RAISES:
            for raised in self._raises(matrix, density, excess):
                # a block that bounds no better than a shorter one adds nothing to a proof
                bounds = (steps - 1) * density + self.way.blocks.bound(np.full(len(steps), raised.max()))
                shorter = np.minimum.accumulate(np.append(np.inf, bounds[:-1]))
                for longest in steps[bounds < shorter]:
                    if self.proves(raised, density, longest):
                        return Level(raised, int(longest), excess)
        return None

    def _raises(self, matrix: FloatArray, density: float, excess: float) -> Iterator[FloatArray]:
        """A still matrix by a factor; and that of a little more density.

        L is convex, so a factor may raise what lies ahead by more than the slot, and the proof fails. V of the density
        d + e has d + e + L(P; V) = V: the e is left for the proof of d.
        """
        yield _raised(matrix, excess)
        if (denser := self._still(density * (1 + excess))) is not None:
            yield _raised(denser, 0.0)

    def proves(self, matrix: FloatArray, density: float, longest: int) -> bool:
        """Whether blocks of up to so many slots take a matrix in every slot ahead to one that is nowhere above it."""
        steps = self.way.blocks.steps
        mass = np.where(steps <= longest, (steps - 1) * density, np.inf)
        over = np.full(len(steps), matrix.max())
        return bool((_with_own(self.way.beyond(matrix, over, mass), density) <= matrix).all())

    def _still(self, density: float) -> FloatArray | None:
        """The least matrix that a slot of an endless run has where all slots ahead have it, or a little less.

        Total variations eta_m have it in closed form: the least over m of m d + log((1 - eta_m) / (1 - eta_m e^{m d})),
        each the fixed point of an increasing concave map that is above 0 at 0, and what caps allow.
        """
        way, steps = self.way, self.way.blocks.steps
        if way.held is None and way.blocks.is_curve:
            eta = way.blocks.above[:, 0]
            rise = np.minimum(steps * density, _MOST)
            left = 1 - eta * np.exp(rise)
            mixing = left > 0
            values = rise[mixing] + np.log(1 - eta[mixing]) - np.log(left[mixing])
            capped = float((rise + way.blocks.caps).min(initial=np.inf))
            found = min(float(values.min(initial=np.inf)), capped)
            return np.asarray(found) if found <= _USELESS else None
        mass: FloatArray = np.asarray((steps - 1) * density, dtype=np.float64)
        matrix, change = np.zeros(way.shape), math.inf
        for turn in range(_MOST_TURNS):
            before = matrix
            largest = float(before.max())
            matrix = _with_own(way.beyond(before, np.full(len(steps), largest), mass), density)
            if turn < _FAST_TURNS:
                matrix = np.maximum(before, matrix)
            top = float(matrix.max())
            if top > _USELESS:
                return None
            last, change = change, float(np.abs(matrix - before).max())
            # slow changes fall by one factor, so that all that are to come sum to a geometric series
            rest = change * change / (last - change) if change < last < math.inf else math.inf
            if change <= _STILL * top and (turn < _FAST_TURNS or not change or rest <= _STILL * top):
                return matrix
            if turn >= _FAST_TURNS and turn % _CHUNK == 0 and rest < _USELESS:
                matrix, change = matrix + (matrix - before) * (rest / change), math.inf
        return None


class Course:
    """A run of one density that begins at a state, followed as far as it had to be."""

    def __init__(self, sweeper: Sweeper, state: State, density: float) -> None:
        """Take the sweep that it belongs to, what lies beyond, and the density."""
        way = sweeper.way
        self._sweeper, self._way, self._state, self._density = sweeper, way, state, density
        self._longest = longest = way.blocks.longest
        self._is_curve = way.held is None and way.blocks.is_curve and state.known >= longest
        self._is_curve &= float(state.largest.max()) <= _MOST
        self._largest, self._grown = np.zeros(longest + _CHUNK), np.zeros(longest + _CHUNK)
        self._masses = np.zeros(longest + 1 + _CHUNK)
        self._largest[:longest] = state.largest
        np.expm1(np.minimum(state.largest, _MOST), out=self._grown[:longest])
        np.cumsum(state.densities, out=self._masses[1 : longest + 1])
        # what a difference of two sums is off by: roundings of as many slots as a block has, or as the longest has
        self._error = way.blocks.steps * _SUM
        self._summed = 1 + (longest + 1) * _SUM
        self._leaps = self._is_curve and way.blocks.stride >= _LEAST_STRIDE
        self._rise = density * way.blocks.leap.slots if self._leaps else np.zeros(0)
        self._lift = self._rise - density
        # the matrix of a slot that is one number is its largest entry
        self._matrices = np.zeros((0 if self._leaps else _CHUNK, *way.shape))
        # tails are made for all slots that are followed, when they are asked for: what is cut shares them
        self._near = np.zeros((0, *way.shape))
        self._most = float(state.largest.max())
        self._done, self._is_settled, self._is_lost = 0, False, False
        self._made: dict[int, Tails] = {}
        self._bounds: dict[int, FloatArray | None] = {}

    def tails(self, length: int) -> Tails:
        """Tails of the slots of so long a run."""
        count = min(length, _SHORT)
        if length > _SHORT:
            level = self._sweeper.level(self._density)
            if level is not None:
                count = min(length, max(_LONGEST, _SETTLING * level.longest))
            elif length < _FAR:
                count = min(length, _LONGEST)
        advance = self._leap if self._leaps else self._step
        while self._done < count and not (self._is_settled or self._is_lost):
            advance()
        done, longest = min(count, self._done), self._longest
        if done < length and self._bound(done) is not None:
            # further on nothing changes
            length = min(length, done + longest + 1)
        found = self._made.get(length)
        if found is None:
            if len(self._made) >= _LENGTHS:
                self._made.clear()
            found = self._made[length] = self._cut(done, length)
        return found

    def _cut(self, done: int, length: int) -> Tails:
        longest, matrices = self._longest, self._followed
        if (made := len(self._near)) < self._done:
            self._near = np.concatenate([self._near, _less(matrices[made : self._done], self._density)])
        near = self._near[:done]
        far, full = near[-1], matrices[done - 1]
        rest = min(length - done, longest)
        tops = np.zeros(0)
        if done < length:
            bound = self._bound(done)
            if bound is not None:
                full, tops = bound, np.full(rest, float(bound.max()))
            else:
                tops = self._rising(done, length, rest)
                full = _with_own(np.zeros(self._way.shape), float(tops[-1]))
            far = _less(full[None], self._density)[0]
        largest = np.concatenate([self._largest[done + rest : longest + done], tops])
        own = min(done + rest, longest)
        densities = np.concatenate([self._state.densities[own:], np.full(own, self._density)])
        known = min(longest, self._state.known + length)
        return Tails(near, far, State(np.asarray(full), largest, densities, known))

    def _step(self) -> None:
        density, done, longest = self._density, self._done, self._longest
        at = longest + done
        self._grow(1)
        before = self._matrices[done - 1] if done else self._state.matrix
        matrix = self._next(before, at)
        top = float(matrix.max())
        if math.isfinite(top) and np.abs(matrix - before).max() <= _MOVING * top + _FLOOR:
            level = self._sweeper.level(density)
            if level is not None:
                matrix = level.raised(matrix)
                top = float(matrix.max())
                self._is_settled = self._is_at(level, matrix, at, top)
        self._matrices[done] = matrix
        self._largest[at] = top
        self._grown[at] = math.expm1(min(top, _MOST))
        self._masses[at + 1] = self._masses[at] + density
        self._done += 1
        self._is_lost = top > _USELESS

    def _grow(self, count: int) -> None:
        """Make room for more slots."""
        if self._longest + self._done + count > len(self._largest):
            more = max(self._done, count, _CHUNK)
            self._largest, self._grown, self._masses = (
                np.concatenate([one, np.zeros(more)]) for one in (self._largest, self._grown, self._masses)
            )
            if not self._leaps:
                self._matrices = np.concatenate([self._matrices, np.zeros((more, *self._way.shape))])

    def _leap(self) -> None:
        """As many slots at once as no informative block ends within."""
        density, leap, first = self._density, self._way.blocks.leap, self._longest + self._done
        count = len(leap.slots)
        last = first + count
        if last > len(self._largest):
            self._grow(count)
        rise = self._rise
        np.add(self._masses[first], rise, out=self._masses[first + 1 : last + 1])
        ends = leap.ends + first
        mass = self._masses[first:last] * self._summed - self._masses[1:][ends]
        least = _curve_bound(leap.eta, self._grown[ends], leap.caps, mass)
        add = _slack(self._most)
        least += add
        # F is at most d more than what is ahead: the block of one slot
        least[0] = min(least[0], self._largest[first - 1])
        least -= self._lift
        found = self._largest[first:last]
        np.add(np.minimum.accumulate(least), rise, out=found)
        found *= _UP
        found += add
        before, top, largest = float(found[-1 - (count > 1)]), float(found[-1]), float(found.max())
        level = None
        if math.isfinite(top) and abs(top - before) <= _MOVING * top + _FLOOR:
            level = self._sweeper.level(density)
            if level is not None and largest >= level.lowest:
                found[:] = level.raised(found)
                top, largest = float(found[-1]), float(found.max())
        self._most = max(self._most, largest)
        np.expm1(found if largest <= _MOST else np.minimum(found, _MOST), out=self._grown[first:last])
        self._done += count
        self._is_lost = top > _USELESS
        if not self._is_lost and level is not None:
            self._is_settled = self._is_at(level, found[-1], last - 1, top)

    def _next(self, before: FloatArray, at: int) -> FloatArray:
        blocks = self._way.blocks
        places = at - blocks.steps
        mass = self._masses[at] - self._masses[places + 1] + self._error * self._masses[at]
        if self._is_curve:
            tail = float(_curve_bound(blocks.above[:, 0], self._grown[places], blocks.caps, mass))
            return np.asarray(tail + _slack(float(self._largest[places].max())) + self._density)
        known = self._state.known + at - self._longest
        if known < self._longest:
            mass = np.where(blocks.steps <= known, mass, np.inf)
        return _with_own(self._way.beyond(before, self._largest[places], mass), self._density)

    @property
    def _followed(self) -> FloatArray:
        """The matrices of the slots that were followed, and room for more."""
        return self._largest[self._longest :] if self._leaps else self._matrices

    def _bound(self, done: int) -> FloatArray | None:
        """What bounds all slots behind so many that were followed; None where nothing is proved."""
        if done not in self._bounds:
            matrix = np.asarray(self._followed[done - 1])
            is_settled = self._is_settled and done == self._done
            self._bounds[done] = matrix if is_settled else self._unsettled(matrix, self._longest + done - 1)
        return self._bounds[done]

    def _rising(self, done: int, length: int, last: int) -> FloatArray:
        """Largest entries of so many last slots of a run, where nothing else bounds those that were not followed.

        F is at most d more than the largest entry ahead. Infinite for a run without end, and where a loss is useless.
        """
        if self._is_lost or length >= _FAR:
            return np.full(last, np.inf)
        further = np.arange(length - done - last, length - done) + 1
        return (self._largest[self._longest + done - 1] + further * self._density) * _UP

    def _unsettled(self, matrix: FloatArray, at: int) -> FloatArray | None:
        """What bounds all slots behind the last that is followed, by a proof; None where there is none."""
        level = self._sweeper.level(self._density)
        if level is not None and not self._is_lost:
            if (matrix <= level.matrix).all() and self._is_under(level, at, level.top):
                return level.matrix
            for longest in self._way.blocks.steps.tolist():
                top = float(self._largest[max(0, at - longest + 1) : at + 1].max())
                if longest > self._longest or not top <= _USELESS:
                    break
                found = np.maximum(_raised(matrix * (top / max(float(matrix.max()), _FLOOR)), _RAISES[0]), level.matrix)
                if self._is_under(Level(found, longest, 0.0), at, float(found.max())) and self._sweeper.proves(
                    found, self._density, longest
                ):
                    return found
        return None

    def _is_at(self, level: Level, matrix: FloatArray, at: int, top: float) -> bool:
        """Whether a slot is at a level, and all slots further on are proved to be at most there."""
        return top == level.top and bool((matrix == level.matrix).all()) and self._is_under(level, at, top)

    def _is_under(self, level: Level, at: int, top: float) -> bool:
        """Whether the slots before one, which is under a level, let its proof hold for all slots further on."""
        if self._state.known + at - self._longest < level.longest:
            return False
        first = at - level.longest + 1
        # densities of the state's slots among the last ones
        beyond = self._state.densities[first:] if first < self._longest else ()
        return bool((self._largest[first:at] <= top).all() and all(one <= self._density for one in beyond))


@dataclass(frozen=True, eq=False)
class Level:
    """The matrix V of an endless run of equal density."""

    matrix: FloatArray  # V
    longest: int  # slots of the longest block that its proof takes
    excess: float  # by how much it was raised

    @cached_property
    def top(self) -> float:
        """The largest entry."""
        return float(self.matrix.max())

    @cached_property
    def lowest(self) -> float:
        """No entry below it is raised."""
        return float(self._close.min())

    def raised(self, matrix: FloatArray) -> FloatArray:
        """A matrix with entries that are a little below those of V raised to them."""
        close = (matrix <= self.matrix) & (matrix >= self._close)
        return np.where(close, self.matrix, matrix)

    @cached_property
    def _close(self) -> FloatArray:
        return self.matrix * (1 - 2 * self.excess) - 2 * _FLOOR


def _less(matrices: FloatArray, density: float) -> FloatArray:
    """The tails of F = d + tail, rounded up; shape (slots, *shape)."""
    tails = np.nextafter(matrices - density, np.inf)
    if tails.ndim > 1:
        diagonal = np.arange(tails.shape[-1])
        tails[:, diagonal, diagonal] = 0.0
    return np.maximum(tails, 0.0)


def _with_own(tail: FloatArray, density: float) -> FloatArray:
    """F = d + tail between states; the diagonal is 0."""
    matrix = np.asarray(tail + density)
    if matrix.ndim:
        np.fill_diagonal(matrix, 0.0)
    return matrix


@dataclass(frozen=True, slots=True)
class Worst:
    """The slot that decides a loss."""

    loss: float = 0.0  # epsilon, rounded up
    slot: int | None = None  # None where nothing is lost, and where all slots are bounded together
    quilt: bool = False  # whether the quilts' account is the smaller one, and this is its worst slot
    density: float | None = None  # the largest density, where it bounds all slots together


class BeliefHistory:
    """Beliefs one after the other, each from its slot on, as the sweeps see them.

    A kernel changes at slot c: the transition out of c, and all later ones, follow the new belief, whatever the start.
    So F of slots from c on uses the new kernels and B of slots behind c, both any member of the new belief; across the
    change a block ends at c, where the worst member of the other side counts.
    """

    def __init__(self, segments: Sequence[tuple[int | None, Belief]]) -> None:
        """Take the beliefs in order, each with the slot from which on it holds (None for the first)."""
        self.segments = tuple(segments)
        self.changes = tuple(start for start, _ in segments if start is not None)
        beliefs = (belief if start is None else from_any_start(belief) for start, belief in segments)
        self.beliefs = tuple(beliefs)
        self.members = tuple(members_of(belief) for belief in self.beliefs)

    @property
    def is_idle(self) -> bool:
        """Whether there is no secret pair, so that nothing is lost."""
        return not any(self.members)

    @cached_property
    def cuts(self) -> frozenset[int]:
        """Slots at which a run must begin: the kernel out of a change is new, and the kernel back from the next."""
        return frozenset(slot for change in self.changes for slot in (change, change + 1))

    def parts(self, slot: int) -> tuple[int, int]:
        """The segments of the kernel out of a slot, and of the kernel back from it."""
        return bisect_right(self.changes, slot), bisect_left(self.changes, slot)

    def empty(self, part: int, *, ahead: bool) -> list[State]:
        """Nothing is charged beyond."""
        return [State.empty(one.way) for one in self.sweepers(part, ahead=ahead)]

    def sweepers(self, part: int, *, ahead: bool) -> list[Sweeper]:
        """The sweeps of the members of a segment, from what lies ahead or from what lies behind."""
        return [member.sweepers[0 if ahead else 1] for member in self.members[part]]

    def swept(
        self, states: Sequence[State], parts: tuple[int, int], density: float, length: int, *, ahead: bool
    ) -> tuple[Tails, ...]:
        """Tails of a run by member, from the states of the segment beyond; parts are that segment and the run's own."""
        sweepers = self.sweepers(parts[1], ahead=ahead)
        if parts[0] != parts[1]:
            states = [_worst_of(states).at_change(one.way) for one in sweepers]
        return tuple(one.tails(state, density, length) for one, state in zip(sweepers, states, strict=True))


def _worst_of(states: Sequence[State]) -> State:
    """A state that bounds each of some; only the next slot is known of it."""
    first = states[0]
    if len(states) == 1:
        return first
    matrix = np.max([one.matrix for one in states], axis=0) if _alike(states) else np.zeros(())
    return State(matrix, np.max([one.largest[-1:] for one in states], axis=0), first.densities[-1:], 1)


def _alike(states: Sequence[State]) -> bool:
    return len({one.matrix.shape for one in states}) == 1


Tailed: TypeAlias = list[tuple[Tails, ...]]
"""Tails by run, and by member."""


class LossSweep:
    """The worst slot of a line of runs in one history, as the line grows.

    A charge is swept from its last slot back and from its first slot on, until a run leaves what it has left before.

    Args:
        history: What is believed.
        ends: What lies before the first run and behind the last, by member; None for nothing charged.
    """

    def __init__(
        self,
        history: BeliefHistory,
        *,
        ends: tuple[Sequence[State] | None, Sequence[State] | None] = (None, None),
    ) -> None:
        self.history, self._ends = history, ends
        self._slots: Sequence[int] = ()
        self._densities: Sequence[float] = ()
        self._total = 0.0
        self._span: tuple[int, int] | None = None
        self._ahead: Tailed = []
        self._behind: Tailed = []
        self._most: list[float] = []
        self.worst = Worst()

    def update(
        self, slots: Sequence[int], densities: Sequence[float], total: float, start: int, stop: int
    ) -> Callable[[], None]:
        """Take a line of which only the density of ``[start, stop)`` differs; what is returned takes that back.

        Args:
            slots: Where the runs begin, and at last where the last one ends.
            densities: Of the runs.
            total: Density summed over all slots, rounded up; infinite where a line goes on without end.
            start: First slot that differs.
            stop: Slot behind the last.
        """
        kept = self._slots, self._densities, self._total, self._span, self.worst
        replaced: list[tuple[int, int, Tailed, Tailed, list[float]]] = []
        touched: list[tuple[Tailed, int, tuple[Tails, ...]]] = []
        priced: list[tuple[int, float]] = []

        def undo() -> None:
            for index, loss in reversed(priced):
                self._most[index] = loss
            for tails, index, one in reversed(touched):
                tails[index] = one
            for low, high, ahead, behind, most in replaced:
                self._ahead[low:high], self._behind[low:high], self._most[low:high] = ahead, behind, most
            self._slots, self._densities, self._total, self._span, self.worst = kept

        if self.history.is_idle or not densities:
            return undo
        # runs without charges may begin between what was there and what comes
        first, last = (slots[-1], slots[0]) if self._span is None else self._span
        start, stop = min(start, last), max(stop, first)
        self._span = slots[0], slots[-1]
        count = len(densities)
        low, high = max(0, bisect_right(slots, start) - 2), min(count, bisect_left(slots, stop) + 1)
        old = high - (count - len(self._most))
        self._slots, self._densities, self._total = slots, densities, total
        replaced.append((low, high, self._ahead[low:old], self._behind[low:old], self._most[low:old]))
        room = high - low
        self._ahead[low:old], self._behind[low:old], self._most[low:old] = [()] * room, [()] * room, [0.0] * room
        first = self._swept(range(high - 1, -1, -1), low, touched, ahead=True)
        last = self._swept(range(low, count), high - 1, touched, ahead=False)
        for index in range(first, last + 1):
            priced.append((index, self._most[index]))
            self._most[index] = self._bound(index)
        self.worst = self._decide()
        return undo

    def tails(self, *, ahead: bool) -> list[float]:
        """The largest tail of any slot ahead or behind, by member; where the belief changes, of all members."""
        tails = self._ahead if ahead else self._behind
        if self.history.changes:
            return [max((one.most for run in tails for one in run), default=0.0)]
        return [max(one.most for one in member) for member in zip(*tails, strict=True)]

    @property
    def leaving(self) -> list[State]:
        """What a run behind the last one would see behind it."""
        return [one.leaving for one in self._behind[-1]]

    def _swept(
        self, order: range, needed: int, touched: list[tuple[Tailed, int, tuple[Tails, ...]]], *, ahead: bool
    ) -> int:
        """Sweep runs in an order, at least up to one; the last whose tails changed."""
        tails, step = (self._ahead, -1) if ahead else (self._behind, 1)
        reached = order[0]
        for index in order:
            beyond = index - step
            part = self._part(index, ahead=ahead)
            if 0 <= beyond < len(tails):
                states, other = [one.leaving for one in tails[beyond]], self._part(beyond, ahead=ahead)
            else:
                end = self._ends[1 if ahead else 0]
                states, other = self.history.empty(part, ahead=ahead) if end is None else end, part
            length = self._slots[index + 1] - self._slots[index]
            made = self.history.swept(states, (other, part), self._densities[index], length, ahead=ahead)
            before, tails[index] = tails[index], made
            touched.append((tails, index, before))
            reached = index
            passed = index < needed if ahead else index > needed
            if passed and all(one.leaving.key == two.leaving.key for one, two in zip(before, made, strict=True)):
                break
        return reached

    def _part(self, index: int, *, ahead: bool) -> int:
        return self.history.parts(self._slots[index])[0 if ahead else 1]

    def _bound(self, index: int) -> float:
        """The loss of the worst slot of a run by the sweeps alone."""
        return float(min(self._bounds(index)[1].max(), self._total))

    def _decide(self) -> Worst:
        """The worst slot, the first among equals."""
        top = max(range(len(self._most)), key=self._most.__getitem__)
        if not self._most[top]:
            return Worst()
        offsets, bounds = self._bounds(top)
        place = int(np.lexsort((offsets, -bounds))[0])
        return Worst(float(min(bounds[place], self._total)), self._slots[top] + int(offsets[place]))

    def _bounds(self, index: int) -> tuple[npt.NDArray[np.intp], FloatArray]:
        """Offsets of the slots of a run that may decide, and the loss of each by the sweeps alone."""
        length = self._slots[index + 1] - self._slots[index]
        first = max(len(one.near) for one in self._behind[index])
        last = length - max(len(one.near) for one in self._ahead[index])
        offsets = np.arange(length) if first >= last else np.concatenate([np.arange(first), np.arange(last, length)])
        if first < last:
            # between them all slots have the same bound
            offsets = np.append(offsets, (first + last) // 2)
        bounds = [
            (self._tails(ahead, length - 1 - offsets) + self._tails(behind, offsets))
            .reshape(len(offsets), -1)
            .max(axis=1)
            for ahead, behind in self._both(index)
        ]
        return offsets, (self._densities[index] + np.max(bounds, axis=0)) * _UP

    def _both(self, index: int) -> Iterable[tuple[Tails, Tails]]:
        """The tails on both sides by member; of different segments every two."""
        ahead, behind = self._ahead[index], self._behind[index]
        if self._part(index, ahead=True) == self._part(index, ahead=False):
            return zip(ahead, behind, strict=True)
        return product(ahead, behind)

    @staticmethod
    def _tails(tails: Tails, places: npt.NDArray[np.intp]) -> FloatArray:
        """Tails of slots so many places from where the tails begin, shape (slots, k, k) or (slots, 1, 1)."""
        inside = (places < len(tails.near)).reshape(-1, *([1] * tails.far.ndim))
        values = np.where(inside, tails.near[np.minimum(places, len(tails.near) - 1)], tails.far)
        return values if values.ndim > 1 else values.reshape(len(places), 1, 1)


def loss_of(belief: Belief, density: Density) -> Worst:
    """The loss of a density by the recursion, under one belief for all time."""
    return endless_loss(BeliefHistory([(None, belief)]), density, [])[0]


def endless_loss(history: BeliefHistory, density: Density, schedules: Sequence[Schedule]) -> tuple[Worst, Fraction]:
    """The loss of a density together with schedules, the endless ones included, and the largest density there is.

    Several endless schedules whose common period is too long are priced at their largest density, an upper bound.
    """
    sweeps, top = _sweeps(history, density, schedules)
    if sweeps is None:
        return Worst(np.inf), top
    return max((one.worst for one in sweeps), key=lambda one: one.loss, default=Worst()), top


def beside_events(charged: LossSweep, density: Density, schedules: Sequence[Schedule]) -> float:
    """What the sweep of a density, with schedules, reveals of an event by what lies before and behind it at most.

    Epsilon, on top of the density of the event's own slots, wherever it lies; infinite where no bound was found.
    """
    sweeps = _sweeps(charged.history, density, schedules)[0] if schedules else [charged]
    if sweeps is None:
        return math.inf
    sides = ([one.tails(ahead=ahead) for one in sweeps] for ahead in (True, False))
    ahead, behind = (np.max(side, axis=0) if side else np.zeros(1) for side in sides)
    return float(np.max(ahead + behind, initial=0.0)) * _UP


def _sweeps(
    history: BeliefHistory, density: Density, schedules: Sequence[Schedule]
) -> tuple[list[LossSweep] | None, Fraction]:
    """Sweeps of all slots of a density together with schedules, and the largest density; None where one has no end."""
    total, begin, period = _extended(density, schedules, (cut + 1 for cut in history.cuts))
    top = _largest(total)
    if begin is None:
        return _swept_line(history, _runs(total, None, None, history.cuts)), top
    before = _runs(total, None, begin, history.cuts)
    repeated = _runs(total, begin, begin + period, frozenset())
    if len(repeated[1]) == 1:
        repeated = ([begin, begin + _FAR], repeated[1])
    return _periodic(history, before, repeated), top


def _extended(
    density: Density, schedules: Sequence[Schedule], marks: Iterable[int] = ()
) -> tuple[Density, int | None, int]:
    """A density together with schedules, the endless ones for two periods behind the slot where they repeat themselves.

    Returns:
        The density; that slot, at or behind the marks, None where no schedule is endless; and the period.
    """
    finite, endless, period = separated(density, schedules)
    if not endless:
        return finite, None, period
    begin = max([*finite.steps, *marks, *(one.start + one.size for one in endless)])
    return finite.with_steps(step for one in endless for step in one.steps(begin + 2 * period + 1)), begin, period


def largest(density: Density, schedules: Sequence[Schedule]) -> Fraction:
    """The largest density that schedules make on top of another, or one above it."""
    return _largest(_extended(density, schedules)[0])


def _largest(density: Density) -> Fraction:
    return max(accumulate(rise for _, rise in sorted(density.steps.items())), default=Fraction(0))


def constant_stream(history: BeliefHistory, density: float) -> Worst:
    """The loss of a stream that has a density in every slot, without beginning or end."""
    if history.is_idle:
        return Worst()
    low, high = min(history.cuts, default=0), max(history.cuts, default=0)
    cuts = sorted({low - _FAR, *history.cuts, high + _FAR})
    shape = ([0, _FAR], [density])
    behind = _repeating(history, 0, shape, ahead=False)
    ahead = _repeating(history, len(history.changes), shape, ahead=True)
    return _swept_line(history, (cuts, [density] * (len(cuts) - 1)), (behind, ahead))[0].worst


def _swept_line(
    history: BeliefHistory, line: Line, ends: tuple[Sequence[State] | None, Sequence[State] | None] = (None, None)
) -> list[LossSweep]:
    """The sweep of a line; none where nothing is lost."""
    slots, densities = line
    if history.is_idle or not densities:
        return []
    total = math.inf
    if ends == (None, None):
        lengths = (stop - start for start, stop in pairwise(slots))
        total = float_above(sum((Fraction(d) * n for d, n in zip(densities, lengths, strict=True)), Fraction(0)))
    sweep = LossSweep(history, ends=ends)
    sweep.update(slots, densities, total, slots[0], slots[-1])
    return [sweep]


def _periodic(history: BeliefHistory, before: Line, repeated: Line) -> list[LossSweep] | None:
    """Sweeps of a line that goes on with what is repeated; None where no end was found."""
    if history.is_idle:
        return []
    last = len(history.changes)
    ahead = _repeating(history, last, repeated, ahead=True)
    behind = _repeating(history, last, repeated, ahead=False)
    sweeps = _swept_line(history, repeated, (behind, ahead))
    if not before[1]:
        return sweeps
    left = _swept_line(history, before)[0].leaving
    # periods come to the line until what lies behind one is nowhere above what repeats itself
    periods = [_period(sweeper, repeated, ahead=False) for sweeper in history.sweepers(last, ahead=False)]
    for count in range(max(_MOST_PERIODS, *(_reach(state, repeated) for state in behind)) + 1):
        if _below(left, behind):
            return sweeps + _swept_line(history, _appended(before, repeated, count), (None, ahead))
        left = [swept(state) for swept, state in zip(periods, left, strict=True)]
    return None


def _period(sweeper: Sweeper, repeated: Line, *, ahead: bool) -> Callable[[State], State]:
    """What a period makes of a state."""
    slots, densities = repeated
    lengths = [stop - start for start, stop in pairwise(slots)]
    order = list(zip(lengths, densities, strict=True))[:: -1 if ahead else 1]

    def swept(state: State) -> State:
        for length, density in order:
            state = sweeper.tails(state, density, length).leaving
        return state

    return swept


def _reach(state: State, repeated: Line) -> int:
    """Periods that the longest block reaches over, and one more."""
    return len(state.largest) // (repeated[0][-1] - repeated[0][0]) + 1


def _appended(line: Line, repeated: Line, times: int) -> Line:
    slots, densities = [*line[0]], [*line[1]]
    for _ in range(times):
        start = slots[-1] - repeated[0][0]
        slots += [start + slot for slot in repeated[0][1:]]
        densities += repeated[1]
    return slots, densities


def _repeating(history: BeliefHistory, part: int, repeated: Line, *, ahead: bool) -> list[State]:
    """A state of each member of a segment that a period takes to one nowhere above it."""
    found: list[State] = []
    for sweeper in history.sweepers(part, ahead=ahead):
        state, swept = State.empty(sweeper.way), _period(sweeper, repeated, ahead=ahead)
        least = _reach(state, repeated)
        for turn in range(max(_MOST_PERIODS, least)):
            before, state = state, swept(state)
            if not np.isfinite(state.matrix).all():
                break
            change = float(np.abs(state.matrix - before.matrix).max())
            if turn >= least and change <= _STILL * float(state.matrix.max()):
                break
        found.append(_proved(state, swept, repeated[0][-1] - repeated[0][0]))
    return found


def _proved(state: State, swept: Callable[[State], State], period: int) -> State:
    """A state a little above one, that a period takes to one nowhere above it; infinite where none is found."""
    for excess in _STREAM_RAISES:
        raised = replace(state, matrix=_raised(state.matrix, excess), largest=_raised(state.largest, excess))
        for _ in range(_MOST_TRIES):
            after = swept(raised)
            if _below([after], [raised]):
                return raised
            # the largest entries within the period follow from its last matrix
            largest = np.maximum(raised.largest, after.largest)
            for at in range(len(largest) - period - 1, -1, -1):
                # what lies a period further back counts as no less than what is nearer
                largest[at] = max(largest[at], largest[at + period])
            raised = replace(raised, largest=largest)
    return replace(state, matrix=_raised(state.matrix, np.inf), largest=_raised(state.largest, np.inf))


def _raised(values: FloatArray, excess: float) -> FloatArray:
    """A matrix or numbers a little larger; infinite for an infinite excess. The diagonal of a matrix is 0."""
    made = values * (1 + excess) + _FLOOR if np.isfinite(excess) else np.full(values.shape, np.inf)
    if made.ndim == 2:  # noqa: PLR2004 - a matrix
        np.fill_diagonal(made, 0.0)
    return made


def _below(states: Sequence[State], others: Sequence[State]) -> bool:
    """Whether each state proves all that another does: no entry is above it, and blocks may end as far from it."""
    return all(
        bool((one.matrix <= other.matrix).all() and (one.largest <= other.largest).all())
        and bool((one.densities <= other.densities).all())
        and one.known >= other.known
        for one, other in zip(states, others, strict=True)
    )


def _runs(density: Density, first: int | None, stop: int | None, cuts: frozenset[int]) -> Line:
    """The runs of a density between two slots, split at cuts."""
    steps = density.steps
    if not steps and (first is None or stop is None):
        return [], []
    low = min(steps) if first is None else first
    high = max(steps) if stop is None else stop
    if low >= high:
        return [], []
    slots = sorted({low, high, *(slot for slot in (*steps, *cuts) if low < slot < high)})
    ordered = sorted(steps)
    levels = list(accumulate((steps[slot] for slot in ordered), initial=Fraction(0)))
    places = np.searchsorted(np.array(ordered, dtype=np.int64), np.array(slots[:-1], dtype=np.int64), side="right")
    return slots, [float_above(levels[place]) for place in places]
