"""The report as one HTML file: texts and tables by a template that escapes every value, figures and data inside it.

The file runs no script, and its policy (Content-Security-Policy in its head) lets a browser load nothing. A glossary
explains the words that the page uses, and no others, for readers who know neither statistics nor privacy mathematics.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from jinja2 import Environment, StrictUndefined
from pyarrow import csv

from ...privacy.accounting.habits import HABITS, PROMISE
from ...schemas.ledger import LEDGER_SCHEMA, LedgerEntry
from ...schemas.model_file import Model
from ...schemas.releases import RELEASE_SCHEMA, tidy
from ...schemas.slots import said_duration
from ..commands.fit_text import habits_told
from ..console import number, plural
from ..released_series import ReleasedSeries, days_between
from . import DomainFacts, Report, figures


@dataclass(frozen=True)
class Term:
    """A word of the glossary."""

    name: str
    meaning: str  # in plain language
    pattern: re.Pattern[str]  # as a page has it

    @classmethod
    def of(cls, name: str, meaning: str, forms: Sequence[str] = ()) -> Term:
        """A word of the file, with the forms that are not its name alone."""
        return cls(name, meaning, re.compile(rf"\b(?:{'|'.join(forms or [re.escape(name)])})\b", re.IGNORECASE))


def _text(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


TERMS = tuple(Term.of(**one) for one in yaml.safe_load(_text("glossary.yaml")))


class _Words(HTMLParser):
    """The texts of a page, those that stand for its figures included, without its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """What stands for a figure."""
        del tag
        self.words += [value for name, value in attrs if name == "alt" and value]

    def handle_data(self, data: str) -> None:
        """What is read, or a style."""
        if self.cdata_elem is None:
            self.words.append(data)


def used_on(page: str) -> tuple[Term, ...]:
    """The terms that a page of HTML uses, texts of its figures included."""
    parser = _Words()
    parser.feed(page)
    parser.close()
    text = " ".join(parser.words)
    return tuple(one for one in TERMS if one.pattern.search(text))


#: So many series or groups have figures of their own; all are in the table and the data.
PICTURED = 12

#: Rows of a table; the data have the rest.
_MOST_ROWS = 500

#: The kinds of beliefs: a name for lay readers, and what it means.
_KINDS = {
    "mixing-bounds": ("series that mix at least so fast",
                      "every chain whose rarest state has at least probability pi_min and whose spectral gap is at "
                      "least the one given"),
    "dobrushin-bounds": ("series that forget at least so fast",
                         "every chain, also one that changes in time, that forgets as fast as the curves below say: "
                         "what a slot tells of another is bounded in total variation by their distance, both ways"),
    "markov-chain": ("one chain for all series", "one Markov chain with the transitions below"),
    "finite-class": ("a list of chains", "the Markov chains below; the loss is the largest of any of them"),
    "any-initial": ("chains that start anywhere",
                    "Markov chains with the transitions below and any initial distribution"),
    "binary-interval": ("two states that last about so long",
                        "every chain of two states whose probabilities of staying lie in the intervals below"),
    "periodic-chain": ("a chain with a daily rhythm",
                       "a chain with transitions of its own for each slot of the day"),
}  # fmt: skip


@dataclass(frozen=True)
class Download:
    """Data in the page."""

    name: str
    said: str
    source: str  # its bytes as a data URL


