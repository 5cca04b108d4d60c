"""Every schedule of jobs that share a ledger keeps what is promised, and planted errors are found.

What is interleaved is the store's own code on SQLite. A server's locks are tried by the racing processes of the
contracts; here they would be a model of them.

A schedule takes 4 to 20 ms of CPU, 6 on average, nearly all of it in the store and SQLAlchemy: the 10,000 of the slow
tests are a minute of one core, and half a minute of two. A push tries 500, nightly 2,000 beside them. What is computed
once for all of them are functions of their arguments alone: the account of a history of charges, and blocks as bytes
and back.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from quiltstream.store import (
    BlockToPublish,
    Record,
    Registration,
    Store,
    accounts,
    publishing,
)
from quiltstream.store.codec import block_bytes, block_from_bytes

from ..depth import NIGHT
from ..present import present
from .interleaver import KILL, Anew, Recalled, Scenario, Stage, bytes_once, explore
from .scenarios import BELIEFS, BUDGET, DAMAGE, FIRST, RACE, ROSTERS, VANISH

#: How many of every hundred schedules a scenario gets: the dearest ones fewer.
SHARES = {RACE: 46, BELIEFS: 16, ROSTERS: 12, BUDGET: 12, DAMAGE: 8, FIRST: 4, VANISH: 2}

ON_A_PUSH = 2_000 if NIGHT else 500
LEAST = 40
SLOW = 10_000
PARTS = 4
SEED = 12


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[Scenario], Stage]]:
    """Makes stages, in memory where the machine has a folder for that: nothing here is about disks."""
    stages: list[Stage] = []
    memory = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made there
    folder = Path(tempfile.mkdtemp(dir=memory)) if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path
    # half of the time of schedules, which have few histories and few blocks
    monkeypatch.setattr(publishing, "block_from_bytes", lru_cache(4096)(block_from_bytes))
    monkeypatch.setattr(publishing, "block_bytes", bytes_once(block_bytes))
    monkeypatch.setattr(accounts, "Ledger", Recalled)

    def stage(scenario: Scenario) -> Stage:
        stages.append((Anew if scenario is VANISH else Stage)(scenario, folder))
        return stages[-1]

    yield stage
    for one in stages:
        one.close()
    if folder != tmp_path:
        shutil.rmtree(folder)


each = pytest.mark.parametrize("scenario", SHARES, ids=lambda scenario: scenario.name)


@pytest.mark.night
@each
def test_every_interleaving_satisfies_the_invariants(scenario: Scenario, staged: Callable[[Scenario], Stage]) -> None:
    found = explore(staged(scenario), max(LEAST, ON_A_PUSH * SHARES[scenario] // 100), SEED)
    assert found is None, found


@pytest.mark.night
@pytest.mark.parametrize("part", range(PARTS))
@each
def test_many_interleavings_satisfy_the_invariants(
    scenario: Scenario, part: int, staged: Callable[[Scenario], Stage]
) -> None:
    seed = PARTS * random.SystemRandom().randrange(2**32) + part
    found = explore(staged(scenario), SLOW * SHARES[scenario] // 100 // PARTS, seed)
    assert found is None, found


def test_an_interleaving_is_reproducible_and_differs_from_others(staged: Callable[[Scenario], Stage]) -> None:
    stage = staged(RACE)
    alone = stage.run([])
    assert alone.failure is None
    assert stage.run([]).trace == alone.trace
    # to the other job and back again, and a kill
    assert stage.run([(3, 1), (2, 1)]).trace != alone.trace
    assert len(stage.run([(9, KILL)]).trace) < len(alone.trace)
    schedule = [(4, 1), (3, KILL), (7, 1), (1, 1)]
    assert stage.run(schedule).trace == stage.run(schedule).trace


def finds(stage: Stage) -> str:
    """What an exploration finds that the planted error breaks, by a schedule that Hypothesis made short."""
    found = present(explore(stage, ON_A_PUSH, SEED))
    assert len(found.schedule) <= 3, found
    return f"{type(found.failure).__name__}: {found.failure}"


@pytest.mark.night
@pytest.mark.parametrize(
    ("begin", "breaks"), [("BEGIN", "StoreAway"), ("", "Broken")], ids=["a lock taken late", "no transaction"]
)
def test_a_missing_lock_is_found(staged: Callable[[Scenario], Stage], begin: str, breaks: str) -> None:
    stage = staged(RACE)
    assert stage.run([]).failure is None
    stage.begin = begin
    assert finds(stage).split(":")[0] == breaks


def test_a_state_that_only_lasts_from_one_statement_to_the_next_is_found(
    staged: Callable[[Scenario], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that is on record before its charge, and taken back before anything else is committed."""
    stage, publish = staged(RACE), Store.publish

    def keep_and_take_back(store: Store, held: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        with store._database().raw_sqlite() as connection:
            row = ("homes", 99, "block/9/9/weekly", "{}", b"")
            connection.execute("INSERT INTO quiltstream_log VALUES (?, ?, ?, ?, ?)", row)
            stage._look()
            connection.execute("DELETE FROM quiltstream_log WHERE seq = 99")
        return publish(store, held, drafts)

    assert stage.run([]).failure is None
    monkeypatch.setattr(Store, "publish", keep_and_take_back)
    assert "has no charge that paid for it" in str(stage.run([]).failure)
