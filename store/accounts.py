"""What charges and promises of a domain cost, by the account of the privacy core."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..privacy.accounting.certificates import ACCURACY
from ..privacy.accounting.charges import Span
from ..privacy.accounting.ledger import Ledger
from ..privacy.accounting.schedules import Schedule as Priced
from ..privacy.accounting.theorems import TheoremBound
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.slots import Schedule
from .errors import damaged
from .specs import DomainSpec


def ledger_of(domain: DomainSpec, budget: float | None = None) -> Ledger:
    """An empty account of a domain: its first belief, and what joined or followed it, in that order.

    What is charged later is priced as if it had been there when a belief changed: the loss depends on the charges and
    the changes, not on which of them came first.
    """
    ledger = Ledger(belief_from_dict(domain.belief), budget)
    for change in domain.changes:
        belief = belief_from_dict(change.belief)
        if change.slot is None:
            ledger.add_belief(belief)
        else:
            ledger.switch(change.slot, belief)
    return ledger


def priced(
    schedule: Schedule, losses: float | Mapping[int, float], *, start: int | None = None, stop: int | None = None
) -> Priced:
    """A schedule, or a part of it of whole windows, as the ledger prices it; losses may be by the slots of a window."""
    start = schedule.first if start is None else start
    stop = schedule.stop if stop is None else stop
    ends = tuple(end for end in schedule.ends if start < end)
    if not isinstance(losses, Mapping):
        size, every = (1, 1) if ends else (schedule.size, schedule.every)
        return Priced(size, every, start, stop, losses, ends)
    densities = tuple(losses[end - begin] for begin, end in pairwise((start, *ends)))
    return Priced(1, 1, start, stop, max(densities), ends, densities)


def admitted_end(domain: DomainSpec, asked: Priced, held: list[Priced]) -> tuple[int | None, float]:
    """How far a schedule fits beside the promises, and the loss of all of it together.

    Returns:
        ``None`` if all of it fits, else the slot where the last window that fits ends (the schedule's start if none
        does); and the loss of the promises with the part that fits, epsilon.
    """
    ledger = ledger_of(domain, domain.budget)
    end = ledger.admitted_prefix(asked, held)
    if end is None:
        held = [*held, asked]
    elif end != asked.start:
        held = [*held, replace(asked, stop=end)]
    return end, ledger.extended_loss(held) if held else 0.0


def loss_of(domain: DomainSpec, schedules: list[Priced]) -> float:
    """The loss of schedules alone, epsilon."""
    return ledger_of(domain).extended_loss(schedules) if schedules else 0.0


def loss_of_spans(domain: DomainSpec, spans: Iterable[Span]) -> float:
    """What charges cost together by the core, epsilon."""
    return ledger_of(domain).replay(spans)


def priced_anew(domain: DomainSpec, spans: Sequence[Span]) -> tuple[float, str, Mapping[str, TheoremBound]]:
    """The loss of charges by the core, epsilon, and what the quilts and every theorem say of them (theory section 4).

    Each bound rests on the same belief.

    Returns:
        The loss, what decided it, and bounds by name, see :meth:`quiltstream.privacy.Ledger.bounds`.
    """
    ledger = ledger_of(domain)
    return ledger.replay(spans), ledger.rule, ledger.bounds()


def costs_alone(domain: DomainSpec, spans: Mapping[str, list[Span]], together: float) -> Mapping[str, float]:
    """What the charges of each query would cost without the others, epsilon, by the query's name.

    ``together`` is what all of them cost: also what one query alone costs where there is no other.
    """
    if len(spans) == 1:
        return dict.fromkeys(spans, together)
    ledger = ledger_of(domain)
    return {name: ledger.loss_of(adjoined(charged)) for name, charged in spans.items()}


def adjoined(spans: Iterable[Span]) -> list[Span]:
    """The same density in every slot by few spans: one of them for windows of one density that adjoin, however many."""
    starts_of: dict[tuple[int, float], list[int]] = {}
    for start, stop, epsilon_dp in spans:
        starts_of.setdefault((stop - start, epsilon_dp), []).append(start)
    found: list[Span] = []
    for (size, epsilon_dp), starts in starts_of.items():
        begun: dict[int, list[int]] = {}
        for start in sorted(starts):
            # a run that ends here goes on with this window
            ending = begun.get(start)
            begun.setdefault(start + size, []).append(ending.pop() if ending else start)
        found += [(first, stop, epsilon_dp) for stop, firsts in begun.items() for first in firsts]
    return found


#: Two losses that differ by less are the same: they were summed in another order.
_CLOSE = 1e-12


def same_loss(one: float, other: float) -> bool:
    """Whether two numbers are the same loss, summed in another order or computed by another processor."""
    return math.isclose(one, other, rel_tol=ACCURACY, abs_tol=_CLOSE)


def check_loss(domain: DomainSpec, said: float, found: float) -> None:
    """Hold the loss that the entries say against that of the core.

    After another belief has joined or followed, the loss before is kept where it was larger.
    """
    if not same_loss(said, found) and not (domain.changes and said > found):
        raise damaged(f"domain {domain.name!r}", f"says that {said!r} is lost, and its charges cost {found!r}")
