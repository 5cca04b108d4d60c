"""Registration: freezing a query with its domain, reserving its budget, and reading both back.

Reserving for the whole schedule at once is what makes refusals independent of the order in which windows arrive: which
ones are refused is known before the first reading. The first registration of a name wins; a later one of the same
content gets the same answer, and one of other content is an error that names what differs.

Two things may change later: the schedule may end later, if budget can be reserved for that, and the roster may be
another one for the windows that are not charged yet. The ledger holds one charge a window, which is the loss to any one
of the series that the domain protects: scale, density and windows are the same for all, and a series that is not in a
window's roster merely loses less. What a window costs depends on its roster only by the number of histograms in which
one cell counts, and that may not grow. So what is reserved stays reserved, and no entry changes.

What is promised holds 'given the model' only, where the model was estimated from series that it is to protect (theory
section 7, item 5). Which series a domain protects may grow after a belief was added: from the transaction on in which
such a series joins, every charge of the domain says so. What was charged before did not hold the series.

A budget belongs to the series, not to the name of a domain. Two domains that see the same state process of a series are
one domain under two names: each account would show half of what is lost, so the second one is refused. Two domains over
different state processes of the same series are allowed where a job says so. What they tell together is in no account:
the loss of both is not bounded by the sum of their losses (docs/settings.md). Every series that a roster ever had
counts, also after it left: what was published of it stays published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from ..privacy.accounting.schedules import Schedule as Priced
from ..privacy.models.markov_chain import ChainError
from ..schemas.digests import canonical_json
from ..schemas.digests import digest as digest_of
from ..schemas.model_file import hash_of_series
from ..schemas.roster import Roster
from ..schemas.slots import SlotGrid
from . import codec, recorded_rows, tables
from .accounts import admitted_end, loss_of, priced, promised
from .codec import Row, now_us, plain
from .errors import QUERY_ADVICE, BudgetRefused, ModeError, RegistrationConflict, SharedSeries, StoreError
from .integrity import alter, checked_rows, damaged, put, rewrite, with_digest
from .specs import (
    TRANSITIONS,
    BeliefChange,
    DomainSpec,
    Noise,
    QuerySpec,
    Registration,
    RosterVersion,
    first_difference,
    roster_text,
)


def protect(connection: Connection, row: Row, series: Iterable[str]) -> Row:
    """Note that a domain protects some series, inside a transaction that holds its lock; its row as it is then."""
    changes = codec.changes_from_text(row["changes"])
    if all(one.given_model or not one.series_hashes for one in changes):
        return row
    hashes = {hash_of_series(name) for name in series}
    return _kept(connection, row, [one.protecting(hashes) for one in changes])


def say_again(connection: Connection, row: Row, change: BeliefChange) -> Row:
    """Note what is known anew of a change that is on record, in whatever words; otherwise as :func:`protect`."""

    def content(one: BeliefChange) -> tuple[Any, ...]:
        return one.belief, one.model_id, one.slot

    changes = codec.changes_from_text(row["changes"])
    return _kept(connection, row, [one.agreed(change) if content(one) == content(change) else one for one in changes])


def _kept(connection: Connection, row: Row, changes: Sequence[BeliefChange]) -> Row:
    text = codec.changes_text(changes)
    if text == row["changes"]:
        return row
    return alter(connection, tables.domains, row["id"], changes=text)


def as_protected(connection: Connection, row: Row, change: BeliefChange) -> BeliefChange:
    """A change of belief that knows whether it rests on a series of the domain, of whichever roster."""
    if change.given_model or not change.series_hashes:
        return change
    series = recorded_rows.series_of_all(connection, [row])[row["id"]]
    return change.protecting({hash_of_series(name) for name in series})


_INT64 = 2**63 - 1

_DOMAIN_ADVICE = (
    "a domain keeps what its account rests on: set it back; a domain of another name is for other series, because what "
    "two domains tell together of series that they share is in no account"
)
_BELIEF_ADVICE = (
    "an account rests on one belief: set the model back, or let the new one join it for the whole history, or follow "
    "it, by `quiltstream ledger belief`"
)
_CHARGED_ADVICE = (
    "every window of the query has its roster for ever, because it is charged or refused: set the roster back, move "
    "windows.stop to add windows, or use a new query name"
)
_MOST_ADVICE = (
    "no series may be in more groups than when the query was registered, because its noise was calibrated for that: "
    "take it out of a group, or use a new query name, which is charged anew"
)
_ZONE_ADVICE = (
    "the time zone data of this machine are of another edition than those that the query was planned with, and what is "
    "on record holds: use that edition, or set windows.stop to where the windows still agree, and publish those behind "
    "it under a new query name"
)
_BUDGET_ADVICE = "set privacy.budget to the budget on record, or raise that first, by `quiltstream ledger budget`"
_RACE_ADVICE = (
    "another job changed the roster at the same moment, and the first one holds: see which roster is meant, and run "
    "again"
)


@dataclass(frozen=True)
class Registrar:
    """Registers queries inside a transaction that may write.

    Attributes:
        connection: the transaction.
        roster: digest of the roster that was on record when the job looked, before it asked for the lock; ``None`` if
            there was none. A roster is changed only if that is still so.
    """

    connection: Connection
    roster: str | None = None

    def register(self, domain: DomainSpec, query: QuerySpec) -> Registration:
        """Put a query on record, or return what is on record for it."""
        _check(domain, query)
        self._lock_domain(domain.name)
        self._claim_mode(query.noise)
        row = recorded_rows.find_domain(self.connection, domain.name) or self._make_domain(domain)
        check_parts(self.connection, row)
        recorded = codec.domain_from_row(row)
        row, domain = self._of_same_values(row, recorded, domain, query.name)
        known_by_job = (plain(domain.belief), domain.model_id)
        # the first where it is none of them, so that the difference is found
        belief = recorded.beliefs.index(known_by_job) if known_by_job in recorded.beliefs else 0
        self._compare_domains(row, recorded.under(belief), domain)
        recorded = replace(recorded, shares_with=domain.shares_with)
        for other in sorted(set(domain.shares_with) - declared_by(self.connection, row)):
            row = record_event(self.connection, row["id"], SHARING, old=None, new=other)
        known = recorded_rows.query_row(self.connection, row["id"], query.name)
        if known is None:
            return self._create(row, recorded, query, belief)
        held = query_spec(self.connection, row, known)
        _compare_queries((recorded.under(known["belief"]), held), (recorded.under(belief), query))
        if query.schedule_given:
            held = self._compare_schedules(row, recorded, known, held, query)
            row = recorded_rows.find_domain(self.connection, domain.name) or row
            known = recorded_rows.query_row(self.connection, row["id"], query.name) or known
        if query.roster_given and query.roster != held.roster:
            known, held = self._change_roster(row["id"], recorded, known, held, query.roster)
            row = protect(self.connection, row, query.roster.series)
        return registration_of(self.connection, row, known, held)

    def _lock_domain(self, name: str) -> None:
        """Lock a domain, or the ledger's row if it is to be made.

        Every transaction locks a domain first, so that no two wait for each other.
        """
        connection = self.connection
        while True:
            lock = connection.begin_nested()
            there = recorded_rows.lock_domain(connection, name) is not None
            held = None if there else recorded_rows.meta_row(connection, lock=True)
            if held is None or all(row["name"] != name for row in recorded_rows.domain_rows(connection, held)):
                lock.commit()
                return
            # made by another job, before this one had the ledger's row; who holds the domain may wait for that row
            lock.rollback()
            if recorded_rows.find_domain(connection, name) is None:
                raise damaged(f"domain {name!r}", "is on record and not found there by its name")

    def _make_domain(self, domain: DomainSpec) -> Row:
        held = recorded_rows.meta_row(self.connection, lock=True)
        rewrite(self.connection, tables.meta, held, domain_rows=held["domain_rows"] + 1)
        return put(
            self.connection, tables.domains, codec.domain_values(replace(domain, changes=())) | {"created_us": now_us()}
        )

    def _claim_mode(self, noise: Noise) -> None:
        mode = recorded_rows.meta_row(self.connection)["mode"]
        if mode is None:
            held = recorded_rows.meta_row(self.connection, lock=True)
            # another job may have been first
            mode = held["mode"] or rewrite(self.connection, tables.meta, held, mode=noise)["mode"]
        if mode != noise:
            kinds = {"none": "the noise-free rows of tests", "private": "real rows"}
            raise ModeError(f"ledger: it holds {kinds[str(mode)]} and never {kinds[noise]} as well; use another ledger")

    def _of_same_values(self, row: Row, recorded: DomainSpec, given: DomainSpec, query: str) -> tuple[Row, DomainSpec]:
        """Take a job at its word that its readings, derived otherwise, have the values of a query of the domain.

        Of one state process two derivations tell the same, so their losses add as those of two queries do. That the
        values are the same cannot be seen from the settings: it is a word of the operator, and stays on record with the
        digest of the derivation. The zone says which slots a day has, and stays as it is.
        """
        if not given.same_values_as:
            return row, given
        if recorded_rows.query_row(self.connection, row["id"], given.same_values_as) is None:
            raise StoreError(
                f"same_values_as names query {given.same_values_as!r}, which domain {given.name!r} does not have on "
                "record; name a query that ran before, or leave it out"
            )
        zone = "timezone"
        if plain(given.reading) == recorded.reading or given.reading.get(zone) != recorded.reading.get(zone):
            return row, given
        new = digest_of(given.reading)
        said = {(one["query"], json.loads(one["new"])) for one in recorded_rows.events_of(self.connection, row)
                if one["kind"] == SAME_VALUES}  # fmt: skip
        if (query, new) not in said:
            row = record_event(self.connection, row["id"], SAME_VALUES, old=given.same_values_as, new=new, query=query)
        return row, replace(given, reading=recorded.reading)

    def _compare_domains(self, row: Row, recorded: DomainSpec, given: DomainSpec) -> None:
        name = f"domain {given.name!r}"
        difference = first_difference(recorded.frozen_fields(), plain(given.frozen_fields()))
        if difference is not None:
            difference = first_difference(recorded.as_set, given.as_set) or difference
            advice = _BELIEF_ADVICE if difference[0].startswith("model") else _DOMAIN_ADVICE
            raise RegistrationConflict.of(name, *difference, advice)
        if given.budget == recorded.budget:
            return
        # a job with settings older than a raise still runs, under the new budget
        events = recorded_rows.events_of(self.connection, row)
        if given.budget not in {float(one["old"]) for one in events if one["kind"] == "budget-raised"}:
            raise RegistrationConflict.of(name, "privacy.budget", recorded.budget, given.budget, _BUDGET_ADVICE)

    def _create(self, row: Row, domain: DomainSpec, query: QuerySpec, belief: int) -> Registration:
        connection = self.connection
        if query.mechanism != TRANSITIONS:
            recorded_rows.meta_row(connection, lock=True)  # two jobs at once could share series unseen
            check_apart(connection, domain, query.roster.series)
        held = promised(connection, row)
        asked = priced(query.schedule, query.losses)
        try:
            end, reserved = admitted_end(domain, asked, held)
        except ChainError as error:
            raise StoreError(f"domain {domain.name!r}: its belief cannot be priced: {error}") from None
        if end == asked.start:
            # one window alone, so that the number says what would have to be freed
            raise _refused(f"the first window of query {query.name!r}", row, domain, [*held, asked.first(1)])
        values = codec.query_values(query) | {
            "domain_id": row["id"],
            "digest": query.digest(domain.under(belief)),
            "roster_id": roster_id(connection, query.roster),
            "created_us": now_us(),
            "belief": belief,
            "reservation_rows": 1,
            "version_rows": 0,
        }
        known = put(connection, tables.queries, values)
        promise = {"query_id": known["id"], "start": asked.start, "created_us": now_us()}
        put(connection, tables.reservations, promise | {"stop": query.schedule.stop if end is None else end})
        more = row["query_rows"] + 1
        changed = rewrite(connection, tables.domains, row, query_rows=more, reserved_loss=reserved)
        changed = protect(connection, changed, query.roster.series)
        return replace(registration_of(connection, changed, known, codec.as_recorded(query)), fresh=True)

    def join(
        self, domain: str, name: str, entries: Iterable[tuple[str, str | None]], most: int | None = None
    ) -> Registration:
        """Let series join the newest roster, from the first window on that is not charged; known ones stay as they are.

        Those stay out that another domain of the ledger has, and that this one may not have as well.
        """
        row = recorded_rows.locked_domain_row(self.connection, domain)
        known = recorded_rows.recorded_query_row(self.connection, row, name)
        held = query_spec(self.connection, row, known)
        new = [pair for pair in entries if pair[0] not in held.roster.groups_of]
        away = set[str]()
        if new:
            recorded_rows.meta_row(self.connection, lock=True)
            away = left_alone(self.connection, codec.domain_from_row(row), (series for series, _ in new))
        roster = held.roster.joined_by((pair for pair in new if pair[0] not in away), most)
        if roster.kind != held.roster.kind:
            raise StoreError(f"query {name!r}: its histograms are of a {held.roster.kind}; let series join as such")
        start = recorded_rows.first_open(self.connection, known["id"], held.schedule)
        if roster is not held.roster and start is not None:
            add_version(self.connection, known, held, roster, start)
            row = protect(self.connection, row, roster.series)
            known, held = (
                recorded_rows.query_row(self.connection, row["id"], name) or known,
                replace(held, roster=roster),
            )
        return registration_of(self.connection, row, known, held)

    def _change_roster(
        self, domain_id: int, domain: DomainSpec, known: Row, held: QuerySpec, roster: Roster
    ) -> tuple[Row, QuerySpec]:
        """Let another roster hold from the first window that is not charged: a new version, and an event on record."""
        old, new = roster_text(held.roster), roster_text(roster)
        conflict = partial(RegistrationConflict.of, f"query {held.name!r}", "roster", old, new)
        if held.roster.digest != self.roster:
            raise conflict(_RACE_ADVICE)
        start = recorded_rows.first_open(self.connection, known["id"], held.schedule)
        if start is None:
            raise conflict(_CHARGED_ADVICE)
        recorded_rows.meta_row(self.connection, lock=True)
        check_apart(self.connection, domain, roster.series)
        add_version(self.connection, known, held, roster, start, keep=True)
        new = f"{new}, from {domain.instant(start)} on"
        record_event(self.connection, domain_id, "roster-changed", old=old, new=new, query=held.name)
        changed = recorded_rows.query_row(self.connection, domain_id, held.name)
        return changed or known, replace(held, roster=roster)

    def _compare_schedules(
        self, row: Row, domain: DomainSpec, known: Row, held: QuerySpec, query: QuerySpec
    ) -> QuerySpec:
        """Refuse another schedule; a later end is an extension, if budget can be reserved for all of it."""
        old, new = held.schedule, query.schedule
        name = f"query {query.name!r}"
        differs = new.difference(old)
        if differs is not None:
            raise RegistrationConflict.of(name, "windows.size", "bounds", f"others from {differs} on", _ZONE_ADVICE)
        if old.first != new.first:
            starts = domain.instant(old.start), domain.instant(new.start)
            raise RegistrationConflict.of(name, "windows.start", *starts, QUERY_ADVICE)
        old_end, new_end = old.end, new.end
        if old_end == new_end:
            return held
        stops = domain.instant(old.stop), domain.instant(new.stop)
        registered = registration_of(self.connection, row, known, held)
        if old.difference(new) is not None and new_end is not None:
            # the zone data differ behind the end that is asked for, so that no later one can be
            end_schedule(self.connection, row, known, registered, new_end)
            return replace(held, schedule=replace(old, stop=new_end))
        cut = registered.admitted_stop is not None
        if cut or old_end is None or (new_end is not None and new_end < old_end):
            raise RegistrationConflict.of(name, "windows.stop", *stops, QUERY_ADVICE)
        promises = promised(self.connection, row)
        asked = priced(new, held.losses, start=old.start_behind(old_end))
        end, reserved = admitted_end(domain, asked, promises)
        if end is not None:
            raise _refused(f"extending query {query.name!r} to {stops[1]}", row, domain, [*promises, asked])
        alter(self.connection, tables.queries, known["id"], stop=new.stop)
        reserve(self.connection, known["id"], asked.start, new.stop)
        set_reserved_loss(self.connection, row["id"], reserved)
        record_event(self.connection, row["id"], "schedule-extended", old=old.stop, new=new.stop, query=query.name)
        return replace(held, schedule=replace(old, stop=new.stop))


def _refused(what: str, row: Row, domain: DomainSpec, asked: list[Priced]) -> BudgetRefused:
    already = float(row["reserved_loss"])
    known = domain.name if row["query_rows"] else ""
    return BudgetRefused.of(what, already, max(0.0, loss_of(domain, asked) - already), domain.budget, known)


def end_schedule(connection: Connection, row: Row, known: Row, registration: Registration, slot: int) -> None:
    """End a query's schedule with the last window that ends by a slot, and take back what was promised behind it."""
    schedule = registration.query.schedule
    name = f"query {registration.query.name!r}"
    if not schedule.is_end(slot):
        raise StoreError(f"{name}: no window of its schedule ends at slot {slot}; end it where one does")
    charged = recorded_rows.next_start(connection, known["id"], schedule)
    if charged > schedule.start_behind(slot):
        raise StoreError(
            f"{name}: windows behind slot {slot} are charged already, up to slot {charged}; end it where they end, or "
            "later"
        )
    if schedule.stop is not None and schedule.stop < slot:
        raise StoreError(f"{name}: its schedule ends at slot {schedule.stop}, before slot {slot}")
    reservations, kept = tables.reservations, 0
    for one in recorded_rows.reservations_of(connection, known):
        if one["start"] > schedule.start_before(slot):
            connection.execute(reservations.delete().where(reservations.c.id == one["id"]))
            continue
        kept += 1
        if one["stop"] is None or one["stop"] > slot:
            alter(connection, reservations, one["id"], stop=slot)
    alter(connection, tables.queries, known["id"], stop=slot, reservation_rows=kept)
    domain = codec.domain_from_row(row)
    set_reserved_loss(connection, row["id"], loss_of(domain, promised(connection, row)))
    old, new = domain.instant(schedule.stop) or "endless", domain.instant(slot)
    record_event(connection, row["id"], "schedule-ended", old=old, new=new, query=registration.query.name)


