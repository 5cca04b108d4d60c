"""Publishing: charge windows and keep blocks, in one transaction under the domain's lock.

The first write wins for ever: a later attempt at the same window and shard gets the first block back, and its own noise
is never even drawn (theory, section 7, items 2 and 3).

A job that needs a window charges all earlier ones of the query as well, so the entries of a query are always the first
so many windows of its schedule, whatever arrived first. Whether a window is charged was settled when budget was
reserved; the ledger is asked again all the same, and what would pass the budget is refused. The ``loss_after`` of a
refusal is the loss that the budget does not allow, and depends on what is reserved alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..privacy.accounting.charges import BudgetExceeded
from ..schemas.releases import COMPLETENESS
from ..schemas.slots import Schedule, Window
from . import integrity, recorded_rows, tables
from .accounts import Account, account_of, loss_of, priced, promised
from .address import watch_of
from .codec import (
    Row,
    block_bytes,
    block_from_bytes,
    domain_from_row,
    entry_from_row,
    now_us,
    query_from_row,
    scale_text,
)
from .errors import BlockError, ChargeMismatch, RosterChanged, UnknownNameError
from .integrity import damaged
from .recorded_rows import ChargedThrough, Progress
from .registration import add_version, registration_from_rows
from .specs import (
    BlockKey,
    BlockToPublish,
    DomainSpec,
    Layout,
    NoisyBlock,
    QuerySpec,
    Record,
    Registration,
    layout_of,
    total_is_public,
)

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
    """Charges the windows of one query inside a transaction that holds the domain's lock."""

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
        schedule, domain_row = self.query.schedule, self.domain_row
        if self.progress.last != self.account.starts.get(self.query_row["id"]):
            # the account reads them in another way
            raise damaged(f"query {self.query.name!r}", "has other charges than its domain's account")
        begin = recorded_rows.start_after(self.progress.last, schedule)
        windows = list(_up_to(schedule, begin, last, MOST_AT_ONCE))
        if windows:
            sequence = int(domain_row["last_sequence"])
            values: list[dict[str, Any]] = []
            for window in windows:
                sequence += 1
                made = integrity.with_digest(tables.charges, self._entry(window, sequence))
                self.account.enter([integrity.link_of(made)])
                values.append(made)
            self.connection.execute(_CHARGE, values)
            head = self.account.chain.head
            digest = integrity.row_digest(tables.domains, {**domain_row, "last_sequence": sequence, "head": head})
            counted = {"domain": domain_row["id"], "sequence": sequence, "chained": head, "digest_of_row": digest}
            self.connection.execute(_COUNT_ON, counted)
            watch = watch_of(self.connection)
            if watch is not None:
                watch.entered[self.domain.name] = sequence
        return not windows or windows[-1].start >= last.start

    def _entry(self, window: Window, sequence: int) -> dict[str, Any]:
        query = self.query.of_length(len(window))
        decision, before, after, rule = self._decide(window, query.epsilon_dp)
        return {
            "entry_id": secrets.token_hex(16),
            "domain_id": self.domain_row["id"],
            "sequence": sequence,
            "query_id": self.query_row["id"],
            "roster_id": self.query_row["roster_id"],
            "window_start": window.start,
            "window_stop": window.stop,
            "query_digest": self.query_row["digest"],
            "scale": scale_text(query.scale),
            "epsilon_dp": query.epsilon_dp,
            "budget": self.domain.budget,
            "created_us": now_us(),
            "given_model": self.query.given_model or any(change.given_model for change in self.domain.changes),
            "decision": decision,
            "loss_before": before,
            "loss_after": after,
            "rule": rule,
        }

    def _decide(self, window: Window, epsilon_dp: float) -> tuple[str, float, float, str]:
        """Charge a window or refuse it: the decision, the loss before and after it, and what decided."""
        ledger, span = self.account.ledger, (window.start, window.stop, epsilon_dp)
        admitted = self.progress.admitted
        if not any(start <= window.start and (stop is None or window.stop <= stop) for start, stop in admitted):
            why = "with all that is reserved, the query's windows up to this one would pass the budget"
            return "refused", ledger.loss, self._loss_through(window), f"refused: {why}"
        try:
            made = self.account.ledger.charge(*span)
        except BudgetExceeded as refusal:
            after = refusal.spent + refusal.asked
            return "refused", refusal.spent, after, "refused: the charge would pass the budget"
        return "charged", made.loss_before, made.loss_after, made.rule

    def _loss_through(self, window: Window) -> float:
        """What the domain would lose by all that is reserved and this query up to a window it has no budget for.

        The window alone could seem cheap, because others before it were refused and left a gap.
        """
        schedule = self.query.schedule
        admitted = max(stop for _, stop in self.progress.admitted if stop is not None)
        more = priced(schedule, self.query.losses, start=schedule.start_behind(admitted), stop=window.stop)
        return loss_of(self.domain, [*promised(self.connection, self.domain_row), more])


