"""Registration: freezing a query with its domain, reserving its budget, and changing its roster.

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
counts, also after it left: what was published of it stays published. So every transaction that lets series join locks
the ledger's own head first, and then the domain's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..privacy.accounting.schedules import Schedule as Priced
from ..privacy.models.markov_chain import ChainError
from ..schemas.digests import digest
from ..schemas.roster import Roster
from ..schemas.slots import SlotGrid
from .accounts import admitted_end, loss_of, priced
from .changes import decide, know
from .codec import delta_bytes, now_us, plain
from .database import Look, Writing
from .domain import SAME_VALUES, SHARING, Blobs, Domain, Query
from .errors import QUERY_ADVICE, BudgetRefused, StoreConflict
from .specs import TRANSITIONS, DomainSpec, QuerySpec, Registration, first_difference

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
    """Registers queries of one domain inside a transaction that holds its lock and the ledger's own."""

    writing: Writing
    name: str  # of the domain
    # digest of the query's newest roster when the job looked, before it asked for the lock; ``None`` if there was none.
    # A roster is changed only if that is still so
    roster: str | None = None

    @property
    def held(self) -> Domain:
        """The domain, which is on record."""
        return self.writing.known(self.name)

    @property
    def _blobs(self) -> Blobs:
        return self.writing.blobs(self.name)

    def _others(self, own: DomainSpec) -> Others:
        return Others.of(self.writing, own)

    def register(self, domain: DomainSpec, query: QuerySpec) -> Registration:
        """Put a query on record, or return what is on record for it."""
        _check(domain, query)
        self._claim_mode(query)
        held = self.writing.domain(domain.name)
        if held is None:
            held = self.writing.begin(domain.name)
            self.writing.add(held, "domain", *domain.to_row())
        domain = self._of_same_values(domain, query.name)
        recorded, known_by_job = held.spec, (plain(domain.belief), domain.model_id)
        # the first where it is none of them, so that the difference is found
        belief = recorded.beliefs.index(known_by_job) if known_by_job in recorded.beliefs else 0
        self._compare_domains(recorded.under(belief), domain)
        for other in sorted(set(domain.shares_with) - held.declared()):
            decide(self.writing, held, SHARING, new=other)
        known = held.queries.get(query.name)
        if known is None:
            return self._create(held, query, belief)
        roster = held.roster(known, self._blobs)
        spec = replace(known.spec, roster=roster)
        _compare_queries((recorded.under(known.belief), spec), (recorded.under(belief), query))
        if query.schedule_given:
            self._compare_schedules(known, query)
        if query.roster_given and query.roster != roster:
            self._change_roster(known, roster, query.roster)
            know(self.writing, held, query.roster.series)
        return held.registration(known, self._blobs)

    def _claim_mode(self, query: QuerySpec) -> None:
        root = self.writing.root
        if root.mode is None:
            self.writing.add(root, "mode", {"noise": query.noise})
        if root.mode != query.noise:
            kinds = {"none": "the noise-free rows of tests", "private": "real rows"}
            raise StoreConflict(
                f"ledger: it holds {kinds[str(root.mode)]} and never {kinds[query.noise]} as well; use another ledger",
                field="mode",
            )

    def _of_same_values(self, given: DomainSpec, query: str) -> DomainSpec:
        """Take a job at its word that its readings, derived otherwise, have the values of a query of the domain.

        Of one state process two derivations tell the same, so their losses add as those of two queries do. That the
        values are the same cannot be seen from the settings: it is a word of the operator, and stays on record with the
        digest of the derivation. The zone says which slots a day has, and stays as it is.
        """
        held, recorded, zone = self.held, self.held.spec.reading, "timezone"
        if not given.same_values_as:
            return given
        if given.same_values_as not in held.queries:
            raise StoreConflict(
                f"same_values_as names query {given.same_values_as!r}, which domain {given.name!r} does not have on "
                "record; name a query that ran before, or leave it out"
            )
        if plain(given.reading) == recorded or given.reading.get(zone) != recorded.get(zone):
            return given
        new = digest(given.reading)
        if (query, new) not in {(one.query, one.new) for one in held.decisions if one.kind == SAME_VALUES}:
            decide(self.writing, held, SAME_VALUES, old=given.same_values_as, new=new, query=query)
        return replace(given, reading=recorded)

    def _compare_domains(self, recorded: DomainSpec, given: DomainSpec) -> None:
        name = f"domain {given.name!r}"
        difference = first_difference(recorded.frozen_fields, plain(given.frozen_fields))
        if difference is not None:
            difference = first_difference(recorded.as_set, given.as_set) or difference
            advice = _BELIEF_ADVICE if difference[0].startswith("model") else _DOMAIN_ADVICE
            raise StoreConflict.of(name, *difference, advice)
        # a job with settings older than a raise still runs, under the new budget
        if given.budget not in self.held.budgets:
            raise StoreConflict.of(name, "privacy.budget", recorded.budget, given.budget, _BUDGET_ADVICE)

    def _create(self, held: Domain, query: QuerySpec, belief: int) -> Registration:
        if query.mechanism != TRANSITIONS:
            self._others(held.spec).check(query.roster.series, held)
        promises, asked = held.promised(), priced(query.schedule, query.losses)
        try:
            end, reserved = admitted_end(held.spec, asked, promises)
        except ChainError as error:
            raise StoreConflict(f"{held.said}: its belief cannot be priced: {error}") from None
        if end == asked.start:
            # one window alone, so that the number says what would have to be freed
            raise _refused(f"the first window of query {query.name!r}", held, [*promises, asked.first(1)])
        body = query.to_row() | {
            "at": now_us(),
            "digest": query.digest(held.spec.under(belief)),
            "belief": belief,
            "roster": query.roster.digest,
            "promised": [(query.name, asked.start, query.schedule.stop if end is None else end)],
            "reserved": reserved,
        }
        self.writing.add(held, f"query/{query.name}", body, delta_bytes(None, query.roster))
        made = held.queries[query.name]
        made.take_roster(query.roster)
        know(self.writing, held, query.roster.series)
        return replace(held.registration(made, self._blobs), fresh=True)

    def join(self, name: str, entries: Iterable[tuple[str, str | None]], most: int | None = None) -> Registration:
        """Let series join the newest roster, from the first window on that is not charged; known ones stay as they are.

        Those stay out that another domain of the ledger has, and that this one may not have as well.
        """
        held, known = self.held, self.held.query(name)
        roster = held.roster(known, self._blobs)
        new = [pair for pair in entries if pair[0] not in roster.groups_of]
        away = self._others(held.spec).left_alone((series for series, _ in new), held) if new else set[str]()
        joined = roster.joined_by((pair for pair in new if pair[0] not in away), most)
        if joined.kind != roster.kind:
            raise StoreConflict(f"query {name!r}: its histograms are of a {roster.kind}; let series join as such")
        start = known.first_open
        if joined is not roster and start is not None:
            self.add_version(known, roster, joined, start)
            know(self.writing, held, joined.series)
        return held.registration(known, self._blobs)

    def _change_roster(self, known: Query, old: Roster, new: Roster) -> None:
        """Let another roster hold from the first window that is not charged."""
        before, after, spec, start = _roster_text(old), _roster_text(new), self.held.spec, known.first_open
        if old.digest != self.roster or start is None:
            advice = _RACE_ADVICE if old.digest != self.roster else _CHARGED_ADVICE
            raise StoreConflict.of(f"query {known.spec.name!r}", "roster", before, after, advice)
        self._others(spec).check(new.series, self.held)
        self.add_version(known, old, new, start, keep=True, told=[before, f"{after}, from {spec.instant(start)} on"])

    def add_version(
        self,
        known: Query,
        old: Roster,
        roster: Roster,
        start: int,
        *,
        created_us: int | None = None,
        keep: bool = False,
        told: list[str] | None = None,
    ) -> None:
        """Let a roster hold from a window on that is not charged; what is charged keeps its own.

        Series keep the numbers that they have, and those that join are numbered after them, in the order of their
        names: workers that know different versions count the same cells under the same numbers.

        A version that the new one replaces holds for no window, and no window was charged with it. Where the new one
        has all that it had, nobody reads it any more, but with ``keep``: jobs that run may have counted by it.

        ``start`` is the first slot of the window, ``created_us`` when the roster was first put on record, now if left
        out, and ``told`` what is said of a change that somebody decided, before and after it.
        """
        last = known.versions[-1]
        gone = not keep and bool(old.series) and last.start >= start and set(old.entries) <= set(roster.entries)
        at = now_us() if created_us is None else created_us
        body = {"at": at, "start": start, "roster": roster.digest, "gone": gone, "told": told}
        key = f"roster/{len(known.versions)}/{known.spec.name}"
        self.writing.add(self.held, key, body, delta_bytes(old, roster))
        known.take_roster(roster)

    def _compare_schedules(self, known: Query, query: QuerySpec) -> None:
        """Refuse another schedule; a later end is an extension, if budget can be reserved for all of it."""
        held, old, new = self.held, known.schedule, query.schedule
        spec, name = held.spec, f"query {query.name!r}"
        differs = new.difference(old)
        if differs is not None:
            raise StoreConflict.of(name, "windows.size", "bounds", f"others from {differs} on", _ZONE_ADVICE)
        if old.first != new.first:
            raise StoreConflict.of(
                name, "windows.start", spec.instant(old.start), spec.instant(new.start), QUERY_ADVICE
            )
        old_end, new_end = old.end, new.end
        if old_end == new_end:
            return
        if old.difference(new) is not None and new_end is not None:
            # the zone data differ behind the end that is asked for, so that no later one can be
            self._end_schedule(known, new_end)
            return
        cut, stops = held.admitted_stop(known) is not None, (spec.instant(old.stop), spec.instant(new.stop))
        if cut or old_end is None or (new_end is not None and new_end < old_end):
            raise StoreConflict.of(name, "windows.stop", *stops, QUERY_ADVICE)
        promises = held.promised()
        asked = priced(new, known.spec.losses, start=old.start_behind(old_end))
        end, reserved = admitted_end(spec, asked, promises)
        if end is not None:
            raise _refused(f"extending query {query.name!r} to {stops[1]}", held, [*promises, asked])
        promised = [(query.name, asked.start, new.stop)]
        more: dict[str, Any] = {"stop": new.stop, "promised": promised, "reserved": reserved}
        decide(self.writing, held, "schedule-extended", old=old.stop, new=new.stop, query=query.name, **more)

    def _end_schedule(self, known: Query, slot: int) -> None:
        """End a query's schedule with the last window that ends by a slot, and take back what was promised behind."""
        held, schedule, name = self.held, known.schedule, f"query {known.spec.name!r}"
        if not schedule.is_end(slot):
            raise StoreConflict(f"{name}: no window of its schedule ends at slot {slot}; end it where one does")
        if known.next_start > schedule.start_behind(slot):
            raise StoreConflict(
                f"{name}: windows behind slot {slot} are charged already, up to slot {known.next_start}; end it where "
                "they end, or later"
            )
        if schedule.stop is not None and schedule.stop < slot:
            raise StoreConflict(f"{name}: its schedule ends at slot {schedule.stop}, before slot {slot}")
        spec, left = held.spec, held.promised_until(known, slot)
        old, new = spec.instant(schedule.stop) or "endless", spec.instant(slot)
        more: dict[str, Any] = {"stop": slot, "promised": [], "reserved": loss_of(spec, left)}
        decide(self.writing, held, "schedule-ended", old=old, new=new, query=known.spec.name, **more)