def add_version(
    connection: Connection,
    known: Row,
    held: QuerySpec,
    roster: Roster,
    start: int,
    *,
    created_us: int | None = None,
    keep: bool = False,
) -> None:
    """Let a roster hold from a window on that is not charged; what is charged keeps its own.

    Series keep the numbers that they have, and those that join are numbered after them, in the order of their names:
    workers that know different versions count the same cells under the same numbers.

    A version that the new one replaces holds for no window, and no window was charged with it. Where the new one has
    all that it had, it names the empty roster from then on, or each series that joins would leave a whole roster
    behind; the names that joined with it stay, because they number the series. With ``keep`` a roster that is replaced
    keeps its entries: jobs that run may have counted by it.

    The transaction holds the domain's lock; ``start`` is the first slot of the window, and ``created_us`` when the
    roster was first put on record, now if left out.
    """
    versions = tables.roster_versions
    earlier = recorded_rows.versions_of(connection, known)
    if not earlier:
        first = {"roster_id": known["roster_id"], "start": held.schedule.first, "created_us": known["created_us"]}
        first |= {"query_id": known["id"], "joined": codec.names_bytes(held.roster.series)}
        earlier = [put(connection, versions, first)]
    series = {name for one in earlier for name in codec.names_from_bytes(one["joined"])}
    number = roster_id(connection, roster)
    new = [name for name in roster.series if name not in series]
    values = {"query_id": known["id"], "roster_id": number, "start": start, "joined": codec.names_bytes(new)}
    put(connection, versions, values | {"created_us": now_us() if created_us is None else created_us})
    alter(connection, tables.queries, known["id"], roster_id=number, version_rows=len(earlier) + 1)
    last = earlier[-1]
    if not keep and held.roster.series and last["start"] >= start and set(held.roster.entries) <= set(roster.entries):
        alter(connection, versions, last["id"], roster_id=roster_id(connection, held.roster.emptied))
        _remove_unnamed(connection, last["roster_id"])


