"""What a habit tells: the loss against someone who does not know which chain a series follows, or the kind of a day.

The account of a belief bounds, for one chain of the belief, by how much everything published changes the odds of one
slot. Someone who does not know the chain believes a mixture of chains, and a mixture of Markov chains is no Markov
chain: from many slots the habit shows, and the habit tells about the one.

*Lemma.* Let R be anything hidden (which chain, season, holiday, kind of day), of any law and any memory, and let X
given R = r be in a belief whose account is eps. Let h be the likelihood of everything published and p_x(r) the
probability of R = r given X_t = x. Then

    E[h | X_t = x] <= e^(eps + Lambda) E[h | X_t = x'],    Lambda = max over r, x, x' of log(p_x(r) / p_x'(r)).

Proof. E[h | x] = sum_r p_x(r) E[h | x, r]. Given R = r the account holds, so E[h | x, r] <= e^eps E[h | x', r]; and
p_x(r) <= e^Lambda p_x'(r). So the sum is at most e^(eps + Lambda) sum_r p_x'(r) E[h | x', r] = e^(eps + Lambda)
E[h | x']. QED. The proof is pointwise in h: windows may overlap and be chosen by what was published, for any horizon.
If X_t is independent of R given the kind Z_t of its own day, the law of R given Z_t is the same under x and x', and
Lambda is that of Z_t alone. The class Theta of [SWC17] is a list of laws, and the promise is for each law of the list;
that mixtures are not among them is theirs, the lemma is ours.

*Sharper.* With D[r, r'] >= log(E[h | x', r] / E[h | x', r']) the weights E[h | x', r] obey the ratio bounds of D, so
the loss is at most eps + L(p_x, p_x'; D) <= eps + Lambda, with the map L of the account (:mod:`..models.couplings`).

*A finite life.* With d the density of a slot, (R, X_t) is a chain whose second part is the secret, and the releases
tell of that part alone. So the recursion of the account holds with d charged only where the second parts differ,

    A_t[(r,x), (r',x')] = d [x != x'] + L(row x of P_r, row x' of P_r'; A_(t+1)),   A = 0 after the last slot,

and B_t in the same way back in time, by the reversals. With C = A_t + B_t - d [x != x'] the loss at slot t is at most
L(p_x, p_x'; C), the largest over t that of all T slots; and it is at most T d, by group privacy. The proof is that of
``docs/mathematics.md`` with (r, x) in the place of x: what is changed in h is the second part of one slot.

>>> members = [MarkovChain([[0.9, 0.1], [0.9, 0.1]]), MarkovChain([[0.1, 0.9], [0.1, 0.9]])]
>>> told = habit_loss(members)
>>> round(0.05 + told.most, 4), [round(least_mixture_loss(members, 0.05, slots), 3) for slots in (48, 200, 2000)]
(2.2472, [1.4, 2.244, 2.247])

Nothing here is a bound for a history that was looked at: chains and weights are what someone believes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from ..models.belief import ChainError
from ..models.couplings import Couplings, FloatArray, couple, load_bound
from ..models.markov_chain import MarkovChain
from ..models.periodic import PeriodicChain
from ..validation import as_list, instance, numbers, positive, whole

#: The promise, and what it leaves open, for a slot of a series and its habits.
PROMISE = (
    "to someone who already knows a series' habits (its chain, and what kind of day it was), everything published "
    "changes the odds of what it did in one slot by at most e^epsilon"
)
HABITS = (
    "habits are not hidden: who does not know them can learn them from the release, and knowing a habit can add at "
    "most Lambda to epsilon (quiltstream fit prints it)"
)

#: Outward rounding of one step of the recursion.
_OUTWARD = 1e-13


@dataclass(frozen=True, eq=False)
class HabitLoss:
    """What a hidden habit tells about the state of one slot.

    Attributes:
        shares: P(R = r | X_t = x) of each slot of the common period, shape (slots, habits, k).
        table: The largest log(p_x(r) / p_x'(r)) over slots and r, by x and x', shape (k, k).
    """

    shares: FloatArray
    table: FloatArray

    @property
    def most(self) -> float:
        """Lambda: the largest over all pairs of states."""
        return float(self.table.max())

    @property
    def pair(self) -> tuple[int, int]:
        """The two states between which a habit tells most, ascending."""
        first, second = np.unravel_index(int(self.table.argmax()), self.table.shape)
        return min(int(first), int(second)), max(int(first), int(second))

    @property
    def neighbours(self) -> tuple[float, ...]:
        """Lambda between each state and the next, by the lower state."""
        both = np.maximum(self.table, self.table.T)
        return tuple(float(both[x, x + 1]) for x in range(len(both) - 1))

    def sharper(self, divergence: FloatArray) -> float:
        """The largest L(p_x, p_x'; D) over slots and pairs of states, at most Lambda.

        Args:
            divergence: D[r, r'], at least 0 with a diagonal of zeros, for one x' or of shape (k, habits, habits) by x';
                the largest log(E[h | x', r] / E[h | x', r']) that the releases allow.
        """
        k, habits = self.shares.shape[2], self.shares.shape[1]
        given = np.broadcast_to(numbers("divergence", divergence), (k, habits, habits))
        if not given.max() <= 40:  # a likelihood may single one habit out as far as matters
            return self.most
        ratios = np.exp(given)
        x, other = np.nonzero(~np.eye(k, dtype=bool))
        found = 0.0
        for shares in self.shares:
            p, q = shares[:, x].T, shares[:, other].T
            theta = load_bound(p, q, ratios[other], Couplings.of(couple(p, q, ratios[other]).mass))
            found = max(found, float(np.minimum(np.log(theta), self.table[x, other]).max(initial=0.0)))
        return found


def habit_loss(chains: Sequence[PeriodicChain], weights: npt.ArrayLike | None = None) -> HabitLoss:
    """What is told by which of some chains a series follows.

    Args:
        chains: Of the same states, each in its steady state; a chain with a kernel for every slot of a period stands
            for a habit with seasons or kinds of days, whose calendar is the hidden thing.
        weights: How likely each chain is held before anything is published, sum 1; alike where left out.

    Raises:
        ChainError: A chain has a fixed start, or other states than the first; the weights do not add to 1.
    """
    members, held = _members(chains, weights)
    laws = [one.marginals for one in members]
    period = math.lcm(*map(len, laws))
    joint = np.stack(
        [weight * np.tile(law, (period // len(law), 1)) for weight, law in zip(held, laws, strict=True)], 1
    )
    total = joint.sum(axis=1, keepdims=True)
    # a state that no habit visits in a slot is no secret there
    shares = np.divide(joint, total, out=np.zeros_like(joint), where=total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(shares)
        apart = logs[:, :, :, np.newaxis] - logs[:, :, np.newaxis, :]
    possible = (total > 0)[:, :, :, np.newaxis] & (total > 0)[:, :, np.newaxis, :]
    told = np.where((joint[:, :, :, np.newaxis] > 0) & possible, apart, 0.0)
    return HabitLoss(shares, told.max(axis=(0, 1)))


def mixture_loss(
    chains: Sequence[MarkovChain], density: float, slots: int, weights: npt.ArrayLike | None = None
) -> float:
    """A bound on the loss of any releases of a density over some slots, against someone who knows only the mixture.

    Args:
        chains: Stationary, of the same states.
        density: Loss per slot of all releases together, at most this in every slot.
        slots: How many slots are covered, at least 1; nothing else is ever released about the series.
        weights: As for :func:`habit_loss`.

    Returns:
        Epsilon, rounded up; slots times the density where following the recursion would take more than a few minutes.

    Raises:
        ChainError: As for :func:`habit_loss`.
    """
    members, held = _stationary(*_members(chains, weights))
    density = positive("density", density, "give a loss per slot above 0")
    slots = whole("slots", slots, "give how many slots are released", least=1)
    if not _is_followed(members, slots):
        return slots * density
    return _FiniteLife(members, held, slots).loss(density)


def _is_followed(chains: Sequence[MarkovChain], slots: int) -> bool:
    """Whether the recursion of a finite life adds up no more terms than in a few minutes."""
    return 2.0 * slots * len(chains) ** 2 * chains[0].states ** 4 <= 4e9


def least_mixture_loss(
    chains: Sequence[MarkovChain], density: float, slots: int, weights: npt.ArrayLike | None = None
) -> float:
    """What raw counts with Laplace noise, one a slot, may lose of the slot in the middle: a bound from below.

    The outputs are those that favour the states of a set by e^density in every slot; with independent slots given the
    habit (rows that are all alike) none loses more, and the bound is exact.

    Args:
        chains: As for :func:`mixture_loss`.
        density: Likewise.
        slots: Likewise.
        weights: Likewise.

    Raises:
        ChainError: As for :func:`habit_loss`.
    """
    members, held = _stationary(*_members(chains, weights))
    density = positive("density", density, "give a loss per slot above 0")
    slots = whole("slots", slots, "give how many slots are released", least=1)
    k = members[0].states
    if k <= 12:  # else the thresholds
        sets = np.array([one for one in product((0.0, 1.0), repeat=k) if 0 < sum(one) < k])
    else:
        sets = np.vstack([np.tri(k)[:-1], 1 - np.tri(k)[:-1]])
    gains = np.exp(density * sets)
    chances = np.log(held)[:, np.newaxis] + np.log([one.stationary for one in members])
    total = (chances - np.logaddexp.reduce(chances, axis=0))[:, np.newaxis, :]
    for kernels, count in (
        (np.stack([one.transition for one in members]), slots - 1 - slots // 2),
        (np.stack([one.reversal for one in members]), slots // 2),
    ):
        value, log = np.ones((len(members), len(sets), k)), np.zeros((len(members), len(sets), 1))
        for _ in range(count):
            value = (value * gains) @ kernels.transpose(0, 2, 1)
            scale = value.max(axis=2, keepdims=True)
            value, log = value / scale, log + np.log(scale)
        total = total + np.log(value) + log
    found = density * sets + np.logaddexp.reduce(total, axis=0)
    return max(density, float(np.ptp(found, axis=1).max(initial=0.0)))


def lifetime_sigma(
    chains: Sequence[MarkovChain], slots: int, epsilon: float, weights: npt.ArrayLike | None = None
) -> tuple[float, float]:
    """Noise for some slots against someone who knows only the mixture: a proved sigma, and one that is too small.

    Args:
        chains: As for :func:`mixture_loss`.
        slots: Likewise.
        epsilon: Target, above 0.
        weights: Likewise.

    Returns:
        Sigma at which :func:`mixture_loss` is at most epsilon, and one below which raw counts lose more than epsilon.

    Raises:
        ChainError: As for :func:`habit_loss`.
    """
    members, held = _stationary(*_members(chains, weights))
    epsilon = positive("epsilon", epsilon, "give the loss that is accepted, for example 1")
    slots = whole("slots", slots, "give how many slots are released", least=1)
    least = _densities(
        lambda density: least_mixture_loss(members, density, slots, held), epsilon / slots, epsilon, 1e-4
    )
    if not _is_followed(members, slots):
        return slots / epsilon, 1 / least[1]
    proved = _densities(_FiniteLife(members, held, slots).loss, epsilon / slots, epsilon, 0.02)
    return 1 / proved[0], 1 / least[1]


def _densities(loss: Callable[[float], float], low: float, epsilon: float, near: float) -> tuple[float, float]:
    """Two densities, a share apart at most: what is lost at the first is at most epsilon, at the second more."""
    high, below, above = epsilon, loss(low), math.inf
    while high > low * (1 + near):
        # about proportional to the density below, and about linear between two that are known
        share = (epsilon - below) / (above - below)
        guess = low + (high - low) * share if math.isfinite(above) else low * epsilon / below
        guess = min(max(guess, low * (1 + near / 2)), high / (1 + near / 4))
        value = loss(guess)
        if value <= epsilon:
            low, below = guess, value
        else:
            high, above = guess, value
    return low, high


class _FiniteLife:
    """The recursion over some slots, whose couplings are sought once: any coupling proves a bound at any density."""

    def __init__(self, members: Sequence[MarkovChain], held: FloatArray, slots: int) -> None:
        self.slots, self.k = slots, members[0].states
        (self.shares,) = habit_loss(members, held).shares
        self.ahead = _Tails(np.stack([one.transition for one in members]))
        self.back = _Tails(np.stack([one.reversal for one in members]))

    def loss(self, density: float) -> float:
        """The bound at a density, rounded up."""
        ahead, back = (list(side.of(density, self.slots)) for side in (self.ahead, self.back))
        x, other = np.nonzero(~np.eye(self.k, dtype=bool))
        p, q = self.shares[:, x].T, self.shares[:, other].T
        nothing = np.zeros_like(p)
        p, q = np.hstack([p, nothing]), np.hstack([nothing, q])
        middle = self.slots // 2
        couplings, found = None, 0.0
        for slot in sorted(range(self.slots), key=lambda slot: abs(slot - middle)):
            total = ahead[self.slots - 1 - slot] + back[slot] + density
            # by pair of states: what every habit loses against every other
            ratios = _apart(np.exp(total[:, x, :, other]))
            if couplings is None:
                couplings = Couplings.of(couple(p, q, ratios, 1e-4).mass)
            found = max(found, float(np.log(load_bound(p, q, ratios, couplings)).max()))
        return min(self.slots * density, found * (1 + _OUTWARD) + _OUTWARD)


class _Tails:
    """A less the own slot, of a slot with 0, 1, ... slots after it, by (r, x) and (r', x'), shape (n, k, n, k)."""

    def __init__(self, kernels: FloatArray) -> None:
        self.kernels = kernels
        self.shares: dict[int, FloatArray] = {}  # couplings by the step from which on they are used

    def of(self, density: float, slots: int) -> Iterator[FloatArray]:
        """The matrices of so many slots."""
        n, k, _ = self.kernels.shape
        own = density * ~np.eye(k, dtype=bool)[np.newaxis, :, np.newaxis, :]
        tail, top, held, first = np.zeros((n, k, n, k)), 0.0, np.zeros(0), not self.shares
        for step in range(slots):
            yield tail
            matrix = tail + own
            if first and matrix.max() > 1.5 * top:
                top = float(matrix.max())
                self.shares[step] = _shares(self.kernels, np.exp(matrix))
            held = self.shares.get(step, held)
            # over y the sum of gamma(y, z) e^A[(r,y), (r',z)] / q(z), by r, r' and z: a product of matrices
            loads = (held @ np.exp(matrix).transpose(0, 2, 3, 1)[..., np.newaxis])[..., 0].max(axis=2)
            tail = np.log(np.maximum(loads, 1.0)).reshape(n, n, k, k).transpose(0, 2, 1, 3) * (1 + _OUTWARD) + _OUTWARD
            habits, states = np.ogrid[:n, :k]
            tail[habits, states, habits, states] = 0.0


def _shares(kernels: FloatArray, ratios: FloatArray) -> FloatArray:
    """Couplings of all pairs of rows over the columns' chances, by r, r', z, x x' and y, shape (n, n, k, k k, k)."""
    n, k, _ = kernels.shape
    habit, state, other, beside = (one.ravel() for one in np.indices((n, k, n, k)))
    rows, columns = kernels[habit, state], kernels[other, beside]
    nothing = np.zeros_like(rows)
    wide = np.hstack([rows, nothing]), np.hstack([nothing, columns])
    mass = couple(*wide, _apart(ratios[habit, :, other, :]), 1e-5).mass[:, :k, k:]
    sums = mass.sum(axis=2)
    # rows are exact again; one that got nothing is coupled independently
    scaled = mass * np.where(sums > 0, rows / np.where(sums > 0, sums, 1.0), 0.0)[:, :, np.newaxis]
    mass = np.where((sums > 0)[:, :, np.newaxis], scaled, rows[:, :, np.newaxis] * columns[:, np.newaxis, :])
    live = np.broadcast_to(columns[:, np.newaxis, :] > 0, mass.shape)
    over = np.divide(mass, columns[:, np.newaxis, :], out=np.where(mass > 0, np.inf, 0.0), where=live)
    return np.ascontiguousarray(over.reshape(n, k, n, k, k, k).transpose(0, 2, 5, 1, 3, 4).reshape(n, n, k, k * k, k))


def _apart(ratios: FloatArray) -> FloatArray:
    """Ratios between rows of two habits, as between states of their own: nothing is coupled with itself."""
    pairs, k, _ = ratios.shape
    found = np.ones((pairs, 2 * k, 2 * k))
    found[:, :k, k:] = ratios
    return found


def _members(chains: Sequence[PeriodicChain], weights: npt.ArrayLike | None) -> tuple[list[PeriodicChain], FloatArray]:
    members = as_list("chains", chains, "chains: give [chain]")
    if not members:
        raise ChainError("chains is empty: give the chains of the habits")
    for chain in members:
        instance("chains", chain, PeriodicChain)
        if any(one.initial is not None for one in chain.members):
            raise ChainError("chains: a habit is a chain in its steady state, and one has a fixed start: leave it out")
        if chain.states != members[0].states:
            raise ChainError(
                f"chains: one has {chain.states} states and the first {members[0].states}: a habit is about the same "
                "states; give chains of the same states"
            )
    if weights is None:
        return members, np.full(len(members), 1 / len(members))
    held = numbers("weights", weights)
    if held.shape != (len(members),) or not (held > 0).all() or not np.isfinite(held).all():
        raise ChainError(
            f"weights must be {len(members)} numbers above 0, one for each chain: leave out unlikely chains"
        )
    if abs(math.fsum(held.tolist()) - 1) > 1e-9:
        raise ChainError(
            f"weights add to {math.fsum(held.tolist())!r}, but must add to 1: divide them by their sum if that is meant"
        )
    return members, held


def _stationary(members: Sequence[PeriodicChain], held: FloatArray) -> tuple[list[MarkovChain], FloatArray]:
    chains = [chain for one in members for chain in one.members]
    if len(chains) < len(members):
        raise ChainError("chains: one has a period: a finite life is followed for chains with one kernel each")
    return chains, held
