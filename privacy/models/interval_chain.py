"""Every chain between two matrices: what holds for all of them.

An interval chain is the set of all stochastic matrices P with L <= P <= U, entry by entry. Its rows are chosen freely
of each other, and that makes both questions that the noise asks answerable: how rare can a state be, and how slowly can
a member mix?

>>> import numpy as np
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

from dataclasses import dataclass

import numpy as np

from .markov_chain import FloatArray, MarkovChain, frozen

_ULP = 2.0**-52
_ROUNDS = 100
_ROOM = 1e-9  # how far the ends of a row may miss a sum of 1 by rounding


@dataclass(frozen=True, eq=False, slots=True)
class IntervalChain:
    """All stochastic matrices P with lower <= P <= upper.

    The ends are tightened to what the sums of the rows allow: no entry is above 1 less the other lower ends of its row,
    or below 1 less the other upper ends.

    Attributes:
        lower: L, shape (k, k), entries in [0, 1].
        upper: U, the same shape, at least L.

    Raises:
        ValueError: If the shapes or ends do not fit, or some row has no member.
    """

    lower: FloatArray
    upper: FloatArray

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
