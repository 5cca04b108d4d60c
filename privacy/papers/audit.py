"""The audit: the true loss of a small chain, from the definition.

Every sequence of states and every output that can matter is enumerated, so the number owes nothing to quilts, influence
or composition: it is what the other modules are held against.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> found = exact_loss(chain, length=6, releases=[AuditRelease(0, 4, scale=20.0), AuditRelease(2, 6, scale=20.0)])
>>> round(found.loss, 4), found.slot, found.pair, found.output
(0.4208, 3, (1, 0), ((0, 4), (0, 4)))

*Which outputs matter.* A release publishes integers f(s) of the sequence s plus independent noise of scale l in every
coordinate, with density or probability proportional to exp(-|w - f(s)| / l). For a secret pair at a slot the likelihood
ratio of an output w is N(w) / D(w), two mixtures of such terms over sequences. Hold all coordinates but one, w, and let
w move between two neighbouring values u < v that f takes in this coordinate. Each sequence has f(s) <= u or f(s) >= v,
so

    N(w) / D(w) = (A e^{w/l} + B e^{-w/l}) / (C e^{w/l} + E e^{-w/l}) = (A z + B) / (C z + E)   with z = e^{2w/l}

and A, B, C, E >= 0: a Moebius function of z without a pole, so it is monotone between u and v. Below the least value
and above the largest one it is constant, as there A = C = 0 or B = E = 0. So moving w to one end of its interval never
lowers the ratio. Do this coordinate by coordinate: the supremum over all real outputs is attained where every
coordinate is one of the values that f takes there, finitely many points. These are integers, hence outputs of the
discrete law as well, whose ratio is the same function: continuous and discrete Laplace noise of the same scale have the
same true loss on queries of integers, and one enumeration stands for both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ...schemas.errors import ArgumentError
from ..models.classes import FiniteClass, stated_chains
from ..models.markov_chain import FloatArray, MarkovChain
from ..validation import a_slot, as_list, choice, float_above, instance, positive, whole

Statistic = Literal["histogram", "count", "transitions"]

MAX_SEQUENCES = 2**20
"""The most sequences of states that are enumerated."""

MAX_WORK = 2**37
"""The most products of an output, a sequence, a slot and a state that are added up: about half a minute."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AuditRelease:
    """One release to audit: a statistic of a window plus Laplace noise, continuous or discrete, in every coordinate.

    Raises:
        ValueError: If the window is empty, the scale is not finite and above 0, or statistic and state do not fit.
    """

    start: int  # first slot of the window, from 0
    stop: int  # slot after the last
    scale: float | Fraction  # scale of the noise
    # ``histogram``: cells per state, k numbers. ``count``: cells in one state. ``transitions``: pairs of adjacent cells
    # per ordered pair of states, k * k numbers
    statistic: Statistic = "histogram"
    state: int | None = None  # the state that ``count`` counts; None for the others

    def __post_init__(self) -> None:
        start = a_slot("start", self.start, "give the first slot of the window, from 0", least=0)
        a_slot("stop", self.stop, "give the slot after the last", least=start + 1)
        positive("scale", self.scale, "give the scale of the noise")
        choice("statistic", self.statistic, get_args(Statistic))
        if (self.statistic == "count") != (self.state is not None):
            raise ArgumentError(
                f"state is {self.state!r} for the statistic {self.statistic}: a count needs the state it counts, "
                "and nothing else has one"
            )
        if self.state is not None:
            whole("state", self.state, "give the state to count, from 0", least=0)

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot, L1 sensitivity over scale: 2 for a histogram, 1 for a count, 4 for transitions."""
        sensitivity = {"histogram": 2, "count": 1, "transitions": 4}[self.statistic]
        return float_above(sensitivity / Fraction(self.scale))

    @property
    def charge(self) -> tuple[int, int, float]:
        """What a ledger is charged: first slot, slot after the last, loss per slot."""
        return self.start, self.stop, self.epsilon_dp


@dataclass(frozen=True, slots=True)
class ExactLoss:
    """The true loss and where it is reached."""

    # largest log-likelihood ratio over members, slots, secret pairs and outputs; a double, accurate to about 1e-12
    # relative, not rounded outward
    loss: float
    member: int  # index of the chain in its class
    slot: int | None  # the slot of the secret, from 0; None where no slot has two possible states
    pair: tuple[int, int] | None  # the states (x, x') with log P(output | x) / P(output | x') = loss
    output: tuple[tuple[int, ...], ...]  # the output, one tuple of numbers a release
    outputs: int  # how many outputs were tried for each member


def exact_loss(chain: MarkovChain | FiniteClass, length: int, releases: Iterable[AuditRelease]) -> ExactLoss:
    """The true Pufferfish loss ([SWC17] Definition 2.1) of all releases together.

    Over every chain of the class, every slot 0..length-1, every pair of states that are possible there and every
    output, the largest log(P(output | x) / P(output | x')). The releases are independent given the sequence. The chain
    starts at slot 0 with its initial distribution, or stationary.

    Args:
        chain: One chain, or a class, whose worst member counts.
        length: Number of slots T; all k**T sequences are enumerated.
        releases: What is published, windows within 0..length.

    Raises:
        ChainError: If a chain without an initial distribution is reducible.
        TypeError: If the belief is no chain and no finite class.
        ValueError: If a window or state lies outside, or there is more to enumerate than the limits allow.
    """
    members = stated_chains(chain, "an audit by enumeration")
    length = whole("length", length, "give the number of slots", least=1, most=MAX_SEQUENCES)
    listed = tuple(as_list("releases", releases, "releases, each an AuditRelease"))
    for place, release in enumerate(listed):
        instance(f"releases[{place}]", release, AuditRelease)
    _check(listed, length, members[0].states)
    return max((_audit(one, member, length, listed) for member, one in enumerate(members)), key=lambda one: one.loss)


def _check(releases: Sequence[AuditRelease], length: int, states: int) -> None:
    for number, release in enumerate(releases):
        if release.stop > length:
            raise ArgumentError(
                f"releases[{number}] ends at slot {release.stop}, but length is {length}: keep to the chain"
            )
        if release.state is not None and release.state >= states:
            raise ArgumentError(
                f"releases[{number}] counts state {release.state}, but the chain has {states} states: count one of them"
            )
    if states**length > MAX_SEQUENCES:
        raise ArgumentError(
            f"length is {length}: {states} states have {states}^{length} sequences, but at most {MAX_SEQUENCES} are "
            "enumerated: audit a shorter chain"
        )


def _sequences(chain: MarkovChain, length: int) -> tuple[IntArray, FloatArray]:
    """Every possible sequence, shape (n, length), and the logarithm of its probability, shape (n,)."""
    start = chain.stationary if chain.initial is None else chain.initial
    with np.errstate(divide="ignore"):
        steps, first = np.log(chain.transition), np.log(start)
    paths = np.flatnonzero(start)[:, np.newaxis]
    chance = first[paths[:, 0]]
    for _ in range(1, length):
        row, state = np.nonzero(chain.transition[paths[:, -1]])
        chance = chance[row] + steps[paths[row, -1], state]
        paths = np.concatenate([paths[row], state[:, np.newaxis]], axis=1)
    return paths, chance


def _statistics(paths: IntArray, release: AuditRelease, states: int) -> IntArray:
    """The numbers that a release publishes noise on, shape (n, coordinates)."""
    inside = paths[:, release.start : release.stop]
    if release.statistic == "count":
        return (inside == release.state).sum(axis=1)[:, np.newaxis]
    kinds = states
    if release.statistic == "transitions":
        inside, kinds = inside[:, :-1] * states + inside[:, 1:], states * states
    return (inside[:, :, np.newaxis] == np.arange(kinds)).sum(axis=1)


def _joint(paths: IntArray, chance: FloatArray, groups: IntArray, states: int) -> FloatArray:
    """Log P(statistics = u | X_slot = x), shape (u, slots, states); nan for a state that is impossible in a slot."""
    length = paths.shape[1]
    joint = np.full((int(groups.max()) + 1, length, states), -np.inf)
    np.logaddexp.at(joint, (groups[:, np.newaxis], np.arange(length), paths), chance[:, np.newaxis])
    here = np.logaddexp.reduce(joint, axis=0)
    with np.errstate(invalid="ignore"):
        return joint - here  # -inf - -inf is nan


def _audit(chain: MarkovChain, member: int, length: int, releases: Sequence[AuditRelease]) -> ExactLoss:
    paths, chance = _sequences(chain, length)
    sizes = [_statistics(paths, release, chain.states) for release in releases]
    rates = np.repeat([1 / float(r.scale) for r in releases], [size.shape[1] for size in sizes])
    values = np.concatenate([*sizes, np.zeros((len(paths), 0), dtype=np.int64)], axis=1)
    found, groups = np.unique(values, axis=0, return_inverse=True)
    lattice = [np.unique(found[:, column]) for column in range(found.shape[1])]
    outputs = math.prod(len(points) for points in lattice)
    given = _joint(paths, chance, groups.reshape(-1), chain.states)
    _check_scales(given, lattice, rates)
    work = outputs * len(found) * length * chain.states
    if work > MAX_WORK:
        raise ArgumentError(
            f"releases have {outputs} outputs, for {len(found)} statistics and {length * chain.states} secrets: a "
            f"work of {work:.3g}, but at most {MAX_WORK:.3g} is done: audit fewer or shorter windows, or larger scales"
        )
    best = ExactLoss(0.0, member, None, None, (), outputs)
    points: tuple[int, ...] = ()
    for head, tail, logs in _log_likelihoods(given, found, lattice, rates):
        # an impossible state is nan, which the one passes over and the other is told to
        spread = np.nanmax(logs, axis=2) - np.nanmin(logs, axis=2)
        row, slot = np.unravel_index(int(spread.argmax()), spread.shape)
        if best.slot is None or spread[row, slot] > best.loss:
            here = logs[row, slot]
            pair = int(np.nanargmax(here)), int(np.nanargmin(here))
            if pair[0] == pair[1]:
                continue  # one possible state in every slot, or outputs that tell nothing
            best = ExactLoss(float(spread[row, slot]), member, int(slot), pair, (), outputs)
            points = (*head, *tail[row].tolist())
    edges = np.cumsum([0, *(size.shape[1] for size in sizes)])
    output = tuple(points[low:high] for low, high in itertools.pairwise(edges.tolist()))
    return ExactLoss(best.loss, member, best.slot, best.pair, output, outputs)


def _check_scales(given: FloatArray, lattice: Sequence[IntArray], rates: FloatArray) -> None:
    """Refuse where a product of a likelihood and a probability comes near the smallest double."""
    least = float(given.min(where=np.isfinite(given), initial=0.0))
    spans = np.array([points[-1] - points[0] for points in lattice], dtype=np.float64)
    # exponents 600 below the largest one are far from the smallest double
    if (told := float(spans @ rates) - least) >= 600:  # noqa: PLR2004
        raise ArgumentError(
            f"releases have likelihoods down to e^-{told:.0f}, but at least e^-600 is added up: give larger scales, or "
            "a chain without so rare states"
        )


def _log_likelihoods(
    given: FloatArray, found: IntArray, lattice: Sequence[IntArray], rates: FloatArray
) -> Iterator[tuple[tuple[int, ...], IntArray, FloatArray]]:
    """Log P(output | X_slot = x) without the common factor, block by block of outputs.

    Yields:
        The points of the leading coordinates, the same for the whole block; those of the others, shape (outputs,
        coordinates); and the logarithms, shape (outputs, slots, states).
    """
    statistics, secrets = len(found), given.shape[1] * given.shape[2]
    logs = given.reshape(statistics, secrets)
    possible = np.isfinite(logs).any(axis=0)
    # the trailing coordinates are held in full, the leading ones are gone through
    room = max(1, 2**21 // statistics)  # likelihoods at once
    cut, rows = len(lattice), 1
    while cut > 0 and rows * len(lattice[cut - 1]) <= room:
        cut -= 1
        rows *= len(lattice[cut])
    tail = np.zeros((1, 0), dtype=np.int64)
    if cut < len(lattice):
        tail = np.stack(np.meshgrid(*lattice[cut:], indexing="ij"), axis=-1).reshape(rows, -1)
    weights = np.exp(-(np.abs(tail[:, np.newaxis, :] - found[np.newaxis, :, cut:]) @ rates[cut:]))
    for head in itertools.product(*(points.tolist() for points in lattice[:cut])):
        shift = np.abs(np.array(head, dtype=np.int64) - found[:, :cut]) @ rates[:cut]
        block = np.full((rows, secrets), np.nan)
        column = logs[:, possible] - shift[:, np.newaxis]
        block[:, possible] = np.log(weights @ np.exp(column))
        yield head, tail, block.reshape(rows, *given.shape[1:])