def _remove_unnamed(connection: Connection, number: int) -> None:
    """Remove a roster that nothing on record names; the ledger's own row is locked."""
    naming = (tables.queries, tables.roster_versions, tables.charges)
    named = (sa.exists().where(one.c.roster_id == number) for one in naming)
    connection.execute(tables.rosters.delete().where(tables.rosters.c.id == number, *(~one for one in named)))


def roster_id(connection: Connection, roster: Roster) -> int:
    """The number of a roster on record, which is put there if it is not."""
    recorded_rows.meta_row(connection, lock=True)  # or another job could remove it before it is named here
    rosters, digest = tables.rosters, roster.digest
    values = {"digest": digest, "series": len(roster.series), "entries": roster.packed, "created_us": now_us()}
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(rosters)
    # jobs of two domains may put the same roster there at once
    connection.execute(insert.on_conflict_do_nothing(index_elements=["digest"]), with_digest(rosters, values))
    (found,) = checked_rows(connection, rosters, sa.select(rosters).where(rosters.c.digest == digest))
    return int(found["id"])


def check_parts(connection: Connection, row: Row) -> None:
    """Hold a domain's row against how much there is of it, at the start of a job."""
    recorded_rows.queries_of(connection, row)
    recorded_rows.events_of(connection, row)
    charges = tables.charges
    last = connection.scalar(
        sa.select(sa.func.coalesce(sa.func.max(charges.c.sequence), 0)).where(charges.c.domain_id == row["id"])
    )
    # a damaged file of SQLite gives a text where a number was
    found = last if isinstance(last, int) else "no number"
    if found != row["last_sequence"]:
        raise damaged(f"domain {row['name']!r}", f"had {row['last_sequence']} entries, and the last one is {found}")


