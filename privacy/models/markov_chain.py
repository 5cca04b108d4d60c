"""Markov chains over the states 0..k-1: the chain of one kernel, and the repair of zeros.

>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> chain.stationary.round(6).tolist()
[0.8, 0.2]
>>> round(chain.gap, 6)
0.75

A chain may be reducible or periodic when it is made: with a fixed start that can be what is meant. What needs an
irreducible chain (the stationary distribution and all that follows from it) says so when it is asked for.

*Zeros* ([BHGKM] appendix D.2). A zero makes the quilts that it touches unusable, and enough of them a chain that does
not mix. The repair gives every zero entry a small tau and takes it off the others of its row in proportion.

>>> smooth_zeros(MarkovChain([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]), tau=0.01).transition.tolist()
[[0.495, 0.495, 0.01], [0.01, 0.495, 0.495], [0.25, 0.25, 0.5]]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..validation import instance, positive
from .belief import ChainError
from .couplings import FloatArray
from .kernels import Kernel
from .periodic import (
    BoolArray,
    PeriodicChain,
    communicating_classes,
    distribution,
    frozen,
    kernel_of,
    probabilities,
    steady_state,
)


def _named(states: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, states[:8])) + (f", ... ({len(states)} states)" if len(states) > 8 else "") + "}"


@dataclass(frozen=True, eq=False)
class MarkovChain(PeriodicChain):
    """A chain (q, P): initial distribution and transition matrix ([SWC17] section 4.2).

    A row that sums to 1 within 1e-9 is accepted and divided by its sum; a row within 2**-50 of 1 is kept bit for bit.
    A data frame is read by position, and refused where its index has the labels of its columns in another order.

    Attributes:
        initial: q, shape (k,); None for a chain that starts in its stationary distribution.

    Raises:
        ChainError: If an array has the wrong shape, an entry that is no probability, or a sum other than 1.
    """

    named = "markov-chain"
    written = ("transition", "initial")
    optional = ("initial",)

    initial: FloatArray | None

    def __init__(self, transition: npt.ArrayLike, initial: npt.ArrayLike | None = None) -> None:
        kernel = kernel_of(transition)
        object.__setattr__(self, "transitions", frozen(kernel[np.newaxis]))
        start = None if initial is None else probabilities("initial", initial)
        if start is not None:
            if start.shape != (states := len(kernel),):
                raise ChainError(
                    f"initial has shape {start.shape}, but the chain has {states} states: "
                    f"give {states} probabilities, or None for a stationary chain"
                )
            start = frozen(distribution("initial", start))
        object.__setattr__(self, "initial", start)

    def __repr__(self) -> str:
        if self.states <= 4:
            start = "" if self.initial is None else f", {self.initial.tolist()}"
            return f"MarkovChain({self.transition.tolist()}{start})"
        start = "stationary" if self.initial is None else "fixed"
        try:
            gap = f"{self.gap:.6g}"
        except ChainError:
            gap = "none"
        return f"MarkovChain(states={self.states}, gap={gap}, initial={start})"

    @property
    def transition(self) -> FloatArray:
        """P, shape (k, k), rows sum to 1; read-only."""
        return self.transitions[0]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """P and q."""
        return self.transition, self.initial

    @property
    def members(self) -> tuple[MarkovChain, ...]:
        """The chain itself."""
        return (self,)

    def check_interval(self, interval_us: int) -> None:
        """Slots may have any length."""

    @property
    def both_ways(self) -> tuple[Kernel, Kernel]:
        """P, and its time reversal, shape (k, k) each.

        Raises:
            ChainError: The chain has a fixed start, or is reducible.
        """
        if self.initial is not None:
            raise ChainError(
                "the chain has a fixed start, which is true at one slot of a stream only: leave initial out for a "
                "stationary chain, or use AnyInitial"
            )
        ahead, back = super().both_ways
        return Kernel(ahead.transitions[0], ahead.rounding), Kernel(back.transitions[0], back.rounding)

    @property
    def ahead(self) -> Kernel:
        """The kernel from a slot to the next, whatever the start."""
        return Kernel(self.transition, 2.0**-50 * self.states)

    @cached_property
    def live(self) -> BoolArray:
        """All states, shape (1, k)."""
        self._need_irreducible("a unique stationary distribution")
        return np.ones((1, self.states), dtype=np.bool_)

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Classes of states that reach each other; one class when the chain is irreducible."""
        return communicating_classes(self.transition > 0)

    @property
    def is_irreducible(self) -> bool:
        """Whether every state reaches every other."""
        return len(self.classes) == 1

    @cached_property
    def period(self) -> int:
        """Greatest common divisor of the lengths of the cycles; 1 for an aperiodic chain.

        Every edge u -> v closes, with the breadth-first levels of its ends, a walk of length level(u) + 1 - level(v);
        these generate the same ideal of the integers as the cycles do.
        """
        self._need_irreducible("a period")
        edges = self.transition > 0
        levels = np.full(self.states, -1)
        levels[0] = 0
        frontier = np.array([0])
        while frontier.size:
            found = np.flatnonzero(edges[frontier].any(axis=0) & (levels < 0))
            levels[found] = levels[frontier[0]] + 1
            frontier = found
        tails, heads = np.nonzero(edges)
        return math.gcd(*(int(length) for length in levels[tails] + 1 - levels[heads]))

    @cached_property
    def stationary(self) -> FloatArray:
        """Stationary distribution pi, shape (k,).

        Raises:
            ChainError: If the chain is reducible, or a ratio of two probabilities is beyond every float.
        """
        self._need_irreducible("a unique stationary distribution")
        return steady_state(self.transition)

    @property
    def pi_min(self) -> float:
        """Smallest stationary probability."""
        return float(self.stationary.min())

    @property
    def reversal(self) -> FloatArray:
        """Time reversal P*(x, y) = pi(y) P(y, x) / pi(x), shape (k, k).

        Raises:
            ChainError: If the chain is reducible, or a state is rarer than a float can say.
        """
        return self.reversals[0]

    @cached_property
    def gap_multiplicity(self) -> int:
        """How often P P* has the eigenvalue 1: the number of its classes.

        Above 1, P P* is reducible though P may not be, and the eigenvalue below 1 is not a mixing rate. Found from
        the zeros of P.
        """
        self._need_irreducible("a spectral gap")
        edges: npt.NDArray[np.bool_] = self.transition > 0
        return len(communicating_classes(edges @ edges.T))

    @cached_property
    def rho(self) -> float:
        """Second singular value of D^1/2 P D^-1/2 with D = diag(pi), counted with multiplicity.

        The factor by which every step shrinks mean-zero functions at least; 1 where P P* is reducible, 0 for one state.
        """
        if self.gap_multiplicity > 1:
            return 1.0
        if self.states == 1:
            return 0.0
        return float(min(1.0, np.linalg.svd(self._scaled, compute_uv=False)[1]))

    @property
    def gap(self) -> float:
        """Spectral gap g of P P*, 1 - rho**2, counted with multiplicity: 0 where P P* is reducible."""
        return (1 - self.rho) * (1 + self.rho)

    @cached_property
    def is_reversible(self) -> bool:
        """Whether pi(x) P(x, y) = pi(y) P(y, x) for all states, to a relative 1e-10."""
        flow = self.stationary[:, np.newaxis] * self.transition
        return bool(np.all(np.abs(flow - flow.T) <= 1e-10 * np.maximum(flow, flow.T)))

    @cached_property
    def reversible_gap(self) -> float:
        """Twice the absolute spectral gap of P, in [0, 2]; only a reversible chain has it.

        Raises:
            ChainError: The chain is not reversible.
        """
        if not self.is_reversible:
            raise ChainError(
                "reversible_gap: the chain is not reversible (its flows differ from their transposes): "
                "use gap, the gap of P P*"
            )
        if self.states == 1:
            return 2.0
        if self.period > 1:
            return 0.0
        values = np.linalg.eigvalsh((self._scaled + self._scaled.T) / 2)
        return float(max(0.0, 2 * (1 - max(abs(values[0]), abs(values[-2])))))

    @cached_property
    def _scaled(self) -> FloatArray:
        root = np.sqrt(self.marginals[0])
        return self.transition * root[:, np.newaxis] / root[np.newaxis, :]

    def _need_irreducible(self, what: str) -> None:
        if not self.is_irreducible:
            names = ", ".join(_named(states) for states in self.classes[:8])
            more = f" and {len(self.classes) - 8} more" if len(self.classes) > 8 else ""
            raise ChainError(
                f"the chain is reducible and has not {what}: its states fall into {len(self.classes)} classes that "
                f"do not all reach each other, {names}{more}: leave out states that are never left or never entered, "
                "merge rare bins, or smooth the counts"
            )


