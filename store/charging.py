"""Charging windows, or refusing them, in the order of the schedule.

Whoever needs a window first charges all earlier ones of the query as well, so the entries of a query are always the
first so many windows of its schedule, whatever arrived first. Whether a window is charged was settled when budget was
reserved; the ledger is asked again all the same, and what would pass the budget is refused. The ``loss_after`` of a
refusal is the loss that the budget does not allow, and depends on what is reserved alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..privacy.ledger import BudgetExceeded
from ..schemas.slots import Schedule, Window
from . import lookups, tables
from .accounts import Account, loss_of, priced, promised
from .codec import Row
from .continuity import entered
from .integrity import damaged, link_of, row_digest, sealed
from .lookups import Progress
from .schema import now_us
from .specs import DomainSpec, QuerySpec

#: Windows charged in one transaction at most: a late start must not keep the other writers of a domain waiting.
MOST_AT_ONCE = 1_000

_CHARGE = tables.charges.insert()

_COUNT_ON = (
    tables.domains.update()
    .where(tables.domains.c.id == sa.bindparam("domain"))
    .values(
        last_sequence=sa.bindparam("sequence"), head=sa.bindparam("chained"), row_digest=sa.bindparam("digest_of_row")
    )
)


@dataclass(frozen=True)
class Charger:
    """Charges the windows of one query inside a transaction that holds the domain's lock.

    Attributes:
        connection: the transaction.
        account: the domain's running ledger; the charges are entered into it.
        domain: the domain of record.
        domain_row: its row.
        query: the query of record.
        query_row: its row.
        progress: how far it has come.
    """

    connection: Connection
    account: Account
    domain: DomainSpec
    domain_row: Row
    query: QuerySpec
    query_row: Row
    progress: Progress

    def charge_through(self, last: Window) -> bool:
        """Charge or refuse every window up to one that are not on record yet.

        Returns:
            Whether the window itself is on record now; ``False`` where so many come before it that the caller has to
            commit and call again.
        """
        schedule = self.query.schedule
        if self.progress.last != self.account.starts.get(self.query_row["id"]):
            # the account reads them in another way
            raise damaged(f"query {self.query.name!r}", "has other charges than its domain's account")
        begin = lookups.start_after(self.progress.last, schedule)
        windows = list(_up_to(schedule, begin, last, MOST_AT_ONCE))
        if windows:
            sequence = int(self.domain_row["last_sequence"])
            values: list[dict[str, Any]] = []
            for window in windows:
                sequence += 1
                made = sealed(tables.charges, self._entry(window, sequence))
                self.account.enter(link_of(made))
                values.append(made)
            self.connection.execute(_CHARGE, values)
            head = self.account.chain.head
            counted = {**self.domain_row, "last_sequence": sequence, "head": head}
            self.connection.execute(
                _COUNT_ON,
                {
                    "domain": self.domain_row["id"],
                    "sequence": sequence,
                    "chained": head,
                    "digest_of_row": row_digest(tables.domains, counted),
                },
            )
            entered(self.connection, self.domain.name, sequence)
        return not windows or windows[-1].start >= last.start

    def _entry(self, window: Window, sequence: int) -> dict[str, Any]:
        values = {
            "entry_id": secrets.token_hex(16),
            "domain_id": self.domain_row["id"],
            "sequence": sequence,
            "query_id": self.query_row["id"],
            "roster_id": self.query_row["roster_id"],
            "window_start": window.start,
            "window_stop": window.stop,
            "query_digest": self.query_row["digest"],
            "scale": self.query_row["scale"],
            "epsilon_dp": self.query.epsilon_dp,
            "budget": self.domain.budget,
            "created_us": now_us(),
            "given_model": self.query.given_model or any(change.given_model for change in self.domain.changes),
        }
        span = (window.start, window.stop, self.query.epsilon_dp)
        if lookups.is_closed(self.domain_row):
            lost = self.account.ledger.loss
            return values | {
                "decision": "refused",
                "loss_before": lost,
                "loss_after": lost + self.account.ledger.would_cost(*span),
                "rule": "refused: the domain is closed, the ledgers it was united from have lost more than its budget",
            }
        admitted = self.progress.admitted
        if any(start <= window.start and (stop is None or window.stop <= stop) for start, stop in admitted):
            try:
                made = self.account.ledger.charge(*span)
            except BudgetExceeded as refusal:
                return values | {
                    "decision": "refused",
                    "loss_before": refusal.spent,
                    "loss_after": refusal.spent + refusal.asked,
                    "rule": "refused: the charge would pass the budget",
                }
            return values | {
                "decision": "charged",
                "loss_before": made.loss_before,
                "loss_after": made.loss_after,
                "rule": made.rule,
            }
        return values | {
            "decision": "refused",
            "loss_before": self.account.ledger.loss,
            "loss_after": self._loss_through(window),
            "rule": "refused: with all that is reserved, the query's windows up to this one would pass the budget",
        }

    def _loss_through(self, window: Window) -> float:
        """What the domain would lose by all that is reserved and this query up to a window it has no budget for.

        The window alone could seem cheap, because others before it were refused and left a gap.
        """
        schedule = self.query.schedule
        admitted = max(stop for _, stop in self.progress.admitted if stop is not None)
        more = priced(
            schedule, self.query.epsilon_dp, start=admitted - schedule.size + schedule.every, stop=window.stop
        )
        return loss_of(self.domain, [*promised(self.connection, self.domain_row), more])


def _up_to(schedule: Schedule, start: int, last: Window, most: int) -> Iterator[Window]:
    stop = min(last.start, start + (most - 1) * schedule.every)
    for at in range(start, stop + 1, schedule.every):
        yield Window(at, at + schedule.size)