def reserve(connection: Connection, query_id: int, start: int, stop: int | None) -> Row:
    """Promise budget for the windows of a query inside ``[start, stop)``; the query's row as it is then."""
    put(connection, tables.reservations, {"query_id": query_id, "start": start, "stop": stop, "created_us": now_us()})
    return alter(connection, tables.queries, query_id, more="reservation_rows")


def set_reserved_loss(connection: Connection, domain_id: int, loss: float) -> Row:
    """Keep the loss of all promises beside the budget; the domain's row as it is then."""
    return alter(connection, tables.domains, domain_id, reserved_loss=loss)


def record_event(
    connection: Connection, domain_id: int, kind: str, *, old: Any, new: Any, query: str | None = None
) -> Row:
    """Keep a decision of the operator, with both values and the time; the domain's row as it is then."""
    values = {"domain_id": domain_id, "kind": kind, "query": query, "at_us": now_us()}
    put(connection, tables.domain_events, values | {"old": canonical_json(old), "new": canonical_json(new)})
    return alter(connection, tables.domains, domain_id, more="event_rows")


def registration_from_rows(connection: Connection, domain: Row, query: Row) -> Registration:
    """What is on record for a query, given its rows."""
    return registration_of(connection, domain, query, query_spec(connection, domain, query))


