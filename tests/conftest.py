"""Fixtures that every test folder shares."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from . import forked
from .examined import Tally

ROOT = Path(__file__).resolve().parent.parent
E2E = ROOT / "tests" / "e2e"

# Modules are compiled once and kept, whatever the environment says: each worker, and each process that a test begins,
# would else compile the package and the tests for itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The workers have the processors; of threads of their own that multiply matrices, most wait, and they wait in a loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# nohup has hangups ignored, and what the tests start would ignore those that they send
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# how long an example takes, or its making, is the machine's matter
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """End-to-end tests are collected where they are asked for: else all of them would be read to be skipped."""
    asked = "e2e" in f"{config.option.markexpr} {config.args}" or os.environ.get("QUILTSTREAM_REQUIRE_SERVERS") == "1"
    return True if collection_path == E2E and not asked else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what was skipped to a file, where one is named: CI runs it again where what it needs is there."""
    if (
        report.skipped
        and (skipped := os.environ.get("QUILTSTREAM_SKIPPED"))
        and not os.environ.get("PYTEST_XDIST_WORKER")
    ):
        with Path(skipped).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


def pytest_sessionfinish() -> None:
    """End the process that forks."""
    forked.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout the tests run in."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The large public data sets, which are not part of the repository."""
    folder = Path(os.environ.get("QUILTSTREAM_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data sets: {folder} is absent (set QUILTSTREAM_SHARED_DATA to their folder)")
    return folder


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Takes what was found after a fault."""
    return Tally(request)
