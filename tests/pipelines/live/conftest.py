"""A Flink cluster's REST API for live jobs, and a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiltstream.pipelines.live import flink

from ..jobs import Job
from ..live_jobs import made
from .flink_api import FlinkApi, flink_api


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlinkApi]:
    """A cluster's REST API; nobody waits long for it."""
    monkeypatch.setattr(flink, "_PAUSE_S", 0.01)
    monkeypatch.setattr(flink, "_CANCEL_S", 0.5)
    monkeypatch.setattr(flink, "_AWAY_S", 0.3)
    with flink_api() as found:
        yield found


@pytest.fixture
def one(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    """A live job that ends."""
    request.getfixturevalue("ending")
    return made(tmp_path)
