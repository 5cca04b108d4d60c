"""``quiltstream audit``: the whole ledger derived again from its rows, the belief and the settings. No Beam, no data.

Six looks, each with how much it held together and the first rows that differ: the record itself (digests, chain, which
windows, which blocks), with the account by the core alone; what each charge says of its query; the noise of each query;
each released row; the settings with the belief that they name; and the files that were published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...privacy.mechanisms.discrete_laplace import epsilon_dp_of
from ...privacy.mechanisms.histogram import LaplaceHistogram, noisy_histogram
from ...schemas.files import FileError, is_file, is_folder
from ...schemas.ledger import LedgerEntry
from ...schemas.noise_laws import INDEPENDENT, NO_NOISE
from ...schemas.released_files import released_rows
from ...schemas.releases import rows_from_batch
from ...schemas.settings.job import Settings
from ...schemas.settings.model import EstimatedModel
from ...store.accounts import same_loss
from ...store.queries import DomainSummary
from ...store.specs import TRANSITIONS, Registration, bins_of, first_difference
from ...store.store import Store
from ...transforms.plan import make_plan
from ..console import facts, heading, paragraph, plural, print_json, results
from ..errors import CommandError, ExitCode
from .ledger import address_of, settings_of

#: So many differences of one look are listed.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it is derived.

    Attributes:
        row: which row, by its names.
        what: what it says, and what is derived.
    """

    row: str
    what: str


@dataclass(frozen=True, slots=True)
class Look:
    """What one look compared.

    Attributes:
        name: of the look.
        compared: what was held together, in words.
        differences: every one that was found; empty where all agrees.
    """

    name: str
    compared: str
    differences: tuple[Difference, ...]


def audit(text: str, published: Sequence[Path], *, as_json: bool) -> None:
    """Derive a ledger again and print what agrees and what does not.

    Args:
        text: a settings file, a ledger file or a URL; settings say which belief and which noise there must be.
        published: files and folders of released rows to hold against the record; with settings their sink, too.
        as_json: print the looks as JSON.

    Raises:
        CommandError: something differs.
        StoreError: the ledger cannot be read at all.
        SettingsError: the settings cannot be used.
    """
    settings = settings_of(text)
    with Store(address_of(text)) as store:
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
    found = store.verify()
    rows = ", ".join(f"{number:,} {name.removeprefix('quiltstream_')}" for name, number in found.rows.items() if number)
    damage = tuple(Difference(f"{one.table}: {one.row}", one.what) for one in found.defects)
    yield Look("record", f"digests, chain, windows and blocks of {rows}; every loss by the core", damage)
    if damage:
        return  # what follows reads rows that may be damaged
    said = {name: store.summary(name) for name in store.domains()}
    entries = store.entries()
    registered = {pair: held for pair in store.queries() if (held := store.registered(*pair)) is not None}
    yield charges_look(entries, registered, said)
    yield noise_look(registered)
    names = [pair for pair, held in registered.items() if held.query.mechanism != TRANSITIONS]
    tables = [pa.Table.from_batches(store.releases(*pair)) for pair in names if _has_rows(said[pair[0]], pair[1])]
    released = {row["release_id"]: row for table in tables for row in rows_from_batch(table)}
    yield releases_look(released, entries)
    if settings is not None:
        yield _settings(settings, registered)
    yield from _published(settings, published, released)


def _has_rows(said: DomainSummary, query: str) -> bool:
    return any(one.name == query and one.blocks for one in said.queries)


def charges_look(
    entries: Sequence[LedgerEntry], registered: dict[tuple[str, str], Registration], said: dict[str, DomainSummary]
) -> Look:
    """What each entry says of its query: the density that is charged, and a decision that follows from the numbers."""
    found: list[Difference] = []
    for entry in entries:
        held, row = registered[entry.domain, entry.query], f"entry {entry.sequence} of domain {entry.domain!r}"
        charged = held.query.of_length(entry.window_stop - entry.window_start).epsilon_dp
        if entry.epsilon_dp != charged:
            found.append(Difference(row, f"epsilon_dp is {entry.epsilon_dp!r}, and its query is charged {charged!r}"))
        fits = entry.loss_after <= entry.budget or same_loss(entry.loss_after, entry.budget)
        over = held.admitted_stop is not None and entry.window_stop > held.admitted_stop
        if entry.decision == "charged" and not fits and not said[entry.domain].closed:
            found.append(Difference(row, f"it was charged, and {entry.loss_after!r} is above {entry.budget:g}"))
        if entry.decision == "refused" and fits and not over:
            found.append(Difference(row, f"it was refused, and {entry.loss_after!r} is not above {entry.budget:g}"))
    return Look("charges", f"density and decision of {len(entries):,} charges and refusals", tuple(found))


