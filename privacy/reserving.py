"""What whole schedules would cost on top of an account, endless ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np

from .branches import Branch
from .density import Density
from .running import Running, View
from .schedules import Schedule, scenes
from .timeline import Timeline


def extended_loss(
    branches: Sequence[Branch],
    line: Timeline,
    schedules: Sequence[Schedule],
    peak: Fraction,
    enough: float | None = None,
) -> float:
    """The loss of a timeline together with schedules, the largest over the worlds, not rounded outward.

    Args:
        branches: The worlds.
        line: What is charged.
        schedules: What comes on top.
        peak: Largest density of the slots that are kept no more.
        enough: A loss that needs not be told from smaller ones.
    """
    density = line.density()
    top = max(peak, largest(density, schedules))
    losses: list[float] = []
    for branch in branches:
        if branch.world.is_idle:
            continue
        bound = branch.bound(top)
        # a bound that is little enough already, by a margin for rounding, makes the quilts needless
        few = enough is not None and bound * (1 + 2.0**-40) <= enough
        losses.append(bound if few else min(bound, _by_quilts(branch, line, density, schedules)))
    return max(losses, default=0.0)


def largest(density: Density, schedules: Sequence[Schedule]) -> Fraction:
    """The largest density that schedules make on top of another, or one above it."""
    last = scenes(density, schedules, 0)[-1].density
    return max(accumulate(rise for _, rise in sorted(last.steps.items())), default=Fraction(0))


def _by_quilts(branch: Branch, line: Timeline, density: Density, schedules: Sequence[Schedule]) -> float:
    world, loss = branch.world, branch.settled
    if not world.closes and any(schedule.stop is None for schedule in schedules):
        return math.inf
    for scene in scenes(density, schedules, world.sight, world.changes):
        view = scene.view
        if branch.live is not None and (view.first is None or view.first < branch.live):
            view = View(branch.live, view.stop, open_left=view.open_left, open_right=view.open_right)
        cuts = {*scene.cuts, *world.cuts, *(() if branch.live is None else (branch.live,))}
        whole = Timeline(scene.density, folded=line.folded, cuts=cuts, floor=line.floor)
        loss = max(loss, Running(world, whole, view).worst.loss)
    return loss


def saturated(
    branches: Sequence[Branch], line: Timeline, schedule: Schedule, reserved: Sequence[Schedule], budget: float
) -> int:
    """So many windows of an endless schedule that more of them change nothing, or that they have passed the budget.

    Windows out of sight matter only while the density there is less than the influence at the last lag; a pair for
    which that is infinite loses all the density there is.
    """
    most = 0
    for branch in branches:
        world = branch.world
        lasting = scenes(line.density(), (*reserved, schedule), world.sight, world.changes)[0].view
        end = schedule.start if lasting.stop is None else lasting.stop
        slots = end + 2 * world.sight - schedule.start
        tails = np.array(world.spared)
        wanted = np.where(np.isfinite(tails), 2 * tails, budget).max() / (schedule.size * schedule.epsilon_dp)
        most = max(most, slots // schedule.every + math.ceil(wanted) + schedule.overlap + 2)
    return most
