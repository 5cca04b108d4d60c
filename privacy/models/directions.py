"""One direction of time: what a state tells about the releases ahead of it, or behind it, with exact couplings.

With a density d in every slot of an endless stream, the matrix of a direction with kernel P obeys

    F[x,x'] = d + L(P(x,.), P(x',.); F),   the diagonal 0,

and every F >= d + L(P; F) bounds it, for every horizon and all densities up to d. Such an F is a certificate. The map L
is the exact one for a :class:`.Kernel`; a class of kernels has a bound on it in one number: from total variation for a
:class:`MixingCurve`, from odds for :class:`AnyStart`. Sources: the loss of one output per time step is from Cao,
Yoshikawa, Xiao, Xiong (TKDE 2018); contraction in total variation is Dobrushin's.

:mod:`.kernels` has the exact map.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..validation import PrivacyError
from .couplings import UNIT, Couplings, FloatArray

#: Steps whose total variation is used; those between lower the result by some per cent at most, mostly by none.
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: These and further ones, each half as many again, for chains that forget slowly.
LONG_STEPS = (*STEPS, 96, 144, 216, 324, 486, 729, 1_093, 1_639, 2_458, 3_687, 5_530, 8_295)

#: Total variation, or odds, after which further steps add nothing.
FORGOTTEN = 1e-3

#: A chance below it may have lost digits, and no odds are known of it.
_FAINT = 2.0**-960

#: Outward rounding of a result of a few operations, among them powers of a matrix of up to 51 states and 64 steps.
OUTWARD = 1e-12

#: A total variation below which the rest of its sum is taken as a geometric series.
SMALL = 1e-4


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

    @property
    @abstractmethod
    def blocks(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """Total variations, and odds of an unknown start, by number of slots."""

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
        """The certificate at a density, at most its own: the same matrices less the difference, off the diagonals.

        L is monotone, so F - (D - d) >= d + L(P; F) >= d + L(P; F - (D - d)).
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

    Couplings are to prove the matrix of each direction, whatever they are; they are found anew where there are none.
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
        return np.asarray(self.value(SMALL**2) / SMALL**2)

    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:  # noqa: ARG002 - nothing to be linearised
        """The closed form is its own."""
        return self

    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """The number, and its derivative by a difference."""
        value = self.value(density) if density > 0 else math.inf
        if not math.isfinite(value):
            raise NotContracting(f"the class has no bound at density {density:g}: use a smaller one")
        if not density:
            raise NotContracting("no density above 0 loses so little in double precision: use a larger epsilon")
        return np.asarray(value), np.asarray((value - self.value(density * (1 - SMALL))) / (density * SMALL))

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

    @property
    def blocks(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """Its total variations."""
        return dict(self.eta), {}

    def value(self, density: float) -> float:
        """The closed form."""
        least = math.inf
        for steps, eta in self.eta:
            if steps * density >= least:
                continue  # the logarithm is that of a number of at least 1
            grown = math.exp(steps * density) if steps * density < math.log(2.0**1000) else math.inf
            told = eta * grown * (1 + OUTWARD)
            if told < 1 - OUTWARD:
                left = (1 - eta) / (1 - told)
                if left > 0:
                    least = min(least, steps * density + math.log(left) + OUTWARD)
        return least * (1 + OUTWARD)


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

    @property
    def blocks(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """Its odds."""
        return {}, dict(self.odds)

    @classmethod
    def of(cls, transitions: Sequence[FloatArray]) -> AnyStart:
        """The numbers of some kernels, each the same in every slot: of each C_m the largest."""
        found: list[tuple[int, float]] = []
        powers, done = [np.eye(len(one)) for one in transitions], 0
        for steps in LONG_STEPS:
            further = (np.linalg.matrix_power(one, steps - done) for one in transitions)
            powers = [power @ more for power, more in zip(powers, further, strict=True)]
            done = steps
            largest = max(_odds(power) for power in powers)
            if math.isfinite(largest):
                # each product adds a rounding to an entry for each state, and four entries are in the odds
                found.append((steps, largest + max(OUTWARD, 4 * steps * (len(transitions[0]) + 2) * 2.0**-53)))
            if steps >= STEPS[-1] and largest <= FORGOTTEN:
                break
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
        return least * (1 + OUTWARD) + OUTWARD


def _odds(power: FloatArray) -> float:
    """C of one kernel; infinite where a column has a zero and none of the two columns excludes the row.

    Infinite, too, where a chance is so faint that it has lost digits.
    """
    if ((power > 0) & (power < _FAINT)).any():
        return math.inf
    largest = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log(power)
        for column in range(1, power.shape[1]):
            possible = (power[:, [column]] > 0) | (power[:, :column] > 0)
            ratios = logarithms[:, [column]] - logarithms[:, :column]
            if np.isinf(ratios[possible]).any():
                return math.inf
            ranges = np.max(ratios, axis=0, where=possible, initial=-np.inf)
            ranges = ranges - np.min(ratios, axis=0, where=possible, initial=np.inf)
            # each of two columns of zeros beside a column that is not zero is infinite
            largest = max(largest, float(ranges.max(where=possible.any(axis=0), initial=0.0)))
    return largest
