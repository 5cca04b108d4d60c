"""Influence tables: how much a slot at some distance tells about the state now ([SWC17] Equation 5, Lemma 4.8).

One interface serves every belief: ``SidedInfluence`` holds, per secret pair and per side, an upper bound for each lag.
The max-influence of the quilt {X_{i-a}, X_{i+b}} for a pair is ``left[pair, a - 1] + right[pair, b - 1]``. Mixing
bounds make one pair, a chain makes one per ordered pair of states, a class the union over its members.
The tables of ``sided_influence`` hold at every slot, those of ``slot_influence`` at a named one: a chain with a fixed
initial distribution has its own left side there, and a window its ends.

>>> import numpy as np
>>> tables = sided_influence(MarkovChain([[0.9, 0.1], [0.4, 0.6]]))
>>> [(pair, float(np.exp(tables.right[row, 0]).round(6))) for row, pair in enumerate(tables.pairs)]
[((0, 0, 1), 2.25), ((0, 1, 0), 6.0)]
>>> tables = slot_influence(MarkovChain([[0.9, 0.1], [0.4, 0.6]], [0.8, 0.2]), slot=2, length=3)
>>> [np.exp(side[:, 0]).max().round(6).tolist() for side in (tables.left, tables.right)]
[6.0, 6.0]

*Powers.* Both influences of a slot on its neighbours under a chain come from log-ratios within the columns and within
the rows of the powers of its matrix, and from nothing else of it:

    right[b][x, x'] = max_y log(P^b(x, y) / P^b(x', y))      two starts, seen b slots later (F of the theory)
    left[a][x, x']  = max_y log(P^a(y, x) / P^a(y, x'))      two ends, seen a slots earlier

The influence of the slot a earlier on slot i is left[a] + start[i], start[i][x, x'] = log(m_i(x') / m_i(x)), m_i being
the distribution of slot i: Bayes' rule turns one into the other ([SWC17] section 4.4 and App. C.4). A stationary chain
has the same start term at every slot; a fixed initial distribution has m_i = q P^{i-1}; over every initial distribution
the term is M_{i-1}, where M_n[x, x'] = left[n][x', x]. A pair of which one state is impossible at a slot is no secret
pair there. For later slots the terms need not be followed for ever: m_j with j >= i is a mixture of the rows of
P^{i-1}, so start[j] <= M_{i-1} for every such j, whatever the start.

>>> tables = PowerTables(np.array([[0.9, 0.1], [0.4, 0.6]]))
>>> tables.extend(2)
>>> np.exp(tables.right).round(6).tolist()
[[2.25, 6.0], [1.416667, 2.666667]]

*Underflow.* Every column y of a power is P applied to the column before, so each column may carry a scale of its own:
ratios within a column do not see it, and ratios within a row are put right by the difference of two scales. So a
state that is hardly ever entered loses nothing. Where entries of one column lie further apart than floats reach, the
step is taken in logarithms. No positive probability is ever taken for a zero.

*Rounding.* A product of n non-negative matrices has a relative error of at most n k / 2 ulp per entry. What the two
entries of a ratio can be off by is added to every number, so that all of them are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.classes import MixingBounds, check_mixing_bounds
from ..models.markov_chain import ChainError, FloatArray, MarkovChain, check_chain, frozen, reachable
from ..models.serialisation import check_belief
from ..validation import choice, numbers, whole

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

ULP = 2.0**-52
_TINY = 1e-290
"""Positive entries below this may have lost digits."""
_ROOM = 1e-200
"""Where all positive entries of a column are at least this share of its largest, logarithms are left again."""
_LN2 = float(np.log(2.0))
_POWERS_BLOCK = 2**15
_FIRST = 64

#: Tables end where every influence is at most this: further quilts cannot lower a loss by more than twice as much.
RESOLUTION = 1e-12

#: Longest closed-form table.
MAX_LAGS = 2**22

#: Longest table of a chain.
MAX_CHAIN_LAGS = 20_000

#: Most entries of one side of a chain's table.
MAX_ENTRIES = 2**24

#: Which closed form stands for the influence under mixing bounds.
Bound = Literal["lemma-4.8", "spectral"]

_BLOCK = 64
_LOOK_BACK = 1024
_STALLED = 0.999
_RHO_ROOM = 2.0**-48

#: What double precision may lose of e^{-g d/2} / pi_min and its like, for each unit of their logarithms.
_SHARE_ROOM = 2.0**-50

#: Member of the class, state x, state x'.
PairLabel: TypeAlias = tuple[int, int, int]

_NO_QUILTS = "a belief without quilts: what slots tell about each other is bounded in both directions of time instead"

#: Stands for an infinite influence: large enough for every target, small enough to add and to multiply.
WALL = 1e150

_MOST_SUPPORTS = 16
_MOST_SETS = 4096
_SUPPORT_ENTRIES = 2**25


class PowerTables:
    """The two tables of one matrix, for lags 1, 2, ... as far as they are asked for.

    Attributes:
        rows: State x of each ordered pair, shape (pairs,), pairs = k (k - 1).
        columns: State x' of each ordered pair.
        opposite: Where the pair (x', x) stands.
        lags: How many lags there are so far.
    """

    def __init__(self, transition: FloatArray, sources: BoolArray | None = None) -> None:
        """Take P, shape (k, k), and the states that the left table takes its maximum over; None for all of them."""
        self._powers = _powers_of(transition, sources)
        self.rows, self.columns, self.opposite = self._powers.rows, self._powers.columns, self._powers.opposite
        self.lags = 0

    @property
    def right(self) -> FloatArray:
        """Right table, shape (lags, pairs), at least 0; infinite where a zero stands below."""
        return frozen(self._powers.right[: self.lags])

    @property
    def left(self) -> FloatArray:
        """Left table, shape (lags, pairs); infinite where a zero stands below, -infinite where x is never entered."""
        return frozen(self._powers.left[: self.lags])

    @property
    def margins(self) -> FloatArray:
        """What was added for rounding at each lag at least, shape (lags,)."""
        return frozen(self._powers.margins[: self.lags])

    def extend(self, lags: int) -> None:
        """Go on to a number of lags; nothing happens where there are as many."""
        self._powers.extend(lags)
        self.lags = max(self.lags, lags)


_shared: ContextVar[dict[tuple[bytes, bytes], _Powers] | None] = ContextVar("_shared", default=None)


@contextmanager
def shared_powers() -> Generator[None]:
    """Make the tables of a matrix once, however many calibrations ask for them inside; they are kept until it ends."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def _powers_of(transition: FloatArray, sources: BoolArray | None) -> _Powers:
    known = _shared.get()
    if known is None:
        return _Powers(transition, sources)
    key = transition.tobytes(), b"" if sources is None else sources.tobytes()
    if key not in known:
        known[key] = _Powers(transition, sources)
    return known[key]


class _Powers:
    """Powers of a matrix, and the rows of both tables that they make, as in :class:`PowerTables`."""

    def __init__(self, transition: FloatArray, sources: BoolArray | None = None) -> None:
        states = len(transition)
        self.rows, self.columns = np.nonzero(~np.eye(states, dtype=np.bool_))
        places = np.zeros((states, states), dtype=np.intp)
        places[self.rows, self.columns] = np.arange(len(self.rows))
        self.opposite: IntArray = places[self.columns, self.rows]
        self.lags = 0
        self._flat = self.rows * states + self.columns
        self._step, self._edges = transition, transition > 0
        self._sources = sources
        self._power, self._support = np.eye(states), np.eye(states, dtype=np.bool_)
        self._logs: FloatArray | None = None
        self._scales = np.zeros(states)
        self._error = 4 * ULP * (states + 4)
        self._worst = _Worst(states)
        self.right = np.empty((0, len(self.rows)))
        self.left = np.empty((0, len(self.rows)))
        self.margins = np.empty(0)

    def extend(self, lags: int) -> None:
        """Go on to a number of lags."""
        if lags > len(self.right):
            room = max(lags, 2 * len(self.right), _FIRST) - len(self.right)
            self.right = np.concatenate([self.right, np.empty((room, len(self.rows)))])
            self.left = np.concatenate([self.left, np.empty((room, len(self.rows)))])
            self.margins = np.concatenate([self.margins, np.empty(room)])
        new = slice(self.lags, max(self.lags, lags))
        while self.lags < lags:
            self._advance()
            self.right[self.lags], self.left[self.lags] = self._ratios()
            self.margins[self.lags] = 2 * self._error
            self.lags += 1
        forward, backward, margins = self.right[new], self.left[new], self.margins[new, np.newaxis]
        self.right[new] = np.maximum(forward, 0) * (1 + 4 * ULP) + margins
        room = 8 * ULP * np.where(np.isfinite(backward), np.abs(backward), 0.0)
        self.left[new] = backward + (margins + room)

    def _advance(self) -> None:
        states = len(self._step)
        if self._logs is not None:
            self._advance_in_logarithms(self._logs)
            return
        power = self._step @ self._power
        if not self._is_positive:
            support: BoolArray = (self._support.astype(np.float64) @ self._edges) > 0
            if _smallest(power, support) < _TINY:
                power = self._rescaled()
            if _smallest(power, support) < _TINY:
                with np.errstate(divide="ignore"):
                    self._advance_in_logarithms(np.log(self._power))
                return
            self._support = support
        # once every entry is positive, none falls any more: each is a mean of those of its column before
        self._power = power
        self._error += ULP / 2 * (states + 4)

    def _rescaled(self) -> FloatArray:
        """The next power after the columns have been brought near 1, by powers of two: no digit is lost."""
        _, exponents = np.frexp(self._power.max(axis=0))
        self._power = np.ldexp(self._power, -exponents)
        self._scales = self._scales + exponents * _LN2
        return self._step @ self._power

    def _advance_in_logarithms(self, logs: FloatArray) -> None:
        with np.errstate(divide="ignore"):
            steps = np.log(self._step)
        sums = steps[:, :, np.newaxis] + logs[np.newaxis, :, :]
        tops = sums.max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.exp(sums - np.where(np.isfinite(tops), tops, 0.0)[:, np.newaxis, :])
            found = np.where(np.isfinite(tops), tops + np.log(shares.sum(axis=1)), -np.inf)
        support = np.isfinite(found)
        peaks = found.max(axis=0)
        peaks = np.where(np.isfinite(peaks), peaks, 0.0)
        self._scales = self._scales + peaks
        found = found - peaks
        largest = float(np.abs(found[support]).max(initial=0.0)) + float(np.abs(peaks).max())
        self._error += ULP * (len(steps) + 8 + 8 * largest)
        self._support = support
        back = float(found.min(initial=0.0, where=support)) > np.log(_ROOM)
        self._logs = None if back else found
        if back:
            self._power = np.exp(found)

    @property
    def _is_positive(self) -> bool:
        return bool(self._support.all())

    def _ratios(self) -> tuple[FloatArray, FloatArray]:
        """The two ratios at the present power, without margins, shape (pairs,)."""
        kept = slice(None) if self._sources is None else self._sources
        if self._logs is not None:
            forward = self._worst(np.subtract, self._logs.T, self._logs.T)
            backward = self._worst(np.subtract, self._logs[kept], self._logs[kept])
        else:
            with np.errstate(divide="ignore"):
                inverse = 1 / self._power
                forward = np.log(self._worst(np.multiply, self._power.T, inverse.T))
                backward = np.log(self._worst(np.multiply, self._power[kept], inverse[kept]))
        scales = self._scales[:, np.newaxis] - self._scales
        backward = backward + scales
        size = 8 * ULP * np.abs(self._scales).max()
        return forward.ravel()[self._flat], backward.ravel()[self._flat] + size


def _smallest(power: FloatArray, support: BoolArray) -> float:
    return float(power.min(initial=np.inf, where=support))


class _Worst:
    """Largest ratio[y, x] / [y, x'] over y, shape (k, k); a zero below alone makes it infinite.

    Zero over zero is no constraint. Without any constraint the result is that of a zero above.
    """

    def __init__(self, states: int) -> None:
        self._room = np.empty((max(1, _POWERS_BLOCK // states**2), states, states))

    def __call__(self, ratio: np.ufunc, above: FloatArray, below: FloatArray) -> FloatArray:
        worst = np.full(self._room.shape[1:], 0.0 if ratio is np.multiply else -np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            for first in range(0, len(above), len(self._room)):
                part = slice(first, first + len(self._room))
                room = self._room[: len(above[part])]
                ratio(above[part, :, np.newaxis], below[part, np.newaxis, :], out=room)
                # zero over zero is nan, which fmax passes over
                np.fmax(worst, np.fmax.reduce(room, axis=0), out=worst)
        return worst


@dataclass(frozen=True, slots=True)
class Quilt:
    """The Markov quilt {X_{i-left}, X_{i+right}} of a slot i; a side that is None is absent.

    Attributes:
        left: Distance to the slot before, in slots.
        right: Distance to the slot after, in slots.
    """

    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        for name, distance in (("left", self.left), ("right", self.right)):
            if distance is not None:
                whole(name, distance, "give a distance in slots, or None for an absent side", least=1)

    @property
    def card(self) -> int | None:
        """Number of slots nearer than a two-sided quilt, a + b - 1.

        None when a side is absent, where it depends on the slot.
        """
        return None if self.left is None or self.right is None else self.left + self.right - 1

    def __str__(self) -> str:
        back = "to the start" if self.left is None else f"{self.left} slots back"
        ahead = "to the end" if self.right is None else f"{self.right} slots ahead"
        return f"{back}, {ahead}"


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


def lemma_4_8(bounds: MixingBounds, lags: npt.ArrayLike) -> FloatArray:
    """Lemma 4.8 of [SWC17]: f(d) = log((pi_min + e^{-g d/2}) / (pi_min - e^{-g d/2})), d the lags.

    Infinite where e^{-g d/2} >= pi_min.

    The influence on the slot d later is at most f(d), on the slot d earlier at most 2 f(d), whatever the initial
    distribution ([SWC17] App. C.4). Computed as 2 artanh(e^{-g d/2} / pi_min), which keeps small values accurate, and
    rounded outward.
    """
    check_mixing_bounds(bounds)
    faded = -bounds.gap / 2 * numbers("lags", lags)
    return _twice_artanh(np.exp(faded - math.log(bounds.pi_min)), faded, bounds)


def lemma_4_8_reach(bounds: MixingBounds) -> int:
    """The first lag at which 2 f is at most ``RESOLUTION``; 2^62 where it is further away."""
    share = math.tanh(RESOLUTION / 4)
    return math.ceil(min(2.0**62, -(math.log(share) + math.log(bounds.pi_min)) * 2 / bounds.gap))


def spectral_influence(bounds: MixingBounds, lags: npt.ArrayLike) -> FloatArray:
    """The spectral form: f(d) = log((1 + D) / (1 - D)) with D = rho^d (1 / pi_min - 1), d the lags.

    Infinite where D >= 1. Never above Lemma 4.8: rho <= e^{-g/2} for either kind of gap, and 1 / pi_min - 1 is less
    than 1 / pi_min.

    Proof. With h_x = 1_x / pi(x) - 1, of squared norm 1 / pi(x) - 1 and mean 0 under pi, P^t(x, y) / pi(y) - 1 is the
    inner product of (P*)^t h_x and h_y under pi. P* shrinks mean-zero functions by rho at least, where rho^2 is the
    second eigenvalue of P P* counted with multiplicity. So |P^t(x, y) / pi(y) - 1| <= rho^t sqrt((1 / pi(x) - 1) (1 /
    pi(y) - 1)) <= D, and a ratio of two rows is at most (1 + D) / (1 - D). P* has the same pi and rho, so the same f
    bounds the slot d earlier of a chain that starts stationary; for any other start it is 2 f, as for the lemma.
    """
    check_mixing_bounds(bounds)
    lags = numbers("lags", lags)
    # rho is known through 1 - g only: a gap within rounding of 1 must not make it 0
    rho = math.sqrt(min(1.0, bounds.rho**2 + _RHO_ROOM))
    faded = lags * math.log(rho)
    share = np.exp(faded) * (1 / bounds.pi_min - 1)
    # the room for rho could lift it above the lemma where the gap is tiny
    return np.minimum(_twice_artanh(share, faded, bounds), lemma_4_8(bounds, lags))


def _twice_artanh(share: FloatArray, faded: FloatArray, bounds: MixingBounds) -> FloatArray:
    """2 artanh of a share, made of e^faded and pi_min, rounded outward; infinite from 1 on."""
    share = share * (1 + _SHARE_ROOM * (4 - faded - math.log(bounds.pi_min)))
    return np.nan_to_num(2 * np.arctanh(np.where(share < 1, share, np.nan)), nan=np.inf)


def closed_form(bounds: MixingBounds, lags: npt.ArrayLike, bound: Bound = "lemma-4.8") -> FloatArray:
    """Lemma 4.8 or the spectral form, by name."""
    check_bound(bound)
    return lemma_4_8(bounds, lags) if bound == "lemma-4.8" else spectral_influence(bounds, lags)


def check_bound(bound: str) -> None:
    """Refuse a name that is none of a closed form, by a ValueError."""
    choice("bound", bound, get_args(Bound))


def mixing_influence(
    bounds: MixingBounds, lags: int, bound: Bound = "lemma-4.8", *, stationary: bool = False
) -> SidedInfluence:
    """A closed form for every lag up to ``lags``, as one pair with 2 f on the left and f on the right.

    Where all chains start in their stationary distribution, the left side is f, too.
    """
    lags = whole("lags", lags, "give how many slots to look ahead", least=1, most=MAX_LAGS)
    single = closed_form(bounds, np.arange(1, lags + 1), bound)[np.newaxis, :]
    start = "a stationary start" if stationary else "whatever its initial distribution"
    return SidedInfluence(
        left=frozen(single if stationary else 2 * single),
        right=frozen(single),
        pairs=(),
        basis=(
            f"every chain with pi_min at least {bounds.pi_min:.6g} and gap ({bounds.kind}) at least {bounds.gap:.6g}, "
            f"{start} ({'Lemma 4.8' if bound == 'lemma-4.8' else 'spectral bound'})"
        ),
    )


def any_start(tables: PowerTables, first: int = 0) -> FloatArray:
    """M_a[x, x'] + M_a[x', x] for the lags from ``first`` on: the influence on the slot a earlier, at every slot.

    It holds for every start ([SWC17] App. C.4, and M_{i-1} <= M_a for i > a, the mediant inequality). A state that no
    state enters in a steps is impossible at every slot that has a slot a earlier: no constraint, 0. Shape (lags,
    pairs).
    """
    one = tables.left[first:]
    other = one[:, tables.opposite]
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(one) | np.isneginf(other), 0.0, one + other)


def stationary_odds(chain: MarkovChain, tables: PowerTables) -> FloatArray:
    """log(pi(x') / pi(x)) per pair, rounded up, shape (pairs,); nan where a probability is below what floats hold."""
    logs = np.log(np.where(chain.stationary >= _TINY, chain.stationary, np.nan))
    odds = logs[tables.columns] - logs[tables.rows]
    return odds + ULP * (8 * np.abs(odds) + 16 * (chain.states + 4))


def stationary_left(tables: PowerTables, odds: FloatArray, first: int = 0) -> FloatArray:
    """Influence on the slot a earlier of a chain that starts stationary, shape (lags, pairs).

    A probability too small for floats leaves the bound that holds for every start.
    """
    exact = np.maximum(tables.left[first:] + odds, 0.0)
    return exact if np.isfinite(odds).all() else np.where(np.isnan(odds), any_start(tables, first), exact)


def chain_influence(chain: MarkovChain, member: int = 0, *, any_initial: bool = False) -> SidedInfluence:
    """Exact tables of one chain, rounded outward.

    With a fixed or any initial distribution the left side is the one that holds for every start, M_a[x, x'] +
    M_a[x', x] ([SWC17] App. C.4); a stationary chain has that of its time reversal.

    All are non-increasing in the lag, so each entry is the least of those up to its lag. Tables end where every finite
    entry is at most ``RESOLUTION`` but for rounding, where they have stopped to fall, or at the longest allowed: that
    only takes quilts away.

    Args:
        chain: Irreducible unless it has an initial distribution.
        member: Index of the chain in its class, for the labels.
        any_initial: Whether every initial distribution is meant.

    Raises:
        ChainError: If the chain is to start stationary and is reducible.
    """
    check_chain("chain", chain)
    free = any_initial or chain.initial is not None
    basis = (
        f"one chain of {chain.states} states with {'any initial' if free else 'its stationary'} distribution"
        f"{'' if free else ' to start from'}"
    )
    tables = PowerTables(chain.transition)
    pairs = tuple((member, int(x), int(y)) for x, y in zip(tables.rows, tables.columns, strict=True))
    if not pairs:
        return SidedInfluence(frozen(np.zeros((0, 0))), frozen(np.zeros((0, 0))), pairs, basis)
    odds = None if free else stationary_odds(chain, tables)
    most = longest(chain.states)
    earlier, lefts = math.inf, list[FloatArray]()
    while tables.lags < most:
        first = tables.lags
        tables.extend(min(most, first + _BLOCK))
        lefts.append(any_start(tables, first) if odds is None else stationary_left(tables, odds, first))
        margins = tables.margins[first:, np.newaxis]
        raw = np.maximum(tables.right[first:] - margins, lefts[-1] - 3 * margins)
        finite = np.isfinite(raw)
        largest = np.max(raw, axis=1, initial=0.0, where=finite)
        # a zero of P^n that is still there after k^2 steps stays: the chain is periodic or reducible
        lasting = np.arange(first + 1, tables.lags + 1) >= chain.states**2
        small = (largest <= RESOLUTION) & (finite.all(axis=1) | lasting)
        if small.any():
            lags = first + int(np.argmax(small)) + 1
            return _sides(np.concatenate(lefts)[:lags], tables.right[:lags], pairs, basis)
        if tables.lags % _LOOK_BACK == 0:
            if largest[-1] > earlier * _STALLED:
                break
            earlier = float(largest[-1])
    return _sides(np.concatenate(lefts), tables.right, pairs, basis)


def longest(states: int) -> int:
    """Most lags that a chain's tables may have."""
    return min(MAX_CHAIN_LAGS, max(1, MAX_ENTRIES // max(1, states * (states - 1))))


def _sides(left: FloatArray, right: FloatArray, pairs: tuple[PairLabel, ...], basis: str) -> SidedInfluence:
    def table(side: FloatArray) -> FloatArray:
        return frozen(np.ascontiguousarray(np.minimum.accumulate(side, axis=0).T))

    return SidedInfluence(table(left), table(right), pairs, basis)


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


def sided_influence(belief: Belief) -> SidedInfluence:
    """The tables of any belief, up to where they fall below the resolution or reach the longest table allowed.

    A class that names neither chains nor bounds has no quilt: its entries are infinite. Ending a table early only takes
    quilts away, so every loss computed from it stays an upper bound. Mixing bounds give the closed form of Lemma 4.8;
    `mixing_influence` has the others.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    check_belief(belief)
    return tables_of(belief)


@lru_cache(maxsize=8)
def tables_of(belief: Belief) -> SidedInfluence:
    """The same for a belief that has been checked: what has no hash is refused before."""
    if belief.members:
        tables = [
            chain_influence(chain, member, any_initial=belief.any_start) for member, chain in enumerate(belief.members)
        ]
        return tables[0] if len(tables) == 1 or belief.states == 1 else _union(tables, belief.words)
    if belief.bounds is not None:
        return mixing_influence(belief.bounds, min(MAX_LAGS, lemma_4_8_reach(belief.bounds)))
    nothing = np.full((1, 1), np.inf)
    return SidedInfluence(left=nothing, right=nothing, pairs=(), basis=_NO_QUILTS)


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
            following = (self.tables.lags // _LOOK_BACK + 1) * _LOOK_BACK
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
        if self.is_settled or largest > self._earlier * _STALLED:
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
        above = np.where(reached, np.maximum(marginals, _TINY), 1.0)
        below = np.where(reached, np.where(marginals >= _TINY, marginals, 0.0), 1.0)
        with np.errstate(divide="ignore"):
            odds = np.log(above)[:, self.tables.columns]
            odds -= np.log(below)[:, self.tables.rows]
        np.minimum(odds, WALL, out=odds)
        largest = max(float(odds.max(initial=0.0, where=odds < WALL)), -float(odds.min()))
        margins = ULP * ((np.arange(count) + 8) * (len(initial) + 4) + 8 * largest)
        odds += margins[:, np.newaxis]
        return odds

    def _possible_from(self, slot: int) -> tuple[BoolArray, BoolArray]:
        """What is possible at some slot from this index on: states, shape (k,), and pairs at once, shape (k, k)."""
        edges = self._chain.transition > 0
        now = self._reached(slot + 1)[-1]
        states, together, seen = now.copy(), np.logical_and.outer(now, now), set[bytes]()
        # the sets of possible states come back sooner or later
        while now.tobytes() not in seen:
            if len(seen) > _MOST_SETS:
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
        room = min(_MOST_SUPPORTS, _SUPPORT_ENTRIES // max(1, left.size) - 2)
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


def slot_influence(belief: Belief, slot: int, length: int, *, literal: bool = False) -> SidedInfluence:
    """The tables of one slot of a window ([SWC17] Equation 5 and App. C.4), rounded outward.

    Under a fixed initial distribution the maximum of the left side is over the states that are possible at the earlier
    slot, or over all of them with ``literal``, as the numbers printed in [SWC17] do. Pairs of which a state is
    impossible at the slot have no row. Both sides have length - 1 lags, infinite where the window has no slot so far
    away.

    Args:
        belief: A chain or a class of chains; its initial distribution is that of slot 1.
        slot: The slot i, from 1.
        length: Slots of the window.
        literal: Whether states count that are impossible at the earlier slot.

    Raises:
        ChainError: If the belief names no chain, or a chain that is to start stationary is reducible.
    """
    check_belief(belief)
    if belief.states is None or not belief.members:
        raise ChainError(
            f"a single slot needs the chains themselves, but {type(belief).__name__} names none: use mixing_influence"
        )
    length = whole("length", length, "give the slots of the window", least=1)
    slot = whole("slot", slot, "give a slot of the window, from 1", least=1)
    if slot > length:
        raise ValueError(f"slot is {slot}, but the window has {length}: give a slot from 1 to {length}")
    most = longest(belief.states) + 1
    if length > most:
        raise ValueError(
            f"length is {length}, but tables of {belief.states} states have at most {most} slots: give a shorter window"
        )
    free = belief.any_start
    lefts, rights, pairs = list[FloatArray](), list[FloatArray](), list[PairLabel]()
    for member, chain in enumerate(belief.members):
        left, right, labels = _of_chain(chain, member, slot, length, any_initial=free, literal=literal)
        lefts.append(left)
        rights.append(right)
        pairs += labels
    return SidedInfluence(
        left=frozen(np.concatenate(lefts)),
        right=frozen(np.concatenate(rights)),
        pairs=tuple(pairs),
        basis=f"slot {slot} of a window of {length}{', impossible earlier states counted' if literal else ''}",
    )


def _of_chain(
    chain: MarkovChain, member: int, slot: int, length: int, *, any_initial: bool, literal: bool
) -> tuple[FloatArray, FloatArray, list[PairLabel]]:
    source = ChainNodes(chain, length, any_initial=any_initial, literal=literal)
    source.extend(length - 1)
    if source.is_homogeneous:
        nodes, node = source.between(slot - 1, length - slot), 0
    else:
        nodes, node = source.window(length, slot), slot - 1
    kept = np.flatnonzero(np.isfinite(nodes.starts[node]))
    tables = source.tables
    labels = [(member, int(tables.rows[row]), int(tables.columns[row])) for row in kept]
    left, right = nodes.left_of(node)[:, kept], nodes.right_of(node)[:, kept]
    return _side(left, slot - 1, length - 1), _side(right, length - slot, length - 1), labels


def _side(table: FloatArray, own: int, lags: int) -> FloatArray:
    """Shape (pairs, lags): a table that ends early keeps its last value, as it never rises; past the window inf."""
    side = np.full((table.shape[1], lags), np.inf)
    held = min(own, len(table))
    if held:
        side[:, :held] = np.where(table[:held] >= WALL / 2, np.inf, np.maximum(table[:held], 0.0)).T
        side[:, held:own] = side[:, held - 1 : held]
    return side
