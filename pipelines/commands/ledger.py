"""``quiltstream ledger`` and ``audit``: show, verify, export, back up, change, and derive again. No Beam.

An audit takes six looks at a ledger, each with how much it held together and the first rows that differ: the record
itself (digests, chain, which windows, which blocks), with the account by the core alone; what each charge says of its
query; the noise of each query; each released row; the settings with the belief that they name; and the files that were
published. No data is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import click
import pyarrow as pa
from pydantic import ValidationError
from rich.console import Console

from ...privacy.accounting.theorems import TheoremBound
from ...privacy.analysis.methods import METHODS
from ...privacy.mechanisms.discrete_laplace import epsilon_dp_of
from ...privacy.mechanisms.histogram import LaplaceHistogram, noisy_histogram
from ...privacy.models.classes import from_any_start, has_quilts
from ...privacy.models.markov_chain import ChainError
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.files import SQLITE_BEGIN, FileError, is_file, is_folder, open_regular, write_whole
from ...schemas.ledger import LedgerEntry
from ...schemas.model_file import Model
from ...schemas.noise_laws import INDEPENDENT, NO_NOISE
from ...schemas.releases import RELEASE_SCHEMA, rows_from_batch
from ...schemas.settings.base import Explained, SettingsError, problems_of, read_document, read_text
from ...schemas.settings.job import Settings, is_settings, read_settings
from ...schemas.settings.model import Bounds, EstimatedModel
from ...schemas.slots import SlotGrid, format_instant, parse_instant
from ...schemas.states import StateSpace
from ...schemas.table_files import released_rows
from ...store.accounts import check_loss, costs_alone, loss_of_spans, priced_anew, same_loss
from ...store.address import StoreAddress
from ...store.domain_changes import Changed
from ...store.errors import BudgetRefused, StoreError
from ...store.queries import DomainSummary
from ...store.registration import SHARING
from ...store.specs import TRANSITIONS, BeliefChange, Registration, bins_of, first_difference
from ...store.store import Store
from ...store.verification import Head, Verified
from ...transforms.plan import account_belief, ledger_address, make_plan, of_bounds
from ..connectors.job_io import JobPath, check_output, job_paths
from ..console import facts, heading, paragraph, plural, print_json, results
from ..errors import CommandError, ExitCode, writing
from ..on_record import Memory, ReplacedError, Unknown, check_history

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
            lost = Memory(settings).lost(history_lost=False)
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
    # what the quilts and each theorem of the sources say of the charges; none for a domain without queries, or where
    # not every entry is read
    bounds: Mapping[str, TheoremBound] = field(default_factory=dict[str, TheoremBound])

    @classmethod
    def of(cls, store: Store, name: str, *, every: bool) -> _Account:
        """Read an account; all of it is checked, and with ``every`` all entries and the bounds are given."""
        said, charged = store.summary(name), store.charged(name, None if every else _LAST)
        found = cls(said, charged.entries, charged.total)
        held = store.registered(name, said.queries[0].name) if said.queries else None
        if held is None:
            return found
        store.check_blocks(name)
        spans = [span for of_query in charged.spans.values() for span in of_query]
        lost, bounds = priced_anew(held.domain, spans) if every else (loss_of_spans(held.domain, spans), {})
        if store.summary(name) == said:  # else a job charged more meanwhile
            check_loss(held.domain, said.loss, lost)
        return replace(found, bounds=bounds, alone=costs_alone(held.domain, charged.spans, lost))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, without the entries."""
        bounds = {name: asdict(bound) for name, bound in self.bounds.items()}
        return {**asdict(self.said), "bounds": bounds, "alone": dict(self.alone)}


def show(text: str, *, domain: str | None, every: bool, as_json: bool) -> None:
    """Print the accounts of a ledger."""
    with _open(text) as store:
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
            *(_bounds(account.bounds) if every else []),
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


def export(text: str, folder: Path, kind: str) -> None:
    """Write what may be published of a ledger to files."""
    with _open(text) as store:
        console = results()
        entries, releases = folder / f"ledger-entries.{kind}", folder / f"releases.{kind}"
        accounts = folder / "domains.json"
        read = files_of(text)
        for path in (entries, releases, accounts):
            check_output(path, read)
        console.print(f"{entries}: {plural(store.export(entries, 'ledger'), 'row')}", soft_wrap=True)
        console.print(f"{releases}: {plural(store.export(releases, 'releases'), 'row')}", soft_wrap=True)
        domains = [
            {**_Account.of(store, name, every=True).to_dict(), "head": str(store.head(name))}
            for name in store.domains()
        ]
        with writing(accounts):
            write_whole(accounts, json.dumps(domains, indent=2, ensure_ascii=False) + "\n")
        console.print(f"{accounts}: {plural(len(domains), 'account')}", soft_wrap=True)


