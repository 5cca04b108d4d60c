"""Beliefs near the class: what releases cost against a belief outside it, and which beliefs forget more slowly.

*Another belief* ([SWC17] section 2.4). Let M be epsilon-Pufferfish private for a class Theta. Against a belief theta'
outside it, M is (epsilon + 2 Delta)-Pufferfish private, where Delta is the least over theta in Theta of the largest,
over secrets s, of the two conditional max-divergences D(P(X | s, theta') || P(X | s, theta)) and
D(P(X | s, theta) || P(X | s, theta')), with D(p || q) = max over x of log p(x) / q(x).

Proof: P(w | s, theta') <= e^Delta P(w | s, theta) <= e^{Delta + epsilon} P(w | s', theta) <= e^{2 Delta + epsilon}
P(w | s', theta').

>>> near, model = MarkovChain([[0.9, 0.1], [0.42, 0.58]]), MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> round(adversary_divergence(near, model, length=5), 4)
0.1464
>>> round(adversary_epsilon(1.0, near, model, length=5), 4)
1.2927

*Slower series.* What a slot tells about another one fades with the distance, as fast as the belief says. Where series
forget more slowly, everything published costs more than the account says, and (epsilon + 2 Delta) grows with the
length. The same charges priced under slower beliefs (`slowed`) show how much rests on that speed.

>>> slowed({"kind": "markov-chain", "transition": [[0.9, 0.1], [0.4, 0.6]], "initial": None}, 2)["transition"]
[[0.95, 0.05], [0.2, 0.8]]
>>> curves = slowed({"kind": "dobrushin-bounds", "forward": [[1, 0.4]], "backward": [[4, 0.5]]}, 2)
>>> [(m, round(eta, 6)) for m, eta in curves["forward"]]
[(1, 0.7), (2, 0.49)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

import numpy as np

from ..models.classes import FiniteClass
from ..models.dobrushin import MOST_STEPS
from ..models.joint_distribution import JointTable, log_sum
from ..models.markov_chain import ChainError, FloatArray, MarkovChain, check_chain, reachable
from ..validation import a_slot, as_list, positive

Kind = TypeVar("Kind")

#: What a mean over up to 100,000 moves may lose in double precision.
_OUTWARD = 1e-12

#: Points of a curve that are slowed, at most.
_POINTS = 100

Form = dict[str, Any]


@overload
def adversary_divergence(
    adversary: MarkovChain, belief: MarkovChain | FiniteClass | Iterable[MarkovChain], length: int
) -> float: ...


@overload
def adversary_divergence(adversary: JointTable, belief: JointTable | Iterable[JointTable]) -> float: ...


def adversary_divergence(
    adversary: MarkovChain | JointTable,
    belief: MarkovChain | FiniteClass | JointTable | Iterable[MarkovChain] | Iterable[JointTable],
    length: int | None = None,
) -> float:
    """Delta of [SWC17] section 2.4: how far an adversary's belief is from the nearest member of a class.

    The secrets are the states of every slot or record that have positive probability for the adversary; a member that
    gives one of them probability 0 is infinitely far. Chains need no enumeration: the log-ratio of two sequence
    probabilities is a sum over steps, so its largest value with a given state in a given slot is found by dynamic
    programming from both ends.

    Args:
        adversary: The belief outside the class, a chain or a table.
        belief: One belief of the same kind, or those of a class.
        length: Slots of the window, for chains; tables have none.

    Returns:
        Delta, 0 or more; infinite where each member calls impossible what the adversary does not, or the reverse.

    Raises:
        ChainError: If a chain is meant to be stationary and is reducible, or chains differ in their states.
        TypeError: If the beliefs are of different kinds.
        ValueError: If the class is empty, length is missing, superfluous or out of range, or tables differ in their
            records.
    """
    given = belief if isinstance(belief, Iterable) else getattr(belief, "members", belief)
    members: list[MarkovChain | JointTable] = as_list("belief", given, "chains, or of tables")
    if not members:
        raise ValueError("belief has no member: give at least one")
    if isinstance(adversary, JointTable):
        if length is not None:
            raise ValueError(f"length is {length}, but a table says itself how many records it has: leave length out")
        return min(_of_tables(adversary, _same(JointTable, member)) for member in members)
    if length is None:
        raise ValueError("length is missing, but chains are compared over a window: give its slots")
    check_chain("adversary", adversary)
    slots = a_slot("length", length, "give the slots of a window", least=1)
    return min(_of_chains(adversary, _same(MarkovChain, member), slots) for member in members)


@overload
def adversary_epsilon(
    epsilon: float, adversary: MarkovChain, belief: MarkovChain | FiniteClass | Iterable[MarkovChain], length: int
) -> float: ...


@overload
def adversary_epsilon(epsilon: float, adversary: JointTable, belief: JointTable | Iterable[JointTable]) -> float: ...


def adversary_epsilon(epsilon: float, adversary: object, belief: object, length: int | None = None) -> float:
    """The loss against a belief outside the class, epsilon + 2 Delta ([SWC17] section 2.4).

    Epsilon is what the release loses under the class; all else is as for `adversary_divergence`.
    """
    target = positive("epsilon", epsilon, "give what the release loses under the class")
    delta = adversary_divergence(adversary, belief, length)  # pyright: ignore[reportArgumentType, reportCallIssue] - the overloads are its own
    return target + 2 * delta


def _same(kind: type[Kind], member: object) -> Kind:
    if not isinstance(member, kind):
        raise TypeError(
            f"belief has a member of type {type(member).__name__}, but the adversary is a {kind.__name__}: "
            "give beliefs of one kind"
        )
    return member


def _of_tables(adversary: JointTable, member: JointTable) -> float:
    if adversary.records != member.records:
        raise ValueError(
            f"belief has a table of {member.records} records, but the adversary's has {adversary.records}: "
            "give laws of the same database"
        )
    theirs = dict(zip(adversary.outcomes, adversary.weights, strict=True))
    ours = dict(zip(member.outcomes, member.weights, strict=True))
    worst = 0.0
    for record in range(adversary.records):
        for state in adversary.states_of(record):
            rows = [row for row in {**theirs, **ours} if row[record] == state]
            totals = [sum(law.get(row, 0) for row in rows) for law in (theirs, ours)]
            if not totals[1]:
                return math.inf
            for row in rows:
                first, second = theirs.get(row, 0) / totals[0], ours.get(row, 0) / totals[1]
                if first != second:
                    worst = max(worst, abs(math.log(first / second)) if first and second else math.inf)
    return worst


def _of_chains(adversary: MarkovChain, member: MarkovChain, length: int) -> float:
    if adversary.states != member.states:
        raise ChainError(
            f"belief has a chain of {member.states} states, but the adversary's has {adversary.states}: "
            "give chains over the same states"
        )
    starts = [chain.stationary if chain.initial is None else chain.initial for chain in (adversary, member)]
    steps = [chain.transition for chain in (adversary, member)]
    theirs, ours = (reachable(start > 0, step > 0, length) for start, step in zip(starts, steps, strict=True))
    if (theirs & ~ours).any():
        return math.inf
    priors = [_log_marginals(start, step, length) for start, step in zip(starts, steps, strict=True)]
    worst = 0.0
    for first, second in ((0, 1), (1, 0)):
        ratio = _largest_ratio(starts[first], starts[second], steps[first], steps[second], length)
        # what is no secret for the adversary is no condition of the theorem
        worst = max(worst, float((ratio[theirs] - (priors[first][theirs] - priors[second][theirs])).max()))
    return worst


def _log_marginals(start: FloatArray, step: FloatArray, length: int) -> FloatArray:
    """The logarithm of P(X_i = x), shape (T, k); probabilities below the range of floats keep their ratios."""
    found = np.empty((length, start.size))
    with np.errstate(divide="ignore"):
        found[0], steps = np.log(start), np.log(step)
    for slot in range(1, length):
        found[slot] = log_sum(found[slot - 1] + steps.T)
    return found


def _largest_ratio(p: FloatArray, q: FloatArray, P: FloatArray, Q: FloatArray, length: int) -> FloatArray:
    """The largest log P(sequence) / Q(sequence) over sequences of positive P with state x in slot i, shape (T, k).

    Minus infinity where there is no such sequence, infinity where one of them is impossible under Q.
    """
    start, step = _log_ratio(p, q), _log_ratio(P, Q)
    ahead = [start]
    for _ in range(1, length):
        ahead.append(_plus(ahead[-1][:, np.newaxis], step).max(axis=0))
    behind = [np.zeros(p.size)]
    for _ in range(1, length):
        behind.append(_plus(step, behind[-1][np.newaxis, :]).max(axis=1))
    return _plus(np.array(ahead), np.array(behind[::-1]))


def _log_ratio(p: FloatArray, q: FloatArray) -> FloatArray:
    """The entries of log p / q; minus infinity where p is 0, whatever q is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, np.log(p) - np.log(q), -math.inf)


