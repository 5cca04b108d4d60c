"""The noise of a query by the forward-backward account, and the density of a loss.

>>> from quiltstream.privacy.accounting.certificates import constant_loss
>>> from quiltstream.privacy.models.classes import MixingBounds
>>> bounds = MixingBounds(pi_min=0.2, gap=0.75)
>>> density = grid_density(bounds, epsilon=1.0)
>>> round(1 / density, 3), 0.9995 < constant_loss(bounds, density) <= 1.0
(12.962, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np

from ..models.belief import Belief, ChainError
from ..models.certificates import below_on_grid
from ..models.directions import NotContracting, Pair
from ..models.markov_chain import MarkovChain
from ..models.memory import remembered
from ..models.serialisation import check_belief
from ..quilts.calibration import Calibration, target
from ..quilts.influence import Quilt
from ..validation import accepted_loss
from .certificates import (
    ACCURACY,
    calibrated_by,
    carried_at,
    certificates_at,
    certified_loss,
    endless,
    forms_of,
)
from .lower_bounds import lower_bound
from .quilt_account import quilts_of

METHOD = "forward-backward"

#: Sigma is raised by this relative amount, so that 1 / sigma stays on the density that is certified.
_ROOM = 2.0**-40


def forward_backward(belief: Belief, epsilon: float, length: SupportsIndex | None = None) -> Calibration:
    """Noise by the forward-backward account (Cao and others, TKDE 2018, for any windows in any overlap).

    The density is the largest of a grid up to 3, within 1 in 2000 of the largest there is, whose endless stream of any
    windows is certified to lose at most epsilon (:mod:`.certificates` has the theorem and the grid). Where the
    pairwise quilts allow a larger one (:func:`stream_by_quilts`), as for a class or many states from epsilon
    4 or so on, it is theirs: each of the two bounds holds by itself, and a ledger, whose loss is the least of them,
    accounts the stream at most at epsilon. So for a stream it never needs more noise than by ``mqm_exact`` or
    ``pairwise``, nor, under bounds, than by ``mqm_approx``; for a window of a few slots these may need less from an
    epsilon of 5 or so on, by quilts that end at its ends.

    Args:
        belief: A chain, or a class; a fixed start is replaced by any start, which is true in every slot.
        epsilon: Target, finite and at least 2^-46.
        length: Slots of the window. What covers an endless stream covers a window; a window that is shorter than the
            account needs has the noise of group privacy, length / epsilon.

    Returns:
        The noise; without certificates where the quilts decide, or group privacy.

    Raises:
        ChainError: The belief has no bound for an endless stream, and no length is given.
    """
    belief = check_belief(belief)
    epsilon, slots = target(epsilon, length)
    none = Quilt(None, None)
    if belief.states == 1:
        nothing = ("the belief has one state: nothing is secret",)
        return Calibration(epsilon, 0.0, none, None, 0.0, slots, METHOD, None, nothing)
    whole = math.inf if slots is None else slots / epsilon * (1 + _ROOM)
    try:
        density, quilts = stream_density(belief, epsilon)
    except ChainError as error:
        _ = belief.certificates  # one that does not hold is no reason for group privacy
        if slots is None:
            raise ChainError(f"{error}; a window of known length has the noise of group privacy") from error
        density, quilts = 0.0, None
    if not density or whole <= 1 / density:
        notes = ("any dependence within the window, which is too short for the forward-backward account",)
        return Calibration(epsilon, whole, none, None, 0.0, slots, METHOD, None, notes)
    made = Calibration(
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
    )
    if quilts is None:
        return replace(made, certificates=certificates_at(belief, density))
    why = "the best quilt of each pair of states, which needs less noise here than the recursion"
    return replace(made, quilt=quilts.quilt, influence=quilts.influence, assumptions=(_note(belief), why))


@remembered
def grid_density(belief: Belief, epsilon: float) -> float:
    """A density of the grid whose endless stream loses at most epsilon, 3 at most.

    Up to 3 no other is larger by more than 1 in 2000 where couplings prove it. Where a slot may lose less than some
    1e-5 total variations prove more than couplings of double precision: the larger of both densities is taken.

    Raises:
        ChainError: The belief is a chain that does not mix.
        NotContracting: No density has a bound.
    """
    epsilon = accepted_loss(epsilon)
    carried = _carried_density(belief, epsilon)
    if carried and abs(max(one.loss for one in belief.certificates) - epsilon) <= ACCURACY * epsilon:
        # made for this target: what is computed below is at most as sharp
        return carried
    if not (forms := forms_of(belief)):
        return endless(belief.everywhere, epsilon).density  # the reason why there are none
    if epsilon >= 3 and certified_loss(belief, 3.0) * (1 + ACCURACY) <= epsilon:
        return max(3.0, carried)
    found = carried
    for pairs in forms:
        found = max(found, _certified_density(belief, pairs, epsilon, above=found))
    if found:
        return found
    raise NotContracting(
        f"no certificate was found for epsilon {epsilon:g}: the chain mixes too slowly, or what a slot may lose is too "
        "near to 0 for double precision; merge states, smooth the counts, use a larger epsilon, or group privacy"
    )


def _certified_density(belief: Belief, pairs: tuple[Pair, ...], epsilon: float, *, above: float) -> float:
    """A density of the grid, at or a little below the calibrated one, that is proven to lose at most epsilon.

    0 where none is found above the given one.
    """
    try:
        density = below_on_grid(min(one.density for one in calibrated_by(belief, pairs, epsilon)))
    except NotContracting:
        return 0.0
    for turn in range(8):  # each step is twice the one before, 1.6 % all together
        if density <= above:
            break
        # a worker with another processor must not find more than epsilon
        if certified_loss(belief, density) * (1 + ACCURACY) <= epsilon:
            return density
        density = below_on_grid(density, 2.0 ** (turn - 14))
    return 0.0


def _carried_density(belief: Belief, epsilon: float) -> float:
    """The largest density of the grid for which the certificates that a belief carries prove epsilon; 0 for none.

    They are stored, so every processor has the same numbers.
    """
    density = below_on_grid(max(0.0, min((one.density_for(epsilon) for one in belief.certificates), default=0.0)))
    while density > 0 and max(one.loss for one in carried_at(belief, density)) > epsilon:
        density = below_on_grid(density, 2.0**-14)
    return density


@dataclass(frozen=True, slots=True)
class StreamQuilt:
    """The largest density whose endless stream loses at most a target by quilts, and the quilt that decides."""

    density: float
    quilt: Quilt
    influence: float


def stream_density(belief: Belief, epsilon: float) -> tuple[float, StreamQuilt | None]:
    """The largest density whose endless stream loses at most epsilon by certificates or by the pairwise quilts.

    Args:
        belief: What is believed about a series.
        epsilon: Target, finite and at least 2^-46.

    Returns:
        The density, infinite where there is no secret pair, and the quilt where one decides.

    Raises:
        ChainError: Neither has a bound, or a certificate that the belief carries does not hold.
    """
    _ = belief.certificates  # one that does not hold is refused here, where quilts would else be taken for it
    quilts, reason = None, ""
    try:
        quilts = stream_by_quilts(belief, epsilon)
    except ChainError as error:
        reason = str(error)
    if quilts is not None and math.isinf(quilts.density):
        return quilts.density, quilts
    try:
        found = grid_density(belief, epsilon)
    except (ChainError, NotContracting) as error:
        if quilts is None:
            more = "" if str(error) == reason else f"; nor has the account by quilts: {reason}"
            raise ChainError(
                f"the forward-backward account has no bound for an endless stream: {error}{more}"
            ) from error
        found = 0.0
    return (found, None) if quilts is None or quilts.density <= found else (quilts.density, quilts)


def _note(belief: Belief) -> str:
    if not belief.any_start and belief.members:
        members = len(belief.members)
        chains = "one transition matrix" if members == 1 else f"{members} transition matrices, of which one holds"
        return f"{chains}, the same in every slot; any windows in any overlap"
    return f"every series follows one member of the class {type(belief).__name__}; any windows in any overlap"


def _least(belief: Belief, epsilon: float) -> float | None:
    """The lower bound of the member that needs most noise; its stationary start is one of any start."""
    plain = [MarkovChain(one.transition) for one in belief.members]
    if not plain or any(one.states > 12 or not one.is_irreducible for one in plain):
        return None
    return max(lower_bound(one, epsilon) for one in plain)


def stream_by_quilts(belief: Belief, epsilon: float) -> StreamQuilt:
    """The largest density whose endless stream loses at most epsilon, with the quilt that decides, and its influence.

    It is the min over pairs of the max over quilts of (epsilon - influence) / card, lowered until the ceiling agrees.
    Per pair the loss is concave in the density (a minimum of lines, one per quilt), so the line of the best quilt at
    one density meets epsilon at or below the true root: Dinkelbach's iteration climbs to it from below, for all pairs
    at once. Infinite where there is no secret pair.

    Raises:
        ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix.
    """
    quilts = quilts_of(belief)
    if not len(quilts.left):
        return StreamQuilt(math.inf, Quilt(None, None), 0.0)
    least = float((quilts.left[:, -1] + quilts.right[:, -1]).max())
    if least >= epsilon:
        raise ChainError(
            f"no quilt within {quilts.reach} slots has an influence below epsilon {epsilon!r}; the least is {least!r}: "
            "use a belief that mixes (irreducible, aperiodic, rare bins merged), or a larger epsilon"
        )
    rows, density = np.arange(len(quilts.left)), np.zeros(len(quilts.left))
    while True:
        inside = np.multiply.outer(density, np.arange(quilts.reach))
        back, ahead = np.argmin(inside + quilts.left, axis=1), np.argmin(inside + quilts.right, axis=1)
        influence = quilts.left[rows, back] + quilts.right[rows, ahead]
        raised = (epsilon - influence) / (back + ahead + 1)
        if not np.any(raised > density):
            break
        density = np.maximum(density, raised)
    found, lower, row = float(density.min()), 2.0**-52, int(density.argmin())
    while quilts.ceiling(found) > epsilon:
        found, lower = found * (1 - lower), 2 * lower
    return StreamQuilt(found, Quilt(int(back[row]) + 1, int(ahead[row]) + 1), float(influence[row]))
