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

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from quiltstream.pipelines.commands.ledger import address_of, settings_of
from quiltstream.pipelines.metrics_page import serve_metrics
from quiltstream.schemas.errors import QuiltstreamError
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.secrets import SecretError
from quiltstream.schemas.slots import SlotGrid
from quiltstream.store.answers import DomainSummary
from quiltstream.store.errors import StoreError
from quiltstream.store.store import Store

#: Seconds for which an answer is repeated instead of asking the ledger again, and that a look waits for it.
KEPT_S, WAIT_S = 10.0, 5.0

#: The arguments: this program, a ledger and where to listen.
WORDS = 3
USAGE = "give a ledger and a port, or ADDRESS:PORT: ledger_metrics.py settings.yaml 9465"

_DOMAIN, _QUERY = ("domain",), ("domain", "query")

#: Labels and help of each metric.
METRICS = {
    "up": ((), "Whether the ledger could be looked at"),
    "budget_epsilon": (_DOMAIN, "Budget of the domain in force"),
    "loss_epsilon": (_DOMAIN, "Loss of the domain by all windows charged so far"),
    "reserved_loss_epsilon": (_DOMAIN, "Loss of the domain when everything promised is published"),
    "history_lost": (_DOMAIN, "Whether charges are missing from the account, by an operator's word"),
    "windows_charged": (_QUERY, "Windows charged"),
    "windows_refused": (_QUERY, "Windows that the budget refused"),
    "windows_published": ((*_QUERY, "completeness"), "Windows with rows, by what these say of their completeness"),
    "admitted_until_seconds": (_QUERY, "Windows that end after this are refused; absent where none will be"),
    "window_due_seconds": (_QUERY, "When the first window that is not on record ends, seconds since 1970"),
}

Sample = tuple[str, tuple[str, ...], float]
"""A metric, the values of its labels, and its own."""


class LedgerLook:
    """Looks at a ledger: a settings file, a URL, or a SQLite file.

    Raises:
        CommandError: there is no such file.
        SettingsError: the settings, or the URL, cannot be used.
    """

    def __init__(self, ledger: str) -> None:
        self._address = address_of(ledger)
        self._address.check_driver()
        self._ledger, self._run = ledger, _query_of(ledger)
        self._starts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._found, self._until = list[Sample](), -math.inf

    def collect(self) -> Iterator[Metric]:
        """The page; a ledger that is away leaves ``up 0`` and nothing else."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._found, self._until = self._look(), time.monotonic() + KEPT_S
            found = self._found
        for name, (labels, about) in METRICS.items():
            if samples := [sample for sample in found if sample[0] == name]:
                family = GaugeMetricFamily(f"quiltstream_ledger_{name}", about, labels=labels)
                for _, values, value in samples:
                    family.add_metric(values, value)
                yield family

    def _look(self) -> list[Sample]:
        with suppress(SettingsError):  # a file that is being edited
            self._run = _query_of(self._ledger)
        try:
            with Store(self._address, wait=WAIT_S) as store:
                said = [store.summary(name) for name in store.domains()]
                return [("up", (), 1.0), *(sample for one in said for sample in self._of(store, one))]
        except (StoreError, SecretError) as error:
            sys.stderr.write(f"the ledger cannot be looked at ({type(error).__name__})\n")
            return [("up", (), 0.0)]

    def _of(self, store: Store, said: DomainSummary) -> Iterator[Sample]:
        yield "budget_epsilon", (said.name,), said.budget
        yield "loss_epsilon", (said.name,), said.loss
        yield "reserved_loss_epsilon", (said.name,), said.reserved_loss
        yield "history_lost", (said.name,), float(said.history_lost)
        published = store.completeness(said.name)
        for query in said.queries:
            key = (said.name, query.name)
            yield "windows_charged", key, float(query.charged)
            yield "windows_refused", key, float(query.refused)
            for completeness, windows in published.get(query.name, {}).items():
                yield "windows_published", (*key, completeness), float(windows)
            held = store.registered(*key)
            if held is None or self._run not in {None, key}:
                continue
            grid = SlotGrid(**held.domain.grid)
            if query.admitted_stop is not None:
                yield "admitted_until_seconds", key, grid.time_of(query.admitted_stop) / 1e6
            first = next(store.missing(held, start=self._starts.get(key)), None)
            if first is not None:
                self._starts[key] = first[0].start
                yield "window_due_seconds", key, grid.time_of(first[0].start + held.query.schedule.size) / 1e6


def _query_of(ledger: str) -> tuple[str, str] | None:
    """Domain and query of a settings file; ``None`` of a ledger."""
    settings = settings_of(ledger)
    return None if settings is None else (settings.domain, settings.query)


def main(arguments: list[str]) -> int:
    """Serve the page until the process is ended; the exit code where it cannot."""
    address, _, port = arguments[-1].rpartition(":")
    if len(arguments) != WORDS or not port.isdecimal() or int(port) >= 1 << 16:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        look = LedgerLook(arguments[1])
        with serve_metrics(int(port), look.collect, "port", address or "127.0.0.1"):
            # the first process of a container ignores a signal that it does not ask for
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            threading.Event().wait()
    except QuiltstreamError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
