"""The largest ratio of two expectations under bounded ratios, exactly, by couplings.

For rows p and q of a kernel and a matrix of ratios W with W[y,y] = 1,

    theta(p, q; W) = max over G > 0 with G(y) <= W[y,z] G(z) for all y, z,  of  p.G / q.G.

Its logarithm is the map L of the forward-backward account. The dual is a linear programme over couplings of p and q:

    min theta,  gamma >= 0,  sum_z gamma(y,z) = p(y),  sum_y W[y,z] gamma(y,z) <= theta q(z).

Any coupling proves a bound: p.G = sum gamma(y,z) G(y) <= sum gamma(y,z) W[y,z] G(z) <= theta q.G. So what finds the
coupling need not be trusted; :func:`load_bound` alone is, and it rounds outward.

The part that p and q share is coupled with itself, which is optimal where W obeys the triangle inequality. What is left
is found by Mehrotra's predictor-corrector method on all pairs of rows at once. Every iterate is a coupling and a
feasible dual, so the gap is known and an iteration that breaks off leaves a valid bound.

>>> rows = np.array([[0.9, 0.1], [0.4, 0.6]])
>>> found = couple(rows[[0]], rows[[1]], np.array([[[1.0, 2.0], [2.0, 1.0]]]))
>>> bool(abs(found.theta[0] - 1.9 / 1.4) < 1e-9)
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Probability that is left uncoupled by the search; the bound accounts for it.
_NEGLIGIBLE = 1e-14

#: Share of the way to the boundary of the feasible set that a step takes.
_STEP = 0.99

_MOST_STEPS = 80
_PATIENCE = 3
_MOST_PATIENCE = 20

#: A gap, relative to theta, that may be rounding.
_ROUNDING = 1e-6

#: Numbers in an array of one batch of pairs, so that what a step touches stays in the processor's cache.
_BATCH = 60_000

#: Relative rounding of one operation, doubled.
_UNIT = 2.0**-52


@dataclass(frozen=True, slots=True)
class Coupled:
    """Couplings of pairs of rows, nearly optimal.

    Attributes:
        mass: gamma without the part that both rows share, shape (n, k, k).
        theta: The bound that each proves up to rounding, shape (n,).
        weights: Dual weights of the columns, which sum to at most 1, shape (n, k): the derivative of theta by W[y,z] is
            ``weights[z] * mass[y,z] / q[z]``.
        gap: How far each theta is from optimal at most, shape (n,).
    """

    mass: FloatArray
    theta: FloatArray
    weights: FloatArray
    gap: FloatArray


def couple(p: FloatArray, q: FloatArray, ratios: FloatArray, tolerance: float = 1e-9) -> Coupled:
    """Find couplings of pairs of rows whose bound is optimal within a tolerance.

    Args:
        p: Rows of numerators, shape (n, k).
        q: Rows of denominators, shape (n, k).
        ratios: W, shape (n, k, k) or (1, k, k) where all pairs have the same; finite, at least 1, with ones on the
            diagonal.
        tolerance: Gap in theta at which a pair is done.
    """
    n, k = p.shape
    surplus = np.maximum(p - q, 0.0)
    # pairs with as many rows to couple stand together, so that a batch has little padding
    order = np.argsort((surplus > _NEGLIGIBLE).sum(axis=1), kind="stable")
    found = Coupled(np.zeros((n, k, k)), np.ones(n), np.where(q > 0, q, 0.0), np.zeros(n))
    size = max(1, _BATCH // (k * k))
    for at in range(0, n, size):
        chosen = order[at : at + size]
        part = ratios if len(ratios) == 1 else ratios[chosen]
        _Batch(p[chosen], q[chosen], part, chosen, tolerance).solve(found)
    return found


class _Batch:
    """Pairs that are solved together.

    The unknowns of a pair are f[y,z], the share of y's surplus that z takes (rows sum to 1), and theta; the slack of a
    column is theta less its load. The duals are u[y], free, and the weights of the columns.
    """

    def __init__(
        self, p: FloatArray, q: FloatArray, ratios: FloatArray, places: npt.NDArray[np.intp], tolerance: float
    ) -> None:
        n, k = p.shape
        self.places, self.tolerance = places, tolerance
        surplus = np.maximum(p - q, 0.0)
        rows = max(1, int((surplus > _NEGLIGIBLE).sum(axis=1).max()))
        self.rows = np.argsort(-surplus, axis=1, kind="stable")[:, :rows]
        self.surplus = np.take_along_axis(surplus, self.rows, axis=1)
        self.real = self.surplus > _NEGLIGIBLE
        self.live = q > 0
        self.q = np.where(self.live, q, 1.0)
        self.shared = np.where(self.live, np.minimum(p, q) / self.q, 0.0)
        chosen = np.take_along_axis(np.broadcast_to(ratios, (n, k, k)), self.rows[:, :, None], axis=1)
        self.open = self.real[:, :, None] & self.live[:, None, :]
        self.load = np.where(self.open, chosen * self.surplus[:, :, None] / self.q[:, None, :], 0.0)
        start = np.where(self.open, np.maximum(q, 1e-8)[:, None, :], 0.0)
        self.shares = _normalised(start)
        loads = self._loads()
        self.theta = loads.max(axis=1) * 1.1 + 1e-3
        self.slack = np.where(self.live, self.theta[:, None] - loads, 1.0)
        self.weights = np.where(self.live, 0.9 * q / q.sum(axis=1, keepdims=True), 0.0)
        self.spare = np.full(n, 0.1)
        self.duals = np.where(self.real, 0.5 * self._most_duals(), 0.0)
        self.reduced = np.where(self.open, self.load * self.weights[:, None, :] - self.duals[:, :, None], 1.0)
        self.unknowns = self.open.sum(axis=(1, 2)) + self.live.sum(axis=1) + 1.0
        self.best_gap, self.best_shares, self.best_weights = np.full(n, np.inf), self.shares, self.weights
        self.waits = np.zeros(n, dtype=np.int64)

    def solve(self, found: Coupled) -> None:
        """Iterate until every pair is done, and put what was found into its places."""
        for _ in range(_MOST_STEPS):
            gap = self._gap()
            worse = ~(gap < self.best_gap)
            self.best_gap = np.where(worse, self.best_gap, gap)
            self.best_shares = np.where(worse[:, None, None], self.best_shares, self.shares)
            self.best_weights = np.where(worse[:, None], self.best_weights, self.weights)
            self.waits = np.where(worse, self.waits + 1, 0)
            # where a small gap has not fallen for some steps, what is left of it is rounding
            still = (self.waits >= _PATIENCE) & (self.best_gap <= _ROUNDING * self.theta)
            done = (gap <= self.tolerance) | still | (self.waits >= _MOST_PATIENCE)
            if done.any():
                self._keep(found, done)
                if done.all():
                    return
                self._drop(done)
            with np.errstate(all="ignore"):
                self._step()
        self._keep(found, np.ones(len(self.theta), dtype=bool))

    def _gap(self) -> FloatArray:
        """The bound that the shares prove, less the one that the weights prove."""
        least = np.sum(self.shared * self.weights, axis=1) + np.sum(self._most_duals(), axis=1, where=self.real)
        return np.where(self.live, self._loads(), 0.0).max(axis=1) - least / (self.weights.sum(axis=1) + self.spare)

    def _most_duals(self) -> FloatArray:
        """The largest u that the weights allow."""
        return np.where(self.open, self.load * self.weights[:, None, :], np.inf).min(axis=2)

    def _loads(self) -> FloatArray:
        """What each column carries, shape (n, k)."""
        return self.shared + np.einsum("nyz,nyz->nz", self.load, self.shares)

    def _keep(self, found: Coupled, done: npt.NDArray[np.bool_]) -> None:
        places, shares = self.places[done], self.best_shares[done]
        mass = np.where(self.open[done], shares * self.surplus[done][:, :, None], 0.0)
        found.mass[places[:, None], self.rows[done]] = mass
        loads = self.shared[done] + np.einsum("nyz,nyz->nz", self.load[done], shares)
        found.theta[places] = np.where(self.live[done], loads, 0.0).max(axis=1)
        found.weights[places] = self.best_weights[done]
        found.gap[places] = self.best_gap[done]

    def _drop(self, done: npt.NDArray[np.bool_]) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, value[~done])

    def _step(self) -> None:
        """One step of Mehrotra's method."""
        open_, live = self.open, self.live
        shares, slack, theta = np.where(open_, self.shares, 1.0), self.slack, self.theta
        safe, weights, spare = self.reduced, np.where(live, self.weights, 1.0), self.spare
        mean = (
            np.sum(shares * safe, axis=(1, 2), where=open_)
            + np.sum(slack * weights, axis=1, where=live)
            + theta * spare
        ) / self.unknowns
        missed = np.where(live, theta[:, None] - slack - self._loads(), 0.0)
        system = _System(self, shares / safe * open_, np.where(live, slack / weights, 1.0), theta / spare, missed)

        def direction(shares_by: FloatArray, slack_by: FloatArray, theta_by: FloatArray) -> tuple[FloatArray, ...]:
            return system.solve(
                np.where(open_, shares_by / safe, 0.0), np.where(live, slack_by / weights, 0.0), theta_by / spare
            )

        point = (shares, slack, theta)
        costs = (safe, weights, spare)
        first = direction(-shares * safe, -slack * weights, -theta * spare)
        primal, dual = _length(point, first[:3]), _length(costs, first[3:6])
        reached = (
            np.sum(_moved(shares, first[0], primal) * _moved(safe, first[3], dual), axis=(1, 2), where=open_)
            + np.sum(_moved(slack, first[1], primal) * _moved(weights, first[4], dual), axis=1, where=live)
            + _moved(theta, first[2], primal) * _moved(spare, first[5], dual)
        ) / self.unknowns
        aim = (reached / mean) ** 3 * mean
        second = direction(
            aim[:, None, None] - shares * safe - first[0] * first[3],
            aim[:, None] - slack * weights - first[1] * first[4],
            aim - theta * spare - first[2] * first[5],
        )
        primal = np.minimum(1.0, _STEP * _length(point, second[:3]))
        dual = np.minimum(1.0, _STEP * _length(costs, second[3:6]))
        # rows are made exact again, and the weights with the spare, so that rounding does not add up
        self.shares = _normalised(np.where(open_, _moved(self.shares, second[0], primal), 0.0))
        self.slack = np.where(live, _moved(slack, second[1], primal), 1.0)
        self.theta = _moved(theta, second[2], primal)
        self.reduced = np.where(open_, _moved(safe, second[3], dual), 1.0)
        self.weights = np.where(live, _moved(self.weights, second[4], dual), 0.0)
        self.spare = _moved(spare, second[5], dual)
        self.duals = np.where(self.real, _moved(self.duals, second[6], dual), 0.0)


