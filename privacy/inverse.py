"""From a target loss back to a density: the pairwise calibration of an endless stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .chains import ChainError
from .influence import SidedInfluence


def largest_density(tables: SidedInfluence, epsilon: float, ceiling: Callable[[float], float]) -> float:
    """Find the density that an endless stream may have at a target loss.

    It is the min over pairs of the max over quilts of (epsilon - influence) / card, lowered until ``ceiling`` agrees.

    Per pair the loss is concave in the density (a minimum of lines, one per quilt), so the line of the best quilt at
    one density meets epsilon at or below the true root: Dinkelbach's iteration climbs to it from below, for all pairs
    at once.

    Args:
        tables: Influence of the belief.
        epsilon: Target.
        ceiling: The loss of an endless stream by density, non-decreasing.

    Returns:
        A density; infinite where there is no secret pair.

    Raises:
        ChainError: If some pair has no quilt of influence below epsilon.
    """
    if not len(tables.left):
        return np.inf
    rows, between = np.arange(len(tables.left)), np.arange(tables.reach)
    least = tables.left[:, -1] + tables.right[:, -1]
    if float(least.max()) >= epsilon:
        raise ChainError(
            f"no quilt within {tables.reach} slots has an influence below epsilon {epsilon!r}; "
            f"the least is {float(least.max())!r}: "
            "use a belief that mixes (irreducible, aperiodic, rare bins merged), or a larger epsilon"
        )
    density = np.zeros(len(rows))
    while True:
        slopes = np.multiply.outer(density, between)
        back, ahead = np.argmin(slopes + tables.left, axis=1), np.argmin(slopes + tables.right, axis=1)
        raised = (epsilon - tables.left[rows, back] - tables.right[rows, ahead]) / (back + ahead + 1)
        if not np.any(raised > density):
            break
        density = np.maximum(density, raised)
    found, lower = float(density.min()), 2.0**-52
    while ceiling(found) > epsilon:
        found, lower = found * (1 - lower), 2 * lower
    return found
