"""Schedules without an end, and streams of one density without beginning or end.

From some slot on the density of endless schedules is periodic. What lies ahead grows with the horizon until one period
more changes nothing: then none does. What lies behind comes to rest alike, and the periods until then and one more are
all slots there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..models.memory import remembered
from .account import Account, Book, History, Worst, least_of
from .charges import Density
from .recursion import FAR, Side, State
from .schedules import Schedule, extended, largest


@dataclass(frozen=True, eq=False)
class Priced:
    """What was found for schedules on top of what is charged."""

    accounts: tuple[tuple[Account, ...] | None, ...]  # of each history; None where no bound was found
    loss: float


@remembered
def priced(book: Book, schedules: tuple[Schedule, ...]) -> Priced:
    """What schedules lose on top of a book; commands ask for the same several times."""
    if not schedules:
        return Priced(tuple((one,) for one in book.accounts), book.worst.loss)
    top, loss = largest(book.density, schedules), 0.0
    found = tuple(_accounts(history, book.density, schedules) for history in book.histories)
    for history, accounts in zip(book.histories, found, strict=True):
        worst = Worst(math.inf)
        if accounts is not None:
            worst = max((one.worst for one in accounts), key=lambda one: one.loss, default=Worst())
        loss = max(loss, least_of(history, worst, top).loss)
    return Priced(found, loss)


def _accounts(history: History, density: Density, schedules: Sequence[Schedule]) -> tuple[Account, ...] | None:
    """Accounts of all slots of a density together with schedules, the endless ones included; None without a bound.

    Several endless schedules whose common period is too long are priced at their largest density, an upper bound.
    """
    total, begin, period = extended(density, schedules, (cut + 1 for cut in history.cuts))
    if begin is None:
        return (Account(history, total.with_cuts(history.cuts)),)
    if history.is_idle:
        return ()
    before = total.with_cuts(history.cuts).between(None, begin)
    line = total.between(begin, begin + period)
    # a period of the slots is one of the kernels as well
    kernels = math.lcm(
        *(side.period for back in (False, True) for side in history.sides(len(history.changes), back=back))
    )
    if line.count == 1:
        line = Density([begin, begin + kernels * (FAR // kernels)], line.levels)
    else:
        line = Density([begin], []).followed_by(line, math.lcm(period, kernels) // period)
    return _periodic(history, before, line)


def constant_stream(history: History, density: float) -> Worst:
    """The loss of a stream that has a density in every slot, without beginning or end."""
    low, high = min(history.cuts, default=0), max(history.cuts, default=0)
    low, high = low - FAR, high + FAR
    line = Density.of([(low, Fraction(density)), (high, -Fraction(density))], history.cuts)
    ends: list[list[State]] = []
    for slot, back in ((low - 1, True), (high, False)):
        found = [side.bound(density, slot) for side in history.sides(history.part(slot, back=back), back=back)]
        ends.append([one for one in found if one is not None])
        if len(ends[-1]) < len(found):
            return Worst(math.inf)
    return Worst() if history.is_idle else Account(history, line, (ends[0], ends[1])).worst


def _periodic(history: History, before: Density, repeated: Density) -> tuple[Account, ...] | None:
    """A density that goes on with what is repeated for ever.

    What lies ahead grows with the horizon until one period more changes nothing: then none does. Where it takes too
    many periods, those are swept from a certificate of the largest density, which is above every horizon.
    """
    slots, part, periods = repeated.slots, len(history.changes), 512  # that are swept at most
    most = max([*before.shown, *repeated.shown])
    runs = list(zip(slots, slots[1:], repeated.shown, strict=False))

    def limit(side: Side, state: State | None, *, back: bool) -> tuple[State | None, int]:
        """The state that periods come to, and how many of them change anything; none where one more always does."""
        for count in range(periods):
            if state is None:
                break
            last = state
            for start, stop, density in runs[:: 1 if back else -1]:
                state = side.run(state, density, stop - start, start if back else stop - 1).leaving
            if state.key == last.key:
                return state, count
        return None, periods

    def bounded(side: Side, density: float, *, back: bool) -> State | None:
        state = side.bound(density, slots[0] - 1 if back else slots[-1])
        found, _ = limit(side, state, back=back)
        return found or state

    if any(not len(side.lags) for back in (False, True) for side in history.sides(part, back=back)):
        return None  # no block forgets anything
    ahead = [limit(side, side.empty(), back=False)[0] for side in history.sides(part, back=False)]
    ahead = [
        state or bounded(side, max(repeated.shown), back=False)
        for state, side in zip(ahead, history.sides(part, back=False), strict=True)
    ]
    first = Account(history, before).leaving if before.count else history.empty(slots[0] - 1, back=True)
    sides = history.sides(part, back=True)
    times = max(limit(side, state, back=True)[1] for side, state in zip(sides, first, strict=True))
    ends = [state for state in ahead if state is not None]
    if len(ends) < len(ahead):
        return None
    whole = Account(history, before.followed_by(repeated, times + 1), (None, ends))
    if times < periods:
        return (whole,)
    above = [state for side in sides if (state := bounded(side, most, back=True)) is not None]
    return (whole, Account(history, repeated, (above, ends))) if len(above) == len(sides) else None
