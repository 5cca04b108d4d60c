"""``quiltstream report``: one HTML file from a ledger of record, for people who decide or ask. No Beam.

Here is what the report says, as plain values read from the ledger; ``figures`` draws them and ``page`` lays them out,
with the words for lay readers, also those for each kind of belief.
Only what may be published is read: released rows, entries, accounts and decisions, as ``quiltstream ledger export`` has
them. What a model file knows of its history is added only where that file is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...privacy.accounting.habits import habit_loss
from ...privacy.accounting.ledger import Ledger
from ...privacy.analysis.slower import slowed
from ...privacy.models.markov_chain import ChainError
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.files import write_whole
from ...schemas.ledger import LedgerEntry
from ...schemas.model_file import Model
from ...schemas.releases import RELEASE_SCHEMA
from ...schemas.slots import format_duration
from ...store.accounts import adjoined, ledger_of
from ...store.answers import DomainSummary
from ...store.codec import library_version
from ...store.specs import TRANSITIONS, DomainSpec
from ...store.store import Store
from ..commands.ledger import address_of, files_of
from ..connectors.job_io import check_output
from ..console import plural, results, working
from ..errors import CommandError, writing
from ..released_series import ReleasedSeries, series_in


def write_report(text: str, output: Path, *, domain: str | None, model: Path | None, title: str, pictured: int) -> None:
    """Read a ledger and write its report."""
    absent = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if absent:
        raise CommandError(
            f"{absent[0]} is not installed, which a report is made with: pip install 'quiltstream[report]'"
        )
    from .page import page_of  # noqa: PLC0415 - after the extra was looked for

    check_output(output, [*files_of(text), *([] if model is None else [model])], begins=b"<!doctype html>")
    known = None if model is None else Model.load(model)
    with working("reading the ledger"), Store(address_of(text)) as store:
        found = read_report(store, domain, known)
    with working("drawing"):
        page = page_of(found, title=title, version=library_version(), pictured=pictured)
    with writing(output):
        write_whole(output, page, private=known is not None)
    size = output.stat().st_size / 1e6
    operator = "" if known is None else "; for the operator, it holds exact statistics of the history"
    results().print(f"{output}: {plural(len(found.domains), 'domain')}, {size:.1f} MB{operator}", soft_wrap=True)


#: How many times less often states change, in the table of wrong beliefs.
SLOWER = (1.25, 1.5, 2.0, 4.0)

#: Losses for which the longest event is said.
ACCEPTED = (1.0, 2.0, 4.0)

#: Lengths of the event curve go up to here, in slots.
_LONGEST = 4096


@dataclass(frozen=True)
class Wrong:
    """One way in which a belief may be wrong."""

    what: str
    # epsilon of everything charged then; infinite where nothing bounds it, ``None`` where it is not known
    loss: float | None


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

    said: DomainSummary
    head: str  # what tells later whether the ledger is as it was
    domain: DomainSpec  # what is frozen of it
    queries: tuple[QueryFacts, ...]
    entries: tuple[LedgerEntry, ...]  # charges and refusals
    # what adding up says after each entry; ``None`` where a query does not say its epsilon
    naive: tuple[float, ...] | None
    series: tuple[ReleasedSeries, ...]  # released series and groups
    table: pa.Table  # the released rows
    events: tuple[tuple[int, float], ...]  # (slots, epsilon) of the event curve
    longest: tuple[tuple[float, int | None], ...]  # (accepted loss, slots or ``None`` for any number)
    wrong: tuple[Wrong, ...]  # what the charges cost if the belief is wrong
    slot_us: int  # length of a slot in microseconds
    timezone: str  # of the readings; days and hours are those of its clock

    @property
    def slot(self) -> str:
        """The length of a slot, for people."""
        return format_duration(self.slot_us)

    @property
    def refusals(self) -> tuple[LedgerEntry, ...]:
        """The windows that the budget refused."""
        return tuple(entry for entry in self.entries if entry.decision == "refused")


@dataclass(frozen=True)
class Report:
    """The whole report."""

    domains: tuple[DomainFacts, ...]
    model: Model | None = None  # the model file, where one is named


def read_report(store: Store, domain: str | None = None, model: Model | None = None) -> Report:
    """Read what a report says."""
    names = store.domains() if domain is None else (domain,)
    return Report(tuple(facts for name in names if (facts := _read_domain(store, name)) is not None), model)


def _read_domain(store: Store, name: str) -> DomainFacts | None:
    said, entries = store.summary(name), tuple(store.entries(name))
    queries: list[QueryFacts] = []
    tables: list[pa.Table] = []
    spec: DomainSpec | None = None
    for one in said.queries:
        held = store.registered(name, one.name)
        if held is None:
            continue
        spec, roster = held.domain, held.query.roster
        row = None
        if held.query.mechanism != TRANSITIONS:
            table = pa.Table.from_batches(store.releases(name, one.name), RELEASE_SCHEMA)
            tables.append(table)
            row = table.slice(0, 1).to_pylist()[0] if table.num_rows else None
        queries.append(QueryFacts(one.name, int(roster.members.sum()), len(roster.keys), row))
    if spec is None:
        return None
    table = pa.concat_tables([RELEASE_SCHEMA.empty_table(), *tables])
    ledger = ledger_of(spec)
    spans = [entry.span for entry in entries if entry.charged]
    ledger.replay(spans)
    return DomainFacts(
        said,
        str(store.head(name)),
        spec,
        tuple(queries),
        entries,
        _naive(said, entries),
        tuple(series_in(table)),
        table,
        event_curve(ledger),
        tuple((accepted, ledger.longest_event(accepted)) for accepted in ACCEPTED) if spans else (),
        wrong_beliefs(spec, ledger.loss, spans),
        int(spec.grid["interval_us"]),
        spec.reading.get("timezone", "UTC"),
    )


def _naive(said: DomainSummary, entries: Sequence[LedgerEntry]) -> tuple[float, ...] | None:
    """What adding the epsilons of all charged windows up says after each entry, each taken as published alone."""
    epsilons = {query.name: query.epsilon for query in said.queries}
    if any(epsilons.get(entry.query) is None for entry in entries if entry.charged):
        return None
    return tuple(accumulate((epsilons[entry.query] or 0.0) if entry.charged else 0.0 for entry in entries))


def event_curve(ledger: Ledger) -> tuple[tuple[int, float], ...]:
    """What an event of 1, 2, 4, ... slots loses at most, as far as that is bounded; none where nothing is charged."""
    found: list[tuple[int, float]] = []
    length = 1
    while ledger.loss > 0 and length <= _LONGEST:
        loss = ledger.event_loss(length)
        if not math.isfinite(loss):
            break
        found.append((length, loss))
        length *= 2
    return tuple(found)


def wrong_beliefs(spec: DomainSpec, loss: float, spans: Sequence[tuple[int, int, float]]) -> tuple[Wrong, ...]:
    """What the same charges cost where the belief is wrong."""
    if not spans:
        return ()
    found = [Wrong("the belief is right", loss)]
    found += [
        Wrong(f"a belief within {delta:g} of the class in conditional max-divergence ([SWC17] 2.4)", loss + 2 * delta)
        for delta in (0.1, 0.5)
    ]
    if spec.changes:
        found.append(Wrong("states change less often than believed: not computed, the belief changed", None))
    else:
        found += [_slower(spec, factor, spans) for factor in SLOWER]
    mass = math.fsum((stop - start) * density for start, stop, density in spans)
    found.append(_of_habits(spec, loss, mass))
    found.append(Wrong("a series never changes its state: all slots tell the same", mass))
    return tuple(found)


def _of_habits(spec: DomainSpec, loss: float, mass: float) -> Wrong:
    """What is lost to someone who does not know which chain of the belief a series follows, all held alike."""
    members = belief_from_dict(spec.belief).members
    what = "who reads it does not know the habits of the series"
    if spec.changes or len(members) < 2 or any(one.initial is not None for one in members):  # noqa: PLR2004 - two habits
        return Wrong(f"{what}: at most Lambda more, which `quiltstream fit` prints", None)
    return Wrong(f"{what}, which of the {len(members)} chains it is", min(mass, loss + habit_loss(members).most))


def _slower(spec: DomainSpec, factor: float, spans: Sequence[tuple[int, int, float]]) -> Wrong:
    what = f"states change {factor:g} times less often than believed"
    form = slowed(spec.belief, factor)
    if form is None:
        return Wrong(what, None)
    try:
        return Wrong(what, Ledger(belief_from_dict(form)).replay(adjoined(list(spans))))
    except ChainError:  # so slow that the form bounds nothing
        return Wrong(what, math.inf)