def page_of(report: Report, *, title: str, version: str, pictured: int = PICTURED) -> str:
    """The report as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_text("page.html.jinja"))
    domains = [_domain(facts, place, report.model, pictured) for place, facts in enumerate(report.domains)]
    downloads = list(_downloads(report))
    said = {"title": title, "version": version, "model": report.model, "domains": domains, "downloads": downloads}
    return template.render(said, glossary=used_on(template.render(said, glossary=())))


def _domain(facts: DomainFacts, place: int, model: Model | None, pictured: int) -> dict[str, Any]:
    said = facts.said
    shown = facts.series[:pictured]
    pictures = [
        picture
        for series in shown
        for picture in (figures.bins_over_time(series, facts.timezone), figures.profile(series))
    ]
    columns, latest = _latest(facts.series, facts.timezone)
    return {
        "name": said.name,
        "anchor": f"domain-{place + 1}",
        "summary": _summary(facts),
        "warnings": list(_warnings(facts)),
        "promise": list(_promise(facts).items()),
        "epsilon": figures.epsilon_over_time(facts),
        "cost": list(_cost(facts)),
        "refusals": [
            (f"{entry.sequence}", entry.query, _window(entry, facts), f"{entry.loss_after:.6g}")
            for entry in facts.refusals[:_MOST_ROWS]
        ],
        "event_curve": figures.event_curve(facts),
        "belief": list(_belief(facts, model)),
        "belief_form": json.dumps(facts.domain.belief, indent=1, ensure_ascii=False),
        "wrong_picture": figures.wrong_beliefs(facts),
        "wrong": [(f"{row}", one.what, _loss(one.loss)) for row, one in enumerate(facts.wrong, 1)],
        "released_note": _note(facts, len(shown)),
        "latest_columns": columns,
        "latest": latest,
        "pictures": pictures,
        "entries_note": _entries_note(facts),
        "entries": [
            (
                f"{entry.sequence}", entry.query, _window(entry, facts), entry.decision,
                f"{entry.loss_before:.9f}", f"{entry.loss_after:.9f}", f"{entry.budget:g}", entry.rule,
            )
            for entry in facts.entries[-_MOST_ROWS:]
        ],
    }  # fmt: skip


def _summary(facts: DomainFacts) -> str:
    said = facts.said
    naive = "" if said.naive is None else f" Adding the windows up would say {said.naive:g}."
    odds = 1 / (1 + math.exp(-said.loss))  # what a guess of one half becomes at most
    return (
        f"Epsilon {said.loss:.4f} of a budget of {said.budget:g} after {plural(said.charged, 'window')}. Who knows the "
        "habits of a series (which chain of the belief it follows, and what kind of day it was), and holds two states "
        f"of one of its slots equally likely, gives one of them at most {odds:.1%} against the other after reading "
        f"all that was released.{naive}"
    )


def _warnings(facts: DomainFacts) -> Iterator[str]:
    said = facts.said
    if said.given_model:
        yield "the loss holds only given the model, which was estimated from series that it protects."
    if said.history_lost:
        yield "charges made elsewhere are missing from this account, by an operator's word: its loss is too small."
    for one in said.shares:
        yield one.text


def _promise(facts: DomainFacts) -> dict[str, str]:
    said, rows = facts.said, [query.row for query in facts.queries if query.row is not None]

    def named(column: str, otherwise: str) -> str:
        return ", ".join(sorted({str(row[column]) for row in rows})) or otherwise

    people = "; ".join(
        f"query {query.name}: {query.series:,} series"
        + (f" in {plural(query.groups, 'group')}" if query.groups < query.series else "")
        for query in facts.queries
    )
    assumed = "settings, roster, schedule, bins; cells without a reading are a state of their own and protected"
    if not facts.domain.missing.startswith("state"):
        rule = named("missing", repr(facts.domain.missing))
        assumed = (
            f"settings, roster, schedule, bins; with the rule for missing cells {rule}: which cells have no reading"
        )
    return {
        "promise": f"{PROMISE}; {HABITS}",
        "privacy parameter": f"epsilon, pure (no delta): {said.loss:.6f} lost, never more than {said.budget:g}",
        "definition": "Pufferfish privacy, a generalisation of differential privacy for correlated data: for each two "
        "states that a slot of a series can be in, what is published is at most e^epsilon times as likely under the "
        "one as under the other, for each chain of the belief, and for no mixture of them. It is not differential "
        "privacy with independent "
        "records",
        "unit of privacy": f"one slot ({facts.slot}) of one series, for example of one meter or one wearer; not a day "
        "and no habit. Longer events lose more, as drawn below",
        "to whom": f"{people}; to series that follow the belief, and to no others",
        "privacy budget": f"{said.budget:g} for everything published of the domain, by all queries together, now and "
        "later; a window that does not fit is refused, and that is final",
        "composition": "the ledger prices all charges together by the forward-backward account: what overlaps in time "
        "adds its density, windows that adjoin do not add their epsilons",
        "mechanism": f"histograms with exact integer noise, {named('noise_law', 'none released')}; calibrated by "
        f"{named('mechanism', 'nothing yet')}",
        "trust model": "central: the operator, its machines and the ledger of record see readings or noise and are "
        "trusted; readers of releases and of this report are not",
        "public by assumption": assumed,
        "not protected": "habits, and what a habit says about a slot to someone who learns it from the releases; what "
        "series have in common (weather, a holiday), several devices of the same "
        "people in different series, the history of a fitted belief (noise, belief and model id are functions of its "
        "exact counts), and the time at which a row appears (side channel)",
        "left to the operator": "the lower layers of the guidelines' pyramid: security and access control of readings, "
        "ledger and logs, exposure while data are collected, retention",
    }


def _cost(facts: DomainFacts) -> Iterator[tuple[str, str]]:
    said = facts.said
    yield "loss", f"{said.loss:.9f}; with everything promised {said.reserved_loss:.9f}"
    yield "left", f"{said.remaining:.6f} of the budget, {said.unreserved:.6f} of it promised to no query"
    for query in said.queries:
        windows = "an endless schedule" if query.windows is None else plural(query.windows, "window")
        calibrated = "" if query.epsilon is None else f", calibrated to {query.epsilon:g}"
        text = f"{query.charged:,} charged, {query.refused:,} refused of {windows}; {query.charged_text}{calibrated}"
        yield f"query {query.name}", text
    for accepted, slots in facts.longest:
        text = "any event" if slots is None else "not even one slot"
        if slots:
            text = f"events up to {plural(slots, 'slot')} ({said_duration(slots * facts.slot_us)})"
        yield f"within {accepted:g}", text
    yield "head", f"{facts.head} (quiltstream ledger verify --expect tells later whether the record is as it was)"


_NOT_SAID = (
    "how many series of the history lie inside the belief is an exact statistic of the history, which no ledger "
    "counts; --model FILE adds it for the operator"
)


def _belief(facts: DomainFacts, model: Model | None) -> Iterator[tuple[str, str]]:
    kind = str(facts.domain.belief.get("kind"))
    name, meaning = _KINDS.get(kind, (kind, "see below"))
    yield "what is believed", f"{name} ({kind}): {meaning}"
    sources = sorted({str(query.row["model_provenance"]) for query in facts.queries if query.row is not None})
    yield "where it is from", "; ".join(sources) or "nothing is released yet"
    yield "model", facts.said.model_id
    for change in facts.domain.changes:
        since = "for the whole history" if change.slot is None else f"from slot {change.slot} on"
        yield "changed", f"{since}: model {change.model_id}, {change.source}"
    if model is None or model.model_id not in {one for _, one in facts.domain.beliefs}:
        yield "share inside", _NOT_SAID
        return
    origin, cover = model.provenance, model.diagnostics.get("cover")
    yield "history", f"{origin.series:,} series, {origin.transitions:,} transitions; {origin.source}"
    if cover is not None:
        low, high = cover["range"]
        text = (
            f"{cover['rank']} of the {cover['series']} fitted chains of the history lie inside; a further series "
            "that is "
            "exchangeable with them loses, by its own chain, a smoothed plug-in fitted in the same way, at most the "
            f"epsilon of the noise with odds of about {cover['probability']:.2f} (for this history {low:.2f} to "
            f"{high:.2f})"
        )
        yield "share inside", text
        yield "habits", habits_told(cover, model.states)
    elif origin.outside is not None:
        yield "share inside", f"{origin.series - origin.outside} of the {origin.series} series of the history"


def _latest(series: Sequence[ReleasedSeries], zone: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The last window of each series or group, where all have the same bins; else of those that have the first's."""
    if not series:
        return (), []
    latest = [(one, one.spans()[-1]) for one in series]
    labels = latest[0][1].space.labels
    rows: list[tuple[str, ...]] = []
    for one, span in [(one, span) for one, span in latest if span.space.labels == labels][:_MOST_ROWS]:
        found = span.histogram()
        half = found.half_width()
        total = "not public" if found.total is None else f"{found.total:,}"
        cells = [f"{count:,}" for count in found.counts.tolist()]
        rows.append((one.key, one.query, days_between(span.start, span.stop, zone), *cells, f"± {number(half)}", total))
    return ("series or group", "query", "window", *labels, "band", "cells"), rows