def _plus(first: FloatArray, second: FloatArray) -> FloatArray:
    """The sum in which what cannot happen stays so: minus infinity and infinity make minus infinity."""
    with np.errstate(invalid="ignore"):
        total = first + second
    return np.where(np.isnan(total), -math.inf, total)


def slowed(belief: Mapping[str, Any], factor: float) -> Form | None:
    """The plain form of a belief in which every change of state comes ``factor`` times less often.

    A kernel P becomes (1 - 1/factor) I + P/factor: the stationary distribution stays, and 1 - lambda of each eigenvalue
    is divided by the factor. A gap is divided by the factor. Initial distributions stay.

    The slowed chain moves in j of m slots, and j is binomial with the probability 1/factor. Its m-step kernel is the
    mean of P^j, and the total variation between its rows at most the mean of eta_j. That holds for every member whose
    kernel stays, in both directions, because the reversal is slowed alike; m is each one given, and factor * m.

    Returns:
        A form of the same kind, without certificates; None for a kind of which no slower one is known.
    """
    if positive("factor", factor, "give how many times less often states change, e.g. 2") < 1:
        raise ValueError(f"factor is {factor}, but must be at least 1: a belief is only slowed down here")
    make = _SLOWED.get(str(belief.get("kind")))
    # a certificate is about the belief that it is kept with
    form = {name: value for name, value in belief.items() if name != "certificates"}
    return None if make is None else make(form, float(factor))


