"""The loss of an endless stream by the forward-backward account, with its certificate and the least that is possible.

Every release covers slots with a density, its loss per slot; d is their sum, the same in every slot of the stream. With
F and B the matrices of the two directions of time (:mod:`.directions`), the releases together are at most e^loss times
as likely under x as under x' at any slot, where

    loss = max over x != x' of F[x,x'] + B[x,x'] - d.

Proof. Let V_t(past, x) be the expected likelihood of everything published, given the states up to slot t. Changing slot
t alone changes the likelihood of the releases by at most e^d, so V_t(past, x) <= e^{F[x,x']} V_t(past, x') by induction
from the last slot, with G(y) = V_{t+1}(past x', y). The past given X_t = x obeys the same recursion backwards, its own
slot already paid. QED. Only the ratio e^d of one slot is used of the releases, so they may overlap and may be chosen by
what was published before.

>>> from quiltstream.privacy.chains import MarkovChain
>>> chain = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
>>> found = endless(chain, 1.0)
>>> round(1 / found.density, 3), round(lower_bound(chain, 1.0), 3)
(3.024, 3.024)
>>> all(certify(pair, one) for pair, one in zip(directions_of(chain), found.certificates))
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..chains import ChainError, MarkovChain
from ..checks import positive
from ..classes import AnyInitial, BinaryInterval, FiniteClass, MixingBounds, check_belief
from ..models.belief import AnyBelief, Directed
from .couplings import FloatArray
from .directions import STEPS, AnyStart, Kernel, Linear, MixingCurve, NotContracting, Pair

_EPSILON_ADVICE = "give the loss you accept, for example 1.0"

#: Gaps of the couplings, from the first to the last linearisation; the last is repeated.
_TOLERANCES = (1e-4, 1e-7, 1e-9)
_MOST_ROUNDS = 10
_SETTLED = 1e-8
_MOST_TRIES = 100

#: States up to which every vector of the lower bound is tried.
_ALL_VECTORS = 12
_POWER_STEPS = 2_000


@dataclass(frozen=True, eq=False)
class Certificate:
    """Matrices that prove what a constant density costs on an endless stream, and every smaller one at most.

    Attributes:
        density: Loss per slot, the sum over all releases that cover it.
        forward: F, shape (k, k) with zeros on the diagonal, (n, k, k) for a period of n slots, or () for one number.
        backward: B, alike.
    """

    density: float
    forward: FloatArray
    backward: FloatArray

    @property
    def loss(self) -> float:
        """Epsilon that everything together costs at most, rounded up."""
        return math.nextafter(_largest(self.forward + self.backward), math.inf) - math.nextafter(self.density, 0.0)


@dataclass(frozen=True, eq=False)
class Endless:
    """The density that an endless stream may have in every slot.

    Attributes:
        density: Loss per slot; noise of scale ``sensitivity / density`` in every release of one query.
        certificates: One for each member of the belief, at densities that are not below this one.
    """

    density: float
    certificates: tuple[Certificate, ...]


def directions_of(belief: AnyBelief) -> tuple[Pair, ...]:
    """The two directions of every member of a belief.

    Raises:
        ChainError: The belief has a fixed start, which is true at one slot only, or a chain that does not mix.
    """
    if isinstance(belief, Directed):
        return belief.directions()
    check_belief(belief)
    if isinstance(belief, MixingBounds):
        return (_mixing(belief),)
    if isinstance(belief, AnyInitial | BinaryInterval):
        chains = (belief if isinstance(belief, AnyInitial) else belief.worst).chains
        return tuple((Kernel(one.transition, _rounding(one)), AnyStart.of([one.transition])) for one in chains)
    return tuple(_stationary(one) for one in (belief.chains if isinstance(belief, FiniteClass) else (belief,)))


def _rounding(chain: MarkovChain) -> float:
    """Rows sum to 1 within 2**-50."""
    return 2.0**-50 * chain.states


def _stationary(chain: MarkovChain) -> Pair:
    if chain.initial is not None:
        raise ChainError(
            "the chain has a fixed start, which is true at one slot of a stream only: leave initial out for a "
            "stationary chain, or use AnyInitial"
        )
    # the elimination that gives the stationary distribution never subtracts: a relative error of k^3 roundings
    error = 2.0**-50 * chain.states**3
    return Kernel(chain.transition, _rounding(chain)), Kernel(chain.reversal, error)


def _mixing(bounds: MixingBounds) -> Pair:
    """From any start.

    Ahead, the chi-square norm of 1_x/pi(x) - 1_x'/pi(x') is at most sqrt(2/pi_min) and shrinks by rho a slot; half of
    it bounds the total variation. Back, the weights of an unknown start lie within 1/pi_min of the stationary ones.
    """
    rho, rare = bounds.rho, bounds.pi_min
    steps: list[int] = [*STEPS]
    if rho > 0:
        while steps[-1] < 40 / -math.log(rho):
            steps.append(steps[-1] * 5 // 4)

    def curve(factor: float) -> MixingCurve:
        up = 1 + 1e-13
        return MixingCurve(tuple((m, min(1.0, rho**m * factor * up)) for m in steps))

    return curve(1 / math.sqrt(2 * rare)), curve(1 / rare - 1)


def endless(belief: AnyBelief, epsilon: float) -> Endless:
    """The largest density whose endless stream loses at most epsilon, up to a relative 1e-6.

    Args:
        belief: What is believed about a series; a finite class holds for series that follow different members.
        epsilon: Target, finite and above 0.

    Raises:
        ChainError: The belief has a fixed start.
        NotContracting: No density above 0 has a bound.
        ValueError: Epsilon is not finite and above 0.
    """
    epsilon = positive("epsilon", epsilon, _EPSILON_ADVICE)
    found = tuple(calibrated(pair, epsilon) for pair in directions_of(belief))
    return Endless(min(one.density for one in found), found)


def certify(pair: Pair, certificate: Certificate) -> bool:
    """Whether a certificate holds for a belief's member: only this is believed of what was computed or read."""
    if not certificate.density > 0:
        return False
    for direction, matrix in zip(pair, (certificate.forward, certificate.backward), strict=True):
        if matrix.shape != direction.shape or not (np.isfinite(matrix).all() and (matrix >= 0).all()):
            return False
        if matrix.ndim and np.diagonal(matrix, axis1=-2, axis2=-1).any():
            return False
        if direction.density_of(matrix) < certificate.density:
            return False
    return True


