"""How fast each series of a history forgets, and the contraction class that holds for most of the series.

The pooled chain is the belief that every series follows that one chain. Series that differ have their own: that of a
series' counts, to whose rows some visits of the pooled rows are added. Its curves are the least of that chain in both
directions of time (:mod:`..models.dobrushin`), its score the noise that these curves need. With n series the class of
cover c is the envelope of the r = ceil(c (n + 1)) series of the lowest scores: the largest eta of any of them at each
number of slots, rounded up. The list of the chains is a belief, too, a `FiniteClass`.

>>> import numpy as np
>>> tables = np.array([[[90, 10], [10, 90]], [[80, 20], [30, 70]], [[99, 1], [1, 99]]])
>>> history = contractions(TransitionCounts(("a", "b", "c"), tables, np.full((3, 2), 110)))
>>> rank = rank_of("0.7", len(history.scores))
>>> rank, round(history.probability(rank), 2)
(3, 0.75)
>>> history.envelope(2, digits=3).forward[:3]
((1, 0.797), (2, 0.635), (3, 0.506))

*What the rank says* (conformal prediction; Vovk, Gammerman, Shafer 2005). Let n + 1 exchangeable series be fitted
together, with pooled rows of them all or with rows known beforehand. Then their scores are exchangeable, the score of
the last is among the r lowest with probability at least r / (n + 1), and so its own curves need no more noise than the
class of the r. That its curves lie below the envelope at every number of slots is rarer. Over histories the share of
further series with so low a score has the law Beta(r, n + 1 - r).

A class is made before the further series is known. Its pooled rows are those of the history, of which every series of
the history is a part and the further one is not, and its own chain is a smoothed plug-in. So r / (n + 1) says *about*
how likely it is and bounds nothing: simulated for two states, rows from Beta(4.2, 1.8), three series with 15
transitions each cover with 0.71 in the place of 3/4, and long ones with 0.735 to 0.745. Cross-validated on 100 London
homes and on sgsc's: .901 for .903, .881 for .900, .972 for .968. A pool of the others for each series of the history is
no cure: it has one series fewer than that of the further one, and gave 0.52 where the pool of all gave 0.71.

Everything here is a plug-in estimate and as secret as the history: it says what the series' own counts look like, not
how far the truth may be from them. No name of a series leaves this module.

*Kinds of days.* A chain that is fitted to a year mixes weekdays and holidays, so its account holds against someone who
knows neither. Given the kind of each day a series follows the kernel of that kind, and the class has to hold for the
chain that changes from day to day. The kinds are a public calendar, or *thirds* of the days of each series by the share
of its lowest state. Thirds are an estimate of a hidden label that is drawn first, the day then following its label's
chain; given the third itself a day is no Markov chain, so there the promise is given the label.

The curves of one series are then those of the periodic chain whose days are a sequence in which every three kinds
follow each other (de Bruijn's). A stretch of at most a day touches two days, and the marginals before it are those that
the third one leaves, so curves over at most a day's slots hold for every order of days, but for what a series still
knows of its state more than a day before.

Such a class has no bounds on pi_min and the gap beside it. Both are of one kernel and its stationary law: Lemma 4.8 and
the bounds of `MixingBounds` compare the kernel's powers with that law. Where the kind changes the marginals are those
of the other kind, and what leads across is a product of two kernels, each contracting in the norm of a law of its own;
the least pi_min and gap of the kinds bound neither.

>>> path = Path(0, np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0], dtype=np.int8))
>>> thirds(path, np.repeat([0, 1, 2], 4)).tolist()
[1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]
>>> every_three(2)
[0, 0, 0, 1, 0, 1, 1, 1]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..accounting.certificates import endless
from ..models.directions import STEPS, NotContracting
from ..models.dobrushin import DobrushinBounds, contraction
from ..models.markov_chain import ChainError, FloatArray, MarkovChain
from ..models.periodic import PeriodicChain
from ..validation import instance
from .transition_counts import EstimationError, TransitionCounts, chain_from_counts

PSEUDO_VISITS = 10
"""Visits of the pooled row that are added to each row of a series."""

MOST_KINDS = 4
"""Kinds of days up to which every three are followed."""


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The states of one series."""

    first: int  # slot of the first of them, by the slots' clock
    states: NDArray[np.int8]  # state of every slot from there on, -1 where there is none, shape (slots,)


