"""The accounts of a ledger's domains: what is charged and promised, and what that costs.

The running ledger of a domain is kept in memory and moved on by the charges that came since, so that a charge costs
the same however long the account is. If the last charge that is remembered is not on record under its number and
random id, an older copy of the ledger was put in place, and nothing is charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..privacy.accounting.charges import Span
from ..privacy.accounting.forward_backward import ACCURACY
from ..privacy.accounting.ledger import Ledger
from ..privacy.accounting.schedules import Schedule as Priced
from ..privacy.accounting.theorems import TheoremBound
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.slots import Schedule
from .address import watch_of
from .codec import query_losses, query_schedule
from .integrity import LINK, Chain, Row, broken, damaged
from .recorded_rows import queries_of, reservations_of
from .specs import BeliefChange, DomainSpec
from .tables import charges

#: One charge or refusal as it is part of the chain, see :data:`.integrity.LINK`.
Link = tuple[int, str, int, int, int, str, float, bytes]

_SINCE = (
    sa.select(*(charges.c[name] for name in LINK))
    .where(charges.c.domain_id == sa.bindparam("domain_id"), charges.c.sequence >= sa.bindparam("sequence"))
    .order_by(charges.c.sequence)
)


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


@dataclass
class Account:
    """A domain's running ledger, with the budget and the changes of the belief that it was made for."""

    ledger: Ledger  # everything charged up to ``sequence``
    chain: Chain  # of every charge and refusal up to ``sequence``
    budget: float  # the budget the ledger enforces
    changes: tuple[BeliefChange, ...] = ()  # of the belief, in the ledger
    sequence: int = 0  # number of the last charge or refusal in it, whose random id is ``entry_id``; 0 for none
    entry_id: str = ""
    # first slot of the last window of each query, by the query's number
    starts: dict[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def empty(cls, domain: DomainSpec) -> Account:
        """An account without charges."""
        return cls(ledger_of(domain, domain.budget), Chain(domain.name), domain.budget, domain.changes)

    def catch_up(self, connection: Connection, domain: Row) -> bool:
        """Enter the charges made since; ``False`` if that does not lead from what is remembered to what is on record.

        The caller holds the domain's lock.
        """
        links: list[Any] = list(connection.execute(_SINCE, {"domain_id": domain["id"], "sequence": self.sequence}))
        if self.sequence:
            if not links or links[0][:2] != (self.sequence, self.entry_id):
                return False
            del links[0]
        if links:
            self.enter(links)
        if (self.sequence, self.chain.head) != (domain["last_sequence"], domain["head"]):
            return False
        if links:  # only what is known to be as it was made is priced
            self.ledger.replay(spans_of(links))
        return True

    def enter(self, links: list[Any]) -> None:
        """Note charges and refusals, which the caller enters into the ledger."""
        self.chain.add(links)
        self.sequence, self.entry_id = links[-1][:2]
        self.starts |= {link[2]: link[3] for link in links}


def spans_of(links: Iterable[Any]) -> list[Span]:
    """What the charges among some links cost, in the form the ledger prices."""
    return [(link[3], link[4], link[6]) for link in links if link[5] == "charged"]


def charged_spans(connection: Connection, domain: Row) -> list[Span]:
    """Everything that a domain was charged.

    Raises:
        StoreDamaged: a charge was changed or removed.
    """
    links: list[Any] = list(connection.execute(_SINCE, {"domain_id": domain["id"], "sequence": 0}))
    made = Chain(domain["name"])
    made.add(links)
    made.check(domain)
    return spans_of(links)


def account_of(connection: Connection, remembered: dict[int, Account], row: Row, domain: DomainSpec) -> Account:
    """The domain's account as it is on record, from memory where that agrees; the caller holds the domain's lock.

    Raises:
        StoreReplaced: a charge that this process has seen is not on record any more.
    """
    known = remembered.get(row["id"])
    fits = known is not None and (known.budget, known.changes) == (domain.budget, domain.changes)
    caught_up = known is not None and known.catch_up(connection, row)
    watch = watch_of(connection)
    if known is not None and not caught_up and watch is not None:
        raise watch.older(domain.name, known.sequence)
    if known is None or not fits or not caught_up:
        known = Account.empty(domain)
        if not known.catch_up(connection, row):
            raise broken(row["name"])
        remembered[row["id"]] = known
    return known


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


def promised(connection: Connection, domain: Row) -> list[Priced]:
    """Everything the domain's budget is reserved for, in the order it was promised.

    Charges lie inside the promises, so these are priced from nothing: charged or not, a window counts once.
    """
    asking = {row["id"]: row for row in queries_of(connection, domain)}
    found = chain.from_iterable(reservations_of.of_all(connection, list(asking.values())).values())
    held: list[Priced] = []
    for row in sorted(found, key=itemgetter("id")):
        query = asking[row["query_id"]]
        part = (query["size"], query["every"], row["start"], row["stop"], query["epsilon_dp"])
        schedule = query_schedule(query)
        if schedule.calendar is None:
            held.append(Priced(*part))
        else:
            held.append(priced(schedule, query_losses(query), start=row["start"], stop=row["stop"]))
    return held


def adjoined(spans: list[Span]) -> list[Span]:
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


def admitted_end(domain: DomainSpec, asked: Priced, held: list[Priced]) -> tuple[int | None, float]:
    """How far a schedule fits beside the promises, and the loss of all of it together.

    Returns:
        ``None`` if all of it fits, else the slot where the last window that fits ends (the schedule's start if none
        does); and the loss of the promises with the part that fits, epsilon.
    """
    ledger = ledger_of(domain, domain.budget)
    end = ledger.admitted_prefix(asked, held)
    if end is None:
        return None, ledger.extended_loss([*held, asked])
    if end == asked.start:
        return end, ledger.extended_loss(held) if held else 0.0
    fitting = replace(asked, stop=end)
    return end, ledger.extended_loss([*held, fitting])


def loss_of(domain: DomainSpec, schedules: list[Priced]) -> float:
    """The loss of schedules alone, epsilon."""
    return ledger_of(domain).extended_loss(schedules) if schedules else 0.0


#: Two losses that differ by less are the same: they were summed in another order.
_CLOSE = 1e-12


def priced_anew(domain: DomainSpec, spans: Sequence[Span]) -> tuple[float, Mapping[str, TheoremBound]]:
    """The loss of charges by the core, epsilon, and what the quilts and every theorem say of them (theory section 4).

    Each bound rests on the same belief, so the loss on record is never above any of them.

    Returns:
        The loss, and bounds by name, see :meth:`quiltstream.privacy.Ledger.bounds`.
    """
    ledger = ledger_of(domain)
    return ledger.replay(spans), ledger.bounds()


def loss_of_spans(domain: DomainSpec, spans: Iterable[Span]) -> float:
    """What charges cost together by the core, epsilon."""
    return ledger_of(domain).replay(spans)


def costs_alone(domain: DomainSpec, spans: Mapping[str, list[Span]], together: float) -> Mapping[str, float]:
    """What the charges of each query would cost without the others, epsilon, by the query's name.

    Args:
        domain: the domain of record.
        spans: its charges by query.
        together: what all of them cost: also what one query alone costs where there is no other.
    """
    if len(spans) == 1:
        return dict.fromkeys(spans, together)
    ledger = ledger_of(domain)
    return {name: ledger.loss_of(adjoined(charged)) for name, charged in spans.items()}


def same_loss(one: float, other: float) -> bool:
    """Whether two numbers are the same loss, summed in another order or computed by another processor."""
    return math.isclose(one, other, rel_tol=ACCURACY, abs_tol=_CLOSE)


def check_loss(domain: DomainSpec, said: float, found: float) -> None:
    """Hold the loss that the entries say against that of the core.

    After another belief has joined or followed, the loss before is kept where it was larger.

    Raises:
        StoreDamaged: they differ.
    """
    if not same_loss(said, found) and not (domain.changes and said > found):
        raise damaged(f"domain {domain.name!r}", f"says that {said!r} is lost, and its charges cost {found!r}")
