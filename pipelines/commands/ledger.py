"""``quiltstream ledger``: show, verify, export, back up and change. No Beam."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import ValidationError

from ...privacy.accounting.charges import Span
from ...privacy.accounting.theorems import TheoremBound
from ...privacy.analysis.methods import METHODS
from ...privacy.models.markov_chain import ChainError
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.files import is_file, is_folder, write_whole
from ...schemas.ledger import LedgerEntry
from ...schemas.model_file import Model
from ...schemas.settings.base import Explained, SettingsError, problems_of, read_document, read_text
from ...schemas.settings.job import Settings, is_settings, read_settings
from ...schemas.settings.model import Bounds
from ...schemas.slots import SlotGrid, format_instant, parse_instant
from ...schemas.states import StateSpace
from ...store.accounts import check_loss, costs_alone, priced_anew
from ...store.address import StoreAddress
from ...store.answers import DomainSummary, QuerySummary
from ...store.domain import SAME_VALUES, SHARING
from ...store.errors import StoreConflict
from ...store.log import Head
from ...store.specs import BeliefChange, Registration
from ...store.store import Store
from ...transforms.calibrating import account_belief, of_bounds
from ...transforms.plan import ledger_address
from ..connectors.job_io import JobPath, check_output, job_paths
from ..console import facts, heading, left, paragraph, plural, print_json, results
from ..drift import looked_at
from ..errors import CommandError, ExitCode, writing
from ..on_record import ReplacedError, Unknown, check_history, lost_ledger

_ROOM = "check the folder and the room on its disk"

#: So many entries are shown without ``--all``.
_LAST = 10


def settings_of(text: str) -> Settings | None:
    """The settings, where a ledger is given as a settings file."""
    return read_settings(Path(text)) if "://" not in text and is_settings(Path(text)) else None


def address_of(text: str) -> StoreAddress:
    """The address of a ledger given as a URL, a SQLite file, or a settings file."""
    if "://" in text:
        return StoreAddress(text)
    settings, path = settings_of(text), Path(text)
    if settings is not None:
        return ledger_address(settings)
    if is_folder(path):
        raise CommandError(f"{text}: it is a folder; name the SQLite ledger in it, or a settings file that names one")
    if not is_file(path):
        raise CommandError(
            f"{text}: there is no such file; give a SQLite ledger, a SQLAlchemy URL, or a settings file that names one"
        )
    return StoreAddress(f"sqlite:///{path.resolve()}")


def files_of(text: str) -> list[JobPath | Path]:
    """The files of a ledger: its database, or the settings file that names it with all that the settings name."""
    settings = settings_of(text)
    if settings is not None:
        return [Path(text), *job_paths(settings)]
    address = address_of(text)
    return [Path(str(address.resolve().database))] if address.is_sqlite else []


@contextmanager
def _to_decide(text: str) -> Generator[Store]:
    """The ledger for a decision that is never taken back: every row of it is read, and settings know which one it was.

    Raises:
        StoreDamaged: a row is not as it was written.
        ReplacedError: it is not the ledger that the job of the settings had, or an older copy of it.
    """
    settings = settings_of(text)
    with Store(address_of(text)) as store:
        if settings is not None:
            lost = lost_ledger(settings, history_lost=False)
            try:
                check_history(settings, Unknown(), lost)
            except ReplacedError as error:
                raise ReplacedError(f"{error}. Nothing was decided: that word is one of `quiltstream run`") from None
        store.check_rows()
        yield store


def _tell(as_json: bool, said: Any, text: str) -> None:
    """Print a result for machines, or for people."""
    if as_json:
        print_json(said)
    else:
        paragraph(results(), text)


def _ask(question: str, *, as_json: bool) -> None:
    """Ask before something that is never taken back; the command ends where the answer is not yes."""
    try:
        decided = click.confirm(question, err=as_json)
    except click.Abort:  # the user pressed Ctrl-C, or standard input has no answer
        click.echo(err=as_json)
        decided = False
    if not decided:
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(ExitCode.STOPPED)


# what is on record


@dataclass(frozen=True)
class _Account:
    """A domain's account as it is on record."""

    said: DomainSummary  # what it has spent and promised
    entries: list[LedgerEntry]  # its last charges and refusals, or every one
    total: int  # how many it has
    # what the charges of each query would cost without the others, epsilon
    alone: Mapping[str, float] = field(default_factory=dict[str, float])
    # what the quilts and each theorem of the sources say of the charges; none for a domain without queries
    bounds: Mapping[str, TheoremBound] = field(default_factory=dict[str, TheoremBound])
    rule: str = ""  # which bound decided the loss

    @classmethod
    def of(cls, store: Store, name: str, *, every: bool) -> _Account:
        """Read an account, price it anew, and with ``every`` give all entries."""
        said, entries = store.summary(name), store.entries(name)
        found = cls(said, entries if every else entries[-_LAST:], len(entries))
        held = store.registered(name, said.queries[0].name) if said.queries else None
        if held is None:
            return found
        spans: dict[str, list[Span]] = {}
        for one in entries:
            if one.decision == "charged":
                spans.setdefault(one.query, []).append(one.span)
        lost, rule, bounds = priced_anew(held.domain, [one.span for one in entries if one.decision == "charged"])
        if store.summary(name) == said:  # else a job charged more meanwhile
            check_loss(held.domain, said.loss, lost)
        return replace(found, rule=rule, bounds=bounds, alone=costs_alone(held.domain, spans, lost))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, without the entries."""
        bounds = {name: asdict(bound) for name, bound in self.bounds.items()}
        return {**asdict(self.said), "rule": self.rule, "bounds": bounds, "alone": dict(self.alone)}


def show(text: str, *, domain: str | None, every: bool, as_json: bool) -> None:
    """Print the accounts of a ledger, all of which is read."""
    with Store(address_of(text)) as store:
        names = store.domains() if domain is None else (domain,)
        found = [_Account.of(store, name, every=every or as_json) for name in names]
        store.check_rows()
    if as_json:
        print_json([{**one.to_dict(), "entries": [entry.to_dict() for entry in one.entries]} for one in found])
        return
    console = results()
    if not found:
        console.print("No domain is on record.")
    for one in found:
        heading(console, f"Domain {one.said.name}")
        facts(console, list(_account_facts(one, every=every)))
        if one.entries:
            console.print()
        if len(one.entries) < one.total:
            console.print(f"  the last {len(one.entries)} of {one.total:,} entries; --all shows every one", style="dim")
        for number, line in enumerate(_table(one.entries)):
            console.print(line, style="" if number else "dim", soft_wrap=True)


def _account_facts(account: _Account, *, every: bool) -> Iterable[tuple[str, str]]:
    said, bounds = account.said, account.bounds
    naive = "" if said.naive is None else f"; naive adding says {said.naive:g}"
    yield "loss", f"{said.loss:.9f} after {plural(said.charged, 'window')} charged{naive}"
    if every and account.rule:
        yield "decided", account.rule
        texts = {name: bound.reason if bound.loss is None else f"{bound.loss:.9f}" for name, bound in bounds.items()}
        yield from ((f"by {name}", text) for name, text in texts.items())
    yield "budget", f"{said.budget:g}; {left(said.remaining, said.unreserved)}"
    if said.history_lost:
        yield "history lost", _LOST
    yield from (("shared", one.text) for one in said.shares)
    yield "refused", plural(said.refused, "window")
    yield "guarantee", f"{said.guarantee}, model {said.model_id}{_GIVEN if said.given_model else ''}"
    yield from ((f"query {one.name}", _query(one, account.alone.get(one.name))) for one in said.queries)
    yield from (("decision", _event(event)) for event in said.events)


_LOST = (
    "charges made elsewhere are missing from this account, by an operator's word: its loss is too small, and so is "
    "what the theorems say"
)

_GIVEN = "; the loss holds only given the model, which was estimated from series it protects"


def _query(one: QuerySummary, alone: float | None) -> str:
    windows = "endless" if one.windows is None else f"of {one.windows:,} windows"
    epsilon = "" if one.epsilon is None else f", calibrated to {one.epsilon:g}"
    cost = "" if alone is None else f", costs {alone:.4g} alone in this account"
    return f"{one.charged:,} charged, {one.refused:,} refused {windows}, {one.charged_text}{epsilon}{cost}"


#: What is said of a decision, by its kind: ``old`` and ``new`` are values of record, ``of`` what is known of a model.
_EVENTS = {
    "history-lost": "history declared lost: {new} releases were found that are not on record",
    "model-estimated": "model estimated for query {query}: model {of[model_id]}",
    SHARING: "allowed to have series of domain {new}, over another state process",
    SAME_VALUES: "query {query} derives the values of query {old} otherwise, by derivation {new}",
    "belief-joined": "belief joined: model {of[model_id]}, {of[source]}{given}",
    "belief-switched": "belief switched, from {of[from]} on: model {of[model_id]}, {of[source]}{given}",
}


def _event(event: tuple[str, str | None, str, str, int]) -> str:
    kind, query, old, new, at = event
    about: Any = json.loads(new)
    given = ", estimated from the protected series" if isinstance(about, dict) and about.get("given_model") else ""
    name = kind.replace("-", " ") + ("" if query is None else f", query {query}")
    words = _EVENTS.get(kind, "{name}: {old} to {new}")
    said = words.format(name=name, query=query, old=_plain(old), new=_plain(new), of=about, given=given)
    return f"{format_instant(at)[:19]}Z {said}"


def _plain(value: str) -> str:
    """A value of record without the marks of JSON around a text."""
    found = json.loads(value)
    return found if isinstance(found, str) else value


def _table(entries: list[LedgerEntry]) -> list[str]:
    """Charges and refusals in columns."""
    rows = [("#", "query", "window", "decision", "loss before", "after")] if entries else []
    for one in entries:
        window = f"{_day(one.start_us)} to {_day(one.stop_us)}"
        losses = f"{one.loss_before:.9f}", f"{one.loss_after:.9f}"
        rows.append((f"{one.sequence}", one.query, window, one.decision, *losses))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _day(time_us: int) -> str:
    text = format_instant(time_us).removesuffix("Z")
    return text.removesuffix("T00:00:00") if "T00:00:00" in text else text[:16]


def export(text: str, folder: Path, *, as_json: bool) -> None:
    """Write the audit trail of a ledger to files: its log without blobs, and its accounts."""
    accounts, written = folder / "domains.json", dict[str, int]()
    with Store(address_of(text)) as store:
        logs, read = [folder / "log.jsonl", folder / "log.parquet"], files_of(text)
        for path in (*logs, accounts):
            check_output(path, read)
        for path in logs:
            with writing(path, _ROOM):
                written[str(path)] = store.export(path)
        domains = [
            {**_Account.of(store, name, every=True).to_dict(), "head": str(store.head(name))}
            for name in store.domains()
        ]
        store.check_rows()
        with writing(accounts, _ROOM):
            write_whole(accounts, json.dumps(domains, indent=2, ensure_ascii=False) + "\n")
        written[str(accounts)] = len(domains)
    if as_json:
        print_json(written)
        return
    for path, number in written.items():
        results().print(f"{path}: {plural(number, 'account' if path == str(accounts) else 'row')}", soft_wrap=True)


def drift(text: str, domain: str, query: str, *, as_json: bool) -> None:
    """Print what the released rows of a query say against the belief in force."""
    with Store(address_of(text)) as store:
        held = store.registered(domain, query)
        if held is None:
            raise StoreConflict(f"query {query!r} of domain {domain!r} is not on record in this ledger")
        judged, news = looked_at(store, held)
    if as_json:
        print_json({"judged": judged, "contradict": news})
        return
    for one in news:
        results().print(one, soft_wrap=True)
    results().print(f"stretches of released rows: {judged} judged, {len(news)} contradict the belief")


def verify(text: str, expected: Sequence[str], *, as_json: bool) -> None:
    """Read a whole ledger for damage and print the heads of its domains."""
    heads: dict[str, list[Head]] = {}
    for one in expected:
        domain, equals, head = one.rpartition("=")
        try:
            if not equals:
                raise ValueError("there is no `=` in it")  # noqa: TRY301 - as a head that is none
            heads.setdefault(domain, []).append(Head.parse(head))
        except ValueError as error:
            as_printed = "give DOMAIN=HEAD as `quiltstream ledger verify` printed it"
            raise CommandError(f"--expect {one}: {error}; {as_printed}") from None
    with Store(address_of(text)) as store:
        found = store.verify(heads)
    if as_json:
        said = {**asdict(found), "heads": {name: str(head) for name, head in found.heads.items()}}
        print_json({**said, "rows": dict(found.rows)})
    else:
        console = results()
        for defect in found.defects:
            console.print(str(defect), soft_wrap=True)
        rows = ", ".join(f"{name} {number:,}" for name, number in found.rows.items())
        facts(console, [("ledger", found.store_id), ("mode", found.mode or "none yet"), ("rows", rows)])
        for name, head in found.heads.items():
            console.print(f"  head of {name}: {head}", soft_wrap=True)
        if found.whole:
            paragraph(console, _WHOLE)
    if not found.whole:
        raise CommandError(
            f"ledger: {plural(len(found.defects), 'defect')}, listed above: the record is damaged; restore the newest "
            "backup, and know that what was charged after it is forgotten then",
            ExitCode.STORE,
        )


_WHOLE = (
    "Every row is as it was written, every block that was drawn is there, each charge is what the noise of its query "
    "costs, and the losses are those of the core. Keep the heads elsewhere: --expect DOMAIN=HEAD tells later whether "
    "anything was changed since."
)


def backup(text: str, output: Path, *, as_json: bool) -> None:
    """Copy a SQLite ledger."""
    with Store(address_of(text)) as store, writing(output, _ROOM):
        store.backup(output)
    _tell(
        as_json,
        {"backup": str(output)},
        f"{output}: a copy of the ledger. Restore it only if nothing was published since: it forgets every charge made "
        "after now, and the budget would be spent again.",
    )


# decisions


def raise_budget(text: str, domain: str, budget: float, *, ask: bool, as_json: bool) -> None:
    """Raise a domain's budget after asking."""
    if not (math.isfinite(budget) and budget > 0):
        raise CommandError(
            f"BUDGET is {budget}, but must be a finite number above the budget in force; `quiltstream ledger show` "
            "prints that"
        )
    with _to_decide(text) as store:
        before = store.summary(domain)
        if ask and budget > before.budget:  # else the store refuses it, and there is nothing to decide
            question = (
                f"Raise the budget of {domain} from {before.budget:g} to {budget:g}? Everyone in it may then lose up "
                f"to {budget:g} instead of {before.budget:g}, and it is never lowered again."
            )
            _ask(question, as_json=as_json)
        after = store.raise_budget(domain, budget)
    _tell(
        as_json,
        {"domain": domain, "before": before.budget, "budget": after.budget, "loss": after.loss},
        f"{domain}: budget {before.budget:g} to {after.budget:g}, on record; {after.loss:.9g} is lost so far. "
        "Windows refused before stay refused; set privacy.budget in the settings to the new budget, or leave it.",
    )


