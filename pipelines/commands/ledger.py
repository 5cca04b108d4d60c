"""``quiltstream ledger``: show, verify, export, back up and change. No Beam."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import ValidationError
from rich.console import Console

from ...privacy.accounting.theorems import TheoremBound
from ...privacy.analysis.methods import METHODS
from ...privacy.models.classes import from_any_start, has_quilts
from ...privacy.models.markov_chain import ChainError
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.files import SQLITE_BEGIN, is_file, is_folder, open_regular, write_whole
from ...schemas.ledger import LedgerEntry
from ...schemas.model_file import Model
from ...schemas.settings.base import Explained, SettingsError, problems_of, read_document, read_text
from ...schemas.settings.job import Settings, is_settings, read_settings
from ...schemas.settings.model import Bounds
from ...schemas.slots import SlotGrid, format_instant, parse_instant
from ...schemas.states import StateSpace
from ...store.accounts import check_loss, costs_alone, priced_anew
from ...store.address import StoreAddress
from ...store.answers import DomainSummary
from ...store.changes import Changed
from ...store.domain import SAME_VALUES, SHARING
from ...store.errors import BudgetRefused, StoreConflict, StoreError
from ...store.log import Head
from ...store.specs import BeliefChange, Registration
from ...store.store import Store
from ...store.verification import Verified
from ...transforms.plan import account_belief, ledger_address, of_bounds
from ..connectors.job_io import JobPath, check_output, job_paths
from ..console import facts, heading, paragraph, plural, print_json, results
from ..drift import looked_at
from ..errors import CommandError, ExitCode, writing
from ..on_record import ReplacedError, Unknown, check_history, lost_ledger

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
    with suppress(OSError), open_regular(path) as file:  # what cannot be opened is reported by the store
        begin = file.read(len(SQLITE_BEGIN))
        if begin and begin != SQLITE_BEGIN:
            raise CommandError(
                f"{text}: it is no ledger; check the path, and if it was one, restore the newest backup", ExitCode.STORE
            )
    return StoreAddress(f"sqlite:///{path.resolve()}")


def files_of(text: str) -> list[JobPath | Path]:
    """The files of a ledger: its database, or the settings file that names it with all that the settings name."""
    settings = settings_of(text)
    if settings is not None:
        return [Path(text), *job_paths(settings)]
    address = address_of(text)
    return [Path(str(address.resolve().database))] if address.is_sqlite else []


def _open(text: str) -> Store:
    return Store(address_of(text))


@contextmanager
def _to_decide(text: str) -> Generator[Store]:
    """The ledger for a decision that is never taken back: every row of it is read, and settings know which one it was.

    Raises:
        StoreDamaged: a row is not as it was written.
        ReplacedError: it is not the ledger that the job of the settings had, or an older copy of it.
    """
    settings = settings_of(text)
    with _open(text) as store:
        if settings is not None:
            lost = lost_ledger(settings, history_lost=False)
            try:
                check_history(settings, Unknown(), lost)
            except ReplacedError as error:
                raise ReplacedError(f"{error}. Nothing was decided: that word is one of `quiltstream run`") from None
        store.check_rows()
        yield store


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
        """Read an account; all of it is checked, and with ``every`` all entries are given."""
        said, charged = store.summary(name), store.charged(name, None if every else _LAST)
        found = cls(said, charged.entries, charged.total)
        held = store.registered(name, said.queries[0].name) if said.queries else None
        if held is None:
            return found
        spans = [span for of_query in charged.spans.values() for span in of_query]
        lost, rule, bounds = priced_anew(held.domain, spans)
        if store.summary(name) == said:  # else a job charged more meanwhile
            check_loss(held.domain, said.loss, lost)
        return replace(found, rule=rule, bounds=bounds, alone=costs_alone(held.domain, charged.spans, lost))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, without the entries."""
        bounds = {name: asdict(bound) for name, bound in self.bounds.items()}
        return {**asdict(self.said), "rule": self.rule, "bounds": bounds, "alone": dict(self.alone)}


