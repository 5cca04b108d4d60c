"""Kernels as directions, with exact couplings of their rows; a kernel for every slot, or one for each slot of a period.

Under kernels that repeat with a period of n slots the matrices of the slots of a period obey

    F_s[x,x'] = d + L(P_s(x,.), P_s(x',.); F_{s+1}),   s + 1 modulo n,   the diagonals 0,

and all matrices with F_s >= d + L(P_s; F_{s+1}) at every s bound those of every horizon and all densities up to d: by
induction from the last slot, as for one kernel. Back in time the kernel out of s leads to s - 1. A state that is
impossible at a slot has no row there, and no possible state leads to it, so no coupling gives it mass.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from .couplings import UNIT, Couplings, FloatArray, couple, load_bound
from .directions import FORGOTTEN, LONG_STEPS, OUTWARD, SMALL, STEPS, Direction, Linear, MixingCurve, NotContracting


@cache
def _sparse() -> Any:
    """SciPy's sparse matrices, with their solver: a fifth of a second that bounds and commands without a chain save."""
    import_module("scipy.sparse.linalg")  # which the other does not import
    return import_module("scipy.sparse")


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

_MOST_POWERS = 20_000

#: Iterations under held couplings, and the relative change at which they end.
_MOST_DESCENTS = 3_000

_STILL = 1e-12


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
    def blocks(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """The total variations of its products."""
        return dict(self.curve.eta), {}

    @property
    def curve(self) -> MixingCurve:
        """The total variations of its products, of so many kernels that the longest have forgotten, or 8192 or more."""
        found: list[tuple[int, float]] = []
        for steps, eta in zip(LONG_STEPS, self._varied(LONG_STEPS), strict=True):
            found.append((steps, eta))
            if steps >= STEPS[-1] and eta <= FORGOTTEN:
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
        if not distance.size or distance.max() < SMALL:
            ratio = np.divide(distance, last, out=np.zeros_like(distance), where=last > 0)
            return total + distance * ratio / np.maximum(1.0 - ratio, SMALL)
        last, power = distance, further(power)
    raise NotContracting(
        "the states of the chain stay apart for ever, or come together too slowly to tell: merge states, smooth "
        "the counts, or use group privacy"
    )


def lost_variation(states: int, steps: int) -> float:
    """What double precision may lose of a total variation between rows of a product of so many kernels.

    Each product adds at most ``states + 1`` roundings to an entry, of sums without a subtraction, and rows sum to 1.
    """
    return max(OUTWARD, steps * (states + 2) * UNIT)


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
