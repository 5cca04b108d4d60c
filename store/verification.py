"""Reading a whole ledger for damage: every row and blob, and the account of each domain priced anew by the core.

The fold says that rows are those that were written. Here is also asked whether what they say is right: each charge what
the noise of its query costs, each decision by the budget, each loss that of the core. Digests have no key: against
somebody who may write to the ledger and makes all of them anew, a head that is kept elsewhere is the only witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from ..privacy.accounting.charges import Span
from ..privacy.mechanisms.discrete_laplace import epsilon_dp_of
from ..privacy.mechanisms.histogram import LaplaceHistogram
from ..privacy.models.markov_chain import ChainError
from ..schemas.noise_laws import NO_NOISE
from .accounts import ledger_of, loss_of, same_loss
from .codec import after_delta, block_from_bytes
from .domain import Domain, Entry, Query
from .errors import StoreError, damaged
from .log import PAGE, UNREADABLE, VERSION, Chain, Head, Root, heads, log
from .specs import TRANSITIONS

_ALL = (
    sa.select(log.c.seq, log.c.key, log.c.body, log.c.blob)
    .where(log.c.domain == sa.bindparam("name"), log.c.seq > sa.bindparam("after"))
    .order_by(log.c.seq)
    .limit(PAGE // 16)
)


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is not as it was written: of which domain, which row or rows, and what is wrong."""

    domain: str  # empty for the ledger's own log
    row: str
    what: str

    def __str__(self) -> str:
        return f"{f'domain {self.domain}' if self.domain else 'ledger'}: {self.row}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What a ledger holds, and everything that is wrong with it."""

    store_id: str  # the random name of the ledger; empty where that is damaged
    # whether it holds real rows (``private``) or noise-free ones of tests (``none``); ``None`` for none yet
    mode: str | None
    rows: Mapping[str, int]  # rows by kind
    heads: Mapping[str, Head]  # by domain
    defects: tuple[Defect, ...]  # what is not as it was written

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.defects


def verify(connection: Connection, expected: Mapping[str, Sequence[Head]]) -> Verified:
    """Read everything for damage, and price every account anew; nothing is raised for a damaged row."""
    found = _Reader(connection)
    found.read(priced=True)
    for name, wanted in expected.items():
        for head in wanted:
            chain = found.chains.get(name)
            if chain is None:
                found.tell(name, "all rows", "the domain is expected and not on record")
            elif not chain.holds(head.seq, bytes.fromhex(head.digest)):
                found.tell(name, "all rows", f"what its head {head} was made of is not on record as it was")
    root = found.chains.get("")
    return Verified(
        store_id="" if root is None else root.store_id,
        mode=root.mode if isinstance(root, Root) else None,
        rows=dict(found.rows),
        heads={name: chain.head for name, chain in sorted(found.chains.items()) if name},
        defects=tuple(found.defects),
    )


def check_rows(connection: Connection) -> None:
    """Read everything as :func:`verify` does, but price no account."""
    found = _Reader(connection)
    found.read(priced=False)
    if found.defects:
        first, more = found.defects[0], len(found.defects) - 1
        where = f"domain {first.domain!r}" if first.domain else "its own log"
        raise damaged(f"{where}, {first.row},", first.what + (f" (and {more:,} more defects)" if more else ""))


