"""Beliefs that forget more slowly: how much of an account rests on the speed of the belief.

What a slot tells about another one fades with the distance, as fast as the belief says. Where series forget more
slowly, everything published costs more than the account says. The same charges priced under slower beliefs show how
much.

>>> slowed({"kind": "markov-chain", "transition": [[0.9, 0.1], [0.4, 0.6]], "initial": None}, 2)["transition"]
[[0.95, 0.05], [0.2, 0.8]]
>>> curves = slowed({"kind": "dobrushin-bounds", "forward": [[1, 0.4]], "backward": [[4, 0.5]]}, 2)
>>> [(m, round(eta, 6)) for m, eta in curves["forward"]]
[(1, 0.7), (2, 0.49)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..models.dobrushin import MOST_STEPS
from ..validation import positive

#: What a mean over up to 100,000 moves may lose in double precision.
_OUTWARD = 1e-12

#: Points of a curve that are slowed, at most.
_POINTS = 100

Form = dict[str, Any]


def slowed(belief: Mapping[str, Any], factor: float) -> Form | None:
    """The plain form of a belief in which every change of state comes ``factor`` times less often.

    A kernel P becomes (1 - 1/factor) I + P/factor: the stationary distribution stays, and 1 - lambda of each eigenvalue
    is divided by the factor. A gap is divided by the factor. Initial distributions stay.

    The slowed chain moves in j of m slots, and j is binomial with the probability 1/factor. Its m-step kernel is the
    mean of P^j, and the total variation between its rows at most the mean of eta_j. That holds for every member whose
    kernel stays, in both directions, because the reversal is slowed alike; m is each one given, and factor * m.

    Returns:
        A form of the same kind, without certificates; None for a kind of which no slower one is known.
    """
    if positive("factor", factor, "give how many times less often states change, e.g. 2") < 1:
        raise ValueError(f"factor is {factor}, but must be at least 1: a belief is only slowed down here")
    make = _SLOWED.get(str(belief.get("kind")))
    # a certificate is about the belief that it is kept with
    form = {name: value for name, value in belief.items() if name != "certificates"}
    return None if make is None else make(form, float(factor))


def _matrix(rows: Any, factor: float) -> Any:
    kernel = np.asarray(rows, dtype=np.float64)
    slow = kernel / factor + (1 - 1 / factor) * np.eye(kernel.shape[-1])
    return np.round(slow / slow.sum(axis=-1, keepdims=True), 15).tolist()


def _chain(belief: Form, factor: float) -> Form:
    return belief | {"transition": _matrix(belief["transition"], factor)}


def _reach(m: int, factor: float) -> tuple[int, int]:
    """Moves of m slots beyond which lie less than 1e-17, by Hoeffding, which the outward rounding covers."""
    spread = 4.5 * math.sqrt(m)
    return max(0, math.floor(m / factor - spread)), min(m, math.ceil(m / factor + spread))


def _curve(points: Any, factor: float) -> list[list[float]]:
    if factor == 1:
        return points
    from scipy.stats import binom  # noqa: PLC0415 - half a second that only this one needs

    # any of many points are a bound; short ones decide what dense windows cost, and the last what seldom ones do
    kept = np.unique(np.geomspace(1, len(points), _POINTS).astype(int)) - 1
    points = [points[at] for at in kept.tolist()]
    steps = sorted({min(MOST_STEPS, math.ceil(one * m)) for m, _ in points for one in (1, factor)})
    moves = np.arange(_reach(steps[-1], factor)[1] + 1)
    etas = np.ones(len(moves))
    for m, eta in points:
        # total variation is submultiplicative: j moves are j // m times m
        np.minimum(etas, np.power(float(eta), moves // m), out=etas)
    means: list[float] = []
    for m in steps:
        few, many = _reach(m, factor)
        likely = slice(few, many + 1)
        means.append(float(binom.pmf(moves[likely], m, 1 / factor) @ etas[likely]) + _OUTWARD)
    return [[m, min(1.0, mean)] for m, mean in zip(steps, np.minimum.accumulate(means).tolist(), strict=True)]


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
