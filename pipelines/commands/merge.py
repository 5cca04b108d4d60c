"""``quiltstream ledger merge``: unite ledgers that were kept apart, and say what became of each domain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...store.merging import merge as merge_ledgers
from ...store.reading import DomainSummary
from ...store.records import Store
from ..console import facts, heading, paragraph, plural, results
from ..failures import CommandError
from .ledger import address_of

_ENDINGS = frozenset({".yaml", ".yml", ".json"})
_LEAST = 2


def merge(texts: Sequence[str], output: Path) -> None:
    """Unite ledgers and print the new accounts.

    Args:
        texts: each a SQLite file, a URL, or a settings file that names one.
        output: the new SQLite file.

    Raises:
        CommandError: fewer than two are given, or one is not there.
        StoreError: they cannot be united, read or written.
    """
    if len(texts) < _LEAST:
        raise CommandError(f"{texts[0]}: one ledger alone cannot be merged; give two or more")
    if output.suffix.lower() in _ENDINGS:
        raise CommandError(
            f"{output}: a ledger cannot have the ending of a settings file; name it for example ledger.db"
        )
    with Store(merge_ledgers([address_of(text) for text in texts], output)) as store:
        found = [store.summary(name) for name in store.domains()]
    console = results()
    heading(console, f"{output}: {plural(len(texts), 'ledger')} in one")
    facts(console, [(said.name, _account(said)) for said in found])
    paragraph(
        console,
        "Name it in the settings of every job from now on. What is charged in one of the others after this is not in "
        "it; merge again then.",
    )
    if any(said.closed for said in found):
        paragraph(
            console,
            "A closed domain has lost more than its budget. That cannot be undone, and nothing is charged to it any "
            "more, unless its budget is raised above the loss by an explicit decision (quiltstream ledger budget).",
        )


def _account(said: DomainSummary) -> str:
    text = f"loss {said.loss:.9f} of {said.budget:g} after {plural(said.charged, 'window')}"
    if said.flagged_charges or said.flagged_blocks:
        text += f"; flagged: {plural(said.flagged_charges, 'charge')}, {plural(said.flagged_blocks, 'block')}"
    return f"{text}; closed" if said.closed else text
