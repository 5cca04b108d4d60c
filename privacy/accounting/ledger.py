"""The ledger: what all releases about one series cost together, in epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ...schemas.errors import ArgumentError
from ..models.belief import Belief, ChainError
from ..models.serialisation import check_belief
from ..validation import a_slot, accepted_loss, as_list, instance, positive, rounded_up
from .account import Book, History, Worst
from .certificates import constant_loss
from .charges import BudgetExceeded, Charge, Density, Run, Span
from .events import event_losses, last_within, longest_event
from .forward_backward import stream_density
from .one_at_a_time import one_at_a_time
from .schedules import Schedule
from .streams import constant_stream, priced
from .theorems import TheoremBound, theorem_bounds

__all__ = ["BudgetExceeded", "Charge", "Ledger", "Span"]


class Ledger:
    """An account of the loss of one belief, or of several that follow each other or are held side by side.

    The loss is a function of the density alone: the same charges in any order give the same float. It does not fall
    when a charge is added, but for what proofs leave (``docs/mathematics.md``). Two charges may cost more together than
    the sum of what each costs alone. A chain with a fixed initial distribution is priced by what holds at every slot
    for every start, a class by its worst member. Several threads may use one ledger.
    """

    @one_at_a_time
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
        self._start = None if start is None else a_slot("start", start, "give the slot at which the chain begins")
        belief = check_belief(belief)
        if self._start is not None and not belief.has_start:
            raise ArgumentError(
                f"start is {start}, but the belief holds at every slot: leave start out, it is for a chain with initial"
            )
        self._book = Book.of([History([(None, belief)])], Density(), None)

    def __repr__(self) -> str:
        budget = "" if self._budget is None else f", budget={self._budget:g}"
        return f"Ledger({self.belief!r}, loss={self.loss:.6g}{budget})"

    @property
    def belief(self) -> Belief:
        """What was believed first about the series; ``histories`` has what joined or followed."""
        return self._book.histories[0].segments[0][1]

    @property
    def histories(self) -> tuple[tuple[tuple[int | None, Belief], ...], ...]:
        """Per history the beliefs in order, each with the slot from which on it holds (None: ever)."""
        return tuple(history.segments for history in self._book.histories)

    @property
    def budget(self) -> float | None:
        """The most the loss may reach; None for no limit."""
        return self._budget

    @property
    @one_at_a_time
    def loss(self) -> float:
        """Epsilon that all charges so far cost together."""
        return self._book.worst.loss

    @property
    @one_at_a_time
    def rule(self) -> str:
        """What decided the loss, one sentence."""
        return _rule_of(self._book.worst)

    @property
    def remaining(self) -> float:
        """Budget less loss, at least 0; infinite without a budget."""
        return math.inf if self._budget is None else max(0.0, self._budget - self.loss)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The density so far, in runs of equal density."""
        return self._book.density.runs()

    @one_at_a_time
    def charge(self, start: int, stop: int, epsilon_dp: float) -> Charge:
        """Charge one window, or refuse it and change nothing.

        Args:
            start: First slot.
            stop: Slot after the last.
            epsilon_dp: Loss per slot: L1 sensitivity over noise scale.

        Raises:
            BudgetExceeded: If the loss would pass the budget.
            ValueError: If the window is empty or begins before the chain, or epsilon_dp is not finite and above 0.
        """
        span = self._checked(start, stop, epsilon_dp)
        before, book = self.loss, self._book.charged(span)
        self._afford(before, book.worst.loss, "the charge")
        self._book = book
        return Charge(*span, before, book.worst.loss, _rule_of(book.worst), book.worst.slot)

    @one_at_a_time
    def replay(self, charges: Iterable[Span]) -> float:
        """Enter charges that have been made already, asking no budget, and return the loss.

        All of them are entered or, on an error, none.

        Raises:
            ValueError: If a charge is malformed.
        """
        spans, book = [self._checked(*charge) for charge in _triples(charges)], self._book
        if len(spans) <= 16:  # for more the account is made anew in less time
            for span in spans:
                book = book.charged(span)
        else:
            charged = book.charges
            for span in spans:
                charged = charged, span
            book = Book.of(book.histories, book.density.with_spans(spans), charged)
        _ = book.worst  # an interrupt leaves the account as it was
        self._book = book
        return self.loss

    @one_at_a_time
    def would_cost(self, start: int, stop: int, epsilon_dp: float) -> float:
        """By how much a charge would raise the loss; the ledger stays as it is, and no budget is asked.

        Returns:
            The increase in epsilon, at least 0; not the loss after the charge, which is ``loss`` plus the increase.
        """
        span = self._checked(start, stop, epsilon_dp)
        return max(0.0, self._book.charged(span).worst.loss - self.loss)

    @one_at_a_time
    def loss_of(self, charges: Iterable[Span]) -> float:
        """The loss of these charges alone, under the same belief."""
        density = Density().with_spans(self._checked(*charge) for charge in _triples(charges))
        return Book.of(self._book.histories, density, None).worst.loss

    @one_at_a_time
    def add_belief(self, belief: Belief) -> float:
        """Add another belief for all slots: all charges are repriced, and the loss is the largest of both.

        Returns:
            The loss.

        Raises:
            BudgetExceeded: If the loss under the new belief is above the budget; the account stays as it was.
            ChainError: If a stationary chain is reducible.
            ValueError: If the belief has another number of states.
        """
        self._same_states(belief)
        return self._changed([*self._book.histories, History([(None, belief)])], "the belief that joins")

    @one_at_a_time
    def switch(self, slot: int, belief: Belief) -> float:
        """Let the transitions out of a public slot, and all later ones, follow another belief, from any start.

        Returns:
            The loss.

        Raises:
            BudgetExceeded: If what is charged would lose more than the budget; the account stays as it was.
            ValueError: If the slot lies before the start of the chain or an earlier change, or the belief has another
                number of states.
        """
        slot = a_slot("slot", slot, "give the first slot whose transitions follow the new belief")
        self._same_states(belief)
        if self._start is not None and slot < self._start:
            raise ArgumentError(
                f"slot is {slot}, but the start of the chain is at {self._start}: a belief changes there or later"
            )
        latest = max((change for history in self._book.histories for change in history.changes), default=None)
        if latest is not None and slot <= latest:
            raise ArgumentError(f"slot is {slot}, but the belief changes at slot {latest}: the next change comes later")
        histories = [History([*history.segments, (slot, belief)]) for history in self._book.histories]
        return self._changed(histories, "the change of belief")

    @one_at_a_time
    def bounds(self) -> Mapping[str, TheoremBound]:
        """What the quilts and the sources' theorems say about all charges so far: a loss, or why one does not apply.

        By name, ``quilts`` for the pairwise quilt account. The ledger's own loss is above none of them up to a loss of
        1, but for what is rounded up, less than 1e-11; a larger one may be, by some per cent.
        """
        changes = any(history.changes for history in self._book.histories)
        beliefs = [history.beliefs[0] for history in self._book.histories]
        return theorem_bounds(self._book.spans, beliefs, changes=changes)

    @one_at_a_time
    def event_loss(self, slots: int, schedules: Iterable[Schedule] = ()) -> float:
        """Epsilon that an event of so many slots in a row loses at most, wherever it lies.

        The secret is the whole path of one series through these slots: any two paths that are both possible there.
        :mod:`.events` has theorem and proof. Where the belief changes there is no certificate.

        Args:
            slots: Length of the event; for 1 it is the loss itself.
            schedules: Priced on top of what is charged.

        Returns:
            Epsilon; infinite where no bound is known, as on an endless schedule for a chain that does not mix.

        Raises:
            ValueError: If slots is below 1, or a schedule begins before the chain.
        """
        slots = a_slot("slots", slots, "give the length of the event in slots", least=1)
        return event_losses(self._book, self._all_started(schedules))(slots)

    @one_at_a_time
    def longest_event(self, epsilon: float, schedules: Iterable[Schedule] = ()) -> int | None:
        """How many slots an event may have to lose at most epsilon by ``event_loss``.

        Returns:
            0 where not even one slot stays within it; None where any number does.

        Raises:
            ValueError: If epsilon is not finite and above 0, or a schedule begins before the chain.
        """
        epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        return longest_event(self._book, self._all_started(schedules), epsilon)

    @one_at_a_time
    def ceiling(self, density: float) -> float:
        """Loss of an endless stream whose every slot has this density.

        No charges with at most that density in every slot cost more.
        """
        density = positive("density", density, "give the loss per slot")
        return max(
            min(constant_stream(one, density).loss, math.inf if one.changes else constant_loss(one.beliefs[0], density))
            for one in self._book.histories
        )

    @one_at_a_time
    def density_for(self, epsilon: float) -> float:
        """The largest density whose endless stream loses at most epsilon, the inverse of ``ceiling``.

        Where the belief changes, it is lowered until the stream stays within epsilon at the change, too.

        Raises:
            ChainError: If there is no bound, as for a chain that does not mix, or none at a change of belief.
        """
        epsilon = accepted_loss(epsilon)
        found = min(
            stream_density(belief, epsilon)[0] for history in self._book.histories for belief in history.beliefs
        )
        if not math.isfinite(found):
            return found
        low, high = 0.0, found
        if (reached := self.ceiling(found)) <= epsilon:
            if reached >= epsilon * (1 - 2.0**-9):
                return found  # so close that there is no density to look for
            # at a large density the recursion finds more room than the certificates do
            while self.ceiling(2 * high) <= epsilon:
                high *= 2
            low, high = high, 2 * high
        for _ in range(14):  # each takes an account; within 1 in 16,000 of the largest
            middle = (low + high) / 2
            low, high = (middle, high) if self.ceiling(middle) <= epsilon else (low, middle)
        if not low:
            raise ChainError(
                f"no density above {high:g} was found whose endless stream keeps epsilon {epsilon!r} at the change of "
                "belief: use beliefs that mix faster (merge states, smooth the counts), or a larger epsilon"
            )
        return low

    @one_at_a_time
    def extended_loss(self, schedules: Iterable[Schedule]) -> float:
        """The loss of what is charged together with whole schedules, endless ones included.

        Several endless schedules whose common period is too long are priced at their largest density, an upper bound.

        Raises:
            ValueError: If a schedule begins before the chain.
        """
        return priced(self._book, tuple(self._all_started(schedules))).loss

    @one_at_a_time
    def admitted_prefix(self, schedule: Schedule, reserved: Sequence[Schedule] = ()) -> int | None:
        """The slot up to which windows of a schedule fit into the budget, with what is charged and what is reserved.

        Args:
            schedule: The schedule asked for.
            reserved: Schedules promised before, without windows that are charged already, which would count twice.

        Returns:
            None if all windows fit; else the end of the last that does, the start of the schedule if none does.

        Raises:
            ValueError: If a schedule begins before the chain.
        """
        reserved = as_list("reserved", reserved, "schedules, each a Schedule")
        if self._budget is None or self.extended_loss([*reserved, schedule]) <= self._budget:
            return None

        def loss_of(windows: int) -> float:
            return self.extended_loss([*reserved, schedule.first(windows)])

        # of an endless schedule no more windows are tried
        most = 2**16 if schedule.windows is None else schedule.windows
        return schedule.end_of(last_within(loss_of, self._budget, 0, most))

    def _afford(self, before: float, after: float, what: str) -> None:
        # a loss that is not a number is within no budget
        if self._budget is not None and not after <= self._budget:
            raise BudgetExceeded(before, after - before, self._budget, what)

    def _changed(self, histories: Sequence[History], what: str) -> float:
        """Become another account, if the budget allows it."""
        before, book = self.loss, Book.of(histories, self._book.density, self._book.charges)
        self._afford(before, book.worst.loss, what)
        self._book = book
        return self.loss

    def _checked(self, start: int, stop: int, epsilon_dp: float) -> Span:
        advice = "give the first slot and the slot after the last"
        start = a_slot("start", start, advice)
        stop = a_slot("stop", stop, advice, least=start + 1)
        if self._start is not None and start < self._start:
            raise ArgumentError(
                f"start is {start}, but the chain begins at slot {self._start}: charge later slots only"
            )
        advice = "give L1 sensitivity over noise scale"
        number = positive("epsilon_dp", epsilon_dp, advice)
        if number > 1e100:  # it tells everything, and sums would pass the largest float
            raise ArgumentError(f"epsilon_dp is {number!r}, but must be at most 1e+100: {advice}")
        return start, stop, number

    def _all_started(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        listed = as_list("schedules", schedules, "schedules, each a Schedule")
        for one in listed:
            instance("schedule", one, Schedule)
            if one.stop is not None:
                a_slot("schedule.stop", one.stop, "give None for an endless schedule")
            if self._start is not None and one.start < self._start:
                raise ArgumentError(
                    f"the schedule starts at slot {one.start}, but the chain begins at slot {self._start}: "
                    "start it later"
                )
        return listed

    def _same_states(self, belief: Belief) -> None:
        check_belief(belief)
        wanted = belief.states
        listed = [one.states for history in self._book.histories for _, one in history.segments]
        known = next((states for states in listed if states is not None), None)
        # of one state there is no secret: a belief of any number, next to it, would be priced as if it had none
        if (known != wanted and None not in (known, wanted)) or (
            1 in {known, wanted} and {known, wanted, *listed} != {1}
        ):
            one, other = ("any number of states" if k is None else f"{k} state{'s'[: k != 1]}" for k in (wanted, known))
            raise ArgumentError(f"the belief has {one}, but the account is about {other}: fit both over the same bins")


def _triples(charges: Iterable[Span]) -> list[Span]:
    """Charges of which each is three values."""
    triple = "three numbers: give the first slot, the slot after the last and the loss per slot"
    found = as_list("charges", charges, f"charges, each of {triple}")
    for place, charge in enumerate(found):
        values = len(as_list(f"charges[{place}]", charge, triple))
        if values != 3:
            raise TypeError(f"charges[{place}] has {values} values, but must be {triple}")
    return found


def _rule_of(worst: Worst) -> str:
    """What decided a loss, one sentence."""
    if worst.density is not None:
        return f"no slot has a density above {rounded_up(worst.density, 6)}, and an endless stream of it costs this"
    if worst.slot is None:
        return "no loss: the belief has no secret pair" if not worst.loss else "no bound is known"
    if worst.total:
        return f"slot {worst.slot} is worst, and loses no more than all density there is"
    return f"slot {worst.slot} is worst, by the recursion over the slots"
