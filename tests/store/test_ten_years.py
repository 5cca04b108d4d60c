"""What a window costs the store does not depend on how many there were before: counted, not timed."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import Store

from ..depth import NIGHT
from .samples import BELIEF, domain, drafts, query

FIRST, SIZE, LOOKED_AT = 96, 24, 12

#: Windows that pass between two looks.
PASSED = 3_648 if NIGHT else 600


class Work(NamedTuple):
    """What was done for a window."""

    statements: int  # SQL statements
    steps: int  # instructions of SQLite's machine, in tens
    calls: int  # calls of functions inside the privacy core


@contextmanager
def counted(found: list[Work]) -> Generator[None]:
    """Count what the block does."""
    done = dict.fromkeys(Work._fields, 0)
    used: list[Any] = []

    def statement(connection: Connection, *_: Any) -> None:
        done["statements"] += 1
        used.append(connection.connection.driver_connection)
        used[-1].set_progress_handler(step, 10)

    def step() -> int:
        done["steps"] += 1
        return 0

    def call(frame: FrameType, _kind: str, _argument: Any) -> None:
        done["calls"] += "/privacy/" in frame.f_code.co_filename

    event.listen(Engine, "before_cursor_execute", statement)
    sys.setprofile(call)
    try:
        yield
    finally:
        sys.setprofile(None)
        event.remove(Engine, "before_cursor_execute", statement)
        for connection in used:
            connection.set_progress_handler(None, 0)
    found.append(Work(**done))


@pytest.mark.night
def test_a_window_costs_as_much_after_ten_years_as_at_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    spec, looks = query(size=SIZE, share=0.9, schedule=Schedule(SIZE, SIZE, FIRST, None, FIRST)), list[list[Work]]()
    with Store(url, create=True) as store:
        held, at = store.register(domain(), spec), 0
        windows = [Window(FIRST + n * SIZE, FIRST + (n + 1) * SIZE) for n in range(2 * PASSED + 3 * LOOKED_AT + 3)]
        for _ in range(3):
            store.publish(held, drafts(held, windows[at : at + 1]))
            looks.append([])
            for window in windows[at + 1 : at + 1 + LOOKED_AT]:
                with counted(looks[-1]):
                    records = store.publish(held, drafts(held, [window]))
                assert all(record.fresh for record in records)
            at += 1 + LOOKED_AT
            if len(looks) < 3:
                store.charge_windows(held, windows[at + PASSED - 1 : at + PASSED])
                at += PASSED
            store.close()
        entries = store.entries()
    first, *later = looks
    for other in later:
        assert {one.statements for one in (*first, *other)} == {4}
        for name in ("steps", "calls"):
            before, after = (statistics.median(getattr(one, name) for one in look) for look in (first, other))
            assert after <= 1.1 * before, name
    assert entries[-1].loss_after == Ledger(BELIEF).replay([entry.span for entry in entries]) <= 1.0