def change_belief(
    text: str, domain: str, path: Path, instant: str | None, *, ask: bool, dry: bool, as_json: bool
) -> None:
    """Change a domain's belief after asking: from an instant on, or without one joined to the others for all time.

    With ``dry`` print what it would cost and change nothing.
    """
    model = _model(path)
    with _to_decide(text) as store:
        budget, names = store.summary(domain).budget, [query.name for query in store.summary(domain).queries]
        held = [one for name in names if (one := store.registered(domain, name)) is not None]
        if not held:
            raise CommandError(f"domain {domain!r} has no query on record, and so no belief that could change")
        spec, slot = held[0].domain, None
        if instant is not None:
            zone = str(spec.reading.get("timezone", "UTC"))
            slot = SlotGrid(**spec.grid).slot_at(parse_instant(instant, zone), "--from")
        belief, origin = _like(held, model, path), model.provenance
        if slot is not None:
            _check_alone(belief, path)
        kind: Literal["joined", "switched"] = "joined" if slot is None else "switched"
        provenance = origin.from_protected, origin.text, origin.series_hashes
        change = BeliefChange(kind, belief, model.model_id, slot, *provenance)
        how = "joins the others for the whole history" if instant is None else f"is believed alone from {instant} on"
        # of the ledger as it is now: another process may charge before the answer, so the change itself prices it
        # anew under the domain's lock, and is refused where the budget does not allow it then
        done = store.price_change(domain, change)
        price = (
            f"The belief of {path} {how}. Everything charged costs {done.before:.9g} epsilon now and "
            f"{done.after:.9g} then; with everything promised {done.reserved_before:.9g} now and "
            f"{done.reserved_after:.9g} then. The budget is {budget:g}; "
            f"{max(0.0, budget - done.reserved_after):.9g} of it stays free."
        )
        if ask and not dry:
            _ask(f"{price} This is never taken back. Change it?", as_json=as_json)
        if not dry:
            done = store.change_belief(domain, change)
    _tell(
        as_json,
        {"domain": domain, "changed": not dry, "budget": budget, **asdict(done)},
        f"{price} Nothing was changed."
        if dry
        else f"{domain}: the loss of everything charged was {done.before:.9g} and is {done.after:.9g}; with everything "
        f"promised it was {done.reserved_before:.9g} and is {done.reserved_after:.9g}, of a budget of {budget:g}. "
        "Queries on record keep their noise; a new query may be calibrated for the new belief.",
    )