@dataclass(frozen=True, slots=True, eq=False)
class Contractions:
    """The curves of every series of a history, in the order of the counts."""

    chains: tuple[MarkovChain, ...]  # the series' chains, smoothed; those of each kind of days, series by series
    forward: NDArray[np.float64]  # eta_m ahead, shape (n, number of steps)
    backward: NDArray[np.float64]  # eta_m back, alike
    scores: NDArray[np.float64]  # noise sigma at epsilon 1 by the series' own curves, shape (n,)
    steps: tuple[int, ...]  # the m
    kinds: int = 1  # how many kinds of days each series has chains of

    def probability(self, rank: int) -> float:
        """About how likely a further series is to have as low a score: r / (n + 1)."""
        return rank / (len(self.scores) + 1)

    def share_range(self, rank: int) -> tuple[float, float]:
        """Between which shares that of further series with so low a score lies, in nine histories of ten."""
        from scipy.special import betaincinv  # noqa: PLC0415 - a sixth of a second that only fits need

        rest = len(self.scores) + 1 - rank
        low, high = (float(betaincinv(rank, rest, tail)) for tail in (0.05, 0.95))
        return low, high

    def envelope(self, rank: int, digits: int = 4) -> DobrushinBounds:
        """The class of the series with the lowest scores, rounded up to some decimals.

        Raises:
            ChainError: One of them never forgets.
        """
        chosen = np.argsort(self.scores, kind="stable")[:rank]
        forward, backward = (
            zip(self.steps, side[chosen].max(axis=0).tolist(), strict=True) for side in (self.forward, self.backward)
        )
        return DobrushinBounds(forward, backward).rounded(digits)

    def inside(self, bounds: DobrushinBounds) -> int:
        """How many series have their curves below those of a class at every number of slots."""
        sides = zip((self.forward, self.backward), (bounds.forward, bounds.backward), strict=True)
        held = np.all([(mine <= [eta for _, eta in curve]).all(axis=1) for mine, curve in sides], axis=0)
        return int(held.sum())

    def chains_of(self, series: int) -> tuple[MarkovChain, ...]:
        """The chain of a series, or those of its kinds of days."""
        return self.chains[series * self.kinds : (series + 1) * self.kinds]

    def exact_scores(self) -> NDArray[np.float64]:
        """Noise sigma at epsilon 1 by each series' own chain, exactly, shape (n,); infinite where there is none.

        With kinds of days by that of its kinds which needs most.
        """
        return np.array([_sigma(chain) for chain in self.chains]).reshape(-1, self.kinds).max(axis=1)


def contractions(counts: TransitionCounts, *, labels: Sequence[str] | None = None) -> Contractions:
    """The curves of all series; messages call the states by the labels.

    Raises:
        ChainError: The pooled chain is reducible.
        EstimationError: There is no series, or a state that no series leaves.
    """
    instance("counts", counts, TransitionCounts)
    if not counts.series:
        raise EstimationError("counts: there is no series: give the counts of at least one")
    pooled = chain_from_counts(counts.pooled(), labels=labels)
    # not left to the curves: they are of the states that the steady state has, and here a state that is left for ever
    # would be dropped in silence, with all that it remembers
    if not pooled.is_irreducible:
        raise ChainError(
            "the pooled chain is reducible: not every state leads to every other, so it has no steady state with all "
            "of them: merge rare bins, or give more series"
        )
    chains = tuple(map(MarkovChain, _rows(counts.counts + PSEUDO_VISITS * pooled.transition)))
    return _with_curves(chains, chains, STEPS)


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
    kinds[order] = np.arange(len(order)) * 3 // max(len(order), 1)
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
    tables = transitions_by(paths, kinds, number, states)
    by_kind = tables.sum(axis=0)
    if not len(paths) or not by_kind.any(axis=(1, 2)).all():
        raise EstimationError("kinds: one has no transition in the history: give a longer history, or fewer kinds")
    if not by_kind.any(axis=(0, 2)).all():
        raise EstimationError("a state is never left in the history: merge rare bins, or give more series")
    rows = own_rows(tables)
    chains = tuple(MarkovChain(one) for own in rows for one in own)
    if not all(chain.is_irreducible for chain in chains):
        raise ChainError("the chain of a kind of day is reducible: merge rare bins, or give more series")
    cycle = every_three(number)
    days = [PeriodicChain(np.repeat(own[cycle], day, axis=0)) for own in rows]
    return _with_curves(chains, days, tuple(m for m in STEPS if m <= day), number)


