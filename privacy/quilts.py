"""How much noise: the Markov Quilt Mechanism's calibration ([SWC17] Algorithms 2 to 4), and pairwise quilts.

>>> from quiltstream.privacy.chains import MarkovChain
>>> from quiltstream.privacy.classes import MixingBounds
>>> calibration = mqm_approx(MixingBounds(pi_min=0.2, gap=0.75), epsilon=1.0, length=100)
>>> round(calibration.sigma, 4), calibration.quilt
(31.7098, Quilt(left=15, right=13))
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]], initial=[1, 0])
>>> calibration = mqm_exact(chain, epsilon=1.0, length=100, literal=True)
>>> round(calibration.sigma, 4), calibration.node, calibration.quilt
(13.0219, 8, Quilt(left=5, right=5))
>>> round(pairwise(chain, epsilon=1.0, length=100).sigma, 4)
12.9341
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import SupportsIndex

import numpy as np

from . import search
from .accounting.forward_backward import Certificate
from .chains import ChainError, MarkovChain
from .checks import positive, whole
from .classes import (
    AnyInitial,
    Belief,
    BinaryInterval,
    FiniteClass,
    MixingBounds,
    check_belief,
    mixing_bounds,
    starts_stationary,
)
from .deciding import Decision, Search, decide
from .influence import MAX_LAGS, Bound, PairLabel, check_bound, closed_form
from .worst import worst_pairwise, worst_setwise

_EPSILON_ADVICE = "give the loss you accept, for example 1.0"
_MAX_LENGTH = 2**53


@dataclass(frozen=True, slots=True)
class Quilt:
    """The Markov quilt {X_{i-left}, X_{i+right}} of a slot i; a side that is None is absent.

    Attributes:
        left: Distance to the slot before, in slots.
        right: Distance to the slot after, in slots.
    """

    left: int | None
    right: int | None

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
        lower_bound: A sigma below which raw counts of an endless stream lose more than epsilon, whatever the method;
            None where none is known.
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
        """Loss per slot, 1 / sigma: what a ledger is charged for every slot; infinite where nothing is secret."""
        return 1 / self.sigma if self.sigma else math.inf


def lemma_4_9_reach(bounds: MixingBounds, epsilon: float) -> int:
    """a* = 2 ceil(log((e^{eps/6} + 1) / (e^{eps/6} - 1) / pi_min) / g) ([SWC17] Lemma 4.9).

    In a window of at least 8 a* slots the middle slot decides, with a quilt {X_{i-a}, X_{i+b}} of a + b <= 4 a*.

    Raises:
        ValueError: If epsilon is not finite and above 0.
    """
    epsilon = positive("epsilon", epsilon, _EPSILON_ADVICE)
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
        epsilon: Target, finite and above 0.
        length: Slots of the window; None for an endless stream, whose every slot then stays within epsilon for ever
            if all its windows are released with this noise (theory of the ledger).
        bound: ``lemma-4.8``, or ``spectral``, which counts the slot before once instead of twice where all chains start
            stationary.

    Raises:
        ChainError: If a chain does not mix, or so slowly that its quilts are too wide to tabulate.
        TypeError: If the belief is none, or epsilon or length is no number of its kind.
        ValueError: If epsilon, length or bound is out of range.
    """
    epsilon, length = target(epsilon, length)
    check_bound(bound)
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
    once = bound == "spectral" and starts_stationary(belief)
    left = right if once else 2 * right
    notes = (
        f"pi_min at least {bounds.pi_min:.6g} and gap ({bounds.kind}) at least {bounds.gap:.6g}, "
        f"{'a stationary start' if once else 'any initial distribution'} "
        f"({'Lemma 4.8' if bound == 'lemma-4.8' else 'spectral bound'})",
    )
    if length is not None and short:
        node, choice = search.every_node(left, right, epsilon, length)
        notes += (_shortcut_note(epsilon, reach, length),)
    else:
        node = None if length is None else (length + 1) // 2
        # f(a*) <= epsilon / 6, so the quilt has influence at most epsilon / 2; one slot further for the rounding of a*
        choice = search.endless(left, right, epsilon, reach + 1)
    return Calibration(
        epsilon=epsilon,
        sigma=choice.sigma,
        quilt=Quilt(choice.left, choice.right),
        node=node,
        influence=choice.influence,
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
        epsilon: Target, finite and above 0.
        length: Slots of the window; None for an endless stream. No slot of a stream is its chain's first, so a chain
            with a fixed start, like ``AnyInitial``, then has the influence that holds at every slot for every start.
        literal: Whether to count states that are impossible at the slot before, as the numbers printed in [SWC17] do;
            that is never needed, and never less noise.

    Raises:
        ChainError: If the belief names no chain, if a chain that is to start stationary is reducible, or if no quilt of
            an endless stream is usable.
        TypeError: If the belief is none, or epsilon or length is no number of its kind.
        ValueError: If epsilon or length is out of range.
    """
    return _exact(belief, epsilon, length, literal=literal, search=worst_setwise, method="mqm-exact")


def pairwise(belief: Belief, epsilon: float, length: int | None = None) -> Calibration:
    """Noise with a quilt of its own for each secret pair; never more than ``mqm_exact``.

    The quilt is an instrument of the proof: the ratio of the output's densities under X_i = x and X_i = x' is bounded
    through any quilt of X_i, so the best may be taken for each pair. It is the loss that the quilt ledger counts.

    Args:
        belief: A chain, or a class of chains, as for ``mqm_exact``.
        epsilon: Target, finite and above 0.
        length: Slots of the window; None for an endless stream.

    Raises:
        ChainError: As for ``mqm_exact``.
        TypeError: If the belief is none, or epsilon or length is no number of its kind.
        ValueError: If epsilon or length is out of range.
    """
    return _exact(belief, epsilon, length, literal=False, search=worst_pairwise, method="pairwise")


def target(epsilon: float, length: SupportsIndex | None) -> tuple[float, int | None]:
    """Check the target of a calibration.

    Raises:
        TypeError: If epsilon or length is no number of its kind.
        ValueError: If one is out of range.
    """
    advice = "give the slots of a window, or None for an endless stream"
    epsilon = positive("epsilon", epsilon, _EPSILON_ADVICE)
    slots = None if length is None else whole("length", length, advice, least=1)
    if slots is not None and slots > _MAX_LENGTH:
        raise ValueError(f"length is {slots}, but must be at most {_MAX_LENGTH}: {advice}")
    if math.isinf((slots or 1) / epsilon):
        raise ValueError(f"epsilon is {epsilon!r}, for which no float holds the noise: {_EPSILON_ADVICE}")
    return epsilon, slots


def _exact(
    belief: Belief, epsilon: float, length: int | None, *, literal: bool, search: Search, method: str
) -> Calibration:
    epsilon, length = target(epsilon, length)
    check_belief(belief)
    if isinstance(belief, MixingBounds):
        raise ChainError(
            f"{method} needs the chains themselves, but mixing bounds name none: use mqm_approx, or a belief of chains"
        )
    any_initial = isinstance(belief, AnyInitial | BinaryInterval)
    worst: tuple[float, int, Decision] | None = None
    for member, chain in enumerate(_members(belief)):
        decision = decide(chain, epsilon, length, search, any_initial=any_initial, literal=literal)
        sigma = 0.0 if decision.found is None else decision.found.sigma
        if sigma == math.inf:
            raise ChainError(
                f"no quilt within {decision.lags} slots has an influence below epsilon {epsilon!r} for every pair "
                f"(chain {member}): use a belief that mixes (irreducible, aperiodic, rare bins merged), a larger "
                "epsilon, or a window instead of an endless stream"
            )
        if worst is None or sigma > worst[0]:
            worst = sigma, member, decision
    if worst is None:
        raise ChainError(f"{method} got a belief without a chain: give at least one")
    sigma, member, decision = worst
    found, states = decision.found, _members(belief)[member].states
    return Calibration(
        epsilon=epsilon,
        sigma=sigma,
        quilt=Quilt(None, None) if found is None else Quilt(found.ends.left, found.ends.right),
        node=decision.node,
        influence=0.0 if found is None else found.influence,
        length=length,
        method=method,
        pair=None if found is None else (member, *_states(found.pair, states)),
        assumptions=_assumptions(belief, length, decision, literal=literal),
    )


def _members(belief: MarkovChain | FiniteClass | AnyInitial | BinaryInterval) -> tuple[MarkovChain, ...]:
    if isinstance(belief, MarkovChain):
        return (belief,)
    return belief.worst.chains if isinstance(belief, BinaryInterval) else belief.chains


def _states(pair: int, states: int) -> tuple[int, int]:
    """The states of an ordered pair, which stand in the order of the off-diagonal of a matrix."""
    given, other = divmod(pair, states - 1)
    return given, other + (other >= given)


def _assumptions(
    belief: MarkovChain | FiniteClass | AnyInitial | BinaryInterval,
    length: int | None,
    decision: Decision,
    *,
    literal: bool,
) -> tuple[str, ...]:
    if isinstance(belief, BinaryInterval):
        notes = ["every chain of 2 states with its probabilities to stay in two intervals, any initial distribution"]
    else:
        members = len(_members(belief))
        named = "one transition matrix" if members == 1 else f"each of {members} transition matrices"
        stationary = starts_stationary(belief)
        unnamed = isinstance(belief, AnyInitial) or (length is None and not stationary)
        start = "any initial" if unnamed else "its stationary" if stationary else "its given initial"
        where = "" if length is None or stationary else " at the first slot of the window"
        notes = [f"{named} of {belief.states} states, with {start} distribution{where}"]
    if decision.found is None:
        notes.append("no slot has two possible states: nothing is secret, and no noise is needed")
    if literal and length is not None and not starts_stationary(belief):
        notes.append("states that are impossible at an earlier slot count, as printed in the paper")
    if decision.slack is not None:
        notes.append(decision.slack)
    return tuple(notes)
