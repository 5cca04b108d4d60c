"""The ledger: what all releases on one series have cost together, in epsilon.

A release over a window whose every slot it can move by epsilon_dp adds epsilon_dp to the density d of those slots.
For releases in any number, overlap and order, later ones chosen in the light of earlier ones, the loss is the smaller
of two numbers: the forward-backward account at the largest density of any slot (:mod:`.accounting.constant`, with
theorem and certificate), as long as no belief changes at a slot; and the quilts' account,

    loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ].

Proof of the second: given the state of the quilt, only the slots inside it can differ between the two secrets, so by
group privacy the density ratio of each release is at most e to the power of its epsilon_dp times the slots of it
inside, independent noise multiplies, and the quilt itself tells at most its influence. Take the best quilt for each
pair, then the worst pair. The seeds' rules are special cases or weaker ([SWC17] Theorem 4.4, [SC17] Theorems 3.1,
3.3, 3.6 and 3.7, [BHGKM] Theorem 6.2): ``bounds`` says what each of them gives, or why it does not apply.

Which slots the quilts look at. None before the first charged slot or behind the last: all outputs are then functions
of the slots on one side, so their law given X_i is a mixture of their laws given the neighbour on that side, and a
mixture of numbers has no larger ratio than the numbers. In a run of equal density the slots further than the reach
from both edges see either an end within the run, the same for all, or none: the sum of both sides is concave and
piecewise linear there, so its maximum is at a kink. All other slots are looked at, those of density 0 between windows
included.

>>> from quiltstream.privacy.classes import MixingBounds
>>> from quiltstream.privacy.quilts import mqm_approx
>>> belief = MixingBounds(pi_min=0.2, gap=0.75)
>>> density = mqm_approx(belief, epsilon=1.0).epsilon_dp
>>> ledger = Ledger(belief)
>>> for week in range(52):
...     charge = ledger.charge(336 * week, 336 * (week + 1), density)
>>> round(ledger.loss, 4), round(ledger.bounds()["quilts"].loss, 9)
(0.3842, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Literal, get_args

from .account import Account
from .accounting.constant import Rule
from .branches import Branch, joined_world
from .charges import OUTWARD, BudgetExceeded, Charge, Span, outward, rule_of
from .checks import float_above, positive, whole
from .density import Density, steps_of
from .entries import Entry
from .influence import Bound
from .models.belief import AnyBelief
from .reserving import extended_loss, largest, saturated
from .running import Patch, Worst
from .schedules import Schedule
from .seeds import NOTHING, Charges, SeedsBound, seeds_bounds
from .states import AccountState, has_start
from .timeline import Timeline
from .worlds import World

__all__ = ["OUTWARD", "BudgetExceeded", "Charge", "Ledger", "Span"]

_ONE_BY_ONE = 16
"""So many charges are entered one by one; for more the account is made anew."""

_HALVINGS = 60


class Ledger(Account):
    """An account of the loss of one belief, or of several that follow each other or are held side by side.

    The loss is a function of the density alone: the same charges in any order give the same float. It is rounded
    outward by ``OUTWARD``. It never falls when a charge is added, up to that rounding. Losses need not add up: two
    charges may cost more than the sum of what each costs alone, though never more than by the quilts.

    Beliefs: mixing bounds by Lemma 4.8; a stationary chain by its exact influence; a chain with a fixed initial
        distribution by the bound that holds at every slot for every initial distribution, so that no slot need be
        named; a class by its worst member. Windows lie anywhere on the integer line.

    Time without end: ``fold`` (or ``keep``) forgets slots behind a horizon, see ``branches`` for what is kept of them
    and why it is enough.
    """

    def __init__(
        self,
        belief: AnyBelief,
        budget: float | None = None,
        *,
        start: int | None = None,
        keep: int | None = None,
        bound: Bound = "lemma-4.8",
        rule: Rule = "forward-backward",
    ) -> None:
        """Open an empty account.

        Args:
            belief: What is believed about the series.
            budget: The most the loss may reach; None for no limit.
            start: The slot at which a chain with a fixed initial distribution begins: charges before it are refused.
            keep: How many slots before the end of the latest charge another charge may still begin; what lies further
                back is folded from time to time. None keeps everything until ``fold`` is called.
            bound: The closed form under mixing bounds, as for ``mqm_approx``.
            rule: ``quilts`` leaves the forward-backward account out, to compare with.

        Raises:
            ChainError: If a stationary chain is reducible.
            TypeError: If start or keep is not a whole number.
            ValueError: If the budget is not finite and above 0, keep is negative, the rule is none, or a start is given
                for a belief that has none.
        """
        budget = None if budget is None else positive("budget", budget, "give the most that may be lost, or None")
        start = None if start is None else whole("start", start, "give the slot at which the chain begins")
        keep = None if keep is None else whole("keep", keep, "give the slots that stay open, or None for all", least=0)
        if start is not None and not has_start(belief):
            raise ValueError(
                f"start is {start}, but the belief holds at every slot: leave start out, it is for a chain with initial"
            )
        if rule not in get_args(Rule):
            raise ValueError(f"rule is {rule!r}, but must be one of {', '.join(get_args(Rule))}")
        super().__init__(AccountState((World.of(belief, bound),), budget, start, keep, bound=bound, rule=rule))

    @classmethod
    def from_state(cls, state: AccountState) -> Ledger:
        """The account that a state describes; its loss is that of the account the state was taken from, bit for bit."""
        made = cls.__new__(cls)
        Account.__init__(made, state)
        return made

    def charge(
        self,
        start: int,
        stop: int,
        epsilon_dp: float,
        *,
        entry_id: str | None = None,
        key: str = "",
        behind: Literal["refuse", "bound"] = "refuse",
    ) -> Charge:
        """Charge one window, or refuse it and change nothing.

        Args:
            start: First slot.
            stop: Slot after the last.
            epsilon_dp: Loss per slot: L1 sensitivity over noise scale.
            entry_id: Name of the charge, a random one if left out; merges go by it.
            key: What is charged, free text.
            behind: What to do with a window that begins before the horizon: refuse it, or price it from above, which
                marks the account as an upper bound.

        Raises:
            BudgetExceeded: If the loss would pass the budget.
            TypeError: If a slot is not a whole number.
            ValueError: If the window is empty or begins before the chain or, when refused, before the horizon,
                epsilon_dp is not finite and above 0, or the name is taken.
        """
        entry = Entry.new(*self._checked(start, stop, epsilon_dp), entry_id=entry_id, key=key)
        if entry.entry_id in self._entries:
            raise ValueError(f"entry_id {entry.entry_id!r} is taken: a charge is made once; leave it out for a new one")
        if self._horizon is not None and entry.start < self._horizon:
            return self._charge_behind(entry, behind, self._horizon)
        before = self.loss
        undo, patches = self._tried(entry)
        try:
            top = self._top_with(entry)
            worst = self._worst_of(patches, top)
            self._afford(before, outward(worst.loss), "the charge")
        except BaseException:
            undo()
            raise
        self._take(entry, patches, worst, top)
        self._advance()
        return self._receipt(entry, before)

    def replay(self, charges: Iterable[Span | Entry]) -> float:
        """Enter charges that have been made already, asking no budget, and return the loss.

        All of them are entered or, on a bad one, none.

        Raises:
            TypeError: If a slot is not a whole number.
            ValueError: If a charge is malformed, begins before the horizon, or has a name that is taken.
        """
        entries = [self._entered(charge) for charge in charges]
        names = set(self._entries)
        for entry in entries:
            if entry.entry_id in names:
                raise ValueError(f"entry_id {entry.entry_id!r} is taken: a charge is entered once")
            names.add(entry.entry_id)
            if self._horizon is not None and entry.start < self._horizon:
                raise ValueError(_behind(entry.start, self._horizon))
        if len(entries) <= _ONE_BY_ONE:
            for entry in entries:
                _, patches = self._tried(entry)
                top = self._top_with(entry)
                self._take(entry, patches, self._worst_of(patches, top), top)
            self._advance()
        elif entries:
            self._open(replace(self.state, entries=(*self._entries.values(), *entries)))
            self._advance()
        return self.loss

    def would_cost(self, start: int, stop: int, epsilon_dp: float) -> float:
        """What a charge would add to the loss; the ledger stays as it is, and no budget is asked.

        Raises:
            ValueError: As ``charge``.
        """
        entry = Entry.new(*self._checked(start, stop, epsilon_dp))
        if self._horizon is not None and entry.start < self._horizon:
            raise ValueError(_behind(entry.start, self._horizon))
        undo, patches = self._tried(entry)
        try:
            return max(0.0, outward(self._worst_of(patches, self._top_with(entry)).loss) - self.loss)
        finally:
            undo()

    def loss_of(self, charges: Iterable[Span]) -> float:
        """The loss of these charges alone, under the same belief."""
        spans = [self._checked(*charge) for charge in charges]
        density = Density().with_steps(step for span in spans for step in steps_of(*span))
        top = max(accumulate(rise for _, rise in sorted(density.steps.items())), default=Fraction(0))
        return outward(max(branch.least(branch.alone(density), top).loss for branch in self._branches))

    def fold(self, horizon: int) -> None:
        """Forget what lies behind a horizon, but for what still matters; later charges begin there or after it.

        Only charges that begin at or behind the horizon are admitted from then on. A horizon that lies before the
        present one changes nothing.

        Raises:
            TypeError: If the horizon is not a whole number.
        """
        horizon = whole("horizon", horizon, "give the slot at which later charges may begin")
        if self._horizon is not None and horizon <= self._horizon:
            return
        line = self.state.line({horizon - branch.world.sight for branch in self._branches})
        found = [branch.settled_at(line, horizon) for branch in self._branches]
        floors = [live - branch.world.sight for branch, (_, live) in zip(self._branches, found, strict=True)]
        peaks = (level for slot, level in zip(line.slots, line.levels, strict=False) if slot < horizon)
        self._open(self.state.folded(horizon, min(floors), max([self._peak, *peaks]), found))

    def join(self, belief: AnyBelief) -> float:
        """Let another belief join for the whole history: everything charged so far is repriced under it, too.

        The loss is the largest of both from now on. What is folded is priced by its largest density, which marks the
        account as an upper bound.

        Returns:
            The loss.

        Raises:
            BudgetExceeded: If the loss under the new belief is above the budget; the account stays as it was.
            ChainError: If a stationary chain is reducible.
            ValueError: If the belief has another number of states.
        """
        self._same_states(belief)
        floor = self._line.floor
        kept = None if self._horizon is None or floor is None else self._horizon - floor
        world = joined_world(belief, kept, self._bound)
        settled, live = 0.0, None
        if self._horizon is not None:
            live = self._horizon - world.sight
            if world.closes and not world.is_idle and self._peak:
                settled = Branch(world, Timeline()).ceiling(float_above(self._peak))
        return self._changed(self.state.with_world(world, settled, live), "the belief that joins")

    def switch(self, slot: int, belief: AnyBelief) -> float:
        """Declare that the transitions out of a public slot, and all later ones, follow another belief.

        From that slot on nothing rests on a stationary start, see ``crossings``.

        Returns:
            The loss.

        Raises:
            BudgetExceeded: If what is charged would lose more than the budget; the account stays as it was.
            TypeError: If the slot is not a whole number.
            ValueError: If the slot lies before the horizon, the start of the chain or an earlier change, or the belief
                has another number of states.
        """
        slot = whole("slot", slot, "give the first slot whose transitions follow the new belief")
        self._same_states(belief)
        for name, limit in (("horizon", self._horizon), ("start of the chain", self._start)):
            if limit is not None and slot < limit:
                raise ValueError(f"slot is {slot}, but the {name} is at {limit}: a belief changes there or later")
        latest = max((change for branch in self._branches for change in branch.world.changes), default=None)
        if latest is not None and slot <= latest:
            raise ValueError(f"slot is {slot}, but the belief changes at slot {latest}: the next change comes later")
        worlds = tuple(branch.world.switched(slot, belief, self._bound) for branch in self._branches)
        return self._changed(replace(self.state, worlds=worlds), "the change of belief")

    def bounds(self) -> Mapping[str, SeedsBound]:
        """What the quilts and the seeds' own theorems say about all charges so far: a loss, or why one does not apply.

        By name, ``quilts`` for the quilts' account alone. With the same belief and influence tables. The ledger's own
        loss is never above any of them.
        """
        whole_history = Charges(tuple(self._entries.values()), self._forgotten)
        changes = any(branch.world.changes for branch in self._branches)
        quilts = SeedsBound(outward(max(branch.quilts.loss for branch in self._branches)))
        if not whole_history.shapes:
            quilts = SeedsBound(None, NOTHING)
        theorems = seeds_bounds(
            whole_history,
            [branch.world.segments[0].pricer for branch in self._branches],
            self._quilts_of,
            changes=changes,
            late=self._upper_bound,
        )
        return {"quilts": quilts, **theorems}

    def event_loss(self, slots: int, schedules: Iterable[Schedule] = ()) -> float:
        """Epsilon that an event of so many slots in a row loses at most, wherever it lies.

        The secret is the whole path of one series through these slots: any two paths that are both possible there.
        Everything charged is at most e^loss times as likely under the one as under the other (:mod:`.accounting.events`
        has theorem and proof). With m the slots, D the largest density of any slot, F and B one certificate:
        m D + max(F - D) + max(B - D), and never more than the sum of all density (group privacy).

        Args:
            slots: Length of the event; for 1 it is the loss itself.
            schedules: Priced on top of what is charged.

        Returns:
            Epsilon; infinite where no bound is known: on an endless schedule without a certificate, or where the belief
            changes at a slot.

        Raises:
            TypeError: If slots is not a whole number.
            ValueError: If slots is below 1, or a schedule begins before the chain or the horizon.
        """
        slots = whole("slots", slots, "give the length of the event in slots", least=1)
        return self._event_losses([self._started(schedule) for schedule in schedules])(slots)

    def longest_event(self, epsilon: float, schedules: Iterable[Schedule] = ()) -> int | None:
        """How many slots an event may have to lose at most epsilon by ``event_loss``.

        Returns:
            0 where not even one slot stays within it; None where any number does.

        Raises:
            ValueError: If epsilon is not finite and above 0, or a schedule begins before the chain or the horizon.
        """
        epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        listed = [self._started(schedule) for schedule in schedules]
        if self._all(listed) <= epsilon or all(branch.world.is_idle for branch in self._branches):
            return None
        loss_of = self._event_losses(listed)
        if loss_of(1) > epsilon:
            return 0
        low, high = 1, 2
        while loss_of(high) <= epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if loss_of(middle) <= epsilon else (low, middle)
        return low

    def _event_losses(self, schedules: Sequence[Schedule]) -> Callable[[int], float]:
        """``event_loss`` as a function of the slots; what does not depend on them is computed once."""
        alone = self.extended_loss(schedules) if schedules else self.loss
        top = max(self._peak, largest(self._line.density(), schedules))
        around = [branch.around(top) for branch in self._branches if not branch.world.is_idle]
        most = self._all(schedules) if around else 0.0

        def loss_of(slots: int) -> float:
            if slots == 1:
                return alone
            each = max((one + slots * float_above(top) for one in around), default=0.0)
            # the sum of all density is rounded, and must not come out below the loss of a slot
            return max(alone, min(outward(each), most))

        return loss_of

    def _all(self, schedules: Sequence[Schedule]) -> float:
        """The sum of all density, charged and scheduled."""
        total = float(self._line.mass)
        for schedule in schedules:
            windows = math.inf if schedule.windows is None else schedule.windows
            total += windows * schedule.size * schedule.epsilon_dp
        return outward(total)

    def ceiling(self, density: float) -> float:
        """Loss of an endless stream whose every slot has this density.

        No charges with at most that density in every slot cost more.
        """
        density = positive("density", density, "give the loss per slot")
        top = Fraction(density)
        return outward(max(min(branch.ceiling(density), branch.bound(top)) for branch in self._branches))

    def density_for(self, epsilon: float) -> float:
        """The largest density whose endless stream loses at most epsilon, the inverse of ``ceiling``.

        This is what ``forward_backward`` calibrates, or by the quilts alone ``pairwise``. Where the belief changes,
        it is lowered until the stream stays within epsilon at the change, too.

        Raises:
            ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix,
                and the forward-backward account has no bound.
            ValueError: If epsilon is not finite and above 0.
        """
        epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        found = min(branch.density_for(epsilon) for branch in self._branches)
        if not math.isfinite(found) or self.ceiling(found) <= epsilon:
            return found
        low, high = 0.0, found
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.ceiling(middle) <= epsilon else (low, middle)
        return low

    def extended_loss(self, schedules: Iterable[Schedule]) -> float:
        """The loss of what is charged together with whole schedules, endless ones included.

        An endless schedule is followed until what a slot sees repeats, and one period stands for all that come;
        several endless schedules with gaps whose common period is too long are priced at their largest density, an
        upper bound.

        Raises:
            ValueError: If a schedule begins before the chain or the horizon.
        """
        listed = [self._started(schedule) for schedule in schedules]
        return outward(extended_loss(self._branches, self._line, listed, self._peak))

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
            ValueError: If a schedule begins before the chain or the horizon.
        """
        if self._budget is None or self._fits([*reserved, schedule]):
            return None
        low, high = 0, schedule.windows
        if high is None:
            high = 1
            limit = saturated(self._branches, self._line, schedule, reserved, self._budget)
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

    def _tried(self, entry: Entry) -> tuple[Callable[[], None], list[Patch]]:
        """Put a charge on the timeline and price it; the first result takes it off again."""
        undo = self._line.add(entry.start, entry.stop, Fraction(entry.epsilon_dp))
        try:
            return undo, [branch.running.patch(entry.start, entry.stop, entry.mass) for branch in self._branches]
        except BaseException:
            undo()
            raise

    def _top_with(self, entry: Entry) -> Fraction:
        """The largest density with a charge that is on the timeline."""
        return max(self._top, self._line.top(entry.start, entry.stop))

    def _take(self, entry: Entry, patches: Sequence[Patch], worst: Worst, top: Fraction) -> None:
        for branch, patch in zip(self._branches, patches, strict=True):
            branch.running.commit(patch)
        self._entries[entry.entry_id] = entry
        self._worst, self._top = worst, top

    def _receipt(self, entry: Entry, before: float) -> Charge:
        worst = self._worst
        return Charge(
            entry.start,
            entry.stop,
            entry.epsilon_dp,
            before,
            self.loss,
            rule_of(worst),
            worst.quilt,
            worst.slot,
            entry.entry_id,
            self._upper_bound,
        )

    def _afford(self, before: float, after: float, what: str) -> None:
        if self._budget is not None and after > self._budget:
            raise BudgetExceeded(before, after - before, self._budget, what)

    def _changed(self, state: AccountState, what: str) -> float:
        """Become another account, if the budget allows it."""
        made = Ledger.from_state(state)
        self._afford(self.loss, made.loss, what)
        self._open(state)
        return self.loss

    def _charge_behind(self, entry: Entry, behind: str, horizon: int) -> Charge:
        if behind != "bound":
            raise ValueError(_behind(entry.start, horizon))
        before = self.loss
        alone = Density().plus(entry.start, entry.stop, entry.epsilon_dp)
        peak = self._peak + Fraction(entry.epsilon_dp)
        state = self.state.with_late(
            entry,
            peak,
            tuple(branch.late_bound(peak, branch.alone(alone).loss) for branch in self._branches),
        )
        self._changed(state, "the charge")
        return self._receipt(entry, before)

    def _advance(self) -> None:
        """Fold what ``keep`` lets go, once that is as much as is kept anyway."""
        if self._keep is None or not self._line.count:
            return
        horizon = self._line.slots[-1] - self._keep
        sight = max(branch.world.sight for branch in self._branches)
        since = self._line.slots[0] if self._horizon is None else self._horizon
        if horizon - since > max(sight, self._keep):
            self.fold(horizon)

    def _entered(self, charge: Span | Entry) -> Entry:
        if isinstance(charge, Entry):
            self._checked(charge.start, charge.stop, charge.epsilon_dp)
            return charge
        return Entry.new(*self._checked(*charge))

    def _checked(self, start: int, stop: int, epsilon_dp: float) -> Span:
        advice = "give the first slot and the slot after the last"
        start = whole("start", start, advice)
        stop = whole("stop", stop, advice, least=start + 1)
        if self._start is not None and start < self._start:
            raise ValueError(f"start is {start}, but the chain begins at slot {self._start}: charge later slots only")
        return start, stop, positive("epsilon_dp", epsilon_dp, "give L1 sensitivity over noise scale")

    def _started(self, schedule: Schedule) -> Schedule:
        for name, limit in (("chain begins", self._start), ("horizon is", self._horizon)):
            if limit is not None and schedule.start < limit:
                raise ValueError(
                    f"the schedule starts at slot {schedule.start}, but the {name} at slot {limit}: start it later"
                )
        return schedule

    def _same_states(self, belief: AnyBelief) -> None:
        known, wanted = (getattr(one, "states", None) for one in (self.belief, belief))
        if known is not None and wanted is not None and known != wanted:
            raise ValueError(
                f"the belief has {wanted} states, but the account is about {known}: fit both over the same bins"
            )

    def _fits(self, schedules: Sequence[Schedule]) -> bool:
        if self._budget is None:
            return False
        listed = [self._started(schedule) for schedule in schedules]
        return outward(extended_loss(self._branches, self._line, listed, self._peak, self._budget)) <= self._budget


def _behind(start: int, horizon: int) -> str:
    return (
        f"start is {start}, but the horizon is at slot {horizon} and what lies behind it is folded: charge later "
        "slots, or ask for a bound with behind='bound'"
    )