def query_spec(connection: Connection, domain: Row, query: Row) -> QuerySpec:
    """The query of record that two rows make, with its newest roster."""
    return codec.query_from_row(query, domain["name"], recorded_rows.read_roster(connection, query["roster_id"]))


def registration_of(connection: Connection, domain: Row, query: Row, spec: QuerySpec) -> Registration:
    """The same as :func:`registration_from_rows`, where the specification was read before."""
    reserved = recorded_rows.reservations_of(connection, query)
    if not reserved:
        raise damaged(f"reservations of query {query['name']!r}", "are none")
    last, end = reserved[-1]["stop"], spec.schedule.end
    admitted_all = last is None or (end is not None and last >= end)
    made = Registration(
        domain=codec.domain_from_row(domain),
        query=spec,
        digest=query["digest"],
        admitted_stop=None if admitted_all else last,
        reserved_loss=float(domain["reserved_loss"]),
        fresh=False,
        belief=query["belief"],
    )
    rows = recorded_rows.versions_of(connection, query)
    return replace(made, **_versions(connection, query, made, rows)) if rows else made


def _in_force(rows: Iterable[Row], starts: Iterable[int]) -> list[tuple[int, int, Row]]:
    """Versions as (slot, number, row), from the slots on at which they start, without those that others replace."""
    held: list[tuple[int, int, Row]] = []
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        # for windows none of which was charged
        while held and held[-1][0] >= start:
            held.pop()
        held.append((start, number, row))
    return held


