"""From counted transitions to a chain: what a history says about the belief, and what speaks against it.

A transition is counted between two present cells of one series in adjacent slots; a gap cuts. Everything here is a
function of the history it is given, for whoever fits and not for publication. A history of the very series that the
chain is to protect makes the chain, the quilt and the noise functions of their secrets (theory section 7, item 5): take
other series, or released rows.

>>> counts = TransitionCounts(("a",), np.array([[[90, 10], [9, 41]]]), np.array([[100, 51]]))
>>> chain_from_counts(counts.pooled()).transition.tolist()
[[0.9, 0.1], [0.18, 0.82]]
>>> found = diagnose(counts.pooled())
>>> found.irreducible, found.multiplicity, found.rarest_visits
(True, 1, 51)
>>> len(found.warnings())  # 51 visits are few
1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..models.classes import MixingBounds
from ..models.dobrushin import DobrushinBounds
from ..models.markov_chain import MarkovChain
from ..validation import PrivacyError, as_array, as_list, instance, number, whole


class EstimationError(PrivacyError):
    """Counts from which no chain can be estimated, or counts that do not fit together."""


@dataclass(frozen=True, slots=True, eq=False)
class TransitionCounts:  # noqa: PLW1641 - arrays have no hash
    """Transitions and visits per series: a value that can be added up in any order.

    Series are kept sorted by name, whatever order they are given in, so that equal contents are equal values. The
    arrays are private copies that cannot be written to.

    Attributes:
        series: n different names.
        counts: int64, shape (n, k, k): transitions from state x to state y, [series, x, y].
        visits: int64, shape (n, k): cells seen in each state, also those without a successor.

    Raises:
        EstimationError: shapes, types or values that no history can have. No name and no count is in the message.
    """

    series: tuple[str, ...]
    counts: NDArray[np.int64]
    visits: NDArray[np.int64]

    def __post_init__(self) -> None:
        counts, visits = as_array("counts", self.counts), as_array("visits", self.visits)
        names = as_list("series", self.series, "names, one for each series")
        if not all(isinstance(name, str) for name in names) or len({*names}) != len(names) or len(names) != len(counts):
            raise EstimationError(
                f"series: {len(names)} names for {len(counts)} tables: give a name to each, all different"
            )
        k = counts.shape[-1]
        shapes = (len(names), k, k), (len(names), k)
        if not counts.dtype == visits.dtype == np.int64 or (counts.shape, visits.shape) != shapes:
            raise EstimationError(
                f"counts and visits: shapes and types are {counts.shape} of {counts.dtype} and {visits.shape} of "
                f"{visits.dtype}, and must be (n, k, k) and (n, k) of int64: count cells, do not weigh them"
            )
        if (counts < 0).any() or (counts.sum(axis=2) > visits).any() or (counts.sum(axis=1) > visits).any():
            raise EstimationError(
                "counts: a count is negative, or a state has more transitions than visits: every cell has at most one "
                "successor and one predecessor"
            )
        order = sorted(range(len(names)), key=names.__getitem__)
        object.__setattr__(self, "series", tuple(names[index] for index in order))
        for name, array in (("counts", counts), ("visits", visits)):
            kept = array[order]
            kept.setflags(write=False)
            object.__setattr__(self, name, kept)

    @classmethod
    def empty(cls, states: int) -> TransitionCounts:
        """Return the counts of no series over `states` states, the neutral element of `merged`."""
        # a table of the most states takes 8 GB
        k = whole("states", states, "give the number of bins", least=1, most=2**15)
        return cls((), np.zeros((0, k, k), dtype=np.int64), np.zeros((0, k), dtype=np.int64))

    @classmethod
    def merged(cls, parts: Iterable[TransitionCounts]) -> TransitionCounts:
        """Add several counts up, by the names of their series; the order does not matter.

        Raises:
            EstimationError: there is no part, or the parts differ in their number of states.
        """
        members = list(parts)
        sizes = sorted({part.states for part in members})
        if len(sizes) != 1:
            raise EstimationError(f"parts: their numbers of states are {sizes}, and must be one: use the same bins")
        names = sorted({name for part in members for name in part.series})
        place = {name: index for index, name in enumerate(names)}
        counts = np.zeros((len(names), sizes[0], sizes[0]), dtype=np.int64)
        visits = np.zeros((len(names), sizes[0]), dtype=np.int64)
        for part in members:
            # names are unique within a part, so every row is added once
            rows = np.array([place[name] for name in part.series], dtype=np.intp)
            counts[rows] += part.counts
            visits[rows] += part.visits
        return cls(tuple(names), counts, visits)

    def subset(self, names: Iterable[str]) -> TransitionCounts:
        """Keep only the named series.

        Raises:
            EstimationError: a name is not among the series; the message says how many.
        """
        wanted = {str(name) for name in as_list("names", names, "names of series")}
        missing = len(wanted.difference(self.series))
        if missing:
            raise EstimationError(f"names: {missing} of {len(wanted)} are not among the {len(self.series)} series")
        rows = [index for index, name in enumerate(self.series) if name in wanted]
        return TransitionCounts(tuple(self.series[row] for row in rows), self.counts[rows], self.visits[rows])

    def pooled(self) -> NDArray[np.int64]:
        """Return the transitions of all series together, shape (k, k)."""
        return self.counts.sum(axis=0)

    def pooled_visits(self) -> NDArray[np.int64]:
        """Return the visits of all series together, shape (k,)."""
        return self.visits.sum(axis=0)

    @property
    def states(self) -> int:
        """Number of states k."""
        return self.counts.shape[1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TransitionCounts):
            return NotImplemented
        pairs = (self.counts, other.counts), (self.visits, other.visits)
        return self.series == other.series and all(np.array_equal(*pair) for pair in pairs)

    def __repr__(self) -> str:
        return f"TransitionCounts(series={len(self.series)}, states={self.states})"


def chain_from_counts(counts: ArrayLike, smoothing: float = 0.0, *, labels: Sequence[str] | None = None) -> MarkovChain:
    """Estimate a chain with a stationary start from pooled transition counts.

    P(x, y) = (n(x, y) + smoothing) / (n(x, .) + k smoothing). Smoothing is an assumption, not data: it can give a rare
    state more weight than it has, and less noise follows from that.

    Args:
        counts: transitions from x (row) to y (column), shape (k, k), not negative.
        smoothing: what is added to every cell of a row, 0 or more.
        labels: what messages call the states; their numbers where left out.

    Returns:
        The chain over all k states; it may be reducible, which `diagnose` says.

    Raises:
        EstimationError: an argument out of range; or, without smoothing, a state that was never visited, or visited but
            never left, since its row is then unknown.
    """
    counts = table_of(counts)
    k = len(counts)
    advice = f"1/k = {1 / k:.3g} is a mild choice"
    smoothing = number("smoothing", smoothing, advice)
    if not (math.isfinite(smoothing) and smoothing >= 0):
        raise EstimationError(f"smoothing: {smoothing} is negative or not finite: {advice}")
    left, entered = counts.sum(axis=1), counts.sum(axis=0)
    if smoothing == 0 and (left == 0).any():
        reasons = (
            ("never visited", np.flatnonzero((left == 0) & (entered == 0))),
            ("visited but never left", np.flatnonzero((left == 0) & (entered > 0))),
        )
        said = "; ".join(f"{why}: {name_states(states.tolist(), labels)}" for why, states in reasons if states.size)
        raise EstimationError(
            f"counts: the history does not say where some of its {k} states lead ({said}): merge these bins with their "
            "neighbours, put labels under another one, as 'other', or smooth the counts"
        )
    return MarkovChain((counts + smoothing) / (left + k * smoothing)[:, np.newaxis])


def table_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return a table of shape (k, k) of whole numbers, none negative, or raise `EstimationError`."""
    counts = as_array("counts", counts)
    if counts.shape != counts.shape[:1] * 2 or not counts.size or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise EstimationError(
            f"counts: shape and type are {counts.shape} and {counts.dtype}, and must be (k, k) whole numbers, none "
            "negative: count transitions"
        )
    return counts


