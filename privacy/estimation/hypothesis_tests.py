"""What to know about a history before a chain is believed: its diagnosis, and tests of what a belief takes for granted.

Tested is one chain of order 1, the same all the time, perhaps reversible.

>>> import numpy as np
>>> reversibility_test(np.array([[0, 90, 10], [10, 0, 90], [90, 10, 0]])).p_value < 1e-9
True
>>> reversibility_test(np.array([[0, 52, 50], [50, 0, 49], [49, 51, 0]])).degrees
1

Each is a likelihood-ratio test or its quadratic form, chi-square with the stated degrees of freedom in the limit of
long histories, for an ergodic chain (Billingsley, *Statistical methods in Markov chains*, 1961; Anderson and Goodman,
*Statistical inference about Markov chains*, 1957). Only transitions that occur count towards the degrees: a transition
that never does is taken to be impossible. The limit is near where the expected counts are large: `least_expected` is
the smallest of them, and below about 5 the p-value is a guess.

A small p-value says that the data are not what is believed; on a long history every real series fails. It does not say
how much that matters: for that compare the noise under both beliefs. The results are functions of the history, as a fit
is: for whoever fits, not for publication.

>>> diagnosis = diagnose(np.array([[90, 10], [9, 41]]))
>>> diagnosis.irreducible, diagnosis.multiplicity, diagnosis.rarest_visits
(True, 1, 51)
>>> len(diagnosis.warnings())  # 51 visits are few
1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..models import markov_chain
from ..models.markov_chain import MarkovChain
from ..validation import as_array, as_list, instance, whole
from .transition_counts import (
    EstimationError,
    TransitionCounts,
    chain_from_counts,
    name_states,
    table_of,
    visited_states,
)

_MOST_STATES = 1024  # of which the table of triples takes 8 GB
_AXES = 3

#: Below this number of visits a stationary probability has a relative standard error of 10 % or more.
FEW_VISITS = 100


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """The outcome of a test.

    Attributes:
        statistic: Its value.
        degrees: Degrees of freedom; 0 where the counts leave nothing to test.
        p_value: Probability of a value at least as large where the hypothesis is true; 1 without degrees.
        least_expected: Smallest expected count; infinite without any.
        hypothesis: What is tested.
        conditions: What the p-value rests on.
    """

    statistic: float
    degrees: int
    p_value: float
    least_expected: float
    hypothesis: str
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TripleCounts:
    """How often three adjacent present cells of one series were in the states x, y, z.

    Attributes:
        counts: int64, shape (k, k, k), none negative.
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        counts = as_array("counts", self.counts).copy()
        if counts.dtype != np.int64 or counts.ndim != _AXES or len(set(counts.shape)) != 1 or not counts.size:
            raise EstimationError(
                f"counts: shape and type are {counts.shape} and {counts.dtype}, and must be (k, k, k) and int64"
            )
        if (counts < 0).any():
            raise EstimationError("counts: a count is negative: count triples of adjacent cells")
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of_runs(cls, states: int, runs: Iterable[NDArray[np.integer]]) -> TripleCounts:
        """Count in unbroken runs of states: one array for each run of adjacent present cells of one series.

        Raises:
            EstimationError: A run is no row of states from 0 to k - 1. No value is in the message.
        """
        k = whole("states", states, "give the number of bins", least=1, most=_MOST_STATES)
        total = np.zeros(k**3, dtype=np.int64)
        for run in as_list("runs", runs, "rows of states"):
            path = as_array("runs", run)
            if path.ndim != 1 or not np.issubdtype(path.dtype, np.integer):
                raise EstimationError("runs: a run must be one row of whole numbers: pass the states of adjacent cells")
            if path.size and (int(path.min()) < 0 or int(path.max()) >= k):
                raise EstimationError(f"runs: a state lies outside 0 to {k - 1}: use the same bins")
            path = path.astype(np.int64)
            total += np.bincount((path[:-2] * k + path[1:-1]) * k + path[2:], minlength=k**3)
        return cls(total.reshape(k, k, k))


def order_test(triples: TripleCounts) -> ChiSquare:
    """Order 1 against order 2: does the state before the last tell more about the next?

    G = 2 sum n(x, y, z) log(n(x, y, z) n(., y, .) / (n(x, y, .) n(., y, z))), the likelihood ratio of P(z | x, y) to
    P(z | y); sum over y of (r_y - 1)(c_y - 1) degrees, r_y and c_y the states seen before and after y: k (k - 1)^2 when
    all are (Billingsley 1961, section 5).
    """
    instance("triples", triples, TripleCounts)
    counts = triples.counts.astype(np.float64)
    before, after = counts.sum(axis=2), counts.sum(axis=0)
    here = after.sum(axis=1)
    expected = before[:, :, np.newaxis] * after[np.newaxis] / np.where(here > 0, here, 1)[np.newaxis, :, np.newaxis]
    rows, columns = (before > 0).sum(axis=0), (after > 0).sum(axis=1)
    used = (rows > 1) & (columns > 1)
    return _outcome(
        2 * _entropy(counts, expected),
        int(((rows - 1) * (columns - 1))[used].sum()),
        expected[:, used, :],
        "the chain has order 1, against order 2",
        ("triples come from few long runs of one chain, the same all the time",),
    )


