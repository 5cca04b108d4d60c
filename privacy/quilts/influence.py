"""Influence tables: how much a slot at some distance tells about the state now ([SWC17] Equation 5, Lemma 4.8).

One interface serves every belief: ``SidedInfluence`` holds, per secret pair and per side, an upper bound for each lag.
The max-influence of the quilt {X_{i-a}, X_{i+b}} for a pair is ``left[pair, a - 1] + right[pair, b - 1]``. Mixing
bounds make one pair, a chain makes one per ordered pair of states, a class the union over its members.
They hold at every slot; what a chain with a fixed start tells at one of its own is made for a search (:mod:`.nodes`).

>>> import numpy as np
>>> tables = sided_influence(MarkovChain([[0.9, 0.1], [0.4, 0.6]]))
>>> [(pair, float(np.exp(tables.right[row, 0]).round(6))) for row, pair in enumerate(tables.pairs)]
[((0, 0, 1), 2.25), ((0, 1, 0), 6.0)]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.classes import MixingBounds, check_mixing_bounds
from ..models.couplings import UNIT, FloatArray
from ..models.markov_chain import MarkovChain, check_chain
from ..models.memory import remembered
from ..models.periodic import frozen
from ..models.serialisation import check_belief
from ..validation import choice, numbers, whole
from .powers import TINY, PowerTables

#: Tables end where every influence is at most this: further quilts cannot lower a loss by more than twice as much.
RESOLUTION = 1e-12

#: Longest closed-form table.
MAX_LAGS = 2**22

#: Which closed form stands for the influence under mixing bounds.
Bound = Literal["lemma-4.8", "spectral"]

#: Member of the class, state x, state x'.
PairLabel: TypeAlias = tuple[int, int, int]


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
    rho = math.sqrt(min(1.0, bounds.rho**2 + 2.0**-48))
    faded = lags * math.log(rho)
    share = np.exp(faded) * (1 / bounds.pi_min - 1)
    # the room for rho could lift it above the lemma where the gap is tiny
    return np.minimum(_twice_artanh(share, faded, bounds), lemma_4_8(bounds, lags))


def _twice_artanh(share: FloatArray, faded: FloatArray, bounds: MixingBounds) -> FloatArray:
    """2 artanh of a share, made of e^faded and pi_min, rounded outward; infinite from 1 on."""
    # what double precision may lose of it for each unit of its logarithm
    share = share * (1 + 2.0**-50 * (4 - faded - math.log(bounds.pi_min)))
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
    logs = np.log(np.where(chain.stationary >= TINY, chain.stationary, np.nan))
    odds = logs[tables.columns] - logs[tables.rows]
    return odds + UNIT * (8 * np.abs(odds) + 16 * (chain.states + 4))


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
        tables.extend(min(most, first + 64))
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
        if tables.lags % 1024 == 0:
            if has_stalled(largest[-1], earlier):
                break
            earlier = float(largest[-1])
    return _sides(np.concatenate(lefts), tables.right, pairs, basis)


def longest(states: int) -> int:
    """Most lags that a chain's tables may have."""
    return min(20_000, max(1, 2**24 // max(1, states * (states - 1))))


def has_stalled(largest: float, earlier: float) -> bool:
    """Whether the largest influence no longer falls, next to that 1024 lags before."""
    return largest > earlier * 0.999


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
    return _tables_of(check_belief(belief))


@remembered
def _tables_of(belief: Belief) -> SidedInfluence:
    """The same for a belief that has been checked: what has no hash is refused before."""
    if belief.members:
        tables = [
            chain_influence(chain, member, any_initial=belief.any_start) for member, chain in enumerate(belief.members)
        ]
        return tables[0] if len(tables) == 1 or belief.states == 1 else _union(tables, belief.words)
    if belief.bounds is not None:
        return mixing_influence(belief.bounds, min(MAX_LAGS, lemma_4_8_reach(belief.bounds)))
    nothing = np.full((1, 1), np.inf)
    why = "a belief without quilts: what slots tell about each other is bounded in both directions of time instead"
    return SidedInfluence(left=nothing, right=nothing, pairs=(), basis=why)
