"""The forward-backward account at a constant density: an endless stream, any schedule below it, an event, the noise.

Every release covers slots with a density, its loss per slot; d is their sum, the same in every slot of the stream. With
F and B the matrices of the two directions of time (``models.directions``), the releases together are at most e^loss
times as likely under x as under x' at any slot, where

    loss = max over x != x' of F[x,x'] + B[x,x'] - d.

``docs/mathematics.md`` has the proof, for the densities and kernels of each slot. Only the ratio e^d of one slot
is used of the releases, so they may overlap and may be chosen by what was published before.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
>>> found = endless(chain, 1.0)
>>> round(1 / found.density, 3), round(lower_bound(chain, 1.0), 3)
(3.024, 3.024)
>>> all(certify(pair, one) for pair, one in zip(directions_of(chain), found.certificates))
True

*Any schedule below a density.* F >= d + L(P; F) is monotone in the density, so the certificate of an endless stream at
density D covers every schedule that has at most D in every slot: any windows in any overlap and order, for any horizon,
later ones chosen by what was published before. Slots without releases are covered, too. A chain with a fixed start is
one of those with any start. Of a finite class every series may follow another member; F and B are of the same.

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

>>> density = 2.0**-5
>>> round(constant_loss(bounds, density), 4), round(around(bounds, density) + 10 * density, 4)
(0.3805, 0.6618)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.classes import everywhere
from ..models.couplings import SIZES, Couplings
from ..models.directions import (
    ByCouplings,
    Certificate,
    Direction,
    FloatArray,
    Kernel,
    Linear,
    NotContracting,
    OneNumber,
    Pair,
    between_states,
    certify,
    largest_between,
)
from ..models.markov_chain import ChainError, MarkovChain, check_chain
from ..models.serialisation import Certified, Proof, check_belief
from ..quilts.calibration import Calibration, target
from ..quilts.influence import Quilt
from ..validation import accepted_loss, float_above, positive
from .quilt_account import density_by_quilts, quilt_of_stream, quilts_of

#: Gaps of the couplings, from the first to the last linearisation; the last is repeated.
_TOLERANCES = (1e-4, 1e-7, 1e-9)
_MOST_ROUNDS = 10
_SETTLED = 1e-8

#: What couplings at hand may prove less than new ones would, as a share of the density.
_CLOSE = 5e-7

_MOST_TRIES = 100

#: Densities that are tried before the factor from one to the next is squared each time.
_SLOW_TRIES = 8

#: Epsilon above which what other slots add is not followed, so that no exponential underflows.
_MOST_TOLD = 300.0

#: States up to which every vector of the lower bound is tried.
_ALL_VECTORS = 12

#: Pairs of states for which outputs of the lower bound are sought, and attempts without a gain that end the search.
_MOST_OUTPUTS = 150
_FEW_OUTPUTS = 20
_MOST_ATTEMPTS = 2

#: Doublings of the slots of an output.
_LEAST_DOUBLINGS = 4
_MOST_DOUBLINGS = 40

#: Densities above this one are taken as this one, where e^density is followed.
_MOST_DENSITY = 30.0

#: A change, as a share, that is rounding.
_ROUNDING = 1e-13

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

METHOD = "forward-backward"

_QUILTS = "the best quilt of each pair of states, which needs less noise here than the recursion"

#: Sigma is raised by this relative amount, so that 1 / sigma stays on the density that is certified.
_ROOM = 2.0**-40

#: States up to which the lower bound is computed along the way.
_BOUNDED_STATES = 12

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


def lower_bound(chain: MarkovChain, epsilon: float) -> float:
    """A sigma below which an endless stream of raw counts, one a slot with Laplace noise, loses more than epsilon.

    The loss is at least d + log(r(x) / r(x')) + log(l(x) / l(x')) for the chances r and l of any outputs ahead and back
    (``docs/mathematics.md``, with numbers: with two states the account attains it up to epsilon 3). Those tried
    begin with the same v in every slot: all v up to 12 states, thresholds of the order of the states beyond. Then,
    again and again, the outputs of each pair (of the 150 that lose most) become the best next v with the outputs of any
    pair after it; a ratio of sums is largest for a threshold of P(x, .) / P(x', .), so only these are tried. So outputs
    may alternate, in any period.

    A window of several slots has the same v in all of them, so for such windows alone less noise may do:
    :func:`least_loss` is about these.

    Args:
        chain: Stationary and irreducible.
        epsilon: Target, finite and at least 2^-46.

    Returns:
        sigma; the limit that no calibration by independent Laplace noise that holds for every choice of windows can
        pass, as far as these outputs show it.
    """
    epsilon = accepted_loss(epsilon)
    check_chain("chain", chain)
    density = epsilon  # what the slot itself tells
    if epsilon > _MOST_TOLD:
        return 1 / density
    # all vectors, and outputs for most pairs, only once fewer have settled, because they take longer
    for vectors, pairs in ((_thresholds(chain.states), _FEW_OUTPUTS), (_constant_vectors(chain.states), _MOST_OUTPUTS)):
        for _ in range(_MOST_ROUNDS):
            before, density = density, _worst_case(chain, density, vectors, pairs).density_of(epsilon, density)
            if density >= before * (1 - _SETTLED):
                break
    return 1 / density


@dataclass(frozen=True, eq=False)
class _Outputs:
    """Sequences of outputs in one direction of time, each a v for the next slot and then another of the sequences."""

    kernel: FloatArray  # that of the direction, shape (k, k)
    vectors: FloatArray  # v for the next slot, shape (n, k)
    after: npt.NDArray[np.intp]  # which sequence follows it, shape (n,)

    @classmethod
    def constant(cls, kernel: FloatArray, vectors: FloatArray) -> _Outputs:
        """The same v in every slot, for each of the vectors."""
        return cls(kernel, vectors, np.arange(len(vectors)))

    def logs(self, density: float) -> FloatArray:
        """The logarithm of r for each sequence, its largest entry 0, shape (n, k).

        The product over 2m slots is that over m slots times that of the m slots after, and each doubling squares what
        is left of the other eigenvectors, so the last one that changes anything is the last. Rows of a product are
        divided by their sums, which are r.
        """
        after = self.after
        products = self.kernel[None] * np.exp(density * (self.vectors - 1))[:, None, :]
        logs = np.zeros(self.vectors.shape)
        for turn in range(_MOST_DOUBLINGS):
            if turn:
                products = (products * np.exp(logs)[after, None, :]) @ products[after]
                after = after[after]
            sums = products.sum(axis=2)
            products /= sums[:, :, None]
            before, logs = logs, logs + np.log(sums)
            logs = np.maximum(logs - logs.max(axis=1, keepdims=True), -_MOST_TOLD)
            # outputs that differ from slot to slot may tell nothing in the first ones
            if turn >= _LEAST_DOUBLINGS and np.abs(logs - before).max() <= _ROUNDING:
                break
        return logs

    def improved(self, pairs: tuple[npt.NDArray[np.intp], ...], logs: FloatArray, density: float) -> _Outputs:
        """For each pair of states, one for each sequence, the best next v and the best of the sequences after it."""
        rows, n = np.arange(len(logs)), len(logs)
        p, q = (self.kernel[states] for states in pairs)
        with np.errstate(divide="ignore", invalid="ignore"):
            ranks = np.argsort(np.argsort(-np.where(p > 0, p / q, -1.0), axis=1, kind="stable"), axis=1)
        vectors = (ranks[:, None, :] < np.arange(1, p.shape[1])[:, None]).astype(float)
        weights = np.exp(density * (vectors - 1))
        chances = np.exp(np.ascontiguousarray(logs.T))
        given, other = ((weights * row[:, None, :]).reshape(-1, p.shape[1]) @ chances for row in (p, q))
        told = (given / other).reshape(n, -1)
        best = told.argmax(axis=1)
        which, after = np.divmod(best, n)
        better = np.log(told[rows, best]) > logs[rows, pairs[0]] - logs[rows, pairs[1]] + _SETTLED * density
        return replace(
            self,
            vectors=np.where(better[:, None], vectors[rows, which], self.vectors),
            after=np.where(better, after, self.after),
        )

    def only(self, sequence: int) -> _Outputs:
        """One sequence, with those that follow it."""
        kept = [sequence]
        while (following := int(self.after[kept[-1]])) not in kept:
            kept.append(following)
        after = [*range(1, len(kept)), kept.index(following)]
        return replace(self, vectors=self.vectors[kept], after=np.array(after))


@dataclass(frozen=True)
class _WorstCase:
    """Outputs ahead and back, the first sequence of each, and the two states that they tell apart."""

    sides: tuple[_Outputs, ...]
    given: int
    other: int

    def loss(self, density: float) -> float:
        """What the outputs tell, with the slot itself, less what rounding may add."""
        logs = (side.logs(density)[0] for side in self.sides)
        return density + sum(float(one[self.given] - one[self.other]) for one in logs) - _ROUNDING

    def density_of(self, epsilon: float, high: float) -> float:
        """The density at which they tell epsilon, rounded up; at most one at which they tell more."""
        low = 0.0
        while high - low > _SETTLED * high / 16:
            middle = (low + high) / 2
            low, high = (low, middle) if self.loss(middle) >= epsilon else (middle, high)
        return high


def _worst_case(chain: MarkovChain, density: float, vectors: FloatArray, most: int) -> _WorstCase:
    """The outputs found that tell most at a density, for so many pairs; first each has one vector in every slot."""
    first, second = np.nonzero(~np.eye(chain.states, dtype=bool))
    sides = tuple(_Outputs.constant(kernel, vectors) for kernel in (chain.transition, chain.reversal))
    ahead, back = (logs[:, first] - logs[:, second] for logs in (side.logs(density) for side in sides))
    kept = np.argsort(-(ahead.max(axis=0) + back.max(axis=0)), kind="stable")[:most]
    pairs = first[kept], second[kept]
    sides = tuple(
        _Outputs.constant(side.kernel, vectors[told[:, kept].argmax(axis=0)])
        for side, told in zip(sides, (ahead, back), strict=True)
    )
    found, best, attempts = None, -math.inf, 0
    while found is None or attempts < _MOST_ATTEMPTS:
        both = [side.logs(density) for side in sides]
        ahead, back = (logs[:, first] - logs[:, second] for logs in both)
        total = ahead.max(axis=0) + back.max(axis=0)
        pair = int(total.argmax())
        attempts += 1
        if total[pair] > best + _SETTLED * density:
            best, attempts = float(total[pair]), 0
            worst = tuple(
                side.only(int(told[:, pair].argmax())) for side, told in zip(sides, (ahead, back), strict=True)
            )
            found = _WorstCase(worst, int(first[pair]), int(second[pair]))
        sides = tuple(side.improved(pairs, logs, density) for side, logs in zip(sides, both, strict=True))
    return found


def least_loss(chain: MarkovChain, density: float) -> float:
    """Epsilon that an endless stream of raw counts in adjoining windows of any length loses at least.

    The outputs are those of :func:`lower_bound` with one v in every slot, so the loss is at least the range over the
    states of d v + log r + log l; the largest over v in {0,1}^k, beyond 12 states over thresholds of the order of the
    states. Independent Laplace noise of a larger scale is that of a smaller one with more noise added, so what is lost
    does not fall with the density: a density above 30 is taken as 30.

    Args:
        chain: Stationary and irreducible.
        density: Loss per slot of the releases, finite and above 0.
    """
    check_chain("chain", chain)
    density = min(positive("density", density, "give the loss per slot of the releases"), _MOST_DENSITY)
    vectors = _constant_vectors(chain.states)
    logs = density * vectors
    for kernel in (chain.transition, chain.reversal):
        logs = logs + _Outputs.constant(kernel, vectors).logs(density)
    return float((logs.max(axis=1) - logs.min(axis=1)).max())


def _constant_vectors(states: int) -> FloatArray:
    """All v that are not constant over the states; beyond 12 states the thresholds of their order."""
    if states > _ALL_VECTORS:
        return _thresholds(states)
    return np.array(list(itertools.product((0.0, 1.0), repeat=states))[1:-1])


def _thresholds(states: int) -> FloatArray:
    places = np.arange(states)
    found = (places[None] >= places[1:, None]).astype(float)
    return np.concatenate([found, 1 - found])


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

    By certificates, and above 1 by quilts where they prove less. A fixed start is priced for every start. Infinite
    where no bound was found.
    """
    if density <= 0:
        return 0.0
    loss = _certified_loss(belief, on_grid(Fraction(density)))
    # quilts decide no account whose loss is small
    return loss if loss <= 1 else min(loss, max(1.0, quilts_of(belief).ceiling(density)))


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


@lru_cache(maxsize=4096)
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
    check_belief(belief)
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