_AS_PRINTED = "give DOMAIN=HEAD as `quiltstream ledger verify` printed it"


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
            "Every row is as it was written, every block that was drawn is there, and the losses are those of the "
            "core. Keep the heads elsewhere: --expect DOMAIN=HEAD tells later whether anything was changed since.",
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
    "dobrushin-bounds": "total-variation bounds",
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
        given = belief_from_dict(model.belief)
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


#: So many differences of one look are listed.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it is derived."""

    row: str  # which row, by its names
    what: str  # what it says, and what is derived


@dataclass(frozen=True, slots=True)
class Look:
    """What one look compared."""

    name: str
    compared: str  # what was held together, in words
    differences: tuple[Difference, ...]  # every one that was found; empty where all agrees


def audit(text: str, published: Sequence[Path], *, as_json: bool) -> None:
    """Derive a ledger again and print what differs; settings say which belief and which noise there must be."""
    settings = settings_of(text)
    with _open(text) as store:
        looks = list(_looks(store, settings, published))
    failed = [look for look in looks if look.differences]
    if as_json:
        print_json({"passed": not failed, "looks": [asdict(look) for look in looks]})
    else:
        _print(looks)
    if failed:
        first = failed[0].differences[0]
        raise CommandError(
            f"audit: {plural(sum(len(look.differences) for look in failed), 'difference')}; the first: {first.row}: "
            f"{first.what}",
            ExitCode.STORE,
        )


def _print(looks: Sequence[Look]) -> None:
    console = results()
    heading(console, "Derived again")
    facts(console, [(look.name, f"{'differs' if look.differences else 'agrees'}: {look.compared}") for look in looks])
    for look in looks:
        for one in look.differences[:_LISTED]:
            console.print(f"  {look.name}: {one.row}: {one.what}", soft_wrap=True)
        if len(look.differences) > _LISTED:
            console.print(f"  {look.name}: and {len(look.differences) - _LISTED:,} more", soft_wrap=True)
    if not any(look.differences for look in looks):
        paragraph(console, "Pass: every number on record follows from the rows, the belief and what was compared.")


def _looks(store: Store, settings: Settings | None, published: Sequence[Path]) -> Iterator[Look]:
    # what is published or charged meanwhile is in everything that is read later
    files = _published(settings, published)
    found = store.verify()
    rows = ", ".join(f"{number:,} {name.removeprefix('quiltstream_')}" for name, number in found.rows.items() if number)
    damage = tuple(Difference(f"{one.table}: {one.row}", one.what) for one in found.defects)
    yield Look("record", f"digests, chain, windows and blocks of {rows}; every loss by the core", damage)
    if damage:
        return  # what follows reads rows that may be damaged
    names = [pair for pair, held in _registered(store).items() if held.query.mechanism != TRANSITIONS]
    tables = [pa.Table.from_batches(store.releases(*pair), RELEASE_SCHEMA) for pair in names]
    released = {row["release_id"]: row for table in tables for row in rows_from_batch(table)}
    entries = store.entries()
    registered = _registered(store)
    differs = tuple(charges_that_differ(entries, registered))
    yield Look("charges", f"density and decision of {len(entries):,} charges and refusals", differs)
    differs = tuple(noise_that_differs(registered))
    yield Look("noise", f"density and band by the exact scale; queries: {len(registered)}", differs)
    differs = tuple(releases_that_differ(released, entries))
    yield Look("releases", f"losses and totals of {plural(len(released), 'released row')}", differs)
    if settings is not None:
        yield _settings(settings, registered)
    yield from _against_record(files, released)


def _registered(store: Store) -> dict[tuple[str, str], Registration]:
    return {pair: held for pair in store.queries() if (held := store.registered(*pair)) is not None}


def charges_that_differ(
    entries: Sequence[LedgerEntry], registered: dict[tuple[str, str], Registration]
) -> Iterator[Difference]:
    """What each entry says of its query: the density that is charged, and a decision that follows from the numbers."""
    for entry in entries:
        held, row = registered[entry.domain, entry.query], f"entry {entry.sequence} of domain {entry.domain!r}"
        charged = held.query.of_length(entry.window_stop - entry.window_start).epsilon_dp
        if entry.epsilon_dp != charged:
            yield Difference(row, f"epsilon_dp is {entry.epsilon_dp!r}, and its query is charged {charged!r}")
        fits = entry.loss_after <= entry.budget or same_loss(entry.loss_after, entry.budget)
        over = held.admitted_stop is not None and entry.window_stop > held.admitted_stop
        if entry.decision == "charged" and not fits:
            yield Difference(row, f"it was charged, and {entry.loss_after!r} is above {entry.budget:g}")
        if entry.decision == "refused" and fits and not over:
            yield Difference(row, f"it was refused, and {entry.loss_after!r} is not above {entry.budget:g}")


