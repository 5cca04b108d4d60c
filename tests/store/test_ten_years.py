"""What a window costs the store does not depend on how many there were before: counted, not timed."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import Store
from quiltstream.store.specs import Registration

from ..depth import NIGHT
from .samples import BELIEF, domain, drafts, query

FIRST = 96


@dataclass
class Work:
    """What was done for each window."""

    statements: list[int] = field(default_factory=list[int])  # SQL statements
    steps: list[int] = field(default_factory=list[int])  # instructions of SQLite's machine, in tens
    calls: list[int] = field(default_factory=list[int])  # calls of functions inside the privacy core, and from it

    @contextmanager
    def counted(self) -> Generator[None]:
        """Count what the block does."""
        statements = steps = calls = 0
        used: list[Any] = []

        def statement(connection: Connection, *_: Any) -> None:
            nonlocal statements
            statements += 1
            used.append(connection.connection.driver_connection)
            used[-1].set_progress_handler(step, 10)

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        def call(frame: FrameType, _kind: str, _argument: Any) -> None:
            nonlocal calls
            calls += "/privacy/" in frame.f_code.co_filename

        event.listen(Engine, "before_cursor_execute", statement)
        sys.setprofile(call)
        try:
            yield
        finally:
            sys.setprofile(None)
            event.remove(Engine, "before_cursor_execute", statement)
            for connection in used:
                connection.set_progress_handler(None, 0)
        self.statements.append(statements)
        self.steps.append(steps)
        self.calls.append(calls)


SIZES = {"hourly": 1, "daily": 24, "weekly": 168}
FORTNIGHT = 2 * 168
FORTNIGHTS = 26 if NIGHT else 4
"""Of a year; a push has short years."""

CHARGES = sum(FORTNIGHT // size for size in SIZES.values())
"""Of a fortnight."""


def windows_of(held: Registration, fortnight: int) -> list[Window]:
    """All windows of a query in a fortnight."""
    size, begin = held.query.schedule.size, FIRST + fortnight * FORTNIGHT
    return [Window(at, at + size) for at in range(begin, begin + FORTNIGHT, size)]


def fortnights_pass(store: Store, until: int) -> None:
    """Put charges on record up to a fortnight, as those of the last one are, without publishing a row."""
    with store._database().writing("homes") as writing:
        held = writing.known("homes")
        passed, rest = divmod(len(held.entries), CHARGES)
        assert rest == 0
        last = held.entries[-CHARGES:]
        for number in range(1, until - passed + 1):
            for one in last:
                said = {name: value for name, value in one._asdict().items() if name in SAID}
                more = number * FORTNIGHT
                writing.add(held, f"entry/{one.start + more}/{one.query}", {**said, "stop": one.stop + more, "at": 0})


SAID = {"charged", "epsilon_dp", "before", "after", "budget", "rule", "given_model"}
"""What of an entry is the same in every fortnight."""


@pytest.mark.night
def test_windows_of_three_sizes_cost_as_much_in_the_tenth_year_as_in_the_first(tmp_path: Path) -> None:
    """Three endless queries that share a budget; some windows alone, in the first year and in the tenth."""
    specs = {
        name: query(name, size=size, share=0.333, schedule=Schedule(size, size, FIRST, None, FIRST))
        for name, size in SIZES.items()
    }
    with Store(f"sqlite:///{tmp_path}/ledger.db", create=True) as store:
        queries = {name: store.register(domain(), spec) for name, spec in specs.items()}
        assert all(held.admitted_stop is None for held in queries.values())
        for fortnight in range(2):
            for held in queries.values():
                store.publish(held, drafts(held, windows_of(held, fortnight)))
        fortnight, found = 2, list[dict[str, Work]]()
        for year in (1, 10, 10):
            if fortnight < year * FORTNIGHTS:
                fortnight = year * FORTNIGHTS
                fortnights_pass(store, fortnight)
            else:
                store.close()
                queries = {name: store.register(domain(), spec) for name, spec in specs.items()}
            done: dict[str, Work] = {}
            for name, held in queries.items():
                windows = windows_of(held, fortnight)
                # the first ones catch up with what passed
                beginning = len(windows) // 2
                store.publish(held, drafts(held, windows[:beginning]))
                done[name] = Work()
                for one in windows[beginning:][:24]:
                    with done[name].counted():
                        records = store.publish(held, drafts(held, [one]))
                    assert all(record.fresh for record in records)
                rest = windows[beginning:][24:]
                if rest:
                    store.publish(held, drafts(held, rest))
            found.append(done)
            fortnight += 1
        most = max(step for work in found[0].values() for step in work.steps)
        for name in SIZES:
            first, *later = [done[name] for done in found]
            assert max(first.calls) > 10
            for other in later:
                assert set(other.statements) == set(first.statements) == {4}
                assert statistics.median(other.calls) <= 1.02 * statistics.median(first.calls)
                # of a weekly window there is only one, and single ones differ by a tenth
                assert max(other.steps) <= 1.1 * most
                assert statistics.median(other.steps) <= 1.1 * statistics.median(first.steps)
        entries = store.entries()
        charged = [entry.span for entry in entries]
        assert len(charged) == (10 * FORTNIGHTS + 2) * CHARGES
        assert entries[-1].loss_after == Ledger(BELIEF).replay(charged) == store.summary("homes").loss <= 1.0
        blocks = sum(one.blocks for one in store.summary("homes").queries)
        # a row for a window's charge, and one for each of its blocks
        assert blocks == (2 + 3) * CHARGES * queries["hourly"].query.shards
