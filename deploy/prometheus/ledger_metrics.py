"""What the ledger of record says of budgets and windows, as a page for Prometheus.

Beam's distributions are no numbers to Flink's Prometheus reporter, which shows 0 for each of them; so the loss is asked
for where it is kept. Everything here may be published, as the ledger's entries and rows may: it goes by schedules, by
how their source was read and by when windows came out, not by readings.

    python ledger_metrics.py settings.yaml 9465
    python ledger_metrics.py settings.yaml 0.0.0.0:9465

The first argument is a settings file that names a ledger, a ledger's URL, or a SQLite file. With settings it tells of
their query alone which window is due and until when windows are admitted: an earlier one may be run no more. The second
is a port of the loopback address, or an address to listen on with its port: 0.0.0.0 in a container, whose network says
who may ask.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from quiltstream.pipelines.commands.ledger import address_of, settings_of
from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.metrics_page import MetricFamily, MetricsServer, metrics_text
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.slots import SlotGrid
from quiltstream.store.answers import DomainSummary
from quiltstream.store.errors import StoreError
from quiltstream.store.store import Store

#: Seconds for which an answer is repeated instead of asking the ledger again.
KEPT_S = 10.0

#: Seconds that a look waits for a ledger that is away.
WAIT_S = 5.0

#: The arguments: this program, a ledger and where to listen.
WORDS = 3

LAST_PORT = 65_535

Sample = tuple[dict[str, str], float]

METRICS = {
    "up": "Whether the ledger could be looked at",
    "budget_epsilon": "Budget of the domain in force",
    "loss_epsilon": "Loss of the domain by all windows charged so far",
    "reserved_loss_epsilon": "Loss of the domain when everything promised is published",
    "history_lost": "Whether charges are missing from the account, by an operator's word",
    "windows_charged": "Windows charged",
    "windows_refused": "Windows that the budget refused",
    "windows_published": "Windows with rows, by what these say of their completeness",
    "admitted_until_seconds": "Windows that end after this are refused, seconds since 1970; absent where none will be",
    "window_due_seconds": "When the first window that is not on record ends, seconds since 1970",
}


class LedgerLook:
    """Looks at a ledger, and writes down what it says.

    Args:
        ledger: a settings file, a URL, or a SQLite file.

    Raises:
        CommandError: there is no such file.
        SettingsError: the settings cannot be used.
        StoreError: the URL cannot be used.
    """

    def __init__(self, ledger: str) -> None:
        self._address = address_of(ledger)
        self._address.check_driver()
        self._ledger, self._run = ledger, _query_of(ledger)
        self._starts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._text, self._until = "", -math.inf

    def text(self) -> str:
        """The page; a ledger that is away leaves ``up 0`` and nothing else."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = page(self._look())
                self._until = time.monotonic() + KEPT_S
            return self._text

    def _look(self) -> dict[str, list[Sample]]:
        with suppress(SettingsError):  # a file that is being edited
            self._run = _query_of(self._ledger)
        try:
            with Store(self._address, wait=WAIT_S) as store:
                found: dict[str, list[Sample]] = {"up": [({}, 1.0)]}
                for name in store.domains():
                    said = store.summary(name)
                    for metric, sample in [*_account(said), *self._windows(store, said)]:
                        found.setdefault(metric, []).append(sample)
                return found
        except StoreError as error:
            sys.stderr.write(f"the ledger cannot be looked at ({type(error).__name__})\n")
            return {"up": [({}, 0.0)]}

    def _windows(self, store: Store, said: DomainSummary) -> Iterator[tuple[str, Sample]]:
        published = store.completeness(said.name)
        for query in said.queries:
            labels = {"domain": said.name, "query": query.name}
            yield "windows_charged", (labels, float(query.charged))
            yield "windows_refused", (labels, float(query.refused))
            for completeness, windows in published.get(query.name, {}).items():
                yield "windows_published", (labels | {"completeness": completeness}, float(windows))
            held = store.registered(said.name, query.name)
            key = (said.name, query.name)
            if held is None or self._run not in {None, key}:
                continue
            grid = SlotGrid(**held.domain.grid)
            if query.admitted_stop is not None:
                yield "admitted_until_seconds", (labels, grid.time_of(query.admitted_stop) / 1e6)
            first = next(store.missing(held, start=self._starts.get(key)), None)
            if first is not None:
                self._starts[key] = first[0].start
                yield "window_due_seconds", (labels, grid.time_of(first[0].start + held.query.schedule.size) / 1e6)


def _query_of(ledger: str) -> tuple[str, str] | None:
    """Domain and query of a settings file; ``None`` of a ledger."""
    settings = settings_of(ledger)
    return None if settings is None else (settings.domain, settings.query)


def _account(said: DomainSummary) -> Iterator[tuple[str, Sample]]:
    labels = {"domain": said.name}
    yield "budget_epsilon", (labels, said.budget)
    yield "loss_epsilon", (labels, said.loss)
    yield "reserved_loss_epsilon", (labels, said.reserved_loss)
    yield "history_lost", (labels, float(said.history_lost))


def page(found: dict[str, list[Sample]]) -> str:
    """The metrics with samples, in Prometheus' text format.

    >>> print(page({"up": [({}, 1.0)]}), end="")
    # HELP quiltstream_ledger_up Whether the ledger could be looked at
    # TYPE quiltstream_ledger_up gauge
    quiltstream_ledger_up 1.0
    """
    return metrics_text(
        MetricFamily(f"quiltstream_ledger_{name}", "gauge", about, found[name])
        for name, about in METRICS.items()
        if name in found
    )


def address_and_port(text: str) -> tuple[str, int] | None:
    """Where to listen; the loopback address if only a port is given, and ``None`` if there is none.

    >>> address_and_port("9465"), address_and_port("0.0.0.0:9465"), address_and_port("port")
    (('127.0.0.1', 9465), ('0.0.0.0', 9465), None)
    """
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > LAST_PORT:
        return None
    return address or "127.0.0.1", int(port)


def main(arguments: list[str]) -> int:
    """Serve the page until the process is ended; the exit code where it cannot."""
    where = address_and_port(arguments[-1])
    if len(arguments) != WORDS or where is None:
        sys.stderr.write("give a ledger and a port, or ADDRESS:PORT: ledger_metrics.py settings.yaml 9465\n")
        return 2
    try:
        look = LedgerLook(arguments[1])
    except (CommandError, SettingsError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    address, port = where
    try:
        server = MetricsServer(port, look.text, address=address, what="the ledger's account is")
    except OSError as error:
        sys.stderr.write(f"cannot listen on {address}:{port} ({error.strerror or type(error).__name__})\n")
        return 2
    # the first process of a container ignores a signal that it does not ask for
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
