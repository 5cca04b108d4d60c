"""Certificates: matrices that prove what a constant density costs on an endless stream, and every schedule below it.

Every release covers slots with a density, its loss per slot; d is their sum. With F and B the matrices of the two
directions of time (``models.directions``), the releases together are at most e^loss times as likely under x as under x'
at any slot, where

    loss = max over x != x' of F[x,x'] + B[x,x'] - d.

F >= d + L(P; F) is monotone in the density, so the certificate of an endless stream at density D covers every schedule
that has at most D in every slot: any windows in any overlap and order, for any horizon, later ones chosen by what was
published before. A chain with a fixed start is one of those with any start. Of a finite class every series may follow
another member; F and B are of the same.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
>>> found = endless(chain, 1.0)
>>> round(1 / found.density, 3)
3.024
>>> all(certify(pair, one) for pair, one in zip(directions_of(chain), found.certificates))
True

*One float for each state of an account.* Densities are rounded up to 13 binary digits, by at most 1 in 4096, and a
number is computed for the rounded one alone. So the same releases in any order, and a sum of densities that stays below
one that was calibrated, have the same float; between neighbours on the grid the loss rises by far more than rounding,
so it never falls as the density rises.

*What is believed.* A matrix is used once :meth:`.Direction.density_of` has found couplings that prove it at the rounded
density. Kernels with more than 12 states are replaced by the total variation of their powers, a larger class, because
the exact map takes seconds there and a charge must not wait for it; `endless` calibrates those exactly.

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> bounds = MixingBounds(pi_min=0.2, gap=0.75)
>>> density = grid_density(bounds, epsilon=1.0)
>>> round(1 / density, 3), 0.9995 < constant_loss(bounds, density) <= 1.0
(12.962, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ..models.belief import Belief
from ..models.classes import everywhere
from ..models.couplings import SIZES, Couplings
from ..models.directions import (
    Certificate,
    Direction,
    FloatArray,
    Linear,
    NotContracting,
    OneNumber,
    Pair,
    between_states,
    certify,
    largest_between,
)
from ..models.kernels import ByCouplings, Kernel
from ..models.markov_chain import ChainError
from ..models.serialisation import Certified, Proof, check_belief
from ..validation import accepted_loss, float_above
from .quilt_account import quilts_of

#: Gaps of the couplings, from the first to the last linearisation; the last is repeated.
_TOLERANCES = (1e-4, 1e-7, 1e-9)

_MOST_ROUNDS = 10

_SETTLED = 1e-8

#: What couplings at hand may prove less than new ones would, as a share of the density.
_CLOSE = 5e-7

_MOST_TRIES = 100

#: Densities that are tried before the factor from one to the next is squared each time.
_SLOW_TRIES = 8

#: Binary digits of a density on the grid.
_DIGITS = 13

#: Densities that are tried from the calibrated one down; each step is twice the one before, 1.6 % all together.
_MOST_TURNS = 8

#: States up to which the map is computed exactly for a charge.
_EXACT_STATES = 12

#: A density above which no number is computed: there a slot alone has lost more than any budget.
_LARGEST = 3.0

#: A loss between two states above which their ratio is not followed; far above any budget.
_MOST_LOSS = 100.0

#: By how much the matrix is raised, as a share of the density, until couplings prove it.
_EXCESS = (3e-8, 1e-6, 2e-5)

#: What a loss may differ by, as a share, where another processor computes it: its couplings end in other digits, and
#: may need the next larger excess.
ACCURACY = 1e-4

#: By how much a certificate that is kept lies below what was found: another processor ends in other digits.
_KEPT = 1e-6


@dataclass(frozen=True, eq=False)
class Endless:
    """The density that an endless stream may have in every slot.

    Attributes:
        density: Loss per slot; noise of scale ``sensitivity / density`` in every release of one query.
        certificates: One for each member of the belief, at densities that are not below this one.
    """

    density: float
    certificates: tuple[Certificate, ...]


def directions_of(belief: Belief) -> tuple[Pair, ...]:
    """The two directions of every member of a belief.

    Raises:
        ChainError: The belief has a fixed start, which is true at one slot only, or a chain that does not mix.
    """
    check_belief(belief)
    return belief.directions()


def endless(belief: Belief, epsilon: float) -> Endless:
    """The largest density whose endless stream loses at most epsilon, up to a relative 1e-6.

    Args:
        belief: What is believed about a series; a finite class holds for series that follow different members.
        epsilon: Target, finite and at least 2^-46.

    Raises:
        ChainError: The belief has a fixed start.
        NotContracting: No density above 0 has a bound.
    """
    epsilon = accepted_loss(epsilon)
    found = tuple(calibrated(pair, epsilon) for pair in directions_of(belief))
    return Endless(min(one.density for one in found), found)


@lru_cache(maxsize=256)
def calibrated(pair: Pair, epsilon: float) -> Certificate:
    """The largest density of one member, with its certificate, up to a relative 1e-6.

    Linearise both directions, solve for the density, and again; believe the check of the last matrices alone.

    Raises:
        NotContracting: No density above 0 has a bound.
    """
    return _proven(pair, *_settled(pair, epsilon), epsilon)


def _settled(pair: Pair, epsilon: float) -> tuple[tuple[Linear, Linear], float]:
    """The maps of both directions around their matrices at the density that loses epsilon, and that density."""
    orders = [direction.first_order for direction in pair]
    if not all(np.isfinite(order).all() for order in orders):
        raise NotContracting(
            "the class has no bound at any density: its chains need not forget where they were; use a class that mixes "
            "faster, or group privacy"
        )
    density = epsilon / (largest_between(orders[0] + orders[1]) - 1.0)
    matrices = tuple(order * density for order in orders)
    turn = 0
    while True:
        lines = _approached(pair, matrices, _TOLERANCES[min(turn, len(_TOLERANCES) - 1)])
        before, density = density, _root(lines, epsilon, density)
        turn += 1
        if turn == _MOST_ROUNDS:
            return lines, density
        matrices = tuple(line.at(density)[0] for line in lines)
        if turn >= len(_TOLERANCES) and (
            abs(density - before) <= _SETTLED * density or _density_of(pair, matrices, lines) >= density * (1 - _CLOSE)
        ):
            return lines, density


def _approached(pair: Pair, matrices: Sequence[FloatArray], tolerance: float) -> tuple[Linear, Linear]:
    (ahead, back), (forward, backward) = pair, matrices
    return ahead.approach(forward, tolerance), back.approach(backward, tolerance)


def _density_of(pair: Pair, matrices: Sequence[FloatArray], lines: Sequence[Linear]) -> float:
    """The largest density that the couplings at hand prove for the matrices of both directions."""
    return min(
        direction.density_of(matrix, line.couplings)
        for direction, matrix, line in zip(pair, matrices, lines, strict=True)
    )


def _proven(pair: Pair, lines: tuple[Linear, Linear], density: float, epsilon: float) -> Certificate:
    """The matrices of linearised maps near a density, with the largest density that couplings prove for them.

    Couplings at hand are taken; where they prove clearly less than they should, new ones are found.
    """
    aim = epsilon
    for _ in range(_MOST_ROUNDS):
        matrices = [line.at(density)[0] for line in lines]
        certified = _density_of(pair, matrices, lines)
        if not certified >= density * (1 - _CLOSE):
            lines = _approached(pair, matrices, _TOLERANCES[-1])
            certified = _density_of(pair, matrices, lines)
        if certified > 0:
            made = Certificate(certified, matrices[0], matrices[1])
            if made.loss <= epsilon:
                return made
        else:
            made = Certificate(density, matrices[0], matrices[1])
        aim *= min(epsilon / made.loss, 1.0) * (1 - 1e-9)
        density = _root(lines, aim, density)
    raise NotContracting(
        f"no density was found whose loss is provably at most {epsilon:g}: the chain mixes too slowly: merge states, "
        "smooth the counts, or use group privacy"
    )


def _root(lines: Sequence[Linear], aim: float, density: float) -> float:
    """The density at which the linearised loss is the aim, by Newton's steps between a lower and an upper bound."""
    low, high = 0.0, math.inf
    for _ in range(_MOST_TRIES):
        try:
            (forward, more), (backward, yet_more) = (line.at(density) for line in lines)
        except NotContracting:
            high = density
            density = (low + high) / 2
            continue
        total = between_states(forward + backward)
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