def calibrated(pair: Pair, epsilon: float) -> Certificate:
    """The largest density of one member, with its certificate, up to a relative 1e-6.

    Linearise both directions, solve for the density, and again; believe the check of the last matrices alone.

    Raises:
        NotContracting: No density above 0 has a bound.
    """
    orders = [direction.first_order for direction in pair]
    if not all(np.isfinite(order).all() for order in orders):
        raise NotContracting(
            "the class has no bound at any density: its chains need not forget where they were; use a class that mixes "
            "faster, or group privacy"
        )
    density = epsilon / (_largest(orders[0] + orders[1]) - 1.0)
    matrices = [order * density for order in orders]
    lines: list[Linear] = []
    for turn in range(_MOST_ROUNDS):
        tolerance = _TOLERANCES[min(turn, len(_TOLERANCES) - 1)]
        lines = [direction.approach(matrix, tolerance) for direction, matrix in zip(pair, matrices, strict=True)]
        before, density = density, _root(lines, epsilon, density)
        matrices = [line.at(density)[0] for line in lines]
        if turn + 1 >= len(_TOLERANCES) and abs(density - before) <= _SETTLED * density:
            break
    aim = epsilon
    for _ in range(_MOST_ROUNDS):
        certified = min(direction.density_of(matrix) for direction, matrix in zip(pair, matrices, strict=True))
        if certified > 0:
            made = Certificate(certified, matrices[0], matrices[1])
            if made.loss <= epsilon:
                return made
        else:
            made = Certificate(density, matrices[0], matrices[1])
        aim *= min(epsilon / made.loss, 1.0) * (1 - 1e-9)
        density = _root(lines, aim, density)
        matrices = [line.at(density)[0] for line in lines]
    raise NotContracting(
        f"no density was found whose loss is provably at most {epsilon:g}: the chain mixes too slowly: merge states, "
        "smooth the counts, or use group privacy"
    )