def _note(facts: DomainFacts, shown: int) -> str:
    if not facts.series:
        return "No histogram is released yet."
    windows = sum(len(one.rows) for one in facts.series)
    note = f"{plural(windows, 'released histogram')}; series or groups: {len(facts.series):,}."
    if facts.timezone != "UTC":
        note += f" Windows are named by the clock of {facts.timezone}."
    if shown < len(facts.series):
        note += f" The first {shown} have figures; the table has the last window of up to {_MOST_ROWS}, the data all."
    return note


def _entries_note(facts: DomainFacts) -> str:
    shown, total = min(len(facts.entries), _MOST_ROWS), len(facts.entries)
    if not total:
        return "No entry"
    return f"All {total:,} entries" if shown == total else f"The last {shown} of {total:,} entries; the data have all"


def _window(entry: LedgerEntry, facts: DomainFacts) -> str:
    return days_between(entry.start_us, entry.stop_us, facts.timezone)


def _loss(loss: float | None) -> str:
    if loss is None:
        return "not known for this kind of belief"
    return "no bound" if math.isinf(loss) else f"{loss:.4g}"


def _downloads(report: Report) -> Iterator[Download]:
    released = pa.concat_tables([RELEASE_SCHEMA.empty_table(), *(facts.table for facts in report.domains)])
    cells = tidy(released)
    made = io.BytesIO()
    pq.write_table(cells, made, compression="zstd")
    yield _download("counts.parquet", f"{plural(cells.num_rows, 'count')}, Parquet", made.getvalue())
    yield _download("counts.csv.gz", "the same as CSV, compressed by gzip", _csv(cells))
    entries = [entry.to_dict() for facts in report.domains for entry in facts.entries]
    table = pa.Table.from_pylist(entries, schema=LEDGER_SCHEMA)
    yield _download("ledger-entries.csv.gz", f"{len(entries):,} ledger entries, CSV, compressed by gzip", _csv(table))


def _csv(table: pa.Table) -> bytes:
    made = io.BytesIO()
    csv.write_csv(table, made, csv.WriteOptions(quoting_style="needed"))
    return gzip.compress(made.getvalue(), compresslevel=6, mtime=0)


def _download(name: str, said: str, data: bytes) -> Download:
    size = f"{len(data) / 1e6:.1f} MB" if len(data) >= 1e5 else f"{len(data) / 1e3:.1f} kB"  # noqa: PLR2004 - for people
    return Download(name, f"{said}, {size}", f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}")
