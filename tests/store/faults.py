"""What every ledger of record survives, whatever breaks around it; the tests of each engine inherit all of it.

After each fault the same is asked of the ledger: no window charged twice, no row of record changed, the loss what the
mathematics alone says and within the budget, and a retry that completes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from quiltstream.store import Store, StoreError
from quiltstream.store.exports import rows_of
from quiltstream.store.specs import Registration

from ..depth import STRIDE, boundaries
from ..examined import Examined, Tally, examine, on_record
from .engines import OnLedger
from .nursery import Nursery
from .samples import BELIEF, domain, drafts, query, seen

Rows = dict[str, Any]


def whole(store: Store, held: Registration, published: Rows, budget: float = 1.0) -> Examined:
    """Complete a job after a fault, and check everything that must hold then; what was found.

    Args:
        store: the ledger.
        held: the job's registration.
        published: what the job was told is on record before the fault.
        budget: the domain's.
    """
    name, of_query = held.domain.name, held.query.name
    before, earlier = seen(store.records(name, of_query)), on_record(store, name, of_query)
    assert published.items() <= before.items(), "a row that left is not the one of record"
    records = store.publish(held, drafts(held))
    after = seen(records)
    assert before.items() <= after.items(), "a retry changed a row"
    assert after == seen(store.records(name, of_query)) | {k: row for k, row in after.items() if row[3] is None}
    assert list(store.missing(held)) == []
    entries = store.entries(name)
    starts = [(entry.query, entry.window_start) for entry in entries]
    assert len(set(starts)) == len(starts), "a window was charged twice"
    # and once more: nothing is left to do
    records += store.publish(held, drafts(held))
    assert seen(records) == after
    assert store.entries(name) == entries
    found = examine(
        store,
        name,
        of_query,
        belief=BELIEF,
        budget=budget,
        windows=[(window.start, window.stop) for window in held.query.schedule.windows()],
        keys=held.query.roster.keys,
        left=[rows_of(held, record) for record in records if record.block is not None],
        earlier=earlier,
    )
    assert found.sound, found
    return found


@contextmanager
def suppressed() -> Generator[list[StoreError]]:
    """An error of the store ends the block and nothing else."""
    caught: list[StoreError] = []
    try:
        yield caught
    except StoreError as error:
        caught.append(error)


class Cut:
    """Breaks a connection at one of the boundaries that a job crosses.

    Attributes:
        crossed: boundaries crossed so far.
        broken: whether it was broken.
    """

    def __init__(self, at: int) -> None:
        self.crossed = 0
        self.broken = False
        self._at = at

    def due(self) -> bool:
        """Count a boundary; whether it is the one."""
        self.crossed += 1
        self.broken = self.broken or self.crossed == self._at
        return self.crossed == self._at


class FaultContract(OnLedger):
    """Inherit it together with an engine, and say how a connection is broken."""

    def sever(self, url: str, connection: Any) -> None:
        """Break a driver's connection, as seen by whoever uses it next."""
        raise NotImplementedError

    def lost(self) -> Exception:
        """The driver's error where the answer to a statement or commit never comes."""
        raise NotImplementedError

    @contextmanager
    def cut(self, url: str, at: int) -> Generator[Cut]:
        """Break the connection at a boundary: before or after a statement, before a commit, or after it."""
        cut = Cut(at)

        def before(connection: Any, *_: Any) -> None:
            if cut.due():
                self.sever(url, connection.connection.driver_connection)

        def after(connection: Any, *_: Any) -> None:
            if cut.due():
                self.sever(url, connection.connection.driver_connection)

        commit = DefaultDialect.do_commit

        def do_commit(dialect: DefaultDialect, connection: Any) -> None:
            if cut.due():
                self.sever(url, connection.driver_connection)
            commit(dialect, connection)
            if cut.due():
                # it is on record, and the job is told that it is not
                raise self.lost()

        event.listen(Engine, "before_cursor_execute", before)
        event.listen(Engine, "after_cursor_execute", after)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DefaultDialect, "do_commit", do_commit)
            try:
                yield cut
            finally:
                event.remove(Engine, "before_cursor_execute", before)
                event.remove(Engine, "after_cursor_execute", after)

    def test_a_connection_cut_at_any_boundary_of_publishing_loses_nothing(self, url: str, tally: Tally) -> None:
        """Two batches, the later windows first, each settled before; the job retries with the store it has."""
        broken = 0
        with Store(url, wait=30, create=True) as store:
            store.domains()
            for boundary in boundaries():
                name = f"homes-{boundary}"
                held = store.register(domain(name), query(domain=name, windows=4))
                windows = list(held.query.schedule.windows())
                published: Rows = {}
                errors = 0
                with self.cut(url, boundary) as cut:
                    for part in (windows[2:], windows[:2]):
                        with suppressed() as caught:
                            settled = store.charge_windows(held, part)
                            published |= seen(store.publish(settled, drafts(settled, part)))
                        errors += len(caught)
                if not cut.broken:
                    assert boundary > 15
                    assert broken > (15 if STRIDE == 1 else 1)
                    return
                assert errors <= 1
                broken += errors
                tally.take(whole(store, held, published))

    def test_a_connection_cut_at_any_boundary_of_a_registration_reserves_once(self, fresh_urls: Iterator[str]) -> None:
        for boundary in boundaries():
            url = next(fresh_urls)
            with Store(url, wait=30, create=True) as store:
                store.domains()
                with self.cut(url, boundary) as cut, suppressed():
                    store.register(domain(), query(windows=2))
                if not cut.broken:
                    assert boundary > 10
                    return
                held = store.register(domain(), query(windows=2))
                assert store.summary("homes").reserved_loss == held.reserved_loss
                whole(store, held, {})

    def test_racing_jobs_of_which_one_is_killed_publish_one_value_for_each_window(
        self, fresh_urls: Iterator[str], nursery: Nursery, tally: Tally
    ) -> None:
        for kill_at in (30, 45, 55, 60, 71, 83):
            url = next(fresh_urls)
            job = {"url": url, "batch": 1, "spec": {"windows": 4}}
            answers = nursery.run({**job, "order": "backward"}, {**job, "order": "random", "kill_at": kill_at})
            with Store(url, wait=30, create=True) as store:
                held = store.register(domain(), query(windows=4))
                tally.take(whole(store, held, answers[0]["rows"]))