def _with_curves(
    chains: tuple[MarkovChain, ...],
    series: Sequence[MarkovChain | PeriodicChain],
    steps: tuple[int, ...],
    kinds: int = 1,
) -> Contractions:
    """The curves and scores of each series."""
    curves = [contraction(chain, steps) for chain in series]
    forward, backward = (np.array([pair[side] for pair in curves]) for side in (0, 1))
    return Contractions(chains, forward, backward, np.array([score_of(steps, *pair) for pair in curves]), steps, kinds)


def transitions_by(
    paths: Sequence[Path], labels: Sequence[NDArray[np.signedinteger]], number: int, states: int
) -> FloatArray:
    """Transitions of each series out of the slots of each label, -1 for none, shape (series, number, k, k)."""
    tables = np.zeros((len(paths), number, states, states))
    for table, path, own in zip(tables, paths, labels, strict=True):
        here, there = path.states[:-1], path.states[1:]
        seen = (here >= 0) & (there >= 0) & (own[:-1] >= 0)
        np.add.at(table, (own[:-1][seen], here[seen], there[seen]), 1)
    return tables


def own_rows(tables: FloatArray) -> FloatArray:
    """Rows of each series by label; those of all series complete them, and rows of all labels complete these."""
    return _rows(tables + PSEUDO_VISITS * pooled_rows(tables))


def pooled_rows(tables: FloatArray) -> FloatArray:
    """Rows of all series together by label, with visits of the rows of all labels."""
    return _rows(tables.sum(axis=0) + PSEUDO_VISITS * _rows(tables.sum(axis=(0, 1)) + 1e-9))


def _rows(table: FloatArray) -> FloatArray:
    return table / table.sum(axis=-1, keepdims=True)


def every_three(number: int) -> list[int]:
    """The shortest cycle of so many kinds in which every three follow each other, the least one."""
    found: list[int] = []
    word = [0] * 4

    def extend(at: int, period: int) -> None:
        if at > 3:  # noqa: PLR2004 - three in a row
            if 3 % period == 0:
                found.extend(word[1 : period + 1])
            return
        word[at] = word[at - period]
        extend(at + 1, period)
        for kind in range(word[at - period] + 1, number):
            word[at] = kind
            extend(at + 1, at)

    extend(1, 1)
    return found


def rank_of(cover: str | Fraction, series: int) -> int:
    """ceil(cover (n + 1)) of n series.

    Raises:
        EstimationError: The cover is no number above 0, or above n / (n + 1).
    """
    try:
        wanted = Fraction(cover)
    except (ValueError, ZeroDivisionError):
        raise EstimationError(f"cover: {cover!r:.40} is no number; write one such as 0.9") from None
    if wanted <= 0:
        raise EstimationError(f"cover: {cover} is not above 0: 0.9 is usual")
    rank = math.ceil(wanted * (series + 1))
    if rank > series:
        raise EstimationError(
            f"cover: {cover} of a history of {series} series: of a further series no more can be said than with "
            f"probability {series}/{series + 1} = {series / (series + 1):.3f}; give a smaller cover, or more series"
        )
    return rank


def largest_cover(series: int) -> float:
    """The largest cover of n series that :func:`rank_of` takes, n / (n + 1), in whole hundredths."""
    return math.floor(100 * series / (series + 1)) / 100


def score_of(steps: Sequence[int], *curves: NDArray[np.float64]) -> float:
    """Noise sigma at epsilon 1 by the curves of both directions; infinite where none is enough."""
    try:
        return _sigma(DobrushinBounds(*(zip(steps, curve.tolist(), strict=True) for curve in curves)))
    except ValueError:
        return math.inf


def _sigma(belief: MarkovChain | DobrushinBounds) -> float:
    try:
        return 1 / endless(belief, 1.0).density
    except NotContracting:
        return math.inf