def on_grid(density: Fraction) -> float:
    """The least density of the grid that is not below an exact one."""
    digits, exponent = math.frexp(float_above(density))
    return math.ldexp(math.ceil(digits * 2**_DIGITS), exponent - _DIGITS)


def _down(density: float) -> float:
    """The largest density of the grid that is not above a given one."""
    digits, exponent = math.frexp(density)
    return math.ldexp(math.floor(digits * 2**_DIGITS), exponent - _DIGITS)


@lru_cache(maxsize=4096)
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


@lru_cache(maxsize=256)
def certificates_at(belief: Belief, density: float) -> tuple[Certificate, ...]:
    """Certificates of all members that cover a density, each checked; () where one of them was not found.

    Those that the belief carries count where they prove less than what is computed here.
    """
    both = (_computed(belief, density), _carried(belief, density))
    return min((one for one in both if one), key=lambda found: max(one.loss for one in found), default=())


def _computed(belief: Belief, density: float) -> tuple[Certificate, ...]:
    found: list[Certificate] = []
    for pair in _pairs(belief) if density <= _LARGEST else ():
        # where a slot may lose next to nothing, couplings of double precision prove less than total variations do
        forms = dict.fromkeys((pair, (_curve(pair[0]), _curve(pair[1]))))
        made = [one for one in (_certificate(form, density) for form in forms) if one is not None]
        if not made:
            return ()
        found.append(min(made, key=lambda one: one.loss))
    return tuple(found)


