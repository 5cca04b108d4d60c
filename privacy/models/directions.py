"""One direction of time: what a state tells about the releases ahead of it, or behind it, with exact couplings.

With a density d in every slot of an endless stream, the matrix of a direction with kernel P obeys

    F[x,x'] = d + L(P(x,.), P(x',.); F),   the diagonal 0,

and every F >= d + L(P; F) bounds it, for every horizon and all densities up to d. Such an F is a certificate. The map L
is the exact one for a :class:`Kernel`; a class of kernels has a bound on it in one number: from total variation for a
:class:`MixingCurve`, from odds for :class:`AnyStart`. Sources: the loss of one output per time step is from Cao,
Yoshikawa, Xiao, Xiong (TKDE 2018); contraction in total variation is Dobrushin's.

The largest ratio of two expectations under bounded ratios, exactly, by couplings.

For rows p and q of a kernel and a matrix of ratios W with W[y,y] = 1,

    theta(p, q; W) = max over G > 0 with G(y) <= W[y,z] G(z) for all y, z,  of  p.G / q.G.

Its logarithm is the map L of the forward-backward account. The dual is a linear programme over couplings of p and q:

    min theta,  gamma >= 0,  sum_z gamma(y,z) = p(y),  sum_y W[y,z] gamma(y,z) <= theta q(z).

Any coupling proves a bound: p.G = sum gamma(y,z) G(y) <= sum gamma(y,z) W[y,z] G(z) <= theta q.G. So what finds the
coupling need not be trusted; :func:`.couplings.load_bound` alone is, and it rounds outward.

The part that p and q share is coupled with itself, which is optimal where W obeys the triangle inequality. What is left
is found by Mehrotra's predictor-corrector method on all pairs of rows at once. Every iterate is a coupling and a
feasible dual, so the gap is known and an iteration that breaks off leaves a valid bound.

>>> rows = np.array([[0.9, 0.1], [0.4, 0.6]])
>>> found = couple(rows[[0]], rows[[1]], np.array([[[1.0, 2.0], [2.0, 1.0]]]))
>>> bool(abs(found.theta[0] - 1.9 / 1.4) < 1e-9)
True

One direction of time under kernels that repeat with a period of n slots.

With a density d in every slot the matrices of the slots of a period obey

    F_s[x,x'] = d + L(P_s(x,.), P_s(x',.); F_{s+1}),   s + 1 modulo n,   the diagonals 0,

and all matrices with F_s >= d + L(P_s; F_{s+1}) at every s bound those of every horizon and all densities up to d: by
induction from the last slot, as for one kernel. Back in time the kernel out of s leads to s - 1. A state that is
impossible at a slot has no row there, and no possible state leads to it, so no coupling gives it mass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import PrivacyError
from .couplings import UNIT, Couplings, FloatArray, load_bound


@cache
def _sparse() -> Any:
    """SciPy's sparse matrices, with their solver: a fifth of a second that bounds and commands without a chain save."""
    import_module("scipy.sparse.linalg")  # which the other does not import
    return import_module("scipy.sparse")


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
_PAIRS_AT_ONCE = 30_000