def _largest(total: FloatArray) -> float:
    return float(_between_states(total).max())


def _between_states(total: FloatArray) -> FloatArray:
    """A matrix with -inf on its diagonals; one number as it is."""
    found = np.array(total)
    if found.ndim:
        diagonal = np.arange(found.shape[-1])
        found[..., diagonal, diagonal] = -np.inf
    return found


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


def lower_bound(chain: MarkovChain, epsilon: float) -> float:
    """A sigma below which an endless stream of raw counts, one a slot with Laplace noise, loses more than epsilon.

    For v in {0,1}^k, not constant, some outputs have the likelihood e^{d v} in every slot. Over a long stream the
    chance of them given X_t = x grows as r(x) ahead and l(x) back, the right Perron vectors of P diag(e^{d v}) and
    P* diag(e^{d v}), so the loss is at least the range of d v + log r + log l over the states. All v are tried up to 12
    states; beyond, those that are thresholds of the order of the states, and what flips of single states make better.

    Args:
        chain: Stationary and irreducible.
        epsilon: Target, finite and above 0.

    Returns:
        sigma; the limit that no calibration of Laplace noise can pass, as far as these outputs show it.
    """
    epsilon = positive("epsilon", epsilon, _EPSILON_ADVICE)
    vectors = _vectors(chain, epsilon)
    high = epsilon
    while _least_loss(chain, vectors, high).max() < epsilon:
        high *= 2
    low = 0.0
    best = vectors
    for _ in range(60):
        middle = (low + high) / 2
        losses = _least_loss(chain, best, middle)
        if losses.max() >= epsilon:
            # a vector that is above at a smaller density can only lower the density further
            high, best = middle, best[losses >= epsilon]
        else:
            low = middle
    return 1 / high


def _vectors(chain: MarkovChain, epsilon: float) -> FloatArray:
    k = chain.states
    if k <= _ALL_VECTORS:
        return np.array(list(itertools.product((0.0, 1.0), repeat=k))[1:-1])
    states = np.arange(k)
    thresholds = (states[None] >= states[1:, None]).astype(float)
    found = np.concatenate([thresholds, 1 - thresholds])
    density = epsilon
    for _ in range(3 * k):
        losses = _least_loss(chain, found, density)
        best = found[losses.argmax()]
        flips = np.abs(best[None] - np.eye(k))
        flips = flips[(flips.sum(axis=1) > 0) & (flips.sum(axis=1) < k)]
        tried = _least_loss(chain, flips, density)
        if tried.max() <= losses.max():
            break
        found = np.concatenate([found, flips[[tried.argmax()]]])
    return found


def _least_loss(chain: MarkovChain, vectors: FloatArray, density: float) -> FloatArray:
    """The loss that each vector shows at a density, shape (number of vectors,)."""
    weights = np.exp(density * vectors)
    logs = density * vectors
    for kernel in (chain.transition, chain.reversal):
        logs = logs + np.log(_perron(kernel, weights))
    return logs.max(axis=1) - logs.min(axis=1)


def _perron(kernel: FloatArray, weights: FloatArray) -> FloatArray:
    """Right Perron vectors of kernel diag(w) for each row w, by squaring the matrix; shape of the weights."""
    matrices = kernel[None] * weights[:, None, :]
    for _ in range(40):
        matrices = matrices @ matrices
        matrices /= matrices.sum(axis=(1, 2), keepdims=True)
    vectors = matrices.sum(axis=2)
    return vectors / vectors.max(axis=1, keepdims=True)
