"""The noise of a query by the forward-backward account, and what an event loses at most.

*An event*, a secret of several slots in a row (the one-slot case is Cao, Yoshikawa, Xiao, Xiong, TKDE 2018, extended to
any windows). Two paths a and b that are both possible over the slots s..t differ in some of them; d is the density of a
slot, F and B are the forward and backward loss. Everything published is at most e^loss times as likely under a as under
b, with

    loss = sum of d over the slots where the paths differ + (F_t - d_t)[a_t, b_t] + (B_s - d_s)[a_s, b_s].

Proof. h is the likelihood of everything published, V(past, path) its mean given all slots up to t. Given the path,
what follows depends on its last state alone, so V(past, a) = sum over y of P_t(a_t, y) V(past, a, y). Changing the
path costs e^d a slot where it differs, for every y; and G(y) = V(past, b, y) obeys F_{t+1}, so the mean over row a_t
is at most e^{L(P_t rows; F_{t+1})} = e^{F_t - d_t} times the mean over row b_t. What lies before depends on the first
state alone, and past -> V(past, b) obeys the backward recursion in the same way. QED.

At a certificate of the largest density D no F_t - d_t is above F - D, nor any B_s - d_s above B - D, and F and B are
those of one member. So no event of m slots loses more than m D + max(F - D) + max(B - D), the largest over the
members.

>>> from quiltstream.privacy.accounting.certificates import constant_loss
>>> from quiltstream.privacy.models.classes import MixingBounds
>>> bounds, density = MixingBounds(pi_min=0.2, gap=0.75), 2.0**-5
>>> round(constant_loss(bounds, density), 4), round(around(bounds, density) + 10 * density, 4)
(0.3805, 0.6618)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import SupportsIndex

from ..models.belief import Belief, ChainError
from ..models.directions import NotContracting
from ..models.markov_chain import MarkovChain
from ..models.memory import remembered
from ..models.serialisation import check_belief
from ..quilts.calibration import Calibration, target
from ..quilts.influence import Quilt
from .certificates import certificates_at, grid_density
from .lower_bounds import lower_bound
from .quilt_account import density_by_quilts, quilt_of_stream

METHOD = "forward-backward"

_QUILTS = "the best quilt of each pair of states, which needs less noise here than the recursion"

#: Sigma is raised by this relative amount, so that 1 / sigma stays on the density that is certified.
_ROOM = 2.0**-40

#: States up to which the lower bound is computed along the way.
_BOUNDED_STATES = 12


@remembered
def around(belief: Belief, density: float) -> float:
    """What the slots before and after an event reveal of it at most, where no slot has more than a density on the grid.

    Epsilon, on top of the density of the event's own slots; infinite where no bound was found.
    """
    if density <= 0:
        return 0.0
    sides = [
        float(one.forward.max()) + float(one.backward.max()) - 2 * one.density
        for one in certificates_at(belief, density)
    ]
    return math.nextafter(max(sides, default=math.inf), math.inf)


def forward_backward(belief: Belief, epsilon: float, length: SupportsIndex | None = None) -> Calibration:
    """Noise by the forward-backward account (Cao and others, TKDE 2018, for any windows in any overlap).

    The density is the largest of a grid up to 3, within 1 in 2000 of the largest there is, whose endless stream of any
    windows is certified to lose at most epsilon: the head of this module has the theorem and the grid. Where the
    pairwise quilts allow a larger one (``quilt_account.density_by_quilts``), as for a class or many states from epsilon
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
        # below that group privacy has less noise
        density, decided = stream_density(belief, epsilon, 1 / whole)
    except ChainError as error:
        _ = belief.certificates  # one that does not hold is no reason for group privacy
        if slots is None:
            raise ChainError(f"{error}; a window of known length has the noise of group privacy") from error
        density, decided = 0.0, False
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
    if not decided:
        return replace(made, certificates=certificates_at(belief, density))
    quilt, influence = quilt_of_stream(belief, density)
    return replace(made, quilt=quilt, influence=influence, assumptions=(_note(belief), _QUILTS))


def stream_density(belief: Belief, epsilon: float, above: float = 0.0) -> tuple[float, bool]:
    """The largest density whose endless stream loses at most epsilon by certificates or by the pairwise quilts.

    Args:
        belief: What is believed about a series.
        epsilon: Target, finite and at least 2^-46.
        above: Certificates are sought for larger densities only.

    Returns:
        The density, and whether it is that of the quilts; infinite where there is no secret pair.

    Raises:
        ChainError: Neither has a bound at a density that was sought, or a certificate that the belief carries does not
            hold.
    """
    _ = belief.certificates  # one that does not hold is refused here, where quilts would else be taken for it
    quilts, reason = 0.0, ""
    try:
        quilts = density_by_quilts(belief, epsilon)
    except ChainError as error:
        reason = str(error)
    if math.isinf(quilts):
        return quilts, True
    try:
        found = grid_density(belief, epsilon, above)
    except (ChainError, NotContracting) as error:
        if not quilts:
            more = "" if str(error) == reason else f"; nor has the account by quilts: {reason}"
            raise ChainError(
                f"the forward-backward account has no bound for an endless stream: {error}{more}"
            ) from error
        found = 0.0
    return max(found, quilts), quilts > found


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