def _roster_text(roster: Roster) -> str:
    """A roster in a message: names of series are data."""
    return f"{len(roster.series)} series in {len(roster.keys)} {roster.kind} histograms, digest {roster.digest[:8]}"


def _refused(what: str, held: Domain, asked: list[Priced]) -> BudgetRefused:
    lost = max(0.0, loss_of(held.spec, asked) - held.reserved)
    return BudgetRefused.of(what, held.reserved, lost, held.spec.budget, held.name if held.queries else "")


def _compare_queries(first: tuple[DomainSpec, QuerySpec], second: tuple[DomainSpec, QuerySpec]) -> None:
    """Compare a query on record with a job's, each with the domain as it sees it."""
    (recorded, held), (domain, given) = first, second
    name = f"query {given.name!r}"
    # before the scale, which would be another one then
    if given.roster_given and given.roster.multiplicity > held.most and given.roster.kind == held.roster.kind:
        raise StoreConflict.of(name, "roster.multiplicity", held.most, given.roster.multiplicity, _MOST_ADVICE)
    # by other zone data there may be windows of other lengths
    both = sorted(held.scales.keys() & given.scales.keys())
    # whether it holds given the model depends on the series as well
    same_series = given.roster == held.roster or (given.roster_given and given.given_model)

    def compared(query: QuerySpec, domain: DomainSpec) -> dict[str, Any]:
        """What is frozen, and what is no part of the digest and says what the loss is."""
        found = query.frozen_fields(domain)
        found.pop("windows.anchor", None)
        found |= {"noise_law": query.noise_law, "by": query.by, "bins": query.bins}
        if held.lengths or given.lengths:
            found["scales"] = {str(slots): query.scales[slots] for slots in both}
        else:
            found["release_epsilon_dp"] = query.release_epsilon_dp
        return plain(found | ({"given_model": query.given_model} if same_series else {}))

    difference = first_difference(compared(held, recorded), compared(given, domain))
    if difference is not None:
        said = first_difference(held.as_set(recorded), given.as_set(domain))
        raise StoreConflict.of(name, *(said or difference), QUERY_ADVICE)
    # with a start of its own, the message about the start says more
    was, now = (one.schedule.anchor % one.schedule.every for one in (held, given))
    if not given.schedule_given and held.schedule.calendar is None and was != now:
        raise StoreConflict.of(name, "windows.anchor", was, now, QUERY_ADVICE)


