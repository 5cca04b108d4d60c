"""The command line ``quiltstream``: arguments and printing. Each command's work is in ``commands``."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .click_types import COUNT, COUNTS, DURATION, DURATIONS, ENDS, NUMBERS, PATH, SHARE
from .commands import Group, leave_at_exit

if TYPE_CHECKING:
    from .commands.show import Format

_Function = TypeVar("_Function", bound=Callable[..., Any])

_LEDGER = click.argument("text", metavar="LEDGER")
_SETTINGS = click.argument("settings", type=PATH)
_DOMAIN = click.option("--domain", help="Of this domain only.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


_ALL = click.option("--all", "every", is_flag=True, help="Print every number, and what they rest on.")


def _json(what: str) -> Callable[[_Function], _Function]:
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


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
@_LEDGER
@click.option("--domain", help="This domain only.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Every entry, not only the last ones, and what the theorems of the sources say.",
)
@_json("everything")
def ledger_show(**given: Any) -> None:
    r"""Show what each domain has lost, what its budget is, and the entries of its account.

    \b
    Examples:
      quiltstream ledger show quiltstream-demo/ledger.db
      quiltstream ledger show settings.yaml --all
      quiltstream ledger show postgresql+psycopg://host/db --json
    """
    from .commands.ledger import show

    show(**given)


@ledger.command("verify")
@_LEDGER
@click.option(
    "--expect",
    "expected",
    metavar="DOMAIN=HEAD",
    multiple=True,
    help="A head that was written down earlier; what it was made of must still be on record. May be repeated.",
)
@_json("everything")
def ledger_verify(**given: Any) -> None:
    r"""Read everything for damage, price every account anew, and print the head of each domain.

    Exit code 4 if anything is not as it was written; each defect is listed. Keep the heads elsewhere: against somebody
    who may write to the ledger only they tell, by --expect, that something was changed since.

    \b
    Examples:
      quiltstream ledger verify settings.yaml
      quiltstream ledger verify ledger.db --expect london-feeder=12.96.3.0f4c...
    """
    from .commands.ledger import verify

    verify(**given)


@ledger.command("export")
@_LEDGER
@click.option("-o", "--output", "folder", type=PATH, required=True, help="Folder to write into.")
@_json("the files, each with its number of rows or accounts,")
def ledger_export(**given: Any) -> None:
    r"""Write the audit trail: the log without names of series and without rows, as JSON Lines and Parquet.

    The store itself is not to be published: its files and logs may hold draws of noise that lost a race.

    \b
    Example:
      quiltstream ledger export settings.yaml -o public/
    """
    from .commands.ledger import export

    export(**given)


@ledger.command("budget")
@_LEDGER
@click.argument("domain")
@click.argument("budget", type=float)
@_YES
@_json("what was decided")
def ledger_budget(*, yes: bool, **given: Any) -> None:
    r"""Raise the budget of a domain, on record. A window that was refused stays refused.

    \b
    Example:
      quiltstream ledger budget settings.yaml london-feeder 2.0
    """
    from .commands.ledger import raise_budget

    raise_budget(**given, ask=not yes)


@ledger.command("belief")
@_LEDGER
@click.argument("domain")
@click.argument("path", metavar="MODEL", type=PATH)
@click.option("--from", "instant", metavar="INSTANT", help="Believe it alone from here on, not beside the others.")
@click.option("--dry-run", "dry", is_flag=True, help="Say what it would cost, and change nothing.")
@_YES
@_json("what it costs")
def ledger_belief(*, yes: bool, **given: Any) -> None:
    r"""Let another belief join a domain's for the whole history, or follow it from an instant on.

    Everything charged and promised is priced anew, and it is refused if that passes the budget. The loss before and
    after is said before it is asked. MODEL is a file that fit wrote, or a YAML file with pi_min and gap by hand.

    \b
    Examples:
      quiltstream ledger belief settings.yaml london-feeder model-2.json --dry-run
      quiltstream ledger belief settings.yaml london-feeder model-2.json
    """
    from .commands.ledger import change_belief

    change_belief(**given, ask=not yes)


@ledger.command("drift")
@_LEDGER
@click.argument("domain")
@click.argument("query")
@_json("the result")
def ledger_drift(**given: Any) -> None:
    r"""Say which stretches of released rows contradict the belief in force; it costs nothing, and may be published.

    Each stretch is of whole windows of a week or more. All looks for ever raise a false alarm with probability 0.001 at
    most.

    \b
    Example:
      quiltstream ledger drift settings.yaml london-feeder weekly-load
    """
    from .commands.ledger import drift

    drift(**given)


@ledger.command("backup")
@_LEDGER
@click.option("-o", "--output", type=PATH, required=True, help="File to write; it must not exist.")
@_json("the result")
def ledger_backup(**given: Any) -> None:
    r"""Copy a SQLite ledger while jobs may be running. PostgreSQL has tools of its own for this.

    A ledger restored from a backup has forgotten every charge made after it: the budget would be spent twice.

    \b
    Example:
      quiltstream ledger backup out/ledger.db -o ledger-2013-12-31.db
    """
    from .commands.ledger import backup

    backup(**given)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="quiltstream", message="quiltstream %(version)s", help="Say the version.")
def main() -> None:
    r"""Publish private histograms of correlated time series, with a ledger of what they cost.

    \b
    Begin with one of these:
      quiltstream demo                       a year of London's smart meters
      quiltstream init readings.csv          a settings file for your own data
    """


@main.command()
@click.option("--out", type=PATH, default=Path("quiltstream-demo"), show_default=True, help="Folder to write into.")
@_ALL
def demo(out: Path, *, every: bool) -> None:
    r"""Show the whole way on real data: fit, publish 52 weeks, compare with the truth, read the ledger.

    The data are the half-hourly readings of 60 London households in 2013, which come with the package. A model is
    fitted on 30 of them, and the weekly load of the other 30, as one feeder, is published at epsilon 1 for the whole
    year. Run it twice: the second run publishes the same rows and charges nothing.

    \b
    Example:
      quiltstream demo
      quiltstream ledger show quiltstream-demo/settings.yaml
      quiltstream run quiltstream-demo/settings.yaml
    """
    from .commands.demo import demonstrate

    demonstrate(out, every=every)


@main.command()
@click.argument("data", type=PATH, required=False)
@click.option(
    "-o", "--output", type=PATH, default=Path("settings.yaml"), show_default=True, help="Settings file to write."
)
@click.option(
    "--hold-out",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    default=0.0,
    help="Share of the series kept as history for fit.",
)
@click.option(
    "--model", type=click.Choice(["london", "nhanes"]), help="A belief of the package, for one meter or wearer."
)
@click.option("--value", metavar="COLUMN", help="Column of the measured value.")
@click.option("--timezone", metavar="ZONE", default="UTC", help="Of times without an offset, and of days.")
@click.option("--from-topic", metavar="TOPIC", help="Look at a Kafka topic; commits nothing.")
@click.option("--servers", metavar="HOST:PORT", help="Its brokers.")
@click.option("--option", "options", metavar="NAME=VALUE", multiple=True, help="Option of librdkafka; repeat it.")
@click.option("--registry", metavar="URL", help="The schema registry of Avro messages.")
@click.option("--messages", type=click.IntRange(1, 1_000), default=200, metavar="N", help="Looked at, at most.")
@click.option("--force", is_flag=True, help="Replace settings and roster that are there.")
def init(**given: Any) -> None:
    r"""Write a commented settings file, and a roster, from a look at data.

    DATA is a file, folder or pattern. A key whose value is ??? is a question that you answer.

    \b
    Examples:
      quiltstream init readings.csv --hold-out 0.5
      quiltstream init --from-topic readings --servers localhost:9092
    """
    from .commands.init import Options, write_settings

    write_settings(Options(**given))


@main.command()
@_SETTINGS
@click.option("-o", "--output", type=PATH, help="Model file to write.")
@click.option("--only", type=PATH, help="CSV file with the series to use.")
@click.option("--exclude", type=PATH, help="CSV file with those to leave out: the roster.")
@click.option("--start", metavar="INSTANT", help="Use readings from here on.")
@click.option("--stop", metavar="INSTANT", help="Use readings before this instant.")
@click.option(
    "--smoothing", type=click.FloatRange(min=0), metavar="NUMBER", default=0.0, help="For pooled: added to every count."
)
@click.option(
    "--belief",
    type=click.Choice(["level", "series", "periodic", "pooled"]),
    metavar="KIND",
    default="level",
    help="level, series, periodic or pooled: docs/model.md.",
)
@click.option("--cover", metavar="SHARE", help="How likely a further series is covered.")
@click.option("--regimes", metavar="KIND", help="Given the kind of day: weekday, kinds or a CSV.")
@click.option("--certify", is_flag=True, help="For pooled: keep a certificate of the account.")
@_ALL
def fit(settings: Path, *, output: Path | None, every: bool, **given: Any) -> None:
    r"""Fit what is believed about the data on a history; write a model file.

    The belief is the class of all chains that forget as fast as most series of the history do. Leave out the series
    that you publish. The model and what is printed are exact statistics of the history.

    \b
    Examples:
      quiltstream fit settings.yaml --exclude roster.csv
      quiltstream fit settings.yaml --exclude roster.csv --cover 0.8
    """
    from .commands.fit import Choice, fit_file
    from .commands.fit_text import show
    from .console import results

    show(results(), fit_file(settings, Choice(**given), output), every=every)


@main.command(short_help="Say what is in the data, or in messages; charge nothing.")
@_SETTINGS
@click.argument("file", required=False)
@click.option("--from-topic", type=click.IntRange(1, 1_000), metavar="N", help="The last N messages of source.kafka.")
@click.option("--topic", default="", help="Topic of the messages of FILE.")
@click.option("--key", default="", help="Their key.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of theirs. Repeat it.")
@click.option("--stamp", default="", metavar="INSTANT", help="The broker's stamp [default: now].")
@click.option("--lines", is_flag=True, help="Each line is a message.")
@click.option("--topics", is_flag=True, help="Each line is a topic, a blank and a payload, as of mosquitto_sub -v.")
@_json("what was found")
def check(settings: Path, file: str | None, *, from_topic: int | None, as_json: bool, **beside: Any) -> None:
    r"""Say what is in the data of a settings file; charge and publish nothing, and open no ledger.

    Exact statistics, for the operator's eyes: readings, rejected rows with their places, counters, units, gaps. With
    FILE, or - for standard input, it says of each message what becomes of it. Exit code 5 if no reading counts.

    \b
    Examples:
      quiltstream check settings.yaml
      quiltstream check settings.yaml message.json --topic tele/kitchen/SENSOR
      mosquitto_sub -v -t 'tele/#' -C 20 | quiltstream check settings.yaml - --topics
    """
    if file is None and from_topic is None:
        from .commands.check import check_file

        if any(beside.values()):
            raise click.UsageError(
                "--topic, --key, --header, --stamp, --lines and --topics are of the messages of FILE"
            )
        raise SystemExit(check_file(settings, as_json=as_json))
    from .commands.check_messages import Beside, check_messages

    raise SystemExit(check_messages(settings, file, Beside(**beside), from_topic=from_topic, as_json=as_json))


@main.command(short_help="Publish what a settings file says, once and within the budget.")
@_SETTINGS
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--dry-run", is_flag=True, help="Say noise and cost; read no data.")
@_json("the summary, or the dry run,")
@_ALL
@click.option("--history-lost", is_flag=True, help="Go on although the ledger lacks releases; marked.")
@click.option("--even-if-empty", is_flag=True, help="Publish although no reading counts.")
@click.option("--accept-noise", is_flag=True, help="Publish although noise drowns the counts.")
@click.option("--accept-stand-in", is_flag=True, help="Publish under model: stand-in; rows say so.")
@click.option("--accept-cover", is_flag=True, help="Publish under a cover below 0.8; rows say so.")
@click.option("--live", is_flag=True, help="Publish each window when it closes.")
def run(
    settings: Path,
    beam_options: tuple[str, ...],
    *,
    dry_run: bool,
    live: bool,
    even_if_empty: bool,
    every: bool,
    **given: bool,
) -> None:
    r"""Publish what a settings file says, once and within the budget.

    The first published rows are the rows of record for ever: a further run gives the same rows and charges nothing. It
    stops with exit code 2 before anything is charged where the noise would drown the counts; 3 is a refused window.
    Everything after -- goes to Beam.

    \b
    Examples:
      quiltstream run --dry-run settings.yaml
      quiltstream run settings.yaml
      quiltstream run --live settings.yaml
      quiltstream run settings.yaml -- --direct_num_workers=2
    """
    from ..schemas.settings.job import Accepted

    accepted = Accepted(given.pop("accept_noise"), given.pop("accept_stand_in"), given.pop("accept_cover"))
    if dry_run:
        from .commands.dry_run import dry

        code = dry(settings, **given, every=every, live=live, accepted=accepted)
    elif live:
        from .live.command import run_live

        code = run_live(settings, beam_options, **given, every=every, accepted=accepted)
    else:
        from .commands.run import run_file

        code = run_file(settings, beam_options, **given, every=every, even_if_empty=even_if_empty, accepted=accepted)
    raise SystemExit(code)


main.add_command(ledger)


@main.command(short_help="Take messages of an MQTT broker further.")
@_SETTINGS
@click.option("--check", is_flag=True, help="Say what the settings mean and what is missing; connect to nothing.")
def gateway(settings: Path, *, check: bool) -> None:
    r"""Take messages of an MQTT broker to Kafka or into files.

    A message is acknowledged to the broker only when the next hop has it, so none is lost when the gateway ends in any
    way. The settings are a document of their own. It runs until SIGTERM or Ctrl-C, and needs the extra mqtt.

    \b
    Examples:
      quiltstream gateway --check gateway.yaml
      quiltstream gateway gateway.yaml
    """
    from .gateway import run as gateways

    if check:
        gateways.check(settings)
    else:
        raise SystemExit(gateways.run_gateway(settings))


@main.command(name="plan", short_help="Say which window and group an error takes.")
@click.argument("settings", type=PATH, required=False)
@click.option("--model", type=PATH, help="A model file instead of settings.")
@click.option("--window", type=DURATION, metavar="DURATION", help="Length of a window.")
@click.option("--group", type=COUNT, metavar="N", help="Series in the smallest group.")
@click.option("--epsilon", type=float, help="Loss you accept.")
@click.option(
    "--error", type=SHARE, metavar="SHARE", default="5%", show_default=True, help="Error of a count that you want."
)
@click.option("--mechanism", metavar="NAME", help="Plan with this one.")
@click.option("--lifetime", type=DURATION, metavar="DURATION", help="Noise for so long that hides habits.")
@click.option(
    "--windows", type=DURATIONS, default=(), metavar="DURATION,...", help="Windows of the table, e.g. 1d,7d,28d."
)
@click.option(
    "--groups", type=COUNTS, default=(), metavar="NUMBER,...", help="Group sizes of the table, e.g. 1,30,100."
)
@click.option("--epsilons", type=NUMBERS, default=(), metavar="NUMBER,...", help="Epsilons of the table, e.g. 0.5,1,2.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of what is printed.",
)
@_ALL
def plan_command(*, settings: Path | None, model: Path | None, format_: str, every: bool, **given: Any) -> None:
    r"""Say what a purpose comes to under a model: which mechanism, how long a window, how large a group.

    No data are read, no ledger is opened, and nothing is charged.

    \b
    Examples:
      quiltstream plan settings.yaml --error 5%
      quiltstream plan --model model.json --window 7d --group 30
    """
    from .commands.plan import Options, plan

    plan(settings, model, Options(**given), as_json=format_ == "json", every=every)


@main.command(short_help="Show released histograms with their error; costs nothing.")
@click.argument("releases", type=PATH, nargs=-1, required=True)
@_DOMAIN
@click.option("--query", help="Of this query only.")
@click.option("--key", help="Of this series or group.")
@click.option("--window", metavar="INSTANT", help="The window that holds this instant.")
@click.option("--class", "of_class", metavar="LABEL", help="Of this class of slots, e.g. 18:00.")
@click.option(
    "--sum",
    "period",
    type=click.Choice(["day", "week", "month", "year", "all"]),
    metavar="PERIOD",
    help="Add up by day, week, month, year or all.",
)
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="P",
    default=0.95,
    help="Probability of each band.",
)
@click.option("--duration", is_flag=True, help="Cells at or above each edge.")
@click.option("--quantiles", type=NUMBERS, default=(), metavar="SHARE,...", help="Bands of edges, e.g. 0.1,0.5.")
@click.option("--mean", type=ENDS, metavar="LOW,HIGH", help="Bounds on mean and total of the values.")
@click.option("--change", is_flag=True, help="Change since the window before.")
@click.option("--profile", is_flag=True, help="A line for each class of slots.")
@click.option("--edge", type=float, help="Edge that a profile counts from.")
@_json("everything that is asked")
@click.option("--tidy", is_flag=True, help="A table with one row a count.")
@click.option("--format", "format_", type=click.Choice(["csv", "parquet", "json"]), help="Of the table.")
@click.option("-o", "--output", type=PATH, help="File for the table.")
def show(
    releases: tuple[Path, ...], *, as_json: bool, tidy: bool, format_: Format | None, output: Path | None, **view: Any
) -> None:
    r"""Show released histograms with the bands of their noise; costs nothing.

    RELEASES are files of a sink or an export, or a live job's folder.

    \b
    Examples:
      quiltstream show quiltstream-demo/releases.parquet --sum month --duration
    """
    from .commands.show import View, write_table
    from .commands.show import show as show_view

    if tidy or format_ is not None or output is not None:
        if as_json:
            raise click.UsageError("--json is of what is shown; of a table (--tidy, --format, -o) give --format json")
        write_table(releases, View(**view), format_, output)
    else:
        show_view(releases, View(**view), as_json=as_json)


@main.command(short_help="Write an HTML report of what was released and what it cost.")
@_LEDGER
@click.option("-o", "--output", type=PATH, default=Path("report.html"), show_default=True, help="HTML file to write.")
@_DOMAIN
@click.option("--title", default="What was released, and what it cost", show_default=True, help="Of the report.")
@click.option(
    "--figures",
    "pictured",
    type=click.IntRange(min=0, max=1000),
    default=12,
    show_default=True,
    help="How many series or groups of a domain get figures.",
)
def report(**given: Any) -> None:
    r"""Write one HTML file: what is promised and to whom, what it cost, the belief, and what was released.

    LEDGER is a SQLite file, a SQLAlchemy URL, or a settings file that names one. The file needs no network and runs no
    script; figures and the data are in it, and nothing but what may be published.

    \b
    Examples:
      quiltstream report quiltstream-demo/settings.yaml
    """
    from .report import write_report

    write_report(**given)


@main.command(short_help="Print the JSON Schema of the settings.")
@click.option("--gateway", "of_gateway", is_flag=True, help="Of a gateway's settings instead of a job's.")
def schema(*, of_gateway: bool) -> None:
    r"""Print the JSON Schema of the settings, for editors that complete and check.

    \b
    Examples:
      quiltstream schema > quiltstream.schema.json
    """
    from .console import print_json

    if of_gateway:
        from .commands.schema import gateway_schema

        print_json(gateway_schema())
    else:
        from .commands.schema import settings_schema

        print_json(settings_schema())


def program() -> None:
    """The program ``quiltstream``: :data:`main` in a process of its own, which leaves no core file."""
    from ..schemas.files import keep_memory_private

    leave_at_exit()
    keep_memory_private()
    for stream in (sys.stdout, sys.stderr):
        # of a terminal that lacks a character: what is done must not end with an error for that
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    main()


if __name__ == "__main__":
    program()