def _versions(connection: Connection, newest: Row, made: Registration, rows: list[Row]) -> dict[str, Any]:
    """The fields of a registration about rosters that were changed."""
    visible = _in_force(rows, (row["start"] for row in rows))
    settling = _in_force(rows, (max(row["start"], made.settled_from(row["created_us"])) for row in rows))
    older = {row["roster_id"] for _, _, row in (*visible, *settling)} - {newest["roster_id"]}
    rosters = {newest["roster_id"]: made.query.roster} | recorded_rows.read_rosters(connection, older)

    def version(start: int, number: int, row: Row) -> RosterVersion:
        return RosterVersion(start, rosters[row["roster_id"]], number, row["created_us"])

    # charges of a running job repeat a roster, window by window
    alike = [list(same) for _, same in groupby(visible, key=lambda one: one[2]["roster_id"])]
    return {
        "versions": tuple(version(same[0][0], *same[-1][1:]) for same in alike),
        # what is left of a roster that lost its entries to a larger one is no roster
        "settling": tuple(version(*one) for one in settling if rosters[one[2]["roster_id"]].awaits is None),
        "joined": tuple(name for row in rows for name in codec.names_from_bytes(row["joined"])),
        "revision": recorded_rows.revision(len(rows)),
    }


def _compare_queries(first: tuple[DomainSpec, QuerySpec], second: tuple[DomainSpec, QuerySpec]) -> None:
    """Compare a query on record with a job's, each with the domain as it sees it."""
    (recorded, held), (domain, given) = first, second
    name = f"query {given.name!r}"
    # before the scale, which would be another one then
    if given.roster_given and given.roster.multiplicity > held.most and given.roster.kind == held.roster.kind:
        raise RegistrationConflict.of(name, "roster.multiplicity", held.most, given.roster.multiplicity, _MOST_ADVICE)
    old, new = plain(held.frozen_fields(recorded)), plain(given.frozen_fields(domain))
    anchors = old.pop("windows.anchor", None), new.pop("windows.anchor", None)
    old["noise_law"], new["noise_law"] = held.noise_law, given.noise_law
    old["by"], new["by"] = list(held.by), list(given.by)
    old["bins"], new["bins"] = plain(held.bins), plain(given.bins)
    # none is part of the digest, but all say what the loss is; the last depends on the series as well
    if held.lengths or given.lengths:
        # by other zone data there may be windows of other lengths
        both = sorted(held.scales.keys() & given.scales.keys())
        old["scales"], new["scales"] = ({str(slots): one.scales[slots] for slots in both} for one in (held, given))
    else:
        old["release_epsilon_dp"], new["release_epsilon_dp"] = held.release_epsilon_dp, given.release_epsilon_dp
    if given.roster == held.roster or (given.roster_given and given.given_model):
        old["given_model"], new["given_model"] = held.given_model, given.given_model
    difference = first_difference(old, new)
    if difference is not None:
        said = first_difference(held.as_set(recorded), given.as_set(domain))
        raise RegistrationConflict.of(name, *(said or difference), QUERY_ADVICE)
    # with a start of its own, the message about the start says more
    if not given.schedule_given and anchors[0] != anchors[1]:
        raise RegistrationConflict.of(name, "windows.anchor", *anchors, QUERY_ADVICE)


