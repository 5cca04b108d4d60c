"""An operator's word that charges are missing from an account: kept for ever, and never taken back.

Nothing is added to the loss, because nobody knows what is missing; the account is marked instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.engine import Connection

from .codec import Row
from .lookups import locked_domain_row
from .registering import record_event

_KIND = "history-lost"


def note_history_lost(connection: Connection, name: str, releases: int) -> None:
    """Mark a domain inside a transaction that may write.

    Args:
        connection: the transaction.
        name: the domain.
        releases: how many releases are known to be missing.

    Raises:
        UnknownNameError: there is no such domain.
    """
    row = locked_domain_row(connection, name)
    record_event(connection, row["id"], _KIND, old=0, new=releases)


def history_lost(events: Iterable[Row]) -> bool:
    """Whether what was decided about a domain marks it."""
    return any(event["kind"] == _KIND for event in events)
