"""The page of metrics: its text, and its server."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.metrics_page import MetricFamily, metrics_text, serve_metrics


def test_backslash_line_feed_and_quote_are_escaped_as_prometheus_unescapes_them() -> None:
    family = MetricFamily("loss", "gauge", 'of a "domain"\\\n', [({"domain": 'a"b\\\n', "query": "q"}, 1e-9)])
    assert metrics_text([family]) == (
        '# HELP loss of a "domain"\\\\\\n\n# TYPE loss gauge\nloss{domain="a\\"b\\\\\\n",query="q"} 1e-09\n'
    )
    assert metrics_text([]) == ""


@pytest.mark.night
def test_the_page_is_on_the_loopback_address_and_at_one_path() -> None:
    pages = iter(["received 5\n", "received 7\n"])
    with serve_metrics(0, lambda: next(pages), "metrics.port") as port:
        for page in ("received 5\n", "received 7\n"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?now", timeout=10) as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                assert answer.read().decode() == page
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        with caught.value as refused:
            assert (refused.code, refused.read()) == (404, b"the counts are at /metrics\n")
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.2", port)) != 0
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)) != 0


def test_an_occupied_port_is_reported_by_its_setting() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        page = serve_metrics(int(one.getsockname()[1]), str, "metrics.port")
        with pytest.raises(CommandError, match=r"metrics\.port \d+: cannot be listened on"), page:
            pytest.fail("it was to be refused")
