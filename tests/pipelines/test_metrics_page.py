"""The page of metrics, and its server."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.core import GaugeMetricFamily

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.metrics_page import serve_metrics


def test_the_page_is_on_the_loopback_address_and_tells_only_what_is_collected() -> None:
    losses = iter([0.25, 0.5])

    def collect() -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("loss", "of a domain", value=next(losses))]

    with serve_metrics(0, collect, "metrics.port") as port:
        for loss in (0.25, 0.5):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                assert answer.read().decode() == f"# HELP loss of a domain\n# TYPE loss gauge\nloss {loss}\n"
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.2", port)) != 0
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)) != 0


def test_an_occupied_port_is_reported_by_its_setting() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        page = serve_metrics(int(one.getsockname()[1]), list, "metrics.port")
        with pytest.raises(CommandError, match=r"metrics\.port \d+: cannot be listened on"), page:
            pytest.fail("it was to be refused")