def _up_to(schedule: Schedule, start: int, last: Window, most: int) -> Iterator[Window]:
    while most and start <= last.start:
        yield schedule.window_at(start)
        start, most = schedule.start_after(start), most - 1


# SQLite takes at least 999 parameters in a statement; a pair is two.
_PAIRS = 400


class RecordedBlock(NamedTuple):
    """A block of record, and the digest of its draw."""

    block: NoisyBlock
    digest: str


Blocks = dict[BlockKey, RecordedBlock]

OnRecord = tuple[Row, dict[int, Row], Blocks]
"""A query's row, charges by the start of their window, and blocks."""


_OF_QUERY = {column.name: f"{column.name}_of_query" for column in tables.queries.c}
_OF_RELEASE = {column.name: f"{column.name}_of_release" for column in tables.releases.c}

#: A query with the charges of some windows, each with the blocks of some of its shards; what has none comes once.
_ON_RECORD = (
    sa.select(
        *(column.label(_OF_QUERY[column.name]) for column in tables.queries.c),
        tables.charges,
        tables.rosters.c.digest.label("roster_digest"),
        *(column.label(_OF_RELEASE[column.name]) for column in tables.releases.c),
    )
    .select_from(tables.queries)
    .outerjoin(
        tables.charges,
        sa.and_(
            tables.charges.c.query_id == tables.queries.c.id,
            tables.charges.c.window_start.in_(sa.bindparam("starts", expanding=True)),
        ),
    )
    .outerjoin(tables.rosters, tables.rosters.c.id == tables.charges.c.roster_id)
    .outerjoin(
        tables.releases,
        sa.and_(
            tables.releases.c.query_id == tables.charges.c.query_id,
            tables.releases.c.window_start == tables.charges.c.window_start,
            # not as pairs: SQLite would then look at every block of the query
            tables.releases.c.shard.in_(sa.bindparam("shards", expanding=True)),
        ),
    )
    .where(tables.queries.c.domain_id == sa.bindparam("domain_id"), tables.queries.c.name == sa.bindparam("name"))
)

_KEEP = tables.releases.insert()

_DRAWN = (
    tables.charges.update().where(tables.charges.c.id == sa.bindparam("charge")).values(drawn=sa.bindparam("drawn_now"))
)


