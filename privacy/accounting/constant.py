"""What releases cost whose density no slot exceeds: one number of the belief and of the largest density.

F >= d + L(P; F) is monotone in the density, so the certificate of an endless stream at density D
(:mod:`.forward_backward`) covers every schedule that has at most D in every slot: any windows in any overlap and order,
for any horizon, later ones chosen by what was published before. Slots without releases are covered, too. A chain with a
fixed start is one of those with any start. Of a finite class every series may follow another member; F and B are of the
same.

*One float for each state of an account.* Densities are rounded up to 13 binary digits, by at most 1 in 4096, and a
number is computed for the rounded one alone. So the same releases in any order, and a sum of densities that stays below
one that was calibrated, have the same float; between neighbours on the grid the loss rises by far more than rounding,
so it never falls as the density rises.

*What is believed.* A matrix is used once :meth:`.Direction.density_of` has found couplings that prove it at the rounded
density. Kernels with more than 12 states are replaced by the total variation of their powers, a larger class, because
the exact map takes seconds there and a charge must not wait for it; `endless` calibrates those exactly.

>>> from quiltstream.privacy.classes import MixingBounds
>>> bounds = MixingBounds(pi_min=0.2, gap=0.75)
>>> density = grid_density(bounds, epsilon=1.0)
>>> round(1 / density, 3), 0.9995 < constant_loss(bounds, density) <= 1.0
(12.962, True)
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..chains import ChainError, MarkovChain
from ..checks import float_above, positive
from ..classes import AnyInitial, Belief, FiniteClass, starts_stationary
from ..models.belief import Directed
from .couplings import FloatArray
from .directions import STEPS, Direction, Kernel, MixingCurve, NotContracting, OneNumber, Pair
from .forward_backward import Certificate, calibrated, certify, directions_of, endless

#: Binary digits of a density on the grid.
_DIGITS = 13

#: States up to which the map is computed exactly for a charge.
_EXACT_STATES = 12

#: A density above which no number is computed: there a slot alone has lost more than any budget.
_LARGEST = 3.0

#: A loss between two states above which their ratio is not followed; far above any budget.
_MOST_LOSS = 100.0

_TOLERANCES = (1e-4, 1e-7, 1e-9)
_MOST_ROUNDS = 10
_SETTLED = 1e-8

#: By how much the matrix is raised, as a share of the density, until couplings prove it.
_EXCESS = (3e-8, 1e-6, 2e-5)

#: What powers of a kernel may be off by, and the reversal of a chain of some hundred states.
_POWER_ERROR = 1e-9


#: What a loss may differ by, as a share, where another processor computes it: its couplings end in other digits, and
#: may need the next larger excess.
ACCURACY = 1e-4


def on_grid(density: Fraction) -> float:
    """The least density of the grid that is not below an exact one."""
    digits, exponent = math.frexp(float_above(density))
    return math.ldexp(math.ceil(digits * 2**_DIGITS), exponent - _DIGITS)


def _down(density: float) -> float:
    """The largest density of the grid that is not above a given one."""
    digits, exponent = math.frexp(density)
    return math.ldexp(math.floor(digits * 2**_DIGITS), exponent - _DIGITS)


@lru_cache(maxsize=4096)
def constant_loss(belief: Belief | Directed, density: float) -> float:
    """Epsilon that releases cost at most whose density is nowhere above this one, rounded up.

    Args:
        belief: What is believed about a series; with a fixed start, for every start.
        density: Largest loss per slot, on the grid.

    Returns:
        Epsilon; infinite where no bound was found.
    """
    if density <= 0:
        return 0.0
    return max((one.loss for one in certificates_at(belief, density)), default=math.inf)


@lru_cache(maxsize=256)
def certificates_at(belief: Belief | Directed, density: float) -> tuple[Certificate, ...]:
    """Certificates of all members that cover a density, each checked; () where one of them was not found."""
    found: list[Certificate] = []
    for pair in _pairs(belief) if density <= _LARGEST else ():
        try:
            forward, backward = (_matrix(direction, density) for direction in pair)
        except NotContracting:
            return ()
        made = Certificate(density, forward, backward)
        if not certify(pair, made):
            return ()
        found.append(made)
    return tuple(found)


def grid_density(belief: Belief | Directed, epsilon: float) -> float:
    """A density of the grid whose endless stream loses at most epsilon; no other is larger by more than 1 in 2000.

    Raises:
        ChainError: The belief is a chain that does not mix.
        NotContracting: No density above 0 has a bound.
        ValueError: Epsilon is not finite and above 0.
    """
    pairs = _pairs(belief)
    if not pairs:
        # the reason
        return endless(everywhere(belief), epsilon).density
    epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
    density = _down(min(calibrated(pair, epsilon).density for pair in pairs))
    # a worker with another processor must not find more than epsilon
    while constant_loss(belief, density) * (1 + ACCURACY) > epsilon:
        density = _down(density * (1 - 2.0 ** -(_DIGITS + 1)))
    return density


@lru_cache(maxsize=64)
def _pairs(belief: Belief | Directed) -> tuple[Pair, ...]:
    """The directions of every member, for kernels of many states those of a larger class; () where there are none."""
    if getattr(belief, "states", 2) < 2:  # noqa: PLR2004 - with one state nothing is secret
        return ()
    try:
        return tuple((_cheap(forward), _cheap(backward)) for forward, backward in directions_of(everywhere(belief)))
    except (ChainError, NotContracting):
        return ()


def everywhere(belief: Belief | Directed) -> Belief | Directed:
    """The belief, with a start that is true in every slot."""
    if isinstance(belief, MarkovChain | FiniteClass) and not starts_stationary(belief):
        members = (belief,) if isinstance(belief, MarkovChain) else belief.chains
        return AnyInitial([chain.transition for chain in members])
    return belief


def _cheap(direction: Direction) -> Direction:
    if not isinstance(direction, Kernel) or len(direction.transition) <= _EXACT_STATES:
        return direction
    curve: list[tuple[int, float]] = []
    for steps in STEPS:
        power = np.linalg.matrix_power(direction.transition, steps)
        distance = max(float(np.abs(power - row).sum(axis=1).max()) for row in power) / 2
        curve.append((steps, min(1.0, distance + _POWER_ERROR)))
    return MixingCurve(tuple(curve))


def _matrix(direction: Direction, density: float) -> FloatArray:
    """A matrix that is a certificate at a density.

    Raises:
        NotContracting: None was found.
    """
    if isinstance(direction, OneNumber):
        value = direction.value(density * (1 + _EXCESS[0]))
        if not math.isfinite(value):
            raise NotContracting(f"the class has no bound at density {density:g}: use a smaller one")
        return np.asarray(value)
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


def _linearised(direction: Direction, density: float) -> FloatArray | None:
    """By linearising the map again and again, which may oscillate at a large density; None then."""
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
            if direction.density_of(raised) >= density:
                return raised
    except NotContracting:
        pass
    return None


def _descended(direction: Kernel, density: float) -> FloatArray:
    """From a certificate down, so that every matrix on the way is one: the couplings of one lead to a smaller one.

    Raises:
        NotContracting: There is no certificate to begin with.
    """
    matrix = _certificate_above(direction, density)
    aim = density * (1 + _EXCESS[1])
    best: FloatArray | None = None
    for _ in range(_MOST_ROUNDS):
        before, matrix = matrix, direction.under_couplings(matrix, aim)
        if direction.density_of(matrix) >= density:
            best = matrix
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
    while density < _LARGEST:
        density *= 1.25
        found = _linearised(direction, density)
        if found is not None:
            return found
    raise NotContracting("no certificate was found to begin with: smooth the counts")