def noise_that_differs(registered: dict[tuple[str, str], Registration]) -> Iterator[Difference]:
    """What each query says of its noise: the density of its scale, and the band of its law."""
    for (domain, name), held in registered.items():
        row = f"query {name!r} of domain {domain!r}"
        if held.query.mechanism in {TRANSITIONS, NO_NOISE}:
            continue
        for query in (held.query, *map(held.query.of_length, held.query.lengths)):
            density = epsilon_dp_of(query.scale, LaplaceHistogram.sensitivity)
            if query.release_epsilon_dp != density:
                yield Difference(row, f"a release loses {query.release_epsilon_dp!r} a slot; by its scale {density!r}")
            law = noisy_histogram(query.noise_law, bins_of(held).size, query.scale)
            said, band = query.header.get("half_width_95"), law.half_width(0.95)
            if said != band:
                yield Difference(row, f"half_width_95 is {said!r}; by the law of its noise {band!r}")


def releases_that_differ(released: dict[str, dict[str, Any]], entries: Sequence[LedgerEntry]) -> Iterator[Difference]:
    """What each released row says of its charge, and that counts whose noise keeps a total add up to it."""
    # of one window there are several where ledgers were merged
    losses = {(one.domain, one.query, one.start_us, one.loss_before, one.loss_after) for one in entries}
    said = itemgetter("domain", "query", "window_start", "loss_before", "loss_after")
    for name, row in released.items():
        if said(row) not in losses:
            yield Difference(f"release {name}", "its losses are not those of its charge")
        keeps = row["noise_law"] not in {INDEPENDENT, NO_NOISE} and row["total"] is not None
        if keeps and sum(row["counts"]) != row["total"]:
            yield Difference(f"release {name}", f"its counts add up to {sum(row['counts'])}, not {row['total']}")


def _settings(settings: Settings, registered: dict[tuple[str, str], Registration]) -> Look:
    """The query that the settings and their belief make, calibrated anew, against the one on record."""
    held = registered.get((settings.domain, settings.query))
    row = f"query {settings.query!r} of domain {settings.domain!r}"
    if held is None:
        return Look("settings", row, (Difference(row, "the settings name it, and it is not on record"),))
    if isinstance(settings.model, EstimatedModel):
        return Look("settings", f"{row}: not compared, the job estimates its belief itself", ())
    plan = make_plan(settings).with_multiplicity(held.query.most)
    made = plan.query(
        held.query.schedule,
        plan.roster or held.query.roster,
        schedule_given=False,
        roster_given=plan.roster is not None,
    )
    domain = held.domain.under(held.belief)
    differs = first_difference(held.query.frozen_fields(domain), made.frozen_fields(plan.domain))
    compared = f"belief, states, slots and noise of {row}, calibrated anew"
    if differs is None:
        return Look("settings", compared, ())
    field, was, now = first_difference(held.query.as_set(domain), made.as_set(plan.domain)) or differs
    return Look("settings", compared, (Difference(row, f"{field} is {_short(was)}; by the settings {_short(now)}"),))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - a line


def _published(settings: Settings | None, published: Sequence[Path]) -> dict[Path, pa.Table | FileError]:
    """The rows of files, or why they cannot be read."""
    paths = list(published)
    if settings is not None and settings.sink is not None and settings.sink.is_files:
        sink = Path(settings.path(settings.sink.path))
        paths += [sink] if is_file(sink) or is_folder(sink) else []
    return {path: _rows_in(path) for path in paths}


def _rows_in(path: Path) -> pa.Table | FileError:
    try:
        return released_rows([path])
    except FileError as error:
        return error


def _against_record(files: Mapping[Path, pa.Table | FileError], released: dict[str, dict[str, Any]]) -> Iterator[Look]:
    """The rows of files against those on record."""
    for path, table in files.items():
        if isinstance(table, FileError):
            yield Look("published", str(path), (Difference(str(path), str(table)),))
            continue
        rows, found = rows_from_batch(table), list[Difference]()
        for row in rows:
            name, held = f"release {row['release_id']}", released.get(row["release_id"])
            if held is None:
                found.append(Difference(name, "is published and not on record"))
            elif fields := [one for one, value in row.items() if value != held[one]][:3]:
                found.append(Difference(name, f"{', '.join(fields)} differ from the record"))
        yield Look("published", f"{plural(len(rows), 'row')} of {path} against the record", tuple(found))
