"""Transition counts released with noise: how to learn a model from the very series that it is to protect.

A chain read off protected series makes quilt and noise functions of their secrets, and no ledger can say what that
costs (theory section 7, item 5). A noisy table of transitions is a release like any other: it is charged, and whatever
is computed from it afterwards, a chain or a confidence class, costs nothing more.

>>> import numpy as np
>>> table = np.array([[[90_000, 10_000], [10_000, 40_000]]])
>>> history = TransitionCounts(("m1",), table, np.array([[110_000, 60_000]]))
>>> released = release_counts(history, epsilon_dp=0.05, start=0, stop=170_000)
>>> start, stop, epsilon_dp = released.charge  # for ledger.charge, before the counts are used
>>> 0.0499 < epsilon_dp <= 0.05
True
>>> released.confidence_class(level=0.95).bounds().gap > 0.1
True

*Sensitivity.* Let one cell of one series, in slot t, change from x to x', and everything else stay. Only the
transitions that begin or end there change: (u, x) becomes (u, x') where u is the state of a present cell in slot t - 1,
and (x, v) becomes (x', v) where v is that of one in slot t + 1. Each lowers one entry of the table by one and raises
another by one, so the table, of one series or summed over many, moves by at most 4 in L1 (by 2 at the end of a run).
Noise of scale l in every entry then loses 4 / l per slot, and the ledger's rule applies with that density over the
slots of the history, as for a histogram (theory sections 1 and 4). It is needed that *which* cells are present stays
the same when a state changes. Where missing is a state of its own, that is so only if every slot of the window is
counted: from the first present cell to the last would let one cell decide how many others count, and the table could
move by as many transitions as the window has. ``missing_state`` says so and refuses such counts.

*The circle.* What a release costs depends on the belief, and the belief is what is to be learnt. Charge it under bounds
that you can defend without the data; group privacy over the whole history needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..mechanisms.discrete_laplace import DiscreteLaplace, epsilon_dp_of, rational_scale
from ..mechanisms.histogram import project_to_total
from ..mechanisms.sampling import Entropy
from ..models.markov_chain import FloatArray, MarkovChain
from ..validation import MOST_SLOTS, a_slot, as_array, instance, number, positive, whole
from .confidence import ConfidenceClass, class_between
from .drift import noise_log_moments
from .transition_counts import EstimationError, TransitionCounts

SENSITIVITY = 4
"""L1 sensitivity of a table of transitions to one cell."""

_TRIES = 400


@dataclass(frozen=True, eq=False, slots=True)
class NoisyCounts:
    """A released table of transitions. Everything here is a function of what was released.

    Attributes:
        table: int64, shape (k, k), with discrete Laplace noise in every entry; entries may be negative.
        scale: Scale of the noise.
        start: First slot of the history.
        stop: Slot after the last.

    Raises:
        EstimationError: the table has no int64 entries or is not square.
    """

    sensitivity: ClassVar[int] = SENSITIVITY

    table: NDArray[np.int64]
    scale: Fraction
    start: int
    stop: int

    def __post_init__(self) -> None:
        table = as_array("table", self.table).copy()
        if table.dtype != np.int64 or table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:  # noqa: PLR2004 - a table has two axes
            raise EstimationError(
                f"table: shape and type are {table.shape} and {table.dtype}, and must be (k, k) and int64: pass the "
                "released table"
            )
        start = a_slot("start", self.start, "give the first slot of the history")
        a_slot("stop", self.stop, "give the slot after the last", least=start + 1)
        DiscreteLaplace(self.scale)
        table.setflags(write=False)
        object.__setattr__(self, "table", table)

    @property
    def states(self) -> int:
        """Number of states k."""
        return len(self.table)

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot, 4 / scale rounded up."""
        return epsilon_dp_of(self.scale, SENSITIVITY)

    @property
    def charge(self) -> tuple[int, int, float]:
        """What the ledger of these series must be charged: first slot, slot after the last, loss per slot."""
        return self.start, self.stop, self.epsilon_dp

    def chain(self, *, floor: float, transitions: int | None = None) -> MarkovChain:
        """A chain with a stationary start, by post-processing: noise taken off where that is possible.

        Counts below 0 become 0; where the number of transitions is public, the table is projected onto the tables of
        that total instead. Rows are divided by their sums, a row without anything left becomes uniform, and then
        P -> (1 - k floor) P + floor.

        It is a point estimate: nothing says how far the truth is. `confidence_class` does.

        Args:
            floor: Least transition probability, above 0 and below 1/k, so that every state is reached.
            transitions: The number of transitions, only where it is public (cells are present or not whatever their
                states).

        Raises:
            EstimationError: The floor is out of range, or transitions is negative.
        """
        k = self.states
        if not 0 < number("floor", floor, "give a least transition probability") < 1 / k:
            raise EstimationError(f"floor: {floor} is outside 0 to 1/k = {1 / k:.6g}: 1e-3/k = {1e-3 / k:.3g} is mild")
        if transitions is None:
            kept: FloatArray = np.maximum(self.table, 0).astype(np.float64)
        else:
            total = whole(
                "transitions", transitions, "give the public number of transitions, or None", least=0, most=MOST_SLOTS
            )
            kept = project_to_total(self.table.reshape(1, -1), np.array([total])).reshape(k, k)
        left = kept.sum(axis=1, keepdims=True)
        rows = np.divide(kept, left, out=np.full((k, k), 1 / k), where=left > 0)
        return MarkovChain((1 - k * floor) * rows + floor)

    def confidence_class(self, level: float = 0.95, *, floor: float = 0.0) -> ConfidenceClass:
        """All chains that the released table allows, noise included.

        Half of the error goes to the noise: with probability at least (1 + level) / 2, every entry's noise and, for
        every entry, the sum of the noise of the others in its row are at most the half-widths used (union bound over
        2 k**2 events). The true counts then lie between two tables, and as the ends of the region are monotone in the
        counts (:mod:`.confidence`), the region at the outer tables holds the region at the true counts, which has the
        other half of the error.

        Args:
            level: Probability of holding the true chain, over noise and history.
            floor: An assumed lower bound of every transition probability, 0 for none.

        Raises:
            EstimationError: level or floor out of range, or the counts contradict the floor.
        """
        if not 0 < number("level", level, "0.95 is the usual one") < 1:
            raise EstimationError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")
        k = self.states
        share = (1 - level) / 2 / (2 * k * k)
        own, others = noise_half_width(self.scale, 1, share), noise_half_width(self.scale, k - 1, share)
        rest = self.table.sum(axis=1, keepdims=True) - self.table
        return class_between(
            np.maximum(self.table - own, 0),
            np.maximum(self.table + own, 0),
            level,
            (1 + level) / 2,
            rests=(np.maximum(rest - others, 0), np.maximum(rest + others, 0)),
            floor=floor,
        )


