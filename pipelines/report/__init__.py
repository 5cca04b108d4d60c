"""``quiltstream report``: one HTML file from a ledger of record, for people who decide or ask. No Beam.

Here is what the report says, as plain values read from the ledger; ``figures`` draws them, ``page`` lays them out, and
``words`` is the glossary.
Only what may be published is read: released rows, entries, accounts and decisions, as ``quiltstream ledger export`` has
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...privacy.accounting.habits import habit_loss
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.files import write_whole
from ...schemas.ledger import LedgerEntry
from ...schemas.releases import RELEASE_SCHEMA
from ...store.accounts import ledger_of
from ...store.answers import DomainSummary
from ...store.codec import library_version
from ...store.specs import TRANSITIONS, DomainSpec
from ...store.store import Store
from ..commands.ledger import address_of, files_of
from ..connectors.job_io import check_output
from ..console import plural, results, working
from ..errors import writing
from ..released_series import ReleasedSeries, series_in


def write_report(text: str, output: Path, *, domain: str | None, title: str, pictured: int) -> None:
    """Read a ledger and write its report."""
    from .page import page_of  # noqa: PLC0415 - it reads the values of this module

    check_output(output, files_of(text), begins=b"<!doctype html>")
    with working("reading the ledger"), Store(address_of(text)) as store:
        names = store.domains() if domain is None else (domain,)
        found = [facts for name in names if (facts := read_domain(store, name)) is not None]
    with working("drawing"):
        page = page_of(found, title=title, version=library_version(), pictured=pictured)
    with writing(output):
        write_whole(output, page)
    size = output.stat().st_size / 1e3
    results().print(f"{output}: {plural(len(found), 'domain')}, {size:,.0f} kB", soft_wrap=True)


#: Losses for which the longest event is said.
ACCEPTED = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class QueryFacts:
    """What is on record of a query."""

    name: str
    series: int  # how many series its newest roster has
    groups: int  # how many groups, or series where there are none
    # a released row as plain values, for what all rows share; ``None`` where none is released
    row: dict[str, Any] | None


@dataclass(frozen=True)
class DomainFacts:
    """Everything that the report says of one domain."""

    account: DomainSummary
    head: str  # what tells later whether the ledger is as it was
    domain: DomainSpec  # what is frozen of it
    queries: tuple[QueryFacts, ...]
    entries: tuple[LedgerEntry, ...]  # charges and refusals
    series: tuple[ReleasedSeries, ...]  # released series and groups
    table: pa.Table  # the released rows
    longest: tuple[tuple[float, int | None], ...]  # (accepted loss, slots or ``None`` for any number)
    habits: float | None  # the loss for someone who does not know the habits; ``None`` where it is not known

    @property
    def slot_us(self) -> int:
        """Length of a slot in microseconds."""
        return int(self.domain.grid["interval_us"])

    @property
    def timezone(self) -> str:
        """The zone of the readings: days and hours are those of its clock."""
        return self.domain.reading.get("timezone", "UTC")


def read_domain(store: Store, name: str) -> DomainFacts | None:
    """Read what a report says of a domain; ``None`` where the domain has no query."""
    account, entries = store.summary(name), tuple(store.entries(name))
    queries: list[QueryFacts] = []
    table = RELEASE_SCHEMA.empty_table()
    spec: DomainSpec | None = None
    for one in account.queries:
        held = store.registered(name, one.name)
        if held is None:
            continue
        spec, roster = held.domain, held.query.roster
        row = None
        if held.query.mechanism != TRANSITIONS:
            rows = pa.Table.from_batches(store.releases(name, one.name), RELEASE_SCHEMA)
            table = pa.concat_tables([table, rows])
            row = rows.slice(0, 1).to_pylist()[0] if rows.num_rows else None
        queries.append(QueryFacts(one.name, int(roster.members.sum()), len(roster.keys), row))
    if spec is None:
        return None
    ledger = ledger_of(spec)
    spans = [entry.span for entry in entries if entry.charged]
    ledger.replay(spans)
    mass = math.fsum((stop - start) * density for start, stop, density in spans)
    return DomainFacts(
        account,
        str(store.head(name)),
        spec,
        tuple(queries),
        entries,
        tuple(series_in(table)),
        table,
        tuple((accepted, ledger.longest_event(accepted)) for accepted in ACCEPTED) if spans else (),
        loss_without_habits(spec, ledger.loss, mass),
    )


def loss_without_habits(spec: DomainSpec, loss: float, mass: float) -> float | None:
    """What someone learns of a slot who does not know which chain of a list a series follows, all held alike.

    Args:
        spec: the domain.
        loss: of everything charged, to someone who knows the chain; epsilon.
        mass: the densities of all charged slots added up, which no reader exceeds.
    """
    members = belief_from_dict(spec.belief).members
    if spec.changes or len(members) < 2 or any(one.initial is not None for one in members):  # noqa: PLR2004 - two habits
        return None
    return min(mass, loss + habit_loss(members).most)
