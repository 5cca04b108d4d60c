"""A confidence class: every chain that a history does not contradict, at a stated level.

>>> import numpy as np
>>> known = confidence_class(np.array([[90_000, 10_000], [10_000, 40_000]]), level=0.95)
>>> bounds = known.bounds()
>>> round(bounds.pi_min, 4), round(bounds.gap, 4), bounds.kind
(0.3157, 0.4524, 'multiplicative')

*Coverage.* Visits to a state in a chain of fixed length are random and depend on where the transitions led, so the
transitions out of a state are not multinomial given the number of visits, and bounds for a fixed number of trials
(Clopper-Pearson, or Weissman's for L1) do not have their level. Bounds that hold at all numbers of trials at once do.
Take a state x and a state y, and read the history transition by transition. Whatever was read before, a transition that
leaves x goes to y with probability p = P(x, y): that is the Markov property. After n such transitions, c of them to y,

    M_n(p) = B(c + 1/2, n - c + 1/2) / (B(1/2, 1/2) p^c (1 - p)^(n - c))

is the likelihood ratio of a Beta(1/2, 1/2) mixture to the truth, a nonnegative martingale that starts at 1 and stands
still at transitions out of other states. So P(M_n ever reaches 1 / a) <= a (Ville 1939), whenever the history ends and
however often x was visited, and {p: M_n(p) < 1 / a} holds the true p with probability at least 1 - a (Robbins 1970;
Howard, Ramdas, McAuliffe and Sekhon 2021). With a = (1 - level) / m for the m transition probabilities all k rows hold
together with probability at least the level, by the union bound; for k = 2 the two of a row are one, so m = k there.
This needs that the history follows one chain: transitions between adjacent present cells, which cells are present does
not depend on the states, and several series are independent and all follow that chain. Nothing is asked of the initial
distribution, of stationarity, or of the length.

*The ends.* log M_n is convex in p, so the set is an interval, and the posterior mean q = (c + 1/2) / (n + 1) lies in
it: the logarithm of the mixture's likelihood is at most the posterior mean of the logarithm of the likelihood, as the
divergence of posterior from prior is nonnegative, and that is at most the logarithm of the likelihood at q, by Jensen,
so M_n(q) <= 1. One more transition to y multiplies M_n(p) by q / p, which is at least 1 for p <= q: both ends rise with
c, and, the other way round, fall with n - c. That is what makes counts that are only known up to noise usable: the
lower end at the least c and the largest n - c is below the lower end at the true ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..models.classes import BinaryInterval, MixingBounds
from ..models.interval_chain import IntervalChain
from ..models.markov_chain import FloatArray, MarkovChain, frozen
from .transition_counts import EstimationError, TransitionCounts, check_table, name_states

_HALVINGS = 80  # leaves 2**-80 of the posterior mean, given away outward
_SLACK = 2.0**-40  # relative error allowed to the special functions, given away outward
_MAX_PI_MIN = 0.5
_SHOWN = 3


@dataclass(frozen=True, eq=False, slots=True)
class ConfidenceClass:
    """All chains whose transition probabilities lie in a simultaneous confidence region.

    Attributes:
        level: Probability with which the region holds the chain of the history.
        floor: A lower bound of every transition probability that was assumed, not found; 0 for none.
        members: The chains of the region.
        basis: What the level rests on, one sentence for the record.
    """

    level: float
    floor: float
    members: IntervalChain
    basis: str

    @property
    def lower(self) -> FloatArray:
        """Lower ends of the transition probabilities, shape (k, k)."""
        return self.members.lower

    @property
    def upper(self) -> FloatArray:
        """Upper ends, shape (k, k)."""
        return self.members.upper

    @property
    def row_widths(self) -> FloatArray:
        """How well each row is known: the width of its widest interval, shape (k,); 1 for a row nothing is known of."""
        return frozen((self.upper - self.lower).max(axis=1))

    def contains(self, chain: MarkovChain) -> bool:
        """Whether a chain lies in the region; its initial distribution does not matter."""
        return self.members.contains(chain)

    def binary(self) -> BinaryInterval:
        """The region itself as a belief, for two states; tighter than its mixing bounds.

        Raises:
            EstimationError: there are not two states.
        """
        if self.members.states != 2:  # noqa: PLR2004 - binary means two
            raise EstimationError(
                f"the chains have {self.members.states} states, and a BinaryInterval holds chains of 2: use bounds()"
            )
        (low_0, low_1), (high_0, high_1) = np.diag(self.lower).tolist(), np.diag(self.upper).tolist()
        return BinaryInterval((low_0, high_0), (low_1, high_1))

    def bounds(self) -> MixingBounds:
        """Mixing bounds that hold for every member, as a belief for calibration and ledger.

        pi_min is the least stationary probability of any state over all members (the floor of the rarest state), the
        gap the bound of `IntervalChain.gap_bound` on the gap of P P*.

        Raises:
            EstimationError: some member has a state of probability 0, or no gap above 0 can be shown. The message says
                which states, and the next step.
        """
        ends = self.members.stationary_bounds()
        gap = self.members.gap_bound(ends)
        absent = np.flatnonzero(ends[0] <= 0)
        if absent.size or gap <= 0:
            what = "their gap has no bound above 0"
            if absent.size:
                unseen = name_states(absent.tolist(), None)
                what = f"pi_min has no bound above 0: some have states that are never visited, {unseen}"
            vague = np.argsort(-self.row_widths, kind="stable")[:_SHOWN]
            raise EstimationError(
                f"of the chains that the history allows at level {self.level:g}, {what}. The rows known least are "
                f"those of the states {name_states(vague.tolist(), None)}: give more history, merge rare bins, or "
                "state a floor for every transition probability that you can defend (floor)"
            )
        return MixingBounds(pi_min=min(_MAX_PI_MIN, float(ends[0].min())), gap=gap, kind="multiplicative")


def confidence_class(
    counts: TransitionCounts | NDArray[np.int64], level: float = 0.95, *, floor: float = 0.0
) -> ConfidenceClass:
    """The class of all chains that pooled transition counts allow at a level; proof of coverage in the module.

    Args:
        counts: Transitions, shape (k, k), or per series, which are pooled.
        level: Probability of holding the true chain, between 0 and 1.
        floor: A lower bound of every transition probability, from 0 to below 1/k. It is an assumption, and says so.

    Raises:
        EstimationError: If the counts, the level or the floor are out of range, or the counts contradict the floor.
    """
    table = counts.pooled() if isinstance(counts, TransitionCounts) else counts
    check_table(table)
    return class_between(table, table, level, level, floor=floor)


def class_between(
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    level: float,
    sampling_level: float,
    *,
    rests: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    floor: float = 0.0,
) -> ConfidenceClass:
    """The class for counts that are known to lie between two tables.

    Args:
        least: At most the true counts, shape (k, k).
        most: At least the true counts.
        level: The level of the whole, for the record.
        sampling_level: The level left for the region, given that the counts lie between the tables.
        rests: Ends of the number of transitions from x to states other than y, each of shape (k, k); the sums over the
            tables where left out.
        floor: See `confidence_class`.

    Raises:
        EstimationError: See `confidence_class`.
    """
    k = check_table(least)
    for name, value in (("level", level), ("sampling_level", sampling_level)):
        if not 0 < value < 1:
            raise EstimationError(f"{name}: {value} is not strictly between 0 and 1: 0.95 is the usual one")
    if not 0 <= floor < 1 / k:
        raise EstimationError(f"floor: {floor} is outside 0 to 1/k = {1 / k:.6g}: give a smaller one, or 0 for none")
    rest = tuple(table.sum(axis=1, keepdims=True) - table for table in (least, most)) if rests is None else rests
    cells = k if k <= 2 else k * k  # noqa: PLR2004 - the two entries of a row of two are one unknown
    threshold = math.log(cells / (1 - sampling_level))
    low = mixture_ends(least, rest[1], threshold)[0]
    high = mixture_ends(most, rest[0], threshold)[1]
    low, high = np.maximum(low, floor), np.minimum(high, 1 - (k - 1) * floor)
    if (low > high).any() or (high.sum(axis=1) < 1).any() or (low.sum(axis=1) > 1).any():
        raise EstimationError(
            f"floor: {floor} is contradicted by the counts at level {level:g}: a transition is rarer than that, "
            "give a smaller floor"
        )
    assumed = f", and every transition probability at least {floor:g} by assumption" if floor else ""
    return ConfidenceClass(
        level=level,
        floor=floor,
        members=IntervalChain(low, high),
        basis=(
            f"every chain that the transition counts of a history allow at level {level:g}, whatever its length and "
            f"start, if all its series follow one chain and are independent{assumed}"
        ),
    )


def mixture_ends(hits: NDArray[np.int64], misses: NDArray[np.int64], threshold: float) -> tuple[FloatArray, FloatArray]:
    """Ends of {p: log M(p) <= threshold} for the Beta(1/2, 1/2) mixture; bisection, rounded outward.

    Args:
        hits: Transitions that went there, any shape.
        misses: Transitions that went elsewhere, same shape.
        threshold: log(1 / a) for an interval of error a.

    Returns:
        Lower and upper ends, same shape.
    """
    from scipy import special  # noqa: PLC0415 - a sixth of a second that only estimates need

    c, m = hits.astype(np.float64), misses.astype(np.float64)
    mixture = special.betaln(c + 0.5, m + 0.5) - math.log(math.pi)
    needed = mixture - threshold - _SLACK * (1 + np.abs(mixture))

    mean = (c + 0.5) / (c + m + 1)
    near, far = np.stack([mean, mean]), np.stack([np.zeros_like(mean), np.ones_like(mean)])
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        inside = special.xlogy(c, middle) + special.xlog1py(m, -middle) >= needed
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    # without hits, or misses, the likelihood rises all the way to the end
    return np.where(c == 0, 0.0, far[0]), np.where(m == 0, 1.0, far[1])
