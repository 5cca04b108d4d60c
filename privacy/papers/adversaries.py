"""Close adversaries ([SWC17] section 2.4): what releases cost against a belief outside the class.

Let M be epsilon-Pufferfish private for a class Theta. Against a belief theta' outside it, M is (epsilon + 2
Delta)-Pufferfish private, where Delta is the least over theta in Theta of the largest, over secrets s, of the two
conditional max-divergences D(P(X | s, theta') || P(X | s, theta)) and D(P(X | s, theta) || P(X | s, theta')), with
D(p || q) = max over x of log p(x) / q(x).

Proof: P(w | s, theta') <= e^Delta P(w | s, theta) <= e^{Delta + epsilon} P(w | s', theta) <= e^{2 Delta + epsilon}
P(w | s', theta').

>>> near, model = MarkovChain([[0.9, 0.1], [0.42, 0.58]]), MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> round(adversary_divergence(near, model, length=5), 4)
0.1464
>>> round(adversary_epsilon(1.0, near, model, length=5), 4)
1.2927
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from ..models.belief import Belief
from ..models.markov_chain import FloatArray, MarkovChain
from ..models.periodic import reachable
from ..validation import a_slot, positive
from .joint import JointTable
from .networks import log_sum

Law: TypeAlias = MarkovChain | JointTable


def adversary_divergence(adversary: Law, belief: Law | Belief | Iterable[Law], length: int | None = None) -> float:
    """Delta of [SWC17] section 2.4: how far an adversary's belief is from the nearest member of a class.

    The secrets are the states of every slot or record that have positive probability for the adversary; a member that
    gives one of them probability 0 is infinitely far. Chains need no enumeration: the log-ratio of two sequence
    probabilities is a sum over steps, so its largest value with a given state in a given slot is found by dynamic
    programming from both ends.

    Args:
        adversary: the belief outside the class, a chain or a table.
        belief: one belief of the same kind, or those of a class.
        length: slots of the window, for chains; tables have none.

    Returns:
        Delta, 0 or more; infinite where each member calls impossible what the adversary does not, or the reverse.

    Raises:
        ChainError: a chain is meant to be stationary and is reducible.
        TypeError: the beliefs are of different kinds.
        ValueError: the class is empty, length is missing or superfluous, or the beliefs differ in their size.
    """
    members = list(belief if isinstance(belief, Iterable) else belief.members)
    if not members:
        raise ValueError("belief has no member: give at least one")
    if (length is None) != isinstance(adversary, JointTable):
        raise ValueError(f"length is {length}: give the slots of a window for chains, and nothing for tables")
    found: list[float] = []
    for member in members:
        if isinstance(adversary, JointTable) and isinstance(member, JointTable):
            found.append(_of_tables(adversary, member))
        elif isinstance(adversary, MarkovChain) and isinstance(member, MarkovChain) and length is not None:
            found.append(_of_chains(adversary, member, a_slot("length", length, "give slots", least=1)))
        else:
            raise TypeError(f"belief has a {type(member).__name__}, and the adversary is a {type(adversary).__name__}")
    return min(found)


def adversary_epsilon(
    epsilon: float, adversary: Law, belief: Law | Belief | Iterable[Law], length: int | None = None
) -> float:
    """The loss against a belief outside the class, epsilon + 2 Delta ([SWC17] section 2.4).

    Epsilon is what the release loses under the class; all else is as for `adversary_divergence`.
    """
    target = positive("epsilon", epsilon, "give what the release loses under the class")
    return target + 2 * adversary_divergence(adversary, belief, length)


def _of_tables(adversary: JointTable, member: JointTable) -> float:
    if adversary.records != member.records:
        raise ValueError(f"belief has a table of {member.records} records, and the adversary's {adversary.records}")
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
        raise ValueError(f"belief has a chain of {member.states} states, and the adversary's has {adversary.states}")
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
