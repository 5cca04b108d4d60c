"""One direction of time: what the state at a slot tells about the releases ahead of it, or behind it.

With a density d in every slot of an endless stream, the matrix of a direction with kernel P obeys

    F[x,x'] = d + L(P(x,.), P(x',.); F),   the diagonal 0,

and every F >= d + L(P; F) bounds it, for every horizon and all densities up to d. Such an F is a certificate. The map L
is the exact one for a :class:`Kernel`; a class of kernels has a bound on it in one number: from total variation for a
:class:`MixingCurve`, from odds for :class:`AnyStart`. Sources: the loss of one output per time step is from Cao,
Yoshikawa, Xiao, Xiong (TKDE 2018); contraction in total variation is Dobrushin's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from .couplings import Coupled, FloatArray, couple, load_bound

#: Steps whose total variation is used; those between lower the result by at most 0.4 %.
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: Relative rounding of one operation, doubled.
_UNIT = 2.0**-52

#: Outward rounding of a result of a few operations, among them powers of a matrix of up to 51 states and 64 steps.
_OUTWARD = 1e-12

#: Unknowns up to which a dense system is solved, and the share of numbers in it that makes it dense.
_DENSE = 600
_FULL = 0.06

#: Weight of a derivative that is left out of the linearised system.
_THIN = 1e-11

#: A total variation below which the rest of its sum is taken as a geometric series.
_SMALL = 1e-4
_MOST_POWERS = 20_000

#: Iterations under held couplings, and the relative change at which they end.
_MOST_DESCENTS = 3_000
_STILL = 1e-12


class NotContracting(ValueError):  # noqa: N818 - says what the kernel lacks
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

    @abstractmethod
    def density_of(self, matrix: FloatArray) -> float:
        """The largest density for which a matrix is a certificate, rounded down; at most 0 where it is none."""


Pair: TypeAlias = tuple[Direction, Direction]
"""The directions forward and backward of one member of a belief."""


class Linear(ABC):
    """The matrix of a direction as a function of the density, true at one point and near it."""

    @abstractmethod
    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """The matrix at a density, and its derivative.

        Raises:
            NotContracting: there is none.
        """


@dataclass(frozen=True, eq=False)
class Kernel(Direction):
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

    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:
        """The map with the couplings that are optimal at a matrix."""
        first, second = self._pairs
        ratios = ratios_of(matrix)
        found = couple(self.transition[first], self.transition[second], ratios[None], tolerance)
        slopes = slopes_of(self.transition[second], found)
        place, row, column = np.nonzero(slopes)
        states = len(matrix)
        system = sp.csr_matrix((slopes[place, row, column], (place, row * states + column)), (len(first), states**2))
        return Coupling((states, states), first * states + second, system, found.theta, ratios)

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

    def density_of(self, matrix: FloatArray) -> float:
        """The least entry of F - L(P; F), by fresh couplings, rounded down."""
        first, second = self._pairs
        p, q = self.transition[first], self.transition[second]
        logarithm = proven(p, q, ratios_of(matrix)[None], self.rounding)
        return float((matrix[first, second] - logarithm).min()) - 4 * _UNIT * float(matrix.max())


def ratios_of(matrix: FloatArray) -> FloatArray:
    """W = e^F with ones on the diagonals, shape (..., k, k)."""
    ratios = np.exp(matrix)
    diagonal = np.arange(matrix.shape[-1])
    ratios[..., diagonal, diagonal] = 1.0
    return ratios


def proven(p: FloatArray, q: FloatArray, ratios: FloatArray, rounding: float) -> FloatArray:
    """L(p, q; F) of pairs of rows by fresh couplings, rounded up.

    Args:
        p: Rows of numerators, shape (n, k).
        q: Rows of denominators, shape (n, k).
        ratios: W, shape (n, k, k) or (1, k, k).
        rounding: Relative error of the rows' entries against those that are meant.
    """
    found = couple(p, q, ratios)
    # exp and log are within a few units of the last place; what a rounded entry changes is a factor of both sums
    theta = load_bound(p, q, ratios * (1 + 4 * _UNIT), found.mass)
    return np.log(theta) * (1 + 4 * _UNIT) + 4 * _UNIT + 2 * rounding


def slopes_of(q: FloatArray, found: Coupled) -> FloatArray:
    """The derivative of theta by W at couplings, shape (n, k, k); zeros on the diagonal and where it is negligible."""
    slopes = found.mass * (found.weights / np.where(q > 0, q, 1.0))[:, None, :]
    diagonal = np.arange(slopes.shape[-1])
    slopes[:, diagonal, diagonal] = 0.0
    return np.where(slopes > _THIN, slopes, 0.0)


class Coupling(Linear):
    """W = e^d (c + A W) over the pairs of states, with W = e^F: A is the derivative of theta by W.

    Args:
        shape: Of the matrix.
        unknowns: Where each pair stands in the flattened matrix, shape (n,).
        slopes: A, shape (n, size of the matrix).
        theta: The map at the given ratios, shape (n,).
        ratios: W, of the shape of the matrix.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        unknowns: npt.NDArray[np.intp],
        slopes: sp.csr_matrix,
        theta: FloatArray,
        ratios: FloatArray,
    ) -> None:
        self._shape, self._unknowns = shape, unknowns
        self._constant = theta - slopes @ ratios.ravel()
        self._slopes = slopes[:, unknowns].tocsc()

    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """Solve the system and its derivative by the density."""
        factor, size = math.exp(density), len(self._constant)
        if size <= _DENSE and self._slopes.nnz > _FULL * size**2:
            inverse = np.linalg.inv(np.eye(size) - factor * self._slopes.toarray())
            ratios = inverse @ (factor * self._constant)
            derivative = inverse @ ratios
        else:
            solver = sla.splu((sp.identity(size, format="csc") - factor * self._slopes).tocsc())
            ratios = solver.solve(factor * self._constant)
            derivative = solver.solve(ratios)
        if not (np.isfinite(ratios).all() and ratios.min() > 0):
            raise NotContracting(f"the releases tell more than any bound at density {density:g}: use a smaller one")
        return self._matrix(np.log(ratios)), self._matrix(derivative / ratios)

    def _matrix(self, values: FloatArray) -> FloatArray:
        matrix = np.zeros(self._shape)
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

    def density_of(self, matrix: FloatArray) -> float:
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
            if eta * grown < 1 - _OUTWARD:
                left = (1 - eta) / (1 - eta * grown * (1 + _OUTWARD))
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
