"""Couplings of pairs of rows: the bound that they prove, and the text in which a file keeps them.

For rows p and q and ratios W >= 1 with ones on the diagonal, let G > 0 with G(y) <= W[y,z] G(z) for all y, z. What p
and q share is coupled with itself; of the surplus max(p - q, 0) of each state y some mass(y,z) >= 0 goes to each z,
with sum_z mass(y,z) at least the surplus. Then

    p.G <= sum_z (min(p, q)(z) + sum_y W[y,z] mass(y,z)) G(z) <= theta q.G,

with theta the largest load of a column over q(z). So any mass proves a bound, and what found it need not be trusted:
:func:`load_bound` alone is. It takes nothing of the mass but its proportions within a row, and scales these to the
surplus itself, so that numbers that are rounded, damaged or made up can only make the bound larger.

>>> rows = np.array([[0.9, 0.1], [0.4, 0.6]])
>>> ratios = np.array([[[1.0, 2.0], [2.0, 1.0]]])
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

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Relative rounding of one operation, doubled.
UNIT = 2.0**-52

#: Mass from here on is left out, so that no sum of a row overflows.
_MOST_MASS = 2.0**100

#: A smaller surplus is raised to this, so that what underflows of its shares is negligible.
_LEAST_SURPLUS = 2.0**-900

#: Bytes of a float of the mass in a file, the coarser first.
SIZES = (4, 8)

#: Mass of a row that :meth:`Couplings.rounded` leaves out, as a share, by the bytes of a float.
_THIN = {4: 1e-8, 8: 1e-11}

_PLACE_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Couplings:
    """How the surplus of p over q goes from state to state, for n pairs of rows of k states.

    Attributes:
        pairs: n.
        states: k.
        places: Where there is mass in a flattened array of shape (n, k, k), ascending, shape (m,).
        mass: What goes there, in any unit of its own for each row, shape (m,).

    Raises:
        ValueError: Places are not ascending, or outside the array, or not as many as the mass.
    """

    pairs: int
    states: int
    places: npt.NDArray[np.int64]
    mass: FloatArray

    def __post_init__(self) -> None:
        if self.places.ndim != 1 or self.places.shape != self.mass.shape:
            raise ValueError("places and mass are not as many")
        if len(self.places) and not (
            self.places[0] >= 0
            and self.places[-1] < self.pairs * self.states**2
            and (self.places[1:] > self.places[:-1]).all()
        ):
            raise ValueError("places are not ascending, or outside the pairs")

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
        kept = shares > _THIN[size]
        return Couplings(self.pairs, self.states, self.places[kept], shares[kept])

    def text(self) -> str:
        """For a file: differences of the places and the mass, each byte by byte of its rank, compressed, in base64."""
        size = 4 if (self.mass.astype("<f4") == self.mass).all() else 8
        steps = np.diff(self.places, prepend=0)
        if len(steps) and steps.max() >= 2 ** (8 * _PLACE_BYTES):
            raise ValueError("places are too far apart")
        ranks = (_ranks(steps.astype(f"<u{_PLACE_BYTES}")), _ranks(self.mass.astype(f"<f{size}")))
        return base64.b64encode(zlib.compress(bytes([size]) + b"".join(ranks), 9)).decode("ascii")

    @classmethod
    def from_text(cls, text: str, pairs: int, states: int) -> Couplings:
        """The inverse of :meth:`text`.

        Raises:
            ValueError: It is no such text, one of other pairs, or has mass that is not finite and above 0.
        """
        most = 1 + (_PLACE_BYTES + 8) * pairs * states**2
        reader = zlib.decompressobj()
        try:
            found = reader.decompress(base64.b64decode(text, validate=True), most + 1)
        except zlib.error as error:
            raise ValueError("couplings are not compressed text") from error
        if not reader.eof or reader.unused_data or not found or found[0] not in SIZES or len(found) > most:
            raise ValueError("couplings are incomplete, or more than the pairs have")
        size = found[0]
        count, over = divmod(len(found) - 1, _PLACE_BYTES + size)
        if over:
            raise ValueError("couplings are incomplete")
        body = np.frombuffer(found, np.uint8, offset=1)
        steps = _numbers(body[: _PLACE_BYTES * count], f"<u{_PLACE_BYTES}")
        with np.errstate(invalid="ignore"):  # a NaN of the signalling kind
            mass = _numbers(body[_PLACE_BYTES * count :], f"<f{size}").astype(np.float64)
        if not (np.isfinite(mass).all() and (mass > 0).all()):
            raise ValueError("couplings have mass that is not finite and above 0")
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

    Raises:
        ValueError: The couplings are of other pairs.
    """
    n, k = p.shape
    if (couplings.pairs, couplings.states) != (n, k):
        raise ValueError(f"couplings of {couplings.pairs} pairs of {couplings.states} states, for {n} of {k}")
    whose = (np.zeros(n, dtype=np.intp) if len(ratios) == 1 else np.arange(n)) if ahead is None else ahead
    live = q > 0
    safe = np.where(live, q, 1.0)
    surplus = np.where(p > q, np.maximum(p - q, _LEAST_SURPLUS), 0.0).ravel()
    rows, column = np.divmod(couplings.places, k)
    pair, row = np.divmod(rows, k)
    mass = couplings.mass
    taken = np.where(live[pair, column] & (mass > 0) & (mass < _MOST_MASS), mass, 0.0)
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
