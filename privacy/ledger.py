"""The quilt ledger: what all releases on one series have cost together, in epsilon.

A release over a window whose every slot it can move by epsilon_dp adds epsilon_dp to the density d of those slots. Then

    loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ],

for releases in any number, overlap and order, later ones chosen in the light of earlier ones. Proof: given the state
of the quilt, only the slots inside it can differ between the two secrets, so by group privacy the density ratio of
each release is at most e to the power of its epsilon_dp times the slots of it inside, independent noise multiplies,
and the quilt itself tells at most its influence. Take the best quilt for each pair, then the worst pair. The seeds'
rules are special cases or weaker ([SWC17] Theorem 4.4, [SC17] Theorems 3.1, 3.3 and 3.7, [BHGKM] Theorem 6.2).

>>> from quiltstream.privacy.classes import MixingBounds
>>> from quiltstream.privacy.quilts import mqm_approx
>>> belief = MixingBounds(pi_min=0.2, gap=0.75)
>>> density = mqm_approx(belief, epsilon=1.0).epsilon_dp
>>> ledger = Ledger(belief)
>>> for week in range(52):
...     charge = ledger.charge(336 * week, 336 * (week + 1), density)
>>> round(ledger.loss, 9)
1.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .checks import positive, whole
from .classes import Belief, FiniteClass, MixingBounds
from .density import Density, Run, steps_of
from .influence import sided_influence
from .inverse import largest_density
from .quilts import Quilt
from .schedules import Schedule, scenes
from .sweep import Scene, Sweep, Worst

OUTWARD = 2.0**-46
"""Every loss is raised by this relative amount (1.4e-14), more than the rounding of the few sums that make it."""

Span: TypeAlias = tuple[int, int, float]
"""A charge to come: first slot, slot after the last, loss per slot."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One charge as it was made.

    Attributes:
        start: First slot.
        stop: Slot after the last.
        epsilon_dp: Loss per slot.
        loss_before: Loss of the ledger without it.
        loss_after: Loss of the ledger with it.
        rule: What decided the loss, one sentence.
        quilt: The quilt of the worst slot.
        slot: The worst slot; None where there is no loss.
    """

    start: int
    stop: int
    epsilon_dp: float
    loss_before: float
    loss_after: float
    rule: str
    quilt: Quilt | None
    slot: int | None


class BudgetExceeded(ValueError):  # noqa: N818 - the public name says what happened
    """A charge that the budget does not allow; the ledger is as it was.

    Attributes:
        spent: Loss before.
        asked: What the charge would have added.
        remaining: Budget less spent, at least 0.
        budget: The limit.
    """

    def __init__(self, spent: float, asked: float, budget: float) -> None:
        """Make the message from the numbers."""
        self.spent, self.asked, self.budget = spent, asked, budget
        self.remaining = max(0.0, budget - spent)
        super().__init__(
            f"the charge would cost {asked!r} epsilon, but {spent!r} of the budget {budget!r} is spent and "
            f"{self.remaining!r} remains: release less often, add noise, or raise the budget by an explicit decision"
        )

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[float, float, float]]:
        return BudgetExceeded, (self.spent, self.asked, self.budget)


class Ledger:
    """An account of the loss of one belief.

    The loss is a function of the density alone: the same charges in any order give the same float. It is rounded
    outward by ``OUTWARD``. It never falls when a charge is added, up to that rounding.

    Beliefs: mixing bounds by Lemma 4.8; a stationary chain by its exact influence; a chain with a fixed initial
        distribution by
    the bound that holds at every slot for every initial distribution, so that no slot need be named; a finite class
    by its worst member. Windows lie anywhere on the integer line.
    """

    def __init__(self, belief: Belief, budget: float | None = None, *, start: int | None = None) -> None:
        """Open an empty account.

        Args:
            belief: What is believed about the series.
            budget: The most the loss may reach; None for no limit.
            start: The slot at which a chain with a fixed initial distribution begins: charges before it are refused.

        Raises:
            ChainError: If a stationary chain is reducible.
            ValueError: If the budget is not finite and above 0, or a start is given for a belief that has none.
        """
        self._budget = None if budget is None else positive("budget", budget, "give the most that may be lost, or None")
        self._start = None if start is None else whole("start", start, "give the slot at which the chain begins")
        if self._start is not None and not _has_start(belief):
            raise ValueError(
                f"start is {self._start}, but the belief holds at every slot: "
                "leave start out, it is for a chain with initial"
            )
        self._belief = belief
        self._tables = sided_influence(belief)
        self._sweep = Sweep(self._tables)
        self._density = Density()
        self._worst = Worst()

    @property
    def belief(self) -> Belief:
        """What is believed about the series."""
        return self._belief

    @property
    def budget(self) -> float | None:
        """The most the loss may reach; None for no limit."""
        return self._budget

    @property
    def loss(self) -> float:
        """Epsilon that all charges so far cost together."""
        return _outward(self._worst.loss)

    @property
    def remaining(self) -> float:
        """Budget less loss, at least 0; infinite without a budget."""
        return math.inf if self._budget is None else max(0.0, self._budget - self.loss)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The density so far, in runs of equal density."""
        return self._density.runs()

    @property
    def basis(self) -> str:
        """What the loss rests on, one sentence for the record."""
        return self._tables.basis

    def charge(self, start: int, stop: int, epsilon_dp: float) -> Charge:
        """Charge one window, or refuse it and change nothing.

        Args:
            start: First slot.
            stop: Slot after the last.
            epsilon_dp: Loss per slot: L1 sensitivity over noise scale.

        Raises:
            BudgetExceeded: If the loss would pass the budget.
            TypeError: If a slot is not a whole number.
            ValueError: If the window is empty or begins before the chain, or epsilon_dp is not finite and above 0.
        """
        span = self._checked(start, stop, epsilon_dp)
        density = self._density.plus(*span)
        worst = self._price(density)
        before, after = self.loss, _outward(worst.loss)
        if self._budget is not None and after > self._budget:
            raise BudgetExceeded(before, after - before, self._budget)
        self._density, self._worst = density, worst
        return Charge(*span, before, after, _rule(worst), worst.quilt, worst.slot)

    def replay(self, charges: Iterable[Span]) -> float:
        """Enter charges that have been made already, asking no budget, and return the loss.

        All of them are entered or, on a bad one, none.

        Raises:
            TypeError: If a slot is not a whole number.
            ValueError: If a charge is malformed.
        """
        density = self._with(self._density, charges)
        self._density, self._worst = density, self._price(density)
        return self.loss

    def would_cost(self, start: int, stop: int, epsilon_dp: float) -> float:
        """What a charge would add to the loss; the ledger stays as it is, and no budget is asked."""
        density = self._density.plus(*self._checked(start, stop, epsilon_dp))
        return max(0.0, _outward(self._price(density).loss) - self.loss)

    def loss_of(self, charges: Iterable[Span]) -> float:
        """The loss of these charges alone, under the same belief."""
        return _outward(self._price(self._with(Density(), charges)).loss)

    def ceiling(self, density: float) -> float:
        """Loss of an endless stream whose every slot has this density.

        No charges with at most that density in every slot cost more.
        """
        return _outward(self._sweep.ceiling(positive("density", density, "give the loss per slot")))

    def density_for(self, epsilon: float) -> float:
        """The largest density whose endless stream loses at most epsilon, the inverse of ``ceiling``.

        For a chain this is the pairwise calibration: each secret pair uses its own quilt.

        Raises:
            ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix.
            ValueError: If epsilon is not finite and above 0.
        """
        epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        return largest_density(self._tables, epsilon, self.ceiling)

    def extended_loss(self, schedules: Iterable[Schedule]) -> float:
        """The loss of what is charged together with whole schedules, endless ones included.

        An endless schedule is followed until what a slot sees repeats, and one period stands for all that come;
        several endless schedules with gaps whose common period is too long are priced at their largest density, an
        upper bound.

        Raises:
            ValueError: If a schedule begins before the chain.
        """
        listed = [self._started(schedule) for schedule in schedules]
        loss = -1.0
        for scene in scenes(self._density, listed, self._tables.reach):
            loss = max(loss, self._sweep.worst(scene, loss).loss)
        return _outward(max(loss, 0.0))

    def admitted_prefix(self, schedule: Schedule, reserved: Sequence[Schedule] = ()) -> int | None:
        """The slot up to which windows of a schedule fit into the budget, with what is charged and what is reserved.

        The windows admitted are the first so many; the loss does not fall with their number, so it is found by
        bisection.

        Args:
            schedule: The schedule asked for.
            reserved: Schedules promised before. A window of theirs that is charged already must not be reserved, too:
                it would count twice.

        Returns:
            None if all windows fit; else the end of the last window that does, and the start of the schedule if none
            does.

        Raises:
            ValueError: If a schedule begins before the chain.
        """
        if self._budget is None or self._fits([*reserved, schedule]):
            return None
        low, high = 0, schedule.windows
        if high is None:
            high = 1
            limit = self._saturated(schedule, reserved, self._budget)
            while high < limit and self._fits([*reserved, schedule.first(high)]):
                low, high = high, min(2 * high, limit)
            if high == limit and self._fits([*reserved, schedule.first(high)]):
                return schedule.end_of(high)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits([*reserved, schedule.first(middle)]):
                low = middle
            else:
                high = middle
        return schedule.end_of(low)

    def _price(self, density: Density) -> Worst:
        return self._sweep.worst(Scene(density.runs()))

    def _with(self, density: Density, charges: Iterable[Span]) -> Density:
        spans = [self._checked(*charge) for charge in charges]
        return density.with_steps(step for span in spans for step in steps_of(*span))

    def _checked(self, start: int, stop: int, epsilon_dp: float) -> Span:
        advice = "give the first slot and the slot after the last"
        start = whole("start", start, advice)
        stop = whole("stop", stop, advice, least=start + 1)
        if self._start is not None and start < self._start:
            raise ValueError(f"start is {start}, but the chain begins at slot {self._start}: charge later slots only")
        return start, stop, positive("epsilon_dp", epsilon_dp, "give L1 sensitivity over noise scale")

    def _started(self, schedule: Schedule) -> Schedule:
        if self._start is not None and schedule.start < self._start:
            raise ValueError(
                f"the schedule starts at slot {schedule.start}, but the chain begins at slot {self._start}: "
                "start it later"
            )
        return schedule

    def _fits(self, schedules: Sequence[Schedule]) -> bool:
        return self._budget is not None and self.extended_loss(schedules) <= self._budget

    def _saturated(self, schedule: Schedule, reserved: Sequence[Schedule], budget: float) -> int:
        """So many windows that more of them change nothing, or that they have passed the budget.

        Windows out of sight matter only while the density there is less than the influence at the last lag; a pair for
        which that is infinite loses all the density there is.
        """
        lasting = scenes(self._density, (*reserved, schedule), self._tables.reach)[0]
        end = schedule.start if lasting.stop is None else lasting.stop
        slots = end + 2 * self._tables.reach - schedule.start
        tails = np.concatenate([self._tables.left[:, -1], self._tables.right[:, -1]])
        wanted = np.where(np.isfinite(tails), 2 * tails, budget).max() / (schedule.size * schedule.epsilon_dp)
        return slots // schedule.every + math.ceil(wanted) + schedule.overlap + 2


def _has_start(belief: Belief) -> bool:
    if isinstance(belief, MixingBounds):
        return False
    chains = belief.chains if isinstance(belief, FiniteClass) else (belief,)
    return any(chain.initial is not None for chain in chains)


def _outward(loss: float) -> float:
    return loss * (1 + OUTWARD)


def _rule(worst: Worst) -> str:
    if worst.slot is None or worst.quilt is None:
        return "no loss: the belief has no secret pair"
    if worst.quilt.left is None and worst.quilt.right is None:
        return f"group privacy over all slots: no quilt of slot {worst.slot} is cheaper"
    return f"quilt ledger: slot {worst.slot} is worst, with the quilt {worst.quilt}"
