"""How much noise by the forward-backward account: the least that its bound by the largest density allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import SupportsIndex

from ..models.belief import Belief
from ..models.couplings import SIZES
from ..models.directions import Certificate, NotContracting, Pair
from ..models.markov_chain import ChainError, MarkovChain
from ..models.serialisation import Certified, Proof, check_belief
from ..quilts.calibration import Calibration, target
from ..quilts.influence import Quilt
from .forward_backward import certificates_at, directions_of, endless, grid_density, lower_bound

METHOD = "forward-backward"

#: Sigma is raised by this relative amount, so that 1 / sigma stays on the density that is certified.
_ROOM = 2.0**-40

#: States up to which the lower bound is computed along the way.
_BOUNDED_STATES = 12


def forward_backward(belief: Belief, epsilon: float, length: SupportsIndex | None = None) -> Calibration:
    """Noise by the forward-backward account (Cao and others, TKDE 2018, for any windows in any overlap).

    The density is the largest of a grid, within 1 in 2000 of the largest there is, whose endless stream of any windows
    is certified to lose at most epsilon: :mod:`.forward_backward` has the theorem and the grid. A ledger with
    the rule ``forward-backward`` accounts it at most at epsilon.

    Args:
        belief: A chain, or a class; a fixed start is replaced by any start, which is true in every slot.
        epsilon: Target, finite and above 0.
        length: Slots of the window. What covers an endless stream covers a window; a window that is shorter than the
            account needs has the noise of group privacy, length / epsilon.

    Raises:
        ChainError: The belief has no bound for an endless stream, and no length is given.
        TypeError: If the belief is none, or epsilon or length is no number of its kind.
        ValueError: If epsilon or length is out of range.
    """
    check_belief(belief)
    epsilon, slots = target(epsilon, length)
    none = Quilt(None, None)
    if belief.states == 1:
        nothing = ("the belief has one state: nothing is secret",)
        return Calibration(epsilon, 0.0, none, None, 0.0, slots, METHOD, None, nothing)
    whole = math.inf if slots is None else slots / epsilon * (1 + _ROOM)
    try:
        density = grid_density(belief, epsilon)
    except (ChainError, NotContracting) as error:
        if slots is None:
            raise ChainError(
                f"the forward-backward account has no bound for an endless stream: {error}; a window of known length "
                "has the noise of group privacy"
            ) from error
        density = 0.0
    if not density or whole <= 1 / density:
        notes = ("any dependence within the window, which is too short for the forward-backward account",)
        return Calibration(epsilon, whole, none, None, 0.0, slots, METHOD, None, notes)
    return Calibration(
        epsilon=epsilon,
        sigma=1 / density * (1 + _ROOM),
        quilt=none,
        node=None,
        influence=0.0,
        length=slots,
        method=METHOD,
        pair=None,
        assumptions=(_note(belief),),
        lower_bound=_least(belief, epsilon) if slots is None else None,
        certificates=certificates_at(belief, density),
    )


#: By how much a certificate that is kept lies below what was found: another processor ends in other digits.
_KEPT = 1e-6


def certified(belief: Belief, epsilon: float = 1.0) -> Certified:
    """A belief with certificates of an endless stream that loses at most epsilon, by the exact map of each direction.

    The noise is then that of the exact map for any number of states, and so is the account, for this epsilon and every
    smaller one less the difference. Couplings that prove it are kept, too, so that a check need not find them.

    Raises:
        ChainError: The belief has a fixed start, or does not mix.
        NotContracting: No density above 0 has a bound.
        ValueError: Epsilon is not finite and above 0.
    """
    found = endless(belief, epsilon * (1 - _KEPT))
    pairs = zip(directions_of(belief), found.certificates, strict=True)
    kept, proofs = zip(*(_kept(pair, one, epsilon) for pair, one in pairs), strict=True)
    return Certified(belief, kept, proofs)


def _kept(pair: Pair, found: Certificate, epsilon: float) -> tuple[Certificate, Proof]:
    """A certificate at a density that stored couplings prove, with them, or without any where they prove too little."""
    sides = tuple(zip(pair, (found.forward, found.backward), strict=True))
    sought = [direction.couplings_of(matrix) for direction, matrix in sides]
    for size in SIZES:
        rounded = [None if one is None else one.rounded(size) for one in sought]
        proven = (direction.density_of(matrix, one) for (direction, matrix), one in zip(sides, rounded, strict=True))
        made = replace(found, density=min(found.density, *proven) * (1 - _KEPT))
        if made.density > 0 and made.loss <= epsilon:
            forward, backward = (None if one is None else one.text() for one in rounded)
            return made, (forward, backward)
    return replace(found, density=found.density * (1 - _KEPT)), (None, None)


def _note(belief: Belief) -> str:
    if not belief.any_start and belief.members:
        members = len(belief.members)
        chains = "one transition matrix" if members == 1 else f"{members} transition matrices, of which one holds"
        return f"{chains}, the same in every slot; any windows in any overlap"
    return f"every series follows one member of the class {type(belief).__name__}; any windows in any overlap"


def _least(belief: Belief, epsilon: float) -> float | None:
    """The lower bound of the member that needs most noise; its stationary start is one of any start."""
    plain = [MarkovChain(one.transition) for one in belief.members]
    if not plain or any(one.states > _BOUNDED_STATES or not one.is_irreducible for one in plain):
        return None
    return max(lower_bound(one, epsilon) for one in plain)
