"""Counters of the gateway, for the log and for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..errors import CommandError

__all__ = ["Dropped", "MetricsPage", "Tally"]


class Dropped(str, Enum):
    """Why a message goes no further."""

    TOO_LARGE = "too-large"
    RETAINED = "retained"
    BAD_TOPIC = "bad-topic"
    BAD_PROPERTIES = "bad-properties"
    REFUSED = "refused-by-next-hop"
    NO_RELEASE = "no-release"
    CHANGED = "changed-release"


@dataclass
class Tally:
    """Counts since the start; each is written by one thread.

    Attributes:
        received: messages from the broker.
        acknowledged: those acknowledged to it.
        duplicates: those it flagged as perhaps sent before.
        unconfirmed: those published with QoS 0, which are never repeated.
        stale: those that the next hop had after the connection was gone; the broker sends them again.
        in_flight: those that the next hop does not have yet, now.
        bytes_in_flight: bytes of these, about.
        reconnects: connections after the first.
        sessions_lost: connections after the first for which the broker had kept nothing.
        sent: releases that the broker has.
        known: releases that were not sent, because they had been.
        dropped: what goes no further, by reason.
    """

    received: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    unconfirmed: int = 0
    stale: int = 0
    in_flight: int = 0
    bytes_in_flight: int = 0
    reconnects: int = 0
    sessions_lost: int = 0
    sent: int = 0
    known: int = 0
    dropped: Counter[Dropped] = field(default_factory=Counter[Dropped])

    def line(self, before: int, seconds: float) -> str:
        """The counts in one line.

        Args:
            before: messages received up to the line before.
            seconds: since then.

        >>> Tally(received=1200, acknowledged=1190, in_flight=10).line(200, 10.0)
        'received 1,200 (100/s), acknowledged 1,190, in flight 10'
        """
        rate = (self.received - before) / seconds if seconds > 0 else 0.0
        parts = [f"received {self.received:,} ({rate:,.0f}/s), acknowledged {self.acknowledged:,}"]
        parts.append(f"in flight {self.in_flight:,}")
        more = [
            ("duplicates", self.duplicates),
            ("unconfirmed", self.unconfirmed),
            ("reconnects", self.reconnects),
            ("sessions lost", self.sessions_lost),
            ("releases sent", self.sent),
            ("releases known", self.known),
            *((f"dropped as {reason.value}", count) for reason, count in sorted(self.dropped.items())),
        ]
        return ", ".join([*parts, *(f"{name} {count:,}" for name, count in more if count)])

    def prometheus(self) -> str:
        """The counts in Prometheus' text format."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        for name, kind, about in _METRICS:
            full = f"quiltstream_gateway_{name}{'_total' if kind == 'counter' else ''}"
            yield f"# HELP {full} {about}"
            yield f"# TYPE {full} {kind}"
            yield f"{full} {getattr(self, name)}"
        full = "quiltstream_gateway_dropped_total"
        yield f"# HELP {full} Messages and releases that go no further"
        yield f"# TYPE {full} counter"
        for reason in Dropped:
            yield f'{full}{{reason="{reason.value}"}} {self.dropped[reason]}'


_METRICS = (
    ("received", "counter", "Messages from the broker"),
    ("acknowledged", "counter", "Messages acknowledged to the broker"),
    ("duplicates", "counter", "Messages that the broker flagged as perhaps sent before"),
    ("unconfirmed", "counter", "Messages published with QoS 0"),
    ("stale", "counter", "Messages that the next hop had when their connection was gone"),
    ("in_flight", "gauge", "Messages that the next hop does not have yet"),
    ("bytes_in_flight", "gauge", "Bytes of these, about"),
    ("reconnects", "counter", "Connections to the broker after the first"),
    ("sessions_lost", "counter", "Connections for which the broker had kept no session"),
    ("sent", "counter", "Releases that the broker has"),
    ("known", "counter", "Releases that were not sent again"),
)


_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Serves ``/metrics`` until it is closed.

    Args:
        port: of the loopback address; 0 takes a free one.
        text: what to serve.
        setting: that names the port.

    Raises:
        CommandError: the port is taken, or not to be had.
    """

    def __init__(self, port: int, text: Callable[[], str], setting: str = "metrics.port") -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = (text() if found else "the counts are at /metrics\n").encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base class calls it so
                """Say nothing of who asked."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise CommandError(
                f"{setting} {port}: cannot be listened on ({error.strerror or type(error).__name__}); choose another"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="quiltstream-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