def release_counts(
    counts: TransitionCounts,
    epsilon_dp: float,
    *,
    start: int,
    stop: int,
    missing_state: bool = False,
    entropy: Entropy | None = None,
) -> NoisyCounts:
    """Release the pooled transitions of a history with discrete Laplace noise of scale 4 / epsilon_dp.

    The caller charges `NoisyCounts.charge` to the ledger of these series first, and keeps the table on record: the same
    counts released again are a second charge.

    Args:
        counts: Transitions of the series to learn from; which series they are is public.
        epsilon_dp: Loss per slot.
        start: First slot that was counted.
        stop: Slot after the last.
        missing_state: Whether a missing cell is a state of its own. Then every series must have been counted in every
            slot from start to stop, and the series must be those of a public roster, the silent ones included.
        entropy: For tests only; the operating system's entropy where it is left out.

    Raises:
        EntropyError: The bit source is defective.
        EstimationError: If ``missing_state`` is set and a series has more or fewer cells than the window has slots, or
            gaps between them. No name and no count is in the message.
    """
    wanted = positive("epsilon_dp", epsilon_dp, "give the loss per slot, for example 0.01")
    scale = rational_scale(1 / wanted, SENSITIVITY)
    return release_counts_at(counts, scale, start=start, stop=stop, missing_state=missing_state, entropy=entropy)


def release_counts_at(
    counts: TransitionCounts,
    scale: Fraction,
    *,
    start: int,
    stop: int,
    missing_state: bool = False,
    entropy: Entropy | None = None,
) -> NoisyCounts:
    """The same with an exact scale, for a release that is on record with it."""
    start = a_slot("start", start, "give the first slot of the history")
    stop = a_slot("stop", stop, "give the slot after the last", least=start + 1)
    instance("counts", counts, TransitionCounts)
    if missing_state:
        _check_covered(counts, stop - start)
    noisy = DiscreteLaplace(scale).draw((counts.states, counts.states), entropy)
    noisy += counts.pooled()
    return NoisyCounts(noisy, scale, start, stop)


def _check_covered(counts: TransitionCounts, slots: int) -> None:
    cells, moves = counts.visits.sum(axis=1), counts.counts.sum(axis=(1, 2))
    if ((cells != slots) | (moves != slots - 1)).any():
        raise EstimationError(
            f"counts: a series was not counted in each of the {slots} slots from start to stop, and where missing is a "
            "state its counts then depend on where its first and last cells are: count the missing state from start "
            "to stop, too"
        )


def noise_half_width(scale: Fraction, terms: int, error: float) -> int:
    """A number that the absolute sum of independent noise passes with probability at most ``error``.

    For one term the exact quantile. For n of them the smaller of n quantiles at error / n and Chernoff's bound:
    P(|S| >= s) <= 2 exp(n log E e^{tZ} - t s) for every t below 1 / scale. Without terms it is 0.
    """
    if terms == 0:
        return 0
    law = DiscreteLaplace(scale)
    # not by the level, which a small error leaves at 1
    exact = terms * law.passed_by(Fraction(error) / terms)
    if terms == 1:
        return exact
    t = 1 / float(scale) * np.geomspace(1e-4, 0.9999, _TRIES)
    chernoff = float(((terms * noise_log_moments(scale, t) + np.log(2 / error)) / t).min())
    return min(exact, int(np.ceil(chernoff)))