def name_states(states: Sequence[int], labels: Sequence[str] | None = None) -> str:
    """Name states for a message, by number and by label where there is one; at most eight of them."""
    shown = [f"{state} ({labels[state]})" if labels else str(state) for state in states[:8]]
    more = f" and {len(states) - len(shown)} more" if len(states) > len(shown) else ""
    return ", ".join(shown) + more


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Facts about the plug-in chain of a history, over the states that the history visits."""

    states: int  # number of states k
    transitions: int  # number of transitions counted
    rarest_visits: int  # visits of the rarest visited state, 0 without any
    never_visited: tuple[int, ...]  # states without a visit
    never_left: tuple[int, ...]  # states visited, but without a transition out; their row of P is unknown
    irreducible: bool  # whether every visited state reaches every other; where not, there is nothing of what follows
    period: int | None = None  # period of the chain
    multiplicity: int | None = None  # how often P P* has the eigenvalue 1
    pi_min: float | None = None  # smallest stationary probability
    gap: float | None = None  # spectral gap of P P*, counted with multiplicity

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the chain as a belief, each with the next step: sentences, worst first."""
        if self.transitions == 0:
            return ("the history has no transition: it says nothing about the chain, give more data",)
        # a label that is left out instead would make its readings rejects
        fewer = "merge the bin with its neighbour, or labels as 'other'"
        few = 100  # visits below which a stationary probability has a relative standard error of 10 % or more
        reducible = not self.irreducible and not self.never_left
        said = {
            f"visited but never left: state {name_states(self.never_left)}; where it leads is unknown: smooth the "
            f"counts, or {fewer}": bool(self.never_left),
            "the chain is reducible: some visited states never reach some others, so it has no mixing rate: smooth the "
            "counts, or merge bins": reducible,
            f"the chain is periodic with period {self.period}, so it never mixes: smooth the counts, or merge bins": (
                self.period or 1
            )
            > 1,
            f"P P* is reducible though P is not: it has the eigenvalue 1 {self.multiplicity} times, so its gap is 0 "
            "and the closed-form bound of Lemma 4.8 is void: smooth the counts, merge rare bins, or use an exact "
            "method": (self.multiplicity or 1) > 1,
            f"never visited: state {name_states(self.never_visited)}; the chain says nothing about a state that may "
            f"still turn up: smooth the counts, or {fewer}": bool(self.never_visited),
            "the history stays in one state: its mixing cannot be seen, so its gap says nothing: use more series, or "
            "finer bins": self.states - len(self.never_visited) == 1,
            f"the rarest state was visited {self.rarest_visits} times, pi_min needs about {few}: give more history, or "
            f"{fewer}": self.rarest_visits < few,
        }
        return tuple(text for text, holds in said.items() if holds)


