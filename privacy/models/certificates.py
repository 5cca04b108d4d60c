"""The one road to a certificate: matrices that prove what a constant density costs, and every schedule below it.

Every release covers slots with a density, its loss per slot; d is their sum. With F and B the matrices of the two
directions of time (:mod:`.directions`), the releases together are at most e^loss times as likely under x as under x' at
any slot, where

    loss = max over x != x' of F[x,x'] + B[x,x'] - d.

F >= d + L(P; F) is monotone in the density, so the certificate of an endless stream at density D covers every schedule
that has at most D in every slot: any windows in any overlap and order, for any horizon, later ones chosen by what was
published before.

*The road.* Linearise the map at a matrix, solve for the matrix of the density that is wanted, and again, until the
couplings at hand prove a matrix that is raised by a little (:meth:`.Direction.holds`); nothing else is believed. Wanted
is a density (:func:`proven`), or the one that loses epsilon (:func:`calibrated`). Where that goes round in circles, as
at a large density, the way leads down from a certificate, under couplings that are held.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> (pair,) = MarkovChain([[0.8, 0.2], [0.3, 0.7]]).pairs
>>> found = calibrated(pair, 1.0)
>>> round(1 / found.density, 3), certify(pair, found)
(3.024, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..validation import float_above
from .couplings import UNIT, Couplings, FloatArray
from .directions import Direction, Linear, NotContracting, Pair
from .kernels import Kernel
from .memory import remembered

Proof: TypeAlias = Couplings | str | None
"""Couplings, or their text; None where a closed form needs none, or where they are to be found anew."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """Matrices that prove what a constant density costs on an endless stream, and every smaller one at most.

    Attributes:
        density: Loss per slot, the sum over all releases that cover it.
        forward: F, shape (k, k) with zeros on the diagonal, (n, k, k) for a period of n slots, or () for one number.
        backward: B, alike.
        couplings: What proves F and B.
    """

    density: float
    forward: FloatArray
    backward: FloatArray
    couplings: tuple[Proof, Proof] = (None, None)

    @property
    def loss(self) -> float:
        """Epsilon that everything together costs at most, rounded up."""
        largest = float(_between_states(self.forward + self.backward).max())
        return math.nextafter(largest, math.inf) - math.nextafter(self.density, 0.0)

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

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two certificates equal, their shapes too."""
        return self.density, *((one.shape, one.tobytes()) for one in (self.forward, self.backward)), self.couplings

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON, of a certificate whose couplings are texts or none."""
        form = {"density": self.density, "forward": self.forward.tolist(), "backward": self.backward.tolist()}
        return form if self.couplings == (None, None) else {**form, "couplings": list(self.couplings)}

    @classmethod
    def from_dict(cls, form: Any) -> Certificate:
        """Read the form that ``to_dict`` writes; an error of many types where it is none."""
        ahead, back = form.get("couplings", (None, None))
        if not all(text is None or isinstance(text, str) for text in (ahead, back)):
            raise TypeError("couplings")
        forward, backward = (np.array(form[side], dtype=np.float64) for side in ("forward", "backward"))
        return cls(float(form["density"]), forward, backward, (ahead, back))


def certify(pair: Pair, certificate: Certificate) -> bool:
    """Whether a certificate holds for a belief's member: only this is believed of what was computed or read.

    Its couplings are to prove the matrix of each direction, whatever they are; where there are none, they are found.
    """
    matrices = (certificate.forward, certificate.backward)
    for direction, matrix, proof in zip(pair, matrices, certificate.couplings, strict=True):
        if matrix.shape != direction.shape or not (np.isfinite(matrix).all() and (matrix >= 0).all()):
            return False
        if matrix.ndim and np.diagonal(matrix, axis1=-2, axis2=-1).any():
            return False
        sizes = (len(kernel.places), kernel.states) if (kernel := direction.kernel) else (0, 0)
        try:
            found = Couplings.from_text(proof, *sizes) if isinstance(proof, str) else proof
        except ValueError:  # no couplings, or of other pairs
            return False
        if not (certificate.density > 0 and direction.holds(matrix, certificate.density, found)):
            return False
    return True


def _between_states(total: FloatArray) -> FloatArray:
    """A matrix with -inf on its diagonals; one number as it is."""
    found = np.array(total)
    if found.ndim:
        diagonal = np.arange(found.shape[-1])
        found[..., diagonal, diagonal] = -np.inf
    return found


def _walked(
    directions: Sequence[Direction],
    aim: Callable[[Sequence[Linear], float], float],
    matrices: Sequence[FloatArray],
    density: float | None = None,
) -> tuple[float, list[tuple[FloatArray, Couplings | None]]] | None:
    """A density, with matrices that couplings prove at it; None where the linearised maps lead to none.

    The aim is the density of a matrix that is to be proved for a share less, from the maps around the last one.
    """
    # gaps of the couplings, and by how much a matrix is raised, as a share of the density, until couplings prove it
    gaps, excesses = [1e-4, 1e-7, 1e-9], [2e-5, 1e-6, 3e-8]
    for turn in range(14):
        if not excesses or not max(float(matrix.max(initial=0.0)) for matrix in matrices) < 100:  # far above any budget
            return None
        try:
            lines = [one.approach(matrix, gaps[turn]) for one, matrix in zip(directions, matrices, strict=True)]
            raised = aim(lines, excesses[-1])
            before, matrices = matrices, [line.at(raised)[0] for line in lines]
        except NotContracting:
            return None
        found = raised / (1 + excesses[-1]) if density is None else density
        gaps.append(min(1e-9, 1e-8 * found))
        if turn < 2:
            continue
        told = zip(directions, matrices, lines, strict=True)
        if all(one.holds(matrix, found, line.couplings) for one, matrix, line in told):
            return found, [(matrix, line.couplings) for matrix, line in zip(matrices, lines, strict=True)]
        still = (np.abs(one - two).max() <= 1e-10 * one.max() for one, two in zip(matrices, before, strict=True))
        if turn in (7, 9, 11) or all(still):
            excesses.pop()  # it has settled, but for couplings that are as good as each other
    return None


@remembered
def of_kernel(kernel: Kernel, density: float) -> tuple[FloatArray, Couplings]:
    """The same for kernels, whose matrices need couplings."""
    try:
        start = [kernel.first_order * density]
        found = _walked([kernel], lambda _, excess: density * (1 + excess), start, density)
    except NotContracting:  # there is no first order: too slow to tell
        found = None
    for matrix, proof in found[1] if found else ():
        if proof is not None:
            return matrix, proof
    return _descended(kernel, density)


def proven(direction: Direction, density: float) -> tuple[FloatArray, Couplings | None]:
    """A matrix that is a certificate of one direction at a density, with the couplings that prove it.

    Raises:
        NotContracting: None was found.
    """
    if (kernel := direction.kernel) is not None:
        return of_kernel(kernel, density)
    return direction.approach(np.zeros(()), 0.0).at(density * (1 + 3e-8))[0], None


def _descended(kernel: Kernel, density: float) -> tuple[FloatArray, Couplings]:
    """From a certificate down, so that every matrix on the way is one: the couplings of one lead to a smaller one."""
    none = NotContracting(f"no couplings prove a matrix at density {density:g}: use a smaller one")
    p, q = kernel.rows(slice(None))
    with np.errstate(divide="ignore", invalid="ignore"):
        influence = np.nanmax(np.log(p / q), axis=1, initial=0.0)
    if not influence.max(initial=0.0) <= 90:
        raise none
    # L is at most the largest ratio of the two rows
    matrix = np.zeros(kernel.shape)
    matrix.ravel()[kernel.places] = influence + density * (1 + 2e-5)
    best: tuple[FloatArray, Couplings] | None = None
    proof = kernel.couple(matrix)[0]
    for _ in range(10):
        before, matrix = matrix, kernel.under_couplings(matrix, density * (1 + 1e-6), proof)
        proof = kernel.couple(matrix)[0]
        if kernel.holds(matrix, density, proof):
            best = matrix, proof
        if np.abs(matrix - before).max() <= 1e-8 * matrix.max():
            break
    if best is None:
        raise none
    return best


def certificate_at(pair: Pair, density: float) -> Certificate | None:
    """The certificate of one member at a density, checked; None where none was found."""
    try:
        (forward, ahead), (backward, back) = (proven(direction, density) for direction in pair)
    except NotContracting:
        return None
    made = Certificate(density, forward, backward, (ahead, back))
    return made if certify(pair, made) else None


def calibrated(pair: Pair, epsilon: float) -> Certificate:
    """The certificate of one member at the largest density that loses at most epsilon, up to a relative 1e-6.

    Raises:
        NotContracting: No density above 0 has a bound.
    """
    orders = [direction.first_order for direction in pair]
    if not all(np.isfinite(order).all() for order in orders):
        raise NotContracting(
            "the class has no bound at any density: its chains need not forget where they were; use a class that mixes "
            "faster, or group privacy"
        )
    start = epsilon / (float(_between_states(orders[0] + orders[1]).max()) - 1.0)

    def aim(lines: Sequence[Linear], excess: float) -> float:
        # the matrices are those of this density, and the loss is counted at one that is a share less
        return _root(lines, epsilon * (1 - 1.1 * excess), start)

    if (found := _walked(pair, aim, [order * start for order in orders])) is not None:
        density, ((forward, ahead), (backward, back)) = found
        made = Certificate(density, forward, backward, (ahead, back))
        if made.loss <= epsilon and certify(pair, made):
            return made
    raise NotContracting(
        f"no density was found whose loss is provably at most {epsilon:g}: the chain mixes too slowly: merge states, "
        "smooth the counts, or use group privacy"
    )


def _root(lines: Sequence[Linear], aim: float, density: float) -> float:
    """The density at which the linearised loss is the aim, by Newton's steps between a lower and an upper bound."""
    low, high = 0.0, math.inf
    for _ in range(100):
        try:
            (forward, more), (backward, yet_more) = (line.at(density) for line in lines)
        except NotContracting:
            high = density
            density = (low + high) / 2
            continue
        total = _between_states(forward + backward)
        place = total.argmax()
        loss = float(total.ravel()[place]) - density
        if loss <= aim:
            low = density
        else:
            high = density
        slope = float(np.broadcast_to(more + yet_more, total.shape).ravel()[place]) - 1.0
        step = density + (aim - loss) / slope if slope > 0 else math.inf
        if abs(step - density) <= 1e-12 * density:
            return step
        density = step if low < step < high else ((low + high) / 2 if math.isfinite(high) else 2 * density)
    return low


