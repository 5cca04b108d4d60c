"""A confidence class: every chain that a history, or a noisy count of one, does not contradict at a stated level.

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

*What holds for every member.* The region is all stochastic matrices P with L <= P <= U, entry by entry. Its rows are
chosen freely of each other, and that makes both questions that the noise asks answerable: how rare can a state be, and
how slowly can a member mix?

>>> both = ConfidenceClass(np.array([[0.8, 0.0], [0.3, 0.5]]), np.array([[1.0, 0.2], [0.5, 0.7]]), 0.95)
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

*Noisy counts* are how a model is learnt from the very series that it is to protect. A chain read off protected series
makes quilt and noise functions of their secrets, and no ledger can say what that costs (theory section 7, item 5). A
noisy table of transitions is a release like any other: it is charged, and what is computed from it costs nothing more.

>>> table = np.array([[[90_000, 10_000], [10_000, 40_000]]])
>>> history = TransitionCounts(("m1",), table, np.array([[110_000, 60_000]]))
>>> noisy = release_counts(history, Fraction(80), slots=170_000)  # charged 4 / 80 a slot, before it is used
>>> noisy_class(noisy, Fraction(80), level=0.95).bounds().gap > 0.1
True

Let one cell of one series, in slot t, change from x to x', and everything else stay. Only the transitions that begin or
end there change: (u, x) becomes (u, x') where u is the state of a present cell in slot t - 1, and (x, v) becomes
(x', v) where v is that of one in slot t + 1. Each lowers one entry of the table by one and raises another by one, so
the table, of one series or summed over many, moves by at most 4 in L1 (by 2 at the end of a run). Noise of scale l in
every entry then loses 4 / l per slot, and the ledger's rule applies with that density over the slots of the history, as
for a histogram (theory sections 1 and 4). It is needed that *which* cells are present stays the same when a state
changes. Where missing is a state of its own, that is so only if every slot of the window is counted: from the first
present cell to the last would let one cell decide how many others count, and the table could move by as many
transitions as the window has. ``missing_state`` says so and refuses such counts.

What the release costs depends on the belief, and the belief is what is to be learnt. It is charged under bounds that
are defended without the data; group privacy over the whole history needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..mechanisms.discrete_laplace import DiscreteLaplace, checked_level
from ..mechanisms.sampling import Entropy
from ..models.classes import MAX_PI_MIN, MixingBounds
from ..models.markov_chain import FloatArray, frozen
from ..validation import a_slot, instance
from .drift import noise_log_moments
from .transition_counts import EstimationError, TransitionCounts, name_states, table_of

SENSITIVITY = 4
"""L1 sensitivity of a table of transitions to one cell."""

_ULP = 2.0**-52


@dataclass(frozen=True, eq=False, slots=True)
class ConfidenceClass:
    """All stochastic matrices P with lower <= P <= upper: the chains of a simultaneous confidence region.

    The ends are tightened to what the sums of the rows allow: no entry is above 1 less the other lower ends of its row,
    or below 1 less the other upper ends.

    Raises:
        EstimationError: If the ends are none, or some row has no member.
    """

    lower: FloatArray  # L, shape (k, k), entries in [0, 1]
    upper: FloatArray  # U, the same shape, at least L
    level: float  # probability with which the region holds the chain of the history

    def __post_init__(self) -> None:
        low, high = self.lower, self.upper
        others_low = low.sum(axis=1, keepdims=True) - low
        others_high = high.sum(axis=1, keepdims=True) - high
        room = 1e-9  # how far the ends of a row may miss a sum of 1 by rounding
        fits = (
            (low >= 0) & (low <= high) & (high <= 1) & (others_low + low <= 1 + room) & (others_high + high >= 1 - room)
        )
        if not fits.all():
            raise EstimationError("lower and upper: some row has no member: give ends between which 1 lies")
        margin = 2 * len(low) * _ULP  # the sums were rounded
        tight_low = np.clip(1 - others_high - margin, low, high)
        tight_high = np.clip(1 - others_low + margin, low, high)
        object.__setattr__(self, "lower", frozen(np.minimum(tight_low, tight_high)))
        object.__setattr__(self, "upper", frozen(np.maximum(tight_low, tight_high)))

    @property
    def states(self) -> int:
        """Number of states k."""
        return len(self.lower)

    def bounds(self) -> MixingBounds:
        """Mixing bounds that hold for every member, as a belief for calibration and ledger.

        pi_min is the least stationary probability of any state over all members (the floor of the rarest state), the
        gap the bound of `gap_bound` on the gap of P P*.

        Raises:
            EstimationError: some member has a state of probability 0, or no gap above 0 can be shown. The message says
                which states, and the next step.
        """
        ends = self.stationary_bounds()
        gap = self.gap_bound(ends)
        absent = np.flatnonzero(ends[0] <= 0)
        if absent.size or gap <= 0:
            what = "their gap has no bound above 0"
            if absent.size:
                unseen = name_states(absent.tolist())
                what = f"pi_min has no bound above 0: some have states that are never visited, {unseen}"
            # by the width of a row's widest interval
            vague = np.argsort(-(self.upper - self.lower).max(axis=1), kind="stable")[:3]
            raise EstimationError(
                f"of the chains that the history allows at level {self.level:g}, {what}. The rows known least are "
                f"those of the states {name_states(vague.tolist())}: give more history, or merge rare bins"
            )
        return MixingBounds(pi_min=min(MAX_PI_MIN, float(ends[0].min())), gap=gap, kind="multiplicative")

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

    def gap_bound(self, bounds: tuple[FloatArray, FloatArray]) -> float:
        """A number that the gap of P P* is at least for every member, given `stationary_bounds`; 0 if none is known."""
        if self.states == 1:
            return 1.0
        low, high = bounds
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

        Policy iteration of 100 rounds at most; every round's h gives a bound, whatever becomes of the search.
        """
        best = float(reward.min())
        h: FloatArray = np.zeros(self.states)
        for _ in range(100):
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