def show(text: str, *, domain: str | None, every: bool, as_json: bool) -> None:
    """Print the accounts of a ledger."""
    with _open(text) as store:
        store.check_rows()
        names = store.domains() if domain is None else (domain,)
        found = [_Account.of(store, name, every=every or as_json) for name in names]
    if as_json:
        print_json([{**one.to_dict(), "entries": [entry.to_dict() for entry in one.entries]} for one in found])
        return
    console = results()
    if not found:
        console.print("No domain is on record.")
    for one in found:
        _show_domain(console, one, every=every)
        _show_entries(console, one.entries, one.total)


def _show_domain(console: Console, account: _Account, *, every: bool) -> None:
    said = account.said
    heading(console, f"Domain {said.name}")
    naive = "" if said.naive is None else f"; naive adding says {said.naive:g}"
    facts(
        console,
        [
            ("loss", f"{said.loss:.9f} after {plural(said.charged, 'window')} charged{naive}"),
            *_compositions(account.bounds),
            *([("decided", account.rule), *_bounds(account.bounds)] if every and account.rule else []),
            (
                "budget",
                f"{said.budget:g}; {said.remaining:.6f} is left, {said.unreserved:.6f} of it promised to no query",
            ),
            *([("history lost", _LOST)] if said.history_lost else []),
            *(("shared", one.text) for one in said.shares),
            ("refused", plural(said.refused, "window")),
            ("guarantee", f"{said.guarantee}, model {said.model_id}" + (_GIVEN if said.given_model else "")),
            *((f"query {one.name}", _query(one, account.alone.get(one.name))) for one in said.queries),
            *(("decision", _event(event)) for event in said.events),
        ],
    )


#: The sources' theorems about several releases of one window, or of any, and about segments one after the other.
_COMPOSITIONS = {"sequential": ("[SWC17] 4.4", "[SC17] 3.7"), "parallel": ("[SC17] 3.3", "[SC17] 3.1")}


def _compositions(bounds: Mapping[str, TheoremBound]) -> list[tuple[str, str]]:
    """The sequential and the parallel composition of the sources: the loss by the first that holds, and which does not.

    The ledger's own loss needs none of them and is never above one that holds.
    """
    found: list[tuple[str, str]] = []
    for kind, names in _COMPOSITIONS.items() if bounds else ():
        said: list[str] = []
        for name in names:
            if (loss := bounds[name].loss) is not None:
                said.insert(0, f"{loss:.9f} holds, by {name}")
                break
            said.append(f"{name} {bounds[name].reason}")
        found.append((kind, "; ".join(said)))
    return found


def _bounds(bounds: Mapping[str, TheoremBound]) -> list[tuple[str, str]]:
    """The quilts and a line for each theorem, or one for all if the same reason rules out all of them."""
    texts = {name: bound.reason if bound.loss is None else f"{bound.loss:.9f}" for name, bound in bounds.items()}
    lines = [("by quilts", texts.pop("quilts"))] if "quilts" in texts else []
    if len(set(texts.values())) == 1 and all(bounds[name].loss is None for name in texts):
        return [*lines, ("by theorem", next(iter(texts.values())))]
    return [*lines, *((f"by {name}", text) for name, text in texts.items())]


_LOST = (
    "charges made elsewhere are missing from this account, by an operator's word: its loss is too small, and so is "
    "what the theorems say"
)

_GIVEN = "; the loss holds only given the model, which was estimated from series it protects"


def _query(one: Any, alone: float | None) -> str:
    windows = "endless" if one.windows is None else f"of {one.windows:,} windows"
    epsilon = "" if one.epsilon is None else f", calibrated to {one.epsilon:g}"
    cost = "" if alone is None else f", costs {alone:.4g} alone in this account"
    return f"{one.charged:,} charged, {one.refused:,} refused {windows}, {one.charged_text}{epsilon}{cost}"