def _check(domain: DomainSpec, query: QuerySpec) -> None:
    """Refuse what could not be kept, before anything is written."""
    for what, name in (("domain", domain.name), ("query", query.name)):
        if not name or "\0" in name:
            raise StoreError(f"{what}: the name {name!r} is empty or has a null character; give it a name")
    if query.domain != domain.name:
        raise StoreError(f"query {query.name!r}: it belongs to domain {query.domain!r}, not to {domain.name!r}")
    for what, number in (("privacy.budget", domain.budget), ("release_epsilon_dp", query.release_epsilon_dp)):
        if not (math.isfinite(number) and number > 0):
            raise StoreError(f"{what} is {number!r} and must be finite and above 0")
    if query.scale <= 0 or query.shards < 1:
        raise StoreError(
            f"query {query.name!r}: scale {query.scale} must be above 0 and shards {query.shards} at least 1"
        )
    schedule = query.schedule
    if schedule.start is None:
        raise StoreError(
            f"query {query.name!r}: windows.start is missing; budget is reserved from the first window on, so set it"
        )
    grid = SlotGrid(**domain.grid)
    for field, slot in (("windows.start", schedule.start), ("windows.stop", schedule.stop)):
        if slot is not None and not -_INT64 <= grid.time_of(slot) <= _INT64:
            raise StoreError(f"{field}: slot {slot} lies beyond what microseconds in 64 bits can say; move it")


