"""One direction of time: what a state tells about the releases ahead of it, or behind it, with exact couplings.

With a density d in every slot of an endless stream, the matrix of a direction with kernel P obeys

    F[x,x'] = d + L(P(x,.), P(x',.); F),   the diagonal 0,

and every F >= d + L(P; F) bounds it, for every horizon and all densities up to d. Such an F is a certificate. The map L
is the exact one for a :class:`.Kernel`; a class of kernels has a bound on it in one number: from total variation for a
:class:`MixingCurve`, from odds for :class:`AnyStart`. Sources: the loss of one output per time step is from Cao,
Yoshikawa, Xiao, Xiong (TKDE 2018); contraction in total variation is Dobrushin's.

:mod:`.kernels` has the exact map, :mod:`.certificates` the one road to a certificate.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..validation import PrivacyError
from .couplings import Couplings, FloatArray

if TYPE_CHECKING:
    from .kernels import Kernel

#: Steps whose total variation is used; those between lower the result by some per cent at most, mostly by none.
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: These and further ones, each half as many again, for chains that forget slowly.
LONG_STEPS = (*STEPS, 96, 144, 216, 324, 486, 729, 1_093, 1_639, 2_458, 3_687, 5_530, 8_295)

#: Outward rounding of a result of a few operations, among them powers of a matrix of up to 51 states and 64 steps.
OUTWARD = 1e-12


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

    @property
    @abstractmethod
    def closed(self) -> OneNumber:
        """A closed form of one number for the same direction, or a larger class: for many states, and as a start."""

    @property
    def kernel(self) -> Kernel | None:
        """The kernels whose rows couplings are of; None for a closed form, which needs none."""
        return None

    @abstractmethod
    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:
        """The map around a matrix, as a system that gives the matrix of any density near by."""

    @abstractmethod
    def holds(self, matrix: FloatArray, density: float, couplings: Couplings | None = None) -> bool:
        """Whether a matrix is a certificate at a density.

        Args:
            matrix: What may be one.
            density: Loss per slot.
            couplings: What is to prove it, whatever they are; found anew if left out. A closed form needs none.
        """


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


def until_forgotten(found: Iterable[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Total variations, or odds, by the number of steps, until further steps add nothing."""
    for steps, told in found:
        yield steps, told
        if steps >= STEPS[-1] and told <= 1e-3:  # blocks behind it lower no loss by a visible digit
            return


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
        return np.asarray(self.value(1e-8) / 1e-8)

    @property
    def closed(self) -> OneNumber:
        """Itself."""
        return self

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
        return np.asarray(value), np.asarray((value - self.value(density * (1 - 1e-4))) / (density * 1e-4))

    def holds(self, matrix: FloatArray, density: float, couplings: Couplings | None = None) -> bool:  # noqa: ARG002
        """Whether the number at the density is not above the given one."""
        return self.value(density) <= float(matrix)


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
    def of(cls, transition: FloatArray) -> AnyStart:
        """The numbers of a kernel that is the same in every slot."""

        def found() -> Iterator[tuple[int, float]]:
            power, done = np.eye(len(transition)), 0
            for steps in LONG_STEPS:
                power, done = power @ np.linalg.matrix_power(transition, steps - done), steps
                yield steps, _odds(power)

        # each product adds a rounding to an entry for each state, and four entries are in the odds
        lost = ((steps, odds, 4 * steps * (len(transition) + 2) * 2.0**-53) for steps, odds in until_forgotten(found()))
        return cls(tuple((steps, odds + max(OUTWARD, more)) for steps, odds, more in lost if math.isfinite(odds)))

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

    Infinite, too, where a chance is so faint that it may have lost digits.
    """
    if ((power > 0) & (power < 2.0**-960)).any():
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