def _event(event: tuple[str, str | None, str, str, int]) -> str:
    kind, query, old, new, at = event
    was, said = json.loads(old), json.loads(new)
    name = kind.replace("-", " ")
    if kind == "history-lost":
        what = f"history declared lost: {new} releases were found that are not on record"
    elif kind == "model-estimated":
        what = f"model estimated for query {query}: model {said['model_id']}"
    elif kind == SHARING:
        what = f"allowed to have series of domain {_plain(new)}, over another state process"
    elif kind == SAME_VALUES:
        what = f"query {query} derives the values of query {_plain(old)} otherwise, by derivation {_plain(new)}"
    elif kind in ("belief-joined", "belief-switched"):
        given = ", estimated from the protected series" if said["given_model"] else ""
        since = f", from {said['from']} on" if "from" in said else ""
        what = f"{name}{since}: model {said['model_id']}, {said['source']}{given}"
    elif kind == "source-identified":
        anew = "" if was["id"] is None else f", made anew: it was {was['id']}"
        what = f"topic {said['name']} of query {query} is {said['id']}{anew}"
    else:
        what = f"{name}{'' if query is None else f', query {query}'}: {_plain(old)} to {_plain(new)}"
    return f"{format_instant(at)[:19]}Z {what}"


def _plain(value: str) -> str:
    """A value of record without the marks of JSON around a text."""
    found = json.loads(value)
    return found if isinstance(found, str) else value