def _matrix(rows: Any, factor: float) -> Any:
    kernel = np.asarray(rows, dtype=np.float64)
    slow = kernel / factor + (1 - 1 / factor) * np.eye(kernel.shape[-1])
    return np.round(slow / slow.sum(axis=-1, keepdims=True), 15).tolist()


def _chain(belief: Form, factor: float) -> Form:
    return belief | {"transition": _matrix(belief["transition"], factor)}


def _reach(m: int, factor: float) -> tuple[int, int]:
    """Moves of m slots beyond which lie less than 1e-17, by Hoeffding, which the outward rounding covers."""
    spread = 4.5 * math.sqrt(m)
    return max(0, math.floor(m / factor - spread)), min(m, math.ceil(m / factor + spread))


def _curve(points: Any, factor: float) -> list[list[float]]:
    if factor == 1:
        return points
    from scipy.stats import binom  # noqa: PLC0415 - half a second that only this one needs

    # any of many points are a bound; short ones decide what dense windows cost, and the last what seldom ones do
    kept = np.unique(np.geomspace(1, len(points), _POINTS).astype(int)) - 1
    points = [points[at] for at in kept.tolist()]
    steps = sorted({min(MOST_STEPS, math.ceil(one * m)) for m, _ in points for one in (1, factor)})
    moves = np.arange(_reach(steps[-1], factor)[1] + 1)
    etas = np.ones(len(moves))
    for m, eta in points:
        # total variation is submultiplicative: j moves are j // m times m
        np.minimum(etas, np.power(float(eta), moves // m), out=etas)
    means: list[float] = []
    for m in steps:
        few, many = _reach(m, factor)
        likely = slice(few, many + 1)
        means.append(float(binom.pmf(moves[likely], m, 1 / factor) @ etas[likely]) + _OUTWARD)
    return [[m, min(1.0, mean)] for m, mean in zip(steps, np.minimum.accumulate(means).tolist(), strict=True)]


_SLOWED: dict[str, Callable[[Form, float], Form]] = {
    "markov-chain": _chain,
    "finite-class": lambda belief, factor: belief | {"chains": [_chain(one, factor) for one in belief["chains"]]},
    "any-initial": lambda belief, factor: (
        belief | {"transitions": [_matrix(one, factor) for one in belief["transitions"]]}
    ),
    "periodic-chain": lambda belief, factor: belief | {"transitions": _matrix(belief["transitions"], factor)},
    "mixing-bounds": lambda belief, factor: belief | {"gap": belief["gap"] / factor},
    "dobrushin-bounds": lambda belief, factor: (
        belief | {side: _curve(belief[side], factor) for side in ("forward", "backward")}
    ),
}
