"""The report as one HTML file: first what was released, then what is promised, what it cost, and what is not hidden.

The page is a tree of elements, which the writer escapes. The file runs no script, and its policy
(Content-Security-Policy in its head) lets a browser load nothing.
"""

from __future__ import annotations

import base64
import gzip
import io
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from ...privacy.accounting.habits import HABITS, PROMISE
from ...schemas.ledger import LEDGER_SCHEMA
from ...schemas.releases import RELEASE_SCHEMA, tidy
from ...schemas.slots import format_duration, said_duration
from ..console import left, odds, plural
from . import DomainFacts, figures
from .figures import element
from .words import WORDS

_STYLE = (
    figures.COLOURS
    + figures.STYLE
    + """
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 38rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.3rem; margin-top: 2.5rem; }
h3 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
a { color: var(--line); } a:focus, summary:focus { outline: 3px solid var(--warn); outline-offset: 2px; }
figure { margin: 1rem 0 1.5rem; } svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .9rem; } figcaption strong { display: block; } .small { font-size: .9rem; }
.warn { border-left: 5px solid var(--warn); padding-left: .8rem; }
summary { cursor: pointer; padding: .3rem 0; } dt { font-weight: 600; } dd { margin: 0 0 .4rem 1rem; }
"""
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

#: The kinds of beliefs in words.
_KINDS = {
    "mixing-bounds": "every Markov chain whose rarest state has at least probability pi_min and whose spectral gap is "
                     "at least the given one",
    "dobrushin-bounds": "every chain, also one that changes in time, that forgets at least as fast as the contraction "
                        "class says",
    "markov-chain": "one Markov chain for all series",
    "finite-class": "the Markov chains of a list, each alone",
    "any-initial": "Markov chains with given transitions and any start",
    "binary-interval": "every chain of two states that stays in each with a probability in a given interval",
    "periodic-chain": "a Markov chain with transitions of its own for each slot of the day",
}  # fmt: skip


def page_of(found: Sequence[DomainFacts], *, title: str, version: str, pictured: int) -> str:
    """The report as HTML."""
    origin = "Everything here follows from released rows and the ledger's entries, so reading it costs nothing."
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", _STYLE),
    )
    words = [one for word, meaning in WORDS.items() for one in (element("dt", word), element("dd", f"{meaning}."))]
    body = element(
        "body",
        element("h1", title),
        element("p", f"{origin} Made by quiltstream {version}; the file needs no network and runs no script."),
        element("main", *(_domain(facts, pictured) for facts in found)),
        element("h2", "The data"),
        element("p", "One row a count, with its band and where it is from; one row a charge or refusal."),
        element("ul", *(element("li", one) for one in _downloads(found))),
        element("details", element("summary", "What the words mean"), element("dl", *words)),
    )
    page = ET.tostring(element("html", head, body, lang="en"), encoding="unicode", method="html")
    return f"<!doctype html>\n{page}\n"


def _domain(facts: DomainFacts, pictured: int) -> ET.Element:
    account, parts = facts.account, list[ET.Element]()
    parts += [element("h2", f"Domain {account.name}"), element("p", _released(facts, pictured))]
    for place, series in enumerate(facts.series[:pictured]):
        name = f"{series.query}, {series.key_kind} {series.key}"
        drawn = (
            figures.last_window(series),
            figures.course(series) if len(series.rows) > 1 else None,
            figures.profile(series),
        )
        shown = [_figure(one) for one in drawn if one is not None]
        folded = element("details", element("summary", name), *shown)
        parts += [folded] if place else [element("h3", name), *shown]
    parts.append(element("h3", "What is promised"))
    parts += [element("p", one) for one in _promised(facts)]
    parts.append(element("h3", "What it cost"))
    if (picture := figures.cost(facts)) is not None:
        parts.append(_figure(picture))
    parts += [element("p", one) for one in _cost(facts)]
    parts += [element("p", f"Note: {one}", class_="warn") for one in _warnings(facts)]
    parts.append(element("h3", "Who is covered"))
    parts += [element("p", one) for one in _covered(facts)]
    parts.append(element("h3", "What is not hidden"))
    parts += [element("p", one) for one in _open(facts)]
    parts.append(element("h3", "How to check it"))
    parts += [element("p", one) for one in _audit(facts)]
    return element("section", *parts)


def _figure(one: figures.Picture) -> ET.Element:
    return element(
        "figure",
        element("figcaption", element("strong", one.title)),
        one.drawn,
        element("p", one.words, class_="small"),
    )


def _released(facts: DomainFacts, pictured: int) -> str:
    if not facts.series:
        return "No histogram is released yet."
    windows, shown = sum(len(one.rows) for one in facts.series), min(pictured, len(facts.series))
    kinds = " and ".join(sorted({one.key_kind for one in facts.series}))
    drawn = "All are drawn here." if shown == len(facts.series) else f"The first {shown} are drawn; the data have all."
    clock = "" if facts.timezone == "UTC" else f" Windows are named by the clock of {facts.timezone}."
    return (
        f"{plural(windows, 'released histogram')}; {kinds}: {len(facts.series):,}. {drawn}{clock} Bands are about the "
        "noise alone."
    )


