"""Counts, their page, and the file of rejects: numbers and no names."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.metrics import Dropped, MetricsPage, RejectFile, Tally


def test_every_count_is_in_prometheus_text_with_help_and_type() -> None:
    tally = Tally(received=5, in_flight=2)
    tally.dropped[Dropped.TOO_LARGE] = 3
    text = tally.prometheus()
    assert "quiltstream_gateway_received_total 5\n" in text
    assert "quiltstream_gateway_in_flight 2\n" in text
    assert 'quiltstream_gateway_dropped_total{reason="too-large"} 3\n' in text
    names = {name for name in vars(tally) if name != "dropped"}
    assert {n for n in names if not re.search(rf"^quiltstream_gateway_{n}(_total)? \d+$", text, re.MULTILINE)} == set()
    values = re.findall(r"^(\w+)(?:\{.*\})? \d+$", text, re.MULTILINE)
    assert all(f"# TYPE {name} " in text and f"# HELP {name} " in text for name in values)


def test_the_log_line_names_only_nonzero_counts() -> None:
    tally = Tally(received=10, acknowledged=9, in_flight=1, reconnects=2)
    tally.dropped[Dropped.RETAINED] = 4
    assert tally.line(0, 2.0) == ("received 10 (5/s), acknowledged 9, in flight 1, reconnects 2, dropped as retained 4")


def test_the_page_is_on_the_loopback_address_and_at_one_path() -> None:
    tally = Tally()
    page = MetricsPage(0, tally.prometheus)
    try:
        tally.received = 7
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "quiltstream_gateway_received_total 7\n" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{page.port}/", timeout=10)
        caught.value.close()
        assert caught.value.code == 404
        assert page._server.server_address[0] == "127.0.0.1"
    finally:
        page.close()


def test_a_reader_that_sends_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quiltstream.pipelines.gateway.metrics._READER_S", 0.05)
    page = MetricsPage(0, lambda: "x" * 10_000_000)
    try:
        with socket.create_connection(("127.0.0.1", page.port), 10) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", page.port), 10) as stalled:
            stalled.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            time.sleep(0.5)
            assert sum(map(len, iter(lambda: stalled.recv(1 << 20), b""))) < 10_000_000
    finally:
        page.close()
    assert capfd.readouterr().err == ""


def test_a_reader_that_goes_away_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    page = MetricsPage(0, lambda: "x" * 1_000_000)
    try:
        for request in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", page.port), 10) as reader:
                reader.sendall(request)
                # a reset instead of an orderly end
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=10) as answer:
            assert len(answer.read()) == 1_000_000
    finally:
        page.close()
    assert capfd.readouterr().err == ""


def test_an_occupied_port_is_reported_by_its_setting() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(CommandError, match=r"metrics\.port \d+: cannot be listened on"):
            MetricsPage(int(one.getsockname()[1]), str)


def test_one_topic_has_one_digest_in_a_run_and_another_in_the_next(tmp_path: Path) -> None:
    first, second = RejectFile(tmp_path / "a"), RejectFile(tmp_path / "b")
    for file in (first, second):
        file.add(Dropped.TOO_LARGE, b"meters/m1", 5)
        file.add(Dropped.TOO_LARGE, b"meters/m1", 6)
        file.add(Dropped.TOO_LARGE, b"meters/m2", 7)
        file.close()
    digests = [
        [json.loads(line)["topic"] for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        for name in "ab"
    ]
    assert all(one[0] == one[1] != one[2] for one in digests)
    assert not set(digests[0]) & set(digests[1])


def test_the_file_of_rejects_is_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiltstream.pipelines.gateway.metrics._BYTES", 1_000)
    file = RejectFile(tmp_path / "rejects.jsonl")
    for number in range(1_000):
        file.add(Dropped.TOO_LARGE, b"m%d" % number, number)
    file.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 5
    assert all(path.stat().st_size <= 1_000 for path in files)


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    file = RejectFile(None)
    file.add(Dropped.TOO_LARGE, b"m", 1)
    file.close()
    assert not list(tmp_path.iterdir())


def test_an_unwritable_rejects_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"forward\.rejects .*: cannot be written"):
        RejectFile(tmp_path)
