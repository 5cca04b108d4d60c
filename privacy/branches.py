"""One world's side of an account: its running loss, and what is left of the slots behind the horizon.

*Folding.* Charges begin at or behind a horizon H, l is the sight of the world. Slots from C = H - 2l on are kept as
they are, of earlier ones only the sum of their density. Slots from F = H - l on are priced as ever: they see l slots to
the left, all of them kept, and "no end" costs the sum. So their loss is exactly that of the account that forgot
nothing.

A slot i before F is settled: one number bounds the loss of all of them for ever. With ends of lag b <= l on the right
the mass inside lies in (i, i + l), before H, so no later charge changes it; only "no end" could be cheaper. Leaving
"no end" out on the right gives closed(i), a minimum over fewer quilts, hence at least loss(i), now and after any number
of charges that begin at H or later. The number kept is the largest closed(i).

*Slack.* Let T be the largest influence on the right at the last lag. The end at lag l costs at most what no end costs,
plus T, so loss(i) <= closed(i) <= loss(i) + T: folding adds at most T, which is at most ``influence.RESOLUTION`` unless
the longest table allowed ended before. Where T is infinite, nothing closes. Then the first slot charged has nothing to
its left and no usable end on its right for some pair, and loses the sum of all density; the same on the other side: the
loss is that sum, which is kept, and the slack is 0.

*Order.* Both numbers are functions of the density before H at the time of the fold and of what comes at H or later, so
charges that begin behind the horizon may come in any order.

*Behind the horizon.* A charge e over slots that begin before H changes settled slots. It is priced from above, by the
smaller of two bounds. (1) No slot before H has more density than the recorded maximum, and then than the maximum plus
e; an endless stream of that density loses at least closed(i) of every settled slot. (2) The rule is subadditive: take
on each side the nearer of two ends, its influence is the larger of the two and its mass at most that of either, so the
loss of both together is at most the number kept plus the loss of the charge alone, plus T where nothing was kept.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from .accounting.constant import Rule, constant_loss, grid_density, on_grid
from .accounting.events import around
from .chains import ChainError, FloatArray, frozen
from .charges import outward
from .checks import float_above
from .density import Density
from .influence import Bound, SidedInfluence, sided_influence
from .inverse import largest_density
from .models.belief import AnyBelief
from .places import pricer_of
from .running import Patch, Running, View, Worst
from .timeline import Timeline
from .worlds import Segment, World


class Branch:
    """A world, what its kept slots lose, and what its settled slots lose at most.

    Attributes:
        world: What is believed.
        running: The loss of the slots from ``live`` on.
        settled: Bound on the loss of the slots before it.
        live: First slot that is still priced; None for all.
    """

    def __init__(
        self,
        world: World,
        line: Timeline,
        *,
        settled: float = 0.0,
        live: int | None = None,
        rule: Rule = "forward-backward",
    ) -> None:
        """Price a timeline whose cuts hold those of the world and ``live``."""
        self.world, self.settled, self.live, self.rule = world, settled, live, rule
        self.running = Running(world, line, View(first=live))

    def with_patch(self, patch: Patch | None, top: Fraction) -> Worst:
        """The worst of all slots with a patch of the running loss; without a slot where it is a settled one.

        Args:
            patch: None for what is committed.
            top: Largest density of all slots with the patch, the folded ones included.
        """
        return self.least(self._by_slots(self.running.worst if patch is None else patch.worst), top)

    @property
    def quilts(self) -> Worst:
        """The worst of all slots by the quilts alone."""
        return self._by_slots(self.running.worst)

    def _by_slots(self, worst: Worst) -> Worst:
        return Worst(self.settled) if self.settled > worst.loss else worst

    def least(self, worst: Worst, top: Fraction) -> Worst:
        """The loss by the quilts, or the one that the largest density bounds, whichever is less."""
        # no bound by the density is below the density itself
        if worst.loss <= top:
            return worst
        bound = self.bound(top)
        return worst if worst.loss <= bound else Worst(bound, density=float(top))

    def bound(self, top: Fraction) -> float:
        """What releases lose at most of which no slot has more density, at any slot; infinite where that is not known.

        Where the belief changes, the slots near the change see two kernels, and nothing is claimed.
        """
        if self.rule != "forward-backward" or self.world.changes or top <= 0:
            return math.inf
        return constant_loss(self.world.segments[0].belief, on_grid(top))

    def around(self, top: Fraction) -> float:
        """What the slots around an event tell about it at most, where no slot has more density; infinite alike."""
        if self.rule != "forward-backward" or self.world.changes:
            return math.inf
        return around(self.world.segments[0].belief, on_grid(top)) if top > 0 else 0.0

    def settled_at(self, line: Timeline, horizon: int) -> tuple[float, int]:
        """What is kept of the slots that a fold at a horizon settles: the bound, and the first slot still priced."""
        live = horizon - self.world.sight
        if self.live is not None and live <= self.live:
            return self.settled, self.live
        if self.world.is_idle or not self.world.closes or not line.count or line.slots[0] >= live:
            return self.settled, live
        view = View(first=self.live, stop=live, open_right=True)
        return max(self.settled, Running(self.world, line, view).worst.loss), live

    def late_bound(self, peak: Fraction, alone: float) -> float:
        """The settled bound once a charge behind the horizon is priced from above.

        Args:
            peak: Largest density before the horizon, with the charge.
            alone: What the charge loses alone.
        """
        if not self.world.closes or self.world.is_idle:
            return self.settled
        # where nothing lay behind the horizon, closing the right side costs the last influence
        bound = self.settled + alone + self.world.spared[1]
        if not self.world.changes:
            bound = min(bound, max(self.settled, self.ceiling(float_above(peak))))
        return bound

    def alone(self, density: Density) -> Worst:
        """The worst slot of a density alone by the quilts, in the same world."""
        return Running(self.world, Timeline(density, cuts=self.world.cuts)).worst

    def density_for(self, epsilon: float) -> float:
        """The largest density whose endless stream loses at most epsilon, but for what a change of belief costs.

        Raises:
            ChainError: If neither account has one.
        """
        bound = 0.0
        if self.rule == "forward-backward" and not self.world.changes:
            try:
                bound = grid_density(self.world.segments[0].belief, epsilon)
            except ValueError:
                bound = 0.0
        try:
            return max(bound, min(self._by_quilts(segment, epsilon) for segment in self.world.segments))
        except ChainError:
            if not bound:
                raise
            return bound

    @staticmethod
    def _by_quilts(segment: Segment, epsilon: float) -> float:
        pricer = segment.pricer
        return largest_density(pricer.tables, epsilon, lambda density: outward(pricer.ceiling(density)))

    def ceiling(self, density: float) -> float:
        """Loss of an endless stream whose every slot has this density, by the quilts."""
        world = self.world
        steady = max(segment.pricer.ceiling(density) for segment in world.segments)
        if not world.changes or not math.isfinite(steady):
            return steady
        low, high = min(world.changes) - 2 * world.sight, max(world.changes) + 2 * world.sight
        line = Timeline(cuts=world.cuts)
        line.add(low, high, Fraction(density))
        return max(steady, Running(world, line, View(open_left=True, open_right=True)).worst.loss)


def joined_world(belief: AnyBelief, kept: int | None, bound: Bound) -> World:
    """The world of a belief that joins an account, its tables ended so early that the slots kept are enough.

    Ending a table early only takes quilts away, so every loss stays an upper bound.

    Args:
        belief: What is believed about the whole history.
        kept: Slots kept before the horizon; None if all are.
        bound: The closed form under mixing bounds.
    """
    tables = sided_influence(belief, bound)
    if kept is None or 2 * tables.reach <= kept:
        return World.of(belief, bound)
    return World((Segment(None, belief, pricer_of(_shortened(tables, kept // 2))),), shortened=kept // 2)


def _shortened(tables: SidedInfluence, lags: int) -> SidedInfluence:
    def cut(table: FloatArray) -> FloatArray:
        return frozen(table[:, :lags].copy()) if lags else frozen(np.full((len(table), 1), np.inf))

    return SidedInfluence(cut(tables.left), cut(tables.right), tables.pairs, tables.basis)
