"""One direction of time under kernels that repeat with a period of n slots.

With a density d in every slot the matrices of the slots of a period obey

    F_s[x,x'] = d + L(P_s(x,.), P_s(x',.); F_{s+1}),   s + 1 modulo n,   the diagonals 0,

and all matrices with F_s >= d + L(P_s; F_{s+1}) at every s bound those of every horizon and all densities up to d: by
induction from the last slot, as for one kernel. Back in time the kernel out of s leads to s - 1. A state that is
impossible at a slot has no row there, and no possible state leads to it, so no coupling gives it mass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .couplings import FloatArray, couple
from .directions import Coupling, Direction, Linear, NotContracting, proven, ratios_of, slopes_of

#: Numbers in an array of one batch of pairs.
_BATCH = 2_000_000

_UNIT = 2.0**-52
_SMALL = 1e-4
_MOST_POWERS = 20_000


@dataclass(frozen=True, eq=False)
class PeriodicKernel(Direction):
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

    def approach(self, matrix: FloatArray, tolerance: float) -> Linear:
        """The map with the couplings that are optimal at the matrices."""
        ratios, k = ratios_of(matrix), self.shape[1]
        slots, first, second = self._pairs
        parts: list[sp.csr_matrix] = []
        theta: list[FloatArray] = []
        for part in self._parts():
            p, q = self.transitions[slots[part], first[part]], self.transitions[slots[part], second[part]]
            ahead = (slots[part] + self.step) % len(matrix)
            found = couple(p, q, ratios[ahead], tolerance)
            slopes = slopes_of(q, found)
            place, row, column = np.nonzero(slopes)
            where = (ahead[place] * k + row) * k + column
            parts.append(sp.csr_matrix((slopes[place, row, column], (place, where)), (len(p), matrix.size)))
            theta.append(found.theta)
        system = sp.csr_matrix(sp.vstack(parts))
        return Coupling(self.shape, (slots * k + first) * k + second, system, np.concatenate(theta), ratios)

    def density_of(self, matrix: FloatArray) -> float:
        """The least entry of F_s - L(P_s; F_{s+1}) over all slots, by fresh couplings, rounded down."""
        ratios = ratios_of(matrix)
        slots, first, second = self._pairs
        least = np.inf
        for part in self._parts():
            here, one, other = slots[part], first[part], second[part]
            ahead = ratios[(here + self.step) % len(matrix)]
            found = proven(self.transitions[here, one], self.transitions[here, other], ahead, self.rounding)
            least = min(least, float((matrix[here, one, other] - found).min()))
        return least - 4 * _UNIT * float(matrix.max())

    def _parts(self) -> Iterator[slice]:
        size = max(1, _BATCH // self.shape[1] ** 2)
        return (slice(at, at + size) for at in range(0, len(self._pairs[0]), size))
