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

*What holds for every member.* The region is an interval chain: all stochastic matrices P with L <= P <= U, entry by
entry. Its rows are chosen freely of each other, and that makes both questions that the noise asks answerable: how rare
can a state be, and how slowly can a member mix?

>>> both = IntervalChain(np.array([[0.8, 0.0], [0.3, 0.5]]), np.array([[1.0, 0.2], [0.5, 0.7]]))
>>> low, high = both.stationary_bounds()
>>> low.round(4).tolist(), high.round(4).tolist()
([0.6, 0.0], [1.0, 0.4])

The least stationary probability of a state y is the least long-run share of time in y when every visit to x may use any
row between L_x and U_x: a Markov decision process with bounded parameters (Givan, Leach and Dean 2000), solved by
Howard's policy iteration. The bound does not rest on the iteration having converged: for *any* vector h,

    pi(y) = sum_x pi(x) (1{x = y} + (P h)(x) - h(x)) >= min_x (1{x = y} + min over rows p of p.h - h(x))

for every member P and every stationary distribution pi of it, since pi P = pi. The iteration only finds a good h.

The gap of a member, 1 - rho^2 = 1 - lambda_2(P* P) = min over f of sum_x pi(x) Var_{P(x, .)}(f) / Var_pi(f), is bounded
by a comparison of Dirichlet forms (Diaconis and Saloff-Coste 1993). Write m_x for the sum of row x of L. As P(x, .) is
a mixture of L(x, .) / m_x with weight m_x and of something else, the law of total variance gives

    Var_{P(x, .)}(f) >= m_x Var_{L(x, .) / m_x}(f) = (1 / 2 m_x) sum over y, z of L(x, y) L(x, z) (f(y) - f(z))^2.

With pi >= a on the one side, and Var_pi(f) <= sum_x pi(x) (f(x) - c)^2 <= sum_x b(x) (f(x) - c)^2 for any c where
pi <= b on the other, the gap of every member is at least the second eigenvalue of the pencil (Laplacian of the weights
W(y, z) = sum_x a(x) L(x, y) L(x, z) / m_x, diag(b)): c is the mean of f under b. P* P and P P* have the same
eigenvalues, so this is the gap that ``MixingBounds`` calls multiplicative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..models.classes import MAX_PI_MIN, BinaryInterval, MixingBounds
from ..models.markov_chain import FloatArray, MarkovChain, check_chain, frozen
from ..validation import number
from .transition_counts import EstimationError, TransitionCounts, name_states, table_of

_HALVINGS = 80  # leaves 2**-80 of the posterior mean, given away outward
_SLACK = 2.0**-40  # relative error allowed to the special functions, given away outward
_SHOWN = 3

_ULP = 2.0**-52
_ROUNDS = 100
_ROOM = 1e-9  # how far the ends of a row may miss a sum of 1 by rounding


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
        check_chain("chain", chain)
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
        return MixingBounds(pi_min=min(MAX_PI_MIN, float(ends[0].min())), gap=gap, kind="multiplicative")


