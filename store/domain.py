"""A domain as it is on record: a fold over the rows of its log.

Nothing here writes or reads a database, but for blobs, which are read when they are asked for and held against the
digest that the chain has of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Any, NamedTuple

from ..privacy.accounting.charges import BudgetExceeded, Span
from ..privacy.accounting.ledger import Ledger
from ..privacy.accounting.schedules import Schedule as Priced
from ..schemas.ledger import LedgerEntry
from ..schemas.roster import Roster
from ..schemas.slots import Schedule, SlotGrid, Window
from .accounts import ledger_of, loss_of, priced
from .codec import after_delta
from .errors import StoreConflict, damaged
from .log import MARK, Chain
from .specs import TRANSITIONS, BeliefChange, BlockKey, DomainSpec, QuerySpec, Registration, RosterVersion

Blobs = Callable[[Mapping[int, str]], dict[int, bytes]]
"""Reads blobs of a domain by the numbers of their rows, each with its digest; what is read was checked."""

#: Kind of the decision that keeps an operator's word that two domains share series.
SHARING = "series-shared"

#: Kind of the decision that keeps an operator's word that readings which are derived otherwise have the same values.
SAME_VALUES = "same-values"


class Entry(NamedTuple):
    """A charge or refusal: what its row says, and the digest of the log up to it."""

    sequence: int  # position in the account, from 1
    query: str
    start: int
    stop: int
    charged: bool
    epsilon_dp: float
    before: float
    after: float
    budget: float
    rule: str
    given_model: bool
    digest: bytes

    @property
    def span(self) -> Span:
        """What it is to the account."""
        return self.start, self.stop, self.epsilon_dp


class Block(NamedTuple):
    """Where a block is on record."""

    seq: int  # of its row
    digest: str  # of its blob
    completeness: str


class Version(NamedTuple):
    """A roster, from a window on."""

    seq: int  # of its row, whose blob says what changed
    blob: str  # its digest
    start: int  # first slot of the first window that it is for
    created_us: int
    digest: str  # of the roster
    gone: bool = False  # whether one with all of its series replaced it before a window was charged with it


class Decision(NamedTuple):
    """What was decided about a domain."""

    kind: str
    query: str | None
    old: Any
    new: Any
    at_us: int
    blob: bytes | None


@dataclass
class Query:
    """A query as it is on record."""

    spec: QuerySpec  # with a roster without series
    digest: str
    belief: int
    next_start: int  # of the first window without an entry
    versions: list[Version]
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])  # by the window's first slot
    blocks: dict[BlockKey, Block] = field(default_factory=dict[BlockKey, Block])
    # rosters that were read, by the number of their version, and the series of all versions up to the newest read
    rosters: dict[int, Roster] = field(default_factory=dict[int, Roster])
    series: list[str] = field(default_factory=list[str])
    known: set[str] = field(default_factory=set[str])
    read: int = 0  # versions whose changes were read; their rosters may be forgotten again
    made: Registration | None = None  # the last answer, for as long as it holds

    @property
    def schedule(self) -> Schedule:
        """The windows."""
        return self.spec.schedule

    @property
    def revision(self) -> int:
        """How often the roster was changed."""
        return len(self.versions) - 1

    @property
    def first_open(self) -> int | None:
        """Start of the first window without an entry; ``None`` where every window has one."""
        end = self.schedule.end
        return None if end is not None and self.schedule.window_at(self.next_start).stop > end else self.next_start

    def roster_at(self, start: int) -> str:
        """The digest of the roster of the window that begins at a slot."""
        return next(one.digest for one in reversed(self.versions) if one.start <= start or one is self.versions[0])

    def take_roster(self, roster: Roster) -> None:
        """Know the newest roster, which this process has just put on record."""
        self.rosters[self.revision] = roster
        self.number(roster.series)
        self.read, self.made = len(self.versions), None

    def number(self, names: Iterable[str]) -> None:
        """Number series behind those there are, in the order in which they come."""
        new = [name for name in names if name not in self.known]
        self.series += new
        self.known.update(new)

    def ahead(self, last: Window, most: int) -> list[Window]:
        """The next windows without an entry, up to one, so many at most."""
        found: list[Window] = []
        start = self.next_start
        while len(found) < most and start <= last.start:
            found.append(self.schedule.window_at(start))
            start = self.schedule.start_after(start)
        return found


class Domain(Chain):
    """What is on record of a domain."""

    def __init__(self, name: str, store_id: str) -> None:
        super().__init__(name, store_id)
        self.queries: dict[str, Query] = {}
        self.entries: list[Entry] = []
        self.decisions: list[Decision] = []
        self.promises: list[tuple[str, int, int | None]] = []  # windows of a query inside [start, stop), in their order
        self.reserved = 0.0  # loss of everything promised
        self.budgets: list[float] = []  # every budget there was, the one in force last
        self._changed_loss = 0.0  # loss of all charges when a changed belief raised it, which is in no entry
        self._lost = 0.0  # loss after the last charge
        self._spec: DomainSpec | None = None
        self._account: Ledger | None = None
        self._accounted = 0  # entries in the account

    @property
    def spec(self) -> DomainSpec:
        """The domain, with the budget in force and the beliefs."""
        if self._spec is None:
            raise damaged(self.said, "has no first row")
        return self._spec

    @property
    def loss(self) -> float:
        """What is lost, epsilon; entries say what was lost by the beliefs of their time."""
        return max(self._lost, self._changed_loss)

    def query(self, name: str) -> Query:
        """A query that is on record."""
        found = self.queries.get(name)
        if found is None:
            raise StoreConflict(f"query {name!r} of domain {self.name!r} is not on record in this ledger")
        return found

    # the fold

    def apply(self, key: str, body: dict[str, Any], blob: bytes | None) -> None:
        """Enter what a row says."""
        kind, _, rest = key.partition("/")
        taken = {
            "domain": self._take_domain,
            "query": self._take_query,
            "roster": self._take_roster,
            "entry": self._take_entry,
            "block": self._take_block,
            "decision": self._take_decision,
            "belief": self._take_belief,
        }[kind]
        taken(rest, body, blob)

    def _take_domain(self, _: str, body: dict[str, Any], blob: bytes | None) -> None:
        if self._spec is not None:
            raise damaged(self.said, "has two first rows")
        self._spec = DomainSpec.of_row(self.name, body, blob)
        self.budgets.append(self._spec.budget)

    def _take_query(self, name: str, body: dict[str, Any], _: bytes | None) -> None:
        if name in self.queries:
            raise damaged(f"query {name!r}", "is on record twice")
        spec = QuerySpec.of_row(self.name, name, body)
        first = Version(self.seq, body["blob"], spec.schedule.first, body["at"], body["roster"])
        self.queries[name] = Query(spec, body["digest"], body["belief"], spec.schedule.first, [first])
        self._promise(body)

    def _promise(self, body: dict[str, Any]) -> None:
        """Enter what was promised, and what all promises cost then."""
        self.promises += [(self.queries[name].spec.name, start, stop) for name, start, stop in body["promised"]]
        self.reserved = float(body["reserved"])
        self._forget_answers()

    def _forget_answers(self) -> None:
        for query in self.queries.values():
            query.made = None

    def _take_roster(self, rest: str, body: dict[str, Any], _: bytes | None) -> None:
        query = self.queries[rest.partition("/")[2]]
        if body["start"] < query.next_start:
            raise damaged(self.said, f"has a roster in row {self.seq} for windows that are charged")
        if body["gone"]:
            query.versions[-1] = query.versions[-1]._replace(gone=True)
        query.versions.append(Version(self.seq, body["blob"], body["start"], body["at"], body["roster"]))
        query.made = None
        if body["told"] is not None:
            old, new = body["told"]
            self.decisions.append(Decision("roster-changed", query.spec.name, old, new, body["at"], None))

    def _take_entry(self, rest: str, body: dict[str, Any], _: bytes | None) -> None:
        start, name = rest.split("/", 1)
        query, begin = self.queries[name], int(start)
        if begin != query.next_start:
            raise damaged(f"query {name!r}", f"has an entry in row {self.seq} that is not of its next window")
        said: dict[str, Any] = {name: body[name] for name in Entry._fields[3:-1]} | {"rule": sys.intern(body["rule"])}
        made = Entry(len(self.entries) + 1, query.spec.name, begin, **said, digest=self.digest)
        if made.charged and not made.after <= made.budget:
            raise damaged(f"query {name!r}", f"has a charge in row {self.seq} that its budget does not allow")
        self.entries.append(made)
        query.entries[begin] = made
        query.next_start = query.schedule.start_after(begin)
        if made.charged:
            self._lost = made.after

    def _take_block(self, rest: str, body: dict[str, Any], _: bytes | None) -> None:
        start, shard, name = rest.split("/", 2)
        query, place = self.queries[name], (int(start), int(shard))
        if place in query.blocks or not query.entries[place[0]].charged:
            raise damaged(f"query {name!r}", f"has a block in row {self.seq} that nothing paid for")
        query.blocks[place] = Block(self.seq, body["blob"], sys.intern(body["completeness"]))

    def _take_decision(self, _: str, body: dict[str, Any], blob: bytes | None) -> None:
        made = Decision(body["kind"], body["query"], body["old"], body["new"], body["at"], blob)
        self.decisions.append(made)
        if "change" in body:
            change = BeliefChange.of_row(body["change"], blob)
            self._spec = replace(self.spec, changes=(*self.spec.changes, change))
            self._changed_loss = max(self._changed_loss, float(body["lost"]))
            self._account = None
        if made.kind == "budget-raised":
            self._spec = replace(self.spec, budget=float(made.new))
            self.budgets.append(self.spec.budget)
            self._account = None
        if "stop" in body:
            query, stop = self.queries[body["query"]], body["stop"]
            if stop is not None:  # what was promised behind an earlier end is taken back
                self.promises = self._promises_until(query, stop)
            query.spec = replace(query.spec, schedule=replace(query.schedule, stop=stop))
        if "promised" in body:
            self._promise(body)

    def _take_belief(self, _: str, body: dict[str, Any], blob: bytes | None) -> None:
        changes = list(self.spec.changes)
        changes[body["number"]] = BeliefChange.of_row(body["change"], blob)
        self._spec = replace(self.spec, changes=tuple(changes))
        self._forget_answers()

    # promises and the account

    def _promises_until(self, query: Query, stop: int) -> list[tuple[str, int, int | None]]:
        """All promises, those of a query as far as its windows end by a slot."""
        name, latest = query.spec.name, query.schedule.start_before(stop)
        kept = [one for one in self.promises if one[0] != name or one[1] <= latest]
        return [(of, start, stop if of == name and (end is None or end > stop) else end) for of, start, end in kept]

    def promised_until(self, query: Query, stop: int) -> list[Priced]:
        """Everything the budget is reserved for, where a query ended at a slot."""
        return self._priced(self._promises_until(query, stop))

    def promised(self) -> list[Priced]:
        """Everything the budget is reserved for, in the order it was promised.

        Charges lie inside the promises, so these are priced from nothing: charged or not, a window counts once.
        """
        return self._priced(self.promises)

    def _priced(self, promises: Iterable[tuple[str, int, int | None]]) -> list[Priced]:
        specs = {name: query.spec for name, query in self.queries.items()}
        return [
            priced(specs[name].schedule, specs[name].losses, start=start, stop=stop) for name, start, stop in promises
        ]

    def promises_of(self, name: str) -> list[tuple[int, int | None]]:
        """The spans of slots that budget is reserved for, for one query."""
        return [(start, stop) for of, start, stop in self.promises if of == name]

    def is_admitted(self, name: str, window: Window) -> bool:
        """Whether budget is reserved for a window of a query."""
        return any(
            start <= window.start and (stop is None or window.stop <= stop) for start, stop in self.promises_of(name)
        )

    def admitted_stop(self, query: Query) -> int | None:
        """The slot after which windows of a query are refused; ``None`` if all are admitted."""
        last, end = self.promises_of(query.spec.name)[-1][1], query.schedule.end
        return None if last is None or (end is not None and last >= end) else last

    @property
    def account(self) -> Ledger:
        """The running account, with everything charged."""
        if self._account is None or self._accounted > len(self.entries):
            self._account, self._accounted = ledger_of(self.spec, self.spec.budget), 0
        if self._accounted < len(self.entries):
            self._account.replay([one.span for one in islice(self.entries, self._accounted, None) if one.charged])
            self._accounted = len(self.entries)
        return self._account

    def spans(self) -> list[Span]:
        """Everything charged."""
        return [one.span for one in self.entries if one.charged]

    def decide(self, query: Query, window: Window) -> dict[str, Any]:
        """Charge the next window of a query or refuse it, in the account; what its entry says.

        Which windows are refused was settled when budget was reserved. The account is asked again all the same. The
        loss after a refusal is the loss that the budget does not allow, and depends on what is reserved alone.
        """
        account, epsilon_dp = self.account, query.spec.of_length(len(window)).epsilon_dp
        before, charged = account.loss, False
        self._accounted += 1
        if self.is_admitted(query.spec.name, window):
            try:
                made = account.charge(window.start, window.stop, epsilon_dp)
                after, rule, charged = made.loss_after, made.rule, True
            except BudgetExceeded as refusal:
                after, rule = refusal.spent + refusal.asked, "refused: the charge would pass the budget"
        else:
            why = "with all that is reserved, the query's windows up to this one would pass the budget"
            rule = f"refused: {why}"
            # the window alone could seem cheap, because others before it were refused and left a gap
            behind = max(stop for _, stop in self.promises_of(query.spec.name) if stop is not None)
            start = query.schedule.start_behind(behind)
            more = priced(query.schedule, query.spec.losses, start=start, stop=window.stop)
            after = loss_of(self.spec, [*self.promised(), more])
        return {
            "stop": window.stop,
            "charged": charged,
            "epsilon_dp": epsilon_dp,
            "before": before,
            "after": after,
            "budget": self.spec.budget,
            "rule": rule,
            "given_model": query.spec.given_model or any(one.given_model for one in self.spec.changes),
        }

    # answers

    def reader(self, query: Query) -> Callable[[Entry], LedgerEntry]:
        """What makes the public form of a query's charges and refusals."""
        spec, grid, digest = query.spec, SlotGrid(**self.spec.grid), query.digest
        model_id = self.spec.beliefs[query.belief][1]

        def entry(one: Entry) -> LedgerEntry:
            return LedgerEntry(
                entry_id=one.digest[:MARK].hex(),
                sequence=one.sequence,
                domain=self.name,
                query=spec.name,
                query_digest=digest,
                window_start=one.start,
                window_stop=one.stop,
                start_us=grid.time_of(one.start),
                stop_us=grid.time_of(one.stop),
                decision="charged" if one.charged else "refused",
                epsilon_dp=one.epsilon_dp,
                loss_before=one.before,
                loss_after=one.after,
                budget=one.budget,
                rule=one.rule,
                mechanism=spec.mechanism,
                model_id=model_id,
                given_model=one.given_model,
                chain=one.digest.hex(),
            )

        return entry

    def ledger_entries(self, entries: Iterable[Entry] | None = None) -> list[LedgerEntry]:
        """Charges and refusals in their public form, all of them if left out."""
        readers = {name: self.reader(query) for name, query in self.queries.items()}
        return [readers[one.query](one) for one in (self.entries if entries is None else entries)]

    def registration(self, query: Query, blobs: Blobs) -> Registration:
        """What is on record for a query."""
        if query.made is None:
            made = Registration(
                domain=self.spec,
                query=replace(query.spec, roster=self.roster(query, blobs)),
                digest=query.digest,
                admitted_stop=self.admitted_stop(query),
                reserved_loss=self.reserved,
                fresh=False,
                belief=query.belief,
            )
            query.made = made if not query.revision else replace(made, **self._versions(query, made, blobs))
        return query.made

    def _versions(self, query: Query, made: Registration, blobs: Blobs) -> dict[str, Any]:
        """The fields of a registration about rosters that were changed."""
        versions = query.versions
        visible = _in_force(one.start for one in versions)
        settling = _in_force(max(one.start, made.settled_from(one.created_us)) for one in versions)
        settling = [(start, number) for start, number in settling if not versions[number].gone]
        rosters = self.rosters(query, {number for _, number in (*visible, *settling)} | {query.revision}, blobs)

        def version(start: int, number: int) -> RosterVersion:
            return RosterVersion(start, rosters[number], number, versions[number].created_us)

        # charges of a running job repeat a roster, window by window
        alike = [list(same) for _, same in groupby(visible, key=lambda one: versions[one[1]].digest)]
        return {
            "versions": tuple(version(same[0][0], same[-1][1]) for same in alike),
            "settling": tuple(version(*one) for one in settling),
            "joined": tuple(query.series),
            "revision": query.revision,
        }

    def roster(self, query: Query, blobs: Blobs) -> Roster:
        """The newest roster of a query."""
        return self.rosters(query, {query.revision}, blobs)[query.revision]

    def rosters(self, query: Query, wanted: set[int], blobs: Blobs) -> dict[int, Roster]:
        """Rosters by the number of their version; those that are wanted and the newest are remembered."""
        if not wanted <= query.rosters.keys():
            before = max((one for one in query.rosters if one < min(wanted - query.rosters.keys())), default=-1)
            roster = query.rosters.get(before, Roster((), query.spec.roster.kind))
            numbers = range(before + 1, max(wanted) + 1)
            read = blobs({query.versions[number].seq: query.versions[number].blob for number in numbers})
            found = dict(query.rosters)
            for number in numbers:
                roster, joined = after_delta(roster, read[query.versions[number].seq])
                found[number] = roster
                if number >= query.read:
                    query.number(joined)
                    query.read = number + 1
            query.rosters = {number: found[number] for number in found if number in wanted | {query.revision}}
        return query.rosters

    def all_series(self, blobs: Blobs) -> frozenset[str]:
        """Every series that a query has or ever had; the keys of counts of transitions are states."""
        found = set[str]()
        for query in self.queries.values():
            if query.spec.mechanism != TRANSITIONS:
                self.roster(query, blobs)
                found |= query.known
        return frozenset(found)

    def declared(self) -> set[str]:
        """The domains that jobs of this one named as ones that it may share series with."""
        return {one.new for one in self.decisions if one.kind == SHARING}


def _in_force(starts: Iterable[int]) -> list[tuple[int, int]]:
    """Versions as (slot, number), from the slots on at which they start, without those that others replace."""
    held: list[tuple[int, int]] = []
    for number, start in enumerate(starts):
        # for windows none of which was charged
        while held and held[-1][0] >= start:
            held.pop()
        held.append((start, number))
    return held


def windows_from(schedule: Schedule, start: int | None) -> Iterator[Window]:
    """The windows of a schedule, from a slot on; endlessly many of an endless one."""
    if start is not None and start > schedule.first:
        schedule = replace(schedule, start=start)
    return schedule.windows()
