"""Every schedule of jobs that share a ledger keeps what is promised, and planted errors are found.

What is interleaved is the store's own code on SQLite. A server's locks are tried by the racing processes of the
contracts; here they would be a model of them.

A schedule takes some milliseconds, nearly all of them in the store and SQLAlchemy: 10,000 a night, some on a push.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from ..depth import NIGHT
from ..present import present
from .interleaver import Scenario, Stage, explore
from .scenarios import BELIEFS, BUDGET, FIRST, RACE, ROSTERS

#: How many of every hundred schedules a scenario gets: the dearest ones fewer.
SHARES = {RACE: 52, BELIEFS: 16, ROSTERS: 14, BUDGET: 14, FIRST: 4}

SCHEDULES = 10_000 if NIGHT else 100
SEED = 12


@pytest.fixture
def staged(tmp_path: Path) -> Generator[Callable[[Scenario], Stage]]:
    """Makes stages, in memory where the machine has a folder for that: nothing here is about disks."""
    stages: list[Stage] = []
    memory = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made there
    folder = Path(tempfile.mkdtemp(dir=memory)) if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path

    def stage(scenario: Scenario) -> Stage:
        stages.append(Stage(scenario, folder))
        return stages[-1]

    yield stage
    for one in stages:
        one.close()
    if folder != tmp_path:
        shutil.rmtree(folder)


@pytest.mark.parametrize("scenario", SHARES, ids=lambda scenario: scenario.name)
def test_every_interleaving_keeps_what_is_promised(scenario: Scenario, staged: Callable[[Scenario], Stage]) -> None:
    seed = random.SystemRandom().randrange(2**32) if NIGHT else SEED
    found = explore(staged(scenario), SCHEDULES * SHARES[scenario] // 100, seed)
    assert found is None, found


@pytest.mark.parametrize(
    ("begin", "breaks"), [("BEGIN", "StoreAway"), ("", "Broken")], ids=["a lock taken late", "no transaction"]
)
def test_a_missing_lock_is_found(staged: Callable[[Scenario], Stage], begin: str, breaks: str) -> None:
    stage = staged(RACE)
    assert stage.run([]).failure is None
    stage.begin = begin
    assert type(present(explore(stage, 500, SEED)).failure).__name__ == breaks
