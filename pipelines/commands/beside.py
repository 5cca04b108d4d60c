"""What the Markov Quilt Mechanism would need for a belief, beside the noise of the forward-backward account."""

from __future__ import annotations

from contextlib import suppress

from ...privacy.models.belief import AnyBelief, Directed
from ...privacy.quilts import mqm_approx, mqm_exact


def by_quilts(belief: AnyBelief, epsilon: float, length: int | None = None) -> dict[str, float]:
    """Sigma by the methods of [SWC17] that have an answer for a belief.

    Args:
        belief: one without quilts, such as a contraction class, has none.
        epsilon: target, above 0.
        length: slots of a window; an endless stream if left out.
    """
    found: dict[str, float] = {}
    if isinstance(belief, Directed):
        return found
    for name, method in (("mqm-exact", mqm_exact), ("mqm-approx", mqm_approx)):
        # a method that does not read such a belief, or finds no quilt far enough, has no answer
        with suppress(TypeError, ValueError):
            found[name] = method(belief, epsilon, length).sigma
    return found


def said_by_quilts(found: dict[str, float]) -> str:
    """``mqm-exact 41.5, mqm-approx 81.2``; nothing where there is nothing."""
    return ", ".join(f"{name} {sigma:.1f}" for name, sigma in found.items())
