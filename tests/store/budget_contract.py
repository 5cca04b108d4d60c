"""Every ledger of record: no window above the budget, whichever way it comes about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiltstream.store import BlockToPublish, BudgetRefused, Store, StoreError
from quiltstream.store.address import forget
from quiltstream.store.errors import StoreConflict

from ..present import present
from .damage import rewriting
from .forging import forge, said
from .proofs import Registered, never, partial, prices, windows_of
from .samples import domain, drafts, query


class BudgetContract(Registered):
    """What a budget promises."""

    def test_windows_beyond_the_reserved_budget_are_refused_in_all_shards(self, store: Store) -> None:
        held = store.register(domain(budget=0.3), partial())
        admitted = [w for w in windows_of(held) if w.stop <= present(held.admitted_stop)]
        assert 0 < len(admitted) < 12
        last = windows_of(held)[-1]
        (refused,) = store.publish(held, [BlockToPublish(last, 1, never)])
        assert refused.block is None
        assert refused.entry.decision == "refused"
        assert refused.entry.loss_before <= 0.3 < refused.entry.loss_after
        assert refused.entry.budget == 0.3
        records = store.publish(held, drafts(held))
        assert [record.block is not None for record in records] == [
            w in admitted for w in windows_of(held) for _ in "ab"
        ]
        assert records[-1].entry == refused.entry
        prices(store.entries(), 0.3)
        assert store.summary("homes").refused == 12 - len(admitted)
        assert list(store.missing(held)) == []

    def test_a_budget_that_the_last_window_takes_up_exactly_is_enough(self, fresh_urls: Iterator[str]) -> None:
        spent = [1.0]
        for _ in range(2):
            with Store(next(fresh_urls), create=True) as store:
                held = store.register(domain(budget=spent[-1]), query())
                assert all(record.block is not None for record in store.publish(held, drafts(held)))
                assert store.verify().defects == ()
                spent.append(store.entries()[-1].loss_after)
        assert spent[1] == spent[2]

    def test_refused_windows_are_independent_of_the_order_of_the_queries(self, fresh_urls: Iterator[str]) -> None:
        decided: list[dict[tuple[str, int], str]] = []
        for order in (("first", "second"), ("second", "first")):
            with Store(next(fresh_urls), create=True) as store:
                held = {
                    "first": store.register(domain(budget=0.5), query("first", size=4, windows=2)),
                    "second": store.register(domain(budget=0.5), partial(name="second")),
                }
                assert held["first"].admitted_stop is None
                assert held["second"].admitted_stop is not None
                for name in order:
                    store.publish(held[name], drafts(held[name]))
                prices(store.entries(), 0.5)
                decided.append({(entry.query, entry.window_start): entry.decision for entry in store.entries()})
        assert decided[0] == decided[1]
        assert set(decided[0].values()) == {"charged", "refused"}

    def test_a_window_that_straddles_the_admitted_stop_is_refused_before_what_else_is_reserved(
        self, store: Store
    ) -> None:
        """The account alone would allow it: what another query has reserved is not charged yet."""
        of = domain(budget=0.5)
        first = store.register(of, query("first", size=4, windows=2))
        held = store.register(of, query(size=4, every=1, windows=24, share=1 / 2))
        stop = present(held.admitted_stop)
        assert sum(window.start < stop < window.stop for window in windows_of(held)) == 3
        store.publish(held, drafts(held))
        decided = {entry.window_stop: entry.decision for entry in store.entries()}
        assert decided == {w.stop: "charged" if w.stop <= stop else "refused" for w in windows_of(held)}
        assert all(record.block is not None for record in store.publish(first, drafts(first)))
        prices(store.entries(), 0.5)

    def test_a_query_that_does_not_fit_is_refused_with_numbers_and_not_recorded(self, store: Store) -> None:
        held = store.register(domain(budget=0.5), query())
        with pytest.raises(BudgetRefused, match="the first window of query 'more'") as caught:
            store.register(domain(budget=0.5), query("more"))
        told = caught.value.details
        assert (told["reserved"], told["budget"]) == (held.reserved_loss, 0.5)
        assert told["asked"] > told["remaining"] == 0.5 - held.reserved_loss
        assert store.queries() == [("homes", "weekly")]
        with pytest.raises(BudgetRefused):
            store.register(domain("poor", budget=1e-3), query(domain="poor"))
        assert store.domains() == ("homes",)

    def test_a_budget_of_1_holds_two_queries_that_are_each_calibrated_to_1(self, store: Store) -> None:
        losses = [store.register(domain(), query(name)).reserved_loss for name in ("first", "second")]
        # the account at once and at twice the density of mqm-approx; by the quilts the two cost 1.85
        assert losses == pytest.approx([0.3841, 0.8004], abs=2e-4)
        with pytest.raises(BudgetRefused, match="the first window of query 'third'"):
            store.register(domain(), query("third"))
        for name in ("first", "second"):
            held = present(store.registered("homes", name))
            assert all(record.block is not None for record in store.publish(held, drafts(held)))
        assert store.summary("homes").loss == losses[1]

    def test_the_budget_is_enforced_again_when_a_window_is_charged(self, store: Store) -> None:
        held = store.register(domain(budget=0.3), partial())
        with rewriting(store) as connection:
            forge(connection, said("query/", promised=[("weekly", 96, None)]))
        forget(store.address)  # as another process
        store.publish(held, drafts(held))
        entries = store.entries()
        # a window behind a refused one may fit again
        assert {entry.decision for entry in entries} == {"charged", "refused"}
        assert all("pass the budget" in entry.rule for entry in entries if entry.decision == "refused")
        prices(entries, 0.3)

    def test_a_raised_budget_admits_later_windows_and_reopens_none(self, store: Store) -> None:
        held = store.register(domain(budget=0.3), partial())
        windows, stop = windows_of(held), held.admitted_stop
        assert stop is not None
        admitted = sum(w.stop <= stop for w in windows)
        refused = windows[admitted]
        store.publish(held, [BlockToPublish(refused, 0, never)])
        for wrong in (0.3, 0.1, float("inf"), float("nan")):
            with pytest.raises(StoreError, match="can only be raised"):
                store.raise_budget("homes", wrong)
        summary = store.raise_budget("homes", 1.0)
        assert (summary.budget, summary.events[0][:4]) == (1.0, ("budget-raised", None, "0.3", "1.0"))
        later = present(store.registered("homes", "weekly"))
        assert later.admitted_stop is None
        records = {record.window: record for record in store.publish(later, drafts(later, shards=[0]))}
        assert records[refused].block is None
        assert [w for w, record in records.items() if record.block is None] == [refused]
        prices(store.entries(), 1.0)
        assert store.summary("homes").loss == later.reserved_loss
        # settings that are older than the raise still run; a third number does not
        assert store.register(domain(budget=0.3), partial()).domain.budget == 1.0
        assert store.register(domain(budget=1.0), partial()).domain.budget == 1.0
        with pytest.raises(StoreConflict, match=r"privacy\.budget"):
            store.register(domain(budget=0.7), partial())

    def test_a_raise_before_any_refusal_admits_the_next_windows(self, store: Store, url: str) -> None:
        held = store.register(domain(budget=0.3), partial())
        store.publish(held, drafts(held, windows_of(held)[:1]))
        with Store(url, create=True) as other:
            other.raise_budget("homes", 1.0)
        records = store.publish(held, drafts(held))
        assert all(record.block is not None for record in records)
        prices(store.entries(), 1.0)

    def test_a_lost_history_is_marked_for_ever_and_changes_no_loss(self, url: str, store: Store) -> None:
        with pytest.raises(StoreConflict):
            store.note_history_lost("homes", releases=1)
        held = store.register(domain(), query())
        before = store.summary("homes")
        after = store.note_history_lost("homes", releases=7)
        assert (before.history_lost, after.history_lost) == (False, True)
        assert [event[:4] for event in after.events] == [("history-lost", None, "0", "7")]
        assert (after.loss, after.reserved_loss, after.budget) == (before.loss, before.reserved_loss, before.budget)
        store.publish(held, drafts(held))
        store.raise_budget("homes", 2.0)
        with Store(url, create=True) as other:
            assert other.summary("homes").history_lost