def _check(domain: DomainSpec, query: QuerySpec) -> None:
    """Refuse what could not be kept, before anything is written."""
    for what, name in (("domain", domain.name), ("query", query.name)):
        if not name or "\0" in name:
            raise StoreConflict(f"{what}: the name {name!r} is empty or has a null character; give it a name")
    if query.domain != domain.name:
        raise StoreConflict(f"query {query.name!r}: it belongs to domain {query.domain!r}, not to {domain.name!r}")
    for what, number in (("privacy.budget", domain.budget), ("release_epsilon_dp", query.release_epsilon_dp)):
        if not (math.isfinite(number) and number > 0):
            raise StoreConflict(f"{what} is {number!r} and must be finite and above 0")
    if query.scale <= 0 or query.shards < 1:
        raise StoreConflict(
            f"query {query.name!r}: scale {query.scale} must be above 0 and shards {query.shards} at least 1"
        )
    schedule = query.schedule
    if schedule.start is None:
        raise StoreConflict(
            f"query {query.name!r}: windows.start is missing; budget is reserved from the first window on, so set it"
        )
    grid = SlotGrid(**domain.grid)
    for field, slot in (("windows.start", schedule.start), ("windows.stop", schedule.stop)):
        if slot is not None and not -_INT64 <= grid.time_of(slot) <= _INT64:
            raise StoreConflict(f"{field}: slot {slot} lies beyond what microseconds in 64 bits can say; move it")


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


