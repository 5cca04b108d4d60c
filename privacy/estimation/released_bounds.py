"""Bounds of the chain from released histograms only: pi_min from the rows, the gap from whoever can defend one.

Released rows are public, so what is made of them costs nothing, and a belief made of them does not depend on the
secrets but through what was published and paid for (theory section 7, item 5). A histogram shows how often a state
occurs, and so how rare it may be; it does not show transitions, and so no gap. The gap is therefore given.

>>> import numpy as np
>>> rows = np.array([[8050, 2031], [7990, 2071]])  # two feeders of 30 homes, a week of half-hours each
>>> found = bounds_of_released(rows, Fraction(87), np.array([10080, 10080]), 0.95, gap=0.4)
>>> round(found.pi_min, 3), found.gap
(0.176, 0.4)

*The bound.* Let C be the sum of all rows for state y, N the public number of cells, n the number of noise terms in C,
and suppose that pi(y) <= p. By the lemma of :mod:`.drift`, for every t > 0,

    P(C >= c) <= exp(N log g(p, rho, t) + log A(t, n) - t c), A the factor of the noise there,

whatever slots of a series are counted, since g bounds each cell; series are independent, so their moments multiply. The
right side rises with p, because g does. So the p for which its least value over t is at most 1 - level are an interval
from 0, and its end is a lower confidence bound of pi(y). The least of these over the states is one of pi_min at the
*same* level, without a union over states: it is at most the bound for the rarest state, which is a fixed state, so it
passes pi_min only when that one does.

*What it rests on.* Every series follows one chain whose gap is at least the one given, and is in its stationary
distribution when the first row begins, as a chain is that has run for long; which cells are missing does not depend on
the states; no cell is counted in two rows. If the gap is wrong, so is the bound.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ..mechanisms.discrete_laplace import DiscreteLaplace
from ..models.classes import GapKind, MixingBounds
from ..validation import whole
from .drift import MOST_TILT, Ints, check_released, log_growth, public_noise_log_tails
from .transition_counts import EstimationError, name_states

_MAX_PI_MIN = 0.5
_HALVINGS = 60
_TILTS = 300


def bounds_of_released(
    counts: Ints,
    scale: Fraction,
    totals: Ints,
    level: float = 0.95,
    *,
    gap: float,
    kind: GapKind = "unknown",
    windows: int = 1,
) -> MixingBounds:
    """Mixing bounds with the smallest pi_min that released histograms allow, and the gap that is given.

    Args:
        counts: Released counts, int64, shape (n, k): of any windows and keys, no cell counted twice.
        scale: Exact scale of the noise of one release.
        totals: Public number of cells that each row counts, shape (n,).
        level: Probability of holding pi_min, over noise and history.
        gap: Gap that the chain has at least; an assumption, which rows and ledger should name.
        kind: Which gap it is, see `MixingBounds`.
        windows: Releases that each row is the sum of.

    Raises:
        ChainError: If the gap is out of range.
        EstimationError: If the rows show no pi_min above 0. No number of theirs is in the message.
        ValueError: If a shape, a type or the level is wrong.
    """
    if not 0 < level < 1:
        raise EstimationError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")
    released = check_released(counts, totals)
    draws = len(released) * whole("windows", windows, "give the releases that each row is the sum of", least=1)
    rho = MixingBounds(_MAX_PI_MIN, gap, kind).rho
    DiscreteLaplace(scale)
    sums, cells = released.sum(axis=0, dtype=np.float64), float(totals.sum(dtype=np.float64))
    wanted = math.log1p(-level)
    rate = 1 / float(scale)
    # from far below the exponent that suits a count without noise to the end of the noise's range
    t = np.minimum(rate, MOST_TILT) * np.geomspace(1e-7, 1.0 if draws == 1 else 0.9999, _TILTS)[:, np.newaxis]
    given = public_noise_log_tails(scale, t, draws) - t * sums

    low, high = np.zeros(len(sums)), np.ones(len(sums))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        refuted = (cells * log_growth(middle, rho, t) + given).min(axis=0) <= wanted
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    unseen = np.flatnonzero(low <= 2.0 ** (1 - _HALVINGS))
    if unseen.size:
        raise EstimationError(
            f"counts: at level {level:g} the rows do not show that every state occurs, given their noise: "
            f"state {name_states(unseen.tolist(), None)}. Use more windows or larger groups, merge rare bins, or give "
            "pi_min as well"
        )
    return MixingBounds(min(_MAX_PI_MIN, float(low.min())), gap, kind)
