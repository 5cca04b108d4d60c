"""Every ledger of record: processes and threads that share it, race for it, and are killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quiltstream.store import Store
from quiltstream.store.errors import StoreAway
from quiltstream.store.log import heads
from quiltstream.store.specs import Registration

from ..depth import boundaries
from .damage import rewriting
from .nursery import Nursery
from .proofs import Registered, prices, registered, windows_of
from .samples import domain, drafts, query, seen


class ProcessContract(Registered):
    """What is promised to many at once."""

    def test_nothing_is_shared_across_a_fork(self, url: str, nursery: Nursery) -> None:
        (answer,) = nursery.run({"kind": "fork", "url": url})
        assert answer == {"status": 0, "child": "own", "sequences": [1, 2, 3, 4]}

    def test_stores_of_one_process_share_a_connection_until_the_last_is_closed(self, url: str) -> None:
        first, second = Store(url, create=True), Store(url, create=True)
        held = first.register(domain(), query())
        second.entries()
        first.close()
        assert len(second.publish(held, drafts(held))) == 12
        assert len(first.entries()) == 6
        first.close()
        second.close()

    def test_threads_of_one_process_are_serialised(self, store: Store, registration: Registration) -> None:
        found: list[dict[str, Any]] = []

        def work() -> None:
            for window in windows_of(registration):
                records = store.publish(registration, drafts(registration, [window]))
                found.append(seen(records))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 24
        assert all(found.count(one) == 4 for one in found)
        prices(store.entries(), 1.0)

    def test_processes_racing_for_the_same_windows_get_the_same_rows(
        self, fresh_urls: Iterator[str], nursery: Nursery
    ) -> None:
        for _ in range(4):
            url = next(fresh_urls)
            orders = ("forward", "backward", "random")
            answers = nursery.run(*({"url": url, "order": order, "batch": 1} for order in orders))
            assert answers[0]["rows"] == answers[1]["rows"] == answers[2]["rows"]
            with Store(url, create=True) as store:
                assert len(answers[0]["rows"]) == len(list(store.records("homes", "weekly"))) == 12
                prices(store.entries(), 1.0)

    def test_two_queries_racing_never_exceed_the_budget(self, fresh_urls: Iterator[str], nursery: Nursery) -> None:
        for _ in range(3):
            url = next(fresh_urls)
            spec = {"size": 4, "windows": 8}
            job = {"url": url, "budget": 0.6, "spec": spec, "batch": 1}
            answers = nursery.run(*({**job, "query": f"q{i}", "order": "random"} for i in range(3)))
            assert sum("rows" in answer for answer in answers) >= 1
            assert {answer["error"] for answer in answers if "error" in answer} <= {"BudgetRefused"}
            with Store(url, create=True) as store:
                entries = store.entries()
                prices(entries, 0.6)
                assert "refused" in {entry.decision for entry in entries} or len(store.queries()) < 3
                assert store.summary("homes").loss <= store.summary("homes").reserved_loss * (1 + 1e-12) <= 0.6

    def test_a_worker_killed_at_any_boundary_of_a_first_run_leaves_whole_steps(
        self, fresh_urls: Iterator[str], nursery: Nursery
    ) -> None:
        """Every boundary of making the tables and registering: before and after each statement and commit."""
        for boundary in boundaries():
            url = next(fresh_urls)
            (answer,) = nursery.run({"url": url, "kill_at": boundary, "publish": False})
            with Store(url, create=True) as store:
                # opening it again completes what a killed process did not
                assert store.registered("homes", "weekly") in (None, registered(store))
                assert store.verify().whole
                queries = len(store.queries())
                assert queries == len(store.domains()) <= 1
                held = store.register(domain(), query())
                assert held.fresh == (queries == 0)
                assert len(store.publish(held, drafts(held))) == 12
                prices(store.entries(), 1.0)
            if not answer.get("killed"):
                assert answer["crossed"] < boundary
                assert boundary > 20
                return

    def test_a_worker_killed_at_any_boundary_of_publishing_leaves_whole_batches(
        self, url: str, nursery: Nursery
    ) -> None:
        """Every boundary of two batches, the later windows first; a rerun keeps each row and charges nothing again."""
        with Store(url, create=True) as store:
            store.domains()
            for boundary in boundaries():
                name = f"homes-{boundary}"
                held = store.register(domain(name), query(domain=name, windows=4))
                job = {"url": url, "domain": name, "spec": {"windows": 4}, "order": "backward", "batch": 2}
                (answer,) = nursery.run({**job, "kill_at": boundary})
                entries, records = store.entries(name), list(store.records(name, "weekly"))
                # the batch of the later windows charges the earlier ones, too
                assert len(entries) in (0, 4)
                assert len(records) in (0, 4, 8)
                assert len(records) == 0 or len(entries) == 4
                before = seen(records)
                after = seen(store.publish(held, drafts(held)))
                assert {place: after[place] for place in before} == before
                assert len(after) == len(list(store.records(name, "weekly"))) == 8
                prices(store.entries(name), 1.0)
                assert [e.entry_id for e in entries] in ([], [e.entry_id for e in store.entries(name)])
                if not answer.get("killed"):
                    assert answer["crossed"] < boundary
                    assert boundary > 20
                    return

    def test_processes_that_create_the_store_at_once_agree(self, fresh_urls: Iterator[str], nursery: Nursery) -> None:
        for _ in range(4):
            url = next(fresh_urls)
            answers = nursery.run(*({"url": url, "publish": False} for _ in range(4)))
            assert all("rows" in answer for answer in answers), answers
            with Store(url, create=False) as store:
                assert store.queries() == [("homes", "weekly")]

    def test_a_lock_held_too_long_is_reported(self, store: Store, url: str) -> None:
        held = store.register(domain(), query())
        with Store(url, wait=0.2, create=True) as other:
            other.entries()
            with rewriting(store) as connection:
                connection.execute(heads.update().values(version=heads.c.version))
                with pytest.raises(StoreAway, match="locked for too long"):
                    other.publish(held, drafts(held))
            assert len(other.publish(held, drafts(held))) == 12