def confidence_class(
    counts: TransitionCounts | ArrayLike, level: float = 0.95, *, floor: float = 0.0
) -> ConfidenceClass:
    """The class of all chains that pooled transition counts allow at a level; proof of coverage in the module.

    Args:
        counts: Transitions, shape (k, k), or per series, which are pooled.
        level: Probability of holding the true chain, between 0 and 1.
        floor: A lower bound of every transition probability, from 0 to below 1/k. It is an assumption, and says so.

    Raises:
        EstimationError: If the counts, the level or the floor are out of range, or the counts contradict the floor.
    """
    table = counts.pooled() if isinstance(counts, TransitionCounts) else table_of(counts)
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
    """
    least = table_of(least)
    k = len(least)
    for name, value in (("level", level), ("sampling_level", sampling_level)):
        if not 0 < number(name, value, "0.95 is the usual one") < 1:
            raise EstimationError(f"{name}: {value} is not strictly between 0 and 1: 0.95 is the usual one")
    if not 0 <= number("floor", floor, "give a least transition probability, or 0 for none") < 1 / k:
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
            f"every chain that the transition counts of a history allow at level {float(level)!r}, whatever its length "
            f"and start, if all its series follow one chain and are independent{assumed}"
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


@dataclass(frozen=True, eq=False, slots=True)
class IntervalChain:
    """All stochastic matrices P with lower <= P <= upper.

    The ends are tightened to what the sums of the rows allow: no entry is above 1 less the other lower ends of its row,
    or below 1 less the other upper ends.

    Raises:
        ValueError: If the shapes or ends do not fit, or some row has no member.
    """

    lower: FloatArray  # L, shape (k, k), entries in [0, 1]
    upper: FloatArray  # U, the same shape, at least L

    def __post_init__(self) -> None:
        low, high = np.array(self.lower, dtype=np.float64), np.array(self.upper, dtype=np.float64)
        square = low.ndim == 2 and low.shape[0] == low.shape[1] and low.size > 0  # noqa: PLR2004 - a matrix has two axes
        if not square or low.shape != high.shape:
            raise ValueError(f"lower and upper have shapes {low.shape} and {high.shape}, but must both be (k, k)")
        if not ((low >= 0) & (low <= high) & (high <= 1)).all():
            raise ValueError("lower and upper: some entry has not 0 <= lower <= upper <= 1: check the ends")
        empty = (low.sum(axis=1) > 1 + _ROOM) | (high.sum(axis=1) < 1 - _ROOM)
        if empty.any():
            row = int(np.flatnonzero(empty)[0])
            raise ValueError(
                f"row {row}: lower sums to {low[row].sum():.6g} and upper to {high[row].sum():.6g}, but 1 must lie "
                "between: the ends contradict each other"
            )
        others_low = low.sum(axis=1, keepdims=True) - low
        others_high = high.sum(axis=1, keepdims=True) - high
        margin = 2 * len(low) * _ULP  # the sums were rounded
        tight_low = np.clip(1 - others_high - margin, low, high)
        tight_high = np.clip(1 - others_low + margin, low, high)
        object.__setattr__(self, "lower", frozen(np.minimum(tight_low, tight_high)))
        object.__setattr__(self, "upper", frozen(np.maximum(tight_low, tight_high)))

    @property
    def states(self) -> int:
        """Number of states k."""
        return len(self.lower)

    def contains(self, chain: MarkovChain) -> bool:
        """Whether every transition probability lies between its ends."""
        if chain.states != self.states:
            return False
        return bool(((chain.transition >= self.lower) & (chain.transition <= self.upper)).all())

    def cheapest(self, costs: FloatArray) -> FloatArray:
        """Rows p with the least sum of p times costs, shape (k, k): all that is free goes to the cheapest states."""
        order = np.argsort(costs, kind="stable")
        low, room = self.lower[:, order], (self.upper - self.lower)[:, order]
        free = np.maximum(1 - low.sum(axis=1, keepdims=True), 0.0)
        rows = np.empty_like(low)
        rows[:, order] = low + np.clip(free - (np.cumsum(room, axis=1) - room), 0.0, room)
        return rows

    def stationary_bounds(self) -> tuple[FloatArray, FloatArray]:
        """Ends between which the stationary probability of every state lies, for every member, each of shape (k,).

        The lower end is 0 where some member can do without the state for ever. Apart from rounding, which is outward,
        and a policy iteration that is cut short, the ends are reached by members.
        """
        target = np.eye(self.states)
        low = np.array([max(0.0, self._least_mean(row)) for row in target])
        high = np.array([min(1.0, -self._least_mean(-row)) for row in target])
        margin = 4 * self.states * _ULP
        high = np.minimum(high, 1 - (low.sum() - low) + margin)
        return frozen(np.minimum(low, high)), frozen(high)

    def gap_bound(self, bounds: tuple[FloatArray, FloatArray] | None = None) -> float:
        """A number that the gap of P P* is at least, for every member; 0 where nothing better is known.

        Args:
            bounds: What ``stationary_bounds`` gave, if it is known already.
        """
        if self.states == 1:
            return 1.0
        low, high = self.stationary_bounds() if bounds is None else bounds
        if not (high > 0).all():
            return 0.0
        mass = self.lower.sum(axis=1)
        share = np.divide(low, mass, out=np.zeros_like(low), where=mass > 0)
        weights = self.lower.T @ (share[:, np.newaxis] * self.lower)
        np.fill_diagonal(weights, 0.0)
        laplacian = np.diag(weights.sum(axis=1)) - weights
        root = np.sqrt(high)
        scaled = laplacian / root[:, np.newaxis] / root[np.newaxis, :]
        values = np.linalg.eigvalsh((scaled + scaled.T) / 2)
        margin = 16 * self.states * _ULP * float(np.abs(scaled).sum(axis=1).max())
        return float(np.clip(values[1] - margin, 0.0, 1.0))

    def _least_mean(self, reward: FloatArray) -> float:
        """A bound from below on the mean reward under every stationary distribution of every member; best of a search.

        Policy iteration; every round's h gives a bound, whatever becomes of the search.
        """
        best = float(reward.min())
        h: FloatArray = np.zeros(self.states)
        for _ in range(_ROUNDS):
            rows = self.cheapest(h)
            gains = reward + (rows @ h - h)
            # rounding of the products and of the rows' sums, both of the size of h
            margin = 8 * self.states * _ULP * (1 + float(np.abs(h).max()))
            found = float(gains.min()) - margin
            if found > best:
                best = found
            elif float(gains.max()) - found <= 4 * margin:
                break
            system = np.eye(self.states + 1)
            system[:-1, :-1] -= rows
            system[:-1, -1], system[-1, :-1], system[-1, -1] = 1.0, 1.0, 0.0
            try:
                solved = np.linalg.solve(system, np.append(reward, 0.0))[:-1]
            except np.linalg.LinAlgError:
                break  # this member falls apart into several closed classes
            if not np.isfinite(solved).all() or np.array_equal(solved, h):
                break
            h = solved.astype(np.float64)
        return best