def homogeneity_test(first: ArrayLike, second: ArrayLike) -> ChiSquare:
    """Do two parts of a history, such as its halves, follow the same chain?

    Pearson's test of homogeneity of every row of the two tables, added up: sum over the states left in both parts of
    (c_x - 1) degrees, c_x the states reached from x in either: k (k - 1) when all are (Anderson and Goodman 1957,
    section 3.3).

    Args:
        first: Transitions of one part, shape (k, k).
        second: Transitions of the other part, which shares no transition with the first.
    """
    first, second = table_of(first, "first"), table_of(second, "second")
    if len(first) != len(second):
        raise EstimationError(f"counts: over {len(first)} and {len(second)} states: use the same bins")
    tables = np.stack([first, second]).astype(np.float64)
    left, entries = tables.sum(axis=2), tables.sum(axis=0)
    used = (left > 0).all(axis=0)
    expected = left[:, :, np.newaxis] * (entries / np.maximum(entries.sum(axis=1, keepdims=True), 1))[np.newaxis]
    gaps = np.where(
        used[:, np.newaxis] & (expected > 0), (tables - expected) ** 2 / np.where(expected > 0, expected, 1), 0
    )
    degrees = int((np.maximum((entries > 0).sum(axis=1), 1) - 1)[used].sum())
    return _outcome(
        float(gaps.sum()),
        degrees,
        expected[:, used, :],
        "both parts follow one chain",
        ("the parts share no transition", "each part follows one chain of order 1"),
    )


def reversibility_test(counts: ArrayLike) -> ChiSquare:
    """Is the chain reversible: n(x, y) = n(y, x) but for chance?

    The flows of any stationary chain balance at every state, so only what circulates can tell: the differences
    d(x, y) = n(x, y) - n(y, x) with weights w(x, y) = n(x, y) + n(y, x) are freed of their best fit by differences of a
    potential, and

        G = min over u of sum over x < y of (d(x, y) - w(x, y) (u(x) - u(y)))^2 / w(x, y).

    Degrees: the independent cycles of the graph of the transitions that occur, (k - 1)(k - 2) / 2 when all do, 0 for
    two states, whose chains are all reversible. It is the score test of the reversible chains P(x, y) = s(x, y) / s(x)
    with s symmetric, among all: the directions t(x, y) in which log P can leave them, as seen by the Fisher information
    pi(x) P(x, y), are the antisymmetric t whose flow pi(x) P(x, y) t(x, y) has no divergence; the score in direction t
    is the sum of d t over x < y, its variance that of w t^2, and the supremum of score^2 / variance over circulations
    is G by projection. Counting Bowker's k (k - 1) / 2 degrees instead would hide what a circulation shows.
    """
    counts = table_of(counts)
    k = len(counts)
    upper = np.triu_indices(k, 1)
    both = (counts + counts.T)[upper]
    used = np.flatnonzero(both)
    x, y = upper[0][used], upper[1][used]
    weights, flow = both[used].astype(np.float64), (counts - counts.T)[upper][used].astype(np.float64)
    degrees = len(used) - k + len(markov_chain.communicating_classes((counts + counts.T) > 0))
    root = np.sqrt(weights)
    design = np.zeros((len(used), k))
    design[np.arange(len(used)), x], design[np.arange(len(used)), y] = root, -root
    fitted = np.linalg.lstsq(design, flow / root, rcond=None)[0] if len(used) else np.zeros(k)
    residual = flow / root - design @ fitted
    return _outcome(
        float(residual @ residual),
        degrees,
        weights / 2,
        "the chain is reversible",
        ("the history is stationary: every run starts as the chain spends its time", "one chain of order 1"),
    )


def _entropy(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    seen = counts > 0
    return max(0.0, float((counts[seen] * np.log(counts[seen] / expected[seen])).sum()))


def _outcome(
    statistic: float, degrees: int, expected: NDArray[np.float64], hypothesis: str, conditions: tuple[str, ...]
) -> ChiSquare:
    from scipy import special  # noqa: PLC0415 - a sixth of a second that only this one needs

    occurring = expected[expected > 0]
    return ChiSquare(
        statistic=statistic if degrees else 0.0,
        degrees=degrees,
        p_value=float(special.chdtrc(degrees, statistic)) if degrees else 1.0,
        least_expected=float(occurring.min()) if occurring.size else float("inf"),
        hypothesis=hypothesis,
        conditions=conditions,
    )


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
        asymmetry: half the L1 distance between the flow pi(x) P(x, y) and its transpose; 0 for a reversible chain.
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
    asymmetry: float | None = None

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the chain as a belief, each with the next step: sentences, worst first."""
        if self.transitions == 0:
            return ("the history has no transition: it says nothing about the chain, give more data",)
        found: list[str] = []
        if self.never_left:
            found.append(
                f"visited but never left: state {name_states(self.never_left, None)}; where it leads is unknown: "
                "smooth the counts, or merge the bin with its neighbour"
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
                "that may still turn up: smooth the counts, or merge the bin with its neighbour"
            )
        if self.states - len(self.never_visited) == 1:
            found.append(
                "the history stays in one state: its mixing cannot be seen, so its gap says nothing: use more series, "
                "or finer bins"
            )
        if self.rarest_visits < FEW_VISITS:
            found.append(
                f"the rarest state was visited {self.rarest_visits} times, and pi_min is known only from about "
                f"{FEW_VISITS} on: give the class a floor for pi_min that you can defend, or merge the bin with its "
                "neighbour"
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
    flow = chain.stationary[:, np.newaxis] * chain.transition
    return replace(
        known,
        irreducible=True,
        period=chain.period,
        multiplicity=chain.gap_multiplicity,
        pi_min=chain.pi_min,
        gap=chain.gap,
        asymmetry=float(np.abs(flow - flow.T).sum() / 2),
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