#: Kind of the event that keeps an operator's word that two domains share series.
SHARING = "series-shared"


#: Kind of the event that keeps an operator's word that readings which are derived otherwise have the same values.
SAME_VALUES = "same-values"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Series that a domain shares with another; declared where a job of either said so by ``shares_series_with``."""

    domain: str
    series: int
    declared: bool

    @property
    def text(self) -> str:
        """What is to be known of it, in words."""
        return (
            f"{self.series:,} series of this domain {'is' if self.series == 1 else 'are'} in domain {self.domain} of "
            "the ledger too: what the two tell together is in no account, and their losses do not add up to it"
        )


def check_apart(connection: Connection, domain: DomainSpec, series: Collection[str]) -> None:
    """Refuse series of a domain that another domain of the ledger has, unless it may have them as well."""
    for other, shared, differs in _barred(connection, domain, series):
        raise SharedSeries.of(domain.name, other, len(shared), differs)


def left_alone(connection: Connection, domain: DomainSpec, series: Iterable[str]) -> set[str]:
    """Those of some series that may not join a domain, because another one of the ledger has them."""
    return set[str]().union(*(shared for _, shared, _ in _barred(connection, domain, series)))


def _barred(
    connection: Connection, domain: DomainSpec, series: Iterable[str]
) -> Iterator[tuple[str, set[str], str | None]]:
    """Every other domain that has some of the series and may not share them, with these and how its process differs."""
    asked, domains = set(series), recorded_rows.domain_rows(connection)
    said = _declared(connection, domains, domain.name) | set(domain.shares_with)
    series_of = recorded_rows.series_of_all(connection, domains)
    for row in domains:
        shared = set[str]() if row["name"] == domain.name else asked & series_of[row["id"]]
        if shared:
            differs = process_difference(codec.domain_from_row(row), domain)
            if differs is None or row["name"] not in said:
                yield row["name"], shared, differs


def sharings(
    connection: Connection, name: str, more: Iterable[str] = (), said: Iterable[str] = ()
) -> tuple[Sharing, ...]:
    """What a domain shares with each other one, by name; none where it shares nothing."""
    domains = recorded_rows.domain_rows(connection)
    if all(row["name"] == name for row in domains):
        return ()
    series = recorded_rows.series_of_all(connection, domains)
    own = set(more).union(*(series[row["id"]] for row in domains if row["name"] == name))
    said = _declared(connection, domains, name) | set(said)
    found = ((row["name"], len(own & series[row["id"]])) for row in domains if row["name"] != name)
    return tuple(Sharing(other, count, other in said) for other, count in found if count)


def declared_by(connection: Connection, domain: Row) -> set[str]:
    """The domains that jobs of one domain named as ones that it may share series with."""
    return {json.loads(one["new"]) for one in recorded_rows.events_of(connection, domain) if one["kind"] == SHARING}


def _declared(connection: Connection, domains: Sequence[Row], name: str) -> set[str]:
    """The domains with which one may share series: by its own word, or by theirs.

    They are not held against the number of decisions: another job may decide something about its own domain meanwhile.
    A word that is missing allows less.
    """
    events, names = tables.domain_events, {row["id"]: row["name"] for row in domains}
    said = checked_rows(connection, events, sa.select(events).where(events.c.kind == SHARING))
    pairs = [(names[one["domain_id"]], json.loads(one["new"])) for one in said if one["domain_id"] in names]
    return {other for one, other in pairs if one == name} | {one for one, other in pairs if other == name}


def process_difference(one: DomainSpec, other: DomainSpec) -> str | None:
    """The field in which the state processes of two domains differ, named as in the settings; ``None`` for the same."""
    found = first_difference(plain(one.process), plain(other.process))
    return None if found is None else _SETTING_OF.get(found[0], found[0])


#: Settings of the fields of a state process that have other names there.
_SETTING_OF = {
    "slots.interval_us": "slots.interval",
    "slots.origin_us": "slots.origin",
    "states.missing_state": "missing",
    "readings.timezone": "slots.timezone",
}
