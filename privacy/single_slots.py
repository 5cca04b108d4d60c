"""Influence tables of one slot of a window: what is known of a slot near the start of a chain, or near an end.

``sided_influence`` holds at every slot. Here the slot is named, so a chain with a fixed initial distribution has its
own left side there, and a window its ends. It is what ``mqm_exact`` and ``pairwise`` search through, slot by slot.

>>> import numpy as np
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]], [0.8, 0.2])
>>> tables = slot_influence(chain, slot=2, length=3)
>>> [np.exp(side[:, 0]).max().round(6).tolist() for side in (tables.left, tables.right)]
[6.0, 6.0]
"""

from __future__ import annotations

import numpy as np

from .chains import ChainError, FloatArray, MarkovChain, frozen
from .checks import whole
from .classes import AnyInitial, Belief, BinaryInterval, FiniteClass, MixingBounds, check_belief
from .influence import PairLabel, SidedInfluence, longest
from .nodes import WALL, ChainNodes


def slot_influence(belief: Belief, slot: int, length: int, *, literal: bool = False) -> SidedInfluence:
    """The tables of one slot of a window ([SWC17] Equation 5 and App. C.4), rounded outward.

    With m_i the distribution of slot i and F as in ``sided_influence``, the left side R_a[x, x'] is

    - for a fixed initial distribution the maximum of log(P^a(y, x) m_i(x') / (P^a(y, x') m_i(x))) over the states y
      that are possible at slot i - a, or over all of them with ``literal``, as the numbers printed in [SWC17] do;
    - for a stationary chain the same with m_i = pi;
    - for every initial distribution M_{i-1}[x, x'] + M_a[x', x], M_n[x, x'] = max_y log(P^n(y, x') / P^n(y, x)).

    Pairs of which a state is impossible at the slot are no secret pairs and have no row. Both sides have length - 1
    lags, infinite where the window has no slot so far away.

    Args:
        belief: A chain or a class of chains; its initial distribution is that of slot 1.
        slot: The slot i, from 1.
        length: Slots of the window.
        literal: Whether states count that are impossible at the earlier slot.

    Raises:
        ChainError: If the belief names no chain, or a chain that is to start stationary is reducible.
        TypeError: If it is no belief, or slot or length is not a whole number.
        ValueError: If slot or length is out of range.
    """
    check_belief(belief)
    if isinstance(belief, MixingBounds):
        raise ChainError("a single slot needs the chains themselves, but mixing bounds name none: use mixing_influence")
    length = whole("length", length, "give the slots of the window", least=1)
    slot = whole("slot", slot, "give a slot of the window, from 1", least=1)
    if slot > length:
        raise ValueError(f"slot is {slot}, but the window has {length}: give a slot from 1 to {length}")
    most = longest(belief.states) + 1
    if length > most:
        raise ValueError(
            f"length is {length}, but tables of {belief.states} states have at most {most} slots: give a shorter window"
        )
    free = isinstance(belief, AnyInitial | BinaryInterval)
    lefts, rights, pairs = list[FloatArray](), list[FloatArray](), list[PairLabel]()
    for member, chain in enumerate(_members(belief)):
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


def _members(belief: MarkovChain | FiniteClass | AnyInitial | BinaryInterval) -> tuple[MarkovChain, ...]:
    if isinstance(belief, MarkovChain):
        return (belief,)
    return belief.worst.chains if isinstance(belief, BinaryInterval) else belief.chains


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
