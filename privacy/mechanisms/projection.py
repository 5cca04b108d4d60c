"""A better estimate for free: noisy counts projected onto the histograms that are possible.

The number of cells that a histogram counts is public where the missing cells are. The projection reads published
numbers only, so it costs no privacy (theory section 8, item 4).

>>> import numpy as np
>>> project_to_total(np.array([[50, -6, 10]]), np.array([48])).tolist()
[[44.0, 0.0, 4.0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_AXES = 2


def project_to_total(noisy: NDArray[Any], total: NDArray[Any]) -> NDArray[np.float64]:
    """Project every row onto {c >= 0, sum of c = total}, by least squares.

    The solution has the form max(noisy - shift, 0); sorting a row gives the number of positive entries, and with it the
    shift, exactly (Held, Wolfe and Crowder 1974; Duchi et al. 2008, Figure 1).

    Args:
        noisy: noisy counts, finite, shape (n, k) with k at least 1.
        total: the public number of cells counted in each row, shape (n,), finite and not negative.

    Returns:
        float64, shape (n, k); rows sum to their totals up to rounding; a total of 0 gives zeros. The same input gives
        the same bits.

    Raises:
        ValueError: the shapes do not fit, or a value is not finite, or a total is negative.
    """
    if noisy.ndim != _AXES or noisy.shape[1] == 0:
        raise ValueError(f"noisy: the shape is {noisy.shape}, and must be (rows, bins) with at least one bin")
    rows, bins = noisy.shape
    if total.shape != (rows,):
        raise ValueError(f"total: the shape is {total.shape}, and must be ({rows},): one total per row of noisy")
    budget = total.astype(np.float64)[:, np.newaxis]
    values = noisy.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("noisy: a value is not finite: pass the counts of a release")
    if not (np.isfinite(budget) & (budget >= 0)).all():
        raise ValueError(
            f"total: {float(budget[~(np.isfinite(budget) & (budget >= 0))][0])} is negative or not finite: "
            "pass the public number of cells that each histogram counts"
        )
    if rows == 0:
        return values
    # differences to the largest entry are what decides, and stay small where the counts are large
    values -= values.max(axis=1, keepdims=True)
    falling = -np.sort(-values, axis=1)
    shifts = (np.cumsum(falling, axis=1) - budget) / np.arange(1, bins + 1)
    # entry j of the sorted row is positive in the solution exactly if it exceeds the shift of the first j entries; the
    # first entry is 0 and exceeds its shift -total unless the total is 0
    positive = np.maximum((falling > shifts).sum(axis=1), 1)
    shift = np.take_along_axis(shifts, positive[:, np.newaxis] - 1, axis=1)
    return np.maximum(values - shift, 0.0)