class _System:
    """The normal equations of one step, reduced to the rows that are coupled, shape (n, rows, rows)."""

    def __init__(
        self, batch: _Batch, scale: FloatArray, slack_scale: FloatArray, theta_scale: FloatArray, missed: FloatArray
    ) -> None:
        self.batch, self.scale, self.slack_scale, self.theta_scale = batch, scale, slack_scale, theta_scale
        self.missed = missed
        self.cross = batch.load * scale
        self.columns = np.einsum("nyz,nyz->nz", batch.load, self.cross) + slack_scale
        row_scale = scale.sum(axis=2) + ~batch.real
        self.live = batch.live / self.columns
        self.pull = theta_scale / (1.0 + theta_scale * self.live.sum(axis=1))
        self.push = np.einsum("nyz,nz->ny", self.cross, self.live)
        half = self.cross / np.sqrt(self.columns)[:, None, :]
        matrix = -np.matmul(half, half.transpose(0, 2, 1))
        matrix += self.pull[:, None, None] * self.push[:, :, None] * self.push[:, None, :]
        diagonal = np.arange(matrix.shape[1])
        matrix[:, diagonal, diagonal] += row_scale
        # rows are scaled to a unit diagonal; the little that is added keeps a singular limit solvable
        self.unit = 1.0 / np.sqrt(row_scale)
        matrix *= self.unit[:, :, None] * self.unit[:, None, :]
        matrix[:, diagonal, diagonal] += 1e-14
        self.matrix = matrix

    def _columns_solved(self, right: FloatArray) -> FloatArray:
        """(diag(columns) + theta_scale t t') x = right, with t the live columns."""
        plain = right / self.columns
        return plain - (self.pull * np.sum(self.live * right, axis=1))[:, None] * self.live

    def solve(self, shares: FloatArray, slack: FloatArray, theta: FloatArray) -> tuple[FloatArray, ...]:
        """Directions of shares, slack, theta, of their three costs, and of u."""
        batch = self.batch
        rows = -shares.sum(axis=2)
        carried = np.einsum("nyz,nyz->nz", batch.load, shares)
        columns = np.where(batch.live, self.missed + theta[:, None] - slack - carried, 0.0)
        right = rows - np.einsum("nyz,nz->ny", self.cross, self._columns_solved(columns))
        duals = np.linalg.solve(self.matrix, (right * self.unit)[:, :, None])[:, :, 0] * self.unit
        duals = np.where(batch.real, duals, 0.0)
        weights = self._columns_solved(np.einsum("nyz,ny->nz", self.cross, duals) - columns)
        weights = np.where(batch.live, weights, 0.0)
        reduced = np.where(batch.open, batch.load * weights[:, None, :] - duals[:, :, None], 0.0)
        spare = -weights.sum(axis=1)
        return (
            shares - self.scale * reduced,
            np.where(batch.live, slack - self.slack_scale * weights, 0.0),
            theta - self.theta_scale * spare,
            reduced,
            weights,
            spare,
            duals,
        )