def kept(pair: Pair, found: Certificate, epsilon: float) -> Certificate:
    """A certificate to be stored: a little below what was found, with texts of couplings that prove it.

    Another processor ends in other digits. Without couplings where rounded ones prove too little.
    """
    made = Certificate(found.density * (1 - 1e-6), found.forward, found.backward)
    sides = tuple(zip(pair, (found.forward, found.backward), strict=True))
    # so nearly optimal that what they do not need is negligible
    sought = [one.kernel.couple(matrix, 1e-12)[0] if one.kernel else None for one, matrix in sides]
    for size in (4, 8):
        texts = [None if one is None else one.rounded(size).text() for one in sought]
        stored = Certificate(made.density, made.forward, made.backward, (texts[0], texts[1]))
        if stored.loss <= epsilon and certify(pair, stored):
            return stored
    return made


#: Binary digits of a density on the grid.
_DIGITS = 13


def on_grid(density: Any) -> float:
    """The least density of the grid that is not below an exact one, by at most 1 in 4096."""
    digits, exponent = math.frexp(float_above(density))
    return math.ldexp(math.ceil(digits * 2**_DIGITS), exponent - _DIGITS)


def below_on_grid(density: float, share: float = 0.0) -> float:
    """The largest density of the grid that is not above a given one, less a share."""
    digits, exponent = math.frexp(density * (1 - share))
    return math.ldexp(math.floor(digits * 2**_DIGITS), exponent - _DIGITS)