@dataclass
class _Reader:
    """What was read, and what is wrong."""

    connection: Connection
    chains: dict[str, Chain] = field(default_factory=dict[str, Chain])
    rows: Counter[str] = field(default_factory=Counter[str])
    defects: list[Defect] = field(default_factory=list[Defect])

    def tell(self, domain: str, row: str, what: str) -> None:
        """Note a defect."""
        self.defects.append(Defect(domain, row, what))

    def read(self, *, priced: bool) -> None:
        """Read everything, and compare the losses of the accounts with the core only if they are to be priced."""
        if self.connection.dialect.name == "sqlite":  # a server looks after its own files
            for (text,) in self.connection.exec_driver_sql("PRAGMA integrity_check(100)"):
                if text != "ok":
                    self.tell("", "SQLite's structure", str(text))
        try:
            found = {row.domain: row for row in self.connection.execute(sa.select(heads))}
            names = set(self.connection.scalars(sa.select(log.c.domain).distinct())) | found.keys() | {""}
        except DBAPIError as error:
            self.tell("", "all rows", f"cannot be read ({type(error.orig).__name__})")
            return
        store_id = str(found[""].store_id) if "" in found else ""
        for name in sorted(names, key=str):
            if isinstance(name, str):
                self._fold(Domain(name, store_id) if name else Root(store_id), found.get(name))
            else:
                self.tell("", "all rows", "a name of a domain is not what was written")
        root = self.chains.get("")
        listed = set(root.domains) if isinstance(root, Root) else set[str]()
        for name in sorted(listed ^ {name for name in names if name}, key=str):
            self.tell(str(name), "all rows", "the ledger lists it" if name in listed else "the ledger does not list it")
        broken = {one.domain for one in self.defects}
        for name, chain in self.chains.items():
            # what a broken chain says is not what was written
            if isinstance(chain, Domain) and name not in broken:
                self._check_domain(chain, priced=priced)

    def _fold(self, chain: Chain, head: Any) -> None:
        """Enter all rows of a domain with their blobs, up to the first that is not what was written."""
        name = chain.name
        if head is None:
            self.tell(name, "its head", "is missing")
        elif (head.store_id, head.version) != (chain.store_id, VERSION):
            self.tell(name, "its head", "is of another ledger or of another version")
        for seq, key, body, blob in self._pages(name):
            self.rows[str(key).partition("/")[0]] += 1
            if seq != chain.seq + 1:
                self.tell(name, f"row {chain.seq + 1}", f"is missing, and all up to row {seq}")
                break
            try:
                if (blob is None) == ('"blob":"' in body):
                    raise damaged("its blob", "is missing, or is none that was written")
                chain.take(seq, key, body, blob)
                if key.startswith("block/"):
                    block_from_bytes(blob, "live")
            except (StoreError, *UNREADABLE) as error:
                why = str(error) if isinstance(error, StoreError) else type(error).__name__
                self.tell(name, f"row {seq}", f"is not what was written: {why}")
                break
        if head is not None and (chain.seq, chain.digest) != (head.seq, head.digest):
            self.tell(name, "its chain", f"has {chain.seq} rows and does not end in the head on record")
        self.chains[name] = chain

    def _pages(self, name: str) -> Iterator[Any]:
        after = -1
        try:
            while rows := self.connection.execute(_ALL, {"name": name, "after": after}).all():
                yield from rows
                after = rows[-1].seq
        except DBAPIError as error:
            if self.connection.dialect.name != "sqlite":
                raise
            self.tell(name, "the rows that follow", f"cannot be read ({type(error.orig).__name__})")

    def _check_domain(self, held: Domain, *, priced: bool) -> None:
        for query in held.queries.values():
            with suppress(StoreError):
                self._check_rosters(held, query)
            if query.spec.mechanism not in (TRANSITIONS, NO_NOISE):
                for one in (query.spec, *map(query.spec.of_length, query.spec.lengths)):
                    density = epsilon_dp_of(one.scale, LaplaceHistogram.sensitivity)
                    if one.release_epsilon_dp != density:
                        what = f"a release loses {one.release_epsilon_dp!r}; by its scale {density!r}"
                        self.tell(held.name, f"query {query.spec.name!r}", what)
        for entry in held.entries:
            self._check_entry(held, entry)
        if priced:
            try:
                self._price(held)
            except (StoreError, ChainError, ValueError, TypeError, ArithmeticError) as error:
                self.tell(held.name, "its charges", f"the account cannot be priced ({type(error).__name__})")

    def _check_rosters(self, held: Domain, query: Query) -> None:
        """Make every roster anew of what joined and left."""
        seqs = [one.seq for one in query.versions]
        chosen = sa.select(log.c.blob).where(log.c.domain == held.name, log.c.seq.in_(seqs)).order_by(log.c.seq)
        roster = query.spec.roster
        for version, delta in zip(query.versions, self.connection.scalars(chosen), strict=True):
            roster, _ = after_delta(roster, delta)
            if roster.digest != version.digest:
                self.tell(held.name, f"row {version.seq}", "does not give the roster that it names")

    def _check_entry(self, held: Domain, entry: Entry) -> None:
        """Hold an entry against its query's schedule and noise, what is reserved for that, and the budget."""
        query, row = held.queries[entry.query], f"entry {entry.sequence}"
        window = query.schedule.window_at(entry.start)
        own = query.spec.of_length(len(window))
        if (entry.stop, entry.epsilon_dp) != (window.stop, own.epsilon_dp):
            said = f"its window and epsilon_dp are {entry.span!r}"
            self.tell(held.name, row, f"{said}; its query has {(window.start, window.stop, own.epsilon_dp)!r}")
        allowed = held.is_admitted(entry.query, window) and entry.after <= entry.budget
        if entry.charged != allowed and (entry.charged or not same_loss(entry.after, entry.budget)):
            decision = "charged" if entry.charged else "refused"
            self.tell(held.name, row, f"it was {decision}, and by budget and promises it was not to be")

    def _price(self, held: Domain) -> None:
        """Price everything anew, and compare what the entries say."""
        # a belief that was added later is not in what the entries before it say
        spec, known, lost = held.spec, 0, 0.0
        account, spans = ledger_of(replace(spec, changes=())), list[Span]()
        for entry in held.entries:
            while True:
                made = account.charge(*entry.span) if entry.charged else None
                before, after = (account.loss, None) if made is None else (made.loss_before, made.loss_after)
                agree = same_loss(before, entry.before) and (after is None or same_loss(after, entry.after))
                if agree or known == len(spec.changes):
                    break
                known += 1
                account = ledger_of(replace(spec, changes=spec.changes[:known]))
                account.replay(spans)
            if not agree:
                said = f"loss before and after are {entry.before!r} and {entry.after!r}"
                self.tell(held.name, f"entry {entry.sequence}", f"{said}; by the core {before!r} and {after!r}")
            if entry.charged:
                spans.append(entry.span)
                lost = entry.after
        whole, recorded = ledger_of(spec).replay(spans), max(lost, held.loss)
        # where another belief raised the loss, what the entries say may be above it
        if not same_loss(recorded, whole) and not (spec.changes and recorded > whole):
            self.tell(held.name, "its loss", f"is {recorded!r}, and by the core {whole!r}")
        reserved = loss_of(spec, held.promised())
        if not same_loss(reserved, held.reserved):
            self.tell(held.name, "its reserved loss", f"is {held.reserved!r}, and by the core {reserved!r}")
