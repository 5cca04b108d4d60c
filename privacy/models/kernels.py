"""Kernels as directions, with exact couplings of their rows; a kernel for every slot, or one for each slot of a period.

Under kernels that repeat with a period of n slots the matrices of the slots of a period obey

    F_s[x,x'] = d + L(P_s(x,.), P_s(x',.); F_{s+1}),   s + 1 modulo n,   the diagonals 0,

and all matrices with F_s >= d + L(P_s; F_{s+1}) at every s bound those of every horizon and all densities up to d: by
induction from the last slot, as for one kernel. Back in time the kernel out of s leads to s - 1. A state that is
impossible at a slot has no row there, and no possible state leads to it, so no coupling gives it mass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from .couplings import UNIT, Couplings, FloatArray, couple, load_bound
from .directions import LONG_STEPS, OUTWARD, STEPS, Direction, Linear, MixingCurve, NotContracting, until_forgotten
from .memory import Remembering, remembered

IntArray = npt.NDArray[np.intp]


@cache
def _sparse() -> Any:
    """SciPy's sparse matrices, with their solver: a fifth of a second that bounds and commands without a chain save."""
    import_module("scipy.sparse.linalg")  # which the other does not import
    return import_module("scipy.sparse")


@dataclass(frozen=True, eq=False)
class Kernel(Direction, Remembering):
    """A kernel for each slot of a period, or the same in every slot; the map is the exact one, for pairs of its rows.

    Attributes:
        transitions: The kernel out of each slot, rows that sum to 1, shape (n, k, k); or (k, k), k at least 2.
        rounding: Relative error of the entries against those that are meant.
        live: Which states are possible at each slot, shape (n, k); all if left out.
        step: How many slots a kernel leads ahead: 1, or -1 where it leads back.
        pairs: Slot of the period, and the two states that are possible there, of each pair, shape (pairs,) each.
    """

    transitions: FloatArray
    rounding: float = 0.0
    live: npt.NDArray[np.bool_] = field(default_factory=lambda: np.ones((1, 1), dtype=np.bool_))
    step: int = 1
    pairs: tuple[IntArray, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        live = np.broadcast_to(self.live, self.kernels.shape[:2])
        object.__setattr__(self, "live", live)
        possible = live[:, :, None] & live[:, None, :] & ~np.eye(live.shape[1], dtype=bool)
        object.__setattr__(self, "pairs", np.nonzero(possible))

    @property
    def kernel(self) -> Kernel:
        """Itself."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, k, k), or (k, k)."""
        return self.transitions.shape

    @property
    def states(self) -> int:
        """Number of states k."""
        return self.shape[-1]

    @property
    def kernels(self) -> FloatArray:
        """The kernel out of each slot of the period, shape (n, k, k)."""
        return self.transitions.reshape(-1, *self.shape[-2:])

    @property
    def places(self) -> IntArray:
        """Where each pair stands in the flattened matrix, shape (pairs,)."""
        slots, first, second = self.pairs
        return (slots * self.states + first) * self.states + second

    @property
    def ahead(self) -> IntArray:
        """Which of the matrices the releases ahead of each pair have, shape (pairs,)."""
        return (self.pairs[0] + self.step) % len(self.kernels)

    def rows(self, part: slice, power: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """The two rows of some pairs in the kernels, or in products of them, shape (number of pairs, k) each."""
        slots, first, second = (one[part] for one in self.pairs)
        power = self.kernels if power is None else power
        return power[slots, first], power[slots, second]

    def _parts(self, numbers: int) -> Iterator[slice]:
        """Some pairs at a time, each of which takes so many numbers; at least one part."""
        size = max(1, 2_000_000 // numbers)
        return (slice(at, at + size) for at in range(0, max(len(self.places), 1), size))

    def apart(self, power: FloatArray) -> FloatArray:
        """The total variation between the two rows of each pair, shape (pairs,)."""
        both = (self.rows(part, power) for part in self._parts(self.states))
        return np.concatenate([0.5 * np.abs(p - q).sum(axis=1) for p, q in both])

    @property
    def first_order(self) -> FloatArray:
        """Sum over m of the total variation between rows of the product of m kernels."""
        return _first_order(self)

    @property
    def blocks(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """The total variations of its products."""
        return dict(self.closed.eta), {}

    @property
    def closed(self) -> MixingCurve:
        """The total variations of its products, of so many kernels that the longest have forgotten, or 8192 or more."""
        return _curve(self)

    def variations(self, steps: Sequence[int]) -> FloatArray:
        """The largest total variation between rows of products of so many kernels, rounded up; steps ascending."""
        return np.fromiter((eta for _, eta in self.varied(steps)), dtype=float, count=len(steps))

    def varied(self, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Each number of kernels with the variation of their products."""
        least = 1.0
        for wanted, power in zip(steps, self.products(steps), strict=True):
            # it never rises in truth: what it rises by is rounding
            lost = lost_variation(self.states, wanted) + wanted * self.rounding
            least = min(least, float(self.apart(power).max(initial=0.0)) + lost)
            yield wanted, least

    def products(self, steps: Sequence[int]) -> Iterator[FloatArray]:
        """The products of so many kernels from each slot of the period on, shape (n, k, k); steps ascending."""
        power, done = np.broadcast_to(np.eye(self.states), self.kernels.shape), 0
        for wanted in steps:
            more = wanted - done
            if more <= STEPS[-1]:
                for _ in range(more):
                    power = self.further(power)
            else:
                power = self._joined(power, done, self._product(more))
            done = wanted
            yield power

    def further(self, power: FloatArray) -> FloatArray:
        """The products of one kernel more: that out of a slot, and then the product of the slot it leads to."""
        # a copy of the rolled products, which np.roll makes in ten times the time
        return self.kernels @ power[(np.arange(len(power)) + self.step) % len(power)]

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

    def couple(self, matrix: FloatArray, tolerance: float = 1e-9) -> tuple[Couplings, FloatArray]:
        """Couplings of all pairs whose bound at a matrix is optimal within a tolerance, and the weights of columns."""
        k = self.states
        ratios = ratios_of(matrix).reshape(-1, k, k)
        parts, weights = list[Couplings](), list[FloatArray]()
        for part in self._parts(k**2):
            found = couple(*self.rows(part), ratios if len(ratios) == 1 else ratios[self.ahead[part]], tolerance)
            parts.append(Couplings.of(found.mass))
            weights.append(found.weights)
        return Couplings.joined(parts), np.concatenate(weights)

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
        """Theta of each pair that couplings prove at a matrix, rounded outward, shape (pairs,)."""
        # exp is within a few units of the last place
        ratios = ratios_of(matrix).reshape(-1, self.states, self.states) * (1 + 4 * UNIT)
        return load_bound(*self.rows(slice(None)), ratios, couplings, self.ahead)

    def holds(self, matrix: FloatArray, density: float, couplings: Couplings | None = None) -> bool:
        """Whether the least entry of F - L(P; F) between two states, by couplings and rounded down, is the density."""
        theta = self.bounds(matrix, self.couple(matrix)[0] if couplings is None else couplings)
        # log as exp; what a rounded entry of a kernel changes is a factor of both sums
        logarithm = np.log(theta) * (1 + 4 * UNIT) + 4 * UNIT + 2 * self.rounding
        return float((matrix.ravel()[self.places] - logarithm).min()) - 4 * UNIT * float(matrix.max()) >= density

    def under_couplings(self, matrix: FloatArray, density: float, couplings: Couplings) -> FloatArray:
        """What the matrix comes to at a density under couplings, those that are optimal at it.

        With the couplings held, the map takes the largest of linear functions, so its iterates from a certificate fall.
        """
        (stays, moves), factor, places, ahead = self.shares(couplings), math.exp(density), self.places, self.ahead
        ratios = ratios_of(matrix).reshape(-1, self.states, self.states)
        for _ in range(3_000):
            before = ratios.ravel()[places]
            # couplings that are only nearly optimal may not fall everywhere; what is there stays a bound
            loads = stays + np.einsum("nyz,nyz->nz", moves, ratios[ahead])
            after = np.minimum(before, factor * loads.max(axis=1))
            ratios.ravel()[places] = after
            if np.abs(after / before - 1.0).max() <= OUTWARD:
                break
        return np.log(ratios).reshape(self.shape)


@remembered
def _curve(kernel: Kernel) -> MixingCurve:
    return MixingCurve(tuple(until_forgotten(kernel.varied(LONG_STEPS))))


@remembered
def _first_order(kernel: Kernel) -> FloatArray:
    """The sum of total variations of products, its tail a geometric series from 1e-4 on."""
    power = np.broadcast_to(np.eye(kernel.states), kernel.kernels.shape)
    total = last = np.zeros(len(kernel.places))
    for _ in range(20_000):
        distance = kernel.apart(power)
        total = total + distance
        if distance.max(initial=0.0) < 1e-4:
            ratio = np.divide(distance, last, out=np.zeros_like(distance), where=last > 0)
            found = np.zeros(kernel.shape)
            found.ravel()[kernel.places] = total + distance * ratio / np.maximum(1.0 - ratio, 1e-4)
            return found
        last, power = distance, kernel.further(power)
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

    def __init__(self, kernel: Kernel, matrix: FloatArray, couplings: Couplings, weights: FloatArray) -> None:
        self._kernel, self._couplings = kernel, couplings
        ratios, size = ratios_of(matrix).ravel(), kernel.states
        rows, column = np.divmod(couplings.places, size)
        pair, row = np.divmod(rows, size)
        p, q = kernel.rows(slice(None))
        surplus = np.maximum(p - q, 0.0).ravel()
        sums = np.bincount(rows, couplings.mass, len(surplus))
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = couplings.mass * (surplus / sums)[rows] * (weights / q)[pair, column]
        # what weighs less is left out: the last matrix is proved by all of it
        used = np.flatnonzero((slopes > 1e-11) & (row != column))
        pair, slopes = pair[used], slopes[used]
        where = (kernel.ahead[pair] * size + row[used]) * size + column[used]
        derivative = _sparse().csr_matrix((slopes, (pair, where)), (len(kernel.places), matrix.size))
        self._constant = kernel.bounds(matrix, couplings) - derivative @ ratios
        self._slopes = derivative[:, kernel.places].tocsc()
        self._solver: tuple[float, Any] | None = None

    @property
    def couplings(self) -> Couplings:
        """Those of the point."""
        return self._couplings

    def at(self, density: float) -> tuple[FloatArray, FloatArray]:
        """Solve the system and its derivative by the density."""
        too_much = f"the releases tell more than any bound at density {density:g}: use a smaller one"
        if density > 700:  # the exponential overflows
            raise NotContracting(too_much)
        factor, size = math.exp(density), len(self._constant)
        # few unknowns with many numbers are solved in less time as a dense system
        if size <= 600 and self._slopes.nnz > 0.06 * size**2:
            inverse = np.linalg.inv(np.eye(size) - factor * self._slopes.toarray())
            ratios = inverse @ (factor * self._constant)
            derivative = inverse @ ratios
        else:
            ratios = self._solved(factor, factor * self._constant)
            derivative = self._solved(factor, ratios)
        if not (np.isfinite(ratios).all() and ratios.min() > 0):
            raise NotContracting(too_much)
        return self._filled(np.log(ratios)), self._filled(derivative / ratios)

    def _solved(self, factor: float, right: FloatArray) -> FloatArray:
        """(1 - factor A) x = right: by the last factors, refined; by new ones where those are of too far a factor."""
        if self._solver is not None and self._solver[0] != factor:
            solve = self._solver[1].solve
            found = step = solve(right)
            for _ in range(12):
                before = np.abs(step).max()
                step = solve(right - found + factor * (self._slopes @ found))
                if not np.abs(step).max() <= before / 4:
                    break
                found = found + step
                if np.abs(step).max() <= 1e-13 * np.abs(found).max():
                    return found
        if self._solver is None or self._solver[0] != factor:
            sparse = _sparse()
            system = (sparse.identity(len(right), format="csc") - factor * self._slopes).tocsc()
            self._solver = factor, sparse.linalg.splu(system)
        return self._solver[1].solve(right)

    def _filled(self, values: FloatArray) -> FloatArray:
        matrix = np.zeros(self._kernel.shape)
        matrix.ravel()[self._kernel.places] = values
        return matrix
