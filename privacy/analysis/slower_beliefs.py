"""What if states change less often than believed: the same belief, slowed down, for a second opinion on an account.

A belief promises that a series forgets: what a slot tells about another one fades with the distance. If series forget
more slowly than believed, everything published costs more than the account says, without a limit that the account
knows. Pricing the same charges under slower beliefs says how much depends on that speed.

>>> slowed({"kind": "markov-chain", "transition": [[0.9, 0.1], [0.4, 0.6]], "initial": None}, 2)["transition"]
[[0.95, 0.05], [0.2, 0.8]]
>>> slowed({"kind": "dobrushin-bounds", "forward": [[1, 0.9], [8, 0.2]], "backward": [[4, 0.5]]}, 1.5)["forward"]
[[2, 0.9], [12, 0.2]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..validation import positive

Form = dict[str, Any]


def slowed(belief: Mapping[str, Any], factor: float) -> Form | None:
    """The plain form of a belief in which every change of state comes ``factor`` times less often.

    A kernel P becomes (1 - 1/factor) I + P/factor: the stationary distribution stays, and 1 - lambda of each eigenvalue
    is divided by the factor. A gap is divided by the factor. Bounds on the total variation after m slots hold after
    factor * m slots, rounded up. Initial distributions stay.

    Args:
        belief: The form that ``to_dict`` of a belief writes.
        factor: At least 1.

    Returns:
        A form of the same kind; None for a kind of which no slower one is known.

    Raises:
        ValueError: The factor is below 1.
    """
    if positive("factor", factor, "give how many times less often states change, e.g. 2") < 1:
        raise ValueError(f"factor is {factor}, but must be at least 1: a belief is only slowed down here")
    make = _SLOWED.get(str(belief.get("kind")))
    return None if make is None else make(dict(belief), float(factor))


def _matrix(rows: Any, factor: float) -> Any:
    kernel = np.asarray(rows, dtype=np.float64)
    slow = kernel / factor + (1 - 1 / factor) * np.eye(kernel.shape[-1])
    return np.round(slow / slow.sum(axis=-1, keepdims=True), 15).tolist()


def _chain(belief: Form, factor: float) -> Form:
    return belief | {"transition": _matrix(belief["transition"], factor)}


def _curve(points: Any, factor: float) -> list[list[float]]:
    found: dict[int, float] = {}
    for m, eta in points:
        found[math.ceil(factor * m)] = eta  # of two that fall together the later is the smaller bound
    return [[m, eta] for m, eta in found.items()]


_SLOWED: dict[str, Callable[[Form, float], Form]] = {
    "markov-chain": _chain,
    "finite-class": lambda belief, factor: belief | {"chains": [_chain(one, factor) for one in belief["chains"]]},
    "any-initial": lambda belief, factor: (
        belief | {"transitions": [_matrix(one, factor) for one in belief["transitions"]]}
    ),
    "periodic-chain": lambda belief, factor: belief | {"transitions": _matrix(belief["transitions"], factor)},
    "mixing-bounds": lambda belief, factor: belief | {"gap": belief["gap"] / factor},
    "dobrushin-bounds": lambda belief, factor: (
        belief | {side: _curve(belief[side], factor) for side in ("forward", "backward")}
    ),
}
