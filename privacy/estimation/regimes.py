"""Kinds of days, and the contraction class that holds for someone who knows the kind of each day.

A chain that is fitted to a year mixes weekdays and holidays, so its account holds against someone who knows neither.
Given the kind of each day a series follows the kernel of that kind, and the class has to hold for the chain that
changes from day to day. The kinds are a public calendar, or *thirds* of the days of each series by the share of its
lowest state. Thirds are an estimate of a hidden label that is drawn first, the day then following its label's chain;
given the third itself a day is no Markov chain, so there the promise is given the label.

*The curves* of one series are those of the periodic chain whose days are a sequence in which every three kinds follow
each other (de Bruijn's). A stretch of at most a day touches two days, and the marginals before it are those that the
third one leaves, so curves over at most a day's slots hold for every order of days, but for what a series still knows
of its state more than a day before.

>>> path = Path(0, np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0], dtype=np.int8))
>>> thirds(path, np.repeat([0, 1, 2], 4)).tolist()
[1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]
>>> every_three(2)
[0, 0, 0, 1, 0, 1, 1, 1]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.directions import STEPS
from ..models.dobrushin import contraction
from ..models.markov_chain import ChainError, FloatArray, MarkovChain
from ..models.periodic import PeriodicChain
from .belief_checks import Path
from .per_series import PSEUDO_VISITS, Contractions, score_of
from .transition_counts import EstimationError

#: Kinds up to which every three are followed.
MOST_KINDS = 4

THIRDS = 3

_IN_A_ROW = 3


def thirds(path: Path, days: NDArray[np.int64]) -> NDArray[np.int8]:
    """The third of each slot's day by the share of the lowest state, -1 on days without a state.

    Args:
        path: The states of a series.
        days: A number of the day of each of its slots, shape (slots,).
    """
    _, day = np.unique(days, return_inverse=True)
    seen = path.states >= 0
    readings = np.bincount(day[seen], minlength=int(day.max()) + 1)
    lowest = np.bincount(day[path.states == 0], minlength=len(readings))
    used = np.flatnonzero(readings)
    order = used[np.argsort(lowest[used] / readings[used], kind="stable")]
    kinds = np.full(len(readings), -1, dtype=np.int8)
    kinds[order] = np.arange(len(order)) * THIRDS // max(len(order), 1)
    return kinds[day]


def contractions_by_kind(
    paths: Sequence[Path], kinds: Sequence[NDArray[np.int8]], number: int, states: int, day: int
) -> Contractions:
    """The curves of all series given the kind of each day.

    To the rows of a series on days of a kind visits of the pooled row of that kind are added, and to these visits of
    the row of all kinds.

    Args:
        paths: The states of every series.
        kinds: The kind of each slot's day, -1 for none, of every series.
        number: How many kinds there are.
        states: How many states there are.
        day: Slots of a day.

    Raises:
        EstimationError: There is no series, a kind without a transition, or a state that no series leaves.
        ChainError: A chain is reducible.
    """
    if not 1 <= number <= MOST_KINDS:
        raise EstimationError(f"kinds: there are {number}, and must be from 1 to {MOST_KINDS}: put kinds together")
    tables = np.zeros((len(paths), number, states, states))
    for table, path, own in zip(tables, paths, kinds, strict=True):
        here, there = path.states[:-1], path.states[1:]
        seen = (here >= 0) & (there >= 0) & (own[:-1] >= 0)
        np.add.at(table, (own[:-1][seen], here[seen], there[seen]), 1)
    by_kind = tables.sum(axis=0)
    if not len(paths) or not by_kind.any(axis=(1, 2)).all():
        raise EstimationError("kinds: one has no transition in the history: give a longer history, or fewer kinds")
    together = by_kind.sum(axis=0)
    if not together.any(axis=1).all():
        raise EstimationError("a state is never left in the history: merge rare bins, or give more series")
    pooled = _rows(by_kind + PSEUDO_VISITS * _rows(together))
    rows = _rows(tables + PSEUDO_VISITS * pooled)
    cycle = every_three(number)
    steps = tuple(m for m in STEPS if m <= day)
    curves = [contraction(PeriodicChain(np.repeat(own[cycle], day, axis=0)), steps) for own in rows]
    forward, backward = (np.array([pair[side] for pair in curves]) for side in (0, 1))
    chains = tuple(MarkovChain(one) for own in rows for one in own)
    if not all(chain.is_irreducible for chain in chains):
        raise ChainError("the chain of a kind of day is reducible: merge rare bins, or give more series")
    scores = np.array([score_of(steps, *pair) for pair in curves])
    return Contractions(chains, forward, backward, scores, steps, number)


def every_three(number: int) -> list[int]:
    """The shortest cycle of so many kinds in which every three follow each other, the least one."""
    found: list[int] = []
    word = [0] * (_IN_A_ROW + 1)

    def extend(at: int, period: int) -> None:
        if at > _IN_A_ROW:
            if _IN_A_ROW % period == 0:
                found.extend(word[1 : period + 1])
            return
        word[at] = word[at - period]
        extend(at + 1, period)
        for kind in range(word[at - period] + 1, number):
            word[at] = kind
            extend(at + 1, at)

    extend(1, 1)
    return found


def _rows(table: FloatArray) -> FloatArray:
    return table / table.sum(axis=-1, keepdims=True)
