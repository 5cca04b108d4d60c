"""Counts and the file of rejects: numbers and no names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.metrics import Dropped, RejectFile, Tally


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


def test_the_file_of_rejects_is_rotated_and_bounded(tmp_path: Path) -> None:
    file = RejectFile(tmp_path / "rejects.jsonl", 1_000)
    for number in range(1_000):
        file.add(Dropped.TOO_LARGE, b"m%d" % number, number)
    file.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 5
    assert all(path.stat().st_size <= 1_000 for path in files)


def test_an_unwritable_rejects_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"forward\.rejects .*: cannot be written"):
        RejectFile(tmp_path)
