"""What a domain has lost, priced by :class:`quiltstream.privacy.Ledger`, and what is promised of its budget.

The running ledger of a domain is kept in memory and moved on by the charges that came since, so that a charge costs
the same however long the account is. The database decides: if the last charge that is remembered is not on record
under its number and random id, the ledger is made again from all charges.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..privacy.classes import belief_from_dict
from ..privacy.ledger import Ledger, Span
from ..privacy.schedules import Schedule as Priced
from ..schemas.slots import Schedule
from .specs import BeliefChange, DomainSpec
from .tables import charges, flagged_charges, queries, reservations

_SINCE = (
    sa.select(
        charges.c.sequence,
        charges.c.entry_id,
        charges.c.window_start,
        charges.c.window_stop,
        charges.c.epsilon_dp,
    )
    .where(
        charges.c.domain_id == sa.bindparam("domain_id"),
        charges.c.decision == "charged",
        charges.c.sequence >= sa.bindparam("sequence"),
    )
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
            ledger.join(belief)
        else:
            ledger.switch(change.slot, belief)
    return ledger


@dataclass
class Account:
    """A domain's running ledger.

    Attributes:
        ledger: everything charged up to ``sequence``.
        budget: the budget the ledger enforces.
        changes: of the belief, in the ledger.
        sequence: number of the last charge in it; 0 for none.
        entry_id: random id of that charge.
    """

    ledger: Ledger
    budget: float
    changes: tuple[BeliefChange, ...] = ()
    sequence: int = 0
    entry_id: str = ""

    @classmethod
    def empty(cls, domain: DomainSpec) -> Account:
        """An account without charges."""
        return cls(ledger_of(domain, domain.budget), domain.budget, domain.changes)

    def catch_up(self, connection: Connection, domain_id: int) -> bool:
        """Enter the charges made since; ``False`` if what is remembered is not on record.

        The caller holds the domain's lock.
        """
        rows = connection.execute(_SINCE, {"domain_id": domain_id, "sequence": self.sequence}).all()
        if not self.sequence:
            # a merge made these when the ledger was new; there are no more of them later
            self.ledger.replay(_flagged(connection, domain_id))
        else:
            if not rows or (rows[0].sequence, rows[0].entry_id) != (self.sequence, self.entry_id):
                return False
            rows = rows[1:]
        if rows:
            self.ledger.replay((row.window_start, row.window_stop, row.epsilon_dp) for row in rows)
            self.sequence, self.entry_id = rows[-1].sequence, rows[-1].entry_id
        return True


def charged_spans(connection: Connection, domain_id: int) -> list[Span]:
    """Everything that a domain was charged, those charges included that a merge flagged."""
    rows = connection.execute(
        sa.select(charges.c.window_start, charges.c.window_stop, charges.c.epsilon_dp)
        .where(charges.c.domain_id == domain_id, charges.c.decision == "charged")
        .order_by(charges.c.sequence)
    )
    return [*((row.window_start, row.window_stop, row.epsilon_dp) for row in rows), *_flagged(connection, domain_id)]


def account_of(connection: Connection, remembered: dict[int, Account], domain_id: int, domain: DomainSpec) -> Account:
    """The domain's account as it is on record, from memory where that agrees; the caller holds the domain's lock."""
    known = remembered.get(domain_id)
    fits = known is not None and (known.budget, known.changes) == (domain.budget, domain.changes)
    if known is None or not fits or not known.catch_up(connection, domain_id):
        known = Account.empty(domain)
        known.catch_up(connection, domain_id)
        remembered[domain_id] = known
    return known


def priced(schedule: Schedule, epsilon_dp: float, *, start: int | None = None, stop: int | None = None) -> Priced:
    """A schedule, or a part of it that begins and ends with whole windows, in the form the ledger prices."""
    return Priced(
        size=schedule.size,
        every=schedule.every,
        start=schedule.first if start is None else start,
        stop=schedule.stop if stop is None else stop,
        epsilon_dp=epsilon_dp,
    )


def promised(connection: Connection, domain_id: int) -> list[Priced]:
    """Everything the domain's budget is reserved for, in the order it was promised.

    Charges lie inside the promises, so these are priced from nothing: charged or not, a window counts once. What a
    merge found charged a second time comes on top.
    """
    rows = connection.execute(
        sa.select(reservations.c.start, reservations.c.stop, queries.c.size, queries.c.every, queries.c.epsilon_dp)
        .join(queries, queries.c.id == reservations.c.query_id)
        .where(queries.c.domain_id == domain_id)
        .order_by(reservations.c.id)
    )
    held = [Priced(row.size, row.every, row.start, row.stop, row.epsilon_dp) for row in rows]
    return [*held, *_runs(_flagged(connection, domain_id))]


def _flagged(connection: Connection, domain_id: int) -> list[Span]:
    """Charges beside those of record, in the order of the account."""
    table = flagged_charges
    rows = connection.execute(
        sa.select(table.c.window_start, table.c.window_stop, table.c.epsilon_dp)
        .where(table.c.domain_id == domain_id, table.c.decision == "charged")
        .order_by(table.c.sequence)
    )
    return [(row.window_start, row.window_stop, row.epsilon_dp) for row in rows]


def _runs(spans: list[Span]) -> list[Priced]:
    """The same windows as few schedules: one of them for windows that adjoin, however many."""
    found: list[Priced] = []
    for (size, epsilon_dp), starts in _by_shape(spans).items():
        begun: dict[int, list[int]] = {}
        for start in sorted(starts):
            # a run that ends here goes on with this window
            ending = begun.get(start)
            begun.setdefault(start + size, []).append(ending.pop() if ending else start)
        found += [Priced(size, size, first, stop, epsilon_dp) for stop, firsts in begun.items() for first in firsts]
    return found


def _by_shape(spans: list[Span]) -> dict[tuple[int, float], list[int]]:
    shapes: dict[tuple[int, float], list[int]] = {}
    for start, stop, epsilon_dp in spans:
        shapes.setdefault((stop - start, epsilon_dp), []).append(start)
    return shapes


def admitted_end(domain: DomainSpec, asked: Priced, held: list[Priced]) -> tuple[int | None, float]:
    """How far a schedule fits beside the promises, and the loss of all of it together.

    Returns:
        ``None`` if all of it fits, else the slot where the last window that fits ends (the schedule's start if none
        does); and the loss of the promises with the part that fits, epsilon.

    Raises:
        ValueError: the belief or the schedule cannot be priced.
    """
    ledger = ledger_of(domain, domain.budget)
    end = ledger.admitted_prefix(asked, held)
    if end is None:
        return None, ledger.extended_loss([*held, asked])
    if end == asked.start:
        return end, ledger.extended_loss(held) if held else 0.0
    fitting = Priced(asked.size, asked.every, asked.start, end, asked.epsilon_dp)
    return end, ledger.extended_loss([*held, fitting])


def loss_of(domain: DomainSpec, schedules: list[Priced]) -> float:
    """The loss of schedules alone, epsilon."""
    return ledger_of(domain).extended_loss(schedules) if schedules else 0.0
