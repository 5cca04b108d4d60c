"""Metrics as Prometheus reads them: families of samples, their text, and the server of ``/metrics``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from .errors import CommandError

#: Seconds that a reader of the page may take to send a request or to take in the answer.
_READER_S = 10.0

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric with all its samples."""

    name: str  # in full, with ``_total`` if it is a counter
    kind: Literal["counter", "gauge"]  # its type
    about: str  # its help
    samples: Sequence[tuple[Mapping[str, str], float]]  # labels and value of each

    @classmethod
    def single(cls, name: str, kind: Literal["counter", "gauge"], about: str, value: float) -> MetricFamily:
        """A metric with one sample and no labels."""
        return cls(name, kind, about, [({}, value)])


def metrics_text(families: Iterable[MetricFamily]) -> str:
    r"""Prometheus' text format.

    >>> loss = MetricFamily("loss", "gauge", "Loss of a domain", [({"domain": 'a"b'}, 0.5), ({"domain": "c"}, 0.25)])
    >>> print(metrics_text([MetricFamily.single("sent_total", "counter", "Releases sent", 3), loss]), end="")
    # HELP sent_total Releases sent
    # TYPE sent_total counter
    sent_total 3
    # HELP loss Loss of a domain
    # TYPE loss gauge
    loss{domain="a\"b"} 0.5
    loss{domain="c"} 0.25
    """
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {_escaped(family.about)}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_labels(labels)} {value!r}" for labels, value in family.samples]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ((name, _escaped(value).replace('"', r"\"")) for name, value in labels.items())
    return "{" + ",".join(f'{name}="{value}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


class MetricsServer(ThreadingHTTPServer):
    """Answers ``/metrics`` with a text, and any other path with 404.

    Port 0 takes a free one. The answer to other paths names ``what`` is in the page.

    Raises:
        OSError: the port is taken, or not to be had.
    """

    daemon_threads = True

    def __init__(
        self, port: int, text: Callable[[], str], *, address: str = "127.0.0.1", what: str = "the counts are"
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _READER_S

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = (text() if found else f"{what} at /metrics\n").encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base class calls it so
                """Log no request."""

        super().__init__((address, port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, but none of a reader that went away or reads nothing."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


@contextmanager
def serve_metrics(port: int, text: Callable[[], str], setting: str) -> Generator[int]:
    """Serve ``/metrics`` on the loopback address while the block runs; the port, a free one for 0.

    ``setting`` names the port.

    Raises:
        CommandError: the port is taken, or not to be had.
    """
    try:
        server = MetricsServer(port, text)
    except OSError as error:
        raise CommandError(
            f"{setting} {port}: cannot be listened on ({error.strerror or type(error).__name__}); choose another"
        ) from None
    threading.Thread(target=server.serve_forever, name="quiltstream-metrics", daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