def _promised(facts: DomainFacts) -> Iterator[str]:
    account = facts.account
    yield f"{PROMISE[0].upper()}{PROMISE[1:]}."
    yield (
        f"Epsilon is {account.loss:.4f} after {plural(account.charged, 'window')}, and never more than the budget of "
        f"{account.budget:g}. At the budget {odds(account.budget)}, for someone who knows the habits."
    )
    yield (
        f"A slot is {format_duration(facts.slot_us)} of one series, not a day and no habit. The definition is "
        "Pufferfish privacy, pure (no delta), for each chain of the belief and for no mixture of chains; it is not "
        "differential privacy of independent records."
    )
    rows = [query.row for query in facts.queries if query.row is not None]
    laws = ", ".join(sorted({f"{row['noise_law']}, calibrated by {row['mechanism']}" for row in rows}))
    if laws:
        yield f"Every count has exact integer noise ({laws})."


def _cost(facts: DomainFacts) -> Iterator[str]:
    account = facts.account
    naive = "" if account.naive is None else f" Adding the windows up would say {account.naive:g}."
    yield (
        f"Of the budget {left(account.remaining, account.unreserved)}."
        f"{naive} {plural(account.refused, 'window') if account.refused else 'No window'} "
        f"{'were' if account.refused > 1 else 'was'} refused."
    )
    for query in account.queries:
        windows = "an endless schedule" if query.windows is None else plural(query.windows, "window")
        yield f"Query {query.name}: {query.charged:,} charged and {query.refused:,} refused of {windows}."


def _warnings(facts: DomainFacts) -> Iterator[str]:
    if facts.account.given_model:
        yield "the loss holds only given the model, which was estimated from series that it protects."
    if facts.account.history_lost:
        yield "charges made elsewhere are missing from this account, by an operator's word: its loss is too small."
    for one in facts.account.shares:
        yield one.text


def _covered(facts: DomainFacts) -> Iterator[str]:
    for query in facts.queries:
        groups = f" in {plural(query.groups, 'group')}" if query.groups < query.series else ""
        yield f"Query {query.name} counts {query.series:,} series{groups}."
    kind = str(facts.domain.belief.get("kind"))
    yield f"The promise holds for series that follow the belief, and for no others: {_KINDS.get(kind, kind)}."
    sources = sorted({str(query.row["model_provenance"]) for query in facts.queries if query.row is not None})
    for source in sources:
        covered = "" if "further series" in source else "; no probability that a further series is covered is on record"
        yield f"The belief is from: {source}{covered}."
    for change in facts.domain.changes:
        since = "for the whole history" if change.slot is None else f"from slot {change.slot} on"
        yield f"The belief changed {since}: model {change.model_id}, {change.source}."


def _open(facts: DomainFacts) -> Iterator[str]:
    habits = "" if facts.habits is None else f" Here it is at most epsilon {facts.habits:.3g} in all."
    yield f"{HABITS[0].upper()}{HABITS[1:]}.{habits}"
    events = [
        f"{'any event' if slots is None else 'events up to ' + said_duration(slots * facts.slot_us)} within {loss:g}"
        for loss, slots in facts.longest
        if slots != 0
    ]
    yield f"Events of many slots lose more than one slot: {', '.join(events) or 'none of two slots stays within 4'}."
    yield (
        "Nor is hidden what series have in common (weather, a holiday), what several devices of the same people tell "
        "in different series, and when a row appears. The operator sees readings and ledger and is trusted."
    )
    missing = "" if facts.domain.missing.startswith("state") else ", and which slots have no reading"
    yield f"Public by assumption are settings, roster, schedule and bins{missing}."


def _audit(facts: DomainFacts) -> Iterator[str]:
    yield (
        f"The head of the record is {facts.head}. Keep it elsewhere: quiltstream ledger verify --expect HEAD says "
        "later whether the record is as it was."
    )
    rules = ", ".join(sorted({one.rule for one in facts.entries if one.charged}))
    if rules:
        yield (
            f"The account bounds the loss so: {rules}. The tests hold the account against the exact loss of small "
            "chains, by all sequences of states and all outputs that can matter: none lost more than the account says."
        )


def _downloads(found: Sequence[DomainFacts]) -> Iterator[ET.Element]:
    cells = tidy(pa.concat_tables([RELEASE_SCHEMA.empty_table(), *(facts.table for facts in found)]))
    made = io.BytesIO()
    pq.write_table(cells, made, compression="zstd")
    yield _download("counts.parquet", made.getvalue())
    yield _download("counts.csv.gz", _csv(cells))
    entries = [entry.to_dict() for facts in found for entry in facts.entries]
    yield _download("ledger-entries.csv.gz", _csv(pa.Table.from_pylist(entries, schema=LEDGER_SCHEMA)))


def _csv(table: pa.Table) -> bytes:
    made = io.BytesIO()
    csv.write_csv(table, made, csv.WriteOptions(quoting_style="needed"))
    return gzip.compress(made.getvalue(), compresslevel=6, mtime=0)


def _download(name: str, data: bytes) -> ET.Element:
    address = f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"
    return element("a", f"{name} ({len(data) / 1e3:,.0f} kB)", download=name, href=address)