def _certificate(pair: Pair, density: float) -> Certificate | None:
    """What is proven at a density; None where nothing is."""
    try:
        (forward, ahead), (backward, back) = (proven_matrix(direction, density) for direction in pair)
    except NotContracting:
        return None
    made = Certificate(density, forward, backward)
    return made if certify(pair, made, (ahead, back)) else None


def _carried(belief: Belief, density: float) -> tuple[Certificate, ...]:
    if not belief.certificates or min(one.density for one in belief.certificates) < density:
        return ()
    return tuple(one.at(density) for one in belief.certificates)


@lru_cache(maxsize=256)
def grid_density(belief: Belief, epsilon: float, above: float = 0.0) -> float:
    """A density of the grid whose endless stream loses at most epsilon, 3 at most; none is sought up to `above`.

    Up to 3 no other is larger by more than 1 in 2000 where couplings prove it. Where a slot may lose less than some
    1e-5 total variations prove more than couplings of double precision: the larger of both densities is taken.

    Raises:
        ChainError: The belief is a chain that does not mix.
        NotContracting: No density above the given one has a bound.
    """
    epsilon = accepted_loss(epsilon)
    carried = _carried_density(belief, epsilon)
    if carried and abs(max(one.loss for one in belief.certificates) - epsilon) <= ACCURACY * epsilon:
        # made for this target: what is computed below is at most as sharp
        return carried
    pairs = _pairs(belief)
    if not pairs:
        # the reason
        return endless(everywhere(belief), epsilon).density
    if epsilon >= _LARGEST and _certified_loss(belief, _LARGEST) * (1 + ACCURACY) <= epsilon:
        return max(_LARGEST, carried)
    found = above
    for form in dict.fromkeys((pairs, tuple((_curve(ahead), _curve(back)) for ahead, back in pairs))):
        found = max(found, _certified_density(belief, form, epsilon, above=found))
    if max(found, carried) > above:
        return max(found, carried)
    raise NotContracting(
        f"no certificate was found for epsilon {epsilon:g}: the chain mixes too slowly, or what a slot may lose is too "
        "near to 0 for double precision; merge states, smooth the counts, use a larger epsilon, or group privacy"
    )


def _certified_density(belief: Belief, pairs: Iterable[Pair], epsilon: float, *, above: float) -> float:
    """A density of the grid, at or a little below the calibrated one, that is proven to lose at most epsilon.

    0 where none is found above the given one.
    """
    try:
        density = _down(min(calibrated(pair, epsilon).density for pair in pairs))
    except NotContracting:
        return 0.0
    for turn in range(_MOST_TURNS):
        if density <= above:
            break
        # a worker with another processor must not find more than epsilon
        if _certified_loss(belief, density) * (1 + ACCURACY) <= epsilon:
            return density
        density = _down(density * (1 - 2.0 ** (turn - _DIGITS - 1)))
    return 0.0


def _carried_density(belief: Belief, epsilon: float) -> float:
    """The largest density of the grid for which the certificates that a belief carries prove epsilon; 0 for none.

    They are stored, so every processor has the same numbers.
    """
    density = _down(max(0.0, min((one.density_for(epsilon) for one in belief.certificates), default=0.0)))
    while density > 0 and max(one.loss for one in _carried(belief, density)) > epsilon:
        density = _down(density * (1 - 2.0 ** -(_DIGITS + 1)))
    return density


@lru_cache(maxsize=64)
def _pairs(belief: Belief) -> tuple[Pair, ...]:
    """The directions of every member, for kernels of many states those of a larger class; () where there are none."""
    if belief.states == 1:  # nothing is secret
        return ()
    try:
        return tuple((_cheap(forward), _cheap(backward)) for forward, backward in directions_of(everywhere(belief)))
    except (ChainError, NotContracting):
        return ()


