"""One direction of time: what a state tells about the releases ahead of it, or behind it, with exact couplings.

With a density d in every slot of an endless stream, the matrix of a direction with kernel P obeys

    F[x,x'] = d + L(P(x,.), P(x',.); F),   the diagonal 0,

and every F >= d + L(P; F) bounds it, for every horizon and all densities up to d. Such an F is a certificate. The map L
is the exact one for a :class:`Kernel`; a class of kernels has a bound on it in one number: from total variation for a
:class:`MixingCurve`, from odds for :class:`AnyStart`. Sources: the loss of one output per time step is from Cao,
Yoshikawa, Xiao, Xiong (TKDE 2018); contraction in total variation is Dobrushin's.

Under kernels that repeat with a period of n slots the matrices of the slots of a period obey

    F_s[x,x'] = d + L(P_s(x,.), P_s(x',.); F_{s+1}),   s + 1 modulo n,   the diagonals 0,

and all matrices with F_s >= d + L(P_s; F_{s+1}) at every s bound those of every horizon and all densities up to d: by
induction from the last slot, as for one kernel. Back in time the kernel out of s leads to s - 1. A state that is
impossible at a slot has no row there, and no possible state leads to it, so no coupling gives it mass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..validation import PrivacyError
from .couplings import UNIT, Couplings, FloatArray, couple, load_bound


@cache
def _sparse() -> Any:
    """SciPy's sparse matrices, with their solver: a fifth of a second that bounds and commands without a chain save."""
    import_module("scipy.sparse.linalg")  # which the other does not import
    return import_module("scipy.sparse")


#: Steps whose total variation is used; those between lower the result by some per cent at most, mostly by none.
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: These and further ones, each half as many again, for chains that forget slowly.
_LONG_STEPS = (*STEPS, 96, 144, 216, 324, 486, 729, 1_093, 1_639, 2_458, 3_687, 5_530, 8_295)
#: Total variation, or odds, after which further steps add nothing.
_FORGOTTEN = 1e-3

#: A chance below it may have lost digits, and no odds are known of it.
_FAINT = 2.0**-960

#: Outward rounding of a result of a few operations, among them powers of a matrix of up to 51 states and 64 steps.
_OUTWARD = 1e-12

#: Unknowns up to which a dense system is solved, and the share of numbers in it that makes it dense.
_DENSE = 600
_FULL = 0.06

#: Above this density nothing is solved: its exponential overflows.
_MOST_DENSITY = 700.0

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


