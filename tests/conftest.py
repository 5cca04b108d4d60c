"""Fixtures that every test folder shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from . import forked
from .examined import Tally
from .reflection import remember_reflection
from .tiers import TIER, left_out, on_lowest_beam, shorten

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

#: Whether this worker collects in the other direction, so that two of them do not compile the same files.
BACKWARDS = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"

# how long an example takes, or its making, is the machine's matter
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_runtest_setup() -> None:
    """Beam is imported by the tests that need it."""
    remember_reflection()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """End-to-end tests are collected where they are asked for: else all of them would be read to be skipped."""
    asked = "e2e" in f"{config.option.markexpr} {config.args}" or os.environ.get("QUILTSTREAM_REQUIRE_SERVERS") == "1"
    return True if collection_path == E2E and not asked and not config.option.collectonly else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is collected stays to the end: the search for garbage need not go through it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # by Python's own thresholds the search takes a thirteenth of the processor's time
        gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """See ``BACKWARDS``."""
    report = yield
    if BACKWARDS and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """On a push, leave out what runs on another or nightly, unless it is asked for by a word or its name."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parts)  # all workers must have the same order
    for item in items:
        shorten(item)
        if on_lowest_beam(item):
            item.add_marker(pytest.mark.lower)
    yield
    if TIER == "push" and not config.option.keyword:
        out = left_out(items, config.args)
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=list(out))


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
