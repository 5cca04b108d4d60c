"""How fast each series of a history forgets, and the contraction class that holds for most of the series.

The pooled chain is the belief that every series follows that one chain. Series that differ have their own: that of a
series' counts, to whose rows some visits of the pooled rows are added. Its curves are the least of that chain in both
directions of time (:mod:`..models.dobrushin`), its score the noise that these curves need. With n series the class of
cover c is the envelope of the r = ceil(c (n + 1)) series of the lowest scores: the largest eta of any of them at each
number of slots, rounded up. The list of the chains is a belief, too, a `FiniteClass`.

>>> import numpy as np
>>> tables = np.array([[[90, 10], [10, 90]], [[80, 20], [30, 70]], [[99, 1], [1, 99]]])
>>> history = contractions(TransitionCounts(("a", "b", "c"), tables, np.full((3, 2), 110)))
>>> rank = history.rank("0.7")
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
from ..models.markov_chain import ChainError, MarkovChain
from ..validation import instance
from .transition_counts import EstimationError, TransitionCounts, chain_from_counts

#: Visits of the pooled row that are added to each row of a series.
PSEUDO_VISITS = 10

#: Decimals of the curves of a class.
DIGITS = 4

#: Probability that the range of :meth:`Contractions.share_range` leaves out on each side.
_TAIL = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Contractions:
    """The curves of every series of a history, in the order of the counts.

    Attributes:
        chains: The series' chains, smoothed; with kinds of days those of each kind, series by series.
        forward: eta_m ahead, shape (n, number of steps).
        backward: eta_m back, alike.
        scores: Noise sigma at epsilon 1 by the series' own curves, shape (n,).
        steps: The m.
        kinds: How many kinds of days each series has chains of.
    """

    chains: tuple[MarkovChain, ...]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    scores: NDArray[np.float64]
    steps: tuple[int, ...]
    kinds: int = 1

    def rank(self, cover: str | Fraction) -> int:
        """The rank r = ceil(cover (n + 1)).

        Args:
            cover: Probability with which a further series is to have as low a score, above 0.

        Raises:
            EstimationError: The cover is out of range, or above n / (n + 1): the history has too few series for it.
        """
        return rank_of(cover, len(self.scores))

    def probability(self, rank: int) -> float:
        """About how likely a further series is to have as low a score: r / (n + 1)."""
        return rank / (len(self.scores) + 1)

    def share_range(self, rank: int) -> tuple[float, float]:
        """Between which shares that of further series with so low a score lies, in nine histories of ten."""
        from scipy.special import betaincinv  # noqa: PLC0415 - a sixth of a second that only fits need

        rest = len(self.scores) + 1 - rank
        low, high = (float(betaincinv(rank, rest, tail)) for tail in (_TAIL, 1 - _TAIL))
        return low, high

    def envelope(self, rank: int, digits: int = DIGITS) -> DobrushinBounds:
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
    tables = counts.counts + PSEUDO_VISITS * pooled.transition
    chains = tuple(MarkovChain(table) for table in tables / tables.sum(axis=2, keepdims=True))
    curves = [contraction(chain, STEPS) for chain in chains]
    forward, backward = (np.array([pair[side] for pair in curves]) for side in (0, 1))
    return Contractions(chains, forward, backward, np.array([score_of(STEPS, *pair) for pair in curves]), STEPS)


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
