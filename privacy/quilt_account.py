"""The pairwise quilt account of one belief: what releases cost by quilts alone, to be compared with.

    loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ].

Proof: given the state of the quilt, only the slots inside it can differ between the two secrets, so by group privacy
the density ratio of each release is at most e to the power of its epsilon_dp times the slots of it inside, independent
noise multiplies, and the quilt itself tells at most its influence. Take the best quilt for each pair, then the worst
pair. The theorems of the sources are special cases or weaker ([SWC17] Theorem 4.4, [SC17] Theorems 3.1, 3.3, 3.6 and
3.7, [BHGKM] Theorem 6.2).

Which slots are looked at. None before the first charged slot or behind the last: all outputs are then functions of the
slots on one side, so their law given X_i is a mixture of their laws given the neighbour on that side, and a mixture of
numbers has no larger ratio than the numbers. In a run of equal density the slots further than the reach from both
edges see either an end within the run, the same for all, or none: the sum of both sides is concave and piecewise linear
there, so its maximum is at a kink. All other slots are looked at, those of density 0 between windows included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .charges import Span, outward
from .density import Density, steps_of
from .influence import Bound, sided_influence
from .inverse import largest_density
from .models.belief import AnyBelief
from .places import Pricer, pricer_of
from .running import Running, Worst, closes
from .schedules import Schedule, scenes
from .timeline import Timeline


def prices_of(belief: AnyBelief, bound: Bound = "lemma-4.8") -> Pricer:
    """The prices of a belief's quilts, with the closed form of the influence under mixing bounds.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    return pricer_of(sided_influence(belief, bound))


def worst_by_quilts(belief: AnyBelief, charges: Iterable[Span], bound: Bound = "lemma-4.8") -> Worst:
    """The slot, pair and quilt that decide what charges lose together, the loss rounded outward.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    density = Density().with_steps(step for span in charges for step in steps_of(*span))
    worst = Running(prices_of(belief, bound), Timeline(density)).worst
    return replace(worst, loss=outward(worst.loss))


def loss_by_quilts(
    belief: AnyBelief, charges: Iterable[Span] = (), schedules: Sequence[Schedule] = (), bound: Bound = "lemma-4.8"
) -> float:
    """What charges and schedules, endless ones included, lose together; epsilon, rounded outward.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    density = Density().with_steps(step for span in charges for step in steps_of(*span))
    return priced(prices_of(belief, bound), density, schedules)


def priced(pricer: Pricer, density: Density, schedules: Sequence[Schedule] = ()) -> float:
    """What a density and schedules lose together at a belief's prices; epsilon, rounded outward.

    An endless schedule is followed until what a slot sees repeats, and one period stands for all that come.
    """
    if pricer.is_idle:
        return 0.0
    if not closes(pricer) and any(schedule.stop is None for schedule in schedules):
        return math.inf
    found = (
        Running(pricer, Timeline(scene.density, cuts=scene.cuts), scene.view).worst.loss
        for scene in scenes(density, schedules, pricer.reach)
    )
    return outward(max(found, default=0.0))


def density_by_quilts(belief: AnyBelief, epsilon: float, bound: Bound = "lemma-4.8") -> float:
    """The largest density whose endless stream loses at most epsilon: the pairwise calibration.

    Raises:
        ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix.
        ValueError: If epsilon is not finite and above 0.
    """
    pricer = prices_of(belief, bound)
    return largest_density(pricer.tables, epsilon, lambda density: outward(pricer.ceiling(density)))