def _show_entries(console: Console, entries: list[LedgerEntry], total: int) -> None:
    if not entries:
        return
    console.print()
    if len(entries) < total:
        console.print(f"  the last {len(entries)} of {total:,} entries; --all shows every one", style="dim")
    rows = [("#", "query", "window", "decision", "loss before", "after")]
    for entry in entries:
        window = f"{_day(entry.start_us)} to {_day(entry.stop_us)}"
        losses = (f"{entry.loss_before:.9f}", f"{entry.loss_after:.9f}")
        rows.append((f"{entry.sequence}", entry.query, window, entry.decision, *losses))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [
            f"{cell:>{width}}" if place in (0, 4, 5) else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        console.print("  " + "  ".join(cells).rstrip(), style="" if number else "dim", soft_wrap=True)


def _day(time_us: int) -> str:
    text = format_instant(time_us).removesuffix("Z")
    return text.removesuffix("T00:00:00") if "T00:00:00" in text else text[:16]


def export(text: str, folder: Path) -> None:
    """Write the audit trail of a ledger to files: its log without blobs, and its accounts."""
    with _open(text) as store:
        console, read = results(), files_of(text)
        logs, accounts = [folder / "log.jsonl", folder / "log.parquet"], folder / "domains.json"
        for path in (*logs, accounts):
            check_output(path, read)
        for path in logs:
            console.print(f"{path}: {plural(store.export(path), 'row')}", soft_wrap=True)
        domains = [
            {**_Account.of(store, name, every=True).to_dict(), "head": str(store.head(name))}
            for name in store.domains()
        ]
        with writing(accounts):
            write_whole(accounts, json.dumps(domains, indent=2, ensure_ascii=False) + "\n")
        console.print(f"{accounts}: {plural(len(domains), 'account')}", soft_wrap=True)


_AS_PRINTED = "give DOMAIN=HEAD as `quiltstream ledger verify` printed it"


def drift(text: str, domain: str, query: str) -> None:
    """Print what the released rows of a query say against the belief in force."""
    with _open(text) as store:
        held = store.registered(domain, query)
        if held is None:
            raise StoreConflict(f"query {query!r} of domain {domain!r} is not on record in this ledger")
        judged, news = looked_at(store, held)
    console = results()
    for one in news:
        console.print(one, soft_wrap=True)
    console.print(f"stretches of released rows: {judged} judged, {len(news)} contradict the belief")


def verify(text: str, expected: Sequence[str], *, as_json: bool) -> None:
    """Read a whole ledger for damage and print the heads of its domains."""
    heads: dict[str, list[Head]] = {}
    for one in expected:
        domain, equals, head = one.rpartition("=")
        if not equals:
            raise CommandError(f"--expect {one}: there is no `=` in it; {_AS_PRINTED}")
        try:
            heads.setdefault(domain, []).append(Head.parse(head))
        except ValueError as error:
            raise CommandError(f"--expect {one}: {error}; {_AS_PRINTED}") from None
    with _open(text) as store:
        found = store.verify(heads)
    if as_json:
        said = {**asdict(found), "heads": {name: str(head) for name, head in found.heads.items()}}
        print_json({**said, "rows": dict(found.rows)})
    else:
        _show_verified(results(), found)
    unknown = [name for name in heads if name not in found.heads]
    if unknown and len(found.defects) == sum(len(heads[name]) for name in unknown):
        known = ", ".join(map(repr, found.heads)) or "none"
        raise CommandError(
            f"--expect {unknown[0]}: the ledger has no domain of that name; it has {known}: correct the name, or, if "
            "that head was written down of this ledger, restore the newest backup: the domain was removed from it",
            ExitCode.STORE,
        )
    if not found.whole:
        raise CommandError(
            f"ledger: {plural(len(found.defects), 'defect')}, listed above: the record is damaged; restore the newest "
            "backup, and know that what was charged after it is forgotten then",
            ExitCode.STORE,
        )


def _show_verified(console: Console, found: Verified) -> None:
    for defect in found.defects:
        console.print(str(defect), soft_wrap=True)
    rows = ", ".join(f"{name.removeprefix('quiltstream_')} {number:,}" for name, number in found.rows.items())
    facts(console, [("ledger", found.store_id), ("mode", found.mode or "none yet"), ("rows", rows)])
    for name, head in found.heads.items():
        console.print(f"  head of {name}: {head}", soft_wrap=True)
    if found.whole:
        paragraph(
            console,
            "Every row is as it was written, every block that was drawn is there, each charge is what the noise of its "
            "query costs, and the losses are those of the core. Keep the heads elsewhere: --expect DOMAIN=HEAD tells "
            "later whether anything was changed since.",
        )


def _ask(question: str) -> None:
    """Ask before something that is never taken back; the command ends where the answer is not yes."""
    try:
        decided = click.confirm(question)
    except click.Abort:  # the user pressed Ctrl-C, or standard input has no answer
        click.echo()
        decided = False
    if not decided:
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(ExitCode.STOPPED)


def raise_budget(text: str, domain: str, budget: float, *, ask: bool) -> None:
    """Raise a domain's budget after asking."""
    if not (math.isfinite(budget) and budget > 0):
        raise CommandError(
            f"BUDGET is {budget}, but must be a finite number above the budget in force; `quiltstream ledger show` "
            "prints that"
        )
    with _to_decide(text) as store:
        before = store.summary(domain)
        if ask and budget > before.budget:  # else the store refuses it, and there is nothing to decide
            _ask(
                f"Raise the budget of {domain} from {before.budget:g} to {budget:g}? Everyone in it may then lose up "
                f"to {budget:g} instead of {before.budget:g}, and it is never lowered again."
            )
        after = store.raise_budget(domain, budget)
    paragraph(
        results(),
        f"{domain}: budget {before.budget:g} to {after.budget:g}, on record; {after.loss:.9g} is lost so far. "
        "Windows refused before stay refused; set privacy.budget in the settings to the new budget, or leave it.",
    )


def backup(text: str, output: Path) -> None:
    """Copy a SQLite ledger."""
    with _open(text) as store:
        store.backup(output)
    paragraph(
        results(),
        f"{output}: a copy of the ledger. Restore it only if nothing was published since: it forgets every charge made "
        "after now, and the budget would be spent again.",
    )


def change_belief(text: str, domain: str, path: Path, instant: str | None, *, ask: bool, dry: bool = False) -> None:
    """Change a domain's belief after asking: from an instant on, or without one joined to the others for all time.

    With ``dry`` print what it would cost and change nothing.
    """
    model = _model(path)
    with _to_decide(text) as store:
        said = store.summary(domain)
        held = [one for query in said.queries if (one := store.registered(domain, query.name)) is not None]
        if not held:
            raise CommandError(f"domain {domain!r} has no query on record, and so no belief that could change")
        spec = held[0].domain
        slot, zone = None, str(spec.reading.get("timezone", "UTC"))
        if instant is not None:
            slot = SlotGrid(**spec.grid).slot_at(parse_instant(instant, zone), "--from")
        belief = _like(held, model, path)
        if slot is not None:
            _check_alone(belief, path)
        origin = model.provenance
        kind: Literal["joined", "switched"] = "joined" if slot is None else "switched"
        change = BeliefChange(
            kind, belief, model.model_id, slot, origin.from_protected, origin.text, origin.series_hashes
        )
        how = "joins the others for the whole history" if instant is None else f"is believed alone from {instant} on"
        try:
            # of the ledger as it is now: another process may charge before the answer, so the change itself prices it
            # anew under the domain's lock, and is refused where the budget does not allow it then
            price = _price(store.price_change(domain, change), said, _later(store, held, change))
            if dry:
                paragraph(results(), f"The belief of {path} {how}. {price} Nothing was changed.")
                return
            if ask:
                _ask(f"The belief of {path} {how}. {price} This is never taken back. Change it?")
            done = store.change_belief(domain, change)
        except BudgetRefused as refusal:
            later = _later(store, held, change)
            if later is None:
                raise
            raise CommandError(f"{refusal}; the budget allows {later[1]}", ExitCode.REFUSED) from refusal
    paragraph(
        results(),
        f"{domain}: the loss of everything charged was {done.before:.9g} and is {done.after:.9g}; with everything "
        f"promised it was {done.reserved_before:.9g} and is {done.reserved_after:.9g}, of a budget of "
        f"{said.budget:g}. Queries on record keep their noise; a new query may be calibrated for the new belief.",
    )


def _price(cost: Changed, said: DomainSummary, later: tuple[Changed, str] | None) -> str:
    """What a change costs, in words, and the change from an instant on where that costs less."""
    text = (
        f"Everything charged costs {cost.before:.9g} epsilon now and {cost.after:.9g} then; with everything promised "
        f"{cost.reserved_before:.9g} now and {cost.reserved_after:.9g} then, of a budget of {said.budget:g}, of which "
        f"{max(0.0, said.budget - cost.reserved_after):.9g} stays free."
    )
    if later is None or later[0].reserved_after >= cost.reserved_after:
        return text
    return f"{text} What costs less is {later[1]}."


def _later(store: Store, held: Sequence[Registration], change: BeliefChange) -> tuple[Changed, str] | None:
    """What the same belief costs alone from the first window on without an entry, and that in words.

    ``None`` where it cannot be, or the change is from an instant.
    """
    if change.slot is not None:
        return None
    spec, slot = held[0].domain, max(map(store.next_start, held))
    try:
        cost = store.price_change(spec.name, replace(change, kind="switched", slot=slot))
    except (BudgetRefused, StoreError):
        return None
    return cost, (
        f"--from {spec.instant(slot)}, by which the old belief holds until then and this one alone from there on: "
        f"{cost.after:.9g} for everything charged, {cost.reserved_after:.9g} with everything promised"
    )


def _model(path: Path) -> Model:
    """The model of a file that ``fit`` wrote, or bounds given by hand in a YAML file.

    Raises:
        ModelError: the file cannot be used.
        SettingsError: they are no bounds, or those of no chain.
    """
    if path.suffix.lower() not in _BY_HAND:
        return Model.load(path)
    text = read_text(path, "bounds")
    try:
        given = Bounds.model_validate(read_document(text, str(path)))
    except ValidationError as error:
        problems = [f"{path}: {problem}" for problem in problems_of(error, _OF_BOUNDS)]
        raise SettingsError(problems) from None
    return of_bounds(given, f"{path}: ")


def _check_alone(belief: dict[str, object], path: Path) -> None:
    """Refuse a belief that may join the others but not follow them."""
    try:
        from_any_start(belief_from_dict(belief))
    except ChainError:
        kind = str(belief["kind"])
        raise CommandError(
            f"--from: {path} is of {_WITHOUT.get(kind, kind)}, and their proof rests on how often the series are in "
            "each state, which is not known after a change; leave --from out, so that the belief joins the others, or "
            "fit a model with `quiltstream fit SETTINGS --belief pooled` or `--belief series`"
        ) from None


#: Endings of a file with bounds given by hand; a model file is JSON.
_BY_HAND = (".yaml", ".yml")

_EXAMPLE = "a file that holds `pi_min: 0.05` and `gap: 0.3`, each on a line"
_OF_BOUNDS = Explained(_EXAMPLE, _EXAMPLE)

#: What the account of a domain rests on, by what the mechanisms of its queries read.
_RESTS = {"bounds": "bounds (pi_min, gap)", "chains": "chains"}

#: What a model is made of where it gives neither.
_WITHOUT = {
    "dobrushin-bounds": "a contraction class",
    "periodic-chain": "a chain with a daily rhythm",
}


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
        lacking = not has_quilts(given) if method.reads == "bounds" else not given.members
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
