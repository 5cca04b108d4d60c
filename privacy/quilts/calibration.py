"""Calibration by Markov quilts: noise of MQMApprox, MQMExact and pairwise quilts.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> from quiltstream.privacy.models.classes import MixingBounds
>>> calibration = mqm_approx(MixingBounds(pi_min=0.2, gap=0.75), epsilon=1.0, length=100)
>>> round(calibration.sigma, 4), calibration.quilt
(31.7098, Quilt(left=15, right=13))
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]], initial=[1, 0])
>>> calibration = mqm_exact(chain, epsilon=1.0, length=100, literal=True)
>>> round(calibration.sigma, 4), calibration.node, calibration.quilt
(13.0219, 8, Quilt(left=5, right=5))
>>> round(pairwise(chain, epsilon=1.0, length=100).sigma, 4)
12.9341

*Lags.* A quilt with at least sigma epsilon slots inside scores no better than sigma, so once tables reach that far no
more lags can matter. They are made 64, 128, ... at a time until they do.

*A stationary chain.* All slots are alike but for their distance to the ends, and of two slots the one with more room
on both sides needs no less noise (``ChainNodes.between``). So one solution bounds a whole range of slots; a range whose
bound is above the largest noise so far is halved.

*Any other start.* The first slots are looked at one by one, all behind them are bounded together, and there are more
first slots until the bound no longer decides, or is close to what the slots behind really need.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import SupportsIndex, TypeAlias

import numpy as np

from ..models.belief import Belief
from ..models.certificates import Certificate
from ..models.classes import MixingBounds, check_mixing_bounds, mixing_bounds
from ..models.markov_chain import ChainError, MarkovChain
from ..models.serialisation import check_belief
from ..validation import a_slot, accepted_loss
from .influence import MAX_LAGS, Bound, PairLabel, Quilt, check_bound, closed_form
from .nodes import ChainNodes, Nodes
from .search import NOTHING, Found, worst_pairwise, worst_setwise

Search: TypeAlias = Callable[[Nodes, float, int], Found]


@dataclass(frozen=True, slots=True)
class Decision:
    """What decides the noise of one chain."""

    found: Found  # the quilt, with its score
    node: int | None  # the slot, from 1; None for a stream
    lags: int  # how far quilts were tried
    slack: str | None = None  # why less noise may do, one sentence; None where it may not


def decide(
    chain: MarkovChain, epsilon: float, length: int | None, search: Search, *, any_initial: bool, literal: bool
) -> Decision:
    """The slot, pair and quilt that decide; literally where states that are impossible at an earlier slot count."""
    if chain.states == 1:
        return Decision(NOTHING, None if length is None else (length + 1) // 2, 0)
    source = ChainNodes(chain, length, any_initial=any_initial, literal=literal)
    if length is None:
        return _every_slot(source, epsilon, search)
    return (_homogeneous if source.is_homogeneous else _from_the_start)(source, epsilon, length, search)


def _wider(found: Found, epsilon: float, lags: int, most: float) -> int:
    """How many lags to try next; no more than there are if wider quilts cannot matter."""
    return int(min(most, max(lags, min(found.sigma * epsilon + 1, 2 * lags))))


def _every_slot(source: ChainNodes, epsilon: float, search: Search, most: float = np.inf) -> Decision:
    lags = int(min(64, most))
    while True:
        more = source.extend(lags)
        found = search(source.between(), epsilon, 0)
        further = _wider(found, epsilon, lags, most)
        if further == lags or not more:
            return Decision(found, None, source.tables.lags, _cut(source) if further > lags else None)
        lags = further


def _homogeneous(source: ChainNodes, epsilon: float, length: int, search: Search) -> Decision:
    endless = _every_slot(source, epsilon, search, length - 1)

    def solved(first: int, last: int) -> Found:
        # slots from 1; all of them have at most so many before and behind them
        return search(source.between(last - 1, length - first), epsilon, 0)

    node = (length + 1) // 2
    best = solved(node, node)
    ranges: list[tuple[float, int, int]] = [(-np.inf, 1, length)]
    reached = best.sigma
    while ranges:
        bound, first, last = heapq.heappop(ranges)
        if -bound <= best.sigma * (1 + 1e-12):  # so close that it counts as reached
            reached = max(reached, -bound)
            break
        middle = (first + last) // 2
        for low, high in ((first, middle), (middle + 1, last)) if first < last else ((first, last),):
            part = solved(low, high)
            if part.sigma <= best.sigma:
                continue
            if low == high:
                best, node = part, low
            else:
                heapq.heappush(ranges, (-part.sigma, low, high))
    return Decision(replace(best, sigma=max(best.sigma, reached)), node, endless.lags, endless.slack)


def _from_the_start(source: ChainNodes, epsilon: float, length: int, search: Search) -> Decision:
    start = _Start(source, epsilon, length, search)
    lags = min(64, length - 1)
    while True:
        more = source.extend(lags)
        near, behind = start.first_slots(), start.behind_them()
        further = max(_wider(found, epsilon, lags, length - 1) for found in (near, behind))
        if further == lags or not more:
            break
        lags = further
    slack, looked_at = _cut(source) if further > lags else None, start.count
    if further == lags:
        source.narrow(max(1, lags))
    while more and start.is_open(near, behind, lags):
        more = source.extend(min(2 * (start.count - 1), length - 1))
        behind = start.behind_them()
    if start.count > looked_at:
        near = start.first_slots()
    if behind.sigma <= near.sigma:
        node = near.node + 1 if near.sigma else (length + 1) // 2
        return Decision(near, node, source.tables.lags, slack)
    if start.is_open(near, behind, lags):
        slack = f"the slots behind the first {start.count} were bounded together: less noise may do"
    return Decision(behind, (length + 1) // 2, source.tables.lags, slack)


@dataclass(frozen=True, slots=True)
class _Start:
    """The slots of a window of a chain that does not start stationary: the first ones, and all behind them."""

    source: ChainNodes
    epsilon: float
    length: int
    search: Search

    @property
    def count(self) -> int:
        """How many slots are looked at one by one: as many as the lags allow."""
        return min(self.length, self.source.tables.lags + 1)

    def first_slots(self) -> Found:
        """What decides among the first slots; the one in their middle among equals."""
        return self.search(self.source.window(self.length, self.count), self.epsilon, (self.count - 1) // 2)

    def behind_them(self) -> Found:
        """What decides for the slots behind the first, bounded together."""
        if self.count == self.length:
            return NOTHING
        beyond = self.source.between(self.length - 1, self.length - 1 - self.count, self.count)
        return self.search(beyond, self.epsilon, 0)

    def is_open(self, near: Found, behind: Found, reach: int) -> bool:
        """Whether the bound on the slots behind decides, and is not known to be close to what they need.

        It is close where the start terms can hardly differ any more, and where the states that cannot come back are
        out of the quilts' sight: they are gone after k^2 steps.
        """
        if behind.sigma <= near.sigma * (1 + 1e-9):
            return False
        return self.source.spread > 1e-9 or self.count <= reach + self.source.states**2


def _cut(source: ChainNodes) -> str | None:
    """That the longest table was too short to know that no wider quilt is better."""
    if source.is_settled:
        return None
    return f"quilts wider than {source.tables.lags} slots to a side were not tried: less noise may do"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How much noise a release over one window, or over every window of an endless stream, needs.

    Attributes:
        epsilon: The target.
        sigma: Noise scale per unit of L1 sensitivity: Laplace noise of scale ``sensitivity * sigma``. 0 where nothing
            is secret, as for a chain of one state.
        quilt: The quilt that decides.
        node: Its slot in the window, from 1; None for an endless stream, where every slot is alike.
        influence: Max-influence of the quilt.
        length: Slots of the window; None for an endless stream.
        method: Name of the method.
        pair: The secret pair that decides (member, x, x'): the one that has the influence; None where the method has
            one bound for all, or where nothing is secret.
        assumptions: What the number rests on, one sentence each.
        lower_bound: A sigma below which raw counts of every slot of an endless stream lose more than epsilon, whatever
            the method; None where none is known.
        certificates: What proves the number, one for each member of the belief; () where the quilt does.
    """

    epsilon: float
    sigma: float
    quilt: Quilt
    node: int | None
    influence: float
    length: int | None
    method: str
    pair: PairLabel | None
    assumptions: tuple[str, ...]
    lower_bound: float | None = None
    certificates: tuple[Certificate, ...] = field(default=(), repr=False, compare=False)

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot, 1 / sigma; infinite where nothing is secret.

        A ledger rounds its loss up, by 1.4e-14, so a budget of the very epsilon may refuse a charge of it. Charge what
        a mechanism has, such as ``LaplaceHistogram.from_sigma(bins, sigma).epsilon_dp``: its scale is larger by 1.4e-11
        or more.
        """
        return 1 / self.sigma if self.sigma else math.inf


def lemma_4_9_reach(bounds: MixingBounds, epsilon: float) -> int:
    """a* = 2 ceil(log((e^{eps/6} + 1) / (e^{eps/6} - 1) / pi_min) / g) ([SWC17] Lemma 4.9).

    In a window of at least 8 a* slots the middle slot decides, with a quilt {X_{i-a}, X_{i+b}} of a + b <= 4 a*.
    """
    epsilon = accepted_loss(epsilon)
    check_mixing_bounds(bounds)
    # (e^x + 1) / (e^x - 1) = 1 / tanh(x / 2), which neither overflows nor cancels
    return 2 * math.ceil(-(math.log(math.tanh(epsilon / 12)) + math.log(bounds.pi_min)) / bounds.gap)


def _shortcut_note(epsilon: float, reach: int, length: int) -> str:
    return (
        f"epsilon {epsilon} needs windows of at least {8 * reach} slots for the Lemma 4.9 shortcut; "
        f"this window has {length}: every slot and quilt was tried (Algorithm 4)"
    )


def mqm_approx(belief: Belief, epsilon: float, length: int | None = None, *, bound: Bound = "lemma-4.8") -> Calibration:
    """MQMApprox ([SWC17] Algorithm 4): noise from pi_min and the gap alone.

    A window of at least 8 a* slots, or an endless stream, needs only its middle slot (Lemma 4.9); a shorter one has
    every slot and every quilt tried, the empty quilt of sigma = length / epsilon among them. The spectral bound is
    never above Lemma 4.8, so the same a* serves it.

    Args:
        belief: Mixing bounds; any other belief is reduced to the bounds that hold for its chains.
        epsilon: Target, finite and at least 2^-46.
        length: Slots of the window; None for an endless stream, whose every slot then stays within epsilon for ever
            if all its windows are released with this noise (theory of the ledger).
        bound: ``lemma-4.8``, or ``spectral``, which counts the slot before once instead of twice where all chains start
            stationary.

    Raises:
        ChainError: If a chain does not mix, or so slowly that its quilts are too wide to tabulate.
    """
    epsilon, length = target(epsilon, length)
    check_bound(bound)
    check_belief(belief)
    bounds = mixing_bounds(belief)
    reach = lemma_4_9_reach(bounds, epsilon)
    short = length is not None and length < 8 * reach
    lags = length - 1 if length is not None and short else 4 * reach
    if lags > MAX_LAGS:
        raise ChainError(
            f"pi_min {bounds.pi_min:g} and gap {bounds.gap:g} at epsilon {epsilon:g} give quilts over {lags} slots, "
            f"but at most {MAX_LAGS} are tried: use a belief that mixes faster (fewer states, longer slots), "
            "or shorter windows"
        )
    right = closed_form(bounds, np.arange(1, lags + 1), bound)
    once = bound == "spectral" and belief.starts_stationary
    left = right if once else 2 * right
    notes = (
        f"pi_min at least {bounds.pi_min:.6g} and gap ({bounds.kind}) at least {bounds.gap:.6g}, "
        f"{'a stationary start' if once else 'any initial distribution'} "
        f"({'Lemma 4.8' if bound == 'lemma-4.8' else 'spectral bound'})",
    )
    middle = None if length is None else (length + 1) // 2
    before, trivial = np.array([math.inf]), math.inf
    after = before
    if not short:
        notes += (f"Lemma 4.9: of all slots the middle one decides, by the quilts of a + b up to 4 a* = {4 * reach}",)
    if length is not None and short:
        before, trivial = np.arange(length, dtype=np.float64), float(length)
        after = before[::-1]
        notes += (_shortcut_note(epsilon, reach, length),)
    nodes = Nodes(
        right=right[:, np.newaxis],
        lefts=(left[:, np.newaxis],),
        starts=np.zeros((len(before), 1)),
        before=before,
        after=after,
        trivial=trivial,
        supports=np.zeros(0, dtype=np.intp),
    )
    found = worst_pairwise(nodes, epsilon, (len(before) - 1) // 2)
    return Calibration(
        epsilon=epsilon,
        sigma=found.sigma,
        quilt=found.quilt,
        node=found.node + 1 if short else middle,
        influence=found.influence,
        length=length,
        method="mqm-approx" if bound == "lemma-4.8" else "mqm-approx-spectral",
        pair=None,
        assumptions=notes,
    )


def mqm_exact(belief: Belief, epsilon: float, length: int | None = None, *, literal: bool = False) -> Calibration:
    """MQMExact ([SWC17] Algorithm 3): noise from the exact influence of every quilt; one quilt for all pairs of a slot.

    The empty quilt, of sigma = length / epsilon, is always among those of a window, so a window has an answer under
    every chain. Every number is rounded up.

    Args:
        belief: A chain, or a class of chains, whose largest noise is taken. A fixed initial distribution is that of the
            first slot of the window.
        epsilon: Target, finite and at least 2^-46.
        length: Slots of the window; None for an endless stream. No slot of a stream is its chain's first, so a chain
            with a fixed start, like ``AnyInitial``, then has the influence that holds at every slot for every start.
        literal: Whether to count states that are impossible at the slot before, as the numbers printed in [SWC17] do;
            that is never needed, and never less noise.

    Raises:
        ChainError: If the belief names no chain, if a chain that is to start stationary is reducible, or if no quilt of
            an endless stream is usable.
    """
    return _exact(belief, epsilon, length, literal=literal, search=worst_setwise, method="mqm-exact")


def pairwise(belief: Belief, epsilon: float, length: int | None = None) -> Calibration:
    """Noise with a quilt of its own for each secret pair; never more than ``mqm_exact``.

    The quilt is an instrument of the proof: the ratio of the output's densities under X_i = x and X_i = x' is bounded
    through any quilt of X_i, so the best may be taken for each pair. It is the loss that the quilt ledger counts.
    Arguments and errors are those of ``mqm_exact``.
    """
    return _exact(belief, epsilon, length, literal=False, search=worst_pairwise, method="pairwise")


def target(epsilon: float, length: SupportsIndex | None) -> tuple[float, int | None]:
    """Check the target of a calibration."""
    advice = "give the slots of a window, or None for an endless stream"
    return accepted_loss(epsilon), None if length is None else a_slot("length", length, advice, least=1)


def _exact(
    belief: Belief, epsilon: float, length: int | None, *, literal: bool, search: Search, method: str
) -> Calibration:
    epsilon, length = target(epsilon, length)
    check_belief(belief)
    if belief.states is None or not belief.members:
        others = "mqm_approx or forward_backward" if belief.bounds else "forward_backward"
        raise ChainError(
            f"{method} needs the chains themselves, but {type(belief).__name__} names none: use {others}, or a belief "
            "of chains"
        )
    decisions: list[Decision] = []
    for member, chain in enumerate(belief.members):
        decision = decide(chain, epsilon, length, search, any_initial=belief.any_start, literal=literal)
        if decision.found.sigma == math.inf:
            raise ChainError(
                f"no quilt within {decision.lags} slots has an influence below epsilon {epsilon!r} for every pair "
                f"(chain {member}): use a belief that mixes (irreducible, aperiodic, rare bins merged), a larger "
                "epsilon, or a window instead of an endless stream"
            )
        decisions.append(decision)
    member, decision = max(enumerate(decisions), key=lambda one: one[1].found.sigma)
    found, states = decision.found, belief.states
    return Calibration(
        epsilon=epsilon,
        sigma=found.sigma,
        quilt=found.quilt,
        node=decision.node,
        influence=found.influence,
        length=length,
        method=method,
        pair=None if not found.sigma else (member, *_states(found.pair, states)),
        assumptions=_assumptions(belief, length, decision, literal=literal),
    )


def _states(pair: int, states: int) -> tuple[int, int]:
    """The states of an ordered pair, which stand in the order of the off-diagonal of a matrix."""
    given, other = divmod(pair, states - 1)
    return given, other + (other >= given)


def _assumptions(belief: Belief, length: int | None, decision: Decision, *, literal: bool) -> tuple[str, ...]:
    stationary = belief.starts_stationary
    unnamed = belief.any_start or (length is None and not stationary)
    start = "any initial" if unnamed else "its stationary" if stationary else "its given initial"
    where = "" if length is None or stationary else " at the first slot of the window"
    notes = [f"{belief.words}, with {start} distribution{where}"]
    if not decision.found.sigma:
        notes.append("no slot has two possible states: nothing is secret, and no noise is needed")
    if literal and length is not None and not stationary:
        notes.append("states that are impossible at an earlier slot count, as printed in the paper")
    if decision.slack is not None:
        notes.append(decision.slack)
    return tuple(notes)
