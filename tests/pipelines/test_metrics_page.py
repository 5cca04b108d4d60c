"""The page of metrics: its text, and its server."""

from __future__ import annotations

import socket
import struct
import time
import urllib.error
import urllib.request

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.metrics_page import MetricFamily, MetricsServer, metrics_text, serve_metrics


def test_backslash_line_feed_and_quote_are_escaped_as_prometheus_unescapes_them() -> None:
    family = MetricFamily("loss", "gauge", 'of a "domain"\\\n', [({"domain": 'a"b\\\n', "query": "q"}, 1e-9)])
    assert metrics_text([family]) == (
        '# HELP loss of a "domain"\\\\\\n\n# TYPE loss gauge\nloss{domain="a\\"b\\\\\\n",query="q"} 1e-09\n'
    )
    assert metrics_text([]) == ""


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


def test_a_server_listens_on_the_address_that_it_is_given() -> None:
    with MetricsServer(0, str, address="127.0.0.2") as server:
        assert server.server_address == ("127.0.0.2", server.server_port)


def test_a_reader_that_sends_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quiltstream.pipelines.metrics_page._READER_S", 0.05)
    with serve_metrics(0, lambda: "x" * 10_000_000, "metrics.port") as port:
        with socket.create_connection(("127.0.0.1", port), 10) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), 10) as stalled:
            stalled.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            time.sleep(0.5)
            assert sum(map(len, iter(lambda: stalled.recv(1 << 20), b""))) < 10_000_000
    assert capfd.readouterr().err == ""


def test_a_reader_that_goes_away_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with serve_metrics(0, lambda: "x" * 1_000_000, "metrics.port") as port:
        for request in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 10) as reader:
                reader.sendall(request)
                # a reset instead of an orderly end
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert len(answer.read()) == 1_000_000
    assert capfd.readouterr().err == ""


def test_an_occupied_port_is_reported_by_its_setting() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        page = serve_metrics(int(one.getsockname()[1]), str, "metrics.port")
        with pytest.raises(CommandError, match=r"metrics\.port \d+: cannot be listened on"), page:
            pytest.fail("it was to be refused")
