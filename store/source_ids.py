"""Which source a domain's readings came from: the ids that brokers give their topics, on record as they change.

A job that begins from the ledger alone has no position of the source. A topic that was deleted and made anew meanwhile
has the same name, and its offsets begin at 0 as those of the first one did: only the id tells that what the old one
held is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from .lookups import events_of, find_domain, locked_domain_row
from .registration import record_event

_KIND = "source-identified"


@dataclass(frozen=True, slots=True)
class SourceId:
    """What is on record of a topic now.

    Attributes:
        id: the brokers' name of it.
        since_us: when it was put on record, microseconds since the epoch.
        replaced: whether another id was on record before: readings that came before ``since_us`` may be gone with it.
    """

    id: str
    since_us: int
    replaced: bool = False

    @property
    def lost_us(self) -> int | None:
        """The instant before which readings may be gone; ``None`` where none is known to be."""
        return self.since_us if self.replaced else None


def source_ids(connection: Connection, domain: str) -> dict[str, SourceId]:
    """The ids on record of a domain's topics, by their names; those of all its queries, none if it is not on record."""
    held = find_domain(connection, domain)
    rows = [] if held is None else [row for row in events_of(connection, held) if row["kind"] == _KIND]
    found: dict[str, SourceId] = {}
    for row in sorted(rows, key=lambda row: (row["at_us"], row["id"])):
        new = json.loads(row["new"])
        before = found.get(new["name"])
        if before is None or before.id != new["id"]:
            found[new["name"]] = SourceId(new["id"], row["at_us"], replaced=before is not None)
    return found


def note_source_ids(connection: Connection, domain: str, query: str, ids: Mapping[str, str]) -> dict[str, SourceId]:
    """Put ids on record that are not the last ones of their topics, inside a transaction that may write.

    Args:
        connection: the transaction.
        domain: its name.
        query: whose job has seen them.
        ids: by the topics' names.

    Returns:
        What is on record then.

    Raises:
        UnknownNameError: there is no such domain.
    """
    row = locked_domain_row(connection, domain)
    known = source_ids(connection, domain)
    for name, new in sorted(ids.items()):
        old = known.get(name)
        if old is None or old.id != new:
            before = None if old is None else old.id
            record_event(
                connection,
                row["id"],
                _KIND,
                old={"name": name, "id": before},
                new={"name": name, "id": new},
                query=query,
            )
    return source_ids(connection, domain)


__all__ = ["SourceId", "note_source_ids", "source_ids"]