def _cheap(direction: Direction) -> Direction:
    few = not isinstance(direction, ByCouplings) or direction.shape[-1] <= _EXACT_STATES
    return direction if few else _curve(direction)


@lru_cache(maxsize=256)
def _curve(direction: Direction) -> Direction:
    """The total variations of products of the kernels of a direction; another direction as it is."""
    return direction.curve if isinstance(direction, ByCouplings) else direction


#: A matrix with couplings that prove it; None where a closed form does, or where they are to be found anew.
_Proven: TypeAlias = tuple[FloatArray, Couplings | None]


def proven_matrix(direction: Direction, density: float) -> _Proven:
    """A matrix that is a certificate at a density.

    Raises:
        NotContracting: None was found.
    """
    if isinstance(direction, OneNumber):
        value = direction.value(density * (1 + _EXCESS[0]))
        if not math.isfinite(value):
            raise NotContracting(f"the class has no bound at density {density:g}: use a smaller one")
        return np.asarray(value), None
    found = _linearised(direction, density)
    if found is None and isinstance(direction, Kernel):
        return _descended(direction, density)
    if found is None:
        raise NotContracting(f"no couplings prove a matrix at density {density:g}: use a smaller one")
    return found


@lru_cache(maxsize=256)
def _first_order(direction: Direction) -> FloatArray | None:
    try:
        return direction.first_order
    except NotContracting:
        return None


def _linearised(direction: Direction, density: float) -> _Proven | None:
    """By linearising the map again and again, which may oscillate at a large density; None then.

    The couplings of the last system prove most matrices near it; only where they do not are others sought.
    """
    matrix = _first_order(direction)
    if matrix is None:
        return None
    matrix = matrix * density
    try:
        for turn in range(_MOST_ROUNDS):
            if not matrix.max() < _MOST_LOSS:
                return None
            line = direction.approach(matrix, _TOLERANCES[min(turn, len(_TOLERANCES) - 1)])
            before, matrix = matrix, line.at(density)[0]
            if turn + 1 >= len(_TOLERANCES) and np.abs(matrix - before).max() <= _SETTLED * matrix.max():
                break
        else:
            return None
        for excess in _EXCESS:
            raised = line.at(density * (1 + excess))[0]
            for proof in (line.couplings, None):
                if direction.density_of(raised, proof) >= density:
                    return raised, proof
    except NotContracting:
        pass
    return None


def _descended(direction: Kernel, density: float) -> _Proven:
    """From a certificate down, so that every matrix on the way is one: the couplings of one lead to a smaller one.

    Raises:
        NotContracting: There is no certificate to begin with.
    """
    matrix = _certificate_above(direction, density)
    proof = direction.couple(matrix)[0]
    aim = density * (1 + _EXCESS[1])
    best: _Proven | None = None
    for _ in range(_MOST_ROUNDS):
        before, matrix = matrix, direction.under_couplings(matrix, aim, proof)
        proof = direction.couple(matrix)[0]
        if direction.density_of(matrix, proof) >= density:
            best = matrix, proof
        if np.abs(matrix - before).max() <= _SETTLED * matrix.max():
            break
    if best is None:
        raise NotContracting(f"no couplings prove a matrix at density {density:g}: use a smaller one")
    return best


def _certificate_above(direction: Kernel, density: float) -> FloatArray:
    """A certificate at a density, or at a larger one, that may be far from the least."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(direction.transition[:, None] / direction.transition[None])
    influence = np.nanmax(ratios, axis=2)
    if influence.max() <= 30 * _LARGEST:
        # L is at most the largest ratio of the two rows
        matrix = influence + density * (1 + _EXCESS[-1])
        np.fill_diagonal(matrix, 0.0)
        return matrix
    for turn in range(_MOST_TRIES):
        if density >= _LARGEST:
            break
        # from a density of no use, 1e-33 say, up to the largest in a few tries
        density *= 1.25 ** max(1, 2 ** (turn - _SLOW_TRIES))
        found = _linearised(direction, density)
        if found is not None:
            return found[0]
    raise NotContracting("no certificate was found to begin with: smooth the counts")


def certified(belief: Belief, epsilon: float = 1.0) -> Certified:
    """A belief with certificates of an endless stream that loses at most epsilon, by the exact map of each direction.

    The noise is then that of the exact map for any number of states, and so is the account, for this epsilon and every
    smaller one less the difference. Couplings that prove it are kept, too, so that a check need not find them.

    Raises:
        ChainError: The belief has a fixed start, or does not mix.
        NotContracting: No density above 0 has a bound.
    """
    epsilon = accepted_loss(epsilon)
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
