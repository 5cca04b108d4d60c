"""Beliefs for many series that do not all follow one chain.

The pooled chain is the belief that every series follows that one chain. Two others are made here: mixing bounds that a
stated share of the series meets, and the list of the series' own chains.

>>> import numpy as np
>>> tables = np.array([[[50, 50], [50, 50]], [[60, 40], [40, 60]], [[99, 1], [1, 99]]])
>>> history = TransitionCounts(("a", "b", "c"), tables, np.full((3, 2), 100))
>>> covering_class(history, share=0.6).gap
0.96
>>> covering_class(history, share=1.0).gap < 0.04
True

Both are functions of the history and plug-in estimates: they say what the series' own chains look like, not how far the
truth may be from them. Which series are covered is theirs to know, so no name leaves this module.
"""

from __future__ import annotations

import heapq
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .chains import ChainError
from .checks import positive
from .classes import FiniteClass, MixingBounds
from .estimation import EstimationError, TransitionCounts, chain_from_counts


def covering_class(counts: TransitionCounts, share: float, *, epsilon: float = 1.0) -> MixingBounds:
    """Mixing bounds that at least a share of the series meets by plug-in (theory section 7, item 5b).

    Each series has the chain of its own counts over all k states, without smoothing, and a series without one that
    mixes meets no bounds, as in `diagnostics.outside`. Among all pairs of a pi_min and a gap that enough series meet
    there is one for each choice of the series that decides pi_min; taken is the pair with the least reach
    log(1 / (tanh(epsilon / 12) pi_min)) / gap, half the a* of [SWC17] Lemma 4.9 before it is rounded, because the
    noise of MQMApprox grows with it.

    Args:
        counts: Transitions per series.
        share: Share of the series to cover, above 0 and at most 1; read as the exact value of the float.
        epsilon: The target for which the reach is weighed.

    Raises:
        EstimationError: If the share is out of range, there is no series, or too few series have a chain that mixes.
        ValueError: If epsilon is not finite and above 0.
    """
    if not 0 < share <= 1:
        raise EstimationError(f"share: {share} is outside 0 to 1: 0.9 covers nine series of ten")
    weight = -math.log(math.tanh(positive("epsilon", epsilon, "give the loss you accept") / 12))
    total = len(counts.series)
    if not total:
        raise EstimationError("counts: there is no series: give the counts of at least one")
    needed = math.ceil(Fraction(share) * total)
    found = [bounds for table in counts.counts if (bounds := _plug_in(table)) is not None]
    if len(found) < needed:
        raise EstimationError(
            f"share: {share} of {total} series are {needed}, but only {len(found)} visit all {counts.states} states "
            "and mix by their own counts: merge rare bins, give longer histories, or cover a smaller share"
        )
    kept: list[float] = []  # a heap of the largest gaps, as many as needed, among the series gone through
    best = (math.inf, 0.0, 0.0)
    for pi_min, gap in sorted(((bounds.pi_min, bounds.gap) for bounds in found), reverse=True):
        heapq.heappush(kept, gap)
        if len(kept) > needed:
            heapq.heappop(kept)
        if len(kept) == needed:
            best = min(best, ((weight - math.log(pi_min)) / kept[0], pi_min, kept[0]))
    return MixingBounds(pi_min=best[1], gap=best[2], kind="multiplicative")


def series_class(counts: TransitionCounts, smoothing: float = 0.0, *, floor: float = 0.0) -> FiniteClass:
    """The list of the series' own chains: the belief that every series follows one of them.

    Args:
        counts: Transitions per series.
        smoothing: As in `chain_from_counts`.
        floor: As in `chain_from_counts`.

    Returns:
        The different chains, in the order of the counts; all start stationary.

    Raises:
        EstimationError: If there is no series, or, without smoothing, some series never leaves a state.
    """
    if not counts.series:
        raise EstimationError("counts: there is no series: give the counts of at least one")
    if smoothing == 0 and (unknown := int((counts.counts.sum(axis=2) == 0).any(axis=1).sum())):
        raise EstimationError(
            f"counts: {unknown} of {len(counts.series)} series never leave some of the {counts.states} states, so "
            f"their chains are unknown: smooth the counts (smoothing=1/k = {1 / counts.states:.3g}), or merge rare bins"
        )
    return FiniteClass(dict.fromkeys(chain_from_counts(table, smoothing, floor=floor) for table in counts.counts))


def _plug_in(table: NDArray[np.int64]) -> MixingBounds | None:
    if (table.sum(axis=1) == 0).any():
        return None
    try:
        return MixingBounds.of(chain_from_counts(table))
    except ChainError:
        return None  # reducible, periodic, or with a gap of 0