def _normalised(shares: FloatArray) -> FloatArray:
    """Rows divided by their sums; rows of zeros stay."""
    sums = shares.sum(axis=2, keepdims=True)
    return shares / np.where(sums > 0, sums, 1.0)


def _moved(value: FloatArray, direction: FloatArray, length: FloatArray) -> FloatArray:
    return value + length.reshape(-1, *([1] * (value.ndim - 1))) * direction


def _length(point: tuple[FloatArray, ...], direction: tuple[FloatArray, ...]) -> FloatArray:
    """How far each pair can go before an unknown turns negative, at most 1."""
    longest: Any = 1.0
    for value, change in zip(point, direction, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(change < 0, -value / change, np.inf)
        longest = np.minimum(longest, ratio.reshape(len(ratio), -1).min(axis=1))
    return longest


def load_bound(p: FloatArray, q: FloatArray, ratios: FloatArray, mass: FloatArray) -> FloatArray:
    """What couplings prove, rounded outward: theta(p, q; W) is at most this, whatever the mass.

    The rows of the mass are scaled to the surplus of p over q, and what no column took goes to the column of the row's
    least cost; so any non-negative numbers prove a bound, only not always a good one.

    Args:
        p: Rows of numerators, shape (n, k).
        q: Rows of denominators, shape (n, k).
        ratios: W, shape (n, k, k) or (1, k, k); entries at least 1, ones on the diagonal.
        mass: As in :class:`Coupled`, shape (n, k, k).

    Returns:
        theta, shape (n,); infinite where p has a state that cannot be coupled at finite ratios.
    """
    n, k = p.shape
    ratios = np.broadcast_to(ratios, (n, k, k))
    live = q > 0
    safe = np.where(live, q, 1.0)
    surplus = np.maximum(p - q, 0.0)
    given = np.where(live[:, None, :] & (mass > 0), mass, 0.0)
    sums = given.sum(axis=2)
    with np.errstate(divide="ignore", over="ignore"):
        given = given * np.where(sums > 0, surplus / np.where(sums > 0, sums, 1.0), 0.0)[:, :, None]
    lost = np.where(sums > 0, 0.0, surplus)
    if lost.any():
        cost = np.where(live[:, None, :], ratios / safe[:, None, :], np.inf)
        best = cost.argmin(axis=2)
        place = np.nonzero(lost > 0)
        np.add.at(given, (*place, best[place]), lost[place])
    with np.errstate(invalid="ignore"):
        loads = np.minimum(p, q) + np.sum(ratios * given, axis=1, where=given > 0)
    theta = np.where(live, loads / safe, 0.0).max(axis=1)
    # Sums of k terms that are not negative, the scaling of a row, products and a division: each rounds by half a unit
    # of its result, and so do the differences p - q, whose terms are floats that are taken as they stand.
    return theta * (1.0 + (2 * k + 16) * _UNIT)


__all__ = ["Coupled", "couple", "load_bound"]
