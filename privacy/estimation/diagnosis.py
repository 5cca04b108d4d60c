"""What to know about a history before a chain is believed: facts about its chain, and which series lie outside a class.

The results are functions of the history, as a fit is: for whoever fits, not for publication.

>>> diagnosis = diagnose(np.array([[90, 10], [9, 41]]))
>>> diagnosis.irreducible, diagnosis.multiplicity, diagnosis.rarest_visits
(True, 1, 51)
>>> len(diagnosis.warnings())  # 51 visits are few
1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from ..models.markov_chain import MarkovChain
from ..validation import as_array, instance
from .transition_counts import (
    EstimationError,
    TransitionCounts,
    chain_from_counts,
    name_states,
    table_of,
    visited_states,
)

#: Below this number of visits a stationary probability has a relative standard error of 10 % or more.
FEW_VISITS = 100

#: What makes rare states fewer; a label that is left out instead would make its readings rejects.
_FEWER = "merge the bin with its neighbour, or labels as 'other'"


@runtime_checkable
class Coverage(Protocol):
    """A class of chains that can say which chains it holds, such as `MixingBounds`."""

    def covers(self, chain: MarkovChain) -> bool:
        """Whether the chain lies in the class."""
        ...


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Facts about the plug-in chain of a history, over the states that the history visits.

    They are functions of the history, as the chain is: for whoever fits, not for publication.

    Attributes:
        states: number of states k.
        transitions: number of transitions counted.
        rarest_visits: visits of the rarest visited state, 0 without any.
        never_visited: states without a visit.
        never_left: states visited, but without a transition out; their row of P is unknown.
        irreducible: whether every visited state reaches every other.
        period: period of the chain; None where it is reducible, as for all fields below.
        multiplicity: how often P P* has the eigenvalue 1.
        pi_min: smallest stationary probability.
        gap: spectral gap of P P*, counted with multiplicity.
    """

    states: int
    transitions: int
    rarest_visits: int
    never_visited: tuple[int, ...]
    never_left: tuple[int, ...]
    irreducible: bool
    period: int | None = None
    multiplicity: int | None = None
    pi_min: float | None = None
    gap: float | None = None

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the chain as a belief, each with the next step: sentences, worst first."""
        if self.transitions == 0:
            return ("the history has no transition: it says nothing about the chain, give more data",)
        found: list[str] = []
        if self.never_left:
            found.append(
                f"visited but never left: state {name_states(self.never_left, None)}; where it leads is unknown: "
                f"smooth the counts, or {_FEWER}"
            )
        elif not self.irreducible:
            found.append(
                "the chain is reducible: some visited states never reach some others, so it has no mixing rate: "
                "smooth the counts, or merge bins"
            )
        if self.period is not None and self.period > 1:
            found.append(
                f"the chain is periodic with period {self.period}, so it never mixes: smooth the counts, or merge bins"
            )
        if self.multiplicity is not None and self.multiplicity > 1:
            found.append(
                f"P P* is reducible though P is not: it has the eigenvalue 1 {self.multiplicity} times, so its gap is "
                "0 and the closed-form bound of Lemma 4.8 is void: smooth the counts, merge rare bins, or use an exact "
                "method"
            )
        if self.never_visited:
            found.append(
                f"never visited: state {name_states(self.never_visited, None)}; the chain says nothing about a state "
                f"that may still turn up: smooth the counts, or {_FEWER}"
            )
        if self.states - len(self.never_visited) == 1:
            found.append(
                "the history stays in one state: its mixing cannot be seen, so its gap says nothing: use more series, "
                "or finer bins"
            )
        if self.rarest_visits < FEW_VISITS:
            found.append(
                f"the rarest state was visited {self.rarest_visits} times, pi_min needs about {FEW_VISITS}: "
                f"give more history, or {_FEWER}"
            )
        return tuple(found)


def diagnose(counts: ArrayLike, visits: ArrayLike | None = None) -> Diagnostics:
    """Describe the plug-in chain of pooled transition counts, without smoothing.

    Args:
        counts: transitions, shape (k, k).
        visits: cells seen per state, shape (k,); where left out, the larger of the transitions
            out of and into each state.

    Returns:
        The facts; a history without a chain has them too, with None where nothing can be said.
    """
    counts = table_of(counts)
    k = len(counts)
    left, entered = counts.sum(axis=1), counts.sum(axis=0)
    seen = np.maximum(left, entered) if visits is None else as_array("visits", visits)
    if seen.shape != (k,):
        raise EstimationError(f"visits: the shape is {seen.shape}, and must be ({k},): one number per state")
    if not np.issubdtype(seen.dtype, np.integer):
        raise EstimationError(f"visits: the type is {seen.dtype}, and must be of integers: count cells")
    if (seen < left).any() or (seen < entered).any():
        raise EstimationError("visits: a state has fewer visits than transitions: pass visits of the same history")
    visited = seen > 0
    never_left = np.flatnonzero(visited & (left == 0))
    known = Diagnostics(
        states=k,
        transitions=int(counts.sum()),
        rarest_visits=int(seen[visited].min()) if visited.any() else 0,
        never_visited=tuple(np.flatnonzero(~visited).tolist()),
        never_left=tuple(never_left.tolist()),
        irreducible=False,
    )
    if never_left.size or not visited.any():
        return known
    kept = visited_states(counts)
    chain = chain_from_counts(counts[np.ix_(kept, kept)])
    if not chain.is_irreducible:
        return known
    return replace(
        known,
        irreducible=True,
        period=chain.period,
        multiplicity=chain.gap_multiplicity,
        pi_min=chain.pi_min,
        gap=chain.gap,
    )


def outside(bounds: Coverage, counts: TransitionCounts) -> tuple[str, ...]:
    """Return the series whose own plug-in chain lies outside a class: for them the stated loss does not hold.

    The chain of a series is taken over all k states and without smoothing (theory section 7, item 5b). A series that
    never visits a state, or never leaves one, is outside: its smallest stationary probability is 0, or unknown. Rare
    states make the plug-in chains of short series stray, so the number tends to be too high.

    Returns:
        Names, sorted.
    """
    instance("bounds", bounds, Coverage, advice="give a class that has `covers`")
    instance("counts", counts, TransitionCounts)
    return tuple(
        name
        for name, table in zip(counts.series, counts.counts, strict=True)
        if (table.sum(axis=1) == 0).any() or not bounds.covers(chain_from_counts(table))
    )