@dataclass(frozen=True)
class Others:
    """The other domains of a ledger than one, with every series that each has or ever had."""

    own: DomainSpec
    domains: dict[str, tuple[Domain, frozenset[str]]]

    @classmethod
    def of(cls, look: Look, own: DomainSpec) -> Others:
        """All domains but one."""
        found = look.others(own.name)
        return cls(own, {name: (one, one.all_series(look.blobs(name))) for name, one in found.items()})

    def _said(self, held: Domain | None) -> set[str]:
        """The domains with which it may share series: by its own word, on record or not, or by theirs."""
        theirs = {name for name, (one, _) in self.domains.items() if self.own.name in one.declared()}
        return theirs | set(self.own.shares_with) | (set[str]() if held is None else held.declared())

    def _barred(self, series: Iterable[str], held: Domain | None) -> Iterator[tuple[str, set[str], str | None]]:
        """Every domain that has some of the series and may not share them, with these and how its process differs."""
        asked, said = set(series), self._said(held)
        for name, (other, known) in self.domains.items():
            shared = asked & known
            if shared:
                differs = _process_difference(other.spec, self.own)
                if differs is None or name not in said:
                    yield name, shared, differs

    def check(self, series: Collection[str], held: Domain | None) -> None:
        """Refuse series that another domain of the ledger has, unless this one may have them as well."""
        for other, shared, differs in self._barred(series, held):
            raise _shared_with(self.own.name, other, len(shared), differs)

    def left_alone(self, series: Iterable[str], held: Domain | None) -> set[str]:
        """Those of some series that may not join, because another domain of the ledger has them."""
        return set[str]().union(*(shared for _, shared, _ in self._barred(series, held)))

    def sharings(self, series: Collection[str], held: Domain | None) -> tuple[Sharing, ...]:
        """What a domain that has some series shares with each other one, by name; none where it shares nothing."""
        said, asked = self._said(held), set(series)
        found = ((other, len(known & asked)) for other, (_, known) in self.domains.items())
        return tuple(Sharing(other, count, other in said) for other, count in found if count)


def _shared_with(domain: str, other: str, series: int, differs: str | None) -> StoreConflict:
    """The error for series of another domain: how many, as their names are data, and the field that differs, if any."""
    found = f"domain {domain!r}: {series:,} of its series {'are' if series > 1 else 'is'} in domain {other!r}"
    apart = "; if they are other series that happen to have these names, name them apart or use another ledger"
    if differs is None:
        message = (
            f"{found} of this ledger, with the same slots, states and readings: it is the same domain under another "
            f"name, and series have one budget whatever it is called; set domain to {other!r}{apart}"
        )
    else:
        message = (
            f"{found} of this ledger, whose state process is another one ({differs} differs): what the two tell "
            f"together is in no account, and their losses do not add up to it; to publish both all the same, set "
            f"shares_series_with: [{other}], which is kept on record{apart}"
        )
    return StoreConflict(message, field="domain", domain=domain, other=other, series=series, differs=differs)


def _process_difference(one: DomainSpec, other: DomainSpec) -> str | None:
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