class ByCouplings(Direction):
    """A direction whose map is the exact one, for pairs of rows of its kernels."""

    rounding: float  # relative error of the kernels' entries against those that are meant
    step: int  # how many slots a kernel leads ahead, or back where it is negative
    live: npt.NDArray[np.bool_]  # which states are possible at each slot of the period, shape (m, k)
    # slot of the period, and the two states that are possible there, of each pair, shape (n,) each
    pairs: tuple[npt.NDArray[np.intp], ...]

    @property
    @abstractmethod
    def kernels(self) -> FloatArray:
        """The kernel out of each slot of the period, shape (m, k, k)."""

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """Where each pair stands in the flattened matrix, shape (n,)."""
        slots, first, second = self.pairs
        return (slots * self.shape[-1] + first) * self.shape[-1] + second

    @property
    def ahead(self) -> npt.NDArray[np.intp]:
        """Which of the matrices, shape (m, k, k), the releases ahead of each pair have, shape (n,)."""
        return (self.pairs[0] + self.step) % len(self.kernels)

    def rows(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """The two rows of some of the pairs, shape (number of pairs, k) each."""
        slots, first, second = (one[part] for one in self.pairs)
        return self.kernels[slots, first], self.kernels[slots, second]

    def compared(self, power: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The two rows of each pair in products of kernels, shape (number of pairs, k) each, some pairs at a time."""
        size = max(1, _BATCH // self.shape[-1])
        for part in (slice(at, at + size) for at in range(0, len(self.pairs[0]), size)):
            slots, first, second = (one[part] for one in self.pairs)
            yield power[slots, first], power[slots, second]

    @property
    def first_order(self) -> FloatArray:
        """Sum over m of the total variation between rows of the product of m kernels."""
        slots, first, second = self.pairs

        def distances(power: FloatArray) -> FloatArray:
            return 0.5 * np.abs(power[slots, first] - power[slots, second]).sum(axis=1)

        found = np.zeros(self.shape)
        start = np.broadcast_to(np.eye(self.shape[-1]), self.kernels.shape)
        found.reshape(self.kernels.shape)[self.pairs] = _summed(start, self.further, distances)
        return found

    @abstractmethod
    def further(self, power: FloatArray) -> FloatArray:
        """The products of one kernel more, shape (m, k, k)."""

    @property
    def curve(self) -> MixingCurve:
        """The total variations of its products, of so many kernels that the longest have forgotten, or 8192 or more."""
        found: list[tuple[int, float]] = []
        for steps, eta in zip(_LONG_STEPS, self._varied(_LONG_STEPS), strict=True):
            found.append((steps, eta))
            if steps >= STEPS[-1] and eta <= _FORGOTTEN:
                break
        return MixingCurve(tuple(found))

    def variations(self, steps: Sequence[int]) -> FloatArray:
        """The largest total variation between rows of products of so many kernels, rounded up; steps ascending."""
        return np.fromiter(self._varied(steps), dtype=float, count=len(steps))

    def _varied(self, steps: Sequence[int]) -> Iterator[float]:
        least = 1.0
        for wanted, power in zip(steps, self.products(steps), strict=True):
            apart = (np.abs(p - q).sum(axis=1).max() for p, q in self.compared(power))
            largest = max(map(float, apart), default=0.0) / 2
            # it never rises in truth: what it rises by is rounding
            least = min(least, largest + lost_variation(self.shape[-1], wanted) + wanted * self.rounding)
            yield least

    def products(self, steps: Sequence[int]) -> Iterator[FloatArray]:
        """The products of so many kernels from each slot of the period on, shape (m, k, k); steps ascending."""
        power, done = np.broadcast_to(np.eye(self.shape[-1]), self.kernels.shape), 0
        for wanted in steps:
            more = wanted - done
            if more <= STEPS[-1]:
                for _ in range(more):
                    power = self.further(power)
            else:
                power = self._joined(power, done, self._product(more))
            done = wanted
            yield power

    def _product(self, count: int) -> FloatArray:
        """The products of so many kernels, by halves: no more products of matrices than one by one."""
        if count == 1:
            return self.kernels
        half = self._product(count // 2)
        whole = self._joined(half, count // 2, half)
        return self.further(whole) if count % 2 else whole

    def _joined(self, power: FloatArray, done: int, more: FloatArray) -> FloatArray:
        """The products of ``done`` kernels, each with the one that ``more`` has of the slot it leads to."""
        return power @ more[(np.arange(len(power)) + self.step * done) % len(more)]

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

    def shares(self, couplings: Couplings) -> tuple[FloatArray, FloatArray]:
        """Couplings over q: what stays, shape (pairs, k), and what moves, shape (pairs, k, k).

        The rows are those of the surplus of p over q; what no column takes makes what stays infinite.
        """
        p, q = self.rows(slice(None))
        given = np.zeros((*q.shape, q.shape[1]))
        given.ravel()[couplings.places] = couplings.mass
        live = q > 0
        safe = np.where(live, q, 1.0)
        surplus = np.maximum(p - q, 0.0)
        given = np.where(live[:, None, :] & (given > 0), given, 0.0)
        sums = given.sum(axis=2)
        given *= np.where(sums > 0, surplus / np.where(sums > 0, sums, 1.0), 0.0)[:, :, None]
        stays = np.where(live, np.minimum(p, q) / safe, 0.0)
        stays[((sums <= 0) & (surplus > 0)).any(axis=1)] = np.inf
        return stays, np.where(live[:, None, :], given / safe[:, None, :], 0.0)

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
    step: int = field(default=1, init=False, repr=False)
    live: npt.NDArray[np.bool_] = field(init=False, repr=False)
    pairs: tuple[npt.NDArray[np.intp], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "live", np.ones((1, len(self.transition)), dtype=np.bool_))
        object.__setattr__(self, "pairs", np.nonzero(~np.eye(len(self.transition), dtype=bool)[np.newaxis]))

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, k)."""
        return self.transition.shape

    @property
    def kernels(self) -> FloatArray:
        """The only one there is."""
        return self.transition[np.newaxis]

    def further(self, power: FloatArray) -> FloatArray:
        """The next power."""
        return power @ self.transition

    def under_couplings(self, matrix: FloatArray, density: float, couplings: Couplings) -> FloatArray:
        """What the matrix comes to at a density under couplings, those that are optimal at it.

        With the couplings held, the map takes the largest of linear functions, so its iterates from a certificate fall.
        """
        _, first, second = self.pairs
        ratios, (stays, moves), factor = ratios_of(matrix), self.shares(couplings), math.exp(density)
        for _ in range(_MOST_DESCENTS):
            before = ratios[first, second]
            # couplings that are only nearly optimal may not fall everywhere; what is there stays a bound
            after = np.minimum(before, factor * (stays + np.einsum("nyz,yz->nz", moves, ratios)).max(axis=1))
            ratios[first, second] = after
            if np.abs(after / before - 1.0).max() <= _STILL:
                break
        return np.log(ratios)


def _summed(
    power: FloatArray, further: Callable[[FloatArray], FloatArray], distances: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Sum over m of the total variation between rows of a product of m kernels, its tail a geometric series."""
    total = last = np.zeros(())
    for _ in range(_MOST_POWERS):
        distance = distances(power)
        total = total + distance
        if not distance.size or distance.max() < _SMALL:
            ratio = np.divide(distance, last, out=np.zeros_like(distance), where=last > 0)
            return total + distance * ratio / np.maximum(1.0 - ratio, _SMALL)
        last, power = distance, further(power)
    raise NotContracting(
        "the states of the chain stay apart for ever, or come together too slowly to tell: merge states, smooth "
        "the counts, or use group privacy"
    )


def variation(rows: FloatArray) -> float:
    """The largest total variation of two rows, shape (n, k), not rounded."""
    size = max(1, _BATCH // max(1, rows.size))
    parts = (np.abs(rows[at : at + size, np.newaxis] - rows) for at in range(0, len(rows), size))
    return max((float(part.sum(axis=2).max()) for part in parts), default=0.0) / 2


def lost_variation(states: int, steps: int) -> float:
    """What double precision may lose of a total variation between rows of a product of so many kernels.

    Each product adds at most ``states + 1`` roundings to an entry, of sums without a subtraction, and rows sum to 1.
    """
    return max(_OUTWARD, steps * (states + 2) * UNIT)


def ratios_of(matrix: FloatArray) -> FloatArray:
    """W = e^F with ones on the diagonals, shape (..., k, k)."""
    ratios = np.exp(matrix)
    diagonal = np.arange(matrix.shape[-1])
    ratios[..., diagonal, diagonal] = 1.0
    return ratios


class Coupling(Linear):
    """W = e^d (c + A W) over the pairs of states, with W = e^F: A is the derivative of theta by W."""

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
        if density > _MOST_DENSITY:
            raise NotContracting(f"the releases tell more than any bound at density {density:g}: use a smaller one")
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
        value = self.value(density) if density > 0 else math.inf
        if not math.isfinite(value):
            raise NotContracting(f"the class has no bound at density {density:g}: use a smaller one")
        if not density:
            raise NotContracting("no density above 0 loses so little in double precision: use a larger epsilon")
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
            if steps * density >= least:
                continue  # the logarithm is that of a number of at least 1
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
        for steps in _LONG_STEPS:
            further = (np.linalg.matrix_power(one, steps - done) for one in transitions)
            powers = [power @ more for power, more in zip(powers, further, strict=True)]
            done = steps
            largest = max(_odds(power) for power in powers)
            if math.isfinite(largest):
                # each product adds a rounding to an entry for each state, and four entries are in the odds
                found.append((steps, largest + max(_OUTWARD, 4 * steps * (len(transitions[0]) + 2) * 2.0**-53)))
            if steps >= STEPS[-1] and largest <= _FORGOTTEN:
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
        return least * (1 + _OUTWARD) + _OUTWARD


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


@dataclass(frozen=True, eq=False)
class PeriodicKernel(ByCouplings):
    """A kernel for every slot of a period."""

    transitions: FloatArray  # the kernel out of each slot, rows sum to 1, shape (n, k, k)
    live: npt.NDArray[np.bool_]  # which states are possible at each slot, shape (n, k)
    step: int  # 1 where the kernel out of slot s leads to s + 1, -1 where it leads to s - 1
    rounding: float = 0.0  # relative error of the entries against the kernels that are meant
    pairs: tuple[npt.NDArray[np.intp], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        possible = self.live[:, :, None] & self.live[:, None, :] & ~np.eye(self.live.shape[1], dtype=bool)
        object.__setattr__(self, "pairs", np.nonzero(possible))

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, k, k)."""
        return self.transitions.shape

    @property
    def kernels(self) -> FloatArray:
        """Those of the slots."""
        return self.transitions

    def further(self, power: FloatArray) -> FloatArray:
        """The kernel out of a slot, and then the product of the slot it leads to."""
        # a copy of the rolled products, which np.roll makes in ten times the time
        return self.transitions @ power[(np.arange(len(power)) + self.step) % len(power)]