def confidence_class(counts: TransitionCounts | ArrayLike, level: float = 0.95) -> ConfidenceClass:
    """The class of all chains that pooled transition counts allow at a level; proof of coverage in the module.

    Args:
        counts: Transitions, shape (k, k), or per series, which are pooled.
        level: Probability of holding the true chain, between 0 and 1.

    Raises:
        EstimationError: If the counts are no table of transitions.
    """
    level = checked_level(level)
    table = counts.pooled() if isinstance(counts, TransitionCounts) else table_of(counts)
    rest = table.sum(axis=1, keepdims=True) - table
    return _between((table, table), (rest, rest), 1 - level, level)


def noisy_class(table: NDArray[np.int64], scale: Fraction, level: float = 0.95) -> ConfidenceClass:
    """All chains that a released table allows, noise included.

    Half of the error goes to the noise: with probability at least (1 + level) / 2, every entry's noise and, for every
    entry, the sum of the noise of the others in its row are at most the half-widths used (union bound over 2 k**2
    events). The true counts then lie between two tables, and as the ends of the region are monotone in the counts, the
    region at the outer tables holds the region at the true counts, which has the other half of the error.

    Args:
        table: What `release_counts` released, int64, shape (k, k); entries may be negative.
        scale: Scale of the noise in every entry.
        level: Probability of holding the true chain, over noise and history.
    """
    error, k = (1 - checked_level(level)) / 2, len(table)
    own, others = (noise_half_width(scale, terms, error / (2 * k * k)) for terms in (1, k - 1))
    rest = table.sum(axis=1, keepdims=True) - table
    hits, misses = (
        (np.maximum(middle - width, 0), np.maximum(middle + width, 0))
        for middle, width in ((table, own), (rest, others))
    )
    return _between(hits, misses, error, level)


def _between(
    hits: tuple[NDArray[np.int64], NDArray[np.int64]],
    misses: tuple[NDArray[np.int64], NDArray[np.int64]],
    error: float,
    level: float,
) -> ConfidenceClass:
    """The class at an error, where transitions from x to y, and from x to others, lie between two tables each."""
    k = len(hits[0])
    cells = k if k <= 2 else k * k  # noqa: PLR2004 - the two entries of a row of two are one unknown
    threshold = math.log(cells / error)
    low, high = mixture_ends(hits[0], misses[1], threshold)[0], mixture_ends(hits[1], misses[0], threshold)[1]
    return ConfidenceClass(low, high, level)


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
    needed = mixture - threshold - 2.0**-40 * (1 + np.abs(mixture))  # what the special functions may be off by

    mean = (c + 0.5) / (c + m + 1)
    near, far = np.stack([mean, mean]), np.stack([np.zeros_like(mean), np.ones_like(mean)])
    for _ in range(80):  # leaves 2**-80 of the posterior mean, given away outward
        middle = (near + far) / 2
        inside = special.xlogy(c, middle) + special.xlog1py(m, -middle) >= needed
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    # without hits, or misses, the likelihood rises all the way to the end
    return np.where(c == 0, 0.0, far[0]), np.where(m == 0, 1.0, far[1])


def release_counts(
    counts: TransitionCounts,
    scale: Fraction,
    *,
    slots: int,
    missing_state: bool = False,
    entropy: Entropy | None = None,
) -> NDArray[np.int64]:
    """Release the pooled transitions of a history with discrete Laplace noise: int64, shape (k, k).

    The caller charges 4 / scale for each slot of the history first, and keeps the table on record: the same counts
    released again are a second charge.

    Args:
        counts: Transitions of the series to learn from; which series they are is public.
        scale: Scale of the noise in every entry.
        slots: Slots that were counted.
        missing_state: Whether a missing cell is a state of its own. Then every series must have been counted in every
            slot, and the series must be those of a public roster, the silent ones included.
        entropy: For tests only; the operating system's entropy where it is left out.

    Raises:
        EntropyError: The bit source is defective.
        EstimationError: If ``missing_state`` is set and a series has more or fewer cells than there are slots, or gaps
            between them. No name and no count is in the message.
    """
    instance("counts", counts, TransitionCounts)
    slots = a_slot("slots", slots, "give the slots of the history", least=1)
    cells, moves = counts.visits.sum(axis=1), counts.counts.sum(axis=(1, 2))
    if missing_state and ((cells != slots) | (moves != slots - 1)).any():
        raise EstimationError(
            f"counts: a series was not counted in each of the {slots} slots, and where missing is a state its counts "
            "then depend on where its first and last cells are: count the missing state from the first slot to the last"
        )
    return DiscreteLaplace(scale).draw((counts.states, counts.states), entropy) + counts.pooled()


def noise_half_width(scale: Fraction, terms: int, error: float) -> int:
    """A number that the absolute sum of independent noise passes with probability at most ``error``.

    For one term the exact quantile. For n of them the smaller of n quantiles at error / n and Chernoff's bound:
    P(|S| >= s) <= 2 exp(n log E e^{tZ} - t s) for every t below 1 / scale. Without terms it is 0.
    """
    if terms == 0:
        return 0
    # not by the level, which a small error leaves at 1
    exact = terms * DiscreteLaplace(scale).passed_by(Fraction(error) / terms)
    if terms == 1:
        return exact
    t = 1 / float(scale) * np.geomspace(1e-4, 0.9999, 400)
    chernoff = float(((terms * noise_log_moments(scale, t) + np.log(2 / error)) / t).min())
    return min(exact, int(np.ceil(chernoff)))
