"""The commands ``quiltstream ledger ...``, as :mod:`.cli` has the others: parsed here, done elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from .command import Group

_FILE = click.Path(path_type=Path)


@click.group(cls=Group, short_help="Look at the ledger of record, export it, and keep it.")
def ledger() -> None:
    r"""Look at the ledger of record, export it, and keep it.

    LEDGER is a SQLite file, a SQLAlchemy URL, or a settings file that names one.

    \b
    Examples:
      quiltstream ledger show settings.yaml
      quiltstream ledger export out/ledger.db -o public/
      quiltstream ledger backup out/ledger.db -o backup.db
    """


@ledger.command("show")
@click.argument("ledger_", metavar="LEDGER")
@click.option("--domain", help="This domain only.")
@click.option("--all", "every", is_flag=True, help="Every entry, not only the last ones.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def ledger_show(ledger_: str, domain: str | None, *, every: bool, as_json: bool) -> None:
    r"""Show what each domain has lost, what its budget is, and the entries of its account.

    \b
    Examples:
      quiltstream ledger show quiltstream-demo/ledger.db
      quiltstream ledger show settings.yaml --all
      quiltstream ledger show postgresql+psycopg://host/db --json
    """
    from .commands.ledger import show

    show(ledger_, domain=domain, every=every, as_json=as_json)


@ledger.command("verify")
@click.argument("ledger_", metavar="LEDGER")
@click.option(
    "--expect",
    "expected",
    metavar="DOMAIN=HEAD",
    multiple=True,
    help="A head that was written down earlier; what it was made of must still be on record. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def ledger_verify(ledger_: str, expected: tuple[str, ...], *, as_json: bool) -> None:
    r"""Read everything for damage, price every account anew, and print the head of each domain.

    Exit code 4 if anything is not as it was written; each defect is listed. Keep the heads elsewhere: against somebody
    who may write to the ledger only they tell, by --expect, that something was changed since.

    \b
    Examples:
      quiltstream ledger verify settings.yaml
      quiltstream ledger verify ledger.db --expect london-feeder=12.96.3.0f4c...
    """
    from .commands.ledger import verify

    verify(ledger_, expected, as_json=as_json)


@ledger.command("export")
@click.argument("ledger_", metavar="LEDGER")
@click.option("-o", "--output", type=_FILE, required=True, help="Folder to write into.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "avro"]),
    default="parquet",
    show_default=True,
    help="Of the files.",
)
def ledger_export(ledger_: str, output: Path, kind: str) -> None:
    r"""Write the releases and the ledger's entries to files that may be published.

    The store itself is not to be published: its files and logs may hold draws of noise that lost a race.

    \b
    Example:
      quiltstream ledger export settings.yaml -o public/
    """
    from .commands.ledger import export

    export(ledger_, output, kind)


@ledger.command("budget")
@click.argument("ledger_", metavar="LEDGER")
@click.argument("domain")
@click.argument("budget", type=float)
@click.option("--yes", is_flag=True, help="Do not ask.")
def ledger_budget(ledger_: str, domain: str, budget: float, *, yes: bool) -> None:
    r"""Raise the budget of a domain, on record. A window that was refused stays refused.

    \b
    Example:
      quiltstream ledger budget settings.yaml london-feeder 2.0
    """
    from .commands.ledger import raise_budget

    raise_budget(ledger_, domain, budget, ask=not yes)


@ledger.command("belief")
@click.argument("ledger_", metavar="LEDGER")
@click.argument("domain")
@click.argument("model", type=_FILE)
@click.option("--from", "instant", metavar="INSTANT", help="Believe it alone from here on, not beside the others.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def ledger_belief(ledger_: str, domain: str, model: Path, instant: str | None, *, yes: bool) -> None:
    r"""Let another belief join a domain's for the whole history, or follow it from an instant on.

    Everything charged and promised is priced anew, and it is refused if that passes the budget.

    \b
    Example:
      quiltstream ledger belief settings.yaml london-feeder model-2.json
    """
    from .commands.belief import change_belief

    change_belief(ledger_, domain, model, instant, ask=not yes)


@ledger.command("backup")
@click.argument("ledger_", metavar="LEDGER")
@click.option("-o", "--output", type=_FILE, required=True, help="File to write; it must not exist.")
def ledger_backup(ledger_: str, output: Path) -> None:
    r"""Copy a SQLite ledger while jobs may be running. PostgreSQL has tools of its own for this.

    A ledger restored from a backup has forgotten every charge made after it: the budget would be spent twice.

    \b
    Example:
      quiltstream ledger backup out/ledger.db -o ledger-2013-12-31.db
    """
    from .commands.ledger import backup

    backup(ledger_, output)


@ledger.command("migrate")
@click.argument("ledger_", metavar="LEDGER")
def ledger_migrate(ledger_: str) -> None:
    r"""Bring the tables of a ledger to the version of this program. Back it up first.

    \b
    Example:
      quiltstream ledger migrate settings.yaml
    """
    from .commands.ledger import migrate

    migrate(ledger_)


@ledger.command("merge")
@click.argument("ledgers", metavar="LEDGER LEDGER...", nargs=-1, required=True)
@click.option("-o", "--output", type=_FILE, required=True, help="SQLite file to write; it must not exist.")
def ledger_merge(ledgers: tuple[str, ...], output: Path) -> None:
    r"""Unite ledgers that were kept apart, in a new one.

    Every charge of all of them counts: the same charge once, two charges of one window twice. What was published for
    one place with two values is kept and flagged. If the budget is exceeded then, the domain is closed. Domains and
    queries of one name must be the same in all. The ledgers given are not changed; use the new one from then on.

    \b
    Example:
      quiltstream ledger merge north.db south.db -o ledger.db
    """
    from .commands.merge import merge

    merge(ledgers, output)