@dataclass(frozen=True)
class Publisher:
    """Publishes drafts of one query inside a transaction that may write, with the process's running ledgers."""

    connection: Connection
    accounts: dict[int, Account]

    def publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record] | None:
        """Put the drafts on record, or find what is.

        Returns:
            One record a draft, in their order; ``None`` where so many windows came before these that only some of them
            were charged: the caller commits and calls again.
        """
        domain_row = self._domain_row(registration)
        domain = domain_from_row(domain_row)
        found = self._charged(registration, domain_row, drafts)
        if found is None:
            return None
        query_row, charges, held = found
        for charge in charges.values():
            self._check_charge(registration, charge)
        wanted: dict[BlockKey, BlockToPublish] = {}
        for draft in drafts:
            if charges[draft.window.start]["decision"] == "charged":
                wanted.setdefault((draft.window.start, draft.shard), draft)
        blocks = {place: held[place] for place in wanted if place in held}
        fresh = wanted.keys() - blocks.keys()
        if fresh:
            absent = {place: wanted[place] for place in wanted if place in fresh}
            blocks |= self._insert(registration, query_row["id"], charges, absent)
        entries = {start: entry_from_row(row, domain, query_row) for start, row in charges.items()}
        records: list[Record] = []
        for draft in drafts:
            place = (draft.window.start, draft.shard)
            # of two drafts of one place in a batch, the first is the one on record
            is_fresh = place in fresh and wanted[place] is draft
            entry, block, digest = entries[place[0]], None, ""
            if place in blocks:
                block, digest = blocks[place]
            records.append(Record(draft.window, draft.shard, entry, block, is_fresh, digest))
        return records

    def charge_windows(
        self, registration: Registration, last: Window, begun: Registration | None = None
    ) -> ChargedThrough | None:
        """Charge all windows up to one, which fixes their rosters, whatever the registration says of them.

        Args:
            registration: the query.
            last: the window.
            begun: what was on record when the job began, if its rosters are to be those of
                :meth:`.Registration.as_begun`; the newest if left out.

        Returns:
            How far the query is charged then; ``None`` where the caller has to commit and call again.
        """
        domain_row = self._domain_row(registration)
        found = recorded_rows.revised_query_row(self.connection, domain_row["id"], registration.query.name)
        if found is None:
            raise self._not_here(registration, domain_row)
        query_row, done = found
        _check_same(registration, query_row)
        if begun is not None and self._is_unsettled(begun, registration, query_row, done):
            through, query_row = self._charge_as_begun(begun, domain_row, query_row, done, last)
        else:
            through = self._charger(registration, domain_row, query_row, done).charge_through(last)
        if not through:
            return None
        made = done.last is None or done.last < last.start
        return ChargedThrough(last.start, recorded_rows.revision(query_row["version_rows"]), mine=made)

    def _is_unsettled(self, begun: Registration, registration: Registration, query_row: Row, done: Progress) -> bool:
        """Whether the newest roster does not hold yet for a job that began earlier."""
        if recorded_rows.revision(query_row["version_rows"]) <= begun.revision:
            return False
        changed_us = recorded_rows.versions_of(self.connection, query_row)[-1]["created_us"]
        return registration.settled_from(changed_us) > recorded_rows.start_after(done.last, registration.query.schedule)

    def _charge_as_begun(
        self, begun: Registration, domain_row: Row, query_row: Row, done: Progress, last: Window
    ) -> tuple[bool, Row]:
        """Charge the next windows up to one that have one roster, as a job counts them that began earlier.

        Windows that are not charged have the newest roster. So an older one holds from the first of these windows on,
        and the newest again from behind the last of them.

        Returns:
            Whether the window itself is on record now, and the query's row.
        """
        connection, now = self.connection, registration_from_rows(self.connection, domain_row, query_row)
        query, schedule, seen = now.query, now.query.schedule, now.as_begun(begun)
        start = recorded_rows.start_after(done.last, schedule)
        windows = list(_up_to(schedule, start, last, MOST_AT_ONCE))
        if not windows:
            return True, query_row
        roster = seen.roster_of(windows[0])
        alike = list(takewhile(lambda window: seen.roster_of(window) == roster, windows))
        if roster == query.roster:
            self._charger(now, domain_row, query_row, done).charge_through(alike[-1])
            return alike[-1] == last, query_row
        changed_us = now.versions[-1].created_us
        add_version(connection, query_row, query, roster, start, created_us=changed_us, keep=True)
        older = recorded_rows.recorded_query_row(connection, domain_row, query.name)
        self._charger(now, domain_row, older, done).charge_through(alike[-1])
        behind, held = schedule.start_after(alike[-1].start), replace(query, roster=roster)
        add_version(connection, older, held, query.roster, behind, created_us=changed_us, keep=True)
        return alike[-1] == last, recorded_rows.recorded_query_row(connection, domain_row, query.name)

    def _charged(
        self, registration: Registration, domain_row: Row, drafts: Sequence[BlockToPublish]
    ) -> OnRecord | None:
        """The charges of windows, made where they are absent; ``None`` where only earlier ones could be made yet."""
        places = {(draft.window.start, draft.shard) for draft in drafts}
        query_row, charges, blocks = self._on_record(registration, domain_row, places)
        _check_same(registration, query_row)
        absent = [draft.window for draft in drafts if draft.window.start not in charges]
        if absent:
            done = recorded_rows.progress(self.connection, query_row)
            if not self._charger(registration, domain_row, query_row, done).charge_through(max(absent)):
                return None
            _, charges, blocks = self._on_record(registration, domain_row, places)
        if any(start not in charges for start, _ in places):
            raise damaged(f"query {registration.query.name!r}", "has no entry for windows before the last one charged")
        return query_row, charges, blocks

    def _charger(self, registration: Registration, domain_row: Row, query_row: Row, done: Progress) -> Charger:
        domain = domain_from_row(domain_row)
        return Charger(
            connection=self.connection,
            account=account_of(self.connection, self.accounts, domain_row, domain),
            domain=domain,
            domain_row=domain_row,
            query=query_from_row(query_row, domain.name, registration.query.roster),
            query_row=query_row,
            progress=done,
        )

    def _domain_row(self, registration: Registration) -> Row:
        row = recorded_rows.lock_domain(self.connection, registration.domain.name)
        if row is None:
            raise self._not_here(registration, None)
        return row

    def _not_here(self, registration: Registration, domain: Row | None) -> UnknownNameError:
        """The error for a query that is not on record."""
        # reading the rows reports damage as damage, not as a missing name
        if domain is None:
            recorded_rows.domain_rows(self.connection)
        else:
            recorded_rows.queries_of(self.connection, domain)
        return UnknownNameError(
            f"query {registration.query.name!r} of domain {registration.domain.name!r} is not on record here: another "
            f"ledger, or an older copy of it? register the query again, or restore the newer copy"
        )

    def _on_record(self, registration: Registration, domain_row: Row, places: set[BlockKey]) -> OnRecord:
        """A query's row, the charges of the windows of some places, and the blocks of the places."""
        query_row: Row | None = None
        charges: dict[int, Row] = {}
        found: dict[BlockKey, Row] = {}
        for part in recorded_rows.batched(sorted(places), _PAIRS):
            asked = {
                "domain_id": domain_row["id"],
                "name": registration.query.name,
                "starts": sorted({start for start, _ in part}),
                "shards": sorted({shard for _, shard in part}),
            }
            for row in self.connection.execute(_ON_RECORD, asked).mappings():
                if query_row is None:
                    query_row = integrity.checked(
                        tables.queries, {name: row[label] for name, label in _OF_QUERY.items()}
                    )
                start = row["window_start"]
                if start is None:
                    break  # no window has a charge
                if start not in charges:
                    charges[start] = integrity.checked(tables.charges, row)
                place = (start, row[_OF_RELEASE["shard"]])
                if place in places and place not in found:
                    found[place] = {name: row[label] for name, label in _OF_RELEASE.items()}
        if query_row is None:
            raise self._not_here(registration, domain_row)
        return query_row, charges, _blocks(places, charges, found)

    def _insert(
        self, registration: Registration, query_id: int, charges: dict[int, Row], drafts: dict[BlockKey, BlockToPublish]
    ) -> Blocks:
        """Draw blocks and put them on record; they come back as everyone reads them from there."""
        with_totals = total_is_public(registration)
        values: list[dict[str, Any]] = []
        kept: Blocks = {}
        drawn: dict[int, dict[int, bytes]] = {}
        for (start, shard), draft in drafts.items():
            block = draft.draw()
            _check_block(registration, layout_of(registration, draft.window), draft, block)
            made = {
                "query_id": query_id,
                "window_start": start,
                "shard": shard,
                "charge_id": charges[start]["id"],
                "completeness": block.completeness,
                "block": block_bytes(block, with_totals=with_totals),
                "created_us": now_us(),
            }
            values.append(made := integrity.with_digest(tables.releases, made))
            drawn.setdefault(start, integrity.drawn_of(charges[start]))[shard] = made["row_digest"]
            as_read = block if with_totals else replace(block, totals=np.zeros_like(block.totals))
            kept[start, shard] = RecordedBlock(as_read, integrity.draw_digest(made))
        self.connection.execute(_KEEP, values)
        noted = [
            {"charge": charges[start]["id"], "drawn_now": integrity.drawn_bytes(charges[start]["entry_id"], shards)}
            for start, shards in drawn.items()
        ]
        self.connection.execute(_DRAWN, noted)
        return kept

    def _check_charge(self, registration: Registration, charge: Row) -> None:
        window = Window(charge["window_start"], charge["window_stop"])
        query = registration.query.of_length(len(registration.query.schedule.window_at(window.start)))
        for field, recorded, given in (
            ("digest", charge["query_digest"], registration.digest),
            ("scale", charge["scale"], scale_text(query.scale)),
            ("epsilon_dp", charge["epsilon_dp"], query.epsilon_dp),
            ("window", str(window), str(query.schedule.window_at(window.start))),
        ):
            if recorded != given:
                raise ChargeMismatch.of(query.name, field, recorded, given)
        digest = registration.roster_of(window).digest
        if charge["roster_digest"] != digest:
            # either it was changed, or what is on record is not what was written
            recorded = recorded_rows.read_roster(self.connection, charge["roster_id"]).digest
            raise RosterChanged.of(query.name, f"the roster of window {window}", recorded, digest)


