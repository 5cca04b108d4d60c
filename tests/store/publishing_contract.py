"""Every ledger of record: what is drawn, charged and published, each once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import BlockToPublish, NoisyBlock, Store, StoreError, publishing
from quiltstream.store.errors import StoreConflict
from quiltstream.store.exports import rows_of
from quiltstream.store.specs import Registration

from ..present import present
from .proofs import Registered, never, prices, replayed, windows_of
from .samples import SERIES, block, domain, drafts, query, seen


class PublishingContract(Registered):
    """What publishing promises."""

    def test_the_first_write_wins_and_a_second_attempt_draws_nothing(
        self, store: Store, url: str, registration: Registration
    ) -> None:
        first = store.publish(registration, drafts(registration))
        assert all(record.fresh for record in first)
        again = store.publish(registration, replayed(registration))
        with Store(url, create=True) as other:
            elsewhere = other.publish(pickle.loads(pickle.dumps(registration)), replayed(registration))
        assert not any(record.fresh for record in (*again, *elsewhere))
        assert seen(first) == seen(again) == seen(elsewhere)
        assert [rows_of(registration, a).equals(rows_of(registration, b)) for a, b in zip(first, again, strict=True)]
        assert len(store.entries()) == 6

    def test_a_block_given_twice_in_a_batch_is_drawn_once(self, store: Store, registration: Registration) -> None:
        window = windows_of(registration)[0]
        first, second = drafts(registration, [window, window], [1])
        records = store.publish(registration, [first, replace(second, draw=never)])
        assert [record.fresh for record in records] == [True, False]
        assert seen(records[:1]) == seen(records[1:])

    def test_any_count_can_be_written_and_read_back(self, store: Store, registration: Registration) -> None:
        window = windows_of(registration)[0]
        limits = np.iinfo(np.int64)
        base = block(registration, 0)
        counts = np.full_like(base.counts, limits.max)
        counts[0] = limits.min
        record = store.publish(registration, [BlockToPublish(window, 0, lambda: replace(base, counts=counts))])[0]
        assert np.array_equal(present(record.block).counts, counts)
        (read,) = store.records("homes", "weekly")
        assert read.block is not None
        assert np.array_equal(read.block.counts, counts)
        assert read.block.keys == base.keys

    def test_totals_that_are_not_public_never_reach_the_store(self, store: Store) -> None:
        held = store.register(domain(missing="unheard of"), query())
        store.publish(held, drafts(held))
        for record in store.records("homes", "weekly"):
            assert not present(record.block).totals.any()
        assert {row["total"] for batch in store.releases("homes", "weekly") for row in batch.to_pylist()} == {None}

    def test_windows_are_charged_in_schedule_order_for_any_order_of_arrival(self, fresh_urls: Iterator[str]) -> None:
        orders = ([5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5], [3, 5, 0, 1, 4, 2])
        found: list[list[dict[str, Any]]] = []
        for order in orders:
            with Store(next(fresh_urls), create=True) as store:
                held = store.register(domain(), query())
                for index in order:
                    store.publish(held, drafts(held, [windows_of(held)[index]], [index % 2]))
                entries = store.entries()
                prices(entries, 1.0)
                found.append([{**entry.to_dict(), **dict.fromkeys(("entry_id", "chain"))} for entry in entries])
        assert found[0] == found[1] == found[2]
        assert [entry["window_start"] for entry in found[0]] == [96 + 48 * n for n in range(6)]

    def test_many_earlier_windows_are_charged_in_several_transactions(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(publishing, "MOST_AT_ONCE", 3)
        held = store.register(domain(), query(windows=8))
        store.publish(held, drafts(held, [windows_of(held)[-1]], [0]))
        assert [entry.window_start for entry in store.entries()] == [w.start for w in windows_of(held)]
        prices(store.entries(), 1.0)

    def test_sliding_windows_and_groups_are_charged_for_shared_cells(self, store: Store) -> None:
        roster = Roster(tuple((name, group) for name in SERIES for group in ("north", "all")))
        spec = query(size=48, every=12, windows=10, share=1 / 8, roster=roster)
        held = store.register(domain(), spec)
        assert held.query.epsilon_dp == 2 * spec.release_epsilon_dp
        store.publish(held, drafts(held))
        prices(store.entries(), 1.0)
        assert store.entries()[-1].loss_after == held.reserved_loss

    def test_an_endless_schedule_is_reserved_once_and_charged_window_by_window(self, store: Store) -> None:
        held = store.register(domain(), query(schedule=Schedule(48, 48, 96, None, 96)))
        assert held.admitted_stop is None
        assert held.reserved_loss <= 1
        records = store.publish(held, drafts(held, [Window(96 + 480, 96 + 528)], [0]))
        assert records[0].entry.sequence == 11
        prices(store.entries(), 1.0)
        assert store.registered("homes", "weekly") == replace(held, fresh=False)

    def test_what_is_not_of_the_query_is_refused_before_any_charge(
        self, store: Store, registration: Registration
    ) -> None:
        first, last, good = windows_of(registration)[0], windows_of(registration)[-1], block(registration, 0)
        for window, shard in ((Window(97, 145), 0), (first, 2), (first, -1)):
            with pytest.raises(StoreConflict):
                store.publish(registration, [BlockToPublish(window, shard, never)])
        for start in (last.stop, last.start + 1):
            with pytest.raises(StoreConflict, match="is not in its schedule"):
                store.charge_windows(registration, [Window(start, start + len(last))])
        for wrong in (
            {"keys": good.keys[::-1]},
            {"counts": good.counts[:, :-1]},
            {"counts": good.counts.astype(np.float64)},
            {"totals": good.totals[:-1]},
            {"completeness": "mostly"},
        ):
            made = replace(good, **wrong)
            with pytest.raises(StoreConflict):
                store.publish(registration, [BlockToPublish(first, 0, lambda made=made: made)])
        assert store.entries() == []

    def test_an_error_while_drawing_rolls_back_the_charge_and_its_cache(
        self, store: Store, registration: Registration
    ) -> None:
        windows = windows_of(registration)
        store.publish(registration, drafts(registration, windows[:1]))

        def broken() -> NoisyBlock:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.publish(registration, [*drafts(registration, windows[1:3]), BlockToPublish(windows[3], 0, broken)])
        assert len(store.entries()) == 1
        store.publish(registration, drafts(registration, windows[1:]))
        prices(store.entries(), 1.0)

    def test_a_draw_that_uses_the_store_is_refused(self, store: Store, registration: Registration) -> None:
        def nosy() -> NoisyBlock:
            store.entries()
            return block(registration, 0)

        with pytest.raises(StoreError, match="must not use the store"):
            store.publish(registration, [BlockToPublish(windows_of(registration)[0], 0, nosy)])
        assert store.entries() == []

    @pytest.mark.parametrize(
        "changes",
        [
            {"digest": "another"},
            {"query": query(scale=Fraction(1, 7))},
            {"query": query(roster=Roster.of(["m1"]))},
        ],
    )
    def test_a_registration_that_is_not_the_one_on_record_stops_the_job(
        self, store: Store, registration: Registration, changes: dict[str, Any]
    ) -> None:
        forged = replace(registration, **changes)
        with pytest.raises(StoreConflict, match="stop the job"):
            store.publish(forged, [BlockToPublish(Window(96, 144), 0, never)])
        assert store.entries() == []
