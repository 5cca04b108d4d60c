"""Writing the ledger that others are united in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ...schemas.digests import canonical_json
from .. import tables
from ..accounts import ledger_of, loss_of, promised
from ..codec import Row, changes_text, query_values, scale_text
from ..errors import StoreError
from ..integrity import Chain, alter, drawn_bytes, link_of, put, sealed
from ..lookups import domain_row, meta_row
from ..registration import protect_all
from .compatibility import Event, HeldDomain, HeldQuery, reservations_of
from .union import Charge, Kept, Value, place_charges, place_values

#: Rows written by one statement.
_BATCH = 256


def _when(event: Event) -> tuple[int, str, str, str, str]:
    at_us, kind, query, old, new = event
    return at_us, kind, query or "", old, new


class NewLedger:
    """An empty ledger that is filled inside one transaction.

    Args:
        connection: the transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._domains: dict[str, tuple[int, HeldDomain]] = {}
        self._queries: dict[tuple[str, str], tuple[int, HeldQuery]] = {}
        self._rosters: dict[str, int] = {}
        self._kept: dict[Charge, Kept] = {}
        self._records: dict[tuple[str, str, int], tuple[int, Charge]] = {}
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._drawn: dict[tuple[int, str], dict[int, bytes]] = {}
        self._flagged: dict[str, int] = {}

    def begin(
        self,
        mode: str | None,
        domains: Mapping[str, HeldDomain],
        rosters: Mapping[str, Row],
        queries: Mapping[tuple[str, str], HeldQuery],
    ) -> None:
        """Write domains, what was decided about them, and queries with their rosters and reservations."""
        held = meta_row(self._connection)
        alter(self._connection, tables.meta, held["id"], mode=mode, domain_rows=len(domains))
        for number, digest in enumerate(sorted(rosters), start=1):
            self._rosters[digest] = number
            put(self._connection, tables.rosters, {**rosters[digest], "id": number})
        for number, name in enumerate(sorted(domains), start=1):
            self._put_domain(number, domains[name])
        # in the order of their registration
        for number, key in enumerate(sorted(queries, key=lambda key: (queries[key].created_us, key)), start=1):
            self._put_query(number, key, queries[key])

    def put_charges(self, charges: Iterable[Charge]) -> None:
        """Write all charges, numbered in the order of their windows."""
        self._kept = place_charges(charges, self._fits)
        sequences = dict.fromkeys(self._domains, 0)
        chains = {name: Chain(name) for name in self._domains}
        beside = dict.fromkeys(self._domains, 0)
        of_record, flagged = list[dict[str, Any]](), list[dict[str, Any]]()
        for number, (charge, kept) in enumerate(self._kept.items(), start=1):
            sequence = None
            if kept.reason is None or charge.decision == "charged":
                sequence = sequences[charge.domain] = sequences[charge.domain] + 1
            values = asdict(charge)
            for name in ("base_id", "domain", "query", "roster", "draw"):
                del values[name]
            values |= {
                "id": number,
                "entry_id": kept.name,
                "domain_id": self._domains[charge.domain][0],
                "sequence": sequence,
                "query_id": self._queries[charge.domain, charge.query][0],
                "roster_id": self._rosters[charge.roster],
            }
            if kept.reason is None:
                self._check_roster(charge)
                self._records[charge.window] = (number, charge)
                made = sealed(tables.charges, values)
                of_record.append(made)
            else:
                beside[charge.domain] += 1
                made = sealed(tables.flagged_charges, values | {"reason": kept.reason})
                flagged.append(made)
            if sequence is not None:
                chains[charge.domain].add([link_of(made)])
        for table, rows in ((tables.charges, of_record), (tables.flagged_charges, flagged)):
            for at in range(0, len(rows), _BATCH):
                self._connection.execute(table.insert(), rows[at : at + _BATCH])
        for name, sequence in sequences.items():
            alter(
                self._connection,
                tables.domains,
                self._domains[name][0],
                last_sequence=sequence,
                head=chains[name].head,
                flagged_charge_rows=beside[name],
            )

    def put_values(self, key: tuple[str, str], place: tuple[int, int], values: Sequence[Value]) -> None:
        """Write all blocks of one window and shard."""
        start, shard = place
        record_id, record = self._records[(*key, start)]
        for value, reason in place_values(values, self._kept):
            row = {
                "query_id": self._queries[key][0],
                "window_start": start,
                "shard": shard,
                "completeness": value.completeness,
                "block": value.block,
                "created_us": value.created_us,
            }
            payer = self._kept[value.charge].name
            if reason is None:
                paid_by = None if value.charge == record else payer
                made = sealed(tables.releases, row | {"charge_id": record_id, "paid_by": paid_by})
                self._drawn.setdefault((record_id, self._kept[record].name), {})[shard] = made["row_digest"]
                self._put(tables.releases, made)
            else:
                self._flagged[key[0]] = self._flagged.get(key[0], 0) + 1
                self._put(
                    tables.flagged_releases,
                    sealed(tables.flagged_releases, row | {"entry_id": payer, "reason": reason}),
                )

    def finish(self) -> None:
        """Write what waits, and price every domain: what was lost, and what is lost when all promises are kept."""
        for table in (tables.releases, tables.flagged_releases):
            self._flush(table)
        charges = tables.charges
        drawn = [
            {"charge": number, "drawn_there": drawn_bytes(name, shards)}
            for (number, name), shards in self._drawn.items()
        ]
        changed = charges.update().where(charges.c.id == sa.bindparam("charge"))
        for at in range(0, len(drawn), _BATCH):
            self._connection.execute(changed.values(drawn=sa.bindparam("drawn_there")), drawn[at : at + _BATCH])
        for number, held in self._domains.values():
            # a series of one ledger may be what a belief in the other rests on
            row = protect_all(self._connection, domain_row(self._connection, held.spec.name))
            account = ledger_of(held.spec)
            lost = account.replay(
                (charge.window_start, charge.window_stop, charge.epsilon_dp)
                for charge in self._kept
                if charge.domain == held.spec.name and charge.decision == "charged"
            )
            reserved = loss_of(held.spec, promised(self._connection, row))
            alter(
                self._connection,
                tables.domains,
                number,
                merged_loss=lost,
                merged_sequence=row["last_sequence"],
                reserved_loss=reserved,
                flagged_release_rows=self._flagged.get(held.spec.name, 0),
            )

    def _put_domain(self, number: int, held: HeldDomain) -> None:
        self._domains[held.spec.name] = (number, held)
        values = {
            "id": number,
            "name": held.spec.name,
            "frozen": canonical_json(held.spec.frozen_fields()),
            "budget": held.spec.budget,
            "reserved_loss": 0.0,
            "last_sequence": 0,
            "created_us": held.created_us,
            "changes": changes_text(held.spec.changes),
            "head": Chain(held.spec.name).head,
            "query_rows": 0,
            "event_rows": len(held.events),
            "flagged_charge_rows": 0,
            "flagged_release_rows": 0,
        }
        put(self._connection, tables.domains, values)
        for at_us, kind, query, old, new in sorted(held.events, key=_when):
            values = {"domain_id": number, "kind": kind, "query": query, "old": old, "new": new, "at_us": at_us}
            put(self._connection, tables.domain_events, values)

    def _put_query(self, number: int, key: tuple[str, str], held: HeldQuery) -> None:
        self._queries[key] = (number, held)
        versions = held.rosters if len(held.rosters) > 1 else ()
        reserved = reservations_of(held.spec.schedule, held.promised)
        values = query_values(held.spec) | {
            "id": number,
            "domain_id": self._domains[key[0]][0],
            "digest": held.digest,
            "roster_id": self._rosters[held.spec.roster.digest],
            "created_us": held.created_us,
            "belief": held.belief,
            "successor": held.successor,
            "reservation_rows": len(reserved),
            "version_rows": len(versions),
        }
        put(self._connection, tables.queries, values)
        alter(self._connection, tables.domains, self._domains[key[0]][0], more="query_rows")
        for one in versions:
            values = {"start": one.start, "joined": one.joined, "created_us": one.created_us}
            values |= {"query_id": number, "roster_id": self._rosters[one.digest]}
            put(self._connection, tables.roster_versions, values)
        for start, stop in reserved:
            values = {"query_id": number, "start": start, "stop": stop, "created_us": held.created_us}
            put(self._connection, tables.reservations, values)

    def _fits(self, charge: Charge) -> bool:
        """Whether a charge is what its query says."""
        held = self._queries[charge.domain, charge.query][1]
        window = held.spec.schedule.window_at(charge.window_start)
        spec = held.spec.of_length(len(window))
        return (charge.query_digest, charge.scale, charge.epsilon_dp, charge.roster) == (
            held.digest,
            scale_text(spec.scale),
            spec.epsilon_dp,
            self._roster_of(charge),
        ) and charge.window_stop == window.stop

    def _roster_of(self, charge: Charge) -> str | None:
        """Digest of the roster that a charge's window has as far as its query knows."""
        held = self._queries[charge.domain, charge.query][1]
        return next((one.digest for one in reversed(held.rosters) if one.start <= charge.window_start), None)

    def _check_roster(self, charge: Charge) -> None:
        if charge.roster != self._roster_of(charge):
            raise StoreError(
                f"query {charge.query!r} of domain {charge.domain!r}: window [{charge.window_start}, "
                f"{charge.window_stop}) was charged in one ledger with a roster that another had changed before it; "
                f"its rows would not be those of the query: keep the ledgers apart; what they tell together of a "
                f"series that is in both is in no account"
            )

    def _put(self, table: sa.Table, row: dict[str, Any]) -> None:
        waiting = self._waiting.setdefault(table.name, [])
        waiting.append(row)
        if len(waiting) >= _BATCH:
            self._flush(table)

    def _flush(self, table: sa.Table) -> None:
        waiting = self._waiting.pop(table.name, [])
        if waiting:
            self._connection.execute(table.insert(), waiting)
