"""The counts for Prometheus: a page on the loopback address and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..failures import CommandError

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


__all__ = ["MetricsPage"]
