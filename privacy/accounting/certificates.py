"""What a constant density costs on an endless stream: the certificates of a belief, asked.

:mod:`..models.certificates` has the theorem, and the one road to a certificate. A chain with a fixed start is one of
those with any start. Of a finite class every series may follow another member; F and B are of the same.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
>>> found = endless(chain, 1.0)
>>> round(1 / found.density, 3)
3.024

*One float for each state of an account.* A number is computed for densities that are rounded up to 13 binary digits
alone. So the same releases in any order, and a sum of densities that stays below one that was calibrated, have the same
float; between neighbours on the grid the loss rises by far more than rounding, so it never falls as the density rises.

*Many states.* Kernels with more than 12 states are replaced by the total variation of their powers, a larger class,
because the exact map takes seconds there and a charge must not wait for it; `endless` calibrates those exactly, and
`certified` keeps what it found with the belief.

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> bounds = MixingBounds(pi_min=0.2, gap=0.75)
>>> round(constant_loss(bounds, 1 / 12.962), 3)
1.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ..models.belief import Belief, ChainError
from ..models.certificates import Certificate, calibrated, certificate_at, kept, on_grid
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
    found = calibrated_by(belief, belief.pairs, epsilon)
    return Endless(min(one.density for one in found), found)


@remembered
def calibrated_by(_: Belief, pairs: tuple[Pair, ...], epsilon: float) -> tuple[Certificate, ...]:
    """By member, its directions or larger classes of them; kept with the belief."""
    return tuple(calibrated(pair, epsilon) for pair in pairs)


@remembered
def forms_of(belief: Belief) -> tuple[tuple[Pair, ...], ...]:
    """The directions of every member that are priced: exactly up to 12 states, and by closed forms; () for none.

    Where a slot may lose next to nothing, couplings of double precision prove less than total variations do.
    """
    if belief.states == 1:  # nothing is secret
        return ()
    try:
        exact = belief.everywhere.pairs
    except (ChainError, NotContracting):
        return ()

    def priced(direction: Direction) -> Direction:
        return direction if direction.kernel is None or direction.kernel.states <= 12 else direction.closed

    few = tuple((priced(ahead), priced(back)) for ahead, back in exact)
    return tuple(dict.fromkeys((few, tuple((ahead.closed, back.closed) for ahead, back in exact))))


@remembered
def constant_loss(belief: Belief, density: float) -> float:
    """Epsilon that releases cost at most whose density is nowhere above this one, rounded up.

    By certificates, or by quilts where they prove less. Of a fixed start for every start; infinite without a bound.
    """
    if density <= 0:
        return 0.0
    return min(certified_loss(belief, on_grid(Fraction(density))), quilts_of(belief).ceiling(density))


def certified_loss(belief: Belief, density: float) -> float:
    """The loss that certificates alone prove; infinite where there are none."""
    return max((one.loss for one in certificates_at(belief, density)), default=math.inf)


@remembered
def certificates_at(belief: Belief, density: float) -> tuple[Certificate, ...]:
    """Certificates of all members that cover a density, each checked; () where one of them was not found.

    Those that the belief carries count where they prove less than what is computed here.
    """
    both = (_computed(belief, density), carried_at(belief, density))
    return min((one for one in both if one), key=lambda found: max(one.loss for one in found), default=())


def _computed(belief: Belief, density: float) -> tuple[Certificate, ...]:
    if density > 3:  # there a slot alone has lost more than any budget
        return ()
    found: list[Certificate] = []
    for forms in zip(*forms_of(belief), strict=True):
        made = [one for one in (certificate_at(form, density) for form in forms) if one is not None]
        if not made:
            return ()
        found.append(min(made, key=lambda one: one.loss))
    return tuple(found)


def carried_at(belief: Belief, density: float) -> tuple[Certificate, ...]:
    """The certificates that a belief carries, at a density; () where they do not cover it."""
    carried = belief.certificates
    return tuple(one.at(density) for one in carried) if all(one.density >= density for one in carried) else ()


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
