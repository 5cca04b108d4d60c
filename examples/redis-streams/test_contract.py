"""The contract of plug-ins on a real server: ``REDIS_URL=redis://localhost:6379/9 pytest``; the database is emptied."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from quiltstream.pipelines.plugin_contract import SinkContract, SourceContract

URL = os.environ["REDIS_URL"]


@pytest.fixture(autouse=True)
def _emptied():
    redis.Redis.from_url(URL).flushdb()


class TestSource(SourceContract):
    name = "redis-streams"
    client = redis.Redis.from_url(URL)

    def section(self) -> dict[str, Any]:
        return {"url": URL, "streams": ["meters"]}

    def send(self, payloads: Sequence[bytes]) -> None:
        for one in payloads:
            self.client.xadd("meters", {"payload": one})

    def forget(self) -> None:
        self.client.xtrim("meters", maxlen=0, approximate=False)

    def unreachable(self) -> dict[str, Any]:
        return {"url": "redis://127.0.0.1:1", "streams": ["meters"]}

    def test_a_stream_that_was_made_anew_is_told(self) -> None:
        self.send([self.message(number) for number in range(5)])
        reader = self.made().reader(0, "")
        first = reader.read()
        assert first is not None
        assert first.lost_us is None
        self.client.delete("meters")
        self.send([self.message(5)])
        again = reader.read()
        assert again is not None
        assert again.rows == 1
        assert again.lost_us is not None


class TestSink(SinkContract):
    name = "redis-streams"

    def section(self) -> dict[str, Any]:
        return {"url": URL, "stream": "released"}

    def received(self) -> list[tuple[bytes | None, bytes]]:
        entries: Any = redis.Redis.from_url(URL).xrange("released")
        return [(fields.get(b"release_id"), fields[b"payload"]) for _, fields in entries]