def diagnose(counts: ArrayLike, visits: NDArray[np.int64] | None = None) -> Diagnostics:
    """Describe the plug-in chain of pooled transition counts, without smoothing.

    Args:
        counts: transitions, shape (k, k).
        visits: cells seen per state, shape (k,); where left out, the larger of the transitions out of and into each
            state.

    Returns:
        The facts; a history without a chain has them too, with None where nothing can be said.
    """
    counts = table_of(counts)
    left, entered = counts.sum(axis=1), counts.sum(axis=0)
    seen = np.maximum(left, entered) if visits is None else visits
    visited = seen > 0
    never_left = np.flatnonzero(visited & (left == 0))
    known = Diagnostics(
        states=len(counts),
        transitions=int(counts.sum()),
        rarest_visits=int(seen[visited].min()) if visited.any() else 0,
        never_visited=tuple(np.flatnonzero(~visited).tolist()),
        never_left=tuple(never_left.tolist()),
        irreducible=False,
    )
    if never_left.size or not visited.any():
        return known
    kept = np.flatnonzero(left + entered)
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


def outside(bounds: MixingBounds | DobrushinBounds, counts: TransitionCounts) -> tuple[str, ...]:
    """Return the series whose own plug-in chain lies outside a class: for them the stated loss does not hold.

    The chain of a series is taken over all k states and without smoothing (theory section 7, item 5b). A series that
    never visits a state, or never leaves one, is outside: its smallest stationary probability is 0, or unknown. Rare
    states make the plug-in chains of short series stray, so the number tends to be too high.

    Returns:
        Names, sorted.
    """
    instance("counts", counts, TransitionCounts)
    return tuple(
        name
        for name, table in zip(counts.series, counts.counts, strict=True)
        if (table.sum(axis=1) == 0).any() or not bounds.covers(chain_from_counts(table))
    )
