"""Couplings of pairs of rows: the largest ratio of two expectations under bounded ratios, what proves it, and its text.

For rows p and q of a kernel and ratios W >= 1 with W[y,y] = 1, let

    theta(p, q; W) = max over G > 0 with G(y) <= W[y,z] G(z) for all y, z,  of  p.G / q.G.

Its logarithm is the map L of the forward-backward account. The dual is a linear programme over couplings of p and q:

    min theta,  gamma >= 0,  sum_z gamma(y,z) = p(y),  sum_y W[y,z] gamma(y,z) <= theta q(z).

*The bound.* What p and q share is coupled with itself, which is optimal where W obeys the triangle inequality; of the
surplus max(p - q, 0) of each state y some mass(y,z) >= 0 goes to each z, with sum_z mass(y,z) at least that. Then

    p.G <= sum_z (min(p, q)(z) + sum_y W[y,z] mass(y,z)) G(z) <= theta q.G,

with theta the largest load of a column over q(z). So any mass proves a bound, and what found it need not be trusted:
:func:`load_bound` alone is. It takes nothing of the mass but its proportions within a row, and scales these to the
surplus itself, so that numbers that are rounded, damaged or made up can only make the bound larger.

*The search*, by Mehrotra's predictor-corrector method on all pairs of rows at once. Every iterate is a coupling and a
feasible dual, so the gap is known and an iteration that breaks off leaves a valid bound.

>>> rows = np.array([[0.9, 0.1], [0.4, 0.6]])
>>> ratios = np.array([[[1.0, 2.0], [2.0, 1.0]]])
>>> found = couple(rows[[0]], rows[[1]], ratios)
>>> bool(abs(found.theta[0] - 1.9 / 1.4) < 1e-9)
True
>>> moved = Couplings.of(np.array([[[0.0, 1.0], [0.0, 0.0]]]))
>>> bool(abs(load_bound(rows[[0]], rows[[1]], ratios, moved)[0] - (0.1 + 2 * 0.5) / 0.6) < 1e-9)
True
>>> read = Couplings.from_text(moved.text(), 1, 2)
>>> read.places.tolist(), read.mass.tolist()
([1], [1.0])
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import ArgumentError

FloatArray = npt.NDArray[np.float64]

#: Relative rounding of one operation, doubled.
UNIT = 2.0**-52

#: Probability that is left uncoupled by the search; the bound accounts for it.
_NEGLIGIBLE = 1e-14


@dataclass(frozen=True, slots=True, eq=False)
class Couplings:
    """How the surplus of p over q goes from state to state, for n pairs of rows of k states.

    Raises:
        ValueError: Places are not ascending, or outside the array, or not as many as the mass.
    """

    pairs: int  # n
    states: int  # k
    places: npt.NDArray[np.int64]  # where there is mass in a flattened array of shape (n, k, k), ascending, shape (m,)
    mass: FloatArray  # what goes there, in any unit of its own for each row, shape (m,)

    def __post_init__(self) -> None:
        if self.places.ndim != 1 or self.places.shape != self.mass.shape:
            raise ArgumentError("places and mass are not as many")
        if len(self.places) and not (
            self.places[0] >= 0
            and self.places[-1] < self.pairs * self.states**2
            and (self.places[1:] > self.places[:-1]).all()
        ):
            raise ArgumentError("places are not ascending, or outside the pairs")

    @classmethod
    def of(cls, mass: FloatArray) -> Couplings:
        """What is above 0 of an array of shape (n, k, k)."""
        places = np.flatnonzero(mass > 0)
        return cls(mass.shape[0], mass.shape[-1], places, mass.ravel()[places])

    @classmethod
    def joined(cls, parts: list[Couplings]) -> Couplings:
        """Those of several lists of pairs, one after the other; at least one list, of as many states."""
        pairs, states = [one.pairs for one in parts], parts[0].states
        starts = np.cumsum([0, *pairs]) * states**2
        places = np.concatenate([one.places + start for one, start in zip(parts, starts, strict=False)])
        return cls(sum(pairs), states, places, np.concatenate([one.mass for one in parts]))

    def rounded(self, size: int) -> Couplings:
        """Shares of each row in floats of 4 or 8 bytes, the negligible ones left out."""
        rows = self.places // self.states
        sums = np.bincount(rows, self.mass, self.pairs * self.states)
        shares = (self.mass / sums[rows]).astype(f"<f{size}").astype(np.float64)
        kept = shares > (1e-8 if size == 4 else 1e-11)
        return Couplings(self.pairs, self.states, self.places[kept], shares[kept])

    def text(self) -> str:
        """For a file: differences of the places and the mass, each byte by byte of its rank, compressed, in base64."""
        size = 4 if (self.mass.astype("<f4") == self.mass).all() else 8
        steps = np.diff(self.places, prepend=0)
        if len(steps) and steps.max() >= 2**32:
            raise ArgumentError("places are too far apart")
        ranks = (_ranks(steps.astype("<u4")), _ranks(self.mass.astype(f"<f{size}")))
        return base64.b64encode(zlib.compress(bytes([size]) + b"".join(ranks), 9)).decode("ascii")

    @classmethod
    def from_text(cls, text: str, pairs: int, states: int) -> Couplings:
        """The inverse of :meth:`text`.

        Raises:
            ValueError: It is no such text, one of other pairs, or has mass that is not finite and above 0.
        """
        most = 1 + (4 + 8) * pairs * states**2  # bytes of a place and of the mass there, at most
        reader = zlib.decompressobj()
        try:
            found = reader.decompress(base64.b64decode(text, validate=True), most + 1)
        except zlib.error as error:
            raise ArgumentError("couplings are not compressed text") from error
        if not reader.eof or reader.unused_data or not found or found[0] not in (4, 8) or len(found) > most:
            raise ArgumentError("couplings are incomplete, or more than the pairs have")
        size = found[0]
        count, over = divmod(len(found) - 1, 4 + size)
        if over:
            raise ArgumentError("couplings are incomplete")
        body = np.frombuffer(found, np.uint8, offset=1)
        steps = _numbers(body[: 4 * count], "<u4")
        with np.errstate(invalid="ignore"):  # a NaN of the signalling kind
            mass = _numbers(body[4 * count :], f"<f{size}").astype(np.float64)
        if not (np.isfinite(mass).all() and (mass > 0).all()):
            raise ArgumentError("couplings have mass that is not finite and above 0")
        return cls(pairs, states, np.cumsum(steps, dtype=np.int64), mass)


def _ranks(numbers: npt.NDArray[np.generic]) -> bytes:
    """First bytes of all numbers, then second ones, and so on: like stands beside like, which compresses better."""
    return numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()


def _numbers(ranks: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(ranks.reshape(np.dtype(kind).itemsize, -1).T).view(kind).ravel()


def load_bound(
    p: FloatArray,
    q: FloatArray,
    ratios: FloatArray,
    couplings: Couplings,
    ahead: npt.NDArray[np.intp] | None = None,
) -> FloatArray:
    """What couplings prove, rounded outward: theta(p, q; W) is at most this, whatever the mass.

    The rows of the mass are scaled to the surplus of p over q, and what no column took goes to the column of the row's
    least cost; so any numbers prove a bound, only not always a good one. Those that are not above 0, not numbers, or in
    a column without probability are left out.

    Args:
        p: Rows of numerators, shape (n, k).
        q: Rows of denominators, shape (n, k).
        ratios: W, shape (m, k, k); entries at least 1, ones on the diagonal.
        couplings: Of n pairs of k states.
        ahead: Which W each pair has, shape (n,); left out, its own where m is n, and the only one where m is 1.

    Returns:
        theta, shape (n,); infinite where p has a state that cannot be coupled at finite ratios.
    """
    n, k = p.shape
    if (couplings.pairs, couplings.states) != (n, k):
        raise ArgumentError(f"couplings of {couplings.pairs} pairs of {couplings.states} states, for {n} of {k}")
    whose = (np.zeros(n, dtype=np.intp) if len(ratios) == 1 else np.arange(n)) if ahead is None else ahead
    live = q > 0
    safe = np.where(live, q, 1.0)
    # a smaller surplus is raised, so that what underflows of its shares is negligible
    surplus = np.where(p > q, np.maximum(p - q, 2.0**-900), 0.0).ravel()
    rows, column = np.divmod(couplings.places, k)
    pair, row = np.divmod(rows, k)
    mass = couplings.mass
    # of more mass a sum of a row might overflow
    taken = np.where(live[pair, column] & (mass > 0) & (mass < 2.0**100), mass, 0.0)
    sums = np.bincount(rows, taken, n * k)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        given = taken * (surplus / np.where(sums > 0, sums, 1.0))[rows]
        moved = np.where(given > 0, ratios[whose[pair], row, column] * given, 0.0)
        loads = np.minimum(p, q) + np.bincount(pair * k + column, moved, n * k).reshape(n, k)
    lost = (surplus > 0) & ~(sums > 0)
    if lost.any():
        pair, row = np.divmod(np.flatnonzero(lost), k)
        cost = np.where(live[pair], ratios[whose[pair], row] / safe[pair], np.inf)
        # of columns that all cost infinitely much it is one with probability, whose load is then infinite
        best = np.where(np.isinf(cost).all(axis=1), live[pair].argmax(axis=1), cost.argmin(axis=1))
        np.add.at(loads, (pair, best), ratios[whose[pair], row, best] * surplus[lost])
    theta = np.where(live, loads / safe, 0.0).max(axis=1)
    # Sums of k terms that are not negative, the scaling of a row, products and a division: each rounds by half a unit
    # of its result, and so do the differences p - q, whose terms are floats that are taken as they stand.
    return theta * (1.0 + (2 * k + 16) * UNIT)


@dataclass(frozen=True, slots=True)
class Coupled:
    """Couplings of pairs of rows, nearly optimal."""

    mass: FloatArray  # gamma without the part that both rows share, shape (n, k, k)
    theta: FloatArray  # the bound that each proves up to rounding, shape (n,)
    # dual weights of the columns, which sum to at most 1, shape (n, k): the derivative of theta by W[y,z] is
    # ``weights[z] * mass[y,z] / q[z]``
    weights: FloatArray


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
    rows, columns = ((p - q) > _NEGLIGIBLE).sum(axis=1), (q > 0).sum(axis=1)
    # pairs with about as many rows and columns to couple stand together, so that a batch has little padding
    order = np.lexsort((rows, columns // 8))
    found = Coupled(np.zeros((n, k, k)), np.ones(n), np.where(q > 0, q, 0.0))
    at = 0
    while at < n:
        # 30,000 numbers in an array at most, so that what a step touches stays in the processor's cache
        alike = order[at : at + max(1, 30_000 // _room(rows, columns, order[at : at + 1]))]
        alike = alike[columns[alike] // 8 == columns[order[at]] // 8]
        chosen = alike[: max(1, 30_000 // _room(rows, columns, alike))]
        part = ratios if len(ratios) == 1 else ratios[chosen]
        _Batch(p[chosen], q[chosen], part, chosen, tolerance).solve(found)
        at += len(chosen)
    return found


def _room(rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp], pairs: npt.NDArray[np.intp]) -> int:
    """Numbers that a pair takes in a batch of some pairs."""
    return max(1, int(rows[pairs].max())) * int(columns[pairs].max())


class _Batch:
    """Pairs that are solved together.

    The unknowns of a pair are f[y,z], the share of y's surplus that z takes (rows sum to 1), and theta; the slack of a
    column is theta less its load. The duals are u[y], free, and the weights of the columns.
    """

    def __init__(
        self, p: FloatArray, q: FloatArray, ratios: FloatArray, places: npt.NDArray[np.intp], tolerance: float
    ) -> None:
        n = len(p)
        self.places, self.tolerance = places, tolerance
        surplus = np.maximum(p - q, 0.0)
        rows = max(1, int((surplus > _NEGLIGIBLE).sum(axis=1).max()))
        self.rows = np.argsort(-surplus, axis=1, kind="stable")[:, :rows]
        self.surplus = np.take_along_axis(surplus, self.rows, axis=1)
        self.real = self.surplus > _NEGLIGIBLE
        self.columns = np.argsort(q <= 0, axis=1, kind="stable")[:, : int((q > 0).sum(axis=1).max())]
        p, q = (np.take_along_axis(one, self.columns, axis=1) for one in (p, q))
        self.live = q > 0
        self.q = np.where(self.live, q, 1.0)
        self.shared = np.where(self.live, np.minimum(p, q) / self.q, 0.0)
        whose = np.zeros(n, dtype=np.intp) if len(ratios) == 1 else np.arange(n)
        chosen = ratios[whose[:, None, None], self.rows[:, :, None], self.columns[:, None, :]]
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
        for _ in range(80):
            gap = self._gap()
            worse = ~(gap < self.best_gap)
            self.best_gap = np.where(worse, self.best_gap, gap)
            self.best_shares = np.where(worse[:, None, None], self.best_shares, self.shares)
            self.best_weights = np.where(worse[:, None], self.best_weights, self.weights)
            self.waits = np.where(worse, self.waits + 1, 0)
            # where a small gap has not fallen for some steps, what is left of it is rounding
            still = (self.waits >= 3) & (self.best_gap <= 1e-6 * self.theta)
            done = (gap <= self.tolerance) | still | (self.waits >= 20)
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
        rows, columns = self.rows[done], self.columns[done]
        found.mass[places[:, None, None], rows[:, :, None], columns[:, None, :]] = mass
        loads = self.shared[done] + np.einsum("nyz,nyz->nz", self.load[done], shares)
        found.theta[places] = np.where(self.live[done], loads, 0.0).max(axis=1)
        found.weights[places[:, None], columns] = self.best_weights[done]

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
        # nearly all of the way to the boundary of the feasible set
        primal = np.minimum(1.0, 0.99 * _length(point, second[:3]))
        dual = np.minimum(1.0, 0.99 * _length(costs, second[3:6]))
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
    least: Any = -1.0
    for value, change in zip(point, direction, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = change / value
        # nothing moves where 0 is to change by 0
        least = np.minimum(least, np.fmin.reduce(ratio.reshape(len(ratio), -1), axis=1))
    return -1.0 / least