def _model(path: Path) -> Model:
    """The model of a file that ``fit`` wrote, or bounds given by hand in a YAML file; a model file is JSON.

    Raises:
        ModelError: the file cannot be used.
        SettingsError: they are no bounds, or those of no chain.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        return Model.load(path)
    example = "a file that holds `pi_min: 0.05` and `gap: 0.3`, each on a line"
    try:
        given = Bounds.model_validate(read_document(read_text(path, "bounds"), str(path)))
    except ValidationError as error:
        raise SettingsError([f"{path}: {one}" for one in problems_of(error, Explained(example, example))]) from None
    return of_bounds(given, f"{path}: ")


#: What the account of a domain rests on, by what the mechanisms of its queries read.
_RESTS = {"bounds": "bounds (pi_min, gap)", "chains": "chains"}

#: What a model is made of where it gives neither.
_WITHOUT = {"dobrushin-bounds": "a contraction class", "periodic-chain": "a chain with a daily rhythm"}


def _check_alone(belief: dict[str, object], path: Path) -> None:
    """Refuse a belief that may join the others but not follow them."""
    try:
        belief_from_dict(belief).from_any_start()
    except ChainError:
        kind = str(belief["kind"])
        raise CommandError(
            f"--from: {path} is of {_WITHOUT.get(kind, kind)}, and their proof rests on how often the series are in "
            "each state, which is not known after a change; leave --from out, so that the belief joins the others, or "
            "fit a model with `quiltstream fit SETTINGS --belief pooled` or `--belief series`"
        ) from None


def _like(held: Sequence[Registration], model: Model, path: Path) -> dict[str, object]:
    """The model's belief as the account of a domain has it: as a new query of one of its mechanisms would register it.

    An account holds beliefs of any kinds side by side. But a query by quilts is registered under bounds, or under
    chains, and could not be registered under what joined in another form.
    """
    domain, labels = held[0].domain, {method.label: method for method in METHODS.values()}
    methods = [labels[one.query.mechanism] for one in held if one.query.mechanism in labels]
    method = next((one for one in methods if one.reads != "directions"), METHODS["forward-backward"])
    states = StateSpace.from_dict(domain.states)
    model.check_fits(states, domain.grid["interval_us"])
    try:
        given = belief_from_dict(model.read_as(method.reads))
        given.check_interval(domain.grid["interval_us"])
        lacking = not given.has_quilts if method.reads == "bounds" else not given.members
        if method.reads != "directions" and lacking:
            kind = str(given.to_dict()["kind"])
            rests = _WITHOUT.get(kind, _RESTS["bounds"] if given.bounds is not None else kind)
            raise CommandError(
                f"domain {domain.name!r} rests on {_RESTS[method.reads]}, because a query of it is of {method.name}, "
                f"and {path} on {rests}: fit a model with `quiltstream fit SETTINGS --belief pooled`"
            )
        return account_belief(method, given, states.size).to_dict()
    except ChainError as error:
        raise CommandError(f"{path}: {error}") from error
