"""What whole schedules would cost on top of an account, endless ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .branches import Branch
from .running import Running, View
from .schedules import Schedule, scenes
from .timeline import Timeline


def extended_loss(branches: Sequence[Branch], line: Timeline, schedules: Sequence[Schedule]) -> float:
    """The loss of a timeline together with schedules, the largest over the worlds, not rounded outward."""
    density, loss = line.density(), 0.0
    for branch in branches:
        world = branch.world
        if world.is_idle:
            continue
        if not world.closes and any(schedule.stop is None for schedule in schedules):
            return math.inf
        loss = max(loss, branch.settled)
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
