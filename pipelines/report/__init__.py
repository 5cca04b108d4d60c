"""``quiltstream report``: one HTML file from a ledger of record, for people who decide or ask. No Beam."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ...schemas.files import reason, write_whole
from ...schemas.model_file import Model
from ...store.migrations import library_version
from ...store.store import Store
from ..commands.ledger import address_of
from ..console import plural, results, working
from ..errors import CommandError, ExitCode


def write_report(text: str, output: Path, *, domain: str | None, model: Path | None, title: str, pictured: int) -> None:
    """Read a ledger and write its report."""
    absent = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if absent:
        raise CommandError(
            f"{absent[0]} is not installed, which a report is made with: pip install 'quiltstream[report]'"
        )
    from .contents import read_report  # noqa: PLC0415 - after the extra was looked for
    from .page import page_of  # noqa: PLC0415

    known = None if model is None else Model.load(model)
    with working("reading the ledger"), Store(address_of(text)) as store:
        found = read_report(store, domain, known)
    with working("drawing"):
        page = page_of(found, title=title, version=library_version(), pictured=pictured)
    try:
        write_whole(output, page, private=known is not None)
    except OSError as error:
        raise CommandError(f"{output}: cannot be written ({reason(error)}); check the folder", ExitCode.SINK) from error
    size = output.stat().st_size / 1e6
    operator = "" if known is None else "; for the operator, it holds exact statistics of the history"
    results().print(f"{output}: {plural(len(found.domains), 'domain')}, {size:.1f} MB{operator}", soft_wrap=True)
