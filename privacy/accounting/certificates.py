"""What a constant density costs on an endless stream, and the density of a cost: the certificates of a belief, asked.

:mod:`..models.certificates` has the theorem, and the one road to a certificate. A chain with a fixed start is one of
those with any start. Of a finite class every series may follow another member; F and B are of the same.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
>>> found = endless(chain, 1.0)
>>> round(1 / found.density, 3)
3.024

*One float for each state of an account.* Densities are rounded up to 13 binary digits, by at most 1 in 4096, and a
number is computed for the rounded one alone. So the same releases in any order, and a sum of densities that stays below
one that was calibrated, have the same float; between neighbours on the grid the loss rises by far more than rounding,
so it never falls as the density rises.

*Many states.* Kernels with more than 12 states are replaced by the total variation of their powers, a larger class,
because the exact map takes seconds there and a charge must not wait for it; `endless` calibrates those exactly, and
`certified` keeps what it found with the belief.

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> bounds = MixingBounds(pi_min=0.2, gap=0.75)
>>> density = grid_density(bounds, epsilon=1.0)
>>> round(1 / density, 3), 0.9995 < constant_loss(bounds, density) <= 1.0
(12.962, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ..models.belief import Belief, ChainError
from ..models.certificates import Certificate, below_on_grid, calibrated, certificate_at, kept, on_grid
from ..models.classes import everywhere
from ..models.directions import Direction, NotContracting, Pair
from ..models.memory import remembered
from ..models.serialisation import check_belief
from ..validation import accepted_loss
from .quilt_account import quilts_of

#: What a loss may differ by, as a share, where another processor computes it: its couplings end in other digits, and
#: may need the next larger excess.
ACCURACY = 1e-4


@dataclass(frozen=True, eq=False)
class Endless:
    """The density that an endless stream may have in every slot.

    Attributes:
        density: Loss per slot; noise of scale ``sensitivity / density`` in every release of one query.
        certificates: One for each member of the belief, at densities that are not below this one.
    """

    density: float
    certificates: tuple[Certificate, ...]


def endless(belief: Belief, epsilon: float) -> Endless:
    """The largest density whose endless stream loses at most epsilon, up to a relative 1e-6.

    Args:
        belief: What is believed about a series; a finite class holds for series that follow different members.
        epsilon: Target, finite and at least 2^-46.

    Raises:
        ChainError: The belief has a fixed start.
        NotContracting: No density above 0 has a bound.
    """
    epsilon, belief = accepted_loss(epsilon), check_belief(belief)
    found = _calibrated(belief, belief.pairs, epsilon)
    return Endless(min(one.density for one in found), found)


@remembered
def _calibrated(belief: Belief, pairs: tuple[Pair, ...], epsilon: float) -> tuple[Certificate, ...]:
    """By member, its directions or larger classes of them; kept with the belief."""
    del belief
    return tuple(calibrated(pair, epsilon) for pair in pairs)


@remembered
def _forms(belief: Belief) -> tuple[tuple[Pair, ...], ...]:
    """The directions of every member that are priced: exactly up to 12 states, and by closed forms; () for none.

    Where a slot may lose next to nothing, couplings of double precision prove less than total variations do.
    """
    if belief.states == 1:  # nothing is secret
        return ()
    try:
        exact = everywhere(belief).pairs
    except (ChainError, NotContracting):
        return ()

    def priced(direction: Direction) -> Direction:
        return direction if direction.kernel is None or direction.kernel.states <= 12 else direction.closed

    few = tuple((priced(ahead), priced(back)) for ahead, back in exact)
    return tuple(dict.fromkeys((few, tuple((ahead.closed, back.closed) for ahead, back in exact))))


@remembered
def constant_loss(belief: Belief, density: float) -> float:
    """Epsilon that releases cost at most whose density is nowhere above this one, rounded up.

    By certificates, or by quilts where they prove less. A fixed start is priced for every start. Infinite
    where no bound was found.
    """
    if density <= 0:
        return 0.0
    return min(_certified_loss(belief, on_grid(Fraction(density))), quilts_of(belief).ceiling(density))


def _certified_loss(belief: Belief, density: float) -> float:
    return max((one.loss for one in certificates_at(belief, density)), default=math.inf)


@remembered
def certificates_at(belief: Belief, density: float) -> tuple[Certificate, ...]:
    """Certificates of all members that cover a density, each checked; () where one of them was not found.

    Those that the belief carries count where they prove less than what is computed here.
    """
    both = (_computed(belief, density), _carried(belief, density))
    return min((one for one in both if one), key=lambda found: max(one.loss for one in found), default=())


def _computed(belief: Belief, density: float) -> tuple[Certificate, ...]:
    if density > 3:  # there a slot alone has lost more than any budget
        return ()
    found: list[Certificate] = []
    for forms in zip(*_forms(belief), strict=True):
        made = [one for one in (certificate_at(form, density) for form in forms) if one is not None]
        if not made:
            return ()
        found.append(min(made, key=lambda one: one.loss))
    return tuple(found)


def _carried(belief: Belief, density: float) -> tuple[Certificate, ...]:
    carried = belief.certificates
    return tuple(one.at(density) for one in carried) if all(one.density >= density for one in carried) else ()


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
    if not (forms := _forms(belief)):
        return endless(everywhere(belief), epsilon).density  # the reason why there are none
    if epsilon >= 3 and _certified_loss(belief, 3.0) * (1 + ACCURACY) <= epsilon:
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
        density = below_on_grid(min(one.density for one in _calibrated(belief, pairs, epsilon)))
    except NotContracting:
        return 0.0
    for turn in range(8):  # each step is twice the one before, 1.6 % all together
        if density <= above:
            break
        # a worker with another processor must not find more than epsilon
        if _certified_loss(belief, density) * (1 + ACCURACY) <= epsilon:
            return density
        density = below_on_grid(density, 2.0 ** (turn - 14))
    return 0.0


def _carried_density(belief: Belief, epsilon: float) -> float:
    """The largest density of the grid for which the certificates that a belief carries prove epsilon; 0 for none.

    They are stored, so every processor has the same numbers.
    """
    density = below_on_grid(max(0.0, min((one.density_for(epsilon) for one in belief.certificates), default=0.0)))
    while density > 0 and max(one.loss for one in _carried(belief, density)) > epsilon:
        density = below_on_grid(density, 2.0**-14)
    return density


def certified(belief: Belief, epsilon: float = 1.0) -> Belief:
    """A belief with certificates of an endless stream that loses at most epsilon, by the exact map of each direction.

    The noise is then that of the exact map for any number of states, and so is the account, for this epsilon and every
    smaller one less the difference. Couplings that prove it are kept, too, so that a check need not find them.

    Raises:
        ChainError: The belief has a fixed start, or does not mix.
        NotContracting: No density above 0 has a bound.
    """
    found = endless(belief, accepted_loss(epsilon) * (1 - 1e-6))
    return belief.with_certificates(map(kept, belief.pairs, found.certificates, [epsilon] * len(found.certificates)))
