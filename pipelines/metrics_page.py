"""A page for Prometheus, by prometheus_client (the extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import CommandError

if TYPE_CHECKING:
    from prometheus_client import Metric


@contextmanager
def serve_metrics(
    port: int, collect: Callable[[], Iterable[Metric]], setting: str, address: str = "127.0.0.1"
) -> Generator[int]:
    """Serve ``/metrics`` while the block runs; the port, a free one for 0.

    Args:
        port: where to listen.
        collect: what is told, at each scrape.
        setting: names the port in messages.
        address: whose port; the loopback address if left out.

    Raises:
        CommandError: the port is taken, or not to be had, or prometheus_client is not here.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - an extra
        from prometheus_client.registry import Collector  # noqa: PLC0415 - as above
    except ImportError:
        raise CommandError(f"{setting} is served by prometheus_client: install quiltstream[metrics]") from None

    class Page(Collector):
        def collect(self) -> Iterable[Metric]:
            return collect()

    # nothing of this process itself is told
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page())
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CommandError(f"{setting} {port}: cannot be listened on ({reason}); choose another") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