#: Numbers of columns that are taken as alike where pairs are put together.
_BAND = 8


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
    rows, columns = ((p - q) > _NEGLIGIBLE).sum(axis=1), (q > 0).sum(axis=1)
    # pairs with about as many rows and columns to couple stand together, so that a batch has little padding
    order = np.lexsort((rows, columns // _BAND))
    found = Coupled(np.zeros((n, k, k)), np.ones(n), np.where(q > 0, q, 0.0), np.zeros(n))
    at = 0
    while at < n:
        alike = order[at : at + max(1, _PAIRS_AT_ONCE // _room(rows, columns, order[at : at + 1]))]
        alike = alike[columns[alike] // _BAND == columns[order[at]] // _BAND]
        chosen = alike[: max(1, _PAIRS_AT_ONCE // _room(rows, columns, alike))]
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
        rows, columns = self.rows[done], self.columns[done]
        found.mass[places[:, None, None], rows[:, :, None], columns[:, None, :]] = mass
        loads = self.shared[done] + np.einsum("nyz,nyz->nz", self.load[done], shares)
        found.theta[places] = np.where(self.live[done], loads, 0.0).max(axis=1)
        found.weights[places[:, None], columns] = self.best_weights[done]
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
    least: Any = -1.0
    for value, change in zip(point, direction, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = change / value
        # nothing moves where 0 is to change by 0
        least = np.minimum(least, np.fmin.reduce(ratio.reshape(len(ratio), -1), axis=1))
    return -1.0 / least


#: Steps whose total variation is used; those between lower the result by at most 0.4 %.
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: Outward rounding of a result of a few operations, among them powers of a matrix of up to 51 states and 64 steps.
_OUTWARD = 1e-12

#: Unknowns up to which a dense system is solved, and the share of numbers in it that makes it dense.
_DENSE = 600
_FULL = 0.06

#: Refinements of a solution by the factors of a system near by, and the relative change at which they end.
_MOST_REFINEMENTS = 12
_REFINED = 1e-13

#: Weight of a derivative that is left out of the linearised system.
_THIN = 1e-11

#: Numbers in the arrays of pairs whose couplings are sought together.
_BATCH = 2_000_000

#: Gap in theta of couplings that are kept.
_KEPT_GAP = 1e-12

#: A total variation below which the rest of its sum is taken as a geometric series.
_SMALL = 1e-4
_MOST_POWERS = 20_000

#: Iterations under held couplings, and the relative change at which they end.
_MOST_DESCENTS = 3_000
_STILL = 1e-12


class NotContracting(PrivacyError):  # noqa: N818 - says what the kernel lacks
    """A direction has no finite matrix at a density: the releases may tell without a bound what a state was."""


class Direction(ABC):
    """One direction of time under a belief."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of its matrix: (k, k), (n, k, k) for a period of n slots, or () for one number."""

    @property
    @abstractmethod
    def first_order(self) -> FloatArray:
        """The derivative of the matrix by the density at density 0, about."""

    @abstractmethod
    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:
        """The map around a matrix, as a system that gives the matrix of any density near by."""

    @property
    def coupled(self) -> tuple[int, int]:
        """How many pairs of rows couplings are of, and of how many states; (0, 0) where a closed form needs none."""
        return 0, 0

    def couplings_of(self, matrix: FloatArray) -> Couplings | None:  # noqa: ARG002 - a closed form needs none
        """What proves a matrix about as well as any, to be kept with it; None where nothing is needed."""
        return None

    @abstractmethod
    def density_of(self, matrix: FloatArray, couplings: Couplings | None = None) -> float:
        """The largest density for which a matrix is a certificate, rounded down; at most 0 where it is none.

        Args:
            matrix: What may be one.
            couplings: What is to prove it, whatever they are; found anew if left out. A closed form needs none.

        Raises:
            ValueError: The couplings are of other pairs.
        """

    def holds(self, matrix: FloatArray, density: float, couplings: Couplings | None = None) -> bool:
        """Whether a matrix is a certificate at a density, by couplings that are given, or found anew."""
        return self.density_of(matrix, couplings) >= density


Pair: TypeAlias = tuple[Direction, Direction]
"""The directions forward and backward of one member of a belief."""


class Linear(ABC):
    """The matrix of a direction as a function of the density, true at one point and near it."""

    @property
    def couplings(self) -> Couplings | None:
        """Those that are optimal at the point, in the order of the direction's pairs; None for a closed form."""
        return None

    @abstractmethod
    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """The matrix at a density, and its derivative.

        Raises:
            NotContracting: there is none.
        """


@dataclass(frozen=True, eq=False)
class Certificate:
    """Matrices that prove what a constant density costs on an endless stream, and every smaller one at most.

    Attributes:
        density: Loss per slot, the sum over all releases that cover it.
        forward: F, shape (k, k) with zeros on the diagonal, (n, k, k) for a period of n slots, or () for one number.
        backward: B, alike.
    """

    density: float
    forward: FloatArray
    backward: FloatArray

    @property
    def loss(self) -> float:
        """Epsilon that everything together costs at most, rounded up."""
        return math.nextafter(largest_between(self.forward + self.backward), math.inf) - math.nextafter(
            self.density, 0.0
        )

    def at(self, density: float) -> Certificate:
        """The certificate at a smaller density: the same matrices less the difference, off the diagonals.

        L is monotone, so F - (D - d) >= d + L(P; F) >= d + L(P; F - (D - d)).

        Args:
            density: At most its own.
        """
        less = math.nextafter(self.density - density, 0.0) * (1 - 2 * UNIT)
        forward, backward = (
            np.where(matrix > 0, np.nextafter(matrix - less, np.inf), 0.0) for matrix in (self.forward, self.backward)
        )
        return Certificate(density, forward, backward)

    def density_for(self, epsilon: float) -> float:
        """The largest density, at most its own, for which it proves a loss; not above 0 where there is none."""
        return min(self.density, self.density - (self.loss - epsilon))


def certify(pair: Pair, certificate: Certificate, couplings: Sequence[Couplings | None] = (None, None)) -> bool:
    """Whether a certificate holds for a belief's member: only this is believed of what was computed or read.

    Args:
        pair: The member's directions.
        certificate: What may hold.
        couplings: What is to prove the matrix of each direction, whatever they are; found anew where there are none.

    Raises:
        ValueError: The couplings are of other pairs.
    """
    if not certificate.density > 0:
        return False
    matrices = (certificate.forward, certificate.backward)
    for direction, matrix, proof in zip(pair, matrices, couplings, strict=True):
        if matrix.shape != direction.shape or not (np.isfinite(matrix).all() and (matrix >= 0).all()):
            return False
        if matrix.ndim and np.diagonal(matrix, axis1=-2, axis2=-1).any():
            return False
        if not direction.holds(matrix, certificate.density, proof):
            return False
    return True


def largest_between(total: FloatArray) -> float:
    """The largest entry of a matrix between two different states, or the one number."""
    return float(between_states(total).max())


def between_states(total: FloatArray) -> FloatArray:
    """A matrix with -inf on its diagonals; one number as it is."""
    found = np.array(total)
    if found.ndim:
        diagonal = np.arange(found.shape[-1])
        found[..., diagonal, diagonal] = -np.inf
    return found


class ByCouplings(Direction):
    """A direction whose map is the exact one, for pairs of rows of its kernels.

    Attributes:
        rounding: Relative error of the kernels' entries against those that are meant.
    """

    rounding: float

    @property
    @abstractmethod
    def places(self) -> npt.NDArray[np.intp]:
        """Where each pair stands in the flattened matrix, shape (n,)."""

    @property
    @abstractmethod
    def ahead(self) -> npt.NDArray[np.intp]:
        """Which of the matrices, shape (m, k, k), the releases ahead of each pair have, shape (n,)."""

    @abstractmethod
    def rows(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """The two rows of some of the pairs, shape (number of pairs, k) each."""

    @property
    def coupled(self) -> tuple[int, int]:
        """Pairs and states."""
        return len(self.places), self.shape[-1]

    def couple(self, matrix: FloatArray, tolerance: float = 1e-9) -> tuple[Couplings, FloatArray]:
        """Couplings of all pairs whose bound at a matrix is optimal within a tolerance, and the weights of columns."""
        n, k = self.coupled
        ratios = ratios_of(matrix).reshape(-1, k, k)
        size = max(1, _BATCH // k**2)
        parts, weights = list[Couplings](), list[FloatArray]()
        # a single state has no pairs, and one batch of none
        for part in (slice(at, at + size) for at in range(0, max(n, 1), size)):
            among = ratios if len(ratios) == 1 else ratios[self.ahead[part]]
            found = couple(*self.rows(part), among, tolerance)
            parts.append(Couplings.of(found.mass))
            weights.append(found.weights)
        return Couplings.joined(parts), np.concatenate(weights)

    def couplings_of(self, matrix: FloatArray) -> Couplings:
        """So nearly optimal that what they do not need is negligible, and is left out where they are rounded."""
        return self.couple(matrix, _KEPT_GAP)[0]

    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:
        """The map with the couplings that are optimal at a matrix."""
        return Coupling(self, matrix, *self.couple(matrix, tolerance))

    def bounds(self, matrix: FloatArray, couplings: Couplings) -> FloatArray:
        """Theta of each pair that couplings prove at a matrix, rounded outward, shape (n,)."""
        k = self.shape[-1]
        # exp is within a few units of the last place
        ratios = ratios_of(matrix).reshape(-1, k, k) * (1 + 4 * UNIT)
        return load_bound(*self.rows(slice(None)), ratios, couplings, self.ahead)

    def density_of(self, matrix: FloatArray, couplings: Couplings | None = None) -> float:
        """The least entry of F - L(P; F) between two states, by couplings, rounded down."""
        theta = self.bounds(matrix, self.couple(matrix)[0] if couplings is None else couplings)
        # log as exp; what a rounded entry of a kernel changes is a factor of both sums
        logarithm = np.log(theta) * (1 + 4 * UNIT) + 4 * UNIT + 2 * self.rounding
        return float((matrix.ravel()[self.places] - logarithm).min()) - 4 * UNIT * float(matrix.max())


@dataclass(frozen=True, eq=False)
class Kernel(ByCouplings):
    """A transition kernel, the same in every slot.

    Attributes:
        transition: Rows that sum to 1, shape (k, k), k at least 2.
        rounding: Relative error of its entries against the kernel that is meant.
    """

    transition: FloatArray
    rounding: float = 0.0
    _pairs: tuple[np.ndarray, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pairs", np.nonzero(~np.eye(len(self.transition), dtype=bool)))

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, k)."""
        return self.transition.shape

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """All but the diagonal."""
        first, second = self._pairs
        return first * len(self.transition) + second

    @property
    def ahead(self) -> npt.NDArray[np.intp]:
        """The only matrix there is."""
        return np.zeros(len(self._pairs[0]), dtype=np.intp)

    def rows(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """The rows of the two states of each pair."""
        first, second = self._pairs
        return self.transition[first[part]], self.transition[second[part]]

    @property
    def first_order(self) -> FloatArray:
        """Sum over m of the total variation between rows of the m-th power."""
        total = np.zeros_like(self.transition)
        power = np.eye(len(total))
        last = np.ones_like(total)
        for _ in range(_MOST_POWERS):
            distance = 0.5 * np.abs(power[:, None] - power[None]).sum(axis=2)
            total += distance
            if distance.max() < _SMALL:
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratio = np.nan_to_num(distance / last, nan=0.0)
                return total + distance * ratio / np.maximum(1.0 - ratio, _SMALL)
            last, power = distance, power @ self.transition
        raise NotContracting(
            "the states of the chain stay apart for ever, or come together too slowly to tell: merge states, smooth "
            "the counts, or use group privacy"
        )

    def under_couplings(self, matrix: FloatArray, density: float) -> FloatArray:
        """What the matrix comes to at a density when the couplings stay those that are optimal at it.

        With the couplings held, the map takes the largest of linear functions, so its iterates from a certificate fall.
        """
        first, second = self._pairs
        p, q = self.transition[first], self.transition[second]
        ratios = ratios_of(matrix)
        mass = couple(p, q, ratios[None]).mass
        live = q > 0
        share = np.where(live[:, None, :], mass / np.where(live, q, 1.0)[:, None, :], 0.0)
        shared = np.where(live, np.minimum(p, q) / np.where(live, q, 1.0), 0.0)
        factor = math.exp(density)
        for _ in range(_MOST_DESCENTS):
            before = ratios[first, second]
            # couplings that are only nearly optimal may not fall everywhere; what is there stays a bound
            after = np.minimum(before, factor * (shared + np.einsum("nyz,yz->nz", share, ratios)).max(axis=1))
            ratios[first, second] = after
            if np.abs(after / before - 1.0).max() <= _STILL:
                break
        return np.log(ratios)


def variation(rows: FloatArray) -> float:
    """The largest total variation of two rows, shape (k, k), not rounded."""
    return max(float(np.abs(rows - row).sum(axis=1).max()) for row in rows) / 2


def ratios_of(matrix: FloatArray) -> FloatArray:
    """W = e^F with ones on the diagonals, shape (..., k, k)."""
    ratios = np.exp(matrix)
    diagonal = np.arange(matrix.shape[-1])
    ratios[..., diagonal, diagonal] = 1.0
    return ratios


class Coupling(Linear):
    """W = e^d (c + A W) over the pairs of states, with W = e^F: A is the derivative of theta by W.

    Args:
        direction: Whose map it is.
        matrix: The point.
        couplings: Of the direction's pairs, nearly optimal there.
        weights: Dual weights of the columns, as in :class:`Coupled`.
    """

    def __init__(self, direction: ByCouplings, matrix: FloatArray, couplings: Couplings, weights: FloatArray) -> None:
        self._direction, self._matrix, self._couplings, self._weights = direction, matrix, couplings, weights
        self._unknowns, size = direction.places, matrix.shape[-1]
        ratios = ratios_of(matrix).ravel()
        rows, column = np.divmod(couplings.places, size)
        pair, row = np.divmod(rows, size)
        p, q = direction.rows(slice(None))
        surplus = np.maximum(p - q, 0.0).ravel()
        sums = np.bincount(rows, couplings.mass, len(surplus))
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = couplings.mass * (surplus / sums)[rows] * (weights / q)[pair, column]
        used = np.flatnonzero((slopes > _THIN) & (row != column))
        pair, slopes = pair[used], slopes[used]
        where = (direction.ahead[pair] * size + row[used]) * size + column[used]
        derivative = _sparse().csr_matrix((slopes, (pair, where)), (len(self._unknowns), matrix.size))
        self._constant = direction.bounds(matrix, couplings) - derivative @ ratios
        self._slopes = derivative[:, self._unknowns].tocsc()
        self._solver: tuple[float, Any] | None = None

    @property
    def couplings(self) -> Couplings:
        """Those of the point."""
        return self._couplings

    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """Solve the system and its derivative by the density."""
        factor, size = math.exp(density), len(self._constant)
        if size <= _DENSE and self._slopes.nnz > _FULL * size**2:
            inverse = np.linalg.inv(np.eye(size) - factor * self._slopes.toarray())
            ratios = inverse @ (factor * self._constant)
            derivative = inverse @ ratios
        else:
            ratios = self._solved(factor, factor * self._constant)
            derivative = self._solved(factor, ratios)
        if not (np.isfinite(ratios).all() and ratios.min() > 0):
            raise NotContracting(f"the releases tell more than any bound at density {density:g}: use a smaller one")
        return self._filled(np.log(ratios)), self._filled(derivative / ratios)

    def _solved(self, factor: float, right: FloatArray) -> FloatArray:
        """(1 - factor A) x = right: by the last factors, refined; by new ones where those are of too far a factor."""
        if self._solver is not None and self._solver[0] != factor:
            solve = self._solver[1].solve
            found = step = solve(right)
            for _ in range(_MOST_REFINEMENTS):
                before = np.abs(step).max()
                step = solve(right - found + factor * (self._slopes @ found))
                if not np.abs(step).max() <= before / 4:
                    break
                found = found + step
                if np.abs(step).max() <= _REFINED * np.abs(found).max():
                    return found
        if self._solver is None or self._solver[0] != factor:
            sparse = _sparse()
            system = (sparse.identity(len(right), format="csc") - factor * self._slopes).tocsc()
            self._solver = factor, sparse.linalg.splu(system)
        return self._solver[1].solve(right)

    def _filled(self, values: FloatArray) -> FloatArray:
        matrix = np.zeros(self._matrix.shape)
        matrix.ravel()[self._unknowns] = values
        return matrix


class OneNumber(Direction, Linear):
    """A direction of which only one number is known, the largest entry of its matrix."""

    @abstractmethod
    def value(self, density: float) -> float:
        """The number at a density, rounded up; infinite where there is none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """()."""
        return ()

    @property
    def first_order(self) -> FloatArray:
        """By a small difference."""
        return np.asarray(self.value(_SMALL**2) / _SMALL**2)

    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:  # noqa: ARG002 - nothing to be linearised
        """The closed form is its own."""
        return self

    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """The number, and its derivative by a difference."""
        value = self.value(density)
        if not math.isfinite(value):
            raise NotContracting(f"the class has no bound at density {density:g}: use a smaller one")
        return np.asarray(value), np.asarray((value - self.value(density * (1 - _SMALL))) / (density * _SMALL))

    def holds(self, matrix: FloatArray, density: float, couplings: Couplings | None = None) -> bool:  # noqa: ARG002
        """Whether the number at the density is not above the given one."""
        return self.value(density) <= float(matrix)

    def density_of(self, matrix: FloatArray, couplings: Couplings | None = None) -> float:  # noqa: ARG002
        """The largest density whose number is not above the given one, by bisection from below."""
        given, low = float(matrix), 0.0
        high = given
        for _ in range(200):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if self.value(middle) <= given else (low, middle)
        return low


@dataclass(frozen=True, eq=False)
class MixingCurve(OneNumber):
    """All kernels, also changing in time, whose rows m steps on are within eta_m of each other in total variation.

    L <= log(1 + eta (e^D - 1)), so with blocks of m slots the number is the least over m of
    m d + log((1 - eta_m) / (1 - eta_m e^{m d})).

    Attributes:
        eta: Bounds by the number of steps m, each in [0, 1].
    """

    eta: Sequence[tuple[int, float]]

    def value(self, density: float) -> float:
        """The closed form."""
        least = math.inf
        for steps, eta in self.eta:
            grown = math.exp(steps * density) if steps * density < math.log(2.0**1000) else math.inf
            told = eta * grown * (1 + _OUTWARD)
            if told < 1 - _OUTWARD:
                left = (1 - eta) / (1 - told)
                if left > 0:
                    least = min(least, steps * density + math.log(left) + _OUTWARD)
        return least * (1 + _OUTWARD)


@dataclass(frozen=True, eq=False)
class AnyStart(OneNumber):
    """The reversed kernels of a chain that may have started anywhere, at any time.

    The weights of the states m slots back are unknown; they shift the log-odds of two secrets by at most
    C_m = max of log(P^m(y,x) P^m(y',x') / (P^m(y',x) P^m(y,x'))), and then
    L <= 2 log((1 + e^{(D+C)/2}) / (e^{D/2} + e^{C/2})). With t = e^{D/2}, c = e^{C/2} and g = e^{m d/2} the number
    solves t^2 + c (1 - g) t - g = 0.

    Attributes:
        odds: C_m by the number of steps m; infinite ones are left out.
    """

    odds: Sequence[tuple[int, float]]

    @classmethod
    def of(cls, transitions: Sequence[FloatArray]) -> AnyStart:
        """The numbers of some kernels, each the same in every slot: of each C_m the largest."""
        found: list[tuple[int, float]] = []
        powers, done = [np.eye(len(one)) for one in transitions], 0
        for steps in STEPS:
            further = (np.linalg.matrix_power(one, steps - done) for one in transitions)
            powers = [power @ more for power, more in zip(powers, further, strict=True)]
            done = steps
            largest = max(_odds(power) for power in powers)
            if math.isfinite(largest):
                found.append((steps, largest + _OUTWARD))
        return cls(tuple(found))

    def value(self, density: float) -> float:
        """The closed form."""
        least = math.inf
        for steps, odds in self.odds:
            half = steps * density / 2
            if half + odds < math.log(2.0**500):
                c, above = math.exp(odds / 2), math.expm1(half)
                root = (c * above + math.sqrt((c * above) ** 2 + 4 * math.exp(half))) / 2
                least = min(least, 2 * math.log(root))
        return least * (1 + _OUTWARD) + _OUTWARD


def _odds(power: FloatArray) -> float:
    """C of one kernel; infinite where a column has a zero and none of the two columns excludes the row."""
    largest = 0.0
    with np.errstate(divide="ignore"):
        logarithms = np.log(power)
    for column in range(power.shape[1]):
        for other in range(column):
            possible = (power[:, column] > 0) | (power[:, other] > 0)
            if not possible.any():  # each of the two beside a column that is not zero is infinite
                continue
            ratio = logarithms[possible, column] - logarithms[possible, other]
            largest = max(largest, float(ratio.max() - ratio.min())) if np.isfinite(ratio).all() else math.inf
    return largest


@dataclass(frozen=True, eq=False)
class PeriodicKernel(ByCouplings):
    """A kernel for every slot of a period.

    Attributes:
        transitions: The kernel out of each slot, rows sum to 1, shape (n, k, k).
        live: Which states are possible at each slot, shape (n, k).
        step: 1 where the kernel out of slot s leads to s + 1, -1 where it leads to s - 1.
        rounding: Relative error of the entries against the kernels that are meant.
    """

    transitions: FloatArray
    live: npt.NDArray[np.bool_]
    step: int
    rounding: float = 0.0
    _pairs: tuple[npt.NDArray[np.intp], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        possible = self.live[:, :, None] & self.live[:, None, :] & ~np.eye(self.live.shape[1], dtype=bool)
        object.__setattr__(self, "_pairs", np.nonzero(possible))

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, k, k)."""
        return self.transitions.shape

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """All pairs of different states that are possible at a slot."""
        slots, first, second = self._pairs
        return (slots * self.shape[1] + first) * self.shape[1] + second

    @property
    def ahead(self) -> npt.NDArray[np.intp]:
        """The slot that the kernel leads to."""
        return (self._pairs[0] + self.step) % len(self.transitions)

    def rows(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """The rows of the two states of each pair, at its slot."""
        slots, first, second = (one[part] for one in self._pairs)
        return self.transitions[slots, first], self.transitions[slots, second]

    @property
    def first_order(self) -> FloatArray:
        """Sum over m of the total variation between rows of the product of m kernels."""
        slots, first, second = self._pairs
        power = np.broadcast_to(np.eye(self.shape[1]), self.shape)
        last, total = np.ones(len(slots)), np.zeros(len(slots))
        for _ in range(_MOST_POWERS):
            distance = 0.5 * np.abs(power[slots, first] - power[slots, second]).sum(axis=1)
            total += distance
            if distance.max() < _SMALL:
                ratio = np.divide(distance, last, out=np.zeros_like(distance), where=last > 0)
                found = np.zeros(self.shape)
                found[self._pairs] = total + distance * ratio / np.maximum(1.0 - ratio, _SMALL)
                return found
            last, power = distance, self.transitions @ np.roll(power, -self.step, axis=0)
        raise NotContracting(
            "the states of the chain stay apart for ever, or come together too slowly to tell: merge states, smooth "
            "the counts, or use group privacy"
        )
