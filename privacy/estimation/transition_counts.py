"""From counted transitions to a chain: what a history says about the belief.

A transition is counted between two present cells of one series in adjacent slots; a gap cuts. Everything here is a
function of the history it is given. A history of the very series that the chain is to protect makes the chain, the
quilt and the noise functions of their secrets (theory section 7, item 5): take other series, or released rows.

>>> counts = TransitionCounts(("a",), np.array([[[90, 10], [9, 41]]]), np.array([[100, 51]]))
>>> chain_from_counts(counts.pooled()).transition.tolist()
[[0.9, 0.1], [0.18, 0.82]]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..models.markov_chain import MarkovChain
from ..validation import PrivacyError, as_array, as_list, instance, number, whole

_MOST_STATES = 2**15  # of which one table takes 8 GB
_CUBE = 3  # axes of the counts of several series: series, from, to
_SHOWN = 8  # states named in one message


class EstimationError(PrivacyError):
    """Counts from which no chain can be estimated, or counts that do not fit together."""


@dataclass(frozen=True, slots=True, eq=False)
class TransitionCounts:
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
        if not all(isinstance(name, str) for name in names):
            raise EstimationError("series: a name is no text: give one name per series")
        if counts.dtype != np.int64 or visits.dtype != np.int64:
            raise EstimationError(
                f"counts and visits: the types are {counts.dtype} and {visits.dtype}, and must be int64: count cells, "
                "do not weigh them"
            )
        if counts.ndim != _CUBE or counts.shape[1] != counts.shape[2] or visits.shape != counts.shape[:2]:
            raise EstimationError(
                f"counts and visits: the shapes are {counts.shape} and {visits.shape}, and must be (n, k, k) and (n, k)"
            )
        if len(names) != counts.shape[0]:
            raise EstimationError(f"series: {len(names)} names for {counts.shape[0]} tables: give one name per series")
        if len(set(names)) != len(names):
            raise EstimationError("series: a name occurs twice: add the counts of a series with merge")
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
        """Return the counts of no series over `states` states, the neutral element of `merge`."""
        k = whole("states", states, "give the number of bins", least=1, most=_MOST_STATES)
        return cls((), np.zeros((0, k, k), dtype=np.int64), np.zeros((0, k), dtype=np.int64))

    @classmethod
    def merged(cls, parts: Iterable[TransitionCounts]) -> TransitionCounts:
        """Add several counts up, by the names of their series; the order does not matter.

        Raises:
            EstimationError: there is no part, or the parts differ in their number of states.
        """
        members = as_list("parts", parts, "TransitionCounts")
        for part in members:
            instance("parts", part, TransitionCounts)
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

    def merge(self, other: TransitionCounts) -> TransitionCounts:
        """Add two counts up, by the names of their series; commutative and associative.

        Raises:
            EstimationError: they differ in their number of states.
        """
        instance("other", other, TransitionCounts)
        return TransitionCounts.merged((self, other))

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
        return (
            self.series == other.series
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.visits, other.visits)
        )

    def __hash__(self) -> int:
        return hash((self.series, self.counts.tobytes(), self.visits.tobytes()))

    def __repr__(self) -> str:
        return f"TransitionCounts(series={len(self.series)}, states={self.states})"

    def __reduce__(self) -> tuple[type[TransitionCounts], tuple[object, ...]]:
        # rebuilt by the constructor: a pickled array comes back writable
        return TransitionCounts, (self.series, self.counts, self.visits)


def chain_from_counts(
    counts: ArrayLike,
    smoothing: float = 0.0,
    *,
    floor: float = 0.0,
    labels: Sequence[str] | None = None,
) -> MarkovChain:
    """Estimate a chain with a stationary start from pooled transition counts.

    P(x, y) = (n(x, y) + smoothing) / (n(x, .) + k smoothing), and then, with a floor, (1 - k floor) P(x, y) + floor.

    Smoothing and floor are assumptions, not data: both can give a rare state more weight than it has, and less noise
    follows from that. With a floor every transition, and so every stationary probability, is at least the floor.

    Args:
        counts: transitions from x (row) to y (column), shape (k, k), not negative.
        smoothing: what is added to every cell of a row, 0 or more.
        floor: least transition probability, from 0 to below 1/k.
        labels: what messages call the states; their numbers where left out.

    Returns:
        The chain over all k states; it may be reducible, which `diagnose` says.

    Raises:
        EstimationError: an argument out of range; or, without smoothing, a state that was never visited, or visited but
            never left, since its row is then unknown.
    """
    counts = table_of(counts)
    k = len(counts)
    smoothing = number("smoothing", smoothing, f"1/k = {1 / k:.3g} is a mild choice")
    floor = number("floor", floor, "give a least transition probability, or 0 for none")
    if not (math.isfinite(smoothing) and smoothing >= 0):
        raise EstimationError(f"smoothing: {smoothing} is negative or not finite: 1/k = {1 / k:.3g} is a mild choice")
    if not 0 <= floor < 1 / k:
        raise EstimationError(
            f"floor: {floor} is outside 0 to 1/k = {1 / k:.6g}: the entries of a row must leave room for each other"
        )
    left = counts.sum(axis=1)
    if smoothing == 0 and (left == 0).any():
        raise EstimationError(_unknown_rows(counts, labels))
    transition = (counts + smoothing) / (left + k * smoothing)[:, np.newaxis]
    return MarkovChain((1 - k * floor) * transition + floor if floor else transition)


def visited_states(counts: ArrayLike) -> NDArray[np.intp]:
    """Return the states v that a transition leaves or enters, ascending; `counts[np.ix_(v, v)]` is their table."""
    counts = table_of(counts)
    return np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1))


def table_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return a table of shape (k, k) of whole numbers, none negative, or raise `EstimationError`."""
    counts = as_array("counts", counts)
    if counts.ndim != _CUBE - 1 or counts.shape[0] != counts.shape[1] or counts.shape[0] == 0:
        raise EstimationError(f"counts: the shape is {counts.shape}, and must be (k, k) with k at least 1")
    if not np.issubdtype(counts.dtype, np.integer):
        raise EstimationError(f"counts: the type is {counts.dtype}, and must be of integers: count transitions")
    if (counts < 0).any():
        raise EstimationError("counts: a count is negative: pass transition counts")
    return counts


def _unknown_rows(counts: NDArray[np.int64], labels: Sequence[str] | None) -> str:
    left, entered = counts.sum(axis=1), counts.sum(axis=0)
    reasons = (
        ("never visited", np.flatnonzero((left == 0) & (entered == 0))),
        ("visited but never left", np.flatnonzero((left == 0) & (entered > 0))),
    )
    said = "; ".join(f"{reason}: {name_states(states.tolist(), labels)}" for reason, states in reasons if states.size)
    return (
        f"counts: the history does not say where some of its {len(counts)} states lead ({said}): merge these bins "
        "with their neighbours, put labels under another one, as 'other', or smooth the counts"
    )


def name_states(states: Sequence[int], labels: Sequence[str] | None) -> str:
    """Name states for a message, by number and by label where there is one; at most eight of them."""
    shown = [f"{state} ({labels[state]})" if labels else str(state) for state in states[:_SHOWN]]
    more = f" and {len(states) - _SHOWN} more" if len(states) > _SHOWN else ""
    return ", ".join(shown) + more