def check_chain(name: str, chain: object) -> None:
    """Refuse what is no chain by a TypeError."""
    instance(name, chain, MarkovChain)


def chains_of(name: str, given: Iterable[npt.ArrayLike | MarkovChain]) -> list[MarkovChain]:
    """The members of an argument that lists transition matrices: a chain each; one that is a chain is taken as it is.

    Raises:
        ChainError: If one is neither.
    """

    def chain(place: int, member: npt.ArrayLike | MarkovChain) -> MarkovChain:
        try:
            return member if isinstance(member, MarkovChain) else MarkovChain(member)
        except ChainError as error:
            raise ChainError(f"{name}[{place}]: {error}") from None

    return [chain(place, member) for place, member in enumerate(given)]


TAU = 1e-5
"""The value of [BHGKM] D.2."""


def smooth_zeros(chain: MarkovChain, tau: float = TAU) -> MarkovChain:
    """The chain with tau in the place of every zero: a row with z of them has its other entries times 1 - z tau.

    The initial distribution stays. It is another belief than before, not an estimate: whether so rare transitions are
    possible is an assumption, and the noise depends on it (theory section 5).

    Args:
        chain: Any chain; one without zeros comes back equal.
        tau: Probability of each transition that had none.

    Raises:
        ChainError: If tau times the zeros of some row leaves nothing for the others.
    """
    check_chain("chain", chain)
    tau = positive("tau", tau, "1e-5 is the value of the paper")
    empty = chain.transition == 0
    taken = empty.sum(axis=1) * tau
    if (taken >= 1).any():
        row = int(taken.argmax())
        raise ChainError(
            f"tau is {tau:g}, and row {row} has {int(empty[row].sum())} zeros: together they must stay below 1, "
            "choose a smaller tau"
        )
    return MarkovChain(np.where(empty, tau, chain.transition * (1 - taken)[:, np.newaxis]), chain.initial)