def noise_look(registered: dict[tuple[str, str], Registration]) -> Look:
    """What each query says of its noise: the density of its scale, and the band of its law."""
    found: list[Difference] = []
    for (domain, name), held in registered.items():
        row = f"query {name!r} of domain {domain!r}"
        if held.query.mechanism in {TRANSITIONS, NO_NOISE}:
            continue
        for query in (held.query, *map(held.query.of_length, held.query.lengths)):
            density = epsilon_dp_of(query.scale, LaplaceHistogram.sensitivity)
            if query.release_epsilon_dp != density:
                found.append(
                    Difference(row, f"a release loses {query.release_epsilon_dp!r} a slot; by its scale {density!r}")
                )
            law = noisy_histogram(query.noise_law, bins_of(held).size, query.scale)
            said, band = query.header.get("half_width_95"), law.half_width(0.95)
            if said != band:
                found.append(Difference(row, f"half_width_95 is {said!r}; by the law of its noise {band!r}"))
    return Look("noise", f"density and band by the exact scale; queries: {len(registered)}", tuple(found))


def releases_look(released: dict[str, dict[str, Any]], entries: Sequence[LedgerEntry]) -> Look:
    """What each released row says of its charge, and that counts whose noise keeps a total add up to it."""
    found: list[Difference] = []
    losses = {(one.domain, one.query, one.start_us): (one.loss_before, one.loss_after) for one in entries}
    for name, row in released.items():
        charge = losses.get((row["domain"], row["query"], row["window_start"]), (None, None))
        if charge != (row["loss_before"], row["loss_after"]):
            found.append(Difference(f"release {name}", "its losses are not those of its charge"))
        keeps = row["noise_law"] not in {INDEPENDENT, NO_NOISE} and row["total"] is not None
        if keeps and sum(row["counts"]) != row["total"]:
            found.append(
                Difference(f"release {name}", f"its counts add up to {sum(row['counts'])}, not {row['total']}")
            )
    return Look("releases", f"losses and totals of {plural(len(released), 'released row')}", tuple(found))


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
    recorded = held.query.frozen_fields(held.domain.under(held.belief))
    differs = first_difference(recorded, made.frozen_fields(plan.domain))
    compared = f"belief, states, slots and noise of {row}, calibrated anew"
    if differs is None:
        return Look("settings", compared, ())
    field, was, now = differs
    return Look("settings", compared, (Difference(row, f"{field} is {_short(was)}; by the settings {_short(now)}"),))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - a line


def _published(
    settings: Settings | None, published: Sequence[Path], released: dict[str, dict[str, Any]]
) -> Iterator[Look]:
    """The rows of files against those on record."""
    paths = list(published)
    if settings is not None and settings.sink is not None and settings.sink.is_files:
        sink = Path(settings.path(settings.sink.path))
        paths += [sink] if is_file(sink) or is_folder(sink) else []
    for path in paths:
        try:
            rows = rows_from_batch(released_rows([path]))
        except FileError as error:
            yield Look("published", str(path), (Difference(str(path), str(error)),))
            continue
        found = [one for row in rows if (one := _published_difference(row, released)) is not None]
        yield Look("published", f"{plural(len(rows), 'row')} of {path} against the record", tuple(found))


def _published_difference(row: dict[str, Any], released: dict[str, dict[str, Any]]) -> Difference | None:
    name = f"release {row['release_id']}"
    held = released.get(row["release_id"])
    if held is None:
        return Difference(name, "is published and not on record")
    fields = list(islice((field for field, value in row.items() if value != held[field]), 3))
    return Difference(name, f"{', '.join(fields)} differ from the record") if fields else None