def check_windows(registration: Registration, windows: Iterable[Window]) -> None:
    """Refuse windows that the query does not have: to charge up to one would put refusals on record, for ever."""
    query = registration.query
    for window in windows:
        if not query.schedule.contains(window):
            raise BlockError(
                f"query {query.name!r}: window {window} is not in its schedule; publish the windows of the "
                f"registration only"
            )


def check_drafts(registration: Registration, drafts: Sequence[BlockToPublish]) -> None:
    """Refuse drafts of windows or shards that the query does not have, before anything is locked."""
    query = registration.query
    check_windows(registration, (draft.window for draft in drafts))
    for draft in drafts:
        if not 0 <= draft.shard < query.shards:
            raise BlockError(
                f"query {query.name!r}: shard {draft.shard} is not one of its {query.shards}; take the number of "
                f"shards from the registration"
            )


def _blocks(places: set[BlockKey], charges: dict[int, Row], found: dict[BlockKey, Row]) -> Blocks:
    """Blocks of record, each held against its window's charge; a charge whose block is not there never had one."""
    blocks: Blocks = {}
    for start, shard in places:
        charge, block = charges.get(start), found.get((start, shard))
        if charge is None:
            continue
        integrity.check_drawn(charge, shard, block)
        if block is None:
            continue
        integrity.checked(tables.releases, block)
        if block["charge_id"] != charge["id"]:
            raise damaged(integrity.named(tables.releases, block), "belongs to another charge")
        decoded = block_from_bytes(block["block"], block["completeness"])
        blocks[start, shard] = RecordedBlock(decoded, integrity.draw_digest(block))
    return blocks


