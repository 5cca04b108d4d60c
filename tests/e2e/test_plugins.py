"""The example of a plug-in, installed beside the package, on a real Redis: its contract, and live jobs on Prism."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import redis

from ..installing import ROOT, install_redis_streams
from .live_bench import NAMES, Bench, readings, truth
from .prism import prism_arguments
from .redis_server import RedisServer

WINDOWS = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    install_redis_streams(folder)
    return folder


def test_the_example_meets_the_contract_on_a_real_server(redis_server: RedisServer, installed: Path) -> None:
    command = [Path(sysconfig.get_path("scripts")) / "pytest", "-c", os.devnull, "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "--import-mode=importlib", ROOT / "examples" / "redis-streams" / "test_contract.py"]
    environment = os.environ | {"PYTHONPATH": str(installed), "REDIS_URL": f"{redis_server.url}/9"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


class Streams:
    """Two streams, the stream of the rows, and a job over them."""

    def __init__(self, server: RedisServer, bench: Bench) -> None:
        self.server, self.bench = server, bench
        self.client: Any = redis.Redis.from_url(server.url)
        self.client.flushall()
        url = {"url": server.url}
        bench.settings(
            source={"redis-streams": {**url, "streams": ["even", "odd"]}},
            sink={"redis-streams": {**url, "stream": "released", "resend": 4}},
            rejects={"redis-streams": {**url, "stream": "rejected"}},
            windows=WINDOWS,
        )

    def send(self, frame: pl.DataFrame) -> None:
        adding = self.client.pipeline(transaction=False)
        for row in frame.to_dicts():
            key = "odd" if NAMES.index(row["series"]) % 2 else "even"
            adding.xadd(key, {"payload": json.dumps(row)})
        adding.execute()

    def check(self, frame: pl.DataFrame, windows: int) -> None:
        """The record is the truth, and the stream has the record: each row by its name, the same however often."""
        assert self.bench.counts() == truth(frame, range(windows))
        sunk: dict[str, set[bytes]] = {}
        for _, fields in self.client.xrange("released"):
            sunk.setdefault(fields[b"release_id"].decode(), set()).add(fields[b"payload"])
        assert {len(each) for each in sunk.values()} == {1}
        counts = {name: json.loads(next(iter(each)))["counts"] for name, each in sunk.items()}
        assert counts == {row.release_id: list(row.counts) for row in self.bench.rows()}


@pytest.fixture
def streams(tmp_path: Path, prism: Path, installed: Path, redis_server: RedisServer) -> Any:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": str(installed)}
    bench = Bench(tmp_path / "job", prism_arguments(prism), environment)
    yield Streams(redis_server, bench)
    bench.close()


def test_every_reading_counts_once_though_server_and_job_are_killed(streams: Streams) -> None:
    bench, frame = streams.bench, readings(4.5, seed=31).sort("time")
    third = len(frame) // 3
    job = bench.start()
    streams.send(frame[:third])
    streams.client.xadd("odd", {"payload": b"{half"})
    bench.wait_for(1)
    streams.server.kill()
    streams.server.start()
    streams.send(frame[third : 2 * third])
    # twice, as producers do that are not sure
    streams.send(frame[2 * third - 50 : 2 * third])
    bench.wait_for(2)
    job.kill()
    before = bench.on_record()
    streams.send(frame[2 * third :])
    again = bench.run()
    assert again.process.returncode == 0, again.err.read_text(encoding="utf-8")
    streams.check(frame, 4)
    assert before.items() <= bench.on_record().items()
    rejected = [json.loads(fields[b"payload"]) for _, fields in streams.client.xrange("rejected")]
    assert {(one["source"], one["size"]) for one in rejected} == {("odd", 5)}
    assert "half" not in str(rejected)


def test_windows_with_removed_entries_are_marked_unavailable(streams: Streams) -> None:
    bench, frame = streams.bench, readings(4.5, seed=32).sort("time")
    streams.send(frame)
    # the names of entries are of today, so every window began before what was lost
    streams.client.xtrim("even", maxlen=100, approximate=False)
    done = bench.run()
    assert done.process.returncode == 0, done.err.read_text(encoding="utf-8")
    assert {row.completeness for row in bench.rows()} == {"unavailable"}
