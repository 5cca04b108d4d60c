"""Fixtures that every test folder shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from . import forked
from .examined import Tally
from .reflection import remember_reflection
from .tiers import TIER, left_out, on_lowest_beam, shorten

ROOT = Path(__file__).resolve().parent.parent

# how long an example takes, or its making, is the machine's matter
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_runtest_setup() -> None:
    """Beam is imported by the tests that need it."""
    remember_reflection()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a push, leave out what runs nightly, unless it is asked for by a word or its whole name."""
    for item in items:
        shorten(item)
        if on_lowest_beam(item):
            item.add_marker(pytest.mark.lower)
    if TIER == "push" and not config.option.keyword:
        out = set(left_out(items, [word for word in config.args if "::" in word]))
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