def _check_same(registration: Registration, row: Row) -> None:
    query, stop, recorded_stop = registration.query, registration.query.schedule.stop, row["stop"]
    given = {"digest": registration.digest, "scale": scale_text(query.scale), "shards": query.shards}
    for field, value in given.items():
        if row[field] != value:
            raise ChargeMismatch.of(query.name, field, row[field], value)
    # an extension since then is fine, its windows are only more
    if recorded_stop is not None and (stop is None or stop > recorded_stop):
        raise ChargeMismatch.of(query.name, "windows.stop", recorded_stop, stop)


def _check_block(registration: Registration, layout: Layout, draft: BlockToPublish, block: NoisyBlock) -> None:
    where = f"query {registration.query.name!r}, window {draft.window}, shard {draft.shard}"
    keys = layout.keys(draft.shard)
    if tuple(block.keys) != keys:
        raise BlockError(
            f"{where}: its block has {len(block.keys)} keys that are not the {len(keys)} of the shard in their order; "
            f"take them from the registration's roster"
        )
    shapes = {"counts": (len(keys), layout.columns), "totals": (len(keys),)}
    for name, found in (("counts", block.counts), ("totals", block.totals)):
        if found.dtype != np.int64 or found.shape != shapes[name]:
            raise BlockError(
                f"{where}: its {name} are {found.dtype} of shape {found.shape}; they must be int64 of shape "
                f"{shapes[name]}"
            )
    if block.completeness not in COMPLETENESS:
        raise BlockError(
            f"{where}: completeness is {block.completeness!r} and must be one of {', '.join(COMPLETENESS)}"
        )
